//! Point 1: commit latency and rate, with and without Raft.

use fermata_journal::{Log, Recovery, disk::RealDisk};
use openraft::impls::ProgressResponder;
use raft_trial::{
    cluster::{C, Cluster, cpu_seconds, percentile, plan_config, proposal},
    store::Store,
    types::{Proposal, Raft},
};
use std::{
    future::Future,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

const ENTRY_BYTES: usize = 200;

/// Jiffies of the machine: (busy, all).
fn machine_time() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let values: Vec<u64> =
        text.lines().next().unwrap().split_whitespace().skip(1).take(8).map(|v| v.parse().unwrap()).collect();
    let all: u64 = values.iter().sum();
    (all - values[3] - values[4], all)
}

async fn measure<F, Fut>(name: &str, clients: usize, seconds: f64, operation: F)
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (cpu, machine, start) = (cpu_seconds(), machine_time(), Instant::now());
    let end = start + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let operation = operation.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    let begin = Instant::now();
                    operation().await;
                    times.push(begin.elapsed().as_secs_f64() * 1e3);
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let after = machine_time();
    let others = (after.0 - machine.0) as f64 / 100.0 - cpu;
    times.sort_by(f64::total_cmp);
    println!(
        "{name:24} {clients:4} clients  {:8.0}/s  p50 {:7.2} ms  p99 {:7.2} ms  cpu {:6.1} us/entry  others {:4.2} cores",
        times.len() as f64 / elapsed,
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        cpu / times.len() as f64 * 1e6,
        others / elapsed,
    );
}

/// One proposal per operation, many in flight. Waits for the commit, not for the apply.
async fn pipelined(raft: &Raft, proposal: Proposal) {
    let (responder, committed, _complete) = ProgressResponder::<C, _>::new();
    raft.write(proposal).responder(responder).await.expect("running");
    committed.await.expect("committed");
}

/// One batch in flight: what arrives meanwhile is the next batch, one entry.
struct Batches {
    pending: Mutex<(Vec<u8>, u64)>,
    wake: Notify,
    done: watch::Sender<u64>,
}

impl Batches {
    async fn send(&self, raft: Raft, depth_max: usize) {
        let mut next = 1;
        assert_eq!(depth_max, 1);
        loop {
            let bytes = {
                let mut pending = self.pending.lock().unwrap();
                if pending.0.is_empty() {
                    None
                } else {
                    pending.1 += 1;
                    Some(std::mem::take(&mut pending.0))
                }
            };
            let Some(bytes) = bytes else {
                self.wake.notified().await;
                continue;
            };
            pipelined(&raft, Proposal { number: 0, records: bytes.into() }).await;
            self.done.send_replace(next);
            next += 1;
        }
    }

    async fn append(&self, record: &[u8]) {
        let batch = {
            let mut pending = self.pending.lock().unwrap();
            pending.0.extend_from_slice(record);
            pending.1 + 1
        };
        self.wake.notify_one();
        self.done.subscribe().wait_for(|done| *done >= batch).await.unwrap();
    }
}

pub async fn run(args: &[String]) {
    let seconds: f64 = args.first().map_or(3.0, |arg| arg.parse().unwrap());
    let clients = [1, 16, 64, 256];
    let record: Arc<[u8]> = vec![7; ENTRY_BYTES].into();

    let mut cluster = Cluster::new("bench", plan_config());
    let plain = Store::open(cluster.root.join("plain"), 9).unwrap();
    let disk = Arc::new(RealDisk::open(cluster.root.join("journal")).unwrap());
    let journal = Arc::new(Log::open(disk, Recovery::Refuse).unwrap().log);
    cluster.start_new(3).await;
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    let mut single = Cluster::new("bench-single", plan_config());
    single.start_new(1).await;
    for n in clients {
        let (log, bytes) = (plain.clone(), Arc::clone(&record));
        measure("file log, no Raft", n, seconds, move || {
            let (log, bytes) = (log.clone(), Arc::clone(&bytes));
            async move { log.append_plain(&bytes).await }
        })
        .await;
        let (log, bytes) = (Arc::clone(&journal), Arc::clone(&record));
        measure("journal, no Raft", n, seconds, move || {
            let (log, bytes) = (Arc::clone(&log), Arc::clone(&bytes));
            async move {
                let seq = log.append(&bytes).unwrap();
                log.wait_durable(seq).await.unwrap();
            }
        })
        .await;
        let raft = single.raft(1).clone();
        measure("Raft, one member", n, seconds, move || {
            let raft = raft.clone();
            async move { pipelined(&raft, proposal(0, ENTRY_BYTES)).await }
        })
        .await;
        let before: Vec<_> = stats(&cluster);
        let raft = cluster.raft(leader).clone();
        measure("Raft, three members", n, seconds, move || {
            let raft = raft.clone();
            async move { pipelined(&raft, proposal(0, ENTRY_BYTES)).await }
        })
        .await;
        let after = stats(&cluster);
        for (id, (before, after)) in before.iter().zip(&after).enumerate() {
            print!(
                "   m{}: {:.1} entries/sync",
                id + 1,
                (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64
            );
        }
        println!();
        let batches =
            Arc::new(Batches { pending: Mutex::default(), wake: Notify::new(), done: watch::Sender::new(0) });
        let sender = tokio::spawn({
            let (batches, raft) = (Arc::clone(&batches), cluster.raft(leader).clone());
            async move { batches.send(raft, 1).await }
        });
        let bytes = Arc::clone(&record);
        measure("Raft, three, batches", n, seconds, move || {
            let (batches, bytes) = (Arc::clone(&batches), Arc::clone(&bytes));
            async move { batches.append(&bytes).await }
        })
        .await;
        sender.abort();
        assert_eq!(cluster.leader(Duration::from_secs(5)).await, Some(leader), "leader changed");
    }
    println!("converged: {:?}", cluster.converge(Duration::from_secs(10)).await);
}

fn stats(cluster: &Cluster) -> Vec<(u64, u64)> {
    let members = cluster.members.values();
    members
        .map(|member| {
            let stats = &member.store.shared().stats;
            (stats.batches.load(Ordering::Relaxed), stats.entries.load(Ordering::Relaxed))
        })
        .collect()
}
