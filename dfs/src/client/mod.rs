//! What programs use to read and write the file system.
//!
//! [`Client`] is a cheap handle: clone it freely. Namespace calls are retried until the configured deadline with
//! the same request id. Data goes straight to and from DataNodes over the bulk protocol.
//!
//! Deliberately absent: caching of metadata or data. Every call asks the NameNode; every byte is verified.

mod error;
mod model;

pub use error::ClientError;
pub use model::*;

use crate::path::DfsPath;
use bytes::Bytes;
use std::path::Path;

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `host:port`.
    pub namenode: String,
    /// Who calls.
    pub user: String,
    /// This machine's name, as DataNodes give theirs.
    pub host: String,
    /// The `[client]` section.
    pub config: daemon::config::ClientConfig,
}

impl ClientOptions {
    /// The user from `FERMATA_USER` or `USER`, the host name from the system.
    pub fn new(namenode: impl Into<String>, config: daemon::config::ClientConfig) -> Self {
        let _ = (namenode.into(), config);
        todo!()
    }
}

/// A connection to one file system.
#[derive(Clone)]
pub struct Client;

/// Writes one file from start to end.
pub struct FileWriter;
/// Reads one file.
pub struct FileReader;
/// A block on this machine, mapped.
pub struct LocalBlock;

type Result<T> = std::result::Result<T, ClientError>;

#[expect(clippy::unused_async, unused_variables, reason = "signatures first")]
impl Client {
    /// Connects; fails within `connect_timeout`, naming `host:port`.
    pub async fn connect(options: ClientOptions) -> Result<Client> {
        todo!()
    }
    /// One file or folder.
    pub async fn stat(&self, path: &DfsPath) -> Result<FileStatus> {
        todo!()
    }
    /// Whether there is something at `path`.
    pub async fn exists(&self, path: &DfsPath) -> Result<bool> {
        todo!()
    }
    /// Everything in a folder, sorted by name; of a file, the file itself.
    pub async fn list(&self, path: &DfsPath) -> Result<Vec<FileStatus>> {
        todo!()
    }
    /// One page of a folder: at most `limit` entries (0: the server's choice) after the name `start_after`.
    pub async fn list_page(&self, path: &DfsPath, start_after: &str, limit: u32) -> Result<ListPage> {
        todo!()
    }
    /// What matches a pattern with `*`, `?`, `[..]`, `{a,b}`, sorted; nothing is an empty list.
    pub async fn glob(&self, pattern: &str) -> Result<Vec<FileStatus>> {
        todo!()
    }
    /// All files below `path` (or `path` itself, if a file), depth first, sorted.
    pub async fn walk(&self, path: &DfsPath) -> Result<Vec<FileStatus>> {
        todo!()
    }
    /// Makes a folder; with `parents`, also those above it, and one already there is fine.
    pub async fn mkdir(&self, path: &DfsPath, parents: bool) -> Result<()> {
        todo!()
    }
    /// Moves a file or folder.
    pub async fn rename(&self, from: &DfsPath, to: &DfsPath, overwrite: bool) -> Result<()> {
        todo!()
    }
    /// Deletes; says whether there was anything.
    pub async fn delete(&self, path: &DfsPath, recursive: bool) -> Result<bool> {
        todo!()
    }
    /// Sets the number of replicas of a file.
    pub async fn set_replication(&self, path: &DfsPath, replication: u32) -> Result<()> {
        todo!()
    }
    /// Sets attributes.
    pub async fn set_attributes(&self, path: &DfsPath, attributes: Attributes) -> Result<()> {
        todo!()
    }
    /// Sets a folder's quota; `None` in it lifts that limit.
    pub async fn set_quota(&self, path: &DfsPath, quota: Quota) -> Result<()> {
        todo!()
    }
    /// What lies at and below `path`.
    pub async fn usage(&self, path: &DfsPath) -> Result<Usage> {
        todo!()
    }
    /// Appends `sources` to `target` by metadata only; the sources go.
    pub async fn concat(&self, target: &DfsPath, sources: &[DfsPath]) -> Result<FileStatus> {
        todo!()
    }
    /// No commit of `scope` with a lower epoch is accepted from now on.
    pub async fn fence(&self, scope: &str, epoch: u64) -> Result<()> {
        todo!()
    }
    /// One atomic commit; says whether it had been done already.
    pub async fn commit(&self, commit: Commit) -> Result<bool> {
        todo!()
    }
    /// Checks everything below `path`.
    pub async fn fsck(&self, path: &DfsPath) -> Result<Fsck> {
        todo!()
    }
    /// The whole file system at a glance.
    pub async fn report(&self) -> Result<Report> {
        todo!()
    }
    /// Turns safemode on or off.
    pub async fn set_safemode(&self, on: bool) -> Result<SafemodeStatus> {
        todo!()
    }
    /// Starts, or with `cancel` stops, emptying a node; repeat to see how far it is.
    pub async fn drain(&self, node: &str, cancel: bool) -> Result<DrainStatus> {
        todo!()
    }
    /// The file and its blocks that hold `offset..offset + length`.
    pub async fn locate(
        &self,
        path: &DfsPath,
        offset: u64,
        length: u64,
    ) -> Result<(FileStatus, Vec<LocatedBlock>)> {
        todo!()
    }
    /// Creates a file to write.
    pub async fn create(&self, path: &DfsPath, options: CreateOptions) -> Result<FileWriter> {
        todo!()
    }
    /// Opens a closed file to write more at its end.
    pub async fn append(&self, path: &DfsPath) -> Result<FileWriter> {
        todo!()
    }
    /// Opens a file to read; its length is that at opening.
    pub async fn open(&self, path: &DfsPath) -> Result<FileReader> {
        todo!()
    }
    /// Copies a local file or a stream in; it appears whole or not at all.
    pub async fn put(
        &self,
        source: PutSource,
        to: &DfsPath,
        options: PutOptions,
        progress: &dyn Progress,
    ) -> Result<PutReport> {
        todo!()
    }
    /// Copies a file out to the local file `to`; it appears whole or not at all.
    pub async fn get(
        &self,
        from: &DfsPath,
        to: &Path,
        options: GetOptions,
        progress: &dyn Progress,
    ) -> Result<GetReport> {
        todo!()
    }
    /// Maps a replica on this machine, if there is one and `short_circuit` is on.
    pub async fn open_local_block(&self, block: &LocatedBlock) -> Result<Option<LocalBlock>> {
        todo!()
    }
}

#[expect(clippy::unused_async, unused_variables, reason = "signatures first")]
impl FileWriter {
    /// Appends `data`. Waits while a window of bytes is unacknowledged.
    pub async fn write(&mut self, data: &[u8]) -> Result<()> {
        todo!()
    }
    /// Bytes written so far, those before an append included.
    pub fn len(&self) -> u64 {
        todo!()
    }
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Finishes the file; when it returns, each block has a durable, reported replica.
    pub async fn close(self) -> Result<FileStatus> {
        todo!()
    }
    /// Finishes it and moves it to `to` in the same atomic step.
    pub async fn close_as(self, to: &DfsPath, overwrite: bool) -> Result<FileStatus> {
        todo!()
    }
    /// Gives up: a created file is deleted, an appended one stays as it was.
    pub async fn abort(self) -> Result<()> {
        todo!()
    }
}

#[expect(clippy::unused_async, unused_variables, reason = "signatures first")]
impl FileReader {
    /// The file as it was at opening.
    pub fn status(&self) -> &FileStatus {
        todo!()
    }
    /// Its length at opening.
    pub fn len(&self) -> u64 {
        todo!()
    }
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Where `next` goes on.
    pub fn position(&self) -> u64 {
        todo!()
    }
    /// Moves `next` to `offset` (beyond the end: the end).
    pub fn seek(&mut self, offset: u64) {
        todo!()
    }
    /// The next bytes, verified; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        todo!()
    }
    /// Fills `buffer` from `offset`; fewer bytes only at the end of the file.
    pub async fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        todo!()
    }
    /// Replicas that failed so far, with the reason.
    pub fn faults(&self) -> &[NodeFault] {
        todo!()
    }
}

#[expect(unused_variables, reason = "signatures first")]
impl LocalBlock {
    /// The block's bytes, not yet verified.
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
    /// Checks the chunks that `range` touches.
    pub fn verify(
        &self,
        range: std::ops::Range<u64>,
    ) -> std::result::Result<(), crate::checksum::ChecksumError> {
        todo!()
    }
}
