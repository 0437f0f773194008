//! Commands that show or kill jobs: `jobs`, `job`, `counters`, `logs`, `kill`, `history`,
//! `programs`.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output::{self, Usage};
use anyhow::{Result, bail};
use client::model::{self, Job};
use clusters::locate::Target;
use std::{collections::BTreeMap, io::Write, process::ExitCode};
use view::follow;
use view::preempted;

/// List the jobs
///
/// TOOK is the time from the submission to the end of a job, or until now. WHY is the reason why a
/// job failed, was killed or waits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl jobs\n  mrctl jobs --running --json")]
pub(crate) struct Jobs {
    /// List only active jobs
    #[arg(long)]
    running: bool,
    /// Print JSON: one array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// ID of the job, such as job_7; `mrctl jobs` lists them
    pub(super) job: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Kill a job
///
/// Its attempts are killed at once, and none of its output is published. Exit code 1 if the job had
/// already ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl kill job_7")]
pub(crate) struct Kill {
    #[command(flatten)]
    job_args: JobArgs,
}

/// Show the counters of a job
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl counters job_7\n  mrctl counters job_7 --json")]
pub(crate) struct Counters {
    #[command(flatten)]
    job_args: JobArgs,
}

/// Print the history of a job, or metrics computed from it
///
/// The history has one JSON object per line, as the JobTracker stores it
/// (docs/research/history-format.md); with --json, it is one array.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl history job_7 > job_7.jsonl\n  mrctl history job_7 --figures\n  \
    mrctl history --figures      all ended jobs, by group")]
pub(crate) struct History {
    /// ID of the job, such as job_7; `mrctl jobs` lists them
    #[arg(required_unless_present = "figures")]
    job: Option<String>,
    /// Print JSON; times are in seconds
    #[arg(long)]
    json: bool,
    /// Print metrics instead: times, locality, preemption, lost work; without a job, for all ended
    /// jobs
    ///
    /// Without a job, prints a table with one row per group of jobs. The group is the setting
    /// `group`, or else the name of the job. All times are in seconds. `jobs` counts ended jobs,
    /// `succeeded` those that succeeded. Means and slowdown cover only jobs that succeeded; `maps
    /// local` and sums cover all jobs. Means: `completion s` is the time from submission to end,
    /// `waiting s` from submission to the first map, `execution s` the remainder, `reduce wait s`
    /// the time that a reduce waits for a slot after the last map. `worst slowdown` compares with a
    /// simulation of the same job alone. `maps local` is the share of node-local maps. Sums:
    /// `preempted` attempts, `lost slot-seconds` of attempts whose work was lost, `preemption
    /// latency slot-seconds` from the request until the slot was free. docs/research/schedulers.md
    /// explains dissatisfaction and fairness.
    #[arg(long)]
    figures: bool,
}

/// Show one job
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl job job_7\n  mrctl job job_7 --follow     until it ends")]
pub(crate) struct Show {
    #[command(flatten)]
    job_args: JobArgs,
    /// Follow the job until it ends; exit code 1 if it does not succeed
    #[arg(long)]
    follow: bool,
}

/// Show the output of an attempt
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl logs job_7.m3.0\n  mrctl logs job_7.m3          its newest attempt\n  \
    mrctl logs --stdout --tail 2KiB job_7.r0.1"
)]
pub(crate) struct Logs {
    /// An attempt (job_7.m3.0), or a task (job_7.m3), which means its newest attempt
    attempt: String,
    /// Show standard output instead of standard error
    #[arg(long)]
    stdout: bool,
    /// Show only this many bytes from the end
    #[arg(long, value_name = "SIZE")]
    tail: Option<daemon::Bytes>,
}

/// List the built-in programs and their settings
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl programs\n  mrctl submit wordcount --input /in --output /counts")]
pub(crate) struct Programs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn programs(args: &Programs) -> Result<ExitCode> {
    let all: BTreeMap<&str, Program> = engine::registry::builtins()
        .map(|builtin| (builtin.name, Program { about: builtin.about, settings: builtin.settings }))
        .collect();
    if args.json {
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(&[], &[]);
    for (name, program) in all {
        table.add_row([name.to_owned(), program.about.to_owned()]);
        for setting in program.settings {
            table.add_row([String::new(), format!("  --conf {}=...  {}", setting.name, setting.help)]);
        }
    }
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// A built-in program in the output of `mrctl programs --json`.
#[derive(Debug, serde::Serialize)]
struct Program {
    about: &'static str,
    settings: &'static [mrlib_api::settings::Setting],
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
    let header = ["JOB", "NAME", "USER", "STATE", "MAPS", "REDUCES", "SUBMITTED", "TOOK", "WHY"];
    let (mut table, now_ms) = (output::table(&header, &[4, 5, 7]), output::now_ms());
    for job in &jobs {
        let until_ms = if job.has_ended() { job.ended_ms } else { now_ms };
        table.add_row([
            job.job.clone(),
            job.name.clone(),
            job.user.clone(),
            job.display_state().to_owned(),
            format!("{}/{}", job.maps.done, job.maps.total),
            format!("{}/{}", job.reduces.done, job.reduces.total),
            output::time(job.submitted_ms),
            output::took(until_ms.saturating_sub(job.submitted_ms)),
            output::brief(&job.why),
        ]);
    }
    output::print_table(&table)?;
    if !args.running && model::has_forgotten(&jobs) {
        eprintln!(
            "mrctl: note: some ended jobs are no longer in memory (jobtracker.jobs_kept, jobtracker.tasks_kept); `mrctl history JOB` shows their histories"
        );
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn show(args: Show, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let job = if args.follow {
        match follow::follow(&tracker, &args.job_args.job, args.job_args.json).await? {
            Some(job) => job,
            None => return Ok(ExitCode::SUCCESS),
        }
    } else {
        tracker.job(&args.job_args.job).await?
    };
    if args.job_args.json {
        output::json(&job)?;
    } else {
        print(&job)?;
    }
    let failed = args.follow && job.state != "succeeded";
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(job: &Job) -> Result<()> {
    let mut table = output::table(&[], &[]);
    for (name, value) in view::job::facts(job) {
        table.add_row([name.to_owned(), value]);
    }
    output::print_table(&table)
}

pub(crate) async fn counters(Counters { job_args: args }: Counters, target: &Target) -> Result<ExitCode> {
    let job = target.jobtracker().await?.job(&args.job).await?;
    if job.partial {
        bail!("the counters of {} are visible only to {} and admins", job.job, job.user);
    }
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
    let (job, rest) = args.attempt.split_once('.').unwrap_or((&args.attempt, ""));
    if rest.is_empty() {
        let what = format!("{job:?} is neither a task, such as job_7.m3, nor an attempt, such as job_7.m3.0");
        bail!(Usage(format!("{what}: `mrctl tasks JOB` lists them")));
    }
    let tracker = target.jobtracker().await?;
    let tasks = tracker.tasks(job).await?;
    let Some(attempt) = model::attempt_of(&tasks, &args.attempt) else {
        bail!("{job} has no attempt {}: `mrctl tasks {job}` lists them", args.attempt);
    };
    let tail = args.tail.map_or(0, |tail| tail.0);
    let mut out = output::stdout();
    let mut printed = false;
    tracker
        .log(attempt, !args.stdout, tail, |bytes| {
            printed |= !bytes.is_empty();
            anyhow::Ok(out.write_all(bytes)?)
        })
        .await?;
    if !printed {
        let (here, other) = if args.stdout {
            ("standard output", "omit --stdout to see standard error")
        } else {
            ("standard error", "use --stdout to see standard output")
        };
        eprintln!("mrctl: {} printed nothing to {here} ({other})", attempt.attempt);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn kill(Kill { job_args: args }: Kill, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let over_before = tracker.job(&args.job).await?.has_ended();
    let job = tracker.kill(&args.job).await?;
    if args.json {
        output::json(&job)?;
    }
    if over_before || (job.has_ended() && job.state != "killed") {
        let has = if job.state == "killed" { "was" } else { "has" };
        eprintln!("mrctl: {} {has} already {}: there is nothing to kill", job.job, job.state);
        return Ok(ExitCode::FAILURE);
    }
    if !args.json {
        let verb = if job.has_ended() { "was" } else { "is being" };
        output::line(format!("{} {verb} killed", job.job))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn history(args: History, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let Some(job) = &args.job else { return super::statistics::print_all_jobs(&tracker, args.json).await };
    if args.figures {
        return super::statistics::print_job(&tracker, job, args.json).await;
    }
    let mut out = output::stdout();
    if !args.json {
        tracker.history(job, |lines| anyhow::Ok(out.write_all(lines.as_bytes())?)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    // A chunk may end in the middle of a line.
    let (mut text, mut before) = (String::new(), "[\n");
    let mut put = |text: &mut String, all: bool| -> Result<()> {
        let whole = if all { text.len() } else { text.rfind('\n').map_or(0, |at| at + 1) };
        for line in text[..whole].lines() {
            write!(out, "{before}{line}")?;
            before = ",\n";
        }
        text.drain(..whole);
        Ok(())
    };
    tracker
        .history(job, |lines| {
            text.push_str(lines);
            put(&mut text, false)
        })
        .await?;
    put(&mut text, true)?;
    output::line(if before == "[\n" { "[]" } else { "\n]" })?;
    Ok(ExitCode::SUCCESS)
}
