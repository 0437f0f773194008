//! Ships what a paused reduce put aside on another node: from the shuffle server there, by the same protocol as map
//! output. The attempt is the reduce's, and the partition is the number of a part ([`crate::checkpoint`]).

use super::wire::{self, Answer};
use crate::{
    engine::{Pulse, StopFlag, Wish},
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
const SILENCE: Duration = Duration::from_secs(30);
/// How often a part is asked for before the attempt gives up, and the first pause between two tries.
const TRIES: u32 = 7;
const PAUSE: Duration = Duration::from_millis(100);

/// Takes chunks, each with its place in the part.
pub(crate) type Put<'a> = dyn FnMut(u64, &[u8]) -> Result<(), TaskError> + 'a;

/// The way to a checkpoint on another node.
pub struct Ship<'a> {
    /// `host:port` of the shuffle server.
    pub addr: &'a str,
    /// What opens it there.
    pub token: Vec<u8>,
    /// Whose checkpoint.
    pub attempt: &'a str,
    /// Looked at between two chunks.
    pub stop: StopFlag,
    /// Beats while something comes.
    pub pulse: Pulse,
    /// Between two parts nothing is in flight.
    connection: Option<Stream>,
    /// Bytes that came.
    pub bytes: u64,
    /// Turns the connection into a stream.
    pub connector: Connector,
    /// The first rest between two tries.
    pause: Duration,
}

enum Trouble {
    /// This task's own.
    Own(TaskError),
    /// The other node does not answer, or has no time: nothing is known of the part.
    Away(String),
    /// What came is not the part, or not the whole of it, which may be the line's fault.
    Garbled(String),
    /// The whole of it came, with another checksum.
    Wrong(String),
    /// It is not there, or is another.
    Final(String),
}

impl<'a> Ship<'a> {
    /// Not connected before something is asked for.
    pub fn new(addr: &'a str, token: &[u8], attempt: &'a str, stop: StopFlag, pulse: Pulse) -> Self {
        Self {
            addr,
            token: token.to_vec(),
            attempt,
            stop,
            pulse,
            connection: None,
            bytes: 0,
            connector: Connector::default(),
            pause: PAUSE,
        }
    }

    /// A part as a whole, of at most `most` bytes.
    pub(crate) fn whole(&mut self, part: u32, most: u64) -> Result<Vec<u8>, TaskError> {
        let mut bytes = Vec::new();
        self.try_for(part, &|coming| coming.stored <= most, &mut |at, chunk| {
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
        self.try_for(part, &|coming| (coming.stored, coming.crc) == (stored, crc), put)?;
        Ok(())
    }

    /// A part, whatever it is, given to `put` in the same way; what it is.
    pub(super) fn any(&mut self, part: u32, put: &mut Put<'_>) -> Result<Extent, TaskError> {
        self.try_for(part, &|_| true, put)
    }

    fn try_for(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut Put<'_>,
    ) -> Result<Extent, TaskError> {
        let (mut last, mut away, mut wrong) = (String::new(), false, false);
        for turn in 0..TRIES {
            if turn > 0 {
                self.connection = None;
                self.stop.rest(self.pause * (1 << (turn - 1)), true);
                self.pulse.beat();
            }
            self.look()?;
            match self.once(part, fits, put) {
                Ok(coming) => return Ok(coming),
                Err(Trouble::Own(error)) => return Err(error),
                Err(Trouble::Final(why)) => return Err(self.spoilt(&why)),
                Err(Trouble::Garbled(why)) => last = why,
                // What comes whole and wrong twice lies there like that.
                Err(Trouble::Wrong(why)) if wrong => return Err(self.spoilt(&why)),
                Err(Trouble::Wrong(why)) => (last, wrong) = (why, true),
                Err(Trouble::Away(why)) => (last, away) = (why, true),
            }
        }
        // Whoever answers every time, and never with the whole of it, does not have it.
        Err(if away { TaskError::Unreached(self.of_it(&last)) } else { self.spoilt(&last) })
    }

    /// Whoever is to pause need not wait for what lies safe where it is.
    fn look(&self) -> Result<(), TaskError> {
        if self.stop.wish()? == Wish::Pause { Err(TaskError::Unbegun) } else { Ok(()) }
    }

    fn spoilt(&self, why: &str) -> TaskError {
        TaskError::Spoilt(self.of_it(why))
    }

    fn of_it(&self, why: &str) -> String {
        format!("{} of {}: {why}", self.attempt, self.addr)
    }

    fn once(
        &mut self,
        part: u32,
        fits: &dyn Fn(&Extent) -> bool,
        put: &mut Put<'_>,
    ) -> Result<Extent, Trouble> {
        let away = |error: io::Error| Trouble::Away(error.to_string());
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(self.addr, &self.connector).map_err(away)?,
        };
        let request = wire::request(&self.token, self.attempt, part)
            .map_err(|error| Trouble::Own(TaskError::Program(error.to_string())))?;
        connection.write_all(&request).map_err(away)?;
        let coming = match wire::read_answer(&mut connection).map_err(away)? {
            Answer::Coming(extent) => extent,
            Answer::No(wire::BUSY, why) => return Err(Trouble::Away(why)),
            Answer::No(_, why) => return Err(Trouble::Final(why)),
        };
        if !fits(&coming) {
            return Err(Trouble::Final("another part than the one asked for".into()));
        }
        let mut buffer = vec![0; CHUNK_BYTES.min(coming.stored as usize)];
        let (mut at, mut crc) = (0, 0);
        while at < coming.stored {
            let length = buffer.len().min((coming.stored - at) as usize);
            let cut_off = |error: io::Error| Trouble::Garbled(format!("cut off at {at}: {error}"));
            connection.read_exact(&mut buffer[..length]).map_err(cut_off)?;
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            put(at, &buffer[..length]).map_err(Trouble::Own)?;
            at += length as u64;
            self.bytes += length as u64;
            self.pulse.beat();
            self.look().map_err(Trouble::Own)?;
        }
        if crc != coming.crc {
            return Err(Trouble::Wrong("the checksum does not match".into()));
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
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    fn ship(addr: &str) -> Ship<'_> {
        let mut ship = Ship::new(addr, b"t", "job_1.r0.0", StopFlag::default(), Pulse::default());
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
    fn a_node_that_does_not_answer_has_spoilt_nothing() {
        let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
        assert!(matches!(ship(&gone).whole(0, 100), Err(TaskError::Unreached(_))));
        let silent = answering(Vec::new());
        assert!(matches!(ship(&silent).whole(0, 100), Err(TaskError::Unreached(_))));
        let busy = answering(wire::refusal(wire::BUSY, "later"));
        assert!(matches!(ship(&busy).whole(0, 100), Err(TaskError::Unreached(_))));
    }

    #[test]
    fn what_is_not_there_or_never_right_is_spoilt() {
        let without = answering(wire::refusal(wire::NOT_FOUND, "no such thing"));
        assert!(matches!(ship(&without).whole(0, 100), Err(TaskError::Spoilt(_))));
        let extent = Extent { stored: 3, crc: 1, ..Extent::default() };
        let mut answer = wire::coming(&extent);
        answer.extend_from_slice(b"abc");
        let garbled = answering(answer.clone());
        assert!(matches!(ship(&garbled).whole(0, 100), Err(TaskError::Spoilt(_))));
        answer.pop();
        let cut_off = answering(answer);
        assert!(matches!(ship(&cut_off).whole(0, 100), Err(TaskError::Spoilt(_))));
    }
}
