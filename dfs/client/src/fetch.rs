//! Fetches ranges of blocks in order and verifies them.
//!
//! Invariant: no byte is returned before the checksum of its chunk has been verified.
//!
//! Over TCP, the caller of [`FetchRun::next`] receives the data itself and verifies each chunk
//! while it is in the CPU cache. The socket buffers are the only prefetch: an additional thread
//! between the socket and the caller would reduce the throughput by a quarter. A block on this
//! machine may have to be read from disk, so a blocking thread reads and verifies it one packet
//! ahead. The first failure ends the [`FetchRun`]; the reader decides how to continue.

use super::connection::{
    BufferPool, Hangup, IdleConnections, Timeouts, connect, describe_socket_error, send_frame,
};
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

/// How long [`StreamSource::next`] waits for data on its own thread: longer than the gaps between
/// packets on a busy local link, but too short to delay other tasks.
const BRIEF_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How long a node may send nothing before the reader gives it up, if another node has a replica of
/// the block.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

const READER_PANICKED: &str = "the reading thread panicked";

/// Maximum number of bytes per request, a multiple of the packet size. It is limited because the
/// checksums of the reply must fit into a frame.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Bytes `from..to` of a block, to be read from one of its nodes.
pub(super) struct BlockRange {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) from: u64,
    pub(super) to: u64,
    /// Whether another node has a replica too. If so, this node gets the short [`STALL_TIMEOUT`].
    pub(super) has_other_replica: bool,
}

/// Why a range could not be read from a node.
pub(super) struct RangeFailure {
    pub(super) block: LocatedBlock,
    pub(super) node: NodeAddress,
    pub(super) reason: String,
    /// Whether the replica is damaged or missing. Otherwise only the node or the connection failed.
    pub(super) damaged: bool,
}

/// Verified bytes and their offset in the file. The bytes start and end at chunk boundaries, so
/// they may start before and end after the requested range.
pub(super) type FetchedBytes = Result<(u64, Bytes), Box<RangeFailure>>;

/// Fetches a list of block ranges in order. Dropping it closes its connection.
pub(super) struct FetchRun {
    /// Requests whose data has not been completely returned.
    requests: VecDeque<Request>,
    /// The source of the data of the first request.
    source: Option<Source>,
    read_path: ReadPath,
    buffers: Arc<BufferPool>,
    failed: bool,
}

impl FetchRun {
    /// Returns the next verified bytes, or `None` after the last range or a failure. Cancel safe:
    /// no data is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<FetchedBytes> {
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
                Source::Stream(stream) => stream.next(self.read_path.timeout(&request.block_range)).await,
            };
            match next {
                Ok(Some((offset, bytes))) => {
                    return Some(Ok((request.block_range.block.offset + offset, bytes)));
                }
                Ok(None) => self.finish(),
                Err(bad) => return Some(self.fail(&bad)),
            }
        }
    }

    /// Removes the first request, which is complete, and keeps its connection for reuse.
    fn finish(&mut self) {
        let request = self.requests.pop_front();
        if let (Some(Source::Stream(stream)), Some(request)) = (self.source.take(), request) {
            self.read_path.hangup.release();
            if stream.socket.socket().set_nonblocking(false).is_ok() {
                self.read_path.idle.put_back(&request.block_range.node.data_addr, stream.socket);
            }
        }
    }

    fn fail(&mut self, bad: &ReadFailure) -> FetchedBytes {
        self.failed = true;
        self.source = None;
        self.read_path.hangup.hang_up();
        let block_range = &self.requests[0].block_range;
        // After an invalid reply, the position in the stream is unknown. Do not reuse connections
        // to this node.
        self.read_path.idle.forget(&block_range.node.data_addr);
        let (reason, damaged) = bad.classify();
        Err(Box::new(RangeFailure {
            block: block_range.block.clone(),
            node: block_range.node.clone(),
            reason,
            damaged,
        }))
    }
}

impl Drop for FetchRun {
    fn drop(&mut self) {
        self.read_path.hangup.hang_up();
    }
}

/// Creates a [`FetchRun`] that fetches `parts` in order.
pub(super) fn start(client: &Client, parts: Vec<BlockRange>) -> FetchRun {
    let read_path = ReadPath {
        hangup: Hangup::default(),
        timeouts: client.read_timeouts(),
        short_circuit: client.inner.options.config.short_circuit,
        credentials: client.inner.options.credentials.clone(),
        idle: client.inner.idle.clone(),
    };
    let requests = parts.into_iter().map(Arc::new).flat_map(Request::split_range).collect();
    FetchRun { requests, source: None, read_path, buffers: client.inner.buffers.clone(), failed: false }
}

/// A part of a block range that is requested at once.
#[derive(Clone)]
struct Request {
    block_range: Arc<BlockRange>,
    range: Range<u64>,
}

impl Request {
    fn split_range(block_range: Arc<BlockRange>) -> impl Iterator<Item = Self> {
        let starts = (block_range.from / REQUEST_BYTES_MAX..block_range.to.div_ceil(REQUEST_BYTES_MAX))
            .map(|n| n * REQUEST_BYTES_MAX);
        starts.map(move |start| {
            let range = block_range.from.max(start)..block_range.to.min(start + REQUEST_BYTES_MAX);
            Self { block_range: block_range.clone(), range }
        })
    }

    /// Returns the range, extended to chunk boundaries.
    fn chunk_range(&self) -> Range<u64> {
        let chunk = CHUNK_BYTES as u64;
        let end = self.range.end.checked_next_multiple_of(chunk).unwrap_or(u64::MAX);
        self.range.start / chunk * chunk..end.min(self.block_range.block.length)
    }
}

/// The connections, timeouts and credentials that are needed to read a block.
#[derive(Clone)]
struct ReadPath {
    hangup: Hangup,
    timeouts: Timeouts,
    short_circuit: bool,
    credentials: Credentials,
    idle: Arc<IdleConnections>,
}

impl ReadPath {
    async fn open(&self, request: &Request, buffers: &Arc<BufferPool>) -> Result<Source, ReadFailure> {
        let (read_path, wanted) = (self.clone(), request.clone());
        let opened = spawn_blocking(move || read_path.open_blocking(&wanted)).await;
        let broken = |_| Err(ReadFailure::Reply(READER_PANICKED.into()));
        Ok(match opened.unwrap_or_else(broken)? {
            OpenedReplica::Local(replica) => Source::File(FileSource {
                replica: Arc::new(replica),
                remaining: request.chunk_range(),
                prefetched: None,
                buffers: buffers.clone(),
            }),
            OpenedReplica::Remote(socket, sums) => Source::Stream(StreamSource {
                socket,
                remaining: request.chunk_range(),
                sums,
                partial_packet: None,
                buffers: buffers.clone(),
            }),
        })
    }

    fn open_blocking(&self, request: &Request) -> Result<OpenedReplica, ReadFailure> {
        let block_range = &request.block_range;
        if self.short_circuit {
            match local::open_if_local(
                &block_range.block,
                &block_range.node,
                &self.credentials,
                self.timeout(block_range),
            ) {
                Ok(Some(local)) => return Ok(OpenedReplica::Local(local)),
                // The node is silent on its Unix socket. It would be silent over TCP too.
                Err(silent) if block_range.has_other_replica => return Err(silent.into()),
                Ok(None) | Err(_) => {}
            }
        }
        let (socket, sums) = self.request(block_range, request.chunk_range())?;
        Ok(OpenedReplica::Remote(socket, sums.into()))
    }

    /// Sends the request, over an idle connection if there is one that works. Returns the stream,
    /// positioned at the data, and the checksums.
    fn request(
        &self,
        block_range: &BlockRange,
        range: Range<u64>,
    ) -> Result<(Stream, Vec<u32>), ReadFailure> {
        let addr = &block_range.node.data_addr;
        let silence = self.timeout(block_range);
        let timeouts =
            Timeouts { silence, connect: self.timeouts.connect.min(silence), ..self.timeouts.clone() };
        if let Some(stream) = self.idle.take(addr, &timeouts, &self.hangup) {
            match send_read_request(stream, block_range, range.clone()) {
                Err(ReadFailure::Frame(FrameError::Io(error))) if is_timeout(&error) => {
                    return Err(error.into());
                }
                // The node had closed the idle connection.
                Err(ReadFailure::Frame(FrameError::Io(_) | FrameError::Closed)) => {}
                other => return other,
            }
        }
        send_read_request(connect(addr, &timeouts, &self.hangup)?, block_range, range)
    }

    fn timeout(&self, block_range: &BlockRange) -> Duration {
        if block_range.has_other_replica {
            self.timeouts.silence.min(STALL_TIMEOUT)
        } else {
            self.timeouts.silence
        }
    }
}

enum OpenedReplica {
    Local(LocalReplica),
    /// A stream positioned at the data, and the checksums.
    Remote(Stream, VecDeque<u32>),
}

/// The source of the bytes of one request.
enum Source {
    File(FileSource),
    Stream(StreamSource),
}

/// The next bytes of a source and their offset in the block; `None` at the end.
type NextBytes = Result<Option<(u64, Bytes)>, ReadFailure>;

/// A block on this machine, read through file descriptors.
struct FileSource {
    replica: Arc<LocalReplica>,
    /// The range that has not been returned yet, in complete chunks.
    remaining: Range<u64>,
    /// The task that reads the next packet ahead.
    prefetched: Option<JoinHandle<Result<PooledBuffer, ReadError>>>,
    buffers: Arc<BufferPool>,
}

impl FileSource {
    fn read_ahead(&mut self) -> &mut JoinHandle<Result<PooledBuffer, ReadError>> {
        let (replica, start, length) =
            (self.replica.clone(), self.remaining.start, packet_length(&self.remaining));
        let buffers = &self.buffers;
        self.prefetched.get_or_insert_with(|| {
            let mut packet = PooledBuffer { buffer: buffers.take_full(), length, pool: buffers.clone() };
            spawn_blocking(move || replica.read(start, &mut packet.buffer[..length]).map(|()| packet))
        })
    }

    async fn next(&mut self) -> NextBytes {
        if self.remaining.is_empty() {
            return Ok(None);
        }
        let read = self.read_ahead().await;
        self.prefetched = None;
        let packet =
            read.map_err(|_| ReadFailure::Reply(READER_PANICKED.into()))?.map_err(ReadFailure::Local)?;
        let start = self.remaining.start;
        self.remaining.start += packet.length as u64;
        if !self.remaining.is_empty() {
            self.read_ahead();
        }
        Ok(Some((start, Bytes::from_owner(packet))))
    }
}

/// Returns the length of the first packet of a range.
fn packet_length(range: &Range<u64>) -> usize {
    (range.end - range.start).min(PACKET_BYTES as u64) as usize
}

/// Reads the data of a reply from a connection.
struct StreamSource {
    socket: Stream,
    /// The range that has not been returned yet. It starts at the packet that is being filled.
    remaining: Range<u64>,
    /// Checksums of the chunks that are not verified yet.
    sums: VecDeque<u32>,
    partial_packet: Option<PartialPacket>,
    buffers: Arc<BufferPool>,
}

/// A packet that is not completely received.
struct PartialPacket {
    packet: PooledBuffer,
    filled: usize,
    checked: usize,
}

impl StreamSource {
    async fn next(&mut self, silence: Duration) -> NextBytes {
        if self.remaining.is_empty() {
            return Ok(None);
        }
        // Yield to the runtime from time to time: data that arrives quickly never makes this loop
        // wait.
        tokio::task::consume_budget().await;
        while !self.fill()? {
            if !self.wait_readable_briefly() {
                let more = tokio::time::timeout(silence, self.wait_readable()).await;
                more.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
            }
        }
        let packet = self.partial_packet.take().expect("just filled").packet;
        let start = self.remaining.start;
        self.remaining.start += packet.length as u64;
        Ok(Some((start, Bytes::from_owner(packet))))
    }

    /// Waits for data with the runtime. The socket is registered only for this wait: otherwise the
    /// runtime would wake one of its threads whenever data arrives.
    async fn wait_readable(&self) -> io::Result<()> {
        let socket = self.socket.socket();
        socket.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(socket.try_clone()?)?.readable().await
    }

    /// Waits for data on this thread for a short time. Returns whether data has arrived. On a fast
    /// link the data arrives sooner than the runtime could wake this task. Does nothing unless the
    /// runtime is multi-threaded, because otherwise the wait would stop all other tasks.
    fn wait_readable_briefly(&self) -> bool {
        let multi_thread = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        multi_thread
            && block_in_place(|| {
                let mut socket = [PollFd::new(self.socket.socket(), PollFlags::IN)];
                poll(&mut socket, Some(&BRIEF_WAIT)).is_ok_and(|ready| ready > 0)
            })
    }

    /// Receives the data that has arrived and verifies complete chunks. Returns true if the packet
    /// is complete and verified.
    fn fill(&mut self) -> Result<bool, ReadFailure> {
        let length = packet_length(&self.remaining);
        let partial_packet = self.partial_packet.get_or_insert_with(|| {
            let packet =
                PooledBuffer { buffer: self.buffers.take_full(), length, pool: self.buffers.clone() };
            PartialPacket { packet, filled: 0, checked: 0 }
        });
        while partial_packet.filled < length {
            let remaining = &mut partial_packet.packet.buffer[partial_packet.filled..length];
            match self.socket.receive_now(remaining) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => partial_packet.filled += read,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            partial_packet.check(&mut self.sums, self.remaining.start).map_err(ReadFailure::Sum)?;
        }
        Ok(true)
    }
}

impl PartialPacket {
    /// Verifies the chunks that are complete. The packet starts at offset `start` of its block.
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
    /// Describes the failure. The second value is true if the replica is damaged or missing.
    fn classify(&self) -> (String, bool) {
        match self {
            Self::Frame(FrameError::Io(error)) => (describe_socket_error(error), false),
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

fn send_read_request(
    mut stream: Stream,
    block_range: &BlockRange,
    Range { start: from, end: to }: Range<u64>,
) -> Result<(Stream, Vec<u32>), ReadFailure> {
    let read = pb::ReadBlock {
        block_id: block_range.block.block.0,
        offset: from,
        length: to - from,
        block_length: block_range.block.length,
        nonce: block_range.block.nonce.0,
    };
    let request = pb::BulkRequest {
        op: Some(pb::bulk_request::Op::Read(read)),
        token: block_range.block.token.to_bytes(),
    };
    send_frame(&mut stream, FrameKind::Request, &request)?;
    let reply: pb::ReadReply = read_frame(&mut stream, BytesMut::new())?.expect(FrameKind::ReadReply)?;
    if reply.chunk_size as usize != CHUNK_BYTES {
        return Err(ReadFailure::Reply(format!(
            "the node uses checksum chunks of {} bytes",
            reply.chunk_size
        )));
    }
    if (reply.offset, reply.length) != (from, to - from) {
        let pb::ReadReply { offset, length, .. } = reply;
        let asked = format!("{} bytes at {from}", to - from);
        return Err(ReadFailure::Reply(format!("requested {asked}, the node sent {length} at {offset}")));
    }
    let sums = checksum::from_bytes(&reply.checksums);
    if sums.len() as u64 != (to - from).div_ceil(CHUNK_BYTES as u64) {
        return Err(ReadFailure::Reply("the node sent too many or too few checksums".into()));
    }
    Ok((stream, sums))
}

/// A buffer that returns to its pool when it is dropped.
struct PooledBuffer {
    buffer: Vec<u8>,
    length: usize,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.buffer));
    }
}
