//! The queues for the commands of the NameNode.
//!
//! The queues are bounded. A command that does not fit is dropped and logged; the NameNode sends it
//! again. Deletions that were queued before a new registration or a new epoch are dropped, because
//! the NameNode may have changed its decision, or another NameNode decides now.

use crossbeam::channel::{Receiver, Sender, bounded};
use dfs_client::ids::{BlockId, Nonce};
use parking_lot::{Mutex, MutexGuard};
use proto::dfs::DataNodeAddress;
use security::BlockToken;
use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
};
use tokio::sync::Notify;

const QUEUE_COMMANDS_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) enum BlockCommand {
    /// Copy a replica to other nodes.
    Copy {
        /// The ID of the block.
        block: BlockId,
        /// The nonce of the block.
        nonce: Nonce,
        /// The length of the block according to the NameNode.
        length: u64,
        /// The nodes of the pipeline, in order.
        targets: Vec<DataNodeAddress>,
        /// The token for writing the block to these nodes.
        token: BlockToken,
    },
    /// Delete replicas, including quarantined ones.
    Delete {
        /// The blocks to delete, with their nonces.
        blocks: Vec<(BlockId, Nonce)>,
        /// The serial number of the newest replica when the order arrived. Newer replicas are kept.
        newest: u64,
    },
    /// Read and verify a replica.
    Check(BlockId),
}

/// A command, and the period in which it was accepted. The command is in a box, because a queue
/// allocates the memory for all its entries at once.
pub(super) type QueuedCommand = (u64, Box<BlockCommand>);

/// The queues. Copies wait for the network and the other commands for the disk, so they have
/// separate queues.
#[derive(Debug)]
pub(super) struct CommandQueues {
    copies: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    deletions_and_checks: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    /// Blocks with a check in `deletions_and_checks`.
    checks: Mutex<HashSet<BlockId>>,
    /// The number of the current period. Deletions of an older period are dropped. A new period
    /// begins with each registration and each epoch.
    period: AtomicU64,
    /// Locked while a replica is deleted.
    deleting: Mutex<()>,
    /// Notified when a copy has ended and no other is waiting.
    copies_ran_out: Notify,
}

impl Default for CommandQueues {
    fn default() -> Self {
        Self {
            copies: bounded(QUEUE_COMMANDS_MAX),
            deletions_and_checks: bounded(QUEUE_COMMANDS_MAX),
            checks: Mutex::default(),
            period: AtomicU64::new(0),
            deleting: Mutex::default(),
            copies_ran_out: Notify::new(),
        }
    }
}

impl CommandQueues {
    /// Returns the current period. It must be read before the epoch of a command is checked: if a
    /// new epoch begins in between, the command is of an old period.
    pub(super) fn period(&self) -> u64 {
        self.period.load(Ordering::SeqCst)
    }

    /// Adds a command that was accepted in this period.
    pub(super) fn add(&self, period: u64, command: BlockCommand) {
        let check = if let BlockCommand::Check(block) = command { Some(block) } else { None };
        // Ignore a check that is already queued: the NameNode sends a check again if it gets no
        // report.
        if check.is_some_and(|block| !self.checks.lock().insert(block)) {
            return;
        }
        let queue = if matches!(command, BlockCommand::Copy { .. }) {
            &self.copies
        } else {
            &self.deletions_and_checks
        };
        if let Err(full) = queue.0.try_send((period, Box::new(command))) {
            tracing::warn!(command = ?full.into_inner().1, "command queue full: command dropped");
            self.check_taken(check);
        }
    }

    /// Returns the queue of copies.
    pub(super) fn copies(&self) -> &Receiver<QueuedCommand> {
        &self.copies.1
    }

    /// Returns the queue of deletions and checks.
    pub(super) fn deletions_and_checks(&self) -> &Receiver<QueuedCommand> {
        &self.deletions_and_checks.1
    }

    /// Records that checks of these blocks have left the queue, so that they can be queued again.
    pub(super) fn check_taken(&self, check: impl IntoIterator<Item = BlockId>) {
        for block in check {
            self.checks.lock().remove(&block);
        }
    }

    /// Records that a copy has ended.
    pub(super) fn copy_ended(&self) {
        if self.copies().is_empty() {
            self.copies_ran_out.notify_one();
        }
    }

    /// Waits until, since the previous call, a copy has ended and no other was waiting.
    pub(super) async fn copies_ran_out(&self) {
        self.copies_ran_out.notified().await;
    }

    /// Begins a new period: drops the queued deletions, and waits until the running one has ended.
    pub(super) fn forget_deletions(&self) {
        self.period.fetch_add(1, Ordering::SeqCst);
        drop(self.deleting.lock());
    }

    /// Returns the permit to delete one replica, if this period is the current one.
    pub(super) fn permit_deletion(&self, period: u64) -> Option<MutexGuard<'_, ()>> {
        let permit = self.deleting.lock();
        (self.period() == period).then_some(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_queued_once_and_again_after_it_was_taken() {
        let queues = CommandQueues::default();
        for _ in 0..3 {
            queues.add(0, BlockCommand::Check(BlockId(1)));
        }
        queues.add(0, BlockCommand::Check(BlockId(2)));
        assert_eq!(queues.deletions_and_checks().len(), 2);
        queues.deletions_and_checks().recv().unwrap();
        queues.check_taken([BlockId(1)]);
        queues.add(0, BlockCommand::Check(BlockId(1)));
        assert_eq!(queues.deletions_and_checks().len(), 2);
    }

    #[test]
    fn a_full_queue_drops_commands_that_can_be_sent_again() {
        let queues = CommandQueues::default();
        for block in 0..=QUEUE_COMMANDS_MAX as u64 {
            queues.add(0, BlockCommand::Check(BlockId(block)));
        }
        assert_eq!(queues.deletions_and_checks().len(), QUEUE_COMMANDS_MAX);
        queues.deletions_and_checks().recv().unwrap();
        queues.add(0, BlockCommand::Check(BlockId(QUEUE_COMMANDS_MAX as u64)));
        assert_eq!(queues.deletions_and_checks().len(), QUEUE_COMMANDS_MAX);
    }
}
