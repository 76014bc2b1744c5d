//! Attention against a softmax in f64, written over rows as they were before the cache took them.

use forebay_kernels::kv::{BLOCK, KvCache, KvLayer, KvShape, KvType};
use forebay_kernels::{AttendScratch, KernelTable, KeyOrigin, Queries, Turns};
use forebay_numbers::rope_pairing::RopePairing;
use proptest::prelude::*;

use super::{Random, bits, on_all, tables};

/// A cache of one head with a sequence in `blocks`; everything else in it is NaN.
fn cache_of(
    kind: KvType,
    blocks: &[u32],
    (keys, values): (&[f32], &[f32]), // [positions, d], [positions, v]
    (d, v): (usize, usize),
) -> KvCache {
    let n_blocks = blocks.iter().max().map_or(1, |&b| b as usize + 1);
    let mut cache = KvCache::new(&KvShape {
        kind,
        layers: vec![KvLayer {
            heads: 1,
            head_dim: d,
            value_dim: v,
            pool: 0,
        }],
        pools: vec![n_blocks],
    });
    let nan = vec![f32::NAN; d.max(v)];
    for p in 0..n_blocks * BLOCK {
        cache.store(
            (0, 0),
            ((p / BLOCK) as u32, p % BLOCK),
            &nan[..d],
            &nan[..v],
        );
    }
    for (p, (k, v)) in keys.chunks(d).zip(values.chunks(v)).enumerate() {
        cache.store((0, 0), (blocks[p / BLOCK], p % BLOCK), k, v);
    }
    cache
}

/// Elements of a value if a key has `d`: those of latents have fewer.
fn value_dim(d: usize) -> usize {
    match d {
        20 => 16,
        80 => 64,
        576 => 512,
        d => d,
    }
}

/// Query rows `[n_tokens, heads, d]` over a filled cache.
struct Case {
    heads: usize,
    d: usize,
    v: usize,
    position: usize,
    n_tokens: usize,
    window: usize,
    softcap: Option<f32>,
    sinks: Vec<f32>, // [heads], or none
    q: Vec<f32>,
    keys: Vec<f32>,   // [position + n_tokens, d]
    values: Vec<f32>, // [position + n_tokens, v]
    blocks: Vec<u32>,
    cache: KvCache,
    /// What the cache's keys lack.
    origin: Option<(Vec<f32>, Turns)>,
}

impl Case {
    /// Queries of `size`: large ones make scores far apart, so that the running maximum moves.
    fn random(
        kind: KvType,
        (heads, d): (usize, usize),
        (position, n_tokens, window): (usize, usize, usize),
        size: f32,
    ) -> Self {
        let n_pos = position + n_tokens;
        let mut random = Random((heads * 100_000 + n_pos * 100 + d) as u64);
        let q = random.units(n_tokens * heads * d);
        let q = q.iter().map(|v| v * size).collect();
        let v = value_dim(d);
        let (keys, values) = (random.units(n_pos * d), random.units(n_pos * v));
        let blocks: Vec<u32> = (0..n_pos.div_ceil(BLOCK) as u32).collect();
        let cache = cache_of(kind, &blocks, (&keys, &values), (d, v));
        Self {
            heads,
            d,
            v,
            position,
            n_tokens,
            window,
            softcap: None,
            sinks: Vec::new(),
            q,
            keys,
            values,
            blocks,
            cache,
            origin: None,
        }
    }

    /// Puts the sequence into other blocks, and drops those that no token sees.
    fn scatter(&mut self, kind: KvType, places: &[u32]) {
        for (block, place) in self.blocks.iter_mut().zip(places) {
            *block = *place;
        }
        let rows = (&self.keys[..], &self.values[..]);
        self.cache = cache_of(kind, &self.blocks, rows, (self.d, self.v));
        let first_seen = (self.position + 1).saturating_sub(self.window);
        self.blocks[..first_seen / BLOCK].fill(u32::MAX);
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    /// Tokens and heads of a call, from which the result goes to its place in `out`.
    fn call(
        &self,
        table: &KernelTable,
        tokens: std::ops::Range<usize>,
        heads: std::ops::Range<usize>,
        out: &mut [f32],
    ) {
        if tokens.is_empty() || heads.is_empty() {
            return;
        }
        let (stride, d) = (self.heads * self.d, self.d);
        let out_stride = self.heads * self.v;
        let to = tokens.start * out_stride + heads.start * self.v;
        let first = tokens.start * stride + heads.start * d;
        let queries = Queries {
            q: &self.q[first..],
            stride,
            n_tokens: tokens.len(),
            heads: heads.len(),
            blocks: &self.blocks,
            position: self.position + tokens.start,
            window: self.window,
            scale: self.scale(),
            softcap: self.softcap,
            sinks: match self.sinks.is_empty() {
                true => &[],
                false => &self.sinks[heads.clone()],
            },
            origin: self
                .origin
                .as_ref()
                .map(|(bias, turns)| KeyOrigin { bias, turns }),
        };
        let mut scratch = AttendScratch::new(d);
        let kv = self.cache.head(0, 0);
        table.attend(queries, kv, &mut scratch, &mut out[to..], out_stride);
    }

    fn run(&self) -> Vec<f32> {
        on_all(|table| {
            let mut out = vec![f32::NAN; self.n_tokens * self.heads * self.v];
            self.call(table, 0..self.n_tokens, 0..self.heads, &mut out);
            out
        })
    }

    /// Output of query head `h` of token `t`.
    fn reference(&self, (t, h): (usize, usize), q: &[f32]) -> Vec<f64> {
        let end = self.position + t + 1;
        let seen = end.saturating_sub(self.window)..end;
        let dot = |p: usize| -> f64 {
            let key = &self.keys[p * self.d..][..self.d];
            let products = q
                .iter()
                .zip(key)
                .map(|(&q, &k)| f64::from(q) * f64::from(k));
            products.sum()
        };
        let scores: Vec<f64> = seen
            .clone()
            .map(|p| dot(p) * f64::from(self.scale()))
            .map(|score| match self.softcap.map(f64::from) {
                Some(cap) => cap * (score / cap).tanh(),
                None => score,
            })
            .collect();
        let sink = self.sinks.get(h).copied().map(f64::from);
        let all = scores.iter().copied().chain(sink);
        let max = all.fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
        let mut out = vec![0.0; self.v];
        for (w, p) in weights.iter().zip(seen) {
            let (w, value) = (w / total, &self.values[p * self.v..][..self.v]);
            for (out, &v) in out.iter_mut().zip(value) {
                *out += w * f64::from(v);
            }
        }
        out
    }

    /// Largest difference from the reference. Elements are below 1, so this is relative to the largest
    /// value that is possible.
    fn error(&self) -> f64 {
        let out = self.run();
        let mut worst = 0.0_f64;
        for (r, (q, out)) in self.q.chunks(self.d).zip(out.chunks(self.v)).enumerate() {
            for (&got, want) in out
                .iter()
                .zip(self.reference((r / self.heads, r % self.heads), q))
            {
                let error = (f64::from(got) - want).abs();
                assert!(!error.is_nan(), "{got} for {want}");
                worst = worst.max(error);
            }
        }
        worst
    }
}

/// Heads and positions of a few odd and a few usual sizes.
fn shapes() -> impl Iterator<Item = ((usize, usize), (usize, usize, usize))> {
    let dims = [1, 3, 16, 20, 64, 80, 128];
    let places = [
        (0, 1, usize::MAX),
        (0, 5, usize::MAX),
        (0, 65, usize::MAX),
        (62, 3, usize::MAX),
        (63, 40, 17),
        (127, 1, 64),
        (130, 5, 1),
        (200, 1, usize::MAX),
        (250, 30, 100),
    ];
    let groups = [1, 2, 3, 4, 7, 9, 14];
    dims.into_iter().enumerate().flat_map(move |(i, d)| {
        let places = places.into_iter().enumerate();
        places.map(move |(j, place)| ((groups[(i + j) % groups.len()], d), place))
    })
}

#[test]
fn half_precision_meets_the_softmax() {
    for (heads, place) in shapes() {
        for size in [1.0, 8.0] {
            let error = Case::random(KvType::F16, heads, place, size).error();
            // A key's elements are off by 2^-12, so a score is by about size * sqrt(d) * scale * 2^-12.
            assert!(
                error < 4e-4 * f64::from(size),
                "{heads:?} {place:?}: {error}"
            );
        }
    }
}

/// Keys and values of latent attention, which many heads share.
#[test]
fn wide_keys_and_narrower_values_meet_the_softmax() {
    for (kind, tolerance) in [(KvType::F16, 4e-4), (KvType::Q8, 2e-2)] {
        for place in [(0, 3, usize::MAX), (70, 1, usize::MAX)] {
            let error = Case::random(kind, (16, 576), place, 1.0).error();
            assert!(error < tolerance, "{kind} {place:?}: {error}");
        }
    }
}

#[test]
fn signed_bytes_meet_the_softmax() {
    for (heads, place) in shapes() {
        for size in [1.0, 8.0] {
            let error = Case::random(KvType::Q8, heads, place, size).error();
            // Codes of spread values are off by half of 1/127 of the largest, and that largest may be 1.5 here; a
            // result adds up the errors of some elements. Those of keys are smaller.
            assert!(
                error < 2e-2 * f64::from(size),
                "{heads:?} {place:?}: {error}"
            );
        }
    }
}

/// A bias of keys that is much larger than what makes them differ costs no precision, since it is not stored.
#[test]
fn the_origin_of_keys_costs_nothing() {
    const CONTEXT: usize = 300;
    for (i, ((heads, d), place)) in shapes().filter(|((_, d), _)| *d >= 16).enumerate() {
        let mut case = Case::random(KvType::Q8, (heads, d), place, 1.0);
        let pairing = [RopePairing::HalfSplit, RopePairing::Interleaved][i % 2];
        // All of the head is rotated, or half of it.
        let half = d / 2 / (1 + i % 3 / 2);
        let mut random = Random(i as u64);
        let frequencies: Vec<f32> = (0..half).map(|i| 0.7_f32.powi(i as i32)).collect();
        let magnitude = 1.5;
        let mut bias = random.units(d);
        bias.iter_mut().for_each(|b| *b *= 20.0);
        bias[2 * half..].fill(0.0);
        // Queries are small, for scores that leave more than one position a weight.
        case.q.iter_mut().for_each(|q| *q *= 0.1);
        for (p, key) in case.keys.chunks_mut(d).enumerate() {
            for (i, &frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (p as f64 * f64::from(frequency)).sin_cos();
                let (a, b) = match pairing {
                    RopePairing::HalfSplit => (i, i + half),
                    RopePairing::Interleaved => (2 * i, 2 * i + 1),
                };
                let (x, y) = (f64::from(bias[a]), f64::from(bias[b]));
                key[a] += (magnitude * (x * cos - y * sin)) as f32;
                key[b] += (magnitude * (y * cos + x * sin)) as f32;
            }
        }
        let turns = Turns::new(&frequencies, (pairing, magnitude as f32), CONTEXT);
        case.origin = Some((bias, turns));
        assert!(
            case.error() < 2e-2,
            "{heads} {d} {place:?}: {}",
            case.error()
        );
    }
}

#[test]
fn exact_numbers_leave_only_the_rounding_of_f32() {
    for (heads, place) in shapes() {
        let mut case = Case::random(KvType::F16, heads, place, 30.0);
        for rows in [&mut case.keys, &mut case.values] {
            rows.iter_mut()
                .for_each(|v| *v = half::f16::from_f32(*v).to_f32());
        }
        assert!(case.error() < 2e-5, "{heads:?} {place:?}: {}", case.error());
    }
}

#[test]
fn softcaps_bound_the_scores() {
    for (heads, place) in shapes() {
        for (cap, size) in [(50.0, 8.0), (2.0, 8.0), (0.5, 30.0)] {
            let mut case = Case::random(KvType::F16, heads, place, size);
            case.softcap = Some(cap);
            for rows in [&mut case.keys, &mut case.values] {
                rows.iter_mut()
                    .for_each(|v| *v = half::f16::from_f32(*v).to_f32());
            }
            let error = case.error();
            assert!(error < 2e-5, "{cap} {size} {heads:?} {place:?}: {error}");
        }
    }
}

/// Above all scores, among them and below them.
#[test]
fn sinks_take_their_part() {
    for (heads, place) in shapes() {
        for (sink, size) in [(40.0, 8.0), (1.0, 2.0), (-30.0, 8.0)] {
            let mut case = Case::random(KvType::F16, heads, place, size);
            case.sinks = (0..case.heads).map(|h| sink + h as f32).collect();
            for rows in [&mut case.keys, &mut case.values] {
                rows.iter_mut()
                    .for_each(|v| *v = half::f16::from_f32(*v).to_f32());
            }
            let error = case.error();
            assert!(error < 2e-5, "{sink} {size} {heads:?} {place:?}: {error}");
        }
    }
}

#[test]
fn a_row_sees_its_range_only() {
    for (kind, softcap) in KvType::ALL
        .into_iter()
        .zip([None, Some(4.0)].into_iter().cycle())
    {
        let mut case = Case::random(kind, (3, 20), (60, 9, 7), 2.0);
        case.softcap = softcap;
        let before = case.run();
        // What the fifth token does not see is broken.
        for p in (0..58).chain(65..69) {
            let at = ((p / BLOCK) as u32, p % BLOCK);
            case.cache
                .store((0, 0), at, &[f32::NAN; 20], &[f32::INFINITY; 16]);
        }
        let after = case.run();
        let token = 4 * 3 * 16..5 * 3 * 16;
        assert_eq!(bits(&before[token.clone()]), bits(&after[token]));
        assert!(after[5 * 48..].iter().all(|v| v.is_nan()), "{kind}");
    }
}

#[test]
fn a_fault_in_a_query_shows_in_its_head_only() {
    for kind in KvType::ALL {
        let mut case = Case::random(kind, (2, 16), (69, 1, usize::MAX), 1.0);
        case.q[3] = f32::NAN;
        for table in tables() {
            let mut out = vec![0.0; 32];
            case.call(&table, 0..1, 0..2, &mut out);
            assert!(out[..16].iter().all(|v| v.is_nan()));
            assert!(out[16..].iter().all(|v| v.is_finite()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However tokens and heads are split into calls, whatever else a call computes, and wherever blocks are.
    #[test]
    fn results_do_not_depend_on_the_call(
        q8 in any::<bool>(),
        heads in 1_usize..10,
        d in prop::sample::select(vec![4_usize, 10, 32, 64, 80, 128]),
        position in 0_usize..140,
        n_tokens in 1_usize..60,
        window in prop_oneof![Just(usize::MAX), 1_usize..150],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        head_cut in any::<prop::sample::Index>(),
        softcap in prop::option::of(1_f32..20.0),
        places in Just((0..9).collect::<Vec<u32>>()).prop_shuffle(),
    ) {
        let kind = if q8 { KvType::Q8 } else { KvType::F16 };
        let mut case = Case::random(kind, (heads, d), (position, n_tokens, window), 5.0);
        case.softcap = softcap;
        let whole = case.run();
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(n_tokens + 1)).collect();
        cuts.extend([0, n_tokens]);
        cuts.sort_unstable();
        let head_cut = head_cut.index(heads + 1);
        case.scatter(kind, &places);
        for table in tables() {
            let mut out = vec![f32::NAN; whole.len()];
            for cut in cuts.windows(2) {
                case.call(&table, cut[0]..cut[1], 0..head_cut, &mut out);
                case.call(&table, cut[0]..cut[1], head_cut..heads, &mut out);
            }
            prop_assert_eq!(bits(&out), bits(&whole));
        }
    }
}
