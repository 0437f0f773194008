//! Simulated trackers that only send heartbeats and report every task as succeeded, to measure the
//! JobTracker alone. Uses wire types directly, like the other load generators.

use crate::bench::wire::connect;
use anyhow::{Context, Result, bail};
use proto::mr::{self as pb, tracker_link_client::TrackerLinkClient};
use security::{Credentials, Role};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, metadata::MetadataValue};

/// A simulated tracker that is registered with the JobTracker.
pub(super) struct FakeTracker {
    messages: mpsc::Sender<pb::FromTracker>,
    stream: Streaming<pb::ToTracker>,
    /// The number of heartbeats sent.
    seq: u64,
    /// The number of the last order received.
    acked: u64,
}

impl FakeTracker {
    /// Registers a tracker with this number of map slots.
    pub(super) async fn attach(
        jobtracker: &str,
        credentials: &Credentials,
        name: &str,
        map_slots: u32,
    ) -> Result<Self> {
        let (messages, receiver) = mpsc::channel(16);
        let register = pb::RegisterTracker {
            name: name.into(),
            incarnation: 1,
            host: name.into(),
            rack: "rack1".into(),
            shuffle_addr: "127.0.0.1:1".into(),
            logs_addr: "127.0.0.1:1".into(),
            map_slots,
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: proto::TRACKER_PROTOCOL,
            ..pb::RegisterTracker::default()
        };
        let kind = Some(pb::from_tracker::Kind::Register(register));
        messages.send(pb::FromTracker { kind }).await.context("the connection is closed")?;
        let mut link = TrackerLinkClient::new(connect(jobtracker, credentials, Role::JobTracker).await?);
        let mut request = Request::new(ReceiverStream::new(receiver));
        credentials.sign(request.metadata_mut(), &MetadataValue::from_static("tasktracker"));
        let mut stream = link.attach(request).await.context("attach")?.into_inner();
        let first = stream.message().await.context("attach")?.and_then(|message| message.kind);
        match first {
            Some(pb::to_tracker::Kind::Registered(_)) => Ok(Self { messages, stream, seq: 0, acked: 0 }),
            other => bail!("{name} was not registered: {other:?}"),
        }
    }

    async fn send(&mut self, attempts: Vec<pb::AttemptReport>) -> Result<()> {
        self.seq += 1;
        let heartbeat =
            pb::Heartbeat { seq: self.seq, acked: self.acked, attempts, fetch_failures: Vec::new() };
        let kind = Some(pb::from_tracker::Kind::Heartbeat(heartbeat));
        self.messages.send(pb::FromTracker { kind }).await.context("the connection is closed")
    }

    /// Sends an empty heartbeat. Returns the time until the answer.
    pub(super) async fn heartbeat(&mut self) -> Result<Duration> {
        let since = Instant::now();
        self.send(Vec::new()).await?;
        loop {
            let message = self.stream.message().await.context("orders")?.and_then(|message| message.kind);
            let Some(pb::to_tracker::Kind::Orders(orders)) = message else {
                bail!("the jobtracker sent no orders: {message:?}")
            };
            self.acked = orders.orders.iter().map(|order| order.number).fold(self.acked, u64::max);
            if orders.answers >= self.seq {
                return Ok(since.elapsed());
            }
        }
    }

    /// Reports every launched attempt as succeeded, until the job has ended.
    pub(super) async fn serve(mut self) -> Result<()> {
        loop {
            let message = self.stream.message().await.context("orders")?.and_then(|message| message.kind);
            let Some(pb::to_tracker::Kind::Orders(orders)) = message else {
                bail!("the jobtracker sent no orders: {message:?}")
            };
            let mut attempts = Vec::new();
            let mut over = false;
            for order in orders.orders {
                self.acked = order.number;
                match order.kind {
                    Some(pb::order::Kind::Launch(pb::Launch { task: Some(task), .. })) => {
                        attempts.push(pb::AttemptReport {
                            attempt: task.attempt,
                            status: Some(pb::attempt_report::Status::Succeeded(pb::TaskResult::default())),
                        });
                    }
                    Some(pb::order::Kind::Clean(_)) => over = true,
                    _ => {}
                }
            }
            if over {
                return Ok(());
            }
            if attempts.is_empty() {
                continue;
            }
            self.send(attempts).await?;
        }
    }
}
