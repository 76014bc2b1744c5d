//! Jobs: what a device is asked to do. A job owns its input and the room for its results, and comes back with both.

use std::ops::Range;

use forebay_kernels::Activations;
use forebay_numbers::activation::Activation;
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::panels_bytes;

use crate::attention::AttentionWork;
use crate::fault::DeviceFault;

/// A piece of weights in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentId(pub(crate) u32);

impl SegmentId {
    /// That of a job which has not been filled: no driver has it.
    pub const NONE: Self = Self(u32::MAX);

    /// The segment with this number.
    pub const fn of_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Rows of a matrix in panels ([`forebay_numbers::panel`]), one panel after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelRange {
    /// Format of the elements.
    pub block: BlockType,
    /// Where the first panel begins in the segment, bytes; a multiple of 4.
    pub at: usize,
    /// Number of rows; those that pad the last panel do not count.
    pub n_rows: usize,
    /// Columns.
    pub cols: usize,
}

impl PanelRange {
    /// The bytes of the segment that the panels take.
    ///
    /// # Errors
    /// They are not all in a segment of `segment_bytes` bytes, or are not whole blocks.
    pub fn bytes(&self, segment_bytes: usize) -> Result<Range<usize>, DeviceFault> {
        let Self {
            block,
            at,
            n_rows,
            cols,
        } = *self;
        if !at.is_multiple_of(4) {
            let problem = format!("panels begin at byte {at}, which is not a multiple of 4");
            return Err(DeviceFault::BadJob(problem));
        }
        let Some(len) = panels_bytes(block, n_rows, cols) else {
            let problem = format!("{cols} columns are not whole blocks of {block}");
            return Err(DeviceFault::BadJob(problem));
        };
        match at.checked_add(len) {
            Some(end) if end <= segment_bytes => Ok(at..end),
            _ => Err(DeviceFault::BadJob(format!(
                "{n_rows} rows of {block} take {len} bytes from byte {at} on, but the segment has {segment_bytes}"
            ))),
        }
    }

    fn check(
        &self,
        block: BlockType,
        cols: usize,
        segment_bytes: usize,
    ) -> Result<(), DeviceFault> {
        if !crate::FORMATS.contains(&self.block) {
            let problem = format!("{} is not multiplied on devices", self.block);
            return Err(DeviceFault::BadJob(problem));
        }
        if self.block != block || self.cols != cols {
            return Err(DeviceFault::BadJob(format!(
                "{} with {} columns beside {block} with {cols}",
                self.block, self.cols
            )));
        }
        self.bytes(segment_bytes).map(|_| ())
    }
}

/// A cluster of an FFN's neurons: their rows of Gate and Up, and their columns of Down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfnCluster {
    /// `[neurons, d_model]`.
    pub gate: PanelRange,
    /// `[neurons, d_model]`.
    pub up: PanelRange,
    /// `[d_model, neurons]`; the neurons are whole blocks of 32.
    pub down: PanelRange,
}

/// Activations that devices compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activated {
    /// [`Activation::Silu`].
    Silu,
    /// [`Activation::Relu`], [`Activation::FatRelu`] and [`Activation::DoubleRelu`], by their parameters.
    Relu,
    /// [`Activation::GeluTanh`].
    GeluTanh,
    /// [`Activation::ClampedSwiglu`].
    ClampedSwiglu,
}

impl Activated {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Silu, Self::Relu, Self::GeluTanh, Self::ClampedSwiglu];

    /// The kind of an activation; `None` if devices do not compute it.
    pub fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::Silu => Some(Self::Silu),
            Activation::Relu | Activation::FatRelu { .. } | Activation::DoubleRelu => {
                Some(Self::Relu)
            }
            Activation::GeluTanh => Some(Self::GeluTanh),
            Activation::ClampedSwiglu { .. } => Some(Self::ClampedSwiglu),
            _ => None,
        }
    }

    /// One with usual parameters.
    pub fn example(self) -> Activation {
        match self {
            Self::Silu => Activation::Silu,
            Self::Relu => Activation::Relu,
            Self::GeluTanh => Activation::GeluTanh,
            Self::ClampedSwiglu => Activation::ClampedSwiglu {
                alpha: 1.702,
                limit: 7.0,
            },
        }
    }
}

/// Consecutive clusters that the same tokens use: those of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many clusters, at least one.
    pub clusters: usize,
    /// How many tokens.
    pub tokens: usize,
}

/// Which tokens use a share's clusters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// All clusters in their order; empty if every token uses every cluster, which counts fully.
    pub groups: Vec<Group>,
    /// The groups' tokens, one group after the other.
    pub tokens: Vec<u32>,
    /// How much a group's clusters count for each of these.
    pub weights: Vec<f32>,
}

impl Routing {
    /// Each group's clusters, and which of `tokens` and `weights` are its own.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + Clone {
        self.groups.iter().scan((0, 0), |(cluster, token), group| {
            let (clusters, tokens) = (*cluster, *token);
            *cluster += group.clusters;
            *token += group.tokens;
            Some((clusters..*cluster, tokens..*token))
        })
    }

    /// Forgets all groups, and keeps their memory.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.tokens.clear();
        self.weights.clear();
    }

    fn check(&self, clusters: usize, n_tokens: usize) -> Result<(), DeviceFault> {
        let Self {
            groups,
            tokens,
            weights,
        } = self;
        let sums = groups.iter().fold([0_usize; 2], |[a, b], group| {
            [
                a.saturating_add(group.clusters),
                b.saturating_add(group.tokens),
            ]
        });
        let known = tokens.iter().all(|&token| (token as usize) < n_tokens)
            && groups.iter().all(|group| group.clusters > 0);
        let named = sums == [clusters, tokens.len()] && tokens.len() == weights.len();
        match (groups.is_empty() && tokens.is_empty()) || (named && known) {
            true => Ok(()),
            false => Err(DeviceFault::BadJob(format!(
                "groups of {} clusters have {} of {n_tokens} tokens, but there are {clusters} clusters, {} tokens and {} \
                 weights",
                sums[0],
                sums[1],
                tokens.len(),
                weights.len()
            ))),
        }
    }
}

/// What a job computes for each of its tokens.
#[derive(Debug)]
pub enum Work {
    /// Rows of matrices: `out[t, r] = w[r] . x[t]`, with the bits of
    /// [`KernelTable::panels`](forebay_kernels::KernelTable::panels).
    Rows {
        /// The rows, one range after the other, of one format and width.
        panels: Vec<PanelRange>,
        /// Room for the results, `[n_tokens, rows]`.
        out: Vec<f32>,
    },
    /// A share of an FFN: `out[t] = sum over clusters of Down (act(Gate x[t]) * Up x[t] * weight)`, in units of 2^-32,
    /// with the bits of the CPU's kernels: the input of Down is quantised cluster by cluster, and each cluster's result
    /// is rounded to such units before it is added.
    Share {
        /// The clusters; the same formats in all of them.
        clusters: Vec<FfnCluster>,
        /// Of Gate and Up.
        activation: Activation,
        /// Biases of Gate and of Up, `[neurons of all clusters]` each; empty if there are none.
        biases: [Vec<f32>; 2],
        /// Which tokens use them.
        routing: Routing,
        /// Room for the results, `[n_tokens, d_model]`.
        out: Vec<i64>,
    },
    /// Attention. It has its own tokens.
    Attention(Box<AttentionWork>),
}

/// Work for a batch of tokens.
#[derive(Debug)]
pub struct DeviceJob {
    /// Told apart by the caller.
    pub id: u64,
    /// Where the weights are.
    pub segment: SegmentId,
    /// The tokens, in [`Form::Panels`](forebay_kernels::Form::Panels); none for attention.
    pub tokens: Activations,
    /// What is done with them.
    pub work: Work,
}

impl DeviceJob {
    /// Checks what is independent of the device.
    ///
    /// # Errors
    /// The shapes do not fit each other or the segment.
    pub(crate) fn check(&self, segment_bytes: usize) -> Result<(), DeviceFault> {
        let cols = self.tokens.cols();
        let (width, room) = match &self.work {
            Work::Attention(work) => return work.check(segment_bytes),
            Work::Rows { panels, out } => {
                for range in panels {
                    range.check(panels[0].block, cols, segment_bytes)?;
                }
                (panels.iter().map(|range| range.n_rows).sum(), out.len())
            }
            Work::Share {
                clusters,
                activation,
                biases,
                routing,
                out,
            } => {
                if Activated::of(*activation).is_none() {
                    let problem = format!("{activation:?} is not computed on devices");
                    return Err(DeviceFault::BadJob(problem));
                }
                let neurons: usize = clusters.iter().map(|cluster| cluster.gate.n_rows).sum();
                let [gate, up] = biases.each_ref().map(Vec::len);
                if gate != up || (gate != 0 && gate != neurons) {
                    let problem = format!("{neurons} neurons have {gate} and {up} biases");
                    return Err(DeviceFault::BadJob(problem));
                }
                routing.check(clusters.len(), self.tokens.n_tokens())?;
                for cluster in clusters {
                    cluster.check(&clusters[0], cols, segment_bytes)?;
                }
                (cols, out.len())
            }
        };
        let n_tokens = self.tokens.n_tokens();
        match width.checked_mul(n_tokens) == Some(room) {
            true => Ok(()),
            false => Err(DeviceFault::BadJob(format!(
                "{n_tokens} tokens have {width} results each, but there is room for {room}"
            ))),
        }
    }
}

impl FfnCluster {
    fn check(&self, first: &Self, d_model: usize, segment_bytes: usize) -> Result<(), DeviceFault> {
        let neurons = self.gate.n_rows;
        self.gate.check(first.gate.block, d_model, segment_bytes)?;
        self.up.check(first.up.block, d_model, segment_bytes)?;
        self.down.check(first.down.block, neurons, segment_bytes)?;
        let fits =
            self.up.n_rows == neurons && self.down.n_rows == d_model && neurons.is_multiple_of(32);
        match fits {
            true => Ok(()),
            false => Err(DeviceFault::BadJob(format!(
                "a cluster has {neurons} rows of Gate, {} of Up and {} of Down, and {d_model} columns",
                self.up.n_rows, self.down.n_rows
            ))),
        }
    }
}

/// A job that is over.
#[derive(Debug)]
pub struct DeviceDone {
    /// The job; its results are there if nothing failed, else they are arbitrary.
    pub job: DeviceJob,
    /// What failed.
    pub result: Result<(), DeviceFault>,
    /// From [`submit`](crate::DeviceDriver::submit) to [`poll`](crate::DeviceDriver::poll), ns.
    pub elapsed_ns: u64,
}
