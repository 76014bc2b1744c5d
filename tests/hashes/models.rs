//! The models in the table.

use std::path::PathBuf;

use crate::cases::{Extent, KV_FORMATS, extent};
use crate::program_runs;
use crate::prompts::{self, PromptStyle};
use crate::support;

/// Where a model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Part of the program.
    Embedded,
    /// A path in the repository.
    Repository(&'static str),
    /// Random weights, in `tests/golden/tiny`.
    Tiny,
    /// Made by `forebay synth`, with these options besides the shape.
    Synthetic(&'static [&'static str]),
    /// A file in the folder of real models.
    Real(&'static str),
}

/// A model and what is run with it.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its name in the table.
    pub name: &'static str,
    pub source: Source,
    /// Values of `--sparsity`.
    pub sparsities: &'static [&'static str],
    /// Value of `--density` for `--sparsity threshold`: less than the share of live neurons, or it changes nothing.
    pub density: f64,
    /// Prompt lengths in tokens.
    pub prompts: [usize; 3],
    /// Positions of the KV cache.
    pub context: usize,
    pub style: &'static PromptStyle,
}

/// A model that can be run.
#[derive(Debug)]
pub struct PreparedModel {
    pub model: &'static Model,
    /// `None` for the embedded demo.
    pub path: Option<PathBuf>,
}

/// A single row, a part of a batch, and two full batches of 128 tokens with a rest.
const PROMPTS: [usize; 3] = [1, 33, 300];
/// The same for models that were made for 256 positions.
const TINY_PROMPTS: [usize; 3] = [1, 33, 200];
const ALL_SPARSITIES: &[&str] = &["exact", "predicted", "threshold", "dense"];
const WITHOUT_PREDICTORS: &[&str] = &["exact", "threshold", "dense"];

const DEMO: Model = Model {
    name: "demo",
    source: Source::Embedded,
    // No threshold: `calibrate` needs a path, and the embedded model has none.
    sparsities: &["exact", "dense"],
    density: 0.05,
    prompts: PROMPTS,
    context: 512,
    style: &prompts::STORY,
};

const fn tiny(name: &'static str) -> Model {
    Model {
        name,
        source: Source::Tiny,
        sparsities: WITHOUT_PREDICTORS,
        density: 0.25,
        prompts: TINY_PROMPTS,
        context: 256,
        style: &prompts::LETTERS,
    }
}

const fn real(name: &'static str, file: &'static str) -> Model {
    Model {
        name,
        source: Source::Real(file),
        sparsities: WITHOUT_PREDICTORS,
        density: 0.5,
        style: &prompts::WORDS,
        ..DEMO
    }
}

pub const ALL: &[Model] = &[
    DEMO,
    Model {
        name: "demo_predicted",
        source: Source::Repository("models/demo/hf"),
        sparsities: &["predicted", "threshold"],
        ..DEMO
    },
    Model {
        name: "tiny_sparse",
        source: Source::Synthetic(&[]),
        sparsities: ALL_SPARSITIES,
        style: &prompts::BYTES,
        ..DEMO
    },
    Model {
        name: "tiny_sparse_before_attention",
        source: Source::Synthetic(&["--before-attention"]),
        sparsities: &["predicted"],
        style: &prompts::BYTES,
        ..DEMO
    },
    real("smollm2_q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    real(
        "qwen_0.5b_q4_k_m",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
    Model {
        sparsities: ALL_SPARSITIES,
        ..tiny("bamboo_powerinfer")
    },
    tiny("bamboo_drelu_bf16"),
    tiny("llama_relu_f16"),
    tiny("llama_k"),
    tiny("llama3_rope_bf16"),
    tiny("mistral_window_f16_sharded"),
    tiny("qwen2_k"),
    tiny("qwen2_untied_f16"),
];

/// The model of that name in the table.
pub fn named(name: &str) -> &'static Model {
    let found = ALL.iter().find(|m| m.name == name);
    found.unwrap_or_else(|| panic!("there is no model {name}"))
}

impl Model {
    pub fn is_tiny(&self) -> bool {
        self.source == Source::Tiny
    }

    /// Whether a run takes milliseconds.
    pub fn is_small(&self) -> bool {
        !matches!(self.source, Source::Real(_))
    }

    /// The sparsities that are run now.
    pub fn sparsities_to_run(&self) -> Vec<&'static str> {
        let too_slow = |sparsity: &str| match sparsity {
            // The same as dense for SiLU.
            "exact" => !self.is_small(),
            // They would be packed a second time, neuron by neuron, and calibrated.
            "threshold" => !self.is_small(),
            _ => false,
        };
        let mut sparsities = self.sparsities.to_vec();
        sparsities.retain(|sparsity| extent() != Extent::Part || !too_slow(sparsity));
        sparsities
    }

    /// The sparsity, KV cache format and prompt length of all its cases.
    pub fn cases(&self) -> Vec<(&'static str, &'static str, usize)> {
        let mut cases = Vec::new();
        for &sparsity in self.sparsities {
            for kv in KV_FORMATS {
                cases.extend(self.prompts.map(|prompt| (sparsity, kv, prompt)));
            }
        }
        cases
    }

    /// The names of all its cases in the table.
    pub fn keys(&self) -> Vec<String> {
        let cases = self.cases().into_iter();
        cases
            .map(|(sparsity, kv, prompt)| self.key(sparsity, kv, prompt))
            .collect()
    }

    /// The name of a case in the table. The number is padded so that names sort by it.
    pub fn key(&self, sparsity: &str, kv: &str, prompt: usize) -> String {
        format!("{} {sparsity} {kv} {prompt:>3}", self.name)
    }

    /// Finds or makes the model; `None`, with a message, where a real model is missing.
    pub fn prepare(&'static self) -> Option<PreparedModel> {
        let path = match self.source {
            Source::Embedded => None,
            Source::Repository(path) => Some(support::root().join(path)),
            Source::Tiny => Some(support::tiny(self.name)),
            Source::Synthetic(options) => Some(program_runs::synthesize(self.name, options)),
            Source::Real(file) => Some(support::real_model(file)?),
        };
        let prepared = PreparedModel { model: self, path };
        if self.sparsities_to_run().contains(&"threshold") {
            program_runs::calibrate(&prepared);
        }
        Some(prepared)
    }
}
