//! A file that this client has open for writing: its lease, and its blocks that are not committed
//! yet.

use super::call::{Backoff, Operation};
use super::lease::LeaseGuard;
use super::namespace::request_id;
use super::pipeline::WrittenBlock;
use super::rpc;
use super::{Client, CreateOptions, FileStatus, LocatedBlock, NodeFault, OnAbandon, PutReport, Result, wire};
use crate::error::Kind;
use crate::ids::{BlockId, FileId};
use crate::path::DfsPath;
use proto::dfs as pb;
use std::time::Instant;

pub(super) struct OpenFile {
    pub(super) client: Client,
    pub(super) path: DfsPath,
    pub(super) block_size: u64,
    /// Length of the file before this writer opened it.
    pub(super) length_before: u64,
    /// Nodes that failed during this write.
    pub(super) faults: Vec<NodeFault>,
    file_id: FileId,
    created: bool,
    /// Written blocks that are not reported to the NameNode yet.
    commits: Vec<pb::BlockLength>,
    /// Allocated blocks that are neither committed nor abandoned, in order.
    in_flight: Vec<BlockId>,
    /// The number of replicas of each written block.
    replicas: Vec<(BlockId, u32)>,
    /// Names of nodes that the NameNode must not choose.
    excluded_nodes: Vec<String>,
    _lease: LeaseGuard,
}

impl OpenFile {
    pub(super) async fn create(client: &Client, path: &DfsPath, options: CreateOptions) -> Result<Self> {
        let what = Operation("create", path.as_str());
        let request = pb::CreateRequest {
            request_id: request_id(),
            path: path.to_string(),
            holder: client.inner.holder.clone(),
            replication: options.replication.unwrap_or(0),
            block_size: options.block_size.unwrap_or(0),
            overwrite: options.overwrite,
            make_parents: options.make_parents,
            mode: options.mode.unwrap_or(0),
            on_abandon: match options.on_abandon {
                OnAbandon::Close => pb::OnAbandon::Close,
                OnAbandon::Delete => pb::OnAbandon::Delete,
            }
            .into(),
        };
        let reply = client.call(what, request, rpc::create).await?;
        let mut open = Self::from_status(client, what, reply.status, reply.lease_ms)?;
        open.created = true;
        Ok(open)
    }

    pub(super) async fn append(client: &Client, path: &DfsPath) -> Result<Self> {
        let what = Operation("append to", path.as_str());
        let request = pb::AppendRequest {
            request_id: request_id(),
            path: path.to_string(),
            holder: client.inner.holder.clone(),
        };
        let reply = client.call(what, request, rpc::append).await?;
        Self::from_status(client, what, reply.status, reply.lease_ms)
    }

    fn from_status(
        client: &Client,
        what: Operation<'_>,
        status: Option<pb::FileStatus>,
        lease_ms: u64,
    ) -> Result<Self> {
        let status = wire::file_status(status).map_err(|reason| what.bad_reply(reason))?;
        if status.is_dir {
            return Err(what.bad_reply("it is the status of a folder"));
        }
        Ok(Self {
            client: client.clone(),
            path: status.path,
            block_size: status.block_size,
            length_before: status.length,
            faults: Vec::new(),
            file_id: status.file_id,
            created: false,
            commits: Vec::new(),
            in_flight: Vec::new(),
            replicas: Vec::new(),
            excluded_nodes: Vec::new(),
            _lease: LeaseGuard::new(client, lease_ms),
        })
    }

    /// Allocates the next block, and reports to the NameNode the blocks that were written since the
    /// last call. `expected_length` is the length of the new block, if it is known.
    pub(super) async fn add_block(&mut self, expected_length: Option<u64>) -> Result<LocatedBlock> {
        let end = Instant::now() + self.client.inner.options.config.deadline.0;
        let mut backoff = Backoff::new();
        loop {
            match self.add_block_once(expected_length.unwrap_or(0)).await {
                // All nodes are excluded. Wait, because a failed node may have recovered, and try
                // all nodes again.
                Err(error) if error.is(Kind::NoNodes) && !self.excluded_nodes.is_empty() => {
                    if !backoff.sleep_until(end).await {
                        return Err(error);
                    }
                    self.excluded_nodes.clear();
                }
                other => return other,
            }
        }
    }

    async fn add_block_once(&mut self, expected_length: u64) -> Result<LocatedBlock> {
        let what = Operation("add a block to", self.path.as_str());
        let request = pb::AddBlockRequest {
            request_id: request_id(),
            file_id: self.file_id.0,
            holder: self.client.inner.holder.clone(),
            commits: self.commits.clone(),
            exclude_nodes: self.excluded_nodes.clone(),
            writer_host: self.client.inner.options.host.clone(),
            expected: expected_length,
        };
        let send = rpc::add_block;
        let reply = self.client.call(what, request, send).await?;
        let block = reply.block.ok_or_else(|| what.bad_reply("the reply has no block"))?;
        let block = wire::located_block(block).map_err(|reason| what.bad_reply(reason))?;
        let reported = std::mem::take(&mut self.commits);
        self.in_flight.retain(|block| reported.iter().all(|commit| commit.block_id != block.0));
        self.in_flight.push(block.block);
        Ok(block)
    }

    /// Records that `block` is written. The next call reports it to the NameNode.
    pub(super) fn record_written(&mut self, block: BlockId, WrittenBlock { length, replicas }: WrittenBlock) {
        self.replicas.push((block, replicas));
        self.commits.push(pb::BlockLength { block_id: block.0, length });
    }

    /// Excludes nodes that failed: they get no more blocks of this file.
    pub(super) fn exclude(&mut self, faults: Vec<NodeFault>) {
        for fault in faults {
            if !self.excluded_nodes.contains(&fault.node) {
                self.excluded_nodes.push(fault.node.clone());
            }
            self.faults.push(fault);
        }
    }

    /// Abandons `first` and all blocks allocated after it. The newest is abandoned first, so that
    /// the remaining blocks are always a prefix of the file.
    pub(super) async fn abandon_from(&mut self, first: BlockId) -> Result<()> {
        let Some(at) = self.in_flight.iter().position(|block| *block == first) else { return Ok(()) };
        while self.in_flight.len() > at
            && let Some(block) = self.in_flight.last().copied()
        {
            let request = pb::AbandonBlockRequest {
                request_id: request_id(),
                file_id: self.file_id.0,
                holder: self.client.inner.holder.clone(),
                block_id: block.0,
            };
            let what = Operation("abandon a block of", self.path.as_str());
            let send = rpc::abandon_block;
            self.client.call(what, request, send).await?;
            self.in_flight.pop();
            self.commits.retain(|commit| commit.block_id != block.0);
            self.replicas.retain(|(written, _)| *written != block);
        }
        Ok(())
    }

    /// Closes the file and returns the report. With `rename_to`, also moves the file to that path.
    pub(super) async fn finish(&mut self, rename_to: Option<&DfsPath>, overwrite: bool) -> Result<PutReport> {
        let status = self.close(rename_to, overwrite).await?;
        let replicas_min = self.replicas.iter().map(|(_, replicas)| *replicas).min();
        Ok(PutReport { status, faults: std::mem::take(&mut self.faults), replicas_min })
    }

    /// Closes the file. With `rename_to`, also moves the file to that path.
    async fn close(&self, rename_to: Option<&DfsPath>, overwrite: bool) -> Result<FileStatus> {
        let what = Operation("close", self.path.as_str());
        let request = pb::CloseRequest {
            request_id: request_id(),
            file_id: self.file_id.0,
            holder: self.client.inner.holder.clone(),
            commits: self.commits.clone(),
            rename_to: rename_to.map(ToString::to_string).unwrap_or_default(),
            overwrite,
        };
        let send = rpc::close;
        let reply = self.client.call(what, request, send).await?;
        wire::file_status(reply.status).map_err(|reason| what.bad_reply(reason))
    }

    /// Discards the write: a created file is deleted, an appended file is closed with the blocks
    /// that were committed.
    pub(super) async fn discard(mut self) -> Result<()> {
        if self.created {
            // If the lease was lost, another file may exist at this path now.
            let found = self.client.stat_opt(&self.path).await?;
            if found.is_some_and(|found| found.file_id == self.file_id) {
                self.client.delete(&self.path, false).await?;
            }
            return Ok(());
        }
        let unwritten = |block: &&BlockId| self.commits.iter().all(|commit| commit.block_id != block.0);
        if let Some(first) = self.in_flight.iter().find(unwritten).copied() {
            self.abandon_from(first).await?;
        }
        match self.close(None, false).await {
            Err(error) if error.is(Kind::Quota) => {}
            closed => return closed.map(|_| ()),
        }
        // The quota does not allow the new blocks: restore the previous length of the file.
        if let Some(first) = self.in_flight.first().copied() {
            self.abandon_from(first).await?;
        }
        self.close(None, false).await?;
        Ok(())
    }
}

/// Discards the write in the background. Does nothing without a runtime: the NameNode discards the
/// write when the lease expires.
pub(super) fn discard_later(open: Box<OpenFile>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(discard(open));
    }
}

/// Discards the write. A failure is only logged, because the caller already returns the error that
/// caused the discard.
pub(super) async fn discard(open: Box<OpenFile>) {
    let path = open.path.clone();
    if let Err(error) = open.discard().await {
        tracing::debug!(%path, "discarding the file failed, its lease will expire: {error}");
    }
}
