//! A file in the distributed file system. Blocks on this machine are memory-mapped and verified as
//! they are read; other blocks are read over the network.
//!
//! If a mapped block is damaged or cannot be read, the remainder comes from the reader of the
//! client. The client tries the local replica again, without a mapping, reports it as bad, and then
//! uses another replica.

use super::{ByteSource, local::CHUNK_BYTES};
use crate::dfs_error::dfs_error;
use bytes::Bytes;
use dfs_client::{
    Client, ClientError, FileReader, FileStatus, LocalBlock, LocatedBlock, error::Kind, path::DfsPath,
};
use mrlib_api::TaskError;
use tokio::runtime::Handle;

/// Length of the file range whose blocks one call to the NameNode locates.
const LOCATE_BYTES: u64 = 1 << 30;

/// Identifies a file as it was when the job was submitted. A file with the same ID can only grow,
/// so its first `length` bytes have not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// The ID of the job, for error messages.
    pub job: u64,
    /// The ID of the file.
    pub file_id: u64,
    /// The length of the file at submission.
    pub length: u64,
}

impl Pin {
    /// Returns the error for a file that has changed since the submission.
    fn changed_error(&self, path: &DfsPath, what: &str) -> TaskError {
        let job = self.job;
        TaskError::Fatal(format!(
            "input {path} was {what} after job_{job} was submitted: the output would mix old and new input; submit the job again"
        ))
    }

    /// Checks that the status is that of the pinned file.
    fn check(&self, status: &FileStatus) -> Result<(), TaskError> {
        let path = &status.path;
        if status.is_dir || status.file_id.0 != self.file_id {
            return Err(self.changed_error(path, "replaced"));
        }
        if status.length < self.length {
            let (length, now) = (self.length, status.length);
            return Err(self.changed_error(path, &format!("truncated from {length} to {now} bytes")));
        }
        Ok(())
    }
}

/// A file in the distributed file system. Its length is the length when it was opened, or that of
/// its pin.
pub struct DfsFile {
    client: Client,
    runtime: Handle,
    status: FileStatus,
    pin: Option<Pin>,
    blocks: Vec<LocatedBlock>,
    at: u64,
    block_reader: BlockReader,
}

/// The source of the current bytes.
enum BlockReader {
    None,
    /// A local block, which begins at `offset` in the file.
    Mapped {
        offset: u64,
        block: LocalBlock,
    },
    /// The network, up to the offset `end` of the file. `bytes` were received last, and begin at
    /// `offset`.
    Stream {
        reader: Box<FileReader>,
        offset: u64,
        bytes: Bytes,
        end: u64,
    },
}

impl DfsFile {
    /// Opens a file. Like all methods this must be called outside of async code; `runtime` runs the
    /// client.
    pub fn open(client: Client, runtime: Handle, path: DfsPath) -> Result<Self, TaskError> {
        Self::open_pinned(client, runtime, path, None)
    }

    /// Opens a file. Fails if it is not the pinned file.
    pub fn open_pinned(
        client: Client,
        runtime: Handle,
        path: DfsPath,
        pin: Option<Pin>,
    ) -> Result<Self, TaskError> {
        let located = runtime.block_on(client.locate(&path, 0, LOCATE_BYTES));
        let (mut status, blocks) = located.map_err(|error| missing_input(error, pin, &path))?;
        if let Some(pin) = &pin {
            pin.check(&status)?;
            status.length = pin.length;
        }
        if status.is_dir {
            return Err(TaskError::Program(format!("{path} is a folder: name a file in it")));
        }
        Ok(Self { client, runtime, status, pin, blocks, at: 0, block_reader: BlockReader::None })
    }

    /// Checks that the path still refers to this file.
    fn check_same(&self, now: &FileStatus) -> Result<(), TaskError> {
        if let Some(pin) = &self.pin {
            return pin.check(now);
        }
        if now.file_id == self.status.file_id {
            return Ok(());
        }
        Err(TaskError::Program(format!(
            "{} was replaced by another file while it was read",
            self.status.path
        )))
    }

    fn block_at(&self, at: u64) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.offset + block.length <= at);
        (self.blocks.get(index)?.offset <= at).then_some(index)
    }

    /// Returns the block with byte `at`.
    fn locate_block(&mut self) -> Result<LocatedBlock, TaskError> {
        let path = &self.status.path;
        if self.block_at(self.at).is_none() {
            let located = self.runtime.block_on(self.client.locate(path, self.at, LOCATE_BYTES));
            let located = located.map_err(|error| missing_input(error, self.pin, path))?;
            self.check_same(&located.0)?;
            self.blocks = located.1;
        }
        let index = self.block_at(self.at);
        let text = || format!("{path}: the NameNode has no block for byte {}", self.at);
        index.map(|index| self.blocks[index].clone()).ok_or_else(|| TaskError::Program(text()))
    }

    /// Opens the block with byte `at`: locally if possible, otherwise over the network.
    fn open_block_at(&mut self) -> Result<(), TaskError> {
        let block = self.locate_block()?;
        let local = self.runtime.block_on(self.client.open_local_block(&block)).map_err(dfs_error)?;
        match local {
            Some(local) => self.block_reader = BlockReader::Mapped { offset: block.offset, block: local },
            None => self.open_stream(block.offset + block.length)?,
        }
        Ok(())
    }

    /// Opens a reader over the network, from `at` to `end`.
    fn open_stream(&mut self, end: u64) -> Result<(), TaskError> {
        let reader = self.runtime.block_on(self.client.open(&self.status.path));
        let mut reader = reader.map_err(|error| missing_input(error, self.pin, &self.status.path))?;
        self.check_same(reader.status())?;
        reader.seek(self.at);
        self.block_reader =
            BlockReader::Stream { reader: Box::new(reader), offset: self.at, bytes: Bytes::new(), end };
        Ok(())
    }

    /// Reads bytes from `at`. Returns how many are available.
    fn prepare(&mut self) -> Result<usize, TaskError> {
        loop {
            match &mut self.block_reader {
                BlockReader::Mapped { offset, block }
                    if (*offset..*offset + block.bytes().len() as u64).contains(&self.at) =>
                {
                    let from = self.at - *offset;
                    // Read up to a multiple of the chunk size, so that no chunk is verified twice.
                    let to = (from / CHUNK_BYTES as u64 + 1) * CHUNK_BYTES as u64;
                    let to = to.min(block.bytes().len() as u64);
                    let Err(error) = block.verify(from..to) else { return Ok((to - from) as usize) };
                    let end = *offset + block.bytes().len() as u64;
                    let (path, at) = (&self.status.path, self.at);
                    tracing::warn!(%path, at, %error, "cannot use the mapped local replica: reading the block through the client");
                    self.open_stream(end)?;
                }
                BlockReader::Stream { offset, bytes, .. }
                    if (*offset..*offset + bytes.len() as u64).contains(&self.at) =>
                {
                    return Ok(bytes.len() - (self.at - *offset) as usize);
                }
                BlockReader::Stream { reader, offset, bytes, end }
                    if reader.position() == self.at && self.at < *end =>
                {
                    let Some(next) = self.runtime.block_on(reader.next()).map_err(dfs_error)? else {
                        let (path, at, end) = (&self.status.path, self.at, *end);
                        let text = format!("{path} ends at byte {at}, but should have at least {end} bytes");
                        return Err(TaskError::Program(text));
                    };
                    (*offset, *bytes) = (self.at, next);
                }
                _ => self.open_block_at()?,
            }
        }
    }
}

/// Returns an error that fails the job if the pinned file does not exist any more.
fn missing_input(error: ClientError, pin: Option<Pin>, path: &DfsPath) -> TaskError {
    let missing = error.is(Kind::NotFound) || error.is(Kind::NotDirectory);
    match pin.filter(|_| missing) {
        Some(pin) => pin.changed_error(path, "deleted or moved"),
        None => dfs_error(error),
    }
}

impl ByteSource for DfsFile {
    fn len(&self) -> u64 {
        self.status.length
    }

    fn seek(&mut self, at: u64) -> Result<(), TaskError> {
        self.at = at.min(self.len());
        Ok(())
    }

    fn next(&mut self) -> Result<&[u8], TaskError> {
        if self.at >= self.len() {
            return Ok(&[]);
        }
        // The file may have grown since it was pinned.
        let length = self.prepare()?.min((self.len() - self.at) as usize);
        let at = self.at;
        self.at += length as u64;
        Ok(match &self.block_reader {
            BlockReader::None => &[],
            BlockReader::Mapped { offset, block } => &block.bytes()[(at - offset) as usize..][..length],
            BlockReader::Stream { offset, bytes, .. } => &bytes[(at - offset) as usize..][..length],
        })
    }

    fn consumed(&self) -> u64 {
        self.at
    }
}
