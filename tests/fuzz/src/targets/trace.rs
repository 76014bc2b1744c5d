//! Trace files: reading them, the report, its table and the page.

use std::path::Path;

use anyhow::Result;
use forebay_traces::chrome::write_chrome;
use forebay_traces::events::Trace;
use forebay_traces::headline::Headline;
use forebay_traces::lane::TraceLane;
use forebay_traces::page::page;
use forebay_traces::record::{Reason, Record, Stage, StepKind};
use forebay_traces::report::Report;

use crate::mutate;
use crate::random::Random;
use crate::target::Target;

struct Traces;

/// Makes the target.
pub fn make(_: &Path) -> Result<Box<dyn Target>> {
    Ok(Box::new(Traces))
}

/// Three tokens of one layer on two cores.
fn lanes() -> Vec<TraceLane> {
    let mut slot = TraceLane::new("I/O slot 0", 100);
    let mut cores = [0, 1].map(|i| TraceLane::new(format!("core {i}"), 100));
    let mut now = 1_000_000;
    for token in 0..3 {
        for core in &mut cores {
            core.push(Record::stall(Reason::Idle, now, now + 20_000));
        }
        now += 20_000;
        for core in &mut cores {
            core.push(Record::step(StepKind::Token, 1, now));
        }
        slot.push(Record::read(0, 65536, now + 5_000, now + 200_000).with_flow(token + 1));
        let [first, second] = &mut cores;
        let norm = Record::stage(Stage::Norm, 0, now, now + 30_000);
        let (come, done) = (now + 205_000, now + 350_000);
        first.push(norm);
        first.push(Record::stall(Reason::IoGate, now + 30_000, come));
        first.push(Record::stage(Stage::Gc, 0, come, done).with_flow(token + 1));
        second.push(norm);
        second.push(Record::stage(Stage::Gc, 0, now + 30_000, now + 120_000));
        second.push(Record::stall(Reason::Barrier, now + 120_000, done));
        now = done;
        for core in &mut cores {
            core.push(Record::stage(Stage::Head, 1, now, now + 90_000));
        }
        now += 90_000;
    }
    cores.into_iter().chain([slot]).collect()
}

impl Target for Traces {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut object = Vec::new();
        write_chrome(&mut object, "forebay", &lanes()).expect("memory");
        let value: serde_json::Value = serde_json::from_slice(&object).expect("JSON");
        let array = value["traceEvents"].to_string().into_bytes();
        vec![object, array]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let trace = Trace::parse(input).map_err(|e| e.to_string())?;
        let report = Report::of(&trace);
        report.to_string();
        Headline::of(&report);
        report.bubbles();
        let page = page(&trace, &report, "trace.json");
        page.map(drop).map_err(|e| e.to_string())
    }
}
