//! Determines which files of a journal folder exist and which part of them can be used. Reads
//! everything that a replay will read, and changes nothing.
//!
//! The rule for a bad batch: batches are written one at a time, each after the previous batch was
//! synced. So only the last batch of the newest segment can be torn: it was being written when the
//! process or the machine stopped, and was never acknowledged. That batch is damaged, not torn, if
//! one of three conditions holds (ADR 0024): the commit point (`commit`) covers it, the log was
//! sealed, or all of its bytes were written. The commit point also contains the first sequence
//! number of the newest segment, so that a missing newest segment is detected.
//!
//! A member of a group of masters can get a snapshot that is newer than all of its records, so
//! after a snapshot of entries the records before it may be missing.

use crate::{
    LogError, Seq,
    commit::{self, COMMIT_FILE, CommitFileState, CommitPoint},
    disk::Disk,
    format::{Content, FILE_HEADER_BYTES, FileKind, Name},
    replay::gap,
    segment::{BatchResult, SegmentReader},
    snapshot::SnapshotReader,
};

/// What to do about damage when a log is opened. A torn tail (a last batch whose write was
/// interrupted) is not damage, and a single damaged snapshot loses nothing. Both are handled and
/// reported with either variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Fail, with an error that names the file and the offset.
    Refuse,
    /// Drop everything from the start of the damage on, save it in other files, and report it in
    /// [`Opened::dropped`](crate::log::Opened::dropped).
    DropDamaged,
}

/// A segment file: its first record and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: Seq,
    pub(crate) bytes: u64,
}

/// Result of a survey.
pub(crate) struct Survey {
    /// Every file name in the folder.
    pub(crate) names: Vec<String>,
    /// Unfinished temporary files.
    pub(crate) temporaries: Vec<String>,
    /// Snapshots, oldest first. The newest is valid; those in `damaged_snapshots` are not included.
    pub(crate) snapshots: Vec<Seq>,
    /// Damaged snapshots, newest first. Unless segments are damaged too, an older snapshot and the
    /// segments after it contain the same records, and nothing is lost.
    pub(crate) damaged_snapshots: Vec<(Seq, LogError)>,
    /// First records of the segments that are older than the replayed segments.
    pub(crate) older_segments: Vec<Seq>,
    /// Valid parts of the segments that will be replayed, oldest first.
    pub(crate) valid_segments: Vec<Segment>,
    /// The last valid record: of the segments, or of the snapshot if no record follows it.
    pub(crate) last_seq: Seq,
    /// How the valid part ends.
    pub(crate) end: End,
    /// What the log contains from now on.
    pub(crate) content: Content,
    /// Whether the snapshot at the base is one of entries.
    base_may_be_ahead: bool,
    /// Salt of the last segment in `valid_segments`, if records can be appended to it.
    pub(crate) append_salt: Option<u32>,
    /// Contents of the commit point and its counter; `None` if it is missing or damaged.
    pub(crate) commit: Option<(CommitPoint, u64)>,
    /// The error if the commit point is missing or unreadable although the journal has other files.
    pub(crate) commit_lost: Option<LogError>,
    /// Whether one slot of the commit point is damaged, so that the file must be replaced.
    pub(crate) commit_slot_damaged: bool,
    /// The last record that the commit point or the newest snapshot claims to be durable. If it
    /// does not exist, the log is damaged.
    pub(crate) last_claimed: Seq,
}

/// How the valid part of the log ends.
pub(crate) enum End {
    /// At the end of the newest segment.
    Complete,
    /// In a torn batch of `bytes` bytes, which is to be cut from the last segment.
    Torn { bytes: u64 },
    /// At damage, which is to be dropped.
    Damage(Damage),
}

/// Damage that ends the valid part of the log.
pub(crate) struct Damage {
    pub(crate) error: LogError,
    /// Set if the end of the last valid segment is to be cut: the number of bytes that are cut, and
    /// of records known to be in them.
    pub(crate) cut: Option<(u64, u64)>,
    /// First records of the segments that are to be renamed.
    pub(crate) segments_to_rename: Vec<Seq>,
}

impl Survey {
    /// Returns the last record of the snapshot that a replay starts from; 0 if there is none.
    pub(crate) fn base(&self) -> Seq {
        self.snapshots.last().copied().unwrap_or(0)
    }

    /// Examines the folder. With [`Recovery::Refuse`], damage is returned as an error. A log of
    /// entries may begin with records; a log of records must not contain entries.
    pub(crate) fn take(disk: &dyn Disk, recovery: Recovery, content: Content) -> Result<Self, LogError> {
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
        let (base_content, damaged_snapshots) = choose_snapshot(disk, &mut snapshots)?;
        let base = snapshots.last().copied().unwrap_or(0);
        check_content(content, base_content, FileKind::Snapshot, base)?;
        let has_files = !segments.is_empty() || newest_snapshot > 0;
        let CommitSurvey { commit, lost: commit_lost, slot_damaged: commit_slot_damaged } =
            read_commit_point(disk, has_files)?;
        let commit_lost = match (commit_lost, recovery) {
            (Some(error), Recovery::Refuse) => return Err(error),
            (commit_lost, _) => commit_lost,
        };
        let point = commit.map(|(point, _)| point).unwrap_or_default();
        let fresh = base == 0 && damaged_snapshots.is_empty() && segments.is_empty() && point.newest == 0;
        // Replay starts with the segment that contains the first record after the snapshot.
        let start = segments.partition_point(|first| *first <= base + 1).saturating_sub(1);
        let needed = segments.split_off(start);
        let mut survey = Self {
            names,
            temporaries,
            snapshots,
            damaged_snapshots,
            older_segments: segments,
            valid_segments: Vec::new(),
            last_seq: base,
            end: End::Complete,
            content,
            base_may_be_ahead: base_content == Content::Entries,
            append_salt: None,
            commit,
            commit_lost,
            commit_slot_damaged,
            last_claimed: point.committed.max(newest_snapshot),
        };
        if !fresh {
            survey.read_segments(disk, &needed)?;
            survey.check_commit(point, &needed);
        }
        if recovery == Recovery::Refuse
            && let End::Damage(damage) = survey.end
        {
            // Return the error of the damaged snapshot if it had records that the segments lack.
            let snapshot =
                survey.damaged_snapshots.into_iter().next().filter(|(seq, _)| survey.last_seq < *seq);
            return Err(snapshot.map_or(damage.error, |(_, error)| error));
        }
        // With `DropDamaged` the log is opened even if no valid record is left, like a missing
        // journal (see `home`). The dropped files are saved, and the loss is reported to the owner.
        Ok(survey)
    }

    /// Returns whether opening the log will cut or drop anything.
    pub(crate) fn loses_data(&self) -> bool {
        !matches!(self.end, End::Complete) || self.commit_lost.is_some()
    }

    fn read_segments(&mut self, disk: &dyn Disk, needed: &[Seq]) -> Result<(), LogError> {
        let base = self.base();
        let mut expected = base + 1;
        for (index, &first) in needed.iter().enumerate() {
            let in_order = if index == 0 { first <= expected } else { first == expected };
            if !in_order {
                return self.set_damage(gap(expected, Some(first)), None, &needed[index..]);
            }
            let mut reader = match SegmentReader::open(disk, first) {
                Ok(reader) => reader,
                Err(error) if error.is_damage() => return self.set_damage(error, None, &needed[index..]),
                Err(error) => return Err(error),
            };
            check_content(self.content, reader.header().content, FileKind::Segment, first)?;
            let bad = loop {
                match reader.next_batch()? {
                    BatchResult::Batch => {}
                    BatchResult::End => break None,
                    BatchResult::Bad(what) => break Some(what),
                }
            };
            expected = reader.next_seq();
            self.valid_segments.push(Segment { first, bytes: reader.offset() });
            self.last_seq = base.max(expected - 1);
            let can_append = expected > base && reader.header().content == self.content;
            self.append_salt = can_append.then_some(reader.header().salt);
            if expected <= base && self.snapshot_is_ahead() && index + 1 == needed.len() {
                return Ok(());
            }
            if let Some(what) = bad {
                return self.classify_bad_batch(reader, what, &needed[index + 1..]);
            }
        }
        if (expected <= base || needed.is_empty()) && !self.snapshot_is_ahead() {
            return self.set_damage(gap(base + 1, None), None, &[]);
        }
        Ok(())
    }

    /// Returns whether the snapshot may be newer than all records: no record after it was
    /// acknowledged.
    fn snapshot_is_ahead(&self) -> bool {
        self.base_may_be_ahead && self.last_claimed <= self.base()
    }

    fn classify_bad_batch(
        &mut self,
        mut reader: SegmentReader,
        what: &'static str,
        newer: &[Seq],
    ) -> Result<(), LogError> {
        let bytes = reader.source().length() - reader.offset();
        let later = reader.find_later_batches()?;
        let last = newer.is_empty() && later.batches == 0 && reader.next_seq() > self.base();
        let sealed = self.commit.is_some_and(|(point, _)| point.sealed);
        let readable = !reader.source().has_bad_sector();
        if last && readable && !sealed && self.last_seq >= self.last_claimed && reader.may_be_torn()? {
            self.end = End::Torn { bytes };
            return Ok(());
        }
        let error = reader.source().damage_at(reader.offset(), what);
        self.set_damage(error, Some((bytes, later.records)), newer)
    }

    /// Checks that all records exist that the commit point and the newest snapshot claim.
    fn check_commit(&mut self, point: CommitPoint, needed: &[Seq]) {
        if !matches!(self.end, End::Complete) {
            return;
        }
        let error = if point.newest > self.base() && !needed.contains(&point.newest) {
            gap(point.newest, None)
        } else if self.last_seq < self.last_claimed {
            let file = FileKind::Segment
                .name(self.valid_segments.last().map_or(point.newest, |segment| segment.first));
            LogError::Lost { file, from: self.last_seq + 1, upto: self.last_claimed }
        } else {
            return;
        };
        self.end = End::Damage(Damage { error, cut: None, segments_to_rename: Vec::new() });
    }

    #[expect(clippy::unnecessary_wraps, reason = "returned on every path of `read_segments`")]
    fn set_damage(
        &mut self,
        error: LogError,
        cut: Option<(u64, u64)>,
        segments_to_rename: &[Seq],
    ) -> Result<(), LogError> {
        self.end = End::Damage(Damage { error, cut, segments_to_rename: segments_to_rename.to_vec() });
        Ok(())
    }
}

/// What the survey knows about the commit point. Its file is created before the first segment.
#[derive(Default)]
struct CommitSurvey {
    commit: Option<(CommitPoint, u64)>,
    lost: Option<LogError>,
    slot_damaged: bool,
}

fn read_commit_point(disk: &dyn Disk, has_files: bool) -> Result<CommitSurvey, LogError> {
    let lost = |what| {
        let lost = Some(LogError::CommitPoint { file: COMMIT_FILE, what });
        CommitSurvey { lost, ..CommitSurvey::default() }
    };
    Ok(match commit::read(disk)? {
        CommitFileState::Valid(point, counter, slot_damaged) => {
            if slot_damaged {
                tracing::warn!(
                    file = COMMIT_FILE,
                    "one slot of the commit point is damaged: the other slot is used"
                );
            }
            CommitSurvey { commit: Some((point, counter)), lost: None, slot_damaged }
        }
        CommitFileState::Missing if has_files => lost("is missing although the journal has other files"),
        CommitFileState::Missing => CommitSurvey::default(),
        CommitFileState::Damaged => lost("has no readable slot"),
    })
}

fn check_content(expected: Content, found: Content, kind: FileKind, seq: Seq) -> Result<(), LogError> {
    if (expected, found) == (Content::Records, Content::Entries) {
        return Err(LogError::OfGroup { file: kind.name(seq) });
    }
    Ok(())
}

/// Removes damaged snapshots from the end of `snapshots` until the newest is valid. Returns what
/// that one was made of, and the removed snapshots with their errors.
fn choose_snapshot(
    disk: &dyn Disk,
    snapshots: &mut Vec<Seq>,
) -> Result<(Content, Vec<(Seq, LogError)>), LogError> {
    let mut damaged = Vec::new();
    while let Some(&seq) = snapshots.last() {
        match SnapshotReader::verify(disk, seq) {
            Ok(content) => return Ok((content, damaged)),
            Err(error) if error.is_damage() => {
                snapshots.pop();
                damaged.push((seq, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((Content::Records, damaged))
}

/// Returns how many records are known to be in a segment; there may be more after damage.
pub(crate) fn records_known(disk: &dyn Disk, first: Seq) -> u64 {
    let Ok(mut reader) = SegmentReader::open(disk, first) else { return 0 };
    while let Ok(BatchResult::Batch) = reader.next_batch() {}
    let sound = reader.next_seq() - first;
    sound + reader.find_later_batches().map_or(0, |later| later.records)
}

/// Returns whether a segment has at least one record.
pub(crate) fn has_records(segment: &Segment) -> bool {
    segment.bytes > FILE_HEADER_BYTES as u64
}
