//! The way of jobs to the engine thread, and what those who wait for an answer learn when it ends.

use std::sync::Arc;

use flume::{Receiver, Sender};
use parking_lot::Mutex;

use super::runner::Job;
use crate::error::Error;
use crate::stream::LastWords;

/// Sends jobs to the engine thread. Whoever waits for an answer whose sender has gone asks [`Jobs::ended`] why.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
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
    /// The engine thread has ended.
    pub fn send(&self, job: Job) -> Result<(), Error> {
        let sender = self.sender.lock();
        let sent = sender.as_ref().and_then(|s| s.send(job).ok());
        sent.ok_or_else(|| self.ended())
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
