//! Ends the program when an input takes too long: a hang has no other end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(100);

/// A thread that looks at the clock while inputs are tried.
#[derive(Debug)]
pub struct Watchdog {
    /// Milliseconds after `since` at which the input began, plus 1; 0 between inputs.
    began: Arc<AtomicU64>,
    since: Instant,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches over inputs that stand in the file `input`; one that takes longer than `limit` is kept as `kept`,
    /// and the process aborts.
    pub fn new(what: String, input: &Path, kept: PathBuf, limit: Duration) -> Self {
        let (began, since) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let (stop, stopped) = channel();
        let (watched, input) = (Arc::clone(&began), input.to_path_buf());
        let thread = std::thread::spawn(move || {
            while stopped
                .recv_timeout(PERIOD)
                .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let at = watched.load(Ordering::Relaxed);
                let now = since.elapsed().as_millis() as u64;
                if at != 0 && now.saturating_sub(at) > limit.as_millis() as u64 {
                    let saved = std::fs::copy(&input, &kept);
                    eprintln!(
                        "{what}: an input takes longer than {limit:?}; it is in {} ({saved:?})",
                        kept.display()
                    );
                    std::process::abort();
                }
            }
        });
        Self {
            began,
            since,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// An input begins.
    pub fn begin(&self) {
        let now = self.since.elapsed().as_millis() as u64 + 1;
        self.began.store(now, Ordering::Relaxed);
    }

    /// It has ended.
    pub fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
