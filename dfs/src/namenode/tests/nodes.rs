//! Tests of DataNodes: names, incarnations, reports, missing heartbeats, safemode.

use super::bench::{Bench, FakeNode, path, settings};
use crate::namenode::{
    namespace::SnapshotLoader,
    op::{Caller, Command, Heartbeat, HeartbeatAnswer, Op, Registration, Replica, Usage},
    state::Event,
    view::{Checked, NodeState},
};
use dfs_client::{
    error::Kind,
    ids::{BlockId, NodeIncarnation, NodeUuid, Nonce},
};

fn mkdir(at: &str) -> Op {
    Op::Mkdir { path: path(at), parents: true, mode: None }
}

fn state_of(bench: &Bench, name: &str) -> NodeState {
    let report = bench.state.report(bench.now);
    report.nodes.iter().find(|node| node.address.node == name).unwrap().state
}

#[test]
fn a_disk_that_nodes_of_a_host_share_counts_once() {
    let mut bench = Bench::with_nodes(0);
    for (index, (host, disks)) in
        [("h1", vec![(7, 600), (8, 50)]), ("h1", vec![(7, 590)]), ("h2", vec![(7, 600)]), ("h2", vec![])]
            .into_iter()
            .enumerate()
    {
        let node = FakeNode::new(index, &format!("n{index}"), "r1");
        let registration = Registration { host: host.into(), ..node.registration() };
        bench.state.register(bench.now, registration).unwrap();
        let usage = Usage { used: 10, free: 650, disks, ..Usage::default() };
        let heartbeat = Heartbeat { seq: 1, usage, ..Heartbeat::default() };
        bench.state.heartbeat(bench.now, node.uuid, NodeIncarnation(1), heartbeat);
    }
    let report = bench.state.report(bench.now);
    assert_eq!((report.disks, report.used, report.free), (4, 40, 600 + 50 + 600 + 650));
    assert_eq!(report.capacity, report.used + report.free);
}

/// Registers a node and checks its usage before its first heartbeat. Regression: the node was live
/// with 0 bytes free, and got no blocks, until its first heartbeat.
#[test]
fn registered_node_has_its_usage_and_gets_blocks_before_its_first_heartbeat() {
    let mut bench = Bench::with_nodes(0);
    let node = FakeNode { capacity: 500, ..FakeNode::new(0, "n1", "r1") };
    bench.state.register(bench.now, node.registration()).unwrap();
    let report = bench.state.report(bench.now);
    let shown = &report.nodes[0];
    assert_eq!((shown.state, shown.reported), (NodeState::Live, false));
    assert_eq!((shown.capacity, shown.used, shown.free, shown.volumes), (500, 0, 500, 1));
    assert_eq!((report.free, report.capacity), (500, 500));
    bench.state.full_report(bench.now, node.uuid, NodeIncarnation(1), 0, true, vec![]).unwrap();
    assert!(bench.state.report(bench.now).nodes[0].reported);
    bench.nodes.push(node);
    let file = bench.create("/f");
    assert_eq!(bench.add_block_as(file, "w").unwrap().1.len(), 1);
    // A node that registers again also has its new usage at once.
    bench.nodes[0].capacity = 300;
    bench.state.register(bench.now, bench.nodes[0].registration()).unwrap();
    assert_eq!(bench.state.report(bench.now).nodes[0].free, 300);
}

#[test]
fn of_two_nodes_with_one_name_only_the_later_start_is_accepted() {
    let mut bench = Bench::with_nodes(1);
    let duplicate = FakeNode::new(9, "n1", "r1");
    let (_, blocks) = bench.file("/f", 1, &[10]);
    bench.nodes.push(duplicate);
    let error = bench.register(1).unwrap_err();
    assert!(error.kind == Kind::Refused && error.message.contains("n1:1"), "{error}");
    bench.beat(0);
    // The node that started last is accepted, and the replicas of the other node do not count any
    // more.
    bench.nodes[1].incarnation = 2;
    bench.register(1).unwrap();
    assert!(!bench.has_known_replica(blocks[0]));
    let (uuid, incarnation) = (bench.nodes[0].uuid, NodeIncarnation(bench.nodes[0].incarnation));
    let old = bench.state.heartbeat(bench.now, uuid, incarnation, Heartbeat::default());
    assert_eq!(old, HeartbeatAnswer::RegisterAgain);
    let error = bench.register(0).unwrap_err();
    let duplicate = bench.nodes[1].uuid.to_string();
    assert!(error.kind == Kind::Refused && error.message.contains(&duplicate), "{error}");
    assert_eq!(bench.state.report(bench.now).nodes.len(), 1, "two nodes have the same name");
    bench.nodes[0].incarnation = 3;
    bench.register(0).unwrap();
    assert!(bench.has_known_replica(blocks[0]));
    bench.nodes[1].incarnation = 1;
    (bench.nodes[0].up, bench.nodes[1].up) = (false, false);
    bench.run_ms(11_000);
    bench.nodes[1].up = true;
    bench.beat(1);
    assert_eq!(state_of(&bench, "n1"), NodeState::Live);
    bench.nodes[0].up = true;
    assert_eq!(bench.stat("/f").unwrap().length, 10);
    bench.nodes[0].incarnation = 0;
    assert_eq!(bench.register(0).unwrap_err().kind, Kind::Refused);
}

#[test]
fn empty_node_with_the_name_of_one_with_replicas_is_refused_until_declared_new() {
    for dies_first in [false, true] {
        let mut bench = Bench::with_nodes(2);
        let (_, blocks) = bench.file("/f", 1, &[10]);
        let ours = usize::from(bench.nodes[1].disk.contains_key(&blocks[0]));
        bench.nodes[ours].up = false;
        bench.run_ms(if dies_first { 11_000 } else { 1000 });
        let name = bench.nodes[ours].name.clone();
        let empty = FakeNode::new(9, &name, "r1").registration();
        let empty = Registration { cluster_id: String::new(), incarnation: NodeIncarnation(7), ..empty };
        let error = bench.state.register(bench.now, empty.clone()).unwrap_err();
        assert!(error.kind == Kind::Refused && error.message.contains("had 1 replica,"), "{error}");
        assert!(error.message.contains("create the file NEW in each data folder"), "{error}");
        assert_eq!(bench.state.report(bench.now).refused_nodes, [error.message]);
        // The refusal of a restarted DataNode is logged only once.
        let is_refusal = |event: &Event| matches!(event, Event::NodeRefused(_));
        assert_eq!(bench.state.take_events().iter().filter(|event| is_refusal(event)).count(), 1);
        bench.state.register(bench.now, empty.clone()).unwrap_err();
        assert_eq!(bench.state.take_events().iter().filter(|event| is_refusal(event)).count(), 0);
        bench.state.register(bench.now, Registration { declared_new: true, ..empty.clone() }).unwrap();
        assert!(bench.state.report(bench.now).refused_nodes.is_empty());
        // The node is known from now on, so it may register again without the declaration.
        bench.state.register(bench.now, empty).unwrap();
        // A node that had no replicas can start with an empty folder.
        let other = bench.nodes[1 - ours].name.clone();
        let replaced = FakeNode::new(10, &other, "r1").registration();
        let replaced =
            Registration { cluster_id: String::new(), incarnation: NodeIncarnation(7), ..replaced };
        bench.state.register(bench.now, replaced).unwrap();
    }
}

#[test]
fn new_machine_with_the_name_of_a_live_node_is_refused_even_if_declared_new() {
    let mut bench = Bench::with_nodes(1);
    let (_, blocks) = bench.file("/f", 1, &[10]);
    let new = FakeNode::new(9, "n1", "r1").registration();
    let new = Registration { cluster_id: String::new(), host: "other".into(), declared_new: true, ..new };
    let new = Registration { incarnation: NodeIncarnation(7), ..new };
    let error = bench.state.register(bench.now, new.clone()).unwrap_err();
    assert!(error.kind == Kind::Refused && error.message.contains("choose another name"), "{error}");
    assert!(error.message.contains("n1:1") && bench.has_known_replica(blocks[0]), "{error}");
    // When the first machine is dead, the second may replace it.
    bench.nodes[0].up = false;
    bench.run_ms(11_000);
    bench.state.register(bench.now, new).unwrap();
}

#[test]
fn replicas_of_a_node_that_dies_before_its_report_are_remembered() {
    let mut bench = Bench::with_nodes(1);
    bench.file("/f", 1, &[10]);
    bench.nodes[0].up = false;
    bench.run_ms(11_000);
    bench.state.register(bench.now, bench.nodes[0].registration()).unwrap();
    bench.run_ms(11_000);
    assert_eq!(state_of(&bench, "n1"), NodeState::Dead);
    let empty = FakeNode::new(9, "n1", "r1").registration();
    let empty = Registration { cluster_id: String::new(), incarnation: NodeIncarnation(7), ..empty };
    let error = bench.state.register(bench.now, empty).unwrap_err();
    assert!(error.message.contains("had 1 replica,"), "{error}");
}

#[test]
fn nodes_that_swap_their_names_stay_live() {
    let mut bench = Bench::with_nodes(2);
    for (index, name) in [(0, "n2"), (1, "n1")] {
        bench.nodes[index].name = name.into();
        bench.nodes[index].incarnation = 2;
        bench.nodes[index].seq = 0;
        bench.register(index).unwrap();
    }
    bench.beat_all();
    let report = bench.state.report(bench.now);
    let names: Vec<_> = report.nodes.iter().map(|node| (node.address.node.as_str(), node.state)).collect();
    assert_eq!(names, [("n1", NodeState::Live), ("n2", NodeState::Live)]);
}

#[test]
fn full_report_with_too_many_chunks_is_refused() {
    let mut bench = Bench::with_nodes(1);
    let (uuid, incarnation) = (bench.nodes[0].uuid, NodeIncarnation(1));
    bench.register(0).unwrap();
    bench.state.full_report(bench.now, uuid, incarnation, 0, false, vec![]).unwrap();
    for chunk in [u32::MAX, 1 << 16] {
        let refused = bench.state.full_report(bench.now, uuid, incarnation, chunk, false, vec![]);
        assert_eq!(refused.unwrap_err().kind, Kind::Invalid);
    }
    bench.register(0).unwrap();
    bench.check();
}

#[test]
fn only_the_newest_incarnation_counts() {
    let mut bench = Bench::with_nodes(1);
    let uuid = bench.nodes[0].uuid;
    bench.nodes[0].incarnation = 5;
    bench.register(0).unwrap();
    let old = bench.state.heartbeat(bench.now, uuid, NodeIncarnation(1), Heartbeat::default());
    assert_eq!(old, HeartbeatAnswer::RegisterAgain);
    bench.nodes[0].incarnation = 4;
    assert_eq!(bench.register(0).unwrap_err().kind, Kind::Refused);
    let unknown_node = NodeUuid(uuid::Uuid::from_u128(77));
    let unknown = bench.state.heartbeat(bench.now, unknown_node, NodeIncarnation(1), Heartbeat::default());
    assert_eq!(unknown, HeartbeatAnswer::RegisterAgain);
    let report = bench.state.full_report(bench.now, unknown_node, NodeIncarnation(1), 0, true, vec![]);
    assert_eq!(report.unwrap_err().kind, Kind::NotFound);
}

#[test]
fn node_of_another_cluster_is_refused_with_both_ids() {
    let mut bench = Bench::with_nodes(0);
    let mut registration = FakeNode::new(0, "n1", "r1").registration();
    registration.cluster_id = "c2".into();
    let error = bench.state.register(bench.now, registration).unwrap_err();
    assert!(error.message.contains("c1") && error.message.contains("c2"), "{error}");
    let error = {
        let file = bench.create("/f");
        bench.add_block_as(file, "w").unwrap_err()
    };
    assert!(error.kind == Kind::NoNodes && error.message.contains("0 registered"), "{error}");
}

#[test]
fn stopping_node_is_dead_at_once_and_its_blocks_are_copied() {
    let mut bench = Bench::with_nodes(3);
    let (_, blocks) = bench.file("/f", 2, &[10]);
    bench.run_ms(11_000);
    let gone = bench.good_on(blocks[0])[0];
    let (uuid, incarnation) = (bench.nodes[gone].uuid, NodeIncarnation(1));
    let goodbye = Heartbeat { leaving: true, ..Heartbeat::default() };
    let answer = bench.state.heartbeat(bench.now, uuid, incarnation, goodbye.clone());
    assert_eq!(answer, HeartbeatAnswer::Commands(vec![]));
    bench.nodes[gone].up = false;
    bench.check();
    let name = bench.nodes[gone].name.clone();
    assert_eq!(state_of(&bench, &name), NodeState::Dead);
    assert_eq!(
        bench.state.report(bench.now).under_replicated,
        1,
        "the copy of the block is not queued at once"
    );
    assert!(bench.state.locate(&path("/f"), 0, 10, "").unwrap().1[0].nodes.iter().all(|n| n.uuid != uuid));
    bench.run_ms(2_000);
    assert_eq!(bench.state.report(bench.now).under_replicated, 0);
    // A repeated or late last heartbeat has no effect. A node that returns registers again.
    assert_eq!(bench.state.heartbeat(bench.now, uuid, incarnation, goodbye), HeartbeatAnswer::RegisterAgain);
    bench.nodes[gone].up = true;
    bench.beat_all();
    assert_eq!(state_of(&bench, &name), NodeState::Live);
}

#[test]
fn restarted_node_causes_no_copies() {
    let mut bench = Bench::with_nodes(4);
    let (_, blocks) = bench.file("/f", 3, &[10]);
    bench.run_ms(11_000);
    let gone = bench.good_on(blocks[0])[0];
    let uuid = bench.nodes[gone].uuid;
    let leave = |bench: &mut Bench| {
        let incarnation = NodeIncarnation(bench.nodes[gone].incarnation);
        let goodbye = Heartbeat { leaving: true, ..Heartbeat::default() };
        bench.state.heartbeat(bench.now, uuid, incarnation, goodbye);
        bench.nodes[gone].up = false;
    };
    leave(&mut bench);
    assert_eq!(
        bench.state.report(bench.now).under_replicated,
        1,
        "the stopped node does not count as dead at once"
    );
    bench.run_ms(1_000);
    bench.nodes[gone].up = true;
    bench.run_ms(5_000);
    let copied = |bench: &Bench| {
        let orders = bench.nodes.iter().flat_map(|node| &node.received_commands);
        orders.filter(|order| matches!(order, Command::Copy { .. })).count()
    };
    assert_eq!(copied(&bench), 0);
    assert_eq!(bench.good_on(blocks[0]).len(), 3);
    leave(&mut bench);
    bench.run_ms(5_000);
    assert_eq!(copied(&bench), 1, "the node did not return, but its block was not copied");
    assert_eq!(bench.state.report(bench.now).under_replicated, 0);
}

#[test]
fn silent_node_becomes_suspect_then_dead_and_reregisters() {
    let mut bench = Bench::with_nodes(2);
    let (_, blocks) = bench.file("/f", 2, &[10]);
    bench.nodes[1].up = false;
    bench.run_ms(4_000);
    assert_eq!(state_of(&bench, "n2"), NodeState::Suspect);
    assert_eq!(bench.state.report(bench.now).under_replicated, 0);
    let file = bench.create("/g");
    assert_eq!(
        bench.add_block_as(file, "w").unwrap().1,
        [bench.nodes[0].uuid],
        "a suspect node gets a new block"
    );
    bench.run_ms(7_000);
    assert_eq!(state_of(&bench, "n2"), NodeState::Dead);
    assert_eq!(bench.state.report(bench.now).under_replicated, 1);
    bench.nodes[1].up = true;
    bench.beat(1);
    assert_eq!(state_of(&bench, "n2"), NodeState::Live);
    assert_eq!(bench.state.report(bench.now).under_replicated, 0);
    assert_eq!(bench.good_on(blocks[0]).len(), 2);
}

#[test]
fn paused_namenode_does_not_expire_nodes() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create("/f");
    bench.now.mono_ms += 60_000;
    bench.tick();
    assert_eq!(state_of(&bench, "n1"), NodeState::Live);
    assert!(bench.state.stat_id(file).unwrap().open);
    // The pause extends leases and heartbeat timeouts at most to their full duration.
    for node in &mut bench.nodes {
        node.up = false;
    }
    bench.run_ms(10_400);
    assert_eq!(state_of(&bench, "n1"), NodeState::Dead);
    bench.run_ms(10_000);
    assert!(!bench.state.stat_id(file).unwrap().open);
}

#[test]
fn heartbeat_during_a_full_report_is_newer_than_the_report() {
    let mut bench = Bench::with_nodes(2);
    let (_, blocks) = bench.file("/f", 1, &[10, 10, 10, 10]);
    let on: Vec<usize> = blocks.iter().map(|block| bench.good_on(*block)[0]).collect();
    let index = on[0];
    let node = bench.nodes[index].clone();
    let mine: Vec<BlockId> = blocks.iter().copied().filter(|b| node.disk.contains_key(b)).collect();
    let other = blocks.iter().copied().find(|b| !node.disk.contains_key(b));
    let (uuid, incarnation) = (node.uuid, NodeIncarnation(node.incarnation));
    let nonces: std::collections::BTreeMap<_, _> =
        blocks.iter().map(|block| (*block, bench.state.namespace().block(*block).unwrap().nonce)).collect();
    let nonce_of = |block| nonces[&block];
    let reported = |block| Replica { block, nonce: nonce_of(block), length: 10 };
    // The node restarts. It reports a replica in a heartbeat before its full report, which does not
    // contain the replica, is complete.
    bench.state.register(bench.now, node.registration()).unwrap();
    assert!(bench.has_known_replica(mine[0]), "the replica is forgotten before the full report is complete");
    let heartbeat =
        Heartbeat { seq: 1, usage: node.usage(), received: vec![reported(mine[0])], ..Heartbeat::default() };
    bench.state.heartbeat(bench.now, uuid, incarnation, heartbeat);
    bench.state.full_report(bench.now, uuid, incarnation, 0, false, vec![]).unwrap();
    let out_of_turn = bench.state.full_report(bench.now, uuid, incarnation, 7, true, vec![]);
    assert_eq!(out_of_turn.unwrap_err().kind, Kind::Invalid);
    let rest = other.map(reported).into_iter().collect();
    bench.state.full_report(bench.now, uuid, incarnation, 1, true, rest).unwrap();
    bench.check();
    assert!(bench.has_known_replica(mine[0]));
    assert!(mine[1..].iter().all(|block| !bench.has_known_replica(*block)));
}

impl Bench {
    fn has_known_replica(&self, block: BlockId) -> bool {
        let (_, located) = self.state.locate(&path("/f"), 0, u64::MAX, "").unwrap();
        located.iter().any(|at| at.block == block && !at.nodes.is_empty())
    }
}

#[test]
fn registration_cancels_pending_orders() {
    let mut bench = Bench::with_nodes(1);
    let (_, blocks) = bench.file("/f", 1, &[10]);
    bench.ask(Op::Delete { path: path("/f"), recursive: false }).unwrap();
    bench.nodes[0].incarnation = 2;
    bench.nodes[0].seq = 0;
    bench.register(0).unwrap();
    bench.beat(0);
    assert!(
        bench.nodes[0].disk.contains_key(&blocks[0]),
        "a command from before the registration was executed"
    );
    bench.run_ms(4_000);
    assert!(bench.nodes[0].disk.is_empty(), "the orphan is not deleted after the grace period");
}

#[test]
fn safemode_waits_for_blocks_and_refuses_changes() {
    let mut bench = Bench::with_nodes(2);
    let (_, blocks) = bench.file("/f", 1, &[10, 10]);
    let single: Vec<usize> = blocks.iter().map(|block| bench.good_on(*block)[0]).collect();
    bench.restart();
    let error = bench.ask(mkdir("/x")).unwrap_err();
    assert!(
        error.kind == Kind::Safemode && error.message.contains("0 of 2 blocks reported, 2 needed"),
        "{error}"
    );
    let hidden = bench.nodes[single[0]].disk.remove(&blocks[0]).unwrap();
    bench.run_ms(3_000);
    let status = bench.state.safemode();
    assert_eq!((status.on, status.blocks_seen, status.blocks_needed), (true, 1, 2));
    bench.state.set_disk_low(Some(5));
    bench.nodes[single[0]].receive(blocks[0], hidden.0);
    bench.run_ms(3_000);
    let status = bench.state.safemode();
    assert!(status.on && status.reason.contains("5 bytes"), "{}", status.reason);
    bench.state.set_disk_low(None);
    bench.ask(mkdir("/x")).unwrap();
}

#[test]
fn safemode_names_dead_nodes_instead_of_waiting_for_them() {
    let mut bench = Bench::with_nodes(2);
    bench.file("/f", 1, &[10; 8]);
    bench.nodes.iter_mut().for_each(|node| node.up = false);
    bench.restart();
    bench.run_ms(400);
    let reason = |bench: &Bench| bench.state.safemode().reason;
    assert!(reason(&bench).contains(": wait for the DataNodes;"), "{}", reason(&bench));
    bench.run_ms(15_000);
    assert!(reason(&bench).contains(": start the DataNodes that are not running;"), "{}", reason(&bench));
    // A node that registers and dies is known by its name.
    let with_blocks = usize::from(bench.nodes[0].disk.is_empty());
    bench.nodes[1 - with_blocks].up = true;
    bench.nodes[1 - with_blocks].disk.clear();
    bench.run_ms(2_000);
    bench.nodes[1 - with_blocks].up = false;
    bench.run_ms(15_000);
    let dead = format!(": start the dead DataNodes again (n{});", 2 - with_blocks);
    assert!(reason(&bench).contains(&dead), "{}", reason(&bench));
}

#[test]
fn operator_can_turn_safemode_off_and_on() {
    let mut bench = Bench::with_nodes(1);
    bench.file("/f", 1, &[10]);
    bench.nodes[0].up = false;
    bench.restart();
    bench.run_ms(3_000);
    assert!(bench.state.safemode().on);
    bench.set_safemode(false);
    bench.ask(mkdir("/x")).unwrap();
    assert_eq!(bench.state.report(bench.now).missing, 1);
    bench.set_safemode(true);
    assert_eq!(bench.refusal_kind(mkdir("/y")), Kind::ManualSafemode);
    bench.set_safemode(false);
    bench.ask(mkdir("/y")).unwrap();
}

#[test]
fn safemode_that_an_operator_has_turned_on_survives_a_restart_and_a_snapshot() {
    let mut bench = Bench::with_nodes(1);
    bench.set_safemode(true);
    let records = bench.records.len();
    bench.set_safemode(true);
    assert_eq!(bench.records.len(), records, "a repeated request has made a record");
    bench.restart();
    bench.run_ms(3_000);
    assert_eq!(bench.refusal_kind(mkdir("/x")), Kind::ManualSafemode);
    let mut loader = SnapshotLoader::default();
    bench.state.namespace().items().for_each(|item| loader.take(item).unwrap());
    assert!(loader.finish().unwrap().safemode());
    bench.set_safemode(false);
    bench.ask(mkdir("/x")).unwrap();
    bench.restart();
    bench.run_ms(3_000);
    bench.ask(mkdir("/y")).unwrap();
}

#[test]
fn safemode_waits_for_a_number_of_nodes() {
    let mut bench =
        Bench::with_settings(0, crate::namenode::Settings { safemode_nodes_min: 2, ..settings() });
    assert_eq!(bench.refusal_kind(mkdir("/x")), Kind::Safemode);
    for index in 0..2 {
        bench.tick();
        assert!(bench.state.safemode().on);
        bench.nodes.push(FakeNode::new(index, &format!("n{index}"), "r"));
        bench.beat(index);
    }
    bench.tick();
    bench.ask(mkdir("/x")).unwrap();
}

#[test]
fn replicas_of_unassigned_blocks_are_kept_and_their_ids_skipped() {
    let mut bench = Bench::with_nodes(1);
    bench.nodes[0].receive(BlockId(50), 10);
    bench.beat(0);
    assert!(bench.state.safemode().reason.contains("future_blocks 1"));
    assert!(!bench.state.safemode().on);
    let (_, blocks) = bench.file("/f", 1, &[10]);
    assert_eq!(blocks, [BlockId(51)]);
    bench.run_ms(5_000);
    bench.restart();
    bench.run_ms(8_000);
    assert!(bench.nodes[0].disk.contains_key(&BlockId(50)), "the replica was deleted after a restart");
    assert!(bench.state.safemode().reason.contains("future_blocks 1"));
}

#[test]
fn reported_bad_replica_is_verified_by_the_datanode() {
    let mut bench = Bench::with_nodes(2);
    let (_, blocks) = bench.file("/f", 2, &[10]);
    let uuid = bench.nodes[0].uuid;
    let nonce = bench.state.namespace().block(blocks[0]).unwrap().nonce;
    let report = |bench: &mut Bench, block| {
        bench.state.report_bad_replica(bench.now, &Caller::superuser("ann"), block, uuid)
    };
    assert_eq!([(); 3].map(|()| report(&mut bench, blocks[0]).unwrap()), [true, false, false]);
    assert_eq!(bench.state.report(bench.now).corrupt_replicas, 0, "the report of a client counts as proof");
    bench.beat(0);
    assert_eq!(bench.nodes[0].received_commands, [Command::Check(blocks[0], nonce)]);
    assert_eq!(report(&mut bench, BlockId(9)).unwrap_err().kind, Kind::NotFound);
    // A superuser may request another check as soon as the DataNode has reported. A user may do so
    // a minute later.
    let user = Caller { user: "eve".into(), groups: std::sync::Arc::default(), superuser: false };
    let by_user = |bench: &mut Bench| bench.state.report_bad_replica(bench.now, &user, blocks[0], uuid);
    bench.run_ms(30_000);
    assert_eq!(bench.state.report(bench.now).checks_pending, 0);
    assert!(!by_user(&mut bench).unwrap());
    bench.run_ms(40_000);
    assert!(by_user(&mut bench).unwrap());
    bench.run_ms(3000);
    assert!(report(&mut bench, blocks[0]).unwrap());
    bench.run_ms(3000);
    let checked = |bench: &Bench| bench.state.report(bench.now).checks;
    assert_eq!(checked(&bench), Checked { good: 3, good_bytes: 30, bad: 0 });
    bench.nodes[0].disk.get_mut(&blocks[0]).unwrap().1 = true;
    assert!(report(&mut bench, blocks[0]).unwrap());
    bench.run_ms(3000);
    assert_eq!(checked(&bench), Checked { good: 3, good_bytes: 30, bad: 1 });
}

#[test]
fn unreported_check_stays_pending_and_is_requested_again() {
    let mut bench = Bench::with_nodes(1);
    let (_, blocks) = bench.file("/f", 1, &[10]);
    let uuid = bench.nodes[0].uuid;
    bench.nodes[0].loses_replies = true;
    let asked = bench.state.report_bad_replica(bench.now, &Caller::superuser("ann"), blocks[0], uuid);
    assert!(asked.unwrap());
    bench.run_ms(50_000);
    assert_eq!(
        bench.state.report(bench.now).checks_pending,
        1,
        "the check is not pending although its command was lost"
    );
    bench.nodes[0].loses_replies = false;
    bench.run_ms(20_000);
    assert_eq!(bench.state.report(bench.now).checks_pending, 0);
    // A check on a node that dies does not stay pending.
    bench.nodes[0].loses_replies = true;
    bench.state.report_bad_replica(bench.now, &Caller::superuser("ann"), blocks[0], uuid).unwrap();
    bench.nodes[0].up = false;
    bench.run_ms(60_000);
    assert_eq!(bench.state.report(bench.now).checks_pending, 0);
}

#[test]
fn reports_of_bad_replicas_are_limited_by_user_and_need_read_permission() {
    let mut bench = Bench::with_nodes(1);
    let (_, blocks) = bench.file("/f", 1, &[10; 1]);
    let uuid = bench.nodes[0].uuid;
    let user = Caller { user: "eve".into(), groups: std::sync::Arc::default(), superuser: false };
    let report = |bench: &mut Bench| bench.state.report_bad_replica(bench.now, &user, blocks[0], uuid);
    assert!(report(&mut bench).unwrap());
    let set = |mode| Op::SetAttributes {
        path: path("/f"),
        replication: None,
        mode: Some(mode),
        owner: None,
        group: None,
        modified_ms: None,
    };
    bench.ask(set(0o600)).unwrap();
    assert_eq!(
        report(&mut bench).unwrap_err().kind,
        Kind::Denied,
        "a user who cannot read the file can report it"
    );
    bench.ask(set(0o644)).unwrap();
    let last = (0..200).map(|_| report(&mut bench)).last().unwrap();
    assert_eq!(last.unwrap_err().kind, Kind::Quota);
    bench.run_ms(61_000);
    assert!(report(&mut bench).unwrap(), "the user may not report a minute later");
}

#[test]
fn replica_with_another_nonce_never_counts_and_is_kept_until_an_operator_decides() {
    let mut bench = Bench::with_nodes(2);
    let (_, blocks) = bench.file("/f", 1, &[10]);
    let block = blocks[0];
    let (holder, other) = (bench.good_on(block)[0], 1 - bench.good_on(block)[0]);
    // The other node has another block with the same ID and length, as after the NameNode was
    // restored from an older copy of its folder.
    bench.nodes[other].offered_nonces.insert(block, Nonce(666));
    bench.nodes[other].receive(block, 10);
    bench.beat(other);
    let report = bench.state.report(bench.now);
    assert_eq!((report.stale_replicas, report.over_replicated), (1, 0));
    assert!(bench.state.safemode().reason.contains("stale_replicas 1"));
    let located = |bench: &Bench| bench.state.locate(&path("/f"), 0, 10, "").unwrap().1[0].nodes.clone();
    assert_eq!(located(&bench).iter().map(|node| node.uuid).collect::<Vec<_>>(), [bench.nodes[holder].uuid]);
    // Without the node of the good replica there is no replica: readers get an error and never the
    // data of the other block.
    bench.nodes[holder].up = false;
    bench.run_ms(20_000);
    assert!(located(&bench).is_empty());
    assert_eq!(bench.state.report(bench.now).missing, 1);
    assert!(
        bench.nodes[other].disk.contains_key(&block),
        "the stale replica was deleted, although it may be the only copy of its block"
    );
    bench.nodes[holder].up = true;
    bench.restart();
    bench.run_ms(20_000);
    assert_eq!(
        bench.state.report(bench.now).stale_replicas,
        1,
        "the full report after a restart does not show the stale replica"
    );
    assert!(bench.nodes[other].disk.contains_key(&block));
    // An operator accepts this namespace. The block has all of its replicas, so the stale one is
    // deleted.
    bench.start(true);
    bench.run_ms(20_000);
    assert!(!bench.nodes[other].disk.contains_key(&block) && bench.nodes[holder].disk.contains_key(&block));
    assert_eq!(bench.state.report(bench.now).stale_replicas, 0);
}

#[test]
fn datanode_that_registered_with_an_unknown_start_is_refused_until_an_operator_accepts() {
    let mut bench = Bench::with_nodes(2);
    bench.file("/old", 2, &[10]);
    bench.restart();
    bench.run_ms(2_000);
    let copy = bench.records.len();
    // Make the records that will be lost: two more starts and a file.
    for _ in 0..2 {
        bench.restart();
        bench.run_ms(2_000);
    }
    let (_, lost) = bench.file("/lost", 2, &[10]);
    let later = bench.nodes[0].last_namenode_start;
    bench.restore(copy);
    let refused = |bench: &mut Bench| bench.register(0).map_err(|error| (error.kind, error.message));
    let (kind, message) = refused(&mut bench).unwrap_err();
    assert_eq!(kind, Kind::OlderNameNode);
    assert!(message.contains("older copy") && message.contains("namenode --recover"), "{message}");
    assert_eq!(bench.state.report(bench.now).refused_nodes.len(), 1);
    assert!(bench.state.safemode().reason.contains("1 DataNode refused: "));
    let events = bench.state.take_events();
    assert!(events.iter().any(|event| matches!(event, Event::NodeRefused(_))), "{events:?}");
    refused(&mut bench).unwrap_err();
    assert!(bench.state.take_events().is_empty(), "the same refusal was reported twice");
    // The next start has the epoch that the DataNode has stored, but another start ID.
    bench.restart();
    assert_eq!(bench.state.namespace().epoch(), later.0);
    assert!(refused(&mut bench).unwrap_err().1.contains("whose edits this one does not have"));
    bench.restart();
    refused(&mut bench).expect_err("a higher epoch is enough to register");
    bench.start(true);
    bench.beat_all();
    bench.run_ms(5_000);
    assert!(bench.state.report(bench.now).refused_nodes.is_empty());
    assert!(bench.stat("/old").is_ok() && bench.stat("/lost").is_err());
    assert!(
        bench.nodes.iter().all(|node| node.disk.contains_key(&lost[0])),
        "the replicas of the lost file were deleted"
    );
    assert_eq!(bench.state.report(bench.now).future_replicas, 2);
}

#[test]
fn blocks_since_a_backup_are_deleted_only_if_the_operator_gives_them_up() {
    for drop_newer in [false, true] {
        let mut bench = Bench::with_nodes(2);
        let (_, old) = bench.file("/old", 2, &[10]);
        let copy = bench.records.len();
        let (_, first) = bench.file("/first", 2, &[10]);
        bench.restart();
        bench.run_ms(2_000);
        let (_, second) = bench.file("/second", 2, &[10]);
        bench.start_from_backup(copy, drop_newer);
        bench.beat_all();
        bench.run_ms(20_000);
        let (_, new) = bench.file("/new", 2, &[10]);
        bench.run_ms(20_000);
        let on_disk = |block| bench.nodes.iter().filter(|node| node.disk.contains_key(block)).count();
        for block in [&old[0], &new[0]] {
            assert_eq!(on_disk(block), 2, "{block} is of a file");
        }
        for block in [&first[0], &second[0]] {
            assert_eq!(on_disk(block), if drop_newer { 0 } else { 2 }, "{block}, drop newer: {drop_newer}");
        }
        assert_eq!(bench.state.report(bench.now).future_replicas, if drop_newer { 0 } else { 4 });
    }
}

#[test]
fn events_report_nodes_drains_and_safemode() {
    let mut bench = Bench::with_nodes(3);
    let (_, _) = bench.file("/f", 1, &[10]);
    bench.run_ms(1_000);
    let mut seen = bench.state.take_events();
    let events = |bench: &mut Bench| -> Vec<String> {
        bench.state.take_events().iter().map(ToString::to_string).collect()
    };
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen.remove(0), Event::NodeRegistered("n1".into()));
    bench.ask(Op::Drain { node: "n1".into(), cancel: false }).unwrap();
    bench.run_ms(5_000);
    let reported = events(&mut bench);
    assert_eq!(
        reported,
        ["drain of DataNode n1 started", "drain of DataNode n1 finished: it may be stopped"]
    );
    bench.nodes[1].up = false;
    bench.run_ms(12_000);
    let reported = events(&mut bench);
    assert!(reported[0].contains("n2 is suspect") && reported[1].contains("n2 is dead"), "{reported:?}");
    bench.nodes[1].up = true;
    bench.run_ms(2_000);
    assert_eq!(events(&mut bench), ["DataNode n2 is back"]);
    bench.set_safemode(true);
    bench.run_ms(1_000);
    bench.set_safemode(false);
    bench.run_ms(1_000);
    let reported = events(&mut bench);
    assert!(
        reported[0].contains("turned on by an operator") && reported[1].contains("safemode is off"),
        "{reported:?}"
    );
}
