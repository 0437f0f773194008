//! The shuffle server: reduces fetch their partitions of map outputs, and parts of the checkpoint
//! of a paused reduce (addressed by its attempt and the number of the part).
//!
//! The protocol is that of mrlib (`fetch::wire`). Stored bytes are sent by sendfile. A connection
//! has a thread and may carry several requests. The number of connections is limited: beyond it a
//! connection whose first request is valid gets "busy". So does one that fails because this tracker
//! lacks files or memory, which is not an error of the map output. Connections without a valid
//! token have a short timeout and few slots. The server verifies the index; the reader verifies the
//! bytes by their CRC.

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
const TIMEOUT: Duration = Duration::from_mins(1);
const STACK_BYTES: usize = 256 << 10;

/// The shuffle server.
#[derive(Debug)]
pub(crate) struct Shuffle {
    store: Arc<ShuffleStore>,
    guard: Guard,
    connection_limiter: Arc<ConnectionLimiter>,
}

impl Shuffle {
    /// Serves the contents of the shuffle store.
    pub(crate) fn new(store: Arc<ShuffleStore>, guard: Guard) -> Self {
        Self { store, guard, connection_limiter: ConnectionLimiter::new(CONNECTIONS_MAX) }
    }

    /// Accepts connections until dropped.
    pub(crate) async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Probably out of descriptors: wait until some are free.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if let Err(error) = stream.into_std().and_then(|stream| self.clone().begin(stream)) {
                tracing::warn!(%error, "cannot serve a shuffle connection");
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.connection_limiter.close();
    }

    fn begin(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(UNAUTHENTICATED_TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let slot_guard = self.connection_limiter.enter(stream.try_clone()?);
        let thread = std::thread::Builder::new().name("shuffle".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let served = self.guard.accept(stream).and_then(|stream| self.serve(&stream, &slot_guard));
            if let Err(error) = served {
                tracing::debug!(%error, "shuffle connection ended");
            }
        });
        started.map(drop)
    }

    fn serve(&self, mut stream: &Stream, slot_guard: &ConnectionSlot) -> io::Result<()> {
        let mut body = [0; REQUEST_BYTES_MAX];
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            let Some(body) = body.get_mut(..length) else {
                // The start of the next request cannot be found any more.
                return stream.write_all(&refusal(REFUSED, "the request is too long"));
            };
            stream.read_exact(body)?;
            let request = Request::parse(body).ok_or((REFUSED, "not a request of this protocol".into()));
            let found = request.and_then(|request| {
                let attempt = self.admit(&request)?;
                if !slot_guard.authenticate() {
                    return Err((BUSY, "all connections of this tracker are in use".into()));
                }
                self.find(attempt, request.partition)
            });
            match found {
                Ok((file, extent)) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    send(stream, &file, extent)?;
                }
                Err((status, message)) => stream.write_all(&refusal(status, &message))?,
            }
        }
    }

    /// Checks that the token permits the request.
    fn admit(&self, request: &Request<'_>) -> Result<AttemptId, (u8, String)> {
        let Request { token, attempt, partition } = *request;
        let attempt: AttemptId = attempt.parse().map_err(|error| (REFUSED, format!("{error}")))?;
        let whose = if attempt.phase() == Phase::Reduce { attempt.task.index } else { partition };
        if self.store.opens(attempt.job(), whose, token) {
            return Ok(attempt);
        }
        Err((REFUSED, format!("the token is not valid for partition {whose} of {}", attempt.job())))
    }

    fn find(&self, attempt: AttemptId, partition: u32) -> Result<(File, Extent), (u8, String)> {
        let missing = || (NOT_FOUND, format!("this tracker has no map output of {attempt}"));
        let unreadable = |error: &io::Error, text: String| match error.kind() {
            io::ErrorKind::NotFound => missing(),
            _ if is_local_error(error) => (BUSY, text),
            _ => (DAMAGED, text),
        };
        let unusable = |error: TaskError| match &error {
            TaskError::Io { source, .. } => unreadable(source, error.to_string()),
            _ => (DAMAGED, error.to_string()),
        };
        let (path, extent) = if attempt.phase() == Phase::Reduce {
            let dirs = self.store.checkpoint(attempt).ok_or_else(missing)?;
            let parts = self.store.parts(attempt, &dirs).map_err(unusable)?;
            let part = parts.get(partition as usize).ok_or_else(|| checkpoint::missing_part(partition));
            part.and_then(|part| part.find(&dirs)).map_err(unusable)?
        } else {
            let path = self.store.output(attempt).ok_or_else(missing)?;
            let extents = self.store.extents(attempt, &path).map_err(unusable)?;
            let extent = extents.get(partition as usize).copied().ok_or_else(|| {
                (
                    NOT_FOUND,
                    format!("the map output of {attempt} has {} partitions, not {partition}", extents.len()),
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

/// Whether the error is temporary: this process lacks files or memory.
fn is_local_error(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    own.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn send(mut stream: &Stream, file: &File, extent: Extent) -> io::Result<()> {
    stream.write_all(&data_header(&extent))?;
    let mut at = extent.offset;
    let end = extent.offset + extent.stored;
    while at < end {
        let count = (end - at).min(1 << 30) as usize;
        match stream.send_file(file, &mut at, count) {
            // The file became shorter; the reader sees an early end.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
