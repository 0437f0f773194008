//! The output of a task: records in an output format, written to pieces.
//!
//! A piece is a file that belongs to one attempt; it is not read before the commit of the job. A
//! task without output creates no piece, and the commit creates an empty part for it.

mod piece;

#[cfg(test)]
mod tests;

pub use piece::{PieceWriter, Target};

use crate::execution::OutputSink;
use mrlib_api::{OutputFormat, TaskError};

/// Maximum length of a key or value in the `KeyValue` format.
const FIELD_BYTES_MAX: usize = u32::MAX as usize;

/// Writes records in an output format to pieces.
pub struct RecordWriter {
    format: OutputFormat,
    pieces: PieceWriter,
}

impl RecordWriter {
    /// Creates a writer to `pieces` in `format`.
    pub fn new(format: OutputFormat, pieces: PieceWriter) -> Self {
        Self { format, pieces }
    }
}

impl OutputSink for RecordWriter {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        match self.format {
            OutputFormat::Text => {
                self.pieces.write(key)?;
                if !key.is_empty() && !value.is_empty() {
                    self.pieces.write(b"\t")?;
                }
                self.pieces.write(value)?;
                self.pieces.write(b"\n")
            }
            OutputFormat::KeyValue => {
                self.pieces.write(&field_length(key)?.to_le_bytes())?;
                self.pieces.write(&field_length(value)?.to_le_bytes())?;
                self.pieces.write(key)?;
                self.pieces.write(value)
            }
            OutputFormat::Raw => {
                self.pieces.write(key)?;
                self.pieces.write(value)
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.pieces.len()
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, TaskError> {
        self.pieces.finish()
    }
}

fn field_length(field: &[u8]) -> Result<u32, TaskError> {
    u32::try_from(field.len()).map_err(|_| {
        let length = field.len();
        TaskError::Program(format!(
            "a key or value of {length} bytes is too long for the key-value format: the limit is {FIELD_BYTES_MAX}"
        ))
    })
}
