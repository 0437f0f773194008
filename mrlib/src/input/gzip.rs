//! Decompresses a gzip file of one or more members. Zeros behind the last, as tapes and some tools leave them, are
//! passed over.

use super::ByteSource;
use crate::error::TaskError;
use flate2::bufread::GzDecoder;
use std::{
    io::{self, BufRead, Read},
    mem,
};

const CHUNK_BYTES: usize = 256 << 10;

/// The decompressed bytes of another source. They can only be read from the start, once; a seek goes forward by reading,
/// or back within the last stretch.
pub struct Gunzip {
    /// Of the current member; between two it is being replaced.
    decoder: GzDecoder<Stored>,
    over: bool,
    /// A whole member has been read.
    any_member: bool,
    path: String,
    buffer: Vec<u8>,
    /// Of `buffer`'s first byte.
    offset: u64,
    at: u64,
}

impl Gunzip {
    /// Over a source at its start.
    pub fn new(source: Box<dyn ByteSource>, path: &str) -> Self {
        let decoder = GzDecoder::new(Stored { source: Some(source), left: Vec::new(), at: 0 });
        Self {
            decoder,
            over: false,
            any_member: false,
            path: path.to_owned(),
            buffer: Vec::new(),
            offset: 0,
            at: 0,
        }
    }

    /// Decompresses the next stretch; false at the end.
    fn fill(&mut self) -> Result<bool, TaskError> {
        self.offset += self.buffer.len() as u64;
        self.buffer.resize(CHUNK_BYTES, 0);
        let mut filled = 0;
        while filled < CHUNK_BYTES && !self.over {
            match self.decoder.read(&mut self.buffer[filled..]) {
                Ok(0) => self.next_member()?,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.buffer.truncate(filled);
        Ok(filled > 0)
    }

    /// At a member's end: goes to the next, if there is one.
    fn next_member(&mut self) -> Result<(), TaskError> {
        self.any_member = true;
        let nothing = Stored { source: None, left: Vec::new(), at: 0 };
        let mut stored = mem::replace(&mut self.decoder, GzDecoder::new(nothing)).into_inner();
        let over = stored.skip_zeros();
        self.decoder = GzDecoder::new(stored);
        self.over = over.map_err(|error| self.failed(error))?;
        Ok(())
    }

    fn failed(&self, error: io::Error) -> TaskError {
        let offset = self.consumed();
        match error.downcast::<TaskError>() {
            Ok(own) => own,
            Err(error) => {
                let why = match error.kind() {
                    // No next member has begun.
                    _ if self.any_member && self.decoder.header().is_none() => {
                        "bytes that are not gzip follow its last member"
                    }
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
        let consumed = stored.source.as_ref().map_or(0, |source| source.consumed());
        consumed - (stored.left.len() - stored.at) as u64
    }
}

/// A source as a `BufRead`.
struct Stored {
    /// None: nothing comes.
    source: Option<Box<dyn ByteSource>>,
    left: Vec<u8>,
    at: usize,
}

impl Stored {
    /// Passes over zeros; true if nothing is behind them.
    fn skip_zeros(&mut self) -> io::Result<bool> {
        loop {
            let left = self.fill_buf()?;
            let zeros = left.iter().take_while(|byte| **byte == 0).count();
            let (over, other) = (left.is_empty(), zeros < left.len());
            self.consume(zeros);
            if over || other {
                return Ok(over);
            }
        }
    }
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Stored {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.left.len()
            && let Some(source) = &mut self.source
        {
            let next = source.next().map_err(io::Error::other)?;
            self.left.clear();
            self.left.extend_from_slice(next);
            self.at = 0;
        }
        Ok(&self.left[self.at..])
    }

    fn consume(&mut self, length: usize) {
        self.at += length;
    }
}
