//! A NameNode, a DataNode and a JobTracker in this process, and a tracker that the test controls.

use crate::run::Daemon;
use daemon::{Bytes, Period, config::Config, lifecycle::DaemonArgs, logging::LogFormat};
use dfs::datanode::DataNode;
use dfs_client::{Client, ClientOptions, CreateOptions, path::DfsPath};
use journal::Recovery;
use proto::mr::{self as pb, job_tracker_client::JobTrackerClient, tracker_link_client::TrackerLinkClient};
use std::{collections::HashMap, path::Path, time::Duration};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

/// Time limit for every wait. A longer wait means that there is a bug.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a future. Panics if it takes longer than [`TIMEOUT`]; `what` names it in the message.
pub(super) async fn with_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timeout while waiting for {what}"))
}

/// Repeats the check until it returns true, with the time limit of [`with_timeout`].
pub(super) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    with_timeout(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(super) struct Cluster {
    pub(super) config: Config,
    pub(super) dfs: Client,
    daemon: Option<(Runtime, Daemon)>,
    _datanode: DataNode,
    _folder: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((runtime, daemon)) = self.daemon.take() {
            drop(daemon);
            runtime.shutdown_background();
        }
    }
}

pub(super) fn args(ready: &Path) -> DaemonArgs {
    DaemonArgs {
        config: None,
        print_config: false,
        log_format: LogFormat::Human,
        log_max: daemon::Bytes(0),
        ready_file: Some(ready.into()),
        insecure: false,
        security: daemon::SecurityArgs::default(),
    }
}

impl Cluster {
    pub(super) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(super) async fn start_with(settings: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        // The order of its jobs is easy to predict.
        config.scheduler.name = "fifo".into();
        config.namenode.listen = "127.0.0.1:0".into();
        config.namenode.dir = folder.path().join("namenode");
        config.namenode.replication = 1;
        config.namenode.block_size = Bytes(64 << 10);
        config.namenode.disk_reserve = Bytes(0);
        config.datanode.listen = "127.0.0.1:0".into();
        config.datanode.node = "node1".into();
        config.datanode.dirs = vec![folder.path().join("datanode")];
        config.datanode.reserve = Bytes(0);
        config.jobtracker.listen = "127.0.0.1:0".into();
        config.jobtracker.dir = folder.path().join("jobtracker");
        config.jobtracker.suspect_after = Period::secs(600);
        config.jobtracker.lost_after = Period::secs(1200);
        config.client.deadline = Period::secs(10);
        settings(&mut config);
        let ready = folder.path().join("ready");
        let (for_namenode, flags) = (config.clone(), args(&ready));
        tokio::spawn(
            async move { dfs::namenode::run(&for_namenode, &flags, Recovery::Refuse).await.unwrap() },
        );
        until("the NameNode's start", || async { ready.exists() }).await;
        config.cluster.namenode = std::fs::read_to_string(&ready).unwrap().trim().into();
        let datanode = DataNode::start(&config).await.unwrap();
        with_timeout("the DataNode's start", datanode.ready()).await.unwrap();
        let options = ClientOptions::new(&config.cluster.namenode, config.client.clone());
        let dfs = Client::connect(options).await.unwrap();
        let mut cluster = Self { config, dfs, daemon: None, _datanode: datanode, _folder: folder };
        cluster.start_jobtracker();
        cluster
    }

    /// Starts the JobTracker on its own runtime, so that it can be killed with all its connections.
    pub(super) fn start_jobtracker(&mut self) {
        self.start_jobtracker_with(Recovery::Refuse);
    }

    pub(super) fn start_jobtracker_with(&mut self, recovery: Recovery) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = self.config.clone();
        let daemon = std::thread::scope(|scope| {
            let start = || runtime.block_on(Daemon::start(&config, recovery)).unwrap();
            scope.spawn(start).join().unwrap()
        });
        self.daemon = Some((runtime, daemon));
    }

    /// Stops the JobTracker at once, without a message to clients and trackers, as if it was
    /// killed.
    pub(super) fn kill_jobtracker(&mut self) {
        let (runtime, daemon) = self.daemon.take().unwrap();
        drop(daemon);
        std::thread::scope(|scope| {
            scope.spawn(move || runtime.shutdown_timeout(TIMEOUT)).join().unwrap();
        });
    }

    fn url(&self) -> String {
        format!("http://{}", self.daemon.as_ref().unwrap().1.addr())
    }

    /// Returns the cluster ID of the JobTracker's journal.
    pub(super) fn cluster_id(&self) -> String {
        let text = std::fs::read_to_string(self.config.jobtracker.dir.join("VERSION")).unwrap();
        text.split('"').nth(1).unwrap().to_owned()
    }

    /// Waits until the NameNode has accepted the start of the JobTracker.
    pub(super) async fn await_accepted(&self) {
        let driver = self.daemon.as_ref().unwrap().1.driver();
        with_timeout("the NameNode accepts the start", driver.await_accepted()).await;
    }

    /// Waits until the JobTracker cannot continue. Returns the reason.
    pub(super) async fn failed(&self) -> String {
        self.daemon.as_ref().unwrap().1.driver().failed().await
    }

    /// Returns the number of events that the JobTracker has handled.
    pub(super) fn events_handled(&self) -> u64 {
        self.daemon.as_ref().unwrap().1.driver().events_handled()
    }

    /// Reads from the state of the JobTracker, which may not be durable yet.
    pub(super) fn peek<T>(&self, read: impl FnOnce(&mrcore::Cluster) -> T) -> T {
        self.daemon.as_ref().unwrap().1.driver().peek(read)
    }

    pub(super) async fn client(&self) -> JobTrackerClient<Channel> {
        JobTrackerClient::connect(self.url()).await.unwrap()
    }

    pub(super) async fn put(&self, path: &str, bytes: &[u8]) {
        let options = CreateOptions { make_parents: true, ..CreateOptions::default() };
        let mut file = self.dfs.create(&dfs_path(path), options).await.unwrap();
        file.write(bytes).await.unwrap();
        file.close().await.unwrap();
    }

    pub(super) async fn exists(&self, path: &str) -> bool {
        self.dfs.exists(&dfs_path(path)).await.unwrap()
    }

    pub(super) async fn length(&self, path: &str) -> u64 {
        self.dfs.stat(&dfs_path(path)).await.unwrap().length
    }

    pub(super) async fn status(&self, job: &str) -> pb::JobStatus {
        self.client().await.job(pb::JobRequest { job: job.into() }).await.unwrap().into_inner()
    }

    pub(super) async fn history(&self, job: &str) -> Vec<serde_json::Value> {
        let text = self.history_from(job, 0).await;
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the history of a job without the first `offset` bytes.
    pub(super) async fn history_from(&self, job: &str, offset: u64) -> String {
        let request = pb::HistoryRequest { job: job.into(), offset };
        let mut chunks = self.client().await.history(request).await.unwrap().into_inner();
        let mut text = String::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            text += &chunk.lines;
            assert_eq!(chunk.next_offset, offset + text.len() as u64);
        }
        text
    }

    pub(super) async fn tracker(&self, name: &str) -> Tracker {
        self.attach(registration(name)).await
    }

    pub(super) async fn attach(&self, register: pb::RegisterTracker) -> Tracker {
        let mut tracker = self.try_attach(register).await;
        let first = tracker.next().await;
        let Some(pb::to_tracker::Kind::Registered(_)) = first else { panic!("not registered: {first:?}") };
        tracker
    }

    /// Opens a stream and sends a registration, without waiting for the answer.
    pub(super) async fn try_attach(&self, register: pb::RegisterTracker) -> Tracker {
        let (messages, receiver) = mpsc::channel(16);
        let kind = Some(pb::from_tracker::Kind::Register(register));
        messages.send(pb::FromTracker { kind }).await.unwrap();
        let mut link = TrackerLinkClient::connect(self.url()).await.unwrap();
        let stream = link.attach(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Tracker { messages, stream, seq: 0, acked: 0, untaken_orders: Vec::new() }
    }
}

pub(super) fn dfs_path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

pub(super) fn registration(name: &str) -> pb::RegisterTracker {
    pb::RegisterTracker {
        name: name.into(),
        incarnation: 1,
        host: name.into(),
        rack: "r1".into(),
        shuffle_addr: "127.0.0.1:1".into(),
        logs_addr: "127.0.0.1:2".into(),
        map_slots: 4,
        reduce_slots: 4,
        version: "test".into(),
        protocol: proto::TRACKER_PROTOCOL,
        ..Default::default()
    }
}

pub(super) fn submission(input: &str, output: &str, reduces: u32) -> pb::SubmitRequest {
    let program = if reduces == 0 { "identity" } else { "wordcount" };
    pb::SubmitRequest {
        request_id: uuid::Uuid::new_v4().into_bytes().to_vec(),
        program: Some(pb::Program {
            kind: Some(pb::program::Kind::Builtin(program.into())),
            files: Vec::new(),
            settings: Vec::new(),
        }),
        inputs: vec![input.into()],
        output: output.into(),
        reduces,
        ..Default::default()
    }
}

/// A tracker that the test controls.
pub(super) struct Tracker {
    messages: mpsc::Sender<pb::FromTracker>,
    stream: Streaming<pb::ToTracker>,
    seq: u64,
    acked: u64,
    /// Received orders that the test has not taken yet.
    untaken_orders: Vec<pb::order::Kind>,
}

impl Tracker {
    pub(super) async fn next(&mut self) -> Option<pb::to_tracker::Kind> {
        let message = with_timeout("a message to the tracker", self.stream.message()).await;
        message.ok().flatten().and_then(|message| message.kind)
    }

    /// Receives a message with orders. Returns the number of the heartbeat that it answers; 0 for
    /// none.
    async fn receive_orders(&mut self) -> u64 {
        let message = self.next().await;
        let Some(pb::to_tracker::Kind::Orders(orders)) = message else { panic!("no orders: {message:?}") };
        for order in orders.orders {
            assert_eq!(order.number, self.acked + 1, "an order was repeated or is missing");
            self.acked = order.number;
            self.untaken_orders.extend(order.kind);
        }
        orders.answers
    }

    /// Sends a heartbeat and receives orders up to its answer.
    pub(super) async fn heartbeat(&mut self, attempts: Vec<pb::AttemptReport>) {
        self.seq += 1;
        self.send_heartbeat(attempts).await;
        while self.receive_orders().await != self.seq {}
    }

    /// Sends a heartbeat without waiting for an answer.
    pub(super) async fn heartbeat_without_answer(&mut self) {
        self.seq += 1;
        self.send_heartbeat(Vec::new()).await;
    }

    /// Sends the last heartbeat again, and receives orders up to its answer.
    pub(super) async fn repeat_heartbeat(&mut self, attempts: Vec<pb::AttemptReport>) {
        self.send_heartbeat(attempts).await;
        while self.receive_orders().await != self.seq {}
    }

    async fn send_heartbeat(&mut self, attempts: Vec<pb::AttemptReport>) {
        let (seq, acked) = (self.seq, self.acked);
        let heartbeat = pb::Heartbeat { seq, acked, attempts, fetch_failures: Vec::new() };
        let kind = Some(pb::from_tracker::Kind::Heartbeat(heartbeat));
        self.messages.send(pb::FromTracker { kind }).await.unwrap();
    }

    /// Waits for an order for which `wanted` returns a value. Returns the value.
    async fn take_order<T>(&mut self, mut wanted: impl FnMut(&pb::order::Kind) -> Option<T>) -> T {
        loop {
            if let Some(at) = self.untaken_orders.iter().position(|order| wanted(order).is_some()) {
                return wanted(&self.untaken_orders.remove(at)).unwrap();
            }
            self.receive_orders().await;
        }
    }

    /// Waits for an order to launch a task. Returns the task.
    pub(super) async fn next_launch(&mut self) -> pb::TaskSpec {
        self.take_order(|order| match order {
            pb::order::Kind::Launch(launch) => launch.task.clone(),
            _ => None,
        })
        .await
    }

    /// Waits for an order to preempt an attempt. Returns the attempt.
    pub(super) async fn next_preemption(&mut self) -> String {
        self.take_order(|order| match order {
            pb::order::Kind::Preempt(stop) => Some(stop.attempt.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for an order to delete the files of a job. Returns the job.
    pub(super) async fn next_clean(&mut self) -> String {
        self.take_order(|order| match order {
            pb::order::Kind::Clean(job) => Some(job.clone()),
            _ => None,
        })
        .await
    }

    /// Counts the received launch orders that the test has not taken yet.
    pub(super) fn untaken_launches(&self) -> usize {
        self.untaken_orders.iter().filter(|order| matches!(order, pb::order::Kind::Launch(_))).count()
    }

    /// Completes a task: writes its piece if it has output, and reports success.
    pub(super) async fn succeed(&mut self, cluster: &Cluster, task: &pb::TaskSpec, piece: &[u8]) {
        let mut pieces = Vec::new();
        if !task.work_output.is_empty() {
            let path = format!("{}/piece-0", task.work_output);
            cluster.put(&path, piece).await;
            pieces.push(path);
        }
        let counters = HashMap::from([("MAP_INPUT_RECORDS".to_owned(), 1)]);
        let result = pb::TaskResult { counters, pieces, bytes_out: piece.len() as u64, position: None };
        self.heartbeat(vec![succeeded(&task.attempt, result)]).await;
    }
}

pub(super) fn succeeded(attempt: &str, result: pb::TaskResult) -> pb::AttemptReport {
    let status = Some(pb::attempt_report::Status::Succeeded(result));
    pb::AttemptReport { attempt: attempt.into(), status }
}

pub(super) fn running(attempt: &str, done: f64) -> pb::AttemptReport {
    let progress = pb::Progress { done, stage: "map".into(), ..Default::default() };
    pb::AttemptReport { attempt: attempt.into(), status: Some(pb::attempt_report::Status::Running(progress)) }
}

pub(super) fn killed(attempt: &str) -> pb::AttemptReport {
    let status = Some(pb::attempt_report::Status::Killed("by the test".into()));
    pb::AttemptReport { attempt: attempt.into(), status }
}

/// Returns the code and the message of a refusal.
pub(super) fn refusal<T: std::fmt::Debug>(result: Result<T, Status>) -> (tonic::Code, String) {
    let status = result.unwrap_err();
    assert!(!status.message().contains('\n') && !status.message().is_empty(), "{status:?}");
    (status.code(), status.message().to_owned())
}
