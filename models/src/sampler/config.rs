//! A sampler's settings, and the ranges of its parameters.

use crate::error::{ModelError, Result};

/// How tokens are chosen; the defaults are llama.cpp's, with a fixed seed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// Divides the logits before the draw; 0 takes the best token (greedy).
    pub temperature: f32,
    /// Number of best tokens that are kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass of best tokens that is kept, 0 to 1; 1 keeps all, 0 only the best.
    pub top_p: f32,
    /// Minimum probability relative to the best token's, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Logits of recent tokens are divided (or, if negative, multiplied) by this; 1 is off.
    pub repeat_penalty: f32,
    /// Number of recent tokens that are penalised; 0 is off, `usize::MAX` penalises all.
    pub repeat_last_n: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Added to the logits of these tokens, before penalties; negative infinity excludes a token.
    pub logit_bias: Vec<(u32, f32)>,
}

/// Maximum number of biases, which keeps them small beside the memory that a budget counts for sampling.
const MAX_BIASES: usize = 4096;

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplerConfig {
    /// Takes the best token each time.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks every parameter against its range.
    ///
    /// # Errors
    /// [`ModelError::Parameter`], naming the field and its range.
    pub fn validate(&self) -> Result<()> {
        let temperature = (0.0..=100.0).contains(&self.temperature);
        let penalty = self.repeat_penalty > 0.0 && self.repeat_penalty <= 100.0;
        let unit = 0.0..=1.0;
        let checks = [
            (
                "temperature",
                self.temperature,
                temperature,
                "from 0 (greedy) to 100",
            ),
            (
                "top_p",
                self.top_p,
                unit.contains(&self.top_p),
                "from 0 to 1 (off)",
            ),
            (
                "min_p",
                self.min_p,
                unit.contains(&self.min_p),
                "from 0 (off) to 1",
            ),
            (
                "repeat_penalty",
                self.repeat_penalty,
                penalty,
                "above 0 and up to 100; 1 is off",
            ),
        ];
        match checks.iter().find(|check| !check.2) {
            None => self.validate_biases(),
            Some((field, value, _, range)) => Err(ModelError::Parameter {
                field: (*field).to_owned(),
                problem: format!("{value} is out of range"),
                remedy: format!("give a number {range}"),
            }),
        }
    }

    fn validate_biases(&self) -> Result<()> {
        let problem = match self
            .logit_bias
            .iter()
            .find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY)
        {
            Some((id, bias)) => format!("{bias} for token {id}"),
            None if self.logit_bias.len() > MAX_BIASES => {
                format!("{} biases are too many", self.logit_bias.len())
            }
            None => return Ok(()),
        };
        Err(ModelError::Parameter {
            field: "logit_bias".to_owned(),
            problem,
            remedy: format!("give numbers, or negative infinity, for at most {MAX_BIASES} tokens"),
        })
    }

    /// Checks that there is a token for every bias.
    ///
    /// # Errors
    /// [`ModelError::Parameter`], naming the token.
    pub fn validate_for(&self, vocab_size: usize) -> Result<()> {
        self.validate()?;
        match self
            .logit_bias
            .iter()
            .find(|(id, _)| *id as usize >= vocab_size)
        {
            None => Ok(()),
            Some((id, _)) => Err(ModelError::Parameter {
                field: "logit_bias".to_owned(),
                problem: format!("there is no token {id}"),
                remedy: format!("ids are below {vocab_size}; `forebay tokenize` prints them"),
            }),
        }
    }

    /// Whether recent tokens are penalised at all.
    pub(super) fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 && self.repeat_last_n > 0
    }
}
