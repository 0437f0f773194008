//! Determines what is on disk and which part of it can be used. Reads everything that a replay will
//! read, and changes nothing.
//!
//! The rule for a bad batch: batches are written one at a time, the next only after the last was
//! synced. So only the last batch of the newest segment can be torn: the one that was being written
//! when the process or the machine stopped, and that was never acknowledged. It is damaged, not
//! torn, if one of three conditions holds (ADR 0024): the commit point (`commit`) covers it, the
//! log was sealed, or all of its bytes were written. The commit point also contains the number of
//! the newest segment, so that a missing one is detected.

use crate::{
    LogError, Seq,
    commit::{self, COMMIT_FILE, Found, Point},
    disk::Disk,
    format::{FILE_HEADER_BYTES, FileKind, Name},
    replay::gap,
    segment::{SegmentReader, Step},
    snapshot::SnapshotReader,
};

/// What to do about damage when a log is opened. A torn tail (the last batch, whose write was
/// interrupted) is not damage, and a single damaged snapshot loses nothing. Both are handled and
/// reported independently of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Fail, with the file and the offset.
    Refuse,
    /// Drop everything after the start of the damage, keep copies of it, and report it in
    /// [`Opened::dropped`](crate::log::Opened::dropped).
    DropDamaged,
}

/// A segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: Seq,
    pub(crate) bytes: u64,
}

/// Result of a survey.
pub(crate) struct Survey {
    /// Every file name in the folder.
    pub(crate) names: Vec<String>,
    /// Unfinished files.
    pub(crate) temporaries: Vec<String>,
    /// Snapshots, oldest first, without the damaged ones that were tried.
    pub(crate) snapshots: Vec<Seq>,
    /// Damaged snapshots, newest first. Unless the log is damaged too, the older snapshot and the
    /// segments replace them, and nothing is lost.
    pub(crate) damaged_snapshots: Vec<(Seq, LogError)>,
    /// Segments before those that will be replayed.
    pub(crate) older: Vec<Seq>,
    /// Valid parts of the segments that will be replayed, oldest first.
    pub(crate) sound: Vec<Segment>,
    /// The last valid record, or that of the snapshot.
    pub(crate) last: Seq,
    /// How the valid part ends.
    pub(crate) end: End,
    /// Salt of the last segment in `sound`, if records can be appended to it.
    pub(crate) append_salt: Option<u32>,
    /// Contents of the commit point and its counter; `None` if it is missing or damaged.
    pub(crate) commit: Option<(Point, u64)>,
    /// Error if the commit point is unusable although there is a log.
    pub(crate) commit_lost: Option<LogError>,
    /// Whether one slot of the commit point is unusable, so that the file must be replaced.
    pub(crate) commit_slot_damaged: bool,
    /// The last record that was durable according to the commit point or the newest snapshot. It
    /// must exist.
    pub(crate) claimed: Seq,
}

/// How the valid part of the log ends.
pub(crate) enum End {
    /// At the end of the newest segment.
    Sound,
    /// In the newest segment, in a torn batch: the last of `sound` is to be cut to its length.
    Torn { bytes: u64 },
    /// At damage that is to be dropped.
    Damage(Damage),
}

/// Damage to be dropped.
pub(crate) struct Damage {
    pub(crate) error: LogError,
    /// If the last of `sound` is to be cut to its length: the number of bytes and known records
    /// that are lost.
    pub(crate) cut: Option<(u64, u64)>,
    /// Segments to be renamed.
    pub(crate) renamed: Vec<Seq>,
}

impl Survey {
    /// Returns the snapshot to start from; 0 for none.
    pub(crate) fn base(&self) -> Seq {
        self.snapshots.last().copied().unwrap_or(0)
    }

    /// Examines the folder. With [`Recovery::Refuse`] any damage is an error.
    pub(crate) fn take(disk: &dyn Disk, recovery: Recovery) -> Result<Self, LogError> {
        let names = disk.list().map_err(LogError::io("list", "the journal folder"))?;
        let (mut segments, mut snapshots, mut temporaries) = (Vec::new(), Vec::new(), Vec::new());
        for name in &names {
            match Name::parse(name) {
                Name::File(FileKind::Segment, seq) => segments.push(seq),
                Name::File(FileKind::Snapshot, seq) => snapshots.push(seq),
                Name::Temporary => temporaries.push(name.clone()),
                Name::Other => {}
            }
        }
        segments.sort_unstable();
        snapshots.sort_unstable();
        let newest_snapshot = snapshots.last().copied().unwrap_or(0);
        let damaged_snapshots = choose_snapshot(disk, &mut snapshots)?;
        let base = snapshots.last().copied().unwrap_or(0);
        let has_files = !segments.is_empty() || newest_snapshot > 0;
        let CommitPoint { commit, lost: commit_lost, slot_damaged: commit_slot_damaged } =
            commit_point(disk, has_files)?;
        let commit_lost = match (commit_lost, recovery) {
            (Some(error), Recovery::Refuse) => return Err(error),
            (commit_lost, _) => commit_lost,
        };
        let point = commit.map(|(point, _)| point).unwrap_or_default();
        let fresh = base == 0 && damaged_snapshots.is_empty() && segments.is_empty() && point.newest == 0;
        // The first segment to read is the last one that begins at or before the record after the
        // snapshot.
        let start = segments.partition_point(|first| *first <= base + 1).saturating_sub(1);
        let needed = segments.split_off(start);
        let mut survey = Self {
            names,
            temporaries,
            snapshots,
            damaged_snapshots,
            older: segments,
            sound: Vec::new(),
            last: base,
            end: End::Sound,
            append_salt: None,
            commit,
            commit_lost,
            commit_slot_damaged,
            claimed: point.committed.max(newest_snapshot),
        };
        if !fresh {
            survey.walk(disk, &needed)?;
            survey.check_commit(point, &needed);
        }
        if recovery == Recovery::Refuse
            && let End::Damage(damage) = survey.end
        {
            // The error of the snapshot is returned if it contained records that the segments lack.
            let snapshot = survey.damaged_snapshots.into_iter().next().filter(|(seq, _)| survey.last < *seq);
            return Err(snapshot.map_or(damage.error, |(_, error)| error));
        }
        // With `DropDamaged` the log is opened even if nothing is left, as for a missing journal
        // (`home`). The dropped files are saved, and the loss is reported to the owner.
        Ok(survey)
    }

    /// Whether opening the log cuts or drops anything.
    pub(crate) fn loses_data(&self) -> bool {
        !matches!(self.end, End::Sound) || self.commit_lost.is_some()
    }

    fn walk(&mut self, disk: &dyn Disk, needed: &[Seq]) -> Result<(), LogError> {
        let base = self.base();
        let mut expected = base + 1;
        for (index, &first) in needed.iter().enumerate() {
            let in_order = if index == 0 { first <= expected } else { first == expected };
            if !in_order {
                return self.damage(gap(expected, Some(first)), None, &needed[index..]);
            }
            let mut reader = match SegmentReader::open(disk, first) {
                Ok(reader) => reader,
                Err(error) if error.is_damage() => return self.damage(error, None, &needed[index..]),
                Err(error) => return Err(error),
            };
            let bad = loop {
                match reader.next_batch()? {
                    Step::Batch => {}
                    Step::End => break None,
                    Step::Bad(what) => break Some(what),
                }
            };
            expected = reader.next_seq();
            self.sound.push(Segment { first, bytes: reader.offset() });
            self.last = base.max(expected - 1);
            self.append_salt = (expected > base).then_some(reader.salt());
            if let Some(what) = bad {
                return self.bad_batch(reader, what, &needed[index + 1..]);
            }
        }
        if expected <= base || needed.is_empty() {
            return self.damage(gap(base + 1, None), None, &[]);
        }
        Ok(())
    }

    fn bad_batch(
        &mut self,
        mut reader: SegmentReader,
        what: &'static str,
        newer: &[Seq],
    ) -> Result<(), LogError> {
        let bytes = reader.source().length() - reader.offset();
        let later = reader.later()?;
        let last = newer.is_empty() && later.batches == 0 && self.append_salt.is_some();
        let sealed = self.commit.is_some_and(|(point, _)| point.sealed);
        let readable = !reader.source().unreadable();
        if last && readable && !sealed && self.last >= self.claimed && reader.may_be_torn()? {
            self.end = End::Torn { bytes };
            return Ok(());
        }
        let error = reader.source().damaged(reader.offset(), what);
        self.damage(error, Some((bytes, later.records)), newer)
    }

    /// Checks that everything exists that the commit point and the newest snapshot claim.
    fn check_commit(&mut self, point: Point, needed: &[Seq]) {
        if !matches!(self.end, End::Sound) {
            return;
        }
        let error = if point.newest > self.base() && !needed.contains(&point.newest) {
            gap(point.newest, None)
        } else if self.last < self.claimed {
            let file =
                FileKind::Segment.name(self.sound.last().map_or(point.newest, |segment| segment.first));
            LogError::Lost { file, from: self.last + 1, upto: self.claimed }
        } else {
            return;
        };
        self.end = End::Damage(Damage { error, cut: None, renamed: Vec::new() });
    }

    #[expect(clippy::unnecessary_wraps, reason = "returned on every path of `walk`")]
    fn damage(&mut self, error: LogError, cut: Option<(u64, u64)>, renamed: &[Seq]) -> Result<(), LogError> {
        self.end = End::Damage(Damage { error, cut, renamed: renamed.to_vec() });
        Ok(())
    }
}

/// State of the commit point. It is created before the first segment.
#[derive(Default)]
struct CommitPoint {
    commit: Option<(Point, u64)>,
    lost: Option<LogError>,
    slot_damaged: bool,
}

fn commit_point(disk: &dyn Disk, has_files: bool) -> Result<CommitPoint, LogError> {
    let lost = |what| {
        let lost = Some(LogError::CommitPoint { file: COMMIT_FILE, what });
        CommitPoint { lost, ..CommitPoint::default() }
    };
    Ok(match commit::read(disk)? {
        Found::Sound(point, counter, slot_damaged) => {
            if slot_damaged {
                tracing::warn!(file = COMMIT_FILE, "one of two slots is damaged; the other one is used");
            }
            CommitPoint { commit: Some((point, counter)), lost: None, slot_damaged }
        }
        Found::Missing if has_files => lost("is missing although the journal has other files"),
        Found::Missing => CommitPoint::default(),
        Found::Damaged => lost("has no readable slot"),
    })
}

/// Removes damaged snapshots from the end of `snapshots` until the newest is valid. Returns the
/// damaged ones.
fn choose_snapshot(disk: &dyn Disk, snapshots: &mut Vec<Seq>) -> Result<Vec<(Seq, LogError)>, LogError> {
    let mut damaged = Vec::new();
    while let Some(&seq) = snapshots.last() {
        match SnapshotReader::verify(disk, seq) {
            Ok(()) => break,
            Err(error) if error.is_damage() => {
                snapshots.pop();
                damaged.push((seq, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}

/// Returns the number of records that are known to be in a segment that is to be renamed.
pub(crate) fn records_known(disk: &dyn Disk, first: Seq) -> u64 {
    let Ok(mut reader) = SegmentReader::open(disk, first) else { return 0 };
    while let Ok(Step::Batch) = reader.next_batch() {}
    let sound = reader.next_seq() - first;
    sound + reader.later().map_or(0, |later| later.records)
}

/// Whether a segment has valid bytes after its header.
pub(crate) fn has_records(segment: &Segment) -> bool {
    segment.bytes > FILE_HEADER_BYTES as u64
}
