//! Direct RPCs to the NameNode that generate load. They skip retries and checks to use little CPU
//! time, because the load generator and the NameNode share a machine. They use wire types directly.

use anyhow::{Context, Result, ensure};
use proto::dfs::{
    AddBlockRequest, BlockLength, CloseRequest, CreateRequest, DataNodeAddress, FullReportRequest,
    HeartbeatRequest, OnAbandon, RegisterRequest, Replica, StatRequest, Usage,
    block_reports_client::BlockReportsClient, name_node_client::NameNodeClient,
};
use security::{Credentials, Role};
use tokio::sync::Mutex;
use tonic::transport::Channel;
use uuid::Uuid;

/// The length of each simulated block, in bytes.
const BLOCK_BYTES: u64 = 64 << 20;

/// Returns the space that a simulated DataNode reports.
fn usage() -> Usage {
    Usage { capacity: u64::MAX >> 4, free: u64::MAX >> 4, volumes: 1, ..Usage::default() }
}

/// Connects to a master. Certificates authenticate the connection; the calls have no credentials.
pub(crate) async fn connect(addr: &str, credentials: &Credentials, master: Role) -> Result<Channel> {
    let endpoint = credentials.endpoint(addr, master).context("the address is not host:port")?;
    endpoint
        .with(|endpoint| endpoint.tcp_nodelay(true))
        .connect()
        .await
        .with_context(|| format!("cannot connect to {addr}"))
}

/// A client of the NameNode.
pub(crate) struct Caller {
    rpc: NameNodeClient<Channel>,
    holder: String,
}

/// A file that is being written.
pub(crate) struct OpenFile {
    id: u64,
    /// The ID and nonce of each block of the file so far.
    pub(crate) blocks: Vec<(u64, u64)>,
}

fn request_id() -> Vec<u8> {
    Uuid::new_v4().as_bytes().to_vec()
}

impl Caller {
    /// Creates a client that uses a shared connection.
    pub(crate) fn new(channel: Channel) -> Self {
        Self { rpc: NameNodeClient::new(channel), holder: Uuid::new_v4().to_string() }
    }

    /// Calls stat for a path.
    pub(crate) async fn stat(&mut self, path: &str) -> Result<()> {
        self.rpc
            .stat(StatRequest { path: path.into(), for_create: false, entries: 0, access: 0 })
            .await
            .with_context(|| format!("stat {path}"))?;
        Ok(())
    }

    /// Creates a file durably.
    pub(crate) async fn create(&mut self, path: &str) -> Result<OpenFile> {
        let request = CreateRequest {
            request_id: request_id(),
            path: path.into(),
            holder: self.holder.clone(),
            make_parents: true,
            block_size: BLOCK_BYTES,
            on_abandon: OnAbandon::Delete.into(),
            ..CreateRequest::default()
        };
        let reply = self.rpc.create(request).await.with_context(|| format!("create {path}"))?;
        let status = reply.into_inner().status.context("create: the reply has no status")?;
        Ok(OpenFile { id: status.file_id, blocks: vec![] })
    }

    /// Adds a block, and commits the previous one as full.
    pub(crate) async fn add_block(&mut self, file: &mut OpenFile) -> Result<()> {
        let request = AddBlockRequest {
            request_id: request_id(),
            file_id: file.id,
            holder: self.holder.clone(),
            commits: last_block_length(file),
            ..AddBlockRequest::default()
        };
        let reply = self.rpc.add_block(request).await.context("add a block")?;
        let block = reply.into_inner().block.context("add a block: the reply has no block")?;
        file.blocks.push((block.block_id, block.nonce));
        Ok(())
    }

    /// Closes a file whose blocks have been reported.
    pub(crate) async fn close(&mut self, file: OpenFile) -> Result<()> {
        let request = CloseRequest {
            request_id: request_id(),
            file_id: file.id,
            holder: self.holder.clone(),
            commits: last_block_length(&file),
            ..CloseRequest::default()
        };
        self.rpc.close(request).await.context("close a file")?;
        Ok(())
    }
}

fn last_block_length(file: &OpenFile) -> Vec<BlockLength> {
    file.blocks.last().map(|(id, _)| BlockLength { block_id: *id, length: BLOCK_BYTES }).into_iter().collect()
}

/// A simulated DataNode that stores nothing and only sends reports. It has unlimited space and
/// reports all blocks that it is given.
pub(crate) struct FakeDataNode {
    uuid: String,
    // Heartbeats of one DataNode must be sent one after another.
    state: Mutex<(BlockReportsClient<Channel>, u64)>,
}

impl FakeDataNode {
    /// Registers a DataNode called `name`.
    pub(crate) async fn register(channel: Channel, name: &str) -> Result<Self> {
        let mut rpc = BlockReportsClient::new(channel);
        let uuid = Uuid::new_v4().to_string();
        let address = DataNodeAddress {
            node: name.into(),
            uuid: uuid.clone(),
            data_addr: "127.0.0.1:1".into(),
            rack: "rack1".into(),
            local_socket: String::new(),
            host: name.into(),
            seal: Vec::new(),
        };
        let register = RegisterRequest {
            address: Some(address),
            incarnation: 1,
            cluster_id: String::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: proto::DATANODE_PROTOCOL,
            seen_epoch: 0,
            seen_start: 0,
            usage: Some(usage()),
            declared_new: true,
        };
        rpc.register(register).await.with_context(|| format!("register {name}"))?;
        let empty =
            FullReportRequest { uuid: uuid.clone(), incarnation: 1, chunk: 0, last: true, replicas: vec![] };
        rpc.full_report(empty).await.with_context(|| format!("report of {name}"))?;
        let datanode = Self { uuid, state: Mutex::new((rpc, 0)) };
        datanode.report(&[]).await?;
        Ok(datanode)
    }

    /// Reports that complete replicas of `blocks` have arrived.
    pub(crate) async fn report(&self, blocks: &[(u64, u64)]) -> Result<()> {
        let replica =
            |(id, nonce): &(u64, u64)| Replica { block_id: *id, length: BLOCK_BYTES, nonce: *nonce };
        let received = blocks.iter().map(replica).collect();
        let mut state = self.state.lock().await;
        state.1 += 1;
        let heartbeat = HeartbeatRequest {
            uuid: self.uuid.clone(),
            incarnation: 1,
            seq: state.1,
            usage: Some(usage()),
            received,
            ..HeartbeatRequest::default()
        };
        let reply = state.0.heartbeat(heartbeat).await.context("heartbeat")?;
        ensure!(!reply.into_inner().register_again, "the namenode has forgotten a simulated datanode");
        Ok(())
    }
}
