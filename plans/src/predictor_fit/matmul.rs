//! A blocked matrix product in f32: operands are packed into panels that stay in the caches, and a
//! tile of the result stays in registers (Goto & van de Geijn 2008). Plain loops of constant
//! length, which the compiler turns into vector instructions of the build's target.

use std::ops::Range;

/// Rows of a tile of the result.
const TILE_ROWS: usize = 4;
/// Columns of a tile: with four rows, eight SSE or NEON registers.
const TILE_COLS: usize = 8;
/// Length of the inner products of one pass: a panel of B then takes 8 KiB of the first-level cache.
const DEPTH: usize = 256;
/// Rows of A packed at a time: 128 KiB of the second-level cache.
const BLOCK_ROWS: usize = 128;
/// Columns of B packed at a time: 1 MiB.
const BLOCK_COLS: usize = 1024;

/// An input matrix, in either orientation.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `data`: `[rows, cols]`, row-major.
    pub(super) fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a matrix fills its buffer");
        Self {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// The transpose: nothing is moved.
    pub(super) fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Some rows of a row-major matrix.
    pub(super) fn slice(self, rows: Range<usize>) -> Self {
        Self {
            data: &self.data[rows.start * self.row_stride..],
            rows: rows.len(),
            ..self
        }
    }

    fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row * self.row_stride + col * self.col_stride]
    }
}

/// The buffers of a product, reused by the next one.
#[derive(Default)]
pub(super) struct Product {
    a: Vec<f32>, // [BLOCK_ROWS / TILE_ROWS, depth, TILE_ROWS]
    b: Vec<f32>, // [BLOCK_COLS / TILE_COLS, depth, TILE_COLS]
}

impl Product {
    /// Writes `a · b` to `out`, `[a.rows, b.cols]`, row-major.
    pub(super) fn write(&mut self, a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
        assert_eq!(a.cols, b.rows, "the inner dimensions agree");
        assert_eq!(out.len(), a.rows * b.cols, "the result fills its buffer");
        out.fill(0.0);
        for cols in blocks(b.cols, BLOCK_COLS) {
            for depth in blocks(a.cols, DEPTH) {
                pack(b.t(), cols.clone(), depth.clone(), TILE_COLS, &mut self.b);
                for rows in blocks(a.rows, BLOCK_ROWS) {
                    pack(a, rows.clone(), depth.clone(), TILE_ROWS, &mut self.a);
                    self.add_block(depth.len(), rows, cols.clone(), b.cols, out);
                }
            }
        }
    }

    /// `a · b`, `[a.rows, b.cols]`.
    pub(super) fn of(&mut self, a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
        let mut out = vec![0.0; a.rows * b.cols];
        self.write(a, b, &mut out);
        out
    }

    /// Adds the product of the packed panels to the block `rows` x `cols` of `out`.
    fn add_block(
        &self,
        depth: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        stride: usize,
        out: &mut [f32],
    ) {
        let panels = self.b.chunks_exact(depth * TILE_COLS);
        for (col, b) in cols.clone().step_by(TILE_COLS).zip(panels) {
            let width = TILE_COLS.min(cols.end - col);
            let panels = self.a.chunks_exact(depth * TILE_ROWS);
            for (row, a) in rows.clone().step_by(TILE_ROWS).zip(panels) {
                let tile = tile(a, b);
                for (r, sums) in (row..rows.end).zip(&tile) {
                    let line = &mut out[r * stride + col..][..width];
                    for (o, s) in line.iter_mut().zip(sums) {
                        *o += s;
                    }
                }
            }
        }
    }
}

/// The product of a panel of A, `[depth, TILE_ROWS]`, and one of B, `[depth, TILE_COLS]`.
#[inline]
fn tile(a: &[f32], b: &[f32]) -> [[f32; TILE_COLS]; TILE_ROWS] {
    let mut sums = [[0.0f32; TILE_COLS]; TILE_ROWS];
    let (a, _) = a.as_chunks::<TILE_ROWS>();
    let (b, _) = b.as_chunks::<TILE_COLS>();
    for (a, b) in a.iter().zip(b) {
        for (line, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in line.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// Lays `rows` x `depth` of `m` out as `[rows / tile, depth, tile]`; missing rows become 0.
fn pack(m: Matrix<'_>, rows: Range<usize>, depth: Range<usize>, tile: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(rows.len().div_ceil(tile) * depth.len() * tile, 0.0);
    let panels = out.chunks_exact_mut(depth.len() * tile);
    for (first, panel) in rows.clone().step_by(tile).zip(panels) {
        let width = tile.min(rows.end - first);
        if m.col_stride == 1 {
            for i in 0..width {
                let row = &m.data[(first + i) * m.row_stride..][depth.clone()];
                for (line, &value) in panel.chunks_exact_mut(tile).zip(row) {
                    line[i] = value;
                }
            }
        } else {
            for (line, k) in panel.chunks_exact_mut(tile).zip(depth.clone()) {
                for (i, slot) in line[..width].iter_mut().enumerate() {
                    *slot = m.at(first + i, k);
                }
            }
        }
    }
}

/// `0..n` cut into ranges of `size`, the last one shorter.
pub(super) fn blocks(n: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(size).map(move |i| i..(i + size).min(n))
}

/// Inner product, in eight partial sums so that it vectorises.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Small integers, so that every sum is exact: any order of additions agrees.
        #[test]
        fn agrees_with_the_definition(
            (m, k, n) in (1usize..150, 1usize..300, 1usize..40),
            turned in any::<[bool; 2]>(),
        ) {
            let value = |i: usize| (i * 7919 % 17) as f32 - 8.0;
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..k * n).map(|i| value(i + 5)).collect();
            let view = |data, rows, cols, turned| match turned {
                true => Matrix::new(data, cols, rows).t(),
                false => Matrix::new(data, rows, cols),
            };
            let (a, b) = (view(&a, m, k, turned[0]), view(&b, k, n, turned[1]));
            let out = Product::default().of(a, b);
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| a.at(i, l) * b.at(l, j)).sum();
                    prop_assert_eq!(out[i * n + j], sum);
                }
            }
        }
    }

    #[test]
    fn more_columns_than_a_block() {
        let (m, k, n) = (3, 2, BLOCK_COLS + 9);
        let a: Vec<f32> = (0..m * k).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i % 31) as f32).collect();
        let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        let out = Product::default().of(a, b);
        for (i, &o) in out.iter().enumerate() {
            let (row, col) = (i / n, i % n);
            let sum: f32 = (0..k).map(|l| a.at(row, l) * b.at(l, col)).sum();
            assert_eq!(o, sum);
        }
    }
}
