//! Abusive clients of a server. They open calls that never end, and open another call when one is
//! refused.

use bytes::Bytes;
use http_body::{Body, Frame};
use security::{Credentials, Role};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tonic::{
    codegen::{Service, http},
    metadata::MetadataMap,
    transport::Channel,
};

/// Unauthenticated connections to each server. Fewer than its limit of 256.
const CONNECTIONS: usize = 80;
/// Connections to each server with the credentials of one user.
const CONNECTIONS_OF_USER: usize = 20;
/// How many connections of each kind also send long requests.
const LONG_CONNECTIONS: usize = 20;
/// Calls per connection: the maximum of HTTP/2, so that no call waits in the client. 80 connections
/// have 10,240 calls.
const CALLS_PER_CONNECTION: usize = 128;
/// Calls with a lower number than this only watch the health of the server, unless they send a long
/// request.
const FIRST_OTHER_CALL: usize = 50;
/// Number of calls per connection for each of three kinds of long requests.
const LONG_CALLS: usize = 6;
/// Length of a long request, whose last byte is not sent.
const LONG_BYTES: usize = 4 << 20;
/// A piece of a request body.
const PIECE: &[u8] = &[0; 16 << 10];
/// Delay after which a refused call is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(3);

/// A request body that may be incomplete.
struct IncompleteBody {
    left: VecDeque<Bytes>,
    ends: bool,
    /// Where to record and count that the request was sent.
    sent: Option<(Note, Arc<Count>)>,
}

impl IncompleteBody {
    /// Creates a message that lacks its last `missing` bytes and never ends.
    fn unfinished(length: usize, missing: usize) -> Self {
        let mut prefix = vec![0];
        prefix.extend((length as u32).to_be_bytes());
        let mut pieces = VecDeque::from([Bytes::from(prefix)]);
        let mut left = length - missing;
        while left > 0 {
            let piece = left.min(PIECE.len());
            pieces.push_back(Bytes::from_static(&PIECE[..piece]));
            left -= piece;
        }
        Self { left: pieces, ends: false, sent: None }
    }

    /// Creates an empty message.
    fn empty() -> Self {
        Self { ends: true, ..Self::unfinished(0, 0) }
    }
}

impl Body for IncompleteBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some((sent, count)) = self.sent.take() {
            *sent.lock().unwrap() = Some(Sent::new(count));
        }
        match self.left.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Returns the method and body of the call with this number. A user sends more than health checks.
fn call(master: Role, number: usize, user: bool) -> (&'static str, IncompleteBody) {
    const CHECK: &str = "/grpc.health.v1.Health/Check";
    let long = match (master, number % 3) {
        (Role::NameNode, 0) => "/fermata.dfs.v1.NameNode/Create",
        (Role::NameNode, 1) => "/fermata.dfs.v1.BlockReports/Heartbeat",
        (Role::NameNode, _) => "/fermata.dfs.v1.NameNode/Commit",
        (_, 0) => "/fermata.mr.v1.JobTracker/Submit",
        (_, 1) => "/fermata.mr.v1.TrackerLink/Attach",
        (_, _) => "/fermata.mr.v1.JobTracker/Why",
    };
    match number {
        ..LONG_CALLS => (long, IncompleteBody::unfinished(LONG_BYTES, 1)),
        _ if number < 2 * LONG_CALLS => (CHECK, IncompleteBody::unfinished(LONG_BYTES, 1)),
        // The length of the message is announced, but none of its bytes are sent.
        _ if number < 3 * LONG_CALLS => (long, IncompleteBody::unfinished(LONG_BYTES, LONG_BYTES)),
        _ if number < FIRST_OTHER_CALL => ("/grpc.health.v1.Health/Watch", IncompleteBody::empty()),
        _ if user => (long, IncompleteBody::unfinished(10, 1)),
        _ if number.is_multiple_of(2) => (CHECK, IncompleteBody::unfinished(10, 1)),
        _ => (CHECK, IncompleteBody { left: VecDeque::new(), ends: false, sent: None }),
    }
}

/// Counts the calls to one server. A call counts as sent when its body is first polled: HTTP/2 has
/// then opened its stream and written its headers. A call is open until it was answered or has
/// failed.
#[derive(Default)]
struct Count {
    open: AtomicUsize,
    most: AtomicUsize,
    sent: AtomicUsize,
}

/// State of a call: set when the call is sent, and removed when it has ended.
type Note = Arc<Mutex<Option<Sent>>>;

/// Counts an open call until dropped.
struct Sent(Arc<Count>);

impl Sent {
    fn new(count: Arc<Count>) -> Self {
        count.sent.fetch_add(1, Relaxed);
        let open = count.open.fetch_add(1, Relaxed) + 1;
        count.most.fetch_max(open, Relaxed);
        Self(count)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// Number of calls that the abuse has sent to a server.
pub(super) struct Sum {
    /// Number of calls that were sent.
    pub(super) sent: usize,
    /// Maximum number of open calls. Low if the server refuses calls at once.
    pub(super) most: usize,
}

/// An abusive client.
#[derive(Clone)]
struct Abuser {
    channel: Channel,
    master: Role,
    /// Credentials of a user, sent with each call.
    shown: Option<http::HeaderMap>,
    long: bool,
    count: Arc<Count>,
}

/// The running abuse.
pub(super) struct Attack {
    runtime: tokio::runtime::Runtime,
    counts: Vec<Arc<Count>>,
}

impl Attack {
    /// Starts the abuse of the targets. `nobody` has no valid credential; `user` has one with this
    /// name.
    pub(super) fn begin(
        nobody: &Credentials,
        user: Option<(&Credentials, &str)>,
        targets: &[(Role, String)],
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let within = runtime.enter();
        let mut counts = Vec::new();
        for (master, addr) in targets {
            let count = Arc::new(Count::default());
            let abuse = |credentials: &Credentials, name: Option<&str>, connections: usize| {
                for at in 0..connections {
                    let shown = name.map(|name| {
                        let mut shown = MetadataMap::new();
                        credentials.sign(&mut shown, &name.parse().unwrap());
                        shown.into_headers()
                    });
                    let channel = credentials.endpoint(addr, *master).unwrap().connect_lazy();
                    let long = at < LONG_CONNECTIONS;
                    let abuser = Abuser { channel, master: *master, shown, long, count: count.clone() };
                    for number in 0..CALLS_PER_CONNECTION {
                        runtime.spawn(hold(abuser.clone(), number));
                    }
                }
            };
            abuse(nobody, None, CONNECTIONS);
            if let Some((credentials, name)) = user {
                abuse(credentials, Some(name), CONNECTIONS_OF_USER);
            }
            counts.push(count);
        }
        drop(within);
        Self { runtime, counts }
    }

    /// Stops the abuse, and returns the numbers of calls by server.
    pub(super) fn end(self) -> Vec<Sum> {
        self.runtime.shutdown_background();
        let sum = |count: &Arc<Count>| Sum { sent: count.sent.load(Relaxed), most: count.most.load(Relaxed) };
        self.counts.iter().map(sum).collect()
    }
}

/// Keeps one call open: repeats it when it is refused or has ended.
async fn hold(mut abuser: Abuser, number: usize) {
    // Connections without long requests skip their numbers.
    let number = if abuser.long { number } else { number + 3 * LONG_CALLS };
    loop {
        let (method, body) = call(abuser.master, number, abuser.shown.is_some());
        let sent = Note::default();
        let body = IncompleteBody { sent: Some((sent.clone(), abuser.count.clone())), ..body };
        let mut request = http::Request::post(format!("http://abused{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(body))
            .unwrap();
        request.headers_mut().extend(abuser.shown.clone().into_iter().flatten());
        let channel = &mut abuser.channel;
        if std::future::poll_fn(|context| channel.poll_ready(context)).await.is_ok()
            && let Ok(response) = channel.call(request).await
        {
            let mut body = response.into_body();
            while let Some(Ok(_)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
        }
        drop(sent.lock().unwrap().take());
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
