//! Usage errors of all programs, exit codes, and what goes to standard output.

use fermata_tests::{Cluster, Ran, Up, binaries};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    process::Command,
};

fn run(program: &str, args: &[&OsStr], folder: &Path) -> Ran {
    Command::new(binaries().join(program)).args(args).current_dir(folder).output().unwrap().into()
}

/// Runs a command, and checks that it ends with a usage error in one line. Returns that line.
#[track_caller]
fn usage_error(program: &str, line: &str, folder: &Path) -> String {
    let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
    let ran = run(program, &words, folder);
    assert_eq!(ran.code, 2, "{program} {line}: {}{}", ran.stdout, ran.stderr);
    assert_eq!((ran.stderr.lines().count(), ran.stdout.as_str()), (1, ""), "{line}: {}", ran.stderr);
    ran.stderr
}

#[test]
fn usage_errors_are_one_line_and_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "a\n").unwrap();
    for (line, words) in [
        ("submit wordcount --reduces x", &["--reduces", "x", "whole number", "`mrctl submit --help`"][..]),
        ("up --nodes 300", &["--nodes", "from 1 to 200", "`mrctl up --help`"]),
        ("up --block-size 99999999TiB", &["--block-size", "99999999TiB", "maximum"]),
        ("fs quota / --space 99999999TiB", &["--space", "99999999TiB", "maximum"]),
        ("jobs --runing", &["--runing", "--running", "`mrctl jobs --help`"]),
        ("fs fsck --wait 500000000000y", &["--wait", "100 years"]),
        (
            "submit wordcount --input /in --output /out --conf split.size=99999999TiB",
            &["split.size", "99999999TiB", "a size"],
        ),
        ("submit wordcount ./my-job --input /in --output /out", &["unexpected argument", "./my-job"]),
        ("submit --input /in --output /out", &["missing <PROGRAM>"]),
        ("up --dir file", &["file is a file, not a folder"]),
        ("chaos run nofile", &["nofile: there is no such local file"]),
        ("replay nofile --scheduler fifo", &["nofile: there is no such local file"]),
        ("verify --repeats -1", &["--repeats: -1 is not a whole number from 1 to 1000"]),
        ("verify --link 0", &["--link 0", "at least 1KiB"]),
        ("verify --link -1", &["--link: -1", "must not be negative"]),
        ("verify --paced --only nope", &["--only \"nope\"", "choose from"]),
        ("verify --histories file --size 16MiB", &["--histories file", "this is a file"]),
        ("verify --link 4MB --dir no", &["--dir no", "there is no such folder", "create it"]),
        ("verify --dir no", &["--dir no", "there is no such folder", "create it"]),
        ("bench mr --rounds -1", &["--rounds: -1 is not a whole number from 1 to 100"]),
        ("sim fuzz --seed -1", &["--seed: -1", "must not be negative"]),
        ("sim calibrate nofile", &["nofile: there is no such local file"]),
        ("sim --workload file", &["--workload: file", "unknown kind of workload"]),
        ("sim --workload no.tsv", &["--workload: no.tsv", "there is no such file"]),
        ("sim --workload hsrtf --cluster no.toml", &["--cluster no.toml", "there is no such file"]),
        ("sim --workload hsrtf --faults .", &["--faults .", "this is a folder"]),
        ("sim --workload hsrtf --nodes 0", &["--nodes 0", "at least 1"]),
        ("sim --workload hsrtf --csv .", &["--csv .", "this is a folder"]),
        ("sim --workload hsrtf --report no/page.html", &["--report no/page.html", "there is no folder no"]),
        ("sim --workload hsrtf --mtbf -1h --mttr 1m", &["--mtbf: -1h", "must not be negative"]),
        ("sim --workload hsrtf --time-limit 0", &["--time-limit", "above 0"]),
        ("lab compare --policies fifo --workloads no.tsv", &["--workloads no.tsv", "no such file"]),
        (
            "lab compare --policies fifo --workloads gridmix[jobs=2] --dir file",
            &["--dir file", "this is a file"],
        ),
        (
            "lab compare --policies fifo --workloads gridmix[jobs=2] --dir . --csv a.csv",
            &["--csv a.csv", "this is in the folder of --dir"],
        ),
        (
            "lab compare --policies fifo --workloads hsrtf --runs-of abc --dir no",
            &["--dir no", "there is no such folder"],
        ),
        ("repro hsrtf --profiles no.toml", &["--profiles no.toml", "there is no such file"]),
        ("repro hsrtf --markdown .", &["--markdown .", "this is a folder"]),
        (
            "submit streaming --mapper ./no.py --input /in --output /out",
            &["./no.py", "working folder", "--file"],
        ),
    ] {
        let message = usage_error("mrctl", line, folder.path());
        assert!(words.iter().all(|word| message.contains(word)), "{line}: {message}");
    }
    for daemon in ["namenode", "datanode", "jobtracker", "tasktracker"] {
        let message = usage_error(daemon, "--log-max 99999999TiB", folder.path());
        assert!(message.starts_with(&format!("{daemon}: --log-max")), "{message}");
    }
    for line in ["--local nofile out", "--local file .", "--local file out --conf no.such=1", "--local file"]
    {
        let message = usage_error("wordcount-job", line, folder.path());
        assert!(message.starts_with("wordcount-job: "), "{message}");
    }
    assert!(fs::read_dir(folder.path()).unwrap().count() == 1, "something was written");
}

#[test]
fn names_that_are_not_utf8_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let odd = OsString::from_vec(b"odd-\xff".to_vec());
    for words in [["fs", "ls"], ["up", "--dir"]] {
        let ran = run("mrctl", &[OsStr::new(words[0]), OsStr::new(words[1]), &odd], folder.path());
        assert!(ran.code == 2 && ran.stderr.contains("is not UTF-8"), "{words:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn scripts_get_the_job_id_and_complete_messages() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "a b\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/in/f"]);
    let ran = cluster.try_mrctl(&["submit", "wordcount", "--input", "/in", "--output", "/out", "--detach"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "job_1\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`mrctl job --follow job_1`"), "{}", ran.stderr);
    cluster.mrctl(&["job", "--follow", "job_1"]);

    // Without a terminal, the reason of a failure is not truncated.
    let (begin, end) = ("first-word", "last-word");
    let mapper = format!("sh -c 'echo {begin} {} {end} >&2; exit 3'", "between ".repeat(40));
    let job = cluster.submit(&["streaming", "--mapper", &mapper, "--input", "/in", "--output", "/o"]);
    assert_eq!(job["state"], "failed");
    let jobs = cluster.mrctl(&["jobs"]);
    let row = jobs.lines().find(|row| row.starts_with("job_2")).unwrap();
    assert!(row.contains("job_2.m0 failed") && row.contains(begin) && row.ends_with(end), "{row}");

    let pattern = ["--conf", "grep.pattern=zzz"];
    let grep = [&["submit", "grep", "--input", "/in", "--output", "/none"][..], &pattern].concat();
    let message = cluster.mrctl(&grep);
    assert!(message.contains("output in /none is empty"), "{message}");
    let ran = cluster.try_mrctl(&["fs", "cat", "/none/part-*"]);
    assert!(ran.code == 0 && ran.stderr.contains("nothing to print"), "{}", ran.stderr);

    cluster.mrctl(&["fs", "mkdir", "/small"]);
    cluster.mrctl(&["fs", "quota", "/small", "--space", "1"]);
    let line = cluster.refused(1, &["fs", "put", "f", "/small/f"]);
    assert!(line.contains("quota") && line.contains("`mrctl fs quota --help`"), "{line}");

    let odd = cluster.path("folder").join(OsStr::from_bytes(b"odd-\xff"));
    fs::create_dir(cluster.path("folder")).unwrap();
    fs::write(&odd, "x").unwrap();
    let line = cluster.refused(2, &["fs", "put", "-r", "folder", "/folder"]);
    assert!(line.contains("is not UTF-8"), "{line}");
}
