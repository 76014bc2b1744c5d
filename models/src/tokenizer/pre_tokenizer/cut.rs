//! Ways of cutting that the scanners share.

use crate::tokenizer::unicode_class::{CharClass, CharClasses};

/// Cuts off words of the length `word` says, at least one character each.
pub(super) fn scan<'t>(text: &'t str, word: impl Fn(&str) -> usize, emit: &mut dyn FnMut(&'t str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(word(rest));
        emit(head);
        rest = tail;
    }
}

/// Cuts into what `found` matches, from the left, and what is between the matches. `found` tells the
/// length of a match at the front of a text that is not empty.
pub(super) fn isolate<'t>(
    text: &'t str,
    found: impl Fn(&str) -> Option<usize>,
    emit: &mut dyn FnMut(&'t str),
) {
    let (mut rest, mut between) = (text, 0);
    while let Some(c) = rest[between..].chars().next() {
        let Some(len) = found(&rest[between..]) else {
            between += c.len_utf8();
            continue;
        };
        let (before, tail) = rest.split_at(between);
        let (head, tail) = tail.split_at(len);
        if !before.is_empty() {
            emit(before);
        }
        emit(head);
        (rest, between) = (tail, 0);
    }
    if !rest.is_empty() {
        emit(rest);
    }
}

/// Cuts into runs of up to `longest` characters inside the class and the runs between them.
pub(super) fn runs<'t>(
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
pub(super) fn run_of(text: &str, longest: usize, inside: impl Fn(char) -> bool) -> usize {
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

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`: a contraction at the front. To regular expressions that know
/// Unicode the long s (`ſ`) is an s of another case.
pub(super) fn contraction(text: &str) -> Option<usize> {
    match text.as_bytes().strip_prefix(b"'")? {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => Some(2),
        [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => Some(3),
        _ if text[1..].starts_with('ſ') => Some(1 + 'ſ'.len_utf8()),
        _ => None,
    }
}

pub(super) fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

/// `\p{N}`, one by one, and what is between them.
pub(super) fn single_numbers<'t>(
    text: &'t str,
    classes: &CharClasses,
    emit: &mut dyn FnMut(&'t str),
) {
    runs(text, 1, |c| classes.class(c) == CharClass::Number, emit);
}

/// `\p{N}{1,3}` and what is between the matches.
pub(super) fn numbers_by_three<'t>(
    text: &'t str,
    classes: &CharClasses,
    emit: &mut dyn FnMut(&'t str),
) {
    runs(text, 3, |c| classes.class(c) == CharClass::Number, emit);
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline of the run, if it has one.
pub(super) fn spaces_by_line(text: &str) -> usize {
    let run = &text[..run_of(text, usize::MAX, char::is_whitespace)];
    match run.rfind(is_newline) {
        Some(newline) => newline + 1,
        None => spaces(text),
    }
}

/// `\s+(?!\S)|\s+`: the whole run at the end of the text, else all of it but the last character, which
/// belongs to the word after it, unless there is only one.
pub(super) fn spaces(text: &str) -> usize {
    let run = run_of(text, usize::MAX, char::is_whitespace);
    if run == text.len() {
        return run;
    }
    match text[..run].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => run,
    }
}
