//! What each start of a NameNode adds to the history: a higher epoch, a new start id, and ids far above those in use.
//!
//! A NameNode that was started from an older copy of its folder does not know which ids the lost part of the history
//! used. New ids therefore begin above the wall clock times a constant at every start. DataNodes remember the epoch
//! and start id that they last registered with; [`Namespace::check_start`] tells whether that start is part of this
//! history (ADR 0022).

use super::{ApplyError, Edit, Namespace, ROOT, Record, apply::apply_error};
use crate::{
    ids::{FileId, StartId},
    namenode::op::Quota,
};

/// Ids jump by this much at every start, at least: so that a clock that was set back does not stop them.
const IDS_SKIPPED: u64 = 1 << 20;
/// The same when records were lost: further than those can have got.
const IDS_SKIPPED_LOST: u64 = 1 << 32;
/// Ids jump to the wall clock's milliseconds times this: higher than any history that gives out fewer ids a second
/// can have got, so that a lost history and this one do not meet.
const IDS_PER_MS: u64 = 1 << 10;
/// Starts remembered. A DataNode that has been away for longer is checked by its epoch number alone.
const STARTS_MAX: usize = 1000;

/// Why a DataNode does not fit this namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::namenode) enum StartMismatch {
    /// It has registered with a later start than this one.
    Newer,
    /// It has registered with a start of the same number that is not in this history.
    OtherHistory,
}

impl Namespace {
    /// The record of a new start. `accept`: an operator declares this namespace the right one. A namespace without
    /// any record gets its first folders, with `tmp_quota` for `/tmp`.
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
        // An accepted namespace must be newer than any start that a DataNode can have seen; those are counted from
        // 1, or begin at the wall clock of an earlier acceptance.
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

    pub(super) fn started(&mut self, edit: &Edit) -> Result<(), ApplyError> {
        let Edit::Started { epoch, start, accepted, next_file, next_block } = *edit else {
            return Err(apply_error(format_args!("{edit:?} is not a start")));
        };
        if next_file < self.next_file || next_block < self.next_block || epoch <= self.epoch {
            return Err(apply_error("ids or epochs go backwards"));
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

    /// The next block's id is `next`: those in between are never given out. Starts without a block between them
    /// make one range, so that a NameNode that restarts again and again does not collect ranges.
    pub(super) fn skip_blocks(&mut self, next: u64) {
        match self.skipped.last_mut() {
            _ if next == self.next_block => {}
            Some((_, to)) if *to == self.next_block => *to = next,
            _ => self.skipped.push((self.next_block, next)),
        }
        self.next_block = next;
    }

    /// Whether an operator has declared this namespace the right one.
    pub(in crate::namenode) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// The number of the current start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The id of the current start.
    pub fn start_id(&self) -> Option<StartId> {
        self.starts.back().map(|(_, start)| *start)
    }

    /// Whether the start that a DataNode last registered with is part of this history.
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
