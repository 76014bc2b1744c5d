//! Learning about a model by running it: predictors, thresholds, statistics. What is found is stored with the
//! packed model.

mod activity;
mod calibrate;
mod gates;
mod gather;
mod misses;
mod predictors;
mod profile;
mod tally;
mod texts;

pub use activity::Activity;
pub use calibrate::{CalibrateReport, CalibrateRequest, FittedDensity, calibrate_gates};
pub use gates::GateSizes;
pub use gather::Gather;
pub use misses::MissPoint;
pub use predictors::{FitReport, FitRequest, FitStep, fit_predictors};
pub use profile::{Profile, ProfileText, profile};
pub(crate) use tally::Tally;
pub use texts::measure_activity;

#[cfg(test)]
mod tests {
    use forebay_models::config::{
        Activation, Arch, ModelConfig, RopeConfig, RopePairing, RopeScaling,
    };

    /// A small configuration for tests to change.
    pub(super) fn config() -> ModelConfig {
        ModelConfig {
            arch: Arch::Llama,
            name: "test".into(),
            n_layers: 2,
            d_model: 8,
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 4,
            d_ff: 16,
            vocab_size: 32,
            context_length: 64,
            sliding_window: None,
            rms_eps: 1e-5,
            rope: RopeConfig {
                theta: 10_000.0,
                rotary_dim: 4,
                pairing: RopePairing::HalfSplit,
                scaling: RopeScaling::None,
            },
            activation: Activation::Relu,
            tied_head: true,
            qkv_bias: false,
            predictor_threshold: 0.0,
        }
    }
}
