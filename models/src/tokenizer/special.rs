//! Special tokens inside a text: where they are, and the ordinary text between them.

use super::vocabulary::{TokenKind, Vocabulary};

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// Text to be encoded.
    Text(&'t str),
    /// A token that stood there under its own name.
    Token(u32),
}

/// The tokens that are found by their text before anything else is done with a prompt.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Ids by first byte; within a first byte, longer texts first, then lower ids.
    ids: Vec<u32>,
    /// Begin of each first byte's ids, and the end of the last. `[257]`
    begins: Vec<u32>,
}

impl SpecialTokens {
    /// The control, user-defined and unknown tokens of `vocab`.
    pub(super) fn of(vocab: &Vocabulary) -> Self {
        let text = |id: u32| vocab.bytes(id).unwrap_or_default();
        let is_special = |id: &u32| {
            matches!(
                vocab.kind(*id),
                Some(TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
            ) && !text(*id).is_empty()
        };
        let mut ids: Vec<u32> = (0..vocab.len() as u32).filter(is_special).collect();
        ids.sort_by_key(|&id| (text(id)[0], std::cmp::Reverse(text(id).len()), id));
        let begins = (0..=256u16)
            .map(|byte| ids.partition_point(|&id| u16::from(text(id)[0]) < byte) as u32)
            .collect();
        Self { ids, begins }
    }

    /// Cuts `text` at its special tokens, from the left, the longest first where several begin at
    /// one place (as the `tokenizers` crate does). Control and unknown tokens are only found where
    /// `parse_special`; user-defined ones always are.
    pub(super) fn partition<'t>(
        &self,
        text: &'t str,
        parse_special: bool,
        vocab: &Vocabulary,
        emit: &mut dyn FnMut(Fragment<'t>),
    ) {
        let bytes = text.as_bytes();
        let (mut begin, mut at) = (0, 0);
        while at < bytes.len() {
            let Some((id, len)) = self.match_at(&bytes[at..], parse_special, vocab) else {
                at += 1;
                continue;
            };
            if begin < at {
                emit(Fragment::Text(&text[begin..at]));
            }
            emit(Fragment::Token(id));
            at += len;
            begin = at;
        }
        if begin < at {
            emit(Fragment::Text(&text[begin..]));
        }
    }

    /// The longest special token at the front of `bytes`. Token texts are whole UTF-8 strings, so
    /// a match begins and ends at character boundaries.
    fn match_at(
        &self,
        bytes: &[u8],
        parse_special: bool,
        vocab: &Vocabulary,
    ) -> Option<(u32, usize)> {
        let first = usize::from(bytes[0]);
        let ids = &self.ids[self.begins[first] as usize..self.begins[first + 1] as usize];
        ids.iter().find_map(|&id| {
            let wanted = parse_special || vocab.kind(id) == Some(TokenKind::UserDefined);
            let text = vocab.bytes(id)?;
            (wanted && bytes.starts_with(text)).then_some((id, text.len()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::vocabulary::Spelling;

    #[test]
    fn special_tokens_are_cut_out() {
        let mut vocab = Vocabulary::with_capacity(0, 0);
        for (text, kind) in [
            ("<a>", TokenKind::Control),
            ("<a>>", TokenKind::Control),
            ("  ", TokenKind::UserDefined),
            ("plain", TokenKind::Normal),
            ("", TokenKind::Control),
        ] {
            vocab.push(text, kind, Spelling::ByteAlphabet);
        }
        let special = SpecialTokens::of(&vocab);
        let cut = |text, parse| {
            let mut fragments = Vec::new();
            special.partition(text, parse, &vocab, &mut |f| fragments.push(f));
            fragments
        };
        use Fragment::{Text, Token};
        let text = "é<a>>plain   <a>";
        assert_eq!(
            cut(text, true),
            [
                Text("é"),
                Token(1),
                Text("plain"),
                Token(2),
                Text(" "),
                Token(0)
            ]
        );
        assert_eq!(
            cut(text, false),
            [Text("é<a>>plain"), Token(2), Text(" <a>")]
        );
        assert_eq!(cut("", true), []);
    }
}
