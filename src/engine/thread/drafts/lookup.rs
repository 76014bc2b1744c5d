//! Finds where a text last said what it says at its end.

/// A run of fewer tokens says little about the next one.
const SHORTEST: usize = 2;
/// Longer runs are not told apart.
pub(super) const LONGEST: usize = 16;

/// An earlier place in a text that has the tokens with which the text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    /// How many of the last tokens are the same, up to [`LONGEST`].
    pub run: usize,
    /// Where the token is that followed them.
    pub next: usize,
}

impl Repeat {
    /// The longest run, and the latest of equals. One pass over the text from its end: about a microsecond for each
    /// thousand tokens, which is little beside attending to them, and no memory.
    pub fn find(text: &[u32]) -> Option<Self> {
        let (&last, before) = text.split_last()?;
        let mut best = None;
        let (mut longest, mut rest) = (SHORTEST - 1, before);
        while let Some(at) = rest.iter().rposition(|&token| token == last) {
            let (here, end) = (text[..=at].iter().rev(), text.iter().rev());
            let same = here.zip(end).take(LONGEST).take_while(|(a, b)| a == b);
            let run = same.count();
            if run > longest {
                (longest, best) = (run, Some(Self { run, next: at + 1 }));
            }
            if run == LONGEST {
                break;
            }
            rest = &text[..at];
        }
        best
    }

    /// What follows if the text goes on as it did there: the `i`-th token. At the text's end it begins again at the
    /// same place, so that a short repeat gives a long draft.
    pub fn follows(self, text: &[u32], i: usize) -> u32 {
        text[self.next + i % (text.len() - self.next)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By definition: all places, all lengths.
    fn naive(text: &[u32]) -> Option<Repeat> {
        let runs = (SHORTEST..=LONGEST).rev();
        let places = runs.flat_map(|run| (run..text.len()).rev().map(move |next| (run, next)));
        let mut repeats =
            places.filter(|&(run, next)| text[next - run..next] == text[text.len() - run..]);
        repeats.next().map(|(run, next)| Repeat { run, next })
    }

    proptest! {
        /// Few different tokens make many repeats, many different ones few.
        #[test]
        fn repeats_are_those_of_a_naive_search(
            (tokens, text) in (1u32..9).prop_flat_map(|n| (Just(n), prop::collection::vec(0..n, 0..80))),
        ) {
            prop_assert_eq!(Repeat::find(&text), naive(&text), "of {} tokens", tokens);
        }

        /// A part of the text comes again at its end.
        #[test]
        fn what_comes_again_is_found(
            text in prop::collection::vec(0u32..1000, 30..200),
            (from, run) in (0usize..10, 2usize..20),
        ) {
            let again: Vec<u32> = text.iter().chain(&text[from..from + run]).copied().collect();
            let found = Repeat::find(&again).expect("a repeat");
            prop_assert_eq!(Some(found), naive(&again));
            prop_assert!(found.run >= run.min(LONGEST));
        }
    }

    #[test]
    fn a_short_repeat_gives_a_long_draft() {
        let text = [7, 1, 2, 3, 1, 2, 3];
        let repeat = Repeat::find(&text).expect("a repeat");
        assert_eq!(repeat, Repeat { run: 3, next: 4 });
        let draft: Vec<u32> = (0..8).map(|i| repeat.follows(&text, i)).collect();
        assert_eq!(draft, [1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(Repeat::find(&[]), None);
        assert_eq!(Repeat::find(&[5]), None);
        assert_eq!(Repeat::find(&[5, 5]), None, "one token is no run");
        assert_eq!(Repeat::find(&[5, 5, 5]), Some(Repeat { run: 2, next: 2 }));
    }
}
