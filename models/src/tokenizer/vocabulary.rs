//! The vocabulary as one run of bytes: what each token stands for, and which token stands for a
//! run of bytes. A 151,936-token vocabulary takes under 3 MB here, where one `String` per token and
//! direction would take about 20.

use twox_hash::XxHash3_64;

use super::byte_alphabet;

/// What a token is for; ggml's token types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    /// Whether it is found by its text before anything else is done with a prompt.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined | Self::Unknown)
    }

    /// From `tokenizer.ggml.token_type`; values outside the enumeration mean undefined, which
    /// is shown and matched like unused.
    pub(super) fn from_ggml(value: i32) -> Self {
        match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Unused,
        }
    }
}

/// How token texts are written in the model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In GPT-2's byte alphabet.
    ByteAlphabet,
    /// In UTF-8 with `U+2581` for spaces, and `<0xNN>` for byte tokens.
    SentencePiece,
}

/// Token bytes and kinds by id.
#[derive(Debug)]
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// End of each token in `bytes`; it begins where the one before it ends. `[n_tokens]`
    ends: Vec<u32>,
    /// `[n_tokens]`
    kinds: Vec<TokenKind>,
    /// Whether the text of a sequence loses its first byte where that is a space, because encoding
    /// put it there.
    pub(super) strips_first_space: bool,
    /// Tokens that swallow the white space behind them, ascending.
    pub(super) swallowing: Vec<u32>,
}

impl Vocabulary {
    /// An empty vocabulary with room for `n_tokens` of `n_bytes` together.
    pub(super) fn with_capacity(n_tokens: usize, n_bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(n_bytes),
            ends: Vec::with_capacity(n_tokens),
            kinds: Vec::with_capacity(n_tokens),
            strips_first_space: false,
            swallowing: Vec::new(),
        }
    }

    /// Appends the next token. Returns whether encoding can produce it out of ordinary text.
    pub(super) fn push(&mut self, text: &str, kind: TokenKind, spelling: Spelling) -> bool {
        let reachable = match (kind, spelling) {
            (TokenKind::Control | TokenKind::Unknown, _) => {
                self.bytes.extend_from_slice(text.as_bytes());
                false
            }
            (TokenKind::UserDefined, _) => {
                self.bytes.extend_from_slice(text.as_bytes());
                true
            }
            (TokenKind::Byte, _) => {
                match byte_token(text) {
                    Some(byte) => self.bytes.push(byte),
                    None => self.bytes.extend_from_slice(text.as_bytes()),
                }
                false
            }
            (_, Spelling::ByteAlphabet) => {
                let spelled = byte_alphabet::decode_into(text, &mut self.bytes);
                if !spelled {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
                spelled
            }
            (_, Spelling::SentencePiece) => {
                push_unescaped(text, &mut self.bytes);
                true
            }
        };
        self.ends.push(self.bytes.len() as u32);
        self.kinds.push(kind);
        reachable
    }

    /// Has special tokens swallow the white space behind them, as far as Phi-3's do.
    pub(super) fn swallow_space(&mut self) {
        const OTHERS: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
        let is_special = |&id: &u32| self.kind(id).is_some_and(TokenKind::is_special);
        let is_other = |id: u32| self.bytes(id).is_some_and(|text| OTHERS.contains(&text));
        let special = (0..self.len() as u32).filter(is_special);
        self.swallowing = special.filter(|&id| !is_other(id)).collect();
    }

    /// Bytes of the front of `text` that the token `id` before it swallows.
    pub(super) fn swallowed(&self, id: u32, text: &str) -> usize {
        match self.swallowing.binary_search(&id) {
            Ok(_) => text.len() - text.trim_start().len(),
            Err(_) => 0,
        }
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes `id` stands for, `None` outside the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = match id {
            0 => 0,
            _ => self.ends[id - 1] as usize,
        };
        Some(&self.bytes[start..end])
    }

    /// What `id` is for, `None` outside the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes `id` adds to a text: none for ids outside the vocabulary and unused ones, nor for
    /// control and unknown tokens where `skip_special`.
    pub(super) fn shown(&self, id: u32, skip_special: bool) -> &[u8] {
        match self.kind(id) {
            None | Some(TokenKind::Unused) => &[],
            Some(TokenKind::Control | TokenKind::Unknown) if skip_special => &[],
            Some(_) => self.bytes(id).unwrap_or_default(),
        }
    }
}

/// The byte of a token written `<0xNN>`.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let valid = digits.len() == 2 && digits.bytes().all(|d| d.is_ascii_hexdigit());
    valid.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Appends `text` with every `U+2581` turned back into a space.
pub(super) fn push_unescaped(text: &str, out: &mut Vec<u8>) {
    let mut parts = text.split('\u{2581}');
    out.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        out.push(b' ');
        out.extend_from_slice(part.as_bytes());
    }
}

/// Marks an empty slot; no vocabulary has so many tokens.
const EMPTY: u32 = u32::MAX;

/// From bytes to id: an open-addressing table of ids, which finds the bytes themselves in the
/// vocabulary.
#[derive(Clone, Debug)]
pub(super) struct TextIndex {
    /// A power of two of slots, at most three quarters taken.
    slots: Vec<u32>,
}

impl TextIndex {
    /// A table for up to `n` tokens.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self {
            slots: vec![EMPTY; slot_count(n)],
        }
    }

    /// Enters `id` under its bytes, unless it has none or another token came first.
    pub(super) fn insert(&mut self, id: u32, vocab: &Vocabulary) {
        let Some(key) = vocab.bytes(id).filter(|key| !key.is_empty()) else {
            return;
        };
        let slot = self.find(key, vocab);
        if self.slots[slot] == EMPTY {
            self.slots[slot] = id;
        }
    }

    /// The token that stands for exactly `key`.
    pub(super) fn get(&self, key: &[u8], vocab: &Vocabulary) -> Option<u32> {
        Some(self.slots[self.find(key, vocab)]).filter(|&id| id != EMPTY)
    }

    /// The slot that holds `key`, or the empty one where it belongs.
    fn find(&self, key: &[u8], vocab: &Vocabulary) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = XxHash3_64::oneshot(key) as usize & mask;
        while self.slots[slot] != EMPTY && vocab.bytes(self.slots[slot]) != Some(key) {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// Slots of an open-addressing table for `n` entries: a power of two, so that a mask replaces the
/// remainder, at most three quarters full, so that probes stay short and always end.
pub(super) fn slot_count(n: usize) -> usize {
    (n + n / 3 + 1).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> (Vocabulary, Vec<bool>) {
        let mut vocab = Vocabulary::with_capacity(6, 64);
        let reachable = [
            ("<s>", TokenKind::Control, Spelling::SentencePiece),
            ("<0x0A>", TokenKind::Byte, Spelling::SentencePiece),
            (
                "\u{2581}a\u{2581}b",
                TokenKind::Normal,
                Spelling::SentencePiece,
            ),
            ("Ġä½ł", TokenKind::Normal, Spelling::ByteAlphabet),
            ("你", TokenKind::Normal, Spelling::ByteAlphabet),
            ("[PAD7]", TokenKind::Unused, Spelling::ByteAlphabet),
        ]
        .map(|(text, kind, spelling)| vocab.push(text, kind, spelling));
        (vocab, reachable.to_vec())
    }

    #[test]
    fn texts_become_bytes() {
        let (vocab, reachable) = vocabulary();
        assert_eq!(vocab.bytes(0), Some(&b"<s>"[..]));
        assert_eq!(vocab.bytes(1), Some(&b"\n"[..]));
        assert_eq!(vocab.bytes(2), Some(&b" a b"[..]));
        assert_eq!(vocab.bytes(3), Some(" 你".as_bytes()));
        assert_eq!(vocab.bytes(4), Some("你".as_bytes()));
        assert_eq!(vocab.bytes(6), None);
        assert_eq!(reachable, [false, false, true, true, false, true]);
    }

    #[test]
    fn special_and_unused_tokens_are_not_shown() {
        let (vocab, _) = vocabulary();
        assert_eq!(vocab.shown(0, true), b"");
        assert_eq!(vocab.shown(0, false), b"<s>");
        assert_eq!(vocab.shown(5, false), b"");
        assert_eq!(vocab.shown(99, false), b"");
    }

    #[test]
    fn index_finds_every_entry_and_nothing_else() {
        let mut vocab = Vocabulary::with_capacity(0, 0);
        let mut index = TextIndex::with_capacity(1000);
        for id in 0..1000 {
            vocab.push(&format!("t{id}"), TokenKind::Normal, Spelling::ByteAlphabet);
            index.insert(id, &vocab);
        }
        for id in 0..1000 {
            assert_eq!(index.get(format!("t{id}").as_bytes(), &vocab), Some(id));
        }
        assert_eq!(index.get(b"t1000", &vocab), None);
        assert_eq!(index.get(b"", &vocab), None);
    }

    #[test]
    fn byte_tokens_are_spelled_in_two_hexadecimal_digits() {
        assert_eq!(byte_token("<0xfF>"), Some(255));
        for text in ["<0x>", "<0x1>", "<0x123>", "<0xG0>", "0x10", "<0x+1>"] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }
}
