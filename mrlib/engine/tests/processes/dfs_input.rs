//! Reads splits of a file in the distributed file system, whose daemons run in this process:
//! memory-mapped, over the network, and with damaged local replicas.

use crate::daemons::{BLOCK_BYTES, Daemons};
use dfs_client::{Client, ClientOptions, CreateOptions, path::DfsPath};
use fermata_engine::input::{ByteSource, DfsFile, Flow, SplitSpec, open_split};
use mrlib_api::InputFormat;
use std::{
    ops::Range,
    path::{Path, PathBuf},
};
use tokio::runtime::Runtime;

async fn client(cluster: &Daemons, short_circuit: bool) -> Client {
    let mut config = cluster.config.client.clone();
    config.short_circuit = short_circuit;
    Client::connect(ClientOptions::new(cluster.namenodes(), config)).await.unwrap()
}

fn lines(runtime: &Runtime, client: &Client, path: &DfsPath, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
    let source = DfsFile::open(client.clone(), runtime.handle().clone(), path.clone()).unwrap();
    let spec = SplitSpec {
        path: path.to_string(),
        range: range.start..range.end.min(source.len()),
        format: InputFormat::Lines,
        record_bytes_max: 1 << 20,
        codec: mrlib_api::codec::Codec::Auto,
        skip_bad: false,
    };
    let mut records = open_split(spec, Box::new(source)).unwrap();
    let mut found = Vec::new();
    while records
        .pump(&mut |record| {
            found.push((record.offset, record.value.to_vec()));
            Ok(Flow::Go)
        })
        .unwrap()
    {}
    found
}

/// Splits a text into lines, each with its offset.
fn model(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut at = 0;
    let line = |line: &[u8]| {
        at += line.len() as u64;
        (at - line.len() as u64, line.strip_suffix(b"\n").unwrap_or(line).to_vec())
    };
    text.split_inclusive(|byte| *byte == b'\n').map(line).collect()
}

fn block_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            block_files(&path, found);
        } else if name.starts_with("blk_") && path.extension().is_none() {
            found.push(path);
        }
    }
}

#[test]
fn all_splits_have_the_same_lines_with_local_remote_and_damaged_replicas() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let cluster = runtime.block_on(Daemons::start(&["n1", "n2"]));
    let mut text: Vec<u8> = (0..9000u32)
        .flat_map(|n| format!("line {n} {}\n", "x".repeat(n as usize % 71)).into_bytes())
        .collect();
    // One line is longer than a block, and the last has no newline.
    text.resize(text.len() + 150_000, b'y');
    text.extend_from_slice(b"\nlast");
    let (path, length) = (DfsPath::parse("/text").unwrap(), text.len() as u64);
    let near = runtime.block_on(client(&cluster, true));
    let far = runtime.block_on(client(&cluster, false));
    runtime.block_on(async {
        let mut file = near.create(&path, CreateOptions::default()).await.unwrap();
        file.write(&text).await.unwrap();
        file.close().await.unwrap();
    });
    let wanted = model(&text);
    let splits = |client: &Client, size: u64| -> Vec<_> {
        let starts = (0..length).step_by(size as usize);
        starts.flat_map(|start| lines(&runtime, client, &path, start..start + size)).collect()
    };
    for size in [BLOCK_BYTES, length, 100_003] {
        assert!(splits(&near, size) == wanted, "mapped, splits of {size}");
        assert!(splits(&far, size) == wanted, "over the network, splits of {size}");
    }
    // Damage one replica of each block: change a byte in the middle.
    let mut replicas = Vec::new();
    block_files(&cluster.folder.path().join("n1"), &mut replicas);
    assert!(replicas.len() as u64 >= length / BLOCK_BYTES);
    for replica in &replicas {
        let mut bytes = std::fs::read(replica).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        // Change the file in place, as a failing disk does.
        std::fs::write(replica, bytes).unwrap();
    }
    assert!(splits(&near, BLOCK_BYTES) == wanted, "with damaged replicas");
    let missing = DfsFile::open(near, runtime.handle().clone(), DfsPath::parse("/none").unwrap());
    assert!(missing.is_err_and(|error| error.to_string().contains("/none")));
}
