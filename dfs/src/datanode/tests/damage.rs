//! Damage to block files: found at start, on reads, by checks and by the scrubber.

use super::{super::DataNode, harness::*};
use daemon::{Bytes, Period};
use dfs_client::checksum::{from_bytes, verify};
use proto::dfs::{CheckBlock, command::Kind};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

const LENGTH: u64 = 3 * CHUNK as u64 + 5;

fn flip(path: &Path, at: u64) {
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

/// Writes blocks 1 to 7. Then 1 stays good, 2 has a changed byte, 3 is truncated, 4 and 5 have
/// swapped checksum files, 6 has no checksum file, and that of 7 is damaged.
fn fill(node: &DataNode) {
    for block in 1..=7 {
        put(&chain(&[node]), block, &bytes(LENGTH as usize, block)).unwrap();
    }
}

fn damage(dir: &Path) {
    flip(&block_file(dir, 2, ""), 2 * CHUNK as u64 + 9);
    truncate(&block_file(dir, 3, ""), LENGTH - 1);
    swap(&block_file(dir, 4, ".crc"), &block_file(dir, 5, ".crc"));
    fs::remove_file(block_file(dir, 6, ".crc")).unwrap();
    flip(&block_file(dir, 7, ".crc"), 40);
}

fn bad_blocks(known: &Known) -> Vec<u64> {
    let mut blocks: Vec<u64> = known.bad.iter().map(|bad| bad.block_id).collect();
    blocks.sort_unstable();
    blocks
}

fn move_to_bad(dir: &Path, block: u64) -> bool {
    dir.join(format!("bad/blk_{block}")).exists() && !block_file(dir, block, "").exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn found_at_start_up() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    fill(&node);
    node.stop().await;
    damage(&dir);
    let node = bench.node("n1").await;
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [3, 4, 5, 6, 7]).await;
    let known = bench.namenode.known(&node);
    // The changed byte is not found at start: only names, sizes and checksum files are read.
    assert_eq!(known.replicas.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let reason = |block| known.bad.iter().find(|bad| bad.block_id == block).unwrap().reason.clone();
    assert!(reason(3).contains(&format!("{} bytes", LENGTH - 1)), "{}", reason(3));
    assert!(reason(4).contains("belongs to blk_5, not to blk_4"), "{}", reason(4));
    for block in 3..=7 {
        assert!(move_to_bad(&dir, block), "block {block}");
        assert_eq!(kind(read(&node, block, LENGTH)), "not-found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn found_on_reads() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    fill(&node);
    // A connection that has block 3 open must also notice the damage.
    let mut stream = connect(node.data_addr());
    read_on(&mut stream, 3, 0..1, LENGTH).unwrap();
    damage(&dir);
    assert_eq!(kind(read_on(&mut stream, 3, 0..1, LENGTH)), "damaged");
    for block in 4..=7 {
        assert_eq!(kind(read(&node, block, LENGTH)), "damaged", "block {block}");
        assert_eq!(kind(read(&node, block, LENGTH)), "not-found", "block {block}");
    }
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [3, 4, 5, 6, 7]).await;
    // The reader notices the changed byte with the checksums in the reply.
    let (reply, got) = read(&node, 2, LENGTH).unwrap();
    verify(&got, 0, &from_bytes(&reply.checksums)).unwrap_err();
    let (reply, got) = read(&node, 1, LENGTH).unwrap();
    verify(&got, 0, &from_bytes(&reply.checksums)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn found_by_checks() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let node = bench.node("n1").await;
    fill(&node);
    damage(&dir);
    for block in 1..=7 {
        bench.namenode.command(&node, Kind::Check(CheckBlock { block: Some(named(block)) }));
    }
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [2, 3, 4, 5, 6, 7]).await;
    let known = bench.namenode.known(&node);
    let flipped = known.bad.iter().find(|bad| bad.block_id == 2).unwrap();
    assert_eq!(flipped.reason, format!("checksum mismatch at offset {}", 2 * CHUNK));
    assert!(move_to_bad(&dir, 2));
    assert!(read(&node, 1, LENGTH).unwrap().1 == bytes(LENGTH as usize, 1));
    // A check that arrives after the replica was quarantined: the replica is reported as bad and
    // not as lost.
    for block in [2, 99] {
        bench.namenode.command(&node, Kind::Check(CheckBlock { block: Some(named(block)) }));
    }
    bench.namenode.until(&node, "lost blocks", |k| k.lost == [99]).await;
    bench.namenode.until(&node, "it is bad again", |k| bad_blocks(k) == [2, 2, 3, 4, 5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn found_by_the_scrubber() {
    let bench = Bench::new().await;
    let dir = bench.dir("n1");
    let mut config = bench.config("n1");
    config.datanode.scrub_rate = Bytes::mib(64);
    config.datanode.scrub_period = Period::millis(100);
    let node = bench.node_with(&config).await;
    fill(&node);
    damage(&dir);
    bench.namenode.until(&node, "bad blocks", |k| bad_blocks(k) == [2, 3, 4, 5, 6, 7]).await;
    assert!(move_to_bad(&dir, 2));
    // A good replica is not changed, and a new copy of a bad replica is accepted.
    put(&chain(&[&node]), 2, &bytes(LENGTH as usize, 2)).unwrap();
    assert!(read(&node, 2, LENGTH).unwrap().1 == bytes(LENGTH as usize, 2));
    assert!(read(&node, 1, LENGTH).unwrap().1 == bytes(LENGTH as usize, 1));
}
