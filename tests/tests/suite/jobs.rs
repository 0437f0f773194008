//! Jobs on a real cluster. Checks that they give the same results as plain programs.

use fermata_tests::{Cluster, Up};
use std::{collections::BTreeMap, fs, path::Path, process::Stdio};

fn text(seed: u32, lines: usize) -> String {
    let words = ["hold", "then", "go", "on", "map", "reduce", "slot", "of", "the", "ünder", "x\u{0}y"];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    let mut text = String::new();
    for _ in 0..lines {
        for _ in 0..next() % 12 {
            text.push_str(words[next() % words.len()]);
            text.push(' ');
        }
        text.push_str(if next() % 5 == 0 { "\r\n" } else { "\n" });
    }
    text
}

fn counted(texts: &[&str]) -> Vec<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for word in texts.iter().flat_map(|text| text.split_ascii_whitespace()) {
        *counts.entry(word).or_default() += 1;
    }
    counts.into_iter().map(|(word, count)| format!("{word}\t{count}")).collect()
}

fn sorted_output(cluster: &Cluster, folder: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        cluster.mrctl(&["fs", "cat", &format!("{folder}/part-*")]).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn wordcount_equals_an_independent_count() {
    let cluster = Cluster::up(Up { block_size: "64KiB", ..Up::default() });
    let (one, two) = (text(1, 4000), text(2, 4000));
    cluster.mrctl(&["fs", "mkdir", "/books"]);
    for (name, text) in [("one", one.as_str()), ("two", two.as_str()), ("empty", "")] {
        fs::write(cluster.path(name), text).unwrap();
        cluster.mrctl(&["fs", "put", name, "/books"]);
    }
    let wanted = counted(&[&one, &two]);
    for reduces in ["1", "3", "20"] {
        let output = format!("/counts{reduces}");
        let job = cluster.json(&[
            "submit",
            "wordcount",
            "--input",
            "/books",
            "--output",
            &output,
            "--reduces",
            reduces,
        ]);
        assert_eq!(job["state"], "succeeded", "{job}");
        assert!(job["maps"]["total"].as_u64().unwrap() > 2, "the files were not split: {job}");
        assert_eq!(sorted_output(&cluster, &output), wanted, "{reduces} reduces");
        assert_eq!(cluster.mrctl(&["fs", "cat", &format!("{output}/_SUCCESS")]), "");
        let words: u64 =
            wanted.iter().map(|line| line.split('\t').nth(1).unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(job["counters"]["MAP_OUTPUT_RECORDS"], words, "{job}");
    }
    let jobs = cluster.json(&["jobs"]);
    assert_eq!(jobs.as_array().unwrap().len(), 3);
    assert!(cluster.mrctl(&["history", "job_1"]).lines().count() > 5);
    cluster.mrctl(&["logs", "job_1.m0"]);
}

#[test]
fn terasort_output_validates() {
    let cluster = Cluster::up(Up { block_size: "1MiB", replication: 1, ..Up::default() });
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=100000", "--conf", "maps=3"]);
    cluster.mrctl(&["submit", "terasort", "--input", "/gen", "--output", "/sorted", "--reduces", "4"]);
    cluster.mrctl(&["submit", "teravalidate", "--input", "/sorted", "--output", "/report"]);
    // The expected value is the checksum of the first 100,000 records of the sort benchmark.
    let report = cluster.mrctl(&["fs", "cat", "/report/part-*"]);
    assert_eq!(report, "records\t100000\nchecksum\tc327a1c42c28\nout-of-order\t0\n");
    // The sample of the input that mrctl writes for the job belongs to the user of the job.
    cluster.mrctl(&["fs", "mkdir", "/ann"]);
    cluster.mrctl(&["fs", "chmod", "777", "/ann"]);
    cluster.mrctl(&["submit", "terasort", "--input", "/gen", "--output", "/ann/sorted", "--user", "ann"]);
}

#[test]
fn streaming_runs_any_program() {
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    let book = text(3, 500);
    fs::write(cluster.path("book"), &book).unwrap();
    fs::write(
        cluster.path("map.sh"),
        "#!/bin/sh\necho reporter:counter:test,MAPS,1 >&2\ntr -s ' \\r' '\\n' | sed '/^$/d'\n",
    )
    .unwrap();
    cluster.mrctl(&["fs", "put", "book", "/book"]);
    let job = cluster.json(&[
        "submit",
        "streaming",
        "--mapper",
        "sh map.sh",
        "--reducer",
        "uniq -c",
        "--file",
        "map.sh",
        "--input",
        "/book",
        "--output",
        "/out",
    ]);
    assert_eq!(job["state"], "succeeded", "{job}");
    let got: Vec<String> = sorted_output(&cluster, "/out")
        .iter()
        .map(|line| {
            let (count, word) = line.trim().split_once(' ').unwrap();
            format!("{}\t{count}", word.trim())
        })
        .collect();
    let mut wanted = counted(&[&book]);
    wanted.sort();
    let mut got = got;
    got.sort();
    assert_eq!(got, wanted);

    let failed = cluster.try_mrctl(&[
        "submit",
        "streaming",
        "--mapper",
        "false",
        "--input",
        "/book",
        "--output",
        "/no",
    ]);
    assert_eq!(failed.code, 1, "{}", failed.stdout);
    assert!(failed.stdout.contains("failed") && failed.stdout.contains("exit"), "{}", failed.stdout);
    cluster.refused(1, &["fs", "stat", "/no/_SUCCESS"]);
}

#[test]
fn invalid_jobs_are_refused_in_one_line() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "x\n").unwrap();
    fs::write(cluster.path("not-a-job"), "#!/bin/sh\nexit 3\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/in/f"]);
    let cases: [(i32, &[&str], &str); 16] = [
        (2, &["nosuch", "--input", "/in", "--output", "/o"], "wordcount"),
        (2, &["./not-a-job", "--input", "/in", "--output", "/o"], "not executable"),
        (1, &["wordcount", "--input", "/nowhere", "--output", "/o"], "/nowhere"),
        (1, &["wordcount", "--input", "/proc", "/sys", "--output", "/o"], "quote it"),
        (1, &["wordcount", "--input", "/in/*.gz", "--output", "/o"], "/in/*.gz"),
        (2, &["wordcount", "--input", "/in", "--output", "/in"], "/in"),
        (2, &["wordcount", "--input", "/in", "--output", "/in/out"], "/in"),
        (2, &["wordcount", "--input", "relative", "--output", "/o"], "relative"),
        (2, &["wordcount", "--output", "/o"], "--input"),
        (2, &["wordcount", "--input", "/in"], "--no-output"),
        (2, &["wordcount", "--input", "/in", "--output", "/o", "--conf", "pace.map=xyz"], "pace.map"),
        (2, &["wordcount", "--input", "/in", "--output", "/o", "--conf", "slow.start=7"], "slow.start"),
        (2, &["streaming", "--mapper", "./map.py", "--input", "/in", "--output", "/o"], "with --file"),
        (2, &["streaming", "--input", "/in", "--output", "/o"], "--mapper"),
        (1, &["wordcount", "--input", "/in", "--output", "/o", "--reduces", "1000000"], "1000000"),
        (2, &["grep", "--input", "/in", "--output", "/o"], "grep.pattern"),
    ];
    for (code, args, word) in cases {
        let line = cluster.refused(code, &[&["submit"], args].concat());
        assert!(line.contains(word) && line.lines().count() == 1, "{args:?}: {line}");
    }
    assert!(cluster.refused(1, &["job", "job_9", "--follow"]).contains("job_9"));
    for command in ["job", "tasks", "counters", "kill", "history", "logs"] {
        assert!(cluster.refused(2, &[command, "nonsense"]).contains("nonsense"), "{command}");
    }
    assert_eq!(cluster.json(&["jobs"]).as_array().unwrap().len(), 0);
    assert!(!Path::new(&cluster.path("o")).exists());
}

#[test]
fn two_hundred_small_jobs_at_once_finish_and_a_killed_one_frees_its_slots() {
    let cluster = Cluster::up(Up::default());
    fs::write(cluster.path("f"), "a b c\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    let mut running = Vec::new();
    for at in 0..200 {
        let output = format!("/out{at}");
        let args = ["submit", "wordcount", "--input", "/f", "--output", &output, "--json"];
        running.push(cluster.command(&args).stdout(Stdio::null()).spawn().unwrap());
    }
    assert!(running.into_iter().all(|mut child| child.wait().unwrap().success()));
    let jobs = cluster.json(&["jobs"]);
    assert_eq!(jobs.as_array().unwrap().len(), 200);
    assert!(jobs.as_array().unwrap().iter().all(|job| job["state"] == "succeeded"), "{jobs}");

    let job = cluster.json(&[
        "submit",
        "streaming",
        "--mapper",
        "sleep 600",
        "--input",
        "/f",
        "--output",
        "/s",
        "--detach",
    ]);
    let id = job["job"].as_str().unwrap();
    fermata_tests::eventually("the job runs", || {
        (cluster.json(&["job", id])["maps"]["running"] == 1).then_some(())
    });
    cluster.mrctl(&["kill", id]);
    fermata_tests::eventually("the slot of the job is free", || {
        let busy = cluster.json(&["nodes"]);
        busy.as_array().unwrap().iter().all(|node| node["tracker"]["maps_running"] == 0).then_some(())
    });
    assert_eq!(cluster.json(&["job", id])["state"], "killed");
}
