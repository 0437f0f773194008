//! Tests of the rules for files and their writers.

use super::bench::{BLOCK_BYTES, Bench, path};
use crate::namenode::op::{BlockLength, OnAbandon, Op, Outcome, Quota};
use dfs_client::{
    error::Kind,
    ids::{BlockId, FileId, Nonce},
};

fn create(at: &str, holder: &str, overwrite: bool, parents: bool) -> Op {
    Op::Create {
        path: path(at),
        holder: holder.into(),
        replication: None,
        block_size: None,
        overwrite,
        make_parents: parents,
        mode: None,
        on_abandon: OnAbandon::Close,
    }
}

fn mkdir(at: &str, parents: bool) -> Op {
    Op::Mkdir { path: path(at), parents, mode: None }
}

fn rename(from: &str, to: &str, overwrite: bool) -> Op {
    Op::Rename { from: path(from), to: path(to), overwrite }
}

fn delete(at: &str, recursive: bool) -> Op {
    Op::Delete { path: path(at), recursive }
}

#[test]
fn a_file_is_written_block_by_block_and_read() {
    let mut bench = Bench::with_nodes(3);
    let (file, blocks) = bench.file("/a/b", 2, &[BLOCK_BYTES, BLOCK_BYTES, 7]);
    let status = bench.stat("/a/b").unwrap();
    assert_eq!((status.length, status.blocks, status.open, status.file_id), (207, 3, false, file));
    let (_, located) = bench.state.locate(&path("/a/b"), 150, 51, "n2").unwrap();
    let shown: Vec<_> = located.iter().map(|at| (at.block, at.offset, at.length, at.nodes.len())).collect();
    assert_eq!(shown, [(blocks[1], 100, 100, 2), (blocks[2], 200, 7, 2)]);
    for at in &located {
        let here = at.nodes.iter().position(|node| node.host == "n2");
        assert!(here.is_none_or(|at| at == 0), "the reader's own node is not first");
    }
    assert!(bench.state.locate(&path("/a/b"), 207, 10, "").unwrap().1.is_empty());
    assert_eq!(bench.state.locate(&path("/a"), 0, 1, "").unwrap_err().kind, Kind::IsDirectory);
}

#[test]
fn closing_waits_for_a_reported_replica_and_for_commits() {
    let mut bench = Bench::with_nodes(3);
    let file = bench.create("/f");
    let (block, nodes) = bench.add_block_as(file, "w").unwrap();
    let commit = BlockLength { block, length: 50 };
    assert_eq!(bench.close(file, vec![]).unwrap_err().kind, Kind::Refused);
    assert_eq!(bench.close(file, vec![commit]).unwrap_err().kind, Kind::NotYetReplicated);
    bench.node(nodes[0]).receive(block, 49);
    bench.beat_all();
    let error = bench.close(file, vec![commit]).unwrap_err();
    assert!(error.kind == Kind::NotYetReplicated && error.message.contains("has 49 bytes"), "{error}");
    bench.node(nodes[1]).receive(block, 50);
    bench.beat_all();
    bench.close(file, vec![commit]).unwrap();
    assert_eq!(bench.stat("/f").unwrap().length, 50);
    assert_eq!(
        bench.state.report(bench.now).corrupt_found_total,
        1,
        "the replica of 49 bytes does not count as damaged"
    );
}

#[test]
fn invalid_block_commits_are_rejected() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create("/f");
    let good = bench.write(file, 50);
    let close = |bench: &mut Bench, block, length| {
        bench.close(file, vec![BlockLength { block, length }]).unwrap_err().kind
    };
    assert_eq!(close(&mut bench, good.block, BLOCK_BYTES + 1), Kind::Invalid);
    assert_eq!(close(&mut bench, BlockId(99), 5), Kind::Invalid);
    let add = |commits| Op::AddBlock {
        file,
        holder: "w".into(),
        commits,
        exclude_nodes: vec![],
        writer_host: "n1".into(),
        expected: 0,
        nonce: Nonce(1),
    };
    bench.ask(add(vec![good])).unwrap();
    assert_eq!(bench.refusal_kind(add(vec![BlockLength { length: 51, ..good }])), Kind::Invalid);
    bench.ask(add(vec![good])).unwrap();
    assert_eq!(
        bench.refusal_kind(Op::AbandonBlock { file, holder: "w".into(), block: good.block }),
        Kind::Refused,
        "committed"
    );
}

#[test]
fn abandoned_block_is_removed_from_its_file_and_nodes() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create("/f");
    let lost = bench.write(file, 50).block;
    bench.ask(Op::AbandonBlock { file, holder: "w".into(), block: lost }).unwrap();
    bench.ask(Op::AbandonBlock { file, holder: "w".into(), block: lost }).unwrap();
    let kept = bench.write(file, 30);
    bench.close(file, vec![kept]).unwrap();
    assert_eq!(bench.stat("/f").unwrap().length, 30);
    bench.run_ms(2_000);
    assert!(bench.good_on(lost).is_empty());
    assert!(kept.block > lost, "a block ID was used twice");
}

#[test]
fn file_has_only_one_writer_at_a_time() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create("/f");
    assert_eq!(bench.refusal_kind(create("/f", "other", true, false)), Kind::Busy);
    assert_eq!(bench.refusal_kind(create("/f", "w", false, false)), Kind::Busy);
    assert_eq!(bench.refusal_kind(Op::Append { path: path("/f"), holder: "other".into() }), Kind::Busy);
    assert_eq!(bench.add_block_as(file, "other").unwrap_err().kind, Kind::LeaseLost);
    let Outcome::File(again) = bench.ask(create("/f", "w", true, false)).unwrap() else { panic!() };
    assert_ne!(file, again);
    assert_eq!(bench.close(file, vec![]).unwrap_err().kind, Kind::LeaseLost);
    bench.close(again, vec![]).unwrap();
    assert_eq!(bench.close(again, vec![]).unwrap_err().kind, Kind::LeaseLost);
    assert_eq!(bench.refusal_kind(create("/f", "other", false, false)), Kind::Exists);
    bench.ask(create("/f", "other", true, false)).unwrap();
}

#[test]
fn deleting_an_open_file_revokes_its_lease() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create("/d/f");
    let block = bench.write(file, 10).block;
    assert_eq!(bench.ask(delete("/d", true)).unwrap(), Outcome::Existed(true));
    assert_eq!(bench.add_block_as(file, "w").unwrap_err().kind, Kind::LeaseLost);
    bench.run_ms(2_000);
    assert!(bench.good_on(block).is_empty());
    assert_eq!(bench.ask(delete("/d", true)).unwrap(), Outcome::Existed(false));
}

#[test]
fn append_adds_blocks_and_never_changes_one() {
    let mut bench = Bench::with_nodes(2);
    let (file, _) = bench.file("/f", 2, &[30]);
    bench.ask(Op::Append { path: path("/f"), holder: "w".into() }).unwrap();
    let more = bench.write(file, 20);
    assert_eq!(bench.stat("/f").unwrap().length, 30, "an uncommitted block counts");
    bench.close(file, vec![more]).unwrap();
    assert_eq!(bench.stat("/f").unwrap().length, 50);
    assert_eq!(bench.refusal_kind(Op::Append { path: path("/g"), holder: "w".into() }), Kind::NotFound);
    assert_eq!(bench.refusal_kind(Op::Append { path: path("/"), holder: "w".into() }), Kind::IsDirectory);
}

#[test]
fn close_can_move_the_file_in_the_same_step() {
    let mut bench = Bench::with_nodes(2);
    bench.file("/out", 2, &[5]);
    let file = bench.create("/tmp/x");
    let close = |to: &str, overwrite| Op::Close {
        file,
        holder: "w".into(),
        commits: vec![],
        rename_to: Some(path(to)),
        overwrite,
    };
    assert_eq!(bench.refusal_kind(close("/out", false)), Kind::Exists);
    assert_eq!(bench.refusal_kind(close("/none/out", false)), Kind::NotFound);
    assert!(bench.stat("/tmp/x").unwrap().open, "a refused close has closed the file");
    bench.ask(close("/out", true)).unwrap();
    assert_eq!(bench.stat("/out").unwrap().file_id, file);
    assert_eq!(bench.stat("/tmp/x").unwrap_err(), Kind::NotFound);
}

#[test]
fn invalid_requests_are_rejected() {
    let mut bench = Bench::with_nodes(1);
    bench.file("/d/f", 1, &[]);
    bench.file("/g", 1, &[]);
    bench.ask(mkdir("/e", false)).unwrap();
    let table = [
        (create("/", "w", true, true), Kind::IsDirectory),
        (create("/d", "w", true, true), Kind::IsDirectory),
        (create("/x/y", "w", false, false), Kind::NotFound),
        (create("/d/f/y", "w", false, true), Kind::NotDirectory),
        (create("/y", "", false, false), Kind::Invalid),
        (mkdir("/", false), Kind::Exists),
        (mkdir("/d", false), Kind::Exists),
        (mkdir("/g", true), Kind::Exists),
        (mkdir("/x/y", false), Kind::NotFound),
        (mkdir("/g/y", true), Kind::NotDirectory),
        (rename("/d", "/d/e", false), Kind::Invalid),
        (rename("/", "/x", false), Kind::Refused),
        (rename("/d", "/", false), Kind::Exists),
        (rename("/none", "/x", false), Kind::NotFound),
        (rename("/g", "/d/f", false), Kind::Exists),
        (rename("/g", "/d", true), Kind::Exists),
        (rename("/d", "/g", true), Kind::NotDirectory),
        (rename("/g", "/x/y", false), Kind::NotFound),
        (delete("/", true), Kind::Refused),
        (delete("/d", false), Kind::NotEmpty),
        (Op::SetQuota { path: path("/g"), quota: Quota::default() }, Kind::NotDirectory),
        (Op::Concat { target: path("/g"), sources: vec![] }, Kind::Invalid),
        (Op::Concat { target: path("/g"), sources: vec![path("/g")] }, Kind::Invalid),
        (Op::Concat { target: path("/g"), sources: vec![path("/d")] }, Kind::IsDirectory),
        (Op::Drain { node: "nobody".into(), cancel: false }, Kind::NotFound),
    ];
    for (op, kind) in table {
        assert_eq!(bench.refusal_kind(op.clone()), kind, "{op:?}");
    }
    for (replication, block_size) in
        [(Some(0), None), (Some(6), None), (None, Some(9)), (None, Some(u64::MAX))]
    {
        let mut op = create("/y", "w", false, false);
        let Op::Create { replication: r, block_size: b, .. } = &mut op else { panic!() };
        (*r, *b) = (replication, block_size);
        assert_eq!(bench.refusal_kind(op), Kind::Invalid);
    }
    let set = |replication| Op::SetAttributes {
        path: path("/g"),
        replication: Some(replication),
        mode: None,
        owner: None,
        group: None,
        modified_ms: None,
    };
    assert_eq!(bench.refusal_kind(set(0)), Kind::Invalid);
    let error = bench.ask(set(6)).unwrap_err();
    assert!(error.message.contains("between 1 and 5"), "the limit is not named: {error}");
}

#[test]
fn a_rename_cannot_make_a_path_too_long() {
    let mut bench = Bench::with_nodes(1);
    let deep = format!("/a{}", format!("/{}", "x".repeat(200)).repeat(15));
    let long = format!("/b{}", format!("/{}", "y".repeat(200)).repeat(10));
    bench.ask(mkdir(&deep, true)).unwrap();
    bench.ask(mkdir(&long, true)).unwrap();
    assert_eq!(bench.refusal_kind(rename("/a", &format!("{long}/a"), false)), Kind::Invalid);
    bench.ask(rename("/a", "/c", false)).unwrap();
}

#[test]
fn operations_beyond_a_quota_are_refused() {
    let mut bench = Bench::with_nodes(2);
    bench.ask(mkdir("/q/sub", true)).unwrap();
    let quota = Quota { files: Some(4), space: Some(450) };
    bench.ask(Op::SetQuota { path: path("/q"), quota }).unwrap();
    let file = bench.create("/q/sub/f");
    let add = |commits: &[BlockLength], expected| Op::AddBlock {
        file,
        holder: "w".into(),
        commits: commits.to_vec(),
        exclude_nodes: vec![],
        writer_host: String::new(),
        expected,
        nonce: Nonce(1),
    };
    // The quota of 450 bytes allows 225 bytes with two replicas. Uncommitted blocks reserve
    // nothing, so the three blocks are accepted although three full blocks would exceed the quota.
    let blocks = [bench.write(file, 100), bench.write(file, 100), bench.write(file, 5)];
    let usage = bench.state.usage(&path("/q")).unwrap();
    assert_eq!((usage.files, usage.dirs, usage.bytes, usage.space), (1, 1, 0, 0));
    bench.ask(add(&blocks, 0)).unwrap();
    assert_eq!(bench.state.usage(&path("/q")).unwrap().space, 410);
    assert_eq!(bench.refusal_kind(add(&[], 21)), Kind::Quota, "a block beyond the quota may be written");
    bench.ask(add(&[], 20)).unwrap();
    let last = bench.write(file, 20);
    let over = bench.write(file, 1);
    assert_eq!(
        bench.refusal_kind(add(&[last, over], 0)),
        Kind::Quota,
        "a block beyond the quota was committed"
    );
    assert_eq!(
        bench.refusal_kind(add(&[last], 0)),
        Kind::Quota,
        "another block may be written, although the quota is used up"
    );
    assert_eq!(bench.state.usage(&path("/q")).unwrap().space, 410, "a refusal changed the usage");
    assert_eq!(&bench.replayed(), bench.state.namespace());
    bench.ask(mkdir("/q/d", false)).unwrap();
    assert_eq!(bench.refusal_kind(mkdir("/q/e", false)), Kind::Quota);
    bench.ask(mkdir("/e", false)).unwrap();
    assert_eq!(bench.refusal_kind(rename("/e", "/q/e", false)), Kind::Quota);
    bench.ask(rename("/q/d", "/q/sub/d", false)).unwrap();
}

#[test]
fn lease_recovery_respects_quotas() {
    let mut bench = Bench::with_nodes(2);
    bench.ask(mkdir("/q/sub", true)).unwrap();
    let quota = Quota { files: None, space: Some(250) };
    bench.ask(Op::SetQuota { path: path("/q"), quota }).unwrap();
    let file = bench.create("/q/sub/f");
    // The quota allows two replicas of 125 bytes: the first two blocks, but not the third and the
    // empty block after it.
    let blocks =
        [bench.write(file, 100), bench.write(file, 25), bench.write(file, 100), bench.write(file, 0)];
    assert_eq!(bench.close(file, blocks.to_vec()).unwrap_err().kind, Kind::Quota);
    bench.run_ms(21_000);
    let status = bench.stat("/q/sub/f").unwrap();
    assert_eq!((status.open, status.length, status.blocks), (false, 125, 2));
    assert_eq!(bench.state.usage(&path("/q")).unwrap().space, 250);
    assert_eq!(&bench.replayed(), bench.state.namespace());
}

#[test]
fn folder_entry_limit_is_enforced() {
    let mut settings = super::bench::settings();
    settings.dir_entries_max = 2;
    let mut bench = Bench::with_settings(1, settings);
    bench.ask(mkdir("/a/1", true)).unwrap();
    bench.ask(mkdir("/a/2", true)).unwrap();
    assert_eq!(bench.refusal_kind(mkdir("/a/3", true)), Kind::Quota);
    bench.ask(rename("/a/1", "/a/3", false)).unwrap();
}

#[test]
fn expired_lease_closes_the_file_with_its_leading_blocks() {
    let mut bench = Bench::with_nodes(3);
    let file = bench.create("/f");
    let committed = bench.write(file, 40);
    bench
        .ask(Op::AddBlock {
            file,
            holder: "w".into(),
            commits: vec![committed],
            exclude_nodes: vec![],
            writer_host: String::new(),
            expected: 0,
            nonce: Nonce(1),
        })
        .unwrap();
    // The second block is finalised but not committed, the third is never reported, and the fourth
    // is finalised.
    let second = bench.state.locate(&path("/f"), 0, 1000, "").unwrap().0.blocks;
    assert_eq!(second, 2);
    let unfinished = BlockId(committed.block.0 + 1);
    bench.nodes[0].receive(unfinished, 30);
    bench.beat_all();
    let (_third, _) = bench.add_block_as(file, "w").unwrap();
    let fourth = bench.write(file, 20);
    bench.run_ms(15_000);
    bench.state.renew_lease(bench.now, "w").unwrap();
    bench.run_ms(15_000);
    assert!(bench.stat("/f").unwrap().open, "renewed");
    bench.run_ms(6_000);
    let status = bench.stat("/f").unwrap();
    assert_eq!((status.open, status.length, status.blocks), (false, 70, 2));
    bench.run_ms(6_000);
    assert!(bench.good_on(fourth.block).is_empty());
    assert_eq!(bench.good_on(unfinished).len(), 2, "the block is not replicated");
    assert_eq!(bench.close(file, vec![]).unwrap_err().kind, Kind::LeaseLost);
}

#[test]
fn expired_lease_deletes_the_file_if_requested() {
    let mut bench = Bench::with_nodes(2);
    let file = bench.create_as("/f", "w", 2, OnAbandon::Delete).unwrap();
    bench.write(file, 10);
    bench.run_ms(19_000);
    assert!(bench.stat("/f").is_ok());
    bench.run_ms(3_000);
    assert_eq!(bench.stat("/f").unwrap_err(), Kind::NotFound);
    assert!(bench.nodes.iter().all(|node| node.disk.is_empty()));
    // An append never endangers the existing blocks.
    let (file, _) = bench.file("/g", 2, &[10]);
    bench.ask(Op::Append { path: path("/g"), holder: "w".into() }).unwrap();
    bench.run_ms(22_000);
    assert_eq!(bench.state.stat_id(file).unwrap().length, 10);
}

#[test]
fn concat_moves_blocks_without_copying() {
    let mut bench = Bench::with_nodes(2);
    let (file, a) = bench.file("/a", 2, &[10]);
    let (_, b) = bench.file("/b", 1, &[20, 5]);
    bench.file("/c", 2, &[7]);
    let sources = vec![path("/c"), path("/b")];
    assert_eq!(bench.ask(Op::Concat { target: path("/a"), sources }).unwrap(), Outcome::File(file));
    let (status, located) = bench.state.locate(&path("/a"), 0, u64::MAX, "").unwrap();
    assert_eq!((status.length, status.blocks), (42, 4));
    assert_eq!((located[0].block, located[2].block, located[2].offset), (a[0], b[0], 17));
    assert_eq!(bench.stat("/b").unwrap_err(), Kind::NotFound);
    bench.run_ms(12_000);
    assert_eq!(bench.good_on(b[0]).len(), 2, "the blocks do not get the target's replication");
}

#[test]
fn list_returns_pages_in_order_of_names() {
    let mut bench = Bench::with_nodes(1);
    for name in ["b", "a", "c", "d"] {
        bench.ask(mkdir(&format!("/l/{name}"), true)).unwrap();
    }
    let names = |after: &str, limit| {
        let (entries, more) = bench.state.list(&path("/l"), after, limit).unwrap();
        (entries.iter().map(|entry| entry.path.name()).collect::<String>(), more)
    };
    assert_eq!(names("", 3), ("abc".into(), true));
    assert_eq!(names("c", 3), ("d".into(), false));
    assert_eq!(names("d", 3), (String::new(), false));
    assert_eq!(bench.state.stat_id(FileId(77)).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn locate_returns_many_blocks_in_several_replies() {
    let mut bench = Bench::with_nodes(1);
    let file = bench.create_as("/f", "w", 1, OnAbandon::Close).unwrap();
    let mut commits = Vec::new();
    for _ in 0..1_100 {
        let (block, _) = bench.add_block_as(file, "w").unwrap();
        bench.nodes[0].receive(block, 10);
        commits.push(BlockLength { block, length: 10 });
    }
    bench.beat_all();
    bench.close(file, commits).unwrap();
    let (status, first) = bench.state.locate(&path("/f"), 0, u64::MAX, "").unwrap();
    assert_eq!((status.length, first.len()), (11_000, 1_000));
    let (_, rest) = bench.state.locate(&path("/f"), 10_000, u64::MAX, "").unwrap();
    assert_eq!((rest.len(), rest[0].offset), (100, 10_000));
}
