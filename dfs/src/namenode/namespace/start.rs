//! Records each start of the NameNode: it increases the epoch, creates a start ID, and skips many
//! file and block IDs.
//!
//! The history of a namespace is the sequence of its records. A NameNode that was started from an
//! older copy of its folder continues with another history, and does not know which IDs were
//! assigned after the copy was made. At every start, new IDs therefore begin above the wall clock
//! time multiplied by a constant. DataNodes store the epoch and start ID that they last registered
//! with. [`Namespace::check_start`] checks whether that start is part of this history (ADR 0022).

use super::{ApplyError, Edit, Namespace, ROOT, Record, apply::apply_error};
use crate::namenode::op::Quota;
use dfs_client::ids::{FileId, StartId};

/// Minimum number of IDs that are skipped at every start, so that IDs increase even if the clock
/// was set back.
const IDS_SKIPPED: u64 = 1 << 20;
/// Minimum number of IDs that are skipped if records were lost: more than the lost records can have
/// used.
const IDS_SKIPPED_LOST: u64 = 1 << 32;
/// IDs start at least at the wall clock time in milliseconds multiplied by this number. A history
/// that assigns fewer IDs per millisecond cannot have reached these IDs, so a lost history and this
/// history do not use the same IDs.
const IDS_PER_MS: u64 = 1 << 10;
/// Maximum number of starts that are kept. A DataNode that last registered with an older start is
/// checked only by the epoch.
const STARTS_MAX: usize = 1000;

/// Why a DataNode may not register with this NameNode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::namenode) enum StartMismatch {
    /// The DataNode has registered with a later start than this one.
    Newer,
    /// The DataNode has registered with a start that has the epoch of a start in this history, but
    /// another ID.
    OtherHistory,
}

impl Namespace {
    /// Returns the record of a new start. With `accept`, an operator declares this namespace the
    /// valid one. A namespace without records gets its first folders, with the quota `tmp_quota`
    /// for `/tmp`.
    pub(in crate::namenode) fn start_record(
        &self,
        at_ms: u64,
        start: StartId,
        accept: bool,
        tmp_quota: Quota,
    ) -> Record {
        let from_clock = at_ms.saturating_mul(IDS_PER_MS);
        let jump = if accept { IDS_SKIPPED_LOST } else { IDS_SKIPPED };
        let next_file = from_clock.max(self.next_file).saturating_add(jump);
        let next_block = from_clock.max(self.next_block).saturating_add(jump);
        // The epoch of an accepted namespace must be higher than that of any start that a DataNode
        // can have registered with. The epochs of those starts are counted from 1, or from the wall
        // clock time of an earlier acceptance.
        let epoch = if accept { at_ms.max(self.epoch + 1) } else { self.epoch + 1 };
        let mut edits = vec![Edit::Started { epoch, start, accepted: accept, next_file, next_block }];
        if self.records == 0 {
            let folder = |id: u64, name: &str, mode| Edit::FolderCreated {
                id: FileId(id),
                parent: ROOT,
                name: name.into(),
                owner: "fermata".into(),
                group: "fermata".into(),
                mode,
            };
            edits.push(folder(next_file, "tmp", 0o1777));
            edits.push(folder(next_file + 1, "user", 0o755));
            edits.push(Edit::QuotaSet { id: FileId(next_file), quota: tmp_quota });
        }
        Record { at_ms, request: None, edits }
    }

    pub(super) fn apply_started(&mut self, edit: &Edit) -> Result<(), ApplyError> {
        let Edit::Started { epoch, start, accepted, next_file, next_block } = *edit else {
            return Err(apply_error(format_args!("{edit:?} is not a start")));
        };
        if next_file < self.next_file || next_block < self.next_block || epoch <= self.epoch {
            return Err(apply_error("IDs or epochs decrease"));
        }
        self.skip_blocks(next_block);
        self.next_file = next_file;
        self.epoch = epoch;
        if accepted {
            self.starts.clear();
            self.accepted = true;
        }
        self.starts.push_back((epoch, start));
        if self.starts.len() > STARTS_MAX {
            self.starts.pop_front();
        }
        Ok(())
    }

    /// Changes the record of a start so that it gives up the blocks that were written since this
    /// namespace was backed up.
    pub(in crate::namenode) fn drop_newer_blocks(record: &mut Record) {
        if let Some(Edit::Started { next_block, .. }) = record.edits.first() {
            let next_block = *next_block;
            record.edits.insert(0, Edit::NewerBlocksDropped { next_block });
        }
    }

    pub(super) fn apply_newer_blocks_dropped(&mut self, next_block: u64) -> Result<(), ApplyError> {
        if next_block < self.next_block {
            return Err(apply_error("block IDs decrease"));
        }
        self.next_block = next_block;
        Ok(())
    }

    /// Sets the next block ID to `next`. The IDs between the present next ID and `next` are never
    /// assigned. Consecutive ranges are merged, so that a NameNode that restarts repeatedly does
    /// not collect ranges.
    pub(super) fn skip_blocks(&mut self, next: u64) {
        match self.skipped.last_mut() {
            _ if next == self.next_block => {}
            Some((_, to)) if *to == self.next_block => *to = next,
            _ => self.skipped.push((self.next_block, next)),
        }
        self.next_block = next;
    }

    /// Returns whether an operator has declared this namespace the valid one.
    pub(in crate::namenode) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// Returns the epoch of the current start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the ID of the current start.
    pub fn start_id(&self) -> Option<StartId> {
        self.starts.back().map(|(_, start)| *start)
    }

    /// Checks that the start that a DataNode last registered with is part of this history.
    pub(in crate::namenode) fn check_start(&self, epoch: u64, start: StartId) -> Result<(), StartMismatch> {
        if epoch > self.epoch {
            return Err(StartMismatch::Newer);
        }
        match self.starts.binary_search_by_key(&epoch, |(epoch, _)| *epoch) {
            Ok(at) if self.starts[at].1 != start => Err(StartMismatch::OtherHistory),
            _ => Ok(()),
        }
    }
}
