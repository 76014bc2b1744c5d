//! Opens a packed file: everything except the clusters themselves is read and checked at once.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::check::check_meta;
use super::format::{
    ALIGN, DirectoryEntry, ENTRY_BYTES, Header, Section, SectionId, checksum, decode_directory,
};
use super::geometry::{FfnGeometry, FfnLayout};
use super::meta::{BundleMeta, StoredMatrix};
use super::texts::StoredTexts;
use super::vectors::Vectors;
use crate::block::BlockType;
use crate::chat_templates::ChatTemplates;
use crate::error::{ModelError, Result};
use crate::files::open_regular;
use crate::network::{Content, Experts, Network};
use crate::panel::panels_bytes;
use crate::tokenizer::TokenizerSpec;

/// Metadata larger than this are taken for damage. All other sections have a bound that follows from the metadata, so
/// that no file has its reader take much more memory than its model needs.
const MAX_META_BYTES: u64 = 16 << 20;

/// Checksums of the parts of one neuron's bundle that are read on their own: the low 32 bits of XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeuronSums {
    /// Checksum of the Gate row.
    pub gate: u32,
    /// Checksum of everything from the start of Up to the end of Down.
    pub up_down: u32,
}

impl NeuronSums {
    /// The checksums of a neuron's parts.
    pub fn of(gate: &[u8], up_down: &[u8]) -> Self {
        Self {
            gate: checksum(gate) as u32,
            up_down: checksum(up_down) as u32,
        }
    }

    pub(super) fn encode(all: &[Self]) -> Vec<u8> {
        let bytes = all
            .iter()
            .flat_map(|s| [s.gate.to_le_bytes(), s.up_down.to_le_bytes()].concat());
        bytes.collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Vec<Self> {
        let sums = bytes.as_chunks::<8>().0.iter().map(|b| Self {
            gate: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            up_down: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        });
        sums.collect()
    }
}

/// What tells that a file has been written to: when, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    modified: std::time::SystemTime,
    len: u64,
}

/// An open bundle file.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    file: File,
    header: Header,
    /// Network, formats, source.
    pub meta: BundleMeta,
    /// Norms and biases.
    pub vectors: Vectors,
    /// Every cluster in file order, which is that of [`Network::contents`](crate::network::Network::contents).
    pub clusters: Vec<DirectoryEntry>,
    neuron_sums: Vec<NeuronSums>,
    /// For each FFN cluster in directory order, index of its first entry in `neuron_sums`.
    sum_start: Vec<usize>,
}

impl Bundle {
    /// Opens and validates a packed file: checks the checksums of all sections, and that the
    /// directory covers every part of the network exactly once, with the sizes that its formats
    /// imply.
    ///
    /// # Errors
    /// Anything that does not fit, naming the section and the remedy.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |action: &str, e| ModelError::io(path, action, e);
        let file = open_regular(path).map_err(|e| io("open the packed model", e))?;
        let info = file
            .metadata()
            .map_err(|e| io("examine the packed model", e))?;
        let mut page = [0; ALIGN];
        if info.len() < ALIGN as u64 {
            return Err(ModelError::damaged(
                path,
                "header",
                "the file is shorter than a page",
            ));
        }
        file.read_exact_at(&mut page, 0)
            .map_err(|e| io("read the header", e))?;
        let header = Header::decode(&page, info.len(), path)?;
        let read = |id: SectionId, name: &str, most: u64| {
            read_section(&file, path, header.sections[id as usize], (name, most))
        };
        let meta = read(SectionId::Meta, "metadata", MAX_META_BYTES)?;
        let meta: BundleMeta = serde_json::from_slice(&meta)
            .map_err(|e| ModelError::damaged(path, "metadata section", e.to_string()))?;
        check_meta(path, &meta)?;
        let vectors = read(SectionId::Vectors, "vectors", vectors_bytes(&meta))?;
        let vectors = Vectors::decode(&vectors, &meta.network)
            .ok_or_else(|| ModelError::damaged(path, "vectors section", "has the wrong length"))?;
        let clusters = read(SectionId::Directory, "directory", most_directory(&meta))?;
        let clusters = decode_directory(&clusters)
            .ok_or_else(|| ModelError::damaged(path, "directory section", "is malformed"))?;
        let sums = read(SectionId::NeuronSums, "neuron checksums", sums_bytes(&meta))?;
        let neuron_sums = NeuronSums::decode(&sums);
        let mut bundle = Self {
            path: path.to_path_buf(),
            file,
            header,
            meta,
            vectors,
            clusters,
            neuron_sums,
            sum_start: Vec::new(),
        };
        bundle.validate(info.len())?;
        Ok(bundle)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the tokenizer section, with the chat templates (megabytes for large vocabularies, so not kept).
    ///
    /// # Errors
    /// A failed read, or damaged bytes.
    pub fn read_tokenizer(&self) -> Result<(TokenizerSpec, ChatTemplates)> {
        let section = self.header.sections[SectionId::Tokenizer as usize];
        let bound = ("tokenizer", most_tokenizer(&self.meta));
        let bytes = read_section(&self.file, &self.path, section, bound)?;
        let texts: StoredTexts = serde_json::from_slice(&bytes)
            .map_err(|e| ModelError::damaged(&self.path, "tokenizer section", e.to_string()))?;
        Ok(texts.take_apart())
    }

    /// Whether the model has activation predictors.
    pub fn predicts(&self) -> bool {
        self.meta.predictors.is_some()
    }

    /// Bytes of all weight clusters.
    pub fn weight_bytes(&self) -> u64 {
        self.clusters.iter().map(|c| u64::from(c.len)).sum()
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.header.file_len
    }

    /// Reads a whole cluster into `out` (buffered; for tools and tests, not for decoding) and checks it.
    ///
    /// # Errors
    /// A failed read, or bytes that do not match the checksum.
    pub fn read_cluster(&self, entry: &DirectoryEntry, out: &mut Vec<u8>) -> Result<()> {
        let read = entry.read(&self.file, out);
        match read.map_err(|e| ModelError::io(&self.path, "read a cluster", e))? {
            true => Ok(()),
            false => Err(self.corrupt(entry)),
        }
    }

    /// When the file was last written to.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn stamp(&self) -> Result<FileStamp> {
        let info = self.file.metadata();
        let stamp = info.and_then(|info| {
            Ok(FileStamp {
                modified: info.modified()?,
                len: info.len(),
            })
        });
        stamp.map_err(|e| ModelError::io(&self.path, "examine the packed model", e))
    }

    /// Checks that the file is still the one at its path, which others may have opened by the path since.
    ///
    /// # Errors
    /// Another file has taken its place; or the system does not tell.
    pub fn check_in_place(&self) -> Result<()> {
        let failed = |e| ModelError::io(&self.path, "examine the packed model", e);
        let own = self.file.metadata().map_err(failed)?;
        let there = std::fs::metadata(&self.path).map_err(failed)?;
        match (own.dev(), own.ino()) == (there.dev(), there.ino()) {
            true => Ok(()),
            false => Err(self.changing()),
        }
    }

    /// The error for a file that is being written to while it is in use.
    pub fn changing(&self) -> ModelError {
        ModelError::Format {
            path: self.path.clone(),
            field: "file".into(),
            problem: "it is being overwritten while it is in use".into(),
            remedy: "wait until that is done, then start again".into(),
        }
    }

    /// The error for a cluster whose bytes do not match its checksum.
    pub fn corrupt(&self, entry: &DirectoryEntry) -> ModelError {
        let field = format!(
            "cluster {}..{} of {:?} at offset {}",
            entry.first,
            entry.first + entry.count,
            entry.content,
            entry.offset
        );
        ModelError::Format {
            path: self.path.clone(),
            field,
            problem: "its checksum does not match".into(),
            remedy: "the disk or the file is damaged: delete the packed file (`forebay cache rm` if it is in the \
                     cache folder) and pack again"
                .into(),
        }
    }

    /// Checksums of neuron `neuron` (counted within the cluster) of the FFN cluster at directory index
    /// `cluster`; `None` if its neurons are not stored one by one.
    pub fn neuron_sums(&self, cluster: usize, neuron: usize) -> Option<NeuronSums> {
        let start = *self.sum_start.get(cluster)?;
        (start != usize::MAX).then(|| self.neuron_sums.get(start + neuron).copied())?
    }

    fn validate(&mut self, file_len: u64) -> Result<()> {
        let damaged =
            |field: String, problem: &str| ModelError::damaged(&self.path, field, problem);
        let meta = &self.meta;
        let mut cursor = Cursor {
            clusters: &self.clusters,
            next: 0,
            file_len,
        };
        let mut sums = 0;
        let mut sum_start = Vec::with_capacity(self.clusters.len());
        let mut matrices = meta.matrices.iter();
        for content in meta.network.contents(self.predicts()) {
            let first = cursor.next;
            let by_neuron = match content {
                Content::HotNeurons(l) | Content::Neurons(l) | Content::Experts(l) => {
                    let geometry = meta.geometry(content).ok_or("its storage is not known");
                    let walked = geometry.and_then(|g| cursor.neurons(content, g, &meta.network));
                    walked.map_err(|p| damaged(format!("FFN of layer {l}"), p))?;
                    geometry.is_ok_and(|g| g.layout.is_by_neuron())
                }
                Content::Rows(_) | Content::Table(_) => {
                    // The metadata have been checked to have one for each of these contents, in this order.
                    let matrix = matrices.next().ok_or("a matrix is missing");
                    let walked = matrix.and_then(|m| cursor.rows(content, m, &meta.network));
                    walked.map_err(|p| damaged(format!("{content:?}"), p))?;
                    false
                }
            };
            for e in &self.clusters[first..cursor.next] {
                sum_start.push(if by_neuron { sums } else { usize::MAX });
                sums += if by_neuron { e.count as usize } else { 0 };
            }
        }
        if cursor.next != self.clusters.len() || sums != self.neuron_sums.len() {
            return Err(damaged("directory section".into(), "has surplus entries"));
        }
        self.sum_start = sum_start;
        Ok(())
    }
}

/// Walks through the directory in its only valid order.
struct Cursor<'a> {
    clusters: &'a [DirectoryEntry],
    next: usize,
    file_len: u64,
}

impl Cursor<'_> {
    fn take(
        &mut self,
        content: Content,
        first: usize,
        bytes_of: impl Fn(usize) -> Option<usize>,
    ) -> std::result::Result<usize, &'static str> {
        let e = self.clusters.get(self.next).ok_or("clusters are missing")?;
        self.next += 1;
        if e.content != content || e.first as usize != first {
            return Err("clusters are out of order");
        }
        if e.count == 0 || bytes_of(e.count as usize) != Some(e.len as usize) {
            return Err("a cluster's length does not fit its rows");
        }
        let end = e.offset.checked_add(e.padded_len() as u64);
        if e.offset < ALIGN as u64
            || !e.offset.is_multiple_of(ALIGN as u64)
            || end.is_none_or(|end| end > self.file_len)
        {
            return Err("a cluster is outside the file");
        }
        Ok(e.count as usize)
    }

    /// Clusters of a matrix, all of the stated size: a row is found by division.
    fn rows(
        &mut self,
        content: Content,
        m: &StoredMatrix,
        network: &Network,
    ) -> std::result::Result<(), &'static str> {
        let bytes = |n: usize| match content {
            Content::Table(_) => m.block.row_bytes(m.cols)?.checked_mul(n),
            _ => panels_bytes(m.block, n, m.cols),
        };
        bytes(1).ok_or("a row does not hold whole blocks")?;
        let each = network.rows_of_head(m.tensor).unwrap_or(m.rows);
        let mut first = 0;
        while first < m.rows {
            let count = self.take(content, first, bytes)?;
            // No cluster has rows of two heads.
            if count != m.rows_per_cluster.min(each - first % each) {
                return Err("its clusters do not have the stated size");
            }
            first += count;
        }
        Ok(())
    }

    fn neurons(
        &mut self,
        content: Content,
        g: &FfnGeometry,
        network: &Network,
    ) -> std::result::Result<(), &'static str> {
        let whole = |b: BlockType, n: usize| n.is_multiple_of(b.block_len());
        let mut rows = [Some(g.gate), g.up].into_iter().flatten();
        if !rows.all(|block| whole(block, g.d_model)) || g.neurons == 0 {
            return Err("a row does not hold whole blocks");
        }
        let (all, each) = network.neurons(content);
        let mut first = all.start;
        while first < all.end {
            // No cluster has neurons of two experts.
            let left = each - (first - all.start) % each;
            let n = self.take(content, first, |n| {
                let down = if g.layout == FfnLayout::Cluster {
                    n
                } else {
                    g.d_model
                };
                (n <= g.neurons.min(left) && whole(g.down, down)).then(|| g.cluster_bytes(n))
            })?;
            first += n;
        }
        if first == all.end {
            Ok(())
        } else {
            Err("clusters cover too many neurons")
        }
    }
}

/// Bytes of norms and biases.
fn vectors_bytes(meta: &BundleMeta) -> u64 {
    let lens = meta
        .network
        .vectors()
        .into_iter()
        .map(|(_, len)| len as u64);
    lens.fold(0, u64::saturating_add).saturating_mul(4)
}

/// Most bytes of the directory: a cluster of neurons holds at least one.
fn most_directory(meta: &BundleMeta) -> u64 {
    let network = &meta.network;
    let of_rows = |m: &StoredMatrix| {
        let each = network.rows_of_head(m.tensor).unwrap_or(m.rows);
        (m.rows / each * each.div_ceil(m.rows_per_cluster)) as u64
    };
    let rows = meta.matrices.iter().map(of_rows);
    let experts = (0..network.n_layers()).filter_map(|l| network.experts(l));
    let neurons = network.n_neurons() + experts.map(Experts::n_neurons).sum::<usize>();
    let clusters = rows.fold(neurons as u64, u64::saturating_add);
    clusters.saturating_mul(ENTRY_BYTES as u64)
}

/// Bytes of the checksums of single neurons.
fn sums_bytes(meta: &BundleMeta) -> u64 {
    let contents = meta.network.contents(false).into_iter();
    let by_neuron = contents.filter(|&content| {
        let geometry = meta.geometry(content);
        geometry.is_some_and(|g| g.layout.is_by_neuron())
    });
    by_neuron
        .map(|content| meta.network.neurons(content).0.len() as u64 * 8)
        .sum()
}

/// Most bytes of the tokenizer: `tokenizer.json` has up to 130 per token, with merges, and is quoted here. Small
/// vocabularies may come with the tokenizer of a larger model.
fn most_tokenizer(meta: &BundleMeta) -> u64 {
    (16 << 20) + meta.network.vocab_size as u64 * 1024
}

fn read_section(
    file: &File,
    path: &Path,
    s: Section,
    (name, most): (&str, u64),
) -> Result<Vec<u8>> {
    if s.len > most {
        let problem = format!("has {} bytes where this model has at most {most}", s.len);
        return Err(ModelError::damaged(
            path,
            format!("{name} section"),
            problem,
        ));
    }
    let mut bytes = vec![0; s.len as usize];
    file.read_exact_at(&mut bytes, s.offset)
        .map_err(|e| ModelError::io(path, format!("read the {name} section"), e))?;
    if checksum(&bytes) != s.sum {
        let field = format!("{name} section");
        return Err(ModelError::damaged(
            path,
            field,
            "its checksum does not match",
        ));
    }
    Ok(bytes)
}
