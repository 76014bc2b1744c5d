//! Commands and their flags, one file each.

mod bench;
mod bench_ladder;
mod bench_trace;
mod doctor;
mod engine_flags;
mod eval;
mod inspect;
mod learn;
pub mod output;
mod pack;
mod plan;
mod profile;
mod progress;
mod run;
mod sampling;
mod synth;
mod text;
mod trace;

use clap::{Parser, Subcommand};

/// Runs language models larger than memory, fast, from flash storage.
///
/// Without a command, the embedded demo model tells a story.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate text.
    Run(Box<run::Run>),
    /// Convert a model into a packed file; `run` does it by itself once.
    Pack(pack::Pack),
    /// Show a model's architecture, tensors and sizes.
    Inspect(inspect::Inspect),
    /// Measure the speed of prompts and of generation against what the machine could do.
    Bench(Box<bench::Bench>),
    /// Measure a model's quality.
    #[command(subcommand)]
    Eval(eval::Eval),
    /// Fit activation predictors to a ReLU model and store them with its packed form.
    FitPredictor(Box<learn::FitPredictor>),
    /// Measure how large gates are, for --sparsity threshold, and store it with the packed model.
    Calibrate(Box<learn::Calibrate>),
    /// Count which neurons a text wants, and how many a cache of each size misses
    Profile(Box<profile::ProfileCommand>),
    /// Measure the machine, decide what goes where, and say how fast that will be and why
    Plan(Box<plan::PlanCommand>),
    /// Examine this machine: cores, memory, disk, limits, with remedies.
    Doctor(doctor::Doctor),
    /// Make a model of a real shape with planted sparsity, for measuring speed: it speaks nonsense.
    Synth(synth::Synth),
    /// Work with recorded traces.
    #[command(subcommand)]
    Trace(trace::Trace),
}

/// Runs the command that was asked for.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => run::Run::demo().execute(),
        Some(Command::Run(run)) => run.execute(),
        Some(Command::Pack(pack)) => pack.execute(),
        Some(Command::Inspect(inspect)) => inspect.execute(),
        Some(Command::Bench(bench)) => bench.execute(),
        Some(Command::Eval(eval)) => eval.execute(),
        Some(Command::FitPredictor(fit)) => fit.execute(),
        Some(Command::Calibrate(calibrate)) => calibrate.execute(),
        Some(Command::Profile(profile)) => profile.execute(),
        Some(Command::Plan(plan)) => plan.execute(),
        Some(Command::Doctor(doctor)) => doctor.execute(),
        Some(Command::Synth(synth)) => synth.execute(),
        Some(Command::Trace(trace)) => trace.execute(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        super::Arguments::command().debug_assert();
    }
}
