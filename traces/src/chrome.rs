//! Writes trace lanes as a Chrome trace file, which Perfetto and `chrome://tracing` show.
//!
//! Format: "Trace Event Format", Google, JSON object form. One thread per trace lane; stages, reads and stalls are
//! complete (`X`) slices, a read and its consumer are joined by a flow arrow (`s` to `f`), beginnings of steps are `i`,
//! counters are `C`. Times are microseconds with three decimals, so nanoseconds survive. Records are formatted one by
//! one into the writer: the document is never in memory.

use std::io::{self, BufWriter, Write};

use crate::lane::TraceLane;
use crate::record::{Kind, Reason, Record};

/// All trace lanes are shown as threads of one process.
const PID: u32 = 1;

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

/// Writes the trace lanes `lanes`, top to bottom, as threads of the process `process`.
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
                // One nanosecond before the end: at its very end a slice no longer encloses the
                // arrow.
                let inside = record.end_ns.saturating_sub(1).max(record.start_ns);
                write_arrow(out, tid, "s", record.flow, inside)?;
            }
            Kind::Job => write_slice(out, tid, record, "device", "job", "")?,
            Kind::Copy => write_slice(out, tid, record, "device", "copy", "")?,
            Kind::Stall(reason) => {
                let name = stall_name(reason);
                write_slice(out, tid, record, "stall", name, stall_colour(reason))?;
            }
            Kind::Step(kind) => write!(
                out,
                ",\n{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{PID},\"tid\":{tid},\"ts\":{},\"cat\":\"step\",\
                 \"name\":\"{}\",\"args\":{{\"tokens\":{}}}}}",
                Micros(record.start_ns),
                kind.name(),
                record.count
            )?,
            // The viewers tell counters apart by name only, so it contains the trace lane.
            Kind::Counter { which, value } => write!(
                out,
                ",\n{{\"ph\":\"C\",\"pid\":{PID},\"tid\":{tid},\"ts\":{},\"name\":{},\
                 \"args\":{{\"value\":{value}}}}}",
                Micros(record.start_ns),
                quoted(&format!("{} {}", lane.name(), which.name()))?
            )?,
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
        Reason::Device => "stall: wait_device",
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
        Reason::Device => "rail_animation",
        Reason::Idle => "grey",
    }
}
