//! The messages of `mrctl drain`: the work to do, the work done, and why a node is not drained.

use super::DrainProgress;
use crate::output;
use client::model::{DrainCost, DrainState};
use daemon::Period;
use dfs_client::{DrainBlock, DrainStatus, NodeState};
use serde::Serialize;

/// The maximum number of blocks that an error message lists.
const EXAMPLE_BLOCKS_MAX: usize = 2;

/// The output of `--json`.
#[derive(Serialize)]
pub(super) struct DrainJson<'a> {
    #[serde(flatten)]
    pub(super) status: &'a DrainProgress<'a>,
    #[serde(flatten)]
    pub(super) more: serde_json::Value,
}

fn count(number: u32, thing: &str) -> String {
    output::count(number.into(), thing)
}

/// Describes what runs and what is stored on the tracker before the drain.
pub(super) fn describe_tracker(tracker: &DrainState) -> String {
    let DrainState {
        maps_running,
        reduces_running,
        outputs,
        output_bytes,
        checkpoints,
        checkpoint_bytes,
        ..
    } = tracker;
    let runs = format!("runs {} and {}", count(*maps_running, "map"), count(*reduces_running, "reduce"));
    let files = [(*outputs, "map output", *output_bytes), (*checkpoints, "checkpoint", *checkpoint_bytes)];
    let needed: Vec<String> = files
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, thing, bytes)| format!("{} ({})", count(number, thing), output::human(bytes)))
        .collect();
    let needed = if needed.is_empty() { "no files".to_owned() } else { needed.join(" and ") };
    format!("{runs}, and has {needed} that jobs need")
}

/// Describes what the drain has done and what work was lost.
pub(super) fn describe_cost(cost: &DrainCost) -> String {
    let done = format!(
        "{} split, {} paused, {} ({}) and {} ({}) moved",
        count(cost.splits, "map"),
        count(cost.pauses, "reduce"),
        count(cost.outputs, "map output"),
        output::human(cost.output_bytes),
        count(cost.checkpoints, "checkpoint"),
        output::human(cost.checkpoint_bytes)
    );
    if cost.kills + cost.redone == 0 {
        return format!("{done}; no work lost");
    }
    let lost = std::time::Duration::from_millis(cost.ms_lost);
    format!(
        "{done}; lost: {} killed after {} of work, {} could not be moved and must be recomputed",
        count(cost.kills, "attempt"),
        output::millis(lost),
        count(cost.redone, "output")
    )
}

/// Describes the work that remains until the node is drained.
pub(super) fn describe_remaining_work(status: &DrainProgress<'_>) -> String {
    let mut parts = Vec::new();
    if let Some(datanode) = &status.datanode {
        parts.push(output::count(datanode.blocks_left, "block"));
    }
    if let Some(tracker) = &status.tracker {
        let things = [
            (tracker.maps_running + tracker.reduces_running, "running task"),
            (tracker.outputs, "map output"),
            (tracker.checkpoints, "checkpoint"),
        ];
        parts.extend(
            things.iter().filter(|(number, _)| *number > 0).map(|(number, what)| count(*number, what)),
        );
    }
    format!("{} left", parts.join(", "))
}

/// Returns the error message for a node that is not drained: why, and what to do.
pub(super) fn not_drained_message(status: &DrainProgress<'_>, deadline: &Period) -> String {
    let node = status.node;
    if status.is_cancelled() {
        return format!("{node} is in use again: the drain was cancelled");
    }
    if let Some(datanode) = status.datanode.as_ref().filter(|status| status.state != NodeState::Drained)
        && let Some(why) = describe_stuck_blocks(node, datanode)
    {
        return why;
    }
    let examples = status.datanode.as_ref().map_or_else(String::new, examples);
    let alone =
        status.tracker.as_ref().is_some_and(|tracker| tracker.others == 0 && tracker.state != "drained");
    let alone = if alone { "; no other tracker accepts work: start more" } else { "" };
    let silent =
        status.tracker.as_ref().is_some_and(|tracker| ["suspect", "awaited"].contains(&&*tracker.state));
    let silent = if silent {
        "; its tracker sends no heartbeats: its tasks restart elsewhere once it is lost"
    } else {
        ""
    };
    format!(
        "{node} is not drained after {deadline}: {}{examples}{alone}{silent}; the drain continues: run the same command to watch it, or --cancel",
        describe_remaining_work(status)
    )
}

fn describe_stuck_blocks(node: &str, status: &DrainStatus) -> Option<String> {
    if status.state == NodeState::Dead {
        return Some(format!(
            "{node} is dead: blocks without a replica elsewhere are missing; start it again, or --cancel"
        ));
    }
    status.stuck.then(|| {
        format!(
            "{node} is not drained, because too few nodes remain: {} cannot hold all replicas of {}{}; start more, lower the \
             replication with `mrctl fs setrep`, or --cancel",
            output::count(status.staying.into(), "DataNode"),
            output::count(status.blocks_left, "block"),
            examples(status)
        )
    })
}

/// Returns some of the blocks that prevent the drain from ending.
fn examples(status: &DrainStatus) -> String {
    let examples: Vec<String> = status.examples.iter().take(EXAMPLE_BLOCKS_MAX).map(example).collect();
    let more = if status.blocks_left > examples.len() as u64 { "; ..." } else { "" };
    if examples.is_empty() { String::new() } else { format!(" ({}{more})", examples.join("; ")) }
}

fn example(block: &DrainBlock) -> String {
    let DrainBlock { block, path, wanted, have, why } = block;
    if *wanted == 0 {
        return format!("{block} of {path}: {why}");
    }
    format!("{block} of {path} has {have} of {wanted} elsewhere: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::{ids::BlockId, path::DfsPath};

    #[test]
    fn message_names_what_prevents_the_drain() {
        let block = DrainBlock {
            block: BlockId(7),
            path: DfsPath::parse("/a").unwrap(),
            wanted: 2,
            have: 1,
            why: "datanodes that remain: 1".into(),
        };
        let datanode = DrainStatus {
            state: NodeState::Draining,
            blocks_left: 3,
            stuck: true,
            staying: 1,
            examples: vec![block],
        };
        let mut status = DrainProgress { node: "n1", datanode: Some(datanode), tracker: None };
        let text = not_drained_message(&status, &Period::secs(5));
        assert!(
            text.contains("too few nodes remain: 1 DataNode cannot hold all replicas of 3 blocks"),
            "{text}"
        );
        assert!(text.contains("of /a has 1 of 2 elsewhere") && text.contains("; ..."), "{text}");
        status.datanode.as_mut().unwrap().stuck = false;
        assert!(
            not_drained_message(&status, &Period::secs(5))
                .starts_with("n1 is not drained after 5s: 3 blocks left")
        );
        let tracker = DrainState { state: "draining".into(), outputs: 2, ..DrainState::default() };
        status = DrainProgress { node: "n1", datanode: None, tracker: Some(tracker) };
        let text = not_drained_message(&status, &Period::secs(5));
        assert!(text.contains("2 map outputs left; no other tracker accepts work"), "{text}");
    }

    #[test]
    fn description_of_a_tracker_omits_absent_kinds_of_files() {
        let idle = DrainState { maps_running: 1, ..DrainState::default() };
        assert_eq!(describe_tracker(&idle), "runs 1 map and 0 reduces, and has no files that jobs need");
        let has = DrainState { outputs: 2, output_bytes: 2048, ..idle };
        let text = describe_tracker(&has);
        assert!(text.contains("and has 2 map outputs (") && !text.contains("checkpoint"), "{text}");
    }

    #[test]
    fn cost_mentions_killed_attempts_only_if_work_was_lost() {
        let mut done = DrainCost { splits: 2, outputs: 3, output_bytes: 2048, ..DrainCost::default() };
        let text = describe_cost(&done);
        assert!(text.starts_with("2 maps split") && text.ends_with("no work lost"), "{text}");
        (done.kills, done.ms_lost) = (1, 1500);
        assert!(describe_cost(&done).contains("1 attempt killed after"), "{}", describe_cost(&done));
    }
}
