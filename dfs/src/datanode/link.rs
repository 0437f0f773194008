//! The connections to the NameNodes. The DataNode registers with each of them, sends it a full
//! report, and then sends it heartbeats with new reports. A connection never waits for another one,
//! and the data path never waits for any.
//!
//! While a NameNode is unreachable, reports are collected and sent later. A restarted NameNode does
//! not know the node, and the node then registers again. If the only NameNode, or one that leads,
//! refuses the registration permanently, the DataNode exits.
//!
//! Of several NameNodes, one leads, and only that one gives commands. Each leadership has a higher
//! epoch. The node executes the commands of the highest epoch that any NameNode has sent it, and
//! acknowledges that epoch to each NameNode, in a heartbeat, when that NameNode has all reports
//! about what was deleted before (ADR 0042).

use super::{
    error::{DataNodeError, Refusal, RefusalKind},
    layout::NameNodeStart,
    node::{NameNodeQueries, Node},
    pending_reports::{Batch, LinkId, ReplicaEvent},
    queues::BlockCommand,
    store::FatalErrorSender,
};
use daemon::MasterAddrs;
use dfs_client::{
    error::{Kind, from_status},
    ids::{BlockId, Nonce},
    masters::{AnyReply, Boxed, CallError, Masters},
};
use proto::{
    DATANODE_PROTOCOL,
    dfs::{
        BadReplica, CheckBlock, Command, DataNodeAddress, FullReportRequest, HeartbeatReply,
        HeartbeatRequest, MayFinaliseReply, MayFinaliseRequest, NamedBlock, RegisterRequest, Replica,
        block_reports_client::BlockReportsClient, command,
    },
};
use security::{BlockToken, Credentials, Role};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};

/// The name that DataNodes claim in calls.
const USER: &str = "datanode";
/// Maximum number of replicas per message of a full report.
const REPORT_REPLICAS_MAX: usize = 50_000;
/// Minimum time between two heartbeats. Reports within this time share a heartbeat.
const HEARTBEAT_GAP: Duration = Duration::from_millis(5);
/// Number of heartbeats that a node sends at short intervals after its last queued copy has ended,
/// to get commands for more copies. One heartbeat is not enough, because the target of the copy may
/// report it to the NameNode a little later.
const COPY_POLLS: u32 = 10;
/// Interval between these `COPY_POLLS` heartbeats.
const COPY_POLL_GAP: Duration = Duration::from_millis(20);
/// The timeout for a query to the NameNode during a write is `transfer_timeout` divided by this
/// number.
const QUERY_TIMEOUT_DIVISOR: u32 = 6;
/// The timeout for one attempt of such a query.
const QUERY_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connecting to a NameNode may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stopping node waits for the reply to its last message.
const STOP_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before the first retry of a call to the NameNode.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Maximum wait before a retry.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The connection of one node to one NameNode.
#[derive(Debug)]
pub(super) struct Link {
    node: Arc<Node>,
    client: BlockReportsClient<Channel>,
    namenode: String,
    address: DataNodeAddress,
    incarnation: u64,
    seq: u64,
    /// The reports that this NameNode has not received.
    reports: LinkId,
    /// The epoch that the node has acknowledged to this NameNode.
    acknowledged: u64,
    /// Why the last call has failed, which is logged once.
    failure: String,
    ready: watch::Sender<bool>,
    fatal_error: FatalErrorSender,
}

impl Link {
    /// Creates the connection. Nothing is sent before `run`.
    pub(super) fn new(
        node: Arc<Node>,
        namenode: &str,
        address: DataNodeAddress,
        ready: watch::Sender<bool>,
        fatal_error: FatalErrorSender,
    ) -> Result<Self, DataNodeError> {
        let client = client_of(&node.credentials, namenode, CONNECT_TIMEOUT, Duration::from_secs(10))?;
        Ok(Self {
            client,
            namenode: namenode.into(),
            address,
            incarnation: node.store.incarnation,
            seq: 0,
            reports: node.store.pending_reports.add_link(),
            acknowledged: 0,
            failure: String::new(),
            ready,
            fatal_error,
            node,
        })
    }

    /// Runs until the NameNode refuses the node.
    pub(super) async fn run(mut self) {
        let mut retry = Retry::default();
        loop {
            match self.register_and_report().await {
                Ok(interval) => {
                    retry = Retry::default();
                    self.failure.clear();
                    self.send_heartbeats(interval).await;
                }
                Err(RegistrationError::Transient(why)) => {
                    if self.is_new_failure(&why) {
                        tracing::warn!(namenode = self.namenode, why, "not registered yet; retrying");
                    }
                    retry.pause().await;
                }
                Err(RegistrationError::Older(why)) => {
                    // Do not end the DataNode: it can register when the NameNode runs from its
                    // newest folder.
                    if self.is_new_failure(&why) {
                        tracing::error!(
                            namenode = self.namenode,
                            why,
                            "not registered: an older NameNode runs"
                        );
                    }
                    retry.pause().await;
                }
                Err(RegistrationError::Final(error)) => {
                    self.fatal_error.send(error).ok();
                    return;
                }
            }
        }
    }

    /// Notes that a call has failed. Returns whether the reason is not that of the last failure.
    fn is_new_failure(&mut self, why: &str) -> bool {
        self.node.store.pending_reports.set_unreachable(self.reports);
        let is_new = self.failure != why;
        why.clone_into(&mut self.failure);
        is_new
    }

    /// Registers and sends a full report. Returns the heartbeat interval.
    async fn register_and_report(&mut self) -> Result<Duration, RegistrationError> {
        let (known, namenode_start) = (self.node.store.cluster_id(), self.node.store.namenode_start());
        let register = RegisterRequest {
            address: Some(self.address.clone()),
            incarnation: self.incarnation,
            cluster_id: known.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: DATANODE_PROTOCOL,
            seen_epoch: namenode_start.epoch,
            seen_start: namenode_start.start(),
            usage: Some(self.node.store.usage()),
            declared_new: self.node.store.declared_new,
        };
        let reply = self.client.register(self.node.signed_request(register)).await;
        let reply = reply.map_err(|status| self.registration_error(&status))?.into_inner();
        if !known.is_empty() && known != reply.cluster_id {
            let message = format!(
                "it belongs to cluster {}, but these data folders belong to cluster {known}",
                reply.cluster_id
            );
            return Err(self.refusal(message, false));
        }
        if reply.epoch < namenode_start.epoch {
            let message = format!(
                "it is start {} of the NameNode, but this DataNode has registered with start {}: it runs from an older \
                 copy of its folder",
                reply.epoch, namenode_start.epoch
            );
            return Err(RegistrationError::Older(message));
        }
        // Store the start before reporting: a node that has reported its replicas to a NameNode
        // must not accept an older one. A leader has forgotten what it has ordered before.
        let start = NameNodeStart::new(reply.epoch, reply.start);
        let acknowledged = self.acknowledge(reply.cluster_id.clone(), start, reply.leads).await;
        acknowledged.map_err(RegistrationError::Transient)?;
        self.acknowledged = self.node.epoch.get();
        self.node.store.pending_reports.begin_full_report(self.reports);
        let count = self.send_full_report().await?;
        self.report_quarantined().await;
        if reply.leads {
            self.ready.send_replace(true);
        }
        tracing::info!(namenode = self.namenode, cluster = reply.cluster_id, replicas = count, "registered");
        Ok(Duration::from_millis(if reply.heartbeat_ms == 0 { 1000 } else { reply.heartbeat_ms }))
    }

    /// Acknowledges a start of a NameNode, see [`Node::acknowledge`].
    async fn acknowledge(
        &self,
        cluster_id: String,
        start: NameNodeStart,
        forget: bool,
    ) -> Result<(), String> {
        let node = self.node.clone();
        let stored = tokio::task::spawn_blocking(move || node.acknowledge(&cluster_id, &start, forget)).await;
        let stored = stored.map_err(|error| error.to_string());
        stored
            .and_then(|stored| stored.map_err(|refusal| refusal.message))
            .map_err(|why| format!("cannot write the start of the NameNode to VERSION: {why}"))
    }

    async fn send_full_report(&mut self) -> Result<usize, RegistrationError> {
        let all = self.node.store.replicas();
        let pieces = all.len().div_ceil(REPORT_REPLICAS_MAX).max(1);
        for piece in 0..pieces {
            let from = piece * REPORT_REPLICAS_MAX;
            let replicas = &all[from..all.len().min(from + REPORT_REPLICAS_MAX)];
            let request = FullReportRequest {
                uuid: self.address.uuid.clone(),
                incarnation: self.incarnation,
                chunk: piece as u32,
                last: piece + 1 == pieces,
                replicas: replicas
                    .iter()
                    .map(|(block, one)| replica(*block, one.nonce, one.length))
                    .collect(),
            };
            // After any error the node registers again. The NameNode can then refuse the
            // registration.
            let sent = self.client.full_report(self.node.signed_request(request)).await;
            sent.map_err(|status| RegistrationError::Transient(security::call_failure(&status)))?;
        }
        Ok(all.len())
    }

    /// Reports the quarantined replicas, because the NameNode orders the deletion only of replicas
    /// that it knows. A block that also has a replica in the map of the store is not reported. That
    /// replica is checked; if it is good, the quarantined replica is deleted.
    async fn report_quarantined(&self) {
        let node = self.node.clone();
        let duplicates = tokio::task::spawn_blocking(move || node.store.post_quarantined()).await;
        for block in duplicates.unwrap_or_default() {
            let queues = &self.node.command_queues;
            queues.add(queues.period(), BlockCommand::Check(block));
        }
    }

    /// Sends heartbeats until the NameNode requests a new registration or refuses a heartbeat.
    async fn send_heartbeats(&mut self, interval: Duration) {
        let node = self.node.clone();
        let mut retry = Retry::default();
        // A heartbeat is sent again unchanged until it is answered. The NameNode may have processed
        // it, and then repeats the same reply, so that no command is lost with a reply.
        let mut unanswered = None;
        let mut copy_polls = 0_u32;
        loop {
            let sent_at = Instant::now();
            let (request, batch) = unanswered.get_or_insert_with(|| self.heartbeat());
            let leads;
            match self.client.heartbeat(node.signed_request(request.clone())).await {
                Ok(reply) => {
                    retry = Retry::default();
                    self.failure.clear();
                    let reply = reply.into_inner();
                    if reply.register_again {
                        tracing::info!(
                            namenode = self.namenode,
                            "the NameNode does not know this DataNode: registering again"
                        );
                        return;
                    }
                    if node.store.pending_reports.acknowledge(self.reports, batch) {
                        tracing::info!(
                            namenode = self.namenode,
                            "the NameNode has missed too many reports: registering again"
                        );
                        return;
                    }
                    self.note_start(&reply).await;
                    leads = reply.leads;
                    if self.enqueue_commands(reply) {
                        copy_polls = 0;
                    }
                    unanswered = None;
                }
                Err(status) => {
                    let why = security::call_failure(&status);
                    if self.is_new_failure(&why) {
                        tracing::warn!(namenode = self.namenode, why, "heartbeat failed");
                    }
                    retry.pause().await;
                    if refuses_heartbeat(&status) {
                        return;
                    }
                    continue;
                }
            }
            let wait = if copy_polls > 0 { COPY_POLL_GAP.min(interval) } else { interval };
            copy_polls = copy_polls.saturating_sub(1);
            tokio::time::sleep_until(sent_at + HEARTBEAT_GAP).await;
            tokio::select! {
                biased;
                () = node.command_queues.copies_ran_out(), if leads => copy_polls = COPY_POLLS,
                () = node.store.pending_reports.wait_woken(self.reports) => {}
                () = tokio::time::sleep_until(sent_at + wait) => {}
            }
        }
    }

    /// Notes the start in a reply: acknowledges it if it is new, and whether the NameNode leads.
    async fn note_start(&self, reply: &HeartbeatReply) {
        if reply.epoch > self.node.store.namenode_start().epoch {
            let start = NameNodeStart::new(reply.epoch, reply.start);
            match self.acknowledge(self.node.store.cluster_id(), start, false).await {
                Ok(()) => tracing::info!(
                    namenode = self.namenode,
                    epoch = reply.epoch,
                    "acknowledged a new epoch of the NameNode"
                ),
                Err(why) => tracing::warn!(namenode = self.namenode, why, "new epoch not acknowledged"),
            }
        }
        if reply.leads {
            self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
        }
    }

    fn heartbeat(&mut self) -> (HeartbeatRequest, Batch) {
        // Read the epoch first: what was deleted before it was acknowledged is then among the
        // reports. If these do not all fit, the NameNode must not take it as acknowledged.
        let epoch = self.node.epoch.get();
        let batch = self.node.store.pending_reports.batch(self.reports);
        if batch.is_complete {
            self.acknowledged = epoch;
        }
        self.seq += 1;
        let mut request = HeartbeatRequest {
            uuid: self.address.uuid.clone(),
            incarnation: self.incarnation,
            seq: self.seq,
            epoch: self.acknowledged,
            transfers: self.node.connections.count() as u32,
            usage: Some(self.node.store.usage()),
            ..HeartbeatRequest::default()
        };
        for (block, event) in &batch.reports {
            match event {
                ReplicaEvent::Received(nonce, length) => {
                    request.received.push(replica(*block, *nonce, *length));
                }
                ReplicaEvent::Deleted => request.deleted.push(block.0),
                ReplicaEvent::Lost => request.lost.push(block.0),
                ReplicaEvent::Checked => request.checked.push(block.0),
                ReplicaEvent::Corrupt(reason) => {
                    request.bad.push(BadReplica { block_id: block.0, reason: reason.clone() });
                }
            }
        }
        (request, batch)
    }

    /// Adds the commands of a reply to the queues, if no NameNode has a later epoch. Returns whether
    /// one of them is a copy.
    fn enqueue_commands(&self, reply: HeartbeatReply) -> bool {
        let queues = &self.node.command_queues;
        let period = queues.period();
        let known = self.node.store.namenode_start().epoch;
        if reply.epoch != known {
            if !reply.commands.is_empty() {
                let (namenode, epoch) = (&self.namenode, reply.epoch);
                tracing::info!(namenode, epoch, known, "commands of another epoch refused");
            }
            return false;
        }
        let mut copies = false;
        for Command { kind } in reply.commands {
            let block_command = match kind {
                Some(command::Kind::Copy(copy)) => {
                    let token = BlockToken::from_bytes(&copy.token);
                    copies = true;
                    BlockCommand::Copy {
                        block: BlockId(copy.block_id),
                        nonce: Nonce(copy.nonce),
                        length: copy.length,
                        targets: copy.targets,
                        token,
                    }
                }
                Some(command::Kind::Delete(delete)) => {
                    let named = |block: NamedBlock| (BlockId(block.block_id), Nonce(block.nonce));
                    let blocks = delete.blocks.into_iter().map(named).collect();
                    BlockCommand::Delete { blocks, newest: self.node.store.newest_serial() }
                }
                Some(command::Kind::Check(CheckBlock { block: Some(block) })) => {
                    BlockCommand::Check(BlockId(block.block_id))
                }
                _ => {
                    tracing::warn!("unknown command of the NameNode ignored");
                    continue;
                }
            };
            queues.add(period, block_command);
        }
        copies
    }

    /// Classifies a failed registration.
    fn registration_error(&self, status: &Status) -> RegistrationError {
        let message = security::call_failure(status);
        let mut leads = false;
        let transient = match from_status(status) {
            Some(error) if error.kind == Kind::OlderNameNode => return RegistrationError::Older(message),
            Some(error) => {
                // One that does not lead never answers this.
                leads = error.kind == Kind::Refused;
                error.is_transient()
            }
            None => matches!(
                status.code(),
                Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::Cancelled
                    | Code::Unknown
                    | Code::Internal
                    | Code::Aborted
                    | Code::ResourceExhausted
            ),
        };
        if transient { RegistrationError::Transient(message) } else { self.refusal(message, leads) }
    }

    /// Returns the error for a refusal that a repetition does not change. One of several NameNodes
    /// may run another build or belong to another cluster: it ends this node only if it leads.
    fn refusal(&self, message: String, leads: bool) -> RegistrationError {
        if leads || self.node.queries.masters.is_single() {
            RegistrationError::Final(DataNodeError::Refused { namenode: self.namenode.clone(), message })
        } else {
            RegistrationError::Transient(message)
        }
    }
}

/// Reports to the NameNodes that this node stops, so that they do not have to wait for missing
/// heartbeats. Errors are only logged. No other heartbeat may follow.
pub(super) async fn report_stop(node: &Arc<Node>, namenodes: &MasterAddrs) {
    let mut calls = JoinSet::new();
    for namenode in namenodes.iter() {
        let (node, namenode) = (node.clone(), namenode.clone());
        calls.spawn(async move { report_stop_to(&node, &namenode).await });
    }
    calls.join_all().await;
}

async fn report_stop_to(node: &Node, namenode: &str) {
    let Ok(mut client) = client_of(&node.credentials, namenode, STOP_REPORT_TIMEOUT, STOP_REPORT_TIMEOUT)
    else {
        return;
    };
    let request = HeartbeatRequest {
        uuid: node.uuid(),
        incarnation: node.store.incarnation,
        leaving: true,
        usage: Some(node.store.usage()),
        ..HeartbeatRequest::default()
    };
    if let Err(status) = client.heartbeat(node.signed_request(request)).await {
        tracing::warn!(namenode, why = status.message(), "could not report the stop to the NameNode");
    }
}

/// Returns whether the NameNode has refused a heartbeat or cannot decode it, so that sending it
/// again has the same result. The reply to a new registration shows the reason, for example a
/// different version.
fn refuses_heartbeat(status: &Status) -> bool {
    match from_status(status) {
        Some(error) => !error.is_transient(),
        // `Internal` is the code for a message that cannot be decoded.
        None => matches!(
            status.code(),
            Code::Internal | Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented
        ),
    }
}

fn client_of(
    credentials: &Credentials,
    namenode: &str,
    connect: Duration,
    call: Duration,
) -> Result<BlockReportsClient<Channel>, DataNodeError> {
    let malformed = || DataNodeError::NameNode(namenode.into());
    if namenode.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(malformed());
    }
    let endpoint = credentials.endpoint(namenode, Role::NameNode).ok_or_else(malformed)?;
    let endpoint =
        endpoint.with(|endpoint| endpoint.connect_timeout(connect).timeout(call).tcp_nodelay(true));
    let channel = endpoint.connect_lazy();
    Ok(BlockReportsClient::new(channel))
}

enum RegistrationError {
    Transient(String),
    /// The NameNode runs from an older copy of its folder: this node has registered with a later
    /// start.
    Older(String),
    Final(DataNodeError),
}

/// The time to wait before the next retry. It doubles, with jitter, so that many nodes do not retry
/// at the same time.
struct Retry(Duration);

impl Default for Retry {
    fn default() -> Self {
        Self(RETRY_FIRST)
    }
}

impl Retry {
    async fn pause(&mut self) {
        tokio::time::sleep(self.0.mul_f64(rand::random_range(0.5..1.0))).await;
        self.0 = (self.0 * 2).min(RETRY_MAX);
    }
}

fn replica(block: BlockId, nonce: Nonce, length: u64) -> Replica {
    Replica { block_id: block.0, length, nonce: nonce.0 }
}

impl NameNodeQueries {
    /// Creates connections for queries. Must be called within a tokio runtime.
    pub(super) fn new(credentials: &Credentials, namenodes: &MasterAddrs) -> Result<Self, DataNodeError> {
        let user = MetadataValue::from_static(USER);
        let masters = Masters::new(Role::NameNode, namenodes, credentials.clone(), user, |endpoint| {
            endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(QUERY_ATTEMPT_TIMEOUT).tcp_nodelay(true)
        });
        let masters = masters.map_err(DataNodeError::NameNode)?;
        Ok(Self { masters, runtime: tokio::runtime::Handle::current() })
    }
}

impl Node {
    /// Checks with the leading NameNode that the block is still being written, so that the received
    /// bytes may become a replica. This is needed because a token is valid for longer than the
    /// write, and a committed block must not change. If no NameNode answers, retries for a while and
    /// then refuses. The writer then tries the other nodes, and so finds out whether only this node
    /// cannot reach the NameNode.
    pub(super) fn may_finalise(&self, block: BlockId, nonce: Nonce) -> Result<(), Refusal> {
        let within = self.config.transfer_timeout.0 / QUERY_TIMEOUT_DIVISOR;
        let ask = |channel: Channel| -> Boxed<'static, Result<AnyReply, Status>> {
            let request = self.signed_request(MayFinaliseRequest { block_id: block.0, nonce: nonce.0 });
            Box::pin(async move {
                let reply = BlockReportsClient::new(channel).may_finalise(request).await?;
                Ok(Box::new(reply.into_inner()) as AnyReply)
            })
        };
        let query = async {
            let mut retry = Retry::default();
            loop {
                let reply = self.queries.masters.call(QUERY_ATTEMPT_TIMEOUT, within, &ask).await;
                let why = match reply.map(AnyReply::downcast::<MayFinaliseReply>) {
                    Ok(Ok(reply)) if reply.open => return Ok(()),
                    Ok(Ok(_)) => {
                        let message = format!("{block} is closed: it can no longer be written");
                        return Err(Refusal::new(RefusalKind::Denied, message));
                    }
                    Ok(Err(_)) => "the reply has the wrong type".into(),
                    Err(CallError::Status(status)) => status.message().to_owned(),
                    Err(CallError::Silent) => "the NameNode does not answer".into(),
                    Err(CallError::NoLeader(why)) => why,
                };
                if self.stop.is_stopping() {
                    return Err(Refusal::new(RefusalKind::NameNodeUnavailable, why));
                }
                retry.pause().await;
            }
        };
        let answer = self.queries.runtime.block_on(async { tokio::time::timeout(within, query).await });
        answer.unwrap_or_else(|_| {
            let message = format!("cannot reach the NameNode to check that {block} may be written");
            Err(Refusal::new(RefusalKind::NameNodeUnavailable, message))
        })
    }

    /// Creates a request with the credentials of this node.
    fn signed_request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.credentials.sign(request.metadata_mut(), &MetadataValue::from_static(USER));
        request
    }
}
