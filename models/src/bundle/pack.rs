//! Converting a source model into a packed file, layer by layer, in bounded memory.

mod consume;
mod down_band;
mod ffn;
mod journal;
mod outline;
mod weighing;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::geometry::{FfnGeometry, rows_per_cluster};
use super::meta::{BundleMeta, LayerPredictor, SourceIdentity, StoredMatrix};
use super::options::PackOptions;
use super::room::least_bytes;
use super::vectors::Vectors;
use super::writer::BundleWriter;
use crate::block::{BlockType, dequantize, quantize, quantize_weighed};
use crate::error::{ModelError, Result};
use crate::files::remove_stale_partials;
use crate::importance::InputSquares;
use crate::network::{Content, Network};
use crate::panel::pack_panels;
use crate::source::TensorSource;
use crate::tensor::{LayerTensor, TensorId, TensorMeta};
pub use consume::pack_consuming;
use ffn::keeps_clusters;
pub use outline::outline;
pub use weighing::Weighing;

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress {
    /// Source bytes converted.
    pub done: u64,
    /// Source bytes in all.
    pub total: u64,
}

/// Packs `source` into a new packed file at `out`.
///
/// The file appears under its name only when it is whole (written beside it, synced, renamed).
///
/// # Errors
/// Reading the source, a source that changes meanwhile, or writing the file (a full disk says so).
pub fn pack(
    source: &dyn TensorSource,
    out: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<()> {
    let _span = tracing::info_span!("pack").entered();
    let identity = SourceIdentity::of(source.path())?;
    if let Some(importance) = &options.importance {
        Weighing::of(source, options, importance)?;
    }
    remove_stale_partials(out);
    let writer = BundleWriter::create(out, least_bytes(source, options))?;
    let stored = StoredContents::none(source.network());
    let mut packer = Packer::new(source, options, (writer, stored), progress);
    for content in source.network().contents(source.has_predictors()) {
        packer.content(content)?;
    }
    let vectors = Vectors::read(source)?;
    if SourceIdentity::of(source.path())? != identity {
        return Err(ModelError::Format {
            path: source.path().to_path_buf(),
            field: "model".into(),
            problem: "it changed while it was being packed".into(),
            remedy: "wait until it is complete (a download may be under way) and try again".into(),
        });
    }
    packer.finish(identity, &vectors)
}

/// How the contents are stored that have been written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredContents {
    /// How many they are.
    n: usize,
    matrices: Vec<StoredMatrix>,
    /// Of hot neurons, as far as layers have any; of others that every token uses, and of experts, `[n_layers]`.
    #[serde(default)]
    hot: BTreeMap<usize, FfnGeometry>,
    ffns: Vec<Option<FfnGeometry>>,
    experts: Vec<Option<FfnGeometry>>,
}

impl StoredContents {
    fn none(network: &Network) -> Self {
        Self {
            n: 0,
            hot: BTreeMap::new(),
            matrices: Vec::new(),
            ffns: vec![None; network.n_layers()],
            experts: vec![None; network.n_layers()],
        }
    }
}

/// The metadata of a packed `source`.
fn metadata(
    source: &dyn TensorSource,
    stored: StoredContents,
    identity: SourceIdentity,
) -> BundleMeta {
    BundleMeta {
        network: source.network().clone(),
        matrices: stored.matrices,
        hot: match stored.hot.is_empty() {
            true => Vec::new(),
            false => (0..stored.ffns.len())
                .map(|l| stored.hot.get(&l).copied())
                .collect(),
        },
        ffns: stored.ffns,
        experts: stored.experts,
        predictors: predictors(source),
        gates: None,
        source: identity,
        sorted: source.is_sorted(),
        packed_by: env!("CARGO_PKG_VERSION").into(),
    }
}

/// The layers' activation predictors, if the source has them.
fn predictors(source: &dyn TensorSource) -> Option<Vec<LayerPredictor>> {
    let threshold = source.network().predictor_threshold;
    let predictor = |l| {
        let fc1 = source.meta(TensorId::Layer(l, LayerTensor::PredictorFc1))?;
        Some(LayerPredictor {
            rank: fc1.rows,
            threshold,
        })
    };
    (0..source.network().n_layers()).map(predictor).collect()
}

/// The tensors that a content is made from.
fn tensors_of(network: &Network, content: Content) -> Vec<TensorId> {
    match content {
        Content::Rows(id) | Content::Table(id) => vec![id],
        // Their tensors are those of the layer's other neurons.
        Content::HotNeurons(_) => Vec::new(),
        Content::Neurons(l) | Content::Experts(l) => {
            let (rows, down) = network.neuron_matrices(content);
            let transposed = (down == LayerTensor::Down).then_some(&LayerTensor::DownT);
            let of_ffn = rows.iter().chain([&down]).chain(transposed);
            of_ffn.map(|&t| TensorId::Layer(l, t)).collect()
        }
    }
}

/// Source bytes of some contents.
fn source_bytes(source: &dyn TensorSource, contents: &[Content]) -> u64 {
    let tensors = contents
        .iter()
        .flat_map(|&content| tensors_of(source.network(), content));
    let bytes = tensors.filter_map(|id| Some(source.meta(id)?.bytes() as u64));
    bytes.sum()
}

/// A source matrix and the format it is written in.
struct Matrix {
    id: TensorId,
    meta: TensorMeta,
    target: BlockType,
    /// How much its columns matter, `[n_experts, cols]`; empty if that is not known.
    importance: Vec<f32>,
}

impl Matrix {
    /// Bytes of a row as it is written.
    fn row_bytes(&self) -> usize {
        self.meta.cols / self.target.block_len() * self.target.block_bytes()
    }

    /// How much the columns of a row matter; empty if that is not known.
    fn importance_of(&self, row: usize) -> &[f32] {
        let cols = self.meta.cols;
        match self.importance.len() / cols {
            0 => &[],
            experts => &self.importance[row * experts / self.meta.rows * cols..][..cols],
        }
    }
}

/// Appends a row, or a part of one, in a format; `importance` of its columns may be empty.
fn append_quantized(target: BlockType, row: &[f32], importance: &[f32], out: &mut Vec<u8>) {
    let at = out.len();
    let bytes = row.len() / target.block_len() * target.block_bytes();
    out.resize(at + bytes, 0);
    match importance {
        [] => quantize(target, row, &mut out[at..]),
        _ => quantize_weighed(target, row, importance, &mut out[at..]),
    }
}

/// Clusters of `per` rows or neurons of `all`, or fewer at the end of each group of `each`: the first ones, and how
/// many.
fn clusters(all: Range<usize>, each: usize, per: usize) -> impl Iterator<Item = (usize, usize)> {
    all.step_by(each.max(1)).flat_map(move |start| {
        let firsts = (0..each).step_by(per.max(1));
        firsts.map(move |first| (start + first, per.min(each - first)))
    })
}

struct Packer<'a> {
    source: &'a dyn TensorSource,
    options: &'a PackOptions,
    writer: BundleWriter,
    stored: StoredContents,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(PackProgress),
}

impl<'a> Packer<'a> {
    /// Goes on after what is `stored` already in the file of `writer`.
    fn new(
        source: &'a dyn TensorSource,
        options: &'a PackOptions,
        (writer, stored): (BundleWriter, StoredContents),
        progress: &'a mut dyn FnMut(PackProgress),
    ) -> Self {
        let contents = source.network().contents(source.has_predictors());
        Self {
            source,
            options,
            writer,
            done: source_bytes(source, &contents[..stored.n]),
            total: source_bytes(source, &contents),
            stored,
            progress,
        }
    }

    /// Writes the next content.
    fn content(&mut self, content: Content) -> Result<()> {
        let _span = tracing::info_span!("content", content = ?content).entered();
        self.store(content, Self::ffn, Self::rows)
    }

    /// Has `ffn` or `rows` write the next content, and records how it is stored.
    fn store(
        &mut self,
        content: Content,
        ffn: fn(&mut Self, Content, usize) -> Result<FfnGeometry>,
        rows: fn(&mut Self, Content, TensorId) -> Result<StoredMatrix>,
    ) -> Result<()> {
        match content {
            Content::HotNeurons(l) => {
                let geometry = ffn(self, content, l)?;
                self.stored.hot.insert(l, geometry);
            }
            Content::Neurons(l) => self.stored.ffns[l] = Some(ffn(self, content, l)?),
            Content::Experts(l) => self.stored.experts[l] = Some(ffn(self, content, l)?),
            Content::Rows(id) | Content::Table(id) => {
                let matrix = rows(self, content, id)?;
                self.stored.matrices.push(matrix);
            }
        }
        self.stored.n += 1;
        Ok(())
    }

    /// Writes everything else; then the file appears under its name.
    fn finish(self, identity: SourceIdentity, vectors: &Vectors) -> Result<()> {
        let _span = tracing::info_span!("sections, sync and rename").entered();
        let source = self.source;
        let meta = metadata(source, self.stored, identity);
        let texts = (&*source.tokenizer(), source.chat_templates());
        self.writer.finish(&meta, texts, vectors)
    }

    fn matrix(&self, id: TensorId) -> Result<Matrix> {
        let meta = self.source.meta(id).cloned().ok_or_else(|| {
            ModelError::damaged(
                self.source.path(),
                format!("{id:?}"),
                "the tensor is missing",
            )
        })?;
        let target = self.options.target(id, meta.block, meta.cols);
        let importance = self.options.importance.as_deref();
        let importance = importance.filter(|_| weighing::is_weighed(self.options, id, &meta));
        let inputs = match importance {
            Some(importance) => weighing::inputs_of(self.source, importance, id)?,
            None => None,
        };
        Ok(Matrix {
            id,
            meta,
            target,
            importance: inputs.map(InputSquares::means).unwrap_or_default(),
        })
    }

    fn advance(&mut self, source_bytes: usize) {
        self.done += source_bytes as u64;
        (self.progress)(PackProgress {
            done: self.done,
            total: self.total,
        });
    }

    /// Appends rows `first..first + n` to `out` in the matrix's target format.
    fn read_rows(&mut self, m: &Matrix, first: usize, n: usize, out: &mut Vec<u8>) -> Result<()> {
        let source_row = m.meta.row_bytes();
        if m.target == m.meta.block {
            let at = out.len();
            out.resize(at + n * source_row, 0);
            self.source.read(m.id, first * source_row, &mut out[at..])?;
            self.advance(n * source_row);
            return Ok(());
        }
        let mut bytes = vec![0; n * source_row];
        self.source.read(m.id, first * source_row, &mut bytes)?;
        self.advance(bytes.len());
        let mut floats = vec![0.0; m.meta.cols];
        for (i, row) in bytes.chunks_exact(source_row).enumerate() {
            dequantize(m.meta.block, row, &mut floats);
            append_quantized(m.target, &floats, m.importance_of(first + i), out);
        }
        Ok(())
    }

    /// Appends rows `first..first + n` to `out` in panels, with `rows` as room for them.
    fn read_panels(
        &mut self,
        m: &Matrix,
        first: usize,
        n: usize,
        rows: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        rows.clear();
        self.read_rows(m, first, n, rows)?;
        pack_panels(m.target, rows, m.row_bytes(), out);
        Ok(())
    }

    /// A matrix, how it is stored, and its clusters.
    fn matrix_clusters(
        &self,
        id: TensorId,
    ) -> Result<(
        Matrix,
        StoredMatrix,
        impl Iterator<Item = (usize, usize)> + use<>,
    )> {
        let m = self.matrix(id)?;
        let all = m.meta.rows;
        // No cluster has rows of two heads.
        let each = self.source.network().rows_of_head(id).unwrap_or(all);
        let per = match id {
            // In one cluster: a neuron's row is found by its index.
            TensorId::Layer(_, LayerTensor::PredictorFc2) => all,
            _ => rows_per_cluster(each, m.row_bytes()),
        };
        let stored = StoredMatrix {
            tensor: id,
            rows: all,
            cols: m.meta.cols,
            block: m.target,
            rows_per_cluster: per,
        };
        Ok((m, stored, clusters(0..all, each, per)))
    }

    /// Writes a matrix in clusters of rows.
    fn rows(&mut self, content: Content, id: TensorId) -> Result<StoredMatrix> {
        let (m, stored, clusters) = self.matrix_clusters(id)?;
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        for (first, n) in clusters {
            bytes.clear();
            match content {
                Content::Table(_) => self.read_rows(&m, first, n, &mut bytes)?,
                _ => self.read_panels(&m, first, n, &mut rows, &mut bytes)?,
            }
            self.writer.cluster(content, (first, n), &bytes)?;
        }
        Ok(stored)
    }
}
