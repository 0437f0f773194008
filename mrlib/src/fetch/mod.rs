//! The shuffle as a reduce sees it: follows the list of map outputs and fetches its partition of each.
//!
//! Small outputs stay in memory while the budget lasts; others go to scratch files, each byte once, or are read where
//! they are if that is this node. Every partition is verified before it counts. Each stays by itself until all
//! are here, so that a withdrawn one can be replaced. What cannot be fetched is tried again for as long as the
//! JobTracker lets the reduce wait; a full disk here is this task's own error.

mod copy;
mod feed;
mod fetcher;
pub(crate) mod remote_checkpoint;
mod shuffle_state;
mod source;
pub mod wire;

#[cfg(test)]
mod tests;

pub use copy::copy_output;
pub use feed::MapFeed;
pub use remote_checkpoint::RemoteCheckpoint;

use crate::{
    engine::{PreemptRequest, Scratch, TaskControl},
    error::TaskError,
    segment::Run,
};
use fetcher::Fetchers;
use proto::mr::FetchFailed;
use security::Connector;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at while nothing comes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long what is on its way may take to come in when a reduce is to be checkpointed.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(500);

/// What to fetch, and how.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// This reduce's partition.
    pub partition: u32,
    /// What shuffle servers know the job by.
    pub token: Vec<u8>,
    /// Turns connections to them into streams.
    pub connector: Connector,
    /// Connections at a time.
    pub parallel: usize,
    /// Bytes kept in memory, at the most.
    pub memory: u64,
    /// The first pause after a failure.
    pub pause: Duration,
    /// A connection silent for this long has failed.
    pub idle_timeout: Duration,
    /// Whether it leaves off when the task is to be checkpointed; otherwise it continues as if nothing had been said.
    pub preemptible: bool,
}

impl FetchOptions {
    /// With the usual times.
    pub fn new(partition: u32, token: Vec<u8>, parallel: usize, memory: u64) -> Self {
        let (pause, idle_timeout) = (Duration::from_millis(500), Duration::from_secs(30));
        let connector = Connector::default();
        Self {
            partition,
            token,
            connector,
            parallel: parallel.max(1),
            memory,
            pause,
            idle_timeout,
            preemptible: false,
        }
    }
}

/// How far a shuffle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchProgress {
    /// Outputs that are here.
    pub fetched_count: u32,
    /// Outputs there are to be.
    pub maps: u32,
    /// Bytes fetched, those for nothing included.
    pub bytes: u64,
}

/// What a shuffle tells while it continues.
pub trait FetchListener {
    /// It has come further.
    fn progress(&mut self, progress: FetchProgress);
    /// This output could not be fetched.
    fn fetch_failed(&mut self, fetch_failed: FetchFailed);
    /// It is at work, or waits for maps: called several times a second.
    fn mark_alive(&mut self);
}

/// One output that is here.
#[derive(Debug)]
pub struct Fetched {
    /// Whose it is.
    pub attempt: String,
    /// The map's place ([`proto::mr::MapAvailable`]): its root.
    pub root: u32,
    /// And where it begins in that.
    pub start: u64,
    /// This reduce's partition of it.
    pub run: Run,
}

/// What a shuffle came to.
#[derive(Debug)]
pub struct Shuffled {
    /// In the order of the maps' places: root, then start.
    pub outputs: Vec<Fetched>,
    /// Whether they are all; if not, it was told to leave off.
    pub all: bool,
}

/// Fetches this reduce's partition of every map, but for what was fetched `before` and has not been withdrawn since.
pub fn fetch_all(
    feed: &MapFeed,
    options: &FetchOptions,
    scratch: &Scratch,
    stop: &TaskControl,
    before: Vec<Fetched>,
    listener: &mut dyn FetchListener,
) -> Result<Shuffled, TaskError> {
    let fetchers = Fetchers::new(feed, options, scratch);
    fetchers.put(before);
    let followed = thread::scope(|scope| {
        for worker in 0..options.parallel {
            let fetchers = &fetchers;
            scope.spawn(move || fetchers.run_worker(worker));
        }
        let preemptible = options.preemptible;
        let followed = follow(feed, &fetchers, stop, preemptible, listener);
        if matches!(followed, Ok(false)) {
            fetchers.finish_in_flight(IN_FLIGHT_TIMEOUT);
        }
        fetchers.end();
        followed
    });
    let all = followed?;
    Ok(Shuffled { outputs: fetchers.into_fetched().collect(), all })
}

/// Hands news to the fetchers until all maps are here; false if it is to leave off before.
fn follow(
    feed: &MapFeed,
    fetchers: &Fetchers<'_>,
    stop: &TaskControl,
    preemptible: bool,
    listener: &mut dyn FetchListener,
) -> Result<bool, TaskError> {
    let (mut seen, mut wakeups, mut reported) = (0, 0, FetchProgress::default());
    loop {
        let new_events = feed.wait(seen, wakeups, POLL_INTERVAL);
        let leaves_off = stop.preempt_request()? == PreemptRequest::Pause && preemptible;
        listener.mark_alive();
        seen += new_events.events.len();
        wakeups = new_events.wakeups;
        let report = fetchers.add_events(new_events.events, Instant::now())?;
        for fetch_failed in report.fetch_failed {
            listener.fetch_failed(fetch_failed);
        }
        let progress =
            FetchProgress { fetched_count: report.fetched_count, maps: new_events.maps, bytes: report.bytes };
        if progress != reported {
            listener.progress(progress);
            reported = progress;
        }
        if report.fetched_count >= new_events.maps {
            return Ok(true);
        }
        if leaves_off {
            return Ok(false);
        }
    }
}
