//! The bytes of a packed file, read and forged by the format's description, independently of the reader.

use forebay_models::bundle::checksum;
use serde_json::Value;

const PAGE: usize = 4096;
/// Offsets in the header: file length, sections, checksum.
const FILE_LEN: usize = 16;
const SECTIONS: usize = 24;
const HEADER_SUM: usize = SECTIONS + 5 * 24;

/// The sections in the header's order.
pub const NAMES: [&str; 5] = [
    "metadata",
    "tokenizer",
    "vectors",
    "directory",
    "neuron checksums",
];

/// A packed file taken apart.
#[derive(Clone, Debug)]
pub struct Anatomy {
    /// Everything before the sections: header page and clusters.
    pub body: Vec<u8>,
    /// The sections' bytes, by [`NAMES`].
    pub sections: [Vec<u8>; 5],
}

fn le_u64(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize
}

/// Offset and length of section `i`.
pub fn section(file: &[u8], i: usize) -> (usize, usize) {
    let at = SECTIONS + i * 24;
    (le_u64(file, at), le_u64(file, at + 8))
}

impl Anatomy {
    pub fn of(file: &[u8]) -> Self {
        let sections = std::array::from_fn(|i| {
            let (offset, len) = section(file, i);
            file[offset..offset + len].to_vec()
        });
        Self {
            body: file[..section(file, 0).0].to_vec(),
            sections,
        }
    }

    /// The whole file, with every checksum right.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = self.body.clone();
        for (i, bytes) in self.sections.iter().enumerate() {
            let at = SECTIONS + i * 24;
            let place = [file.len() as u64, bytes.len() as u64, checksum(bytes)];
            for (j, v) in place.iter().enumerate() {
                file[at + j * 8..at + j * 8 + 8].copy_from_slice(&v.to_le_bytes());
            }
            file.extend(bytes);
            file.resize(file.len().next_multiple_of(PAGE), 0);
        }
        let len = file.len() as u64;
        file[FILE_LEN..FILE_LEN + 8].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(&file[..HEADER_SUM]);
        file[HEADER_SUM..HEADER_SUM + 8].copy_from_slice(&sum.to_le_bytes());
        file
    }

    /// A JSON section (metadata or tokenizer).
    pub fn json(&self, section: usize) -> Value {
        serde_json::from_slice(&self.sections[section]).expect("JSON")
    }

    pub fn set_json(&mut self, section: usize, value: &Value) {
        self.sections[section] = serde_json::to_vec(value).expect("JSON");
    }

    /// Fills all clusters with `byte`, checksums included.
    pub fn fill_clusters(&mut self, byte: u8) {
        for entry in self.sections[3].chunks_exact_mut(32) {
            let len = u32::from_le_bytes(entry[12..16].try_into().expect("4 bytes")) as usize;
            let offset = le_u64(entry, 16);
            let bytes = &mut self.body[offset..offset + len];
            bytes.fill(byte);
            entry[24..].copy_from_slice(&checksum(bytes).to_le_bytes());
        }
    }
}
