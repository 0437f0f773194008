//! What is wished of a running task, set from another thread.
//!
//! A kill is heard everywhere, as an error at the next record or step. The other wishes are heard where they can be
//! granted. The map of a file that can be split ends at its next record with the output of what it has read
//! ([`super::TaskOutcome::position`] tells where); that of a gzip file goes on as if nothing had been said. A reduce that
//! is to pause saves its checkpoint ([`super::ReduceEnd::Paused`]).

use crate::error::TaskError;
use std::{
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// What is wished, short of a kill. The later one stands for the former too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptRequest {
    /// Go on to the end.
    None,
    /// End soon with what has been done: the rest is for another task.
    Split,
    /// End soon with what has been done: the rest is for later.
    Pause,
}

/// Why a wish is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptRefusal {
    /// There is no room on any disk for what it would checkpointed.
    NoSpace,
    /// Its reducer carries something from key to key that it cannot save.
    ReducerNotSavable,
    /// Its mapper must see its whole range.
    MapperNotDivisible,
}

/// Shared by a task and whoever may stop it.
#[derive(Debug, Clone, Default)]
pub struct TaskControl(Arc<Stop>);

#[derive(Debug, Default)]
struct Stop {
    /// A [`PreemptRequest`] as a number, or `KILL`; only grows, but for a wish that is refused.
    state: AtomicU8,
    /// Wishes refused, and why the last was: a [`PreemptRefusal`] as a number.
    refusals: AtomicU32,
    refused: AtomicU8,
    why: OnceLock<String>,
    /// When a wish first came, since the last that was refused.
    requested_at: Mutex<Option<Instant>>,
    /// Of whoever rests; the state is not behind it.
    sleep: Mutex<()>,
    changed: Condvar,
}

const KILL: u8 = u8::MAX;

impl TaskControl {
    /// Says stop: the task fails. The first reason stands.
    pub fn set(&self, why: impl Into<String>) {
        let _ = self.0.why.set(why.into());
        self.raise(KILL);
    }

    /// Makes a wish known.
    pub fn request_preemption(&self, preempt_request: PreemptRequest) {
        self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        self.raise(preempt_request as u8);
    }

    /// When a wish was first made known.
    pub fn requested_at(&self) -> Option<Instant> {
        *self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wished cannot be granted: the task goes on as if nobody had asked. A kill stands.
    pub fn refuse(&self, why: PreemptRefusal) {
        self.0.refused.store(why as u8, Ordering::Relaxed);
        *self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.refusals.fetch_add(1, Ordering::Relaxed);
        let quiet = |state: u8| (state != KILL).then_some(PreemptRequest::None as u8);
        let _ = self.0.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, quiet);
    }

    /// How often that was.
    pub fn refusals(&self) -> u32 {
        self.0.refusals.load(Ordering::Relaxed)
    }

    /// Why the last was, if any was.
    pub fn refused(&self) -> Option<PreemptRefusal> {
        let why = self.0.refused.load(Ordering::Relaxed);
        let all =
            [PreemptRefusal::NoSpace, PreemptRefusal::ReducerNotSavable, PreemptRefusal::MapperNotDivisible];
        all.into_iter().find(|refusal| *refusal as u8 == why).filter(|_| self.refusals() > 0)
    }

    fn raise(&self, state: u8) {
        self.0.state.fetch_max(state, Ordering::Release);
        // Whoever is about to rest has looked at the state under this lock.
        drop(self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.changed.notify_all();
    }

    /// Whether `set` has been called.
    pub fn is_set(&self) -> bool {
        self.state() == KILL
    }

    #[inline]
    fn state(&self) -> u8 {
        self.0.state.load(Ordering::Relaxed)
    }

    /// An error once `set` has been called.
    #[inline]
    pub fn check(&self) -> Result<(), TaskError> {
        if self.state() == KILL { Err(self.stopped()) } else { Ok(()) }
    }

    /// What is wished; an error once `set` has been called.
    #[inline]
    pub fn preempt_request(&self) -> Result<PreemptRequest, TaskError> {
        match self.state() {
            0 => Ok(PreemptRequest::None),
            KILL => Err(self.stopped()),
            state if state == PreemptRequest::Split as u8 => Ok(PreemptRequest::Split),
            _ => Ok(PreemptRequest::Pause),
        }
    }

    /// Does nothing for so long; shorter if the task is killed or, with `preemptible`, if there is a wish.
    pub fn sleep(&self, time: Duration, preemptible: bool) {
        let least = if preemptible { PreemptRequest::Split as u8 } else { KILL };
        let sleep = self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |(): &mut ()| self.0.state.load(Ordering::Acquire) < least;
        drop(self.0.changed.wait_timeout_while(sleep, time, quiet));
    }

    #[cold]
    fn stopped(&self) -> TaskError {
        TaskError::Stopped(self.0.why.get().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_overrides_preemption_and_keeps_the_first_reason() {
        let stop = TaskControl::default();
        assert_eq!(stop.preempt_request().expect("alive"), PreemptRequest::None);
        stop.request_preemption(PreemptRequest::Pause);
        stop.request_preemption(PreemptRequest::Split);
        assert_eq!(stop.preempt_request().expect("alive"), PreemptRequest::Pause);
        stop.check().expect("alive");
        stop.set("first");
        stop.set("second");
        stop.request_preemption(PreemptRequest::Split);
        assert_eq!(stop.preempt_request().expect_err("killed").to_string(), "stopped: first");
        assert!(stop.check().is_err() && stop.is_set());
        stop.refuse(PreemptRefusal::NoSpace);
        assert!(stop.check().is_err(), "a kill cannot be refused");
    }

    #[test]
    fn refused_preemption_can_be_repeated() {
        let stop = TaskControl::default();
        stop.request_preemption(PreemptRequest::Pause);
        assert_eq!(stop.refused(), None);
        stop.refuse(PreemptRefusal::ReducerNotSavable);
        assert_eq!(
            (stop.preempt_request().expect("alive"), stop.refusals(), stop.requested_at()),
            (PreemptRequest::None, 1, None)
        );
        assert_eq!(stop.refused(), Some(PreemptRefusal::ReducerNotSavable));
        stop.request_preemption(PreemptRequest::Pause);
        assert!(
            stop.preempt_request().expect("alive") == PreemptRequest::Pause && stop.requested_at().is_some()
        );
    }

    #[test]
    fn sleep_ends_early_on_preemption() {
        let stop = TaskControl::default();
        let (other, long) = (stop.clone(), Duration::from_mins(10));
        let started = Instant::now();
        let sleeper = std::thread::spawn(move || other.sleep(long, true));
        stop.request_preemption(PreemptRequest::Split);
        sleeper.join().expect("no panic");
        stop.sleep(Duration::from_millis(20), false);
        assert!(started.elapsed() >= Duration::from_millis(20));
        let other = stop.clone();
        let sleeper = std::thread::spawn(move || other.sleep(long, false));
        stop.set("enough");
        sleeper.join().expect("no panic");
        assert!(started.elapsed() < long / 2);
    }
}
