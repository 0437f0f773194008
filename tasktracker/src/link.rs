//! The line to the JobTracker: one stream for as long as it holds, then another.
//!
//! Carries messages and knows nothing of them. Pauses between tries grow, with jitter, so that a thousand
//! trackers do not come back in one instant.

use crate::error::TrackerError;
use proto::mr::{FromTracker, ToTracker, tracker_link_client::TrackerLinkClient};
use security::{Credentials, Endpoint, Role};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, metadata::MetadataValue};

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Messages on their way out; the agent has at most a few.
const PREFETCH_DISTANCE: usize = 16;
/// The map events of a large job come in one message.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// What happens on the line.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It is up; this is the way out. A registration must come first.
    Up(mpsc::Sender<FromTracker>),
    /// A message.
    Message(ToTracker),
    /// It is down.
    Down,
}

/// The line.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    credentials: Credentials,
    jobtracker: String,
    link_events: mpsc::Sender<LinkEvent>,
}

impl Link {
    /// Nothing is sent before `run`.
    pub(crate) fn new(
        jobtracker: &str,
        credentials: Credentials,
        link_events: mpsc::Sender<LinkEvent>,
    ) -> Result<Self, TrackerError> {
        let malformed = || TrackerError::JobTracker(jobtracker.into());
        if jobtracker.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(malformed());
        }
        let endpoint =
            credentials.endpoint(jobtracker, Role::JobTracker).ok_or_else(malformed)?.with(|endpoint| {
                endpoint
                    .connect_timeout(Duration::from_secs(2))
                    .http2_keep_alive_interval(Duration::from_secs(5))
                    .keep_alive_timeout(Duration::from_secs(5))
                    .keep_alive_while_idle(true)
                    .tcp_nodelay(true)
            });
        Ok(Self { endpoint, credentials, jobtracker: jobtracker.into(), link_events })
    }

    /// Runs until nobody listens any more.
    pub(crate) async fn run(self) {
        let mut pause = RETRY_FIRST;
        while !self.link_events.is_closed() {
            match self.attach().await {
                Ok(received) => {
                    if received {
                        pause = RETRY_FIRST;
                    }
                    tracing::info!(jobtracker = self.jobtracker, "the line to the jobtracker ended");
                }
                Err(why) => tracing::warn!(jobtracker = self.jobtracker, why, "no line to the jobtracker"),
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// One stream, from its beginning to its end; whether anything was heard on it.
    async fn attach(&self) -> Result<bool, String> {
        let channel = self.endpoint.connect().await.map_err(|error| security::why(&error))?;
        let (out, outgoing) = mpsc::channel(PREFETCH_DISTANCE);
        // The registration must be on its way before the JobTracker answers the call.
        self.link_events.send(LinkEvent::Up(out)).await.map_err(|_| "nobody listens".to_string())?;
        let mut request = Request::new(ReceiverStream::new(outgoing));
        self.credentials.sign(request.metadata_mut(), &MetadataValue::from_static("tasktracker"));
        let mut client = TrackerLinkClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let end = self.listen(client.attach(request).await).await;
        self.link_events.send(LinkEvent::Down).await.ok();
        end
    }

    async fn listen(
        &self,
        answer: Result<tonic::Response<tonic::Streaming<ToTracker>>, tonic::Status>,
    ) -> Result<bool, String> {
        let mut incoming = answer.map_err(|status| security::call_failure(&status))?.into_inner();
        let mut received = false;
        while let Some(message) = incoming.next().await {
            match message {
                Ok(message) => {
                    received = true;
                    if self.link_events.send(LinkEvent::Message(message)).await.is_err() {
                        break;
                    }
                }
                Err(status) => {
                    tracing::debug!(why = status.message(), "the stream broke");
                    break;
                }
            }
        }
        Ok(received)
    }
}
