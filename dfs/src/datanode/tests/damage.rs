//! Tests that damaged block files are found: at start, by reads, by checks and by the scrubber.

use super::{super::DataNode, harness::*};
use daemon::{Bytes, Period};
use dfs_client::checksum::{from_bytes, verify};
use proto::dfs::{CheckBlock, command::Kind};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

const BLOCK_LENGTH: u64 = 3 * CHUNK as u64 + 5;

fn flip_bit(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn truncate(path: &Path, to: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
}

fn swap(one: &Path, other: &Path) {
    let temporary = one.with_extension("tmp");
    fs::rename(one, &temporary).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(temporary, other).unwrap();
}

/// Writes blocks 1 to 7.
fn write_blocks(node: &DataNode) {
    for block in 1..=7 {
        put(&chain(&[node]), block, &bytes(BLOCK_LENGTH as usize, block)).unwrap();
    }
}

/// Changes a byte of block 2, truncates block 3, swaps the checksum files of blocks 4 and 5, deletes
/// the checksum file of block 6, and damages that of block 7. Block 1 stays good.
fn damage_blocks(dir: &Path) {
    flip_bit(&block_file(dir, 2, ""), 2 * CHUNK as u64 + 9);
    truncate(&block_file(dir, 3, ""), BLOCK_LENGTH - 1);
    swap(&block_file(dir, 4, ".crc"), &block_file(dir, 5, ".crc"));
    fs::remove_file(block_file(dir, 6, ".crc")).unwrap();
    flip_bit(&block_file(dir, 7, ".crc"), 40);
}

fn bad_blocks(known: &ReceivedRequests) -> Vec<u64> {
    let mut blocks: Vec<u64> = known.bad.iter().map(|bad| bad.block_id).collect();
    blocks.sort_unstable();
    blocks
}

fn is_quarantined(dir: &Path, block: u64) -> bool {
    dir.join(format!("bad/blk_{block}")).exists() && !block_file(dir, block, "").exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_found_at_start() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    write_blocks(&node);
    node.stop().await;
    damage_blocks(&dir);
    let node = bench.node("n1").await;
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [3, 4, 5, 6, 7]).await;
    let known = bench.namenode.requests_of(&node);
    // The changed byte is not found at start: only names, sizes and checksum files are read.
    assert_eq!(known.replicas.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let reason = |block| known.bad.iter().find(|bad| bad.block_id == block).unwrap().reason.clone();
    assert!(reason(3).contains(&format!("{} bytes", BLOCK_LENGTH - 1)), "{}", reason(3));
    assert!(reason(4).contains("belongs to blk_5, not to blk_4"), "{}", reason(4));
    for block in 3..=7 {
        assert!(is_quarantined(&dir, block), "block {block}");
        assert_eq!(refusal_kind(read(&node, block, BLOCK_LENGTH)), "not-found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_found_by_reads() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    write_blocks(&node);
    // Open block 3 on a connection before it is damaged: the connection must notice the damage too.
    let mut stream = connect(node.data_addr());
    read_on(&mut stream, 3, 0..1, BLOCK_LENGTH).unwrap();
    damage_blocks(&dir);
    assert_eq!(refusal_kind(read_on(&mut stream, 3, 0..1, BLOCK_LENGTH)), "damaged");
    for block in 4..=7 {
        assert_eq!(refusal_kind(read(&node, block, BLOCK_LENGTH)), "damaged", "block {block}");
        assert_eq!(refusal_kind(read(&node, block, BLOCK_LENGTH)), "not-found", "block {block}");
    }
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [3, 4, 5, 6, 7]).await;
    // The DataNode does not notice the changed byte. The reader notices it with the checksums in
    // the reply.
    let (reply, got) = read(&node, 2, BLOCK_LENGTH).unwrap();
    verify(&got, 0, &from_bytes(&reply.checksums)).unwrap_err();
    let (reply, got) = read(&node, 1, BLOCK_LENGTH).unwrap();
    verify(&got, 0, &from_bytes(&reply.checksums)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_blocks_are_found_by_checks() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    write_blocks(&node);
    damage_blocks(&dir);
    for block in 1..=7 {
        bench.namenode.command(&node, Kind::Check(CheckBlock { block: Some(named_block(block)) }));
    }
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [2, 3, 4, 5, 6, 7]).await;
    let known = bench.namenode.requests_of(&node);
    let flipped = known.bad.iter().find(|bad| bad.block_id == 2).unwrap();
    assert_eq!(flipped.reason, format!("checksum mismatch at offset {}", 2 * CHUNK));
    assert!(is_quarantined(&dir, 2));
    assert!(read(&node, 1, BLOCK_LENGTH).unwrap().1 == bytes(BLOCK_LENGTH as usize, 1));
    // Check a replica that is already quarantined, and one that never existed. The first is
    // reported as bad again, and only the second as lost.
    for block in [2, 99] {
        bench.namenode.command(&node, Kind::Check(CheckBlock { block: Some(named_block(block)) }));
    }
    bench.namenode.until(&node, "lost blocks", |k| k.lost == [99]).await;
    bench
        .namenode
        .until(&node, "a second report of block 2", |k| bad_blocks(k) == [2, 2, 3, 4, 5, 6, 7])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_blocks_are_found_by_the_scrubber() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let mut config = bench.config("n1");
    config.datanode.scrub_rate = Bytes::mib(64);
    config.datanode.scrub_period = Period::millis(100);
    let node = bench.node_with(&config).await;
    write_blocks(&node);
    damage_blocks(&dir);
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [2, 3, 4, 5, 6, 7]).await;
    assert!(is_quarantined(&dir, 2));
    // A good replica is not changed, and a new copy of a bad replica is accepted.
    put(&chain(&[&node]), 2, &bytes(BLOCK_LENGTH as usize, 2)).unwrap();
    assert!(read(&node, 2, BLOCK_LENGTH).unwrap().1 == bytes(BLOCK_LENGTH as usize, 2));
    assert!(read(&node, 1, BLOCK_LENGTH).unwrap().1 == bytes(BLOCK_LENGTH as usize, 1));
}
