//! Bodies of calls. The body of a request is checked as it arrives. The body of a response holds
//! the resources of its call until it has been sent.
//!
//! Each gRPC message has a five-byte prefix: a flag and the length. From the length, the gate
//! reserves bytes in the pool of the caller (see `limits.rs`) before memory is allocated for a long
//! message, and detects bodies that arrive too slowly. A unary request must arrive completely in
//! time. A stream may be silent between messages, but not before the first message and not within a
//! message. A unary request holds its reservation until its call ends, a message of a stream until
//! the service asks for the next message.

use crate::{
    health::{self, HealthSlot},
    limits::{BODY_TIMEOUT, Call, FREE_BYTES, MESSAGE_BYTES_MAX, STALL_TIMEOUT},
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

/// Follows the messages in a body, as its pieces arrive.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of the prefix that have arrived.
    prefix_received: usize,
    /// Length of the current message.
    length: usize,
    /// Number of bytes of the current message that have not arrived.
    missing: usize,
    /// Number of complete messages.
    messages: u64,
}

impl Framing {
    /// Processes a piece of the body. Returns the length of the longest message that begins in the
    /// piece.
    fn add_piece(&mut self, mut piece: &[u8], streams: bool, max: usize) -> Result<usize, Status> {
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
                    let why = format!("the request has {length} bytes, more than the limit of {max}");
                    return Err(Status::out_of_range(why));
                }
                self.missing = self.length;
                longest = longest.max(self.length);
            }
            let count = piece.len().min(self.missing);
            (self.missing, piece) = (self.missing - count, &piece[count..]);
            if self.missing == 0 {
                self.prefix_received = 0;
                self.messages += 1;
            }
        }
        Ok(longest)
    }
}

#[derive(Debug)]
struct Timer {
    /// When the body is late; long messages get more time.
    due: Instant,
    /// When the last piece arrived.
    last_received: Instant,
    sleep: Pin<Box<Sleep>>,
}

/// The body of a request, checked by the gate.
pub struct RequestBody<B> {
    inner: B,
    /// The call that reserves bytes; `None` for health calls, which have other limits.
    call: Option<Arc<Call>>,
    streams: bool,
    message_max: usize,
    framing: Framing,
    /// A piece that has arrived, and whose message waits for a reservation of bytes.
    pending_frame: Option<Frame<Bytes>>,
    /// The future that waits for this reservation.
    reserving: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The deadline of the body; set when a poll first has to wait.
    timer: Option<Timer>,
    ended: bool,
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
            reserving: None,
            timer: None,
            ended: false,
        }
    }

    pub(crate) fn of_call(inner: B, call: Arc<Call>, streams: bool) -> Self {
        Self::new(inner, Some(call), streams, MESSAGE_BYTES_MAX)
    }

    pub(crate) fn of_health(inner: B) -> Self {
        Self::new(inner, None, false, health::MESSAGE_BYTES_MAX)
    }

    /// Handles a piece of the body. Returns the piece, or keeps it as `pending_frame` if the bytes
    /// of its message cannot be reserved now.
    fn handle_frame(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, (Kind, Status)> {
        let Some(data) = frame.data_ref() else { return Ok(Some(frame)) };
        let longest = self
            .framing
            .add_piece(data, self.streams, self.message_max)
            .map_err(|status| (Kind::Body, status))?;
        if self.streams && self.framing.prefix_received == 0 {
            // No deadline applies until the next message begins.
            self.timer = None;
        }
        if let Some(timer) = &mut self.timer {
            timer.last_received = Instant::now();
        }
        if let Some(call) = self.call.as_ref().filter(|_| longest > FREE_BYTES)
            && !call.reserve(longest)
        {
            self.reserving = Some(Box::pin(call.clone().wait_and_reserve(longest)));
            self.pending_frame = Some(frame);
            return Ok(None);
        }
        Ok(Some(frame))
    }

    /// Is ready, with the reason, when the body is late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<(Kind, Status)> {
        let Some(call) = &self.call else { return Poll::Pending };
        let must_send = !self.streams || self.framing.messages == 0 || self.framing.prefix_received > 0;
        if !must_send {
            return Poll::Pending;
        }
        let more = Duration::from_secs((self.framing.length >> 20) as u64);
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            Timer {
                due: now + BODY_TIMEOUT,
                last_received: now,
                sleep: Box::pin(sleep_until(now + STALL_TIMEOUT)),
            }
        });
        loop {
            ready!(timer.sleep.as_mut().poll(context));
            let now = Instant::now();
            if now >= timer.due + more {
                if self.reserving.is_some() {
                    return Poll::Ready((Kind::Bytes, call.no_bytes_error()));
                }
                let within = (BODY_TIMEOUT + more).as_secs();
                let why =
                    format!("the request was incomplete after {within} s: check the network, then retry");
                return Poll::Ready((Kind::Body, Status::deadline_exceeded(why)));
            }
            if self.reserving.is_none() && now >= timer.last_received + STALL_TIMEOUT && call.blocks_others()
            {
                let why = "no data of the request arrived for 1 s, and other requests wait for its memory: try again later";
                return Poll::Ready((Kind::Body, Status::unavailable(why)));
            }
            timer.sleep.as_mut().reset((timer.due + more).min(now + STALL_TIMEOUT));
        }
    }

    /// Ends the body with an error: nothing more is read, and its resources are released.
    fn fail(&mut self, (kind, status): (Kind, Status)) -> Status {
        self.ended = true;
        (self.pending_frame, self.reserving, self.timer) = (None, None, None);
        if let Some(call) = &self.call {
            if kind == Kind::Body {
                call.refuse_late_body(kind, &status);
            } else {
                call.log_refusal(kind, &status);
            }
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
        if this.ended {
            return Poll::Ready(None);
        }
        if this.streams && this.framing.prefix_received == 0 && this.reserving.is_none() {
            // The service has consumed all messages so far, so the stream releases their bytes.
            this.call.iter().for_each(|call| call.release());
        }
        loop {
            if let Some(reserving) = &mut this.reserving {
                if reserving.as_mut().poll(context).is_ready() {
                    this.reserving = None;
                    return Poll::Ready(this.pending_frame.take().map(Ok));
                }
            } else {
                match Pin::new(&mut this.inner).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => match this.handle_frame(frame) {
                        Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                        Ok(None) => continue,
                        Err(why) => return Poll::Ready(Some(Err(this.fail(why).into()))),
                    },
                    Poll::Ready(end) => {
                        this.ended = true;
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
        self.ended || (self.pending_frame.is_none() && self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response, which holds the resources of its call.
pub struct ResponseBody<R> {
    inner: R,
    _call: Option<Arc<Call>>,
    slot: Option<HealthSlot>,
    ended: bool,
}

impl<R> ResponseBody<R> {
    pub(crate) fn new(inner: R, call: Option<Arc<Call>>, slot: Option<HealthSlot>) -> Self {
        Self { inner, _call: call, slot, ended: false }
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
        if this.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let Some(slot) = &mut this.slot else { return Poll::Pending };
        let status = ready!(slot.poll_end(context));
        this.ended = true;
        let mut trailers = HeaderMap::new();
        // This cannot fail, because the message contains only characters that a header may have.
        status.add_header(&mut trailers).ok();
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
