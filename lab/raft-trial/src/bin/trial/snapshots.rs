//! Point 8: a large snapshot to a learner.

use openraft::{Config, async_runtime::WatchReceiver};
use raft_trial::cluster::{Cluster, nodes, plan_config, proposal, resident_bytes};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub async fn run() {
    for timeout in [200, 60_000] {
        let mut cluster =
            Cluster::new("snapshots", Config { install_snapshot_timeout: timeout, ..plan_config() });
        cluster.filler_bytes = 200 << 20;
        cluster.write_one_member_state(1, 1, 999, true);
        cluster.start(1).await.unwrap();
        cluster.leader(Duration::from_secs(20)).await.unwrap();
        let raft = cluster.raft(1).clone();
        let before = resident_bytes();
        let peak = Arc::new(AtomicU64::new(0));
        let sampler = tokio::spawn({
            let peak = Arc::clone(&peak);
            async move {
                loop {
                    peak.fetch_max(resident_bytes(), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
        let writer = tokio::spawn({
            let raft = raft.clone();
            async move {
                let (mut slowest, mut count) = (Duration::ZERO, 0);
                let end = Instant::now() + Duration::from_secs(8);
                while Instant::now() < end {
                    let begin = Instant::now();
                    raft.client_write(proposal(0, 200)).await.expect("write");
                    slowest = slowest.max(begin.elapsed());
                    count += 1;
                }
                (slowest, count)
            }
        });
        cluster.start(2).await.unwrap();
        let begin = Instant::now();
        let added =
            tokio::time::timeout(Duration::from_secs(60), raft.add_learner(2, nodes([2])[&2].clone(), true))
                .await;
        let returned = begin.elapsed();
        while cluster.members[&2].machine.state().installs == 0 && begin.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("add_learner(blocking) returned after {returned:?}; installed after {:?}", begin.elapsed());
        println!(
            "install_snapshot_timeout {timeout} ms: {:?} in {:?}",
            added.map(|r| r.map(|r| r.log_id.index)),
            begin.elapsed()
        );
        println!(
            "  transfers, chunks: {:?}; memory {} MiB before, peak {} MiB",
            cluster.net.snapshot_counts(),
            before >> 20,
            peak.load(Ordering::Relaxed) >> 20
        );
        println!("  writes meanwhile (slowest, count): {:?}", writer.await.unwrap());
        println!(
            "  learner: {} installs, {:?}",
            cluster.members[&2].machine.state().installs,
            cluster.converge(Duration::from_secs(5)).await
        );
        let metrics = cluster.raft(2).metrics().borrow_watched().clone();
        println!(
            "  learner snapshot {:?} purged {:?}",
            metrics.snapshot.map(|id| id.index),
            metrics.purged.map(|id| id.index)
        );
        sampler.abort();
        let length = std::fs::metadata(cluster.folder(2).join("snapshot")).unwrap().len();
        println!("  length of the learner's file: {length}");
    }
}
