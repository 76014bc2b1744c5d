//! Letters, numbers and punctuation as regular expressions mean them: `\p{L}`, `\p{N}`, `\p{P}`.
//!
//! The ranges come from `regex-syntax`, as a few KB of sorted ranges. A compiled regular expression
//! over the same classes holds megabytes of automata, which would count against the memory budget.

use regex_syntax::hir::{Class, HirKind};

/// What a pre-tokenizer distinguishes in a character. The classes do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CharClass {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// Everything else.
    Other,
}

/// Sorted, disjoint, inclusive ranges of characters.
#[derive(Debug)]
struct CharSet(Box<[(char, char)]>);

impl CharSet {
    /// The characters of a class expression of regular-expression syntax.
    fn parse(expression: &'static str) -> Self {
        let hir = regex_syntax::parse(expression).expect("a constant, valid class expression");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
            unreachable!("{expression} is a Unicode class");
        };
        Self(
            class
                .ranges()
                .iter()
                .map(|r| (r.start(), r.end()))
                .collect(),
        )
    }

    fn contains(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

/// The tables behind [`CharClass`].
#[derive(Debug)]
pub(super) struct CharClasses {
    letters: CharSet,
    numbers: CharSet,
    punctuation: CharSet,
}

impl CharClasses {
    pub(super) fn new() -> Self {
        Self {
            letters: CharSet::parse(r"\p{L}"),
            numbers: CharSet::parse(r"\p{N}"),
            punctuation: CharSet::parse(r"\p{P}"),
        }
    }

    pub(super) fn class(&self, c: char) -> CharClass {
        match c {
            'a'..='z' | 'A'..='Z' => CharClass::Letter,
            '0'..='9' => CharClass::Number,
            _ if c.is_whitespace() => CharClass::Space,
            _ if c.is_ascii() => CharClass::Other,
            _ if self.letters.contains(c) => CharClass::Letter,
            _ if self.numbers.contains(c) => CharClass::Number,
            _ => CharClass::Other,
        }
    }

    pub(super) fn is_punctuation(&self, c: char) -> bool {
        self.punctuation.contains(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_characters_that_are_easily_confused() {
        let classes = CharClasses::new();
        let cases = [
            ('ß', CharClass::Letter),
            ('中', CharClass::Letter),
            ('ʰ', CharClass::Letter),
            ('½', CharClass::Number),
            ('Ⅷ', CharClass::Number),
            ('٣', CharClass::Number),
            ('\u{301}', CharClass::Other), // combining: alphabetic to Rust, a mark to \p{L}
            ('\u{a0}', CharClass::Space),
            ('\u{3000}', CharClass::Space),
            ('\u{200b}', CharClass::Other),
            ('😀', CharClass::Other),
            ('_', CharClass::Other),
        ];
        for (c, expected) in cases {
            assert_eq!(classes.class(c), expected, "{c:?}");
        }
        assert!(classes.is_punctuation('！') && classes.is_punctuation('_'));
        assert!(!classes.is_punctuation('+') && !classes.is_punctuation('a'));
    }
}
