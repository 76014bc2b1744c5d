//! Products by tiles on a unit in plain Rust, as no emulator has one.

use std::ops::Range;

use forebay_numbers::block::BlockType;
use forebay_numbers::panel::{PANEL_ROWS, pack_panels};

use super::random::Random;
use crate::activations::{Activations, Form};
use crate::dispatch::Products;
use crate::formats::for_format;
use crate::panels::PanelMatmul;
use crate::probe::Int8Peak;
use crate::scalar::Scalar;
use crate::simd::Simd;
use crate::tiles::{Codes, Tile, TileUnit, Tiled, Tokens, WIDE};
use crate::{Isa, KernelTable, WeightPanels};

/// A unit as [`TileUnit`] describes it.
struct Plain;

fn product(x: &Tokens, codes: &Codes, elements: Range<usize>) -> Tile {
    let mut out = [[0; PANEL_ROWS]; WIDE];
    for (x, out) in x.iter().zip(&mut out) {
        for (r, out) in out.iter_mut().enumerate() {
            let product = |k: usize| i32::from(x[k]) * i32::from(codes[k / 4][4 * r + k % 4]);
            *out = elements.clone().map(product).sum();
        }
    }
    out
}

impl TileUnit for Plain {
    fn multiply(&self, x: &Tokens, codes: &Codes, out: &mut Tile) {
        *out = product(x, codes, 0..32);
    }

    fn multiply_halves(&self, x: &Tokens, codes: &Codes, [low, high]: [&mut Tile; 2]) {
        *low = product(x, codes, 0..16);
        *high = product(x, codes, 16..32);
    }
}

impl Products for Plain {
    fn widest(&self) -> usize {
        16
    }

    fn panels(&self, job: PanelMatmul<'_, ()>) -> bool {
        for_format!(job.w.block,
            quantised F => Scalar.run(Tiled(&mut job.of::<F>(), Plain)),
            float _F => Scalar.panels(job))
    }

    fn int8_peak(&self, job: Int8Peak) -> u64 {
        Scalar.int8_peak(job)
    }
}

/// A row of any codes; scales, at the ends of a block, are finite.
fn row(block: BlockType, cols: usize, random: &mut Random) -> Vec<u8> {
    let bytes = block.block_bytes();
    let mut row: Vec<u8> = (0..cols / block.block_len() * bytes)
        .map(|_| random.next() as u8)
        .collect();
    for block in row.chunks_mut(bytes) {
        for at in [1, 3, bytes - 3, bytes - 1] {
            block[at] &= 0x3f;
        }
    }
    row
}

/// All formats, over one or several chunks of columns and rounds of tokens.
#[test]
fn tiles_give_the_bits_of_single_tokens() {
    let tiled = KernelTable::of(Isa::Scalar, &Scalar, &Plain);
    let single = KernelTable::of(Isa::Scalar, &Scalar, &Scalar);
    let mut random = Random(23);
    for (i, block) in BlockType::ALL.into_iter().enumerate() {
        if block.block_len() == 1 {
            continue;
        }
        for (cols, n_tokens, n_rows) in [(256, 32, 3 + i), (1280, 16, 17), (512, 288, 2)] {
            let rows: Vec<u8> = (0..n_rows)
                .flat_map(|_| row(block, cols, &mut random))
                .collect();
            let mut bytes = Vec::new();
            pack_panels(block, &rows, rows.len() / n_rows, &mut bytes);
            let w = WeightPanels {
                block,
                bytes: &bytes,
                n_rows,
            };
            let x = random.units(n_tokens * cols);
            let product = |table: &KernelTable| {
                let mut activations = Activations::new(n_tokens, cols);
                activations.load(table, Form::Panels, n_tokens, cols, &x);
                let mut out = vec![0.0; n_tokens * n_rows];
                table.panels(w, &activations, &mut out, n_rows);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(
                product(&tiled) == product(&single),
                "{block}, {n_tokens} x {cols} x {n_rows}"
            );
        }
    }
}
