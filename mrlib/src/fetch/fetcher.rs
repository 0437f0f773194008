//! The threads that fetch. Each sits at one host at a time and asks for one output after the other there.

use super::{
    FetchOptions, Fetched, MapFeed,
    shuffle_state::{Arrival, FetchFault, FetchItem, ShuffleState},
    source::{Connection, FetchError, FetchWorker, Output},
};
use crate::{engine::Scratch, error::TaskError};
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

/// A fetcher without work looks again after this long, whatever the book says.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// What the fetchers of one reduce share.
pub(super) struct Fetchers<'a> {
    feed: &'a MapFeed,
    options: &'a FetchOptions,
    scratch: &'a Scratch,
    state: Mutex<FetchState>,
    changed: Condvar,
    /// Of the budget, in use.
    memory_used: Arc<AtomicU64>,
    bytes: AtomicU64,
}

struct FetchState {
    shuffle_state: ShuffleState<Output>,
    fetch_failed: Vec<FetchFailed>,
    error: Option<TaskError>,
    over: bool,
    /// One a fetcher, to hang up on when all is over.
    sockets: Vec<Option<Stream>>,
}

/// How things stand.
pub(super) struct Report {
    pub(super) fetched_count: u32,
    pub(super) bytes: u64,
    pub(super) fetch_failed: Vec<FetchFailed>,
}

impl<'a> Fetchers<'a> {
    pub(super) fn new(feed: &'a MapFeed, options: &'a FetchOptions, scratch: &'a Scratch) -> Self {
        let state = FetchState {
            shuffle_state: ShuffleState::new(options.pause),
            fetch_failed: Vec::new(),
            error: None,
            over: false,
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

    /// Takes events of the list; says how things stand.
    pub(super) fn add_events(&self, events: Vec<MapEvent>, now: Instant) -> Result<Report, TaskError> {
        let mut state = self.state();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        for event in events {
            if let Err(event) = state.shuffle_state.event(event, now) {
                return Err(TaskError::Program(format!("{event:?} is no map event: a bug of the tracker")));
            }
        }
        self.changed.notify_all();
        let fetch_failed = std::mem::take(&mut state.fetch_failed);
        Ok(Report {
            fetched_count: state.shuffle_state.fetched_count(),
            bytes: self.bytes.load(Ordering::Relaxed),
            fetch_failed,
        })
    }

    /// All go home, those in mid-fetch too.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        for socket in state.sockets.iter().flatten() {
            // A socket that is closed already has nobody waiting on it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Nothing more is begun; what is on its way may come in, for as long as `patience` lasts.
    pub(super) fn finish_in_flight(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.state();
        state.over = true;
        self.changed.notify_all();
        while state.shuffle_state.is_fetching()
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was fetched before this began. What cannot be of this job is left out, and fetched anew.
    pub(super) fn put(&self, before: Vec<Fetched>) {
        let mut state = self.state();
        for Fetched { attempt, root, start, run } in before {
            state.shuffle_state.put(Arrival {
                attempt,
                root_and_start: (root, start),
                output: Output::free(run),
            });
        }
    }

    /// What has been fetched, in the order of the maps' places.
    pub(super) fn into_fetched(self) -> impl Iterator<Item = Fetched> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.shuffle_state.into_arrivals().into_iter().map(
            |Arrival { attempt, root_and_start: (root, start), output }| Fetched {
                attempt,
                root,
                start,
                run: output.into_run(),
            },
        )
    }

    /// A fetcher's life.
    pub(super) fn run_worker(&self, worker: usize) {
        while let Some(first) = self.first_item() {
            let host = first.host.clone();
            let mut connection = None;
            let mut item = Some(first);
            while let Some(at_hand) = item {
                let fetched = self.fetch(&at_hand, &mut connection, worker);
                item = self.record_result(&at_hand, fetched);
            }
            let mut state = self.state();
            state.sockets[worker] = None;
            state.shuffle_state.leave(&host);
            self.changed.notify_all();
        }
    }

    /// Waits for work at any host; None when all is over.
    fn first_item(&self) -> Option<FetchItem> {
        let mut state = self.state();
        loop {
            if state.over {
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
            opened: &|socket| {
                let mut state = self.state();
                state.sockets[worker] = Some(socket);
                !state.over
            },
        };
        if item.local_path.is_empty() { worker.fetch(item, connection) } else { worker.fetch_local(item) }
    }

    /// Enters what came of it; returns more work at the same host.
    fn record_result(&self, item: &FetchItem, fetched: Result<Output, FetchError>) -> Option<FetchItem> {
        let mut state = self.state();
        let now = Instant::now();
        match fetched {
            Ok(output) => state.shuffle_state.arrived(item, output),
            Err(FetchError::Local(error)) => {
                state.error.get_or_insert(error);
                state.over = true;
            }
            Err(_) if state.over => {}
            Err(FetchError::Remote { fault, why }) => {
                if fault != FetchFault::Busy {
                    tracing::warn!(attempt = %item.attempt, host = %item.host, "cannot fetch: {why}");
                }
                let reported = state.shuffle_state.failed(item, fault, now, rand::random::<f64>());
                state.fetch_failed.extend(reported);
            }
        }
        let more = if state.over { None } else { state.shuffle_state.next_fetch_at(&item.host, now) };
        self.changed.notify_all();
        drop(state);
        self.feed.wake();
        more
    }
}
