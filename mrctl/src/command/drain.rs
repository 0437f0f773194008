//! `mrctl drain`: empties a datanode. The namenode does the work and remembers it; this watches.

use crate::{
    locate::Target,
    output::{self, Meter},
};
use anyhow::Result;
use daemon::Period;
use dfs::client::{Client, DrainBlock, DrainStatus, NodeState};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(250);
/// A shortage of nodes that lasts for this long is no passing one.
const STUCK_FOR: Duration = Duration::from_secs(10);

/// Empty a datanode so that it can be stopped
///
/// Its blocks are copied to other nodes first: it is drained when each has all its replicas on nodes that stay.
/// Until the deadline this shows how many are left; after it, or where too few nodes stay for ten seconds, it says which blocks
/// lack replicas and why, the drain goes on by itself, and the exit code is 1.
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
    status: &'a DrainStatus,
    took_ms: u64,
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
    let done = args.cancel || status.state == NodeState::Drained;
    if args.json {
        output::json(&Drained { node, status: &status, took_ms: begun.elapsed().as_millis() as u64 })?;
    } else if args.cancel {
        output::line(format!("{node} is in use again"))?;
    } else if done {
        let took = output::millis(begun.elapsed());
        output::line(format!("{node} is drained after {took}: it can be stopped"))?;
    }
    if done {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("mrctl: {}", not_drained(node, &status, &args.deadline));
    Ok(ExitCode::FAILURE)
}

/// Why a node is not drained, which blocks are in the way, and what to do.
fn not_drained(node: &str, status: &DrainStatus, deadline: &Period) -> String {
    let blocks = output::count(status.blocks_left, "block");
    let nodes = output::count(status.staying.into(), "datanode");
    let examples: Vec<String> = status.examples.iter().map(example).collect();
    let more = if status.blocks_left > examples.len() as u64 { "; ..." } else { "" };
    let examples =
        if examples.is_empty() { String::new() } else { format!(" ({}{more})", examples.join("; ")) };
    if status.state == NodeState::Dead {
        return format!("{node} is dead: what only it had is missing; start it again, or --cancel");
    }
    if status.stuck {
        return format!(
            "{node} is not drained, for too few nodes stay: {nodes} cannot hold all replicas of {blocks}{examples}; \
             start more, lower the number with `mrctl fs setrep`, or --cancel"
        );
    }
    format!(
        "{node} is not drained after {deadline}: {blocks} left{examples}; the drain goes on, run the same again \
         to watch it, or --cancel"
    )
}

fn example(block: &DrainBlock) -> String {
    let DrainBlock { block, path, wanted, have, why } = block;
    if *wanted == 0 {
        return format!("{block} of {path}: {why}");
    }
    format!("{block} of {path} has {have} of {wanted} elsewhere: {why}")
}

/// Since when every look has found too few nodes: one that starts again is back soon.
#[derive(Debug, Default)]
struct Stuck {
    since: Option<Instant>,
}

impl Stuck {
    /// What one look has found; whether there is no use in further ones.
    fn for_good(&mut self, stuck: bool, now: Instant) -> bool {
        if !stuck {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= STUCK_FOR
    }
}

async fn watch(client: &Client, args: &Args, begun: Instant) -> Result<DrainStatus> {
    let mut status = client.drain(&args.node, false).await?;
    let meter = Meter::counter(status.blocks_left, args.json);
    let mut left = status.blocks_left;
    let mut stuck = Stuck::default();
    let mut over = |status: &DrainStatus| {
        // A dead node holds nothing that could be copied.
        let ended = matches!(status.state, NodeState::Drained | NodeState::Dead);
        stuck.for_good(status.stuck, Instant::now()) || ended
    };
    while !over(&status) && begun.elapsed() < args.deadline.0 {
        tokio::time::sleep(POLL.min(args.deadline.0)).await;
        status = client.drain(&args.node, false).await?;
        if status.blocks_left != left {
            left = status.blocks_left;
            meter.left(left);
            if !args.json && meter.is_hidden() {
                output::line(format!("{} left", output::count(left, "block")))?;
            }
        }
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs::ids::BlockId;

    #[test]
    fn a_passing_shortage_does_not_end_the_wait() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut stuck = Stuck::default();
        assert!(!stuck.for_good(true, at(0)) && !stuck.for_good(true, at(9)));
        assert!(!stuck.for_good(false, at(10)), "a node came back");
        assert!(!stuck.for_good(true, at(11)) && !stuck.for_good(true, at(20)));
        assert!(stuck.for_good(true, at(21)));
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let block = DrainBlock {
            block: BlockId(7),
            path: "/a".into(),
            wanted: 2,
            have: 1,
            why: "datanodes that stay: 1".into(),
        };
        let mut status = DrainStatus {
            state: NodeState::Draining,
            blocks_left: 3,
            stuck: true,
            staying: 1,
            examples: vec![block],
        };
        let text = not_drained("n1", &status, &Period::secs(5));
        assert!(
            text.contains("too few nodes stay: 1 datanode cannot hold all replicas of 3 blocks"),
            "{text}"
        );
        assert!(text.contains("of /a has 1 of 2 elsewhere") && text.contains("; ..."), "{text}");
        status.stuck = false;
        assert!(
            not_drained("n1", &status, &Period::secs(5)).starts_with("n1 is not drained after 5s: 3 blocks")
        );
    }
}
