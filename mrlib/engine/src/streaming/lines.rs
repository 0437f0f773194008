//! Splits chunks into lines, and lines into pairs.

use memchr::memchr;
use mrlib_api::TaskError;

/// Splits a stream of chunks into lines. The last line needs no newline.
#[derive(Debug)]
pub(super) struct LineSplitter {
    /// The start of a line whose end was not read yet.
    partial_line: Vec<u8>,
    /// The maximum length of a line.
    bytes_max: u64,
}

type LineSink<'a> = dyn FnMut(&[u8]) -> Result<(), TaskError> + 'a;

impl LineSplitter {
    /// Creates a splitter for lines of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { partial_line: Vec::new(), bytes_max }
    }

    /// Passes the lines that end in this chunk to `take`.
    pub(super) fn push_chunk(&mut self, mut chunk: &[u8], take: &mut LineSink<'_>) -> Result<(), TaskError> {
        while let Some(end) = memchr(b'\n', chunk) {
            if self.partial_line.is_empty() {
                take(&chunk[..end])?;
            } else {
                self.extend_partial_line(&chunk[..end])?;
                take(&self.partial_line)?;
                self.partial_line.clear();
            }
            chunk = &chunk[end + 1..];
        }
        self.extend_partial_line(chunk)
    }

    fn extend_partial_line(&mut self, part: &[u8]) -> Result<(), TaskError> {
        if (self.partial_line.len() + part.len()) as u64 > self.bytes_max {
            let text = format!(
                "the program wrote a line longer than record.bytes.max = {}: write shorter lines, or set it higher",
                self.bytes_max
            );
            // This is not an error of the current record, which must not be skipped because of it.
            return Err(TaskError::io("read the output of the program")(std::io::Error::other(text)));
        }
        self.partial_line.extend_from_slice(part);
        Ok(())
    }

    /// Passes a last line without a newline to `take`.
    pub(super) fn finish(&mut self, take: &mut LineSink<'_>) -> Result<(), TaskError> {
        let last = std::mem::take(&mut self.partial_line);
        if last.is_empty() { Ok(()) } else { take(&last) }
    }
}

/// Splits a line at the first tab into key and value. A line without a tab is a key.
pub(super) fn split_pair(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b'\t', line) {
        Some(tab) => (&line[..tab], &line[tab + 1..]),
        None => (line, b""),
    }
}
