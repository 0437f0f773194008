//! Leases: a writer that is not heard of loses its files. Recovery never waits: it takes what is there.
//!
//! Invariant: every open file is in the lease of its holder, and nothing else is.

use super::State;
use crate::{
    error::{Error, Kind},
    ids::{BlockId, FileId},
    namenode::{
        namespace::{Block, Edit, Record},
        op::{Now, OnAbandon},
    },
};
use std::collections::BTreeSet;

/// Edits of one tick, after which no further file is begun.
const RECOVERY_EDITS: usize = 100_000;

/// What a holder has open, and until when.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) until_ms: u64,
    pub(super) files: BTreeSet<FileId>,
}

impl State {
    /// The holder lives: its files stay its own for this many milliseconds more.
    pub fn renew_lease(&mut self, now: Now, holder: &str) -> Result<u64, Error> {
        if holder.is_empty() {
            return Err(Error::new(Kind::Invalid, "holder is empty: name one"));
        }
        self.extend_lease(now, holder);
        Ok(self.settings.lease_ms)
    }

    pub(super) fn extend_lease(&mut self, now: Now, holder: &str) {
        if let Some(lease) = self.leases.get_mut(holder) {
            lease.until_ms = now.mono_ms + self.settings.lease_ms;
        }
    }

    /// Nobody could be heard for this long: it does not count as silence.
    pub(super) fn extend_leases_after_pause(&mut self, now: Now, pause_ms: u64) {
        let max = now.mono_ms + self.settings.lease_ms;
        for lease in self.leases.values_mut() {
            lease.until_ms = (lease.until_ms + pause_ms).min(max);
        }
    }

    /// After a restart, every writer gets the whole time.
    pub(super) fn lease_all(&mut self, now: Now) {
        let open: Vec<FileId> = self.namespace.open_files().map(|(file, _)| file).collect();
        for file in open {
            self.lease_file(now, file);
        }
    }

    /// A file has got a writer (unless the same record closed it again).
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

    /// A file has lost its writer.
    pub(super) fn release(&mut self, file: FileId, holder: &str) {
        if let Some(lease) = self.leases.get_mut(holder) {
            lease.files.remove(&file);
            if lease.files.is_empty() {
                self.leases.remove(holder);
            }
        }
    }

    /// Recovers the files of writers that are gone: one record a file, and so many edits at a time that the log
    /// has room for them. The next tick goes on.
    pub(super) fn expire_leases(&mut self, now: Now) -> Vec<Record> {
        let over = self.leases.values().filter(|lease| lease.until_ms <= now.mono_ms);
        let files: Vec<FileId> = over.flat_map(|lease| lease.files.iter().copied()).collect();
        let mut records = Vec::new();
        let mut edits = 0;
        for file in files {
            if edits >= RECOVERY_EDITS {
                break;
            }
            let record = Record { at_ms: now.wall_ms, request: None, edits: self.recovery(file) };
            self.take(now, &record);
            edits += record.edits.len();
            records.push(record);
        }
        records
    }

    /// What becomes of an abandoned file. One to be closed keeps its leading run of blocks that are committed,
    /// or finished on some DataNode with a length that all who have it agree on, as far as the quotas above it
    /// allow: what a writer was refused is not kept because it went away.
    fn recovery(&self, id: FileId) -> Vec<Edit> {
        let Some(file) = self.namespace.file(id) else { return Vec::new() };
        if file.open.as_ref().is_some_and(|open| open.on_abandon == OnAbandon::Delete) {
            return vec![Edit::Deleted { id }];
        }
        let mut edits = Vec::new();
        let mut blocks = file.blocks.iter().peekable();
        let mut room = self.namespace.space_left(id);
        while let Some(block) = blocks.peek() {
            if self.namespace.block(**block).and_then(Block::length).is_none() {
                let length = self.agreed_length(**block).filter(|length| *length <= file.block_size);
                let Some(length) = length else { break };
                let space = i128::from(length) * i128::from(file.replication);
                if space > 0 && room.is_some_and(|room| space > room) {
                    break;
                }
                room = room.map(|room| room - space);
                edits.push(Edit::BlockCommitted { block: **block, length });
            }
            blocks.next();
        }
        edits.extend(blocks.map(|block| Edit::BlockDropped { block: *block }));
        edits.push(Edit::FileClosed { file: id });
        edits
    }

    fn agreed_length(&self, block: BlockId) -> Option<u64> {
        let on = self.unsettled.get(&block)?;
        let (_, first) = on.first()?;
        on.iter().all(|(_, length)| length == first).then_some(*first)
    }
}
