//! `mrctl fs stat` and `report`.

use super::{Outcome, expand_all};
use crate::output;
use anyhow::Result;
use comfy_table::Table;
use dfs_client::{Client, FileStatus, LocatedBlock, NodeReport};
use serde::Serialize;
use std::process::ExitCode;
use view::nodes::{heartbeat, natural_sort_key, note, of_volumes, state_name};

/// Show the properties of a file or folder
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs stat /data\n  mrctl fs stat --blocks /data/big    nodes of each block"
)]
pub(crate) struct Stat {
    /// Files, folders or patterns
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Show each block and its nodes
    #[arg(short, long)]
    blocks: bool,
    /// Print JSON: one array
    #[arg(long)]
    json: bool,
}

/// Show the state of the file system
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs report\n  mrctl fs report --json")]
pub(crate) struct Report {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file, with its blocks if `--blocks` is given.
#[derive(Debug, Serialize)]
struct FileDetail {
    #[serde(flatten)]
    status: FileStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    locations: Option<Vec<LocatedBlock>>,
}

pub(crate) async fn stat(args: Stat, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let mut details = Vec::new();
    for status in expand_all(client, &args.paths, &mut outcome).await? {
        let locations = if args.blocks && !status.is_dir {
            match client.locate(&status.path, 0, status.length).await {
                Ok((_, blocks)) => Some(blocks),
                Err(error) => {
                    outcome.note(error.into())?;
                    continue;
                }
            }
        } else {
            None
        };
        details.push(FileDetail { status, locations });
    }
    if args.json {
        output::json(&details)?;
    } else {
        for (at, detail) in details.iter().enumerate() {
            if at > 0 {
                output::line("")?;
            }
            show(detail)?;
        }
    }
    Ok(outcome.code())
}

fn show(detail: &FileDetail) -> Result<()> {
    let status = &detail.status;
    let mut table: Table = output::table(&[], &[]);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("path", status.path.to_string());
    row("kind", if status.is_dir { "folder".into() } else { "file".into() });
    row("id", status.file_id.0.to_string());
    if !status.is_dir {
        row("size", format!("{} ({})", output::human(status.length), output::count(status.length, "byte")));
        row("blocks", format!("{} of up to {}", status.blocks, daemon::Bytes(status.block_size)));
        row("replicas", status.replication.to_string());
    }
    row("owner", format!("{}:{}", status.owner, status.group));
    row("mode", format!("{} ({:o})", output::permissions(status.is_dir, status.mode), status.mode));
    row("changed", output::utc(status.modified_ms));
    row("used", output::utc(status.accessed_ms));
    if status.open {
        row("open", "being written".into());
    }
    if let Some(quota) = status.quota {
        let limit = |value: Option<String>| value.unwrap_or_else(|| "no limit".into());
        let (files, space) = (quota.files.map(|files| files.to_string()), quota.space.map(output::human));
        row("quota", format!("files {}, space {}", limit(files), limit(space)));
    }
    output::print_table(&table)?;
    let Some(blocks) = &detail.locations else { return Ok(()) };
    let mut table = output::table(&["BLOCK", "OFFSET", "LENGTH", "NODES"], &[1, 2]);
    for block in blocks {
        let nodes: Vec<&str> = block.nodes.iter().map(|node| node.node.as_str()).collect();
        table.add_row([
            block.block.to_string(),
            block.offset.to_string(),
            block.length.to_string(),
            match nodes.as_slice() {
                [] if block.damaged_on.is_empty() => "none: the block is missing".into(),
                [] => format!("none: damaged on {}", block.damaged_on.join(", ")),
                nodes => nodes.join(", "),
            },
        ]);
    }
    output::print_table(&table)
}

pub(crate) async fn report(args: Report, client: &Client) -> Result<ExitCode> {
    let report = client.report().await?;
    if args.json {
        output::json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table: Table = output::table(&[], &[]);
    for (name, value) in view::files::facts(&report) {
        table.add_row([name.to_owned(), value]);
    }
    output::print_table(&table)?;
    output::line("")?;
    if report.nodes.is_empty() {
        output::line("no DataNode has registered yet")?;
    } else {
        print_nodes(&report.nodes)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn print_nodes(nodes: &[NodeReport]) -> Result<()> {
    let header = ["DATANODE", "HOST", "RACK", "STATE", "USED", "FREE", "BLOCKS", "HEARTBEAT", "NOTE"];
    let mut table = output::table(&header, &[4, 5, 6, 7]);
    let mut nodes: Vec<&NodeReport> = nodes.iter().collect();
    nodes.sort_by(|one, other| {
        natural_sort_key(&one.address.node).cmp(&natural_sort_key(&other.address.node))
    });
    for node in nodes {
        table.add_row([
            node.address.node.clone(),
            node.address.host.clone(),
            node.address.rack.clone(),
            state_name(node.state).into(),
            of_volumes(node, |node| output::human(node.used)),
            of_volumes(node, |node| output::human(node.free)),
            of_volumes(node, |node| node.blocks.to_string()),
            heartbeat(node.last_heartbeat_ms_ago),
            note(node),
        ]);
    }
    output::print_table(&table)
}
