//! The shuffle server: reduces fetch their partitions of map output from here, and parts of the checkpoint of a paused reduce
//! (a reduce's attempt, and the number of a part).
//!
//! The protocol is mrlib's (`fetch::wire`); the stored bytes go out by sendfile. Several requests may follow one
//! another on a connection, which has a thread of its own. Bounded: over the limit a connection whose first request is
//! good is told "busy", as is one that this tracker's own lack of files or memory hits: that is no fault of the output.
//! Whoever has not shown a good token has little time and one of few places. The index is
//! verified here; the bytes are by the reader, against the crc it was given.

use crate::{
    ids::{Attempt, Phase},
    shuffle_store::ShuffleStore,
};
use mrlib::{
    TaskError, checkpoint,
    fetch::wire::{BUSY, DAMAGED, NOT_FOUND, REFUSED, REQUEST_BYTES_MAX, Request, coming, refusal},
    segment::Extent,
};
use security::{ConnectionLimiter, ConnectionSlot, Guard, Stream, UNAUTHENTICATED_TIMEOUT};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

/// Connections served at one time.
const CONNECTIONS_MAX: usize = 512;
/// A connection silent for this long is dropped.
const TIMEOUT: Duration = Duration::from_mins(1);
const STACK_BYTES: usize = 256 << 10;

/// The server.
#[derive(Debug)]
pub(crate) struct Shuffle {
    shuffle_store: Arc<ShuffleStore>,
    guard: Guard,
    connection_limiter: Arc<ConnectionLimiter>,
}

impl Shuffle {
    /// Serves what is held.
    pub(crate) fn new(shuffle_store: Arc<ShuffleStore>, guard: Guard) -> Self {
        Self { shuffle_store, guard, connection_limiter: ConnectionLimiter::new(CONNECTIONS_MAX) }
    }

    /// Accepts connections until dropped.
    pub(crate) async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: some will come free.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if let Err(error) = stream.into_std().and_then(|stream| self.clone().begin(stream)) {
                tracing::warn!(%error, "shuffle connection dropped at once");
            }
        }
    }

    /// Ends all connections.
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
                // Where the next request begins cannot be told any more.
                return stream.write_all(&refusal(REFUSED, "a request longer than any can be"));
            };
            stream.read_exact(body)?;
            let request = Request::parse(body).ok_or((REFUSED, "not a request of this protocol".into()));
            let found = request.and_then(|request| {
                let attempt = self.admit(&request)?;
                if !slot_guard.authenticate() {
                    return Err((BUSY, "all connections of this tracker are taken".into()));
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

    /// Whether the token opens what is asked for.
    fn admit(&self, request: &Request<'_>) -> Result<Attempt, (u8, String)> {
        let Request { token, attempt, partition } = *request;
        let attempt: Attempt = attempt.parse().map_err(|error| (REFUSED, format!("{error}")))?;
        let whose = if attempt.phase == Phase::Reduce { attempt.index } else { partition };
        if self.shuffle_store.opens(attempt.job, whose, token) {
            return Ok(attempt);
        }
        Err((REFUSED, format!("the token does not open partition {whose} of {}", attempt.job)))
    }

    fn find(&self, attempt: Attempt, partition: u32) -> Result<(File, Extent), (u8, String)> {
        let missing = || (NOT_FOUND, format!("no output of {attempt} here"));
        let unreadable = |error: &io::Error, text: String| match error.kind() {
            io::ErrorKind::NotFound => missing(),
            _ if is_local_error(error) => (BUSY, text),
            _ => (DAMAGED, text),
        };
        let unusable = |error: TaskError| match &error {
            TaskError::Io { source, .. } => unreadable(source, error.to_string()),
            _ => (DAMAGED, error.to_string()),
        };
        let (path, extent) = if attempt.phase == Phase::Reduce {
            let dirs = self.shuffle_store.checkpoint(attempt).ok_or_else(missing)?;
            let parts = self.shuffle_store.parts(attempt, &dirs).map_err(unusable)?;
            let part = parts.get(partition as usize).ok_or_else(|| checkpoint::missing_part(partition));
            part.and_then(|part| part.find(&dirs)).map_err(unusable)?
        } else {
            let path = self.shuffle_store.output(attempt).ok_or_else(missing)?;
            let extents = self.shuffle_store.extents(attempt, &path).map_err(unusable)?;
            let extent = extents.get(partition as usize).copied().ok_or_else(|| {
                (NOT_FOUND, format!("output of {attempt} has {} partitions, not {partition}", extents.len()))
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

/// Whether it will pass: no more files or memory for this process just now.
fn is_local_error(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    own.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn send(mut stream: &Stream, file: &File, extent: Extent) -> io::Result<()> {
    stream.write_all(&coming(&extent))?;
    let mut at = extent.offset;
    let end = extent.offset + extent.stored;
    while at < end {
        let count = (end - at).min(1 << 30) as usize;
        match stream.send_file(file, &mut at, count) {
            // The file became shorter under our hands; the reader sees an early end.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
