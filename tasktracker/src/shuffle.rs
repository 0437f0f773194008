//! The shuffle server. Reduces fetch their partitions of map outputs from it, and the parts of the
//! checkpoint of a paused reduce (addressed by the attempt and the number of the part).
//!
//! The protocol is defined in mrlib (`fetch::wire`). Stored bytes are sent with sendfile. Each
//! connection has a thread and may send several requests. The number of connections is limited; a
//! valid request on a connection beyond the limit is answered with "busy". A request that fails
//! because this tracker lacks file descriptors or memory is also answered with "busy", so that the
//! map output does not count as damaged. Connections that have not sent a valid token have a short
//! timeout, and few of them are allowed. The server verifies the index; the reader verifies the
//! data by its CRC.

use crate::shuffle_store::ShuffleStore;
use engine::{
    checkpoint,
    fetch::wire::{BUSY, DAMAGED, NOT_FOUND, REFUSED, REQUEST_BYTES_MAX, Request, data_header, refusal},
    segment::Extent,
};
use mrlib_api::TaskError;
use security::{ConnectionLimiter, ConnectionSlot, Guard, Stream, UNAUTHENTICATED_TIMEOUT};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use types::{AttemptId, Phase};

/// Maximum number of concurrent connections.
const CONNECTIONS_MAX: usize = 512;
/// A connection without traffic for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
const THREAD_STACK_BYTES: usize = 256 << 10;

/// The shuffle server.
#[derive(Debug)]
pub(crate) struct Shuffle {
    store: Arc<ShuffleStore>,
    guard: Guard,
    connection_limiter: Arc<ConnectionLimiter>,
}

impl Shuffle {
    /// Creates a server for the contents of the shuffle store.
    pub(crate) fn new(store: Arc<ShuffleStore>, guard: Guard) -> Self {
        Self { store, guard, connection_limiter: ConnectionLimiter::new(CONNECTIONS_MAX) }
    }

    /// Accepts connections. Never returns.
    pub(crate) async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // The process has probably run out of file descriptors. Wait until some are free.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if let Err(error) = stream.into_std().and_then(|stream| self.clone().serve_in_thread(stream)) {
                tracing::warn!(%error, "cannot serve a shuffle connection");
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.connection_limiter.close();
    }

    /// Starts a thread that serves a connection.
    fn serve_in_thread(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(UNAUTHENTICATED_TIMEOUT))?;
        stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
        let slot = self.connection_limiter.enter(stream.try_clone()?);
        let thread = std::thread::Builder::new().name("shuffle".into()).stack_size(THREAD_STACK_BYTES);
        let started = thread.spawn(move || {
            let served = self.guard.accept(stream).and_then(|stream| self.serve(&stream, &slot));
            if let Err(error) = served {
                tracing::debug!(%error, "shuffle connection ended");
            }
        });
        started.map(drop)
    }

    fn serve(&self, mut stream: &Stream, slot: &ConnectionSlot) -> io::Result<()> {
        let mut body = [0; REQUEST_BYTES_MAX];
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            let Some(body) = body.get_mut(..length) else {
                // Close the connection, because the start of the next request cannot be found.
                return stream.write_all(&refusal(REFUSED, "the request is too long"));
            };
            stream.read_exact(body)?;
            let request = Request::parse(body).ok_or((REFUSED, "malformed request".into()));
            let found = request.and_then(|request| {
                let attempt = self.check_token(&request)?;
                if !slot.authenticate() {
                    return Err((BUSY, "all connections of this tracker are in use".into()));
                }
                self.open_extent(attempt, request.partition)
            });
            match found {
                Ok((file, extent)) => {
                    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
                    send_extent(stream, &file, extent)?;
                }
                Err((status, message)) => stream.write_all(&refusal(status, &message))?,
            }
        }
    }

    /// Checks that the token permits the request. Returns the attempt.
    fn check_token(&self, request: &Request<'_>) -> Result<AttemptId, (u8, String)> {
        let Request { token, attempt, partition } = *request;
        let attempt: AttemptId = attempt.parse().map_err(|error| (REFUSED, format!("{error}")))?;
        let reduce = if attempt.phase() == Phase::Reduce { attempt.task.index } else { partition };
        if self.store.is_valid_token(attempt.job(), reduce, token) {
            return Ok(attempt);
        }
        Err((REFUSED, format!("the token is not valid for partition {reduce} of {}", attempt.job())))
    }

    /// Opens the file with the requested data. Also returns where the data is in the file. An error
    /// is a status and a message.
    fn open_extent(&self, attempt: AttemptId, partition: u32) -> Result<(File, Extent), (u8, String)> {
        let missing = || (NOT_FOUND, format!("this tracker has no map output of {attempt}"));
        let unreadable = |error: &io::Error, text: String| match error.kind() {
            io::ErrorKind::NotFound => missing(),
            _ if is_temporary(error) => (BUSY, text),
            _ => (DAMAGED, text),
        };
        let unusable = |error: TaskError| match &error {
            TaskError::Io { source, .. } => unreadable(source, error.to_string()),
            _ => (DAMAGED, error.to_string()),
        };
        let (path, extent) = if attempt.phase() == Phase::Reduce {
            let dirs = self.store.checkpoint(attempt).ok_or_else(missing)?;
            let parts = self.store.checkpoint_parts(attempt, &dirs).map_err(unusable)?;
            let part = parts.get(partition as usize).ok_or_else(|| checkpoint::missing_part(partition));
            part.and_then(|part| part.find(&dirs)).map_err(unusable)?
        } else {
            let path = self.store.output(attempt).ok_or_else(missing)?;
            let extents = self.store.extents(attempt, &path).map_err(unusable)?;
            let extent = extents.get(partition as usize).copied().ok_or_else(|| {
                (
                    NOT_FOUND,
                    format!("the map output of {attempt} has {} partitions, numbered from 0: there is no partition {partition}", extents.len()),
                )
            })?;
            (path, extent)
        };
        let broken = |error: io::Error| unreadable(&error, error.to_string());
        let file = daemon::safe_open::open(&path).map_err(broken)?;
        let length = file.metadata().map_err(broken)?.len();
        if extent.offset.checked_add(extent.stored).is_none_or(|end| end > length) {
            return Err((DAMAGED, format!("{} is shorter than its index says", path.display())));
        }
        Ok((file, extent))
    }
}

/// Returns whether the error is temporary, because this process lacks file descriptors or memory.
fn is_temporary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let temporary = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    temporary.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn send_extent(mut stream: &Stream, file: &File, extent: Extent) -> io::Result<()> {
    stream.write_all(&data_header(&extent))?;
    let mut at = extent.offset;
    let end = extent.offset + extent.stored;
    while at < end {
        let count = (end - at).min(1 << 30) as usize;
        match stream.send_file(file, &mut at, count) {
            // The file has become shorter. The error closes the connection, so the reader notices
            // it.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
