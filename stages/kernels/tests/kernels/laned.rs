//! Laned rows: products and sums, against their definitions in plain loops and against f64.

use forebay_numbers::block::BlockType;
use forebay_numbers::lanes::{append_laned, groups};
use half::f16;

use super::definition::{constant_row, quantised, random_row, weights};
use super::{Random, bits, on_all, tables};
use forebay_kernels::{Activations, Form, Gather, KernelTable, WeightRows};

const FORMATS: [BlockType; 3] = [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q8_0];
const BLOCKS: [usize; 9] = [1, 2, 3, 15, 16, 17, 28, 32, 49];

/// The same row, laned, at an odd address.
fn laned(block: BlockType, row: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff];
    append_laned(block, row, &mut out);
    out
}

fn slices(rows: &[Vec<u8>]) -> Vec<&[u8]> {
    rows.iter().map(|row| &row[1..]).collect()
}

/// Codes of a block as ggml has them, its scale and its minimum; the code of 0 is taken off.
fn parts(block: BlockType, b: &[u8]) -> ([i32; 32], f32, f32) {
    let half = |o: usize| f16::from_le_bytes([b[o], b[o + 1]]).to_f32();
    let nibble = |o: usize, e: usize| i32::from(b[o + e % 16] >> (4 * (e / 16)) & 0x0f);
    match block {
        BlockType::Q4_0 => (std::array::from_fn(|e| nibble(2, e) - 8), half(0), 0.0),
        BlockType::Q4_1 => (std::array::from_fn(|e| nibble(4, e)), half(0), half(2)),
        _ => (
            std::array::from_fn(|e| i32::from(b[2 + e] as i8)),
            half(0),
            0.0,
        ),
    }
}

/// A block of 32 activations as integers, their unit, and the unit times their sum.
fn token_block(x: &[f32]) -> ([i32; 32], f32, f32) {
    let max = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let codes: [i32; 32] = std::array::from_fn(|e| match max {
        0.0 => 0,
        max => (x[e] * (127.0 / max)).round_ties_even() as i32,
    });
    let scale = max / 127.0;
    (codes, scale, scale * codes.iter().sum::<i32>() as f32)
}

/// The product of a row and a token, operation by operation as the kernels' documentation has it.
fn product(block: BlockType, row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (i, b) in row.chunks(block.block_bytes()).enumerate() {
        let ((codes, scale, minimum), (x, x_scale, x_sum)) =
            (parts(block, b), token_block(&x[32 * i..][..32]));
        let dot: i32 = codes.iter().zip(x).map(|(c, x)| c * x).sum();
        let lane = &mut lanes[i % 16];
        *lane = (dot as f32).mul_add(scale * x_scale, *lane);
        if block == BlockType::Q4_1 {
            *lane = minimum.mul_add(x_sum, *lane);
        }
    }
    for apart in [8, 4, 2, 1] {
        for i in 0..apart {
            lanes[i] += lanes[i + apart];
        }
    }
    lanes[0]
}

fn products(
    table: &KernelTable,
    block: BlockType,
    rows: &[&[u8]],
    (n_tokens, cols): (usize, usize),
    x: &[f32],
) -> Vec<f32> {
    let mut activations = Activations::new(n_tokens, cols);
    activations.load(table, Form::Lanes, n_tokens, cols, x);
    let mut out = vec![f32::NAN; n_tokens * rows.len()];
    // What is asked for besides changes nothing, whatever it is.
    let gather = Gather::new(rows).then(&[&[], &[0; 3]]);
    table.dot_gathered(block, gather, &activations, &mut out);
    // Tokens that are taken over from others are as if they had been loaded.
    let places: Vec<u32> = (0..n_tokens as u32).rev().collect();
    let mut selected = Activations::new(n_tokens, cols);
    selected.select(&activations, &places, false);
    let mut reversed = vec![f32::NAN; out.len()];
    table.dot_gathered(block, Gather::new(rows), &selected, &mut reversed);
    let back = reversed.chunks_exact(rows.len()).rev();
    assert_eq!(
        bits(&out),
        bits(&back.flatten().copied().collect::<Vec<_>>())
    );
    for (t, together) in out.chunks_exact(rows.len()).enumerate() {
        let mut alone = vec![f32::NAN; rows.len()];
        table.dot_gathered_of(block, rows, &activations, t, &mut alone);
        assert_eq!(bits(&alone), bits(together), "token {t} of {n_tokens}");
    }
    let matrix = rows.concat();
    let w = WeightRows {
        block,
        bytes: &matrix,
        stride: rows[0].len(),
        n_rows: rows.len(),
    };
    let mut strided = vec![f32::NAN; out.len()];
    table.matmul(w, &activations, &mut strided, rows.len());
    assert_eq!(
        bits(&out),
        bits(&strided),
        "gathered and at equal distances"
    );
    out
}

#[test]
fn products_have_the_bits_of_their_definition() {
    for (b, block) in FORMATS.into_iter().enumerate() {
        for (i, n) in BLOCKS.into_iter().enumerate() {
            let (cols, k, n_tokens) = (32 * n, [1, 2, 5][(b + i) % 3], [1, 1, 4, 7][i % 4]);
            let mut random = Random((100 * b + i) as u64);
            let plain: Vec<_> = (0..k)
                .map(|_| random_row(block, cols, &mut random))
                .collect();
            let rows: Vec<_> = plain.iter().map(|row| laned(block, row)).collect();
            let mut x = random.units(n_tokens * cols);
            x[..32].fill(0.0);
            let out = on_all(|t| products(t, block, &slices(&rows), (n_tokens, cols), &x));
            for (t, x) in x.chunks(cols).enumerate() {
                for (r, row) in plain.iter().enumerate() {
                    let (got, expected) = (out[t * k + r], product(block, row, x));
                    assert_eq!(got.to_bits(), expected.to_bits(), "{block} {n} {t} {r}");
                    let exact = quantised(x).into_iter().zip(weights(block, row));
                    let (sum, size) = exact.fold((0.0, 0.0), |(sum, size), (x, w)| {
                        (sum + x * f64::from(w), size + (x * f64::from(w)).abs())
                    });
                    let limit = 64.0 * f64::from(f32::EPSILON) * (size + 1.0) * 16.0;
                    assert!((f64::from(got) - sum).abs() <= limit, "{got} for {sum}");
                }
            }
        }
    }
}

/// Codes and activations at their ends: sums of products are the largest there are.
#[test]
fn the_largest_products_do_not_overflow() {
    for block in FORMATS {
        for byte in [0x00, 0xff, 0x80, 0x7f] {
            let row = constant_row(block, 1024, byte);
            let rows = [laned(block, &row)];
            let x: Vec<f32> = (0..1024)
                .map(|i| if i % 3 == 0 { 1.0 } else { -1.0 })
                .collect();
            let out = on_all(|t| products(t, block, &slices(&rows), (1, 1024), &x));
            assert_eq!(out[0].to_bits(), product(block, &row, &x).to_bits());
            let h = [3.0; 9];
            let nine = vec![rows[0].clone(); 9];
            let sums = on_all(|t| {
                let mut acc = vec![0.0; 1024];
                let rows = slices(&nine);
                t.axpy_laned(
                    block,
                    Gather::new(&rows).then(&rows[..8]),
                    &h,
                    &mut acc,
                    1024,
                );
                acc
            });
            let numbers = weights(block, &row);
            for (i, sum) in sums.into_iter().enumerate() {
                // All blocks are alike.
                let expected = 27.0 * numbers[i % 512 / 16];
                let limit = expected.abs().max(1.0) * 1e-3;
                assert!((sum - expected).abs() <= limit, "{block} {byte} {i}");
            }
        }
    }
}

/// `acc` and rows times `h`, operation by operation as [`KernelTable::axpy_laned`] has it.
fn sums(block: BlockType, rows: &[Vec<u8>], h: &[f32], acc: &mut [f32]) {
    let wanted: Vec<_> = rows.iter().zip(h).filter(|(_, h)| **h != 0.0).collect();
    for eight in wanted.chunks(8) {
        for (first, k) in groups(acc.len()) {
            for lane in 0..k {
                let at = (first / 32 + lane) * block.block_bytes();
                let parts: Vec<_> = eight
                    .iter()
                    .map(|(row, _)| parts(block, &row[at..]))
                    .collect();
                let factors: Vec<f32> = parts
                    .iter()
                    .zip(eight)
                    .map(|(p, (_, h))| p.1 * **h)
                    .collect();
                let largest = factors.iter().fold(0.0_f32, |m, f| m.max(f.abs()));
                let inverse = if largest > 1e-33 {
                    16383.0 / largest
                } else {
                    0.0
                };
                let whole = factors
                    .iter()
                    .map(|f| (f * inverse).round_ties_even() as i32);
                let whole: Vec<i32> = whole.collect();
                let minimum = parts.iter().zip(eight);
                let minimum = minimum.fold(0.0, |m, (p, (_, h))| h.mul_add(p.2, m));
                for e in 0..32 {
                    let sum: i32 = parts.iter().zip(&whole).map(|(p, q)| p.0[e] * q).sum();
                    let acc = &mut acc[first + k * e + lane];
                    if block == BlockType::Q4_1 {
                        *acc += minimum;
                    }
                    *acc = (sum as f32).mul_add(largest * (1.0 / 16383.0), *acc);
                }
            }
        }
    }
}

#[test]
fn sums_have_the_bits_of_their_definition_and_are_near_the_exact_ones() {
    for (b, block) in FORMATS.into_iter().enumerate() {
        for (i, n) in BLOCKS.into_iter().enumerate() {
            let (cols, k, n_tokens) = (32 * n, [1, 2, 7, 8, 9, 27][(b + i) % 6], [1, 3][i % 2]);
            let mut random = Random((1000 + 100 * b + i) as u64);
            let plain: Vec<_> = (0..k)
                .map(|_| random_row(block, cols, &mut random))
                .collect();
            let rows: Vec<_> = plain.iter().map(|row| laned(block, row)).collect();
            let mut h = random.units(n_tokens * k);
            for (j, h) in h.iter_mut().enumerate() {
                match j % 5 {
                    3 => *h = 0.0,
                    // The products with scales are too small for their inverse.
                    4 if j % 2 == 0 => *h *= 1e-36,
                    _ => {}
                }
            }
            let before = random.units(n_tokens * cols);
            let out = on_all(|table| {
                let mut acc = before.clone();
                table.axpy_laned(block, Gather::new(&slices(&rows)), &h, &mut acc, cols);
                acc
            });
            let mut expected = before.clone();
            for (acc, h) in expected.chunks_mut(cols).zip(h.chunks(k)) {
                sums(block, &plain, h, acc);
            }
            assert_eq!(bits(&out), bits(&expected), "{block} {n} blocks, {k} rows");
            let numbers: Vec<_> = plain.iter().map(|row| weights(block, row)).collect();
            for (t, (acc, before)) in out.chunks(cols).zip(before.chunks(cols)).enumerate() {
                for (first, blocks) in groups(cols) {
                    for i in 0..blocks * 32 {
                        let column = first + i % blocks * 32 + i / blocks;
                        let terms =
                            (0..k).map(|j| f64::from(h[t * k + j]) * f64::from(numbers[j][column]));
                        let exact: f64 = f64::from(before[first + i]) + terms.sum::<f64>();
                        // Factors are below 1 here, codes at most 128: half a unit of 1/16383 each.
                        let limit = k as f64 * 128.0 / 16383.0;
                        assert!((f64::from(acc[first + i]) - exact).abs() <= limit);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_comes_through() {
    for block in FORMATS {
        for h in [f32::NAN, f32::INFINITY] {
            let row = laned(block, &constant_row(block, 576, 0x35));
            for table in tables() {
                let mut acc = vec![0.0; 576];
                table.axpy_laned(
                    block,
                    Gather::new(&[&row[1..]; 2]),
                    &[1.0, h],
                    &mut acc,
                    576,
                );
                assert!(
                    acc.iter().all(|v| !v.is_finite()),
                    "{block} {}",
                    table.isa()
                );
                let mut x = Activations::new(1, 576);
                let mut values = vec![1.0; 576];
                values[40] = h;
                x.load(&table, Form::Lanes, 1, 576, &values);
                let mut out = [0.0];
                table.dot_gathered(block, Gather::new(&[&row[1..]]), &x, &mut out);
                assert!(out[0].is_nan(), "{block} {}", table.isa());
            }
        }
    }
}

#[test]
#[should_panic(expected = "activations in another form than rows of Q4_K")]
fn formats_without_laned_rows_are_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(1, 256);
    x.load(&table, Form::Lanes, 1, 256, &[1.0; 256]);
    table.dot_gathered(BlockType::Q4_K, Gather::new(&[&[0; 144]]), &x, &mut [0.0]);
}
