//! Tests of copies of missing replicas, surplus replicas, damage and drains.

use super::bench::{Bench, path, settings};
use crate::namenode::{
    Settings,
    op::{Command, Heartbeat, HeartbeatAnswer, OnAbandon, Op},
    view::NodeState,
};
use dfs_client::{
    error::Kind,
    ids::{BlockId, NodeIncarnation},
};

fn setrep(at: &str, replication: u32) -> Op {
    Op::SetAttributes {
        path: path(at),
        replication: Some(replication),
        mode: None,
        owner: None,
        group: None,
        modified_ms: None,
    }
}

fn drain(node: &str, cancel: bool) -> Op {
    Op::Drain { node: node.into(), cancel }
}

fn files_with_problems(bench: &Bench) -> usize {
    bench.state.fsck(&path("/"), None, 1000).unwrap().problems.len()
}

/// Length of a block whose copy uses a complete slot.
const LARGE_BLOCK_BYTES: u64 = 64 << 20;

fn large_blocks(nodes: usize, copies_max: u32, copies_per_node_max: u32) -> Bench {
    let settings = Settings { block_size: LARGE_BLOCK_BYTES, copies_max, copies_per_node_max, ..settings() };
    let mut bench = Bench::with_settings(nodes, settings);
    bench.nodes.iter_mut().for_each(|node| node.capacity = 1 << 40);
    bench.beat_all();
    bench
}

/// Writes a file with these blocks, drains the first node, and returns the number of running copies
/// one tick later.
fn pending_in_drain(bench: &mut Bench, lengths: &[u64]) -> u64 {
    bench.file("/f", 2, lengths);
    bench.run_ms(11_000);
    bench.ask(drain("n1", false)).unwrap();
    bench.tick();
    bench.state.report(bench.now).copies_pending
}

#[test]
fn small_copies_share_a_slot_and_large_copies_use_one_each() {
    let pending = pending_in_drain(&mut large_blocks(3, 3, 2), &[LARGE_BLOCK_BYTES; 20]);
    assert!(
        (2..=3).contains(&pending),
        "{pending} copies are running, expected 2 or 3 (at most two per node and three in total)"
    );
    // A copy of 64 KiB or less uses 64 KiB of a slot of 4 MiB, so 64 copies fill one slot. No
    // further copy starts then, because one of the two slots must stay completely free.
    let pending = pending_in_drain(&mut large_blocks(3, 2, 2), &[1000; 200]);
    assert!((60..=66).contains(&pending), "{pending} copies are running");
}

#[test]
fn completed_copy_starts_the_next_one_without_a_tick() {
    let mut bench = large_blocks(3, 1, 1);
    let pending = pending_in_drain(&mut bench, &[LARGE_BLOCK_BYTES; 12]);
    assert_eq!(pending, 1);
    // Send only heartbeats, while the clock stands still: each report of a copy starts the next
    // copy.
    for _ in 0..12 {
        bench.beat_all();
    }
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
}

#[test]
fn blocks_of_a_dead_node_are_copied() {
    let mut bench = Bench::with_nodes(4);
    let blocks = bench.file("/f", 2, &[10; 12]).1;
    bench.nodes[0].up = false;
    bench.run_ms(30_000);
    for block in &blocks {
        let on = bench.good_on(*block);
        assert!(on.iter().filter(|at| **at != 0).count() == 2, "{block} on {on:?}");
    }
    assert_eq!(files_with_problems(&bench), 0);
    // The node returns: there are too many replicas now, and the surplus is deleted.
    bench.nodes[0].up = true;
    bench.run_ms(5_000);
    assert!(blocks.iter().all(|block| bench.good_on(*block).len() == 2));
    let report = bench.state.report(bench.now);
    assert_eq!((report.under_replicated, report.over_replicated, report.copies_pending), (0, 0, 0));
    assert!(report.copies_done_total > 0);
}

#[test]
fn most_endangered_blocks_are_copied_first() {
    let mut bench = large_blocks(6, 1, 1);
    let safe = bench.file("/safe", 4, &[LARGE_BLOCK_BYTES]).1[0];
    let weak = bench.file("/weak", 2, &[LARGE_BLOCK_BYTES]).1[0];
    bench.run_ms(11_000);
    for block in [safe, weak] {
        let at = bench.good_on(block)[0];
        bench.nodes[at].disk.remove(&block);
        bench.nodes[at].pending_reports.lost.push(block);
    }
    bench.beat_all();
    bench.tick();
    bench.beat_all();
    let first =
        bench.nodes.iter().flat_map(|node| &node.received_commands).find_map(|command| match command {
            Command::Copy { block, .. } => Some(*block),
            _ => None,
        });
    assert_eq!(first, Some(weak));
    bench.run_ms(6_000);
    assert_eq!((bench.good_on(safe).len(), bench.good_on(weak).len()), (4, 2));
}

#[test]
fn a_copy_that_never_arrives_is_tried_again() {
    let mut bench = Bench::with_nodes(3);
    let block = bench.file("/f", 2, &[10]).1[0];
    let on = bench.good_on(block);
    let target = (0..3).find(|at| !on.contains(at)).unwrap();
    bench.run_ms(11_000);
    bench.nodes[on[0]].disk.remove(&block);
    bench.nodes[on[0]].pending_reports.lost.push(block);
    bench.beat(on[0]);
    bench.nodes[target].up = false;
    bench.run_ms(1_000);
    assert_eq!(bench.state.report(bench.now).copies_pending, 1);
    bench.nodes[target].up = true;
    bench.run_ms(10_000);
    assert_eq!(bench.good_on(block).len(), 2);
}

/// Isolates a node from the other nodes while its heartbeats still arrive, so that only failed
/// copies show the fault. Checks that all blocks are copied to other nodes.
#[test]
fn node_that_others_cannot_reach_gets_no_more_copies() {
    let mut bench = Bench::with_nodes(8);
    let blocks = bench.file("/f", 2, &[10; 60]).1;
    let isolated = bench.nodes.len() - 1;
    bench.nodes[isolated].isolated = true;
    bench.nodes[0].up = false;
    // The node is dead after 10 s. The first copies to the isolated node time out 5 s later.
    bench.run_ms(30_000);
    let short =
        blocks.iter().filter(|block| bench.good_on(**block).iter().filter(|at| **at != 0).count() < 2);
    assert_eq!(short.count(), 0);
}

#[test]
fn setrep_creates_or_deletes_replicas() {
    let mut bench = Bench::with_nodes(4);
    let block = bench.file("/f", 2, &[10]).1[0];
    bench.ask(setrep("/f", 4)).unwrap();
    bench.run_ms(15_000);
    assert_eq!(bench.good_on(block).len(), 4);
    bench.ask(setrep("/f", 2)).unwrap();
    bench.run_ms(3_000);
    let on = bench.good_on(block);
    assert_eq!(on.len(), 2);
    assert_ne!(bench.nodes[on[0]].rack, bench.nodes[on[1]].rack, "both replicas are in one rack");
    assert_eq!(bench.refusal_kind(setrep("/", 2)), Kind::IsDirectory);
}

#[test]
fn damage_is_found_replaced_and_counted() {
    let mut bench = Bench::with_nodes(3);
    let block = bench.file("/f", 2, &[10]).1[0];
    let at = bench.good_on(block)[0];
    bench.nodes[at].move_to_bad(block);
    bench.beat_all();
    let report = bench.state.report(bench.now);
    assert_eq!(
        (report.corrupt_replicas, report.corrupt_found_total, report.corrupt_replaced_total),
        (1, 1, 0)
    );
    assert_eq!(files_with_problems(&bench), 1);
    bench.run_ms(12_000);
    let report = bench.state.report(bench.now);
    assert_eq!(
        (report.corrupt_replicas, report.corrupt_found_total, report.corrupt_replaced_total),
        (0, 1, 1)
    );
    assert_eq!(bench.good_on(block).len(), 2);
    assert!(
        bench.nodes[at].quarantined.is_empty(),
        "the damaged replica was not deleted after its replacement"
    );
    assert_eq!(files_with_problems(&bench), 0);
}

#[test]
fn damaged_replica_is_replaced_on_its_own_node_if_there_is_no_other() {
    let mut bench = Bench::with_nodes(2);
    let block = bench.file("/f", 2, &[10]).1[0];
    bench.nodes[0].move_to_bad(block);
    bench.run_ms(15_000);
    assert_eq!(bench.good_on(block), [0, 1]);
    assert_eq!(bench.state.report(bench.now).corrupt_replicas, 0);
}

/// Damages all replicas of a block, and lets one of them be found. Checks that no replica is
/// deleted, because none of the others is good.
#[test]
fn damaged_replicas_are_kept_until_a_good_one_is_verified() {
    for (nodes, replication) in [(2, 2), (3, 3), (3, 2)] {
        let mut bench = Bench::with_nodes(nodes);
        let block = bench.file("/f", replication, &[10]).1[0];
        bench.run_ms(1_000);
        let on = bench.good_on(block);
        for at in &on {
            bench.nodes[*at].disk.insert(block, (10, true));
        }
        bench.nodes[on[0]].move_to_bad(block);
        bench.run_ms(90_000);
        let kept = on.iter().filter(|at| bench.nodes[**at].quarantined.contains(&block)).count();
        let found = u64::from(replication);
        assert_eq!(kept as u64, found, "{nodes} nodes");
        let report = bench.state.report(bench.now);
        let counts = (report.corrupt_replicas, report.corrupt_found_total, report.corrupt_replaced_total);
        assert_eq!((counts, report.corrupt), ((found, found, 0), 1), "{nodes} nodes");
        // Readers do not wait for a block if all of its replicas are known to be damaged.
        let (_, located) = bench.state.locate(&path("/f"), 0, 10, "").unwrap();
        assert_eq!((located[0].nodes.len(), located[0].damaged_on.len()), (0, on.len()), "{nodes} nodes");
    }
}

#[test]
fn checks_that_prove_a_replica_good_are_not_counted_as_requested() {
    let mut bench = Bench::with_nodes(2);
    let block = bench.file("/f", 2, &[10]).1[0];
    bench.nodes[0].move_to_bad(block);
    bench.run_ms(15_000);
    let report = bench.state.report(bench.now);
    assert_eq!((report.corrupt_found_total, report.corrupt_replaced_total), (1, 1));
    assert!(bench.nodes[1].received_commands.iter().any(|command| matches!(command, Command::Check(..))));
    assert_eq!(report.checks.good, 0);
}

#[test]
fn last_replica_is_kept_even_if_damaged() {
    let mut bench = Bench::with_nodes(1);
    let block = bench.file("/f", 1, &[10]).1[0];
    bench.nodes[0].move_to_bad(block);
    bench.run_ms(15_000);
    assert!(bench.nodes[0].quarantined.contains(&block));
    let report = bench.state.report(bench.now);
    assert_eq!(
        (report.missing, report.corrupt, report.corrupt_replicas),
        (0, 1, 1),
        "the block counts as missing instead of corrupt"
    );
    let (_, located) = bench.state.locate(&path("/f"), 0, 10, "").unwrap();
    assert_eq!((located[0].nodes.len(), located[0].damaged_on.as_slice()), (0, &["n1".to_owned()][..]));
    bench.nodes[0].up = false;
    bench.run_ms(15_000);
    let report = bench.state.report(bench.now);
    assert_eq!(
        (report.missing, report.corrupt),
        (1, 0),
        "the block does not count as missing while the node is down"
    );
    bench.nodes[0].up = true;
    bench.run_ms(2_000);
    bench.ask(Op::Delete { path: path("/f"), recursive: false }).unwrap();
    bench.run_ms(2_000);
    assert!(bench.nodes[0].quarantined.is_empty(), "the damaged replica was not deleted with its file");
}

#[test]
fn drained_node_holds_no_needed_replica() {
    let mut bench = Bench::with_nodes(4);
    let blocks = bench.file("/f", 2, &[10; 10]).1;
    bench.ask(drain("n1", false)).unwrap();
    let replicas = bench.nodes[0].disk.len() as u64;
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Draining, replicas));
    let (_, located) = bench.state.locate(&path("/f"), 0, 1000, "n1").unwrap();
    assert!(located.iter().all(|at| at.nodes.len() == 2), "a draining node does not serve its blocks");
    bench.restart();
    bench.run_ms(30_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
    for block in &blocks {
        assert!(bench.good_on(*block).iter().filter(|at| **at != 0).count() >= 2);
    }
    let file = bench.create("/g");
    for _ in 0..10 {
        assert!(!bench.add_block_as(file, "w").unwrap().1.contains(&bench.nodes[0].uuid));
    }
    bench.ask(drain("n1", true)).unwrap();
    assert_eq!(drain_progress(&bench, "n1").0, NodeState::Live);
    bench.run_ms(5_000);
    assert!(
        blocks.iter().all(|block| bench.good_on(*block).len() == 2),
        "the surplus replicas were not deleted"
    );
}

#[test]
fn replica_on_a_suspect_node_does_not_complete_a_drain() {
    let mut bench = Bench::with_nodes(3);
    let blocks = bench.file("/f", 2, &[10; 4]).1;
    let on_n1 = blocks.iter().filter(|block| bench.good_on(**block).contains(&0)).count() as u64;
    let suspect_ms = settings().suspect_after_ms + 1_000;
    bench.nodes[1].up = false;
    bench.run_ms(suspect_ms);
    bench.ask(drain("n1", false)).unwrap();
    bench.run_ms(1_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Draining, on_n1));
    let status = bench.state.drain_status("n1");
    assert!(!status.stuck, "a suspect node may come back");
    let why = "n2, which has a replica, sends no heartbeats";
    assert!(status.examples.iter().any(|block| block.why == why), "{status:?}");
    bench.nodes[1].up = true;
    bench.run_ms(5_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
    bench.nodes[1].up = false;
    bench.run_ms(suspect_ms);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Draining, on_n1));
}

#[test]
fn refused_drain_changes_nothing() {
    let mut bench = Bench::with_nodes(3);
    bench.file("/f", 2, &[10; 4]);
    bench.ask(drain("n1", false)).unwrap();
    bench.run_ms(15_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
    // Without the second node, only one node would be left for each block.
    assert_eq!(bench.refusal_kind(drain("n2", false)), Kind::Refused);
    assert_eq!(
        (drain_progress(&bench, "n1").0, drain_progress(&bench, "n2").0),
        (NodeState::Drained, NodeState::Live)
    );
    assert!(!bench.state.namespace().is_draining("n2"));
    // With a lower replication both can be drained.
    bench.ask(setrep("/f", 1)).unwrap();
    bench.ask(drain("n2", false)).unwrap();
    bench.run_ms(15_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
    assert_eq!(drain_progress(&bench, "n2"), (NodeState::Drained, 0));
    assert_eq!(bench.refusal_kind(drain("n3", false)), Kind::Refused, "the last node can be drained");
}

#[test]
fn a_dead_node_cannot_be_drained() {
    let mut bench = Bench::with_nodes(3);
    bench.nodes[0].up = false;
    bench.run_ms(15_000);
    assert_eq!(bench.refusal_kind(drain("n1", false)), Kind::Refused);
    assert!(!bench.state.namespace().is_draining("n1"));
}

#[test]
fn a_drain_is_stuck_when_too_few_stay_for_its_blocks() {
    let mut bench = Bench::with_nodes(3);
    let blocks = bench.file("/f", 2, &[10; 4]).1;
    bench.ask(drain("n1", false)).unwrap();
    bench.run_ms(15_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
    bench.nodes[1].up = false;
    bench.run_ms(15_000);
    let status = bench.state.drain_status("n1");
    assert_eq!((status.state, status.stuck, status.staying), (NodeState::Draining, true, 1));
    let example = &status.examples[0];
    assert!(blocks.contains(&example.block) && example.path == path("/f"), "{example:?}");
    assert_eq!((example.wanted, example.have), (2, 1));
    assert_eq!(example.why, "too few DataNodes remain: 1");
    bench.nodes[1].up = true;
    bench.run_ms(15_000);
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Drained, 0));
}

#[test]
fn a_drain_can_be_cancelled_for_a_node_that_never_came_back() {
    let mut bench = Bench::with_nodes(3);
    bench.file("/f", 2, &[10; 4]);
    bench.ask(drain("n1", false)).unwrap();
    assert_eq!(bench.refusal_kind(drain("n9", true)), Kind::NotFound);
    bench.nodes[0].up = false;
    bench.restart();
    bench.run_ms(1_000);
    bench.set_safemode(false);
    bench.ask(drain("n1", true)).unwrap();
    assert_eq!(drain_progress(&bench, "n1"), (NodeState::Dead, 0));
}

fn drain_progress(bench: &Bench, node: &str) -> (NodeState, u64) {
    let status = bench.state.drain_status(node);
    (status.state, status.blocks_left)
}

/// Sends a heartbeat of a node, and returns the deletions in the reply without executing them.
fn sent_deletes(bench: &mut Bench, index: usize) -> Vec<BlockId> {
    let node = &mut bench.nodes[index];
    node.seq += 1;
    let (seq, epoch) = (node.seq, node.last_namenode_start.0);
    let heartbeat = Heartbeat { seq, epoch, usage: node.usage(), ..Heartbeat::default() };
    let (uuid, incarnation) = (node.uuid, NodeIncarnation(node.incarnation));
    let answer = bench.state.heartbeat(bench.now, uuid, incarnation, heartbeat);
    let HeartbeatAnswer::Commands(commands) = answer else { panic!("{answer:?}") };
    let deletes = commands.into_iter().filter_map(|command| match command {
        Command::Delete(blocks) => Some(blocks),
        _ => None,
    });
    deletes.flatten().map(|(block, _)| block).collect()
}

#[test]
fn unconfirmed_replicas_of_restarted_nodes_cause_no_deletion() {
    let mut bench = Bench::with_nodes(3);
    let block = bench.file("/f", 3, &[10]).1[0];
    bench.run_ms(1_000);
    // Two nodes restart, one of them with an empty disk, and have not reported yet.
    for index in [0, 1] {
        bench.nodes[index].incarnation += 1;
        bench.nodes[index].seq = 0;
        bench.state.register(bench.now, bench.nodes[index].registration()).unwrap();
    }
    bench.nodes[0].disk.clear();
    bench.ask(setrep("/f", 1)).unwrap();
    bench.ask(drain("n3", false)).unwrap();
    bench.tick();
    bench.check();
    assert_eq!(drain_progress(&bench, "n3"), (NodeState::Draining, 1));
    assert!(
        (0..3).all(|index| sent_deletes(&mut bench, index).is_empty()),
        "a replica of {block} was deleted before the restarted nodes reported theirs"
    );
    for index in [0, 1] {
        bench.register(index).unwrap();
    }
    bench.run_ms(2_000);
    assert_eq!(drain_progress(&bench, "n3"), (NodeState::Drained, 0));
    assert!(bench.good_on(block).contains(&1));
}

#[test]
fn pending_delete_is_cancelled_when_the_last_replica_is_lost() {
    let mut bench = Bench::with_nodes(2);
    let block = bench.file("/f", 2, &[10]).1[0];
    bench.run_ms(1_000);
    bench.ask(setrep("/f", 1)).unwrap();
    bench.tick();
    let (_, located) = bench.state.locate(&path("/f"), 0, 10, "").unwrap();
    let kept = located[0].nodes[0].uuid;
    assert_eq!(located[0].nodes.len(), 1, "the surplus replica is still located");
    bench.node(kept).move_to_bad(block);
    let index = bench.nodes.iter().position(|node| node.uuid == kept).unwrap();
    bench.beat(index);
    let (_, located) = bench.state.locate(&path("/f"), 0, 10, "").unwrap();
    assert_eq!(located[0].nodes.len(), 1, "the deletion of the other replica was not cancelled");
    bench.run_ms(2_000);
    assert_eq!(bench.good_on(block), [1 - index]);
}

#[test]
fn replication_above_the_nodes_is_refused_with_their_number() {
    let mut bench = Bench::with_nodes(2);
    bench.file("/f", 2, &[10]);
    assert_eq!(
        bench.refusal_kind(setrep("/f", 3)),
        Kind::Unavailable,
        "the refusal does not allow a retry, although more nodes may register"
    );
    bench.run_ms(11_000);
    bench.nodes[1].up = false;
    bench.run_ms(11_000);
    let error = bench.ask(setrep("/f", 3)).unwrap_err();
    assert!(error.kind == Kind::Refused && error.message.contains("2 DataNodes"), "{error}");
    let error = bench.create_as("/g", "w", 3, OnAbandon::Close).unwrap_err();
    assert_eq!(error.kind, Kind::Refused);
    bench.ask(setrep("/f", 2)).unwrap();
}

#[test]
fn fsck_returns_pages() {
    let mut bench = Bench::with_nodes(1);
    for at in ["/a/x", "/a/y", "/b", "/a-b"] {
        bench.file(at, 1, &[10]);
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = bench.state.fsck(&path("/"), after.as_ref(), 1).unwrap();
        assert_eq!((page.files, page.blocks, page.bytes), (1, 1, 10));
        after = page.last_path;
        seen.push(after.clone().unwrap().as_str().to_owned());
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, ["/a/x", "/a/y", "/a-b", "/b"], "the files are not sorted by folder and name");
    assert_eq!(bench.state.fsck(&path("/a/x"), None, 5).unwrap().files, 1);
    let after = path("/a/xx");
    assert_eq!(bench.state.fsck(&path("/a"), Some(&after), 5).unwrap().last_path, Some(path("/a/y")));
}

#[test]
fn after_a_start_only_copies_of_replicas_that_may_still_be_reported_wait() {
    let slow = crate::namenode::Settings { dead_after_ms: 600_000, ..settings() };
    let mut bench = Bench::with_settings(5, slow.clone());
    let late = 4;
    let (_, corrupt) = bench.file("/corrupt", 2, &[10]);
    let (_, raised) = bench.file("/raised", 1, &[10]);
    let files: Vec<BlockId> = (0..12).map(|n| bench.file(&format!("/f{n}"), 3, &[10]).1[0]).collect();
    bench.run_ms(1_000);
    let drained = bench.good_on(corrupt[0])[0];
    bench.nodes[late].up = false;
    bench.restart_with(&slow);
    bench.beat_all();
    bench.set_safemode(false);
    bench.run_ms(1_000);
    // Damage a replica, increase the replication of a file, and drain a node. The copies for these
    // must not wait for `dead_after` (ten minutes).
    let rotten = bench.good_on(corrupt[0]).into_iter().find(|at| *at != late).unwrap();
    bench.nodes[rotten].move_to_bad(corrupt[0]);
    bench.ask(setrep("/raised", 3)).unwrap();
    let node = format!("n{}", (drained + 1) % 4 + 1);
    bench.ask(drain(&node, false)).unwrap();
    bench.run_ms(15_000);
    let up = |bench: &Bench, block| bench.good_on(block).into_iter().filter(|at| *at != late).count();
    assert!(
        up(&bench, corrupt[0]) >= 1 && !bench.nodes[rotten].quarantined.contains(&corrupt[0]),
        "replaced"
    );
    assert!(up(&bench, raised[0]) >= 3 - usize::from(bench.nodes[late].disk.contains_key(&raised[0])));
    assert_eq!(bench.state.drain_status(&node).blocks_left, 0, "the node is not drained");
    // Blocks that lack a replica only because a node has not registered are not copied.
    let on_late: Vec<BlockId> =
        files.iter().copied().filter(|b| bench.nodes[late].disk.contains_key(b)).collect();
    assert!(!on_late.is_empty());
    let all = |bench: &Bench, block| bench.good_on(block).len();
    bench.nodes[late].up = true;
    bench.run_ms(5_000);
    for block in on_late {
        assert!(all(&bench, block) <= 4, "more copies than the one for the drain");
    }
    assert_eq!(bench.state.report(bench.now).under_replicated, 0);
}
