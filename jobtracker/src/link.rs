//! Serves the message streams of trackers. Each tracker has one stream for as long as it runs.
//!
//! The first message must be a registration. When the stream ends, the tracker is suspect at once.
//! The tracker then opens a new stream and registers again. A member of a group ends all streams when
//! it does not lead any more.

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

/// Maximum number of messages that may wait for a tracker to read them. If there are more, its
/// stream is closed.
const UNREAD_MESSAGES_MAX: usize = 1024;

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
        self.driver.check_leader()?;
        let (sender, receiver) = mpsc::channel(UNREAD_MESSAGES_MAX);
        tokio::spawn(serve_tracker(self.driver.clone(), request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver).map(Ok)))
    }
}

/// The tracker that has registered on a stream.
#[derive(Clone, Copy)]
struct AttachedTracker {
    tracker: TrackerId,
    incarnation: Incarnation,
    /// Number of the stream. A tracker that registers again gets a new one.
    generation: u64,
}

/// Handles the messages of one tracker until its stream ends.
async fn serve_tracker(
    driver: Arc<Driver>,
    mut messages: Streaming<FromTracker>,
    sender: mpsc::Sender<ToTracker>,
) {
    let mut attached: Option<AttachedTracker> = None;
    let Some(leadership) = driver.leadership() else { return };
    loop {
        let message = tokio::select! {
            // Another member of the group leads, which the tracker must find.
            () = driver.ended(leadership) => None,
            message = messages.next() => message,
            // The tracker is gone, or it has attached with a new stream and this one was closed.
            () = sender.closed() => None,
        };
        let Some(Ok(message)) = message else { break };
        // Nothing is read from the stream during this wait, so the tracker waits too.
        driver.wait_for_backlog().await;
        let accepted = match wire::tracker_message(message, attached.map(|at| (at.tracker, at.incarnation))) {
            Ok(TrackerMessage::Registration(registration)) => {
                attached = driver.attach(registration, &sender).map(|(tracker, incarnation, generation)| {
                    AttachedTracker { tracker, incarnation, generation }
                });
                attached.is_some()
            }
            Ok(TrackerMessage::Heartbeat(heartbeat)) => {
                attached.is_some_and(|at| driver.heartbeat(at.generation, heartbeat))
            }
            Err(why) => {
                tracing::warn!(why, "refused the message of a tracker");
                // A tracker that does not read this sees that its stream ends.
                let _ = sender.try_send(wire::refused(why));
                false
            }
        };
        if !accepted {
            break;
        }
    }
    if let Some(AttachedTracker { tracker, generation, .. }) = attached {
        driver.detach(tracker, generation);
    }
}
