//! Facts of a job as sentences, with the reasons in words.

use mrcore::{
    Cluster, Fact, Why,
    fact::Entry,
    ids::{JobId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    task::{Recall, Stage},
};
use mrlib::error::last_line;
use schedulers::{
    Params,
    words::{Names, say, say_text},
};

/// One fact, for people.
pub(crate) struct Told {
    /// As history names it.
    pub(crate) what: &'static str,
    /// The attempt or task, if it is about one.
    pub(crate) whom: String,
    /// Where, of a launch.
    pub(crate) tracker: String,
    /// Why it was decided, if it was.
    pub(crate) why: Option<Why>,
    /// A sentence.
    pub(crate) words: String,
}

/// What trackers and pools are called.
pub(crate) struct Teller<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) params: &'a Params,
}

impl Teller<'_> {
    pub(crate) fn tracker(&self, id: TrackerId) -> String {
        self.cluster.tracker(id).map_or_else(|| format!("tracker {id}"), |tracker| tracker.name.clone())
    }

    fn with_names<T>(&self, job: JobId, say: impl FnOnce(&Names<'_>) -> T) -> T {
        let spec = self.cluster.job(job).map(|job| &*job.spec);
        let (user, queue) =
            spec.map_or(("", ""), |JobSpec { user, queue, .. }| (user.as_str(), queue.as_str()));
        let by_queue = self.params.get("fair.pool_by").is_some_and(|by| by.trim() == "queue");
        let tracker = |id: TrackerId| self.tracker(id);
        say(&Names { user, queue, pool: if by_queue { queue } else { user }, tracker: &tracker })
    }

    /// A reason in words.
    pub(crate) fn say(&self, job: JobId, why: &Why) -> String {
        self.with_names(job, |names| say(why, names))
    }

    fn say_text(&self, job: JobId, text: &str) -> String {
        self.with_names(job, |names| say_text(text, names))
    }

    /// What happened, if it is of a job and worth telling.
    pub(crate) fn tell(&self, entry: &Entry) -> Option<Told> {
        let job = entry.fact.job()?;
        let (what, whom, words) = match &entry.fact {
            Fact::AttemptLaunched { .. } => return self.launched(&entry.fact),
            Fact::AttemptRecalled { attempt, how, why: text, hold, .. } => {
                let how = match how {
                    Recall::Split => "was told to end where it stood",
                    Recall::Pause => "was told to pause",
                    Recall::Kill => "was told to stop",
                };
                let hold = if *hold { ", and to wait for `mrctl resume`" } else { "" };
                let words = format!("{attempt} {how}{hold}: {}", self.say_text(job, text));
                let (what, whom, why) = ("attempt-recalled", attempt.to_string(), Why::parse(text));
                return Some(Told { what, whom, tracker: String::new(), why, words });
            }
            Fact::MapSplit { attempt, position, .. } => {
                let words =
                    format!("{attempt} ended at byte {position}, and the rest became a task of its own");
                ("map-split", attempt.to_string(), words)
            }
            Fact::AttemptPaused { attempt, stage, bytes, .. } => {
                let words = format!("{attempt} paused in {} and put {bytes} bytes aside", stage_name(*stage));
                ("attempt-paused", attempt.to_string(), words)
            }
            Fact::CheckpointLost { attempt, why } => {
                let words =
                    format!("what {attempt} had put aside is of no use, so its task begins anew: {why}");
                ("checkpoint-lost", attempt.to_string(), words)
            }
            Fact::CheckpointTaken { attempt, tracker, bytes } => {
                let words = format!(
                    "{} has taken the {bytes} bytes that {attempt} had put aside on a node that is emptied",
                    self.tracker(*tracker)
                );
                ("checkpoint-taken", attempt.to_string(), words)
            }
            Fact::PauseRefused { attempt } => {
                let words = format!(
                    "{attempt} has no room to put its state aside, and goes on; `mrctl logs` tells more"
                );
                ("pause-refused", attempt.to_string(), words)
            }
            Fact::RecallRefused { attempt, why, .. } => {
                let words = format!("{attempt} was asked for its slot, and goes on: {why}");
                ("recall-refused", attempt.to_string(), words)
            }
            Fact::TaskReleased { task } => ("task-released", task.to_string(), format!("{task} may go on")),
            Fact::AttemptFailed { attempt, error } => {
                ("attempt-failed", attempt.to_string(), format!("{attempt} failed: {}", last_line(error)))
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                let words = format!("{attempt} was stopped: {}", self.say_text(job, last_line(why)));
                ("attempt-killed", attempt.to_string(), words)
            }
            Fact::MapOutputLost { attempt, why, .. } => {
                let words = format!("the output of {attempt} is gone, so its map runs again: {why}");
                ("map-output-lost", attempt.to_string(), words)
            }
            Fact::TrackerBlacklisted { tracker, .. } => {
                let words = format!("the job keeps off {} from here on", self.tracker(*tracker));
                ("tracker-blacklisted", String::new(), words)
            }
            Fact::JobCommitting { .. } => {
                ("job-committing", String::new(), "all tasks are done; the output is moved into place".into())
            }
            Fact::JobEnded { outcome, .. } => ("job-ended", String::new(), ended(outcome)),
            _ => return None,
        };
        Some(Told { what, whom, tracker: String::new(), why: None, words })
    }

    fn launched(&self, fact: &Fact) -> Option<Told> {
        let Fact::AttemptLaunched { attempt, tracker, speculative, from, why } = fact else { return None };
        let tracker = self.tracker(*tracker);
        let from = from.map_or_else(String::new, |from| format!(" from where {from} stood"));
        let twin = if *speculative { " as a duplicate" } else { "" };
        let words = format!("{attempt} started on {tracker}{from}{twin}: {}", self.say(attempt.job(), why));
        let (what, whom, why) = ("attempt-launched", attempt.to_string(), Some(why.clone()));
        Some(Told { what, whom, tracker, why, words })
    }
}

/// The task that a fact is about.
pub(crate) fn task_of(fact: &Fact) -> Option<TaskId> {
    match fact {
        Fact::AttemptLaunched { attempt, .. }
        | Fact::AttemptRecalled { attempt, .. }
        | Fact::MapSplit { attempt, .. }
        | Fact::AttemptPaused { attempt, .. }
        | Fact::CheckpointLost { attempt, .. }
        | Fact::CheckpointTaken { attempt, .. }
        | Fact::PauseRefused { attempt }
        | Fact::RecallRefused { attempt, .. }
        | Fact::AttemptSucceeded { attempt, .. }
        | Fact::AttemptFailed { attempt, .. }
        | Fact::AttemptKilled { attempt, .. }
        | Fact::MapOutputLost { attempt, .. } => Some(attempt.task),
        Fact::TaskReleased { task } => Some(*task),
        _ => None,
    }
}

fn ended(outcome: &JobOutcome) -> String {
    match outcome {
        JobOutcome::Succeeded => "the job succeeded".to_owned(),
        JobOutcome::Failed(why) => format!("the job failed: {}", last_line(why)),
        JobOutcome::Killed(why) => format!("the job was killed: {}", last_line(why)),
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Map => "map",
        Stage::Shuffle => "shuffle",
        Stage::Merge => "merge",
        Stage::Reduce => "reduce",
    }
}
