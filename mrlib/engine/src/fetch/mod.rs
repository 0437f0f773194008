//! The shuffle of a reduce: follows the list of map events and fetches its partition of each map
//! output.
//!
//! Small outputs stay in memory within a budget. Larger outputs are written to scratch files, or
//! read in place if they are on this node. Every partition is verified before it counts. Outputs
//! are not merged before all are fetched, so that a withdrawn output can be replaced. A failed
//! fetch is repeated until the output is withdrawn. A full disk on this node fails the attempt.

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

use crate::{scratch::Scratch, segment::Run};
use fetcher::Fetchers;
use mrlib_api::{PreemptKind, TaskControl, TaskError};
use proto::mr::FetchFailed;
use security::Connector;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Interval at which the shuffle checks for kills and pauses while no events arrive.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for running fetches when the reduce is to be paused.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(500);

/// What a shuffle fetches, and its limits.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// The partition of this reduce.
    pub partition: u32,
    /// The token for shuffle servers, which is valid for the partition.
    pub token: Vec<u8>,
    /// Secures connections, with TLS if configured.
    pub connector: Connector,
    /// Number of connections at a time.
    pub parallel: usize,
    /// Maximum bytes of outputs in memory.
    pub memory: u64,
    /// The pause after the first failed fetch. It grows with each further failure.
    pub pause: Duration,
    /// A connection without data for this long has failed.
    pub idle_timeout: Duration,
    /// Whether a pause of the task ends the shuffle. Otherwise the shuffle continues.
    pub preemptible: bool,
}

impl FetchOptions {
    /// Creates options with default times.
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

/// The progress of a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchProgress {
    /// Outputs fetched.
    pub fetched_count: u32,
    /// Number of maps of the job.
    pub maps: u32,
    /// Bytes fetched, including failed fetches.
    pub bytes: u64,
}

/// Receives events of a shuffle.
pub trait FetchListener {
    /// Called when the shuffle has made progress.
    fn progress(&mut self, progress: FetchProgress);
    /// Called when an output could not be fetched.
    fn fetch_failed(&mut self, failure: FetchFailed);
    /// Called several times per second while the shuffle fetches or waits for maps.
    fn mark_alive(&mut self);
}

/// A fetched output.
#[derive(Debug)]
pub struct FetchedOutput {
    /// The attempt of the map.
    pub attempt: String,
    /// The root of the map: the index of the submitted split that its range is a part of.
    pub root: u32,
    /// The offset at which the range of the map begins.
    pub start: u64,
    /// The records for this reduce.
    pub run: Run,
}

/// The result of a shuffle.
#[derive(Debug)]
pub struct ShuffleResult {
    /// The outputs in the order of their maps in the input: by root, then start.
    pub outputs: Vec<FetchedOutput>,
    /// Whether all outputs were fetched. If not, a pause was requested.
    pub is_complete: bool,
}

/// Fetches this reduce's partition of every map output. Outputs in `already_fetched`, from
/// earlier attempts, are fetched again only if they were withdrawn.
pub fn fetch_all(
    feed: &MapFeed,
    options: &FetchOptions,
    scratch: &Scratch,
    control: &TaskControl,
    already_fetched: Vec<FetchedOutput>,
    listener: &mut dyn FetchListener,
) -> Result<ShuffleResult, TaskError> {
    let fetchers = Fetchers::new(feed, options, scratch);
    fetchers.add_fetched(already_fetched);
    let followed = thread::scope(|scope| {
        for worker in 0..options.parallel {
            let fetchers = &fetchers;
            scope.spawn(move || fetchers.run_worker(worker));
        }
        let preemptible = options.preemptible;
        let followed = follow(feed, &fetchers, control, preemptible, listener);
        if matches!(followed, Ok(false)) {
            fetchers.finish_in_flight(IN_FLIGHT_TIMEOUT);
        }
        fetchers.end_all();
        followed
    });
    let is_complete = followed?;
    Ok(ShuffleResult { outputs: fetchers.into_fetched().collect(), is_complete })
}

/// Passes events to the fetchers until all outputs are fetched. Returns false if a pause was
/// requested before.
fn follow(
    feed: &MapFeed,
    fetchers: &Fetchers<'_>,
    control: &TaskControl,
    preemptible: bool,
    listener: &mut dyn FetchListener,
) -> Result<bool, TaskError> {
    let (mut seen, mut reported) = (0, FetchProgress::default());
    loop {
        let new_events = feed.wait(seen, POLL_INTERVAL);
        let is_pausing = control.preempt_request()? == Some(PreemptKind::Pause) && preemptible;
        listener.mark_alive();
        seen += new_events.events.len();
        let report = fetchers.add_events(new_events.events, Instant::now())?;
        for failure in report.fetch_failures {
            listener.fetch_failed(failure);
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
        if is_pausing {
            return Ok(false);
        }
    }
}
