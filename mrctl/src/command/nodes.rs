//! `mrctl nodes`: the datanodes.

use crate::{locate::Target, output};
use anyhow::Result;
use dfs::client::{NodeReport, NodeState};
use std::process::ExitCode;

/// List the datanodes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl nodes\n  mrctl nodes --json")]
pub(crate) struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let report = target.connect().await?.report().await?;
    if args.json {
        output::json(&report.nodes)?;
    } else if report.nodes.is_empty() {
        output::line("no datanode has registered yet")?;
    } else {
        print(&report.nodes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A datanode's state as a word.
pub(crate) fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Live => "live",
        NodeState::Suspect => "suspect",
        NodeState::Dead => "dead",
        NodeState::Draining => "draining",
        NodeState::Drained => "drained",
    }
}

/// The table of datanodes.
pub(crate) fn print(nodes: &[NodeReport]) -> Result<()> {
    let header = ["NAME", "HOST", "RACK", "STATE", "USED", "FREE", "BLOCKS", "HEARD", "NOTE"];
    let mut table = output::table(&header, &[4, 5, 6, 7]);
    let mut nodes: Vec<&NodeReport> = nodes.iter().collect();
    nodes.sort_by(|one, other| natural(&one.address.node).cmp(&natural(&other.address.node)));
    for node in nodes {
        table.add_row([
            node.address.node.clone(),
            node.address.host.clone(),
            node.address.rack.clone(),
            state_word(node.state).into(),
            output::human(node.used),
            output::human(node.free),
            node.blocks.to_string(),
            format!("{} ago", output::age(node.last_heartbeat_ms_ago)),
            note(node),
        ]);
    }
    output::print_table(&table)
}

/// Sorts node10 after node9.
fn natural(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name)
}

fn note(node: &NodeReport) -> String {
    let mut notes = Vec::new();
    if node.state == NodeState::Draining {
        notes.push(format!("{} left", output::count(node.blocks_left_to_drain, "block")));
    }
    if node.failed_volumes > 0 {
        let all = node.volumes + node.failed_volumes;
        notes.push(format!("{} of {all} folders failed", node.failed_volumes));
    }
    notes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn numbered_names_sort_by_number() {
        let mut names = ["node10", "node9", "web", "node1", "b2"];
        names.sort_by(|one, other| natural(one).cmp(&natural(other)));
        assert_eq!(names, ["b2", "node1", "node9", "node10", "web"]);
    }
}
