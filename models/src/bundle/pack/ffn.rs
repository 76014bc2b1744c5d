//! The FFN: its matrices are written together, cluster by cluster or neuron by neuron.

use super::down_band::{BAND_BYTES, DownBand};
use super::{Matrix, Packer, append_quantized, clusters};
use crate::block::BlockType;
use crate::bundle::geometry::{FfnGeometry, FfnLayout};
use crate::bundle::options::COLUMN_FORMAT;
use crate::error::Result;
use crate::lanes::{self, append_laned};
use crate::network::HOT_GRANULE;
use crate::network::{Content, Network};
use crate::panel::pack_panels;
use crate::tensor::{LayerTensor, TensorId};

/// The matrices of an FFN.
pub(super) struct FfnMatrices {
    pub gate: Matrix,
    pub up: Option<Matrix>,
    pub down: Matrix,
}

/// Whether all neurons of a layer are computed in whole clusters: those of experts, unless their activation has zeros.
/// What every token uses beside experts is added to the same sum, so it is stored in the same way.
pub(super) fn keeps_clusters(network: &Network, l: usize) -> bool {
    let ffn = network.ffn(l);
    ffn.experts.is_some() && (ffn.d_ff > 0 || !ffn.activation.is_sparse())
}

impl Packer<'_> {
    /// The matrices of some neurons with the formats in which they are written, how they are stored, and whether the
    /// source has Down transposed.
    pub(super) fn ffn_matrices(
        &self,
        content: Content,
        l: usize,
    ) -> Result<(FfnMatrices, FfnLayout, bool)> {
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
        if let Content::HotNeurons(_) = content {
            // The source has the columns of neurons that are together now in different places, or by rows.
            down.target = match plain {
                true => self.options.target(down.id, down.meta.block, HOT_GRANULE),
                false => COLUMN_FORMAT,
            };
            return Ok((
                FfnMatrices { gate, up, down },
                FfnLayout::Cluster,
                transposed,
            ));
        }
        let anew =
            !plain && self.options.neurons && d_model.is_multiple_of(COLUMN_FORMAT.block_len());
        if !transposed {
            // Down columns become rows of d_model when plain; quantised blocks stay as they are, unless
            // neurons are asked for.
            down.target = match (plain, anew) {
                (true, _) => self.options.target(down.id, down.meta.block, d_model),
                (false, true) => COLUMN_FORMAT,
                (false, false) => down.meta.block,
            };
        }
        let layout = match (transposed || plain || anew, content) {
            (true, Content::Experts(_)) => FfnLayout::GateFirst,
            (true, _) => FfnLayout::Neuron,
            (false, _) => FfnLayout::Cluster,
        };
        Ok((FfnMatrices { gate, up, down }, layout, transposed))
    }

    /// How some neurons are stored, and their clusters.
    pub(super) fn neuron_clusters(
        &self,
        content: Content,
        (matrices, layout): (&FfnMatrices, FfnLayout),
    ) -> (FfnGeometry, impl Iterator<Item = (usize, usize)> + use<>) {
        let FfnMatrices { gate, up, down } = matrices;
        let d_model = gate.meta.cols;
        let (all, each) = self.source.network().neurons(content);
        let formats = (gate.target, up.as_ref().map(|up| up.target), down.target);
        let g = match content {
            Content::Experts(_) => FfnGeometry::choose_for_experts(layout, formats, d_model, each),
            _ => FfnGeometry::choose(layout, formats, d_model, all.len()),
        };
        // No cluster has neurons of two experts.
        let clusters = clusters(all, each, g.neurons);
        (g, clusters)
    }

    pub(super) fn ffn(&mut self, content: Content, l: usize) -> Result<FfnGeometry> {
        let (matrices, layout, transposed) = self.ffn_matrices(content, l)?;
        let (g, clusters) = self.neuron_clusters(content, (&matrices, layout));
        let FfnMatrices { gate, up, down } = &matrices;
        let d_model = gate.meta.cols;
        let (_, each) = self.source.network().neurons(content);
        let mut band = DownBand::new(down, &g, transposed, BAND_BYTES);
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        for (neuron, n) in clusters {
            // Columns of Down are counted within an expert.
            let (expert, first) = match content {
                Content::Experts(_) => (neuron / each, neuron % each),
                _ => (0, neuron),
            };
            if first == 0 {
                band.begin(expert * d_model);
            }
            bytes.clear();
            match layout {
                FfnLayout::Cluster => {
                    for m in [Some(gate), up.as_ref()].into_iter().flatten() {
                        self.read_panels(m, neuron, n, &mut rows, &mut bytes)?;
                    }
                    rows.clear();
                    match content {
                        Content::HotNeurons(_) => {
                            self.hot_down(down, &mut band, (first, n), &mut rows)?;
                        }
                        _ => band.append_blocks(self, down, (first, n), &mut rows)?,
                    }
                    pack_panels(down.target, &rows, rows.len() / d_model, &mut bytes);
                }
                FfnLayout::Neuron | FfnLayout::GateFirst => {
                    let neurons = (neuron - first, first, n);
                    self.single_neurons(&g, &matrices, &mut band, neurons, &mut bytes)?;
                }
            }
            self.writer.cluster(content, (neuron, n), &bytes)?;
        }
        Ok(g)
    }

    /// Appends Down's rows for hot neurons `first..first + n`, `[d_model, n]`, in the order in which the columns of the
    /// layer's other neurons are added.
    fn hot_down(
        &mut self,
        down: &Matrix,
        band: &mut DownBand,
        (first, n): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let d_model = match band.transposed {
            true => down.meta.cols,
            false => down.meta.rows,
        };
        let in_floats = Matrix {
            id: down.id,
            meta: down.meta.clone(),
            target: BlockType::F32,
            importance: Vec::new(),
        };
        let mut columns = Vec::new();
        match band.transposed {
            true => self.read_rows(&in_floats, first, n, &mut columns)?,
            false => band.append_columns(self, &in_floats, (first, n), &mut columns)?,
        }
        let columns: Vec<f32> = columns
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect(); // [n, d_model]
        let others = match down.meta.block.block_len() {
            1 => self.options.target(down.id, down.meta.block, d_model),
            _ => down.meta.block,
        };
        let order: Vec<usize> = match lanes::words(others) {
            Some(_) => lanes::lane_order(d_model).collect(),
            None => (0..d_model).collect(),
        };
        for output in order {
            let row: Vec<f32> = columns
                .iter()
                .skip(output)
                .step_by(d_model)
                .copied()
                .collect();
            append_quantized(down.target, &row, &[], out);
        }
        Ok(())
    }

    /// Fills `out` with the rows of neurons `first..first + n` of the expert that begins at neuron `start`, neuron by
    /// neuron.
    fn single_neurons(
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
        out.resize(g.cluster_bytes(n), 0);
        let pairs = g.pairs_offset(n);
        let down = g.down_offset() - g.up_offset();
        for i in 0..n {
            let mut put = |at: usize, rows: &[u8], len: usize| {
                out[at..at + len].copy_from_slice(&rows[i * len..(i + 1) * len]);
            };
            let (gate, pair) = (i * g.gate_stride(), pairs + i * g.pair_stride());
            put(gate, &gates, g.gate_row());
            put(pair, &ups, g.up_row());
            put(pair + down, &downs, g.down_column());
            let gate = &out[gate..][..g.gate_row()];
            let up_down = &out[pair..][..g.up_down_bytes()];
            self.writer.neuron_sums(gate, up_down);
        }
        Ok(())
    }
}
