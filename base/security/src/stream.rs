//! A bulk connection, which transfers blocks or map outputs, plain or with TLS. It is blocking, and
//! can be used from two threads, one per direction, like a socket.
//!
//! A plain stream adds nothing: it makes the same system calls, including sendfile. A TLS stream
//! locks its session only while bytes are encrypted or decrypted, never while it waits for the
//! socket, so that the directions do not block each other. The protocols that use a stream send the
//! length of all data, so a connection may end without a TLS close message.

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use rustls::Connection;
use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::fs::FileExt,
    sync::Arc,
    time::Duration,
};

/// Maximum number of bytes read from the socket at a time.
const INCOMING_BYTES: usize = 64 << 10;
/// Maximum number of bytes encrypted at a time.
const OUTGOING_BYTES: usize = 256 << 10;

/// A bulk connection.
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Tls(Arc<Tls>),
}

#[derive(Debug)]
struct Tls {
    socket: TcpStream,
    session: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Vec<u8>>,
}

/// Bytes that were received from the socket and that the session has not decrypted yet.
#[derive(Debug)]
struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self(Kind::Plain(socket))
    }
}

impl Stream {
    /// Performs the TLS handshake, within the timeouts of the socket, and returns the stream.
    pub(crate) fn secured(socket: TcpStream, mut session: Connection) -> io::Result<Self> {
        session.set_buffer_limit(None);
        while session.is_handshaking() {
            session.complete_io(&mut &socket)?;
        }
        while session.wants_write() {
            session.write_tls(&mut &socket)?;
        }
        let incoming = Incoming { bytes: vec![0; INCOMING_BYTES].into(), start: 0, end: 0 };
        Ok(Self(Kind::Tls(Arc::new(Tls {
            socket,
            session: Mutex::new(session),
            incoming: Mutex::new(incoming),
            outgoing: Mutex::default(),
        }))))
    }

    /// Returns the certificate of the peer, if it has sent one.
    #[cfg(feature = "server")]
    pub(crate) fn certificate(&self) -> Option<rustls::pki_types::CertificateDer<'static>> {
        let Kind::Tls(tls) = &self.0 else { return None };
        Some(tls.session.lock().peer_certificates()?.first()?.clone().into_owned())
    }

    /// Returns the socket, for its settings. Bytes must be sent through the stream.
    pub fn socket(&self) -> &TcpStream {
        match &self.0 {
            Kind::Plain(socket) => socket,
            Kind::Tls(tls) => &tls.socket,
        }
    }

    /// Returns another handle to the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(match &self.0 {
            Kind::Plain(socket) => Kind::Plain(socket.try_clone()?),
            Kind::Tls(tls) => Kind::Tls(tls.clone()),
        }))
    }

    /// Like [`TcpStream::set_read_timeout`].
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket().set_read_timeout(limit)
    }

    /// Like [`TcpStream::set_write_timeout`].
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket().set_write_timeout(limit)
    }

    /// Like [`TcpStream::shutdown`].
    pub fn shutdown(&self, flags: Shutdown) -> io::Result<()> {
        self.socket().shutdown(flags)
    }

    /// Returns whether a read would return at once, with data or at the end of the stream.
    pub fn has_input(&self) -> io::Result<bool> {
        self.peek(RecvFlags::DONTWAIT)
    }

    /// Like [`Self::has_input`], but waits as long as a read would.
    pub fn await_input(&self) -> io::Result<bool> {
        self.peek(RecvFlags::empty())
    }

    fn peek(&self, flags: RecvFlags) -> io::Result<bool> {
        match &self.0 {
            Kind::Plain(socket) => {
                let mut byte = [0; 1];
                match recv(socket, &mut byte[..], RecvFlags::PEEK | flags) {
                    Ok(_) => Ok(true),
                    Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            Kind::Tls(tls) => tls.peek(flags),
        }
    }

    /// Reads data that has arrived. Returns [`Errno::AGAIN`] if there is none. Then no data is
    /// buffered in the stream, so the caller may poll the socket.
    pub fn receive_now(&self, into: &mut [u8]) -> Result<usize, Errno> {
        match &self.0 {
            Kind::Plain(socket) => recv(socket, into, RecvFlags::DONTWAIT).map(|(_, read)| read),
            Kind::Tls(tls) => {
                tls.read(into, RecvFlags::DONTWAIT).map_err(|error| errno(&error, Errno::PROTO))
            }
        }
    }

    /// Sends up to `count` bytes of a file from `at`, and advances `at`. Returns 0 at the end of
    /// the file.
    pub fn send_file(&self, file: &File, at: &mut u64, count: usize) -> Result<usize, Errno> {
        let tls = match &self.0 {
            Kind::Plain(socket) => return rustix::fs::sendfile(socket, file, Some(at), count),
            Kind::Tls(tls) => tls,
        };
        let mut buffer = vec![0; count.min(OUTGOING_BYTES)];
        let read = file.read_at(&mut buffer, *at).map_err(|error| errno(&error, Errno::IO))?;
        // An error of the socket must not be reported as `EIO`, which means an error of the disk.
        let lost = |error: io::Error| match errno(&error, Errno::PIPE) {
            Errno::IO => Errno::PIPE,
            other => other,
        };
        tls.write_all(&buffer[..read]).map_err(lost)?;
        *at += read as u64;
        Ok(read)
    }
}

impl Tls {
    fn read(&self, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            if let Some(read) = self.read_decrypted(into)? {
                return Ok(read);
            }
            if !self.decrypt(&mut incoming)? && incoming.fill(&self.socket, flags)? == 0 {
                return Ok(0);
            }
        }
    }

    fn peek(&self, flags: RecvFlags) -> io::Result<bool> {
        let mut incoming = self.incoming.lock();
        loop {
            let state = self.session.lock().process_new_packets().map_err(tls_error)?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(true);
            }
            if self.decrypt(&mut incoming)? {
                continue;
            }
            match incoming.fill(&self.socket, flags) {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads decrypted data; returns `None` if there is none.
    fn read_decrypted(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.lock().reader().read(into) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Passes received bytes to the session for decryption; returns false if there are none.
    fn decrypt(&self, incoming: &mut Incoming) -> io::Result<bool> {
        if incoming.start == incoming.end {
            return Ok(false);
        }
        let mut session = self.session.lock();
        let mut rest = &incoming.bytes[incoming.start..incoming.end];
        incoming.start += session.read_tls(&mut rest)?;
        let taken = session.process_new_packets().map_err(tls_error);
        let answers = session.wants_write();
        drop(session);
        if answers {
            self.write_all(&[])?;
        }
        taken.map(|_| true)
    }

    fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        let mut outgoing = self.outgoing.lock();
        loop {
            let (now, later) = data.split_at(data.len().min(OUTGOING_BYTES));
            let mut session = self.session.lock();
            session.writer().write_all(now)?;
            while session.wants_write() {
                session.write_tls(&mut *outgoing)?;
            }
            drop(session);
            let sent = (&self.socket).write_all(&outgoing);
            outgoing.clear();
            sent?;
            data = later;
            if data.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Incoming {
    fn fill(&mut self, socket: &TcpStream, flags: RecvFlags) -> io::Result<usize> {
        loop {
            match recv(socket, &mut self.bytes[..], flags) {
                Ok((_, read)) => {
                    (self.start, self.end) = (0, read);
                    return Ok(read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the error code of an error of the operating system, or `otherwise` for other errors.
fn errno(error: &io::Error, otherwise: Errno) -> Errno {
    Errno::from_io_error(error).unwrap_or(otherwise)
}

fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&*socket).read(into),
            Kind::Tls(_) if into.is_empty() => Ok(0),
            Kind::Tls(tls) => tls.read(into, RecvFlags::empty()),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&*socket).write(data),
            Kind::Tls(tls) => tls.write_all(data).map(|()| data.len()),
        }
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&*socket).write_vectored(data),
            Kind::Tls(tls) => {
                for part in data {
                    tls.write_all(part)?;
                }
                Ok(data.iter().map(|part| part.len()).sum())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
