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

/// Which control tokens are found by their names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Names<'a> {
    /// None.
    Plain,
    /// All.
    All,
    /// All that do not reach across one of these places, in ascending order. User-defined tokens do not either.
    Unbroken(&'a [usize]),
}

impl Names<'_> {
    /// The places that no token reaches across.
    pub(super) fn breaks(&self) -> &[usize] {
        match self {
            Self::Unbroken(breaks) => breaks,
            Self::Plain | Self::All => &[],
        }
    }

    /// Whether a token may be found at `at`, of `len` bytes and this kind.
    fn allow(&self, kind: Option<TokenKind>, at: usize, len: usize) -> bool {
        let next = self.breaks().partition_point(|&place| place <= at);
        let whole = self
            .breaks()
            .get(next)
            .is_none_or(|&place| place >= at + len);
        whole && (!matches!(self, Self::Plain) || kind == Some(TokenKind::UserDefined))
    }
}

/// The tokens that are found by their text before anything else is done with a prompt.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Ids in the order of their texts, then of their numbers: a model may have thousands that begin alike.
    ids: Vec<u32>,
    /// Begin of each first byte's ids, and the end of the last. `[257]`
    begins: Vec<u32>,
}

impl SpecialTokens {
    /// The control, user-defined and unknown tokens of `vocab`.
    pub(super) fn of(vocab: &Vocabulary) -> Self {
        let text = |id: u32| vocab.bytes(id).unwrap_or_default();
        let is_special =
            |&id: &u32| vocab.kind(id).is_some_and(TokenKind::is_special) && !text(id).is_empty();
        let mut ids: Vec<u32> = (0..vocab.len() as u32).filter(is_special).collect();
        ids.sort_by_key(|&id| (text(id), id));
        let begins = (0..=256u16)
            .map(|byte| ids.partition_point(|&id| u16::from(text(id)[0]) < byte) as u32)
            .collect();
        Self { ids, begins }
    }

    /// All ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.ids.iter().copied()
    }

    /// Whether any token that `counts` stands at the front of `bytes`.
    pub(super) fn any_at(
        &self,
        bytes: &[u8],
        vocab: &Vocabulary,
        counts: impl Fn(u32) -> bool,
    ) -> bool {
        self.at_front(bytes, vocab).any(counts)
    }

    /// Cuts `text` at its special tokens, from the left, the longest first where several begin at
    /// one place (as the `tokenizers` crate does). Control and unknown tokens are found as `names`
    /// says; user-defined ones always are, unless they are broken. What a token swallows ends at a break, too.
    pub(super) fn partition<'t>(
        &self,
        text: &'t str,
        names: Names<'_>,
        vocab: &Vocabulary,
        emit: &mut dyn FnMut(Fragment<'t>),
    ) {
        let bytes = text.as_bytes();
        let (mut begin, mut at) = (0, 0);
        while at < bytes.len() {
            let Some((id, len)) = self.match_at((bytes, at), names, vocab) else {
                at += 1;
                continue;
            };
            if begin < at {
                emit(Fragment::Text(&text[begin..at]));
            }
            emit(Fragment::Token(id));
            at += len;
            let breaks = names.breaks();
            let next = breaks.partition_point(|&place| place < at);
            let end = breaks.get(next).copied().unwrap_or(text.len());
            at += vocab.swallowed(id, text.get(at..end).unwrap_or_default());
            begin = at;
        }
        if begin < at {
            emit(Fragment::Text(&text[begin..]));
        }
    }

    /// The longest special token of `text` at `at`. Token texts are whole UTF-8 strings, so a match
    /// begins and ends at character boundaries.
    pub(super) fn match_at(
        &self,
        (text, at): (&[u8], usize),
        names: Names<'_>,
        vocab: &Vocabulary,
    ) -> Option<(u32, usize)> {
        let bytes = text.get(at..).filter(|bytes| !bytes.is_empty())?;
        self.at_front(bytes, vocab).find_map(|id| {
            let len = vocab.bytes(id)?.len();
            names.allow(vocab.kind(id), at, len).then_some((id, len))
        })
    }

    /// The tokens whose texts stand at the front of `bytes`, the longest first, then by number.
    fn at_front(&self, bytes: &[u8], vocab: &Vocabulary) -> impl Iterator<Item = u32> + '_ {
        let text = |id: u32| vocab.bytes(id).unwrap_or_default();
        let first = usize::from(bytes[0]);
        // Those with the first `len` bytes.
        let mut alike = &self.ids[self.begins[first] as usize..self.begins[first + 1] as usize];
        let mut found = Vec::new();
        for len in 1.. {
            let (whole, longer) =
                alike.split_at(alike.partition_point(|&id| text(id).len() == len));
            if !whole.is_empty() {
                found.push(whole);
            }
            let Some(&next) = bytes.get(len).filter(|_| !longer.is_empty()) else {
                break;
            };
            let begin = longer.partition_point(|&id| text(id)[len] < next);
            let end = longer.partition_point(|&id| text(id)[len] <= next);
            alike = &longer[begin..end];
        }
        found.into_iter().rev().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let cut = |text, names| {
            let mut fragments = Vec::new();
            special.partition(text, names, &vocab, &mut |f| fragments.push(f));
            fragments
        };
        use Fragment::{Text, Token};
        let text = "é<a>>plain   <a>";
        assert_eq!(
            cut(text, Names::All),
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
            cut(text, Names::Plain),
            [Text("é<a>>plain"), Token(2), Text(" <a>")]
        );
        // A token may begin or end at a break.
        assert_eq!(
            cut("<a>  <a>", Names::Unbroken(&[3, 4, 5])),
            [Token(0), Text("  "), Token(0)]
        );
        assert_eq!(
            cut("<a>><a>", Names::Unbroken(&[3, 5])),
            [Token(0), Text("><a>")]
        );
        assert_eq!(cut("", Names::All), []);
    }

    proptest! {
        /// As if all were compared, the longest first.
        #[test]
        fn the_longest_name_is_found(names in prop::collection::vec("[<ab|]{1,5}", 1..40), text in "[<ab|]{1,12}") {
            let mut vocab = Vocabulary::with_capacity(0, 0);
            for name in &names {
                vocab.push(name, TokenKind::Control, Spelling::ByteAlphabet);
            }
            let special = SpecialTokens::of(&vocab);
            let ids = 0..names.len() as u32;
            let mut expected: Vec<u32> = ids.filter(|&id| text.starts_with(&names[id as usize])).collect();
            expected.sort_by_key(|&id| (std::cmp::Reverse(names[id as usize].len()), id));
            prop_assert_eq!(special.at_front(text.as_bytes(), &vocab).collect::<Vec<_>>(), expected);
        }
    }
}
