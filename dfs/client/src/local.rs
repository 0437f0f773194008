//! Short-circuit reads. A DataNode on this machine passes the file descriptors of the data file and
//! the checksum file of a block. The client reads or maps the block itself, and no data is sent
//! over a socket.
//!
//! The server of the Unix socket supplies both the data and the checksums. The client must
//! therefore trust the account of the server. The socket path in the location of a block is a path
//! on the machine of the DataNode. On this machine, any account may have created a socket with the
//! same path.
//!
//! Finalised block files never change, so a descriptor stays valid after the DataNode deletes the
//! file. The client checks the length of the file before it uses it.
//!
//! An access to a mapped page that cannot be read from disk ends the process with SIGBUS, where a
//! read would return an error. [`LocalBlock::verify`] therefore asks the kernel to populate the
//! pages first. That call returns an error instead of ending the process. A page that is evicted
//! after that and cannot be read again still ends the process. For this reason only task processes
//! map blocks: at worst one attempt fails.

use super::connection::{describe_socket_error, send_frame};
use super::{Client, LocatedBlock, NodeAddress, Result};
use crate::bulk::{FrameError, FrameKind, is_timeout, read_frame};
use crate::checksum::{self, CHUNK_BYTES, ChecksumError, Checksums};
use bytes::BytesMut;
use memmap2::{Advice, Mmap};
use proto::dfs as pb;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::socket_peercred};
use security::Credentials;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Timeout for the answer of the DataNode on this machine. A healthy DataNode answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a checksum file. The file has four bytes per chunk of 64 KiB, and no block is
/// large enough to exceed this limit.
const SUMS_BYTES_MAX: u64 = 64 << 20;

/// The data file and the checksums of a block on this machine.
pub(super) struct LocalReplica {
    data: File,
    length: u64,
    sums: Vec<u32>,
}

impl LocalReplica {
    /// Fills `buffer` with data from `offset`, which is a chunk boundary, and verifies it. The
    /// buffer ends at a chunk boundary or at the end of the block.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> std::result::Result<(), ReadError> {
        self.data.read_exact_at(buffer, offset).map_err(ReadError::Unreadable)?;
        let first = offset as usize / CHUNK_BYTES;
        let sums = &self.sums[first..first + buffer.len().div_ceil(CHUNK_BYTES)];
        checksum::verify(buffer, offset, sums).map_err(ReadError::Damaged)
    }

    fn map(self) -> io::Result<LocalBlock> {
        let map = if self.length == 0 { None } else { Some(map_file(&self.data)?) };
        if let Some(map) = &map {
            // Advise an empty range to test for support. The call fails on Linux before 5.14; the
            // block is then read instead of mapped.
            map.advise_range(Advice::PopulateRead, 0, 0)?;
        }
        Ok(LocalBlock { map, sums: self.sums })
    }
}

/// Why a local replica cannot be read. In both cases the replica is damaged.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk returned an error.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The data does not match its checksums.
    #[error(transparent)]
    Damaged(ChecksumError),
}

/// A mapped block on this machine.
pub struct LocalBlock {
    /// `None` for an empty block, which cannot be mapped.
    map: Option<Mmap>,
    sums: Vec<u32>,
}

impl LocalBlock {
    /// Returns the bytes of the block, which are not verified.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Reads and verifies all chunks that overlap `range`. The range is limited to the length of
    /// the block.
    pub fn verify(&self, range: Range<u64>) -> std::result::Result<(), ReadError> {
        let end = (self.bytes().len()).min(usize::try_from(range.end).unwrap_or(usize::MAX));
        let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(end) / CHUNK_BYTES * CHUNK_BYTES;
        let end = end.next_multiple_of(CHUNK_BYTES).min(self.bytes().len());
        if let Some(map) = &self.map {
            map.advise_range(Advice::PopulateRead, start, end - start).map_err(ReadError::Unreadable)?;
        }
        let sums = &self.sums[start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)];
        checksum::verify(&self.bytes()[start..end], start as u64, sums).map_err(ReadError::Damaged)
    }
}

impl Client {
    /// Maps a replica on this machine into memory, if there is one and `short_circuit` is on.
    /// `None` means that the block must be read over TCP.
    pub async fn open_local_block(&self, block: &LocatedBlock) -> Result<Option<LocalBlock>> {
        if !self.inner.options.config.short_circuit {
            return Ok(None);
        }
        let block = block.clone();
        // If other nodes have a replica, give up a silent node sooner.
        let within = if block.nodes.len() > 1 { ANSWER_TIMEOUT / 5 } else { ANSWER_TIMEOUT };
        let credentials = self.inner.options.credentials.clone();
        let open = move || {
            let open_on = |node| open_if_local(&block, node, &credentials, within).ok()??.map().ok();
            block.nodes.iter().find_map(open_on)
        };
        Ok(tokio::task::spawn_blocking(open).await.ok().flatten())
    }
}

/// Opens the replica of `node` if the node is on this machine. Returns `None` if the caller should
/// use TCP, and an error if the node does not answer in time.
pub(super) fn open_if_local(
    block: &LocatedBlock,
    node: &NodeAddress,
    credentials: &Credentials,
    within: Duration,
) -> io::Result<Option<LocalReplica>> {
    let Some(socket) = node.local_socket.as_deref().filter(|path| path.exists()) else { return Ok(None) };
    match open(socket, block, node, credentials, within.min(ANSWER_TIMEOUT)) {
        Ok(local) => Ok(Some(local)),
        Err(FrameError::Io(error)) if is_timeout(&error) => Err(error),
        Err(error) => {
            let why = if let FrameError::Io(error) = &error {
                describe_socket_error(error)
            } else {
                error.to_string()
            };
            tracing::debug!(block = %block.block, node = node.node, why, "short-circuit read not possible");
            Ok(None)
        }
    }
}

fn open(
    socket: &Path,
    block: &LocatedBlock,
    node: &NodeAddress,
    credentials: &Credentials,
    within: Duration,
) -> std::result::Result<LocalReplica, FrameError> {
    let mut stream = UnixStream::connect(socket)?;
    let server = socket_peercred(&stream).map_err(io::Error::from)?.uid.as_raw();
    if !credentials.trusts(server) {
        let why = format!("{} is served by account {server}, which is not trusted", socket.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why).into());
    }
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    let open = pb::OpenLocal {
        block_id: block.block.0,
        block_length: block.length,
        node_uuid: node.uuid.clone(),
        nonce: block.nonce.0,
    };
    let request =
        pb::BulkRequest { op: Some(pb::bulk_request::Op::OpenLocal(open)), token: block.token.to_bytes() };
    send_frame(&mut stream, FrameKind::Request, &request)?;
    let mut receiver = DescriptorReceiver { stream, descriptors: Vec::new() };
    let frame = read_frame(&mut receiver, BytesMut::new())?;
    let _: pb::ReadReply = frame.expect(FrameKind::ReadReply)?;
    let Ok([data, sums]) = <[OwnedFd; 2]>::try_from(receiver.descriptors) else {
        return Err(FrameError::Malformed("the reply does not have two file descriptors"));
    };
    check_files(data.into(), sums.into(), block).map_err(FrameError::Io)
}

fn check_files(data: File, sums: File, block: &LocatedBlock) -> io::Result<LocalReplica> {
    // Use positioned reads: the descriptor may share its file position with descriptors that the
    // node has passed to other clients.
    let mut raw = vec![0; sums.metadata()?.len().min(SUMS_BYTES_MAX) as usize];
    sums.read_exact_at(&mut raw, 0)?;
    let sums = Checksums::decode(&raw, block.block)
        .and_then(|sums| sums.check_nonce(block.nonce))
        .map_err(io::Error::other)?;
    let found = data.metadata()?.len();
    for found in [found, sums.length] {
        if found != block.length {
            return Err(io::Error::other(ChecksumError::Length { wanted: block.length, found }));
        }
    }
    Ok(LocalReplica { data, length: found, sums: sums.sums })
}

#[allow(unsafe_code, reason = "creating a memory map is unsafe")]
fn map_file(data: &File) -> io::Result<Mmap> {
    // SAFETY: a DataNode never writes to or truncates a finalised block file, and no other process
    // uses its folders. Bytes that change because of disk errors are detected by `verify`.
    let map = unsafe { Mmap::map(data)? };
    Ok(map)
}

/// Reads from a stream and collects the file descriptors that are passed with the data.
struct DescriptorReceiver {
    stream: UnixStream,
    descriptors: Vec<OwnedFd>,
}

impl Read for DescriptorReceiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(buffer)];
        let got = recvmsg(&self.stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        Ok(got.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Truncates a mapped file to simulate a bad disk, and checks that verification returns an
    /// error. For an access beyond the end of the file the kernel sends SIGBUS, as for an
    /// unreadable sector.
    #[test]
    fn unreadable_page_of_a_mapped_block_is_an_error_and_no_signal() {
        let content: Vec<u8> = (0..3 * CHUNK_BYTES + 100).map(|at| at as u8).collect();
        let data = tempfile::tempfile().unwrap();
        data.write_all_at(&content, 0).unwrap();
        let sums = checksum::sums_of(&content);
        let replica = LocalReplica { data: data.try_clone().unwrap(), length: content.len() as u64, sums };
        let Ok(block) = replica.map() else {
            return skip::skip("Linux 5.14", "this kernel does not support MADV_POPULATE_READ");
        };
        let all = 0..content.len() as u64;
        block.verify(all.clone()).unwrap();
        data.set_len(CHUNK_BYTES as u64).unwrap();
        block.verify(0..CHUNK_BYTES as u64).unwrap();
        let second = CHUNK_BYTES as u64..2 * CHUNK_BYTES as u64;
        for range in [all, second] {
            let error = block.verify(range).unwrap_err();
            assert!(matches!(error, ReadError::Unreadable(_)), "{error}");
        }
    }
}
