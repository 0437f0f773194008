//! What all parts of a run share: random numbers from the seed, the trace, and counters of events.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use types::split_mix;

/// The simulation. Clones share it.
#[derive(Clone)]
pub(crate) struct Simulation(Arc<Mutex<Shared>>);

struct Shared {
    random: u64,
    begin: Instant,
    /// Hash of all events so far.
    trace: u64,
    events: u64,
    prints: bool,
    counters: BTreeMap<&'static str, u64>,
}

impl Simulation {
    /// Begins at the present (simulated) time.
    pub(crate) fn new(seed: u64, prints: bool) -> Self {
        let random = split_mix::mix(seed);
        Self(Arc::new(Mutex::new(Shared {
            random,
            begin: Instant::now(),
            trace: 0,
            events: 0,
            prints,
            counters: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn random(&self) -> u64 {
        split_mix::next(&mut self.lock().random)
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.random() % limit
    }

    /// Returns true in `permille` of 1,000 cases.
    pub(crate) fn chance(&self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// Returns a time in this range, in microseconds.
    pub(crate) fn micros(&self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.below(most - least + 1))
    }

    /// Returns the time since the begin of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.lock().begin.elapsed()
    }

    /// Adds an event to the trace. Two runs are equal if they have the same events at the same times.
    pub(crate) fn note(&self, what: &'static str, values: impl Debug + AsRef<[u64]>) {
        let mut shared = self.lock();
        let at = shared.begin.elapsed();
        if shared.prints {
            println!("{:>10} {what} {values:?}", at.as_micros());
        }
        let name = what.bytes().fold(0, |hash, byte| split_mix::mix(hash ^ u64::from(byte)));
        let all = [at.as_nanos() as u64, name].into_iter().chain(values.as_ref().iter().copied());
        shared.trace = all.fold(shared.trace, |hash, value| split_mix::mix(hash ^ value));
        shared.events += 1;
    }

    /// Counts an event that runs should contain, see [`crate::RARE_EVENTS`].
    pub(crate) fn count(&self, what: &'static str) {
        *self.lock().counters.entry(what).or_default() += 1;
    }

    /// Forgets what was counted before the run begins.
    pub(crate) fn forget_counts(&self) {
        self.lock().counters.clear();
    }

    /// Returns the hash of all events, their number, and the counters.
    pub(crate) fn result(&self) -> (u64, u64, BTreeMap<&'static str, u64>) {
        let shared = self.lock();
        (shared.trace, shared.events, shared.counters.clone())
    }
}
