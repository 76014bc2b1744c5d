//! What happened: fixed-size records, cheap to make while tokens are generated.

use serde::{Deserialize, Serialize};

/// What a compute core works on. The order is that of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// RMS norm or layer norm.
    Norm,
    /// Query, key and value projections.
    Qkv,
    /// Scores and values over the KV cache, or a recurrent mixer.
    Attention,
    /// Output projection of attention or of another mixer.
    Output,
    /// Prediction of the active neurons.
    Pred,
    /// Whole clusters read ahead for a prompt.
    Preload,
    /// Requests for Gate rows.
    Gio,
    /// Gate dot products of a cluster.
    Gc,
    /// Requests for Up and Down.
    Udio,
    /// Up dot products and Down columns of a cluster.
    Udc,
    /// The neurons of a prompt's last tokens moved into the cache.
    HandOver,
    /// The cores' partial sums added up.
    Fold,
    /// Output head (logits).
    Head,
    /// What makes layers' inputs of tokens, and mixes them in.
    Inputs,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 14] = [
        Self::Norm,
        Self::Qkv,
        Self::Attention,
        Self::Output,
        Self::Pred,
        Self::Preload,
        Self::Gio,
        Self::Gc,
        Self::Udio,
        Self::Udc,
        Self::HandOver,
        Self::Fold,
        Self::Head,
        Self::Inputs,
    ];

    /// Whether it fetches or keeps bytes rather than computing with them.
    pub const fn brings(self) -> bool {
        matches!(
            self,
            Self::Preload | Self::Gio | Self::Udio | Self::HandOver
        )
    }

    /// Name of the slice in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Qkv => "qkv",
            Self::Attention => "attention",
            Self::Output => "output",
            Self::Pred => "pred",
            Self::Preload => "preload",
            Self::Gio => "gio",
            Self::Gc => "gc",
            Self::Udio => "udio",
            Self::Udc => "udc",
            Self::HandOver => "handover",
            Self::Fold => "fold",
            Self::Head => "head",
            Self::Inputs => "inputs",
        }
    }
}

/// Why a compute core did not compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// Gate rows have not been read yet.
    #[serde(rename = "wait_io_gate")]
    IoGate,
    /// Up rows and Down columns have not been read yet.
    #[serde(rename = "wait_io_updown")]
    IoUpDown,
    /// Other cores have not arrived at the exchange yet.
    #[serde(rename = "wait_barrier")]
    Barrier,
    /// The active neurons have not been predicted yet.
    #[serde(rename = "wait_pred")]
    Pred,
    /// The device has not finished its part of the phase yet.
    #[serde(rename = "wait_device")]
    Device,
    /// There is no token to work on.
    #[serde(rename = "idle")]
    Idle,
}

impl Reason {
    /// All reasons; `reason as usize` is the index.
    pub const ALL: [Self; 6] = [
        Self::IoGate,
        Self::IoUpDown,
        Self::Barrier,
        Self::Pred,
        Self::Device,
        Self::Idle,
    ];

    /// Name in statistics and trace files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoGate => "wait_io_gate",
            Self::IoUpDown => "wait_io_updown",
            Self::Barrier => "wait_barrier",
            Self::Pred => "wait_pred",
            Self::Device => "wait_device",
            Self::Idle => "idle",
        }
    }
}

/// What a step, a pass through all layers, is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// A part of a prompt is read.
    Prompt,
    /// The newest token is run, with those that were drafted after it: the text becomes longer.
    Token,
    /// A model guesses what might follow, without what it would have to read: what it says is run again.
    Draft,
}

impl StepKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Prompt, Self::Token, Self::Draft];

    /// Name of the mark in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prompt => "step: prompt",
            Self::Token => "step: token",
            Self::Draft => "step: draft",
        }
    }
}

/// A quantity sampled over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Neuron reads of a core that wait for a free buffer.
    QueueDepth,
    /// Reads on which the kernel is working.
    InFlightReads,
    /// Neurons in a core's neuron cache.
    CacheLive,
    /// Streamed clusters that have been read and wait for a core.
    StreamReady,
}

impl Counter {
    /// Name of the counter's track in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueDepth => "queue_depth",
            Self::InFlightReads => "in_flight_reads",
            Self::CacheLive => "cache_live",
            Self::StreamReady => "stream_ready",
        }
    }
}

/// Whether a cluster's weights were in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// They were.
    Hit,
    /// They had to be read.
    Miss,
    /// The record is not about streamed weights.
    NotApplicable,
}

impl Residency {
    /// Name in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::NotApplicable => "n/a",
        }
    }
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A core worked. With a flow id: on the result of that read.
    Stage(Stage),
    /// One read, from submission to completion. Reads overlap: give each place in the I/O queue its
    /// own trace lane. With a flow id: the arrow starts here.
    Read,
    /// A device computed its part of a phase.
    Job,
    /// A streamed cluster was copied to a device, which goes on with other work meanwhile: a moment.
    Copy,
    /// A core waited.
    Stall(Reason),
    /// A core began a step: a moment.
    Step(StepKind),
    /// A counter had this value from `start_ns` on.
    Counter {
        /// Which counter.
        which: Counter,
        /// Its value.
        value: u64,
    },
}

/// One event in a trace lane: one cache line.
///
/// Slices of one trace lane either follow each other or are nested; they do not overlap otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub struct Record {
    /// Start, as [`crate::clock::now_ns`] counts.
    pub start_ns: u64,
    /// End; equal to the start for counters.
    pub end_ns: u64,
    /// What it is about.
    pub kind: Kind,
    /// Bytes read or worked on.
    pub bytes: u64,
    /// Ties a read to the slice that consumes it: one id per arrow, 0 for none.
    pub flow: u64,
    /// The first cluster.
    pub cluster: u32,
    /// Layer.
    pub layer: u16,
    /// Number of clusters, 0 for a part of one that waits for the rest; of a step, of tokens.
    pub count: u16,
    /// Whether they were in memory.
    pub residency: Residency,
}

const _: () = assert!(size_of::<Record>() == 64);

impl Record {
    /// A record of `kind` whose remaining fields are 0, or do not apply.
    pub const fn new(kind: Kind, start_ns: u64, end_ns: u64) -> Self {
        Self {
            start_ns,
            end_ns,
            kind,
            bytes: 0,
            flow: 0,
            cluster: 0,
            layer: 0,
            count: 0,
            residency: Residency::NotApplicable,
        }
    }

    /// A core worked at `stage` of `layer`.
    pub const fn stage(stage: Stage, layer: u16, start_ns: u64, end_ns: u64) -> Self {
        Self {
            layer,
            ..Self::new(Kind::Stage(stage), start_ns, end_ns)
        }
    }

    /// A device computed its part of a phase of `layer`.
    pub const fn job(layer: u16, start_ns: u64, end_ns: u64) -> Self {
        Self {
            layer,
            ..Self::new(Kind::Job, start_ns, end_ns)
        }
    }

    /// A streamed cluster of `layer` was copied to a device.
    pub const fn copy(layer: u16, bytes: u64, now_ns: u64) -> Self {
        Self {
            layer,
            bytes,
            residency: Residency::Miss,
            ..Self::new(Kind::Copy, now_ns, now_ns)
        }
    }

    /// A core waited.
    pub const fn stall(reason: Reason, start_ns: u64, end_ns: u64) -> Self {
        Self::new(Kind::Stall(reason), start_ns, end_ns)
    }

    /// A core began a step of `tokens` tokens.
    pub const fn step(kind: StepKind, tokens: u16, now_ns: u64) -> Self {
        Self {
            count: tokens,
            ..Self::new(Kind::Step(kind), now_ns, now_ns)
        }
    }

    /// A read of `bytes` for `layer`.
    pub const fn read(layer: u16, bytes: u64, start_ns: u64, end_ns: u64) -> Self {
        Self {
            layer,
            bytes,
            residency: Residency::Miss,
            ..Self::new(Kind::Read, start_ns, end_ns)
        }
    }

    /// A counter's value.
    pub const fn counter(which: Counter, value: u64, now_ns: u64) -> Self {
        Self::new(Kind::Counter { which, value }, now_ns, now_ns)
    }

    /// Names the clusters: `count` from `first` on.
    pub const fn with_clusters(self, first: u32, count: u16, residency: Residency) -> Self {
        Self {
            cluster: first,
            count,
            residency,
            ..self
        }
    }

    /// Sets the bytes read or worked on.
    pub const fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Ties the record to the arrow `flow`.
    pub const fn with_flow(self, flow: u64) -> Self {
        Self { flow, ..self }
    }
}
