//! Writes lanes as a Chrome trace file, which Perfetto and `chrome://tracing` show.
//!
//! Format: "Trace Event Format", Google, JSON object form. One thread per lane; stages, reads and stalls are
//! complete (`X`) slices, a read and its consumer are joined by a flow arrow (`s` to `f`), counters are `C`.
//! Times are microseconds with three decimals, so nanoseconds survive. Records are formatted one by one into
//! the writer: the document is never in memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lane::TraceLane;
use crate::record::{Kind, Reason, Record};

/// All lanes are threads of one process.
const PID: u32 = 1;

/// The trace could not be saved.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {path}: {source}")]
pub struct SaveError {
    path: PathBuf,
    source: io::Error,
}

/// Fixed-point microseconds with nanosecond digits.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A JSON string literal.
fn quoted(text: &str) -> io::Result<String> {
    serde_json::to_string(text).map_err(io::Error::from)
}

/// Writes `lanes`, top to bottom, as threads of the process `process`.
///
/// # Errors
/// The writer fails.
pub fn write_chrome<'a>(
    writer: impl Write,
    process: &str,
    lanes: impl IntoIterator<Item = &'a TraceLane>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, writer);
    write!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n\
         {{\"ph\":\"M\",\"pid\":{PID},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
        quoted(process)?
    )?;
    for (lane, tid) in lanes.into_iter().zip(1_u64..) {
        write_lane(&mut out, lane, tid)?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

fn write_lane(out: &mut impl Write, lane: &TraceLane, tid: u64) -> io::Result<()> {
    let name = quoted(lane.name())?;
    write!(
        out,
        ",\n{{\"ph\":\"M\",\"pid\":{PID},\"tid\":{tid},\"name\":\"thread_name\",\
         \"args\":{{\"name\":{name},\"overwritten\":{}}}}}\
         ,\n{{\"ph\":\"M\",\"pid\":{PID},\"tid\":{tid},\"name\":\"thread_sort_index\",\
         \"args\":{{\"sort_index\":{tid}}}}}",
        lane.overwritten()
    )?;
    for record in lane.iter() {
        match record.kind {
            Kind::Stage(stage) => {
                write_slice(out, tid, record, "stage", stage.name(), "")?;
                write_arrow(out, tid, "f", record.flow, record.start_ns)?;
            }
            Kind::Read => {
                write_slice(out, tid, record, "io", "read", "")?;
                // One nanosecond inside: at its very end a slice no longer encloses the arrow.
                let inside = record.end_ns.saturating_sub(1).max(record.start_ns);
                write_arrow(out, tid, "s", record.flow, inside)?;
            }
            Kind::Stall(reason) => {
                let name = stall_name(reason);
                write_slice(out, tid, record, "stall", name, stall_colour(reason))?;
            }
            // The viewers tell counters apart by name only, so it contains the lane.
            Kind::Counter { which, value } => write!(
                out,
                ",\n{{\"ph\":\"C\",\"pid\":{PID},\"tid\":{tid},\"ts\":{},\"name\":{},\
                 \"args\":{{\"value\":{value}}}}}",
                Micros(record.start_ns),
                quoted(&format!("{} {}", lane.name(), which.name()))?
            )?,
            Kind::FlowOut => write_arrow(out, tid, "s", record.flow, record.start_ns)?,
            Kind::FlowIn => write_arrow(out, tid, "f", record.flow, record.start_ns)?,
        }
    }
    Ok(())
}

fn write_slice(
    out: &mut impl Write,
    tid: u64,
    r: &Record,
    category: &str,
    name: &str,
    colour: &str,
) -> io::Result<()> {
    let start = Micros(r.start_ns);
    let length = Micros(r.end_ns.saturating_sub(r.start_ns));
    write!(
        out,
        ",\n{{\"ph\":\"X\",\"pid\":{PID},\"tid\":{tid},\"ts\":{start},\"dur\":{length},\
         \"cat\":\"{category}\",\"name\":\"{name}\""
    )?;
    if !colour.is_empty() {
        write!(out, ",\"cname\":\"{colour}\"")?;
    }
    write!(
        out,
        ",\"args\":{{\"layer\":{},\"first_cluster\":{},\"clusters\":{},\"bytes\":{},\
         \"residency\":\"{}\"}}}}",
        r.layer,
        r.cluster,
        r.count,
        r.bytes,
        r.residency.name()
    )
}

/// The start (`s`) or end (`f`) of an arrow; `bp: e` ties the end to the slice that encloses it instead of
/// the next one.
fn write_arrow(out: &mut impl Write, tid: u64, ph: &str, id: u64, ns: u64) -> io::Result<()> {
    if id == 0 {
        return Ok(());
    }
    let binding = if ph == "f" { ",\"bp\":\"e\"" } else { "" };
    write!(
        out,
        ",\n{{\"ph\":\"{ph}\",\"pid\":{PID},\"tid\":{tid},\"ts\":{},\"cat\":\"flow\",\
         \"name\":\"read\",\"id\":{id}{binding}}}",
        Micros(ns)
    )
}

const fn stall_name(reason: Reason) -> &'static str {
    match reason {
        Reason::IoGate => "stall: wait_io_gate",
        Reason::IoUpDown => "stall: wait_io_updown",
        Reason::Barrier => "stall: wait_barrier",
        Reason::Pred => "stall: wait_pred",
        Reason::Idle => "stall: idle",
    }
}

/// One of the colour names that the viewers reserve.
const fn stall_colour(reason: Reason) -> &'static str {
    match reason {
        Reason::IoGate => "terrible",
        Reason::IoUpDown => "bad",
        Reason::Barrier => "yellow",
        Reason::Pred => "olive",
        Reason::Idle => "grey",
    }
}

/// Saves the trace at `path`, or leaves what was there: the file is written beside it, synced and renamed. A link is
/// followed, and what is no file (a device, a pipe) is written to as it is.
///
/// # Errors
/// The folder is not writable or the disk is full.
pub fn save_chrome<'a>(
    path: &Path,
    process: &str,
    lanes: impl IntoIterator<Item = &'a TraceLane>,
) -> Result<(), SaveError> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let saved = match std::fs::metadata(&target) {
        Ok(found) if !found.is_file() => File::options()
            .write(true)
            .open(&target)
            .and_then(|device| write_chrome(&device, process, lanes)),
        _ => replace(&target, |file| write_chrome(file, process, lanes)),
    };
    saved.map_err(|source| SaveError {
        path: path.to_path_buf(),
        source,
    })
}

/// Has `write` fill a file beside `target`, which then takes its place.
fn replace(target: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let beside = beside(target);
    let replaced = File::create(&beside)
        .and_then(|file| {
            write(&file)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, target));
    replaced.inspect_err(|_| {
        // The first error is the one to report; the file may not even exist.
        let _ = std::fs::remove_file(&beside);
    })
}

/// A name in the same folder that no other save uses.
fn beside(path: &Path) -> PathBuf {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let n = SAVES.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{n}.tmp", std::process::id()));
    path.with_file_name(name)
}
