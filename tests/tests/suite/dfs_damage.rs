//! Damaged replicas: readers get the right bytes, and the damage is detected, counted and repaired.

use fermata_tests::{Cluster, QUICK, Up, eventually, random_file, sha256_of};
use serde_json::Value;
use std::{fs, os::unix::fs::FileExt, path::Path, time::Duration};

fn flip_a_byte(block: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(block).unwrap();
    let mut byte = [0];
    let middle = file.metadata().unwrap().len() / 2;
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], middle).unwrap();
}

fn checksum_file(block: &Path) -> std::path::PathBuf {
    block.with_extension("crc")
}

fn swap(a: &Path, b: &Path) {
    let moved = a.with_extension("moved");
    fs::rename(a, &moved).unwrap();
    fs::rename(b, a).unwrap();
    fs::rename(&moved, b).unwrap();
}

/// Flips a byte of one replica, truncates another, and swaps the checksum files of two more.
fn damage_four_replicas_on_node1(cluster: &Cluster) {
    let blocks = cluster.replicas_on("node1");
    assert!(blocks.len() >= 4, "node1 holds {} blocks", blocks.len());
    flip_a_byte(&blocks[0]);
    fs::OpenOptions::new().write(true).open(&blocks[1]).unwrap().set_len(1000).unwrap();
    swap(&checksum_file(&blocks[2]), &checksum_file(&blocks[3]));
}

/// Starts a cluster with a file whose blocks are on all three nodes, and returns the checksum of
/// the file.
fn cluster_with_a_file(settings: &str) -> (Cluster, String) {
    let cluster = Cluster::up(Up { replication: 3, settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 6 << 20, 5);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let sum = sha256_of(&source);
    (cluster, sum)
}

/// Waits until the four damaged replicas are found and replaced.
fn await_replacement(cluster: &Cluster) {
    eventually("four damaged replicas are found and replaced", || {
        let report = cluster.json(&["fs", "report"]);
        (report["corrupt_found_total"] == 4
            && report["corrupt_replaced_total"] == 4
            && report["corrupt_replicas"] == 0
            && report["under_replicated"] == 0)
            .then_some(())
    });
    cluster.mrctl(&["fs", "fsck", "/"]);
}

#[test]
fn reads_survive_damage_which_is_reported_and_repaired() {
    // Without a scrubber, only readers can find the damage.
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n");
    let (cluster, wanted) = cluster_with_a_file(&settings);
    damage_four_replicas_on_node1(&cluster);
    for (name, extra) in [("tcp", "short_circuit = false"), ("local", "short_circuit = true")] {
        let config = cluster.path(&format!("{name}.toml"));
        let base = fs::read_to_string(cluster.path(".fermata/fermata.toml")).unwrap();
        let mut table: toml::Table = base.parse().unwrap();
        let client: toml::Table = extra.parse().unwrap();
        table.entry("client").or_insert(toml::Table::new().into()).as_table_mut().unwrap().extend(client);
        fs::write(&config, toml::to_string(&table).unwrap()).unwrap();
        // Reads several times, so that each replica is likely to be read.
        for _ in 0..6 {
            let got = cluster.path("got");
            cluster.mrctl(&[
                "--config",
                config.to_str().unwrap(),
                "fs",
                "get",
                "--force",
                "/file",
                got.to_str().unwrap(),
            ]);
            assert_eq!(sha256_of(&got), wanted);
        }
    }
    // `fsck --verify` finds the damage that no read has found.
    let checked = cluster.try_mrctl(&["fs", "fsck", "/", "--verify"]);
    // The exit code is 1 while copies for earlier damage are still being made.
    assert!(checked.code <= 1, "{}{}", checked.stdout, checked.stderr);
    await_replacement(&cluster);
}

/// Without scrubber and `fsck --verify`, damage is repaired after the report of a reader.
#[test]
fn report_of_a_reader_triggers_repair() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n[client]\nshort_circuit = false\n");
    let cluster = Cluster::up(Up { replication: 2, nodes: 2, settings: &settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 4 << 20, 6);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let wanted = sha256_of(&source);
    // The order in which the two replicas are read is not determined, so different replicas of
    // different blocks are damaged.
    let (mut one, mut other) = (cluster.replicas_on("node1"), cluster.replicas_on("node2"));
    one.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    other.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    assert_eq!((one.len(), other.len()), (4, 4));
    one[..2].iter().chain(&other[2..]).for_each(|block| flip_a_byte(block));
    eventually("a reader has found damaged replicas, and they are replaced", || {
        let got = cluster.path("got");
        cluster.mrctl(&["fs", "get", "--force", "/file", got.to_str().unwrap()]);
        assert_eq!(sha256_of(&got), wanted);
        let report = cluster.json(&["fs", "report"]);
        (report["corrupt_found_total"].as_u64().unwrap() > 0
            && report["corrupt_replaced_total"] == report["corrupt_found_total"]
            && report["corrupt_replicas"] == 0
            && report["under_replicated"] == 0)
            .then_some(())
    });
}

/// No good replica can appear later, so the error is returned at once and says so.
#[test]
fn block_with_all_replicas_corrupt_fails_at_once() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n[client]\ndeadline = \"1m\"\n");
    let cluster = Cluster::up(Up { replication: 1, nodes: 1, settings: &settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 1 << 20, 7);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    flip_a_byte(&cluster.replicas_on("node1")[0]);
    let begin = std::time::Instant::now();
    for skip in [None, Some("--skip-lost")] {
        let got = cluster.path("got");
        let mut text = vec!["fs", "get", "--force", "/file", got.to_str().unwrap()];
        text.extend(skip);
        let ran = cluster.try_mrctl(&text);
        assert!(ran.code == 1 && ran.stderr.contains("node1 is damaged"), "{}: {}", ran.code, ran.stderr);
    }
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    let report = cluster.json(&["fs", "report"]);
    assert_eq!((&report["missing"], &report["corrupt"]), (&0.into(), &1.into()), "{report}");
}

#[test]
fn scrubber_finds_damage_in_unread_blocks() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"256MiB\"\nscrub_period = \"1s\"\n");
    let (cluster, wanted) = cluster_with_a_file(&settings);
    damage_four_replicas_on_node1(&cluster);
    await_replacement(&cluster);
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(sha256_of(&got), wanted);
}

#[test]
fn damage_done_while_a_node_is_down_is_found_when_it_returns() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"256MiB\"\nscrub_period = \"1s\"\n");
    let (cluster, wanted) = cluster_with_a_file(&settings);
    cluster.mrctl(&["chaos", "kill", "node1"]);
    damage_four_replicas_on_node1(&cluster);
    cluster.mrctl(&["chaos", "restart", "node1"]);
    await_replacement(&cluster);
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(sha256_of(&got), wanted);
}

/// `fsck --verify` answers after every replica has been read. Checks that its result contains
/// damage that no reader has found.
#[test]
fn verify_reports_damage_in_unread_blocks() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n");
    let (cluster, _) = cluster_with_a_file(&settings);
    for round in 1..=3 {
        flip_a_byte(&cluster.replicas_on("node2")[0]);
        let checked = cluster.try_mrctl(&["fs", "fsck", "/", "--verify", "--json"]);
        let result: Value = serde_json::from_str(&checked.stdout).unwrap();
        let one = 1 << 20;
        let wanted = serde_json::json!({
            "replicas_read": 18, "bytes_verified": 17 * one, "replicas_bad": 1, "replicas_not_read": 0,
        });
        assert_eq!(result["verify"], wanted);
        let report = cluster.json(&["fs", "report"]);
        assert_eq!((&report["corrupt_found_total"], &report["checks_pending"]), (&round.into(), &0.into()));
        cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    }
}
