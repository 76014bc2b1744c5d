//! Learning about a model by running it: predictors, thresholds, statistics. The results are stored with the packed
//! model.

mod activity;
mod calibrate;
mod gates;
mod gather;
mod importance;
mod predictors;
mod profile;
mod routes;
mod routing;
mod texts;

pub use crate::profiles::{ExpertMisses, ExpertProfile, MissPoint, Profile};
pub use activity::Activity;
pub use calibrate::{CalibrateReport, CalibrateRequest, FittedDensity, calibrate_gates};
pub use gates::GateSizes;
pub use gather::Gather;
pub use importance::measure_importance;
pub use predictors::{FitReport, FitRequest, FitStep, fit_predictors};
pub use profile::{ProfileText, profile};
pub use routing::{Routing, measure_routing};
pub use texts::measure_activity;

#[cfg(test)]
mod tests {
    use forebay_models::network::{Activation, Rope, RopePairing, RopeScaling, Uniform};

    /// A small network for tests to change.
    pub(super) fn sizes() -> Uniform {
        Uniform {
            name: "test".into(),
            n_layers: 2,
            d_model: 8,
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 4,
            d_ff: 16,
            vocab_size: 32,
            context_length: 64,
            window: None,
            rms_eps: 1e-5,
            rope: Rope {
                theta: 10_000.0,
                rotary_dim: 4,
                pairing: RopePairing::HalfSplit,
                scaling: RopeScaling::None,
                magnitude: 1.0,
            },
            activation: Activation::Relu,
            tied_head: true,
            qkv_bias: false,
            predictor_threshold: 0.0,
        }
    }
}
