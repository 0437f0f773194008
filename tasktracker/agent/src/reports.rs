//! Stores reports until they are acknowledged, and divides them into messages. The JobTracker reads
//! messages of at most 16 MiB; a longer message would close the connection for all attempts.

use crate::{AttemptEnd, AttemptReport, AttemptStatus, DriverTypes, FetchFailure};
use std::collections::BTreeSet;
use types::AttemptId;

/// Maximum total size of the reports of ended attempts in one message, and of one such report.
pub const ENDED_BYTES_MAX: usize = 4 << 20;
/// Maximum total size of the reports of running attempts in one message. The status texts that
/// would exceed it are omitted.
const RUNNING_BYTES_MAX: usize = 2 << 20;
/// Maximum number of fetch failures in one message.
const MESSAGE_FAILURES_MAX: usize = 4000;
/// Maximum number of stored fetch failures. Further ones are dropped; a reduce reports a failure
/// again if it persists.
const STORED_FAILURES_MAX: usize = 100_000;
/// Bytes that are added to the estimated size of a report for its IDs, lengths and numbers.
const REPORT_OVERHEAD_BYTES: usize = 128;

/// Reports that are to be sent, or that were sent in a message which is not answered yet.
#[derive(Debug)]
pub(super) struct PendingReports<T: DriverTypes> {
    /// Reports of ended attempts and of copies, oldest first.
    pub(super) ended: Vec<AttemptReport<T>>,
    pub(super) fetch_failures: BTreeSet<FetchFailure>,
}

impl<T: DriverTypes> Default for PendingReports<T> {
    fn default() -> Self {
        Self { ended: Vec::new(), fetch_failures: BTreeSet::new() }
    }
}

impl<T: DriverTypes> PendingReports<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.fetch_failures.is_empty()
    }

    /// Returns whether the reports say that this attempt has ended.
    pub(super) fn has_ended(&self, attempt: AttemptId) -> bool {
        self.ended.iter().any(|report| report.attempt == attempt)
    }

    /// Removes and returns the oldest reports of ended attempts, as many as fit into one message.
    pub(super) fn take_ended(&mut self) -> Vec<AttemptReport<T>> {
        let mut bytes = 0;
        let fits = |report: &&AttemptReport<T>| {
            bytes += report.bytes();
            bytes <= ENDED_BYTES_MAX
        };
        // Take at least one report. The driver ensures that no single report is too long.
        let count = self.ended.iter().take_while(fits).count().max(1);
        self.ended.drain(..count.min(self.ended.len())).collect()
    }

    /// Removes and returns the reports that fit into one message.
    pub(super) fn take_message(&mut self) -> Self {
        let ended = self.take_ended();
        let later = match self.fetch_failures.iter().nth(MESSAGE_FAILURES_MAX).cloned() {
            Some(first) => self.fetch_failures.split_off(&first),
            None => BTreeSet::new(),
        };
        Self { ended, fetch_failures: std::mem::replace(&mut self.fetch_failures, later) }
    }

    /// Adds reports that were sent but may not have arrived. They are placed before the newer
    /// reports.
    pub(super) fn requeue(&mut self, mut unanswered: Self) {
        unanswered.ended.append(&mut self.ended);
        self.ended = unanswered.ended;
        self.fetch_failures.append(&mut unanswered.fetch_failures);
    }

    pub(super) fn add_fetch_failure(&mut self, failure: FetchFailure) {
        if self.fetch_failures.len() < STORED_FAILURES_MAX {
            self.fetch_failures.insert(failure);
        }
    }
}

impl<T: DriverTypes> AttemptReport<T> {
    /// Returns an upper estimate of the encoded length.
    fn bytes(&self) -> usize {
        REPORT_OVERHEAD_BYTES
            + match &self.status {
                AttemptStatus::Running(progress) => T::progress_bytes(progress),
                AttemptStatus::Copied(result) => result.as_ref().err().map_or(0, String::len),
                AttemptStatus::Ended(AttemptEnd::Succeeded { result, .. }) => T::result_bytes(result),
                AttemptStatus::Ended(AttemptEnd::Paused(info)) => T::checkpoint_bytes(info),
                AttemptStatus::Ended(
                    AttemptEnd::Failed(text)
                    | AttemptEnd::Fatal(text)
                    | AttemptEnd::Killed(text)
                    | AttemptEnd::CheckpointCorrupt(text)
                    | AttemptEnd::CheckpointUnreachable(text),
                ) => text.len(),
            }
    }
}

/// Removes status texts of running attempts, so that their reports fit into one message.
pub(super) fn limit_status_texts<T: DriverTypes>(running: &mut [AttemptReport<T>]) {
    let mut bytes = 0;
    for report in running {
        bytes += report.bytes();
        if let AttemptStatus::Running(progress) = &mut report.status
            && bytes > RUNNING_BYTES_MAX
        {
            T::clear_text(progress);
        }
    }
}
