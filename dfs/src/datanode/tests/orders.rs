//! Tests of the protocol with the NameNode: commands, reports, new registrations, refusals,
//! unreachability.

use super::harness::*;
use proto::dfs::{CopyBlock, DeleteBlocks, command::Kind};
use std::{fs, time::Duration};

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_made_verified_and_reported() {
    let bench = Bench::new().await;
    let (from, to, behind) = (bench.node("n1").await, bench.node("n2").await, bench.node("n3").await);
    for (block, length) in [(1, 0), (2, 1), (3, 5 * CHUNK + 3), (4, dfs_client::bulk::PACKET_BYTES)] {
        let data = bytes(length, block);
        put(&chain(&[&from]), block, &data).unwrap();
        let copy = CopyBlock {
            block_id: block,
            length: length as u64,
            targets: chain(&[&to, &behind]),
            token: Vec::new(),
            nonce: NONCE,
        };
        bench.namenode.command(&from, Kind::Copy(copy));
        for node in [&to, &behind] {
            bench.namenode.until(node, "copy", |known| known.replicas.contains_key(&block)).await;
            assert!(read(node, block, length as u64).unwrap().1 == data, "{length} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_node_requests_more_copies_at_once() {
    let bench = Bench::new().await;
    bench.namenode.registrations.lock().heartbeat_ms = Some(60_000);
    let (from, to) = (bench.node("n1").await, bench.node("n2").await);
    for block in 1..=8 {
        put(&chain(&[&from]), block, &bytes(CHUNK, block)).unwrap();
    }
    let copy = |block| {
        let (targets, length) = (chain(&[&to]), CHUNK as u64);
        Kind::Copy(CopyBlock { block_id: block, length, targets, token: Vec::new(), nonce: NONCE })
    };
    // The report of block 9 causes the first heartbeat. Each later heartbeat is sent because a copy
    // has ended. The command for the next copy is set a moment after that, as if the report of the
    // target were slow.
    bench.namenode.command(&from, copy(1));
    put(&chain(&[&from]), 9, b"data").unwrap();
    for block in 1..=7 {
        bench.namenode.until(&to, "copy", |known| known.replicas.contains_key(&block)).await;
        bench.namenode.command(&from, copy(block + 1));
    }
    bench.namenode.until(&to, "the last copy", |known| known.replicas.contains_key(&8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_replica_is_reported_and_not_copied() {
    let bench = Bench::new().await;
    let (from, to) = (bench.node("n1").await, bench.node("n2").await);
    let data = bytes(4 * CHUNK, 1);
    put(&chain(&[&from]), 1, &data).unwrap();
    let mut bad = data.clone();
    bad[3 * CHUNK] ^= 1;
    fs::write(block_file(&bench.dir("n1"), 1, ""), &bad).unwrap();
    let copy = CopyBlock {
        block_id: 1,
        length: data.len() as u64,
        targets: chain(&[&to]),
        token: Vec::new(),
        nonce: NONCE,
    };
    bench.namenode.command(&from, Kind::Copy(copy));
    bench.namenode.until(&from, "bad replica", |known| known.bad.len() == 1).await;
    assert!(!bench.namenode.requests_of(&to).replicas.contains_key(&1));
    assert_eq!(refusal_kind(read(&to, 1, data.len() as u64)), "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_remove_good_and_bad_replicas() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    for block in 1..=3 {
        put(&chain(&[&node]), block, &bytes(CHUNK, block)).unwrap();
    }
    fs::write(block_file(&dir, 2, ""), b"short").unwrap();
    assert_eq!(refusal_kind(read(&node, 2, CHUNK as u64)), "damaged");
    assert!(dir.join("bad/blk_2").exists());
    bench
        .namenode
        .command(&node, Kind::Delete(DeleteBlocks { blocks: [1, 2, 99].map(named_block).to_vec() }));
    bench.namenode.until(&node, "deletions", |known| known.deleted == [1, 2, 99]).await;
    assert!(!block_file(&dir, 1, "").exists() && !block_file(&dir, 1, ".crc").exists());
    assert!(!dir.join("bad/blk_2").exists() && !dir.join("bad/blk_2.crc").exists());
    assert_eq!(refusal_kind(read(&node, 1, CHUNK as u64)), "not-found");
    assert!(read(&node, 3, CHUNK as u64).unwrap().1 == bytes(CHUNK, 3));
    bench
        .namenode
        .until(&node, "use", |known| known.usages().last().is_some_and(|usage| usage.used == CHUNK as u64))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reregistration_reports_everything_again() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    bench.namenode.until(&node, "report", |known| known.replicas.contains_key(&1)).await;
    {
        let mut registrations = bench.namenode.registrations.lock();
        let known = registrations.nodes.get_mut(&node.uuid().to_string()).unwrap();
        *known = ReceivedRequests { forget: true, ..ReceivedRequests::default() };
    }
    bench.namenode.until(&node, "a second full report", |known| known.full_reports == 1).await;
    let known = bench.namenode.requests_of(&node);
    assert_eq!(known.replicas.get(&1), Some(&5));
    assert_eq!(known.registrations.len(), 1);
}

/// Answers heartbeats with an error, as a NameNode of another version that cannot decode them.
/// Checks that the node registers again.
#[tokio::test(flavor = "multi_thread")]
async fn node_registers_again_after_a_heartbeat_that_the_namenode_cannot_read() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    {
        let mut registrations = bench.namenode.registrations.lock();
        let known = registrations.nodes.get_mut(&node.uuid().to_string()).unwrap();
        known.refuse_heartbeats = Some(tonic::Code::Internal);
    }
    bench.namenode.until(&node, "a second registration", |known| known.registrations.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_registration_ends_the_node_with_the_reason() {
    let bench = Bench::new().await;
    bench.namenode.registrations.lock().refuse = Some("node n1 runs already with a newer incarnation".into());
    let error = bench.node_on(&bench.config("n1"), std::sync::Arc::new(super::super::disk::RealDisk)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("refuses this DataNode: node n1 runs already"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reports_are_sent_in_few_heartbeats_without_loss() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let before = bench.namenode.requests_of(&node).heartbeats.len();
    let begin = std::time::Instant::now();
    for block in 0..200 {
        node.node.store.pending_reports.post([(
            dfs_client::ids::BlockId(block),
            super::super::pending_reports::ReplicaEvent::Received(dfs_client::ids::Nonce(NONCE), 7),
        )]);
    }
    bench.namenode.until(&node, "all reports", |known| known.replicas.len() == 200).await;
    let beats = bench.namenode.requests_of(&node).heartbeats.len() - before;
    let max = 4 + begin.elapsed().as_millis() as usize / 5;
    assert!(beats <= max, "{beats} heartbeats, at most {max} expected");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_a_namenode_serves_transfers_and_keeps_its_reports() {
    let bench = Bench::new().await;
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut config = bench.config("n1");
    config.cluster.namenode = port.to_string().into();
    let node = super::super::DataNode::start(&config).await.unwrap();
    put(&chain(&[&node]), 1, b"hello").unwrap();
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
    tokio::time::timeout(Duration::from_millis(50), node.ready()).await.unwrap_err();
    assert!(!node.node.store.pending_reports.queue_is_empty());
    node.stop().await;
    let node = bench.node("n1").await;
    assert_eq!(bench.namenode.requests_of(&node).replicas.get(&1), Some(&5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_namenode_address_is_refused() {
    let bench = Bench::new().await;
    for addr in ["nowhere", "host:port", ""] {
        let mut config = bench.config("n1");
        config.cluster.namenode = addr.into();
        let error = super::super::DataNode::start(&config).await.unwrap_err().to_string();
        assert!(error.contains("is not host:port"), "{error}");
    }
}

/// Deletes and writes the same block at the same time. Checks that the disk, the map of replicas
/// and the reports to the NameNode are consistent.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_delete_and_write_of_a_block_stay_consistent() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(CHUNK, 1);
    let file = block_file(&bench.dir("n1"), 1, "");
    for _ in 0..15 {
        std::thread::scope(|scope| {
            scope.spawn(|| put(&chain(&[&node]), 1, &data).unwrap());
            scope.spawn(|| {
                node.node.store.delete(
                    &[(dfs_client::ids::BlockId(1), dfs_client::ids::Nonce(NONCE))],
                    u64::MAX,
                    || Some(()),
                );
            });
        });
        let there = file.exists();
        let served = read(&node, 1, CHUNK as u64);
        assert_eq!(served.is_ok(), there, "{served:?}");
        bench.namenode.until(&node, "agreement", |known| known.replicas.contains_key(&1) == there).await;
    }
}

/// Orders the same deletion twice. The first order is executed and the block is copied to the node
/// again, while the second order still waits in the queue. Checks that the new replica is kept, and
/// that an order which arrives after it deletes it.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_deletion_keeps_a_replica_that_was_written_after_the_order() {
    use dfs_client::ids::{BlockId, Nonce};
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let store = &node.node.store;
    let data = bytes(CHUNK, 1);
    let delete = |block| Kind::Delete(DeleteBlocks { blocks: vec![named_block(block)] });
    put(&chain(&[&node]), 1, &data).unwrap();
    // The deletion of block 9 waits for its lock, and the commands behind it wait in the queue.
    let lock = store.locks.lock(BlockId(9));
    let queue = node.node.command_queues.deletions_and_checks();
    for block in [9, 1, 10] {
        bench.namenode.command(&node, delete(block));
    }
    wait_for("two waiting deletions", || queue.len() == 2).await;
    store.delete(&[(BlockId(1), Nonce(NONCE))], u64::MAX, || Some(()));
    put(&chain(&[&node]), 1, &data).unwrap();
    drop(lock);
    bench.namenode.until(&node, "the last deletion", |known| known.deleted.contains(&10)).await;
    assert!(read(&node, 1, CHUNK as u64).unwrap().1 == data, "the new replica is damaged");
    bench.namenode.command(&node, delete(1));
    wait_for("the deletion of the new replica", || store.find(BlockId(1)).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_in_a_lost_reply_is_executed_when_repeated() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    {
        let mut registrations = bench.namenode.registrations.lock();
        let known = registrations.nodes.get_mut(&node.uuid().to_string()).unwrap();
        known.lose_answers = 1;
        let delete = Kind::Delete(DeleteBlocks { blocks: vec![named_block(1)] });
        known.commands.push(proto::dfs::Command { kind: Some(delete) });
    }
    bench.namenode.until(&node, "the deletion", |known| known.deleted == [1]).await;
    assert_eq!(bench.namenode.requests_of(&node).registrations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_node_sends_a_last_heartbeat() {
    let bench = Bench::new().await;
    let node = bench.node("a").await;
    let uuid = node.uuid().to_string();
    assert!(bench.namenode.requests_of(&node).heartbeats.iter().all(|heartbeat| !heartbeat.leaving));
    put(&chain(&[&node]), 1, b"hello").unwrap();
    node.stop().await;
    let heartbeats = bench.namenode.registrations.lock().nodes[&uuid].heartbeats.clone();
    let (last, before) = heartbeats.split_last().unwrap();
    assert!(last.leaving && last.usage.is_some(), "the last heartbeat did not arrive before the node ended");
    assert!(before.iter().all(|heartbeat| !heartbeat.leaving));
    let acknowledged =
        before.iter().any(|heartbeat| heartbeat.received.iter().any(|block| block.block_id == 1));
    assert!(acknowledged, "the replica was not reported before the last heartbeat");
}
