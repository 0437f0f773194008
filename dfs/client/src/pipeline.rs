//! Writes one block through its pipeline, and continues with the remaining nodes when nodes fail.
//!
//! Invariants: the writer keeps packets in memory until they are acknowledged, and the last packet
//! until the block is done. A remaining node can therefore always resume at the first packet in
//! memory. At most `WINDOW_BYTES` bytes are in memory.
//!
//! Each block has its own thread, which sends and receives. Acknowledgements are small, and the
//! number of unacknowledged packets is bounded, so acknowledgements never fill the socket while the
//! thread sends. While the source has no data, empty packets keep the pipeline alive and show that
//! it works.
//!
//! This module never calls the NameNode: if all targets fail, the caller decides what to do.

use super::connection::{BufferPool, Hangup, Timeouts, connect, describe_socket_error, send_frame};
use super::{ClientError, LocatedBlock, NodeAddress, NodeFault, wire};
use crate::bulk::{
    FrameError, FrameKind, NAMENODE_UNAVAILABLE, WINDOW_BYTES, encode_frame, is_timeout, read_frame,
    set_up_timeout,
};
use crate::checksum;
use crate::ids::{BlockId, Nonce};
use bytes::BytesMut;
use proto::dfs as pb;
use security::{BlockToken, Stream};
use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum timeout that is accepted from nodes. A lower one would cause too many keep-alives.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Maximum timeout that is accepted from nodes. A higher one would make the writer wait too long.
const TIMEOUT_MAX: Duration = Duration::from_mins(10);
/// How long the writer retries while the nodes cannot reach the NameNode: as long as the default
/// deadline of calls to the NameNode.
const NAMENODE_UNREACHABLE_MAX: Duration = Duration::from_mins(1);

/// The state of a source.
pub(super) enum NextPiece {
    /// The data of the next packet, and whether it is the last packet of the block.
    Piece { data: Vec<u8>, last: bool },
    /// No data is available now.
    Pending,
    /// The writer is closed without finishing the block.
    Abandoned,
}

/// Returns the data of a block in pieces. Every piece except the last has the size of a packet.
pub(super) trait Source: Send {
    /// Returns the next piece, or `Pending` if there is none within `wait`.
    fn next(&mut self, wait: Duration) -> Result<NextPiece, ClientError>;
    /// Is called when all remaining nodes have received the first `bytes` bytes of the block.
    fn on_acked(&mut self, _bytes: u64) {}
}

/// Why a block was not written.
#[derive(Debug)]
pub(super) enum WriteFailure {
    /// All targets failed. This is the last failure.
    AllNodesFailed(NodeFault),
    /// The source returned an error.
    Source(ClientError),
    /// The writer is closed without finishing the block.
    Abandoned,
}

/// A block whose replicas are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenBlock {
    pub(super) length: u64,
    /// Number of replicas.
    pub(super) replicas: u32,
}

struct Packet {
    offset: u64,
    last: bool,
    sums: Vec<u8>,
    data: Vec<u8>,
}

impl Packet {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// A block that is being written.
pub(super) struct BlockWriter {
    block: BlockId,
    nonce: Nonce,
    token: BlockToken,
    expected_length: u64,
    /// Nodes that have not failed, in pipeline order.
    survivors: Vec<NodeAddress>,
    /// Isolated nodes: they had to ask the NameNode and could not reach it.
    isolated_nodes: Vec<NodeAddress>,
    /// The last error of an isolated node.
    isolation_reason: String,
    /// Since when there have been isolated nodes.
    isolated_since: Option<Instant>,
    faults: Vec<NodeFault>,
    unacked: VecDeque<Packet>,
    unacked_bytes: usize,
    /// Number of packets in `unacked` that were sent on the current connection.
    sent: usize,
    /// Number of bytes that the source has returned.
    produced: u64,
    /// Number of bytes of the block that all remaining nodes have received.
    acked: u64,
    /// Whether the replicas of all remaining nodes are durable.
    done: bool,
    timeouts: Timeouts,
    hangup: Hangup,
    buffers: Arc<BufferPool>,
}

/// The connection to the first node of the pipeline.
struct Link {
    replies: BufReader<Stream>,
    head: Vec<u8>,
    /// The value of `BlockWriter::acked` when the connection was opened.
    acked_at_start: u64,
    /// The shortest timeout that the nodes have reported. A peer that is silent for longer is
    /// considered dead.
    timeout: Duration,
    /// Since when a status that acknowledges a packet has been expected.
    reply_due_since: Option<Instant>,
}

impl Link {
    /// Returns how long to wait for a status: a little longer than the timeout of every node, so
    /// that a node can still report that the node after it is silent.
    fn timeout(&self) -> Duration {
        self.timeout * 5 / 4
    }

    fn apply_timeout(&mut self, status: &pb::WriteStatus) -> io::Result<()> {
        let reported = Duration::from_millis(status.timeout_ms).clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        if status.timeout_ms > 0 && reported != self.timeout { self.set_timeout(reported) } else { Ok(()) }
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        let stream = self.replies.get_ref();
        stream.set_read_timeout(Some(self.timeout()))?;
        stream.set_write_timeout(Some(self.timeout()))
    }
}

/// Why the writer stops using a connection.
enum LinkError {
    Link(FrameError),
    Failed(WriteFailure),
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        Self::Link(error)
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        Self::Link(error.into())
    }
}

impl BlockWriter {
    pub(super) fn new(
        target: &LocatedBlock,
        expected_length: u64,
        timeouts: Timeouts,
        hangup: Hangup,
        buffers: Arc<BufferPool>,
    ) -> Self {
        Self {
            block: target.block,
            nonce: target.nonce,
            token: target.token,
            expected_length,
            survivors: target.nodes.clone(),
            isolated_nodes: Vec::new(),
            isolation_reason: String::new(),
            isolated_since: None,
            faults: Vec::new(),
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            sent: 0,
            produced: 0,
            acked: 0,
            done: false,
            timeouts,
            hangup,
            buffers,
        }
    }

    /// Removes and returns the faults of the nodes that have failed so far.
    pub(super) fn take_faults(&mut self) -> Vec<NodeFault> {
        std::mem::take(&mut self.faults)
    }

    /// Returns whether all data of the block is still in memory, so that it can be written again as
    /// a new block.
    pub(super) fn can_start_over(&self) -> bool {
        self.unacked.front().map_or(self.produced == 0, |first| first.offset == 0)
    }

    /// Continues with the new block `target`, to which the packets in memory are sent again.
    pub(super) fn start_over(&mut self, target: &LocatedBlock) {
        (self.block, self.nonce, self.token) = (target.block, target.nonce, target.token);
        self.survivors.clone_from(&target.nodes);
        (self.isolated_nodes, self.isolated_since) = (Vec::new(), None);
        (self.sent, self.acked, self.done) = (0, 0, false);
    }

    /// Writes the complete block.
    pub(super) fn run(&mut self, source: &mut dyn Source) -> Result<WrittenBlock, WriteFailure> {
        loop {
            let mut link = self.connect_first()?;
            match self.drive(&mut link, source) {
                Ok(()) => {
                    let reason = &self.isolation_reason;
                    let fault = |node: NodeAddress| NodeFault { node: node.node, reason: reason.clone() };
                    self.faults.extend(self.isolated_nodes.drain(..).map(fault));
                    let (length, replicas) = (self.produced, self.survivors.len() as u32);
                    return Ok(WrittenBlock { length, replicas });
                }
                Err(LinkError::Failed(stop)) => return Err(stop),
                Err(LinkError::Link(_)) if self.hangup.is_cancelled() => return Err(WriteFailure::Abandoned),
                // This node cannot reach the NameNode. Try the other nodes.
                Err(LinkError::Link(FrameError::Refused { kind, message }))
                    if kind == NAMENODE_UNAVAILABLE =>
                {
                    self.isolated_nodes.push(self.survivors.remove(0));
                    self.isolation_reason = message;
                    self.isolated_since.get_or_insert_with(Instant::now);
                }
                Err(LinkError::Link(error)) => {
                    // The node accepted bytes, and then the connection was lost. The node may have
                    // closed the connection because this writer was silent for too long. Try it
                    // once more; it is removed if the set-up fails.
                    let transient = match &error {
                        FrameError::Closed => true,
                        FrameError::Io(error) => !is_timeout(error),
                        _ => false,
                    };
                    if !(transient && self.acked > link.acked_at_start) {
                        self.drop_first_node(&error);
                    }
                }
            }
        }
    }

    /// Sets up a pipeline through the first node that accepts it.
    fn connect_first(&mut self) -> Result<Link, WriteFailure> {
        if self.survivors.is_empty() && !self.isolated_nodes.is_empty() {
            // No node can reach the NameNode. The nodes keep their partial replicas for some time,
            // so try again.
            if self.isolated_since.is_some_and(|since| since.elapsed() > NAMENODE_UNREACHABLE_MAX) {
                let reason = std::mem::take(&mut self.isolation_reason);
                return Err(WriteFailure::Source(ClientError::NameNodeUnreachableFromNodes { reason }));
            }
            self.survivors.append(&mut self.isolated_nodes);
        }
        while let Some(first) = self.survivors.first().cloned() {
            match self.set_up(&first) {
                Ok(link) => return Ok(link),
                Err(_) if self.hangup.is_cancelled() => return Err(WriteFailure::Abandoned),
                Err(error) => self.drop_first_node(&error),
            }
        }
        let no_target =
            || NodeFault { node: "no node".into(), reason: "the NameNode has assigned no DataNode".into() };
        Err(WriteFailure::AllNodesFailed(self.faults.last().cloned().unwrap_or_else(no_target)))
    }

    fn set_up(&mut self, first: &NodeAddress) -> Result<Link, FrameError> {
        let mut stream = connect(&first.data_addr, &self.set_up_timeouts(), &self.hangup)?;
        let resume_at = self.first_unacked();
        let write = pb::WriteBlock {
            block_id: self.block.0,
            resume_at,
            mirrors: self.survivors[1..].iter().map(wire::to_pb_address).collect(),
            expected_length: self.expected_length,
            nonce: self.nonce.0,
        };
        let request =
            pb::BulkRequest { op: Some(pb::bulk_request::Op::Write(write)), token: self.token.to_bytes() };
        send_frame(&mut stream, FrameKind::Request, &request)?;
        self.sent = 0;
        let replies = BufReader::with_capacity(16 << 10, stream);
        let timeout = Duration::ZERO;
        let mut link =
            Link { replies, head: Vec::new(), acked_at_start: self.acked, timeout, reply_due_since: None };
        self.receive_status(&mut link)?;
        // If no node has reported a timeout, use the configured timeout, because that of the set-up
        // is too short.
        if link.timeout.is_zero() {
            link.set_timeout(self.timeouts.silence)?;
        }
        Ok(link)
    }

    /// Returns the timeouts for setting up the pipeline. The last remaining node gets the full
    /// timeout.
    fn set_up_timeouts(&self) -> Timeouts {
        let Timeouts { connect, silence, connector } = self.timeouts.clone();
        let within = if self.survivors.len() > 1 { set_up_timeout(self.survivors.len()) } else { silence };
        let silence = silence.min(within);
        Timeouts { connect: connect.min(silence), silence, connector }
    }

    fn drop_first_node(&mut self, error: &FrameError) {
        let node = self.survivors.remove(0).node;
        let reason = match error {
            FrameError::Io(error) => describe_socket_error(error),
            other => other.to_string(),
        };
        tracing::debug!(block = %self.block, node, reason, "node removed from the pipeline");
        self.faults.push(NodeFault { node, reason });
    }

    fn drive(&mut self, link: &mut Link, source: &mut dyn Source) -> Result<(), LinkError> {
        loop {
            while self.sent < self.unacked.len() && !self.done {
                if let Err(error) = send_packet(link, &self.unacked[self.sent]) {
                    return Err(self.final_error(link).unwrap_or(error.into()).into());
                }
                self.sent += 1;
                self.receive_replies(link, source)?;
            }
            if self.done {
                source.on_acked(self.produced);
                self.hangup.release();
                return Ok(());
            }
            let complete = self.unacked.back().is_some_and(|packet| packet.last);
            if complete || self.unacked_bytes >= WINDOW_BYTES {
                self.receive_status(link)?;
                source.on_acked(self.acked);
                continue;
            }
            if link.reply_due_since.is_some_and(|since| since.elapsed() > link.timeout()) {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            match source.next(link.timeout / 4) {
                Ok(NextPiece::Piece { data, last }) => self.retain_packet(data, last),
                Ok(NextPiece::Pending) => {
                    let offset = self.produced;
                    send_packet(link, &Packet { offset, last: false, sums: Vec::new(), data: Vec::new() })?;
                    self.receive_replies(link, source)?;
                }
                Ok(NextPiece::Abandoned) => return Err(LinkError::Failed(WriteFailure::Abandoned)),
                Err(error) => return Err(LinkError::Failed(WriteFailure::Source(error))),
            }
        }
    }

    /// Processes the statuses that have arrived, without waiting.
    fn receive_replies(&mut self, link: &mut Link, source: &mut dyn Source) -> Result<(), LinkError> {
        while has_reply(link)? {
            self.receive_status(link)?;
            source.on_acked(self.acked);
        }
        Ok(())
    }

    /// Returns the refusal that a node has sent before it closed the connection, if there is one.
    /// It explains more than "broken pipe".
    fn final_error(&mut self, link: &mut Link) -> Option<FrameError> {
        while has_reply(link).ok()? {
            match self.receive_status(link) {
                Ok(()) => {}
                Err(refused @ FrameError::Refused { .. }) => return Some(refused),
                Err(_) => return None,
            }
        }
        None
    }

    fn retain_packet(&mut self, data: Vec<u8>, last: bool) {
        let sums = checksum::to_bytes(&checksum::sums_of(&data));
        let packet = Packet { offset: self.produced, last, sums, data };
        self.produced = packet.end();
        self.unacked_bytes += packet.data.len();
        self.unacked.push_back(packet);
    }

    /// Waits for a status and processes it.
    fn receive_status(&mut self, link: &mut Link) -> Result<(), FrameError> {
        let frame = read_frame(&mut link.replies, BytesMut::new())?;
        let status: pb::WriteStatus = frame.expect(FrameKind::Status)?;
        let sent_to = match self.sent {
            0 => self.first_unacked(),
            sent => self.unacked.get(sent - 1).map_or(self.produced, Packet::end),
        };
        // At set-up, a node may already have more bytes than this writer is about to send again.
        if status.acked > sent_to.max(self.produced) {
            return Err(FrameError::Malformed("the node acknowledges bytes that were never sent"));
        }
        let first = self.survivors.first().map(|node| node.uuid.as_str());
        if status.nodes.first().map(String::as_str) != first {
            return Err(FrameError::Malformed("the status does not list the node that sent it"));
        }
        if status.done && !self.unacked.back().is_some_and(|packet| packet.last) {
            return Err(FrameError::Malformed("the node reports the block as done before its last packet"));
        }
        if status.done && status.acked != self.produced {
            return Err(FrameError::Malformed("the node reports the block as done with a wrong length"));
        }
        link.apply_timeout(&status)?;
        link.reply_due_since = (status.acked < sent_to).then(Instant::now);
        self.remove_failed(&status);
        // The first status of a resumed pipeline contains the offset at which it resumes. That
        // offset is not greater than the acknowledged length.
        self.acked = self.acked.max(status.acked.min(sent_to));
        self.done = status.done;
        self.drop_acked();
        Ok(())
    }

    fn remove_failed(&mut self, status: &pb::WriteStatus) {
        let faults = &mut self.faults;
        self.survivors.retain(|node| {
            let good = status.nodes.contains(&node.uuid);
            // Nodes after a failed node lose their connection too, but have not failed. Only the
            // nodes in `faults` are excluded.
            let reported =
                status.faults.iter().find(|fault| fault.node == node.uuid || fault.node == node.node);
            if let Some(fault) = reported.filter(|_| !good) {
                faults.push(NodeFault { node: node.node.clone(), reason: fault.reason.clone() });
            }
            good
        });
    }

    /// Returns the offset at which a node must resume: the start of the first packet in memory, or
    /// the end of the data if there is none.
    fn first_unacked(&self) -> u64 {
        self.unacked.front().map_or(self.produced, |packet| packet.offset)
    }

    /// Drops the packets that all nodes have received, except the last packet of the block.
    fn drop_acked(&mut self) {
        while self.sent > 0
            && self.unacked.front().is_some_and(|packet| packet.end() <= self.acked && !packet.last)
            && let Some(packet) = self.unacked.pop_front()
        {
            self.unacked_bytes -= packet.data.len();
            self.sent -= 1;
            self.buffers.put_back(packet.data);
        }
    }
}

/// Returns whether a reply, or the start of one, has arrived.
fn has_reply(link: &Link) -> io::Result<bool> {
    if !link.replies.buffer().is_empty() {
        return Ok(true);
    }
    // The end of the stream also counts as input: the next read reports it.
    link.replies.get_ref().has_input()
}

/// Sends a packet with one system call, if the socket buffer has enough space.
fn send_packet(link: &mut Link, packet: &Packet) -> io::Result<()> {
    let body = pb::Packet { offset: packet.offset, last: packet.last, checksums: packet.sums.clone() };
    link.reply_due_since.get_or_insert_with(Instant::now);
    link.head.clear();
    encode_frame(FrameKind::Packet, &body, packet.data.len(), &mut link.head);
    let stream = link.replies.get_mut();
    let both = [IoSlice::new(&link.head), IoSlice::new(&packet.data)];
    let taken = loop {
        match stream.write_vectored(&both) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if taken < link.head.len() {
        stream.write_all(&link.head[taken..])?;
        return stream.write_all(&packet.data);
    }
    stream.write_all(&packet.data[taken - link.head.len()..])
}
