//! Catches panics of programs, with their message and location.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

thread_local! {
    /// Message and location of the last panic of this thread.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}
/// Whether a panic was caught in this process.
static PANIC_CAUGHT: AtomicBool = AtomicBool::new(false);

/// Runs `work`. If it panics, returns the message and the location. The panic is also printed as
/// usual.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST_PANIC.with_borrow_mut(|last| *last = describe(info));
            usual(info);
        }));
    });
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        PANIC_CAUGHT.store(true, Ordering::Relaxed);
        LAST_PANIC.with_borrow_mut(std::mem::take)
    })
}

/// Returns whether a panic was caught in this process.
pub(crate) fn any_caught() -> bool {
    PANIC_CAUGHT.load(Ordering::Relaxed)
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let location = info.location().map_or_else(String::new, |location| format!(" at {location}"));
    let payload = info.payload();
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let message = payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message");
    format!("panicked{location}: {message}")
}
