//! The state machine of the NameNode. It gets operations and reports, and returns outcomes, records
//! and commands.
//!
//! It has two halves. The durable half is the [`Namespace`], which changes only by records. The
//! volatile half (nodes, replicas, repair, deadlines of leases, the wait for blocks) is rebuilt
//! after a restart from the reports of DataNodes. An operation is planned read-only, then its record
//! is applied, then the volatile half is updated (`State::update_volatile`).
//!
//! It uses no clock, I/O, randomness or threads. The driver passes the time, makes records durable
//! before it sends replies, and calls [`State::tick`] several times per second.

mod check;
pub(crate) mod checks;
mod drain;
mod events;
mod group;
mod heartbeat;
mod homes;
mod leases;
mod nodes;
mod query;
mod registration;
mod repair;
mod replicas;
mod report;
mod safemode;
mod writes;

use super::{
    namespace::{Changes, Edit, Namespace, Record},
    op::{Now, Op, Outcome, Request},
    plan::{Attributes, NewFile, Plan},
    settings::Settings,
};
use checks::Checks;
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, Nonce},
};
pub use events::Event;
use journal::{codec, log::RECORD_BYTES_MAX};
use leases::Lease;
use nodes::{NodeIx, Nodes, Traffic};
use repair::{Queue, RunningCopy};
use safemode::Safemode;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// The result of [`State::handle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handled {
    /// The outcome of the operation.
    pub outcome: Outcome,
    /// The record, which must be durable before the reply is sent. `None` for a repeated request.
    pub entry: Option<Entry>,
}

/// A record that has been applied, and its encoding for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub record: Record,
    /// The encoded record. Its length is within the limit of the log.
    pub bytes: Vec<u8>,
}

/// The complete state of the NameNode.
#[derive(Debug)]
pub struct State {
    settings: Settings,
    namespace: Namespace,
    nodes: Nodes,
    /// Good replicas of committed blocks, on nodes that are not dead. No entry is empty.
    good: BTreeMap<BlockId, SmallVec<[NodeIx; 4]>>,
    /// Finalised replicas of blocks that are not committed yet, with their lengths.
    uncommitted: BTreeMap<BlockId, Vec<(NodeIx, u64)>>,
    /// Damaged replicas of known blocks.
    bad: BTreeSet<(BlockId, NodeIx)>,
    /// Replicas whose blocks were deleted, with their nonces.
    orphans: BTreeMap<(BlockId, NodeIx), Nonce>,
    /// Replicas with the ID of a known block but another nonce: they were written before the
    /// NameNode was restored from an older copy of its folder. They never count as replicas. They
    /// are kept unless an operator has declared this namespace the valid one.
    stale: BTreeMap<(BlockId, NodeIx), Nonce>,
    /// Names of DataNodes whose registration was refused, with the reason.
    refused_nodes: BTreeMap<String, String>,
    /// Replicas with block IDs that this namespace has never assigned, with their nonces and
    /// lengths; `None` for a damaged one. The records of their blocks were lost, or this member of a
    /// group has not applied them yet. They are never deleted.
    future: BTreeMap<(BlockId, NodeIx), Option<(Nonce, u64)>>,
    /// Blocks with at least one good replica, but fewer than wanted.
    queue: Queue,
    /// Blocks with more replicas than wanted.
    surplus: BTreeSet<BlockId>,
    /// The last block that `delete_surplus` has processed.
    surplus_after: BlockId,
    /// Running copies, by block and target.
    copies: BTreeMap<(BlockId, NodeIx), RunningCopy>,
    /// The capacity that all running copies use.
    copying: Traffic,
    /// Whether a copy has ended, so that its source can send another one before the next tick.
    slot_freed: bool,
    /// The nodes to which uncommitted blocks are being written.
    writing: BTreeMap<BlockId, SmallVec<[NodeIx; 4]>>,
    /// Blocks that are not copied before the given time, because their other replicas may still be
    /// reported, or a node with a replica may return.
    not_copied_before: BTreeMap<BlockId, u64>,
    leases: BTreeMap<Box<str>, Lease>,
    safemode: Safemode,
    counters: Counters,
    started: Now,
    /// Monotonic time of the last tick.
    last_tick_ms: u64,
    events: Vec<Event>,
    /// Number of replicas of each block that are known to be missing: they were lost, or the
    /// replication was increased. Copies for them need not wait for DataNodes that have not
    /// registered yet. Used only for a limited time after a start (`dead_after`).
    known_missing: BTreeMap<BlockId, u32>,
    /// The first block ID assigned since the start. DataNodes that have not registered since the
    /// start have no replicas of blocks from this ID on.
    first_block: BlockId,
    checks: Checks,
    /// Whether this NameNode executes operations and orders repair work. A member of a group does
    /// only while it leads.
    is_leader: bool,
    /// Whether this NameNode is a member of a group.
    is_member: bool,
}

/// Counters since the start of the NameNode.
#[derive(Debug, Default)]
struct Counters {
    corrupt_found: u64,
    corrupt_replaced: u64,
    copies_done: u64,
}

impl State {
    /// Creates the state from the namespace in the log. Safemode is on if there are blocks to wait
    /// for. Every open file gets a full lease.
    pub fn new(settings: Settings, mut namespace: Namespace, now: Now) -> State {
        namespace.set_retry_cache_limit(settings.retry_cache);
        let mut state = State {
            safemode: Safemode::at_start(&settings, &namespace),
            settings,
            namespace,
            nodes: Nodes::default(),
            good: BTreeMap::new(),
            uncommitted: BTreeMap::new(),
            bad: BTreeSet::new(),
            orphans: BTreeMap::new(),
            stale: BTreeMap::new(),
            refused_nodes: BTreeMap::new(),
            future: BTreeMap::new(),
            queue: Queue::default(),
            surplus: BTreeSet::new(),
            surplus_after: BlockId(0),
            copies: BTreeMap::new(),
            copying: Traffic::default(),
            slot_freed: false,
            writing: BTreeMap::new(),
            not_copied_before: BTreeMap::new(),
            leases: BTreeMap::new(),
            counters: Counters::default(),
            started: now,
            last_tick_ms: now.mono_ms,
            events: Vec::new(),
            known_missing: BTreeMap::new(),
            first_block: BlockId(0),
            checks: Checks::default(),
            is_leader: true,
            is_member: false,
        };
        state.first_block = BlockId(state.namespace.next_block());
        state.lease_all(now);
        state
    }

    /// Executes an operation of a client. A refusal changes nothing. A repeated request gets the
    /// same outcome and no record.
    pub fn handle(&mut self, now: Now, request: Request) -> Result<Handled, Error> {
        if let Some(holder) = request.op.holder() {
            self.extend_lease(now, holder);
        }
        if let Some(outcome) = self.namespace.outcome_of(request.id) {
            return Ok(Handled { outcome: outcome.clone(), entry: None });
        }
        self.refuse_in_safemode()?;
        self.namespace.permit_op(&request)?;
        let (outcome, edits) = self.plan_operation(now, &request)?;
        let record = Record { at_ms: now.wall_ms, request: Some((request.id, outcome.clone())), edits };
        let bytes = encode_for_log(&record)?;
        self.apply_record(now, &record);
        if let Outcome::Block { block, nodes } = &outcome {
            self.expect_write(*block, nodes);
        }
        Ok(Handled { outcome, entry: Some(Entry { record, bytes }) })
    }

    /// Does the periodic work: expiry, repair, the end of safemode; only the last of these if this
    /// NameNode follows another. Must be called about every 200 ms. If the process was paused and
    /// could not receive messages, all deadlines are extended by that time.
    pub fn tick(&mut self, now: Now) -> Vec<Record> {
        self.extend_after_pause(now);
        self.check_liveness(now);
        self.tick_safemode(now);
        self.not_copied_before.retain(|_, until| *until > now.mono_ms);
        if !self.is_leader {
            return Vec::new();
        }
        self.note_drained();
        self.repeat_checks(now);
        self.drop_late_copies(now);
        if self.in_safemode() {
            return Vec::new();
        }
        let records = self.expire_leases(now);
        self.repair(now);
        self.delete_surplus();
        self.delete_orphans(now);
        records
    }

    /// Extends all deadlines if the process was paused since the last tick.
    fn extend_after_pause(&mut self, now: Now) {
        let pause = now.mono_ms.saturating_sub(self.last_tick_ms);
        self.last_tick_ms = now.mono_ms;
        if pause >= self.settings.suspect_after_ms {
            self.nodes.extend_after_pause(now.mono_ms, pause);
            self.extend_leases_after_pause(now, pause);
        }
    }

    fn plan_operation(&self, now: Now, request: &Request) -> Result<(Outcome, Vec<Edit>), Error> {
        self.check_requested_replication(now, &request.op)?;
        let mut plan = Plan::new(&self.namespace, &self.settings, &request.caller.user);
        let outcome = match &request.op {
            Op::AddBlock { .. } => self.plan_block(&mut plan, &request.op)?,
            Op::Close { file, holder, commits, rename_to, overwrite } => {
                let to = rename_to.as_ref().map(|to| (to, *overwrite));
                let outcome = plan.close(*file, holder, commits, to)?;
                self.check_reported(*file, commits)?;
                outcome
            }
            Op::Drain { node, cancel } => {
                return Ok((Outcome::Done, self.plan_drain(node, *cancel)?));
            }
            op => plan_in_namespace(&mut plan, op)?,
        };
        Ok((outcome, plan.finish()?))
    }

    /// Applies a record that was just planned for this namespace, and updates the volatile half.
    fn apply_record(&mut self, now: Now, record: &Record) {
        let mut changes = Changes::default();
        self.namespace
            .apply_with_changes(record, &mut changes)
            .expect("a record that was planned for this namespace can be applied");
        self.update_volatile(now, changes);
    }

    fn update_volatile(&mut self, now: Now, changes: Changes) {
        for (file, holder) in changes.released {
            self.release(file, &holder);
        }
        for file in changes.opened {
            self.lease_file(now, file);
        }
        for block in changes.added {
            self.block_added(block);
        }
        for block in changes.committed {
            self.block_committed(now, block);
        }
        for (block, nonce) in changes.dropped {
            self.drop_block(block, nonce);
        }
        for (block, before) in changes.replication_changed {
            let more = self.namespace.wanted_replicas(block).unwrap_or(0).saturating_sub(before);
            self.add_known_missing(block, more);
            self.recheck(block);
        }
        for node in changes.drains {
            self.drain_changed(&node);
        }
        if changes.started {
            // No DataNode is confirmed in the new epoch.
            self.nodes_changed();
        }
    }

    /// Returns the durable half, for snapshots.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the ID of the cluster.
    pub fn cluster_id(&self) -> &str {
        self.namespace.cluster_id()
    }

    /// Returns the duration of a lease in milliseconds.
    pub fn lease_ms(&self) -> u64 {
        self.settings.lease_ms
    }

    fn refuse_in_safemode(&self) -> Result<(), Error> {
        let status = self.safemode();
        let kind = if self.namespace.safemode() { Kind::ManualSafemode } else { Kind::Safemode };
        if status.on { Err(Error::new(kind, status.reason)) } else { Ok(()) }
    }
}

/// Encodes a record. Refuses it, before it is applied, if it is too large for the log.
fn encode_for_log(record: &Record) -> Result<Vec<u8>, Error> {
    let bytes = codec::encode(record);
    if bytes.len() > RECORD_BYTES_MAX {
        let (edits, size) = (record.edits.len(), bytes.len());
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "too many changes in one request: {edits} edits need {size} bytes in the log, the limit is {RECORD_BYTES_MAX}: use several requests"
            ),
        ));
    }
    Ok(bytes)
}

/// Plans the operations that depend only on the namespace.
fn plan_in_namespace(plan: &mut Plan<'_>, op: &Op) -> Result<Outcome, Error> {
    match op {
        Op::Create { path, holder, replication, block_size, overwrite, make_parents, mode, on_abandon } => {
            plan.create(&NewFile {
                path,
                holder,
                replication: *replication,
                block_size: *block_size,
                overwrite: *overwrite,
                make_parents: *make_parents,
                mode: *mode,
                on_abandon: *on_abandon,
            })
        }
        Op::Append { path, holder } => plan.append(path, holder),
        Op::AbandonBlock { file, holder, block } => plan.abandon_block(*file, holder, *block),
        Op::Mkdir { path, parents, mode } => plan.mkdir(path, *parents, *mode),
        Op::Rename { from, to, overwrite } => plan.rename(from, to, *overwrite),
        Op::Delete { path, recursive } => plan.delete_path(path, *recursive),
        Op::SetAttributes { path, replication, mode, owner, group, modified_ms } => {
            let set = Attributes {
                replication: *replication,
                mode: *mode,
                owner: owner.as_deref(),
                group: group.as_deref(),
                modified_ms: *modified_ms,
            };
            plan.set_attributes(path, &set)
        }
        Op::SetQuota { path, quota } => plan.set_quota(path, *quota),
        Op::Concat { target, sources } => plan.concat(target, sources),
        Op::Fence { scope, start, earlier } => plan.fence(scope, *start, earlier),
        Op::Commit { scope, start, commit_id, moves, deletes } => {
            plan.commit(scope, *start, commit_id, moves, deletes)
        }
        Op::AddBlock { .. } | Op::Close { .. } | Op::Drain { .. } => {
            unreachable!("planned by State, because they depend on DataNodes")
        }
    }
}

impl Op {
    /// Returns the holder of the lease, if this is an operation of a writer.
    fn holder(&self) -> Option<&str> {
        match self {
            Op::Create { holder, .. }
            | Op::Append { holder, .. }
            | Op::AddBlock { holder, .. }
            | Op::AbandonBlock { holder, .. }
            | Op::Close { holder, .. } => Some(holder),
            _ => None,
        }
    }
}
