//! A program's phases as operators: what they cost, whoever computes them.

use std::collections::BTreeSet;

use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;

use crate::program::{Program, Work};

/// What a scale per 32 elements and its sums add to activations of one byte.
const QUANTISED: f64 = 1.5;
/// Bytes of a result of a row, and of an element of a share.
const RESULT: f64 = 4.0;
const SHARE: f64 = 8.0;

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
    /// Bytes of one token's quantised input.
    pub input_bytes: f64,
    /// Bytes of one token's results.
    pub output_bytes: f64,
}

impl Operator {
    /// Bytes of weights that a batch goes through: tokens that use different experts share few.
    pub fn bytes_of(&self, batch: usize) -> f64 {
        let unused = (1.0 - self.used).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        self.bytes * (1.0 - unused)
    }

    /// Operators of the phases of all cores' `programs`. Phases without weights, which are mixers, are no operators.
    pub fn of_programs(bundle: &Bundle, programs: &[Program]) -> Vec<Self> {
        let phases = programs.iter().map(|p| p.phases.len()).max().unwrap_or(0);
        (0..phases)
            .filter_map(|number| Self::of_phase(bundle, programs, number))
            .collect()
    }

    /// The operator of phase `number`, if it has weights.
    pub fn of_phase(bundle: &Bundle, programs: &[Program], number: usize) -> Option<Self> {
        let mut sum = Sum::default();
        for phase in programs.iter().filter_map(|p| p.phases.get(number)) {
            for item in phase.items() {
                let entry = &bundle.clusters[item.cluster as usize];
                match entry.content {
                    Content::Rows(tensor) => {
                        let matrix = bundle.meta.matrix(tensor)?;
                        sum.add(matrix.block, f64::from(entry.len), 1.0);
                        sum.input = sum.input.max(matrix.cols as f64 * QUANTISED);
                    }
                    Content::Neurons(_) | Content::Experts(_) => {
                        let g = bundle.meta.geometry(entry.content)?;
                        let used = bundle.meta.network.used_share(entry.content);
                        let count = entry.count as usize;
                        sum.add(g.gate, g.gate_bytes(count) as f64, used);
                        if let Some(up) = g.up {
                            sum.add(up, g.up_bytes(count) as f64, used);
                        }
                        sum.add(g.down, g.down_bytes(count) as f64, used);
                        sum.input = g.d_model as f64 * QUANTISED;
                        sum.output = g.d_model as f64 * SHARE;
                    }
                    Content::Table(_) => {}
                }
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
}

/// What a phase's clusters add up to.
#[derive(Default)]
struct Sum {
    formats: BTreeSet<&'static str>,
    bytes: f64,
    used_bytes: f64,
    operations: f64,
    input: f64,
    output: f64,
}

impl Sum {
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
            input_bytes: self.input,
            output_bytes: self.output,
        })
    }
}
