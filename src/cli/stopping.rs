//! Signals that end the program: what it was writing is removed first.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_models::files::withdraw_partials;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Whether SIGINT ends a generation, which somebody else sees to, and not the program.
static GENERATING: AtomicBool = AtomicBool::new(false);

/// While it lives, SIGINT is left to who made it.
pub struct Generating(());

impl Generating {
    pub fn begin() -> Self {
        GENERATING.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        GENERATING.store(false, Ordering::Relaxed);
    }
}

/// Has a thread wait for SIGINT and SIGTERM. Best effort: without it they end the program as they always do, and what
/// was half-written is removed by the next conversion.
pub fn watch() {
    let thread = std::thread::Builder::new().name("forebay-signals".into());
    let _ = thread.spawn(|| {
        if let Ok(runtime) = Builder::new_current_thread().enable_io().build() {
            runtime.block_on(end_on_signal());
        }
    });
}

async fn end_on_signal() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
    let [mut interrupt, mut terminate] = kinds.map(listen);
    let number = loop {
        tokio::select! {
            () = next(&mut interrupt) => match GENERATING.load(Ordering::Relaxed) {
                true => {}
                false => break SignalKind::interrupt(),
            },
            () = next(&mut terminate) => break SignalKind::terminate(),
        }
    };
    let _withdrawn = withdraw_partials();
    // As shells report a program that a signal ended.
    std::process::exit(128 + number.as_raw_value());
}

/// `None` for a signal that the program was started to ignore, as by `nohup` and for jobs in the background of a
/// script.
fn listen(kind: SignalKind) -> Option<Signal> {
    match is_ignored(kind.as_raw_value()) {
        true => None,
        false => signal(kind).ok(),
    }
}

fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (number - 1) & 1 == 1
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}
