//! What has yet to be told, and how much of it goes into one message: the JobTracker reads messages of 8 MiB at
//! the most, and one that is longer would end the line for all attempts.

use super::{FetchFailure, Report, Status};
use crate::{agent::AttemptEnd, ids::Attempt};
use prost::Message;
use std::collections::BTreeSet;

/// Bytes of reports of ends in one message; one report alone may be as long.
pub const ENDED_BYTES: usize = 4 << 20;
/// Bytes of reports of running attempts in one message, after which their own words are left out.
const RUNNING_BYTES: usize = 2 << 20;
/// Fetch failures in one message.
const FAILURES: usize = 4000;
/// Fetch failures remembered; a reduce says again what it still cannot fetch.
const FAILURES_MAX: usize = 100_000;
/// What a report takes besides what is counted: ids, lengths, numbers.
const REPORT_OVERHEAD: usize = 128;

/// Something to be told, or told and not answered yet.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    /// How attempts ended.
    pub(super) ended: Vec<Report>,
    pub(super) failures: BTreeSet<FetchFailure>,
}

impl PendingReports {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.failures.is_empty()
    }

    /// Whether it says how this attempt ended.
    pub(super) fn has(&self, attempt: Attempt) -> bool {
        self.ended.iter().any(|events_sent| events_sent.attempt == attempt)
    }

    /// Takes the oldest ends, as many as go into one message.
    pub(super) fn take_ended(&mut self) -> Vec<Report> {
        let mut bytes = 0;
        let fits = |report: &&Report| {
            bytes += report.bytes();
            bytes <= ENDED_BYTES
        };
        // The first goes in any case: `task_runner` lets none be longer.
        let count = self.ended.iter().take_while(fits).count().max(1);
        self.ended.drain(..count.min(self.ended.len())).collect()
    }

    /// Takes what goes into one message.
    pub(super) fn take(&mut self) -> Self {
        let ended = self.take_ended();
        let later = match self.failures.iter().nth(FAILURES).cloned() {
            Some(first) => self.failures.split_off(&first),
            None => BTreeSet::new(),
        };
        Self { ended, failures: std::mem::replace(&mut self.failures, later) }
    }

    /// Puts back what may not have arrived, before what came later.
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

impl Report {
    /// About how long it is on the wire, rather more.
    fn bytes(&self) -> usize {
        REPORT_OVERHEAD
            + match &self.status {
                Status::Running(progress) => progress.encoded_len(),
                Status::Copied(result) => result.as_ref().err().map_or(0, String::len),
                Status::Ended(AttemptEnd::Succeeded { result, .. }) => result.encoded_len(),
                Status::Ended(AttemptEnd::Paused(state)) => state.encoded_len(),
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

/// Leaves out the own words of running attempts where all of them would be too much.
pub(super) fn shorten(running: &mut [Report]) {
    let mut bytes = 0;
    for report in running {
        bytes += report.bytes();
        if let Status::Running(progress) = &mut report.status
            && bytes > RUNNING_BYTES
        {
            progress.status.clear();
        }
    }
}
