//! Converting a source model into a packed file, layer by layer, in bounded memory.

mod consume;
mod down_band;
mod journal;
mod weighing;

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::geometry::{FfnGeometry, FfnLayout, rows_per_cluster};
use super::meta::{BundleMeta, LayerPredictor, SourceIdentity, StoredMatrix};
use super::room::least_bytes;
use super::vectors::Vectors;
use super::writer::BundleWriter;
use crate::block::{BlockType, dequantize, quantize, quantize_weighed};
use crate::error::{ModelError, Result};
use crate::files::remove_stale_partials;
use crate::importance::{Importance, InputSquares};
use crate::lanes::append_laned;
use crate::network::{Content, Network};
use crate::panel::pack_panels;
use crate::tensor::{LayerTensor, TensorId, TensorMeta, TensorSource};
pub use consume::pack_consuming;
use down_band::DownBand;
pub use weighing::Weighing;

/// Choices of a conversion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackOptions {
    /// Format for matrices that are stored as F32, F16 or BF16; `None` keeps what the source has.
    /// Matrices that are quantised already are never touched.
    pub quant: Option<BlockType>,
    /// Stores FFNs neuron by neuron even where Down is quantised along the neurons: its columns are then
    /// quantised again, as [`COLUMN_FORMAT`], which changes the model a little.
    pub neurons: bool,
    /// By which errors are weighed where `quant` is searched for; see [`Weighing`] for what it leaves out.
    pub importance: Option<Arc<Importance>>,
}

impl PackOptions {
    /// The format in which rows of `cols` elements, stored as `block`, are written.
    pub(super) fn target(&self, block: BlockType, cols: usize) -> BlockType {
        let Some(quant) = self.quant.filter(|_| block.block_len() == 1) else {
            return block;
        };
        let formats = [quant, for_narrow_rows(quant)];
        let fits = |f: &BlockType| cols.is_multiple_of(f.block_len());
        formats.into_iter().find(fits).unwrap_or(block)
    }
}

/// The format that rows get which are not whole blocks of 256: it has blocks of 32 and no larger errors.
pub fn for_narrow_rows(quant: BlockType) -> BlockType {
    match quant {
        BlockType::Q2_K | BlockType::Q3_K | BlockType::IQ4_XS => BlockType::IQ4_NL,
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        _ => quant,
    }
}

/// Format of Down's columns where they had to be quantised again: its error is far below that of the formats
/// with fewer bits that they come from.
pub const COLUMN_FORMAT: BlockType = BlockType::Q8_0;

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
    for content in source.network().contents(has_predictors(source)) {
        packer.content(content)?;
    }
    if SourceIdentity::of(source.path())? != identity {
        return Err(ModelError::Format {
            path: source.path().to_path_buf(),
            field: "model".into(),
            problem: "it changed while it was being packed".into(),
            remedy: "wait until it is complete (a download may be under way) and try again".into(),
        });
    }
    packer.finish(identity)
}

/// How the contents are stored that have been written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredContents {
    /// How many they are.
    n: usize,
    matrices: Vec<StoredMatrix>,
    /// Of neurons that every token uses, and of experts, `[n_layers]`.
    ffns: Vec<Option<FfnGeometry>>,
    experts: Vec<Option<FfnGeometry>>,
}

impl StoredContents {
    fn none(network: &Network) -> Self {
        Self {
            n: 0,
            matrices: Vec::new(),
            ffns: vec![None; network.n_layers()],
            experts: vec![None; network.n_layers()],
        }
    }
}

/// Whether `source` comes with activation predictors.
pub(super) fn has_predictors(source: &dyn TensorSource) -> bool {
    let fc1 = TensorId::Layer(0, LayerTensor::PredictorFc1);
    source.meta(fc1).is_some()
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

/// The matrices of an FFN.
struct FfnMatrices {
    gate: Matrix,
    up: Option<Matrix>,
    down: Matrix,
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

/// Whether all neurons of a layer are computed in whole clusters: those of experts, unless their activation has zeros.
/// What every token uses beside experts is added to the same sum, so it is stored in the same way.
fn keeps_clusters(network: &Network, l: usize) -> bool {
    let ffn = network.ffn(l);
    ffn.experts.is_some() && (ffn.d_ff > 0 || !ffn.activation.is_sparse())
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
        let contents = source.network().contents(has_predictors(source));
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
        match content {
            Content::Neurons(l) => self.stored.ffns[l] = Some(self.ffn(content, l)?),
            Content::Experts(l) => self.stored.experts[l] = Some(self.ffn(content, l)?),
            Content::Rows(id) | Content::Table(id) => {
                let matrix = self.rows(content, id)?;
                self.stored.matrices.push(matrix);
            }
        }
        self.stored.n += 1;
        Ok(())
    }

    /// Writes everything else; then the file appears under its name.
    fn finish(self, identity: SourceIdentity) -> Result<()> {
        let _span = tracing::info_span!("sections, sync and rename").entered();
        let (source, stored) = (self.source, self.stored);
        let meta = BundleMeta {
            network: source.network().clone(),
            matrices: stored.matrices,
            ffns: stored.ffns,
            experts: stored.experts,
            predictors: predictors(source),
            gates: None,
            source: identity,
            packed_by: env!("CARGO_PKG_VERSION").into(),
        };
        let texts = (source.tokenizer(), source.chat_templates());
        self.writer.finish(&meta, texts, &Vectors::read(source)?)
    }

    fn matrix(&self, id: TensorId) -> Result<Matrix> {
        let meta = self.source.meta(id).cloned().ok_or_else(|| {
            ModelError::damaged(
                self.source.path(),
                format!("{id:?}"),
                "the tensor is missing",
            )
        })?;
        let target = self.options.target(meta.block, meta.cols);
        let importance = self.options.importance.as_deref();
        let importance = importance.filter(|_| weighing::is_weighed(self.options, &meta));
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

    /// Writes a matrix in clusters of rows.
    fn rows(&mut self, content: Content, id: TensorId) -> Result<StoredMatrix> {
        let m = self.matrix(id)?;
        let (all, cols) = (m.meta.rows, m.meta.cols);
        let each = self.source.network().rows_of_head(id).unwrap_or(all);
        let per = match id {
            // In one cluster: a neuron's row is found by its index.
            TensorId::Layer(_, LayerTensor::PredictorFc2) => all,
            _ => rows_per_cluster(each, m.row_bytes()),
        };
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < all {
            // No cluster has rows of two heads.
            let n = per.min(each - first % each);
            bytes.clear();
            match content {
                Content::Table(_) => self.read_rows(&m, first, n, &mut bytes)?,
                _ => self.read_panels(&m, first, n, &mut rows, &mut bytes)?,
            }
            self.writer.cluster(content, (first, n), &bytes)?;
            first += n;
        }
        Ok(StoredMatrix {
            tensor: id,
            rows: all,
            cols,
            block: m.target,
            rows_per_cluster: per,
        })
    }

    /// The matrices of some neurons with the formats in which they are written, how they are stored, and whether the
    /// source has Down transposed.
    fn ffn_matrices(&self, content: Content, l: usize) -> Result<(FfnMatrices, FfnLayout, bool)> {
        let network = self.source.network();
        let id = |t| TensorId::Layer(l, t);
        let (rows, down) = network.neuron_matrices(content);
        let gate = self.matrix(id(rows[0]))?;
        let up = match rows.get(1) {
            Some(&up) => Some(self.matrix(id(up))?),
            None => None,
        };
        let transposed_id = id(LayerTensor::DownT);
        let transposed = down == LayerTensor::Down && self.source.meta(transposed_id).is_some();
        let mut down = self.matrix(if transposed { transposed_id } else { id(down) })?;
        let d_model = gate.meta.cols;
        if !transposed && keeps_clusters(network, l) {
            return Ok((FfnMatrices { gate, up, down }, FfnLayout::Cluster, false));
        }
        // All numbers of a neuron's column are multiplied by the same one.
        down.importance.clear();
        let plain = down.meta.block.block_len() == 1;
        let anew =
            !plain && self.options.neurons && d_model.is_multiple_of(COLUMN_FORMAT.block_len());
        if !transposed {
            // Down columns become rows of d_model when plain; quantised blocks stay as they are, unless
            // neurons are asked for.
            down.target = match (plain, anew) {
                (true, _) => self.options.target(down.meta.block, d_model),
                (false, true) => COLUMN_FORMAT,
                (false, false) => down.meta.block,
            };
        }
        let layout = if transposed || plain || anew {
            FfnLayout::Neuron
        } else {
            FfnLayout::Cluster
        };
        Ok((FfnMatrices { gate, up, down }, layout, transposed))
    }

    fn ffn(&mut self, content: Content, l: usize) -> Result<FfnGeometry> {
        let (matrices, layout, transposed) = self.ffn_matrices(content, l)?;
        let FfnMatrices { gate, up, down } = &matrices;
        let d_model = gate.meta.cols;
        let (all, each) = self.source.network().neurons(content);
        let formats = (gate.target, up.as_ref().map(|up| up.target), down.target);
        let g = match content {
            Content::Experts(_) => FfnGeometry::choose_for_experts(layout, formats, d_model, each),
            _ => FfnGeometry::choose(layout, formats, d_model, all),
        };
        let mut band = DownBand::new(down, &g, transposed);
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        for (number, start) in (0..all).step_by(each).enumerate() {
            band.begin(number * d_model);
            for first in (0..each).step_by(g.neurons) {
                let n = g.neurons.min(each - first);
                bytes.clear();
                match layout {
                    FfnLayout::Cluster => {
                        for m in [Some(gate), up.as_ref()].into_iter().flatten() {
                            self.read_panels(m, start + first, n, &mut rows, &mut bytes)?;
                        }
                        rows.clear();
                        band.append_blocks(self, down, (first, n), &mut rows)?;
                        pack_panels(down.target, &rows, rows.len() / d_model, &mut bytes);
                    }
                    FfnLayout::Neuron => {
                        let neurons = (start, first, n);
                        self.neuron_bundles(&g, &matrices, &mut band, neurons, &mut bytes)?;
                    }
                }
                self.writer.cluster(content, (start + first, n), &bytes)?;
            }
        }
        Ok(g)
    }

    /// Fills `out` with the bundles of neurons `first..first + n` of the expert that begins at neuron `start`.
    fn neuron_bundles(
        &mut self,
        g: &FfnGeometry,
        FfnMatrices { gate, up, down }: &FfnMatrices,
        band: &mut DownBand,
        (start, first, n): (usize, usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (mut gates, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
        self.read_rows(gate, start + first, n, &mut gates)?;
        if let Some(up) = up {
            self.read_rows(up, start + first, n, &mut ups)?;
        }
        if band.transposed {
            self.read_rows(down, first, n, &mut downs)?;
        } else {
            band.append_columns(self, down, (first, n), &mut downs)?;
        }
        let laned = |block: BlockType, rows: Vec<u8>, row_bytes: usize| {
            let mut out = Vec::with_capacity(rows.len());
            rows.chunks_exact(row_bytes)
                .for_each(|row| append_laned(block, row, &mut out));
            out
        };
        if g.has_laned_rows() {
            gates = laned(g.gate, gates, g.gate_row());
            if let Some(up) = g.up {
                ups = laned(up, ups, g.up_row());
            }
        }
        if g.has_laned_columns() {
            downs = laned(g.down, downs, g.down_column());
        }
        out.resize(n * g.bundle_stride(), 0);
        for (i, bundle) in out.chunks_exact_mut(g.bundle_stride()).enumerate() {
            let mut put = |at: usize, rows: &[u8], len: usize| {
                bundle[at..at + len].copy_from_slice(&rows[i * len..(i + 1) * len]);
            };
            put(0, &gates, g.gate_row());
            put(g.up_offset(), &ups, g.up_row());
            put(g.down_offset(), &downs, g.down_column());
            let (gate, up_down) = (&bundle[..g.gate_row()], &bundle[g.up_offset()..]);
            self.writer.neuron_sums(gate, &up_down[..g.up_down_bytes()]);
        }
        Ok(())
    }
}
