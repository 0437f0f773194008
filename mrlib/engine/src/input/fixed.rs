//! Records of a fixed length, starting at the first byte of the file.

use super::{ByteSource, Each, Flow, Record, RecordSource, SplitSpec, UnreadableRecords};
use mrlib_api::TaskError;

pub(super) struct FixedRecords {
    spec: SplitSpec,
    source: Box<dyn ByteSource>,
    /// The length of a record.
    record: usize,
    /// The length of a key.
    key: usize,
    /// The offset of the next record.
    at: u64,
    /// The bytes of the next record that were read so far.
    carry: Vec<u8>,
    /// Whether the source must seek to the byte after `carry` before the next read.
    must_seek: bool,
    unreadable: UnreadableRecords,
}

impl FixedRecords {
    pub(super) fn new(
        spec: SplitSpec,
        source: Box<dyn ByteSource>,
        record: usize,
        key: usize,
    ) -> Result<Self, TaskError> {
        if record == 0 || key > record || record as u64 > spec.record_bytes_max {
            let text = format!(
                "records of {record} bytes with keys of {key} bytes: a record must have 1 to record.bytes.max = {} bytes, and its key at most as many",
                spec.record_bytes_max
            );
            return Err(TaskError::Program(text));
        }
        let at = spec.range.start.next_multiple_of(record as u64);
        Ok(Self {
            spec,
            source,
            record,
            key,
            at,
            carry: Vec::new(),
            must_seek: true,
            unreadable: UnreadableRecords::default(),
        })
    }
}

impl RecordSource for FixedRecords {
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError> {
        if self.at >= self.spec.range.end {
            return Ok(false);
        }
        if self.must_seek {
            self.source.seek(self.at)?;
            self.carry.clear();
            self.must_seek = false;
        }
        let mut rest = self.source.next()?;
        if rest.is_empty() {
            if !self.carry.is_empty() {
                let why =
                    format!("the file ends {} bytes into a record of {}", self.carry.len(), self.record);
                self.spec.skip_or_fail(self.at, why, &mut self.unreadable)?;
            }
            self.at = self.spec.range.end;
            return Ok(false);
        }
        while self.at < self.spec.range.end {
            let missing = self.record - self.carry.len();
            let Some((part, more)) = rest.split_at_checked(missing) else {
                self.carry.extend_from_slice(rest);
                return Ok(true);
            };
            rest = more;
            let bytes = if self.carry.is_empty() {
                part
            } else {
                self.carry.extend_from_slice(part);
                &self.carry
            };
            let (key, value) = bytes.split_at(self.key);
            let flow = each(Record { offset: self.at, key, value })?;
            self.carry.clear();
            self.at += self.record as u64;
            if flow == Flow::Stop {
                self.must_seek = true;
                break;
            }
        }
        Ok(self.at < self.spec.range.end)
    }

    fn position(&self) -> u64 {
        self.at.min(self.spec.range.end)
    }

    fn consumed(&self) -> u64 {
        self.source.consumed()
    }

    fn unreadable(&self) -> &UnreadableRecords {
        &self.unreadable
    }
}
