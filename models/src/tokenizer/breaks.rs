//! Text of strangers between text that may name special tokens: places that no special token reaches across.

use super::encoder::Tokenizer;
use super::special::Names;
use super::vocabulary::TokenKind;

impl Tokenizer {
    /// The places of `text`, in bytes from its begin, that no special token may reach across if none is to come out of
    /// it, nor out of it and what stands beside it: one inside each name of a special token, its end if it may be the
    /// begin of a name, its begin if it may be the end of one. Of user-defined tokens, only those that are `wanted`
    /// count; control tokens always do.
    pub fn breaks(&self, text: &str, wanted: impl Fn(u32) -> bool) -> Vec<usize> {
        let special = &self.special;
        let counts = |id: u32| self.vocab.kind(id) != Some(TokenKind::UserDefined) || wanted(id);
        let mut breaks = Vec::new();
        let mut names = special.ids().filter(|&id| counts(id));
        let name_of = |id: u32| self.vocab.bytes(id).unwrap_or_default();
        let bytes = text.as_bytes();
        let is_part =
            |name: &[u8], part: fn(&[u8], usize) -> &[u8], fits: fn(&[u8], &[u8]) -> bool| {
                (1..name.len()).any(|n| fits(bytes, part(name, n)))
            };
        if names
            .clone()
            .any(|id| is_part(name_of(id), |name, n| &name[n..], <[u8]>::starts_with))
        {
            breaks.push(0);
        }
        for (at, c) in text.char_indices() {
            if special.any_at(&bytes[at..], &self.vocab, counts) {
                breaks.push(at + c.len_utf8());
            }
        }
        if names.any(|id| is_part(name_of(id), |name, n| &name[..n], <[u8]>::ends_with)) {
            breaks.push(bytes.len());
        }
        breaks.dedup();
        breaks
    }

    /// Bytes of the front of `text` that the token `id` before it swallows: white space behind special tokens of some
    /// models.
    pub fn swallowed(&self, id: u32, text: &str) -> usize {
        self.vocab.swallowed(id, text)
    }

    /// The control or user-defined token of this name.
    pub fn special_token(&self, name: &str) -> Option<u32> {
        let mut ids = self.special.ids();
        ids.find(|&id| self.vocab.bytes(id) == Some(name.as_bytes()))
    }

    /// The special token at the front of `text`, the longest if there are several.
    pub fn first_special(&self, text: &str) -> Option<u32> {
        let found = self
            .special
            .match_at((text.as_bytes(), 0), Names::All, &self.vocab);
        found.map(|(id, _)| id)
    }

    /// All user-defined tokens, which are found by their names in every text.
    pub fn user_defined(&self) -> impl Iterator<Item = u32> + '_ {
        let kind = |&id: &u32| self.vocab.kind(id) == Some(TokenKind::UserDefined);
        self.special.ids().filter(kind)
    }
}
