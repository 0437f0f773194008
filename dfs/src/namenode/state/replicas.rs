//! Who has what: every replica is good, unsettled (its block is not committed yet), damaged, an orphan, stale (its
//! nonce is not its block's), or of a block that this NameNode never gave out (it runs from an older copy of its
//! folder). Whatever changes for a block, [`State::recheck`] puts it in the right queues.
//!
//! Invariants: `good` and each node's `blocks` are two views of the same; a replica that a node was told to
//! delete is in none of the maps; a damaged one never counts.

use super::{State, nodes::Ix};
use crate::{
    ids::{BlockId, Nonce},
    namenode::{
        namespace::Block,
        op::{Now, Replica},
    },
};

/// How a committed block is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) wanted: u32,
    /// Good, on nodes that stay.
    pub(super) live: u32,
    /// Of these, on nodes whose full report is in. Only they count where something is to be given up for them:
    /// a node that has just started again may have lost what it had.
    pub(super) sure: u32,
    /// Good, on nodes that leave.
    pub(super) draining: u32,
}

impl Tally {
    /// How much a block is in danger: the lower the more. None if it is not, or if nothing is left to copy.
    pub(super) fn urgency(self) -> Option<u8> {
        match self.live + self.draining {
            0 => None,
            _ if self.live >= self.wanted => None,
            1 => Some(0),
            _ => Some(1 + (self.live * 100 / self.wanted) as u8),
        }
    }

    /// Whether a draining node may go as far as this block is concerned: as many replicas as are wanted are on
    /// nodes that stay.
    pub(super) fn is_drainable(self) -> bool {
        self.sure >= self.wanted
    }
}

impl State {
    /// How a block is doing; None if it is not committed, or no more.
    pub(super) fn tally(&self, block: BlockId) -> Option<Tally> {
        let wanted = self.namespace.wanted(block)?;
        let holders = self.holders(block);
        let mut tally = Tally { wanted, live: 0, sure: 0, draining: 0 };
        for node in holders.iter().map(|ix| self.nodes.get(*ix)) {
            tally.draining += u32::from(node.draining);
            tally.live += u32::from(!node.draining);
            tally.sure += u32::from(!node.draining && node.reported);
        }
        Some(tally)
    }

    /// The nodes with a good replica.
    pub(super) fn holders(&self, block: BlockId) -> &[Ix] {
        self.good.get(&block).map_or(&[], |on| on.as_slice())
    }

    /// Nodes with a damaged replica.
    pub(super) fn bad_holders(&self, block: BlockId) -> impl Iterator<Item = Ix> {
        self.bad.range((block, 0)..=(block, Ix::MAX)).map(|(_, ix)| *ix)
    }

    /// A node has finished a replica.
    pub(super) fn received_replica(&mut self, ix: Ix, ordered_deletes: Replica) {
        if !self.nodes.get(ix).deletes.contains(ordered_deletes.block, ordered_deletes.nonce) {
            self.bad.remove(&(ordered_deletes.block, ix));
            self.add_replica(ix, ordered_deletes);
        }
    }

    /// A node's full report names a replica. One known to be damaged stays so.
    pub(super) fn reported_replica(&mut self, ix: Ix, ordered_deletes: Replica) {
        let deleting = self.nodes.get(ix).deletes.contains(ordered_deletes.block, ordered_deletes.nonce);
        if !self.bad.contains(&(ordered_deletes.block, ix)) && !deleting {
            self.add_replica(ix, ordered_deletes);
        }
    }

    fn add_replica(&mut self, ix: Ix, Replica { block, nonce, length }: Replica) {
        self.stale.remove(&(block, ix));
        match self.namespace.block(block) {
            None if self.namespace.is_future(block) => drop(self.future.insert((block, ix))),
            None => drop(self.orphans.insert((block, ix), nonce)),
            Some(known) if known.nonce != nonce => self.record_stale(ix, block, nonce),
            Some(known) => match known.length() {
                None => {
                    let on = self.unsettled.entry(block).or_default();
                    on.retain(|(at, _)| *at != ix);
                    on.push((ix, length));
                    self.recheck(block);
                }
                Some(right) if right == length => self.add_good(ix, block),
                Some(_) => self.record_corrupt(ix, block),
            },
        }
    }

    fn add_good(&mut self, ix: Ix, block: BlockId) {
        if self.copies.contains_key(&(block, ix)) {
            self.drop_copy(block, ix);
            self.counters.copies_done += 1;
            self.nodes.get_mut(ix).missed_copy = false;
        }
        if self.nodes.get_mut(ix).blocks.insert(block) {
            self.good.entry(block).or_default().push(ix);
        }
        self.recheck(block);
    }

    /// A replica has the id of a known block and holds other bytes: it does not count. It may be all that is left of
    /// another history, so it is not deleted until somebody has decided (`delete_stale`).
    fn record_stale(&mut self, ix: Ix, block: BlockId, nonce: Nonce) {
        if self.copies.contains_key(&(block, ix)) {
            self.drop_copy(block, ix);
        }
        self.forget_replica(ix, block);
        self.stale.insert((block, ix), nonce);
        self.recheck(block);
    }

    /// A replica is damaged: it does not count, and is deleted once it is replaced.
    pub(super) fn record_corrupt(&mut self, ix: Ix, block: BlockId) {
        if self.nodes.get(ix).deletes.contains_block(block) {
            return;
        }
        if self.namespace.block(block).is_none() {
            // A quarantined replica is deleted whatever its nonce.
            self.add_replica(ix, Replica { block, nonce: Nonce(0), length: 0 });
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

    /// A node has a replica no more.
    pub(super) fn lose_replica(&mut self, ix: Ix, block: BlockId) {
        self.nodes.get_mut(ix).deletes.done(block);
        self.forget_replica(ix, block);
        self.orphans.remove(&(block, ix));
        self.stale.remove(&(block, ix));
        for set in [&mut self.bad, &mut self.future] {
            set.remove(&(block, ix));
        }
        self.recheck(block);
    }

    fn forget_replica(&mut self, ix: Ix, block: BlockId) {
        if self.nodes.get_mut(ix).blocks.remove(&block) {
            self.forget_good(ix, block);
        }
        if let Some(on) = self.unsettled.get_mut(&block) {
            on.retain(|(at, _)| *at != ix);
            if on.is_empty() {
                self.unsettled.remove(&block);
            }
        }
        self.nodes.get_mut(ix).left.remove(&block);
    }

    /// The block's side of it only.
    pub(super) fn forget_good(&mut self, ix: Ix, block: BlockId) {
        if let Some(on) = self.good.get_mut(&block) {
            on.retain(|at| *at != ix);
            if on.is_empty() {
                self.good.remove(&block);
                self.cancel_deletes(block);
            }
        }
    }

    /// The last good replica is gone: those that were too many, and that nobody was told to delete yet, are
    /// needed after all.
    fn cancel_deletes(&mut self, block: BlockId) {
        if self.namespace.wanted(block).is_none() {
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

    /// Tells a node to delete a good replica that is one too many.
    pub(super) fn order_thinning(&mut self, ix: Ix, block: BlockId) {
        let Some(known) = self.namespace.block(block) else { return };
        self.order_delete(ix, block, known.nonce);
        self.nodes.get_mut(ix).deletes.mark_cancellable(block);
    }

    /// Tells a node to delete its replica, which counts no more from now on.
    pub(super) fn order_delete(&mut self, ix: Ix, block: BlockId, nonce: Nonce) {
        self.forget_replica(ix, block);
        self.bad.remove(&(block, ix));
        self.nodes.get_mut(ix).deletes.add(block, nonce);
    }

    /// A block got its length: its replicas prove good or damaged.
    pub(super) fn settle(&mut self, now: Now, block: BlockId) {
        self.forget_write(block);
        self.fresh.insert(block, now.mono_ms + self.settings.suspect_after_ms);
        let nonce = self.namespace.block(block).map_or(Nonce(0), |known| known.nonce);
        for (ix, length) in self.unsettled.remove(&block).unwrap_or_default() {
            self.nodes.get_mut(ix).left.remove(&block);
            self.add_replica(ix, Replica { block, nonce, length });
        }
        self.recheck(block);
    }

    /// A block is no more: so shall be its replicas.
    pub(super) fn drop_block(&mut self, block: BlockId, nonce: Nonce) {
        self.forget_write(block);
        self.fresh.remove(&block);
        let copies = self.copies.range((block, 0)..=(block, Ix::MAX));
        for target in copies.map(|((_, target), _)| *target).collect::<Vec<_>>() {
            self.drop_copy(block, target);
        }
        let mut on: Vec<Ix> = self.holders(block).to_vec();
        on.extend(self.unsettled.get(&block).into_iter().flatten().map(|(ix, _)| *ix));
        on.extend(self.bad_holders(block));
        for ix in on {
            self.order_delete(ix, block, nonce);
        }
        self.recheck(block);
    }

    /// Puts a block into the queues it belongs in, and out of the others.
    pub(super) fn recheck(&mut self, block: BlockId) {
        let tally = self.tally(block);
        self.queue.set(block, tally.and_then(Tally::urgency));
        if tally.is_some_and(|tally| tally.live > tally.wanted) {
            self.surplus.insert(block);
        } else {
            self.surplus.remove(&block);
        }
        let holders = self.good.get(&block).into_iter().flatten().copied();
        let unsettled = self.unsettled.get(&block).into_iter().flatten().map(|(ix, _)| *ix);
        let enough = tally.is_some_and(Tally::is_drainable);
        for ix in holders.chain(unsettled) {
            let node = self.nodes.get_mut(ix);
            if node.draining && !enough {
                node.left.insert(block);
            } else {
                node.left.remove(&block);
            }
        }
        if let Some(tally) = tally {
            self.clear_bad(block, tally);
        }
    }

    /// Damaged replicas go when good ones have taken their place, or when that is possible only in the very
    /// place they take up.
    fn clear_bad(&mut self, block: BlockId, tally: Tally) {
        let bad: Vec<Ix> = self.bad_holders(block).collect();
        if bad.is_empty() || self.safemode.is_on() || tally.sure == 0 {
            return;
        }
        let corrupt = bad.iter().filter(|ix| self.nodes.get(**ix).is_staying()).count();
        let possible = (self.nodes.staying() - corrupt) as u32;
        if tally.sure < tally.wanted.min(possible) {
            return;
        }
        let Some(known) = self.namespace.block(block) else { return };
        for ix in bad {
            self.order_delete(ix, block, known.nonce);
            self.counters.corrupt_replaced += 1;
        }
    }

    /// Whether a block has a finished replica on some node: of this length, if it is given.
    pub(super) fn is_reported(&self, block: BlockId, length: u64) -> bool {
        match self.namespace.block(block).and_then(Block::length) {
            Some(_) => self.good.contains_key(&block),
            None => self
                .unsettled
                .get(&block)
                .is_some_and(|on| on.iter().any(|(_, ordered_deletes)| *ordered_deletes == length)),
        }
    }
}
