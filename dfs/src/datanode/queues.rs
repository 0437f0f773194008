//! The queues for the commands of the NameNode.
//!
//! The queues are bounded. A command that does not fit is dropped and logged; the NameNode sends it
//! again. Deletions that were queued before a new registration are dropped, because the NameNode
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

/// A command, and the number of the registration in which it was queued. The command is in a box,
/// because a queue allocates the memory for all its entries at once.
pub(super) type QueuedCommand = (u64, Box<BlockCommand>);

/// The queues. Copies wait for the network and the other commands for the disk, so they have
/// separate queues.
#[derive(Debug)]
pub(super) struct CommandQueues {
    copies: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    deletions_and_checks: (Sender<QueuedCommand>, Receiver<QueuedCommand>),
    /// Blocks with a check in `deletions_and_checks`.
    checks: Mutex<HashSet<BlockId>>,
    /// The number of the current registration. Deletions of an older registration are dropped.
    registration: AtomicU64,
    /// Whether a copy has ended and no other was waiting, since [`Self::take_copies_ran_out`] was
    /// last called.
    copies_ran_out: AtomicBool,
}

impl Default for CommandQueues {
    fn default() -> Self {
        Self {
            copies: bounded(QUEUE_COMMANDS_MAX),
            deletions_and_checks: bounded(QUEUE_COMMANDS_MAX),
            checks: Mutex::default(),
            registration: AtomicU64::new(0),
            copies_ran_out: AtomicBool::new(false),
        }
    }
}

impl CommandQueues {
    pub(super) fn add(&self, command: BlockCommand) {
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
        let registration = self.registration.load(Ordering::SeqCst);
        if let Err(full) = queue.0.try_send((registration, Box::new(command))) {
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

    /// Records that a copy has ended. Returns true if no other copy is waiting.
    pub(super) fn copy_ended(&self) -> bool {
        let last = self.copies().is_empty();
        if last {
            self.copies_ran_out.store(true, Ordering::SeqCst);
        }
        last
    }

    /// Returns whether, since the previous call, a copy has ended and no other was waiting.
    pub(super) fn take_copies_ran_out(&self) -> bool {
        self.copies_ran_out.swap(false, Ordering::SeqCst)
    }

    /// Begins a new registration, which cancels the deletions that are queued or running.
    pub(super) fn forget_deletions(&self) {
        self.registration.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether this is the number of the current registration.
    pub(super) fn is_current(&self, registration: u64) -> bool {
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
        assert_eq!(queues.deletions_and_checks().len(), 2);
        queues.deletions_and_checks().recv().unwrap();
        queues.check_taken([BlockId(1)]);
        queues.add(BlockCommand::Check(BlockId(1)));
        assert_eq!(queues.deletions_and_checks().len(), 2);
    }

    #[test]
    fn a_full_queue_drops_commands_that_can_be_sent_again() {
        let queues = CommandQueues::default();
        for block in 0..=QUEUE_COMMANDS_MAX as u64 {
            queues.add(BlockCommand::Check(BlockId(block)));
        }
        assert_eq!(queues.deletions_and_checks().len(), QUEUE_COMMANDS_MAX);
        queues.deletions_and_checks().recv().unwrap();
        queues.add(BlockCommand::Check(BlockId(QUEUE_COMMANDS_MAX as u64)));
        assert_eq!(queues.deletions_and_checks().len(), QUEUE_COMMANDS_MAX);
    }
}
