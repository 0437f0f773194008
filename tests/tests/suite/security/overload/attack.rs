//! One who abuses a server: opens calls and never ends them, and opens the next when one is refused.

use bytes::Bytes;
use http_body::{Body, Frame};
use security::{Credentials, Role};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tonic::{
    codegen::{Service, http},
    transport::Channel,
};

/// Connections to each server.
const CONNECTIONS: usize = 20;
/// Calls that each connection tries to hold.
const CALLS: usize = 500;
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
        Self { left: pieces, ends: false }
    }

    /// An empty message.
    fn whole() -> Self {
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
        match self.left.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// What a call of this number on a connection asks for.
fn call(master: Role, number: usize) -> (&'static str, Pieces) {
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
        _ if number < WATCHES => ("/grpc.health.v1.Health/Watch", Pieces::whole()),
        _ if number.is_multiple_of(2) => (CHECK, Pieces::unfinished(10, 1)),
        _ => (CHECK, Pieces { left: VecDeque::new(), ends: false }),
    }
}

#[derive(Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
    opened: AtomicUsize,
}

/// The abuse, until it is told to end.
pub(super) struct Attack {
    runtime: tokio::runtime::Runtime,
    count: Arc<Count>,
}

impl Attack {
    pub(super) fn begin(credentials: &Credentials, targets: &[(Role, String)]) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let count = Arc::new(Count::default());
        let within = runtime.enter();
        for (master, addr) in targets {
            for _ in 0..CONNECTIONS {
                let channel = credentials.endpoint(addr, *master).unwrap().connect_lazy();
                for number in 0..CALLS {
                    runtime.spawn(hold(channel.clone(), *master, number, count.clone()));
                }
            }
        }
        drop(within);
        Self { runtime, count }
    }

    /// Ends it: how many calls were open at once, and opened in all.
    pub(super) fn end(self) -> (usize, usize) {
        self.runtime.shutdown_background();
        (self.count.most.load(Relaxed), self.count.opened.load(Relaxed))
    }
}

/// Keeps one call open, or tries to.
async fn hold(mut channel: Channel, master: Role, number: usize, count: Arc<Count>) {
    loop {
        let (method, body) = call(master, number);
        let request = http::Request::post(format!("http://abused{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(body))
            .unwrap();
        if std::future::poll_fn(|context| channel.poll_ready(context)).await.is_ok() {
            let answer = channel.call(request);
            count.opened.fetch_add(1, Relaxed);
            let now = count.now.fetch_add(1, Relaxed) + 1;
            count.most.fetch_max(now, Relaxed);
            if let Ok(response) = answer.await {
                let mut body = response.into_body();
                while let Some(Ok(_)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
            }
            count.now.fetch_sub(1, Relaxed);
        }
        tokio::time::sleep(AGAIN).await;
    }
}
