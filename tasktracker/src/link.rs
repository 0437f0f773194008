//! The connection to the JobTracker: one gRPC stream, which is opened again whenever it ends.
//!
//! This module passes messages on without interpreting them. The delays between attempts to connect
//! grow and are partly random, so that a thousand trackers do not reconnect at the same time.

use crate::error::TrackerError;
use proto::mr::{FromTracker, ToTracker, tracker_link_client::TrackerLinkClient};
use security::{Credentials, Endpoint, Role};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, metadata::MetadataValue};

const RETRY_DELAY_FIRST: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// Maximum number of messages that wait to be sent; the agent needs only a few.
const OUTGOING_MESSAGES_MAX: usize = 16;
/// Maximum size of a message. It is large because one message may contain many map events of a
/// large job.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// An event of the connection.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The connection is up. Messages to the JobTracker are sent over this channel; the first must
    /// be a registration.
    Up(mpsc::Sender<FromTracker>),
    /// A message from the JobTracker.
    Message(ToTracker),
    /// The connection is down.
    Down,
}

/// The connection to the JobTracker.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    credentials: Credentials,
    jobtracker: String,
    events: mpsc::Sender<LinkEvent>,
}

impl Link {
    /// Prepares a connection. [`Self::run`] opens it.
    pub(crate) fn new(
        jobtracker: &str,
        credentials: Credentials,
        events: mpsc::Sender<LinkEvent>,
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
        Ok(Self { endpoint, credentials, jobtracker: jobtracker.into(), events })
    }

    /// Connects, and connects again whenever the connection ends, until the receiver of events is
    /// dropped.
    pub(crate) async fn run(self) {
        let mut delay = RETRY_DELAY_FIRST;
        while !self.events.is_closed() {
            match self.attach().await {
                Ok(received) => {
                    if received {
                        delay = RETRY_DELAY_FIRST;
                    }
                    tracing::info!(jobtracker = self.jobtracker, "the connection to the jobtracker ended");
                }
                Err(why) => {
                    tracing::warn!(jobtracker = self.jobtracker, why, "cannot connect to the jobtracker");
                }
            }
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }

    /// Opens one stream and waits until it ends. Returns whether a message was received.
    async fn attach(&self) -> Result<bool, String> {
        let channel = self.endpoint.connect().await.map_err(|error| security::connection_failure(&error))?;
        let (out, outgoing) = mpsc::channel(OUTGOING_MESSAGES_MAX);
        // Report the connection before the call, because the JobTracker answers the call only after
        // it has received the registration.
        self.events.send(LinkEvent::Up(out)).await.map_err(|_| "the tracker is stopping".to_string())?;
        let mut request = Request::new(ReceiverStream::new(outgoing));
        self.credentials.sign(request.metadata_mut(), &MetadataValue::from_static("tasktracker"));
        let mut client = TrackerLinkClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let end = self.receive_messages(client.attach(request).await).await;
        self.events.send(LinkEvent::Down).await.ok();
        end
    }

    /// Passes on all messages of a stream. Returns whether there was any.
    async fn receive_messages(
        &self,
        answer: Result<tonic::Response<tonic::Streaming<ToTracker>>, tonic::Status>,
    ) -> Result<bool, String> {
        let mut incoming = answer.map_err(|status| security::call_failure(&status))?.into_inner();
        let mut received = false;
        while let Some(message) = incoming.next().await {
            match message {
                Ok(message) => {
                    received = true;
                    if self.events.send(LinkEvent::Message(message)).await.is_err() {
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
