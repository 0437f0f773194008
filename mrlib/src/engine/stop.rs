//! What is wished of a running task, set from another thread.
//!
//! A kill is heard everywhere, as an error at the next record or step. The other wishes are heard where they can be
//! granted. The map of a file that can be split ends at its next record with the output of what it has read
//! ([`super::TaskOutcome::position`] tells where); that of a gzip file goes on as if nothing had been said. A reduce that
//! is to pause puts its state aside ([`super::ReduceEnd::Paused`]).

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
pub enum Wish {
    /// Go on to the end.
    GoOn,
    /// End soon with what has been done: the rest is for another task.
    Split,
    /// End soon with what has been done: the rest is for later.
    Pause,
}

/// Why a wish is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room on any disk for what it would put aside.
    NoRoom,
    /// Its reducer carries something from key to key that it cannot save.
    Unsaved,
    /// Its mapper must see its whole range.
    Undivided,
}

/// Shared by a task and whoever may stop it.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Stop>);

#[derive(Debug, Default)]
struct Stop {
    /// A [`Wish`] as a number, or `KILL`; only grows, but for a wish that is refused.
    state: AtomicU8,
    /// Wishes refused, and why the last was: a [`Refusal`] as a number.
    refusals: AtomicU32,
    refused: AtomicU8,
    why: OnceLock<String>,
    /// When a wish first came, since the last that was refused.
    asked: Mutex<Option<Instant>>,
    /// Of whoever rests; the state is not behind it.
    rest: Mutex<()>,
    bell: Condvar,
}

const KILL: u8 = u8::MAX;

impl StopFlag {
    /// Says stop: the task fails. The first reason stands.
    pub fn set(&self, why: impl Into<String>) {
        let _ = self.0.why.set(why.into());
        self.raise(KILL);
    }

    /// Makes a wish known.
    pub fn ask(&self, wish: Wish) {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        self.raise(wish as u8);
    }

    /// When a wish was first made known.
    pub fn asked(&self) -> Option<Instant> {
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wished cannot be granted: the task goes on as if nobody had asked. A kill stands.
    pub fn refuse(&self, why: Refusal) {
        self.0.refused.store(why as u8, Ordering::Relaxed);
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.refusals.fetch_add(1, Ordering::Relaxed);
        let quiet = |state: u8| (state != KILL).then_some(Wish::GoOn as u8);
        let _ = self.0.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, quiet);
    }

    /// How often that was.
    pub fn refusals(&self) -> u32 {
        self.0.refusals.load(Ordering::Relaxed)
    }

    /// Why the last was, if any was.
    pub fn refused(&self) -> Option<Refusal> {
        let why = self.0.refused.load(Ordering::Relaxed);
        let all = [Refusal::NoRoom, Refusal::Unsaved, Refusal::Undivided];
        all.into_iter().find(|refusal| *refusal as u8 == why).filter(|_| self.refusals() > 0)
    }

    fn raise(&self, state: u8) {
        self.0.state.fetch_max(state, Ordering::Release);
        // Whoever is about to rest has looked at the state under this lock.
        drop(self.0.rest.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.bell.notify_all();
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
    pub fn wish(&self) -> Result<Wish, TaskError> {
        match self.state() {
            0 => Ok(Wish::GoOn),
            KILL => Err(self.stopped()),
            state if state == Wish::Split as u8 => Ok(Wish::Split),
            _ => Ok(Wish::Pause),
        }
    }

    /// Does nothing for so long; shorter if the task is killed or, with `heeds`, if there is a wish.
    pub fn rest(&self, time: Duration, heeds: bool) {
        let least = if heeds { Wish::Split as u8 } else { KILL };
        let rest = self.0.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |(): &mut ()| self.0.state.load(Ordering::Acquire) < least;
        drop(self.0.bell.wait_timeout_while(rest, time, quiet));
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
    fn a_kill_outranks_every_wish_and_its_first_reason_stands() {
        let stop = StopFlag::default();
        assert_eq!(stop.wish().expect("alive"), Wish::GoOn);
        stop.ask(Wish::Pause);
        stop.ask(Wish::Split);
        assert_eq!(stop.wish().expect("alive"), Wish::Pause);
        stop.check().expect("alive");
        stop.set("first");
        stop.set("second");
        stop.ask(Wish::Split);
        assert_eq!(stop.wish().expect_err("killed").to_string(), "stopped: first");
        assert!(stop.check().is_err() && stop.is_set());
        stop.refuse(Refusal::NoRoom);
        assert!(stop.check().is_err(), "a kill cannot be refused");
    }

    #[test]
    fn a_wish_that_is_refused_can_be_made_again() {
        let stop = StopFlag::default();
        stop.ask(Wish::Pause);
        assert_eq!(stop.refused(), None);
        stop.refuse(Refusal::Unsaved);
        assert_eq!((stop.wish().expect("alive"), stop.refusals(), stop.asked()), (Wish::GoOn, 1, None));
        assert_eq!(stop.refused(), Some(Refusal::Unsaved));
        stop.ask(Wish::Pause);
        assert!(stop.wish().expect("alive") == Wish::Pause && stop.asked().is_some());
    }

    #[test]
    fn a_rest_ends_early_for_those_who_heed() {
        let stop = StopFlag::default();
        let (other, long) = (stop.clone(), Duration::from_mins(10));
        let started = Instant::now();
        let sleeper = std::thread::spawn(move || other.rest(long, true));
        stop.ask(Wish::Split);
        sleeper.join().expect("no panic");
        stop.rest(Duration::from_millis(20), false);
        assert!(started.elapsed() >= Duration::from_millis(20));
        let other = stop.clone();
        let sleeper = std::thread::spawn(move || other.rest(long, false));
        stop.set("enough");
        sleeper.join().expect("no panic");
        assert!(started.elapsed() < long / 2);
    }
}
