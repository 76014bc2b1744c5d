//! A test that hangs shall fail, not stop the suite.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `body` on a thread of its own and returns what it returns.
///
/// # Panics
/// `body` panics, or takes longer than `limit`.
pub fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(limit) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs: no end after {limit:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ended without a word"),
        },
    }
}
