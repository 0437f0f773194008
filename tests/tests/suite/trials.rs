//! The simulator compared with real clusters of eight nodes, and the experiments of the papers on
//! one machine.

use fermata_tests::{binaries, skip};
use serde_json::Value;
use std::{process::Command, sync::Mutex};

/// Keeps tests that depend on the load of the machine from running at the same time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `mrctl ARGS` with its clusters in the build folder, and returns its output.
fn mrctl(args: &[&str]) -> String {
    run(Command::new(binaries().join("mrctl")), args)
}

fn run(mut mrctl: Command, args: &[&str]) -> String {
    let space = binaries().with_file_name("tmp");
    std::fs::create_dir_all(&space).expect("a writable build folder");
    let dir = space.display().to_string();
    let args = [args, &["--dir", &dir]].concat();
    let ran = mrctl.args(&args).output().expect("mrctl starts");
    let (out, why) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "mrctl {args:?}: {out}{why}");
    out.into_owned()
}

/// Runs trials for real and simulated.
fn verify(only: Option<&str>) -> Value {
    let only: Vec<&str> = only.into_iter().flat_map(|only| ["--only", only]).collect();
    let out = mrctl(&[&["sim", "verify", "--paced", "--json"], &only[..]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Tests the whole path from a real run to its simulation. The accuracy is measured by the other
/// tests, on an idle machine. Here the machine may be busy, so only a large error fails.
#[test]
fn simulator_predicts_a_short_trial() {
    let result = verify(Some("short"));
    assert!(number(&result["error"]) < 1.0, "{result:#}");
}

/// Runs real jobs on machines with limited links, disks and processors, and simulates them. A node
/// dies while jobs run. The inputs are small and the machine may be busy, so only a large error fails.
#[test]
fn simulator_predicts_real_jobs_on_limited_machines() {
    let _alone = ALONE.lock();
    let space = binaries().with_file_name("tmp");
    std::fs::create_dir_all(&space).expect("a writable build folder");
    let mut command = Command::new(binaries().join("mrctl"));
    command
        .args(["verify", "--only", "mixed", "--repeats", "1", "--size", "16MiB", "--json", "--dir"])
        .arg(space);
    let ran = command.output().expect("mrctl starts");
    let why = String::from_utf8_lossy(&ran.stderr);
    let causes = ["need root", "is not installed", "no controllers", "`losetup --find"];
    if !ran.status.success() && causes.iter().any(|cause| why.contains(cause)) {
        return skip("limits", why.trim());
    }
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{out}{why}");
    let result: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let jobs = result["trials"][0]["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 5, "{result:#}");
    let have_ended = |job: &Value| number(&job["real_s"]) > 0.0 && number(&job["simulated_s"]) > 0.0;
    assert!(jobs.iter().all(have_ended), "{result:#}");
    assert!(number(&result["profiles"]["wordcount"]["map_mbps"]) > 0.0, "{result:#}");
    let recovered: f64 = jobs.iter().map(|job| number(&job["recovery"]["tasks"])).sum();
    assert!(recovered > 0.0, "the node died without a task: {result:#}");
    assert!(number(&result["error"]) < 0.5, "{result:#}");
}

#[test]
#[ignore = "six minutes on a quiet machine"]
fn simulator_predicts_mixed_workloads_within_ten_percent() {
    let result = verify(None);
    println!("{result:#}");
    assert!(result["trials"].as_array().is_some_and(|trials| trials.len() >= 6), "{result:#}");
    assert!(number(&result["error"]) <= 0.10, "{result:#}");
}

/// A network namespace whose loopback interface has a limited rate. Removed when dropped.
struct NarrowLink(&'static str);

impl NarrowLink {
    /// Creates the namespace. Prints a message and returns `None` if that is not possible.
    fn make(name: &'static str, rate: &str) -> Option<Self> {
        let ip = |line: &str| Command::new("ip").args(line.split(' ')).output();
        // Removes what an earlier run may have left.
        let _ = ip(&format!("netns del {name}"));
        let limit =
            format!("netns exec {name} tc qdisc add dev lo root tbf rate {rate} burst 64kb latency 400ms");
        for line in [format!("netns add {name}"), format!("-n {name} link set lo mtu 1500 up"), limit] {
            let done = ip(&line).is_ok_and(|ran| ran.status.success());
            if !done {
                skip("tc", format_args!("`ip {line}` fails"));
                let _ = ip(&format!("netns del {name}"));
                return None;
            }
        }
        Some(Self(name))
    }
}

impl Drop for NarrowLink {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", self.0]).output();
    }
}

/// Compares the transfer of bytes over a real link with the model. Packets are small and the queue
/// is long, because otherwise most packets are dropped and sent again.
#[test]
#[ignore = "a minute, root and tc"]
fn simulator_predicts_a_narrow_link() {
    let Some(narrow) = NarrowLink::make("fmnarrow", "32mbit") else { return };
    let mut within = Command::new("ip");
    within.args(["netns", "exec", narrow.0]).arg(binaries().join("mrctl"));
    let out = run(within, &["sim", "verify", "--link", "4MB", "--json"]);
    let result: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    println!("{result:#}");
    assert!(number(&result["error"]) <= 0.20, "{result:#}");
}

/// Runs the trial in which a node dies. Returns its result, and how the lost work of the first job
/// was started again: number of maps, number of node-local maps, and the longest wait in seconds.
fn recovery() -> (Value, [f64; 3]) {
    let result = verify(Some("chronos(fifo), a node dies"));
    let jobs = result["trials"][0]["jobs"].as_array().expect("jobs");
    let first = &jobs.iter().find(|job| job["job"] == "first-0").expect("the first job")["recovery"];
    let figures = ["maps", "local", "longest_s"].map(|name| number(&first[name]));
    (result, figures)
}

/// A node dies. Checks that the lost work of the first job starts again, mostly on hosts of its
/// input. On a busy machine, some maps wait so long that they start elsewhere.
#[test]
fn lost_work_restarts_near_its_data() {
    let _alone = ALONE.lock();
    let (result, [maps, local, _]) = recovery();
    assert!(maps > 0.0 && 2.0 * local >= maps, "{result:#}");
}

#[test]
#[ignore = "half a minute on a quiet machine"]
fn lost_work_restarts_within_two_seconds_at_its_data() {
    let (result, [maps, local, longest_s]) = recovery();
    assert!(maps > 0.0 && local >= maps && longest_s <= 2.0, "{result:#}");
}

#[test]
#[ignore = "half an hour, three papers"]
fn paper_experiments_run_on_one_machine() {
    for paper in ["chronos", "hsrtf", "fcs"] {
        let started = std::time::Instant::now();
        let out = mrctl(&["repro", paper, "--scale", "laptop"]);
        println!("{out}");
        assert!(started.elapsed().as_secs() < 600, "{paper} took {:?}", started.elapsed());
        assert!(out.contains("paper") && out.contains("ours"), "{out}");
    }
}
