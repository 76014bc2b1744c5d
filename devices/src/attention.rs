//! What a device is asked of attention: some tokens of a sequence over keys and values that it keeps a copy of.

use std::ops::Range;

use forebay_kernels::kv::{BLOCK, KvHead, KvRows, PART};
use forebay_kernels::{AttendScratch, KernelTable, Queries};

use crate::fault::DeviceFault;

/// Elements of the largest heads that devices attend with.
pub const WIDEST_HEAD: usize = 256;
/// Elements of a head come in whole groups of so many.
const GROUP: usize = 4;

/// Keys and values of a layer's heads in a segment, as f16 in the layout of
/// [`forebay_kernels::kv`]: head by head, keys `[blocks][64 / 16][head_dim][16]`, then values `[blocks][64][value_dim]`
/// with padded rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpace {
    /// Key/value heads.
    pub heads: usize,
    /// Blocks of 64 positions.
    pub blocks: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl KvSpace {
    /// Whether devices attend with such heads.
    pub fn is_possible(&self) -> bool {
        let fits = |d: usize| d > 0 && d <= WIDEST_HEAD && d.is_multiple_of(GROUP);
        self.heads > 0 && fits(self.head_dim) && fits(self.value_dim)
    }

    /// Elements of a padded row of values.
    pub fn value_width(&self) -> usize {
        self.value_dim.next_multiple_of(PART)
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> u64 {
        let of_head = self.key_bytes(BLOCK) as u64 + self.value_bytes(BLOCK) as u64;
        of_head * self.blocks as u64 * self.heads as u64
    }

    /// Bytes of the keys of `n` positions, whole groups of 16, of one head.
    pub fn key_bytes(&self, n: usize) -> usize {
        2 * n * self.head_dim
    }

    /// Bytes of the values of `n` positions of one head.
    pub fn value_bytes(&self, n: usize) -> usize {
        2 * n * self.value_width()
    }

    /// Where the keys of a head are in the segment, and where its values are.
    pub fn places(&self, head: usize) -> [Range<usize>; 2] {
        let n = self.blocks * BLOCK;
        let (keys, values) = (self.key_bytes(n), self.value_bytes(n));
        let at = head * (keys + values);
        [at..at + keys, at + keys..at + keys + values]
    }
}

/// Bytes that a segment gets before a job is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where they begin in the segment; a multiple of 4.
    pub at: usize,
    /// How many there are, a multiple of 4.
    pub len: usize,
}

/// Attention of consecutive tokens of a sequence, with the bits of [`KernelTable::attend`].
#[derive(Debug)]
pub struct AttentionWork {
    /// What is in the segment.
    pub kv: KvSpace,
    /// What it gets before: keys and values that it does not have yet.
    pub patches: Vec<Patch>,
    /// Their bytes, one patch after the other.
    pub patched: Vec<u8>,
    /// Tokens; 0 if only patches are wanted.
    pub n_tokens: usize,
    /// Query heads of a token.
    pub heads: usize,
    /// Query heads that share a key/value head.
    pub group: usize,
    /// The number of the first query head among those that share the first key/value head.
    pub first: usize,
    /// `[n_tokens, heads, head_dim]`
    pub queries: Vec<f32>,
    /// Where the sequence is: its positions `64 * i..64 * (i + 1)` are in block `blocks[i]`.
    pub blocks: Vec<u32>,
    /// Position of the first token; each token sees the positions up to its own.
    pub position: usize,
    /// How many positions a token sees at most.
    pub window: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores without a value that take part in the softmax, `[heads]`; empty if there are none.
    pub sinks: Vec<f32>,
    /// Room for the results, `[n_tokens, heads, value_dim]`.
    pub out: Vec<f32>,
}

impl AttentionWork {
    /// Query heads that read key/value head `kv`.
    pub fn readers(&self, kv: usize) -> Range<usize> {
        let at = |kv: usize| (kv * self.group).saturating_sub(self.first).min(self.heads);
        at(kv)..at(kv + 1)
    }

    /// Each patch with its bytes.
    pub fn patches(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = &self.patched[..];
        self.patches.iter().map(move |patch| {
            let (bytes, others) = rest.split_at(patch.len);
            rest = others;
            (patch.at, bytes)
        })
    }

    /// Checks what is independent of the device.
    ///
    /// # Errors
    /// The shapes do not fit each other or the segment.
    pub(crate) fn check(&self, segment_bytes: usize) -> Result<(), DeviceFault> {
        let Self { kv, n_tokens, .. } = self;
        let segment = segment_bytes as u64;
        let patched = self
            .patches
            .iter()
            .fold(0_usize, |sum, p| sum.saturating_add(p.len));
        let patches_fit = patched == self.patched.len()
            && self.patches.iter().all(|patch| {
                let end = patch.at.saturating_add(patch.len) as u64;
                (patch.at | patch.len).is_multiple_of(4) && end <= kv.bytes()
            });
        let end = self.position.saturating_add(*n_tokens).div_ceil(BLOCK);
        let first = self.position.saturating_sub(self.window.saturating_sub(1)) / BLOCK;
        let seen = self.blocks.get(first..end);
        let sees = |blocks: &[u32]| blocks.iter().all(|&b| (b as usize) < kv.blocks);
        let heads_fit = self.group > 0
            && self.heads > 0
            && self.first < self.group
            && (self.first + self.heads).div_ceil(self.group) == kv.heads;
        let sized = |len: usize, width: usize| {
            n_tokens
                .checked_mul(self.heads)
                .and_then(|n| n.checked_mul(width))
                == Some(len)
        };
        let fits = kv.is_possible()
            && kv.bytes() <= segment
            && patches_fit
            && heads_fit
            && self.window > 0
            && (*n_tokens == 0 || seen.is_some_and(sees))
            && sized(self.queries.len(), kv.head_dim)
            && sized(self.out.len(), kv.value_dim)
            && (self.sinks.is_empty() || self.sinks.len() == self.heads);
        match fits {
            true => Ok(()),
            false => Err(DeviceFault::BadJob(format!(
                "attention of {n_tokens} tokens from position {} on, with {} heads in groups of {} over {kv:?}, does not \
                 fit its {} blocks, {} queries, {} results, {patched} patched bytes or the segment's {segment_bytes}",
                self.position,
                self.heads,
                self.group,
                self.blocks.len(),
                self.queries.len(),
                self.out.len(),
            ))),
        }
    }

    /// Computes it as the CPU does, with the patched `segment`.
    pub(crate) fn compute(&mut self, kernels: &KernelTable, segment: &[u8]) {
        let kv = self.kv;
        let mut scratch = AttendScratch::new(kv.head_dim.max(kv.value_dim));
        for head in 0..kv.heads {
            let readers = self.readers(head);
            // A segment need not begin where numbers of two bytes may.
            let numbers = kv.places(head).map(|place| halves(&segment[place]));
            let queries = Queries {
                q: self
                    .queries
                    .get(readers.start * kv.head_dim..)
                    .unwrap_or_default(),
                stride: self.heads * kv.head_dim,
                n_tokens: self.n_tokens,
                heads: readers.len(),
                blocks: &self.blocks,
                position: self.position,
                window: self.window,
                scale: self.scale,
                softcap: None,
                sinks: self.sinks.get(readers.clone()).unwrap_or_default(),
                origin: None,
            };
            let past = KvHead {
                head_dim: kv.head_dim,
                value_dim: kv.value_dim,
                rows: KvRows::F16 {
                    keys: &numbers[0],
                    values: &numbers[1],
                },
            };
            let stride = self.heads * kv.value_dim;
            let out = self
                .out
                .get_mut(readers.start * kv.value_dim..)
                .unwrap_or_default();
            kernels.attend(queries, past, &mut scratch, out, stride);
        }
    }
}

fn halves(bytes: &[u8]) -> Vec<u16> {
    let pairs = bytes.as_chunks().0.iter();
    pairs.map(|&pair| u16::from_le_bytes(pair)).collect()
}
