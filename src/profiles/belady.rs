//! What the best of all caches would miss, which knows the future (Belady, 1966): a bound for every policy.

use std::collections::BTreeSet;

/// A cluster that is not wanted again.
const NEVER: u32 = u32::MAX;

/// The sets of keys that are wanted one after the other, with the future of each.
#[derive(Debug)]
pub(crate) struct Future<'a> {
    keys: &'a [u32],
    /// End of each set in `keys`.
    ends: &'a [u32],
    /// The next set that wants the same key, `[keys]`.
    next: Vec<u32>,
}

impl<'a> Future<'a> {
    /// Of the sets that end at `ends` of `keys`; keys are below `n`.
    pub fn of(keys: &'a [u32], ends: &'a [u32], n: usize) -> Self {
        let (mut next, mut later) = (vec![NEVER; keys.len()], vec![NEVER; n]);
        for (set, range) in ranges(ends).enumerate().rev() {
            for at in range {
                let key = keys[at] as usize;
                next[at] = std::mem::replace(&mut later[key], set as u32);
            }
        }
        Self { keys, ends, next }
    }

    /// The misses of `cells` cells that are empty at first; `each` receives the set and the key of each. After a set,
    /// those are kept that are wanted again soonest. No cache of that size that gets what is wanted, and only that,
    /// misses fewer.
    pub fn misses(&self, cells: usize, mut each: impl FnMut(usize, u32)) {
        // By the set that wants them next.
        let mut kept: BTreeSet<(u32, u32)> = BTreeSet::new();
        for (set, range) in ranges(self.ends).enumerate() {
            for at in range {
                let key = self.keys[at];
                if !kept.remove(&(set as u32, key)) {
                    each(set, key);
                }
                if self.next[at] != NEVER {
                    kept.insert((self.next[at], key));
                }
            }
            while kept.len() > cells {
                kept.pop_last();
            }
        }
    }
}

/// The places of each set.
pub(crate) fn ranges(
    ends: &[u32],
) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> + ExactSizeIterator {
    (0..ends.len()).map(|i| {
        let start = if i == 0 { 0 } else { ends[i - 1] };
        start as usize..ends[i] as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(sets: &[&[u32]], cells: usize) -> usize {
        let keys = sets.concat();
        let mut end = 0;
        let ends: Vec<u32> = sets
            .iter()
            .map(|set| {
                end += set.len() as u32;
                end
            })
            .collect();
        let mut n = 0;
        Future::of(&keys, &ends, 10).misses(cells, |_, _| n += 1);
        n
    }

    #[test]
    fn what_is_wanted_soonest_is_kept() {
        // A cycle of three in two cells: 0 and 1 stay, 2 is missed each time.
        let cycle: [&[u32]; 9] = [&[0], &[1], &[2], &[0], &[1], &[2], &[0], &[1], &[2]];
        assert_eq!(misses(&cycle, 2), 5);
        assert_eq!(misses(&cycle, 3), 3);
        // A set larger than the cache: what fits is found again.
        assert_eq!(misses(&[&[0, 1, 2], &[0, 1, 2]], 2), 4);
        assert_eq!(misses(&[&[0, 1], &[], &[1, 0]], 2), 2);
    }
}
