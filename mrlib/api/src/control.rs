//! Requests to a running task, set from another thread.
//!
//! A kill takes effect everywhere, as an error at the next record or step. A preemption request
//! takes effect where it can be granted. A divisible map ends at its next record with the output of
//! what it has read (`TaskOutcome::position` is where it ended). A map that is not
//! divisible, or reads gzip, refuses and continues. A reduce saves a checkpoint
//! (`ReduceEnd::Paused`).

use crate::error::TaskError;
use std::{
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use types::{PreemptKind, PreemptRefusal};

/// Shared by a task and the threads that may preempt it.
#[derive(Debug, Clone, Default)]
pub struct TaskControl(Arc<Control>);

#[derive(Debug, Default)]
struct Control {
    /// `NONE`, `SPLIT`, `PAUSE` or `KILL`. Only grows, except when a request is refused.
    state: AtomicU8,
    /// Number of refused requests.
    refusals: AtomicU32,
    /// Why the last request was refused: a [`PreemptRefusal`] as a number.
    last_refusal: AtomicU8,
    kill_reason: OnceLock<String>,
    /// If set, every request is refused at once, with this reason and text. The lock is held while
    /// a request is made.
    refuse_all: Mutex<Option<(PreemptRefusal, &'static str)>>,
    /// When a preemption was first requested after the last refusal.
    requested_at: Mutex<Option<Instant>>,
    /// The lock of `changed`. It does not protect `state`.
    sleep_lock: Mutex<()>,
    changed: Condvar,
}

/// No preemption is requested: the task continues to its end.
const NONE: u8 = 0;
const SPLIT: u8 = 1;
const PAUSE: u8 = 2;
const KILL: u8 = u8::MAX;

impl TaskControl {
    /// Kills the task, which then fails. Only the first reason is kept.
    pub fn kill(&self, why: impl Into<String>) {
        let _ = self.0.kill_reason.set(why.into());
        self.raise_state(KILL);
    }

    /// Requests a preemption. A pause replaces a split, and a kill replaces both. Use
    /// [`TaskControl::kill`] to kill with a reason.
    pub fn request_preemption(&self, kind: PreemptKind) {
        let state = match kind {
            PreemptKind::Split => SPLIT,
            PreemptKind::Pause => PAUSE,
            PreemptKind::Kill => return self.kill("preempted"),
        };
        let refuse_all = self.0.refuse_all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((why, text)) = *refuse_all {
            eprintln!("preemption refused: {text}");
            return self.refuse(why);
        }
        self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        self.raise_state(state);
    }

    /// Returns when a preemption was first requested after the last refusal.
    pub fn requested_at(&self) -> Option<Instant> {
        *self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses the request: the task continues as if there was none. A kill cannot be refused.
    pub fn refuse(&self, why: PreemptRefusal) {
        self.0.last_refusal.store(why as u8, Ordering::Relaxed);
        *self.0.requested_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.refusals.fetch_add(1, Ordering::Relaxed);
        let quiet = |state: u8| (state != KILL).then_some(NONE);
        let _ = self.0.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, quiet);
    }

    /// Refuses the pending preemption request, if there is one, and from now on every new request
    /// at once. `text` is for the log.
    pub fn refuse_all(&self, why: PreemptRefusal, text: &'static str) {
        let mut refuse_all = self.0.refuse_all.lock().unwrap_or_else(PoisonError::into_inner);
        *refuse_all = Some((why, text));
        if self.requested_at().is_some() {
            eprintln!("preemption refused: {text}");
            self.refuse(why);
        }
    }

    /// Returns the number of refused requests.
    pub fn refusals(&self) -> u32 {
        self.0.refusals.load(Ordering::Relaxed)
    }

    /// Returns the reason of the last refusal.
    pub fn last_refusal(&self) -> Option<PreemptRefusal> {
        let why = self.0.last_refusal.load(Ordering::Relaxed);
        let all =
            [PreemptRefusal::NoSpace, PreemptRefusal::ReducerNotSavable, PreemptRefusal::MapperNotDivisible];
        all.into_iter().find(|refusal| *refusal as u8 == why).filter(|_| self.refusals() > 0)
    }

    /// Raises the state to at least `state`, and wakes sleeping threads.
    fn raise_state(&self, state: u8) {
        self.0.state.fetch_max(state, Ordering::Release);
        // A thread checks the state under this lock before it sleeps, so it cannot miss the
        // notification.
        drop(self.0.sleep_lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.changed.notify_all();
    }

    /// Returns whether the task was killed.
    pub fn is_killed(&self) -> bool {
        self.state() == KILL
    }

    #[inline]
    fn state(&self) -> u8 {
        self.0.state.load(Ordering::Relaxed)
    }

    /// Fails if the task was killed.
    #[inline]
    pub fn check(&self) -> Result<(), TaskError> {
        if self.state() == KILL { Err(self.killed_error()) } else { Ok(()) }
    }

    /// Returns the pending preemption request, if there is one. Fails if the task was killed.
    #[inline]
    pub fn preempt_request(&self) -> Result<Option<PreemptKind>, TaskError> {
        match self.state() {
            NONE => Ok(None),
            SPLIT => Ok(Some(PreemptKind::Split)),
            KILL => Err(self.killed_error()),
            _ => Ok(Some(PreemptKind::Pause)),
        }
    }

    /// Sleeps for `time`, or until the task is killed or, with `preemptible`, a preemption is
    /// requested.
    pub fn sleep(&self, time: Duration, preemptible: bool) {
        let least = if preemptible { SPLIT } else { KILL };
        let sleep = self.0.sleep_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |(): &mut ()| self.0.state.load(Ordering::Acquire) < least;
        drop(self.0.changed.wait_timeout_while(sleep, time, quiet));
    }

    #[cold]
    fn killed_error(&self) -> TaskError {
        TaskError::Killed(self.0.kill_reason.get().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_overrides_preemption_and_keeps_the_first_reason() {
        let control = TaskControl::default();
        assert_eq!(control.preempt_request().expect("alive"), None);
        control.request_preemption(PreemptKind::Pause);
        control.request_preemption(PreemptKind::Split);
        assert_eq!(control.preempt_request().expect("alive"), Some(PreemptKind::Pause));
        control.check().expect("alive");
        control.kill("first");
        control.kill("second");
        control.request_preemption(PreemptKind::Split);
        assert_eq!(control.preempt_request().expect_err("killed").to_string(), "killed: first");
        assert!(control.check().is_err() && control.is_killed());
        control.refuse(PreemptRefusal::NoSpace);
        assert!(control.check().is_err(), "a kill cannot be refused");
    }

    #[test]
    fn refused_preemption_can_be_repeated() {
        let control = TaskControl::default();
        control.request_preemption(PreemptKind::Pause);
        assert_eq!(control.last_refusal(), None);
        control.refuse(PreemptRefusal::ReducerNotSavable);
        assert_eq!(
            (control.preempt_request().expect("alive"), control.refusals(), control.requested_at()),
            (None, 1, None)
        );
        assert_eq!(control.last_refusal(), Some(PreemptRefusal::ReducerNotSavable));
        control.request_preemption(PreemptKind::Pause);
        assert!(
            control.preempt_request().expect("alive") == Some(PreemptKind::Pause)
                && control.requested_at().is_some()
        );
    }

    #[test]
    fn requests_that_cannot_be_granted_are_refused_at_once() {
        let control = TaskControl::default();
        control.refuse_all(PreemptRefusal::ReducerNotSavable, "test");
        assert_eq!((control.refusals(), control.last_refusal()), (0, None));
        control.request_preemption(PreemptKind::Pause);
        control.request_preemption(PreemptKind::Pause);
        assert_eq!(
            (control.refusals(), control.last_refusal()),
            (2, Some(PreemptRefusal::ReducerNotSavable))
        );
        assert_eq!(control.preempt_request().expect("alive"), None);
        control.kill("killed");
        assert!(control.check().is_err());
        // A request that was made before `refuse_all` is refused too.
        let control = TaskControl::default();
        control.request_preemption(PreemptKind::Split);
        control.refuse_all(PreemptRefusal::MapperNotDivisible, "test");
        assert_eq!((control.refusals(), control.requested_at()), (1, None));
    }

    #[test]
    fn sleep_ends_early_on_preemption() {
        let control = TaskControl::default();
        let (other, long) = (control.clone(), Duration::from_mins(10));
        let started = Instant::now();
        let sleeper = std::thread::spawn(move || other.sleep(long, true));
        control.request_preemption(PreemptKind::Split);
        sleeper.join().expect("the thread has ended");
        control.sleep(Duration::from_millis(20), false);
        assert!(started.elapsed() >= Duration::from_millis(20));
        let other = control.clone();
        let sleeper = std::thread::spawn(move || other.sleep(long, false));
        control.kill("enough");
        sleeper.join().expect("the thread has ended");
        assert!(started.elapsed() < long / 2);
    }
}
