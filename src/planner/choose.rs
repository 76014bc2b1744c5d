//! Deciding: candidates, the solver's choice among them, and what each decision beat.

use std::cmp::Ordering;

use forebay_plans::cost::{MissSample, Rates};
use forebay_plans::error::PlanError;
use forebay_plans::plan::{Choices, Other, Reason};
use forebay_plans::residency::{Loading, STREAM_WINDOW, Sparsity, all_pinned_bytes};
use forebay_plans::size::format_size;
use forebay_plans::solve::{Batch, Goal, Piece, Problem, Way, solve};

use super::outlook::{Outlook, Seen};
use crate::engine::memory::{context, fixed_bytes};
use crate::error::Error;

/// Windows that are tried: reads in flight against memory for weights.
const WINDOWS: [usize; 3] = [STREAM_WINDOW / 2, STREAM_WINDOW, 2 * STREAM_WINDOW];
/// Batches that are tried.
const BATCHES: [usize; 5] = [8, 16, 32, 64, 128];
/// Of more cores than this, only some counts are tried.
const ALL_COUNTS: usize = 4;
/// Equal but for noise: the plan keeps what is usual unless another gains more than this part.
const WORTHWHILE: f64 = 0.02;
/// Steps by which memory grows until a wished speed is foretold.
const MEMORY_STEP: f64 = 1.03;
const MEMORY_STEPS: usize = 60;

/// What the user fixed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fixed {
    pub threads: Option<usize>,
    pub max_batch: Option<usize>,
    pub loading: Option<Loading>,
}

/// A decision with its reasons.
pub(crate) struct Decision {
    pub seen: Seen,
    pub reasons: Vec<Reason>,
}

/// How weights get to the cores in a way of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Route {
    /// All of them stay.
    Resident,
    /// Clusters are streamed.
    Streamed,
    /// Neurons are cached.
    Cached,
}

/// A way of the program with the choices that it stands for.
struct Candidate {
    route: Route,
    threads: usize,
    loading: Loading,
    window: usize,
}

/// The best choices within the outlook's memory.
///
/// # Errors
/// Not even the least of everything fits; the error names the items.
pub(crate) fn fastest(outlook: &Outlook<'_>, fixed: Fixed) -> Result<Decision, Error> {
    let usual = usual(outlook, fixed)?;
    let memory = outlook.request.total as f64;
    let (problem, candidates) = problem(outlook, fixed, usual.context);
    let mut best: Option<Seen> = None;
    let mut consider = |choices: Choices| {
        let Ok(seen) = outlook.see(choices) else {
            return;
        };
        let gained = |b: &Seen| seen.cost() < b.cost() * (1.0 - WORTHWHILE);
        if best.as_ref().is_none_or(gained) {
            best = Some(seen);
        }
    };
    consider(usual);
    match solve(&problem, Goal::Fastest { memory }) {
        Ok(choice) => {
            let candidate = &candidates[choice.way];
            let kept: f64 = match candidate.route {
                Route::Cached => choice.kept.iter().skip(1).sum(),
                _ => 0.0,
            };
            for neuron_cache_bytes in [0, kept as u64] {
                consider(Choices {
                    threads: candidate.threads,
                    loading: candidate.loading,
                    stream_window_bytes: candidate.window,
                    max_batch: problem.batches[choice.batch].tokens,
                    neuron_cache_bytes,
                    ..usual
                });
            }
        }
        // The program is a little pessimistic where everything just fits: the usual choices may still do.
        Err(PlanError::NoPlan { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    let Some(mut seen) = best else {
        // Names the item that does not fit.
        outlook.see(usual)?;
        return Err(Error::Stopped);
    };
    improve(outlook, fixed, &mut seen);
    let reasons = reasons(outlook, fixed, &seen);
    Ok(Decision { seen, reasons })
}

/// The least memory at which `tokens_per_second` are generated, and the choices for it.
///
/// # Errors
/// The machine is not that fast with any memory.
pub(crate) fn least_memory(
    outlook: &mut Outlook<'_>,
    fixed: Fixed,
    tokens_per_second: f64,
) -> Result<Decision, Error> {
    let goal = Goal::Least {
        token_seconds: 1.0 / tokens_per_second,
    };
    let positions = context(outlook.bundle, &outlook.request)?;
    let (problem, _) = problem(outlook, fixed, positions);
    let most = outlook.request.total;
    let mut total = solve(&problem, goal)?.memory;
    for _ in 0..MEMORY_STEPS {
        outlook.request.total = total as u64;
        match fastest(outlook, fixed) {
            Ok(decision)
                if decision.seen.expected.decode_tokens_per_second >= tokens_per_second * 0.999 =>
            {
                if total as u64 > most {
                    break;
                }
                return Ok(decision);
            }
            Ok(_) | Err(Error::Budget(_)) => total *= MEMORY_STEP,
            Err(e) => return Err(e),
        }
    }
    Err(Error::Request(format!(
        "{tokens_per_second} tokens per second would take about {}, more than the {} that there are; ask for less",
        format_size(total as u64),
        format_size(most)
    )))
}

/// What is done without a plan.
fn usual(outlook: &Outlook<'_>, fixed: Fixed) -> Result<Choices, Error> {
    let planned = crate::engine::memory::plan(outlook.bundle, &outlook.request)?;
    Ok(Choices {
        threads: outlook.request.threads,
        context: planned.context,
        max_batch: planned.max_batch,
        sparsity: outlook.request.sparsity,
        loading: fixed.loading.unwrap_or_default(),
        stream_window_bytes: STREAM_WINDOW,
        neuron_cache_bytes: 0,
    })
}

/// Thread counts to try.
fn counts(outlook: &Outlook<'_>, fixed: Fixed) -> Vec<usize> {
    let all = outlook.request.threads;
    match fixed.threads {
        Some(n) => vec![n],
        None if all <= ALL_COUNTS => (1..=all).collect(),
        None => vec![1, all / 2, all - 1, all],
    }
}

fn loadings(outlook: &Outlook<'_>, fixed: Fixed) -> Vec<Loading> {
    match fixed.loading {
        Some(loading) => vec![loading],
        // Without predictors Gate rows stay in memory, and there is nothing to split.
        None if outlook.request.sparsity == Sparsity::Predicted => {
            vec![Loading::Bundle, Loading::Split]
        }
        None => vec![Loading::Bundle],
    }
}

fn batches(fixed: Fixed, context: usize) -> Vec<usize> {
    match fixed.max_batch {
        Some(n) => vec![n],
        None => BATCHES.into_iter().map(|b| b.min(context)).collect(),
    }
}

/// The program, and what its ways stand for.
fn problem(outlook: &Outlook<'_>, fixed: Fixed, positions: usize) -> (Problem, Vec<Candidate>) {
    let request = outlook.request;
    let batches = batches(fixed, positions);
    let (others, least) = fixed_bytes(outlook.bundle, &request, positions, batches[0]);
    let work = outlook.work();
    let (mut ways, mut candidates) = (Vec::new(), Vec::new());
    let sparse = request.sparsity != Sparsity::Dense
        && outlook
            .bundle
            .meta
            .layers
            .iter()
            .all(|l| l.ffn.layout == forebay_models::bundle::FfnLayout::Neuron);
    for threads in counts(outlook, fixed) {
        let mut add = |route, loading, window: usize| {
            let rates = Rates {
                machine: outlook.machine,
                disk: outlook.disk,
                threads,
                depth: (window / (256 << 10)).max(1),
                window: window as f64,
            };
            ways.push(way(
                outlook,
                &rates,
                route,
                loading,
                window,
                rates.compute(&work).compute(),
            ));
            candidates.push(Candidate {
                route,
                threads,
                loading,
                window,
            });
        };
        add(Route::Resident, Loading::Bundle, STREAM_WINDOW);
        for window in WINDOWS {
            add(Route::Streamed, Loading::Bundle, window);
        }
        for loading in loadings(outlook, fixed).into_iter().filter(|_| sparse) {
            add(Route::Cached, loading, WINDOWS[0]);
        }
    }
    let rates = Rates {
        machine: outlook.machine,
        disk: outlook.disk,
        threads: request.threads,
        depth: 16,
        window: STREAM_WINDOW as f64,
    };
    let whole = all_pinned_bytes(outlook.bundle, request.sparsity) as f64;
    let flash = (whole - (request.total as f64 - others as f64)).max(0.0);
    let batches = batches.into_iter().map(|tokens| {
        let (_, scratch) = fixed_bytes(outlook.bundle, &request, positions, tokens);
        Batch {
            tokens,
            bytes: (scratch - least) as f64,
            seconds: rates.prompt(&work, tokens, (flash / (256 << 10) as f64, flash)),
        }
    });
    let problem = Problem {
        fixed: (others + least) as f64,
        ways,
        batches: batches.collect(),
    };
    (problem, candidates)
}

fn way(
    outlook: &Outlook<'_>,
    rates: &Rates<'_>,
    route: Route,
    loading: Loading,
    window: usize,
    compute_seconds: f64,
) -> Way {
    let whole = all_pinned_bytes(outlook.bundle, outlook.request.sparsity) as f64;
    let clusters = outlook.bundle.clusters.len() as f64;
    let streamed = |bytes: f64| Piece {
        bytes,
        stream_seconds: rates.stream(clusters * bytes / whole.max(1.0), bytes),
        io_seconds: 0.0,
    };
    let (bytes, pieces) = match route {
        Route::Resident => (whole, Vec::new()),
        Route::Streamed => (window as f64, vec![streamed(whole)]),
        Route::Cached => {
            let g = &outlook.bundle.meta.layers[0].ffn;
            let slot = match outlook.request.sparsity {
                Sparsity::Predicted => g.bundle_bytes(),
                _ => g.up_down_bytes(),
            } as f64;
            let neurons = outlook.neurons();
            let mut pieces = vec![streamed(
                (whole - neurons * g.bundle_stride() as f64).max(0.0),
            )];
            pieces.extend(segments(
                rates,
                outlook.curve(loading).samples(),
                neurons * slot,
            ));
            (window as f64, pieces)
        }
    };
    Way {
        bytes,
        compute_seconds,
        pieces,
    }
}

/// The miss curve as pieces of falling worth; a cache of everything takes `bytes`.
fn segments(rates: &Rates<'_>, samples: &[MissSample], bytes: f64) -> Vec<Piece> {
    let mut worth = f64::INFINITY;
    let pieces = samples.windows(2).map(|pair| {
        let saved = rates.neurons(pair[0].reads, pair[0].bytes)
            - rates.neurons(pair[1].reads, pair[1].bytes);
        let size = (pair[1].cached - pair[0].cached) * bytes;
        worth = worth.min(saved.max(0.0) / size.max(1.0));
        Piece {
            bytes: size,
            stream_seconds: 0.0,
            io_seconds: worth * size,
        }
    });
    pieces.collect()
}

/// Changes one choice at a time as long as that helps: the program knows the memory's layout only roughly.
fn improve(outlook: &Outlook<'_>, fixed: Fixed, seen: &mut Seen) {
    for _ in 0..8 {
        let others = neighbours(outlook, fixed, &seen.choices);
        let best = others
            .into_iter()
            .filter_map(|(_, choices)| outlook.see(choices).ok())
            .min_by(|a, b| a.cost().partial_cmp(&b.cost()).unwrap_or(Ordering::Equal));
        match best {
            Some(best) if best.cost() < seen.cost() * (1.0 - WORTHWHILE) => *seen = best,
            _ => return,
        }
    }
}

/// Choices that differ in one thing, with that thing's name.
fn neighbours(outlook: &Outlook<'_>, fixed: Fixed, of: &Choices) -> Vec<(&'static str, Choices)> {
    let mut list = Vec::new();
    for threads in counts(outlook, fixed) {
        list.push(("threads", Choices { threads, ..*of }));
    }
    for loading in loadings(outlook, fixed) {
        list.push(("loading", Choices { loading, ..*of }));
    }
    for stream_window_bytes in WINDOWS {
        list.push((
            "stream window",
            Choices {
                stream_window_bytes,
                ..*of
            },
        ));
    }
    for max_batch in batches(fixed, of.context) {
        list.push(("batch", Choices { max_batch, ..*of }));
    }
    for neuron_cache_bytes in [0, outlook.request.total / 8, outlook.request.total / 4] {
        list.push((
            "neurons before attention",
            Choices {
                neuron_cache_bytes,
                ..*of
            },
        ));
    }
    list.retain(|(_, choices)| choices != of);
    list
}

/// The value of a choice, as tables show it.
fn value(name: &str, choices: &Choices) -> String {
    match name {
        "threads" => choices.threads.to_string(),
        "loading" => format!("{:?}", choices.loading).to_lowercase(),
        "stream window" => format_size(choices.stream_window_bytes as u64),
        "batch" => choices.max_batch.to_string(),
        _ => format_size(choices.neuron_cache_bytes),
    }
}

/// What each decision beat; alternatives that change nothing are left out.
fn reasons(outlook: &Outlook<'_>, fixed: Fixed, seen: &Seen) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    for (name, choices) in neighbours(outlook, fixed, &seen.choices) {
        let other = outlook.see(choices).ok();
        let same = |o: &Seen| (o.cost() / seen.cost() - 1.0).abs() < 1e-3;
        if other.as_ref().is_some_and(same) {
            continue;
        }
        let other = Other {
            value: value(name, &choices),
            decode_tokens_per_second: other.as_ref().map(|o| o.expected.decode_tokens_per_second),
            prefill_tokens_per_second: other.as_ref().map(|o| o.expected.prefill_tokens_per_second),
        };
        match reasons.iter_mut().find(|r| r.choice == name) {
            Some(reason) => reason.others.push(other),
            None => reasons.push(Reason {
                choice: name.into(),
                taken: value(name, &seen.choices),
                others: vec![other],
            }),
        }
    }
    reasons
}
