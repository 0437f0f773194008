//! Restores the replication of the blocks of lost machines, as the NameNode does.
//!
//! After a DataNode is declared dead, each of its blocks is copied from a machine with another
//! replica to a machine without one. Blocks with the fewest replicas come first. The number of
//! concurrent copies is limited in total and for each DataNode. Only the input of active jobs is
//! copied. Blocks that have the same source are copied in batches, so that the number of copies does
//! not depend on the number of blocks.
//!
//! Data is never lost: after all other blocks of a machine have been copied, those without any
//! replica can be read elsewhere too.

use super::{
    World,
    copies::{Block, BlockBatch, CopiedFiles},
};
use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of concurrent copies, the default of `namenode.copies_max`.
const COPIES_MAX: usize = 32;
/// Maximum number of concurrent copies from or to one DataNode, the default of
/// `namenode.copies_per_node_max`.
const COPIES_PER_NODE_MAX: usize = 4;
/// The blocks of a machine are copied in about this many batches, or in one for each block.
const BATCHES: u64 = 256;
/// Number of random machines that are considered for a copy.
const DRAWS: usize = 32;

impl World {
    /// Handles that the NameNode declares a DataNode dead, unless it has returned meanwhile.
    pub(super) fn start_repair(&mut self, lost: u32, returns: u32) {
        let node = &self.nodes[lost as usize];
        let is_back = node.returns != returns || (node.faults.wiped == 0 && node.faults.datanode_down == 0);
        // Another fault of the machine may have been noticed before.
        if is_back || node.blocks_replaced || self.is_being_repaired(lost) {
            return;
        }
        let batches = self.block_batches(lost);
        self.unrepaired.extend(batches);
        self.start_block_copies();
        self.note_repaired(lost);
    }

    /// Returns the blocks of a machine that have other replicas, those with the fewest first.
    fn block_batches(&self, lost: u32) -> Vec<BlockBatch> {
        let mut by_source: BTreeMap<(usize, u32), Vec<(Block, u64)>> = BTreeMap::new();
        let mut bytes_of_all = 0;
        for (id, known_job) in &self.jobs_known {
            let maps = self.workload.jobs[known_job.plan].maps.iter();
            let replicas = known_job.replicas.chunks(known_job.copies.max(1));
            for (split, (map, replicas)) in maps.zip(replicas).enumerate() {
                if !replicas.contains(&lost) {
                    continue;
                }
                let live = replicas.iter().filter(|node| self.nodes[**node as usize].has_blocks());
                let Some(source) = live.clone().next() else { continue };
                let block = ((*id, split as u32), map.bytes);
                by_source.entry((live.count(), *source)).or_default().push(block);
                bytes_of_all += map.bytes;
            }
        }
        let batch_bytes = bytes_of_all / BATCHES;
        let mut batches: Vec<BlockBatch> = Vec::new();
        for blocks in by_source.into_values() {
            let mut is_full = true;
            for (block, bytes) in blocks {
                if is_full {
                    batches.push(BlockBatch { lost, blocks: Vec::new(), bytes: 0 });
                }
                if let Some(batch) = batches.last_mut() {
                    batch.blocks.push(block);
                    batch.bytes += bytes;
                    is_full = batch.bytes >= batch_bytes;
                }
            }
        }
        batches
    }

    /// Starts as many copies of blocks as the limits allow.
    pub(super) fn start_block_copies(&mut self) {
        let mut later = VecDeque::new();
        let mut without_job = Vec::new();
        while let Some(batch) = self.unrepaired.pop_front() {
            if !batch.blocks.iter().any(|(job, _)| self.jobs_known.contains_key(job)) {
                without_job.push(batch.lost);
                continue;
            }
            let copies = self.copies.values().filter(|copy| matches!(copy.what, CopiedFiles::Blocks(_)));
            if copies.count() >= COPIES_MAX {
                later.push_back(batch);
                break;
            }
            match self.place_block_copy(&batch) {
                Some((source, to)) => self.copy_blocks(source, to, batch),
                None => later.push_back(batch),
            }
        }
        later.append(&mut self.unrepaired);
        self.unrepaired = later;
        for lost in without_job {
            self.note_repaired(lost);
        }
    }

    fn copy_blocks(&mut self, source: u32, to: u32, batch: BlockBatch) {
        let mut path = super::net::Path::default();
        self.net.add_read(&mut path, source, 1.0);
        self.net.add_transfer(&mut path, source, to, 1.0);
        self.net.add_write(&mut path, to, 1.0);
        let (demand, bytes) = (self.setup.costs.write, batch.bytes as f64);
        self.start_copy((source, to), (path, demand), bytes, CopiedFiles::Blocks(batch));
    }

    /// Chooses from where and to where a batch is copied; `None` if that is not possible now. The
    /// source has a replica of the first block. The target has none, and is in another rack than
    /// the source if possible.
    fn place_block_copy(&self, batch: &BlockBatch) -> Option<(u32, u32)> {
        let known = |(job, split): &Block| Some(self.jobs_known.get(job)?.copies_of(*split));
        let replicas = batch.blocks.iter().find_map(known)?;
        let running = || self.copies.values().filter(|copy| matches!(copy.what, CopiedFiles::Blocks(_)));
        let sends = |node: u32| running().filter(|copy| copy.source == node).count();
        let receives = |node: u32| running().filter(|copy| copy.to == node).count();
        let is_live = |node: u32| self.nodes[node as usize].has_blocks();
        let sources = replicas.iter().copied().filter(|node| is_live(*node));
        let source =
            sources.min_by_key(|node| sends(*node)).filter(|node| sends(*node) < COPIES_PER_NODE_MAX)?;
        let fits =
            |node: u32| is_live(node) && !replicas.contains(&node) && receives(node) < COPIES_PER_NODE_MAX;
        let (mut rng, count) = (Rng::of(self.setup.seed, "repair").forked(self.newest_key), self.nodes.len());
        let draws: Vec<u32> =
            (0..DRAWS).map(|_| rng.index(count) as u32).filter(|node| fits(*node)).collect();
        let far = draws.iter().find(|node| !self.net.same_rack(**node, source));
        let to = far.or(draws.first()).copied().or_else(|| (0..count as u32).find(|node| fits(*node)))?;
        Some((source, to))
    }

    /// Handles the end of a copy of blocks: they can be read on the machine `to`. A block of the
    /// batch that `to` has already is on another machine instead.
    pub(super) fn store_blocks(&mut self, to: u32, batch: BlockBatch) {
        let count = self.nodes.len() as u32;
        for (job, split) in batch.blocks {
            let Some(known_job) = self.jobs_known.get_mut(&job) else { continue };
            let replicas = known_job.replicas.chunks_mut(known_job.copies.max(1)).nth(split as usize);
            let Some(replicas) = replicas else { continue };
            let fits = |node: &u32| !replicas.contains(node) && self.nodes[*node as usize].has_blocks();
            let new = (0..count).map(|step| (to + step) % count).find(fits);
            let lost = replicas.iter().position(|replica| *replica == batch.lost);
            if let (Some(new), Some(lost)) = (new, lost) {
                replicas[lost] = new;
            }
        }
        self.start_block_copies();
        self.note_repaired(batch.lost);
    }

    /// Marks the blocks of a machine as replicated elsewhere, if no copy of them is missing.
    fn note_repaired(&mut self, lost: u32) {
        if !self.is_being_repaired(lost) && !self.nodes[lost as usize].has_blocks() {
            self.nodes[lost as usize].blocks_replaced = true;
        }
    }

    /// Returns whether blocks of a machine are being copied, or wait for that.
    fn is_being_repaired(&self, lost: u32) -> bool {
        let is_of = |batch: &BlockBatch| batch.lost == lost;
        let is_copied = |what: &CopiedFiles| matches!(what, CopiedFiles::Blocks(batch) if is_of(batch));
        self.unrepaired.iter().any(is_of) || self.copies.values().any(|copy| is_copied(&copy.what))
    }

    /// Handles that the blocks of a machine can be read again: they need not be copied any more.
    pub(super) fn stop_repair(&mut self, back: u32) {
        self.unrepaired.retain(|batch| batch.lost != back);
        self.take_block_copies(|_, batch| batch.lost == back);
        self.start_block_copies();
    }

    /// Handles that a machine can neither send nor receive blocks any more: its copies start again
    /// elsewhere.
    pub(super) fn redirect_block_copies(&mut self, gone: u32) {
        let batches = self.take_block_copies(|ends, _| ends.0 == gone || ends.1 == gone);
        for batch in batches.into_iter().rev() {
            self.unrepaired.push_front(batch);
        }
        self.start_block_copies();
    }

    /// Removes copies of blocks. `is_meant` gets source and target of a copy, and the blocks.
    fn take_block_copies(&mut self, is_meant: impl Fn((u32, u32), &BlockBatch) -> bool) -> Vec<BlockBatch> {
        let meant = self.copies.iter().filter(|(_, copy)| match &copy.what {
            CopiedFiles::Blocks(batch) => is_meant((copy.source, copy.to), batch),
            CopiedFiles::OfAttempt(_) => false,
        });
        let keys: Vec<u64> = meant.map(|(key, _)| *key).collect();
        let copies: Vec<_> = keys.into_iter().filter_map(|key| self.remove_copy(key)).collect();
        let blocks = copies.into_iter().filter_map(|copy| match copy.what {
            CopiedFiles::Blocks(batch) => Some(batch),
            CopiedFiles::OfAttempt(_) => None,
        });
        blocks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BEGINNING, Setup, Workload,
        fault::{Fault, FaultKind},
        profile,
        workload::Outline,
    };
    use mrcore::{PerPhase, Span};

    const LOST: u32 = 2;
    const BLOCK: u64 = 100_000_000;

    /// A cluster with links of 10 MB/s, whose machine 2 fails after 5 s. Its only job has a block for
    /// each of its maps, which take long.
    fn world(maps: u32, for_s: Option<f64>) -> World {
        let mut setup = Setup::even(12, PerPhase { map: 1, reduce: 1 }, "fifo");
        setup.machines.iter_mut().for_each(|machine| machine.nic = 10e6);
        setup.faults = vec![Fault { at_s: 5.0, for_s, what: FaultKind::Node { node: LOST } }];
        let slow = profile::Profile { map_mbps: 0.001, ..profile::built_in()["wordcount"] };
        let (name, user) = ("job".to_owned(), "ann".to_owned());
        let job = Outline {
            at_s: 0.0,
            group: name.clone(),
            name,
            user,
            maps,
            block: BLOCK,
            reduces: 0,
            profile: &slow,
        };
        let jobs = vec![job.plan(&mut Rng::new(1))];
        World::new(setup, Workload { name: "test".into(), jobs }).expect("a policy")
    }

    /// Runs until `at_s`. Calls `check` after each event.
    fn run_until(world: &mut World, at_s: f64, check: impl Fn(&World)) {
        let until = BEGINNING + Span((at_s * 1e6) as u64);
        while let Some((at, what)) = world.queue.pop().filter(|(at, _)| *at <= until) {
            world.now = at;
            world.handle_event(what);
            check(world);
        }
    }

    fn blocks_of_lost(world: &World) -> usize {
        let replicas = world.jobs_known.values().flat_map(|job| &job.replicas);
        replicas.filter(|node| **node == LOST).count()
    }

    #[test]
    fn blocks_of_a_lost_machine_are_copied_within_the_limits_of_the_namenode() {
        let mut world = world(120, None);
        run_until(&mut world, 14.9, |_| ());
        let lost = blocks_of_lost(&world);
        assert!(lost > 10 && world.copies.is_empty(), "{lost} blocks; the DataNode is not dead yet");
        // Each of 11 machines receives 10 MB/s.
        let shortest_s = (lost as u64 * BLOCK) as f64 / (11.0 * 10e6);
        run_until(&mut world, 15.0 + shortest_s * 0.9, |world| {
            let copies = || world.copies.values();
            let sends = |node: u32| copies().filter(|copy| copy.source == node).count();
            let receives = |node: u32| copies().filter(|copy| copy.to == node).count();
            assert!(copies().count() <= COPIES_MAX);
            assert!((0..12).all(|node| sends(node).max(receives(node)) <= COPIES_PER_NODE_MAX));
            assert!(copies().all(|copy| copy.source != LOST && copy.to != LOST));
        });
        assert!(!world.nodes[LOST as usize].blocks_replaced, "the copies were faster than the links");
        run_until(&mut world, 15.0 + shortest_s * 6.0, |_| ());
        assert_eq!((blocks_of_lost(&world), world.copies.len()), (0, 0));
        assert!(world.nodes[LOST as usize].blocks_replaced);
        for job in world.jobs_known.values() {
            for replicas in job.replicas.chunks(job.copies) {
                let mut different = replicas.to_vec();
                different.sort_unstable();
                different.dedup();
                assert_eq!(different.len(), 3, "two replicas on one machine: {replicas:?}");
            }
        }
    }

    #[test]
    fn copies_end_when_the_machine_returns() {
        let mut world = world(120, Some(15.0));
        run_until(&mut world, 19.9, |_| ());
        let copies = world.copies.len();
        assert!(copies > 0 && !world.unrepaired.is_empty(), "{copies} copies");
        run_until(&mut world, 20.0, |_| ());
        assert!(world.copies.is_empty() && world.unrepaired.is_empty());
        assert!(!world.nodes[LOST as usize].blocks_replaced);
    }

    #[test]
    fn many_blocks_are_copied_in_batches() {
        let mut world = world(4000, None);
        run_until(&mut world, 14.9, |_| ());
        let lost = blocks_of_lost(&world);
        let batches = world.block_batches(LOST);
        assert_eq!(batches.iter().map(|batch| batch.blocks.len()).sum::<usize>(), lost);
        assert_eq!(batches.iter().map(|batch| batch.bytes).sum::<u64>(), lost as u64 * BLOCK);
        assert!(lost > 800 && batches.len() <= 300, "{lost} blocks in {} batches", batches.len());
    }
}
