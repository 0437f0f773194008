//! Whether the NameNode accepts changes while jobs with output are active. Their tasks and commits
//! wait until it does.

use mrcore::{Time, job::Job};
use std::mem::discriminant;

/// Why no output can be written, and since when, as this JobTracker has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotWritable {
    since: Time,
    obstacle: Obstacle,
}

/// Why the NameNode accepts no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It is in safemode, for this reason.
    Safemode(String),
    /// It does not answer.
    Unreachable,
}

impl NotWritable {
    /// The state after a check at `now`. It keeps the time of the first check with the same result.
    pub(crate) fn next(before: Option<&Self>, obstacle: Obstacle, now: Time) -> Self {
        let same = before.filter(|before| discriminant(&before.obstacle) == discriminant(&obstacle));
        Self { since: same.map_or(now, |before| before.since), obstacle }
    }

    /// The reason, for people.
    pub(crate) fn describe(&self, namenode: &str, now: Time) -> String {
        let seconds = now.since(self.since).as_secs_f64().round();
        match &self.obstacle {
            Obstacle::Safemode(reason) => {
                format!("the NameNode has been in safemode for {seconds} s: {reason}")
            }
            Obstacle::Unreachable => format!(
                "the NameNode at {namenode} has not answered for {seconds} s: `mrctl health namenode` shows its state"
            ),
        }
    }
}

/// The reason of safemode without the prefix that all messages about safemode have.
pub(crate) fn reason(text: &str) -> &str {
    text.strip_prefix("safemode is on: ").unwrap_or(text)
}

/// Whether the job still has output to write.
pub(crate) fn writes(job: &Job) -> bool {
    !job.is_over() && !job.spec.output.is_empty()
}
