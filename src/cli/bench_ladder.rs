//! `forebay bench ladder`, `forebay bench sweep` and `forebay bench percentiles`

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use forebay::bench::{LADDER, Point, Workload, measure_point};
use forebay::{Engine, Error, PolicyKind};
use forebay_plans::size::format_size;

use super::comparison_flags::ComparisonFlags;
use super::engine_flags::EngineFlags;
use super::numbers::count;
use super::output::{print_json, print_text, say};
use super::progress::reporter;

#[derive(Debug, Subcommand)]
pub enum Sparse {
    /// What each idea contributes: without bundles, with them, with a cache, with a pipeline.
    Ladder(Points),
    /// Speed by memory, from the minimum to the whole model.
    Sweep(Sweep),
    /// Time between tokens and misses: median, P90, P99.
    Percentiles(Points),
}

#[derive(Debug, Args)]
pub struct Points {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    comparison: ComparisonFlags,
    /// Tokens of the random prompt.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count::<1>)]
    prompt: usize,
    /// Tokens generated before anything is measured.
    #[arg(long, value_name = "N", default_value_t = 64)]
    warm_up: usize,
    /// Tokens in each measurement.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 64, value_parser = count::<2>)]
    tokens: usize,
    /// Measurements of each point.
    #[arg(long, short, value_name = "N", default_value_t = 3, value_parser = count::<1>)]
    repetitions: usize,
    /// Seed of the prompt and of the choice of tokens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct Sweep {
    #[command(flatten)]
    points: Points,
    /// Budgets to measure.
    #[arg(long = "points", value_name = "N", default_value_t = 10, value_parser = count::<1>)]
    budgets: usize,
}

impl Sparse {
    pub fn execute(self) -> anyhow::Result<()> {
        let (Self::Ladder(points) | Self::Percentiles(points) | Self::Sweep(Sweep { points, .. })) =
            &self;
        points.comparison.check(points.engine.device)?;
        let (points, measured) = match self {
            Self::Ladder(points) => {
                let measured = points.ladder()?;
                (points, measured)
            }
            Self::Percentiles(points) => {
                let measured = vec![points.measure("decode", |b| b)?];
                (points, measured)
            }
            Self::Sweep(sweep) => {
                let measured = sweep.measure()?;
                (sweep.points, measured)
            }
        };
        if points.json {
            return print_json(&serde_json::json!({
                "model": points.model.display().to_string(),
                "points": measured,
            }));
        }
        print_text(&table(&measured))
    }
}

impl Points {
    fn builder(&self) -> anyhow::Result<forebay::EngineBuilder> {
        let builder = Engine::builder().model(&self.model);
        let builder = self.comparison.configure(self.engine.configure(builder)?);
        Ok(builder.on_preparation(reporter(self.json)))
    }

    fn workload(&self) -> Workload {
        Workload {
            prompt: self.prompt,
            warm_up: self.warm_up,
            tokens: self.tokens,
            repetitions: self.repetitions,
            seed: self.seed,
        }
    }

    fn measure(
        &self,
        name: &str,
        shape: impl FnOnce(forebay::EngineBuilder) -> forebay::EngineBuilder,
    ) -> anyhow::Result<Point> {
        self.measure_with(name, self.workload(), shape)
    }

    fn measure_with(
        &self,
        name: &str,
        workload: Workload,
        shape: impl FnOnce(forebay::EngineBuilder) -> forebay::EngineBuilder,
    ) -> anyhow::Result<Point> {
        let point = measure_point(name, shape(self.builder()?), &workload)?;
        if !self.json {
            say(format_args!(
                "{name}: {:.2} tokens/s",
                point.tokens_per_second[0]
            ));
        }
        Ok(point)
    }

    fn ladder(&self) -> anyhow::Result<Vec<Point>> {
        if let Some(flag) = self.comparison.of_rungs() {
            bail!(
                "{flag} is what the rungs of the ladder differ in; leave it out, or use `forebay bench percentiles`"
            );
        }
        let rungs = LADDER.iter();
        rungs
            .map(|rung| {
                let mut workload = self.workload();
                if rung.options.policy == PolicyKind::NoCache {
                    // There is no cache to warm up, and every token takes equally long: seconds.
                    workload.warm_up = 0;
                    workload.tokens = (workload.tokens / 4).max(2);
                }
                self.measure_with(rung.name, workload, |b| rung.configure(b))
            })
            .collect()
    }
}

impl Sweep {
    /// Equal steps between the minimum budget and one that holds everything.
    fn measure(&self) -> anyhow::Result<Vec<Point>> {
        let whole = Engine::builder().model(&self.points.model);
        let whole = self.points.engine.configure(whole)?;
        let whole = self.points.comparison.configure(whole).context(2).build()?;
        let weights = whole.weight_bytes();
        drop(whole);
        let mut measured = Vec::new();
        for i in 1..=self.budgets {
            let share = i as f64 / self.budgets as f64;
            let bytes = (weights as f64 * share) as u64;
            let name = format!("{:.0}% of the weights", share * 100.0);
            match self
                .points
                .measure(&name, |builder| builder.weight_memory(bytes))
            {
                Ok(point) => measured.push(point),
                // Below the minimum memory there is nothing to measure.
                Err(error) if is_too_small(&error) => say(format_args!("{name}: {error:#}")),
                Err(error) => return Err(error).context(name),
            }
        }
        if measured.is_empty() {
            bail!("no budget of the sweep is large enough; give more memory or fewer threads");
        }
        Ok(measured)
    }
}

fn is_too_small(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Error>(),
        Some(Error::WeightMemory { .. } | Error::Budget(_))
    )
}

fn table(points: &[Point]) -> String {
    let mut text = String::from(
        "| | tokens/s | min | max | ms mean | P50 | P90 | P99 | misses % | P99 % | reads/token | \
         read/token | waiting for reads % | memory | logits |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for p in points {
        let [median, min, max] = p.tokens_per_second;
        let [mean, p50, p90, p99] = p.ms_between_tokens;
        let [misses, misses_p99] = p.miss_rate.map(|m| m * 100.0);
        text += &format!(
            "| {} | {median:.2} | {min:.2} | {max:.2} | {mean:.1} | {p50:.1} | {p90:.1} | {p99:.1} | \
             {misses:.1} | {misses_p99:.1} | {:.0} | {} | {:.0} | {} | {} |\n",
            p.name,
            p.reads_per_token,
            format_size(p.bytes_per_token as u64),
            p.io_wait * 100.0,
            format_size(p.peak_rss_bytes),
            p.logits_hash,
        );
    }
    text
}
