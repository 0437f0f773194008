//! Renders the facts of a job as sentences, with the reasons for decisions.

use mrcore::{
    Cluster, Fact, Why,
    fact::Entry,
    ids::{JobId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    task::PreemptKind,
};
use mrlib_api::error::one_line;
use schedulers::{
    Params,
    explain::{Names, describe, describe_text},
};

/// One fact as text.
pub(crate) struct FactText {
    /// The name of the fact, as in the history.
    pub(crate) what: &'static str,
    /// The ID of the attempt or task that the fact is about; empty if it is about neither.
    pub(crate) subject: String,
    /// The tracker, if the fact is a launch; otherwise empty.
    pub(crate) tracker: String,
    /// The reason, if the fact is a decision of a scheduler.
    pub(crate) why: Option<Why>,
    /// The fact as a sentence.
    pub(crate) text: String,
}

/// Renders facts with the names of trackers and pools.
pub(crate) struct FactFormatter<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) params: &'a Params,
}

impl FactFormatter<'_> {
    pub(crate) fn tracker(&self, id: TrackerId) -> String {
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
    pub(crate) fn describe(&self, job: JobId, why: &Why) -> String {
        self.with_names(job, |names| describe(why, names))
    }

    fn describe_text(&self, job: JobId, reason_text: &str) -> String {
        self.with_names(job, |names| describe_text(reason_text, names))
    }

    /// Renders a fact of a job. None for facts that are not shown.
    pub(crate) fn format(&self, entry: &Entry) -> Option<FactText> {
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
                let (what, subject, why) =
                    ("preemption-requested", attempt.to_string(), Why::parse(reason_text));
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
                ("attempt-failed", attempt.to_string(), format!("{attempt} failed: {}", one_line(error)))
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                let text = format!("{attempt} was killed: {}", self.describe_text(job, &one_line(why)));
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
            Fact::JobEnded { outcome, .. } => ("job-ended", String::new(), describe_outcome(outcome)),
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
        let text =
            format!("{attempt} started on {tracker}{from}{kind}: {}", self.describe(attempt.job(), why));
        let (what, subject, why) = ("attempt-launched", attempt.to_string(), Some(why.clone()));
        Some(FactText { what, subject, tracker, why, text })
    }
}

/// Returns the task that a fact is about, or whose attempt it is about.
pub(crate) fn task_of(fact: &Fact) -> Option<TaskId> {
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

fn describe_outcome(outcome: &JobOutcome) -> String {
    match outcome {
        JobOutcome::Succeeded => "the job succeeded".to_owned(),
        JobOutcome::Failed(why) => format!("the job failed: {}", one_line(why)),
        JobOutcome::Killed(why) => format!("the job was killed: {}", one_line(why)),
    }
}
