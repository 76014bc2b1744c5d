//! Where a text may be cut so that the tokens of the pieces are those of the whole. The crate needs a few hundred bytes
//! for every byte that it is given at once, so a prompt is given to it in pieces.
//!
//! A cut stands between two characters. It is allowed if
//! - no added token has the two side by side, so that none is cut and the search for them goes on as before;
//! - no match of the pre-tokenizer has them side by side, or looks from one to the other;
//! - a step of the pre-tokenizer certainly cuts there, or no token of the vocabulary has the two side by side, so that
//!   they never merge;
//! - the normalizer leaves them as they are, whatever stands around them.
//!
//! Steps that this file does not know allow no cut at all.

use serde_json::Value;

use super::adjacency::Matches;
use super::components::steps_of;
use super::symbols::{Alphabet, LETTER, OTHER, SPACE, SYMBOLS, Set, may_begin, symbol};
use super::{AddedToken, Head, ModelHead};
use crate::tokenizer::unicode_class::CharClasses;
use crate::tokenizer::vocabulary::byte_token;

/// GPT-2's expression, which `ByteLevel` brings along.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// What stands for a space in SentencePiece's vocabularies.
const SPACE_SIGN: char = '\u{2581}';

/// Pairs of symbols: those that may stand right after each. `[SYMBOLS]`
type Pairs = Vec<Set>;

/// The places of a tokenizer.
#[derive(Debug)]
pub(super) struct Seams {
    /// Pairs between which a text may be cut.
    allowed: Pairs,
    /// Characters are composed with marks behind them.
    composes: bool,
    classes: CharClasses,
}

impl Seams {
    /// The places of the tokenizer in `head`, whose model has these `tokens`.
    pub(super) fn of(head: &Head, tokens: impl Iterator<Item = String>) -> Self {
        let classes = CharClasses::new();
        let found = Search::new(head, &classes).and_then(|search| search.run(head, tokens));
        let none = || (vec![Set::default(); SYMBOLS], false);
        let (allowed, composes) = found.unwrap_or_else(none);
        Self {
            allowed,
            composes,
            classes,
        }
    }

    /// Length of the first piece of `text`, `usual` bytes or less if it can be cut there, at most `longest`; `None` if
    /// it cannot be cut.
    pub(super) fn first_piece(&self, text: &str, usual: usize, longest: usize) -> Option<usize> {
        if text.len() <= usual {
            return Some(text.len());
        }
        let target = (0..=usual).rev().find(|&at| text.is_char_boundary(at))?;
        let (before, behind) = text.split_at(target);
        let places = before.char_indices().rev().map(|(at, _)| at);
        let ahead = behind.char_indices().map(|(at, _)| target + at);
        let ahead = ahead.take_while(|&at| at <= longest);
        let mut places = places.chain(ahead).filter(|&at| at > 0);
        let whole = || Some(text.len()).filter(|&length| length <= longest);
        places.find(|&at| self.may_cut(text, at)).or_else(whole)
    }

    fn may_cut(&self, text: &str, at: usize) -> bool {
        let (before, behind) = text.split_at(at);
        let mut behind = behind.chars().map(|c| symbol(c, &self.classes));
        let (Some(left), Some(right)) = (before.chars().next_back(), behind.next()) else {
            return false;
        };
        // Marks join the character before them.
        let stays = !self.composes || behind.next() != Some(OTHER);
        stays && self.allowed[symbol(left, &self.classes)].has(right)
    }
}

/// Whether spaces become signs and nothing else is done before the model: then pieces go on without a sign in front.
pub(super) fn is_metaspace(head: &Head) -> bool {
    matches!(*steps_of(head.pre_tokenizer.as_ref()), [step] if step["type"] == "Metaspace")
}

/// What is known so far of the pairs.
struct Search<'a> {
    classes: &'a CharClasses,
    alphabet: Alphabet,
    /// No step joins them.
    apart: Pairs,
    /// A step certainly cuts between them.
    cut: Pairs,
    /// Spaces are written as a sign before the pre-tokenizer and added tokens that are normalised see them.
    writes_spaces: bool,
    composes: bool,
    /// The normalizer prepends something to each text between added tokens.
    prepends: bool,
    /// The model gets bytes in GPT-2's alphabet.
    byte_level: bool,
}

impl<'a> Search<'a> {
    /// Begins with what the normalizer allows.
    fn new(head: &Head, classes: &'a CharClasses) -> Option<Self> {
        let steps = steps_of(head.normalizer.as_ref());
        let kinds: Vec<&str> = steps.iter().filter_map(|s| s["type"].as_str()).collect();
        let ascii = Set::of(|s| s < 128);
        let any = Set::of(may_begin);
        let (left, right) = match *kinds {
            [] | ["NFC"] | ["Replace"] | ["Prepend", "Replace"] => (Set::of(|_| true), any),
            ["NFD" | "NFKC" | "NFKD"] => (ascii, ascii),
            _ => return None,
        };
        let sign = SPACE_SIGN.to_string();
        for step in &steps {
            let known = match step["type"].as_str() {
                Some("Replace") => step["pattern"]["String"] == " " && step["content"] == *sign,
                Some("Prepend") => step["prepend"] == *sign,
                _ => true,
            };
            if !known {
                return None;
            }
        }
        let row = |s| if left.has(s) { right } else { Set::default() };
        Some(Self {
            classes,
            alphabet: Alphabet::new(),
            apart: (0..SYMBOLS).map(row).collect(),
            cut: vec![Set::default(); SYMBOLS],
            writes_spaces: kinds.contains(&"Replace"),
            prepends: kinds.contains(&"Prepend") || is_metaspace(head),
            composes: kinds.iter().any(|kind| kind.starts_with("NF")),
            byte_level: false,
        })
    }

    fn run(mut self, head: &Head, tokens: impl Iterator<Item = String>) -> Option<(Pairs, bool)> {
        self.added(&head.added_tokens)?;
        let steps = steps_of(head.pre_tokenizer.as_ref());
        for (at, step) in steps.iter().enumerate() {
            let is_last = at + 1 == steps.len();
            match step["type"].as_str()? {
                "Split" => self.split(step)?,
                "Digits" => self.digits(step["individual_digits"] == true),
                "Punctuation" if matches!(step["behavior"].as_str(), None | Some("Isolated")) => {}
                "ByteLevel" if is_last => self.byte_level(step)?,
                "Metaspace" if is_last => self.metaspace(step, at == 0)?,
                _ => return None,
            }
        }
        let suffix = head.model.end_of_word_suffix.as_deref();
        if !self.byte_level && suffix.is_none_or(str::is_empty) {
            self.model(&head.model, tokens);
        }
        let both = self.apart.iter().zip(&self.cut);
        let mut allowed: Pairs = both.map(|(apart, cut)| apart.and(*cut)).collect();
        if self.composes {
            // A letter with a mark may be composed to a letter, or be taken apart; three characters become ASCII.
            let same = [LETTER, OTHER, ';' as usize, '`' as usize, 'K' as usize];
            let common = same
                .iter()
                .fold(Set::of(may_begin), |c, &s| c.and(allowed[s]));
            (allowed[LETTER], allowed[OTHER]) = (common, common);
        }
        Some((allowed, self.composes))
    }

    /// Added tokens are found before anything else is done, or in the normalised text.
    fn added(&mut self, tokens: &[AddedToken]) -> Option<()> {
        let spaces = self.spaces();
        for token in tokens {
            if token.single_word || token.normalized && self.composes && !token.content.is_ascii() {
                return None;
            }
            self.forbid_neighbours(&token.content);
            if token.normalized && self.writes_spaces {
                // Where the normalizer prepends one, it is part of the token.
                let written = format!("{SPACE_SIGN}{}", token.content.replace(' ', "\u{2581}"));
                self.forbid_neighbours(&written);
            }
            // Spaces beside a token that takes them away belong to it.
            let end = |c: Option<char>| c.map(|c| symbol(c, self.classes));
            let first = end(token.content.chars().next());
            let last = end(token.content.chars().next_back());
            if let Some(last) = last.filter(|_| self.prepends) {
                // The text behind a token begins anew, unlike the text behind a cut.
                self.apart[last] = Set::default();
            }
            for left in 0..SYMBOLS {
                if token.lstrip && spaces.has(left) {
                    let taken = spaces.or(Set::of(|s| Some(s) == first));
                    self.apart[left] = self.apart[left].without(taken);
                }
                if token.rstrip && (spaces.has(left) || Some(left) == last) {
                    self.apart[left] = match self.prepends {
                        true => Set::default(),
                        false => self.apart[left].without(spaces),
                    };
                }
            }
        }
        Some(())
    }

    /// Keeps what stands side by side in `text` together.
    fn forbid_neighbours(&mut self, text: &str) {
        for (left, right) in text.chars().zip(text.chars().skip(1)) {
            for left in self.written_as(left) {
                for right in self.written_as(right) {
                    self.apart[left].remove(right);
                }
            }
        }
    }

    /// The symbols of the characters that are `c` once they are normalised.
    fn written_as(&self, c: char) -> Vec<usize> {
        let mut symbols = vec![symbol(c, self.classes)];
        if self.writes_spaces && c == SPACE_SIGN {
            symbols.push(' ' as usize);
        }
        symbols
    }

    /// Spaces as regular expressions mean them.
    fn spaces(&self) -> Set {
        Set::of(|s| s == SPACE || s < 128 && char::from(s as u8).is_whitespace())
    }

    fn split(&mut self, step: &Value) -> Option<()> {
        if let Some(text) = step["pattern"]["String"].as_str() {
            // Far from its matches nothing is cut, whatever becomes of them.
            let parts: Vec<usize> = text.chars().map(|c| symbol(c, self.classes)).collect();
            let mut near = Set::of(|s| parts.contains(&s));
            if self.writes_spaces {
                near.remove(' ' as usize);
                if text.contains(SPACE_SIGN) {
                    near.insert(' ' as usize);
                }
            }
            for (left, row) in self.apart.iter_mut().enumerate() {
                *row = match near.has(left) {
                    true => Set::default(),
                    false => row.without(near),
                };
            }
            return Some(());
        }
        let whole_words = match (step["behavior"].as_str()?, step["invert"].as_bool()?) {
            ("Isolated", false) | ("Removed", true) => !self.writes_spaces,
            _ => false,
        };
        self.expression(step["pattern"]["Regex"].as_str()?)
            .filter(|()| whole_words)
    }

    /// Words are the matches of `pattern` and what lies between them.
    fn expression(&mut self, pattern: &str) -> Option<()> {
        let matches = Matches::of(pattern, &self.alphabet, self.classes)?;
        let spaces = self.spaces();
        for left in 0..SYMBOLS {
            let joined = Set::of(|right| matches.joins(left, right));
            self.apart[left] = match matches.looks_ahead && spaces.has(left) {
                true => Set::default(),
                false => self.apart[left].without(joined),
            };
            // What is a match on its own begins one wherever none is under way.
            self.cut[left] = self.cut[left].or(matches.single.without(joined));
        }
        Some(())
    }

    /// Digits stand alone, or all that are side by side together.
    fn digits(&mut self, alone: bool) {
        let digits = Set::of(|s| s < 128 && (s as u8).is_ascii_digit());
        let numbers = digits.or(Set::of(|s| s == OTHER));
        for left in (0..SYMBOLS).filter(|&s| numbers.has(s)) {
            match alone {
                true => self.cut[left] = self.cut[left].or(digits),
                false => self.apart[left] = self.apart[left].without(numbers),
            }
        }
    }

    fn byte_level(&mut self, step: &Value) -> Option<()> {
        self.byte_level = true;
        if step["use_regex"].as_bool().unwrap_or(true) {
            if self.writes_spaces {
                return None;
            }
            self.expression(GPT2)?;
        }
        if step["add_prefix_space"] != false {
            self.only_before_spaces();
        }
        Some(())
    }

    /// Spaces become signs, and words are cut before them.
    fn metaspace(&mut self, step: &Value, alone: bool) -> Option<()> {
        if step["replacement"] != *SPACE_SIGN.to_string() {
            return None;
        }
        self.writes_spaces = true;
        if !alone {
            // A word that begins otherwise may get a sign in front.
            self.only_before_spaces();
        }
        if step["split"].as_bool().unwrap_or(true) {
            self.cut.iter_mut().for_each(|row| row.insert(' ' as usize));
        }
        Some(())
    }

    fn only_before_spaces(&mut self) {
        let space = Set::of(|s| s == ' ' as usize);
        self.apart.iter_mut().for_each(|row| *row = row.and(space));
    }

    /// What no token has side by side never merges. The right one must be a token, which ends a run of unknown
    /// characters; an unknown left one must leave something, or what is before it merges with the right one.
    fn model(&mut self, model: &ModelHead, tokens: impl Iterator<Item = String>) {
        let mut joined = vec![Set::default(); SYMBOLS];
        let (mut known, mut bytes) = (Set::default(), 0);
        // What an unknown one becomes may be part of a merge, too: what stands behind it in a token.
        let (unknown, spells) = (
            model.unk_token.as_deref(),
            model.byte_fallback == Some(true),
        );
        let unknown = unknown.filter(|text| !text.is_empty());
        let mut of_ends = Set::default();
        for text in tokens {
            bytes += usize::from(byte_token(&text).is_some());
            let mut chars = text.chars();
            if let (Some(only), None) = (chars.next(), chars.next()) {
                let symbols = self.written_as(only);
                symbols.iter().for_each(|&s| known.insert(s));
            }
            for (left, right) in text.chars().zip(text.chars().skip(1)) {
                for left in self.written_as(left) {
                    let rights = self.written_as(right);
                    rights.iter().for_each(|&right| joined[left].insert(right));
                }
            }
            let named = unknown
                .into_iter()
                .flat_map(|name| text.match_indices(name));
            let named = named.map(|(at, name)| &text[at + name.len()..]);
            let spelled = text.match_indices("<0x").filter_map(|(at, _)| {
                let (byte, rest) = text[at..].split_at_checked("<0x00>".len())?;
                byte_token(byte).filter(|_| spells).map(|_| rest)
            });
            for right in named.chain(spelled).filter_map(|rest| rest.chars().next()) {
                let rights = self.written_as(right);
                rights.iter().for_each(|&right| of_ends.insert(right));
            }
        }
        let left_behind = unknown.is_some() || spells && bytes >= 256;
        for (left, cut) in self.cut.iter_mut().enumerate() {
            let apart = known.without(joined[left]);
            *cut = match may_begin(left) && known.has(left) {
                true => cut.or(apart),
                false if left_behind => cut.or(apart.without(of_ends)),
                false => *cut,
            };
        }
    }
}
