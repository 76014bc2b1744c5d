//! Parts of the page that need no script: key figures, bars and tables.

use std::cmp::Reverse;
use std::fmt::Write;

use super::Escaped;
use super::scene::Colour;
use crate::ledger::{Charged, State};
use crate::path::{CriticalPath, Link};
use crate::record::Reason;
use crate::report::{Paths, Report};
use crate::table::{Percent, Time};

/// States of a core in the order of all bars and tables, with their names there.
const STATES: [(State, Colour, &str); 7] = [
    (State::Busy, Colour::Ffn, "computing"),
    (
        State::Stall(Reason::IoGate),
        Colour::Gate,
        "waiting: Gate and other rows",
    ),
    (
        State::Stall(Reason::IoUpDown),
        Colour::Updown,
        "waiting: Up/Down",
    ),
    (
        State::Stall(Reason::Barrier),
        Colour::Barrier,
        "waiting: other cores",
    ),
    (
        State::Stall(Reason::Pred),
        Colour::Pred,
        "waiting: prediction",
    ),
    (
        State::Stall(Reason::Device),
        Colour::Device,
        "waiting: device",
    ),
    (State::Stall(Reason::Idle), Colour::Idle, "no token"),
];

/// Links with a smaller part than this are shown together.
const SMALL: f64 = 0.01;

/// The most important figures.
pub(super) fn cards(report: &Report, paths: &Paths) -> String {
    let mut html = String::from("<div class=cards>\n");
    let mut card = |title: &str, value: String, note: String| {
        let _ = writeln!(
            html,
            "<div class=card><b>{}</b><span>{}</span><small>{}</small></div>",
            Escaped(title),
            Escaped(value),
            Escaped(note)
        );
    };
    for (title, path) in [("Median token", &paths.median), ("P99 token", &paths.p99)] {
        let io = format!(
            "{:.0}% of it is I/O on its critical path",
            100.0 * path.io_share()
        );
        card(title, Time(path.token.ns()).to_string(), io);
    }
    let reads = &report.reads;
    let busy = reads.busy_ns.max(1) as f64;
    let speed = format!("{:.2} GB/s", reads.bytes as f64 / busy);
    let depth = format!(
        "{} reads, {:.1} at once",
        reads.reads,
        reads.latency_ns as f64 / busy
    );
    card("Disk, while reading", speed, depth);
    let busy = format!("{:.0}%", 100.0 * report.bubbles().compute_busy);
    let cores = format!(
        "of the time of {} cores; {} tokens",
        report.cores.len(),
        report.tokens
    );
    card("Computing", busy, cores);
    html + "</div>\n"
}

/// A bar of parts, each with its share and name below.
fn bar(parts: &[(Colour, String, u64)], total: u64) -> String {
    let share = |ns: u64| 100.0 * ns as f64 / total.max(1) as f64;
    let (mut bar, mut legend) = (String::new(), String::new());
    for (colour, name, ns) in parts.iter().filter(|part| part.2 > 0) {
        let (colour, name) = (colour.name(), Escaped(name));
        let percent = share(*ns);
        let _ = write!(
            bar,
            "<i style=\"width:{percent:.3}%;background:var(--{colour})\" title=\"{name}: {percent:.1}%\"></i>"
        );
        let _ = write!(
            legend,
            "<li><i style=\"background:var(--{colour})\"></i>{name} <b>{percent:.1}%</b></li>"
        );
    }
    format!("<div class=bar>{bar}</div>\n<ul class=legend>{legend}</ul>\n")
}

/// Where the time of all cores went.
pub(super) fn core_time(report: &Report) -> String {
    let mut all = Charged::default();
    report
        .cores
        .iter()
        .for_each(|core| all.merge(&core.charged));
    let parts = STATES.map(|(state, colour, name)| (colour, name.to_string(), all.get(state)));
    format!(
        "<section><h2>Where the cores’ time went</h2>\n{}</section>\n",
        bar(&parts, all.total())
    )
}

/// A chosen token: the parts of its time, and room for the drawing of scene `i`.
pub(super) fn token(title: &str, path: &CriticalPath, tokens: usize, i: usize) -> String {
    let total = path.token.ns();
    let mut links: Vec<(Link, u64)> = path.by_link().into_iter().map(|(l, t)| (l, t.ns)).collect();
    links.sort_by_key(|(_, ns)| Reverse(*ns));
    let is_small = |ns: u64| (ns as f64) < SMALL * total as f64;
    let rest: u64 = links.iter().map(|l| l.1).filter(|&ns| is_small(ns)).sum();
    links.retain(|l| !is_small(l.1));
    let mut parts: Vec<(Colour, String, u64)> = links
        .iter()
        .map(|(link, ns)| (Colour::of_link(link), link.label(), *ns))
        .collect();
    parts.push((Colour::Other, "the rest".into(), rest));
    let first = links.first().map_or(String::new(), |(link, ns)| {
        format!(
            " Look first at <b>{}</b>, {:.0}% of it. {}",
            Escaped(link.label()),
            100.0 * *ns as f64 / total.max(1) as f64,
            Escaped(link.meaning())
        )
    });
    format!(
        "<section><h2>{title}: {} (token {} of {tokens})</h2>\n<p>Its critical path, the chain of events that took all of \
         its time, is {:.0}% I/O.{first}</p>\n{}<figure><div class=tools>\
         <button data-zoom=in>zoom in</button> <button data-zoom=out>zoom out</button> \
         <button data-zoom=all>whole token</button>\
         <span class=note>drag over a part to enlarge it; the line follows the critical path</span></div>\
         <canvas data-scene={i}></canvas><div class=tip hidden></div>{}</figure></section>\n",
        Time(total),
        path.token.number,
        100.0 * path.io_share(),
        bar(&parts, total),
        key(),
    )
}

/// What the colours of a drawing mean.
fn key() -> String {
    let work = [
        (Colour::Attention, "attention"),
        (Colour::Ffn, "FFN"),
        (Colour::Other, "other work"),
    ];
    let waits = STATES[1..].iter().map(|s| (s.1, s.2));
    let entries = work
        .into_iter()
        .chain(waits)
        .chain([(Colour::Read, "read in flight")]);
    let mut html = String::from("<ul class=\"legend key\">");
    for (colour, name) in entries {
        let colour = colour.name();
        let _ = write!(
            html,
            "<li><i style=\"background:var(--{colour})\"></i>{name}</li>"
        );
    }
    html + "<li><i class=line></i>critical path</li></ul>"
}

/// Fractions by core and by stage, and the longest stalls.
pub(super) fn tables(report: &Report) -> String {
    let heads: String = STATES
        .iter()
        .map(|s| format!("<th>{}</th>", Escaped(s.2)))
        .collect();
    let mut html = format!(
        "<section><h2>By core</h2><div class=wide><table><thead><tr><th>core</th><th>time</th>{heads}\
         </tr></thead><tbody>\n"
    );
    for core in &report.cores {
        let total = core.charged.total();
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{}</td>",
            Escaped(&core.name),
            Time(total)
        );
        for (state, ..) in STATES {
            let _ = write!(html, "<td>{}</td>", Percent(core.charged.get(state), total));
        }
        html += "</tr>\n";
    }
    let waits: String = STATES[1..]
        .iter()
        .map(|s| format!("<th>{}</th>", Escaped(s.2)))
        .collect();
    let _ = write!(
        html,
        "</tbody></table></div></section>\n<section><h2>By stage</h2><p>Shares of all core time; a wait is \
         counted for the stage that waited.</p><div class=wide><table><thead><tr><th>stage</th>\
         <th>slices</th><th>computing</th><th>in memory</th>{waits}</tr></thead><tbody>\n"
    );
    let all: u64 = report.cores.iter().map(|core| core.charged.total()).sum();
    for (name, stage) in &report.stages {
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td>",
            Escaped(name),
            stage.slices,
            Percent(stage.busy_ns, all),
            Percent(stage.hits, stage.hits + stage.misses)
        );
        for (state, ..) in &STATES[1..] {
            let _ = write!(html, "<td>{}</td>", Percent(stage.waited.get(*state), all));
        }
        html += "</tr>\n";
    }
    html += "</tbody></table></div></section>\n";
    if !report.longest.is_empty() {
        html += "<section><h2>Longest waits</h2><ol>\n";
        for bubble in &report.longest {
            let _ = writeln!(html, "<li>{}</li>", Escaped(bubble));
        }
        html += "</ol></section>\n";
    }
    html
}
