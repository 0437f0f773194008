//! Abusers of a server: they send calls and never end them, and send the next when one is refused.

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

/// Connections of those without a credential to each server, and of the user. Fewer than the 256 that a server takes.
const CONNECTIONS: usize = 80;
const CONNECTIONS_OF_USER: usize = 20;
/// Connections that send long requests.
const LONG_CONNECTIONS: usize = 20;
/// Calls of each connection: as many as HTTP/2 admits, so that none waits in the client. 80 connections have 10,240.
const CALLS: usize = 128;
/// Of these, how many follow the health of the server, and how many send a long request but for its last byte.
const WATCHES: usize = 50;
const LONG: usize = 6;
/// One more than the last byte that is sent of a long request.
const LONG_BYTES: usize = 4 << 20;
const PIECE: &[u8] = &[0; 16 << 10];
/// A refused call is opened again after this.
const AGAIN: Duration = Duration::from_secs(3);

/// A request, of which something may be missing.
struct Pieces {
    left: VecDeque<Bytes>,
    ends: bool,
    /// Where to note, and count, that it was sent.
    sent: Option<(Note, Arc<Count>)>,
}

impl Pieces {
    /// A message of which so many bytes are missing, and which never ends.
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
    fn recovered() -> Self {
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

/// What a call of this number on a connection asks for. A user does not stop at health checks.
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
        // Announced, and nothing sent.
        _ if number < 3 * LONG => (long, Pieces::unfinished(LONG_BYTES, LONG_BYTES)),
        _ if number < WATCHES => ("/grpc.health.v1.Health/Watch", Pieces::recovered()),
        _ if user => (long, Pieces::unfinished(10, 1)),
        _ if number.is_multiple_of(2) => (CHECK, Pieces::unfinished(10, 1)),
        _ => (CHECK, Pieces { left: VecDeque::new(), ends: false, sent: None }),
    }
}

/// Calls of one server. A call is counted as sent when its body is first asked for: HTTP/2 has then opened its stream
/// and written its headers. It is open from then until it has been answered or has failed.
#[derive(Default)]
struct Count {
    open: AtomicUsize,
    most: AtomicUsize,
    sent: AtomicUsize,
}

/// Where a call that was sent is noted until it is over.
type Note = Arc<Mutex<Option<Sent>>>;

/// Counts a call in, and out when dropped.
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

/// What a server got of the abuse.
pub(super) struct Sum {
    /// Calls that were sent.
    pub(super) sent: usize,
    /// The most that were open at once. A server that refuses at once has few.
    pub(super) most: usize,
}

/// One who abuses.
#[derive(Clone)]
struct Abuser {
    channel: Channel,
    master: Role,
    /// What a user shows with each call.
    shown: Option<http::HeaderMap>,
    long: bool,
    count: Arc<Count>,
}

/// The abuse, until it is told to end.
pub(super) struct Attack {
    runtime: tokio::runtime::Runtime,
    counts: Vec<Arc<Count>>,
}

impl Attack {
    /// `nobody` has no credential that counts; `user` has one, by this name.
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

    /// Ends it: what each server got.
    pub(super) fn end(self) -> Vec<Sum> {
        self.runtime.shutdown_background();
        let sum = |count: &Arc<Count>| Sum { sent: count.sent.load(Relaxed), most: count.most.load(Relaxed) };
        self.counts.iter().map(sum).collect()
    }
}

/// Keeps one call open, or tries to.
async fn hold(mut abuser: Abuser, number: usize) {
    // Other connections send short requests alone.
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
