//! The gRPC services of the NameNode. Each method only converts messages and calls the driver.

use super::{
    driver::Driver,
    op::{Caller, Outcome},
    permit::Need,
    state::{State, checks::printable},
    storage, wire,
};
use daemon::serve::stream_chunks;
use dfs_client::{
    error::{Error, Kind},
    group::to_reply,
};
use peers::membership::Membership;
use proto::{
    DATANODE_PROTOCOL,
    dfs::{self as pb, block_reports_server::BlockReports, name_node_server::NameNode},
    master::{
        ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipReply, LeadershipRequest,
        master_server::Master,
    },
};
use security::{ActiveJobs, BlockKey, Identity, Jobs, Role};
use std::{io, pin::Pin, sync::Arc};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Default and maximum number of entries per page.
const PAGE_ENTRIES_MAX: usize = 1000;

type Answer<T> = Result<Response<T>, Status>;

/// The service for clients.
pub(crate) struct ClientService {
    pub(crate) driver: Arc<Driver>,
    pub(crate) lease_ms: u64,
    pub(crate) blocks: BlockKey,
    /// The active jobs. Only tokens of their tasks are valid.
    pub(crate) jobs: Arc<Jobs>,
    /// Whether permissions are enforced. If so, each user needs a home folder.
    pub(crate) enforces: bool,
    /// Description of the edits that were dropped from the edit log at this start.
    pub(crate) lost_edits: Option<String>,
    /// The permit for a backup.
    pub(crate) backup_permit: Arc<Semaphore>,
    /// Number of answers that a snapshot keeps.
    pub(crate) retry_cache: usize,
    /// Bytes that must stay free on the disk.
    pub(crate) disk_reserve: u64,
}

/// The service for DataNodes.
pub(crate) struct DataNodeService {
    pub(crate) driver: Arc<Driver>,
    pub(crate) heartbeat_ms: u64,
    pub(crate) blocks: BlockKey,
}

/// The service that every master has.
pub(crate) struct MasterService {
    pub(crate) driver: Arc<Driver>,
    /// None without a group.
    pub(crate) membership: Option<Membership>,
}

#[tonic::async_trait]
impl Master for MasterService {
    async fn leadership(&self, _: Request<LeadershipRequest>) -> Answer<LeadershipReply> {
        // A leader without a quorum refuses, so a deposed one never claims to lead.
        match self.driver.query(|state| Ok(state.namespace().epoch())).await {
            Ok(epoch) => Ok(Response::new(LeadershipReply { leads: true, epoch })),
            Err(error) if error.kind == Kind::NotLeader => Ok(Response::new(LeadershipReply::default())),
            Err(error) => Err(error.into()),
        }
    }

    async fn group(&self, _: Request<GroupRequest>) -> Answer<GroupReply> {
        // Without a confirmation: this says what this member knows, not what is true.
        let (epoch, waits_for) = {
            let state = self.driver.state.read();
            (state.namespace().epoch(), state.waits_for_blocks().unwrap_or_default())
        };
        Ok(Response::new(to_reply(self.driver.journal().view(epoch, waits_for))))
    }

    async fn change_group(&self, request: Request<ChangeGroupRequest>) -> Answer<ChangeGroupReply> {
        let Some(membership) = &self.membership else {
            let message = "this NameNode has no group: its settings have no namenode.member";
            return Err(Error::new(Kind::Refused, message).into());
        };
        // Another member answers with the address of the leader.
        self.driver.query(|_| Ok(())).await?;
        let pause = || self.driver.pause();
        Ok(Response::new(membership.change(request.into_inner(), pause).await?))
    }
}

fn page_limit(limit: u32) -> usize {
    if limit == 0 { PAGE_ENTRIES_MAX } else { (limit as usize).min(PAGE_ENTRIES_MAX) }
}

/// Returns the error for an outcome that the operation cannot have. This is a bug in the state
/// machine and not an error of the caller.
fn unexpected_outcome(outcome: &Outcome) -> Error {
    Error::new(Kind::Unavailable, format!("internal error: unexpected outcome {outcome:?}"))
}

fn file_of(state: &State, outcome: Outcome) -> Result<Option<pb::FileStatus>, Error> {
    let Outcome::File(id) = outcome else { return Err(unexpected_outcome(&outcome)) };
    Ok(Some(wire::status(state.stat_id(id)?)))
}

fn failed_backup(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Refused, format!("the backup of the NameNode failed: {error}"))
}

impl ClientService {
    async fn submit<M: wire::Mutation, T>(
        &self,
        request: Request<M>,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Answer<T> {
        self.ensure_home(&request);
        let request = wire::request(request)?;
        Ok(Response::new(self.driver.submit(request, answer).await?))
    }

    /// Returns the caller. Creates the home folder at the first call of a user.
    fn caller<M>(&self, request: &Request<M>) -> Result<Caller, Error> {
        self.ensure_home(request);
        wire::caller(request)
    }

    fn ensure_home<M>(&self, request: &Request<M>) {
        let Ok(identity) = Identity::of(request.extensions()) else { return };
        let is_person = match identity.role {
            Some(role) => matches!(role, Role::User | Role::Admin),
            None => self.enforces,
        };
        if is_person {
            self.driver.ensure_home(&identity.name);
        }
    }

    async fn query<T>(&self, ask: impl FnOnce(&State) -> Result<T, Error>) -> Answer<T> {
        Ok(Response::new(self.driver.query(ask).await?))
    }
}

#[tonic::async_trait]
impl NameNode for ClientService {
    async fn create(&self, request: Request<pb::CreateRequest>) -> Answer<pb::CreateReply> {
        let lease_ms = self.lease_ms;
        self.submit(request, |state, outcome| {
            Ok(pb::CreateReply { status: file_of(state, outcome)?, lease_ms })
        })
        .await
    }

    async fn append(&self, request: Request<pb::AppendRequest>) -> Answer<pb::AppendReply> {
        let lease_ms = self.lease_ms;
        self.submit(request, |state, outcome| {
            Ok(pb::AppendReply { status: file_of(state, outcome)?, lease_ms })
        })
        .await
    }

    async fn add_block(&self, request: Request<pb::AddBlockRequest>) -> Answer<pb::AddBlockReply> {
        self.submit(request, |state, outcome| {
            let Outcome::Block { block, nodes } = outcome else { return Err(unexpected_outcome(&outcome)) };
            let (located, max) = (state.located_block(block, &nodes)?, state.block_bytes_max(block));
            Ok(pb::AddBlockReply { block: Some(wire::block_for_writing(located, &self.blocks, max)) })
        })
        .await
    }

    async fn abandon_block(
        &self,
        request: Request<pb::AbandonBlockRequest>,
    ) -> Answer<pb::AbandonBlockReply> {
        self.submit(request, |_, _| Ok(pb::AbandonBlockReply {})).await
    }

    async fn close(&self, request: Request<pb::CloseRequest>) -> Answer<pb::CloseReply> {
        self.submit(request, |state, outcome| Ok(pb::CloseReply { status: file_of(state, outcome)? })).await
    }

    async fn renew_lease(&self, request: Request<pb::RenewLeaseRequest>) -> Answer<pb::RenewLeaseReply> {
        let holder = request.into_inner().holder;
        let lease_ms = self.driver.change_volatile(|state, now| state.renew_lease(now, &holder)).await?;
        Ok(Response::new(pb::RenewLeaseReply { lease_ms }))
    }

    async fn locate(&self, request: Request<pb::LocateRequest>) -> Answer<pb::LocateReply> {
        let caller = self.caller(&request)?;
        let pb::LocateRequest { path, offset, length, reader_host } = request.into_inner();
        let path = wire::path(&path)?;
        self.query(|state| {
            state.namespace().permit(&caller, &path, Need::Read)?;
            let (status, blocks) = state.locate(&path, offset, length, &reader_host)?;
            let blocks = blocks.into_iter();
            let blocks = blocks.map(|block| wire::block_for_reading(block, &self.blocks)).collect();
            Ok(pb::LocateReply { status: Some(wire::status(status)), blocks })
        })
        .await
    }

    async fn report_bad_replica(
        &self,
        request: Request<pb::ReportBadReplicaRequest>,
    ) -> Answer<pb::ReportBadReplicaReply> {
        let caller = self.caller(&request)?;
        let pb::ReportBadReplicaRequest { block_id, node_uuid, reason } = request.into_inner();
        let (block, node) = (dfs_client::ids::BlockId(block_id), wire::node_uuid(&node_uuid)?);
        let new = self
            .driver
            .change_volatile(|state, now| state.report_bad_replica(now, &caller, block, node))
            .await?;
        let reason = printable(&reason);
        tracing::debug!(%block, %node, user = caller.user, reason, new, "a client requests a check of a replica");
        Ok(Response::new(pb::ReportBadReplicaReply {}))
    }

    async fn mkdir(&self, request: Request<pb::MkdirRequest>) -> Answer<pb::MkdirReply> {
        self.submit(request, |_, _| Ok(pb::MkdirReply {})).await
    }

    async fn stat(&self, request: Request<pb::StatRequest>) -> Answer<pb::StatReply> {
        let caller = self.caller(&request)?;
        let pb::StatRequest { path, for_create, entries, access } = request.into_inner();
        let path = wire::path(&path)?;
        self.query(|state| {
            let need = match (for_create, access) {
                (true, _) => Need::Create,
                (false, 0) => Need::Traverse,
                (false, bits) => Need::Access(bits & 0o7),
            };
            state.namespace().permit(&caller, &path, need)?;
            if for_create {
                state.check_quotas(&path, entries)?;
            }
            Ok(pb::StatReply { status: Some(wire::status(state.stat(&path)?)) })
        })
        .await
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Answer<pb::ListReply> {
        let caller = self.caller(&request)?;
        let pb::ListRequest { path, start_after, limit } = request.into_inner();
        let path = wire::path(&path)?;
        self.query(|state| {
            state.namespace().permit(&caller, &path, Need::List)?;
            let (entries, more) = state.list(&path, &start_after, page_limit(limit))?;
            Ok(pb::ListReply { entries: entries.into_iter().map(wire::status).collect(), more })
        })
        .await
    }

    async fn rename(&self, request: Request<pb::RenameRequest>) -> Answer<pb::RenameReply> {
        self.submit(request, |_, _| Ok(pb::RenameReply {})).await
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Answer<pb::DeleteReply> {
        self.submit(request, |_, outcome| {
            let Outcome::Existed(existed) = outcome else { return Err(unexpected_outcome(&outcome)) };
            Ok(pb::DeleteReply { existed })
        })
        .await
    }

    async fn set_attributes(
        &self,
        request: Request<pb::SetAttributesRequest>,
    ) -> Answer<pb::SetAttributesReply> {
        self.submit(request, |_, _| Ok(pb::SetAttributesReply {})).await
    }

    async fn set_quota(&self, request: Request<pb::SetQuotaRequest>) -> Answer<pb::SetQuotaReply> {
        self.submit(request, |_, _| Ok(pb::SetQuotaReply {})).await
    }

    async fn usage(&self, request: Request<pb::UsageRequest>) -> Answer<pb::UsageReply> {
        let caller = self.caller(&request)?;
        let path = wire::path(&request.into_inner().path)?;
        self.query(|state| {
            state.namespace().permit(&caller, &path, Need::List)?;
            Ok(wire::usage(state.usage(&path)?))
        })
        .await
    }

    async fn concat(&self, request: Request<pb::ConcatRequest>) -> Answer<pb::ConcatReply> {
        self.submit(request, |state, outcome| Ok(pb::ConcatReply { status: file_of(state, outcome)? })).await
    }

    async fn fence(&self, request: Request<pb::FenceRequest>) -> Answer<pb::FenceReply> {
        self.submit(request, |_, _| Ok(pb::FenceReply {})).await
    }

    async fn commit(&self, request: Request<pb::CommitRequest>) -> Answer<pb::CommitReply> {
        self.submit(request, |_, outcome| {
            let Outcome::Committed { already_done } = outcome else {
                return Err(unexpected_outcome(&outcome));
            };
            Ok(pb::CommitReply { already_done })
        })
        .await
    }

    async fn report_active_jobs(
        &self,
        request: Request<pb::ReportActiveJobsRequest>,
    ) -> Answer<pb::ReportActiveJobsReply> {
        let pb::ReportActiveJobsRequest { scope, epoch, next, live, start_id } = request.into_inner();
        let start = wire::start(epoch, start_id);
        self.query(|state| state.namespace().check_fence(&scope, start)).await?;
        if !self.jobs.update(&scope, ActiveJobs { epoch, next, live: live.into_iter().collect() }) {
            let message = format!(
                "{scope}: epoch {epoch} has ended: a newer process has taken over, and this one must stop"
            );
            return Err(Error::new(Kind::Fenced, message).into());
        }
        Ok(Response::new(pb::ReportActiveJobsReply {}))
    }

    async fn fsck(&self, request: Request<pb::FsckRequest>) -> Answer<pb::FsckReply> {
        let pb::FsckRequest { path, start_after, limit } = request.into_inner();
        let path = wire::path(&path)?;
        let after = if start_after.is_empty() { None } else { Some(wire::path(&start_after)?) };
        self.query(|state| Ok(wire::fsck(state.fsck(&path, after.as_ref(), page_limit(limit))?))).await
    }

    async fn report(&self, request: Request<pb::ReportRequest>) -> Answer<pb::ReportReply> {
        let driver = &self.driver;
        let safemode_only = request.into_inner().safemode_only;
        let lost_edits = self.lost_edits.clone().unwrap_or_default();
        self.query(|state| {
            if safemode_only {
                return Ok(wire::safemode_report(state));
            }
            let report = wire::report(state.report(driver.now()), driver.journal().last_seq());
            Ok(pb::ReportReply { lost_edits: lost_edits.clone(), ..report })
        })
        .await
    }

    type BackupStream = Pin<Box<dyn Stream<Item = Result<pb::BackupChunk, Status>> + Send>>;

    async fn backup(&self, _: Request<pb::BackupRequest>) -> Answer<Self::BackupStream> {
        let permit = self.backup_permit.clone().try_acquire_owned();
        let permit = permit
            .map_err(|_| Error::new(Kind::Refused, "another backup is being made: wait until it ends"))?;
        // Everything that was acknowledged before is in the log of a leader.
        self.driver.query(|_| Ok(())).await?;
        if let Some(why) = self.driver.journal().snapshot_shortage(self.disk_reserve) {
            let message = format!("the NameNode has not enough disk space for a snapshot: {why}");
            return Err(Error::new(Kind::Refused, message).into());
        }
        let (sender, receiver) = mpsc::channel(2);
        let (driver, retry_cache) = (self.driver.clone(), self.retry_cache);
        tokio::spawn(async move {
            let _permit = permit;
            let making = move || {
                let cluster_id = driver.cluster_id().to_owned();
                storage::backup(driver.journal(), &cluster_id, retry_cache).map(|parts| (parts, cluster_id))
            };
            let (mut parts, cluster_id) = match tokio::task::spawn_blocking(making).await {
                Ok(Ok(made)) => made,
                Ok(Err(error)) => return drop(sender.send(Err(failed_backup(&error).into())).await),
                Err(error) => return drop(sender.send(Err(failed_backup(&error).into())).await),
            };
            if sender.send(Ok(wire::backup_start(&parts, cluster_id))).await.is_ok() {
                let chunk = |part: io::Result<_>| {
                    part.map(wire::backup_chunk).map_err(|error| failed_backup(&error).into())
                };
                stream_chunks(sender, move || parts.next().map(chunk)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn set_safemode(&self, request: Request<pb::SetSafemodeRequest>) -> Answer<pb::SetSafemodeReply> {
        let on = request.into_inner().on;
        let safemode = self.driver.set_safemode(on, |state| wire::safemode(state.safemode()));
        Ok(Response::new(pb::SetSafemodeReply { safemode: Some(safemode.await?) }))
    }

    async fn drain(&self, request: Request<pb::DrainRequest>) -> Answer<pb::DrainReply> {
        let node = request.get_ref().node.clone();
        if request.get_ref().status_only {
            return self.query(|state| Ok(wire::drain_status(state.drain_status(&node)))).await;
        }
        self.submit(request, |state, _| Ok(wire::drain_status(state.drain_status(&node)))).await
    }
}

#[tonic::async_trait]
impl BlockReports for DataNodeService {
    async fn register(&self, request: Request<pb::RegisterRequest>) -> Answer<pb::RegisterReply> {
        let message = request.into_inner();
        if message.protocol != DATANODE_PROTOCOL {
            let ours = env!("CARGO_PKG_VERSION");
            return Err(Status::failed_precondition(format!(
                "DataNode version {} speaks protocol {}, NameNode version {ours} speaks {DATANODE_PROTOCOL}: \
                 run the same build on both",
                message.version, message.protocol
            )));
        }
        let registered = self.driver.register(wire::registration(message)?).await?;
        Ok(Response::new(pb::RegisterReply {
            cluster_id: registered.cluster_id,
            heartbeat_ms: self.heartbeat_ms,
            epoch: registered.epoch,
            start: registered.start.0,
            leads: registered.leads,
        }))
    }

    async fn full_report(&self, request: Request<pb::FullReportRequest>) -> Answer<pb::FullReportReply> {
        let pb::FullReportRequest { uuid, incarnation, chunk, last, replicas } = request.into_inner();
        let (node, incarnation) = (wire::node_uuid(&uuid)?, dfs_client::ids::NodeIncarnation(incarnation));
        self.driver.full_report(node, incarnation, chunk, last, wire::replicas(replicas)?).await?;
        Ok(Response::new(pb::FullReportReply {}))
    }

    async fn may_finalise(&self, request: Request<pb::MayFinaliseRequest>) -> Answer<pb::MayFinaliseReply> {
        let pb::MayFinaliseRequest { block_id, nonce } = request.into_inner();
        let (block, nonce) = (dfs_client::ids::BlockId(block_id), dfs_client::ids::Nonce(nonce));
        let open = self.driver.query(|state| Ok(state.is_being_written(block, nonce))).await?;
        Ok(Response::new(pb::MayFinaliseReply { open }))
    }

    async fn heartbeat(&self, request: Request<pb::HeartbeatRequest>) -> Answer<pb::HeartbeatReply> {
        let (node, incarnation, heartbeat) = wire::heartbeat(request.into_inner())?;
        let reply = |state: &State, answer| wire::heartbeat_reply(state, answer, &self.blocks);
        Ok(Response::new(self.driver.heartbeat(node, incarnation, heartbeat, reply).await?))
    }
}
