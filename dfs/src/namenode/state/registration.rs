//! Registration, full reports and liveness of DataNodes.

use super::{
    Event, State,
    nodes::{IncomingReport, Liveness, Node, NodeIx},
};
use crate::namenode::{
    namespace::StartMismatch,
    op::{Now, Op, Registration, Replica},
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, NodeIncarnation, NodeUuid},
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of refused DataNodes in the report.
const REFUSED_MAX: usize = 1000;
/// Maximum number of chunks of a full report.
const REPORT_CHUNKS_MAX: u32 = 1 << 16;
/// Maximum number of replicas in a full report.
const REPORT_REPLICAS_MAX: usize = 20_000_000;

impl State {
    /// Registers a DataNode. Its earlier commands are cancelled. Its known replicas stay known
    /// until its full report replaces them, but until then no other replica is deleted because of
    /// them. If two DataNodes have the same name, the one that started later is accepted, unless it
    /// has new data folders and the other DataNode has replicas. The other DataNode is removed, and
    /// is refused when it registers again.
    pub fn register(&mut self, now: Now, registration: Registration) -> Result<(), Error> {
        self.check_registration(&registration)
            .and_then(|()| self.check_may_admit(&registration))
            .and_then(|()| self.check_history(&registration))
            .and_then(|()| self.check_lost_replicas(&registration))
            .map_err(|refusal| self.soften_refusal(refusal))?;
        self.refused_nodes.remove(&registration.node);
        let draining = self.namespace.is_draining(&registration.node);
        let known = self.nodes.find(registration.uuid);
        if let Some(other) = self.nodes.find_name(&registration.node)
            && Some(other) != known
        {
            self.remove_dead(other);
            self.nodes.vacate(other);
        }
        self.note(match known {
            Some(_) => Event::NodeBack(registration.node.clone()),
            None => Event::NodeRegistered(registration.node.clone()),
        });
        match known {
            Some(ix) => {
                self.cancel_orders(ix);
                let node = self.nodes.get_mut(ix);
                node.registration = registration;
                node.liveness = Liveness::Live;
                node.last_heartbeat_ms = now.mono_ms;
                node.last_answer = None;
                node.incoming_report = Some(IncomingReport::default());
                node.reported = false;
                (node.acknowledged, node.must_register) = (0, false);
                if node.draining != draining {
                    let name = node.registration.node.clone();
                    self.drain_changed(&name);
                }
            }
            None => self.nodes.add(Node::new(registration, now.mono_ms, draining)),
        }
        self.nodes_changed();
        Ok(())
    }

    /// A follower does not end a DataNode: it may not have heard yet that the other DataNode with
    /// the same name is dead.
    fn soften_refusal(&self, refusal: Error) -> Error {
        let kind = match refusal.kind {
            Kind::Refused if !self.is_leader => Kind::Unavailable,
            kind => kind,
        };
        Error { kind, ..refusal }
    }

    fn check_registration(&self, registration: &Registration) -> Result<(), Error> {
        let refuse = |kind, message| Err(Error::new(kind, message));
        let ours = self.cluster_id();
        if registration.node.is_empty() {
            return refuse(Kind::Invalid, "the DataNode has no name: set datanode.node".into());
        }
        if !registration.cluster_id.is_empty() && registration.cluster_id != ours {
            // It may be one of several NameNodes and belong to the wrong cluster: `Refused` is the
            // answer of the leader of the right one.
            return refuse(
                Kind::Invalid,
                format!(
                    "{}: its data folders belong to cluster {}, but this is cluster {ours}: use other data folders or the NameNode of that cluster",
                    registration.node, registration.cluster_id
                ),
            );
        }
        if let Some(ix) = self.nodes.find(registration.uuid)
            && registration.incarnation < self.nodes.get(ix).registration.incarnation
        {
            return refuse(
                Kind::Refused,
                format!(
                    "{}: a newer start of this DataNode has registered: stop this one",
                    registration.node
                ),
            );
        }
        if let Some(ix) = self.nodes.find_name(&registration.node) {
            let other = self.nodes.get(ix);
            let newer = registration.incarnation > other.registration.incarnation;
            if other.registration.uuid != registration.uuid && other.liveness != Liveness::Dead && !newer {
                return refuse(
                    Kind::Refused,
                    format!(
                        "the name {} is in use by the DataNode {} at {}, which started later: stop this one or choose another name",
                        registration.node, other.registration.uuid, other.registration.data_addr
                    ),
                );
            }
        }
        Ok(())
    }

    /// A follower does not admit a DataNode with empty folders: it may not know the one with the same
    /// name that had replicas. The leader decides, and gives it the ID of the cluster.
    fn check_may_admit(&self, registration: &Registration) -> Result<(), Error> {
        let why = match &registration.cluster_id {
            _ if self.is_leader => return Ok(()),
            _ if self.namespace.epoch() == 0 => "has not received the namespace yet",
            new if new.is_empty() => {
                "does not lead, and only the leader admits a DataNode with empty folders"
            }
            _ => return Ok(()),
        };
        let why = format!("{}: this member of the group of NameNodes {why}: try again", registration.node);
        Err(Error::new(Kind::Unavailable, why))
    }

    /// Refuses a DataNode that has registered with a start of the NameNode that this namespace does
    /// not contain. This NameNode then runs from an older copy of its folder, and would delete or
    /// ignore replicas that were written after the copy was made.
    fn check_history(&mut self, registration: &Registration) -> Result<(), Error> {
        let Err(mismatch) = self.namespace.check_start(registration.seen_epoch, registration.seen_start)
        else {
            return Ok(());
        };
        let (node, seen, ours) = (&registration.node, registration.seen_epoch, self.namespace.epoch());
        let what = match mismatch {
            StartMismatch::Newer if self.is_member => {
                let why = format!(
                    "{node} has registered with start {seen} of the NameNode, and this member of its group has only \
                     applied start {ours}: try again"
                );
                return Err(Error::new(Kind::Unavailable, why));
            }
            StartMismatch::Newer => {
                format!("has registered with start {seen} of the NameNode, but this is start {ours}")
            }
            StartMismatch::OtherHistory => {
                format!(
                    "has registered with start {seen} of a NameNode whose edits this one does not have (this is start {ours})"
                )
            }
        };
        let why = format!(
            "{node} {what}: this NameNode runs from an older copy of its folder; start it from the newest one, or accept \
             the older one permanently with `namenode --recover`"
        );
        self.note_refused(node, &why);
        Err(Error::new(Kind::OlderNameNode, why))
    }

    /// Refuses a DataNode with new, empty data folders if the DataNode with the same name had
    /// replicas: its disks are probably not mounted. The NameNode knows this only for DataNodes
    /// that have registered since its start. The folders of a draining node may be empty, and so
    /// may those that an operator has declared new.
    fn check_lost_replicas(&mut self, registration: &Registration) -> Result<(), Error> {
        let Registration { uuid, node, cluster_id, host, declared_new, .. } = registration;
        let is_new = cluster_id.is_empty() && self.nodes.find(*uuid).is_none();
        let before = self.nodes.find_name(node).filter(|_| is_new);
        let Some(before) = before.map(|ix| self.nodes.get(ix)) else { return Ok(()) };
        let replicas = before.blocks.len().max(before.replicas_at_death);
        if replicas == 0 {
            return Ok(());
        }
        let replicas = daemon::count(replicas as u64, "replica");
        // This is not a replaced disk, but a second machine with the name of the first in its
        // settings.
        if before.liveness != Liveness::Dead && before.registration.host != *host {
            return Err(Error::new(
                Kind::Refused,
                format!(
                    "the name {node} is in use by the DataNode at {}, which has {replicas}: choose another name \
                     (datanode.node), or, if this machine replaces that one, start this DataNode when that one is dead",
                    before.registration.data_addr
                ),
            ));
        }
        if *declared_new || before.draining {
            return Ok(());
        }
        let why = format!(
            "{node} had {replicas}, but its data folders are empty: mount its disks, or create the file NEW in each data \
             folder if the disks were replaced by empty ones"
        );
        self.note_refused(node, &why);
        Err(Error::new(Kind::Refused, why))
    }

    /// Adds a refused DataNode to the report. Logs the refusal, unless the last one had the same
    /// reason.
    fn note_refused(&mut self, node: &str, why: &str) {
        if self.refused_nodes.get(node).is_none_or(|known| known != why) {
            self.note(Event::NodeRefused(why.to_owned()));
        }
        if self.refused_nodes.len() < REFUSED_MAX || self.refused_nodes.contains_key(node) {
            self.refused_nodes.insert(node.to_owned(), why.to_owned());
        }
    }

    /// Processes a chunk of the full report of a DataNode. The last chunk replaces all known
    /// replicas of the node, except those that heartbeats reported since the registration (or since
    /// chunk 0).
    pub fn full_report(
        &mut self,
        now: Now,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<Replica>,
    ) -> Result<(), Error> {
        let Some(ix) = self.find_current(node, incarnation) else {
            return Err(Error::new(
                Kind::NotFound,
                format!("DataNode {node} is not registered: register first"),
            ));
        };
        let node = self.nodes.get_mut(ix);
        node.last_heartbeat_ms = now.mono_ms;
        if chunk == 0 {
            let report = node.incoming_report.get_or_insert_default();
            report.next_chunk = 0;
            report.replicas.clear();
        }
        match &mut node.incoming_report {
            Some(report)
                if chunk >= REPORT_CHUNKS_MAX
                    || report.replicas.len() + replicas.len() > REPORT_REPLICAS_MAX =>
            {
                *report = IncomingReport::default();
                return Err(Error::new(
                    Kind::Invalid,
                    format!(
                        "{}: the report has more than {REPORT_REPLICAS_MAX} replicas or {REPORT_CHUNKS_MAX} chunks: run more DataNodes, each with fewer blocks",
                        node.registration.node
                    ),
                ));
            }
            Some(report) if chunk == report.next_chunk => {
                report.next_chunk += 1;
                report.replicas.extend(replicas);
            }
            // Ignore a chunk that is sent again because the reply to it was lost.
            Some(report) if chunk.checked_add(1) == Some(report.next_chunk) => {}
            None if last => {}
            _ => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!(
                        "{}: chunk {chunk} of a report is out of order: start with chunk 0",
                        node.registration.node
                    ),
                ));
            }
        }
        if last && let Some(report) = node.incoming_report.take() {
            node.reported = true;
            self.apply_report(ix, report);
        }
        Ok(())
    }

    fn apply_report(&mut self, ix: NodeIx, report: IncomingReport) {
        let mut before = self.replicas_on(ix);
        for replica in report.replicas {
            before.remove(&replica.block);
            if !report.reported_since.contains(&replica.block) {
                self.reported_replica(ix, replica);
            }
        }
        for gone in before.difference(&report.reported_since) {
            self.lose_replica(ix, *gone);
        }
        // This is not reset at the registration, because the node may die before its report.
        self.nodes.get_mut(ix).replicas_at_death = 0;
        // Recheck the uncommitted blocks: a draining node must keep those that its full report
        // contains.
        self.nodes_changed();
    }

    /// Returns all known replicas of a node except damaged ones, which the node has quarantined.
    fn replicas_on(&self, ix: NodeIx) -> BTreeSet<BlockId> {
        let mut all = self.nodes.get(ix).blocks.clone();
        let with_nonce = [&self.orphans, &self.stale].into_iter().flat_map(BTreeMap::keys);
        all.extend(with_nonce.filter(|(_, at)| *at == ix).map(|(block, _)| *block));
        all.extend(self.future.keys().filter(|(_, at)| *at == ix).map(|(block, _)| *block));
        let uncommitted = self.uncommitted.iter().filter(|(_, on)| on.iter().any(|(at, _)| *at == ix));
        all.extend(uncommitted.map(|(block, _)| *block));
        all
    }

    /// Returns the index of the node, if this incarnation is the current one and the node is not
    /// dead.
    pub(super) fn find_current(&self, uuid: NodeUuid, incarnation: NodeIncarnation) -> Option<NodeIx> {
        let ix = self.nodes.find(uuid)?;
        let node = self.nodes.get(ix);
        (node.registration.incarnation == incarnation && node.liveness != Liveness::Dead).then_some(ix)
    }

    /// Makes nodes suspect and then dead if their heartbeats are missing.
    pub(super) fn check_liveness(&mut self, now: Now) {
        let (mut dead, mut changed) = (Vec::new(), Vec::new());
        for ix in 0..self.nodes.len() {
            let node = self.nodes.get_mut(ix);
            let silence = now.mono_ms.saturating_sub(node.last_heartbeat_ms);
            let before = node.liveness;
            match before {
                Liveness::Dead => {}
                _ if silence >= self.settings.dead_after_ms => dead.push(ix),
                _ if silence >= self.settings.suspect_after_ms => node.liveness = Liveness::Suspect,
                _ => node.liveness = Liveness::Live,
            }
            let event = match (before, node.liveness) {
                (Liveness::Live, Liveness::Suspect) => Event::NodeSuspect(node.registration.node.clone()),
                (Liveness::Suspect, Liveness::Live) => Event::NodeBack(node.registration.node.clone()),
                _ => continue,
            };
            self.note(event);
            changed.push(ix);
        }
        for ix in changed {
            self.heartbeats_changed(ix);
        }
        for ix in &dead {
            self.remove_dead(*ix);
        }
        if !dead.is_empty() {
            self.nodes_changed();
        }
    }

    /// Marks a node as dead and removes its replicas, commands and copies.
    pub(super) fn remove_dead(&mut self, ix: NodeIx) {
        self.cancel_orders(ix);
        let node = self.nodes.get_mut(ix);
        let was_dead = std::mem::replace(&mut node.liveness, Liveness::Dead) == Liveness::Dead;
        let died = Event::NodeDead(node.registration.node.clone(), node.blocks.len());
        node.incoming_report = None;
        node.reported = false;
        node.undrained_blocks.clear();
        let blocks = std::mem::take(&mut node.blocks);
        node.replicas_at_death = node.replicas_at_death.max(blocks.len());
        if !was_dead {
            self.note(died);
        }
        for block in blocks {
            self.add_known_missing(block, 1);
            self.forget_good(ix, block);
            self.recheck(block);
        }
        self.uncommitted.retain(|_, on| {
            on.retain(|(at, _)| *at != ix);
            !on.is_empty()
        });
        for map in [&mut self.orphans, &mut self.stale] {
            map.retain(|(_, at), _| *at != ix);
        }
        self.future.retain(|(_, at), _| *at != ix);
        self.bad.retain(|(_, at)| *at != ix);
    }

    /// Cancels all commands, writes and copies of a node.
    fn cancel_orders(&mut self, ix: NodeIx) {
        let node = self.nodes.get_mut(ix);
        node.outbox.clear();
        node.deletes = super::nodes::Deletes::default();
        node.writes = 0;
        self.checks.forget_node(ix);
        for on in self.writing.values_mut() {
            on.retain(|at| *at != ix);
        }
        let copies = self.copies.iter().filter(|((_, target), copy)| *target == ix || copy.source == ix);
        for (block, target) in copies.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.drop_copy(block, target);
        }
    }

    /// Rechecks the blocks of a node that became suspect or live, as far as that matters: blocks with
    /// damaged replicas and blocks of draining nodes.
    pub(super) fn heartbeats_changed(&mut self, ix: NodeIx) {
        if self.bad.is_empty() && !self.nodes.iter().any(|(_, node)| node.draining) {
            return;
        }
        let depends = |block: &BlockId| {
            let drains = |ix: &NodeIx| self.nodes.get(*ix).draining;
            self.bad_holders(*block).next().is_some() || self.holders(*block).iter().any(drains)
        };
        let blocks: Vec<BlockId> = self.nodes.get(ix).blocks.iter().copied().filter(depends).collect();
        for block in blocks {
            self.recheck(block);
        }
    }

    /// Counts the staying nodes again, and rechecks the blocks that depend on their number: blocks
    /// with damaged replicas and blocks of draining nodes.
    pub(super) fn nodes_changed(&mut self) {
        self.nodes.recount();
        let mut blocks: BTreeSet<BlockId> = self.bad.iter().map(|(block, _)| *block).collect();
        let uncommitted = self.uncommitted.keys().copied();
        for (_, node) in self.nodes.iter().filter(|(_, node)| node.draining) {
            blocks.extend(node.blocks.iter().chain(&node.undrained_blocks));
        }
        if self.nodes.iter().any(|(_, node)| node.draining) {
            blocks.extend(uncommitted);
        }
        for block in blocks {
            self.recheck(block);
        }
    }

    /// Refuses a requested replication that is higher than the number of known DataNodes. Soon
    /// after a start more DataNodes may register, so the error is then one that the caller may
    /// retry.
    pub(super) fn check_requested_replication(&self, now: Now, op: &Op) -> Result<(), Error> {
        let (Op::Create { replication: Some(asked), .. }
        | Op::SetAttributes { replication: Some(asked), .. }) = op
        else {
            return Ok(());
        };
        let known = self.nodes.known_count();
        // A value above `replication_max` is refused later, with that limit in the message.
        if *asked as usize <= known || *asked > self.settings.replication_max {
            return Ok(());
        }
        let starting = now.mono_ms.saturating_sub(self.started.mono_ms) < self.settings.suspect_after_ms;
        let kind = if starting { Kind::Unavailable } else { Kind::Refused };
        let known = daemon::count(known as u64, "DataNode");
        let why = format!("replication {asked} is too high for {known}: request fewer replicas");
        Err(Error::new(kind, why))
    }
}
