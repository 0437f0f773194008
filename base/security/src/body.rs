//! Bodies of calls. The body of a request is checked as it arrives. The body of a response keeps
//! the resources of its call until it has been sent.
//!
//! gRPC messages have a prefix of five bytes: a flag and the length. The gate uses the length to
//! charge a long message before memory is allocated for it, and to detect late bodies. A unary
//! request must arrive completely in time. A stream may be silent between messages, but not before
//! the first one and not within one. A unary request is charged until its call ends, a message of a
//! stream until the service asks for the next.

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

/// Position of a body in its sequence of messages.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; PREFIX_BYTES],
    /// Received bytes of the prefix.
    prefix_received: usize,
    length: usize,
    /// Bytes of the message that have not arrived.
    left: usize,
    /// Number of complete messages.
    messages: u64,
}

impl Framing {
    /// Processes a piece of the body. Returns the length of the longest message that begins in it.
    fn take(&mut self, mut piece: &[u8], streams: bool, max: usize) -> Result<usize, Status> {
        let mut longest = 0;
        while !piece.is_empty() {
            if self.prefix_received < PREFIX_BYTES {
                if !streams && self.messages > 0 {
                    return Err(Status::invalid_argument(
                        "a request of this method must be one message, but more arrived",
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
                        format!("a request of {length} bytes is too long: the maximum here is {max} bytes");
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

/// The body of a request after the gate.
pub struct RequestBody<B> {
    inner: B,
    /// `None` for health calls, which their ticket limits.
    call: Option<Arc<Call>>,
    streams: bool,
    message_max: usize,
    framing: Framing,
    /// A piece that has arrived but is not charged yet, and the future that charges it.
    pending_frame: Option<Frame<Bytes>>,
    charging: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Set when a poll had to wait.
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

    /// Handles a piece of the body: returns it, or keeps it until it is charged.
    fn arrived(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, (Kind, Status)> {
        let Some(data) = frame.data_ref() else { return Ok(Some(frame)) };
        let longest =
            self.framing.take(data, self.streams, self.message_max).map_err(|status| (Kind::Body, status))?;
        if self.streams && self.framing.prefix_received == 0 {
            // No deadline applies until the next message begins.
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

    /// Ready when the body is late.
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
                let why = "no data of the request arrived for 1 s, and other requests wait for its memory: try again later";
                return Poll::Ready((Kind::Body, Status::unavailable(why)));
            }
            timer.sleep.as_mut().reset((timer.due + more).min(now + STALL));
        }
    }

    /// Fails the body: nothing more is read, and its resources are released.
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
            // The service has consumed all messages so far, so the stream releases their bytes.
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

/// The body of a response after the gate.
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
        // The text is plain, so it is valid in a header.
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
