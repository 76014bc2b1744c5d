//! Whether the rows of the output head have norms of 1, which some models' own code sees to when it uses them.

use super::Inventory;
use crate::block::dequantize;
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::tensor::TensorId;

/// So many rows are looked at from the first on, and as many more all over the vocabulary.
const ROWS: usize = 32;

/// How far a norm may be from 1. Quantised rows are off by up to 0.7%, those of MXFP4 by 1.7%; trained rows that were
/// never normalised differ from each other by much more.
const TOLERANCE: f32 = 0.03;

impl Inventory {
    /// Checks the norms of some rows of the head, if the model needs them to be 1.
    ///
    /// # Errors
    /// The first row with another norm, or a failed read.
    pub(crate) fn check_unit_head(&self, network: &Network) -> Result<()> {
        let id = match network.head.tied {
            true => TensorId::TokenEmbedding,
            false => TensorId::OutputHead,
        };
        let (Some(remedy), Some(meta)) = (self.unit_head, self.meta(id)) else {
            return Ok(());
        };
        let mut bytes = vec![0; meta.row_bytes()];
        let mut values = vec![0.0; meta.cols];
        let spread = (0..ROWS).map(|i| i * meta.rows / ROWS);
        for row in (0..ROWS.min(meta.rows)).chain(spread) {
            self.read(id, row * meta.row_bytes(), &mut bytes)?;
            dequantize(meta.block, &bytes, &mut values);
            let norm = norm(&values);
            // Rows of zeros, which vocabularies are padded with, stay as they are.
            let is_unit = norm == 0.0 || (norm - 1.0).abs() <= TOLERANCE;
            if !is_unit {
                let problem = format!(
                    "a head whose rows are not normalised (row {row} has a norm of {norm:.2}, not 1)"
                );
                let (path, name) = (self.path_of(&meta.name), &meta.name);
                return Err(ModelError::unsupported(path, name, problem, remedy));
            }
        }
        Ok(())
    }
}

fn norm(row: &[f32]) -> f32 {
    row.iter().map(|v| v * v).sum::<f32>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockType, quantize};
    use crate::random::split_mix;

    #[test]
    fn normalised_rows_are_within_the_tolerance_in_every_format() {
        const N: usize = 4096;
        let mut state = 1;
        let mut uniform = || (split_mix(&mut state) >> 40) as f32 / (1 << 24) as f32 - 0.5;
        for block in BlockType::ALL {
            for _ in 0..8 {
                let mut row: Vec<f32> = (0..N).map(|_| (0..6).map(|_| uniform()).sum()).collect();
                let whole = norm(&row);
                row.iter_mut().for_each(|v| *v /= whole);
                let mut bytes = vec![0; block.row_bytes(N).expect("whole blocks")];
                quantize(block, &row, &mut bytes);
                dequantize(block, &bytes, &mut row);
                let off = (norm(&row) - 1.0).abs();
                assert!(off < TOLERANCE, "{block}: {off}");
            }
        }
    }
}
