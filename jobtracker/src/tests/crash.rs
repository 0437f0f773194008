//! The journal and the histories after a crash at every point, and after compaction.

use crate::{
    compact::compact,
    driver::{Driver, Parts},
    run::{core_config, open},
    storage::{self, Storage},
};
use daemon::config::JobTrackerConfig;
use dfs_client::ClientOptions;
use journal::{Recovery, codec, crash::CrashDisk, crash::Survive};
use mrcore::{
    Event, JobTracker, PerPhase, Phase, Span, Time,
    digest::digest,
    event::{AttemptReport, AttemptStatus, Effect, Heartbeat, Order, Registration},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::{JobSpec, Payload, Program, Split},
    task::AttemptResult,
};
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

fn spec(number: u32) -> Arc<JobSpec> {
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
        payload: Payload::default(),
    })
}

/// A core with a few simulated trackers, and the facts that it has produced.
struct Script {
    core: JobTracker,
    entries: Vec<Entry>,
    now: Time,
    seqs: BTreeMap<TrackerId, u64>,
    launched: Vec<(TrackerId, AttemptId)>,
}

impl Script {
    fn new() -> Self {
        Self {
            core: core(),
            entries: Vec::new(),
            now: Time(1_000_000),
            seqs: BTreeMap::new(),
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
                Effect::CommitJob { job } => self.send(Event::CommitResult { job, result: Ok(()) }),
                _ => {}
            }
        }
    }

    fn join(&mut self, name: &str, incarnation: u64) {
        let request = RequestId(u128::from(self.now.0));
        self.send(Event::Registration { request, tracker: registration(name, incarnation) });
        let id = self.core.cluster().tracker_named(name).unwrap().id;
        self.seqs.remove(&id);
        self.launched.retain(|(tracker, _)| *tracker != id);
    }

    fn submit(&mut self, number: u32) {
        self.send(Event::Submission { request: RequestId(number.into()), spec: spec(number) });
    }

    /// Ends the oldest attempt that was launched.
    fn end_one(&mut self, fails: bool) {
        if self.launched.is_empty() {
            return;
        }
        let (tracker, attempt) = self.launched.remove(0);
        let status = if fails {
            AttemptStatus::Failed("it fails".into())
        } else {
            AttemptStatus::Succeeded(AttemptResult::default())
        };
        let incarnation = self.core.cluster().tracker(tracker).unwrap().incarnation;
        let seq = self.seqs.entry(tracker).or_default();
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

    /// Drains a tracker, or with None cancels its drain.
    fn drain(&mut self, name: &str, within: Option<Span>) {
        let tracker = self.core.cluster().tracker_named(name).unwrap().id;
        let request = RequestId(u128::from(self.now.0));
        self.send(Event::Drain { request, tracker, within, by: "u".into() });
    }

    fn restart(&mut self) {
        self.core = replay(&self.entries);
        self.launched.clear();
        self.seqs.clear();
        self.send(Event::Start);
        self.join("t0", 1);
        self.join("t1", 2);
    }

    /// A long run with all kinds of events.
    fn full_run() -> Self {
        let mut script = Self::new();
        script.send(Event::Start);
        for name in ["t0", "t1", "t2"] {
            script.join(name, 1);
        }
        for number in 1..=9 {
            script.submit(number);
            for step in 0..12 {
                script.end_one(step == 2);
            }
            match number {
                2 => script.disconnect("t2"),
                3 => {
                    script.now = Time(script.now.0 + 11_000_000);
                    script.send(Event::Tick);
                    script.join("t0", 1);
                    script.join("t1", 2);
                }
                4 => script.drain("t0", Some(Span::secs(600))),
                5 => script.restart(),
                6 => script.drain("t0", None),
                7 => script.join("t2", 3),
                8 => {
                    let job = JobId(8);
                    script.send(Event::Kill { request: RequestId(800), job, by: "u".into() });
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
fn compacted_journal_gives_the_same_cluster_at_every_point() {
    let script = Script::full_run();
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
    let short = compact(script.entries.clone());
    let forgotten = |entry: &Entry| entry.fact.job() == Some(JobId(1));
    assert!(script.entries.iter().any(forgotten) && !short.iter().any(forgotten));
    let drained = |entry: &Entry| matches!(entry.fact, mrcore::Fact::TrackerDraining { .. });
    assert!(script.entries.iter().any(drained) && !short.iter().any(drained), "the drain was cancelled");
}

fn start(disk: &CrashDisk, folder: &Path) -> Driver {
    Driver::new(parts(disk, folder)).0
}

/// The parts of a driver on this disk.
pub(super) fn parts(disk: &CrashDisk, folder: &Path) -> Parts {
    let storage = Storage::open_log(Arc::new(disk.clone()), "c".into(), Recovery::Refuse).unwrap();
    let options = ClientOptions::new("127.0.0.1:1", daemon::config::ClientConfig::default());
    open(storage, core(), (folder, crate::history::Policy::default()), &settings(), options).unwrap()
}

fn histories(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

/// In whatever state the process left the histories, the next start completes them from the
/// journal.
#[tokio::test]
async fn a_history_is_completed_whenever_the_process_died() {
    let script = Script::full_run();
    let reference = tempfile::tempdir().unwrap();
    let whole = CrashDisk::new();
    fill(&whole, &script.entries);
    start(&whole, reference.path()).history_writer().flush().await;
    let expected = histories(reference.path());
    assert_eq!(expected.len(), 9);
    let lines: usize = expected.values().map(|text| text.lines().count()).sum();
    for at in (0..script.entries.len()).step_by(3) {
        let folder = tempfile::tempdir().unwrap();
        let early = CrashDisk::new();
        fill(&early, &script.entries[..at]);
        start(&early, folder.path()).history_writer().flush().await;
        // The last line of one file is also cut.
        if let Some(name) = histories(folder.path()).keys().nth(at % 3) {
            let path = folder.path().join(name);
            let text = std::fs::read(&path).unwrap();
            std::fs::write(&path, &text[..text.len() - at % 7]).unwrap();
        }
        start(&whole, folder.path()).history_writer().flush().await;
        let found = histories(folder.path());
        assert_eq!(found.values().map(|text| text.lines().count()).sum::<usize>(), lines, "died at {at}");
        assert_eq!(found, expected, "died at {at}");
    }
}

/// Power fails at every operation of the disk while facts are written: a prefix of the facts
/// survives, with every fact that was synced.
#[tokio::test]
async fn power_loss_at_any_write_is_survived() {
    let script = Script::full_run();
    let whole = CrashDisk::new();
    fill(&whole, &script.entries);
    let operations = whole.operations();
    for survive in [Survive::SyncedOnly, Survive::Seeded(7)] {
        for crash_after in 1..operations.min(60) {
            let disk = CrashDisk::new();
            disk.crash_after(crash_after);
            let durable = try_fill(&disk, &script.entries);
            let left = disk.survivor(survive);
            let folder = tempfile::tempdir().unwrap();
            let driver = start(&left, folder.path());
            // If an incomplete batch was cut, the start skips epochs and job numbers. Both are in
            // the first line of the digest.
            let epoch: u64 =
                driver.peek(|cluster| digest(cluster)).split(' ').nth(1).unwrap().parse().unwrap();
            let skipped = epoch > 1 << 32;
            let kept = driver.log().last_seq() as usize - usize::from(skipped);
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
            let found: usize = histories(folder.path()).values().map(lines).sum();
            let facts = script.entries[..kept].iter().filter(|entry| is_recorded(entry));
            // The second line of each history names the policy and the trackers.
            let submitted = |entry: &&Entry| matches!(entry.fact, mrcore::Fact::JobSubmitted { .. });
            assert_eq!(found, facts.clone().count() + facts.filter(submitted).count());
        }
    }
}

fn is_recorded(entry: &Entry) -> bool {
    let forgotten = matches!(entry.fact, mrcore::Fact::JobForgotten { .. });
    entry.fact.job().is_some() && !forgotten
}

fn fill(disk: &CrashDisk, entries: &[Entry]) {
    assert_eq!(try_fill(disk, entries), entries.len());
}

/// Writes the entries, each synced before the next, with a snapshot in the middle. Returns how many
/// were synced.
fn try_fill(disk: &CrashDisk, entries: &[Entry]) -> usize {
    let Ok(opened) = journal::Log::open(Arc::new(disk.clone()), Recovery::Refuse) else { return 0 };
    for (index, entry) in entries.iter().enumerate() {
        let synced = opened.log.append(&codec::encode(entry)).ok();
        if synced.and_then(|seq| opened.log.sync(seq).ok()).is_none() {
            return index;
        }
        if index == 15 && storage::snapshot(&opened.log).is_err() {
            return index + 1;
        }
    }
    entries.len()
}

#[test]
fn scripted_run_covers_the_fact_types() {
    let script = Script::full_run();
    let over = script.core.cluster().jobs().filter(|job| job.is_over()).count();
    assert!(over > 0 && script.core.cluster().jobs().any(|job| !job.is_done(Phase::Reduce)));
}
