//! A fake NameNode that records requests, DataNodes in temporary folders, and a simple writer and
//! reader of the bulk protocol.

use super::super::{DataNode, DataNodeError, disk::Disk, disk::RealDisk};
use bytes::BytesMut;
use daemon::{Bytes, Period, config::Config};
use dfs_client::{
    bulk::{FrameError, FrameKind, encode_frame, read_frame},
    checksum::{CHUNK_BYTES, sums_of, to_bytes},
};
use parking_lot::Mutex;
use proto::dfs::{
    BadReplica, BulkRequest, Command, DataNodeAddress, FullReportReply, FullReportRequest, HeartbeatReply,
    HeartbeatRequest, MayFinaliseReply, MayFinaliseRequest, NamedBlock, Packet, ReadBlock, ReadReply,
    RegisterReply, RegisterRequest, Usage, WriteBlock, WriteStatus,
    block_reports_server::{BlockReports, BlockReportsServer},
    bulk_request::Op,
    command::Kind,
};
use std::{
    collections::{BTreeMap, HashMap},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tonic::{Code, Request, Response, Status};

pub(super) const CHUNK: usize = CHUNK_BYTES;
/// The nonce of every block in these tests.
pub(super) const NONCE: u64 = 0xfeed_0000_0000_0077;

pub(super) fn named_block(block: u64) -> NamedBlock {
    NamedBlock { block_id: block, nonce: NONCE }
}

/// The requests that the fake NameNode has received from one DataNode.
#[derive(Debug, Default, Clone)]
pub(super) struct ReceivedRequests {
    pub(super) registrations: Vec<RegisterRequest>,
    pub(super) replicas: BTreeMap<u64, u64>,
    pub(super) full_reports: usize,
    pub(super) heartbeats: Vec<HeartbeatRequest>,
    pub(super) deleted: Vec<u64>,
    pub(super) bad: Vec<BadReplica>,
    pub(super) lost: Vec<u64>,
    pub(super) commands: Vec<Command>,
    /// Whether heartbeats are answered with `register_again` until the node registers.
    pub(super) forget: bool,
    /// The error code that heartbeats of the node get until it registers again.
    pub(super) refuse_heartbeats: Option<Code>,
    /// Number of heartbeats that are processed but get no reply.
    pub(super) lose_answers: usize,
    /// The sequence number and the commands of the last answered heartbeat.
    pub(super) last: Option<(u64, Vec<Command>)>,
}

impl ReceivedRequests {
    /// Returns the usage in each heartbeat.
    pub(super) fn usages(&self) -> impl Iterator<Item = &Usage> {
        self.heartbeats.iter().filter_map(|heartbeat| heartbeat.usage.as_ref())
    }
}

#[derive(Debug, Default)]
pub(super) struct Registrations {
    pub(super) nodes: HashMap<String, ReceivedRequests>,
    /// The heartbeat interval in milliseconds; 50 if `None`.
    pub(super) heartbeat_ms: Option<u64>,
    pub(super) refuse: Option<String>,
    /// ID of the cluster that the NameNode belongs to; `test-cluster` if `None`.
    pub(super) cluster_id: Option<String>,
    /// The epoch of the NameNode. A 0 is replaced by 1.
    pub(super) epoch: u64,
    /// Whether another NameNode leads.
    pub(super) follows: bool,
    /// Whether heartbeats are not answered for now.
    pub(super) is_silent: bool,
}

#[derive(Debug, Clone)]
pub(super) struct FakeNameNode {
    pub(super) registrations: Arc<Mutex<Registrations>>,
    pub(super) addr: SocketAddr,
}

impl FakeNameNode {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let fake = Self { registrations: Arc::default(), addr };
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let service = BlockReportsServer::new(fake.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        fake
    }

    pub(super) fn requests_of(&self, node: &DataNode) -> ReceivedRequests {
        self.registrations.lock().nodes.get(&node.uuid().to_string()).cloned().unwrap_or_default()
    }

    pub(super) fn command(&self, node: &DataNode, kind: Kind) {
        let mut registrations = self.registrations.lock();
        let known = registrations.nodes.entry(node.uuid().to_string()).or_default();
        known.commands.push(Command { kind: Some(kind) });
    }

    /// Waits until the requests of `node` satisfy `wanted`.
    pub(super) async fn until(
        &self,
        node: &DataNode,
        what: &str,
        wanted: impl Fn(&ReceivedRequests) -> bool,
    ) {
        wait_for(what, || wanted(&self.requests_of(node))).await;
    }
}

#[tonic::async_trait]
impl BlockReports for FakeNameNode {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        assert_eq!(request.metadata().get(security::USER_KEY).unwrap(), "datanode");
        let mut registrations = self.registrations.lock();
        if let Some(why) = &registrations.refuse {
            return Err(Status::failed_precondition(why.clone()));
        }
        let request = request.into_inner();
        let uuid = request.address.as_ref().unwrap().uuid.clone();
        let heartbeat_ms = registrations.heartbeat_ms.unwrap_or(50);
        let epoch = registrations.epoch.max(1);
        let leads = !registrations.follows;
        let cluster_id = registrations.cluster_id.clone().unwrap_or_else(|| "test-cluster".into());
        let known = registrations.nodes.entry(uuid).or_default();
        known.registrations.push(request);
        (known.forget, known.refuse_heartbeats) = (false, None);
        Ok(Response::new(RegisterReply { cluster_id, heartbeat_ms, epoch, start: epoch, leads }))
    }

    async fn full_report(
        &self,
        request: Request<FullReportRequest>,
    ) -> Result<Response<FullReportReply>, Status> {
        let request = request.into_inner();
        let mut registrations = self.registrations.lock();
        let known = registrations.nodes.entry(request.uuid).or_default();
        if request.chunk == 0 {
            known.replicas.clear();
        }
        known.replicas.extend(request.replicas.iter().map(|replica| (replica.block_id, replica.length)));
        known.full_reports += usize::from(request.last);
        Ok(Response::new(FullReportReply {}))
    }

    async fn may_finalise(
        &self,
        _: Request<MayFinaliseRequest>,
    ) -> Result<Response<MayFinaliseReply>, Status> {
        Err(Status::unimplemented("not called in an open cluster"))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatReply>, Status> {
        let request = request.into_inner();
        while self.registrations.lock().is_silent {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut registrations = self.registrations.lock();
        let epoch = registrations.epoch.max(1);
        let reply =
            HeartbeatReply { epoch, start: epoch, leads: !registrations.follows, ..Default::default() };
        let known = registrations.nodes.entry(request.uuid.clone()).or_default();
        if known.forget {
            return Ok(Response::new(HeartbeatReply { register_again: true, ..reply }));
        }
        if let Some(code) = known.refuse_heartbeats {
            return Err(Status::new(code, "heartbeats are refused"));
        }
        if let Some((_, commands)) = known.last.clone().filter(|(seq, _)| *seq == request.seq) {
            return Ok(Response::new(HeartbeatReply { commands, ..reply }));
        }
        known.replicas.extend(request.received.iter().map(|replica| (replica.block_id, replica.length)));
        let bad = request.bad.iter().map(|bad| bad.block_id);
        for gone in request.deleted.iter().chain(&request.lost).copied().chain(bad) {
            known.replicas.remove(&gone);
        }
        known.deleted.extend(&request.deleted);
        known.lost.extend(&request.lost);
        known.bad.extend(request.bad.clone());
        let commands = std::mem::take(&mut known.commands);
        known.last = Some((request.seq, commands.clone()));
        known.heartbeats.push(request);
        if known.lose_answers > 0 {
            known.lose_answers -= 1;
            return Err(Status::unavailable("the answer is lost"));
        }
        Ok(Response::new(HeartbeatReply { commands, ..reply }))
    }
}

/// A fake NameNode and a folder for DataNodes.
pub(super) struct Bench {
    pub(super) namenode: FakeNameNode,
    pub(super) home: TempDir,
}

impl Bench {
    pub(super) async fn new() -> Self {
        Self { namenode: FakeNameNode::start().await, home: tempfile::tempdir().unwrap() }
    }

    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(super) fn config(&self, name: &str) -> Config {
        let mut config = Config::default();
        config.cluster.namenode = self.namenode.addr.to_string().into();
        config.datanode.node = name.into();
        config.datanode.listen = "127.0.0.1:0".into();
        config.datanode.dirs = vec![self.dir(name)];
        config.datanode.reserve = Bytes(0);
        config.datanode.scrub_rate = Bytes(0);
        config.datanode.transfer_timeout = Period::secs(10);
        config
    }

    pub(super) async fn node(&self, name: &str) -> DataNode {
        self.node_with(&self.config(name)).await
    }

    pub(super) async fn node_with(&self, config: &Config) -> DataNode {
        self.node_on(config, Arc::new(RealDisk)).await.unwrap()
    }

    pub(super) async fn node_on(
        &self,
        config: &Config,
        disk: Arc<dyn Disk>,
    ) -> Result<DataNode, DataNodeError> {
        let node = DataNode::start_on(config, disk).await?;
        node.ready().await?;
        Ok(node)
    }
}

/// Waits until `wanted` returns true. Fails the test if that takes too long.
pub(super) async fn wait_for(what: &str, wanted: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !wanted() {
        assert!(Instant::now() < until, "timeout waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns pseudo-random bytes.
pub(super) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Returns the path of a file of `block` in `dir/current`.
pub(super) fn block_file(dir: &Path, block: u64, suffix: &str) -> PathBuf {
    dir.join(format!("current/{:02x}/blk_{block}{suffix}", block % 256))
}

/// A write that a test sends frame by frame.
pub(super) struct Put {
    pub(super) stream: TcpStream,
    pub(super) at: u64,
}

impl Put {
    /// Sets up a pipeline for `block`. Returns the write and the first status.
    pub(super) fn open(
        chain: &[DataNodeAddress],
        block: u64,
        resume_at: u64,
    ) -> Result<(Self, WriteStatus), FrameError> {
        let mut put = Self { stream: connect(&chain[0].data_addr), at: resume_at };
        let write = WriteBlock {
            block_id: block,
            resume_at,
            mirrors: chain[1..].to_vec(),
            expected_length: 64 << 20,
            nonce: NONCE,
        };
        request(&mut put.stream, Op::Write(write));
        let status = put.status()?;
        Ok((put, status))
    }

    pub(super) fn packet(&mut self, data: &[u8], last: bool) {
        let packet = Packet { offset: self.at, last, checksums: to_bytes(&sums_of(data)) };
        self.raw_packet(&packet, data);
        self.at += data.len() as u64;
    }

    pub(super) fn raw_packet(&mut self, packet: &Packet, data: &[u8]) {
        let mut out = Vec::new();
        encode_frame(FrameKind::Packet, packet, data.len(), &mut out);
        out.extend_from_slice(data);
        // The node may have closed the connection. Its answer is checked later.
        self.stream.write_all(&out).ok();
    }

    pub(super) fn status(&mut self) -> Result<WriteStatus, FrameError> {
        read_frame(&mut self.stream, BytesMut::new())?.expect(FrameKind::Status)
    }

    /// Reads statuses until one satisfies `wanted`.
    pub(super) fn until(&mut self, wanted: impl Fn(&WriteStatus) -> bool) -> Result<WriteStatus, FrameError> {
        loop {
            let status = self.status()?;
            if wanted(&status) {
                return Ok(status);
            }
        }
    }

    pub(super) fn wait_acked(&mut self, bytes: u64) -> WriteStatus {
        self.until(|status| status.acked >= bytes).unwrap()
    }

    pub(super) fn wait_done(&mut self) -> Result<WriteStatus, FrameError> {
        self.until(|status| status.done)
    }
}

pub(super) fn connect(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(super) fn request(stream: &mut impl Write, op: Op) {
    let mut out = Vec::new();
    encode_frame(FrameKind::Request, &BulkRequest { op: Some(op), ..BulkRequest::default() }, 0, &mut out);
    stream.write_all(&out).unwrap();
}

/// Writes a complete block in packets of `packet` bytes.
pub(super) fn put_in(
    chain: &[DataNodeAddress],
    block: u64,
    data: &[u8],
    packet: usize,
) -> Result<WriteStatus, FrameError> {
    let (mut put, ready) = Put::open(chain, block, 0)?;
    if ready.done {
        return Ok(ready);
    }
    let mut pieces = data.chunks(packet).peekable();
    if pieces.peek().is_none() {
        put.packet(&[], true);
    }
    while let Some(piece) = pieces.next() {
        put.packet(piece, pieces.peek().is_none());
    }
    put.wait_done()
}

pub(super) fn put(chain: &[DataNodeAddress], block: u64, data: &[u8]) -> Result<WriteStatus, FrameError> {
    put_in(chain, block, data, dfs_client::bulk::PACKET_BYTES)
}

/// Reads a range on an open connection. The data is not verified.
pub(super) fn read_on(
    stream: &mut TcpStream,
    block: u64,
    range: std::ops::Range<u64>,
    block_length: u64,
) -> Result<(ReadReply, Vec<u8>), FrameError> {
    let (offset, length) = (range.start, range.end - range.start);
    request(stream, Op::Read(ReadBlock { block_id: block, offset, length, block_length, nonce: NONCE }));
    let reply: ReadReply = read_frame(stream, BytesMut::new())?.expect(FrameKind::ReadReply)?;
    let mut data = vec![0; reply.length as usize];
    stream.read_exact(&mut data)?;
    Ok((reply, data))
}

pub(super) fn read(node: &DataNode, block: u64, length: u64) -> Result<(ReadReply, Vec<u8>), FrameError> {
    read_on(&mut connect(node.data_addr()), block, 0..length, length)
}

/// Returns the kind of the refusal in `result`. Panics if it is not a refusal.
pub(super) fn refusal_kind<T: std::fmt::Debug>(result: Result<T, FrameError>) -> String {
    match result {
        Err(FrameError::Refused { kind, .. }) => kind,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub(super) fn chain(nodes: &[&DataNode]) -> Vec<DataNodeAddress> {
    nodes.iter().map(|node| node.address().clone()).collect()
}

pub(super) fn uuids(nodes: &[&DataNode]) -> Vec<String> {
    nodes.iter().map(|node| node.uuid().to_string()).collect()
}
