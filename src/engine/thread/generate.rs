//! One generation: its prompt is read, then it continues token by token until it ends or its reader falls behind.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use flume::SendTimeoutError;
use forebay_models::sampler::Sampler;
use forebay_models::tokenizer::TextPosition;
use forebay_plans::process::rss_peak;

use super::drafts::model::DraftModel;
use super::drafts::{Author, Draft, Drafter};
use super::evaluator::Evaluator;
use super::generation::{GenerateJob, Generation};
use super::log_probabilities::log_probabilities;
use super::meter::Meter;
use crate::chat::Stops;
use crate::error::Error;
use crate::stats::{
    CacheStatistics, FinishReason, IoStatistics, MemoryStatistics, PhaseStatistics,
    PromptStatistics, Statistics, percentile,
};
use crate::stream::{PromptProgress, StreamItem, Token};

/// From this many tokens on, a speed is compared with the plan's.
const ENOUGH_TO_COMPARE: usize = 16;

/// Why a generation stopped running.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Outcome {
    /// It is over, or its reader has gone.
    Over,
    /// Its reader is slow, and others can use the time.
    Paused,
}

/// How often a generation whose reader is slow checks whether the engine is stopping, and an idle engine that yields
/// memory checks the pressure.
pub(in crate::engine) const PATIENCE: Duration = Duration::from_millis(50);

/// What generates: the model, and who says what might come next.
#[derive(Debug)]
pub(in crate::engine) struct Generator {
    pub evaluator: Evaluator,
    drafter: Drafter,
}

impl Generator {
    /// `draft`: the model that drafts, if there is one.
    pub fn new(evaluator: Evaluator, draft: Option<DraftModel>) -> Self {
        Self {
            drafter: Drafter::new(evaluator.facts.plan.drafts, Author::of(draft, &evaluator)),
            evaluator,
        }
    }

    /// Starts a generation that a session requested.
    ///
    /// # Errors
    /// The session's history has grown since then and leaves no room; or bad sampler settings.
    pub fn begin(&mut self, job: GenerateJob) -> Result<Generation, Error> {
        let mut tokens = match job.anew {
            true => Vec::new(),
            false => job.history.lock().clone(),
        };
        let (prompt, bos) = match &job.again {
            None => (job.prompt, job.bos),
            Some(request) => {
                let after = (tokens.len(), tokens.last().copied());
                self.evaluator.facts.tokens_of(request, after)?
            }
        };
        if tokens.is_empty() {
            tokens.extend(bos);
        }
        tokens.extend(prompt);
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.evaluator.facts.check_room(tokens.len())?;
        let room = self.evaluator.facts.plan.context - tokens.len();
        let tokenizer = &self.evaluator.facts.tokenizer;
        Ok(Generation {
            max_tokens: job.max_tokens.min(room),
            limited_by_request: job.max_tokens <= room,
            ignore_eog: job.ignore_eog,
            stop_tokens: job.stop_tokens,
            log_probabilities: job.log_probabilities,
            seed: (job.sampler.temperature > 0.0).then_some(job.sampler.seed),
            sampler: Sampler::new(job.sampler, self.evaluator.facts.network.vocab_size)?,
            detokenizer: tokenizer
                .detokenizer(true, TextPosition::Continuation)
                .showing(job.shown_tokens),
            stops: Stops::new(job.stop, job.answer),
            meter: Meter {
                io_start: self.evaluator.runtime.io_counters(),
                device_start: self.evaluator.device_counters(),
                ..Meter::default()
            },
            asked: job.asked,
            span: job.span,
            history: job.history,
            sender: job.sender,
            cancelled: job.cancelled,
            outbox: VecDeque::new(),
            over: false,
            tokens,
            has_read: false,
            interrupted: false,
            ids: Vec::new(),
            text: String::new(),
        })
    }

    /// Runs a generation until it is over or has to wait for its reader while `others_wait` for the engine.
    pub fn run(
        &mut self,
        generation: &mut Generation,
        others_wait: &mut dyn FnMut(&Generation) -> bool,
    ) -> Outcome {
        let _running = generation.span.clone().entered();
        std::mem::swap(&mut self.evaluator.meter, &mut generation.meter);
        let outcome = loop {
            match self.hand_over(generation, others_wait) {
                None if generation.over => break Outcome::Over,
                None => {}
                Some(outcome) => break outcome,
            }
            if let Err(error) = self.advance(generation) {
                generation.fail(error);
            }
        };
        // Another generation's logits come next.
        self.evaluator.meter.hash(&self.evaluator.logits);
        std::mem::swap(&mut self.evaluator.meter, &mut generation.meter);
        if outcome == Outcome::Paused {
            generation.interrupted = true;
            generation.sampler.free_buffers();
        }
        outcome
    }

    /// Hands the outbox to the reader, which may be slow; `None` when it is empty.
    fn hand_over(
        &mut self,
        generation: &mut Generation,
        others_wait: &mut dyn FnMut(&Generation) -> bool,
    ) -> Option<Outcome> {
        while let Some(item) = generation.outbox.pop_front() {
            if self.evaluator.is_stopping() {
                return Some(Outcome::Over);
            }
            match generation.sender.send_timeout(item, PATIENCE) {
                Ok(()) => {}
                Err(SendTimeoutError::Disconnected(_)) => return Some(Outcome::Over),
                Err(SendTimeoutError::Timeout(back)) => {
                    generation.outbox.push_front(back);
                    // A reader that waits for the budget to change must not wait for ever; the next step reports the
                    // error.
                    let _ = self.evaluator.follow_budget();
                    if others_wait(generation) {
                        return Some(Outcome::Paused);
                    }
                }
            }
        }
        None
    }

    /// One step: the prompt and its first token, or one more token, or several.
    fn advance(&mut self, generation: &mut Generation) -> Result<(), Error> {
        if generation.is_cancelled() {
            self.end(generation, FinishReason::Cancelled);
            return Ok(());
        }
        let draft = if generation.has_read {
            self.go_on(generation)?
        } else {
            if !self.prefill(generation)? {
                self.end(generation, FinishReason::Cancelled);
                return Ok(());
            }
            generation.has_read = true;
            *generation.history.lock() = generation.tokens.clone();
            Draft::default()
        };
        if generation.ids.len() < generation.max_tokens {
            self.choose_all(generation, &draft)?;
        }
        if !generation.over && generation.ids.len() >= generation.max_tokens {
            let reason = match generation.limited_by_request {
                true => FinishReason::MaxTokens,
                false => FinishReason::ContextFull,
            };
            self.end(generation, reason);
        }
        Ok(())
    }

    /// Runs the last token, and with it those that probably follow.
    fn go_on(&mut self, generation: &mut Generation) -> Result<Draft, Error> {
        let start = Instant::now();
        if std::mem::take(&mut generation.interrupted) {
            self.catch_up(generation)?;
            self.evaluator.meter.step((0, false), nanos(start));
            return Ok(Draft::default());
        }
        // The last token of all is not run.
        let room = generation.max_tokens - generation.ids.len() - 1;
        let (drafter, evaluator) = (&mut self.drafter, &mut self.evaluator);
        let mut draft = drafter.draft(evaluator, &generation.tokens, room);
        let drafted = Instant::now();
        let (run_ahead, step) = (draft.run_ahead, draft.step());
        if run_ahead > 0 && self.evaluator.check(step).is_err() {
            // What was only expected may be what cannot be read.
            draft = draft.alone();
        }
        if let &[newest] = draft.step() {
            self.evaluator.decode(newest)?;
        }
        self.drafter.took(&draft, nanos(drafted));
        let ahead = (draft.run_ahead, draft.of_model);
        self.evaluator.meter.step(ahead, nanos(start));
        Ok(draft)
    }

    /// Samples the next token and, as long as these are the drafted ones, those that follow. The rest of the draft is
    /// taken back.
    fn choose_all(&mut self, generation: &mut Generation, draft: &Draft) -> Result<(), Error> {
        let before = generation.tokens.len();
        let mut right = 0;
        loop {
            let id = self.choose(generation, right)?;
            let came = self.drafter.came(draft, right, id);
            let is_last = generation.over || generation.ids.len() >= generation.max_tokens;
            if is_last || !came || right == draft.run_ahead {
                break;
            }
            right += 1;
            self.evaluator.meter.drafts.accepted += 1;
        }
        self.evaluator.take_back(before + right);
        Ok(())
    }

    /// Samples the next token from the logits of the last step's `i`-th token, and returns it.
    fn choose(&mut self, generation: &mut Generation, i: usize) -> Result<u32, Error> {
        self.evaluator.take_logits(i);
        self.evaluator.meter.chooses();
        let id = generation
            .sampler
            .sample(&self.evaluator.logits, &generation.tokens)?;
        let ends = self.evaluator.facts.tokenizer.is_eog(id) && !generation.ignore_eog;
        if ends || generation.stop_tokens.contains(&id) {
            // Not shown, but part of the conversation: the next turn begins after it.
            generation.history.lock().push(id);
            self.end(generation, FinishReason::EndOfGeneration);
            return Ok(id);
        }
        if generation.ids.is_empty() {
            self.evaluator.meter.prompt.seconds_to_first_token =
                generation.asked.elapsed().as_secs_f64();
        }
        generation.ids.push(id);
        generation.tokens.push(id);
        generation.history.lock().push(id);
        let (text, stopped) = generation.stops.push(generation.detokenizer.push(id));
        generation.text.push_str(&text);
        let logits = &self.evaluator.logits;
        let likely = generation.log_probabilities;
        let token = Token {
            id,
            text,
            log_probabilities: likely.map(|n| Box::new(log_probabilities(logits, id, n))),
        };
        generation.outbox.push_back(Ok(StreamItem::Token(token)));
        if stopped {
            self.end(generation, FinishReason::Stop);
        }
        Ok(id)
    }

    /// Sends the rest of the text, and the statistics.
    fn end(&mut self, generation: &mut Generation, reason: FinishReason) {
        let mut reason = reason;
        if reason != FinishReason::Stop {
            let (rest, stopped) = generation
                .stops
                .finish(generation.detokenizer.clone().finish());
            generation.text.push_str(&rest);
            if !rest.is_empty() {
                generation.outbox.push_back(Ok(StreamItem::Rest(rest)));
            }
            if stopped {
                reason = FinishReason::Stop;
            }
        }
        let span = &generation.span;
        span.record("tokens", generation.ids.len());
        span.record("finish_reason", tracing::field::debug(reason));
        let done = StreamItem::Done(Box::new(self.statistics(generation, reason)));
        generation.outbox.push_back(Ok(done));
        generation.over = true;
    }

    /// Fills the KV cache with the prompt and leaves the logits of its last token; false if it was cut short.
    fn prefill(&mut self, generation: &Generation) -> Result<bool, Error> {
        let tokens = &generation.tokens;
        let whole = self.read_prompt(generation)?;
        let io = self.evaluator.runtime.io_counters();
        let seconds: f64 = self.evaluator.meter.prefill_ns.iter().sum::<u64>() as f64 * 1e-9;
        let bubbles = self.evaluator.meter.bubbles();
        let start = &self.evaluator.meter.io_start;
        let reading = (io.busy_ns - start.busy_ns) as f64 * 1e-9;
        let waiting = seconds * (bubbles.wait_io_gate + bubbles.wait_io_updown);
        self.evaluator.meter.prompt = PromptStatistics {
            seconds_to_first_token: 0.0,
            reused_tokens: match whole {
                true => tokens.len() - self.evaluator.meter.prefill_tokens,
                false => 0,
            },
            reads: io.reads - start.reads,
            bytes: io.bytes - start.bytes,
            seconds_reading: reading,
            overlap: match reading > 0.0 {
                true => (1.0 - waiting / reading).clamp(0.0, 1.0),
                false => 1.0,
            },
            ceiling_bytes_per_second: self.evaluator.facts.ceiling.prompt,
            bubbles,
        };
        Ok(whole)
    }

    /// Runs the part of the prompt that the KV cache does not have, batch by batch.
    fn read_prompt(&mut self, generation: &Generation) -> Result<bool, Error> {
        let tokens = &generation.tokens;
        let fresh = &tokens[self.evaluator.keep_common(tokens, tokens.len())..];
        let max_batch = self.evaluator.runtime.shared().max_batch;
        for (i, batch) in fresh.chunks(max_batch).enumerate() {
            let gone = generation.sender.is_disconnected() || self.evaluator.is_stopping();
            if gone || generation.is_cancelled() {
                return Ok(false);
            }
            let following = &fresh[i * max_batch + batch.len()..];
            let last = following.is_empty();
            let start = Instant::now();
            self.evaluator
                .step_of(batch, usize::from(last), following)?;
            self.evaluator.meter.prefill_ns.push(nanos(start));
            self.evaluator.meter.prefill_tokens += batch.len();
            if !last {
                let (done, total) = ((i + 1) * max_batch, fresh.len());
                let progress = StreamItem::Prompt(PromptProgress { done, total });
                // A reader that is far behind can do without this one.
                let _ = generation.sender.try_send(Ok(progress));
            }
        }
        Ok(true)
    }

    /// Runs the tokens of an interrupted generation that the KV cache does not have, with logits for the last one.
    fn catch_up(&mut self, generation: &Generation) -> Result<(), Error> {
        let tokens = &generation.tokens;
        let prompt = tokens.len() - generation.ids.len();
        let max_batch = self.evaluator.runtime.shared().max_batch;
        let mut fresh = &tokens[self.evaluator.keep_common(tokens, prompt)..];
        while !fresh.is_empty() {
            let (batch, rest) = fresh.split_at(fresh.len().min(max_batch));
            self.evaluator
                .step_of(batch, usize::from(rest.is_empty()), rest)?;
            fresh = rest;
        }
        Ok(())
    }

    fn statistics(&mut self, generation: &Generation, finish_reason: FinishReason) -> Statistics {
        let device = self.evaluator.device_statistics();
        let facts = &self.evaluator.facts;
        let budget = facts.budget.now();
        let meter = &mut self.evaluator.meter;
        meter.hash(&self.evaluator.logits);
        let io = self.evaluator.runtime.io_counters();
        let (reads, bytes) = (
            io.reads - meter.io_start.reads,
            io.bytes - meter.io_start.bytes,
        );
        let seconds_busy = (io.busy_ns - meter.io_start.busy_ns) as f64 * 1e-9;
        meter.miss_rates.sort_unstable_by(f64::total_cmp);
        let accesses = (meter.hits + meter.misses).max(1) as f64;
        // The first one is the prompt's.
        let decoded = meter.chosen.saturating_sub(1);
        let decode = PhaseStatistics::of(decoded, &mut meter.decode_ns);
        // A plan tells the speed without drafts.
        let plain = PhaseStatistics::of(meter.plain_ns.len(), &mut meter.plain_ns);
        Statistics {
            model: facts.model.clone(),
            plan: facts.plan.clone(),
            unexpected: facts
                .plan
                .expected
                .as_ref()
                .filter(|_| plain.tokens >= ENOUGH_TO_COMPARE)
                .and_then(|e| e.compared(1e3 / plain.ms_p50)),
            memory: MemoryStatistics {
                budget_bytes: budget.total_bytes(),
                peak_rss_bytes: rss_peak().unwrap_or(0),
                items: budget,
            },
            prefill: PhaseStatistics::of(meter.prefill_tokens, &mut meter.prefill_ns),
            prompt: meter.prompt,
            decode,
            drafts: meter.drafts,
            cache: CacheStatistics {
                hits: meter.hits,
                misses: meter.misses,
                hit_rate: meter.hits as f64 / accesses,
                miss_rate_p99: percentile(&meter.miss_rates, 0.99),
                left_out_clusters: meter.left_out,
                guessed_clusters: meter.guesses.read,
                guessed_clusters_wanted: meter.guesses.wanted,
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
            device,
            bubbles: meter.bubbles(),
            tokens: generation.ids.clone(),
            text: generation.text.clone(),
            logits_hash: format!("{:016x}", meter.logits_hash),
            finish_reason,
            seed: generation.seed,
            steps: meter.take_steps(),
        }
    }
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
