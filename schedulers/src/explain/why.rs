//! Explains why a job or a task waits, for `mrctl why`.

use super::facts::{FactFormatter, FactText, Reason, task_of};
use mrcore::{
    JobTracker, Phase, Time,
    ids::{AttemptId, JobId, TaskId},
};
use std::str::FromStr;

/// The job or the task that is explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Job(JobId),
    Task(TaskId),
}

impl Subject {
    /// Returns the job, or the job of the task.
    pub fn job(self) -> JobId {
        match self {
            Subject::Job(job) => job,
            Subject::Task(task) => task.job,
        }
    }
}

/// Parses the ID of a job, a task or an attempt. An attempt stands for its task.
impl FromStr for Subject {
    type Err = <JobId as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let task = text.parse::<AttemptId>().map(|attempt| attempt.task).or_else(|_| text.parse());
        task.map(Subject::Task).or_else(|_| text.parse().map(Subject::Job))
    }
}

/// Why a job or a task waits, and its recent events.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// ID of the job or task.
    pub of: String,
    pub state: &'static str,
    /// The policy in use.
    pub scheduler: String,
    /// Why it waits; empty if it does not wait.
    pub waiting_for: Vec<Reason>,
    /// Recent events, oldest first.
    pub recent_events: Vec<(Time, FactText)>,
}

/// Explains why a job or a task waits. Returns `None` if it does not exist. `formatter` is for the
/// cluster of `core`.
pub fn explain(
    core: &JobTracker,
    formatter: FactFormatter<'_>,
    now: Time,
    subject: Subject,
) -> Option<Explanation> {
    let job = core.cluster().job(subject.job())?;
    let (of, state, waiting_for) = match subject {
        Subject::Job(id) => {
            // Show the same state as lists of jobs do.
            let idle = job.is_running() && Phase::BOTH.into_iter().all(|phase| job.running[phase].is_empty());
            let state = if idle { "waiting" } else { job.state.name_and_reason().0 };
            (id.to_string(), state, core.explain(now, id))
        }
        Subject::Task(id) => (id.to_string(), job.task_state(job.task(id)?), core.explain_task(now, id)),
    };
    let recent_events = core.recent(job.id).into_iter().filter(|entry| match subject {
        Subject::Job(_) => true,
        Subject::Task(task) => task_of(&entry.fact) == Some(task),
    });
    Some(Explanation {
        of,
        state,
        scheduler: core.scheduler_name().into(),
        waiting_for: waiting_for.into_iter().map(|why| formatter.reason(job.id, why)).collect(),
        recent_events: recent_events
            .filter_map(|entry| Some((entry.at, formatter.format(&entry)?)))
            .collect(),
    })
}
