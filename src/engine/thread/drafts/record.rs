//! How often what is drafted is right, and what drafting takes: from what was seen, most of all lately.

use super::pace::{Mean, best_length};
use forebay_plans::preload::MOST_DRAFTED;

/// Which part of the tokens is taken to be right before any was seen, and for how many tokens that counts.
const TRUST: Mean = Mean { value: 0.6, n: 2 };
/// Running means follow as if they were those of this many latest values.
const LATEST: u32 = 32;

/// The record of whoever says what might come next.
#[derive(Debug)]
pub(in crate::engine) struct Record {
    /// How often its token is right, all before it in the draft having been, by its place, `[MOST_DRAFTED]`.
    right: [Mean; MOST_DRAFTED],
    /// Time of one of its tokens, nanoseconds.
    token_ns: Mean,
}

impl Record {
    /// Before anything was seen.
    pub fn new() -> Self {
        Self {
            right: [TRUST; MOST_DRAFTED],
            token_ns: Mean::default(),
        }
    }

    /// [`best_length`] of at most `most` tokens, if steps take `times`.
    pub fn length(&self, times: &[f64; 1 + MOST_DRAFTED], most: usize) -> (usize, f64) {
        let right = self.right.iter().map(|right| right.value);
        best_length(times, self.token_ns.value, right.take(most))
    }

    /// Whether the time of a token is known.
    pub fn is_timed(&self) -> bool {
        self.token_ns.n > 0
    }

    /// The `i`-th token of a draft, all before it having been right, was right or not.
    pub fn add(&mut self, i: usize, right: bool) {
        self.right[i].add(f64::from(u8::from(right)), LATEST);
    }

    /// One more token has taken `ns`.
    pub fn took(&mut self, ns: f64) {
        self.token_ns.add(ns, LATEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of tokens that take so long, all of which were right.
    fn right(token_ns: f64) -> Record {
        let mut record = Record::new();
        record.took(token_ns);
        for _ in 0..200 {
            (0..MOST_DRAFTED).for_each(|i| record.add(i, true));
        }
        record
    }

    #[test]
    fn as_many_are_drafted_as_pay() {
        let times = std::array::from_fn(|drafted| 100.0 + 10.0 * drafted as f64);
        let mut cheap = right(10.0);
        assert_eq!(cheap.length(&times, 6).0, 6);
        let (most, speed) = cheap.length(&times, MOST_DRAFTED);
        assert!(most == MOST_DRAFTED && speed > 0.03, "{most}, {speed}");
        (0..200).for_each(|_| cheap.add(3, false));
        assert_eq!(
            cheap.length(&times, MOST_DRAFTED).0,
            3,
            "the fourth is never right"
        );
        (0..200).for_each(|_| cheap.add(0, false));
        assert_eq!(cheap.length(&times, MOST_DRAFTED), (0, 0.01));
        // A token takes nearly as long as a step.
        assert_eq!(right(95.0).length(&times, MOST_DRAFTED).0, 0);
    }
}
