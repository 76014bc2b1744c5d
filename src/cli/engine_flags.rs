//! Flags that shape the engine, the same for every command that runs a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay::plans::limits::MemoryLimits;
use forebay::plans::size::{MemorySize, SizeError};
use forebay::{
    DriverChoice, EngineBuilder, Isa, KvType, Loading, NeuronOptions, Pipeline, PlanGoal,
    PolicyKind, Sparsity,
};

#[derive(Clone, Debug, Default, Args)]
pub struct EngineFlags {
    /// Memory for the whole process: 2GiB, 600MiB, a share of what is available such as 50%, or auto: the least that
    /// is nearly as fast as all of it.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub memory: Option<MemoryFlag>,
    /// A plan that `forebay plan --json` wrote; flags given beside it go before it.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Compute threads, each pinned to a core; no more than query heads are used [default: one per big and
    /// mid core].
    #[arg(long, short = 't', value_name = "N")]
    pub threads: Option<usize>,
    /// Which FFN neurons are computed [default: predicted where the model has predictors, exact for other
    /// ReLU models, dense for others].
    #[arg(long, value_enum)]
    pub sparsity: Option<SparsityFlag>,
    /// Part of the neurons that `--sparsity threshold` computes, 0 to 1 [default: what `forebay calibrate`
    /// found for its --perplexity-rise, or 0.5].
    #[arg(long, value_name = "PART", value_parser = part)]
    pub density: Option<f64>,
    /// With `--sparsity threshold`: neurons in memory pass at 1 - P of the threshold, others at 1 / (1 - P) of it
    /// (DIP-CA). Fewer reads, but what is generated then depends on the memory.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = preference)]
    pub cache_preference: f32,
    /// Which neurons stay in memory: frequency, two-queue (PowerInfer-2), lru, window:K (those of the last K
    /// tokens, LLM in a Flash) or none [default: frequency].
    #[arg(long, value_name = "NAME")]
    pub policy: Option<PolicyKind>,
    /// How the neurons that are missing are read.
    #[arg(long, value_enum)]
    pub loading: Option<LoadingFlag>,
    /// What overlaps while the FFN is computed.
    #[arg(long, value_enum)]
    pub pipeline: Option<PipelineFlag>,
    /// Read what the next layer will probably want while the present one is computed: more reads, less waiting;
    /// for disks with reads to spare.
    #[arg(long)]
    pub look_ahead: bool,
    /// Start with an empty neuron cache, and do not keep what is in it for the next run.
    #[arg(long)]
    pub cold: bool,
    /// Give weights in memory up while the machine or its control group is short of it, and read them instead.
    #[arg(long)]
    pub yield_memory: bool,
    /// Another engine's way of running sparse models, for comparison: sets --policy, --loading and
    /// --pipeline unless they are given.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Folder for packed models [default: $FOREBAY_CACHE, $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// How the packed model is read.
    #[arg(long, value_enum, default_value_t)]
    pub io: IoFlag,
    /// Instruction set of the kernels: scalar, avx2, avxvnni, avx512vnni, neon, neon-dotprod or neon-i8mm [default:
    /// the best there is].
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Number format of the KV cache: f16, or q8 in half the memory, which is lossy.
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub kv: KvType,
}

/// Choices of `--sparsity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SparsityFlag {
    /// Gate for all neurons, Up and Down only where the gate is not zero.
    Exact,
    /// Those that the model's activation predictors name.
    Predicted,
    /// Those whose activated gate is not small (approximate): see `forebay calibrate`.
    Threshold,
    /// All neurons.
    Dense,
}

/// Choices of `--loading`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadingFlag {
    /// A neuron's Gate, Up and Down in one read.
    Bundle,
    /// In two halves, the second only when the gate is live.
    Split,
    /// Each row in a read of its own.
    Rows,
}

/// Choices of `--pipeline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PipelineFlag {
    /// Clusters of any matrix are computed as they arrive.
    Cluster,
    /// Reading and computing overlap within a matrix only.
    Matrix,
    /// Reads block.
    None,
}

/// Choices of `--preset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// The neurons of the last five tokens stay, bundles, reads block (arXiv 2312.11514).
    LlmInAFlash,
}

/// Choices of `--memory`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryFlag {
    /// The least that is nearly as fast as all there is.
    Auto,
    /// So much.
    Size(MemorySize),
}

fn memory(text: &str) -> Result<MemoryFlag, String> {
    match text {
        "auto" => Ok(MemoryFlag::Auto),
        _ => text
            .parse()
            .map(MemoryFlag::Size)
            .map_err(|e: SizeError| e.to_string()),
    }
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
        _ => Err("give a number above 0 and at most 1".into()),
    }
}

fn preference(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(p) if (0.0..1.0).contains(&p) => Ok(p),
        _ => Err("give a number from 0 to below 1".into()),
    }
}

/// Choices of `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IoFlag {
    /// `io_uring` where the system allows it, else threads.
    #[default]
    Auto,
    /// `io_uring` or nothing.
    Uring,
    /// Threads with positioned reads.
    Pread,
}

impl EngineFlags {
    /// How neurons are kept and read.
    pub fn neurons(&self) -> NeuronOptions {
        let mut options = match self.preset {
            Some(Preset::LlmInAFlash) => NeuronOptions {
                policy: PolicyKind::Window(PolicyKind::DEFAULT_WINDOW),
                loading: Loading::Bundle,
                pipeline: Pipeline::None,
                look_ahead: false,
            },
            None => NeuronOptions::default(),
        };
        options.look_ahead = self.look_ahead;
        options.policy = self.policy.unwrap_or(options.policy);
        if let Some(loading) = self.loading {
            options.loading = match loading {
                LoadingFlag::Bundle => Loading::Bundle,
                LoadingFlag::Split => Loading::Split,
                LoadingFlag::Rows => Loading::Rows,
            };
        }
        if let Some(pipeline) = self.pipeline {
            options.pipeline = match pipeline {
                PipelineFlag::Cluster => Pipeline::Cluster,
                PipelineFlag::Matrix => Pipeline::Matrix,
                PipelineFlag::None => Pipeline::None,
            };
        }
        options
    }

    /// Applies the flags.
    pub fn configure(&self, mut builder: EngineBuilder) -> anyhow::Result<EngineBuilder> {
        match self.memory {
            Some(MemoryFlag::Size(size)) => {
                builder = builder.memory(size.resolve(MemoryLimits::read()?.effective_available()));
            }
            Some(MemoryFlag::Auto) => builder = builder.goal(PlanGoal::Enough),
            None => {}
        }
        if let Some(plan) = &self.plan {
            builder = builder.plan_file(plan);
        }
        if let Some(n) = self.threads {
            builder = builder.threads(n);
        }
        if let Some(sparsity) = self.sparsity {
            builder = builder.sparsity(match sparsity {
                SparsityFlag::Exact => Sparsity::Exact,
                SparsityFlag::Predicted => Sparsity::Predicted,
                SparsityFlag::Threshold => Sparsity::Threshold,
                SparsityFlag::Dense => Sparsity::Dense,
            });
        }
        if let Some(folder) = &self.cache {
            builder = builder.cache_folder(folder);
        }
        if let Some(isa) = self.isa {
            builder = builder.isa(isa);
        }
        if let Some(density) = self.density {
            builder = builder.density(density);
        }
        builder = builder
            .cache_preference(self.cache_preference)
            .hot_set(!self.cold)
            .yields_memory(self.yield_memory)
            .neurons(self.neurons());
        if self.loading.is_some() || self.preset.is_some() {
            builder = builder.loading(self.neurons().loading);
        }
        Ok(builder.kv_type(self.kv).driver(match self.io {
            IoFlag::Auto => DriverChoice::Auto,
            IoFlag::Uring => DriverChoice::Uring,
            IoFlag::Pread => DriverChoice::Pread,
        }))
    }
}
