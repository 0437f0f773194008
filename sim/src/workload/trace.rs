//! What trace readers share: opening, plain or compressed, and saying where a trace is bad.

use flate2::read::GzDecoder;
use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
    rc::Rc,
};

/// A trace that cannot be used, and the line at which that shows.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TraceError {
    #[error("{path}: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{path}: no jobs in it")]
    Empty { path: String },
    #[error("{path}:{line}: {what}")]
    Bad { path: String, line: u64, what: String },
}

/// A trace being read.
pub(super) struct Source {
    path: String,
    /// Lines taken from it so far.
    line: Rc<Cell<u64>>,
}

/// Counts the lines that are taken through it, byte by byte.
pub(super) struct Counted {
    inner: Box<dyn Read>,
    line: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in &buffer[..read] {
            self.line.set(self.line.get() + u64::from(*byte == b'\n'));
        }
        Ok(read)
    }
}

impl Source {
    /// Opens a file; one that ends in `.gz` is unpacked on the way. It is read as a stream, however large.
    pub(super) fn open(path: &Path) -> Result<(Self, Counted), TraceError> {
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|source| TraceError::Unreadable { path: name.clone(), source })?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        let buffered = BufReader::with_capacity(1 << 16, file);
        let inner: Box<dyn Read> = if packed {
            Box::new(BufReader::with_capacity(1 << 16, GzDecoder::new(buffered)))
        } else {
            Box::new(buffered)
        };
        let line = Rc::new(Cell::new(0));
        Ok((Self { path: name, line: line.clone() }, Counted { inner, line }))
    }

    /// Something that is at hand already.
    pub(super) fn named(name: &str) -> Self {
        Self { path: name.to_owned(), line: Rc::new(Cell::new(0)) }
    }

    /// The trace is bad at a line.
    pub(super) fn bad(&self, line: u64, what: impl Into<String>) -> TraceError {
        TraceError::Bad { path: self.path.clone(), line, what: what.into() }
    }

    /// The trace is bad where it has been read to.
    pub(super) fn bad_here(&self, what: impl Into<String>) -> TraceError {
        self.bad(self.line.get() + 1, what)
    }

    /// It could not be read further.
    pub(super) fn unreadable(&self, source: io::Error) -> TraceError {
        TraceError::Unreadable { path: self.path.clone(), source }
    }

    /// There is nothing in it.
    pub(super) fn empty(&self) -> TraceError {
        TraceError::Empty { path: self.path.clone() }
    }
}
