//! `forebay-fuzz`: tries mutated inputs for as long as asked and says what came of it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use forebay_fuzz::session::{Effort, Failure, Figures, Limits, Session};
use forebay_fuzz::targets::{Make, TARGETS};

/// Tries mutated inputs on everything that reads what others wrote.
#[derive(Debug, Parser)]
struct Arguments {
    /// A target, or all of them.
    #[arg(default_value = "all")]
    target: String,
    /// Seconds per target [default: 10].
    #[arg(long, conflicts_with = "executions")]
    seconds: Option<u64>,
    /// Inputs per target.
    #[arg(long)]
    executions: Option<u64>,
    /// The same seed and executions give the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tries only this input, for instance one that failed.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Folder for inputs that fail.
    #[arg(long, value_name = "FOLDER", default_value = "target/fuzz-failures")]
    failures: PathBuf,
    /// Bytes that an input may hold at one time, in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
    /// Seconds after which an input counts as a hang.
    #[arg(long, default_value_t = 10)]
    hang_seconds: u64,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let all = arguments.target == "all";
    let chosen: Vec<_> = TARGETS
        .iter()
        .filter(|(name, _)| all || *name == arguments.target)
        .collect();
    if chosen.is_empty() {
        let names = TARGETS.map(|(name, _)| name).join(", ");
        bail!(
            "no target {:?}; there are {names} and all",
            arguments.target
        );
    }
    if arguments.input.is_some() && all {
        bail!("--input needs the target that it is for");
    }
    println!(
        "{:<15} {:>11} {:>9} {:>7} {:>9} {:>10} {:>10}",
        "target", "executions", "accepted", "kinds", "seconds", "slowest", "largest"
    );
    let mut failures = Vec::new();
    for &&(name, make) in &chosen {
        let figures = run(name, make, &arguments)?;
        print(name, &figures);
        failures.extend(figures.failures.into_iter().map(|f| (name, f)));
    }
    for (name, Failure { what, input }) in &failures {
        println!("\n{name}: {what}");
        println!(
            "  try it again with: forebay-fuzz {name} --input {}",
            input.display()
        );
    }
    println!("\nseed {}: {} failures", arguments.seed, failures.len());
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

fn run(name: &'static str, make: Make, arguments: &Arguments) -> Result<Figures> {
    let folder = forebay_fuzz::target::scratch()?;
    let mut target = make(folder.path()).with_context(|| format!("prepare {name}"))?;
    let limits = Limits {
        hang: Duration::from_secs(arguments.hang_seconds),
        memory: arguments.memory_mib << 20,
        ..Limits::default()
    };
    let session = Session::new(
        name,
        &mut *target,
        limits,
        folder.path(),
        &arguments.failures,
    )?;
    if let Some(path) = &arguments.input {
        let input = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        return session.replay(&input);
    }
    let effort = match arguments.executions {
        Some(n) => Effort::Executions(n),
        None => Effort::Time(Duration::from_secs(arguments.seconds.unwrap_or(10))),
    };
    session.fuzz(effort, arguments.seed)
}

fn print(name: &str, figures: &Figures) {
    println!(
        "{name:<15} {:>11} {:>9} {:>7} {:>9.1} {:>7.1} ms {:>6.1} MiB",
        figures.executions,
        figures.accepted,
        figures.kinds,
        figures.elapsed.as_secs_f64(),
        figures.slowest.as_secs_f64() * 1e3,
        figures.largest as f64 / 1048576.0
    );
}
