//! Flags that shape the engine, the same for every command that runs a model.

use std::path::PathBuf;
use std::sync::Once;

use clap::{Args, ValueEnum};
use forebay::{DriverChoice, EngineBuilder, Error, Isa, KvType, PlanGoal, Sparsity};
use forebay_plans::limits::MemoryLimits;
use forebay_plans::size::{MemorySize, SizeError, format_size};

use super::device_flag::DeviceName;
use super::expert_flags::ExpertFlags;
use super::numbers::part;
use super::output::say;

#[derive(Clone, Debug, Default, Args)]
pub struct EngineFlags {
    /// Compute threads, each pinned to a core; at most as many as heads of a layer [default: one per big and mid core].
    #[arg(long, short = 't', value_name = "N", help_heading = "Model")]
    pub threads: Option<usize>,
    /// Which FFN neurons are computed [default: predicted if the model has predictors, exact for other ReLU models,
    /// dense for others].
    #[arg(long, value_enum, help_heading = "Model")]
    pub sparsity: Option<SparsityFlag>,
    /// Part of the neurons that `--sparsity threshold` computes, 0 to 1 [default: what `forebay calibrate`
    /// found for its --perplexity-rise, or 0.5].
    #[arg(long, value_name = "PART", value_parser = part, help_heading = "Model")]
    pub density: Option<f64>,
    #[command(flatten)]
    pub experts: ExpertFlags,
    /// What computes beside the CPU: auto, a GPU as far as it makes the model faster; cpu, nothing; gpu, the first one;
    /// or gpu:N of `forebay doctor`. GPUs need a build with --features gpu. The tokens are the same [default: auto].
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub device: Option<DeviceName>,
    /// Memory for the whole process: 2GiB, 600MiB, a share of what is available such as 50%, or auto: the minimum
    /// that is nearly as fast as all of it.
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Memory")]
    pub memory: Option<MemoryFlag>,
    /// A plan that `forebay plan --json` wrote; flags override it.
    #[arg(long, value_name = "FILE", help_heading = "Memory")]
    pub plan: Option<PathBuf>,
    /// Number format of the KV cache: f16, or q8 in a little more than half the memory, which is slightly lossy.
    #[arg(long, value_name = "TYPE", default_value_t, help_heading = "Memory")]
    pub kv: KvType,
    /// Release weights while the machine or the process's control group is short of memory, and read them from disk
    /// instead.
    #[arg(long, help_heading = "Memory")]
    pub yield_memory: bool,
    /// Folder for packed models [default: $FOREBAY_CACHE, $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "FOLDER", help_heading = "Memory")]
    pub cache: Option<PathBuf>,
    /// Start with an empty neuron cache, and do not save it for the next run.
    #[arg(long, help_heading = "Advanced")]
    pub cold: bool,
    /// How the packed model is read.
    #[arg(long, value_enum, default_value_t, help_heading = "Advanced")]
    pub io: IoFlag,
    /// Instruction set of the kernels: scalar, avx2, avxvnni, avx512vnni, amx, neon, neon-dotprod or neon-i8mm
    /// [default: the best available].
    #[arg(long, value_name = "NAME", help_heading = "Advanced")]
    pub isa: Option<Isa>,
}

/// Choices of `--sparsity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SparsityFlag {
    /// Gate for all neurons, Up and Down only for those whose gate is not zero.
    Exact,
    /// Those that the model's activation predictors name.
    Predicted,
    /// Those whose activated gate is not small (approximate): see `forebay calibrate`.
    Threshold,
    /// All neurons.
    Dense,
}

/// Choices of `--memory`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryFlag {
    /// The minimum that is nearly as fast as all of it.
    Auto,
    /// This many bytes, or this share.
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

/// Says that a budget is too large. Commands that make several engines say it once.
fn warn_once(limits: &MemoryLimits, budget: u64) {
    static WARNED: Once = Once::new();
    if let Some(warning) = too_large(limits, budget) {
        WARNED.call_once(|| say(format_args!("forebay: warning: {warning}")));
    }
}

/// What will happen under a budget that the machine or a control group does not have.
fn too_large(limits: &MemoryLimits, budget: u64) -> Option<String> {
    let most = limits.effective_total();
    if budget <= most {
        return None;
    }
    let (whose, end) = match limits.lowest_group() {
        Some(group) => (
            format!("that the control group {} allows", group.dir.display()),
            "the kernel ends the program when it takes more",
        ),
        None => (
            "of memory that this machine has".to_string(),
            "the system may swap, or end the program",
        ),
    };
    Some(format!(
        "--memory {} is more than the {} {whose}; {end}; give --memory {}MiB or less, or omit it",
        format_size(budget),
        format_size(most),
        limits.effective_available() >> 20
    ))
}

/// Choices of `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IoFlag {
    /// `io_uring` if the system allows it, else threads.
    #[default]
    Auto,
    /// `io_uring`, or an error.
    Uring,
    /// Threads with positioned reads (`pread`).
    Pread,
}

impl EngineFlags {
    /// Applies the flags.
    pub fn configure(&self, mut builder: EngineBuilder) -> Result<EngineBuilder, Error> {
        match self.memory {
            Some(MemoryFlag::Size(size)) => {
                let limits = MemoryLimits::read()?;
                let bytes = size.resolve(limits.effective_available());
                warn_once(&limits, bytes);
                builder = builder.memory(bytes);
            }
            Some(MemoryFlag::Auto) => builder = builder.goal(PlanGoal::Enough),
            None => {}
        }
        if self.density.is_some() && self.sparsity != Some(SparsityFlag::Threshold) {
            let problem = "only --sparsity threshold uses it; give that as well, or omit it";
            return Err(Error::InvalidParameter {
                name: "--density".into(),
                problem: problem.into(),
            });
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
        let device = self.device.unwrap_or_default();
        builder = builder
            .device(device.0)
            .fewer_experts(self.experts.fewer())
            .hot_set(!self.cold)
            // Only `run` and `chat` run tokens ahead: the flags of drafts ask for them.
            .drafts(false)
            .yields_memory(self.yield_memory)
            .kv_type(self.kv);
        Ok(builder.driver(match self.io {
            IoFlag::Auto => DriverChoice::Auto,
            IoFlag::Uring => DriverChoice::Uring,
            IoFlag::Pread => DriverChoice::Pread,
        }))
    }
}

#[cfg(test)]
mod tests {
    use forebay_plans::cgroup::Version;
    use forebay_plans::limits::{GroupLimit, HugePages, Rlimit};

    use super::*;

    #[test]
    fn a_budget_above_a_limit_is_warned_of_with_both_numbers() {
        let mut limits = MemoryLimits {
            total_bytes: 8 << 30,
            available_bytes: 6 << 30,
            swap_bytes: 0,
            groups: Vec::new(),
            memlock: Rlimit::Unlimited,
            address_space: Rlimit::Unlimited,
            huge_pages: HugePages::Madvise,
        };
        assert_eq!(too_large(&limits, 8 << 30), None);
        let warning = too_large(&limits, 9 << 30).expect("more than there is");
        for part in ["9.00 GiB", "8.00 GiB", "this machine", "--memory 6144MiB"] {
            assert!(warning.contains(part), "{warning}");
        }
        limits.groups.push(GroupLimit {
            dir: "/sys/fs/cgroup/small".into(),
            version: Version::V2,
            limit_bytes: 2 << 30,
            used_bytes: 1 << 29,
            reclaimable_bytes: 0,
        });
        assert_eq!(too_large(&limits, 2 << 30), None);
        let warning = too_large(&limits, 3 << 30).expect("more than the group allows");
        for part in [
            "3.00 GiB",
            "2.00 GiB",
            "/sys/fs/cgroup/small",
            "--memory 1536MiB",
        ] {
            assert!(warning.contains(part), "{warning}");
        }
    }
}
