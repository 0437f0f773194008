//! The state of the map outputs of a reduce: queued, being fetched, or fetched. A pure state
//! machine: it has no clock and no socket, and the time is an argument.
//!
//! Each map has one entry, filled from one of its attempts. If that attempt is withdrawn, the entry
//! is reset, whatever its state. Fetches are queued by host, and one fetcher at a time uses a
//! host. A failed fetch is repeated after a growing pause and reported to the JobTracker, which
//! decides whether the map runs again. An output that is announced at another address (its tracker
//! restarted, or another node has a copy) is fetched from there at once.

use crate::task_conf::map_index_of;
use proto::mr::{FetchFailed, MapAvailable, MapEvent, map_event};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Number of consecutive failures after which they are reported to the JobTracker, which acts only
/// on several reports.
const FAILURES_REPORTED: u32 = 3;
/// The longest pause is this many times the first.
const BACKOFF_GROWTH_MAX: u32 = 16;

/// An output to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FetchItem {
    pub(super) map: u32,
    pub(super) attempt: String,
    /// `host:port`; empty for an output on this node.
    pub(super) host: String,
    /// The announced shuffle address.
    pub(super) addr: String,
    pub(super) local_path: String,
    /// The root of the map (the index of the submitted split that its range is a part of), and the
    /// offset at which its range begins.
    pub(super) root_and_start: (u32, u64),
}

/// A fetched output.
#[derive(Debug)]
pub(super) struct Arrival<T> {
    pub(super) attempt: String,
    /// See [`FetchItem::root_and_start`].
    pub(super) root_and_start: (u32, u64),
    pub(super) output: T,
}

/// The cause of a failed fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchFault {
    /// The host cannot be reached: all fetches from it wait.
    Host,
    /// The output may be damaged, or the data was incomplete.
    Output,
    /// The server reports that it does not have the output.
    OutputGone,
    /// The server is busy; nothing is at fault.
    Busy,
}

#[derive(Debug)]
struct Entry<T> {
    /// Attempts with this output, oldest first.
    sources: Vec<MapAvailable>,
    state: OutputState<T>,
    failures: u32,
}

#[derive(Debug)]
enum OutputState<T> {
    Missing,
    Queued { attempt: String, addr: String },
    Fetching { attempt: String },
    Fetched(Arrival<T>),
}

#[derive(Debug)]
struct Host {
    queue: VecDeque<(FetchItem, Instant)>,
    is_busy: bool,
    failures: u32,
    /// When the pause after a failure ends.
    ready_at: Instant,
}

#[derive(Debug)]
pub(super) struct ShuffleState<T> {
    entries: BTreeMap<u32, Entry<T>>,
    hosts: BTreeMap<String, Host>,
    fetched_count: u32,
    /// The first pause after a failure.
    pause: Duration,
}

/// Returns whether a queued item must still be fetched: its output may have been withdrawn or
/// queued at another host.
fn is_wanted<T>(entries: &BTreeMap<u32, Entry<T>>, item: &FetchItem) -> bool {
    let state = entries.get(&item.map).map(|entry| &entry.state);
    matches!(state, Some(OutputState::Queued { attempt, addr }) if *attempt == item.attempt && *addr == item.addr)
}

fn fetch_failed(item: &FetchItem) -> FetchFailed {
    FetchFailed { attempt: item.attempt.clone(), addr: item.addr.clone() }
}

impl<T> Entry<T> {
    /// Returns whether the address of the item is still the announced address of its output.
    fn is_current(&self, item: &FetchItem) -> bool {
        self.sources.iter().any(|source| source.attempt == item.attempt && source.shuffle_addr == item.addr)
    }
}

impl<T> ShuffleState<T> {
    /// Starts empty. `pause` is the first pause after a failure.
    pub(super) fn new(pause: Duration) -> Self {
        Self { entries: BTreeMap::new(), hosts: BTreeMap::new(), fetched_count: 0, pause }
    }

    pub(super) fn fetched_count(&self) -> u32 {
        self.fetched_count
    }

    /// Returns whether any output is being fetched.
    pub(super) fn is_fetching(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry.state, OutputState::Fetching { .. }))
    }

    /// Adds an output that an earlier attempt has fetched. Returns false if its attempt is not a
    /// map. An output that the map already has is replaced, which also returns false.
    pub(super) fn add_fetched(&mut self, arrival: Arrival<T>) -> bool {
        let Some(map) = map_index_of(&arrival.attempt) else { return false };
        let entry = Entry { sources: Vec::new(), state: OutputState::Fetched(arrival), failures: 0 };
        let is_new = self.entries.insert(map, entry).is_none();
        self.fetched_count += u32::from(is_new);
        is_new
    }

    /// Handles one map event. Returns it if it is malformed.
    pub(super) fn handle_event(&mut self, event: MapEvent, now: Instant) -> Result<(), MapEvent> {
        let attempt = match &event.kind {
            Some(map_event::Kind::Available(available)) => &available.attempt,
            Some(map_event::Kind::Withdrawn(attempt)) => attempt,
            None => return Err(event),
        };
        let Some(map) = map_index_of(attempt) else { return Err(event) };
        match event.kind {
            Some(map_event::Kind::Available(available)) => self.add_source(map, available, now),
            Some(map_event::Kind::Withdrawn(attempt)) => self.remove_source(map, &attempt, now),
            None => {}
        }
        Ok(())
    }

    fn add_source(&mut self, map: u32, available: MapAvailable, now: Instant) {
        let new = || Entry { sources: Vec::new(), state: OutputState::Missing, failures: 0 };
        let entry = self.entries.entry(map).or_insert_with(new);
        let moved = matches!(
            &entry.state,
            OutputState::Queued { attempt, addr }
                if *attempt == available.attempt && *addr != available.shuffle_addr
        );
        entry.sources.retain(|source| source.attempt != available.attempt);
        entry.sources.push(available);
        if moved || matches!(entry.state, OutputState::Missing) {
            entry.failures = 0;
            self.queue_fetch(map, now);
        }
    }

    fn remove_source(&mut self, map: u32, withdrawn: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(&map) else { return };
        entry.sources.retain(|source| source.attempt != withdrawn);
        let (OutputState::Queued { attempt, .. }
        | OutputState::Fetching { attempt }
        | OutputState::Fetched(Arrival { attempt, .. })) = &entry.state
        else {
            return;
        };
        if attempt == withdrawn {
            self.fetched_count -= u32::from(matches!(entry.state, OutputState::Fetched(_)));
            entry.state = OutputState::Missing;
            entry.failures = 0;
            self.queue_fetch(map, now);
        }
    }

    /// Queues a map at the host of one of its sources: the newest source first, after a failure the
    /// next older one.
    fn queue_fetch(&mut self, map: u32, ready: Instant) {
        let entry = self.entries.get_mut(&map).expect("queued maps have an entry");
        let Some(last) = entry.sources.len().checked_sub(1) else { return };
        let source = &entry.sources[last - entry.failures as usize % entry.sources.len()];
        let (attempt, addr) = (source.attempt.clone(), source.shuffle_addr.clone());
        let host = if source.local_path.is_empty() { addr.clone() } else { String::new() };
        let item = FetchItem {
            map,
            attempt: attempt.clone(),
            host: host.clone(),
            addr: addr.clone(),
            local_path: source.local_path.clone(),
            root_and_start: (source.root, source.start),
        };
        entry.state = OutputState::Queued { attempt, addr };
        let new = || Host { queue: VecDeque::new(), is_busy: false, failures: 0, ready_at: ready };
        self.hosts.entry(host).or_insert_with(new).queue.push_back((item, ready));
    }

    /// Returns an item at a host that no other fetcher uses, and reserves the host until
    /// `release_host`.
    pub(super) fn next_fetch(&mut self, now: Instant) -> Option<FetchItem> {
        let free = |host: &Host| !host.is_busy && host.ready_at <= now;
        let names: Vec<String> =
            self.hosts.iter().filter(|(_, host)| free(host)).map(|(name, _)| name.clone()).collect();
        let item = names.iter().find_map(|name| self.next_fetch_at(name, now))?;
        self.hosts.get_mut(&item.host).expect("the host of an item is known").is_busy = true;
        Some(item)
    }

    /// Returns the next item at the host of a fetcher.
    pub(super) fn next_fetch_at(&mut self, host: &str, now: Instant) -> Option<FetchItem> {
        let host = self.hosts.get_mut(host)?;
        if host.ready_at > now {
            return None;
        }
        let entries = &mut self.entries;
        let mut at = 0;
        // Stop at the first match: the queue may have many thousands of items, and is searched for
        // each of them.
        let item = loop {
            let (item, ready) = host.queue.get(at)?;
            let wanted = is_wanted(entries, item);
            if wanted && *ready > now {
                at += 1;
                continue;
            }
            let (item, _) = host.queue.remove(at).expect("just seen");
            if wanted {
                break item;
            }
        };
        let entry = entries.get_mut(&item.map).expect("just checked");
        entry.state = OutputState::Fetching { attempt: item.attempt.clone() };
        Some(item)
    }

    /// Releases the host of a fetcher that has no more work there.
    pub(super) fn release_host(&mut self, host: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.is_busy = false;
        }
    }

    /// Returns when the first pause ends, among the items at hosts that no fetcher uses.
    pub(super) fn next_ready(&self) -> Option<Instant> {
        let idle = self.hosts.values().filter(|host| !host.is_busy);
        idle.flat_map(|host| host.queue.iter().map(|(_, ready)| (*ready).max(host.ready_at))).min()
    }

    /// Records a fetched output. It is dropped if it was withdrawn in the meantime.
    pub(super) fn record_arrival(&mut self, item: &FetchItem, output: T) {
        if let Some(host) = self.hosts.get_mut(&item.host) {
            host.failures = 0;
        }
        if let Some(entry) = self.fetching_entry(item) {
            let (attempt, root_and_start) = (item.attempt.clone(), item.root_and_start);
            entry.state = OutputState::Fetched(Arrival { attempt, root_and_start, output });
            entry.failures = 0;
            self.fetched_count += 1;
        }
    }

    /// Returns the entry of an item that is still being fetched.
    fn fetching_entry(&mut self, item: &FetchItem) -> Option<&mut Entry<T>> {
        let entry = self.entries.get_mut(&item.map)?;
        matches!(&entry.state, OutputState::Fetching { attempt } if *attempt == item.attempt).then_some(entry)
    }

    /// Records a failed fetch. `jitter` is from 0 to 1. Returns failures to report to the
    /// JobTracker.
    pub(super) fn record_failure(
        &mut self,
        item: &FetchItem,
        fault: FetchFault,
        now: Instant,
        jitter: f64,
    ) -> Vec<FetchFailed> {
        let (pause, base) = (self.pause, f64::midpoint(1.0, jitter));
        let pause_after = |failures: u32| {
            let growth = 1 << failures.saturating_sub(1).min(BACKOFF_GROWTH_MAX.ilog2());
            (pause * growth).mul_f64(base)
        };
        let mut reported = Vec::new();
        let mut ready = now + pause_after(1);
        if fault == FetchFault::Host {
            let host = self.hosts.get_mut(&item.host).expect("the host of an item is known");
            host.failures += 1;
            host.ready_at = now + pause_after(host.failures);
            ready = host.ready_at;
            if host.failures >= FAILURES_REPORTED {
                let entries = &self.entries;
                let waiting = host.queue.iter().map(|(item, _)| item);
                reported.extend(waiting.filter(|item| is_wanted(entries, item)).map(fetch_failed));
            }
        }
        let host_failures = self.hosts.get(&item.host).map_or(0, |host| host.failures);
        let Some(entry) = self.fetching_entry(item) else { return reported };
        if !entry.is_current(item) {
            // The output is now available at another address.
            entry.failures = 0;
            self.queue_fetch(item.map, now);
            return reported;
        }
        match fault {
            FetchFault::Host if host_failures >= FAILURES_REPORTED => reported.push(fetch_failed(item)),
            FetchFault::Host | FetchFault::Busy => {}
            FetchFault::Output | FetchFault::OutputGone => {
                entry.failures += 1;
                ready = now + pause_after(entry.failures);
                if fault == FetchFault::OutputGone || entry.failures >= FAILURES_REPORTED {
                    reported.push(fetch_failed(item));
                }
            }
        }
        self.queue_fetch(item.map, ready);
        reported
    }

    /// Returns all fetched outputs, sorted by their position in the input, then by the index of the
    /// map.
    pub(super) fn into_arrivals(self) -> Vec<Arrival<T>> {
        let mut placed = Vec::with_capacity(self.entries.len());
        for (map, entry) in self.entries {
            if let OutputState::Fetched(arrival) = entry.state {
                placed.push(((arrival.root_and_start, map), arrival));
            }
        }
        placed.sort_unstable_by_key(|(root_and_start, _)| *root_and_start);
        placed.into_iter().map(|(_, arrival)| arrival).collect()
    }
}
