//! Decompresses a gzip file of one or more members.

use super::ByteSource;
use crate::error::TaskError;
use flate2::read::MultiGzDecoder;
use std::io::{self, Read};

const STRETCH_BYTES: usize = 256 << 10;

/// The decompressed bytes of another source. They can only be read from the start, once; a seek goes forward by reading,
/// or back within the last stretch.
pub struct Gunzip {
    decoder: MultiGzDecoder<Stored>,
    path: String,
    buffer: Vec<u8>,
    /// Of `buffer`'s first byte.
    offset: u64,
    at: u64,
}

impl Gunzip {
    /// Over a source at its start.
    pub fn new(source: Box<dyn ByteSource>, path: &str) -> Self {
        let decoder = MultiGzDecoder::new(Stored { source, left: Vec::new(), at: 0 });
        Self { decoder, path: path.to_owned(), buffer: Vec::new(), offset: 0, at: 0 }
    }

    /// Decompresses the next stretch; false at the end.
    fn fill(&mut self) -> Result<bool, TaskError> {
        self.offset += self.buffer.len() as u64;
        self.buffer.resize(STRETCH_BYTES, 0);
        let mut filled = 0;
        while filled < STRETCH_BYTES {
            match self.decoder.read(&mut self.buffer[filled..]) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.buffer.truncate(filled);
        Ok(filled > 0)
    }

    fn failed(&self, error: io::Error) -> TaskError {
        let offset = self.consumed();
        match error.downcast::<TaskError>() {
            Ok(own) => own,
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "the gzip stream ends early",
                    _ => "it is not gzip",
                };
                TaskError::Damaged { file: self.path.clone(), offset, why }
            }
        }
    }
}

impl ByteSource for Gunzip {
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn seek(&mut self, at: u64) -> Result<(), TaskError> {
        assert!(at >= self.offset, "gzip is read forward");
        while at > self.offset + self.buffer.len() as u64 && self.fill()? {}
        self.at = at.min(self.offset + self.buffer.len() as u64);
        Ok(())
    }

    fn next(&mut self) -> Result<&[u8], TaskError> {
        if self.at == self.offset + self.buffer.len() as u64 {
            self.fill()?;
        }
        let from = (self.at - self.offset) as usize;
        self.at = self.offset + self.buffer.len() as u64;
        Ok(&self.buffer[from..])
    }

    fn consumed(&self) -> u64 {
        let stored = self.decoder.get_ref();
        stored.source.consumed() - (stored.left.len() - stored.at) as u64
    }
}

/// A source as a `Read`.
struct Stored {
    source: Box<dyn ByteSource>,
    left: Vec<u8>,
    at: usize,
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.left.len() {
            let next = self.source.next().map_err(io::Error::other)?;
            self.left.clear();
            self.left.extend_from_slice(next);
            self.at = 0;
        }
        let length = buffer.len().min(self.left.len() - self.at);
        buffer[..length].copy_from_slice(&self.left[self.at..][..length]);
        self.at += length;
        Ok(length)
    }
}
