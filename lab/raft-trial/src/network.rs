//! A network in memory: calls the `Raft` of the target directly. Each direction of each pair can be
//! cut (messages vanish, as with a dead machine) and a member can be down (connections refused, as
//! with a dead process). Snapshots go in chunks of 1 MiB through a bounded channel.

use crate::{
    machine::{Machine, SnapshotFile},
    types::{Group, Raft, Vote},
};
use futures::{Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use openraft::{
    BasicNode, OptionalSend,
    alias::SnapshotOf,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
    storage::Snapshot,
};
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    future::Future,
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

const CHUNK_BYTES: usize = 1 << 20;

#[derive(Clone, Default)]
pub struct Net(Arc<Inner>);

#[derive(Default)]
struct Inner {
    nodes: RwLock<HashMap<u64, (Raft, PathBuf)>>,
    cut: RwLock<HashSet<(u64, u64)>>,
    delay_us: AtomicU64,
    pub snapshots: AtomicU64,
    pub snapshot_chunks: AtomicU64,
    pub heartbeats: AtomicU64,
    links: RwLock<HashMap<(u64, u64), Arc<Link>>>,
    /// Whether links become quiet without answers.
    quiet: std::sync::atomic::AtomicBool,
}

/// One direction of appends. After 0.8 s without an answer it sends nothing for 1.6 s, then again
/// for 1.6 s, and so on: otherwise a leader that receives nobody keeps its followers from electing.
#[derive(Default)]
struct Link(std::sync::Mutex<Option<Instant>>);

impl Link {
    /// Returns whether an append may be sent now, and notes that it waits for an answer.
    fn may_send(&self) -> bool {
        let since = *self.0.lock().unwrap().get_or_insert_with(Instant::now);
        match since.elapsed().checked_sub(Duration::from_millis(800)) {
            None => true,
            Some(age) => age.as_millis() / 1600 % 2 == 1,
        }
    }
    fn answered(&self) {
        *self.0.lock().unwrap() = None;
    }
}

impl Net {
    pub fn join(&self, id: u64, raft: Raft, folder: PathBuf) {
        self.0.nodes.write().unwrap().insert(id, (raft, folder));
    }
    /// Connections to `id` are refused from now on.
    pub fn leave(&self, id: u64) {
        self.0.nodes.write().unwrap().remove(&id);
    }
    pub fn cut(&self, from: u64, to: u64) {
        self.0.cut.write().unwrap().insert((from, to));
    }
    pub fn isolate(&self, id: u64, others: &[u64]) {
        for other in others.iter().filter(|other| **other != id) {
            self.cut(id, *other);
            self.cut(*other, id);
        }
    }
    pub fn heal(&self) {
        self.0.cut.write().unwrap().clear();
    }
    pub fn set_delay(&self, delay: Duration) {
        self.0.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }
    pub fn snapshot_counts(&self) -> (u64, u64) {
        (self.0.snapshots.load(Ordering::Relaxed), self.0.snapshot_chunks.load(Ordering::Relaxed))
    }
    /// Number of streams that were opened for heartbeats and confirmations.
    pub fn heartbeats(&self) -> u64 {
        self.0.heartbeats.load(Ordering::Relaxed)
    }

    pub fn set_quiet(&self, quiet: bool) {
        self.0.quiet.store(quiet, Ordering::Relaxed);
    }
    fn link(&self, from: u64, to: u64) -> Arc<Link> {
        Arc::clone(self.0.links.write().unwrap().entry((from, to)).or_default())
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        self.0.cut.read().unwrap().contains(&(from, to))
    }
    async fn travel(&self) {
        let delay = self.0.delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            sleep(Duration::from_micros(delay)).await;
        }
    }
}

/// The connection from one member to another.
pub struct Peer {
    net: Net,
    from: u64,
    to: u64,
    is_heartbeat: bool,
}

#[derive(Clone)]
pub struct Peers {
    pub net: Net,
    pub from: u64,
}

impl RaftNetworkFactory<Group> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, to: u64, _node: &BasicNode) -> Peer {
        Peer { net: self.net.clone(), from: self.from, to, is_heartbeat: false }
    }
    async fn new_heartbeat_client(&mut self, to: u64, _node: &BasicNode) -> Peer {
        Peer { net: self.net.clone(), from: self.from, to, is_heartbeat: true }
    }
}

fn unreachable(what: impl ToString) -> RPCError<Group> {
    RPCError::Unreachable(Unreachable::from_string(what))
}

impl Peer {
    fn target(&self) -> Result<(Raft, PathBuf), RPCError<Group>> {
        self.net
            .0
            .nodes
            .read()
            .unwrap()
            .get(&self.to)
            .cloned()
            .ok_or_else(|| unreachable("connection refused"))
    }

    /// One request and its answer.
    async fn call<T, F: Future<Output = T>>(
        &self,
        option: &RPCOption,
        rpc: impl FnOnce(Raft) -> F,
    ) -> Result<T, RPCError<Group>> {
        let work = async {
            let (raft, _) = self.target()?;
            self.net.travel().await;
            if self.net.is_cut(self.from, self.to) {
                return std::future::pending().await;
            }
            let answer = rpc(raft).await;
            self.net.travel().await;
            if self.net.is_cut(self.to, self.from) {
                return std::future::pending().await;
            }
            Ok(answer)
        };
        timeout(option.soft_ttl(), work).await.unwrap_or_else(|_| Err(unreachable("no answer")))
    }
}

impl RaftNetworkV2<Group> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Group>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Group>, RPCError<Group>> {
        self.call(&option, |raft| async move { raft.append_entries(rpc).await }).await?.map_err(unreachable)
    }

    /// Pipelined: requests are passed on while earlier ones wait for their answers.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Group>, RPCError<Group>>>, RPCError<Group>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Group>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            if self.is_heartbeat {
                self.net.0.heartbeats.fetch_add(1, Ordering::Relaxed);
            }
            let (raft, _) = self.target()?;
            let state = self.net.link(self.from, self.to);
            let is_limited = self.net.0.quiet.load(Ordering::Relaxed);
            if is_limited && !state.may_send() {
                return Err(unreachable("no answers for a while"));
            }
            let limit = Arc::clone(&state);
            let (net, from, to, ttl) = (self.net.clone(), self.from, self.to, option.soft_ttl());
            let sent = Arc::new(AtomicU64::new(0));
            let (count, link) = (Arc::clone(&sent), net.clone());
            let input = input.filter_map(move |request| {
                count.fetch_add(1, Ordering::Relaxed);
                let link = link.clone();
                let may_send = !is_limited || limit.may_send();
                async move {
                    link.travel().await;
                    (may_send && !link.is_cut(from, to)).then_some(request)
                }
            });
            let state_of_link = state;
            let answers = Box::pin(raft.stream_append(Box::pin(input)));
            let stream = futures::stream::unfold(Some((answers, 0, net)), move |state| {
                let sent = Arc::clone(&sent);
                let link = Arc::clone(&state_of_link);
                async move {
                    let (mut answers, received, net) = state?;
                    let mut since = Instant::now();
                    loop {
                        match timeout(ttl, answers.next()).await {
                            Ok(None) if sent.load(Ordering::Relaxed) == received => return None,
                            Ok(None) => {
                                // Requests vanished: the answer never comes.
                                sleep(ttl).await;
                                return Some((Err(unreachable("no answer")), None));
                            }
                            Ok(Some(answer)) => {
                                net.travel().await;
                                if net.is_cut(to, from) {
                                    sleep(ttl).await;
                                    return Some((Err(unreachable("no answer")), None));
                                }
                                link.answered();
                                return Some(match answer {
                                    Ok(answer) => (Ok(answer), Some((answers, received + 1, net))),
                                    Err(fatal) => (Err(unreachable(fatal)), None),
                                });
                            }
                            Err(_) if sent.load(Ordering::Relaxed) > received => {
                                if since.elapsed() >= ttl {
                                    return Some((Err(unreachable("no answer")), None));
                                }
                            }
                            Err(_) => since = Instant::now(),
                        }
                    }
                }
            });
            Ok(stream.boxed())
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Group>,
        option: RPCOption,
    ) -> Result<VoteResponse<Group>, RPCError<Group>> {
        self.call(&option, |raft| async move { raft.vote(rpc).await }).await?.map_err(unreachable)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Group>,
        option: RPCOption,
    ) -> Result<VoteResponse<Group>, RPCError<Group>> {
        self.call(&option, |raft| async move { raft.pre_vote(rpc).await }).await?.map_err(unreachable)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Group, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Group>, StreamingError<Group>> {
        let (raft, folder) = self.target()?;
        let (net, from, to) = (self.net.clone(), self.from, self.to);
        net.0.snapshots.fetch_add(1, Ordering::Relaxed);
        // The receiver is a task of its own with its own file, as on another machine.
        let (chunks, mut arriving) = tokio::sync::mpsc::channel::<Vec<u8>>(4);
        let meta = snapshot.meta.clone();
        let receive = tokio::spawn(async move {
            let path = Machine::incoming(&folder);
            let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
            while let Some(chunk) = arriving.recv().await {
                file = tokio::task::spawn_blocking(move || file.write_all(&chunk).map(|()| file)).await??;
            }
            file.sync_all()?;
            let snapshot = SnapshotFile { file: Arc::new(File::open(&path)?), path };
            raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await.map_err(std::io::Error::other)
        });
        let abort = receive.abort_handle();
        let send = async {
            let mut at = 0;
            loop {
                let file = Arc::clone(&snapshot.snapshot.file);
                let mut chunk = vec![0; CHUNK_BYTES];
                let (chunk, read) = tokio::task::spawn_blocking(move || {
                    let read = file.read_at(&mut chunk, at);
                    (chunk, read)
                })
                .await
                .map_err(unreachable)?;
                let read = read.map_err(unreachable)?;
                if read == 0 {
                    break;
                }
                net.travel().await;
                let is_cut = net.is_cut(from, to) || net.is_cut(to, from);
                let mut chunk = chunk;
                chunk.truncate(read);
                // Progress is limited, not the whole transfer.
                match timeout(option.soft_ttl(), chunks.send(chunk)).await {
                    Ok(Ok(())) if !is_cut => {}
                    _ => return Err(unreachable("the transfer has stopped").into()),
                }
                net.0.snapshot_chunks.fetch_add(1, Ordering::Relaxed);
                at += read as u64;
            }
            drop(chunks);
            receive.await.map_err(unreachable)?.map_err(|error| unreachable(error).into())
        };
        tokio::select! {
            done = send => done,
            closed = cancel => {
                abort.abort();
                Err(closed.into())
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Group>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Group>, RPCError<Group>> {
        self.call(&option, |raft| async move { raft.handle_transfer_leader(request).await })
            .await?
            .map_err(unreachable)
    }

    /// The default grows to one second, which is longer than an election.
    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(50))))
    }
}
