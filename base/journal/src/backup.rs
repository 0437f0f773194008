//! A backup of a data folder: the newest snapshot, and other files of the daemon, as a sequence of
//! parts; and the journal that is made from such a snapshot.
//!
//! The caller makes the snapshot before. Records after it are not in the backup.

use crate::{
    Log, LogError, Seq,
    commit::{CommitFile, CommitPoint},
    disk::{Disk, ReadFile, RealDisk},
    format::{Content, FileKind, Name},
    segment::ActiveSegment,
    snapshot::{SnapshotFile, SnapshotReader, SnapshotWriter},
};
use std::{collections::VecDeque, fs, io, path::PathBuf, sync::Arc};

/// Length of a part of a file.
const PART_BYTES: usize = 1 << 20;

/// A part of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Begins a file: its path in the data folder.
    File(String),
    /// The next bytes of the file.
    Data(Vec<u8>),
    /// The end of the backup, and the number of its files.
    End(u64),
}

/// The parts of a backup, in the order in which they are sent. The files are read while this is
/// used.
pub struct Parts {
    /// The subfolder of the journal.
    pub journal: &'static str,
    /// The last record in the backup.
    pub last_record: Seq,
    /// Length of all files together. Files that the daemon writes or deletes meanwhile can make it
    /// wrong.
    pub bytes: u64,
    current: Option<OpenFile>,
    others: VecDeque<(String, PathBuf)>,
    files: u64,
    has_ended: bool,
}

struct OpenFile {
    path: Option<String>,
    file: Box<dyn ReadFile>,
    offset: u64,
    bytes: u64,
}

impl Parts {
    /// Returns the parts of the newest snapshot of `log`, whose subfolder is `journal`, and of
    /// `others`: paths in the data folder, and files. Those of `others` that do not exist any more
    /// are left out.
    pub fn of(log: &Log, journal: &'static str, others: Vec<(String, PathBuf)>) -> Result<Self, LogError> {
        let found = log.newest_snapshot()?;
        let missing = || LogError::io("find", "a snapshot")(io::ErrorKind::NotFound.into());
        let SnapshotFile { seq, bytes, file } = found.ok_or_else(missing)?;
        let path = Some(format!("{journal}/{}", FileKind::Snapshot.name(seq)));
        let length = |(_, file): &(String, PathBuf)| fs::metadata(file).map_or(0, |about| about.len());
        Ok(Self {
            journal,
            last_record: seq,
            bytes: bytes + others.iter().map(length).sum::<u64>(),
            current: Some(OpenFile { path, file, offset: 0, bytes }),
            others: others.into(),
            files: 0,
            has_ended: false,
        })
    }

    fn advance(&mut self) -> io::Result<Part> {
        loop {
            if let Some(open) = &mut self.current {
                if let Some(path) = open.path.take() {
                    self.files += 1;
                    return Ok(Part::File(path));
                }
                let left = (open.bytes - open.offset).min(PART_BYTES as u64);
                let mut part = vec![0; left as usize];
                let read = if left == 0 { 0 } else { open.file.read_at(open.offset, &mut part)? };
                open.offset += read as u64;
                if read > 0 {
                    part.truncate(read);
                    return Ok(Part::Data(part));
                }
                self.current = None;
            }
            let Some((path, file)) = self.others.pop_front() else {
                self.has_ended = true;
                return Ok(Part::End(self.files));
            };
            match RealDisk::open_file(&file) {
                Ok(file) => {
                    let bytes = file.length()?;
                    self.current = Some(OpenFile { path: Some(path), file, offset: 0, bytes });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Iterator for Parts {
    type Item = io::Result<Part>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let part = self.advance();
        self.has_ended |= part.is_err();
        Some(part)
    }
}

/// Verifies the only snapshot in a folder by reading it to its end. Returns its last record.
pub fn verify_snapshot(disk: &dyn Disk) -> Result<Seq, LogError> {
    let names = disk.list().map_err(LogError::io("list", "the folder of the snapshot"))?;
    let mut snapshots = names.iter().filter_map(|name| match Name::parse(name) {
        Name::File(FileKind::Snapshot, seq) => Some(seq),
        _ => None,
    });
    let (Some(seq), None) = (snapshots.next(), snapshots.next()) else {
        return Err(LogError::io("find", "one snapshot")(io::ErrorKind::NotFound.into()));
    };
    SnapshotReader::verify(disk, seq)?;
    Ok(seq)
}

/// Makes the journal of one master on an empty disk: of a snapshot whose last record is `seq`, and
/// whose records `write` writes.
pub fn make_journal<E: From<LogError>>(
    disk: &Arc<dyn Disk>,
    seq: Seq,
    write: impl FnOnce(&mut SnapshotWriter) -> Result<(), E>,
) -> Result<(), E> {
    let mut writer = SnapshotWriter::start(Arc::clone(disk), Content::Records, seq)?;
    write(&mut writer)?;
    writer.finish()?;
    Ok(complete_journal(disk)?)
}

/// Makes the journal of one master in a folder that contains one snapshot and no other file of a
/// journal. The snapshot must be durable.
pub fn complete_journal(disk: &Arc<dyn Disk>) -> Result<(), LogError> {
    let seq = verify_snapshot(&**disk)?;
    leave_group(disk, seq)?;
    let newest = seq + 1;
    CommitFile::create(&**disk, CommitPoint { newest, committed: seq, sealed: true }, 0)?;
    ActiveSegment::start(&**disk, Content::Records, newest)?;
    Ok(())
}

/// Replaces a snapshot of a member of a group by one of a single master. The first record of the
/// former is its place in the log of the group.
fn leave_group(disk: &Arc<dyn Disk>, seq: Seq) -> Result<(), LogError> {
    let mut reader = SnapshotReader::open(&**disk, seq)?;
    if reader.content() == Content::Records {
        return Ok(());
    }
    let mut writer = SnapshotWriter::start(Arc::clone(disk), Content::Records, seq)?;
    let mut is_place = true;
    while reader.advance()? {
        if !std::mem::take(&mut is_place) {
            writer.push(reader.record())?;
        }
    }
    writer.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Content, Item, Recovery,
        crash::CrashDisk,
        log::{Log, Opened},
    };
    use std::sync::Arc;

    /// Returns a log with a snapshot of its first two records, and one record after it.
    fn log_with_snapshot() -> (Arc<CrashDisk>, Log) {
        let disk = Arc::new(CrashDisk::new());
        let log = Log::open(disk.clone(), Content::Records, Recovery::Refuse).unwrap().log;
        log.append_many(&[b"one", b"two"]).unwrap();
        let upto = log.rotate().unwrap();
        let mut writer = log.snapshot_writer(upto).unwrap();
        writer.push(b"one and two").unwrap();
        writer.finish().unwrap();
        log.snapshot_done(upto).unwrap();
        log.sync(log.append(b"three").unwrap()).unwrap();
        (disk, log)
    }

    #[test]
    fn journal_made_from_a_backup_has_the_snapshot_and_continues_after_it() {
        let (_, log) = log_with_snapshot();
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("job_1.jsonl");
        fs::write(&history, vec![7; PART_BYTES + 1]).unwrap();
        let others = vec![
            ("history/job_1.jsonl".to_owned(), history),
            ("history/job_2.jsonl".to_owned(), folder.path().join("was deleted")),
        ];
        let parts = Parts::of(&log, "pages", others).unwrap();
        assert_eq!((parts.last_record, parts.journal), (2, "pages"));
        let promised = parts.bytes;
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let mut end = None;
        for part in parts {
            match part.unwrap() {
                Part::File(path) => files.push((path, Vec::new())),
                Part::Data(bytes) => files.last_mut().unwrap().1.extend(bytes),
                Part::End(count) => end = Some(count),
            }
        }
        assert_eq!(end, Some(2));
        assert_eq!(files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>(), promised);
        assert_eq!(files[1], ("history/job_1.jsonl".to_owned(), vec![7; PART_BYTES + 1]));

        let disk = Arc::new(CrashDisk::new());
        let name = files[0].0.strip_prefix("pages/").unwrap();
        disk.set_file(name, files[0].1.clone());
        complete_journal(&(disk.clone() as Arc<dyn Disk>)).unwrap();
        for expected in [2, 3] {
            let Opened { log, mut replay, torn, dropped, .. } =
                Log::open(disk.clone(), Content::Records, Recovery::Refuse).unwrap();
            assert!(torn.is_none() && dropped.is_empty());
            assert_eq!(log.last_seq(), expected);
            assert_eq!(replay.next().unwrap(), Some(Item::Snapshot(b"one and two")));
            if expected == 3 {
                assert_eq!(replay.next().unwrap(), Some(Item::Record { seq: 3, bytes: b"other" }));
            }
            assert_eq!(replay.next().unwrap(), None);
            drop(replay);
            log.sync(log.append(b"other").unwrap()).unwrap();
        }
    }

    #[test]
    fn snapshot_of_a_group_becomes_that_of_one_master() {
        let source = Arc::new(CrashDisk::new());
        let log = Log::open(source.clone(), Content::Entries, Recovery::Refuse).unwrap().log;
        let mut writer = log.snapshot_writer(7).unwrap();
        for record in [&b"the place"[..], b"one", b"two"] {
            writer.push(record).unwrap();
        }
        writer.finish().unwrap();
        let (disk, name) = (Arc::new(CrashDisk::new()), FileKind::Snapshot.name(7));
        disk.set_file(&name, source.files()[&name].clone());
        complete_journal(&(disk.clone() as Arc<dyn Disk>)).unwrap();
        let opened = Log::open(disk, Content::Records, Recovery::Refuse).unwrap();
        assert_eq!(opened.log.last_seq(), 7);
        let mut replay = opened.replay;
        assert_eq!(replay.next().unwrap(), Some(Item::Snapshot(b"one")));
        assert_eq!(replay.next().unwrap(), Some(Item::Snapshot(b"two")));
        assert_eq!(replay.next().unwrap(), None);
    }

    #[test]
    fn damaged_or_missing_snapshot_is_refused() {
        let (source, log) = log_with_snapshot();
        drop(log);
        let name = FileKind::Snapshot.name(2);
        let sound = source.files()[&name].clone();
        let disk = CrashDisk::new();
        assert!(verify_snapshot(&disk).unwrap_err().to_string().contains("one snapshot"));
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            disk.set_file(&name, bytes);
            complete_journal(&(Arc::new(disk.clone()) as Arc<dyn Disk>)).unwrap_err();
        }
        assert_eq!(disk.files().len(), 1, "nothing was written beside a damaged snapshot");
        disk.set_file(&name, sound);
        assert_eq!(verify_snapshot(&disk).unwrap(), 2);
    }
}
