//! `mrctl resume`: resumes a paused task.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use client::model::Task;
use clusters::locate::Target;
use std::process::ExitCode;

/// Resume a paused task from its checkpoint
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --on it resumes on the node of its checkpoint, or on another node\nwith a free slot.\n\n\
    Examples:\n  mrctl resume job_7.r0\n  mrctl resume job_7.r0 --on node2     its checkpoint is copied there"
)]
pub(crate) struct Args {
    /// A paused task, such as job_7.r0 (see `mrctl tasks`)
    task: String,
    /// Resume on this node, which must have a free slot
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    tracker.resume(&args.task, args.on.as_deref()).await?;
    if args.json {
        output::json(&serde_json::json!({ "task": args.task, "on": args.on }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = args.task.split('.').next().unwrap_or_default();
    let tasks = tracker.tasks(job).await?;
    let text = tasks.iter().find(|task| task.task == args.task).map_or("resumes".into(), describe_resumption);
    output::line(format!("{} {text}", args.task))?;
    Ok(ExitCode::SUCCESS)
}

/// Describes what a task does after it was resumed.
fn describe_resumption(task: &Task) -> String {
    let newest = task.attempts.iter().rfind(|attempt| attempt.ended_ms == 0);
    let from = newest.map_or(&task.paused, |attempt| &attempt.resumed_from);
    match (newest, from.is_empty()) {
        (Some(attempt), false) if attempt.state == "pausing" => {
            format!("resumes when {} has saved its checkpoint", attempt.attempt)
        }
        (Some(attempt), false) => format!("resumes on {} from the checkpoint of {from}", attempt.tracker),
        (Some(attempt), true) => format!("starts over on {}: its checkpoint is lost", attempt.tracker),
        (None, false) => format!("resumes from the checkpoint of {from} when a slot is free"),
        (None, true) => "starts over when a slot is free: its checkpoint is lost".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::model::Attempt;

    #[test]
    fn description_of_a_resumed_task_mentions_a_restart_from_scratch() {
        let attempt = |state: &str, resumed_from: &str| Attempt {
            attempt: "job_1.r0.1".into(),
            tracker: "node2".into(),
            state: state.into(),
            resumed_from: resumed_from.into(),
            ..Attempt::default()
        };
        let task = |attempts: Vec<Attempt>, paused: &str| Task {
            attempts,
            paused: paused.into(),
            ..Task::default()
        };
        let old = Attempt { ended_ms: 9, ..attempt("paused", "") };
        let text = |attempts, paused: &str| describe_resumption(&task(attempts, paused));
        assert_eq!(
            text(vec![old.clone(), attempt("launching", "job_1.r0.0")], "job_1.r0.0"),
            "resumes on node2 from the checkpoint of job_1.r0.0"
        );
        assert!(text(vec![old.clone(), attempt("launching", "")], "").contains("starts over on node2"));
        assert!(text(vec![old.clone()], "job_1.r0.0").contains("when a slot is free"));
        assert!(text(vec![old], "").contains("starts over when"));
    }
}
