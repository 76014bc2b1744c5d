//! Rows added to accumulators, and rows as numbers.

use forebay_models::block::BlockType;

use super::definition::{random_row, weights};
use super::{Random, bits, on_all, tables};

fn column_counts(block: BlockType) -> Vec<usize> {
    match block.block_len() {
        1 => (1..=40).collect(),
        32 => [1, 2, 3, 7, 8, 9, 17].map(|n| 32 * n).to_vec(),
        _ => [1, 2, 5].map(|n| 256 * n).to_vec(),
    }
}

#[test]
fn dequantised_rows_have_the_bits_of_the_definition() {
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let row = random_row(block, cols, &mut Random(cols as u64));
            let mut unaligned = vec![0; 1];
            unaligned.extend(&row);
            let out = on_all(|table| {
                let mut out = vec![f32::NAN; cols];
                table.dequantise(block, &unaligned[1..], &mut out);
                out
            });
            // Zero may come out as -0 where the definition multiplies a negative scale with it.
            assert_eq!(out, weights(block, &row), "{block} {cols}");
        }
    }
}

#[test]
fn tokens_are_added_independently_and_zeros_leave_their_accumulators_alone() {
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let mut random = Random(cols as u64);
            let row = random_row(block, cols, &mut random);
            let w = weights(block, &row);
            let n_tokens = 1 + cols % 9;
            let stride = cols + 2;
            let mut h = random.units(n_tokens);
            h[n_tokens / 2] = 0.0;
            let mut before = random.units(n_tokens * stride);
            before[n_tokens / 2 * stride] = -0.0;
            let out = on_all(|table| {
                let mut acc = before.clone();
                table.axpy(block, &row, &h, &mut acc, stride);
                acc
            });
            for t in 0..n_tokens {
                let (old, new) = (
                    &before[t * stride..][..stride],
                    &out[t * stride..][..stride],
                );
                assert_eq!(
                    bits(&old[cols..]),
                    bits(&new[cols..]),
                    "wrote beyond the row"
                );
                if h[t] == 0.0 {
                    assert_eq!(bits(old), bits(new));
                    continue;
                }
                for i in 0..cols {
                    assert_eq!(new[i], h[t].mul_add(w[i], old[i]), "{block} {cols} {t} {i}");
                }
                for table in tables() {
                    let mut alone = old.to_vec();
                    table.axpy(block, &row, &h[t..=t], &mut alone, 0);
                    assert_eq!(bits(&alone), bits(new));
                }
            }
        }
    }
}
