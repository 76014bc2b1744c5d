//! The driver thread: takes jobs, embeds tokens, steps the decode graph, samples and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};
use forebay_actors::decode::{Computed, DecodeGraph, Shared, Step, StepDone};
use forebay_models::sampler::{Sampler, SamplerConfig};
use forebay_models::tokenizer::TextPosition;
use forebay_plans::process::rss_peak;
use forebay_traces::lane::TraceLane;
use parking_lot::Mutex;

use super::bench::BenchJob;
use super::embed::{Embedder, fault_of};
use super::meter::Meter;
use super::pressure::Watch;
use super::score::{LogitsJob, ScoreJob};
use super::{DiskCeiling, Facts};
use crate::error::Error;
use crate::learn::Tally;
use crate::stats::{
    CacheStatistics, IoStatistics, MemoryStatistics, PhaseStatistics, PromptStatistics, Statistics,
    percentile,
};
use crate::stream::{PromptProgress, StreamItem, Token};

/// Tokens of a conversation, shared between its session and the driver.
pub(super) type History = Arc<Mutex<Vec<u32>>>;

#[derive(Debug)]
pub(super) enum Job {
    Generate(Box<GenerateJob>),
    Logits(Box<LogitsJob>),
    Score(Box<ScoreJob>),
    Bench(Box<BenchJob>),
    /// The budget was changed while perhaps nothing is under way.
    Budget,
    Stop,
}

#[derive(Debug)]
pub(super) struct GenerateJob {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    pub sampler: SamplerConfig,
    pub ignore_eog: bool,
    pub history: History,
    pub sender: Sender<Result<StreamItem, Error>>,
}

/// State of the driver thread.
#[derive(Debug)]
pub(super) struct Runner {
    graph: DecodeGraph,
    facts: Arc<Facts>,
    embedder: Embedder,
    /// Looks at the memory's pressure, if the engine gives way to it.
    watch: Option<Watch>,
    /// Tokens whose keys and values are in the KV cache, by position.
    cached: Vec<u32>,
    /// Embedded tokens, `[max_batch, d_model]`.
    input: Vec<f32>,
    /// Logits of one token, `[vocab_size]`.
    logits: Vec<f32>,
    reports: Vec<StepDone>,
    meter: Meter,
    /// Set when the engine is dropped: what is under way ends at the next token.
    stopping: Arc<AtomicBool>,
}

/// How often a generation whose reader is slow looks whether the engine is stopping, and an idle engine that gives way
/// to pressure at the memory.
const PATIENCE: Duration = Duration::from_millis(50);

/// Tokens from which on a speed says something about a plan.
const ENOUGH_TO_COMPARE: usize = 16;

impl Runner {
    pub fn new(
        graph: DecodeGraph,
        facts: Arc<Facts>,
        embedder: Embedder,
        watch: Option<Watch>,
        stopping: Arc<AtomicBool>,
    ) -> Self {
        let shared = graph.shared();
        let c = &shared.bundle.meta.config;
        Self {
            input: vec![0.0; shared.max_batch * c.d_model],
            logits: vec![0.0; c.vocab_size],
            cached: Vec::new(),
            reports: Vec::with_capacity(shared.threads),
            meter: Meter::default(),
            embedder,
            watch,
            graph,
            facts,
            stopping,
        }
    }

    /// Serves jobs until told to stop or nobody can send any more; returns the trace.
    pub fn serve(mut self, jobs: &Receiver<Job>, tally: Option<&Tally>) -> Vec<TraceLane> {
        while let Some(job) = self.next_job(jobs) {
            match job {
                Job::Generate(job) => {
                    if let Err(error) = self.generate(&job) {
                        // Nobody listening is how a generation is cancelled.
                        let _ = self.deliver(&job, Err(error));
                    }
                }
                Job::Logits(job) => job.run(&mut self),
                Job::Score(mut job) => {
                    let result = job.run(&mut self);
                    let _ = job.reply.send(result);
                }
                Job::Bench(mut job) => {
                    let result = job.run(&mut self);
                    let _ = job.reply.send(result);
                }
                // A core that has ended says so to the next request.
                Job::Budget => drop(self.follow_budget()),
                Job::Stop => break,
            }
        }
        if let Some(tally) = tally {
            tally.keep(&self.graph.shared().bundle);
        }
        self.graph.finish()
    }

    /// Waits for a job; `None` if there will be none. An engine that gives way to pressure does so while it has nothing
    /// to do as well.
    fn next_job(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        while self.watch.is_some() {
            match jobs.recv_timeout(PATIENCE) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                // A core that has ended says so to the next request.
                Err(RecvTimeoutError::Timeout) => drop(self.follow_budget()),
            }
        }
        jobs.recv().ok()
    }

    pub fn context(&self) -> usize {
        self.facts.context
    }

    /// BOS, where the model wants one in front of a text.
    pub fn bos(&self) -> Option<u32> {
        self.facts
            .tokenizer
            .bos()
            .filter(|_| self.facts.tokenizer.adds_bos())
    }

    /// Ids that there are tokens for.
    pub fn vocabulary(&self) -> usize {
        self.facts.config.vocab_size
    }

    /// What the disk gave when the engine was built.
    pub fn disk_ceiling(&self) -> DiskCeiling {
        self.facts.ceiling
    }

    /// The core of each compute thread.
    pub fn cores(&self) -> &[usize] {
        &self.facts.cores
    }

    pub fn shared(&self) -> &Arc<Shared> {
        self.graph.shared()
    }

    /// Bytes that the I/O actor has read so far.
    pub fn bytes_read(&self) -> u64 {
        self.graph.io_counters().bytes
    }

    /// Gates that the last step computed, in all layers, and Ups and Downs.
    pub fn computed(&self) -> (Computed, Computed) {
        let sum = |of: fn(&StepDone) -> Computed| {
            let all = self.reports.iter().map(of);
            all.fold(Computed::default(), Computed::plus)
        };
        (sum(|r| r.gated), sum(|r| r.live))
    }

    /// Forgets the context. The embeddings of `tokens`, which come next, are looked up once: what is
    /// looked up for the first time in a process is checked against its checksum.
    pub fn empty(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.cached.clear();
        self.meter = Meter::default();
        let shared = Arc::clone(self.graph.shared());
        let d = shared.bundle.meta.config.d_model;
        for batch in tokens.chunks(shared.max_batch) {
            let input = &mut self.input[..batch.len() * d];
            let link = self.graph.rows().ok_or(Error::Stopped)?;
            self.embedder.embed(&shared, link, batch, input)?;
        }
        Ok(())
    }

    /// Runs `tokens` behind the cached ones, with logits for the last `n_logits`. After an error nothing
    /// that was read ahead is used any more: the next step may find the file repaired.
    pub fn step(&mut self, tokens: &[u32], n_logits: usize) -> Result<(), Error> {
        self.step_of(tokens, n_logits, false)
    }

    /// The same for a part of a prompt; `more` says whether another part follows.
    pub fn step_of(&mut self, tokens: &[u32], n_logits: usize, more: bool) -> Result<(), Error> {
        self.try_step(tokens, n_logits, more).inspect_err(|_| {
            self.embedder.distrust();
            self.graph.distrust();
        })
    }

    fn try_step(&mut self, tokens: &[u32], n_logits: usize, more: bool) -> Result<(), Error> {
        self.follow_budget()?;
        let shared = Arc::clone(self.graph.shared());
        let input = &mut self.input[..tokens.len() * shared.bundle.meta.config.d_model];
        let link = self.graph.rows().ok_or(Error::Stopped)?;
        self.embedder.embed(&shared, link, tokens, input)?;
        shared.boards.input.write(0, input);
        let position = self.cached.len();
        let step = Step {
            n_tokens: tokens.len(),
            position,
            n_logits,
            more,
            ..Step::default()
        };
        self.graph
            .step(step, &mut self.reports)
            .map_err(|f| fault_of(&shared, f))?;
        self.cached.extend_from_slice(tokens);
        self.meter.count(&self.reports);
        Ok(())
    }

    /// Between two steps: a budget that was asked for, or that the memory's pressure allows, comes into force.
    fn follow_budget(&mut self) -> Result<(), Error> {
        let spared = self.watch.as_mut().map_or(0, Watch::spared);
        let applied = self.facts.budget.apply(&mut self.graph, spared);
        applied.map_err(|f| fault_of(self.graph.shared(), f))
    }

    /// Copies the logits of the step's `i`-th wanted token.
    fn take_logits(&mut self, i: usize) {
        let shared = self.graph.shared();
        shared
            .boards
            .logits
            .read(i * shared.bundle.meta.config.vocab_size, &mut self.logits);
    }

    /// Evaluates `tokens` from an empty context and calls `each` with every position from `first` on and
    /// its logits, until it returns false.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), Error> {
        self.cached.clear();
        let (max_batch, vocab) = (self.graph.shared().max_batch, self.facts.config.vocab_size);
        let max_logits = self.graph.shared().boards.logits.len() / vocab;
        let mut at = 0;
        while at < tokens.len() {
            let (batch, n_logits) = if at < first {
                (max_batch.min(first - at), 0)
            } else {
                let n = max_batch.min(max_logits).min(tokens.len() - at);
                (n, n)
            };
            let more = at + batch < tokens.len();
            self.step_of(&tokens[at..at + batch], n_logits, more)?;
            for i in 0..n_logits {
                self.take_logits(i);
                if !each(at + i, &self.logits) {
                    return Ok(());
                }
            }
            at += batch;
        }
        Ok(())
    }

    /// Hands an item to the reader, who may be slow; false if nobody will read it.
    fn deliver(&mut self, job: &GenerateJob, item: Result<StreamItem, Error>) -> bool {
        let mut item = item;
        while !self.stopping.load(Ordering::Relaxed) {
            match job.sender.send_timeout(item, PATIENCE) {
                Ok(()) => return true,
                Err(SendTimeoutError::Disconnected(_)) => return false,
                Err(SendTimeoutError::Timeout(back)) => item = back,
            }
            // A reader that waits for the budget to change shall not wait for ever; the next step has the error.
            let _ = self.follow_budget();
        }
        false
    }

    /// Whether nobody wants the rest of a generation.
    fn is_cut(&self, job: &GenerateJob) -> bool {
        job.sender.is_disconnected() || self.stopping.load(Ordering::Relaxed)
    }

    /// Brings the KV cache to `tokens` and leaves the logits of the last one; false if it was cut short.
    fn prefill(&mut self, tokens: &[u32], job: &GenerateJob) -> Result<bool, Error> {
        let whole = self.read_prompt(tokens, job)?;
        let io = self.graph.io_counters();
        let seconds: f64 = self.meter.prefill_ns.iter().sum::<u64>() as f64 * 1e-9;
        let bubbles = self.meter.bubbles();
        let start = &self.meter.io_start;
        let reading = (io.busy_ns - start.busy_ns) as f64 * 1e-9;
        let waiting = seconds * (bubbles.wait_io_gate + bubbles.wait_io_updown);
        self.meter.prompt = PromptStatistics {
            seconds_to_first_token: 0.0,
            reused_tokens: tokens.len() - self.meter.prefill_tokens,
            reads: io.reads - start.reads,
            bytes: io.bytes - start.bytes,
            seconds_reading: reading,
            overlap: match reading > 0.0 {
                true => (1.0 - waiting / reading).clamp(0.0, 1.0),
                false => 1.0,
            },
            ceiling_bytes_per_second: self.facts.ceiling.prompt,
            bubbles,
        };
        Ok(whole)
    }

    /// Runs what the KV cache does not have of `tokens`, batch by batch.
    fn read_prompt(&mut self, tokens: &[u32], job: &GenerateJob) -> Result<bool, Error> {
        let same = self
            .cached
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b)
            .count();
        // The last token is run again even if it is cached: its logits are wanted.
        self.cached.truncate(same.min(tokens.len() - 1));
        let fresh = &tokens[self.cached.len()..];
        let max_batch = self.graph.shared().max_batch;
        for (i, batch) in fresh.chunks(max_batch).enumerate() {
            if self.is_cut(job) {
                return Ok(false);
            }
            let last = (i + 1) * max_batch >= fresh.len();
            let start = Instant::now();
            self.step_of(batch, usize::from(last), !last)?;
            self.meter.prefill_ns.push(nanos(start));
            let (done, total) = ((i + 1) * max_batch, fresh.len());
            if !last && !self.deliver(job, Ok(StreamItem::Prompt(PromptProgress { done, total }))) {
                return Ok(false);
            }
        }
        self.meter.prefill_tokens = fresh.len();
        Ok(true)
    }

    fn generate(&mut self, job: &GenerateJob) -> Result<(), Error> {
        let mut tokens = job.history.lock().clone();
        tokens.extend_from_slice(&job.prompt);
        // The history may have grown since the request was made: its session may have had another under way.
        self.facts.check_room(tokens.len())?;
        let max_tokens = job.max_tokens.min(self.facts.context - tokens.len());
        let asked = Instant::now();
        self.meter = Meter {
            io_start: self.graph.io_counters(),
            ..Meter::default()
        };
        let facts = Arc::clone(&self.facts);
        let mut sampler = Sampler::new(job.sampler.clone(), facts.config.vocab_size)?;
        let mut detokenizer = facts
            .tokenizer
            .detokenizer(true, TextPosition::Continuation);
        let (mut ids, mut text) = (Vec::new(), String::new());
        if !self.prefill(&tokens, job)? {
            return Ok(());
        }
        *job.history.lock() = tokens.clone();
        while ids.len() < max_tokens {
            self.take_logits(0);
            self.meter.hash(&self.logits);
            let id = sampler.sample(&self.logits, &tokens)?;
            if facts.tokenizer.is_eog(id) && !job.ignore_eog {
                break;
            }
            if ids.is_empty() {
                self.meter.prompt.seconds_to_first_token = asked.elapsed().as_secs_f64();
            }
            ids.push(id);
            tokens.push(id);
            let piece = detokenizer.push(id);
            text.push_str(&piece);
            job.history.lock().push(id);
            if !self.deliver(job, Ok(StreamItem::Token(Token { id, text: piece }))) {
                return Ok(());
            }
            if ids.len() < max_tokens {
                let start = Instant::now();
                self.step(&[id], 1)?;
                self.meter.decode_ns.push(nanos(start));
            }
        }
        let rest = detokenizer.finish();
        if !rest.is_empty() {
            text.push_str(&rest);
            self.deliver(job, Ok(StreamItem::Rest(rest)));
        }
        let statistics = self.statistics(ids, text);
        self.deliver(job, Ok(StreamItem::Done(Box::new(statistics))));
        Ok(())
    }

    fn statistics(&mut self, tokens: Vec<u32>, text: String) -> Statistics {
        let facts = &self.facts;
        let budget = facts.budget.now();
        let meter = &mut self.meter;
        let io = self.graph.io_counters();
        let (reads, bytes) = (
            io.reads - meter.io_start.reads,
            io.bytes - meter.io_start.bytes,
        );
        let seconds_busy = (io.busy_ns - meter.io_start.busy_ns) as f64 * 1e-9;
        meter.miss_rates.sort_unstable_by(f64::total_cmp);
        let accesses = (meter.hits + meter.misses).max(1) as f64;
        let decoded = meter.decode_ns.len();
        let decode = PhaseStatistics::of(decoded, &mut meter.decode_ns);
        Statistics {
            model: facts.model.clone(),
            plan: facts.plan.clone(),
            unexpected: facts
                .expected
                .as_ref()
                .filter(|_| decoded >= ENOUGH_TO_COMPARE)
                .and_then(|e| e.compared(1e3 / decode.ms_p50)),
            memory: MemoryStatistics {
                budget_bytes: budget.total_bytes(),
                peak_rss_bytes: rss_peak().unwrap_or(0),
                items: budget,
            },
            prefill: PhaseStatistics::of(meter.prefill_tokens, &mut meter.prefill_ns),
            prompt: meter.prompt,
            decode,
            cache: CacheStatistics {
                hits: meter.hits,
                misses: meter.misses,
                hit_rate: meter.hits as f64 / accesses,
                miss_rate_p99: percentile(&meter.miss_rates, 0.99),
            },
            io: IoStatistics {
                reads,
                bytes,
                seconds_busy,
                bytes_per_second: if seconds_busy > 0.0 {
                    bytes as f64 / seconds_busy
                } else {
                    0.0
                },
                ceiling_bytes_per_second: facts.ceiling.decode,
            },
            bubbles: meter.bubbles(),
            tokens,
            text,
            logits_hash: format!("{:016x}", meter.logits_hash),
        }
    }
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
