//! The NameNode is killed during a stream of changes. Checks that acknowledged changes exist
//! afterwards. (The loss of unsynced bytes is tested on an instrumented disk in `dfs`, because the
//! page cache survives `kill -9`.)

use dfs_client::{Client, ClientOptions, CreateOptions, path::DfsPath};
use fermata_tests::{Cluster, QUICK, TIMEOUT, Up};
use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

pub(crate) async fn connect(cluster: &Cluster) -> Client {
    let address = cluster.config().cluster.namenode;
    let config = daemon::config::ClientConfig {
        deadline: daemon::Period(Duration::from_millis(1500)),
        ..daemon::config::ClientConfig::default()
    };
    Client::connect(ClientOptions::new(address, config).with(cluster.credentials())).await.unwrap()
}

/// An operation of a worker on a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FileOperation {
    Created,
    Renamed,
    Deleted,
}

/// Creates, renames and deletes files until `stop` is set or an operation is not acknowledged.
/// Returns each operation with the number of its file and whether it was acknowledged.
async fn work(
    client: Client,
    worker: usize,
    stop: &AtomicBool,
    steps_done: &AtomicUsize,
) -> Vec<(usize, FileOperation, bool)> {
    let mut log = Vec::new();
    for file in 0.. {
        let at = DfsPath::parse(&format!("/w{worker}/{file}")).unwrap();
        let to = DfsPath::parse(&format!("/w{worker}/{file}.moved")).unwrap();
        let steps = [FileOperation::Created, FileOperation::Renamed, FileOperation::Deleted];
        for did in &steps[..=file % 3] {
            let result = match did {
                FileOperation::Created => match client.create(&at, CreateOptions::default()).await {
                    Ok(writer) => writer.close().await.map(|_| ()),
                    Err(error) => Err(error),
                },
                FileOperation::Renamed => client.rename(&at, &to, false).await,
                FileOperation::Deleted => client.delete(&to, false).await.map(|_| ()),
            };
            log.push((file, *did, result.is_ok()));
            steps_done.store(log.len(), Ordering::Relaxed);
            if result.is_err() || stop.load(Ordering::Relaxed) {
                return log;
            }
        }
    }
    log
}

/// Checks that each file is in a state that `log` allows: after its last acknowledged operation, or
/// one operation further.
fn check_files(names: &[String], log: &[(usize, FileOperation, bool)], worker: usize) {
    let last_file = log.last().map_or(0, |(file, ..)| *file);
    for file in 0..=last_file {
        let has = |suffix: &str| names.contains(&format!("/w{worker}/{file}{suffix}"));
        let seen = (has(""), has(".moved"));
        let steps: Vec<_> = log.iter().filter(|(of, ..)| *of == file).collect();
        let after = |did: Option<FileOperation>| match did {
            None | Some(FileOperation::Deleted) => (false, false),
            Some(FileOperation::Created) => (true, false),
            Some(FileOperation::Renamed) => (false, true),
        };
        let acknowledged = steps.iter().rev().find(|(.., ok)| *ok).map(|(_, did, _)| *did);
        let mut possible = vec![after(acknowledged)];
        if let Some((_, did, false)) = steps.last() {
            possible.push(after(Some(*did)));
        }
        assert!(possible.contains(&seen), "worker {worker}, file {file}: {steps:?}, found {seen:?}");
    }
}

#[test]
fn acknowledged_changes_outlive_kill_9() {
    // The snapshot limit is small, so that some kills occur during a snapshot.
    let settings = format!("{QUICK}snapshot_bytes = \"20KiB\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for round in 0..5 {
        let (stop, done) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 4]);
        let logs = runtime.block_on(async {
            let client = connect(&cluster).await;
            let base: Vec<usize> = (0..4).map(|worker| round * 10 + worker).collect();
            for worker in &base {
                client.mkdir(&DfsPath::parse(&format!("/w{worker}")).unwrap(), true).await.unwrap();
            }
            let kill = async {
                // The kill comes at an arbitrary time after some work.
                let (started, enough) = (Instant::now(), 4 + 30 * round);
                let busy = |steps: &AtomicUsize| steps.load(Ordering::Relaxed) > enough;
                while !done.iter().all(busy) && started.elapsed() < TIMEOUT {
                    tokio::time::sleep(Duration::from_millis(7)).await;
                }
                tokio::task::block_in_place(|| cluster.mrctl(&["chaos", "kill", "namenode"]));
                stop.store(true, Ordering::Relaxed);
            };
            let workers = async {
                let (a, b, c, d) = tokio::join!(
                    work(client.clone(), base[0], &stop, &done[0]),
                    work(client.clone(), base[1], &stop, &done[1]),
                    work(client.clone(), base[2], &stop, &done[2]),
                    work(client.clone(), base[3], &stop, &done[3])
                );
                base.iter().copied().zip([a, b, c, d]).collect::<Vec<_>>()
            };
            tokio::join!(kill, workers).1
        });
        cluster.mrctl(&["chaos", "restart", "namenode"]);
        assert!(
            logs.iter().all(|(_, log)| log.len() > 3),
            "round {round}: hardly anything was done before the kill"
        );
        for (worker, log) in &logs {
            let list = cluster.json(&["fs", "ls", &format!("/w{worker}")]);
            let names: Vec<String> = list
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["path"].as_str().unwrap().to_owned())
                .collect();
            check_files(&names, log, *worker);
        }
    }
}
