//! `mrctl preempt`: takes a slot back.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use crate::{locate::Target, output};
use anyhow::Result;
use std::process::ExitCode;

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
#[command(
    after_help = "Examples:\n  mrctl preempt job_7.m3.0 --how split\n  mrctl preempt job_7.r0.0 --how pause"
)]
pub(crate) struct Args {
    /// An attempt that runs, such as job_7.m3.0 (see `mrctl tasks`)
    attempt: String,
    /// How
    #[arg(long, value_enum)]
    how: How,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker().await?;
    tracker.preempt(&args.attempt, args.how).await?;
    if args.json {
        let how = format!("{:?}", args.how).to_lowercase();
        output::json(&serde_json::json!({ "attempt": args.attempt, "how": how }))?;
    } else {
        let what = match args.how {
            How::Split => "ends at its next record; what it has read is kept",
            How::Pause => {
                "puts its state aside, unless it says in its history why not; `mrctl resume` lets its task go on"
            }
            How::Kill => "is killed; its task begins anew",
        };
        output::line(format!("{} {what}", args.attempt))?;
    }
    Ok(ExitCode::SUCCESS)
}
