//! Renders the facts of a job as sentences, with the reasons for decisions.

use super::{Names, describe, describe_text};
use crate::Params;
use mrcore::{
    Cluster, Fact, Why,
    fact::Entry,
    ids::{JobId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    task::PreemptKind,
};

/// A reason with its sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct Reason {
    pub why: Why,
    pub text: String,
}

/// One fact as text.
#[derive(Debug, Clone, PartialEq)]
pub struct FactText {
    /// The name of the fact, as in the history.
    pub what: &'static str,
    /// The ID of the attempt or task that the fact is about; empty if it is about neither.
    pub subject: String,
    /// The tracker, if the fact is a launch; otherwise empty.
    pub tracker: String,
    /// The reason, if the fact is a decision of a scheduler.
    pub why: Option<Reason>,
    /// The fact as a sentence.
    pub text: String,
}

/// Renders facts with the names of trackers and pools.
#[derive(Debug, Clone, Copy)]
pub struct FactFormatter<'a> {
    pub cluster: &'a Cluster,
    /// The parameters of the policy.
    pub params: &'a Params,
    /// Shortens the error of a task to one line.
    pub one_line: fn(&str) -> String,
}

impl FactFormatter<'_> {
    /// Returns the name of a tracker.
    pub fn tracker(&self, id: TrackerId) -> String {
        self.cluster.tracker(id).map_or_else(|| format!("tracker {id}"), |tracker| tracker.name.clone())
    }

    fn with_names<T>(&self, job: JobId, describe: impl FnOnce(&Names<'_>) -> T) -> T {
        let spec = self.cluster.job(job).map(|job| &*job.spec);
        let (user, queue) =
            spec.map_or(("", ""), |JobSpec { user, queue, .. }| (user.as_str(), queue.as_str()));
        let by_queue = self.params.get("fair.pool_by").is_some_and(|by| by.trim() == "queue");
        let tracker = |id: TrackerId| self.tracker(id);
        describe(&Names { user, queue, pool: if by_queue { queue } else { user }, tracker: &tracker })
    }

    /// Renders a reason as text.
    pub fn describe(&self, job: JobId, why: &Why) -> String {
        self.with_names(job, |names| describe(why, names))
    }

    /// Returns a reason with its text.
    pub fn reason(&self, job: JobId, why: Why) -> Reason {
        Reason { text: self.describe(job, &why), why }
    }

    fn describe_text(&self, job: JobId, reason_text: &str) -> String {
        self.with_names(job, |names| describe_text(reason_text, names))
    }

    /// Renders a fact of a job. None for facts that are not shown.
    pub fn format(&self, entry: &Entry) -> Option<FactText> {
        let job = entry.fact.job()?;
        let (what, subject, text) = match &entry.fact {
            Fact::AttemptLaunched { .. } => return self.format_launch(&entry.fact),
            Fact::PreemptionRequested { attempt, kind, why: reason_text, hold, .. } => {
                let kind = match kind {
                    PreemptKind::Split => "was asked to split",
                    PreemptKind::Pause => "was asked to pause",
                    PreemptKind::Kill => "is being killed",
                };
                let hold = if *hold { " until `mrctl resume`" } else { "" };
                let text = format!("{attempt} {kind}{hold}: {}", self.describe_text(job, reason_text));
                let why = Why::parse(reason_text).map(|why| self.reason(job, why));
                let (what, subject) = ("preemption-requested", attempt.to_string());
                return Some(FactText { what, subject, tracker: String::new(), why, text });
            }
            Fact::MapSplit { attempt, position, .. } => {
                let text = format!(
                    "{attempt} ended at byte {position}, and a new task gets the remainder of its range"
                );
                ("map-split", attempt.to_string(), text)
            }
            Fact::AttemptPaused { attempt, stage, bytes, .. } => {
                let text = format!("{attempt} paused in {stage} with a checkpoint of {bytes} bytes");
                ("attempt-paused", attempt.to_string(), text)
            }
            Fact::CheckpointLost { attempt, why } => {
                let text = format!("the checkpoint of {attempt} is lost, so its task starts over: {why}");
                ("checkpoint-lost", attempt.to_string(), text)
            }
            Fact::CheckpointCopied { attempt, tracker, bytes } => {
                let text = format!(
                    "{} has copied the checkpoint of {attempt} ({bytes} bytes) from a draining node",
                    self.tracker(*tracker)
                );
                ("checkpoint-copied", attempt.to_string(), text)
            }
            Fact::PreemptionRefused { attempt, why, .. } => {
                let text = format!("{attempt} refused the preemption, and continues: {why}");
                ("preemption-refused", attempt.to_string(), text)
            }
            Fact::TaskReleased { task } => ("task-released", task.to_string(), format!("{task} may resume")),
            Fact::AttemptFailed { attempt, error } => {
                let text = format!("{attempt} failed: {}", (self.one_line)(error));
                ("attempt-failed", attempt.to_string(), text)
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                let text =
                    format!("{attempt} was killed: {}", self.describe_text(job, &(self.one_line)(why)));
                ("attempt-killed", attempt.to_string(), text)
            }
            Fact::MapOutputLost { attempt, why, .. } => {
                let text = format!("the output of {attempt} is gone, so its map runs again: {why}");
                ("map-output-lost", attempt.to_string(), text)
            }
            Fact::TrackerBlacklisted { tracker, .. } => {
                let text = format!("the job has blacklisted {}", self.tracker(*tracker));
                ("tracker-blacklisted", String::new(), text)
            }
            Fact::JobCommitting { .. } => {
                ("job-committing", String::new(), "all tasks are done; the output is moved into place".into())
            }
            Fact::JobEnded { outcome, .. } => ("job-ended", String::new(), self.describe_outcome(outcome)),
            _ => return None,
        };
        Some(FactText { what, subject, tracker: String::new(), why: None, text })
    }

    fn format_launch(&self, fact: &Fact) -> Option<FactText> {
        let Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why } = fact else {
            return None;
        };
        let tracker = self.tracker(*tracker);
        let from =
            resumed_from.map_or_else(String::new, |paused| format!(" from the checkpoint of {paused}"));
        let kind = if *speculative { " as a speculative attempt" } else { "" };
        let why = self.reason(attempt.job(), why.clone());
        let text = format!("{attempt} started on {tracker}{from}{kind}: {}", why.text);
        let (what, subject) = ("attempt-launched", attempt.to_string());
        Some(FactText { what, subject, tracker, why: Some(why), text })
    }

    fn describe_outcome(&self, outcome: &JobOutcome) -> String {
        match outcome {
            JobOutcome::Succeeded => "the job succeeded".to_owned(),
            JobOutcome::Failed(why) => format!("the job failed: {}", (self.one_line)(why)),
            JobOutcome::Killed(why) => format!("the job was killed: {}", (self.one_line)(why)),
        }
    }
}

/// Returns the task that a fact is about, or whose attempt it is about.
pub(super) fn task_of(fact: &Fact) -> Option<TaskId> {
    match fact {
        Fact::AttemptLaunched { attempt, .. }
        | Fact::PreemptionRequested { attempt, .. }
        | Fact::MapSplit { attempt, .. }
        | Fact::AttemptPaused { attempt, .. }
        | Fact::CheckpointLost { attempt, .. }
        | Fact::CheckpointCopied { attempt, .. }
        | Fact::PreemptionRefused { attempt, .. }
        | Fact::AttemptSucceeded { attempt, .. }
        | Fact::AttemptFailed { attempt, .. }
        | Fact::AttemptKilled { attempt, .. }
        | Fact::MapOutputLost { attempt, .. } => Some(attempt.task),
        Fact::TaskReleased { task } => Some(*task),
        _ => None,
    }
}
