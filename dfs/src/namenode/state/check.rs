//! Checks the invariants of the state. Used only in tests, because it visits all blocks and nodes.

use super::{
    State,
    nodes::{Liveness, NodeIx, Traffic},
    repair::RunningCopy,
};
use dfs_client::ids::{BlockId, FileId};
use std::collections::{BTreeMap, BTreeSet};

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl State {
    /// Checks all invariants. Returns a description of the first violation.
    pub fn invariants(&self) -> Result<(), String> {
        self.namespace.invariants()?;
        self.check_replicas()?;
        self.check_queues()?;
        self.check_orders()?;
        self.check_leases()
    }

    /// Returns the blocks for which readers get this node as a location.
    #[cfg(test)]
    pub(in crate::namenode) fn located_on(&self, node: dfs_client::ids::NodeUuid) -> Vec<BlockId> {
        let ix = self.nodes.find(node);
        ix.map_or_else(Vec::new, |ix| self.nodes.get(ix).blocks.iter().copied().collect())
    }

    fn check_replicas(&self) -> Result<(), String> {
        let mut seen = 0;
        for (block, on) in &self.good {
            require(!on.is_empty(), || format!("{block} has an entry without good replicas"))?;
            require(self.namespace.wanted_replicas(*block).is_some(), || {
                format!("{block} has good replicas but is not committed")
            })?;
            for ix in on {
                seen += 1;
                let node = self.nodes.get(*ix);
                require(node.blocks.contains(block), || format!("node {ix} does not list {block}"))?;
                require(!node.deletes.contains_block(*block), || {
                    format!("{block} on {ix} is counted but is being deleted")
                })?;
                require(!self.bad.contains(&(*block, *ix)), || format!("{block} on {ix} is good and bad"))?;
                require(!self.copies.contains_key(&(*block, *ix)), || {
                    format!("{block} is being copied to node {ix}, which already has a replica")
                })?;
            }
        }
        let on_nodes: usize = self.nodes.iter().map(|(_, node)| node.blocks.len()).sum();
        require(on_nodes == seen, || format!("the nodes list {on_nodes} replicas, the blocks {seen}"))?;
        for (block, on) in &self.uncommitted {
            let open = self.namespace.block(*block).is_some_and(|known| known.length().is_none());
            require(open && !on.is_empty(), || format!("{block} is uncommitted on {on:?}, open: {open}"))?;
        }
        for (block, ix) in &self.bad {
            require(self.namespace.block(*block).is_some(), || {
                format!("the bad replica on node {ix} is of {block}, which does not exist")
            })?;
        }
        for (block, ix) in self.orphans.keys() {
            require(self.namespace.block(*block).is_none(), || {
                format!("{block} exists, but its replica on node {ix} is listed as an orphan")
            })?;
        }
        for ((block, ix), nonce) in &self.stale {
            let known = self.namespace.block(*block);
            require(known.is_none_or(|known| known.nonce != *nonce), || {
                format!("the replica of {block} on node {ix} has the right nonce but is listed as stale")
            })?;
            require(!self.nodes.get(*ix).blocks.contains(block), || {
                format!("{block} on {ix} is stale but is counted")
            })?;
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), String> {
        let mut queued = 0;
        let mut surplus = BTreeSet::new();
        let mut left: BTreeMap<NodeIx, BTreeSet<BlockId>> = BTreeMap::new();
        for (block, on) in &self.good {
            let Some(tally) = self.tally(*block) else { continue };
            let (is, should) = (self.queue.get(*block), tally.urgency());
            require(is == should, || format!("{block} is queued {is:?}, should be {should:?}"))?;
            queued += usize::from(should.is_some());
            if tally.live > tally.wanted {
                surplus.insert(*block);
            }
            for ix in on.iter().filter(|ix| self.nodes.get(**ix).draining) {
                if !tally.is_drainable() {
                    left.entry(*ix).or_default().insert(*block);
                }
            }
        }
        for (block, on) in &self.uncommitted {
            for (ix, _) in on.iter().filter(|(ix, _)| self.nodes.get(*ix).draining) {
                left.entry(*ix).or_default().insert(*block);
            }
        }
        require(queued == self.queue.len(), || format!("{} queued, should be {queued}", self.queue.len()))?;
        require(surplus == self.surplus, || format!("surplus {:?}, should be {surplus:?}", self.surplus))?;
        for (ix, node) in self.nodes.iter() {
            let should = left.remove(&ix).unwrap_or_default();
            require(node.undrained_blocks == should, || {
                format!("undrained blocks of node {ix} are {:?}, should be {should:?}", node.undrained_blocks)
            })?;
        }
        Ok(())
    }

    fn check_orders(&self) -> Result<(), String> {
        let staying = self.nodes.iter().filter(|(_, node)| node.is_staying()).count();
        require(staying == self.nodes.staying_count(), || {
            format!("{staying} nodes are staying, the stored count is {}", self.nodes.staying_count())
        })?;
        let all = Self::traffic(self.copies.values());
        require(all == self.copying, || format!("copying {:?}, should be {all:?}", self.copying))?;
        require(all.is_within(self.settings.copies_max), || "too many copies".into())?;
        for (ix, node) in self.nodes.iter() {
            let sending = Self::traffic(self.copies.values().filter(|copy| copy.source == ix));
            let to_here = self.copies.iter().filter(|((_, target), _)| *target == ix);
            let receiving = Self::traffic(to_here.map(|(_, copy)| copy));
            let writes = self.writing.values().flatten().filter(|at| **at == ix).count() as u32;
            let is = (node.sending, node.receiving, node.writes);
            require(is == (sending, receiving, writes), || format!("node {ix} counts {is:?}"))?;
            let max = self.settings.copies_per_node_max;
            require(sending.is_within(max) && receiving.is_within(max), || {
                format!("node {ix} has too many copies: {is:?}")
            })?;
            let idle = node.blocks.is_empty() && node.outbox.is_empty() && is == Default::default();
            require(node.liveness != Liveness::Dead || idle, || {
                format!("dead node {ix} still has replicas, commands or copies")
            })?;
        }
        for block in self.writing.keys().chain(self.copies.keys().map(|(block, _)| block)) {
            require(self.namespace.block(*block).is_some(), || {
                format!("{block} is being written or copied but is unknown")
            })?;
        }
        Ok(())
    }

    fn traffic<'a>(copies: impl Iterator<Item = &'a RunningCopy>) -> Traffic {
        let mut traffic = Traffic::default();
        copies.for_each(|copy| traffic.add(copy.share));
        traffic
    }

    fn check_leases(&self) -> Result<(), String> {
        let mut should: BTreeMap<&str, BTreeSet<FileId>> = BTreeMap::new();
        for (file, open) in self.namespace.open_files() {
            should.entry(&open.holder).or_default().insert(file);
        }
        let is: BTreeMap<&str, BTreeSet<FileId>> =
            self.leases.iter().map(|(holder, lease)| (&**holder, lease.files.clone())).collect();
        require(is == should, || format!("leases {is:?}, should be {should:?}"))
    }
}
