//! Manages all data folders of the node: in which folder each replica is, in which one a new
//! replica is stored, and what happens when a folder fails.
//!
//! Invariants: a block is in the map exactly if its files are durable in `current/` of a working
//! folder. Each change of the map is added to `pending_reports`. The files of a block in `current/`
//! and `bad/`, its map entry and its pending report change together under the lock of the block. A
//! folder is retired without locking its blocks. So a report that a replica exists, or is lost with
//! its folder, is added before the map is unlocked.
//!
//! Lock order: the lock of a partial replica, then the lock of a block, then the lock of the map,
//! then the lock of the pending reports. No thread waits for the network while it has one of these
//! locks, or for a disk while it has one of the last two.

pub(super) mod partial;

use super::{
    disk::{DiskFault, DiskSpace, classify},
    error::{DataNodeError, Refusal, RefusalKind},
    layout::{FilePart, NameNodeStart},
    pending_reports::{PendingReports, ReplicaEvent},
    volume::{Damage, Volume},
};
use dfs_client::{
    checksum::Checksums,
    ids::{BlockId, NodeUuid, Nonce},
};
use parking_lot::{Condvar, Mutex};
use partial::PartialReplica;
use proto::dfs::{DiskRoom, Usage};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io,
    ops::Bound,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::UnboundedSender;

/// Minimum interval between two log messages about a full disk.
const LOG_FULL_INTERVAL: Duration = Duration::from_mins(1);

/// The channel to which errors that end the node are sent.
pub(super) type FatalErrorSender = UnboundedSender<DataNodeError>;

/// The data folders and their contents.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) uuid: NodeUuid,
    /// Identifies this start of the node. The number is higher than that of all earlier starts.
    pub(super) incarnation: u64,
    /// Whether an operator has declared all data folders new.
    pub(super) declared_new: bool,
    pub(super) pending_reports: PendingReports,
    pub(super) volumes: Vec<Volume>,
    pub(super) state: Mutex<State>,
    pub(super) locks: BlockLocks,
    pub(super) fatal_error: FatalErrorSender,
    /// Number of bad blocks after which a folder is retired; 0 for no limit.
    pub(super) bad_blocks_max: u32,
}

/// One lock per block. A thread must have it to change the files of the block.
#[derive(Debug, Default)]
pub(super) struct BlockLocks {
    locked: Mutex<HashSet<BlockId>>,
    released: Condvar,
}

/// A locked block. It is unlocked on drop.
#[derive(Debug)]
pub(super) struct BlockLock<'a> {
    locks: &'a BlockLocks,
    block: BlockId,
}

impl BlockLocks {
    /// Locks `block`. Waits until it is unlocked.
    pub(super) fn lock(&self, block: BlockId) -> BlockLock<'_> {
        let mut locked = self.locked.lock();
        while !locked.insert(block) {
            self.released.wait(&mut locked);
        }
        BlockLock { locks: self, block }
    }
}

impl Drop for BlockLock<'_> {
    fn drop(&mut self) {
        self.locks.locked.lock().remove(&self.block);
        self.locks.released.notify_all();
    }
}

/// The replicas of the node, and the state of its data folders. `replicas` (called the map) is
/// ordered, so that the scrubber can iterate over it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) replicas: BTreeMap<BlockId, Replica>,
    pub(super) partials: HashMap<BlockId, Arc<PartialReplica>>,
    pub(super) volumes: Vec<VolumeState>,
    pub(super) cluster_id: String,
    /// The newest start of the NameNode that the node has acknowledged.
    pub(super) namenode_start: NameNodeStart,
    /// The folder at which the next search for free space starts.
    pub(super) next_volume: usize,
    /// The serial number of the newest replica.
    pub(super) serial: u64,
}

/// The state of a data folder.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeState {
    /// Whether the folder is retired.
    pub(super) failed: bool,
    /// Number of bad blocks found in this folder since the start.
    pub(super) bad_blocks: u32,
    /// Whether the folder gets no new blocks.
    pub(super) read_only: bool,
    /// Total length of the finalised replicas in bytes.
    pub(super) used: u64,
    /// Bytes that are reserved for partial replicas and not yet written.
    pub(super) reserved_bytes: u64,
    /// The free space at the last measurement. `None` before the first measurement, and if the last
    /// one failed.
    pub(super) space: Option<DiskSpace>,
    /// Number of bytes written since `space` was measured.
    pub(super) written_since_measured: u64,
    /// Time of the last log message about a write that failed because the disk was full.
    pub(super) full_logged: Option<Instant>,
}

impl VolumeState {
    /// Returns whether to log that the disk is full: true at most once per `LOG_FULL_INTERVAL`.
    fn must_log_full(&mut self) -> bool {
        let due = self.full_logged.is_none_or(|at| at.elapsed() >= LOG_FULL_INTERVAL);
        if due {
            self.full_logged = Some(Instant::now());
        }
        due
    }

    fn accepts_blocks(&self) -> bool {
        !self.failed && !self.read_only
    }
}

/// A finalised replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) volume: usize,
    pub(super) length: u64,
    /// The nonce of the block.
    pub(super) nonce: Nonce,
    /// Distinguishes this replica from earlier and later replicas of the same block.
    pub(super) serial: u64,
}

/// A replica that is open for reading.
#[derive(Debug)]
pub(super) struct OpenReplica {
    pub(super) block: BlockId,
    pub(super) replica: Replica,
    pub(super) data: File,
    pub(super) sums: Checksums,
}

impl Store {
    /// Returns the ID of the cluster that the folders belong to; empty before the first
    /// registration.
    pub(super) fn cluster_id(&self) -> String {
        self.state.lock().cluster_id.clone()
    }

    /// Returns the newest start of the NameNode that the node has acknowledged.
    pub(super) fn namenode_start(&self) -> NameNodeStart {
        self.state.lock().namenode_start.clone()
    }

    /// Returns the first folder that is in use.
    pub(super) fn first_folder(&self) -> &Path {
        let state = self.state.lock();
        let first = state.volumes.iter().position(|volume| !volume.failed).unwrap_or(0);
        self.volumes[first].paths.root()
    }

    /// Returns all finalised replicas, sorted by block ID.
    pub(super) fn replicas(&self) -> Vec<(BlockId, Replica)> {
        self.state.lock().replicas.iter().map(|(block, replica)| (*block, *replica)).collect()
    }

    /// Returns the block with the next higher ID that has a replica, or the first of all if `block`
    /// is `None`.
    pub(super) fn next_block_after(&self, block: Option<BlockId>) -> Option<BlockId> {
        let from = block.map_or(Bound::Unbounded, Bound::Excluded);
        self.state.lock().replicas.range((from, Bound::Unbounded)).next().map(|(block, _)| *block)
    }

    /// Returns the replica of `block`, if there is one.
    pub(super) fn find(&self, block: BlockId) -> Option<Replica> {
        self.state.lock().replicas.get(&block).copied()
    }

    /// Returns the replica of `block`, or a refusal if there is none with this nonce.
    pub(super) fn find_with_nonce(&self, block: BlockId, nonce: Nonce) -> Result<Replica, Refusal> {
        let replica = self.find(block).ok_or_else(|| Refusal::not_found(block))?;
        if replica.nonce == nonce {
            return Ok(replica);
        }
        let found = replica.nonce;
        let message = format!("this node has no replica of {block} with nonce {nonce}: its nonce is {found}");
        Err(Refusal::new(RefusalKind::NotFound, message))
    }

    /// Opens a replica for reading. A damaged replica is quarantined, reported and refused.
    pub(super) fn open_replica(&self, block: BlockId, replica: Replica) -> Result<OpenReplica, Refusal> {
        match self.volumes[replica.volume].open_block(block) {
            Ok((data, sums)) if (sums.length, sums.nonce) == (replica.length, replica.nonce) => {
                Ok(OpenReplica { block, replica, data, sums })
            }
            Ok((_, sums)) => {
                let why = format!(
                    "has {} bytes and nonce {}, expected {} bytes and nonce {}",
                    sums.length, sums.nonce, replica.length, replica.nonce
                );
                Err(self.quarantine_replica(block, replica, why))
            }
            Err(damage) => Err(self.handle_read_error(block, replica, damage)),
        }
    }

    /// Handles a read error of a replica and returns the refusal for the reader. After a transient
    /// error of this process the replica is not considered damaged.
    pub(super) fn handle_read_error(&self, block: BlockId, replica: Replica, damage: Damage) -> Refusal {
        match damage {
            Damage::Transient(error) => {
                Refusal::new(RefusalKind::Failed, format!("cannot read the replica of {block} now: {error}"))
            }
            proven => self.quarantine_replica(block, replica, proven.to_string()),
        }
    }

    /// Removes a damaged replica from the map, quarantines it and reports it, unless it has already
    /// been removed. Returns the refusal for the reader.
    pub(super) fn quarantine_replica(&self, block: BlockId, replica: Replica, why: String) -> Refusal {
        let _lock = self.locks.lock(block);
        let mut state = self.state.lock();
        if state.replicas.get(&block) != Some(&replica) {
            return Refusal::not_found(block);
        }
        state.remove(block);
        drop(state);
        self.quarantine(block, replica.volume, &why);
        Refusal::new(RefusalKind::Damaged, format!("the replica of {block} is damaged: {why}"))
    }

    /// Moves a damaged replica, which is not in the map, to `bad/`, reports it, and counts it for
    /// its folder. A replica that cannot be moved is neither served nor reported by this process
    /// again. A failed rename or sync retires the folder, like the failure of any other write.
    pub(super) fn quarantine(&self, block: BlockId, volume: usize, why: &str) {
        tracing::warn!(%block, folder = %self.volumes[volume].paths.root.display(), why, "damaged replica quarantined");
        let moved = self.volumes[volume].move_to_bad(block);
        self.pending_reports.post([(block, ReplicaEvent::Corrupt(why.into()))]);
        if let Err(error) = moved {
            tracing::error!(%block, %error, "a damaged replica cannot be moved to bad/: it is not served any more");
            if classify(&error) == DiskFault::Broken {
                self.retire_unless_last(
                    volume,
                    &format!("a damaged replica cannot be moved to bad/: {error}"),
                );
            }
        }
        self.count_bad(volume);
    }

    /// Counts a bad block of a folder. Retires the folder if it has too many.
    fn count_bad(&self, volume: usize) {
        let bad = {
            let mut state = self.state.lock();
            state.volumes[volume].bad_blocks += 1;
            state.volumes[volume].bad_blocks
        };
        if self.bad_blocks_max > 0 && bad >= self.bad_blocks_max {
            self.retire_unless_last(
                volume,
                &format!(
                    "it has {}, the limit (datanode.bad_blocks_max)",
                    daemon::count(bad.into(), "bad block")
                ),
            );
        }
    }

    /// Retires a folder, unless it is the last working one. The last folder stays in use for
    /// reading and gets no new blocks, so that read errors never end a node.
    fn retire_unless_last(&self, volume: usize, why: &str) {
        let mut state = self.state.lock();
        if !state.volumes[volume].accepts_blocks() {
            return;
        }
        let others = state.volumes.iter().enumerate().any(|(at, other)| at != volume && !other.failed);
        state.volumes[volume].read_only = !others;
        drop(state);
        if others {
            self.retire(volume, why);
            return;
        }
        let dir = self.volumes[volume].paths.root.display();
        tracing::error!(
            folder = %dir,
            why,
            "the last working folder fails: it takes no new blocks and serves what it can read; replace its disk"
        );
    }

    /// Returns the serial number of the newest replica.
    pub(super) fn newest_serial(&self) -> u64 {
        self.state.lock().serial
    }

    /// Deletes replicas, including quarantined ones, as long as `permit` returns a permit, which is
    /// held while a replica is deleted. A replica with a higher serial number than `newest` is newer
    /// than the order to delete it, and is kept.
    pub(super) fn delete<Permit>(
        &self,
        blocks: &[(BlockId, Nonce)],
        newest: u64,
        permit: impl Fn() -> Option<Permit>,
    ) {
        let mut count = 0;
        for (block, nonce) in blocks.iter().copied() {
            let Some(_permit) = permit() else { break };
            let _lock = self.locks.lock(block);
            let found = self.find(block);
            if found.is_some_and(|replica| replica.nonce != nonce) {
                // The replica to delete does not exist. The replica with this ID belongs to another
                // block and is kept.
                self.pending_reports.post_if_absent(block, ReplicaEvent::Deleted);
                continue;
            }
            if found.is_some_and(|replica| replica.serial > newest) {
                // The NameNode repeats an order until the deletion is reported. An earlier copy of
                // this order has deleted the replica, and the NameNode has had the block copied to
                // this node again. If it still has the order, it sends it once more.
                tracing::info!(%block, "replica kept: it is newer than the order to delete it");
                continue;
            }
            self.state.lock().remove(block);
            let mut gone = true;
            for (index, volume) in self.volumes.iter().enumerate() {
                gone &= self.is_failed(index) || self.or_retire(index, volume.delete(block)).is_ok();
            }
            if gone {
                self.pending_reports.post([(block, ReplicaEvent::Deleted)]);
                count += 1;
            }
        }
        tracing::info!(blocks = count, "deleted replicas as ordered by the NameNode");
    }

    /// Reports that a replica was verified and is good, if it is still in the map.
    pub(super) fn post_checked(&self, block: BlockId, replica: Replica) {
        let state = self.state.lock();
        if state.replicas.get(&block) == Some(&replica) {
            self.pending_reports.post([(block, ReplicaEvent::Checked)]);
        }
    }

    /// Reports that the replica of a block is not in the map, unless it is there now. A quarantined
    /// replica is reported as damaged and not as lost, so that the NameNode orders its deletion
    /// when it is replaced.
    pub(super) fn post_absent(&self, block: BlockId) {
        let _lock = self.locks.lock(block);
        if self.find(block).is_some() {
            return;
        }
        let is_quarantined =
            self.volumes.iter().any(|volume| volume.paths.bad(block, FilePart::Data).exists());
        let item = if is_quarantined {
            ReplicaEvent::Corrupt("quarantined before".into())
        } else {
            ReplicaEvent::Lost
        };
        self.pending_reports.post_if_absent(block, item);
    }

    /// Reports the quarantined replicas of this and earlier starts, which the NameNode may not
    /// know. Returns, without reporting them, the blocks that also have a replica in the map: that
    /// replica may be good, and the quarantined one only a duplicate.
    pub(super) fn post_quarantined(&self) -> Vec<BlockId> {
        let mut duplicates = Vec::new();
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.is_failed(index) {
                continue;
            }
            let quarantined = volume.quarantined_blocks().inspect_err(|error| {
                let folder = volume.paths.root.display();
                tracing::warn!(%folder, %error, "cannot list the quarantined replicas");
            });
            for block in quarantined.unwrap_or_default() {
                let _lock = self.locks.lock(block);
                if self.find(block).is_some() {
                    duplicates.push(block);
                } else {
                    self.pending_reports
                        .post_if_absent(block, ReplicaEvent::Corrupt("quarantined earlier".into()));
                }
            }
        }
        duplicates.sort_unstable();
        duplicates.dedup();
        duplicates
    }

    /// Deletes the quarantined replicas of a block if `replica`, which was just verified, is still
    /// in the map.
    pub(super) fn delete_quarantined_duplicates(&self, block: BlockId, replica: Replica) {
        let _lock = self.locks.lock(block);
        if self.find(block) != Some(replica) {
            return;
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            if !self.is_failed(index) {
                self.or_retire(index, volume.delete_quarantined(block)).ok();
            }
        }
    }

    /// Reports a replica to the NameNode again, if it still exists.
    pub(super) fn report_again(&self, block: BlockId, replica: Replica) {
        let state = self.state.lock();
        if state.replicas.get(&block) == Some(&replica) {
            self.pending_reports.post([(block, ReplicaEvent::Received(replica.nonce, replica.length))]);
        }
    }

    /// Returns the usage of all working folders. The free space of a disk that several folders
    /// share is counted once.
    pub(super) fn usage(&self) -> Usage {
        let state = self.state.lock();
        let mut disks: HashMap<u64, u64> = HashMap::new();
        for volume in state.volumes.iter().filter(|volume| volume.accepts_blocks()) {
            if let Some(space) = volume.space {
                disks.insert(space.device, state.free_on(space));
            }
        }
        let used = state.volumes.iter().filter(|volume| !volume.failed).map(|volume| volume.used).sum();
        let free = disks.values().sum();
        let failed = state.volumes.iter().filter(|volume| volume.failed).count();
        Usage {
            capacity: used + free,
            used,
            free,
            disks: disks.into_iter().map(|(device, free)| DiskRoom { device, free }).collect(),
            volumes: (state.volumes.len() - failed) as u32,
            failed_volumes: failed as u32,
        }
    }

    /// Measures the free space of a folder. May block forever if the disk is broken. Other threads
    /// use the last result and do not wait for a measurement.
    pub(super) fn measure_space(&self, volume: usize) {
        if self.is_failed(volume) {
            return;
        }
        let space = self.volumes[volume].space().ok();
        self.state.lock().set_space(volume, space);
    }

    pub(super) fn is_failed(&self, volume: usize) -> bool {
        self.state.lock().volumes[volume].failed
    }

    /// Converts the error of a disk operation into a refusal, and retires the folder if the error
    /// requires it.
    pub(super) fn or_retire<T>(&self, volume: usize, result: io::Result<T>) -> Result<T, Refusal> {
        result.map_err(|error| self.refusal_for(volume, &error))
    }

    fn refusal_for(&self, volume: usize, error: &io::Error) -> Refusal {
        let dir = self.volumes[volume].paths.root.display().to_string();
        match classify(error) {
            DiskFault::Full => {
                if self.state.lock().volumes[volume].must_log_full() {
                    tracing::warn!(folder = dir, %error, "disk is full: writes fail, replicas are served");
                }
                Refusal::new(RefusalKind::NoSpace, format!("no space on {dir}"))
            }
            DiskFault::Transient => {
                Refusal::new(RefusalKind::Failed, format!("temporary error in {dir}: {error}"))
            }
            DiskFault::Broken => {
                self.retire(volume, &error.to_string());
                Refusal::new(RefusalKind::Failed, format!("folder {dir} failed and is retired: {error}"))
            }
        }
    }

    /// Retires a folder permanently: nothing in it is used or changed again.
    pub(super) fn retire(&self, volume: usize, why: &str) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.volumes[volume].failed, true) {
            return;
        }
        let mut lost = Vec::new();
        state.replicas.retain(|block, replica| {
            let is_staying = replica.volume != volume;
            if !is_staying {
                lost.push((*block, ReplicaEvent::Lost));
            }
            is_staying
        });
        state.partials.retain(|_, partial| partial.volume != volume);
        let none_left = state.volumes.iter().all(|volume| volume.failed);
        let lost_count = lost.len();
        self.pending_reports.post(lost);
        drop(state);
        let dir = self.volumes[volume].paths.root.display();
        tracing::error!(folder = %dir, why, lost = lost_count, "folder failed: retired, its replicas are lost");
        if none_left {
            self.fatal_error.send(DataNodeError::NoFolders(format!("{dir}: {why}"))).ok();
        }
    }
}

impl State {
    pub(super) fn insert(&mut self, block: BlockId, nonce: Nonce, volume: usize, length: u64) {
        self.serial += 1;
        self.replicas.insert(block, Replica { volume, length, nonce, serial: self.serial });
        self.volumes[volume].used += length;
    }

    fn remove(&mut self, block: BlockId) {
        if let Some(replica) = self.replicas.remove(&block) {
            self.volumes[replica.volume].used -= replica.length;
        }
    }

    /// Stores the measured free space of a folder, also for all other folders on the same disk.
    fn set_space(&mut self, volume: usize, space: Option<DiskSpace>) {
        self.volumes[volume].space = space;
        for other in &mut self.volumes {
            if other.space.map(|space| space.device) == space.map(|space| space.device) {
                (other.space, other.written_since_measured) = (space, 0);
            }
        }
    }

    /// Returns the free space of a disk, minus the bytes that were reserved or written since the
    /// measurement.
    fn free_on(&self, space: DiskSpace) -> u64 {
        let here =
            self.volumes.iter().filter(|volume| volume.space.is_some_and(|r| r.device == space.device));
        let taken =
            |volume: &VolumeState| volume.reserved_bytes.saturating_add(volume.written_since_measured);
        here.fold(space.free, |free, volume| free.saturating_sub(taken(volume)))
    }

    /// Returns whether a folder has free space for `more` bytes.
    pub(super) fn has_space(&self, volume: usize, more: u64) -> bool {
        let space = self.volumes[volume].space.filter(|_| self.volumes[volume].accepts_blocks());
        space.is_some_and(|space| self.free_on(space) >= more)
    }

    /// Returns the folder with the most free space, if that is enough for `length` bytes. Folders
    /// with equal space are used in turn.
    pub(super) fn choose_volume(&mut self, length: u64) -> Option<usize> {
        let count = self.volumes.len();
        let mut best: Option<(usize, u64)> = None;
        for index in (0..count).map(|step| (self.next_volume + step) % count) {
            let volume = &self.volumes[index];
            let Some(space) = volume.space.filter(|_| volume.accepts_blocks()) else { continue };
            let free = self.free_on(space);
            if free >= length && best.is_none_or(|(_, max)| free > max) {
                best = Some((index, free));
            }
        }
        let (index, _) = best?;
        self.next_volume = (index + 1) % count;
        Some(index)
    }
}
