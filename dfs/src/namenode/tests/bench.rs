//! The bench: a state, a clock, and DataNodes that are maps. Every request is sent twice and the invariants
//! are checked after every step.

use crate::{
    error::{Error, Kind},
    ids::{BlockId, FileId, Incarnation, NodeUuid, RequestId},
    namenode::{
        Namespace, Record, Settings, State,
        namespace::Block,
        op::{
            BlockLength, Caller, Command, Heartbeat, HeartbeatAnswer, Now, OnAbandon, Op, Outcome, Quota,
            Registration, Request,
        },
        view::FileStatus,
    },
    path::DfsPath,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const BLOCK: u64 = 100;

pub(super) fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

pub(super) fn settings() -> Settings {
    Settings {
        replication: 2,
        replication_max: 5,
        block_size: BLOCK,
        block_size_min: 10,
        suspect_after_ms: 3_000,
        dead_after_ms: 10_000,
        lease_ms: 20_000,
        safemode_threshold: 0.999,
        safemode_nodes_min: 0,
        copies_max: 8,
        copies_per_node_max: 2,
        copy_timeout_ms: 5_000,
        orphan_grace_ms: 2_000,
        retry_cache: 100_000,
        dir_entries_max: 1_000,
        default_quota: Quota { files: Some(50), space: Some(100_000) },
    }
}

/// A DataNode: its disk, and what it has not told yet.
#[derive(Debug, Clone)]
pub(super) struct FakeNode {
    pub(super) name: String,
    pub(super) rack: String,
    pub(super) uuid: NodeUuid,
    pub(super) incarnation: u64,
    pub(super) seq: u64,
    pub(super) up: bool,
    /// Answers to it get lost.
    pub(super) deaf: bool,
    /// Other nodes do not reach it.
    pub(super) apart: bool,
    pub(super) capacity: u64,
    /// Length, and whether it is damaged.
    pub(super) disk: BTreeMap<BlockId, (u64, bool)>,
    pub(super) aside: BTreeSet<BlockId>,
    pub(super) news: Heartbeat,
    pub(super) told: Vec<Command>,
}

impl FakeNode {
    pub(super) fn new(index: usize, name: &str, rack: &str) -> Self {
        Self {
            name: name.into(),
            rack: rack.into(),
            uuid: NodeUuid(uuid::Uuid::from_u128(index as u128 + 1)),
            incarnation: 1,
            seq: 0,
            up: true,
            deaf: false,
            apart: false,
            capacity: 1_000_000,
            disk: BTreeMap::new(),
            aside: BTreeSet::new(),
            news: Heartbeat::default(),
            told: Vec::new(),
        }
    }

    pub(super) fn registration(&self) -> Registration {
        Registration {
            uuid: self.uuid,
            incarnation: Incarnation(self.incarnation),
            node: self.name.clone(),
            host: self.name.clone(),
            rack: self.rack.clone(),
            data_addr: format!("{}:1", self.name),
            local_socket: String::new(),
            version: "test".into(),
            cluster_id: String::new(),
        }
    }

    pub(super) fn receive(&mut self, block: BlockId, length: u64) {
        self.disk.insert(block, (length, false));
        self.news.received.push(BlockLength { block, length });
    }

    pub(super) fn set_aside(&mut self, block: BlockId) {
        self.disk.remove(&block);
        self.aside.insert(block);
        self.news.bad.push((block, "checksum".into()));
    }

    fn has_news(&self) -> bool {
        let Heartbeat { received, deleted, bad, lost, .. } = &self.news;
        !(received.is_empty() && deleted.is_empty() && bad.is_empty() && lost.is_empty())
    }
}

pub(super) struct Bench {
    pub(super) state: State,
    pub(super) now: Now,
    pub(super) records: Vec<Record>,
    pub(super) nodes: Vec<FakeNode>,
    requests: u128,
}

impl Bench {
    /// With nodes `n1..`, two racks in turn, all registered and heard of.
    pub(super) fn with_nodes(count: usize) -> Self {
        Self::with_settings(count, settings())
    }

    pub(super) fn with_settings(count: usize, settings: Settings) -> Self {
        let now = Now { mono_ms: 5_000, wall_ms: 1_700_000_000_000 };
        let nodes =
            (0..count).map(|i| FakeNode::new(i, &format!("n{}", i + 1), ["r1", "r2"][i % 2])).collect();
        let state = State::new(settings, Namespace::new("c1"), now);
        let mut bench = Self { state, now, records: Vec::new(), nodes, requests: 0 };
        bench.beat_all();
        bench
    }

    /// As one who may do everything.
    pub(super) fn ask(&mut self, op: Op) -> Result<Outcome, Error> {
        self.ask_as(Caller::superuser("ann"), op)
    }

    /// Asks twice: the second time must get the same answer and no record. A refusal must change nothing.
    pub(super) fn ask_as(&mut self, caller: Caller, op: Op) -> Result<Outcome, Error> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let request = Request { id, caller, op };
        let before = self.state.namespace().records();
        let handled = self.state.handle(self.now, request.clone());
        self.check();
        match handled {
            Ok(handled) => {
                self.records.push(handled.entry.expect("a first answer has a record").record);
                let again = self.state.handle(self.now, request).unwrap();
                assert_eq!((&again.outcome, again.entry), (&handled.outcome, None));
                Ok(handled.outcome)
            }
            Err(error) => {
                assert!(!error.message.contains('\n') && !error.message.is_empty());
                assert_eq!(self.state.namespace().records(), before);
                Err(error)
            }
        }
    }

    pub(super) fn refused(&mut self, op: Op) -> Kind {
        self.ask(op).unwrap_err().kind
    }

    pub(super) fn check(&self) {
        self.state.invariants().unwrap();
    }

    pub(super) fn create_as(
        &mut self,
        at: &str,
        holder: &str,
        replication: u32,
        on_abandon: OnAbandon,
    ) -> Result<FileId, Error> {
        self.create_with(at, holder, Some(replication), on_abandon)
    }

    fn create_with(
        &mut self,
        at: &str,
        holder: &str,
        replication: Option<u32>,
        on_abandon: OnAbandon,
    ) -> Result<FileId, Error> {
        let outcome = self.ask(Op::Create {
            path: path(at),
            holder: holder.into(),
            replication,
            block_size: None,
            overwrite: false,
            make_parents: true,
            mode: None,
            on_abandon,
        })?;
        let Outcome::File(file) = outcome else { panic!("{outcome:?}") };
        Ok(file)
    }

    pub(super) fn create(&mut self, at: &str) -> FileId {
        self.create_with(at, "w", None, OnAbandon::Close).unwrap()
    }

    pub(super) fn add_block_as(
        &mut self,
        file: FileId,
        holder: &str,
    ) -> Result<(BlockId, Vec<NodeUuid>), Error> {
        let outcome = self.ask(Op::AddBlock {
            file,
            holder: holder.into(),
            commits: vec![],
            exclude_nodes: vec![],
            writer_host: String::new(),
            suggested_hosts: vec![],
            expected: 0,
        })?;
        let Outcome::Block { block, nodes } = outcome else { panic!("{outcome:?}") };
        Ok((block, nodes))
    }

    /// Adds a block, writes it to its nodes, and has them tell.
    pub(super) fn write(&mut self, file: FileId, length: u64) -> BlockLength {
        let (block, nodes) = self.add_block_as(file, "w").unwrap();
        for uuid in nodes {
            self.node(uuid).receive(block, length);
        }
        self.beat_all();
        BlockLength { block, length }
    }

    pub(super) fn close(&mut self, file: FileId, commits: Vec<BlockLength>) -> Result<Outcome, Error> {
        self.ask(Op::Close { file, holder: "w".into(), commits, rename_to: None, overwrite: false })
    }

    /// A closed file with blocks of these lengths.
    pub(super) fn file(&mut self, at: &str, replication: u32, lengths: &[u64]) -> (FileId, Vec<BlockId>) {
        let file = self.create_as(at, "w", replication, OnAbandon::Close).unwrap();
        let commits: Vec<_> = lengths.iter().map(|length| self.write(file, *length)).collect();
        self.close(file, commits.clone()).unwrap();
        (file, commits.into_iter().map(|commit| commit.block).collect())
    }

    pub(super) fn stat(&self, at: &str) -> Result<FileStatus, Kind> {
        self.state.stat(&path(at)).map_err(|error| error.kind)
    }

    pub(super) fn node(&mut self, uuid: NodeUuid) -> &mut FakeNode {
        self.nodes.iter_mut().find(|node| node.uuid == uuid).unwrap()
    }

    /// One heartbeat, sent twice; registers first if told to.
    pub(super) fn beat(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !node.up {
            return;
        }
        node.seq += 1;
        let used = node.disk.values().map(|(length, _)| length).sum();
        let heartbeat = Heartbeat {
            seq: node.seq,
            capacity: node.capacity,
            used,
            free: node.capacity - used,
            volumes: 1,
            ..std::mem::take(&mut node.news)
        };
        let (uuid, incarnation) = (node.uuid, Incarnation(node.incarnation));
        match self.state.heartbeat(self.now, uuid, incarnation, heartbeat.clone()) {
            HeartbeatAnswer::RegisterAgain => {
                self.register(index).unwrap();
                self.beat(index);
            }
            HeartbeatAnswer::Commands(commands) => {
                self.check();
                let again = self.state.heartbeat(self.now, uuid, incarnation, heartbeat);
                assert_eq!(again, HeartbeatAnswer::Commands(commands.clone()), "a repeat");
                let heard = if self.nodes[index].deaf { Vec::new() } else { commands };
                for command in heard {
                    self.obey(index, command);
                }
            }
        }
        self.check();
    }

    /// Registers and reports everything, in two chunks, one of them sent twice; damage it tells of again.
    pub(super) fn register(&mut self, index: usize) -> Result<(), Error> {
        let node = &self.nodes[index];
        let (uuid, incarnation) = (node.uuid, Incarnation(node.incarnation));
        self.state.register(self.now, node.registration())?;
        self.check();
        let all: Vec<BlockLength> = node
            .disk
            .iter()
            .map(|(block, (length, _))| BlockLength { block: *block, length: *length })
            .collect();
        let (first, second) = all.split_at(all.len() / 2);
        self.nodes[index].news.bad =
            self.nodes[index].aside.iter().map(|block| (*block, "checksum".into())).collect();
        for (chunk, part) in [(0, first), (1, second), (1, second)] {
            self.state.full_report(self.now, uuid, incarnation, chunk, chunk == 1, part.to_vec()).unwrap();
            self.check();
        }
        Ok(())
    }

    fn obey(&mut self, index: usize, command: Command) {
        self.nodes[index].told.push(command.clone());
        match command {
            Command::Copy { block, length, targets } => {
                if self.nodes[index].disk.get(&block) != Some(&(length, false)) {
                    if self.nodes[index].disk.contains_key(&block) {
                        self.nodes[index].set_aside(block);
                    }
                    return;
                }
                for target in targets {
                    let node = self.node(target);
                    if node.up && !node.apart {
                        node.receive(block, length);
                    }
                }
            }
            Command::Delete(blocks) => {
                for block in blocks {
                    self.check_delete(index, block);
                    let node = &mut self.nodes[index];
                    node.disk.remove(&block);
                    node.aside.remove(&block);
                    node.news.deleted.push(block);
                }
            }
            Command::Check(block) => {
                if self.nodes[index].disk.get(&block).is_some_and(|(_, damaged)| *damaged) {
                    self.nodes[index].set_aside(block);
                }
            }
        }
    }

    /// Never the last good replica of a block that somebody may want; and nothing in safemode.
    fn check_delete(&self, index: usize, block: BlockId) {
        assert!(!self.state.safemode().on, "{block} deleted in safemode");
        let Some(known) = self.state.namespace().block(block) else {
            assert!(!self.state.namespace().never_given(block), "{block} is from a lost history");
            return;
        };
        let good = |node: &FakeNode| {
            node.disk.get(&block).is_some_and(|(length, damaged)| {
                !damaged && known.length().is_none_or(|right| right == *length)
            })
        };
        let others = self.nodes.iter().enumerate().any(|(at, node)| at != index && good(node));
        assert!(!good(&self.nodes[index]) || others, "the last good replica of {block} is deleted");
    }

    /// Every node, and again for those that got something to tell.
    pub(super) fn beat_all(&mut self) {
        for index in 0..self.nodes.len() {
            self.beat(index);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].has_news() {
                self.beat(index);
            }
        }
    }

    /// Turns the clock by one tick of 200 ms.
    pub(super) fn tick(&mut self) {
        self.now.mono_ms += 200;
        self.now.wall_ms += 200;
        self.records.extend(self.state.tick(self.now));
        self.check();
    }

    /// Ticks, with a heartbeat of every node each second.
    pub(super) fn run_ms(&mut self, ms: u64) {
        for step in 0..ms / 200 {
            self.tick();
            if step % 5 == 4 {
                self.beat_all();
            }
        }
    }

    /// The namespace as the log tells it.
    pub(super) fn replayed(&self) -> Namespace {
        let mut namespace = Namespace::new("c1");
        for record in &self.records {
            namespace.apply(record).unwrap();
        }
        namespace
    }

    /// The NameNode dies and starts again from its log.
    pub(super) fn restart(&mut self) {
        let namespace = self.replayed();
        assert_eq!(&namespace, self.state.namespace());
        self.state = State::new(settings(), namespace, self.now);
        self.check();
    }

    /// Nodes (by index) with a good replica on disk.
    pub(super) fn good_on(&self, block: BlockId) -> Vec<usize> {
        let length = self.state.namespace().block(block).and_then(Block::length);
        let good = |node: &FakeNode| {
            node.disk.get(&block).is_some_and(|(told, damaged)| !damaged && length.is_none_or(|l| l == *told))
        };
        (0..self.nodes.len()).filter(|at| good(&self.nodes[*at])).collect()
    }
}
