//! A core's attention on a device: the last tokens of a step, of the core's own heads.
//!
//! ```text
//!   queries, keys and values that the device lacks ─ job ─▶ results  ─ any fault ─▶ the core attends itself
//! ```
//!
//! The device has a copy of the core's keys and values. It is brought up to date with the job that needs it, so tokens
//! that only the core attends for cost nothing. The core's own cache always has all.

use std::ops::Range;
use std::sync::Arc;

use forebay_devices::{AttentionWork, Patch, SegmentId, Work};
use forebay_plans::preload::PROMPT_TOKENS;
use forebay_queues::capacity::Capacity;
use forebay_stages::attention::{Attention, DeviceHeads, Missing, Places};
use forebay_stages::sequences::TokenPlace;
use forebay_traces::clock::now_ns;

use super::attention_room::{AttentionRoom, OwnAttention};
use super::balance::Balance;
use super::job_number::Sender;
use super::kv_copies::{KvCopies, space};
use super::trip::{Lanes, Trip};

/// A core has waited if it took longer than its own part by more than one in so many.
const NOTICED: u64 = 50;

/// A core's end of the lanes by which a device attends for it.
#[derive(Debug)]
pub(crate) struct Attender {
    rank: usize,
    trip: Trip,
    copies: Arc<KvCopies>,
    /// The core's heads by layer, where a device can attend.
    heads: Vec<Option<DeviceHeads>>,
    /// Where each layer's copy was when the device last got something.
    filled: Vec<SegmentId>,
    room: AttentionRoom,
    balance: Balance,
    /// The layer and the tokens that are away, and of how many scores, of how many.
    away: (usize, Range<usize>),
    scores: (f64, f64),
    sent_ns: u64,
    /// When the core had done its own part.
    done_ns: u64,
}

impl Attender {
    /// What a core may have under way.
    pub(super) fn errands() -> Capacity {
        Capacity::of(&[("a job of attention", 1)])
    }

    /// For core `rank`.
    pub(super) fn new(
        rank: usize,
        lanes: Lanes,
        copies: Arc<KvCopies>,
        OwnAttention { heads, room }: OwnAttention,
    ) -> Self {
        Self {
            rank,
            trip: Trip::new(Sender::Attention(rank), lanes, room.empty()),
            balance: copies.balance,
            copies,
            filled: vec![SegmentId::NONE; heads.len()],
            heads,
            room,
            away: (0, 0..0),
            scores: (0.0, 0.0),
            sent_ns: 0,
            done_ns: 0,
        }
    }

    /// Whether the device has the core's job.
    pub fn is_waiting(&self) -> bool {
        self.trip.is_waiting()
    }

    /// Whether nothing was asked, or the answer was taken.
    pub fn is_over(&self) -> bool {
        self.trip.is_over()
    }

    /// Jobs that the device does not have.
    pub fn spare(&self) -> usize {
        usize::from(self.trip.has_job())
    }

    /// Asks the device to attend for the last tokens of a step in `layer`, whose input is `qkv`, `[n_tokens, in_dim]`,
    /// and whose keys and values have been stored; the tokens that it gets.
    pub fn begin(
        &mut self,
        layer: usize,
        (attention, places): (&mut Attention, Places<'_>),
        sinks: &[f32], // [n_heads] of the layer, or none
        qkv: &[f32],
    ) -> Range<usize> {
        let n = places.tokens.len();
        self.away = (layer, n..n);
        let Some(heads) = self.heads[layer].filter(|_| !self.trip.account.is_gone()) else {
            return n..n;
        };
        let (Some(segment), Some(given)) = (
            self.copies.segment(self.rank, layer),
            self.share(places, &heads),
        ) else {
            return n..n;
        };
        if std::mem::replace(&mut self.filled[layer], segment) != segment {
            attention.lose_copy(layer);
        }
        let Some(job) = self.trip.job() else {
            return n..n;
        };
        job.segment = segment;
        let Work::Attention(work) = &mut job.work else {
            return n..n;
        };
        let first = places.tokens[given.start];
        let blocks = attention.blocks(layer, places.tables, first.sequence);
        let (position, len) = (first.position as usize, given.len());
        describe(work, &heads, (position, blocks));
        let from = (position + 1).saturating_sub(heads.window);
        let positions = from..position + len;
        let most = self.room.positions;
        let is_whole = attention.copy(layer, (blocks, positions), most, |missing| {
            patch(work, missing);
        });
        // Too much is missing: the device gets a part of it now, and attends once it has all.
        let given = if is_whole { given } else { n..n };
        work.n_tokens = given.len();
        let (start, stride) = heads.queries;
        for t in given.clone() {
            let row = &qkv[t * stride + start..][..heads.heads * heads.head_dim];
            work.queries.extend_from_slice(row);
        }
        let own = heads.first_head..heads.first_head + heads.heads;
        work.sinks
            .extend_from_slice(sinks.get(own).unwrap_or_default());
        let results = given.len() * heads.heads * heads.value_dim;
        work.out.resize(results, 0.0);
        self.away = (layer, given.clone());
        self.sent_ns = now_ns();
        self.trip.send(layer);
        given
    }

    /// The tokens that the device gets; `None` if it gets none.
    fn share(&mut self, places: Places<'_>, heads: &DeviceHeads) -> Option<Range<usize>> {
        let n = places.tokens.len();
        let last = places.tokens.last()?;
        let own = places.tokens.iter().rev();
        // Those of the last sequence that follow each other.
        let follows = |(i, token): &(usize, &TokenPlace)| is_before(token, last, *i);
        let run = own.enumerate().take_while(follows).count();
        if run < PROMPT_TOKENS || !self.trip.is_over() || !self.trip.has_job() {
            return None;
        }
        let tokens = &places.tokens[n - run..];
        let seen = |token: &TokenPlace| {
            (token.position as usize + 1).min(heads.window) as f64 * heads.heads as f64
        };
        let given = self.balance.tokens(tokens.iter().map(seen));
        let scores = |tokens: &[TokenPlace]| tokens.iter().map(seen).sum::<f64>();
        self.scores = (scores(&places.tokens[n - given..]), scores(places.tokens));
        (given > 0).then_some(n - given..n)
    }

    /// The core has attended for the other tokens.
    pub fn own_part_is_done(&mut self) {
        if self.is_waiting() {
            self.done_ns = now_ns();
        }
    }

    /// Receives the device's answer.
    pub fn collect(&mut self) {
        // Nothing is copied for it but with its jobs.
        self.trip.collect(drop);
    }

    /// The tokens that were away, and their results, `[tokens, own columns]`, or nothing if the core attends for them;
    /// `None` while they are away, or nothing was asked.
    pub fn take(&mut self, attention: &mut Attention) -> Option<(Range<usize>, Option<&[f32]>)> {
        let worked = self.trip.take()?;
        let (layer, tokens) = self.away.clone();
        if !worked {
            // Nobody knows what the copy has.
            attention.lose_copy(layer);
            return Some((tokens, None));
        }
        if !tokens.is_empty() {
            self.learn(now_ns());
        }
        match self.trip.job().map(|job| &job.work) {
            Some(Work::Attention(work)) => Some((tokens, Some(&work.out))),
            _ => Some((tokens, None)),
        }
    }

    fn learn(&mut self, now: u64) {
        let (given, all) = self.scores;
        let own = self.done_ns.saturating_sub(self.sent_ns);
        let until_now = now.saturating_sub(self.sent_ns);
        // If it was done before the core, only its driver knows how long it took.
        let device = match until_now - own > own / NOTICED {
            true => until_now,
            false => self.trip.elapsed_ns.min(own),
        };
        self.balance.learn((all, given), (own, device));
    }

    /// The device has had enough time: it is not used again.
    pub fn give_up(&mut self, seconds: u64) {
        self.trip.give_up(seconds);
    }
}

/// Whether `token` is in the sequence of `last`, `i` positions before it.
fn is_before(token: &TokenPlace, last: &TokenPlace, i: usize) -> bool {
    let position = (last.position as usize).checked_sub(i);
    token.sequence == last.sequence && position == Some(token.position as usize)
}

/// Attention from a position on, of nothing yet.
fn describe(work: &mut AttentionWork, heads: &DeviceHeads, (position, blocks): (usize, &[u32])) {
    work.kv = space(heads);
    (work.heads, work.group, work.first) = (heads.heads, heads.group, heads.first);
    (work.window, work.scale) = (heads.window, heads.scale);
    work.position = position;
    work.blocks.clear();
    work.blocks.extend_from_slice(blocks);
    for floats in [&mut work.queries, &mut work.sinks, &mut work.out] {
        floats.clear();
    }
    work.patches.clear();
    work.patched.clear();
}

/// Adds what the copy lacks to a job.
fn patch(work: &mut AttentionWork, missing: Missing<'_>) {
    let [keys, values] = work.kv.places(missing.head);
    let key = keys.start + work.kv.key_bytes(missing.position);
    let value = values.start + work.kv.value_bytes(missing.position);
    for (at, bytes) in [(key, missing.keys), (value, missing.values)] {
        let len = bytes.len();
        work.patches.push(Patch { at, len });
        work.patched.extend_from_slice(bytes);
    }
}
