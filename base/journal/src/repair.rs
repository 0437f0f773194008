//! Applies the result of a survey: cuts the torn tail, renames damaged files, and makes everything
//! durable that will be replayed.
//!
//! Only unfinished temporary files are deleted. After a crash at any point the next open handles
//! the folder in the same way: the copy of the cut part is durable before the original is cut, and
//! the commit point is written last. A damaged file is renamed and not copied, because the disk may
//! be unable to read it. Only its valid start is copied.

use crate::{
    LogError, Seq,
    commit::{COMMIT_FILE, CommitFile, Point},
    disk::{Disk, WriteFile},
    format::{FileKind, TEMPORARY},
    segment::start_segment,
    source::Source,
    survey::{Damage, End, Segment, Survey, records_known},
};
use std::ops::Range;

/// A batch that was cut from the end of the newest segment because its write was not finished. It
/// was not acknowledged. But a disk that lost a synced sector leaves the same state, so the owner
/// treats it as a possible loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Name of the file.
    pub file: String,
    /// Offset at which the file was cut.
    pub offset: u64,
    /// Number of bytes that were cut.
    pub bytes: u64,
    /// Name of the file with the bytes that were cut.
    pub saved_as: String,
}

/// A damaged file, or part of one, that is not used. For messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Name of the file.
    pub file: String,
    /// Offset from which on the file is not used; the offset of the damage if the whole file was
    /// dropped.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Number of records that are known to be in the dropped part; there may be more.
    pub records_known: u64,
    /// Name under which the original file is kept; `None` if there was no such file.
    pub saved_as: Option<String>,
    /// What was wrong.
    pub why: String,
}

/// Result of a repair, with the segment for the next batch.
pub(crate) struct Repaired {
    pub(crate) file: Box<dyn WriteFile>,
    pub(crate) salt: u32,
    pub(crate) commit: CommitFile,
    pub(crate) segments: Vec<Segment>,
    pub(crate) torn: Option<Torn>,
    pub(crate) replaced: Vec<Dropped>,
    pub(crate) dropped: Vec<Dropped>,
}

/// Repairs the folder.
pub(crate) fn repair(disk: &dyn Disk, survey: &mut Survey) -> Result<Repaired, LogError> {
    for name in &survey.temporaries {
        disk.remove(name).map_err(LogError::io("remove", name))?;
    }
    let mut replaced = Vec::new();
    for (seq, error) in std::mem::take(&mut survey.damaged_snapshots) {
        let file = FileKind::Snapshot.name(seq);
        replaced.push(rename_damaged(disk, &mut survey.names, &file, 0, &error)?);
    }
    let end = std::mem::replace(&mut survey.end, End::Sound);
    let (mut torn, mut dropped) = (None, Vec::new());
    match end {
        End::Sound => {}
        End::Torn { bytes } => torn = save_torn(disk, survey, bytes)?,
        End::Damage(damage) => {
            dropped.append(&mut replaced);
            dropped.extend(drop_damage(disk, survey, &damage)?);
        }
    }
    // A name that is visible now may not be durable: the previous process may have died before its
    // sync.
    disk.sync_folder().map_err(LogError::io("sync", "the journal folder"))?;
    let (commit, lost) = open_commit(disk, survey)?;
    dropped.extend(lost);
    let (file, salt) = active_segment(disk, survey, torn.is_some())?;
    let commit = begin(commit, survey)?;
    let sizes = survey.older.iter().map(|first| segment_on_disk(disk, *first));
    let mut segments = sizes.collect::<Result<Vec<_>, _>>()?;
    segments.append(&mut survey.sound);
    Ok(Repaired { file, salt, commit, segments, torn, replaced, dropped })
}

/// Saves a copy of the torn tail, because it may contain acknowledged records after all.
fn save_torn(disk: &dyn Disk, survey: &mut Survey, bytes: u64) -> Result<Option<Torn>, LogError> {
    let Some(segment) = survey.sound.last() else { return Ok(None) };
    let (file, offset) = (FileKind::Segment.name(segment.first), segment.bytes);
    let saved_as = free_name(&mut survey.names, &file, "torn");
    let copied = copy(disk, &file, offset..offset + bytes)?;
    disk.rename(&copied, &saved_as).map_err(LogError::io("rename to", &saved_as))?;
    Ok(Some(Torn { file, offset, bytes, saved_as }))
}

/// Opens the commit point. Creates a new one if it is missing or a slot is damaged.
fn open_commit(disk: &dyn Disk, survey: &mut Survey) -> Result<(CommitFile, Option<Dropped>), LogError> {
    if let Some((point, counter)) = survey.commit {
        let slot_damaged = survey.commit_slot_damaged;
        let open = if slot_damaged {
            CommitFile::create(disk, point, counter)
        } else {
            CommitFile::open(disk, counter)
        };
        return Ok((open?, None));
    }
    let mut dropped = None;
    if let Some(error) = survey.commit_lost.take() {
        dropped = Some(if survey.names.iter().any(|name| name == COMMIT_FILE) {
            rename_damaged(disk, &mut survey.names, COMMIT_FILE, 0, &error)?
        } else {
            let (file, why) = (COMMIT_FILE.to_owned(), error.to_string());
            Dropped { file, offset: 0, bytes: 0, records_known: 0, saved_as: None, why }
        });
    }
    Ok((CommitFile::create(disk, Point::default(), 0)?, dropped))
}

/// Marks the log as open: removes the seal, and sets the commit point to the last valid record.
fn begin(mut commit: CommitFile, survey: &Survey) -> Result<CommitFile, LogError> {
    let newest = survey.sound.last().map_or(0, |segment| segment.first);
    commit.write_both(Point { newest, committed: survey.last, sealed: false })?;
    Ok(commit)
}

/// Opens the segment for the next batch: the last valid one, or a new one.
fn active_segment(
    disk: &dyn Disk,
    survey: &mut Survey,
    cut: bool,
) -> Result<(Box<dyn WriteFile>, u32), LogError> {
    if let Some(segment) = survey.sound.last() {
        let name = FileKind::Segment.name(segment.first);
        let mut file = disk.append(&name).map_err(LogError::io("open", &name))?;
        if cut {
            file.truncate(segment.bytes).map_err(LogError::io("cut", &name))?;
        }
        // Needed even if nothing was cut: if the last process died before its sync, the last batch
        // may be only in the page cache, and it is about to be replayed as durable.
        file.sync().map_err(LogError::io("sync", &name))?;
        if let Some(salt) = survey.append_salt {
            return Ok((file, salt));
        }
    }
    let first = survey.last + 1;
    let started = start_segment(disk, first)?;
    survey.sound.push(segment_on_disk(disk, first)?);
    Ok(started)
}

fn segment_on_disk(disk: &dyn Disk, first: Seq) -> Result<Segment, LogError> {
    Ok(Segment { first, bytes: Source::open(disk, FileKind::Segment.name(first))?.length() })
}

fn drop_damage(disk: &dyn Disk, survey: &mut Survey, damage: &Damage) -> Result<Vec<Dropped>, LogError> {
    let mut dropped = Vec::new();
    if let (Some((bytes, records_known)), Some(segment)) = (damage.cut, survey.sound.last()) {
        let file = FileKind::Segment.name(segment.first);
        let saved_as = free_name(&mut survey.names, &file, "damaged");
        cut_damaged(disk, &file, segment.bytes, &saved_as)?;
        dropped.push(Dropped {
            file,
            offset: segment.bytes,
            bytes,
            records_known,
            saved_as: Some(saved_as),
            why: damage.error.to_string(),
        });
    }
    for &first in &damage.renamed {
        let file = FileKind::Segment.name(first);
        let known = records_known(disk, first);
        dropped.push(rename_damaged(disk, &mut survey.names, &file, known, &damage.error)?);
    }
    if dropped.is_empty() {
        // An expected file is missing: there is nothing to save.
        let file = FileKind::Segment.name(survey.last + 1);
        let why = damage.error.to_string();
        dropped.push(Dropped { file, offset: 0, bytes: 0, records_known: 0, saved_as: None, why });
    }
    Ok(dropped)
}

/// Saves a damaged segment under another name, and keeps only its valid start, `bytes` long, under
/// its own name. The file has both names until it is replaced, so that a crash in between loses
/// nothing.
fn cut_damaged(disk: &dyn Disk, file: &str, bytes: u64, saved_as: &str) -> Result<(), LogError> {
    let copied = copy(disk, file, 0..bytes)?;
    disk.link(file, saved_as).map_err(LogError::io("keep the damaged file as", saved_as))?;
    disk.sync_folder().map_err(LogError::io("sync the folder of", saved_as))?;
    disk.rename(&copied, file).map_err(LogError::io("rename to", file))
}

/// Renames a damaged file.
fn rename_damaged(
    disk: &dyn Disk,
    names: &mut Vec<String>,
    file: &str,
    records_known: u64,
    error: &LogError,
) -> Result<Dropped, LogError> {
    let bytes = Source::open(disk, file.to_owned())?.length();
    let saved_as = free_name(names, file, "damaged");
    disk.rename(file, &saved_as).map_err(LogError::io("rename the damaged file", file))?;
    // The error is about the first of the renamed files; its offset applies only to that file.
    let offset = if names_file(error, file) { error.offset() } else { 0 };
    let why = error.to_string();
    Ok(Dropped { file: file.to_owned(), offset, bytes, records_known, saved_as: Some(saved_as), why })
}

fn names_file(error: &LogError, name: &str) -> bool {
    match error {
        LogError::ShortHeader { file, .. } | LogError::Damaged { file, .. } => file == name,
        _ => false,
    }
}

fn free_name(names: &mut Vec<String>, file: &str, what: &str) -> String {
    let mut n = 1;
    loop {
        let name = format!("{file}.{what}-{n}");
        if !names.contains(&name) {
            names.push(name.clone());
            return name;
        }
        n += 1;
    }
}

/// Copies a part of `from` durably to a temporary file, and returns its name.
fn copy(disk: &dyn Disk, from: &str, part: Range<u64>) -> Result<String, LogError> {
    const COPY_BYTES: u64 = 1 << 20;
    // The suffix makes the next open remove a copy that a crash interrupted.
    let temporary = format!("{from}{TEMPORARY}");
    let mut source = Source::open(disk, from.to_owned())?;
    let mut target = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
    let mut at = part.start;
    while at < part.end {
        let bytes = source.bytes(at, COPY_BYTES.min(part.end - at) as usize)?;
        if bytes.is_empty() {
            break;
        }
        target.write(bytes).map_err(LogError::io("write", &temporary))?;
        at += bytes.len() as u64;
    }
    target.sync().map_err(LogError::io("sync", &temporary))?;
    Ok(temporary)
}
