//! A NameNode that is a member of a group leads, or follows: then it applies the records of the
//! leader, refuses operations, and orders no work.
//!
//! DataNodes report to every member, so a follower knows where blocks are when it begins to lead.
//! It may know of a replica before it knows of the block, which is then in `future`. What a leader
//! has ordered is only in its own memory. So no replica is given up because of a DataNode that has
//! not acknowledged the epoch of the new leader: that may still delete what an earlier leader has
//! ordered.

use super::{State, nodes::Traffic};
use crate::namenode::{
    namespace::{ApplyError, Changes, Edit, Namespace, Record},
    op::{Now, Outcome, Replica},
    settings::Settings,
};
use dfs_client::ids::{BlockId, StartId};
use std::mem::take;

impl State {
    /// Creates the state of a member of a group. It follows until [`Self::lead`] is called.
    pub fn following(settings: Settings, namespace: Namespace, now: Now) -> Self {
        Self { is_leader: false, is_member: true, ..Self::new(settings, namespace, now) }
    }

    /// Returns whether this NameNode executes operations: always without a group.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Applies a record of the leader.
    pub fn apply(&mut self, now: Now, record: &Record) -> Result<(), ApplyError> {
        let mut changes = Changes::default();
        self.namespace.apply_with_changes(record, &mut changes)?;
        self.update_volatile(now, changes);
        if let Some((_, Outcome::Block { block, nodes })) = &record.request {
            self.expect_write(*block, nodes);
        }
        // This member has just started, so no DataNode has reported these blocks yet.
        if self.nodes.len() == 0 {
            self.safemode.wait_for_more_blocks(&self.settings, &self.namespace);
        }
        if record.edits.contains(&Edit::SafemodeSet { on: false }) {
            self.safemode.end_wait();
        }
        Ok(())
    }

    /// Begins to lead. Returns the record of the start of this leadership.
    pub fn lead(&mut self, now: Now, start: StartId) -> Record {
        self.extend_after_pause(now);
        self.is_leader = true;
        self.started = now;
        self.known_missing.clear();
        self.safemode.restart_grace();
        let record = self.namespace.start_record(now.wall_ms, start, false, self.settings.default_quota);
        self.apply_record(now, &record);
        self.first_block = BlockId(self.namespace.next_block());
        self.lease_all(now);
        // Safemode may end now, and not only at the next tick.
        self.tick_safemode(now);
        record
    }

    /// Ends the leadership: forgets what was ordered. A DataNode that was to delete replicas must
    /// register again, because these replicas are in no map, and may not be deleted.
    pub fn follow(&mut self) {
        self.is_leader = false;
        self.forget_orders();
        for node in self.nodes.iter_mut() {
            if let Some((_, commands)) = &mut node.last_answer {
                commands.clear();
            }
            if !node.deletes.is_empty() {
                node.deletes = super::nodes::Deletes::default();
                node.must_register = true;
            }
        }
        self.nodes_changed();
    }

    /// Forgets copies, checks and commands.
    fn forget_orders(&mut self) {
        self.copies.clear();
        self.copying = Traffic::default();
        self.slot_freed = false;
        self.checks.forget_all();
        self.queue.rewind();
        self.surplus_after = BlockId(0);
        self.not_copied_before.clear();
        self.known_missing.clear();
        for node in self.nodes.iter_mut() {
            (node.sending, node.receiving) = (Traffic::default(), Traffic::default());
            node.missed_copy = false;
            node.outbox.clear();
        }
    }

    /// Replaces the namespace by that of the group. What DataNodes have reported stays known.
    pub fn restore(&mut self, now: Now, mut namespace: Namespace) {
        namespace.set_retry_cache_limit(self.settings.retry_cache);
        let before = std::mem::replace(&mut self.namespace, namespace);
        let mut replicas = Vec::new();
        for (block, on) in take(&mut self.good) {
            let Some(known) = before.block(block) else { continue };
            let replica = Replica { block, nonce: known.nonce, length: known.length().unwrap_or(0) };
            replicas.extend(on.into_iter().map(|ix| (ix, replica)));
        }
        for (block, on) in take(&mut self.uncommitted) {
            let Some(known) = before.block(block) else { continue };
            let nonce = known.nonce;
            replicas.extend(on.into_iter().map(|(ix, length)| (ix, Replica { block, nonce, length })));
        }
        drop(before);
        let mut damaged = take(&mut self.bad);
        for ((block, ix), finalised) in take(&mut self.future) {
            match finalised {
                Some((nonce, length)) => replicas.push((ix, Replica { block, nonce, length })),
                None => _ = damaged.insert((block, ix)),
            }
        }
        for ((block, ix), nonce) in take(&mut self.orphans).into_iter().chain(take(&mut self.stale)) {
            if self.namespace.block(block).is_some_and(|known| known.nonce == nonce) {
                // Its length is not known.
                self.nodes.get_mut(ix).must_register = true;
            } else {
                replicas.push((ix, Replica { block, nonce, length: 0 }));
            }
        }
        self.forget_orders();
        self.queue = super::Queue::default();
        self.surplus.clear();
        self.writing.clear();
        for node in self.nodes.iter_mut() {
            node.blocks.clear();
            node.undrained_blocks.clear();
            node.writes = 0;
            node.draining = self.namespace.is_draining(&node.registration.node);
        }
        self.nodes.recount();
        for (ix, replica) in replicas {
            self.add_replica(ix, replica);
        }
        let found = self.counters.corrupt_found;
        for (block, ix) in damaged {
            self.record_corrupt(ix, block);
        }
        self.counters.corrupt_found = found;
        self.leases.clear();
        self.lease_all(now);
        self.first_block = BlockId(self.namespace.next_block());
        self.safemode.wait_for_blocks(&self.settings, &self.namespace);
        self.nodes_changed();
    }
}
