//! The engine thread: takes jobs in turn.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flume::{Receiver, RecvTimeoutError};
use forebay_actors::fault::cause_of_panic;
use forebay_models::bundle::ffn_identity;
use forebay_traces::lane::TraceLane;

use super::drafts::model::DraftModel;
use super::evaluator::Evaluator;
use super::generate::{Generator, Outcome, PATIENCE};
use super::generation::{GenerateJob, Generation};
use super::job::Job;
use super::jobs::Jobs;
use crate::profiles::Tally;

/// Jobs that are still to be done.
#[derive(Debug)]
struct Queue {
    inbox: Receiver<Job>,
    /// Jobs from the inbox that have not begun, in the order in which they came.
    waiting: VecDeque<Job>,
    /// Generations whose readers are slow, while others run.
    paused: Vec<Generation>,
}

/// State of the engine thread.
#[derive(Debug)]
pub(in crate::engine) struct Runner {
    generator: Generator,
    queue: Queue,
    /// Of the job under way: if it panics, its caller hears of that, and not only that there is no answer.
    answer: Option<Box<dyn Any + Send>>,
}

impl Runner {
    /// `draft`: the model that drafts, if there is one.
    pub fn new(evaluator: Evaluator, draft: Option<DraftModel>, inbox: Receiver<Job>) -> Self {
        Self {
            generator: Generator::new(evaluator, draft),
            queue: Queue {
                inbox,
                waiting: VecDeque::new(),
                paused: Vec::new(),
            },
            answer: None,
        }
    }

    /// Body of the engine thread: serves jobs until told to stop, and returns the trace. A panic ends it as well. All
    /// jobs that are queued then, and all that are sent later, fail with its message.
    pub fn serve(mut self, jobs: &Jobs, tally: Option<&Tally>) -> Vec<TraceLane> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve_jobs()));
        let panic = served.err().map(|panic| cause_of_panic(panic.as_ref()));
        let failed = panic.is_some();
        // Before the jobs are dropped: whoever finds that there is no answer asks for the reason at once.
        jobs.close(panic);
        if failed {
            return Vec::new();
        }
        let bundle = &self.generator.evaluator.runtime.shared().bundle;
        let model = tally.map(|tally| (tally, bundle.path().to_path_buf(), ffn_identity(bundle)));
        let lanes = self.finish();
        // The counts take more room while they are written, which weights have until now.
        if let Some((tally, path, ffn)) = model {
            tally.keep(&path, ffn);
        }
        lanes
    }

    /// Frees everything but the trace.
    fn finish(self) -> Vec<TraceLane> {
        self.generator.evaluator.runtime.finish()
    }

    fn serve_jobs(&mut self) {
        while let Some(job) = self.queue.next_job(&mut self.generator.evaluator) {
            self.answer = job.answer();
            // A generation has a meter of its own.
            self.generator.evaluator.forget_costs();
            match job {
                Job::Generate(job) => self.generate(*job),
                Job::Resume(generation) => self.proceed(*generation),
                Job::Logits(job) => job.run(&mut self.generator.evaluator),
                Job::Decode(job) => job.answer(&mut self.generator.evaluator),
                Job::Score(job) => job.answer(&mut self.generator.evaluator),
                Job::Bench(job) => job.answer(&mut self.generator.evaluator),
                // A core that has ended says so to the next request.
                Job::Budget => drop(self.generator.evaluator.follow_budget()),
                Job::Stop => break,
            }
            self.answer = None;
        }
    }

    fn generate(&mut self, job: GenerateJob) {
        let sender = job.sender.clone();
        match self.generator.begin(job) {
            Ok(generation) => self.proceed(generation),
            // A dropped receiver cancels the generation.
            Err(error) => drop(sender.send(Err(error))),
        }
    }

    fn proceed(&mut self, mut generation: Generation) {
        let queue = &mut self.queue;
        let mut others_wait = |generation: &Generation| queue.others_wait(generation);
        if self.generator.run(&mut generation, &mut others_wait) == Outcome::Paused {
            self.queue.paused.push(generation);
        }
    }
}

impl Queue {
    /// Waits for a job that can be done now; `None` if there will be none. An engine that yields memory does so
    /// while idle as well.
    fn next_job(&mut self, evaluator: &mut Evaluator) -> Option<Job> {
        loop {
            self.waiting.extend(self.inbox.try_iter());
            if let Some(i) = self.paused.iter().position(Generation::is_wanted) {
                return Some(Job::Resume(Box::new(self.paused.remove(i))));
            }
            if let Some(i) = self.waiting.iter().position(|job| !self.is_held_up(job)) {
                return self.waiting.remove(i);
            }
            let arrived = match evaluator.watches_memory() || !self.paused.is_empty() {
                true => self.inbox.recv_timeout(PATIENCE),
                false => self
                    .inbox
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match arrived {
                Ok(job) => self.waiting.push_back(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                // If a core has ended, the next request gets the error.
                Err(RecvTimeoutError::Timeout) => drop(evaluator.follow_budget()),
            }
        }
    }

    /// Whether a job has to wait for an earlier one of its session.
    fn is_held_up(&self, job: &Job) -> bool {
        let Job::Generate(job) = job else {
            return false;
        };
        self.paused.iter().any(|g| g.is_of(&job.history))
    }

    /// Whether anything else could be done while `generation` waits for its reader.
    fn others_wait(&mut self, generation: &Generation) -> bool {
        self.waiting.extend(self.inbox.try_iter());
        let other = |job: &Job| match job {
            Job::Generate(next) => !generation.is_of(&next.history) && !self.is_held_up(job),
            Job::Budget => false,
            _ => true,
        };
        self.waiting.iter().any(other) || self.paused.iter().any(Generation::is_wanted)
    }
}
