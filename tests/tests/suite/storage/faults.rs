//! The storage faults: how each is injected, and how it appears in logs.

use super::work::Known;
use fermata_tests::{Cluster, READS, Strace, is_gone};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    ReadError,
    WriteError,
    NoSpace,
    SyncError,
    RotInData,
    RotInChecksums,
    JournalTail,
    JournalMiddle,
    Snapshot,
    MissingSegment,
    StaleRestore,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadError => "read of one block fails (EIO)",
            Self::WriteError => "writes fail (EIO)",
            Self::NoSpace => "writes fail (ENOSPC)",
            Self::SyncError => "fsync fails (EIO)",
            Self::RotInData => "flipped bit in a block",
            Self::RotInChecksums => "flipped bit in a checksum file",
            Self::JournalTail => "flipped bit in the last batch of the journal",
            Self::JournalMiddle => "flipped bit in the middle of the journal",
            Self::Snapshot => "flipped bit in the newest snapshot",
            Self::MissingSegment => "newest journal segment missing",
            Self::StaleRestore => "older copy of the folder restored",
        })
    }
}

impl Fault {
    /// Returns groups of words. A log line is about the fault if it contains all words of a group.
    fn words(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::ReadError | Self::WriteError | Self::SyncError => &[&["input/output error"]],
            Self::NoSpace => &[&["no space left"]],
            Self::RotInData => &[&["checksum mismatch"]],
            Self::RotInChecksums => &[&["checksum file"], &["checksum mismatch"]],
            Self::JournalTail | Self::JournalMiddle => &[&["damaged"], &["mismatch"], &["may be lost"]],
            Self::Snapshot => &[&["snapshot", "damaged"], &["snapshot", "mismatch"], &["snapshot", "footer"]],
            Self::MissingSegment => &[&["acknowledged"], &["missing"], &["may be lost"], &["damaged"]],
            Self::StaleRestore => &[
                &["datanode refused"],
                &["an older namenode runs"],
                &["started from an older copy of its folder"],
            ],
        }
    }
}

/// A daemon with a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Master {
    NameNode,
    JobTracker,
}

impl Master {
    fn name(self) -> &'static str {
        match self {
            Self::NameNode => "namenode",
            Self::JobTracker => "jobtracker",
        }
    }

    fn journal(self, cluster: &Cluster) -> PathBuf {
        match self {
            Self::NameNode => cluster.path(".fermata/data/namenode/edits"),
            Self::JobTracker => cluster.path(".fermata/data/jobtracker/journal"),
        }
    }
}

/// Machine with the faulty disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    Node(u32),
    Master(Master),
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node{number}"),
            Self::Master(master) => f.write_str(master.name()),
        }
    }
}

impl Machine {
    /// Returns the kind of the daemon whose disk fails.
    fn kind(self) -> &'static str {
        match self {
            Self::Node(_) => "datanode",
            Self::Master(master) => master.name(),
        }
    }

    fn pid(self, cluster: &Cluster) -> String {
        cluster.pid_of(&self.to_string(), self.kind())
    }

    /// Returns the logs to search: that of the daemon itself first, then those of other daemons
    /// that detect the fault.
    fn logs(self, cluster: &Cluster, fault: Fault) -> Vec<PathBuf> {
        let log = |name: &str| cluster.path(&format!(".fermata/logs/{name}.log"));
        let node = |number: u32| log(&format!("node{number}-datanode"));
        match self {
            Self::Node(number) => vec![node(number), log("namenode")],
            Self::Master(master) if fault == Fault::StaleRestore => {
                std::iter::once(log(master.name())).chain((1..=3).map(node)).collect()
            }
            Self::Master(master) => vec![log(master.name())],
        }
    }
}

/// Lengths of the logs at a certain time.
pub(super) struct Logs(BTreeMap<PathBuf, u64>);

impl Logs {
    pub(super) fn now(cluster: &Cluster) -> Self {
        let entries = fs::read_dir(cluster.path(".fermata/logs")).unwrap().flatten();
        Self(entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect())
    }

    /// Returns the first line since that time that is about the fault, without its timestamp.
    pub(super) fn line_since(&self, cluster: &Cluster, machine: Machine, fault: Fault) -> Option<String> {
        let groups = fault.words();
        machine.logs(cluster, fault).into_iter().find_map(|path| {
            let bytes = fs::read(&path).ok()?;
            let from = self.0.get(&path).map_or(0, |length| *length as usize);
            let text = String::from_utf8_lossy(bytes.get(from..)?).into_owned();
            let about = |line: &&str| {
                let lower = line.to_lowercase();
                groups.iter().any(|group| group.iter().all(|word| lower.contains(word)))
            };
            let line = text.lines().find(about)?;
            let words = line.split_whitespace().skip_while(|word| word.contains('Z') && word.contains('T'));
            let line: String = words.collect::<Vec<_>>().join(" ").replace('|', "/");
            let folder = cluster.path("").display().to_string();
            Some(line.replace(&folder, "").chars().take(200).collect())
        })
    }
}

/// An injected fault: one that lasts until dropped, or damage that has been done.
pub(super) enum InjectedFault {
    Lasting { _strace: Strace },
    Done,
}

impl InjectedFault {
    /// Injects a fault on a machine with a running daemon. A fault of a block affects a block that
    /// is not in `used`, and adds its ID. Prints a message and returns `None` if strace cannot be
    /// used.
    pub(super) fn inject(
        cluster: &Cluster,
        known: &Known,
        fault: Fault,
        machine: Machine,
        used: &mut BTreeSet<u64>,
    ) -> Option<Self> {
        let mut block_of = |number| known_block(cluster, known, number, used);
        let (calls, what, files) = match (fault, machine) {
            (Fault::ReadError, Machine::Node(number)) => (READS, "error=EIO", vec![block_of(number)]),
            (Fault::WriteError, Machine::Node(_)) => ("pwrite64", "error=EIO", Vec::new()),
            (Fault::NoSpace, Machine::Node(_)) => ("pwrite64", "error=ENOSPC", Vec::new()),
            (Fault::SyncError, _) => ("fsync,fdatasync", "error=EIO", Vec::new()),
            (Fault::WriteError, Machine::Master(master)) => {
                ("write,pwrite64", "error=EIO", vec![newest(cluster, master, "log", 0)])
            }
            (Fault::NoSpace, Machine::Master(master)) => {
                ("write,pwrite64", "error=ENOSPC", vec![newest(cluster, master, "log", 0)])
            }
            (Fault::RotInData, Machine::Node(number)) => {
                flip(&block_of(number), 0.5);
                return Some(Self::Done);
            }
            (Fault::RotInChecksums, Machine::Node(number)) => {
                flip(&block_of(number).with_extension("crc"), 0.5);
                return Some(Self::Done);
            }
            other => panic!("no such row: {other:?}"),
        };
        let strace = Strace::hold_files(cluster, &machine.pid(cluster), calls, what, &files)?;
        Some(Self::Lasting { _strace: strace })
    }
}

/// Returns the ID in the name of a block file.
fn id_of(block: &Path) -> u64 {
    let name = block.file_name().unwrap().to_string_lossy().into_owned();
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Returns a replica on a node that belongs to a known file, of a block that is not in `used`.
fn known_block(cluster: &Cluster, known: &Known, number: u32, used: &mut BTreeSet<u64>) -> PathBuf {
    let node = format!("node{number}");
    let blocks = known.blocks_on(cluster, &node);
    let id = blocks.into_iter().find(|id| used.insert(*id));
    let id = id.unwrap_or_else(|| panic!("{node} has no unused block: {used:?}"));
    let replicas = cluster.replicas_on(&node);
    let replica =
        replicas.iter().find(|path| id_of(path) == id).expect("the replica that the NameNode knows");
    // strace compares files by their canonical path.
    fs::canonicalize(replica).unwrap()
}

/// Flips a bit at a relative position of a file.
fn flip(path: &Path, part: f64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let at = ((length as f64 * part) as u64).min(length - 10);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Returns the newest file of a journal with this extension, longer than `least`.
fn newest(cluster: &Cluster, master: Master, ending: &str, least: u64) -> PathBuf {
    let folder = master.journal(cluster);
    let paths = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
    let fits = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == ending)
            && fs::metadata(path).is_ok_and(|at| at.len() > least)
    };
    paths.filter(fits).max().unwrap_or_else(|| panic!("no .{ending} in {}", folder.display()))
}

/// Damages the files of a master before its start.
pub(super) fn damage(cluster: &Cluster, fault: Fault, master: Master) {
    // Minimum size of a segment with batches. Longer than the header of a file.
    const BATCHES: u64 = 150;
    match fault {
        Fault::JournalTail => flip(&newest(cluster, master, "log", BATCHES), 1.0),
        Fault::JournalMiddle => flip(&newest(cluster, master, "log", BATCHES), 0.5),
        Fault::Snapshot => flip(&newest(cluster, master, "snap", 0), 0.5),
        // A new segment without records is not missed, so the segment before it is removed too.
        Fault::MissingSegment => loop {
            let segment = newest(cluster, master, "log", 0);
            let has_records =
                fs::read(&segment).unwrap().iter().skip(BATCHES as usize).any(|byte| *byte != 0);
            fs::remove_file(segment).unwrap();
            if has_records {
                break;
            }
        },
        other => panic!("no such damage: {other:?}"),
    }
}

/// Makes a master write records, and returns what it has acknowledged.
pub(super) fn provoke(cluster: &Cluster, master: Master) -> Vec<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut acknowledged = Vec::new();
    for _ in 0..4 {
        let path = format!("/provoked-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let ran = match master {
            Master::NameNode => cluster.try_mrctl(&["fs", "mkdir", &path]),
            Master::JobTracker => {
                cluster.try_mrctl(&["submit", "wordcount", "--input", "/in", "--output", &path, "--detach"])
            }
        };
        if ran.code != 0 {
            break;
        }
        if master == Master::NameNode {
            acknowledged.push(path);
        }
    }
    acknowledged
}

/// Checks that folders exist.
pub(super) fn assert_folders_exist(cluster: &Cluster, folders: &[String]) {
    for folder in folders {
        cluster.mrctl(&["fs", "stat", folder]);
    }
}

pub(super) fn kill(cluster: &Cluster, master: Master) {
    cluster.mrctl(&["chaos", "kill", master.name()]);
}

pub(super) fn start(cluster: &Cluster, master: Master) {
    cluster.mrctl(&["chaos", "restart", master.name()]);
}

/// Restarts a daemon that has ended because of its disk.
pub(super) fn restart_daemons(cluster: &Cluster, machine: Machine) {
    if !is_gone(&machine.pid(cluster)) {
        return;
    }
    match machine {
        Machine::Node(number) => {
            cluster.mrctl(&["chaos", "restart", &format!("node{number}"), "--daemon", "datanode"]);
        }
        Machine::Master(master) => start(cluster, master),
    }
}

/// Starts a master, and checks that it refuses with these words and mentions `--recover`.
pub(super) fn assert_start_refused(cluster: &Cluster, master: Master, words: &str) {
    let ran = cluster.try_mrctl(&["chaos", "restart", master.name()]);
    assert_ne!(ran.code, 0, "the {} started", master.name());
    assert!(ran.stderr.contains(words) && ran.stderr.contains("--recover"), "{}", ran.stderr);
}

/// Starts a master. If it refuses, checks that its message mentions `--recover`, and starts it with
/// that flag. Returns whether that was necessary.
pub(super) fn start_or_recover(cluster: &Cluster, master: Master) -> bool {
    let ran = cluster.try_mrctl(&["chaos", "restart", master.name()]);
    if ran.code == 0 {
        return false;
    }
    assert!(ran.stderr.contains("--recover"), "no advice: {}", ran.stderr);
    cluster.recover(master.name(), |_| {});
    start(cluster, master);
    true
}
