//! The threads that fetch. Each sits at one host at a time and asks for one output after the other there.

use super::{
    FetchOptions, Fetched, MapFeed,
    book::{Arrival, Blame, Book, Work},
    source::{Connection, FetchError, Output, Seat},
};
use crate::{engine::Scratch, error::TaskError};
use proto::mr::{MapEvent, Unfetched};
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
    desk: Mutex<Desk>,
    bell: Condvar,
    /// Of the budget, in use.
    memory_used: Arc<AtomicU64>,
    bytes: AtomicU64,
}

struct Desk {
    book: Book<Output>,
    unfetched: Vec<Unfetched>,
    error: Option<TaskError>,
    over: bool,
    /// One a fetcher, to hang up on when all is over.
    sockets: Vec<Option<Stream>>,
}

/// How things stand.
pub(super) struct Report {
    pub(super) here: u32,
    pub(super) bytes: u64,
    pub(super) unfetched: Vec<Unfetched>,
}

impl<'a> Fetchers<'a> {
    pub(super) fn new(feed: &'a MapFeed, options: &'a FetchOptions, scratch: &'a Scratch) -> Self {
        let desk = Desk {
            book: Book::new(options.pause),
            unfetched: Vec::new(),
            error: None,
            over: false,
            sockets: (0..options.parallel).map(|_| None).collect(),
        };
        Self {
            feed,
            options,
            scratch,
            desk: Mutex::new(desk),
            bell: Condvar::new(),
            memory_used: Arc::default(),
            bytes: AtomicU64::new(0),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes events of the list; says how things stand.
    pub(super) fn take_news(&self, events: Vec<MapEvent>, now: Instant) -> Result<Report, TaskError> {
        let mut desk = self.desk();
        if let Some(error) = desk.error.take() {
            return Err(error);
        }
        for event in events {
            if let Err(event) = desk.book.event(event, now) {
                return Err(TaskError::Program(format!("{event:?} is no map event: a bug of the tracker")));
            }
        }
        self.bell.notify_all();
        let unfetched = std::mem::take(&mut desk.unfetched);
        Ok(Report { here: desk.book.here(), bytes: self.bytes.load(Ordering::Relaxed), unfetched })
    }

    /// All go home, those in mid-fetch too.
    pub(super) fn end(&self) {
        let mut desk = self.desk();
        desk.over = true;
        for socket in desk.sockets.iter().flatten() {
            // A socket that is closed already has nobody waiting on it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.bell.notify_all();
    }

    /// Nothing more is begun; what is on its way may come in, for as long as `patience` lasts.
    pub(super) fn wind_down(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut desk = self.desk();
        desk.over = true;
        self.bell.notify_all();
        while desk.book.is_fetching()
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            desk = self.bell.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was fetched before this began. What cannot be of this job is left out, and fetched anew.
    pub(super) fn put(&self, before: Vec<Fetched>) {
        let mut desk = self.desk();
        for Fetched { attempt, root, start, run } in before {
            desk.book.put(Arrival { attempt, place: (root, start), output: Output::free(run) });
        }
    }

    /// What has been fetched, in the order of the maps' places.
    pub(super) fn into_fetched(self) -> impl Iterator<Item = Fetched> {
        let desk = self.desk.into_inner().unwrap_or_else(PoisonError::into_inner);
        desk.book.into_arrivals().into_iter().map(|Arrival { attempt, place: (root, start), output }| {
            Fetched { attempt, root, start, run: output.into_run() }
        })
    }

    /// A fetcher's life.
    pub(super) fn work(&self, seat: usize) {
        while let Some(first) = self.first_work() {
            let host = first.host.clone();
            let mut connection = None;
            let mut work = Some(first);
            while let Some(at_hand) = work {
                let fetched = self.fetch(&at_hand, &mut connection, seat);
                work = self.settle(&at_hand, fetched);
            }
            let mut desk = self.desk();
            desk.sockets[seat] = None;
            desk.book.leave(&host);
            self.bell.notify_all();
        }
    }

    /// Waits for work at any host; None when all is over.
    fn first_work(&self) -> Option<Work> {
        let mut desk = self.desk();
        loop {
            if desk.over {
                return None;
            }
            let now = Instant::now();
            if let Some(work) = desk.book.take(now) {
                return Some(work);
            }
            let pause =
                desk.book.next_ready().map_or(IDLE_MAX, |ready| ready.duration_since(now).min(IDLE_MAX));
            let pause = pause.max(Duration::from_millis(1));
            desk = self.bell.wait_timeout(desk, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(
        &self,
        work: &Work,
        connection: &mut Option<Connection>,
        seat: usize,
    ) -> Result<Output, FetchError> {
        let seat = Seat {
            options: self.options,
            scratch: self.scratch,
            memory_used: &self.memory_used,
            bytes: &self.bytes,
            opened: &|socket| {
                let mut desk = self.desk();
                desk.sockets[seat] = Some(socket);
                !desk.over
            },
        };
        if work.local_path.is_empty() { seat.fetch(work, connection) } else { seat.fetch_local(work) }
    }

    /// Enters what came of it; returns more work at the same host.
    fn settle(&self, work: &Work, fetched: Result<Output, FetchError>) -> Option<Work> {
        let mut desk = self.desk();
        let now = Instant::now();
        match fetched {
            Ok(output) => desk.book.arrived(work, output),
            Err(FetchError::Own(error)) => {
                desk.error.get_or_insert(error);
                desk.over = true;
            }
            Err(_) if desk.over => {}
            Err(FetchError::Theirs { blame, why }) => {
                if blame != Blame::Nobody {
                    tracing::warn!(attempt = %work.attempt, host = %work.host, "cannot fetch: {why}");
                }
                let told = desk.book.failed(work, blame, now, rand::random::<f64>());
                desk.unfetched.extend(told);
            }
        }
        let more = if desk.over { None } else { desk.book.take_at(&work.host, now) };
        self.bell.notify_all();
        drop(desk);
        self.feed.ring();
        more
    }
}
