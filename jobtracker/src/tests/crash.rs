//! Tests the journal and the histories after a crash at every point, and after compaction.

use crate::{
    blueprint::core_config,
    compact::compact,
    driver::{Driver, DriverParts},
    opened::Opened,
    storage::{self, HISTORY_FOLDER, Storage},
};
use daemon::config::{Config, JobTrackerConfig};
use dfs_client::ClientOptions;
use journal::{Recovery, codec, crash::CrashDisk, crash::Survive};
use mrcore::{
    Event, Fact, JobTracker, PerPhase, Phase, Span, Time,
    digest::digest,
    event::{AttemptReport, AttemptStatus, Effect, Heartbeat, Order, Registration},
    fact::{Entry, TRACKER_LOST},
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::{JobSpec, Payload, Program, Secret, Split},
    task::AttemptResult,
};
use replication::master::Journal;
use std::{collections::BTreeMap, path::Path, sync::Arc};

fn settings() -> JobTrackerConfig {
    JobTrackerConfig { jobs_kept: 2, ..JobTrackerConfig::default() }
}

fn core() -> JobTracker {
    JobTracker::new(core_config(&settings()), schedulers::make("fifo", &schedulers::Params::new()).unwrap())
}

pub(super) fn registration(name: &str, incarnation: u64) -> Registration {
    Registration {
        name: name.into(),
        incarnation: Incarnation(incarnation),
        host: format!("host-{name}"),
        rack: "r".into(),
        shuffle_addr: "s".into(),
        logs_addr: "l".into(),
        slots: PerPhase { map: 2, reduce: 1 },
        attempts: Vec::new(),
        outputs: Vec::new(),
        checkpoints: Vec::new(),
        jobs: Vec::new(),
    }
}

pub(super) fn spec(number: u32) -> Arc<JobSpec> {
    let split = |start| Split {
        source: "/in".into(),
        start,
        end: start + 10,
        divisible: true,
        hosts: vec![format!("host-t{}", start % 3), format!("elsewhere-{number}")],
        pin: mrcore::job::InputPin::default(),
    };
    Arc::new(JobSpec {
        name: format!("job {number}"),
        user: "u".into(),
        queue: "default".into(),
        priority: mrcore::job::Priority::Normal,
        program: Program::Builtin("x".into()),
        splits: (0..3).map(split).collect(),
        reduces: 1,
        output: String::new(),
        slow_start: 0.5,
        speculation: false,
        split_slow: true,
        attempts_max: 4,
        conf: BTreeMap::new(),
        payload: Payload { shuffle_token: Secret::new(vec![number as u8; 16]), ..Payload::default() },
    })
}

/// A core with a few simulated trackers, and the facts that the core has produced.
struct ScriptedRun {
    core: JobTracker,
    entries: Vec<Entry>,
    now: Time,
    /// Number of the last heartbeat of each tracker.
    heartbeat_seqs: BTreeMap<TrackerId, u64>,
    /// Attempts that were launched and have not ended, oldest first.
    launched: Vec<(TrackerId, AttemptId)>,
}

impl ScriptedRun {
    fn new() -> Self {
        Self {
            core: core(),
            entries: Vec::new(),
            now: Time(1_000_000),
            heartbeat_seqs: BTreeMap::new(),
            launched: Vec::new(),
        }
    }

    fn send(&mut self, event: Event) {
        self.now = Time(self.now.0 + 100_000);
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Append(entry) => self.entries.push(entry),
                Effect::SendOrders { tracker, orders, .. } => {
                    for (_, order) in orders {
                        if let Order::Launch(attempt) = order
                            && !self.launched.contains(&(tracker, attempt))
                        {
                            self.launched.push((tracker, attempt));
                        }
                    }
                }
                Effect::CommitJob { job } => {
                    self.send(Event::CommitResult { job, repeated: false, result: Ok(()) });
                }
                _ => {}
            }
        }
    }

    fn register_tracker(&mut self, name: &str, incarnation: u64) {
        let request = RequestId(u128::from(self.now.0));
        self.send(Event::Registration { request, tracker: registration(name, incarnation) });
        let id = self.core.cluster().tracker_named(name).unwrap().id;
        self.heartbeat_seqs.remove(&id);
        self.launched.retain(|(tracker, _)| *tracker != id);
    }

    fn submit(&mut self, number: u32) {
        self.send(Event::Submission { request: RequestId(number.into()), spec: spec(number) });
    }

    /// Ends the oldest running attempt, if there is one, with this status.
    fn end_oldest_attempt(&mut self, status: AttemptStatus) {
        if self.launched.is_empty() {
            return;
        }
        let (tracker, attempt) = self.launched.remove(0);
        let incarnation = self.core.cluster().tracker(tracker).unwrap().incarnation;
        let seq = self.heartbeat_seqs.entry(tracker).or_default();
        *seq += 1;
        let heartbeat = Heartbeat {
            tracker,
            incarnation,
            seq: *seq,
            acked: 0,
            attempts: vec![AttemptReport { attempt, status }],
            fetch_failures: Vec::new(),
        };
        self.send(Event::Heartbeat(heartbeat));
    }

    fn disconnect(&mut self, name: &str) {
        let tracker = self.core.cluster().tracker_named(name).unwrap();
        let (tracker, incarnation) = (tracker.id, tracker.incarnation);
        self.send(Event::Disconnection { tracker, incarnation });
    }

    /// Drains a tracker, or cancels its drain if `within` is None.
    fn drain(&mut self, name: &str, within: Option<Span>) {
        let tracker = self.core.cluster().tracker_named(name).unwrap().id;
        let request = RequestId(u128::from(self.now.0));
        self.send(Event::Drain { request, tracker, within, by: "u".into() });
    }

    /// Restarts the JobTracker from its facts. Two trackers register again.
    fn restart(&mut self) {
        self.core = replay(&self.entries);
        self.launched.clear();
        self.heartbeat_seqs.clear();
        self.send(Event::Start);
        self.register_tracker("t0", 1);
        self.register_tracker("t1", 2);
    }

    /// Returns a long run with many kinds of events.
    fn full_run() -> Self {
        let mut script = Self::new();
        script.send(Event::Start);
        for name in ["t0", "t1", "t2"] {
            script.register_tracker(name, 1);
        }
        for number in 1..=9 {
            script.submit(number);
            // Attempts are running when trackers are lost (3) and when they register again (7).
            let steps = if matches!(number, 3 | 7) { 2 } else { 12 };
            for step in 0..steps {
                script.end_oldest_attempt(match step {
                    1 => AttemptStatus::Killed("it is interrupted".into()),
                    2 => AttemptStatus::Failed("it fails".into()),
                    _ => AttemptStatus::Succeeded(AttemptResult::default()),
                });
            }
            match number {
                2 => script.disconnect("t2"),
                3 => {
                    for _ in 0..11 {
                        script.now = Time(script.now.0 + 900_000);
                        script.send(Event::Tick);
                    }
                    script.register_tracker("t0", 1);
                    script.register_tracker("t1", 2);
                }
                4 => script.drain("t0", Some(Span::secs(600))),
                5 => script.restart(),
                6 => script.drain("t0", None),
                7 => {
                    script.register_tracker("t2", 3);
                    script.register_tracker("t1", 2);
                }
                8 => {
                    let job = JobId(8);
                    script.send(Event::Kill { request: RequestId(800), job, by: "u".into() });
                    // The answers to all earlier requests are dropped.
                    script.now = script.now + Span::secs(601);
                    script.send(Event::Kill { request: RequestId(801), job, by: "u".into() });
                }
                _ => {}
            }
        }
        script
    }
}

fn replay(entries: &[Entry]) -> JobTracker {
    let mut core = core();
    for entry in entries {
        core.replay(entry).unwrap();
    }
    core
}

#[test]
fn replay_of_a_journal_compacted_at_any_point_gives_the_same_cluster() {
    let script = ScriptedRun::full_run();
    assert!(script.entries.len() > 60, "{}", script.entries.len());
    assert_eq!(digest(replay(&script.entries).cluster()), digest(script.core.cluster()));
    for at in 0..=script.entries.len() {
        let (before, after) = script.entries.split_at(at);
        let short = compact(before.to_vec());
        assert_eq!(digest(replay(&short).cluster()), digest(replay(before).cluster()), "cut at {at}");
        let both = [short.clone(), after.to_vec()].concat();
        assert_eq!(digest(replay(&both).cluster()), digest(script.core.cluster()), "cut at {at}");
        assert_eq!(compact(short.clone()).len(), compact(compact(short)).len());
    }
    let killed = |reason: &str| {
        let killed = script.entries.iter().filter_map(|entry| match &entry.fact {
            Fact::AttemptKilled { why, interrupted, .. } if why == reason => Some(*interrupted),
            _ => None,
        });
        killed.collect::<Vec<bool>>()
    };
    for reason in [TRACKER_LOST, "its tracker no longer runs it"] {
        assert!(!killed(reason).is_empty() && !killed(reason).contains(&true), "{reason}");
    }
    // One of these attempts had already been ordered to end.
    let reported = killed("it is interrupted");
    assert!(reported.contains(&true) && reported.contains(&false), "{reported:?}");
    let short = compact(script.entries.clone());
    let forgotten = |entry: &Entry| entry.fact.job() == Some(JobId(1));
    assert!(script.entries.iter().any(forgotten) && !short.iter().any(forgotten));
    let answers = |entries: &[Entry]| {
        entries.iter().filter(|entry| matches!(entry.fact, Fact::RequestAnswered { .. })).count()
    };
    assert_eq!((answers(&script.entries), answers(&short)), (4, 1));
    let drained = |entry: &Entry| matches!(entry.fact, Fact::TrackerDraining { .. });
    assert!(
        script.entries.iter().any(drained) && !short.iter().any(drained),
        "the cancelled drain is still in the compacted journal"
    );
}

fn start_driver(disk: &CrashDisk, folder: &Path) -> Driver {
    Driver::new(driver_parts(disk, folder)).0
}

/// Returns the settings of a JobTracker with this folder. Its NameNode does not answer.
pub(super) fn config(folder: &Path) -> Config {
    let mut config = Config::default();
    config.scheduler.name = "fifo".into();
    config.cluster.namenode = "127.0.0.1:1".into();
    config.jobtracker = JobTrackerConfig { dir: folder.into(), ..settings() };
    config
}

/// Returns the settings of the client of the file system.
pub(super) fn client_options(config: &Config) -> ClientOptions {
    ClientOptions::new(&config.cluster.namenode, config.client.clone())
}

/// Replays the journal on this disk. Returns the parts for a driver, with histories in `folder`.
pub(super) fn driver_parts(disk: &CrashDisk, folder: &Path) -> DriverParts {
    let storage = Storage::open_log(Arc::new(disk.clone()), "c".into(), Recovery::Refuse).unwrap();
    let config = config(folder);
    Opened::replay(&config, storage).unwrap().into_parts(client_options(&config)).unwrap()
}

/// Returns the contents of the history files by name.
pub(super) fn read_histories(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder.join(HISTORY_FOLDER)).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

/// Leaves the histories as a process that died after any number of facts would leave them. Checks
/// that the next start completes them from the journal.
#[tokio::test]
async fn histories_are_completed_wherever_the_process_died() {
    let script = ScriptedRun::full_run();
    let reference = tempfile::tempdir().unwrap();
    let complete_disk = CrashDisk::new();
    write_journal(&complete_disk, &script.entries);
    start_driver(&complete_disk, reference.path()).history_writer().flush().await;
    let expected = read_histories(reference.path());
    assert_eq!(expected.len(), 9);
    let lines: usize = expected.values().map(|text| text.lines().count()).sum();
    for at in (0..script.entries.len()).step_by(3) {
        let folder = tempfile::tempdir().unwrap();
        let early_disk = CrashDisk::new();
        write_journal(&early_disk, &script.entries[..at]);
        start_driver(&early_disk, folder.path()).history_writer().flush().await;
        // Also cut the last line of one file.
        if let Some(name) = read_histories(folder.path()).keys().nth(at % 3) {
            let path = folder.path().join(HISTORY_FOLDER).join(name);
            let text = std::fs::read(&path).unwrap();
            std::fs::write(&path, &text[..text.len() - at % 7]).unwrap();
        }
        start_driver(&complete_disk, folder.path()).history_writer().flush().await;
        let found = read_histories(folder.path());
        assert_eq!(found.values().map(|text| text.lines().count()).sum::<usize>(), lines, "died at {at}");
        assert_eq!(found, expected, "died at {at}");
    }
}

/// Lets the power fail at each of the first disk operations while facts are written. Checks that a
/// prefix of the facts survives which contains every synced fact.
#[tokio::test]
async fn every_synced_fact_survives_a_power_loss_at_any_write() {
    let script = ScriptedRun::full_run();
    let complete_disk = CrashDisk::new();
    write_journal(&complete_disk, &script.entries);
    let operations = complete_disk.operations();
    for survive in [Survive::SyncedOnly, Survive::Seeded(7)] {
        for crash_after in 1..operations.min(60) {
            let disk = CrashDisk::new();
            disk.crash_after(crash_after);
            let durable = try_write_journal(&disk, &script.entries);
            let surviving_disk = disk.after_crash(survive);
            let folder = tempfile::tempdir().unwrap();
            let driver = start_driver(&surviving_disk, folder.path());
            // If an incomplete batch was cut, the start skips epochs and job IDs. Both are in the
            // first line of the digest.
            let epoch: u64 =
                driver.peek(|cluster| digest(cluster)).split(' ').nth(1).unwrap().parse().unwrap();
            let skipped = epoch > 1 << 32;
            let kept = driver.journal().last_seq() as usize - usize::from(skipped);
            assert!(kept >= durable, "{kept} records left, {durable} were durable");
            let model = digest(replay(&script.entries[..kept]).cluster());
            let found = driver.peek(|cluster| digest(cluster));
            if skipped {
                let rest = |digest: &str| digest.split_once('\n').map(|(_, rest)| rest.to_owned());
                assert_eq!(rest(&found), rest(&model));
            } else {
                assert_eq!(found, model);
            }
            driver.history_writer().flush().await;
            let lines = |text: &String| text.lines().count();
            let found: usize = read_histories(folder.path()).values().map(lines).sum();
            let facts = script.entries[..kept].iter().filter(|entry| is_in_history(entry));
            // Each history has one line more than facts: its second line names the policy and the
            // trackers.
            let submitted = |entry: &&Entry| matches!(entry.fact, Fact::JobSubmitted { .. });
            assert_eq!(found, facts.clone().count() + facts.filter(submitted).count());
        }
    }
}

fn is_in_history(entry: &Entry) -> bool {
    let forgotten = matches!(entry.fact, Fact::JobForgotten { .. });
    entry.fact.job().is_some() && !forgotten
}

fn write_journal(disk: &CrashDisk, entries: &[Entry]) {
    assert_eq!(try_write_journal(disk, entries), entries.len());
}

/// Writes the entries to the journal and syncs each before the next is written. Makes a snapshot
/// after the first 16 entries. Returns how many entries were synced.
fn try_write_journal(disk: &CrashDisk, entries: &[Entry]) -> usize {
    let opened = journal::Log::open(Arc::new(disk.clone()), journal::Content::Records, Recovery::Refuse);
    let Ok(opened) = opened else { return 0 };
    let journal = Journal::Single(opened.log);
    let Journal::Single(log) = &journal else { unreachable!("it was made here") };
    for (index, entry) in entries.iter().enumerate() {
        let synced = log.append(&codec::encode(entry)).ok();
        if synced.and_then(|seq| log.sync(seq).ok()).is_none() {
            return index;
        }
        if index == 15 && storage::snapshot(&journal).is_err() {
            return index + 1;
        }
    }
    entries.len()
}

#[test]
fn scripted_run_has_ended_jobs_and_unfinished_jobs() {
    let script = ScriptedRun::full_run();
    let ended = script.core.cluster().jobs().filter(|job| job.has_ended()).count();
    assert!(ended > 0 && script.core.cluster().jobs().any(|job| !job.is_done(Phase::Reduce)));
}
