//! Accepts connections for gRPC calls. Limits the number of unauthenticated connections, the number
//! per address, and the total, which stays below the limit of open files.

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
/// If the limit of open files is lower than this, a warning is logged.
const OPEN_FILES_MIN: u64 = 4096;
/// One address may have at most one in this many of the connections.
const ADDRESS_DIVISOR: usize = 4;
/// Pause after `accept` has failed, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Number of late requests after which a connection is closed.
const LATE_REQUESTS_MAX: usize = 16;

/// Accepted connections.
pub type Incoming = ReceiverStream<io::Result<Caller>>;

/// Creates a limiter for as many connections as the limit of open files allows. Logs the limits,
/// and a warning if they are low.
pub(crate) fn connection_limiter() -> Arc<ConnectionLimiter> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (slots, each) = connection_limits(files);
    tracing::info!(connections = slots, of_one_address = each, open_files = files, "limits of connections");
    if files < OPEN_FILES_MIN {
        tracing::warn!(
            open_files = files,
            connections = slots,
            "the limit of open files of this daemon is low, so it accepts few connections: raise nofile where it is \
             started (ulimit -n, LimitNOFILE=, --ulimit nofile=) to {OPEN_FILES_MIN} or more"
        );
    }
    ConnectionLimiter::by_address(slots, each)
}

/// Returns the maximum number of connections, in total and of one address, for a limit of open
/// files.
fn connection_limits(files: u64) -> (usize, usize) {
    // A quarter is reserved for other files. An unauthenticated connection uses two descriptors.
    let free = (files - files / 4).saturating_sub(2 * UNAUTHENTICATED_MAX as u64);
    let slots = free.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX) as usize;
    (slots, (slots / ADDRESS_DIVISOR).max(CONNECTIONS_MIN as usize))
}

/// Returns the message for a caller that gets no connection slot.
fn no_slot_message((slots, each): (usize, usize)) -> String {
    let why = if (slots as u64) < CONNECTIONS_MAX {
        ": the limit of open files (nofile), which the operator can raise, allows no more"
    } else {
        ""
    };
    format!(
        "the {slots} connections of this daemon, or the {each} of one address, are in use{why}; try again later"
    )
}

/// Accepts connections until the returned stream is dropped. Must be called within a Tokio runtime.
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
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    });
    Ok(ReceiverStream::new(from))
}

/// An accepted connection for gRPC calls.
#[derive(Debug)]
pub struct Caller {
    stream: TcpStream,
    connection: Arc<Connection>,
}

/// The connection of a request; stored in the extensions of the request.
#[derive(Debug, Clone)]
pub struct CallerInfo(pub(crate) Arc<Connection>);

/// A connection and the resources that its calls use.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Option<SocketAddr>,
    slot: ConnectionSlot,
    /// Number of calls in progress, without health calls.
    pub(crate) calls: AtomicUsize,
    /// Number of health calls in progress.
    pub(crate) health_calls: AtomicUsize,
    /// Number of requests that did not arrive in time.
    late_requests: AtomicUsize,
    /// Whether reads and writes fail from now on.
    ended: AtomicBool,
    /// The share of resources of the first caller of this connection. Usually a connection has only
    /// one caller.
    pub(crate) share: OnceLock<Arc<Share>>,
}

impl Connection {
    pub(crate) fn new(address: Option<SocketAddr>, slot: ConnectionSlot) -> Self {
        Self {
            address,
            slot,
            calls: AtomicUsize::new(0),
            health_calls: AtomicUsize::new(0),
            late_requests: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            share: OnceLock::new(),
        }
    }

    /// Marks the connection as authenticated. Returns false if no slot is free.
    pub(crate) fn authenticate(&self) -> bool {
        self.slot.authenticate()
    }

    /// Returns the message for a connection that gets no slot.
    pub(crate) fn no_slot_message(&self) -> String {
        no_slot_message(self.slot.limits())
    }

    /// Returns the remote address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip().to_canonical())
    }

    /// Counts a request that did not arrive in time. A connection with many such requests is
    /// closed: reads and writes fail from then on, so the client does not receive the reason.
    pub(crate) fn count_late_request(&self) {
        if self.late_requests.fetch_add(1, Ordering::Relaxed) + 1 >= LATE_REQUESTS_MAX {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn check_not_ended(&self) -> io::Result<()> {
        if self.is_ended() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection is closed, because too many of its requests did not arrive in time",
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
        self.connection.check_not_ended()?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.connection.check_not_ended()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.check_not_ended()?;
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
        self.connection.check_not_ended()?;
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
        let few = no_slot_message(connection_limits(1024));
        assert!(few.starts_with("the 256 connections") && few.contains("(nofile)"), "{few}");
        assert!(few.ends_with("try again later"), "{few}");
        let many = no_slot_message(connection_limits(1 << 20));
        assert!(many.starts_with("the 16384 connections") && !many.contains("nofile"), "{many}");
    }
}
