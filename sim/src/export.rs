//! Writes a run in formats of other tools: the Standard Workload Format, and the files of Batsim.
//! docs/research/simulator.md describes every field and what does not fit.

use crate::{Outcome, case_size::CaseSize, experiment::Comparison};
use mrcore::{Span, Time, ids::JobId, metrics::JobFigures};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _};

/// A run to write.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// How the run was made, in one line.
    pub made_by: &'a str,
    /// The workload, as given on the command line.
    pub workload: &'a str,
    /// The cluster, the jobs and the offered load.
    pub size: CaseSize,
    /// Map and reduce slots of the cluster.
    pub slots: u32,
    pub policy: &'a str,
    pub seed: u64,
    pub outcome: &'a Outcome,
}

impl<'a> Run<'a> {
    /// Selects the only run of a comparison; `None` if it has several.
    pub fn only(
        comparison: &'a Comparison,
        made_by: &'a str,
        workload: &'a str,
        size: CaseSize,
    ) -> Option<Self> {
        let ([variant], [seed], [runs]) =
            (&comparison.variants[..], &comparison.seeds[..], &comparison.runs[..])
        else {
            return None;
        };
        let slots = comparison.slots.map + comparison.slots.reduce;
        let policy = &variant.label;
        Some(Self { made_by, workload, size, slots, policy, seed: *seed, outcome: runs.first()? })
    }

    /// Returns the time of the first submission.
    fn start(&self) -> Time {
        self.outcome.metrics.jobs().map(|(_, job)| job.submitted).min().unwrap_or_default()
    }
}

/// How a job of several tasks is described as one with a fixed number of processors.
struct RigidJob {
    /// Mean number of slots while it ran, rounded up.
    processors: u64,
    /// Slot seconds of all attempts.
    slot_s: f64,
    first_map: Option<Time>,
    ended: Option<Time>,
}

impl RigidJob {
    fn of(job: &JobFigures) -> Self {
        let slot_s = Span(job.held.map.0 + job.held.reduce.0).as_secs_f64();
        let run_s = job.execution().map_or(0.0, Span::as_secs_f64);
        let processors = if run_s > 0.0 { (slot_s / run_s).ceil() as u64 } else { 0 };
        Self { processors: processors.max(1), slot_s, first_map: job.first_map, ended: job.ended }
    }
}

/// Numbers names from 1 in the order of their first use.
#[derive(Default)]
struct Numbers<'a>(BTreeMap<&'a str, usize>);

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        let next = self.0.len() + 1;
        *self.0.entry(name).or_insert(next)
    }

    fn notes(&self, kind: &str) -> String {
        let mut names: Vec<(&str, usize)> = self.0.iter().map(|(name, number)| (*name, *number)).collect();
        names.sort_by_key(|(_, number)| *number);
        names.iter().fold(String::new(), |mut text, (name, number)| {
            let _ = writeln!(text, "; Note: {kind} {number} is {}", one_line(name));
            text
        })
    }
}

/// Replaces line breaks, which would end a comment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Returns the jobs of a run in the Standard Workload Format, version 2.2: one line per job.
pub fn swf(run: &Run<'_>) -> String {
    let start = run.start();
    // Times are rounded, not durations: then submission, wait and run time add up to the end.
    let whole_s = |time: Time| (time.since(start).as_secs_f64()).round() as i64;
    let (mut users, mut groups, mut lines) = (Numbers::default(), Numbers::default(), String::new());
    let mut last_s = 0;
    for (JobId(id), job) in run.outcome.metrics.jobs() {
        let rigid = RigidJob::of(job);
        let submitted_s = whole_s(job.submitted);
        let began = rigid.first_map.map(whole_s);
        let ended = rigid.ended.map(whole_s);
        last_s = last_s.max(ended.unwrap_or(submitted_s));
        let wait_s = began.map_or(-1, |began| began - submitted_s);
        let run_s = began.zip(ended).map_or(-1, |(began, ended)| ended - began);
        let status = match (job.ended.is_some(), job.succeeded) {
            (false, _) => -1,
            (true, succeeded) => i64::from(succeeded),
        };
        let wanted = job.tasks.map.max(job.tasks.reduce);
        let (processors, cpu_s) = if run_s >= 0 {
            (rigid.processors.to_string(), format!("{:.2}", rigid.slot_s / rigid.processors as f64))
        } else {
            ("-1".into(), "-1".into())
        };
        let (user, group) = (users.of(&job.user), groups.of(&job.group));
        let _ = writeln!(
            lines,
            "{id} {submitted_s} {wait_s} {run_s} {processors} {cpu_s} -1 {wanted} -1 -1 {status} {user} -1 {group} -1 -1 -1 -1"
        );
    }
    let jobs = run.outcome.metrics.jobs().count();
    let mut text = String::new();
    let _ = writeln!(text, "; Version: 2.2");
    let _ = writeln!(text, "; Computer: simulated cluster of {} machines", run.size.machines);
    let _ = writeln!(text, "; Information: {}", one_line(run.made_by));
    let _ = writeln!(text, "; MaxJobs: {jobs}\n; MaxRecords: {jobs}\n; Preemption: Yes");
    let _ = writeln!(text, "; UnixStartTime: 0\n; EndTime: {last_s} s after the first submission");
    let _ = writeln!(text, "; MaxNodes: {}\n; MaxProcs: {}", run.size.machines, run.slots);
    let _ = writeln!(text, "; Note: {}", run.size);
    let _ = writeln!(
        text,
        "; Note: workload {}, policy {}, seed {}; a processor is a map or reduce slot",
        one_line(run.workload),
        one_line(run.policy),
        run.seed
    );
    let _ = writeln!(
        text,
        "; Note: field 5 is the mean number of slots while the job ran, field 6 its slot seconds divided by field 5"
    );
    let _ = writeln!(text, "; Note: field 8 is the number of tasks of its larger phase, field 14 its group");
    text + &users.notes("user") + &groups.notes("executable") + &lines
}

/// Returns the jobs of a run as a workload of Batsim: rigid jobs that take as long as they did.
pub fn batsim_workload(run: &Run<'_>) -> Value {
    let start = run.start();
    let mut profiles = serde_json::Map::new();
    let mut jobs = Vec::new();
    for (JobId(id), job) in run.outcome.metrics.jobs() {
        let Some(execution) = job.execution().filter(|_| job.succeeded) else { continue };
        let rigid = RigidJob::of(job);
        let name = format!("job{id}");
        jobs.push(json!({
            "id": id.to_string(),
            "subtime": job.submitted.since(start).as_secs_f64(),
            "res": rigid.processors,
            "profile": name,
        }));
        profiles.insert(name, json!({ "type": "delay", "delay": execution.as_secs_f64() }));
    }
    json!({
        "description": format!("{}; {}", run.made_by, run.size),
        "nb_res": run.slots,
        "jobs": jobs,
        "profiles": profiles,
    })
}

/// Returns the jobs of a run as Batsim writes its `_jobs.csv`.
pub fn batsim_jobs(run: &Run<'_>) -> String {
    let mut text = "job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,\
                    success,final_state,starting_time,execution_time,finish_time,waiting_time,turnaround_time,\
                    stretch,allocated_resources,consumed_energy,metadata\n"
        .to_owned();
    let start = run.start();
    let seconds = |time: Time| time.since(start).as_secs_f64();
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for (JobId(id), job) in run.outcome.metrics.jobs() {
        let rigid = RigidJob::of(job);
        let state = match (job.ended.is_some(), job.succeeded) {
            (_, true) => "COMPLETED_SUCCESSFULLY",
            (true, false) => "COMPLETED_FAILED",
            (false, false) => "RUNNING",
        };
        let (execution, turnaround) = (job.execution(), job.makespan());
        let stretch = execution.zip(turnaround).filter(|(execution, _)| execution.0 > 0);
        let stretch =
            stretch.map(|(execution, turnaround)| turnaround.as_secs_f64() / execution.as_secs_f64());
        let _ = writeln!(
            text,
            "{id},fermata,job{id},{},{},,{},{state},{},{},{},{},{},{},,,",
            seconds(job.submitted),
            rigid.processors,
            u8::from(job.succeeded),
            or_empty(job.first_map.map(seconds)),
            or_empty(execution.map(Span::as_secs_f64)),
            or_empty(job.ended.map(seconds)),
            or_empty(job.waiting().map(Span::as_secs_f64)),
            or_empty(turnaround.map(Span::as_secs_f64)),
            or_empty(stretch),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::OfferedLoad;
    use crate::{
        Setup,
        experiment::{Experiment, Variant},
        profile,
        workload::papers,
    };
    use mrcore::PerPhase;

    fn comparison(limit_s: u64) -> Comparison {
        let profiles = profile::built_in();
        let mut setup = Setup::even(20, PerPhase { map: 8, reduce: 2 }, "fifo");
        // Some jobs fail.
        setup.failing = 4;
        let experiment = Experiment {
            setup,
            faults: None,
            workload: &|seed| papers::hsrtf(&profiles, seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 3..4,
            limit: Some(Span::secs(limit_s)),
            alone: false,
            monitor: None,
        };
        experiment.run().expect("it runs")
    }

    fn size(machines: usize) -> CaseSize {
        let offered_load = Some(OfferedLoad { map: 0.5, reduce: 0.25 });
        CaseSize {
            jobs: 31,
            tasks: 62,
            offered_load,
            machines,
            map_slots: 160,
            reduce_slots: 40,
            scale: None,
        }
    }

    fn run(comparison: &Comparison) -> Run<'_> {
        Run::only(comparison, "a test\nwith two lines", "hsrtf", size(20)).expect("one run")
    }

    /// A job in a file: its fields, counted from 1, and field 6, which need not be a whole number.
    struct Line {
        fields: [i64; 19],
        cpu_s: f64,
    }

    /// Reads a file by the rules of the format: comments first, then lines of 18 numbers, sorted by
    /// submission, job numbers from 1, whole numbers except field 6, -1 for what is unknown.
    fn parse(text: &str) -> (BTreeMap<&str, &str>, Vec<Line>) {
        let mut header = BTreeMap::new();
        let mut jobs: Vec<Line> = Vec::new();
        for line in text.lines() {
            assert!(line.is_ascii(), "{line}");
            if let Some(comment) = line.strip_prefix(';') {
                assert!(jobs.is_empty(), "a comment after the first job: {line}");
                let (label, value) = comment.split_once(':').expect("a label");
                assert!(!value.trim().is_empty(), "{line}");
                header.insert(label.trim(), value.trim());
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words.len(), 18, "{line}");
            let mut fields = [0; 19];
            for (at, word) in words.iter().enumerate().filter(|(at, _)| *at != 5) {
                fields[at + 1] = word.parse().unwrap_or_else(|_| panic!("field {} of {line}", at + 1));
                assert!(fields[at + 1] >= -1, "field {} of {line}", at + 1);
            }
            assert_eq!(usize::try_from(fields[1]), Ok(jobs.len() + 1), "{line}");
            assert!(jobs.last().is_none_or(|before| before.fields[2] <= fields[2]), "{line}");
            assert!([-1, 0, 1, 5].contains(&fields[11]), "{line}");
            jobs.push(Line { fields, cpu_s: words[5].parse().expect("a number") });
        }
        (header, jobs)
    }

    #[test]
    fn swf_follows_the_format_and_has_the_times_of_the_run() {
        let comparison = comparison(100_000);
        let text = swf(&run(&comparison));
        let (header, jobs) = parse(&text);
        assert_eq!((header["Version"], header["MaxJobs"], header["MaxProcs"]), ("2.2", "31", "200"));
        assert_eq!(header["Information"], "a test with two lines");
        assert!(
            text.contains(
                "; Note: 20 nodes with 160 map and 40 reduce slots, 31 jobs, 62 tasks, offered load 0.50 "
            ),
            "{text}"
        );
        assert_eq!((jobs.len(), jobs[0].fields[2]), (31, 0));
        let metrics = &comparison.runs[0][0].metrics;
        let start = metrics.jobs().map(|(_, job)| job.submitted).min().expect("jobs");
        for (Line { fields, cpu_s }, (_, job)) in jobs.iter().zip(metrics.jobs()) {
            assert_eq!(fields[11] == 1, job.succeeded);
            let end_s = job.ended.expect("it has ended").since(start).as_secs_f64();
            assert!(((fields[2] + fields[3] + fields[4]) as f64 - end_s).abs() <= 0.5, "{fields:?}");
            let slot_s = Span(job.held.map.0 + job.held.reduce.0).as_secs_f64();
            let processors = fields[5] as f64;
            assert!((processors * cpu_s - slot_s).abs() <= 0.01 * processors + 0.01, "{fields:?}");
        }
        assert!(jobs.iter().any(|job| job.fields[11] == 0), "no job failed");
        // A job that has not ended has no run time.
        let cut = self::comparison(200);
        let text = swf(&run(&cut));
        let is_cut = |job: &Line| job.fields[11] == -1 && job.fields[4] == -1;
        assert!(parse(&text).1.iter().any(is_cut), "{text}");
    }

    #[test]
    fn batsim_files_agree_with_each_other() {
        let comparison = comparison(100_000);
        let run = run(&comparison);
        let workload = batsim_workload(&run);
        let jobs = workload["jobs"].as_array().expect("jobs");
        let csv = batsim_jobs(&run);
        let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = rows.next().expect("a header");
        let column = |row: &[&str], name: &str| {
            row[names.iter().position(|known| *known == name).expect("a column")].to_owned()
        };
        let succeeded: Vec<Vec<&str>> = rows.filter(|row| column(row, "success") == "1").collect();
        assert!(succeeded.len() == jobs.len() && jobs.len() < 31, "{} jobs", jobs.len());
        for (row, job) in succeeded.iter().zip(jobs) {
            assert_eq!(row.len(), names.len());
            assert_eq!(Some(column(row, "job_id").as_str()), job["id"].as_str());
            let number = |name: &str| column(row, name).parse::<f64>().expect("a number");
            let delay = &workload["profiles"][job["profile"].as_str().expect("a name")]["delay"];
            assert_eq!(Some(number("execution_time")), delay.as_f64());
            assert_eq!(Some(number("submission_time")), job["subtime"].as_f64());
            let resources = job["res"].as_u64().expect("a number");
            assert!(1 <= resources && resources <= workload["nb_res"].as_u64().expect("a number"));
            let parts = number("submission_time") + number("waiting_time") + number("execution_time");
            assert!((parts - number("finish_time")).abs() < 1e-6, "{row:?}");
        }
    }

    #[test]
    fn several_runs_are_not_one_schedule() {
        let mut comparison = comparison(200);
        comparison.seeds.push(4);
        assert!(Run::only(&comparison, "", "", size(1)).is_none());
    }
}
