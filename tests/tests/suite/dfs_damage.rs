//! Disks lie; readers get the right bytes all the same, and the damage is found, counted and fixed.

use fermata_tests::{Cluster, QUICK, Up, eventually, random_file, sha256_of};
use serde_json::Value;
use std::{fs, os::unix::fs::FileExt, path::Path, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);

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
    let aside = a.with_extension("aside");
    fs::rename(a, &aside).unwrap();
    fs::rename(b, a).unwrap();
    fs::rename(&aside, b).unwrap();
}

fn damage_four_replicas_on_node1(cluster: &Cluster) {
    let blocks = cluster.replicas_on("node1");
    assert!(blocks.len() >= 4, "node1 holds {} blocks", blocks.len());
    flip_a_byte(&blocks[0]);
    fs::OpenOptions::new().write(true).open(&blocks[1]).unwrap().set_len(1000).unwrap();
    swap(&checksum_file(&blocks[2]), &checksum_file(&blocks[3]));
}

/// All three nodes hold every block, so node1 is damaged and the others are not.
fn cluster_with_a_file(settings: &str) -> (Cluster, String) {
    let cluster = Cluster::up(Up { replication: 3, settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 6 << 20, 5);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let sum = sha256_of(&source);
    (cluster, sum)
}

fn healed(cluster: &Cluster) {
    eventually("four damaged replicas are found and replaced", TIMEOUT, || {
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
    // No scrubber: what is found here is found by readers.
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
        // Several times, so that each replica is likely to be tried.
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
    // Whatever readers have not come across by chance, an operator's check finds.
    let checked = cluster.try_mrctl(&["fs", "fsck", "/", "--verify"]);
    // 1 while copies of what was found before are still being made.
    assert!(checked.code <= 1, "{}{}", checked.stdout, checked.stderr);
    healed(&cluster);
}

/// Nobody checks, scrubs or asks for anything: what a reader comes across and reports is fixed by that alone.
#[test]
fn report_of_a_reader_triggers_repair() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n[client]\nshort_circuit = false\n");
    let cluster = Cluster::up(Up { replication: 2, nodes: 2, settings: &settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 4 << 20, 6);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let wanted = sha256_of(&source);
    // Which of the two replicas of a block is read first is not ours to say: so of some the one is bad, of others the
    // other.
    let (mut one, mut other) = (cluster.replicas_on("node1"), cluster.replicas_on("node2"));
    one.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    other.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    assert_eq!((one.len(), other.len()), (4, 4));
    one[..2].iter().chain(&other[2..]).for_each(|block| flip_a_byte(block));
    eventually("a reader has found some, and they are fixed", TIMEOUT, || {
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

/// Nobody can come back with a good one: that is said at once, and as what it is.
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
fn the_scrubber_finds_damage_that_nobody_reads() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"256MiB\"\nscrub_period = \"1s\"\n");
    let (cluster, wanted) = cluster_with_a_file(&settings);
    damage_four_replicas_on_node1(&cluster);
    healed(&cluster);
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
    healed(&cluster);
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(sha256_of(&got), wanted);
}

/// `fsck --verify` answers when every replica has been read: damage that nobody has read is in its result.
#[test]
fn verify_reports_damage_that_nobody_has_read() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"0\"\n");
    let (cluster, _) = cluster_with_a_file(&settings);
    for round in 1..=3 {
        flip_a_byte(&cluster.replicas_on("node2")[0]);
        let checked = cluster.try_mrctl(&["fs", "fsck", "/", "--verify", "--json"]);
        let told: Value = serde_json::from_str(&checked.stdout).unwrap();
        let one = 1 << 20;
        let wanted = serde_json::json!({
            "replicas_read": 18, "bytes_verified": 17 * one, "replicas_bad": 1, "replicas_not_read": 0,
        });
        assert_eq!(told["verify"], wanted);
        let report = cluster.json(&["fs", "report"]);
        assert_eq!((&report["corrupt_found_total"], &report["checks_pending"]), (&round.into(), &0.into()));
        cluster.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
    }
}
