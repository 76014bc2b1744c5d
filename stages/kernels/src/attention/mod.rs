//! Attention of consecutive tokens with online softmax: positions are taken in blocks of a fixed size,
//! aligned to absolute positions, so no matrix of scores exists.
//!
//! A tile of query rows (tokens times the heads that share a key/value head) takes one block of positions at a time:
//! scores, weights, weighted values. The order of additions is fixed per row: a score is one sequential sum over the
//! head's elements in the lane of its position, and a weighted sum is sequential over positions. A row never touches a
//! position outside its own range. So the result of a row has the same bits regardless of the other rows in the call
//! and of where the blocks are.

mod gather;
mod kv_formats;
mod origin;
mod product;
mod scores;
mod scratch;
mod softmax;

use std::ops::Range;

use super::kv::{BLOCK, KvHead, KvRows};
use super::simd::{Kernel, Simd};
use gather::gather;
use kv_formats::{Bytes, Halves, KvFormat};
pub use origin::{KeyOrigin, Turns};
pub use scratch::AttendScratch;
use scratch::{Block, ROWS, Row};
use softmax::{cap_scores, soften};

/// Query heads of consecutive tokens that share a key/value head.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Head `h` of token `t` is at `t * stride + h * head_dim`.
    pub q: &'a [f32],
    /// Elements from one token to the next.
    pub stride: usize,
    /// Number of tokens.
    pub n_tokens: usize,
    /// Heads of each token.
    pub heads: usize,
    /// Where the sequence is in the cache: the block with its positions `64 * i..64 * (i + 1)` is `blocks[i]`. Blocks
    /// that no token sees may have any number.
    pub blocks: &'a [u32],
    /// Position of the first token; each token sees the positions up to its own.
    pub position: usize,
    /// How many positions a token sees at most.
    pub window: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// `c * tanh(score / c)`, after the factor.
    pub softcap: Option<f32>,
    /// Scores without a value that take part in the softmax, `[heads]`; empty if there are none.
    pub sinks: &'a [f32],
    /// What the stored keys lack.
    pub origin: Option<KeyOrigin<'a>>,
}

/// `out = softmax(scale * q . k^T) . v` for every row.
pub(super) struct Attend<'a> {
    pub(super) queries: Queries<'a>,
    pub(super) kv: KvHead<'a>,
    pub(super) scratch: &'a mut AttendScratch,
    pub(super) out: &'a mut [f32], // head h of token t at t * out_stride + h * value_dim
    pub(super) out_stride: usize,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.kv.rows {
            KvRows::F16 { keys, values } => {
                let stored = Halves::new(&self.kv, keys, values);
                self.tiles(s, stored);
            }
            KvRows::Q8 {
                keys,
                key_bits,
                values,
                key_scales,
                value_scales,
            } => {
                let scales = (key_scales, value_scales);
                let origin = self.queries.origin;
                let keys = (keys, key_bits);
                let stored = Bytes::new(&self.kv, (keys, values), scales, origin);
                self.tiles(s, stored);
            }
        }
    }
}

impl Attend<'_> {
    /// All tiles of a call.
    #[inline(always)]
    fn tiles<S: Simd, N: KvFormat>(self, s: S, stored: N) {
        let heads = self.queries.heads;
        for first_head in (0..heads).step_by(ROWS) {
            let n_heads = ROWS.min(heads - first_head);
            let n_tokens = ROWS / n_heads;
            for first in (0..self.queries.n_tokens).step_by(n_tokens) {
                let end = self.queries.n_tokens.min(first + n_tokens);
                self.scratch.rows.clear();
                for t in first..end {
                    for h in first_head..first_head + n_heads {
                        self.scratch.rows.push(self.row(t, h));
                    }
                }
                tile(s, stored, &self.queries, self.scratch, self.out);
            }
        }
    }

    fn row(&self, token: usize, head: usize) -> Row {
        let to = self.queries.position + token + 1;
        Row {
            q: token * self.queries.stride + head * self.kv.head_dim,
            out: token * self.out_stride + head * self.kv.value_dim,
            head,
            from: to.saturating_sub(self.queries.window),
            to,
        }
    }
}

/// Attention of the rows in `scratch`.
#[inline(always)]
fn tile<S: Simd, N: KvFormat>(
    s: S,
    stored: N,
    queries: &Queries<'_>,
    scratch: &mut AttendScratch,
    out: &mut [f32],
) {
    let d = stored.value_dim();
    let (Some(first), Some(last)) = (scratch.rows.first(), scratch.rows.last()) else {
        return;
    };
    let blocks = first.from / BLOCK..last.to.div_ceil(BLOCK);
    for row in &scratch.rows {
        out[row.out..][..d].fill(0.0);
    }
    scratch.begin(queries.sinks);
    // Powers of two are cheaper than those of e.
    let scale = match queries.softcap {
        None => queries.scale * std::f32::consts::LOG2_E,
        Some(cap) => queries.scale / cap,
    };
    stored.begin(s, queries.q, scale, scratch);
    for index in blocks.clone() {
        let place = queries.blocks[index] as usize;
        let next = match index + 1 {
            next if next < blocks.end => queries.blocks[next] as usize,
            _ => place,
        };
        let block = Block {
            index,
            place,
            ahead: next.wrapping_sub(place),
        };
        let rows = active(&scratch.rows, index);
        stored.score(s, queries.q, (block, rows.clone()), scratch);
        if let Some(cap) = queries.softcap {
            cap_scores(
                s,
                cap * std::f32::consts::LOG2_E,
                (block, rows.clone()),
                scratch,
            );
        }
        soften(
            s,
            stored.value_scales(block),
            (block, rows.clone()),
            scratch,
        );
        gather(s.plain(), stored, (block, rows), scratch, out);
    }
    for (row, &sum) in scratch.rows.iter().zip(&scratch.state.sum) {
        if sum != 0.0 {
            let out = &mut out[row.out..][..d];
            out.iter_mut().for_each(|v| *v /= sum);
            stored.finish(out);
        }
    }
}

/// Rows that see positions of a block. Ranges of later rows neither begin nor end earlier.
#[inline(always)]
fn active(rows: &[Row], block: usize) -> Range<usize> {
    let first = rows.partition_point(|row| row.to <= block * BLOCK);
    let end = rows.partition_point(|row| row.from < (block + 1) * BLOCK);
    first..end.max(first)
}
