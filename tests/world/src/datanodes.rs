//! DataNodes without their data: registrations, reports, commands, epochs and the states of replicas,
//! by the rules of ADR 0042. Replicas are durable.

use crate::{
    namenodes::{CLUSTER, NameNodes, Running},
    network::Host,
};
use dfs::namenode::{
    State,
    op::{Command, Heartbeat, HeartbeatAnswer, Registration, Replica, Usage},
};
use dfs_client::{
    error::Kind,
    ids::{BlockId, NodeIncarnation, NodeUuid, Nonce, StartId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::sleep;

/// Interval of the heartbeats to each NameNode.
const HEARTBEAT: Duration = Duration::from_millis(200);
const ANSWER_LIMIT: Duration = Duration::from_millis(400);
/// How late some commands arrive.
const LATE_MICROS: u64 = 5_000_000;
const NAMENODES: u64 = 3;

/// All DataNodes. Clones share them.
#[derive(Clone)]
pub(crate) struct DataNodes(Arc<Shared>);

struct Shared {
    namenodes: NameNodes,
    nodes: Vec<Mutex<Node>>,
    /// Blocks of files that were closed, and not deleted by a client.
    needed: Mutex<BTreeMap<BlockId, (Nonce, u64)>>,
    violation: Mutex<Option<String>>,
}

#[derive(Default)]
struct Node {
    incarnation: u64,
    /// What is on disk.
    replicas: BTreeMap<BlockId, (Nonce, u64)>,
    /// The highest epoch that was acknowledged, and its start.
    epoch: (u64, u64),
    /// Deletions of earlier periods are dropped.
    period: u64,
    links: BTreeMap<u64, Link>,
    /// Number of the newest report.
    newest: u64,
    is_down: bool,
}

/// The link to a NameNode.
#[derive(Default)]
struct Link {
    is_registered: bool,
    seq: u64,
    /// With their numbers; of each block only the newest.
    reports: Vec<(u64, Report)>,
    /// The epoch that was acknowledged to this NameNode.
    acknowledged: u64,
}

#[derive(Debug, Clone, Copy)]
enum Report {
    Received(Replica),
    Deleted(BlockId),
}

impl Report {
    fn block(&self) -> BlockId {
        match self {
            Self::Received(replica) => replica.block,
            Self::Deleted(block) => *block,
        }
    }
}

fn uuid(node: usize) -> NodeUuid {
    NodeUuid(uuid::Uuid::from_u128(1 + node as u128))
}

impl Node {
    fn post(&mut self, report: Report) {
        self.newest += 1;
        for id in 1..=NAMENODES {
            let reports = &mut self.links.entry(id).or_default().reports;
            reports.retain(|(_, older)| older.block() != report.block());
            reports.push((self.newest, report));
        }
    }

    /// Stores the epoch of a NameNode if it is the highest.
    fn acknowledge(&mut self, epoch: u64, start: u64) {
        if epoch > self.epoch.0 {
            self.epoch = (epoch, start);
            self.period += 1;
        }
    }
}

impl DataNodes {
    pub(crate) fn start(namenodes: NameNodes, count: usize) -> Self {
        let nodes = (0..count).map(|_| Mutex::default()).collect();
        let all = Self(Arc::new(Shared {
            namenodes,
            nodes,
            needed: Mutex::default(),
            violation: Mutex::default(),
        }));
        for node in 0..count {
            for id in 1..=NAMENODES {
                tokio::spawn(all.clone().run_link(node, id));
            }
        }
        all
    }

    fn node(&self, at: usize) -> MutexGuard<'_, Node> {
        self.0.nodes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needed(&self) -> MutexGuard<'_, BTreeMap<BlockId, (Nonce, u64)>> {
        self.0.needed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the places of these nodes.
    pub(crate) fn find(&self, nodes: &[NodeUuid]) -> Vec<usize> {
        (0..self.0.nodes.len()).filter(|at| nodes.contains(&uuid(*at))).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.nodes.len()
    }

    /// A client has written a replica. Returns whether the node has it.
    pub(crate) fn receive(&self, at: usize, block: BlockId, nonce: Nonce, length: u64) -> bool {
        let mut node = self.node(at);
        if node.is_down {
            return false;
        }
        node.replicas.insert(block, (nonce, length));
        node.post(Report::Received(Replica { block, nonce, length }));
        self.0.namenodes.simulation.note("replica", [at as u64, block.0]);
        true
    }

    /// The block is of a closed file: it must not be lost.
    pub(crate) fn need(&self, block: BlockId, nonce: Nonce, length: u64) {
        self.needed().insert(block, (nonce, length));
    }

    /// A client deletes the file of this block.
    pub(crate) fn forget(&self, block: BlockId) {
        self.needed().remove(&block);
    }

    /// Ends the process of a node.
    pub(crate) fn crash(&self, at: usize) {
        self.0.namenodes.simulation.note("node crash", [at as u64]);
        self.node(at).is_down = true;
    }

    /// Starts the process of a node again.
    pub(crate) fn restart(&self, at: usize) {
        let mut node = self.node(at);
        if std::mem::take(&mut node.is_down) {
            node.incarnation += 1;
            node.period += 1;
            node.links.clear();
        }
    }

    /// Returns what has happened that must not.
    pub(crate) fn violation(&self) -> Option<String> {
        self.0.violation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn report_violation(&self, why: String) {
        self.0.violation.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// Returns the nodes with a replica of the block, of its nonce and length.
    pub(crate) fn replicas(&self, block: BlockId, nonce: Nonce, length: u64) -> BTreeSet<NodeUuid> {
        let has = |at: &usize| self.node(*at).replicas.get(&block) == Some(&(nonce, length));
        (0..self.0.nodes.len()).filter(has).map(uuid).collect()
    }

    /// Returns the space of a node. It changes all the time, so two leaders delete different replicas.
    fn usage(&self) -> Usage {
        let free = (1 << 40) - self.0.namenodes.simulation.below(1 << 30);
        Usage { capacity: 1 << 40, free, volumes: 1, ..Usage::default() }
    }

    async fn run_link(self, at: usize, to: u64) {
        let simulation = self.0.namenodes.simulation.clone();
        loop {
            sleep(HEARTBEAT + simulation.micros(0, 20_000)).await;
            if !self.node(at).is_down {
                self.beat(at, to).await;
            }
        }
    }

    /// Sends a heartbeat to a NameNode, or registers with it, and executes its commands.
    async fn beat(&self, at: usize, to: u64) {
        let is_registered = self.node(at).links.entry(to).or_default().is_registered;
        if !is_registered {
            return self.register(at, to).await;
        }
        let (heartbeat, incarnation, sent) = {
            let mut node = self.node(at);
            let (epoch, incarnation) = (node.epoch.0, NodeIncarnation(node.incarnation));
            let link = node.links.entry(to).or_default();
            link.acknowledged = epoch;
            link.seq += 1;
            let (received, deleted) = (link.reports.iter(), link.reports.iter());
            let heartbeat = Heartbeat {
                seq: link.seq,
                epoch: link.acknowledged,
                usage: self.usage(),
                received: received
                    .filter_map(|(_, report)| match report {
                        Report::Received(replica) => Some(*replica),
                        Report::Deleted(_) => None,
                    })
                    .collect(),
                deleted: deleted
                    .filter_map(|(_, report)| match report {
                        Report::Deleted(block) => Some(*block),
                        Report::Received(_) => None,
                    })
                    .collect(),
                ..Heartbeat::default()
            };
            (heartbeat, incarnation, link.reports.last().map_or(0, |(number, _)| *number))
        };
        let handle = move |running: Arc<Running>| async move {
            let answer = |state: &State, answer| {
                let namespace = state.namespace();
                let start = namespace.start_id().unwrap_or(StartId(0)).0;
                (namespace.epoch(), start, answer)
            };
            running.driver.heartbeat(uuid(at), incarnation, heartbeat, answer).await
        };
        let host = Host::DataNode(at as u64);
        let answer = self.0.namenodes.ask(host, to, "node heartbeat", ANSWER_LIMIT, handle).await;
        let Some(Ok((epoch, start, answer))) = answer else { return };
        // Some commands are very late: another NameNode may lead when they arrive.
        let has_commands = matches!(&answer, HeartbeatAnswer::Commands(commands) if !commands.is_empty());
        let may_be_late = has_commands && self.0.namenodes.network.has_faults();
        if may_be_late && self.0.namenodes.simulation.chance(500) {
            sleep(self.0.namenodes.simulation.micros(0, LATE_MICROS)).await;
        }
        let mut node = self.node(at);
        if node.is_down || NodeIncarnation(node.incarnation) != incarnation {
            return;
        }
        let link = node.links.entry(to).or_default();
        let commands = match answer {
            HeartbeatAnswer::RegisterAgain => {
                link.is_registered = false;
                return;
            }
            HeartbeatAnswer::Commands(commands) => commands,
        };
        link.reports.retain(|(number, _)| *number > sent);
        node.acknowledge(epoch, start);
        if node.epoch.0 != epoch {
            if !commands.is_empty() {
                self.0.namenodes.simulation.count("commands of a deposed leader refused");
            }
            return;
        }
        let period = node.period;
        drop(node);
        for command in commands {
            match command {
                Command::Delete(blocks) => drop(tokio::spawn(self.clone().delete(at, period, blocks))),
                Command::Copy { block, nonce, length, targets } => {
                    drop(tokio::spawn(self.clone().copy(at, (block, nonce, length), targets)));
                }
                Command::Check(..) => {}
            }
        }
    }

    async fn register(&self, at: usize, to: u64) {
        let (registration, incarnation) = {
            let mut node = self.node(at);
            let incarnation = NodeIncarnation(node.incarnation);
            // A full report has all replicas.
            node.links.entry(to).or_default().reports.clear();
            let registration = Registration {
                uuid: uuid(at),
                incarnation,
                node: format!("n{at}"),
                host: format!("n{at}"),
                rack: "r".into(),
                data_addr: format!("n{at}:1"),
                local_socket: String::new(),
                version: "world".into(),
                cluster_id: CLUSTER.into(),
                declared_new: false,
                seen_epoch: node.epoch.0,
                seen_start: StartId(node.epoch.1),
                usage: self.usage(),
            };
            (registration, incarnation)
        };
        let host = Host::DataNode(at as u64);
        let handle = move |running: Arc<Running>| async move { running.driver.register(registration).await };
        let reply = match self.0.namenodes.ask(host, to, "register", ANSWER_LIMIT, handle).await {
            Some(Ok(reply)) => reply,
            Some(Err(error)) if error.kind == Kind::OlderNameNode => {
                return self.report_violation(format!("NameNode {to} refuses DataNode {at}: {error}"));
            }
            Some(Err(_)) | None => return,
        };
        let replicas: Vec<Replica> = {
            let mut node = self.node(at);
            if node.is_down || NodeIncarnation(node.incarnation) != incarnation || reply.epoch < node.epoch.0
            {
                return;
            }
            node.acknowledge(reply.epoch, reply.start.0);
            if reply.leads {
                node.period += 1;
            }
            let link = node.links.entry(to).or_default();
            link.reports.clear();
            let replica = |(block, (nonce, length)): (&BlockId, &(Nonce, u64))| Replica {
                block: *block,
                nonce: *nonce,
                length: *length,
            };
            node.replicas.iter().map(replica).collect()
        };
        let handle = move |running: Arc<Running>| async move {
            running.driver.full_report(uuid(at), incarnation, 0, true, replicas).await
        };
        let reported = self.0.namenodes.ask(host, to, "full report", ANSWER_LIMIT, handle).await;
        let mut node = self.node(at);
        if matches!(reported, Some(Ok(()))) && NodeIncarnation(node.incarnation) == incarnation {
            node.links.entry(to).or_default().is_registered = true;
        }
    }

    async fn delete(self, at: usize, period: u64, blocks: Vec<(BlockId, Nonce)>) {
        let simulation = &self.0.namenodes.simulation;
        for (block, nonce) in blocks {
            // Disks of DataNodes are busy.
            let is_busy = self.0.namenodes.network.has_faults() && simulation.chance(500);
            let longest = if is_busy { 4_000_000 } else { 100_000 };
            sleep(simulation.micros(0, longest)).await;
            let deleted = {
                let mut node = self.node(at);
                if node.is_down || node.period != period {
                    simulation.count("deletions dropped");
                    return;
                }
                let deleted = node.replicas.get(&block).copied().filter(|(own, _)| *own == nonce);
                if deleted.is_some() {
                    node.replicas.remove(&block);
                }
                node.post(Report::Deleted(block));
                deleted
            };
            let needed = self.needed().get(&block).copied();
            if let Some((nonce, length)) = needed.filter(|needed| deleted == Some(*needed)) {
                simulation.count("surplus replica deleted");
                if self.replicas(block, nonce, length).is_empty() {
                    self.report_violation(format!("DataNode {at} has deleted the last replica of {block}"));
                }
            }
            simulation.note("deleted", [at as u64, block.0]);
        }
    }

    async fn copy(self, at: usize, (block, nonce, length): (BlockId, Nonce, u64), targets: Vec<NodeUuid>) {
        let Shared { namenodes, .. } = &*self.0;
        sleep(namenodes.simulation.micros(1_000, 300_000)).await;
        for target in self.find(&targets) {
            let has = |node: &Node| !node.is_down && node.replicas.get(&block) == Some(&(nonce, length));
            if !has(&self.node(at)) {
                return;
            }
            let (from, to) = (Host::DataNode(at as u64), Host::DataNode(target as u64));
            let carried = tokio::time::timeout(ANSWER_LIMIT, namenodes.network.carry(from, to, "copy")).await;
            if carried.is_ok() && self.receive(target, block, nonce, length) {
                namenodes.simulation.count("block copied");
            }
        }
    }
}
