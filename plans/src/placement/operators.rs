//! A program's phases as operators: what they cost, whoever computes them.

use std::collections::BTreeSet;

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, DirectoryEntry, FfnLayout};
use forebay_models::network::{Attention, Content};

use crate::device_formats::formats;
use crate::program::{Program, Work};
use crate::uploads::MAX_PLACES;

/// What a scale per 32 elements and its sums add to activations of one byte.
const QUANTISED: f64 = 1.5;
/// Bytes of a result of a row, and of an element of a share.
const RESULT: f64 = 4.0;
const SHARE: f64 = 8.0;
/// Bytes of an element of a key or value.
const HALF: f64 = 2.0;
/// Part of the single neurons that a token wants, if it is not known: of a model with 90% of zeros, whose hot neurons
/// are in panels.
const COLD_WANTED: f64 = 0.08;

/// The matrices of a phase, which share their input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operator {
    /// Such as `layer 3, ffn`.
    pub name: String,
    /// Formats of its weights.
    pub formats: Vec<BlockType>,
    /// Bytes of all its weights.
    pub bytes: f64,
    /// Part of its weights that one token uses; less than 1 with experts.
    pub used: f64,
    /// Additions and multiplications for one token.
    pub operations: f64,
    /// Bytes of what only the CPU computes beside them, for one token: cold neurons.
    pub cold_bytes: f64,
    /// Additions and multiplications of these for one token.
    pub cold_operations: f64,
    /// Bytes of one token's quantised input.
    pub input_bytes: f64,
    /// Bytes of one token's results.
    pub output_bytes: f64,
    /// How its weights come, if they are not in memory.
    pub streaming: Option<Streaming>,
    /// Whether it is attention: its bytes are keys and values, of which a device has a copy of all, whatever its share.
    pub attends: bool,
}

/// Weights that are read from flash for each batch: what a device computes is copied to it each time, whatever memory
/// it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// How fast they are read; infinite if that is not known.
    pub bytes_per_second: f64,
    /// Jobs in which a device computes all of them.
    pub jobs: f64,
}

impl Operator {
    /// Bytes of weights that a batch goes through: tokens that use different experts share few.
    pub fn bytes_of(&self, batch: usize) -> f64 {
        let unused = (1.0 - self.used).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        self.bytes * (1.0 - unused)
    }

    /// What an FFN of this width brings to a device and takes back, and nothing else.
    pub(super) fn boards(d_model: usize) -> Self {
        Self {
            input_bytes: d_model as f64 * QUANTISED,
            output_bytes: d_model as f64 * SHARE,
            ..Self::default()
        }
    }

    /// The bytes that only the CPU goes through: tokens want different neurons.
    pub fn cold_bytes_of(&self, batch: usize) -> f64 {
        let unwanted = (1.0 - COLD_WANTED).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        self.cold_bytes / COLD_WANTED * (1.0 - unwanted)
    }

    /// The operator of phase `number`, if it has weights.
    pub fn of_phase(bundle: &Bundle, programs: &[Program], number: usize) -> Option<Self> {
        let mut sum = Sum::default();
        for phase in programs.iter().filter_map(|p| p.phases.get(number)) {
            for item in phase.items() {
                sum.add_cluster(bundle, &bundle.clusters[item.cluster as usize])?;
            }
            if let Work::Rows(rows) = &phase.work {
                sum.output = rows.width as f64 * RESULT;
            }
        }
        let phase = programs.iter().find_map(|p| p.phases.get(number))?;
        let what = match &phase.work {
            Work::Rows(rows) => format!("{:?}", rows.board).to_lowercase(),
            Work::Neurons { .. } => "ffn".to_owned(),
            Work::Mixer { .. } => return None,
        };
        sum.operator(format!("layer {}, {what}", phase.layer))
    }

    /// A layer's attention for tokens that see so many `positions` each.
    pub fn of_attention(a: &Attention, positions: usize) -> Self {
        let seen = positions.min(a.window.unwrap_or(usize::MAX)) as f64;
        let both = (a.head_dim + a.value_dim()) as f64;
        let of_position = a.n_kv_heads as f64 * both * HALF;
        Self {
            name: "attention".to_owned(),
            bytes: seen * of_position,
            used: 1.0,
            // Scores, and the weighted sum of values.
            operations: 2.0 * a.n_heads as f64 * both * seen,
            input_bytes: (a.n_heads * a.head_dim) as f64 * RESULT + of_position,
            output_bytes: (a.n_heads * a.value_dim()) as f64 * RESULT,
            attends: true,
            ..Self::default()
        }
    }

    /// The FFN of `layer` as far as a device computes it as it is streamed at `bytes_per_second`.
    pub fn of_streamed_ffn(bundle: &Bundle, layer: usize, bytes_per_second: f64) -> Option<Self> {
        let (mut sum, mut clusters) = (Sum::default(), 0);
        for (i, entry) in bundle.clusters.iter().enumerate() {
            if entry.content == Content::Neurons(layer) && formats(bundle, i).is_some() {
                sum.add_cluster(bundle, entry)?;
                clusters += 1;
            }
        }
        let streaming = Streaming {
            bytes_per_second,
            // Half of the places are in a job while the others are filled.
            jobs: f64::from(clusters) / (MAX_PLACES / 2) as f64,
        };
        Some(Self {
            streaming: Some(streaming),
            ..sum.operator(format!("layer {layer}, streamed ffn"))?
        })
    }
}

/// What a phase's clusters add up to.
#[derive(Default)]
struct Sum {
    formats: BTreeSet<&'static str>,
    bytes: f64,
    used_bytes: f64,
    operations: f64,
    cold: f64,
    cold_operations: f64,
    input: f64,
    output: f64,
}

impl Sum {
    /// Adds a cluster; `None` if the directory does not belong to the metadata.
    fn add_cluster(&mut self, bundle: &Bundle, entry: &DirectoryEntry) -> Option<()> {
        match entry.content {
            Content::Rows(tensor) => {
                let matrix = bundle.meta.matrix(tensor)?;
                self.add(matrix.block, f64::from(entry.len), 1.0);
                self.input = self.input.max(matrix.cols as f64 * QUANTISED);
            }
            Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => {
                let g = bundle.meta.geometry(entry.content)?;
                let used = bundle.meta.network.used_share(entry.content);
                let count = entry.count as usize;
                if g.layout == FfnLayout::Neuron {
                    self.cold += COLD_WANTED * (count * g.bundle_bytes()) as f64;
                    let products = 2 + usize::from(g.up.is_some());
                    let elements = count * products * g.d_model;
                    self.cold_operations += 2.0 * COLD_WANTED * elements as f64;
                    return Some(());
                }
                self.add(g.gate, g.gate_bytes(count) as f64, used);
                if let Some(up) = g.up {
                    self.add(up, g.up_bytes(count) as f64, used);
                }
                self.add(g.down, g.down_bytes(count) as f64, used);
                self.input = g.d_model as f64 * QUANTISED;
                self.output = g.d_model as f64 * SHARE;
            }
            Content::Table(_) => {}
        }
        Some(())
    }

    /// Adds weights of which a token uses a part.
    fn add(&mut self, format: BlockType, bytes: f64, used: f64) {
        let elements = bytes / format.block_bytes() as f64 * format.block_len() as f64;
        self.formats.insert(format.name());
        self.bytes += bytes;
        self.used_bytes += bytes * used;
        self.operations += 2.0 * elements * used;
    }

    fn operator(self, name: String) -> Option<Operator> {
        let formats = BlockType::ALL.into_iter();
        (self.bytes > 0.0).then(|| Operator {
            name,
            formats: formats
                .filter(|f| self.formats.contains(f.name()))
                .collect(),
            bytes: self.bytes,
            used: self.used_bytes / self.bytes,
            operations: self.operations,
            cold_bytes: self.cold,
            cold_operations: self.cold_operations,
            input_bytes: self.input,
            output_bytes: self.output,
            streaming: None,
            attends: false,
        })
    }
}
