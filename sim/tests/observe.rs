//! What can be observed of a run besides its figures: the histories of its jobs, and why a job waits
//! at a time.

use fermata_sim as sim;
use mrcore::{PerPhase, Span, ids::JobId};
use schedulers::explain::{Explanation, Subject, has_rule_text};
use serde_json::Value;
use sim::{
    Outcome, Recording, Setup, World,
    experiment::{Comparison, Experiment, ExperimentError, Variant},
    profile,
    replay::{self, ReplayRequest, replay},
    workload::{
        history::{self, History},
        papers,
    },
};
use std::{fs, path::Path, time::Duration};

const SEED: u64 = 3;

/// Runs the workload of the hSRTF paper on 20 machines. Passes the experiment to `run`.
fn with_experiment<T>(policy: &str, run: impl FnOnce(&Experiment<'_>) -> T) -> T {
    let profiles = profile::built_in();
    run(&Experiment {
        setup: Setup::even(20, PerPhase { map: 8, reduce: 2 }, "fifo"),
        faults: None,
        workload: &|seed| papers::hsrtf(&profiles, seed),
        users: Vec::new(),
        variants: Variant::list(policy).expect("a policy"),
        seeds: SEED..SEED + 1,
        limit: None,
        alone: false,
        monitor: None,
    })
}

fn run_recorded(policy: &str, folder: &Path) -> Result<Comparison, ExperimentError> {
    let recording = Recording { folder, made_by: "a test", variant: 0 };
    with_experiment(policy, |experiment| experiment.run_recorded(&|_| {}, Some(recording)))
}

fn makespans(outcome: &Outcome) -> Vec<(JobId, Option<Span>)> {
    outcome.metrics.jobs().map(|(id, job)| (id, job.makespan())).collect()
}

fn request(history: &History) -> ReplayRequest {
    ReplayRequest {
        ran: replay::ran(history).expect("the policy is recorded"),
        others: Variant::list("fifo").expect("a policy"),
        slots: PerPhase::default(),
        nodes: 0,
        faults: Vec::new(),
        time_limit: Duration::MAX,
    }
}

#[test]
fn histories_of_a_run_have_its_jobs_and_the_reasons_of_its_decisions() {
    let folder = tempfile::tempdir().expect("a folder");
    let comparison = run_recorded("las", folder.path()).expect("it runs");
    let outcome = &comparison.runs[0][0];
    let plain = with_experiment("las", |experiment| experiment.run_watched(&|_| {})).expect("it runs");
    assert_eq!(plain.runs[0][0].hash, outcome.hash, "recording changes the run");

    let mut history = history::read(folder.path()).expect("histories");
    assert!(history.skipped_jobs.is_empty(), "{:?}", history.skipped_jobs);
    let environment = history.environment.as_ref().expect("the cluster is recorded");
    assert_eq!((environment.policy.as_str(), environment.trackers.len()), ("las", 20));
    let read = history.outcome("las");
    assert_eq!(makespans(&read), makespans(outcome));
    let preempted = |outcome: &Outcome| -> u32 {
        outcome.metrics.jobs().map(|(_, job)| job.preemption.preemptions()).sum()
    };
    assert_eq!(preempted(&read), preempted(outcome));
    assert!(preempted(outcome) > 0, "the run has no preemption");

    let lines = |job: JobId| -> Vec<Value> {
        let text = fs::read_to_string(folder.path().join(format!("{job}.jsonl"))).expect("a history");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let head = lines(JobId(1)).swap_remove(0);
    assert_eq!((&head["made_by"], &head["job"]), (&"a test".into(), &"job_1".into()));
    assert_eq!(head["cluster"], "simulated, policy las, seed 3");
    let all: Vec<Value> = outcome.metrics.jobs().flat_map(|(id, _)| lines(id)).collect();
    let reasons = |kind: &str| -> Vec<String> {
        let facts = all.iter().map(|line| &line["fact"][kind]).filter(|fact| !fact.is_null());
        facts.map(|fact| fact["why"]["rule"].as_str().or(fact["why"].as_str()).unwrap_or("").into()).collect()
    };
    let launches = reasons("attempt-launched");
    assert!(launches.len() > 1000 && launches.iter().all(|rule| has_rule_text(rule)), "{launches:?}");
    let requests = reasons("preemption-requested");
    assert!(requests.iter().any(|why| why.contains("for_job=")), "{requests:?}");
}

#[test]
fn histories_of_a_run_can_be_replayed_and_calibrated() {
    let folder = tempfile::tempdir().expect("a folder");
    let comparison = run_recorded("fair", folder.path()).expect("it runs");
    let mut history = history::read(folder.path()).expect("histories");
    let replayed = replay(&history, &request(&history), &|_| {}, &|_| {}, None).expect("it runs");
    assert_eq!(replayed.fidelity.jobs.len(), comparison.runs[0][0].metrics.jobs().count());
    assert!(replayed.fidelity.error() < 0.1, "{}", replayed.fidelity.error());
    let profiles = history.calibrate(false);
    assert!(profiles.iter().all(|profile| profile.map_mbps.is_some()), "{profiles:?}");
    assert_eq!(profiles.len(), 3, "one for each group of jobs");

    // The replay is recorded like any other run, under the other policy.
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Recording { folder: folder.path(), made_by: "a test", variant: 1 };
    let replayed = replay(&history, &request(&history), &|_| {}, &|_| {}, Some(recording)).expect("it runs");
    history = history::read(folder.path()).expect("histories");
    assert_eq!(history.environment.as_ref().expect("recorded").policy, "fifo");
    assert_eq!(makespans(&history.outcome("fifo")), makespans(&replayed.comparison.runs[1][0]));
}

#[test]
fn a_history_that_cannot_be_written_ends_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = run_recorded("fifo", &folder.path().join("missing")).expect_err("no folder").to_string();
    assert!(error.starts_with("fifo, seed 3: at ") && error.contains("cannot write "), "{error}");
    assert_eq!(error.lines().count(), 1);
}

fn explain(policy: &str, of: &str, at_s: u64) -> Result<Explanation, ExperimentError> {
    let subject: Subject = of.parse().expect("an ID");
    with_experiment(policy, |experiment| experiment.explain(subject, Span::secs(at_s)))
}

#[test]
fn job_is_explained_as_at_that_time() {
    let explained = explain("fifo", "job_3", 60).expect("it runs");
    assert_eq!((explained.of.as_str(), explained.state), ("job_3", "waiting"));
    assert_eq!(explained.scheduler, "fifo");
    let texts: Vec<&str> = explained.waiting_for.iter().map(|reason| reason.text.as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("map slots are all taken")), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("2 jobs are ahead by priority and age")), "{texts:?}");
    assert!(explained.recent_events.is_empty(), "it has no attempt yet");

    let first = explain("fifo", "job_1", 60).expect("it runs");
    assert_eq!(first.state, "running");
    let (at, event) = first.recent_events.last().expect("it has attempts");
    assert!(at.0 <= 60_000_000 && event.text.contains(" started on n"), "{at:?} {event:?}");
    let earlier = explain("fifo", "job_1", 5).expect("it runs");
    let (before, _) = earlier.recent_events.last().expect("it has attempts");
    assert!(before.0 <= 5_000_000 && before < at, "{before:?} {at:?}");
    assert_eq!(explain("fifo", "job_1.m0", 60).expect("it runs").of, "job_1.m0");
}

#[test]
fn question_without_an_answer_is_an_error_of_one_line() {
    let error = |of: &str, at_s: u64| explain("fifo", of, at_s).expect_err("no answer").to_string();
    assert_eq!(error("job_99", 0), "there is no job_99 at that time: 1 job was submitted by then");
    assert_eq!(error("job_1.m99999", 60), "there is no job_1.m99999 at that time");
    let late = error("job_1", 1_000_000);
    assert!(late.starts_with("the run ended ") && late.ends_with(", before that time"), "{late}");
}

#[test]
fn jobs_of_a_replay_are_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    run_recorded("fair", folder.path()).expect("it runs");
    let history = history::read(folder.path()).expect("histories");
    let subject = Subject::Job(JobId(3));
    let explained =
        replay::explain(&history, &request(&history), subject, Span::secs(60), &|_| {}).expect("it runs");
    assert_eq!((explained.of.as_str(), explained.scheduler.as_str()), ("job_3", "fifo"));
}

/// The run must not end before the question.
#[test]
fn run_that_ends_before_the_question_is_not_explained() {
    let world = World::new(Setup::even(2, PerPhase { map: 1, reduce: 1 }, "fifo"), sim::Workload::default());
    let subject = Subject::Job(JobId(1));
    let error = world.expect("a policy").explain_at(Span::secs(5), subject, |_| true).expect_err("no job");
    assert_eq!(error.to_string(), "the run ended 0.000s after its start, before that time");
}

#[test]
fn run_that_the_time_limit_stops_is_not_explained() {
    // The heartbeats of many machines: the limit is checked once in some thousand events.
    let setup = Setup::even(1000, PerPhase { map: 1, reduce: 1 }, "fifo");
    let world = World::new(setup, papers::hsrtf(&profile::built_in(), 1)).expect("a policy");
    let error = world.explain_at(Span::secs(900), Subject::Job(JobId(1)), |_| false).expect_err("stopped");
    let error = error.to_string();
    assert!(error.starts_with("the time limit stopped the run "), "{error}");
    assert!(error.ends_with(" after its start: give a longer --time-limit"), "{error}");
}
