//! `mrctl tasks`: prints one line per attempt, and the number of tasks in each state.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use super::inspect::JobArgs;
use crate::output;
use anyhow::Result;
use clusters::locate::Target;
use std::process::ExitCode;
use view::{
    preempted,
    tasks::{STATES, elapsed, indented, input, note, retain_in_state, state, totals},
};

/// List the tasks of a job and their attempts
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl tasks job_7\n  \
    mrctl tasks job_7 --state running\n  \
    mrctl tasks job_7 --state failed      then: mrctl logs ATTEMPT")]
pub(crate) struct Args {
    #[command(flatten)]
    job_args: JobArgs,
    /// Show only tasks and attempts in this state
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    state: Option<String>,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let mut tasks = target.jobtracker().await?.tasks(&args.job_args.job).await?;
    let all = totals(&tasks);
    if let Some(state) = &args.state {
        retain_in_state(&mut tasks, state);
    }
    if args.job_args.json {
        output::json(&tasks)?;
        return Ok(ExitCode::SUCCESS);
    }
    let now_ms = output::now_ms();
    let header = ["ATTEMPT", "STATE", "NODE", "TOOK", "INPUT", "NOTE"];
    let mut table = output::table(&header, &[3]);
    for (depth, task) in preempted::tree(&tasks) {
        let indented = |name: &str| indented(depth, name);
        if task.attempts.is_empty() {
            table.add_row([&indented(&task.task), &task.state, "", "", &input(task), ""]);
        }
        for attempt in &task.attempts {
            table.add_row([
                &indented(&attempt.attempt),
                &state(attempt),
                &attempt.tracker,
                &elapsed(attempt, now_ms),
                &input(task),
                &note(task, attempt, output::brief),
            ]);
        }
    }
    if !tasks.is_empty() {
        output::print_table(&table)?;
    }
    output::line(all)?;
    Ok(ExitCode::SUCCESS)
}
