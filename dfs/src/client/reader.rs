//! Reads one file, verified, going on with another replica from the byte reached when one fails.
//!
//! The length is that at opening. Blocks are located a stretch at a time; when every known replica of a block
//! has failed they are located anew, until the deadline. A node that stalls is left for another after a moment, and
//! asked last from then on; who else has nothing is waited for. What is damaged wherever it is is not waited for.

use super::call::{Backoff, What};
use super::fetch::{self, BlockRange, Failure, Run};
use super::wait::Wait;
use super::{Client, ClientError, FileStatus, LocatedBlock, NodeAddress, NodeFault, Result};
use crate::error::{Error, Kind};
use crate::ids::BlockId;
use crate::path::DfsPath;
use bytes::Bytes;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How much of a file is located at a time.
const LOCATE_BYTES: u64 = 1 << 30;
/// Blocks that are fetched in a row.
const RUN_BLOCKS_MAX: usize = 16;
/// A report of damage is worth this wait, not more.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// How long a reader that may skip looks for a replica of a block, once its client has waited the whole time for one:
/// whatever was only away would be back.
const LOST_AFTER: Duration = Duration::from_millis(1500);
/// Zeros handed out at a time in place of lost bytes.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// Bytes of which no good replica could be found; zeros were handed out in their place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The block they were in.
    pub block: BlockId,
    /// Of the first one in the file.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// Every host tried, and why not.
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
            return Err(
                Error::new(Kind::IsDirectory, format!("{path} is a folder: name a file in it")).into()
            );
        }
        let cursor = Cursor::new(0, status.length);
        let file = ReadFile {
            client: client.clone(),
            path: path.clone(),
            status,
            blocks,
            failed_block: None,
            avoid: HashSet::new(),
            reported: HashSet::new(),
            faults: Vec::new(),
            skip_lost: false,
            lost: Vec::new(),
        };
        Ok(Self { file, cursor })
    }

    /// From now on a block without a good replica does not end the reading: zeros are handed out in its place.
    pub fn skip_lost(&mut self) {
        self.file.skip_lost = true;
    }

    /// What was skipped so far.
    pub fn lost(&self) -> &[Lost] {
        &self.file.lost
    }

    /// The file as it was at opening.
    pub fn status(&self) -> &FileStatus {
        &self.file.status
    }

    /// Its length at opening.
    pub fn len(&self) -> u64 {
        self.file.status.length
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `next` goes on.
    pub fn position(&self) -> u64 {
        self.cursor.at
    }

    /// Moves `next` to `offset` (beyond the end: the end).
    pub fn seek(&mut self, offset: u64) {
        let at = offset.min(self.len());
        if at != self.cursor.at {
            self.cursor = Cursor::new(at, self.len());
        }
    }

    /// The next bytes, verified; `None` at the end. Never empty.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.cursor.step(&mut self.file).await
    }

    /// Fills `buffer` from `offset`; fewer bytes only at the end of the file.
    pub async fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(buffer.len() as u64).min(self.len());
        let mut cursor = Cursor::new(offset, end);
        let mut filled = 0;
        while let Some(bytes) = cursor.step(&mut self.file).await? {
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(filled)
    }

    /// Replicas that failed so far, with the reason.
    pub fn faults(&self) -> &[NodeFault] {
        &self.file.faults
    }

    pub(super) fn into_parts(self) -> (FileStatus, Vec<NodeFault>, Vec<Lost>) {
        (self.file.status, self.file.faults, self.file.lost)
    }
}

/// Bytes `at..end`, handed out in order.
struct Cursor {
    at: u64,
    end: u64,
    run: Option<Run>,
    /// Zeros are handed out up to here.
    hole_end: u64,
}

impl Cursor {
    fn new(at: u64, end: u64) -> Self {
        Self { at, end, run: None, hole_end: 0 }
    }

    fn zeros(&mut self) -> Option<Bytes> {
        let left = self.hole_end.min(self.end).saturating_sub(self.at);
        let some = left.min(ZEROS.len() as u64);
        self.at += some;
        (some > 0).then(|| Bytes::from_static(&ZEROS[..some as usize]))
    }

    async fn step(&mut self, file: &mut ReadFile) -> Result<Option<Bytes>> {
        let mut fruitless = false;
        while self.at < self.end {
            if let Some(zeros) = self.zeros() {
                return Ok(Some(zeros));
            }
            let run = match &mut self.run {
                Some(run) => run,
                none => match file.plan(self.at, self.end).await {
                    Ok(parts) => none.insert(fetch::start(&file.client, parts)),
                    Err(ClientError::Read { block, tried, .. }) if file.skip_lost => {
                        self.hole_end = file.skip_block(self.at, self.end, block, tried);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match run.next().await {
                // Packets come in order and without a gap.
                Some(Ok((offset, _))) if offset > self.at => return Err(file.broken_off(self.at)),
                Some(Ok((offset, bytes))) => {
                    let skip = self.at.saturating_sub(offset) as usize;
                    let left = (self.end - self.at).min(usize::MAX as u64) as usize;
                    if skip < bytes.len() {
                        let bytes = bytes.slice(skip..bytes.len().min(skip.saturating_add(left)));
                        self.at += bytes.len() as u64;
                        file.progress();
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(failure)) => {
                    self.run = None;
                    file.failed(*failure).await;
                }
                None if fruitless => return Err(file.broken_off(self.at)),
                None => {
                    self.run = None;
                    fruitless = true;
                }
            }
        }
        self.run = None;
        Ok(None)
    }
}

/// A block that does not come: who was tried, and since when nobody is left.
struct FailedBlock {
    block: BlockId,
    tried: Vec<(NodeAddress, String)>,
    /// Uuids tried since the block was last located.
    this_round: HashSet<String>,
    out_since: Option<Instant>,
    backoff: Backoff,
    wait: Option<Wait>,
}

impl FailedBlock {
    fn with(block: BlockId) -> Self {
        let (tried, this_round) = (Vec::new(), HashSet::new());
        Self { block, tried, this_round, out_since: None, backoff: Backoff::new(), wait: None }
    }
}

/// Who was tried, and what came of it; and who has set a damaged one aside.
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
    /// A stretch of the file's blocks, in order and without a gap.
    blocks: Vec<LocatedBlock>,
    failed_block: Option<FailedBlock>,
    /// Uuids of nodes that failed once: asked last from then on.
    avoid: HashSet<String>,
    reported: HashSet<(BlockId, String)>,
    faults: Vec<NodeFault>,
    /// Whether zeros stand in for lost blocks.
    skip_lost: bool,
    lost: Vec<Lost>,
}

impl ReadFile {
    /// The rest of the block at `at`, as far as it was asked for, is lost; where that ends.
    fn skip_block(&mut self, at: u64, end: u64, block: BlockId, why: String) -> u64 {
        let here = self.index_of(at).map(|index| &self.blocks[index]);
        let hole_end = here.map_or(end, |block| (block.offset + block.length).min(end));
        self.lost.push(Lost { block, offset: at, length: hole_end - at, why });
        self.failed_block = None;
        hole_end
    }

    /// What to fetch from whom to continue at `at`; never empty, and the first part holds `at`.
    async fn plan(&mut self, at: u64, end: u64) -> Result<Vec<BlockRange>> {
        let mut index = match self.index_of(at) {
            Some(index) => index,
            None => self.locate(at).await?,
        };
        let first = loop {
            let block = &self.blocks[index];
            match self.replica_of(block) {
                Some(found) => break found,
                None => index = self.wait_and_locate(at).await?,
            }
        };
        let mut parts = Vec::new();
        for block in &self.blocks[index..] {
            let found = if parts.is_empty() { Some(first.clone()) } else { self.replica_of(block) };
            // A later block without a replica is looked into when its turn comes.
            let Some((node, has_other_replica)) =
                found.filter(|_| block.offset < end && parts.len() < RUN_BLOCKS_MAX)
            else {
                break;
            };
            let from = at.saturating_sub(block.offset);
            let to = block.length.min(end - block.offset);
            // An empty block holds nothing to ask for.
            if from < to {
                parts.push(BlockRange { block: block.clone(), node, from, to, has_other_replica });
            }
        }
        Ok(parts)
    }

    fn index_of(&self, at: u64) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.offset + block.length <= at);
        (self.blocks.get(index)?.offset <= at).then_some(index)
    }

    /// The best replica that has not failed in this round, those on nodes that failed before last; and whether another
    /// is as good. The NameNode names the nearest first, and those it has not heard of lately last.
    fn replica_of(&self, block: &LocatedBlock) -> Option<(NodeAddress, bool)> {
        let tried = self.failed_block.as_ref().filter(|failed_block| failed_block.block == block.block);
        let fresh = |node: &&NodeAddress| tried.is_none_or(|t| !t.this_round.contains(&node.uuid));
        let avoided = |node: &&NodeAddress| self.avoid.contains(&node.uuid);
        let best = block.nodes.iter().filter(fresh).min_by_key(avoided)?;
        let others = block.nodes.iter().filter(fresh).filter(|node| node.uuid != best.uuid);
        Some((best.clone(), others.into_iter().any(|node| !avoided(&node))))
    }

    /// Locates the stretch from `at` on; the index of the block that holds `at`.
    async fn locate(&mut self, at: u64) -> Result<usize> {
        let what = What("locate", self.path.as_str());
        let (status, blocks) = self.client.locate(&self.path, at, LOCATE_BYTES).await?;
        if status.file_id != self.status.file_id {
            let message = format!("{} was replaced by another file while it was read", self.path);
            return Err(Error::new(Kind::NotFound, message).into());
        }
        self.blocks = blocks;
        self.index_of(at).ok_or_else(|| what.bad_reply(format!("no block holds byte {at}")))
    }

    /// Every known replica of the block at `at` has failed: waits a little and locates anew.
    async fn wait_and_locate(&mut self, at: u64) -> Result<usize> {
        let index = self.index_of(at).unwrap_or(0);
        let LocatedBlock { block, damaged_on, nodes, .. } = &self.blocks[index];
        let block = *block;
        // Nobody is missing who could come back with a good one.
        let hopeless = nodes.is_empty() && damaged_on.len() >= self.status.replication.max(1) as usize;
        let deadline = self.client.inner.options.config.deadline.0;
        let hurried = self.skip_lost && self.client.inner.has_given_up.load(Ordering::Relaxed);
        let deadline = if hurried { deadline.min(LOST_AFTER) } else { deadline };
        let fresh = self.failed_block.take().filter(|failed_block| failed_block.block == block);
        let failed_block = self.failed_block.insert(fresh.unwrap_or_else(|| FailedBlock::with(block)));
        let since = *failed_block.out_since.get_or_insert_with(Instant::now);
        let listener = self.client.inner.options.listener.as_ref();
        let wait = failed_block.wait.get_or_insert_with(|| Wait::until(since + deadline, listener));
        let what = format!("a good replica of {block} of {}, at byte {at}", self.path);
        let why = describe_failures(&failed_block.tried, damaged_on);
        let over =
            hopeless || !wait.during(&what, &why, failed_block.backoff.sleep_until(since + deadline)).await;
        if over {
            if self.skip_lost && !hopeless {
                self.client.inner.has_given_up.store(true, Ordering::Relaxed);
            }
            let (path, tried) = (self.path.clone(), why);
            return Err(ClientError::Read { path, offset: at, block, tried });
        }
        failed_block.this_round.clear();
        self.locate(at).await
    }

    fn progress(&mut self) {
        if let Some(failed_block) = &mut self.failed_block {
            (failed_block.out_since, failed_block.wait) = (None, None);
        }
    }

    async fn failed(&mut self, failure: Failure) {
        let Failure { block, node, reason, damaged } = failure;
        tracing::debug!(path = %self.path, block = %block.block, node = node.node, reason, "replica failed");
        let fresh = self.failed_block.take().filter(|failed_block| failed_block.block == block.block);
        let mut failed_block = fresh.unwrap_or_else(|| FailedBlock::with(block.block));
        failed_block.this_round.insert(node.uuid.clone());
        failed_block.tried.retain(|(known, _)| known.uuid != node.uuid);
        failed_block.tried.push((node.clone(), reason.clone()));
        self.failed_block = Some(failed_block);
        let fault = NodeFault { node: node.node.clone(), reason: format!("{}: {reason}", block.block) };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        if damaged {
            self.report(block.block, node.uuid, reason).await;
        } else {
            self.avoid.insert(node.uuid);
        }
    }

    /// Tells the NameNode of a bad replica, once, and does not wait long for it.
    async fn report(&mut self, block: BlockId, node_uuid: String, reason: String) {
        if !self.reported.insert((block, node_uuid.clone())) {
            return;
        }
        let report = self.client.check_replica(block, &node_uuid, &reason);
        let told = tokio::time::timeout(REPORT_WITHIN, report).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::warn!(path = %self.path, %block, "could not report a bad replica");
        }
    }

    fn broken_off(&self, at: u64) -> ClientError {
        let block = self.index_of(at).map_or(BlockId(0), |index| self.blocks[index].block);
        let tried = "the read ended without an error message".into();
        ClientError::Read { path: self.path.clone(), offset: at, block, tried }
    }
}
