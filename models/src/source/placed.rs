//! Where the bytes of one tensor are in the files of a model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Result;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::transposed::Transposed;
use crate::tensor::{Stored, TensorMeta};

/// The open files of a model.
pub(super) type Files = [(PathBuf, File)];

/// Consecutive bytes of one of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Number of the file.
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

/// Consecutive bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) file: usize,
    pub(super) start: u64,
    pub(super) bytes: usize,
}

/// A tensor of a file, in any role.
pub(crate) struct Found {
    pub(crate) meta: TensorMeta,
    /// Its file's number, in the order of the inventory.
    pub(crate) file: usize,
    /// Its first byte; all its bytes are inside the file.
    pub(crate) start: u64,
}

/// The bytes of a tensor.
#[derive(Debug)]
pub(super) enum Place {
    /// Piece after piece, by number.
    Pieces(BTreeMap<usize, Piece>),
    /// Its rows are columns of a matrix of plain numbers, from `first` on; that has `width` columns and is at `start`.
    Columns {
        file: usize,
        start: u64,
        first: usize,
        width: usize,
    },
    /// Head by head, its rows are columns.
    Transposed(Transposed),
}

/// A tensor and where it is.
pub(super) struct Placed {
    pub(super) meta: TensorMeta,
    pub(super) place: Place,
    /// How its elements are stored.
    pub(super) stored: Stored,
}

impl Place {
    /// One piece.
    pub(super) fn whole(piece: Piece) -> Self {
        Self::Pieces(BTreeMap::from([(0, piece)]))
    }

    /// The file with its first bytes.
    pub(super) fn file(&self) -> usize {
        match self {
            Self::Pieces(pieces) => pieces.values().next().map_or(0, |p| p.file),
            Self::Columns { file, .. } => *file,
            Self::Transposed(transposed) => transposed.file,
        }
    }

    /// The bytes of files that it takes, of a tensor of `meta`; those of columns include what is between them.
    pub(super) fn extents(&self, meta: &TensorMeta) -> Vec<Extent> {
        let extent = |file, start, bytes| Extent {
            file,
            range: start..start + bytes as u64,
        };
        match self {
            Self::Pieces(pieces) => {
                let pieces = pieces.values();
                pieces.map(|p| extent(p.file, p.start, p.bytes)).collect()
            }
            &Self::Columns {
                file, start, width, ..
            } => {
                let bytes = meta.cols * width * meta.block.block_bytes();
                vec![extent(file, start, bytes)]
            }
            Self::Transposed(transposed) => {
                let of_head = |(start, bytes)| extent(transposed.file, start, bytes);
                transposed.of_heads(meta).map(of_head).collect()
            }
        }
    }

    /// The lowest number of a piece that is not there although a higher one is.
    pub(super) fn gap(&self) -> Option<usize> {
        match self {
            Self::Pieces(pieces) => {
                let mut numbers = pieces.keys().enumerate();
                numbers
                    .find(|(place, number)| place != *number)
                    .map(|(n, _)| n)
            }
            Self::Columns { .. } | Self::Transposed(_) => None,
        }
    }
}

impl Placed {
    /// Reads `out.len()` bytes from byte `offset`: whole elements within the tensor.
    pub(super) fn read(&self, files: &Files, offset: usize, out: &mut [u8]) -> Result<()> {
        match &self.place {
            Place::Pieces(pieces) => read_pieces(files, pieces, offset, out),
            Place::Transposed(transposed) => {
                transposed.read(&files[transposed.file].1, self.meta.cols, offset, out)
            }
            &Place::Columns {
                file,
                start,
                first,
                width,
            } => {
                let size = self.meta.block.block_bytes();
                let at = |row: usize, column: usize| {
                    start + ((row * width + first + column) * size) as u64
                };
                let read = |row, column, strip: &mut [u8]| {
                    files[file].1.read_exact_at(strip, at(row, column))
                };
                read_columns(self.meta.cols, size, read, offset, out)
            }
        }
    }
}

fn read_pieces(
    files: &Files,
    pieces: &BTreeMap<usize, Piece>,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    // What of the tensor comes before a piece, and what is still to be read.
    let (mut before, mut at, mut out) = (0, offset, out);
    for piece in pieces.values() {
        let end = before + piece.bytes;
        if at < end {
            let (now, later) = out.split_at_mut(out.len().min(end - at));
            let file = &files[piece.file].1;
            file.read_exact_at(now, piece.start + (at - before) as u64)?;
            at += now.len();
            out = later;
        }
        if out.is_empty() {
            break;
        }
        before = end;
    }
    Ok(())
}

/// Reads from byte `offset` of a matrix with rows of `cols` elements of `size` bytes that is stored transposed: `read`
/// fills a strip of a stored row from a column on.
fn read_columns(
    cols: usize,
    size: usize,
    read: impl Fn(usize, usize, &mut [u8]) -> Result<()>,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    let row_bytes = cols * size;
    let (first, end) = (offset / row_bytes, (offset + out.len()).div_ceil(row_bytes));
    let mut strip = vec![0; (end - first) * size];
    for stored in 0..cols {
        read(stored, first, &mut strip)?;
        for (row, element) in (first..end).zip(strip.chunks_exact(size)) {
            let place = (row * row_bytes + stored * size).checked_sub(offset);
            if let Some(to) = place.and_then(|at| out.get_mut(at..at + size)) {
                to.copy_from_slice(element);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockType;

    /// A file with these bytes.
    fn file(bytes: &[u8]) -> (PathBuf, File) {
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(bytes, 0).expect("written");
        (PathBuf::new(), file)
    }

    fn placed(rows: usize, cols: usize, place: Place) -> Placed {
        let meta = TensorMeta {
            name: "t".into(),
            block: BlockType::F16,
            rows,
            cols,
        };
        Placed {
            meta,
            place,
            stored: Stored::AsIs,
        }
    }

    /// Every range of whole elements.
    fn check(placed: &Placed, files: &Files, expected: &[u8]) {
        for start in (0..expected.len()).step_by(2) {
            for end in (start..=expected.len()).step_by(2) {
                let mut out = vec![0xff; end - start];
                placed.read(files, start, &mut out).expect("read");
                assert_eq!(out, expected[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn pieces_follow_each_other() {
        let files = [file(&[0, 1, 2, 3, 4, 5, 6, 7]), file(&[8, 9, 10, 11])];
        let piece = |file, start, bytes| Piece { file, start, bytes };
        let pieces = [piece(0, 4, 4), piece(1, 2, 2), piece(0, 0, 2)];
        let place = Place::Pieces(pieces.into_iter().enumerate().collect());
        assert_eq!(place.gap(), None);
        check(&placed(2, 2, place), &files, &[4, 5, 6, 7, 10, 11, 0, 1]);
        let some = [(0, piece(0, 0, 2)), (2, piece(0, 2, 2))];
        assert_eq!(Place::Pieces(some.into()).gap(), Some(1));
    }

    #[test]
    fn columns_become_rows() {
        // Two rows of four elements at byte 2; columns 1 to 3.
        let stored: Vec<u8> = (0..18).collect();
        let place = Place::Columns {
            file: 0,
            start: 2,
            first: 1,
            width: 4,
        };
        let expected = [4, 5, 12, 13, 6, 7, 14, 15, 8, 9, 16, 17];
        check(&placed(3, 2, place), &[file(&stored)], &expected);
    }
}
