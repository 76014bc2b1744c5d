//! Sizes that are sums of named reasons.
//!
//! A bare `64` cannot be checked; "reads in flight 32 + completions not yet taken 32" can, by a reader and
//! at start-up. (TigerBeetle sizes every pool this way.)

use std::fmt;
use std::sync::Arc;

/// Number of places in a lane, with the reason for each group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    reasons: Arc<[(&'static str, usize)]>,
    total: usize,
}

impl Capacity {
    /// Adds up the reasons. A sum beyond `usize` saturates: no such size can be allocated anyway.
    pub fn of(reasons: &[(&'static str, usize)]) -> Self {
        let total = reasons
            .iter()
            .fold(0, |sum: usize, r| sum.saturating_add(r.1));
        Self {
            reasons: reasons.into(),
            total,
        }
    }

    /// Number of places.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Name and size of each group of places.
    pub fn reasons(&self) -> &[(&'static str, usize)] {
        &self.reasons
    }
}

impl<'a> std::iter::Sum<&'a Capacity> for Capacity {
    /// The sum of all; groups of the same name become one.
    fn sum<I: Iterator<Item = &'a Capacity>>(all: I) -> Self {
        let mut reasons: Vec<(&'static str, usize)> = Vec::new();
        for &(name, places) in all.flat_map(|capacity| capacity.reasons()) {
            match reasons.iter_mut().find(|reason| reason.0 == name) {
                Some(reason) => reason.1 = reason.1.saturating_add(places),
                None => reasons.push((name, places)),
            }
        }
        Self::of(&reasons)
    }
}

impl fmt::Display for Capacity {
    /// `64 = reads in flight 32 + completions not yet taken 32`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total)?;
        for (i, (reason, n)) in self.reasons.iter().enumerate() {
            let sign = if i == 0 { '=' } else { '+' };
            write!(f, " {sign} {reason} {n}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_sum_shows_its_reasons() {
        let capacity = Capacity::of(&[("reads in flight", 32), ("completions not yet taken", 30)]);
        assert_eq!(capacity.total(), 62);
        assert_eq!(
            capacity.to_string(),
            "62 = reads in flight 32 + completions not yet taken 30"
        );
        assert_eq!(Capacity::of(&[]).to_string(), "0");
    }

    #[test]
    fn the_sum_of_several_has_room_for_each_and_names_a_reason_once() {
        let core = Capacity::of(&[("stream window", 16), ("neuron reads", 8)]);
        let rows = Capacity::of(&[("embedding rows", 4)]);
        let all: Capacity = [&core, &core, &rows].into_iter().sum();
        assert_eq!(
            all.to_string(),
            "52 = stream window 32 + neuron reads 16 + embedding rows 4"
        );
    }

    #[test]
    fn absurd_sizes_saturate() {
        let capacity = Capacity::of(&[("a", usize::MAX), ("b", 2)]);
        assert_eq!(capacity.total(), usize::MAX);
    }
}
