//! The way of jobs to the engine thread, and what those who wait for an answer learn when it ends.

use std::cell::RefCell;
use std::sync::Arc;

use flume::{Receiver, Sender};
use parking_lot::Mutex;

use super::job::Job;
use super::said::Said;
use crate::error::Error;
use crate::stream::LastWords;

thread_local! {
    /// The engines that wait for what this thread does.
    static WAITING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Sends jobs to the engine thread. Whoever waits for an answer whose sender has gone asks [`Jobs::ended`] why.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Jobs {
    /// The only sender of the channel, until the engine thread takes no more: then no job can be left behind in it.
    sender: Arc<Mutex<Option<Sender<Job>>>>,
    last_words: Arc<LastWords>,
}

impl Jobs {
    /// With the engine thread's end.
    pub fn new() -> (Self, Receiver<Job>) {
        let (sender, inbox) = flume::unbounded();
        let jobs = Self {
            sender: Arc::new(Mutex::new(Some(sender))),
            last_words: Arc::default(),
        };
        (jobs, inbox)
    }

    /// Queues a job.
    ///
    /// # Errors
    /// The engine thread has ended, or waits for the caller.
    pub fn send(&self, job: Job) -> Result<(), Error> {
        if WAITING.with_borrow(|engines| engines.contains(&self.engine())) {
            let problem = "it uses the engine, which waits for it; keep what you need, and use the engine afterwards";
            return Err(Error::parameter("each", problem));
        }
        let sender = self.sender.lock();
        let sent = sender.as_ref().and_then(|s| s.send(job).ok());
        sent.ok_or_else(|| self.ended())
    }

    /// Waits for the result of a job that was sent; `progress` is told the rest.
    ///
    /// # Errors
    /// Those of the job, or why there is no result.
    pub fn hear<P, R>(
        &self,
        job: Receiver<Said<P, R>>,
        mut progress: impl FnMut(P),
    ) -> Result<R, Error> {
        for said in job {
            match said {
                Said::Progress(step) => progress(step),
                Said::Result(result) => return result,
            }
        }
        Err(self.ended())
    }

    /// Calls the user's `look` while the engine thread waits for it.
    pub fn while_waiting(&self, look: impl FnOnce()) {
        struct Over;
        impl Drop for Over {
            fn drop(&mut self) {
                WAITING.with_borrow_mut(Vec::pop);
            }
        }
        WAITING.with_borrow_mut(|engines| engines.push(self.engine()));
        let _over = Over;
        look();
    }

    /// What tells engines apart.
    fn engine(&self) -> usize {
        Arc::as_ptr(&self.sender).addr()
    }

    /// Why the engine thread gave no answer.
    pub fn ended(&self) -> Error {
        self.last_words.error().unwrap_or(Error::Stopped)
    }

    /// For streams, which learn the same from it.
    pub fn last_words(&self) -> Arc<LastWords> {
        Arc::clone(&self.last_words)
    }

    /// The engine thread takes no more jobs, because of a `panic` if there is one. Those in the channel go with its
    /// receiver.
    pub fn close(&self, panic: Option<String>) {
        if let Some(cause) = panic {
            // Nobody else sets it.
            self.last_words.say(cause);
        }
        self.sender.lock().take();
    }
}
