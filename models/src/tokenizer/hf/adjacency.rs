//! Which characters can stand side by side inside a match of a regular expression. Between two that cannot, a text
//! that the expression cuts into words may be cut before it is read.

use regex_syntax::hir::{Class, Hir, HirKind, Literal, Repetition};

use super::symbols::{Alphabet, SYMBOLS, Set, may_begin, symbol};
use crate::tokenizer::unicode_class::CharClasses;

/// The one piece of lookahead that the expressions of byte-level models have: a run of spaces leaves its last one to
/// the word behind it. It looks one character beyond a run of spaces, and at nothing else.
const LOOKING_AHEAD: &str = r"\s+(?!\S)";

/// What is known of the matches of an expression.
#[derive(Clone, Debug)]
pub(super) struct Matches {
    nullable: bool,
    first: Set,
    last: Set,
    /// Symbols that can follow each symbol. `[SYMBOLS]`
    follow: Vec<Set>,
    /// Symbols of which every character is a match on its own.
    pub(super) single: Set,
    /// Whether a match may depend on the character behind it, if it ends in a space.
    pub(super) looks_ahead: bool,
}

impl Matches {
    /// Reads an expression; `None` if it has anchors, lookaround or other parts whose matches depend on more than
    /// their own characters.
    pub(super) fn of(pattern: &str, alphabet: &Alphabet, classes: &CharClasses) -> Option<Self> {
        let looks_ahead = pattern.contains(LOOKING_AHEAD);
        let parse = |pattern: &str| {
            let hir = regex_syntax::parse(pattern).ok()?;
            read(&hir, alphabet, classes)
        };
        // Without the lookahead there are more matches; with an alternative left away, fewer.
        let most = parse(&pattern.replace(LOOKING_AHEAD, r"\s+"))?;
        let least = match looks_ahead {
            true => parse(&pattern.replace(LOOKING_AHEAD, r"[a&&b]"))?,
            false => most.clone(),
        };
        Some(Self {
            single: least.single,
            looks_ahead,
            ..most
        })
    }

    /// Whether `left` and then `right` can be inside a match.
    pub(super) fn joins(&self, left: usize, right: usize) -> bool {
        self.follow[left].has(right)
    }

    fn empty() -> Self {
        Self {
            nullable: true,
            first: Set::default(),
            last: Set::default(),
            follow: vec![Set::default(); SYMBOLS],
            single: Set::default(),
            looks_ahead: false,
        }
    }

    fn one_of((some, all): (Set, Set)) -> Self {
        Self {
            nullable: false,
            first: some,
            last: some,
            single: all,
            ..Self::empty()
        }
    }

    fn join(&mut self, last: Set, first: Set) {
        for left in (0..SYMBOLS).filter(|&s| last.has(s)) {
            self.follow[left] = self.follow[left].or(first);
        }
    }

    fn merge_follow(&mut self, other: &Self) {
        for (mine, theirs) in self.follow.iter_mut().zip(&other.follow) {
            *mine = mine.or(*theirs);
        }
    }

    fn then(mut self, next: &Self) -> Self {
        self.merge_follow(next);
        self.join(self.last, next.first);
        // A single character is one part's match if the others take nothing. They take what they can, so they must
        // not begin with it.
        let mine = match next.nullable {
            true => self.single.without(next.first),
            false => Set::default(),
        };
        let theirs = match self.nullable {
            true => next.single.without(self.first),
            false => Set::default(),
        };
        self.single = mine.or(theirs);
        self.last = match next.nullable {
            true => self.last.or(next.last),
            false => next.last,
        };
        if self.nullable {
            self.first = self.first.or(next.first);
        }
        self.nullable &= next.nullable;
        self
    }

    fn or(mut self, other: &Self) -> Self {
        self.merge_follow(other);
        self.nullable |= other.nullable;
        self.first = self.first.or(other.first);
        self.last = self.last.or(other.last);
        self.single = self.single.or(other.single);
        self
    }

    fn repeated(mut self, repetition: &Repetition) -> Self {
        if repetition.max.is_none_or(|max| max > 1) {
            self.join(self.last, self.first);
        }
        if repetition.min > 1 {
            self.single = Set::default();
        }
        self.nullable |= repetition.min == 0;
        self
    }
}

fn read(hir: &Hir, alphabet: &Alphabet, classes: &CharClasses) -> Option<Matches> {
    let inner = |hir: &Hir| read(hir, alphabet, classes);
    Some(match hir.kind() {
        HirKind::Empty => Matches::empty(),
        HirKind::Literal(Literal(bytes)) => {
            let text = std::str::from_utf8(bytes).ok()?;
            text.chars().fold(Matches::empty(), |before, c| {
                let some = Set::of(|s| s == symbol(c, classes));
                let all = Set::of(|s| some.has(s) && may_begin(s));
                before.then(&Matches::one_of((some, all)))
            })
        }
        HirKind::Class(Class::Unicode(class)) => Matches::one_of(alphabet.symbols_of(class)),
        // What never matches.
        HirKind::Class(Class::Bytes(class)) if class.ranges().is_empty() => {
            Matches::one_of(<(Set, Set)>::default())
        }
        HirKind::Class(Class::Bytes(_)) | HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => inner(&repetition.sub)?.repeated(repetition),
        HirKind::Capture(capture) => inner(&capture.sub)?,
        HirKind::Concat(parts) => parts.iter().try_fold(Matches::empty(), |before, part| {
            Some(before.then(&inner(part)?))
        })?,
        HirKind::Alternation(parts) => {
            let mut parts = parts.iter();
            let first = inner(parts.next()?)?;
            parts.try_fold(first, |before, part| Some(before.or(&inner(part)?)))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::symbols::{LETTER, OTHER, SPACE, WIDE};
    use super::*;

    fn of(pattern: &str) -> Option<Matches> {
        Matches::of(pattern, &Alphabet::new(), &CharClasses::new())
    }

    #[test]
    fn neighbours_inside_matches() {
        let matches = of(r"'s| ?\p{L}+|ab?c|[0-9]{1,3}|x{2}").expect("no lookaround");
        let joins = |l: char, r: char| matches.joins(l as usize, r as usize);
        for (l, r) in [('\'', 's'), (' ', 'a'), ('a', 'z'), ('1', '2'), ('b', 'c')] {
            assert!(joins(l, r), "{l:?} {r:?}");
        }
        for (l, r) in [('s', '\''), ('a', ' '), ('1', 'a'), ('a', '1'), (' ', ' ')] {
            assert!(!joins(l, r), "{l:?} {r:?}");
        }
        assert!(matches.joins(b' '.into(), WIDE) && matches.joins(LETTER, LETTER));
        for single in [b'a', b'z', b'1'] {
            assert!(matches.single.has(single.into()));
        }
        assert!(matches.single.has(WIDE) && matches.single.has(LETTER));
        for other in [usize::from(b'\''), b' '.into(), b'!'.into(), SPACE, OTHER] {
            assert!(!matches.single.has(other), "{other}");
        }
    }

    #[test]
    fn what_a_part_swallows_is_no_single_match() {
        let matches = of(r"a?+ab?|\s+(?!\S)").expect("the known lookahead");
        assert!(
            !matches.single.has(b'a'.into()),
            "the first part may keep it"
        );
        assert!(!matches.single.has(b' '.into()), "it looks ahead");
        assert!(matches.looks_ahead && matches.joins(b' '.into(), b'\n'.into()));
    }

    #[test]
    fn what_depends_on_its_surroundings_is_not_read() {
        for pattern in [
            r"^a", r"a$", r"\ba", r"(?<=a)b", r"a(?=b)", r"(a)\1", r"(?>a+)b", "(",
        ] {
            assert!(of(pattern).is_none(), "{pattern}");
        }
    }
}
