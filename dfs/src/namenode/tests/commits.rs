//! Tests of the fenced commit.

use super::bench::{Bench, path};
use crate::namenode::op::{CommitMove, Op, Outcome, Quota};
use dfs_client::{
    error::{Error, Kind},
    ids::{Start, StartId},
};

/// Pieces, and the path of the resulting file.
type Move<'a> = (&'a [&'a str], &'a str);

/// Returns the start of a process. All starts with the same history have the same ID here.
fn start(epoch: u64, history: u64) -> Start {
    Start { epoch, id: StartId(history) }
}

fn fence(start: Start, earlier: &[Start]) -> Op {
    Op::Fence { scope: "job1".into(), start, earlier: earlier.to_vec() }
}

fn commit(epoch: u64, id: &str, moves: &[Move], deletes: &[&str]) -> Op {
    commit_of(start(epoch, 1), id, moves, deletes)
}

fn commit_of(start: Start, id: &str, moves: &[Move], deletes: &[&str]) -> Op {
    Op::Commit {
        scope: "job1".into(),
        start,
        commit_id: id.into(),
        moves: moves
            .iter()
            .map(|(pieces, to)| CommitMove {
                pieces: pieces.iter().map(|piece| path(piece)).collect(),
                to: path(to),
            })
            .collect(),
        deletes: deletes.iter().map(|at| path(at)).collect(),
    }
}

fn bench_with_pieces() -> Bench {
    let mut bench = Bench::with_nodes(2);
    bench.file("/tmp/t0/p0", 2, &[10]);
    bench.file("/tmp/t0/p1", 1, &[20]);
    bench.file("/tmp/t1/p0", 2, &[5]);
    bench
}

const MOVES: &[Move] = &[
    (&["/tmp/t0/p0", "/tmp/t0/p1"], "/out/part-0"),
    (&["/tmp/t1/p0"], "/out/part-1"),
    (&[], "/out/_SUCCESS"),
];

const DONE: Result<Outcome, Error> = Ok(Outcome::Committed { already_done: false });
const REPEATED: Result<Outcome, Error> = Ok(Outcome::Committed { already_done: true });

#[test]
fn commit_is_atomic_and_done_once() {
    let mut bench = bench_with_pieces();
    assert_eq!(bench.ask(commit(3, "c1", MOVES, &["/tmp", "/tmp/t0", "/nothing"])), DONE);
    let status = bench.stat("/out/part-0").unwrap();
    assert_eq!((status.length, status.replication), (30, 2));
    assert_eq!(bench.stat("/out/part-1").unwrap().length, 5);
    let success = bench.stat("/out/_SUCCESS").unwrap();
    assert_eq!((success.length, success.open), (0, false));
    assert_eq!(bench.stat("/tmp").unwrap_err(), Kind::NotFound);
    // Send the same commit with another request ID, as a restarted JobTracker does.
    assert_eq!(bench.ask(commit(4, "c1", MOVES, &["/out"])), REPEATED);
    assert_eq!(bench.refusal_kind(commit(3, "c1", MOVES, &[])), Kind::Fenced);
    assert_eq!(bench.refusal_kind(commit(4, "c2", MOVES, &[])), Kind::Exists);
}

#[test]
fn old_epoch_is_fenced_after_a_restart() {
    let mut bench = bench_with_pieces();
    bench.ask(fence(start(5, 1), &[])).unwrap();
    bench.ask(fence(start(5, 1), &[])).unwrap();
    let refused = bench.ask(fence(start(4, 1), &[])).unwrap_err();
    assert_eq!(refused.kind, Kind::Fenced);
    for words in ["epoch 4 is fenced by epoch 5", "a newer process has taken over", "older copy"] {
        assert!(refused.message.contains(words), "{refused}");
    }
    bench.restart();
    bench.beat_all();
    bench.tick();
    assert_eq!(bench.refusal_kind(commit(4, "c1", MOVES, &[])), Kind::Fenced);
    assert_eq!(bench.ask(commit(5, "c1", MOVES, &[])), DONE);
    bench.ask(Op::Fence { scope: "job2".into(), start: start(1, 1), earlier: Vec::new() }).unwrap();
}

/// A JobTracker is started from an older copy of its folder, and so uses an epoch again.
#[test]
fn other_start_with_the_same_epoch_is_refused() {
    let mut bench = bench_with_pieces();
    bench.ask(fence(start(5, 1), &[start(4, 1)])).unwrap();
    for restarted in [false, true] {
        if restarted {
            bench.restart();
            bench.beat_all();
            bench.tick();
        }
        let refused = bench.ask(fence(start(5, 2), &[start(4, 1)])).unwrap_err();
        assert_eq!(refused.kind, Kind::Fenced);
        for words in ["another start of the JobTracker used the same epoch 5", "older copy of its folder"] {
            assert!(refused.message.contains(words), "{refused}");
        }
        assert_eq!(bench.refusal_kind(commit_of(start(5, 2), "c1", MOVES, &[])), Kind::Fenced);
    }
    assert_eq!(bench.ask(commit(5, "c1", MOVES, &[])), DONE);
}

/// The start from an older copy is refused also when it is repeated, which increases its epoch.
#[test]
fn repeated_start_from_an_older_copy_is_refused_until_it_is_accepted() {
    let mut bench = Bench::with_nodes(1);
    bench.ask(fence(start(5, 1), &[start(4, 1)])).unwrap();
    let earlier = [start(4, 1), start(5, 2), start(6, 2)];
    let refused = bench.ask(fence(start(7, 2), &earlier)).unwrap_err();
    assert_eq!(refused.kind, Kind::Fenced);
    // The earlier starts of the newest folder contain the fence. Not all of them were announced.
    bench.ask(fence(start(8, 1), &[start(4, 1), start(5, 1), start(6, 1)])).unwrap();
    // An operator accepts the older copy: its list of starts begins again, with a high epoch.
    bench.ask(fence(start(1001, 2), &[start(1000, 2)])).unwrap();
    assert_eq!(bench.refusal_kind(fence(start(9, 1), &[start(8, 1)])), Kind::Fenced);
}

#[test]
fn refused_commit_changes_nothing() {
    let mut bench = bench_with_pieces();
    bench.create("/tmp/open");
    bench.file("/there", 1, &[]);
    let table: &[(&[Move], &[&str], Kind)] = &[
        (&[(&["/tmp/t0/p0"], "/out/a"), (&["/tmp/none"], "/out/b")], &[], Kind::NotFound),
        (&[(&["/tmp/t0/p0"], "/out/a"), (&["/tmp/t0/p0"], "/out/b")], &[], Kind::Invalid),
        (&[(&["/tmp/t0/p0", "/tmp/t0/p0"], "/out/a")], &[], Kind::Invalid),
        (&[(&["/tmp/t0/p0"], "/out/a"), (&["/tmp/t0/p1"], "/out/a")], &[], Kind::Exists),
        (&[(&["/tmp/t0/p0"], "/out"), (&["/tmp/t0/p1"], "/out/a")], &[], Kind::NotDirectory),
        (&[(&["/tmp/open"], "/out/a")], &[], Kind::Busy),
        (&[(&["/tmp/t0"], "/out/a")], &[], Kind::IsDirectory),
        (&[(&["/tmp/t0/p0"], "/there")], &[], Kind::Exists),
        (&[(&["/tmp/t0/p0"], "/there/a")], &[], Kind::NotDirectory),
        (&[(&["/tmp/t0/p0"], "/tmp/t0/p0/a")], &[], Kind::NotDirectory),
        (&[(&["/tmp/t0/p0"], "/tmp/t0/p0")], &[], Kind::Exists),
        (&[(&["/tmp/t0/p0"], "/tmp/out/a")], &["/tmp"], Kind::Invalid),
        (&[(&["/tmp/t0/p0"], "/")], &[], Kind::IsDirectory),
        (&[], &["/"], Kind::Refused),
    ];
    let before = bench.state.namespace().clone();
    for (moves, deletes, kind) in table {
        let op = commit(1, "c", moves, deletes);
        assert_eq!(bench.refusal_kind(op.clone()), *kind, "{op:?}");
    }
    assert_eq!(bench.state.namespace(), &before);
}

/// Commits into an output folder that contains a file of another user. The work folder is in the
/// output folder, as for a job.
#[test]
fn commit_into_a_folder_with_foreign_files_is_refused() {
    let mut bench = Bench::with_nodes(1);
    bench.file("/out/_temporary/p0", 1, &[10]);
    bench.file("/out/part-9", 1, &[3]);
    let moves: &[Move] = &[(&["/out/_temporary/p0"], "/out/part-0"), (&[], "/out/_SUCCESS")];
    let op = || commit(1, "c1", moves, &["/out/_temporary"]);
    let before = bench.state.namespace().clone();
    let error = bench.ask(op()).unwrap_err();
    assert!(error.kind == Kind::Exists && error.message.contains("/out contains part-9"), "{error}");
    assert_eq!(bench.state.namespace(), &before);
    bench.ask(Op::Delete { path: path("/out/part-9"), recursive: false }).unwrap();
    assert_eq!(bench.ask(op()), DONE);
    // A commit that was done is recognised, although its output folder is not empty any more.
    assert_eq!(bench.ask(op()), REPEATED);
    bench.file("/out/part-9", 1, &[3]);
    assert_eq!(bench.ask(op()), REPEATED);
}

#[test]
fn committed_piece_survives_deletes_of_its_source() {
    let mut bench = bench_with_pieces();
    let moves: &[Move] = &[(&["/tmp/t0/p0"], "/a"), (&["/tmp/t0/p1"], "/b")];
    assert_eq!(bench.ask(commit(1, "c", moves, &["/tmp/t0/p0", "/tmp/t0"])), DONE);
    assert_eq!(bench.stat("/a").unwrap().length, 10);
    assert_eq!(bench.stat("/b").unwrap().length, 20);
    assert_eq!(bench.stat("/tmp/t0").unwrap_err(), Kind::NotFound);
    assert_eq!(bench.stat("/tmp/t1/p0").unwrap().length, 5);
}

#[test]
fn quotas_apply_to_the_complete_commit() {
    let mut bench = bench_with_pieces();
    bench.ask(Op::Mkdir { path: path("/out"), parents: false, mode: None }).unwrap();
    let quota = |files, space| Op::SetQuota { path: path("/out"), quota: Quota { files, space } };
    bench.ask(quota(Some(3), None)).unwrap();
    assert_eq!(bench.refusal_kind(commit(1, "c", MOVES, &[])), Kind::Quota);
    bench.ask(quota(Some(4), Some(69))).unwrap();
    assert_eq!(bench.refusal_kind(commit(1, "c", MOVES, &[])), Kind::Quota);
    bench.ask(quota(Some(4), Some(70))).unwrap();
    assert_eq!(bench.ask(commit(1, "c", MOVES, &[])), DONE);
    assert_eq!(bench.state.usage(&path("/out")).unwrap().space, 70);
}

#[test]
fn oversized_commit_is_rejected_before_it_is_applied() {
    let mut bench = Bench::with_nodes(1);
    let deep = "/a".repeat(2040);
    let targets: Vec<String> = (0..500).map(|number| format!("/{number}{deep}")).collect();
    let moves: Vec<Move> = targets.iter().map(|to| (&[][..], to.as_str())).collect();
    let error = bench.ask(commit(1, "c1", &moves, &[])).unwrap_err();
    assert!(error.kind == Kind::Invalid && error.message.contains("use several requests"), "{error}");
    assert_eq!(bench.stat("/0").unwrap_err(), Kind::NotFound);
    assert_eq!(bench.ask(commit(1, "c1", &moves[..2], &[])), DONE);
    assert_eq!(&bench.replayed(), bench.state.namespace());
}

#[test]
fn repeated_commit_is_recognised_after_output_changes() {
    let mut bench = bench_with_pieces();
    assert_eq!(bench.ask(commit(3, "c1", MOVES, &["/tmp"])), DONE);
    // The user has moved one file, deleted another, and replaced the third.
    bench.ask(Op::Rename { from: path("/out/part-0"), to: path("/mine"), overwrite: false }).unwrap();
    for at in ["/out/part-1", "/out/_SUCCESS"] {
        bench.ask(Op::Delete { path: path(at), recursive: false }).unwrap();
    }
    bench.file("/out/part-1", 1, &[7]);
    assert_eq!(bench.ask(commit(3, "c1", MOVES, &["/tmp"])), REPEATED);
    // The commit is also recognised if a restarted JobTracker sends it to a restarted NameNode.
    bench.restart();
    bench.beat_all();
    bench.tick();
    assert_eq!(bench.ask(commit(4, "c1", MOVES, &["/tmp"])), REPEATED);
    assert_eq!((bench.stat("/mine").unwrap().length, bench.stat("/out/part-1").unwrap().length), (30, 7));
    assert_eq!(bench.stat("/out/part-0").unwrap_err(), Kind::NotFound);
    // A commit without files is recognised too.
    assert_eq!(bench.ask(commit(4, "empty", &[], &[])), DONE);
    assert_eq!(bench.ask(commit(4, "empty", &[], &[])), REPEATED);
}
