//! Sizes that are sums of named reasons.
//!
//! A bare `64` cannot be checked; "reads in flight 32 + completions not yet taken 32" can, by a reader and
//! by [`Capacity::covers`] at start-up. (TigerBeetle sizes every pool this way.)

use std::fmt;
use std::sync::Arc;

/// Number of places in a lane or pool, with the reason for each group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    reasons: Arc<[(&'static str, usize)]>,
    total: usize,
}

/// A lane is smaller than the pool whose boxes travel through it, so a send could fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a lane of {capacity} cannot hold the {needed} boxes of pool `{pool}`: \
     add a reason for the missing {missing} to the lane's capacity",
    missing = needed - capacity.total()
)]
pub struct TooSmall {
    /// What the lane was built with.
    pub capacity: Capacity,
    /// Name of the pool.
    pub pool: &'static str,
    /// Boxes that may be under way at once.
    pub needed: usize,
}

impl Capacity {
    /// Adds the reasons up. A sum beyond `usize` saturates: no such size can be allocated anyway.
    pub fn sum(reasons: &[(&'static str, usize)]) -> Self {
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

    /// Checks at start-up that every box of `pool` fits at once, so that a send never fails.
    ///
    /// For a lane that carries several pools' boxes, check the sum of their sizes.
    ///
    /// # Errors
    /// The capacity is smaller than `needed`.
    pub fn covers(&self, pool: &'static str, needed: usize) -> Result<(), TooSmall> {
        if self.total >= needed {
            return Ok(());
        }
        Err(TooSmall {
            capacity: self.clone(),
            pool,
            needed,
        })
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
        let capacity = Capacity::sum(&[("reads in flight", 32), ("completions not yet taken", 30)]);
        assert_eq!(capacity.total(), 62);
        assert_eq!(
            capacity.to_string(),
            "62 = reads in flight 32 + completions not yet taken 30"
        );
        assert_eq!(Capacity::sum(&[]).to_string(), "0");
    }

    #[test]
    fn a_pool_that_does_not_fit_is_named_with_what_is_missing() {
        let capacity = Capacity::sum(&[("reads in flight", 32)]);
        assert!(capacity.covers("reads", 32).is_ok());
        let error = capacity
            .covers("reads", 40)
            .expect_err("too small")
            .to_string();
        assert!(error.contains("32 = reads in flight 32"), "{error}");
        assert!(error.contains("40 boxes of pool `reads`"), "{error}");
        assert!(error.contains("missing 8"), "{error}");
    }

    #[test]
    fn absurd_sizes_saturate() {
        let capacity = Capacity::sum(&[("a", usize::MAX), ("b", 2)]);
        assert_eq!(capacity.total(), usize::MAX);
    }
}
