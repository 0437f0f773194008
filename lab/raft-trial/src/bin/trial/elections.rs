//! Point 5: elections, transfer, pre-vote.

use openraft::Config;
use raft_trial::cluster::{Cluster, percentile, plan_config, proposal};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

fn show(name: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    println!(
        "{name}: {} trials, min {:.0} ms, median {:.0} ms, p90 {:.0} ms, worst {:.0} ms",
        times.len(),
        times[0],
        percentile(&times, 0.5),
        percentile(&times, 0.9),
        times[times.len() - 1]
    );
}

/// Time until a write is committed by a leader other than `old`.
async fn served(cluster: &Cluster, old: u64) -> (u64, Duration) {
    let begin = Instant::now();
    loop {
        for (id, member) in &cluster.members {
            if *id != old && member.raft.is_leader() {
                let write = member.raft.client_write(proposal(0, 200));
                if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), write).await {
                    return (*id, begin.elapsed());
                }
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "nobody leads");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn term(cluster: &Cluster, id: u64) -> u64 {
    use openraft::async_runtime::WatchReceiver;
    cluster.raft(id).metrics().borrow_watched().current_term
}

async fn stops(name: &str, config: Config, trials: usize) {
    let mut cluster = Cluster::new("elections", config);
    cluster.start_new(3).await;
    let mut times = Vec::new();
    let (mut leader, first_term) = (cluster.leader(Duration::from_secs(5)).await.unwrap(), term(&cluster, 1));
    for _ in 0..trials {
        let old = cluster.members.remove(&leader).unwrap();
        cluster.net.leave(leader);
        let stopping = tokio::spawn(async move {
            let _ended = old.raft.shutdown().await;
        });
        let (new, time) = served(&cluster, leader).await;
        times.push(time.as_secs_f64() * 1e3);
        stopping.await.unwrap();
        cluster.start(leader).await.expect("restart");
        leader = new;
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster.converge(Duration::from_secs(5)).await.expect("converge");
        leader = cluster.leader(Duration::from_secs(5)).await.unwrap_or(leader);
    }
    show(name, times);
    println!("   terms used: {}", term(&cluster, leader) - first_term);
}

async fn transfers(trials: usize) {
    let mut cluster = Cluster::new("transfers", plan_config());
    cluster.start_new(3).await;
    let mut leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    let (mut times, mut elsewhere) = (Vec::new(), 0);
    for _ in 0..trials {
        let to = leader % 3 + 1;
        let begin = Instant::now();
        cluster.raft(leader).trigger().transfer_leader(to).await.expect("running");
        let (new, _) = served(&cluster, leader).await;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        elsewhere += u64::from(new != to);
        leader = new;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    show("transfer until a write is committed", times);
    println!("   another one than the target led: {elsewhere}");

    println!("-- transfer to a member that is down");
    let to = leader % 3 + 1;
    cluster.stop(to).await;
    let begin = Instant::now();
    cluster.raft(leader).trigger().transfer_leader(to).await.expect("running");
    let refused = cluster.raft(leader).client_write(proposal(0, 200)).await;
    println!("write at the old leader: {:?}", refused.map(|r| r.log_id.index).map_err(|e| e.to_string()));
    let raft = cluster.raft(leader).clone();
    let mut back = None;
    while begin.elapsed() < Duration::from_secs(8) {
        for (id, member) in &cluster.members {
            if member.raft.is_leader() {
                let write = member.raft.client_write(proposal(0, 200));
                if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), write).await {
                    back = back.or(Some((*id, begin.elapsed())));
                }
            }
        }
        if back.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("old leader {leader}, writes again: {back:?}; old is_leader {}", raft.is_leader());
}

async fn one_way(probe: Option<u64>, reads: bool, idle: bool, quiet: bool) {
    let mut cluster = Cluster::new("one-way", Config { quorum_loss_probe_interval: probe, ..plan_config() });
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    cluster.net.set_quiet(quiet);
    if idle {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for other in (1..=3).filter(|other| *other != leader) {
        cluster.net.cut(other, leader);
    }
    if !idle {
        let raft = cluster.raft(leader).clone();
        tokio::spawn(async move { raft.client_write(proposal(0, 200)).await });
    }
    let begin = Instant::now();
    let old = cluster.raft(leader).clone();
    let reader = tokio::spawn(async move {
        while reads {
            let _refused = old
                .ensure_linearizable(
                    openraft::LinearizerOption::new(Some(Duration::ZERO), true)
                        .with_wait_timeout(Duration::from_millis(100)),
                )
                .await;
        }
    });
    let new = cluster.leader_except(Duration::from_secs(12), Some(leader)).await;
    reader.abort();
    println!(
        "answers to the leader are lost, reads at the leader {reads}, idle {idle}, quiet links {quiet}, probe interval {probe:?}: new leader {new:?} after {:?}",
        begin.elapsed()
    );
}

/// A member that was isolated for a while comes back: does the term grow, does the leader change?
async fn isolated_member(pre_vote: bool) {
    let mut cluster = Cluster::new("pre-vote", Config { enable_pre_vote: Some(pre_vote), ..plan_config() });
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    let before = term(&cluster, leader);
    let away = leader % 3 + 1;
    cluster.net.isolate(away, &[1, 2, 3]);
    let (mut slowest, mut failed) = (Duration::ZERO, 0);
    let begin = Instant::now();
    let mut away_term = 0;
    while begin.elapsed() < Duration::from_secs(9) {
        if begin.elapsed() > Duration::from_secs(6) {
            if away_term == 0 {
                away_term = term(&cluster, away);
            }
            cluster.net.heal();
        }
        let write = Instant::now();
        match tokio::time::timeout(
            Duration::from_secs(3),
            cluster.raft(leader).client_write(proposal(0, 200)),
        )
        .await
        {
            Ok(Ok(_)) => slowest = slowest.max(write.elapsed()),
            _ => failed += 1,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!(
        "pre-vote {pre_vote}: member isolated for 6 s: its term {before} -> {away_term}; after healing term {}, leader {leader} -> {:?}, slowest write {slowest:?}, {failed} failed",
        term(&cluster, leader),
        cluster.leader(Duration::from_secs(5)).await
    );
}

pub async fn run(args: &[String]) {
    let what = args.first().map_or("all", String::as_str);
    let trials = args.get(1).map_or(50, |count| count.parse().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    if what == "busy" {
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
    }
    match what {
        "stop" | "busy" => stops(what, plan_config(), trials).await,
        "transfer" => transfers(trials).await,
        _ => {
            one_way(Some(1600), false, true, false).await;
            one_way(Some(1600), true, true, false).await;
            one_way(Some(1600), false, false, false).await;
            one_way(None, false, true, false).await;
            one_way(Some(1600), false, false, true).await;
            one_way(Some(1600), true, false, true).await;
            one_way(None, true, false, true).await;
            isolated_member(true).await;
            isolated_member(false).await;
        }
    }
}
