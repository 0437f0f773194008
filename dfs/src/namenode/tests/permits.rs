//! Owner, group, mode, sticky folders: each operation by those who may and those who may not.

use super::bench::Bench;
use crate::{
    error::Kind,
    ids::FileId,
    namenode::{
        op::{Caller, CommitMove, OnAbandon, Op, Outcome, Quota},
        permit::Need,
    },
    path::DfsPath,
};

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

struct Town {
    bench: Bench,
}

impl Town {
    /// `/home/ann` (750, group lab) and `/home/bob` (700), and `/tmp`, which is everybody's and sticky.
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

    fn may(&mut self, who: &Caller, op: Op) -> Outcome {
        self.bench.ask_as(who.clone(), op.clone()).unwrap_or_else(|error| panic!("{op:?}: {error}"))
    }

    fn may_not(&mut self, who: &Caller, op: Op) {
        let answer = self.bench.ask_as(who.clone(), op.clone());
        assert_eq!(answer.map_err(|error| error.kind), Err(Kind::Denied), "{who:?}: {op:?}");
    }

    fn file(&mut self, who: &Caller, at: &str) -> FileId {
        let Outcome::File(file) = self.may(who, create(at)) else { panic!("no file") };
        self.may(
            who,
            Op::Close { file, holder: "h".into(), commits: vec![], rename_to: None, overwrite: false },
        );
        file
    }
}

#[test]
fn entries_are_made_moved_and_deleted_by_who_may_write_the_folder() {
    let (ann, bob, cid) = (user("ann", &["lab"]), user("bob", &[]), user("cid", &["lab"]));
    let mut town = Town::new();
    town.file(&ann, "/home/ann/a");
    for other in [&bob, &cid] {
        town.may_not(other, create("/home/ann/b"));
        town.may_not(other, mkdir("/home/ann/d/e"));
        town.may_not(other, Op::Delete { path: path("/home/ann/a"), recursive: false });
        town.may_not(other, Op::Rename { from: path("/home/ann/a"), to: path("/tmp/a"), overwrite: false });
        town.may_not(other, create("/top"));
    }
    town.may_not(&ann, Op::Rename { from: path("/home/ann/a"), to: path("/home/bob/a"), overwrite: false });
    town.may(&ann, Op::Rename { from: path("/home/ann/a"), to: path("/home/ann/b"), overwrite: false });
    // A folder of another's, inside one's own, with something in it, stays.
    town.may(&ann, mkdir("/home/ann/shared"));
    town.may(&ann, set("/home/ann/shared", Some(0o777), None, None));
    town.may_not(&bob, mkdir("/home/ann/shared/of-bob"));
    town.may(&cid, mkdir("/home/ann/shared/of-cid/deep"));
    town.may_not(&ann, Op::Delete { path: path("/home/ann/shared"), recursive: true });
    town.may(&cid, Op::Delete { path: path("/home/ann/shared/of-cid"), recursive: true });
    town.may(&ann, Op::Delete { path: path("/home/ann/shared"), recursive: true });
}

#[test]
fn in_a_sticky_folder_everybody_makes_and_owners_take_away() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut town = Town::new();
    town.file(&ann, "/tmp/a");
    town.may_not(&bob, Op::Delete { path: path("/tmp/a"), recursive: false });
    town.may_not(&bob, Op::Rename { from: path("/tmp/a"), to: path("/home/bob/a"), overwrite: false });
    town.file(&bob, "/tmp/b");
    town.may_not(&bob, Op::Rename { from: path("/tmp/b"), to: path("/tmp/a"), overwrite: true });
    town.may(&ann, Op::Delete { path: path("/tmp/a"), recursive: false });
}

#[test]
fn a_file_is_written_and_read_by_who_may() {
    let (ann, bob, cid) = (user("ann", &["lab"]), user("bob", &[]), user("cid", &["lab"]));
    let mut town = Town::new();
    let Outcome::File(file) = town.may(&ann, create("/home/ann/a")) else { panic!("no file") };
    let close = Op::Close { file, holder: "h".into(), commits: vec![], rename_to: None, overwrite: false };
    town.may_not(&cid, close.clone());
    town.may(&ann, close);
    let may =
        |town: &Town, who: &Caller, need| town.bench.state.permit(who, &path("/home/ann/a"), need).is_ok();
    assert!(may(&town, &cid, Need::Read) && may(&town, &cid, Need::Reach));
    assert!(!may(&town, &bob, Need::Read) && !may(&town, &bob, Need::Reach));
    town.may(&ann, set("/home/ann/a", Some(0o600), None, None));
    assert!(!may(&town, &cid, Need::Read) && may(&town, &cid, Need::Reach) && may(&town, &ann, Need::Read));
    let list = |who: &Caller, at: &str| town.bench.state.permit(who, &path(at), Need::List).is_ok();
    assert!(list(&cid, "/home/ann") && !list(&bob, "/home/ann") && list(&bob, "/home"));
    let make = |who: &Caller, at: &str| town.bench.state.permit(who, &path(at), Need::Make).is_ok();
    assert!(make(&ann, "/home/ann/b/c") && !make(&cid, "/home/ann/b/c") && !make(&ann, "/home/bob/b"));
    assert!(make(&cid, "/home/ann/a"), "that something is there is for the answer to say");
    // What is not there is for the operation to say.
    assert!(list(&bob, "/nowhere/at/all"));
    town.may_not(&cid, Op::Append { path: path("/home/ann/a"), holder: "x".into() });
}

#[test]
fn attributes_are_the_owners_and_owners_are_the_admins() {
    let (ann, bob) = (user("ann", &["lab"]), user("bob", &["lab"]));
    let mut town = Town::new();
    town.file(&ann, "/home/ann/a");
    town.may_not(&bob, set("/home/ann/a", Some(0o777), None, None));
    town.may_not(&ann, set("/home/ann/a", None, Some("bob"), None));
    town.may_not(&ann, set("/home/ann/a", None, None, Some("wheel")));
    town.may(&ann, set("/home/ann/a", Some(0o640), Some("ann"), Some("lab")));
    town.may_not(&ann, Op::SetQuota { path: path("/home/ann"), quota: Quota::default() });
    town.may_not(&ann, Op::Drain { node: "n1".into(), cancel: false });
    town.may_not(&ann, Op::Fence { scope: "s".into(), epoch: 1 });
}

#[test]
fn a_commit_does_what_its_user_could() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut town = Town::new();
    let commit = |id: &str, piece: &str, to: &str, deletes: &[&str]| Op::Commit {
        scope: "s".into(),
        epoch: 1,
        commit_id: id.into(),
        moves: vec![CommitMove { pieces: vec![path(piece)], to: path(to) }],
        deletes: deletes.iter().map(|at| path(at)).collect(),
    };
    town.file(&ann, "/home/ann/piece");
    town.may_not(&bob, commit("1", "/home/ann/piece", "/home/bob/out", &[]));
    town.may_not(&ann, commit("2", "/home/ann/piece", "/home/bob/out", &[]));
    town.may_not(&ann, commit("3", "/home/ann/piece", "/home/ann/out", &["/home/bob"]));
    town.may(&ann, commit("4", "/home/ann/piece", "/home/ann/out", &[]));
}

#[test]
fn what_one_may_not_read_does_not_become_part_of_ones_own() {
    let (ann, bob) = (user("ann", &[]), user("bob", &[]));
    let mut town = Town::new();
    town.bench.ask(mkdir("/shared")).unwrap();
    town.bench.ask(set("/shared", Some(0o777), None, None)).unwrap();
    town.file(&ann, "/shared/of-ann");
    town.file(&bob, "/shared/of-bob");
    let concat = || Op::Concat { target: path("/shared/of-ann"), sources: vec![path("/shared/of-bob")] };
    town.may(&bob, set("/shared/of-bob", Some(0o600), None, None));
    town.may_not(&ann, concat());
    town.may(&bob, set("/shared/of-bob", Some(0o644), None, None));
    let answer = town.bench.ask_as(ann, concat());
    assert_ne!(answer.map_err(|error| error.kind).err(), Some(Kind::Denied));
}

#[test]
fn first_call_of_a_user_makes_a_home_that_only_the_user_can_enter() {
    let mut bench = Bench::with_nodes(1);
    // Without /user, which only a superuser makes, there is no home and nothing changes.
    assert_eq!(bench.state.make_home(bench.now, "ann").unwrap_err().kind, Kind::NotFound);
    bench.ask(mkdir("/user")).unwrap();
    let entry = bench.state.make_home(bench.now, "ann").unwrap().expect("nothing was there");
    bench.records.push(entry.record);
    bench.check();
    let home = bench.stat("/user/ann").unwrap();
    assert_eq!((home.owner.as_str(), home.mode), ("ann", 0o700));
    assert_eq!(home.quota, Some(Quota { files: Some(50), space: Some(100_000) }), "the default quota");
    assert_eq!(bench.state.make_home(bench.now, "ann").unwrap(), None, "it exists");
    let mut town = Town { bench };
    town.may(&user("ann", &[]), create("/user/ann/f"));
    town.may_not(&user("bob", &[]), create("/user/ann/g"));
    // The default quota stops a user who fills the NameNode's memory.
    let ann = user("ann", &[]);
    let full = (0..60).find_map(|n| town.bench.ask_as(ann.clone(), mkdir(&format!("/user/ann/d{n}"))).err());
    assert_eq!(full.map(|error| error.kind), Some(Kind::Quota));
    town.bench.restart();
    assert!(town.bench.state.has_home("ann").unwrap(), "and it is durable");
    for name in ["a/b", "..", ""] {
        assert!(town.bench.state.make_home(town.bench.now, name).is_err(), "{name:?} is no folder's name");
    }
}

#[test]
fn a_refusal_names_the_folder_whose_owner_and_mode_are_in_the_way() {
    let mut town = Town::new();
    let bob = user("bob", &[]);
    let mut refusal = |op| town.bench.ask_as(bob.clone(), op).unwrap_err().to_string();
    let error = refusal(Op::Delete { path: path("/home/bob"), recursive: true });
    assert!(error.contains("may not remove /home/bob: /home has owner root, group lab, mode 755"), "{error}");
    let error = refusal(create("/home/ann/x"));
    assert!(error.contains("may not go to /home/ann/x: /home/ann has owner ann"), "{error}");
    let error = refusal(create("/home/x"));
    assert!(error.contains("may not make /home/x: /home has owner root"), "{error}");
}
