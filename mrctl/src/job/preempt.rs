//! `mrctl preempt`: takes a slot back.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use super::{
    model::{Attempt, Task},
    preempted,
    wire::JobTracker,
};
use crate::{locate::Target, output};
use anyhow::{Result, bail};
use std::{process::ExitCode, time::Duration};

/// Between two looks whether a slot is free: at first, and at most.
const POLL: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(1);

/// How.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum How {
    /// A map ends where it stands; the rest of its input becomes a task of its own
    Split,
    /// A reduce puts its state aside; it goes on with `mrctl resume`, there or elsewhere
    Pause,
    /// What the attempt has done is thrown away
    Kill,
}

/// Take an attempt's slot back
#[derive(Debug, clap::Args)]
#[command(after_help = "A program may refuse: `mrctl why TASK` says so, and --wait.\n\n\
    Examples:\n  \
    mrctl preempt job_7.m3.0 --how split\n  \
    mrctl preempt job_7.r0.0 --how pause\n  \
    mrctl preempt job_7.r0 --how pause --wait    whichever attempt is at it")]
pub(crate) struct Args {
    /// An attempt that runs, such as job_7.m3.0 (see `mrctl tasks`), or its task, such as job_7.m3
    attempt: String,
    /// How
    #[arg(long, value_enum)]
    how: How,
    /// Until the slot is free; exit code 1 if the attempt goes on instead
    #[arg(long)]
    wait: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    let attempt = at_it(&tracker, &args.attempt).await?;
    tracker.preempt(&attempt, args.how).await?;
    if args.wait {
        return tell(&args, &attempt, &outcome(&tracker, &attempt).await?);
    }
    if args.json {
        output::json(&serde_json::json!({ "attempt": attempt, "how": args.how.name() }))?;
    } else {
        let what = match args.how {
            How::Split => {
                "ends at its next record, unless it says in its history why not; what it has read is kept"
            }
            How::Pause => {
                "puts its state aside, unless it says in its history why not; `mrctl resume` lets its task go on"
            }
            How::Kill => "is killed; its task is tried again",
        };
        output::line(format!("{attempt} {what}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Pause => "pause",
            Self::Kill => "kill",
        }
    }
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    state: String,
    /// What there is to say, or why it goes on.
    words: String,
    refused: bool,
}

fn tell(args: &Args, attempt: &str, outcome: &Outcome) -> Result<ExitCode> {
    let Outcome { state, words, refused } = outcome;
    if args.json {
        let how = args.how.name();
        output::json(&serde_json::json!({ "attempt": attempt, "how": how, "state": state, "why": words }))?;
    } else if *refused {
        bail!("{attempt} goes on: {words}");
    } else {
        output::line(format!("{attempt} {words}"))?;
    }
    Ok(if *refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The attempt that is meant: of a task the one that is at it.
async fn at_it(tracker: &JobTracker, id: &str) -> Result<String> {
    let (Some((job, task)), false) = (id.split_once('.'), id.split('.').count() > 2) else {
        return Ok(id.to_owned());
    };
    let Some(found) = tracker.task(id).await? else {
        bail!("{job} has no task {task}: `mrctl tasks {job}` lists them");
    };
    let running: Vec<&str> = found.running().map(|attempt| attempt.attempt.as_str()).collect();
    match running[..] {
        [one] => Ok(one.to_owned()),
        [] => bail!("no attempt of {id} runs: its state is {}", found.state),
        _ => bail!("{} are at {id}: name one of them", running.join(" and ")),
    }
}

/// Waits until an attempt that was asked for its slot has given it back, or goes on.
async fn outcome(tracker: &JobTracker, id: &str) -> Result<Outcome> {
    let (task, _) = id.rsplit_once('.').unwrap_or((id, ""));
    let mut poll = POLL;
    loop {
        let found = tracker.task(task).await?;
        let Some((of, attempt)) = found.as_ref().and_then(|found| Some((found, found.attempt(id)?))) else {
            bail!("{id} is not known any more");
        };
        match attempt.state.as_str() {
            "splitting" | "pausing" | "stopping" => {
                tokio::time::sleep(poll).await;
                poll = (poll * 3 / 2).min(POLL_MAX);
            }
            "launching" | "running" => {
                let lately = tracker.why(task).await?.lately;
                let refusal = lately.iter().rfind(|one| one.what == "recall-refused" && one.attempt == id);
                let words = refusal.map_or("it says not why".into(), |refusal| refusal.words.clone());
                return Ok(Outcome { state: attempt.state.clone(), words, refused: true });
            }
            _ => {
                // Who has the rest of a map is among all.
                let job = id.split('.').next().unwrap_or_default();
                let tasks = if attempt.recalled == "split" { tracker.tasks(job).await? } else { Vec::new() };
                return Ok(Outcome {
                    state: attempt.state.clone(),
                    words: ended(&tasks, of, attempt),
                    refused: false,
                });
            }
        }
    }
}

/// How an attempt has ended that was asked for its slot.
fn ended(tasks: &[Task], task: &Task, attempt: &Attempt) -> String {
    let note = preempted::note(task, attempt).unwrap_or_default();
    let rest =
        tasks.iter().find(|rest| rest.tail_of.is_some() && (rest.root, rest.start) == (task.root, task.end));
    match (attempt.state.as_str(), rest) {
        ("succeeded", Some(rest)) if attempt.recalled == "split" => {
            format!("ended where it stood ({note}); {} has the rest", rest.task)
        }
        ("succeeded", _) => "was done before it could give its slot back".into(),
        ("paused", _) => format!("is paused ({note})"),
        (state, _) => format!("is {state} ({note})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(state: &str, recalled: &str) -> Attempt {
        Attempt {
            attempt: "job_1.m0.0".into(),
            state: state.into(),
            recalled: recalled.into(),
            recalled_ms: 10,
            ended_ms: 52,
            ..Attempt::default()
        }
    }

    #[test]
    fn it_is_said_how_it_ended() {
        let whole = Task { task: "job_1.m0".into(), end: 50, ..Task::default() };
        let rest = Task {
            task: "job_1.m4".into(),
            start: 50,
            end: 90,
            tail_of: Some("job_1.m0".into()),
            ..Task::default()
        };
        let tasks = [whole.clone(), rest];
        let said = |tasks: &[Task], attempt: Attempt| ended(tasks, &whole, &attempt);
        assert_eq!(
            said(&tasks, attempt("succeeded", "split")),
            "ended where it stood (split: slot free after 42 ms); job_1.m4 has the rest"
        );
        assert!(said(&tasks[..1], attempt("succeeded", "split")).contains("was done before"));
        assert_eq!(said(&tasks, attempt("killed", "kill")), "is killed (kill: slot free after 42 ms)");
    }
}
