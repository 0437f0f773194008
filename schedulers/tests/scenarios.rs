//! Runs every file in `scenarios/` with the policy that its name starts with, and compares the
//! results. `FERMATA_BLESS=1 cargo test -p fermata-schedulers` rewrites the files with the actual
//! results.

use fermata_schedulers::Params;
use mrcore::Scheduler;
use std::{fmt::Write as _, fs, path::Path};

fn make(spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, String> {
    fermata_schedulers::make(spec, params).map_err(|error| error.to_string())
}

#[test]
fn scenarios_have_the_expected_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = String::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let policy = name.split('.').next().unwrap_or_default();
        // File names contain `chronos-fair` instead of `chronos(fair)`.
        let policy = match policy.split_once("chronos-") {
            Some((_, inner)) => format!("chronos({inner})"),
            None => policy.to_owned(),
        };
        let written = fs::read_to_string(&file).unwrap();
        let played = mrcore::scenario::run(&written, &policy, &make, &mrcore::invariants::check)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        if std::env::var_os("FERMATA_BLESS").is_some() {
            fs::write(&file, &played).unwrap();
        } else if played != written {
            let _ = write!(wrong, "--- {name}, actual results:\n{played}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A job must not add attempts to the JobTracker forever, whatever its program does.
#[test]
fn job_of_a_task_that_is_interrupted_a_thousand_times_fails() {
    for (submitted, attempt, report) in
        [("maps=1", "j1.m0", "killed=j1.m0"), ("maps=0 reduces=1", "j1.r0", "paused=j1.r0")]
    {
        let mut text =
            format!("config lost_after=100000s\ncluster t1:h1 slots=1m1r\nsubmit j1 {submitted}\n");
        for number in 0..1000 {
            let stage = if report.starts_with("paused") { ":merge" } else { "" };
            let at = 61 * (number + 1);
            let _ = writeln!(text, "heartbeat t1 at={at}s {report}.{number}{stage}");
            // The delay is over, and the tracker has a free slot.
            let _ = writeln!(text, "tick at={}s\nheartbeat t1", at + 60);
        }
        text.push_str("----\n");
        let played = mrcore::scenario::run(&text, "fifo", &make, &|_| Ok(())).unwrap();
        let launches = played.lines().filter(|line| line.starts_with(&format!("assign {attempt} "))).count();
        assert_eq!(launches, 1000, "{attempt}");
        let ended = format!("ended j1 failed: 1000 attempts of {attempt} ended without a result");
        assert!(played.contains(&ended), "{attempt}: {}", &played[played.len().saturating_sub(2000)..]);
    }
}
