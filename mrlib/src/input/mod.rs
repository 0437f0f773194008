//! Input: the bytes of a file, and how they are cut into records.

use crate::error::TaskError;

/// The bytes of one file, from a place on, in stretches as they come.
pub trait ByteSource: Send {
    /// How long the file is.
    fn len(&self) -> u64;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `next` goes on.
    fn seek(&mut self, at: u64) -> Result<(), TaskError>;

    /// The next stretch, verified; empty only at the end.
    fn next(&mut self) -> Result<&[u8], TaskError>;
}

/// A file of this machine, mapped.
#[derive(Debug)]
pub struct LocalFile {}

impl LocalFile {
    /// Opens it.
    pub fn open(_path: &std::path::Path) -> Result<Self, TaskError> {
        todo!()
    }
}

/// A file of the distributed file system: blocks on this machine are mapped, others come over the network.
pub struct DfsFile {}

impl DfsFile {
    /// Opens it. To be called, as all of this, outside of async code; `runtime` runs the client's.
    pub fn open(
        _client: dfs::client::Client,
        _runtime: tokio::runtime::Handle,
        _path: dfs::path::DfsPath,
    ) -> Result<Self, TaskError> {
        todo!()
    }
}
