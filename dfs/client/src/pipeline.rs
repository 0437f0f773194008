//! Writes one block through its pipeline, and continues with the remaining nodes when nodes fail.
//!
//! Invariants: the writer keeps the packets that are not acknowledged, and the last packet until
//! the block is done. A remaining node can therefore always resume at the first kept packet. At
//! most `WINDOW_BYTES` are kept.
//!
//! Each block has its own thread, which sends and receives. Acknowledgements are small, and the
//! number of unacknowledged packets is bounded, so acknowledgements never fill the socket while the
//! thread sends. While the source has no data, empty packets keep the pipeline alive and show that
//! it works.
//!
//! Deliberately absent: calls to the NameNode. When all targets have failed, the caller decides
//! what to do.

use super::connection::{Buffers, Hangup, Timeouts, connect, reason, send_frame};
use super::{ClientError, LocatedBlock, NodeAddress, NodeFault, wire};
use crate::bulk::{
    FrameError, FrameKind, NAMENODE_UNAVAILABLE, WINDOW_BYTES, encode_frame, is_timeout, read_frame,
    set_up_within,
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

/// Limits of the timeout that nodes report. A lower timeout would cause too many keep-alives; a
/// higher one would make the writer wait too long.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_mins(10);
/// How long to retry while the nodes cannot reach the NameNode. The same as the default deadline of
/// calls to the NameNode.
const NAMENODE_UNREACHABLE_MAX: Duration = Duration::from_mins(1);

/// The state of a source.
pub(super) enum Next {
    /// The data of the next packet, and whether it is the last of the block.
    Piece { data: Vec<u8>, last: bool },
    /// No data is available now.
    Pending,
    /// The writer is closed without finishing the block.
    Abandoned,
}

/// The source of the data of a block. Every piece has the size of a packet, except the last.
pub(super) trait Source: Send {
    /// Returns the next piece, or `Pending` if there is none within `wait`.
    fn next(&mut self, wait: Duration) -> Result<Next, ClientError>;
    /// All remaining nodes have received the first `bytes` of the block.
    fn acked(&mut self, _bytes: u64) {}
}

/// Why a block was not written.
#[derive(Debug)]
pub(super) enum Stop {
    /// All targets failed. This is the last failure.
    Lost(NodeFault),
    /// The source returned an error.
    Source(ClientError),
    /// The writer is closed without finishing the block.
    Abandoned,
}

/// A block whose replicas are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
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
    /// Nodes that needed the NameNode and could not reach it; the last error of such a node; and
    /// since when there have been such nodes.
    isolated_nodes: Vec<NodeAddress>,
    isolation_reason: String,
    isolated_since: Option<Instant>,
    faults: Vec<NodeFault>,
    unacked: VecDeque<Packet>,
    unacked_bytes: usize,
    /// The number of packets in `unacked` that were sent on the present connection.
    sent: usize,
    /// Number of bytes that the source has returned.
    produced: u64,
    acked: u64,
    done: bool,
    timeouts: Timeouts,
    hangup: Hangup,
    buffers: Arc<Buffers>,
}

struct Link {
    replies: BufReader<Stream>,
    head: Vec<u8>,
    acked_at_start: u64,
    /// The shortest timeout of the nodes: a peer that is silent for longer is considered dead.
    timeout: Duration,
    /// Since when an unacknowledged packet has been waiting for a status.
    reply_due_since: Option<Instant>,
}

impl Link {
    /// A little longer than the timeout of every node, so that a node can still report that the
    /// node after it is silent.
    fn timeout(&self) -> Duration {
        self.timeout * 5 / 4
    }

    fn take_timeout(&mut self, status: &pb::WriteStatus) -> io::Result<()> {
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

enum Broken {
    Link(FrameError),
    Stop(Stop),
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Self::Link(error)
    }
}

impl From<io::Error> for Broken {
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
        buffers: Arc<Buffers>,
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

    /// Returns the nodes that have failed so far.
    pub(super) fn take_faults(&mut self) -> Vec<NodeFault> {
        std::mem::take(&mut self.faults)
    }

    /// Whether all data of the block is still kept, so that the block can be written again as a new
    /// block.
    pub(super) fn can_start_over(&self) -> bool {
        self.unacked.front().map_or(self.produced == 0, |first| first.offset == 0)
    }

    /// Starts again with a new block and the kept packets.
    pub(super) fn start_over(&mut self, target: &LocatedBlock) {
        (self.block, self.nonce, self.token) = (target.block, target.nonce, target.token);
        self.survivors.clone_from(&target.nodes);
        (self.isolated_nodes, self.isolated_since) = (Vec::new(), None);
        (self.sent, self.acked, self.done) = (0, 0, false);
    }

    /// Writes the complete block.
    pub(super) fn run(&mut self, source: &mut dyn Source) -> Result<Written, Stop> {
        loop {
            let mut link = self.connect_first()?;
            match self.drive(&mut link, source) {
                Ok(()) => {
                    let reason = &self.isolation_reason;
                    let fault = |node: NodeAddress| NodeFault { node: node.node, reason: reason.clone() };
                    self.faults.extend(self.isolated_nodes.drain(..).map(fault));
                    let (length, replicas) = (self.produced, self.survivors.len() as u32);
                    return Ok(Written { length, replicas });
                }
                Err(Broken::Stop(stop)) => return Err(stop),
                Err(Broken::Link(_)) if self.hangup.is_gone() => return Err(Stop::Abandoned),
                // This node cannot reach the NameNode. Try the other nodes.
                Err(Broken::Link(FrameError::Refused { kind, message })) if kind == NAMENODE_UNAVAILABLE => {
                    self.isolated_nodes.push(self.survivors.remove(0));
                    self.isolation_reason = message;
                    self.isolated_since.get_or_insert_with(Instant::now);
                }
                Err(Broken::Link(error)) => {
                    // The node accepted bytes, and then the connection was lost. The node may have
                    // closed the connection because this writer was silent for too long. Try it
                    // once more; it is removed if the set-up fails.
                    let transient = match &error {
                        FrameError::Closed => true,
                        FrameError::Io(error) => !is_timeout(error),
                        _ => false,
                    };
                    if !(transient && self.acked > link.acked_at_start) {
                        self.drop_first(&error);
                    }
                }
            }
        }
    }

    /// Sets up a pipeline through the first node that accepts it.
    fn connect_first(&mut self) -> Result<Link, Stop> {
        if self.survivors.is_empty() && !self.isolated_nodes.is_empty() {
            // No node can reach the NameNode. The nodes keep their partial replicas for some time,
            // so try again.
            if self.isolated_since.is_some_and(|since| since.elapsed() > NAMENODE_UNREACHABLE_MAX) {
                let reason = std::mem::take(&mut self.isolation_reason);
                return Err(Stop::Source(ClientError::NameNodeUnreachableFromNodes { reason }));
            }
            self.survivors.append(&mut self.isolated_nodes);
        }
        while let Some(first) = self.survivors.first().cloned() {
            match self.set_up(&first) {
                Ok(link) => return Ok(link),
                Err(_) if self.hangup.is_gone() => return Err(Stop::Abandoned),
                Err(error) => self.drop_first(&error),
            }
        }
        let no_target = || NodeFault { node: "no node".into(), reason: "the NameNode gave no target".into() };
        Err(Stop::Lost(self.faults.last().cloned().unwrap_or_else(no_target)))
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
        self.take_status(&mut link)?;
        // The timeout of the set-up does not apply any more.
        if link.timeout.is_zero() {
            link.set_timeout(self.timeouts.silence)?;
        }
        Ok(link)
    }

    /// The last remaining node gets the full timeout.
    fn set_up_timeouts(&self) -> Timeouts {
        let Timeouts { connect, silence, connector } = self.timeouts.clone();
        let within = if self.survivors.len() > 1 { set_up_within(self.survivors.len()) } else { silence };
        let silence = silence.min(within);
        Timeouts { connect: connect.min(silence), silence, connector }
    }

    fn drop_first(&mut self, error: &FrameError) {
        let node = self.survivors.remove(0).node;
        let reason = match error {
            FrameError::Io(error) => reason(error),
            other => other.to_string(),
        };
        tracing::debug!(block = %self.block, node, reason, "node removed from the pipeline");
        self.faults.push(NodeFault { node, reason });
    }

    fn drive(&mut self, link: &mut Link, source: &mut dyn Source) -> Result<(), Broken> {
        loop {
            while self.sent < self.unacked.len() && !self.done {
                if let Err(error) = send_packet(link, &self.unacked[self.sent]) {
                    return Err(self.final_error(link).unwrap_or(error.into()).into());
                }
                self.sent += 1;
                self.take_replies(link, source)?;
            }
            if self.done {
                source.acked(self.produced);
                self.hangup.release();
                return Ok(());
            }
            let complete = self.unacked.back().is_some_and(|packet| packet.last);
            if complete || self.unacked_bytes >= WINDOW_BYTES {
                self.take_status(link)?;
                source.acked(self.acked);
                continue;
            }
            if link.reply_due_since.is_some_and(|since| since.elapsed() > link.timeout()) {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            match source.next(link.timeout / 4) {
                Ok(Next::Piece { data, last }) => self.retain_packet(data, last),
                Ok(Next::Pending) => {
                    let offset = self.produced;
                    send_packet(link, &Packet { offset, last: false, sums: Vec::new(), data: Vec::new() })?;
                    self.take_replies(link, source)?;
                }
                Ok(Next::Abandoned) => return Err(Broken::Stop(Stop::Abandoned)),
                Err(error) => return Err(Broken::Stop(Stop::Source(error))),
            }
        }
    }

    /// Processes the statuses that have arrived, without waiting.
    fn take_replies(&mut self, link: &mut Link, source: &mut dyn Source) -> Result<(), Broken> {
        while has_reply(link)? {
            self.take_status(link)?;
            source.acked(self.acked);
        }
        Ok(())
    }

    /// A node that refuses sends the reason before it closes the connection. Returns that reason,
    /// which is better than "broken pipe".
    fn final_error(&mut self, link: &mut Link) -> Option<FrameError> {
        while has_reply(link).ok()? {
            match self.take_status(link) {
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
    fn take_status(&mut self, link: &mut Link) -> Result<(), FrameError> {
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
            return Err(FrameError::Malformed("the node reports the block as done with another length"));
        }
        link.take_timeout(&status)?;
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

    /// The offset at which a node must resume. If everything is acknowledged, this is the start of
    /// the next packet.
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

/// Whether a part of a reply has arrived.
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
