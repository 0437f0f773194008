//! Describes the preemption of a job: its metrics, and the tree of split maps.

use crate::output::{count, human, took};
use client::model::{Attempt, Job, Preemption, Task};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the tasks in the order of a list, each with its depth in the tree of split maps. A split
/// map is followed by the tasks that process the remainders of its range, in the order of their
/// ranges.
pub fn tree(tasks: &[Task]) -> Vec<(usize, &Task)> {
    let here: BTreeSet<&str> = tasks.iter().map(|task| task.task.as_str()).collect();
    // The parent may be missing, because the caller may have filtered the tasks.
    let parent = |task: &'_ Task| task.remainder_of.as_deref().and_then(|parent| here.get(parent).copied());
    let mut remainders = BTreeMap::<&str, Vec<&Task>>::new();
    for task in tasks {
        if let Some(parent) = parent(task) {
            remainders.entry(parent).or_default().push(task);
        }
    }
    let mut listed = Vec::with_capacity(tasks.len());
    for task in tasks.iter().filter(|task| parent(task).is_none()) {
        let mut waiting = vec![(0, task)];
        while let Some((depth, task)) = waiting.pop() {
            listed.push((depth, task));
            let mut own = remainders.remove(task.task.as_str()).unwrap_or_default();
            own.sort_unstable_by_key(|tail| std::cmp::Reverse(tail.start));
            waiting.extend(own.into_iter().map(|tail| (depth + 1, tail)));
        }
    }
    listed
}

/// Returns a note about the preemption of an attempt, or about the checkpoint that it resumed from.
pub fn note(task: &Task, attempt: &Attempt) -> Option<String> {
    let mut notes = Vec::new();
    if !attempt.resumed_from.is_empty() {
        notes.push(format!("resumed from {}", attempt.resumed_from));
    }
    if !attempt.preempt_kind.is_empty() && attempt.ended_ms > 0 {
        let elapsed = attempt.ended_ms.saturating_sub(attempt.preempted_ms);
        let stage = if attempt.state == "paused" { format!(" in {}", attempt.stage) } else { String::new() };
        notes.push(format!("{}{stage}: slot free after {elapsed} ms", attempt.preempt_kind));
    }
    if task.paused == attempt.attempt {
        let (bytes, on) = (human(task.paused_bytes), &task.paused_on);
        let on_hold = if task.on_hold { ", paused until `mrctl resume`" } else { "" };
        notes.push(format!("a checkpoint of {bytes} on {on}{on_hold}"));
    } else if attempt.state == "paused" && task.state == "paused" && task.paused.is_empty() {
        notes.push("its checkpoint is lost, paused until `mrctl resume`, then starts over".into());
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

/// Returns the preemption metrics of a job in one line; None if it was never preempted.
pub fn summary(job: &Job) -> Option<String> {
    let of = &job.preemption;
    let Preemption { splits, pauses, resumes, migrations, kills, checkpoints_lost, .. } = *of;
    if [splits, pauses, resumes, kills].iter().sum::<u32>() == 0 {
        return None;
    }
    let (asked, count) = (u64::from(splits + pauses), |number: u32, thing| count(number.into(), thing));
    let soon = of.latency_ms.checked_div(asked).map(|each| format!("; slots free after {each} ms"));
    let again = mean_resume_ms(job).map(|each| format!("; resumed in {each} ms"));
    let lost = if checkpoints_lost > 0 { format!(" ({checkpoints_lost} lost)") } else { String::new() };
    let checkpoints = format!("; checkpoints of {}{lost}", human(of.checkpoint_bytes));
    Some(format!(
        "{}, {}, {} ({migrations} elsewhere), {}; {} in {} saved, {} in {} lost{}{}{}",
        count(splits, "split"),
        count(pauses, "pause"),
        count(resumes, "resume"),
        count(kills, "kill"),
        human(of.bytes_saved),
        took(of.ms_saved),
        human(of.bytes_lost),
        took(of.ms_lost),
        soon.unwrap_or_default(),
        again.unwrap_or_default(),
        if pauses > 0 { checkpoints } else { String::new() },
    ))
}

/// Returns the mean time from the start of a resumed reduce to its first record. Only completed
/// tasks report this time.
pub fn mean_resume_ms(job: &Job) -> Option<u64> {
    let counted = |name: &str| job.counters.get(name).copied().unwrap_or(0);
    counted("RESUME_MILLISECONDS").checked_div(counted("RESUMES"))
}

/// Returns the median and the maximum of the times from a preemption request of this kind (`split`
/// or `pause`) until the slot was free, in milliseconds.
pub fn latency(tasks: &[Task], kind: &str) -> Option<(u64, u64)> {
    let ended_so = |attempt: &&Attempt| {
        let released = matches!((kind, attempt.state.as_str()), ("split", "succeeded") | ("pause", "paused"));
        released && attempt.preempt_kind == kind && attempt.ended_ms > 0
    };
    let attempts = tasks.iter().flat_map(|task| &task.attempts).filter(ended_so);
    let mut elapsed: Vec<u64> =
        attempts.map(|attempt| attempt.ended_ms.saturating_sub(attempt.preempted_ms)).collect();
    elapsed.sort_unstable();
    Some((*elapsed.get(elapsed.len() / 2)?, *elapsed.last()?))
}

/// Returns the counters of the job, with the preemption metrics that are not zero.
pub fn counters(job: &Job) -> BTreeMap<String, u64> {
    let of = &job.preemption;
    let named = [
        ("PREEMPT_SPLITS", u64::from(of.splits)),
        ("PREEMPT_PAUSES", u64::from(of.pauses)),
        ("PREEMPT_RESUMES", u64::from(of.resumes)),
        ("PREEMPT_MIGRATIONS", u64::from(of.migrations)),
        ("PREEMPT_KILLS", u64::from(of.kills)),
        ("PREEMPT_CHECKPOINTS_LOST", u64::from(of.checkpoints_lost)),
        ("PREEMPT_BYTES_SAVED", of.bytes_saved),
        ("PREEMPT_MILLISECONDS_SAVED", of.ms_saved),
        ("PREEMPT_BYTES_LOST", of.bytes_lost),
        ("PREEMPT_MILLISECONDS_LOST", of.ms_lost),
        ("PREEMPT_CHECKPOINT_BYTES", of.checkpoint_bytes),
        ("PREEMPT_LATENCY_MILLISECONDS", of.latency_ms),
    ];
    let own = named.into_iter().filter(|(_, value)| *value > 0).map(|(name, value)| (name.to_owned(), value));
    job.counters.clone().into_iter().chain(own).collect()
}

/// Describes the numbers of splits, pauses and kills, such as `2 splits, 1 kill`.
pub fn short_summary(job: &Job) -> String {
    let of = &job.preemption;
    let parts = [(of.splits, "split"), (of.pauses, "pause"), (of.kills, "kill")];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    parts.map(|(number, what)| count(number.into(), what)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(task: &str, root: u32, start: u64) -> Task {
        let source = if task.starts_with('m') { "/in".into() } else { String::new() };
        Task { task: task.into(), state: "done".into(), source, start, end: 100, root, ..Task::default() }
    }

    #[test]
    fn parts_of_a_split_map_are_grouped() {
        // m0 is split at 50 (m2), m2 at 80 (m3), then m0 again at 20 (m4); m1 has another root.
        let mut tasks: Vec<Task> =
            [("m0", 0, 0), ("m1", 1, 0), ("m2", 0, 50), ("m3", 0, 80), ("m4", 0, 20), ("r0", 0, 0)]
                .map(|(name, root, start)| task(name, root, start))
                .into();
        client::model::find_remainders(&mut tasks);
        let parents: Vec<_> = tasks.iter().map(|task| task.remainder_of.as_deref()).collect();
        assert_eq!(parents, [None, None, Some("m0"), Some("m2"), Some("m0"), None]);
        let listed: Vec<_> =
            tree(&tasks).into_iter().map(|(depth, task)| (depth, task.task.as_str())).collect();
        assert_eq!(listed, [(0, "m0"), (1, "m4"), (1, "m2"), (2, "m3"), (0, "m1"), (0, "r0")]);
    }

    #[test]
    fn latency_counts_only_attempts_that_ended_as_requested() {
        let attempt = |preempt_kind: &str, state: &str, ended_ms| Attempt {
            preempt_kind: preempt_kind.into(),
            state: state.into(),
            preempted_ms: 100,
            ended_ms,
            ..Attempt::default()
        };
        let attempts = vec![
            attempt("pause", "paused", 110),
            attempt("pause", "paused", 190),
            attempt("pause", "paused", 120),
            attempt("pause", "killed", 900),
            attempt("split", "succeeded", 105),
            attempt("", "succeeded", 990),
        ];
        let tasks = [Task { attempts, ..Task::default() }];
        assert_eq!(latency(&tasks, "pause"), Some((20, 90)));
        assert_eq!(latency(&tasks, "split"), Some((5, 5)));
        assert_eq!(latency(&[], "split"), None);
    }

    #[test]
    fn undisturbed_job_has_no_preemption_summary() {
        assert_eq!(summary(&Job::default()), None);
        let preemption = Preemption { pauses: 2, latency_ms: 30, ..Preemption::default() };
        let counters =
            [("RESUMES", 2), ("RESUME_MILLISECONDS", 8)].map(|(name, value)| (name.to_owned(), value));
        let job = Job { preemption, counters: counters.into(), ..Job::default() };
        let text = summary(&job).unwrap();
        assert!(text.contains("2 pauses") && text.contains("after 15 ms; resumed in 4 ms"), "{text}");
    }
}
