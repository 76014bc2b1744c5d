//! Cutting a text into words, inside which byte-level BPE merges.
//!
//! Each scanner is a published regular expression, carried out by hand as llama.cpp does: in linear
//! time and without an automaton's memory. The expressions stand in the comments, and the tests
//! compare every scanner with them on random texts.

use super::unicode_class::{CharClass, CharClasses};

/// `tokenizer.ggml.pre`: how a text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
    /// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    LlamaBpe,
    /// As [`Self::LlamaBpe`], with `\p{N}` in place of `\p{N}{1,3}`.
    Qwen2,
    /// `\p{N}`, and [`Self::Gpt2`] between the matches.
    Smollm,
    /// `[\p{P}\$\+<=>\^~\|]+`, inside and between the matches [`Self::Gpt2`], therein `\p{N}+`,
    /// therein `[0-9][0-9][0-9]`.
    Default,
}

impl PreTokenizer {
    /// The names that [`Self::parse`] knows, for messages.
    pub(super) const KNOWN: &str =
        "gpt-2, llama-bpe (also llama3, llama-v3), qwen2, smollm, default";

    /// The pre-tokenizer of that name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" => Self::Gpt2,
            "llama-bpe" | "llama3" | "llama-v3" => Self::LlamaBpe,
            "qwen2" => Self::Qwen2,
            "smollm" => Self::Smollm,
            "default" => Self::Default,
            _ => return None,
        })
    }

    /// Whether a word that is a token as a whole is taken as that token, without merging.
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Hands every word of `text` to `emit`, in order; together they are the text.
    pub(super) fn split<'t>(
        self,
        text: &'t str,
        classes: &CharClasses,
        emit: &mut dyn FnMut(&'t str),
    ) {
        match self {
            Self::Gpt2 => scan(text, |rest| gpt2_word(rest, classes), emit),
            Self::LlamaBpe => scan(text, |rest| llama_word(rest, classes, 3), emit),
            Self::Qwen2 => scan(text, |rest| llama_word(rest, classes, 1), emit),
            Self::Smollm => {
                let number = |c| classes.class(c) == CharClass::Number;
                runs(text, 1, number, &mut |run| {
                    Self::Gpt2.split(run, classes, emit)
                });
            }
            Self::Default => split_default(text, classes, emit),
        }
    }
}

fn split_default<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let mark =
        |c| matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|') || classes.is_punctuation(c);
    let number = |c| classes.class(c) == CharClass::Number;
    runs(text, usize::MAX, mark, &mut |run| {
        PreTokenizer::Gpt2.split(run, classes, &mut |word| {
            runs(word, usize::MAX, number, &mut |part| {
                split_triples(part, emit)
            });
        });
    });
}

/// `[0-9][0-9][0-9]` and what is between the matches.
fn split_triples<'t>(text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let bytes = text.as_bytes();
    let (mut begin, mut at) = (0, 0);
    while at < bytes.len() {
        if bytes.len() - at >= 3 && bytes[at..at + 3].iter().all(u8::is_ascii_digit) {
            if begin < at {
                emit(&text[begin..at]);
            }
            emit(&text[at..at + 3]);
            at += 3;
            begin = at;
        } else {
            at += 1;
        }
    }
    if begin < at {
        emit(&text[begin..]);
    }
}

/// Cuts off words of the length `word` says, at least one character each.
fn scan<'t>(text: &'t str, word: impl Fn(&str) -> usize, emit: &mut dyn FnMut(&'t str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(word(rest));
        emit(head);
        rest = tail;
    }
}

/// Cuts into runs of up to `longest` characters inside the class and the runs between them.
fn runs<'t>(
    text: &'t str,
    longest: usize,
    inside: impl Fn(char) -> bool,
    emit: &mut dyn FnMut(&'t str),
) {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = if inside(first) {
            run_of(rest, longest, &inside)
        } else {
            run_of(rest, usize::MAX, |c| !inside(c))
        };
        let (head, tail) = rest.split_at(end);
        emit(head);
        rest = tail;
    }
}

/// Bytes of the characters at the front that `inside` accepts, `longest` of them at most.
fn run_of(text: &str, longest: usize, inside: impl Fn(char) -> bool) -> usize {
    text.char_indices()
        .take(longest)
        .find(|&(_, c)| !inside(c))
        .map_or_else(
            || {
                text.char_indices()
                    .nth(longest)
                    .map_or(text.len(), |(at, _)| at)
            },
            |(at, _)| at,
        )
}

/// Length of the first word by the GPT-2 expression; `text` is not empty.
fn gpt2_word(text: &str, classes: &CharClasses) -> usize {
    let bytes = text.as_bytes();
    if bytes[0] == b'\'' {
        match bytes.get(1..) {
            Some([b's' | b't' | b'm' | b'd', ..]) => return 2,
            Some([b'r' | b'v', b'e', ..] | [b'l', b'l', ..]) => return 3,
            _ => {}
        }
    }
    let skip = usize::from(bytes[0] == b' ');
    match text[skip..].chars().next().map(|c| classes.class(c)) {
        Some(class) if class != CharClass::Space => {
            skip + run_of(&text[skip..], usize::MAX, |c| classes.class(c) == class)
        }
        _ => space_word(text),
    }
}

/// Length of the first word by the Llama 3 expression, with `digits` numbers to a word at most;
/// `text` is not empty.
fn llama_word(text: &str, classes: &CharClasses, digits: usize) -> usize {
    if let Some(len) = contraction_of_any_case(text.as_bytes()) {
        return len;
    }
    let letters = |at: usize| {
        at + run_of(&text[at..], usize::MAX, |c| {
            classes.class(c) == CharClass::Letter
        })
    };
    let others = |at: usize| {
        let end = at
            + run_of(&text[at..], usize::MAX, |c| {
                classes.class(c) == CharClass::Other
            });
        end + run_of(&text[end..], usize::MAX, is_newline)
    };
    let mut chars = text.chars();
    let first = chars.next().unwrap_or_default();
    let second = chars.next().map(|c| classes.class(c));
    match classes.class(first) {
        CharClass::Letter => letters(0),
        CharClass::Number => run_of(text, digits, |c| classes.class(c) == CharClass::Number),
        _ if !is_newline(first) && second == Some(CharClass::Letter) => letters(first.len_utf8()),
        CharClass::Other => others(0),
        CharClass::Space if first == ' ' && second == Some(CharClass::Other) => others(1),
        CharClass::Space => {
            let run = &text[..run_of(text, usize::MAX, char::is_whitespace)];
            match run.rfind(is_newline) {
                Some(newline) => newline + 1,
                None => space_word(text),
            }
        }
    }
}

/// `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
fn contraction_of_any_case(text: &[u8]) -> Option<usize> {
    match text.strip_prefix(b"'")? {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => Some(2),
        [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => Some(3),
        _ => None,
    }
}

fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

/// `\s+(?!\S)|\s+`: the whole run at the end of the text, else all of it but the last character, which
/// belongs to the word after it, unless there is only one.
fn space_word(text: &str) -> usize {
    let run = run_of(text, usize::MAX, char::is_whitespace);
    if run == text.len() {
        return run;
    }
    match text[..run].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => run,
    }
}

#[cfg(test)]
mod tests;
