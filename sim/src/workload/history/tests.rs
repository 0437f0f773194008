//! Tests of reading and rejecting histories.

use super::*;
use crate::workload::MapPlan;
use mrcore::job::Priority;
use std::fs;

const HEAD: &str = r#"{"format":3,"cluster":"c","job":"job_7","at_us":1000000,"spec":{"name":"sort","user":"ann","queue":"q","priority":"high","program":"builtin:sort","inputs":[],"files":[],"output":"/o","reduces":1,"slow_start":0.05,"speculation":false,"attempts_max":4,"conf":{},"hosts":["node1"],"splits":[{"source":"/i","start":0,"end":100,"hosts":[0]}]}}"#;

fn line(at: u64, fact: &str) -> String {
    format!("\n{{\"at_us\":{at},\"fact\":{fact}}}")
}

fn launch(at: u64, attempt: &str) -> String {
    line(
        at,
        &format!(
            r#"{{"attempt-launched":{{"attempt":"{attempt}","tracker":"node1","host":"node1","speculative":false}}}}"#
        ),
    )
}

fn sample_history() -> String {
    [
        HEAD.to_owned(),
        launch(2_000_000, "job_7.m0.0"),
        launch(2_000_000, "job_7.r0.0"),
        line(4_000_000, r#"{"map-split":{"attempt":"job_7.m0.0","position":50,"bytes_out":30}}"#),
        launch(5_000_000, "job_7.m1.0"),
        line(8_000_000, r#"{"attempt-succeeded":{"attempt":"job_7.m1.0","bytes_out":20}}"#),
        line(12_000_000, r#"{"attempt-succeeded":{"attempt":"job_7.r0.0","bytes_out":20}}"#),
        line(12_500_000, r#"{"job-ended":{"outcome":"succeeded"}}"#),
    ]
    .concat()
}

fn parse(text: &str) -> Result<History, TraceError> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("job_7.jsonl"), text).expect("a file");
    read(folder.path())
}

#[test]
fn history_is_converted_to_a_workload_with_figures() {
    let history = parse(&sample_history()).expect("it reads");
    assert_eq!(history.trackers, ["node1"]);
    assert_eq!(history.slots, PerPhase { map: 1, reduce: 1 });
    assert_eq!(history.real[0].makespan, Span::millis(11_500));
    let job = &history.workload.jobs[0];
    assert_eq!(
        job.maps,
        [MapPlan { bytes: 100, work_s: 5.0, divisible: true }],
        "expected the work of both halves of the split"
    );
    assert!((job.reduces[0].fixed_s - 4.0).abs() < 1e-6, "expected the time after the end of the maps");
    assert!((job.map_out - 0.5).abs() < 1e-9);
    assert_eq!((job.hosts.clone(), job.priority), (vec![vec![0]], Priority::High));
    let figures = history.metrics.job(JobId(7)).expect("its figures");
    assert_eq!((figures.preemption.splits, figures.waiting()), (1, Some(Span::secs(1))));
    let mut megabytes = sample_history();
    for bytes in ["end\":100", "position\":50", "bytes_out\":30", "bytes_out\":20"] {
        megabytes = megabytes.replace(bytes, &format!("{bytes}000000"));
    }
    let [one] = &parse(&megabytes).expect("it reads").calibrate(false)[..] else { panic!("one program") };
    assert_eq!((one.name.as_str(), one.jobs, one.maps, one.reduces), ("sort", 1, 1, 1));
    let is = |got: Option<f64>, wanted: f64| got.is_some_and(|got| (got / wanted - 1.0).abs() < 1e-6);
    assert!((one.map_out - 0.5).abs() < 1e-9 && one.spread.is_none(), "{one:?}");
    assert!(
        is(one.reduce.map(|reduce| reduce.1), 20.0 / 50.0),
        "expected 20 output bytes for 50 input bytes"
    );
    // 100 MB in 5 s. Both parts of the map took 1.5 s of CPU time; the reduce has no counter.
    let large = sample_history().replace("\"end\":100", "\"end\":100000000");
    let slow = parse(&large).expect("it reads").calibrate(true);
    let cpu = |bytes: u32| format!(r#""bytes_out":{bytes},"counters":{{"CPU_MILLISECONDS":1500}}"#);
    let counted = large.replacen("\"bytes_out\":30", &cpu(30), 1).replacen("\"bytes_out\":20", &cpu(20), 1);
    let quick = parse(&counted).expect("it reads").calibrate(true);
    assert!(is(slow[0].map_mbps, 20.0), "without counters, expected the durations: {slow:?}");
    assert!(is(quick[0].map_mbps, 100.0 / 3.0), "{quick:?}");
    assert_eq!(quick[0].reduce, slow[0].reduce);
}

#[test]
fn history_names_the_policy_and_trackers() {
    let tracker = |name: &str| {
        format!(r#"{{"name":"{name}","host":"{name}","rack":"/r","map_slots":4,"reduce_slots":2}}"#)
    };
    let to = format!(
        r#"{{"submitted-to":{{"policy":"chronos(fair)","params":{{"fair.node_wait":"5s"}},"trackers":[{},{}]}}}}"#,
        tracker("node1"),
        tracker("node2")
    );
    let text = sample_history().replacen(HEAD, &format!("{HEAD}{}", line(1_000_000, &to)), 1);
    let history = parse(&text).expect("it reads");
    let environment = history.environment.expect("the recorded environment");
    assert_eq!((environment.policy.as_str(), environment.trackers[1].map_slots), ("chronos(fair)", 4));
    assert_eq!(history.trackers, ["node1", "node2"], "trackers that ran no attempt are included");
}

/// A job is submitted before its trackers register, and others when some have.
#[test]
fn cluster_is_that_of_all_submissions() {
    let tracker = |name: &str, maps: u32| {
        format!(r#"{{"name":"{name}","host":"{name}","rack":"/r","map_slots":{maps},"reduce_slots":2}}"#)
    };
    let job = |id: &str, trackers: &[String]| {
        let list = trackers.join(",");
        let to = format!(r#"{{"submitted-to":{{"policy":"fair","params":{{}},"trackers":[{list}]}}}}"#);
        let text = sample_history().replacen(HEAD, &format!("{HEAD}{}", line(1_000_000, &to)), 1);
        (id.to_owned(), text.replace("job_7", id))
    };
    let early = job("job_6", &[]);
    let history = read_texts(std::slice::from_ref(&early)).expect("it reads");
    let guess = history.guessed_cluster().expect("nothing is described");
    assert!(guess.starts_with("the history does not describe 1 of 1 node ("), "{guess}");
    let one = job("job_7", &[tracker("node1", 3), tracker("node2", 4)]);
    let two = job("job_8", &[tracker("node1", 5)]);
    let history = read_texts(&[early, one, two]).expect("they read");
    assert_eq!(
        (history.trackers.as_slice(), history.guessed_cluster()),
        (&["node1", "node2"].map(String::from)[..], None)
    );
    let slots: Vec<u32> = history.described_trackers().iter().map(|row| row.map_slots).collect();
    assert_eq!(slots, [5, 4], "those of the last submission that names the tracker");
}

#[test]
fn concurrent_jobs_are_merged_by_time() {
    let other = sample_history().replace("job_7", "job_8").replace("\"user\":\"ann\"", "\"user\":\"bob\"");
    let under = |policy: &str, history: &str| {
        let to = format!(
            r#"{{"submitted-to":{{"policy":"{policy}","params":{{"fair.pools.ann.min_maps":"2"}},"trackers":[]}}}}"#
        );
        let (head, rest) = history.split_once('\n').expect("more than one line");
        format!("{head}{}\n{rest}", line(1_000_000, &to))
    };
    let both = |one: &str, two: &str| {
        let texts =
            [("one".to_owned(), under(one, &sample_history())), ("other".to_owned(), under(two, &other))];
        read_texts(&texts).expect("they read")
    };
    let history = both("fair", "fair");
    assert_eq!(history.unknown_shares, None);
    assert_eq!(
        history.slots,
        PerPhase { map: 2, reduce: 2 },
        "the tracker ran an attempt of each job at the same time"
    );
    // In the 11.5 s, ann has both slots from 2 to 4 s and from 5 to 8 s, one slot from 4 to 5 s and
    // from 8 to 12 s, and otherwise none. From 5 s on none of her tasks is unassigned.
    let lacked = (1.0 + 0.5) / 11.5;
    assert!((history.metrics.shares.dissatisfaction() - lacked).abs() < 1e-9, "{lacked}");
    assert_eq!(
        both("fair", "fifo").unknown_shares,
        Some(UnknownShares::Several),
        "fair has a minimum share of two slots, fifo has none"
    );
    assert_eq!(history.workload.jobs[0].group, "sort", "the group must be the one that figures use");
}

#[test]
fn reduce_wait_excludes_the_time_on_hold() {
    let hold =
        r#"{"preemption-requested":{"attempt":"job_7.r0.0","kind":"pause","why":"by ann","hold":true}}"#;
    let paused = r#"{"attempt-paused":{"attempt":"job_7.r0.0","stage":"reduce","bytes":1,"bytes_in":1}}"#;
    let text = [
        HEAD.to_owned(),
        launch(2_000_000, "job_7.m0.0"),
        line(4_000_000, r#"{"attempt-succeeded":{"attempt":"job_7.m0.0","bytes_out":30}}"#),
        launch(5_000_000, "job_7.r0.0"),
        line(6_000_000, hold),
        line(7_000_000, paused),
        line(60_000_000, r#"{"task-released":{"task":"job_7.r0"}}"#),
        launch(62_000_000, "job_7.r0.1"),
    ]
    .concat();
    let metrics = figures("job_7", &text).expect("it reads");
    let waited = metrics.job(JobId(7)).expect("its figures").reduce_wait();
    assert_eq!(waited, Some(Span::secs(1 + 2)), "expected the waits from 4 to 5 s and from 60 to 62 s");
}

#[test]
fn error_of_a_bad_history_names_the_line() {
    let cases = [
        (
            sample_history().replace("\"format\":3", "\"format\":2"),
            ":1: the history has format 2: this build reads format 3",
        ),
        (sample_history().replacen("\"at_us\":5000000", "\"at_us\":5", 1), ":5: job_7: at_us 5 is before"),
        (sample_history().replace("\"user\":\"ann\",", ""), ":1: missing field `user`"),
        (sample_history().replacen("job_7.m1.0", "map one", 1), ":5: job_7: attempt-launched"),
        (launch(1, "job_7.m0.0").trim().to_owned(), ":1: a fact without a job"),
        (
            sample_history().replace("\"at_us\":12500000", "\"at_us\":1200000000000000000"),
            ":8: job_7: at_us 1200000000000000000 is more than ten years after 1000000",
        ),
        (
            sample_history().replace("\"bytes_out\":30", "\"bytes_out\":9000000000000000000"),
            ":8: job_7: a task takes 1125",
        ),
        (
            format!(
                "{}\n{}",
                sample_history(),
                HEAD.replace("job_7", "job_8").replace("1000000", "1000000000000000000")
            ),
            ":9: submitted 999999999999 s after the beginning",
        ),
        (
            sample_history().replace("\"reduces\":1", "\"reduces\":4000000000"),
            ":1: a job of 4000000001 tasks",
        ),
        ("nonsense".to_owned(), ":1: expected ident at column 2"),
        (String::new(), "no jobs in it"),
    ];
    for (text, expected) in cases {
        let error = parse(&text).map(|_| ()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error} should contain {expected}");
    }
}

fn lost(at: u64, attempt: &str) -> String {
    line(at, &format!(r#"{{"map-output-lost":{{"attempt":"{attempt}","why":"its tracker was lost"}}}}"#))
}

fn done(at: u64, attempt: &str, bytes: u64, milliseconds: u64) -> String {
    line(
        at,
        &format!(
            r#"{{"attempt-succeeded":{{"attempt":"{attempt}","bytes_out":{bytes},"counters":{{"CPU_MILLISECONDS":{milliseconds}}}}}}}"#
        ),
    )
}

/// Two parts of a map take 2 s and 3 s. The output of the first is lost and made again in 6 s, when
/// one of two reduces has already fetched all its input. Checks that repeated work counts once.
#[test]
fn repeated_work_in_a_history_counts_once() {
    let split = r#"{"map-split":{"attempt":"job_7.m0.0","position":50,"bytes_out":30,"counters":{"CPU_MILLISECONDS":1000}}}"#;
    let text = [
        HEAD.replace("\"reduces\":1", "\"reduces\":2").replace("\"end\":100", "\"end\":100000000"),
        launch(2_000_000, "job_7.m0.0"),
        launch(2_000_000, "job_7.r0.0"),
        launch(2_000_000, "job_7.r1.0"),
        line(4_000_000, split),
        launch(5_000_000, "job_7.m1.0"),
        done(8_000_000, "job_7.m1.0", 20, 2000),
        lost(9_000_000, "job_7.m0.0"),
        launch(10_000_000, "job_7.m0.1"),
        done(11_000_000, "job_7.r0.0", 10, 0),
        done(16_000_000, "job_7.m0.1", 30, 1500),
        done(20_000_000, "job_7.r1.0", 10, 0),
        line(20_500_000, r#"{"job-ended":{"outcome":"succeeded"}}"#),
    ]
    .concat();
    let history = parse(&text).expect("it reads");
    let job = &history.workload.jobs[0];
    assert!(
        (job.maps[0].work_s - (3.0 + 6.0)).abs() < 1e-6,
        "the time of the other part must not change: {:?}",
        job.maps
    );
    assert!((job.map_out * 1e8 - 50.0).abs() < 1e-6, "the 30 bytes must count once: {}", job.map_out * 1e8);
    assert_eq!(history.cpu_s[0].map, [3.5], "expected 2 s and 1.5 s of CPU time");
    let reduces: Vec<f32> = job.reduces.iter().map(|reduce| reduce.fixed_s).collect();
    assert_eq!(
        reduces,
        [3.0, 4.0],
        "the first reduce works from 8 to 11 s, because it had all its input; the second from 16 s on"
    );
    assert!((job.reduce_out - 20.0 / 50.0).abs() < 1e-9);
}

/// Reads files whose lines are in random order.
#[test]
fn damaged_histories_are_read_or_rejected_without_a_panic() {
    let no_splits = HEAD.replace(r#"{"source":"/i","start":0,"end":100,"hosts":[0]}"#, "");
    let ended = line(9_000_000, r#"{"job-ended":{"outcome":"succeeded"}}"#);
    let split = line(4_000_000, r#"{"map-split":{"attempt":"job_7.m0.0","position":50,"bytes_out":30}}"#);
    let text = [no_splits.clone(), launch(2_000_000, "job_7.m0.0"), split, lost(5_000_000, "job_7.m0.0")];
    parse(&(text.concat() + &ended)).expect("it reads");
    let mut rng = crate::rng::Rng::new(7);
    let kinds = [
        r#"{"attempt-launched":{"attempt":"ID","tracker":"node1","resumed_from":"job_7.r0.0"}}"#,
        r#"{"attempt-succeeded":{"attempt":"ID","bytes_out":5,"counters":{"CPU_MILLISECONDS":7}}}"#,
        r#"{"map-split":{"attempt":"ID","position":50,"bytes_out":30}}"#,
        r#"{"attempt-paused":{"attempt":"ID","stage":"merge","bytes":1,"bytes_in":1}}"#,
        r#"{"preemption-requested":{"attempt":"ID","kind":"pause","hold":true}}"#,
        r#"{"attempt-killed":{"attempt":"ID","why":"its tracker was lost"}}"#,
        r#"{"attempt-failed":{"attempt":"ID","error":"x"}}"#,
        r#"{"map-output-lost":{"attempt":"ID"}}"#,
        r#"{"checkpoint-lost":{"attempt":"ID"}}"#,
        r#"{"preemption-refused":{"attempt":"ID","refusals":1}}"#,
    ];
    for _ in 0..2000 {
        let mut text = if rng.one_in(2) { no_splits.clone() } else { HEAD.to_owned() };
        for at in 0..rng.below(12) {
            let phase = if rng.one_in(2) { "m" } else { "r" };
            let id = format!("job_7.{phase}{}.{}", rng.below(3), rng.below(2));
            text += &line(2_000_000 + at, &kinds[rng.index(kinds.len())].replace("ID", &id));
        }
        let history = parse(&(text + &ended)).expect("it reads");
        history.calibrate(rng.one_in(2));
    }
}

#[test]
fn tasks_of_a_run_of_splits_are_counted_before_they_take_memory() {
    let text = sample_history().replacen(r#""end":100,"#, r#""end":100,"count":1000000000,"#, 1);
    let error = parse(&text).expect_err("too many tasks").to_string();
    assert!(error.contains("job_7.jsonl:1: a job of 1000000001 tasks: the maximum is 1000000"), "{error}");
}

#[test]
fn folder_of_a_run_that_was_interrupted_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let unfinished = folder.path().join(format!(".histories.1.{PARTIAL}"));
    fs::create_dir(&unfinished).expect("a folder");
    fs::write(unfinished.join("job_7.jsonl"), sample_history()).expect("a file");
    let error = read(&unfinished).expect_err("it is not complete").to_string();
    assert!(error.contains("has not ended, or was interrupted"), "{error}");
}

#[test]
fn attempts_that_make_profiles_doubtful_are_counted() {
    let killed = line(5_000_000, r#"{"attempt-killed":{"attempt":"job_7.r0.0","why":"x"}}"#);
    let again = launch(5_000_000, "job_7.r0.1");
    let launched = launch(5_000_000, "job_7.m1.0");
    let text = sample_history().replacen(&launched, &format!("{launched}{killed}{again}"), 1);
    let text = text.replacen(
        r#"ed":{"attempt":"job_7.r0.0","bytes_out":20"#,
        r#"ed":{"attempt":"job_7.r0.1","bytes_out":20"#,
        1,
    );
    let seen = Disturbances { killed: 1, split: 1, ..Disturbances::default() };
    assert_eq!(parse(&text).expect("it reads").calibrate(false)[0].disturbances, seen);
}
