//! Input: the bytes of a file ([`ByteSource`]), and the records of a split ([`RecordSource`]).
//!
//! Invariant: however a file is split, each record is read by exactly one split. A split has the
//! records that *start* in it; the last record may end beyond the split.

mod dfs_file;
mod fixed;
mod gzip;
mod lines;
mod local;
mod whole_file;

#[cfg(test)]
mod tests;

pub use dfs_file::{DfsFile, Pin};
pub use gzip::Gunzip;
pub use local::LocalFile;

use mrlib_api::{
    InputFormat, TaskError,
    codec::{Codec, Coding},
};
use std::ops::Range;

/// Maximum number of unreadable records that the log of a task lists.
const UNREADABLE_LOGGED_MAX: u64 = 1000;

/// The bytes of a file, in chunks.
pub trait ByteSource: Send {
    /// Returns the length of the file.
    fn len(&self) -> u64;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the offset at which `next` continues.
    fn seek(&mut self, at: u64) -> Result<(), TaskError>;

    /// Returns the next chunk, verified. It is empty only at the end.
    fn next(&mut self) -> Result<&[u8], TaskError>;

    /// Returns the bytes of the stored file up to the position of `next`, for the progress.
    fn consumed(&self) -> u64;
}

/// One record, with its offset in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The offset of the first byte of the record in the file.
    pub offset: u64,
    /// The key, as the format defines it.
    pub key: &'a [u8],
    /// The value, as the format defines it.
    pub value: &'a [u8],
}

/// What to do after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Continue with the next record.
    Go,
    /// Stop at the end of this record.
    Stop,
}

/// Called for each record.
pub type Each<'a> = &'a mut dyn FnMut(Record<'_>) -> Result<Flow, TaskError>;

/// The records of one split.
pub trait RecordSource {
    /// Passes the records of the next chunk to `each`. Returns false at the end of the split.
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError>;

    /// Returns the offset at which the next record starts: the splits `start..position` and
    /// `position..end` together have the same records as this split. Valid between calls of `pump`;
    /// after a `Stop` it is the end of that record.
    fn position(&self) -> u64;

    /// Returns the bytes of the stored file that were read, for the progress.
    fn consumed(&self) -> u64;

    /// Returns the records that were skipped because they could not be read.
    fn unreadable(&self) -> &UnreadableRecords;
}

/// Records that could not be read.
#[derive(Debug, Default)]
pub struct UnreadableRecords {
    /// Number of records.
    pub records: u64,
    /// The offset of the last such record, and the error.
    pub last: Option<(u64, String)>,
}

/// How to read a split.
#[derive(Debug, Clone)]
pub struct SplitSpec {
    /// The path of the file, for errors and as the key of whole files.
    pub path: String,
    /// The split has the records that start in this range.
    pub range: Range<u64>,
    /// The input format.
    pub format: InputFormat,
    pub codec: Codec,
    /// The maximum length of a record.
    pub record_bytes_max: u64,
    /// Whether to skip records that cannot be read.
    pub skip_bad: bool,
}

/// Opens a split. A compressed file (by name or by `codec`) is decompressed, and can only be read
/// as a whole.
pub fn open_split(spec: SplitSpec, source: Box<dyn ByteSource>) -> Result<Box<dyn RecordSource>, TaskError> {
    let coding =
        spec.codec.coding_by_name(&spec.path).map_err(|error| TaskError::Fatal(error.to_string()))?;
    let (source, spec) = if coding == Coding::Gzip {
        if spec.range.start > 0 {
            let why = "a gzip file can only be read from its start: it must be one split".into();
            let offset = spec.range.start;
            return Err(TaskError::Record {
                source_path: spec.path,
                offset,
                line: None,
                why,
                unreadable: true,
            });
        }
        // Offsets are those of the decompressed bytes, whose number is unknown.
        let source: Box<dyn ByteSource> = Box::new(Gunzip::new(source, &spec.path));
        (source, SplitSpec { range: 0..u64::MAX, ..spec })
    } else {
        (source, spec)
    };
    Ok(match spec.format {
        InputFormat::Lines => Box::new(lines::LineRecords::new(spec, source, false)),
        InputFormat::KeyValueLines => Box::new(lines::LineRecords::new(spec, source, true)),
        InputFormat::Fixed { record, key } => Box::new(fixed::FixedRecords::new(spec, source, record, key)?),
        InputFormat::WholeFile => Box::new(whole_file::WholeFileRecords::new(spec, source)),
    })
}

impl SplitSpec {
    /// Counts a record that cannot be read, or fails if such records are not skipped.
    #[cold]
    fn skip_or_fail(
        &self,
        offset: u64,
        why: String,
        unreadable: &mut UnreadableRecords,
    ) -> Result<(), TaskError> {
        unreadable.last = Some((offset, why.clone()));
        let error =
            TaskError::Record { source_path: self.path.clone(), offset, line: None, why, unreadable: true };
        if !self.skip_bad {
            return Err(error);
        }
        unreadable.records += 1;
        if unreadable.records <= UNREADABLE_LOGGED_MAX {
            eprintln!("skipped: {error}");
        }
        Ok(())
    }

    fn too_long(&self) -> String {
        format!("longer than record.bytes.max = {}", self.record_bytes_max)
    }
}
