//! What became of a job whose slots were taken back: the figures, and the tree of ranges that its maps were split into.

use super::model::{Attempt, Job, Preemption, Task};
use crate::output::{count, human};
use std::collections::{BTreeMap, BTreeSet};

/// Finds for each map whether it is the rest of another. A split makes a new task of the rest, with the next number; so
/// a map's parent is whichever had its first byte when it was made.
pub(crate) fn find_tails(tasks: &mut [Task]) {
    // By root: the tasks so far, by where each begins.
    let mut roots = BTreeMap::<u32, BTreeMap<u64, String>>::new();
    for task in tasks.iter_mut().filter(|task| !task.source.is_empty()) {
        let ranges = roots.entry(task.root).or_default();
        task.tail_of = ranges.range(..task.start).next_back().map(|(_, parent)| parent.clone());
        ranges.insert(task.start, task.task.clone());
    }
}

/// Tasks as they are listed: the parts of a split map together, in the order of their ranges, each with its depth.
pub(crate) fn tree(tasks: &[Task]) -> Vec<(usize, &Task)> {
    let here: BTreeSet<&str> = tasks.iter().map(|task| task.task.as_str()).collect();
    // Of some tasks alone, a tail may be without its parent.
    let parent = |task: &'_ Task| task.tail_of.as_deref().and_then(|parent| here.get(parent).copied());
    let mut tails = BTreeMap::<&str, Vec<&Task>>::new();
    for task in tasks {
        if let Some(parent) = parent(task) {
            tails.entry(parent).or_default().push(task);
        }
    }
    let mut listed = Vec::with_capacity(tasks.len());
    for task in tasks.iter().filter(|task| parent(task).is_none()) {
        let mut waiting = vec![(0, task)];
        while let Some((depth, task)) = waiting.pop() {
            listed.push((depth, task));
            let mut own = tails.remove(task.task.as_str()).unwrap_or_default();
            own.sort_unstable_by_key(|tail| std::cmp::Reverse(tail.start));
            waiting.extend(own.into_iter().map(|tail| (depth + 1, tail)));
        }
    }
    listed
}

/// What there is to say of how an attempt gave its slot back, or came by its state.
pub(crate) fn note(task: &Task, attempt: &Attempt) -> Option<String> {
    let mut notes = Vec::new();
    if !attempt.from.is_empty() {
        notes.push(format!("goes on from {}", attempt.from));
    }
    if !attempt.recalled.is_empty() && attempt.ended_ms > 0 {
        let took = attempt.ended_ms.saturating_sub(attempt.recalled_ms);
        let stage = if attempt.state == "paused" { format!(" in {}", attempt.stage) } else { String::new() };
        notes.push(format!("{}{stage}: slot free after {took} ms", attempt.recalled));
    }
    if task.paused == attempt.attempt {
        let (bytes, on) = (human(task.paused_bytes), &task.paused_on);
        let held = if task.held { ", waits for `mrctl resume`" } else { "" };
        notes.push(format!("{bytes} of its state on {on}{held}"));
    } else if attempt.state == "paused" && task.state == "paused" && task.paused.is_empty() {
        notes.push("its state is lost, waits for `mrctl resume` to begin anew".into());
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

/// A job's figures in one line; None if no slot of it was ever taken back.
pub(crate) fn summary(job: &Job) -> Option<String> {
    let of = &job.preemption;
    let Preemption { splits, pauses, resumes, migrations, kills, checkpoints_lost, .. } = *of;
    if [splits, pauses, resumes, kills].iter().sum::<u32>() == 0 {
        return None;
    }
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let (asked, count) = (u64::from(splits + pauses), |number: u32, thing| count(number.into(), thing));
    let soon = of.yielding_ms.checked_div(asked).map(|each| format!("; slots free after {each} ms"));
    let again = resuming_ms(job).map(|each| format!("; resumed in {each} ms"));
    let lost_states =
        if checkpoints_lost > 0 { format!(" ({checkpoints_lost} lost)") } else { String::new() };
    let aside = format!("; {} put aside{lost_states}", human(of.checkpoint_bytes));
    Some(format!(
        "{}, {}, {} ({migrations} elsewhere), {}; {} in {} conserved, {} in {} lost{}{}{}",
        count(splits, "split"),
        count(pauses, "pause"),
        count(resumes, "resume"),
        count(kills, "kill"),
        human(of.bytes_conserved),
        seconds(of.ms_conserved),
        human(of.bytes_lost),
        seconds(of.ms_lost),
        soon.unwrap_or_default(),
        again.unwrap_or_default(),
        if pauses > 0 { aside } else { String::new() },
    ))
}

/// How long a reduce that goes on takes to its first record, on average. Told by the tasks that are done.
pub(crate) fn resuming_ms(job: &Job) -> Option<u64> {
    let counted = |name: &str| job.counters.get(name).copied().unwrap_or(0);
    counted("RESUME_MILLISECONDS").checked_div(counted("RESUMES"))
}

/// How soon slots were free that were asked for by a word such as `pause`, in milliseconds: the median and the longest.
pub(crate) fn latency(tasks: &[Task], word: &str) -> Option<(u64, u64)> {
    let ended_so = |attempt: &&Attempt| {
        let gave = matches!((word, attempt.state.as_str()), ("split", "succeeded") | ("pause", "paused"));
        gave && attempt.recalled == word && attempt.ended_ms > 0
    };
    let attempts = tasks.iter().flat_map(|task| &task.attempts).filter(ended_so);
    let mut took: Vec<u64> =
        attempts.map(|attempt| attempt.ended_ms.saturating_sub(attempt.recalled_ms)).collect();
    took.sort_unstable();
    Some((*took.get(took.len() / 2)?, *took.last()?))
}

/// The same as counters, those that are not zero.
pub(crate) fn counters(job: &Job) -> BTreeMap<String, u64> {
    let of = &job.preemption;
    let named = [
        ("PREEMPT_SPLITS", u64::from(of.splits)),
        ("PREEMPT_PAUSES", u64::from(of.pauses)),
        ("PREEMPT_RESUMES", u64::from(of.resumes)),
        ("PREEMPT_MIGRATIONS", u64::from(of.migrations)),
        ("PREEMPT_KILLS", u64::from(of.kills)),
        ("PREEMPT_CHECKPOINTS_LOST", u64::from(of.checkpoints_lost)),
        ("PREEMPT_BYTES_CONSERVED", of.bytes_conserved),
        ("PREEMPT_MILLISECONDS_CONSERVED", of.ms_conserved),
        ("PREEMPT_BYTES_LOST", of.bytes_lost),
        ("PREEMPT_MILLISECONDS_LOST", of.ms_lost),
        ("PREEMPT_CHECKPOINT_BYTES", of.checkpoint_bytes),
        ("PREEMPT_YIELDING_MILLISECONDS", of.yielding_ms),
    ];
    let own = named.into_iter().filter(|(_, value)| *value > 0).map(|(name, value)| (name.to_owned(), value));
    job.counters.clone().into_iter().chain(own).collect()
}

/// How often slots were taken back, in few words.
pub(crate) fn briefly(job: &Job) -> String {
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
    fn the_parts_of_a_split_map_stand_together() {
        // m0 is split at 50 (m2), that at 80 (m3), then m0 again at 20 (m4); m1 is of another root.
        let mut tasks: Vec<Task> =
            [("m0", 0, 0), ("m1", 1, 0), ("m2", 0, 50), ("m3", 0, 80), ("m4", 0, 20), ("r0", 0, 0)]
                .map(|(name, root, start)| task(name, root, start))
                .into();
        find_tails(&mut tasks);
        let parents: Vec<_> = tasks.iter().map(|task| task.tail_of.as_deref()).collect();
        assert_eq!(parents, [None, None, Some("m0"), Some("m2"), Some("m0"), None]);
        let listed: Vec<_> =
            tree(&tasks).into_iter().map(|(depth, task)| (depth, task.task.as_str())).collect();
        assert_eq!(listed, [(0, "m0"), (1, "m4"), (1, "m2"), (2, "m3"), (0, "m1"), (0, "r0")]);
    }

    #[test]
    fn latencies_are_of_what_was_asked() {
        let attempt = |recalled: &str, state: &str, ended_ms| Attempt {
            recalled: recalled.into(),
            state: state.into(),
            recalled_ms: 100,
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
    fn a_job_left_in_peace_says_nothing() {
        assert_eq!(summary(&Job::default()), None);
        let preemption = Preemption { pauses: 2, yielding_ms: 30, ..Preemption::default() };
        let counters =
            [("RESUMES", 2), ("RESUME_MILLISECONDS", 8)].map(|(name, value)| (name.to_owned(), value));
        let job = Job { preemption, counters: counters.into(), ..Job::default() };
        let words = summary(&job).unwrap();
        assert!(words.contains("2 pauses") && words.contains("after 15 ms; resumed in 4 ms"), "{words}");
    }
}
