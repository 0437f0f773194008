//! Point 6: restored leaders, logs that lost their tail.

use openraft::{Config, async_runtime::WatchReceiver};
use raft_trial::{
    cluster::{Cluster, nodes, plan_config, proposal},
    types::code,
};
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

fn term(cluster: &Cluster, id: u64) -> u64 {
    cluster.raft(id).metrics().borrow_watched().current_term
}

async fn restored(restore: Option<bool>, members: u64) {
    let mut cluster = Cluster::new("restore", Config { enable_leader_restore: restore, ..plan_config() });
    cluster.start_new(members).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    for _ in 0..100 {
        cluster.raft(leader).client_write(proposal(0, 200)).await.unwrap();
    }
    let before = term(&cluster, leader);
    cluster.stop(leader).await;
    let begin = Instant::now();
    cluster.start(leader).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let at_once = cluster.raft(leader).is_leader();
    let new = cluster.leader(Duration::from_secs(5)).await;
    println!(
        "{members} members, enable_leader_restore {restore:?}: is_leader after 20 ms {at_once}; leader {leader} -> {new:?} in {:?}, term {before} -> {}",
        begin.elapsed(),
        term(&cluster, leader)
    );
}

/// Cuts the last `lost` records off a log file.
fn lose_tail(folder: &Path, lost: usize) -> u64 {
    let path = folder.join("log");
    let bytes = std::fs::read(&path).unwrap();
    let (mut at, mut offsets) = (0, Vec::new());
    while let Some(head) = bytes.get(at..at + 8) {
        let len = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let Some(body) = bytes.get(at + 8..at + 8 + len) else { break };
        offsets.push((at, code::Reader(body).u64()));
        at += 8 + len;
    }
    let (cut, index) = offsets[offsets.len() - lost];
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut as u64).unwrap();
    index - 1
}

async fn lost_tail(allow: Option<bool>, while_leader_lives: bool, lose_committed: bool) {
    println!(
        "-- a follower loses its last 20 entries; allow_log_reversion {allow:?}, leader {}",
        if while_leader_lives { "lives" } else { "is restarted too" }
    );
    println!("   committed position in RAFT {}", if lose_committed { "lost too" } else { "kept" });
    let mut cluster = Cluster::new("lost-tail", Config { allow_log_reversion: allow, ..plan_config() });
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    for _ in 0..100 {
        cluster.raft(leader).client_write(proposal(0, 200)).await.unwrap();
    }
    cluster.converge(Duration::from_secs(5)).await.unwrap();
    let victim = leader % 3 + 1;
    cluster.stop(victim).await;
    if !while_leader_lives {
        cluster.stop(leader).await;
    }
    let last = lose_tail(&cluster.folder(victim), 20);
    if lose_committed {
        let mut raft = raft_trial::store::RaftFile::read(&cluster.folder(victim)).unwrap().unwrap().0;
        raft.committed = None;
        raft.create(&cluster.folder(victim)).unwrap();
    }
    let begin = Instant::now();
    match cluster.start(victim).await {
        Ok(()) => println!("Raft::new accepts the short log (last index {last}), {:?}", begin.elapsed()),
        Err(error) => {
            println!("Raft::new refuses it: {error}");
            return;
        }
    }
    if !while_leader_lives {
        cluster.start(leader).await.unwrap();
    }
    let mut failed = 0;
    for _ in 0..100 {
        let writer = cluster.leader(Duration::from_secs(5)).await;
        let Some(writer) = writer else {
            failed += 1;
            continue;
        };
        let write = cluster.raft(writer).client_write(proposal(0, 200));
        failed += u64::from(!matches!(tokio::time::timeout(Duration::from_secs(2), write).await, Ok(Ok(_))));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{failed} of 100 writes failed; {:?}", cluster.converge(Duration::from_secs(3)).await);
    for (id, member) in &cluster.members {
        let metrics = member.raft.metrics().borrow_watched().clone();
        println!(
            "  m{id}{}: {:?} running {:?} last {:?}",
            if *id == victim { " (victim)" } else { "" },
            metrics.state,
            metrics.running_state.map_err(|e| e.to_string().chars().take(200).collect::<String>()),
            metrics.last_log_index
        );
    }
    if allow == Some(true) {
        return;
    }
    // The remedy of the plan: a new node ID with an empty folder.
    cluster.stop(victim).await;
    std::fs::remove_dir_all(cluster.folder(victim)).unwrap();
    let writer = cluster.leader(Duration::from_secs(5)).await.expect("a leader");
    let raft = cluster.raft(writer).clone();
    let begin = Instant::now();
    cluster.start(4).await.unwrap();
    let added = raft.add_learner(4, nodes([4])[&4].clone(), true).await.map(|r| r.log_id.index);
    let voters: BTreeSet<u64> = [1, 2, 3, 4].into_iter().filter(|id| *id != victim).collect();
    let changed = raft.change_membership(voters, false).await.map(|r| r.log_id.index);
    println!(
        "replaced by node 4: {added:?} {changed:?} in {:?}; {:?}",
        begin.elapsed(),
        cluster.converge(Duration::from_secs(5)).await
    );
}

/// A follower with a lost tail helps to elect a member that lacks an acknowledged entry.
async fn unsafe_vote() {
    println!("-- why a lost tail must not vote");
    let mut cluster = Cluster::new("unsafe-vote", plan_config());
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    let (a, b) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.stop(b).await;
    for _ in 0..30 {
        cluster.raft(leader).client_write(proposal(0, 200)).await.unwrap();
    }
    let acknowledged = cluster.members[&leader].machine.state().applied;
    cluster.stop(a).await;
    cluster.stop(leader).await;
    lose_tail(&cluster.folder(a), 20);
    // The file RAFT may lose the unsynced commit position in the same power loss.
    let mut raft = raft_trial::store::RaftFile::read(&cluster.folder(a)).unwrap().unwrap().0;
    raft.committed = None;
    raft.create(&cluster.folder(a)).unwrap();
    cluster.start(a).await.unwrap();
    cluster.start(b).await.unwrap();
    let new = cluster.leader(Duration::from_secs(5)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!(
        "acknowledged {acknowledged}, new leader {new:?} has {:?}",
        new.map(|id| cluster.members[&id].machine.state().applied)
    );
}

pub async fn run() {
    for members in [1, 3] {
        for restore in [None, Some(false)] {
            restored(restore, members).await;
        }
    }
    lost_tail(None, true, false).await;
    lost_tail(None, true, true).await;
    lost_tail(None, false, true).await;
    lost_tail(Some(true), true, true).await;
    unsafe_vote().await;
}
