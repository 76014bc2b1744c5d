//! DeepSeek's expressions, which cut one after the other.

use super::Stage;
use super::cut::{
    is_newline, isolate, numbers_by_three, run_of, runs, single_numbers, spaces_by_line,
};
use crate::tokenizer::unicode_class::{Category, CharClass, CharClasses};

/// `[\r\n]`, `\s?` and letters of a list, `\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+$`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}`
pub(super) const LLM: &[Stage] = &[
    single_newlines,
    listed_letters,
    listed_marks,
    spaces_at_end,
    ideographs,
    single_numbers,
];

/// `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}`
pub(super) const CODER: &[Stage] = &[
    single_newlines,
    letters,
    punctuation,
    ideographs,
    single_numbers,
];

/// `\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, [`v3_words`]
pub(super) const V3: &[Stage] = &[numbers_by_three, ideographs_and_kana, v3_words];

fn single_newlines<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    runs(text, 1, is_newline, emit);
}

fn listed_letters<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let listed = |c| classes.is_deepseek_letter(c);
    isolate(text, |rest| after_space(rest, listed), emit);
}

/// ASCII letters are between `:` and `~`, so words are cut here once more.
fn listed_marks<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let listed = |c| {
        matches!(c, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～')
            || matches!(c, '‘'..='‟' | '\u{3000}'..='。')
    };
    isolate(text, |rest| after_space(rest, listed), emit);
}

fn letters<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let letter = |c| classes.class(c) == CharClass::Letter;
    isolate(text, |rest| after_space(rest, letter), emit);
}

fn punctuation<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let punctuation = |c| classes.category(c) == Category::Punctuation;
    isolate(text, |rest| after_space(rest, punctuation), emit);
}

/// `\s?` and a run of the class, at the front.
fn after_space(text: &str, inside: impl Fn(char) -> bool) -> Option<usize> {
    let mut chars = text.chars();
    let first = chars.next()?;
    let skip = match first.is_whitespace() && chars.next().is_some_and(&inside) {
        true => first.len_utf8(),
        false => 0,
    };
    let run = run_of(&text[skip..], usize::MAX, inside);
    (run > 0).then_some(skip + run)
}

fn spaces_at_end<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let (before, spaces) = text.split_at(text.trim_end().len());
    for part in [before, spaces] {
        if !part.is_empty() {
            emit(part);
        }
    }
}

fn ideographs<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let inside = |c| matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}');
    runs(text, usize::MAX, inside, emit);
}

fn ideographs_and_kana<'t>(text: &'t str, _: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    let inside = |c| matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}');
    runs(text, usize::MAX, inside, emit);
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
fn v3_words<'t>(text: &'t str, classes: &CharClasses, emit: &mut dyn FnMut(&'t str)) {
    isolate(text, |rest| v3_word(rest, classes), emit);
}

/// A match of the expression of [`v3_words`] at the front.
fn v3_word(text: &str, classes: &CharClasses) -> Option<usize> {
    let letter_or_mark =
        |c| classes.class(c) == CharClass::Letter || classes.category(c) == Category::Mark;
    let sign = |c| {
        matches!(
            classes.category(c),
            Category::Punctuation | Category::Symbol
        )
    };
    let run_from =
        |at: usize, inside: &dyn Fn(char) -> bool| at + run_of(&text[at..], usize::MAX, inside);
    let mut chars = text.chars();
    let first = chars.next()?;
    let second = chars.next().unwrap_or_default();
    if first.is_ascii_punctuation() && second.is_ascii_alphabetic() {
        return Some(run_from(1, &|c| c.is_ascii_alphabetic()));
    }
    if letter_or_mark(first) {
        return Some(run_from(0, &letter_or_mark));
    }
    if !is_newline(first) && !sign(first) && letter_or_mark(second) {
        return Some(run_from(first.len_utf8(), &letter_or_mark));
    }
    let skip = usize::from(first == ' ');
    let signs = run_from(skip, &sign);
    if signs > skip {
        return Some(run_from(signs, &is_newline));
    }
    first.is_whitespace().then(|| spaces_by_line(text))
}
