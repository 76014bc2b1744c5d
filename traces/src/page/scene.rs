//! What the script draws for one token, as JSON.

use serde::Serialize;

use crate::events::{Args, Slice, Trace, What};
use crate::path::{CriticalPath, Link};
use crate::record::Reason;
use crate::timeline::Timeline;
use crate::tokens::Token;

/// Colour of a slice; also the name of its CSS variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Colour {
    Attention,
    Ffn,
    Other,
    Gate,
    Updown,
    Barrier,
    Pred,
    Device,
    Idle,
    Read,
}

impl Colour {
    /// The colour of a stage, by name.
    pub fn of_stage(stage: &str) -> Self {
        match stage {
            "qkv" | "attention" | "output" => Self::Attention,
            "gio" | "gc" | "udio" | "udc" => Self::Ffn,
            _ => Self::Other,
        }
    }

    /// The colour of a stall.
    pub fn of_stall(reason: Reason) -> Self {
        match reason {
            Reason::IoGate => Self::Gate,
            Reason::IoUpDown => Self::Updown,
            Reason::Barrier => Self::Barrier,
            Reason::Pred => Self::Pred,
            Reason::Device => Self::Device,
            Reason::Idle => Self::Idle,
        }
    }

    /// The colour of a link of a critical path.
    pub fn of_link(link: &Link) -> Self {
        match link {
            Link::Work(stage) => Self::of_stage(stage),
            Link::Outside => Self::Other,
            Link::Read(_) => Self::Read,
            Link::HandOverOfRead | Link::HandOverByCore => Self::Barrier,
            Link::Wait(reason) => Self::of_stall(*reason),
        }
    }

    /// Name of its CSS variable, without the dashes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Ffn => "ffn",
            Self::Other => "other",
            Self::Gate => "gate",
            Self::Updown => "updown",
            Self::Barrier => "barrier",
            Self::Pred => "pred",
            Self::Device => "device",
            Self::Idle => "idle",
            Self::Read => "read",
        }
    }
}

/// Start, length, colour, name and facts; times in nanoseconds from the token's start.
#[derive(Debug, Serialize)]
pub(super) struct Item(u64, u64, Colour, String, String);

/// One row of the drawing.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    is_core: bool,
    items: Vec<Item>,
    /// The trace lanes of the reads in this row, by item; not for the script.
    #[serde(skip)]
    lanes: Vec<usize>,
}

/// A link of the critical path: row, start, length, name.
#[derive(Debug, Serialize)]
struct Step(usize, u64, u64, String);

/// One token.
#[derive(Debug, Serialize)]
pub(super) struct Scene {
    ns: u64,
    rows: Vec<Row>,
    path: Vec<Step>,
}

impl Scene {
    /// Everything that happened during a token.
    pub fn of(trace: &Trace, path: &CriticalPath) -> Self {
        let token = &path.token;
        let mut rows: Vec<Row> = Vec::new();
        let mut cores = Vec::new(); // lane of each core's row
        for (lane, l) in trace.lanes.iter().enumerate() {
            if let Some(timeline) = Timeline::of(l) {
                let items = core_items(&timeline, token);
                let (name, lanes) = (l.name.clone(), Vec::new());
                cores.push(lane);
                rows.push(Row {
                    name,
                    is_core: true,
                    items,
                    lanes,
                });
            }
        }
        rows.extend(read_rows(trace, token));
        let steps = path.pieces.iter().filter_map(|piece| {
            let (start, length) = (
                piece.start_ns - token.start_ns,
                piece.end_ns - piece.start_ns,
            );
            let row = match cores.iter().position(|&lane| lane == piece.lane) {
                Some(row) => row,
                None => rows.iter().position(|row| {
                    let mut reads = row.lanes.iter().zip(&row.items);
                    reads.any(|(&lane, read)| {
                        lane == piece.lane && read.0 <= start && start + length <= read.0 + read.1
                    })
                })?,
            };
            Some(Step(row, start, length, piece.link.label()))
        });
        let path = steps.collect();
        Self {
            ns: token.ns(),
            rows,
            path,
        }
    }
}

/// The part of a period that is inside the token: start, from the token's start, and length.
fn within(token: &Token, start_ns: u64, end_ns: u64) -> Option<(u64, u64)> {
    let (start, end) = (start_ns.max(token.start_ns), end_ns.min(token.end_ns));
    (start < end).then(|| (start - token.start_ns, end - start))
}

fn core_items(timeline: &Timeline, token: &Token) -> Vec<Item> {
    let segments = timeline.segments.iter();
    let items = segments.filter_map(|segment| {
        let (start, length) = within(token, segment.start_ns, segment.end_ns)?;
        let slice = timeline.slices[segment.slice?];
        let colour = match slice.what {
            What::Stall(reason) => Colour::of_stall(reason),
            _ => Colour::of_stage(&slice.name),
        };
        let facts = match slice.what {
            What::Stall(_) => format!("layer {}", slice.args.layer),
            _ => facts(&slice.args),
        };
        Some(Item(start, length, colour, slice.name.clone(), facts))
    });
    items.collect()
}

fn facts(args: &Args) -> String {
    format!(
        "layer {}, cluster {}, {} bytes, {}",
        args.layer, args.first_cluster, args.bytes, args.residency
    )
}

/// Reads in flight during the token, in as few rows as were ever in flight at once.
fn read_rows(trace: &Trace, token: &Token) -> Vec<Row> {
    let lanes = trace.lanes.iter().enumerate();
    let mut reads: Vec<(usize, &Slice)> = lanes
        .flat_map(|(lane, l)| l.slices.iter().map(move |s| (lane, s)))
        .filter(|(_, s)| s.what == What::Read)
        .filter(|(_, s)| within(token, s.start_ns, s.end_ns).is_some())
        .collect();
    reads.sort_by_key(|(_, s)| s.start_ns);
    let mut rows: Vec<(u64, Row)> = Vec::new();
    for (lane, read) in reads {
        let Some((start, length)) = within(token, read.start_ns, read.end_ns) else {
            continue;
        };
        let facts = format!(
            "{} bytes, cluster {}",
            read.args.bytes, read.args.first_cluster
        );
        let item = Item(
            start,
            length,
            Colour::Read,
            trace.lanes[lane].name.clone(),
            facts,
        );
        let free = match rows.iter().position(|(end, _)| *end <= read.start_ns) {
            Some(row) => row,
            None => {
                let name = format!("read {}", rows.len() + 1);
                rows.push((
                    0,
                    Row {
                        name,
                        is_core: false,
                        items: Vec::new(),
                        lanes: Vec::new(),
                    },
                ));
                rows.len() - 1
            }
        };
        let (end, row) = &mut rows[free];
        *end = read.end_ns;
        row.items.push(item);
        row.lanes.push(lane);
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

/// JSON that may be put into a script element: without `<` nothing can end the element.
pub(super) fn json(scenes: &[Scene]) -> String {
    // Writing strings and numbers cannot fail; if it did, the script would show that there is nothing.
    let text = serde_json::to_string(scenes).unwrap_or_default();
    text.replace('<', "\\u003c")
}
