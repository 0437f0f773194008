//! The queues of commands of the NameNode.
//!
//! They are bounded. A command that does not fit is dropped and logged, because the NameNode sends
//! it again. Deletions that were queued before a new registration are dropped, because the NameNode
//! may have changed its decision.

use crossbeam::channel::{Receiver, Sender, bounded};
use dfs_client::ids::{BlockId, Nonce};
use parking_lot::Mutex;
use proto::dfs::DataNodeAddress;
use security::BlockToken;
use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

const QUEUE_MAX: usize = 10_000;

/// A command.
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
    Delete(Vec<(BlockId, Nonce)>),
    /// Read and verify a replica.
    Check(BlockId),
}

/// A command, and the number of the registration in which it was queued. In a box, because a queue
/// allocates all its slots at once.
pub(super) type QueuedCommand = (u64, Box<BlockCommand>);

/// Copies wait for the network and the other commands for the disk, so they have separate queues.
#[derive(Debug)]
pub(super) struct CommandQueues {
    copies: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    others: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    /// Blocks with a check in `others`.
    checks: Mutex<HashSet<BlockId>>,
    /// The number of the present registration. Deletions of an older registration are dropped.
    registration: AtomicU64,
    /// A copy has ended and no copy is waiting.
    idle: AtomicBool,
}

impl Default for CommandQueues {
    fn default() -> Self {
        Self {
            copies: bounded(QUEUE_MAX),
            others: bounded(QUEUE_MAX),
            checks: Mutex::default(),
            registration: AtomicU64::new(0),
            idle: AtomicBool::new(false),
        }
    }
}

impl CommandQueues {
    pub(super) fn add(&self, command: BlockCommand) {
        let check = if let BlockCommand::Check(block) = command { Some(block) } else { None };
        // The NameNode sends a check again if it gets no report.
        if check.is_some_and(|block| !self.checks.lock().insert(block)) {
            return;
        }
        let queue = if matches!(command, BlockCommand::Copy { .. }) { &self.copies } else { &self.others };
        let registration = self.registration.load(Ordering::SeqCst);
        if let Err(full) = queue.0.try_send((registration, Box::new(command))) {
            tracing::warn!(command = ?full.into_inner().1, "command queue full: command dropped");
            self.check_taken(check);
        }
    }

    /// Copies that wait.
    pub(super) fn copies(&self) -> &Receiver<QueuedCommand> {
        &self.copies.1
    }

    /// Deletions and checks that wait.
    pub(super) fn others(&self) -> &Receiver<QueuedCommand> {
        &self.others.1
    }

    /// A check has left its queue: the same check can be queued again.
    pub(super) fn check_taken(&self, check: impl IntoIterator<Item = BlockId>) {
        for block in check {
            self.checks.lock().remove(&block);
        }
    }

    /// A copy has ended. Returns true if it was the last.
    pub(super) fn copy_ended(&self) -> bool {
        let last = self.copies().is_empty();
        if last {
            self.idle.store(true, Ordering::SeqCst);
        }
        last
    }

    /// Whether the last copy has ended since the previous call.
    pub(super) fn ran_out(&self) -> bool {
        self.idle.swap(false, Ordering::SeqCst)
    }

    /// Drops the deletions that are queued or running.
    pub(super) fn forget_deletions(&self) {
        self.registration.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a command with this number is of the present registration.
    pub(super) fn is_present(&self, registration: u64) -> bool {
        self.registration.load(Ordering::SeqCst) == registration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_queued_once_and_again_after_it_was_taken() {
        let queues = CommandQueues::default();
        for _ in 0..3 {
            queues.add(BlockCommand::Check(BlockId(1)));
        }
        queues.add(BlockCommand::Check(BlockId(2)));
        assert_eq!(queues.others().len(), 2);
        queues.others().recv().unwrap();
        queues.check_taken([BlockId(1)]);
        queues.add(BlockCommand::Check(BlockId(1)));
        assert_eq!(queues.others().len(), 2);
    }

    #[test]
    fn a_full_queue_drops_commands_that_can_be_sent_again() {
        let queues = CommandQueues::default();
        for block in 0..=QUEUE_MAX as u64 {
            queues.add(BlockCommand::Check(BlockId(block)));
        }
        assert_eq!(queues.others().len(), QUEUE_MAX);
        queues.others().recv().unwrap();
        queues.add(BlockCommand::Check(BlockId(QUEUE_MAX as u64)));
        assert_eq!(queues.others().len(), QUEUE_MAX);
    }
}
