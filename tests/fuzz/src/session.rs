//! Trying inputs on one target, and what comes of it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::guard::guarded;
use crate::random::Random;
use crate::spelling::kind;
use crate::target::{Placed, Target};
use crate::watchdog::Watchdog;

/// Inputs that are kept for being refused in a new way.
const MOST_KEPT: usize = 2000;
/// Failures after which a session ends.
const MOST_FAILURES: usize = 20;

/// What an input may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longer is a hang: the process ends.
    pub hang: Duration,
    /// Bytes allocated at one time.
    pub memory: u64,
    /// Bytes of an input; longer ones are cut.
    pub input: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hang: Duration::from_secs(10),
            memory: 256 << 20,
            input: 64 << 10,
        }
    }
}

/// When a session ends.
#[derive(Clone, Copy, Debug)]
pub enum Effort {
    /// After so many inputs.
    Executions(u64),
    /// After so long.
    Time(Duration),
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Message and place of a panic, or what was exceeded.
    pub what: String,
    /// Where the input is kept.
    pub input: PathBuf,
}

/// What came of a session.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Inputs tried.
    pub executions: u64,
    /// Of them those that were not refused.
    pub accepted: u64,
    /// Ways of refusal.
    pub kinds: usize,
    /// The longest execution.
    pub slowest: Duration,
    /// Most bytes that an execution held at one time.
    pub largest: u64,
    /// The first of each kind of failure.
    pub failures: Vec<Failure>,
    /// How long it all took.
    pub elapsed: Duration,
}

/// One target being fuzzed.
pub struct Session<'a> {
    name: &'static str,
    target: &'a mut dyn Target,
    limits: Limits,
    /// Folder for inputs that fail.
    failures: &'a Path,
    input: Placed,
    watchdog: Watchdog,
    figures: Figures,
    kinds: HashSet<String>,
    failed: BTreeMap<String, PathBuf>,
}

impl<'a> Session<'a> {
    /// A session that keeps the current input in `folder`, where it is found if the process dies of it, and
    /// failing ones in `failures`.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn new(
        name: &'static str,
        target: &'a mut dyn Target,
        limits: Limits,
        folder: &Path,
        failures: &'a Path,
    ) -> Result<Self> {
        std::fs::create_dir_all(failures).context("make the folder of failing inputs")?;
        let input = Placed::new(folder, "input").context("make the file of the input")?;
        let kept = failures.join(format!("{name}-hang"));
        Ok(Self {
            watchdog: Watchdog::new(name.into(), input.path(), kept, limits.hang),
            name,
            target,
            limits,
            failures,
            input,
            figures: Figures::default(),
            kinds: HashSet::new(),
            failed: BTreeMap::new(),
        })
    }

    /// Tries the target's own inputs and mutations of them.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn fuzz(mut self, effort: Effort, seed: u64) -> Result<Figures> {
        let start = Instant::now();
        let mut corpus = self.target.seeds();
        let own = corpus.len();
        for input in corpus.clone() {
            self.execute(&input)?;
        }
        let mut random = Random::new(seed);
        while self.figures.failures.len() < MOST_FAILURES {
            let more = match effort {
                Effort::Executions(n) => self.figures.executions < n,
                Effort::Time(limit) => start.elapsed() < limit,
            };
            if !more {
                break;
            }
            // What was refused tends to be refused again: most inputs come from valid ones.
            let from = if random.one_in(4) { corpus.len() } else { own };
            let mut input = corpus[random.below(from)].clone();
            let other = random.pick(&corpus);
            self.target.mutate(&mut input, other, &mut random);
            input.truncate(self.limits.input);
            if self.execute(&input)? && corpus.len() < MOST_KEPT {
                corpus.push(input);
            }
        }
        self.figures.elapsed = start.elapsed();
        Ok(self.figures)
    }

    /// Tries one input.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn replay(mut self, input: &[u8]) -> Result<Figures> {
        self.execute(input)?;
        Ok(self.figures)
    }

    /// Whether the input was refused in a new way.
    fn execute(&mut self, input: &[u8]) -> Result<bool> {
        self.input.put(input, 0).context("write the input")?;
        self.figures.executions += 1;
        let (mut outcome, start) = (Ok(Ok(())), Instant::now());
        self.watchdog.begin();
        let memory = allocation_counter::measure(|| {
            outcome = guarded(|| self.target.run(input));
        });
        self.watchdog.end();
        self.figures.slowest = self.figures.slowest.max(start.elapsed());
        self.figures.largest = self.figures.largest.max(memory.bytes_max);
        let refusal = match outcome {
            Ok(refusal) => refusal,
            Err(panic) => {
                self.fail(panic, input)?;
                return Ok(false);
            }
        };
        if memory.bytes_max > self.limits.memory {
            let how = refusal
                .as_ref()
                .map_or_else(|e| kind(e), |()| "accepted".into());
            self.fail(
                format!("{} MiB allocated, then: {how}", memory.bytes_max >> 20),
                input,
            )?;
            return Ok(false);
        }
        match refusal {
            Ok(()) => {
                self.figures.accepted += 1;
                Ok(false)
            }
            Err(message) => {
                let new = self.kinds.insert(kind(&message));
                self.figures.kinds = self.kinds.len();
                Ok(new)
            }
        }
    }

    fn fail(&mut self, what: String, input: &[u8]) -> Result<()> {
        if self.failed.contains_key(&kind(&what)) {
            return Ok(());
        }
        let name = format!("{}-{:02}", self.name, self.failed.len());
        let path = self.failures.join(name);
        std::fs::write(&path, input).context("keep the input that fails")?;
        self.failed.insert(kind(&what), path.clone());
        self.figures.failures.push(Failure { what, input: path });
        Ok(())
    }
}
