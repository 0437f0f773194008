//! Decompresses a gzip file with one or more members. Zeros after the last member, which tapes and
//! some tools add, are ignored.

use super::ByteSource;
use flate2::bufread::GzDecoder;
use mrlib_api::TaskError;
use std::{
    io::{self, BufRead, Read},
    mem,
};

const CHUNK_BYTES: usize = 256 << 10;

/// The decompressed bytes of a gzip source. They can only be read forward: a seek moves forward, or
/// back within the last chunk.
pub struct Gunzip {
    /// The decoder of the current member, replaced between two members.
    decoder: GzDecoder<CompressedInput>,
    at_end: bool,
    /// Whether a complete member was read.
    any_member: bool,
    path: String,
    buffer: Vec<u8>,
    /// The offset of the first byte of `buffer`.
    offset: u64,
    /// The offset of the next byte to return.
    at: u64,
}

impl Gunzip {
    /// Decompresses a source, which must be at its start.
    pub fn new(source: Box<dyn ByteSource>, path: &str) -> Self {
        let decoder = GzDecoder::new(CompressedInput { source: Some(source), chunk: Vec::new(), at: 0 });
        Self {
            decoder,
            at_end: false,
            any_member: false,
            path: path.to_owned(),
            buffer: Vec::new(),
            offset: 0,
            at: 0,
        }
    }

    /// Decompresses the next chunk. Returns false at the end.
    fn fill(&mut self) -> Result<bool, TaskError> {
        self.offset += self.buffer.len() as u64;
        self.buffer.resize(CHUNK_BYTES, 0);
        let mut filled = 0;
        while filled < CHUNK_BYTES && !self.at_end {
            match self.decoder.read(&mut self.buffer[filled..]) {
                Ok(0) => self.next_member()?,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.decode_error(error)),
            }
        }
        self.buffer.truncate(filled);
        Ok(filled > 0)
    }

    /// Continues with the next member, if there is one.
    fn next_member(&mut self) -> Result<(), TaskError> {
        self.any_member = true;
        let nothing = CompressedInput { source: None, chunk: Vec::new(), at: 0 };
        let mut stored = mem::replace(&mut self.decoder, GzDecoder::new(nothing)).into_inner();
        let at_end = stored.skip_zeros();
        self.decoder = GzDecoder::new(stored);
        self.at_end = at_end.map_err(|error| self.decode_error(error))?;
        Ok(())
    }

    fn decode_error(&self, error: io::Error) -> TaskError {
        let offset = self.consumed();
        match error.downcast::<TaskError>() {
            Ok(own) => own,
            Err(error) => {
                let why = match error.kind() {
                    // The header of another member has not been read.
                    _ if self.any_member && self.decoder.header().is_none() => {
                        "bytes that are not gzip follow the last member"
                    }
                    io::ErrorKind::UnexpectedEof => "the gzip stream ends early",
                    _ if self.decoder.header().is_some() => "the gzip stream is damaged",
                    _ => "it is not a gzip file",
                };
                // The file system checks its blocks, so another attempt would read the same.
                TaskError::Fatal(format!(
                    "input {} cannot be decompressed at byte {offset}: {why}; replace the file, or leave it out",
                    self.path
                ))
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
        let consumed = stored.source.as_ref().map_or(0, |source| source.consumed());
        consumed - (stored.chunk.len() - stored.at) as u64
    }
}

/// Adapts a source to `BufRead`.
struct CompressedInput {
    /// None for an empty source.
    source: Option<Box<dyn ByteSource>>,
    chunk: Vec<u8>,
    at: usize,
}

impl CompressedInput {
    /// Skips zeros. Returns true if nothing follows them.
    fn skip_zeros(&mut self) -> io::Result<bool> {
        loop {
            let chunk = self.fill_buf()?;
            let zeros = chunk.iter().take_while(|byte| **byte == 0).count();
            let (at_end, other) = (chunk.is_empty(), zeros < chunk.len());
            self.consume(zeros);
            if at_end || other {
                return Ok(at_end);
            }
        }
    }
}

impl Read for CompressedInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for CompressedInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len()
            && let Some(source) = &mut self.source
        {
            let next = source.next().map_err(io::Error::other)?;
            self.chunk.clear();
            self.chunk.extend_from_slice(next);
            self.at = 0;
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, length: usize) {
        self.at += length;
    }
}
