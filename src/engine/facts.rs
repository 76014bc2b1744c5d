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
        let context = self.plan.context;
        if used < context {
            return Ok(());
        }
        let tokens = used;
        Err(Error::ContextTooSmall { tokens, context })
    }

    /// Checks ids from callers: each must have an embedding.
    pub fn check_tokens(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.network.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&token) => Err(Error::TokenOutsideVocabulary { token, vocabulary }),
            None => Ok(()),
        }
    }
}
