//! `mrctl shadow`: shows how the decisions of a shadow policy differ from those of the policy in
//! use.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use client::scheduling::{Choice, Comparison, Difference};
use clusters::locate::Target;
use std::process::ExitCode;

/// Compare the shadow policy with the policy in use
///
/// A shadow policy gets all events and decides without effect. It is chosen by --shadow NAME of
/// `mrctl up` or of the jobtracker, or by `shadow` in the scheduler table of fermata.toml. Counts
/// are since the start of the JobTracker.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl shadow\n  mrctl shadow --last 100\n  mrctl shadow --json")]
pub(crate) struct Args {
    /// Number of differences to list, newest last
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
    /// Print JSON, with all recorded differences
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let shadow = target.jobtracker().await?.shadow().await?;
    if args.json {
        output::json(&shadow)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&shadow, args.last) {
        output::line(line)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(shadow: &Comparison, last: usize) -> Vec<String> {
    let Comparison { scheduler, shadow: other, .. } = shadow;
    let mut lines = vec![
        format!("{other} in the shadow of {scheduler}"),
        format!("  {} went to the job that {other} would have chosen", output::count(shadow.same, "slot")),
        format!("  {} would have gone to another job", output::count(shadow.other, "slot")),
        format!("  {} would have been left free", output::count(shadow.left_free, "slot")),
        format!("  {} would have started sooner", output::count(shadow.sooner, "task")),
        format!(
            "  {} preempted by {scheduler}, {} by {other}, {} of them by both",
            output::count(shadow.policy_preempted, "slot"),
            shadow.shadow_preempted,
            shadow.both_preempted
        ),
    ];
    let skipped = shadow.differences.len().saturating_sub(last);
    if skipped < shadow.differences.len() {
        lines.push("the last differences:".into());
    }
    let shown = shadow.differences.iter().skip(skipped);
    lines.extend(
        shown.map(|difference| format!("  {}  {}", output::time(difference.at_ms), describe(difference))),
    );
    lines
}

fn describe(difference: &Difference) -> String {
    let Difference { tracker, phase, policy, shadow, .. } = difference;
    let job = |choice: &Choice| choice.task.split('.').next().unwrap_or_default().to_owned();
    match (policy, shadow) {
        (Some(choice), None) if choice.preempted => {
            format!("{phase} slot on {tracker}: would not have been preempted from {}", choice.task)
        }
        (None, Some(choice)) if choice.preempted => {
            format!(
                "{phase} slot on {tracker}: would have been preempted from {} ({})",
                choice.task, choice.why.text
            )
        }
        (Some(done), Some(wanted)) => format!(
            "{phase} slot on {tracker}: {} rather than {} ({})",
            job(wanted),
            job(done),
            wanted.why.text
        ),
        (Some(done), None) => format!("{phase} slot on {tracker}: free rather than {}", job(done)),
        (None, Some(wanted)) => {
            format!("{phase} slot on {tracker}: {} rather than free ({})", job(wanted), wanted.why.text)
        }
        (None, None) => format!("{phase} slot on {tracker}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::scheduling::Reason;

    fn choice(task: &str, preempted: bool) -> Choice {
        let why = Reason { text: "because".into(), ..Reason::default() };
        Choice { task: task.into(), preempted, why }
    }

    fn text_of(policy: Option<Choice>, shadow: Option<Choice>) -> String {
        describe(&Difference { at_ms: 0, tracker: "node1".into(), phase: "map".into(), policy, shadow })
    }

    #[test]
    fn each_difference_is_described_as_a_sentence() {
        assert_eq!(
            text_of(Some(choice("job_1.m3", false)), Some(choice("job_2.m0", false))),
            "map slot on node1: job_2 rather than job_1 (because)"
        );
        assert_eq!(
            text_of(Some(choice("job_1.m3", false)), None),
            "map slot on node1: free rather than job_1"
        );
        assert_eq!(
            text_of(None, Some(choice("job_1.m3.0", true))),
            "map slot on node1: would have been preempted from job_1.m3.0 (because)"
        );
    }
}
