//! Reports about replicas that the NameNode has not received yet. There is at most one report per
//! block, the newest. A report is kept until a heartbeat that contains it has succeeded. The number
//! of reports is bounded by the number of blocks on the disks.

use dfs_client::ids::{BlockId, Nonce};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// What happened to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplicaEvent {
    /// The replica is durable, with this nonce and length.
    Received(Nonce, u64),
    /// The replica was deleted on command.
    Deleted,
    /// The replica is damaged and was quarantined.
    Corrupt(String),
    /// The replica was in a data folder that has failed.
    Lost,
    /// The replica was verified on command and is good.
    Checked,
}

/// Maximum number of reports per heartbeat. Keeps the message well below the size limit of gRPC.
const BATCH_REPORTS_MAX: usize = 10_000;

/// The reports to send, and a notification that wakes the link to the NameNode.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    waiting: Mutex<QueuedReports>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueuedReports {
    /// Increases with each report, so that a replaced report can be recognised.
    stamp: u64,
    items: BTreeMap<BlockId, (u64, ReplicaEvent)>,
}

/// Copies of some reports: the block, the stamp of the report, and the event.
pub(super) type Batch = Vec<(BlockId, u64, ReplicaEvent)>;

impl QueuedReports {
    fn insert(&mut self, block: BlockId, item: ReplicaEvent) {
        self.stamp += 1;
        self.items.insert(block, (self.stamp, item));
    }
}

impl PendingReports {
    /// Adds a report for each block, in place of an earlier one, and wakes the link.
    pub(super) fn post(&self, items: impl IntoIterator<Item = (BlockId, ReplicaEvent)>) {
        let mut waiting = self.waiting.lock();
        for (block, item) in items {
            waiting.insert(block, item);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Wakes the link to send a heartbeat, so that the node gets more commands.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Adds a report unless a report of this block is pending.
    pub(super) fn post_if_absent(&self, block: BlockId, item: ReplicaEvent) {
        let mut waiting = self.waiting.lock();
        if waiting.items.contains_key(&block) {
            return;
        }
        waiting.insert(block, item);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Returns whether the NameNode has received all reports.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().items.is_empty()
    }

    /// Returns a copy of the pending reports, at most [`BATCH_REPORTS_MAX`].
    pub(super) fn batch(&self) -> Batch {
        let waiting = self.waiting.lock();
        let items = waiting.items.iter().take(BATCH_REPORTS_MAX);
        items.map(|(block, (stamp, item))| (*block, *stamp, item.clone())).collect()
    }

    /// Removes the reports of a batch that the NameNode has received. A report that was replaced
    /// since the batch was made stays.
    pub(super) fn acknowledge(&self, batch: &Batch) {
        let mut waiting = self.waiting.lock();
        for (block, stamp, _) in batch {
            if waiting.items.get(block).is_some_and(|(now, _)| now == stamp) {
                waiting.items.remove(block);
            }
        }
        if !waiting.items.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Waits until the link is to send a heartbeat.
    pub(super) async fn wait_woken(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode::{
        disk::RealDisk,
        open,
        store::{
            Store,
            partial::{Claim, ClaimOutcome},
        },
    };
    use std::{sync::Arc, time::Duration};

    const BLOCK: BlockId = BlockId(1);

    fn with_writer(test: impl FnOnce(&Store, crate::datanode::store::partial::Writer<'_>)) {
        let home = tempfile::tempdir().unwrap();
        let (fatal_error, _) = tokio::sync::mpsc::unbounded_channel();
        let dirs = ["a", "b"].map(|name| home.path().join(name));
        let store = Store::open(&dirs, &open::Settings::default(), Arc::new(RealDisk), fatal_error).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        let claim = Claim {
            block: BLOCK,
            nonce: Nonce(1),
            resume_at: 0,
            expected_length: 0,
            connection: &connection,
        };
        let ClaimOutcome::Write(writer) = store.begin(&claim).unwrap() else {
            panic!("expected ClaimOutcome::Write for a new block")
        };
        test(&store, writer);
    }

    /// Checks that no thread can see the change of the map that `change` makes before its report is
    /// added. The caller sees `change` wait for the lock of the reports.
    fn map_and_report_change_together(store: &Store, change: impl FnOnce() + Send) {
        let before = store.find(BLOCK);
        std::thread::scope(|scope| {
            let reports = store.pending_reports.waiting.lock();
            scope.spawn(change);
            while let Some(state) = store.state.try_lock_for(Duration::from_millis(500)) {
                assert_eq!(state.replicas.get(&BLOCK).copied(), before, "changed without a report");
            }
            drop(reports);
        });
        assert_ne!(store.find(BLOCK), before);
    }

    #[test]
    fn report_of_a_replica_is_added_before_other_threads_see_the_change() {
        with_writer(|store, mut writer| {
            let event = || store.pending_reports.batch().pop().unwrap().2;
            map_and_report_change_together(store, || {
                writer.finalise().unwrap();
            });
            assert_eq!(event(), ReplicaEvent::Received(Nonce(1), 0));
            let volume = store.find(BLOCK).unwrap().volume;
            map_and_report_change_together(store, || store.retire(volume, "for the test"));
            assert_eq!(event(), ReplicaEvent::Lost);
        });
    }

    #[test]
    fn check_of_a_replica_that_is_gone_reports_nothing() {
        with_writer(|store, mut writer| {
            writer.finalise().unwrap();
            let replica = store.find(BLOCK).unwrap();
            let acknowledge = || store.pending_reports.acknowledge(&store.pending_reports.batch());
            acknowledge();
            store.post_absent(BLOCK);
            assert!(store.pending_reports.is_empty(), "a replica that exists is reported as lost");
            store.post_checked(BLOCK, replica);
            assert_eq!(store.pending_reports.batch()[0].2, ReplicaEvent::Checked);
            drop(store.quarantine_replica(BLOCK, replica, "for the test".into()));
            acknowledge();
            store.post_checked(BLOCK, replica);
            assert!(store.pending_reports.is_empty(), "a damaged replica is reported as good");
        });
    }

    /// Two threads report on the same blocks. Checks that `post_if_absent` never replaces a report.
    #[test]
    fn report_that_must_be_absent_replaces_none() {
        const BLOCKS: u64 = 200_000;
        let reports = PendingReports::default();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                (0..BLOCKS).for_each(|block| reports.post([(BlockId(block), ReplicaEvent::Lost)]));
            });
            together.wait();
            (0..BLOCKS).for_each(|block| reports.post_if_absent(BlockId(block), ReplicaEvent::Checked));
        });
        let waiting = reports.waiting.lock();
        let replaced = waiting.items.values().filter(|(_, item)| *item != ReplicaEvent::Lost).count();
        assert_eq!((waiting.items.len() as u64, replaced), (BLOCKS, 0));
    }

    #[test]
    fn newest_report_is_kept_until_acknowledged() {
        let pending_reports = PendingReports::default();
        let received = |length| ReplicaEvent::Received(Nonce(1), length);
        pending_reports.post([(BlockId(1), received(5)), (BlockId(2), received(6))]);
        pending_reports.post([(BlockId(1), ReplicaEvent::Deleted)]);
        let batch = pending_reports.batch();
        assert_eq!(batch.len(), 2);
        assert_eq!(batch[0].2, ReplicaEvent::Deleted);
        pending_reports.post([(BlockId(2), ReplicaEvent::Lost)]);
        pending_reports.acknowledge(&batch);
        let left: Vec<_> =
            pending_reports.batch().into_iter().map(|(block, _, item)| (block, item)).collect();
        assert_eq!(left, [(BlockId(2), ReplicaEvent::Lost)]);
    }
}
