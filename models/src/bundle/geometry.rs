//! How matrices are divided into clusters, and where things are inside an FFN cluster.

use serde::{Deserialize, Serialize};

use super::format::ALIGN;
use crate::block::BlockType;
use crate::lanes;
use crate::network::HOT_GRANULE;
use crate::panel::PANEL_ROWS;

/// Minimum number of neurons in a cluster in the neuron layout.
const FEWEST_BUNDLES: usize = 64;
/// Maximum number of neurons in a cluster in the neuron layout.
pub const MAX_BUNDLES: usize = 256;

/// Target size of clusters of bundles, bytes. They are larger than others, since only a few of their neurons are alive,
/// which are read one by one.
const BUNDLES_BYTES: usize = 2 << 20;
/// Target number of clusters of bundles per layer.
const BUNDLE_CLUSTERS: usize = 8;

/// Maximum number of neurons in a cluster, in either layout.
pub const MAX_NEURONS: usize = 512;

/// Rows inside a bundle start on cache-line boundaries.
const ROW_ALIGN: usize = 64;

/// Target size of clusters, bytes: large enough for the disk's full speed, small enough that a few
/// of them make a read-ahead window.
const TARGET_BYTES: usize = 256 << 10;

/// Target number of FFN clusters per layer, so that cores share a layer evenly.
const CLUSTERS_PER_LAYER: usize = 16;

/// Clusters of an expert have at least this many bytes, if it has more: with smaller reads, disks are slower. In
/// panels, memory is slower, too: each cluster begins at another place.
const fn least_of_expert(layout: FfnLayout) -> usize {
    match layout {
        FfnLayout::Cluster => 1 << 20,
        _ => 512 << 10,
    }
}
/// Clusters of an expert have at most this many bytes if blocks allow it.
const fn most_of_expert(layout: FfnLayout) -> usize {
    match layout {
        FfnLayout::Cluster => 3 << 19,
        _ => 1 << 20,
    }
}
/// Number of clusters of an expert between these bounds.
const CLUSTERS_PER_EXPERT: usize = 16;

/// How the FFN's matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FfnLayout {
    /// Matrices in panels ([`crate::panel`]), one after the other: the cluster's Gate rows, its Up rows, if there are
    /// any, and for each output row the Down blocks of its neurons. Nothing is re-quantised.
    Cluster,
    /// One bundle per neuron: Gate row, Up row (if the FFN is gated) and (transposed) Down column of neuron i together
    /// (PowerInfer-2 section 4.4, LLM in a Flash section 3.2), each laned ([`crate::lanes`]) if its format can be.
    Neuron,
    /// For experts: the same rows with all Gates first, from where one read brings them, and then a pair per neuron,
    /// its Up row and Down column. Which pairs are needed is known when the Gates have been computed.
    GateFirst,
}

impl FfnLayout {
    /// Whether single neurons can be computed and read.
    pub fn is_by_neuron(self) -> bool {
        self != Self::Cluster
    }
}

/// Everything needed to find a neuron's data inside a cluster of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FfnGeometry {
    /// Storage layout.
    pub layout: FfnLayout,
    /// Block format of Gate rows, `[d_model]` each.
    pub gate: BlockType,
    /// Block format of Up rows, `[d_model]` each; `None` if the FFN is not gated.
    pub up: Option<BlockType>,
    /// Block format of Down: rows over the cluster's neurons (cluster layout), or one transposed
    /// column of `[d_model]` per neuron (neuron layout).
    pub down: BlockType,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Neurons per cluster; the last cluster of a layer may have fewer.
    pub neurons: usize,
}

impl FfnGeometry {
    /// Chooses the cluster size for a layer of `d_ff` neurons.
    pub fn choose(
        layout: FfnLayout,
        (gate, up, down): (BlockType, Option<BlockType>, BlockType),
        d_model: usize,
        d_ff: usize,
    ) -> Self {
        let mut g = Self {
            layout,
            gate,
            up,
            down,
            d_model,
            neurons: FEWEST_BUNDLES,
        };
        if layout == FfnLayout::Neuron {
            let most = (BUNDLES_BYTES / g.bundle_stride()).min(d_ff / BUNDLE_CLUSTERS);
            let whole = most.min(MAX_BUNDLES) / FEWEST_BUNDLES * FEWEST_BUNDLES;
            g.neurons = whole.max(FEWEST_BUNDLES);
        }
        if layout == FfnLayout::Cluster {
            let granule = down.block_len().max(HOT_GRANULE).min(d_ff);
            g.neurons = granule;
            let by_bytes = TARGET_BYTES / g.cluster_bytes(granule).max(1);
            let by_count = d_ff / granule / CLUSTERS_PER_LAYER;
            g.neurons = granule * by_bytes.min(by_count).min(MAX_NEURONS / granule).max(1);
        }
        g
    }

    /// Chooses the cluster size for experts of `d_ff` neurons, whose clusters are read and kept as a whole.
    pub fn choose_for_experts(
        layout: FfnLayout,
        (gate, up, down): (BlockType, Option<BlockType>, BlockType),
        d_model: usize,
        d_ff: usize,
    ) -> Self {
        let granule = match layout {
            FfnLayout::Cluster => down.block_len().max(32).min(d_ff),
            _ => 32.min(d_ff),
        };
        let mut g = Self {
            layout,
            gate,
            up,
            down,
            d_model,
            neurons: granule,
        };
        let bytes = g.cluster_bytes(granule).max(1);
        let granules = d_ff.div_ceil(granule);
        let (least, largest) = (least_of_expert(layout), most_of_expert(layout));
        let wanted = (granules * bytes / CLUSTERS_PER_EXPERT).clamp(least, largest);
        let most = match layout {
            FfnLayout::Cluster => MAX_NEURONS,
            _ => MAX_BUNDLES,
        };
        let per = wanted
            .div_ceil(bytes)
            .min(most / granule)
            .clamp(1, granules);
        let count = granules.div_ceil(per);
        let equal = equal_count(granules, count, |per| {
            (least / 4 * 3..=largest).contains(&(per * bytes)) && per * granule <= most
        });
        // Clusters of the same size, as far as possible.
        g.neurons = granule * granules.div_ceil(equal.unwrap_or(count));
        g
    }

    /// By neuron: whether Gate and Up rows are laned ([`crate::lanes`]). Both or none are, since both are
    /// multiplied by the same activations.
    pub fn has_laned_rows(&self) -> bool {
        let laned = |block| lanes::words(block).is_some();
        self.layout.is_by_neuron() && laned(self.gate) && self.up.is_none_or(laned)
    }

    /// By neuron: whether Down's columns are laned.
    pub fn has_laned_columns(&self) -> bool {
        self.layout.is_by_neuron() && lanes::words(self.down).is_some()
    }

    /// Bytes of a Gate row.
    pub fn gate_row(&self) -> usize {
        row(self.gate, self.d_model)
    }

    /// Bytes of an Up row; 0 without Up.
    pub fn up_row(&self) -> usize {
        self.up.map_or(0, |up| row(up, self.d_model))
    }

    /// By neuron: bytes of one neuron's Down column.
    pub fn down_column(&self) -> usize {
        row(self.down, self.d_model)
    }

    /// Cluster layout: bytes of the Gate panels of `n` neurons, `[n, d_model]`.
    pub fn gate_bytes(&self, n: usize) -> usize {
        panels(self.gate, n, self.d_model)
    }

    /// Cluster layout: bytes of the Up panels of `n` neurons, `[n, d_model]`, which follow the Gate's.
    pub fn up_bytes(&self, n: usize) -> usize {
        self.up.map_or(0, |up| panels(up, n, self.d_model))
    }

    /// Cluster layout: bytes of the Down panels of `n` neurons, `[d_model, n]`, which follow Up's.
    pub fn down_bytes(&self, n: usize) -> usize {
        panels(self.down, self.d_model, n)
    }

    /// Neuron layout: offset of Up inside a bundle.
    pub fn up_offset(&self) -> usize {
        self.gate_row().next_multiple_of(ROW_ALIGN)
    }

    /// Neuron layout: offset of Down inside a bundle.
    pub fn down_offset(&self) -> usize {
        self.up_offset() + self.up_row().next_multiple_of(ROW_ALIGN)
    }

    /// Neuron layout: bytes from one bundle to the next. Bundles near a multiple of 4 KiB are padded
    /// to it so that each is one direct read; smaller ones are packed densely.
    pub fn bundle_stride(&self) -> usize {
        let used = self.down_offset() + self.down_column().next_multiple_of(ROW_ALIGN);
        let padded = used.next_multiple_of(ALIGN);
        if (padded - used) * 3 <= used {
            padded
        } else {
            used
        }
    }

    /// By neuron: bytes of the part that is read on demand, Up and Down.
    pub fn up_down_bytes(&self) -> usize {
        self.down_offset() - self.up_offset() + self.down_column()
    }

    /// Neuron layout: bytes of a bundle without its padding: Gate, Up and Down.
    pub fn bundle_bytes(&self) -> usize {
        self.down_offset() + self.down_column()
    }

    /// Bytes of one live neuron's Up and Down, in either layout.
    pub fn touched_per_neuron(&self) -> usize {
        match self.layout {
            FfnLayout::Cluster => {
                (self.up_bytes(self.neurons) + self.down_bytes(self.neurons)) / self.neurons
            }
            FfnLayout::Neuron | FfnLayout::GateFirst => self.up_row() + self.down_column(),
        }
    }

    /// By neuron: bytes from one Gate row to the next.
    pub fn gate_stride(&self) -> usize {
        match self.layout {
            FfnLayout::GateFirst => self.up_offset(),
            _ => self.bundle_stride(),
        }
    }

    /// Layout `GateFirst`: bytes of the Gates of `n` neurons, up to the first pair.
    pub fn gates_bytes(&self, n: usize) -> usize {
        (n * self.gate_stride()).next_multiple_of(ALIGN)
    }

    /// By neuron: where the Up of the first of a cluster's `n` neurons is, or its Down if there is no Up.
    pub fn pairs_offset(&self, n: usize) -> usize {
        match self.layout {
            FfnLayout::GateFirst => self.gates_bytes(n),
            _ => self.up_offset(),
        }
    }

    /// By neuron: bytes from one neuron's Up to the next one's.
    pub fn pair_stride(&self) -> usize {
        match self.layout {
            FfnLayout::GateFirst => self.up_down_bytes().next_multiple_of(ROW_ALIGN),
            _ => self.bundle_stride(),
        }
    }

    /// Bytes of a cluster of `n` neurons.
    pub fn cluster_bytes(&self, n: usize) -> usize {
        match self.layout {
            FfnLayout::Cluster => self.gate_bytes(n) + self.up_bytes(n) + self.down_bytes(n),
            FfnLayout::Neuron => n * self.bundle_stride(),
            FfnLayout::GateFirst => self.gates_bytes(n) + n * self.pair_stride(),
        }
    }
}

/// The number of clusters nearest to `count` that divides an expert's `granules` into equal parts, for which `may_have`
/// allows so many granules: an even one if there is one, of which two cores have equal shares. Only if `count` is
/// small: of many clusters, one more or fewer hardly matters.
fn equal_count(granules: usize, count: usize, may_have: impl Fn(usize) -> bool) -> Option<usize> {
    if count > CLUSTERS_PER_EXPERT {
        return None;
    }
    let nearest = |step: usize| {
        let counts = (step..=2 * count).step_by(step);
        let counts = counts.filter(|c| granules.is_multiple_of(*c) && may_have(granules / c));
        counts.min_by_key(|c| c.abs_diff(count))
    };
    nearest(2).or_else(|| nearest(1))
}

fn row(block: BlockType, cols: usize) -> usize {
    cols / block.block_len() * block.block_bytes()
}

/// Bytes of a matrix in panels, the last one padded.
fn panels(block: BlockType, rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(PANEL_ROWS) * row(block, cols)
}

/// Rows per cluster of a plain matrix of `rows` rows of `row_bytes`: whole panels.
pub(super) fn rows_per_cluster(rows: usize, row_bytes: usize) -> usize {
    let bytes = rows * row_bytes;
    let clusters = bytes
        .div_ceil(TARGET_BYTES)
        .max((bytes / (16 << 10)).clamp(1, 8));
    rows.div_ceil(clusters).max(1).next_multiple_of(PANEL_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gate, Up and Down in one format.
    fn gated(block: BlockType) -> (BlockType, Option<BlockType>, BlockType) {
        (block, Some(block), block)
    }

    #[test]
    fn bundles_without_up_are_two_rows() {
        let formats = (BlockType::F16, None, BlockType::Q8_0);
        let g = FfnGeometry::choose(FfnLayout::Neuron, formats, 4096, 14336);
        assert_eq!((g.up_offset(), g.down_offset()), (8192, 8192));
        assert_eq!(g.up_down_bytes(), 4352);
        assert_eq!((g.bundle_bytes(), g.bundle_stride()), (12_544, 16 << 10));
        assert!(!g.has_laned_rows() && g.has_laned_columns());
        let q4 = (BlockType::Q4_0, None, BlockType::Q4_0);
        let g = FfnGeometry::choose(FfnLayout::Cluster, q4, 576, 1536);
        assert_eq!(g.cluster_bytes(64), g.gate_bytes(64) + g.down_bytes(64));
    }

    #[test]
    fn paper_bundle_sizes() {
        // PowerInfer-2 section 4.4: 24 KiB for f16 at d_model 4096; 4-bit bundles padded to 8 KiB.
        let f16 = gated(BlockType::F16);
        let g = FfnGeometry::choose(FfnLayout::Neuron, f16, 4096, 14336);
        assert_eq!(g.bundle_stride(), 24 << 10);
        let q4 = gated(BlockType::Q4_0);
        let g = FfnGeometry::choose(FfnLayout::Neuron, q4, 4096, 14336);
        assert_eq!(g.bundle_stride(), 8 << 10);
        assert_eq!((g.neurons, g.cluster_bytes(64)), (256, 512 << 10));
    }

    #[test]
    fn experts_of_single_neurons_have_their_gates_first() {
        // TurboSparse-Mixtral: nothing is padded, and the Gates end on a page.
        let q4 = gated(BlockType::Q4_0);
        let g = FfnGeometry::choose_for_experts(FfnLayout::GateFirst, q4, 4096, 14336);
        assert_eq!(
            (g.gate_stride(), g.pair_stride(), g.neurons),
            (2304, 4608, 160)
        );
        assert_eq!(g.gates_bytes(160), 160 * 2304);
        assert_eq!(g.cluster_bytes(160), 160 * 6912);
        // SmallThinker-21B, with columns of Q8_0: Gate rows begin on cache lines.
        let q8 = (BlockType::Q4_0, Some(BlockType::Q4_0), BlockType::Q8_0);
        let g = FfnGeometry::choose_for_experts(FfnLayout::GateFirst, q8, 2560, 768);
        assert_eq!((g.gate_row(), g.gate_stride()), (1440, 1472));
        assert_eq!(g.pair_stride(), 1472 + 2752);
        assert_eq!(g.pairs_offset(10), 16 << 10);
    }

    #[test]
    fn experts_are_cut_into_equal_clusters() {
        let neurons = |block: BlockType, (d_model, d_ff)| {
            let formats = gated(block);
            FfnGeometry::choose_for_experts(FfnLayout::Cluster, formats, d_model, d_ff).neurons
        };
        // Qwen3-30B-A3B: two clusters of 1.3 MB; its K formats have blocks of 256, of which there are three.
        assert_eq!(neurons(BlockType::Q4_0, (2048, 768)), 384);
        assert_eq!(neurons(BlockType::Q4_K, (2048, 768)), 256);
        // gpt-oss-20b: ten, and OLMoE: four.
        assert_eq!(neurons(BlockType::MXFP4, (2880, 2880)), 288);
        assert_eq!(neurons(BlockType::Q4_0, (2048, 1024)), 256);
        // A small expert is one.
        assert_eq!(neurons(BlockType::Q4_0, (256, 192)), 192);
    }

    #[test]
    fn small_bundles_are_not_padded_to_pages() {
        let g = FfnGeometry::choose(FfnLayout::Neuron, gated(BlockType::F16), 192, 768);
        assert_eq!(g.bundle_stride(), 1152);
    }

    #[test]
    fn cluster_layout_keeps_whole_blocks() {
        let formats = (BlockType::Q4_K, Some(BlockType::Q4_K), BlockType::Q6_K);
        let g = FfnGeometry::choose(FfnLayout::Cluster, formats, 1536, 8960);
        assert_eq!(g.neurons, 256);
        let q4_1 = FfnGeometry::choose(FfnLayout::Cluster, gated(BlockType::Q4_1), 576, 1536);
        assert_eq!(q4_1.neurons % 32, 0);
        assert!(q4_1.cluster_bytes(q4_1.neurons) <= TARGET_BYTES);
        // Very narrow and very many neurons: the bytes would allow more.
        let flat = FfnGeometry::choose(FfnLayout::Cluster, gated(BlockType::Q4_0), 64, 1 << 16);
        assert_eq!(flat.neurons, MAX_NEURONS);
    }

    #[test]
    fn row_cuts_cover_the_matrix() {
        for (rows, bytes) in [
            (1, 10),
            (256, 864),
            (151_936, 1260),
            (49_152, 360),
            (7, 1 << 20),
        ] {
            let per = rows_per_cluster(rows, bytes);
            assert!(per.is_multiple_of(PANEL_ROWS) && per < rows + PANEL_ROWS);
        }
    }
}
