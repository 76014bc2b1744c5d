//! What a caller asks for.

use forebay_models::sampler::SamplerConfig;

/// The text to go on from.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text, tokenized by the model's tokenizer; begins with BOS where the model wants one and the
    /// session is new.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// A generation request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the model reads first.
    pub prompt: Prompt,
    /// Most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Whether tokens such as `<|im_end|>` written in the prompt's text are taken as control tokens.
    pub parse_special: bool,
    /// Whether generation goes on behind an end-of-generation token (for benchmarks).
    pub ignore_eog: bool,
}

impl Request {
    /// Greedy continuation of a text.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self {
            prompt: Prompt::Text(prompt.into()),
            max_tokens: None,
            sampler: SamplerConfig {
                temperature: 0.0,
                ..SamplerConfig::default()
            },
            parse_special: true,
            ignore_eog: false,
        }
    }

    /// Limits the number of generated tokens.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }

    /// Sets the sampler.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerConfig) -> Self {
        self.sampler = sampler;
        self
    }
}
