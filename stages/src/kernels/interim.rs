//! Interim.
use super::*;
use forebay_models::block::BlockType;
#[allow(missing_docs)]
impl KernelTable {
    pub fn dot_gathered(&self, block: BlockType, rows: &[&[u8]], x: &Activations, out: &mut [f32]) {
        let k = rows.len();
        for (i, row) in rows.iter().enumerate() {
            let w = WeightRows {
                block,
                bytes: row,
                stride: row.len(),
                n_rows: 1,
            };
            self.matmul(w, x, &mut out[i..], k);
        }
    }
    pub fn axpy_gathered(
        &self,
        block: BlockType,
        rows: &[&[u8]],
        h: &[f32],
        acc: &mut [f32],
        cols: usize,
    ) {
        let k = rows.len();
        let t = h.len() / k;
        for (i, row) in rows.iter().enumerate() {
            let mut col = [0.0; 512];
            for t in 0..t {
                col[t] = h[t * k + i];
            }
            self.axpy(block, row, &col[..t], acc, cols);
        }
    }
}
