//! What the NameNode has yet to be told: at most one item a block, the newest, kept until a heartbeat that
//! carried it has succeeded. Bounded by the number of blocks on the disks.

use crate::ids::{BlockId, Nonce};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// What happened to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// It is durable and in place, with this nonce and length.
    Received(Nonce, u64),
    /// It was deleted on command.
    Deleted,
    /// It is damaged and was quarantined.
    ReadFailure(String),
    /// It went with its folder.
    Lost,
    /// It was re-read on command and is sound.
    Checked,
}

/// Items in one heartbeat, at the most: keeps the message well under gRPC's limit.
const BATCH_MAX: usize = 10_000;

/// The items waiting, and a bell for the link.
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

/// Some of the items, as they were when taken.
pub(super) type Batch = Vec<(BlockId, u64, Item)>;

impl PendingReports {
    /// Adds items and rings once.
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

    /// Nothing to tell, but something to ask: a heartbeat is due.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Adds an item unless something newer is waiting to be told of the block.
    pub(super) fn post_if_absent(&self, block: BlockId, item: Item) {
        let silent = !self.waiting.lock().items.contains_key(&block);
        if silent {
            self.post([(block, item)]);
        }
    }

    /// Whether all has been told.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().items.is_empty()
    }

    /// A copy of what is waiting, or of a part of it.
    pub(super) fn batch(&self) -> Batch {
        let waiting = self.waiting.lock();
        let items = waiting.items.iter().take(BATCH_MAX);
        items.map(|(block, (stamp, item))| (*block, *stamp, item.clone())).collect()
    }

    /// The NameNode has been told; items that have changed since stay.
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

    /// Waits for something to tell.
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
