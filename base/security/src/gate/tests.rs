//! Tests of the gate on real sockets, with a client that keeps calls open and a service that reads
//! complete requests.

use super::*;
use crate::Guard;
use bytes::Bytes;
use daemon::config::Config;
use http_body::{Body, Frame};
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    net::TcpListener,
    time::{Duration, Instant},
};
use tonic::{
    Code,
    server::NamedService,
    transport::{Channel, Endpoint},
};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const STAT: &str = "/fermata.dfs.v1.NameNode/Stat";
/// Timeout of calls that are expected to succeed.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn method_names_are_split_into_words() {
    assert_eq!(["SetQuota", "Drain", "ForgetNode"].map(method_text), ["set quota", "drain", "forget node"]);
}

/// A service that reads a request to its end and sends an empty response.
#[derive(Debug, Clone)]
struct Reader;

impl NamedService for Reader {
    const NAME: &'static str = "fermata.dfs.v1.NameNode";
}

impl Service<Request<tonic::body::Body>> for Reader {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut body = request.into_body();
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                if let Err(status) = frame {
                    return Ok(status.into_http());
                }
            }
            Ok(Status::ok("").into_http())
        })
    }
}

/// Starts a server of an open cluster.
async fn serve() -> (Endpoint, Gate) {
    let guard = Guard::open();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let incoming = guard.incoming(listener).unwrap();
    let gate = Gate::new(guard.access_policy().clone());
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let mut server = crate::guard::server_builder().layer(gate.clone());
    let server = server.add_service(service).add_service(Reader).serve_with_incoming(incoming);
    tokio::spawn(server);
    (endpoint, gate)
}

/// A request body in pieces. With `true` it ends after them, otherwise it stays open.
struct Pieces(VecDeque<Bytes>, bool);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.1 => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Returns a body with one complete, empty message.
fn complete_body() -> Pieces {
    Pieces([Bytes::from_static(&[0; 5])].into(), true)
}

/// Returns a body that announces a message of ten bytes, has nine, and stays open.
fn incomplete_body() -> Pieces {
    Pieces([Bytes::from_static(&[0, 0, 0, 0, 10]), Bytes::from_static(&[1; 9])].into(), false)
}

/// Returns the final status of a call.
async fn call(mut channel: Channel, method: &str, body: Pieces) -> Result<Status, tonic::transport::Error> {
    let request = Request::post(format!("http://server{method}"))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::new(body))
        .unwrap();
    poll_fn(|context| channel.poll_ready(context)).await?;
    let response = channel.call(request).await?;
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Ok(status);
    }
    let mut body = response.into_body();
    loop {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) => {
                if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                    return Ok(status);
                }
            }
            Some(Err(status)) => return Ok(status),
            None => return Ok(Status::unknown("no status")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_health_calls_do_not_block_others() {
    let (endpoint, gate) = serve().await;
    let mut open_calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let channel = endpoint.connect_lazy();
        for _ in 0..100 {
            let (method, body) =
                if open_calls.len() % 2 == 0 { (CHECK, incomplete_body()) } else { (WATCH, complete_body()) };
            open_calls.spawn(call(channel.clone(), method, body));
        }
    }
    for _ in 0..20 {
        // These calls use separate connections.
        let answers = tokio::join!(
            tokio::time::timeout(TEST_TIMEOUT, call(endpoint.connect_lazy(), CHECK, complete_body())),
            tokio::time::timeout(TEST_TIMEOUT, call(endpoint.connect_lazy(), STAT, complete_body())),
        );
        assert_eq!(answers.0.unwrap().unwrap().code(), Code::Ok);
        assert_eq!(answers.1.unwrap().unwrap().code(), Code::Ok);
    }
    open_calls.shutdown().await;
    let begin = Instant::now();
    while !gate.is_unused() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "ended calls still use resources: {gate:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_late_bodies_fail_and_many_of_them_close_the_connection() {
    let (endpoint, gate) = serve().await;
    let channel = endpoint.connect().await.unwrap();
    let late = call(channel.clone(), STAT, incomplete_body()).await.unwrap();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert_eq!(
        call(channel.clone(), STAT, complete_body()).await.unwrap().code(),
        Code::Ok,
        "one late body is tolerated"
    );
    let mut all = tokio::task::JoinSet::new();
    (0..40).for_each(|_| drop(all.spawn(call(channel.clone(), STAT, incomplete_body()))));
    let ended = all.join_all().await;
    let count_of = |code| ended.iter().flatten().filter(|status| status.code() == code).count();
    assert!(count_of(Code::DeadlineExceeded) < 40, "the connection was closed: {ended:?}");
    // Other connections are not affected, and no resources are leaked.
    assert_eq!(call(endpoint.connect_lazy(), STAT, complete_body()).await.unwrap().code(), Code::Ok);
    let begin = Instant::now();
    while !gate.is_unused() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "ended calls still use resources: {gate:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn admin_rights_apply_to_users_and_not_to_their_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.security.secret = dir.path().join("secret");
    config.security.admins = vec!["ann".into()];
    crate::write_private(&config.security.secret, &[b'x'; 64]).unwrap();
    let guard = Guard::new(&config, Role::NameNode).unwrap();
    let superuser =
        |role, name, acts_for| guard.access_policy().identify(role, name, acts_for).unwrap().superuser;
    assert!(superuser(Role::User, "ann", None));
    assert!(superuser(Role::Admin, "eve", None));
    assert!(!superuser(Role::User, "bob", None));
    // Tasks of ann may run code of others, so neither they nor the JobTracker, when it acts for
    // ann, have her admin rights.
    assert!(!superuser(Role::Task, "ann", None));
    assert!(!superuser(Role::JobTracker, "jobtracker", Some("ann")));
    assert!(!superuser(Role::Admin, "eve", Some("ann")));
}

/// Prints the cost of the gate per call.
/// `cargo test -p fermata-security --lib -- --ignored --nocapture cost`
#[test]
#[ignore = "a measurement"]
fn cost_of_the_gate() {
    #[derive(Clone)]
    struct Inner;
    impl<B: Body<Data = Bytes> + Unpin> Service<Request<B>> for Inner {
        type Response = Response<tonic::body::Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: Request<B>) -> Self::Future {
            let (mut body, mut context) =
                (request.into_body(), Context::from_waker(std::task::Waker::noop()));
            while let Poll::Ready(Some(_)) = Pin::new(&mut body).poll_frame(&mut context) {}
            std::future::ready(Ok(Status::ok("").into_http()))
        }
    }
    const CALLS: u32 = 1_000_000;
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let connection = Arc::new(Connection::new(None, crate::ConnectionLimiter::new(1).enter(ours)));
    let request = || {
        let mut request = Request::post(STAT).header(USER_KEY, "ann").body(complete_body()).unwrap();
        request.extensions_mut().insert(CallerInfo(connection.clone()));
        request
    };
    let (mut plain, mut gated) = (Inner, Gate::new(Guard::open().access_policy().clone()).layer(Inner));
    let mut context = Context::from_waker(std::task::Waker::noop());
    // Measures CPU time of this thread, because the machine may be busy.
    let cpu =
        || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
    for _ in 0..3 {
        let begin = cpu();
        for _ in 0..CALLS {
            drop(Pin::new(&mut plain.call(request())).poll(&mut context));
        }
        let without = cpu().saturating_sub(begin);
        let begin = cpu();
        for _ in 0..CALLS {
            drop(Pin::new(&mut gated.call(request())).poll(&mut context));
        }
        println!("without {:?}, with {:?} a call", without / CALLS, cpu().saturating_sub(begin) / CALLS);
    }
}
