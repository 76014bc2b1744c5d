//! How fast a model runs, and how fast it could: llama-bench's tests beside measured bounds.
//!
//! A figure means little without its bound, and an old bound means little on a machine whose memory speed and clock
//! rate change from minute to minute. So the machine's speed is measured right before each repetition, with the
//! kernels' own instruction set, on the cores that compute, over the very weights that are computed with. That needs no
//! memory besides the engine's: its budget is the same as in `run`.

pub(crate) mod bounds;
mod kernels;
mod report;
pub(crate) mod work;

use std::fmt;
use std::str::FromStr;

use forebay_models::random::split_mix;

#[cfg(feature = "gpu")]
pub(crate) use kernels::{Attention, MEASURED_HEADS, attention_rate, job_rates};
#[cfg(feature = "gpu")]
pub use kernels::{DeviceKernels, measure_device_kernels};
pub use kernels::{Kernels, measure_kernels};
pub(crate) use kernels::{kernel_rate, weights};
pub use report::{Bound, KernelBound, KernelReport, Spread, TestReport};

/// What a test does with its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reads them as a prompt; logits for the last one.
    Prefill,
    /// Reads one token after the other, each with logits, as generation does.
    Decode,
}

/// `n` token ids of a vocabulary, the same in every run of the program, but different for another `seed`.
pub fn random_tokens(n: usize, seed: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = (seed as u64) << 32;
    // A vocabulary is far below 2^32, so no id is noticeably more likely than others.
    (0..n)
        .map(|_| (split_mix(&mut state) % vocabulary as u64) as u32)
        .collect()
}

/// A test by llama-bench's name: `pp512` reads a prompt of 512 tokens, `tg128` generates 128, each from
/// an empty context. The tokens are random; nothing is sampled or turned into text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchTest {
    /// What is done.
    pub phase: Phase,
    /// With how many tokens; at least 1.
    pub tokens: usize,
}

impl fmt::Display for BenchTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Prefill => "pp",
            Phase::Decode => "tg",
        };
        write!(f, "{phase}{}", self.tokens)
    }
}

/// A string that is not the name of a test.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown test {0:?}; give ppN for a prompt of N tokens or tgN for N generated tokens, such as pp512 \
     or tg128"
)]
pub struct UnknownTest(String);

impl FromStr for BenchTest {
    type Err = UnknownTest;

    fn from_str(s: &str) -> Result<Self, UnknownTest> {
        let unknown = || UnknownTest(s.to_owned());
        let (phase, digits) = match (s.strip_prefix("pp"), s.strip_prefix("tg")) {
            (Some(digits), _) => (Phase::Prefill, digits),
            (_, Some(digits)) => (Phase::Decode, digits),
            _ => return Err(unknown()),
        };
        // Other notations of a number, such as +8, would give the same test several names.
        let is_number = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        match digits.parse() {
            Ok(tokens) if is_number => Ok(Self { phase, tokens }),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_round_trip_and_others_are_refused() {
        for name in ["pp1", "pp512", "tg128"] {
            let test: BenchTest = name.parse().expect(name);
            assert_eq!(test.to_string(), name);
        }
        for name in [
            "",
            "pp",
            "tg0",
            "pp+8",
            "pp08",
            "pp-1",
            "pg8",
            "PP8",
            "pp99999999999999999999",
        ] {
            let refusal = name.parse::<BenchTest>().expect_err(name).to_string();
            assert!(refusal.contains("ppN"), "{refusal}");
        }
    }
}
