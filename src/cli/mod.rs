//! Commands and their flags, one file each.

mod again;
mod arguments;
mod bench;
mod bench_ladder;
mod cache;
mod chat;
mod chat_flags;
mod comparison_flags;
mod completions;
mod context_flag;
mod device_flag;
mod doctor;
#[cfg(feature = "gpu")]
mod doctor_devices;
mod draft_flags;
mod engine_flags;
mod eval;
mod expert_flags;
mod follow;
mod hot;
mod inspect;
mod learn;
mod llama_cpp;
mod model_argument;
mod numbers;
pub mod output;
mod pack;
mod plan;
mod profile;
mod progress;
mod remedy;
mod routing_table;
mod run;
mod sampling;
pub mod stopping;
mod synth;
mod text;
mod tokenize;
mod trace;

use clap::{Parser, Subcommand};

pub use again::start_again_after;
pub use follow::Interrupted;
pub use remedy::message_of;

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
    /// Talk with a model.
    Chat(Box<chat::Chat>),
    /// Convert a model into a packed file; `run` does this automatically.
    Pack(pack::Pack),
    /// Show a model's architecture, tensors and sizes.
    Inspect(inspect::Inspect),
    /// Show the tokens of a text.
    Tokenize(tokenize::Tokenize),
    /// Measure the speed of prompts and of generation against the machine's limits.
    Bench(Box<bench::Bench>),
    /// Measure a model's quality.
    #[command(subcommand)]
    Eval(eval::Eval),
    /// List and remove packed models.
    #[command(subcommand)]
    Cache(cache::Cache),
    /// Fit activation predictors to a ReLU model and store them with its packed form.
    FitPredictor(Box<learn::FitPredictor>),
    /// Measure how large gates are, for --sparsity threshold, and store it with the packed model.
    Calibrate(Box<learn::Calibrate>),
    /// Count which neurons a text wants, and how many a cache of each size misses.
    Profile(Box<profile::ProfileCommand>),
    /// Measure the machine, decide what goes where, and predict the speed, with reasons.
    Plan(Box<plan::PlanCommand>),
    /// Examine this machine: cores, memory, disk, limits, with remedies.
    Doctor(doctor::Doctor),
    /// Make a model of a real shape with planted sparsity, for measuring speed; its output is meaningless.
    Synth(synth::Synth),
    /// Work with recorded traces.
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Print a script with which a shell completes commands and options.
    Completions(completions::Completions),
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => run::Run::demo().execute(),
        Some(Command::Run(run)) => run.execute(),
        Some(Command::Chat(chat)) => chat.execute(),
        Some(Command::Pack(pack)) => pack.execute(),
        Some(Command::Inspect(inspect)) => inspect.execute(),
        Some(Command::Tokenize(tokenize)) => tokenize.execute(),
        Some(Command::Bench(bench)) => bench.execute(),
        Some(Command::Eval(eval)) => eval.execute(),
        Some(Command::Cache(cache)) => cache.execute(),
        Some(Command::FitPredictor(fit)) => fit.execute(),
        Some(Command::Calibrate(calibrate)) => calibrate.execute(),
        Some(Command::Profile(profile)) => profile.execute(),
        Some(Command::Plan(plan)) => plan.execute(),
        Some(Command::Doctor(doctor)) => doctor.execute(),
        Some(Command::Synth(synth)) => synth.execute(),
        Some(Command::Trace(trace)) => trace.execute(),
        Some(Command::Completions(completions)) => completions.execute(),
    }
}
