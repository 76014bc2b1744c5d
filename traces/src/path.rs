//! The critical path of a token: the chain of events that make up its time, followed back from its end.
//!
//! Work leads back to the core's previous work. A stall for a read leads through the read that the next stage consumed
//! (its arrow says which) to the moment this read was started, and to what the core did then. A stall for other cores
//! leads to the core that was the last to arrive. So each nanosecond of the token is charged to exactly one link, and a
//! shorter link makes the token shorter, until another chain is the longest.

use std::collections::BTreeMap;

use crate::events::{Slice, Trace, What};
use crate::record::Reason;
use crate::timeline::{Segment, Timeline};
use crate::tokens::Token;

/// What a link of the chain is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// A core worked at this stage.
    Work(String),
    /// A core worked, but at no stage.
    Outside,
    /// A read for this stage was in flight, and nothing else could have been done.
    Read(String),
    /// From the end of a read to the moment when the core that had waited for it continued.
    HandOverOfRead,
    /// From the end of a core's work to the moment when the core that had waited for it continued.
    HandOverByCore,
    /// A core waited, and the trace does not tell for which read or core; or it waited for the device, or for a token
    /// to work on.
    Wait(Reason),
}

/// One link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub link: Link,
    /// Index of its trace lane.
    pub lane: usize,
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// End in nanoseconds.
    pub end_ns: u64,
    /// Layer of the stage, or of the stage that waited.
    pub layer: u64,
    /// Bytes read or worked on, by the whole slice.
    pub bytes: u64,
}

/// The critical path of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriticalPath {
    /// The token.
    pub token: Token,
    /// Its links by time: each begins where the previous one ended.
    pub pieces: Vec<Piece>,
}

/// The time of all links of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkTime {
    /// Nanoseconds.
    pub ns: u64,
    /// Number of links.
    pub count: u64,
}

impl Link {
    /// Whether a faster disk, or more memory, would make it shorter.
    pub fn is_io(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::Wait(Reason::IoGate | Reason::IoUpDown)
        )
    }

    /// What it means if this takes most of a token's time, as a sentence.
    pub fn meaning(&self) -> &'static str {
        match self {
            Self::Work(_) | Self::Outside => "A core computed, and all else depended on it.",
            Self::Read(_) => {
                "The disk took this long: more memory or a faster disk makes it shorter."
            }
            Self::HandOverOfRead => {
                "The reads had finished, but the core that waited for them did not run: something else occupied it, or \
                 it was woken late."
            }
            Self::HandOverByCore => {
                "Another core was done, but the one that waited for it did not run: something else occupied it, or it \
                 was woken late."
            }
            Self::Wait(Reason::Idle) => {
                "The cores had no token to work on: sampling, embedding, or the reader of the tokens is slower."
            }
            Self::Wait(Reason::Device) => "The device had not finished its part of the phase.",
            Self::Wait(_) => "A core waited, and the trace does not tell for what.",
        }
    }

    /// Name in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Work(stage) => stage.clone(),
            Self::Outside => "in no stage".into(),
            Self::Read(stage) => format!("read for {stage}"),
            Self::HandOverOfRead => "hand-over of a read".into(),
            Self::HandOverByCore => "hand-over by a core".into(),
            Self::Wait(Reason::Idle) => "between tokens".into(),
            Self::Wait(reason @ (Reason::IoGate | Reason::IoUpDown)) => {
                format!("{}, no read", reason.name())
            }
            Self::Wait(reason) => reason.name().into(),
        }
    }
}

impl CriticalPath {
    /// Time by kind of link.
    pub fn by_link(&self) -> BTreeMap<Link, LinkTime> {
        let mut times = BTreeMap::<Link, LinkTime>::new();
        for piece in &self.pieces {
            let time = times.entry(piece.link.clone()).or_default();
            time.ns += piece.end_ns - piece.start_ns;
            time.count += 1;
        }
        times
    }

    /// The part of the token's time that is I/O.
    pub fn io_share(&self) -> f64 {
        let io = self.pieces.iter().filter(|p| p.link.is_io());
        let ns: u64 = io.map(|p| p.end_ns - p.start_ns).sum();
        ns as f64 / self.token.ns().max(1) as f64
    }
}

/// A compute core's timeline and where it is in the trace.
struct Core<'a> {
    lane: usize,
    timeline: Timeline<'a>,
}

/// Finds the critical paths of a trace's tokens.
pub struct Tracer<'a> {
    trace: &'a Trace,
    cores: Vec<Core<'a>>,
    /// All reads by their ends, with their trace lanes.
    reads: Vec<(usize, &'a Slice)>,
}

/// A chain that is being followed back.
struct Walk<'t> {
    token: &'t Token,
    /// Index of the chain's current core.
    core: usize,
    /// The time that it has reached.
    at: u64,
    pieces: Vec<Piece>,
}

impl Walk<'_> {
    /// Goes back to `start_ns`, or to the token's start.
    fn back_to(&mut self, start_ns: u64, link: Link, lane: usize, (layer, bytes): (u64, u64)) {
        let start_ns = start_ns.max(self.token.start_ns);
        if start_ns < self.at {
            self.pieces.push(Piece {
                link,
                lane,
                start_ns,
                end_ns: self.at,
                layer,
                bytes,
            });
            self.at = start_ns;
        }
    }
}

impl<'a> Tracer<'a> {
    /// Prepares a trace.
    pub fn of(trace: &'a Trace) -> Self {
        let lanes = || trace.lanes.iter().enumerate();
        let cores = lanes().filter_map(|(lane, l)| {
            let timeline = Timeline::of(l)?;
            Some(Core { lane, timeline })
        });
        let mut reads: Vec<(usize, &Slice)> = lanes()
            .flat_map(|(lane, l)| l.slices.iter().map(move |s| (lane, s)))
            .filter(|(_, s)| s.what == What::Read && s.start_ns < s.end_ns)
            .collect();
        reads.sort_by_key(|(_, read)| read.end_ns);
        Self {
            trace,
            cores: cores.collect(),
            reads,
        }
    }

    /// The critical path of `token`.
    pub fn path(&self, token: Token) -> CriticalPath {
        let last = (0..self.cores.len()).max_by_key(|&core| self.work_end(core, 0, token.end_ns));
        let mut walk = Walk {
            token: &token,
            core: last.unwrap_or_default(),
            at: token.end_ns,
            pieces: Vec::new(),
        };
        while walk.at > token.start_ns && walk.core < self.cores.len() {
            self.go_back(&mut walk);
        }
        let mut pieces = walk.pieces;
        pieces.reverse();
        CriticalPath { token, pieces }
    }

    /// Where the last work of `core` up to `ns` ended, if that was after `from`.
    fn work_end(&self, core: usize, from: u64, ns: u64) -> Option<u64> {
        let timeline = &self.cores[core].timeline;
        let mut to = ns;
        while let Some(segment) = timeline.before(to).filter(|s| s.end_ns.min(to) > from) {
            match timeline.what(&segment) {
                Some(What::Stall(_)) => to = segment.start_ns,
                _ => return Some(segment.end_ns.min(to)),
            }
        }
        None
    }

    /// Goes one or two links back, or over to another core.
    fn go_back(&self, walk: &mut Walk) {
        let core = &self.cores[walk.core];
        let segment = core.timeline.before(walk.at);
        let Some(segment) = segment.filter(|s| s.end_ns >= walk.at) else {
            // Nothing is recorded here.
            let to = segment.map_or(0, |s| s.end_ns);
            walk.back_to(to, Link::Outside, core.lane, (0, 0));
            return;
        };
        let slice = segment.slice.map(|i| core.timeline.slices[i]);
        let about = slice.map_or((0, 0), |s| (s.args.layer, s.args.bytes));
        match slice.map(|s| s.what) {
            Some(What::Stall(reason)) => self.through_stall(walk, &segment, reason, about.0),
            Some(_) => {
                let name = slice.map(|s| s.name.clone()).unwrap_or_default();
                walk.back_to(segment.start_ns, Link::Work(name), core.lane, about);
            }
            None => walk.back_to(segment.start_ns, Link::Outside, core.lane, about),
        }
    }

    fn through_stall(&self, walk: &mut Walk, stall: &Segment, reason: Reason, layer: u64) {
        let core = &self.cores[walk.core];
        // Otherwise the chain comes from a read that was started during the stall.
        let is_at_end = stall.end_ns == walk.at;
        let next = core.timeline.next_stage(walk.at);
        let over_read = match reason {
            Reason::Idle | Reason::Device => false,
            Reason::Barrier | Reason::Pred if is_at_end => {
                if let Some((last, ns)) = self.last_arriver(walk.core, stall, next) {
                    walk.back_to(ns, Link::HandOverByCore, core.lane, (layer, 0));
                    walk.core = last;
                    return;
                }
                false
            }
            Reason::IoGate | Reason::IoUpDown if is_at_end => {
                let lane = &self.trace.lanes[core.lane];
                let cause = next.and_then(|next| self.trace.last_read(lane, next));
                let cause = cause.filter(|(_, read)| {
                    // What had arrived before the stall was not what the core waited for.
                    read.end_ns > stall.start_ns && read.start_ns < walk.at
                });
                let stage = next.map_or("?", |s| &s.name);
                self.over_read(walk, stall, cause, (stage, layer))
            }
            _ => {
                let stage = next.map_or("?", |s| &s.name);
                self.over_read(walk, stall, None, (stage, layer))
            }
        };
        if !over_read {
            walk.back_to(stall.start_ns, Link::Wait(reason), core.lane, (layer, 0));
        }
    }

    /// Goes back over the read `cause`, or over the one that ended last during the stall: it gave the core its
    /// cluster, or made room on the disk for the next read. False if there is none.
    fn over_read(
        &self,
        walk: &mut Walk,
        stall: &Segment,
        cause: Option<(usize, &Slice)>,
        (stage, layer): (&str, u64),
    ) -> bool {
        let Some((lane, read)) = cause.or_else(|| self.last_ended(stall.start_ns, walk.at)) else {
            return false;
        };
        let own = self.cores[walk.core].lane;
        walk.back_to(read.end_ns, Link::HandOverOfRead, own, (layer, 0));
        let about = (layer, read.args.bytes);
        walk.back_to(read.start_ns, Link::Read(stage.into()), lane, about);
        true
    }

    /// The read that ended last after `from` and not after `to`.
    fn last_ended(&self, from: u64, to: u64) -> Option<(usize, &'a Slice)> {
        let ended = self.reads.partition_point(|(_, read)| read.end_ns <= to);
        let last = self.reads[..ended].last().copied();
        last.filter(|(_, read)| read.end_ns > from)
    }

    /// The core that ended a core's waiting, and when its work was done: of all others, the one that worked longest
    /// before it continued with `next`, the stage with which the waiting core continues.
    fn last_arriver(
        &self,
        waiting: usize,
        stall: &Segment,
        next: Option<&Slice>,
    ) -> Option<(usize, u64)> {
        let arrival = |core: usize| {
            let slices = &self.cores[core].timeline.slices;
            let from = slices.partition_point(|s| s.start_ns <= stall.start_ns);
            let mut behind = slices[from..]
                .iter()
                .take_while(|s| s.start_ns <= stall.end_ns);
            let released = next.and_then(|next| {
                behind.find(|s| s.name == next.name && s.args.layer == next.args.layer)
            });
            let to = released.map_or(stall.end_ns, |s| s.start_ns);
            self.work_end(core, stall.start_ns, to)
        };
        (0..self.cores.len())
            .filter(|&core| core != waiting)
            .filter_map(|core| Some((core, arrival(core)?)))
            .max_by_key(|&(_, ns)| ns)
    }
}
