//! Tracks the replicas of each block. A replica is good, uncommitted (its block is not committed
//! yet), damaged, an orphan (its block was deleted), stale (its nonce is not that of its block), or
//! future (this NameNode never assigned the block ID, because it runs from an older copy of its
//! folder, or has not applied the newest records of its group). After each change of the replicas of
//! a block, [`State::recheck`] updates the queues.
//!
//! Invariants: `good` and the `blocks` of all nodes contain the same replicas. A replica whose
//! deletion was ordered is in none of the maps. A damaged replica never counts as a replica.

use super::{
    State,
    nodes::{Liveness, NodeIx},
};
use crate::namenode::{
    namespace::Block,
    op::{Now, Replica},
};
use dfs_client::ids::{BlockId, Nonce};

/// The numbers of replicas of a committed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) wanted: u32,
    /// Number of good replicas on staying nodes.
    pub(super) live: u32,
    /// Number of the `live` replicas that are on nodes with heartbeats that acknowledge this epoch,
    /// and with a complete full report. Only these count when other replicas are given up, because a
    /// suspect node may be dead, a node that was just restarted may have lost replicas, and one that
    /// has not acknowledged this epoch may still delete what an earlier leader has ordered.
    pub(super) confirmed: u32,
    /// Number of good replicas on draining nodes.
    pub(super) draining: u32,
}

impl Tally {
    /// Returns how urgent a copy is; lower is more urgent. `None` if no copy is needed, or if there
    /// is no replica to copy.
    pub(super) fn urgency(self) -> Option<u8> {
        match self.live + self.draining {
            0 => None,
            _ if self.live >= self.wanted => None,
            1 => Some(0),
            _ => Some(1 + (self.live * 100 / self.wanted) as u8),
        }
    }

    /// Returns whether the staying nodes have the wanted number of replicas, so that a draining
    /// node does not have to keep the block.
    pub(super) fn is_drainable(self) -> bool {
        self.confirmed >= self.wanted
    }
}

impl State {
    /// Counts the replicas of a block. `None` if the block is not committed or does not exist.
    pub(super) fn tally(&self, block: BlockId) -> Option<Tally> {
        let wanted = self.namespace.wanted_replicas(block)?;
        let holders = self.holders(block);
        let mut tally = Tally { wanted, live: 0, confirmed: 0, draining: 0 };
        for ix in holders {
            let draining = self.nodes.get(*ix).draining;
            tally.draining += u32::from(draining);
            tally.live += u32::from(!draining);
            tally.confirmed += u32::from(self.is_confirmed(*ix));
        }
        Some(tally)
    }

    /// Returns the nodes with a good replica.
    pub(super) fn holders(&self, block: BlockId) -> &[NodeIx] {
        self.good.get(&block).map_or(&[], |on| on.as_slice())
    }

    /// Returns the nodes with a damaged replica.
    pub(super) fn bad_holders(&self, block: BlockId) -> impl Iterator<Item = NodeIx> {
        self.bad.range((block, 0)..=(block, NodeIx::MAX)).map(|(_, ix)| *ix)
    }

    /// Records a replica that a node has finalised.
    pub(super) fn received_replica(&mut self, ix: NodeIx, replica: Replica) {
        if !self.nodes.get(ix).deletes.contains(replica.block, replica.nonce) {
            self.bad.remove(&(replica.block, ix));
            self.add_replica(ix, replica);
        }
    }

    /// Records a replica in the full report of a node. A replica that is known to be damaged stays
    /// damaged.
    pub(super) fn reported_replica(&mut self, ix: NodeIx, replica: Replica) {
        let deleting = self.nodes.get(ix).deletes.contains(replica.block, replica.nonce);
        if !self.bad.contains(&(replica.block, ix)) && !deleting {
            self.add_replica(ix, replica);
        }
    }

    pub(super) fn add_replica(&mut self, ix: NodeIx, Replica { block, nonce, length }: Replica) {
        self.stale.remove(&(block, ix));
        match self.namespace.block(block) {
            None if self.namespace.is_future(block) => {
                self.future.insert((block, ix), Some((nonce, length)));
            }
            None => drop(self.orphans.insert((block, ix), nonce)),
            Some(known) if known.nonce != nonce => self.record_stale(ix, block, nonce),
            Some(known) => match known.length() {
                None => {
                    let on = self.uncommitted.entry(block).or_default();
                    on.retain(|(at, _)| *at != ix);
                    on.push((ix, length));
                    self.recheck(block);
                }
                Some(right) if right == length => self.add_good(ix, block),
                Some(_) => self.record_corrupt(ix, block),
            },
        }
    }

    fn add_good(&mut self, ix: NodeIx, block: BlockId) {
        let copied = self.copies.contains_key(&(block, ix));
        if copied {
            self.drop_copy(block, ix);
            self.counters.copies_done += 1;
            self.nodes.get_mut(ix).missed_copy = false;
        }
        if self.nodes.get_mut(ix).blocks.insert(block) {
            self.good.entry(block).or_default().push(ix);
        }
        if copied {
            self.good_verified(ix, block);
        }
        self.recheck(block);
    }

    /// Records a stale replica: one with the ID of a known block but another nonce. It does not
    /// count as a replica. It may be the only copy of data that was written before the namespace
    /// lost records or was restored from an older state. So it is kept until an operator has
    /// accepted the current namespace (see `delete_stale`).
    fn record_stale(&mut self, ix: NodeIx, block: BlockId, nonce: Nonce) {
        if self.copies.contains_key(&(block, ix)) {
            self.drop_copy(block, ix);
        }
        self.forget_replica(ix, block);
        self.stale.insert((block, ix), nonce);
        self.recheck(block);
    }

    /// Records a damaged replica. It does not count as a replica, and is deleted when it has been
    /// replaced.
    pub(super) fn record_corrupt(&mut self, ix: NodeIx, block: BlockId) {
        if self.nodes.get(ix).deletes.contains_block(block) {
            return;
        }
        if self.namespace.block(block).is_none() {
            // A quarantined replica is deleted regardless of its nonce.
            self.add_replica(ix, Replica { block, nonce: Nonce(0), length: 0 });
            self.future.entry((block, ix)).and_modify(|finalised| *finalised = None);
            return;
        }
        if self.copies.contains_key(&(block, ix)) {
            self.drop_copy(block, ix);
        }
        self.forget_replica(ix, block);
        if self.bad.insert((block, ix)) {
            self.counters.corrupt_found += 1;
        }
        self.recheck(block);
    }

    /// Removes a replica that a node does not have any more.
    pub(super) fn lose_replica(&mut self, ix: NodeIx, block: BlockId) {
        self.nodes.get_mut(ix).deletes.finish(block);
        self.forget_replica(ix, block);
        self.orphans.remove(&(block, ix));
        self.stale.remove(&(block, ix));
        self.future.remove(&(block, ix));
        self.bad.remove(&(block, ix));
        self.recheck(block);
    }

    fn forget_replica(&mut self, ix: NodeIx, block: BlockId) {
        if self.nodes.get_mut(ix).blocks.remove(&block) {
            self.forget_good(ix, block);
        }
        if let Some(on) = self.uncommitted.get_mut(&block) {
            on.retain(|(at, _)| *at != ix);
            if on.is_empty() {
                self.uncommitted.remove(&block);
            }
        }
        self.nodes.get_mut(ix).undrained_blocks.remove(&block);
    }

    /// Removes a replica from `good`, but not from `blocks` of the node.
    pub(super) fn forget_good(&mut self, ix: NodeIx, block: BlockId) {
        if let Some(on) = self.good.get_mut(&block) {
            on.retain(|at| *at != ix);
            if on.is_empty() {
                self.good.remove(&block);
                self.cancel_deletes(block);
            }
        }
    }

    /// Cancels deletions of surplus replicas that were not sent yet. Is called when the last good
    /// replica is lost, so that the surplus replicas are needed.
    fn cancel_deletes(&mut self, block: BlockId) {
        if self.namespace.wanted_replicas(block).is_none() {
            return;
        }
        for ix in 0..self.nodes.len() {
            let node = self.nodes.get_mut(ix);
            if node.deletes.cancel(block) {
                node.blocks.insert(block);
                self.good.entry(block).or_default().push(ix);
            }
        }
    }

    /// Orders the deletion of a good replica that is surplus.
    pub(super) fn order_surplus_delete(&mut self, ix: NodeIx, block: BlockId) {
        let Some(known) = self.namespace.block(block) else { return };
        self.order_delete(ix, block, known.nonce);
        self.nodes.get_mut(ix).deletes.mark_cancellable(block);
    }

    /// Orders the deletion of a replica, which does not count from now on.
    pub(super) fn order_delete(&mut self, ix: NodeIx, block: BlockId, nonce: Nonce) {
        self.forget_replica(ix, block);
        self.bad.remove(&(block, ix));
        self.nodes.get_mut(ix).deletes.add(block, nonce);
    }

    /// Classifies the replicas of a block that were reported before it was added: this NameNode
    /// follows another, whose records arrive later than the reports of DataNodes.
    pub(super) fn block_added(&mut self, block: BlockId) {
        let reported = self.future.range((block, 0)..=(block, NodeIx::MAX));
        let reported: Vec<_> = reported.map(|((_, ix), finalised)| (*ix, *finalised)).collect();
        for (ix, finalised) in reported {
            self.future.remove(&(block, ix));
            match finalised {
                Some((nonce, length)) => self.add_replica(ix, Replica { block, nonce, length }),
                None => self.record_corrupt(ix, block),
            }
        }
    }

    /// Updates the replicas of a block that was committed: those with the committed length become
    /// good, the others damaged.
    pub(super) fn block_committed(&mut self, now: Now, block: BlockId) {
        self.forget_write(block);
        self.not_copied_before.insert(block, now.mono_ms + self.settings.suspect_after_ms);
        let nonce = self.namespace.block(block).map_or(Nonce(0), |known| known.nonce);
        for (ix, length) in self.uncommitted.remove(&block).unwrap_or_default() {
            self.nodes.get_mut(ix).undrained_blocks.remove(&block);
            self.add_replica(ix, Replica { block, nonce, length });
        }
        self.recheck(block);
    }

    /// Orders the deletion of all replicas of a block that was deleted. A follower sends the orders
    /// only when it leads.
    pub(super) fn drop_block(&mut self, block: BlockId, nonce: Nonce) {
        self.forget_write(block);
        self.not_copied_before.remove(&block);
        let copies = self.copies.range((block, 0)..=(block, NodeIx::MAX));
        for target in copies.map(|((_, target), _)| *target).collect::<Vec<_>>() {
            self.drop_copy(block, target);
        }
        let mut on: Vec<NodeIx> = self.holders(block).to_vec();
        on.extend(self.uncommitted.get(&block).into_iter().flatten().map(|(ix, _)| *ix));
        on.extend(self.bad_holders(block));
        for ix in on {
            self.order_delete(ix, block, nonce);
        }
        self.recheck(block);
    }

    /// Updates the queues after a change of the replicas of a block. If the damaged replicas of the
    /// block are replaced, also requests a check of a good replica.
    pub(super) fn recheck(&mut self, block: BlockId) {
        let tally = self.tally(block);
        self.queue.set(block, tally.and_then(Tally::urgency));
        if tally.is_some_and(|tally| tally.live > tally.wanted) {
            self.surplus.insert(block);
        } else {
            self.surplus.remove(&block);
        }
        let holders = self.good.get(&block).into_iter().flatten().copied();
        let uncommitted = self.uncommitted.get(&block).into_iter().flatten().map(|(ix, _)| *ix);
        let enough = tally.is_some_and(Tally::is_drainable);
        for ix in holders.chain(uncommitted) {
            let node = self.nodes.get_mut(ix);
            if node.draining && !enough {
                node.undrained_blocks.insert(block);
            } else {
                node.undrained_blocks.remove(&block);
            }
        }
        if self.are_bad_replaced(block)
            && let Some(ix) = self.holders(block).iter().copied().find(|ix| self.is_confirmed(*ix))
        {
            self.verify_good(ix, block);
        }
    }

    /// Returns whether the damaged replicas of a block can be deleted, once a good replica is
    /// verified: there are enough good replicas, or no other node is available for one.
    fn are_bad_replaced(&self, block: BlockId) -> bool {
        let mut bad = self.bad_holders(block).peekable();
        if bad.peek().is_none() || self.in_safemode() || !self.is_leader {
            return false;
        }
        let Some(tally) = self.tally(block) else { return false };
        let corrupt = bad.filter(|ix| self.nodes.get(*ix).is_staying()).count();
        let possible = (self.nodes.staying_count() - corrupt) as u32;
        tally.confirmed > 0 && tally.confirmed >= tally.wanted.min(possible)
    }

    /// Returns whether the replicas on a node count when other replicas are given up. A node that
    /// has not acknowledged this epoch may still delete replicas that an earlier leader of the group
    /// has ordered it to delete (ADR 0042).
    pub(super) fn is_confirmed(&self, ix: NodeIx) -> bool {
        let node = self.nodes.get(ix);
        let is_current = node.acknowledged == self.namespace.epoch();
        node.is_staying() && node.liveness == Liveness::Live && node.reported && is_current
    }

    /// Orders the deletion of the damaged replicas of a block, if they are replaced. Is called when
    /// a good replica was completely read and verified. Before that they are kept, because the
    /// replicas that count as good may be damaged too.
    pub(super) fn good_verified(&mut self, ix: NodeIx, block: BlockId) {
        let holds = self.nodes.get(ix).blocks.contains(&block) && self.is_confirmed(ix);
        if !holds || !self.are_bad_replaced(block) {
            return;
        }
        let Some(nonce) = self.namespace.block(block).map(|known| known.nonce) else { return };
        for ix in self.bad_holders(block).collect::<Vec<_>>() {
            self.order_delete(ix, block, nonce);
            self.counters.corrupt_replaced += 1;
        }
    }

    /// Returns whether a node has reported a finalised replica of a block. For an uncommitted
    /// block, the replica must have this length.
    pub(super) fn is_reported(&self, block: BlockId, length: u64) -> bool {
        match self.namespace.block(block).and_then(Block::length) {
            Some(_) => self.good.contains_key(&block),
            None => self
                .uncommitted
                .get(&block)
                .is_some_and(|on| on.iter().any(|(_, reported)| *reported == length)),
        }
    }
}
