//! Clients: calls that are repeated with the same ID until their answer is definite, and what they
//! record.

use crate::{
    datanodes::DataNodes,
    history::{Answer, Call, NAMES, Recorded},
    namenodes::{NameNodes, Running},
    network::Host,
};
use dfs::namenode::op::{BlockLength, Caller, OnAbandon, Op, Outcome, Request};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, NodeUuid, Nonce, RequestId},
    path::DfsPath,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// How long a client waits for an answer before it repeats the request.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
const NAMENODES: u64 = 3;
const LENGTH: u64 = 100;
/// Number of replicas of a new file.
const REPLICATION: u32 = 2;

/// A file that was closed.
#[derive(Debug, Clone)]
pub(crate) struct ClosedFile {
    pub(crate) path: String,
    pub(crate) block: BlockId,
    pub(crate) nonce: Nonce,
    pub(crate) length: u64,
    pub(crate) replication: u32,
    pub(crate) is_deleted: bool,
}

/// A client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) namenodes: NameNodes,
    /// Set when no new operation is to begin.
    pub(crate) stops: Arc<AtomicBool>,
}

fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).expect("an absolute path")
}

fn name(at: usize) -> DfsPath {
    path(&format!("/d{at}"))
}

impl Client {
    fn host(&self) -> Host {
        Host::Client(self.number)
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    async fn pause(&self) {
        sleep(self.namenodes.simulation.micros(5_000, 100_000)).await;
    }

    /// Executes an operation, and repeats the request until the answer is definite.
    async fn submit(&self, op: Op) -> Result<Outcome, Error> {
        let simulation = &self.namenodes.simulation;
        let id = RequestId(u128::from(simulation.random()) << 64 | u128::from(simulation.random()));
        let request = Request { id, caller: Caller::superuser("ann"), op };
        let mut to = 1 + simulation.below(NAMENODES);
        loop {
            let request = request.clone();
            let handle = |running: Arc<Running>| async move {
                running.driver.submit(request, |_, outcome| Ok(outcome)).await
            };
            let answer = self.namenodes.ask(self.host(), to, "submit", ANSWER_LIMIT, handle).await;
            match answer {
                Some(Err(error)) if error.is_transient() => {
                    if error.message.contains("no quorum") {
                        simulation.count("leader without a quorum refused");
                    }
                    to = next(to, Some(&error));
                }
                Some(answer) => return answer,
                None => {
                    simulation.count("request repeated without an answer");
                    to = next(to, None);
                }
            }
            self.pause().await;
        }
    }

    /// Creates, changes, moves, deletes and reads folders.
    pub(crate) async fn run_on_names(self) -> Vec<Recorded> {
        let simulation = self.namenodes.simulation.clone();
        let mut history = Vec::new();
        while !self.stops() {
            let at = simulation.below(NAMES as u64) as usize;
            let mode = 1 + simulation.below(0o777) as u32;
            let begin = simulation.elapsed();
            let (call, answer) = match simulation.below(8) {
                0 | 1 => {
                    let made = self.submit(Op::Mkdir { path: name(at), parents: false, mode: Some(mode) });
                    (Call::Mkdir(at, mode), definite(made.await))
                }
                2 => {
                    let op = Op::SetAttributes {
                        path: name(at),
                        replication: None,
                        mode: Some(mode),
                        owner: None,
                        group: None,
                        modified_ms: None,
                    };
                    (Call::SetMode(at, mode), definite(self.submit(op).await))
                }
                3 => {
                    let deleted = self.submit(Op::Delete { path: name(at), recursive: true }).await;
                    (Call::Delete(at), definite(deleted))
                }
                4 => {
                    let to = (at + 1 + simulation.below(NAMES as u64 - 1) as usize) % NAMES;
                    let op = Op::Rename { from: name(at), to: name(to), overwrite: false };
                    (Call::Rename(at, to), definite(self.submit(op).await))
                }
                _ => match self.stat(at).await {
                    Some(answer) => (Call::Stat(at), answer),
                    None => continue,
                },
            };
            let recorded = Recorded { client: self.number, begin, end: simulation.elapsed(), call, answer };
            simulation.note("answered", [self.number, history.len() as u64]);
            history.push(recorded);
            sleep(simulation.micros(1_000, 40_000)).await;
        }
        history
    }

    /// Asks any NameNode. `None` if it does not answer, or does not lead.
    async fn stat(&self, at: usize) -> Option<Answer> {
        // A deposed leader may still believe that it leads.
        let all = self.namenodes.all();
        let leading = all.iter().filter(|running| running.member.leading().is_some());
        let leading: Vec<u64> = leading.map(|running| running.place).collect();
        let to = match leading.len() as u64 {
            0 => 1 + self.namenodes.simulation.below(NAMENODES),
            count => leading[self.namenodes.simulation.below(count) as usize],
        };
        let handle = move |running: Arc<Running>| async move {
            running.driver.query(|state| Ok(state.stat(&name(at)).map(|status| status.mode))).await
        };
        match self.namenodes.ask(self.host(), to, "stat", ANSWER_LIMIT, handle).await? {
            Ok(Ok(mode)) => Some(Answer::Mode(mode)),
            Ok(Err(error)) if error.kind == Kind::NotFound => Some(Answer::NotFound),
            Ok(Err(error)) => panic!("stat: {error}"),
            Err(error) => {
                assert!(error.is_transient(), "stat: {error}");
                if error.message.contains("no quorum") {
                    self.namenodes.simulation.count("leader without a quorum refused");
                }
                self.pause().await;
                None
            }
        }
    }

    /// Writes files of one block, and deletes some of them. Returns those that were closed.
    pub(crate) async fn run_on_files(self, nodes: DataNodes) -> Vec<ClosedFile> {
        let simulation = self.namenodes.simulation.clone();
        let mut closed: Vec<ClosedFile> = Vec::new();
        let mut number = 0;
        while !self.stops() {
            number += 1;
            sleep(simulation.micros(1_000, 200_000)).await;
            if simulation.chance(250)
                && let Some(file) = closed.iter_mut().find(|file| !file.is_deleted)
            {
                nodes.forget(file.block);
                file.is_deleted = true;
                let deleted = self.submit(Op::Delete { path: path(&file.path), recursive: true }).await;
                assert_eq!(deleted, Ok(Outcome::Existed(true)), "{file:?}");
                continue;
            }
            // Surplus replicas are deleted, and missing ones copied.
            if simulation.chance(300)
                && let Some(file) = closed.last_mut()
                && !file.is_deleted
            {
                let replication = 1 + simulation.below(3) as u32;
                let op = Op::SetAttributes {
                    path: path(&file.path),
                    replication: Some(replication),
                    mode: None,
                    owner: None,
                    group: None,
                    modified_ms: None,
                };
                match self.submit(op).await {
                    Ok(_) => file.replication = replication,
                    Err(error) => assert_eq!(error.kind, Kind::Refused, "{file:?}: {error}"),
                }
                continue;
            }
            let at = format!("/f/{}/{number}", self.number);
            match self.write(&nodes, &at).await {
                Ok(Some(file)) => {
                    nodes.need(file.block, file.nonce, file.length);
                    simulation.note("closed", [self.number, file.block.0]);
                    closed.push(file);
                }
                // No DataNode has the block.
                Ok(None) => {}
                Err(error) => {
                    // Refused: fewer DataNodes are known than replicas are wanted.
                    let is_expected = matches!(error.kind, Kind::NoNodes | Kind::LeaseLost | Kind::Refused);
                    assert!(is_expected, "{at}: {error}");
                    simulation.count("write given up");
                }
            }
        }
        closed
    }

    async fn write(&self, nodes: &DataNodes, at: &str) -> Result<Option<ClosedFile>, Error> {
        let simulation = &self.namenodes.simulation;
        let holder = format!("w{}", self.number);
        let created = self.submit(Op::Create {
            path: path(at),
            holder: holder.clone(),
            replication: Some(REPLICATION),
            block_size: None,
            overwrite: false,
            make_parents: true,
            mode: None,
            on_abandon: OnAbandon::Delete,
        });
        let Outcome::File(file) = created.await? else { panic!("an outcome of another kind") };
        let nonce = Nonce(simulation.random());
        let added = self.submit(Op::AddBlock {
            file,
            holder: holder.clone(),
            commits: vec![],
            exclude_nodes: vec![],
            writer_host: String::new(),
            expected: 0,
            nonce,
        });
        let Outcome::Block { block, nodes: pipeline } = added.await? else {
            panic!("an outcome of another kind")
        };
        if !self.send(nodes, &pipeline, block, nonce).await {
            return Ok(None);
        }
        let commits = vec![BlockLength { block, length: LENGTH }];
        self.submit(Op::Close { file, holder, commits, rename_to: None, overwrite: false }).await?;
        Ok(Some(ClosedFile {
            path: at.to_owned(),
            block,
            nonce,
            length: LENGTH,
            replication: REPLICATION,
            is_deleted: false,
        }))
    }

    /// Writes a block to the nodes of a pipeline. Returns whether one of them has it.
    async fn send(&self, nodes: &DataNodes, pipeline: &[NodeUuid], block: BlockId, nonce: Nonce) -> bool {
        let mut is_written = false;
        for at in nodes.find(pipeline) {
            let to = Host::DataNode(at as u64);
            let carried = timeout(ANSWER_LIMIT, self.namenodes.network.carry(self.host(), to, "block")).await;
            is_written |= carried.is_ok() && nodes.receive(at, block, nonce, LENGTH);
        }
        is_written
    }
}

/// Returns the NameNode that an answer names as the leader, or another one.
fn next(asked: u64, error: Option<&Error>) -> u64 {
    let leader = error.and_then(|error| error.leader.as_ref());
    let named = leader.and_then(|leader| leader.addr.strip_prefix('m')?.split(':').next()?.parse().ok());
    named.unwrap_or(1 + asked % NAMENODES)
}

fn definite(answer: Result<Outcome, Error>) -> Answer {
    match answer {
        Ok(Outcome::Existed(false)) => Answer::NotFound,
        Ok(_) => Answer::Done,
        Err(error) if error.kind == Kind::Exists => Answer::Exists,
        Err(error) if error.kind == Kind::NotFound => Answer::NotFound,
        Err(error) => panic!("a folder: {error}"),
    }
}
