//! Flags that shape the engine, the same for every command that runs a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay::plans::limits::MemoryLimits;
use forebay::plans::size::MemorySize;
use forebay::{DriverChoice, EngineBuilder, Isa, KvType, Sparsity};

#[derive(Clone, Debug, Default, Args)]
pub struct EngineFlags {
    /// Memory for the whole process: 2GiB, 600MiB, or a share of what is available such as 50%.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemorySize>,
    /// Compute threads, each pinned to a core; no more than query heads are used [default: one per big and
    /// mid core].
    #[arg(long, short = 't', value_name = "N")]
    pub threads: Option<usize>,
    /// Which FFN neurons are computed [default: exact for ReLU models, dense for others].
    #[arg(long, value_enum)]
    pub sparsity: Option<SparsityFlag>,
    /// Folder for packed models [default: $FOREBAY_CACHE, $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// How the packed model is read.
    #[arg(long, value_enum, default_value_t)]
    pub io: IoFlag,
    /// Instruction set of the kernels: scalar, avx2, avxvnni, avx512vnni, neon, neon-dotprod or neon-i8mm [default: the best there is].
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
    /// All neurons.
    Dense,
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
    /// Applies the flags.
    pub fn configure(&self, mut builder: EngineBuilder) -> anyhow::Result<EngineBuilder> {
        if let Some(size) = self.memory {
            builder = builder.memory(size.resolve(MemoryLimits::read()?.effective_available()));
        }
        if let Some(n) = self.threads {
            builder = builder.threads(n);
        }
        if let Some(sparsity) = self.sparsity {
            builder = builder.sparsity(match sparsity {
                SparsityFlag::Exact => Sparsity::Exact,
                SparsityFlag::Dense => Sparsity::Dense,
            });
        }
        if let Some(folder) = &self.cache {
            builder = builder.cache_folder(folder);
        }
        if let Some(isa) = self.isa {
            builder = builder.isa(isa);
        }
        Ok(builder.kv_type(self.kv).driver(match self.io {
            IoFlag::Auto => DriverChoice::Auto,
            IoFlag::Uring => DriverChoice::Uring,
            IoFlag::Pread => DriverChoice::Pread,
        }))
    }
}
