//! Classes of characters as regular expressions mean them: `\p{L}`, `\p{N}`, `\p{P}` and others.
//!
//! The ranges come from `regex-syntax`, as some 30 KB of sorted ranges. A compiled regular expression
//! over the same classes holds megabytes of automata, which would count against the memory budget.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// What most pre-tokenizers distinguish in a character. The classes do not overlap.
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

/// The finest distinction that a pre-tokenizer makes. The categories do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    /// `[\p{Lu}\p{Lt}]`
    Upper,
    /// `\p{Ll}`
    Lower,
    /// `[\p{Lm}\p{Lo}]`
    Caseless,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// `\p{P}`
    Punctuation,
    /// `\p{S}`
    Symbol,
    /// `\s`
    Space,
    /// Everything else: control, format, private and unassigned characters.
    Other,
}

/// The expressions of the categories that are looked up.
const EXPRESSIONS: [(&str, Category); 7] = [
    (r"[\p{Lu}\p{Lt}]", Category::Upper),
    (r"\p{Ll}", Category::Lower),
    (r"[\p{Lm}\p{Lo}]", Category::Caseless),
    (r"\p{M}", Category::Mark),
    (r"\p{N}", Category::Number),
    (r"\p{P}", Category::Punctuation),
    (r"\p{S}", Category::Symbol),
];

/// As the regular expression in the `tokenizer.json` of DeepSeek LLM has them.
const DEEPSEEK_LETTERS: &str = concat!(
    r"[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}",
    r"\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}",
    r"\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}",
    r"\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}",
    r"\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}",
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}",
    r"\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}",
    r"\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}",
    r"\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}",
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}",
    r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}",
    r"\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}",
    r"\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}",
    r"\x{1e900}-\x{1e943}]",
);

/// Sorted, disjoint, inclusive ranges of characters.
#[derive(Debug)]
struct CharSet(Box<[(char, char)]>);

impl CharSet {
    /// The characters of a class expression of regular-expression syntax.
    fn parse(expression: &'static str) -> Self {
        Self(ranges(expression).collect())
    }

    fn contains(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

/// The ranges of a class expression of regular-expression syntax, in order.
fn ranges(expression: &'static str) -> impl Iterator<Item = (char, char)> {
    let hir = regex_syntax::parse(expression).expect("a constant, valid class expression");
    let HirKind::Class(Class::Unicode(class)) = hir.into_kind() else {
        unreachable!("{expression} is a Unicode class");
    };
    let ranges: Vec<_> = class.iter().map(|r| (r.start(), r.end())).collect();
    ranges.into_iter()
}

/// The tables behind [`Category`] and [`CharClass`].
#[derive(Debug)]
pub(super) struct CharClasses {
    /// Sorted and disjoint, with inclusive ends.
    categories: Box<[(char, char, Category)]>,
    /// Few pre-tokenizers ask for these.
    han: OnceLock<CharSet>,
    deepseek_letters: OnceLock<CharSet>,
}

impl CharClasses {
    pub(super) fn new() -> Self {
        let of = |&(expression, category): &(&'static str, Category)| {
            ranges(expression).map(move |(start, end)| (start, end, category))
        };
        let mut categories: Vec<_> = EXPRESSIONS.iter().flat_map(of).collect();
        categories.sort_unstable_by_key(|&(start, ..)| start);
        Self {
            categories: categories.into(),
            han: OnceLock::new(),
            deepseek_letters: OnceLock::new(),
        }
    }

    pub(super) fn category(&self, c: char) -> Category {
        match c {
            'a'..='z' => Category::Lower,
            'A'..='Z' => Category::Upper,
            '0'..='9' => Category::Number,
            '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~' => Category::Symbol,
            _ if c.is_whitespace() => Category::Space,
            _ if c.is_ascii_punctuation() => Category::Punctuation,
            _ if c.is_ascii() => Category::Other,
            _ => {
                let after = self.categories.partition_point(|&(start, ..)| start <= c);
                match after.checked_sub(1).map(|at| self.categories[at]) {
                    Some((_, end, category)) if c <= end => category,
                    _ => Category::Other,
                }
            }
        }
    }

    pub(super) fn class(&self, c: char) -> CharClass {
        match self.category(c) {
            Category::Upper | Category::Lower | Category::Caseless => CharClass::Letter,
            Category::Number => CharClass::Number,
            Category::Space => CharClass::Space,
            _ => CharClass::Other,
        }
    }

    /// `\p{Han}`
    pub(super) fn is_han(&self, c: char) -> bool {
        let han = || CharSet::parse(r"\p{Han}");
        !c.is_ascii() && self.han.get_or_init(han).contains(c)
    }

    /// The letters that the first DeepSeek models list one by one: the cased ones of some Unicode version.
    pub(super) fn is_deepseek_letter(&self, c: char) -> bool {
        if c.is_ascii() {
            return c.is_ascii_alphabetic();
        }
        let letters = || CharSet::parse(DEEPSEEK_LETTERS);
        self.deepseek_letters.get_or_init(letters).contains(c)
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
    }

    #[test]
    fn every_character_is_in_the_class_that_its_category_says() {
        let classes = CharClasses::new();
        let sets = EXPRESSIONS.map(|(expression, category)| (CharSet::parse(expression), category));
        for c in '\0'..=char::MAX {
            let mut expected = match c.is_whitespace() {
                true => Category::Space,
                false => Category::Other,
            };
            for (set, category) in &sets {
                if set.contains(c) {
                    expected = *category;
                }
            }
            assert_eq!(classes.category(c), expected, "{c:?}");
        }
    }

    #[test]
    fn scripts_and_lists_of_letters() {
        let classes = CharClasses::new();
        for (c, is_han) in [
            ('中', true),
            ('〇', true),
            ('⺀', true),
            ('の', false),
            ('a', false),
        ] {
            assert_eq!(classes.is_han(c), is_han, "{c:?}");
        }
        for (c, is_listed) in [
            ('a', true),
            ('é', true),
            ('Я', true),
            ('ա', false),
            ('中', false),
        ] {
            assert_eq!(classes.is_deepseek_letter(c), is_listed, "{c:?}");
        }
    }
}
