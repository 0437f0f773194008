//! Tests of data folders: restarts, locks, identities, foreign files, failing and full disks.

use super::{
    super::{
        DataNodeError,
        disk::{Disk, DiskSpace, RealDisk},
    },
    harness::*,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A disk on which syncs fail in these folders, with the given error or else EIO.
#[derive(Debug, Default)]
struct BrokenDisk(Mutex<Vec<PathBuf>>, Option<Errno>);

impl BrokenDisk {
    fn check(&self, path: &Path) -> io::Result<()> {
        if self.0.lock().iter().any(|broken| path.starts_with(broken)) {
            return Err(self.1.unwrap_or(Errno::IO).into());
        }
        Ok(())
    }
}

impl Disk for BrokenDisk {
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        self.check(path)?;
        RealDisk.sync_file(file, path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        RealDisk.sync_folder(path)
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        RealDisk.open(path)
    }
    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        RealDisk.space(path)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_finalised_and_drops_partial_replicas() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let uuid = node.uuid();
    for block in [1, 256, 257, u64::MAX] {
        put(&chain(&[&node]), block, &bytes(1000, block)).unwrap();
    }
    let (mut half, _) = Put::open(&chain(&[&node]), 5, 0).unwrap();
    half.packet(&bytes(CHUNK, 1), false);
    half.wait_acked(CHUNK as u64);
    let tmp = bench.dir("n1").join("tmp/blk_5");
    assert!(tmp.exists());
    node.stop().await;
    let node = bench.node("n1").await;
    assert_eq!(node.uuid(), uuid, "the node has a new ID, although its folder exists");
    assert!(!tmp.exists());
    let known = bench.namenode.requests_of(&node);
    assert_eq!(known.replicas.keys().copied().collect::<Vec<_>>(), [1, 256, 257, u64::MAX]);
    assert!(known.bad.is_empty());
    assert_eq!(known.registrations.len(), 2);
    assert!(known.registrations[0].incarnation < known.registrations[1].incarnation);
    assert_eq!(known.registrations[1].cluster_id, "test-cluster");
    // The registration contains the usage, so that the NameNode knows it before the first
    // heartbeat.
    let usage = known.registrations[1].usage.as_ref().unwrap();
    assert_eq!((usage.used, usage.volumes, usage.failed_volumes), (4000, 1, 0));
    assert!(usage.free > 0 && usage.capacity == usage.used + usage.free && usage.disks.len() == 1);
    for block in [1, 256, 257, u64::MAX] {
        assert!(read(&node, block, 1000).unwrap().1 == bytes(1000, block));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_are_not_touched() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    node.stop().await;
    let unknown_files = [
        "notes.txt",
        "tmp/blk_007",
        "tmp/upload",
        "bad/readme",
        "current/x",
        "current/01/blk_2",
        "current/01/blk_1.crc.bak",
        "current/01/core",
    ];
    for file in unknown_files {
        fs::write(dir.join(file), file).unwrap();
    }
    fs::create_dir(dir.join("current/05/blk_5")).unwrap();
    // Create a checksum file without a data file, as after a crash between two renames. It names
    // another block.
    fs::copy(block_file(&dir, 1, ".crc"), dir.join("current/09/blk_9.crc")).unwrap();
    let node = bench.node("n1").await;
    assert_eq!(bench.namenode.requests_of(&node).replicas.keys().copied().collect::<Vec<_>>(), [1]);
    for file in unknown_files {
        assert_eq!(fs::read_to_string(dir.join(file)).unwrap(), file);
    }
    assert!(dir.join("current/05/blk_5").is_dir());
    assert!(dir.join("current/09/blk_9.crc").exists(), "the checksum file of another block was deleted");
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_cannot_be_used_are_refused_by_name() {
    let bench = Bench::new().await;
    let start = async |dirs: &[&str]| {
        let mut config = bench.config("n1");
        config.datanode.dirs = dirs.iter().map(|dir| bench.dir(dir)).collect();
        bench.node_on(&config, Arc::new(RealDisk)).await
    };
    let node = start(&["a"]).await.unwrap();
    let error = start(&["a"]).await.unwrap_err().to_string();
    assert!(error.contains("in use by datanode, pid "), "{error}");
    node.stop().await;
    start(&["b"]).await.unwrap().stop().await;
    let error = start(&["a", "b"]).await.unwrap_err().to_string();
    assert!(error.contains("/a and ") && error.contains("/b do not belong to the same DataNode"), "{error}");
    let error = start(&["a", "a"]).await.unwrap_err();
    assert!(matches!(error, DataNodeError::Twice(_)), "{error}");
    // A new, empty folder can be added.
    let node = start(&["a", "c"]).await.unwrap();
    let uuid = node.uuid();
    node.stop().await;
    let node = start(&["c"]).await.unwrap();
    assert_eq!(node.uuid(), uuid);
    node.stop().await;
    fs::write(bench.dir("c").join("VERSION"), "layout = 9\n").unwrap();
    let error = start(&["c"]).await.unwrap_err().to_string();
    assert!(error.contains("has layout 9, this build supports 2"), "{error}");
    fs::write(bench.dir("c").join("VERSION"), "gibberish").unwrap();
    let error = start(&["c"]).await.unwrap_err().to_string();
    assert!(error.contains("c/VERSION is damaged"), "{error}");
}

/// Starts a node with two folders, one of which cannot be used. Checks that the node serves the
/// replicas of the other folder, but does not start if no usable folder identifies it.
#[tokio::test(flavor = "multi_thread")]
async fn start_continues_without_an_unusable_folder_if_another_works() {
    let bench = Bench::new().await;
    let start = async |dirs: &[&str]| {
        let mut config = bench.config("n1");
        config.datanode.dirs = dirs.iter().map(|dir| bench.dir(dir)).collect();
        bench.node_on(&config, Arc::new(RealDisk)).await
    };
    let node = start(&["a", "b"]).await.unwrap();
    let uuid = node.uuid();
    for block in 1..=4 {
        put(&chain(&[&node]), block, &bytes(100, block)).unwrap();
    }
    node.stop().await;
    // Make the folder unusable, also for root, as on a disk that has become read-only.
    let break_it = |dir: &str| {
        fs::remove_file(bench.dir(dir).join("LOCK")).unwrap();
        fs::create_dir(bench.dir(dir).join("LOCK")).unwrap();
    };
    break_it("a");
    // The start fails, because only the unusable folder identifies the node.
    let error = start(&["a", "new"]).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot use folder /") && error.contains("/a: "), "{error}");
    let node = start(&["a", "b"]).await.unwrap();
    assert_eq!(node.uuid(), uuid);
    assert!(Path::new(&node.address.local_socket).exists());
    let one_failed = |usage: &proto::dfs::Usage| (usage.volumes, usage.failed_volumes) == (1, 1);
    bench.namenode.until(&node, "heartbeat", |known| known.usages().last().is_some_and(one_failed)).await;
    let on_b: Vec<u64> = (1..=4).filter(|block| block_file(&bench.dir("b"), *block, "").exists()).collect();
    assert_eq!(bench.namenode.requests_of(&node).replicas.keys().copied().collect::<Vec<_>>(), on_b);
    put(&chain(&[&node]), 9, b"hello").unwrap();
    node.stop().await;
    break_it("b");
    let error = start(&["a", "b"]).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot use folder /") && !error.contains('\n'), "{error}");
    for dir in ["a", "b"] {
        fs::remove_dir(bench.dir(dir).join("LOCK")).unwrap();
    }
    let node = start(&["a", "b"]).await.unwrap();
    assert_eq!(
        bench.namenode.requests_of(&node).replicas.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3, 4, 9]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_is_never_acknowledged_and_retires_the_folder() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.dirs = vec![bench.dir("a"), bench.dir("b")];
    let disk = Arc::new(BrokenDisk::default());
    let node = bench.node_on(&config, disk.clone()).await.unwrap();
    for block in 1..=6 {
        put(&chain(&[&node]), block, &bytes(100, block)).unwrap();
    }
    let on = |dir: &str| -> Vec<u64> {
        (1..=6).filter(|block| block_file(&bench.dir(dir), *block, "").exists()).collect()
    };
    let (in_a, in_b) = (on("a"), on("b"));
    assert_eq!((in_a.len(), in_b.len()), (3, 3), "the blocks are not distributed evenly over the folders");
    disk.0.lock().push(fs::canonicalize(bench.dir("a")).unwrap());
    let results: Vec<_> = (11..=14).map(|block| put(&chain(&[&node]), block, b"hello")).collect();
    let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 1, "only the first write to the broken folder should fail");
    assert!(failed[0].to_string().contains("failed and is retired"), "{}", failed[0]);
    bench
        .namenode
        .until(&node, "losses", |known| {
            let mut lost = known.lost.clone();
            lost.sort_unstable();
            lost == in_a && known.usages().last().is_some_and(|usage| usage.failed_volumes == 1)
        })
        .await;
    for block in in_a {
        assert_eq!(refusal_kind(read(&node, block, 100)), "not-found");
    }
    for block in in_b {
        assert!(read(&node, block, 100).unwrap().1 == bytes(100, block));
    }
    // When the last folder fails, the node ends.
    disk.0.lock().push(fs::canonicalize(bench.dir("b")).unwrap());
    put(&chain(&[&node]), 20, b"hello").unwrap_err();
    let error = node.failed().await.to_string();
    assert!(error.starts_with("all data folders have failed: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_disk_of_a_mirror_loses_only_the_replica_of_the_mirror() {
    let bench = Bench::new().await;
    let disk = Arc::new(BrokenDisk::default());
    let first = bench.node("n1").await;
    let mut config = bench.config("n2");
    config.datanode.dirs.push(bench.dir("spare"));
    let second = bench.node_on(&config, disk.clone()).await.unwrap();
    disk.0.lock().push(fs::canonicalize(bench.dir("n2")).unwrap());
    disk.0.lock().push(fs::canonicalize(bench.dir("spare")).unwrap());
    let done = put(&chain(&[&first, &second]), 1, b"hello").unwrap();
    assert_eq!(done.nodes, uuids(&[&first]));
    assert_eq!(done.faults[0].node, "n2");
    assert!(done.faults[0].reason.contains("failed and is retired"), "{}", done.faults[0].reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_reported_and_stays_in_use() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.reserve = daemon::Bytes(u64::MAX);
    let node = bench.node_with(&config).await;
    let error = put(&chain(&[&node]), 1, b"hello").unwrap_err();
    assert!(error.to_string().starts_with("no space on /"), "{error}");
    assert_eq!(refusal_kind::<()>(Err(error)), "no-space");
    bench
        .namenode
        .until(&node, "heartbeat", |known| {
            known.usages().last().is_some_and(|usage| usage.failed_volumes == 0 && usage.free == 0)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_during_a_write_fails_that_write_only() {
    let bench = Bench::new().await;
    let disk = Arc::new(BrokenDisk(Mutex::default(), Some(Errno::NOSPC)));
    let node = bench.node_on(&bench.config("n1"), disk.clone()).await.unwrap();
    put(&chain(&[&node]), 1, b"hello").unwrap();
    disk.0.lock().push(fs::canonicalize(bench.dir("n1")).unwrap());
    let error = put(&chain(&[&node]), 2, b"hello").unwrap_err();
    assert!(error.to_string().starts_with("no space on /"), "{error}");
    assert!(!bench.dir("n1").join("tmp/blk_2").exists(), "the file of the failed write was not deleted");
    disk.0.lock().clear();
    put(&chain(&[&node]), 2, b"hello").unwrap();
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reports_to_a_new_start_of_the_namenode_only_when_a_folder_has_stored_it() {
    let bench = Bench::new().await;
    let disk = Arc::new(BrokenDisk(Mutex::default(), Some(Errno::NOSPC)));
    let mut config = bench.config("n1");
    config.datanode.dirs = vec![bench.dir("a"), bench.dir("b")];
    let node = bench.node_on(&config, disk.clone()).await.unwrap();
    let [a, b] = ["a", "b"].map(|dir| fs::canonicalize(bench.dir(dir)).unwrap());
    let restart_namenode = |epoch| {
        let mut registrations = bench.namenode.registrations.lock();
        registrations.epoch = epoch;
        registrations.nodes.values_mut().for_each(|known| known.forget = true);
    };
    disk.0.lock().extend([a.clone(), b.clone()]);
    restart_namenode(2);
    // The node retries the registration. It has stored only the first start.
    bench.namenode.until(&node, "two more registrations", |known| known.registrations.len() >= 3).await;
    let known = bench.namenode.requests_of(&node);
    assert_eq!(known.full_reports, 1, "replicas were reported to the second start");
    assert!(known.registrations[1..].iter().all(|register| register.seen_epoch == 1));
    assert!(!fs::read_to_string(b.join("VERSION")).unwrap().contains("epoch = 2"));
    // One successful write is enough.
    disk.0.lock().retain(|dir| *dir == a);
    bench.namenode.until(&node, "a report", |known| known.full_reports == 2).await;
    assert!(fs::read_to_string(b.join("VERSION")).unwrap().contains("epoch = 2"));
    node.stop().await;
    disk.0.lock().clear();
    let node = bench.node_on(&config, disk).await.unwrap();
    assert_eq!(bench.namenode.requests_of(&node).registrations.last().unwrap().seen_epoch, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_settings_are_refused_by_name() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.transfers_max = 0;
    let error = bench.node_on(&config, Arc::new(RealDisk)).await.unwrap_err().to_string();
    assert!(error.starts_with("datanode.transfers_max = 0: "), "{error}");
    config = bench.config("n1");
    config.datanode.transfer_timeout = daemon::Period::millis(0);
    let error = bench.node_on(&config, Arc::new(RealDisk)).await.unwrap_err().to_string();
    assert!(error.starts_with("datanode.transfer_timeout = 0s: "), "{error}");
}

/// A disk on which files with this name cannot be opened for reading.
#[derive(Debug)]
struct UnreadableFile(&'static str);

impl Disk for UnreadableFile {
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        RealDisk.sync_file(file, path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        if path.file_name().is_some_and(|name| name == self.0) {
            return Err(Errno::IO.into());
        }
        RealDisk.open(path)
    }
    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        RealDisk.space(path)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn start_with_an_unreadable_block_quarantines_it_and_serves_the_others() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(1000, 1);
    put(&chain(&[&node]), 1, &data).unwrap();
    put(&chain(&[&node]), 2, &bytes(500, 2)).unwrap();
    node.stop().await;
    let [block, sums] = ["blk_1", "blk_1.crc"].map(|name| bench.dir("n1").join("current/01").join(name));
    assert!(block.is_file() && sums.is_file(), "{}", block.display());
    for name in ["blk_1", "blk_1.crc"] {
        let node = bench.node_on(&bench.config("n1"), Arc::new(UnreadableFile(name))).await.unwrap();
        bench.namenode.until(&node, "the bad block", |known| known.bad.iter().any(|b| b.block_id == 1)).await;
        assert_eq!(refusal_kind(read(&node, 1, 1000)), "not-found", "{name}");
        assert!(read(&node, 2, 500).unwrap().1 == bytes(500, 2), "{name}: the other block is not served");
        put(&chain(&[&node]), 3, b"hello").ok();
        node.stop().await;
        // Nothing is deleted: both files are in `bad/`.
        let [bad, bad_sums] = ["blk_1", "blk_1.crc"].map(|name| bench.dir("n1").join("bad").join(name));
        assert!(bad.is_file() && bad_sums.is_file(), "{name}");
        fs::rename(bad, &block).unwrap();
        fs::rename(bad_sums, &sums).unwrap();
    }
    let node = bench.node("n1").await;
    assert!(read(&node, 1, 1000).unwrap().1 == data);
}
