//! The costs of a generation, step by step.

use forebay_actors::device::DeviceCounters;
use forebay_actors::io_counters::IoCounters;
use forebay_actors::step::StepDone;
use forebay_stages::expert_store::GuessCounts;
use forebay_traces::ledger::{Bubbles, Charged};
use twox_hash::XxHash3_64;

use crate::stats::{DraftStatistics, PromptStatistics, Steps};

/// The costs of a generation so far.
#[derive(Debug, Default)]
pub(in crate::engine) struct Meter {
    pub prefill_ns: Vec<u64>,
    /// Of all steps after the prompt's, and of those without a draft.
    pub decode_ns: Vec<u64>,
    pub plain_ns: Vec<u64>,
    pub drafts: DraftStatistics,
    /// Tokens that the sampler has chosen.
    pub chosen: usize,
    pub prefill_tokens: usize,
    pub prompt: PromptStatistics,
    pub hits: u64,
    pub misses: u64,
    /// Clusters of experts that were left out.
    pub left_out: u64,
    /// What became of guessed experts.
    pub guesses: GuessCounts,
    pub miss_rates: Vec<f64>,
    pub logits_hash: u64,
    /// Whether the logits from which the last token was chosen are still to be hashed.
    pub unhashed: bool,
    /// Times charged to all cores when the generation began and at its last step.
    pub charged: [Vec<Charged>; 2],
    pub io_start: IoCounters,
    pub device_start: DeviceCounters,
}

impl Meter {
    pub fn count(&mut self, reports: &[StepDone]) {
        let hits: u64 = reports.iter().map(|r| r.hits).sum();
        let misses: u64 = reports.iter().map(|r| r.misses).sum();
        self.hits += hits;
        self.misses += misses;
        self.left_out += reports.iter().map(|r| r.left_out).sum::<u64>();
        for GuessCounts { read, wanted } in reports.iter().map(|r| r.guesses) {
            self.guesses.read += read;
            self.guesses.wanted += wanted;
        }
        self.miss_rates
            .push(misses as f64 / (hits + misses).max(1) as f64);
        let charged: Vec<Charged> = reports.iter().map(|r| r.charged).collect();
        if self.charged[0].is_empty() {
            self.charged[0] = reports.iter().map(|r| r.charged_before).collect();
        }
        self.charged[1] = charged;
    }

    /// A step after the prompt's has run this many tokens ahead, which may be what a model has said.
    pub fn step(&mut self, (run_ahead, of_model): (usize, bool), ns: u64) {
        self.decode_ns.push(ns);
        self.drafts.steps += 1;
        self.drafts.drafted += run_ahead;
        self.drafts.by_model += if of_model { run_ahead } else { 0 };
        if run_ahead == 0 {
            self.plain_ns.push(ns);
        }
    }

    /// A token is chosen from the logits that were taken last. They are hashed before others are taken: while the cores
    /// compute the next step, if there is one.
    pub fn chooses(&mut self) {
        self.chosen += 1;
        self.unhashed = true;
    }

    /// Takes `logits` into the hash, as little-endian bytes, if that is still to be done.
    pub fn hash(&mut self, logits: &[f32]) {
        if !std::mem::take(&mut self.unhashed) {
            return;
        }
        if cfg!(target_endian = "little") {
            let bytes = bytemuck::cast_slice(logits);
            self.logits_hash = XxHash3_64::oneshot_with_seed(self.logits_hash, bytes);
        } else {
            let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
            self.logits_hash = XxHash3_64::oneshot_with_seed(self.logits_hash, &bytes);
        }
    }

    /// Gives up what is known of single steps.
    pub fn take_steps(&mut self) -> Steps {
        Steps {
            ns: std::mem::take(&mut self.decode_ns),
            miss_rates: std::mem::take(&mut self.miss_rates),
        }
    }

    pub fn bubbles(&self) -> Bubbles {
        let mut total = Charged::default();
        for (before, after) in self.charged[0].iter().zip(&self.charged[1]) {
            total.merge(&after.since(before));
        }
        total.fractions()
    }
}
