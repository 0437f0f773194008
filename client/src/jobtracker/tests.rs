//! Tests of requests and histories against a fake JobTracker that loses replies, and of the notice
//! about a slow reply.

use super::*;
use proto::master::{
    ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipReply, LeadershipRequest,
    master_server::{Master, MasterServer},
};
use proto::mr::job_tracker_server::{JobTracker as Service, JobTrackerServer};
use std::sync::Mutex;
use tonic::{Response, codegen::tokio_stream};

type Answer<T> = std::result::Result<Response<T>, Status>;
type Stream<T> = tokio_stream::Iter<std::vec::IntoIter<std::result::Result<T, Status>>>;

/// The history of every job, sent one line at a time.
const HISTORY: &str = "one\ntwo\nthree\n";

#[derive(Default)]
struct Fake {
    /// The epoch in which it leads; None if it follows.
    leads: Mutex<Option<u64>>,
    /// IDs of the requests so far.
    requests: Mutex<Vec<Vec<u8>>>,
    /// Offsets of the requests for histories so far.
    offsets: Mutex<Vec<u64>>,
    /// The error with which every first of two requests or streams of a history fails.
    error: Option<Status>,
}

impl Fake {
    async fn start(error: Option<Status>) -> (Arc<Self>, JobTracker) {
        let (fake, addr) = Self::listen(error, Some(1)).await;
        let client = JobTracker::connect(&addr, Some("ann"), Credentials::default()).await.unwrap();
        (fake, client)
    }

    /// Starts the server; also returns its address.
    async fn listen(error: Option<Status>, leads: Option<u64>) -> (Arc<Self>, String) {
        let fake = Arc::new(Self { error, leads: Mutex::new(leads), ..Self::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let server = tonic::transport::Server::builder()
            .add_service(JobTrackerServer::from_arc(fake.clone()))
            .add_service(MasterServer::from_arc(fake.clone()));
        tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
        (fake, addr)
    }

    fn handle<T: Default>(&self, id: Vec<u8>) -> Answer<T> {
        if self.leads.lock().unwrap().is_none() {
            return Err(dfs_client::error::Error::not_leader(Role::JobTracker, None).into());
        }
        let mut requests = self.requests.lock().unwrap();
        requests.push(id);
        match &self.error {
            Some(error) if requests.len() % 2 == 1 => Err(error.clone()),
            _ => Ok(Response::new(T::default())),
        }
    }
}

#[tonic::async_trait]
impl Master for Fake {
    async fn leadership(&self, _: Request<LeadershipRequest>) -> Answer<LeadershipReply> {
        let leads = *self.leads.lock().unwrap();
        Ok(Response::new(LeadershipReply { leads: leads.is_some(), epoch: leads.unwrap_or(0) }))
    }

    async fn group(&self, _: Request<GroupRequest>) -> Answer<GroupReply> {
        unused()
    }

    async fn change_group(&self, _: Request<ChangeGroupRequest>) -> Answer<ChangeGroupReply> {
        unused()
    }
}

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("not used by the tests"))
}

#[tonic::async_trait]
impl Service for Fake {
    type WatchStream = Stream<pb::JobStatus>;
    type HistoryStream = Stream<pb::HistoryChunk>;
    type BackupStream = Stream<pb::BackupChunk>;

    async fn submit(&self, request: Request<pb::SubmitRequest>) -> Answer<pb::SubmitReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn kill(&self, request: Request<pb::KillRequest>) -> Answer<pb::KillReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn preempt(&self, request: Request<pb::PreemptRequest>) -> Answer<pb::PreemptReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Answer<pb::ResumeReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn drain(&self, request: Request<pb::DrainTrackerRequest>) -> Answer<pb::DrainTrackerReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn forget_node(&self, request: Request<pb::ForgetNodeRequest>) -> Answer<pb::ForgetNodeReply> {
        self.handle(request.into_inner().request_id)
    }

    async fn history(&self, request: Request<pb::HistoryRequest>) -> Answer<Self::HistoryStream> {
        let offset = request.into_inner().offset;
        let mut offsets = self.offsets.lock().unwrap();
        offsets.push(offset);
        let mut next_offset = offset;
        let chunk = |line: &str| {
            next_offset += line.len() as u64;
            Ok(pb::HistoryChunk { lines: line.into(), next_offset })
        };
        let mut chunks: Vec<_> = HISTORY[offset as usize..].split_inclusive('\n').map(chunk).collect();
        if let Some(error) = self.error.clone().filter(|_| offsets.len() % 2 == 1) {
            chunks.truncate(1);
            chunks.push(Err(error));
        }
        Ok(Response::new(tokio_stream::iter(chunks)))
    }

    async fn jobs(&self, _: Request<pb::JobsRequest>) -> Answer<pb::JobsReply> {
        unused()
    }

    async fn job(&self, request: Request<pb::JobRequest>) -> Answer<pb::JobStatus> {
        self.handle(request.into_inner().job.into_bytes())
    }

    async fn watch(&self, _: Request<pb::JobRequest>) -> Answer<Self::WatchStream> {
        unused()
    }

    async fn tasks(&self, _: Request<pb::TasksRequest>) -> Answer<pb::TasksReply> {
        unused()
    }

    async fn trackers(&self, _: Request<pb::TrackersRequest>) -> Answer<pb::TrackersReply> {
        unused()
    }

    async fn why(&self, _: Request<pb::WhyRequest>) -> Answer<pb::WhyReply> {
        unused()
    }

    async fn schedulers(&self, _: Request<pb::SchedulersRequest>) -> Answer<pb::SchedulersReply> {
        unused()
    }

    async fn shadow(&self, _: Request<pb::ShadowRequest>) -> Answer<pb::ShadowReply> {
        unused()
    }

    async fn backup(&self, _: Request<pb::BackupRequest>) -> Answer<Self::BackupStream> {
        unused()
    }
}

async fn history(client: &JobTracker) -> Result<String> {
    let mut text = String::new();
    let add = |lines: &str| {
        text.push_str(lines);
        Ok::<_, Error>(())
    };
    client.history("job_1", add).await?;
    Ok(text)
}

#[tokio::test]
async fn requests_without_an_answer_are_repeated_with_the_same_id() {
    let (fake, client) = Fake::start(Some(Status::unavailable("the JobTracker is stopping"))).await;
    client.kill("job_1").await.unwrap();
    client.preempt("job_1.m0.0", PreemptKind::Kill).await.unwrap();
    client.resume("job_1.m0", None).await.unwrap();
    client.drain("node1", Duration::from_secs(9)).await.unwrap();
    client.undrain("node1").await.unwrap();
    client.forget_node("node1").await.unwrap();
    let requests = fake.requests.lock().unwrap();
    // After a request to kill a job, its status is queried.
    assert_eq!(requests.len(), 14);
    let mut ids: Vec<&Vec<u8>> = requests
        .chunks(2)
        .map(|sent| {
            assert_eq!(sent[0], sent[1], "a repeated request has another ID");
            &sent[0]
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7, "two requests have the same ID");
}

#[tokio::test]
async fn history_continues_after_the_last_chunk() {
    let (fake, client) = Fake::start(Some(Status::unavailable("the connection broke"))).await;
    assert_eq!(history(&client).await.unwrap(), HISTORY);
    assert_eq!(*fake.offsets.lock().unwrap(), [0, 4]);
}

#[tokio::test]
async fn refusals_are_not_repeated() {
    let (fake, client) = Fake::start(Some(Status::failed_precondition("too late to kill it"))).await;
    assert_eq!(client.kill("job_1").await.unwrap_err().to_string(), "too late to kill it");
    assert!(history(&client).await.is_err());
    assert_eq!((fake.requests.lock().unwrap().len(), fake.offsets.lock().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn error_without_an_answer_is_one_line_that_names_the_request() {
    let (_, client) = Fake::start(None).await;
    let client = client.with_advice(|| "start it with `mrctl up`".into());
    let addr = client.addr().to_owned();
    let error = Error::unreachable(Role::JobTracker, &addr, "connection refused");
    let long_ago = Instant::now().checked_sub(2 * RETRY_TIMEOUT).unwrap();
    let error = client.pause_before_retry(error, long_ago, || "the request to kill job_1".into()).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        format!(
            "the JobTracker at {addr} has not answered the request to kill job_1 for 60 s (connection refused); \
             start it with `mrctl up`; it may have been carried out"
        )
    );
}

#[tokio::test]
async fn requests_and_queries_go_to_the_jobtracker_that_leads() {
    let (first, first_addr) = Fake::listen(None, Some(5)).await;
    let (second, second_addr) = Fake::listen(None, None).await;
    let addrs = format!("{second_addr},{first_addr}");
    let client = JobTracker::connect(&addrs, Some("ann"), Credentials::default()).await.unwrap();
    assert_eq!(client.addr(), format!("{second_addr}, {first_addr}"));
    client.job("job_1").await.unwrap();
    (*first.leads.lock().unwrap(), *second.leads.lock().unwrap()) = (None, Some(6));
    client.job("job_1").await.unwrap();
    client.forget_node("node1").await.unwrap();
    let counts = || [&first, &second].map(|fake| fake.requests.lock().unwrap().len());
    assert_eq!(counts(), [1, 2]);
    // A query waits for the next leader, too.
    *second.leads.lock().unwrap() = None;
    let elected = async {
        tokio::time::sleep(RETRY_PAUSE).await;
        *first.leads.lock().unwrap() = Some(7);
    };
    let (answer, ()) = tokio::join!(client.job("job_1"), elected);
    answer.unwrap();
    assert_eq!(counts(), [2, 2]);
}

#[tokio::test]
async fn error_without_a_leader_names_every_jobtracker_and_what_to_do() {
    let (first, first_addr) = Fake::listen(None, Some(5)).await;
    let (_second, second_addr) = Fake::listen(None, None).await;
    let addrs = format!("{first_addr},{second_addr}");
    let client = JobTracker::connect(&addrs, Some("ann"), Credentials::default()).await.unwrap();
    let client = client.with_advice(|| "start one".into());
    *first.leads.lock().unwrap() = None;
    let error = client.job("job_1").await.unwrap_err();
    assert!(error.is_transient());
    assert_eq!(
        error.to_string(),
        format!("no JobTracker answers: {first_addr} does not lead; {second_addr} does not lead; start one")
    );
}

#[tokio::test]
async fn slow_reply_is_reported_with_the_server() {
    let (notify, notified) = tokio::sync::oneshot::channel();
    let notify_line = |line: &str| notify.send(line.to_owned()).unwrap();
    // The work ends when `notify` was called.
    let line = notify_if_slow(Role::JobTracker, "h:1", notified, notify_line).await.unwrap();
    assert_eq!(line, "waiting for the JobTracker at h:1: no answer for 2 s");
    notify_if_slow(Role::JobTracker, "h:1", async {}, |line| panic!("{line}")).await;
}
