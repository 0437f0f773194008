//! Removes records from the end of a log: entries that a follower of a group has and that its
//! leader does not.
//!
//! Such records were acknowledged as durable, so the commit point is lowered first. A crash at any
//! moment leaves either all records, or all up to a later one than requested; never fewer, and
//! never a gap.

use crate::{
    LogError, Seq,
    disk::Disk,
    format::{BATCH_HEADER_BYTES, FileKind},
    repair::copy_to_temporary,
    segment::{ActiveSegment, BatchResult, SegmentReader, push_record, seal_batch},
    survey::Segment,
};

/// Removes the files of `segments` that begin after record `last` + 1, newest first, and cuts the
/// segment that then is the newest. Returns that segment for appending.
pub(crate) fn truncate(
    disk: &dyn Disk,
    segments: &mut Vec<Segment>,
    last: Seq,
) -> Result<ActiveSegment, LogError> {
    while let [.., _, newest] = segments[..]
        && newest.first > last + 1
    {
        let name = FileKind::Segment.name(newest.first);
        disk.remove(&name).map_err(LogError::io("remove", &name))?;
        // Otherwise a crash could undo this removal and not the next one.
        disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
        segments.pop();
    }
    let segment = segments.last_mut().expect("there is always a segment being written");
    let (active, bytes) = cut(disk, segment.first, last)?;
    segment.bytes = bytes;
    Ok(active)
}

/// Cuts a segment after record `last`, and returns its new length.
fn cut(disk: &dyn Disk, first: Seq, last: Seq) -> Result<(ActiveSegment, u64), LogError> {
    let mut reader = SegmentReader::open(disk, first)?;
    let (name, salt) = (FileKind::Segment.name(first), reader.header().salt);
    let (mut at, mut first_of_batch) = (reader.offset(), first);
    while reader.next_seq() <= last + 1 {
        (at, first_of_batch) = (reader.offset(), reader.next_seq());
        match reader.next_batch()? {
            BatchResult::Batch => {}
            BatchResult::End => break,
            BatchResult::Bad(what) => return Err(reader.source().damage_at(at, what)),
        }
    }
    // The batch at `at` contains records that are to be removed. It is replaced by a batch of its
    // other records.
    let mut batch = vec![0; BATCH_HEADER_BYTES];
    let mut count = 0;
    while first_of_batch <= last && reader.advance(last)? {
        push_record(&mut batch, reader.record().1);
        count += 1;
    }
    let open = || disk.append(&name).map_err(LogError::io("open", &name));
    if count == 0 {
        let mut file = open()?;
        file.truncate(at).map_err(LogError::io("cut", &name))?;
        file.sync().map_err(LogError::io("sync", &name))?;
        return Ok((ActiveSegment { file, name, salt }, at));
    }
    seal_batch(&mut batch, first_of_batch, count, salt);
    let copied = copy_to_temporary(disk, &name, 0..at, &batch)?;
    disk.rename(&copied, &name).map_err(LogError::io("rename to", &name))?;
    disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
    Ok((ActiveSegment { file: open()?, name, salt }, at + batch.len() as u64))
}
