//! Leases: a writer that does not renew its lease loses write access to its files, which are then
//! recovered: closed or deleted. Recovery never waits for DataNodes: it uses the replicas that are
//! already reported.
//!
//! Invariant: the leases contain exactly the open files, each in the lease of its holder.

use super::State;
use crate::namenode::{
    namespace::{Block, Edit, Record},
    op::{Now, OnAbandon},
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId},
};
use std::collections::BTreeSet;

/// Once a tick has made this many edits, it recovers no further abandoned file.
const RECOVERY_EDITS: usize = 100_000;

/// The open files of a holder, and when the lease expires.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) until_ms: u64,
    pub(super) files: BTreeSet<FileId>,
}

impl State {
    /// Renews the lease of a holder. Returns its duration in milliseconds.
    pub fn renew_lease(&mut self, now: Now, holder: &str) -> Result<u64, Error> {
        if holder.is_empty() {
            return Err(Error::new(Kind::Invalid, "holder must not be empty"));
        }
        self.extend_lease(now, holder);
        Ok(self.settings.lease_ms)
    }

    pub(super) fn extend_lease(&mut self, now: Now, holder: &str) {
        if let Some(lease) = self.leases.get_mut(holder) {
            lease.until_ms = now.mono_ms + self.settings.lease_ms;
        }
    }

    /// Extends all leases by the time for which the process was paused and could not receive
    /// messages.
    pub(super) fn extend_leases_after_pause(&mut self, now: Now, pause_ms: u64) {
        let max = now.mono_ms + self.settings.lease_ms;
        for lease in self.leases.values_mut() {
            lease.until_ms = (lease.until_ms + pause_ms).min(max);
        }
    }

    /// Gives the writer of every open file a full lease after a restart.
    pub(super) fn lease_all(&mut self, now: Now) {
        let open: Vec<FileId> = self.namespace.open_files().map(|(file, _)| file).collect();
        for file in open {
            self.lease_file(now, file);
        }
    }

    /// Adds a file that was opened for writing to the lease of its holder, unless the same record
    /// closed it again.
    pub(super) fn lease_file(&mut self, now: Now, id: FileId) {
        let Some(open) = self.namespace.file(id).and_then(|file| file.open.as_deref()) else { return };
        let until_ms = now.mono_ms + self.settings.lease_ms;
        let lease = self
            .leases
            .entry(open.holder.clone())
            .or_insert_with(|| Lease { until_ms, files: BTreeSet::new() });
        lease.until_ms = until_ms;
        lease.files.insert(id);
    }

    /// Removes a file that has no writer any more from the lease of its holder.
    pub(super) fn release(&mut self, file: FileId, holder: &str) {
        if let Some(lease) = self.leases.get_mut(holder) {
            lease.files.remove(&file);
            if lease.files.is_empty() {
                self.leases.remove(holder);
            }
        }
    }

    /// Recovers the files of writers whose lease has expired, with one record per file. The number
    /// of edits is limited by the capacity of the log; the next tick continues.
    pub(super) fn expire_leases(&mut self, now: Now) -> Vec<Record> {
        let over = self.leases.values().filter(|lease| lease.until_ms <= now.mono_ms);
        let files: Vec<FileId> = over.flat_map(|lease| lease.files.iter().copied()).collect();
        let mut records = Vec::new();
        let mut edits = 0;
        for file in files {
            if edits >= RECOVERY_EDITS {
                break;
            }
            let record = Record { at_ms: now.wall_ms, request: None, edits: self.recovery_edits(file) };
            self.apply_record(now, &record);
            edits += record.edits.len();
            records.push(record);
        }
        records
    }

    /// Returns the edits that recover an abandoned file. A file to be closed keeps its first blocks
    /// up to the first one that is neither committed nor finalised on a DataNode with a length on
    /// which all replicas agree. Blocks that exceed a quota are not kept either, because the writer
    /// would have been refused too.
    fn recovery_edits(&self, id: FileId) -> Vec<Edit> {
        let Some(file) = self.namespace.file(id) else { return Vec::new() };
        if file.open.as_ref().is_some_and(|open| open.on_abandon == OnAbandon::Delete) {
            return vec![Edit::Deleted { id }];
        }
        let mut edits = Vec::new();
        let mut blocks = file.blocks.iter().peekable();
        let mut quota_left = self.namespace.space_left(id);
        while let Some(block) = blocks.peek() {
            if self.namespace.block(**block).and_then(Block::length).is_none() {
                let length = self.agreed_length(**block).filter(|length| *length <= file.block_size);
                let Some(length) = length else { break };
                let space = i128::from(length) * i128::from(file.replication);
                if space > 0 && quota_left.is_some_and(|quota_left| space > quota_left) {
                    break;
                }
                quota_left = quota_left.map(|quota_left| quota_left - space);
                edits.push(Edit::BlockCommitted { block: **block, length });
            }
            blocks.next();
        }
        edits.extend(blocks.map(|block| Edit::BlockDropped { block: *block }));
        edits.push(Edit::FileClosed { file: id });
        edits
    }

    fn agreed_length(&self, block: BlockId) -> Option<u64> {
        let on = self.uncommitted.get(&block)?;
        let (_, first) = on.first()?;
        on.iter().all(|(_, length)| length == first).then_some(*first)
    }
}
