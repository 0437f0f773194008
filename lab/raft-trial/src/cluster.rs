//! Members in one process, for the trials.

use crate::{
    machine::{Machine, State},
    network::{Net, Peers},
    store::{RaftFile, Store},
    types::{Group, Membership, Proposal, Raft, StoredMembership, Vote, log_id},
};
use openraft::{BasicNode, Config, SnapshotPolicy};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

pub struct Member {
    pub id: u64,
    pub raft: Raft,
    pub store: Store,
    pub machine: Machine,
    pub folder: PathBuf,
}

/// The settings of the plan.
pub fn plan_config() -> Config {
    Config {
        cluster_name: "fermata".into(),
        heartbeat_interval: 150,
        election_timeout_min: 400,
        election_timeout_max: 800,
        install_snapshot_timeout: 60_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        // `add_learner(blocking)` returns when the learner lacks at most so many entries.
        replication_lag_threshold: 100,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(1600),
        ..Config::default()
    }
}

pub struct Cluster {
    pub net: Net,
    pub root: PathBuf,
    pub members: BTreeMap<u64, Member>,
    pub config: Arc<Config>,
    pub filler_bytes: u64,
}

/// Starts openraft. Not an `async fn`: the boxed future is compiled here, once, and not again in
/// every crate that calls it. That is two minutes of compiling.
pub fn open_raft(
    id: u64,
    config: Arc<Config>,
    peers: Peers,
    store: Store,
    machine: Machine,
) -> futures::future::BoxFuture<'static, Result<Raft, String>> {
    Box::pin(
        async move { Raft::new(id, config, peers, store, machine).await.map_err(|error| error.to_string()) },
    )
}

pub fn nodes(ids: impl IntoIterator<Item = u64>) -> BTreeMap<u64, BasicNode> {
    ids.into_iter().map(|id| (id, BasicNode::new(format!("m{id}")))).collect()
}

impl Cluster {
    pub fn new(name: &str, config: Config) -> Self {
        let root = std::env::temp_dir().join("raft-trial").join(name);
        let _absent = std::fs::remove_dir_all(&root);
        let config = Arc::new(config.validate().expect("a valid configuration"));
        Self { net: Net::default(), root, members: BTreeMap::new(), config, filler_bytes: 0 }
    }

    pub fn folder(&self, id: u64) -> PathBuf {
        self.root.join(id.to_string())
    }

    /// Starts (or restarts) a member on its folder.
    pub async fn start(&mut self, id: u64) -> Result<(), String> {
        let folder = self.folder(id);
        let store = Store::open(&folder, id).map_err(|error| error.to_string())?;
        let mut machine = Machine::open(&folder);
        machine.filler_bytes = self.filler_bytes;
        let peers = Peers { net: self.net.clone(), from: id };
        let raft = open_raft(id, Arc::clone(&self.config), peers, store.clone(), machine.clone()).await?;
        self.net.join(id, raft.clone(), folder.clone());
        self.members.insert(id, Member { id, raft, store, machine, folder });
        Ok(())
    }

    /// Ends a member as if its process were killed: its connections are refused.
    pub async fn stop(&mut self, id: u64) {
        self.net.leave(id);
        if let Some(member) = self.members.remove(&id) {
            let _stopped = member.raft.shutdown().await;
        }
    }

    /// A new group of `n` by `initialize()`.
    pub async fn start_new(&mut self, n: u64) {
        for id in 1..=n {
            self.start(id).await.expect("start");
        }
        self.members[&1].raft.initialize(nodes(1..=n)).await.expect("initialize");
        self.leader(Duration::from_secs(10)).await.expect("a leader");
    }

    /// Writes the state of a one-member group with history up to record `last` by hand.
    pub fn write_one_member_state(&self, id: u64, term: u64, last: u64, committed_vote: bool) {
        let folder = self.folder(id);
        std::fs::create_dir_all(&folder).unwrap();
        let purged = log_id(term, last);
        let only = Membership::new(vec![BTreeSet::from([id])], nodes([id])).unwrap();
        let state = State {
            last_applied: Some(purged),
            // The membership is as old as the snapshot.
            membership: StoredMembership::new(Some(purged), only),
            applied: last + 1,
            digest: 42,
            ..State::default()
        };
        Machine::write_snapshot(&folder, &state, self.filler_bytes).unwrap();
        let vote = if committed_vote { Vote::new_committed(term, id) } else { Vote::new(term, id) };
        let raft = RaftFile { node_id: id, vote: Some(vote), purged: Some(purged), committed: Some(purged) };
        raft.create(&folder).unwrap();
    }

    /// Waits for a leader that serves: it has applied an entry of its term.
    pub async fn leader(&self, limit: Duration) -> Option<u64> {
        self.leader_except(limit, None).await
    }

    pub async fn leader_except(&self, limit: Duration, except: Option<u64>) -> Option<u64> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            for (id, member) in &self.members {
                if Some(*id) != except && member.raft.is_leader() {
                    if member.raft.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await.is_ok() {
                        return Some(*id);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        None
    }

    pub fn raft(&self, id: u64) -> &Raft {
        &self.members[&id].raft
    }

    /// Waits until all members have the same applied state. Returns (applied, skipped, digest).
    pub async fn converge(&self, limit: Duration) -> Result<(u64, u64, u64), String> {
        let end = Instant::now() + limit;
        loop {
            let states: Vec<_> = self.members.values().map(|member| member.machine.state()).collect();
            let same = states
                .windows(2)
                .all(|pair| pair[0].last_applied == pair[1].last_applied && pair[0].digest == pair[1].digest);
            if same {
                return Ok((states[0].applied, states[0].skipped, states[0].digest));
            }
            if Instant::now() > end {
                let states: Vec<_> = states
                    .iter()
                    .map(|state| (state.last_applied, state.applied, state.skipped, state.digest))
                    .collect();
                return Err(format!("{states:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub fn proposal(number: u64, bytes: usize) -> Proposal {
    Proposal { number, records: vec![number as u8; bytes].into() }
}

pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    if sorted.is_empty() { f64::NAN } else { sorted[((sorted.len() - 1) as f64 * p).round() as usize] }
}

/// CPU seconds of this process.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

pub type C = Group;
