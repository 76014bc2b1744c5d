//! The models and the machine of the README's table, as far as planning looks at them: directories without weights.

use std::collections::BTreeMap;

use forebay_models::block::BlockType;
use forebay_models::bundle::{
    Bundle, DirectoryEntry, FfnGeometry, FfnLayout, LayerPredictor, StoredMatrix,
};
use forebay_models::network::{Activation, Content, Rope, RopePairing, Uniform};
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_plans::machine::{DiskProfile, DiskRate, Kernel, KernelRate, MachineProfile};
use forebay_plans::residency::Sparsity;

use super::bundle;
use crate::planner::kernel_cases;
use crate::profiles::{MissPoint, Profile};

/// Bytes that clusters of rows aim for.
const CLUSTER_BYTES: usize = 256 << 10;
/// Rows of a panel.
const PANEL: usize = 16;

/// What distinguishes the models.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub layers: usize,
    pub d_model: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    pub vocabulary: usize,
    pub attention: BlockType,
    pub ffn: [BlockType; 3],
    pub head: BlockType,
    /// Rank of the predictors of a sparse model.
    pub rank: Option<usize>,
}

pub(super) const QWEN_HALF: Shape = Shape {
    layers: 24,
    d_model: 896,
    heads: 14,
    kv_heads: 2,
    head_dim: 64,
    d_ff: 4864,
    vocabulary: 151_936,
    attention: BlockType::Q5_0,
    ffn: [BlockType::Q5_0, BlockType::Q5_0, BlockType::Q6_K],
    head: BlockType::Q8_0,
    rank: None,
};

pub(super) const QWEN: Shape = Shape {
    layers: 28,
    d_model: 1536,
    heads: 12,
    kv_heads: 2,
    head_dim: 128,
    d_ff: 8960,
    vocabulary: 151_936,
    attention: BlockType::Q4_K,
    ffn: [BlockType::Q4_K, BlockType::Q4_K, BlockType::Q6_K],
    head: BlockType::Q6_K,
    rank: None,
};

pub(super) const SPARSE_7B: Shape = Shape {
    layers: 32,
    d_model: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    d_ff: 14336,
    vocabulary: 32_000,
    attention: BlockType::Q4_0,
    ffn: [BlockType::Q4_0; 3],
    head: BlockType::Q4_0,
    rank: Some(256),
};

/// A directory as it is written, entry by entry.
#[derive(Default)]
struct Directory {
    clusters: Vec<DirectoryEntry>,
    matrices: Vec<StoredMatrix>,
}

impl Directory {
    fn push(&mut self, content: Content, (first, n): (usize, usize), len: usize) {
        self.clusters.push(DirectoryEntry {
            content,
            first: first as u32,
            count: n as u32,
            len: len as u32,
            offset: 0,
            sum: 0,
        });
    }

    /// A matrix in clusters of rows.
    fn rows(&mut self, tensor: TensorId, block: BlockType, [rows, cols]: [usize; 2]) {
        let row = cols / block.block_len() * block.block_bytes();
        let clusters = (rows * row).div_ceil(CLUSTER_BYTES);
        let per = rows.div_ceil(clusters).next_multiple_of(PANEL);
        let content = match tensor {
            TensorId::TokenEmbedding => Content::Table(tensor),
            tensor => Content::Rows(tensor),
        };
        for first in (0..rows).step_by(per) {
            let n = per.min(rows - first);
            self.push(content, (first, n), n.next_multiple_of(PANEL) * row);
        }
        self.matrices.push(StoredMatrix {
            tensor,
            rows,
            cols,
            block,
            rows_per_cluster: per,
        });
    }

    fn layer(&mut self, s: &Shape, l: usize) -> FfnGeometry {
        let (d, q, kv) = (s.d_model, s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let matrices = [
            (T::Q, [q, d]),
            (T::K, [kv, d]),
            (T::V, [kv, d]),
            (T::O, [d, q]),
        ];
        for (tensor, size) in matrices {
            self.rows(TensorId::Layer(l, tensor), s.attention, size);
        }
        let layout = match s.rank {
            Some(_) => FfnLayout::Neuron,
            None => FfnLayout::Cluster,
        };
        let [gate, up, down] = s.ffn;
        let ffn = FfnGeometry::choose(layout, (gate, Some(up), down), d, s.d_ff);
        for first in (0..s.d_ff).step_by(ffn.neurons) {
            let n = ffn.neurons.min(s.d_ff - first);
            self.push(Content::Neurons(l), (first, n), ffn.cluster_bytes(n));
        }
        ffn
    }
}

/// A packed model of this shape.
pub(super) fn shaped(s: &Shape) -> Bundle {
    let mut bundle = bundle(false);
    let meta = &mut bundle.meta;
    meta.network = Uniform {
        name: "shape".into(),
        n_layers: s.layers,
        d_model: s.d_model,
        n_heads: s.heads,
        n_kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        d_ff: s.d_ff,
        vocab_size: s.vocabulary,
        context_length: 32768,
        rms_eps: 1e-5,
        rope: Rope::plain(1e4, s.head_dim, RopePairing::HalfSplit),
        window: None,
        activation: Activation::Silu,
        qkv_bias: false,
        tied_head: s.rank.is_none(),
        predictor_threshold: 0.0,
    }
    .network();
    let mut directory = Directory::default();
    meta.ffns = (0..s.layers).map(|l| Some(directory.layer(s, l))).collect();
    meta.experts = vec![None; s.layers];
    let table = [s.vocabulary, s.d_model];
    directory.rows(TensorId::OutputHead, s.head, table);
    if let Some(rank) = s.rank {
        directory.rows(TensorId::TokenEmbedding, s.head, table);
        for l in 0..s.layers {
            let predictor = [
                (T::PredictorFc1, [rank, s.d_model]),
                (T::PredictorFc2, [s.d_ff, rank]),
            ];
            for (tensor, size) in predictor {
                directory.rows(TensorId::Layer(l, tensor), BlockType::Q8_0, size);
            }
        }
        let predictor = LayerPredictor {
            rank,
            threshold: 0.0,
        };
        meta.predictors = Some(vec![predictor; s.layers]);
    }
    meta.matrices = directory.matrices;
    bundle.clusters = directory.clusters;
    bundle
}

/// What the sparse model wants, as it was measured (README, "By memory").
pub(super) fn profile(s: &Shape) -> Profile {
    const WANTED: f64 = 0.095;
    /// Part of the wanted neurons that a cache misses, by twentieths of all neurons.
    const MISSED: [f64; 20] = [
        0.58, 0.42, 0.31, 0.235, 0.175, 0.125, 0.091, 0.064, 0.045, 0.032, 0.023, 0.0165, 0.0105,
        0.0065, 0.004, 0.0032, 0.0027, 0.0023, 0.002, 0.0,
    ];
    let all = (s.layers * s.d_ff) as f64;
    let point = |(i, miss_rate): (usize, f64)| {
        let per_token = all * WANTED * miss_rate;
        MissPoint {
            cached: (i + 1) as f64 / MISSED.len() as f64,
            miss_rate,
            per_token,
            reads: 0.95 * per_token,
            bytes: per_token * 8192.0,
        }
    };
    Profile {
        tokens: 400,
        sparsity: Sparsity::Predicted,
        wanted: vec![WANTED; s.layers],
        overlap: 0.5,
        top_fifth_share: 0.6,
        policy: "two queues".into(),
        misses: MISSED.into_iter().enumerate().map(point).collect(),
        counts: Vec::new(),
        experts: None,
    }
}

/// Rates of a machine, per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speeds {
    pub cores: usize,
    /// Bytes that one core reads from memory, and that all read together.
    pub memory: [f64; 2],
    /// Operations of one core's products.
    pub products: f64,
    /// Reads of neurons.
    pub reads: f64,
    /// Bytes in large reads.
    pub stream: f64,
}

/// The machine of the README's table: 2 vCPUs with AVX-512 VNNI and a virtual disk.
pub(super) const SERVER: Speeds = Speeds {
    cores: 2,
    memory: [33e9, 38e9],
    products: 6e11,
    reads: 70e3,
    stream: 2.4e9,
};

/// More cores of less worth, and a slower disk.
pub(super) const BOARD: Speeds = Speeds {
    cores: 6,
    memory: [9e9, 24e9],
    products: 1e11,
    reads: 25e3,
    stream: 0.9e9,
};

/// What was measured of that machine for a model.
pub(super) fn machine_for(
    bundle: &Bundle,
    sparsity: Sparsity,
    s: &Speeds,
) -> (MachineProfile, DiskProfile) {
    let [one, all] = s.memory;
    let mut machine = MachineProfile::empty("test".into(), (0..s.cores).collect());
    let added = |n: usize| (one * n as f64).min(all);
    machine.memory = (1..=s.cores).map(added).collect();
    let rate = |kernel: Kernel| {
        let part = match kernel {
            Kernel::Gemm => {
                return KernelRate {
                    alone: s.products,
                    together: s.products * s.cores as f64 * 0.95,
                    read_alone: 0.0,
                    read_together: 0.0,
                };
            }
            Kernel::Gemv => 0.88,
            Kernel::GemvRows => 0.75,
            Kernel::DotGathered => 0.6,
            Kernel::AxpyGathered => 0.35,
        };
        KernelRate {
            alone: part * one,
            together: (part * one * s.cores as f64).min(0.95 * all),
            read_alone: one,
            read_together: all,
        }
    };
    let cases = kernel_cases(bundle, sparsity);
    machine.kernels = cases
        .iter()
        .map(|c| (c.key(), rate(c.kernel)))
        .collect::<BTreeMap<_, _>>();
    // A disk that takes so many reads, or so many bytes, whichever binds. With few in flight it takes fewer, of small
    // reads above all.
    let of = |(depth, [reads, stream]): (usize, [f64; 2]), block_bytes: u64| {
        let seconds = (1.0 / (s.reads * reads)).max(block_bytes as f64 / (s.stream * stream));
        DiskRate {
            block_bytes,
            depth,
            bytes_per_second: block_bytes as f64 / seconds,
        }
    };
    let depths = [(4, [0.15, 0.7]), (16, [0.5, 0.97]), (64, [1.0, 1.0])];
    let blocks = [4u64, 8, 16, 32, 96, 256, 512].map(|kib| kib << 10);
    let rates = depths
        .into_iter()
        .flat_map(|depth| blocks.map(|block| of(depth, block)));
    let disk = DiskProfile {
        rates: rates.collect(),
        ..DiskProfile::default()
    };
    (machine, disk)
}
