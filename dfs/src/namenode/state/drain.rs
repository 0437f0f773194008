//! Draining: a node is drained of need before it leaves. It is drained when each of its blocks has all the replicas
//! it wants on nodes that stay. A drain after which too few would stay is refused and leaves no mark; should others
//! die later, it says that it is stuck.

use super::{
    Event, State,
    nodes::{Ix, Liveness},
};
use crate::{
    error::{Error, Kind},
    ids::BlockId,
    namenode::{
        namespace::Edit,
        view::{DrainBlock, DrainStatus, NodeState},
    },
};

/// Blocks named in one answer.
const EXAMPLES_MAX: usize = 5;

impl State {
    /// The edit for Drain, if it changes anything.
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

    /// Refuses a drain that could not come to an end, or that would undo another's.
    fn check_drain(&self, name: &str) -> Result<(), Error> {
        let Some((ix, node)) = self.nodes.iter().find(|(_, node)| node.who.node == name) else {
            return Ok(());
        };
        if node.liveness == Liveness::Dead {
            let why = format!("{name} is dead: it holds nothing that could be copied; start it again first");
            return Err(Error::new(Kind::Refused, why));
        }
        let staying = self.nodes.staying().saturating_sub(usize::from(node.is_staying())) as u32;
        let leaving = self.nodes.iter().filter(|(other, node)| *other == ix || node.draining);
        let blocks = leaving.flat_map(|(other, node)| node.blocks.iter().map(move |block| (other, *block)));
        let mut lacking = blocks.filter_map(|(other, block)| {
            let wanted = self.namespace.wanted(block)?;
            (wanted > staying).then_some((other, block, wanted))
        });
        let Some((other, block, wanted)) = lacking.next() else { return Ok(()) };
        let file = self.namespace.block(block).and_then(|info| self.namespace.path_of(info.file));
        let file = file.map_or_else(String::new, |path| format!(" of {path}"));
        let whose: String =
            if other == ix { ",".into() } else { format!(" on {}, too,", self.nodes.get(other).who.node) };
        Err(Error::new(
            Kind::Refused,
            format!(
                "{name} cannot be drained, too few nodes would stay: {staying} for {block}{file}{whose} which wants \
                 {wanted} replicas; start more, ask for fewer with `mrctl fs setrep`, or end another drain with \
                 `mrctl drain NODE --cancel`"
            ),
        ))
    }

    /// A node of this name is to be drained, or no longer.
    pub(super) fn drain_changed(&mut self, name: &str) {
        let Some(ix) = self.nodes.find_name(name) else { return };
        let draining = self.namespace.is_draining(name);
        let node = self.nodes.get_mut(ix);
        let changed = std::mem::replace(&mut node.draining, draining) != draining;
        node.left.clear();
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

    /// The answer to Drain. A node that has not registered since the start (its draining can be cancelled) is as
    /// good as dead.
    pub fn drain_status(&self, node: &str) -> DrainStatus {
        let staying = self.nodes.staying() as u32;
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
        let stuck = !node.left.is_empty() && node.left.iter().all(|block| self.is_stuck(*block));
        let examples = node.left.iter().take(EXAMPLES_MAX).filter_map(|block| self.drain_block(*block));
        DrainStatus {
            state: node.state(),
            blocks_left: node.left.len() as u64,
            stuck,
            staying,
            examples: examples.collect(),
        }
    }

    /// Whether a block has as many replicas as the nodes that stay can hold, and still too few.
    fn is_stuck(&self, block: BlockId) -> bool {
        let staying = self.nodes.staying() as u32;
        self.tally(block).is_some_and(|tally| tally.wanted > staying && tally.sure >= staying)
    }

    fn drain_block(&self, block: BlockId) -> Option<DrainBlock> {
        let file = self.namespace.block(block)?.file;
        let path = self.namespace.path_of(file)?;
        let staying = self.nodes.staying() as u32;
        let Some(tally) = self.tally(block) else {
            let why = "it is being written".into();
            return Some(DrainBlock { block, path, wanted: 0, have: 0, why });
        };
        let copying = self.copies.range((block, 0)..=(block, Ix::MAX)).next().is_some();
        let why = match () {
            () if copying => "a copy is under way".into(),
            () if tally.wanted > staying => format!("datanodes that stay: {staying}"),
            () if self.safemode.is_on() => "safemode is on: nothing is copied".into(),
            () => "its copy waits for a datanode with room and a free slot".into(),
        };
        Some(DrainBlock { block, path, wanted: tally.wanted, have: tally.sure, why })
    }
}

fn unknown_node(node: &str) -> Error {
    Error::new(Kind::NotFound, format!("no DataNode is called {node:?}: see the report for their names"))
}
