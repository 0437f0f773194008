//! `mrctl nodes`: lists the nodes, the data they store and the attempts they run.

use crate::{fs::print_nodes, output};
use anyhow::Result;
use client::{model::Tracker, scheduling::Throughput};
use clusters::locate::Target;
use dfs_client::NodeState;
use std::{process::ExitCode, time::Duration};
use view::{
    files,
    nodes::{merge_by_name, natural_sort_key, state_name, tracker_heartbeat},
};

/// How long `mrctl nodes forget` waits for the NameNode.
const NAMENODE_TIMEOUT: Duration = Duration::from_secs(2);

/// List the nodes, the data they store and the attempts they run
///
/// States of a DataNode and of a TaskTracker:
///
///   live      heartbeats arrive
///   suspect   heartbeats are late: no new blocks or tasks
///   dead      DataNode given up: its blocks are copied from other replicas
///   lost      TaskTracker given up: its tasks run elsewhere; `mrctl nodes
///             forget` removes it from the list
///   awaited   TaskTracker known before a restart of the JobTracker, not
///             registered again yet; then live, or lost after a timeout
///   draining  `mrctl drain` moves its blocks or its work to other nodes
///   drained   nothing is left on it: it can be stopped
///
/// If the JobTracker is unreachable, the table has only the DataNodes and the
/// exit code is 1. `mrctl fs report` uses only the NameNode.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  mrctl nodes\n  mrctl nodes --rates\n  mrctl nodes --json\n  mrctl nodes forget node7",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show how fast each TaskTracker has run attempts, also compared with the others
    ///
    /// Only successful attempts count, each from its launch until the JobTracker knows its success.
    /// A map: bytes of input per second. A reduce: bytes of output per second, from the end of the
    /// last map. A node runs several attempts at a time, so this is not the rate of the node. A
    /// speed of 1.00 is the geometric mean of all attempts of the same jobs. A job that ran on one
    /// node gives no speed.
    #[arg(long)]
    rates: bool,
    /// Print JSON: one array, with the rates of each tracker
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Remove a lost TaskTracker from the list
    ///
    /// A tracker that has been lost for `jobtracker.forget_after` is removed automatically. A
    /// tracker that comes back registers again. A dead DataNode of the same name stays in the list
    /// until it comes back or the NameNode is restarted.
    Forget {
        /// Name of the node
        name: String,
    },
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    if let Some(Action::Forget { name }) = &args.action {
        target.jobtracker().await?.forget_node(name).await?;
        output::line(forgotten(name, state_of_datanode(name, target).await))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rates && !args.json {
        return print_rates(&target.jobtracker().await?.trackers().await?);
    }
    let report = target.connect().await?.report().await?;
    let asked = async { anyhow::Ok(target.jobtracker().await?.trackers_and_notices().await?) };
    let ((trackers, notices), missing) = match asked.await {
        Ok(found) => (found, None),
        Err(error) => (<_>::default(), Some(error)),
    };
    for (_, warning) in files::warnings(&report) {
        eprintln!("mrctl: warning: {warning}");
    }
    for notice in notices {
        eprintln!("mrctl: warning: {notice}");
    }
    if args.json {
        output::json(&merge_by_name(&report.nodes, &trackers))?;
    } else {
        if report.nodes.is_empty() {
            output::line("no DataNode has registered yet")?;
        } else {
            print_nodes(&report.nodes)?;
        }
        if missing.is_none() {
            print_trackers(&trackers)?;
        }
    }
    let Some(error) = missing else { return Ok(ExitCode::SUCCESS) };
    eprintln!("mrctl: TaskTrackers are not shown: {}", output::chain(&error));
    // An unreachable JobTracker is an error only if the cluster is known to have one.
    Ok(if target.has_jobtracker()? { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the state of the DataNode with this name; None if there is none, or if the NameNode does
/// not answer soon.
async fn state_of_datanode(name: &str, target: &Target) -> Option<NodeState> {
    let asked = async { anyhow::Ok(target.connect().await?.report().await?) };
    let report = tokio::time::timeout(NAMENODE_TIMEOUT, asked).await.ok()?.ok()?;
    Some(report.nodes.iter().find(|node| node.address.node == name)?.state)
}

/// Describes what `mrctl nodes forget` has removed, and what stays.
fn forgotten(name: &str, datanode: Option<NodeState>) -> String {
    let removed = format!("TaskTracker {name} was removed from the list");
    let Some(state) = datanode else { return removed };
    let until = match state {
        NodeState::Dead => " until it comes back or the NameNode is restarted",
        _ => "",
    };
    format!("{removed}; DataNode {name} ({}) stays in the list{until}", state_name(state))
}

fn print_trackers(trackers: &[Tracker]) -> Result<()> {
    output::line("")?;
    if trackers.is_empty() {
        return output::line("no TaskTracker has registered yet");
    }
    let mut table =
        output::table(&["TASKTRACKER", "RACK", "STATE", "MAPS", "REDUCES", "HEARTBEAT"], &[3, 4, 5]);
    let mut trackers: Vec<&Tracker> = trackers.iter().collect();
    trackers.sort_by(|one, other| natural_sort_key(&one.name).cmp(&natural_sort_key(&other.name)));
    for tracker in trackers {
        table.add_row([
            tracker.name.clone(),
            tracker.rack.clone(),
            tracker.state.clone(),
            format!("{}/{}", tracker.maps_running, tracker.map_slots),
            format!("{}/{}", tracker.reduces_running, tracker.reduce_slots),
            tracker_heartbeat(tracker),
        ]);
    }
    output::print_table(&table)
}

const RATES_HELP: &str = "
MAPS, REDUCES: attempts measured. MAP INPUT, REDUCE OUTPUT: mean rate of one attempt, including its start.
SPEED: 1.00 is the mean of all attempts of the same jobs, 2.00 is twice as fast; - is unknown.";

fn print_rates(trackers: &[Tracker]) -> Result<ExitCode> {
    if trackers.is_empty() {
        output::line("no TaskTracker has registered yet")?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print_table(&rates(trackers))?;
    output::line(RATES_HELP)?;
    Ok(ExitCode::SUCCESS)
}

fn rates(trackers: &[Tracker]) -> comfy_table::Table {
    let header =
        ["TASKTRACKER", "MAPS", "MAP INPUT", "MAP SPEED", "REDUCES", "REDUCE OUTPUT", "REDUCE SPEED"];
    let mut table = output::table(&header, &[1, 2, 3, 4, 5, 6]);
    let mut trackers: Vec<&Tracker> = trackers.iter().collect();
    trackers.sort_by(|one, other| natural_sort_key(&one.name).cmp(&natural_sort_key(&other.name)));
    let cells = |pace: &Throughput| {
        let known = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
        let rate = pace.bytes_per_second.map(|rate| format!("{}/s", output::human(rate as u64)));
        let speed = pace.speed.map(|speed| format!("{speed:.2}"));
        [pace.attempts.to_string(), known(rate), known(speed)]
    };
    for tracker in trackers {
        let (maps, reduces) = (cells(&tracker.map_rates), cells(&tracker.reduce_rates));
        table.add_row([tracker.name.clone()].into_iter().chain(maps).chain(reduces));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_page_explain_each_state() {
        use dfs_client::NodeState::{Dead, Drained, Draining, Live, Suspect};
        let command = <Args as clap::Args>::augment_args(clap::Command::new("nodes"));
        let help = command.get_long_about().unwrap().to_string();
        let page = include_str!("../../../docs/operate/README.md");
        let states = [Live, Suspect, Dead, Draining, Drained].map(state_name);
        for state in states.into_iter().chain(["lost", "awaited"]) {
            assert!(help.contains(&format!("\n  {state} ")), "{state}: {help}");
            assert!(page.contains(&format!("\n| `{state}` |")), "{state}");
        }
    }

    #[test]
    fn forget_says_that_a_dead_datanode_stays() {
        assert_eq!(forgotten("n", None), "TaskTracker n was removed from the list");
        let text = "TaskTracker n was removed from the list; DataNode n (dead) stays in the list until it \
            comes back or the NameNode is restarted";
        assert_eq!(forgotten("n", Some(NodeState::Dead)), text);
    }

    #[test]
    fn unknown_rates_are_blank() {
        let tracker = |name: &str, map_rates: Throughput| Tracker {
            name: name.into(),
            host: name.into(),
            rack: "rack1".into(),
            state: "live".into(),
            map_slots: 2,
            reduce_slots: 1,
            maps_running: 0,
            reduces_running: 0,
            last_heartbeat_ms_ago: 0,
            map_rates,
            reduce_rates: Throughput::default(),
        };
        let known = Throughput { attempts: 3, bytes_per_second: Some(2_097_152.0), speed: Some(1.5) };
        let trackers = [tracker("node10", Throughput::default()), tracker("node2", known)];
        let lines = output::table_lines(&rates(&trackers));
        let text = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = lines.iter().map(text).collect();
        assert_eq!(
            lines,
            [
                "TASKTRACKER MAPS MAP INPUT MAP SPEED REDUCES REDUCE OUTPUT REDUCE SPEED",
                "node2 3 2.00 MiB/s 1.50 0 - -",
                "node10 0 - - 0 - -"
            ]
        );
        let json = serde_json::to_value(&trackers[0]).unwrap();
        assert_eq!(json["map_rates"]["speed"], serde_json::Value::Null, "{json}");
    }
}
