//! Targets for readers of the masters at start: segments and snapshots of a journal, and their
//! records.

use super::SMALL_LIMIT;
use crate::{
    Damage, Limit, Target,
    folder::{pack, unpack},
};
use dfs::namenode::{
    Edit, Namespace, Record, SnapshotItem, SnapshotLoader,
    op::{OnAbandon, Outcome, Quota},
};
use dfs_client::ids::{BlockId, FileId, Nonce, RequestId, Start, StartId};
use journal::{
    Content, Item, Log, LogError, Recovery, SnapshotWriter, codec,
    crash::{CrashDisk, Survive},
};
use mrcore::{
    Cluster, Fact, PerPhase, Time,
    fact::Entry,
    ids::{Incarnation, JobId, RequestId as JobRequest, TrackerId},
    job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Split},
};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "journal",
        reads: "journal::Log::open and the replay, of segments and snapshots",
        seeds: log_seeds,
        body: check_log,
        damage: Damage::CutShort,
        // The log is read in windows of some hundred KiB. The simulated disk is also in memory.
        memory: Limit { fixed: 8 << 20, per_byte: 256 },
    },
    Target {
        name: "namenode_edit",
        reads: "journal::codec::decode of the NameNode's Record, Namespace::apply",
        seeds: edit_seeds,
        body: check_edit,
        damage: Damage::Unnoticed,
        memory: RECORD_LIMIT,
    },
    Target {
        name: "namenode_snapshot",
        reads: "journal::codec::decode of SnapshotItem, SnapshotLoader",
        seeds: || vec![pack(namespace().items().map(|item| ("", codec::encode(&item))))],
        body: check_snapshot,
        damage: Damage::Unnoticed,
        memory: RECORD_LIMIT,
    },
    Target {
        name: "jobtracker_facts",
        reads: "journal::codec::decode of the JobTracker's Entry, Cluster::apply",
        seeds: fact_seeds,
        body: check_facts,
        damage: Damage::Unnoticed,
        memory: RECORD_LIMIT,
    },
];

/// Memory limit for a decoded record. The decoder preallocates at most 1 MiB for each list, and 64
/// MiB in total.
const RECORD_LIMIT: Limit = Limit { fixed: 64 << 20, per_byte: SMALL_LIMIT.per_byte * 8 };

fn record(seq: u64) -> Vec<u8> {
    let mut bytes = seq.to_le_bytes().to_vec();
    bytes.resize(8 + (seq % 23) as usize, seq as u8);
    bytes
}

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let seq = log.append(&record(log.last_seq() + 1)).expect("the log works");
        log.sync(seq).expect("the log works");
    }
}

fn take_snapshot(log: &Log) {
    let upto = log.rotate().expect("the log works");
    let mut writer = log.snapshot_writer(upto).expect("the log works");
    for seq in 1..=upto {
        writer.push(&record(seq)).expect("the disk has space");
    }
    writer.finish().expect("the disk has space");
    log.snapshot_done(upto).expect("the log works");
}

/// Returns logs that were closed, and logs as a crash leaves them. In all of them, a record with a
/// certain sequence number has the same content.
fn log_seeds() -> Vec<Vec<u8>> {
    let of = |write: fn(&Log), crash: Option<Survive>, content| {
        let disk = CrashDisk::new();
        let log = Log::open(Arc::new(disk.clone()), content, Recovery::Refuse).expect("a fresh log").log;
        write(&log);
        // The files are copied while the log is open, because closing or dropping it seals it.
        let crashed = crash.map(|survive| disk.after_crash(survive));
        log.close().expect("the log works");
        pack(crashed.unwrap_or(disk).files())
    };
    let small = |log: &Log| append(log, 3);
    let rotated = |log: &Log| {
        append(log, 5);
        log.rotate().expect("the log works");
        append(log, 4);
    };
    let snapshots = |log: &Log| {
        append(log, 4);
        take_snapshot(log);
        append(log, 3);
        log.rotate().expect("the log works");
        append(log, 2);
    };
    let ahead = |log: &Log| {
        append(log, 4);
        log.truncate_after(2).expect("the log works");
        log.snapshot_writer(9).and_then(SnapshotWriter::finish).expect("the disk has space");
        log.skip_to(9).expect("the log works");
        append(log, 2);
    };
    let seeds_of = |content| {
        vec![
            of(small, None, content),
            of(rotated, None, content),
            of(snapshots, None, content),
            of(small, Some(Survive::SyncedOnly), content),
            of(rotated, Some(Survive::Everything), content),
            of(snapshots, Some(Survive::Everything), content),
            of(snapshots, Some(Survive::SyncedOnly), content),
        ]
    };
    let mut seeds = seeds_of(Content::Records);
    seeds.extend(seeds_of(Content::Entries));
    seeds.push(of(ahead, None, Content::Entries));
    seeds
}

/// Returns all records of a log, those of its snapshot first.
fn read_log(disk: &CrashDisk, content: Content, recovery: Recovery) -> Result<Vec<u8>, LogError> {
    let mut opened = Log::open(Arc::new(disk.clone()), content, recovery)?;
    let mut next = opened.replay.snapshot_seq() + 1;
    let last = opened.replay.last_seq();
    let mut records = Vec::new();
    while let Some(item) = opened.replay.next()? {
        let bytes = match item {
            Item::Snapshot(bytes) => bytes,
            Item::Record { seq, bytes } | Item::Entry { seq, bytes } => {
                assert_eq!(seq, next, "records are missing, but no error was returned");
                next += 1;
                bytes
            }
        };
        records.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        records.extend_from_slice(bytes);
    }
    assert_eq!(next, last + 1, "the log has fewer records than its last sequence number says");
    Ok(records)
}

fn check_log(input: &[u8]) -> Option<Vec<u8>> {
    let files = unpack(input);
    let disk = || CrashDisk::with_files(files.iter().map(|(name, bytes)| (name.clone(), bytes.clone())));
    for content in [Content::Records, Content::Entries] {
        let recovered = disk();
        if let Ok(records) = read_log(&recovered, content, Recovery::DropDamaged) {
            let again = read_log(&recovered, content, Recovery::Refuse).expect("a recovered log is valid");
            assert_eq!(again, records, "a recovered log has different records when it is read again");
        }
    }
    // A log of entries may begin with records.
    read_log(&disk(), Content::Entries, Recovery::Refuse).ok()
}

/// Decodes a value, and checks that encoding and decoding it again gives the same value.
fn decode_and_check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
) -> Option<T> {
    let value: T = codec::decode(bytes).ok()?;
    let again: T = codec::decode(&codec::encode(&value)).expect("a value that was just encoded is valid");
    assert!(
        again == value || format!("{value:?}").contains("NaN"),
        "encoding and decoding {value:?} again gives {again:?}"
    );
    Some(value)
}

fn records() -> Vec<Record> {
    let made = |id, parent, name: &str| Edit::FolderCreated {
        id: FileId(id),
        parent: FileId(parent),
        name: name.into(),
        owner: "ann".into(),
        group: "users".into(),
        mode: 0o755,
    };
    let created = Edit::FileCreated {
        id: FileId(4),
        parent: FileId(2),
        name: "file".into(),
        owner: "ann".into(),
        group: "users".into(),
        mode: 0o644,
        replication: 2,
        block_size: 1 << 20,
        holder: "writer".into(),
        on_abandon: OnAbandon::Delete,
    };
    let started = |epoch, next_file, next_block| {
        let (start, accepted) = (StartId(epoch), false);
        Edit::Started { epoch, start, accepted, next_file, next_block }
    };
    let quota = Quota { files: Some(100), space: Some(1 << 40) };
    let edits = vec![
        vec![made(2, 1, "user"), made(3, 2, "ann")],
        vec![created],
        vec![Edit::FileClosed { file: FileId(4) }, Edit::QuotaSet { id: FileId(2), quota }],
        vec![Edit::Renamed { id: FileId(4), parent: FileId(3), name: "moved".into() }],
        vec![
            Edit::Fenced { scope: "jobs".into(), start: Start { epoch: 3, id: StartId(9) } },
            Edit::DrainSet { node: "n1".into(), on: true },
            Edit::SafemodeSet { on: true },
            Edit::NewerBlocksDropped { next_block: 500 },
        ],
        vec![started(2, 100, 1000)],
    ];
    let request =
        |at: u64| at.is_multiple_of(2).then_some((RequestId(u128::from(at)), Outcome::File(FileId(4))));
    edits.into_iter().zip(0..).map(|(edits, at)| Record { at_ms: at, request: request(at), edits }).collect()
}

fn namespace() -> Namespace {
    let mut namespace = Namespace::new("cluster");
    for record in records() {
        namespace.apply(&record).expect("consistent records");
    }
    namespace
}

fn edit_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = records().iter().map(codec::encode).collect();
    let more = vec![
        Edit::Deleted { id: FileId(3) },
        Edit::FileReopened { file: FileId(4), holder: "writer".into() },
        Edit::BlockAdded { file: FileId(4), block: BlockId(1000), nonce: Nonce(9) },
        Edit::Committed { scope: "jobs".into(), commit_id: "job_1".into() },
        Edit::BlockDropped { block: BlockId(1) },
        Edit::BlockCommitted { block: BlockId(1), length: 9 },
        Edit::Concatenated { target: FileId(4), source: FileId(4) },
    ];
    seeds.extend(
        more.into_iter().map(|edit| codec::encode(&Record { at_ms: 9, request: None, edits: vec![edit] })),
    );
    seeds
}

fn check_edit(input: &[u8]) -> Option<Vec<u8>> {
    let record: Record = decode_and_check(input)?;
    // Applies the record to an empty namespace and to one with files. Each must accept or refuse
    // it.
    for mut namespace in [Namespace::new("cluster"), namespace()] {
        if namespace.apply(&record).is_ok() {
            let items: Vec<SnapshotItem> = namespace.items().collect();
            let mut loader = SnapshotLoader::default();
            for item in items.iter().cloned() {
                loader.take(item).expect("a snapshot of a namespace is valid");
            }
            let again: Vec<SnapshotItem> =
                loader.finish().expect("the snapshot is complete").items().collect();
            assert_eq!(again, items, "loading the snapshot gives a different namespace");
        }
    }
    Some(Vec::new())
}

fn check_snapshot(input: &[u8]) -> Option<Vec<u8>> {
    let mut loader = SnapshotLoader::default();
    for (_, bytes) in unpack(input) {
        loader.take(decode_and_check(&bytes)?).ok()?;
    }
    let namespace = loader.finish().ok()?;
    let items: Vec<SnapshotItem> = namespace.items().collect();
    Some(items.iter().flat_map(codec::encode).collect())
}

fn fact_seeds() -> Vec<Vec<u8>> {
    let split = Split {
        source: "/in".into(),
        start: 0,
        end: 100,
        divisible: true,
        hosts: vec!["node1".into()],
        pin: InputPin { file: 4, length: 180 },
    };
    let spec = JobSpec {
        name: "sort".into(),
        user: "ann".into(),
        queue: "default".into(),
        priority: Priority::Normal,
        program: Program::Builtin("sort".into()),
        splits: vec![split.clone(), Split { start: 100, end: 180, ..split }],
        reduces: 2,
        output: "/out".into(),
        slow_start: 0.05,
        speculation: false,
        split_slow: true,
        attempts_max: 4,
        conf: [("a".to_owned(), "b".to_owned())].into(),
        payload: Payload::default(),
    };
    let joined = Fact::TrackerJoined {
        tracker: TrackerId(1),
        name: "node1".into(),
        incarnation: Incarnation(1),
        host: "node1".into(),
        rack: "default".into(),
        shuffle_addr: "node1:1".into(),
        logs_addr: "node1:2".into(),
        slots: PerPhase { map: 2, reduce: 1 },
    };
    let all = [
        Fact::JobTrackerStarted { epoch: 1, scheduler: "fifo".into() },
        joined,
        Fact::JobSubmitted { job: JobId(1), request: JobRequest(7), spec: Arc::new(spec) },
        Fact::TrackerSuspected { tracker: TrackerId(1), why: "no heartbeat".into() },
        Fact::TrackerLost { tracker: TrackerId(1), why: "no heartbeat".into() },
        Fact::JobEnded { job: JobId(1), outcome: JobOutcome::Killed("by ann".into()) },
        Fact::JobForgotten { job: JobId(1) },
    ];
    let entries = |count: usize| {
        let entry =
            |(at, fact): (u64, &Fact)| ("", codec::encode(&Entry { at: Time(at), fact: fact.clone() }));
        pack((1..).zip(&all[..count]).map(entry))
    };
    vec![entries(3), entries(all.len())]
}

fn check_facts(input: &[u8]) -> Option<Vec<u8>> {
    let mut cluster = Cluster::default();
    for (_, bytes) in unpack(input) {
        let Entry { at, fact } = decode_and_check(&bytes)?;
        cluster.apply(at, &fact).ok()?;
    }
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_tail_is_a_torn_write_only_after_a_power_loss() {
        let (mut torn, mut refused) = (0, 0);
        for seed in log_seeds() {
            let mut files = unpack(&seed);
            let newest = files.iter_mut().rfind(|(name, _)| name.starts_with("edits")).expect("a segment");
            newest.1.pop();
            match Log::open(Arc::new(CrashDisk::with_files(files)), Content::Entries, Recovery::Refuse) {
                Ok(opened) => torn += usize::from(opened.torn.is_some()),
                Err(error) => refused += usize::from(error.is_damage()),
            }
        }
        assert_eq!(
            (torn, refused),
            (4, 11),
            "expected 4 torn logs (after a power loss) and 11 refused logs (closed or killed)"
        );
    }
}
