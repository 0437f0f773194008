//! Verifies replicas: single replicas on command of the NameNode, and all replicas one after the
//! other, slowly and repeatedly.
//!
//! Disks lose data silently. A damaged replica is easy to replace if it is found while good
//! replicas exist on other nodes. The thread of the scrubber also drops partial replicas without a
//! writer. The position of the scrubber is not stored: after a restart it starts with the first
//! replica.

use super::{
    node::Node,
    store::{OpenReplica, Store},
    volume::Damage,
};
use dfs_client::{
    bulk::PACKET_BYTES,
    checksum::{CHUNK_BYTES, verify},
    ids::BlockId,
};
use std::{
    io,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

/// Minimum interval between two searches for abandoned partial replicas, and minimum pause before
/// all replicas are verified again.
const CLEAN_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum interval between two searches for abandoned partial replicas.
const CLEAN_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// Reads an open replica and verifies it. Calls `piece` for each piece of at most a packet, in
/// order, with its offset, data and checksums; `piece` returns whether to continue. An empty block
/// has one empty piece. Returns true if the complete replica was read.
pub(super) fn read_verified(
    opened: &OpenReplica,
    mut piece: impl FnMut(u64, &[u8], &[u32]) -> bool,
) -> Result<bool, Damage> {
    let length = opened.replica.length;
    let mut buffer = vec![0; (PACKET_BYTES as u64).min(length) as usize];
    let mut offset = 0;
    loop {
        let bytes = &mut buffer[..(PACKET_BYTES as u64).min(length - offset) as usize];
        opened.data.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), format!("the file ends after offset {offset}"))
            }
            _ => error,
        })?;
        let first = offset as usize / CHUNK_BYTES;
        let sums = &opened.sums.sums[first..first + bytes.len().div_ceil(CHUNK_BYTES)];
        verify(bytes, offset, sums)?;
        let at = offset;
        offset += bytes.len() as u64;
        let proceed = piece(at, bytes, sums);
        if !proceed || offset == length {
            return Ok(offset == length);
        }
    }
}

/// Verifies one replica and returns whether it is good. A damaged replica is quarantined and
/// reported. If the replica is good, quarantined replicas of the same block are deleted. `pace`
/// gets the number of bytes read and returns whether to continue.
pub(super) fn check(store: &Store, block: BlockId, mut pace: impl FnMut(usize) -> bool) -> bool {
    let Some(replica) = store.find(block) else { return false };
    let Ok(opened) = store.open_replica(block, replica) else { return false };
    match read_verified(&opened, |_, bytes, _| pace(bytes.len())) {
        Ok(true) => {
            store.delete_quarantined_duplicates(block, opened.replica);
            true
        }
        Ok(false) => false,
        Err(damage) => {
            drop(store.handle_read_error(block, opened.replica, damage));
            false
        }
    }
}

/// Verifies all replicas again and again until the node stops.
pub(super) fn run(node: &Node) {
    let rate = node.config.scrub_rate.0;
    let abandoned_after = node.config.transfer_timeout.0 * 2;
    let clean_interval = (abandoned_after / 4).clamp(CLEAN_INTERVAL_MIN, CLEAN_INTERVAL_MAX);
    let mut pacer = Pacer { node, abandoned_after, clean_interval, last_cleared: Instant::now() };
    let mut last = None;
    let mut round = Instant::now();
    while !node.stop.is_stopping() {
        let next = if rate == 0 { None } else { node.store.next_block_after(last) };
        let Some(block) = next else {
            let left = node.config.scrub_period.0.saturating_sub(round.elapsed());
            let off = rate == 0 && !pacer.sleep(Duration::MAX);
            if off || !pacer.sleep(left.max(CLEAN_INTERVAL_MIN)) {
                return;
            }
            (last, round) = (None, Instant::now());
            continue;
        };
        check(&node.store, block, |bytes| pacer.sleep(Duration::from_secs_f64(bytes as f64 / rate as f64)));
        last = Some(block);
    }
}

/// Sleeps between reads, and drops abandoned partial replicas from time to time.
struct Pacer<'a> {
    node: &'a Node,
    /// How long a partial replica must have had no writer to be dropped.
    abandoned_after: Duration,
    clean_interval: Duration,
    last_cleared: Instant,
}

impl Pacer<'_> {
    /// Sleeps for `time`, and drops abandoned partial replicas meanwhile. Returns false if the node
    /// stops.
    fn sleep(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        loop {
            if self.last_cleared.elapsed() >= self.clean_interval {
                self.node.store.drop_abandoned(self.abandoned_after);
                self.last_cleared = Instant::now();
            }
            let left = time.saturating_sub(begin.elapsed());
            if self.node.stop.wait(left.min(self.clean_interval)) {
                return false;
            }
            if left <= self.clean_interval {
                return true;
            }
        }
    }
}
