//! GPT-2's expression, and what others put around it.

use super::Stage;
use super::cut::{run_of, runs, scan, single_numbers, spaces};
use crate::tokenizer::unicode_class::{Category, CharClass, CharClasses};

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) const GPT2: &[Stage] = &[gpt2];

/// `\p{N}`, and [`GPT2`] in what is between the matches.
pub(super) const SINGLE_NUMBERS: &[Stage] = &[single_numbers, gpt2];

/// `[\p{P}\$\+<=>\^~\|]+`, inside and between the matches [`GPT2`], therein `\p{N}+`, therein
/// `[0-9][0-9][0-9]`: llama.cpp's for files that name no pre-tokenizer.
pub(super) const DEFAULT: &[Stage] = &[marks, gpt2, numbers, triples];

/// ``[\p{P}\$\+<=>\^~\|`]+``, [`GPT2`], `[0-9][0-9][0-9]`. Falcon's `tokenizer.json` also has `\p{N}+`
/// before the last, over the letters of the byte alphabet, where the bytes of `¹`, `½` and others are
/// numbers to it; no merge of its vocabulary crosses such a place.
pub(super) const FALCON: &[Stage] = &[marks_and_backticks, gpt2, triples];

fn gpt2<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    scan(text, |rest| word(rest, classes), emit);
}

fn marks<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    runs(text, usize::MAX, |c| c != '`' && is_mark(c, classes), emit);
}

fn marks_and_backticks<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    runs(text, usize::MAX, |c| is_mark(c, classes), emit);
}

/// ``[\p{P}$+<=>^`|~]``
fn is_mark(c: char, classes: &CharClasses) -> bool {
    c.is_ascii_punctuation() || classes.category(c) == Category::Punctuation
}

fn numbers<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let number = |c| classes.class(c) == CharClass::Number;
    runs(text, usize::MAX, number, emit);
}

/// `[0-9][0-9][0-9]` and what is between the matches.
fn triples<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
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

/// Length of the first word; `text` is not empty.
fn word(text: &str, classes: &CharClasses) -> usize {
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
        _ => spaces(text),
    }
}
