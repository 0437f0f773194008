//! New blocks: chooses the nodes that they are written to, and checks that replicas are reported.

use super::{
    State,
    nodes::{Liveness, NodeIx},
    repair::candidate,
};
use crate::namenode::{
    namespace::Block,
    op::{BlockLength, Op, Outcome},
    plan::Plan,
};
use daemon::human;
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeUuid},
};
use placement::{Candidate, PlacementRequest, place, shortage};
use std::collections::BTreeMap;

/// A reported block ID that is higher than the next ID by more than this is considered invalid, and
/// not an ID that a lost record has assigned.
const FUTURE_IDS_MAX: u64 = 1 << 40;

impl State {
    /// Plans `AddBlock`: first the change of the namespace, then the choice of the nodes.
    pub(super) fn plan_block(&self, plan: &mut Plan<'_>, op: &Op) -> Result<Outcome, Error> {
        let Op::AddBlock { file, holder, commits, exclude_nodes, writer_host, expected, nonce } = op else {
            unreachable!("only AddBlock is planned here");
        };
        let block = self.next_block();
        let (block_bytes, replication) =
            plan.add_block(*file, holder, commits, (block, *nonce), *expected)?;
        let candidates: Vec<Candidate<'_>> =
            self.nodes.iter().map(|(_, node)| candidate(node, block_bytes)).collect();
        let placing = PlacementRequest {
            count: replication as usize,
            writer_host,
            exclude: exclude_nodes,
            existing: &[],
            block_bytes,
            seed: block.0,
        };
        let chosen = place(&candidates, &placing);
        if chosen.is_empty() {
            let why = shortage(&candidates, &placing);
            return Err(Error::new(
                Kind::NoNodes,
                format!(
                    "no DataNode can store a block of {}: {} registered, {} dead, suspect or draining, {} full{}, {} excluded by the writer",
                    human(block_bytes),
                    why.nodes,
                    why.unusable,
                    why.full,
                    if why.full > 0 {
                        format!(" (at most {} free)", human(why.free_max))
                    } else {
                        String::new()
                    },
                    why.excluded
                ),
            ));
        }
        let nodes =
            chosen.into_iter().map(|index| self.nodes.get(index as NodeIx).registration.uuid).collect();
        Ok(Outcome::Block { block, nodes })
    }

    /// Returns the ID for a new block. It is higher than the block IDs of all reported replicas
    /// whose records were lost, so that no old replica has the ID of a new block.
    fn next_block(&self) -> BlockId {
        let next = self.namespace.next_block();
        let seen = self.future.range(..(BlockId(next.saturating_add(FUTURE_IDS_MAX)), 0)).next_back();
        BlockId(seen.map_or(next, |((block, _), _)| next.max(block.0 + 1)))
    }

    /// Records that a block is being written to these nodes, which increases their load. A follower
    /// may not know all of them, or take some for dead.
    pub(super) fn expect_write(&mut self, block: BlockId, nodes: &[NodeUuid]) {
        let is_alive = |ix: &NodeIx| self.nodes.get(*ix).liveness != Liveness::Dead;
        let nodes = nodes.iter().filter_map(|uuid| self.nodes.find(*uuid)).filter(is_alive);
        for ix in nodes.collect::<Vec<_>>() {
            self.nodes.get_mut(ix).writes += 1;
            self.writing.entry(block).or_default().push(ix);
        }
    }

    /// Records that a block is not being written any more, because it is committed or abandoned.
    pub(super) fn forget_write(&mut self, block: BlockId) {
        for ix in self.writing.remove(&block).unwrap_or_default() {
            self.nodes.get_mut(ix).writes -= 1;
        }
    }

    /// Checks that each block of a file has a reported replica. Otherwise the file may not be
    /// closed.
    pub(super) fn check_reported(&self, file: FileId, commits: &[BlockLength]) -> Result<(), Error> {
        let lengths: BTreeMap<BlockId, u64> =
            commits.iter().map(|commit| (commit.block, commit.length)).collect();
        let blocks = self.namespace.file(file).map_or(&[][..], |file| &file.blocks);
        let missing = |block: &&BlockId| {
            let committed = self.namespace.block(**block).and_then(Block::length);
            let length = committed.or(lengths.get(block).copied()).unwrap_or(0);
            !self.is_reported(**block, length)
        };
        match blocks.iter().find(missing) {
            None => Ok(()),
            Some(block) => {
                let reported = self.uncommitted.get(block).into_iter().flatten();
                let reported: Vec<String> = reported
                    .map(|(ix, length)| {
                        format!("{} has {length} bytes", self.nodes.get(*ix).registration.node)
                    })
                    .collect();
                let details =
                    if reported.is_empty() { String::new() } else { format!(" ({})", reported.join(", ")) };
                Err(Error::new(
                    Kind::NotYetReplicated,
                    format!("{file}: no live DataNode has reported {block}{details}: try again"),
                ))
            }
        }
    }
}
