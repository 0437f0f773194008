//! The commands of `mrctl fs` as a user would use them.

use fermata_tests::{Cluster, Up, eventually};
use std::{fs, io::Write, process::Stdio};

fn small() -> Cluster {
    Cluster::up(Up { nodes: 2, ..Up::default() })
}

#[test]
fn files_and_folders_are_created_and_deleted() {
    let cluster = small();
    cluster.mrctl(&["fs", "mkdir", "-p", "/a/b/c"]);
    fs::write(cluster.path("one"), "1\n2\n3\n").unwrap();
    fs::write(cluster.path("two"), "x").unwrap();
    cluster.mrctl(&["fs", "put", "one", "two", "/a/b"]);
    let names = |path: &str| -> Vec<String> {
        let list = cluster.json(&["fs", "ls", path]);
        list.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("/a/b"), ["/a/b/c", "/a/b/one", "/a/b/two"]);
    assert_eq!(names("/a/b/t*"), ["/a/b/two"]);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/a/b/one", "/a/b/two"]), "1\n2\n3\nx");
    assert_eq!(cluster.mrctl(&["fs", "tail", "-n", "1", "/a/b/one"]), "3\n");

    cluster.mrctl(&["fs", "mv", "/a/b/one", "/a/b/two", "/a/b/c"]);
    assert_eq!(names("/a/b/c"), ["/a/b/c/one", "/a/b/c/two"]);
    cluster.mrctl(&["fs", "mv", "/a/b", "/z"]);
    assert_eq!(names("/z/c"), ["/z/c/one", "/z/c/two"]);

    let usage = cluster.json(&["fs", "du", "-s", "/z"]);
    assert_eq!(usage[0]["bytes"], 7, "{usage}");
    assert_eq!(usage[0]["space"], 14, "{usage}");

    cluster.mrctl(&["fs", "rm", "/z/c/t?o"]);
    cluster.mrctl(&["fs", "rm", "-r", "/z"]);
    assert_eq!(names("/"), ["/a", "/tmp", "/user"]);
}

#[test]
fn folders_round_trip() {
    let cluster = small();
    fs::create_dir_all(cluster.path("tree/sub/empty")).unwrap();
    fs::write(cluster.path("tree/file"), "f").unwrap();
    fs::write(cluster.path("tree/sub/deep"), vec![7; 3 << 20]).unwrap();
    fs::write(cluster.path("tree/sub/nothing"), "").unwrap();
    cluster.mrctl(&["fs", "put", "-r", "tree", "/up"]);
    cluster.mrctl(&["fs", "get", "-r", "/up", "back"]);
    assert_eq!(fs::read(cluster.path("back/file")).unwrap(), b"f");
    assert_eq!(fs::read(cluster.path("back/sub/deep")).unwrap(), vec![7; 3 << 20]);
    assert_eq!(fs::read(cluster.path("back/sub/nothing")).unwrap(), b"");
    assert!(cluster.path("back/sub/empty").is_dir());
}

#[test]
fn files_are_put_from_and_written_to_pipes() {
    let cluster = small();
    let mut put =
        cluster.command(&["fs", "put", "-", "/piped"]).stdin(Stdio::piped()).spawn().expect("mrctl starts");
    let data: Vec<u8> = (0..5 << 20).map(|i: u32| (i % 253) as u8).collect();
    put.stdin.take().unwrap().write_all(&data).unwrap();
    assert!(put.wait().unwrap().success());
    let got = cluster.command(&["fs", "get", "/piped", "-"]).output().unwrap();
    assert!(got.status.success() && got.stdout == data);
    // If the reader stops early, the writer ends without an error.
    let mut cat = cluster
        .command(&["fs", "cat", "/piped"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mrctl starts");
    let mut first = [0; 10];
    std::io::Read::read_exact(cat.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(cat.stdout.take());
    let ended = cat.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

#[test]
fn quotas_modes_owners_and_appends_take_effect() {
    let cluster = small();
    cluster.mrctl(&["fs", "mkdir", "/q"]);
    cluster.mrctl(&["fs", "quota", "/q", "--files", "2"]);
    fs::write(cluster.path("f"), "abc").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/q/one"]);
    let error = cluster.refused(1, &["fs", "put", "f", "/q/two"]);
    assert!(error.contains("quota") && error.contains("/q"), "{error}");

    cluster.mrctl(&["fs", "put", "--append", "f", "/q/one"]);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/q/one"]), "abcabc");
    cluster.mrctl(&["fs", "chmod", "600", "/q/one"]);
    cluster.mrctl(&["fs", "chown", "ada:lovelace", "/q/one"]);
    let stat = cluster.json(&["fs", "stat", "/q/one"])[0].clone();
    assert_eq!((stat["mode"].as_u64(), stat["owner"].as_str()), (Some(0o600), Some("ada")), "{stat}");
    assert_eq!(stat["group"], "lovelace");
}

#[test]
fn nodes_and_report_list_the_same_nodes_and_disks() {
    let cluster = small();
    let nodes = cluster.json(&["nodes"]);
    let names: Vec<&str> =
        nodes.as_array().unwrap().iter().map(|node| node["node"].as_str().unwrap()).collect();
    assert_eq!(names, ["node1", "node2"]);
    assert!(nodes.as_array().unwrap().iter().all(|node| node["state"] == "live"), "{nodes}");
    let report = cluster.mrctl(&["fs", "report"]);
    assert!(report.contains("node1") && report.contains("safemode"), "{report}");
    // Both nodes have their folders on the same disk. The first heartbeat of each node contains the
    // disk.
    let report = eventually("the disk is named", || {
        Some(cluster.json(&["fs", "report"])).filter(|report| report["disks"] == 1)
    });
    let free = report["nodes"].as_array().unwrap().iter().map(|node| node["free"].as_u64().unwrap());
    assert_eq!(report["free"].as_u64(), free.max(), "the shared disk must be counted once: {report}");
    assert!(cluster.mrctl(&["fs", "report"]).contains(" on 1 disk"));
}
