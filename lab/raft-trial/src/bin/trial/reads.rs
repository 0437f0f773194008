//! Point 4: linearizable reads.

use openraft::{LinearizerOption, ReadPolicy};
use raft_trial::cluster::{Cluster, cpu_seconds, percentile, plan_config, proposal};
use std::time::{Duration, Instant};

async fn rate(cluster: &Cluster, leader: u64, readers: usize, writers: usize, seconds: f64) {
    let (beats, cpu, start) = (cluster.net.heartbeats(), cpu_seconds(), Instant::now());
    let end = start + Duration::from_secs_f64(seconds);
    let mut tasks = Vec::new();
    for index in 0..readers + writers {
        let raft = cluster.raft(leader).clone();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                if index < readers {
                    raft.ensure_linearizable(ReadPolicy::ReadIndex).await.expect("linearizable");
                } else {
                    raft.client_write(proposal(0, 200)).await.expect("write");
                }
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            times
        }));
    }
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (index, task) in tasks.into_iter().enumerate() {
        let times = task.await.unwrap();
        if index < readers { reads.extend(times) } else { writes.extend(times) }
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    for (what, mut times) in [("reads", reads), ("writes", writes)] {
        if times.is_empty() {
            continue;
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{readers:3} readers {writers:3} writers: {what:6} {:8.0}/s p50 {:6.2} ms p99 {:6.2} ms",
            times.len() as f64 / elapsed,
            percentile(&times, 0.5),
            percentile(&times, 0.99)
        );
    }
    let beats = cluster.net.heartbeats() - beats;
    println!(
        "   {:.0} confirmations sent per second, cpu {:.2} cores",
        beats as f64 / elapsed,
        cpu / elapsed
    );
}

pub async fn run() {
    let mut cluster = Cluster::new("reads", plan_config());
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    for (readers, writers) in [(1, 0), (64, 0), (256, 0), (64, 16)] {
        rate(&cluster, leader, readers, writers, 3.0).await;
    }
    cluster.net.set_delay(Duration::from_micros(500));
    println!("with 0.5 ms each way (timers round up to 1-2 ms):");
    rate(&cluster, leader, 64, 0, 2.0).await;
    cluster.net.set_delay(Duration::ZERO);

    for (name, both) in [("isolated", true), ("answers lost, heartbeats arrive", false)] {
        println!("-- leader {name}");
        let mut cluster = Cluster::new("reads-cut", plan_config());
        cluster.start_new(3).await;
        let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
        let old = cluster.raft(leader).clone();
        cluster.raft(leader).client_write(proposal(0, 200)).await.unwrap();
        let begin = Instant::now();
        for other in (1..=3).filter(|other| *other != leader) {
            cluster.net.cut(other, leader);
            if both {
                cluster.net.cut(leader, other);
            }
        }
        let mut asks = Vec::new();
        for step in 0..40 {
            let asked = old.clone();
            asks.push(tokio::spawn(async move {
                let at = begin.elapsed();
                let option: LinearizerOption = match step % 2 {
                    0 => ReadPolicy::ReadIndex.into(),
                    _ => LinearizerOption::new(Some(Duration::ZERO), true)
                        .with_wait_timeout(Duration::from_millis(200)),
                };
                let answer = asked.ensure_linearizable(option).await;
                (
                    step % 2,
                    at,
                    begin.elapsed(),
                    answer
                        .map(|_| ())
                        .map_err(|error| error.to_string().chars().take(90).collect::<String>()),
                )
            }));
            if step == 0 {
                let lease = old.ensure_linearizable(ReadPolicy::LeaseRead).await;
                println!("LeaseRead at once: {:?}", lease.is_ok());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut wrong = 0;
        let mut slowest = [Duration::ZERO; 2];
        let mut kinds = std::collections::BTreeMap::<String, (u64, Duration)>::new();
        for ask in asks {
            let (kind, at, end, answer) = ask.await.unwrap();
            wrong += u64::from(answer.is_ok());
            slowest[kind] = slowest[kind].max(end - at);
            if let Err(error) = answer {
                let count = kinds.entry(error).or_insert((0, at));
                count.0 += 1;
            }
        }
        println!(
            "answered although cut: {wrong}; slowest refusal {:?} (default), {:?} (wait_timeout 200 ms)",
            slowest[0], slowest[1]
        );
        println!("{kinds:#?}");
        let new = cluster.leader_except(Duration::from_secs(5), Some(leader)).await;
        println!("new leader {new:?}; the old one still says is_leader = {}", old.is_leader());
        cluster.net.heal();
        let healed = Instant::now();
        while old.is_leader() && healed.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("steps down {:?} after healing", healed.elapsed());
    }
}
