//! An engine that runs, to those who use it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use forebay_models::files::write_output;
use forebay_models::network::Network;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::budget::Budget;
use forebay_plans::plan::Expected;
use forebay_stages::kernels::Isa;
use forebay_traces::chrome::write_chrome;
use forebay_traces::lane::TraceLane;

use super::facts::Facts;
use super::session::Session;
use super::thread::bench::BenchJob;
use super::thread::decoded::{DecodeJob, Decoded, Row};
use super::thread::job::Job;
use super::thread::jobs::Jobs;
use super::thread::score::{LogitsJob, Perplexity, ScoreJob, chunks_to_score};
use crate::chat::Transcript;
use crate::error::Error;
use crate::in_force::PlanInForce;
use crate::speed::{BenchTest, TestReport};

/// A model ready to generate, within its budget. It runs one generation at a time, in the order of requests; one whose
/// reader falls behind pauses while others wait. Statistics of a paused generation include what ran in between.
/// Dropping the engine ends running generations with [`Error::Stopped`]. It blocks until the step under way is over,
/// which is a batch where a prompt is read: in an async program, drop it where blocking is allowed
/// (`tokio::task::spawn_blocking`). If the engine's thread panics, running, waiting and later requests
/// fail with [`Error::EngineFailed`].
#[derive(Debug)]
pub struct Engine {
    pub(super) facts: Arc<Facts>,
    pub(super) jobs: Jobs,
    pub(super) thread: Option<JoinHandle<Vec<TraceLane>>>,
    pub(super) stopping: Arc<AtomicBool>,
}

impl Engine {
    /// The model as the caller named it, or the demo model's name.
    pub fn model(&self) -> &str {
        &self.facts.model
    }

    /// The model's description.
    pub fn network(&self) -> &Network {
        &self.facts.network
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.facts.tokenizer
    }

    /// The itemised memory budget in force.
    pub fn budget(&self) -> Budget {
        self.facts.budget.now()
    }

    /// The minimum budget in bytes that [`Engine::set_budget`] can reach: a device that shares the memory has no
    /// weights then, the neuron cache is smaller, pinned FFN clusters are streamed, and everything else stays.
    pub fn least_budget(&self) -> u64 {
        self.facts.budget.least()
    }

    /// Changes the budget of the process to `bytes`: less, or again as much as it was at the start. It is in force
    /// between two steps, so within the time of a token, and at once if nothing is generated; [`Engine::budget`] says
    /// when. Copies of weights on a device that shares the memory go first, and the cores compute these; then the
    /// neuron cache gives way, then FFN clusters that were pinned, which are streamed until the budget grows; their
    /// memory goes back to the system. Nothing that is generated depends on it.
    ///
    /// # Errors
    /// Less than [`Engine::least_budget`], which the message names; more than at the start; or the engine has stopped.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        self.facts.budget.ask(bytes)?;
        self.jobs.send(Job::Budget)
    }

    /// The plan in force.
    pub fn plan(&self) -> &PlanInForce {
        &self.facts.plan
    }

    /// The predicted speed, if there is a plan.
    pub fn expected(&self) -> Option<&Expected> {
        self.facts.plan.expected.as_ref()
    }

    /// Positions of the KV cache.
    pub fn context(&self) -> usize {
        self.facts.plan.context
    }

    /// Compute threads.
    pub fn threads(&self) -> usize {
        self.facts.cores.len()
    }

    /// Instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.facts.plan.isa
    }

    /// The packed file that is being run.
    pub fn bundle_path(&self) -> &Path {
        &self.facts.bundle_path
    }

    /// Size of the packed file in bytes.
    pub fn bundle_bytes(&self) -> u64 {
        self.facts.bundle_bytes
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.facts.weight_bytes
    }

    /// What the system did not provide (huge pages, pinning, direct I/O), for diagnosing speed.
    pub fn notes(&self) -> &[String] {
        &self.facts.plan.notes
    }

    /// Why the device is no longer used, if it has failed since the engine was built: the cores go on without it.
    pub fn device_problem(&self) -> Option<String> {
        let device = self.facts.device.as_ref()?;
        device.account.cause().map(|fault| fault.to_string())
    }

    /// A new conversation. Its history stays with it; the KV cache belongs to whichever session ran last,
    /// so switching between sessions costs reading the history again.
    pub fn session(&self) -> Session {
        Session {
            facts: Arc::clone(&self.facts),
            jobs: self.jobs.clone(),
            history: Arc::default(),
            transcript: Transcript::default(),
        }
    }

    /// The logits of the given `tokens` at every position from `first` onwards: `each` is called with the position and
    /// a row of `[vocab_size]`, which scores the token after that position. The tokens are taken as they are, from an
    /// empty context, in steps of as many positions as there is [room](super::EngineBuilder::max_logits) for; the rows
    /// do not depend on that. The engine waits for `each`, which therefore cannot use it.
    ///
    /// # Errors
    /// No tokens, more than the context holds, one outside the vocabulary, a `first` beyond them, or a fault.
    pub fn logits(
        &self,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check_positions(tokens, first)?;
        // One row ahead: the next step runs while the caller looks at this one's last row.
        let (rows, answer) = flume::bounded(1);
        let job = LogitsJob {
            tokens: tokens.to_vec(),
            first,
            rows,
        };
        self.jobs.send(Job::Logits(Box::new(job)))?;
        let mut missing = tokens.len() - first;
        for row in answer {
            let (position, logits) = row?;
            self.jobs.while_waiting(|| each(position, &logits));
            missing -= 1;
        }
        match missing {
            0 => Ok(()),
            _ => Err(self.jobs.ended()),
        }
    }

    /// As [`Self::logits`], but only the tokens before `first` are run as a prompt; the others one by one, as if they
    /// had been generated. Unless the engine may leave out or prefer experts, the logits are the same.
    ///
    /// # Errors
    /// As [`Self::logits`]'s.
    pub fn decoded_logits(
        &self,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<Decoded, Error> {
        self.check_positions(tokens, first)?;
        // One row ahead: the next step runs while the caller looks at this one's.
        let (said, answer) = flume::bounded(1);
        let job = DecodeJob {
            tokens: tokens.to_vec(),
            first,
            said,
        };
        self.jobs.send(Job::Decode(Box::new(job)))?;
        self.jobs.hear(answer, |(position, logits): Row| {
            self.jobs.while_waiting(|| each(position, &logits));
        })
    }

    /// Checks `tokens` from a caller who wants logits from position `first` onwards.
    fn check_positions(&self, tokens: &[u32], first: usize) -> Result<(), Error> {
        self.facts.check_tokens(tokens)?;
        let (n, context) = (tokens.len(), self.context());
        if n == 0 {
            return Err(Error::EmptyPrompt);
        }
        if n > context {
            return Err(self.facts.too_long(n));
        }
        if first >= n {
            let problem = format!("position {first} is beyond the {n} tokens; give a smaller one");
            return Err(Error::parameter("first", problem));
        }
        Ok(())
    }

    /// Perplexity of `tokens` by llama.cpp's protocol: chunks of `ctx` tokens, the first replaced by BOS
    /// where the model wants one, the second half of each chunk scored. `progress` is told the chunk from 1
    /// on, their number, and the perplexity so far, on the calling thread.
    ///
    /// # Errors
    /// Fewer tokens than one chunk, one outside the vocabulary, a `ctx` below 3 or beyond the engine's
    /// context, no chunks, or a fault.
    pub fn perplexity(
        &self,
        tokens: &[u32],
        ctx: usize,
        chunks: Option<usize>,
        mut progress: impl FnMut(usize, usize, f64),
    ) -> Result<Perplexity, Error> {
        self.facts.check_tokens(tokens)?;
        let chunks = chunks_to_score(tokens.len(), ctx, chunks)?;
        let (said, answer) = flume::unbounded();
        let job = ScoreJob {
            tokens: tokens.to_vec(),
            ctx,
            chunks,
            said,
        };
        self.jobs.send(Job::Score(Box::new(job)))?;
        self.jobs.hear(answer, |(chunk, chunks, perplexity)| {
            progress(chunk, chunks, perplexity);
        })
    }

    /// Measures the speed of `tests`, which take turns: one of each to warm up, then `repetitions` rounds
    /// of all. `progress` is told the test, the round from 1 on and the speed in tokens per second, on the
    /// calling thread. The reports come in the order of `tests`.
    ///
    /// # Errors
    /// No repetitions, a test longer than the context, or a fault.
    pub fn bench(
        &self,
        tests: &[BenchTest],
        repetitions: usize,
        mut progress: impl FnMut(BenchTest, usize, f64),
    ) -> Result<Vec<TestReport>, Error> {
        if repetitions == 0 {
            let problem = "0 would measure nothing; give at least 1";
            return Err(Error::parameter("repetitions", problem));
        }
        let (said, answer) = flume::unbounded();
        let job = BenchJob {
            tests: tests.to_vec(),
            repetitions,
            said,
        };
        self.jobs.send(Job::Bench(Box::new(job)))?;
        self.jobs.hear(answer, |(test, round, speed)| {
            progress(test, round, speed);
        })
    }

    /// Stops the engine and writes what its trace lanes recorded as a Chrome trace.
    ///
    /// # Errors
    /// The file cannot be written, or the engine has failed: its records are lost then.
    pub fn finish_with_trace(mut self, path: &Path) -> Result<(), Error> {
        let traces = self.stop();
        if let Some(error) = self.jobs.last_words().error() {
            return Err(error);
        }
        write_output(path, |file| write_chrome(file, "forebay", &traces))
            .map_err(|e| Error::system(format!("write the trace to {}", path.display()), e))
    }

    /// Stops the engine and returns its trace lanes, those of the cores first.
    pub fn finish(mut self) -> Vec<TraceLane> {
        self.stop()
    }

    fn stop(&mut self) -> Vec<TraceLane> {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.jobs.send(Job::Stop);
        self.thread
            .take()
            .and_then(|d| d.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}
