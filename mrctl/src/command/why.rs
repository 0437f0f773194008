//! `mrctl why`: explains why a job or a task waits. `mrctl sim` and `mrctl replay` print the same for
//! simulated jobs.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use client::scheduling::{JobEvent, Reason, WhyReply};
use clusters::locate::Target;
use daemon::{Period, QuantityError};
use dfs_client::NodeState;
use schedulers::explain::{self, Explanation, Subject};
use sim::Span;
use std::{fmt, process::ExitCode, str::FromStr, time::Duration};

/// How long to wait for the answer of the NameNode.
const NAMENODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Explain why a job or a task waits, and show its recent events
///
/// The sentences are made from recorded rules and numbers, which --json also shows. The JobTracker
/// keeps the last launches and the last other events of each job that it remembers; `mrctl history`
/// has all of them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl why job_7\n  mrctl why job_7.m3          one task\n  mrctl why job_7 --json"
)]
pub(crate) struct Args {
    /// A job (job_7), a task (job_7.m3), or an attempt (shows its task)
    #[arg(value_name = "JOB|TASK")]
    of: String,
    /// Print JSON, with all rules and numbers
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let why = target.jobtracker().await?.why(&args.of).await?;
    if args.json {
        output::json(&why)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = lines(&why, output::time);
    if !why.has_ended() {
        let asking = async { target.connect().await?.report().await.map_err(anyhow::Error::from) };
        if let Ok(Ok(report)) = tokio::time::timeout(NAMENODE_TIMEOUT, asking).await {
            let note = without_datanodes(report.nodes.iter().map(|node| node.state));
            // Insert the cause after the line with the state.
            lines.splice(1..1, note.map(|note| format!("  {note}")));
        }
    }
    for line in lines {
        output::line(line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A question about a simulated job: `job_3@120s`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedWhy {
    pub(crate) of: Subject,
    /// Time since the start of the run.
    pub(crate) at: Span,
}

impl fmt::Display for SimulatedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_s = self.at.as_secs_f64();
        match self.of {
            Subject::Job(job) => write!(f, "{job}@{at_s}s"),
            Subject::Task(task) => write!(f, "{task}@{at_s}s"),
        }
    }
}

impl FromStr for SimulatedWhy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "give a job or a task and a time, such as job_3@120s or job_3.m0@5m".to_owned();
        let (of, at) = text.split_once('@').ok_or_else(bad)?;
        let at = at.parse::<Period>().map_err(|error| match error {
            QuantityError::TooLong(_) => error.to_string(),
            _ => bad(),
        })?;
        Ok(Self { of: of.parse().map_err(|_| bad())?, at: Span(at.0.as_micros() as u64) })
    }
}

/// Prints why a simulated job or task waits.
pub(crate) fn print_simulated(explanation: Explanation, json: bool) -> Result<()> {
    let why = simulated_reply(explanation);
    if json {
        return output::json(&why);
    }
    lines(&why, simulated_time).into_iter().try_for_each(output::line)
}

fn simulated_time(at_ms: u64) -> String {
    format!("{:.1} s", at_ms as f64 / 1e3)
}

/// Converts an explanation to what the JobTracker would reply. Its times are simulated.
fn simulated_reply(explanation: Explanation) -> WhyReply {
    let reason = |explain::Reason { why, text }| Reason {
        rule: why.rule.into_owned(),
        numbers: why.numbers.into_iter().map(|(name, value)| (name.into_owned(), value)).collect(),
        text,
    };
    let recent_events = explanation.recent_events.into_iter().map(|(at, fact)| JobEvent {
        at_ms: at.0 / 1000,
        what: fact.what.to_owned(),
        attempt: fact.subject,
        tracker: fact.tracker,
        why: fact.why.map(reason),
        text: fact.text,
    });
    WhyReply {
        of: explanation.of,
        state: explanation.state.to_owned(),
        scheduler: explanation.scheduler,
        recent_events: recent_events.collect(),
        waiting_for: explanation.waiting_for.into_iter().map(reason).collect(),
    }
}

/// Returns a cause that the JobTracker does not know: tasks wait for files, because no DataNode is
/// live.
fn without_datanodes(mut states: impl Iterator<Item = NodeState>) -> Option<&'static str> {
    let alive = states.any(|state| state != NodeState::Dead);
    (!alive).then_some(
        "no DataNode is live, so tasks can neither read nor write files: start the DataNodes (`mrctl nodes` lists them)",
    )
}

/// Returns the lines of the output: the state, then one line per reason and event. `time` formats
/// the time of an event.
fn lines(why: &WhyReply, time: impl Fn(u64) -> String) -> Vec<String> {
    // An ended job may have run under another policy.
    let scheduler = if why.has_ended() { String::new() } else { format!(" (scheduler: {})", why.scheduler) };
    let verb = if matches!(why.state.as_str(), "succeeded" | "failed") { "has" } else { "is" };
    let mut lines = vec![format!("{} {verb} {}{scheduler}", why.of, why.state)];
    lines.extend(why.waiting_for.iter().map(|reason| format!("  {}", reason.text)));
    if why.waiting_for.is_empty() {
        lines.push("  it is not waiting".into());
    }
    if !why.recent_events.is_empty() {
        lines.push("recent events:".into());
    }
    lines.extend(why.recent_events.iter().map(|event| format!("  {}  {}", time(event.at_ms), event.text)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_reported_if_no_datanode_is_live() {
        let of = |states: &[NodeState]| without_datanodes(states.iter().copied());
        assert!(of(&[NodeState::Dead, NodeState::Dead]).unwrap().contains("no DataNode is live"));
        assert!(of(&[]).is_some());
        assert_eq!(of(&[NodeState::Dead, NodeState::Live]), None);
    }

    #[test]
    fn simulated_times_are_printed_in_seconds() {
        let text = "job_7.m0.0 started on n3: it is the first".to_owned();
        let (what, attempt, tracker, why) =
            ("attempt-launched".into(), "job_7.m0.0".into(), "n3".into(), None);
        let reply = WhyReply {
            of: "job_7".into(),
            state: "running".into(),
            scheduler: "fair".into(),
            waiting_for: Vec::new(),
            recent_events: vec![JobEvent { at_ms: 61_250, what, attempt, tracker, why, text }],
        };
        let lines = lines(&reply, simulated_time);
        assert_eq!(lines[2..], ["recent events:", "  61.2 s  job_7.m0.0 started on n3: it is the first"]);
    }

    #[test]
    fn each_reason_is_printed_as_a_line() {
        let reason = |text: &str| Reason { text: text.into(), ..Reason::default() };
        let mut why = WhyReply {
            of: "job_7".into(),
            state: "running".into(),
            scheduler: "fair".into(),
            waiting_for: vec![reason("3 maps wait"), reason("pool ann holds 2 of 2")],
            recent_events: Vec::new(),
        };
        assert_eq!(
            lines(&why, output::time),
            ["job_7 is running (scheduler: fair)", "  3 maps wait", "  pool ann holds 2 of 2"]
        );
        why.waiting_for.clear();
        assert_eq!(lines(&why, output::time)[1], "  it is not waiting");
    }
}
