//! The output of a job in the file system. The commit publishes all of the output or nothing.
//!
//! Every commit contains the start of this process, or the leadership of this member of a group: its
//! epoch, which is the number of the start, and a random ID. At the start it is sent to the NameNode as
//! a fence. An older JobTracker process with the same journal that was suspended and continues later is
//! then refused at its next commit, and ends; an earlier leader of a group follows. A JobTracker that
//! was started from an older copy of its folder ends, too.

use crate::files::{Backoff, Files, is_transient};
use dfs_client::{
    ClientError, Commit, CommitMove,
    error::Kind,
    ids::Start,
    path::{DfsPath, PathError},
};
use mrcore::{Phase, job::Job, output::WORK_DIR, task::Task};
use std::{collections::BTreeMap, time::Duration};

/// Empty file in the output folder which shows that the output is complete.
const SUCCESS_FILE: &str = "_SUCCESS";
/// Deadline of a call that fences older JobTracker processes. It is shorter than the time that a submission
/// waits until this start is accepted, so that the refusal of the submission contains the reason.
const FENCE_DEADLINE: Duration = Duration::from_secs(3);
/// Time between two attempts to fence older JobTracker processes.
const FENCE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Fences the earlier starts of the `JobTrackers` with this journal. Passes each error that is retried to
/// `report`. Returns an error if this start is itself fenced.
pub(crate) async fn fence(
    files: &Files,
    start: Start,
    earlier: &[Start],
    report: impl Fn(String),
) -> Result<(), ClientError> {
    loop {
        let fenced = match files.client_with_deadline(FENCE_DEADLINE).await {
            Ok(client) => client.fence(files.scope(), start, earlier).await,
            Err(error) => Err(error),
        };
        match fenced {
            Ok(()) => return Ok(()),
            Err(error) if error.is(Kind::Fenced) => return Err(error),
            Err(error) => report(error.to_string()),
        }
        tokio::time::sleep(FENCE_RETRY_INTERVAL).await;
    }
}

/// Returns the message with which this process ends when the NameNode refuses it.
pub(crate) fn fenced_message(error: &ClientError, is_member: bool) -> String {
    if is_member {
        return format!(
            "{error}; the members of this group were started from older copies of their folders: stop all, and restore \
             the newest folders"
        );
    }
    format!(
        "{error}; unless another JobTracker has taken over, restore the newest folder of the JobTracker, or start it \
         once with --recover to accept that the jobs submitted since the copy are lost"
    )
}

/// Commits the output of a job with the permissions of its user, and retries for as long as the
/// NameNode is unreachable. The NameNode recognises a commit that is repeated after a restart.
/// Returns true if the commit was carried out before.
pub(crate) async fn commit(files: &Files, user: &str, commit: Commit) -> Result<bool, ClientError> {
    let mut backoff = Backoff::new();
    loop {
        let result = match files.client().await.and_then(|client| client.acting_for(user)) {
            Ok(client) => client.commit(commit.clone()).await,
            Err(error) => Err(error),
        };
        match result {
            Err(error) if is_transient(&error) => {
                tracing::warn!(%error, commit = commit.commit_id, "commit waits for the NameNode");
            }
            result => return result,
        }
        backoff.wait().await;
    }
}

/// Returns the ID of the commit of a job. It is made from the journal, so a commit that is repeated
/// after a restart has the same ID. The job ID alone is not enough: a JobTracker with an older copy
/// of its journal assigns the same job IDs again, and the NameNode would take the commit of a new
/// job for one that was carried out before.
fn commit_id(job: &Job) -> String {
    format!("{}-{:032x}", job.id, job.request.0)
}

/// Returns the commit of a job: the pieces (output files of attempts) of each task become its part
/// of the output, `_SUCCESS` is created, and the work folder is deleted. None if the job has no
/// output.
pub(crate) fn plan(job: &Job, scope: String, start: Start) -> Result<Option<Commit>, PathError> {
    if job.spec.output.is_empty() {
        return Ok(None);
    }
    let output = DfsPath::parse(&job.spec.output)?;
    let phase = if job.spec.reduces > 0 { Phase::Reduce } else { Phase::Map };
    // A map that was split still gives one part, made of its ranges in order.
    let mut parts: BTreeMap<(u32, u64), &Task> = BTreeMap::new();
    parts.extend(job.tasks[phase].iter().map(|task| ((task.root, task.start), task)));
    let mut moves: Vec<CommitMove> = Vec::with_capacity(parts.len() + 1);
    for ((root, _), task) in parts {
        let result = task.winning_attempt().and_then(|winner| winner.result.as_ref());
        let pieces = result.map_or(&[][..], |result| &result.pieces);
        let pieces: Vec<DfsPath> =
            pieces.iter().map(|piece| DfsPath::parse(piece)).collect::<Result<_, _>>()?;
        let to = output.join(&format!("part-{}-{root:05}", phase.letter()))?;
        match moves.last_mut().filter(|part| part.to == to) {
            Some(part) => part.pieces.extend(pieces),
            None => moves.push(CommitMove { pieces, to }),
        }
    }
    moves.push(CommitMove { pieces: Vec::new(), to: output.join(SUCCESS_FILE)? });
    let deletes = vec![output.join(WORK_DIR)?];
    Ok(Some(Commit { scope, start, commit_id: commit_id(job), moves, deletes }))
}
