//! Histories that are read, and those that are refused.

use super::*;
use mrcore::job::Priority;
use std::fs;

const HEAD: &str = r#"{"format":1,"cluster":"c","job":"job_7","at_us":1000000,"spec":{"name":"sort","user":"ann","queue":"q","priority":"high","program":"builtin:sort","inputs":[],"files":[],"output":"/o","reduces":1,"slow_start":0.05,"speculation":false,"attempts_max":4,"conf":{},"splits":[{"source":"/i","start":0,"end":100,"hosts":["node1"]}]}}"#;

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

fn life() -> String {
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
fn a_history_is_a_workload() {
    let history = parse(&life()).expect("it reads");
    assert_eq!(history.trackers, ["node1"]);
    assert_eq!(history.slots, PerPhase { map: 1, reduce: 1 });
    assert_eq!(history.real[0].makespan, Span::millis(11_500));
    let job = &history.workload.jobs[0];
    assert_eq!(job.maps, [MapPlan { bytes: 100, work_s: 5.0 }], "both halves of the split");
    assert!((job.reduces[0].fixed_s - 4.0).abs() < 1e-6, "from when the maps were done");
    assert!((job.map_out - 0.5).abs() < 1e-9);
    assert_eq!((job.hosts.clone(), job.priority), (vec![vec![0]], Priority::High));
    let figures = history.metrics.job(JobId(7)).expect("its figures");
    assert_eq!((figures.taken.splits, figures.waiting()), (1, Some(Span::secs(1))));
    let profile = history.calibrate()["sort"];
    assert!((profile.map_mbps - 100.0 / 1e6 / 5.0).abs() < 1e-3 && (profile.map_out - 0.5).abs() < 1e-9);
    assert!((profile.reduce_out - 20.0 / 50.0).abs() < 1e-9, "20 bytes of the 50 that came out of maps");
}

#[test]
fn it_says_what_the_job_was_submitted_to() {
    let tracker = |name: &str| {
        format!(r#"{{"name":"{name}","host":"{name}","rack":"/r","map_slots":4,"reduce_slots":2}}"#)
    };
    let to = format!(
        r#"{{"submitted-to":{{"policy":"chronos(fair)","params":{{"fair.node_wait":"5s"}},"trackers":[{},{}]}}}}"#,
        tracker("node1"),
        tracker("node2")
    );
    let text = life().replacen(HEAD, &format!("{HEAD}{}", line(1_000_000, &to)), 1);
    let history = parse(&text).expect("it reads");
    let under = history.under.expect("it says so");
    assert_eq!((under.policy.as_str(), under.trackers[1].map_slots), ("chronos(fair)", 4));
    assert_eq!(history.trackers, ["node1", "node2"], "also who ran nothing");
}

#[test]
fn jobs_that_ran_side_by_side_are_put_together() {
    let other = life().replace("job_7", "job_8").replace("\"user\":\"ann\"", "\"user\":\"bob\"");
    let texts = [("one".to_owned(), life()), ("other".to_owned(), other)];
    let promise = |min_share| Promise { min_share, weight: 1.0 };
    let users = vec![("ann".to_owned(), promise(2.0)), ("bob".to_owned(), promise(0.0))];
    let history = read_texts(&texts, users).expect("they read");
    assert_eq!(history.slots, PerPhase { map: 2, reduce: 2 }, "the tracker ran one of each job at a time");
    // Of 11.5 s ann has both her slots from 2 to 4 s and from 5 to 8, one from 4 to 5 and from 8 to 12, none else.
    let lacked = (1.0 + 0.5 + 4.0 * 0.5 + 0.5) / 11.5;
    assert!((history.metrics.shares.dissatisfaction() - lacked).abs() < 1e-9, "{lacked}");
}

#[test]
fn bad_histories_name_the_line() {
    let cases = [
        (life().replace("\"format\":1", "\"format\":2"), ":1: format 2"),
        (life().replacen("\"at_us\":5000000", "\"at_us\":5", 1), ":5: job_7: at_us 5 is before"),
        (life().replace("\"user\":\"ann\",", ""), ":1: missing field `user`"),
        (life().replacen("job_7.m1.0", "map one", 1), ":5: job_7: attempt-launched"),
        (launch(1, "job_7.m0.0").trim().to_owned(), ":1: a fact before the job"),
        ("nonsense".to_owned(), ":1: expected"),
        (String::new(), "no jobs in it"),
    ];
    for (text, expected) in cases {
        let error = parse(&text).map(|_| ()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error} should say {expected}");
    }
}
