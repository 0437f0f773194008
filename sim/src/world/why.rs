//! Explains why a job waits at a time of a run.

use super::{RunEnd, World};
use crate::{BEGINNING, outcome::RuleViolation};
use mrcore::{
    JobTracker, Span, Time,
    ids::{JobId, TaskId},
};
use schedulers::explain::{Explanation, FactFormatter, Subject, explain};

/// Why a job cannot be explained.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WhyError {
    #[error("the run ended {0} after its start, before that time")]
    Ended(Span),
    #[error("the time limit stopped the run {0} after its start: give a longer --time-limit")]
    Stopped(Span),
    #[error("the JobTracker is down at that time")]
    NoJobTracker,
    #[error("there is no {job} at that time: {} submitted by then", if *.submitted == 1 { "1 job was".to_owned() } else { format!("{submitted} jobs were") })]
    NoJob { job: JobId, submitted: u32 },
    #[error("{0} had ended long before that time, and the JobTracker has forgotten it")]
    Forgotten(JobId),
    #[error("there is no {0} at that time")]
    NoTask(TaskId),
    #[error(transparent)]
    RuleViolation(#[from] RuleViolation),
}

impl World {
    /// Runs until `at` after the start, and explains why a job or a task waits at that time. Calls
    /// `should_continue` as [`Self::run_monitored`] does. The times of events are counted from the
    /// start.
    pub fn explain_at(
        mut self,
        at: Span,
        subject: Subject,
        should_continue: impl Fn(usize) -> bool,
    ) -> Result<Explanation, WhyError> {
        let now = BEGINNING + at;
        match self.run_until(Some(now), should_continue)? {
            RunEnd::Limit => {}
            RunEnd::Stopped => return Err(WhyError::Stopped(self.now.since(BEGINNING))),
            RunEnd::Over => return Err(WhyError::Ended(self.now.since(BEGINNING))),
        }
        let core = self.core.as_ref().ok_or(WhyError::NoJobTracker)?;
        let (cluster, params) = (core.cluster(), &self.setup.params);
        let formatter = FactFormatter { cluster, params, one_line: str::to_owned };
        let mut explanation = explain(core, formatter, now, subject).ok_or_else(|| unknown(core, subject))?;
        for (at, _) in &mut explanation.recent_events {
            *at = Time(at.since(BEGINNING).0);
        }
        Ok(explanation)
    }
}

fn unknown(core: &JobTracker, subject: Subject) -> WhyError {
    let (job, newest) = (subject.job(), core.cluster().newest_job());
    match subject {
        _ if job > newest || job.0 == 0 => WhyError::NoJob { job, submitted: newest.0 },
        Subject::Task(task) if core.cluster().job(job).is_some() => WhyError::NoTask(task),
        _ => WhyError::Forgotten(job),
    }
}
