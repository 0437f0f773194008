//! Groups of three `JobTrackers` in one process: real drivers and journals on disks in memory, and a
//! network in memory that can be cut in each direction. Fake trackers run the tasks of whatever
//! member leads.

use super::crash::{client_options, config, read_histories, registration, spec};
use crate::{
    blueprint::Blueprint,
    driver::{Driver, DriverParts, FIRST_STATE},
    error::Refusal,
    files::Files,
    group::{found_on, write_without_starts},
    history::HistoryWriter,
    opened::Opened,
    starts,
    storage::{self, Storage},
};
use daemon::{Period, config::Config};
use dfs_client::{
    error::{Kind, from_status},
    ids::{Start, StartId},
};
use journal::{
    Recovery,
    backup::{Part, complete_journal},
    crash::{CrashDisk, Survive},
    disk::Disk,
};
use mrcore::{
    Time,
    digest::digest,
    event::{AttemptReport, AttemptStatus, Heartbeat, Registration},
    fact,
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{Job, JobOutcome, JobSpec, JobState},
    task::{AttemptResult, Progress},
};
use parking_lot::Mutex;
use peers::membership::Membership;
use proto::{
    master::{ChangeGroupRequest, change_group_request::Change},
    mr::{self as pb, order, to_tracker},
};
use replication::{
    master::Journal,
    member::Member,
    memory::{Master, MemoryNetwork, address, wait_for},
    recovery,
    store::Store,
};
use security::Role;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tonic::{Code, Status};

const CLUSTER: &str = "group-test";
/// How long a fake tracker runs an attempt.
const ATTEMPT: Duration = Duration::from_millis(30);

/// No tracker is ever lost.
fn settings(folder: &Path) -> Config {
    let mut config = config(folder);
    config.jobtracker.jobs_kept = 10_000;
    config.jobtracker.suspect_after = Period::secs(600);
    config.jobtracker.lost_after = Period::secs(1200);
    config.jobtracker.disk_reserve.0 = 0;
    config
}

/// A member that runs.
struct Running {
    member: Member,
    driver: Arc<Driver>,
    tasks: Vec<JoinHandle<()>>,
}

impl Master for Running {
    fn member(&self) -> &Member {
        &self.member
    }

    fn is_leader(&self) -> bool {
        self.driver.leadership().is_some()
    }
}

/// The network and the members on it.
#[derive(Clone)]
struct Net {
    network: MemoryNetwork<Running>,
    /// Whether the NameNode answers. Then it accepts every start.
    has_namenode: Arc<AtomicBool>,
    folder: Arc<tempfile::TempDir>,
}

impl Deref for Net {
    type Target = MemoryNetwork<Running>;

    fn deref(&self) -> &Self::Target {
        &self.network
    }
}

/// Does what the tasks of a daemon do.
async fn lead(net: Net, driver: Arc<Driver>) {
    let mut leaderships = driver.leaderships();
    loop {
        let leadership = *leaderships.borrow_and_update();
        let mut work = JoinSet::new();
        if let Some(leadership) = leadership {
            if net.has_namenode.load(Ordering::Relaxed) {
                driver.accept(leadership).await;
            }
            work.spawn(driver.clone().tick_loop(leadership));
        }
        if leaderships.changed().await.is_err() {
            return;
        }
    }
}

impl Net {
    fn new() -> Self {
        let (has_namenode, folder) = (AtomicBool::new(true), tempfile::tempdir().unwrap());
        let (has_namenode, folder) = (Arc::new(has_namenode), Arc::new(folder));
        Self { network: MemoryNetwork::default(), has_namenode, folder }
    }

    fn settings(&self, id: u64) -> Config {
        settings(&self.folder.path().join(id.to_string()))
    }

    /// Returns a member that leads, if there is one. A deposed one may not know it yet.
    fn leader(&self) -> Option<(u64, Arc<Driver>)> {
        self.network.leader().map(|(id, running)| (id, running.driver.clone()))
    }

    async fn wait_for_leader(&self) -> (u64, Arc<Driver>) {
        wait_for("a leader", || self.leader()).await
    }

    async fn start(&self, id: u64, disk: &CrashDisk) {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let member = Member::new(Store::open(&disk, id).unwrap());
        let config = self.settings(id);
        let blueprint = Blueprint::new(&config, CLUSTER.into()).unwrap();
        let (driver, outgoing) = Driver::new(DriverParts {
            core: blueprint.core().unwrap(),
            journal: Journal::Group(member.clone()),
            newest: Time(0),
            files: Files::new(client_options(&config), CLUSTER),
            history_writer: HistoryWriter::start(FIRST_STATE, blueprint.open_histories().unwrap()).unwrap(),
            blueprint,
            notice: None,
        });
        let driver = Arc::new(driver);
        let tasks = vec![
            tokio::spawn(driver.clone().deliver(outgoing)),
            tokio::spawn(lead(self.clone(), driver.clone())),
        ];
        let running = Running { member, driver: driver.clone(), tasks };
        self.network.start(id, Arc::new(running), driver).await.unwrap();
    }

    async fn stop(&self, id: u64) {
        let running = self.remove(id);
        running.tasks.iter().for_each(JoinHandle::abort);
        // A disk that has failed cannot be closed.
        let _failed = running.driver.journal().stop().await;
        // The next start uses the folder of the histories.
        running.driver.history_writer().flush().await;
    }

    async fn snapshot(&self, id: u64) {
        let driver = self.all()[&id].driver.clone();
        spawn_blocking(move || storage::snapshot(driver.journal())).await.unwrap().unwrap();
    }

    /// Asks one member after the other until one gives a definite answer. `None` if there is none in
    /// time.
    async fn ask<T, F: Future<Output = Result<T, Refusal>>>(
        &self,
        first: usize,
        limit: Duration,
        ask: impl Fn(Arc<Driver>) -> F,
    ) -> Option<T> {
        let until = Instant::now() + limit;
        let mut next = first;
        while Instant::now() < until {
            let members: Vec<_> = self.all().into_values().collect();
            next += 1;
            if let Some(running) = members.get(next % members.len().max(1)) {
                match timeout(Duration::from_millis(500), ask(running.driver.clone())).await {
                    Ok(Ok(answer)) => return Some(answer),
                    Ok(Err(refusal)) => {
                        let status = Status::from(refusal);
                        assert_eq!(status.code(), Code::Unavailable, "{status}");
                    }
                    Err(_) => {}
                }
            }
            sleep(Duration::from_millis(3)).await;
        }
        None
    }

    async fn submit(&self, request: RequestId, limit: Duration) -> Option<JobId> {
        let submit = |driver: Arc<Driver>| async move { driver.submit(request, job()).await };
        self.ask(request.0 as usize, limit, submit).await
    }

    /// Waits until all members have applied the same entries, and checks that they are equal.
    async fn wait_until_equal(&self) {
        wait_for("equal states", || {
            let all: Vec<_> = self.all().into_values().collect();
            let digest_of = |running: &Running| running.driver.peek(|cluster| digest(cluster));
            let is_equal = |pair: &[Arc<Running>]| {
                pair[0].member.status().applied == pair[1].member.status().applied
                    && digest_of(&pair[0]) == digest_of(&pair[1])
            };
            all.windows(2).all(is_equal).then_some(())
        })
        .await;
    }

    /// Returns the histories of all members, which become equal: a leader writes facts a little later
    /// than it answers.
    async fn histories(&self) -> BTreeMap<String, String> {
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            let mut all = Vec::new();
            for (id, running) in self.all() {
                running.driver.history_writer().flush().await;
                let mut files = read_histories(&self.settings(id).jobtracker.dir);
                files.values_mut().for_each(remove_trackers);
                all.push(files);
            }
            if all.windows(2).all(|pair| pair[0] == pair[1]) {
                return all.swap_remove(0);
            }
            assert!(Instant::now() < end, "{}", difference(&all));
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Removes the second line of a history, which lists the trackers at the submission. A member that has
/// the job from a snapshot knows the newest registration of each tracker only.
fn remove_trackers(text: &mut String) {
    let lines = text.split_inclusive('\n').enumerate();
    *text = lines.filter(|(at, _)| *at != 1).map(|(_, line)| line).collect();
}

/// Describes the first difference between the histories of members.
fn difference(all: &[BTreeMap<String, String>]) -> String {
    for name in all.iter().flat_map(BTreeMap::keys) {
        let texts: Vec<&str> =
            all.iter().map(|files| files.get(name).map_or("(none)", String::as_str)).collect();
        for at in 0..100 {
            let lines: Vec<_> = texts.iter().map(|text| text.lines().nth(at)).collect();
            if lines.windows(2).any(|pair| pair[0] != pair[1]) {
                return format!("line {at} of {name} differs: {lines:#?}");
            }
        }
    }
    "no difference".into()
}

fn has_succeeded(job: &Job) -> bool {
    job.state == JobState::Ended(JobOutcome::Succeeded)
}

/// A job of three maps without output.
fn job() -> JobSpec {
    JobSpec { reduces: 0, split_slow: false, ..(*spec(1)).clone() }
}

/// Makes a disk that of the first member of a group.
fn found(disk: &CrashDisk, config: &Config, earlier: &[Start]) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let storage = Storage::open_log(disk.clone(), CLUSTER.into(), Recovery::Refuse).unwrap();
    let Opened { log, blueprint, replayed, .. } = Opened::replay(config, storage).unwrap();
    found_on(log, &replayed, &blueprint, earlier).unwrap();
    Store::found(&disk, 1).unwrap();
}

/// Starts one JobTracker as the first of a group, and two more that join.
async fn group_of_three() -> (Net, BTreeMap<u64, CrashDisk>) {
    let net = Net::new();
    let disks: BTreeMap<u64, CrashDisk> = (1..=3).map(|id| (id, CrashDisk::new())).collect();
    found(&disks[&1], &net.settings(1), &[]);
    net.start(1, &disks[&1]).await;
    net.wait_for_leader().await;
    let leader = net.all()[&1].member.clone();
    for id in [2, 3] {
        net.start(id, &disks[&id]).await;
        leader.add(id, &address(id)).await.unwrap();
    }
    (net, disks)
}

/// A tracker that runs each attempt for a while. It looks for a leader, registers, and looks again
/// when it gets no answers.
struct FakeTracker {
    net: Net,
    name: String,
    incarnation: Incarnation,
    running: BTreeMap<AttemptId, Instant>,
    /// Reports that are not answered yet.
    ended: BTreeMap<AttemptId, AttemptStatus>,
    /// How often each task has run.
    runs: BTreeMap<TaskId, u32>,
    registrations: u32,
}

/// A stream to a JobTracker.
struct Stream {
    driver: Arc<Driver>,
    messages: mpsc::Receiver<pb::ToTracker>,
    tracker: TrackerId,
    generation: u64,
    acked: u64,
}

impl FakeTracker {
    fn new(net: &Net, name: &str) -> Self {
        Self {
            net: net.clone(),
            name: name.into(),
            incarnation: Incarnation(0),
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            runs: BTreeMap::new(),
            registrations: 0,
        }
    }

    fn reports(&self) -> Vec<AttemptReport> {
        let running = self.running.keys().map(|attempt| AttemptReport {
            attempt: *attempt,
            status: AttemptStatus::Running(Progress::default()),
        });
        let ended = self.ended.iter();
        let ended =
            ended.map(|(attempt, status)| AttemptReport { attempt: *attempt, status: status.clone() });
        running.chain(ended).collect()
    }

    /// Registers with a member that leads, or that believes so.
    async fn register(&mut self) -> Option<Stream> {
        let leading = self.net.all().into_values().filter(|running| running.driver.leadership().is_some());
        let leading: Vec<_> = leading.collect();
        // A deposed leader does not answer, and then it is the turn of another one.
        self.registrations += 1;
        let driver = leading.get(self.registrations as usize % leading.len().max(1))?.driver.clone();
        let (sender, mut messages) = mpsc::channel(1000);
        let attempts = self.reports();
        let outputs = self.ended.keys().copied().collect();
        let registered = Registration { attempts, outputs, ..registration(&self.name, self.incarnation.0) };
        let (tracker, _, generation) = driver.attach(registered, &sender)?;
        drop(sender);
        let answer = timeout(Duration::from_millis(700), messages.recv()).await.ok()??;
        let Some(to_tracker::Kind::Registered(answer)) = answer.kind else { return None };
        self.incarnation = Incarnation(answer.incarnation);
        self.ended.clear();
        Some(Stream { driver, messages, tracker, generation, acked: 0 })
    }

    fn obey(&mut self, stream: &mut Stream, orders: Vec<pb::Order>) {
        for pb::Order { number, kind } in orders {
            if number <= stream.acked {
                continue;
            }
            stream.acked = number;
            match kind.unwrap() {
                order::Kind::Launch(launch) => {
                    let attempt: AttemptId = launch.task.unwrap().attempt.parse().unwrap();
                    *self.runs.entry(attempt.task).or_default() += 1;
                    self.running.insert(attempt, Instant::now() + ATTEMPT);
                }
                order::Kind::Preempt(preempt) => {
                    let attempt: AttemptId = preempt.attempt.parse().unwrap();
                    if self.running.remove(&attempt).is_some() {
                        self.ended.insert(attempt, AttemptStatus::Killed("ordered".into()));
                    }
                }
                order::Kind::Clean(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends one heartbeat and waits for its answer. Returns false if there is none.
    async fn beat(&mut self, stream: &mut Stream, seq: u64) -> bool {
        let now = Instant::now();
        let done: Vec<AttemptId> =
            self.running.iter().filter(|(_, end)| **end <= now).map(|(attempt, _)| *attempt).collect();
        for attempt in done {
            self.running.remove(&attempt);
            self.ended.insert(attempt, AttemptStatus::Succeeded(AttemptResult::default()));
        }
        let reported: Vec<AttemptId> = self.ended.keys().copied().collect();
        let (tracker, incarnation) = (stream.tracker, self.incarnation);
        let attempts = self.reports();
        for _ in 0..3 {
            let heartbeat = Heartbeat {
                tracker,
                incarnation,
                seq,
                acked: stream.acked,
                attempts: attempts.clone(),
                fetch_failures: Vec::new(),
            };
            if !stream.driver.heartbeat(stream.generation, heartbeat) {
                return false;
            }
            let until = tokio::time::Instant::now() + Duration::from_millis(300);
            while let Ok(message) = tokio::time::timeout_at(until, stream.messages.recv()).await {
                let Some(to_tracker::Kind::Orders(orders)) = message.and_then(|message| message.kind) else {
                    return false;
                };
                self.obey(stream, orders.orders);
                if orders.answers == seq {
                    self.ended.retain(|attempt, _| !reported.contains(attempt));
                    return true;
                }
            }
        }
        false
    }

    /// Runs until `stop` is set. Returns how often each task has run.
    async fn run(mut self, stop: Arc<AtomicBool>) -> BTreeMap<TaskId, u32> {
        while !stop.load(Ordering::Relaxed) {
            let Some(mut stream) = self.register().await else {
                sleep(Duration::from_millis(10)).await;
                continue;
            };
            for seq in 1.. {
                if stop.load(Ordering::Relaxed) || !self.beat(&mut stream, seq).await {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
            stream.driver.detach(stream.tracker, stream.generation);
        }
        self.runs
    }
}

/// Trackers that run.
struct Trackers {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<BTreeMap<TaskId, u32>>>,
}

impl Trackers {
    fn start(net: &Net) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |name| tokio::spawn(FakeTracker::new(net, name).run(stop.clone()));
        let running = ["t0", "t1", "t2"].map(start).into();
        Self { stop, running }
    }

    /// Waits until all jobs have ended, and checks that no task has run twice.
    async fn stop(self, net: &Net) {
        let jobs_end = async {
            loop {
                let ended = |driver: Arc<Driver>| async move {
                    driver.read(|cluster| cluster.jobs().all(Job::has_ended)).await
                };
                if net.ask(0, Duration::from_mins(1), ended).await.expect("an answer") {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_mins(2), jobs_end).await.expect("all jobs end");
        self.stop.store(true, Ordering::Relaxed);
        let mut runs: BTreeMap<TaskId, u32> = BTreeMap::new();
        for tracker in self.running {
            for (task, count) in tracker.await.unwrap() {
                *runs.entry(task).or_default() += count;
            }
        }
        let (_, leader) = net.wait_for_leader().await;
        leader.peek(|cluster| {
            for job in cluster.jobs() {
                if has_succeeded(job) {
                    let counts: Vec<u32> =
                        job.tasks.map.iter().map(|task| runs.get(&task.id).copied().unwrap_or(0)).collect();
                    assert_eq!(counts, [1, 1, 1], "{}: a task has run twice", job.id);
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_continue_with_the_next_leader_and_no_task_runs_again() {
    let (net, mut disks) = group_of_three().await;
    let trackers = Trackers::start(&net);
    let mut jobs = Vec::new();
    for number in 1..=12 {
        jobs.push(net.submit(RequestId(number), Duration::from_mins(1)).await.unwrap());
        if number % 3 == 0 {
            let (old, _) = net.wait_for_leader().await;
            net.stop(old).await;
            let disk = disks[&old].after_crash(Survive::SyncedOnly);
            wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
            net.start(old, &disk).await;
            disks.insert(old, disk);
        }
    }
    assert_eq!(jobs.iter().collect::<BTreeSet<_>>().len(), 12);
    trackers.stop(&net).await;
    net.wait_until_equal().await;
    let (_, leader) = net.wait_for_leader().await;
    leader.peek(|cluster| assert!(cluster.jobs().all(has_succeeded)));
    let histories = net.histories().await;
    assert_eq!(histories.len(), 12);
    for (name, lines) in histories {
        assert_eq!(lines.matches("\"attempt-succeeded\"").count(), 3, "{name}");
        assert_eq!(lines.matches("\"job-ended\"").count(), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_drops_what_is_not_committed_and_closes_streams() {
    let (net, _disks) = group_of_three().await;
    let mut tracker = FakeTracker::new(&net, "t0");
    let mut stream = tracker.register().await.unwrap();
    assert!(tracker.beat(&mut stream, 1).await);
    let kept = net.submit(RequestId(1), Duration::from_mins(1)).await.unwrap();
    net.wait_until_equal().await;
    let (old, deposed) = net.wait_for_leader().await;
    let mut watch = deposed.watch_job(kept);
    net.isolate(old);
    wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
    // It does not know yet that another leads, and must not answer with an old state.
    assert!(deposed.leadership().is_some());
    let stale = deposed.read(|cluster| cluster.newest_job()).await.unwrap_err().to_string();
    assert!(stale.contains("no quorum"), "{stale}");
    let lost = tokio::spawn({
        let deposed = deposed.clone();
        async move { deposed.submit(RequestId(2), job()).await }
    });
    let has_applied = || deposed.peek(|cluster| cluster.job_of_request(RequestId(2)));
    let lost_id = wait_for("a job that is not committed", has_applied).await;
    let new_id = net.submit(RequestId(3), Duration::from_mins(1)).await.unwrap();
    assert_eq!(new_id, lost_id, "the next leader does not know the lost job");
    net.heal();
    let refused = Status::from(lost.await.unwrap().unwrap_err());
    assert_eq!(from_status(&refused).unwrap().kind, Kind::NotLeader, "{refused}");
    net.wait_until_equal().await;
    deposed.peek(|cluster| {
        assert_eq!(cluster.job_of_request(RequestId(2)), None);
        assert_eq!(cluster.job_of_request(RequestId(3)), Some(new_id));
        assert!(cluster.job(kept).is_some());
    });
    // The streams have ended: that of the tracker, and that of a client that follows the job.
    assert!(!tracker.beat(&mut stream, 2).await);
    let closed = async { while watch.changed().await.is_ok() {} };
    timeout(Duration::from_mins(1), closed).await.unwrap();
    // The request that had no answer is accepted once when it is repeated.
    let again = net.submit(RequestId(2), Duration::from_mins(1)).await.unwrap();
    assert_eq!(net.submit(RequestId(2), Duration::from_mins(1)).await.unwrap(), again);
    net.wait_until_equal().await;
    net.histories().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_refuses_clients_and_trackers_and_names_the_leader() {
    let (net, _disks) = group_of_three().await;
    net.submit(RequestId(1), Duration::from_mins(1)).await.unwrap();
    net.wait_until_equal().await;
    let (leader, _) = net.wait_for_leader().await;
    for (id, running) in net.all() {
        let driver = &running.driver;
        if id == leader {
            continue;
        }
        let refusals = [
            driver.submit(RequestId(2), job()).await.map(drop),
            driver.kill(RequestId(3), JobId(1), "ann".into()).await,
            driver.read(|_| ()).await,
            driver.check_leader(),
        ];
        for refused in refusals {
            let refused = from_status(&Status::from(refused.unwrap_err())).unwrap();
            assert_eq!((refused.kind, refused.leader.unwrap().addr), (Kind::NotLeader, address(leader)));
        }
        let (sender, _receiver) = mpsc::channel(1);
        assert!(driver.attach(registration("t0", 0), &sender).is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_leadership_is_a_start_that_all_members_know() {
    let net = Net::new();
    let disk = CrashDisk::new();
    net.has_namenode.store(false, Ordering::Relaxed);
    let of_one = Start { epoch: 0, id: StartId(7) };
    found(&disk, &net.settings(1), &[of_one]);
    net.start(1, &disk).await;
    let (_, leader) = net.wait_for_leader().await;
    let as_fact = |start: Start| fact::Start { epoch: start.epoch, id: start.id.0 };
    let before = |driver: &Driver, start| {
        driver.peek(|cluster| cluster.starts().before(as_fact(start)).collect::<Vec<_>>())
    };
    // The starts of the JobTracker that has become the first member are kept.
    let first = leader.leadership().unwrap().start;
    assert_eq!(before(&leader, first), [as_fact(of_one)]);
    net.start(2, &CrashDisk::new()).await;
    net.all()[&1].member.add(2, &address(2)).await.unwrap();
    net.wait_until_equal().await;
    let membership = Membership::new(Role::JobTracker, net.all()[&1].member.clone(), []);
    membership.transfer(Some(address(2)), || leader.pause()).await.unwrap();
    let (_, second) = wait_for("the second one", || net.leader().filter(|(id, _)| *id == 2)).await;
    let start = second.leadership().unwrap().start;
    assert!(start.epoch > first.epoch && start.id != first.id);
    assert_eq!(before(&second, start), [as_fact(of_one), as_fact(first)]);
    // When the NameNode has accepted a start, the earlier ones are forgotten.
    second.accept(second.leadership().unwrap()).await;
    second.read(|_| ()).await.unwrap();
    net.wait_until_equal().await;
    assert_eq!(before(&leader, start), []);
    assert!(leader.peek(|cluster| cluster.starts().contains(as_fact(start))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_a_leader_is_the_journal_of_one_jobtracker() {
    let (net, _disks) = group_of_three().await;
    net.submit(RequestId(1), Duration::from_mins(1)).await.unwrap();
    net.wait_until_equal().await;
    let (id, leader) = net.wait_for_leader().await;
    net.snapshot(id).await;
    let parts = storage::backup(leader.journal(), &leader.blueprint().histories, JobId(1)).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for part in parts {
        match part.unwrap() {
            Part::File(path) => files.push((path, Vec::new())),
            Part::Data(bytes) => files.last_mut().unwrap().1.extend(bytes),
            Part::End(_) => {}
        }
    }
    let disk = CrashDisk::new();
    for (path, bytes) in files {
        if let Some(path) = path.strip_prefix("journal/") {
            disk.set_file(path, bytes);
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(disk);
    complete_journal(&disk).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open_log(disk, CLUSTER.into(), Recovery::Refuse).unwrap();
    let one = Opened::replay(&settings(folder.path()), storage).unwrap();
    assert_eq!(digest(one.replayed.core.cluster()), leader.peek(|cluster| digest(cluster)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_member_becomes_one_jobtracker_and_then_the_first_of_another_group() {
    let net = Net::new();
    let disk = CrashDisk::new();
    found(&disk, &net.settings(1), &[]);
    net.start(1, &disk).await;
    net.submit(RequestId(1), Duration::from_mins(1)).await.unwrap();
    let (_, leader) = net.wait_for_leader().await;
    let (start, epoch) = (leader.leadership().unwrap().start, leader.newest_epoch());
    net.stop(1).await;
    let folder = tempfile::tempdir().unwrap();
    let member: Arc<dyn Disk> = Arc::new(disk);
    let one: Arc<dyn Disk> = Arc::new(CrashDisk::new());
    let left = recovery::leave(&member, &one, Recovery::Refuse, |replay, writer| {
        write_without_starts(replay, writer, folder.path())
    });
    assert_eq!(left.unwrap(), None);
    assert!(starts::read(folder.path()).unwrap().contains(&start), "the NameNode may have accepted it");
    let open = || {
        let storage = Storage::open_log(one.clone(), CLUSTER.into(), Recovery::Refuse).unwrap();
        let opened = Opened::replay(&settings(folder.path()), storage).unwrap();
        let cluster = opened.replayed.core.cluster();
        assert_eq!((cluster.jobs().count(), cluster.epoch() >= epoch), (1, true));
        opened
    };
    let recorded = |opened: &Opened| opened.replayed.core.cluster().starts().iter().collect::<Vec<_>>();
    assert_eq!(recorded(&open()), [], "they are in the file");
    // The first of another group has the starts of the file, and no others.
    let other = Start { epoch: 0, id: StartId(7) };
    for earlier in [&[other][..], &[]] {
        let Opened { log, replayed, blueprint, .. } = open();
        found_on(log, &replayed, &blueprint, earlier).unwrap();
        assert_eq!(
            recorded(&open()),
            earlier.iter().map(|start| starts::to_fact(*start)).collect::<Vec<_>>()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_lose_no_request_and_stop_no_job() {
    let (net, _disks) = group_of_three().await;
    let trackers = Trackers::start(&net);
    let stop = Arc::new(AtomicBool::new(false));
    let client = tokio::spawn({
        let (net, stop) = (net.clone(), stop.clone());
        async move {
            for number in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return number - 1;
                }
                net.submit(RequestId(number), Duration::from_mins(1)).await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
            unreachable!("the loop has no end");
        }
    });
    for _ in 0..6 {
        let (old, leader) = net.wait_for_leader().await;
        let to = address(old % 3 + 1);
        let membership = Membership::new(Role::JobTracker, net.all()[&old].member.clone(), []);
        let change = Some(Change::Transfer(to.clone()));
        let changed = membership.change(ChangeGroupRequest { change }, || leader.pause()).await.unwrap();
        assert_eq!(changed.leader, to);
        wait_for("the new leader", || net.leader().filter(|(id, _)| *id == old % 3 + 1)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let submitted = client.await.unwrap();
    trackers.stop(&net).await;
    net.wait_until_equal().await;
    let (_, leader) = net.wait_for_leader().await;
    assert_eq!(leader.peek(|cluster| cluster.jobs().count()) as u128, submitted);
}

/// What a client has asked, with the answer.
#[derive(Debug, Clone, Copy)]
enum Call {
    /// The job of a submission; `None` if there was no answer.
    Submit(RequestId, Option<JobId>),
    /// The newest job.
    Read(JobId),
}

#[derive(Debug, Clone, Copy)]
struct Recorded {
    begin: Instant,
    end: Instant,
    call: Call,
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        mrcore::split_mix::next(&mut self.0) % limit
    }
}

/// A client: submits, kills and reads, and repeats requests until they are answered.
async fn run_client(net: Net, client: u64, until: Instant) -> Vec<Recorded> {
    let mut random = Random(client);
    let mut history = Vec::new();
    let limit = Duration::from_secs(3);
    for number in 1.. {
        if Instant::now() >= until {
            break;
        }
        let request = RequestId(u128::from(client) << 64 | number);
        let begin = Instant::now();
        let call = match random.below(4) {
            0 => {
                let id = random.below(4);
                let members = net.all();
                let Some(running) = members.get(&id) else { continue };
                let driver = running.driver.clone();
                match timeout(limit, driver.read(|cluster| cluster.newest_job())).await {
                    Ok(Ok(newest)) => Call::Read(newest),
                    _ => continue,
                }
            }
            1 => {
                let last = history.iter().rev().find_map(|recorded: &Recorded| match recorded.call {
                    Call::Submit(_, job) => job,
                    Call::Read(_) => None,
                });
                let Some(job) = last else { continue };
                let kill = |driver: Arc<Driver>| async move {
                    driver.answer_once(request, driver.kill(request, job, "ann".into())).await
                };
                net.ask(number as usize, limit, kill).await;
                continue;
            }
            _ => Call::Submit(request, net.submit(request, limit).await),
        };
        history.push(Recorded { begin, end: Instant::now(), call });
        sleep(Duration::from_millis(5)).await;
    }
    history
}

/// Checks that jobs were numbered in an order that explains all answers: a call that begins after
/// another has ended sees it.
fn check_linearizable(calls: &[Recorded]) {
    for first in calls {
        for second in calls.iter().filter(|second| second.begin > first.end) {
            let is_right = match (first.call, second.call) {
                (Call::Submit(_, Some(earlier)) | Call::Read(earlier), Call::Submit(_, Some(later))) => {
                    earlier < later
                }
                (Call::Submit(_, Some(earlier)) | Call::Read(earlier), Call::Read(later)) => earlier <= later,
                _ => true,
            };
            assert!(is_right, "{first:?} ended before {second:?} began");
        }
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Counts {
    leaders: u64,
    answered: usize,
    restarts: usize,
}

async fn run_with_faults(seed: u64) -> Counts {
    let (net, mut disks) = group_of_three().await;
    let trackers = Trackers::start(&net);
    let mut random = Random(seed);
    let epoch = net.wait_for_leader().await.1.newest_epoch();
    let until = Instant::now() + Duration::from_secs(6);
    let mut clients = JoinSet::new();
    for client in 1..=3 {
        clients.spawn(run_client(net.clone(), seed << 8 | client, until));
    }
    let mut counts = Counts::default();
    while Instant::now() < until {
        let id = 1 + random.below(3);
        let leader = net.leader().map_or(id, |(id, _)| id);
        match random.below(7) {
            0 => net.isolate(leader),
            1 => net.isolate(id),
            2 => net.cut([(id, leader), (id, id % 3 + 1)]),
            3 => net.cut([(id % 3 + 1, leader), ((id + 1) % 3 + 1, leader)]),
            4 => {
                let victim = if random.below(2) == 0 { leader } else { id };
                net.stop(victim).await;
                let survive = match random.below(3) {
                    0 => Survive::Everything,
                    1 => Survive::SyncedOnly,
                    _ => Survive::Seeded(random.below(u64::MAX)),
                };
                let disk = disks[&victim].after_crash(survive);
                sleep(Duration::from_millis(random.below(500))).await;
                net.start(victim, &disk).await;
                disks.insert(victim, disk);
                counts.restarts += 1;
            }
            5 => {
                // It is refused if the member does not answer.
                let _refused = net.all()[&leader].member.transfer(id).await;
            }
            _ => net.snapshot(id).await,
        }
        sleep(Duration::from_millis(100 + random.below(500))).await;
        if random.below(2) == 0 {
            net.heal();
        }
    }
    net.heal();
    let calls: Vec<Recorded> = clients.join_all().await.into_iter().flatten().collect();
    trackers.stop(&net).await;
    net.wait_until_equal().await;
    check_linearizable(&calls);
    let (_, leader) = net.wait_for_leader().await;
    leader.peek(|cluster| {
        let mut jobs = BTreeSet::new();
        for recorded in &calls {
            if let Call::Submit(request, Some(job)) = recorded.call {
                assert_eq!(cluster.job_of_request(request), Some(job));
                assert!(jobs.insert(job), "two requests have one job");
            }
        }
        let requests: BTreeSet<RequestId> = cluster.jobs().map(|job| job.request).collect();
        assert_eq!(requests.len(), cluster.jobs().count(), "a request has two jobs");
        counts.answered = jobs.len();
    });
    net.histories().await;
    counts.leaders = leader.newest_epoch() - epoch;
    for id in 1..=3 {
        net.stop(id).await;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_are_linearizable_and_members_are_equal_under_faults() {
    let first: u64 = std::env::var("FERMATA_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let all: Mutex<Vec<Counts>> = Mutex::default();
    let runs: Vec<_> = (first..first + 3).map(|seed| tokio::spawn(run_with_faults(seed))).collect();
    for (seed, run) in (first..).zip(runs) {
        let counts = run.await.unwrap_or_else(|panic| panic!("FERMATA_FIRST_SEED={seed}: {panic}"));
        println!("seed {seed}: {counts:?}");
        all.lock().push(counts);
    }
    let all = all.into_inner();
    // The runs together test something. In a single one, the group may have no quorum for long.
    assert!(all.iter().map(|counts| counts.leaders).sum::<u64>() > 3, "leaders change: {all:?}");
    assert!(all.iter().map(|counts| counts.answered).sum::<usize>() > 30, "clients work: {all:?}");
    assert!(all.iter().map(|counts| counts.restarts).sum::<usize>() > 0, "members are killed: {all:?}");
}
