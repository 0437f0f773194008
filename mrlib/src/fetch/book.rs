//! Which map outputs are wanted, being fetched, and here. No clock, no socket: time comes in with each call.
//!
//! One entry a map, filled from one attempt. A withdrawn attempt empties its entry again, whether it was waiting,
//! on its way or here. Work is queued by host; one fetcher at a time sits at a host. What fails is tried again after
//! a growing pause and is told to the JobTracker, which decides whether the map runs again. An output that is announced
//! at another address (its tracker restarted, or another has a copy) is fetched there at once.

use crate::task::map_of;
use proto::mr::{MapAvailable, MapEvent, Unfetched, map_event};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Failures in a row before the JobTracker is told; it wants several such words itself.
const FAILURES_TOLD: u32 = 3;
/// The longest pause is the shortest times this.
const PAUSE_GROWTH_MAX: u32 = 16;

/// One output to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) map: u32,
    pub(super) attempt: String,
    /// `host:port`; empty for output on this node's disks.
    pub(super) host: String,
    /// The shuffle address that was announced.
    pub(super) addr: String,
    pub(super) local_path: String,
    /// The map's root and where it begins in it.
    pub(super) place: (u32, u64),
}

/// An output that is here.
#[derive(Debug)]
pub(super) struct Arrival<T> {
    pub(super) attempt: String,
    /// The map's root and where it begins in it.
    pub(super) place: (u32, u64),
    pub(super) output: T,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The host cannot be reached: all that waits there suffers.
    Host,
    /// This output, perhaps: damaged or cut on the way.
    Output,
    /// This output, for certain: the server says so.
    Gone,
    /// Nobody: it is busy.
    Nobody,
}

#[derive(Debug)]
struct Entry<T> {
    /// Attempts whose output can be had, oldest first.
    sources: Vec<MapAvailable>,
    state: State<T>,
    failures: u32,
}

#[derive(Debug)]
enum State<T> {
    Missing,
    Queued { attempt: String, addr: String },
    Fetching { attempt: String },
    Here(Arrival<T>),
}

#[derive(Debug)]
struct Host {
    queue: VecDeque<(Work, Instant)>,
    taken: bool,
    failures: u32,
    ready: Instant,
}

/// The state of a reduce's shuffle.
#[derive(Debug)]
pub(super) struct Book<T> {
    entries: BTreeMap<u32, Entry<T>>,
    hosts: BTreeMap<String, Host>,
    here: u32,
    pause: Duration,
}

/// Whether queued work is still wanted: it may have been withdrawn, or queued elsewhere.
fn is_wanted<T>(entries: &BTreeMap<u32, Entry<T>>, work: &Work) -> bool {
    let state = entries.get(&work.map).map(|entry| &entry.state);
    matches!(state, Some(State::Queued { attempt, addr }) if *attempt == work.attempt && *addr == work.addr)
}

fn unfetched(work: &Work) -> Unfetched {
    Unfetched { attempt: work.attempt.clone(), addr: work.addr.clone() }
}

impl<T> Entry<T> {
    /// Whether the newest announcement of an output is the one that this work is from.
    fn is_current(&self, work: &Work) -> bool {
        self.sources.iter().any(|source| source.attempt == work.attempt && source.shuffle_addr == work.addr)
    }
}

impl<T> Book<T> {
    /// Nothing known yet; `pause` is the first one after a failure.
    pub(super) fn new(pause: Duration) -> Self {
        Self { entries: BTreeMap::new(), hosts: BTreeMap::new(), here: 0, pause }
    }

    /// Outputs that are here.
    pub(super) fn here(&self) -> u32 {
        self.here
    }

    /// Whether any is on its way.
    pub(super) fn is_fetching(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry.state, State::Fetching { .. }))
    }

    /// An output that was fetched before; false if it is of no map.
    pub(super) fn put(&mut self, arrival: Arrival<T>) -> bool {
        let Some(map) = map_of(&arrival.attempt) else { return false };
        let entry = Entry { sources: Vec::new(), state: State::Here(arrival), failures: 0 };
        let is_new = self.entries.insert(map, entry).is_none();
        self.here += u32::from(is_new);
        is_new
    }

    /// Takes one event of the list; gives it back if it makes no sense.
    pub(super) fn event(&mut self, event: MapEvent, now: Instant) -> Result<(), MapEvent> {
        let attempt = match &event.kind {
            Some(map_event::Kind::Available(available)) => &available.attempt,
            Some(map_event::Kind::Withdrawn(attempt)) => attempt,
            None => return Err(event),
        };
        let Some(map) = map_of(attempt) else { return Err(event) };
        match event.kind {
            Some(map_event::Kind::Available(available)) => self.available(map, available, now),
            Some(map_event::Kind::Withdrawn(attempt)) => self.withdrawn(map, &attempt, now),
            None => {}
        }
        Ok(())
    }

    fn available(&mut self, map: u32, available: MapAvailable, now: Instant) {
        let new = || Entry { sources: Vec::new(), state: State::Missing, failures: 0 };
        let entry = self.entries.entry(map).or_insert_with(new);
        let moved = matches!(
            &entry.state,
            State::Queued { attempt, addr }
                if *attempt == available.attempt && *addr != available.shuffle_addr
        );
        entry.sources.retain(|source| source.attempt != available.attempt);
        entry.sources.push(available);
        if moved || matches!(entry.state, State::Missing) {
            entry.failures = 0;
            self.queue(map, now);
        }
    }

    fn withdrawn(&mut self, map: u32, withdrawn: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(&map) else { return };
        entry.sources.retain(|source| source.attempt != withdrawn);
        let (State::Queued { attempt, .. }
        | State::Fetching { attempt }
        | State::Here(Arrival { attempt, .. })) = &entry.state
        else {
            return;
        };
        if attempt == withdrawn {
            self.here -= u32::from(matches!(entry.state, State::Here(_)));
            entry.state = State::Missing;
            entry.failures = 0;
            self.queue(map, now);
        }
    }

    /// Queues a map at the host of one of its sources, if it has any: the newest first, then each in turn.
    fn queue(&mut self, map: u32, ready: Instant) {
        let entry = self.entries.get_mut(&map).expect("queued maps have an entry");
        let Some(last) = entry.sources.len().checked_sub(1) else { return };
        let source = &entry.sources[last - entry.failures as usize % entry.sources.len()];
        let (attempt, addr) = (source.attempt.clone(), source.shuffle_addr.clone());
        let host = if source.local_path.is_empty() { addr.clone() } else { String::new() };
        let work = Work {
            map,
            attempt: attempt.clone(),
            host: host.clone(),
            addr: addr.clone(),
            local_path: source.local_path.clone(),
            place: (source.root, source.start),
        };
        entry.state = State::Queued { attempt, addr };
        let new = || Host { queue: VecDeque::new(), taken: false, failures: 0, ready };
        self.hosts.entry(host).or_insert_with(new).queue.push_back((work, ready));
    }

    /// Work for a fetcher that sits at no host. It has the host for itself until it leaves.
    pub(super) fn take(&mut self, now: Instant) -> Option<Work> {
        let free = |host: &Host| !host.taken && host.ready <= now;
        let names: Vec<String> =
            self.hosts.iter().filter(|(_, host)| free(host)).map(|(name, _)| name.clone()).collect();
        let work = names.iter().find_map(|name| self.take_at(name, now))?;
        self.hosts.get_mut(&work.host).expect("it had work").taken = true;
        Some(work)
    }

    /// More work at the host that a fetcher sits at.
    pub(super) fn take_at(&mut self, host: &str, now: Instant) -> Option<Work> {
        let host = self.hosts.get_mut(host)?;
        if host.ready > now {
            return None;
        }
        let entries = &mut self.entries;
        let mut at = 0;
        // Looks no further than it must: there may be a queue of many thousands, and as many calls.
        let work = loop {
            let (work, ready) = host.queue.get(at)?;
            let wanted = is_wanted(entries, work);
            if wanted && *ready > now {
                at += 1;
                continue;
            }
            let (work, _) = host.queue.remove(at).expect("just seen");
            if wanted {
                break work;
            }
        };
        let entry = entries.get_mut(&work.map).expect("just checked");
        entry.state = State::Fetching { attempt: work.attempt.clone() };
        Some(work)
    }

    /// A fetcher goes away from a host.
    pub(super) fn leave(&mut self, host: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.taken = false;
        }
    }

    /// When there may be work again that is only waiting for its pause to end.
    pub(super) fn next_ready(&self) -> Option<Instant> {
        let idle = self.hosts.values().filter(|host| !host.taken);
        idle.flat_map(|host| host.queue.iter().map(|(_, ready)| (*ready).max(host.ready))).min()
    }

    /// An output has come. It is dropped if it was withdrawn on the way.
    pub(super) fn arrived(&mut self, work: &Work, output: T) {
        if let Some(host) = self.hosts.get_mut(&work.host) {
            host.failures = 0;
        }
        if let Some(entry) = self.fetching(work) {
            let (attempt, place) = (work.attempt.clone(), work.place);
            entry.state = State::Here(Arrival { attempt, place, output });
            entry.failures = 0;
            self.here += 1;
        }
    }

    fn fetching(&mut self, work: &Work) -> Option<&mut Entry<T>> {
        let entry = self.entries.get_mut(&work.map)?;
        matches!(&entry.state, State::Fetching { attempt } if *attempt == work.attempt).then_some(entry)
    }

    /// An output has not come. `jitter` is from 0 to 1. Returns what to tell the JobTracker.
    pub(super) fn failed(&mut self, work: &Work, blame: Blame, now: Instant, jitter: f64) -> Vec<Unfetched> {
        let (pause, base) = (self.pause, f64::midpoint(1.0, jitter));
        let pause_after = |failures: u32| {
            let growth = 1 << failures.saturating_sub(1).min(PAUSE_GROWTH_MAX.ilog2());
            (pause * growth).mul_f64(base)
        };
        let mut told = Vec::new();
        let mut ready = now + pause_after(1);
        if blame == Blame::Host {
            let host = self.hosts.get_mut(&work.host).expect("it had work");
            host.failures += 1;
            host.ready = now + pause_after(host.failures);
            ready = host.ready;
            if host.failures >= FAILURES_TOLD {
                let entries = &self.entries;
                let waiting = host.queue.iter().map(|(work, _)| work);
                told.extend(waiting.filter(|work| is_wanted(entries, work)).map(unfetched));
            }
        }
        let host_failures = self.hosts.get(&work.host).map_or(0, |host| host.failures);
        let Some(entry) = self.fetching(work) else { return told };
        if !entry.is_current(work) {
            // It has moved meanwhile.
            entry.failures = 0;
            self.queue(work.map, now);
            return told;
        }
        match blame {
            Blame::Host if host_failures >= FAILURES_TOLD => told.push(unfetched(work)),
            Blame::Host | Blame::Nobody => {}
            Blame::Output | Blame::Gone => {
                entry.failures += 1;
                ready = now + pause_after(entry.failures);
                if blame == Blame::Gone || entry.failures >= FAILURES_TOLD {
                    told.push(unfetched(work));
                }
            }
        }
        self.queue(work.map, ready);
        told
    }

    /// All that is here, by the maps' places in the input; by number where those are the same.
    pub(super) fn into_arrivals(self) -> Vec<Arrival<T>> {
        let mut placed = Vec::with_capacity(self.entries.len());
        for (map, entry) in self.entries {
            if let State::Here(arrival) = entry.state {
                placed.push(((arrival.place, map), arrival));
            }
        }
        placed.sort_unstable_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, arrival)| arrival).collect()
    }
}
