//! Fetches parts of blocks on a thread of its own, a few packets ahead of the consumer.
//!
//! Invariant: no byte leaves a run before its chunk's checksum has been checked. Whoever has time checks: a consumer
//! that waits for the next packet does it itself, and the thread goes on receiving; for one that is behind, the
//! thread does. The first failure ends the run, after everything good before it; what to do about it is the reader's
//! business.

use super::connection::{Buffers, Hangup, Idle, Timeouts, connect, reason, send_frame};
use super::local::{self, LocalBlock};
use super::{Client, ClientError, LocatedBlock, NodeAddress};
use crate::bulk::{FrameError, FrameKind, PACKET_BYTES, read_frame};
use crate::checksum::{self, CHUNK_BYTES, ChecksumError};
use bytes::{Bytes, BytesMut};
use proto::dfs as pb;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Packets fetched ahead.
const AHEAD: usize = 4;

/// Bytes in one request: keeps the checksums of its answer within a frame, and is a whole number of packets.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Bytes `from..to` of a block, from one of its nodes.
pub(super) struct Part {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Why a part could not be fetched.
pub(super) struct Failure {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) reason: String,
    /// The replica itself is bad, not only the way to it.
    pub(super) damaged: bool,
}

impl Failure {
    fn of(part: &Part, bad: &Bad) -> Self {
        let (reason, damaged) = bad.judge();
        Self { block: part.block.clone(), node: part.node.clone(), reason, damaged }
    }
}

/// Bytes and their place in the file. They may begin before and end after what was asked, at chunk boundaries.
pub(super) type Item = Result<(u64, Bytes), Failure>;

/// Bytes of a part, and its checksums from there on if they are not checked yet.
struct Packet {
    part: Arc<Part>,
    /// In the block.
    offset: u64,
    bytes: Bytes,
    unchecked: Option<Vec<u32>>,
}

impl Packet {
    fn check(self) -> Item {
        if let Some(sums) = &self.unchecked
            && let Err(error) = checksum::verify(&self.bytes, self.offset, sums)
        {
            return Err(Failure::of(&self.part, &Bad::Sum(error)));
        }
        Ok((self.part.block.offset + self.offset, self.bytes))
    }
}

/// A thread at work. Dropped, it is hung up.
pub(super) struct Run {
    items: mpsc::Receiver<Result<Packet, Failure>>,
    hangup: Hangup,
}

impl Run {
    /// What comes next, checked. Nothing after the last part, or after a failure.
    pub(super) async fn next(&mut self) -> Option<Item> {
        Some(self.items.recv().await?.and_then(Packet::check))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.hangup.hang_up();
    }
}

/// Starts fetching `parts`, in order.
pub(super) fn start(client: &Client, parts: Vec<Part>) -> Result<Run, ClientError> {
    let (items, receiver) = mpsc::channel(AHEAD);
    let hangup = Hangup::default();
    let fetcher = Fetcher {
        items,
        hangup: hangup.clone(),
        timeouts: client.read_timeouts(),
        short_circuit: client.inner.options.config.short_circuit,
        idle: client.inner.idle.clone(),
        buffers: client.inner.buffers.clone(),
    };
    client.inner.threads.start("dfs-read", move || fetcher.run(parts))?;
    Ok(Run { items: receiver, hangup })
}

struct Fetcher {
    items: mpsc::Sender<Result<Packet, Failure>>,
    hangup: Hangup,
    timeouts: Timeouts,
    short_circuit: bool,
    idle: Arc<Idle>,
    buffers: Arc<Buffers>,
}

enum Bad {
    Frame(FrameError),
    Sum(ChecksumError),
    Reply(String),
    /// The consumer is gone.
    Unwanted,
}

impl<E: Into<FrameError>> From<E> for Bad {
    fn from(error: E) -> Self {
        Self::Frame(error.into())
    }
}

impl Bad {
    /// In words, and whether the replica is to blame.
    fn judge(&self) -> (String, bool) {
        match self {
            Self::Frame(FrameError::Io(error)) => (reason(error), false),
            Self::Frame(FrameError::Refused { kind, message }) => {
                (message.clone(), matches!(kind.as_str(), "damaged" | "not-found"))
            }
            Self::Frame(other) => (other.to_string(), false),
            Self::Sum(error) => (error.to_string(), true),
            Self::Reply(reason) => (reason.clone(), false),
            Self::Unwanted => (String::new(), false),
        }
    }
}

impl Fetcher {
    fn run(&self, parts: Vec<Part>) {
        for part in parts.into_iter().map(Arc::new) {
            let local = if self.short_circuit { local::open_if_local(&part.block, &part.node) } else { None };
            let fetched = match local {
                Some(local) => self.read_map(&part, local),
                None => self.read_node(&part),
            };
            let Err(bad) = fetched else { continue };
            if self.hangup.is_gone() || matches!(bad, Bad::Unwanted) {
                return;
            }
            // A consumer that is gone does not want to know.
            let _ = self.items.blocking_send(Err(Failure::of(&part, &bad)));
            return;
        }
    }

    fn hand_out(&self, packet: Packet) -> Result<(), Bad> {
        self.items.blocking_send(Ok(packet)).map_err(|_| Bad::Unwanted)
    }

    fn consumer_waits(&self) -> bool {
        self.items.capacity() == self.items.max_capacity()
    }

    fn read_map(&self, part: &Arc<Part>, local: LocalBlock) -> Result<(), Bad> {
        let local = Arc::new(local);
        let whole = Bytes::from_owner(Mapped(local.clone()));
        let mut at = part.from;
        while at < part.to {
            let end = (at + 1).next_multiple_of(PACKET_BYTES as u64).min(part.to);
            local.verify(at..end).map_err(Bad::Sum)?;
            let bytes = whole.slice(at as usize..end as usize);
            self.hand_out(Packet { part: part.clone(), offset: at, bytes, unchecked: None })?;
            at = end;
        }
        Ok(())
    }

    fn read_node(&self, part: &Arc<Part>) -> Result<(), Bad> {
        let chunk = CHUNK_BYTES as u64;
        let from = part.from / chunk * chunk;
        let to = part.to.checked_next_multiple_of(chunk).unwrap_or(u64::MAX).min(part.block.length);
        let mut at = from;
        while at < to {
            let end = to.min(at.saturating_add(REQUEST_BYTES_MAX));
            self.read_range(part, at, end)?;
            at = end;
        }
        Ok(())
    }

    /// One request: bytes `from..to`, at chunk boundaries or the end of the block.
    fn read_range(&self, part: &Arc<Part>, from: u64, to: u64) -> Result<(), Bad> {
        let (mut stream, sums) = self.ask(part, from, to)?;
        let mut sums = sums.chunks(PACKET_BYTES / CHUNK_BYTES);
        let mut at = from;
        while at < to {
            let length = (to - at).min(PACKET_BYTES as u64) as usize;
            let mut buffer = self.buffers.take_full();
            stream.read_exact(&mut buffer[..length])?;
            let sums = sums.next().unwrap_or(&[]);
            let unchecked = if self.consumer_waits() {
                Some(sums.to_vec())
            } else {
                checksum::verify(&buffer[..length], at, sums).map_err(Bad::Sum)?;
                None
            };
            let bytes = Bytes::from_owner(Pooled { buffer, length, home: self.buffers.clone() });
            self.hand_out(Packet { part: part.clone(), offset: at, bytes, unchecked })?;
            at += length as u64;
        }
        self.hangup.release();
        self.idle.give(&part.node.data_addr, stream);
        Ok(())
    }

    /// Sends the request, over a kept connection if there is a good one; the stream stands at the data.
    fn ask(&self, part: &Part, from: u64, to: u64) -> Result<(TcpStream, Vec<u32>), Bad> {
        let addr = &part.node.data_addr;
        if let Some(stream) = self.idle.take(addr, self.timeouts, &self.hangup) {
            match ask_over(stream, part, from, to) {
                // It was closed while nobody looked.
                Err(Bad::Frame(FrameError::Io(_) | FrameError::Closed)) => {}
                other => return other,
            }
        }
        ask_over(connect(addr, self.timeouts, &self.hangup)?, part, from, to)
    }
}

fn ask_over(mut stream: TcpStream, part: &Part, from: u64, to: u64) -> Result<(TcpStream, Vec<u32>), Bad> {
    let read = pb::ReadBlock {
        block_id: part.block.block.0,
        offset: from,
        length: to - from,
        block_length: part.block.length,
    };
    let request = pb::BulkRequest { op: Some(pb::bulk_request::Op::Read(read)) };
    send_frame(&mut stream, FrameKind::Request, &request)?;
    let reply: pb::ReadReply = read_frame(&mut stream, BytesMut::new())?.expect(FrameKind::ReadReply)?;
    if reply.chunk_size as usize != CHUNK_BYTES {
        return Err(Bad::Reply(format!("it sums chunks of {} bytes", reply.chunk_size)));
    }
    if (reply.offset, reply.length) != (from, to - from) {
        let pb::ReadReply { offset, length, .. } = reply;
        let asked = format!("{} bytes at {from}", to - from);
        return Err(Bad::Reply(format!("asked for {asked}, it offers {length} at {offset}")));
    }
    let sums = checksum::from_bytes(&reply.checksums);
    if sums.len() as u64 != (to - from).div_ceil(CHUNK_BYTES as u64) {
        return Err(Bad::Reply("it sent too many or too few checksums".into()));
    }
    Ok((stream, sums))
}

/// A buffer that goes back where it came from.
struct Pooled {
    buffer: Vec<u8>,
    length: usize,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.buffer));
    }
}

struct Mapped(Arc<LocalBlock>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
