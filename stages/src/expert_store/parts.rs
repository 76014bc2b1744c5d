//! Parts of a cluster of an expert: what of it is in a cell, and which of its bytes are still to be read.

use forebay_models::bundle::{ALIGN, Bundle, FfnGeometry, FfnLayout, NeuronSums, checksum};
use forebay_plans::expert_cache::READ_GAP;
use forebay_plans::program::Item;

use crate::live_mask::LiveMask;

/// Most reads of a cluster's pairs after its Gates are known.
const MOST_SPANS: usize = 12;

/// A cluster that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its number among the core's cached clusters.
    pub key: usize,
    /// Bytes of its Gates, with the page's rest; of all of it if they cannot be read alone.
    pub gates: usize,
    /// Bytes of all of it.
    pub len: usize,
    /// Whether all of it is wanted, and not its Gates alone.
    pub whole: bool,
}

impl Request {
    /// For a cluster of an expert of `layer`: all of it if it is to be read `whole`, or if that is the only way. `None`
    /// for a cluster that is not cached.
    pub fn of(bundle: &Bundle, layer: usize, item: &Item, whole: bool) -> Option<Self> {
        let key = item.source.key()?;
        let entry = &bundle.clusters[item.cluster as usize];
        let len = entry.padded_len();
        let gates = match &bundle.meta.experts[layer] {
            Some(g) if g.layout == FfnLayout::GateFirst => g.gates_bytes(entry.count as usize),
            _ => len,
        };
        Some(Self {
            key,
            gates,
            len,
            whole: whole || gates == len,
        })
    }
}

/// What of a cluster is in a cell, and has been checked.
#[derive(Clone, Copy, Debug)]
pub enum Held {
    /// Nothing.
    Nothing,
    /// All Gates, and the pairs of these neurons.
    Neurons(LiveMask),
    /// All of it.
    All,
}

impl Held {
    /// Those of the neurons `live` whose pairs are missing.
    pub fn lacks(&self, live: &LiveMask) -> LiveMask {
        let mut missing = *live;
        match self {
            Self::Nothing => {}
            Self::Neurons(held) => missing.remove(held),
            Self::All => missing = LiveMask::NONE,
        }
        missing
    }
}

/// Ranges of a cluster's bytes that are read one after the other, whole pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spans {
    ranges: [(u32, u32); MOST_SPANS],
    count: usize,
    read: usize,
}

impl Spans {
    /// One range.
    pub fn one(start: usize, end: usize) -> Self {
        let mut spans = Self::default();
        spans.push(start, end);
        spans
    }

    /// The pairs of the neurons `missing` of a cluster of `n`, with what lies between them if that takes less time than
    /// another read.
    pub fn of_pairs(g: &FfnGeometry, n: usize, missing: &LiveMask) -> Self {
        let mut gap = READ_GAP;
        loop {
            match Self::joined(g, n, missing, gap) {
                Some(spans) => return spans,
                None => gap *= 2,
            }
        }
    }

    /// The same with all gaps up to `gap` bytes closed; `None` if that leaves too many.
    fn joined(g: &FfnGeometry, n: usize, missing: &LiveMask, gap: usize) -> Option<Self> {
        let mut spans = Self::default();
        for i in missing.iter() {
            let at = pair(g, n, i);
            let (start, end) = (at.start / ALIGN * ALIGN, at.end.next_multiple_of(ALIGN));
            match spans.ranges[..spans.count].last_mut() {
                Some(last) if start <= last.1 as usize + gap => last.1 = end as u32,
                _ if spans.count == MOST_SPANS => return None,
                _ => spans.push(start, end),
            }
        }
        Some(spans)
    }

    /// Adds a range, for which there is room if it is the second one.
    pub(super) fn push(&mut self, start: usize, end: usize) {
        // A cluster's length fits, as its directory entry's does.
        self.ranges[self.count] = (start as u32, end as u32);
        self.count += 1;
    }

    /// Whether some range ends at byte `end`.
    pub(super) fn reach(&self, end: usize) -> bool {
        self.iter().any(|range| range.1 == end)
    }

    /// The next range to read.
    pub(super) fn next(&self) -> Option<(usize, usize)> {
        self.iter().nth(self.read)
    }

    /// The next range has been read.
    pub(super) fn advance(&mut self) {
        self.read += 1;
    }

    /// The same, to be read once more.
    pub(crate) fn again(self) -> Self {
        Self { read: 0, ..self }
    }

    /// All ranges, as first byte and end.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let ranges = self.ranges.iter().take(self.count);
        ranges.map(|&(start, end)| (start as usize, end as usize))
    }

    /// Bytes of all ranges.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(start, end)| end - start).sum()
    }
}

/// Where the pair of neuron `i` of a cluster of `n` is.
fn pair(g: &FfnGeometry, n: usize, i: usize) -> std::ops::Range<usize> {
    let start = g.pairs_offset(n) + i * g.pair_stride();
    start..start + g.up_down_bytes()
}

/// Checks what `spans` brought into a cell that had `held` before: single neurons by their checksums. A pair that was
/// there already is checked again where a page of it was read once more. Returns what is held now.
///
/// # Errors
/// A neuron whose bytes are not its own.
pub fn check(
    (g, n): (&FfnGeometry, usize),
    bytes: &[u8],
    (spans, held): (&Spans, Held),
    sums_of: impl Fn(usize) -> Option<NeuronSums>,
) -> Result<Held, usize> {
    let mut now = match held {
        Held::Neurons(held) => held,
        Held::Nothing => LiveMask::NONE,
        Held::All => return Ok(Held::All),
    };
    let is_right = |bytes: &[u8], sum: Option<u32>| sum == Some(checksum(bytes) as u32);
    for (start, end) in spans.iter() {
        for i in (0..n).take_while(|_| start == 0) {
            let gate = &bytes[i * g.gate_stride()..][..g.gate_row()];
            if !is_right(gate, sums_of(i).map(|sums| sums.gate)) {
                return Err(i);
            }
        }
        for i in 0..n {
            let at = pair(g, n, i);
            let is_touched = at.start < end && at.end > start;
            let is_whole = at.start >= start && at.end <= end;
            let is_new_or_again = is_whole || is_touched && now.has(i);
            if !is_new_or_again {
                continue;
            }
            if !is_right(&bytes[at], sums_of(i).map(|sums| sums.up_down)) {
                return Err(i);
            }
            now.set(i);
        }
    }
    Ok(match now.count() == n {
        true => Held::All,
        false => Held::Neurons(now),
    })
}

#[cfg(test)]
mod tests {
    use forebay_models::block::BlockType;
    use proptest::prelude::*;

    use super::*;

    const N: usize = 160;

    /// TurboSparse-Mixtral's.
    fn geometry() -> FfnGeometry {
        let q4 = BlockType::Q4_0;
        FfnGeometry::choose_for_experts(FfnLayout::GateFirst, (q4, Some(q4), q4), 4096, 14336)
    }

    fn mask(neurons: impl IntoIterator<Item = usize>) -> LiveMask {
        let mut mask = LiveMask::NONE;
        neurons.into_iter().for_each(|i| mask.set(i));
        mask
    }

    fn ranges(missing: LiveMask) -> Vec<(usize, usize)> {
        Spans::of_pairs(&geometry(), N, &missing).iter().collect()
    }

    #[test]
    fn near_neighbours_share_a_read_and_far_ones_do_not() {
        let g = geometry();
        let pairs = g.pairs_offset(N);
        // A pair is a page and an eighth of one.
        assert_eq!(ranges(mask([0])), [(pairs, pairs + 2 * ALIGN)]);
        assert_eq!(ranges(mask([0, 8])), [(pairs, pairs + 11 * ALIGN)]);
        let far = ranges(mask([0, 24]));
        assert_eq!(
            far,
            [
                (pairs, pairs + 2 * ALIGN),
                (pairs + 27 * ALIGN, pairs + 29 * ALIGN)
            ]
        );
        let all = ranges(LiveMask::first(N));
        assert_eq!(all, [(pairs, g.cluster_bytes(N))]);
        // More far ones than a cell takes reads.
        let many = ranges(mask((0..N).step_by(11)));
        assert!(many.len() <= MOST_SPANS, "{many:?}");
    }

    proptest! {
        #[test]
        fn what_is_read_has_all_that_is_missing_and_is_checked(
            missing in prop::collection::btree_set(0..N, 1..N),
            held in prop::collection::btree_set(0..N, 0..N),
            damaged in 0..N,
        ) {
            let g = geometry();
            let missing = mask(missing.into_iter().filter(|i| !held.contains(i)));
            prop_assume!(!missing.is_empty());
            let held = mask(held);
            let spans = Spans::of_pairs(&g, N, &missing);
            let file: Vec<u8> = (0..g.cluster_bytes(N)).map(|i| (i * i / 7) as u8).collect();
            let sums = |i: usize| {
                let gate = &file[i * g.gate_stride()..][..g.gate_row()];
                Some(NeuronSums::of(gate, &file[pair(&g, N, i)]))
            };
            let mut last = g.gates_bytes(N);
            let mut cell = vec![0; file.len()];
            for i in held.iter() {
                cell[pair(&g, N, i)].copy_from_slice(&file[pair(&g, N, i)]);
            }
            let mut read = file.clone();
            // What is overwritten while it is used is noticed wherever it is read, and only there.
            read[pair(&g, N, damaged)].fill(1);
            for (start, end) in spans.iter() {
                prop_assert!(start >= last && start < end && start % ALIGN == 0 && end % ALIGN == 0);
                last = end;
                cell[start..end].copy_from_slice(&file[start..end]);
            }
            let now = check((&g, N), &cell, (&spans, Held::Neurons(held)), sums).expect("sound");
            prop_assert!(now.lacks(&missing).is_empty() && now.lacks(&held).is_empty());
            for (start, end) in spans.iter() {
                cell[start..end].copy_from_slice(&read[start..end]);
            }
            let found = check((&g, N), &cell, (&spans, Held::Neurons(held)), sums);
            let at = pair(&g, N, damaged);
            let touched = spans.iter().any(|(start, end)| at.start < end && at.end > start);
            let counts = missing.has(damaged) || touched && held.has(damaged)
                || spans.iter().any(|(start, end)| at.start >= start && at.end <= end);
            prop_assert_eq!(found.err(), counts.then_some(damaged));
        }
    }

    #[test]
    fn gates_are_checked_one_by_one() {
        let g = geometry();
        let mut bytes = vec![3; g.cluster_bytes(N)];
        let sums = NeuronSums::of(&bytes[..g.gate_row()], &bytes[pair(&g, N, 0)]);
        let gates = (&Spans::one(0, g.gates_bytes(N)), Held::Nothing);
        let held = check((&g, N), &bytes, gates, |_| Some(sums)).expect("sound");
        assert_eq!(held.lacks(&LiveMask::first(N)).count(), N);
        bytes[7 * g.gate_stride() + 5] = 4;
        let found = check((&g, N), &bytes, gates, |_| Some(sums));
        assert_eq!(found.err(), Some(7));
    }
}
