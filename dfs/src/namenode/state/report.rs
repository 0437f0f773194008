//! Reports the state of the cluster: a summary, and the check of files (fsck).

use super::{
    State,
    nodes::{Liveness, Node},
};
use crate::namenode::{
    namespace::Block,
    op::{Now, Registration},
    view::{FsckBlock, FsckFile, FsckPage, NodeReport, Report},
};
use dfs_client::{
    error::Error,
    ids::{BlockId, FileId},
    path::DfsPath,
};
use std::collections::BTreeMap;

impl State {
    /// Returns the summary of the cluster. The cost is proportional to the number of nodes.
    pub fn report(&self, now: Now) -> Report {
        let root = self.usage(&DfsPath::root()).unwrap_or_default();
        let alive = || self.nodes.iter().map(|(_, node)| node).filter(|node| node.liveness != Liveness::Dead);
        let used = alive().map(|node| node.usage().used).sum::<u64>();
        let disks = shared_disks(alive());
        let free = disks.values().sum::<u64>();
        let unreadable = self.namespace.committed_blocks() - self.good.len() as u64;
        let corrupt = self.corrupt_blocks();
        Report {
            cluster_id: self.cluster_id().to_owned(),
            safemode: self.safemode(),
            files: root.files,
            dirs: root.dirs,
            blocks: self.namespace.blocks_len(),
            bytes: root.bytes,
            capacity: used + free,
            used,
            free,
            disks: disks.len() as u64,
            under_replicated: self.queue.len() as u64,
            over_replicated: self.surplus.len() as u64,
            missing: unreadable - corrupt,
            corrupt,
            corrupt_replicas: self.bad.len() as u64,
            corrupt_found_total: self.counters.corrupt_found,
            corrupt_replaced_total: self.counters.corrupt_replaced,
            copies_pending: self.copies.len() as u64,
            copies_done_total: self.counters.copies_done,
            open_files: self.namespace.open_files().len() as u64,
            last_edit: self.namespace.records(),
            started_ms: self.started.wall_ms,
            nodes: self.node_reports(now),
            future_replicas: self.future.len() as u64,
            stale_replicas: self.stale.len() as u64,
            checks_pending: self.checks.pending(),
            checks: self.checks.checked,
            refused_nodes: self.refused_nodes.values().cloned().collect(),
            epoch: self.namespace.epoch(),
        }
    }

    /// Returns the number of committed blocks that have only damaged replicas.
    fn corrupt_blocks(&self) -> u64 {
        let lost = |block: &BlockId| {
            self.holders(*block).is_empty() && self.namespace.wanted_replicas(*block).is_some()
        };
        let mut blocks: Vec<BlockId> = self.bad.iter().map(|(block, _)| *block).filter(lost).collect();
        blocks.dedup();
        blocks.len() as u64
    }

    fn node_reports(&self, now: Now) -> Vec<NodeReport> {
        let mut nodes: Vec<NodeReport> = self
            .nodes
            .iter()
            .filter(|(_, node)| !node.is_vacant())
            .map(|(_, node)| NodeReport {
                address: node.address(),
                state: node.state(),
                capacity: node.usage().capacity,
                used: node.usage().used,
                free: node.usage().free,
                blocks: node.blocks.len() as u64,
                last_heartbeat_ms_ago: now.mono_ms.saturating_sub(node.last_heartbeat_ms),
                volumes: node.usage().volumes,
                failed_volumes: node.usage().failed_volumes,
                blocks_left_to_drain: node.undrained_blocks.len() as u64,
                version: node.registration.version.clone(),
                reported: node.reported,
            })
            .collect();
        nodes.sort_by(|a, b| a.address.node.cmp(&b.address.node));
        nodes
    }

    /// Checks up to `limit` files below `path`, in the order of their names, after `start_after`.
    pub fn fsck(
        &self,
        path: &DfsPath,
        start_after: Option<&DfsPath>,
        limit: usize,
    ) -> Result<FsckPage, Error> {
        let (id, inode) = self.namespace.get(path)?;
        let mut page = FsckPage::default();
        if inode.file().is_some() {
            if start_after.is_none() {
                self.fsck_file(id, &mut page);
            }
            return Ok(page);
        }
        let mut files = self.namespace.files_after(id, path, start_after);
        for file in files.by_ref().take(limit.max(1)) {
            self.fsck_file(file, &mut page);
        }
        page.more = files.next().is_some();
        Ok(page)
    }

    fn fsck_file(&self, id: FileId, page: &mut FsckPage) {
        let (Some(file), Some(path)) = (self.namespace.file(id), self.namespace.path_of(id)) else { return };
        page.files += 1;
        page.blocks += file.blocks.len() as u64;
        page.bytes += file.length;
        let blocks: Vec<FsckBlock> = file
            .blocks
            .iter()
            .filter_map(|block| {
                let tally = self.tally(*block)?;
                let corrupt = self.bad_holders(*block).count() as u32;
                (tally.live != tally.wanted || corrupt > 0).then(|| FsckBlock {
                    block: *block,
                    length: self.namespace.block(*block).and_then(Block::length).unwrap_or(0),
                    wanted: tally.wanted,
                    live: tally.live,
                    corrupt,
                    draining: tally.draining,
                })
            })
            .collect();
        if !blocks.is_empty() {
            page.problems.push(FsckFile { path: path.clone(), open: file.open.is_some(), blocks });
        }
        page.last_path = Some(path);
    }
}

/// Returns the free space of each file system. If several nodes of a host report the same device,
/// they share its space, and the highest reported value is used. A node that reports no device
/// counts as one file system, unless it has no free space.
fn shared_disks<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeMap<(&'a str, Option<u64>, &'a str), u64> {
    let mut disks = BTreeMap::new();
    for node in nodes {
        let Registration { host, node: name, usage, .. } = &node.registration;
        let unnamed = (usage.disks.is_empty() && usage.free > 0)
            .then_some(((host.as_str(), None, name.as_str()), usage.free));
        let named = usage.disks.iter().map(|(device, free)| ((host.as_str(), Some(*device), ""), *free));
        for (disk, free) in named.chain(unnamed) {
            let most = disks.entry(disk).or_insert(free);
            *most = free.max(*most);
        }
    }
    disks
}
