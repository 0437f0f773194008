//! The format with one record per file. The record belongs to the split with the first byte.

use super::{ByteSource, Each, Record, RecordSource, Skipped, SplitSpec};
use mrlib_api::TaskError;

pub(super) struct Whole {
    spec: SplitSpec,
    source: Box<dyn ByteSource>,
    contents: Vec<u8>,
    over: bool,
    skipped: Skipped,
}

impl Whole {
    pub(super) fn new(spec: SplitSpec, source: Box<dyn ByteSource>) -> Self {
        let over = spec.range.start > 0;
        Self { spec, source, contents: Vec::new(), over, skipped: Skipped::default() }
    }
}

impl RecordSource for Whole {
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError> {
        if self.over {
            return Ok(false);
        }
        let stretch = self.source.next()?;
        if stretch.is_empty() {
            self.over = true;
            each(Record { offset: 0, key: self.spec.path.as_bytes(), value: &self.contents })?;
            self.contents = Vec::new();
        } else if (self.contents.len() + stretch.len()) as u64 > self.spec.record_bytes_max {
            self.over = true;
            self.spec.bad(0, self.spec.too_long(), &mut self.skipped)?;
        } else {
            self.contents.extend_from_slice(stretch);
        }
        Ok(!self.over)
    }

    fn position(&self) -> u64 {
        if self.over { self.spec.range.end } else { self.spec.range.start }
    }

    fn consumed(&self) -> u64 {
        self.source.consumed()
    }

    fn skipped(&self) -> &Skipped {
        &self.skipped
    }
}
