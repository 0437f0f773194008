//! Measures the room on the disks, a thread a folder: a disk that hangs holds up its own figure and nothing else.

use super::node::Node;
use std::{io, sync::Arc, time::Duration};

/// Between two measurements what is written is counted, so this need not be short.
const EVERY: Duration = Duration::from_millis(500);

/// Starts the threads.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    for volume in 0..node.store.volumes.len() {
        let node = node.clone();
        let run = move || {
            while !node.stop.wait(EVERY) {
                node.store.measure(volume);
            }
        };
        std::thread::Builder::new().name("space".into()).spawn(run)?;
    }
    Ok(())
}
