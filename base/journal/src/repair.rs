//! Applies the result of a survey: cuts the torn tail, renames damaged files, and makes everything
//! durable that will be replayed.
//!
//! Only unfinished temporary files are deleted. If the process crashes during a repair, the next
//! open repeats it: the copy of a torn tail is durable before the original is cut, and the commit
//! point is written last. A damaged file is renamed and not copied, because the disk may be unable
//! to read it. Only its valid start is copied.

use crate::{
    LogError, Seq,
    commit::{COMMIT_FILE, CommitFile, CommitPoint},
    disk::Disk,
    format::{FileKind, Name, TEMPORARY},
    segment::ActiveSegment,
    source::Source,
    survey::{Damage, End, Segment, Survey, records_known},
};
use std::ops::Range;

/// Describes a batch that was cut from the newest segment because its write was not finished. The
/// batch was not acknowledged. But a disk that lost a synced sector leaves the same state, so the
/// owner of the log treats the cut as a possible loss.
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

/// Describes a damaged file, or a damaged part of a file, that is not used; for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Name of the file.
    pub file: String,
    /// Offset at which the dropped part begins; if the whole file was dropped, the offset of the
    /// damage.
    pub offset: u64,
    /// Number of dropped bytes.
    pub bytes: u64,
    /// Number of records that are known to be in the dropped part; there may be more.
    pub records_known: u64,
    /// Name under which the original file is kept; `None` if there was no such file.
    pub saved_as: Option<String>,
    /// What was wrong.
    pub why: String,
}

/// Result of a repair.
pub(crate) struct Repaired {
    /// The segment for the next batch.
    pub(crate) segment: ActiveSegment,
    pub(crate) commit: CommitFile,
    pub(crate) segments: Vec<Segment>,
    pub(crate) torn: Option<Torn>,
    pub(crate) replaced: Vec<Dropped>,
    pub(crate) dropped: Vec<Dropped>,
}

/// Repairs the journal folder and opens the segment for the next batch.
pub(crate) fn repair(disk: &dyn Disk, survey: &mut Survey) -> Result<Repaired, LogError> {
    for name in &survey.temporaries {
        disk.remove(name).map_err(LogError::io("remove", name))?;
    }
    let mut replaced = Vec::new();
    for (seq, error) in std::mem::take(&mut survey.damaged_snapshots) {
        let file = FileKind::Snapshot.name(seq);
        replaced.push(rename_damaged(disk, &mut survey.names, &file, 0, &error)?);
    }
    let end = std::mem::replace(&mut survey.end, End::Complete);
    let (mut torn, mut dropped) = (None, Vec::new());
    match end {
        End::Complete => {}
        End::Torn { bytes } => torn = save_torn(disk, survey, bytes)?,
        End::Damage(damage) => {
            dropped.append(&mut replaced);
            dropped.extend(drop_damage(disk, survey, &damage)?);
        }
    }
    // A file name that is visible now may not be durable, because the previous process may have
    // died before it synced the folder.
    disk.sync_folder().map_err(LogError::io("sync", "the journal folder"))?;
    let (commit, lost) = open_commit(disk, survey)?;
    dropped.extend(lost);
    let segment = active_segment(disk, survey, torn.is_some())?;
    let commit = mark_open(commit, survey)?;
    let sizes = survey.older_segments.iter().map(|first| segment_on_disk(disk, *first));
    let mut segments = sizes.collect::<Result<Vec<_>, _>>()?;
    segments.append(&mut survey.valid_segments);
    Ok(Repaired { segment, commit, segments, torn, replaced, dropped })
}

/// Saves a copy of the torn tail, because after a disk error it may contain acknowledged records.
fn save_torn(disk: &dyn Disk, survey: &mut Survey, bytes: u64) -> Result<Option<Torn>, LogError> {
    let Some(segment) = survey.valid_segments.last() else { return Ok(None) };
    let (file, offset) = (FileKind::Segment.name(segment.first), segment.bytes);
    let saved_as = unused_name(&mut survey.names, &file, "torn");
    let copied = copy_to_temporary(disk, &file, offset..offset + bytes, &[])?;
    disk.rename(&copied, &saved_as).map_err(LogError::io("rename to", &saved_as))?;
    Ok(Some(Torn { file, offset, bytes, saved_as }))
}

/// Opens the file of the commit point. Creates a new file if it is missing or a slot is damaged.
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
    Ok((CommitFile::create(disk, CommitPoint::default(), 0)?, dropped))
}

/// Marks the log as open: removes the seal, and sets the commit point to the last valid record.
fn mark_open(mut commit: CommitFile, survey: &Survey) -> Result<CommitFile, LogError> {
    let newest = survey.valid_segments.last().map_or(0, |segment| segment.first);
    commit.write_both(CommitPoint { newest, committed: survey.last_seq, sealed: false })?;
    Ok(commit)
}

/// Opens the segment for the next batch: the last valid segment, or a new one.
fn active_segment(disk: &dyn Disk, survey: &mut Survey, cut: bool) -> Result<ActiveSegment, LogError> {
    if let Some(segment) = survey.valid_segments.last() {
        let name = FileKind::Segment.name(segment.first);
        let mut file = disk.append(&name).map_err(LogError::io("open", &name))?;
        if cut {
            file.truncate(segment.bytes).map_err(LogError::io("cut", &name))?;
        }
        // Sync even if nothing was cut: if the last process died before its sync, the last batch
        // may be only in the page cache, but it will be replayed as durable.
        file.sync().map_err(LogError::io("sync", &name))?;
        if let Some(salt) = survey.append_salt {
            return Ok(ActiveSegment { file, name, salt });
        }
    }
    let first = survey.last_seq + 1;
    // An empty segment of other content has the same name, and is replaced.
    survey.valid_segments.pop_if(|segment| segment.first == first);
    let started = ActiveSegment::start(disk, survey.content, first)?;
    survey.valid_segments.push(segment_on_disk(disk, first)?);
    Ok(started)
}

fn segment_on_disk(disk: &dyn Disk, first: Seq) -> Result<Segment, LogError> {
    Ok(Segment { first, bytes: Source::open(disk, FileKind::Segment.name(first))?.length() })
}

fn drop_damage(disk: &dyn Disk, survey: &mut Survey, damage: &Damage) -> Result<Vec<Dropped>, LogError> {
    let mut dropped = Vec::new();
    if let (Some((bytes, records_known)), Some(segment)) = (damage.cut, survey.valid_segments.last()) {
        let file = FileKind::Segment.name(segment.first);
        let saved_as = unused_name(&mut survey.names, &file, "damaged");
        replace_by_valid_start(disk, &file, segment.bytes, &saved_as)?;
        dropped.push(Dropped {
            file,
            offset: segment.bytes,
            bytes,
            records_known,
            saved_as: Some(saved_as),
            why: damage.error.to_string(),
        });
    }
    for &first in &damage.segments_to_rename {
        let file = FileKind::Segment.name(first);
        let known = records_known(disk, first);
        dropped.push(rename_damaged(disk, &mut survey.names, &file, known, &damage.error)?);
    }
    if dropped.is_empty() {
        // The damage is a missing file, so there is no file to save.
        let file = FileKind::Segment.name(survey.last_seq + 1);
        let why = damage.error.to_string();
        dropped.push(Dropped { file, offset: 0, bytes: 0, records_known: 0, saved_as: None, why });
    }
    Ok(dropped)
}

/// Saves a damaged segment as `saved_as`, and replaces it by a copy of its first `bytes` bytes,
/// which are valid. The damaged file has both names until it is replaced, so that a crash in
/// between loses nothing.
fn replace_by_valid_start(disk: &dyn Disk, file: &str, bytes: u64, saved_as: &str) -> Result<(), LogError> {
    let copied = copy_to_temporary(disk, file, 0..bytes, &[])?;
    disk.link(file, saved_as).map_err(LogError::io("keep the damaged file as", saved_as))?;
    disk.sync_folder().map_err(LogError::io("sync the folder of", saved_as))?;
    disk.rename(&copied, file).map_err(LogError::io("rename to", file))
}

/// Renames a damaged file, and returns its description.
pub(crate) fn rename_damaged(
    disk: &dyn Disk,
    names: &mut Vec<String>,
    file: &str,
    records_known: u64,
    error: &LogError,
) -> Result<Dropped, LogError> {
    let bytes = Source::open(disk, file.to_owned())?.length();
    let saved_as = unused_name(names, file, "damaged");
    disk.rename(file, &saved_as).map_err(LogError::io("rename the damaged file", file))?;
    // The error names only the first of the renamed files, so its offset applies to that file
    // alone.
    let offset = if is_about_file(error, file) { error.offset() } else { 0 };
    let why = error.to_string();
    Ok(Dropped { file: file.to_owned(), offset, bytes, records_known, saved_as: Some(saved_as), why })
}

/// Renames all files of a log, and `others` after them, as damaged: none of them is used any more.
/// Returns the new names. If a crash interrupts it, the log is damaged, or gone.
pub fn rename_all(disk: &dyn Disk, others: &[&str]) -> Result<Vec<String>, LogError> {
    let mut names = disk.list().map_err(LogError::io("list", "the journal folder"))?;
    let files = names.iter().filter(|name| matches!(Name::parse(name), Name::File(..))).cloned();
    let files: Vec<String> = files.collect();
    let mut renamed = Vec::new();
    // Without its commit point a log with files is damaged.
    let others = others.iter().map(|name| vec![(*name).to_owned()]);
    for group in [vec![COMMIT_FILE.to_owned()], files].into_iter().chain(others) {
        for file in group.into_iter().filter(|file| names.contains(file)).collect::<Vec<_>>() {
            let saved_as = unused_name(&mut names, &file, "damaged");
            disk.rename(&file, &saved_as).map_err(LogError::io("rename", &file))?;
            renamed.push(saved_as);
        }
        disk.sync_folder().map_err(LogError::io("sync", "the journal folder"))?;
    }
    Ok(renamed)
}

fn is_about_file(error: &LogError, name: &str) -> bool {
    match error {
        LogError::ShortHeader { file, .. } | LogError::Damaged { file, .. } => file == name,
        _ => false,
    }
}

fn unused_name(names: &mut Vec<String>, file: &str, what: &str) -> String {
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

/// Copies a part of `from`, and then the bytes `then`, durably to a temporary file. Returns the
/// name of that file.
pub(crate) fn copy_to_temporary(
    disk: &dyn Disk,
    from: &str,
    part: Range<u64>,
    then: &[u8],
) -> Result<String, LogError> {
    const COPY_BYTES: u64 = 1 << 20;
    // If a crash interrupts the copy, the next open removes it, because of its suffix.
    let temporary = format!("{from}{TEMPORARY}");
    let mut source = Source::open(disk, from.to_owned())?;
    let mut target = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
    let mut at = part.start;
    while at < part.end {
        let bytes = source.read(at, COPY_BYTES.min(part.end - at) as usize)?;
        if bytes.is_empty() {
            break;
        }
        target.write(bytes).map_err(LogError::io("write", &temporary))?;
        at += bytes.len() as u64;
    }
    target.write(then).map_err(LogError::io("write", &temporary))?;
    target.sync().map_err(LogError::io("sync", &temporary))?;
    Ok(temporary)
}
