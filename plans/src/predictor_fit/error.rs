//! Why a predictor cannot be fitted.

/// Samples, weights and options that no predictor can be fitted to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// A buffer has another length than the dimensions say.
    #[error("{buffer} holds {len} elements, {expected} are due for {dimensions}")]
    Shape {
        /// The buffer.
        buffer: &'static str,
        /// Its length.
        len: usize,
        /// What it should be.
        expected: usize,
        /// The dimensions it follows from.
        dimensions: String,
    },

    /// A buffer holds an infinity or no number.
    #[error("element {at} of {buffer} is {value}; was the model or the sample damaged?")]
    NotFinite {
        /// The buffer.
        buffer: &'static str,
        /// The element's place.
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
        /// What it may be.
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
        /// The share asked for.
        holdout: f64,
    },
}
