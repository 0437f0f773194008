//! Blocking connections to DataNodes. They have timeouts, are reused for the next request, and can
//! be closed by another thread.
//!
//! Writers use their connection on a separate thread. Readers send the request in a blocking task,
//! and then receive the data themselves.

use crate::bulk::{self, FrameKind, PACKET_BYTES, encode_frame, is_timeout};
use parking_lot::Mutex;
use prost::Message;
use security::{Connector, Stream};
use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Cancels a transfer from another thread by closing its connection. The thread of the transfer
/// then gets an error.
#[derive(Clone, Default)]
pub(super) struct Hangup(Arc<Mutex<HangupState>>);

#[derive(Default)]
struct HangupState {
    cancelled: bool,
    stream: Option<Stream>,
}

impl Hangup {
    /// Makes `stream` the connection that [`Self::hang_up`] closes. Fails if the transfer is
    /// already cancelled.
    fn watch(&self, stream: &Stream) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.cancelled {
            return Err(io::Error::other("cancelled by the caller"));
        }
        state.stream = Some(stream.try_clone()?);
        Ok(())
    }

    /// Forgets the connection: [`Self::hang_up`] no longer closes it.
    pub(super) fn release(&self) {
        self.0.lock().stream = None;
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.lock().cancelled
    }

    pub(super) fn hang_up(&self) {
        let mut state = self.0.lock();
        state.cancelled = true;
        if let Some(stream) = state.stream.take() {
            // An error means that the connection is already closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The timeouts and TLS settings of a connection.
#[derive(Debug, Clone)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    /// A peer that is silent for this long is considered dead.
    pub(super) silence: Duration,
    pub(super) connector: Connector,
}

/// Opens a connection to `addr` that `hangup` can close.
pub(super) fn connect(addr: &str, timeouts: &Timeouts, hangup: &Hangup) -> io::Result<Stream> {
    let stream = bulk::connect(addr, timeouts.connect, &timeouts.connector)?;
    prepare(&stream, timeouts, hangup)?;
    Ok(stream)
}

fn prepare(stream: &Stream, timeouts: &Timeouts, hangup: &Hangup) -> io::Result<()> {
    stream.set_read_timeout(Some(timeouts.silence))?;
    stream.set_write_timeout(Some(timeouts.silence))?;
    hangup.watch(stream)
}

/// Sends a frame without data.
pub(super) fn send_frame(stream: &mut impl Write, kind: FrameKind, body: &impl Message) -> io::Result<()> {
    let mut out = Vec::new();
    encode_frame(kind, body, 0, &mut out);
    stream.write_all(&out)
}

/// Describes a socket error.
pub(super) fn describe_socket_error(error: &io::Error) -> String {
    match error.kind() {
        _ if is_timeout(error) => "no answer in time".into(),
        io::ErrorKind::UnexpectedEof => "the connection ended early".into(),
        _ => error.to_string(),
    }
}

/// Idle connections to DataNodes. The next request to the same node uses one of them.
#[derive(Default)]
pub(super) struct IdleConnections(Mutex<Vec<(String, Stream, Instant)>>);

impl IdleConnections {
    const IDLE_MAX: usize = 16;
    /// How long an idle connection is kept: less than the timeout after which a DataNode closes it.
    const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

    /// Returns an idle connection to `addr`. The node may have closed it meanwhile. If the request
    /// fails before an answer arrives, the caller opens a new connection.
    pub(super) fn take(&self, addr: &str, timeouts: &Timeouts, hangup: &Hangup) -> Option<Stream> {
        let mut kept = self.0.lock();
        kept.retain(|(_, _, since)| since.elapsed() < Self::IDLE_TIME_MAX);
        let at = kept.iter().position(|(known, ..)| known == addr)?;
        let (_, stream, _) = kept.swap_remove(at);
        prepare(&stream, timeouts, hangup).ok()?;
        Some(stream)
    }

    /// Closes the idle connections to `addr`.
    pub(super) fn forget(&self, addr: &str) {
        self.0.lock().retain(|(known, ..)| known != addr);
    }

    pub(super) fn put_back(&self, addr: &str, stream: Stream) {
        let mut kept = self.0.lock();
        if kept.len() < Self::IDLE_MAX {
            kept.push((addr.to_owned(), stream, Instant::now()));
        }
    }
}

/// A pool of buffers of packet size. Buffers are reused, because the first access to new memory
/// costs more than the copy into it.
#[derive(Default)]
pub(super) struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    const IDLE_MAX: usize = 32;

    /// Returns an empty buffer with the capacity of a packet.
    pub(super) fn take_empty(&self) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_else(|| Vec::with_capacity(PACKET_BYTES));
        buffer.clear();
        buffer
    }

    /// Returns a buffer of packet length with arbitrary contents. It is not cleared, because that
    /// would take another pass over the memory.
    pub(super) fn take_full(&self) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        buffer.resize(PACKET_BYTES, 0);
        buffer
    }

    pub(super) fn put_back(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if kept.len() < Self::IDLE_MAX {
            kept.push(buffer);
        }
    }
}
