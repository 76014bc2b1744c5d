//! The models that are put under pressure.
#![allow(
    dead_code,
    reason = "each test binary uses its own part of this module"
)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support;

/// Environment variable: how many times as long the tests run.
const LENGTH: &str = "FOREBAY_STRESS";

/// How many times as long as usual.
pub fn length() -> usize {
    let asked = std::env::var(LENGTH).ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// A model and how much of it is run.
#[derive(Debug)]
pub struct Subject {
    /// For messages.
    pub name: &'static str,
    /// `None` is the demo.
    pub model: Option<PathBuf>,
    /// Tokens of a run.
    pub tokens: usize,
}

impl Subject {
    /// The demo: exact sparsity, Gate rows pinned.
    pub fn demo() -> Self {
        Self {
            name: "demo",
            model: None,
            tokens: 48,
        }
    }

    /// A made-up model with predictors, whose neurons are most of it: whole bundles in the cache.
    pub fn sparse() -> Self {
        Self {
            name: "tiny-sparse",
            model: Some(sparse_model().to_path_buf()),
            tokens: 32,
        }
    }

    /// A made-up mixture of experts: clusters of experts in cells.
    pub fn experts() -> Self {
        Self {
            name: "tiny-experts",
            model: Some(expert_model().to_path_buf()),
            tokens: 32,
        }
    }

    /// Dense models, whose clusters are streamed: those that are there of as many as the tests' length allows.
    pub fn dense() -> Vec<Self> {
        let all = [
            ("SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf", 8),
            (
                "qwen2.5-coder-0.5b",
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                4,
            ),
            (
                "qwen2.5-coder-1.5b",
                "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                4,
            ),
        ];
        let some = all.into_iter().take(length() + 1);
        let there = some.filter_map(|(name, file, tokens)| {
            let model = Some(support::real_model(file)?);
            Some(Self {
                name,
                model,
                tokens,
            })
        });
        there.collect()
    }
}

/// 16 layers of 1024 neurons in f16: 24 MiB of neurons, and little else.
pub fn sparse_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| synth("tiny-sparse", "16", ("f16", "fbay")))
}

/// Its experts are most of it.
fn expert_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| synth("tiny-experts", "8", ("f16", "fbay")))
}

/// The same in a format that devices multiply, and as large.
pub fn quantised_expert_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| synth("tiny-experts", "16", ("q8_0", "fbay")))
}

/// A dense model, whose neurons are in panels, likewise.
pub fn quantised_dense_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| synth("tiny-sparse", "16", ("q8_0", "gguf")))
}

/// The model of a shape with this many layers in this format, as such a file: packed, or as GGUF.
fn synth(shape: &str, layers: &str, (quant, ending): (&str, &str)) -> PathBuf {
    let path = support::scratch().join(format!("{shape}-{quant}.{ending}"));
    if !path.exists() {
        let mut synth = support::program();
        synth.args(["synth", "--shape", shape, "--layers", layers]);
        synth.args(["--quant", quant, "--measure", "0", "--quiet", "-o"]);
        let done = synth.arg(&path).output().expect("the program starts");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "synth: {errors}");
    }
    path
}
