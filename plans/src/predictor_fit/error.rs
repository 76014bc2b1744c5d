//! Why a predictor cannot be fitted.

/// Samples, weights and options with which no predictor can be fitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// A buffer's length does not match the dimensions.
    #[error("{buffer} holds {len} elements, {dimensions} need {expected}")]
    Shape {
        /// The buffer.
        buffer: &'static str,
        /// Its length.
        len: usize,
        /// What it should be.
        expected: usize,
        /// The dimensions from which that follows.
        dimensions: String,
    },

    /// A buffer holds an infinity or a NaN.
    #[error("element {at} of {buffer} is {value}; was the model or the sample damaged?")]
    NotFinite {
        /// The buffer.
        buffer: &'static str,
        /// The element's index.
        at: usize,
        /// The element.
        value: f32,
    },

    /// An option is outside its range.
    #[error("{option} is {value}, must be {range}")]
    Option {
        /// The option.
        option: &'static str,
        /// What it was.
        value: f64,
        /// The allowed range.
        range: &'static str,
    },

    /// Too few samples to train, calibrate and measure on.
    #[error(
        "{n} samples are too few to set a share of {holdout} aside twice, to calibrate and to \
         measure; gather more tokens (thousands make a good predictor)"
    )]
    TooFewSamples {
        /// Samples given.
        n: usize,
        /// The requested share.
        holdout: f64,
    },
}
