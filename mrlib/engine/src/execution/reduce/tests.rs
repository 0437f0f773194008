//! Pauses reduces at every point and resumes them on the same or another node, from intact and
//! damaged checkpoints. Checks that output and counters are the same as without pauses.

mod full_disk;
mod server;
mod unsavable;

use super::*;
use crate::{execution::OutputSink, input::ByteSource, scratch::Scratch, segment::SegmentWriter};
use mrlib_api::{
    Context, Emit, KeyOrder, Mapper, OutputFormat, Reducer, StateBetweenKeys, TaskControl, Values,
};
use proptest::prelude::*;
use proto::mr::{MapAvailable, MapEvent, TaskMapEvents, map_event};
use server::Server;
use std::{cell::RefCell, collections::BTreeMap, fs, path::Path, sync::Mutex};

const TOKEN: &[u8] = b"secret";

/// When a reduce gets the request to pause.
#[derive(Debug, Clone, Copy)]
enum When {
    /// This many map outputs were announced and fetched.
    Fetched(usize),
    /// Keys were compared this many times, in a merge or in the last stage.
    Compared(u32),
    /// The reducer got this many records.
    Reduced(u32),
}

/// What happens to the saved checkpoint.
#[derive(Debug, Clone, Copy)]
enum Damage {
    None,
    Cut(prop::sample::Index),
    Flip(prop::sample::Index),
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    when: When,
    /// Whether the reduce resumes on another node.
    elsewhere: bool,
    damage: Damage,
}

thread_local! {
    /// How many comparisons are left until the pause, and the control to request it.
    static COMPARISONS: RefCell<Option<(u32, TaskControl)>> = const { RefCell::new(None) };
    /// How many records are left until the pause, and the control to request it.
    static RECORDS: RefCell<Option<(u32, TaskControl)>> = const { RefCell::new(None) };
}

fn count_down(left: &RefCell<Option<(u32, TaskControl)>>) {
    if let Some((left, control)) = left.borrow_mut().as_mut() {
        *left = left.saturating_sub(1);
        if *left == 0 {
            control.request_preemption(PreemptKind::Pause);
        }
    }
}

fn compare(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    COMPARISONS.with(count_down);
    a.cmp(b)
}

/// Emits the values of a key in their order, and optionally a total over all keys.
struct Join {
    total: u64,
    state_between_keys: StateBetweenKeys,
}

impl Reducer for Join {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut joined = Vec::new();
        let seen = context.counter("SEEN");
        while let Some(value) = values.next()? {
            joined.extend_from_slice(value);
            joined.push(b' ');
            context.add(seen, 1);
            RECORDS.with(count_down);
            // Like some reducers, this one does not read all values of a key.
            if joined.len() > 60 {
                break;
            }
        }
        if self.state_between_keys != StateBetweenKeys::None {
            self.total += joined.len() as u64;
            joined.extend_from_slice(self.total.to_string().as_bytes());
        }
        out.emit(key, &joined)
    }

    fn state_between_keys(&self) -> StateBetweenKeys {
        self.state_between_keys
    }

    fn save(&mut self, out: &mut dyn Emit, _: &mut Context) -> Result<Vec<u8>, TaskError> {
        assert_eq!(self.state_between_keys, StateBetweenKeys::Savable);
        // `save` may emit output; this reducer has none.
        let _ = out;
        Ok(self.total.to_le_bytes().to_vec())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TaskError> {
        self.total = u64::from_le_bytes(state.try_into().map_err(|_| "the state of another reducer")?);
        Ok(())
    }
}

struct NoMap;

impl Mapper for NoMap {
    fn map(&mut self, _: &[u8], _: &[u8], _: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
        unreachable!("a reduce has no mapper")
    }
}

/// A node with its folder, and the output of its tasks.
struct Node {
    dir: tempfile::TempDir,
    control: TaskControl,
    liveness: Liveness,
    memory: u64,
    written: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    attempt: u32,
    /// The scratch folders of each attempt.
    scratches: RefCell<BTreeMap<u32, Scratch>>,
    /// If set, requests a pause when this many map outputs were fetched.
    pause_after_fetched: Option<u32>,
    maps: u32,
}

struct Sink {
    name: String,
    bytes: Vec<u8>,
    pieces: Vec<String>,
    written: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl OutputSink for Sink {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.bytes.extend_from_slice(key);
        self.bytes.push(b'=');
        self.bytes.extend_from_slice(value);
        self.bytes.push(b'\n');
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, TaskError> {
        if !self.bytes.is_empty() {
            let before = self.written.lock().unwrap().insert(self.name.clone(), self.bytes);
            assert!(before.is_none(), "{} was written twice", self.name);
            self.pieces.push(self.name);
        }
        Ok(self.pieces)
    }
}

impl TaskIo for Node {
    fn progress(&mut self, progress: &Progress) {
        let here = (progress.done * STAGES * f64::from(self.maps)).round() as u32;
        if progress.stage == Stage::Shuffle && self.pause_after_fetched.is_some_and(|fetched| here >= fetched)
        {
            self.control.request_preemption(PreemptKind::Pause);
        }
    }

    fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    fn control(&self) -> TaskControl {
        self.control.clone()
    }

    fn scratch(&self) -> Scratch {
        let make = || {
            let dir = self.dir.path().join(format!("scratch-{}", self.attempt));
            fs::create_dir_all(&dir).unwrap();
            Scratch::new(vec![dir])
        };
        self.scratches.borrow_mut().entry(self.attempt).or_insert_with(make).clone()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory
    }

    fn open_input(&mut self, _: &str) -> Result<Box<dyn ByteSource>, TaskError> {
        unreachable!("a reduce has no input file")
    }

    fn open_output(
        &mut self,
        _: OutputFormat,
        earlier_pieces: Vec<String>,
    ) -> Result<Box<dyn OutputSink>, TaskError> {
        let name = format!("r0.{}.{}", self.attempt, earlier_pieces.len());
        Ok(Box::new(Sink { name, bytes: Vec::new(), pieces: earlier_pieces, written: self.written.clone() }))
    }
}

/// A reduce with its map outputs, the server for them, and the node that it runs on.
struct Case {
    node: Node,
    server: Server,
    job: Job,
    conf: Conf,
    events: Vec<MapEvent>,
    maps: usize,
}

fn job(state_between_keys: StateBetweenKeys) -> Job {
    let reducer = move |_: &Conf| Ok(Join { total: 0, state_between_keys });
    Job::map(|_| Ok(NoMap))
        .reduce(reducer)
        .sort_by(KeyOrder::By(compare))
        .group_by(KeyOrder::By(|a, b| a.first().cmp(&b.first())))
}

impl Case {
    fn new(maps: &[Vec<(u8, u8)>], memory: u64, state_between_keys: StateBetweenKeys) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start();
        let mut events = Vec::new();
        let mut available = |map: usize, number: u32| {
            let attempt = format!("job_1.m{map}.{number}");
            let path = dir.path().join(&attempt);
            write_map(&path, map, &maps[map]);
            server.add_map(&attempt, &path);
            let local = map.is_multiple_of(3);
            let available = MapAvailable {
                attempt: attempt.clone(),
                shuffle_addr: server.addr.clone(),
                local_path: if local { path.display().to_string() } else { String::new() },
                // The roots are in the reverse order of the map indexes.
                root: (maps.len() - map) as u32,
                ..MapAvailable::default()
            };
            events.push(MapEvent { kind: Some(map_event::Kind::Available(available)) });
        };
        (0..maps.len()).for_each(|map| available(map, 0));
        // The last event replaces the output of one map with an equal output of another attempt.
        available(0, 1);
        let last = events.len() - 1;
        events.insert(last, MapEvent { kind: Some(map_event::Kind::Withdrawn("job_1.m0.0".into())) });
        let mut conf = Conf::default();
        conf.set("fetch.parallel", "2");
        conf.set("merge.factor", "2");
        let node = Node {
            dir,
            control: TaskControl::default(),
            liveness: Liveness::default(),
            memory,
            written: Arc::default(),
            attempt: 0,
            scratches: RefCell::default(),
            pause_after_fetched: None,
            maps: maps.len() as u32,
        };
        Self { node, server, job: job(state_between_keys), conf, events, maps: maps.len() }
    }

    /// Runs the next attempt from a checkpoint, and requests a pause if `step` is given.
    fn attempt(
        &mut self,
        from: Option<CheckpointSource>,
        step: Option<When>,
    ) -> Result<ReduceEnd, TaskError> {
        let control = TaskControl::default();
        self.node.control = control.clone();
        let mut events = self.events.clone();
        self.node.pause_after_fetched = None;
        COMPARISONS.set(None);
        RECORDS.set(None);
        match step {
            Some(When::Fetched(count)) => {
                let count = count.min(self.maps);
                events.truncate(count);
                self.node.pause_after_fetched = Some(count as u32);
            }
            Some(When::Compared(count)) => COMPARISONS.set(Some((count, control))),
            Some(When::Reduced(count)) => RECORDS.set(Some((count, control))),
            None => {}
        }
        let feed = MapFeed::new(self.maps as u32);
        feed.push(TaskMapEvents { first: 0, events, maps: self.maps as u32 }).unwrap();
        self.conf.set(task_settings::TASK_ATTEMPT, format!("job_1.r0.{}", self.node.attempt));
        let task = self.task(from, feed);
        run_reduce(&self.job, &task, &mut self.node)
    }

    fn task(&self, from: Option<CheckpointSource>, feed: MapFeed) -> ReduceTask {
        ReduceTask {
            partition: 0,
            conf: self.conf.clone(),
            feed: Arc::new(feed),
            token: TOKEN.to_vec(),
            fetch_failed: Arc::new(|failure| panic!("{failure:?}")),
            checkpoint_dirs: vec![self.checkpoint_dirs(self.node.attempt)],
            resume_from: from,
            started: std::time::Instant::now(),
        }
    }

    fn checkpoint_dirs(&self, attempt: u32) -> PathBuf {
        self.node.dir.path().join(format!("checkpoint-{attempt}"))
    }

    /// Runs attempts until the reduce is complete. Returns the output, the counters, and the number
    /// of pauses in each of the three stages and of corrupt checkpoints.
    fn run(&mut self, steps: &[Step]) -> (Vec<u8>, BTreeMap<String, u64>, [u32; 4]) {
        let (mut from, mut steps, mut pauses) = (None, steps.iter(), [0; 4]);
        loop {
            let step = steps.next();
            match self.attempt(from.clone(), step.map(|step| step.when)) {
                Ok(ReduceEnd::Done(outcome)) => {
                    let written = self.node.written.lock().unwrap();
                    let output: Vec<u8> =
                        outcome.pieces.iter().flat_map(|piece| written[piece].clone()).collect();
                    assert_eq!(outcome.bytes_out, output.len() as u64);
                    return (output, outcome.counters, pauses);
                }
                Ok(ReduceEnd::Paused(stage)) => {
                    pauses[stage as usize - Stage::Shuffle as usize] += 1;
                    from = Some(self.checkpoint_source(step.expect("a pause was requested")));
                }
                Err(TaskError::CheckpointCorrupt(_)) => {
                    pauses[3] += 1;
                    from = None;
                }
                // The checkpoint to resume from is unchanged.
                Err(TaskError::NotResumed) => assert!(from.is_some()),
                Err(error) => panic!("{error}"),
            }
            self.node.attempt += 1;
        }
    }

    /// Damages the checkpoint that was just saved, as `step` says. Returns its location.
    fn checkpoint_source(&self, step: &Step) -> CheckpointSource {
        let dir = self.checkpoint_dirs(self.node.attempt);
        damage(&dir, step.damage);
        let attempt = format!("job_1.r0.{}", self.node.attempt);
        self.server.add_checkpoint(&attempt, &dir);
        let dirs = if step.elsewhere { Vec::new() } else { vec![dir] };
        CheckpointSource { attempt, dirs, addr: self.server.addr.clone() }
    }
}

fn write_map(path: &Path, map: usize, records: &[(u8, u8)]) {
    let mut sorted = records.to_vec();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    // Two partitions; this reduce reads the first.
    let mut writer = SegmentWriter::create(path, 2, true).unwrap();
    for (number, (key, value)) in sorted.iter().enumerate() {
        // One map has more than one block.
        let padding = if map == 1 { 2500 } else { 0 };
        let value = format!("{map}.{number}.{value}{:padding$}", "");
        writer.append(0, &[*key >> 3, *key], value.as_bytes()).unwrap();
    }
    writer.append(1, b"another's", b"").unwrap();
    writer.finish().unwrap().write(path).unwrap();
}

/// Damages a checkpoint. Replaces files instead of changing them, because they may be hard links to
/// files of another checkpoint.
fn damage(dir: &Path, damage: Damage) {
    let files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (Damage::Cut(index) | Damage::Flip(index)) = damage else {
        if matches!(damage, Damage::Lost) {
            fs::remove_dir_all(dir).unwrap();
        }
        return;
    };
    let lengths = || files.iter().map(|file| fs::metadata(file).unwrap().len());
    let mut at = index.index(lengths().sum::<u64>() as usize) as u64;
    let (file, _) = files
        .iter()
        .zip(lengths())
        .find(|(_, length)| {
            let found = at < *length;
            at -= if found { 0 } else { *length };
            found
        })
        .expect("the index is within the files");
    let mut bytes = fs::read(file).unwrap();
    match damage {
        Damage::Cut(_) => bytes.truncate(at as usize),
        _ => bytes[at as usize] ^= 1 << (at % 8),
    }
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

/// Returns the counters that must not depend on pauses.
fn stable_counters(counters: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    let names =
        ["SEEN", "REDUCE_INPUT_GROUPS", "REDUCE_INPUT_RECORDS", "REDUCE_OUTPUT_RECORDS", "OUTPUT_BYTES"];
    names.into_iter().map(|name| (name, counters.get(name).copied().unwrap_or(0))).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let when = prop_oneof![
        (0usize..8).prop_map(When::Fetched),
        (1u32..400).prop_map(When::Compared),
        (1u32..200).prop_map(When::Reduced),
    ];
    let damage = prop_oneof![
        6 => Just(Damage::None),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => any::<prop::sample::Index>().prop_map(Damage::Flip),
        1 => Just(Damage::Lost),
    ];
    let step = (when, any::<bool>(), damage);
    prop::collection::vec(step.prop_map(|(when, elsewhere, damage)| Step { when, elsewhere, damage }), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]

    #[test]
    fn reduce_paused_anywhere_gives_the_same_output_and_counters(
        maps in prop::collection::vec(prop::collection::vec(any::<(u8, u8)>(), 0..60), 1..8),
        memory in prop_oneof![Just(1u64), 200u64..4000, Just(1 << 20)],
        state_between_keys in prop_oneof![Just(StateBetweenKeys::None), Just(StateBetweenKeys::Savable), Just(StateBetweenKeys::NotSavable("a test"))],
        steps in steps(),
    ) {
        let (output, counters, _) = Case::new(&maps, memory, state_between_keys).run(&[]);
        let (disturbed, again, _) = Case::new(&maps, memory, state_between_keys).run(&steps);
        prop_assert!(output == disturbed, "{}\n--- but\n{}", output.escape_ascii(), disturbed.escape_ascii());
        prop_assert_eq!(stable_counters(&counters), stable_counters(&again));
    }
}

/// Pauses after every k-th record, and alternates between two nodes.
#[test]
fn reduce_paused_repeatedly_gives_the_same_output() {
    let records = |map: u8| (0..40u8).map(|n| (n.wrapping_mul(37).wrapping_add(map), n)).collect::<Vec<_>>();
    let maps: Vec<_> = (0..5).map(records).collect();
    for state_between_keys in [StateBetweenKeys::None, StateBetweenKeys::Savable] {
        for memory in [1, 1 << 20] {
            let (output, counters, _) = Case::new(&maps, memory, state_between_keys).run(&[]);
            for every in [1, 3, 50] {
                let step = |n: u32| Step {
                    when: if n < 6 { When::Fetched(n as usize) } else { When::Reduced(every) },
                    elsewhere: n.is_multiple_of(2),
                    damage: Damage::None,
                };
                let steps: Vec<Step> = (0..250).map(step).collect();
                let (paused, again, [in_shuffle, _, in_reduce, corrupt]) =
                    Case::new(&maps, memory, state_between_keys).run(&steps);
                assert!(output == paused, "every {every}");
                assert_eq!(stable_counters(&counters), stable_counters(&again), "every {every}");
                assert_eq!(counters["SHUFFLE_BYTES"], again["SHUFFLE_BYTES"], "an output was fetched twice");
                let paused = [in_shuffle, in_reduce];
                assert!(
                    in_shuffle >= 4 && in_reduce >= 20 / every && corrupt == 0,
                    "every {every}: {paused:?}"
                );
            }
        }
    }
}

/// Pauses a reduce twice, each time after k comparisons in its merges.
#[test]
fn reduce_paused_in_a_merge_gives_the_same_output() {
    let records = |map: u8| (0..30u8).map(|n| (n.wrapping_mul(41).wrapping_add(map), n)).collect::<Vec<_>>();
    let maps: Vec<_> = (0..5).map(records).collect();
    let (output, counters, _) = Case::new(&maps, 1, StateBetweenKeys::None).run(&[]);
    let mut in_merge = 0;
    for k in (1..400).step_by(9) {
        let step = |elsewhere| Step { when: When::Compared(k), elsewhere, damage: Damage::None };
        let (paused, again, pauses) =
            Case::new(&maps, 1, StateBetweenKeys::None).run(&[step(k % 2 == 0), step(k % 2 == 1)]);
        assert!(output == paused, "after {k} comparisons");
        assert_eq!(stable_counters(&counters), stable_counters(&again), "after {k} comparisons");
        assert_eq!(pauses[3], 0, "after {k} comparisons");
        in_merge += pauses[1];
    }
    assert!(in_merge > 30, "{in_merge}");
}
