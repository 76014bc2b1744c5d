//! Reads a Chrome trace file back: slices per trace lane, and the arrows between them.
//!
//! Tolerant of what other tools add: unknown events and fields are skipped, both the object and the array form are
//! read. A file that is not JSON, or cut short, is an error with its line and column; so is a slice of ours without a
//! time, or with an impossible one (negative, or too large to be counted in nanoseconds).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use crate::record::{Reason, Stage, StepKind};

/// The latest time in nanoseconds: 104 days. Up to this time, a file's floating-point numbers are exact, and sums over
/// a thousand cores do not overflow.
const LATEST_NS: f64 = (1_u64 << 53) as f64;

/// A trace file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("cannot read the trace {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file's content is not a trace.
    #[error(
        "{path} is not a complete Chrome trace: {source}; give a file that `run --trace` wrote"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The file is a trace of something else, or of a run without a single record.
    #[error(
        "{path} contains no stage, stall or read: it was not recorded with `forebay run --trace`"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What a slice represents, by its category and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A core worked.
    Stage,
    /// A core waited.
    Stall(Reason),
    /// A read.
    Read,
}

/// One slice of a trace lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// What it represents.
    pub what: What,
    /// Its name, e.g. `gc`.
    pub name: String,
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// End in nanoseconds.
    pub end_ns: u64,
    /// Layer, clusters, bytes.
    pub args: Args,
}

impl Slice {
    /// Whether a core computed. Requesting bytes takes no time: a core that waited has waited for what comes after.
    pub fn computes(&self) -> bool {
        let brings = |stage: &Stage| stage.brings() && stage.name() == self.name;
        self.what == What::Stage && !Stage::ALL.iter().any(brings)
    }
}

/// What a slice tells about its work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Args {
    /// Layer.
    pub layer: u64,
    /// First cluster.
    pub first_cluster: u64,
    /// Number of clusters.
    pub clusters: u64,
    /// Bytes read or worked on.
    pub bytes: u64,
    /// `hit`, `miss` or `n/a`.
    pub residency: String,
}

/// One trace lane.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// Records lost because the ring was full.
    pub overwritten: u64,
    /// Its slices by start; of two with the same start, the longer one first.
    pub slices: Vec<Slice>,
    /// Arrows that end here: time and id, by time.
    pub arrows_in: Vec<(u64, u64)>,
    /// When steps began here, by time, and what they are for.
    pub steps: Vec<(u64, StepKind)>,
}

/// A trace file's content.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Lanes in the order of their numbers.
    pub lanes: Vec<Lane>,
    /// Where each arrow starts: id to index of the lane and time.
    pub arrows_out: HashMap<u64, (usize, u64)>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "traceEvents")]
    trace_events: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(default)]
struct Event {
    ph: String,
    name: String,
    cat: String,
    tid: Value,
    id: Value,
    ts: Option<f64>,
    dur: Option<f64>,
    args: Value,
}

impl Default for Event {
    fn default() -> Self {
        Self {
            ph: String::new(),
            name: String::new(),
            cat: String::new(),
            tid: Value::Null,
            id: Value::Null,
            ts: None,
            dur: None,
            args: Value::Null,
        }
    }
}

impl Lane {
    /// The innermost slice around `ns`, if any.
    pub fn slice_at(&self, ns: u64) -> Option<&Slice> {
        let behind = self.slices.partition_point(|s| s.start_ns <= ns);
        let before = self.slices[..behind].iter().rev();
        before.into_iter().find(|s| ns <= s.end_ns)
    }
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or contains nothing of ours.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let path = path.to_path_buf();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(ReadError::Io { path, source }),
        };
        match Self::parse(&bytes) {
            Ok(trace) if trace.lanes.iter().all(|l| l.slices.is_empty()) => {
                Err(ReadError::Empty { path })
            }
            Ok(trace) => Ok(trace),
            Err(source) => Err(ReadError::Damaged { path, source }),
        }
    }

    /// Reads a trace from its bytes.
    ///
    /// # Errors
    /// The bytes are not JSON of a trace's form.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        // Not with an untagged enum, which would lose the line and column of an error.
        let is_array = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
        let events = if is_array {
            serde_json::from_slice(bytes)?
        } else {
            serde_json::from_slice::<Document>(bytes)?.trace_events
        };
        Self::from_events(events)
    }

    /// The read that finished last among those with an arrow into `consumer`, a slice of `lane`: the index of its lane,
    /// and the read.
    pub fn last_read(&self, lane: &Lane, consumer: &Slice) -> Option<(usize, &Slice)> {
        let (start, end) = (consumer.start_ns, consumer.end_ns);
        let from = lane.arrows_in.partition_point(|a| a.0 < start);
        let arrows = lane.arrows_in[from..].iter();
        arrows
            // An arrow at the end belongs to the slice that follows without a gap.
            .take_while(|a| a.0 < end || a.0 == start)
            .filter_map(|(_, id)| {
                let &(source, ns) = self.arrows_out.get(id)?;
                Some((source, self.lanes[source].slice_at(ns)?))
            })
            .filter(|(_, read)| read.what == What::Read)
            .max_by_key(|(_, read)| read.end_ns)
    }

    fn from_events(events: Vec<Event>) -> Result<Self, serde_json::Error> {
        let mut lanes = BTreeMap::<u64, Lane>::new();
        let mut starts = HashMap::new();
        for (i, event) in events.into_iter().enumerate() {
            let tid = number(&event.tid);
            let ns = nanos(event.ts.unwrap_or_default());
            match event.ph.as_str() {
                "M" if event.name == "thread_name" => {
                    let lane = lanes.entry(tid).or_default();
                    lane.name = event.args["name"].as_str().unwrap_or_default().into();
                    lane.overwritten = number(&event.args["overwritten"]);
                }
                "X" => {
                    if let Some(slice) = slice(event, i)? {
                        lanes.entry(tid).or_default().slices.push(slice);
                    }
                }
                "i" if event.cat == "step" => {
                    let kind = StepKind::ALL.into_iter().find(|k| k.name() == event.name);
                    let steps = &mut lanes.entry(tid).or_default().steps;
                    steps.extend(kind.map(|kind| (ns, kind)));
                }
                "s" => {
                    starts.insert(number(&event.id), (tid, ns));
                }
                "f" => {
                    let arrow = (ns, number(&event.id));
                    lanes.entry(tid).or_default().arrows_in.push(arrow);
                }
                _ => {}
            }
        }
        for lane in lanes.values_mut() {
            lane.slices
                .sort_by_key(|s| (s.start_ns, std::cmp::Reverse(s.end_ns)));
            lane.arrows_in.sort_unstable();
            lane.steps.sort_by_key(|step| step.0);
        }
        let index: HashMap<u64, usize> = lanes.keys().copied().zip(0..).collect();
        Ok(Self {
            arrows_out: starts
                .into_iter()
                .filter_map(|(id, (tid, ns))| Some((id, (*index.get(&tid)?, ns))))
                .collect(),
            lanes: lanes.into_values().collect(),
        })
    }
}

/// `None` for what is not ours.
fn slice(event: Event, number: usize) -> Result<Option<Slice>, serde_json::Error> {
    let what = match event.cat.as_str() {
        "stage" => What::Stage,
        "io" => What::Read,
        "stall" => {
            let name = event.name.strip_prefix("stall: ");
            let reason = Reason::ALL.into_iter().find(|r| Some(r.name()) == name);
            let Some(reason) = reason else {
                return Ok(None);
            };
            What::Stall(reason)
        }
        _ => return Ok(None),
    };
    let wrong = |problem: String| {
        let name = &event.name;
        serde_json::Error::custom(format!("event {number} (\"{name}\"): {problem}"))
    };
    let time = |field: &str, micros: Option<f64>| match micros {
        Some(t) if t < 0.0 => Err(wrong(format!("{field} is {t}, a negative time"))),
        Some(t) if t * 1000.0 >= LATEST_NS => {
            Err(wrong(format!("{field} is {t}, more than 104 days")))
        }
        Some(t) => Ok(nanos(t)),
        None => Err(wrong(format!("it has no {field}"))),
    };
    let start_ns = time("ts", event.ts)?;
    let length = time("dur", event.dur)?;
    Ok(Some(Slice {
        what,
        start_ns,
        end_ns: start_ns + length,
        args: serde_json::from_value(event.args).unwrap_or_default(),
        name: event.name,
    }))
}

/// Microseconds to nanoseconds; the cast saturates, so a negative time is 0.
fn nanos(micros: f64) -> u64 {
    (micros * 1000.0).round() as u64
}

/// Numbers may come as strings, as Chrome's own ids do (`"0x2a"`).
fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap_or_default(),
            None => text.parse().unwrap_or_default(),
        },
        other => other.as_u64().unwrap_or_default(),
    }
}
