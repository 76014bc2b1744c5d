//! What a choice would give: the engine's own memory plan, put through the cost model.

use forebay_models::bundle::Bundle;
use forebay_plans::cost::{
    Activation, DecodeTime, MissCurve, MissSample, Rates, Streamed, TokenWork,
};
use forebay_plans::machine::{DiskProfile, KernelCase, MachineProfile};
use forebay_plans::plan::{Choices, Expected};
use forebay_plans::residency::{Loading, Sparsity};

use crate::engine::memory::{MemoryPlan, MemoryRequest, kv_bytes, plan};
use crate::error::Error;
use crate::learn::Profile;

/// Positions that a token sees, in speeds that are quoted: those of a short conversation.
const USUAL_POSITIONS: usize = 256;
/// A prompt reads whole clusters unless this part of the neurons is cached.
const MOSTLY_CACHED: f64 = 0.8;
/// Part of the neuron cache that is lent to prompts, and the reads in flight that makes.
const LENT_SHARE: f64 = 0.125;
const LENT_DEPTH: usize = 16;
/// Bytes of a half of a bundle, where it is read in two.
const HALF_BUNDLE: f64 = 4096.0;

/// Kernels that a model needs in a mode.
pub(crate) fn kernel_cases(bundle: &Bundle, sparsity: Sparsity) -> Vec<KernelCase> {
    // Which there are does not depend on how many neurons are active.
    let active = Activation::of(sparsity, None);
    TokenWork::of(bundle, sparsity, active, 0.0).cases()
}

/// A model on a machine.
pub(crate) struct Outlook<'a> {
    pub bundle: &'a Bundle,
    pub machine: &'a MachineProfile,
    pub disk: &'a DiskProfile,
    /// What a text wants of the model's neurons, if that is known.
    pub profile: Option<&'a Profile>,
    /// The request without the choices.
    pub request: MemoryRequest,
}

/// A choice with what it gives.
pub(crate) struct Seen {
    pub choices: Choices,
    pub expected: Expected,
    /// Time of a prompt's token, seconds.
    pub prompt_seconds: f64,
}

impl Seen {
    /// What the planner makes small: the time of a generated token and one of a prompt.
    pub fn cost(&self) -> f64 {
        self.expected.decode_seconds.total() + self.prompt_seconds
    }
}

impl Outlook<'_> {
    /// The request with the choices made.
    pub fn requested(&self, choices: &Choices) -> MemoryRequest {
        MemoryRequest {
            threads: choices.threads,
            context: Some(choices.context),
            max_batch: Some(choices.max_batch),
            stream_window: choices.stream_window_bytes,
            neuron_cache: choices.neuron_cache_bytes,
            ..self.request
        }
    }

    /// What a token needs computed.
    pub fn work(&self) -> TokenWork {
        let c = &self.bundle.meta.config;
        let positions = USUAL_POSITIONS.min(c.context_length);
        let kv = kv_bytes(self.bundle, &self.request, positions) as f64;
        TokenWork::of(self.bundle, self.request.sparsity, self.activation(), kv)
    }

    fn activation(&self) -> Activation {
        let mean = |p: &Profile| {
            let layers = p.wanted.len().max(1) as f64;
            (p.wanted.iter().sum::<f64>() / layers).min(1.0)
        };
        Activation::of(self.request.sparsity, self.profile.map(mean))
    }

    /// Neurons of all layers.
    pub fn neurons(&self) -> f64 {
        let c = &self.bundle.meta.config;
        (c.n_layers * c.d_ff) as f64
    }

    /// P_miss(m) in reads and bytes.
    pub fn curve(&self, loading: Loading) -> MissCurve {
        let g = &self.bundle.meta.layers[0].ffn;
        let whole = self.request.sparsity == Sparsity::Predicted;
        let bytes = if whole {
            g.bundle_bytes()
        } else {
            g.up_down_bytes()
        };
        let read = bytes.next_multiple_of(forebay_models::bundle::ALIGN) as f64;
        let wanted = self.activation().alive * self.neurons();
        let empty = MissSample {
            cached: 0.0,
            reads: wanted,
            bytes: wanted * read,
        };
        let Some(profile) = self.profile else {
            return MissCurve::unknown(wanted, read);
        };
        let samples = profile.misses.iter().map(|p| {
            let known = p.reads > 0.0 || p.per_token == 0.0;
            let (reads, bytes) = match known {
                true => (p.reads, p.bytes),
                // A profile of an earlier version.
                false => (p.per_token, p.per_token * read),
            };
            match loading {
                Loading::Split => MissSample {
                    cached: p.cached,
                    reads: 2.0 * p.per_token,
                    bytes: 2.0 * p.per_token * HALF_BUNDLE,
                },
                Loading::Bundle => MissSample {
                    cached: p.cached,
                    reads,
                    bytes,
                },
                Loading::Rows => MissSample {
                    cached: p.cached,
                    reads: 3.0 * p.per_token,
                    bytes: 3.0 * p.per_token * HALF_BUNDLE,
                },
            }
        });
        MissCurve::new(empty, &samples.collect::<Vec<_>>())
    }

    /// Lays the memory out and foretells the speed.
    ///
    /// # Errors
    /// The choices do not fit.
    pub fn see(&self, choices: Choices) -> Result<Seen, Error> {
        let memory = plan(self.bundle, &self.requested(&choices))?;
        Ok(self.foretell(choices, &memory))
    }

    fn foretell(&self, choices: Choices, memory: &MemoryPlan) -> Seen {
        let (work, plan) = (self.work(), &memory.residency);
        let streamed = Streamed::of(self.bundle, plan, choices.threads);
        let rates = Rates {
            machine: self.machine,
            disk: self.disk,
            threads: choices.threads,
            depth: choices.threads * plan.stream_slots,
            window: (choices.threads * plan.stream_slots * plan.stream_slot_bytes) as f64,
        };
        let missed = self.curve(choices.loading).at(streamed.cached);
        let part = streamed.neurons / self.neurons();
        let (neuron_reads, bytes) = (missed.reads * part, missed.bytes * part);
        let time = DecodeTime {
            stream: rates.stream(streamed.clusters, streamed.bytes),
            io: rates.neurons(neuron_reads, bytes),
            ..rates.compute(&work)
        };
        // Prompts borrow a part of the neuron cache as their window.
        let cache = (choices.threads * plan.neuron_cache.bytes_per_core()) as f64;
        let prompt_rates = Rates {
            window: rates.window.max(cache * LENT_SHARE),
            depth: rates.depth.max(LENT_DEPTH),
            ..rates
        };
        let reads = self.prompt_reads(&streamed);
        let prompt_seconds = prompt_rates.prompt(&work, choices.max_batch, reads);
        let items = memory.budget.items().iter();
        Seen {
            expected: Expected {
                decode_tokens_per_second: 1.0 / time.total().max(1e-9),
                prefill_tokens_per_second: 1.0 / prompt_seconds.max(1e-9),
                bound_by: time.bound_by().into(),
                decode_seconds: time,
                reads_per_token: streamed.clusters + neuron_reads,
                bytes_per_token: streamed.bytes + bytes,
                memory_items: items.map(|i| (i.name.to_string(), i.bytes)).collect(),
            },
            choices,
            prompt_seconds,
        }
    }

    /// Clusters, and their bytes, that a batch of a prompt reads.
    fn prompt_reads(&self, streamed: &Streamed) -> (f64, f64) {
        let g = &self.bundle.meta.layers[0].ffn;
        if streamed.neurons <= 0.0 {
            return (streamed.clusters, streamed.bytes);
        }
        // Beyond that, a batch reads what its tokens miss, at most the rest.
        let part = match streamed.cached < MOSTLY_CACHED {
            true => 1.0,
            false => 1.0 - streamed.cached,
        };
        let clusters = streamed.neurons / g.neurons as f64 * part;
        (
            streamed.clusters + clusters,
            streamed.bytes + clusters * g.cluster_bytes(g.neurons) as f64,
        )
    }
}
