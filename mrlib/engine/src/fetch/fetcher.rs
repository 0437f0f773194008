//! The fetcher threads. Each uses one host at a time and fetches its outputs one after the other.

use super::{
    FetchOptions, FetchedOutput, MapFeed,
    shuffle_state::{Arrival, FetchFault, FetchItem, ShuffleState},
    source::{Connection, FetchError, FetchWorker, Output},
};
use crate::scratch::Scratch;
use mrlib_api::TaskError;
use proto::mr::{FetchFailed, MapEvent};
use security::Stream;
use std::{
    net::Shutdown,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// An idle fetcher checks for work at least this often.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Shared by all fetchers of a reduce.
pub(super) struct Fetchers<'a> {
    feed: &'a MapFeed,
    options: &'a FetchOptions,
    scratch: &'a Scratch,
    state: Mutex<FetchState>,
    changed: Condvar,
    /// Bytes of the memory budget in use.
    memory_used: Arc<AtomicU64>,
    /// Bytes fetched, including failed fetches.
    bytes: AtomicU64,
}

struct FetchState {
    shuffle_state: ShuffleState<Output>,
    fetch_failures: Vec<FetchFailed>,
    error: Option<TaskError>,
    has_ended: bool,
    /// The socket of each fetcher, to be shut down at the end.
    sockets: Vec<Option<Stream>>,
}

/// The progress of the shuffle.
pub(super) struct Report {
    pub(super) fetched_count: u32,
    pub(super) bytes: u64,
    pub(super) fetch_failures: Vec<FetchFailed>,
}

impl<'a> Fetchers<'a> {
    pub(super) fn new(feed: &'a MapFeed, options: &'a FetchOptions, scratch: &'a Scratch) -> Self {
        let state = FetchState {
            shuffle_state: ShuffleState::new(options.pause),
            fetch_failures: Vec::new(),
            error: None,
            has_ended: false,
            sockets: (0..options.parallel).map(|_| None).collect(),
        };
        Self {
            feed,
            options,
            scratch,
            state: Mutex::new(state),
            changed: Condvar::new(),
            memory_used: Arc::default(),
            bytes: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds map events. Returns the progress.
    pub(super) fn add_events(&self, events: Vec<MapEvent>, now: Instant) -> Result<Report, TaskError> {
        let mut state = self.state();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        for event in events {
            if let Err(event) = state.shuffle_state.handle_event(event, now) {
                return Err(TaskError::Program(format!(
                    "{event:?} is not a map event: this is a bug in the TaskTracker"
                )));
            }
        }
        self.changed.notify_all();
        let fetch_failures = std::mem::take(&mut state.fetch_failures);
        Ok(Report {
            fetched_count: state.shuffle_state.fetched_count(),
            bytes: self.bytes.load(Ordering::Relaxed),
            fetch_failures,
        })
    }

    /// Ends all fetchers, including those that are waiting for data.
    pub(super) fn end_all(&self) {
        let mut state = self.state();
        state.has_ended = true;
        for socket in state.sockets.iter().flatten() {
            // An error means that the socket is already closed, so no thread waits on it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Starts no more fetches, and waits up to `timeout` for those that are running.
    pub(super) fn finish_in_flight(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        state.has_ended = true;
        self.changed.notify_all();
        while state.shuffle_state.is_fetching()
            && let Some(left) = deadline.checked_duration_since(Instant::now())
        {
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Adds outputs that earlier attempts have fetched. Ignores entries that do not name an attempt
    /// of a map.
    pub(super) fn add_fetched(&self, before: Vec<FetchedOutput>) {
        let mut state = self.state();
        for FetchedOutput { attempt, root, start, run } in before {
            state.shuffle_state.add_fetched(Arrival {
                attempt,
                root_and_start: (root, start),
                output: Output::outside_budget(run),
            });
        }
    }

    /// Returns the fetched outputs, in the order of their maps in the input.
    pub(super) fn into_fetched(self) -> impl Iterator<Item = FetchedOutput> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.shuffle_state.into_arrivals().into_iter().map(
            |Arrival { attempt, root_and_start: (root, start), output }| FetchedOutput {
                attempt,
                root,
                start,
                run: output.into_run(),
            },
        )
    }

    /// Runs a fetcher until the shuffle has ended.
    pub(super) fn run_worker(&self, worker: usize) {
        while let Some(first) = self.first_item() {
            let host = first.host.clone();
            let mut connection = None;
            let mut item = Some(first);
            while let Some(current) = item {
                let fetched = self.fetch(&current, &mut connection, worker);
                item = self.record_result(&current, fetched);
            }
            let mut state = self.state();
            state.sockets[worker] = None;
            state.shuffle_state.release_host(&host);
            self.changed.notify_all();
        }
    }

    /// Waits for an output to fetch from any host. Returns None when the shuffle has ended.
    fn first_item(&self) -> Option<FetchItem> {
        let mut state = self.state();
        loop {
            if state.has_ended {
                return None;
            }
            let now = Instant::now();
            if let Some(item) = state.shuffle_state.next_fetch(now) {
                return Some(item);
            }
            let pause = state
                .shuffle_state
                .next_ready()
                .map_or(IDLE_MAX, |ready| ready.duration_since(now).min(IDLE_MAX));
            let pause = pause.max(Duration::from_millis(1));
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(
        &self,
        item: &FetchItem,
        connection: &mut Option<Connection>,
        worker: usize,
    ) -> Result<Output, FetchError> {
        let worker = FetchWorker {
            options: self.options,
            scratch: self.scratch,
            memory_used: &self.memory_used,
            bytes: &self.bytes,
            on_connect: &|socket| {
                let mut state = self.state();
                state.sockets[worker] = Some(socket);
                !state.has_ended
            },
        };
        if item.local_path.is_empty() { worker.fetch(item, connection) } else { worker.fetch_local(item) }
    }

    /// Records the result of a fetch. Returns the next output to fetch from the same host, if there
    /// is one.
    fn record_result(&self, item: &FetchItem, fetched: Result<Output, FetchError>) -> Option<FetchItem> {
        let mut state = self.state();
        let now = Instant::now();
        match fetched {
            Ok(output) => state.shuffle_state.record_arrival(item, output),
            Err(FetchError::Local(error)) => {
                state.error.get_or_insert(error);
                state.has_ended = true;
            }
            Err(_) if state.has_ended => {}
            Err(FetchError::Remote { fault, why }) => {
                if fault != FetchFault::Busy {
                    tracing::warn!(attempt = %item.attempt, host = %item.host, "cannot fetch: {why}");
                }
                let reported = state.shuffle_state.record_failure(item, fault, now, rand::random::<f64>());
                state.fetch_failures.extend(reported);
            }
        }
        let more = if state.has_ended { None } else { state.shuffle_state.next_fetch_at(&item.host, now) };
        self.changed.notify_all();
        drop(state);
        self.feed.wake();
        more
    }
}
