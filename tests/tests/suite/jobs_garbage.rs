//! Jobs that could only succeed with a wrong result are refused, or fail with the reason. Causes
//! are replaced or compressed input, unknown settings, folders that were not read, and output that
//! cannot be written.

use fermata_tests::{Cluster, QUICK, Ran, Up, binaries, eventually};
use serde_json::Value;
use std::fs;

fn put(cluster: &Cluster, at: &str, bytes: &[u8]) {
    fs::write(cluster.path("upload"), bytes).unwrap();
    cluster.mrctl(&["fs", "put", "--force", "upload", at]);
}

/// Returns the job after its end.
fn await_end(cluster: &Cluster, job: &str) -> Value {
    eventually(&format!("{job} has ended"), || {
        let job = cluster.json(&["job", job]);
        (!["running", "committing"].contains(&job["state"].as_str().unwrap())).then_some(job)
    })
}

/// Returns the number of failed attempts by task.
fn failed_attempts(cluster: &Cluster, job: &str) -> Vec<usize> {
    let tasks = cluster.json(&["tasks", job]);
    let failed = |task: &Value| {
        task["attempts"].as_array().unwrap().iter().filter(|attempt| attempt["state"] == "failed").count()
    };
    tasks.as_array().unwrap().iter().map(failed).collect()
}

/// Regression: maps that started after the replacement read the new file, and the job succeeded
/// with a mixture of both files.
#[test]
fn input_that_is_replaced_or_deleted_fails_the_job_without_retries() {
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, block_size: "1MiB", settings: QUICK, ..Up::default() });
    let old: Vec<u8> = b"old words\n".repeat(600_000);
    let new: Vec<u8> = b"new words\n".repeat(600_000);
    let submit = |output: &str| {
        // A map takes ten seconds. That is enough time to change the input before other maps open it.
        let slow = ["--conf", "pace.map=100KiB", "--conf", "speculation=false"];
        let job = cluster.detach(&[&["wordcount", "--input", "/in", "--output", output], &slow[..]].concat());
        eventually("a map runs, and others wait", || {
            let maps = &cluster.json(&["job", &job])["maps"];
            let [running, total] = ["running", "total"].map(|name| maps[name].as_u64().unwrap());
            (running > 0 && running < total).then_some(())
        });
        job
    };
    for (change, words) in [("replace", "was replaced after"), ("delete", "was deleted or moved after")] {
        put(&cluster, "/in/a", &old);
        let output = format!("/{change}");
        let job = submit(&output);
        if change == "replace" {
            put(&cluster, "/in/a", &new);
        } else {
            cluster.mrctl(&["fs", "rm", "/in/a"]);
        }
        let ended = await_end(&cluster, &job);
        let why = ended["why"].as_str().unwrap();
        assert_eq!(ended["state"], "failed", "{ended}");
        assert!(why.contains(&format!("input /in/a {words} {job} was submitted")), "{why}");
        let failed = failed_attempts(&cluster, &job);
        assert!(
            failed.iter().all(|failed| *failed <= 1),
            "a task was retried, although retries cannot succeed: {failed:?}"
        );
        assert!(cluster.try_mrctl(&["fs", "ls", &output]).code != 0, "{change}: there is output");
    }
}

/// Regression: such jobs failed only after four attempts of a task.
#[test]
fn failures_that_every_attempt_would_have_are_not_retried() {
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, block_size: "1MiB", settings: QUICK, ..Up::default() });
    // A gzip file whose end is missing.
    put(&cluster, "/gzip/a.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03KT\x48\xe2");
    put(&cluster, "/text/a", &b"not a record\n".repeat(20));
    put(&cluster, "/large/a", &b"some words\n".repeat(400_000));
    cluster.mrctl(&["fs", "mkdir", "/full"]);
    cluster.mrctl(&["fs", "quota", "/full", "--space", "2MiB"]);
    let cases = [
        ("wordcount", "/gzip", "/out1", "input /gzip/a.gz cannot be decompressed at byte"),
        (
            "terasort",
            "/text",
            "/out2",
            "record at /text/a @ byte 200: the file ends 60 bytes into a record of 100",
        ),
    ];
    for (program, input, output, words) in cases {
        let job = cluster.submit(&[program, "--input", input, "--output", output, "--reduces", "1"]);
        assert_eq!(job["state"], "failed", "{job}");
        assert!(job["why"].as_str().unwrap().contains(words), "{job}");
        let failed = failed_attempts(&cluster, job["job"].as_str().unwrap());
        assert!(failed.iter().all(|failed| *failed <= 1), "{program} was retried: {failed:?}");
    }
    // This failure is retried, because there may be space again when other files or attempts are
    // gone.
    let full = cluster.submit(&["identity", "--input", "/large", "--output", "/full/out", "--reduces", "1"]);
    let why = full["why"].as_str().unwrap();
    assert!(
        full["state"] == "failed" && why.contains("/full: quota of 2") && !why.contains("piece"),
        "{why}"
    );
    let many =
        ["submit", "identity", "--input", "/text", "--output", "/o", "--conf", "output.replication=64"];
    assert!(cluster.refused(1, &many).contains("output.replication = 64 is too high for 1 DataNode"));
}

/// Checks that a file which grows is read only up to its length at submission.
#[test]
fn input_that_grows_is_read_as_it_was_at_submission() {
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, block_size: "1MiB", settings: QUICK, ..Up::default() });
    // The file does not end with a newline, so that appended data would lengthen the last line.
    let text = [b"some words\n".repeat(400_000).as_slice(), b"last"].concat();
    put(&cluster, "/in/a", &text);
    let slow = ["--conf", "pace.map=600KiB", "--conf", "speculation=false"];
    let job = cluster.detach(&[&["wordcount", "--input", "/in", "--output", "/out"], &slow[..]].concat());
    fs::write(cluster.path("more"), b"ing change\n").unwrap();
    cluster.mrctl(&["fs", "put", "--append", "more", "/in/a"]);
    let ended = await_end(&cluster, &job);
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert_eq!(cluster.output("/out"), b"last\t1\nsome\t400000\nwords\t400000\n");
}

/// Regression: such files were read as lines, and the job succeeded.
#[test]
fn compressed_input_that_cannot_be_decoded_is_refused_by_name() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/in/good.txt", b"a b\n");
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03KT\x48\xe2\x02\x00\x18\x20\x5f\xeb\x04\x00\x00\x00";
    let cases: [(&str, &[u8], &str); 7] = [
        ("/c/x.bz2", b"BZh91AY&SY\x01\x02", "bzip2"),
        ("/c/x.zst", b"\x28\xb5\x2f\xfd\x04", "Zstandard"),
        ("/c/x.xz", b"plain text under a wrong name\n", "xz"),
        ("/c/x.dat", b"\x28\xb5\x2f\xfd\x04", "Zstandard"),
        ("/c/x.csv", b"BZh91AY&SY\x01\x02", "bzip2"),
        ("/c/x.log", gzip, "gzip"),
        ("/c/x.gz", b"plain text\n", "not gzip"),
    ];
    for (path, bytes, words) in cases {
        put(&cluster, path, bytes);
        // The input is the file itself, or the folder that contains it.
        for input in [path, "/c"] {
            let args = ["submit", "wordcount", "--input", "/in", input, "--output", "/out"];
            let message = cluster.refused(2, &args);
            assert!(message.contains(&format!("input {path} is")) && message.contains(words), "{message}");
            assert!(message.contains("input.codec=none"), "{message}");
        }
        let output = format!("/as-it-is/{}", &path[3..]);
        cluster.succeed(&["wordcount", "--input", path, "--output", &output, "--conf", "input.codec=none"]);
        cluster.mrctl(&["fs", "rm", path]);
    }
    // With a binary format the job is accepted, because records may begin with any bytes.
    put(&cluster, "/records", b"\x28\xb5\x2f\xfdabcd");
    let fixed = ["--conf", "input.format=fixed:4:4"];
    cluster.succeed(&[&["identity", "--input", "/records", "--output", "/fixed"], &fixed[..]].concat());
}

/// Regression: unknown settings were accepted without effect.
#[test]
fn unknown_settings_are_refused_with_the_nearest_name() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/in/a", b"a\nnow\nb\n");
    let program = binaries().join("test-job").display().to_string();
    for (program, setting, words) in [
        ("wordcount", "nonsense=1", "setting nonsense is unknown"),
        ("wordcount", "pace.mpa=1MiB", "did you mean pace.map?"),
        ("wordcount", "mapreduce.job.reduces=2", "use --reduces 2"),
        ("wordcount", "stream.map.output.field.separator=,", "only for the program streaming"),
        ("grep", "grep.patern=x", "grep.pattern"),
        (program.as_str(), "misbehavior=panic", "did you mean misbehaviour?"),
        (program.as_str(), "word.length=3", "setting word.length is unknown"),
    ] {
        let message =
            cluster.refused(2, &["submit", program, "--input", "/in", "--output", "/o", "--conf", setting]);
        assert!(message.contains(words), "{setting}: {message}");
    }
    // Declared settings, and those that begin with `user.`, are passed to the program.
    let own = ["--conf", "misbehaviour=", "--conf", "user.anything=1"];
    cluster.succeed(&[&[program.as_str(), "--input", "/in", "--output", "/own"], &own[..]].concat());
    let mapper =
        ["--mapper", "sh -c 'cat > /dev/null; echo $user_greeting'", "--conf", "user.greeting=hello"];
    cluster.succeed(
        &[&["streaming", "--input", "/in", "--output", "/env", "--reduces", "0"], &mapper[..]].concat(),
    );
    assert_eq!(cluster.output("/env"), b"hello\n");
    let programs = cluster.mrctl(&["programs"]);
    assert!(programs.contains("grep.pattern") && programs.contains("termvector.min"), "{programs}");
}

/// Regression: subfolders were silently ignored.
#[test]
fn folder_input_includes_subfolders_unless_disabled() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    for (at, word) in [
        ("/in/a", "top"),
        ("/in/below/b", "below"),
        ("/in/below/deeper/c", "deeper"),
        ("/in/_temporary/d", "hidden"),
        ("/in/.git/e", "hidden"),
    ] {
        put(&cluster, at, format!("{word}\n").as_bytes());
    }
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/all"]);
    assert_eq!(cluster.output("/all"), b"below\t1\ndeeper\t1\ntop\t1\n");
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/alone", "--no-recursive"]);
    assert_eq!(cluster.output("/alone"), b"top\t1\n");
    cluster.succeed(&["sort", "--input", "/in/bel*", "--output", "/sorted", "--reduces", "2"]);
    assert_eq!(cluster.output("/sorted"), b"below\ndeeper\n");
    assert!(cluster.mrctl(&["submit", "--help"]).contains("--no-recursive"));
}

/// Regression: missing permissions were detected only after four failed attempts.
#[test]
fn permissions_are_checked_at_submission() {
    let settings = format!("{QUICK}\n[security]\npermissions = \"on\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    put(&cluster, "/in/a", b"a\n");
    put(&cluster, "/secret/b", b"b\n");
    cluster.mrctl(&["fs", "chmod", "600", "/secret/b"]);
    cluster.mrctl(&["fs", "mkdir", "/closed", "/open", "/full"]);
    cluster.mrctl(&["fs", "chmod", "755", "/closed"]);
    cluster.mrctl(&["fs", "chmod", "777", "/open", "/full"]);
    cluster.mrctl(&["fs", "quota", "/full", "--files", "4"]);
    let submit = |input: &str, output: &str, reduces: &str| -> Ran {
        let args =
            ["submit", "wordcount", "--input", input, "--output", output, "--reduces", reduces, "--json"];
        cluster.command(&args).env("FERMATA_USER", "ann").output().unwrap().into()
    };
    for (input, output, words) in [
        ("/in", "/closed/out", "may not create /closed/out"),
        ("/in", "/closed/new/folder/out", "may not create /closed/new/folder/out"),
        ("/secret", "/open/out", "may not read /secret/b"),
        ("/in", "/full/out", "/full: quota of 4 files and folders"),
    ] {
        let ran = submit(input, output, "4");
        assert_eq!(ran.code, 1, "{output}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(words) && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
    }
    assert_eq!(cluster.json(&["jobs"]), serde_json::json!([]), "a refused submission created a job");
    let ran = submit("/in", "/open/out", "4");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
}

/// Regression: panics and crashing streaming mappers failed the job, and a byte offset looked like
/// a line number.
#[test]
fn bad_records_are_skipped_up_to_a_bound_and_named_by_line() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let lines: String = (0..2000)
        .map(|n| if n == 70 || n == 1500 { "now\n".to_owned() } else { format!("line {n}\n") })
        .collect();
    put(&cluster, "/in/a", lines.as_bytes());
    let program = binaries().join("test-job").display().to_string();
    let python = "sh -c 'while read -r line; do [ \"$line\" = now ] && exit 3; echo \"$line\"; done'";
    let panics = [program.as_str(), "--input", "/in", "--conf", "misbehaviour=panic"];
    let crashes = ["streaming", "--input", "/in", "--reduces", "1", "--mapper", python];
    for (name, args) in [("panics", &panics[..]), ("crashes", &crashes[..])] {
        let with = |output: &str, skip: &str| {
            let (output, skip) = (format!("/{name}-{output}"), format!("skip.bad.records={skip}"));
            let more = ["--output", &output, "--conf", &skip, "--conf", "attempts.max=1"];
            cluster.submit(&[args, &more[..]].concat())
        };
        let job = with("none", "0");
        assert_eq!(job["state"], "failed", "{name}: {job}");
        let why = job["why"].as_str().unwrap();
        assert!(name == "crashes" || why.contains("record at /in/a:71: "), "{why}");
        let job = with("one", "1");
        let why = job["why"].as_str().unwrap();
        assert!(job["state"] == "failed" && why.contains("skip.bad.records = 1"), "{name}: {job}");
        let job = with("two", "2");
        assert_eq!(job["state"], "succeeded", "{name}: {job}");
        assert_eq!(job["counters"]["SKIPPED_RECORDS"], 2, "{name}: {job}");
        assert_eq!(cluster.output(&format!("/{name}-two")).split(|byte| *byte == b'\n').count() - 1, 1998);
        let log = cluster.mrctl(&["logs", &format!("{}.m0", job["job"].as_str().unwrap())]);
        assert!(log.contains("record at /in/a:71: ") && log.contains("record at /in/a:1501: "), "{log}");
    }
}

/// The map reads its input again without the bad record. Checks that the output it had written
/// before is deleted, so that no record is written twice.
#[test]
fn map_only_job_with_a_skipped_record_writes_all_others_once() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let pad = "x".repeat(100);
    let lines: String =
        (0..40_000).map(|n| if n == 39_000 { "now\n".into() } else { format!("{n} {pad}\n") }).collect();
    put(&cluster, "/in/a", lines.as_bytes());
    let program = binaries().join("test-job").display().to_string();
    let job = cluster.submit(&[
        &program,
        "--input",
        "/in",
        "--output",
        "/out",
        "--reduces",
        "0",
        "--conf",
        "misbehaviour=panic",
        "--conf",
        "skip.bad.records=1",
        "--conf",
        "attempts.max=1",
    ]);
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(job["counters"]["SKIPPED_RECORDS"], 1, "{job}");
    let output = String::from_utf8(cluster.output("/out")).unwrap();
    let found: Vec<usize> =
        output.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(found, (0..40_000).filter(|n| *n != 39_000).collect::<Vec<_>>());
}

/// Regression: lists truncated the exception, the state of the failed task was `unfinished`, and
/// teragen was shown as if it had input.
#[test]
fn failures_are_shown_by_their_cause_and_last_line() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/in/a", b"a\n");
    let mapper = "sh -c 'echo Traceback >&2; echo \"  line 7\" >&2; echo \"ValueError: seven\" >&2; exit 1'";
    let args = ["--input", "/in", "--output", "/out", "--mapper", mapper, "--conf", "attempts.max=1"];
    let job = cluster.submit(&[&["streaming"], &args[..]].concat());
    assert_eq!(job["state"], "failed", "{job}");
    for command in ["jobs", "tasks job_1", "why job_1", "job job_1"] {
        let shown = cluster.mrctl(&command.split(' ').collect::<Vec<_>>());
        assert!(
            shown.contains("ended with exit status 1") && shown.contains("ValueError: seven"),
            "{command}: {shown}"
        );
    }
    let tasks = cluster.json(&["tasks", "job_1"]);
    assert_eq!(tasks[0]["state"], "failed", "{tasks}");
    let generate = ["submit", "teragen", "--output", "/gen", "--conf", "rows=10", "--conf", "maps=1"];
    let shown = cluster.mrctl(&generate);
    assert!(shown.contains("1 map, 0 reduces") && !shown.contains("node-local"), "{shown}");
    let log = cluster.try_mrctl(&["logs", "--stdout", "job_2.m0"]);
    assert!(log.code == 0 && log.stderr.contains("printed nothing to standard output"), "{}", log.stderr);
    let help = cluster.mrctl(&["help"]);
    let (everyday, experiments) = help.split_once("\nLab:\n").expect("a section for experiments");
    assert!(!everyday.contains("  chaos  ") && experiments.contains("  chaos  "), "{help}");
}
