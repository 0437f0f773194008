//! The connection to the JobTracker: one gRPC stream, which is opened again whenever it ends.
//!
//! This module passes messages on; it reads only how often the JobTracker gets heartbeats. The delays
//! between attempts to connect grow and are partly random, so that a thousand trackers do not
//! reconnect at the same time.
//!
//! With several `JobTrackers`, the stream goes to the one that leads. The JobTracker answers every
//! heartbeat. If an answer is late, and also at intervals, the others are asked whether they lead in
//! a higher epoch: the tracker must find a new leader before it counts as lost.

use crate::error::TrackerError;
use daemon::MasterAddrs;
use dfs_client::masters::{Claim, ConnectError, Masters};
use proto::mr::{FromTracker, ToTracker, to_tracker, tracker_link_client::TrackerLinkClient};
use security::{Credentials, Role};
use std::{pin::pin, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};

const RETRY_DELAY_FIRST: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// A tracker asks the other `JobTrackers`, also if its own answers, this many times in
/// `lost_after`.
const CHECKS_BEFORE_LOST: u32 = 3;
/// The same interval before the JobTracker has accepted the registration.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum number of messages that wait to be sent; the agent needs only a few.
const OUTGOING_MESSAGES_MAX: usize = 16;
/// Maximum size of a message. It is large because one message may contain many map events of a
/// large job.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// An event of the connection.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The connection is up. Messages to the JobTracker at this address are sent over this channel;
    /// the first must be a registration.
    Up(mpsc::Sender<FromTracker>, String),
    /// A message from the JobTracker.
    Message(ToTracker),
    /// The connection is down.
    Down,
}

/// The connection to the JobTracker.
#[derive(Debug)]
pub(crate) struct Link {
    masters: Masters,
    credentials: Credentials,
    events: mpsc::Sender<LinkEvent>,
}

impl Link {
    /// Prepares a connection. [`Self::run`] opens it.
    pub(crate) fn new(
        jobtrackers: &MasterAddrs,
        credentials: Credentials,
        events: mpsc::Sender<LinkEvent>,
    ) -> Result<Self, TrackerError> {
        let has_no_port =
            |addr: &&String| addr.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
        if let Some(addr) = jobtrackers.iter().find(has_no_port) {
            return Err(TrackerError::JobTracker(addr.clone()));
        }
        let own = credentials.clone();
        let masters = Masters::new(Role::JobTracker, jobtrackers, own, user(), |endpoint| {
            endpoint
                .connect_timeout(Duration::from_secs(2))
                .http2_keep_alive_interval(Duration::from_secs(5))
                .keep_alive_timeout(Duration::from_secs(5))
                .keep_alive_while_idle(true)
                .tcp_nodelay(true)
        });
        Ok(Self { masters: masters.map_err(TrackerError::JobTracker)?, credentials, events })
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
                    tracing::info!(jobtracker = self.addr(), "the connection to the jobtracker ended");
                }
                Err(why) => {
                    tracing::warn!(jobtracker = self.addr(), why, "cannot connect to the jobtracker");
                }
            }
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }

    /// Returns the address of the JobTracker that leads, as far as this tracker knows.
    fn addr(&self) -> &str {
        self.masters.addr(self.masters.leader().at)
    }

    /// Opens one stream and waits until it ends. Returns whether a message was received.
    async fn attach(&self) -> Result<bool, String> {
        if let Err(ConnectError::NoLeader(tried) | ConnectError::Unreachable(tried)) =
            self.masters.find_leader(Duration::ZERO).await
        {
            return Err(format!("no JobTracker answers: {tried}"));
        }
        let leader = self.masters.leader();
        let endpoint = self.masters.endpoint(leader.at);
        let channel = endpoint.connect().await.map_err(|error| security::connection_failure(&error))?;
        let (out, outgoing) = mpsc::channel(OUTGOING_MESSAGES_MAX);
        // Report the connection before the call, because the JobTracker answers the call only after
        // it has received the registration.
        let up = LinkEvent::Up(out, self.masters.addr(leader.at).to_owned());
        self.events.send(up).await.map_err(|_| "the tracker is stopping".to_string())?;
        let mut request = Request::new(ReceiverStream::new(outgoing));
        self.credentials.sign(request.metadata_mut(), &user());
        let mut client = TrackerLinkClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let end = tokio::select! {
            answer = client.attach(request) => self.receive_messages(leader, answer).await,
            () = self.masters.newer_leader(leader) => Err("another JobTracker leads".into()),
        };
        self.events.send(LinkEvent::Down).await.ok();
        end
    }

    /// Passes on all messages of a stream until it ends or another JobTracker leads. Returns whether
    /// there was any.
    async fn receive_messages(
        &self,
        leader: Claim,
        answer: Result<tonic::Response<tonic::Streaming<ToTracker>>, tonic::Status>,
    ) -> Result<bool, String> {
        let mut incoming = answer.map_err(|status| security::call_failure(&status))?.into_inner();
        let mut received = false;
        let mut heartbeat = Duration::ZERO;
        let newer = |interval| self.masters.newer_leader_every(interval, leader);
        let mut checks = pin!(newer(CHECK_INTERVAL));
        loop {
            let late_answer = async {
                tokio::time::sleep(heartbeat).await;
                self.masters.newer_leader(leader).await;
            };
            let message = tokio::select! {
                biased;
                message = incoming.next() => message,
                () = late_answer => None,
                () = &mut checks => None,
            };
            match message {
                Some(Ok(message)) => {
                    received = true;
                    if let Some(to_tracker::Kind::Registered(registered)) = &message.kind {
                        heartbeat = Duration::from_millis(registered.heartbeat_ms);
                        let lost_after = Duration::from_millis(registered.lost_after_ms);
                        checks.set(newer(lost_after / CHECKS_BEFORE_LOST));
                    }
                    if self.events.send(LinkEvent::Message(message)).await.is_err() {
                        break;
                    }
                }
                Some(Err(status)) => {
                    tracing::debug!(why = status.message(), "the stream broke");
                    break;
                }
                None => break,
            }
        }
        Ok(received)
    }
}

/// Returns the name that a tracker claims.
fn user() -> MetadataValue<Ascii> {
    MetadataValue::from_static("tasktracker")
}
