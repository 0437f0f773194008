//! Tests of the client with fake servers: a NameNode with a namespace in memory, and DataNodes that
//! use the bulk protocol and fail on request. The tests in `tests/` use the real daemons.

mod calls;
mod cluster;
mod masters;
mod nodes;
mod read;
mod write;

use super::*;
pub(super) use cluster::Cluster;
pub(super) use nodes::Misbehaviour;
use parking_lot::Mutex as Lock;

pub(super) fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).unwrap()
}

/// Returns bytes that depend on their offset.
pub(super) fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8).collect()
}

/// Counts the reported bytes.
#[derive(Default)]
pub(super) struct CountedProgress(Lock<u64>);

impl Progress for CountedProgress {
    fn advance(&self, bytes: u64) {
        *self.0.lock() += bytes;
    }
}

impl CountedProgress {
    pub(super) fn total(&self) -> u64 {
        *self.0.lock()
    }
}

/// Waits until `condition` is true, at most ten seconds.
pub(super) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not true after ten seconds: {what}");
}
