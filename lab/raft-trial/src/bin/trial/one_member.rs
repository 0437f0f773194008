//! Point 2: a one-member state written by hand, then two members more.

use openraft::RaftMetrics;
use raft_trial::cluster::{C, Cluster, nodes, plan_config, proposal};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

fn show(metrics: &RaftMetrics<C>) -> String {
    format!(
        "state {:?}, term {}, leader {:?}, last index {:?}, applied {:?}, snapshot {:?}, purged {:?}",
        metrics.state,
        metrics.current_term,
        metrics.current_leader,
        metrics.last_log_index,
        metrics.last_applied.map(|id| id.index),
        metrics.snapshot.map(|id| id.index),
        metrics.purged.map(|id| id.index)
    )
}

pub async fn run() {
    use openraft::async_runtime::WatchReceiver;
    for (name, term, committed) in [
        ("term 1, committed vote", 1, true),
        ("term 1, plain vote", 1, false),
        ("term 0, committed vote", 0, true),
        ("term 0, plain vote", 0, false),
    ] {
        println!("-- {name}");
        let mut cluster = Cluster::new("one-member", plan_config());
        cluster.write_one_member_state(1, term, 999, committed);
        let begin = Instant::now();
        if let Err(error) = cluster.start(1).await {
            println!("Raft::new refuses it: {error}");
            continue;
        }
        println!(
            "Raft::new accepts it after {:?}; {}",
            begin.elapsed(),
            show(&cluster.raft(1).metrics().borrow_watched())
        );
        println!("is_initialized: {:?}", cluster.raft(1).is_initialized().await);
        match cluster.leader(Duration::from_secs(10)).await {
            Some(_) => println!("serves after {:?}", begin.elapsed()),
            None => {
                println!("no leader in 10 s; {}", show(&cluster.raft(1).metrics().borrow_watched()));
                continue;
            }
        }
        // At once instead of after the election timeout.
        let raft = cluster.raft(1).clone();
        let response = raft.client_write(proposal(0, 200)).await.expect("write");
        println!("first write has index {}", response.log_id.index);
        println!("{}", show(&raft.metrics().borrow_watched()));
        for id in [2, 3] {
            cluster.start(id).await.expect("start");
            let begin = Instant::now();
            let added = raft.add_learner(id, nodes([id])[&id].clone(), true).await;
            println!("add_learner({id}): {:?} in {:?}", added.map(|r| r.log_id.index), begin.elapsed());
            let state = cluster.members[&id].machine.state();
            println!(
                "  learner: {} snapshots, applied {}, {}",
                state.installs,
                state.applied,
                show(&cluster.raft(id).metrics().borrow_watched())
            );
        }
        let begin = Instant::now();
        let changed = raft.change_membership(BTreeSet::from([1, 2, 3]), false).await;
        println!("change_membership: {:?} in {:?}", changed.map(|r| r.log_id.index), begin.elapsed());
        for _ in 0..1000 {
            raft.client_write(proposal(0, 200)).await.expect("write");
        }
        println!("snapshots, chunks: {:?}", cluster.net.snapshot_counts());
        println!(
            "converged (applied, skipped, digest): {:?}",
            cluster.converge(Duration::from_secs(5)).await
        );
        // Restart each member; one after another.
        for id in [1, 2, 3] {
            cluster.stop(id).await;
            cluster.start(id).await.expect("restart");
            let leader = cluster.leader(Duration::from_secs(10)).await.expect("a leader");
            cluster.raft(leader).client_write(proposal(0, 200)).await.expect("write");
        }
        println!("after a restart of each: {:?}", cluster.converge(Duration::from_secs(5)).await);
        // The one member restarts alone before any other joined: immediate election by hand.
        let mut cluster = Cluster::new("one-member-2", plan_config());
        cluster.write_one_member_state(1, term, 999, committed);
        let begin = Instant::now();
        cluster.start(1).await.unwrap();
        let elected = cluster.raft(1).trigger().elect(false).await;
        let leader = cluster.leader(Duration::from_secs(10)).await;
        println!("with trigger().elect(): {elected:?}, leader {leader:?} after {:?}", begin.elapsed());
        // 3 to 1 is the reverse; a base membership written again.
    }
}
