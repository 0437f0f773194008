//! Tests of owner, group, mode and sticky folders: each operation by permitted and denied users.

use super::bench::Bench;
use crate::namenode::{
    op::{Caller, CommitMove, OnAbandon, Op, Outcome, Quota},
    permit::Need,
};
use dfs_client::{
    error::Kind,
    ids::{FileId, Start, StartId},
    path::DfsPath,
};

const START: Start = Start { epoch: 1, id: StartId(1) };

fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

fn user(name: &str, groups: &[&str]) -> Caller {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    Caller { user: name.into(), groups: groups.into(), superuser: false }
}

fn mkdir(at: &str) -> Op {
    Op::Mkdir { path: path(at), parents: true, mode: None }
}

fn set(at: &str, mode: Option<u32>, owner: Option<&str>, group: Option<&str>) -> Op {
    let (owner, group) = (owner.map(str::to_owned), group.map(str::to_owned));
    Op::SetAttributes { path: path(at), replication: None, mode, owner, group, modified_ms: None }
}

fn create(at: &str) -> Op {
    Op::Create {
        path: path(at),
        holder: "h".into(),
        replication: None,
        block_size: None,
        overwrite: false,
        make_parents: false,
        mode: None,
        on_abandon: OnAbandon::Close,
    }
}

struct PermissionTest {
    bench: Bench,
}

impl PermissionTest {
    /// Creates `/home/ann` (mode 750, group lab), `/home/bob` (mode 700), and `/tmp`, which is
    /// world-writable and sticky.
    fn new() -> Self {
        let mut bench = Bench::with_nodes(1);
        for (at, owner, mode) in [
            ("/home/ann", "ann", 0o750),
            ("/home/bob", "bob", 0o700),
            ("/tmp", "root", 0o1777),
            ("/home", "root", 0o755),
        ] {
            bench.ask(mkdir(at)).unwrap();
            bench.ask(set(at, Some(mode), Some(owner), Some("lab"))).unwrap();
        }
        Self { bench }
    }

    fn may(&mut self, caller: &Caller, op: Op) -> Outcome {
        self.bench.ask_as(caller.clone(), op.clone()).unwrap_or_else(|error| panic!("{op:?}: {error}"))
    }

    fn may_not(&mut self, caller: &Caller, op: Op) {
        let answer = self.bench.ask_as(caller.clone(), op.clone());
        assert_eq!(answer.map_err(|error| error.kind), Err(Kind::Denied), "{caller:?}: {op:?}");
    }

    fn file(&mut self, caller: &Caller, at: &str) -> FileId {
        let Outcome::File(file) = self.may(caller, create(at)) else { panic!("no file") };
        self.may(
            caller,
            Op::Close { file, holder: "h".into(), commits: vec![], rename_to: None, overwrite: false },
        );
        file
    }
}

#[test]
fn changing_entries_needs_write_permission_on_the_folder() {
    let (ann, bob, cid) = (user("ann", &["lab"]), user("bob", &[]), user("cid", &["lab"]));
    let mut test = PermissionTest::new();
    test.file(&ann, "/home/ann/a");
    for other in [&bob, &cid] {
        test.may_not(other, create("/home/ann/b"));
        test.may_not(other, mkdir("/home/ann/d/e"));
        test.may_not(other, Op::Delete { path: path("/home/ann/a"), recursive: false });
        test.may_not(other, Op::Rename { from: path("/home/ann/a"), to: path("/tmp/a"), overwrite: false });
        test.may_not(other, create("/top"));
    }
    test.may_not(&ann, Op::Rename { from: path("/home/ann/a"), to: path("/home/bob/a"), overwrite: false });
    test.may(&ann, Op::Rename { from: path("/home/ann/a"), to: path("/home/ann/b"), overwrite: false });
    // A user may not delete a folder that contains a non-empty folder of another user.
    test.may(&ann, mkdir("/home/ann/shared"));
    test.may(&ann, set("/home/ann/shared", Some(0o777), None, None));
    test.may_not(&bob, mkdir("/home/ann/shared/of-bob"));
    test.may(&cid, mkdir("/home/ann/shared/of-cid/deep"));
    test.may_not(&ann, Op::Delete { path: path("/home/ann/shared"), recursive: true });
    test.may(&cid, Op::Delete { path: path("/home/ann/shared/of-cid"), recursive: true });
    test.may(&ann, Op::Delete { path: path("/home/ann/shared"), recursive: true });
}

#[test]
fn sticky_folder_restricts_deletes_to_owners() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut test = PermissionTest::new();
    test.file(&ann, "/tmp/a");
    test.may_not(&bob, Op::Delete { path: path("/tmp/a"), recursive: false });
    test.may_not(&bob, Op::Rename { from: path("/tmp/a"), to: path("/home/bob/a"), overwrite: false });
    test.file(&bob, "/tmp/b");
    test.may_not(&bob, Op::Rename { from: path("/tmp/b"), to: path("/tmp/a"), overwrite: true });
    test.may(&ann, Op::Delete { path: path("/tmp/a"), recursive: false });
}

#[test]
fn reading_writing_and_listing_need_permission() {
    let (ann, bob, cid) = (user("ann", &["lab"]), user("bob", &[]), user("cid", &["lab"]));
    let mut test = PermissionTest::new();
    let Outcome::File(file) = test.may(&ann, create("/home/ann/a")) else { panic!("no file") };
    let close = Op::Close { file, holder: "h".into(), commits: vec![], rename_to: None, overwrite: false };
    test.may_not(&cid, close.clone());
    test.may(&ann, close);
    let may = |test: &PermissionTest, caller: &Caller, need| {
        test.bench.state.namespace().permit(caller, &path("/home/ann/a"), need).is_ok()
    };
    assert!(may(&test, &cid, Need::Read) && may(&test, &cid, Need::Traverse));
    assert!(!may(&test, &bob, Need::Read) && !may(&test, &bob, Need::Traverse));
    test.may(&ann, set("/home/ann/a", Some(0o600), None, None));
    assert!(
        !may(&test, &cid, Need::Read) && may(&test, &cid, Need::Traverse) && may(&test, &ann, Need::Read)
    );
    let list = |caller: &Caller, at: &str| {
        test.bench.state.namespace().permit(caller, &path(at), Need::List).is_ok()
    };
    assert!(list(&cid, "/home/ann") && !list(&bob, "/home/ann") && list(&bob, "/home"));
    let make = |caller: &Caller, at: &str| {
        test.bench.state.namespace().permit(caller, &path(at), Need::Create).is_ok()
    };
    assert!(make(&ann, "/home/ann/b/c") && !make(&cid, "/home/ann/b/c") && !make(&ann, "/home/bob/b"));
    assert!(
        make(&cid, "/home/ann/a"),
        "the check refuses a path that exists, which the operation itself reports"
    );
    // For a missing path, the operation itself reports the error.
    assert!(list(&bob, "/nowhere/at/all"));
    test.may_not(&cid, Op::Append { path: path("/home/ann/a"), holder: "x".into() });
}

#[test]
fn only_the_owner_sets_attributes_and_only_an_admin_the_owner() {
    let (ann, bob) = (user("ann", &["lab"]), user("bob", &["lab"]));
    let mut test = PermissionTest::new();
    test.file(&ann, "/home/ann/a");
    test.may_not(&bob, set("/home/ann/a", Some(0o777), None, None));
    test.may_not(&ann, set("/home/ann/a", None, Some("bob"), None));
    test.may_not(&ann, set("/home/ann/a", None, None, Some("wheel")));
    test.may(&ann, set("/home/ann/a", Some(0o640), Some("ann"), Some("lab")));
    test.may_not(&ann, Op::SetQuota { path: path("/home/ann"), quota: Quota::default() });
    test.may_not(&ann, Op::Drain { node: "n1".into(), cancel: false });
    test.may_not(&ann, Op::Fence { scope: "s".into(), start: START, earlier: Vec::new() });
}

#[test]
fn commit_needs_the_permissions_of_its_operations() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut test = PermissionTest::new();
    let commit = |id: &str, piece: &str, to: &str, deletes: &[&str]| Op::Commit {
        scope: "s".into(),
        start: START,
        commit_id: id.into(),
        moves: vec![CommitMove { pieces: vec![path(piece)], to: path(to) }],
        deletes: deletes.iter().map(|at| path(at)).collect(),
    };
    test.file(&ann, "/home/ann/piece");
    test.may_not(&bob, commit("1", "/home/ann/piece", "/home/bob/out", &[]));
    test.may_not(&ann, commit("2", "/home/ann/piece", "/home/bob/out", &[]));
    test.may_not(&ann, commit("3", "/home/ann/piece", "/home/ann/out", &["/home/bob"]));
    test.may(&ann, commit("4", "/home/ann/piece", "/home/ann/out", &[]));
}

/// Commits two pieces as one file, once for each order of the pieces. Checks that the caller needs
/// the permissions of a concat: to write the first piece and to read the second.
#[test]
fn commit_that_joins_pieces_needs_the_permissions_of_a_concat() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut test = PermissionTest::new();
    test.bench.ask(mkdir("/shared")).unwrap();
    test.bench.ask(set("/shared", Some(0o777), None, None)).unwrap();
    test.file(&ann, "/shared/of-ann");
    test.file(&bob, "/shared/of-bob");
    let commit = |id: &str, pieces: &[&str]| Op::Commit {
        scope: "s".into(),
        start: START,
        commit_id: id.into(),
        moves: vec![CommitMove {
            pieces: pieces.iter().map(|at| path(at)).collect(),
            to: path("/shared/out"),
        }],
        deletes: Vec::new(),
    };
    test.may(&bob, set("/shared/of-bob", Some(0o600), None, None));
    test.may_not(&ann, commit("1", &["/shared/of-ann", "/shared/of-bob"]));
    test.may(&bob, set("/shared/of-bob", Some(0o644), None, None));
    test.may_not(&ann, commit("2", &["/shared/of-bob", "/shared/of-ann"]));
    test.may(&ann, commit("3", &["/shared/of-ann", "/shared/of-bob"]));
}

#[test]
fn concat_needs_read_permission() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut test = PermissionTest::new();
    test.bench.ask(mkdir("/shared")).unwrap();
    test.bench.ask(set("/shared", Some(0o777), None, None)).unwrap();
    test.file(&ann, "/shared/of-ann");
    test.file(&bob, "/shared/of-bob");
    let concat = || Op::Concat { target: path("/shared/of-ann"), sources: vec![path("/shared/of-bob")] };
    test.may(&bob, set("/shared/of-bob", Some(0o600), None, None));
    test.may_not(&ann, concat());
    test.may(&bob, set("/shared/of-bob", Some(0o644), None, None));
    let answer = test.bench.ask_as(ann, concat());
    assert_ne!(answer.map_err(|error| error.kind).err(), Some(Kind::Denied));
}

#[test]
fn first_call_of_a_user_makes_a_home_that_only_the_user_can_enter() {
    let mut bench = Bench::with_nodes(1);
    // Without `/user`, which only a superuser creates, there is no home folder and nothing changes.
    assert_eq!(bench.state.make_home(bench.now, "ann").unwrap_err().kind, Kind::NotFound);
    bench.ask(mkdir("/user")).unwrap();
    let entry = bench.state.make_home(bench.now, "ann").unwrap().expect("the home folder is new");
    bench.records.push(entry.record);
    bench.check();
    let home = bench.stat("/user/ann").unwrap();
    assert_eq!((home.owner.as_str(), home.mode), ("ann", 0o700));
    assert_eq!(home.quota, Some(Quota { files: Some(50), space: Some(100_000) }), "not the default quota");
    assert_eq!(
        bench.state.make_home(bench.now, "ann").unwrap(),
        None,
        "an existing home folder was created again"
    );
    let mut test = PermissionTest { bench };
    test.may(&user("ann", &[]), create("/user/ann/f"));
    test.may_not(&user("bob", &[]), create("/user/ann/g"));
    // The default quota stops a user from filling the memory of the NameNode.
    let ann = user("ann", &[]);
    let full = (0..60).find_map(|n| test.bench.ask_as(ann.clone(), mkdir(&format!("/user/ann/d{n}"))).err());
    assert_eq!(full.map(|error| error.kind), Some(Kind::Quota));
    test.bench.restart();
    assert!(test.bench.state.has_home("ann").unwrap(), "the home folder is not durable");
    for name in ["a/b", "..", ""] {
        assert!(
            test.bench.state.make_home(test.bench.now, name).is_err(),
            "{name:?} is accepted as a user name"
        );
    }
}

#[test]
fn refusal_names_the_folder_that_denies_access() {
    let mut test = PermissionTest::new();
    let bob = user("bob", &[]);
    let mut refusal = |op| test.bench.ask_as(bob.clone(), op).unwrap_err().to_string();
    let error = refusal(Op::Delete { path: path("/home/bob"), recursive: true });
    assert!(error.contains("may not remove /home/bob: /home has owner root, group lab, mode 755"), "{error}");
    let error = refusal(create("/home/ann/x"));
    assert!(error.contains("may not access /home/ann/x: /home/ann has owner ann"), "{error}");
    let error = refusal(create("/top"));
    assert!(error.contains("may not create /top: / has owner"), "{error}");
    let error = refusal(create("/home/x"));
    assert!(error.contains("may not create /home/x: /home has owner root"), "{error}");
    // A parent that does not exist is not a matter of permissions.
    let mut mkdir = |parents| refusal(Op::Mkdir { path: path("/home/x/y"), parents, mode: None });
    assert!(mkdir(false).contains("folder /home/x does not exist"), "{}", mkdir(false));
    assert!(mkdir(true).contains("may not create /home/x/y: /home has owner root"), "{}", mkdir(true));
}
