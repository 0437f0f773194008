//! Copies the checkpoint of a paused reduce from the shuffle server of another node, with the
//! protocol for map outputs. A request contains the attempt of the reduce and, in place of the
//! partition, the number of a part of the checkpoint ([`crate::checkpoint`]).

use super::wire::{self, Answer};
use crate::segment::Extent;
use mrlib_api::{Liveness, PreemptKind, TaskControl, TaskError};
use security::{Connector, Stream};
use std::{
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    time::Duration,
};

const CHUNK_BYTES: usize = 256 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tries per part.
const TRIES: u32 = 7;
/// The pause after the first try. It doubles with each further try.
const PAUSE: Duration = Duration::from_millis(100);

/// Receives chunks of a part, each with its offset.
pub(crate) type PutChunk<'a> = dyn FnMut(u64, &[u8]) -> Result<(), TaskError> + 'a;

/// A connection to a checkpoint on another node.
pub struct RemoteCheckpoint<'a> {
    /// `host:port` of the shuffle server.
    pub addr: &'a str,
    /// The token for the checkpoint.
    pub token: Vec<u8>,
    /// The attempt that saved the checkpoint.
    pub attempt: &'a str,
    /// Checked for kills and pauses between two chunks.
    pub control: TaskControl,
    /// Marked alive while data arrives.
    pub liveness: Liveness,
    /// The connection for the next part. It has no data in flight.
    connection: Option<Stream>,
    /// Bytes received.
    pub bytes: u64,
    /// Secures the connection, with TLS if configured.
    pub connector: Connector,
    /// The first pause between two tries.
    pause: Duration,
}

enum RemoteError {
    /// An error of this process.
    Local(TaskError),
    /// The other node does not answer or is busy. The state of the checkpoint is unknown.
    Unavailable(String),
    /// The data is malformed or incomplete, perhaps because of the connection.
    Malformed(String),
    /// The data is complete, but its checksum does not match.
    ChecksumMismatch(String),
    /// The part does not exist, or does not have the expected length or checksum.
    Final(String),
}

impl<'a> RemoteCheckpoint<'a> {
    /// Creates a client that connects when the first part is requested.
    pub fn new(
        addr: &'a str,
        token: &[u8],
        attempt: &'a str,
        control: TaskControl,
        liveness: Liveness,
    ) -> Self {
        Self {
            addr,
            token: token.to_vec(),
            attempt,
            control,
            liveness,
            connection: None,
            bytes: 0,
            connector: Connector::default(),
            pause: PAUSE,
        }
    }

    /// Fetches a part of at most `max` bytes into memory.
    pub(crate) fn fetch_whole(&mut self, part: u32, max: u64) -> Result<Vec<u8>, TaskError> {
        let mut bytes = Vec::new();
        self.retry(part, &|extent| extent.stored <= max, &mut |at, chunk| {
            // A new try starts at the beginning of the part.
            bytes.truncate(at as usize);
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Fetches a part with this length and checksum. `put` gets each chunk with its offset.
    pub(crate) fn fetch(
        &mut self,
        part: u32,
        stored: u64,
        crc: u32,
        put: &mut PutChunk<'_>,
    ) -> Result<(), TaskError> {
        self.retry(part, &|extent| (extent.stored, extent.crc) == (stored, crc), put)?;
        Ok(())
    }

    /// Fetches a part of unknown length. Returns its extent.
    pub(super) fn fetch_any_length(
        &mut self,
        part: u32,
        put: &mut PutChunk<'_>,
    ) -> Result<Extent, TaskError> {
        self.retry(part, &|_| true, put)
    }

    fn retry(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut PutChunk<'_>,
    ) -> Result<Extent, TaskError> {
        let (mut last, mut unreachable, mut wrong) = (String::new(), false, false);
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.connection = None;
                self.control.sleep(self.pause * (1 << (attempt - 1)), true);
                self.liveness.mark_alive();
            }
            self.check_preempted()?;
            match self.try_once(part, fits, put) {
                Ok(extent) => return Ok(extent),
                Err(RemoteError::Local(error)) => return Err(error),
                Err(RemoteError::Final(why)) => return Err(self.corrupt_error(&why)),
                Err(RemoteError::Malformed(why)) => last = why,
                // A second checksum mismatch means that the part is damaged on disk.
                Err(RemoteError::ChecksumMismatch(why)) if wrong => return Err(self.corrupt_error(&why)),
                Err(RemoteError::ChecksumMismatch(why)) => (last, wrong) = (why, true),
                Err(RemoteError::Unavailable(why)) => (last, unreachable) = (why, true),
            }
        }
        // A server that always answers but never sends the complete part does not have it.
        Err(if unreachable {
            TaskError::CheckpointUnreachable(self.describe(&last))
        } else {
            self.corrupt_error(&last)
        })
    }

    /// Fails if a pause was requested. The checkpoint is safe on the other node, so the copy can
    /// end at once.
    fn check_preempted(&self) -> Result<(), TaskError> {
        if self.control.preempt_request()? == Some(PreemptKind::Pause) {
            Err(TaskError::NotResumed)
        } else {
            Ok(())
        }
    }

    fn corrupt_error(&self, why: &str) -> TaskError {
        TaskError::CheckpointCorrupt(self.describe(why))
    }

    fn describe(&self, why: &str) -> String {
        format!("files of {} on {}: {why}", self.attempt, self.addr)
    }

    fn try_once(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut PutChunk<'_>,
    ) -> Result<Extent, RemoteError> {
        let unreachable = |error: io::Error| RemoteError::Unavailable(error.to_string());
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(self.addr, &self.connector).map_err(unreachable)?,
        };
        let request = wire::request(&self.token, self.attempt, part)
            .map_err(|error| RemoteError::Local(TaskError::Program(error.to_string())))?;
        connection.write_all(&request).map_err(unreachable)?;
        let extent = match wire::read_answer(&mut connection).map_err(unreachable)? {
            Answer::Data(extent) => extent,
            Answer::Refused(wire::BUSY, why) => return Err(RemoteError::Unavailable(why)),
            Answer::Refused(_, why) => return Err(RemoteError::Final(why)),
        };
        if !fits(&extent) {
            return Err(RemoteError::Final("the part has an unexpected length or checksum".into()));
        }
        let mut buffer = vec![0; CHUNK_BYTES.min(extent.stored as usize)];
        let (mut at, mut crc) = (0, 0);
        while at < extent.stored {
            let length = buffer.len().min((extent.stored - at) as usize);
            let incomplete =
                |error: io::Error| RemoteError::Malformed(format!("the data ends after {at} bytes: {error}"));
            connection.read_exact(&mut buffer[..length]).map_err(incomplete)?;
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            put(at, &buffer[..length]).map_err(RemoteError::Local)?;
            at += length as u64;
            self.bytes += length as u64;
            self.liveness.mark_alive();
            self.check_preempted().map_err(RemoteError::Local)?;
        }
        if crc != extent.crc {
            return Err(RemoteError::ChecksumMismatch("the checksum of the data does not match".into()));
        }
        self.connection = Some(connection);
        Ok(extent)
    }
}

fn connect(addr: &str, connector: &Connector) -> io::Result<Stream> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "no such address");
    let stream =
        TcpStream::connect_timeout(&addr.to_socket_addrs()?.next().ok_or_else(unknown)?, CONNECT_TIMEOUT)?;
    stream.set_nodelay(true)?;
    let stream = connector.secure(stream, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    fn remote(addr: &str) -> RemoteCheckpoint<'_> {
        let mut remote =
            RemoteCheckpoint::new(addr, b"t", "job_1.r0.0", TaskControl::default(), Liveness::default());
        remote.pause = Duration::from_millis(1);
        remote
    }

    /// Starts a server that answers every connection with these bytes and closes it. Returns its
    /// address.
    fn serve_answer(bytes: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("a bound listener").to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(&bytes);
            }
        });
        addr
    }

    /// An unreachable node may return with its checkpoint, so the checkpoint must not count as
    /// corrupt.
    #[test]
    fn unreachable_node_is_not_a_corrupt_checkpoint() {
        let gone = TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr()
            .expect("a bound listener")
            .to_string();
        assert!(matches!(remote(&gone).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
        let silent = serve_answer(Vec::new());
        assert!(matches!(remote(&silent).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
        let busy = serve_answer(wire::refusal(wire::BUSY, "later"));
        assert!(matches!(remote(&busy).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
    }

    #[test]
    fn missing_or_repeatedly_damaged_part_is_corrupt() {
        let without = serve_answer(wire::refusal(wire::NOT_FOUND, "no such checkpoint"));
        assert!(matches!(remote(&without).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
        let extent = Extent { stored: 3, crc: 1, ..Extent::default() };
        let mut answer = wire::data_header(&extent);
        answer.extend_from_slice(b"abc");
        let garbled = serve_answer(answer.clone());
        assert!(matches!(remote(&garbled).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
        answer.pop();
        let incomplete = serve_answer(answer);
        assert!(matches!(remote(&incomplete).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
    }
}
