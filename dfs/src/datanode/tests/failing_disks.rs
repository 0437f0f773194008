//! Tests with disks that cannot be read, temporarily or permanently, or that hang. After a read
//! error one replica is lost; after a transient error of the process none is lost.

use super::{
    super::{
        DataNode,
        disk::{Disk, DiskSpace, RealDisk},
    },
    harness::*,
};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A disk on which opening files in a folder fails if `open_error` is set, and measuring free space
/// hangs as long as `hung` is set.
#[derive(Debug, Default)]
struct FailingDisk {
    open_error: Mutex<Option<(PathBuf, Errno)>>,
    hung: Mutex<bool>,
    no_longer_hung: Condvar,
}

impl Disk for FailingDisk {
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        RealDisk.sync_file(file, path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        match &*self.open_error.lock() {
            Some((ill, error)) if path.starts_with(ill) => Err((*error).into()),
            _ => RealDisk.open(path),
        }
    }
    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let mut hung = self.hung.lock();
        self.no_longer_hung.wait_while(&mut hung, |hung| *hung);
        RealDisk.space(path)
    }
}

/// Starts a node with folders a and b, and writes blocks 1 to 6, which are distributed over both
/// folders.
async fn node_with_blocks(bench: &Bench, disk: Arc<FailingDisk>) -> DataNode {
    let node = bench.node_on(&two_folders(bench), disk).await.unwrap();
    for block in 1..=6 {
        put(&chain(&[&node]), block, &bytes(100, block)).unwrap();
    }
    node
}

fn two_folders(bench: &Bench) -> daemon::config::Config {
    let mut config = bench.config("n1");
    config.datanode.dirs = vec![bench.dir("a"), bench.dir("b")];
    config
}

fn blocks_in(dir: &Path) -> Vec<u64> {
    (1..=6).filter(|block| block_file(dir, *block, "").exists()).collect()
}

fn is_nothing_quarantined(bench: &Bench) -> bool {
    ["a", "b"].iter().all(|dir| fs::read_dir(bench.dir(dir).join("bad")).unwrap().next().is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_fail_the_start_and_keep_all_replicas() {
    let bench = Bench::new().await;
    let disk = Arc::new(FailingDisk::default());
    node_with_blocks(&bench, disk.clone()).await.stop().await;
    let (in_a, in_b) = (blocks_in(&bench.dir("a")), blocks_in(&bench.dir("b")));
    assert_eq!((in_a.len(), in_b.len()), (3, 3));
    let a = fs::canonicalize(bench.dir("a")).unwrap();
    for transient in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
        *disk.open_error.lock() = Some((a.clone(), transient));
        let error = bench.node_on(&two_folders(&bench), disk.clone()).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot read the block ") && error.contains("/a/current/"), "{error}");
        assert_eq!(blocks_in(&bench.dir("a")), in_a);
    }
    *disk.open_error.lock() = None;
    let node = bench.node_on(&two_folders(&bench), disk.clone()).await.unwrap();
    assert_eq!(
        bench.namenode.requests_of(&node).replicas.len(),
        6,
        "replicas are lost after transient errors"
    );
    assert!(is_nothing_quarantined(&bench));
}

#[tokio::test(flavor = "multi_thread")]
async fn read_error_quarantines_one_replica_and_keeps_the_folder() {
    for error in [Errno::MFILE, Errno::ACCESS, Errno::IO] {
        let bench = Bench::new().await;
        let disk = Arc::new(FailingDisk::default());
        let node = node_with_blocks(&bench, disk.clone()).await;
        let a = fs::canonicalize(bench.dir("a")).unwrap();
        let in_a = blocks_in(&a);
        for suffix in ["", ".crc"] {
            *disk.open_error.lock() = Some((block_file(&a, in_a[0], suffix), error));
            let transient = error == Errno::MFILE;
            if transient || suffix.is_empty() {
                assert_eq!(
                    refusal_kind(read(&node, in_a[0], 100)),
                    if transient { "failed" } else { "damaged" }
                );
            }
        }
        *disk.open_error.lock() = None;
        if error == Errno::MFILE {
            assert!(
                read(&node, in_a[0], 100).is_ok() && is_nothing_quarantined(&bench),
                "the replica is lost after a transient error"
            );
            continue;
        }
        bench.namenode.until(&node, "one bad replica", |known| known.bad.len() == 1).await;
        let known = bench.namenode.requests_of(&node);
        assert_eq!(known.bad[0].block_id, in_a[0]);
        assert!(known.lost.is_empty() && known.usages().all(|usage| usage.failed_volumes == 0));
        assert!(a.join(format!("bad/blk_{}", in_a[0])).is_file(), "the replica is not quarantined");
        assert_eq!(refusal_kind(read(&node, in_a[0], 100)), "not-found", "a quarantined replica is served");
        for block in in_a.iter().skip(1).chain(&blocks_in(&bench.dir("b"))) {
            assert!(read(&node, *block, 100).unwrap().1 == bytes(100, *block), "block {block} is not served");
        }
        put(&chain(&[&node]), 7, b"hello").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn folder_with_too_many_bad_blocks_is_retired_unless_it_is_the_last() {
    let bench = Bench::new().await;
    let disk = Arc::new(FailingDisk::default());
    let mut config = two_folders(&bench);
    config.datanode.bad_blocks_max = 2;
    let node = bench.node_on(&config, disk.clone()).await.unwrap();
    for block in 1..=6 {
        put(&chain(&[&node]), block, &bytes(100, block)).unwrap();
    }
    let damage_blocks = |dir: &str, count: usize| {
        let root = fs::canonicalize(bench.dir(dir)).unwrap();
        for block in blocks_in(&root).into_iter().take(count) {
            *disk.open_error.lock() = Some((block_file(&root, block, ""), Errno::IO));
            assert_eq!(refusal_kind(read(&node, block, 100)), "damaged");
        }
        *disk.open_error.lock() = None;
    };
    let failed =
        |known: &ReceivedRequests, count| known.usages().last().is_some_and(|b| b.failed_volumes == count);
    damage_blocks("a", 1);
    bench.namenode.until(&node, "one bad", |known| known.bad.len() == 1 && failed(known, 0)).await;
    damage_blocks("a", 1);
    bench.namenode.until(&node, "folder a retired", |known| failed(known, 1)).await;
    assert_eq!(
        bench.namenode.requests_of(&node).lost.len(),
        1,
        "expected only the third block of folder a to be lost"
    );
    // Folder b is the last one: it is not retired, but gets no new blocks.
    let in_b = blocks_in(&bench.dir("b"));
    damage_blocks("b", 2);
    bench
        .namenode
        .until(&node, "no free space", |known| {
            failed(known, 1) && known.usages().last().is_some_and(|usage| usage.free == 0)
        })
        .await;
    assert!(
        read(&node, in_b[2], 100).unwrap().1 == bytes(100, in_b[2]),
        "a good replica in the last folder is not served"
    );
    assert_eq!(refusal_kind(put(&chain(&[&node]), 9, b"hello")), "no-space");
}

/// Makes a read find `block` in the folder `dir` damaged, while the block cannot be moved to
/// `bad/`.
fn damage_replica_that_cannot_be_moved(node: &DataNode, disk: &FailingDisk, dir: &Path, block: u64) {
    // The rename fails because the target is a folder that is not empty.
    fs::create_dir_all(dir.join(format!("bad/blk_{block}/x"))).unwrap();
    *disk.open_error.lock() = Some((block_file(dir, block, ""), Errno::IO));
    assert_eq!(refusal_kind(read(node, block, 100)), "damaged");
    *disk.open_error.lock() = None;
    assert_eq!(refusal_kind(read(node, block, 100)), "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn folder_whose_replica_cannot_be_moved_to_quarantine_is_retired() {
    let bench = Bench::new().await;
    let disk = Arc::new(FailingDisk::default());
    let node = node_with_blocks(&bench, disk.clone()).await;
    let a = fs::canonicalize(bench.dir("a")).unwrap();
    damage_replica_that_cannot_be_moved(&node, &disk, &a, blocks_in(&a)[0]);
    bench
        .namenode
        .until(&node, "folder a retired", |known| {
            known.bad.len() == 1
                && known.lost.len() == 2
                && known.usages().last().is_some_and(|usage| usage.failed_volumes == 1)
        })
        .await;
    for block in blocks_in(&bench.dir("b")) {
        assert!(read(&node, block, 100).is_ok(), "the other folder is not in use");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn last_folder_whose_replica_cannot_be_moved_to_quarantine_serves_the_others() {
    let bench = Bench::new().await;
    let disk = Arc::new(FailingDisk::default());
    let node = bench.node_on(&bench.config("n1"), disk.clone()).await.unwrap();
    for block in 1..=6 {
        put(&chain(&[&node]), block, &bytes(100, block)).unwrap();
    }
    damage_replica_that_cannot_be_moved(&node, &disk, &fs::canonicalize(bench.dir("n1")).unwrap(), 1);
    bench.namenode.until(&node, "one bad replica", |known| known.bad.len() == 1).await;
    assert!(bench.namenode.requests_of(&node).usages().all(|usage| usage.failed_volumes == 0));
    assert!(read(&node, 2, 100).unwrap().1 == bytes(100, 2));
    assert_eq!(
        refusal_kind(put(&chain(&[&node]), 9, b"hello")),
        "no-space",
        "the last folder takes new blocks"
    );
    bench.namenode.registrations.lock().nodes.values_mut().for_each(|known| known.forget = true);
    bench.namenode.until(&node, "a new registration", |known| known.registrations.len() == 2).await;
    bench.namenode.until(&node, "its report", |known| known.full_reports == 2).await;
    assert_eq!(bench.namenode.requests_of(&node).replicas.len(), 5, "the damaged replica is reported again");
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_disk_stops_neither_heartbeats_nor_writes() {
    let bench = Bench::new().await;
    let disk = Arc::new(FailingDisk::default());
    let node = node_with_blocks(&bench, disk.clone()).await;
    *disk.hung.lock() = true;
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    let before = bench.namenode.requests_of(&node).heartbeats.len();
    put(&chain(&[&node]), 7, b"hello").unwrap();
    bench
        .namenode
        .until(&node, "heartbeats with the usage", |known| {
            known.replicas.contains_key(&7)
                && known.heartbeats.len() > before + 5
                && known.usages().last().is_some_and(|usage| usage.free > 0)
        })
        .await;
    *disk.hung.lock() = false;
    disk.no_longer_hung.notify_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn folder_with_blocks_but_without_version_file_is_refused() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 300, b"hello").unwrap();
    node.stop().await;
    let dir = bench.dir("n1");
    fs::rename(dir.join("VERSION"), dir.join("kept")).unwrap();
    let config = bench.config("n1");
    let start = || bench.node_on(&config, Arc::new(RealDisk));
    let error = start().await.unwrap_err().to_string();
    assert!(error.contains("blk_300") && error.contains("no VERSION file"), "{error}");
    fs::rename(dir.join("kept"), dir.join("VERSION")).unwrap();
    let node = start().await.unwrap();
    assert_eq!(read(&node, 300, 5).unwrap().1, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn incarnation_increases_even_if_the_clock_was_set_back() {
    let bench = Bench::new().await;
    bench.node("n1").await.stop().await;
    let path = bench.dir("n1").join("VERSION");
    let text = fs::read_to_string(&path).unwrap();
    let ahead = 9_000_000_000_000_000_u64;
    let lines = text.lines().map(|line| match line.strip_prefix("incarnation") {
        Some(_) => format!("incarnation = {ahead}"),
        None => line.into(),
    });
    fs::write(&path, lines.collect::<Vec<String>>().join("\n")).unwrap();
    for start in 1..=2 {
        let node = bench.node("n1").await;
        assert_eq!(
            bench.namenode.requests_of(&node).registrations.last().unwrap().incarnation,
            ahead + start
        );
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantined_replicas_are_reported_again_and_duplicates_removed() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    for block in 1..=2 {
        put(&chain(&[&node]), block, &bytes(CHUNK, block)).unwrap();
    }
    fs::write(block_file(&dir, 2, ""), b"short").unwrap();
    assert_eq!(refusal_kind(read(&node, 2, CHUNK as u64)), "damaged");
    bench.namenode.until(&node, "one bad", |known| known.bad.len() == 1).await;
    node.stop().await;
    // Create a second replica of block 1, which appears to be good, in another folder.
    fs::create_dir_all(bench.dir("other/current/01")).unwrap();
    fs::copy(dir.join("VERSION"), bench.dir("other/VERSION")).unwrap();
    for suffix in ["", ".crc"] {
        fs::copy(block_file(&dir, 1, suffix), block_file(&bench.dir("other"), 1, suffix)).unwrap();
    }
    let mut config = bench.config("n1");
    config.datanode.dirs.push(bench.dir("other"));
    let node = bench.node_with(&config).await;
    bench.namenode.until(&node, "a second report of the bad replica", |known| known.bad.len() == 2).await;
    assert!(bench.namenode.requests_of(&node).bad.iter().all(|bad| bad.block_id == 2));
    wait_for("the duplicate to be deleted", || !bench.dir("other/bad/blk_1").exists()).await;
    assert!(!block_file(&bench.dir("other"), 1, "").exists() && dir.join("bad/blk_2").exists());
    assert!(read(&node, 1, CHUNK as u64).unwrap().1 == bytes(CHUNK, 1));
}
