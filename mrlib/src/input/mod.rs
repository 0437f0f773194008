//! Input: the bytes of a file ([`ByteSource`]), and how a split of them is cut into records ([`RecordSource`]).
//!
//! Invariant: whatever the splits of a file, each of its records is read by exactly one of them. A split has the
//! records that *start* in it; the last may end beyond it.

mod codec;
mod dfs_file;
mod fixed;
mod gzip;
mod lines;
mod local;
mod whole_file;

#[cfg(test)]
mod tests;

pub use codec::{Codec, Coding, MAGIC_BYTES, Unreadable};
pub use dfs_file::{DfsFile, Pin};
pub use gzip::Gunzip;
pub use local::LocalFile;

use crate::{error::TaskError, job::InputFormat};
use std::ops::Range;

/// Unreadable records that are named in a task's log.
const SKIPPED_NAMED_MAX: u64 = 1000;

/// The bytes of one file, from a place on, in stretches as they come.
pub trait ByteSource: Send {
    /// How long the file is.
    fn len(&self) -> u64;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets where `next` goes on.
    fn seek(&mut self, at: u64) -> Result<(), TaskError>;

    /// The next stretch, verified; empty only at the end.
    fn next(&mut self) -> Result<&[u8], TaskError>;

    /// Bytes of the file as it is stored up to where `next` goes on (for progress).
    fn consumed(&self) -> u64;
}

/// One record: the place of its first byte in the file, its key and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Of its first byte.
    pub offset: u64,
    /// As its format says.
    pub key: &'a [u8],
    /// As its format says.
    pub value: &'a [u8],
}

/// After a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Give the next.
    Go,
    /// Stop here, at this record's end.
    Stop,
}

/// What is done with each record.
pub type Each<'a> = &'a mut dyn FnMut(Record<'_>) -> Result<Flow, TaskError>;

/// The records of one split.
pub trait RecordSource {
    /// Gives the records of the next stretch to `each`; false when there are no more in the split.
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError>;

    /// Where the next record starts: `start..position` and `position..end` are two splits with the same records as
    /// this one. To be asked between pumps; after a `Stop` it is the end of that record.
    fn position(&self) -> u64;

    /// Bytes of the file as it is stored read so far (for progress).
    fn consumed(&self) -> u64;

    /// Records passed over because they could not be read.
    fn skipped(&self) -> &Skipped;
}

/// Records that could not be read.
#[derive(Debug, Default)]
pub struct Skipped {
    /// How many.
    pub records: u64,
    /// The offset of the last one, and why.
    pub last: Option<(u64, String)>,
}

/// What is known of a split.
#[derive(Debug, Clone)]
pub struct SplitSpec {
    /// The file, to be named in errors, and as the key of whole-file records.
    pub path: String,
    /// The records that start here.
    pub range: Range<u64>,
    /// How it is cut.
    pub format: InputFormat,
    /// How it is decoded.
    pub codec: Codec,
    /// A record may not be longer.
    pub record_bytes_max: u64,
    /// Pass over what cannot be read, rather than fail.
    pub skip_bad: bool,
}

/// Opens a split. What is compressed by its name or by `codec` is decompressed; it can only be read as a whole.
pub fn open_split(spec: SplitSpec, source: Box<dyn ByteSource>) -> Result<Box<dyn RecordSource>, TaskError> {
    let coding = spec.codec.by_name(&spec.path).map_err(|error| TaskError::Fatal(error.to_string()))?;
    let (source, spec) = if coding == Coding::Gzip {
        if spec.range.start > 0 {
            let why = "gzip can only be read from its start: give it as one split".into();
            let offset = spec.range.start;
            return Err(TaskError::Record { source_path: spec.path, offset, line: None, why });
        }
        // Offsets are those of the decompressed bytes, of which nobody knows how many there are.
        let source: Box<dyn ByteSource> = Box::new(Gunzip::new(source, &spec.path));
        (source, SplitSpec { range: 0..u64::MAX, ..spec })
    } else {
        (source, spec)
    };
    Ok(match spec.format {
        InputFormat::Lines => Box::new(lines::Lines::new(spec, source, false)),
        InputFormat::KeyValueLines => Box::new(lines::Lines::new(spec, source, true)),
        InputFormat::Fixed { record, key } => Box::new(fixed::Fixed::new(spec, source, record, key)?),
        InputFormat::WholeFile => Box::new(whole_file::Whole::new(spec, source)),
    })
}

impl SplitSpec {
    /// What to do about a record that cannot be read.
    #[cold]
    fn bad(&self, offset: u64, why: String, skipped: &mut Skipped) -> Result<(), TaskError> {
        skipped.last = Some((offset, why.clone()));
        let error = TaskError::Record { source_path: self.path.clone(), offset, line: None, why };
        if !self.skip_bad {
            return Err(error);
        }
        skipped.records += 1;
        if skipped.records <= SKIPPED_NAMED_MAX {
            eprintln!("skipped: {error}");
        }
        Ok(())
    }

    fn too_long(&self) -> String {
        format!("longer than record.bytes.max = {}", self.record_bytes_max)
    }
}
