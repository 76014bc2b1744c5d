//! Rows added to accumulators.

use forebay_numbers::block::BlockType;

use super::definition::{random_row, weights};
use super::{Random, bits, on_all, tables};
use forebay_kernels::{Gather, KernelTable};

fn column_counts(block: BlockType) -> Vec<usize> {
    match block.block_len() {
        1 => (1..=70).step_by(3).chain([255, 256, 257, 577]).collect(),
        32 => [1, 2, 3, 7, 8, 9, 17].map(|n| 32 * n).to_vec(),
        _ => [1, 2, 5].map(|n| 256 * n).to_vec(),
    }
}

/// A row added to the number to which any number, including 0 and -0, can be added unchanged.
fn as_numbers(table: &KernelTable, block: BlockType, row: &[u8], cols: usize) -> Vec<f32> {
    let mut out = vec![-0.0; cols];
    table.axpy_gathered(block, Gather::new(&[row]), &[1.0], &mut out, cols);
    out
}

#[test]
fn rows_as_numbers_have_the_bits_of_the_definition() {
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let row = random_row(block, cols, &mut Random(cols as u64));
            let mut unaligned = vec![0; 1];
            unaligned.extend(&row);
            let out = on_all(|table| as_numbers(table, block, &unaligned[1..], cols));
            // Zero may come out as -0 where the definition multiplies a negative scale with it.
            assert_eq!(out, weights(block, &row), "{block} {cols}");
        }
    }
}

/// Numbers keep their bits, of which a sum with 0 would change one.
#[test]
fn numbers_that_are_negative_zeros_stay_so() {
    let zeros = vec![-0.0_f32; 300];
    let bytes: Vec<u8> = zeros.iter().flat_map(|v| v.to_le_bytes()).collect();
    let out = on_all(|table| as_numbers(table, BlockType::F32, &bytes, 300));
    assert_eq!(bits(&out), bits(&zeros));
}

/// Rows of a format at odd places of one buffer, and what to do with them.
struct Rows {
    block: BlockType,
    cols: usize,
    rows: Vec<Vec<u8>>,
    h: Vec<f32>,      // [n_tokens, k]
    before: Vec<f32>, // [n_tokens, cols]
}

impl Rows {
    /// Every fifth value is 0, and so are all of the second token's.
    fn random(block: BlockType, cols: usize, k: usize, n_tokens: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let rows = (0..k).map(|i| {
            let mut row = vec![0xff; i % 3];
            row.extend(random_row(block, cols, &mut random));
            row
        });
        let rows = rows.collect();
        let mut h = random.units(n_tokens * k);
        for (i, h) in h.iter_mut().enumerate() {
            if i % 5 == 3 || i / k == 1 {
                *h = if i % 2 == 0 { 0.0 } else { -0.0 };
            }
        }
        let mut before = random.units(n_tokens * cols);
        before[0] = -0.0;
        if n_tokens > 1 {
            before[cols] = -0.0;
        }
        Self {
            block,
            cols,
            rows,
            h,
            before,
        }
    }

    fn slices(&self) -> Vec<&[u8]> {
        let rows = self.rows.iter().enumerate();
        rows.map(|(i, row)| &row[i % 3..]).collect()
    }

    /// All rows and tokens in one call.
    fn together(&self, table: &KernelTable) -> Vec<f32> {
        let mut acc = self.before.clone();
        table.axpy_gathered(
            self.block,
            Gather::new(&self.slices()),
            &self.h,
            &mut acc,
            self.cols,
        );
        acc
    }

    /// A call for every row and token, and none where nothing is to be added.
    fn one_by_one(&self, table: &KernelTable) -> Vec<f32> {
        let mut acc = self.before.clone();
        for (t, acc) in acc.chunks_mut(self.cols).enumerate() {
            for (j, row) in self.slices().into_iter().enumerate() {
                let h = self.h[t * self.rows.len() + j];
                if h != 0.0 {
                    table.axpy_gathered(self.block, Gather::new(&[row]), &[h], acc, self.cols);
                }
            }
        }
        acc
    }

    /// In f64: the sum and the sum of magnitudes.
    fn exact(&self, t: usize, i: usize, weights: &[Vec<f32>]) -> (f64, f64) {
        let old = f64::from(self.before[t * self.cols + i]);
        let h = &self.h[t * self.rows.len()..];
        let terms = h.iter().zip(weights);
        let terms = terms.map(|(&h, w)| f64::from(h) * f64::from(w[i]));
        terms.fold((old, old.abs()), |(sum, size), v| (sum + v, size + v.abs()))
    }

    fn check(&self) {
        let out = on_all(|table| self.together(table));
        for table in tables() {
            assert_eq!(bits(&out), bits(&self.one_by_one(&table)), "{}", self.block);
        }
        let rows = self.slices().into_iter();
        let weights: Vec<_> = rows.map(|row| weights(self.block, row)).collect();
        for (e, (&out, &before)) in out.iter().zip(&self.before).enumerate() {
            let (t, i) = (e / self.cols, e % self.cols);
            if t == 1 {
                assert_eq!(out.to_bits(), before.to_bits(), "a zero changed something");
            }
            let (sum, size) = self.exact(t, i, &weights);
            let n = self.rows.len() as f64;
            // Offsets of up to 63 times a scale are taken off the sum one by one.
            let limit = (size + 64.0) * (n + 1.0) * 2.0 * f64::from(f32::EPSILON);
            assert!(
                (f64::from(out) - sum).abs() <= limit,
                "{} {t} {i}: {out} for {sum}",
                self.block
            );
        }
    }
}

#[test]
fn gathered_rows_are_added_in_their_order_and_zeros_leave_accumulators_alone() {
    for (b, block) in BlockType::ALL.into_iter().enumerate() {
        for (i, cols) in column_counts(block).into_iter().enumerate() {
            // Around the number of rows that go side by side.
            let k = [1, 7, 8, 9, 3, 17, 23][(b + i) % 7];
            let n_tokens = [1, 3, 2, 1, 5][i % 5];
            Rows::random(block, cols, k, n_tokens, (b * 100 + i) as u64).check();
        }
    }
}

/// Formats of numbers are one fused product and sum per element and row.
#[test]
fn numbers_are_added_with_one_rounding() {
    for block in [BlockType::F32, BlockType::F16, BlockType::BF16] {
        let rows = Rows::random(block, 301, 11, 3, 5);
        let weights: Vec<_> = rows.slices().iter().map(|r| weights(block, r)).collect();
        let mut expected = rows.before.clone();
        for (e, acc) in expected.iter_mut().enumerate() {
            for (j, w) in weights.iter().enumerate() {
                let h = rows.h[e / 301 * 11 + j];
                if h != 0.0 {
                    *acc = h.mul_add(w[e % 301], *acc);
                }
            }
        }
        let out = on_all(|table| rows.together(table));
        assert_eq!(bits(&out), bits(&expected), "{block}");
    }
}

/// Symmetric formats are `fma(h * scale, code - bias, acc)`.
#[test]
fn symmetric_formats_are_added_with_one_rounding() {
    let (block, cols) = (BlockType::Q8_0, 288);
    let rows = Rows::random(block, cols, 9, 1, 6);
    let mut expected = rows.before.clone();
    for (row, &h) in rows.slices().iter().zip(&rows.h) {
        for (bytes, acc) in row.chunks_exact(34).zip(expected.chunks_mut(32)) {
            let scale = h * half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            for (acc, &code) in acc.iter_mut().zip(&bytes[2..]) {
                if h != 0.0 {
                    *acc = scale.mul_add(f32::from(code as i8), *acc);
                }
            }
        }
    }
    let out = on_all(|table| rows.together(table));
    assert_eq!(bits(&out), bits(&expected));
}

#[test]
fn a_fault_in_one_token_stays_in_that_token() {
    for block in BlockType::ALL {
        let mut rows = Rows::random(block, 512, 9, 3, 7);
        let healthy = on_all(|table| rows.together(table));
        rows.h[2 * 9 + 1] = f32::NAN;
        for table in tables() {
            let out = rows.together(&table);
            assert_eq!(bits(&out[..1024]), bits(&healthy[..1024]), "{block}");
            assert!(out[1024..].iter().all(|v| v.is_nan()), "{block}");
        }
    }
}

#[test]
fn no_rows_add_nothing() {
    for table in tables() {
        let mut acc = [1.0, -0.0, 3.0];
        table.axpy_gathered(BlockType::F32, Gather::new(&[]), &[], &mut acc, 3);
        assert_eq!(bits(&acc), bits(&[1.0, -0.0, 3.0]));
    }
}

#[test]
#[should_panic(expected = "row of another length")]
fn rows_of_another_length_are_refused() {
    let rows: [&[u8]; 2] = [&[0; 18], &[0; 17]];
    KernelTable::best().axpy_gathered(
        BlockType::Q4_0,
        Gather::new(&rows),
        &[1.0; 2],
        &mut [0.0; 32],
        32,
    );
}

#[test]
#[should_panic(expected = "accumulators of another shape")]
fn accumulators_of_another_shape_are_refused() {
    let rows: [&[u8]; 1] = [&[0; 18]];
    KernelTable::best().axpy_gathered(
        BlockType::Q4_0,
        Gather::new(&rows),
        &[1.0; 2],
        &mut [0.0; 32],
        32,
    );
}
