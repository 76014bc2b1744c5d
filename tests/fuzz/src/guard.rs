//! Runs code that may panic and says where it did.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// What `run` returns, or the message and place of its panic, which is not printed.
pub fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if GUARDED.get() {
                PLACE.with_borrow_mut(|place| *place = info.to_string());
            } else {
                before(info);
            }
        }));
    });
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(false);
    result.map_err(|_| PLACE.take())
}
