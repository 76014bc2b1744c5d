//! Signals that end the program: what it was writing is removed first, and the terminal is as it was.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use flume::{Receiver, Sender};
use forebay_models::files::withdraw_partials;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How many [`Generating`] there are.
static GENERATING: AtomicUsize = AtomicUsize::new(0);
/// A SIGINT that no generation has taken yet.
static INTERRUPT: LazyLock<(Sender<()>, Receiver<()>)> = LazyLock::new(|| flume::bounded(1));
/// What the terminal is like before lines are edited on it.
static TERMINAL: Mutex<Option<Termios>> = Mutex::new(None);

/// While it lives, SIGINT does not end the program, but is left to who made it.
pub struct Generating(());

impl Generating {
    /// From here on; an earlier SIGINT is forgotten.
    pub fn begin() -> Self {
        GENERATING.fetch_add(1, Ordering::SeqCst);
        let _forgotten = INTERRUPT.1.try_recv();
        Self(())
    }

    /// Waits for SIGINT. One that came since the begin counts.
    pub async fn interrupted(&self) {
        // Its sender lives as long as the program.
        let _ = INTERRUPT.1.recv_async().await;
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        GENERATING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Has the terminal put back, as it is now, when a signal ends the program.
pub fn put_terminal_back() {
    *TERMINAL.lock() = tcgetattr(std::io::stdin()).ok();
}

/// Has a thread wait for SIGINT, SIGTERM and SIGHUP. Best effort: without it they end the program as they always do,
/// and what was half-written is removed by the next conversion.
pub fn watch() {
    let thread = std::thread::Builder::new().name("forebay-signals".into());
    let _ = thread.spawn(|| {
        if let Ok(runtime) = Builder::new_current_thread().enable_io().build() {
            runtime.block_on(end_on_signal());
        }
    });
}

async fn end_on_signal() {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [mut interrupt, mut terminate, mut hangup] = kinds.map(listen);
    let number = loop {
        tokio::select! {
            () = next(&mut interrupt) => match GENERATING.load(Ordering::SeqCst) {
                0 => break SignalKind::interrupt(),
                // One that nobody has taken yet is enough.
                _ => _ = INTERRUPT.0.try_send(()),
            },
            () = next(&mut terminate) => break SignalKind::terminate(),
            () = next(&mut hangup) => break SignalKind::hangup(),
        }
    };
    let _withdrawn = withdraw_partials();
    if let Some(terminal) = TERMINAL.lock().as_ref().filter(|_| is_in_foreground()) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, terminal);
        // The editor of lines has pasted text marked.
        let screen = OpenOptions::new().write(true).open("/dev/tty");
        let _ = screen.and_then(|mut screen| screen.write_all(b"\x1b[?2004l\n"));
    }
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

/// Whether the terminal is this program's at the moment: only then may it be changed.
fn is_in_foreground() -> bool {
    tcgetpgrp(std::io::stdin()) == Ok(getpgrp())
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}
