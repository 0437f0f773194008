//! `hadoop job` and `mapred job`: lists, shows and kills jobs.
//!
//! The IDs are those that `hadoop jar` prints; those of Fermata are accepted too.

use super::{ids, log};
use crate::output;
use anyhow::Result;
use client::{PreemptKind, model::Job};
use clusters::locate::Target;
use std::{io::Write, process::ExitCode};

const USAGE: &str = "\
Usage: job -list [all]
       job -status <job-id>
       job -counter <job-id> <group-name> <counter-name>
       job -kill <job-id>
       job -history <job-id>
       job -list-attempt-ids <job-id> <task-type> <task-state>
       job -kill-task <task-attempt-id>";

pub(super) async fn run(args: &[String], target: &Target) -> Result<ExitCode> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["-list"] => list(target, false).await,
        ["-list", "all"] => list(target, true).await,
        ["-status", id] => status(target, id).await,
        ["-counter", id, group, name] => counter(target, id, group, name).await,
        ["-kill", id] => kill(target, id).await,
        ["-history", .., id] => history(target, id).await,
        ["-list-attempt-ids", id, kind, state] => attempts(target, id, kind, state).await,
        ["-kill-task", attempt] => kill_attempt(target, attempt).await,
        ["-set-priority", ..] => {
            eprintln!(
                "job: -set-priority is not possible: the priority of a job cannot be changed; submit it with -D mapreduce.job.priority"
            );
            return Ok(ExitCode::from(255));
        }
        _ => {
            eprintln!("{USAGE}");
            return Ok(ExitCode::from(255));
        }
    };
    match result {
        Ok(code) => Ok(code),
        Err(error) => {
            eprintln!("job: {}", output::chain(&error));
            Ok(ExitCode::from(if error.is::<output::Usage>() { 255 } else { 1 }))
        }
    }
}

/// Returns the name that Hadoop gives to the state of a job.
fn state(job: &Job) -> &'static str {
    match job.state.as_str() {
        "succeeded" => "SUCCEEDED",
        "failed" => "FAILED",
        "killed" => "KILLED",
        _ if job.started_ms == 0 => "PREP",
        _ => "RUNNING",
    }
}

/// Returns the name that Hadoop gives to the priority of a job.
fn priority(job: &Job) -> String {
    job.priority.to_uppercase().replace('-', "_")
}

async fn list(target: &Target, all: bool) -> Result<ExitCode> {
    let jobs = target.jobtracker().await?.jobs(all).await?;
    output::line(format!("Total jobs:{}", jobs.len()))?;
    let row = |cells: [&str; 7]| {
        let [id, name, state, start, user, queue, priority] = cells;
        format!("{id:>23}\t{name:>20}\t{state:>10}\t{start:>18}\t{user:>12}\t{queue:>12}\t{priority:>10}")
    };
    output::line(row(["JobId", "JobName", "State", "StartTime", "UserName", "Queue", "Priority"]))?;
    for job in &jobs {
        let (id, start, priority) = (ids::job(&job.job), job.submitted_ms.to_string(), priority(job));
        output::line(row([&id, &job.name, state(job), &start, &job.user, &job.queue, &priority]))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(target: &Target, id: &str) -> Result<ExitCode> {
    let job = target.jobtracker().await?.job(&ids::parse_job(id)?).await?;
    output::line(format!("\nJob: {}", ids::job(&job.job)))?;
    output::line(format!("Job Name: {}\nUser: {}\nQueue: {}", job.name, job.user, job.queue))?;
    output::line(format!("Number of maps: {}\nNumber of reduces: {}", job.maps.total, job.reduces.total))?;
    output::line(format!("map() completion: {}", job.maps.progress))?;
    output::line(format!("reduce() completion: {}", job.reduces.progress))?;
    output::line(format!("Job state: {}\nreason for failure: {}", state(&job), job.why))?;
    output::line(log::counters(&job))?;
    Ok(ExitCode::SUCCESS)
}

async fn counter(target: &Target, id: &str, group: &str, name: &str) -> Result<ExitCode> {
    let job = target.jobtracker().await?.job(&ids::parse_job(id)?).await?;
    // Users name the groups of the engine by the class of their counters in Java.
    let group = match group {
        "org.apache.hadoop.mapreduce.TaskCounter" => "Map-Reduce Framework",
        "org.apache.hadoop.mapreduce.JobCounter" => "Job Counters ",
        other => other,
    };
    let groups = log::grouped(&job);
    let counters = groups.get(group).or_else(|| groups.get(&format!("{group} ")));
    let by_constant = || job.counters.get(name).copied();
    let value = counters.and_then(|counters| counters.get(name).copied()).or_else(by_constant);
    output::line(value.unwrap_or(0))?;
    Ok(ExitCode::SUCCESS)
}

async fn kill(target: &Target, id: &str) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let own = ids::parse_job(id)?;
    let before = tracker.job(&own).await?;
    if before.has_ended() {
        output::line(format!("Could not kill job {id}: it has ended ({})", before.state))?;
        return Ok(ExitCode::from(255));
    }
    tracker.kill(&own).await?;
    output::line(format!("Killed job {id}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn history(target: &Target, id: &str) -> Result<ExitCode> {
    let own = ids::parse_job(id)?;
    let mut out = output::stdout();
    let print = |lines: &str| anyhow::Ok(out.write_all(lines.as_bytes())?);
    target.jobtracker().await?.history(&own, print).await?;
    Ok(ExitCode::SUCCESS)
}

async fn attempts(target: &Target, id: &str, kind: &str, wanted: &str) -> Result<ExitCode> {
    let (letter, ended) = match (kind.to_uppercase().as_str(), wanted) {
        ("MAP", "running") => ('m', false),
        ("MAP", "completed") => ('m', true),
        ("REDUCE", "running") => ('r', false),
        ("REDUCE", "completed") => ('r', true),
        _ => {
            eprintln!("{USAGE}\n<task-type> is MAP or REDUCE, <task-state> running or completed");
            return Ok(ExitCode::from(255));
        }
    };
    let own = ids::parse_job(id)?;
    for task in target.jobtracker().await?.tasks(&own).await? {
        let is_kind = task.task.strip_prefix(&format!("{own}.")).is_some_and(|rest| rest.starts_with(letter));
        for attempt in task.attempts.iter().filter(|attempt| is_kind && (attempt.ended_ms > 0) == ended) {
            output::line(ids::attempt(&attempt.attempt))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn kill_attempt(target: &Target, id: &str) -> Result<ExitCode> {
    let own = ids::parse_attempt(id)?;
    target.jobtracker().await?.preempt(&own, PreemptKind::Kill).await?;
    output::line(format!("Killed task {id}"))?;
    Ok(ExitCode::SUCCESS)
}
