//! Reports that are not yet acknowledged, and their division into messages. The JobTracker reads
//! messages of at most 8 MiB; a longer one would close the connection for all attempts.

use crate::{AttemptEnd, FetchFailure, Payload, Report, Status};
use std::collections::BTreeSet;
use types::AttemptId;

/// Maximum bytes of reports of ends in one message, and of a single report.
pub const ENDED_BYTES: usize = 4 << 20;
/// Maximum bytes of reports of running attempts in one message; beyond that their status texts are
/// omitted.
const RUNNING_BYTES: usize = 2 << 20;
/// Maximum number of fetch failures in one message.
const FAILURES: usize = 4000;
/// Maximum number of stored fetch failures; a reduce repeats those that persist.
const FAILURES_MAX: usize = 100_000;
/// Bytes of a report in addition to those that are counted: IDs, lengths, numbers.
const REPORT_OVERHEAD: usize = 128;

/// Reports to be sent, or sent and not answered yet.
#[derive(Debug)]
pub(super) struct PendingReports<P: Payload> {
    /// Ends of attempts.
    pub(super) ended: Vec<Report<P>>,
    pub(super) failures: BTreeSet<FetchFailure>,
}

impl<P: Payload> Default for PendingReports<P> {
    fn default() -> Self {
        Self { ended: Vec::new(), failures: BTreeSet::new() }
    }
}

impl<P: Payload> PendingReports<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.failures.is_empty()
    }

    /// Whether it has the end of this attempt.
    pub(super) fn has(&self, attempt: AttemptId) -> bool {
        self.ended.iter().any(|report| report.attempt == attempt)
    }

    /// Takes the oldest ends that fit into one message.
    pub(super) fn take_ended(&mut self) -> Vec<Report<P>> {
        let mut bytes = 0;
        let fits = |report: &&Report<P>| {
            bytes += report.bytes();
            bytes <= ENDED_BYTES
        };
        // At least one: the driver ensures that none is too long.
        let count = self.ended.iter().take_while(fits).count().max(1);
        self.ended.drain(..count.min(self.ended.len())).collect()
    }

    /// Takes the reports that fit into one message.
    pub(super) fn take(&mut self) -> Self {
        let ended = self.take_ended();
        let later = match self.failures.iter().nth(FAILURES).cloned() {
            Some(first) => self.failures.split_off(&first),
            None => BTreeSet::new(),
        };
        Self { ended, failures: std::mem::replace(&mut self.failures, later) }
    }

    /// Puts reports that may not have arrived before newer ones.
    pub(super) fn requeue(&mut self, mut again: Self) {
        again.ended.append(&mut self.ended);
        self.ended = again.ended;
        self.failures.append(&mut again.failures);
    }

    pub(super) fn add_failure(&mut self, failure: FetchFailure) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.insert(failure);
        }
    }
}

impl<P: Payload> Report<P> {
    /// Returns an upper estimate of the encoded length.
    fn bytes(&self) -> usize {
        REPORT_OVERHEAD
            + match &self.status {
                Status::Running(progress) => P::progress_bytes(progress),
                Status::Copied(result) => result.as_ref().err().map_or(0, String::len),
                Status::Ended(AttemptEnd::Succeeded { result, .. }) => P::result_bytes(result),
                Status::Ended(AttemptEnd::Paused(state)) => P::checkpoint_bytes(state),
                Status::Ended(
                    AttemptEnd::Failed(text)
                    | AttemptEnd::Fatal(text)
                    | AttemptEnd::Killed(text)
                    | AttemptEnd::CheckpointCorrupt(text)
                    | AttemptEnd::CheckpointUnreachable(text),
                ) => text.len(),
            }
    }
}

/// Omits the status texts of running attempts if all of them would be too long.
pub(super) fn shorten<P: Payload>(running: &mut [Report<P>]) {
    let mut bytes = 0;
    for report in running {
        bytes += report.bytes();
        if let Status::Running(progress) = &mut report.status
            && bytes > RUNNING_BYTES
        {
            P::clear_text(progress);
        }
    }
}
