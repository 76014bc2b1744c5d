//! Converting a source model into a bundle file, layer by layer, in bounded memory.

mod down_band;

use std::path::Path;

use super::format::ClusterKind;
use super::geometry::{FfnGeometry, FfnLayout, rows_per_cluster};
use super::meta::{BundleMeta, LayerFormats, LayerPredictor, SourceIdentity};
use super::room::least_bytes;
use super::vectors::{LayerVectors, Vectors};
use super::writer::{BundleWriter, remove_stale_partials};
use crate::block::{BlockType, dequantize, quantize};
use crate::error::{ModelError, Result};
use crate::lanes::append_laned;
use crate::panel::pack_panels;
use crate::tensor::{LayerTensor, TensorId, TensorMeta, TensorSource};
use down_band::{DownBand, band_row};

/// Choices of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// Format for matrices that are stored as F32, F16 or BF16; `None` keeps what the source has.
    /// Matrices that are quantised already are never touched.
    pub quant: Option<BlockType>,
    /// Stores FFNs neuron by neuron even where Down is quantised along the neurons: its columns are then
    /// quantised anew, as [`COLUMN_FORMAT`], which changes the model a little.
    pub neurons: bool,
}

impl PackOptions {
    /// The format in which rows of `cols` elements, stored as `block`, are written.
    pub(super) fn target(&self, block: BlockType, cols: usize) -> BlockType {
        match self.quant {
            Some(q) if block.block_len() == 1 && cols.is_multiple_of(q.block_len()) => q,
            _ => block,
        }
    }
}

/// Format of Down's columns where they had to be quantised anew: its error is far below that of the formats
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

/// Packs `source` into a new bundle file at `out`.
///
/// The file appears under its name only when it is whole (written beside it, synced, renamed).
///
/// # Errors
/// Reading the source, a source that changes meanwhile, writing the file (a full disk says so), or a
/// requested `quant` that this engine cannot write.
pub fn pack(
    source: &dyn TensorSource,
    out: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<()> {
    if let Some(q) = options.quant
        && quantize(q, &vec![0.0; q.block_len()], &mut vec![0; q.block_bytes()]).is_err()
    {
        return Err(ModelError::Parameter {
            field: "quant".into(),
            problem: format!("{q} cannot be written by this engine"),
            remedy: "choose f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1".into(),
        });
    }
    let _span = tracing::info_span!("pack").entered();
    let identity = SourceIdentity::of(source.path())?;
    remove_stale_partials(out);
    let total = total_bytes(source);
    let mut packer = Packer {
        source,
        options: *options,
        writer: BundleWriter::create(out, least_bytes(source, options))?,
        done: 0,
        total,
        progress,
    };
    let config = source.config();
    let layers = (0..config.n_layers)
        .map(|l| packer.layer(l))
        .collect::<Result<Vec<_>>>()?;
    let tables = tracing::info_span!("head and embedding").entered();
    let embedding = packer.matrix(TensorId::TokenEmbedding)?;
    let (kind, head) = if config.tied_head {
        (ClusterKind::Head, packer.matrix(TensorId::TokenEmbedding)?)
    } else {
        let head = packer.matrix(TensorId::OutputHead)?;
        packer.rows(ClusterKind::Head, None, &head)?;
        (ClusterKind::Embedding, head)
    };
    let embedding_rows = packer.rows(kind, None, &embedding)?;
    drop(tables);
    let predictors = packer.predictors()?;
    let meta = BundleMeta {
        config: config.clone(),
        layers,
        head: head.target,
        embedding: embedding.target,
        head_rows: rows_per_cluster(head.meta.rows, head.row_bytes()),
        embedding_rows,
        predictors,
        gates: None,
        source: identity,
        packed_by: env!("CARGO_PKG_VERSION").into(),
    };
    let vectors = packer.vectors()?;
    if SourceIdentity::of(source.path())? != meta.source {
        return Err(ModelError::Format {
            path: source.path().to_path_buf(),
            field: "model".into(),
            problem: "it changed while it was being packed".into(),
            remedy: "wait until it is complete (a download may be under way) and try again".into(),
        });
    }
    let _span = tracing::info_span!("sections, sync and rename").entered();
    packer.writer.finish(&meta, source.tokenizer(), &vectors)
}

fn total_bytes(source: &dyn TensorSource) -> u64 {
    use LayerTensor as T;
    let config = source.config();
    let layers = (0..config.n_layers).flat_map(|l| {
        [
            T::Q,
            T::K,
            T::V,
            T::O,
            T::Gate,
            T::Up,
            T::Down,
            T::DownT,
            T::PredictorFc1,
            T::PredictorFc2,
        ]
        .map(|t| TensorId::Layer(l, t))
    });
    layers
        .chain([TensorId::TokenEmbedding, TensorId::OutputHead])
        .filter_map(|id| source.meta(id))
        .map(|m| m.bytes() as u64)
        .sum()
}

/// A source matrix and the format it is written in.
struct Matrix {
    id: TensorId,
    meta: TensorMeta,
    target: BlockType,
}

impl Matrix {
    /// Bytes of a row as it is written.
    fn row_bytes(&self) -> usize {
        self.meta.cols / self.target.block_len() * self.target.block_bytes()
    }
}

struct Packer<'a> {
    source: &'a dyn TensorSource,
    options: PackOptions,
    writer: BundleWriter,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(PackProgress),
}

impl Packer<'_> {
    fn matrix(&self, id: TensorId) -> Result<Matrix> {
        let meta = self.source.meta(id).cloned().ok_or_else(|| {
            ModelError::damaged(
                self.source.path(),
                format!("{id:?}"),
                "the tensor is missing",
            )
        })?;
        let target = self.options.target(meta.block, meta.cols);
        Ok(Matrix { id, meta, target })
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
        for row in bytes.chunks_exact(source_row) {
            dequantize(m.meta.block, row, &mut floats);
            self.append_quantized(m, &floats, out)?;
        }
        Ok(())
    }

    fn append_quantized(&self, m: &Matrix, row: &[f32], out: &mut Vec<u8>) -> Result<()> {
        let at = out.len();
        out.resize(
            at + row.len() / m.target.block_len() * m.target.block_bytes(),
            0,
        );
        quantize(m.target, row, &mut out[at..]).map_err(|_| {
            let problem = format!("cannot be written as {}", m.target);
            ModelError::damaged(self.source.path(), &m.meta.name, problem)
        })
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

    /// Writes a plain matrix in row clusters; returns the rows per cluster.
    fn rows(&mut self, kind: ClusterKind, layer: Option<usize>, m: &Matrix) -> Result<usize> {
        let per = rows_per_cluster(m.meta.rows, m.row_bytes());
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        for first in (0..m.meta.rows).step_by(per) {
            let n = per.min(m.meta.rows - first);
            bytes.clear();
            if kind.is_panels() {
                self.read_panels(m, first, n, &mut rows, &mut bytes)?;
            } else {
                self.read_rows(m, first, n, &mut bytes)?;
            }
            self.writer.cluster(kind, layer, (first, n), &bytes)?;
        }
        Ok(per)
    }

    fn layer(&mut self, l: usize) -> Result<LayerFormats> {
        let _span = tracing::info_span!("layer", layer = l).entered();
        use LayerTensor as T;
        let mut formats = [BlockType::F32; 4];
        let attention = [
            (ClusterKind::Q, T::Q),
            (ClusterKind::K, T::K),
            (ClusterKind::V, T::V),
            (ClusterKind::O, T::O),
        ];
        for (slot, (kind, tensor)) in formats.iter_mut().zip(attention) {
            let m = self.matrix(TensorId::Layer(l, tensor))?;
            *slot = m.target;
            self.rows(kind, Some(l), &m)?;
        }
        let [q, k, v, o] = formats;
        Ok(LayerFormats {
            q,
            k,
            v,
            o,
            ffn: self.ffn(l)?,
        })
    }

    fn ffn(&mut self, l: usize) -> Result<FfnGeometry> {
        let _span = tracing::info_span!("ffn", layer = l).entered();
        let gate = self.matrix(TensorId::Layer(l, LayerTensor::Gate))?;
        let up = self.matrix(TensorId::Layer(l, LayerTensor::Up))?;
        let transposed = self
            .source
            .meta(TensorId::Layer(l, LayerTensor::DownT))
            .is_some();
        let down = if transposed {
            LayerTensor::DownT
        } else {
            LayerTensor::Down
        };
        let mut down = self.matrix(TensorId::Layer(l, down))?;
        let (d_model, d_ff) = (gate.meta.cols, gate.meta.rows);
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
        let formats = [gate.target, up.target, down.target];
        let g = FfnGeometry::choose(layout, formats, d_model, d_ff);
        let mut band = DownBand::new(&down, &g, transposed);
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        for first in (0..d_ff).step_by(g.neurons) {
            let n = g.neurons.min(d_ff - first);
            bytes.clear();
            match layout {
                FfnLayout::Cluster => {
                    self.read_panels(&gate, first, n, &mut rows, &mut bytes)?;
                    self.read_panels(&up, first, n, &mut rows, &mut bytes)?;
                    rows.clear();
                    band.append_blocks(self, &down, (first, n), &mut rows)?;
                    pack_panels(down.target, &rows, band_row(&down, n), &mut bytes);
                }
                FfnLayout::Neuron => {
                    self.neuron_bundles(
                        &g,
                        [&gate, &up, &down],
                        &mut band,
                        (first, n),
                        &mut bytes,
                    )?;
                }
            }
            self.writer
                .cluster(ClusterKind::Ffn, Some(l), (first, n), &bytes)?;
        }
        Ok(g)
    }

    /// Fills `out` with the bundles of neurons `first..first + n`.
    fn neuron_bundles(
        &mut self,
        g: &FfnGeometry,
        [gate, up, down]: [&Matrix; 3],
        band: &mut DownBand,
        (first, n): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (mut gates, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
        self.read_rows(gate, first, n, &mut gates)?;
        self.read_rows(up, first, n, &mut ups)?;
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
            ups = laned(g.up, ups, g.up_row());
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

    /// Writes the layers' activation predictors, if the source has them.
    fn predictors(&mut self) -> Result<Option<Vec<LayerPredictor>>> {
        let id = |l, t| TensorId::Layer(l, t);
        if self.source.meta(id(0, LayerTensor::PredictorFc1)).is_none() {
            return Ok(None);
        }
        let threshold = self.source.config().predictor_threshold;
        let mut layers = Vec::new();
        for l in 0..self.source.config().n_layers {
            let fc1 = self.matrix(id(l, LayerTensor::PredictorFc1))?;
            let fc2 = self.matrix(id(l, LayerTensor::PredictorFc2))?;
            self.rows(ClusterKind::PredictorHidden, Some(l), &fc1)?;
            let (mut rows, mut bytes) = (Vec::new(), Vec::new());
            self.read_panels(&fc2, 0, fc2.meta.rows, &mut rows, &mut bytes)?;
            let all = (0, fc2.meta.rows);
            self.writer
                .cluster(ClusterKind::PredictorScore, Some(l), all, &bytes)?;
            layers.push(LayerPredictor {
                rank: fc1.meta.rows,
                fc1: fc1.target,
                fc2: fc2.target,
                threshold,
            });
        }
        Ok(Some(layers))
    }

    fn vectors(&self) -> Result<Vectors> {
        use LayerTensor as T;
        let config = self.source.config();
        let layer = |l: usize| -> Result<LayerVectors> {
            let get = |t| self.vector(TensorId::Layer(l, t));
            let mut qkv_bias = Vec::new();
            if config.qkv_bias {
                for t in [T::QBias, T::KBias, T::VBias] {
                    qkv_bias.extend(get(t)?);
                }
            }
            Ok(LayerVectors {
                attn_norm: get(T::AttnNorm)?,
                ffn_norm: get(T::FfnNorm)?,
                qkv_bias,
            })
        };
        Ok(Vectors {
            layers: (0..config.n_layers).map(layer).collect::<Result<_>>()?,
            output_norm: self.vector(TensorId::OutputNorm)?,
        })
    }

    fn vector(&self, id: TensorId) -> Result<Vec<f32>> {
        let m = self.matrix(id)?;
        let mut bytes = vec![0; m.meta.bytes()];
        self.source.read(id, 0, &mut bytes)?;
        let mut floats = vec![0.0; m.meta.rows * m.meta.cols];
        dequantize(m.meta.block, &bytes, &mut floats);
        Ok(floats)
    }
}
