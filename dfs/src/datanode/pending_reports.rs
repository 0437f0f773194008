//! Reports that the NameNode has not received yet. There is at most one per block, the newest. It
//! is kept until a heartbeat that contains it has succeeded. The number is bounded by the number of
//! blocks on the disks.

use dfs_client::ids::{BlockId, Nonce};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// What happened to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
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

/// Maximum number of items per heartbeat. Keeps the message well below the size limit of gRPC.
const BATCH_MAX: usize = 10_000;

/// The pending items, and a notification that wakes the link.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    stamp: u64,
    items: BTreeMap<BlockId, (u64, Item)>,
}

/// A copy of some items. The number is the stamp of the item.
pub(super) type Batch = Vec<(BlockId, u64, Item)>;

impl PendingReports {
    /// Adds items and wakes the link.
    pub(super) fn post(&self, items: impl IntoIterator<Item = (BlockId, Item)>) {
        let mut waiting = self.waiting.lock();
        for (block, item) in items {
            waiting.stamp += 1;
            let stamp = waiting.stamp;
            waiting.items.insert(block, (stamp, item));
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Wakes the link to send a heartbeat without new items, so that the node gets more commands.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Adds an item unless an item of this block is pending.
    pub(super) fn post_if_absent(&self, block: BlockId, item: Item) {
        let absent = !self.waiting.lock().items.contains_key(&block);
        if absent {
            self.post([(block, item)]);
        }
    }

    /// Whether all items have been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().items.is_empty()
    }

    /// Returns a copy of the pending items, or of the first ones if there are too many.
    pub(super) fn batch(&self) -> Batch {
        let waiting = self.waiting.lock();
        let items = waiting.items.iter().take(BATCH_MAX);
        items.map(|(block, (stamp, item))| (*block, *stamp, item.clone())).collect()
    }

    /// Removes the items of a batch that the NameNode has received. Items that have changed since
    /// then stay.
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

    /// Waits until there is something to send.
    pub(super) async fn wait_woken(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_item_is_kept_until_acknowledged() {
        let pending_reports = PendingReports::default();
        let received = |length| Item::Received(Nonce(1), length);
        pending_reports.post([(BlockId(1), received(5)), (BlockId(2), received(6))]);
        pending_reports.post([(BlockId(1), Item::Deleted)]);
        let batch = pending_reports.batch();
        assert_eq!(batch.len(), 2);
        assert_eq!(batch[0].2, Item::Deleted);
        pending_reports.post([(BlockId(2), Item::Lost)]);
        pending_reports.acknowledge(&batch);
        let left: Vec<_> =
            pending_reports.batch().into_iter().map(|(block, _, item)| (block, item)).collect();
        assert_eq!(left, [(BlockId(2), Item::Lost)]);
    }
}
