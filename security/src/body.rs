//! Bodies of calls: a request's is checked as it arrives, a response's holds what its call uses until it has been sent.
//!
//! gRPC sends messages with a prefix of five bytes: a flag and the length. Knowing the length, the gate charges a long
//! message before anybody makes room for it, and knows whether a body is late: one request must arrive whole; a stream
//! may be silent between two messages, but not before the first and not within one. One request stays charged until its
//! call ends, a message of a stream until the service asks for the next.

use crate::{
    health::{self, Ticket},
    limits::{BODY_TIMEOUT, Call, FREE_BYTES, MESSAGE_BYTES_MAX, STALL},
    refusals::Kind,
};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const PREFIX_BYTES: usize = 5;

/// Where in its sequence of messages a body is.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have come.
    prefix_received: usize,
    length: usize,
    /// Bytes of the message that have not come.
    left: usize,
    /// Messages that have come whole.
    messages: u64,
}

impl Framing {
    /// Takes in a piece of the body: the length of the longest message that begins in it.
    fn take(&mut self, mut piece: &[u8], streams: bool, max: usize) -> Result<usize, Status> {
        let mut longest = 0;
        while !piece.is_empty() {
            if self.prefix_received < PREFIX_BYTES {
                if !streams && self.messages > 0 {
                    return Err(Status::invalid_argument(
                        "a request of this method is one message: more came",
                    ));
                }
                let count = piece.len().min(PREFIX_BYTES - self.prefix_received);
                self.prefix[self.prefix_received..self.prefix_received + count]
                    .copy_from_slice(&piece[..count]);
                (self.prefix_received, piece) = (self.prefix_received + count, &piece[count..]);
                if self.prefix_received < PREFIX_BYTES {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.length = u32::from_be_bytes(length) as usize;
                if self.length > max {
                    let length = self.length;
                    let why =
                        format!("a request of {length} bytes is too long: {max} bytes are the most here");
                    return Err(Status::out_of_range(why));
                }
                self.left = self.length;
                longest = longest.max(self.length);
            }
            let count = piece.len().min(self.left);
            (self.left, piece) = (self.left - count, &piece[count..]);
            if self.left == 0 {
                self.prefix_received = 0;
                self.messages += 1;
            }
        }
        Ok(longest)
    }
}

#[derive(Debug)]
struct Timer {
    due: Instant,
    last_received: Instant,
    sleep: Pin<Box<Sleep>>,
}

/// The body of a request behind the gate.
pub struct RequestBody<B> {
    inner: B,
    /// None for health calls: what these may take is limited by their ticket.
    call: Option<Arc<Call>>,
    streams: bool,
    message_max: usize,
    framing: Framing,
    /// A piece that has come and is not charged yet, and what it waits for.
    pending_frame: Option<Frame<Bytes>>,
    charging: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// None as long as nobody has had to wait.
    timer: Option<Timer>,
    over: bool,
}

impl<B> RequestBody<B> {
    fn new(inner: B, call: Option<Arc<Call>>, streams: bool, message_max: usize) -> Self {
        let framing = Framing::default();
        Self {
            inner,
            call,
            streams,
            message_max,
            framing,
            pending_frame: None,
            charging: None,
            timer: None,
            over: false,
        }
    }

    pub(crate) fn of_call(inner: B, call: Arc<Call>, streams: bool) -> Self {
        Self::new(inner, Some(call), streams, MESSAGE_BYTES_MAX)
    }

    pub(crate) fn of_health(inner: B) -> Self {
        Self::new(inner, None, false, health::MESSAGE_BYTES_MAX)
    }

    /// A piece has come: passed on, or held until it is charged for.
    fn arrived(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, (Kind, Status)> {
        let Some(data) = frame.data_ref() else { return Ok(Some(frame)) };
        let longest =
            self.framing.take(data, self.streams, self.message_max).map_err(|status| (Kind::Body, status))?;
        if self.streams && self.framing.prefix_received == 0 {
            // Nothing is owed until the next message begins.
            self.timer = None;
        }
        if let Some(timer) = &mut self.timer {
            timer.last_received = Instant::now();
        }
        if let Some(call) = self.call.as_ref().filter(|_| longest > FREE_BYTES)
            && !call.charge(longest)
        {
            self.charging = Some(Box::pin(call.clone().charged(longest)));
            self.pending_frame = Some(frame);
            return Ok(None);
        }
        Ok(Some(frame))
    }

    /// Ready when the body has taken too long.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<(Kind, Status)> {
        let Some(call) = &self.call else { return Poll::Pending };
        let owes = !self.streams || self.framing.messages == 0 || self.framing.prefix_received > 0;
        if !owes {
            return Poll::Pending;
        }
        let more = Duration::from_secs((self.framing.length >> 20) as u64);
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            Timer { due: now + BODY_TIMEOUT, last_received: now, sleep: Box::pin(sleep_until(now + STALL)) }
        });
        loop {
            ready!(timer.sleep.as_mut().poll(context));
            let now = Instant::now();
            if now >= timer.due + more {
                if self.charging.is_some() {
                    return Poll::Ready((Kind::Bytes, call.no_bytes()));
                }
                let within = (BODY_TIMEOUT + more).as_secs();
                let why =
                    format!("the request was incomplete after {within} s: check the network, then retry");
                return Poll::Ready((Kind::Body, Status::deadline_exceeded(why)));
            }
            if self.charging.is_none() && now >= timer.last_received + STALL && call.blocks_others() {
                let why = "nothing of the request came for 1 s, and others wait for the memory that it holds: try again later";
                return Poll::Ready((Kind::Body, Status::unavailable(why)));
            }
            timer.sleep.as_mut().reset((timer.due + more).min(now + STALL));
        }
    }

    /// The body has failed: nothing more of it is read, and what it holds is given back.
    fn fail(&mut self, (kind, status): (Kind, Status)) -> Status {
        self.over = true;
        (self.pending_frame, self.charging, self.timer) = (None, None, None);
        if let Some(call) = &self.call {
            if kind == Kind::Body { call.late(kind, &status) } else { call.refused(kind, &status) }
        }
        status
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        if this.streams && this.framing.prefix_received == 0 && this.charging.is_none() {
            // Whoever asks for more has taken over the messages so far: a stream that lasts holds no bytes between
            // them.
            this.call.iter().for_each(|call| call.release());
        }
        loop {
            if let Some(charging) = &mut this.charging {
                if charging.as_mut().poll(context).is_ready() {
                    this.charging = None;
                    return Poll::Ready(this.pending_frame.take().map(Ok));
                }
            } else {
                match Pin::new(&mut this.inner).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => match this.arrived(frame) {
                        Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                        Ok(None) => continue,
                        Err(why) => return Poll::Ready(Some(Err(this.fail(why).into()))),
                    },
                    Poll::Ready(end) => {
                        this.over = true;
                        return Poll::Ready(end.map(|end| end.map_err(Into::into)));
                    }
                    Poll::Pending => {}
                }
            }
            let why = ready!(this.poll_late(context));
            return Poll::Ready(Some(Err(this.fail(why).into())));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || (self.pending_frame.is_none() && self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response behind the gate.
pub struct ResponseBody<R> {
    inner: R,
    _call: Option<Arc<Call>>,
    ticket: Option<Ticket>,
    over: bool,
}

impl<R> ResponseBody<R> {
    pub(crate) fn new(inner: R, call: Option<Arc<Call>>, ticket: Option<Ticket>) -> Self {
        Self { inner, _call: call, ticket, over: false }
    }
}

impl<R: Body<Data = Bytes> + Unpin> Body for ResponseBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let Some(ticket) = &mut this.ticket else { return Poll::Pending };
        let status = ready!(ticket.poll_end(context));
        this.over = true;
        let mut trailers = HeaderMap::new();
        // Its text is plain: it can be a header.
        status.add_header(&mut trailers).ok();
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
