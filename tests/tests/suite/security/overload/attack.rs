//! Abusive clients of a server: they open calls and never end them, and open the next when one is
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

/// Connections of clients without a credential to each server, and of the user. Fewer than the
/// limit of 256.
const CONNECTIONS: usize = 80;
const CONNECTIONS_OF_USER: usize = 20;
/// Connections that send long requests.
const LONG_CONNECTIONS: usize = 20;
/// Calls per connection: the maximum of HTTP/2, so that none waits in the client. 80 connections
/// have 10,240.
const CALLS: usize = 128;
/// Number of calls that watch the health of the server, and that send a long request without its
/// last byte.
const WATCHES: usize = 50;
const LONG: usize = 6;
/// Length of a long request, whose last byte is not sent.
const LONG_BYTES: usize = 4 << 20;
const PIECE: &[u8] = &[0; 16 << 10];
/// Delay after which a refused call is repeated.
const AGAIN: Duration = Duration::from_secs(3);

/// A request that may be incomplete.
struct Pieces {
    left: VecDeque<Bytes>,
    ends: bool,
    /// Where to record and count that it was sent.
    sent: Option<(Note, Arc<Count>)>,
}

impl Pieces {
    /// A message without its last `missing` bytes, which never ends.
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

    /// An empty message.
    fn empty() -> Self {
        Self { ends: true, ..Self::unfinished(0, 0) }
    }
}

impl Body for Pieces {
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

/// Returns the method and body of a call by its number. A user sends more than health checks.
fn call(master: Role, number: usize, user: bool) -> (&'static str, Pieces) {
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
        ..LONG => (long, Pieces::unfinished(LONG_BYTES, 1)),
        _ if number < 2 * LONG => (CHECK, Pieces::unfinished(LONG_BYTES, 1)),
        // Announced, but nothing is sent.
        _ if number < 3 * LONG => (long, Pieces::unfinished(LONG_BYTES, LONG_BYTES)),
        _ if number < WATCHES => ("/grpc.health.v1.Health/Watch", Pieces::empty()),
        _ if user => (long, Pieces::unfinished(10, 1)),
        _ if number.is_multiple_of(2) => (CHECK, Pieces::unfinished(10, 1)),
        _ => (CHECK, Pieces { left: VecDeque::new(), ends: false, sent: None }),
    }
}

/// Calls of one server. A call counts as sent when its body is first polled: HTTP/2 has then opened
/// its stream and written its headers. It is open until it was answered or has failed.
#[derive(Default)]
struct Count {
    open: AtomicUsize,
    most: AtomicUsize,
    sent: AtomicUsize,
}

/// State of a call that was sent, until it has ended.
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

/// Result of the abuse for a server.
pub(super) struct Sum {
    /// Number of calls that were sent.
    pub(super) sent: usize,
    /// Maximum number of open calls. A server that refuses at once has few.
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
    /// `nobody` has no valid credential; `user` has one with this name.
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
                    for number in 0..CALLS {
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

    /// Stops it, and returns the result by server.
    pub(super) fn end(self) -> Vec<Sum> {
        self.runtime.shutdown_background();
        let sum = |count: &Arc<Count>| Sum { sent: count.sent.load(Relaxed), most: count.most.load(Relaxed) };
        self.counts.iter().map(sum).collect()
    }
}

/// Keeps one call open, or tries to.
async fn hold(mut abuser: Abuser, number: usize) {
    // Other connections send only short requests.
    let number = if abuser.long { number } else { number + 3 * LONG };
    loop {
        let (method, body) = call(abuser.master, number, abuser.shown.is_some());
        let sent = Note::default();
        let body = Pieces { sent: Some((sent.clone(), abuser.count.clone())), ..body };
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
        tokio::time::sleep(AGAIN).await;
    }
}
