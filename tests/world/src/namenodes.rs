//! The NameNodes: real drivers, members and stores, each with a disk in memory and clocks of its own.

use crate::{
    network::{Host, Network},
    simulation::Simulation,
};
use daemon::{Period, config::NameNodeConfig};
use dfs::namenode::{
    Namespace, Settings, State,
    driver::{Driver, Environment, TICK},
    storage,
};
use dfs_client::ids::StartId;
use journal::{
    crash::{CrashDisk, Damage, Survive},
    disk::Disk,
    executor::Executor,
};
use replication::{
    error::StateError,
    machine::ReplicatedState,
    master::Journal,
    member::{Member, Timing},
    network::{AnswerFuture, Message, Transport},
    recovery,
    replay::Replay,
    store::Store,
    types::{LogId, Proposal},
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, interval, sleep, timeout},
};

pub(crate) const CLUSTER: &str = "world";
const MEMBERS: u64 = 3;
/// Maximum time in microseconds that work waits for a disk that is not slow.
pub(crate) const DISK_DELAY: u64 = 1_500;
/// The wall clock of all members at the begin of a run, in milliseconds since the Unix epoch.
const WALL_BEGIN_MS: i64 = 1_800_000_000_000;
/// How long after a crash of the leader, or the begin of a leadership, a failover counts.
const FAILOVER_MS: u64 = 2_000;

/// A NameNode that runs, or has crashed and does not know it.
pub(crate) struct Running {
    /// The machine on which it runs, from 1.
    pub(crate) place: u64,
    pub(crate) member: Member,
    pub(crate) driver: Arc<Driver>,
    /// A dead process sends and answers nothing.
    is_dead: AtomicBool,
    ticks: Mutex<Option<JoinHandle<()>>>,
}

impl Running {
    pub(crate) fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Returns the answer of `handle`, unless the process dies before.
    pub(crate) async fn serve<T>(&self, handle: impl Future<Output = T>) -> Option<T> {
        if !self.is_alive() {
            return None;
        }
        let answer = handle.await;
        self.is_alive().then_some(answer)
    }
}

/// The machine of a NameNode, whether that runs or not.
struct Machine {
    /// The ID of the member whose folder is on the disk.
    member: u64,
    disk: CrashDisk,
    executor: Executor,
    /// Whether its member has never been started.
    is_new: bool,
    /// Whether its member was exchanged and is not added to the group yet.
    must_join: bool,
    running: Option<Arc<Running>>,
    clock: Arc<Clock>,
    /// Maximum time in microseconds that work waits for the disk.
    disk_delay: Arc<AtomicU64>,
}

impl Machine {
    /// Returns whether a file is neither as it was synced nor as it was written.
    fn lose_writes(&mut self, survive: Survive) -> bool {
        let after = self.disk.after_crash(survive);
        let before = std::mem::replace(&mut self.disk, after);
        // What is left of the process writes nothing more.
        before.crash_after(0);
        let (written, synced) = (before.files(), before.after_crash(Survive::SyncedOnly).files());
        let is_mixed = |name: &String, bytes: &Vec<u8>| {
            written.get(name).is_some_and(|all| all != bytes)
                && synced.get(name).is_some_and(|all| all != bytes)
        };
        self.disk.files().iter().any(|(name, bytes)| is_mixed(name, bytes))
    }
}

/// The clocks of a machine.
#[derive(Default)]
struct Clock {
    /// How far the wall clock is ahead, in milliseconds.
    ahead_ms: AtomicI64,
}

/// The leaders that were seen.
#[derive(Default)]
struct Leaders {
    by_term: BTreeMap<u64, u64>,
    /// The committed starts of leaderships, by epoch.
    starts: BTreeMap<u64, StartId>,
}

/// All NameNodes. Clones share them.
#[derive(Clone)]
pub(crate) struct NameNodes {
    pub(crate) simulation: Simulation,
    pub(crate) network: Network,
    machines: Arc<Mutex<BTreeMap<u64, Machine>>>,
    leaders: Arc<Mutex<Leaders>>,
    /// When a leader has crashed, or a leadership has begun, in milliseconds since the begin.
    failover_ms: Arc<AtomicU64>,
}

fn config() -> NameNodeConfig {
    NameNodeConfig {
        retry_cache: 100_000,
        heartbeat: Period::millis(200),
        suspect_after: Period::millis(900),
        dead_after: Period::millis(1_200),
        copy_timeout: Period::millis(3_000),
        orphan_grace: Period::millis(500),
        ..NameNodeConfig::default()
    }
}

fn address(place: u64) -> String {
    format!("m{place}:9400")
}

fn is_snapshot(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "snap")
}

/// Returns the machine of a member. Each exchange gives a machine an ID that no other has had.
fn place_of(member: u64) -> u64 {
    (member - 1) % MEMBERS + 1
}

impl NameNodes {
    /// Starts one NameNode as the first of a group, and two more that join.
    pub(crate) async fn start_group(simulation: Simulation, network: Network) -> Self {
        let all = Self {
            simulation,
            network,
            machines: Arc::default(),
            leaders: Arc::default(),
            failover_ms: Arc::default(),
        };
        for id in 1..=MEMBERS {
            let disk_delay = Arc::new(AtomicU64::new(DISK_DELAY));
            let (simulation, longest) = (all.simulation.clone(), disk_delay.clone());
            let executor =
                Executor::Simulated(Arc::new(move || simulation.micros(20, longest.load(Ordering::Relaxed))));
            let machine = Machine {
                member: id,
                disk: CrashDisk::simulated(executor.clone()),
                executor,
                is_new: true,
                must_join: false,
                running: None,
                clock: Arc::default(),
                disk_delay,
            };
            all.machines().insert(id, machine);
        }
        let disk = all.disk(1);
        let environment = all.environment(1);
        storage::format_first_member(&disk, 1, CLUSTER, &environment, &config()).expect("an empty disk");
        all.start(1).await.expect("the first member starts");
        let first = all.wait_for_leader().await;
        for id in 2..=MEMBERS {
            all.start(id).await.expect("a new member starts");
            first.member.add(id, &address(id)).await.expect("a new member is added");
        }
        all
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<u64, Machine>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn machine<T>(&self, id: u64, ask: impl FnOnce(&mut Machine) -> T) -> T {
        ask(self.machines().get_mut(&id).expect("members are numbered from 1"))
    }

    fn disk(&self, id: u64) -> Arc<dyn Disk> {
        self.machine(id, |machine| Arc::new(machine.disk.clone()))
    }

    fn environment(&self, id: u64) -> Environment {
        let (begin, clock) = (self.simulation.clone(), self.machine(id, |machine| machine.clock.clone()));
        let random = self.simulation.clone();
        Environment {
            started: Instant::now(),
            wall: Box::new(move || {
                let now_ms = WALL_BEGIN_MS + begin.elapsed().as_millis() as i64;
                let now_ms = now_ms + clock.ahead_ms.load(Ordering::Relaxed);
                let wall: SystemTime = UNIX_EPOCH + Duration::from_millis(now_ms as u64);
                wall
            }),
            start_id: Box::new(move || StartId(random.random())),
        }
    }

    /// Starts a NameNode on its disk. An error is why it refuses its folder.
    pub(crate) async fn start(&self, place: u64) -> Result<(), String> {
        let (id, is_new) = self.machine(place, |machine| (machine.member, machine.is_new));
        let disk = self.disk(place);
        let opened = if is_new { Store::open(&disk, id) } else { recovery::open_with_bugs(&disk, id) };
        let member = Member::new(opened.map_err(|error| error.to_string())?);
        let (environment, config) = (self.environment(place), config());
        let state = State::following(Settings::from(&config), Namespace::new(CLUSTER), environment.now());
        let driver = Arc::new(Driver::new(state, Journal::Group(member.clone()), environment, &config));
        let running = Arc::new(Running {
            place,
            member: member.clone(),
            driver: driver.clone(),
            is_dead: AtomicBool::new(false),
            ticks: Mutex::default(),
        });
        let is_started = Arc::new(AtomicBool::new(false));
        let state = Observed {
            driver: driver.clone(),
            all: self.clone(),
            id,
            is_started: is_started.clone(),
            was_deposed: AtomicBool::new(false),
        };
        let transport = Arc::new(Wire { from: running.clone(), all: self.clone() });
        let starting = member.start(&Timing::default(), Arc::new(state), &address(place), transport);
        if let Err(error) = starting.await {
            let _failed = member.stop().await;
            return Err(error.to_string());
        }
        is_started.store(true, Ordering::Relaxed);
        let all = self.clone();
        let ticks = tokio::spawn(async move {
            let mut ticks = interval(TICK);
            loop {
                ticks.tick().await;
                // It fails if its disk has.
                let _failed = driver.tick();
                if driver.journal().take_needs_snapshot() {
                    all.simulation.count("damaged snapshot dropped");
                    all.snapshot(place).await;
                }
            }
        });
        *running.ticks.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticks);
        let ending = running.clone();
        tokio::spawn(async move {
            // The process ends.
            let _why = ending.driver.journal().failed().await;
            ending.is_dead.store(true, Ordering::Relaxed);
        });
        self.simulation.note("start", [id]);
        self.machine(place, |machine| (machine.running, machine.is_new) = (Some(running), false));
        Ok(())
    }

    /// Gives a machine whose log is damaged or lost a new member, which [`Self::join`] adds to the group.
    /// It fails if the disk does.
    pub(crate) fn exchange(&self, place: u64) {
        if recovery::reset(&*self.disk(place)).is_err() {
            return;
        }
        self.machine(place, |machine| {
            machine.member += MEMBERS;
            (machine.is_new, machine.must_join) = (true, true);
        });
        self.simulation.count("member exchanged after damage");
    }

    /// Ends the process of a NameNode, and deletes all its files.
    pub(crate) fn lose_folder(&self, place: u64) {
        self.crash(place, Survive::Everything);
        self.machine(place, |machine| machine.disk = CrashDisk::simulated(machine.executor.clone()));
        self.simulation.count("folder lost");
    }

    /// Adds the members that were exchanged, in place of those that they replace. A failure is tried
    /// again by the next call.
    pub(crate) async fn join(&self) {
        for place in 1..=MEMBERS {
            let (must_join, id) = self.machine(place, |machine| (machine.must_join, machine.member));
            let Some(leader) = self.leader().filter(|_| must_join) else { continue };
            let peers = leader.member.status().peers.into_iter().map(|peer| peer.id);
            let others: Vec<u64> = peers.filter(|peer| *peer != id && place_of(*peer) == place).collect();
            let own = address(place);
            let changing = leader.member.add_in_place_of(&others, id, &own);
            if let Ok(Ok(())) = timeout(Duration::from_secs(3), changing).await {
                self.simulation.note("joined", [id]);
                self.machine(place, |machine| machine.must_join = false);
            }
        }
    }

    /// Returns whether all members of the group run.
    pub(crate) fn is_complete(&self) -> bool {
        self.machines().values().all(|machine| machine.running.is_some() && !machine.must_join)
    }

    /// Ends the process of a NameNode, or its machine, at this moment. What `survive` says is left on
    /// its disk.
    pub(crate) fn crash(&self, id: u64, survive: Survive) {
        let Some(running) = self.machine(id, |machine| machine.running.take()) else { return };
        running.is_dead.store(true, Ordering::Relaxed);
        if let Some(ticks) = running.ticks.lock().unwrap_or_else(PoisonError::into_inner).take() {
            ticks.abort();
        }
        let leads = running.member.leading().is_some();
        if leads {
            self.note_failover();
        }
        let is_torn = self.machine(id, |machine| machine.lose_writes(survive));
        if is_torn {
            self.simulation.count(if leads { "torn write on a leader" } else { "torn write on a follower" });
        }
        self.simulation.count(if leads { "leader crashed" } else { "follower crashed" });
        self.simulation.note("crash", [id, u64::from(leads), u64::from(is_torn)]);
        // What is left of the process in memory.
        tokio::spawn(async move {
            let _failed = running.member.stop().await;
        });
    }

    /// Ends a start that has failed because the disk has. Returns false if it has not.
    pub(crate) fn lose_writes(&self, id: u64, survive: Survive) -> bool {
        self.simulation.note("crash at start", [id]);
        self.simulation.count("crash at a start");
        self.machine(id, |machine| {
            machine.disk.crashed() && {
                machine.lose_writes(survive);
                true
            }
        })
    }

    fn note_failover(&self) {
        self.failover_ms.store(self.simulation.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Damages the disk of a NameNode.
    pub(crate) fn damage(&self, place: u64, damage: Damage) {
        let seed = self.simulation.random();
        self.machine(place, |machine| machine.disk.damage(damage, seed));
    }

    /// Flips a bit of the newest snapshot of a NameNode.
    pub(crate) fn damage_snapshot(&self, place: u64) {
        let seed = self.simulation.random();
        self.machine(place, |machine| {
            let files = machine.disk.files();
            if let Some((name, bytes)) = files.iter().rfind(|(name, _)| is_snapshot(name)) {
                let mut bytes = bytes.clone();
                let at = seed as usize % bytes.len();
                bytes[at] ^= 1;
                machine.disk.set_file(name, bytes);
            }
        });
    }

    /// Lets the disk of a NameNode fail in the middle of its `operations`-th change from now on.
    pub(crate) fn fail_disk_after(&self, id: u64, operations: u64) {
        self.machine(id, |machine| machine.disk.crash_after(operations));
    }

    /// Cancels the faults of the disk of a NameNode that have not happened yet.
    pub(crate) fn cancel_disk_faults(&self, place: u64) {
        self.machine(place, |machine| machine.disk.cancel_faults());
    }

    /// Stops a NameNode in order.
    pub(crate) async fn stop(&self, id: u64) {
        let Some(running) = self.machine(id, |machine| machine.running.take()) else { return };
        if let Some(ticks) = running.ticks.lock().unwrap_or_else(PoisonError::into_inner).take() {
            ticks.abort();
        }
        // A disk that has failed cannot be closed.
        let _failed = running.driver.journal().stop().await;
        running.is_dead.store(true, Ordering::Relaxed);
        self.simulation.note("stop", [id]);
    }

    /// Makes a snapshot, as the periodic work of a NameNode does. It fails if the disk has.
    pub(crate) async fn snapshot(&self, id: u64) {
        let Some(running) = self.running(id) else { return };
        let executor = self.disk(id).executor();
        let making = executor.spawn_blocking(move || {
            storage::snapshot(running.driver.journal(), CLUSTER, config().retry_cache).is_ok()
        });
        if making.await.unwrap_or(false) {
            self.simulation.note("snapshot", [id]);
            self.simulation.count("snapshot made");
        }
    }

    /// Sets the wall clock of a NameNode.
    pub(crate) fn set_clock(&self, id: u64, ahead_ms: i64) {
        self.simulation.count("clock changed");
        self.machine(id, |machine| machine.clock.ahead_ms.store(ahead_ms, Ordering::Relaxed));
    }

    /// Makes the disk of a NameNode slow, or fast again: work waits up to `micros`.
    pub(crate) fn slow_disk(&self, id: u64, micros: u64) {
        self.machine(id, |machine| machine.disk_delay.store(micros, Ordering::Relaxed));
    }

    pub(crate) fn running(&self, id: u64) -> Option<Arc<Running>> {
        self.machine(id, |machine| machine.running.clone())
    }

    /// Returns all NameNodes that run.
    pub(crate) fn all(&self) -> Vec<Arc<Running>> {
        let machines = self.machines();
        let running = machines.values().filter_map(|machine| machine.running.clone());
        running.filter(|running| running.is_alive()).collect()
    }

    /// Returns those whose disks or members have failed.
    pub(crate) fn failed(&self) -> Vec<u64> {
        let has_failed = |machine: &Machine| {
            let running = machine.running.as_ref();
            running.is_some_and(|running| machine.disk.crashed() || !running.is_alive())
        };
        let machines = self.machines();
        machines.iter().filter(|(_, machine)| has_failed(machine)).map(|(place, _)| *place).collect()
    }

    /// Returns those that do not run.
    pub(crate) fn stopped(&self) -> Vec<u64> {
        let machines = self.machines();
        machines.iter().filter(|(_, machine)| machine.running.is_none()).map(|(id, _)| *id).collect()
    }

    /// Returns the one that leads in the highest term, if there is one. It may be deposed and not know it.
    pub(crate) fn leader(&self) -> Option<Arc<Running>> {
        self.all()
            .into_iter()
            .filter(|running| running.member.leading().is_some())
            .max_by_key(|running| running.member.leading())
    }

    async fn wait_for_leader(&self) -> Arc<Running> {
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks what must be true at any moment.
    pub(crate) fn check(&self) -> Result<(), String> {
        let all = self.all();
        for running in &all {
            running
                .driver
                .read(State::invariants)
                .map_err(|why| format!("NameNode {}: {why}", running.place))?;
            let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(term) = running.member.leading() {
                let (own, other) =
                    (running.member.id(), *leaders.by_term.entry(term).or_insert(running.member.id()));
                if other != own {
                    return Err(format!("members {other} and {own} lead in term {term}"));
                }
            } else {
                // What a follower knows is committed.
                let (epoch, start) = running.driver.read(|state| {
                    (state.namespace().epoch(), state.namespace().start_id().unwrap_or(StartId(0)))
                });
                if *leaders.starts.entry(epoch).or_insert(start) != start {
                    return Err(format!("two leaderships have epoch {epoch}"));
                }
            }
        }
        Ok(())
    }

    /// Returns why the NameNodes are not equal; `None` if all have applied the same entries.
    pub(crate) fn difference(&self) -> Option<String> {
        let all = self.all();
        if all.len() < MEMBERS as usize {
            return Some(format!("only {} NameNodes run", all.len()));
        }
        let applied = |running: &Running| running.member.status().applied;
        for pair in all.windows(2) {
            let (one, other) = (&pair[0], &pair[1]);
            if applied(one) != applied(other) {
                return Some(format!(
                    "NameNode {} has applied {} entries and NameNode {} {}",
                    one.place,
                    applied(one),
                    other.place,
                    applied(other)
                ));
            }
            let is_equal =
                one.driver.read(|one| other.driver.read(|other| one.namespace() == other.namespace()));
            if !is_equal {
                return Some(format!(
                    "NameNodes {} and {} have applied {} entries and differ",
                    one.place,
                    other.place,
                    applied(one)
                ));
            }
        }
        None
    }

    /// Sends a request of another process to a NameNode. `None` if it does not run, or nobody answers
    /// in time.
    pub(crate) async fn ask<T, F>(
        &self,
        from: Host,
        to: u64,
        what: &'static str,
        limit: Duration,
        handle: impl FnOnce(Arc<Running>) -> F + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let all = self.clone();
        let handling = async move {
            // A NameNode that does not run refuses the connection.
            let Some(running) = all.running(to) else { return Some(None) };
            running.serve(handle(running.clone())).await.map(Some)
        };
        let asked = timeout(limit, self.network.call(from, Host::NameNode(to), what, handling));
        asked.await.ok().flatten()
    }
}

/// The network of a member.
struct Wire {
    from: Arc<Running>,
    all: NameNodes,
}

fn kind(message: &Message) -> (&'static str, Option<&'static str>) {
    match message {
        Message::Append(request) if request.entries.is_empty() => ("heartbeat", None),
        Message::Append(_) => ("append", None),
        Message::Vote(_) => ("vote", Some("vote requested")),
        Message::PreVote(_) => ("pre-vote", None),
        Message::Transfer(_) => ("transfer", Some("leader asked another to lead")),
        Message::Part(_) => ("part", Some("part of a snapshot sent")),
        Message::Install(..) => ("install", None),
    }
}

impl Transport for Wire {
    fn call<'a>(&'a self, to: u64, _: &'a str, message: Message, limit: Duration) -> AnswerFuture<'a> {
        let (what, counted) = kind(&message);
        Box::pin(async move {
            if !self.from.is_alive() {
                sleep(limit).await;
                return Err("this process is dead".to_owned());
            }
            if let Some(counted) = counted {
                self.all.simulation.count(counted);
            }
            let from = Host::NameNode(self.from.place);
            let handle = move |running: Arc<Running>| async move {
                if running.member.id() != to {
                    return Err(format!("member {to} is not here"));
                }
                running.member.handle(message).await
            };
            let begin = Instant::now();
            let answer = self.all.ask(from, place_of(to), what, limit, handle).await;
            if answer.is_none() && begin.elapsed() < limit {
                return Err("connection refused".to_owned());
            }
            answer.unwrap_or_else(|| Err("no answer".to_owned()))
        })
    }
}

/// The state of a member, which notes what openraft does with it.
struct Observed {
    driver: Arc<Driver>,
    all: NameNodes,
    id: u64,
    is_started: Arc<AtomicBool>,
    /// Whether a leadership has just ended.
    was_deposed: AtomicBool,
}

impl ReplicatedState for Observed {
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), StateError> {
        self.was_deposed.store(false, Ordering::Relaxed);
        self.all.simulation.note("apply", [self.id, id.index, proposal.records.len() as u64]);
        self.driver.apply(id, proposal)
    }

    fn restore(&self, replay: Replay) -> Result<(), StateError> {
        let simulation = &self.all.simulation;
        simulation.note("restore", [self.id, replay.snapshot_seq()]);
        if self.was_deposed.swap(false, Ordering::Relaxed) {
            simulation.count("leader deposed during a commit");
        } else if self.is_started.load(Ordering::Relaxed) {
            simulation.count("snapshot installed");
            let since =
                simulation.elapsed().as_millis() as u64 - self.all.failover_ms.load(Ordering::Relaxed);
            if since < FAILOVER_MS {
                simulation.count("snapshot installed during a failover");
            }
        }
        self.driver.restore(replay)
    }

    fn lead(&self, term: u64) {
        self.all.note_failover();
        self.all.simulation.note("lead", [self.id, term]);
        self.all.simulation.count("leadership");
        // The start of some leaderships is not committed.
        if self.all.simulation.chance(150) {
            let others =
                (1..=MEMBERS).map(Host::NameNode).filter(|other| *other != Host::NameNode(place_of(self.id)));
            self.all.network.isolate(Host::NameNode(place_of(self.id)), others);
        }
        self.driver.lead(term);
    }

    fn follow(&self) {
        self.was_deposed.store(true, Ordering::Relaxed);
        self.all.simulation.note("follow", [self.id]);
        self.all.simulation.count("leader deposed");
        self.driver.follow();
    }
}
