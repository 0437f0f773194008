//! The test bench: the state machine, a simulated clock, and fake DataNodes. Every request is sent
//! twice, and the invariants are checked after every step.

use crate::namenode::{
    Edit, Namespace, Record, Settings, State,
    namespace::Block,
    op::{
        BlockLength, Caller, Command, Heartbeat, HeartbeatAnswer, Now, OnAbandon, Op, Outcome, Quota,
        Replica, Request,
    },
    view::FileStatus,
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, StartId},
    path::DfsPath,
};

pub(super) use super::fake_node::FakeNode;

pub(super) const BLOCK_BYTES: u64 = 100;

pub(super) fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

pub(super) fn settings() -> Settings {
    Settings {
        replication: 2,
        replication_max: 5,
        block_size: BLOCK_BYTES,
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

pub(super) struct Bench {
    pub(super) state: State,
    pub(super) now: Now,
    pub(super) records: Vec<Record>,
    pub(super) nodes: Vec<FakeNode>,
    requests: u128,
}

impl Bench {
    /// Creates a bench with nodes `n1..`, alternating between two racks, all registered and live.
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

    /// Sends a request as a superuser.
    pub(super) fn ask(&mut self, op: Op) -> Result<Outcome, Error> {
        self.ask_as(Caller::superuser("ann"), op)
    }

    /// Sends a request twice, and checks that the second answer has the same outcome and no record.
    /// Checks that a refusal changes nothing.
    pub(super) fn ask_as(&mut self, caller: Caller, op: Op) -> Result<Outcome, Error> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let request = Request { id, caller, op };
        let before = self.state.namespace().records();
        let handled = self.state.handle(self.now, request.clone());
        self.check();
        match handled {
            Ok(handled) => {
                let record = handled.entry.expect("a first answer has a record").record;
                for edit in &record.edits {
                    if let Edit::BlockAdded { block, nonce, .. } = edit {
                        for node in &mut self.nodes {
                            node.offered_nonces.insert(*block, *nonce);
                        }
                    }
                }
                self.records.push(record);
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

    /// Returns a pseudo-random nonce.
    pub(super) fn next_nonce(&self) -> Nonce {
        Nonce((self.requests as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn refusal_kind(&mut self, op: Op) -> Kind {
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
            expected: 0,
            nonce: self.next_nonce(),
        })?;
        let Outcome::Block { block, nodes } = outcome else { panic!("{outcome:?}") };
        Ok((block, nodes))
    }

    /// Adds a block, writes it to its nodes, and lets them report it.
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

    /// Creates a closed file with blocks of these lengths.
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

    /// Sends a heartbeat of a node twice, and executes the commands in the reply. Registers first
    /// if the NameNode requests it.
    pub(super) fn beat(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !node.up {
            return;
        }
        node.seq += 1;
        let (seq, epoch, usage) = (node.seq, node.last_namenode_start.0, node.usage());
        let heartbeat = Heartbeat { seq, epoch, usage, ..std::mem::take(&mut node.pending_reports) };
        let (uuid, incarnation) = (node.uuid, NodeIncarnation(node.incarnation));
        match self.state.heartbeat(self.now, uuid, incarnation, heartbeat.clone()) {
            HeartbeatAnswer::RegisterAgain => match self.register(index) {
                Ok(()) => self.beat(index),
                Err(error) => assert_eq!(error.kind, Kind::OlderNameNode, "{error}"),
            },
            HeartbeatAnswer::Commands(commands) => {
                self.check();
                let again = self.state.heartbeat(self.now, uuid, incarnation, heartbeat);
                assert_eq!(
                    again,
                    HeartbeatAnswer::Commands(commands.clone()),
                    "the reply to a repeated heartbeat is different"
                );
                let received = if self.nodes[index].loses_replies { Vec::new() } else { commands };
                for command in received {
                    self.execute(index, command);
                }
            }
        }
        self.check();
    }

    /// Registers a node and sends its full report in two chunks, one of them twice. The next
    /// heartbeat reports its damaged replicas again.
    pub(super) fn register(&mut self, index: usize) -> Result<(), Error> {
        let node = &self.nodes[index];
        let (uuid, incarnation) = (node.uuid, NodeIncarnation(node.incarnation));
        self.state.register(self.now, node.registration())?;
        self.check();
        let all: Vec<Replica> = node.disk.keys().map(|block| node.replica(*block)).collect();
        let namespace = self.state.namespace();
        let seen = (namespace.epoch(), namespace.start_id().unwrap_or(StartId(0)));
        self.nodes[index].last_namenode_start = seen;
        let (first, second) = all.split_at(all.len() / 2);
        self.nodes[index].pending_reports.bad =
            self.nodes[index].quarantined.iter().map(|block| (*block, "checksum".into())).collect();
        for (chunk, part) in [(0, first), (1, second), (1, second)] {
            self.state.full_report(self.now, uuid, incarnation, chunk, chunk == 1, part.to_vec()).unwrap();
            self.check();
        }
        Ok(())
    }

    fn execute(&mut self, index: usize, command: Command) {
        self.nodes[index].received_commands.push(command.clone());
        match command {
            Command::Copy { block, nonce, length, targets } => {
                if self.nodes[index].nonce(block) != nonce {
                    return;
                }
                if self.nodes[index].disk.get(&block) != Some(&(length, false)) {
                    if self.nodes[index].disk.contains_key(&block) {
                        self.nodes[index].move_to_bad(block);
                    }
                    return;
                }
                for target in targets {
                    let node = self.node(target);
                    if node.up && !node.isolated {
                        node.offered_nonces.insert(block, nonce);
                        node.receive(block, length);
                    }
                }
            }
            Command::Delete(blocks) => {
                for (block, nonce) in blocks {
                    self.check_delete(index, block, nonce);
                    let node = &mut self.nodes[index];
                    if node.nonce(block) == nonce {
                        node.disk.remove(&block);
                    }
                    node.quarantined.remove(&block);
                    node.pending_reports.deleted.push(block);
                }
            }
            Command::Check(block, _) => match self.nodes[index].disk.get(&block) {
                Some((_, true)) => self.nodes[index].move_to_bad(block),
                Some((_, false)) => self.nodes[index].pending_reports.checked.push(block),
                None => {}
            },
        }
    }

    /// Checks that a deletion is allowed: it is not ordered in safemode, and does not delete the
    /// last good replica of a block, a stale replica before an operator has accepted the namespace,
    /// or a replica whose block ID was never assigned.
    fn check_delete(&self, index: usize, block: BlockId, nonce: Nonce) {
        assert!(!self.state.safemode().on, "{block} deleted in safemode");
        let meant = self.nodes[index].nonce(block) == nonce;
        if self.nodes[index].disk.contains_key(&block) && !meant {
            return;
        }
        if let Some(known) = self.state.namespace().block(block)
            && known.nonce != nonce
        {
            assert!(
                self.state.namespace().is_accepted(),
                "stale replica of {block} deleted before an operator accepted the namespace"
            );
            return;
        }
        let Some(known) = self.state.namespace().block(block) else {
            assert!(
                !self.state.namespace().is_future(block),
                "{block} deleted, although this namespace never assigned it"
            );
            return;
        };
        let good = |node: &FakeNode| {
            node.disk.get(&block).is_some_and(|(length, damaged)| {
                !damaged
                    && node.nonce(block) == known.nonce
                    && known.length().is_none_or(|right| right == *length)
            })
        };
        let others = self.nodes.iter().enumerate().any(|(at, node)| at != index && good(node));
        assert!(!good(&self.nodes[index]) || others, "the last good replica of {block} is deleted");
    }

    /// Sends a heartbeat of every node, and then another one of each node that has something to
    /// report.
    pub(super) fn beat_all(&mut self) {
        for index in 0..self.nodes.len() {
            self.beat(index);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].has_reports() {
                self.beat(index);
            }
        }
    }

    /// Advances the clock by one tick of 200 ms.
    pub(super) fn tick(&mut self) {
        self.now.mono_ms += 200;
        self.now.wall_ms += 200;
        self.records.extend(self.state.tick(self.now));
        self.check();
    }

    /// Advances the clock by `ms` in ticks of 200 ms. Every node sends a heartbeat per second.
    pub(super) fn run_ms(&mut self, ms: u64) {
        for step in 0..ms / 200 {
            self.tick();
            if step % 5 == 4 {
                self.beat_all();
            }
        }
    }

    /// Replays the log and returns the resulting namespace.
    pub(super) fn replayed(&self) -> Namespace {
        let mut namespace = Namespace::new("c1");
        for record in &self.records {
            namespace.apply(record).unwrap();
        }
        namespace
    }

    /// Restarts the NameNode from its log, as after a crash.
    pub(super) fn restart(&mut self) {
        assert_eq!(&self.replayed(), self.state.namespace());
        self.start(false);
    }

    pub(super) fn set_safemode(&mut self, on: bool) {
        let record = self.state.set_safemode(self.now, on);
        self.records.extend(record);
    }

    /// Restarts the NameNode from an older copy of its log, which has only this many records.
    pub(super) fn restore(&mut self, records: usize) {
        self.records.truncate(records);
        self.start(false);
    }

    /// Restarts the NameNode from its log with other settings.
    pub(super) fn restart_with(&mut self, settings: &Settings) {
        self.restart();
        let namespace = self.state.namespace().clone();
        self.state = State::new(settings.clone(), namespace, self.now);
    }

    /// Starts the NameNode from its log. With `accept`, an operator declares the namespace the
    /// valid one.
    pub(super) fn start(&mut self, accept: bool) {
        self.start_with(accept, false);
    }

    /// Starts the NameNode from a backup with its first `records` records.
    pub(super) fn start_from_backup(&mut self, records: usize, drop_newer: bool) {
        self.records.truncate(records);
        self.start_with(true, drop_newer);
    }

    fn start_with(&mut self, accept: bool, drop_newer: bool) {
        self.requests += 1;
        let mut namespace = self.replayed();
        let start = StartId(self.requests as u64);
        let mut record = namespace.start_record(self.now.wall_ms, start, accept, Quota::default());
        // Remove the edits that create the folders of a new namespace, which the tests do not
        // expect.
        record.edits.truncate(1);
        if drop_newer {
            Namespace::drop_newer_blocks(&mut record);
        }
        namespace.apply(&record).unwrap();
        self.records.push(record);
        self.state = State::new(settings(), namespace, self.now);
        self.check();
    }

    /// Returns the indexes of the nodes with a good replica on disk.
    pub(super) fn good_on(&self, block: BlockId) -> Vec<usize> {
        let known = self.state.namespace().block(block);
        let length = known.and_then(Block::length);
        let good = |node: &FakeNode| {
            known.is_none_or(|known| known.nonce == node.nonce(block))
                && node
                    .disk
                    .get(&block)
                    .is_some_and(|(reported, damaged)| !damaged && length.is_none_or(|l| l == *reported))
        };
        (0..self.nodes.len()).filter(|at| good(&self.nodes[*at])).collect()
    }
}
