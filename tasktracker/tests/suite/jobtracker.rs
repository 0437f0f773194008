//! A fake JobTracker that uses real gRPC. It records messages, and sends the orders that a test
//! requests.

use dfs_client::error::Error;
use proto::master::{
    ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipReply, LeadershipRequest,
    master_server::{Master, MasterServer},
};
use proto::mr::{
    AttemptReport, FromTracker, Heartbeat, Order, Orders, Progress, RegisterTracker, Registered, ToTracker,
    attempt_report::Status as Report,
    from_tracker, order, to_tracker,
    tracker_link_server::{TrackerLink, TrackerLinkServer},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::{Notify, mpsc};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

type Out = mpsc::UnboundedSender<Result<ToTracker, Status>>;

/// The received messages, and the state of the fake JobTracker.
#[derive(Default)]
pub(crate) struct Received {
    /// Channel to the tracker.
    out: Option<Out>,
    /// Orders that the tracker has not acknowledged.
    unacknowledged: Vec<Order>,
    /// Number of the newest order.
    newest_order: u64,
    /// Heartbeat interval that is sent in replies to registrations; 50 ms if this is 0.
    pub(crate) heartbeat_ms: u64,
    /// The epoch in which it leads; 1 if this is 0.
    pub(crate) epoch: u64,
    /// Whether another JobTracker leads.
    pub(crate) follows: bool,
    /// `lost_after` in replies to registrations; 600 s if this is 0.
    pub(crate) lost_after_ms: u64,
    /// Whether to ignore heartbeats.
    pub(crate) mute: bool,
    /// If set, registrations are refused with this message.
    pub(crate) refusal: Option<String>,
    pub(crate) registrations: Vec<RegisterTracker>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) running: BTreeMap<String, Progress>,
    /// All reports of ended attempts, in the order of their arrival.
    pub(crate) ended: Vec<(String, Report)>,
}

#[derive(Clone, Default)]
pub(crate) struct JobTracker {
    received: Arc<Mutex<Received>>,
    changed: Arc<Notify>,
}

impl JobTracker {
    /// Starts the server; also returns its address.
    pub(crate) async fn start() -> (Self, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let jobtracker = Self::default();
        // Use the message limit of the real JobTracker.
        let service = TrackerLinkServer::new(jobtracker.clone()).max_decoding_message_size(8 << 20);
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .add_service(MasterServer::new(jobtracker.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        (jobtracker, addr)
    }

    /// Waits until `look` returns a value for the received messages. Panics if this takes too long.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&mut Received) -> Option<T>) -> T {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = look(&mut self.received.lock().unwrap()) {
                    return found;
                }
                changed.await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(40), wait).await.ok();
        found.unwrap_or_else(|| {
            panic!(
                "timeout while waiting for {what}; ended: {:?}",
                self.with(|received| received.ended.clone())
            )
        })
    }

    /// Waits until an attempt has ended, and returns its report.
    pub(crate) async fn end_of(&self, attempt: &str) -> Report {
        let find = |received: &mut Received| {
            let found = received.ended.iter().find(|(id, _)| id == attempt);
            found.map(|(_, report)| report.clone())
        };
        self.until(&format!("the end of {attempt}"), find).await
    }

    /// Waits until an attempt has ended, which must have failed. Returns its error.
    pub(crate) async fn failure_of(&self, attempt: &str) -> String {
        match self.end_of(attempt).await {
            Report::Failed(text) => text,
            other => panic!("{attempt} did not fail: {other:?}"),
        }
    }

    /// Waits until an attempt has reported the progress that `fake_task` sends.
    pub(crate) async fn progress_of(&self, attempt: &str) {
        let has_progress = |received: &mut Received| {
            received.running.get(attempt).filter(|progress| (progress.done - 0.5).abs() < 1e-9).map(drop)
        };
        self.until(&format!("progress of {attempt}"), has_progress).await;
    }

    /// Sends an order, together with all orders that are not yet acknowledged.
    pub(crate) fn order(&self, kind: order::Kind) {
        let mut received = self.received.lock().unwrap();
        received.newest_order += 1;
        let order = Order { number: received.newest_order, kind: Some(kind) };
        received.unacknowledged.push(order);
        // Send the orders twice, because a repeated order must have no effect.
        received.send_orders(0);
        received.send_orders(0);
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Received) -> T) -> T {
        act(&mut self.received.lock().unwrap())
    }

    fn handle(&self, message: FromTracker, out: &Out) {
        let mut received = self.received.lock().unwrap();
        match message.kind.unwrap() {
            from_tracker::Kind::Register(register) => {
                received.out = Some(out.clone());
                (received.newest_order, received.unacknowledged) = (0, Vec::new());
                received.record_reports(register.attempts.clone());
                received.registrations.push(register);
                let heartbeat_ms = if received.heartbeat_ms == 0 { 50 } else { received.heartbeat_ms };
                let kind = match received.refusal.clone() {
                    Some(text) => to_tracker::Kind::Refused(text),
                    None => to_tracker::Kind::Registered(Registered {
                        tracker: 0,
                        epoch: received.epoch.max(1),
                        heartbeat_ms,
                        incarnation: 1,
                        lost_after_ms: if received.lost_after_ms == 0 {
                            600_000
                        } else {
                            received.lost_after_ms
                        },
                    }),
                };
                out.send(Ok(ToTracker { kind: Some(kind) })).ok();
            }
            from_tracker::Kind::Heartbeat(heartbeat) => {
                let (seq, acked) = (heartbeat.seq, heartbeat.acked);
                received.unacknowledged.retain(|order| order.number > acked);
                if !received.mute {
                    received.record_reports(heartbeat.attempts.clone());
                    received.send_orders(seq);
                }
                received.heartbeats.push(heartbeat);
            }
        }
        drop(received);
        self.changed.notify_waiters();
    }
}

impl Received {
    fn send_orders(&self, answers: u64) {
        let orders = Orders { answers, orders: self.unacknowledged.clone() };
        let message = ToTracker { kind: Some(to_tracker::Kind::Orders(orders)) };
        if let Some(out) = &self.out {
            out.send(Ok(message)).ok();
        }
    }

    fn record_reports(&mut self, reports: Vec<AttemptReport>) {
        for AttemptReport { attempt, status } in reports {
            match status.unwrap() {
                Report::Running(progress) => drop(self.running.insert(attempt, progress)),
                ended => self.ended.push((attempt, ended)),
            }
        }
    }

    /// Closes the connection to the tracker with an error.
    pub(crate) fn disconnect(&mut self) {
        if let Some(out) = self.out.take() {
            out.send(Err(Status::unavailable("broken on purpose"))).ok();
        }
    }
}

#[tonic::async_trait]
impl TrackerLink for JobTracker {
    type AttachStream = UnboundedReceiverStream<Result<ToTracker, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<FromTracker>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        if self.with(|received| received.follows) {
            return Err(Error::not_leader(security::Role::JobTracker, None).into());
        }
        let (out, stream) = mpsc::unbounded_channel();
        let (jobtracker, mut incoming) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                jobtracker.handle(message, &out);
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl Master for JobTracker {
    async fn leadership(&self, _: Request<LeadershipRequest>) -> Result<Response<LeadershipReply>, Status> {
        let (leads, epoch) = self.with(|received| (!received.follows, received.epoch.max(1)));
        Ok(Response::new(LeadershipReply { leads, epoch: if leads { epoch } else { 0 } }))
    }

    async fn group(&self, _: Request<GroupRequest>) -> Result<Response<GroupReply>, Status> {
        Err(Status::unimplemented("not used by the tests"))
    }

    async fn change_group(
        &self,
        _: Request<ChangeGroupRequest>,
    ) -> Result<Response<ChangeGroupReply>, Status> {
        Err(Status::unimplemented("not used by the tests"))
    }
}
