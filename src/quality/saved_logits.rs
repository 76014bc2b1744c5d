//! Files of logits, in the format of llama.cpp's `--kl-divergence-base`, so that either program can compare itself
//! with the other.
//!
//! | bytes | contents, little-endian |
//! |---|---|
//! | 8 | `_logits_` |
//! | 4, 4, 4 | i32: tokens of a chunk, tokens of the vocabulary, chunks |
//! | 4 each | i32: the tokens of all chunks, before the first of each is replaced by BOS |
//! | rows | of each chunk those at positions `ctx / 2` to `ctx - 2`, each scoring the token after its own |
//!
//! A row is the f32 `scale` and `least`, then a u16 per token of the vocabulary and one more if their number is odd:
//! the log-probability `scale * code + least`. What is more than 16 below the largest counts as 16 below it.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use forebay_models::error::ModelError;
use forebay_models::files::open_regular;

use crate::engine::best_and_log_sum;
use crate::error::Error;

const MAGIC: [u8; 8] = *b"_logits_";
const HEADER_BYTES: u64 = 20;
/// Logits farther below the largest one than this are not told apart.
const DEPTH: f32 = 16.0;
/// Of a row, before its codes: scale and least, f32.
const ROW_HEADER_BYTES: usize = 8;
/// More than any of the fields, so that products of them cannot overflow.
const MOST: usize = 1 << 24;

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tokens of a chunk, at least 3.
    pub ctx: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of all chunks, `[chunks * ctx]`.
    pub tokens: Vec<u32>,
}

impl Header {
    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.tokens.len() / self.ctx
    }

    /// Rows of a chunk.
    pub fn rows(&self) -> usize {
        self.ctx - 1 - self.ctx / 2
    }

    fn row_bytes(&self) -> usize {
        ROW_HEADER_BYTES + 2 * self.vocabulary.next_multiple_of(2)
    }
}

/// Writes rows one after the other.
#[derive(Debug)]
pub struct LogitsWriter<W> {
    out: W,
    row: Vec<u8>,
    vocabulary: usize,
}

impl<W: Write> LogitsWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// What `out` says; numbers that the format cannot hold.
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Self> {
        let number = |n: usize| {
            let n = i32::try_from(n).map_err(|_| std::io::Error::other("a number is too large"))?;
            Ok::<_, std::io::Error>(n.to_le_bytes())
        };
        out.write_all(&MAGIC)?;
        for n in [header.ctx, header.vocabulary, header.chunks()] {
            out.write_all(&number(n)?)?;
        }
        for &token in &header.tokens {
            out.write_all(&number(token as usize)?)?;
        }
        Ok(Self {
            out,
            row: vec![0; header.row_bytes()],
            vocabulary: header.vocabulary,
        })
    }

    /// Writes the next row, `[vocabulary]`.
    ///
    /// # Errors
    /// What the output says.
    ///
    /// # Panics
    /// The row has another length.
    pub fn row(&mut self, logits: &[f32]) -> std::io::Result<()> {
        assert_eq!(logits.len(), self.vocabulary, "a row of another vocabulary");
        let (best, log_sum) = best_and_log_sum(logits);
        let max = logits[best];
        let min = logits.iter().copied().fold(max, f32::min).max(max - DEPTH);
        let scale = (max - min) / f32::from(u16::MAX);
        let least = (f64::from(min) - log_sum) as f32;
        self.row[..4].copy_from_slice(&scale.to_le_bytes());
        self.row[4..8].copy_from_slice(&least.to_le_bytes());
        let codes = self.row[ROW_HEADER_BYTES..].as_chunks_mut().0;
        for (code, &logit) in codes.iter_mut().zip(logits) {
            // A scale of 0 divides 0 by 0, which is code 0.
            *code = (((logit - min) / scale).round_ties_even() as u16).to_le_bytes();
        }
        self.out.write_all(&self.row)
    }

    /// Hands everything to the output.
    ///
    /// # Errors
    /// What the output says.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Reads a file row by row.
#[derive(Debug)]
pub struct LogitsReader {
    file: BufReader<File>,
    path: PathBuf,
    header: Header,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl LogitsReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// A file that cannot be read, is none of these, or is not as long as its header says.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |e| ModelError::io(path, "read the saved logits", e);
        let file = open_regular(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut file = BufReader::new(file);
        let wrong = |field: &str, problem: String| {
            let remedy = "save the logits again with `forebay eval kl --save`";
            Error::from(ModelError::Format {
                path: path.into(),
                field: field.into(),
                problem,
                remedy: remedy.into(),
            })
        };
        let mut magic = [0; 8];
        let is_ours = len >= HEADER_BYTES && file.read_exact(&mut magic).is_ok() && magic == MAGIC;
        if !is_ours {
            return Err(wrong("(whole file)", "not a file of saved logits".into()));
        }
        let mut number = |field: &str, least: usize| {
            let mut bytes = [0; 4];
            file.read_exact(&mut bytes).map_err(io)?;
            let n = i32::from_le_bytes(bytes);
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            match (least..=MOST).contains(&n) {
                true => Ok(n),
                false => Err(wrong(field, format!("{n} is out of range"))),
            }
        };
        let (ctx, vocabulary) = (number("ctx", 3)?, number("vocabulary", 1)?);
        let chunks = number("chunks", 1)?;
        let mut header = Header {
            ctx,
            vocabulary,
            tokens: Vec::new(),
        };
        let n_tokens = ctx as u64 * chunks as u64;
        let rows = chunks as u128 * header.rows() as u128 * header.row_bytes() as u128;
        let expected = u128::from(HEADER_BYTES + 4 * n_tokens) + rows;
        if u128::from(len) != expected {
            let problem = format!("{len} bytes where the header calls for {expected}");
            return Err(wrong("(whole file)", problem));
        }
        for _ in 0..n_tokens {
            header.tokens.push(number("tokens", 0)? as u32);
        }
        Ok(Self {
            bytes: vec![0; header.row_bytes()],
            row: vec![0.0; vocabulary],
            path: path.into(),
            file,
            header,
        })
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next row as log-probabilities, `[vocabulary]`.
    ///
    /// # Errors
    /// What the system says, also behind the last row.
    pub fn row(&mut self) -> Result<&[f32], Error> {
        self.file
            .read_exact(&mut self.bytes)
            .map_err(|e| ModelError::io(&self.path, "read the saved logits", e))?;
        let float = |at: usize| f32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]));
        let (scale, least) = (float(0), float(4));
        let codes = self.bytes[ROW_HEADER_BYTES..].as_chunks().0;
        for (log_p, &code) in self.row.iter_mut().zip(codes) {
            *log_p = scale * f32::from(u16::from_le_bytes(code)) + least;
        }
        Ok(&self.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            ctx: 4,
            vocabulary: 5,
            tokens: vec![1, 2, 3, 4, 0, 1, 2, 3],
        }
    }

    fn written(rows: &[[f32; 5]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = LogitsWriter::new(&mut bytes, &header()).expect("memory");
        for row in rows {
            writer.row(row).expect("memory");
        }
        bytes
    }

    fn opened(bytes: &[u8]) -> Result<LogitsReader, Error> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("logits");
        std::fs::write(&path, bytes).expect("writable");
        LogitsReader::open(&path)
    }

    #[test]
    fn rows_come_back_as_log_probabilities() {
        let rows = [[1.0, 2.0, 0.5, -1.0, 3.0], [7.0; 5]];
        let mut reader = opened(&written(&rows)).expect("a sound file");
        assert_eq!((reader.header(), reader.header().chunks()), (&header(), 2));
        for row in rows {
            let (_, log_sum) = best_and_log_sum(&row);
            let found = reader.row().expect("a row");
            for (log_p, logit) in found.iter().zip(row) {
                let expected = f64::from(logit) - log_sum;
                assert!((f64::from(*log_p) - expected).abs() < 1e-4, "{found:?}");
            }
        }
        assert!(reader.row().is_err());
    }

    #[test]
    fn the_far_end_counts_as_sixteen_below() {
        let rows = [[0.0, -100.0, -16.5, 0.0, 0.0], [0.0; 5]];
        let mut reader = opened(&written(&rows)).expect("a sound file");
        let row = reader.row().expect("a row");
        assert!((row[1] - row[0] + 16.0).abs() < 1e-3 && row[1] == row[2]);
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = written(&[[0.0, -1.0, -2.0, -65.535, 0.0]; 2]);
        assert_eq!(bytes[..12], *b"_logits_\x04\0\0\0");
        assert_eq!(bytes[12..20], [5, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes.len(), 20 + 8 * 4 + 2 * (8 + 2 * 6));
        let scale = f32::from_le_bytes([bytes[52], bytes[53], bytes[54], bytes[55]]);
        assert_eq!(scale, 16.0 / 65535.0);
        let code = |i: usize| u16::from_le_bytes([bytes[60 + 2 * i], bytes[61 + 2 * i]]);
        // 15 of 16 parts of 65535.
        assert_eq!([code(0), code(1), code(3)], [65535, 61439, 0]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let sound = written(&[[0.0; 5]; 2]);
        assert!(opened(&sound).is_ok());
        type Change = fn(&mut Vec<u8>);
        let damaged = |change: Change| {
            let mut bytes = sound.clone();
            change(&mut bytes);
            opened(&bytes).err().map(|e| e.to_string())
        };
        let fields: [(&str, Change); 6] = [
            ("not a file of saved logits", |b| b.truncate(5)),
            ("not a file of saved logits", |b| b[0] = 0),
            ("ctx", |b| b[8] = 2),
            ("vocabulary", |b| b[15] = 0x80),
            ("(whole file)", |b| b.push(0)),
            ("(whole file)", |b| b[16] = 3),
        ];
        for (field, change) in fields {
            let message = damaged(change).expect(field);
            assert!(
                message.contains(field) && message.contains("--save"),
                "{message}"
            );
        }
    }
}
