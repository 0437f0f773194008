//! Trackers: one stream each, for as long as the tracker lives.
//!
//! The first message must be a registration. When the stream ends, for whatever reason, the tracker is suspect at
//! once; it attaches again with a new stream and registers again.

use crate::{
    driver::Driver,
    wire::{self, FromTracker, ToTracker, TrackerMessage},
};
use mrcore::ids::{Incarnation, TrackerId};
use proto::mr::tracker_link_server::TrackerLink;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

pub use proto::TRACKER_PROTOCOL;

/// Messages that wait for a tracker to read. More, and it is cut off.
const MESSAGES_MAX: usize = 1024;

/// Serves trackers.
pub(crate) struct LinkService {
    pub(crate) driver: Arc<Driver>,
}

#[tonic::async_trait]
impl TrackerLink for LinkService {
    type AttachStream =
        tokio_stream::adapters::Map<ReceiverStream<ToTracker>, fn(ToTracker) -> Result<ToTracker, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<FromTracker>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        tokio::spawn(serve_tracker(self.driver.clone(), request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver).map(Ok)))
    }
}

/// Who is at the other end.
#[derive(Clone, Copy)]
struct Attached {
    tracker: TrackerId,
    incarnation: Incarnation,
    generation: u64,
}

/// Listens to one tracker until its stream ends.
async fn serve_tracker(
    driver: Arc<Driver>,
    mut message: Streaming<FromTracker>,
    sender: mpsc::Sender<ToTracker>,
) {
    let mut attached: Option<Attached> = None;
    loop {
        let word = tokio::select! {
            word = message.next() => word,
            // The tracker has gone, or has attached anew elsewhere and this stream was closed.
            () = sender.closed() => None,
        };
        let Some(Ok(word)) = word else { break };
        // While this waits, so does the tracker: nothing is taken from its stream.
        driver.room().await;
        let heard = match wire::tracker_message(word, attached.map(|at| (at.tracker, at.incarnation))) {
            Ok(TrackerMessage::Registration(registration)) => {
                attached = driver
                    .attach(registration, &sender)
                    .map(|(tracker, incarnation, generation)| Attached { tracker, incarnation, generation });
                attached.is_some()
            }
            Ok(TrackerMessage::Heartbeat(heartbeat)) => {
                attached.is_some_and(|at| driver.heartbeat(at.generation, heartbeat))
            }
            Err(why) => {
                tracing::warn!(why, "refused a tracker");
                // If it does not read, it learns from the end of its stream.
                let _ = sender.try_send(wire::refused(why));
                false
            }
        };
        if !heard {
            break;
        }
    }
    if let Some(Attached { tracker, generation, .. }) = attached {
        driver.detach(tracker, generation);
    }
}
