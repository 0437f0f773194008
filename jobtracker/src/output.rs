//! A job's output in the file system: moved into place whole, or not at all.
//!
//! Every commit carries this process's epoch. The fence is raised at start, so that an older JobTracker on the same
//! journal, stopped and woken up later, can commit nothing; it learns so from its refusal and ends.

use crate::{
    driver::Driver,
    leftovers::{self, Leftovers},
};
use dfs::{
    client::{Client, ClientError, ClientOptions, Commit, CommitMove},
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

/// Folder below a job's output in which attempts write.
pub(crate) const WORK_DIR: &str = "_temporary";
const SUCCESS: &str = "_SUCCESS";

/// Waits between attempts while the NameNode is away: twice as long each time.
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

/// The file system, connected to when it is first needed.
pub(crate) struct Files {
    options: ClientOptions,
    scope: String,
    client: tokio::sync::Mutex<Option<Client>>,
}

impl Files {
    /// `cluster_id` names the journal: epochs count its starts, so they fence its own processes only.
    pub(crate) fn new(options: ClientOptions, cluster_id: &str) -> Self {
        Self { options, scope: format!("jobtracker-{cluster_id}"), client: tokio::sync::Mutex::default() }
    }

    /// Where the NameNode is, `host:port`.
    pub(crate) fn namenode(&self) -> &str {
        &self.options.namenode
    }

    /// Whether who calls must prove who it is.
    pub(crate) fn is_closed(&self) -> bool {
        self.options.credentials.name().is_some()
    }

    /// The name of this journal of jobs.
    pub(crate) fn scope(&self) -> &str {
        &self.scope
    }

    /// What a task of the job shows to the file system; empty where nobody asks.
    pub(crate) fn task_token(&self, job: &Job) -> String {
        let word = security::job_name_of(&self.scope, job.id.0.into());
        self.options.credentials.task_token(&job.spec.user, &word)
    }

    /// A client. A connection that was made mends itself.
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

/// Where an attempt puts its pieces; empty if it has none to put.
pub(crate) fn work_folder(job: &Job, attempt: AttemptId) -> String {
    let writes = attempt.phase() == Phase::Reduce || job.spec.reduces == 0;
    if job.spec.output.is_empty() || !writes {
        return String::new();
    }
    format!("{}/{WORK_DIR}/{}/{attempt}", job.spec.output, job.id)
}

/// The folders that an attempt's pieces may lie in: its own, and those of the paused attempts that it continues from.
fn own_folders(cluster: &Cluster, job: &Job, attempt: AttemptId) -> Vec<String> {
    let before = |id: &AttemptId| cluster.attempt(*id).and_then(|attempt| attempt.from);
    let line = std::iter::successors(Some(attempt), before);
    line.map(|attempt| work_folder(job, attempt) + "/").collect()
}

/// An attempt that says it has written outside its own folder has failed: its pieces will be moved by name.
pub(crate) fn check_output_paths(cluster: &Cluster, reports: &mut [AttemptReport]) {
    for AttemptReport { attempt, status } in reports {
        let (AttemptStatus::Succeeded(result) | AttemptStatus::Split(_, result)) = status else { continue };
        let Some(job) = cluster.job(attempt.job()) else { continue };
        let own = own_folders(cluster, job, *attempt);
        let is_inside = |piece: &str| {
            DfsPath::parse(piece).is_ok_and(|path| own.iter().any(|own| path.as_str().starts_with(own)))
        };
        if let Some(piece) = result.pieces.iter().find(|piece| !is_inside(piece)) {
            *status = AttemptStatus::Failed(format!("reported output in {piece}, which is not its own"));
        }
    }
}

/// Whether asking again may help: the NameNode is away, not of another mind.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. } | ClientError::Deadline { .. })
}

/// Shuts out older processes on this journal.
pub(crate) async fn fence(driver: Arc<Driver>) {
    // Not before it is durable: after a crash another process must not come by the same number.
    let Ok(epoch) = driver.read(mrcore::Cluster::epoch).await else { return };
    let mut pause = Pause::new();
    loop {
        let fenced = match driver.files().client().await {
            Ok(client) => client.fence(&driver.files().scope, epoch).await,
            Err(error) => Err(error),
        };
        match fenced {
            Ok(()) => return tracing::info!(epoch, "older JobTrackers are shut out"),
            Err(error) if error.is(Kind::Fenced) => return driver.fail(fenced_out(&error)),
            Err(error) => tracing::warn!(%error, "cannot raise the fence yet"),
        }
        pause.wait().await;
    }
}

fn fenced_out(error: &ClientError) -> String {
    format!("another JobTracker has taken over this journal, or this is an older copy of it: {error}")
}

/// Moves a job's output into place, and reports the result. Repeated after a restart, it is recognised.
pub(crate) async fn commit(driver: Arc<Driver>, id: JobId) {
    let scope = driver.files().scope.clone();
    let plan = driver.peek(|cluster| {
        let job = cluster.job(id).filter(|job| job.state == JobState::Committing)?;
        Some((job.spec.user.clone(), Leftovers::of(job, true), plan(job, scope, cluster.epoch())))
    });
    // If the journal lost the job's end, the job ran again: what its attempts wrote is not needed.
    let mut not_needed = None;
    let result = match plan {
        // Another answer came first.
        None => return,
        Some((_, _, Ok(None))) => Ok(()),
        Some((user, left, Ok(Some(commit)))) => match carry_out(&driver, &user, commit).await {
            Err(error) if error.is(Kind::Fenced) => return driver.fail(fenced_out(&error)),
            Ok(true) => {
                tracing::info!(job = %id, "the NameNode has this commit already: the output stays as it is");
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

/// Commits, however long the NameNode is down. True if this commit was carried out before.
async fn carry_out(driver: &Driver, user: &str, commit: Commit) -> Result<bool, ClientError> {
    let mut pause = Pause::new();
    loop {
        let result = match driver.files().client().await {
            // What the job's user could not have done, its job cannot.
            Ok(client) => client.acting_for(user).commit(commit.clone()).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(already_done) => return Ok(already_done),
            Err(error) if is_transient(&error) => {
                tracing::warn!(%error, commit = commit.commit_id, "commit waits");
            }
            Err(error) => return Err(error),
        }
        pause.wait().await;
    }
}

/// Names the commit of one submission. It comes from the journal, so a commit that is repeated after a restart has the
/// same id. The job's number alone would not do: a JobTracker that runs from an older copy of its journal assigns
/// numbers again, and the NameNode would take a new job's commit for one that was carried out before.
fn commit_id(job: &Job) -> String {
    format!("{}-{:032x}", job.id, job.request.0)
}

/// One step: each task's pieces become its part, `_SUCCESS` appears, the work folder goes.
fn plan(job: &Job, scope: String, epoch: u64) -> Result<Option<Commit>, PathError> {
    if job.spec.output.is_empty() {
        return Ok(None);
    }
    let output = DfsPath::parse(&job.spec.output)?;
    let phase = if job.spec.reduces > 0 { Phase::Reduce } else { Phase::Map };
    // A map that was split is still one part: its ranges, in order.
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
