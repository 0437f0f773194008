//! Tracks whether the NameNode accepts changes, for as long as jobs with output are active. The
//! tasks and commits of these jobs wait until it does.

use daemon::MasterAddrs;
use dfs_client::{ClientError, SafemodeStatus};
use mrcore::{Time, job::Job};
use std::{mem::discriminant, time::Duration};

/// After this time without an answer, the NameNode counts as unreachable.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no output can be written, and since when this JobTracker has known it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotWritable {
    since: Time,
    obstacle: Obstacle,
}

/// Why the NameNode accepts no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The NameNode is in safemode, for this reason.
    Safemode(String),
    /// The NameNode does not answer.
    Unreachable,
}

impl NotWritable {
    /// Returns the state after a check that started at `began` and found `obstacle`. If the state
    /// `before` has the same kind of obstacle, its start time is kept.
    pub(crate) fn after_check(before: Option<&Self>, obstacle: Obstacle, began: Time) -> Self {
        let same = before.filter(|before| discriminant(&before.obstacle) == discriminant(&obstacle));
        Self { since: same.map_or(began, |before| before.since), obstacle }
    }

    /// Returns the reason as a sentence.
    pub(crate) fn describe(&self, namenode: &MasterAddrs, now: Time) -> String {
        let seconds = now.since(self.since).as_secs_f64().round();
        match &self.obstacle {
            Obstacle::Safemode(reason) => {
                format!("the NameNode has been in safemode for {seconds} s: {reason}")
            }
            Obstacle::Unreachable => format!(
                "the NameNode at {namenode} has not answered for {seconds} s: `mrctl health namenode` shows its state, `mrctl up` starts it again in a local cluster"
            ),
        }
    }
}

/// Returns whether the job is active and has output to write.
pub(crate) fn has_output_to_write(job: &Job) -> bool {
    !job.has_ended() && !job.spec.output.is_empty()
}

/// Waits for the answer of the NameNode. Returns when the check started, and why the NameNode
/// accepts no changes (None if it accepts them). If it does not answer, it counts as unreachable
/// since the start of the check.
pub(crate) async fn check(
    now: impl Fn() -> Time,
    answer: impl Future<Output = Result<SafemodeStatus, ClientError>>,
) -> (Time, Option<Obstacle>) {
    let began = now();
    let obstacle = match tokio::time::timeout(CHECK_TIMEOUT, answer).await {
        Ok(Ok(safemode)) => safemode.on.then(|| Obstacle::Safemode(safemode.cause().to_owned())),
        Ok(Err(error)) if !error.is_unavailable() => {
            tracing::debug!(%error, "cannot check whether the NameNode accepts changes");
            None
        }
        Ok(Err(_)) | Err(_) => Some(Obstacle::Unreachable),
    };
    (began, obstacle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::Span;
    use std::cell::Cell;

    #[tokio::test]
    async fn namenode_counts_as_unreachable_since_the_start_of_the_first_failed_check() {
        let start = Time::default();
        let clock = Cell::new(start);
        let later = |seconds| start + Span::secs(seconds);
        let mut state = None;
        for (answered, expected) in [(5, "for 5 s:"), (11, "for 11 s:")] {
            let answer = async {
                clock.set(later(answered));
                Err(ClientError::Unreachable { addr: "h:1".into(), reason: "no answer".into() })
            };
            let (began, obstacle) = check(|| clock.get(), answer).await;
            let next = NotWritable::after_check(state.as_ref(), obstacle.unwrap(), began);
            let text = next.describe(&"h:1".into(), clock.get());
            assert!(text.contains(expected), "{text}");
            state = Some(next);
        }
    }
}
