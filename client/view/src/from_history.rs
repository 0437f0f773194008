//! Rebuilds a job from its history (docs/research/history-format.md), for jobs that the JobTracker
//! has forgotten.
//!
//! Unknown kinds of facts and unknown fields are skipped. Counters, progress and the work saved by
//! preemption are absent, because the history does not contain their sums.

use anyhow::{Context, Result, anyhow, bail};
use client::model::{Attempt, Job, PhaseStatus, Task};
use mrcore::{
    history::{Head, HistoryFact, Record, check_format, expand_runs, known_fact},
    job::Split,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads a job and its tasks from the text of its history.
pub fn read(text: &str) -> Result<(Job, Vec<Task>)> {
    let mut lines = (1..).zip(text.lines()).peekable();
    let (_, head) = lines.next().context("the history is empty")?;
    let head: Head = serde_json::from_str(head).context("the first line of the history is invalid")?;
    check_format(head.format).map_err(anyhow::Error::msg)?;
    let mut past = JobFromHistory::new(head);
    while let Some((number, line)) = lines.next() {
        let Record { at_us, fact } = match serde_json::from_str::<Record<Value>>(line) {
            Ok(record) => record,
            // The last line of a running job may be incomplete.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => bail!("line {number} of the history is invalid: {error}"),
        };
        let fact =
            known_fact(fact).map_err(|why| anyhow!("line {number} of the history is invalid: {why}"))?;
        if let Some(fact) = fact {
            past.add_fact(at_us / 1000, fact);
        }
    }
    Ok(past.finish())
}

struct JobFromHistory {
    job: Job,
    maps: Vec<Task>,
    reduces: Vec<Task>,
    /// The trackers to which map outputs were copied, by attempt.
    copied_outputs: BTreeMap<String, String>,
}

impl JobFromHistory {
    fn new(head: Head) -> Self {
        let Head { job: id, at_us, spec, .. } = head;
        let map = |(at, piece): (usize, Split)| Task {
            task: format!("{id}.m{at}"),
            source: piece.source,
            start: piece.start,
            end: piece.end,
            root: at as u32,
            ..Task::default()
        };
        let maps = expand_runs(spec.splits, &spec.hosts).into_iter().enumerate().map(map).collect();
        let reduce = |at| Task { task: format!("{id}.r{at}"), ..Task::default() };
        let reduces = (0..spec.reduces).map(reduce).collect();
        let job = Job {
            name: spec.name,
            user: spec.user,
            queue: spec.queue,
            priority: spec.priority.to_string(),
            program: spec.program.name().to_owned(),
            state: "running".into(),
            submitted_ms: at_us / 1000,
            inputs: spec.inputs,
            output: spec.output,
            job: id.to_string(),
            ..Job::default()
        };
        Self { job, maps, reduces, copied_outputs: BTreeMap::new() }
    }

    fn add_fact(&mut self, at_ms: u64, fact: HistoryFact) {
        match fact {
            HistoryFact::JobEnded { outcome, why } => {
                (self.job.state, self.job.why, self.job.ended_ms) = (outcome, why, at_ms);
            }
            HistoryFact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why, .. } => {
                self.launch(Attempt {
                    attempt: attempt.to_string(),
                    tracker,
                    state: "unfinished".into(),
                    launched_ms: at_ms,
                    speculative,
                    why: why.rule,
                    resumed_from: resumed_from.map_or_else(String::new, |paused| paused.to_string()),
                    ..Attempt::default()
                });
            }
            HistoryFact::MapSplit { attempt, position, .. } => {
                self.split(&attempt.to_string(), position, at_ms);
            }
            HistoryFact::PreemptionRequested { attempt, kind, .. } => {
                if let Some(attempt) = self.attempt(&attempt.to_string()) {
                    (attempt.preempt_kind, attempt.preempted_ms) = (kind.to_string(), at_ms);
                }
            }
            HistoryFact::AttemptSucceeded { attempt, .. } => {
                self.end_attempt(&attempt.to_string(), "succeeded", String::new(), at_ms);
            }
            HistoryFact::MapOutputLost { attempt, .. } => {
                let copied_to = self.copied_outputs.remove(&attempt.to_string());
                if let Some(attempt) = self.attempt(&attempt.to_string()) {
                    attempt.output_lost_on = copied_to.unwrap_or_else(|| attempt.tracker.clone());
                }
            }
            HistoryFact::MapOutputCopied { attempt, tracker, .. } => {
                self.copied_outputs.insert(attempt.to_string(), tracker);
            }
            HistoryFact::AttemptFailed { attempt, error } => {
                self.end_attempt(&attempt.to_string(), "failed", error, at_ms);
            }
            HistoryFact::AttemptKilled { attempt, why, .. } => {
                self.end_attempt(&attempt.to_string(), "killed", why, at_ms);
            }
            HistoryFact::AttemptPaused { attempt, stage, .. } => {
                self.end_attempt(&attempt.to_string(), "paused", String::new(), at_ms);
                if let Some(attempt) = self.attempt(&attempt.to_string()) {
                    attempt.stage = stage.to_string();
                }
            }
            _ => {}
        }
    }

    fn end_attempt(&mut self, id: &str, state: &str, error: String, at_ms: u64) {
        if let Some(attempt) = self.attempt(id) {
            (attempt.state, attempt.error, attempt.ended_ms) = (state.into(), error, at_ms);
        }
    }

    fn task(&mut self, id: &str) -> Option<&mut Task> {
        let (_, place) = id.split_once('.')?;
        let tasks = if place.starts_with('m') { &mut self.maps } else { &mut self.reduces };
        tasks.get_mut(place.get(1..)?.parse::<usize>().ok()?)
    }

    fn attempt(&mut self, id: &str) -> Option<&mut Attempt> {
        let (task, _) = id.rsplit_once('.')?;
        self.task(task)?.attempts.iter_mut().find(|attempt| attempt.attempt == id)
    }

    fn launch(&mut self, attempt: Attempt) {
        if self.job.started_ms == 0 {
            self.job.started_ms = attempt.launched_ms;
        }
        if let Some(task) = attempt.attempt.rsplit_once('.').and_then(|(task, _)| self.task(task)) {
            task.attempts.push(attempt);
        }
    }

    /// Splits a map. The remainder of its range becomes a new map with the next index.
    fn split(&mut self, id: &str, position: u64, at_ms: u64) {
        let name = format!("{}.m{}", self.job.job, self.maps.len());
        self.end_attempt(id, "succeeded", String::new(), at_ms);
        let Some(task) = id.rsplit_once('.').and_then(|(task, _)| self.task(task)) else { return };
        let remainder = Task {
            task: name,
            source: task.source.clone(),
            start: position,
            end: task.end,
            root: task.root,
            ..Task::default()
        };
        task.end = position;
        self.maps.push(remainder);
    }

    fn finish(mut self) -> (Job, Vec<Task>) {
        self.job.maps = set_states(&mut self.maps);
        self.job.reduces = set_states(&mut self.reduces);
        let mut tasks = self.maps;
        tasks.append(&mut self.reduces);
        client::model::find_remainders(&mut tasks);
        (self.job, tasks)
    }
}

/// Sets the state of each task and returns the totals of the phase.
fn set_states(tasks: &mut [Task]) -> PhaseStatus {
    let mut phase = PhaseStatus { total: tasks.len() as u32, ..PhaseStatus::default() };
    for task in tasks {
        let ended_as = |state: &str| task.attempts.iter().filter(|one| one.state == state).count() as u32;
        let done = ended_as("succeeded") > 0;
        phase.done += u32::from(done);
        phase.failed_attempts += ended_as("failed");
        phase.killed_attempts += ended_as("killed");
        let failed = task.attempts.last().is_some_and(|last| last.state == "failed");
        task.state = match (done, failed) {
            (true, _) => "done",
            (false, true) => "failed",
            (false, false) => "unfinished",
        }
        .into();
    }
    phase.progress = if phase.total == 0 { 1.0 } else { f64::from(phase.done) / f64::from(phase.total) };
    phase
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_rebuilt_from_its_history() {
        let text = [
            r#"{"format":3,"job":"job_7","at_us":1000000,"spec":{"name":"n","user":"ann","queue":"q","priority":"normal","program":"builtin:sort","reduces":1,"slow_start":0.05,"speculation":false,"splits":[{"source":"/a","start":0,"end":100}]}}"#,
            r#"{"at_us":2000000,"fact":{"attempt-launched":{"attempt":"job_7.m0.0","tracker":"node1","why":{"rule":"first"}}}}"#,
            r#"{"at_us":2500000,"fact":{"preemption-requested":{"attempt":"job_7.m0.0","kind":"split","why":"asked"}}}"#,
            r#"{"at_us":2600000,"fact":{"map-split":{"attempt":"job_7.m0.0","position":40}}}"#,
            r#"{"at_us":2700000,"fact":{"attempt-launched":{"attempt":"job_7.r0.0","tracker":"node1"}}}"#,
            r#"{"at_us":2800000,"fact":{"attempt-paused":{"attempt":"job_7.r0.0","stage":"shuffle","bytes":9}}}"#,
            r#"{"at_us":2900000,"fact":{"attempt-launched":{"attempt":"job_7.m1.0","tracker":"node2"}}}"#,
            r#"{"at_us":3000000,"fact":{"attempt-failed":{"attempt":"job_7.m1.0","error":"no"}}}"#,
            r#"{"at_us":3100000,"fact":{"attempt-launched":{"attempt":"job_7.r0.1","tracker":"node2","resumed_from":"job_7.r0.0"}}}"#,
            r#"{"at_us":3200000,"fact":{"something-new":{"x":1}}}"#,
            r#"{"at_us":4000000,"fact":{"job-ended":{"outcome":"killed","why":"by ann"}}}"#,
            r#"{"at_us":41"#,
        ]
        .join("\n");
        let (job, tasks) = read(&text).unwrap();
        assert_eq!(job.program, "sort");
        assert_eq!((job.state.as_str(), job.why.as_str(), job.seconds()), ("killed", "by ann", 3.0));
        assert_eq!((job.maps.total, job.maps.done, job.maps.failed_attempts), (2, 1, 1));
        let ranges: Vec<_> = tasks.iter().map(|task| (task.task.as_str(), task.start, task.end)).collect();
        assert_eq!(ranges, [("job_7.m0", 0, 40), ("job_7.m1", 40, 100), ("job_7.r0", 0, 0)]);
        assert_eq!(tasks[1].remainder_of.as_deref(), Some("job_7.m0"));
        assert_eq!(
            (tasks[0].attempts[0].preempt_kind.as_str(), tasks[0].attempts[0].preempted_ms),
            ("split", 2500)
        );
        let [paused, resumed] = tasks[2].attempts.as_slice() else { panic!("{tasks:?}") };
        assert_eq!((paused.state.as_str(), paused.stage.as_str()), ("paused", "shuffle"));
        assert_eq!((resumed.resumed_from.as_str(), resumed.state.as_str()), ("job_7.r0.0", "unfinished"));
        assert!(read("").is_err() && read("{}").is_err());
    }

    #[test]
    fn lost_output_was_on_the_tracker_to_which_it_was_copied() {
        let head = r#"{"format":3,"job":"job_7","at_us":1,"spec":{"name":"n","user":"ann","queue":"q","priority":"normal","program":"builtin:sort","reduces":1,"slow_start":0.05,"speculation":false,"splits":[{"source":"/a","start":0,"end":100}]}}"#;
        let launched =
            r#"{"at_us":2,"fact":{"attempt-launched":{"attempt":"job_7.m0.0","tracker":"node1"}}}"#;
        let copied = r#"{"at_us":3,"fact":{"map-output-copied":{"attempt":"job_7.m0.0","tracker":"node2","bytes":3}}}"#;
        let lost = r#"{"at_us":4,"fact":{"map-output-lost":{"attempt":"job_7.m0.0","why":"lost"}}}"#;
        let lost_on =
            |lines: &[&str]| read(&lines.join("\n")).unwrap().1[0].attempts[0].output_lost_on.clone();
        assert_eq!(lost_on(&[head, launched, copied]), "");
        assert_eq!(lost_on(&[head, launched, lost]), "node1");
        assert_eq!(lost_on(&[head, launched, copied, lost]), "node2");
    }

    #[test]
    fn invalid_line_is_refused_with_its_number() {
        let head = r#"{"format":3,"job":"job_7","at_us":1,"spec":{"name":"n","user":"ann","queue":"q","priority":"normal","program":"builtin:sort","reduces":1,"slow_start":0.05,"speculation":false,"splits":[]}}"#;
        let ended = r#"{"at_us":4,"fact":{"job-ended":{"outcome":"killed"}}}"#;
        for line in [r#"{"at_us":41"#, r#"{"at_us":2,"fact":{"attempt-failed":{"attempt":"job_07.m0.0"}}}"#] {
            let error = read(&[head, line, ended].join("\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of the history is invalid: "), "{error}");
        }
    }
}
