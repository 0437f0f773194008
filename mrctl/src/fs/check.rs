//! `mrctl fs fsck` and `safemode`.

use crate::output;
use anyhow::Result;
use daemon::Period;
use dfs::{
    client::{self, Client, FsckFile, Health, NodeState, SafemodeStatus},
    path::DfsPath,
};
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(200);

/// Check that every block has its replicas; exit code 1 if not
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs fsck\n  mrctl fs fsck /data --wait 60s\n  \
    mrctl fs fsck --verify --wait 60s         every replica is read; damaged ones are replaced")]
pub(crate) struct Fsck {
    /// File or folder
    #[arg(default_value = "/")]
    path: String,
    /// Wait so long for it to become healthy
    #[arg(long, value_name = "TIME")]
    wait: Option<Period>,
    /// Have every replica re-read by its node; damage shows, and is mended, from then on
    #[arg(long)]
    verify: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Show, set or await the end of safemode
///
/// In safemode nothing can be changed. It ends by itself when enough blocks have been reported.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs safemode\n  mrctl fs safemode wait --timeout 2m\n  mrctl fs safemode off"
)]
pub(crate) struct Safemode {
    /// What to do
    #[arg(value_enum, default_value = "get")]
    action: Action,
    /// With `wait`: how long
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: Period,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// Show it
    Get,
    /// Turn it on, until turned off
    On,
    /// Turn it off
    Off,
    /// Wait until it is over
    Wait,
}

/// The last check when `path` was healthy or the time was up.
pub(crate) async fn await_health(client: &Client, path: &DfsPath, wait: Duration) -> Result<client::Fsck> {
    let deadline = Instant::now() + wait;
    loop {
        let fsck = client.fsck(path).await?;
        if fsck.status == Health::Healthy || Instant::now() >= deadline {
            return Ok(fsck);
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) async fn fsck(args: Fsck, client: &Client) -> Result<ExitCode> {
    let path = DfsPath::parse(&args.path)?;
    if args.verify {
        verify(client, &path).await?;
    }
    let wait = args.wait.map_or(Duration::ZERO, |wait| wait.0);
    let fsck = await_health(client, &path, wait).await?;
    if args.json {
        output::json(&fsck)?;
    } else {
        let short =
            if fsck.status == Health::Degraded { outlook(client, &fsck).await? } else { String::new() };
        show(&path, &fsck, &short)?;
    }
    Ok(if fsck.status == Health::Healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks for a check of every replica of every file below `path`.
async fn verify(client: &Client, path: &DfsPath) -> Result<()> {
    for file in client.walk(path).await? {
        let (_, blocks) = client.locate(&file.path, 0, u64::MAX).await?;
        for block in blocks {
            for node in block.nodes {
                client.check_replica(block.block, &node.uuid, "fsck --verify").await?;
            }
        }
    }
    Ok(())
}

fn word(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Corrupt => "CORRUPT",
    }
}

/// The files that lack something. Replicas too many are none: the cluster takes them away in its own time.
pub(super) fn lacking(fsck: &client::Fsck) -> Vec<&FsckFile> {
    fsck.problems.iter().filter(|file| file.status != Health::Healthy).collect()
}

/// What becomes of blocks with too few replicas.
async fn outlook(client: &Client, fsck: &client::Fsck) -> Result<String> {
    let report = client.report().await?;
    let live = report.nodes.iter().filter(|node| node.state == NodeState::Live).count();
    let blocks = lacking(fsck).into_iter().flat_map(|file| &file.blocks);
    let wanted = blocks.filter(|block| block.status != Health::Healthy).map(|block| block.wanted);
    Ok(outlook_text(live, report.copies_pending, wanted))
}

fn outlook_text(live: usize, pending: u64, wanted: impl Iterator<Item = u32> + Clone) -> String {
    let possible = |wanted: u32| wanted as usize <= live;
    if pending > 0 || wanted.clone().any(possible) {
        return "the cluster is making them".into();
    }
    let most = wanted.max().unwrap_or(0);
    format!("{most} are wanted, live datanodes: {live}; start more")
}

fn show(path: &DfsPath, fsck: &client::Fsck, outlook: &str) -> Result<()> {
    let problems = lacking(fsck);
    if !problems.is_empty() {
        let header = ["FILE", "STATE", "BLOCK", "LENGTH", "GOOD", "WANTED", "DAMAGED", "DRAINING"];
        let mut table = output::table(&header, &[3, 4, 5, 6, 7]);
        for file in &problems {
            for block in file.blocks.iter().filter(|block| block.status != Health::Healthy) {
                table.add_row([
                    file.path.to_string(),
                    word(block.status).into(),
                    block.block.to_string(),
                    block.length.to_string(),
                    block.live.to_string(),
                    block.wanted.to_string(),
                    block.corrupt.to_string(),
                    block.draining.to_string(),
                ]);
            }
        }
        output::print_table(&table)?;
    }
    let meaning = match fsck.status {
        Health::Healthy => "every block has its replicas".into(),
        Health::Degraded => format!("every block can be read, some have too few replicas; {outlook}"),
        Health::Corrupt => {
            "at least one block has no good replica: bring back a node that has one; `mrctl fs \
                             get --skip-lost` reads the rest of its file"
                .into()
        }
    };
    let problems = match problems.len() as u64 {
        0 => String::new(),
        files => format!("; {} with problems", output::count(files, "file")),
    };
    output::line(format!(
        "{path} is {}: {meaning} ({}, {}, {}{problems})",
        word(fsck.status),
        output::count(fsck.files, "file"),
        output::count(fsck.blocks, "block"),
        output::human(fsck.bytes),
    ))
}

pub(crate) async fn safemode(args: Safemode, client: &Client) -> Result<ExitCode> {
    let status = match args.action {
        Action::Get => client.report().await?.safemode,
        Action::On => client.set_safemode(true).await?,
        Action::Off => client.set_safemode(false).await?,
        Action::Wait => await_end(client, args.timeout.0).await?,
    };
    if args.json {
        output::json(&status)?;
    } else if status.on {
        output::line(format!("safemode is on: {}", reason(&status)))?;
    } else {
        output::line("safemode is off")?;
    }
    let failed = args.action == Action::Wait && status.on;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Why, without the words that every message about it begins with.
pub(super) fn reason(status: &SafemodeStatus) -> &str {
    status.reason.strip_prefix("safemode is on: ").unwrap_or(&status.reason)
}

async fn await_end(client: &Client, timeout: Duration) -> Result<SafemodeStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        let status = client.report().await?.safemode;
        if !status.on || Instant::now() >= deadline {
            return Ok(status);
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_promised_only_where_they_can_be_made() {
        assert_eq!(outlook_text(3, 0, [3, 5].into_iter()), "the cluster is making them");
        assert_eq!(outlook_text(1, 2, [2].into_iter()), "the cluster is making them");
        assert_eq!(outlook_text(1, 0, [2, 3].into_iter()), "3 are wanted, live datanodes: 1; start more");
    }

    #[test]
    fn a_reason_is_told_once() {
        let status = |reason: &str| SafemodeStatus {
            on: true,
            reason: reason.into(),
            blocks_seen: 0,
            blocks_needed: 1,
        };
        assert_eq!(reason(&status("safemode is on: 0 of 1 blocks")), "0 of 1 blocks");
        assert_eq!(reason(&status("other words")), "other words");
    }
}
