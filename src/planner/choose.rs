//! Decides: every choice that is worth trying is laid out and predicted, the best is taken, and the plan lists what it
//! beat.

use std::fmt;

use forebay_models::bundle::FfnLayout;
use forebay_plans::error::PlanError;
use forebay_plans::plan::{Choices, Other, Reason};
use forebay_plans::residency::{Loading, STREAM_WINDOW, Sparsity};
use forebay_plans::size::format_size;

use super::outlook::{Outlook, Seen, has_gates_first};
use crate::error::Error;
use crate::memory::{MemoryRequest, plan};

/// Stream windows that are tried, the default first: reads in flight against memory for weights. Where nearly
/// everything fits, it is the window that keeps the rest out, so narrow ones come last.
const WINDOWS: [usize; 5] = [
    STREAM_WINDOW,
    STREAM_WINDOW / 2,
    2 * STREAM_WINDOW,
    STREAM_WINDOW / 4,
    STREAM_WINDOW / 8,
];
/// The narrow ones are slow, so they are tried only where a token reads at most so much with the default one: else what
/// they leave to weights is a small part of it.
const NARROW_READS: f64 = 5.0 * STREAM_WINDOW as f64;
/// Batches that are tried.
const BATCHES: [usize; 9] = [8, 16, 24, 32, 48, 56, 64, 96, 128];
/// The same of models with experts: each is read once per batch, and a token uses few of them.
const EXPERT_BATCHES: [usize; 3] = [256, 512, 1024];
/// Shares of the budget, in eighths, that are tried for neurons before attention.
const CACHE_EIGHTHS: [u64; 5] = [0, 1, 2, 4, 6];
/// Numbers of cores that are tried, besides all and all but one.
const THREADS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Gains up to this part are noise: the plan keeps the default unless another choice gains more.
pub(super) const WORTHWHILE: f64 = 0.02;
/// A wish counts as granted from this part of it on.
pub(super) const NEARLY: f64 = 0.999;
/// More memory than any model takes.
const UNLIMITED: u64 = 1 << 50;
/// Equal steps of memory that are tried before the minimum is searched within one of them.
const MEMORY_STEPS: u64 = 4;
/// The least memory is found to this part of it.
pub(super) const MEMORY_PRECISION: u64 = 256;

/// What the user fixed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fixed {
    pub threads: Option<usize>,
    pub max_batch: Option<usize>,
    pub loading: Option<Loading>,
    pub guessed_layers: Option<usize>,
}

/// The wish for which the minimum memory is searched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// At least this many generated tokens per second.
    Speed(f64),
    /// At most this [`Seen::cost`], seconds.
    Cost(f64),
}

impl Wish {
    fn is_granted(self, seen: &Seen) -> bool {
        match self {
            Self::Speed(speed) => seen.expected.decode_tokens_per_second >= speed * NEARLY,
            Self::Cost(seconds) => seen.cost() * NEARLY <= seconds,
        }
    }

    fn tokens_per_second(self) -> f64 {
        match self {
            Self::Speed(speed) => speed,
            Self::Cost(seconds) => 1.0 / seconds,
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Speed(speed) => write!(f, "{speed:.1} tokens per second"),
            Self::Cost(seconds) => write!(f, "{:.1} ms per token", seconds * 1e3),
        }
    }
}

/// A decision with its reasons.
pub(crate) struct Decision {
    /// Budget of the process that it is for, bytes.
    pub memory_bytes: u64,
    pub seen: Seen,
    pub reasons: Vec<Reason>,
}

/// The best choices within the outlook's memory.
///
/// # Errors
/// Not even the minimum fits; the error names the items.
pub(crate) fn fastest(outlook: &Outlook<'_>, fixed: Fixed) -> Result<Decision, Error> {
    let grid = Grid::of(outlook, fixed)?;
    let seen = match grid.best(outlook, |_| true) {
        Some(seen) => seen,
        None => outlook.see(grid.usual)?,
    };
    Ok(Decision {
        memory_bytes: outlook.request.total,
        reasons: grid.reasons(outlook, &seen),
        seen,
    })
}

/// The minimum memory with which `wish` is granted, and the choices for it.
///
/// # Errors
/// No memory grants the wish, or only more than the outlook's.
pub(crate) fn least_memory(
    outlook: &Outlook<'_>,
    fixed: Fixed,
    wish: Wish,
) -> Result<Decision, Error> {
    let enough = |total: u64| {
        let outlook = outlook.within(total);
        match Grid::of(&outlook, fixed) {
            Ok(grid) => Ok(grid.best(&outlook, |seen| wish.is_granted(seen))),
            Err(Error::Budget(_)) => Ok(None),
            Err(e) => Err(e),
        }
    };
    let Some(mut seen) = enough(UNLIMITED)? else {
        return Err(Error::Plan(PlanError::NoPlan {
            why: format!(
                "no choice gives {wish}, even with all weights in memory; ask for a lower --speed"
            ),
        }));
    };
    let mut high: u64 = seen.expected.memory_items.values().sum();
    if outlook.request.total < high
        && let Some(found) = enough(outlook.request.total)?
    {
        (high, seen) = (outlook.request.total, found);
    }
    // Speed does not always grow with memory, since more memory may also mean a longer context. So the first coarse
    // step that is enough is taken, and the search is between it and the one before.
    let (mut low, step) = (0, high / MEMORY_STEPS);
    for total in (1..MEMORY_STEPS).map(|n| n * step) {
        if let Some(found) = enough(total)? {
            (high, seen) = (total, found);
            break;
        }
        low = total;
    }
    while high - low > high / MEMORY_PRECISION {
        let total = low + (high - low) / 2;
        match enough(total)? {
            Some(found) => (high, seen) = (total, found),
            None => low = total,
        }
    }
    if high > outlook.request.total {
        return Err(Error::SpeedOutOfReach {
            tokens_per_second: wish.tokens_per_second(),
            needed: high,
            available: outlook.request.total,
        });
    }
    let outlook = outlook.within(high);
    Ok(Decision {
        memory_bytes: high,
        reasons: Grid::of(&outlook, fixed)?.reasons(&outlook, &seen),
        seen,
    })
}

/// The choices that are tried: all combinations of these values.
struct Grid {
    /// The choices without a plan; their values are in the lists.
    usual: Choices,
    threads: Vec<usize>,
    loadings: Vec<Loading>,
    /// The default first.
    windows: Vec<usize>,
    batches: Vec<usize>,
    guesses: Vec<usize>,
    caches: Vec<u64>,
}

impl Grid {
    /// # Errors
    /// The defaults do not fit, even at their smallest.
    fn of(outlook: &Outlook<'_>, fixed: Fixed) -> Result<Self, Error> {
        let request = MemoryRequest {
            threads: fixed.threads.unwrap_or(outlook.request.threads),
            ..outlook.request
        };
        let planned = plan(outlook.bundle, &request)?;
        let usual = Choices {
            threads: request.threads,
            context: planned.context,
            max_batch: planned.max_batch,
            sparsity: request.sparsity,
            loading: fixed.loading.unwrap_or_default(),
            guessed_layers: fixed.guessed_layers.unwrap_or(outlook.guessable().min(1)),
            stream_window_bytes: STREAM_WINDOW,
            neuron_cache_bytes: 0,
            sequential_gain: outlook.sequential_gain(),
        };
        let meta = &outlook.bundle.meta;
        let by_neuron = request.sparsity != Sparsity::Dense
            && !meta.has_experts()
            && meta.geometries().all(|ffn| ffn.layout == FfnLayout::Neuron);
        let threads = match fixed.threads {
            Some(n) => vec![n],
            None => {
                let all = request.threads;
                let some = THREADS.into_iter().filter(|&n| n + 1 < all);
                some.chain([all - 1, all]).filter(|&n| n > 0).collect()
            }
        };
        let loadings = match fixed.loading {
            Some(loading) => vec![loading],
            // Without predictors, Gate rows stay in memory, and there is nothing to split but experts.
            None if request.sparsity == Sparsity::Dense => vec![Loading::Bundle],
            None if request.sparsity != Sparsity::Predicted && !has_gates_first(outlook.bundle) => {
                vec![Loading::Bundle]
            }
            None => vec![Loading::Bundle, Loading::Split],
        };
        let mut batches = vec![usual.max_batch];
        if fixed.max_batch.is_none() {
            batches.extend(BATCHES.map(|b| b.min(usual.context)));
            if outlook.bundle.meta.has_experts() {
                batches.extend(EXPERT_BATCHES.map(|b| b.min(usual.context)));
            }
        }
        batches.sort_unstable();
        batches.dedup();
        let guesses = match fixed.guessed_layers {
            Some(n) => vec![n],
            None => (0..=outlook.guessable()).collect(),
        };
        let shares = if by_neuron { &CACHE_EIGHTHS[..] } else { &[0] };
        let caches = shares.iter().map(|n| request.total / 8 * n);
        Ok(Self {
            usual,
            threads,
            loadings,
            windows: WINDOWS.to_vec(),
            batches,
            guesses,
            caches: caches.collect(),
        })
    }

    /// The best of the choices that `granted` accepts and that still fit when the plan is carried out; `None` if there
    /// are none.
    fn best(&self, outlook: &Outlook<'_>, granted: impl Fn(&Seen) -> bool) -> Option<Seen> {
        let mut all = Vec::new();
        for &threads in &self.threads {
            for &max_batch in &self.batches {
                let of = Choices {
                    threads,
                    max_batch,
                    ..self.usual
                };
                self.see_memory(outlook, &of, &mut all);
            }
        }
        all.retain(granted);
        let larger = outlook.with_larger_process();
        loop {
            let best = self.best_of(&all)?;
            if larger.layout(&all[best].choices).is_ok() {
                return Some(all.swap_remove(best));
            }
            all.swap_remove(best);
        }
    }

    /// The place of the best of `all`, or of the default if that is there and as good except for noise.
    fn best_of(&self, all: &[Seen]) -> Option<usize> {
        let cost = all.iter().map(Seen::cost).min_by(f64::total_cmp)?;
        let good = |&n: &usize| all[n].cost() * (1.0 - WORTHWHILE) <= cost;
        (0..all.len()).filter(good).min_by(|&a, &b| {
            let (a, b) = (&all[a], &all[b]);
            let other = |s: &Seen| s.choices != self.usual;
            other(a).cmp(&other(b)).then(a.cost().total_cmp(&b.cost()))
        })
    }

    /// Adds those choices that are like `of` with another use of memory, and that fit. Values that change nothing are
    /// omitted.
    fn see_memory(&self, outlook: &Outlook<'_>, of: &Choices, all: &mut Vec<Seen>) {
        // Bytes that neurons got last: if attention left them more than was requested, requesting that changes nothing.
        let mut got = 0;
        for &neuron_cache_bytes in &self.caches {
            if neuron_cache_bytes > 0 && neuron_cache_bytes <= got {
                continue;
            }
            got = u64::MAX;
            let mut read = 0.0_f64;
            for &stream_window_bytes in &self.windows {
                if stream_window_bytes < STREAM_WINDOW / 2 && read > NARROW_READS {
                    continue;
                }
                let choices = Choices {
                    stream_window_bytes,
                    neuron_cache_bytes,
                    ..*of
                };
                let Ok(memory) = outlook.layout(&choices) else {
                    continue;
                };
                let plan = &memory.residency;
                let guesses = match plan.expert_cache.cells {
                    // Nothing can be guessed: the default, so that the usual choices are one of those compared.
                    0 => std::slice::from_ref(&self.usual.guessed_layers),
                    _ => &self.guesses[..],
                };
                for &loading in &self.loadings {
                    for &guessed_layers in guesses {
                        let choices = Choices {
                            loading,
                            guessed_layers,
                            ..choices
                        };
                        let seen = outlook.predict(choices, &memory);
                        if stream_window_bytes == STREAM_WINDOW {
                            read = read.max(seen.expected.bytes_per_token);
                        }
                        all.push(seen);
                    }
                }
                let cache = choices.threads * plan.neuron_cache.bytes_per_core();
                got = got.min(cache as u64);
                match (plan.stream_slots, plan.neuron_cache.slots) {
                    // Nothing is read.
                    (0, 0) => return,
                    // Nothing is streamed.
                    (0, _) => break,
                    _ => {}
                }
            }
        }
    }

    /// Choices that differ in one value, with its name.
    fn neighbours(&self, of: &Choices) -> Vec<(&'static str, Choices)> {
        let mut list = Vec::new();
        for &threads in &self.threads {
            list.push(("threads", Choices { threads, ..*of }));
        }
        for &loading in &self.loadings {
            list.push(("loading", Choices { loading, ..*of }));
        }
        let mut windows = self.windows.clone();
        windows.sort_unstable();
        for stream_window_bytes in windows {
            let other = Choices {
                stream_window_bytes,
                ..*of
            };
            list.push(("stream window", other));
        }
        for &max_batch in &self.batches {
            list.push(("batch", Choices { max_batch, ..*of }));
        }
        for &guessed_layers in &self.guesses {
            let other = Choices {
                guessed_layers,
                ..*of
            };
            list.push(("guessed layers", other));
        }
        for &neuron_cache_bytes in &self.caches {
            let other = Choices {
                neuron_cache_bytes,
                ..*of
            };
            list.push(("neurons before attention", other));
        }
        list.retain(|(_, choices)| choices != of);
        list
    }

    /// What each decision beat; alternatives that change nothing are omitted.
    fn reasons(&self, outlook: &Outlook<'_>, seen: &Seen) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = Vec::new();
        for (name, choices) in self.neighbours(&seen.choices) {
            let other = outlook.see(choices).ok();
            let same = |o: &Seen| (o.cost() / seen.cost() - 1.0).abs() < 1e-3;
            if other.as_ref().is_some_and(same) {
                continue;
            }
            let expected = other.map(|o| o.expected);
            let other = Other {
                value: value(name, &choices),
                decode_tokens_per_second: expected.as_ref().map(|e| e.decode_tokens_per_second),
                prefill_tokens_per_second: expected.as_ref().map(|e| e.prefill_tokens_per_second),
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
}

/// The value of a choice as tables show it.
fn value(name: &str, choices: &Choices) -> String {
    match name {
        "threads" => choices.threads.to_string(),
        "loading" => format!("{:?}", choices.loading).to_lowercase(),
        "stream window" => format_size(choices.stream_window_bytes as u64),
        "batch" => choices.max_batch.to_string(),
        "guessed layers" => choices.guessed_layers.to_string(),
        _ => format_size(choices.neuron_cache_bytes),
    }
}
