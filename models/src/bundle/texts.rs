//! The tokenizer section: the tokenizer and the chat templates, as one JSON object.

use serde::{Deserialize, Serialize};

use crate::chat_templates::ChatTemplates;
use crate::tokenizer::{TokenizerModel, TokenizerSpec};

/// The section as it is written.
#[derive(Serialize)]
pub(super) struct WrittenTexts<'a> {
    #[serde(flatten)]
    tokenizer: &'a TokenizerSpec,
    chat: &'a ChatTemplates,
}

impl<'a> WrittenTexts<'a> {
    pub(super) fn of(tokenizer: &'a TokenizerSpec, chat: &'a ChatTemplates) -> Self {
        Self { tokenizer, chat }
    }
}

/// The section as it is read: flattened fields would be in memory twice.
#[derive(Deserialize)]
pub(super) struct StoredTexts {
    model: TokenizerModel,
    bos: Option<u32>,
    eog: Vec<u32>,
    add_bos: bool,
    chat: ChatTemplates,
}

impl StoredTexts {
    pub(super) fn take_apart(self) -> (TokenizerSpec, ChatTemplates) {
        let Self {
            model,
            bos,
            eog,
            add_bos,
            chat,
        } = self;
        let tokenizer = TokenizerSpec {
            model,
            bos,
            eog,
            add_bos,
        };
        (tokenizer, chat)
    }
}
