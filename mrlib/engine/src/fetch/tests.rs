//! Shuffle tests with misbehaving servers.

mod local_output;

use super::*;
use crate::segment::{Extent, Stored};
use crossbeam::channel::{self, RecvTimeoutError};
use proto::mr::{FetchFailed, MapAvailable, MapEvent, TaskMapEvents, map_event};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

const TOKEN: &[u8] = b"secret";
const PARTITION: u32 = 3;

/// How a server answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Correct,
    Damaged,
    Cut,
    HangUp,
    Status(u8),
    Slow,
    Silent,
}

/// Serves `contents` for any attempt. The script chooses the behaviour from the attempt and the
/// number of earlier requests for it.
struct Server {
    addr: String,
    served: Arc<AtomicUsize>,
}

type Script = Arc<dyn Fn(&str, usize) -> Behaviour + Send + Sync>;

fn contents(attempt: &str) -> Vec<u8> {
    let length = 1000 + crc32c::crc32c(attempt.as_bytes()) as usize % 60_000;
    attempt.bytes().cycle().take(length).collect()
}

impl Server {
    fn start(script: impl Fn(&str, usize) -> Behaviour + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("a bound listener").to_string();
        let (served, script): (_, Script) = (Arc::new(AtomicUsize::new(0)), Arc::new(script));
        let requested = Arc::new(Mutex::new(BTreeMap::new()));
        let count = served.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, requested, count) = (script.clone(), requested.clone(), count.clone());
                thread::spawn(move || {
                    let mut stream = stream.expect("a connection");
                    while serve_one(&mut stream, &script, &requested, &count).is_some() {}
                });
            }
        });
        Self { addr, served }
    }
}

/// Answers one request. None if the connection has ended.
fn serve_one(
    stream: &mut TcpStream,
    script: &Script,
    requested: &Mutex<BTreeMap<String, usize>>,
    served: &AtomicUsize,
) -> Option<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut request = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut request).ok()?;
    let request = wire::Request::parse(&request).expect("a valid request");
    assert_eq!((request.token, request.partition), (TOKEN, PARTITION));
    let attempt = request.attempt.to_owned();
    let before = {
        let mut requested = requested.lock().expect("no panic");
        let times = requested.entry(attempt.clone()).or_insert(0);
        *times += 1;
        *times - 1
    };
    let behaviour = script(&attempt, before);
    let mut bytes = contents(&attempt);
    let (stored, crc) = (bytes.len() as u64, crc32c::crc32c(&bytes));
    let header =
        wire::data_header(&Extent { offset: 0, stored, raw: stored * 2, records: 7, block_max: stored, crc });
    match behaviour {
        Behaviour::Status(status) => {
            stream.write_all(&[status, 2, 0, b'n', b'o']).ok()?;
            return Some(());
        }
        Behaviour::HangUp => return None,
        Behaviour::Cut => {
            stream.write_all(&header).ok()?;
            stream.write_all(&bytes[..bytes.len() / 2]).ok()?;
            return None;
        }
        Behaviour::Silent => {
            stream.write_all(&header).ok()?;
            // Waits until the client closes the connection.
            return stream.read(&mut [0]).ok().map(|_| ());
        }
        Behaviour::Slow => {
            stream.write_all(&header).ok()?;
            for piece in bytes.chunks(bytes.len() / 4) {
                thread::sleep(Duration::from_millis(20));
                stream.write_all(piece).ok()?;
            }
        }
        Behaviour::Correct | Behaviour::Damaged => {
            bytes[500] ^= u8::from(behaviour == Behaviour::Damaged);
            stream.write_all(&header).ok()?;
            stream.write_all(&bytes).ok()?;
        }
    }
    served.fetch_add(1, Ordering::Relaxed);
    Some(())
}

fn available(attempt: &str, addr: &str) -> MapEvent {
    let (attempt, shuffle_addr) = (attempt.to_owned(), addr.to_owned());
    let available = MapAvailable { attempt, shuffle_addr, ..MapAvailable::default() };
    MapEvent { kind: Some(map_event::Kind::Available(available)) }
}

fn withdrawn(attempt: &str) -> MapEvent {
    MapEvent { kind: Some(map_event::Kind::Withdrawn(attempt.to_owned())) }
}

/// Called with the failed fetches so far and the progress. Returns new events.
type OnEvents = dyn FnMut(&[String], FetchProgress) -> Vec<MapEvent>;

/// A shuffle under test, with its reports and a callback.
struct Shuffle {
    feed: Arc<MapFeed>,
    scratch: Scratch,
    folder: tempfile::TempDir,
    options: FetchOptions,
    control: TaskControl,
    fetch_failures: Vec<String>,
    /// The addresses of the outputs in `fetch_failures`.
    unfetched_at: BTreeSet<String>,
    beats: u32,
    seen: u64,
    on_events: Box<OnEvents>,
}

impl Shuffle {
    fn new(maps: u32, events: Vec<MapEvent>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = FetchOptions::new(PARTITION, TOKEN.to_vec(), 4, 1 << 20);
        options.pause = Duration::from_millis(2);
        options.idle_timeout = Duration::from_secs(5);
        let mut shuffle = Self {
            feed: Arc::new(MapFeed::new(maps)),
            scratch: Scratch::new(vec![folder.path().into()]),
            folder,
            options,
            control: TaskControl::default(),
            fetch_failures: Vec::new(),
            unfetched_at: BTreeSet::new(),
            beats: 0,
            seen: 0,
            on_events: Box::new(|_, _| Vec::new()),
        };
        shuffle.push(events, maps);
        shuffle
    }

    fn push(&mut self, events: Vec<MapEvent>, maps: u32) {
        let first = self.seen;
        self.seen += events.len() as u64;
        self.feed.push(TaskMapEvents { first, events, maps }).expect("no gap");
    }

    fn run(&mut self) -> Result<BTreeMap<String, Vec<u8>>, TaskError> {
        let (feed, options, scratch, control) =
            (self.feed.clone(), self.options.clone(), self.scratch.clone(), self.control.clone());
        let runs = fetch_all(&feed, &options, &scratch, &control, Vec::new(), self)?.outputs;
        assert!(runs.iter().all(|fetched| *fetched.attempt == *fetched.run.name));
        Ok(runs.iter().map(|fetched| (fetched.attempt.clone(), stored(&fetched.run))).collect())
    }

    fn new_events(&mut self, progress: FetchProgress) {
        let events = (self.on_events)(&self.fetch_failures, progress);
        if !events.is_empty() {
            self.push(events, 0);
        }
    }
}

impl FetchListener for Shuffle {
    fn progress(&mut self, progress: FetchProgress) {
        self.new_events(progress);
    }

    fn fetch_failed(&mut self, FetchFailed { attempt, addr }: FetchFailed) {
        self.fetch_failures.push(attempt);
        self.unfetched_at.insert(addr);
        self.new_events(FetchProgress::default());
    }

    fn mark_alive(&mut self) {
        self.beats += 1;
    }
}

fn stored(run: &Run) -> Vec<u8> {
    let read = |path: &std::path::Path| std::fs::read(path).expect("a file");
    match &run.stored {
        Stored::Memory(bytes) => bytes.to_vec(),
        Stored::File(path) => read(path),
        Stored::Scratch(file) => read(file.path()),
        Stored::Open(file) => {
            let mut bytes = vec![0; run.extent.stored as usize];
            file.read_exact_at(&mut bytes, run.extent.offset).expect("a file");
            bytes
        }
    }
}

fn attempts(count: u32) -> Vec<String> {
    (0..count).map(|map| format!("job_1.m{map}.0")).collect()
}

fn expected(attempts: &[String]) -> BTreeMap<String, Vec<u8>> {
    attempts.iter().map(|attempt| (attempt.clone(), contents(attempt))).collect()
}

#[test]
fn all_outputs_are_fetched_from_misbehaving_servers() {
    let attempts = attempts(60);
    let servers = [0, 1, 2].map(|server| {
        Server::start(move |attempt, before| {
            let behaviours = [
                Behaviour::Correct,
                Behaviour::Damaged,
                Behaviour::Cut,
                Behaviour::HangUp,
                Behaviour::Status(wire::BUSY),
                Behaviour::Slow,
            ];
            let choice = crc32c::crc32c(attempt.as_bytes()) as usize + before * 5 + server;
            if before > 3 { Behaviour::Correct } else { behaviours[choice % behaviours.len()] }
        })
    });
    let event = |(map, attempt): (usize, &String)| available(attempt, &servers[map % 3].addr);
    let mut shuffle = Shuffle::new(60, attempts.iter().enumerate().map(event).collect());
    // Some outputs in memory, some on disk.
    shuffle.options.memory = 300_000;
    let fetched = shuffle.run().expect("all outputs are fetched");
    assert_eq!(fetched, expected(&attempts));
    assert!(servers.iter().all(|server| server.served.load(Ordering::Relaxed) >= 20));
}

#[test]
fn outputs_stay_in_memory_only_within_the_budget() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let attempts = attempts(8);
    let events = |addr: &str| attempts.iter().map(|attempt| available(attempt, addr)).collect::<Vec<_>>();
    for (memory, on_disk) in [(0, 8), (u64::MAX, 0)] {
        let mut shuffle = Shuffle::new(8, events(&server.addr));
        shuffle.options.memory = memory;
        let (feed, options, scratch, control) =
            (shuffle.feed.clone(), shuffle.options.clone(), shuffle.scratch.clone(), TaskControl::default());
        let runs = fetch_all(&feed, &options, &scratch, &control, Vec::new(), &mut shuffle)
            .expect("a good server")
            .outputs;
        let names: Vec<&str> = runs.iter().map(|fetched| fetched.attempt.as_str()).collect();
        assert_eq!(names, attempts, "the outputs are not in the order of their maps");
        assert_eq!(std::fs::read_dir(shuffle.folder.path()).expect("a folder").count(), on_disk);
        drop(runs);
        assert_eq!(std::fs::read_dir(shuffle.folder.path()).expect("a folder").count(), 0);
    }
}

#[test]
fn dead_host_is_reported_and_the_shuffle_continues() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("a bound listener").to_string()
    };
    let attempts = attempts(6);
    let event =
        |(map, attempt): (usize, &String)| available(attempt, if map < 3 { &dead } else { &server.addr });
    let mut shuffle = Shuffle::new(6, attempts.iter().enumerate().map(event).collect());
    let addr = server.addr.clone();
    let mut rerun = false;
    shuffle.on_events = Box::new(move |fetch_failures, _| {
        // The maps run again once all three failures were reported.
        let reported_all = (0..3).all(|map| fetch_failures.contains(&format!("job_1.m{map}.0")));
        if !reported_all || std::mem::replace(&mut rerun, true) {
            return Vec::new();
        }
        let again =
            |map| [withdrawn(&format!("job_1.m{map}.0")), available(&format!("job_1.m{map}.1"), &addr)];
        (0..3).flat_map(again).collect()
    });
    let fetched = shuffle.run().expect("all outputs are fetched");
    let wanted: Vec<String> = (0..6).map(|map| format!("job_1.m{map}.{}", u8::from(map < 3))).collect();
    assert_eq!(fetched, expected(&wanted));
    assert!(shuffle.fetch_failures.iter().all(|attempt| !attempts[3..].contains(attempt)));
    assert_eq!(shuffle.unfetched_at, BTreeSet::from([dead]));
}

#[test]
fn outputs_that_move_are_fetched_at_the_new_address_at_once() {
    let (requested, first_request) = channel::unbounded();
    let old = Server::start(move |_, _| {
        let _ = requested.send(());
        Behaviour::HangUp
    });
    let new = Server::start(|_, _| Behaviour::Correct);
    let attempts = attempts(6);
    let at = |addr: &str| attempts.iter().map(|attempt| available(attempt, addr)).collect::<Vec<_>>();
    let mut shuffle = Shuffle::new(6, at(&old.addr));
    // A failed fetch from the old address is not repeated during this test.
    shuffle.options.pause = Duration::from_hours(1);
    let (feed, events, control) = (shuffle.feed.clone(), at(&new.addr), shuffle.control.clone());
    let (done, is_done) = channel::bounded::<()>(0);
    let reporter = thread::spawn(move || {
        first_request.recv().expect("the old server gets a request");
        feed.push(TaskMapEvents { first: 6, events, maps: 6 }).expect("no gap");
        if is_done.recv_timeout(Duration::from_mins(1)) == Err(RecvTimeoutError::Timeout) {
            control.kill("the shuffle waits for the old address");
        }
    });
    let fetched = shuffle.run();
    drop(done);
    reporter.join().expect("no panic");
    assert_eq!(fetched.expect("all outputs are fetched from the new address"), expected(&attempts));
    assert!(shuffle.fetch_failures.is_empty(), "unexpected fetch failures: {:?}", shuffle.fetch_failures);
}

#[test]
fn missing_output_is_reported_at_once() {
    for status in [wire::NOT_FOUND, wire::REFUSED, wire::DAMAGED] {
        let server = Server::start(move |attempt, before| {
            if attempt == "job_1.m1.0" && before < 2 { Behaviour::Status(status) } else { Behaviour::Correct }
        });
        let attempts = attempts(3);
        let mut shuffle =
            Shuffle::new(3, attempts.iter().map(|attempt| available(attempt, &server.addr)).collect());
        assert_eq!(shuffle.run().expect("the output is fetched"), expected(&attempts));
        assert_eq!(shuffle.fetch_failures, ["job_1.m1.0", "job_1.m1.0"]);
    }
}

#[test]
fn fetched_output_is_replaced_when_withdrawn() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let mut shuffle = Shuffle::new(2, vec![available("job_1.m0.0", &server.addr)]);
    let addr = server.addr.clone();
    let mut step = 0;
    shuffle.on_events = Box::new(move |_, progress| match (step, progress.fetched_count) {
        (0, 1) => {
            step = 1;
            vec![withdrawn("job_1.m0.0"), available("job_1.m1.0", &addr)]
        }
        // Only map 1 is fetched at this point.
        (1, 1) => {
            step = 2;
            vec![available("job_1.m0.1", &addr)]
        }
        _ => Vec::new(),
    });
    let fetched = shuffle.run().expect("a good server");
    assert_eq!(fetched, expected(&["job_1.m0.1".into(), "job_1.m1.0".into()]));
}

#[test]
fn output_in_flight_is_dropped_when_withdrawn() {
    let slow = Server::start(|_, _| Behaviour::Slow);
    let mut shuffle = Shuffle::new(1, vec![available("job_1.m0.0", &slow.addr)]);
    let (feed, addr) = (shuffle.feed.clone(), slow.addr.clone());
    let reporter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        let events = vec![withdrawn("job_1.m0.0"), available("job_1.m0.1", &addr)];
        feed.push(TaskMapEvents { first: 1, events, maps: 1 }).expect("no gap");
    });
    let fetched = shuffle.run().expect("a good server");
    reporter.join().expect("no panic");
    assert_eq!(fetched, expected(&["job_1.m0.1".into()]));
}

#[test]
fn shuffle_waits_for_maps_that_are_added_while_it_runs() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let mut shuffle = Shuffle::new(2, vec![available("job_1.m0.0", &server.addr)]);
    let (feed, addr) = (shuffle.feed.clone(), server.addr.clone());
    shuffle.on_events = Box::new(move |_, progress| {
        if progress.fetched_count == 1 && progress.maps == 2 {
            let events = vec![available("job_1.m1.0", &addr), available("job_1.m2.0", &addr)];
            feed.push(TaskMapEvents { first: 1, events, maps: 3 }).expect("no gap");
        }
        Vec::new()
    });
    assert_eq!(shuffle.run().expect("a good server"), expected(&attempts(3)));
}

#[test]
fn local_disk_error_is_no_fault_of_a_host() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let mut shuffle = Shuffle::new(1, vec![available("job_1.m0.0", &server.addr)]);
    shuffle.options.memory = 0;
    // Every write to this path fails with a full disk.
    let full = shuffle.folder.path().join("full");
    std::fs::create_dir(&full).expect("a folder");
    std::os::unix::fs::symlink("/dev/full", full.join("fetch-0")).expect("a link");
    shuffle.scratch = Scratch::new(vec![full.clone()]);
    let error = shuffle.run().expect_err("the disk is full").to_string();
    assert!(error.contains(&full.display().to_string()) && error.contains("No space left"), "{error}");
    assert!(shuffle.fetch_failures.is_empty());
}

#[test]
fn outputs_are_ordered_by_map_position() {
    let server = Server::start(|_, _| Behaviour::Correct);
    let places = [(2, 0), (0, 500), (1, 0), (0, 0), (0, 0)];
    let events = places.iter().enumerate().map(|(map, (root, start))| {
        let mut event = available(&format!("job_1.m{map}.0"), &server.addr);
        if let Some(map_event::Kind::Available(available)) = &mut event.kind {
            (available.root, available.start) = (*root, *start);
        }
        event
    });
    let mut shuffle = Shuffle::new(5, events.collect());
    let (feed, options, scratch, control) =
        (shuffle.feed.clone(), shuffle.options.clone(), shuffle.scratch.clone(), TaskControl::default());
    let runs = fetch_all(&feed, &options, &scratch, &control, Vec::new(), &mut shuffle)
        .expect("a good server")
        .outputs;
    let order: Vec<&str> = runs.iter().map(|fetched| fetched.attempt.as_str()).collect();
    assert_eq!(order, ["job_1.m3.0", "job_1.m4.0", "job_1.m1.0", "job_1.m2.0", "job_1.m0.0"]);
}

#[test]
fn kill_ends_a_fetch_from_a_silent_server() {
    let server = Server::start(|_, _| Behaviour::Silent);
    let mut shuffle = Shuffle::new(1, vec![available("job_1.m0.0", &server.addr)]);
    shuffle.options.idle_timeout = Duration::from_mins(10);
    let control = shuffle.control.clone();
    let reporter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        control.kill("preempted");
    });
    let error = shuffle.run().expect_err("the task was killed");
    reporter.join().expect("no panic");
    assert_eq!(error.to_string(), "killed: preempted");
    assert!(shuffle.beats > 0, "a waiting shuffle did not mark the task alive");
}

#[test]
fn overlapping_map_events_are_merged_and_a_gap_is_an_error() {
    let feed = MapFeed::new(1);
    let new_events = |first, attempts: &[&str]| TaskMapEvents {
        first,
        events: attempts.iter().map(|attempt| withdrawn(attempt)).collect(),
        maps: 1,
    };
    feed.push(new_events(0, &["a", "b"])).expect("no gap");
    feed.push(new_events(1, &["b", "c"])).expect("an overlap");
    assert_eq!(feed.wait(0, Duration::ZERO).events, new_events(0, &["a", "b", "c"]).events);
    assert!(feed.push(new_events(4, &["e"])).is_err());
}
