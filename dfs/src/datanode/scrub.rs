//! Re-reading replicas: on the NameNode's word, and all of them, slowly, round after round.
//!
//! Disks lose bits silently; a damaged replica found while good ones exist elsewhere is a small matter.
//! The same thread clears away partial replicas whose writers are gone. Where the scrubber was is not kept
//! over a restart: it starts over.

use super::{
    node::Node,
    store::{Opened, Store},
    volume::Damage,
};
use crate::{
    bulk::PACKET_BYTES,
    checksum::{CHUNK_BYTES, verify},
    ids::BlockId,
};
use std::{
    io,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

/// Abandoned partial replicas are looked for no more often than this; also the shortest pause between two rounds.
const TICK: Duration = Duration::from_millis(100);
/// And no less often than this.
const TICK_MAX: Duration = Duration::from_secs(2);

/// Bytes of an opened replica, verified: `piece` gets them in order, at most a packet at a time, with their
/// sums, and says whether to continue. An empty block has one empty piece. True if all was read.
pub(super) fn read_verified(
    opened: &Opened,
    mut piece: impl FnMut(u64, &[u8], &[u32]) -> bool,
) -> Result<bool, Damage> {
    let length = opened.replica.length;
    let mut buffer = vec![0; (PACKET_BYTES as u64).min(length) as usize];
    let mut offset = 0;
    loop {
        let bytes = &mut buffer[..(PACKET_BYTES as u64).min(length - offset) as usize];
        opened.data.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), format!("ends after {offset}")),
            _ => error,
        })?;
        let first = offset as usize / CHUNK_BYTES;
        let sums = &opened.sums.sums[first..first + bytes.len().div_ceil(CHUNK_BYTES)];
        verify(bytes, offset, sums)?;
        let at = offset;
        offset += bytes.len() as u64;
        let go_on = piece(at, bytes, sums);
        if !go_on || offset == length {
            return Ok(offset == length);
        }
    }
}

/// Re-reads one replica; whether it is sound. A damaged one is quarantined and posted; of a sound one, what was
/// quarantined before is deleted. `pace` gets the number of bytes read and returns whether to continue.
pub(super) fn check(store: &Store, block: BlockId, mut pace: impl FnMut(usize) -> bool) -> bool {
    let Some(replica) = store.find(block) else { return false };
    let Ok(opened) = store.open_replica(block, replica) else { return false };
    match read_verified(&opened, |_, bytes, _| pace(bytes.len())) {
        Ok(true) => {
            store.forget_quarantined(block, opened.replica);
            true
        }
        Ok(false) => false,
        Err(damage) => {
            drop(store.found_damage(block, opened.replica, damage));
            false
        }
    }
}

/// Walks all replicas, forever, until the node stops.
pub(super) fn run(node: &Node) {
    let rate = node.config.scrub_rate.0;
    let interval = node.config.transfer_timeout.0 * 2;
    let tick = (interval / 4).clamp(TICK, TICK_MAX);
    let mut walk = Walk { node, interval, tick, cleared: Instant::now() };
    let mut last = None;
    let mut round = Instant::now();
    while !node.stop.is_stopping() {
        let next = if rate == 0 { None } else { node.store.after(last) };
        let Some(block) = next else {
            let left = node.config.scrub_period.0.saturating_sub(round.elapsed());
            let off = rate == 0 && !walk.sleep(Duration::MAX);
            if off || !walk.sleep(left.max(TICK)) {
                return;
            }
            (last, round) = (None, Instant::now());
            continue;
        };
        check(&node.store, block, |bytes| walk.sleep(Duration::from_secs_f64(bytes as f64 / rate as f64)));
        last = Some(block);
    }
}

/// A sleep that clears away partial replicas now and then.
struct Walk<'a> {
    node: &'a Node,
    interval: Duration,
    tick: Duration,
    cleared: Instant,
}

impl Walk<'_> {
    /// False if the node stops.
    fn sleep(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        loop {
            if self.cleared.elapsed() >= self.tick {
                self.node.store.drop_abandoned(self.interval);
                self.cleared = Instant::now();
            }
            let left = time.saturating_sub(begin.elapsed());
            if self.node.stop.wait(left.min(self.tick)) {
                return false;
            }
            if left <= self.tick {
                return true;
            }
        }
    }
}
