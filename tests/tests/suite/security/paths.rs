//! Path traversal: checks that `..` and similar names are refused in every path and every ID of a
//! request.

use fermata_tests::{Cluster, Up};

/// Names that try to leave a folder.
pub(super) const TRAVERSALS: [&str; 16] = [
    "..",
    "../..",
    "/..",
    "/../../etc/passwd",
    "/a/../../etc/passwd",
    "/a/./b",
    "relative/etc/passwd",
    "etc/passwd",
    "//etc//passwd/..",
    "/a/..",
    "%2e%2e/etc/passwd",
    "..\\..\\etc\\passwd",
    "/a\u{1}b",
    "/tmp/\n../x",
    "job_1/../../etc",
    "job_1.m0.0/../../../etc/passwd",
];

#[test]
fn path_traversal_is_rejected() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let marker = cluster.path("text");
    std::fs::write(&marker, "x\n").unwrap();
    cluster.mrctl(&["fs", "put", marker.to_str().unwrap(), "/in"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/out"]);
    let before = cluster.mrctl(&["fs", "ls", "-R", "/"]);
    let mut refused = 0;
    for name in TRAVERSALS {
        let commands: [&[&str]; 16] = [
            &["fs", "cat", name],
            &["fs", "ls", name],
            &["fs", "stat", name],
            &["fs", "mkdir", "-p", name],
            &["fs", "rm", "-r", name],
            &["fs", "mv", "/in", name],
            &["fs", "put", marker.to_str().unwrap(), name],
            &["fs", "chmod", "777", name],
            &["submit", "wordcount", "--input", name, "--output", "/o2"],
            &["submit", "wordcount", "--input", "/in", "--output", name],
            &["job", name],
            &["kill", name],
            &["history", name],
            &["logs", name],
            &["preempt", name, "--how", "kill"],
            &["why", name],
        ];
        for args in commands {
            let ran = cluster.try_mrctl(args);
            assert!(ran.code == 1 || ran.code == 2, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
            assert!(!ran.stdout.contains("root:"), "mrctl {args:?}: {}", ran.stdout);
            refused += 1;
        }
    }
    assert_eq!(cluster.mrctl(&["fs", "ls", "-R", "/"]), before, "a refused command changed something");
    eprintln!("{refused} refused");
}
