//! Short-circuit reads: a reader on this machine gets the file descriptors of a block over a Unix
//! socket.
//!
//! The descriptors are read-only and stay valid if the block is deleted. Every account of the
//! machine may connect, because tasks run in their own accounts. A request needs the same proof as
//! over TCP: the nonce of the block and, if the cluster requires authentication, its token.

use super::{
    error::{Refusal, RefusalKind},
    node::Node,
    send::check_length,
    store::OpenReplica,
};
use dfs_client::{
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

/// Maximum length of the socket path. The limit of the operating system is 108 bytes.
const PATH_BYTES_MAX: usize = 100;
/// Mode of the socket: every account may connect.
const SOCKET_MODE: u32 = 0o666;
/// Mode of the folder of the socket: every account may traverse it, and only its owner may change
/// it.
const FOLDER_MODE: u32 = 0o711;

/// Binds the Unix socket of the node and returns it with its path. The socket is in a new folder in
/// `within`, if that is set. Otherwise it is in the data folder `folder` or, if that path would be
/// too long, in a new folder in the system folder for temporary files.
pub(super) fn bind(folder: &Path, within: &Path, uuid: NodeUuid) -> io::Result<(UnixListener, PathBuf)> {
    let mut path = folder.join("local.sock");
    let long = path.as_os_str().len() > PATH_BYTES_MAX;
    let set = !within.as_os_str().is_empty();
    if set || long {
        let within = if set { within.to_owned() } else { std::env::temp_dir() };
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("datanode.socket_dir = {}: {error}", within.display()))
        };
        // The path must be absolute, because readers have other working folders.
        let own = within.canonicalize().map_err(named)?.join(format!("fermata-{}", uuid.0.simple()));
        path = own.join("local.sock");
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let max = PATH_BYTES_MAX;
            return Err(named(io::Error::other(format!("the path of the socket has more than {max} bytes"))));
        }
        make_own_folder(&own).map_err(named)?;
    }
    // Remove the socket of an earlier start. The lock of the data folder ensures that no other
    // DataNode uses it.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
    listener.set_nonblocking(true)?;
    Ok((listener, path))
}

/// Removes the socket, and its folder unless that is one of the data folders `folders`. The data
/// folders must still be locked.
pub(super) fn remove(socket: &Path, folders: &[&Path]) {
    fs::remove_file(socket).ok();
    if let Some(parent) = socket.parent().filter(|parent| !folders.contains(parent)) {
        fs::remove_dir(parent).ok();
    }
}

/// Creates a folder. If the folder exists, checks that it belongs to this account and is not a
/// symbolic link.
fn make_own_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(folder, flags, Mode::empty())?);
    if opened.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{} is owned by another user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    opened.set_permissions(Permissions::from_mode(FOLDER_MODE))
}

/// Serves an `OpenLocal` request. Returns an outer error if the connection failed, and an inner
/// error if the request is refused.
pub(super) fn open_local(
    node: &Node,
    stream: &UnixStream,
    request: &OpenLocal,
) -> io::Result<Result<(), Refusal>> {
    match open(node, request) {
        Err(refusal) => Ok(Err(refusal)),
        Ok((opened, sums_file)) => send_descriptors(stream, &opened, &sums_file).map(Ok),
    }
}

fn open(node: &Node, request: &OpenLocal) -> Result<(OpenReplica, File), Refusal> {
    let uuid = node.uuid();
    if request.node_uuid != uuid {
        let message = format!("this is DataNode {uuid}, not {}", request.node_uuid);
        return Err(Refusal::new(RefusalKind::Invalid, message));
    }
    let block = BlockId(request.block_id);
    let replica = node.store.find_with_nonce(block, Nonce(request.nonce))?;
    let opened = node.store.open_replica(block, replica)?;
    check_length(&node.store, &opened, request.block_length)?;
    let sums_file = node.store.volumes[opened.replica.volume]
        .open_sums(block)
        .map_err(|error| node.store.handle_read_error(block, opened.replica, error.into()))?;
    Ok((opened, sums_file))
}

fn send_descriptors(mut stream: &UnixStream, opened: &OpenReplica, sums_file: &File) -> io::Result<()> {
    let body = ReadReply {
        offset: 0,
        length: 0, // no bytes follow
        chunk_size: CHUNK_BYTES as u32,
        checksums: Vec::new(), // sent as the second file: too long for a frame if the block is large
    };
    let mut out = Vec::new();
    encode_frame(FrameKind::ReadReply, &body, 0, &mut out);
    let files = [opened.data.as_fd(), sums_file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(
        ancillary.push(SendAncillaryMessage::ScmRights(&files)),
        "the buffer has space for two descriptors"
    );
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&out)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&out[sent..])
}
