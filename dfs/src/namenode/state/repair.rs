//! Orders copies of blocks with too few replicas, the most endangered first, and deletions of
//! surplus replicas.
//!
//! The work is incremental: `recheck` maintains the queues, and each pass processes a limited
//! number of entries and continues where the last pass stopped. After a start, a copy waits until
//! the time `dead_after` has passed if the missing replica may be on a DataNode that has not
//! registered yet. Copies that replace corrupt, draining or lost replicas, or that a higher
//! replication requires, do not wait.

use super::{
    State,
    nodes::{Liveness, Node, NodeIx, SLOT_BYTES},
    replicas::Tally,
};
use crate::namenode::{
    namespace::Block,
    op::{Command, Now},
};
use dfs_client::ids::BlockId;
use placement::{Candidate, PlacementRequest, place};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

/// After a start, the copy of a block with only one replica waits this many times `suspect_after`
/// for DataNodes that have not registered yet, if that is shorter than `dead_after`.
const ENDANGERED_WAIT_FACTOR: u64 = 10;
/// Maximum number of blocks that are processed per pass.
const PASS_BLOCKS_MAX: usize = 1024;
/// Minimum capacity in bytes that a copy uses of a slot, because even a small copy needs syncs and
/// a connection.
const SHARE_BYTES_MIN: u64 = 64 << 10;

/// A copy that was ordered and that its target has not reported yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunningCopy {
    pub(super) source: NodeIx,
    /// When the copy times out, in monotonic time.
    pub(super) until_ms: u64,
    /// The capacity in bytes that the copy uses of a slot.
    pub(super) share: u64,
}

/// Blocks with too few replicas, the most endangered first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Queue {
    /// The blocks with their urgency, the most urgent (lowest number) first.
    order: BTreeSet<(u8, BlockId)>,
    /// The urgency of each block in `order`.
    urgency: BTreeMap<BlockId, u8>,
    /// The last entry that the previous pass processed.
    after: Option<(u8, BlockId)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn get(&self, block: BlockId) -> Option<u8> {
        self.urgency.get(&block).copied()
    }

    pub(super) fn set(&mut self, block: BlockId, urgency: Option<u8>) {
        let before = match urgency {
            Some(urgency) => self.urgency.insert(block, urgency),
            None => self.urgency.remove(&block),
        };
        if before != urgency {
            before.map(|before| self.order.remove(&(before, block)));
            urgency.map(|urgency| self.order.insert((urgency, block)));
        }
    }

    /// Returns the next blocks to process. Continues with the most endangered block after the end
    /// of the queue.
    fn next_pass(&mut self) -> Vec<BlockId> {
        let from = self.after.map_or(Unbounded, Excluded);
        let pass: Vec<_> = self.order.range((from, Unbounded)).take(PASS_BLOCKS_MAX).copied().collect();
        self.after = if pass.len() == PASS_BLOCKS_MAX { pass.last().copied() } else { None };
        pass.into_iter().map(|(_, block)| block).collect()
    }

    /// Makes the next pass start with the most endangered block.
    pub(super) fn rewind(&mut self) {
        self.after = None;
    }
}

impl State {
    /// Orders as many copies as the limits allow.
    pub(super) fn repair(&mut self, now: Now) {
        let all = self.settings.copies_max;
        if self.queue.len() == 0 || !self.copying.has_slot(all) {
            return;
        }
        if self.has_run_for(now, self.settings.dead_after_ms) {
            self.known_missing.clear();
        }
        for block in self.queue.next_pass() {
            if !self.copying.has_slot(all) {
                self.queue.rewind();
                return;
            }
            if !self.not_copied_before.contains_key(&block) {
                self.copy_block(now, block);
            }
        }
    }

    /// Returns whether the NameNode has been running for `ms` milliseconds.
    fn has_run_for(&self, now: Now, ms: u64) -> bool {
        now.mono_ms.saturating_sub(self.started.mono_ms) >= ms
    }

    /// Records that replicas of a block are known to be missing: no DataNode that registers later
    /// has them.
    pub(super) fn add_known_missing(&mut self, block: BlockId, replicas: u32) {
        let in_grace = !self.is_start_grace_over();
        if in_grace && replicas > 0 && block < self.first_block {
            *self.known_missing.entry(block).or_default() += replicas;
        }
    }

    /// Returns whether, at the last tick, the NameNode had been running for `dead_after`. A DataNode
    /// that has not registered by then is considered dead.
    pub(super) fn is_start_grace_over(&self) -> bool {
        self.last_tick_ms.saturating_sub(self.started.mono_ms) >= self.settings.dead_after_ms
    }

    /// Returns how many of the `missing` replicas to create now. Soon after a start, the
    /// others are not created yet, because they may be on a DataNode that has not registered yet. A
    /// block with only one replica waits for a shorter time.
    fn copies_due(&self, now: Now, block: BlockId, tally: Tally, missing: u32) -> u32 {
        let last_one = tally.live + tally.draining == 1;
        let short_grace_ms =
            self.settings.dead_after_ms.min(ENDANGERED_WAIT_FACTOR * self.settings.suspect_after_ms);
        let grace_ms = if last_one { short_grace_ms } else { self.settings.dead_after_ms };
        if block >= self.first_block || self.has_run_for(now, grace_ms) {
            return missing;
        }
        let bad = self.bad_holders(block).count() as u32;
        missing.min(bad + tally.draining + self.known_missing.get(&block).copied().unwrap_or(0))
    }

    /// Orders more copies if copies have ended since the last pass, so that they do not wait for
    /// the next tick.
    pub(super) fn repair_after_copies(&mut self, now: Now) {
        if std::mem::take(&mut self.slot_freed) && !self.in_safemode() {
            self.repair(now);
        }
    }

    /// Delays copies of the blocks of a node that stops, because it may only be restarting. Only
    /// blocks that still have two other replicas are delayed, and only for a short time.
    pub(super) fn wait_for_return(&mut self, now: Now, ix: NodeIx) {
        let until_ms = now.mono_ms + self.settings.suspect_after_ms;
        let blocks: Vec<BlockId> = self.nodes.get(ix).blocks.iter().copied().collect();
        for block in blocks {
            if self.holders(block).len() > 2 {
                self.not_copied_before.insert(block, until_ms);
            }
        }
    }

    fn copy_block(&mut self, now: Now, block: BlockId) {
        let known = self.namespace.block(block);
        let (Some(tally), Some(nonce), Some(length)) =
            (self.tally(block), known.map(|known| known.nonce), known.and_then(Block::length))
        else {
            return;
        };
        // Check first whether a node can send the copy. While all nodes are busy, most entries of a
        // long queue end here.
        if self.copy_source(block).is_none() {
            return;
        }
        let pending: Vec<NodeIx> =
            self.copies.range((block, 0)..=(block, NodeIx::MAX)).map(|((_, target), _)| *target).collect();
        let short = self.copies_due(now, block, tally, tally.wanted.saturating_sub(tally.live)) as usize;
        let short = short.saturating_sub(pending.len());
        if short == 0 || tally.live as usize + pending.len() >= self.nodes.staying_count() {
            return;
        }
        let share = length.clamp(SHARE_BYTES_MIN, SLOT_BYTES);
        let targets = self.copy_targets(block, length, short, &pending);
        for target in targets {
            let Some(source) = self.copy_source(block) else { return };
            if !self.copying.has_slot(self.settings.copies_max) {
                return;
            }
            let until_ms = now.mono_ms + self.settings.copy_timeout_ms;
            self.copies.insert((block, target), RunningCopy { source, until_ms, share });
            self.copying.add(share);
            let uuid = self.nodes.get(target).registration.uuid;
            self.nodes.get_mut(target).receiving.add(share);
            let node = self.nodes.get_mut(source);
            node.sending.add(share);
            node.outbox.push_back(Command::Copy { block, nonce, length, targets: vec![uuid] });
        }
    }

    /// Returns up to `count` nodes for new replicas: nodes with free space, a free slot, and no
    /// replica of this block. Nodes whose last copy timed out are used only if there are too few
    /// others.
    fn copy_targets(&self, block: BlockId, length: u64, count: usize, pending: &[NodeIx]) -> Vec<NodeIx> {
        let reached = self.place_copies(block, length, count, pending, |node| !node.missed_copy);
        if reached.len() == count || !self.nodes.iter().any(|(_, node)| node.missed_copy) {
            return reached;
        }
        self.place_copies(block, length, count, pending, |_| true)
    }

    fn place_copies(
        &self,
        block: BlockId,
        length: u64,
        count: usize,
        pending: &[NodeIx],
        allowed: impl Fn(&Node) -> bool,
    ) -> Vec<NodeIx> {
        let slots = self.settings.copies_per_node_max;
        let stale = self.stale.range((block, 0)..=(block, NodeIx::MAX)).map(|((_, ix), _)| *ix);
        let corrupt: Vec<NodeIx> = self.bad_holders(block).chain(stale).collect();
        let candidates: Vec<Candidate<'_>> = self
            .nodes
            .iter()
            .map(|(ix, node)| {
                let mut candidate = candidate(node, length);
                candidate.usable &= allowed(node)
                    && node.receiving.has_slot(slots)
                    && !corrupt.contains(&ix)
                    && !node.deletes.contains_block(block);
                candidate
            })
            .collect();
        let staying = self.holders(block).iter().filter(|ix| self.nodes.get(**ix).is_staying());
        let existing: Vec<usize> = staying.chain(pending).map(|ix| *ix as usize).collect();
        let placing = PlacementRequest {
            count,
            existing: &existing,
            block_bytes: length,
            seed: block.0,
            ..PlacementRequest::default()
        };
        place(&candidates, &placing).into_iter().map(|index| index as NodeIx).collect()
    }

    /// Returns the live node with a good replica of the block that sends the fewest copies.
    /// Draining nodes are included.
    fn copy_source(&self, block: BlockId) -> Option<NodeIx> {
        let slots = self.settings.copies_per_node_max;
        let able = |ix: &NodeIx| {
            let node = self.nodes.get(*ix);
            node.liveness == Liveness::Live && node.sending.has_slot(slots)
        };
        let holders = self.holders(block).iter().copied();
        holders.filter(able).min_by_key(|ix| (self.nodes.get(*ix).sending.share, *ix))
    }

    /// Removes a copy that has ended or is cancelled.
    pub(super) fn drop_copy(&mut self, block: BlockId, target: NodeIx) {
        let Some(copy) = self.copies.remove(&(block, target)) else { return };
        self.copying.remove(copy.share);
        let uuid = self.nodes.get(target).registration.uuid;
        self.nodes.get_mut(target).receiving.remove(copy.share);
        let node = self.nodes.get_mut(copy.source);
        node.sending.remove(copy.share);
        // After a small copy, order more only if at most half of the slots are used, so that small
        // copies are ordered in groups.
        let few = node.sending.uses_at_most_half_of(self.settings.copies_per_node_max);
        self.slot_freed |= few || copy.share == SLOT_BYTES;
        node.outbox.retain(|command| {
            !matches!(command, Command::Copy { block: b, targets, .. } if *b == block && targets[..] == [uuid])
        });
    }

    /// Cancels copies that were not reported in time. Their blocks stay in the queue.
    pub(super) fn drop_late_copies(&mut self, now: Now) {
        let late = self.copies.iter().filter(|(_, copy)| copy.until_ms <= now.mono_ms);
        for (block, target) in late.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.nodes.get_mut(target).missed_copy = true;
            self.drop_copy(block, target);
        }
    }

    /// Orders the deletion of replicas beyond the wanted number. Only confirmed replicas count as
    /// kept.
    pub(super) fn delete_surplus(&mut self) {
        let from = (Excluded(self.surplus_after), Unbounded);
        let pass: Vec<BlockId> = self.surplus.range(from).take(PASS_BLOCKS_MAX).copied().collect();
        self.surplus_after =
            if pass.len() == PASS_BLOCKS_MAX { pass[PASS_BLOCKS_MAX - 1] } else { BlockId(0) };
        for block in pass {
            let Some(tally) = self.tally(block) else { continue };
            let confirmed = |ix: &NodeIx| self.is_confirmed(*ix);
            let mut on: Vec<NodeIx> = self.holders(block).iter().copied().filter(confirmed).collect();
            while on.len() > tally.wanted as usize {
                let Some(victim) = self.least_useful(&on) else { break };
                on.retain(|ix| *ix != victim);
                self.order_surplus_delete(victim, block);
            }
            self.recheck(block);
        }
    }

    /// Returns the node whose replica is to be deleted: the one whose loss leaves replicas in the
    /// most racks and, among these, the one with the least free space.
    fn least_useful(&self, on: &[NodeIx]) -> Option<NodeIx> {
        let racks_without = |gone: NodeIx| {
            let rest = on.iter().filter(|ix| **ix != gone);
            rest.map(|ix| self.nodes.get(*ix).registration.rack.as_str()).collect::<BTreeSet<_>>().len()
        };
        on.iter()
            .copied()
            .max_by_key(|ix| (racks_without(*ix), u64::MAX - self.nodes.get(*ix).usage().free, *ix))
    }

    /// Orders the deletion of replicas of deleted blocks, once the nodes have had time to register
    /// after safemode.
    pub(super) fn delete_orphans(&mut self, now: Now) {
        if !self.safemode.has_been_off_for(now, self.settings.orphan_grace_ms) {
            return;
        }
        while let Some(((block, ix), nonce)) = self.orphans.pop_first() {
            self.nodes.get_mut(ix).deletes.add(block, nonce);
        }
        self.delete_stale();
    }

    /// Orders the deletion of stale replicas, which have the ID of a block but another nonce (see
    /// `namespace/start.rs`), but only if an operator has declared this namespace the valid one,
    /// and the block with the same ID has all of its replicas.
    fn delete_stale(&mut self) {
        if !self.namespace.is_accepted() {
            return;
        }
        let settled = |block: BlockId| match self.namespace.block(block) {
            Some(_) => self.tally(block).is_some_and(|tally| tally.confirmed >= tally.wanted),
            None => true,
        };
        let going: Vec<(BlockId, NodeIx)> =
            self.stale.keys().copied().filter(|(block, _)| settled(*block)).take(PASS_BLOCKS_MAX).collect();
        for (block, ix) in going {
            if let Some(nonce) = self.stale.remove(&(block, ix)) {
                self.nodes.get_mut(ix).deletes.add(block, nonce);
            }
        }
    }
}

/// Converts a node to a candidate for the placement of a replica. The space for running writes and
/// copies is subtracted from its free space.
pub(super) fn candidate(node: &Node, block_bytes: u64) -> Candidate<'_> {
    let load = node.writes + node.receiving.slots();
    Candidate {
        name: &node.registration.node,
        host: &node.registration.host,
        rack: &node.registration.rack,
        free: node.usage().free.saturating_sub(u64::from(load) * block_bytes),
        load,
        usable: node.liveness == Liveness::Live && !node.draining,
    }
}
