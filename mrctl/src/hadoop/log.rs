//! Messages on standard error in the format of Hadoop's log, which clients parse, and the progress
//! and the counters of a job in it.

use super::ids;
use crate::output;
use client::model::Job;
use std::{collections::BTreeMap, fmt::Write as _};
use view::preempted;

/// The group of the counters of the engine.
const FRAMEWORK: &str = "Map-Reduce Framework";

/// Names of Hadoop for counters of the engine, with their group.
const NAMES: [(&str, &str, &str); 9] = [
    ("MAP_INPUT_RECORDS", FRAMEWORK, "Map input records"),
    ("MAP_OUTPUT_RECORDS", FRAMEWORK, "Map output records"),
    ("MAP_OUTPUT_BYTES", FRAMEWORK, "Map output bytes"),
    ("COMBINE_INPUT_RECORDS", FRAMEWORK, "Combine input records"),
    ("COMBINE_OUTPUT_RECORDS", FRAMEWORK, "Combine output records"),
    ("REDUCE_INPUT_RECORDS", FRAMEWORK, "Reduce input records"),
    ("REDUCE_OUTPUT_RECORDS", FRAMEWORK, "Reduce output records"),
    ("MAP_INPUT_BYTES", "File Input Format Counters", "Bytes Read"),
    ("OUTPUT_BYTES", "File Output Format Counters", "Bytes Written"),
];

/// Prints a message of a class, such as `mapreduce.Job`.
fn message(level: &str, class: &str, text: &str) {
    let now = output::now_ms();
    eprintln!("{},{:03} {level} {class}: {text}", output::time(now), now % 1000);
}

pub(super) fn info(class: &str, text: impl AsRef<str>) {
    message("INFO", class, text.as_ref());
}

pub(super) fn warn(class: &str, text: impl AsRef<str>) {
    message("WARN", class, text.as_ref());
}

pub(super) fn error(class: &str, text: impl AsRef<str>) {
    message("ERROR", class, text.as_ref());
}

/// Prints the progress of a job whenever a percentage changes.
#[derive(Debug, Default)]
pub(super) struct Progress(Option<(u64, u64)>);

impl Progress {
    pub(super) fn update(&mut self, job: &Job) {
        // A phase without tasks has nothing to do.
        let percent = |phase: &client::model::PhaseStatus| {
            if phase.total == 0 && job.state == "running" { 0 } else { (phase.progress * 100.0) as u64 }
        };
        let now = (percent(&job.maps), if job.reduces.total == 0 { 0 } else { percent(&job.reduces) });
        if self.0 != Some(now) {
            self.0 = Some(now);
            info("mapreduce.Job", format!(" map {}% reduce {}%", now.0, now.1));
        }
    }
}

/// Groups the counters of a job as Hadoop does: by group, with the names of Hadoop.
pub(super) fn grouped(job: &Job) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut groups = BTreeMap::<String, BTreeMap<String, u64>>::new();
    let mut add = |group: &str, name: &str, value: u64| {
        groups.entry(group.to_owned()).or_default().insert(name.to_owned(), value);
    };
    let tasks = "Job Counters ";
    for (name, phase) in [("map", &job.maps), ("reduce", &job.reduces)] {
        add(
            tasks,
            &format!("Launched {name} tasks"),
            u64::from(phase.done + phase.failed_attempts + phase.killed_attempts),
        );
        if phase.failed_attempts > 0 {
            add(tasks, &format!("Failed {name} tasks"), phase.failed_attempts.into());
        }
        if phase.killed_attempts > 0 {
            add(tasks, &format!("Killed {name} tasks"), phase.killed_attempts.into());
        }
    }
    add(tasks, "Data-local map tasks", job.local_maps);
    add(tasks, "Rack-local map tasks", job.rack_maps);
    for (name, value) in preempted::counters(job) {
        match (NAMES.iter().find(|(own, ..)| *own == name), name.split_once(':')) {
            (Some((_, group, hadoop)), _) => add(group, hadoop, value),
            (None, Some((group, name))) => add(group, name, value),
            (None, None) => add("Fermata", &name, value),
        }
    }
    groups
}

/// Formats the counters of a job.
pub(super) fn counters(job: &Job) -> String {
    let groups = grouped(job);
    let mut text = format!("Counters: {}", groups.values().map(BTreeMap::len).sum::<usize>());
    for (group, counters) in groups {
        let _ = write!(text, "\n\t{group}");
        for (name, value) in counters {
            let _ = write!(text, "\n\t\t{name}={value}");
        }
    }
    text
}

/// Prints how a job has ended, and its counters.
pub(super) fn end(job: &Job) {
    let id = ids::job(&job.job);
    if job.state == "succeeded" {
        info("mapreduce.Job", format!("Job {id} completed successfully"));
    } else {
        let state = job.state.to_uppercase();
        info("mapreduce.Job", format!("Job {id} failed with state {state} due to: {}", job.why));
    }
    info("mapreduce.Job", counters(job));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_grouped_and_counted() {
        let counters = BTreeMap::from([
            ("MAP_INPUT_RECORDS".to_owned(), 7),
            ("words:long ones".to_owned(), 3),
            ("SPILLED_RECORDS".to_owned(), 1),
        ]);
        let job = Job { job: "job_7".into(), counters, ..Job::default() };
        let text = super::counters(&job);
        assert!(text.contains("\n\tMap-Reduce Framework\n\t\tMap input records=7"), "{text}");
        assert!(text.contains("\n\twords\n\t\tlong ones=3"), "{text}");
        assert!(text.contains("\n\tFermata\n\t\tSPILLED_RECORDS=1"), "{text}");
        let lines = text.lines().filter(|line| line.contains('=')).count();
        assert!(text.starts_with(&format!("Counters: {lines}\n")), "{text}");
    }
}
