//! `mrctl why`: explains why a job or a task waits.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use client::scheduling::WhyReply;
use clusters::locate::Target;
use dfs_client::NodeState;
use std::{process::ExitCode, time::Duration};

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
    let mut lines = lines(&why);
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

/// Returns a cause that the JobTracker does not know: tasks wait for files, because no DataNode is
/// live.
fn without_datanodes(mut states: impl Iterator<Item = NodeState>) -> Option<&'static str> {
    let alive = states.any(|state| state != NodeState::Dead);
    (!alive).then_some(
        "no DataNode is live, so tasks can neither read nor write files: start the DataNodes (`mrctl nodes` lists them)",
    )
}

/// Returns the lines of the output: the state, then one line per reason and event.
fn lines(why: &WhyReply) -> Vec<String> {
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
    lines.extend(
        why.recent_events.iter().map(|event| format!("  {}  {}", output::time(event.at_ms), event.text)),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::scheduling::Reason;

    #[test]
    fn cause_is_reported_if_no_datanode_is_live() {
        let of = |states: &[NodeState]| without_datanodes(states.iter().copied());
        assert!(of(&[NodeState::Dead, NodeState::Dead]).unwrap().contains("no DataNode is live"));
        assert!(of(&[]).is_some());
        assert_eq!(of(&[NodeState::Dead, NodeState::Live]), None);
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
            lines(&why),
            ["job_7 is running (scheduler: fair)", "  3 maps wait", "  pool ann holds 2 of 2"]
        );
        why.waiting_for.clear();
        assert_eq!(lines(&why)[1], "  it is not waiting");
    }
}
