//! Drains: all blocks of a node are copied to other nodes before the node is stopped. A node is
//! drained when each of its blocks has the wanted number of replicas on staying nodes with
//! heartbeats. Staying nodes are those that are neither dead nor draining. A drain is refused,
//! without any change, if too few nodes would stay. If other nodes die later, the drain reports that
//! it is stuck.

use super::{
    Event, State,
    nodes::{Liveness, NodeIx},
};
use crate::namenode::{
    namespace::Edit,
    view::{DrainBlock, DrainStatus, NodeState},
};
use dfs_client::{
    error::{Error, Kind},
    ids::BlockId,
};

/// Maximum number of example blocks in a reply.
const EXAMPLES_MAX: usize = 5;

impl State {
    /// Returns the edits that start or cancel a drain; none if nothing changes.
    pub(super) fn plan_drain(&self, node: &str, cancel: bool) -> Result<Vec<Edit>, Error> {
        let draining = self.namespace.is_draining(node);
        if self.nodes.find_name(node).is_none() && !(cancel && draining) {
            return Err(unknown_node(node));
        }
        if draining != cancel {
            return Ok(Vec::new());
        }
        if !cancel {
            self.check_drain(node)?;
        }
        Ok(vec![Edit::DrainSet { node: node.to_owned(), on: !cancel }])
    }

    /// Refuses a drain that could never be completed, or that would prevent the completion of
    /// another drain.
    fn check_drain(&self, name: &str) -> Result<(), Error> {
        let Some((ix, node)) = self.nodes.iter().find(|(_, node)| node.registration.node == name) else {
            return Ok(());
        };
        if node.liveness == Liveness::Dead {
            let why = format!("{name} is dead, so its replicas cannot be copied: start it again first");
            return Err(Error::new(Kind::Refused, why));
        }
        let staying = self.nodes.staying_count().saturating_sub(usize::from(node.is_staying())) as u32;
        let leaving = self.nodes.iter().filter(|(other, node)| *other == ix || node.draining);
        let blocks = leaving.flat_map(|(other, node)| node.blocks.iter().map(move |block| (other, *block)));
        let mut lacking = blocks.filter_map(|(other, block)| {
            let wanted = self.namespace.wanted_replicas(block)?;
            (wanted > staying).then_some((other, block, wanted))
        });
        let Some((other, block, wanted)) = lacking.next() else { return Ok(()) };
        let file = self.namespace.block(block).and_then(|info| self.namespace.path_of(info.file));
        let file = file.map_or_else(String::new, |path| format!(" of {path}"));
        let location: String = if other == ix {
            ",".into()
        } else {
            format!(" on {} (also draining),", self.nodes.get(other).registration.node)
        };
        Err(Error::new(
            Kind::Refused,
            format!(
                "{name} cannot be drained, because too few nodes would remain: {staying} for {block}{file}{location} which needs \
                 {wanted} replicas; start more nodes, reduce the replication with `mrctl fs setrep`, or end another drain with \
                 `mrctl drain NODE --cancel`"
            ),
        ))
    }

    /// Updates the node after its drain was started or cancelled.
    pub(super) fn drain_changed(&mut self, name: &str) {
        let Some(ix) = self.nodes.find_name(name) else { return };
        let draining = self.namespace.is_draining(name);
        let node = self.nodes.get_mut(ix);
        let changed = std::mem::replace(&mut node.draining, draining) != draining;
        node.undrained_blocks.clear();
        let blocks: Vec<BlockId> = node.blocks.iter().copied().collect();
        self.nodes.recount();
        if changed {
            self.note(Event::Drain(name.to_owned(), draining));
        }
        for block in blocks {
            self.recheck(block);
        }
        self.nodes_changed();
    }

    /// Returns the progress of a drain. A node that has not registered since the start of the
    /// NameNode counts as dead; its drain can be cancelled.
    pub fn drain_status(&self, node: &str) -> DrainStatus {
        let staying = self.nodes.staying_count() as u32;
        let Some(ix) = self.nodes.find_name(node) else {
            return DrainStatus {
                state: NodeState::Dead,
                blocks_left: 0,
                stuck: false,
                staying,
                examples: Vec::new(),
            };
        };
        let node = self.nodes.get(ix);
        let stuck = !node.undrained_blocks.is_empty()
            && node.undrained_blocks.iter().all(|block| self.is_stuck(*block));
        let examples =
            node.undrained_blocks.iter().take(EXAMPLES_MAX).filter_map(|block| self.drain_block(*block));
        DrainStatus {
            state: node.state(),
            blocks_left: node.undrained_blocks.len() as u64,
            stuck,
            staying,
            examples: examples.collect(),
        }
    }

    /// Returns whether the block has too few replicas although every staying node has one.
    fn is_stuck(&self, block: BlockId) -> bool {
        let staying = self.nodes.staying_count() as u32;
        self.tally(block).is_some_and(|tally| tally.wanted > staying && tally.confirmed >= staying)
    }

    fn drain_block(&self, block: BlockId) -> Option<DrainBlock> {
        let file = self.namespace.block(block)?.file;
        let path = self.namespace.path_of(file)?;
        let staying = self.nodes.staying_count() as u32;
        let Some(tally) = self.tally(block) else {
            let why = "the block is being written".into();
            return Some(DrainBlock { block, path, wanted: 0, have: 0, why });
        };
        let copying = self.copies.range((block, 0)..=(block, NodeIx::MAX)).next().is_some();
        let suspect = self
            .holders(block)
            .iter()
            .map(|ix| self.nodes.get(*ix))
            .find(|node| !node.draining && node.liveness == Liveness::Suspect)
            // Otherwise copies are missing, whether the node comes back or not.
            .filter(|_| tally.live >= tally.wanted);
        let why = match suspect {
            _ if copying => "a copy is running".into(),
            _ if tally.wanted > staying => format!("too few DataNodes remain: {staying}"),
            Some(node) => format!("{}, which has a replica, sends no heartbeats", node.registration.node),
            None if self.in_safemode() => "safemode is on: no copies are made".into(),
            None => "the copy waits for a DataNode with free space and a free slot for a copy".into(),
        };
        Some(DrainBlock { block, path, wanted: tally.wanted, have: tally.confirmed, why })
    }
}

fn unknown_node(node: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no DataNode named {node:?}: `mrctl fs report` lists them"))
}
