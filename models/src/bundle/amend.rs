//! Adding what was learned about a packed model to its file: activation predictors, sizes of gates.

use std::path::Path;

use super::geometry::{FfnLayout, rows_per_cluster};
use super::meta::{GateCalibration, LayerPredictor, StoredMatrix};
use super::reader::Bundle;
use super::writer::BundleWriter;
use crate::block::{BlockType, dequantize, quantize};
use crate::error::Result;
use crate::lanes;
use crate::network::Content;
use crate::panel::{PANEL_ROWS, extract_row, pack_panels, panel_bytes};
use crate::tensor::{LayerTensor, TensorId};

/// A matrix as it is stored, before panels.
#[derive(Clone, Debug)]
struct Rows {
    block: BlockType,
    cols: usize,
    bytes: Vec<u8>,
}

impl Rows {
    /// `matrix`, `[_, cols]`, as Q8_0 if rows are whole blocks, else as F16.
    fn new(matrix: &[f32], cols: usize) -> Self {
        let whole = cols.is_multiple_of(BlockType::Q8_0.block_len());
        let block = match whole {
            true => BlockType::Q8_0,
            false => BlockType::F16,
        };
        let row = cols / block.block_len() * block.block_bytes();
        let mut bytes = vec![0; matrix.len() / cols * row];
        for (row, out) in matrix.chunks_exact(cols).zip(bytes.chunks_exact_mut(row)) {
            quantize(block, row, out);
        }
        Self { block, cols, bytes }
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.block.block_len() * self.block.block_bytes()
    }

    /// Writes the matrix in clusters of `rows_per_cluster`.
    fn write(
        &self,
        writer: &mut BundleWriter,
        tensor: TensorId,
        rows_per_cluster: usize,
    ) -> Result<StoredMatrix> {
        let row = self.row_bytes();
        let rows = self.bytes.len() / row;
        let mut bytes = Vec::new();
        for first in (0..rows).step_by(rows_per_cluster) {
            let n = rows_per_cluster.min(rows - first);
            bytes.clear();
            let part = &self.bytes[first * row..(first + n) * row];
            pack_panels(self.block, part, row, &mut bytes);
            writer.cluster(Content::Rows(tensor), (first, n), &bytes)?;
        }
        Ok(StoredMatrix {
            tensor,
            rows,
            cols: self.cols,
            block: self.block,
            rows_per_cluster,
        })
    }
}

/// A layer's predictor as it is stored.
#[derive(Clone, Debug)]
pub struct PackedPredictor {
    /// Rank and threshold.
    pub meta: LayerPredictor,
    /// Whether its input is the residual stream before the layer instead of that before the FFN.
    pub before_layer: bool,
    /// Rows of fc1, `[rank, d_model]`.
    fc1: Rows,
    /// Rows of fc2, `[d_ff, rank]`.
    fc2: Rows,
}

impl PackedPredictor {
    /// Stores fc1, `[rank, d_model]`, and fc2, `[d_ff, rank]`, as Q8_0 if rows are whole blocks, else as F16.
    pub fn new(rank: usize, fc1: &[f32], fc2: &[f32], threshold: f32) -> Self {
        Self {
            meta: LayerPredictor { rank, threshold },
            before_layer: false,
            fc1: Rows::new(fc1, fc1.len() / rank),
            fc2: Rows::new(fc2, rank),
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.fc1.bytes.len() + self.fc2.bytes.len()
    }
}

/// What is added; `None` keeps what the file has.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// Predictors, `[n_layers]`.
    pub predictors: Option<Vec<PackedPredictor>>,
    /// Sizes of activated gates.
    pub gates: Option<GateCalibration>,
}

/// Writes `bundle` with the amendment to `target`, which may be its own path: the file appears, or is replaced, when it
/// is complete. `progress` receives the bytes of weights written.
///
/// # Errors
/// Reading the old file, which is verified meanwhile, or writing the new one.
pub fn amend(
    bundle: &Bundle,
    target: &Path,
    amendment: &Amendment,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let replaced = amendment.predictors.is_some();
    let stays = |e: &&super::DirectoryEntry| !(replaced && e.content.is_predictor());
    let kept = bundle.clusters.iter().filter(stays);
    let least = kept.map(|e| u64::from(e.len)).sum();
    let mut writer = BundleWriter::create(target, least)?;
    let mut meta = bundle.meta.clone();
    let (mut bytes, mut done) = (Vec::new(), 0);
    for (i, e) in bundle.clusters.iter().enumerate() {
        if !stays(&e) {
            continue;
        }
        bundle.read_cluster(e, &mut bytes)?;
        let rows = (e.first as usize, e.count as usize);
        writer.cluster(e.content, rows, &bytes)?;
        for neuron in 0..e.count as usize {
            if let Some(sums) = bundle.neuron_sums(i, neuron) {
                writer.copy_neuron_sums(sums);
            }
        }
        done += u64::from(e.len);
        progress(done);
    }
    if let Some(predictors) = &amendment.predictors {
        meta.matrices.retain(|m| !m.tensor.is_predictor());
        for (l, p) in predictors.iter().enumerate() {
            let [fc1, fc2] = write_predictor(&mut writer, l, p)?;
            meta.matrices.extend([fc1, fc2]);
            meta.network.layers[l].ffn.body.predictor_before_layer = p.before_layer;
        }
        meta.predictors = Some(predictors.iter().map(|p| p.meta).collect());
    }
    if let Some(gates) = &amendment.gates {
        meta.gates = Some(gates.clone());
    }
    let (tokenizer, templates) = bundle.read_tokenizer()?;
    writer.finish(&meta, (&tokenizer, &templates), &bundle.vectors)
}

fn write_predictor(
    writer: &mut BundleWriter,
    layer: usize,
    p: &PackedPredictor,
) -> Result<[StoredMatrix; 2]> {
    let id = |t| TensorId::Layer(layer, t);
    let per = rows_per_cluster(p.meta.rank, p.fc1.row_bytes());
    let fc1 = p.fc1.write(writer, id(LayerTensor::PredictorFc1), per)?;
    // All in one cluster: a neuron's row is found by its index.
    let neurons = p.fc2.bytes.len() / p.fc2.row_bytes();
    let fc2 = p
        .fc2
        .write(writer, id(LayerTensor::PredictorFc2), neurons)?;
    Ok([fc1, fc2])
}

impl Bundle {
    /// Gate of a layer in f32, `[d_ff, d_model]`; for tools, not for decoding.
    ///
    /// # Errors
    /// A failed read, or damaged bytes.
    pub fn read_gate(&self, layer: usize) -> Result<Vec<f32>> {
        let d = self.meta.network.d_model;
        let mut gate = vec![0.0; self.meta.network.ffn(layer).d_ff * d];
        let (mut bytes, mut row) = (Vec::new(), Vec::new());
        let contents = [Content::HotNeurons(layer), Content::Neurons(layer)];
        for e in self
            .clusters
            .iter()
            .filter(|e| contents.contains(&e.content))
        {
            let Some(g) = self.meta.geometry(e.content) else {
                continue;
            };
            self.read_cluster(e, &mut bytes)?;
            row.resize(g.gate_row(), 0);
            for i in 0..e.count as usize {
                match g.layout {
                    FfnLayout::Neuron | FfnLayout::GateFirst => {
                        let gate = &bytes[i * g.gate_stride()..][..g.gate_row()];
                        match g.has_laned_rows() {
                            true => lanes::extract_row(g.gate, gate, &mut row),
                            false => row.copy_from_slice(gate),
                        }
                    }
                    FfnLayout::Cluster => {
                        let panel = panel_bytes(g.gate, d).unwrap_or(0);
                        let panel = &bytes[i / PANEL_ROWS * panel..][..panel];
                        extract_row(g.gate, panel, i % PANEL_ROWS, &mut row);
                    }
                }
                let at = (e.first as usize + i) * d;
                dequantize(g.gate, &row, &mut gate[at..at + d]);
            }
        }
        Ok(gate)
    }
}
