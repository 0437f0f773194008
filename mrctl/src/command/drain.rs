//! `mrctl drain`: drains a node, that is, its DataNode and its TaskTracker. The NameNode and the
//! JobTracker do the work and record the drain. This command starts the drain once and then only
//! watches it, so that it does not undo a cancellation by another user.

mod text;

use crate::output::{self, Meter};
use anyhow::{Context as _, Result, bail};
use client::{JobTracker, model::DrainState};
use clusters::locate::Target;
use daemon::Period;
use dfs_client::{Client, DrainStatus, NodeState};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A shortage of nodes that lasts this long counts as permanent.
const STUCK_FOR: Duration = Duration::from_secs(10);
/// How long the command waits after the deadline until the remaining attempts are killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Move all work and data off a node so that it can be stopped
///
/// Its blocks are copied to other nodes. Its maps are split and its reduces are paused; they
/// continue on other nodes. Map output and checkpoints on its disks that jobs still need are copied
/// to other trackers. No work is lost by that. An attempt that can neither be split nor paused
/// (such as a map of a file that is not splittable) may run until the deadline and is then killed.
///
/// A drain that would leave too few nodes for the replicas of a file is refused, and the node stays
/// in use.
///
/// The command shows what is left to do until the node is drained. At the deadline, or if other
/// nodes have failed since and there have been too few for ten seconds, it prints the reason and
/// exits with code 1; the drain itself continues.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl drain node2                  wait until node2 can be stopped\n  \
    mrctl drain node2 --deadline 10m\n  \
    mrctl drain node2 --cancel         use it again")]
pub(crate) struct Args {
    /// Name of the node, as `mrctl nodes` shows it
    pub(crate) node: String,
    /// How long to wait, and how long attempts that cannot be saved may run
    #[arg(long, value_name = "TIME", default_value = "120s")]
    deadline: Period,
    /// Use the node again, whether it is drained or still draining
    #[arg(long, conflicts_with = "deadline")]
    pub(crate) cancel: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The progress of a drain, for the DataNode and the tracker of the node. A node may have only one
/// of them.
#[derive(Debug, Clone, Serialize)]
struct DrainProgress<'a> {
    node: &'a str,
    #[serde(flatten)]
    datanode: Option<DrainStatus>,
    tracker: Option<DrainState>,
}

impl DrainProgress<'_> {
    fn datanode_is(&self, states: &[NodeState]) -> bool {
        self.datanode.as_ref().is_none_or(|status| states.contains(&status.state))
    }

    fn tracker_is(&self, states: &[&str]) -> bool {
        self.tracker.as_ref().is_none_or(|status| states.contains(&status.state.as_str()))
    }

    /// Returns whether the node can be stopped.
    fn is_done(&self) -> bool {
        self.datanode_is(&[NodeState::Drained]) && self.tracker_is(&["drained", "lost"])
    }

    /// Returns whether there is nothing left to wait for. A dead DataNode is not waited for,
    /// because no block can be copied from it.
    fn is_over(&self) -> bool {
        self.datanode_is(&[NodeState::Drained, NodeState::Dead]) && self.tracker_is(&["drained", "lost"])
    }

    /// Returns whether the drain was cancelled.
    fn is_cancelled(&self) -> bool {
        let datanode = self.datanode.as_ref().is_some_and(|status| status.state == NodeState::Live);
        datanode || self.tracker.as_ref().is_some_and(|status| status.state == "live")
    }

    /// Returns how many blocks, attempts, map outputs and checkpoints remain on the node, in total.
    fn remaining_items(&self) -> u64 {
        let tracker = self.tracker.as_ref().map_or(0, |status| {
            status.maps_running + status.reduces_running + status.outputs + status.checkpoints
        });
        self.datanode.as_ref().map_or(0, |status| status.blocks_left) + u64::from(tracker)
    }

    fn has_running_attempts(&self) -> bool {
        self.tracker.as_ref().is_some_and(|status| status.maps_running + status.reduces_running > 0)
    }
}

/// A node with connections to its masters: to the NameNode if it has a DataNode, to the JobTracker
/// if it has a tracker.
struct Node<'a> {
    name: &'a str,
    files: Option<Client>,
    jobs: Option<JobTracker>,
}

impl<'a> Node<'a> {
    async fn find(name: &'a str, target: &Target) -> Result<Self> {
        let files = target.connect().await?;
        let has_files = files.report().await?.nodes.iter().any(|node| node.address.node == name);
        let (mut jobs, mut has_jobs) = (None, false);
        if target.has_jobtracker()? {
            let tracker = target.jobtracker().await?;
            has_jobs = tracker.trackers().await?.iter().any(|tracker| tracker.name == name);
            jobs = Some(tracker);
        }
        if !has_files && !has_jobs {
            bail!("there is no node {name}: `mrctl nodes` lists the nodes");
        }
        Ok(Self { name, files: Some(files).filter(|_| has_files), jobs: jobs.filter(|_| has_jobs) })
    }

    async fn query(&self) -> Result<DrainProgress<'a>> {
        let mut found = DrainProgress { node: self.name, datanode: None, tracker: None };
        if let Some(files) = &self.files {
            found.datanode = Some(files.drain_status(self.name).await?);
        }
        if let Some(jobs) = &self.jobs {
            found.tracker = Some(jobs.drain_status(self.name).await?);
        }
        Ok(found)
    }

    /// Starts the drain of the DataNode and of the tracker. If the JobTracker refuses, cancels the
    /// drain of the DataNode.
    async fn begin(&self, before: &DrainProgress<'_>, within: Duration) -> Result<()> {
        if let Some(files) = &self.files {
            files.drain(self.name, false).await?;
        }
        let Some(jobs) = &self.jobs else { return Ok(()) };
        let refused = jobs.drain(self.name, within).await.err();
        let was_in_use = before.datanode.as_ref().is_some_and(|status| status.state == NodeState::Live);
        if let (Some(_), Some(files)) = (&refused, self.files.as_ref().filter(|_| was_in_use)) {
            files.drain(self.name, true).await?;
        }
        refused.map_or(Ok(()), |refused| Err(refused.into()))
    }

    async fn cancel(&self) -> Result<()> {
        if let Some(files) = &self.files {
            files.drain(self.name, true).await?;
        }
        if let Some(jobs) = &self.jobs {
            jobs.undrain(self.name).await?;
        }
        Ok(())
    }
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let started = Instant::now();
    let node = Node::find(&args.node, target).await?;
    let before = node.query().await?;
    if args.cancel {
        node.cancel().await?;
    } else {
        if let Some(tracker) = before.tracker.as_ref().filter(|_| !args.json) {
            output::line(format!("{} {}", args.node, text::describe_tracker(tracker)))?;
        }
        node.begin(&before, args.deadline.0).await?;
    }
    let after = if args.cancel {
        node.query().await?
    } else {
        tokio::select! {
            after = watch(&node, &args, started) => after.context(format!("the drain of {} continues", args.node))?,
            () = daemon::lifecycle::end_signal() => {
                eprintln!("mrctl: the drain of {0} continues; `mrctl drain {0} --cancel` ends it", args.node);
                return Ok(ExitCode::FAILURE);
            }
        }
    };
    if args.json {
        let more =
            serde_json::json!({ "took_ms": started.elapsed().as_millis() as u64, "before": before.tracker });
        output::json(&text::DrainJson { status: &after, more })?;
    } else if args.cancel {
        let was = if before.is_cancelled() { "was not draining" } else { "is in use again" };
        output::line(format!("{} {was}", args.node))?;
    } else {
        if let Some(tracker) = &after.tracker {
            output::line(text::describe_cost(&tracker.cost))?;
        }
        if after.is_done() {
            let took = output::millis(started.elapsed());
            output::line(format!("{} is drained after {took}: it can be stopped", args.node))?;
        }
    }
    if args.cancel || after.is_done() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("mrctl: {}", text::not_drained_message(&after, &args.deadline));
    Ok(ExitCode::FAILURE)
}

/// Measures how long there have been too few other nodes for the drain to finish. A poll that finds
/// enough nodes resets the timer.
#[derive(Debug, Default)]
struct ShortageTimer {
    since: Option<Instant>,
}

impl ShortageTimer {
    /// Records whether a poll has found too few nodes. Returns whether the shortage counts as
    /// permanent.
    fn is_permanent(&mut self, stuck: bool, now: Instant) -> bool {
        if !stuck {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= STUCK_FOR
    }
}

async fn watch<'a>(node: &Node<'a>, args: &Args, started: Instant) -> Result<DrainProgress<'a>> {
    let mut status = node.query().await?;
    let mut left = status.remaining_items();
    let meter = Meter::of_blocks(left, args.json);
    let mut stuck = ShortageTimer::default();
    let mut over = |status: &DrainProgress<'_>| {
        let short = status.datanode.as_ref().is_some_and(|status| status.stuck);
        stuck.is_permanent(short, Instant::now()) || status.is_over() || status.is_cancelled()
    };
    let in_time = |status: &DrainProgress<'_>| {
        let late = started.elapsed().saturating_sub(args.deadline.0);
        // The kill at the deadline does not reach a tracker without heartbeats: do not wait for it.
        let reachable = !status.tracker_is(&["suspect", "awaited"]) || status.tracker.is_none();
        late.is_zero() || (reachable && status.has_running_attempts() && late < KILL_TIMEOUT)
    };
    while !over(&status) && in_time(&status) {
        tokio::time::sleep(POLL_INTERVAL.min(args.deadline.0)).await;
        status = node.query().await?;
        if status.remaining_items() != left {
            left = status.remaining_items();
            meter.set_remaining_blocks(left);
            if !args.json && meter.is_hidden() {
                output::line(text::describe_remaining_work(&status))?;
            }
        }
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_shortage_does_not_end_the_wait() {
        let started = Instant::now();
        let at = |seconds| started + Duration::from_secs(seconds);
        let mut stuck = ShortageTimer::default();
        assert!(!stuck.is_permanent(true, at(0)) && !stuck.is_permanent(true, at(9)));
        assert!(!stuck.is_permanent(false, at(10)), "a node came back");
        assert!(!stuck.is_permanent(true, at(11)) && !stuck.is_permanent(true, at(20)));
        assert!(stuck.is_permanent(true, at(21)));
    }

    #[test]
    fn drain_is_done_only_if_datanode_and_tracker_are_drained() {
        let datanode = |state| {
            Some(DrainStatus { state, blocks_left: 0, stuck: false, staying: 2, examples: Vec::new() })
        };
        let tracker = |state: &str| Some(DrainState { state: state.into(), ..DrainState::default() });
        let of = |datanode, tracker| DrainProgress { node: "n1", datanode, tracker };
        assert!(of(datanode(NodeState::Drained), tracker("drained")).is_done());
        assert!(of(None, tracker("drained")).is_done() && of(datanode(NodeState::Drained), None).is_done());
        assert!(!of(datanode(NodeState::Drained), tracker("draining")).is_over());
        assert!(
            of(datanode(NodeState::Dead), None).is_over() && !of(datanode(NodeState::Dead), None).is_done()
        );
        assert!(of(datanode(NodeState::Draining), tracker("live")).is_cancelled());
        assert!(!of(datanode(NodeState::Draining), tracker("suspect")).is_cancelled());
    }
}
