//! Tests of request bodies that are late, too long, or wait for memory.

use super::*;
use crate::{
    connection_limiter::ConnectionLimiter,
    identity::Role,
    incoming::Connection,
    limits::{
        CLIENT_BYTES_MAX, Class, DAEMON_BYTES_MAX, IDENTITY_BYTES_MAX, Limits,
        tests::{connection, identity},
    },
};
use proptest::prelude::*;
use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::mpsc;

/// A body that a test sends piece by piece.
struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

struct TestClient {
    requests: AtomicUsize,
    limits: Arc<Limits>,
    connection_limiter: Arc<ConnectionLimiter>,
}

impl TestClient {
    fn new() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            limits: Arc::default(),
            connection_limiter: ConnectionLimiter::new(9),
        }
    }

    /// Starts a request of a new user.
    fn request(&self, streams: bool) -> (mpsc::UnboundedSender<Bytes>, RequestBody<Pieces>, Arc<Connection>) {
        let name = format!("user{}", self.requests.fetch_add(1, Relaxed));
        self.request_of(Class::Client, &name, streams)
    }

    fn request_of(
        &self,
        class: Class,
        name: &str,
        streams: bool,
    ) -> (mpsc::UnboundedSender<Bytes>, RequestBody<Pieces>, Arc<Connection>) {
        let connection = connection(&self.connection_limiter);
        let role = if class == Class::Daemon { Role::TaskTracker } else { Role::User };
        let who = identity(Some(role), name);
        let call = self.limits.begin_call(class, "/m", who, Some(connection.clone())).unwrap();
        let (sender, pieces) = mpsc::unbounded_channel();
        (sender, RequestBody::of_call(Pieces(pieces), Arc::new(call), streams), connection)
    }
}

/// Returns the prefix of a message of `length` bytes, and its first `sent` bytes.
fn message(length: usize, sent: usize) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend((length as u32).to_be_bytes());
    bytes.resize(PREFIX_BYTES + sent, 7);
    bytes.into()
}

/// Waits for the next piece of a body, and returns its length.
async fn next<B>(body: &mut RequestBody<B>) -> Option<Result<usize, Status>>
where
    B: Body<Data = Bytes, Error = BoxError> + Unpin,
{
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    Some(frame.map(|frame| frame.data_ref().unwrap().len()).map_err(Status::from_error))
}

#[tokio::test]
async fn incomplete_body_fails_after_the_timeout() {
    let (sender, mut body, _) = TestClient::new().request(false);
    sender.send(message(10, 9)).unwrap();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), PREFIX_BYTES + 9);
    let begin = Instant::now();
    let status = next(&mut body).await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    assert!(begin.elapsed() >= BODY_TIMEOUT, "{:?}", begin.elapsed());
    assert!(next(&mut body).await.is_none());
}

#[tokio::test]
async fn connection_whose_bodies_are_often_late_is_closed() {
    let sender = TestClient::new();
    let (_sender, body, connection) = sender.request(false);
    let call = body.call.clone().unwrap();
    for _ in 0..15 {
        call.refuse_late_body(Kind::Body, &Status::deadline_exceeded("late"));
        assert!(!connection.is_ended());
    }
    call.refuse_late_body(Kind::Body, &Status::deadline_exceeded("late"));
    assert!(connection.is_ended());
}

#[tokio::test]
async fn complete_message_without_the_end_of_the_body_fails() {
    let (sender, mut body, _) = TestClient::new().request(false);
    sender.send(message(10, 10)).unwrap();
    next(&mut body).await.unwrap().unwrap();
    assert!(next(&mut body).await.unwrap().is_err());
}

#[tokio::test]
async fn stream_may_be_silent_between_messages_but_not_before_or_within() {
    let (sender, mut body, _) = TestClient::new().request(true);
    sender.send(message(10, 10)).unwrap();
    next(&mut body).await.unwrap().unwrap();
    assert!(tokio::time::timeout(2 * BODY_TIMEOUT, next(&mut body)).await.is_err());
    sender.send(message(10, 5)).unwrap();
    next(&mut body).await.unwrap().unwrap();
    assert!(next(&mut body).await.unwrap().is_err(), "the stream stopped within a message");
    let (_sender, mut body, _) = TestClient::new().request(true);
    assert!(next(&mut body).await.unwrap().is_err(), "there was no first message");
}

#[tokio::test]
async fn long_message_waits_until_other_requests_release_their_bytes() {
    let sender = TestClient::new();
    let half = CLIENT_BYTES_MAX / 2;
    let mut open_requests = Vec::new();
    for _ in 0..2 {
        let (pieces, mut body, _) = sender.request(false);
        pieces.send(message(half, half)).unwrap();
        drop(pieces);
        assert!(next(&mut body).await.unwrap().is_ok());
        assert!(next(&mut body).await.is_none());
        open_requests.push(body);
    }
    let (pieces, mut late, _) = sender.request(false);
    pieces.send(message(half, half)).unwrap();
    assert!(tokio::time::timeout(STALL_TIMEOUT / 2, next(&mut late)).await.is_err());
    // A short message needs no reservation, and does not wait.
    let (short, mut quick, _) = sender.request(false);
    short.send(message(FREE_BYTES, FREE_BYTES)).unwrap();
    assert!(next(&mut quick).await.unwrap().is_ok());
    open_requests.pop();
    assert!(next(&mut late).await.unwrap().is_ok());
}

#[tokio::test]
async fn stalled_body_releases_its_bytes_if_others_wait() {
    let sender = TestClient::new();
    let half = CLIENT_BYTES_MAX / 2;
    let (first, mut stalled, _) = sender.request(false);
    first.send(message(half, 1)).unwrap();
    assert!(next(&mut stalled).await.unwrap().is_ok());
    // No other request waits, so the body may take its full time.
    assert!(tokio::time::timeout(2 * STALL_TIMEOUT, next(&mut stalled)).await.is_err());
    let (other, mut full, _) = sender.request(false);
    other.send(message(half, 1)).unwrap();
    assert!(next(&mut full).await.unwrap().is_ok());
    let (third, mut waits, _) = sender.request(false);
    third.send(message(half, half)).unwrap();
    let (ended, served) = tokio::join!(
        async {
            let ended = next(&mut stalled).await.unwrap();
            drop(stalled);
            ended
        },
        next(&mut waits)
    );
    assert!(ended.unwrap_err().message().contains("other requests wait"));
    assert!(served.unwrap().is_ok());
}

#[tokio::test]
async fn body_without_memory_fails_with_the_reason() {
    let sender = TestClient::new();
    let mut whole = Vec::new();
    for _ in 0..2 {
        let (pieces, mut body, _) = sender.request(false);
        pieces.send(message(CLIENT_BYTES_MAX / 2, 0)).unwrap();
        drop(pieces);
        next(&mut body).await.unwrap().unwrap();
        whole.push(body);
    }
    let (pieces, mut body, _) = sender.request(false);
    pieces.send(message(FREE_BYTES + 1, 0)).unwrap();
    let status = next(&mut body).await.unwrap().unwrap_err();
    assert!(
        status.message().starts_with("the 16 MiB that this server has for requests of clients"),
        "{status}"
    );
}

#[tokio::test]
async fn stream_releases_the_bytes_of_a_consumed_message() {
    let sender = TestClient::new();
    let part = DAEMON_BYTES_MAX / 8;
    let mut trackers = Vec::new();
    for _ in 0..8 {
        let (pieces, mut body, _) = sender.request_of(Class::Daemon, "tasktracker", true);
        pieces.send(message(part, part)).unwrap();
        assert!(next(&mut body).await.unwrap().is_ok());
        trackers.push((pieces, body));
    }
    // The budget is used up: a ninth tracker waits.
    let (pieces, mut ninth, _) = sender.request_of(Class::Daemon, "tasktracker", true);
    pieces.send(message(part, part)).unwrap();
    assert!(tokio::time::timeout(STALL_TIMEOUT / 2, next(&mut ninth)).await.is_err());
    // The service asks one stream for its next message, which is short.
    let (first, body) = &mut trackers[0];
    first.send(message(10, 10)).unwrap();
    assert!(next(body).await.unwrap().is_ok());
    assert!(next(&mut ninth).await.unwrap().is_ok());
    // The bytes are also released if the stream has no next message.
    let (pieces, mut tenth, _) = sender.request_of(Class::Daemon, "tasktracker", true);
    pieces.send(message(part, part)).unwrap();
    let (_, silent) = &mut trackers[1];
    assert!(tokio::time::timeout(STALL_TIMEOUT / 2, next(silent)).await.is_err());
    assert!(next(&mut tenth).await.unwrap().is_ok());
    drop((trackers, ninth, tenth));
    assert!(sender.limits.is_unused());
}

#[tokio::test]
async fn one_identity_gets_at_most_half_of_the_bytes() {
    let sender = TestClient::new();
    let part = IDENTITY_BYTES_MAX / 4;
    let mut open_requests = Vec::new();
    for _ in 0..4 {
        let (pieces, mut body, _) = sender.request_of(Class::Client, "ann", false);
        pieces.send(message(part, 1)).unwrap();
        assert!(next(&mut body).await.unwrap().is_ok());
        open_requests.push((pieces, body));
    }
    let (more, mut fifth, _) = sender.request_of(Class::Client, "ann", false);
    more.send(message(part, part)).unwrap();
    assert!(
        tokio::time::timeout(STALL_TIMEOUT / 2, next(&mut fifth)).await.is_err(),
        "the share of ann is used up"
    );
    // Other users are not affected, even if their requests are slow: ann waits for her own share,
    // not for their bytes.
    let (pieces, mut other, _) = sender.request_of(Class::Client, "bob", false);
    pieces.send(message(IDENTITY_BYTES_MAX, 1)).unwrap();
    assert!(next(&mut other).await.unwrap().is_ok());
    assert!(!other.call.as_ref().unwrap().blocks_others());
    assert!(open_requests[0].1.call.as_ref().unwrap().blocks_others());
    let status = next(&mut fifth).await.unwrap().unwrap_err();
    assert!(status.message().contains("ann") && status.message().contains("8 MiB"), "{status}");
    drop((open_requests, fifth, other));
    // A message longer than the share is accepted if it is the only one.
    let (pieces, mut long, _) = sender.request_of(Class::Client, "ann", false);
    pieces.send(message(MESSAGE_BYTES_MAX, 1)).unwrap();
    assert!(next(&mut long).await.unwrap().is_ok());
    drop(long);
    assert!(sender.limits.is_unused());
}

#[tokio::test]
async fn request_is_one_message_of_limited_length() {
    let (pieces, mut body, _) = TestClient::new().request(false);
    pieces.send(message(MESSAGE_BYTES_MAX + 1, 0)).unwrap();
    assert_eq!(next(&mut body).await.unwrap().unwrap_err().code(), tonic::Code::OutOfRange);
    let (pieces, mut body, _) = TestClient::new().request(false);
    pieces.send(message(1, 1)).unwrap();
    pieces.send(message(1, 1)).unwrap();
    next(&mut body).await.unwrap().unwrap();
    assert_eq!(next(&mut body).await.unwrap().unwrap_err().code(), tonic::Code::InvalidArgument);
    let (pieces, receiver) = mpsc::unbounded_channel();
    let mut body = RequestBody::of_health(Pieces(receiver));
    pieces.send(message(health::MESSAGE_BYTES_MAX + 1, 0)).unwrap();
    assert_eq!(next(&mut body).await.unwrap().unwrap_err().code(), tonic::Code::OutOfRange);
}

proptest! {
    /// Checks that the same messages are found, however the bytes are divided into pieces.
    #[test]
    fn framing_does_not_depend_on_pieces(
        lengths in prop::collection::vec(0..300_usize, 1..8),
        cuts in prop::collection::vec(1..40_usize, 1..80),
    ) {
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| message(*length, *length)).collect();
        let (mut framing, mut at, mut cuts) = (Framing::default(), 0, cuts.into_iter().cycle());
        let mut longest = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + cuts.next().unwrap());
            longest = longest.max(framing.add_piece(&bytes[at..end], true, 1000).unwrap());
            at = end;
        }
        prop_assert_eq!(framing.messages, lengths.len() as u64);
        prop_assert_eq!((framing.prefix_received, framing.missing), (0, 0));
        prop_assert_eq!(longest, lengths.into_iter().max().unwrap());
    }
}
