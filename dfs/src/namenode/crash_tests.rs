//! Crashes the NameNode at every single write to its disk, and checks that acknowledged operations
//! are present after the restart and that no operation is partly applied. Unsynced bytes are kept,
//! lost or partly lost at random.

use super::{
    driver::{Driver, Environment},
    op::{Caller, CommitMove, OnAbandon, Op, Outcome, Request},
    settings::Settings,
    state::State,
    storage::{self, Storage},
};
use daemon::config::NameNodeConfig;
use dfs_client::{
    error::Error,
    ids::{FileId, RequestId, Start, StartId},
    path::DfsPath,
};
use journal::{
    Recovery,
    crash::{CrashDisk, Survive},
};
use replication::master::Journal;
use std::sync::Arc;

const CLUSTER: &str = "crash-test";
const RETRY_CACHE_LIMIT: usize = 1000;

/// A step of [`script`], the sequence of operations that a crash interrupts.
enum Step {
    Do(Op),
    /// Creates an empty file and closes it: two operations.
    Touch(&'static str),
    Snapshot,
}

fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

fn script() -> Vec<Step> {
    let mkdir = |at: &str| Step::Do(Op::Mkdir { path: path(at), parents: true, mode: None });
    let rename =
        |from: &str, to: &str| Step::Do(Op::Rename { from: path(from), to: path(to), overwrite: false });
    let delete = |at: &str| Step::Do(Op::Delete { path: path(at), recursive: true });
    let start = Start { epoch: 3, id: StartId(1) };
    vec![
        mkdir("/a/b/c"),
        Step::Touch("/a/one"),
        Step::Touch("/a/b/two"),
        rename("/a/one", "/a/b/c/one"),
        Step::Snapshot,
        Step::Touch("/three"),
        rename("/a", "/z"),
        delete("/three"),
        mkdir("/out/_temporary/t1"),
        Step::Touch("/out/_temporary/t1/piece1"),
        Step::Touch("/out/_temporary/t1/piece2"),
        Step::Do(Op::Fence { scope: "job".into(), start, earlier: Vec::new() }),
        Step::Do(Op::Commit {
            scope: "job".into(),
            start,
            commit_id: "job/1".into(),
            moves: vec![CommitMove {
                pieces: vec![path("/out/_temporary/t1/piece1"), path("/out/_temporary/t1/piece2")],
                to: path("/out/part-0"),
            }],
            deletes: vec![path("/out/_temporary")],
        }),
        Step::Snapshot,
        Step::Touch("/z/four"),
        rename("/z/b", "/moved"),
        Step::Snapshot,
        delete("/z"),
        mkdir("/last"),
    ]
}

fn open(disk: &CrashDisk) -> Option<Driver> {
    open_with(disk, &NameNodeConfig::default())
}

fn open_with(disk: &CrashDisk, config: &NameNodeConfig) -> Option<Driver> {
    let (Storage { log, namespace, .. }, _) =
        Storage::open_log(Arc::new(disk.clone()), CLUSTER, Recovery::Refuse, RETRY_CACHE_LIMIT).ok()?;
    let environment = Environment::of_machine();
    let state = State::new(Settings::from(config), namespace, environment.now());
    Some(Driver::new(state, Journal::Single(log), environment, config))
}

async fn submit(driver: &Driver, op: Op) -> Result<Outcome, Error> {
    submit_as(driver, RequestId::random(), op).await
}

async fn submit_as(driver: &Driver, id: RequestId, op: Op) -> Result<Outcome, Error> {
    let caller = Caller::superuser("tester");
    driver.submit(Request { id, caller, op }, |_, outcome| Ok(outcome)).await
}

async fn create(driver: &Driver, at: &str) -> Result<FileId, Error> {
    let create = Op::Create {
        path: path(at),
        holder: "tester".into(),
        replication: None,
        block_size: None,
        overwrite: false,
        make_parents: false,
        mode: None,
        on_abandon: OnAbandon::Close,
    };
    match submit(driver, create).await? {
        Outcome::File(id) => Ok(id),
        other => panic!("unexpected outcome of create: {other:?}"),
    }
}

/// Returns the complete namespace as text.
async fn tree(driver: &Driver) -> Vec<String> {
    driver
        .query(|state| {
            let mut found = Vec::new();
            let mut todo = vec![DfsPath::root()];
            while let Some(folder) = todo.pop() {
                for entry in state.list(&folder, "", usize::MAX)?.0 {
                    found.push(format!("{} dir={} open={}", entry.path, entry.is_dir, entry.open));
                    if entry.is_dir {
                        todo.push(entry.path);
                    }
                }
            }
            found.sort();
            Ok(found)
        })
        .await
        .unwrap()
}

/// Runs the script until it is done or the disk fails. Returns the number of acknowledged
/// operations. If `trees` is set, adds the tree after each operation to it.
async fn run(driver: &Driver, trees: &mut Option<Vec<Vec<String>>>) -> usize {
    let mut acknowledged = 0;
    for step in script() {
        let ops = match step {
            Step::Snapshot => {
                // A snapshot that fails changes nothing, so its error is ignored.
                let _ = storage::snapshot(driver.journal(), CLUSTER, RETRY_CACHE_LIMIT);
                continue;
            }
            Step::Do(op) => vec![op],
            Step::Touch(at) => {
                let Ok(file) = create(driver, at).await else { return acknowledged };
                acknowledged += 1;
                if let Some(trees) = trees {
                    trees.push(tree(driver).await);
                }
                let holder = "tester".into();
                vec![Op::Close { file, holder, commits: Vec::new(), rename_to: None, overwrite: false }]
            }
        };
        for op in ops {
            if submit(driver, op).await.is_err() {
                return acknowledged;
            }
            acknowledged += 1;
            if let Some(trees) = trees {
                trees.push(tree(driver).await);
            }
        }
    }
    acknowledged
}

#[tokio::test]
async fn crash_at_any_write_loses_no_acknowledged_operation() {
    let disk = CrashDisk::new();
    let driver = open(&disk).unwrap();
    let mut trees = Some(vec![tree(&driver).await]);
    let all = run(&driver, &mut trees).await;
    let trees = trees.unwrap();
    drop(driver);
    let writes = disk.operations();
    assert!(all == trees.len() - 1 && writes > 2 * all as u64, "{all} operations, {writes} writes");

    let mut survivals = vec![Survive::Everything, Survive::SyncedOnly];
    survivals.extend((0..4).map(Survive::Seeded));
    for crash_at in 0..writes {
        let disk = CrashDisk::new();
        disk.crash_after(crash_at);
        let acknowledged = match open(&disk) {
            Some(driver) => run(&driver, &mut None).await,
            None => 0,
        };
        for survive in &survivals {
            let found = open(&disk.after_crash(*survive));
            let driver = found.unwrap_or_else(|| {
                panic!("the NameNode does not start: crash at write {crash_at}, {survive:?}")
            });
            let tree = tree(&driver).await;
            // The last operation may have been applied or not, but never partly.
            let possible = &trees[acknowledged..(acknowledged + 2).min(trees.len())];
            assert!(
                possible.contains(&tree),
                "crash at write {crash_at}, {survive:?}, {acknowledged} acknowledged: found {tree:#?}"
            );
        }
    }
}

#[tokio::test]
async fn operation_whose_sync_failed_is_neither_acknowledged_nor_retried() {
    let disk = CrashDisk::new();
    let driver = open(&disk).unwrap();
    submit(&driver, Op::Mkdir { path: path("/kept"), parents: false, mode: None }).await.unwrap();
    // The next operation is one write and one sync. Make the sync fail.
    disk.fail_after(1);
    let mkdir = |at: &str| Op::Mkdir { path: path(at), parents: false, mode: None };
    submit(&driver, mkdir("/lost")).await.unwrap_err();
    submit(&driver, mkdir("/after")).await.unwrap_err();
    assert!(
        driver.query(|state| state.stat(&path("/lost"))).await.is_err(),
        "a query returned a folder that is not durable"
    );
    drop(driver);
    let driver = open(&disk.after_crash(Survive::SyncedOnly)).unwrap();
    assert_eq!(tree(&driver).await, ["/kept dir=true open=false"]);
}

#[tokio::test]
async fn after_a_failed_rotation_no_unlogged_state_is_returned() {
    for operation in 0..5 {
        let disk = CrashDisk::new();
        let driver = open(&disk).unwrap();
        let mkdir = |at: &str| Op::Mkdir { path: path(at), parents: false, mode: None };
        submit(&driver, mkdir("/kept")).await.unwrap();
        disk.fail_after(operation);
        assert!(
            storage::snapshot(driver.journal(), CLUSTER, RETRY_CACHE_LIMIT).is_err(),
            "operation {operation}"
        );
        // No record is pending, so the log counts as durable. The next operation is applied in
        // memory but cannot be logged.
        submit(&driver, mkdir("/unlogged")).await.unwrap_err();
        assert!(driver.query(|state| state.stat(&path("/unlogged"))).await.is_err());
        let seen = driver.query(|state| Ok(state.stat(&path("/unlogged")).is_ok())).await;
        assert!(seen.is_err(), "an answer was returned: {seen:?}");
    }
}

/// Lets many clients create folders at the same time, and crashes the NameNode. After the restart,
/// deletes the folders and repeats all requests. Checks that no acknowledged folder was lost, and
/// that each request was applied exactly once.
#[tokio::test]
async fn crash_under_load_loses_nothing_acknowledged_and_repeats_are_recognised() {
    const CLIENTS: usize = 8;
    let delete = || Op::Delete { path: path("/shared"), recursive: true };
    let mkdir = |n: usize| Op::Mkdir { path: path(&format!("/shared/{n}")), parents: true, mode: None };
    let mut batched = false;
    for crash_at in 0..40 {
        let disk = CrashDisk::new();
        disk.crash_after(crash_at);
        let Some(driver) = open(&disk) else { continue };
        let ids: Vec<RequestId> = (0..CLIENTS * 4).map(|_| RequestId::random()).collect();
        let driver = Arc::new(driver);
        let mut clients = tokio::task::JoinSet::new();
        for chunk in 0..CLIENTS {
            let driver = driver.clone();
            let mine: Vec<(usize, RequestId)> =
                ids.iter().copied().enumerate().skip(chunk * 4).take(4).collect();
            clients.spawn(async move {
                let mut acknowledged = Vec::new();
                for (n, id) in mine {
                    if submit_as(&driver, id, mkdir(n)).await.is_err() {
                        break;
                    }
                    acknowledged.push(n);
                }
                acknowledged
            });
        }
        let acknowledged: Vec<usize> = clients.join_all().await.concat();
        batched |= driver.journal().stats().records > driver.journal().stats().batches;
        drop(driver);
        for survive in [Survive::Everything, Survive::SyncedOnly, Survive::Seeded(crash_at)] {
            let driver = open(&disk.after_crash(survive)).unwrap();
            for n in &acknowledged {
                assert!(
                    driver.query(|state| state.stat(&path(&format!("/shared/{n}")))).await.is_ok(),
                    "crash at {crash_at}, {survive:?}: folder {n} was acknowledged but is missing"
                );
            }
            // Delete all folders. Repeated requests must not create them again.
            let done = driver
                .query(|state| Ok(state.list(&path("/shared"), "", 100).map_or(vec![], |all| all.0)))
                .await;
            let done: Vec<String> = done.unwrap().into_iter().map(|entry| entry.path.to_string()).collect();
            submit(&driver, delete()).await.unwrap();
            for (n, id) in ids.iter().enumerate() {
                submit_as(&driver, *id, mkdir(n)).await.unwrap();
                let there =
                    driver.query(|state| Ok(state.stat(&path(&format!("/shared/{n}"))).is_ok())).await;
                let before = done.contains(&format!("/shared/{n}"));
                assert_eq!(
                    there.unwrap(),
                    !before,
                    "crash at {crash_at}, {survive:?}: request {n} was applied twice or never"
                );
            }
        }
    }
    assert!(batched, "no two records ever shared a batch");
}

#[tokio::test]
async fn file_closed_by_lease_expiry_stays_closed_after_a_crash() {
    let config = NameNodeConfig {
        lease: daemon::Period(std::time::Duration::from_millis(1)),
        ..NameNodeConfig::default()
    };
    for crash_at in 0..24 {
        let disk = CrashDisk::new();
        disk.crash_after(crash_at);
        let Some(driver) = open_with(&disk, &config) else { continue };
        let mut created = 0;
        for n in 0..3 {
            created += usize::from(create(&driver, &format!("/f{n}")).await.is_ok());
        }
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        let ticked = driver.tick().is_ok();
        let closed = driver.query(|state| Ok(state.stat(&path("/f0"))?.open)).await;
        for survive in [Survive::Everything, Survive::SyncedOnly, Survive::Seeded(crash_at)] {
            let driver = open(&disk.after_crash(survive)).unwrap();
            let tree = tree(&driver).await;
            assert!(tree.len() >= created, "{tree:?}");
            if let Ok(false) = closed {
                assert!(ticked && tree.iter().any(|entry| entry == "/f0 dir=false open=false"), "{tree:?}");
            }
        }
    }
}

#[tokio::test]
async fn safemode_of_an_operator_is_durable_before_the_reply() {
    let mut disk = CrashDisk::new();
    for on in [true, false] {
        let driver = open(&disk).unwrap();
        assert_eq!(driver.set_safemode(on, |state| state.safemode().on).await.unwrap(), on);
        disk = disk.after_crash(Survive::SyncedOnly);
        assert_eq!(open(&disk).unwrap().is_writable(), !on);
    }
}
