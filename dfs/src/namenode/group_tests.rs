//! Groups of three NameNodes in one process: real drivers and logs on disks in memory, and a network
//! in memory that can be cut in each direction. Fake DataNodes report to all members.

use super::{
    driver::{Driver, Environment},
    namespace::Namespace,
    op::{
        BlockLength, Caller, Command, Heartbeat, HeartbeatAnswer, OnAbandon, Op, Outcome, Registration,
        Replica, Request, Usage,
    },
    settings::{Settings, default_quota},
    state::State,
    storage::{self, Storage},
};
use daemon::{Period, config::NameNodeConfig};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, StartId},
    path::DfsPath,
};
use journal::{
    Recovery,
    backup::{Part, complete_journal},
    crash::{CrashDisk, Survive},
    disk::Disk,
};
use parking_lot::Mutex;
use peers::membership::Membership;
use proto::master::{ChangeGroupRequest, change_group_request::Change};
use replication::{
    machine::ReplicatedState,
    master::Journal,
    member::Member,
    memory::{Master, MemoryNetwork, address, wait_for},
    store::Store,
};
use security::Role;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{interval, sleep, timeout},
};

const CLUSTER: &str = "group-test";
const RETRY_CACHE: usize = 100_000;

fn config() -> NameNodeConfig {
    NameNodeConfig {
        retry_cache: RETRY_CACHE,
        orphan_grace: Period::millis(100),
        ..NameNodeConfig::default()
    }
}

fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

/// A member that runs.
struct Running {
    member: Member,
    driver: Arc<Driver>,
    ticks: JoinHandle<()>,
}

impl Master for Running {
    fn member(&self) -> &Member {
        &self.member
    }

    fn is_leader(&self) -> bool {
        self.driver.state.read().is_leader()
    }
}

/// The network and the members on it.
#[derive(Clone, Default)]
struct Net(MemoryNetwork<Running>);

impl Deref for Net {
    type Target = MemoryNetwork<Running>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Net {
    fn driver(&self, id: u64) -> Arc<Driver> {
        self.all()[&id].driver.clone()
    }

    /// Returns a member that leads, if there is one. A deposed one may not know it yet.
    fn leader(&self) -> Option<(u64, Arc<Driver>)> {
        self.0.leader().map(|(id, running)| (id, running.driver.clone()))
    }

    async fn wait_for_leader(&self) -> (u64, Arc<Driver>) {
        wait_for("a leader", || self.leader()).await
    }

    async fn start(&self, id: u64, disk: &CrashDisk) {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let member = Member::new(Store::open(&disk, id).unwrap());
        let (environment, config) = (Environment::of_machine(), config());
        let state = State::following(Settings::from(&config), Namespace::new(CLUSTER), environment.now());
        let driver = Arc::new(Driver::new(state, Journal::Group(member.clone()), environment, &config));
        let ticking = driver.clone();
        let ticks = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(50));
            loop {
                ticks.tick().await;
                // It fails if its disk has.
                let _failed = ticking.tick();
            }
        });
        let running = Running { member, driver: driver.clone(), ticks };
        self.0.start(id, Arc::new(running), driver).await.unwrap();
    }

    async fn stop(&self, id: u64) {
        let running = self.remove(id);
        running.ticks.abort();
        // A disk that has failed cannot be closed.
        let _failed = running.driver.journal().stop().await;
    }

    /// Makes snapshots as the periodic work of a NameNode does.
    async fn snapshot(&self, id: u64) {
        let driver = self.driver(id);
        let made = spawn_blocking(move || storage::snapshot(driver.journal(), CLUSTER, RETRY_CACHE));
        made.await.unwrap().unwrap();
    }

    /// Sends an operation to whatever member leads, and again with the same ID, until the answer is
    /// definite. `None` if there is none in time.
    async fn submit(&self, op: Op, limit: Duration) -> Option<Result<Outcome, Error>> {
        let request = Request { id: RequestId::random(), caller: Caller::superuser("ann"), op };
        let until = Instant::now() + limit;
        let mut next = request.id.0 as usize;
        while Instant::now() < until {
            let members: Vec<_> = self.all().into_values().collect();
            let running = members.get(next % members.len().max(1))?;
            let driver = running.driver.clone();
            let asked = driver.submit(request.clone(), |_, outcome| Ok(outcome));
            if let Ok(answer) = timeout(Duration::from_millis(500), asked).await
                && answer.as_ref().map_or_else(|error| !error.is_transient(), |_| true)
            {
                return Some(answer);
            }
            next += 1;
            sleep(Duration::from_millis(3)).await;
        }
        None
    }

    async fn done(&self, op: Op) -> Outcome {
        self.submit(op, Duration::from_mins(1)).await.expect("an answer").unwrap()
    }

    /// Waits until all members have applied the same entries, and checks that they are equal.
    async fn wait_until_equal(&self) {
        wait_for("equal states", || {
            let all: Vec<_> = self.all().into_values().collect();
            let applied = |running: &Arc<Running>| running.member.status().applied;
            let is_equal = |pair: &[Arc<Running>]| {
                applied(&pair[0]) == applied(&pair[1])
                    && pair[0].driver.state.read().namespace() == pair[1].driver.state.read().namespace()
            };
            all.windows(2).all(is_equal).then_some(())
        })
        .await;
        for running in self.all().values() {
            running.driver.state.read().invariants().unwrap();
        }
    }
}

/// Starts one NameNode as the first of a group, and two more that join.
async fn group_of_three() -> (Net, BTreeMap<u64, CrashDisk>) {
    let net = Net::default();
    let disks: BTreeMap<u64, CrashDisk> = (1..=3).map(|id| (id, CrashDisk::new())).collect();
    let first: Arc<dyn Disk> = Arc::new(disks[&1].clone());
    let (mut one, _) = Storage::open_log(first.clone(), CLUSTER, Recovery::Refuse, RETRY_CACHE).unwrap();
    one.start(false, false, default_quota(&config())).unwrap();
    let journal = Journal::Single(one.log);
    storage::snapshot(&journal, CLUSTER, RETRY_CACHE).unwrap();
    journal.close().unwrap();
    drop(journal);
    Store::found(&first, 1).unwrap();
    net.start(1, &disks[&1]).await;
    net.wait_for_leader().await;
    let leader = net.all()[&1].member.clone();
    for id in [2, 3] {
        net.start(id, &disks[&id]).await;
        leader.add(id, &address(id)).await.unwrap();
    }
    (net, disks)
}

/// A fake DataNode, which reports to every member.
struct FakeNode {
    uuid: NodeUuid,
    name: String,
    inner: Mutex<Inner>,
    /// Number of registrations with each member.
    registrations: [AtomicUsize; 4],
}

struct Inner {
    replicas: BTreeMap<BlockId, (Nonce, u64)>,
    /// What is not reported yet, and the number of the last heartbeat, by member.
    links: BTreeMap<u64, Heartbeat>,
    /// The highest epoch that a member has sent, and its start, as in `VERSION`.
    epoch: u64,
    start: StartId,
}

impl Inner {
    /// Stores the epoch of a reply if it is new.
    fn acknowledge(&mut self, epoch: u64, start: StartId) {
        if epoch > self.epoch {
            (self.epoch, self.start) = (epoch, start);
        }
    }
}

impl FakeNode {
    fn new(index: u64) -> Self {
        let (uuid, name) = (NodeUuid(uuid::Uuid::from_u128(index.into())), format!("n{index}"));
        let inner = Inner { replicas: BTreeMap::new(), links: BTreeMap::new(), epoch: 0, start: StartId(0) };
        Self { uuid, name, inner: Mutex::new(inner), registrations: Default::default() }
    }

    /// Stores a replica, and reports it to all members.
    fn receive(&self, block: BlockId, nonce: Nonce, length: u64) {
        let mut inner = self.inner.lock();
        inner.replicas.insert(block, (nonce, length));
        for id in 1..=3 {
            inner.links.entry(id).or_default().received.push(Replica { block, nonce, length });
        }
    }

    fn usage() -> Usage {
        Usage { capacity: 1 << 40, free: 1 << 40, volumes: 1, ..Usage::default() }
    }

    /// Sends a heartbeat to a member, registers if it asks for that, and executes its commands.
    async fn beat(&self, id: u64, driver: &Driver) {
        let heartbeat = {
            let mut inner = self.inner.lock();
            let epoch = inner.epoch;
            let link = inner.links.entry(id).or_default();
            link.seq += 1;
            Heartbeat { epoch, usage: Self::usage(), ..link.clone() }
        };
        let incarnation = NodeIncarnation(1);
        let sent = heartbeat.clone();
        let answer = |state: &State, answer| {
            let namespace = state.namespace();
            ((namespace.epoch(), namespace.start_id().unwrap_or(StartId(0))), answer)
        };
        let answer = driver.heartbeat(self.uuid, incarnation, heartbeat, answer).await;
        let Ok(((epoch, start), answer)) = answer else { return };
        match answer {
            HeartbeatAnswer::RegisterAgain => self.register(id, driver).await,
            HeartbeatAnswer::Commands(commands) => {
                let mut inner = self.inner.lock();
                let link = inner.links.entry(id).or_default();
                link.received.drain(..sent.received.len());
                link.deleted.drain(..sent.deleted.len());
                inner.acknowledge(epoch, start);
                if epoch < inner.epoch {
                    return;
                }
                for command in commands {
                    let Command::Delete(blocks) = command else { continue };
                    for (block, nonce) in blocks {
                        if inner.replicas.get(&block).is_some_and(|(own, _)| *own == nonce) {
                            inner.replicas.remove(&block);
                        }
                        for id in 1..=3 {
                            inner.links.entry(id).or_default().deleted.push(block);
                        }
                    }
                }
            }
        }
    }

    async fn register(&self, id: u64, driver: &Driver) {
        let (seen_epoch, seen_start) = {
            let inner = self.inner.lock();
            (inner.epoch, inner.start)
        };
        let registration = Registration {
            uuid: self.uuid,
            incarnation: NodeIncarnation(1),
            node: self.name.clone(),
            host: self.name.clone(),
            rack: "r".into(),
            data_addr: format!("{}:1", self.name),
            local_socket: String::new(),
            version: "test".into(),
            cluster_id: CLUSTER.into(),
            declared_new: false,
            seen_epoch,
            seen_start,
            usage: Self::usage(),
        };
        match driver.register(registration).await {
            Ok(reply) => self.inner.lock().acknowledge(reply.epoch, reply.start),
            Err(error) => {
                assert_ne!(
                    error.kind,
                    Kind::OlderNameNode,
                    "no member sends an epoch that is never committed: {error}"
                );
                return;
            }
        }
        self.registrations[id as usize].fetch_add(1, Ordering::Relaxed);
        let all: Vec<Replica> = {
            let inner = self.inner.lock();
            let replicas = inner.replicas.iter();
            replicas
                .map(|(block, (nonce, length))| Replica { block: *block, nonce: *nonce, length: *length })
                .collect()
        };
        // If it fails, the next heartbeat is refused, and the node registers again.
        let _failed = driver.full_report(self.uuid, NodeIncarnation(1), 0, true, all).await;
    }

    fn registrations(&self, id: u64) -> usize {
        self.registrations[id as usize].load(Ordering::Relaxed)
    }
}

async fn beat_all(net: &Net, nodes: &[FakeNode]) {
    for (id, running) in net.all() {
        for node in nodes {
            node.beat(id, &running.driver).await;
        }
    }
}

fn create(at: &str) -> Op {
    Op::Create {
        path: path(at),
        holder: "w".into(),
        replication: Some(2),
        block_size: None,
        overwrite: true,
        make_parents: true,
        mode: None,
        on_abandon: OnAbandon::Close,
    }
}

fn add_block(file: FileId, nonce: Nonce) -> Op {
    Op::AddBlock {
        file,
        holder: "w".into(),
        commits: vec![],
        exclude_nodes: vec![],
        writer_host: String::new(),
        expected: 0,
        nonce,
    }
}

/// Creates a file with one block, which its nodes have received and not reported yet.
async fn write_block(net: &Net, nodes: &[FakeNode], at: &str, nonce: u64) -> (FileId, BlockId) {
    let Outcome::File(file) = net.done(create(at)).await else { panic!("a file") };
    let Outcome::Block { block, nodes: pipeline } = net.done(add_block(file, Nonce(nonce))).await else {
        panic!("a block")
    };
    assert_eq!(pipeline.len(), 2);
    for node in nodes.iter().filter(|node| pipeline.contains(&node.uuid)) {
        node.receive(block, Nonce(nonce), 100);
    }
    (file, block)
}

fn close(file: FileId, block: BlockId) -> Op {
    let commits = vec![BlockLength { block, length: 100 }];
    Op::Close { file, holder: "w".into(), commits, rename_to: None, overwrite: false }
}

async fn write_file(net: &Net, nodes: &[FakeNode], at: &str, nonce: u64) -> BlockId {
    let (file, block) = write_block(net, nodes, at, nonce).await;
    beat_all(net, nodes).await;
    net.done(close(file, block)).await;
    block
}

fn mkdir(at: &str) -> Op {
    Op::Mkdir { path: path(at), parents: false, mode: None }
}

fn delete(at: &str) -> Op {
    Op::Delete { path: path(at), recursive: true }
}

/// Returns the number of nodes to which a reader of the file is sent.
async fn locations(driver: &Driver, at: &str) -> Result<usize, Error> {
    driver
        .query(|state| {
            let (_, blocks) = state.locate(&path(at), 0, u64::MAX, "")?;
            Ok(blocks.iter().map(|block| block.nodes.len()).min().unwrap_or(0))
        })
        .await
}

async fn three_nodes(net: &Net) -> Vec<FakeNode> {
    let nodes: Vec<FakeNode> = (1..=3).map(FakeNode::new).collect();
    for _ in 0..2 {
        beat_all(net, &nodes).await;
    }
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_knows_the_blocks_before_datanodes_report_to_it_again() {
    let (net, _disks) = group_of_three().await;
    let nodes = three_nodes(&net).await;
    write_file(&net, &nodes, "/kept", 1).await;
    let gone = write_file(&net, &nodes, "/gone", 2).await;
    net.wait_until_equal().await;
    let (old, _) = net.wait_for_leader().await;
    // The leader deletes a file and dies before it has sent a command.
    net.done(delete("/gone")).await;
    net.wait_until_equal().await;
    let epoch = net.driver(old).state.read().namespace().epoch();
    net.stop(old).await;
    let (new, leader) = net.wait_for_leader().await;
    assert!(leader.state.read().namespace().epoch() > epoch);
    let before: Vec<usize> = nodes.iter().map(|node| node.registrations(new)).collect();
    assert_eq!(locations(&leader, "/kept").await.unwrap(), 2);
    assert_eq!(before, nodes.iter().map(|node| node.registrations(new)).collect::<Vec<_>>());
    // Each DataNode acknowledges the new epoch in a heartbeat, and then deletes what the old leader
    // could not order.
    let end = Instant::now() + Duration::from_mins(1);
    while nodes.iter().any(|node| node.inner.lock().replicas.contains_key(&gone)) {
        assert!(Instant::now() < end, "the replicas of a deleted file are still there");
        beat_all(&net, &nodes).await;
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(before, nodes.iter().map(|node| node.registrations(new)).collect::<Vec<_>>());
    assert_eq!(locations(&leader, "/kept").await.unwrap(), 2);
    write_file(&net, &nodes, "/after", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_gets_the_namespace_of_the_group_and_keeps_block_locations() {
    let (net, _disks) = group_of_three().await;
    let nodes = three_nodes(&net).await;
    write_file(&net, &nodes, "/kept", 1).await;
    net.wait_until_equal().await;
    let (old, deposed) = net.wait_for_leader().await;
    net.isolate(old);
    let (_, new) = wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
    // It does not know yet that another leads, and must not answer with an old state.
    assert!(deposed.state.read().is_leader());
    let stale = deposed.query(|state| state.stat(&path("/kept"))).await.unwrap_err();
    assert!(stale.message.contains("no quorum"), "{stale}");
    let lost = {
        let deposed = deposed.clone();
        let request = |op| Request { id: RequestId::random(), caller: Caller::superuser("ann"), op };
        tokio::spawn(async move {
            let (first, second) = tokio::join!(
                deposed.submit(request(delete("/kept")), |_, outcome| Ok(outcome)),
                deposed.submit(request(mkdir("/lost")), |_, outcome| Ok(outcome)),
            );
            (first, second)
        })
    };
    let has_applied = || deposed.state.read().stat(&path("/lost")).is_ok().then_some(());
    wait_for("changes that are not committed", has_applied).await;
    assert!(deposed.state.read().stat(&path("/kept")).is_err());
    let request = Request { id: RequestId::random(), caller: Caller::superuser("ann"), op: mkdir("/new") };
    new.submit(request, |_, outcome| Ok(outcome)).await.unwrap();
    net.heal();
    let (first, second) = lost.await.unwrap();
    assert!(first.unwrap_err().is_transient() && second.unwrap_err().is_transient());
    net.wait_until_equal().await;
    let has = |at: &str| deposed.state.read().stat(&path(at)).is_ok();
    assert!(has("/kept") && has("/new") && !has("/lost"));
    // It had ordered the deletion of these replicas, so their DataNodes tell it of them again.
    beat_all(&net, &nodes).await;
    let located = deposed.state.read().locate(&path("/kept"), 0, 100, "").unwrap().1;
    assert_eq!(located[0].nodes.len(), 2);
    assert_eq!(locations(&new, "/kept").await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_sends_datanodes_no_epoch_that_is_not_committed() {
    let (net, _disks) = group_of_three().await;
    let nodes = three_nodes(&net).await;
    write_file(&net, &nodes, "/kept", 1).await;
    let (old, deposed) = net.wait_for_leader().await;
    net.isolate(old);
    // It begins to lead, which nobody learns, and then loses the leadership. The first call has
    // applied the record of a new epoch, and the second one returns before the namespace is
    // restored.
    deposed.lead(99);
    let lost = deposed.state.read().namespace().epoch();
    deposed.follow();
    for node in &nodes {
        node.beat(old, &deposed).await;
        node.register(old, &deposed).await;
        assert!(node.inner.lock().epoch < lost, "an epoch that is not committed was sent");
    }
    wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
    net.heal();
    net.wait_until_equal().await;
    for node in &nodes {
        for (id, running) in net.all() {
            let before = node.registrations(id);
            node.register(id, &running.driver).await;
            assert_eq!(node.registrations(id), before + 1, "member {id}");
        }
    }
    assert_eq!(locations(&net.wait_for_leader().await.1, "/kept").await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_a_leader_is_the_namespace_of_one_namenode() {
    let (net, _disks) = group_of_three().await;
    net.done(mkdir("/before")).await;
    let (_, leader) = net.wait_for_leader().await;
    let made = leader.clone();
    let made = spawn_blocking(move || storage::backup(made.journal(), CLUSTER, RETRY_CACHE));
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for part in made.await.unwrap().unwrap() {
        match part.unwrap() {
            Part::File(path) => _ = files.insert(path, Vec::new()),
            Part::Data(bytes) => files.last_entry().unwrap().get_mut().extend(bytes),
            Part::End(count) => assert_eq!(count, 1),
        }
    }
    let disk = CrashDisk::new();
    for (path, bytes) in files {
        disk.set_file(path.strip_prefix("edits/").unwrap(), bytes);
    }
    let disk: Arc<dyn Disk> = Arc::new(disk);
    complete_journal(&disk).unwrap();
    let (one, has_lost) = Storage::open_log(disk, CLUSTER, Recovery::Refuse, RETRY_CACHE).unwrap();
    assert!(!has_lost && one.namespace == *leader.state.read().namespace());
}

/// Creates folders until `stop` is set. Each request must succeed. Returns how many did.
async fn make_folders(net: Net, client: u64, stop: Arc<AtomicBool>) -> u64 {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return number;
        }
        net.done(mkdir(&format!("/c{client}-{number}"))).await;
    }
    unreachable!("the loop has no end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_and_members_change_while_clients_write_without_a_failed_request() {
    let (net, mut disks) = group_of_three().await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..3).map(|client| tokio::spawn(make_folders(net.clone(), client, stop.clone()))).collect();
    // Asks again as `mrctl masters` does if another one leads now, which may happen on a busy machine.
    let change = async |change: Change| {
        let request = ChangeGroupRequest { change: Some(change) };
        let mut tries = 0..20;
        loop {
            let (_, leader) = net.wait_for_leader().await;
            let member = leader.journal().member().unwrap().clone();
            let membership = Membership::new(Role::NameNode, member, []);
            match membership.change(request.clone(), || leader.pause()).await {
                Err(error) if error.code() == tonic::Code::Unavailable && tries.next().is_some() => {}
                result => break result,
            }
        }
    };
    for _ in 0..5 {
        let (old, _) = net.wait_for_leader().await;
        let to = address(old % 3 + 1);
        assert_eq!(change(Change::Transfer(to.clone())).await.unwrap().leader, to);
    }
    let unknown = change(Change::Transfer("m9:9400".into())).await.unwrap_err();
    assert!(unknown.message().contains("m9:9400 is no member of the group (m1:9400, m2"), "{unknown}");
    // A fourth member takes the place of the leader.
    disks.insert(4, CrashDisk::new());
    net.start(4, &disks[&4]).await;
    let asked = change(Change::Add(address(4))).await.unwrap();
    assert!(!asked.done && asked.waits_for.contains("start it with an empty folder"), "{asked:?}");
    let (old, leader) = net.wait_for_leader().await;
    leader.journal().member().unwrap().add(4, &address(4)).await.unwrap();
    assert!(change(Change::Add(address(4))).await.unwrap().done);
    let asked = change(Change::Remove(address(old))).await.unwrap();
    assert!(!asked.done && asked.waits_for.contains("to lead"), "{asked:?}");
    wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
    assert!(change(Change::Remove(address(old))).await.unwrap().done);
    assert!(change(Change::Remove(address(old))).await.unwrap().done, "a repeated request");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
    net.stop(old).await;
    // One of three is down: no other one may be removed.
    let (id, leader) = net.wait_for_leader().await;
    let mut others = net.all().into_keys().filter(|other| *other != id);
    let (down, up) = (others.next().unwrap(), others.next().unwrap());
    net.stop(down).await;
    wait_for("silence", || {
        let peers = leader.journal().member().unwrap().status().peers;
        let silent = peers.iter().find(|peer| peer.id == down)?.last_contact?;
        (silent > Duration::from_secs(2)).then_some(())
    })
    .await;
    let refused = change(Change::Remove(address(up))).await.unwrap_err();
    assert!(refused.message().contains("1 of 2 NameNodes would be up"), "{refused}");
    assert!(change(Change::Remove(address(down))).await.unwrap().done);
    net.done(mkdir("/end")).await;
    net.wait_until_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_refuses_clients_and_gives_datanodes_no_commands() {
    let (net, _disks) = group_of_three().await;
    let nodes = three_nodes(&net).await;
    let block = write_file(&net, &nodes, "/f", 1).await;
    net.done(delete("/f")).await;
    net.wait_until_equal().await;
    let (leader, _) = net.wait_for_leader().await;
    let followers: Vec<_> = net.all().into_iter().filter(|(id, _)| *id != leader).collect();
    for (id, running) in &followers {
        let driver = &running.driver;
        let request = Request { id: RequestId::random(), caller: Caller::superuser("ann"), op: mkdir("/d") };
        let refusals = [
            driver.submit(request, |_, outcome| Ok(outcome)).await.map(drop),
            driver.query(|state| state.stat(&path("/"))).await.map(drop),
            driver.set_safemode(true, |_| ()).await,
            driver.change_volatile(|state, now| state.renew_lease(now, "w")).await.map(drop),
        ];
        for refused in refusals {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind, Kind::NotLeader, "{refused}");
            assert!(refused.message.contains(&address(leader)), "{refused}");
        }
        assert!(!driver.is_writable());
        for node in &nodes {
            for _ in 0..2 {
                node.beat(*id, driver).await;
            }
        }
    }
    assert!(nodes.iter().any(|node| node.inner.lock().replicas.contains_key(&block)));
    beat_all(&net, &nodes).await;
    assert!(!nodes.iter().any(|node| node.inner.lock().replicas.contains_key(&block)));
}

/// What a client has asked about one folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Mkdir,
    Delete,
    Stat,
}

/// A call with its answer: whether the folder existed when it took effect. `None` if there was no
/// answer.
#[derive(Debug, Clone, Copy)]
struct Recorded {
    begin: Instant,
    end: Instant,
    call: Call,
    existed: Option<bool>,
}

const FOLDERS: usize = 4;

/// A client: creates, deletes and looks at folders, and repeats requests until they are answered.
async fn run_client(net: Net, client: u64, until: Instant) -> Vec<(usize, Recorded)> {
    let mut random = Random(client);
    let mut history = Vec::new();
    while Instant::now() < until {
        let (folder, begin) = (random.below(FOLDERS as u64) as usize, Instant::now());
        let at = format!("/d{folder}");
        let limit = Duration::from_secs(3);
        let (call, existed) = match random.below(4) {
            0 => {
                let existed = match net.submit(mkdir(&at), limit).await {
                    Some(Ok(_)) => Some(false),
                    Some(Err(error)) if error.kind == Kind::Exists => Some(true),
                    Some(Err(error)) => panic!("mkdir: {error}"),
                    None => None,
                };
                (Call::Mkdir, existed)
            }
            1 => match net.submit(delete(&at), limit).await {
                Some(Ok(Outcome::Existed(existed))) => (Call::Delete, Some(existed)),
                Some(other) => panic!("delete: {other:?}"),
                None => (Call::Delete, None),
            },
            _ => {
                let members: Vec<_> = net.all().into_values().collect();
                let Some(running) = members.get(random.below(3) as usize % members.len().max(1)) else {
                    continue;
                };
                let driver = running.driver.clone();
                let found = timeout(limit, driver.query(|state| Ok(state.stat(&path(&at)).is_ok()))).await;
                let Ok(Ok(existed)) = found else {
                    sleep(Duration::from_millis(3)).await;
                    continue;
                };
                (Call::Stat, Some(existed))
            }
        };
        history.push((folder, Recorded { begin, end: Instant::now(), call, existed }));
        sleep(Duration::from_millis(2)).await;
    }
    history
}

/// Checks that there is an order of the calls about one folder that explains all answers, in which
/// each call takes effect between its begin and its end; one without an answer later, or never.
fn check_linearizable(mut calls: Vec<Recorded>) {
    calls.sort_by_key(|call| call.begin);
    let end = |call: &Recorded| call.existed.map(|_| call.end);
    // The calls that have taken effect, and whether the folder exists then.
    let mut todo = vec![(vec![false; calls.len()], false)];
    let mut seen: HashSet<(Vec<bool>, bool)> = HashSet::new();
    while let Some((done, exists)) = todo.pop() {
        let open = || calls.iter().enumerate().filter(|(at, _)| !done[*at]);
        let Some(first_end) = open().filter_map(|(_, call)| end(call)).min() else { return };
        for (at, call) in open().filter(|(_, call)| call.begin <= first_end) {
            if call.existed.is_some_and(|existed| existed != exists) {
                continue;
            }
            let after = match call.call {
                Call::Mkdir => true,
                Call::Delete => false,
                Call::Stat => exists,
            };
            let mut next = done.clone();
            next[at] = true;
            if seen.insert((next.clone(), after)) {
                todo.push((next, after));
            }
        }
    }
    panic!("no order of the calls explains their answers: {calls:#?}");
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        types::split_mix::next(&mut self.0) % limit
    }
}

/// A writer of files, whose DataNodes report to all members. Returns the files that it has closed.
async fn run_writer(net: Net, nodes: Arc<Vec<FakeNode>>, until: Instant) -> BTreeSet<String> {
    let mut closed = BTreeSet::new();
    let limit = Duration::from_secs(3);
    for number in 1.. {
        if Instant::now() >= until {
            break;
        }
        let at = format!("/files/{number}");
        let Some(Ok(Outcome::File(file))) = net.submit(create(&at), limit).await else { continue };
        let added = net.submit(add_block(file, Nonce(number)), limit).await;
        let Some(Ok(Outcome::Block { block, nodes: pipeline })) = added else { continue };
        for node in nodes.iter().filter(|node| pipeline.contains(&node.uuid)) {
            node.receive(block, Nonce(number), 100);
        }
        if let Some(Ok(_)) = net.submit(close(file, block), limit).await {
            closed.insert(at);
        }
    }
    closed
}

async fn run_nodes(net: Net, nodes: Arc<Vec<FakeNode>>, until: Instant) {
    while Instant::now() < until {
        for (id, running) in net.all() {
            for node in nodes.iter() {
                // A leader without a quorum answers nothing.
                let _silent = timeout(Duration::from_millis(200), node.beat(id, &running.driver)).await;
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Counts {
    leaders: u64,
    answered: usize,
    unanswered: usize,
    restarts: usize,
    files: usize,
}

async fn run_with_faults(seed: u64) -> Counts {
    let (net, mut disks) = group_of_three().await;
    let nodes = Arc::new(three_nodes(&net).await);
    let mut random = Random(seed);
    let epoch = net.wait_for_leader().await.1.state.read().namespace().epoch();
    let until = Instant::now() + Duration::from_secs(6);
    let mut clients = JoinSet::new();
    for client in 1..=4 {
        clients.spawn(run_client(net.clone(), seed << 8 | client, until));
    }
    let writer = tokio::spawn(run_writer(net.clone(), nodes.clone(), until));
    let beats = tokio::spawn(run_nodes(net.clone(), nodes.clone(), until));
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
    let mut folders = vec![Vec::new(); FOLDERS];
    for (folder, call) in clients.join_all().await.into_iter().flatten() {
        counts.answered += usize::from(call.existed.is_some());
        counts.unanswered += usize::from(call.existed.is_none());
        folders[folder].push(call);
    }
    let closed = writer.await.unwrap();
    beats.await.unwrap();
    counts.files = closed.len();
    // The group works again.
    net.done(mkdir("/end")).await;
    net.wait_until_equal().await;
    folders.into_iter().for_each(check_linearizable);
    let (_, leader) = net.wait_for_leader().await;
    for _ in 0..3 {
        beat_all(&net, &nodes).await;
    }
    for (id, running) in net.all() {
        let state = running.driver.state.read();
        state.invariants().unwrap();
        for file in &closed {
            let located = state.locate(&path(file), 0, 100, "").unwrap().1;
            assert!(located.iter().all(|block| block.nodes.len() == 2), "member {id}: {file}: {located:?}");
        }
    }
    counts.leaders = leader.state.read().namespace().epoch() - epoch;
    for id in 1..=3 {
        net.stop(id).await;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable_and_members_are_equal_under_faults() {
    let first: u64 = std::env::var("FERMATA_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let runs: Vec<_> = (first..first + 3).map(|seed| tokio::spawn(run_with_faults(seed))).collect();
    let mut all = Vec::new();
    for (seed, run) in (first..).zip(runs) {
        let counts = run.await.unwrap_or_else(|panic| panic!("FERMATA_FIRST_SEED={seed}: {panic}"));
        println!("seed {seed}: {counts:?}");
        all.push(counts);
    }
    // The runs together test something. In a single one, the group may have no quorum for long.
    let sum = |of: fn(&Counts) -> usize| all.iter().map(of).sum::<usize>();
    assert!(sum(|counts| counts.leaders as usize) > 3, "leaders change: {all:?}");
    assert!(sum(|counts| counts.answered) > 100 && sum(|counts| counts.files) > 5, "clients work: {all:?}");
    assert!(sum(|counts| counts.restarts) > 0, "members are killed: {all:?}");
}
