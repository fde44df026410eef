//! Panics inside a world are findings, not noise: they are kept for the report and not printed.

use std::cell::{Cell, RefCell};
use std::sync::Once;

thread_local! {
    static IN_WORLD: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Puts the listener up, once a process.
pub(crate) fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_WORLD.get() {
                LAST.with(|last| *last.borrow_mut() = info.to_string().replace('\n', " "));
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs something whose panics are kept.
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let before = IN_WORLD.replace(true);
    let r = f();
    IN_WORLD.set(before);
    r
}

/// Gives the message of the last panic of this thread.
pub(crate) fn last_panic() -> String {
    IN_WORLD.set(false);
    LAST.with(|last| last.borrow().clone())
}
