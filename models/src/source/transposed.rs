//! Matrices, one for each head, that are stored transposed, in any format.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;

use crate::block::{BlockType, dequantize, quantize};
use crate::tensor::TensorMeta;

/// Where they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transposed {
    pub(super) file: usize,
    /// First byte of the first head's.
    pub(super) start: u64,
    /// Bytes from one head's to the next.
    pub(super) stride: usize,
    /// Format of the stored rows.
    pub(super) block: BlockType,
    /// Elements of a stored row: how many rows a head has.
    pub(super) cols: usize,
}

impl Transposed {
    /// The format in which the matrices are read: blocks along the other dimension cannot be kept, and 11 bits are far
    /// more than they have.
    pub(super) fn written_as(&self) -> BlockType {
        match self.block.block_len() {
            1 => self.block,
            _ => BlockType::F16,
        }
    }

    /// Bytes of the stored rows of a head, whose matrix has rows of `width` elements.
    fn head_bytes(&self, width: usize) -> usize {
        self.cols / self.block.block_len() * self.block.block_bytes() * width
    }

    /// Where the stored rows of each head begin in the file, and their bytes.
    pub(super) fn of_heads(&self, meta: &TensorMeta) -> impl Iterator<Item = (u64, usize)> {
        let bytes = self.head_bytes(meta.cols);
        let first = |h| self.start + (h * self.stride) as u64;
        (0..meta.rows / self.cols).map(move |h| (first(h), bytes))
    }

    /// Reads `out.len()` bytes from byte `offset` of all heads' matrices, whose rows have `width` elements.
    pub(super) fn read(
        &self,
        file: &File,
        width: usize,
        offset: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let element = self.written_as().block_bytes();
        let head_bytes = self.cols * width * element;
        let mut bytes = vec![0; self.head_bytes(width)];
        let mut values = vec![0.0; width * self.cols]; // [width, cols]
        let mut head = vec![0; head_bytes];
        let mut column = vec![0.0; width];
        let (mut at, mut out) = (offset, out);
        while !out.is_empty() {
            let (h, within) = (at / head_bytes, at % head_bytes);
            file.read_exact_at(&mut bytes, self.start + (h * self.stride) as u64)?;
            dequantize(self.block, &bytes, &mut values);
            for (c, row) in head.chunks_exact_mut(width * element).enumerate() {
                for (to, from) in column.iter_mut().zip(values.chunks_exact(self.cols)) {
                    *to = from[c];
                }
                quantize(self.written_as(), &column, row);
            }
            let n = out.len().min(head_bytes - within);
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&head[within..within + n]);
            (at, out) = (at + n, later);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads of three stored rows of 32 elements, each followed by a row of something else.
    fn stored(block: BlockType) -> (File, Transposed, Vec<f32>) {
        let values: Vec<f32> = (0..8 * 32).map(|i| ((i * 37) % 64) as f32 - 31.0).collect();
        let mut bytes = vec![7; 5 + block.row_bytes(values.len()).expect("whole blocks")];
        quantize(block, &values, &mut bytes[5..]);
        let mut kept = vec![0.0; values.len()];
        dequantize(block, &bytes[5..], &mut kept);
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(&bytes, 0).expect("written");
        let place = Transposed {
            file: 0,
            start: 5,
            stride: (bytes.len() - 5) / 2,
            block,
            cols: 32,
        };
        (file, place, kept)
    }

    #[test]
    fn heads_are_transposed_wherever_a_read_begins() {
        for block in [BlockType::F32, BlockType::BF16, BlockType::Q8_0] {
            let (file, place, kept) = stored(block);
            let format = place.written_as();
            let rows = (0..2usize).flat_map(|head| (0..32).map(move |c| (head, c)));
            let of_row = |(head, c)| (0..3).map(move |r| (head * 4 + r) * 32 + c);
            let expected: Vec<f32> = rows.flat_map(of_row).map(|i| kept[i]).collect();
            let mut whole = vec![0; expected.len() * format.block_bytes()];
            quantize(format, &expected, &mut whole);
            let size = format.block_bytes();
            for (first, n) in [(0, 192), (0, 3), (93, 6), (100, 92), (189, 3)] {
                let mut out = vec![0; n * size];
                let read = place.read(&file, 3, first * size, &mut out);
                read.expect("read");
                assert_eq!(out, whole[first * size..][..n * size], "{block} {first}");
            }
        }
    }
}
