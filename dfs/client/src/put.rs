//! Copies a local file or a stream into the file system. The data is written to a file with a
//! hidden temporary name, which is renamed when it is closed. The file therefore appears completely
//! or not at all. If the process ends during a put, the NameNode deletes the hidden file when its
//! lease expires.
//!
//! The blocks of a regular file are allocated in order and written in parallel. The file is read
//! with `pread` and not mapped, because an access to a mapped file that was truncated would end the
//! process with a signal. A file with length 0 (for example in `/proc`) is read as a stream. A file
//! that becomes shorter while it is read is an error. A file that grows is copied with its initial
//! length.
//!
//! When all nodes of a block fail, this block and all blocks allocated after it are abandoned and
//! written again: the NameNode can only append a new block at the end of the file.

use super::connection::{BufferPool, Hangup};
use super::open_file::{OpenFile, discard, discard_later};
use super::pipeline::{BlockWriter, NextPiece, Source, WriteFailure, WrittenBlock};
use super::writer::{BLOCK_ATTEMPTS_MAX, write_error};
use super::{Client, ClientError, CreateOptions, FileWriter, NodeFault, OnAbandon};
use super::{Progress, PutOptions, PutReport, PutSource, Result};
use crate::bulk::PACKET_BYTES;
use crate::error::{Error, Kind};
use crate::ids::BlockId;
use crate::path::{DfsPath, NAME_BYTES_MAX};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot};

impl Client {
    /// Copies a local file or a stream into the file system. The file appears completely or not at
    /// all.
    pub async fn put(
        &self,
        source: PutSource,
        to: &DfsPath,
        options: PutOptions,
        progress: &dyn Progress,
    ) -> Result<PutReport> {
        self.check_target(to, options.overwrite).await?;
        let hidden = hidden_name(to)?;
        let put = self.put_hidden(source, &hidden, to, options, progress).await;
        put.map_err(|error| error.with_final_name(&hidden, to))
    }

    async fn put_hidden(
        &self,
        source: PutSource,
        hidden: &DfsPath,
        to: &DfsPath,
        options: PutOptions,
        progress: &dyn Progress,
    ) -> Result<PutReport> {
        let overwrite = options.overwrite;
        let create = CreateOptions {
            replication: options.replication,
            block_size: options.block_size,
            make_parents: options.make_parents,
            mode: options.mode,
            on_abandon: OnAbandon::Delete,
            ..CreateOptions::default()
        };
        match source {
            PutSource::Reader(reader) => {
                let writer = self.create(hidden, create).await?;
                put_stream(writer, reader, to, overwrite, progress).await
            }
            PutSource::File(path) => match open_local(path.clone()).await? {
                (file, Some(length)) => {
                    let open = OpenFile::create(self, hidden, create).await?;
                    put_file(open, LocalFile { file, path }, length, to, overwrite, progress).await
                }
                (file, None) => {
                    let file = Arc::into_inner(file)
                        .ok_or_else(|| local_error(&path, "is still in use by another transfer"))?;
                    let reader = Box::new(tokio::fs::File::from_std(file));
                    let writer = self.create(hidden, create).await?;
                    put_stream(writer, reader, to, overwrite, progress).await
                }
            },
        }
    }

    /// Checks the target before data is sent. The NameNode checks it again when the file is closed.
    async fn check_target(&self, to: &DfsPath, overwrite: bool) -> Result<()> {
        match self.stat_opt(to).await? {
            Some(found) if found.is_dir => {
                Err(Error::new(Kind::IsDirectory, format!("{to} is a folder: give the name of a file"))
                    .into())
            }
            Some(_) if !overwrite => {
                let message = format!("{to} already exists: overwrite it or choose another name");
                Err(Error::new(Kind::Exists, message).into())
            }
            _ => Ok(()),
        }
    }
}

fn hidden_name(to: &DfsPath) -> Result<DfsPath> {
    let Some((folder, name)) = to.split_last() else {
        return Err(Error::new(Kind::IsDirectory, "/ is a folder: give the name of a file").into());
    };
    let end = format!(".put-{}", uuid::Uuid::new_v4().simple());
    let max = NAME_BYTES_MAX - 1 - end.len();
    let cut = (0..=max.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    let name = &name[..cut];
    Ok(folder.join(&format!(".{name}{end}"))?)
}

fn local_error(path: &Path, reason: impl ToString) -> ClientError {
    ClientError::Local { path: path.to_owned(), reason: reason.to_string() }
}

/// Opens a local file. Returns its length if it is a regular file with a length greater than 0.
async fn open_local(path: PathBuf) -> Result<(Arc<File>, Option<u64>)> {
    let open = move || {
        let file = File::open(&path).map_err(|error| local_error(&path, error))?;
        let about = file.metadata().map_err(|error| local_error(&path, error))?;
        if about.is_dir() {
            return Err(local_error(&path, "is a folder"));
        }
        Ok((Arc::new(file), Some(about.len()).filter(|length| about.is_file() && *length > 0)))
    };
    tokio::task::spawn_blocking(open).await.expect("opening a file does not panic")
}

async fn put_stream(
    mut writer: FileWriter,
    mut reader: Box<dyn AsyncRead + Send + Unpin>,
    to: &DfsPath,
    overwrite: bool,
    progress: &dyn Progress,
) -> Result<PutReport> {
    let mut buffer = vec![0; PACKET_BYTES];
    loop {
        let taken = match reader.read(&mut buffer).await {
            Ok(0) => return writer.finish(Some(to), overwrite).await,
            Ok(taken) => taken,
            Err(source) => {
                // Delete the hidden file before returning the error. If that fails, it is deleted
                // when its lease expires.
                let _ = writer.abort().await;
                return Err(ClientError::Input { path: to.clone(), source });
            }
        };
        writer.write(&buffer[..taken]).await?;
        progress.advance(taken as u64);
    }
}

struct LocalFile {
    file: Arc<File>,
    path: PathBuf,
}

/// Discards the file if the put is dropped before it has finished.
struct DiscardOnDrop(Option<Box<OpenFile>>);

impl Drop for DiscardOnDrop {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            discard_later(open);
        }
    }
}

async fn put_file(
    open: OpenFile,
    from: LocalFile,
    length: u64,
    to: &DfsPath,
    overwrite: bool,
    progress: &dyn Progress,
) -> Result<PutReport> {
    let mut unfinished = DiscardOnDrop(Some(Box::new(open)));
    let open = unfinished.0.as_mut().expect("it was set one line above");
    let result = match put_blocks(open, &from, length, progress).await {
        Ok(()) => open.finish(Some(to), overwrite).await,
        Err(error) => Err(error),
    };
    let open = unfinished.0.take().expect("only this line takes it");
    if result.is_err() {
        discard(open).await;
    }
    result
}

/// A block that is being written. Dropping it closes its connection.
struct PendingBlock {
    index: usize,
    block: BlockId,
    hangup: Hangup,
    task: oneshot::Receiver<(Vec<NodeFault>, std::result::Result<WrittenBlock, WriteFailure>)>,
}

impl Drop for PendingBlock {
    fn drop(&mut self) {
        self.hangup.hang_up();
    }
}

/// Reports the progress of a put from the number of acknowledged bytes of each block. Bytes that
/// are sent again are counted once.
struct AckedBytes<'a> {
    bytes: Vec<u64>,
    progress: &'a dyn Progress,
}

impl AckedBytes<'_> {
    fn record(&mut self, (index, acked): (usize, u64)) {
        let more = acked.saturating_sub(self.bytes[index]);
        if more > 0 {
            self.bytes[index] = acked;
            self.progress.advance(more);
        }
    }
}

async fn put_blocks(
    open: &mut OpenFile,
    from: &LocalFile,
    length: u64,
    progress: &dyn Progress,
) -> Result<()> {
    let total = length.div_ceil(open.block_size) as usize;
    let parallel = open.client.inner.options.config.parallel_blocks.max(1);
    let mut acked_bytes = AckedBytes { bytes: vec![0; total], progress };
    let (acks, mut acked) = mpsc::unbounded_channel();
    let mut pending: VecDeque<PendingBlock> = VecDeque::new();
    let (mut next, mut losses) = (0, 0);
    loop {
        while pending.len() < parallel && next < total {
            pending.push_back(start_block(open, from, length, next, acks.clone()).await?);
            next += 1;
        }
        let Some(oldest) = pending.front_mut() else { break };
        let ended = tokio::select! {
            ended = &mut oldest.task => ended,
            Some(one) = acked.recv() => {
                acked_bytes.record(one);
                continue;
            }
        };
        let oldest = pending.pop_front().expect("the queue was not empty when its front was awaited");
        let (faults, result) = ended.map_err(|_| local_error(&from.path, "the writing thread failed"))?;
        open.exclude(faults);
        match result {
            Ok(written) => {
                open.record_written(oldest.block, written);
                losses = 0;
            }
            Err(WriteFailure::Source(error)) => return Err(error),
            Err(WriteFailure::Abandoned) => {
                return Err(ClientError::WriterFailed { path: open.path.clone() });
            }
            Err(WriteFailure::AllNodesFailed(fault)) => {
                losses += 1;
                if losses == BLOCK_ATTEMPTS_MAX {
                    return Err(write_error(open, oldest.block, fault));
                }
                cancel_all(open, &mut pending).await;
                open.abandon_from(oldest.block).await?;
                next = oldest.index;
            }
        }
    }
    while let Ok(one) = acked.try_recv() {
        acked_bytes.record(one);
    }
    Ok(())
}

/// Cancels the writes of all pending blocks and waits until their threads have ended.
async fn cancel_all(open: &mut OpenFile, pending: &mut VecDeque<PendingBlock>) {
    for block in &*pending {
        block.hangup.hang_up();
    }
    while let Some(mut block) = pending.pop_front() {
        if let Ok((faults, _)) = (&mut block.task).await {
            open.exclude(faults);
        }
    }
}

async fn start_block(
    open: &mut OpenFile,
    from: &LocalFile,
    length: u64,
    index: usize,
    acks: mpsc::UnboundedSender<(usize, u64)>,
) -> Result<PendingBlock> {
    let start = index as u64 * open.block_size;
    let end = start.saturating_add(open.block_size).min(length);
    let target = open.add_block(Some(end - start)).await?;
    let (client, hangup) = (open.client.clone(), Hangup::default());
    let buffers = client.inner.buffers.clone();
    let mut source = FileSource {
        file: from.file.clone(),
        path: from.path.clone(),
        at: start,
        end,
        buffers: buffers.clone(),
        index,
        acks,
    };
    let timeouts = client.write_timeouts();
    let mut writer = BlockWriter::new(&target, end - start, timeouts, hangup.clone(), buffers);
    let task = client.inner.threads.start("dfs-write", move || {
        let result = writer.run(&mut source);
        (writer.take_faults(), result)
    })?;
    Ok(PendingBlock { index, block: target.block, hangup, task })
}

struct FileSource {
    file: Arc<File>,
    path: PathBuf,
    at: u64,
    end: u64,
    buffers: Arc<BufferPool>,
    index: usize,
    acks: mpsc::UnboundedSender<(usize, u64)>,
}

impl Source for FileSource {
    fn next(&mut self, _wait: Duration) -> Result<NextPiece> {
        let mut buffer = self.buffers.take_full();
        buffer.truncate((self.end - self.at).min(PACKET_BYTES as u64) as usize);
        self.file.read_exact_at(&mut buffer, self.at).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                local_error(&self.path, "became shorter while it was read")
            } else {
                local_error(&self.path, error)
            }
        })?;
        self.at += buffer.len() as u64;
        Ok(NextPiece::Piece { data: buffer, last: self.at == self.end })
    }

    fn on_acked(&mut self, bytes: u64) {
        // The receiver is dropped when the put has ended.
        let _ = self.acks.send((self.index, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_without_a_length_is_a_stream() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "").unwrap();
        assert_eq!(open_local(path.clone()).await.unwrap().1, None);
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(open_local(path).await.unwrap().1, Some(3));
    }
}
