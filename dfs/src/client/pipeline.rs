//! Writes one block down its pipeline, and continues with the survivors when nodes fail.
//!
//! Invariants: packets that are not acknowledged, and the last one until the block is done, are kept; so a
//! survivor can always be told to resume at the first kept packet. At most a window of bytes is kept.
//! Runs on a thread of its own, which does both directions: acknowledgements are small and at most a window of
//! packets is unanswered, so they never fill the socket while we send. While the source gives nothing, empty
//! packets keep the pipeline alive and show that it is.
//!
//! Deliberately absent: talking to the NameNode. When every target is lost, the caller decides.

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

/// What nodes may say of their patience: less would be a flood of keep-alives, more a wait without end.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_mins(10);
/// How long nodes that cannot ask the NameNode are tried again: as long as the NameNode itself is by default.
const NAMENODE_UNREACHABLE_MAX: Duration = Duration::from_mins(1);

/// What a source has.
pub(super) enum Next {
    /// A piece, and whether the block ends with it.
    Piece { data: Vec<u8>, last: bool },
    /// Nothing for now.
    Pending,
    /// The writer has given up.
    Abandoned,
}

/// Where a block's bytes come from: pieces of a packet's size, but for the last.
pub(super) trait Source: Send {
    /// The next piece, if there is one within `wait`.
    fn next(&mut self, wait: Duration) -> Result<Next, ClientError>;
    /// The first `bytes` of the block are safe with every node left.
    fn acked(&mut self, _bytes: u64) {}
}

/// Why a block was not written.
#[derive(Debug)]
pub(super) enum Stop {
    /// Every target failed; this one last.
    Lost(NodeFault),
    /// The source failed.
    Source(ClientError),
    /// The writer gave up.
    Abandoned,
}

/// A block that is durable with its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) length: u64,
    /// How many nodes.
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

/// One block on its way.
pub(super) struct BlockWriter {
    block: BlockId,
    nonce: Nonce,
    token: BlockToken,
    expected_length: u64,
    /// Nodes that are still good, in pipeline order.
    survivors: Vec<NodeAddress>,
    /// Nodes that had to ask the NameNode and could not, what the last of them said, and since when there are any.
    isolated_nodes: Vec<NodeAddress>,
    isolation_reason: String,
    isolated_since: Option<Instant>,
    faults: Vec<NodeFault>,
    unacked: VecDeque<Packet>,
    unacked_bytes: usize,
    /// How many of `unacked` went out on the present connection.
    sent: usize,
    /// Bytes taken from the source.
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
    /// The shortest silence that one of the nodes takes for death.
    timeout: Duration,
    /// Since when an answer is due.
    reply_due_since: Option<Instant>,
}

impl Link {
    /// A little more than the patience of any node, so that each has the time to blame the one behind it.
    fn timeout(&self) -> Duration {
        self.timeout * 5 / 4
    }

    fn take_timeout(&mut self, status: &pb::WriteStatus) -> io::Result<()> {
        let told = Duration::from_millis(status.timeout_ms).clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        if status.timeout_ms > 0 && told != self.timeout { self.set_timeout(told) } else { Ok(()) }
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

    /// Who failed so far.
    pub(super) fn take_faults(&mut self) -> Vec<NodeFault> {
        std::mem::take(&mut self.faults)
    }

    /// Whether everything so far is still kept, so that it can go to a new block.
    pub(super) fn can_start_over(&self) -> bool {
        self.unacked.front().map_or(self.produced == 0, |first| first.offset == 0)
    }

    /// Starts over on another block, with what is kept.
    pub(super) fn start_over(&mut self, target: &LocatedBlock) {
        (self.block, self.nonce, self.token) = (target.block, target.nonce, target.token);
        self.survivors.clone_from(&target.nodes);
        (self.isolated_nodes, self.isolated_since) = (Vec::new(), None);
        (self.sent, self.acked, self.done) = (0, 0, false);
    }

    /// Writes the block to its end.
    pub(super) fn run(&mut self, source: &mut dyn Source) -> Result<Written, Stop> {
        loop {
            let mut link = self.connect_first()?;
            match self.drive(&mut link, source) {
                Ok(()) => {
                    let reason = &self.isolation_reason;
                    let left_out = |node: NodeAddress| NodeFault { node: node.node, reason: reason.clone() };
                    self.faults.extend(self.isolated_nodes.drain(..).map(left_out));
                    let (length, replicas) = (self.produced, self.survivors.len() as u32);
                    return Ok(Written { length, replicas });
                }
                Err(Broken::Stop(stop)) => return Err(stop),
                Err(Broken::Link(_)) if self.hangup.is_gone() => return Err(Stop::Abandoned),
                // It may be cut off alone: the others are asked.
                Err(Broken::Link(FrameError::Refused { kind, message })) if kind == NAMENODE_UNAVAILABLE => {
                    self.isolated_nodes.push(self.survivors.remove(0));
                    self.isolation_reason = message;
                    self.isolated_since.get_or_insert_with(Instant::now);
                }
                Err(Broken::Link(error)) => {
                    // A node that took bytes and then lost the connection may only have found us silent for
                    // too long: it gets one more chance. It is dropped if it will not set up again.
                    let passing = match &error {
                        FrameError::Closed => true,
                        FrameError::Io(error) => !is_timeout(error),
                        _ => false,
                    };
                    if !(passing && self.acked > link.acked_at_start) {
                        self.drop_first(&error);
                    }
                }
            }
        }
    }

    /// A pipeline through the first node that will have it.
    fn connect_first(&mut self) -> Result<Link, Stop> {
        if self.survivors.is_empty() && !self.isolated_nodes.is_empty() {
            // All say the same: the NameNode is away, and what they have is kept for a while.
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
        let nobody = || NodeFault { node: "no node".into(), reason: "the NameNode named no target".into() };
        Err(Stop::Lost(self.faults.last().cloned().unwrap_or_else(nobody)))
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
        // The set-up's own limit is over.
        if link.timeout.is_zero() {
            link.set_timeout(self.timeouts.silence)?;
        }
        Ok(link)
    }

    /// The last node left is given all the time there is.
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
        tracing::debug!(block = %self.block, node, reason, "left out of the pipeline");
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

    /// Takes in the statuses that are there, without waiting.
    fn take_replies(&mut self, link: &mut Link, source: &mut dyn Source) -> Result<(), Broken> {
        while has_reply(link)? {
            self.take_status(link)?;
            source.acked(self.acked);
        }
        Ok(())
    }

    /// A node that refuses says why before it closes: better than "broken pipe".
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

    /// Waits for one status and takes it in.
    fn take_status(&mut self, link: &mut Link) -> Result<(), FrameError> {
        let frame = read_frame(&mut link.replies, BytesMut::new())?;
        let status: pb::WriteStatus = frame.expect(FrameKind::Status)?;
        let sent_to = match self.sent {
            0 => self.first_unacked(),
            sent => self.unacked.get(sent - 1).map_or(self.produced, Packet::end),
        };
        // At set-up a node may hold more than we are about to send again.
        if status.acked > sent_to.max(self.produced) {
            return Err(FrameError::Malformed("it acknowledges bytes that were never sent"));
        }
        let first = self.survivors.first().map(|node| node.uuid.as_str());
        if status.nodes.first().map(String::as_str) != first {
            return Err(FrameError::Malformed("its status does not name itself"));
        }
        if status.done && !self.unacked.back().is_some_and(|packet| packet.last) {
            return Err(FrameError::Malformed("it says the block is done before its end"));
        }
        if status.done && status.acked != self.produced {
            return Err(FrameError::Malformed("its replica is done with another length"));
        }
        link.take_timeout(&status)?;
        link.reply_due_since = (status.acked < sent_to).then(Instant::now);
        self.leave_out(&status);
        // The set-up status of a resumed pipeline says where it resumes, which is not beyond what was acked.
        self.acked = self.acked.max(status.acked.min(sent_to));
        self.done = status.done;
        self.drop_acked();
        Ok(())
    }

    fn leave_out(&mut self, status: &pb::WriteStatus) {
        let faults = &mut self.faults;
        self.survivors.retain(|node| {
            let good = status.nodes.contains(&node.uuid);
            // Nodes behind a failed one are cut off with it and not to blame: only those named are shunned.
            let told = status.faults.iter().find(|fault| fault.node == node.uuid || fault.node == node.node);
            if let Some(fault) = told.filter(|_| !good) {
                faults.push(NodeFault { node: node.node.clone(), reason: fault.reason.clone() });
            }
            good
        });
    }

    /// Where a survivor has to resume: with everything acknowledged, where the next packet starts.
    fn first_unacked(&self) -> u64 {
        self.unacked.front().map_or(self.produced, |packet| packet.offset)
    }

    /// Forgets packets that every node has, but never the last one.
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

/// Whether something of a reply has come in.
fn has_reply(link: &Link) -> io::Result<bool> {
    if !link.replies.buffer().is_empty() {
        return Ok(true);
    }
    // The end of the stream counts: reading it tells.
    link.replies.get_ref().has_input()
}

/// One packet by one system call, unless the socket takes less.
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
