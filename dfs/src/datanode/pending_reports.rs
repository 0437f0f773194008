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

impl PendingReports {
    /// Adds a report for each block, in place of an earlier one, and wakes the link.
    pub(super) fn post(&self, items: impl IntoIterator<Item = (BlockId, ReplicaEvent)>) {
        let mut waiting = self.waiting.lock();
        for (block, item) in items {
            waiting.stamp += 1;
            let stamp = waiting.stamp;
            waiting.items.insert(block, (stamp, item));
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
        let absent = !self.waiting.lock().items.contains_key(&block);
        if absent {
            self.post([(block, item)]);
        }
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
