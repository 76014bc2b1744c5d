//! Bytes of the header and of the cluster directory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash3_64;

use crate::error::{ModelError, Result};
use crate::network::Content;
use crate::tensor::{LayerTensor, TensorId};

/// First bytes of every packed file.
pub(super) const MAGIC: [u8; 8] = *b"FOREBAY\0";

/// Version of files without hot neurons. Any change of the byte layout raises both, and so does one after which old
/// files would be used with a wrong tokenizer.
pub const FORMAT_VERSION: u32 = 14;
/// Version of files with hot neurons: engines that know none refuse them.
pub const HOT_VERSION: u32 = 15;

/// Alignment of clusters and sections, the unit of direct reads.
pub const ALIGN: usize = 4096;

/// Number of sections after the data.
pub(super) const SECTIONS: usize = 5;

/// Bytes of one directory entry.
pub(super) const ENTRY_BYTES: usize = 32;

/// Layer number of clusters that belong to no layer.
pub(super) const NO_LAYER: u16 = u16::MAX;

const HEADER_BYTES: usize = 24 + SECTIONS * 24 + 8;

/// XXH3-64 of `bytes`: the checksum of sections and clusters.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Numbers of contents other than a layer's tensors, which have their own numbers.
const TOKEN_EMBEDDING: u8 = 64;
const OUTPUT_HEAD: u8 = 65;
const NEURONS: u8 = 66;
const EMBEDDING: u8 = 67;
const TOKEN_INPUTS: u8 = 68;
const INPUTS_PROJECTION: u8 = 69;
const EXPERTS: u8 = 70;
const HOT_NEURONS: u8 = 71;

/// The number of a cluster's content, and its layer.
fn encode_content(content: Content) -> (u8, usize) {
    let none = usize::from(NO_LAYER);
    match content {
        Content::Rows(TensorId::Layer(layer, tensor)) => (tensor as u8, layer),
        Content::Rows(TensorId::TokenEmbedding) => (TOKEN_EMBEDDING, none),
        Content::Rows(TensorId::OutputHead) => (OUTPUT_HEAD, none),
        Content::Rows(TensorId::InputsProjection) => (INPUTS_PROJECTION, none),
        // Vectors are never stored as rows.
        Content::Rows(_) => (TOKEN_EMBEDDING, none),
        Content::HotNeurons(layer) => (HOT_NEURONS, layer),
        Content::Neurons(layer) => (NEURONS, layer),
        Content::Experts(layer) => (EXPERTS, layer),
        Content::Table(TensorId::TokenInputs) => (TOKEN_INPUTS, none),
        Content::Table(_) => (EMBEDDING, none),
    }
}

fn decode_content(code: u8, layer: u16) -> Option<Content> {
    let whole = layer == NO_LAYER;
    match code {
        TOKEN_EMBEDDING => whole.then_some(Content::Rows(TensorId::TokenEmbedding)),
        OUTPUT_HEAD => whole.then_some(Content::Rows(TensorId::OutputHead)),
        INPUTS_PROJECTION => whole.then_some(Content::Rows(TensorId::InputsProjection)),
        EMBEDDING => whole.then_some(Content::Table(TensorId::TokenEmbedding)),
        TOKEN_INPUTS => whole.then_some(Content::Table(TensorId::TokenInputs)),
        HOT_NEURONS => (!whole).then_some(Content::HotNeurons(layer.into())),
        NEURONS => (!whole).then_some(Content::Neurons(layer.into())),
        EXPERTS => (!whole).then_some(Content::Experts(layer.into())),
        tensor => {
            let found = LayerTensor::ALL.into_iter().find(|&t| t as u8 == tensor)?;
            (!whole).then_some(Content::Rows(TensorId::Layer(layer.into(), found)))
        }
    }
}

/// The location of one cluster in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its content.
    pub content: Content,
    /// First matrix row, or first neuron of the layer.
    pub first: u32,
    /// Number of rows or neurons; rows that only pad a panel do not count.
    pub count: u32,
    /// Bytes used; the file is padded with zeros to the next multiple of [`ALIGN`].
    pub len: u32,
    /// Offset in the file, a multiple of [`ALIGN`].
    pub offset: u64,
    /// [`checksum`] of the used bytes.
    pub sum: u64,
}

impl DirectoryEntry {
    /// Bytes that a direct read transfers.
    #[inline]
    pub fn padded_len(&self) -> usize {
        (self.len as usize).next_multiple_of(ALIGN)
    }

    /// The layer it belongs to; `None` for head and embedding.
    #[inline]
    pub fn layer(&self) -> Option<usize> {
        self.content.layer()
    }

    /// Reads the cluster; false if that is not what was written.
    pub(super) fn read(&self, file: &File, out: &mut Vec<u8>) -> std::io::Result<bool> {
        out.resize(self.len as usize, 0);
        file.read_exact_at(out, self.offset)?;
        Ok(checksum(out) == self.sum)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let (code, layer) = encode_content(self.content);
        out.extend([code, 0]);
        // Networks have fewer layers than that.
        out.extend(u16::try_from(layer).unwrap_or(NO_LAYER).to_le_bytes());
        out.extend(self.first.to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.sum.to_le_bytes());
    }

    fn decode(b: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let layer = u16::from_le_bytes([b[2], b[3]]);
        Some(Self {
            content: decode_content(b[0], layer)?,
            first: le_u32(b, 4),
            count: le_u32(b, 8),
            len: le_u32(b, 12),
            offset: le_u64(b, 16),
            sum: le_u64(b, 24),
        })
    }
}

/// The directory section.
pub(super) fn encode_directory(entries: &[DirectoryEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    entries.iter().for_each(|e| e.encode(&mut bytes));
    bytes
}

/// The entries of a directory section; `None` if it is not one.
pub(super) fn decode_directory(bytes: &[u8]) -> Option<Vec<DirectoryEntry>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return None;
    }
    entries.iter().map(DirectoryEntry::decode).collect()
}

/// Location and checksum of a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub offset: u64,
    pub len: u64,
    pub sum: u64,
}

/// Index of each section in the header.
#[derive(Clone, Copy, Debug)]
pub(super) enum SectionId {
    Meta = 0,
    Tokenizer = 1,
    Vectors = 2,
    Directory = 3,
    NeuronSums = 4,
}

/// The first page of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub version: u32,
    pub file_len: u64,
    pub sections: [Section; SECTIONS],
}

impl Header {
    pub fn encode(&self) -> [u8; ALIGN] {
        let mut page = [0u8; ALIGN];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&self.version.to_le_bytes());
        page[16..24].copy_from_slice(&self.file_len.to_le_bytes());
        for (i, s) in self.sections.iter().enumerate() {
            let at = 24 + i * 24;
            page[at..at + 8].copy_from_slice(&s.offset.to_le_bytes());
            page[at + 8..at + 16].copy_from_slice(&s.len.to_le_bytes());
            page[at + 16..at + 24].copy_from_slice(&s.sum.to_le_bytes());
        }
        let sum = checksum(&page[..HEADER_BYTES - 8]);
        page[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        page
    }

    /// Decodes a header page and checks it against the real length of the file.
    pub fn decode(page: &[u8; ALIGN], real_len: u64, path: &Path) -> Result<Self> {
        if page[..8] != MAGIC {
            return Err(ModelError::Format {
                path: path.into(),
                field: "magic".into(),
                problem: "this is not a packed file".into(),
                remedy: "pack the model with `forebay pack`".into(),
            });
        }
        let version = le_u32(page, 8);
        if ![FORMAT_VERSION, HOT_VERSION].contains(&version) {
            return Err(ModelError::unsupported(
                path,
                "format version",
                format!("version {version}"),
                format!(
                    "this engine reads versions {FORMAT_VERSION} and {HOT_VERSION}: pack the source again"
                ),
            ));
        }
        if checksum(&page[..HEADER_BYTES - 8]) != le_u64(page, HEADER_BYTES - 8) {
            return Err(ModelError::damaged(
                path,
                "header",
                "its checksum does not match",
            ));
        }
        let header = Self {
            version,
            file_len: le_u64(page, 16),
            sections: std::array::from_fn(|i| Section {
                offset: le_u64(page, 24 + i * 24),
                len: le_u64(page, 32 + i * 24),
                sum: le_u64(page, 40 + i * 24),
            }),
        };
        if header.file_len != real_len {
            let problem = format!("is {real_len} but the header says {}", header.file_len);
            return Err(ModelError::damaged(path, "file length", problem));
        }
        for (i, s) in header.sections.iter().enumerate() {
            let end = s.offset.checked_add(s.len);
            if s.offset < ALIGN as u64 || end.is_none_or(|e| e > real_len) {
                let problem = "is outside the file";
                return Err(ModelError::damaged(path, format!("section {i}"), problem));
            }
        }
        Ok(header)
    }
}

fn le_u32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn le_u64(b: &[u8], at: usize) -> u64 {
    u64::from(le_u32(b, at)) | u64::from(le_u32(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_every_flipped_bit_is_noticed() {
        let section = Section {
            offset: 4096,
            len: 8,
            sum: 3,
        };
        let header = Header {
            version: HOT_VERSION,
            file_len: 8192,
            sections: [section; SECTIONS],
        };
        let page = header.encode();
        let path = Path::new("x.fbay");
        assert_eq!(Header::decode(&page, 8192, path).expect("valid"), header);
        assert!(Header::decode(&page, 8191, path).is_err());
        // Bytes 12..16 are reserved but covered by the checksum too.
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged, 8192, path).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn directory_entries_round_trip() {
        let tables = [
            Content::Rows(TensorId::TokenEmbedding),
            Content::Rows(TensorId::OutputHead),
            Content::Table(TensorId::TokenEmbedding),
            Content::Table(TensorId::TokenInputs),
            Content::Rows(TensorId::InputsProjection),
            Content::HotNeurons(7),
            Content::Neurons(7),
            Content::Experts(7),
        ];
        let rows = LayerTensor::ALL.map(|t| Content::Rows(TensorId::Layer(65_534, t)));
        for content in tables.into_iter().chain(rows) {
            let entry = DirectoryEntry {
                content,
                first: 64,
                count: 64,
                len: 70_000,
                offset: 4096 * 9,
                sum: 0x0123_4567_89ab_cdef,
            };
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            let bytes: [u8; ENTRY_BYTES] = bytes.try_into().expect("32 bytes");
            assert_eq!(DirectoryEntry::decode(&bytes), Some(entry));
        }
    }
}
