//! The format with one record per file. The record belongs to the split with the first byte.

use super::{ByteSource, Each, Record, RecordSource, SplitSpec, UnreadableRecords};
use mrlib_api::TaskError;

pub(super) struct WholeFileRecords {
    spec: SplitSpec,
    source: Box<dyn ByteSource>,
    contents: Vec<u8>,
    is_done: bool,
    unreadable: UnreadableRecords,
}

impl WholeFileRecords {
    pub(super) fn new(spec: SplitSpec, source: Box<dyn ByteSource>) -> Self {
        let is_done = spec.range.start > 0;
        Self { spec, source, contents: Vec::new(), is_done, unreadable: UnreadableRecords::default() }
    }
}

impl RecordSource for WholeFileRecords {
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError> {
        if self.is_done {
            return Ok(false);
        }
        let chunk = self.source.next()?;
        if chunk.is_empty() {
            self.is_done = true;
            each(Record { offset: 0, key: self.spec.path.as_bytes(), value: &self.contents })?;
            self.contents = Vec::new();
        } else if (self.contents.len() + chunk.len()) as u64 > self.spec.record_bytes_max {
            self.is_done = true;
            self.spec.skip_or_fail(0, self.spec.too_long(), &mut self.unreadable)?;
        } else {
            self.contents.extend_from_slice(chunk);
        }
        Ok(!self.is_done)
    }

    fn position(&self) -> u64 {
        if self.is_done { self.spec.range.end } else { self.spec.range.start }
    }

    fn consumed(&self) -> u64 {
        self.source.consumed()
    }

    fn unreadable(&self) -> &UnreadableRecords {
        &self.unreadable
    }
}
