//! Confined reduces save their checkpoints, and resume in another attempt and on another node, for
//! every kind of program.

use super::{Lab, confined::account};
use crate::jobs_pause::{await_success, lines, pause};
use fermata_tests::binaries;
use std::fs;

/// A reducer that counts the lines of each key. All lines differ, so that there are many keys at
/// which it can be paused.
const COUNT: &str = "#!/bin/sh\ncut -f 1 | uniq -c\n";

#[test]
fn confined_reduce_resumes_locally_and_remotely() {
    let lab = Lab::up(true, &account());
    let cluster = &lab.cluster;
    fs::write(cluster.path("text"), lines(30_000)).unwrap();
    fs::write(cluster.path("count.sh"), COUNT).unwrap();
    fs::write(cluster.path("prefix.txt"), "seen:").unwrap();
    cluster.mrctl(&["fs", "mkdir", "/lab"]);
    cluster.mrctl(&["fs", "chown", "admin", "/lab"]);
    cluster.mrctl(&["fs", "put", "text", "/lab/text"]);
    let own = binaries().join("test-job").display().to_string();
    let programs: [(&str, &[&str]); 3] = [
        ("built-in", &["wordcount", "--conf", "pace.reduce=15KiB"]),
        ("own", &[&own, "--file", "prefix.txt", "--conf", "pace.reduce=40KiB"]),
        (
            "streaming",
            &[
                "streaming",
                "--mapper",
                "cat",
                "--reducer",
                "sh count.sh",
                "--file",
                "count.sh",
                "--conf",
                "stream.reducer.restartable=true",
                "--conf",
                "pace.reduce=80KiB",
            ],
        ),
    ];
    for (name, program) in programs {
        let args = [program, &["--input", "/lab/text", "--reduces", "1"]].concat();
        let plain = format!("/lab/plain-{name}");
        // The last setting of a name counts, so this run is not slow.
        cluster.succeed(&[&args[..], &["--conf", "pace.reduce=1GiB", "--output", &plain]].concat());
        let paused = format!("/lab/paused-{name}");
        let job = cluster.detach(&[&args[..], &["--output", &paused]].concat());
        let reduce = format!("{job}.r0");
        let first = pause(cluster, &reduce, "reduce");
        let here = first["tracker"].as_str().unwrap();
        cluster.mrctl(&["resume", &reduce, "--on", here]);
        pause(cluster, &reduce, "reduce");
        let other = if here == "node1" { "node2" } else { "node1" };
        cluster.mrctl(&["resume", &reduce, "--on", other]);
        let cost = &await_success(cluster, &job)["preemption"];
        assert!(
            cluster.output(&plain) == cluster.output(&paused),
            "{name}: the output differs from an undisturbed run"
        );
        let figures = ["pauses", "resumes", "migrations", "checkpoints_lost", "ms_lost"];
        let figures = figures.map(|name| cost[name].as_u64().unwrap());
        assert_eq!(figures, [2, 2, 1, 0, 0], "{name}: {cost}");
    }
    cluster.wait_clean();
}
