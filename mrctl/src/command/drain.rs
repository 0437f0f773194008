//! `mrctl drain`: empties a datanode. The namenode does the work and remembers it; this watches.

use crate::{
    locate::Target,
    output::{self, Meter},
};
use anyhow::Result;
use daemon::Period;
use dfs::client::{Client, DrainStatus, NodeState};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(250);

/// Empty a datanode so that it can be stopped
///
/// Its blocks are copied to other nodes first. Until the deadline this shows how many are left; after it the
/// drain goes on by itself and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl drain node2                  wait until node2 can be stopped\n  \
    mrctl drain node2 --deadline 10m\n  \
    mrctl drain node2 --cancel         use it again")]
pub(crate) struct Args {
    /// Name of the datanode, as `mrctl nodes` shows it
    node: String,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "120s")]
    deadline: Period,
    /// Use the node again, whether drained or only on the way
    #[arg(long, conflicts_with = "deadline")]
    cancel: bool,
    /// As JSON, at the end
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Drained<'a> {
    node: &'a str,
    #[serde(flatten)]
    status: DrainStatus,
    seconds: f64,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let client = target.connect().await?;
    let begun = Instant::now();
    let status = if args.cancel {
        client.drain(&args.node, true).await?
    } else {
        watch(&client, &args, begun).await?
    };
    let node = &args.node;
    if args.json {
        output::json(&Drained { node, status, seconds: begun.elapsed().as_secs_f64() })?;
    } else if args.cancel {
        output::line(format!("{node} is in use again"))?;
    } else if status.state == NodeState::Drained {
        let took = output::millis(begun.elapsed());
        output::line(format!("{node} is drained after {took}: it can be stopped"))?;
    }
    if args.cancel || status.state == NodeState::Drained {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "mrctl: {node} is not drained after {}: {} blocks are left; the drain goes on, run the same again to \
         watch it, or --cancel",
        args.deadline, status.blocks_left
    );
    Ok(ExitCode::FAILURE)
}

async fn watch(client: &Client, args: &Args, begun: Instant) -> Result<DrainStatus> {
    let mut status = client.drain(&args.node, false).await?;
    let meter = Meter::counter(status.blocks_left, args.json);
    let mut left = status.blocks_left;
    while status.state != NodeState::Drained && begun.elapsed() < args.deadline.0 {
        tokio::time::sleep(POLL.min(args.deadline.0)).await;
        status = client.drain(&args.node, false).await?;
        if status.blocks_left != left {
            left = status.blocks_left;
            meter.left(left);
            if !args.json && meter.is_hidden() {
                output::line(format!("{left} blocks left"))?;
            }
        }
    }
    Ok(status)
}
