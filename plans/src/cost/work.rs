//! The work of a generated token: bytes of weights by kernel, from the packed model's directory.

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, FfnGeometry, FfnLayout};
use forebay_models::network::{Content, Network};
use forebay_models::tensor::{LayerTensor, TensorId};

use super::experts::{ExpertCurves, usual_hits};
use crate::machine::{Kernel, KernelCase};
use crate::residency::{Residency, ResidencyPlan, Sparsity};

/// Which part of the FFN a token computes: P_activated of the paper, from the model's profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activation {
    /// Part of the neurons whose Gate is computed.
    pub gated: f64,
    /// Part of the neurons whose Up and Down are computed.
    pub alive: f64,
}

impl Activation {
    /// For a mode, given the part of the neurons that a token wants; `None` if that was never measured and half is
    /// assumed.
    pub fn of(sparsity: Sparsity, wanted: Option<f64>) -> Self {
        /// The assumption about a model that has not been profiled.
        const UNKNOWN: f64 = 0.5;
        let wanted = wanted.unwrap_or(UNKNOWN);
        match sparsity {
            Sparsity::Dense => Self {
                gated: 1.0,
                alive: 1.0,
            },
            Sparsity::Exact | Sparsity::Threshold => Self {
                gated: 1.0,
                alive: wanted,
            },
            Sparsity::Predicted => Self {
                gated: wanted,
                alive: wanted,
            },
        }
    }
}

/// Weights that one kernel goes through for a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Kernel, format and width.
    pub case: KernelCase,
    /// Bytes.
    pub bytes: f64,
}

/// Everything that has to be computed for a token, with all weights in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenWork {
    /// Q, K, V and O of all layers, or what other mixers have in their place, and what mixes in token inputs.
    pub attention: Vec<Weights>,
    /// Predictors, if they are used.
    pub predictor: Vec<Weights>,
    /// The computed part of the FFN.
    pub ffn: Vec<Weights>,
    /// The head.
    pub head: Vec<Weights>,
    /// Bytes of keys, values and recurrent states that a token reads at the middle of the context.
    pub kv_bytes: f64,
    /// Number of layers.
    pub layers: usize,
    /// Number of clusters in panels, which pass from stage to stage as a whole.
    pub clusters: f64,
    /// Part of the FFNs' bytes that a token uses: less than all where they are experts.
    pub ffn_used: f64,
    /// Routers that are computed once more if the next layer's experts are guessed.
    pub guesses: Vec<Weights>,
    /// Part of the layers whose neurons predictors name before attention.
    pub named_before_attention: f64,
}

impl TokenWork {
    /// From a packed model. `kv_bytes` are the bytes of the past that a token sees.
    pub fn of(bundle: &Bundle, sparsity: Sparsity, active: Activation, kv_bytes: f64) -> Self {
        let mut work = Self {
            kv_bytes,
            layers: bundle.meta.network.n_layers(),
            named_before_attention: match sparsity {
                Sparsity::Predicted => named_before_attention(&bundle.meta.network),
                _ => 0.0,
            },
            ..Self::default()
        };
        let (mut ffn_used, mut ffn) = (0.0, 0.0);
        for e in &bundle.clusters {
            let tensor = match e.content {
                Content::Table(_) => continue,
                Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => {
                    let cluster = (e.count as usize, bundle.meta.network.used_share(e.content));
                    ffn_used += cluster.1 * f64::from(e.len);
                    ffn += f64::from(e.len);
                    if let Some(g) = bundle.meta.geometry(e.content) {
                        work.add_ffn(g, cluster, sparsity, active);
                    }
                    continue;
                }
                content if content.is_predictor() && sparsity != Sparsity::Predicted => continue,
                Content::Rows(tensor) => tensor,
            };
            let Some(matrix) = bundle.meta.matrix(tensor) else {
                continue;
            };
            let to = match tensor {
                tensor if tensor == bundle.meta.network.head_tensor() => &mut work.head,
                tensor if tensor.is_predictor() => &mut work.predictor,
                _ => &mut work.attention,
            };
            let (block, cols) = (matrix.block, matrix.cols);
            if is_guessed(&bundle.meta.network, tensor) {
                let bytes = f64::from(e.len);
                add(&mut work.guesses, Kernel::Gemv, block, cols, bytes);
            }
            add(to, Kernel::Gemv, block, cols, f64::from(e.len));
            work.clusters += 1.0;
        }
        work.ffn_used = if ffn > 0.0 { ffn_used / ffn } else { 1.0 };
        work
    }

    /// Part of what `batch` tokens take of the FFNs one by one that they take together: each brings experts that those
    /// before it did not use.
    pub(super) fn ffn_of_batch(&self, batch: f64) -> f64 {
        let used = self.ffn_used.clamp(1e-6, 1.0);
        (1.0 - (1.0 - used).powf(batch)) / used / batch
    }

    /// Adds the part `share` of a cluster of neurons.
    fn add_ffn(
        &mut self,
        g: &FfnGeometry,
        (count, share): (usize, f64),
        sparsity: Sparsity,
        active: Activation,
    ) {
        let d = g.d_model;
        let mut ffn = |kernel, format, cols, bytes| {
            add(&mut self.ffn, kernel, format, cols, bytes * share);
        };
        if g.layout == FfnLayout::Cluster {
            ffn(Kernel::Gemv, g.gate, d, g.gate_bytes(count) as f64);
            if let Some(up) = g.up {
                ffn(Kernel::Gemv, up, d, g.up_bytes(count) as f64);
            }
            // Rows of Down have one number per neuron of the cluster.
            let down = g.down_bytes(count) as f64;
            ffn(Kernel::Gemv, g.down, g.neurons, down);
            self.clusters += share;
            return;
        }
        let gate = match sparsity {
            Sparsity::Predicted => Kernel::DotGathered,
            _ => Kernel::GemvRows,
        };
        let n = count as f64;
        ffn(gate, g.gate, d, n * active.gated * g.gate_row() as f64);
        if let Some(up) = g.up {
            let kernel = match sparsity {
                Sparsity::Dense => Kernel::GemvRows,
                _ => Kernel::DotGathered,
            };
            ffn(kernel, up, d, n * active.alive * g.up_row() as f64);
        }
        let down = n * active.alive * g.down_column() as f64;
        ffn(Kernel::AxpyGathered, g.down, d, down);
    }

    /// All kernels that are needed, including the panels' products for prompts.
    pub fn cases(&self) -> Vec<KernelCase> {
        let mut cases: Vec<KernelCase> = Vec::new();
        for w in self.all() {
            let gemm = KernelCase {
                kernel: Kernel::Gemm,
                ..w.case
            };
            for case in [w.case, gemm] {
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
        }
        cases
    }

    /// All weights.
    pub fn all(&self) -> impl Iterator<Item = &Weights> {
        let groups = [&self.attention, &self.predictor, &self.ffn, &self.head];
        groups.into_iter().flatten()
    }
}

/// Multiplications and additions of one token with `bytes` of weights of a format.
pub(super) fn operations(format: BlockType, bytes: f64) -> f64 {
    2.0 * bytes / format.block_bytes() as f64 * format.block_len() as f64
}

/// Whether a matrix is the router of a layer whose experts can be guessed in the layer before.
fn is_guessed(network: &Network, tensor: TensorId) -> bool {
    let TensorId::Layer(layer, LayerTensor::Router) = tensor else {
        return false;
    };
    let before = layer.checked_sub(1);
    before.is_some_and(|before| network.guessed_at(before, 1).is_some())
}

/// Part of the layers whose predictors see the layer's input.
fn named_before_attention(network: &Network) -> f64 {
    let layers = network.layers.iter();
    let before = layers.filter(|layer| layer.ffn.body.predictor_before_layer);
    before.count() as f64 / network.n_layers().max(1) as f64
}

fn add(to: &mut Vec<Weights>, kernel: Kernel, format: BlockType, cols: usize, bytes: f64) {
    let case = KernelCase {
        kernel,
        format,
        cols,
    };
    match to.iter_mut().find(|w| w.case == case) {
        Some(w) => w.bytes += bytes,
        None => to.push(Weights { case, bytes }),
    }
}

/// What a residency plan leaves on flash.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Bytes that every token reads.
    pub bytes: f64,
    /// Clusters that every token reads.
    pub clusters: f64,
    /// Part of the neurons in the cache.
    pub cached: f64,
    /// Neurons that go through the cache.
    pub neurons: f64,
    /// Part of the experts in their cache.
    pub experts_cached: f64,
    /// Clusters of experts that a token uses, in memory or not.
    pub expert_clusters: f64,
    /// Bytes of these.
    pub expert_bytes: f64,
    /// Clusters of all experts.
    pub all_expert_clusters: f64,
    /// Bytes of these.
    pub all_expert_bytes: f64,
    /// Experts of all layers.
    pub all_experts: f64,
    /// How they are stored, if their Gates can be read first.
    pub gates_first: Option<FfnGeometry>,
}

impl Streamed {
    /// Part of the experts' clusters that a token finds in their cache; `known` is what was measured of the model's
    /// routing.
    pub fn expert_hits(&self, known: Option<&ExpertCurves>) -> f64 {
        if let Some(known) = known {
            return known.hits(self.experts_cached);
        }
        let choice = self.all_expert_clusters / self.expert_clusters.max(1e-9);
        usual_hits(self.experts_cached, choice)
    }

    /// Clusters of an expert.
    pub fn clusters_per_expert(&self) -> f64 {
        self.all_expert_clusters / self.all_experts.max(1.0)
    }

    /// Part of all experts' clusters that a batch of a prompt reads.
    pub fn experts_of_batch(&self, batch: usize, known: Option<&ExpertCurves>) -> f64 {
        let used = self.expert_clusters / self.all_expert_clusters.max(1e-9);
        let wanted = match known {
            Some(known) => known.of_batch(batch, used),
            None => 1.0 - (1.0 - used).powf(batch as f64),
        };
        wanted * (1.0 - self.experts_cached)
    }

    /// From a plan.
    pub fn of(bundle: &Bundle, plan: &ResidencyPlan, threads: usize) -> Self {
        let (mut streamed, mut last) = (Self::default(), None);
        for (e, residency) in bundle.clusters.iter().zip(&plan.residency) {
            match residency {
                Residency::Streamed => {
                    streamed.bytes += e.padded_len() as f64;
                    streamed.clusters += 1.0;
                }
                Residency::GatePinned | Residency::Neurons => {
                    streamed.neurons += f64::from(e.count)
                }
                Residency::Cached => {
                    let used = bundle.meta.network.used_share(e.content);
                    streamed.expert_clusters += used;
                    streamed.expert_bytes += used * e.padded_len() as f64;
                    streamed.all_expert_clusters += 1.0;
                    streamed.all_expert_bytes += e.padded_len() as f64;
                    let network = &bundle.meta.network;
                    let expert = (e.content, network.expert_of(e.content, e.first as usize));
                    if last.replace(expert) != Some(expert) {
                        streamed.all_experts += 1.0;
                    }
                    let g = bundle.meta.geometry(e.content);
                    let g = g.filter(|g| g.layout == FfnLayout::GateFirst);
                    streamed.gates_first = streamed.gates_first.or(g.copied());
                }
                Residency::Pinned | Residency::OnFlash => {}
            }
        }
        if streamed.all_expert_clusters > 0.0 {
            let cells = (plan.expert_cache.cells * threads) as f64;
            streamed.experts_cached = (cells / streamed.all_expert_clusters).min(1.0);
        }
        if streamed.neurons > 0.0 {
            let slots = (plan.neuron_cache.slots * threads) as f64;
            streamed.cached = (slots / streamed.neurons).min(1.0);
        }
        streamed
    }
}
