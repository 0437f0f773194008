//! Blocking connections to DataNodes: made with a time limit, kept for the next request, hung up from outside.
//!
//! Writers own their connection on a thread that does nothing but move bytes. Readers ask for a block in the same
//! blocking way, and then receive it themselves.

use crate::bulk::{self, FrameKind, PACKET_BYTES, encode_frame, is_timeout};
use parking_lot::Mutex;
use prost::Message;
use security::{Connector, Stream};
use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ends a transfer from outside: the thread in it sees its connection closed.
#[derive(Clone, Default)]
pub(super) struct Hangup(Arc<Mutex<HangupState>>);

#[derive(Default)]
struct HangupState {
    gone: bool,
    stream: Option<Stream>,
}

impl Hangup {
    /// Watches this connection from now on, in place of the one before; refuses if already hung up.
    fn watch(&self, stream: &Stream) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.gone {
            return Err(io::Error::other("given up by the caller"));
        }
        state.stream = Some(stream.try_clone()?);
        Ok(())
    }

    /// The connection is no longer this transfer's.
    pub(super) fn release(&self) {
        self.0.lock().stream = None;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.lock().gone
    }

    pub(super) fn hang_up(&self) {
        let mut state = self.0.lock();
        state.gone = true;
        if let Some(stream) = state.stream.take() {
            // It may be closed already, which is what is wanted.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// How long to wait for what, and what to show.
#[derive(Debug, Clone)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    /// A peer silent for this long is given up.
    pub(super) silence: Duration,
    pub(super) connector: Connector,
}

/// A new connection to `addr`, watched by `hangup`.
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

/// An error of the socket in words.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        _ if is_timeout(error) => "no answer in time".into(),
        io::ErrorKind::UnexpectedEof => "the connection ended early".into(),
        _ => error.to_string(),
    }
}

/// Connections that ended a request cleanly, for the next one to the same node.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<(String, Stream, Instant)>>);

impl Idle {
    const IDLE_MAX: usize = 16;
    /// Shorter than any sensible DataNode's own limit on silence.
    const AGE_MAX: Duration = Duration::from_secs(5);

    /// A connection to `addr` that may still be good: if it fails before an answer, make a new one.
    pub(super) fn take(&self, addr: &str, timeouts: &Timeouts, hangup: &Hangup) -> Option<Stream> {
        let mut kept = self.0.lock();
        kept.retain(|(_, _, since)| since.elapsed() < Self::AGE_MAX);
        let at = kept.iter().position(|(known, ..)| known == addr)?;
        let (_, stream, _) = kept.swap_remove(at);
        prepare(&stream, timeouts, hangup).ok()?;
        Some(stream)
    }

    /// Closes those to `addr`.
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

/// Buffers of a packet's size, used again and again: fresh memory costs more than the copy into it.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    const IDLE_MAX: usize = 32;

    /// An empty buffer with room for a packet.
    pub(super) fn take_empty(&self) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_else(|| Vec::with_capacity(PACKET_BYTES));
        buffer.clear();
        buffer
    }

    /// A buffer of a packet's length with anything in it: clearing it would cost a pass over memory.
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
