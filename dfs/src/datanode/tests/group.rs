//! Tests with several NameNodes, of which one leads.

use super::{super::pending_reports::ReplicaEvent, harness::*};
use daemon::config::Config;
use dfs_client::ids::{BlockId, Nonce};
use proto::dfs::{DeleteBlocks, HeartbeatRequest, command::Kind};
use std::{
    fs,
    time::{Duration, Instant},
};
use tonic::Code;

/// A bench whose NameNode leads in epoch 5, a second NameNode that follows, and the settings of a
/// node that reports to both.
async fn two_namenodes() -> (Bench, FakeNameNode, Config) {
    let (bench, other) = (Bench::new().await, FakeNameNode::start().await);
    bench.namenode.registrations.lock().epoch = 5;
    {
        let mut registrations = other.registrations.lock();
        (registrations.epoch, registrations.follows) = (5, true);
    }
    let mut config = bench.config("n1");
    config.cluster.namenode = format!("{},{}", bench.namenode.addr, other.addr).into();
    (bench, other, config)
}

/// The NameNode leads in a new epoch.
fn lead(namenode: &FakeNameNode, epoch: u64) {
    let mut registrations = namenode.registrations.lock();
    (registrations.epoch, registrations.follows) = (epoch, false);
}

fn delete(block: u64) -> Kind {
    Kind::Delete(DeleteBlocks { blocks: vec![named_block(block)] })
}

fn acknowledges(heartbeats: &[HeartbeatRequest], epoch: u64) -> bool {
    heartbeats.iter().any(|heartbeat| heartbeat.epoch == epoch)
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_ready_when_the_leader_has_its_report_and_reports_to_all() {
    let (bench, other, config) = two_namenodes().await;
    bench.namenode.registrations.lock().follows = true;
    let node = super::super::DataNode::start(&config).await.unwrap();
    other.until(&node, "a registration", |known| !known.heartbeats.is_empty()).await;
    tokio::time::timeout(Duration::from_millis(50), node.ready()).await.unwrap_err();
    lead(&other, 6);
    node.ready().await.unwrap();
    put(&chain(&[&node]), 1, b"hello").unwrap();
    for namenode in [&bench.namenode, &other] {
        namenode.until(&node, "the report", |known| known.replicas.get(&1) == Some(&5)).await;
        namenode.until(&node, "the epoch", |known| acknowledges(&known.heartbeats, 6)).await;
        assert_eq!(namenode.requests_of(&node).registrations.len(), 1, "no full report for a new leader");
    }
    wait_for("no reports that nobody needs", || node.node.store.pending_reports.queue_is_empty()).await;
    node.stop().await;
    for namenode in [&bench.namenode, &other] {
        let registrations = namenode.registrations.lock();
        let known = registrations.nodes.values().next().unwrap();
        assert!(known.heartbeats.last().unwrap().leaving);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_dead_namenodes_delay_no_other() {
    let (bench, other, mut config) = two_namenodes().await;
    bench.namenode.registrations.lock().heartbeat_ms = Some(60_000);
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    config.cluster.namenode = format!("{},{dead},{}", other.addr, bench.namenode.addr).into();
    let node = bench.node_with(&config).await;
    other.until(&node, "a registration", |known| !known.heartbeats.is_empty()).await;
    other.registrations.lock().is_silent = true;
    let begin = Instant::now();
    for block in 1..=20 {
        put(&chain(&[&node]), block, b"hello").unwrap();
        bench.namenode.until(&node, "a report", |known| known.replicas.contains_key(&block)).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert!(!node.node.store.pending_reports.queue_is_empty(), "the others need the reports");
    other.registrations.lock().is_silent = false;
    other.until(&node, "all reports", |known| known.replicas.len() == 20).await;
    assert_eq!(other.requests_of(&node).registrations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn member_of_another_build_or_cluster_does_not_end_the_node() {
    let (bench, other, config) = two_namenodes().await;
    let node = bench.node_with(&config).await;
    other.until(&node, "a registration", |known| !known.heartbeats.is_empty()).await;
    node.stop().await;
    // It leads a group of its own, or runs a build that does not know this message.
    for (refuse, cluster_id, why) in
        [(Some("another protocol"), None, "another protocol"), (None, Some("c2"), "cluster c2")]
    {
        {
            let mut registrations = other.registrations.lock();
            registrations.follows = false;
            registrations.refuse = refuse.map(str::to_owned);
            registrations.cluster_id = cluster_id.map(str::to_owned);
        }
        let node = bench.node_with(&config).await;
        let before = bench.namenode.requests_of(&node).heartbeats.len();
        let stays = bench.namenode.until(&node, "heartbeats", |known| known.heartbeats.len() > before + 10);
        tokio::select! {
            () = stays => {}
            error = node.failed() => panic!("{why}: {error}"),
        }
        node.stop().await;
        // The only NameNode ends it.
        let mut only = config.clone();
        only.cluster.namenode = other.addr.to_string().into();
        let error =
            bench.node_on(&only, std::sync::Arc::new(super::super::disk::RealDisk)).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_deposed_leader_are_refused() {
    let (bench, other, config) = two_namenodes().await;
    let node = bench.node_with(&config).await;
    for block in 1..=3 {
        put(&chain(&[&node]), block, &bytes(CHUNK, block)).unwrap();
    }
    bench.namenode.command(&node, delete(1));
    bench.namenode.until(&node, "a deletion", |known| known.deleted == [1]).await;
    lead(&other, 6);
    other.until(&node, "the epoch", |known| acknowledges(&known.heartbeats, 6)).await;
    let version = fs::read_to_string(bench.dir("n1").join("VERSION")).unwrap();
    assert!(version.contains("epoch = 6"), "{version}");
    // The old leader does not know the other one.
    bench.namenode.command(&node, delete(2));
    let sent = |known: &ReceivedRequests| known.commands.is_empty();
    bench.namenode.until(&node, "the command to be sent", sent).await;
    let before = bench.namenode.requests_of(&node).heartbeats.len();
    bench.namenode.until(&node, "the next heartbeat", |known| known.heartbeats.len() > before).await;
    other.command(&node, delete(3));
    other.until(&node, "a deletion", |known| known.deleted.contains(&3)).await;
    bench.namenode.until(&node, "reports", |known| known.deleted == [1, 3]).await;
    assert!(read(&node, 2, CHUNK as u64).unwrap().1 == bytes(CHUNK, 2));
}

/// The deletion of block 9 runs and that of block 1 is queued when another NameNode begins to lead.
#[tokio::test(flavor = "multi_thread")]
async fn epoch_is_acknowledged_when_deletions_of_earlier_ones_have_ended_and_are_reported() {
    let (bench, other, config) = two_namenodes().await;
    let node = bench.node_with(&config).await;
    for block in [1, 9] {
        put(&chain(&[&node]), block, &bytes(CHUNK, block)).unwrap();
    }
    let lock = node.node.store.locks.lock(BlockId(9));
    bench.namenode.command(&node, delete(9));
    bench.namenode.command(&node, delete(1));
    let queue = node.node.command_queues.deletions_and_checks();
    wait_for("a running and a waiting deletion", || queue.len() == 1).await;
    lead(&other, 6);
    let version = || fs::read_to_string(bench.dir("n1").join("VERSION")).unwrap();
    wait_for("the stored epoch", || version().contains("epoch = 6")).await;
    let before = bench.namenode.requests_of(&node).heartbeats.len();
    bench.namenode.until(&node, "heartbeats", |known| known.heartbeats.len() > before + 3).await;
    for namenode in [&bench.namenode, &other] {
        assert!(!acknowledges(&namenode.requests_of(&node).heartbeats, 6));
    }
    drop(lock);
    other.until(&node, "the epoch", |known| acknowledges(&known.heartbeats, 6)).await;
    let heartbeats = other.requests_of(&node).heartbeats;
    let first = |is: &dyn Fn(&HeartbeatRequest) -> bool| heartbeats.iter().position(is);
    let acknowledged = first(&|heartbeat| heartbeat.epoch == 6);
    assert!(first(&|heartbeat| heartbeat.deleted == [9]) <= acknowledged, "{heartbeats:#?}");
    wait_for("the queue", || queue.is_empty()).await;
    other.command(&node, delete(9));
    other.until(&node, "the next deletion", |known| known.deleted == [9, 9]).await;
    assert!(read(&node, 1, CHUNK as u64).unwrap().1 == bytes(CHUNK, 1), "an old deletion was executed");
}

/// More deletions than fit into a heartbeat are not reported yet when the epoch changes.
#[tokio::test(flavor = "multi_thread")]
async fn epoch_is_not_acknowledged_before_the_last_report() {
    const REPORTS: u64 = 25_000;
    let (bench, other, config) = two_namenodes().await;
    let node = bench.node_with(&config).await;
    other.until(&node, "a registration", |known| !known.heartbeats.is_empty()).await;
    other.registrations.lock().is_silent = true;
    node.node.store.pending_reports.post((0..REPORTS).map(|block| (BlockId(block), ReplicaEvent::Deleted)));
    lead(&bench.namenode, 6);
    bench.namenode.until(&node, "the epoch", |known| acknowledges(&known.heartbeats, 6)).await;
    other.registrations.lock().is_silent = false;
    other.until(&node, "the epoch", |known| acknowledges(&known.heartbeats, 6)).await;
    let heartbeats = other.requests_of(&node).heartbeats;
    let acknowledged = heartbeats.iter().position(|heartbeat| heartbeat.epoch == 6).unwrap();
    let reported: usize = heartbeats[..=acknowledged].iter().map(|heartbeat| heartbeat.deleted.len()).sum();
    assert_eq!(reported as u64, REPORTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn namenode_that_was_unreachable_for_long_gets_a_full_report() {
    let (bench, other, config) = two_namenodes().await;
    let node = bench.node_with(&config).await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    other.until(&node, "the report", |known| known.replicas.contains_key(&1)).await;
    let uuid = node.uuid().to_string();
    let refuse = |code| {
        let mut registrations = other.registrations.lock();
        registrations.nodes.get_mut(&uuid).unwrap().refuse_heartbeats = code;
        registrations.nodes[&uuid].heartbeats.len()
    };
    refuse(Some(Code::Unavailable));
    for first in (0..130_000).step_by(10_000) {
        let received = |block| (BlockId(block), ReplicaEvent::Received(Nonce(NONCE), 7));
        node.node.store.pending_reports.post((first + 10..first + 10_010).map(received));
        bench.namenode.until(&node, "reports", |known| known.replicas.contains_key(&(first + 10_009))).await;
    }
    wait_for("dropped reports", || node.node.store.pending_reports.queue_is_empty()).await;
    let before = refuse(None);
    other.until(&node, "a second registration", |known| known.registrations.len() == 2).await;
    other.until(&node, "a second full report", |known| known.full_reports == 2).await;
    other.until(&node, "heartbeats", |known| known.heartbeats.len() > before + 1).await;
    assert_eq!(bench.namenode.requests_of(&node).registrations.len(), 1);
}
