//! Opening a bundle file: everything but the clusters themselves is read and checked at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::check::check_meta;
use super::format::{
    ALIGN, ClusterKind, DirectoryEntry, ENTRY_BYTES, Header, Section, SectionId, checksum,
};
use super::geometry::FfnLayout;
use super::meta::BundleMeta;
use super::vectors::Vectors;
use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::panel::panels_bytes;
use crate::tokenizer::TokenizerSpec;

/// Sections larger than this are taken for damage.
const MAX_SECTION: u64 = 1 << 30;

/// Checksums of the parts of one neuron's bundle that are read on their own: the low 32 bits of XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeuronSums {
    /// Of the Gate row.
    pub gate: u32,
    /// Of what lies from the start of Up to the end of Down.
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
}

/// An open bundle file.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    file: File,
    header: Header,
    /// Configuration, formats, source.
    pub meta: BundleMeta,
    /// Norms and biases.
    pub vectors: Vectors,
    /// Every cluster in file order: per layer Q, K, V, O, FFN; then head, embedding and predictors.
    pub clusters: Vec<DirectoryEntry>,
    neuron_sums: Vec<NeuronSums>,
    /// For each FFN cluster in directory order, index of its first entry in `neuron_sums`.
    sum_start: Vec<usize>,
}

impl Bundle {
    /// Opens and validates a bundle file: checksums of all sections, and that the directory covers
    /// every matrix of the configuration exactly once with the sizes its formats imply.
    ///
    /// # Errors
    /// Anything that does not fit, naming the section and the remedy.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |action: &str, e| ModelError::io(path, action, e);
        // Asked before opening, since opening a pipe would wait for its writer.
        let kind = std::fs::metadata(path).map_err(|e| io("open the packed model", e))?;
        if !kind.is_file() {
            return Err(ModelError::damaged(path, "file", "is not a regular file"));
        }
        let file = File::open(path).map_err(|e| io("open the packed model", e))?;
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
        let read = |id: SectionId, name: &str| {
            read_section(&file, path, header.sections[id as usize], name)
        };
        let meta: BundleMeta = serde_json::from_slice(&read(SectionId::Meta, "metadata")?)
            .map_err(|e| ModelError::damaged(path, "metadata section", e.to_string()))?;
        check_meta(path, &meta)?;
        let vectors = Vectors::decode(&read(SectionId::Vectors, "vectors")?, &meta.config)
            .ok_or_else(|| ModelError::damaged(path, "vectors section", "has the wrong length"))?;
        let clusters = decode_directory(&read(SectionId::Directory, "directory")?)
            .ok_or_else(|| ModelError::damaged(path, "directory section", "is malformed"))?;
        let sums = read(SectionId::NeuronSums, "neuron checksums")?;
        let neuron_sums = sums
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| NeuronSums {
                gate: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                up_down: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            })
            .collect();
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

    /// Reads the tokenizer section (megabytes for large vocabularies, so not kept).
    ///
    /// # Errors
    /// A failing read or damaged bytes.
    pub fn read_tokenizer(&self) -> Result<TokenizerSpec> {
        let section = self.header.sections[SectionId::Tokenizer as usize];
        let bytes = read_section(&self.file, &self.path, section, "tokenizer")?;
        serde_json::from_slice(&bytes)
            .map_err(|e| ModelError::damaged(&self.path, "tokenizer section", e.to_string()))
    }

    /// Bytes of all weight clusters.
    pub fn weight_bytes(&self) -> u64 {
        self.clusters.iter().map(|c| u64::from(c.len)).sum()
    }

    /// Reads a whole cluster into `out` (buffered; for tools and tests, not for decoding) and checks it.
    ///
    /// # Errors
    /// A failing read, or bytes that do not match the checksum.
    pub fn read_cluster(&self, entry: &DirectoryEntry, out: &mut Vec<u8>) -> Result<()> {
        out.resize(entry.len as usize, 0);
        self.file
            .read_exact_at(out, entry.offset)
            .map_err(|e| ModelError::io(&self.path, "read a cluster", e))?;
        if checksum(out) == entry.sum {
            Ok(())
        } else {
            Err(self.corrupt(entry))
        }
    }

    /// The error for a cluster whose bytes do not match its checksum.
    pub fn corrupt(&self, entry: &DirectoryEntry) -> ModelError {
        let field = format!(
            "{:?} cluster {}..{} of layer {:?} at offset {}",
            entry.kind,
            entry.first,
            entry.first + entry.count,
            entry.layer,
            entry.offset
        );
        ModelError::Format {
            path: self.path.clone(),
            field,
            problem: "its checksum does not match".into(),
            remedy: "the disk or the file is damaged: delete the packed file and pack again".into(),
        }
    }

    /// Checksums of neuron `neuron` (counted within the cluster) of the FFN cluster at directory index
    /// `cluster`; `None` outside the neuron layout.
    pub fn neuron_sums(&self, cluster: usize, neuron: usize) -> Option<NeuronSums> {
        let start = *self.sum_start.get(cluster)?;
        (start != usize::MAX).then(|| self.neuron_sums.get(start + neuron).copied())?
    }

    fn validate(&mut self, file_len: u64) -> Result<()> {
        let damaged =
            |field: String, problem: &str| ModelError::damaged(&self.path, field, problem);
        let meta = &self.meta;
        let c = &meta.config;
        let mut cursor = Cursor {
            clusters: &self.clusters,
            next: 0,
            file_len,
        };
        let mut sums = 0;
        let mut sum_start = Vec::with_capacity(self.clusters.len());
        for l in 0..c.n_layers {
            let f = &meta.layers[l];
            for (kind, rows, cols, block) in [
                (ClusterKind::Q, c.q_dim(), c.d_model, f.q),
                (ClusterKind::K, c.kv_dim(), c.d_model, f.k),
                (ClusterKind::V, c.kv_dim(), c.d_model, f.v),
                (ClusterKind::O, c.d_model, c.q_dim(), f.o),
            ] {
                let ok = cursor.rows(kind, Some(l), rows, cols, block);
                ok.map_err(|p| damaged(format!("{kind:?} of layer {l}"), p))?;
            }
            sum_start.resize(cursor.next, usize::MAX);
            let first = cursor.next;
            cursor
                .ffn(l, &f.ffn, c.d_ff)
                .map_err(|p| damaged(format!("FFN of layer {l}"), p))?;
            for e in &self.clusters[first..cursor.next] {
                let neuron = f.ffn.layout == FfnLayout::Neuron;
                sum_start.push(if neuron { sums } else { usize::MAX });
                sums += if neuron { e.count as usize } else { 0 };
            }
        }
        self.validate_tables(&mut cursor)?;
        self.validate_predictors(&mut cursor)?;
        if cursor.next != self.clusters.len() || sums != self.neuron_sums.len() {
            return Err(damaged("directory section".into(), "has surplus entries"));
        }
        sum_start.resize(self.clusters.len(), usize::MAX);
        self.sum_start = sum_start;
        Ok(())
    }

    /// Head and embedding.
    fn validate_tables(&self, cursor: &mut Cursor<'_>) -> Result<()> {
        let damaged =
            |field: String, problem: &str| ModelError::damaged(&self.path, field, problem);
        let (meta, c) = (&self.meta, &self.meta.config);
        let mut tables = vec![(ClusterKind::Head, meta.head, meta.head_rows)];
        if !c.tied_head {
            tables.push((ClusterKind::Embedding, meta.embedding, meta.embedding_rows));
        }
        for (kind, block, per_cluster) in tables {
            let first = cursor.next;
            let ok = cursor.rows(kind, None, c.vocab_size, c.d_model, block);
            ok.map_err(|p| damaged(format!("{kind:?}"), p))?;
            // A row is found by division.
            let mut at = (0..c.vocab_size).step_by(per_cluster.max(1));
            if per_cluster == 0
                || self.clusters[first..cursor.next]
                    .iter()
                    .any(|e| at.next() != Some(e.first as usize))
                || at.next().is_some()
            {
                return Err(damaged(
                    format!("{kind:?}"),
                    "its clusters do not have the stated size",
                ));
            }
        }
        Ok(())
    }

    /// fc1 and fc2 of each layer, where the model has predictors.
    fn validate_predictors(&self, cursor: &mut Cursor<'_>) -> Result<()> {
        let c = &self.meta.config;
        for (l, p) in self.meta.predictors.iter().flatten().enumerate() {
            for (kind, rows, cols, block) in [
                (ClusterKind::PredictorHidden, p.rank, c.d_model, p.fc1),
                (ClusterKind::PredictorScore, c.d_ff, p.rank, p.fc2),
            ] {
                let first = cursor.next;
                cursor
                    .rows(kind, Some(l), rows, cols, block)
                    .and_then(|()| {
                        // A neuron's row is found by its index.
                        let whole =
                            kind == ClusterKind::PredictorHidden || cursor.next == first + 1;
                        whole.then_some(()).ok_or("is in several clusters")
                    })
                    .map_err(|p| {
                        ModelError::damaged(&self.path, format!("{kind:?} of layer {l}"), p)
                    })?;
            }
        }
        Ok(())
    }
}

/// Walks the directory in its one legal order.
struct Cursor<'a> {
    clusters: &'a [DirectoryEntry],
    next: usize,
    file_len: u64,
}

impl Cursor<'_> {
    fn take(
        &mut self,
        kind: ClusterKind,
        layer: Option<usize>,
        first: usize,
        bytes_of: impl Fn(usize) -> Option<usize>,
    ) -> std::result::Result<usize, &'static str> {
        let e = self.clusters.get(self.next).ok_or("clusters are missing")?;
        self.next += 1;
        if e.kind != kind || e.layer.map(usize::from) != layer || e.first as usize != first {
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
            return Err("a cluster lies outside the file");
        }
        Ok(e.count as usize)
    }

    fn rows(
        &mut self,
        kind: ClusterKind,
        layer: Option<usize>,
        rows: usize,
        cols: usize,
        block: BlockType,
    ) -> std::result::Result<(), &'static str> {
        let bytes = |n: usize| match kind.is_panels() {
            true => panels_bytes(block, n, cols),
            false => block.row_bytes(cols)?.checked_mul(n),
        };
        bytes(1).ok_or("a row does not hold whole blocks")?;
        let mut first = 0;
        while first < rows {
            first += self.take(kind, layer, first, bytes)?;
        }
        if first == rows {
            Ok(())
        } else {
            Err("clusters cover too many rows")
        }
    }

    fn ffn(
        &mut self,
        layer: usize,
        g: &super::FfnGeometry,
        d_ff: usize,
    ) -> std::result::Result<(), &'static str> {
        let whole = |b: BlockType, n: usize| n.is_multiple_of(b.block_len());
        if !whole(g.gate, g.d_model) || !whole(g.up, g.d_model) || g.neurons == 0 {
            return Err("a row does not hold whole blocks");
        }
        let mut first = 0;
        while first < d_ff {
            let n = self.take(ClusterKind::Ffn, Some(layer), first, |n| {
                let down = if g.layout == FfnLayout::Cluster {
                    n
                } else {
                    g.d_model
                };
                (n <= g.neurons && whole(g.down, down)).then(|| g.cluster_bytes(n))
            })?;
            first += n;
        }
        if first == d_ff {
            Ok(())
        } else {
            Err("clusters cover too many neurons")
        }
    }
}

fn read_section(file: &File, path: &Path, s: Section, name: &str) -> Result<Vec<u8>> {
    if s.len > MAX_SECTION {
        return Err(ModelError::damaged(
            path,
            format!("{name} section"),
            "is impossibly large",
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

fn decode_directory(bytes: &[u8]) -> Option<Vec<DirectoryEntry>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return None;
    }
    entries.iter().map(DirectoryEntry::decode).collect()
}
