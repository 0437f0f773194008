//! Commands of the NameNode: copies, deletions, checks. They are queued and executed by a few
//! threads.
//!
//! The queues are bounded. A command that does not fit is dropped and logged, because the NameNode
//! sends it again. Deletions that were queued before a new registration are dropped, because the
//! NameNode may have changed its decision.

use super::{
    mirror::{self, Mirror, MirrorRequest},
    node::Node,
    pending_reports::Item,
    scrub,
    send::check_length,
    store::Opened,
};
use dfs_client::{
    checksum::to_bytes,
    ids::{BlockId, Nonce},
};
use parking_lot::{Condvar, Mutex};
use proto::dfs::{DataNodeAddress, NodeFault, Packet};
use security::BlockToken;
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

const QUEUE_MAX: usize = 10_000;
const COPY_THREADS: usize = 4;

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

/// The queues of commands. Copies wait for the network and the other commands for the disk, so they
/// have separate queues.
#[derive(Debug, Default)]
pub(super) struct CommandQueues {
    copies: Queue,
    others: Queue,
    /// The number of the present registration. Deletions of an older registration are dropped.
    registration: AtomicU64,
    /// A copy has ended and no copy is waiting.
    idle: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<VecDeque<(u64, BlockCommand)>>,
    changed: Condvar,
}

impl CommandQueues {
    pub(super) fn add(&self, command: BlockCommand) {
        let queue = if matches!(command, BlockCommand::Copy { .. }) { &self.copies } else { &self.others };
        let mut waiting = queue.waiting.lock();
        // The NameNode sends a check again if it gets no report.
        let same = |(_, queued): &(u64, BlockCommand)| matches!((queued, &command), (BlockCommand::Check(a), BlockCommand::Check(b)) if a == b);
        if waiting.iter().any(same) {
            return;
        }
        if waiting.len() >= QUEUE_MAX {
            tracing::warn!(?command, "command queue full: command dropped");
            return;
        }
        waiting.push_back((self.registration.load(Ordering::SeqCst), command));
        queue.changed.notify_one();
    }

    /// Whether the last copy has ended since the previous call.
    pub(super) fn ran_out(&self) -> bool {
        self.idle.swap(false, Ordering::SeqCst)
    }

    /// Wakes the worker threads, so that they notice that the node is stopping.
    pub(super) fn wake(&self) {
        for queue in [&self.copies, &self.others] {
            // With the lock held, every worker either has not checked `is_stopping` yet or is
            // already waiting.
            let _waiting = queue.waiting.lock();
            queue.changed.notify_all();
        }
    }

    /// Drops the deletions that are queued or running.
    pub(super) fn forget_deletions(&self) {
        self.registration.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts the worker threads.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    for index in 0..=COPY_THREADS {
        let node = node.clone();
        let run = move || {
            let queue = if index == 0 { &node.command_queues.others } else { &node.command_queues.copies };
            run_worker(&node, queue);
        };
        std::thread::Builder::new().name("commands".into()).spawn(run)?;
    }
    Ok(())
}

fn run_worker(node: &Node, queue: &Queue) {
    loop {
        let mut waiting = queue.waiting.lock();
        if node.stop.is_stopping() {
            return;
        }
        let Some((given, command)) = waiting.pop_front() else {
            queue.changed.wait(&mut waiting);
            continue;
        };
        drop(waiting);
        match command {
            BlockCommand::Copy { block, nonce, length, targets, token } => {
                copy(node, (block, nonce), length, &targets, token);
                if queue.waiting.lock().is_empty() {
                    node.command_queues.idle.store(true, Ordering::SeqCst);
                    node.store.pending_reports.wake();
                }
            }
            BlockCommand::Delete(blocks) => {
                let registration = &node.command_queues.registration;
                node.store.delete(&blocks, || registration.load(Ordering::SeqCst) == given);
            }
            // `check` reports a damaged replica itself. After a transient error nothing is
            // reported, and the NameNode asks again.
            BlockCommand::Check(block) => match node.store.find(block) {
                Some(_) if scrub::check(&node.store, block, |_| !node.stop.is_stopping()) => {
                    node.store.pending_reports.post_if_absent(block, Item::Checked);
                }
                Some(_) => {}
                None => node.store.post_absent(block),
            },
        }
    }
}

/// Copies a replica through a pipeline, as a client does. Each byte is verified before it is sent.
fn copy(
    node: &Node,
    (block, nonce): (BlockId, Nonce),
    length: u64,
    targets: &[DataNodeAddress],
    token: BlockToken,
) {
    let found = node.store.find_nonce(block, nonce);
    let opened = found.and_then(|replica| node.store.open_replica(block, replica));
    let opened = opened.and_then(|opened| check_length(&node.store, &opened, length).map(|()| opened));
    let opened = match opened {
        Ok(opened) => opened,
        Err(refusal) => return tracing::warn!(%block, %refusal, "replica not copied"),
    };
    let timeout = node.config.transfer_timeout.0;
    let order = MirrorRequest { block, nonce, resume_at: 0, expected: length, timeout, token };
    let (ready, mut faults) = mirror::connect(order, targets, node);
    let Some(ready) = ready else { return log_copy(block, 0, &faults) };
    match ready.start(order, |_| {}) {
        Ok(mirror) => send_all(node, opened, mirror, faults),
        Err(error) => {
            faults.push(NodeFault { node: "self".into(), reason: error.to_string() });
            log_copy(block, 0, &faults);
        }
    }
}

fn send_all(node: &Node, opened: Opened, mut mirror: Mirror, mut faults: Vec<NodeFault>) {
    let (block, length) = (opened.block, opened.replica.length);
    let sent = scrub::read_verified(&opened, |offset, bytes, sums| {
        let last = offset + bytes.len() as u64 == length;
        mirror.send(&Packet { offset, last, checksums: to_bytes(sums) }, bytes);
        !mirror.has_ended() && !node.stop.is_stopping()
    });
    if let Err(damage) = sent {
        node.store.found_damage(block, opened.replica, damage);
        return;
    }
    if node.stop.is_stopping() {
        return;
    }
    let downstream = mirror.finish();
    faults.extend(downstream.faults);
    log_copy(block, if downstream.done.is_some() { downstream.nodes.len() } else { 0 }, &faults);
}

fn log_copy(block: BlockId, copies: usize, faults: &[NodeFault]) {
    if faults.is_empty() {
        tracing::info!(%block, copies, "replica copied");
    } else {
        let why: Vec<_> = faults.iter().map(|fault| format!("{}: {}", fault.node, fault.reason)).collect();
        tracing::warn!(%block, copies, faults = why.join("; "), "copy incomplete");
    }
}
