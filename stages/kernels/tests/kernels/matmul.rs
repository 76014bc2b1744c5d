//! Matrix products, with weights in rows and in panels: values, tile independence, layout, faults.

use forebay_numbers::block::BlockType;
use forebay_numbers::panel::pack_panels;
use proptest::prelude::*;

use super::definition::{constant_row, quantised, random_row, weights};
use super::{Random, bits, on_all, tables};
use forebay_kernels::{Activations, BLOCK_WORDS, Form, KernelTable, WeightPanels, WeightRows};

const FORMS: [Form; 2] = [Form::Rows, Form::Panels];

/// Columns per format: whole blocks, around the boundaries of pairs and chunks.
fn column_counts(block: BlockType) -> Vec<usize> {
    match block.block_len() {
        1 => (1..=70).collect(),
        32 => [1, 2, 3, 5, 7, 8, 9, 10, 15, 16, 17]
            .map(|n| 32 * n)
            .to_vec(),
        _ => [1, 2, 3, 5, 7].map(|n| 256 * n).to_vec(),
    }
}

/// Rows laid `stride` apart from byte `offset` on, with garbage in between; or panels from there on.
struct Matrix {
    block: BlockType,
    form: Form,
    rows: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    offset: usize,
    stride: usize,
}

impl Matrix {
    fn new(form: Form, block: BlockType, rows: Vec<Vec<u8>>, offset: usize, gap: usize) -> Self {
        if form == Form::Panels {
            let mut bytes = vec![0xff; offset];
            pack_panels(block, &rows.concat(), rows[0].len(), &mut bytes);
            return Self {
                block,
                form,
                rows,
                bytes,
                offset,
                stride: 0,
            };
        }
        let stride = rows[0].len() + gap;
        let mut bytes = vec![0xff; offset + stride * rows.len()];
        for (r, row) in rows.iter().enumerate() {
            bytes[offset + r * stride..][..row.len()].copy_from_slice(row);
        }
        bytes.truncate(bytes.len() - gap);
        Self {
            block,
            form,
            rows,
            bytes,
            offset,
            stride,
        }
    }

    fn random(form: Form, block: BlockType, cols: usize, n_rows: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let rows = (0..n_rows).map(|_| random_row(block, cols, &mut random));
        let rows = rows.collect();
        Self::new(form, block, rows, seed as usize % 67, seed as usize % 41)
    }

    /// Kernel result `[n_tokens, n_rows + 1]`; the last column is not to be written.
    fn product(&self, table: &KernelTable, n_tokens: usize, x: &[f32]) -> Vec<f32> {
        let cols = x.len() / n_tokens;
        let mut activations = Activations::new(n_tokens + 1, cols + 3);
        activations.load(table, self.form, n_tokens, cols, x);
        self.product_of(table, &activations)
    }

    fn product_of(&self, table: &KernelTable, activations: &Activations) -> Vec<f32> {
        let stride = self.rows.len() + 1;
        let mut out = vec![7.5; activations.n_tokens() * stride];
        let (block, bytes, n_rows) = (self.block, &self.bytes[self.offset..], self.rows.len());
        if self.form == Form::Panels {
            let w = WeightPanels {
                block,
                bytes,
                n_rows,
            };
            table.panels(w, activations, &mut out, stride);
        } else {
            let w = WeightRows {
                block,
                bytes,
                stride: self.stride,
                n_rows,
            };
            table.matmul(w, activations, &mut out, stride);
        }
        out
    }

    /// Compares with sums in f64 of the quantised operands.
    fn check(&self, n_tokens: usize, x: &[f32]) {
        let cols = x.len() / n_tokens;
        let out = on_all(|table| self.product(table, n_tokens, x));
        let out: Vec<&[f32]> = out.chunks(self.rows.len() + 1).collect();
        let rows: Vec<_> = self.rows.iter().map(|r| weights(self.block, r)).collect();
        for (t, x) in x.chunks(cols).enumerate() {
            let x: Vec<f64> = if self.block.block_len() == 1 {
                x.iter().map(|&v| f64::from(v)).collect()
            } else {
                quantised(x)
            };
            for (r, row) in rows.iter().enumerate() {
                let terms = row.iter().zip(&x).map(|(&w, x)| f64::from(w) * x);
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                let got = f64::from(out[t][r]);
                assert!(
                    (got - sum).abs() <= 1e-5 * size,
                    "{} cols {cols} row {r} token {t}: {got} for {sum}",
                    self.block
                );
            }
            assert_eq!(out[t][self.rows.len()], 7.5, "wrote beyond the rows");
        }
    }
}

#[test]
fn every_format_and_length_meets_the_definition() {
    for (i, block) in BlockType::ALL.into_iter().enumerate() {
        for (j, cols) in column_counts(block).into_iter().enumerate() {
            let seed = (i * 100 + j) as u64;
            for (form, tokens, rows) in [(Form::Rows, 9, 9), (Form::Panels, 32, 35)] {
                let n_tokens = 1 + 7 * j % tokens;
                let matrix = Matrix::random(form, block, cols, 1 + (5 * i + j) % rows, seed);
                let x = Random(!seed).units(n_tokens * cols);
                matrix.check(n_tokens, &x);
            }
        }
    }
}

/// More columns and tokens than units for matrices take at once.
#[test]
fn large_products_have_the_bits_of_small_ones() {
    for (i, block) in BlockType::ALL.into_iter().enumerate() {
        let (cols, n_tokens) = (2304, 279);
        let matrix = Matrix::random(Form::Panels, block, cols, 19, i as u64);
        let x = Random(!(i as u64)).units(n_tokens * cols);
        let part = |table: &KernelTable| matrix.product(table, 20, &x[..20 * cols]);
        let small = on_all(part);
        for table in tables().into_iter().skip(1) {
            let large = matrix.product(&table, n_tokens, &x);
            assert!(bits(&small) == bits(&large[..small.len()]), "{block}");
            let last = &x[(n_tokens - 1) * cols..];
            let alone = matrix.product(&table, 1, last);
            assert!(
                bits(&alone) == bits(&large[large.len() - alone.len()..]),
                "{block}"
            );
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    for block in BlockType::ALL {
        let cols = if block.block_len() == 1 { 40 } else { 768 };
        // 0x80 makes every code of Q8_0 -128, whose magnitude does not fit into i8.
        let rows = [0xff, 0x80, 0x7f, 0x00].map(|byte| constant_row(block, cols, byte));
        for form in FORMS {
            let matrix = Matrix::new(form, block, rows.to_vec(), 1, 3);
            for value in [127.0, -127.0, 3e4] {
                matrix.check(2, &vec![value; 2 * cols]);
            }
        }
    }
}

#[test]
fn zero_activations_and_zero_weights_give_zero() {
    for block in BlockType::ALL {
        let cols = if block.block_len() == 1 { 33 } else { 512 };
        let mut random = Random(5);
        let random_rows = vec![random_row(block, cols, &mut random)];
        let zero_rows = vec![vec![0; random_rows[0].len()]];
        let zeros = vec![0.0; cols];
        let x = random.units(cols);
        for form in FORMS {
            let matrix = Matrix::new(form, block, random_rows.clone(), 0, 0);
            assert_eq!(on_all(|t| matrix.product(t, 1, &zeros))[0], 0.0);
            let matrix = Matrix::new(form, block, zero_rows.clone(), 0, 0);
            assert_eq!(on_all(|t| matrix.product(t, 1, &x))[0], 0.0);
        }
    }
}

#[test]
fn a_fault_in_one_token_stays_in_that_token() {
    for (block, form) in BlockType::ALL
        .into_iter()
        .flat_map(|b| FORMS.map(|f| (b, f)))
    {
        let cols = if block.block_len() == 1 { 50 } else { 768 };
        let matrix = Matrix::random(form, block, cols, 5, 11);
        let healthy = Random(1).units(6 * cols);
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = healthy.clone();
            x[2 * cols + 5] = fault;
            for table in tables() {
                let good = matrix.product(&table, 6, &healthy);
                let bad = matrix.product(&table, 6, &x);
                for (t, (good, bad)) in good.chunks(6).zip(bad.chunks(6)).enumerate() {
                    if t == 2 {
                        assert!(
                            bad[..5].iter().all(|v| !v.is_finite()),
                            "{block}: fault hidden"
                        );
                    } else {
                        assert_eq!(bits(good), bits(bad), "{block}: fault spread to token {t}");
                    }
                }
            }
        }
    }
}

/// Product and sum in one pass are what they are one after the other, faults included.
#[test]
fn folding_products_are_products_folded() {
    for (i, block) in BlockType::ALL.into_iter().enumerate() {
        let (cols, n_tokens, n_rows) = (512, 1 + 3 * i, 21 + i);
        let matrix = Matrix::random(Form::Panels, block, cols, n_rows, i as u64);
        for scale in [1.0, 1e9, f32::NAN] {
            let mut x = Random(7).units(n_tokens * cols);
            x[3] *= scale;
            for table in tables() {
                let out = matrix.product(&table, n_tokens, &x);
                let mut activations = Activations::new(n_tokens, cols);
                activations.load(&table, Form::Panels, n_tokens, cols, &x);
                let w = WeightPanels {
                    block,
                    bytes: &matrix.bytes[matrix.offset..],
                    n_rows,
                };
                let (mut acc, mut expected) = (vec![5; out.len()], vec![5; out.len()]);
                let in_range = table.fold_panels(w, &activations, &mut acc, n_rows + 1);
                let mut all = true;
                for (out, acc) in out.chunks(n_rows + 1).zip(expected.chunks_mut(n_rows + 1)) {
                    all &= table.fold_fixed(&out[..n_rows], &mut acc[..n_rows]);
                }
                assert_eq!(
                    (in_range, &acc),
                    (all, &expected),
                    "{block} {}",
                    table.isa()
                );
                // The same in the opposite order, with a row between tokens.
                let places: Vec<u32> = (0..n_tokens as u32).rev().map(|t| 2 * t).collect();
                let mut apart = vec![5; 2 * out.len()];
                let w = WeightPanels {
                    block,
                    bytes: &matrix.bytes[matrix.offset..],
                    n_rows,
                };
                let stride = n_rows + 1;
                let still = table.fold_panels_at(w, &activations, &places, &mut apart, stride);
                assert_eq!(still, in_range);
                for (place, row) in places.iter().zip(acc.chunks(stride)) {
                    let at = *place as usize * stride;
                    assert_eq!(apart[at..][..stride], *row, "{block} {}", table.isa());
                    apart[at..][..stride].fill(5);
                }
                assert!(apart.iter().all(|&sum| sum == 5), "rows between tokens");
                assert!(
                    in_range || scale != 1.0,
                    "{block}: small numbers out of range"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Tokens that are taken over from others, in any order, are as if they had been loaded.
    #[test]
    fn selected_tokens_have_the_products_of_loaded_ones(
        format in 0..BlockType::ALL.len(),
        n_tokens in 1_usize..40,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
        panels: bool,
        seed: u64,
    ) {
        let block = BlockType::ALL[format];
        let is_plain = block.block_len() == 1;
        let cols = if is_plain { 33 } else { 256 };
        let matrix = Matrix::random(FORMS[usize::from(panels)], block, cols, 17, seed);
        let x = Random(!seed).units(n_tokens * cols);
        let places: Vec<u32> = picks.iter().map(|pick| pick.index(n_tokens) as u32).collect();
        let chosen = places.iter().flat_map(|&place| &x[place as usize * cols..][..cols]);
        let chosen: Vec<f32> = chosen.copied().collect();
        for table in tables() {
            let mut all = Activations::new(n_tokens, cols);
            all.load(&table, matrix.form, n_tokens, cols, &x);
            let mut selected = Activations::new(places.len(), cols);
            selected.select(&all, &places, is_plain);
            let expected = matrix.product(&table, places.len(), &chosen);
            prop_assert_eq!(bits(&matrix.product_of(&table, &selected)), bits(&expected));
        }
    }

    /// The whole product has the bits of every element computed alone, at any alignment.
    #[test]
    fn elements_do_not_depend_on_their_neighbours(
        format in 0..BlockType::ALL.len(),
        length in 1_usize..20,
        n_tokens in 1_usize..40,
        n_rows in 1_usize..20,
        panels: bool,
        seed: u64,
    ) {
        let block = BlockType::ALL[format];
        let cols = match block.block_len() {
            1 => length * 5 + seed as usize % 5,
            32 => 32 * length,
            _ => 256 * length.div_ceil(4),
        };
        let form = FORMS[usize::from(panels)];
        let matrix = Matrix::random(form, block, cols, n_rows, seed);
        let x = Random(!seed).units(n_tokens * cols);
        for table in tables() {
            let all = matrix.product(&table, n_tokens, &x);
            for (r, row) in matrix.rows.iter().enumerate() {
                let offset = (seed as usize + r) % 64;
                let single = Matrix::new(form, block, vec![row.clone()], offset, 0);
                for (t, x) in x.chunks(cols).enumerate() {
                    let alone = single.product(&table, 1, x)[0];
                    let together = all[t * (n_rows + 1) + r];
                    prop_assert_eq!(alone.to_bits(), together.to_bits());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "exceed")]
fn weights_that_are_too_short_are_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(1, 32);
    x.load(&table, Form::Rows, 1, 32, &[1.0; 32]);
    let w = WeightRows {
        block: BlockType::Q4_0,
        bytes: &[0; 35],
        stride: 18,
        n_rows: 2,
    };
    table.matmul(w, &x, &mut [0.0; 2], 2);
}

#[test]
#[should_panic(expected = "exceed")]
fn panels_that_are_too_short_are_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(1, 32);
    x.load(&table, Form::Panels, 1, 32, &[1.0; 32]);
    let w = WeightPanels {
        block: BlockType::Q4_0,
        bytes: &[0; 18 * 32 - 1],
        n_rows: 17,
    };
    table.panels(w, &x, &mut [0.0; 17], 17);
}

#[test]
#[should_panic(expected = "another form")]
fn activations_for_the_other_product_are_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(1, 32);
    x.load(&table, Form::Rows, 1, 32, &[1.0; 32]);
    let w = WeightPanels {
        block: BlockType::Q4_0,
        bytes: &[0; 18 * 16],
        n_rows: 16,
    };
    table.panels(w, &x, &mut [0.0; 16], 16);
}

#[test]
fn blocks_of_tokens_for_other_devices_are_those_of_the_definition() {
    for (table, n_tokens) in tables()
        .iter()
        .flat_map(|table| [1, 3, 21].map(|n| (table, n)))
    {
        let cols = 96;
        let values = Random(5).units(n_tokens * cols);
        let mut x = Activations::new(n_tokens, cols);
        x.load(table, Form::Panels, n_tokens, cols, &values);
        let expected = quantised(&values);
        let mut seen = vec![false; n_tokens * cols / 32];
        for b in x.token_blocks() {
            let at = b.token * cols + b.block * 32;
            assert!(!std::mem::replace(&mut seen[at / 32], true), "twice");
            let found = b.codes.map(|c| f64::from(b.scale) * f64::from(c));
            assert_eq!(found, expected[at..at + 32]);
            let counts = [0, 16].map(|h| {
                -b.codes[h..h + 16]
                    .iter()
                    .map(|c| i32::from(*c))
                    .sum::<i32>()
            });
            assert_eq!(b.half_counts, counts);
            assert_eq!(b.sum, b.scale * -(counts[0] + counts[1]) as f32);
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}

/// Quantised tokens that went over a board as words multiply as those that were loaded, in every quantised format.
#[test]
fn tokens_made_of_words_have_the_products_of_loaded_ones() {
    for (table, n_tokens) in tables()
        .iter()
        .flat_map(|table| [1, 5, 16, 37].map(|n| (table, n)))
    {
        for block in BlockType::ALL.into_iter().filter(|b| b.block_len() > 1) {
            let (n_rows, cols) = (17, 3 * block.block_len());
            let mut values = Random(7).units(n_tokens * cols);
            // A block of zeros, and one without a scale.
            values[..32].fill(0.0);
            values[cols - 1] = f32::INFINITY;
            let mut loaded = Activations::new(n_tokens, cols);
            loaded.load(table, Form::Panels, n_tokens, cols, &values);
            let mut words = vec![[0; BLOCK_WORDS]; n_tokens * cols / 32];
            for b in loaded.token_blocks() {
                words[b.token * (cols / 32) + b.block] = b.words();
            }
            let mut taken = Activations::new(n_tokens, cols);
            // Whatever was there before.
            taken.load(
                table,
                Form::Panels,
                n_tokens,
                cols,
                &Random(8).units(n_tokens * cols),
            );
            taken.take_blocks(table, (n_tokens, cols), |t, b| words[t * (cols / 32) + b]);
            let rows = (0..n_rows as u64).map(|r| random_row(block, cols, &mut Random(r)));
            let matrix = Matrix::new(Form::Panels, block, rows.collect(), 0, 0);
            let w = WeightPanels {
                block,
                bytes: &matrix.bytes,
                n_rows,
            };
            let [expected, found] = [&loaded, &taken].map(|x| {
                let mut out = vec![0.0; n_tokens * n_rows];
                table.panels(w, x, &mut out, n_rows);
                bits(&out)
            });
            assert_eq!(found, expected, "{block}, {n_tokens} tokens");
        }
    }
}
