//! Panics of the engine's threads: it turns them into errors, but they shall not happen.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Begins the message of a panic that a test causes on purpose.
pub const PLANTED: &str = "planted: ";

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let ours = thread.name().is_some_and(|n| n.starts_with("forebay-"));
            let text = info.payload().downcast_ref::<String>();
            let planted = text.is_some_and(|m| m.starts_with(PLANTED));
            PANICS.fetch_add(usize::from(ours && !planted), Ordering::Relaxed);
            hook(info);
        }));
    });
}

/// Runs `body`; a panic of any engine's thread meanwhile is blamed on `what`.
pub fn without_panic<T>(what: &str, body: impl FnOnce() -> T) -> T {
    count_panics();
    let before = PANICS.load(Ordering::Relaxed);
    let result = body();
    assert_eq!(
        PANICS.load(Ordering::Relaxed),
        before,
        "{what} made a thread panic"
    );
    result
}
