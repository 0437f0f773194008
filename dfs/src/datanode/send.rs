//! Sends a block: the checksums in the reply, then the data with `sendfile` directly from the page
//! cache.
//!
//! The data is not verified here. The reader verifies it and reports damage to the NameNode, which
//! then sends this node a command to check the replica. Errors that are visible without reading the
//! data (a missing, truncated or foreign file) are detected here.

use super::{
    error::{Refusal, RefusalKind},
    receive::TransferFailure,
    store::{OpenReplica, Store},
    volume::Damage,
};
use dfs_client::{
    bulk::{FrameError, FrameKind, encode_frame},
    checksum::{CHUNK_BYTES, to_bytes},
    ids::{BlockId, Nonce},
};
use proto::dfs::{ReadBlock, ReadReply};
use security::Stream;
use std::{
    io::{self, Write},
    ops::Range,
};

/// Maximum number of bytes in a reply, so that its checksums fit into a frame. Readers request
/// longer ranges in parts.
const RANGE_BYTES_MAX: u64 = 8 << 30;

/// The replica of the last request of a connection. It is kept open for the next request.
#[derive(Debug, Default)]
pub(super) struct LastRead(Option<OpenReplica>);

/// Serves a `ReadBlock` request.
pub(super) fn send(
    store: &Store,
    mut stream: &Stream,
    request: ReadBlock,
    last: &mut LastRead,
) -> Result<(), TransferFailure> {
    let opened = open(store, request, last).map_err(TransferFailure::Refused)?;
    let range = extend_to_chunks(&request, opened.replica.length).map_err(TransferFailure::Refused)?;
    let chunk = CHUNK_BYTES as u64;
    let sums = (range.start / chunk) as usize..range.end.div_ceil(chunk) as usize;
    let reply = ReadReply {
        offset: range.start,
        length: range.end - range.start,
        chunk_size: CHUNK_BYTES as u32,
        checksums: to_bytes(&opened.sums.sums[sums]),
    };
    let mut out = Vec::new();
    encode_frame(FrameKind::ReadReply, &reply, 0, &mut out);
    let gone = |error| TransferFailure::ConnectionLost(FrameError::Io(error));
    stream.write_all(&out).map_err(gone)?;
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).min(1 << 30) as usize;
        match stream.send_file(&opened.data, &mut at, count) {
            Ok(0) => {
                let why = format!("ends at byte {at}, but should have {} bytes", opened.replica.length);
                store.quarantine_replica(opened.block, opened.replica, why);
                return Err(gone(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error @ rustix::io::Errno::IO) => {
                store.handle_read_error(opened.block, opened.replica, Damage::Unreadable(error.into()));
                return Err(gone(io::ErrorKind::UnexpectedEof.into()));
            }
            Err(error) => return Err(gone(error.into())),
        }
    }
    Ok(())
}

/// Opens the requested replica, or reuses `last` if it is the same replica.
fn open<'a>(store: &Store, request: ReadBlock, last: &'a mut LastRead) -> Result<&'a OpenReplica, Refusal> {
    let block = BlockId(request.block_id);
    let now = store.find_with_nonce(block, Nonce(request.nonce))?;
    let same = last.0.as_ref().is_some_and(|open| open.block == block && open.replica == now);
    if !same {
        last.0 = None;
        last.0 = Some(store.open_replica(block, now)?);
    }
    let opened = last.0.as_ref().expect("opened above");
    check_length(store, opened, request.block_length)?;
    check_file_length(store, opened)?;
    Ok(opened)
}

/// Refuses a replica whose length is not what the reader expects, and reports the replica again to
/// the NameNode, which knows the correct length. The replica is kept, because the reader may be
/// wrong.
pub(super) fn check_length(store: &Store, opened: &OpenReplica, wanted: u64) -> Result<(), Refusal> {
    let length = opened.replica.length;
    if length == wanted {
        return Ok(());
    }
    store.report_again(opened.block, opened.replica);
    let message = format!("replica of {} has {length} bytes, expected {wanted}", opened.block);
    Err(Refusal::new(RefusalKind::Damaged, message))
}

fn check_file_length(store: &Store, opened: &OpenReplica) -> Result<(), Refusal> {
    let found = opened.data.metadata().map(|data| data.len());
    match found {
        Ok(found) if found == opened.replica.length => Ok(()),
        Ok(found) => {
            let why = format!("has {found} bytes, but {} were written", opened.replica.length);
            Err(store.quarantine_replica(opened.block, opened.replica, why))
        }
        Err(error) => Err(store.handle_read_error(opened.block, opened.replica, error.into())),
    }
}

/// Returns the requested range, extended to complete chunks.
fn extend_to_chunks(request: &ReadBlock, length: u64) -> Result<Range<u64>, Refusal> {
    if request.offset > length {
        let message = format!("offset {} is past the {length} bytes of the block", request.offset);
        return Err(Refusal::new(RefusalKind::Invalid, message));
    }
    let chunk = CHUNK_BYTES as u64;
    let start = request.offset - request.offset % chunk;
    let end = request.offset.saturating_add(request.length).min(length).min(start + RANGE_BYTES_MAX);
    // Only the last chunk of the block can be incomplete.
    Ok(start..end.div_ceil(chunk).saturating_mul(chunk).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_extended_to_complete_chunks() {
        let chunk = CHUNK_BYTES as u64;
        let length = 3 * chunk + 7;
        let extend_to_chunks = |offset, bytes| {
            extend_to_chunks(&ReadBlock { offset, length: bytes, ..Default::default() }, length)
        };
        assert_eq!(extend_to_chunks(0, length), Ok(0..length));
        assert_eq!(extend_to_chunks(1, 1), Ok(0..chunk));
        assert_eq!(extend_to_chunks(chunk - 1, 2), Ok(0..2 * chunk));
        assert_eq!(extend_to_chunks(chunk, chunk), Ok(chunk..2 * chunk));
        assert_eq!(extend_to_chunks(3 * chunk + 1, u64::MAX), Ok(3 * chunk..length));
        assert_eq!(extend_to_chunks(length, 5), Ok(3 * chunk..length));
        assert_eq!(extend_to_chunks(2 * chunk, 0), Ok(2 * chunk..2 * chunk));
        assert!(extend_to_chunks(length + 1, 0).is_err());
    }

    #[test]
    fn checksums_of_the_longest_reply_fit_into_a_frame() {
        let length = 20 << 30;
        let asked = ReadBlock { offset: 1, length: u64::MAX, block_length: length, ..Default::default() };
        let range = extend_to_chunks(&asked, length).unwrap();
        let sums = vec![0xff; (range.end - range.start).div_ceil(CHUNK_BYTES as u64) as usize * 4];
        let reply =
            ReadReply { offset: 0, length: u64::MAX, chunk_size: CHUNK_BYTES as u32, checksums: sums };
        let mut out = Vec::new();
        encode_frame(FrameKind::ReadReply, &reply, 0, &mut out);
        dfs_client::bulk::read_frame(&mut &out[..], bytes::BytesMut::new()).unwrap();
    }
}
