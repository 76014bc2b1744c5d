//! A caller's request.

use forebay_models::sampler::SamplerConfig;

/// The text to continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text, tokenized by the model's tokenizer; begins with BOS if the model wants one and the
    /// session is new.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// A generation request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Request {
    /// What the model reads first.
    pub prompt: Prompt,
    /// Maximum number of tokens to generate; `None` continues to the end of the context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Whether tokens such as `<|im_end|>` written in the prompt's text are taken as control tokens. Not by default:
    /// text of strangers could end the user's turn.
    pub parse_special: bool,
    /// Whether generation continues past an end-of-generation token (for benchmarks).
    pub ignore_eog: bool,
    /// Generated text ends before the first of these.
    pub stop: Vec<String>,
    /// Tokens that end the generation, beside those that end it for the model.
    pub stop_tokens: Vec<u32>,
    /// Control tokens whose names are part of the generated text; others are left out of it.
    pub shown_tokens: Vec<u32>,
    /// Tell how likely each token was, and this number of the most likely ones (at most 64).
    pub log_probabilities: Option<usize>,
}

impl Request {
    /// A request with the defaults: greedy, to the end of the text or of the context; a text is only text.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            max_tokens: None,
            sampler: SamplerConfig::greedy(),
            parse_special: false,
            ignore_eog: false,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            shown_tokens: Vec::new(),
            log_probabilities: None,
        }
    }

    /// Greedy continuation of a text.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(Prompt::Text(prompt.into()))
    }

    /// Greedy continuation of tokens.
    pub fn tokens(prompt: impl Into<Vec<u32>>) -> Self {
        Self::new(Prompt::Tokens(prompt.into()))
    }

    /// Limits the number of generated tokens.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }

    /// Sets how tokens are chosen, with its seed: give another [`Self::seed`] afterwards.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerConfig) -> Self {
        self.sampler = sampler;
        self
    }

    /// Sets the seed of the draws; it has no effect on a greedy request.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampler.seed = seed;
        self
    }

    /// Sets whether control tokens written in the prompt's text are taken as such. Say yes only for text that you
    /// wrote, such as a chat template that you filled in.
    #[must_use]
    pub fn parse_special(mut self, parse: bool) -> Self {
        self.parse_special = parse;
        self
    }

    /// Sets whether generation continues past an end-of-generation token.
    #[must_use]
    pub fn ignore_eog(mut self, ignore: bool) -> Self {
        self.ignore_eog = ignore;
        self
    }

    /// Ends the generated text before the first of these strings. The tokens that spelled it stay in the
    /// session's history and in the statistics.
    #[must_use]
    pub fn stop(mut self, strings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop = strings.into_iter().map(Into::into).collect();
        self
    }

    /// Ends the generation at the first of these tokens, as at an end-of-generation token.
    #[must_use]
    pub fn stop_tokens(mut self, ids: impl Into<Vec<u32>>) -> Self {
        self.stop_tokens = ids.into();
        self
    }

    /// Makes the names of these control tokens part of the generated text.
    #[must_use]
    pub fn shown_tokens(mut self, ids: impl Into<Vec<u32>>) -> Self {
        self.shown_tokens = ids.into();
        self
    }

    /// Tells how likely each token was, and the `n` most likely ones, at most 64.
    #[must_use]
    pub fn log_probabilities(mut self, n: usize) -> Self {
        self.log_probabilities = Some(n);
        self
    }
}
