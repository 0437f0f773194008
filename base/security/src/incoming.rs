//! Accepts connections for calls: few unauthenticated ones, a maximum per address, and a total that
//! stays below the limit of open files.

use crate::{
    connection_limiter::{ConnectionLimiter, ConnectionSlot, UNAUTHENTICATED_MAX},
    share::Share,
};
use rustix::process::{Resource, getrlimit};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Maximum number of connections for calls; fewer if the limit of open files is low.
const CONNECTIONS_MAX: u64 = 16_384;
/// Lower bound of the limit on connections, whatever the limit of open files.
const CONNECTIONS_MIN: u64 = 64;
/// With a lower limit of open files than this, a warning is logged.
const FILES_FEW: u64 = 4096;
/// One address may have at most this fraction of the connections.
const ADDRESS_DIVISOR: usize = 4;
/// Pause after `accept` has failed, until resources are free again.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of late requests after which a connection is closed.
const LATE_MAX: usize = 16;

/// Accepted connections.
pub type Incoming = ReceiverStream<io::Result<Caller>>;

/// Creates the connection slots, as many as the limit of open files allows. Logs the number, and a
/// warning if it is low.
pub(crate) fn slots() -> Arc<ConnectionLimiter> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (slots, each) = connection_limits(files);
    tracing::info!(connections = slots, of_one_address = each, open_files = files, "limits of connections");
    if files < FILES_FEW {
        tracing::warn!(
            open_files = files,
            connections = slots,
            "the limit of open files of this daemon is low, so it accepts few connections: raise nofile where it is \
             started (ulimit -n, LimitNOFILE=, --ulimit nofile=) to {FILES_FEW} or more"
        );
    }
    ConnectionLimiter::by_address(slots, each)
}

/// Returns the maximum number of connections, in total and of one address, for a limit of open
/// files.
fn connection_limits(files: u64) -> (usize, usize) {
    // A quarter is reserved for other files; an unauthenticated connection uses two.
    let free = (files - files / 4).saturating_sub(2 * UNAUTHENTICATED_MAX as u64);
    let slots = free.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX) as usize;
    (slots, (slots / ADDRESS_DIVISOR).max(CONNECTIONS_MIN as usize))
}

/// Returns the message for a caller that gets no slot.
fn crowded((slots, each): (usize, usize)) -> String {
    let why = if (slots as u64) < CONNECTIONS_MAX {
        ": the limit of open files (nofile) allows no more, which the operator can raise"
    } else {
        ""
    };
    format!(
        "the {slots} connections of this daemon, or the {each} of one address, are in use{why}; try again later"
    )
}

/// Accepts connections until the receiver is dropped. Must be called within a runtime.
pub(crate) fn accept(
    listener: std::net::TcpListener,
    connection_limiter: Arc<ConnectionLimiter>,
) -> io::Result<Incoming> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (to, from) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = to.closed() => return,
            };
            match accepted.and_then(|(stream, _)| Caller::new(stream, &connection_limiter)) {
                Ok(caller) => {
                    if to.send(Ok(caller)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    Ok(ReceiverStream::new(from))
}

/// A connection for calls.
#[derive(Debug)]
pub struct Caller {
    stream: TcpStream,
    connection: Arc<Connection>,
}

/// The connection of a request, in its extensions.
#[derive(Debug, Clone)]
pub struct CallerInfo(pub(crate) Arc<Connection>);

/// A connection and the resources of its calls.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Option<SocketAddr>,
    slot: ConnectionSlot,
    /// Calls in progress, without health calls.
    pub(crate) calls: AtomicUsize,
    pub(crate) health: AtomicUsize,
    /// Requests that did not arrive in time.
    late: AtomicUsize,
    ended: AtomicBool,
    /// The share of the first caller of this connection; usually there is no other.
    pub(crate) share: OnceLock<Arc<Share>>,
}

impl Connection {
    pub(crate) fn new(address: Option<SocketAddr>, slot: ConnectionSlot) -> Self {
        Self {
            address,
            slot,
            calls: AtomicUsize::new(0),
            health: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            share: OnceLock::new(),
        }
    }

    /// Marks the connection as authenticated. Returns false if no slot is free.
    pub(crate) fn authenticate(&self) -> bool {
        self.slot.authenticate()
    }

    /// Returns the message for that case.
    pub(crate) fn crowded(&self) -> String {
        crowded(self.slot.limits())
    }

    /// Returns the remote address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip().to_canonical())
    }

    /// Counts a request that did not arrive in time. A connection with many of them is closed:
    /// reads and writes fail from then on, so the reason cannot be sent.
    pub(crate) fn late(&self) {
        if self.late.fetch_add(1, Ordering::Relaxed) + 1 >= LATE_MAX {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn check(&self) -> io::Result<()> {
        if self.is_ended() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "too many requests did not arrive in time",
            ));
        }
        Ok(())
    }
}

impl Caller {
    fn new(stream: TcpStream, connection_limiter: &Arc<ConnectionLimiter>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let slot = connection_limiter.enter(stream.as_fd().try_clone_to_owned()?);
        let connection = Arc::new(Connection::new(stream.peer_addr().ok(), slot));
        Ok(Self { stream, connection })
    }
}

impl Connected for Caller {
    type ConnectInfo = CallerInfo;
    fn connect_info(&self) -> CallerInfo {
        CallerInfo(self.connection.clone())
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.connection.check()?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.connection.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.check()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.connection.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_follows_the_file_limit() {
        assert_eq!(connection_limits(64), (64, 64));
        assert_eq!(connection_limits(1024), (256, 64));
        assert_eq!(connection_limits(4096), (2560, 640));
        assert_eq!(connection_limits(1 << 20), (16_384, 4096));
        assert_eq!(connection_limits(u64::MAX), (16_384, 4096));
        let few = crowded(connection_limits(1024));
        assert!(few.starts_with("the 256 connections") && few.contains("(nofile)"), "{few}");
        assert!(few.ends_with("try again later"), "{few}");
        let many = crowded(connection_limits(1 << 20));
        assert!(many.starts_with("the 16384 connections") && !many.contains("nofile"), "{many}");
    }
}
