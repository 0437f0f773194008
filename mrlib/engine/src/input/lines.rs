//! Lines that end with `\n`, `\r\n` or the end of the file.
//!
//! A split that does not begin at byte 0 of the file skips everything up to the first newline at or
//! after `start - 1`. If a line starts exactly at `start`, this is the newline before it.

use super::{ByteSource, Each, Flow, Record, RecordSource, SplitSpec, UnreadableRecords};
use memchr::memchr;
use mrlib_api::TaskError;

pub(super) struct LineRecords {
    spec: SplitSpec,
    source: Box<dyn ByteSource>,
    /// Whether lines are divided at the first tab.
    key_value: bool,
    /// The offset of the next line.
    at: u64,
    /// The bytes of the next line that were read so far.
    carry: Vec<u8>,
    /// The number of bytes of the next line that were read so far; more than in `carry` if the line
    /// is too long.
    bytes_seen: u64,
    /// Whether the source must seek to `at + bytes_seen` before the next read.
    must_seek: bool,
    at_end: bool,
    unreadable: UnreadableRecords,
}

impl LineRecords {
    pub(super) fn new(spec: SplitSpec, source: Box<dyn ByteSource>, key_value: bool) -> Self {
        let (at, carry) = (spec.range.start, Vec::new());
        let at_end = at >= spec.range.end;
        Self {
            spec,
            source,
            key_value,
            at,
            carry,
            bytes_seen: 0,
            must_seek: true,
            at_end,
            unreadable: UnreadableRecords::default(),
        }
    }

    /// Seeks to the first line that starts in the split.
    fn seek_first_line(&mut self) -> Result<(), TaskError> {
        let mut at = self.spec.range.start - 1;
        self.source.seek(at)?;
        while at < self.spec.range.end {
            let chunk = self.source.next()?;
            if let Some(newline) = memchr(b'\n', chunk) {
                self.at = at + newline as u64 + 1;
                self.at_end = self.at >= self.spec.range.end;
                return Ok(());
            }
            if chunk.is_empty() {
                break;
            }
            at += chunk.len() as u64;
        }
        (self.at, self.at_end) = (self.spec.range.end, true);
        Ok(())
    }

    fn reposition(&mut self) -> Result<(), TaskError> {
        if self.at == self.spec.range.start && self.at > 0 {
            self.seek_first_line()?;
        }
        self.must_seek = false;
        self.source.seek(self.at)
    }
}

/// Passes a line without its line ending to `each`.
#[inline]
fn emit_line(key_value: bool, offset: u64, line: &[u8], each: Each<'_>) -> Result<Flow, TaskError> {
    if !key_value {
        return each(Record { offset, key: &offset.to_be_bytes(), value: line });
    }
    let (key, value) = match memchr(b'\t', line) {
        Some(tab) => (&line[..tab], &line[tab + 1..]),
        None => (line, &[][..]),
    };
    each(Record { offset, key, value })
}

#[inline]
fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl RecordSource for LineRecords {
    fn pump(&mut self, each: Each<'_>) -> Result<bool, TaskError> {
        if self.must_seek && !self.at_end {
            self.reposition()?;
        }
        if self.at_end {
            return Ok(false);
        }
        let limit = self.spec.record_bytes_max;
        let chunk = self.source.next()?;
        let mut rest = chunk;
        while !rest.is_empty() {
            let Some(newline) = memchr(b'\n', rest) else { break };
            let (line, offset, length) = (&rest[..newline], self.at, self.bytes_seen + newline as u64);
            rest = &rest[newline + 1..];
            self.at += length + 1;
            self.at_end = self.at >= self.spec.range.end;
            let line = if length > limit.saturating_add(1) {
                None
            } else if self.bytes_seen > 0 {
                self.carry.extend_from_slice(line);
                Some(without_return(&self.carry))
            } else {
                Some(without_return(line))
            };
            let flow = if let Some(line) = line.filter(|line| line.len() as u64 <= limit) {
                emit_line(self.key_value, offset, line, each)?
            } else {
                self.spec.skip_or_fail(offset, self.spec.too_long(), &mut self.unreadable)?;
                Flow::Go
            };
            self.carry.clear();
            self.bytes_seen = 0;
            if flow == Flow::Stop {
                self.must_seek = true;
                return Ok(!self.at_end);
            }
            if self.at_end {
                return Ok(false);
            }
        }
        if !chunk.is_empty() {
            self.bytes_seen += rest.len() as u64;
            // One more byte is allowed, for a `\r`, which does not count.
            if self.bytes_seen <= limit.saturating_add(1) {
                self.carry.extend_from_slice(rest);
            } else if !self.spec.skip_bad {
                self.spec.skip_or_fail(self.at, self.spec.too_long(), &mut self.unreadable)?;
            } else {
                self.carry = Vec::new();
            }
            return Ok(true);
        }
        // The file ends, perhaps with a line without a line ending.
        self.at_end = true;
        let (offset, length) = (self.at, self.bytes_seen);
        self.at += length;
        if length > limit {
            self.spec.skip_or_fail(offset, self.spec.too_long(), &mut self.unreadable)?;
        } else if length > 0 {
            emit_line(self.key_value, offset, &self.carry, each)?;
        }
        Ok(false)
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
