//! The connection to the NameNode: registration, full report, then heartbeats with new reports.
//!
//! The data path never waits for this connection. While the NameNode is unreachable, reports are
//! collected and sent later. A restarted NameNode does not know the node, and the node then
//! registers again. If the NameNode refuses the registration, the DataNode ends.

use super::{
    error::{DataNodeError, Refusal, RefusalKind},
    layout::NameNodeStart,
    node::{NameNodeQueries, Node},
    pending_reports::{Batch, Item},
    queues::BlockCommand,
    store::Alarm,
};
use dfs_client::{
    error::{Kind, from_status},
    ids::{BlockId, Nonce},
};
use proto::{
    DATANODE_PROTOCOL,
    dfs::{
        BadReplica, CheckBlock, Command, DataNodeAddress, FullReportRequest, HeartbeatReply,
        HeartbeatRequest, MayFinaliseRequest, NamedBlock, RegisterRequest, Replica,
        block_reports_client::BlockReportsClient, command,
    },
};
use security::{BlockToken, Credentials, Role};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};

/// Number of replicas per message of a full report.
const REPORT_REPLICAS_MAX: usize = 50_000;
/// Minimum time between two heartbeats. Reports within this time share a heartbeat.
const HEARTBEAT_GAP: Duration = Duration::from_millis(5);
/// How often and at which interval a node asks for more copies after its last copy has ended. The
/// NameNode may get the report of the target of that copy a little later.
const POLL_TIMES: u32 = 10;
const POLL_GAP: Duration = Duration::from_millis(20);
/// Timeout for a call to the NameNode in the data path, as a fraction of the timeout of writers.
const ASK_TIMEOUT_DIVISOR: u32 = 6;
/// How long a stopping node waits for the reply to its last message.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The connection of one node to the NameNode.
#[derive(Debug)]
pub(super) struct Link {
    node: Arc<Node>,
    client: BlockReportsClient<Channel>,
    namenode: String,
    address: DataNodeAddress,
    incarnation: u64,
    seq: u64,
    ready: watch::Sender<bool>,
    alarm: Alarm,
}

impl Link {
    /// Creates the connection. Nothing is sent before `run`.
    pub(super) fn new(
        node: Arc<Node>,
        namenode: &str,
        address: DataNodeAddress,
        ready: watch::Sender<bool>,
        alarm: Alarm,
    ) -> Result<Self, DataNodeError> {
        let client = client_of(&node.credentials, namenode, Duration::from_secs(2), Duration::from_secs(10))?;
        let incarnation = node.store.incarnation;
        Ok(Self { node, client, namenode: namenode.into(), address, incarnation, seq: 0, ready, alarm })
    }

    /// Runs until the NameNode refuses the node.
    pub(super) async fn run(mut self) {
        let mut retry = Retry::default();
        let mut refused = None;
        loop {
            match self.join().await {
                Ok(interval) => {
                    (retry, refused) = (Retry::default(), None);
                    self.ready.send_replace(true);
                    self.beat(interval).await;
                    self.node.command_queues.forget_deletions();
                }
                Err(RegistrationError::Transient(why)) => {
                    tracing::warn!(namenode = self.namenode, why, "not registered yet; retrying");
                    retry.pause().await;
                }
                Err(RegistrationError::Older(why)) => {
                    // The DataNode does not end: it can register when the newest NameNode runs.
                    if refused.replace(why.clone()).as_ref() != Some(&why) {
                        tracing::error!(
                            namenode = self.namenode,
                            why,
                            "not registered: an older NameNode runs"
                        );
                    }
                    retry.pause().await;
                }
                Err(RegistrationError::Final(error)) => {
                    self.alarm.send(error).ok();
                    return;
                }
            }
        }
    }

    /// Registers and sends a full report. Returns the heartbeat interval.
    async fn join(&mut self) -> Result<Duration, RegistrationError> {
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
        let reply = self.client.register(self.node.call(register)).await;
        let reply = reply.map_err(|status| self.registration_error(&status))?.into_inner();
        if !known.is_empty() && known != reply.cluster_id {
            let message = format!(
                "its cluster is {}, but these data folders belong to cluster {known}",
                reply.cluster_id
            );
            return Err(RegistrationError::Final(DataNodeError::Refused {
                namenode: self.namenode.clone(),
                message,
            }));
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
        // must not accept an older one.
        let now = NameNodeStart::new(reply.epoch, reply.start);
        if known.is_empty() || now != namenode_start {
            let (node, cluster) = (self.node.clone(), reply.cluster_id.clone());
            let stored = tokio::task::spawn_blocking(move || node.store.join_cluster(&cluster, now)).await;
            let not_stored = |why: String| {
                RegistrationError::Transient(format!("cannot store the NameNode's start: {why}"))
            };
            stored
                .map_err(|error| not_stored(error.to_string()))?
                .map_err(|refusal| not_stored(refusal.message))?;
        }
        let count = self.report().await?;
        self.report_quarantined().await;
        tracing::info!(namenode = self.namenode, cluster = reply.cluster_id, replicas = count, "registered");
        Ok(Duration::from_millis(if reply.heartbeat_ms == 0 { 1000 } else { reply.heartbeat_ms }))
    }

    async fn report(&mut self) -> Result<usize, RegistrationError> {
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
            let sent = self.client.full_report(self.node.call(request)).await;
            sent.map_err(|status| RegistrationError::Transient(security::call_failure(&status)))?;
        }
        Ok(all.len())
    }

    /// Reports the quarantined replicas. The NameNode orders the deletion only of replicas that it
    /// knows. If another folder has a second replica of the block, that replica is checked first;
    /// if it is good, the quarantined one is deleted.
    async fn report_quarantined(&self) {
        let node = self.node.clone();
        let duplicates = tokio::task::spawn_blocking(move || node.store.post_quarantined()).await;
        for block in duplicates.unwrap_or_default() {
            self.node.command_queues.add(BlockCommand::Check(block));
        }
    }

    /// Sends heartbeats until the NameNode requests a new registration.
    async fn beat(&mut self, interval: Duration) {
        let node = self.node.clone();
        let mut retry = Retry::default();
        // A heartbeat is sent again unchanged until it is answered. The NameNode may have processed
        // it, and then repeats the same reply, so that no command is lost with a reply.
        let mut unanswered = None;
        let mut queries = 0;
        loop {
            let sent_at = Instant::now();
            if node.command_queues.ran_out() {
                queries = POLL_TIMES;
            }
            let (request, batch) = unanswered.get_or_insert_with(|| {
                let batch = node.store.pending_reports.batch();
                (self.heartbeat(&batch), batch)
            });
            match self.client.heartbeat(node.call(request.clone())).await {
                Ok(reply) => {
                    retry = Retry::default();
                    let reply = reply.into_inner();
                    if reply.register_again {
                        tracing::info!("the NameNode does not know this DataNode: registering again");
                        return;
                    }
                    node.store.pending_reports.acknowledge(batch);
                    if self.enqueue_commands(reply) {
                        queries = 0;
                    }
                    unanswered = None;
                }
                Err(status) => {
                    tracing::warn!(
                        namenode = self.namenode,
                        why = security::call_failure(&status),
                        "heartbeat failed"
                    );
                    retry.pause().await;
                    if refuses_heartbeat(&status) {
                        return;
                    }
                    continue;
                }
            }
            let wait = if queries > 0 { POLL_GAP.min(interval) } else { interval };
            queries = queries.saturating_sub(1);
            tokio::time::sleep_until(sent_at + HEARTBEAT_GAP).await;
            tokio::select! {
                () = node.store.pending_reports.wait_woken() => {}
                () = tokio::time::sleep_until(sent_at + wait) => {}
            }
        }
    }

    fn heartbeat(&mut self, batch: &Batch) -> HeartbeatRequest {
        self.seq += 1;
        let mut request = HeartbeatRequest {
            uuid: self.address.uuid.clone(),
            incarnation: self.incarnation,
            seq: self.seq,
            transfers: self.node.connections.count() as u32,
            usage: Some(self.node.store.usage()),
            ..HeartbeatRequest::default()
        };
        for (block, _, item) in batch {
            match item {
                Item::Received(nonce, length) => request.received.push(replica(*block, *nonce, *length)),
                Item::Deleted => request.deleted.push(block.0),
                Item::Lost => request.lost.push(block.0),
                Item::Checked => request.checked.push(block.0),
                Item::Corrupt(reason) => {
                    request.bad.push(BadReplica { block_id: block.0, reason: reason.clone() });
                }
            }
        }
        request
    }

    /// Queues the commands. Returns whether one of them is a copy.
    fn enqueue_commands(&self, reply: HeartbeatReply) -> bool {
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
                    BlockCommand::Delete(delete.blocks.into_iter().map(named).collect())
                }
                Some(command::Kind::Check(CheckBlock { block: Some(block) })) => {
                    BlockCommand::Check(BlockId(block.block_id))
                }
                _ => {
                    tracing::warn!("unknown command of the NameNode ignored");
                    continue;
                }
            };
            self.node.command_queues.add(block_command);
        }
        copies
    }

    /// Classifies a failed registration.
    fn registration_error(&self, status: &Status) -> RegistrationError {
        let message = security::call_failure(status);
        let transient = match from_status(status) {
            Some(error) if error.kind == Kind::OlderNameNode => return RegistrationError::Older(message),
            Some(error) => error.is_transient(),
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
        if transient {
            RegistrationError::Transient(message)
        } else {
            RegistrationError::Final(DataNodeError::Refused { namenode: self.namenode.clone(), message })
        }
    }
}

/// Reports to the NameNode that this node stops, so that the NameNode does not have to wait for
/// missing heartbeats. Best effort. The heartbeats must have ended before.
pub(super) async fn goodbye(node: &Node, namenode: &str, uuid: &str) {
    let Ok(mut client) = client_of(&node.credentials, namenode, GOODBYE_TIMEOUT, GOODBYE_TIMEOUT) else {
        return;
    };
    let request = HeartbeatRequest {
        uuid: uuid.into(),
        incarnation: node.store.incarnation,
        leaving: true,
        usage: Some(node.store.usage()),
        ..HeartbeatRequest::default()
    };
    if let Err(status) = client.heartbeat(node.call(request)).await {
        tracing::warn!(namenode, why = status.message(), "could not report the stop to the NameNode");
    }
}

/// Whether the NameNode has refused a heartbeat or cannot read it, so that a repetition has the
/// same result. A new registration shows the reason, for example another version.
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
    /// The NameNode runs from an older copy of its folder than this node has registered with.
    Older(String),
    Final(DataNodeError),
}

/// Waits that grow, with jitter, so that many nodes do not retry at the same time.
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
    /// Must be called within a runtime.
    pub(super) fn new(credentials: &Credentials, namenode: &str) -> Result<Self, DataNodeError> {
        let client = client_of(credentials, namenode, Duration::from_secs(2), Duration::from_secs(5))?;
        Ok(Self { client, runtime: tokio::runtime::Handle::current() })
    }
}

impl Node {
    /// Asks the NameNode whether the block is still open, so that the received bytes may become a
    /// replica. This is needed because a token is valid for longer than the write, and a closed
    /// block must not change. Retries for a while if the NameNode does not answer. The writer then
    /// tries the other nodes, and so finds out whether only this node cannot reach the NameNode.
    pub(super) fn may_finalise(&self, block: BlockId, nonce: Nonce) -> Result<(), Refusal> {
        let query = async {
            let mut retry = Retry::default();
            loop {
                let request = self.call(MayFinaliseRequest { block_id: block.0, nonce: nonce.0 });
                match self.queries.client.clone().may_finalise(request).await {
                    Ok(reply) if reply.get_ref().open => return Ok(()),
                    Ok(_) => {
                        let message = format!("{block} is closed: it can no longer be written");
                        return Err(Refusal::new(RefusalKind::Denied, message));
                    }
                    Err(status) if self.stop.is_stopping() => {
                        return Err(Refusal::new(RefusalKind::NameNodeUnavailable, status.message()));
                    }
                    Err(_) => retry.pause().await,
                }
            }
        };
        let within = self.config.transfer_timeout.0 / ASK_TIMEOUT_DIVISOR;
        let answer = self.queries.runtime.block_on(async { tokio::time::timeout(within, query).await });
        answer.unwrap_or_else(|_| {
            let message = format!("cannot reach the NameNode to check that {block} may be written");
            Err(Refusal::new(RefusalKind::NameNodeUnavailable, message))
        })
    }

    /// Creates a request with the credentials of this node.
    fn call<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.credentials.sign(request.metadata_mut(), &MetadataValue::from_static("datanode"));
        request
    }
}
