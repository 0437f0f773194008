//! The files for the output of a task: in the file system, in a local folder, or no files.
//!
//! A file is created with the first bytes. Bytes are buffered and written in large portions, so
//! that a record costs only a copy. A writer that is dropped without `finish` discards its file.

use crate::dfs_error::dfs_error;
use dfs_client::{Client, CreateOptions, FileWriter, OnAbandon, path::DfsPath};
use mrlib_api::TaskError;
use std::{fs::File, io::Write as _, path::PathBuf};
use tokio::runtime::Handle;

/// Bytes buffered before they are written.
const PORTION_BYTES: usize = 1 << 20;

/// Where pieces are written.
#[derive(Clone)]
pub enum Target {
    /// Nowhere, because the job has no output. Bytes are counted and dropped.
    None,
    /// The folder of the attempt in the file system.
    Dfs {
        /// The file system.
        client: Client,
        /// Runs the client. The caller must not be one of its threads.
        runtime: Handle,
        /// The folder for pieces.
        folder: DfsPath,
        /// The name of the output after the commit. The name of a piece is this name, a dot and the
        /// number of the piece.
        part: String,
        /// Number of replicas; None for the default of the NameNode.
        replication: Option<u32>,
    },
    /// A local file, which is the only piece.
    Local(PathBuf),
}

enum OpenPiece {
    None,
    Dfs(Box<FileWriter>),
    Local(File),
}

/// Writes the output of a task to pieces.
pub struct PieceWriter {
    target: Target,
    open: OpenPiece,
    pieces: Vec<String>,
    /// Bytes that are not written yet.
    portion: Vec<u8>,
    /// Number of bytes that were written.
    flushed: u64,
}

impl PieceWriter {
    /// Creates a writer to `target`.
    pub fn new(target: Target) -> Self {
        Self::continue_after(Vec::new(), target)
    }

    /// Creates a writer that continues after complete `pieces`: new pieces are numbered after them,
    /// and `finish` returns them first.
    pub fn continue_after(pieces: Vec<String>, target: Target) -> Self {
        Self { target, open: OpenPiece::None, pieces, portion: Vec::new(), flushed: 0 }
    }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> u64 {
        self.flushed + self.portion.len() as u64
    }

    /// Returns whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), TaskError> {
        if self.portion.len() + bytes.len() > PORTION_BYTES {
            return self.write_slow(bytes);
        }
        self.portion.extend_from_slice(bytes);
        Ok(())
    }

    #[cold]
    fn write_slow(&mut self, bytes: &[u8]) -> Result<(), TaskError> {
        self.flush_portion()?;
        if bytes.len() < PORTION_BYTES {
            self.portion.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_to_piece(bytes)
    }

    fn flush_portion(&mut self) -> Result<(), TaskError> {
        let mut portion = std::mem::take(&mut self.portion);
        if !portion.is_empty() {
            self.write_to_piece(&portion)?;
        }
        portion.clear();
        self.portion = portion;
        Ok(())
    }

    fn write_to_piece(&mut self, bytes: &[u8]) -> Result<(), TaskError> {
        if matches!(self.open, OpenPiece::None) {
            self.open_piece()?;
        }
        match (&mut self.open, &self.target) {
            (OpenPiece::Dfs(file), Target::Dfs { runtime, .. }) => {
                runtime.block_on(file.write(bytes)).map_err(dfs_error)?;
            }
            (OpenPiece::Local(file), Target::Local(path)) => {
                file.write_all(bytes).map_err(TaskError::io(format!("write {}", path.display())))?;
            }
            _ => {}
        }
        self.flushed += bytes.len() as u64;
        Ok(())
    }

    fn open_piece(&mut self) -> Result<(), TaskError> {
        match &self.target {
            Target::None => {}
            Target::Dfs { client, runtime, folder, part, replication } => {
                let piece = format!("{folder}/{part}.{}", self.pieces.len());
                let path = DfsPath::parse(&piece)
                    .map_err(|error| TaskError::Program(format!("output piece {piece}: {error}")))?;
                let options = CreateOptions {
                    replication: *replication,
                    make_parents: true,
                    on_abandon: OnAbandon::Delete,
                    ..CreateOptions::default()
                };
                let file = runtime.block_on(client.create(&path, options)).map_err(dfs_error)?;
                self.open = OpenPiece::Dfs(Box::new(file));
                self.pieces.push(piece);
            }
            Target::Local(path) => {
                let what = format!("create {}", path.display());
                self.open = OpenPiece::Local(File::create(path).map_err(TaskError::io(what))?);
                self.pieces.push(path.display().to_string());
            }
        }
        Ok(())
    }

    /// Closes the last piece. Returns the paths of all pieces in order. Pieces in the file system
    /// are then durable.
    pub fn finish(mut self) -> Result<Vec<String>, TaskError> {
        self.flush_portion()?;
        match (std::mem::replace(&mut self.open, OpenPiece::None), &self.target) {
            (OpenPiece::Dfs(file), Target::Dfs { runtime, .. }) => {
                runtime.block_on(file.close()).map_err(dfs_error)?;
            }
            (OpenPiece::Local(file), Target::Local(path)) => {
                file.sync_all().map_err(TaskError::io(format!("sync {}", path.display())))?;
            }
            _ => {}
        }
        Ok(std::mem::take(&mut self.pieces))
    }
}

impl Drop for PieceWriter {
    fn drop(&mut self) {
        // The client deletes the discarded file, for which it needs its runtime.
        if let (OpenPiece::Dfs(file), Target::Dfs { runtime, .. }) =
            (std::mem::replace(&mut self.open, OpenPiece::None), &self.target)
            && let Err(error) = runtime.block_on(file.abort())
        {
            tracing::debug!(%error, "cannot delete a discarded piece: its lease will expire");
        }
    }
}
