//! Which part of a trace belongs to which token.
//!
//! The cores step through the layers together: a step is over on all of them before the next one begins on any. So the
//! parts of it that overlap in time on several cores are one. Each core marks where its part begins, and what the step
//! is for: a step for a token that reached the output head made one, or several with those that were drafted.

use crate::events::{Lane, Slice, Trace, What};
use crate::record::StepKind;

/// The time of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Token {
    /// Its number among the tokens of the trace, from 1.
    pub number: usize,
    /// When the previous step was done, or the start of its own if that is not in the trace. So sampling and embedding,
    /// for which the cores wait, belong to the token, and so do steps that only drafted for it.
    pub start_ns: u64,
    /// When the last core had finished its part.
    pub end_ns: u64,
}

/// One pass through the layers.
#[derive(Debug, Clone, Copy)]
struct Step {
    start_ns: u64,
    end_ns: u64,
    kind: StepKind,
    has_logits: bool,
}

impl Token {
    /// Duration in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// All tokens that the trace covers completely, by time.
pub fn tokens(trace: &Trace) -> Vec<Token> {
    let mut parts: Vec<Step> = trace.lanes.iter().flat_map(steps).collect();
    parts.sort_by_key(|step| step.start_ns);
    let mut steps: Vec<Step> = Vec::new();
    for part in parts {
        match steps.last_mut() {
            Some(step) if part.start_ns < step.end_ns => {
                step.end_ns = step.end_ns.max(part.end_ns);
                step.has_logits |= part.has_logits;
            }
            _ => steps.push(part),
        }
    }
    // Before this time, some trace lane has lost records.
    let lost = trace.lanes.iter().filter(|lane| lane.overwritten > 0);
    let lost_to = lost
        .filter_map(|lane| lane.slices.first())
        .map(|s| s.start_ns)
        .max();
    let mut tokens: Vec<Token> = Vec::new();
    let mut before = None;
    for step in steps {
        let whole = lost_to.is_none_or(|lost_to| step.start_ns > lost_to);
        if whole && step.has_logits && step.kind == StepKind::Token {
            tokens.push(Token {
                number: tokens.len() + 1,
                start_ns: before.unwrap_or(step.start_ns),
                end_ns: step.end_ns,
            });
        }
        if step.kind != StepKind::Draft {
            before = whole.then_some(step.end_ns);
        }
    }
    tokens
}

/// One core's parts of the steps.
fn steps(lane: &Lane) -> Vec<Step> {
    let worked = lane.slices.iter().filter(|s| s.what == What::Stage);
    let worked: Vec<&Slice> = worked.collect();
    let begun = |ns: u64| worked.partition_point(|s| s.start_ns < ns);
    let ends = lane.steps.iter().skip(1).map(|step| begun(step.0));
    let ends = ends.chain([worked.len()]);
    let parts = lane
        .steps
        .iter()
        .zip(ends)
        .filter_map(|(&(ns, kind), end)| {
            let part = &worked[begun(ns)..end];
            Some(Step {
                start_ns: part.first()?.start_ns,
                end_ns: part.iter().map(|s| s.end_ns).max()?,
                kind,
                has_logits: part.iter().any(|s| s.name == "head"),
            })
        });
    parts.collect()
}

/// The token at percentile `p` (0 to 1) of the durations, by nearest rank as in the statistics.
pub fn at_percentile(tokens: &[Token], p: f64) -> Option<Token> {
    let mut sorted = tokens.to_vec();
    sorted.sort_by_key(Token::ns);
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
}
