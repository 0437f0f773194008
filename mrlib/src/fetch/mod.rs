//! The shuffle as a reduce sees it: follows the list of map outputs and fetches its partition of each.
//!
//! Small outputs stay in memory while the budget lasts; others go to scratch files, each byte once, or are read where
//! they are if that is this node. Every partition is verified before it counts. Each stays by itself until all
//! are here, so that a withdrawn one can be replaced. What cannot be fetched is tried again for as long as the
//! JobTracker lets the reduce wait; a full disk here is this task's own error.

mod book;
mod copy;
mod feed;
mod fetcher;
pub(crate) mod ship;
mod source;
pub mod wire;

#[cfg(test)]
mod tests;

pub use copy::copy_output;
pub use feed::MapFeed;
pub use ship::Ship;

use crate::{
    engine::{Scratch, StopFlag, Wish},
    error::TaskError,
    segment::Run,
};
use fetcher::Fetchers;
use proto::mr::Unfetched;
use security::Connector;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at while nothing comes.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// How long what is on its way may take to come in when a reduce is to be put aside.
const WIND_DOWN: Duration = Duration::from_millis(500);

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
    pub silence: Duration,
    /// Whether it leaves off when the task is to be put aside; otherwise it goes on as if nothing had been said.
    pub heeds: bool,
}

impl FetchOptions {
    /// With the usual times.
    pub fn new(partition: u32, token: Vec<u8>, parallel: usize, memory: u64) -> Self {
        let (pause, silence) = (Duration::from_millis(500), Duration::from_secs(30));
        let connector = Connector::default();
        Self { partition, token, connector, parallel: parallel.max(1), memory, pause, silence, heeds: false }
    }
}

/// How far a shuffle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchProgress {
    /// Outputs that are here.
    pub here: u32,
    /// Outputs there are to be.
    pub maps: u32,
    /// Bytes fetched, those in vain included.
    pub bytes: u64,
}

/// What a shuffle tells while it goes on.
pub trait FetchListener {
    /// It has come further.
    fn progress(&mut self, progress: FetchProgress);
    /// This output could not be fetched.
    fn unfetched(&mut self, unfetched: Unfetched);
    /// It is at work, or waits for maps: called several times a second.
    fn beat(&mut self);
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
    stop: &StopFlag,
    before: Vec<Fetched>,
    listener: &mut dyn FetchListener,
) -> Result<Shuffled, TaskError> {
    let fetchers = Fetchers::new(feed, options, scratch);
    fetchers.put(before);
    let followed = thread::scope(|scope| {
        for seat in 0..options.parallel {
            let fetchers = &fetchers;
            scope.spawn(move || fetchers.work(seat));
        }
        let heeds = options.heeds;
        let followed = follow(feed, &fetchers, stop, heeds, listener);
        if matches!(followed, Ok(false)) {
            fetchers.wind_down(WIND_DOWN);
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
    stop: &StopFlag,
    heeds: bool,
    listener: &mut dyn FetchListener,
) -> Result<bool, TaskError> {
    let (mut seen, mut rings, mut told) = (0, 0, FetchProgress::default());
    loop {
        let news = feed.wait(seen, rings, LOOK_PERIOD);
        let leaves_off = stop.wish()? == Wish::Pause && heeds;
        listener.beat();
        seen += news.events.len();
        rings = news.rings;
        let report = fetchers.take_news(news.events, Instant::now())?;
        for unfetched in report.unfetched {
            listener.unfetched(unfetched);
        }
        let progress = FetchProgress { here: report.here, maps: news.maps, bytes: report.bytes };
        if progress != told {
            listener.progress(progress);
            told = progress;
        }
        if report.here >= news.maps {
            return Ok(true);
        }
        if leaves_off {
            return Ok(false);
        }
    }
}
