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
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}
static SEEN: AtomicBool = AtomicBool::new(false);

/// Runs `work`. If it panics, returns the message and the location. The panic is also printed as
/// usual.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST.with_borrow_mut(|last| *last = text(info));
            usual(info);
        }));
    });
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        SEEN.store(true, Ordering::Relaxed);
        LAST.with_borrow_mut(std::mem::take)
    })
}

/// Whether a panic was caught in this process.
pub(crate) fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

fn text(info: &PanicHookInfo<'_>) -> String {
    let location = info.location().map_or_else(String::new, |location| format!(" at {location}"));
    let payload = info.payload();
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let message = payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message");
    format!("panicked{location}: {message}")
}
