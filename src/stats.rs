//! Statistics of a generation: the object that `--stats` writes.

use forebay_plans::budget::Budget;
use forebay_plans::size::format_size;
use forebay_traces::ledger::Bubbles;
use serde::Serialize;

use crate::in_force::PlanInForce;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its answer.
    EndOfGeneration,
    /// All requested tokens were generated.
    MaxTokens,
    /// The context has no room for more.
    ContextFull,
    /// One of the request's stop strings.
    Stop,
    /// Its reader cancelled it.
    Cancelled,
}

/// Statistics of one generation. Field names are a contract (docs/cli.md, JSON).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Statistics {
    /// The model's path or name.
    pub model: String,
    /// The plan in force.
    pub plan: PlanInForce,
    /// A remark if the speed differs from the plan's by more than 20%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexpected: Option<String>,
    /// Memory.
    pub memory: MemoryStatistics,
    /// Reading the prompt.
    pub prefill: PhaseStatistics,
    /// The same in detail.
    pub prompt: PromptStatistics,
    /// Generating tokens after the first.
    pub decode: PhaseStatistics,
    /// Its steps, and tokens that were run ahead in them.
    pub drafts: DraftStatistics,
    /// FFN neurons found in memory.
    pub cache: CacheStatistics,
    /// Reads.
    pub io: IoStatistics,
    /// The device, if one computes beside the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceStatistics>,
    /// Where the compute cores' time went; the fractions add up to 1.
    pub bubbles: Bubbles,
    /// Generated ids.
    pub tokens: Vec<u32>,
    /// Generated text.
    pub text: String,
    /// XXH3-64 chained over the logits of all steps that had any: equal hashes mean equal logits, bit for bit.
    pub logits_hash: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The seed of the draws; absent if the best token was always taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Each step after the prompt's.
    #[serde(skip)]
    pub(crate) steps: Steps,
}

/// Single steps, for percentiles over several generations; in no order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    /// How long they took.
    pub ns: Vec<u64>,
    /// Shares of misses, with those of the prompt's steps.
    pub miss_rates: Vec<f64>,
}

/// The budget and the memory really used.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// Highest resident set size of the process so far, bytes.
    pub peak_rss_bytes: u64,
    /// Bytes by item.
    pub items: Budget,
}

/// Speed of a phase.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PhaseStatistics {
    /// Tokens processed.
    pub tokens: usize,
    /// Wall time in seconds.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
    /// Median time per step in milliseconds.
    pub ms_p50: f64,
    /// 90th percentile.
    pub ms_p90: f64,
    /// 99th percentile.
    pub ms_p99: f64,
}

/// What reading the prompt took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PromptStatistics {
    /// From the request to the first token, seconds.
    pub seconds_to_first_token: f64,
    /// Tokens that were in the KV cache already and were not run again.
    pub reused_tokens: usize,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time with at least one read in flight, seconds.
    pub seconds_reading: f64,
    /// Part of that time in which the cores did not wait for it: 1 if reading is completely hidden.
    pub overlap: f64,
    /// The disk's speed in random reads of 512 KiB at depth 16 just before the run; 0 if nothing is read.
    pub ceiling_bytes_per_second: f64,
    /// Where the cores' time went while the prompt was read.
    pub bubbles: Bubbles,
}

/// Steps after the prompt's. A token that was run ahead and is accepted needs no step of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DraftStatistics {
    /// Number of steps.
    pub steps: usize,
    /// Tokens that were run ahead.
    pub drafted: usize,
    /// Those of them that a model had said, a smaller one or the model itself without what is streamed; the others had
    /// followed the last ones earlier in the text.
    pub by_model: usize,
    /// Those of `drafted` that the sampler chose too.
    pub accepted: usize,
}

/// Hits and misses in units of live FFN neurons.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Found in memory.
    pub hits: u64,
    /// Read from flash.
    pub misses: u64,
    /// `hits / (hits + misses)`.
    pub hit_rate: f64,
    /// 99th percentile over steps of the share of misses.
    pub miss_rate_p99: f64,
    /// Clusters of experts that were left out, on request, because they were not in memory.
    pub left_out_clusters: u64,
    /// Clusters of experts that were read because the next layer was likely to want them.
    pub guessed_clusters: u64,
    /// Those of them that it wanted, or that a later token did before they were evicted.
    pub guessed_clusters_wanted: u64,
}

/// Reads during the generation.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct IoStatistics {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time with at least one read in flight, in seconds.
    pub seconds_busy: f64,
    /// `bytes / seconds_busy`.
    pub bytes_per_second: f64,
    /// The disk's speed in random reads of 512 KiB at depth 16 just before the run, bytes per second; 0 if nothing is
    /// streamed.
    pub ceiling_bytes_per_second: f64,
}

/// A device's work during the generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceStatistics {
    /// Its name.
    pub name: String,
    /// Part of the model's weights that it multiplies for a generated token.
    pub decode_share: f64,
    /// The same for a prompt's batch; streamed weights only as far as the device has room for them when they come.
    pub prompt_share: f64,
    /// Bytes of streamed weights that were copied to it.
    pub copied_bytes: u64,
    /// Jobs: one per phase, those of streamed weights, and parts of prompts' attention.
    pub jobs: u64,
    /// Those of attention among them.
    pub attention_jobs: u64,
    /// Time with a job in flight, milliseconds.
    pub busy_ms: f64,
    /// How often a core was done before the device.
    pub waits: u64,
    /// Jobs that failed, which the cores computed.
    pub faults: u64,
    /// Why it is no longer used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl DeviceStatistics {
    /// Why it is no longer used, if it was during this generation that it failed.
    pub fn loss(&self) -> Option<&str> {
        self.problem.as_deref().filter(|_| self.faults > 0)
    }
}

impl PhaseStatistics {
    /// From the duration of each step in nanoseconds (sorted in place) and the number of tokens.
    pub(crate) fn of(tokens: usize, steps_ns: &mut [u64]) -> Self {
        steps_ns.sort_unstable();
        let seconds = steps_ns.iter().sum::<u64>() as f64 * 1e-9;
        let ms = |p| percentile(steps_ns, p) as f64 * 1e-6;
        Self {
            tokens,
            seconds,
            tokens_per_second: if seconds > 0.0 {
                tokens as f64 / seconds
            } else {
                0.0
            },
            ms_p50: ms(0.5),
            ms_p90: ms(0.9),
            ms_p99: ms(0.99),
        }
    }
}

/// Nearest-rank percentile of sorted values; the default value if there are none.
pub(crate) fn percentile<T: Copy + Default>(sorted: &[T], p: f64) -> T {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// So many tokens, and their speed if there is one: a single token has none.
fn at_speed(n: usize, tokens_per_second: f64) -> String {
    let tokens = format!("{n} token{}", if n == 1 { "" } else { "s" });
    match tokens_per_second > 0.0 {
        true => format!("{tokens}, {tokens_per_second:.1} tok/s"),
        false => tokens,
    }
}

impl Statistics {
    /// Speeds and memory, in one line.
    pub fn summary(&self) -> String {
        let end = match self.finish_reason {
            FinishReason::Cancelled => "; cancelled",
            FinishReason::ContextFull => "; the context is full",
            _ => "",
        };
        format!(
            "prompt {}; answer {}; memory {} of {}{end}",
            at_speed(self.prefill.tokens, self.prefill.tokens_per_second),
            at_speed(self.tokens.len(), self.decode.tokens_per_second),
            format_size(self.memory.peak_rss_bytes),
            format_size(self.memory.budget_bytes),
        )
    }

    /// Where the time went, in a few more lines.
    pub fn details(&self) -> String {
        let b = &self.bubbles;
        let seed = self.seed.map(|seed| format!("; seed {seed}"));
        let device = self.device.as_ref().map(|d| {
            format!(
                "\n{}: {:.0}% of the weights, {:.0}% in prompts; {} jobs, busy {:.0} ms; cores waited {} times, {:.0}% \
                 of their time",
                d.name,
                100.0 * d.decode_share,
                100.0 * d.prompt_share,
                d.jobs,
                d.busy_ms,
                d.waits,
                100.0 * b.wait_device,
            )
        });
        format!(
            "time to the first token {:.2} s; {} steps of {:.1} ms median, {:.1} ms p99; of {} drafted tokens, {} \
             accepted{}\n\
             read {} at {}/s; {:.1}% of the wanted neurons were in memory\n\
             cores: {:.0}% computing, {:.0}% waiting for gate reads, {:.0}% for up/down reads, \
             {:.0}% for each other, {:.0}% idle{}",
            self.prompt.seconds_to_first_token,
            self.drafts.steps,
            self.decode.ms_p50,
            self.decode.ms_p99,
            self.drafts.drafted,
            self.drafts.accepted,
            seed.unwrap_or_default(),
            format_size(self.io.bytes),
            format_size(self.io.bytes_per_second as u64),
            self.cache.hit_rate * 100.0,
            b.compute_busy * 100.0,
            b.wait_io_gate * 100.0,
            b.wait_io_updown * 100.0,
            b.wait_barrier * 100.0,
            b.idle * 100.0,
            device.unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_percentiles() {
        let v: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&v, 0.5), 50);
        assert_eq!(percentile(&v, 0.99), 99);
        assert_eq!(percentile(&v, 1.0), 100);
        assert_eq!(percentile(&[7], 0.5), 7);
        assert_eq!(percentile::<u64>(&[], 0.5), 0);
    }

    #[test]
    fn phase_speed_is_tokens_over_time() {
        let p = PhaseStatistics::of(4, &mut [2_000_000, 1_000_000]);
        assert!((p.seconds - 0.003).abs() < 1e-12);
        assert!((p.tokens_per_second - 4.0 / 0.003).abs() < 1e-6);
        assert_eq!(p.ms_p99, 2.0);
    }
}
