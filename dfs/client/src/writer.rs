//! Writes a file sequentially.
//!
//! The data is divided into packets. For each block, a task sends the packets on its own thread.
//! The task owns the open file while it runs and returns it with its result, so no state is shared.
//! The writer sends a packet only when more data follows, so that the last packet of a block is
//! never empty.

use super::connection::{BufferPool, Hangup};
use super::open_file::{OpenFile, discard, discard_later};
use super::pipeline::{BlockWriter, NextPiece, Source, WriteFailure};
use super::{Client, ClientError, CreateOptions, FileStatus, NodeFault, PutReport, Result};
use crate::bulk::PACKET_BYTES;
use crate::path::DfsPath;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Number of attempts to write a block before the write fails. An attempt fails if all nodes of the
/// block fail.
pub(super) const BLOCK_ATTEMPTS_MAX: usize = 5;

/// Writes a file sequentially. If the writer is dropped without `close`, the file is discarded in
/// the background.
pub struct FileWriter {
    path: DfsPath,
    length: u64,
    block_size: u64,
    /// Number of bytes that were written to the current block, including those in `packet`.
    bytes_in_block: u64,
    packet: Vec<u8>,
    buffers: Arc<BufferPool>,
    state: State,
}

enum State {
    BetweenBlocks(Box<OpenFile>),
    InBlock { packets: PacketSender, task: JoinHandle<(Box<OpenFile>, Result<()>)> },
    Failed,
}

impl FileWriter {
    pub(super) async fn create(client: &Client, path: &DfsPath, options: CreateOptions) -> Result<Self> {
        Ok(Self::new(OpenFile::create(client, path, options).await?))
    }

    pub(super) async fn append(client: &Client, path: &DfsPath) -> Result<Self> {
        Ok(Self::new(OpenFile::append(client, path).await?))
    }

    fn new(open: OpenFile) -> Self {
        Self {
            path: open.path.clone(),
            length: open.length_before,
            block_size: open.block_size,
            bytes_in_block: 0,
            packet: Vec::new(),
            buffers: open.client.inner.buffers.clone(),
            state: State::BetweenBlocks(Box::new(open)),
        }
    }

    /// Appends `data`. Waits while `WINDOW_BYTES` bytes are unacknowledged.
    pub async fn write(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            if self.bytes_in_block == self.block_size {
                self.finish_block().await?;
            }
            if self.packet.len() == PACKET_BYTES {
                self.send_packet(false).await?;
            }
            if self.packet.capacity() == 0 {
                self.packet = self.buffers.take_empty();
            }
            let free = (PACKET_BYTES - self.packet.len()) as u64;
            let taken = free.min(self.block_size - self.bytes_in_block).min(data.len() as u64) as usize;
            self.packet.extend_from_slice(&data[..taken]);
            self.bytes_in_block += taken as u64;
            self.length += taken as u64;
            data = &data[taken..];
        }
        Ok(())
    }

    /// Returns the length of the file so far, including the bytes before an append.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Closes the file. When this returns, each block has a durable replica that is reported to the
    /// NameNode.
    pub async fn close(self) -> Result<FileStatus> {
        Ok(self.finish(None, false).await?.status)
    }

    /// Closes the file and returns the report. With `to`, also moves the file to that path.
    pub(super) async fn finish(mut self, to: Option<&DfsPath>, overwrite: bool) -> Result<PutReport> {
        if self.bytes_in_block > 0 {
            self.finish_block().await?;
        }
        let State::BetweenBlocks(open) = &mut self.state else { return Err(self.failed_error()) };
        let report = open.finish(to, overwrite).await?;
        self.state = State::Failed;
        Ok(report)
    }

    /// Discards the write: a created file is deleted, an appended file keeps the blocks that were
    /// committed.
    pub async fn abort(mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Failed => Ok(()),
            State::BetweenBlocks(open) => open.discard().await,
            State::InBlock { packets, task } => {
                drop(packets);
                match task.await {
                    Ok((open, _)) => open.discard().await,
                    Err(_) => Ok(()),
                }
            }
        }
    }

    fn failed_error(&self) -> ClientError {
        ClientError::WriterFailed { path: self.path.clone() }
    }

    /// Sends the current packet. Starts the task of the block first, if this is the first packet of
    /// the block.
    async fn send_packet(&mut self, last: bool) -> Result<()> {
        let packet = std::mem::take(&mut self.packet);
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::BetweenBlocks(open) => {
                let (packets, source) = packet_channel();
                State::InBlock { packets, task: tokio::spawn(stream_block(open, source)) }
            }
            other => other,
        };
        let State::InBlock { packets, .. } = &self.state else { return Err(self.failed_error()) };
        if !packets.send(packet, last).await {
            self.join_block_task().await?;
            return Err(self.failed_error());
        }
        Ok(())
    }

    async fn finish_block(&mut self) -> Result<()> {
        self.send_packet(true).await?;
        self.bytes_in_block = 0;
        self.join_block_task().await
    }

    /// Waits until the task of the block has ended, and takes the open file from its result.
    async fn join_block_task(&mut self) -> Result<()> {
        let State::InBlock { packets, task } = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(self.failed_error());
        };
        drop(packets);
        let (open, result) = task.await.map_err(|_| self.failed_error())?;
        match result {
            Ok(()) => {
                self.state = State::BetweenBlocks(open);
                Ok(())
            }
            Err(error) => {
                discard_later(open);
                Err(error)
            }
        }
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::BetweenBlocks(open) => discard_later(open),
            State::InBlock { packets, task } => {
                // The task gets a closed channel, ends, and returns the open file.
                drop(packets);
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move {
                        if let Ok((open, _)) = task.await {
                            discard(open).await;
                        }
                    });
                }
            }
            State::Failed => {}
        }
    }
}

/// Creates a channel for one packet at a time. The sender is a task, so it awaits free capacity
/// with a semaphore before it sends. The receiver is a thread that waits with a timeout.
fn packet_channel() -> (PacketSender, StreamSource) {
    let (packets, receiver) = bounded(1);
    let capacity = Arc::new(Semaphore::new(1));
    (PacketSender { packets, capacity: capacity.clone() }, StreamSource { packets: receiver, capacity })
}

struct PacketSender {
    packets: Sender<(Vec<u8>, bool)>,
    capacity: Arc<Semaphore>,
}

impl PacketSender {
    /// Sends a packet. Returns false if the task of the block has ended.
    async fn send(&self, packet: Vec<u8>, last: bool) -> bool {
        match self.capacity.acquire().await {
            Ok(permit) => {
                permit.forget();
                self.packets.send((packet, last)).is_ok()
            }
            Err(_) => false,
        }
    }
}

struct StreamSource {
    packets: Receiver<(Vec<u8>, bool)>,
    capacity: Arc<Semaphore>,
}

impl Source for StreamSource {
    fn next(&mut self, wait: Duration) -> Result<NextPiece> {
        Ok(match self.packets.recv_timeout(wait) {
            Ok((data, last)) => {
                self.capacity.add_permits(1);
                NextPiece::Piece { data, last }
            }
            Err(RecvTimeoutError::Timeout) => NextPiece::Pending,
            Err(RecvTimeoutError::Disconnected) => NextPiece::Abandoned,
        })
    }
}

impl Drop for StreamSource {
    fn drop(&mut self) {
        self.capacity.close();
    }
}

/// Writes one block of a stream. If all nodes fail, starts again on new nodes, provided that all
/// data of the block is still in memory.
async fn stream_block(mut open: Box<OpenFile>, source: StreamSource) -> (Box<OpenFile>, Result<()>) {
    let result = stream_block_attempts(&mut open, source).await;
    (open, result)
}

async fn stream_block_attempts(open: &mut OpenFile, mut source: StreamSource) -> Result<()> {
    let client = open.client.clone();
    let mut target = open.add_block(None).await?;
    let (timeouts, buffers) = (client.write_timeouts(), client.inner.buffers.clone());
    let mut writer = BlockWriter::new(&target, open.block_size, timeouts, Hangup::default(), buffers);
    for attempt in 1.. {
        let run = move || {
            let result = writer.run(&mut source);
            (writer, source, result)
        };
        let Ok((back, unread, result)) = client.inner.threads.start("dfs-write", run)?.await else {
            return Err(ClientError::WriterFailed { path: open.path.clone() });
        };
        (writer, source) = (back, unread);
        open.exclude(writer.take_faults());
        match result {
            Ok(written) => {
                open.record_written(target.block, written);
                return Ok(());
            }
            Err(WriteFailure::Source(error)) => return Err(error),
            Err(WriteFailure::Abandoned) => {
                return Err(ClientError::WriterFailed { path: open.path.clone() });
            }
            Err(WriteFailure::AllNodesFailed(fault)) => {
                if attempt == BLOCK_ATTEMPTS_MAX || !writer.can_start_over() {
                    return Err(write_error(open, target.block, fault));
                }
                open.abandon_from(target.block).await?;
                target = open.add_block(None).await?;
                writer.start_over(&target);
            }
        }
    }
    unreachable!("the loop returns at the last attempt")
}

pub(super) fn write_error(open: &OpenFile, block: crate::ids::BlockId, fault: NodeFault) -> ClientError {
    let NodeFault { node, reason } = fault;
    ClientError::Write { path: open.path.clone(), block, node, reason }
}
