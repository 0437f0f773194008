//! Maps are preempted while jobs run. Checks that the output does not change.

use fermata_tests::{Cluster, Up};
use serde_json::Value;
use std::{fs, thread, time::Duration};

/// Returns different lines, so that a lost or repeated line changes the output.
fn lines(count: usize) -> String {
    let line = |at: usize| ["line ", &at.to_string(), " ", &"word ".repeat(at % 9), "\n"].concat();
    (0..count).map(line).collect()
}

fn attempts_in(tasks: &Value, phase: &str, state: &str) -> Vec<String> {
    let tasks = tasks.as_array().expect("tasks").iter();
    let of_phase = tasks.filter(|task| task["task"].as_str().is_some_and(|id| id.contains(phase)));
    let attempts = of_phase.flat_map(|task| task["attempts"].as_array().expect("attempts"));
    let wanted = attempts.filter(|attempt| attempt["state"] == state);
    wanted.map(|attempt| attempt["attempt"].as_str().expect("an id").to_owned()).collect()
}

/// Splits every running map until the job has ended, and returns the number of accepted splits.
fn split_all(cluster: &Cluster, job: &str) -> usize {
    let mut preempted = 0;
    loop {
        let state = cluster.json(&["job", job])["state"].as_str().expect("a state").to_owned();
        if state != "running" && state != "committing" {
            assert_eq!(state, "succeeded", "{}", cluster.json(&["job", job]));
            return preempted;
        }
        for attempt in attempts_in(&cluster.json(&["tasks", job]), ".m", "running") {
            // The request is refused with a message if the attempt has ended meanwhile.
            let ran = cluster.try_mrctl(&["preempt", &attempt, "--how", "split"]);
            preempted += usize::from(ran.code == 0);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn repeatedly_split_maps_give_the_same_output() {
    let cluster = Cluster::up(Up { block_size: "256KiB", ..Up::default() });
    fs::write(cluster.path("text"), lines(40_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let slow = ["--conf", "pace.map=300KiB"];
    let programs: [(&str, &[&str]); 4] = [
        ("wordcount", &["wordcount", "--reduces", "3"]),
        ("grep", &["grep", "--reduces", "0", "--conf", "grep.pattern=7"]),
        ("sort", &["sort", "--reduces", "2"]),
        (
            "cat",
            &[
                "streaming",
                "--mapper",
                "cat",
                "--reducer",
                "cat",
                "--reduces",
                "2",
                "--conf",
                "stream.mapper.divisible=true",
            ],
        ),
    ];
    for (name, program) in programs {
        let (plain, disturbed) = (format!("/plain-{name}"), format!("/split-{name}"));
        let undisturbed = cluster.succeed(&[program, &["--input", "/text", "--output", &plain]].concat());
        let job =
            cluster.detach(&[program, &slow[..], &["--input", "/text", "--output", &disturbed]].concat());
        let splits = split_all(&cluster, &job);
        let split = cluster.json(&["job", &job]);
        let maps = split["maps"]["total"].as_u64().unwrap();
        assert!(splits > 0 && maps > undisturbed["maps"]["total"].as_u64().unwrap(), "{name}: {split}");
        assert_eq!(split["maps"]["done"], split["maps"]["total"], "{name}: {split}");
        for counter in ["MAP_INPUT_RECORDS", "MAP_OUTPUT_RECORDS", "REDUCE_OUTPUT_RECORDS"] {
            assert_eq!(split["counters"][counter], undisturbed["counters"][counter], "{name}: {counter}");
        }
        assert!(
            cluster.output(&plain) == cluster.output(&disturbed),
            "{name}: the output differs from an undisturbed run"
        );
        let parts = |folder: &str| cluster.json(&["fs", "ls", folder]).as_array().unwrap().len();
        assert_eq!(parts(&plain), parts(&disturbed), "{name}: the parts differ from an undisturbed run");
    }
    let refused = cluster.refused(1, &["preempt", "job_1.m0.0", "--how", "split"]);
    assert!(refused.contains("job_1.m0.0 holds no slot"), "{refused}");
    cluster.wait_clean();
}
