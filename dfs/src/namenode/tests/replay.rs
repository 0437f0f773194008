//! Tests that a replay gives the same namespace as in memory, both from the complete log and from a
//! snapshot and the later records.

use super::bench::{Bench, path};
use crate::namenode::{Edit, Namespace, Record, SnapshotItem, SnapshotLoader, op::Op};
use dfs_client::ids::{BlockId, FileId, Nonce, Start, StartId};

fn start(epoch: u64) -> Start {
    Start { epoch, id: StartId(epoch) }
}

pub(super) fn save_and_load_snapshot(namespace: &Namespace) -> Namespace {
    let mut loader = SnapshotLoader::default();
    for item in namespace.items() {
        // Encode and decode, as on disk.
        let bytes = bincode::serde::encode_to_vec(&item, bincode::config::standard()).unwrap();
        let (back, _): (SnapshotItem, _) =
            bincode::serde::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        assert_eq!(back, item);
        loader.take(back).unwrap();
    }
    loader.finish().unwrap()
}

fn bench_with_records() -> Bench {
    let mut bench = Bench::with_nodes(3);
    bench.file("/a/b/f", 2, &[10, 20]);
    let open = bench.create("/a/open");
    bench.write(open, 30);
    bench.file("/c", 1, &[5]);
    bench.ask(Op::Rename { from: path("/a/b"), to: path("/d"), overwrite: false }).unwrap();
    bench.ask(Op::Fence { scope: "s".into(), start: start(4), earlier: Vec::new() }).unwrap();
    bench.ask(Op::Drain { node: "n3".into(), cancel: false }).unwrap();
    bench
}

#[test]
fn namespace_loaded_from_its_snapshot_is_equal() {
    let bench = bench_with_records();
    let back = save_and_load_snapshot(bench.state.namespace());
    assert_eq!(&back, bench.state.namespace());
    back.invariants().unwrap();
    assert_eq!(bench.replayed(), back);
}

#[test]
fn incomplete_or_reordered_snapshot_is_refused() {
    let bench = bench_with_records();
    let items: Vec<SnapshotItem> = bench.state.namespace().items().collect();
    let load = |items: &[SnapshotItem]| {
        let mut loader = SnapshotLoader::default();
        items.iter().try_for_each(|item| loader.take(item.clone()))?;
        loader.finish()
    };
    load(&items).unwrap();
    for left_out in 0..items.len() {
        let mut fewer = items.clone();
        fewer.remove(left_out);
        assert!(load(&fewer).is_err(), "without {:?}", items[left_out]);
        let mut twice = items.clone();
        twice.insert(left_out, items[left_out].clone());
        assert!(load(&twice).is_err(), "twice {:?}", items[left_out]);
    }
    assert!(load(&[]).is_err());
}

#[test]
fn records_that_do_not_fit_are_refused_and_never_panic() {
    let bench = bench_with_records();
    let (file, folder, none) =
        (bench.stat("/c").unwrap().file_id, bench.stat("/d").unwrap().file_id, FileId(99));
    let child = bench.stat("/d/f").unwrap().file_id;
    let table = [
        Edit::FileClosed { file },
        Edit::FileClosed { file: none },
        Edit::FileReopened { file: folder, holder: "x".into() },
        Edit::BlockAdded { file, block: BlockId(50), nonce: Nonce(1) },
        Edit::BlockAdded { file, block: BlockId(1), nonce: Nonce(1) },
        Edit::BlockCommitted { block: BlockId(1), length: 5 },
        Edit::BlockDropped { block: BlockId(1) },
        Edit::BlockDropped { block: BlockId(77) },
        Edit::Renamed { id: folder, parent: folder, name: "x".into() },
        Edit::Renamed { id: folder, parent: child, name: "x".into() },
        Edit::Renamed { id: file, parent: FileId(1), name: "d".into() },
        Edit::Renamed { id: FileId(1), parent: folder, name: "d".into() },
        Edit::Deleted { id: none },
        Edit::Deleted { id: FileId(1) },
        Edit::Concatenated { target: file, source: file },
        Edit::Concatenated { target: file, source: folder },
        Edit::FolderCreated {
            id: FileId(2),
            parent: FileId(1),
            name: "x".into(),
            owner: String::new(),
            group: String::new(),
            mode: 0,
        },
    ];
    for edit in table {
        let mut namespace = bench.state.namespace().clone();
        let record = Record { at_ms: 0, request: None, edits: vec![edit.clone()] };
        let error = namespace.apply(&record).expect_err(&format!("{edit:?}"));
        assert!(error.to_string().starts_with("record does not fit"), "{error}");
    }
}

#[test]
fn retry_cache_survives_a_restart() {
    let mut bench = bench_with_records();
    bench.restart();
    bench.run_ms(2_000);
    bench.ask(Op::Delete { path: path("/c"), recursive: false }).unwrap();
    let record = bench.records.last().unwrap().clone();
    let (id, outcome) = record.request.unwrap();
    bench.restart();
    let caller = crate::namenode::op::Caller::superuser("bob");
    let op = Op::Delete { path: path("/c"), recursive: false };
    let again = bench.state.handle(bench.now, crate::namenode::op::Request { id, caller, op }).unwrap();
    assert_eq!(
        (again.outcome, again.entry),
        (outcome, None),
        "the repeated request was not recognised in safemode"
    );
}

/// Creates a state whose namespace starts with these edits.
fn state_with(edits: Vec<Edit>) -> crate::namenode::State {
    let mut namespace = Namespace::new("c1");
    namespace.apply(&Record { at_ms: 1, request: None, edits }).unwrap();
    let settings = crate::namenode::Settings { safemode_threshold: 0.0, ..super::bench::settings() };
    crate::namenode::State::new(settings, namespace, now())
}

fn now() -> crate::namenode::op::Now {
    crate::namenode::op::Now { mono_ms: 0, wall_ms: 1 }
}

fn refusal(state: &mut crate::namenode::State, op: Op) -> Option<dfs_client::error::Error> {
    let caller = crate::namenode::op::Caller::superuser("me");
    let request = crate::namenode::op::Request { id: dfs_client::ids::RequestId::random(), caller, op };
    state.handle(now(), request).err()
}

#[test]
fn fence_limit_is_enforced() {
    let fence = |scope: String, epoch| Op::Fence { scope, start: start(epoch), earlier: Vec::new() };
    let mut state =
        state_with((0..100_000).map(|n| Edit::Fenced { scope: format!("s{n}"), start: start(1) }).collect());
    let error = refusal(&mut state, fence("one more".into(), 1)).unwrap();
    assert!(error.message.contains("100000 scopes have fences"), "{error}");
    assert_eq!(
        refusal(&mut state, fence("s7".into(), 2)),
        None,
        "an existing fence cannot be raised at the limit"
    );
}

#[test]
fn block_limit_of_a_file_is_enforced() {
    let file = FileId(10);
    let created = Edit::FileCreated {
        id: file,
        parent: crate::namenode::namespace::ROOT,
        name: "f".into(),
        owner: "me".into(),
        group: "us".into(),
        mode: 0o644,
        replication: 1,
        block_size: 1 << 20,
        holder: "w".into(),
        on_abandon: crate::namenode::op::OnAbandon::Close,
    };
    let blocks = (1..=500_000).map(|n| Edit::BlockAdded { file, block: BlockId(n + 100), nonce: Nonce(n) });
    let mut state = state_with(std::iter::once(created).chain(blocks).collect());
    let add = Op::AddBlock {
        file,
        holder: "w".into(),
        commits: vec![],
        exclude_nodes: vec![],
        writer_host: String::new(),
        expected: 0,
        nonce: Nonce(1),
    };
    let node = super::bench::FakeNode { capacity: 1 << 40, ..super::bench::FakeNode::new(0, "n1", "r1") };
    state.register(now(), node.registration()).unwrap();
    let error = refusal(&mut state, add).unwrap();
    assert!(error.message.contains("would have 500001 blocks, the limit is 500000"), "{error}");
}
