//! `mrctl preempt`: preempts an attempt by hand.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::{Result, bail};
use client::{
    JobTracker, PreemptKind,
    model::{Attempt, Task},
};
use clusters::locate::Target;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use view::preempted;

/// The first interval between polls. It grows up to `POLL_MAX`.
const POLL_MIN: Duration = Duration::from_millis(50);
/// The longest interval between polls.
const POLL_MAX: Duration = Duration::from_secs(1);
/// How long the command waits for the result without `--wait`. A refusal by the program usually
/// arrives earlier.
const RESULT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a command waits before it prints that it is still waiting.
const FIRST_NOTICE_AFTER: Duration = Duration::from_secs(2);
/// The interval between later messages that the command is still waiting.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// The kind of preemption.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum How {
    /// End a map at its next record; a new task gets the remainder of its input
    Split,
    /// Save a checkpoint of a reduce; `mrctl resume` continues it, on the same or another node
    Pause,
    /// Kill the attempt and discard its work
    Kill,
}

/// Preempt an attempt: release its slot
#[derive(Debug, clap::Args)]
#[command(after_help = "The command waits some seconds for the result, or with --wait as long as it\n\
    takes. A program may refuse and continue: then the exit code is 1, and\n\
    `mrctl why TASK` shows the reason again.\n\n\
    Examples:\n  \
    mrctl preempt job_7.m3.0 --how split\n  \
    mrctl preempt job_7.r0.0 --how pause\n  \
    mrctl preempt job_7.r0 --how pause --wait    its running attempt")]
pub(crate) struct Args {
    /// A running attempt, such as job_7.m3.0 (see `mrctl tasks`), or its task, such as job_7.m3
    attempt: String,
    /// Kind of preemption
    #[arg(long, value_enum)]
    how: How,
    /// Wait until the slot is free or the attempt has refused, however long that takes
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let attempt = find_running_attempt(&tracker, &args.attempt).await?;
    tracker.preempt(&attempt, args.how.into()).await?;
    let limit = match args.how {
        _ if args.wait => None,
        How::Split | How::Pause => Some(RESULT_TIMEOUT),
        How::Kill => Some(Duration::ZERO),
    };
    if let Some(outcome) = await_outcome(&tracker, &attempt, limit).await? {
        return print_result(&args, &attempt, &outcome);
    }
    if args.json {
        output::json(
            &serde_json::json!({ "attempt": attempt, "kind": PreemptKind::from(args.how).to_string() }),
        )?;
    } else {
        let what = match args.how {
            How::Split => {
                "is still running and will split at its next record; use --wait to wait for it. The work done is kept"
            }
            How::Pause => {
                "is still saving a checkpoint; use --wait to wait for it. `mrctl resume` resumes its task"
            }
            How::Kill => "is being killed; its task will run again",
        };
        output::line(format!("{attempt} {what}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl From<How> for PreemptKind {
    fn from(how: How) -> Self {
        match how {
            How::Split => Self::Split,
            How::Pause => Self::Pause,
            How::Kill => Self::Kill,
        }
    }
}

/// The result of a preemption.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    state: String,
    /// What happened, or why the attempt refused and continues.
    text: String,
    refused: bool,
}

fn print_result(args: &Args, attempt: &str, outcome: &Outcome) -> Result<ExitCode> {
    let Outcome { state, text, refused } = outcome;
    if args.json {
        let kind = PreemptKind::from(args.how).to_string();
        output::json(&serde_json::json!({ "attempt": attempt, "kind": kind, "state": state, "why": text }))?;
    } else if *refused {
        bail!("{text}");
    } else {
        output::line(format!("{attempt} {text}"))?;
    }
    Ok(if *refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns `id` if it is the ID of an attempt. If it is the ID of a task, returns the ID of the
/// task's running attempt.
async fn find_running_attempt(tracker: &JobTracker, id: &str) -> Result<String> {
    let (Some((job, task)), false) = (id.split_once('.'), id.split('.').count() > 2) else {
        return Ok(id.to_owned());
    };
    let Some(found) = tracker.task(id).await? else {
        bail!("{job} has no task {task}: `mrctl tasks {job}` lists them");
    };
    let running: Vec<&str> = found.running().map(|attempt| attempt.attempt.as_str()).collect();
    match running[..] {
        [one] => Ok(one.to_owned()),
        [] => bail!("no attempt of {id} is running: the state of the task is {}", found.state),
        _ => bail!("{id} has several running attempts: name one of {}", running.join(", ")),
    }
}

/// Waits until the preempted attempt has released its slot or has refused. Returns None if that
/// takes longer than `limit`.
async fn await_outcome(tracker: &JobTracker, id: &str, limit: Option<Duration>) -> Result<Option<Outcome>> {
    let (task, _) = id.rsplit_once('.').unwrap_or((id, ""));
    let (mut poll, started, mut notice) = (POLL_MIN, Instant::now(), FIRST_NOTICE_AFTER);
    while limit.is_none_or(|limit| started.elapsed() < limit) {
        let found = tracker.task(task).await?;
        let Some((of, attempt)) = found.as_ref().and_then(|found| Some((found, found.attempt(id)?))) else {
            bail!("the JobTracker no longer knows {id}");
        };
        match attempt.state.as_str() {
            state @ ("splitting" | "pausing" | "stopping") => {
                if started.elapsed() >= notice {
                    eprintln!("mrctl: {id} is still {state} after {} s", started.elapsed().as_secs());
                    notice += NOTICE_INTERVAL;
                }
                tokio::time::sleep(poll).await;
                poll = (poll * 3 / 2).min(POLL_MAX);
            }
            "launching" | "running" => {
                let recent_events = tracker.why(task).await?.recent_events;
                let refusal =
                    recent_events.iter().rfind(|one| one.what == "preemption-refused" && one.attempt == id);
                let text = refusal.map_or(
                    format!("{id} refused the preemption, and continues; it gave no reason"),
                    |refusal| refusal.text.clone(),
                );
                return Ok(Some(Outcome { state: attempt.state.clone(), text, refused: true }));
            }
            _ => {
                // Query all tasks of the job: one of them has the remainder of a split map.
                let job = id.split('.').next().unwrap_or_default();
                let tasks =
                    if attempt.preempt_kind == "split" { tracker.tasks(job).await? } else { Vec::new() };
                return Ok(Some(Outcome {
                    state: attempt.state.clone(),
                    text: describe_end(&tasks, of, attempt),
                    refused: false,
                }));
            }
        }
    }
    Ok(None)
}

/// Describes how a preempted attempt has ended.
fn describe_end(tasks: &[Task], task: &Task, attempt: &Attempt) -> String {
    let note = preempted::note(task, attempt).unwrap_or_default();
    let rest = tasks
        .iter()
        .find(|rest| rest.remainder_of.is_some() && (rest.root, rest.start) == (task.root, task.end));
    match (attempt.state.as_str(), rest) {
        ("succeeded", Some(rest)) if attempt.preempt_kind == "split" => {
            format!("was split ({note}); {} has the remainder", rest.task)
        }
        ("succeeded", _) => "succeeded before it was preempted".into(),
        ("paused", _) => format!("is paused ({note})"),
        (state, _) => format!("is {state} ({note})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(state: &str, preempt_kind: &str) -> Attempt {
        Attempt {
            attempt: "job_1.m0.0".into(),
            state: state.into(),
            preempt_kind: preempt_kind.into(),
            preempted_ms: 10,
            ended_ms: 52,
            ..Attempt::default()
        }
    }

    #[test]
    fn refusal_is_printed_once() {
        let args = Args { attempt: "job_1.r0.0".into(), how: How::Pause, wait: true, json: false };
        let text = "job_1.r0.0 refused the preemption, and continues: no space".to_owned();
        let outcome = Outcome { state: "running".into(), text: text.clone(), refused: true };
        assert_eq!(print_result(&args, "job_1.r0.0", &outcome).unwrap_err().to_string(), text);
    }

    #[test]
    fn each_kind_of_preemption_result_is_described() {
        let whole = Task { task: "job_1.m0".into(), end: 50, ..Task::default() };
        let rest = Task {
            task: "job_1.m4".into(),
            start: 50,
            end: 90,
            remainder_of: Some("job_1.m0".into()),
            ..Task::default()
        };
        let tasks = [whole.clone(), rest];
        let text_of = |tasks: &[Task], attempt: Attempt| describe_end(tasks, &whole, &attempt);
        assert_eq!(
            text_of(&tasks, attempt("succeeded", "split")),
            "was split (split: slot free after 42 ms); job_1.m4 has the remainder"
        );
        assert!(text_of(&tasks[..1], attempt("succeeded", "split")).contains("succeeded before"));
        assert_eq!(text_of(&tasks, attempt("killed", "kill")), "is killed (kill: slot free after 42 ms)");
    }
}
