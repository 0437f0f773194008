//! Looking at jobs: `jobs`, `job`, `tasks`, `counters`, `logs`, `kill`, `history`.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use super::{
    follow,
    model::{Attempt, Job, Task},
    preempted, wire,
};
use crate::{locate::Target, output};
use anyhow::{Result, bail};
use std::{io::Write, process::ExitCode};

/// List the jobs
#[derive(Debug, clap::Args)]
pub(crate) struct Jobs {
    /// Only those that are not over
    #[arg(long)]
    running: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Which job.
#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Its id, such as job_7
    job: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Show one job
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    #[command(flatten)]
    one: One,
    /// Follow it to its end; exit code 1 if it does not succeed
    #[arg(long)]
    follow: bool,
}

/// Show what an attempt of a task printed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl logs job_7.m3.0\n  mrctl logs job_7.m3          its newest attempt\n  \
    mrctl logs --stdout --tail 2KiB job_7.r0.1"
)]
pub(crate) struct Logs {
    /// An attempt (job_7.m3.0) or a task (job_7.m3: its newest attempt)
    attempt: String,
    /// Standard output instead of standard error
    #[arg(long)]
    stdout: bool,
    /// Only so many bytes of the end
    #[arg(long, value_name = "SIZE")]
    tail: Option<daemon::Bytes>,
}

/// List the built-in programs
#[derive(Debug, clap::Args)]
pub(crate) struct Programs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn programs(args: &Programs) -> Result<ExitCode> {
    let all: std::collections::BTreeMap<&str, &str> =
        mrlib::registry::builtins().map(|builtin| (builtin.name, builtin.about)).collect();
    if args.json {
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(&[], &[]);
    for (name, about) in all {
        table.add_row([name, about]);
    }
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn jobs(args: Jobs, target: &Target) -> Result<ExitCode> {
    let jobs = target.jobtracker().await?.jobs(!args.running).await?;
    if args.json {
        output::json(&jobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    if jobs.is_empty() {
        output::line("no jobs")?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["JOB", "NAME", "USER", "STATE", "MAPS", "REDUCES", "SUBMITTED", "TOOK"];
    let mut table = output::table(&header, &[4, 5, 7]);
    for job in &jobs {
        let took = if job.is_over() { format!("{:.1} s", job.seconds()) } else { String::new() };
        table.add_row([
            job.job.clone(),
            job.name.clone(),
            job.user.clone(),
            job.state.clone(),
            format!("{}/{}", job.maps.done, job.maps.total),
            format!("{}/{}", job.reduces.done, job.reduces.total),
            output::time(job.submitted_ms),
            took,
        ]);
    }
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn show(args: Show, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let job = if args.follow {
        match follow::follow(&tracker, &args.one.job, args.one.json).await? {
            Some(job) => job,
            None => return Ok(ExitCode::SUCCESS),
        }
    } else {
        tracker.job(&args.one.job).await?
    };
    if args.one.json {
        output::json(&job)?;
    } else {
        print(&job)?;
    }
    let failed = args.follow && job.state != "succeeded";
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(job: &Job) -> Result<()> {
    let mut table = output::table(&[], &[]);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("job", format!("{} ({})", job.job, job.name));
    row("program", job.program.clone());
    row("user", format!("{}, queue {}, priority {}", job.user, job.queue, job.priority));
    let why = if job.why.is_empty() { String::new() } else { format!(": {}", job.why) };
    row("state", format!("{}{why}", job.state));
    row("submitted", output::time(job.submitted_ms));
    if job.is_over() {
        row("took", format!("{:.2} s", job.seconds()));
    }
    for (name, phase) in [("maps", &job.maps), ("reduces", &job.reduces)] {
        row(
            name,
            format!(
                "{} of {} done ({:.0}%), {} running, {} waiting; {} attempts failed, {} killed",
                phase.done,
                phase.total,
                phase.progress * 100.0,
                phase.running,
                phase.pending,
                phase.failed_attempts,
                phase.killed_attempts
            ),
        );
    }
    row("locality", format!("{} maps beside their input, {} in its rack", job.local_maps, job.rack_maps));
    if let Some(words) = preempted::summary(&job.preemption) {
        row("preempted", words);
    }
    row("input", job.inputs.join(" "));
    row("output", job.output.clone());
    output::print_table(&table)
}

pub(crate) async fn tasks(args: One, target: &Target) -> Result<ExitCode> {
    let tasks = target.jobtracker().await?.tasks(&args.job).await?;
    if args.json {
        output::json(&tasks)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["ATTEMPT", "STATE", "NODE", "PROGRESS", "TOOK", "NOTE"];
    let mut table = output::table(&header, &[3, 4]);
    for (depth, task) in preempted::tree(&tasks) {
        let indented =
            |name: &str| if depth > 0 { format!("{:>1$} {name}", "└", 2 * depth) } else { name.into() };
        if task.attempts.is_empty() {
            table.add_row([indented(&task.task), task.state.clone()]);
        }
        for attempt in &task.attempts {
            table.add_row([
                indented(&attempt.attempt),
                attempt.state.clone(),
                attempt.tracker.clone(),
                format!("{:.0}%", attempt.progress * 100.0),
                took(attempt),
                note(task, attempt),
            ]);
        }
    }
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn took(attempt: &Attempt) -> String {
    match attempt.ended_ms {
        0 => String::new(),
        ended => format!("{:.2} s", ended.saturating_sub(attempt.launched_ms) as f64 / 1000.0),
    }
}

fn note(task: &Task, attempt: &Attempt) -> String {
    let mut notes = Vec::new();
    if !attempt.error.is_empty() {
        notes.push(attempt.error.lines().next().unwrap_or_default().to_owned());
    }
    if !task.source.is_empty() {
        notes.push(format!("{} {}..{}", task.source, task.start, task.end));
    }
    if attempt.state == "running" && !attempt.stage.is_empty() {
        notes.push(attempt.stage.clone());
    }
    if !attempt.locality.is_empty() {
        notes.push(attempt.locality.clone());
    }
    if attempt.speculative {
        notes.push("duplicate of a straggler".into());
    }
    notes.extend(preempted::note(task, attempt));
    notes.join(", ")
}

pub(crate) async fn counters(args: One, target: &Target) -> Result<ExitCode> {
    let job = target.jobtracker().await?.job(&args.job).await?;
    if args.json {
        output::json(&preempted::counters(&job))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(&[], &[]);
    for (name, value) in &preempted::counters(&job) {
        table.add_row([name.clone(), value.to_string()]);
    }
    output::align_right(&mut table, &[1]);
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn logs(args: Logs, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let job = args.attempt.split('.').next().unwrap_or_default();
    let tasks = tracker.tasks(job).await?;
    let attempts = || tasks.iter().flat_map(|task| &task.attempts);
    let exact = attempts().find(|attempt| attempt.attempt == args.attempt);
    let newest = || tasks.iter().find(|task| task.task == args.attempt).and_then(|task| task.attempts.last());
    let Some(attempt) = exact.or_else(newest) else {
        bail!("{job} has no attempt {}: `mrctl tasks {job}` lists them", args.attempt);
    };
    let tail = args.tail.map_or(0, |tail| tail.0);
    let mut out = std::io::stdout().lock();
    wire::log(attempt, !args.stdout, tail, |bytes| Ok(out.write_all(bytes)?)).await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn kill(args: One, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    tracker.kill(&args.job).await?;
    let job = tracker.job(&args.job).await?;
    if args.json {
        output::json(&job)?;
    } else {
        output::line(format!("{} is {}", job.job, job.state))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn history(args: One, target: &Target) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let tracker = target.jobtracker().await?;
    tracker.history(&args.job, |lines| Ok(out.write_all(lines.as_bytes())?)).await?;
    Ok(ExitCode::SUCCESS)
}
