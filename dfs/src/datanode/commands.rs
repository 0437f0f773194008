//! What the NameNode asks for: copies, deletions, checks. Queued, and done by a few threads.
//!
//! Bounded: what does not fit is dropped with a word in the log, for the NameNode asks again. Deletions
//! queued before a new registration are forgotten: the NameNode that gave them may have thought better.

use super::{
    mirror::{self, Mirror, MirrorRequest},
    node::Node,
    pending_reports::Item,
    scrub,
    send::check_length,
    store::Opened,
};
use crate::{
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

/// One thing to do.
#[derive(Debug)]
pub(super) enum BlockCommand {
    /// Send a replica to other nodes.
    Copy {
        /// Which.
        block: BlockId,
        /// Its nonce.
        nonce: Nonce,
        /// As the NameNode knows it.
        length: u64,
        /// A pipeline.
        targets: Vec<DataNodeAddress>,
        /// Opens the block to be written there.
        token: BlockToken,
    },
    /// Delete replicas, sound or quarantined.
    Delete(Vec<(BlockId, Nonce)>),
    /// Re-read a replica.
    Check(BlockId),
}

/// Copies wait for the network, the rest for the disk: two queues, so that neither holds up the other.
#[derive(Debug, Default)]
pub(super) struct CommandQueues {
    copies: Queue,
    others: Queue,
    /// Deletions of an older registration are void.
    registration: AtomicU64,
    /// A copy has ended and none is waiting.
    idle: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<VecDeque<(u64, BlockCommand)>>,
    changed: Condvar,
}

impl CommandQueues {
    /// Adds a chore.
    pub(super) fn add(&self, chore: BlockCommand) {
        let queue = if matches!(chore, BlockCommand::Copy { .. }) { &self.copies } else { &self.others };
        let mut waiting = queue.waiting.lock();
        // The NameNode repeats a check that it has had no report on.
        let same = |(_, queued): &(u64, BlockCommand)| matches!((queued, &chore), (BlockCommand::Check(a), BlockCommand::Check(b)) if a == b);
        if waiting.iter().any(same) {
            return;
        }
        if waiting.len() >= QUEUE_MAX {
            tracing::warn!(?chore, "too much to do: command dropped");
            return;
        }
        waiting.push_back((self.registration.load(Ordering::SeqCst), chore));
        queue.changed.notify_one();
    }

    /// Whether copies have run out since it was last asked.
    pub(super) fn ran_out(&self) -> bool {
        self.idle.swap(false, Ordering::SeqCst)
    }

    /// The node stops: nobody waits for chores any more.
    pub(super) fn wake(&self) {
        for queue in [&self.copies, &self.others] {
            // Whoever holds the lock has not looked yet, or waits already.
            let _waiting = queue.waiting.lock();
            queue.changed.notify_all();
        }
    }

    /// Voids the deletions queued and under way.
    pub(super) fn forget_deletions(&self) {
        self.registration.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts the threads.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    for index in 0..=COPY_THREADS {
        let node = node.clone();
        let run = move || {
            let queue = if index == 0 { &node.command_queues.others } else { &node.command_queues.copies };
            run_worker(&node, queue);
        };
        std::thread::Builder::new().name("chores".into()).spawn(run)?;
    }
    Ok(())
}

fn run_worker(node: &Node, queue: &Queue) {
    loop {
        let mut waiting = queue.waiting.lock();
        if node.stop.is_stopping() {
            return;
        }
        let Some((given, chore)) = waiting.pop_front() else {
            queue.changed.wait(&mut waiting);
            continue;
        };
        drop(waiting);
        match chore {
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
            // A damaged replica is posted as such. After an error that proves nothing, the NameNode asks again.
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

/// Sends a replica down a pipeline, as a client would; each byte is verified before it leaves.
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
        Err(refusal) => return tracing::warn!(%block, %refusal, "no copy made"),
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
        tracing::info!(%block, copies, "copied on command");
    } else {
        let why: Vec<_> = faults.iter().map(|fault| format!("{}: {}", fault.node, fault.reason)).collect();
        tracing::warn!(%block, copies, faults = why.join("; "), "copy went wrong in part");
    }
}
