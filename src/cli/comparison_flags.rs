//! Flags that compare ways of running sparse models. The best way is the default; other commands do not have these
//! flags.

use clap::{Args, ValueEnum, value_parser};
use forebay::{
    DeviceChoice, DevicePlacing, EngineBuilder, Error, Loading, NeuronOptions, Pipeline, PolicyKind,
};
use forebay_models::network::MOST_GUESSED_LAYERS;

use super::device_flag::DeviceName;
use super::numbers::part_or_none;

#[derive(Clone, Debug, Default, Args)]
pub struct ComparisonFlags {
    /// Which neurons stay in memory: frequency, two-queue (PowerInfer-2), lru, window:K (those of the last K
    /// tokens, LLM in a Flash) or none [default: frequency].
    #[arg(long, value_name = "NAME", help_heading = "Comparison")]
    policy: Option<PolicyKind>,
    /// How missing neurons are read, and clusters of experts that are stored by neuron.
    #[arg(long, value_enum, help_heading = "Comparison")]
    loading: Option<LoadingFlag>,
    /// What overlaps while the FFN is computed.
    #[arg(long, value_enum, help_heading = "Comparison")]
    pipeline: Option<PipelineFlag>,
    /// Of how many of the next layers the experts are guessed, and read ahead if they are not in memory [default: by
    /// the plan].
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(..=MOST_GUESSED_LAYERS as i64), help_heading = "Comparison")]
    guess_layers: Option<u8>,
    /// The part of every phase that the device computes, 0 to 1 [default: what is fastest].
    #[arg(long, value_name = "PART", value_parser = part_or_none, help_heading = "Comparison")]
    device_share: Option<f64>,
    /// Another engine's way of running sparse models: sets --policy, --loading, --pipeline and --guess-layers unless
    /// they are given.
    #[arg(long, value_enum, help_heading = "Comparison")]
    preset: Option<Preset>,
}

/// Choices of `--loading`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadingFlag {
    /// A neuron's Gate, Up and Down in one read.
    Bundle,
    /// In two halves, the second only if the gate is live.
    Split,
    /// Each row in its own read.
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

impl ComparisonFlags {
    /// How neurons are kept and read.
    fn neurons(&self) -> NeuronOptions {
        let mut options = match self.preset {
            Some(Preset::LlmInAFlash) => NeuronOptions {
                policy: PolicyKind::Window(PolicyKind::DEFAULT_WINDOW),
                loading: Loading::Bundle,
                pipeline: Pipeline::None,
                guesses: 0,
            },
            None => NeuronOptions::default(),
        };
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

    /// The first given flag that says what each rung of the ladder says itself.
    pub fn of_rungs(&self) -> Option<&'static str> {
        let given = [
            ("--policy", self.policy.is_some()),
            ("--loading", self.loading.is_some()),
            ("--pipeline", self.pipeline.is_some()),
            ("--guess-layers", self.guess_layers.is_some()),
            ("--preset", self.preset.is_some()),
        ];
        given
            .into_iter()
            .find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// Checks that the flags can mean something together with `--device`.
    ///
    /// # Errors
    /// A device is to have a share, and none may be used.
    pub fn check(&self, device: Option<DeviceName>) -> Result<(), Error> {
        let is_cpu = device.is_some_and(|DeviceName(choice)| choice == DeviceChoice::Cpu);
        let problem = match self.device_share {
            None => return Ok(()),
            Some(_) if is_cpu => {
                "--device cpu leaves nothing to a device; give another --device, or omit it"
            }
            Some(_) if cfg!(not(feature = "gpu")) => {
                "this build knows no devices; rebuild it with --features gpu, or omit it"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::InvalidParameter {
            name: "--device-share".into(),
            problem: problem.into(),
        })
    }

    /// Applies the flags.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        let options = self.neurons();
        let mut builder = builder.neurons(options);
        // Another engine guesses nothing.
        let guesses = self.guess_layers.map(usize::from);
        if let Some(n) = guesses.or(self.preset.map(|_| options.guesses)) {
            builder = builder.guess_layers(n);
        }
        if let Some(part) = self.device_share {
            builder = builder.device_placing(DevicePlacing::Part(part));
        }
        match self.loading.is_some() || self.preset.is_some() {
            true => builder.loading(options.loading),
            false => builder,
        }
    }
}
