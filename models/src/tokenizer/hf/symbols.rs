//! The alphabet in which it is decided where a text may be cut: ASCII characters one by one, the rest in classes.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use crate::tokenizer::unicode_class::{CharClass, CharClasses};

/// Ideographs, kana and Hangul syllables: letters that Unicode's composition leaves as they are.
pub(super) const WIDE: usize = 128;
/// Other letters.
pub(super) const LETTER: usize = 129;
/// Spaces beyond ASCII.
pub(super) const SPACE: usize = 130;
/// All else.
pub(super) const OTHER: usize = 131;
/// Punctuation between ideographs: one symbol each, from this one on.
const MARKS: [char; 3] = ['、', '。', '，'];
/// Symbols.
pub(super) const SYMBOLS: usize = OTHER + 1 + MARKS.len();

const WIDE_RANGES: [(char, char); 4] = [
    ('\u{3041}', '\u{3096}'),
    ('\u{30a1}', '\u{30fa}'),
    ('\u{4e00}', '\u{9fff}'),
    ('\u{ac00}', '\u{d7a3}'),
];

/// The symbol of a character.
pub(super) fn symbol(c: char, classes: &CharClasses) -> usize {
    if c.is_ascii() {
        return c as usize;
    }
    if let Some(mark) = MARKS.iter().position(|&mark| mark == c) {
        return OTHER + 1 + mark;
    }
    if WIDE_RANGES
        .iter()
        .any(|&(from, to)| (from..=to).contains(&c))
    {
        return WIDE;
    }
    match classes.class(c) {
        CharClass::Letter => LETTER,
        CharClass::Space => SPACE,
        CharClass::Number | CharClass::Other => OTHER,
    }
}

/// Whether a piece may begin with this symbol.
pub(super) fn may_begin(symbol: usize) -> bool {
    !(128..=OTHER).contains(&symbol)
}

/// A set of symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set([u64; SYMBOLS.div_ceil(64)]);

impl Set {
    pub(super) fn insert(&mut self, symbol: usize) {
        self.0[symbol / 64] |= 1 << (symbol % 64);
    }

    pub(super) fn remove(&mut self, symbol: usize) {
        self.0[symbol / 64] &= !(1 << (symbol % 64));
    }

    pub(super) fn has(&self, symbol: usize) -> bool {
        self.0[symbol / 64] >> (symbol % 64) & 1 == 1
    }

    pub(super) fn of(is_in: impl Fn(usize) -> bool) -> Self {
        let mut set = Self::default();
        (0..SYMBOLS)
            .filter(|&s| is_in(s))
            .for_each(|s| set.insert(s));
        set
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self::of(|s| self.has(s) || other.has(s))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self::of(|s| self.has(s) && other.has(s))
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self::of(|s| self.has(s) && !other.has(s))
    }
}

/// The characters of each symbol.
pub(super) struct Alphabet(Vec<ClassUnicode>);

impl Alphabet {
    pub(super) fn new() -> Self {
        let range = |from, to| ClassUnicode::new([ClassUnicodeRange::new(from, to)]);
        let mut classes: Vec<_> = (0..128u8).map(|b| range(b.into(), b.into())).collect();
        let wide = WIDE_RANGES.map(|(from, to)| ClassUnicodeRange::new(from, to));
        let mut taken = range('\0', '\x7f');
        MARKS
            .iter()
            .for_each(|&mark| taken.union(&range(mark, mark)));
        let mut add = |mut class: ClassUnicode| {
            class.difference(&taken);
            taken.union(&class);
            classes.push(class);
        };
        add(ClassUnicode::new(wide));
        add(class_of(r"\p{L}"));
        add(class_of(r"\s"));
        add(range('\0', char::MAX));
        classes.extend(MARKS.map(|mark| range(mark, mark)));
        Self(classes)
    }

    /// The symbols of which `class` has some characters, and those of which it has all.
    pub(super) fn symbols_of(&self, class: &ClassUnicode) -> (Set, Set) {
        let (mut some, mut all) = (Set::default(), Set::default());
        for (symbol, characters) in self.0.iter().enumerate() {
            let mut both = class.clone();
            both.intersect(characters);
            if !both.ranges().is_empty() {
                some.insert(symbol);
            }
            if both == *characters {
                all.insert(symbol);
            }
        }
        (some, all)
    }
}

fn class_of(expression: &'static str) -> ClassUnicode {
    let hir = regex_syntax::parse(expression).expect("a constant, valid class expression");
    let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
        unreachable!("{expression} is a Unicode class");
    };
    class.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_the_symbol_whose_characters_it_is_among() {
        let (alphabet, classes) = (Alphabet::new(), CharClasses::new());
        assert_eq!(alphabet.0.len(), SYMBOLS);
        for c in ('\0'..=char::MAX)
            .step_by(7)
            .chain("、。，가あ中é\u{a0}\u{301}½".chars())
        {
            let one = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
            let (some, _) = alphabet.symbols_of(&one);
            let expected = Set::of(|s| s == symbol(c, &classes));
            assert_eq!(some, expected, "{c:?}");
        }
    }
}
