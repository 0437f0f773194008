//! Orders to copy map outputs and checkpoints from trackers that are being drained.

use crate::{Action, Agent, AttemptReport, AttemptStatus, Copied, DriverTypes};
use types::{AttemptId, JobId, Time};

impl<T: DriverTypes> Agent<T> {
    /// Starts a copy. An order to make a copy that is in progress is ignored. If the files are
    /// already here, the driver reports the copy as done.
    pub(super) fn start_copy(
        &mut self,
        now: Time,
        attempt: AttemptId,
        source: T::Source,
        out: &mut Vec<Action<T>>,
    ) {
        if self.cleaning.contains_key(&attempt.job()) {
            return self.report_copy(now, attempt, Err("its job is being cleaned up".into()));
        }
        self.jobs.insert(attempt.job());
        if self.copying.insert(attempt) {
            out.push(Action::CopyFiles(attempt, source));
        }
    }

    /// Records the result of a copy, and reports it to the JobTracker.
    pub(super) fn finish_copy(
        &mut self,
        now: Time,
        attempt: AttemptId,
        result: Result<Copied<T>, String>,
        out: &mut Vec<Action<T>>,
    ) {
        self.copying.remove(&attempt);
        if !self.cleaning.contains_key(&attempt.job()) {
            match &result {
                Ok(Copied { checkpoint: None, .. }) => drop(self.outputs.insert(attempt)),
                Ok(Copied { checkpoint: Some(info), .. }) => {
                    self.checkpoints.insert(attempt, info.clone());
                }
                Err(_) => {}
            }
        }
        self.report_copy(now, attempt, result.map(|copied| copied.bytes));
        self.delete_files_if_idle(attempt.job(), out);
    }

    /// Stops the copies of a job that has ended.
    pub(super) fn stop_copies(&self, job: JobId, out: &mut Vec<Action<T>>) {
        let of_job = self.copying.iter().filter(|attempt| attempt.job() == job);
        out.extend(of_job.map(|attempt| Action::Kill(*attempt, "its job has ended".into())));
    }

    fn report_copy(&mut self, now: Time, attempt: AttemptId, result: Result<u64, String>) {
        self.pending_reports.ended.push(AttemptReport { attempt, status: AttemptStatus::Copied(result) });
        self.heartbeat_soon(now);
    }
}
