//! Unusual inputs and jobs, each compared with a plain computation in the test.

use fermata_tests::{Cluster, QUICK, Up};
use serde_json::Value;
use std::{fs, io::Write as _, path::Path};

/// Splits bytes into lines, as the documentation of the input format says: a line ends with `\n`,
/// `\r\n` or the file.
fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    lines.iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec()).collect()
}

fn put(cluster: &Cluster, name: &str, bytes: &[u8]) {
    fs::write(cluster.path(name), bytes).unwrap();
    cluster.mrctl(&["fs", "put", name, &format!("/in/{name}")]);
    fs::remove_file(cluster.path(name)).unwrap();
}

/// Returns random bytes with occasional line ends, with or without a carriage return.
fn random_lines(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state >> 58 {
            0 => out.extend_from_slice(b"\r\n"),
            1 => out.push(b'\n'),
            2 => out.push(b'\r'),
            _ => out.push((state >> 20) as u8),
        }
    }
    out
}

#[test]
fn unusual_lines_are_sorted_and_copied_completely() {
    let cluster = Cluster::up(Up { nodes: 2, block_size: "4MiB", ..Up::default() });
    cluster.mrctl(&["fs", "mkdir", "/in"]);
    // A line of 100 MB spans 25 blocks, and is still one record.
    let long: Vec<u8> = (0..100_000_000u32).map(|at| b'a' + (at % 23) as u8).collect();
    let files: [(&str, Vec<u8>); 6] = [
        ("noise", random_lines(1, 3 << 20)),
        ("more-noise", random_lines(2, 9 << 20)),
        ("empty", Vec::new()),
        ("crlf", b"one\r\ntwo\r\n\r\nthree".to_vec()),
        ("bom", b"\xef\xbb\xbfwith a mark\n\0nul\n\xff\xfe\n".to_vec()),
        ("long", [b"before\n", long.as_slice(), b"\nafter\n"].concat()),
    ];
    let mut wanted = Vec::new();
    for (name, bytes) in &files {
        put(&cluster, name, bytes);
        wanted.extend(lines(bytes));
    }
    drop(files);
    wanted.sort();
    let records = wanted.len();
    let wanted = wanted.join(&b'\n');
    let job = cluster.succeed(&["sort", "--input", "/in", "--output", "/sorted", "--reduces", "3"]);
    assert_eq!(job["counters"]["MAP_INPUT_RECORDS"], records, "{job}");
    // Reduces get ranges of keys, so the concatenated parts are sorted.
    let sorted = cluster.output("/sorted");
    assert!(sorted.strip_suffix(b"\n") == Some(&wanted[..]), "the {} bytes of output differ", sorted.len());

    // A job without reduces writes the same lines in the order of the files, one part per map.
    let job = cluster.succeed(&["identity", "--input", "/in", "--output", "/mapped"]);
    assert_eq!(job["reduces"]["total"], 0, "{job}");
    let mapped = cluster.output("/mapped");
    let mut mapped: Vec<&[u8]> = mapped.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n').collect();
    mapped.sort_unstable();
    assert!(mapped.join(&b'\n') == wanted, "the {} lines of output differ", mapped.len());
    cluster.wait_clean();
}

#[test]
fn empty_input_gives_empty_parts() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    cluster.mrctl(&["fs", "mkdir", "/in"]);
    put(&cluster, "empty", b"");
    put(&cluster, "too", b"");
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/out", "--reduces", "3"]);
    assert_eq!(cluster.json(&["fs", "ls", "/out/part-*"]).as_array().unwrap().len(), 3);
    assert!(cluster.output("/out").is_empty());
    cluster.succeed(&["sort", "--input", "/in", "--output", "/out2", "--reduces", "3"]);
    assert!(cluster.output("/out2").is_empty());
    cluster.succeed(&["identity", "--input", "/in", "--output", "/out3"]);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/out3/_SUCCESS"]), "");
    cluster.wait_clean();
}

/// Writes all parts of a folder to one local file.
fn download_parts(cluster: &Cluster, folder: &str, to: &Path) {
    fs::File::create(to).unwrap().write_all(&cluster.output(folder)).unwrap();
}

/// Runs terasort over this many records, compares it with a plain sort of the same bytes, and runs
/// teravalidate. Returns the job after its end.
fn terasort(cluster: &Cluster, rows: usize, reduces: &str) -> Value {
    let rows_setting = format!("rows={rows}");
    cluster.succeed(&["teragen", "--output", "/gen", "--conf", &rows_setting, "--conf", "maps=7"]);
    let job = cluster.succeed(&["terasort", "--input", "/gen", "--output", "/sorted", "--reduces", reduces]);
    assert_eq!(job["counters"]["MAP_INPUT_RECORDS"], rows, "{job}");
    assert_eq!(job["reduces"]["done"].to_string(), reduces, "{job}");
    let (from, to) = (cluster.path("from"), cluster.path("to"));
    download_parts(cluster, "/gen", &from);
    download_parts(cluster, "/sorted", &to);
    let (from, to) = (fs::read(from).unwrap(), fs::read(to).unwrap());
    assert_eq!(from.len(), rows * 100);
    let mut records: Vec<&[u8]> = from.chunks(100).collect();
    records.sort_unstable();
    assert!(records.concat() == to, "the output is not what a plain sort gives");
    cluster.succeed(&["teravalidate", "--input", "/sorted", "--output", "/report"]);
    let report = cluster.mrctl(&["fs", "cat", "/report/part-*"]);
    assert!(report.contains(&format!("records\t{rows}\n")), "{report}");
    assert!(report.contains("out-of-order\t0\n"), "{report}");
    cluster.wait_clean();
    job
}

#[test]
fn terasort_on_one_node_equals_a_plain_sort() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    terasort(&cluster, 50_000, "1");
}

#[test]
fn terasort_on_ten_nodes_with_two_hundred_reduces_equals_a_plain_sort() {
    // Ten nodes run on few cores, so no tracker may be lost because it is slow.
    let settings = "[tasktracker]\nwarm_tasks = 0\n";
    let cluster = Cluster::up(Up { nodes: 10, racks: 3, replication: 1, settings, ..Up::default() });
    terasort(&cluster, 100_000, "200");
}

#[test]
fn terasort_of_64_mib_spills_and_merges() {
    // The sort buffer has a few MiB for maps of 16 MiB, so each map spills several times, and
    // merges are large.
    let settings = format!("{QUICK}[tasktracker]\ntask_memory = \"6MiB\"\n");
    let cluster = Cluster::up(Up {
        nodes: 3,
        replication: 1,
        block_size: "16MiB",
        settings: &settings,
        ..Up::default()
    });
    let job = terasort(&cluster, 671_089, "5");
    let spilled = job["counters"]["SPILLED_RECORDS"].as_u64();
    assert!(spilled >= Some(671_089), "not every record was spilled: {spilled:?}");
}
