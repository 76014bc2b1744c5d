//! What is known about an engine.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_actors::device::Account;
use forebay_models::network::Network;
use forebay_models::tokenizer::Tokenizer;

use crate::chat::ChatFormat;
use crate::error::Error;
use crate::in_force::PlanInForce;
use crate::live_budget::LiveBudget;
use crate::request::{Prompt, Request};

/// Maximum number of tokens whose log-probabilities come with each token.
pub(super) const MOST_LIKELY: usize = 64;

/// Speed of the disk, bytes per second; 0 if nothing is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskCeiling {
    /// In reads as prompts make them: clusters.
    pub prompt: f64,
    /// In reads as decoding makes them: clusters, or neurons.
    pub decode: f64,
}

/// What is known of a device by those who do not use it.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    pub name: String,
    /// What it has done, and whether it has failed.
    pub account: Arc<Account>,
}

/// Facts about an engine; only its budget changes.
#[derive(Debug)]
pub(crate) struct Facts {
    pub model: String,
    pub network: Network,
    pub tokenizer: Tokenizer,
    pub chat: ChatFormat,
    pub budget: LiveBudget,
    pub plan: PlanInForce,
    /// The device, if one computes.
    pub device: Option<DeviceFacts>,
    /// The core of each compute thread, `[threads]`.
    pub cores: Vec<usize>,
    pub bundle_path: PathBuf,
    pub bundle_bytes: u64,
    pub weight_bytes: u64,
    pub ceiling: DiskCeiling,
}

impl Facts {
    /// Checks that a text of `used` tokens leaves room for one more.
    pub fn check_room(&self, used: usize) -> Result<(), Error> {
        match used < self.plan.context {
            true => Ok(()),
            false => Err(self.too_long(used)),
        }
    }

    /// The error that a text of `tokens` tokens does not fit.
    pub fn too_long(&self, tokens: usize) -> Error {
        Error::ContextTooSmall {
            tokens,
            context: self.plan.context,
            trained: self.network.context_length,
        }
    }

    /// Checks ids from callers: each must have an embedding.
    pub fn check_tokens(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.network.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&token) => Err(Error::TokenOutsideVocabulary {
                token,
                text: self.tokenizer.decode(&[token], false),
                vocabulary,
            }),
            None => Ok(()),
        }
    }

    /// A prompt's tokens after the `used` ones of a history, which end with `last`, and the BOS that goes in front of a
    /// text with which the conversation begins. More than the context holds stand for all others.
    pub fn tokens_of(
        &self,
        request: &Request,
        (used, last): (usize, Option<u32>),
    ) -> Result<(Vec<u32>, Option<u32>), Error> {
        let tokenizer = &self.tokenizer;
        match &request.prompt {
            Prompt::Text(text) => {
                let room = self.plan.context.saturating_sub(used);
                let ids = tokenizer.encode_after(last, text, request.parse_special, room)?;
                // A tokenizer may know tokens that the model has no embedding for.
                self.check_tokens(&ids)?;
                // The text may bring its own.
                let bos = tokenizer.leading_bos();
                let bos = bos.filter(|bos| ids.first() != Some(bos));
                self.check_tokens(bos.as_slice())?;
                Ok((ids, bos))
            }
            Prompt::Tokens(ids) => {
                self.check_tokens(ids)?;
                Ok((ids.clone(), None))
            }
        }
    }
}
