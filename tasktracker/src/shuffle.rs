//! The shuffle server: reduces fetch their partitions of map output from here.
//!
//! A request is a frame (u32 length, all little-endian): `FMS1`, token (u8 length, bytes), attempt (u8 length,
//! text), partition u32. The reply: a status byte; if it is 0, stored length, raw length, records (u64 each),
//! crc32c (u32) and the stored bytes, by sendfile; else a message (u16 length, text). Several requests may follow
//! one another on a connection, which has a thread of its own. Bounded: over the limit a connection is told
//! "busy". The index is verified here; the bytes are by the reader, against the crc it was given.

use crate::{
    held::Held,
    ids::Attempt,
    index::{self, Extent, IndexError},
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};
use tokio::io::AsyncWriteExt;

const MAGIC: &[u8; 4] = b"FMS1";
/// Magic, two texts of at most 255 bytes with their lengths, and a number.
const REQUEST_BYTES_MAX: usize = 4 + 256 + 256 + 4;
/// Connections served at one time.
const CONNECTIONS_MAX: usize = 512;
/// A connection silent for this long is dropped.
const TIMEOUT: Duration = Duration::from_secs(60);
const STACK_BYTES: usize = 256 << 10;

/// What is wrong with a request, as the reply's status byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Refusal {
    NotFound = 1,
    Refused = 2,
    Damaged = 3,
    Busy = 4,
}

#[derive(Debug)]
struct Request<'a> {
    token: &'a [u8],
    attempt: Attempt,
    partition: u32,
}

/// The server.
#[derive(Debug)]
pub(crate) struct Shuffle {
    held: Arc<Held>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    peers: HashMap<u64, TcpStream>,
}

impl Shuffle {
    /// Serves what is held.
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self { held, open: Mutex::default() }
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
                let busy = refusal(Refusal::Busy, "all connections of this tracker are taken");
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
            if let Err(error) = shuffle.serve(&stream) {
                tracing::debug!(%error, "shuffle connection ended");
            }
            shuffle.open.lock().peers.remove(&id);
        });
        started.map(drop).inspect_err(|_| drop(self.open.lock().peers.remove(&id)))
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut body = [0; REQUEST_BYTES_MAX];
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            let Some(body) = body.get_mut(..length) else {
                // Where the next request begins cannot be told any more.
                return stream.write_all(&refusal(Refusal::Refused, "a request longer than any can be"));
            };
            stream.read_exact(body)?;
            let found = parse(body)
                .map_err(|why| (Refusal::Refused, why.to_string()))
                .and_then(|request| self.find(&request));
            match found {
                Ok((file, extent)) => send(stream, &file, extent)?,
                Err((kind, message)) => stream.write_all(&refusal(kind, &message))?,
            }
        }
    }

    fn find(&self, request: &Request<'_>) -> Result<(File, Extent), (Refusal, String)> {
        let Request { token, attempt, partition } = *request;
        if !self.held.opens(attempt.job, token) {
            return Err((Refusal::Refused, format!("the token does not open {}", attempt.job)));
        }
        let missing = || (Refusal::NotFound, format!("no output of {attempt} here"));
        let path = self.held.output(attempt).ok_or_else(missing)?;
        let extents = index::read(&path).map_err(|error| match error {
            IndexError::Missing(_) => missing(),
            error => (Refusal::Damaged, error.to_string()),
        })?;
        let extent = extents.get(partition as usize).copied().ok_or_else(|| {
            (
                Refusal::NotFound,
                format!("output of {attempt} has {} partitions, not {partition}", extents.len()),
            )
        })?;
        Ok((File::open(path).map_err(|_| missing())?, extent))
    }
}

fn parse(body: &[u8]) -> Result<Request<'_>, &'static str> {
    const SHORT: &str = "a request that ends too early";
    let rest = body.strip_prefix(MAGIC).ok_or("not a request of this protocol")?;
    let text = |rest: &mut &'_ [u8]| -> Option<std::ops::Range<usize>> {
        let (length, after) = rest.split_first()?;
        let from = body.len() - after.len();
        *rest = after.get(usize::from(*length)..)?;
        Some(from..from + usize::from(*length))
    };
    let mut rest = rest;
    let token = text(&mut rest).ok_or(SHORT)?;
    let attempt = text(&mut rest).ok_or(SHORT)?;
    let partition: [u8; 4] = rest.try_into().map_err(|_| SHORT)?;
    let attempt = std::str::from_utf8(&body[attempt]).ok().and_then(|text| text.parse().ok());
    Ok(Request {
        token: &body[token],
        attempt: attempt.ok_or("not an attempt id")?,
        partition: u32::from_le_bytes(partition),
    })
}

fn refusal(kind: Refusal, message: &str) -> Vec<u8> {
    let message = &message.as_bytes()[..message.len().min(usize::from(u16::MAX))];
    let mut reply = vec![kind as u8];
    reply.extend((message.len() as u16).to_le_bytes());
    reply.extend(message);
    reply
}

fn send(mut stream: &TcpStream, file: &File, extent: Extent) -> io::Result<()> {
    let mut head = vec![0u8];
    for number in [extent.stored, extent.raw, extent.records] {
        head.extend(number.to_le_bytes());
    }
    head.extend(extent.crc.to_le_bytes());
    stream.write_all(&head)?;
    let mut at = extent.offset;
    let end = extent.offset + extent.stored;
    while at < end {
        let count = (end - at).min(1 << 30) as usize;
        match rustix::fs::sendfile(stream, file, Some(&mut at), count) {
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
