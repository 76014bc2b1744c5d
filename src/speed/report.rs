//! Results as data.

use serde::Serialize;

/// Several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle; 0 if nothing was measured.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// Number of measurements.
    pub runs: usize,
}

impl Spread {
    /// From measurements in any order.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or_default();
        let (last, runs) = (sorted.len().saturating_sub(1), sorted.len());
        Self {
            median: (at(last / 2) + at(runs / 2)) / 2.0,
            min: at(0),
            max: at(last),
            runs,
        }
    }
}

/// What limits a test even at best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// `memory read`, `int8 peak`, `f32 peak` or `disk read`.
    pub what: &'static str,
    /// Speed of a machine that does only that.
    pub tokens_per_second: f64,
}

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestReport {
    /// Its name.
    pub test: String,
    /// Speed over all repetitions.
    pub tokens_per_second: Spread,
    /// Speed of each repetition, in order.
    pub samples: Vec<f64>,
    /// Bytes of weights that are read per token; the tokens of a batch share them. Skipped neurons do not count, nor
    /// does the KV cache.
    pub bytes_per_token: f64,
    /// `bytes_per_token` at the median speed.
    pub gb_per_second: f64,
    /// The speed at which the same cores read the same weights together: the median of one measurement before each
    /// repetition; 0 if no weights stay in memory.
    pub bound_gb_per_second: f64,
    /// Bytes that were read from disk per token.
    pub disk_bytes_per_token: f64,
    /// The disk's speed when the engine was built; 0 if nothing is streamed.
    pub disk_gb_per_second: f64,
    /// Billions of multiplications and additions of the weight matrices per second, at the median speed.
    /// Attention's own do not count.
    pub gops: f64,
    /// What the same cores could do in 8-bit integers, measured like `bound_gb_per_second`.
    pub int8_peak_gops: f64,
    /// The same in f32, for weights that are stored as plain numbers.
    pub f32_peak_gops: f64,
    /// The narrowest of memory, arithmetic and disk.
    pub bound: Bound,
    /// The median speed as a share of the bound's.
    pub fraction_of_bound: f64,
}

/// What limits a kernel even at best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KernelBound {
    /// `memory read`, `int8 peak` or `f32 peak`.
    pub what: &'static str,
    /// In GB/s for memory and billions of operations per second for the others; the median of one
    /// measurement before each repetition.
    pub value: f64,
}

/// Result of a kernel on one core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// Its name.
    pub kernel: &'static str,
    /// Format of the weights, if there are any.
    pub format: Option<&'static str>,
    /// Sizes in one call.
    pub shape: String,
    /// Time per call.
    pub microseconds_per_call: Spread,
    /// Bytes of weights, keys and values, or else of inputs and outputs.
    pub gb_per_second: f64,
    /// Billions of multiplications and additions per second.
    pub gops: f64,
    /// What limits it; `None` if it works in the nearest cache.
    pub bound: Option<KernelBound>,
    /// The median speed as a share of the bound's.
    pub fraction_of_bound: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = |samples: &[f64]| {
            let s = Spread::of(samples);
            (s.min, s.median, s.max, s.runs)
        };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0, 3));
        assert_eq!(spread(&[40.0, 10.0, 30.0, 20.0]), (10.0, 25.0, 40.0, 4));
        assert_eq!(spread(&[7.0]), (7.0, 7.0, 7.0, 1));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0, 0));
    }
}
