//! The work list of one core: which clusters it owns, phase by phase, and where each comes from.

use forebay_models::bundle::{Bundle, ClusterKind};
use forebay_plans::residency::{Residency, ResidencyPlan};

/// Where a cluster's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Wholly in memory.
    Pinned,
    /// Gate in memory, Up and Down by neuron; the cluster's first neuron among the core's cached ones.
    GatePinned {
        /// Index of its first neuron.
        base: u32,
    },
    /// All of it by neuron.
    Neurons {
        /// Index of its first neuron.
        base: u32,
    },
    /// Through the stream window, at this place of the cycle.
    Streamed {
        /// Place in the cycle.
        ordinal: u32,
    },
    /// Whole through the prefill graph's window, though single neurons are cached.
    Preloaded {
        /// Place in the cycle.
        ordinal: u32,
        /// Index of its first neuron.
        base: u32,
    },
}

impl Source {
    /// Whether single neurons are read.
    pub fn is_by_neuron(self) -> bool {
        matches!(self, Self::GatePinned { .. } | Self::Neurons { .. })
    }

    /// Place in the cycle of a cluster that comes through a window.
    pub fn ordinal(self) -> Option<usize> {
        match self {
            Self::Streamed { ordinal } | Self::Preloaded { ordinal, .. } => Some(ordinal as usize),
            Self::Pinned | Self::GatePinned { .. } | Self::Neurons { .. } => None,
        }
    }
}

/// A cluster on a core's work list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Directory index.
    pub cluster: u32,
    /// Where its weights come from.
    pub source: Source,
}

/// All work of one core for one step.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Q, K and V clusters by layer.
    pub qkv: Vec<Vec<Item>>,
    /// Attention output clusters by layer.
    pub output: Vec<Vec<Item>>,
    /// Clusters of the predictor's fc1 by layer; none where neurons are not predicted. With
    /// [`Program::look_ahead`] those of the next layer's come behind them.
    pub predictor: Vec<Vec<Item>>,
    /// FFN clusters by layer.
    pub ffn: Vec<Vec<Item>>,
    /// Head clusters.
    pub head: Vec<Item>,
    /// Cluster by stream ordinal, in the order of use.
    pub stream: Vec<u32>,
    /// Neurons that the neuron cache may hold.
    pub cached_neurons: usize,
}

impl Program {
    /// The work list of core `rank`.
    pub fn new(bundle: &Bundle, plan: &ResidencyPlan, rank: usize) -> Self {
        let n_layers = bundle.meta.config.n_layers;
        let mut program = Self {
            qkv: vec![Vec::new(); n_layers],
            output: vec![Vec::new(); n_layers],
            predictor: vec![Vec::new(); n_layers],
            ffn: vec![Vec::new(); n_layers],
            ..Self::default()
        };
        // The directory lists clusters in the order of use.
        for (i, e) in bundle.clusters.iter().enumerate() {
            if usize::from(plan.owner[i]) != rank {
                continue;
            }
            let source = match plan.residency[i] {
                Residency::OnFlash => continue,
                Residency::Pinned => Source::Pinned,
                kept @ (Residency::GatePinned | Residency::Neurons) => {
                    let base = program.cached_neurons as u32;
                    program.cached_neurons += e.count as usize;
                    match kept {
                        Residency::GatePinned => Source::GatePinned { base },
                        _ => Source::Neurons { base },
                    }
                }
                Residency::Streamed => {
                    program.stream.push(i as u32);
                    Source::Streamed {
                        ordinal: program.stream.len() as u32 - 1,
                    }
                }
            };
            let item = Item {
                cluster: i as u32,
                source,
            };
            match (e.kind, e.layer.map(usize::from)) {
                (ClusterKind::Q | ClusterKind::K | ClusterKind::V, Some(l)) => {
                    program.qkv[l].push(item)
                }
                (ClusterKind::O, Some(l)) => program.output[l].push(item),
                (ClusterKind::Ffn, Some(l)) => program.ffn[l].push(item),
                (ClusterKind::PredictorHidden, Some(l)) => program.predictor[l].push(item),
                // Every core takes the rows of its own neurons.
                (ClusterKind::PredictorScore, _) => {}
                _ => program.head.push(item),
            }
        }
        program
    }

    /// Computes the next layer's fc1 with each layer's.
    pub fn look_ahead(&mut self) {
        for layer in 1..self.predictor.len() {
            let next: Vec<Item> = self.predictor[layer].clone();
            self.predictor[layer - 1].extend(next);
        }
    }

    /// Its row phases, and of these the clusters that are in memory.
    pub fn pinned_rows(&self) -> Self {
        let pinned = |items: &Vec<Item>| -> Vec<Item> {
            let pinned = items.iter().filter(|item| item.source == Source::Pinned);
            pinned.copied().collect()
        };
        let layers = |items: &[Vec<Item>]| items.iter().map(pinned).collect();
        Self {
            qkv: layers(&self.qkv),
            output: layers(&self.output),
            predictor: layers(&self.predictor),
            head: pinned(&self.head),
            ..Self::default()
        }
    }

    /// Whether prompts can preload clusters of which single neurons are cached: none is streamed anyway.
    pub fn can_preload(&self) -> bool {
        self.cached_neurons > 0 && self.stream.is_empty()
    }

    /// The same work with whole clusters preloaded instead of single neurons, for prompts.
    pub fn preloading(&self) -> Self {
        let mut program = self.clone();
        for item in program.ffn.iter_mut().flatten() {
            if let Source::Neurons { base } | Source::GatePinned { base } = item.source {
                let ordinal = program.stream.len() as u32;
                program.stream.push(item.cluster);
                item.source = Source::Preloaded { ordinal, base };
            }
        }
        program
    }

    /// Clusters whose neurons are cached, in the order of the directory, each with the number of its first
    /// neuron among the core's cached ones.
    pub fn cached_clusters(&self) -> Vec<(u32, u32)> {
        let items = self.ffn.iter().flatten();
        let cached = items.filter_map(|item| match item.source {
            Source::Neurons { base } | Source::GatePinned { base } => Some((item.cluster, base)),
            _ => None,
        });
        cached.collect()
    }

    /// Streamed clusters that a step takes, with the head's or without them: the head's come last.
    pub fn streamed(&self, with_head: bool) -> usize {
        let streamed = |item: &&Item| item.source.ordinal().is_some();
        let head = self.head.iter().filter(streamed).count();
        self.stream.len() - if with_head { 0 } else { head }
    }

    /// Most FFN clusters of a layer.
    pub fn max_flights(&self) -> usize {
        self.ffn.iter().map(Vec::len).max().unwrap_or(0)
    }
}
