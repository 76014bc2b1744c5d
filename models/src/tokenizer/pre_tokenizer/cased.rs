//! The expression of OpenAI's o200k, which cuts words where small letters end, and its relatives:
//! `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//! [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//! \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//!
//! These are Unicode's cases, as in the models' own tokenizers. llama.cpp takes every letter but a–z for
//! a large one and every letter but A–Z for a small one, and marks for neither, so its tokens differ
//! where a word of other letters changes its case ("ÉtéÉté", "ПриветМир") or has combining marks.

use super::Stage;
use super::cut::{contraction, is_newline, run_of, scan, spaces_by_line};
use crate::tokenizer::unicode_class::{Category, CharClass, CharClasses};

/// What differs between the models.
#[derive(Clone, Copy)]
struct Rules {
    /// Most numbers in a word.
    numbers: usize,
    /// Whether a contraction belongs to the word before it.
    takes_contraction: bool,
    /// Whether slashes belong to punctuation and its newlines.
    takes_slashes: bool,
    /// Whether `[\p{Han}]+` goes before everything else, and out of the classes of letters.
    han_apart: bool,
}

const O200K_RULES: Rules = Rules {
    numbers: 3,
    takes_contraction: true,
    takes_slashes: true,
    han_apart: false,
};

/// The expression above.
pub(super) const O200K: &[Stage] =
    &[|text, classes, emit| scan(text, |rest| word(rest, classes, O200K_RULES), emit)];

/// Without contractions, and with `\p{N}` in place of `\p{N}{1,3}`.
pub(super) const TEKKEN: &[Stage] = &[|text, classes, emit| {
    let rules = Rules {
        numbers: 1,
        takes_contraction: false,
        ..O200K_RULES
    };
    scan(text, |rest| word(rest, classes, rules), emit);
}];

/// `[\p{Han}]+`, or the expression with `&&[^\p{Han}]` in the classes of letters and `[\r\n]*` for `[\r\n/]*`.
pub(super) const KIMI_K2: &[Stage] = &[|text, classes, emit| {
    let rules = Rules {
        takes_slashes: false,
        han_apart: true,
        ..O200K_RULES
    };
    scan(text, |rest| word(rest, classes, rules), emit);
}];

/// Length of the first word; `text` is not empty.
fn word(text: &str, classes: &CharClasses, rules: Rules) -> usize {
    if rules.han_apart {
        let han = run_of(text, usize::MAX, |c| classes.is_han(c));
        if han > 0 {
            return han;
        }
    }
    if let Some(end) = letters(text, classes, rules) {
        return match rules.takes_contraction {
            true => end + contraction(&text[end..]).unwrap_or(0),
            false => end,
        };
    }
    let numbers = run_of(text, rules.numbers, |c| {
        classes.class(c) == CharClass::Number
    });
    if numbers > 0 {
        return numbers;
    }
    let skip = usize::from(text.starts_with(' '));
    let other = run_of(&text[skip..], usize::MAX, |c| {
        classes.class(c) == CharClass::Other
    });
    if other > 0 {
        let end = skip + other;
        let may_follow = |c| is_newline(c) || rules.takes_slashes && c == '/';
        return end + run_of(&text[end..], usize::MAX, may_follow);
    }
    spaces_by_line(text)
}

/// The end of a word of letters, with the one character that may be before it.
fn letters(text: &str, classes: &CharClasses, rules: Rules) -> Option<usize> {
    let first = text.chars().next()?;
    let may_precede = !is_newline(first) && classes.class(first) != CharClass::Letter;
    if !may_precede || classes.class(first) == CharClass::Number {
        let end = ends_small(text, classes, rules);
        return end.or_else(|| all_large(text, classes, rules));
    }
    let (begin, rest) = (first.len_utf8(), &text[first.len_utf8()..]);
    let small = ends_small(rest, classes, rules).map(|end| begin + end);
    // A mark may stand before a word, and be one.
    let small = small.or_else(|| ends_small(text, classes, rules));
    small.or_else(|| all_large(rest, classes, rules).map(|end| begin + end))
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`: where no small letter follows the first
/// class, it gives back the characters behind the last that is also of the second.
fn ends_small(text: &str, classes: &CharClasses, rules: Rules) -> Option<usize> {
    let kind = |c| kind_of(c, classes, rules);
    let mut end = None;
    for (at, c) in text.char_indices() {
        match kind(c) {
            Some(Kind::Large) => {}
            Some(Kind::Both) => end = Some(at + c.len_utf8()),
            Some(Kind::Small) => {
                let small = |c| matches!(kind(c), Some(Kind::Small | Kind::Both));
                return Some(at + run_of(&text[at..], usize::MAX, small));
            }
            None => break,
        }
    }
    end
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` where [`ends_small`] found nothing: large
/// letters alone.
fn all_large(text: &str, classes: &CharClasses, rules: Rules) -> Option<usize> {
    let large = |c| kind_of(c, classes, rules) == Some(Kind::Large);
    Some(run_of(text, usize::MAX, large)).filter(|&end| end > 0)
}

/// Which of the two classes of letters a character is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The first only.
    Large,
    /// The second only.
    Small,
    Both,
}

/// `None` for what is in neither class.
fn kind_of(c: char, classes: &CharClasses, rules: Rules) -> Option<Kind> {
    let kind = match classes.category(c) {
        Category::Upper => Kind::Large,
        Category::Lower => Kind::Small,
        Category::Caseless | Category::Mark => Kind::Both,
        _ => return None,
    };
    (!rules.han_apart || !classes.is_han(c)).then_some(kind)
}
