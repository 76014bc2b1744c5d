//! Adding what was learned about a packed model to its file: activation predictors, sizes of gates.

use std::path::Path;

use super::format::ClusterKind;
use super::geometry::{FfnLayout, rows_per_cluster};
use super::meta::{GateCalibration, LayerPredictor};
use super::reader::Bundle;
use super::writer::BundleWriter;
use crate::block::{BlockType, dequantize, quantize};
use crate::error::{ModelError, Result};
use crate::lanes;
use crate::panel::{PANEL_ROWS, extract_row, pack_panels, panel_bytes};

/// A layer's predictor as it is stored.
#[derive(Clone, Debug)]
pub struct PackedPredictor {
    /// Rank, formats and threshold.
    pub meta: LayerPredictor,
    /// Rows of fc1, `[rank, d_model]`.
    fc1: Vec<u8>,
    /// Rows of fc2, `[d_ff, rank]`.
    fc2: Vec<u8>,
}

impl PackedPredictor {
    /// Stores fc1, `[rank, d_model]`, and fc2, `[d_ff, rank]`, as Q8_0 where rows hold whole blocks, else as
    /// F16.
    ///
    /// # Errors
    /// Values that the format cannot hold.
    pub fn new(rank: usize, fc1: &[f32], fc2: &[f32], threshold: f32) -> Result<Self> {
        let pack = |matrix: &[f32], cols: usize| -> Result<(BlockType, Vec<u8>)> {
            let whole = cols.is_multiple_of(BlockType::Q8_0.block_len());
            let block = if whole {
                BlockType::Q8_0
            } else {
                BlockType::F16
            };
            let row = cols / block.block_len() * block.block_bytes();
            let mut bytes = vec![0; matrix.len() / cols * row];
            for (row, out) in matrix.chunks_exact(cols).zip(bytes.chunks_exact_mut(row)) {
                quantize(block, row, out).map_err(|_| ModelError::Parameter {
                    field: "predictor".into(),
                    problem: format!("a value cannot be stored as {block}"),
                    remedy: "fit it on more text".into(),
                })?;
            }
            Ok((block, bytes))
        };
        let (fc1_block, fc1) = pack(fc1, fc1.len() / rank)?;
        let (fc2_block, fc2) = pack(fc2, rank)?;
        Ok(Self {
            meta: LayerPredictor {
                rank,
                fc1: fc1_block,
                fc2: fc2_block,
                threshold,
            },
            fc1,
            fc2,
        })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.fc1.len() + self.fc2.len()
    }
}

/// What is added; `None` leaves what the file has.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// Predictors, `[n_layers]`.
    pub predictors: Option<Vec<PackedPredictor>>,
    /// Sizes of activated gates.
    pub gates: Option<GateCalibration>,
}

/// Writes `bundle` with the amendment to `target`, which may be its own path: the file appears, or is
/// replaced, when it is whole. `progress` is told the weights' bytes written.
///
/// # Errors
/// Reading the old file, which is checked on the way, or writing the new one.
pub fn amend(
    bundle: &Bundle,
    target: &Path,
    amendment: &Amendment,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let old = |kind| {
        matches!(
            kind,
            ClusterKind::PredictorHidden | ClusterKind::PredictorScore
        )
    };
    let stays = |e: &&super::DirectoryEntry| !old(e.kind) || amendment.predictors.is_none();
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
        writer.cluster(e.kind, e.layer.map(usize::from), rows, &bytes)?;
        for neuron in 0..e.count as usize {
            if let Some(sums) = bundle.neuron_sums(i, neuron) {
                writer.copy_neuron_sums(sums);
            }
        }
        done += u64::from(e.len);
        progress(done);
    }
    if let Some(predictors) = &amendment.predictors {
        for (l, p) in predictors.iter().enumerate() {
            write_predictor(&mut writer, l, p)?;
        }
        meta.predictors = Some(predictors.iter().map(|p| p.meta).collect());
    }
    if let Some(gates) = &amendment.gates {
        meta.gates = Some(gates.clone());
    }
    writer.finish(&meta, &bundle.read_tokenizer()?, &bundle.vectors)
}

fn write_predictor(writer: &mut BundleWriter, layer: usize, p: &PackedPredictor) -> Result<()> {
    let rank = p.meta.rank;
    let fc1_row = p.fc1.len() / rank;
    let per = rows_per_cluster(rank, fc1_row);
    let mut bytes = Vec::new();
    for first in (0..rank).step_by(per) {
        let n = per.min(rank - first);
        bytes.clear();
        let rows = &p.fc1[first * fc1_row..(first + n) * fc1_row];
        pack_panels(p.meta.fc1, rows, fc1_row, &mut bytes);
        let kind = ClusterKind::PredictorHidden;
        writer.cluster(kind, Some(layer), (first, n), &bytes)?;
    }
    bytes.clear();
    let fc2_row = rank / p.meta.fc2.block_len() * p.meta.fc2.block_bytes();
    pack_panels(p.meta.fc2, &p.fc2, fc2_row, &mut bytes);
    let neurons = (0, p.fc2.len() / fc2_row);
    writer.cluster(ClusterKind::PredictorScore, Some(layer), neurons, &bytes)
}

impl Bundle {
    /// Gate of a layer in f32, `[d_ff, d_model]`; for tools, not for decoding.
    ///
    /// # Errors
    /// A failing read or damaged bytes.
    pub fn read_gate(&self, layer: usize) -> Result<Vec<f32>> {
        let (g, d) = (&self.meta.layers[layer].ffn, self.meta.config.d_model);
        let mut gate = vec![0.0; self.meta.config.d_ff * d];
        let (mut bytes, mut row) = (Vec::new(), vec![0; g.gate_row()]);
        let of_layer = |e: &&super::DirectoryEntry| {
            e.kind == ClusterKind::Ffn && e.layer.map(usize::from) == Some(layer)
        };
        for e in self.clusters.iter().filter(of_layer) {
            self.read_cluster(e, &mut bytes)?;
            for i in 0..e.count as usize {
                match g.layout {
                    FfnLayout::Neuron => {
                        let gate = &bytes[i * g.bundle_stride()..][..g.gate_row()];
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
