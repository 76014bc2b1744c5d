//! The cost model (PowerInfer-2 v2, section 5), as code that reads like its equations:
//!
//! ```text
//! t_decode  = max(t_compute, t_stream)                 if clusters are streamed
//!           = t_compute + t_stream + t_io - hidden     if single neurons or experts are read
//! hidden    = min(t_io, part of t_ffn + part of t_attention where neurons are named before it)
//!           = part of min(t_io, t_compute)              for experts, the larger the further ahead they are guessed
//! t_compute = t_attention + t_predictor + t_ffn + t_head + t_overhead
//! t_x       = bytes_x / rate of x's kernel on the chosen cores     (never above the memory's rate: t_mem)
//! t_io      = reads · time of a read,   reads = N_neurons · P_activated · P_miss(m), neighbours joined
//! t_stream  = bytes of clusters that are streamed / B_io(cluster)
//! ```
//!
//! Two things differ from the paper, because measurements did. Kernels are measured with weights in memory, so that
//! `t_mem` is part of their rates. And reads of single neurons are *added*, less a part of what is computed meanwhile:
//! each read takes time from a core, and most predictors name neurons only when the FFN's input is known, so that
//! nothing but the FFN overlaps. Those that see the layer's input name them before attention. Clusters that are
//! streamed between such reads wait for them. If only clusters are streamed, they are known in advance and do overlap.

mod experts;
mod gates_first;
mod reads;
mod work;

pub use experts::ExpertCurves;
pub use gates_first::{PartReads, Reads};
pub use reads::{MissCurve, MissSample};
pub use work::{Activation, Streamed, TokenWork, Weights};

use forebay_models::network::MOST_GUESSED_LAYERS;
use serde::{Deserialize, Serialize};

use crate::machine::{DiskProfile, Kernel, KernelCase, MachineProfile};
use work::operations;

/// Time to pass a cluster from stage to stage and to start on its memory, seconds on one core.
const CLUSTER_SECONDS: f64 = 1.7e-6;
/// Time of a layer between kernels on one core: norms, quantising, RoPE, seconds.
const LAYER_SECONDS: f64 = 12e-6;
/// Time of a layer's exchanges when several cores meet, seconds.
const EXCHANGE_SECONDS: f64 = 8e-6;
/// Part of an idle disk's bandwidth that streaming reaches while the cores compute, with [`WIDE_WINDOW`] or more.
const STREAM_EFFICIENCY: f64 = 0.95;
/// The stream window, bytes, from which on a wider one helps no further.
const WIDE_WINDOW: f64 = 24.0 * 1048576.0;
/// A narrower window reaches this power of its part of it: clusters that arrive early wait for those before them, so
/// fewer reads are in flight than there are buffers. That fewer buffers are fewer reads is in the disk's own rates. On
/// one machine, with 6, 12 and 24 MiB: 0.75, 0.80, 0.83 (1.5B model, 75 % in memory). On another, whose reads into a
/// small window end in the host's cache, in 80 cases of three models with 2 to 90 % in memory and 1 to 24 MiB: 0.09
/// off in the median, 0.18 in all but a tenth, with 0.08 to 0.12 as the power and 1.1 as the efficiency.
const WINDOW_POWER: f64 = 0.1;
/// Part of the peak product rate that a prompt's batches reach: the rest is norms, attention and rows at the edges.
/// 1.5B model in memory: 0.91 on two cores of Zen 4, 0.8 on earlier ones.
const PROMPT_EFFICIENCY: f64 = 0.85;
/// Part of the shorter of reading and computing a prompt's batch that the longer one does not hide: reads cannot go
/// further ahead than the window. 1.5B model, 75 % in memory, batches of 16 to 128: 0.15 to 0.25.
const NOT_HIDDEN: f64 = 0.2;
/// Part of the FFN's time with which reads of its neurons overlap: Gate and Up of those that are in memory, and Down of
/// clusters that are complete. For the median token it is 0.6; in the mean, which counts here, tokens that miss many
/// neurons overlap little.
const HIDDEN_BEHIND_FFN: f64 = 0.2;
/// Part of attention's time with which they overlap in layers whose predictors see the layer's input: 5 of 9 ms for the
/// 7B sparse shape, since the thread that reads has to share a CPU with a core that computes.
const HIDDEN_BEHIND_ATTENTION: f64 = 0.55;
/// Factor for reads of single neurons with one compute core: no other core computes while it waits.
const ALONE_READ_COST: f64 = 1.25;

/// Part of the shorter of computing and reading experts that the longer one does not hide, if the experts of none, one,
/// two or three of the next layers are guessed. gpt-oss-20b's shape within 6 GiB: 0.72, 0.50, 0.39, 0.35; Qwen3-30B's
/// within 8 GiB 0.76, 0.46, 0.36, 0.29.
const EXPERTS_NOT_HIDDEN: [f64; MOST_GUESSED_LAYERS + 1] = [0.75, 0.48, 0.37, 0.32];
/// Factor of the bytes that are read then: some guesses are wrong. Measured likewise: 1.08 to 1.14, 1.10 to 1.23, 1.12
/// to 1.27.
const GUESSED_BYTES: [f64; MOST_GUESSED_LAYERS + 1] = [1.0, 1.1, 1.16, 1.19];

/// Time of a layer in which the last pairs of experts are read one after the other, seconds.
const PARTS_SECONDS: f64 = 300e-6;

/// Bytes per second that a core checks of what it has read: XXH3 of memory that no cache of the CPU holds.
const CHECKED_PER_SECOND: f64 = 8e9;

/// Reads of single neurons in flight: as many as the driver accepts.
pub(crate) const NEURON_DEPTH: usize = 64;

/// The parts of a token's time, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeTime {
    /// Attention's matrices, and keys and values.
    pub attention: f64,
    /// Predictors.
    pub predictor: f64,
    /// The computed part of the FFN.
    pub ffn: f64,
    /// The head.
    pub head: f64,
    /// Norms, exchanges between cores, passing clusters between stages.
    pub overhead: f64,
    /// Reads of streamed clusters, overlapped with all of the above.
    pub stream: f64,
    /// Reads of neurons that are not in the cache.
    pub io: f64,
    /// How much of `io` can be hidden behind what is computed meanwhile.
    #[serde(default)]
    pub can_hide: f64,
}

impl DecodeTime {
    /// Time on the compute cores.
    pub fn compute(&self) -> f64 {
        self.attention + self.predictor + self.ffn + self.head + self.overhead
    }

    /// Time of a token.
    pub fn total(&self) -> f64 {
        match self.io > 0.0 {
            true => self.compute() + self.stream + self.io - self.io.min(self.can_hide),
            false => self.compute().max(self.stream),
        }
    }

    /// Adds `seconds` of reading experts, if those of `guessed_layers` are guessed; returns the factor of what is read.
    pub fn add_experts(&mut self, seconds: f64, guessed_layers: usize) -> f64 {
        let guessed = guessed_layers.min(MOST_GUESSED_LAYERS);
        let read = seconds * GUESSED_BYTES[guessed];
        if read > 0.0 {
            self.io += read;
            self.can_hide = (1.0 - EXPERTS_NOT_HIDDEN[guessed]) * read.min(self.compute());
        }
        GUESSED_BYTES[guessed]
    }

    /// What takes the most time.
    pub fn bound_by(&self) -> &'static str {
        let (compute, disk) = (self.compute(), self.stream + self.io);
        if disk > compute {
            "disk read"
        } else {
            "memory read"
        }
    }
}

/// The machine as seen with one choice of cores.
#[derive(Clone, Copy, Debug)]
pub struct Rates<'a> {
    /// The hardware profile.
    pub machine: &'a MachineProfile,
    /// Rates of reads from the packed model.
    pub disk: &'a DiskProfile,
    /// Compute cores.
    pub threads: usize,
    /// Reads in flight while clusters are streamed.
    pub depth: usize,
    /// Bytes of the stream window.
    pub window: f64,
}

impl Rates<'_> {
    /// Time of the compute cores for a token whose weights are all in memory; reads are still 0.
    pub fn compute(&self, work: &TokenWork) -> DecodeTime {
        let cores = self.threads as f64;
        let exchanges = if self.threads > 1 {
            EXCHANGE_SECONDS
        } else {
            0.0
        };
        let kv = work.kv_bytes / self.machine.memory_rate(self.threads).max(1.0);
        let (attention, ffn) = (self.weights(&work.attention) + kv, self.weights(&work.ffn));
        DecodeTime {
            attention,
            predictor: self.weights(&work.predictor),
            ffn,
            can_hide: HIDDEN_BEHIND_FFN * ffn
                + HIDDEN_BEHIND_ATTENTION * work.named_before_attention * attention,
            head: self.weights(&work.head),
            overhead: work.clusters * CLUSTER_SECONDS / cores
                + work.layers as f64 * (LAYER_SECONDS + exchanges),
            ..DecodeTime::default()
        }
    }

    /// Time to go through `weights`, seconds.
    pub fn weights(&self, weights: &[Weights]) -> f64 {
        let seconds = weights
            .iter()
            .map(|w| w.bytes / self.rate(&w.case).max(1.0));
        // From 0: the sum of no floats is -0.0, which a plan's JSON would show.
        seconds.fold(0.0, |all, seconds| all + seconds)
    }

    /// Bytes per second of a kernel; if it was not measured, those of memory.
    fn rate(&self, case: &KernelCase) -> f64 {
        let rate = self.machine.kernel_rate(case, self.threads);
        rate.unwrap_or_else(|| self.machine.memory_rate(self.threads))
    }

    /// Time to read `clusters` clusters of `bytes` in total, seconds.
    pub fn stream(&self, clusters: f64, bytes: f64) -> f64 {
        if clusters <= 0.0 {
            return 0.0;
        }
        let narrow = (self.window / WIDE_WINDOW).min(1.0).powf(WINDOW_POWER);
        let efficiency = (STREAM_EFFICIENCY * narrow).max(0.1);
        clusters * self.disk.seconds_per_read(bytes / clusters, self.depth) / efficiency
    }

    /// Time to read and check `clusters` clusters of experts of `bytes` in total, seconds, if each of `layers` asks for
    /// its own at once, those of whole experts of `per_expert` clusters.
    pub fn experts(&self, clusters: f64, bytes: f64, (layers, per_expert): (usize, f64)) -> f64 {
        if clusters <= 0.0 {
            return 0.0;
        }
        let together = reads_together(clusters, (layers, per_expert));
        let check = bytes / CHECKED_PER_SECOND / self.threads.max(1) as f64;
        clusters * self.disk.seconds_per_read(bytes / clusters, together) + check
    }

    /// The same if the Gates of clusters are read first, then pairs of neurons. Reads of a layer overlap, but for the
    /// last ones: a cluster's pairs are asked for when its Gates are known, one range after the other.
    pub fn experts_in_parts(&self, parts: &PartReads, (layers, per_expert): (usize, f64)) -> f64 {
        let PartReads { gates, pairs } = parts;
        if gates.reads + pairs.reads <= 0.0 {
            return 0.0;
        }
        let together = reads_together(gates.reads + pairs.reads, (layers, per_expert));
        let time = |of: &Reads| match of.reads > 0.0 {
            true => of.reads * self.disk.seconds_per_read(of.bytes / of.reads, together),
            false => 0.0,
        };
        let check = (gates.bytes + pairs.bytes) / CHECKED_PER_SECOND / self.threads.max(1) as f64;
        time(gates) + time(pairs) + check + layers as f64 * PARTS_SECONDS
    }

    /// Time that `reads` reads of neurons, of `bytes` in total, add to a token, seconds.
    pub fn neurons(&self, reads: f64, bytes: f64) -> f64 {
        if reads <= 0.0 {
            return 0.0;
        }
        let alone = if self.threads == 1 {
            ALONE_READ_COST
        } else {
            1.0
        };
        reads * self.disk.seconds_per_read(bytes / reads, NEURON_DEPTH) * alone
    }

    /// Time of a prompt's token, seconds, in batches of `batch`; for each batch, `flash` (clusters and their bytes) is
    /// read. Products and reads overlap, except for a part.
    pub fn prompt(&self, work: &TokenWork, batch: usize, flash: (f64, f64)) -> f64 {
        let batch = batch.max(1) as f64;
        let mut compute = 0.0;
        let others = [&work.attention, &work.predictor, &work.head];
        let others = others.into_iter().flatten().map(|w| (w, 1.0 / batch));
        let ffn = work.ffn.iter().map(|w| (w, work.ffn_of_batch(batch)));
        for (w, share) in others.chain(ffn) {
            let gemm = KernelCase {
                kernel: Kernel::Gemm,
                ..w.case
            };
            let once = w.bytes / self.rate(&w.case).max(1.0);
            let products = match (w.case.kernel, self.machine.kernel_rate(&gemm, self.threads)) {
                (Kernel::Gemv, Some(rate)) => {
                    operations(w.case.format, w.bytes) / rate.max(1.0) / PROMPT_EFFICIENCY
                }
                // Neurons that lie anywhere are computed token by token.
                _ => once,
            };
            compute += products.max(once * share);
        }
        let overhead = work.clusters * CLUSTER_SECONDS / self.threads as f64 / batch;
        let (clusters, bytes) = flash;
        let (compute, read) = (compute + overhead, self.stream(clusters, bytes) / batch);
        compute.max(read) + NOT_HIDDEN * compute.min(read)
    }
}

/// Reads of experts in flight together, in a layer that reads any: experts are missing independently of each other
/// (Poisson), and each brings all of its clusters.
fn reads_together(reads: f64, (layers, per_expert): (usize, f64)) -> usize {
    let missing = reads / layers.max(1) as f64 / per_expert.max(1.0);
    let if_any = missing / -(-missing).exp_m1();
    (if_any * per_expert.max(1.0)).round() as usize
}

#[cfg(test)]
mod tests;
