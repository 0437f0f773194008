//! The shuffle server: reduces fetch their partitions of map output from here, and parts of what a paused reduce has put
//! aside (a reduce's attempt, and the number of a part).
//!
//! The protocol is mrlib's (`fetch::wire`); the stored bytes go out by sendfile. Several requests may follow one
//! another on a connection, which has a thread of its own. Bounded: over the limit a connection is told "busy", as
//! is one that this tracker's own lack of files or memory hits: that is no fault of the output. The index is
//! verified here; the bytes are by the reader, against the crc it was given.

use crate::{
    held::Held,
    ids::{Attempt, Phase},
};
use mrlib::{
    TaskError, checkpoint,
    fetch::wire::{BUSY, DAMAGED, NOT_FOUND, REFUSED, REQUEST_BYTES_MAX, Request, coming, refusal},
    segment::Extent,
};
use parking_lot::Mutex;
use security::{Guard, Stream};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};
use tokio::io::AsyncWriteExt;

/// Connections served at one time.
const CONNECTIONS_MAX: usize = 512;
/// A connection silent for this long is dropped.
const TIMEOUT: Duration = Duration::from_mins(1);
const STACK_BYTES: usize = 256 << 10;

/// The server.
#[derive(Debug)]
pub(crate) struct Shuffle {
    held: Arc<Held>,
    guard: Guard,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    peers: HashMap<u64, TcpStream>,
}

impl Shuffle {
    /// Serves what is held.
    pub(crate) fn new(held: Arc<Held>, guard: Guard) -> Self {
        Self { held, guard, open: Mutex::default() }
    }

    /// Accepts connections until dropped.
    pub(crate) async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: some will come free.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if self.open.lock().peers.len() >= CONNECTIONS_MAX {
                let busy = refusal(BUSY, "all connections of this tracker are taken");
                tokio::spawn(async move { stream.write_all(&busy).await });
                continue;
            }
            if let Err(error) = stream.into_std().and_then(|stream| self.clone().begin(stream)) {
                tracing::warn!(%error, "shuffle connection dropped at once");
            }
        }
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        for peer in self.open.lock().peers.values() {
            peer.shutdown(Shutdown::Both).ok();
        }
    }

    fn begin(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let id = {
            let mut open = self.open.lock();
            open.next += 1;
            let id = open.next;
            open.peers.insert(id, stream.try_clone()?);
            id
        };
        let shuffle = self.clone();
        let thread = std::thread::Builder::new().name("shuffle".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let served = shuffle.guard.accept(stream).and_then(|stream| shuffle.serve(&stream));
            if let Err(error) = served {
                tracing::debug!(%error, "shuffle connection ended");
            }
            shuffle.open.lock().peers.remove(&id);
        });
        started.map(drop).inspect_err(|_| drop(self.open.lock().peers.remove(&id)))
    }

    fn serve(&self, mut stream: &Stream) -> io::Result<()> {
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
            let found = Request::parse(body)
                .ok_or((REFUSED, "not a request of this protocol".into()))
                .and_then(|request| self.find(&request));
            match found {
                Ok((file, extent)) => send(stream, &file, extent)?,
                Err((status, message)) => stream.write_all(&refusal(status, &message))?,
            }
        }
    }

    fn find(&self, request: &Request<'_>) -> Result<(File, Extent), (u8, String)> {
        let Request { token, attempt, partition } = *request;
        let attempt: Attempt = attempt.parse().map_err(|error| (REFUSED, format!("{error}")))?;
        let whose = if attempt.phase == Phase::Reduce { attempt.index } else { partition };
        if !self.held.opens(attempt.job, whose, token) {
            return Err((REFUSED, format!("the token does not open partition {whose} of {}", attempt.job)));
        }
        let missing = || (NOT_FOUND, format!("no output of {attempt} here"));
        let unreadable = |error: &io::Error, words: String| match error.kind() {
            io::ErrorKind::NotFound => missing(),
            _ if is_own_trouble(error) => (BUSY, words),
            _ => (DAMAGED, words),
        };
        let unusable = |error: TaskError| match &error {
            TaskError::Io { source, .. } => unreadable(source, error.to_string()),
            _ => (DAMAGED, error.to_string()),
        };
        let (path, extent) = if attempt.phase == Phase::Reduce {
            let dirs = self.held.checkpoint(attempt).ok_or_else(missing)?;
            checkpoint::part(&dirs, partition).map_err(unusable)?
        } else {
            let path = self.held.output(attempt).ok_or_else(missing)?;
            let extents = self.held.extents(attempt, &path).map_err(unusable)?;
            let extent = extents.get(partition as usize).copied().ok_or_else(|| {
                (NOT_FOUND, format!("output of {attempt} has {} partitions, not {partition}", extents.len()))
            })?;
            (path, extent)
        };
        let broken = |error: io::Error| unreadable(&error, error.to_string());
        let file = File::open(&path).map_err(broken)?;
        let length = file.metadata().map_err(broken)?.len();
        if extent.offset.checked_add(extent.stored).is_none_or(|end| end > length) {
            return Err((DAMAGED, format!("{} is shorter than its index says", path.display())));
        }
        Ok((file, extent))
    }
}

/// Whether it will pass: no more files or memory for this process just now.
fn is_own_trouble(error: &io::Error) -> bool {
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
