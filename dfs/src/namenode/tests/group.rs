//! Two members of a group without their driver: one leads, one follows and gets the records later.
//! DataNodes report to both, with random faults, and the leader changes, also one with records that
//! are not committed. A deposed leader may not know it for a while, and its commands may arrive late.
//! The invariants of both hold after every step, and the last good replica of a block is never
//! deleted. Without faults, both know the same replicas in the end.

use super::{
    bench::{path, settings},
    fake_node::FakeNode,
    random::Random,
};
use crate::namenode::{
    Namespace, Record, State,
    namespace::Block,
    op::{
        BlockLength, Caller, Command, Heartbeat, HeartbeatAnswer, Now, OnAbandon, Op, Outcome, Replica,
        Request,
    },
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, StartId},
};

const NODES: usize = 5;
const STEPS: usize = 300;

/// A DataNode, and what it has not reported to each member.
struct Node {
    fake: FakeNode,
    unreported: [Heartbeat; 2],
    seqs: [u64; 2],
    /// The epoch that it has acknowledged.
    epoch: u64,
    /// An answer of each member that has not arrived: its epoch and commands.
    in_flight: [Option<(u64, Vec<Command>)>; 2],
    /// Deletions that a leader has ordered and that are not done yet.
    deleting: Vec<(BlockId, Nonce)>,
}

impl Node {
    /// Notes what has changed, for both members.
    fn note(&mut self) {
        let Heartbeat { received, deleted, bad, lost, checked, .. } =
            std::mem::take(&mut self.fake.pending_reports);
        for unreported in &mut self.unreported {
            // The newest report on a block replaces earlier ones, as in a DataNode.
            let is_new = |block: &BlockId| {
                received.iter().any(|replica| replica.block == *block)
                    || bad.iter().any(|(other, _)| other == block)
                    || deleted.contains(block)
                    || lost.contains(block)
            };
            unreported.received.retain(|replica| !is_new(&replica.block));
            unreported.bad.retain(|(block, _)| !is_new(block));
            unreported.deleted.retain(|block| !is_new(block));
            unreported.lost.retain(|block| !is_new(block));
            unreported.received.extend(received.iter().copied());
            unreported.deleted.extend(deleted.iter().copied());
            unreported.bad.extend(bad.iter().cloned());
            unreported.lost.extend(lost.iter().copied());
            unreported.checked.extend(checked.iter().copied());
        }
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Counts {
    leaders: usize,
    lost_records: usize,
    early_reports: u64,
    deleted: usize,
    refused: usize,
}

struct Group {
    members: [State; 2],
    leader: usize,
    now: Now,
    log: Vec<Record>,
    /// Number of records that are committed.
    committed: usize,
    /// Number of records that the follower has applied.
    applied: usize,
    nodes: Vec<Node>,
    random: Random,
    requests: u128,
    files: Vec<(FileId, Vec<BlockLength>)>,
    counts: Counts,
    /// Whether the other member believes that it still leads; if so, whether it has records that the
    /// group does not have.
    deposed: Option<bool>,
}

impl Group {
    fn new(seed: u64) -> Self {
        let now = Now { mono_ms: 5_000, wall_ms: 1_700_000_000_000 };
        let nodes = (0..NODES).map(|at| Node {
            fake: FakeNode::new(at, &format!("n{}", at + 1), ["r1", "r2"][at % 2]),
            unreported: Default::default(),
            seqs: [0; 2],
            epoch: 0,
            in_flight: Default::default(),
            deleting: vec![],
        });
        let member = || State::following(settings(), Namespace::new("c1"), now);
        let mut group = Self {
            members: [member(), member()],
            leader: 0,
            now,
            log: vec![],
            committed: 0,
            applied: 0,
            nodes: nodes.collect(),
            random: Random(seed),
            requests: 0,
            files: vec![],
            counts: Counts::default(),
            deposed: None,
        };
        group.lead(0);
        group
    }

    fn check(&self) {
        for member in &self.members {
            member.invariants().unwrap();
        }
    }

    fn lead(&mut self, member: usize) {
        self.requests += 1;
        self.leader = member;
        let record = self.members[member].lead(self.now, StartId(self.requests as u64));
        self.log.push(record);
        self.counts.leaders += 1;
        self.check();
    }

    /// Lets the follower apply committed records, at most up to `upto`.
    fn apply(&mut self, upto: usize) {
        if self.deposed.is_some() {
            return;
        }
        let follower = 1 - self.leader;
        while self.applied < upto.min(self.committed) {
            self.members[follower].apply(self.now, &self.log[self.applied]).unwrap();
            self.applied += 1;
            self.check();
        }
    }

    /// The other member leads. The newest records may be lost, if they are not committed.
    fn change_leader(&mut self) {
        self.end_deposed();
        let (old, new) = (self.leader, 1 - self.leader);
        let kept = self.committed + self.random.below(self.log.len() - self.committed + 1);
        let lost = self.log.len() - kept;
        self.counts.lost_records += lost;
        self.log.truncate(kept);
        self.committed = kept;
        self.apply(kept);
        if lost > 0 {
            self.files.clear();
        }
        self.deposed = Some(lost > 0);
        self.lead(new);
        if self.random.once_in(2) {
            self.end_deposed();
        }
        assert_eq!(old, 1 - self.leader);
    }

    /// A deposed leader learns of the other one.
    fn end_deposed(&mut self) {
        let Some(has_lost) = self.deposed.take() else { return };
        let old = 1 - self.leader;
        self.members[old].follow();
        self.check();
        let mut namespace = Namespace::new("c1");
        for record in &self.log[..self.applied] {
            namespace.apply(record).unwrap();
        }
        if has_lost {
            self.members[old].restore(self.now, namespace);
        } else {
            assert_eq!(*self.members[old].namespace(), namespace);
        }
        self.check();
    }

    fn ask(&mut self, op: Op) -> Result<Outcome, Error> {
        self.requests += 1;
        let request = Request { id: RequestId(self.requests), caller: Caller::superuser("ann"), op };
        let handled = self.members[self.leader].handle(self.now, request)?;
        self.log.push(handled.entry.expect("a first answer has a record").record);
        self.check();
        Ok(handled.outcome)
    }

    fn some_path(&mut self) -> String {
        format!("/f{}", self.random.below(6))
    }

    fn create(&mut self) {
        let at = self.some_path();
        let replication = Some(1 + self.random.below(3) as u32);
        let created = self.ask(Op::Create {
            path: path(&at),
            holder: "w".into(),
            replication,
            block_size: None,
            overwrite: true,
            make_parents: true,
            mode: None,
            on_abandon: OnAbandon::Close,
        });
        if let Ok(Outcome::File(file)) = created {
            self.files.push((file, vec![]));
        }
    }

    fn write(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let at = self.random.below(self.files.len());
        let file = self.files[at].0;
        self.requests += 1;
        let nonce = Nonce(self.requests as u64);
        let added = self.ask(Op::AddBlock {
            file,
            holder: "w".into(),
            commits: vec![],
            exclude_nodes: vec![],
            writer_host: String::new(),
            expected: 0,
            nonce,
        });
        let Ok(Outcome::Block { block, nodes }) = added else { return };
        // The writer has the answer, so the record is committed.
        self.committed = self.log.len();
        let length = 1 + self.random.below(100) as u64;
        for uuid in nodes {
            let node = self.node(uuid);
            node.fake.offered_nonces.insert(block, nonce);
            node.fake.receive(block, length);
            node.note();
        }
        self.files[at].1.push(BlockLength { block, length });
    }

    fn close(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let at = self.random.below(self.files.len());
        let (file, commits) = self.files[at].clone();
        let close = Op::Close { file, holder: "w".into(), commits, rename_to: None, overwrite: false };
        match self.ask(close) {
            Err(error) if error.is_transient() => {}
            _ => drop(self.files.remove(at)),
        }
    }

    fn delete(&mut self) {
        let path = path(&self.some_path());
        let _in_safemode = self.ask(Op::Delete { path, recursive: true });
    }

    fn node(&mut self, uuid: NodeUuid) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.fake.uuid == uuid).unwrap()
    }

    /// Sends a heartbeat of a node to a member, if the last one is answered. The answer may take
    /// some time.
    fn beat(&mut self, at: usize, member: usize) {
        self.send(at, member);
        if self.random.once_in(2) {
            self.land(at, member);
        }
    }

    /// Sends a heartbeat of a node to a member, if the last one is answered. The answer of the
    /// leader waits until all is committed.
    fn send(&mut self, at: usize, member: usize) {
        let node = &mut self.nodes[at];
        if !node.fake.up || node.in_flight[member].is_some() {
            return;
        }
        node.seqs[member] += 1;
        let (seq, epoch, usage) = (node.seqs[member], node.epoch, node.fake.usage());
        let heartbeat = Heartbeat { seq, epoch, usage, ..std::mem::take(&mut node.unreported[member]) };
        let (uuid, incarnation) = (node.fake.uuid, NodeIncarnation(1));
        let state = &mut self.members[member];
        if member != self.leader {
            let is_early = |replica: &&Replica| state.namespace().block(replica.block).is_none();
            self.counts.early_reports += heartbeat.received.iter().filter(is_early).count() as u64;
        }
        let answer = state.heartbeat(self.now, uuid, incarnation, heartbeat);
        let epoch = state.namespace().epoch();
        if member == self.leader {
            self.committed = self.log.len();
        } else if self.deposed == Some(true) {
            // It waits for its own records, which are never committed.
            return;
        }
        match answer {
            HeartbeatAnswer::RegisterAgain => self.register(at, member),
            HeartbeatAnswer::Commands(commands) => {
                let may_order = member == self.leader || self.deposed.is_some();
                assert!(may_order || commands.is_empty(), "a follower orders nothing");
                self.nodes[at].in_flight[member] = Some((epoch, commands));
            }
        }
        self.check();
    }

    /// The answer of a member to the last heartbeat of a node arrives, if the node is up.
    fn land(&mut self, at: usize, member: usize) {
        if self.nodes[at].fake.up
            && let Some((epoch, commands)) = self.nodes[at].in_flight[member].take()
        {
            self.receive(at, epoch, commands);
        }
    }

    /// A node acknowledges a higher epoch, and refuses commands of a lower one.
    fn receive(&mut self, at: usize, epoch: u64, commands: Vec<Command>) {
        let node = &mut self.nodes[at];
        if epoch > node.epoch {
            node.epoch = epoch;
            node.deleting.clear();
        }
        if epoch < node.epoch {
            self.counts.refused += commands.len();
            return;
        }
        for command in commands {
            self.execute(at, command);
        }
    }

    fn register(&mut self, at: usize, member: usize) {
        let node = &mut self.nodes[at];
        let state = &mut self.members[member];
        let epoch = state.namespace().epoch();
        if epoch < node.epoch {
            return;
        }
        if let Err(error) = state.register(self.now, node.fake.registration()) {
            assert!(state.namespace().epoch() == 0 && error.kind == Kind::Unavailable, "{error}");
            return;
        }
        // A leader has forgotten what it has ordered. The fake node has no seen start, so the member
        // does not compare it.
        if epoch > node.epoch || state.is_leader() {
            node.deleting.clear();
        }
        node.epoch = epoch;
        node.unreported[member].bad =
            node.fake.quarantined.iter().map(|block| (*block, "checksum".into())).collect();
        let all = node.fake.disk.keys().map(|block| node.fake.replica(*block)).collect();
        state.full_report(self.now, node.fake.uuid, NodeIncarnation(1), 0, true, all).unwrap();
    }

    fn execute(&mut self, at: usize, command: Command) {
        match command {
            Command::Copy { block, nonce, length, targets } => {
                if self.nodes[at].fake.disk.get(&block) != Some(&(length, false)) {
                    return;
                }
                for target in targets {
                    let node = self.node(target);
                    if node.fake.up {
                        node.fake.offered_nonces.insert(block, nonce);
                        node.fake.receive(block, length);
                        node.note();
                    }
                }
            }
            Command::Delete(blocks) => {
                self.nodes[at].deleting.extend(blocks);
                if self.random.once_in(2) {
                    self.delete_ordered(at);
                }
            }
            Command::Check(block, _) => {
                let node = &mut self.nodes[at];
                match node.fake.disk.get(&block) {
                    Some((_, true)) => node.fake.move_to_bad(block),
                    Some((_, false)) => node.fake.pending_reports.checked.push(block),
                    None => {}
                }
                node.note();
            }
        }
    }

    /// Deletes what leaders have ordered a node to delete.
    fn delete_ordered(&mut self, at: usize) {
        for (block, nonce) in std::mem::take(&mut self.nodes[at].deleting) {
            self.check_delete(at, block);
            let node = &mut self.nodes[at];
            if node.fake.nonce(block) == nonce {
                node.fake.disk.remove(&block);
            }
            node.fake.quarantined.remove(&block);
            node.fake.pending_reports.deleted.push(block);
            node.note();
            self.counts.deleted += 1;
        }
    }

    /// Returns the nodes with a good replica of a block.
    fn good_on(&self, block: BlockId) -> Vec<usize> {
        let length = self.members[self.leader].namespace().block(block).and_then(Block::length);
        let good = |node: &Node| {
            let replica = node.fake.disk.get(&block);
            replica.is_some_and(|(own, damaged)| !damaged && length.is_none_or(|length| length == *own))
        };
        (0..NODES).filter(|at| good(&self.nodes[*at])).collect()
    }

    fn check_delete(&self, at: usize, block: BlockId) {
        let namespace = self.members[self.leader].namespace();
        let good = self.good_on(block);
        let is_last = namespace.block(block).is_some() && good == [at];
        assert!(!is_last && !namespace.is_future(block), "the last good replica of {block} is deleted");
    }

    /// Damages or loses a replica, if another node has a good one. It is reported to the leader at
    /// once, and no commands are on their way: otherwise the other one may be given up.
    fn damage(&mut self) {
        let is_quiet = |node: &Node| node.in_flight.iter().all(Option::is_none);
        if self.deposed.is_some() || !self.nodes.iter().all(is_quiet) {
            return;
        }
        let at = self.random.below(NODES);
        let blocks: Vec<BlockId> = self.nodes[at].fake.disk.keys().copied().collect();
        let Some(block) = blocks.get(self.random.below(blocks.len().max(1))) else { return };
        let stays = |other: &usize| {
            let node = &self.nodes[*other];
            *other != at && node.fake.up && !node.deleting.iter().any(|(deleting, _)| deleting == block)
        };
        if self.good_on(*block).iter().any(stays) && self.nodes[at].fake.up {
            let node = &mut self.nodes[at];
            if self.random.once_in(2) {
                node.fake.move_to_bad(*block);
            } else {
                node.fake.disk.remove(block);
                node.fake.pending_reports.lost.push(*block);
            }
            node.note();
            self.beat(at, self.leader);
        }
    }

    fn tick(&mut self) {
        self.now.mono_ms += 200;
        self.now.wall_ms += 200;
        for member in 0..2 {
            let records = self.members[member].tick(self.now);
            if member == self.leader {
                self.log.extend(records);
            } else if let Some(has_lost) = &mut self.deposed {
                *has_lost |= !records.is_empty();
            } else {
                assert_eq!(records, []);
            }
        }
        self.check();
    }

    fn set_replication(&mut self) {
        let replication = Some(1 + self.random.below(4) as u32);
        let path = path(&self.some_path());
        let (mode, owner, group, modified_ms) = (None, None, None, None);
        let _refused = self.ask(Op::SetAttributes { path, replication, mode, owner, group, modified_ms });
    }

    /// The leader gives orders, which are on their way. The other member knows of other free space,
    /// so it would choose other replicas to delete.
    fn order_late(&mut self) {
        let other = 1 - self.leader;
        for _ in 0..6 {
            self.set_replication();
        }
        self.tick();
        for at in 0..NODES {
            self.send(at, self.leader);
            self.nodes[at].fake.capacity = 100_000 + 10_000 * self.random.below(100) as u64;
            self.send(at, other);
            self.land(at, other);
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=2 => self.create(),
            3..=7 => self.write(),
            8..=10 => self.close(),
            11 => self.delete(),
            12 => self.set_replication(),
            13 | 14 => self.damage(),
            15 => {
                let at = self.random.below(NODES);
                let down = self.nodes.iter().any(|node| !node.fake.up);
                self.nodes[at].fake.up |= down;
                if !down {
                    self.nodes[at].fake.up = false;
                }
            }
            16 if self.random.once_in(2) => {
                // None of these may be committed.
                self.close();
                self.delete();
                self.create();
                if self.random.once_in(2) {
                    self.order_late();
                }
                self.change_leader();
            }
            16 => self.end_deposed(),
            17 => {
                let cancel = self.random.once_in(2);
                let _refused = self.ask(Op::Drain { node: "n1".into(), cancel });
            }
            _ => {}
        }
        self.tick();
        self.committed += self.random.below(self.log.len() - self.committed + 1);
        let upto = self.applied + self.random.below(self.log.len() - self.applied + 1);
        self.apply(upto);
        for at in 0..NODES {
            if self.nodes[at].fake.up && self.random.once_in(4) {
                self.delete_ordered(at);
            }
            for member in 0..2 {
                if self.random.once_in(2) {
                    self.beat(at, member);
                }
            }
        }
    }

    /// Ends all faults, and checks that the leader repairs everything and that both members know the
    /// same replicas.
    fn end_faults(&mut self) {
        self.end_deposed();
        for node in &mut self.nodes {
            node.fake.up = true;
        }
        for step in 0..1000 {
            self.tick();
            self.committed = self.log.len();
            self.apply(self.committed);
            if step % 5 == 0 {
                for at in 0..NODES {
                    self.delete_ordered(at);
                    self.beat(at, 0);
                    self.beat(at, 1);
                }
            }
        }
        let report = self.members[self.leader].report(self.now);
        assert_eq!((report.under_replicated, report.over_replicated), (0, 0), "{report:#?}");
        assert_eq!((report.missing, report.corrupt_replicas, report.open_files), (0, 0, 0), "{report:#?}");
        let follower = &self.members[1 - self.leader];
        assert_eq!(follower.report(self.now).future_replicas, 0);
        for node in &self.nodes {
            let on_disk: Vec<BlockId> = node.fake.disk.keys().copied().collect();
            for member in &self.members {
                let located = member.located_on(node.fake.uuid);
                assert_eq!(located, on_disk, "{}", node.fake.name);
            }
        }
    }
}

fn run(seed: u64) -> Counts {
    let mut group = Group::new(seed);
    for _ in 0..STEPS {
        group.step();
    }
    group.end_faults();
    group.counts
}

#[test]
fn members_know_the_same_replicas_when_leaders_change() {
    let mut all = Counts::default();
    for seed in 0..20 {
        println!("seed {seed}");
        let Counts { leaders, lost_records, early_reports, deleted, refused } = run(seed);
        all.leaders += leaders;
        all.lost_records += lost_records;
        all.early_reports += early_reports;
        all.deleted += deleted;
        all.refused += refused;
    }
    println!("{all:?}");
    assert!(all.leaders > 50 && all.lost_records > 20, "{all:?}");
    assert!(all.early_reports > 100 && all.deleted > 100 && all.refused > 10, "{all:?}");
}

/// Makes a block with two replicas, of which one is too many, and its leader order the deletion of
/// the first; the order is on its way. Another member leads then, which would delete the second.
/// Returns the block and its two nodes.
fn order_by_a_deposed_leader(group: &mut Group) -> (BlockId, usize, usize) {
    let settle = |group: &mut Group| {
        for _ in 0..10 {
            group.tick();
            group.committed = group.log.len();
            group.apply(group.committed);
            for (at, member) in (0..NODES).flat_map(|at| [(at, 0), (at, 1)]) {
                group.send(at, member);
                group.land(at, member);
                group.delete_ordered(at);
            }
        }
    };
    let attributes = |replication| Op::SetAttributes {
        path: path("/f"),
        replication: Some(replication),
        mode: None,
        owner: None,
        group: None,
        modified_ms: None,
    };
    settle(group);
    let created = group.ask(Op::Create {
        path: path("/f"),
        holder: "w".into(),
        replication: Some(2),
        block_size: None,
        overwrite: true,
        make_parents: true,
        mode: None,
        on_abandon: OnAbandon::Close,
    });
    let Ok(Outcome::File(file)) = created else { panic!("{created:?}") };
    group.files.push((file, vec![]));
    group.write();
    let block = group.files[0].1[0].block;
    settle(group);
    group.close();
    let [one, two] = group.good_on(block)[..] else { panic!("two replicas") };
    // The replica on the node with the least free space is deleted.
    group.nodes[one].fake.capacity = 500;
    settle(group);
    group.ask(attributes(1)).unwrap();
    group.tick();
    group.send(one, 0);
    let order = group.nodes[one].in_flight[0].clone().expect("an answer");
    assert!(matches!(order.1[..], [Command::Delete(_)]), "{order:?}");
    // The other member knows of other free space when it begins to lead.
    (group.nodes[one].fake.capacity, group.nodes[two].fake.capacity) = (1_000_000, 500);
    for at in [one, two] {
        group.send(at, 1);
        group.land(at, 1);
    }
    group.change_leader();
    (block, one, two)
}

#[test]
fn end_of_safemode_by_command_is_for_all_members() {
    let mut group = Group::new(1);
    for _ in 0..20 {
        group.create();
        group.write();
        for at in 0..NODES {
            group.send(at, 0);
            group.land(at, 0);
        }
        group.close();
    }
    // The other member starts again, and no DataNode has reported to it.
    group.members[1] = State::following(settings(), Namespace::new("c1"), group.now);
    (group.committed, group.applied) = (group.log.len(), 0);
    group.apply(group.committed);
    assert!(group.members[1].safemode().on);
    // It is off on the leader, which does not know about the wait of the other member.
    assert!(!group.members[0].safemode().on);
    let ended = group.members[0].set_safemode(group.now, false);
    group.log.extend(ended);
    group.create();
    group.committed = group.log.len();
    group.apply(group.committed);
    group.change_leader();
    assert!(!group.members[1].safemode().on, "{:?}", group.members[1].safemode());
}

#[test]
fn only_the_leader_admits_a_datanode_with_empty_folders() {
    let mut group = Group::new(1);
    group.committed = group.log.len();
    group.apply(group.committed);
    let node = FakeNode::new(NODES, "new", "r1");
    let mut registration = node.registration();
    registration.cluster_id = String::new();
    let refused = group.members[1].register(group.now, registration.clone()).unwrap_err();
    assert_eq!(refused.kind, Kind::Unavailable, "{refused}");
    group.members[0].register(group.now, registration.clone()).unwrap();
    // The leader has given it the ID.
    registration.cluster_id = "c1".into();
    group.members[1].register(group.now, registration).unwrap();
}

#[test]
fn no_replica_is_deleted_while_a_late_order_may_delete_the_other() {
    let mut group = Group::new(1);
    let (block, one, two) = order_by_a_deposed_leader(&mut group);
    for _ in 0..100 {
        group.tick();
        group.send(one, 1);
        // Only the second node receives the new epoch.
        group.send(two, 1);
        group.land(two, 1);
        group.delete_ordered(two);
    }
    assert_eq!(group.good_on(block), [one, two]);
    group.land(one, 0);
    group.delete_ordered(one);
    assert_eq!(group.good_on(block), [two]);
    group.end_faults();
    assert_eq!(group.good_on(block), [two]);
}

#[test]
fn late_order_is_refused_by_a_node_that_has_acknowledged_the_new_epoch() {
    let mut group = Group::new(1);
    let (block, one, two) = order_by_a_deposed_leader(&mut group);
    for _ in 0..100 {
        group.tick();
        for at in [one, two] {
            group.send(at, 1);
            group.land(at, 1);
            group.delete_ordered(at);
        }
    }
    assert_eq!(group.good_on(block), [one], "the new leader deletes the other replica");
    group.land(one, 0);
    group.delete_ordered(one);
    assert_eq!(group.good_on(block), [one]);
    assert_eq!(group.counts.refused, 1);
    group.end_faults();
}
