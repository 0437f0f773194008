//! Sends a block from a DataNode to the next node of a pipeline, or to the target of a copy. The
//! next node is called the mirror.
//!
//! The thread of the caller sends the packets. Another thread reads the statuses, so that neither
//! waits for the other. If the mirror fails, the fault is reported once, and the mirror is ignored
//! from then on. The write of this node continues.
//!
//! Timeouts decrease along the pipeline. The node before a silent node therefore times out first,
//! and can still report the failure to the nodes before it and to the client.

use super::node::Node;
use bytes::BytesMut;
use dfs_client::{
    bulk::{self, FrameError, FrameKind, encode_frame, read_frame},
    ids::{BlockId, Nonce},
};
use parking_lot::{Condvar, Mutex};
use proto::dfs::{BulkRequest, DataNodeAddress, NodeFault, Packet, WriteBlock, WriteStatus, bulk_request};
use security::{BlockToken, Stream};
use std::{
    io::{self, Write},
    net::Shutdown,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The block that the mirrors are to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct MirrorRequest {
    pub(super) block: BlockId,
    pub(super) nonce: Nonce,
    pub(super) resume_at: u64,
    pub(super) expected_length: u64,
    /// A connection that is silent for longer than this has failed.
    pub(super) timeout: Duration,
    /// The token to send to the mirrors.
    pub(super) token: BlockToken,
}

/// The state of the nodes after this one in the pipeline.
#[derive(Debug, Clone, Default)]
pub(super) struct Downstream {
    /// Number of bytes that all of `nodes` have received; the complete length when they are done.
    pub(super) acked: u64,
    /// UUIDs of the nodes that have not failed, in pipeline order.
    pub(super) nodes: Vec<String>,
    /// The names of the nodes that failed, with the reasons.
    pub(super) faults: Vec<NodeFault>,
    /// The length of the replicas, once the replicas of all `nodes` are durable.
    pub(super) done: Option<u64>,
    /// The shortest timeout of `nodes`: a peer that is silent for longer has failed.
    pub(super) timeout: Option<Duration>,
    /// Whether the nodes are done or have failed, so that no more statuses will arrive.
    pub(super) ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    downstream: Downstream,
    sent: u64,
    /// Whether the last packet was sent, so that a status with `done` is expected.
    last_sent: bool,
    /// Since when a status has been expected. `None` if none is expected.
    waiting_since: Option<Instant>,
}

/// A connection to a mirror. A thread reads its statuses.
#[derive(Debug)]
pub(super) struct Mirror {
    stream: Stream,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    header: Vec<u8>,
}

/// A connection to a mirror that has answered the set-up. No thread reads its statuses yet.
#[derive(Debug)]
pub(super) struct ConnectedMirror {
    stream: Stream,
    downstream: Downstream,
    address: DataNodeAddress,
    timeout: Duration,
}

/// Connects to the first of `mirrors` that answers. Also returns a fault for each mirror before it.
/// A client supplies the addresses, so the node connects only to addresses that the NameNode has
/// signed.
pub(super) fn connect(
    request: MirrorRequest,
    mirrors: &[DataNodeAddress],
    node: &Node,
) -> (Option<ConnectedMirror>, Vec<NodeFault>) {
    let mut faults = Vec::new();
    for first in 0..mirrors.len() {
        let chain = &mirrors[first..];
        match set_up(request, chain, node) {
            Ok(ready) => return (Some(ready), faults),
            Err(error) => {
                tracing::warn!(block = %request.block, node = chain[0].node, %error, "mirror removed from the pipeline at set-up");
                faults.push(NodeFault { node: name_of(&chain[0]), reason: error.to_string() });
            }
        }
    }
    (None, faults)
}

fn set_up(
    request: MirrorRequest,
    chain: &[DataNodeAddress],
    node: &Node,
) -> Result<ConnectedMirror, FrameError> {
    let count = chain.len() as u32;
    // Even if all nodes after this one are silent, the sum of the timeouts for them is less than
    // the timeout of the node before this one.
    let wait = (request.timeout * count / (2 * (count + 1))).min(bulk::set_up_timeout(chain.len()));
    let addr = &chain[0].data_addr;
    if !node.blocks.is_sealed(addr, &chain[0].seal) {
        let why = "the NameNode has not signed the address of this DataNode";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why).into());
    }
    let mut stream = bulk::connect(addr, wait / 2, &node.connector)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot connect to {addr}: {error}")))?;
    stream.set_read_timeout(Some(wait))?;
    let timeout = request.timeout * count / (count + 1);
    stream.set_write_timeout(Some(timeout))?;
    let write = WriteBlock {
        block_id: request.block.0,
        resume_at: request.resume_at,
        mirrors: chain[1..].to_vec(),
        expected_length: request.expected_length,
        nonce: request.nonce.0,
    };
    let request = BulkRequest { op: Some(bulk_request::Op::Write(write)), token: request.token.to_bytes() };
    let mut out = Vec::new();
    encode_frame(FrameKind::Request, &request, 0, &mut out);
    stream.write_all(&out)?;
    let status: WriteStatus = read_frame(&mut stream, BytesMut::new())?.expect(FrameKind::Status)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut downstream = Downstream::default();
    downstream.update(status);
    Ok(ConnectedMirror { stream, downstream, address: chain[0].clone(), timeout })
}

fn name_of(address: &DataNodeAddress) -> String {
    if address.node.is_empty() { address.uuid.clone() } else { address.node.clone() }
}

impl Downstream {
    fn update(&mut self, status: WriteStatus) {
        self.acked = status.acked;
        self.nodes = status.nodes;
        self.faults = status.faults;
        self.timeout = (status.timeout_ms > 0).then(|| Duration::from_millis(status.timeout_ms));
        if status.done {
            self.done = Some(status.acked);
            self.ended = true;
        }
    }

    /// Removes the mirror and all nodes after it, and records a fault of the mirror. The nodes
    /// after the mirror get no fault: they have not failed, and the writer would exclude them.
    fn fail(&mut self, mirror: &DataNodeAddress, reason: &str) {
        if !self.ended {
            self.ended = true;
            self.faults.push(NodeFault { node: name_of(mirror), reason: reason.into() });
            self.nodes.clear();
        }
    }
}

impl ConnectedMirror {
    /// Returns the state that the mirror reported at set-up.
    pub(super) fn downstream(&self) -> &Downstream {
        &self.downstream
    }

    /// Starts a thread that reads the statuses. It calls `on_change` after each status, and when
    /// the mirror fails.
    pub(super) fn start(
        self,
        request: MirrorRequest,
        on_change: impl Fn(Downstream) + Send + 'static,
    ) -> io::Result<Mirror> {
        let stream = self.stream.try_clone()?;
        let state = State { downstream: self.downstream, sent: request.resume_at, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let reader = StatusReader {
            stream: self.stream,
            shared: shared.clone(),
            address: self.address,
            timeout: self.timeout,
        };
        let run = move || reader.run(&on_change);
        let reader = std::thread::Builder::new().name("mirror".into()).spawn(run)?;
        Ok(Mirror { stream, shared, reader: Some(reader), header: Vec::new() })
    }
}

impl Mirror {
    /// Forwards a packet, if the mirror has not failed.
    pub(super) fn send(&mut self, packet: &Packet, data: &[u8]) {
        {
            let mut state = self.shared.state.lock();
            if state.downstream.ended {
                return;
            }
            state.sent = packet.offset + data.len() as u64;
            state.last_sent = packet.last;
            state.waiting_since.get_or_insert_with(Instant::now);
        }
        self.header.clear();
        encode_frame(FrameKind::Packet, packet, data.len(), &mut self.header);
        let sent = self.stream.write_all(&self.header).and_then(|()| self.stream.write_all(data));
        if sent.is_err() {
            // The status reader determines the reason: the mirror may have sent an `Error` frame
            // before the connection broke.
            self.stream.shutdown(Shutdown::Write).ok();
            self.wait_ended(Duration::from_millis(500));
            self.stream.shutdown(Shutdown::Both).ok();
            self.wait_ended(Duration::from_secs(5));
        }
    }

    /// Returns whether the mirror is done or has failed.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.state.lock().downstream.ended
    }

    /// Waits until the mirror is done or has failed, and returns the final state.
    pub(super) fn finish(mut self) -> Downstream {
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
        self.shared.state.lock().downstream.clone()
    }

    fn wait_ended(&self, timeout: Duration) {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| !state.downstream.ended, timeout);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stream.shutdown(Shutdown::Both).ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

struct StatusReader {
    stream: Stream,
    shared: Arc<Shared>,
    address: DataNodeAddress,
    timeout: Duration,
}

impl StatusReader {
    fn run(mut self, on_change: &impl Fn(Downstream)) {
        loop {
            if self.shared.state.lock().downstream.ended {
                return;
            }
            let got = self.next_status();
            let mut state = self.shared.state.lock();
            match got {
                Ok(Some(status)) => {
                    state.downstream.update(status);
                    let expected = state.last_sent || state.sent > state.downstream.acked;
                    state.waiting_since = expected.then(Instant::now);
                }
                Ok(None) if !state.is_overdue(self.timeout) => continue,
                Ok(None) => {
                    state.downstream.fail(&self.address, &format!("no answer for {:?}", self.timeout));
                }
                Err(error) => state.downstream.fail(&self.address, &error.to_string()),
            }
            let downstream = state.downstream.clone();
            drop(state);
            self.shared.changed.notify_all();
            on_change(downstream);
        }
    }
}

impl StatusReader {
    /// Reads the next status. Returns `None` if none arrives within an eighth of the timeout.
    fn next_status(&mut self) -> Result<Option<WriteStatus>, FrameError> {
        // Wait only for a short time, so that the caller notices an expired timeout soon.
        self.stream.set_read_timeout(Some(self.timeout / 8))?;
        if !self.stream.await_input()? {
            return Ok(None);
        }
        self.stream.set_read_timeout(Some(self.timeout))?;
        let frame = read_frame(&mut self.stream, BytesMut::new())?;
        frame.expect(FrameKind::Status).map(Some)
    }
}

impl State {
    fn is_overdue(&self, timeout: Duration) -> bool {
        self.waiting_since.is_some_and(|since| since.elapsed() >= timeout)
    }
}
