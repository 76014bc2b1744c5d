//! The engine: a model opened under a budget, and the thread that drives its decode graph.

mod bench;
mod build;
mod builder;
mod chat;
mod checks;
mod context;
mod decoded;
mod device;
mod device_attention;
mod drafts;
mod evaluator;
mod fewer_experts;
mod generate;
#[cfg(feature = "gpu")]
mod gpu;
mod jobs;
mod log_probabilities;
mod meter;
mod planning;
mod runner;
mod said;
mod score;
mod session;
mod softmax;
mod start;

use std::path::{Path, PathBuf};
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

pub use build::ModelDescription;
pub use builder::EngineBuilder;
pub use decoded::Decoded;
pub(crate) use device::DeviceFacts;
pub use device::{DeviceChoice, DevicePlacing};
pub(crate) use fewer_experts::checked;
pub use planning::PlanGoal;
pub use score::Perplexity;
pub(crate) use score::chunks_to_score;
pub use session::Session;
pub(crate) use softmax::best_and_log_sum;

use crate::chat::{ChatFormat, Transcript};
use crate::error::Error;
use crate::in_force::PlanInForce;
use crate::live_budget::LiveBudget;
use crate::speed::{BenchTest, TestReport};
use jobs::Jobs;

use runner::Job;
use said::hear;

/// Maximum number of tokens whose log-probabilities come with each token.
const MOST_LIKELY: usize = 64;

/// Speed of the disk, bytes per second; 0 if nothing is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskCeiling {
    /// In reads as prompts make them: clusters.
    pub prompt: f64,
    /// In reads as decoding makes them: clusters, or neurons.
    pub decode: f64,
}

/// Facts about an engine; only its budget changes.
#[derive(Debug)]
pub(crate) struct Facts {
    pub model: String,
    pub network: Network,
    pub tokenizer: Tokenizer,
    pub chat: ChatFormat,
    pub budget: LiveBudget,
    pub plan: PlanInForce,
    /// The device, if one computes.
    pub device: Option<DeviceFacts>,
    /// The core of each compute thread, `[threads]`.
    pub cores: Vec<usize>,
    pub bundle_path: PathBuf,
    pub bundle_bytes: u64,
    pub weight_bytes: u64,
    pub ceiling: DiskCeiling,
}

impl Facts {
    /// Checks that a text of `used` tokens leaves room for one more.
    fn check_room(&self, used: usize) -> Result<(), Error> {
        let context = self.plan.context;
        if used < context {
            return Ok(());
        }
        let tokens = used;
        Err(Error::ContextTooSmall { tokens, context })
    }

    /// Checks ids from callers: each must have an embedding.
    fn check_tokens(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.network.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&token) => Err(Error::TokenOutsideVocabulary { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// A model ready to generate, within its budget. It runs one generation at a time, in the order of requests; one whose
/// reader falls behind pauses while others wait. Statistics of a paused generation include what ran in between.
/// Dropping the engine ends running generations: their streams end without
/// [`StreamItem::Done`](crate::StreamItem::Done). If the engine's thread panics, running, waiting and later requests
/// fail with [`Error::EngineFailed`].
#[derive(Debug)]
pub struct Engine {
    facts: Arc<Facts>,
    jobs: Jobs,
    thread: Option<JoinHandle<Vec<TraceLane>>>,
    stopping: Arc<AtomicBool>,
}

impl Engine {
    /// Starts configuring an engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

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

    /// The minimum budget in bytes that [`Engine::set_budget`] can reach: a device that shares the memory has no weights
    /// then, the neuron cache is smaller, pinned FFN clusters are streamed, and everything else stays.
    pub fn least_budget(&self) -> u64 {
        self.facts.budget.least()
    }

    /// Changes the budget of the process to `bytes`: less, or again as much as it was at the start. It is in force
    /// between two steps, so within the time of a token, and at once if nothing is generated; [`Engine::budget`] says
    /// when. Copies of weights on a device that shares the memory go first, and the cores compute these; then the neuron
    /// cache gives way, then FFN clusters that were pinned, which are streamed until the budget grows; their memory goes
    /// back to the system. Nothing that is generated depends on it.
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
    /// empty context, in steps of as many positions as there is [room](EngineBuilder::max_logits) for; the rows do not
    /// depend on that.
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
        let job = score::LogitsJob {
            tokens: tokens.to_vec(),
            first,
            rows,
        };
        self.jobs.send(Job::Logits(Box::new(job)))?;
        let mut missing = tokens.len() - first;
        for row in answer {
            let (position, logits) = row?;
            each(position, &logits);
            missing -= 1;
        }
        match missing {
            0 => Ok(()),
            _ => Err(self.jobs.ended()),
        }
    }

    /// Checks `tokens` from a caller who wants logits from position `first` onwards.
    fn check_positions(&self, tokens: &[u32], first: usize) -> Result<(), Error> {
        self.facts.check_tokens(tokens)?;
        let (n, context) = (tokens.len(), self.context());
        if n == 0 {
            return Err(Error::EmptyPrompt);
        }
        if n > context {
            return Err(Error::ContextTooSmall { tokens: n, context });
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
        let chunks = score::chunks_to_score(tokens.len(), ctx, chunks)?;
        let (said, answer) = flume::unbounded();
        let job = score::ScoreJob {
            tokens: tokens.to_vec(),
            ctx,
            chunks,
            said,
        };
        self.jobs.send(Job::Score(Box::new(job)))?;
        hear(answer, &self.jobs, |(chunk, chunks, perplexity)| {
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
        let job = bench::BenchJob {
            tests: tests.to_vec(),
            repetitions,
            said,
        };
        self.jobs.send(Job::Bench(Box::new(job)))?;
        hear(answer, &self.jobs, |(test, round, speed)| {
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
