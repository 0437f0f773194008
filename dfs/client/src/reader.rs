//! Reads a file with verification. When a replica fails, the reader continues with another replica
//! at the same offset.
//!
//! The length of the file is its length when it was opened. Blocks are located in several calls.
//! When all known replicas of a block have failed, the reader locates the block again, until the
//! deadline. If a node stalls and another node has a replica, the reader changes to the other node
//! after a short time, and uses the stalled node only as the last choice from then on. If no other
//! node has a replica, the reader waits. If all replicas are damaged, the reader does not wait.

use super::call::{Backoff, Operation};
use super::fetch::{self, BlockRange, FetchRun, RangeFailure};
use super::wait::WaitReport;
use super::{Client, ClientError, FileStatus, LocatedBlock, NodeAddress, NodeFault, Result};
use crate::error::{Error, Kind};
use crate::ids::BlockId;
use crate::path::DfsPath;
use bytes::Bytes;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of bytes whose blocks are located with one call.
const LOCATE_BYTES: u64 = 1 << 30;
/// Maximum number of blocks in one [`FetchRun`].
const RUN_BLOCKS_MAX: usize = 16;
/// Timeout for reporting a damaged replica.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a reader that may skip lost blocks looks for a replica of a block, if this client has
/// already waited for another block until the deadline. A node that was only temporarily
/// unreachable would have returned by then.
const SKIP_LOST_TIMEOUT: Duration = Duration::from_millis(1500);
/// Zeros that are returned in place of lost bytes. At most this many are returned at a time.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// Bytes without a good replica. Zeros were returned in their place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// The block that contains the bytes.
    pub block: BlockId,
    /// Offset of the first lost byte in the file.
    pub offset: u64,
    /// Number of lost bytes.
    pub length: u64,
    /// Every host that was tried, with the reason why it failed.
    pub why: String,
}

/// Reads one file.
pub struct FileReader {
    file: ReadFile,
    cursor: Cursor,
}

impl FileReader {
    pub(super) async fn open(client: &Client, path: &DfsPath) -> Result<Self> {
        let (status, blocks) = client.locate(path, 0, LOCATE_BYTES).await?;
        if status.is_dir {
            return Err(Error::new(
                Kind::IsDirectory,
                format!("{path} is a folder: give the name of a file"),
            )
            .into());
        }
        let cursor = Cursor::new(0, status.length);
        let file = ReadFile {
            client: client.clone(),
            path: path.clone(),
            status,
            blocks,
            failed_block: None,
            avoided_nodes: HashSet::new(),
            reported_replicas: HashSet::new(),
            faults: Vec::new(),
            skip_lost: false,
            lost: Vec::new(),
        };
        Ok(Self { file, cursor })
    }

    /// Makes [`Self::next`] return zeros in place of a block without a good replica, instead of an
    /// error.
    pub fn zero_fill_lost_blocks(&mut self) {
        self.file.skip_lost = true;
    }

    /// Returns the ranges for which zeros were returned so far.
    pub fn lost(&self) -> &[LostRange] {
        &self.file.lost
    }

    /// Returns the status of the file when it was opened.
    pub fn status(&self) -> &FileStatus {
        &self.file.status
    }

    /// Returns the length of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.file.status.length
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the offset at which `next` continues.
    pub fn position(&self) -> u64 {
        self.cursor.at
    }

    /// Sets the offset at which `next` continues. An offset beyond the end is set to the end.
    pub fn seek(&mut self, offset: u64) {
        let at = offset.min(self.len());
        if at != self.cursor.at {
            self.cursor = Cursor::new(at, self.len());
        }
    }

    /// Restricts `next` to `length` bytes from `offset`, or fewer if the file ends there.
    pub fn select(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.len());
        self.cursor = Cursor::new(offset.min(end), end);
    }

    /// Returns the next verified bytes, which are never empty, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.cursor.next_bytes(&mut self.file).await
    }

    /// Fills `buffer` from `offset`. Returns fewer bytes only at the end of the file.
    pub async fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(buffer.len() as u64).min(self.len());
        let mut cursor = Cursor::new(offset, end);
        let mut filled = 0;
        while let Some(bytes) = cursor.next_bytes(&mut self.file).await? {
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(filled)
    }

    /// Returns the replicas that have failed so far, with the reason.
    pub fn faults(&self) -> &[NodeFault] {
        &self.file.faults
    }

    pub(super) fn into_parts(self) -> (FileStatus, Vec<NodeFault>, Vec<LostRange>) {
        (self.file.status, self.file.faults, self.file.lost)
    }
}

/// Returns the bytes `at..end` in order.
struct Cursor {
    at: u64,
    end: u64,
    run: Option<FetchRun>,
    /// Offset up to which zeros are returned, because the block there is lost.
    hole_end: u64,
}

impl Cursor {
    fn new(at: u64, end: u64) -> Self {
        Self { at, end, run: None, hole_end: 0 }
    }

    fn take_zeros(&mut self) -> Option<Bytes> {
        let left = self.hole_end.min(self.end).saturating_sub(self.at);
        let some = left.min(ZEROS.len() as u64);
        self.at += some;
        (some > 0).then(|| Bytes::from_static(&ZEROS[..some as usize]))
    }

    async fn next_bytes(&mut self, file: &mut ReadFile) -> Result<Option<Bytes>> {
        let mut run_ended = false;
        while self.at < self.end {
            if let Some(zeros) = self.take_zeros() {
                return Ok(Some(zeros));
            }
            let run = match &mut self.run {
                Some(run) => run,
                none => match file.plan_ranges(self.at, self.end).await {
                    Ok(parts) => none.insert(fetch::start(&file.client, parts)),
                    Err(ClientError::Read { block, tried, .. }) if file.skip_lost => {
                        self.hole_end = file.skip_block(self.at, self.end, block, tried);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match run.next().await {
                // A gap is a bug, because the packets of a `FetchRun` are consecutive.
                Some(Ok((offset, _))) if offset > self.at => return Err(file.incomplete_read(self.at)),
                Some(Ok((offset, bytes))) => {
                    let skip = self.at.saturating_sub(offset) as usize;
                    let left = (self.end - self.at).min(usize::MAX as u64) as usize;
                    if skip < bytes.len() {
                        let bytes = bytes.slice(skip..bytes.len().min(skip.saturating_add(left)));
                        self.at += bytes.len() as u64;
                        file.record_progress();
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(failure)) => {
                    self.run = None;
                    file.record_failure(*failure).await;
                }
                None if run_ended => return Err(file.incomplete_read(self.at)),
                None => {
                    self.run = None;
                    run_ended = true;
                }
            }
        }
        self.run = None;
        Ok(None)
    }
}

/// A block that could not be read yet.
struct FailedBlock {
    block: BlockId,
    tried: Vec<(NodeAddress, String)>,
    /// UUIDs of the nodes that were tried since the block was last located.
    tried_this_round: HashSet<String>,
    exhausted_since: Option<Instant>,
    backoff: Backoff,
    wait: Option<WaitReport>,
}

impl FailedBlock {
    fn new(block: BlockId) -> Self {
        let (tried, tried_this_round) = (Vec::new(), HashSet::new());
        Self { block, tried, tried_this_round, exhausted_since: None, backoff: Backoff::new(), wait: None }
    }
}

/// Describes the nodes that were tried with the reason of each failure, and the nodes with a
/// damaged replica.
fn describe_failures(tried: &[(NodeAddress, String)], damaged_on: &[String]) -> String {
    let one =
        |(node, reason): &(NodeAddress, String)| format!("{} ({}): {reason}", node.node, node.data_addr);
    let mut all: Vec<String> = tried.iter().map(one).collect();
    if !damaged_on.is_empty() {
        let be = if damaged_on.len() == 1 { "replica on {} is" } else { "replicas on {} are" };
        all.push(format!("the {} damaged", be.replace("{}", &damaged_on.join(", "))));
    }
    if all.is_empty() { "no live DataNode has one".into() } else { all.join("; ") }
}

struct ReadFile {
    client: Client,
    path: DfsPath,
    status: FileStatus,
    /// Consecutive blocks of the file: those that were located last.
    blocks: Vec<LocatedBlock>,
    failed_block: Option<FailedBlock>,
    /// UUIDs of nodes that have failed. They are used only as the last choice.
    avoided_nodes: HashSet<String>,
    reported_replicas: HashSet<(BlockId, String)>,
    faults: Vec<NodeFault>,
    /// Whether to return zeros in place of lost blocks.
    skip_lost: bool,
    lost: Vec<LostRange>,
}

impl ReadFile {
    /// Marks the block at `at` as lost, from `at` to its end but not beyond `end`. Returns the end
    /// of the lost range.
    fn skip_block(&mut self, at: u64, end: u64, block: BlockId, why: String) -> u64 {
        let here = self.block_index_at(at).map(|index| &self.blocks[index]);
        let hole_end = here.map_or(end, |block| (block.offset + block.length).min(end));
        self.lost.push(LostRange { block, offset: at, length: hole_end - at, why });
        self.failed_block = None;
        hole_end
    }

    /// Returns the ranges to fetch next, each with its node. The list is never empty, and its first
    /// range contains `at`.
    async fn plan_ranges(&mut self, at: u64, end: u64) -> Result<Vec<BlockRange>> {
        let mut index = match self.block_index_at(at) {
            Some(index) => index,
            None => self.locate(at).await?,
        };
        let first = loop {
            let block = &self.blocks[index];
            match self.choose_replica(block) {
                Some(found) => break found,
                None => index = self.wait_and_locate(at).await?,
            }
        };
        let mut parts = Vec::new();
        for block in &self.blocks[index..] {
            let found = if parts.is_empty() { Some(first.clone()) } else { self.choose_replica(block) };
            // A later block without a replica is handled when the reader reaches it.
            let Some((node, has_other_replica)) =
                found.filter(|_| block.offset < end && parts.len() < RUN_BLOCKS_MAX)
            else {
                break;
            };
            let from = at.saturating_sub(block.offset);
            let to = block.length.min(end - block.offset);
            // An empty block needs no request.
            if from < to {
                parts.push(BlockRange { block: block.clone(), node, from, to, has_other_replica });
            }
        }
        Ok(parts)
    }

    fn block_index_at(&self, at: u64) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.offset + block.length <= at);
        (self.blocks.get(index)?.offset <= at).then_some(index)
    }

    /// Returns the node with the best replica that has not failed since the block was located, and
    /// whether another node has a good replica. Nodes that have failed before are chosen last. The
    /// NameNode sorts the nodes: the nearest first, nodes with late heartbeats last.
    fn choose_replica(&self, block: &LocatedBlock) -> Option<(NodeAddress, bool)> {
        let tried = self.failed_block.as_ref().filter(|failed_block| failed_block.block == block.block);
        let fresh = |node: &&NodeAddress| tried.is_none_or(|t| !t.tried_this_round.contains(&node.uuid));
        let avoided = |node: &&NodeAddress| self.avoided_nodes.contains(&node.uuid);
        let best = block.nodes.iter().filter(fresh).min_by_key(avoided)?;
        let others = block.nodes.iter().filter(fresh).filter(|node| node.uuid != best.uuid);
        Some((best.clone(), others.into_iter().any(|node| !avoided(&node))))
    }

    /// Locates the blocks from `at` on. Returns the index in `blocks` of the block that contains
    /// `at`.
    async fn locate(&mut self, at: u64) -> Result<usize> {
        let what = Operation("locate", self.path.as_str());
        let (status, blocks) = self.client.locate(&self.path, at, LOCATE_BYTES).await?;
        if status.file_id != self.status.file_id {
            let message = format!("{} was replaced by another file while it was read", self.path);
            return Err(Error::new(Kind::NotFound, message).into());
        }
        self.blocks = blocks;
        self.block_index_at(at).ok_or_else(|| what.bad_reply(format!("no block contains byte {at}")))
    }

    /// Waits for a short time and locates the blocks from `at` on again. Is called when all known
    /// replicas of the block at `at` have failed.
    async fn wait_and_locate(&mut self, at: u64) -> Result<usize> {
        let index = self.block_index_at(at).unwrap_or(0);
        let LocatedBlock { block, damaged_on, nodes, .. } = &self.blocks[index];
        let block = *block;
        // If all replicas are damaged, no missing node could return with a good replica.
        let all_damaged = nodes.is_empty() && damaged_on.len() >= self.status.replication.max(1) as usize;
        let deadline = self.client.inner.options.config.deadline.0;
        let short_wait = self.skip_lost && self.client.inner.has_given_up.load(Ordering::Relaxed);
        let deadline = if short_wait { deadline.min(SKIP_LOST_TIMEOUT) } else { deadline };
        let fresh = self.failed_block.take().filter(|failed_block| failed_block.block == block);
        let failed_block = self.failed_block.insert(fresh.unwrap_or_else(|| FailedBlock::new(block)));
        let since = *failed_block.exhausted_since.get_or_insert_with(Instant::now);
        let listener = self.client.inner.options.listener.as_ref();
        let wait = failed_block.wait.get_or_insert_with(|| WaitReport::until(since + deadline, listener));
        let what = format!("a good replica of {block} of {}, at byte {at}", self.path);
        let why = describe_failures(&failed_block.tried, damaged_on);
        let over = all_damaged
            || !wait.during(&what, &why, failed_block.backoff.sleep_until(since + deadline)).await;
        if over {
            if self.skip_lost && !all_damaged {
                self.client.inner.has_given_up.store(true, Ordering::Relaxed);
            }
            let (path, tried) = (self.path.clone(), why);
            return Err(ClientError::Read { path, offset: at, block, tried });
        }
        failed_block.tried_this_round.clear();
        self.locate(at).await
    }

    fn record_progress(&mut self) {
        if let Some(failed_block) = &mut self.failed_block {
            (failed_block.exhausted_since, failed_block.wait) = (None, None);
        }
    }

    async fn record_failure(&mut self, failure: RangeFailure) {
        let RangeFailure { block, node, reason, damaged } = failure;
        tracing::debug!(path = %self.path, block = %block.block, node = node.node, reason, "replica failed");
        let fresh = self.failed_block.take().filter(|failed_block| failed_block.block == block.block);
        let mut failed_block = fresh.unwrap_or_else(|| FailedBlock::new(block.block));
        failed_block.tried_this_round.insert(node.uuid.clone());
        failed_block.tried.retain(|(known, _)| known.uuid != node.uuid);
        failed_block.tried.push((node.clone(), reason.clone()));
        self.failed_block = Some(failed_block);
        let fault = NodeFault { node: node.node.clone(), reason: format!("{}: {reason}", block.block) };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        if damaged {
            self.report_damaged(block.block, node.uuid, reason).await;
        } else {
            self.avoided_nodes.insert(node.uuid);
        }
    }

    /// Reports a damaged replica to the NameNode, once per replica and with a short timeout.
    async fn report_damaged(&mut self, block: BlockId, node_uuid: String, reason: String) {
        if !self.reported_replicas.insert((block, node_uuid.clone())) {
            return;
        }
        let report = self.client.check_replica(block, &node_uuid, &reason);
        let result = tokio::time::timeout(REPORT_TIMEOUT, report).await;
        if !matches!(result, Ok(Ok(()))) {
            tracing::warn!(path = %self.path, %block, "could not report a bad replica");
        }
    }

    fn incomplete_read(&self, at: u64) -> ClientError {
        let block = self.block_index_at(at).map_or(BlockId(0), |index| self.blocks[index].block);
        let tried = "the read ended without an error message".into();
        ClientError::Read { path: self.path.clone(), offset: at, block, tried }
    }
}
