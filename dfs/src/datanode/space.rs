//! Measures the free space of the disks. Each folder has its own thread, so that a disk that hangs
//! affects only itself.

use super::node::Node;
use std::{io, sync::Arc, time::Duration};

/// Interval of the measurements. It can be long, because the bytes written between two measurements
/// are counted.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);

/// Starts one thread per folder.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    for volume in 0..node.store.volumes.len() {
        let node = node.clone();
        let run = move || {
            while !node.stop.wait(MEASURE_INTERVAL) {
                node.store.measure_space(volume);
            }
        };
        std::thread::Builder::new().name("space".into()).spawn(run)?;
    }
    Ok(())
}
