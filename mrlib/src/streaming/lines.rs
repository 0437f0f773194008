//! Lines out of chunks, and pairs out of lines.

use crate::error::TaskError;

/// Cuts a stream of chunks into lines. The last needs no newline at its end.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Of a line whose end has not come.
    begun: Vec<u8>,
}

type Take<'a> = dyn FnMut(&[u8]) -> Result<(), TaskError> + 'a;

impl Lines {
    /// Hands on the lines that end in this chunk.
    pub(super) fn take(&mut self, mut chunk: &[u8], take: &mut Take<'_>) -> Result<(), TaskError> {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            if self.begun.is_empty() {
                take(&chunk[..end])?;
            } else {
                self.begun.extend_from_slice(&chunk[..end]);
                take(&self.begun)?;
                self.begun.clear();
            }
            chunk = &chunk[end + 1..];
        }
        self.begun.extend_from_slice(chunk);
        Ok(())
    }

    /// Hands on a last line without an end.
    pub(super) fn end(&mut self, take: &mut Take<'_>) -> Result<(), TaskError> {
        let last = std::mem::take(&mut self.begun);
        if last.is_empty() { Ok(()) } else { take(&last) }
    }
}

/// Key and value: cut at the first tab; a line without one is all key.
pub(super) fn cut(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == b'\t') {
        Some(tab) => (&line[..tab], &line[tab + 1..]),
        None => (line, b""),
    }
}
