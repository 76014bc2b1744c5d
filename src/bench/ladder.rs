//! What each idea of PowerInfer-2 contributes: the same model, files and kernels, with one more idea at each rung (the
//! paper's ablation); and speed by memory.

use forebay_models::sampler::SamplerConfig;
use forebay_plans::process::forget_peak;
use forebay_plans::residency::{Loading, Pipeline};
use forebay_stages::cache::PolicyKind;
use serde::Serialize;

use crate::NeuronOptions;
use crate::engine::{Engine, EngineBuilder};
use crate::error::Error;
use crate::request::Request;
use crate::speed::Spread;
use crate::stats::{PhaseStatistics, Statistics, percentile};

/// A way of running, with its name in tables.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub options: NeuronOptions,
}

const fn rung(
    name: &'static str,
    policy: PolicyKind,
    loading: Loading,
    pipeline: Pipeline,
) -> Rung {
    let options = NeuronOptions {
        policy,
        loading,
        pipeline,
        guesses: 0,
    };
    Rung { name, options }
}

impl Rung {
    /// Runs as the rung says, whatever a plan would choose.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        let NeuronOptions {
            loading, guesses, ..
        } = self.options;
        let builder = builder.neurons(self.options);
        builder.loading(loading).guess_layers(guesses)
    }
}

/// The paper's ablation, and LLM in a Flash beside it.
pub const LADDER: [Rung; 7] = {
    use Loading::{Bundle, Rows};
    use Pipeline::{Cluster, Matrix, None};
    use PolicyKind::{Frequency, NoCache, TwoQueue, Window};
    let window = Window(PolicyKind::DEFAULT_WINDOW);
    [
        rung("rows, no cache, blocking reads", NoCache, Rows, None),
        rung("+ bundles", NoCache, Bundle, None),
        rung("+ neuron cache", TwoQueue, Bundle, None),
        rung("+ overlap within a matrix", TwoQueue, Bundle, Matrix),
        rung("+ neuron-cluster pipeline", TwoQueue, Bundle, Cluster),
        rung(
            "+ frequency instead of two queues",
            Frequency,
            Bundle,
            Cluster,
        ),
        rung("LLM in a Flash", window, Bundle, None),
    ]
};

/// What is run at each point.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Random tokens in the prompt.
    pub prompt: usize,
    /// Tokens generated before anything is measured, to warm the cache up; one at least, with which the prompt is read.
    pub warm_up: usize,
    /// Tokens generated in each measurement.
    pub tokens: usize,
    /// Number of measurements.
    pub repetitions: usize,
    /// Seed of the prompt and of the choice of tokens.
    pub seed: u64,
}

impl Workload {
    /// Positions of the KV cache that it needs.
    pub fn context(&self) -> usize {
        self.prompt + self.warm_up.max(1) + self.tokens * self.repetitions
    }
}

/// What was measured at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The rung, or whatever distinguishes the point.
    pub name: String,
    /// The budget of the process, bytes.
    pub memory_budget_bytes: u64,
    /// Highest resident set size of the process since the point began, bytes; since the process did where the system
    /// does not let it begin anew.
    pub peak_rss_bytes: u64,
    /// Tokens per second: median, minimum and maximum of the measurements.
    pub tokens_per_second: [f64; 3],
    /// Time between tokens in ms: mean, P50, P90, P99 of the tokens of all measurements together.
    pub ms_between_tokens: [f64; 4],
    /// Part of the wanted neurons that was not in memory: of all measurements, and P99 over their tokens.
    pub miss_rate: [f64; 2],
    /// Reads per token.
    pub reads_per_token: f64,
    /// Bytes read per token.
    pub bytes_per_token: f64,
    /// Part of the cores' time spent waiting for reads.
    pub io_wait: f64,
    /// Hash of the last measurement's logits: the same at every point with the same workload.
    pub logits_hash: String,
}

/// Runs `workload` on the engine that `builder` makes.
///
/// # Errors
/// Those of building the engine and of generating.
pub fn measure_point(
    name: &str,
    builder: EngineBuilder,
    workload: &Workload,
) -> Result<Point, Error> {
    // The highest resident set size begins anew: an earlier point may have had more memory.
    forget_peak();
    // Every point begins with an empty cache, and takes a step for each token.
    let builder = builder.hot_set(false).drafts(false);
    let engine = builder.context(workload.context()).build()?;
    let mut session = engine.session();
    let vocabulary = engine.network().vocab_size as u64;
    let mut state = workload.seed;
    let prompt = (0..workload.prompt).map(|_| {
        // Any spread of tokens will do; this one is Knuth's generator.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) % vocabulary) as u32
    });
    let mut prompt: Vec<u32> = prompt.collect();
    let mut generate = |n: usize| -> Result<Statistics, Error> {
        let mut sampler = SamplerConfig::default();
        (sampler.temperature, sampler.seed) = (1.0, workload.seed);
        let request = Request::tokens(std::mem::take(&mut prompt)).max_tokens(n);
        let stream = session.generate(request.ignore_eog(true).sampler(sampler))?;
        Ok(stream.finish()?.1)
    };
    generate(workload.warm_up.max(1))?;
    let runs = (0..workload.repetitions)
        .map(|_| generate(workload.tokens))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(point(name, &engine, &runs))
}

fn point(name: &str, engine: &Engine, runs: &[Statistics]) -> Point {
    let speeds: Vec<f64> = runs.iter().map(|r| r.decode.tokens_per_second).collect();
    let speed = Spread::of(&speeds);
    let mean = |of: &dyn Fn(&Statistics) -> f64| {
        runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64
    };
    let tokens = runs.iter().map(|r| r.decode.tokens).sum();
    let mut ns: Vec<u64> = runs.iter().flat_map(|r| &r.steps.ns).copied().collect();
    let decode = PhaseStatistics::of(tokens, &mut ns);
    let rates = runs.iter().flat_map(|r| &r.steps.miss_rates);
    let mut rates: Vec<f64> = rates.copied().collect();
    rates.sort_unstable_by(f64::total_cmp);
    let steps = |r: &Statistics| (r.decode.tokens + r.prefill.tokens.min(1)).max(1) as f64;
    let misses: u64 = runs.iter().map(|r| r.cache.misses).sum();
    let wanted: u64 = runs.iter().map(|r| r.cache.misses + r.cache.hits).sum();
    Point {
        name: name.into(),
        memory_budget_bytes: engine.budget().total_bytes(),
        peak_rss_bytes: runs.last().map_or(0, |r| r.memory.peak_rss_bytes),
        tokens_per_second: [speed.median, speed.min, speed.max],
        ms_between_tokens: [
            1e3 * decode.seconds / decode.tokens.max(1) as f64,
            decode.ms_p50,
            decode.ms_p90,
            decode.ms_p99,
        ],
        miss_rate: [
            misses as f64 / wanted.max(1) as f64,
            percentile(&rates, 0.99),
        ],
        reads_per_token: mean(&|r| r.io.reads as f64 / steps(r)),
        bytes_per_token: mean(&|r| r.io.bytes as f64 / steps(r)),
        io_wait: mean(&|r| r.bubbles.wait_io_gate + r.bubbles.wait_io_updown),
        logits_hash: runs
            .last()
            .map_or_else(String::new, |r| r.logits_hash.clone()),
    }
}
