//! The report as readable tables.

use std::fmt::{self, Display, Formatter};

use crate::ledger::State;
use crate::path::{CriticalPath, Link};
use crate::record::Reason;
use crate::report::{Bubble, CoreReport, Paths, ReadReport, Report, StageTime};

/// Heading of each cause of waiting.
const CAUSES: [(&str, Reason); 6] = [
    ("io gate", Reason::IoGate),
    ("io updown", Reason::IoUpDown),
    ("barrier", Reason::Barrier),
    ("pred", Reason::Pred),
    ("device", Reason::Device),
    ("idle", Reason::Idle),
];

/// Nanoseconds in the most readable unit.
pub(crate) struct Time(pub u64);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let text = match self.0 {
            0..1_000 => format!("{ns} ns"),
            1_000..1_000_000 => format!("{:.1} µs", ns / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} ms", ns / 1e6),
            _ => format!("{:.2} s", ns / 1e9),
        };
        f.pad(&text)
    }
}

/// A part of a whole, in percent; a dot for nothing, so that the rest stands out.
pub(crate) struct Percent(pub u64, pub u64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == 0 || self.1 == 0 {
            return f.pad("·");
        }
        f.pad(&format!("{:.1} %", 100.0 * self.0 as f64 / self.1 as f64))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:16} {:>10} {:>10}", "core", "time", "busy")?;
        headings(f)?;
        writeln!(f, " {:>12}", "in no stage")?;
        for core in &self.cores {
            core_row(f, core)?;
        }
        writeln!(f, "together: {}", self.bubbles())?;

        write!(f, "\n{:10} {:>8} {:>16}", "stage", "slices", "busy")?;
        write!(f, " {:>9} {:>9} {:>9}", "clusters", "hits", "GB/s")?;
        headings(f)?;
        writeln!(f, "   waited before it")?;
        let all: u64 = self.cores.iter().map(|c| c.charged.total()).sum();
        for (name, stage) in &self.stages {
            stage_row(f, name, stage, all)?;
        }
        if self.reads.reads > 0 {
            write!(f, "\n{}", self.reads)?;
        }
        match &self.paths {
            Some(paths) => path_table(f, self.tokens, paths)?,
            None => writeln!(
                f,
                "\nno critical path: the trace has no whole token; record one with -n 2 or more, by this version"
            )?,
        }
        if !self.longest.is_empty() {
            writeln!(f, "\nlongest bubbles")?;
        }
        self.longest.iter().try_for_each(|b| writeln!(f, "{b}"))
    }
}

fn headings(f: &mut Formatter<'_>) -> fmt::Result {
    CAUSES
        .iter()
        .try_for_each(|(name, _)| write!(f, " {name:>9}"))
}

fn core_row(f: &mut Formatter<'_>, core: &CoreReport) -> fmt::Result {
    let total = core.charged.total();
    let busy = Percent(core.charged.get(State::Busy), total);
    write!(f, "{:16} {:>10} {busy:>10}", core.name, Time(total))?;
    for (_, reason) in CAUSES {
        let share = Percent(core.charged.get(State::Stall(reason)), total);
        write!(f, " {share:>9}")?;
    }
    writeln!(f, " {:>12}", Percent(core.outside_ns, total))?;
    if core.overwritten > 0 {
        let n = core.overwritten;
        writeln!(
            f,
            "  ! {n} older records were overwritten: only the end is shown"
        )?;
    }
    if core.overlaps > 0 {
        let n = core.overlaps;
        writeln!(
            f,
            "  ! {n} slices overlap others; common time is counted once"
        )?;
    }
    Ok(())
}

fn stage_row(f: &mut Formatter<'_>, name: &str, stage: &StageTime, all: u64) -> fmt::Result {
    let busy = format!("{} {:>7}", Time(stage.busy_ns), Percent(stage.busy_ns, all));
    write!(f, "{name:10} {:>8} {busy:>16}", stage.slices)?;
    let hits = Percent(stage.hits, stage.hits + stage.misses);
    // Bytes per nanosecond are GB/s.
    let speed = stage.bytes as f64 / stage.busy_ns.max(1) as f64;
    write!(f, " {:>9} {hits:>9} {speed:>9.2}", stage.clusters)?;
    for (_, reason) in CAUSES {
        match stage.waited.get(State::Stall(reason)) {
            0 => write!(f, " {:>9}", "·")?,
            ns => write!(f, " {:>9}", Time(ns))?,
        }
    }
    writeln!(f)
}

fn path_table(f: &mut Formatter<'_>, tokens: usize, paths: &Paths) -> fmt::Result {
    let columns = [&paths.median, &paths.p99];
    writeln!(f, "\ncritical path of a token, of {tokens} in the trace")?;
    let title = |what: &str, path: &CriticalPath| format!("{what} (token {})", path.token.number);
    let titles = [title("median", columns[0]), title("P99", columns[1])];
    writeln!(f, "{:24} {:>26} {:>26}", "", titles[0], titles[1])?;
    write!(f, "{:24}", "its time")?;
    for path in columns {
        write!(f, " {:>26}", Time(path.token.ns()))?;
    }
    write!(f, "\n{:24}", "I/O")?;
    for path in columns {
        write!(f, " {:>24.1} %", 100.0 * path.io_share())?;
    }
    writeln!(f)?;
    let links = columns.map(CriticalPath::by_link);
    let mut rows: Vec<&Link> = links[0].keys().chain(links[1].keys()).collect();
    rows.sort();
    rows.dedup();
    let ns = |link: &Link| links.iter().map(|l| l.get(link).map_or(0, |t| t.ns)).sum();
    rows.sort_by_key(|link| std::cmp::Reverse::<u64>(ns(link)));
    for link in rows {
        write!(f, "  {:22}", link.label())?;
        for (path, times) in columns.iter().zip(&links) {
            let time = times.get(link).copied().unwrap_or_default();
            let share = Percent(time.ns, path.token.ns());
            match time.count {
                0 => write!(f, " {:>26}", "·")?,
                n => write!(f, " {:>7}x {:>9} {share:>7}", n, Time(time.ns))?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

impl Display for ReadReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let busy = self.busy_ns.max(1) as f64;
        writeln!(
            f,
            "reads: {} of {:.1} KiB on average, {:.3} GB/s while any was in flight ({}), mean depth {:.1}",
            self.reads,
            self.bytes as f64 / self.reads.max(1) as f64 / 1024.0,
            self.bytes as f64 / busy,
            Time(self.busy_ns),
            self.latency_ns as f64 / busy,
        )
    }
}

impl Display for Bubble {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {:>9} {:14} {} at {}",
            Time(self.ns),
            self.reason.name(),
            self.core,
            Time(self.start_ns)
        )?;
        match &self.stage {
            Some((stage, layer)) => write!(f, ", before {stage} of layer {layer}")?,
            None => write!(f, ", at the end")?,
        }
        let Some(read) = &self.cause else {
            return Ok(());
        };
        write!(
            f,
            ": read of {} bytes from cluster {} on {}, in flight for {}",
            read.args.bytes,
            read.args.first_cluster,
            read.lane,
            Time(read.end_ns - read.start_ns)
        )
    }
}
