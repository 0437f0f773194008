//! Describes tasks and attempts.

use crate::{output, preempted};
use client::model::{Attempt, Task};
use std::collections::BTreeMap;

/// The states of attempts, and of tasks without attempts.
pub const STATES: [&str; 11] = [
    "waiting",
    "launching",
    "running",
    "splitting",
    "pausing",
    "paused",
    "stopping",
    "succeeded",
    "failed",
    "killed",
    "unfinished",
];

/// Keeps only attempts in this state, and the tasks that have a row ([`count_in_state`]).
pub fn retain_in_state(tasks: &mut Vec<Task>, state: &str) {
    tasks.retain_mut(|task| {
        let rows = count_in_state(task, state);
        task.attempts.retain(|attempt| attempt.state == state);
        rows > 0
    });
}

/// Returns how many rows a task has in a list that is filtered by `state`: one for each attempt in
/// that state. A task that is itself in that state, but has no such attempt and no running attempt,
/// has one row. An example is an `unfinished` task, all of whose attempts were killed.
pub fn count_in_state(task: &Task, state: &str) -> usize {
    let attempts = task.attempts.iter().filter(|attempt| attempt.state == state).count();
    attempts.max(usize::from(task.state == state && task.running().next().is_none()))
}

/// Indents a name by its depth in the tree of split maps.
pub fn indented(depth: usize, name: &str) -> String {
    if depth > 0 { format!("{:>1$} {name}", "└", 2 * depth) } else { name.into() }
}

/// Describes the number of tasks in each state: `30 maps: 28 succeeded, 2 running; 1 reduce: 1
/// waiting`.
pub fn totals(tasks: &[Task]) -> String {
    let mut parts = Vec::new();
    for (letter, kind) in [(".m", "map"), (".r", "reduce")] {
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        for task in tasks.iter().filter(|task| task.task.contains(letter)) {
            *states.entry(&task.state).or_default() += 1;
        }
        let total: u64 = states.values().sum();
        if total > 0 {
            let states: Vec<String> =
                states.iter().map(|(state, number)| format!("{number} {state}")).collect();
            parts.push(format!("{}: {}", output::count(total, kind), states.join(", ")));
        }
    }
    if parts.is_empty() { "no tasks".into() } else { parts.join("; ") }
}

/// Describes the state of an attempt, with the progress if it is running.
pub fn state(attempt: &Attempt) -> String {
    if attempt.ended_ms != 0 || attempt.state == "succeeded" {
        return attempt.state.clone();
    }
    format!("{} {:.0}%", attempt.state, attempt.progress * 100.0)
}

/// Describes how long the attempt took, or has run so far.
pub fn elapsed(attempt: &Attempt, now_ms: u64) -> String {
    let until = if attempt.ended_ms == 0 { now_ms } else { attempt.ended_ms };
    output::took(until.saturating_sub(attempt.launched_ms))
}

/// Describes the input range of a map; empty for a reduce.
pub fn input(task: &Task) -> String {
    if task.source.is_empty() {
        return String::new();
    }
    format!("{} {}..{}", task.source, task.start, task.end)
}

/// Describes what is unusual about an attempt. `describe` shortens its error to one line.
pub fn note(task: &Task, attempt: &Attempt, describe: impl FnOnce(&str) -> String) -> String {
    let mut notes = Vec::new();
    if attempt.ended_ms == 0 && !attempt.stage.is_empty() {
        notes.push(attempt.stage.clone());
    }
    if attempt.speculative {
        notes.push("speculative".into());
    }
    if !matches!(attempt.locality.as_str(), "" | "node-local") {
        notes.push(attempt.locality.clone());
    }
    notes.extend(preempted::note(task, attempt));
    if !attempt.output_lost_on.is_empty() {
        notes.push(format!("output lost on {}", attempt.output_lost_on));
    }
    if !attempt.error.is_empty() {
        notes.push(describe(&attempt.error));
    }
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrlib_api::error::{one_line, shortened};

    fn attempt(state: &str) -> Attempt {
        Attempt {
            attempt: "job_1.m0.0".into(),
            tracker: "node1".into(),
            state: state.into(),
            progress: 0.43,
            stage: "map".into(),
            launched_ms: 1000,
            ended_ms: u64::from(state != "running") * 1250,
            locality: "node-local".into(),
            ..Attempt::default()
        }
    }

    fn task(id: &str, state: &str) -> Task {
        Task { task: id.into(), state: state.into(), source: "/a".into(), end: 9, ..Task::default() }
    }

    #[test]
    fn attempt_is_described_by_state_time_and_note() {
        let done = attempt("succeeded");
        assert_eq!(
            (state(&done), elapsed(&done, 9999), note(&task("job_1.m0", "done"), &done, one_line)),
            ("succeeded".into(), "0.25 s".into(), String::new())
        );
        let lost = Attempt { output_lost_on: "node1".into(), ..attempt("succeeded") };
        assert_eq!(note(&task("job_1.m0", "running"), &lost, one_line), "output lost on node1");
        let running = attempt("running");
        assert_eq!((state(&running), elapsed(&running, 3000)), ("running 43%".into(), "2.00 s".into()));
        assert_eq!(note(&task("job_1.m0", "running"), &running, one_line), "map");
        let command = "x ".repeat(100);
        let failed = Attempt {
            error: format!(
                "stream.mapper `{command}` ended with exit status 1:\nTraceback\n  line 7\nValueError\n"
            ),
            locality: "off-rack".into(),
            ..attempt("failed")
        };
        let line = format!("off-rack; stream.mapper `{command}` ended with exit status 1: ValueError");
        assert_eq!(note(&task("job_1.m0", "waiting"), &failed, one_line), line);
        let short = note(&task("job_1.m0", "waiting"), &failed, shortened);
        assert!(short.len() < line.len() && short.ends_with("exit status 1: ValueError"), "{short}");
        assert_eq!(input(&task("job_1.m0", "waiting")), "/a 0..9");
    }

    #[test]
    fn totals_count_tasks_by_state() {
        let tasks = [task("job_1.m0", "succeeded"), task("job_1.m1", "waiting"), task("job_1.r0", "waiting")];
        assert_eq!(totals(&tasks), "2 maps: 1 succeeded, 1 waiting; 1 reduce: 1 waiting");
        assert_eq!(totals(&[]), "no tasks");
    }
}
