//! Tests that take too long for every run: `scripts/long-tests` runs these, in release.

use fermata_tests::{Cluster, Up};

#[test]
#[ignore = "a gigabyte: run scripts/long-tests"]
fn terasort_of_1_gib_validates() {
    let cluster = Cluster::up(Up { nodes: 4, replication: 1, block_size: "64MiB", ..Up::default() });
    let rows = (1u64 << 30).div_ceil(100).to_string();
    let rows_setting = format!("rows={rows}");
    cluster.succeed(&["teragen", "--output", "/gen", "--conf", &rows_setting, "--conf", "maps=8"]);
    cluster.succeed(&["teravalidate", "--input", "/gen", "--output", "/before"]);
    cluster.succeed(&["terasort", "--input", "/gen", "--output", "/sorted", "--reduces", "4"]);
    cluster.succeed(&["teravalidate", "--input", "/sorted", "--output", "/after"]);
    let line = |report: &str, name: &str| {
        let report = cluster.mrctl(&["fs", "cat", &format!("{report}/part-*")]);
        let found = report.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        found.unwrap_or_else(|| panic!("no {name}: {report}"))
    };
    assert_eq!(line("/after", "records"), rows);
    assert_eq!(line("/after", "checksum"), line("/before", "checksum"));
    assert_eq!(line("/after", "out-of-order"), "0");
    cluster.wait_clean();
}
