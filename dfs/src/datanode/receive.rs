//! Receives a block from a client, from the previous node of a pipeline, or from a node that copies
//! it.
//!
//! Each packet is verified, forwarded to the mirror (the next node of the pipeline) and then
//! written. While the mirror processes a packet, this node receives the following packet. The
//! `last` packet is forwarded before the local sync, so that the syncs of all nodes overlap. Two
//! threads send statuses to the previous node: the thread of this connection after each packet, and
//! the thread that reads the statuses of the mirror after each of them.

use super::{
    error::{Refusal, RefusalKind},
    mirror::{self, Downstream, Mirror, MirrorRequest},
    node::Node,
    store::partial::{Claim, ClaimOutcome, Writer},
};
use bytes::BytesMut;
use dfs_client::{
    bulk::{FrameError, FrameKind, encode_frame, read_frame, recycle},
    checksum::{self, CHUNK_BYTES},
    ids::{BlockId, Nonce},
};
use parking_lot::Mutex;
use proto::dfs::{NodeFault, Packet, WriteBlock, WriteStatus};
use security::{BlockToken, Stream};
use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

/// Why a write failed, and what this means for its connection.
#[derive(Debug)]
pub(super) enum TransferFailure {
    /// Send the refusal. The peer may send another request on this connection.
    Refused(Refusal),
    /// Send the refusal and close the connection, because more packets may be in transit.
    Broken(Refusal),
    /// The connection is broken.
    ConnectionLost(FrameError),
}

/// Serves a `WriteBlock` request. With `ask_namenode`, asks the NameNode after the last packet
/// whether the block may still be written.
pub(super) fn receive(
    node: &Node,
    stream: &Stream,
    request: WriteBlock,
    token: BlockToken,
    ask_namenode: bool,
) -> Result<(), TransferFailure> {
    let block = BlockId(request.block_id);
    let nonce = Nonce(request.nonce);
    let (resume_at, expected_length) = (request.resume_at, request.expected_length);
    let claim = Claim { block, nonce, resume_at, expected_length, connection: stream };
    let writer = match node.store.begin(&claim).map_err(TransferFailure::Refused)? {
        ClaimOutcome::Finalised(length) => {
            let nodes = vec![node.uuid()];
            let status = WriteStatus { acked: length, done: true, nodes, ..WriteStatus::default() };
            return send_status(stream, &status).map_err(connection_lost);
        }
        ClaimOutcome::Write(writer) => writer,
    };
    let mirror_request = MirrorRequest {
        block,
        nonce,
        resume_at,
        expected_length,
        timeout: node.config.transfer_timeout.0,
        token,
    };
    let (ready, faults) = mirror::connect(mirror_request, &request.mirrors, node);
    let downstream = ready.as_ref().map(|ready| ready.downstream().clone());
    let upstream = Arc::new(Upstream {
        stream: stream.try_clone().map_err(connection_lost)?,
        uuid: node.uuid(),
        faults,
        timeout: mirror_request.timeout,
        state: Mutex::new(Progress::default()),
    });
    upstream.begin(request.resume_at, downstream);
    // Send the first status before the thread of the mirror starts, because the first status must
    // be the reply to the set-up.
    upstream.report().map_err(connection_lost)?;
    let up = upstream.clone();
    let mirror =
        ready.map(|ready| ready.start(mirror_request, move |downstream| up.downstream_changed(downstream)));
    let mirror = mirror.transpose().map_err(connection_lost)?;
    let ask_namenode = ask_namenode.then_some(node);
    IncomingBlock { stream, block, nonce, position: resume_at, writer, mirror, upstream, ask_namenode }.run()
}

struct IncomingBlock<'a> {
    stream: &'a Stream,
    block: BlockId,
    nonce: Nonce,
    position: u64,
    writer: Writer<'a>,
    mirror: Option<Mirror>,
    upstream: Arc<Upstream>,
    ask_namenode: Option<&'a Node>,
}

impl IncomingBlock<'_> {
    fn run(mut self) -> Result<(), TransferFailure> {
        let finalised = self.take_packets().and_then(|()| {
            let may = self.ask_namenode.map_or(Ok(()), |node| node.may_finalise(self.block, self.nonce));
            may.and_then(|()| self.writer.finalise()).map_err(TransferFailure::Broken)
        });
        match finalised {
            Ok(length) => {
                // Wait for the nodes downstream, which have finalised their replicas at the same
                // time.
                let downstream = self.mirror.take().map(Mirror::finish);
                self.upstream.send_done(length, downstream).map_err(connection_lost)
            }
            Err(failure) => {
                // This node is going to close the connection to the mirror. The error that follows
                // is not a fault of the mirror and must not be reported.
                self.upstream.state.lock().closed = true;
                Err(failure)
            }
        }
    }

    fn take_packets(&mut self) -> Result<(), TransferFailure> {
        let mut buffer = BytesMut::new();
        let mut input = self.stream;
        loop {
            let frame = read_frame(&mut input, buffer).map_err(TransferFailure::ConnectionLost)?;
            let packet: Packet = frame.expect(FrameKind::Packet).map_err(|error| {
                TransferFailure::Broken(Refusal::new(RefusalKind::Invalid, error.to_string()))
            })?;
            let sums = self.check(&packet, &frame.data).map_err(TransferFailure::Broken)?;
            if let Some(mirror) = &mut self.mirror {
                mirror.send(&packet, &frame.data);
            }
            if !frame.data.is_empty() {
                self.writer.append(&frame.data, &sums).map_err(TransferFailure::Broken)?;
                self.position += frame.data.len() as u64;
            }
            if packet.last {
                return Ok(());
            }
            self.upstream.local_changed(self.position).map_err(connection_lost)?;
            buffer = recycle(frame);
        }
    }

    /// Checks that a packet has the expected offset and matches its checksums. Returns the
    /// checksums. A packet without data is a keep-alive or ends the block.
    fn check(&self, packet: &Packet, data: &[u8]) -> Result<Vec<u32>, Refusal> {
        let complete = data.len().is_multiple_of(CHUNK_BYTES);
        if packet.offset != self.position || !(complete || packet.last) {
            let message = format!(
                "packet of {} bytes at offset {} of {}: expected offset {} and complete chunks",
                data.len(),
                packet.offset,
                self.block,
                self.position
            );
            return Err(Refusal::new(RefusalKind::Invalid, message));
        }
        let sums = checksum::from_bytes(&packet.checksums);
        if let Err(error) = checksum::verify(data, packet.offset, &sums) {
            let message = format!("packet of {} arrived damaged: {error}", self.block);
            return Err(Refusal::new(RefusalKind::Checksum, message));
        }
        Ok(sums)
    }
}

/// The connection to the previous node or the client. Each status on it covers this node and all
/// nodes downstream.
struct Upstream {
    stream: Stream,
    uuid: String,
    /// Faults of the nodes that were removed at set-up.
    faults: Vec<NodeFault>,
    timeout: Duration,
    state: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Number of bytes that this node has written.
    local_bytes: u64,
    /// Number of bytes that all nodes downstream have received; `None` if there are none, or if
    /// they are done or have failed.
    downstream_bytes: Option<u64>,
    /// The next status to send. Its nodes and faults change only when the mirror sends a status.
    /// Its other fields are set when it is sent.
    status: WriteStatus,
    /// Whether the write has failed, so that no more statuses are sent.
    closed: bool,
}

impl Upstream {
    fn begin(&self, resume_at: u64, downstream: Option<Downstream>) {
        let mut state = self.state.lock();
        state.local_bytes = resume_at;
        self.merge(&mut state, downstream.unwrap_or(Downstream { ended: true, ..Downstream::default() }));
    }

    fn local_changed(&self, local: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.local_bytes = local;
        self.send(&mut state, false)
    }

    fn downstream_changed(&self, downstream: Downstream) {
        let mut state = self.state.lock();
        // `send_done` sends the last status, when the local replica is durable too.
        let report = downstream.done.is_none();
        self.merge(&mut state, downstream);
        if report {
            // Ignore an error: the thread that reads from the upstream connection notices that it
            // is lost.
            self.send(&mut state, false).ok();
        }
    }

    fn report(&self) -> io::Result<()> {
        self.send(&mut self.state.lock(), false)
    }

    fn send_done(&self, length: u64, downstream: Option<Downstream>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.local_bytes = length;
        if let Some(mut downstream) = downstream {
            if let Some(theirs) = downstream.done.filter(|theirs| *theirs != length) {
                let reason = format!("has {theirs} bytes, not {length}");
                for node in downstream.nodes.drain(..) {
                    downstream.faults.push(NodeFault { node, reason: reason.clone() });
                }
            }
            self.merge(&mut state, downstream);
        }
        self.send(&mut state, true)
    }

    fn merge(&self, state: &mut Progress, downstream: Downstream) {
        let Downstream { acked, nodes, faults, timeout, ended, .. } = downstream;
        state.downstream_bytes = (!ended).then_some(acked);
        let shortest = timeout.map_or(self.timeout, |timeout| timeout.min(self.timeout));
        state.status = WriteStatus {
            nodes: [self.uuid.clone()].into_iter().chain(nodes).collect(),
            faults: self.faults.iter().cloned().chain(faults).collect(),
            timeout_ms: shortest.as_millis() as u64,
            ..WriteStatus::default()
        };
    }

    /// Sends a cumulative status. The caller has locked `state`, so that statuses are sent in
    /// order.
    fn send(&self, state: &mut Progress, done: bool) -> io::Result<()> {
        if state.closed {
            return Ok(());
        }
        state.status.acked = state.downstream_bytes.unwrap_or(u64::MAX).min(state.local_bytes);
        state.status.done = done;
        send_status(&self.stream, &state.status)
    }
}

fn send_status(mut stream: &Stream, status: &WriteStatus) -> io::Result<()> {
    let mut out = Vec::new();
    encode_frame(FrameKind::Status, status, 0, &mut out);
    stream.write_all(&out)
}

fn connection_lost(error: io::Error) -> TransferFailure {
    TransferFailure::ConnectionLost(FrameError::Io(error))
}
