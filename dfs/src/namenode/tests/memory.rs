//! Estimates the memory per block from the sizes of map entries, for a million blocks.

use crate::namenode::namespace::{Block, File, Inode};
use dfs_client::ids::{BlockId, FileId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Returns the bytes per entry of a B-tree map that is filled in order: its leaves are a little
/// more than half full (6 of 11 entries). Adds four bytes for the inner nodes.
fn tree_bytes<K, V>() -> f64 {
    (size_of::<K>() + size_of::<V>()) as f64 * 11.0 / 6.0 + 4.0
}

/// Returns the bytes per block: its entry in the block map, its two replicas, their entries in the
/// nodes, and its entry in the file.
fn block_bytes() -> f64 {
    let durable = tree_bytes::<BlockId, Block>();
    let replicas = tree_bytes::<BlockId, SmallVec<[u32; 4]>>();
    let nodes = 2.0 * tree_bytes::<BlockId, ()>();
    durable + replicas + nodes + size_of::<BlockId>() as f64
}

/// Returns the bytes per file with a name of 16 bytes: its inode, its name, which is stored once,
/// and its entry in the folder.
fn file_bytes() -> f64 {
    let name = 16.0 + 16.0;
    tree_bytes::<FileId, Inode>() + size_of::<File>() as f64 + 16.0 + name + tree_bytes::<Arc<str>, FileId>()
}

#[test]
fn memory_per_block_and_file_is_below_its_limit() {
    let (block, file) = (block_bytes(), file_bytes());
    println!("{block:.0} bytes a block, {file:.0} bytes a file");
    assert!(block < 250.0, "{block:.0} bytes a block");
    assert!(block + file < 600.0, "{file:.0} bytes a file of one block");
}
