//! Ships the checkpoint of a paused reduce on another node: from the shuffle server there, by the same protocol as map
//! output. The attempt is the reduce's, and the partition is the number of a part ([`crate::checkpoint`]).

use super::wire::{self, Answer};
use crate::{
    engine::{Liveness, PreemptRequest, TaskControl},
    error::TaskError,
    segment::Extent,
};
use security::{Connector, Stream};
use std::{
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    time::Duration,
};

const CHUNK_BYTES: usize = 256 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a part is asked for before the attempt gives up, and the first pause between two tries.
const TRIES: u32 = 7;
const PAUSE: Duration = Duration::from_millis(100);

/// Takes chunks, each with its place in the part.
pub(crate) type Put<'a> = dyn FnMut(u64, &[u8]) -> Result<(), TaskError> + 'a;

/// The way to a checkpoint on another node.
pub struct RemoteCheckpoint<'a> {
    /// `host:port` of the shuffle server.
    pub addr: &'a str,
    /// What opens it there.
    pub token: Vec<u8>,
    /// Whose checkpoint.
    pub attempt: &'a str,
    /// Looked at between two chunks.
    pub stop: TaskControl,
    /// Beats while something comes.
    pub liveness: Liveness,
    /// Between two parts nothing is in flight.
    connection: Option<Stream>,
    /// Bytes that came.
    pub bytes: u64,
    /// Turns the connection into a stream.
    pub connector: Connector,
    /// The first rest between two tries.
    pause: Duration,
}

enum RemoteError {
    /// This task's own.
    Local(TaskError),
    /// The other node does not answer, or has no time: nothing is known of the part.
    Unavailable(String),
    /// What came is not the part, or not the whole of it, which may be the line's fault.
    Malformed(String),
    /// The whole of it came, with another checksum.
    ChecksumMismatch(String),
    /// It is not there, or is another.
    Final(String),
}

impl<'a> RemoteCheckpoint<'a> {
    /// Not connected before something is asked for.
    pub fn new(addr: &'a str, token: &[u8], attempt: &'a str, stop: TaskControl, liveness: Liveness) -> Self {
        Self {
            addr,
            token: token.to_vec(),
            attempt,
            stop,
            liveness,
            connection: None,
            bytes: 0,
            connector: Connector::default(),
            pause: PAUSE,
        }
    }

    /// A part as a whole, of at most `max` bytes.
    pub(crate) fn fetch_whole(&mut self, part: u32, max: u64) -> Result<Vec<u8>, TaskError> {
        let mut bytes = Vec::new();
        self.retry(part, &|coming| coming.stored <= max, &mut |at, chunk| {
            // Begun again, it comes from its start.
            bytes.truncate(at as usize);
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// A part of so many bytes with this checksum, given to `put` with the place of each chunk.
    pub(crate) fn fetch(
        &mut self,
        part: u32,
        stored: u64,
        crc: u32,
        put: &mut Put<'_>,
    ) -> Result<(), TaskError> {
        self.retry(part, &|coming| (coming.stored, coming.crc) == (stored, crc), put)?;
        Ok(())
    }

    /// A part, whatever it is, given to `put` in the same way; what it is.
    pub(super) fn any(&mut self, part: u32, put: &mut Put<'_>) -> Result<Extent, TaskError> {
        self.retry(part, &|_| true, put)
    }

    fn retry(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut Put<'_>,
    ) -> Result<Extent, TaskError> {
        let (mut last, mut away, mut wrong) = (String::new(), false, false);
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.connection = None;
                self.stop.sleep(self.pause * (1 << (attempt - 1)), true);
                self.liveness.mark_alive();
            }
            self.check_preempted()?;
            match self.try_once(part, fits, put) {
                Ok(coming) => return Ok(coming),
                Err(RemoteError::Local(error)) => return Err(error),
                Err(RemoteError::Final(why)) => return Err(self.corrupt(&why)),
                Err(RemoteError::Malformed(why)) => last = why,
                // What comes whole and wrong twice lies there like that.
                Err(RemoteError::ChecksumMismatch(why)) if wrong => return Err(self.corrupt(&why)),
                Err(RemoteError::ChecksumMismatch(why)) => (last, wrong) = (why, true),
                Err(RemoteError::Unavailable(why)) => (last, away) = (why, true),
            }
        }
        // Whoever answers every time, and never with the whole of it, does not have it.
        Err(if away {
            TaskError::CheckpointUnreachable(self.of_checkpoint(&last))
        } else {
            self.corrupt(&last)
        })
    }

    /// Whoever is to pause need not wait for what lies safe where it is.
    fn check_preempted(&self) -> Result<(), TaskError> {
        if self.stop.preempt_request()? == PreemptRequest::Pause {
            Err(TaskError::NotResumed)
        } else {
            Ok(())
        }
    }

    fn corrupt(&self, why: &str) -> TaskError {
        TaskError::CheckpointCorrupt(self.of_checkpoint(why))
    }

    fn of_checkpoint(&self, why: &str) -> String {
        format!("{} of {}: {why}", self.attempt, self.addr)
    }

    fn try_once(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut Put<'_>,
    ) -> Result<Extent, RemoteError> {
        let away = |error: io::Error| RemoteError::Unavailable(error.to_string());
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(self.addr, &self.connector).map_err(away)?,
        };
        let request = wire::request(&self.token, self.attempt, part)
            .map_err(|error| RemoteError::Local(TaskError::Program(error.to_string())))?;
        connection.write_all(&request).map_err(away)?;
        let coming = match wire::read_answer(&mut connection).map_err(away)? {
            Answer::Data(extent) => extent,
            Answer::No(wire::BUSY, why) => return Err(RemoteError::Unavailable(why)),
            Answer::No(_, why) => return Err(RemoteError::Final(why)),
        };
        if !fits(&coming) {
            return Err(RemoteError::Final("another part than the one asked for".into()));
        }
        let mut buffer = vec![0; CHUNK_BYTES.min(coming.stored as usize)];
        let (mut at, mut crc) = (0, 0);
        while at < coming.stored {
            let length = buffer.len().min((coming.stored - at) as usize);
            let cut_off = |error: io::Error| RemoteError::Malformed(format!("cut off at {at}: {error}"));
            connection.read_exact(&mut buffer[..length]).map_err(cut_off)?;
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            put(at, &buffer[..length]).map_err(RemoteError::Local)?;
            at += length as u64;
            self.bytes += length as u64;
            self.liveness.mark_alive();
            self.check_preempted().map_err(RemoteError::Local)?;
        }
        if crc != coming.crc {
            return Err(RemoteError::ChecksumMismatch("the checksum does not match".into()));
        }
        self.connection = Some(connection);
        Ok(coming)
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

    fn ship(addr: &str) -> RemoteCheckpoint<'_> {
        let mut ship =
            RemoteCheckpoint::new(addr, b"t", "job_1.r0.0", TaskControl::default(), Liveness::default());
        ship.pause = Duration::from_millis(1);
        ship
    }

    /// Answers every connection with these bytes, and hangs up.
    fn answering(bytes: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound").to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(&bytes);
            }
        });
        addr
    }

    /// The node may be back in a second with everything: nothing is known of what it has.
    #[test]
    fn unreachable_node_is_not_a_corrupt_checkpoint() {
        let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
        assert!(matches!(ship(&gone).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
        let silent = answering(Vec::new());
        assert!(matches!(ship(&silent).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
        let busy = answering(wire::refusal(wire::BUSY, "later"));
        assert!(matches!(ship(&busy).fetch_whole(0, 100), Err(TaskError::CheckpointUnreachable(_))));
    }

    #[test]
    fn missing_or_always_wrong_part_is_corrupt() {
        let without = answering(wire::refusal(wire::NOT_FOUND, "no such thing"));
        assert!(matches!(ship(&without).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
        let extent = Extent { stored: 3, crc: 1, ..Extent::default() };
        let mut answer = wire::coming(&extent);
        answer.extend_from_slice(b"abc");
        let garbled = answering(answer.clone());
        assert!(matches!(ship(&garbled).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
        answer.pop();
        let cut_off = answering(answer);
        assert!(matches!(ship(&cut_off).fetch_whole(0, 100), Err(TaskError::CheckpointCorrupt(_))));
    }
}
