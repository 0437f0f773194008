//! Fetches one output: from a shuffle server, or from a file on this node.

use super::{
    FetchOptions,
    shuffle_state::{FetchFault, FetchItem},
    wire::{self, Answer},
};
use crate::{
    engine::Scratch,
    error::TaskError,
    segment::{Extent, Run, Stored},
    sort::with_capacity_for,
};
use bytes::Bytes;
use security::Stream;
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// One output takes at most this part of the memory budget.
const MEMORY_DIVISOR: u64 = 4;
/// A host that does not answer a call in this time is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an output has not come.
#[derive(Debug)]
pub(super) enum FetchError {
    /// This task's own trouble, such as a full disk. Final.
    Local(TaskError),
    /// Somebody else's.
    Remote {
        /// Whose.
        fault: FetchFault,
        /// For the log.
        why: String,
    },
}

fn remote_error(fault: FetchFault, why: impl Into<String>) -> FetchError {
    FetchError::Remote { fault, why: why.into() }
}

/// A connection to a shuffle server. Between requests nothing is in flight.
pub(super) struct Connection(Stream);

/// An output that is here.
#[derive(Debug)]
pub(super) struct Output {
    run: Run,
    _lease: Option<Lease>,
}

impl Output {
    /// One that takes nothing of the budget.
    pub(super) fn free(run: Run) -> Self {
        Self { run, _lease: None }
    }

    /// From now on it counts for nothing in the budget: the shuffle is over.
    pub(super) fn into_run(self) -> Run {
        self.run
    }
}

/// Bytes of the memory budget, given back when the output is dropped.
#[derive(Debug)]
struct Lease {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a fetcher works with.
pub(super) struct FetchWorker<'a> {
    pub(super) options: &'a FetchOptions,
    pub(super) scratch: &'a Scratch,
    pub(super) memory_used: &'a Arc<AtomicU64>,
    pub(super) bytes: &'a AtomicU64,
    /// Told of each new connection; false if it is no longer wanted.
    pub(super) opened: &'a dyn Fn(Stream) -> bool,
}

/// Whose fault it is that an output on this node cannot be read: its own if it is not there or not what was written,
/// else this task's (too many open files, a disk that fails), for which no map is to run again.
fn local_error(error: TaskError) -> FetchError {
    let gone = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    };
    if gone { remote_error(FetchFault::OutputGone, error.to_string()) } else { FetchError::Local(error) }
}

impl FetchWorker<'_> {
    /// Output on this node's disks: verified, then read where it is. What is small is kept in memory: an open file for
    /// each of many maps would be too many.
    pub(super) fn fetch_local(&self, item: &FetchItem) -> Result<Output, FetchError> {
        let path = PathBuf::from(&item.local_path);
        let mut run = Run::of_file(path.clone(), self.options.partition).map_err(local_error)?;
        let extent = run.extent;
        if extent.stored == 0 {
            return Ok(Output::free(Run::in_memory(&item.attempt, Bytes::new(), extent)));
        }
        let unreadable = |error| local_error(TaskError::io(format!("read {}", path.display()))(error));
        let file = File::open(&path).map_err(unreadable)?;
        let mut buffer = vec![0; CHUNK_BYTES.min(extent.stored as usize)];
        let (mut at, mut crc) = (0, 0);
        while at < extent.stored {
            let length = buffer.len().min((extent.stored - at) as usize);
            file.read_exact_at(&mut buffer[..length], extent.offset + at).map_err(unreadable)?;
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            at += length as u64;
        }
        if crc != extent.crc {
            let why = format!("{}: partition {} is damaged", path.display(), self.options.partition);
            return Err(remote_error(FetchFault::OutputGone, why));
        }
        self.bytes.fetch_add(extent.stored, Ordering::Relaxed);
        let small = extent.stored as usize == buffer.len();
        let lease = if small { self.reserve(extent.stored) } else { None };
        if lease.is_some() {
            run = Run::in_memory(&item.attempt, Bytes::from(buffer), extent);
        }
        run.name = item.attempt.as_str().into();
        // What stays on the disk is read again later.
        run.verified = lease.is_some();
        Ok(Output { run, _lease: lease })
    }

    /// Fetches from a server. The connection is kept if it can be used again.
    pub(super) fn fetch(
        &self,
        item: &FetchItem,
        connection: &mut Option<Connection>,
    ) -> Result<Output, FetchError> {
        let (mut open, announced) = self.ask(item, connection.take())?;
        let lease = self.reserve(announced.stored);
        let run = match lease {
            Some(_) => self.to_memory(item, &mut open, announced)?,
            None => self.to_disk(item, &mut open, announced)?,
        };
        *connection = Some(open);
        Ok(Output { run, _lease: lease })
    }

    fn reserve(&self, bytes: u64) -> Option<Lease> {
        if bytes > self.options.memory / MEMORY_DIVISOR {
            return None;
        }
        let fits = |used: u64| (used + bytes <= self.options.memory).then_some(used + bytes);
        self.memory_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Lease { used: self.memory_used.clone(), bytes })
    }

    /// Sends the request; a connection that was used before may have been closed meanwhile, which is no failure.
    fn ask(&self, item: &FetchItem, kept: Option<Connection>) -> Result<(Connection, Extent), FetchError> {
        let request = wire::request(&self.options.token, &item.attempt, self.options.partition)
            .map_err(|error| FetchError::Local(TaskError::Program(error.to_string())))?;
        let exchange = |connection: &mut Connection| -> io::Result<Answer> {
            connection.0.write_all(&request)?;
            wire::read_answer(&mut connection.0)
        };
        if let Some(mut connection) = kept
            && let Ok(answer) = exchange(&mut connection)
        {
            return announced(connection, answer);
        }
        let mut connection = self.connect(&item.host)?;
        let answer = exchange(&mut connection)
            .map_err(|error| remote_error(FetchFault::Output, format!("no answer: {error}")))?;
        announced(connection, answer)
    }

    fn connect(&self, host: &str) -> Result<Connection, FetchError> {
        let down = |error: io::Error| remote_error(FetchFault::Host, format!("{host}: {error}"));
        let unknown = || remote_error(FetchFault::Host, format!("{host}: no such address"));
        let addr = host.to_socket_addrs().map_err(down)?.next().ok_or_else(unknown)?;
        let stream = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT).map_err(down)?;
        let idle_timeout = Some(self.options.idle_timeout);
        let prepare = || {
            stream.set_nodelay(true)?;
            let stream = self.options.connector.secure(stream, CONNECT_TIMEOUT)?;
            stream.set_read_timeout(idle_timeout)?;
            stream.set_write_timeout(idle_timeout)?;
            Ok((stream.try_clone()?, stream))
        };
        let (handle, stream) = prepare().map_err(down)?;
        let wanted = (self.opened)(handle);
        if !wanted {
            return Err(remote_error(FetchFault::Busy, "the shuffle is over"));
        }
        Ok(Connection(stream))
    }

    fn to_memory(&self, item: &FetchItem, from: &mut Connection, coming: Extent) -> Result<Run, FetchError> {
        let mut bytes = with_capacity_for(coming.stored as usize);
        self.receive(from, coming, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Run { verified: true, ..Run::in_memory(&item.attempt, Bytes::from(bytes), coming) })
    }

    /// Writes to a scratch file. If a disk is full, another is tried, for which the output must be asked for again.
    fn to_disk(&self, item: &FetchItem, from: &mut Connection, coming: Extent) -> Result<Run, FetchError> {
        let mut first = true;
        let write = |path: &Path| -> Result<Result<(), FetchError>, TaskError> {
            if !std::mem::take(&mut first) {
                match self.ask(item, None) {
                    Ok((connection, again)) if again == coming => *from = connection,
                    Ok(_) => {
                        return Ok(Err(remote_error(FetchFault::Output, "another length the second time")));
                    }
                    Err(error) => return Ok(Err(error)),
                }
            }
            let no_room = |verb| TaskError::io(format!("{verb} {}", path.display()));
            let mut file = File::create(path).map_err(no_room("create"))?;
            match self.receive(from, coming, |chunk| file.write_all(chunk).map_err(no_room("write"))) {
                Err(FetchError::Local(error)) => Err(error),
                other => Ok(other),
            }
        };
        let (file, received) = self.scratch.create("fetch", write).map_err(FetchError::Local)?;
        received?;
        let name = item.attempt.as_str().into();
        // It has gone through a disk since it was verified.
        Ok(Run::new(Stored::Scratch(file), coming, name))
    }

    /// Takes the announced bytes off the connection and verifies them. An error of `put` is this task's own.
    fn receive(
        &self,
        from: &mut Connection,
        coming: Extent,
        mut put: impl FnMut(&[u8]) -> Result<(), TaskError>,
    ) -> Result<(), FetchError> {
        let mut buffer = vec![0; CHUNK_BYTES.min(coming.stored as usize)];
        let (mut left, mut crc) = (coming.stored, 0);
        while left > 0 {
            let length = buffer.len().min(left as usize);
            let got = match from.0.read(&mut buffer[..length]) {
                Ok(0) => {
                    return Err(remote_error(
                        FetchFault::Output,
                        format!("cut off, {left} bytes before the end"),
                    ));
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(remote_error(FetchFault::Output, error.to_string())),
            };
            crc = crc32c::crc32c_append(crc, &buffer[..got]);
            put(&buffer[..got]).map_err(FetchError::Local)?;
            self.bytes.fetch_add(got as u64, Ordering::Relaxed);
            left -= got as u64;
        }
        if crc == coming.crc {
            Ok(())
        } else {
            Err(remote_error(FetchFault::Output, "the checksum does not match"))
        }
    }
}

fn announced(connection: Connection, answer: Answer) -> Result<(Connection, Extent), FetchError> {
    match answer {
        Answer::Data(announced) => Ok((connection, announced)),
        Answer::No(wire::BUSY, why) => Err(remote_error(FetchFault::Busy, why)),
        Answer::No(wire::NOT_FOUND | wire::REFUSED | wire::DAMAGED, why) => {
            Err(remote_error(FetchFault::OutputGone, why))
        }
        Answer::No(status, why) => Err(remote_error(FetchFault::Output, format!("status {status}: {why}"))),
    }
}
