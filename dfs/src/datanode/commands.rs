//! Threads that execute the commands of the NameNode in `queues`: copies, deletions, checks.

use super::{
    mirror::{self, Mirror, MirrorRequest},
    node::Node,
    queues::{BlockCommand, QueuedCommand},
    scrub,
    send::check_length,
    store::OpenReplica,
};
use crossbeam::channel::{Receiver, select_biased};
use dfs_client::{
    checksum::to_bytes,
    ids::{BlockId, Nonce},
};
use proto::dfs::{DataNodeAddress, NodeFault, Packet};
use security::BlockToken;
use std::{io, sync::Arc};

const COPY_THREADS: usize = 4;

/// Starts one thread for deletions and checks, and several threads for copies.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    for index in 0..=COPY_THREADS {
        let node = node.clone();
        let run = move || {
            let queues = &node.command_queues;
            run_worker(&node, if index == 0 { queues.deletions_and_checks() } else { queues.copies() });
        };
        std::thread::Builder::new().name("commands".into()).spawn(run)?;
    }
    Ok(())
}

fn run_worker(node: &Node, queue: &Receiver<QueuedCommand>) {
    let queues = &node.command_queues;
    loop {
        let (period, command) = select_biased! {
            recv(node.stop.channel()) -> _ => return,
            recv(queue) -> next => next.expect("the node has the sender"),
        };
        match *command {
            BlockCommand::Copy { block, nonce, length, targets, token } => {
                copy(node, (block, nonce), length, &targets, token);
                queues.copy_ended();
            }
            BlockCommand::Delete { blocks, newest } => {
                node.store.delete(&blocks, newest, || queues.permit_deletion(period));
            }
            BlockCommand::Check(block) => {
                queues.check_taken([block]);
                check(node, block);
            }
        }
    }
}

/// Verifies a replica and reports that it is good or absent. `scrub::check` reports a damaged
/// replica itself. After a transient error nothing is reported, and the NameNode sends the command
/// again.
fn check(node: &Node, block: BlockId) {
    match node.store.find(block) {
        Some(replica) if scrub::check(&node.store, block, |_| !node.stop.is_stopping()) => {
            node.store.post_checked(block, replica);
        }
        Some(_) => {}
        None => node.store.post_absent(block),
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
    let found = node.store.find_with_nonce(block, nonce);
    let opened = found.and_then(|replica| node.store.open_replica(block, replica));
    let opened = opened.and_then(|opened| check_length(&node.store, &opened, length).map(|()| opened));
    let opened = match opened {
        Ok(opened) => opened,
        Err(refusal) => return tracing::warn!(%block, %refusal, "replica not copied"),
    };
    let timeout = node.config.transfer_timeout.0;
    let request = MirrorRequest { block, nonce, resume_at: 0, expected_length: length, timeout, token };
    let (ready, mut faults) = mirror::connect(request, targets, node);
    let Some(ready) = ready else { return log_copy(block, 0, &faults) };
    match ready.start(request, |_| {}) {
        Ok(mirror) => send_all(node, opened, mirror, faults),
        Err(error) => {
            faults.push(NodeFault { node: "self".into(), reason: error.to_string() });
            log_copy(block, 0, &faults);
        }
    }
}

fn send_all(node: &Node, opened: OpenReplica, mut mirror: Mirror, mut faults: Vec<NodeFault>) {
    let (block, length) = (opened.block, opened.replica.length);
    let sent = scrub::read_verified(&opened, |offset, bytes, sums| {
        let last = offset + bytes.len() as u64 == length;
        mirror.send(&Packet { offset, last, checksums: to_bytes(sums) }, bytes);
        !mirror.has_ended() && !node.stop.is_stopping()
    });
    if let Err(damage) = sent {
        node.store.handle_read_error(block, opened.replica, damage);
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
