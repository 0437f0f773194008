//! The bulk port: accepts connections, gives each a thread, and serves its requests one after the other.
//!
//! Bounded: over `transfers_max` connections the next one is told `busy` and closed; a silent connection is
//! dropped after `transfer_timeout`. Whatever a peer sends, the worst for us is the end of its connection.

use super::{
    error::{Refusal, RefusalKind},
    local,
    node::Node,
    receive::{Failure, receive},
    send::{LastRead, send},
};
use crate::bulk::{FrameError, FrameKind, encode_frame, read_frame};
use bytes::BytesMut;
use parking_lot::Mutex;
use proto::dfs::{BulkError, BulkRequest, bulk_request::Op};
use security::{Access, BlockToken, Stream};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The connections being served.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<Open>,
    /// Requests under way; a connection between two requests does not count.
    busy: AtomicUsize,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    peers: HashMap<u64, Peer>,
}

#[derive(Debug)]
enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connections {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.open.lock().peers.len()
    }

    /// Requests under way.
    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// Ends them all.
    pub(super) fn close(&self) {
        for peer in self.open.lock().peers.values() {
            match peer {
                Peer::Tcp(stream) => stream.shutdown(Shutdown::Both).ok(),
                Peer::Unix(stream) => stream.shutdown(Shutdown::Both).ok(),
            };
        }
    }

    fn enter(&self, peer: Peer, most: usize) -> Option<u64> {
        let mut open = self.open.lock();
        if open.peers.len() >= most {
            return None;
        }
        open.next += 1;
        let id = open.next;
        open.peers.insert(id, peer);
        Some(id)
    }

    fn leave(&self, id: u64) {
        self.open.lock().peers.remove(&id);
    }

    fn during<T>(&self, request: impl FnOnce() -> T) -> T {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let _count_down = OnDrop(|| self.busy.fetch_sub(1, Ordering::SeqCst));
        request()
    }
}

/// Runs on every way out, also a panic's.
struct OnDrop<T, F: FnMut() -> T>(F);

impl<T, F: FnMut() -> T> Drop for OnDrop<T, F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Accepts bulk connections until dropped.
pub(super) async fn accept_bulk(node: Arc<Node>, listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: some will come free.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if node.connections.count() >= node.config.transfers_max as usize {
            tokio::spawn(tell_busy(stream, node.config.transfers_max));
            continue;
        }
        let started = stream.into_std().and_then(|stream| start_bulk(&node, stream));
        if let Err(error) = started {
            tracing::warn!(%error, "bulk connection dropped at once");
        }
    }
}

/// Accepts local readers until dropped.
pub(super) async fn accept_local(node: Arc<Node>, listener: tokio::net::UnixListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let started = stream.into_std().and_then(|stream| start_local(&node, stream));
        if let Err(error) = started {
            tracing::warn!(%error, "local connection dropped at once");
        }
    }
}

fn start_bulk(node: &Arc<Node>, stream: TcpStream) -> io::Result<()> {
    let timeout = Some(node.config.transfer_timeout.0);
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    let peer = Peer::Tcp(stream.try_clone()?);
    start(node, peer, "bulk", move |node| match node.guard.accept(stream) {
        Ok(stream) => serve_bulk(node, &stream),
        Err(error) => tracing::debug!(%error, "no handshake"),
    })
}

fn start_local(node: &Arc<Node>, stream: UnixStream) -> io::Result<()> {
    let timeout = Some(node.config.transfer_timeout.0);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    let peer = Peer::Unix(stream.try_clone()?);
    start(node, peer, "local", move |node| serve_local(node, &stream))
}

fn start(
    node: &Arc<Node>,
    peer: Peer,
    name: &str,
    serve: impl FnOnce(&Node) + Send + 'static,
) -> io::Result<()> {
    let most = node.config.transfers_max as usize;
    let Some(id) = node.connections.enter(peer, most) else {
        return Err(io::Error::other("all transfers are taken"));
    };
    let served = node.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _leave = OnDrop(|| served.connections.leave(id));
        serve(&served);
    });
    thread.map(drop).inspect_err(|_| node.connections.leave(id))
}

async fn tell_busy(mut stream: tokio::net::TcpStream, most: u32) {
    let message = format!("all {most} transfers of this datanode are taken");
    let out = error_frame(&Refusal::new(RefusalKind::Busy, message));
    if stream.write_all(&out).await.is_ok() && stream.shutdown().await.is_ok() {
        // What the peer sent must be read, or the close would reset the connection before it reads the answer.
        let mut scrap = [0; 4096];
        let drain = async { while matches!(stream.read(&mut scrap).await, Ok(n) if n > 0) {} };
        tokio::time::timeout(Duration::from_secs(1), drain).await.ok();
    }
}

fn serve_bulk(node: &Node, stream: &Stream) {
    let mut last = LastRead::default();
    let mut input = stream;
    loop {
        let request = read_frame(&mut input, BytesMut::new())
            .and_then(|frame| frame.expect::<BulkRequest>(FrameKind::Request));
        let outcome = match request {
            Ok(request) => node.connections.during(|| serve(node, stream, request, &mut last)),
            Err(error @ (FrameError::Closed | FrameError::Io(_))) => Err(Failure::Gone(error)),
            Err(error) => Err(Failure::Broken(Refusal::new(RefusalKind::Invalid, error.to_string()))),
        };
        match outcome {
            Ok(()) => {}
            Err(Failure::Refused(refusal)) => {
                tracing::debug!(%refusal, "request refused");
                if tell(stream, &refusal).is_err() {
                    return;
                }
            }
            Err(Failure::Broken(refusal)) => {
                tracing::warn!(%refusal, "transfer broken off");
                return part(stream, &refusal);
            }
            Err(Failure::Gone(error)) => {
                tracing::debug!(%error, "bulk connection ended");
                return;
            }
        }
    }
}

/// One request, if what is shown allows it.
fn serve(node: &Node, stream: &Stream, request: BulkRequest, last: &mut LastRead) -> Result<(), Failure> {
    let token = BlockToken::from_bytes(&request.token);
    match request.op {
        Some(Op::Write(request)) => {
            check(node, token, request.block_id, Access::Write).map_err(Failure::Refused)?;
            receive(node, stream, request, token)
        }
        Some(Op::Read(request)) => {
            check(node, token, request.block_id, Access::Read).map_err(Failure::Refused)?;
            send(&node.store, stream, request, last)
        }
        Some(Op::OpenLocal(_)) => Err(not_served("open files are passed over the Unix socket only")),
        None => Err(not_served("empty request")),
    }
}

fn check(node: &Node, token: BlockToken, block: u64, access: Access) -> Result<(), Refusal> {
    node.blocks.check(token, block, access).map_err(|why| {
        let message = format!("block {block} is not open to this caller: {why}");
        Refusal::new(RefusalKind::Denied, message)
    })
}

fn serve_local(node: &Node, stream: &UnixStream) {
    let mut input = stream;
    while let Ok(frame) = read_frame(&mut input, BytesMut::new()) {
        let refusal = match frame.expect::<BulkRequest>(FrameKind::Request) {
            Ok(BulkRequest { op: Some(Op::OpenLocal(request)), token }) => {
                match check(node, BlockToken::from_bytes(&token), request.block_id, Access::Read) {
                    Err(refusal) => refusal,
                    Ok(()) => match local::open_local(node, stream, &request) {
                        Ok(Ok(())) => continue,
                        Ok(Err(refusal)) => refusal,
                        Err(_) => return,
                    },
                }
            }
            Ok(_) => Refusal::new(RefusalKind::Invalid, "only open_local is served here"),
            Err(error) => Refusal::new(RefusalKind::Invalid, error.to_string()),
        };
        if tell(stream, &refusal).is_err() {
            return;
        }
    }
}

fn not_served(why: &str) -> Failure {
    Failure::Refused(Refusal::new(RefusalKind::Invalid, why))
}

fn error_frame(refusal: &Refusal) -> Vec<u8> {
    let body = BulkError { kind: refusal.kind.name().into(), message: refusal.message.clone() };
    let mut out = Vec::new();
    encode_frame(FrameKind::Error, &body, 0, &mut out);
    out
}

fn tell(mut stream: impl Write, refusal: &Refusal) -> io::Result<()> {
    stream.write_all(&error_frame(refusal))
}

/// Tells the peer and closes. What it still sends is read for a while: closing over unread bytes would reset
/// the connection, and the peer might lose the answer.
fn part(mut stream: &Stream, refusal: &Refusal) {
    if tell(stream, refusal).is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let until = Instant::now() + Duration::from_secs(1);
    let mut scrap = vec![0; 64 << 10];
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok();
    while Instant::now() < until && matches!(stream.read(&mut scrap), Ok(n) if n > 0) {}
}
