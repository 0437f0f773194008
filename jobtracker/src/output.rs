//! The output of a job in the file system: the commit publishes all of it or nothing.
//!
//! Every commit has the epoch of this process. At start this epoch is sent to the NameNode as a
//! fence. An older JobTracker on the same journal that was stopped and continues later is then
//! refused at its next commit, and ends.

use crate::{
    driver::Driver,
    leftovers::{self, Leftovers},
};
use dfs_client::{
    Client, ClientError, ClientOptions, Commit, CommitMove,
    error::Kind,
    path::{DfsPath, PathError},
};
use mrcore::{
    Cluster, Event, Phase,
    event::{AttemptReport, AttemptStatus},
    ids::{AttemptId, JobId},
    job::{Job, JobState},
    task::Task,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Folder in the output of a job to which attempts write.
pub(crate) const WORK_DIR: &str = "_temporary";
const SUCCESS: &str = "_SUCCESS";

/// Waits between retries while the NameNode is unreachable; each wait is twice as long as the last.
pub(crate) struct Pause(Duration);

impl Pause {
    const MAX: Duration = Duration::from_secs(5);

    pub(crate) fn new() -> Self {
        Self(Duration::from_millis(100))
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Self::MAX);
    }
}

/// The client of the file system, connected when it is first needed.
pub(crate) struct Files {
    options: ClientOptions,
    scope: String,
    client: tokio::sync::Mutex<Option<Client>>,
}

impl Files {
    /// `cluster_id` identifies the journal. Epochs count the starts on one journal, so they fence
    /// only its processes.
    pub(crate) fn new(options: ClientOptions, cluster_id: &str) -> Self {
        Self { options, scope: format!("jobtracker-{cluster_id}"), client: tokio::sync::Mutex::default() }
    }

    /// Address of the NameNode, `host:port`.
    pub(crate) fn namenode(&self) -> &str {
        &self.options.namenode
    }

    /// Whether callers must authenticate.
    pub(crate) fn is_closed(&self) -> bool {
        self.options.credentials.name().is_some()
    }

    /// The scope of this journal's epochs and job IDs at the NameNode.
    pub(crate) fn scope(&self) -> &str {
        &self.scope
    }

    /// The token with which a task of the job calls the file system; empty in an open cluster.
    pub(crate) fn task_token(&self, job: &Job) -> String {
        let job_name = security::job_name_of(&self.scope, job.id.0.into());
        self.options.credentials.task_token(&job.spec.user, &job_name)
    }

    /// A client. An existing connection reconnects by itself.
    pub(crate) async fn client(&self) -> Result<Client, ClientError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let made = Client::connect(self.options.clone()).await?;
        *client = Some(made.clone());
        Ok(made)
    }
}

/// The folder for the pieces of an attempt; empty if it writes none.
pub(crate) fn work_folder(job: &Job, attempt: AttemptId) -> String {
    let writes = attempt.phase() == Phase::Reduce || job.spec.reduces == 0;
    if job.spec.output.is_empty() || !writes {
        return String::new();
    }
    format!("{}/{WORK_DIR}/{}/{attempt}", job.spec.output, job.id)
}

/// The folders that may contain the pieces of an attempt: its own, and those of the paused attempts
/// that it resumes.
fn own_folders(cluster: &Cluster, job: &Job, attempt: AttemptId) -> Vec<String> {
    let before = |id: &AttemptId| cluster.attempt(*id).and_then(|attempt| attempt.resumed_from);
    let attempts = std::iter::successors(Some(attempt), before);
    attempts.map(|attempt| work_folder(job, attempt) + "/").collect()
}

/// Turns a success into a failure if the attempt reports pieces outside its own folders. The commit
/// would move those files.
pub(crate) fn check_output_paths(cluster: &Cluster, reports: &mut [AttemptReport]) {
    for AttemptReport { attempt, status } in reports {
        let (AttemptStatus::Succeeded(result) | AttemptStatus::Split(_, result)) = status else { continue };
        let Some(job) = cluster.job(attempt.job()) else { continue };
        let own = own_folders(cluster, job, *attempt);
        let is_inside = |piece: &str| {
            DfsPath::parse(piece).is_ok_and(|path| own.iter().any(|own| path.as_str().starts_with(own)))
        };
        if let Some(piece) = result.pieces.iter().find(|piece| !is_inside(piece)) {
            *status =
                AttemptStatus::Failed(format!("reported output in {piece}, which is outside its folder"));
        }
    }
}

/// Whether a retry may help: the NameNode is unreachable, and has not refused the call.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. } | ClientError::Deadline { .. })
}

/// Fences older processes that use this journal.
pub(crate) async fn fence(driver: Arc<Driver>) {
    // `read` waits until the epoch is durable. Otherwise a process after a crash could get the same
    // one.
    let Ok(epoch) = driver.read(|cluster| cluster.epoch()).await else { return };
    let mut pause = Pause::new();
    loop {
        let fenced = match driver.files().client().await {
            Ok(client) => client.fence(&driver.files().scope, epoch).await,
            Err(error) => Err(error),
        };
        match fenced {
            Ok(()) => return tracing::info!(epoch, "older JobTrackers are fenced"),
            Err(error) if error.is(Kind::Fenced) => return driver.fail(fenced_out(&error)),
            Err(error) => tracing::warn!(%error, "cannot fence older JobTrackers yet"),
        }
        pause.wait().await;
    }
}

fn fenced_out(error: &ClientError) -> String {
    format!("another JobTracker has taken over this journal, or this is an older copy of it: {error}")
}

/// Commits the output of a job and reports the result. The NameNode recognises a commit that is
/// repeated after a restart.
pub(crate) async fn commit(driver: Arc<Driver>, id: JobId) {
    let scope = driver.files().scope.clone();
    let plan = driver.peek(|cluster| {
        let job = cluster.job(id).filter(|job| job.state == JobState::Committing)?;
        Some((job.spec.user.clone(), Leftovers::of(job, true), plan(job, scope, cluster.epoch())))
    });
    // If the journal has lost the end of the job, the job ran again and its new pieces are not
    // needed.
    let mut not_needed = None;
    let result = match plan {
        // The job is no longer committing.
        None => return,
        Some((_, _, Ok(None))) => Ok(()),
        Some((user, left, Ok(Some(commit)))) => match carry_out(&driver, &user, commit).await {
            Err(error) if error.is(Kind::Fenced) => return driver.fail(fenced_out(&error)),
            Ok(true) => {
                tracing::info!(job = %id, "the NameNode has this commit already: the output does not change");
                not_needed = Some(left);
                Ok(())
            }
            result => result.map(drop).map_err(|error| error.to_string()),
        },
        Some((_, _, Err(error))) => Err(error.to_string()),
    };
    driver.handle(Event::CommitResult { job: id, result });
    if let Some(left) = not_needed {
        leftovers::clear(driver, left).await;
    }
}

/// Sends the commit, and retries for as long as the NameNode is unreachable. Returns true if the
/// commit was carried out before.
async fn carry_out(driver: &Driver, user: &str, commit: Commit) -> Result<bool, ClientError> {
    let mut pause = Pause::new();
    loop {
        let result = match driver.files().client().await {
            // With the permissions of the user who submitted the job.
            Ok(client) => client.acting_for(user).commit(commit.clone()).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(already_done) => return Ok(already_done),
            Err(error) if is_transient(&error) => {
                tracing::warn!(%error, commit = commit.commit_id, "commit waits for the NameNode");
            }
            Err(error) => return Err(error),
        }
        pause.wait().await;
    }
}

/// The ID of the commit of a submission. It comes from the journal, so a commit that is repeated
/// after a restart has the same ID. The number of the job is not enough: a JobTracker with an older
/// copy of its journal assigns numbers again, and the NameNode would take the commit of a new job
/// for one that was carried out before.
fn commit_id(job: &Job) -> String {
    format!("{}-{:032x}", job.id, job.request.0)
}

/// The commit: the pieces of each task become its part, `_SUCCESS` is created, the work folder is
/// deleted.
fn plan(job: &Job, scope: String, epoch: u64) -> Result<Option<Commit>, PathError> {
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
        let result = task.winner().and_then(|winner| winner.result.as_ref());
        let pieces = result.map_or(&[][..], |result| &result.pieces);
        let pieces: Vec<DfsPath> =
            pieces.iter().map(|piece| DfsPath::parse(piece)).collect::<Result<_, _>>()?;
        let to = output.join(&format!("part-{}-{root:05}", phase.letter()))?;
        match moves.last_mut().filter(|part| part.to == to) {
            Some(part) => part.pieces.extend(pieces),
            None => moves.push(CommitMove { pieces, to }),
        }
    }
    moves.push(CommitMove { pieces: Vec::new(), to: output.join(SUCCESS)? });
    let deletes = vec![output.join(WORK_DIR)?];
    Ok(Some(Commit { scope, epoch, commit_id: commit_id(job), moves, deletes }))
}
