//! Fetches one output, from a shuffle server or from a file on this node.

use super::{
    FetchOptions,
    shuffle_state::{FetchFault, FetchItem},
    wire::{self, Answer},
};
use crate::{
    scratch::Scratch,
    segment::{Extent, Run, Stored},
    sort::with_capacity_for,
};
use bytes::Bytes;
use mrlib_api::TaskError;
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

/// Bytes per read.
const CHUNK_BYTES: usize = 256 << 10;
/// One output may use at most 1 / `MEMORY_DIVISOR` of the memory budget.
const MEMORY_DIVISOR: u64 = 4;
/// A host that does not accept a connection in this time is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a fetch failed.
#[derive(Debug)]
pub(super) enum FetchError {
    /// An error of this process, such as a full disk. It is not retried.
    Local(TaskError),
    /// An error of the host or of the output.
    Remote {
        /// What is at fault.
        fault: FetchFault,
        /// The reason, for the log.
        why: String,
    },
}

fn remote_error(fault: FetchFault, why: impl Into<String>) -> FetchError {
    FetchError::Remote { fault, why: why.into() }
}

/// A connection to a shuffle server. Between requests no data is in flight.
pub(super) struct Connection(Stream);

/// A fetched output.
#[derive(Debug)]
pub(super) struct Output {
    run: Run,
    _reservation: Option<MemoryReservation>,
}

impl Output {
    /// Creates an output that does not count for the memory budget.
    pub(super) fn outside_budget(run: Run) -> Self {
        Self { run, _reservation: None }
    }

    /// Returns the run and releases its memory budget. Called when the shuffle has ended.
    pub(super) fn into_run(self) -> Run {
        self.run
    }
}

/// Bytes of the memory budget, released when the output is dropped.
#[derive(Debug)]
struct MemoryReservation {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The environment of a fetcher.
pub(super) struct FetchWorker<'a> {
    pub(super) options: &'a FetchOptions,
    pub(super) scratch: &'a Scratch,
    pub(super) memory_used: &'a Arc<AtomicU64>,
    pub(super) bytes: &'a AtomicU64,
    /// Called with each new connection. Returns false if the shuffle has ended.
    pub(super) on_connect: &'a dyn Fn(Stream) -> bool,
}

/// Classifies an error of an output on this node. If the file is missing or damaged, the output is
/// at fault. Other errors (too many open files, a failing disk) are this process's own, and no map
/// should run again because of them.
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
    /// Verifies an output on this node. A large output is read in place. A small output is copied
    /// into memory, because one open file per map would be too many.
    pub(super) fn fetch_local(&self, item: &FetchItem) -> Result<Output, FetchError> {
        let path = PathBuf::from(&item.local_path);
        let mut run = Run::of_file(path.clone(), self.options.partition).map_err(local_error)?;
        let extent = run.extent;
        if extent.stored == 0 {
            return Ok(Output::outside_budget(Run::in_memory(&item.attempt, Bytes::new(), extent)));
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
        let reservation = if small { self.reserve_memory(extent.stored) } else { None };
        if reservation.is_some() {
            run = Run::in_memory(&item.attempt, Bytes::from(buffer), extent);
        }
        run.name = item.attempt.as_str().into();
        // An output that stays on disk is verified again when it is read.
        run.verified = reservation.is_some();
        Ok(Output { run, _reservation: reservation })
    }

    /// Fetches an output from a server. Leaves the connection in `connection` if it can be used
    /// again.
    pub(super) fn fetch(
        &self,
        item: &FetchItem,
        connection: &mut Option<Connection>,
    ) -> Result<Output, FetchError> {
        let (mut open, announced) = self.request_output(item, connection.take())?;
        let reservation = self.reserve_memory(announced.stored);
        let run = match reservation {
            Some(_) => self.to_memory(item, &mut open, announced)?,
            None => self.to_disk(item, &mut open, announced)?,
        };
        *connection = Some(open);
        Ok(Output { run, _reservation: reservation })
    }

    fn reserve_memory(&self, bytes: u64) -> Option<MemoryReservation> {
        if bytes > self.options.memory / MEMORY_DIVISOR {
            return None;
        }
        let fits = |used: u64| (used + bytes <= self.options.memory).then_some(used + bytes);
        self.memory_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(MemoryReservation { used: self.memory_used.clone(), bytes })
    }

    /// Sends the request and reads the answer. If the server has closed a reused connection,
    /// connects again.
    fn request_output(
        &self,
        item: &FetchItem,
        reused: Option<Connection>,
    ) -> Result<(Connection, Extent), FetchError> {
        let request = wire::request(&self.options.token, &item.attempt, self.options.partition)
            .map_err(|error| FetchError::Local(TaskError::Program(error.to_string())))?;
        let exchange = |connection: &mut Connection| -> io::Result<Answer> {
            connection.0.write_all(&request)?;
            wire::read_answer(&mut connection.0)
        };
        if let Some(mut connection) = reused
            && let Ok(answer) = exchange(&mut connection)
        {
            return accept_answer(connection, answer);
        }
        let mut connection = self.connect(&item.host)?;
        let answer = exchange(&mut connection)
            .map_err(|error| remote_error(FetchFault::Output, format!("no answer: {error}")))?;
        accept_answer(connection, answer)
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
        let wanted = (self.on_connect)(handle);
        if !wanted {
            return Err(remote_error(FetchFault::Busy, "the shuffle has ended"));
        }
        Ok(Connection(stream))
    }

    fn to_memory(&self, item: &FetchItem, from: &mut Connection, extent: Extent) -> Result<Run, FetchError> {
        let mut bytes = with_capacity_for(extent.stored as usize);
        self.receive(from, extent, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Run { verified: true, ..Run::in_memory(&item.attempt, Bytes::from(bytes), extent) })
    }

    /// Writes the output to a scratch file. If the disk is full, requests the output again for
    /// another disk.
    fn to_disk(&self, item: &FetchItem, from: &mut Connection, extent: Extent) -> Result<Run, FetchError> {
        let mut first = true;
        let write = |path: &Path| -> Result<Result<(), FetchError>, TaskError> {
            if !std::mem::take(&mut first) {
                match self.request_output(item, None) {
                    Ok((connection, again)) if again == extent => *from = connection,
                    Ok(_) => {
                        return Ok(Err(remote_error(
                            FetchFault::Output,
                            "the output has a different length than before",
                        )));
                    }
                    Err(error) => return Ok(Err(error)),
                }
            }
            let failed = |verb| TaskError::io(format!("{verb} {}", path.display()));
            let mut file = File::create(path).map_err(failed("create"))?;
            match self.receive(from, extent, |chunk| file.write_all(chunk).map_err(failed("write"))) {
                Err(FetchError::Local(error)) => Err(error),
                other => Ok(other),
            }
        };
        let (file, received) = self.scratch.create("fetch", write).map_err(FetchError::Local)?;
        received?;
        let name = item.attempt.as_str().into();
        // The data has gone through a disk since it was verified, so it is verified again.
        Ok(Run::new(Stored::Scratch(file), extent, name))
    }

    /// Receives the announced bytes and verifies them. An error of `put` is an error of this
    /// process.
    fn receive(
        &self,
        from: &mut Connection,
        extent: Extent,
        mut put: impl FnMut(&[u8]) -> Result<(), TaskError>,
    ) -> Result<(), FetchError> {
        let mut buffer = vec![0; CHUNK_BYTES.min(extent.stored as usize)];
        let (mut left, mut crc) = (extent.stored, 0);
        while left > 0 {
            let length = buffer.len().min(left as usize);
            let got = match from.0.read(&mut buffer[..length]) {
                Ok(0) => {
                    return Err(remote_error(
                        FetchFault::Output,
                        format!("the connection ended {left} bytes too early"),
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
        if crc == extent.crc {
            Ok(())
        } else {
            Err(remote_error(FetchFault::Output, "the checksum does not match"))
        }
    }
}

fn accept_answer(connection: Connection, answer: Answer) -> Result<(Connection, Extent), FetchError> {
    match answer {
        Answer::Data(announced) => Ok((connection, announced)),
        Answer::Refused(wire::BUSY, why) => Err(remote_error(FetchFault::Busy, why)),
        Answer::Refused(wire::NOT_FOUND | wire::REFUSED | wire::DAMAGED, why) => {
            Err(remote_error(FetchFault::OutputGone, why))
        }
        Answer::Refused(status, why) => {
            Err(remote_error(FetchFault::Output, format!("status {status}: {why}")))
        }
    }
}
