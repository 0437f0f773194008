//! Short-circuit reads: a reader on this machine gets the open files themselves, over a Unix socket.
//!
//! The descriptors stay valid when the block is deleted meanwhile, and are read-only. Every account of the machine may
//! connect: tasks have accounts of their own. A request must show the same as one over TCP, the block's nonce and, in a
//! closed cluster, its token.

use super::{
    error::{Refusal, RefusalKind},
    node::Node,
    send::check_length,
    store::Opened,
};
use crate::{
    bulk::{FrameKind, encode_frame},
    checksum::CHUNK_BYTES,
    ids::{BlockId, NodeUuid, Nonce},
};
use proto::dfs::{OpenLocal, ReadReply};
use rustix::{
    fs::{Mode, OFlags},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags},
};
use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

/// A socket address holds 108 bytes; a little is left for the system.
const PATH_BYTES_MAX: usize = 100;
/// Every account may connect.
const SOCKET_MODE: u32 = 0o666;
/// Every account may pass through the folder made for the socket, and only its owner may change it.
const FOLDER_MODE: u32 = 0o711;

/// Binds the node's socket: in `within` if that is set, else in its first data folder that is in service, or, if that
/// path is too long, below the system's folder for temporary files.
pub(super) fn bind(folder: &Path, within: &Path, uuid: NodeUuid) -> io::Result<(UnixListener, PathBuf)> {
    let mut path = folder.join("local.sock");
    let long = path.as_os_str().len() > PATH_BYTES_MAX;
    let set = !within.as_os_str().is_empty();
    if set || long {
        let within = if set { within.to_owned() } else { std::env::temp_dir() };
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("datanode.socket_dir = {}: {error}", within.display()))
        };
        // Readers have other current folders.
        let own = within.canonicalize().map_err(named)?.join(format!("fermata-{}", uuid.0.simple()));
        path = own.join("local.sock");
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let max = PATH_BYTES_MAX;
            return Err(named(io::Error::other(format!("the socket's path has more than {max} bytes"))));
        }
        make_own(&own).map_err(named)?;
    }
    // Left by an earlier start: the folder's lock says that nobody else serves it.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
    listener.set_nonblocking(true)?;
    Ok((listener, path))
}

/// Removes the socket, and the folder made for it, if it is none of the data folders. Their locks must still be held.
pub(super) fn remove(socket: &Path, folders: &[&Path]) {
    fs::remove_file(socket).ok();
    if let Some(parent) = socket.parent().filter(|parent| !folders.contains(parent)) {
        fs::remove_dir(parent).ok();
    }
}

/// Makes a folder that no other account can have put there or can change.
fn make_own(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(folder, flags, Mode::empty())?);
    if opened.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{} is not a folder of this user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    opened.set_permissions(Permissions::from_mode(FOLDER_MODE))
}

/// Serves one `OpenLocal`. The outer error is the connection's.
pub(super) fn open_local(
    node: &Node,
    stream: &UnixStream,
    request: &OpenLocal,
) -> io::Result<Result<(), Refusal>> {
    match open(node, request) {
        Err(refusal) => Ok(Err(refusal)),
        Ok((opened, sums_file)) => reply(stream, &opened, &sums_file).map(Ok),
    }
}

fn open(node: &Node, request: &OpenLocal) -> Result<(Opened, File), Refusal> {
    let uuid = node.uuid();
    if request.node_uuid != uuid {
        let message = format!("this is datanode {uuid}, not {}", request.node_uuid);
        return Err(Refusal::new(RefusalKind::Invalid, message));
    }
    let block = BlockId(request.block_id);
    let replica = node.store.find_nonce(block, Nonce(request.nonce))?;
    let opened = node.store.open_replica(block, replica)?;
    check_length(&node.store, &opened, request.block_length)?;
    let sums_file = node.store.volumes[opened.replica.volume]
        .open_sums(block)
        .map_err(|error| node.store.found_damage(block, opened.replica, error.into()))?;
    Ok((opened, sums_file))
}

fn reply(mut stream: &UnixStream, opened: &Opened, sums_file: &File) -> io::Result<()> {
    let body = ReadReply {
        offset: 0,
        length: 0, // no bytes follow
        chunk_size: CHUNK_BYTES as u32,
        checksums: Vec::new(), // in the second file, and of a large block too long for a frame
    };
    let mut out = Vec::new();
    encode_frame(FrameKind::ReadReply, &body, 0, &mut out);
    let files = [opened.data.as_fd(), sums_file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)), "room for two descriptors");
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&out)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&out[sent..])
}
