//! The gRPC service for clients. Each method decodes the request, checks permissions, and calls the
//! driver.

use crate::{driver::Driver, error::Refusal, history, shared_status::SharedStatuses, storage, submit, wire};
use daemon::serve::stream_chunks;
use dfs_client::group::to_reply;
use journal::backup::Parts;
use mrcore::{Cluster, ids::JobId, job::Job};
use peers::membership::Membership;
use proto::{
    master::{
        ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipReply, LeadershipRequest,
        master_server::Master,
    },
    mr::{self as pb, job_tracker_server::JobTracker},
};
use schedulers::{Params, explain::Subject, timed::DecisionTimes};
use security::Identity;
use std::{
    collections::BTreeSet,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Approximate size of a message with a part of a history.
const HISTORY_CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of histories that are read at the same time.
pub(crate) const HISTORY_READERS_MAX: usize = 64;
/// Maximum number of submissions that are processed at the same time.
pub(crate) const SUBMISSIONS_MAX: usize = 256;
/// Maximum number of watches of jobs that are open at the same time.
pub(crate) const WATCHERS_MAX: usize = 4096;

type Answer<T> = Result<Response<T>, Status>;
type Chunks<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub(crate) struct ClientService {
    pub(crate) driver: Arc<Driver>,
    pub(crate) histories: PathBuf,
    pub(crate) cluster_id: String,
    pub(crate) params: Arc<Params>,
    pub(crate) decision_times: Arc<DecisionTimes>,
    /// Permits for reading histories.
    pub(crate) history_permits: Arc<Semaphore>,
    /// Permits for submissions.
    pub(crate) submission_permits: Arc<Semaphore>,
    /// The permit for a backup.
    pub(crate) backup_permit: Arc<Semaphore>,
    /// Permits for watches.
    pub(crate) watch_permits: Arc<Semaphore>,
    pub(crate) shared_statuses: Arc<SharedStatuses<FullStatus>>,
    /// The queues that a job may name; None if any name is allowed.
    pub(crate) queues: Arc<Option<BTreeSet<String>>>,
}

impl ClientService {
    /// Reads from a job in memory. Refuses a job that is not in memory.
    async fn read_job<T>(&self, id: JobId, read: impl FnOnce(&Cluster, &Job) -> T) -> Result<T, Refusal> {
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| read(cluster, job))).await?;
        found.ok_or_else(|| self.unknown_job(id))
    }

    /// Checks that the caller owns the job or is an admin. If the job is no longer in memory, its
    /// owner is read from its history.
    async fn check_owner(&self, who: &Identity, id: JobId) -> Result<(), Refusal> {
        if who.superuser {
            return Ok(());
        }
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| job.spec.user.clone())).await?;
        let owner =
            found.or_else(|| history::owner(&self.histories, id)).ok_or_else(|| self.unknown_job(id))?;
        if who.owns(&owner) {
            return Ok(());
        }
        Err(Refusal::denied(format!("{id} belongs to {owner}: {} may not do this", who.name)))
    }

    /// Refuses a queue that is not configured. Its jobs would be in the default queue, where the
    /// limits of the intended queue do not apply.
    fn check_queue(&self, name: &str) -> Result<(), Refusal> {
        let Some(queues) = self.queues.as_ref().as_ref().filter(|queues| !queues.contains(name)) else {
            return Ok(());
        };
        let known: Vec<&str> = queues.iter().map(String::as_str).collect();
        Err(Refusal::invalid(format!("there is no queue {name:?}: the queues are {}", known.join(", "))))
    }

    /// Makes a snapshot, and returns the files of a backup.
    async fn make_backup(&self) -> Result<Parts, Refusal> {
        let newest_job = self.driver.read(|cluster| cluster.newest_job()).await?;
        let journal = self.driver.journal().clone();
        let made = tokio::task::spawn_blocking(move || storage::snapshot(&journal)).await;
        made.map_err(|error| failed_backup(&error))?.map_err(|error| failed_backup(&error))?;
        // All facts in the snapshot are in the histories after this.
        self.driver.read(|_| ()).await?;
        self.driver.history_writer().flush().await;
        storage::backup(self.driver.journal(), &self.histories, newest_job)
            .map_err(|error| failed_backup(&error))
    }

    /// Returns the refusal for a job that is not in memory: either the job ended long ago, or it
    /// never existed.
    fn unknown_job(&self, id: JobId) -> Refusal {
        let known = history::path_of(&self.histories, id).exists();
        Refusal::not_found(if known {
            format!("{id} has ended and is no longer in memory; see `mrctl history {id}`")
        } else {
            no_job_message(id)
        })
    }

    /// Returns the complete status of a job.
    async fn full_status(&self, id: JobId) -> Result<FullStatus, Refusal> {
        self.read_job(id, |cluster, job| self.encode_status(cluster, job, false)).await
    }

    fn encode_status(&self, cluster: &Cluster, job: &Job, for_list: bool) -> FullStatus {
        let formatter = wire::formatter(cluster, &self.params);
        let waits_for_user = || Some(formatter.describe(job.id, &job.waits_for_user()?));
        FullStatus {
            status: Arc::new(wire::job_status(cluster, job, for_list)),
            waits_for: self.driver.not_writable(job).or_else(waits_for_user),
            over: job.has_ended(),
        }
    }

    /// Sends the status of a job whenever it has changed, until the job ends or the client
    /// disconnects.
    async fn watch_job(self, who: Identity, id: JobId, to: mpsc::Sender<Result<pb::JobStatus, Status>>) {
        let state = self.driver.leadership().map_or(0, |leadership| leadership.state);
        let shared = self.shared_statuses.of((state, id), || self.driver.watch_job(id));
        let mut number = 0;
        loop {
            let newer = tokio::select! {
                newer = shared.newer_than(number, async || self.full_status(id).await) => newer,
                () = to.closed() => return,
            };
            let Some(newer) = newer else { return };
            let over = newer.as_ref().map_or(true, |newer| newer.status.over);
            number = newer.as_ref().map_or(number, |newer| newer.number);
            let message = newer.map(|newer| newer.status.for_caller(&who)).map_err(Status::from);
            if to.send(message).await.is_err() || over {
                return;
            }
        }
    }
}

/// The status of a job as its owner sees it.
#[derive(Debug, Clone)]
pub(crate) struct FullStatus {
    status: Arc<pb::JobStatus>,
    /// Why the output cannot be written now, or which tasks a user has paused.
    waits_for: Option<String>,
    /// Whether the job has ended.
    over: bool,
}

impl FullStatus {
    /// Returns the status as the caller may see it. It says why, if the output of the job cannot be
    /// written now, or if the job waits for a user.
    fn for_caller(&self, who: &Identity) -> pb::JobStatus {
        let mut status = wire::visible_to(who, (*self.status).clone());
        if let Some(reason) = &self.waits_for {
            status.why = format!("waits: {reason}");
        }
        status
    }
}

#[tonic::async_trait]
impl JobTracker for ClientService {
    type WatchStream = Chunks<pb::JobStatus>;
    type HistoryStream = Chunks<pb::HistoryChunk>;

    async fn submit(&self, request: Request<pb::SubmitRequest>) -> Answer<pb::SubmitReply> {
        let submission = wire::submission(request)?;
        let _permit = self.submission_permits.try_acquire().map_err(|_| {
            Refusal::overloaded(format!("{SUBMISSIONS_MAX} jobs are being submitted: try again later"))
        })?;
        self.check_queue(&submission.queue)?;
        let job = submit::submit(&self.driver, submission).await?;
        Ok(Response::new(pb::SubmitReply { job: job.to_string() }))
    }

    async fn kill(&self, request: Request<pb::KillRequest>) -> Answer<pb::KillReply> {
        let who = wire::caller(&request)?;
        let (request, job, by) = wire::kill(request)?;
        let kill = async {
            self.read_job(job, |_, _| ()).await?;
            self.check_owner(&who, job).await?;
            self.driver.kill(request, job, by).await
        };
        self.driver.answer_once(request, kill).await?;
        Ok(Response::new(pb::KillReply {}))
    }

    async fn preempt(&self, request: Request<pb::PreemptRequest>) -> Answer<pb::PreemptReply> {
        let who = wire::caller(&request)?;
        let (request, attempt, kind, by) = wire::preempt(request)?;
        let preempt = async {
            self.read_job(attempt.job(), |_, _| ()).await?;
            self.check_owner(&who, attempt.job()).await?;
            self.driver.preempt(request, attempt, kind, by).await
        };
        self.driver.answer_once(request, preempt).await?;
        Ok(Response::new(pb::PreemptReply {}))
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Answer<pb::ResumeReply> {
        let who = wire::caller(&request)?;
        let (request, task, on, by) = wire::resume(request)?;
        let resume = async {
            self.read_job(task.job, |_, _| ()).await?;
            self.check_owner(&who, task.job).await?;
            self.driver.resume(request, task, on.as_deref(), by).await
        };
        self.driver.answer_once(request, resume).await?;
        Ok(Response::new(pb::ResumeReply {}))
    }

    async fn drain(&self, request: Request<pb::DrainTrackerRequest>) -> Answer<pb::DrainTrackerReply> {
        let wire::DrainRequest { request, node, within, status_only, by } = wire::drain(request)?;
        if !status_only {
            self.driver.answer_once(request, self.driver.drain(request, &node, within, by)).await?;
        }
        let status = |core: &mrcore::JobTracker| {
            core.cluster().tracker_named(&node).map(|tracker| wire::drain_status(core, tracker))
        };
        match self.driver.read_core(status).await? {
            None if status_only => Err(Refusal::unknown_node(&node).into()),
            // Without a status, the tracker was forgotten after the drain had begun.
            status => Ok(Response::new(status.unwrap_or_default())),
        }
    }

    async fn forget_node(&self, request: Request<pb::ForgetNodeRequest>) -> Answer<pb::ForgetNodeReply> {
        let (request, node, by) = wire::forget(request)?;
        self.driver.answer_once(request, self.driver.forget(request, &node, by)).await?;
        Ok(Response::new(pb::ForgetNodeReply {}))
    }

    async fn jobs(&self, request: Request<pb::JobsRequest>) -> Answer<pb::JobsReply> {
        let who = wire::caller(&request)?;
        let all = request.into_inner().all;
        let jobs = self.driver.read(|cluster| {
            let jobs = cluster.jobs().filter(|job| all || !job.has_ended());
            jobs.map(|job| self.encode_status(cluster, job, true).for_caller(&who)).collect()
        });
        Ok(Response::new(pb::JobsReply { jobs: jobs.await? }))
    }

    async fn job(&self, request: Request<pb::JobRequest>) -> Answer<pb::JobStatus> {
        let who = wire::caller(&request)?;
        let id = wire::job_id(&request.into_inner().job)?;
        Ok(Response::new(self.full_status(id).await?.for_caller(&who)))
    }

    async fn watch(&self, request: Request<pb::JobRequest>) -> Answer<Self::WatchStream> {
        let who = wire::caller(&request)?;
        let id = wire::job_id(&request.into_inner().job)?;
        self.read_job(id, |_, _| ()).await?;
        let permit = self.watch_permits.clone().try_acquire_owned().map_err(|_| {
            Refusal::overloaded(format!("{WATCHERS_MAX} streams are following jobs: try again later"))
        })?;
        let (sender, receiver) = mpsc::channel(1);
        let watching = self.clone().watch_job(who, id, sender);
        tokio::spawn(async move {
            watching.await;
            drop(permit);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn tasks(&self, request: Request<pb::TasksRequest>) -> Answer<pb::TasksReply> {
        let who = wire::caller(&request)?;
        let (id, which) = wire::tasks(&request.into_inner())?;
        self.check_owner(&who, id).await?;
        Ok(Response::new(self.read_job(id, |cluster, job| wire::task_statuses(cluster, job, which)).await?))
    }

    async fn trackers(&self, _: Request<pb::TrackersRequest>) -> Answer<pb::TrackersReply> {
        let now = self.driver.now();
        let trackers = self.driver.read_core(|core| wire::tracker_infos(core, now)).await?;
        Ok(Response::new(pb::TrackersReply { trackers, notices: self.driver.notices() }))
    }

    async fn why(&self, request: Request<pb::WhyRequest>) -> Answer<pb::WhyReply> {
        let who = wire::caller(&request)?;
        let subject = wire::subject(&request.into_inner().of)?;
        let now = self.driver.now();
        self.read_job(subject.job(), |_, _| ()).await?;
        self.check_owner(&who, subject.job()).await?;
        let reply = self.driver.read_core(|core| {
            let not_writable =
                core.cluster().job(subject.job()).and_then(|job| self.driver.not_writable(job));
            wire::why(core, &self.params, now, subject, not_writable)
        });
        let reply = reply.await?;
        Ok(Response::new(reply.ok_or_else(|| unknown_task(subject))?))
    }

    async fn schedulers(&self, _: Request<pb::SchedulersRequest>) -> Answer<pb::SchedulersReply> {
        // The parameters were checked at the start.
        let described = schedulers::describe(&self.params).unwrap_or_default();
        let deciding = self.decision_times.snapshot();
        Ok(Response::new(self.driver.read_core(|core| wire::schedulers(core, described, deciding)).await?))
    }

    async fn shadow(&self, _: Request<pb::ShadowRequest>) -> Answer<pb::ShadowReply> {
        let reply = self.driver.read_core(|core| wire::shadow(core, &self.params)).await?;
        let message =
            "no shadow policy is running: start the jobtracker with --shadow NAME, or set scheduler.shadow";
        Ok(Response::new(reply.ok_or_else(|| Refusal::refused(message))?))
    }

    async fn history(&self, request: Request<pb::HistoryRequest>) -> Answer<Self::HistoryStream> {
        let who = wire::caller(&request)?;
        let pb::HistoryRequest { job, offset } = request.into_inner();
        let id = wire::job_id(&job)?;
        self.driver.read(|_| ()).await?;
        self.check_owner(&who, id).await?;
        self.driver.history_writer().flush().await;
        let path = history::path_of(&self.histories, id);
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let histories_kept = self.driver.config().histories_kept;
                let message = format!(
                    "there is no history of {id}: the job does not exist, or its history is not among the newest {histories_kept}"
                );
                return Err(Refusal::not_found(message).into());
            }
            Err(error) => return Err(unreadable_history(id, &error)),
        };
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| unreadable_history(id, &error))?;
        if offset > bytes {
            let message = format!("history of {id} has {bytes} bytes: it cannot be read from byte {offset}");
            return Err(Refusal::invalid(message).into());
        }
        file.seek(SeekFrom::Start(offset)).map_err(|error| unreadable_history(id, &error))?;
        let permit = self.history_permits.clone().try_acquire_owned().map_err(|_| {
            Refusal::unavailable(format!("{HISTORY_READERS_MAX} histories are being read: try again later"))
        })?;
        let (sender, receiver) = mpsc::channel(2);
        let mut lines = LineChunks { file, offset, buffer: Vec::new(), at_end: false };
        tokio::spawn(async move {
            let _permit = permit;
            let piece = move |chunk: io::Result<pb::HistoryChunk>| {
                chunk.map_err(|error| unreadable_history(id, &error))
            };
            stream_chunks(sender, move || lines.next().map(piece)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type BackupStream = Chunks<pb::BackupChunk>;

    async fn backup(&self, _: Request<pb::BackupRequest>) -> Answer<Self::BackupStream> {
        let permit = self.backup_permit.clone().try_acquire_owned();
        let permit =
            permit.map_err(|_| Refusal::refused("another backup is being made: wait until it ends"))?;
        let reserve = self.driver.config().disk_reserve.0;
        if let Some(why) = self.driver.journal().snapshot_shortage(reserve) {
            let message = format!("the JobTracker has not enough disk space for a snapshot: {why}");
            return Err(Refusal::refused(message).into());
        }
        let (sender, receiver) = mpsc::channel(2);
        let service = self.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let mut parts = match service.make_backup().await {
                Ok(parts) => parts,
                Err(refusal) => return drop(sender.send(Err(refusal.into())).await),
            };
            let start = wire::backup_start(&parts, service.cluster_id.clone());
            if sender.send(Ok(start)).await.is_ok() {
                let chunk = |part: io::Result<_>| {
                    part.map(wire::backup_chunk).map_err(|error| failed_backup(&error).into())
                };
                stream_chunks(sender, move || parts.next().map(chunk)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// The service for clients and operators that ask about the group.
pub(crate) struct MasterService {
    pub(crate) driver: Arc<Driver>,
    /// None without a group.
    pub(crate) membership: Option<Membership>,
}

#[tonic::async_trait]
impl Master for MasterService {
    async fn leadership(&self, _: Request<LeadershipRequest>) -> Answer<LeadershipReply> {
        // A leader without a quorum refuses, so a deposed one never claims to lead.
        match self.driver.read(|cluster| cluster.epoch()).await {
            Ok(epoch) => Ok(Response::new(LeadershipReply { leads: true, epoch })),
            Err(refusal) if refusal.is_not_leader() => Ok(Response::new(LeadershipReply::default())),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn group(&self, _: Request<GroupRequest>) -> Answer<GroupReply> {
        // Without a confirmation: this says what this member knows, not what is true.
        Ok(Response::new(to_reply(self.driver.journal().view(self.driver.newest_epoch(), String::new()))))
    }

    async fn change_group(&self, request: Request<ChangeGroupRequest>) -> Answer<ChangeGroupReply> {
        let Some(membership) = &self.membership else {
            let message = "this JobTracker has no group: its settings have no jobtracker.member";
            return Err(Refusal::refused(message).into());
        };
        // Another member answers with the address of the leader.
        self.driver.read(|_| ()).await?;
        let pause = || self.driver.pause();
        Ok(Response::new(membership.change(request.into_inner(), pause).await?))
    }
}

fn failed_backup(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::refused(format!("the backup of the JobTracker failed: {error}"))
}

fn unknown_task(subject: Subject) -> Refusal {
    let job = subject.job();
    Refusal::not_found(match subject {
        Subject::Task(task) => format!("there is no task {task}: `mrctl tasks {job}` lists them"),
        Subject::Job(_) => no_job_message(job),
    })
}

fn no_job_message(id: JobId) -> String {
    format!("there is no {id}: `mrctl jobs` lists the jobs")
}

fn unreadable_history(id: JobId, error: &io::Error) -> Status {
    Refusal::unavailable(format!("history of {id} cannot be read: {error}")).into()
}

/// Reads a file in chunks. A chunk ends at the end of a line if possible, and never within a
/// character.
struct LineChunks<R> {
    file: R,
    /// Where in the file `buffer` begins.
    offset: u64,
    buffer: Vec<u8>,
    at_end: bool,
}

impl<R: Read> Iterator for LineChunks<R> {
    type Item = io::Result<pb::HistoryChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.at_end {
            let read = self.file.by_ref().take(HISTORY_CHUNK_BYTES as u64).read_to_end(&mut self.buffer);
            self.at_end = !matches!(read, Ok(bytes) if bytes > 0);
            if let Err(error) = read {
                return Some(Err(error));
            }
            let complete_bytes = match self.buffer.iter().rposition(|byte| *byte == b'\n') {
                Some(newline) => newline + 1,
                None => match std::str::from_utf8(&self.buffer) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                },
            };
            if complete_bytes > 0 {
                let rest = self.buffer.split_off(complete_bytes);
                let lines = std::mem::replace(&mut self.buffer, rest);
                self.offset += lines.len() as u64;
                let lines = String::from_utf8_lossy(&lines).into_owned();
                return Some(Ok(pb::HistoryChunk { lines, next_offset: self.offset }));
            }
        }
        None
    }
}
