//! `mrctl resume`: lets a paused task go on.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

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
    } else {
        let place = args.on.map_or_else(String::new, |on| format!(" on {on}"));
        output::line(format!("{} goes on{place}", args.task))?;
    }
    Ok(ExitCode::SUCCESS)
}
