//! Server-sent events. A stream sends a comment when it has been silent, so that a client and the
//! machines between notice a lost connection, and ends when the client has disconnected.

use axum::{
    body::Body,
    http::header::{self, HeaderValue},
    response::Response,
};
use serde::Serialize;
use std::{io, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// The longest silence of a stream.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
/// Number of events that wait for a client.
const QUEUED_EVENTS_MAX: usize = 16;

/// Sends events to a client.
#[derive(Clone)]
pub(super) struct Events(mpsc::Sender<String>);

impl Events {
    /// Sends an event. Returns false if the client has disconnected.
    pub(super) async fn send(&self, name: &str, data: &impl Serialize) -> bool {
        // Serialising plain data cannot fail, and JSON has no line ends.
        let data = serde_json::to_string(data).unwrap_or_default();
        self.0.send(format!("event: {name}\ndata: {data}\n\n")).await.is_ok()
    }

    /// Completes when the client has disconnected.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Returns an answer with the events that `produce` sends.
pub(super) fn answer<F>(produce: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
    let events = Events(events);
    let producing = produce(events.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = producing => {}
            () = events.closed() => {}
        }
    });
    let stream = ReceiverStream::new(receiver).timeout_repeating(tokio::time::interval(COMMENT_INTERVAL));
    let stream = stream.map(|event| Ok::<_, io::Error>(event.unwrap_or_else(|_| ": wait\n\n".into())));
    let mut answer = Response::new(Body::from_stream(stream));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}
