//! How much a matrix's columns matter: how large the numbers are by which they are multiplied, over a text (an
//! *importance matrix*). Quantising spares the columns that matter.

mod imatrix;

use std::collections::BTreeMap;
use std::path::PathBuf;

use twox_hash::XxHash3_64;

pub use imatrix::{read_imatrix, write_imatrix};

/// What was seen of the inputs of a model's matrices. Files are llama.cpp's ([`read_imatrix`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// The file that it was read from, for messages.
    pub path: PathBuf,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Pieces of text.
    pub chunks: u32,
    /// Tokens of a piece.
    pub chunk_tokens: u32,
    /// The inputs of matrices, by their names in GGUF.
    pub inputs: BTreeMap<String, InputSquares>,
}

/// Squares of the inputs of a matrix, or of one matrix for every expert.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputSquares {
    /// Sums by column, `[n_experts, columns]`; 1 in place of `n_experts` for other matrices.
    pub sums: Vec<f32>,
    /// How many tokens they are of, `[n_experts]`.
    pub tokens: Vec<f32>,
}

impl Importance {
    /// The inputs of a matrix that has one of these names.
    pub fn of(&self, names: &[String]) -> Option<&InputSquares> {
        names.iter().find_map(|name| self.inputs.get(name))
    }

    /// Identifies what encoders make of it.
    pub fn checksum(&self) -> u64 {
        let mut bytes = Vec::new();
        for (name, inputs) in &self.inputs {
            bytes.extend(name.as_bytes());
            let values = inputs.tokens.iter().chain(&inputs.sums);
            bytes.extend(values.flat_map(|v| v.to_le_bytes()));
        }
        XxHash3_64::oneshot(&bytes)
    }
}

impl InputSquares {
    /// Means by column, divided by their maximum so that they are at most 1, `[n_experts, columns]`; 0 for an expert
    /// that no token used.
    pub fn means(&self) -> Vec<f32> {
        let columns = self.sums.len() / self.tokens.len().max(1);
        let experts = self.sums.chunks_exact(columns.max(1));
        let relative = experts.zip(&self.tokens).flat_map(|(sums, &tokens)| {
            let most = sums.iter().fold(0.0, |most: f32, &sum| most.max(sum));
            let factor = if tokens > 0.0 && most > 0.0 {
                1.0 / most
            } else {
                0.0
            };
            sums.iter().map(move |sum| sum * factor)
        });
        relative.collect()
    }

    /// Experts that no token used.
    pub fn unseen(&self) -> usize {
        self.tokens.iter().filter(|&&n| n == 0.0).count()
    }
}
