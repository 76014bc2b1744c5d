//! Flags that give up some of what a model says for speed, and what is said about it.

use clap::Args;
use forebay::quality::ExpertsDivergence;
use forebay::{Engine, FewerExperts};
use forebay_plans::size::format_size;

use super::output::say;

#[derive(Clone, Debug, Default, Args)]
pub struct ExpertFlags {
    /// Lossy: experts of a token, fewer than the model uses; `forebay eval experts` measures what is lost.
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub experts: Option<usize>,
    /// Lossy: while generating, omit what is not in memory of experts whose weight is less than this part of the
    /// token's largest, 0 to 1.
    #[arg(long, value_name = "PART", help_heading = "Model")]
    pub drop_cold_experts: Option<f32>,
    /// Lossy: while generating, choose experts in memory before others whose logits are larger by at most this part of
    /// the usual spread, 0 to 1.
    #[arg(long, value_name = "PART", help_heading = "Model")]
    pub prefer_cached_experts: Option<f32>,
}

impl ExpertFlags {
    /// What they ask for.
    pub fn fewer(&self) -> FewerExperts {
        FewerExperts {
            per_token: self.experts,
            drop_cold: self.drop_cold_experts.unwrap_or(0.0),
            prefer_cached: self.prefer_cached_experts.unwrap_or(0.0),
        }
    }
}

/// If the engine uses fewer experts: what that was measured to change, or how to measure it.
pub fn say_what_is_lost(engine: &Engine) {
    let options = engine.plan().fewer_experts;
    if options.is_off() {
        return;
    }
    let Some(measured) = ExpertsDivergence::load(engine) else {
        let model = engine.bundle_path().display();
        return say(format_args!(
            "note: {options} changes what the model says; how much has not been measured: \
             `forebay eval experts {model} -f TEXT {options}`"
        ));
    };
    let budget = match options.depends_on_memory() {
        true => format!(" under {}", format_size(measured.memory_bytes)),
        false => String::new(),
    };
    let d = &measured.divergence;
    say(format_args!(
        "note: {options} changes what the model says; measured{budget}: mean KL divergence {:.4}, 99% below {:.4}, same \
         most likely token {:.1}%",
        d.mean,
        d.p99,
        100.0 * d.same_top
    ));
}
