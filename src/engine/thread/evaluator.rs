//! The model as jobs use it: embeds tokens and steps the actor graphs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::device::DeviceCounters;
use forebay_actors::io_counters::IoCounters;
use forebay_actors::runtime::Runtime;
use forebay_actors::shared::Shared;
use forebay_actors::step::{Step, StepDone};
use forebay_stages::computed::Computed;

use super::context::Context;
use super::device_share::share_of;
use super::meter::Meter;
use crate::engine::facts::{DiskCeiling, Facts};
use crate::error::Error;
use crate::live_budget::{Need, Watch};
use crate::stats::DeviceStatistics;
use crate::token_rows::{TokenRows, fault_of};

/// Evaluates tokens.
#[derive(Debug)]
pub(in crate::engine) struct Evaluator {
    pub runtime: Runtime,
    pub facts: Arc<Facts>,
    token_rows: TokenRows,
    /// Watches memory pressure, if the engine yields memory.
    watch: Option<Watch>,
    /// What is in the KV cache.
    context: Context,
    /// Positions that the running text is known to need.
    expected: usize,
    /// Logits of one token, `[vocab_size]`.
    pub logits: Vec<f32>,
    reports: Vec<StepDone>,
    /// Counts the running generation's costs.
    pub meter: Meter,
    /// Set when the engine is dropped: what is running ends at the next token.
    stopping: Arc<AtomicBool>,
}

impl Evaluator {
    pub fn new(
        runtime: Runtime,
        facts: Arc<Facts>,
        token_rows: TokenRows,
        watch: Option<Watch>,
    ) -> Self {
        let shared = runtime.shared();
        let network = shared.network();
        Self {
            logits: vec![0.0; network.vocab_size],
            context: Context::new(&shared.kv),
            expected: 0,
            reports: Vec::with_capacity(shared.threads),
            meter: Meter::default(),
            token_rows,
            watch,
            runtime,
            facts,
            stopping: Arc::default(),
        }
    }

    /// Set to end what is running.
    pub fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// Whether the engine yields memory under pressure.
    pub fn watches_memory(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether the engine is being dropped.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub fn context(&self) -> usize {
        self.facts.plan.context
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.facts.network.vocab_size
    }

    /// The disk's speed when the engine was built.
    pub fn disk_ceiling(&self) -> DiskCeiling {
        self.facts.ceiling
    }

    /// The core of each compute thread.
    pub fn cores(&self) -> &[usize] {
        &self.facts.cores
    }

    pub fn shared(&self) -> &Arc<Shared> {
        self.runtime.shared()
    }

    /// What the I/O actor has read so far.
    pub fn io_counters(&self) -> IoCounters {
        self.runtime.io_counters()
    }

    /// What the device has done so far.
    pub fn device_counters(&self) -> DeviceCounters {
        let device = self.shared().device.as_ref();
        device.map_or_else(DeviceCounters::default, |d| d.account.counters())
    }

    /// What it has done during the running generation.
    pub fn device_statistics(&self) -> Option<DeviceStatistics> {
        let facts = self.facts.device.as_ref()?;
        let (shared, account) = (self.shared(), &facts.account);
        let share = share_of(&shared.bundle, &shared.on_device, shared.device.as_ref()?);
        let (before, now) = (&self.meter.device_start, account.counters());
        Some(DeviceStatistics {
            name: facts.name.clone(),
            decode_share: share.decode,
            prompt_share: share.prompts,
            copied_bytes: now.copied_bytes - before.copied_bytes,
            jobs: now.jobs - before.jobs,
            attention_jobs: now.attention_jobs - before.attention_jobs,
            busy_ms: (now.busy_ns - before.busy_ns) as f64 * 1e-6,
            waits: now.waits - before.waits,
            faults: now.faults - before.faults,
            problem: account.cause().map(|fault| fault.to_string()),
        })
    }

    /// How many Gates the last step computed in all layers, and how many Ups and Downs.
    pub fn computed(&self) -> (Computed, Computed) {
        let sum = |of: fn(&StepDone) -> Computed| {
            let all = self.reports.iter().map(of);
            all.fold(Computed::default(), Computed::plus)
        };
        (sum(|r| r.gated), sum(|r| r.live))
    }

    /// Forgets the context. `tokens`, which come next, are looked up once: clusters used for the first time in a
    /// process are checked against their checksums.
    pub fn empty(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.context.clear();
        self.expected = tokens.len();
        self.forget_costs();
        let shared = Arc::clone(self.runtime.shared());
        let link = self.runtime.rows().ok_or(Error::Stopped)?;
        let mut batches = tokens.chunks(shared.max_batch);
        batches.try_for_each(|batch| self.token_rows.show(&shared, link, batch, 0))
    }

    /// Forgets what steps have cost so far.
    pub fn forget_costs(&mut self) {
        self.meter = Meter::default();
    }

    /// Runs a generated token after the cached ones, with logits.
    pub fn decode(&mut self, token: u32) -> Result<(), Error> {
        let decoding = Step {
            decodes: true,
            ..Step::default()
        };
        self.step(decoding, (&[token], &[]), 1)
    }

    /// Runs the newest token and some that may follow it, all with logits.
    pub fn check(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let checking = Step {
            checks: true,
            ..Step::default()
        };
        self.step(checking, (tokens, &[]), tokens.len())
    }

    /// Number of tokens that were run.
    pub fn position(&self) -> usize {
        self.context.len()
    }

    /// Runs a token as [`Self::decode`] does, but without what is streamed, and takes its logits.
    pub fn guess(&mut self, token: u32) -> Result<(), Error> {
        let drafting = Step {
            decodes: true,
            drafts: true,
            ..Step::default()
        };
        self.step(drafting, (&[token], &[]), 1)?;
        self.take_logits(0);
        Ok(())
    }

    /// Runs a part of a prompt after the cached tokens, with logits for the last `n_logits`; `following` are the tokens
    /// of the same prompt that come next.
    pub fn step_of(
        &mut self,
        tokens: &[u32],
        n_logits: usize,
        following: &[u32],
    ) -> Result<(), Error> {
        let reading = Step {
            more: !following.is_empty(),
            ..Step::default()
        };
        self.step(reading, (tokens, following), n_logits)
    }

    /// Runs tokens in such a step, with what follows them. After an error, nothing that was read ahead is used any
    /// more: by the next step the file may be repaired.
    fn step(&mut self, step: Step, tokens: (&[u32], &[u32]), n_logits: usize) -> Result<(), Error> {
        self.try_step(step, tokens, n_logits).inspect_err(|_| {
            self.token_rows.distrust();
            self.runtime.distrust();
        })
    }

    fn try_step(
        &mut self,
        step: Step,
        (tokens, following): (&[u32], &[u32]),
        n_logits: usize,
    ) -> Result<(), Error> {
        let positions = self.context.len() + tokens.len();
        self.follow_budget_for(positions, (tokens.len(), step.decodes))?;
        let shared = Arc::clone(self.runtime.shared());
        let link = self.runtime.rows().ok_or(Error::Stopped)?;
        let first = self.context.len();
        self.token_rows.show(&shared, link, tokens, first)?;
        let Some(of_step) = self.context.step(tokens, n_logits) else {
            return Err(Error::Stopped);
        };
        let drafts = step.drafts;
        let step = Step {
            tokens: of_step,
            ..step
        };
        let next = first + tokens.len();
        let (rows, meter, logits) = (&mut self.token_rows, &mut self.meter, &self.logits);
        let done = self.runtime.step(step, &mut self.reports, |link| {
            rows.look_ahead(&shared, link, following, next);
            meter.hash(logits);
        });
        if let Err(fault) = done {
            self.context.drop_step();
            return Err(fault_of(&shared, fault));
        }
        self.context.add(tokens);
        if !drafts {
            self.meter.count(&self.reports);
        }
        Ok(())
    }

    /// Between two steps: puts the requested budget, or the one that memory pressure allows, into force.
    pub fn follow_budget(&mut self) -> Result<(), Error> {
        self.follow_budget_for(self.context.len(), (0, false))
    }

    /// The same before a step of so many tokens, after which there are so many positions; a generated one `decodes`.
    fn follow_budget_for(
        &mut self,
        positions: usize,
        (tokens, decodes): (usize, bool),
    ) -> Result<(), Error> {
        let spared = self.watch.as_mut().map_or(0, Watch::spared);
        // At once for all of a prompt: each change empties the stream window.
        let need = Need {
            positions: positions.max(self.expected),
            is_empty: self.context.len() == 0,
            tokens,
            decodes,
        };
        let applied = self.facts.budget.apply(&mut self.runtime, spared, need);
        applied.map_err(|f| fault_of(self.runtime.shared(), f))
    }

    /// Drops what the KV cache has beyond the beginning that it shares with `tokens`, and returns the length of that
    /// beginning. The last token counts as not shared: its logits are wanted. The first `prompt` tokens are a prompt.
    pub fn keep_common(&mut self, tokens: &[u32], prompt: usize) -> usize {
        self.expected = tokens.len();
        self.context.keep_common(tokens, prompt)
    }

    /// Keeps the first `n` tokens of the KV cache, of which the last step has added those that go.
    pub fn take_back(&mut self, n: usize) {
        self.context.keep(n);
    }

    /// Copies the logits of the step's `i`-th wanted token.
    pub fn take_logits(&mut self, i: usize) {
        self.meter.hash(&self.logits);
        let shared = self.runtime.shared();
        shared
            .boards
            .logits
            .read(i * shared.network().vocab_size, &mut self.logits);
    }

    /// Evaluates `tokens` from an empty context and calls `each` with every position from `first` onwards and its
    /// logits, until `each` returns false.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), Error> {
        self.context.clear();
        self.expected = tokens.len();
        let (max_batch, vocab) = (
            self.runtime.shared().max_batch,
            self.facts.network.vocab_size,
        );
        let max_logits = self.runtime.shared().boards.logits.len() / vocab;
        let mut at = 0;
        while at < tokens.len() {
            let (batch, n_logits) = if at < first {
                (max_batch.min(first - at), 0)
            } else {
                let n = max_batch.min(max_logits).min(tokens.len() - at);
                (n, n)
            };
            let (now, following) = tokens[at..].split_at(batch);
            self.step_of(now, n_logits, following)?;
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
}
