//! Tests of writes: sizes, parallel blocks, nodes that fail in every stage.

use super::*;
use crate::bulk::{PACKET_BYTES, WINDOW_BYTES};
use crate::error::Kind;
use std::io::Write as _;
use std::path::PathBuf;

impl Client {
    /// Puts `data` from a temporary local file.
    pub(super) async fn put_bytes(&self, to: &str, data: &[u8]) -> Result<PutReport> {
        self.put_with(to, data, PutOptions::default(), &()).await
    }

    pub(super) async fn put_with(
        &self,
        to: &str,
        data: &[u8],
        options: PutOptions,
        progress: &dyn Progress,
    ) -> Result<PutReport> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(data).unwrap();
        self.put(PutSource::File(file.path().to_owned()), &path(to), options, progress).await
    }

    /// Writes `data` as a stream, in pieces of an odd size.
    pub(super) async fn write_stream(
        &self,
        to: &str,
        data: &[u8],
        options: CreateOptions,
    ) -> Result<FileStatus> {
        let mut writer = self.create(&path(to), options).await?;
        for piece in data.chunks(100_003) {
            writer.write(piece).await?;
        }
        assert_eq!(writer.len(), data.len() as u64);
        writer.close().await
    }
}

fn options(replication: u32, block_size: u64) -> PutOptions {
    PutOptions { replication: Some(replication), block_size: Some(block_size), ..PutOptions::default() }
}

fn stream_options(replication: u32, block_size: u64) -> CreateOptions {
    CreateOptions { replication: Some(replication), block_size: Some(block_size), ..CreateOptions::default() }
}

#[tokio::test]
async fn files_of_every_size_are_written_completely() {
    let mut cluster = Cluster::start(3).await;
    let packet = PACKET_BYTES;
    for parallel in [1, 3] {
        cluster.config.parallel_blocks = parallel;
        let client = cluster.client().await;
        for block_size in [64 << 10, 100_000, packet, 2 * packet + 1] {
            for length in [0, 1, 65_535, 65_536, packet, packet + 1, 2 * packet, 3 * packet + 77] {
                let data = bytes(length);
                let name = format!("/put-{parallel}-{block_size}-{length}");
                let progress = CountedProgress::default();
                let put = options(2, block_size as u64);
                let report = client.put_with(&name, &data, put, &progress).await.unwrap();
                assert_eq!(report.status.length, length as u64);
                assert_eq!(progress.total(), length as u64);
                assert!(cluster.content(&name) == data, "{name}");
                let name = format!("/stream-{parallel}-{block_size}-{length}");
                let status = client.write_stream(&name, &data, stream_options(2, block_size as u64)).await;
                assert_eq!(status.unwrap().length, length as u64);
                assert!(cluster.content(&name) == data, "{name}");
            }
        }
    }
    assert!(cluster.paths().iter().all(|path| !path.contains("/.")), "a hidden file is left");
}

#[tokio::test]
async fn a_stream_can_be_put_and_a_file_appended_to() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let data = bytes(300_000);
    let source = PutSource::Reader(Box::new(std::io::Cursor::new(data.clone())));
    let progress = CountedProgress::default();
    client.put(source, &path("/f"), PutOptions::default(), &progress).await.unwrap();
    assert_eq!(progress.total(), 300_000);
    let mut writer = client.append(&path("/f")).await.unwrap();
    writer.write(b"more").await.unwrap();
    assert_eq!(writer.close().await.unwrap().length, 300_004);
    assert!(cluster.content("/f") == [&data[..], b"more"].concat());
}

#[tokio::test]
async fn append_refused_by_a_quota_leaves_the_file_unchanged() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let data = bytes(1000);
    client.write_stream("/f", &data, stream_options(1, 1000)).await.unwrap();
    let mut writer = client.append(&path("/f")).await.unwrap();
    writer.write(b"more").await.unwrap();
    cluster.namespace.lock().quota_exceeded = true;
    assert!(writer.close().await.unwrap_err().is(Kind::Quota));
    let closed = async {
        while cluster.namespace.lock().files["/f"].open {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("the file is discarded");
    assert!(cluster.content("/f") == data);
}

#[tokio::test]
async fn second_node_takes_over_when_the_first_dies() {
    for after in [0, 1, 5, 19] {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let data = bytes(20 * PACKET_BYTES);
        let block = 20 * PACKET_BYTES as u64;
        cluster.node(1).set_misbehaviour(Misbehaviour::DieAfterPackets(after));
        let report = client.put_with("/f", &data, options(2, block), &()).await.unwrap();
        assert!(cluster.content("/f") == data, "dies after {after}");
        assert_eq!(report.faults.len(), 1);
        assert_eq!(report.faults[0].node, "n1");
        assert_eq!(
            cluster.node(2).state.lock().resumed_at.len(),
            1,
            "expected one take-over and no new block"
        );
    }
}

#[tokio::test]
async fn stream_continues_when_its_first_node_dies_and_later_blocks_avoid_the_node() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let data = bytes(8 * PACKET_BYTES);
    cluster.node(1).set_misbehaviour(Misbehaviour::DieAfterPackets(2));
    client.write_stream("/f", &data, stream_options(2, 4 * PACKET_BYTES as u64)).await.unwrap();
    assert!(cluster.content("/f") == data);
    assert_eq!(cluster.namespace.lock().excluded_nodes, [vec![], vec!["n1".to_owned()]]);
}

#[tokio::test]
async fn lost_connection_to_a_live_node_is_resumed() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let data = bytes(20 * PACKET_BYTES);
    cluster.node(1).set_misbehaviour(Misbehaviour::HangUpOnceAfterPackets(18));
    client.write_stream("/f", &data, stream_options(1, data.len() as u64)).await.unwrap();
    assert!(cluster.content("/f") == data);
    let resumed = cluster.node(1).state.lock().resumed_at.clone();
    assert_eq!(resumed.len(), 2);
    assert!(resumed[1] > 0 && resumed[1] as usize <= 18 * PACKET_BYTES, "{resumed:?}");
}

#[tokio::test]
async fn failed_mirror_is_removed_and_reported() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let data = bytes(4 * PACKET_BYTES);
    cluster.node(2).set_misbehaviour(Misbehaviour::MirrorFailsAfterPackets(1));
    let report = client.put_with("/f", &data, options(2, data.len() as u64 / 2), &()).await.unwrap();
    assert!(cluster.content("/f") == data);
    assert!(report.faults.contains(&NodeFault { node: "n2".into(), reason: "disk on fire".into() }));
}

#[tokio::test]
async fn put_reports_its_replica_count() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let all = client.put_with("/two", &bytes(300_000), options(2, 100_000), &()).await.unwrap();
    let none = client.put_with("/empty", &[], options(2, 100_000), &()).await.unwrap();
    assert_eq!((all.replicas_min, none.replicas_min), (Some(2), None));
    cluster.node(2).state.lock().dead = true;
    let one = client.put_with("/one", &bytes(300_000), options(2, 100_000), &()).await.unwrap();
    assert_eq!((one.replicas_min, one.status.replication), (Some(1), 2));
}

#[tokio::test]
async fn put_writes_the_block_again_when_the_only_replica_dies() {
    let mut cluster = Cluster::start(3).await;
    for parallel in [1, 2, 3] {
        cluster.config.parallel_blocks = parallel;
        let client = cluster.client().await;
        let data = bytes(3 * WINDOW_BYTES + 5);
        let node = cluster.node(1);
        node.state.lock().dead = false;
        node.set_misbehaviour(Misbehaviour::DieAfterPackets(17));
        let progress = CountedProgress::default();
        let name = format!("/f{parallel}");
        let put = options(1, WINDOW_BYTES as u64 * 5 / 4);
        client.put_with(&name, &data, put, &progress).await.unwrap();
        assert!(cluster.content(&name) == data, "parallel {parallel}");
        assert_eq!(progress.total(), data.len() as u64, "a byte was counted twice or never");
    }
}

#[tokio::test]
async fn stream_fails_when_the_only_replica_dies() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let data = bytes(2 * WINDOW_BYTES);
    cluster.node(1).set_misbehaviour(Misbehaviour::DieAfterPackets(17));
    let lost = client.write_stream("/f", &data, stream_options(1, data.len() as u64)).await;
    let text = lost.unwrap_err().to_string();
    assert!(text.starts_with("cannot write /f: blk_"), "{text}");
    assert!(text.contains(" on n1: "), "{text}");
    wait_until("the file is discarded", || !cluster.paths().contains(&"/f".to_owned())).await;
    // If the node dies while all data of the block is still in memory, the block is written again
    // to another node.
    cluster.node(1).state.lock().dead = false;
    cluster.node(1).set_misbehaviour(Misbehaviour::DieAfterPackets(0));
    client.write_stream("/g", &data, stream_options(1, data.len() as u64)).await.unwrap();
    assert!(cluster.content("/g") == data);
}

#[tokio::test]
async fn write_skips_faulty_nodes_and_fails_if_none_is_left() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    for misbehaviour in [Misbehaviour::RefuseWrites, Misbehaviour::Garbage, Misbehaviour::AckTooMuch] {
        cluster.node(1).set_misbehaviour(misbehaviour);
        client.put_bytes("/f", &bytes(1000)).await.unwrap();
        assert!(cluster.content("/f") == bytes(1000));
        client.delete(&path("/f"), false).await.unwrap();
    }
    cluster.node(1).set_misbehaviour(Misbehaviour::RefuseWrites);
    cluster.node(2).set_misbehaviour(Misbehaviour::RefuseWrites);
    let text = client.put_bytes("/f", &bytes(1000)).await.unwrap_err().to_string();
    assert!(text.contains("no folder has free space"), "{text}");
    assert_eq!(cluster.paths(), ["/"], "a file is left");
}

#[tokio::test]
async fn lease_is_renewed_while_a_file_is_open_and_not_after() {
    let cluster = Cluster::start(1).await;
    cluster.namespace.lock().lease_ms = 60;
    let client = cluster.client().await;
    let writer = client.create(&path("/f"), CreateOptions::default()).await.unwrap();
    wait_until("three renewals", || cluster.namespace.lock().renewals >= 3).await;
    writer.close().await.unwrap();
    let is_idle = client.inner.leases.lock().is_idle();
    assert!(is_idle, "the lease is still renewed");
}

#[tokio::test]
async fn file_of_a_dropped_or_aborted_writer_is_deleted() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    for written in [0, 10, 3 * PACKET_BYTES] {
        for is_dropped in [true, false] {
            let mut writer = client.create(&path("/f"), CreateOptions::default()).await.unwrap();
            writer.write(&bytes(written)).await.unwrap();
            assert_eq!(cluster.paths(), ["/", "/f"]);
            if is_dropped {
                drop(writer);
            } else {
                writer.abort().await.unwrap();
            }
            wait_until("the file is deleted", || cluster.paths() == ["/"]).await;
        }
    }
}

#[tokio::test]
async fn existing_file_is_kept_without_overwrite() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    client.put_bytes("/f", b"old").await.unwrap();
    let error = client.put_bytes("/f", b"new").await.unwrap_err();
    assert!(error.is(crate::error::Kind::Exists));
    assert!(cluster.content("/f") == b"old");
    let overwrite = PutOptions { overwrite: true, ..PutOptions::default() };
    client.put_with("/f", b"new", overwrite, &()).await.unwrap();
    assert!(cluster.content("/f") == b"new");
    assert!(client.put_bytes("/", b"x").await.unwrap_err().is(crate::error::Kind::IsDirectory));
}

#[tokio::test]
async fn local_errors_name_the_local_file() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let folder = tempfile::tempdir().unwrap();
    let to = path("/f");
    let put = |from: PathBuf| client.put(PutSource::File(from), &to, PutOptions::default(), &());
    let text = put(folder.path().join("none")).await.unwrap_err().to_string();
    assert!(text.contains("none: No such file"), "{text}");
    let text = put(folder.path().to_owned()).await.unwrap_err().to_string();
    assert!(text.ends_with("is a folder"), "{text}");
    let long = path(&format!("/{}", "ü".repeat(127)));
    let source = PutSource::Reader(Box::new(&b"x"[..]));
    client.put(source, &long, PutOptions::default(), &()).await.unwrap();
}

/// Changes the length of a file whenever progress is reported.
struct ResizeOnProgress(std::fs::File, u64);

impl Progress for ResizeOnProgress {
    fn advance(&self, _bytes: u64) {
        self.0.set_len(self.1).unwrap();
    }
}

#[tokio::test]
async fn shrinking_file_is_refused_and_growing_file_keeps_its_first_length() {
    let mut cluster = Cluster::start(1).await;
    cluster.config.parallel_blocks = 1;
    let client = cluster.client().await;
    let data = bytes(200 * 65_536);
    for (length, fits) in [(10, false), (data.len() as u64 * 2, true)] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&data).unwrap();
        let resize = ResizeOnProgress(file.reopen().unwrap(), length);
        let source = PutSource::File(file.path().to_owned());
        let put = client.put(source, &path("/f"), options(1, 65_536), &resize).await;
        if fits {
            put.unwrap();
            assert!(cluster.content("/f") == data);
        } else {
            let text = put.unwrap_err().to_string();
            assert!(text.ends_with("became shorter while it was read"), "{text}");
            assert_eq!(cluster.paths(), ["/"]);
        }
    }
}

#[tokio::test]
async fn stalled_node_is_dropped_after_its_timeout_and_the_write_continues() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    let client = cluster.client().await;
    for (number, after) in [0, 3, 7].into_iter().enumerate() {
        cluster.node(1).set_misbehaviour(Misbehaviour::StallAfterPackets(after));
        cluster.node(1).state.lock().timeout_ms = 400;
        let data = bytes(8 * PACKET_BYTES);
        let begin = std::time::Instant::now();
        let name = format!("/f{number}");
        let report = client.put_with(&name, &data, options(2, data.len() as u64), &()).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(cluster.content(&name) == data, "stalls after {after}");
        assert_eq!(report.faults[0].node, "n1");
        assert_eq!(report.faults[0].reason, "no answer in time");
    }
}

#[tokio::test]
async fn node_that_fails_setup_is_skipped() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    let client = cluster.client().await;
    cluster.node(1).set_misbehaviour(Misbehaviour::Mute);
    let data = bytes(4 * PACKET_BYTES);
    let begin = std::time::Instant::now();
    let report = client.put_with("/f", &data, options(2, PACKET_BYTES as u64), &()).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?} of 30 s", begin.elapsed());
    assert!(cluster.content("/f") == data);
    assert_eq!((report.faults[0].node.as_str(), report.replicas_min), ("n1", Some(1)));
}

#[tokio::test]
async fn slow_source_is_kept_alive_and_a_stalled_node_is_detected() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    for node in [1, 2] {
        cluster.node(node).state.lock().timeout_ms = 200;
    }
    let client = cluster.client().await;
    let data = bytes(3 * PACKET_BYTES);
    let mut writer = client.create(&path("/f"), stream_options(2, 1 << 30)).await.unwrap();
    writer.write(&data[..2 * PACKET_BYTES]).await.unwrap();
    wait_until("keep-alives", || cluster.node(1).state.lock().keep_alives > 8).await;
    assert_eq!(cluster.node(1).state.lock().resumed_at.len(), 1, "the writer opened another connection");
    cluster.node(1).set_misbehaviour(Misbehaviour::StallAfterPackets(1));
    writer.write(&data[2 * PACKET_BYTES..]).await.unwrap();
    // The other node takes over although the writer has no more data to send.
    wait_until("the take-over", || cluster.node(2).state.lock().resumed_at.len() == 1).await;
    writer.close().await.unwrap();
    assert!(cluster.content("/f") == data);
}

/// Opens five writers and then five readers on a runtime with two blocking threads, and uses them
/// one after the other. If each transfer used a blocking thread, the third would wait for the first
/// two, which would never end.
#[test]
fn open_readers_and_writers_do_not_wait_for_each_other() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(2).enable_all().build().unwrap();
    let all = async {
        let cluster = Cluster::start(1).await;
        let client = cluster.client().await;
        let data = bytes(20 * PACKET_BYTES);
        let mut writers = Vec::new();
        for index in 0..5 {
            let name = path(&format!("/f{index}"));
            let mut writer = client.create(&name, stream_options(1, 1 << 30)).await.unwrap();
            writer.write(&data[..6 * PACKET_BYTES]).await.unwrap();
            writers.push(writer);
        }
        for mut writer in writers {
            writer.write(&data[6 * PACKET_BYTES..]).await.unwrap();
            writer.close().await.unwrap();
        }
        let mut readers = Vec::new();
        for index in 0..5 {
            let mut reader = client.open(&path(&format!("/f{index}"))).await.unwrap();
            let first = reader.next().await.unwrap().unwrap();
            readers.push((reader, first.to_vec()));
        }
        for (mut reader, mut got) in readers {
            while let Some(more) = reader.next().await.unwrap() {
                got.extend_from_slice(&more);
            }
            assert!(got == data);
        }
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), all).await }).unwrap();
}
