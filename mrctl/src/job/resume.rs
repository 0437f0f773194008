//! `mrctl resume`: lets a paused task go on.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use super::model::Task;
use crate::{locate::Target, output};
use anyhow::Result;
use std::process::ExitCode;

/// Let a paused task go on from where it was
#[derive(Debug, clap::Args)]
#[command(after_help = "Without --on it goes on where its state lies, or where a slot is free next.\n\n\
    Examples:\n  mrctl resume job_7.r0\n  mrctl resume job_7.r0 --on node2     its state is shipped there")]
pub(crate) struct Args {
    /// A task that was paused, such as job_7.r0 (see `mrctl tasks`)
    task: String,
    /// On this node, which must have a free slot for it
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    /// As JSON
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
    let words = tasks.iter().find(|task| task.task == args.task).map_or("goes on".into(), what_follows);
    output::line(format!("{} {words}", args.task))?;
    Ok(ExitCode::SUCCESS)
}

/// What a task does that has just been let go.
fn what_follows(task: &Task) -> String {
    let newest = task.attempts.iter().rfind(|attempt| attempt.ended_ms == 0);
    let from = newest.map_or(&task.paused, |attempt| &attempt.from);
    match (newest, from.is_empty()) {
        (Some(attempt), false) if attempt.state == "pausing" => {
            format!("goes on when {} has put its state aside", attempt.attempt)
        }
        (Some(attempt), false) => format!("resumes on {} from where {from} stood", attempt.tracker),
        (Some(attempt), true) => format!("begins anew on {}: what it had put aside is lost", attempt.tracker),
        (None, false) => format!("goes on from where {from} stood when a slot is free for it"),
        (None, true) => "begins anew when a slot is free for it: what it had put aside is lost".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::model::Attempt;

    #[test]
    fn it_is_said_whether_it_begins_anew() {
        let attempt = |state: &str, from: &str| Attempt {
            attempt: "job_1.r0.1".into(),
            tracker: "node2".into(),
            state: state.into(),
            from: from.into(),
            ..Attempt::default()
        };
        let task = |attempts: Vec<Attempt>, paused: &str| Task {
            attempts,
            paused: paused.into(),
            ..Task::default()
        };
        let old = Attempt { ended_ms: 9, ..attempt("paused", "") };
        let words = |attempts, paused: &str| what_follows(&task(attempts, paused));
        assert_eq!(
            words(vec![old.clone(), attempt("launching", "job_1.r0.0")], "job_1.r0.0"),
            "resumes on node2 from where job_1.r0.0 stood"
        );
        assert!(words(vec![old.clone(), attempt("launching", "")], "").contains("begins anew on node2"));
        assert!(words(vec![old.clone()], "job_1.r0.0").contains("when a slot is free"));
        assert!(words(vec![old], "").contains("begins anew when"));
    }
}
