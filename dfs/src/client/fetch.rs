//! Fetches parts of blocks, in order and checked.
//!
//! Invariant: no byte leaves a run before its chunk's checksum has been checked. Over TCP the consumer receives for
//! itself and checks each chunk as it comes, while it is in the cache: the socket's own buffers are what is fetched
//! ahead, and a thread between the two would cost a quarter of the speed. Blocks on this machine, which may have to
//! come from the disk first, are read and checked one packet ahead on a blocking thread. The first failure ends the
//! run; what to do about it is the reader's business.

use super::connection::{Buffers, Hangup, Idle, Timeouts, connect, reason, send_frame};
use super::local::{self, LocalReplica, ReadError};
use super::{Client, LocatedBlock, NodeAddress};
use crate::bulk::{FrameError, FrameKind, PACKET_BYTES, is_timeout, read_frame};
use crate::checksum::{self, CHUNK_BYTES, ChecksumError};
use bytes::{Bytes, BytesMut};
use proto::dfs as pb;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use security::{Credentials, Stream};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinHandle, block_in_place, spawn_blocking};

/// How long a consumer waits on its own thread. Long beside the gaps of a busy local link, short beside anything else.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How long a node may give nothing while another has the block too.
const STALL: Duration = Duration::from_secs(1);

const BROKEN: &str = "the thread that read it broke down";

/// Bytes in one request: keeps the checksums of its answer within a frame, and is a whole number of packets.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Bytes `from..to` of a block, from one of its nodes.
pub(super) struct BlockRange {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) from: u64,
    pub(super) to: u64,
    /// Another node has it too: this one need not be waited for long.
    pub(super) has_other_replica: bool,
}

/// Why a part could not be fetched.
pub(super) struct Failure {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) reason: String,
    /// The replica itself is bad, not only the way to it.
    pub(super) damaged: bool,
}

/// Bytes and their place in the file. They may begin before and end after what was asked, at chunk boundaries.
pub(super) type Item = Result<(u64, Bytes), Box<Failure>>;

/// Parts being fetched. Dropped, it is hung up.
pub(super) struct Run {
    /// What is still to be asked for.
    requests: VecDeque<Request>,
    /// What comes in now: the first of `requests`.
    source: Option<Source>,
    read_path: ReadPath,
    buffers: Arc<Buffers>,
    failed: bool,
}

impl Run {
    /// What comes next, checked. Nothing after the last part, or after a failure. May be dropped in the middle and
    /// called again: nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Item> {
        loop {
            let request = self.requests.front().filter(|_| !self.failed)?;
            let source = match &mut self.source {
                Some(source) => source,
                none => match self.read_path.open(request, &self.buffers).await {
                    Ok(source) => none.insert(source),
                    Err(bad) => return Some(self.fail(&bad)),
                },
            };
            let next = match source {
                Source::File(file) => file.next().await,
                Source::Stream(stream) => stream.next(self.read_path.timeout(&request.range_of)).await,
            };
            match next {
                Ok(Some((offset, bytes))) => {
                    return Some(Ok((request.range_of.block.offset + offset, bytes)));
                }
                Ok(None) => self.finish(),
                Err(bad) => return Some(self.fail(&bad)),
            }
        }
    }

    /// The first request has been answered in full: its connection can serve another.
    fn finish(&mut self) {
        let request = self.requests.pop_front();
        if let (Some(Source::Stream(stream)), Some(request)) = (self.source.take(), request) {
            self.read_path.hangup.release();
            if stream.socket.socket().set_nonblocking(false).is_ok() {
                self.read_path.idle.put_back(&request.range_of.node.data_addr, stream.socket);
            }
        }
    }

    fn fail(&mut self, bad: &ReadFailure) -> Item {
        self.failed = true;
        self.source = None;
        self.read_path.hangup.hang_up();
        let range_of = &self.requests[0].range_of;
        // A connection that brought bad bytes may be out of step.
        self.read_path.idle.forget(&range_of.node.data_addr);
        let (reason, damaged) = bad.classify();
        Err(Box::new(Failure { block: range_of.block.clone(), node: range_of.node.clone(), reason, damaged }))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.read_path.hangup.hang_up();
    }
}

/// Will fetch `parts`, in order.
pub(super) fn start(client: &Client, parts: Vec<BlockRange>) -> Run {
    let read_path = ReadPath {
        hangup: Hangup::default(),
        timeouts: client.read_timeouts(),
        short_circuit: client.inner.options.config.short_circuit,
        credentials: client.inner.options.credentials.clone(),
        idle: client.inner.idle.clone(),
    };
    let requests = parts.into_iter().map(Arc::new).flat_map(Request::all_of).collect();
    Run { requests, source: None, read_path, buffers: client.inner.buffers.clone(), failed: false }
}

/// Bytes of a part that are asked for at once.
#[derive(Clone)]
struct Request {
    range_of: Arc<BlockRange>,
    range: Range<u64>,
}

impl Request {
    fn all_of(range_of: Arc<BlockRange>) -> impl Iterator<Item = Self> {
        let starts = (range_of.from / REQUEST_BYTES_MAX..range_of.to.div_ceil(REQUEST_BYTES_MAX))
            .map(|n| n * REQUEST_BYTES_MAX);
        starts.map(move |start| {
            let range = range_of.from.max(start)..range_of.to.min(start + REQUEST_BYTES_MAX);
            Self { range_of: range_of.clone(), range }
        })
    }

    /// The chunks that hold the range.
    fn chunks(&self) -> Range<u64> {
        let chunk = CHUNK_BYTES as u64;
        let end = self.range.end.checked_next_multiple_of(chunk).unwrap_or(u64::MAX);
        self.range.start / chunk * chunk..end.min(self.range_of.block.length)
    }
}

/// How to get at a block's bytes.
#[derive(Clone)]
struct ReadPath {
    hangup: Hangup,
    timeouts: Timeouts,
    short_circuit: bool,
    credentials: Credentials,
    idle: Arc<Idle>,
}

impl ReadPath {
    async fn open(&self, request: &Request, buffers: &Arc<Buffers>) -> Result<Source, ReadFailure> {
        let (read_path, wanted) = (self.clone(), request.clone());
        let opened = spawn_blocking(move || read_path.open_blocking(&wanted)).await;
        let broken = |_| Err(ReadFailure::Reply(BROKEN.into()));
        Ok(match opened.unwrap_or_else(broken)? {
            Opened::Local(replica) => Source::File(FileSource {
                replica: Arc::new(replica),
                left: request.chunks(),
                prefetched: None,
                buffers: buffers.clone(),
            }),
            Opened::Remote(socket, sums) => Source::Stream(StreamSource {
                socket,
                left: request.chunks(),
                sums,
                partial_packet: None,
                buffers: buffers.clone(),
            }),
        })
    }

    fn open_blocking(&self, request: &Request) -> Result<Opened, ReadFailure> {
        let range_of = &request.range_of;
        if self.short_circuit {
            match local::open_if_local(
                &range_of.block,
                &range_of.node,
                &self.credentials,
                self.timeout(range_of),
            ) {
                Ok(Some(local)) => return Ok(Opened::Local(local)),
                // Over TCP it would be as silent.
                Err(silent) if range_of.has_other_replica => return Err(silent.into()),
                Ok(None) | Err(_) => {}
            }
        }
        let (socket, sums) = self.request(range_of, request.chunks())?;
        Ok(Opened::Remote(socket, sums.into()))
    }

    /// Sends the request, over a kept connection if there is a good one; the stream stands at the data.
    fn request(&self, range_of: &BlockRange, range: Range<u64>) -> Result<(Stream, Vec<u32>), ReadFailure> {
        let addr = &range_of.node.data_addr;
        let silence = self.timeout(range_of);
        let timeouts =
            Timeouts { silence, connect: self.timeouts.connect.min(silence), ..self.timeouts.clone() };
        if let Some(stream) = self.idle.take(addr, &timeouts, &self.hangup) {
            match request_over(stream, range_of, range.clone()) {
                Err(ReadFailure::Frame(FrameError::Io(error))) if is_timeout(&error) => {
                    return Err(error.into());
                }
                // It was closed while nobody looked.
                Err(ReadFailure::Frame(FrameError::Io(_) | FrameError::Closed)) => {}
                other => return other,
            }
        }
        request_over(connect(addr, &timeouts, &self.hangup)?, range_of, range)
    }

    fn timeout(&self, range_of: &BlockRange) -> Duration {
        if range_of.has_other_replica { self.timeouts.silence.min(STALL) } else { self.timeouts.silence }
    }
}

enum Opened {
    Local(LocalReplica),
    /// Stands at the data; with the checksums.
    Remote(Stream, VecDeque<u32>),
}

/// Where the bytes of one request come from.
enum Source {
    File(FileSource),
    Stream(StreamSource),
}

/// What comes next of a source and its place in the block; nothing at the end.
type Next = Result<Option<(u64, Bytes)>, ReadFailure>;

/// A block on this machine.
struct FileSource {
    replica: Arc<LocalReplica>,
    /// What is to come, in whole chunks.
    left: Range<u64>,
    /// The next packet.
    prefetched: Option<JoinHandle<Result<Pooled, ReadError>>>,
    buffers: Arc<Buffers>,
}

impl FileSource {
    fn read_ahead(&mut self) -> &mut JoinHandle<Result<Pooled, ReadError>> {
        let (replica, start, length) = (self.replica.clone(), self.left.start, packet_length(&self.left));
        let buffers = &self.buffers;
        self.prefetched.get_or_insert_with(|| {
            let mut packet = Pooled { buffer: buffers.take_full(), length, home: buffers.clone() };
            spawn_blocking(move || replica.read(start, &mut packet.buffer[..length]).map(|()| packet))
        })
    }

    async fn next(&mut self) -> Next {
        if self.left.is_empty() {
            return Ok(None);
        }
        let read = self.read_ahead().await;
        self.prefetched = None;
        let packet = read.map_err(|_| ReadFailure::Reply(BROKEN.into()))?.map_err(ReadFailure::Local)?;
        let start = self.left.start;
        self.left.start += packet.length as u64;
        if !self.left.is_empty() {
            self.read_ahead();
        }
        Ok(Some((start, Bytes::from_owner(packet))))
    }
}

/// Of the first packet of a range.
fn packet_length(range: &Range<u64>) -> usize {
    (range.end - range.start).min(PACKET_BYTES as u64) as usize
}

/// A connection that stands at the data of an answer.
struct StreamSource {
    socket: Stream,
    /// What is to come, from the packet that is being filled on.
    left: Range<u64>,
    /// Of the chunks not checked yet.
    sums: VecDeque<u32>,
    partial_packet: Option<PartialPacket>,
    buffers: Arc<Buffers>,
}

/// A packet of which a part is there.
struct PartialPacket {
    packet: Pooled,
    filled: usize,
    checked: usize,
}

impl StreamSource {
    async fn next(&mut self, silence: Duration) -> Next {
        if self.left.is_empty() {
            return Ok(None);
        }
        // A consumer that never waits for anything else would keep others from running.
        tokio::task::consume_budget().await;
        while !self.fill()? {
            if !self.wait_readable_briefly() {
                let more = tokio::time::timeout(silence, self.wait_readable()).await;
                more.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
            }
        }
        let packet = self.partial_packet.take().expect("just filled").packet;
        let start = self.left.start;
        self.left.start += packet.length as u64;
        Ok(Some((start, Bytes::from_owner(packet))))
    }

    /// The runtime watches the connection only while nothing comes: it would wake a thread of its own at each arrival.
    async fn wait_readable(&self) -> io::Result<()> {
        let socket = self.socket.socket();
        socket.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(socket.try_clone()?)?.readable().await
    }

    /// Waits a moment for more, on this thread: on a fast link it is there sooner than the runtime could notice it and
    /// wake us. Only where others can continue meanwhile.
    fn wait_readable_briefly(&self) -> bool {
        let others_go_on = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        others_go_on
            && block_in_place(|| {
                let mut socket = [PollFd::new(self.socket.socket(), PollFlags::IN)];
                poll(&mut socket, Some(&MOMENT)).is_ok_and(|ready| ready > 0)
            })
    }

    /// Takes what has come; whether that makes a whole packet, all of it checked.
    fn fill(&mut self) -> Result<bool, ReadFailure> {
        let length = packet_length(&self.left);
        let partial_packet = self.partial_packet.get_or_insert_with(|| {
            let packet = Pooled { buffer: self.buffers.take_full(), length, home: self.buffers.clone() };
            PartialPacket { packet, filled: 0, checked: 0 }
        });
        while partial_packet.filled < length {
            let room = &mut partial_packet.packet.buffer[partial_packet.filled..length];
            match self.socket.receive_now(room) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => partial_packet.filled += read,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            partial_packet.check(&mut self.sums, self.left.start).map_err(ReadFailure::Sum)?;
        }
        Ok(true)
    }
}

impl PartialPacket {
    /// Checks the chunks that are there. The packet begins at `start` of its block.
    fn check(&mut self, sums: &mut VecDeque<u32>, start: u64) -> Result<(), ChecksumError> {
        while self.checked < self.filled {
            let end = (self.checked + CHUNK_BYTES).min(self.packet.length);
            if end > self.filled {
                break;
            }
            let sum = sums.pop_front();
            let chunk = &self.packet.buffer[self.checked..end];
            checksum::verify(chunk, start + self.checked as u64, sum.as_slice())?;
            self.checked = end;
        }
        Ok(())
    }
}

enum ReadFailure {
    Frame(FrameError),
    Sum(ChecksumError),
    Local(ReadError),
    Reply(String),
}

impl<E: Into<FrameError>> From<E> for ReadFailure {
    fn from(error: E) -> Self {
        Self::Frame(error.into())
    }
}

impl ReadFailure {
    /// In words, and whether the replica is to blame.
    fn classify(&self) -> (String, bool) {
        match self {
            Self::Frame(FrameError::Io(error)) => (reason(error), false),
            Self::Frame(FrameError::Refused { kind, message }) => {
                (message.clone(), matches!(kind.as_str(), "damaged" | "not-found"))
            }
            Self::Frame(other) => (other.to_string(), false),
            Self::Sum(error) => (error.to_string(), true),
            Self::Local(error) => (error.to_string(), true),
            Self::Reply(reason) => (reason.clone(), false),
        }
    }
}

fn request_over(
    mut stream: Stream,
    range_of: &BlockRange,
    Range { start: from, end: to }: Range<u64>,
) -> Result<(Stream, Vec<u32>), ReadFailure> {
    let read = pb::ReadBlock {
        block_id: range_of.block.block.0,
        offset: from,
        length: to - from,
        block_length: range_of.block.length,
        nonce: range_of.block.nonce.0,
    };
    let request = pb::BulkRequest {
        op: Some(pb::bulk_request::Op::Read(read)),
        token: range_of.block.token.to_bytes(),
    };
    send_frame(&mut stream, FrameKind::Request, &request)?;
    let reply: pb::ReadReply = read_frame(&mut stream, BytesMut::new())?.expect(FrameKind::ReadReply)?;
    if reply.chunk_size as usize != CHUNK_BYTES {
        return Err(ReadFailure::Reply(format!("it sums chunks of {} bytes", reply.chunk_size)));
    }
    if (reply.offset, reply.length) != (from, to - from) {
        let pb::ReadReply { offset, length, .. } = reply;
        let asked = format!("{} bytes at {from}", to - from);
        return Err(ReadFailure::Reply(format!("asked for {asked}, it offers {length} at {offset}")));
    }
    let sums = checksum::from_bytes(&reply.checksums);
    if sums.len() as u64 != (to - from).div_ceil(CHUNK_BYTES as u64) {
        return Err(ReadFailure::Reply("it sent too many or too few checksums".into()));
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
        self.home.put_back(std::mem::take(&mut self.buffer));
    }
}
