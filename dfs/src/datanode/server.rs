//! The server of the bulk port. Each connection has a thread, which serves its requests one after
//! the other.
//!
//! Limits: at most `transfers_max` connections with a valid token are served. A further one is
//! refused as `busy` and closed. A silent connection is closed after `transfer_timeout`, and a
//! connection without a valid token much sooner. Invalid input of a peer can only end its own
//! connection.

use super::{
    error::{Refusal, RefusalKind},
    local,
    node::Node,
    receive::{TransferFailure, receive},
    send::{LastRead, send},
};
use dfs_client::bulk::{FrameError, FrameKind, encode_frame, read_request};
use proto::dfs::{BulkError, BulkRequest, bulk_request::Op};
use security::{Access, BlockToken, ConnectionSlot, Stream, UNAUTHENTICATED_TIMEOUT};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// Accepts bulk connections until the task is aborted.
pub(super) async fn accept_bulk(node: Arc<Node>, listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Probably there are no free file descriptors. Wait until some are released.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let started = stream.into_std().and_then(|stream| start_bulk(&node, stream));
        if let Err(error) = started {
            tracing::warn!(%error, "cannot serve a bulk connection");
        }
    }
}

/// Accepts connections of local readers until the task is aborted.
pub(super) async fn accept_local(node: Arc<Node>, listener: tokio::net::UnixListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let started = stream.into_std().and_then(|stream| start_local(&node, stream));
        if let Err(error) = started {
            tracing::warn!(%error, "cannot serve a local connection");
        }
    }
}

fn start_bulk(node: &Arc<Node>, stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(UNAUTHENTICATED_TIMEOUT))?;
    stream.set_write_timeout(Some(node.config.transfer_timeout.0))?;
    let slot_guard = node.connections.connection_limiter.enter(stream.try_clone()?);
    start(node, "bulk", move |node| match node.guard.accept(stream) {
        Ok(stream) => serve_bulk(node, &stream, &slot_guard),
        Err(error) => tracing::debug!(%error, "TLS handshake failed"),
    })
}

fn start_local(node: &Arc<Node>, stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(UNAUTHENTICATED_TIMEOUT))?;
    stream.set_write_timeout(Some(node.config.transfer_timeout.0))?;
    let slot_guard = node.connections.connection_limiter.enter(stream.try_clone()?);
    start(node, "local", move |node| serve_local(node, &stream, &slot_guard))
}

fn start(node: &Arc<Node>, name: &str, serve: impl FnOnce(&Node) + Send + 'static) -> io::Result<()> {
    let served = node.clone();
    std::thread::Builder::new().name(name.into()).spawn(move || serve(&served)).map(drop)
}

/// Counts a connection as one with a valid token. Fails if there are too many of them.
fn admit(node: &Node, slot_guard: &ConnectionSlot) -> Result<(), Refusal> {
    if slot_guard.authenticate() {
        return Ok(());
    }
    let max = node.config.transfers_max;
    Err(Refusal::new(RefusalKind::Busy, format!("this DataNode already serves {max} transfers, its limit")))
}

fn serve_bulk(node: &Node, stream: &Stream, slot_guard: &ConnectionSlot) {
    let mut last = LastRead::default();
    let mut input = stream;
    loop {
        let outcome = match read_request(&mut input) {
            Ok(request) => node.connections.during(|| serve(node, stream, slot_guard, request, &mut last)),
            Err(error @ (FrameError::Closed | FrameError::Io(_))) => {
                Err(TransferFailure::ConnectionLost(error))
            }
            Err(error) => Err(TransferFailure::Broken(Refusal::new(RefusalKind::Invalid, error.to_string()))),
        };
        match outcome {
            Ok(()) => {}
            Err(TransferFailure::Refused(refusal)) => {
                tracing::debug!(%refusal, "request refused");
                if send_refusal(stream, &refusal).is_err() {
                    return;
                }
            }
            Err(TransferFailure::Broken(refusal)) => {
                tracing::warn!(%refusal, "transfer aborted");
                return refuse_and_close(stream, &refusal);
            }
            Err(TransferFailure::ConnectionLost(error)) => {
                tracing::debug!(%error, "bulk connection ended");
                return;
            }
        }
    }
}

/// Serves one request, if its token allows it.
fn serve(
    node: &Node,
    stream: &Stream,
    slot_guard: &ConnectionSlot,
    request: BulkRequest,
    last: &mut LastRead,
) -> Result<(), TransferFailure> {
    let token = BlockToken::from_bytes(&request.token);
    let authorise = |block, nonce, access| {
        let max = check_token(node, token, block, nonce, access).map_err(TransferFailure::Refused)?;
        admit(node, slot_guard).map_err(TransferFailure::Broken)?;
        let timeout = Some(node.config.transfer_timeout.0);
        stream
            .set_read_timeout(timeout)
            .map_err(|error| TransferFailure::ConnectionLost(FrameError::Io(error)))?;
        Ok(max)
    };
    match request.op {
        Some(Op::Write(request)) => {
            // In a closed cluster a valid token for copies shows that the NameNode has ordered the
            // write. Otherwise a client writes, and the node asks the NameNode before it finalises
            // the replica. An open cluster has no key: every token is valid, so every write counts
            // as a copy there and the NameNode is not asked.
            let copied = node.blocks.check(token, request.block_id, request.nonce, Access::Copy).is_ok();
            let max = authorise(
                request.block_id,
                request.nonce,
                if copied { Access::Copy } else { Access::Write },
            )?;
            if request.expected_length > max {
                let (block, length) = (request.block_id, request.expected_length);
                let message =
                    format!("block {block} would have {length} bytes, but its token allows only {max}");
                return Err(TransferFailure::Refused(Refusal::new(RefusalKind::Denied, message)));
            }
            receive(node, stream, request, token, !copied)
        }
        Some(Op::Read(request)) => {
            authorise(request.block_id, request.nonce, Access::Read)?;
            send(&node.store, stream, request, last)
        }
        Some(Op::OpenLocal(_)) => Err(not_served("OpenLocal is served only on the Unix socket")),
        None => Err(not_served("empty request")),
    }
}

/// Checks that the token allows the access. Returns the maximum length for a write.
fn check_token(
    node: &Node,
    token: BlockToken,
    block: u64,
    nonce: u64,
    access: Access,
) -> Result<u64, Refusal> {
    node.blocks.check(token, block, nonce, access).map_err(|why| {
        let message = format!("access to block {block} is denied: {why}");
        Refusal::new(RefusalKind::Denied, message)
    })
}

fn serve_local(node: &Node, stream: &UnixStream, slot_guard: &ConnectionSlot) {
    let mut input = stream;
    loop {
        let refusal = match read_request(&mut input) {
            Err(FrameError::Closed | FrameError::Io(_)) => return,
            Ok(BulkRequest { op: Some(Op::OpenLocal(request)), token }) => {
                let token = BlockToken::from_bytes(&token);
                let opens = check_token(node, token, request.block_id, request.nonce, Access::Read);
                match opens.and_then(|_| admit(node, slot_guard)) {
                    Err(refusal) => refusal,
                    Ok(()) => match local::open_local(node, stream, &request) {
                        Ok(Ok(())) => {
                            if stream.set_read_timeout(Some(node.config.transfer_timeout.0)).is_err() {
                                return;
                            }
                            continue;
                        }
                        Ok(Err(refusal)) => refusal,
                        Err(_) => return,
                    },
                }
            }
            Ok(_) => Refusal::new(RefusalKind::Invalid, "only OpenLocal is served on this socket"),
            Err(error) => {
                // Close the connection, because the start of the next request is unknown after an
                // invalid frame. Ignore errors, because the caller may have closed the connection.
                send_refusal(stream, &Refusal::new(RefusalKind::Invalid, error.to_string())).ok();
                return;
            }
        };
        if send_refusal(stream, &refusal).is_err() {
            return;
        }
    }
}

fn not_served(why: &str) -> TransferFailure {
    TransferFailure::Refused(Refusal::new(RefusalKind::Invalid, why))
}

fn error_frame(refusal: &Refusal) -> Vec<u8> {
    let body = BulkError { kind: refusal.kind.name().into(), message: refusal.message.clone() };
    let mut out = Vec::new();
    encode_frame(FrameKind::Error, &body, 0, &mut out);
    out
}

fn send_refusal(mut stream: impl Write, refusal: &Refusal) -> io::Result<()> {
    stream.write_all(&error_frame(refusal))
}

/// Sends the refusal and closes the connection. First reads and discards input for a short time:
/// closing a socket with unread input would reset the connection, and the peer could lose the
/// refusal.
fn refuse_and_close(mut stream: &Stream, refusal: &Refusal) {
    if send_refusal(stream, refusal).is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let until = Instant::now() + Duration::from_secs(1);
    let mut discarded = vec![0; 64 << 10];
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok();
    while Instant::now() < until && matches!(stream.read(&mut discarded), Ok(n) if n > 0) {}
}
