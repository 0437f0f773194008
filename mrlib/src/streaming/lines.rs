//! Lines out of chunks, and pairs out of lines.

use crate::error::TaskError;
use memchr::memchr;

/// Cuts a stream of chunks into lines. The last needs no newline at its end.
#[derive(Debug)]
pub(super) struct Lines {
    /// Of a line whose end has not come.
    partial_line: Vec<u8>,
    /// A line may not be longer.
    bytes_max: u64,
}

type LineSink<'a> = dyn FnMut(&[u8]) -> Result<(), TaskError> + 'a;

impl Lines {
    /// Lines of so many bytes at the most.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { partial_line: Vec::new(), bytes_max }
    }

    /// Hands on the lines that end in this chunk.
    pub(super) fn feed(&mut self, mut chunk: &[u8], take: &mut LineSink<'_>) -> Result<(), TaskError> {
        while let Some(end) = memchr(b'\n', chunk) {
            if self.partial_line.is_empty() {
                take(&chunk[..end])?;
            } else {
                self.begin(&chunk[..end])?;
                take(&self.partial_line)?;
                self.partial_line.clear();
            }
            chunk = &chunk[end + 1..];
        }
        self.begin(chunk)
    }

    fn begin(&mut self, part: &[u8]) -> Result<(), TaskError> {
        if (self.partial_line.len() + part.len()) as u64 > self.bytes_max {
            let words = format!(
                "the program wrote a line longer than record.bytes.max = {}: it must end its lines",
                self.bytes_max
            );
            // Not of the record at hand, so not to be skipped with it.
            return Err(TaskError::io("read its output")(std::io::Error::other(words)));
        }
        self.partial_line.extend_from_slice(part);
        Ok(())
    }

    /// Hands on a last line without an end.
    pub(super) fn end(&mut self, take: &mut LineSink<'_>) -> Result<(), TaskError> {
        let last = std::mem::take(&mut self.partial_line);
        if last.is_empty() { Ok(()) } else { take(&last) }
    }
}

/// Key and value: cut at the first tab; a line without one is all key.
pub(super) fn cut(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b'\t', line) {
        Some(tab) => (&line[..tab], &line[tab + 1..]),
        None => (line, b""),
    }
}
