//! The expression of OpenAI's cl100k, as Llama 3, Qwen and many others have it:
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//! \s*[\r\n]+|\s+(?!\S)|\s+`

use super::Stage;
use super::cut::{contraction, is_newline, numbers_by_three, run_of, scan, spaces_by_line};
use crate::tokenizer::unicode_class::{Category, CharClass, CharClasses};

/// What differs between the models.
#[derive(Clone, Copy)]
struct Rules {
    /// Most numbers in a word.
    numbers: usize,
    /// Whether `\p{M}` counts as `\p{L}`, except in the one character before a word.
    marks_are_letters: bool,
    /// Whether newlines belong to the punctuation before them.
    punctuation_ends_lines: bool,
}

const LLAMA3_RULES: Rules = Rules {
    numbers: 3,
    marks_are_letters: false,
    punctuation_ends_lines: true,
};

/// The expression above.
pub(super) const LLAMA3: &[Stage] =
    &[|text, classes, emit| scan(text, |rest| word(rest, classes, LLAMA3_RULES), emit)];

/// With `\p{N}` in place of `\p{N}{1,3}`.
pub(super) const QWEN2: &[Stage] = &[|text, classes, emit| {
    let rules = Rules {
        numbers: 1,
        ..LLAMA3_RULES
    };
    scan(text, |rest| word(rest, classes, rules), emit);
}];

/// As [`QWEN2`], with `[\p{L}\p{M}]+` for words and `[^\s\p{L}\p{M}\p{N}]+` for punctuation.
pub(super) const QWEN35: &[Stage] = &[|text, classes, emit| {
    let rules = Rules {
        numbers: 1,
        marks_are_letters: true,
        ..LLAMA3_RULES
    };
    scan(text, |rest| word(rest, classes, rules), emit);
}];

/// As [`QWEN2`], with ` ?[^\s\p{L}\p{N}\r\n]+` for punctuation.
pub(super) const SEED_CODER: &[Stage] = &[|text, classes, emit| {
    let rules = Rules {
        numbers: 1,
        punctuation_ends_lines: false,
        ..LLAMA3_RULES
    };
    scan(text, |rest| word(rest, classes, rules), emit);
}];

/// `\p{N}{1,3}`, and the expression with `\p{N}+` inside and between the matches.
pub(super) const MINICPM5: &[Stage] = &[numbers_by_three, LLAMA3[0]];

/// Length of the first word; `text` is not empty.
fn word(text: &str, classes: &CharClasses, rules: Rules) -> usize {
    if let Some(len) = contraction(text) {
        return len;
    }
    let class = |c| match rules.marks_are_letters && classes.category(c) == Category::Mark {
        true => CharClass::Letter,
        false => classes.class(c),
    };
    let run_from =
        |at: usize, wanted: CharClass| at + run_of(&text[at..], usize::MAX, |c| class(c) == wanted);
    let punctuation = |at: usize| {
        let end = run_from(at, CharClass::Other);
        match rules.punctuation_ends_lines {
            true => end + run_of(&text[end..], usize::MAX, is_newline),
            false => end,
        }
    };
    let mut chars = text.chars();
    let first = chars.next().unwrap_or_default();
    let second = chars.next().map(class);
    match class(first) {
        CharClass::Letter => run_from(0, CharClass::Letter),
        CharClass::Number => run_of(text, rules.numbers, |c| class(c) == CharClass::Number),
        _ if !is_newline(first) && second == Some(CharClass::Letter) => {
            run_from(first.len_utf8(), CharClass::Letter)
        }
        CharClass::Other => punctuation(0),
        CharClass::Space if first == ' ' && second == Some(CharClass::Other) => punctuation(1),
        CharClass::Space => spaces_by_line(text),
    }
}
