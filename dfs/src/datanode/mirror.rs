//! The sending end of a write: from a DataNode to the next one of a pipeline, or to the target of a copy.
//!
//! Packets go out on the caller's thread; a thread of the mirror's own reads the statuses, so that neither
//! waits for the other. A mirror that fails says why once and is then out; it never fails its caller.
//!
//! Waiting times shrink down the pipeline, so that the node next to a silent one notices first and the nodes
//! above it (and the client) still listen when it tells them.

use super::node::Node;
use crate::{
    bulk::{self, FrameError, FrameKind, encode_frame, read_frame},
    ids::{BlockId, Nonce},
};
use bytes::BytesMut;
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

/// What is to be written below.
#[derive(Debug, Clone, Copy)]
pub(super) struct MirrorRequest {
    pub(super) block: BlockId,
    pub(super) nonce: Nonce,
    pub(super) resume_at: u64,
    pub(super) expected: u64,
    /// How long a silent connection is kept.
    pub(super) timeout: Duration,
    /// Shown to them.
    pub(super) token: BlockToken,
}

/// What is known of the nodes below.
#[derive(Debug, Clone, Default)]
pub(super) struct Downstream {
    /// Bytes that all of `nodes` have taken; everything once they are done.
    pub(super) acked: u64,
    /// Uuids, in pipeline order.
    pub(super) nodes: Vec<String>,
    /// Who dropped out, by name.
    pub(super) faults: Vec<NodeFault>,
    /// The replicas of `nodes` are durable, this long.
    pub(super) done: Option<u64>,
    /// The shortest silence that one of `nodes` takes for death.
    pub(super) timeout: Option<Duration>,
    /// No more will come from it.
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
    /// The last packet is out: `done` is owed.
    last_sent: bool,
    /// Since when an answer is owed.
    waiting_since: Option<Instant>,
}

/// An open mirror.
#[derive(Debug)]
pub(super) struct Mirror {
    stream: Stream,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    header: Vec<u8>,
}

/// A mirror that has answered the set-up and whose statuses nobody reads yet.
#[derive(Debug)]
pub(super) struct ConnectedMirror {
    stream: Stream,
    downstream: Downstream,
    address: DataNodeAddress,
    timeout: Duration,
}

/// Connects to the first of `mirrors` that answers; those before it are faults. Who asks may be anybody: only where the
/// NameNode says that a DataNode is does this one connect.
pub(super) fn connect(
    order: MirrorRequest,
    mirrors: &[DataNodeAddress],
    node: &Node,
) -> (Option<ConnectedMirror>, Vec<NodeFault>) {
    let mut faults = Vec::new();
    for first in 0..mirrors.len() {
        let chain = &mirrors[first..];
        match set_up(order, chain, node) {
            Ok(ready) => return (Some(ready), faults),
            Err(error) => {
                tracing::warn!(block = %order.block, node = chain[0].node, %error, "mirror left out at set-up");
                faults.push(NodeFault { node: name_of(&chain[0]), reason: error.to_string() });
            }
        }
    }
    (None, faults)
}

fn set_up(
    order: MirrorRequest,
    chain: &[DataNodeAddress],
    node: &Node,
) -> Result<ConnectedMirror, FrameError> {
    let count = chain.len() as u32;
    // Even if every node below is silent, the sum of these waits stays below the one above.
    let wait = (order.timeout * count / (2 * (count + 1))).min(bulk::set_up_within(chain.len()));
    let addr = &chain[0].data_addr;
    if !node.blocks.is_sealed(addr, &chain[0].seal) {
        let why = "the NameNode has not said that a DataNode is there";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why).into());
    }
    let mut stream = bulk::connect(addr, wait / 2, &node.connector)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot connect to {addr}: {error}")))?;
    stream.set_read_timeout(Some(wait))?;
    let timeout = order.timeout * count / (count + 1);
    stream.set_write_timeout(Some(timeout))?;
    let write = WriteBlock {
        block_id: order.block.0,
        resume_at: order.resume_at,
        mirrors: chain[1..].to_vec(),
        expected_length: order.expected,
        nonce: order.nonce.0,
    };
    let request = BulkRequest { op: Some(bulk_request::Op::Write(write)), token: order.token.to_bytes() };
    let mut out = Vec::new();
    encode_frame(FrameKind::Request, &request, 0, &mut out);
    stream.write_all(&out)?;
    let status: WriteStatus = read_frame(&mut stream, BytesMut::new())?.expect(FrameKind::Status)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut downstream = Downstream::default();
    downstream.take(status);
    Ok(ConnectedMirror { stream, downstream, address: chain[0].clone(), timeout })
}

fn name_of(address: &DataNodeAddress) -> String {
    if address.node.is_empty() { address.uuid.clone() } else { address.node.clone() }
}

impl Downstream {
    fn take(&mut self, status: WriteStatus) {
        self.acked = status.acked;
        self.nodes = status.nodes;
        self.faults = status.faults;
        self.timeout = (status.timeout_ms > 0).then(|| Duration::from_millis(status.timeout_ms));
        if status.done {
            self.done = Some(status.acked);
            self.ended = true;
        }
    }

    /// The mirror is out, and with it all that it led to. Only the mirror itself is blamed: a writer may shun
    /// the nodes named, and those behind it have done nothing wrong.
    fn fail(&mut self, mirror: &DataNodeAddress, reason: &str) {
        if !self.ended {
            self.ended = true;
            self.faults.push(NodeFault { node: name_of(mirror), reason: reason.into() });
            self.nodes.clear();
        }
    }
}

impl ConnectedMirror {
    /// What the set-up told.
    pub(super) fn downstream(&self) -> &Downstream {
        &self.downstream
    }

    /// Begins to read statuses; `on_change` is called after each.
    pub(super) fn start(
        self,
        order: MirrorRequest,
        on_change: impl Fn(Downstream) + Send + 'static,
    ) -> io::Result<Mirror> {
        let stream = self.stream.try_clone()?;
        let state = State { downstream: self.downstream, sent: order.resume_at, ..State::default() };
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
    /// Passes a packet on, if the mirror is still in.
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
            // The reader learns why: an Error frame may have come before the connection broke.
            self.stream.shutdown(Shutdown::Write).ok();
            self.wait_ended(Duration::from_millis(500));
            self.stream.shutdown(Shutdown::Both).ok();
            self.wait_ended(Duration::from_secs(5));
        }
    }

    /// Whether it is out: there is no point in sending more.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.state.lock().downstream.ended
    }

    /// Waits for the end: `done`, or why not.
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
                    state.downstream.take(status);
                    let owed = state.last_sent || state.sent > state.downstream.acked;
                    state.waiting_since = owed.then(Instant::now);
                }
                Ok(None) if !state.overdue(self.timeout) => continue,
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
    /// None if nothing came for a while.
    fn next_status(&mut self) -> Result<Option<WriteStatus>, FrameError> {
        // Looks up often enough to notice soon after the patience is over.
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
    fn overdue(&self, timeout: Duration) -> bool {
        self.waiting_since.is_some_and(|since| since.elapsed() >= timeout)
    }
}
