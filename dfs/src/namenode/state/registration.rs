//! How DataNodes come and go: registration, full reports, silence.

use super::{
    Event, State,
    nodes::{Incoming, Ix, Liveness, Node},
};
use crate::{
    error::{Error, Kind},
    ids::{BlockId, Incarnation, NodeUuid},
    namenode::{
        namespace::StartMismatch,
        op::{Now, Op, Registration, Replica},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// Refused DataNodes remembered for the report.
const REFUSED_MAX: usize = 1000;
/// Chunks of one full report, at the most.
const REPORT_CHUNKS_MAX: u32 = 1 << 16;
/// Replicas in one full report, at the most.
const REPORT_REPLICAS_MAX: usize = 20_000_000;

impl State {
    /// A DataNode introduces itself. What it was told before is void; its replicas stay known until its full
    /// report replaces them, but nothing is deleted because of them until then. Of two with the same name the
    /// one that started last wins; the other is forgotten, and refused when it comes again.
    pub fn register(&mut self, now: Now, who: Registration) -> Result<(), Error> {
        self.check_registration(&who)?;
        self.check_history(&who)?;
        let draining = self.namespace.is_draining(&who.node);
        let known = self.nodes.find(who.uuid);
        if let Some(other) = self.nodes.find_name(&who.node)
            && Some(other) != known
        {
            self.remove_dead(other);
            self.nodes.vacate(other);
        }
        self.note(match known {
            Some(_) => Event::NodeBack(who.node.clone()),
            None => Event::NodeRegistered(who.node.clone()),
        });
        match known {
            Some(ix) => {
                self.cancel_orders(ix);
                let node = self.nodes.get_mut(ix);
                node.who = who;
                node.liveness = Liveness::Live;
                node.last_heartbeat_ms = now.mono_ms;
                node.last = None;
                node.report = Some(Incoming::default());
                node.reported = false;
                if node.draining != draining {
                    let name = node.who.node.clone();
                    self.drain_changed(&name);
                }
            }
            None => self.nodes.add(Node::new(who, now.mono_ms, draining)),
        }
        self.nodes_changed();
        Ok(())
    }

    fn check_registration(&self, who: &Registration) -> Result<(), Error> {
        let refuse = |kind, message| Err(Error::new(kind, message));
        let ours = self.cluster_id();
        if who.node.is_empty() {
            return refuse(Kind::Invalid, "the DataNode gave no name: set datanode.node".into());
        }
        if !who.cluster_id.is_empty() && who.cluster_id != ours {
            return refuse(
                Kind::Refused,
                format!(
                    "{}: its folders belong to cluster {} and this is cluster {ours}: give it other folders or the right NameNode",
                    who.node, who.cluster_id
                ),
            );
        }
        if let Some(ix) = self.nodes.find(who.uuid)
            && who.incarnation < self.nodes.get(ix).who.incarnation
        {
            return refuse(
                Kind::Refused,
                format!("{}: a newer start of this DataNode has registered: stop this one", who.node),
            );
        }
        if let Some(ix) = self.nodes.find_name(&who.node) {
            let other = self.nodes.get(ix);
            let newer = who.incarnation > other.who.incarnation;
            if other.who.uuid != who.uuid && other.liveness != Liveness::Dead && !newer {
                return refuse(
                    Kind::Refused,
                    format!(
                        "the name {} is taken by the DataNode {} at {}, which started later: stop this one or choose another name",
                        who.node, other.who.uuid, other.who.data_addr
                    ),
                );
            }
        }
        Ok(())
    }

    /// Refuses a DataNode that has registered with a newer NameNode, or with one of another history: this NameNode was
    /// started from an older copy of its folder, and would delete or overlook what the DataNode holds for the other.
    fn check_history(&mut self, who: &Registration) -> Result<(), Error> {
        let Err(mismatch) = self.namespace.check_start(who.seen_epoch, who.seen_start) else {
            self.refused.remove(&who.node);
            return Ok(());
        };
        let (node, seen, ours) = (&who.node, who.seen_epoch, self.namespace.epoch());
        let what = match mismatch {
            StartMismatch::Newer => {
                format!("has registered with start {seen} of the NameNode and this is start {ours}")
            }
            StartMismatch::OtherHistory => {
                format!("has registered with another NameNode's start {seen} (this is start {ours})")
            }
        };
        let why = format!(
            "{node} {what}: this NameNode runs from an older copy of its folder; start it from the newest one, or accept \
             the older one for good with `namenode --recover`"
        );
        if self.refused.get(node) != Some(&why) {
            self.note(Event::NodeRefused(why.clone()));
        }
        if self.refused.len() < REFUSED_MAX || self.refused.contains_key(&who.node) {
            self.refused.insert(who.node.clone(), why.clone());
        }
        Err(Error::new(Kind::OlderNameNode, why))
    }

    /// A chunk of everything on a DataNode's disks. With the last one, what was known of it is replaced;
    /// only what heartbeats told since it registered (or since chunk 0) is kept.
    pub fn full_report(
        &mut self,
        now: Now,
        node: NodeUuid,
        incarnation: Incarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<Replica>,
    ) -> Result<(), Error> {
        let Some(ix) = self.current(node, incarnation) else {
            return Err(Error::new(
                Kind::NotFound,
                format!("DataNode {node} is not registered: register first"),
            ));
        };
        let node = self.nodes.get_mut(ix);
        node.last_heartbeat_ms = now.mono_ms;
        if chunk == 0 {
            let report = node.report.get_or_insert_default();
            report.next_chunk = 0;
            report.replicas.clear();
        }
        match &mut node.report {
            Some(report)
                if chunk >= REPORT_CHUNKS_MAX
                    || report.replicas.len() + replicas.len() > REPORT_REPLICAS_MAX =>
            {
                *report = Incoming::default();
                return Err(Error::new(
                    Kind::Invalid,
                    format!(
                        "{}: a report of more than {REPORT_REPLICAS_MAX} replicas or {REPORT_CHUNKS_MAX} chunks: run more DataNodes, each with fewer blocks",
                        node.who.node
                    ),
                ));
            }
            Some(report) if chunk == report.next_chunk => {
                report.next_chunk += 1;
                report.replicas.extend(replicas);
            }
            // The answer to it was lost.
            Some(report) if chunk.checked_add(1) == Some(report.next_chunk) => {}
            None if last => {}
            _ => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!(
                        "{}: chunk {chunk} of a report is out of turn: begin with chunk 0",
                        node.who.node
                    ),
                ));
            }
        }
        if last && let Some(report) = node.report.take() {
            node.reported = true;
            self.apply_report(ix, report);
        }
        Ok(())
    }

    fn apply_report(&mut self, ix: Ix, report: Incoming) {
        let mut before = self.replicas_on(ix);
        for ordered_deletes in report.replicas {
            before.remove(&ordered_deletes.block);
            if !report.touched.contains(&ordered_deletes.block) {
                self.reported_replica(ix, ordered_deletes);
            }
        }
        for gone in before.difference(&report.touched) {
            self.lose_replica(ix, *gone);
        }
        // Blocks being written count for a draining node only once it has reported.
        self.nodes_changed();
    }

    /// Every replica that a node is known to have, damaged ones apart: those it has quarantined itself.
    fn replicas_on(&self, ix: Ix) -> BTreeSet<BlockId> {
        let elsewhere = |set: &BTreeSet<(BlockId, Ix)>| -> Vec<BlockId> {
            set.iter().filter(|(_, at)| *at == ix).map(|(block, _)| *block).collect()
        };
        let mut all = self.nodes.get(ix).blocks.clone();
        let with_nonce = [&self.orphans, &self.stale].into_iter().flat_map(BTreeMap::keys);
        all.extend(with_nonce.filter(|(_, at)| *at == ix).map(|(block, _)| *block));
        all.extend(elsewhere(&self.future));
        let unsettled = self.unsettled.iter().filter(|(_, on)| on.iter().any(|(at, _)| *at == ix));
        all.extend(unsettled.map(|(block, _)| *block));
        all
    }

    /// The node, if this start of it is the current one and not taken for dead.
    pub(super) fn current(&self, uuid: NodeUuid, incarnation: Incarnation) -> Option<Ix> {
        let ix = self.nodes.find(uuid)?;
        let node = self.nodes.get(ix);
        (node.who.incarnation == incarnation && node.liveness != Liveness::Dead).then_some(ix)
    }

    /// Silence makes nodes suspect, then dead.
    pub(super) fn check_liveness(&mut self, now: Now) {
        let mut dead = Vec::new();
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
                (Liveness::Live, Liveness::Suspect) => Event::NodeSuspect(node.who.node.clone()),
                (Liveness::Suspect, Liveness::Live) => Event::NodeBack(node.who.node.clone()),
                _ => continue,
            };
            self.note(event);
        }
        for ix in &dead {
            self.remove_dead(*ix);
        }
        if !dead.is_empty() {
            self.nodes_changed();
        }
    }

    /// A dead node holds nothing.
    pub(super) fn remove_dead(&mut self, ix: Ix) {
        self.cancel_orders(ix);
        let node = self.nodes.get_mut(ix);
        let was_dead = std::mem::replace(&mut node.liveness, Liveness::Dead) == Liveness::Dead;
        let died = Event::NodeDead(node.who.node.clone(), node.blocks.len());
        node.report = None;
        node.reported = false;
        node.left.clear();
        let blocks = std::mem::take(&mut node.blocks);
        if !was_dead {
            self.note(died);
        }
        for block in blocks {
            self.explain(block, 1);
            self.forget_good(ix, block);
            self.recheck(block);
        }
        self.unsettled.retain(|_, on| {
            on.retain(|(at, _)| *at != ix);
            !on.is_empty()
        });
        for map in [&mut self.orphans, &mut self.stale] {
            map.retain(|(_, at), _| *at != ix);
        }
        for set in [&mut self.bad, &mut self.future] {
            set.retain(|(_, at)| *at != ix);
        }
    }

    /// Nothing that a node was told, or that was planned with it, holds any more.
    fn cancel_orders(&mut self, ix: Ix) {
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

    /// Looks again at what depends on how many nodes there are: damaged replicas and draining nodes.
    pub(super) fn nodes_changed(&mut self) {
        self.nodes.recount();
        let mut blocks: BTreeSet<BlockId> = self.bad.iter().map(|(block, _)| *block).collect();
        let unsettled = self.unsettled.keys().copied();
        for (_, node) in self.nodes.iter().filter(|(_, node)| node.draining) {
            blocks.extend(node.blocks.iter().chain(&node.left));
        }
        if self.nodes.iter().any(|(_, node)| node.draining) {
            blocks.extend(unsettled);
        }
        for block in blocks {
            self.recheck(block);
        }
    }

    /// Refuses replicas that nobody could hold, if a number was asked for. Soon after the start that may yet
    /// change, so the caller is told to ask again.
    pub(super) fn check_requested_replication(&self, now: Now, op: &Op) -> Result<(), Error> {
        let (Op::Create { replication: Some(asked), .. }
        | Op::SetAttributes { replication: Some(asked), .. }) = op
        else {
            return Ok(());
        };
        let known = self.nodes.known();
        // What is above replication_max too is refused for that, with its limit.
        if *asked as usize <= known || *asked > self.settings.replication_max {
            return Ok(());
        }
        let starting = now.mono_ms.saturating_sub(self.started.mono_ms) < self.settings.suspect_after_ms;
        let kind = if starting { Kind::Unavailable } else { Kind::Refused };
        let known = daemon::count(known as u64, "DataNode");
        let why = format!("replication {asked} is too much for {known}: ask for fewer replicas");
        Err(Error::new(kind, why))
    }
}
