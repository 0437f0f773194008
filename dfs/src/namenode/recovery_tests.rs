//! Tests with a damaged edit log on a real disk: the start is refused with the position of the
//! damage, and after `--recover` no replica of an old block counts as one of a new block.

use super::{
    driver::{Driver, Environment},
    op::{
        BlockLength, Caller, Heartbeat, Now, OnAbandon, Op, Outcome, Registration, Replica, Request, Usage,
    },
    settings::Settings,
    state::State,
    storage::{Storage, StorageError},
};
use daemon::config::NameNodeConfig;
use dfs_client::{
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, StartId},
    path::DfsPath,
};
use journal::Recovery;
use replication::master::Journal;
use std::{fs, os::unix::fs::FileExt, path::Path};

const RETRY_CACHE_LIMIT: usize = 1000;
const NONCE: Nonce = Nonce(7);

/// A NameNode without threads, and with a stopped clock.
struct Bench {
    storage: Storage,
    state: State,
    now: Now,
}

fn node(number: u128) -> NodeUuid {
    NodeUuid(uuid::Uuid::from_u128(number))
}

impl Bench {
    fn open(folder: &Path, recovery: Recovery) -> Result<Self, StorageError> {
        let config = NameNodeConfig { retry_cache: RETRY_CACHE_LIMIT, ..NameNodeConfig::default() };
        let storage = Storage::open(folder, recovery, &config)?;
        let now = Environment::of_machine().now();
        let settings = Settings { safemode_threshold: 0.0, ..Settings::from(&NameNodeConfig::default()) };
        let state = State::new(settings, storage.namespace.clone(), now);
        Ok(Self { storage, state, now })
    }

    fn ask(&mut self, op: Op) -> Outcome {
        let caller = Caller::superuser("tester");
        let request = Request { id: RequestId::random(), caller, op };
        let handled = self.state.handle(self.now, request).unwrap();
        let seq = self.storage.log.append(&handled.entry.unwrap().bytes).unwrap();
        self.storage.log.sync(seq).unwrap();
        handled.outcome
    }

    fn register(&mut self, number: u128) {
        let registration = Registration {
            uuid: node(number),
            incarnation: NodeIncarnation(1),
            node: format!("n{number}"),
            host: "h".into(),
            rack: "r".into(),
            data_addr: "h:1".into(),
            local_socket: String::new(),
            version: "test".into(),
            cluster_id: String::new(),
            declared_new: false,
            seen_epoch: 0,
            seen_start: StartId(0),
            usage: Usage { capacity: 1 << 40, free: 1 << 40, ..Usage::default() },
        };
        self.state.register(self.now, registration).unwrap();
        self.report(number, &[]);
    }

    fn report(&mut self, number: u128, blocks: &[BlockId]) {
        let replicas =
            blocks.iter().map(|block| Replica { block: *block, nonce: NONCE, length: 10 }).collect();
        self.state.full_report(self.now, node(number), NodeIncarnation(1), 0, true, replicas).unwrap();
    }

    /// Creates a closed file with one block of ten bytes on the only node.
    fn file(&mut self, at: &str) -> (FileId, BlockId) {
        let holder = || "w".to_owned();
        let created = self.ask(Op::Create {
            path: DfsPath::parse(at).unwrap(),
            holder: holder(),
            replication: None,
            block_size: None,
            overwrite: false,
            make_parents: false,
            mode: None,
            on_abandon: OnAbandon::Close,
        });
        let Outcome::File(file) = created else { panic!("{created:?}") };
        let added = self.ask(Op::AddBlock {
            file,
            holder: holder(),
            commits: vec![],
            exclude_nodes: vec![],
            writer_host: String::new(),
            expected: 0,
            nonce: NONCE,
        });
        let Outcome::Block { block, nodes } = added else { panic!("{added:?}") };
        let commits = vec![BlockLength { block, length: 10 }];
        let replica = Replica { block, nonce: NONCE, length: 10 };
        let usage = Usage { capacity: 1 << 40, free: 1 << 40, ..Usage::default() };
        let received = Heartbeat { seq: block.0, usage, received: vec![replica], ..Heartbeat::default() };
        self.state.heartbeat(self.now, nodes[0], NodeIncarnation(1), received);
        self.ask(Op::Close { file, holder: holder(), commits, rename_to: None, overwrite: false });
        (file, block)
    }
}

/// Changes a byte in the middle of the only log segment. Returns the file name of the segment.
fn damage(folder: &Path) -> String {
    let mut segments = fs::read_dir(folder.join("edits")).unwrap().flatten();
    let path =
        segments.find(|entry| entry.path().extension().is_some_and(|end| end == "log")).unwrap().path();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], middle).unwrap();
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn after_recovery_ids_are_not_reused_and_late_nodes_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    bench.register(1);
    let made: Vec<(FileId, BlockId)> = (0..20).map(|n| bench.file(&format!("/f{n}"))).collect();
    drop(bench);
    let name = damage(folder.path());

    let refused = Bench::open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
    assert!(
        refused.contains(&name) && refused.contains("at offset") && refused.contains("--recover"),
        "{refused}"
    );

    let mut bench = Bench::open(folder.path(), Recovery::DropDamaged).unwrap();
    assert!(!folder.path().join("RECOVERING").exists());
    let lost: Vec<_> =
        made.iter().filter(|(_, block)| bench.state.namespace().block(*block).is_none()).collect();
    assert!(
        (1..20).contains(&lost.len()),
        "expected that some of 20 blocks are lost, but {} are",
        lost.len()
    );
    // New blocks are written to another node. The node with the old replicas registers later.
    bench.register(2);
    let (file, block) = bench.file("/new");
    assert!(made.iter().all(|(old_file, old_block)| *old_file < file && *old_block < block));
    bench.register(1);
    let old: Vec<BlockId> = made.iter().map(|(_, block)| *block).collect();
    bench.report(1, &old);
    let (_, located) = bench.state.locate(&DfsPath::parse("/new").unwrap(), 0, 10, "").unwrap();
    let holders: Vec<_> = located[0].nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(holders, ["n2"]);
    assert!(bench.state.safemode().reason.contains(&format!("future_blocks {}", lost.len())));
    bench.state.invariants().unwrap();
    drop(bench);
    let bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    assert!(bench.state.namespace().next_block() > block.0, "the ID of the new block is not durable");
}

#[test]
fn new_namespace_has_tmp_and_user_and_each_start_raises_epoch_and_ids() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    let mode = |bench: &Bench, at: &str| bench.state.stat(&DfsPath::parse(at).unwrap()).map(|stat| stat.mode);
    assert_eq!((mode(&bench, "/tmp").unwrap(), mode(&bench, "/user").unwrap()), (0o1777, 0o755));
    assert_eq!(bench.state.namespace().epoch(), 1);
    bench.register(1);
    let (file, block) = bench.file("/f");
    bench.ask(Op::Delete { path: DfsPath::parse("/tmp").unwrap(), recursive: true });
    drop(bench);

    let mut bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    assert_eq!(bench.state.namespace().epoch(), 2);
    assert!(mode(&bench, "/tmp").is_err(), "the deleted /tmp was created again");
    bench.register(1);
    let (later_file, later_block) = bench.file("/g");
    assert!(
        later_file.0 > file.0 + (1 << 19) && later_block.0 > block.0 + (1 << 19),
        "the start skipped too few IDs"
    );
    drop(bench);

    // The epoch of an accepted namespace is higher than any that a DataNode can have stored.
    let bench = Bench::open(folder.path(), Recovery::DropDamaged).unwrap();
    assert!(bench.state.namespace().epoch() > 1_000_000_000_000);
}

#[test]
fn a_recovery_that_was_interrupted_is_finished_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    bench.register(1);
    let (_, block) = bench.file("/f");
    drop(bench);
    // Create the file that remains after a crash between dropping the damaged records and finishing
    // the recovery.
    fs::write(folder.path().join("RECOVERING"), "recover\n").unwrap();
    let bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    assert!(bench.state.namespace().next_block() > block.0 + (1 << 31));
    assert!(!folder.path().join("RECOVERING").exists());
}

#[test]
fn missing_edit_log_is_rejected_and_recovery_reuses_no_id() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(folder.path(), Recovery::Refuse).unwrap();
    bench.register(1);
    let (_, block) = bench.file("/f");
    drop(bench);
    fs::remove_dir_all(folder.path().join("edits")).unwrap();

    let refused = Bench::open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
    assert!(refused.contains("edits has no edit log,") && refused.contains("--recover"), "{refused}");
    let mut bench = Bench::open(folder.path(), Recovery::DropDamaged).unwrap();
    assert!(bench.state.stat(&DfsPath::parse("/f").unwrap()).is_err());
    bench.register(1);
    bench.report(1, &[block]);
    let (_, new) = bench.file("/g");
    assert!(new.0 > block.0 + (1 << 31), "{new} is not far above the lost IDs");
    assert!(bench.state.safemode().reason.contains("future_blocks 1"), "the old block is not kept");

    // Lose the edit log again, at another time.
    drop(bench);
    fs::remove_dir_all(folder.path().join("edits")).unwrap();
    let before = Environment::of_machine().now().wall_ms;
    while Environment::of_machine().now().wall_ms <= before {}
    let mut bench = Bench::open(folder.path(), Recovery::DropDamaged).unwrap();
    bench.register(1);
    bench.report(1, &[block, new]);
    let (_, newest) = bench.file("/h");
    assert!(newest > new, "{newest} is not above {new}");
    assert!(bench.state.safemode().reason.contains("future_blocks 2"), "the old blocks are not kept");
}

/// A disk on which writes block as long as `hung` is locked for writing.
#[derive(Clone)]
struct HungDisk {
    real: std::sync::Arc<journal::disk::RealDisk>,
    hung: std::sync::Arc<std::sync::RwLock<()>>,
}

struct HungFile(Box<dyn journal::disk::WriteFile>, std::sync::Arc<std::sync::RwLock<()>>);

impl journal::disk::WriteFile for HungFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        drop(self.1.read());
        self.0.write(bytes)
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        drop(self.1.read());
        self.0.write_at(offset, bytes)
    }
    fn truncate(&mut self, len: u64) -> std::io::Result<()> {
        self.0.truncate(len)
    }
    fn sync(&mut self) -> std::io::Result<()> {
        self.0.sync()
    }
}

impl journal::disk::Disk for HungDisk {
    fn list(&self) -> std::io::Result<Vec<String>> {
        self.real.list()
    }
    fn create(&self, name: &str) -> std::io::Result<Box<dyn journal::disk::WriteFile>> {
        Ok(Box::new(HungFile(self.real.create(name)?, self.hung.clone())))
    }
    fn append(&self, name: &str) -> std::io::Result<Box<dyn journal::disk::WriteFile>> {
        Ok(Box::new(HungFile(self.real.append(name)?, self.hung.clone())))
    }
    fn overwrite(&self, name: &str) -> std::io::Result<Box<dyn journal::disk::WriteFile>> {
        Ok(Box::new(HungFile(self.real.overwrite(name)?, self.hung.clone())))
    }
    fn open(&self, name: &str) -> std::io::Result<Box<dyn journal::disk::ReadFile>> {
        self.real.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.real.rename(from, to)
    }
    fn link(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.real.link(from, to)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.real.remove(name)
    }
    fn sync_folder(&self) -> std::io::Result<()> {
        self.real.sync_folder()
    }
    fn free_bytes(&self) -> std::io::Result<u64> {
        self.real.free_bytes()
    }
}

#[test]
fn while_the_disk_hangs_changes_are_refused_before_anything_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let real = std::sync::Arc::new(journal::disk::RealDisk::open(folder.path()).unwrap());
    let hung = std::sync::Arc::new(std::sync::RwLock::new(()));
    let disk = std::sync::Arc::new(HungDisk { real, hung: hung.clone() });
    let (Storage { log, namespace, .. }, _) =
        Storage::open_log(disk, "c", Recovery::Refuse, RETRY_CACHE_LIMIT).unwrap();
    let config = NameNodeConfig::default();
    let state = State::new(Settings::from(&config), namespace, Environment::of_machine().now());
    let driver = Driver::new(state, Journal::Single(log), Environment::of_machine(), &config);
    let request = || Request {
        id: RequestId::random(),
        caller: Caller::superuser("tester"),
        op: Op::Mkdir { path: DfsPath::parse("/a").unwrap(), parents: false, mode: None },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    let hanging = hung.write().unwrap();
    for bytes in [journal::log::RECORD_BYTES_MAX, 1 << 10, 1] {
        while driver.journal().has_room_for(bytes) {
            driver.journal().append(&[vec![0; bytes]]).unwrap();
        }
    }
    // The refusal is returned only after the disk works again, so it is checked afterwards.
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| runtime.block_on(driver.submit(request(), |_, outcome| Ok(outcome))));
        // Wait long enough for the operation to be refused. If it were not refused, it would be
        // applied later and be visible below.
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(hanging);
        asked.join().unwrap()
    });
    let error = asked.unwrap_err();
    assert!(error.message.contains("does not keep up with its edit log"), "{error}");
    let there =
        runtime.block_on(driver.query(|state| Ok(state.stat(&DfsPath::parse("/a").unwrap()).is_ok())));
    assert!(!there.unwrap(), "a refused operation was applied");
    runtime.block_on(driver.submit(request(), |_, outcome| Ok(outcome))).unwrap();
}
