//! `mrctl fs fsck` and `safemode`.

use super::{Outcome, expand_all};
use crate::output;
use anyhow::Result;
use daemon::Period;
use dfs_client::{
    self, Client, FileStatus, FsckFile, Health, NodeReport, NodeState, SafemodeStatus, error::Kind,
    path::DfsPath,
};
use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, Instant},
};
use view::files;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a command waits before its first message about the progress.
const FIRST_REPORT_AFTER: Duration = Duration::from_secs(2);
/// The interval between later messages.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Advice for a file with an unreadable block.
const SKIP_LOST_ADVICE: &str = "`mrctl fs get --skip-lost` reads the other blocks of the file";

/// Check that all blocks have their replicas; exit code 1 if not
///
/// With --verify, all DataNodes first read and check their replicas, which can take as long as
/// reading the disks completely.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs fsck\n  mrctl fs fsck /data --wait 60s\n  \
    mrctl fs fsck '/logs/2026-*'\n  \
    mrctl fs fsck --verify --wait 60s     read all replicas\n\n\
    --verify prints how many replicas were read, how many bytes were good, and how\n\
    many replicas were bad; with --json under `verify`. Checks of other clients\n\
    at the same time are included.")]
pub(crate) struct Fsck {
    /// Files, folders or patterns
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// Wait up to this long until all paths are healthy; with --verify, after the replicas were
    /// read
    ///
    /// Waits first until each DataNode of the cluster that has replicas has sent a heartbeat or is
    /// dead. The exit code is 1 if one has not.
    #[arg(long, value_name = "TIME")]
    wait: Option<Period>,
    /// First have all DataNodes read and check their replicas, and wait for the results
    #[arg(long)]
    verify: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show or change safemode, or wait until it is off
///
/// In safemode the NameNode refuses all changes. It leaves safemode by itself when enough blocks
/// have been reported, unless `on` has turned it on: that lasts until `off`, also after a restart
/// of the NameNode.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs safemode\n  mrctl fs safemode wait --timeout 2m\n  mrctl fs safemode off"
)]
pub(crate) struct Safemode {
    /// Action
    #[arg(value_enum, default_value = "get")]
    action: Action,
    /// With `wait`: how long to wait
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: Period,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// Show whether it is on
    Get,
    /// Turn it on; it stays on until it is turned off
    On,
    /// Turn it off
    Off,
    /// Wait until it is off
    Wait,
}

/// Checks `path` repeatedly until it is healthy or the time has passed. Returns the last result.
pub(crate) async fn await_health(
    client: &Client,
    path: &DfsPath,
    wait: Duration,
) -> Result<dfs_client::Fsck> {
    let deadline = Instant::now() + wait;
    let mut next_message = Instant::now() + FIRST_REPORT_AFTER;
    loop {
        let fsck = client.fsck(path).await?;
        let now = Instant::now();
        if fsck.status == Health::Healthy || now >= deadline {
            return Ok(fsck);
        }
        if now >= next_message {
            next_message = now + REPORT_INTERVAL;
            let blocks = files_with_missing_replicas(&fsck).into_iter().flat_map(|file| &file.blocks);
            let lacking = blocks.filter(|block| block.status != Health::Healthy).count() as u64;
            let (blocks, left) = (output::count(lacking, "block"), (deadline - now).as_secs());
            eprintln!("mrctl: {path}: {blocks} without all replicas; waiting up to {left} s more");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until each DataNode with replicas has sent a heartbeat since now or is dead. The replicas
/// of a DataNode that has just died still count. Returns the names of those that sent none until
/// the deadline.
async fn await_heartbeats(client: &Client, deadline: Instant) -> Result<BTreeSet<String>> {
    let began = Instant::now();
    let mut next_message = began + FIRST_REPORT_AFTER;
    loop {
        let waited = began.elapsed();
        let report = client.report().await?;
        let silent = |node: &&NodeReport| {
            node.state != NodeState::Dead
                && node.blocks > 0
                && u128::from(node.last_heartbeat_ms_ago) > waited.as_millis()
        };
        let (silent, now) = (report.nodes.iter().filter(silent), Instant::now());
        let silent: Vec<&NodeReport> = silent.collect();
        if silent.is_empty() || now >= deadline {
            return Ok(silent.iter().map(|node| node.address.node.clone()).collect());
        }
        if now >= next_message {
            next_message = now + REPORT_INTERVAL;
            let (nodes, left): (Vec<String>, _) =
                (silent.iter().map(|node| describe_silence(node)).collect(), (deadline - now).as_secs());
            eprintln!("mrctl: {}; waiting up to {left} s more for a heartbeat", nodes.join(", "));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn describe_silence(node: &NodeReport) -> String {
    let (replicas, age) = (output::count(node.blocks, "replica"), output::age(node.last_heartbeat_ms_ago));
    format!("{} ({replicas}) has sent no heartbeat for {age}", node.address.node)
}

/// Returns the DataNodes with replicas that are suspect, or that are `silent` and not dead.
fn suspect_nodes<'a>(
    report: &'a dfs_client::Report,
    silent: &BTreeSet<String>,
) -> impl Iterator<Item = &'a NodeReport> {
    let is_suspect = |node: &&NodeReport| match node.state {
        NodeState::Dead => false,
        NodeState::Suspect => true,
        _ => silent.contains(&node.address.node),
    };
    report.nodes.iter().filter(|node| node.blocks > 0).filter(is_suspect)
}

pub(crate) async fn fsck(args: Fsck, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let roots = expand_all(client, &args.paths, &mut outcome).await?;
    if roots.is_empty() {
        return Ok(outcome.code());
    }
    let verified = if args.verify { Some(verify(client, &roots).await?) } else { None };
    let deadline = Instant::now() + args.wait.map_or(Duration::ZERO, |wait| wait.0);
    let silent = match args.wait {
        Some(_) => await_heartbeats(client, deadline).await?,
        None => BTreeSet::new(),
    };
    let mut fsck = dfs_client::Fsck::new();
    for root in &roots {
        let left = deadline.saturating_duration_since(Instant::now());
        fsck.add(await_health(client, &root.path, left).await?);
    }
    let report = client.report().await?;
    let suspects: Vec<&NodeReport> = suspect_nodes(&report, &silent).collect();
    if args.json {
        let suspect_nodes = suspects.iter().map(|node| node.address.node.as_str()).collect();
        output::json(&FsckJson { fsck: &fsck, suspect_nodes, verify: verified })?;
    } else {
        if let Some(verified) = verified {
            output::line(verified)?;
        }
        let short =
            if fsck.status == Health::Degraded { repair_outlook(&report, &fsck) } else { String::new() };
        show(&args.paths.join(" "), &fsck, &short)?;
        for node in &suspects {
            let silence = describe_silence(node);
            output::line(format!("suspect: {silence}; its replicas count until it is declared dead"))?;
        }
        for (name, meaning) in files::warnings(&report) {
            output::line(format!("{name}: {meaning}"))?;
        }
    }
    if args.wait.is_some() && !suspects.is_empty() {
        outcome.fail();
    }
    if fsck.status != Health::Healthy || verified.is_some_and(|verified| verified.replicas_not_read > 0) {
        outcome.fail();
    }
    Ok(outcome.code())
}

#[derive(serde::Serialize)]
struct FsckJson<'a> {
    #[serde(flatten)]
    fsck: &'a dfs_client::Fsck,
    /// Suspect DataNodes with replicas. These replicas count.
    suspect_nodes: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<VerifyResult>,
}

/// The result of `--verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
struct VerifyResult {
    replicas_read: u64,
    /// Bytes of the replicas that were read and are correct.
    bytes_verified: u64,
    replicas_bad: u64,
    /// Number of replicas that were not read, because they were deleted in the meantime, were read
    /// for another request within the last minute, or their DataNode stopped.
    replicas_not_read: u64,
}

impl VerifyResult {
    fn new(asked: u64, before: &dfs_client::Report, after: &dfs_client::Report) -> Self {
        let good = after.checks_good_total - before.checks_good_total;
        let replicas_bad = after.checks_bad_total - before.checks_bad_total;
        Self {
            replicas_read: good + replicas_bad,
            bytes_verified: after.checks_good_bytes_total - before.checks_good_bytes_total,
            replicas_bad,
            replicas_not_read: asked.saturating_sub(good + replicas_bad),
        }
    }
}

impl std::fmt::Display for VerifyResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (read, bytes) =
            (output::count(self.replicas_read, "replica"), output::human(self.bytes_verified));
        write!(f, "read {read}: {bytes} verified, {} bad", self.replicas_bad)?;
        match self.replicas_not_read {
            0 => Ok(()),
            left => {
                let left = output::count(left, "replica");
                write!(
                    f,
                    "; {left} not read (deleted, read within the last minute, or a DataNode stopped): try again"
                )
            }
        }
    }
}

/// Has the DataNodes read all replicas of all files below the roots, and waits for their reports.
async fn verify(client: &Client, roots: &[FileStatus]) -> Result<VerifyResult> {
    let before = client.report().await?;
    let mut asked = BTreeSet::new();
    for root in roots {
        for file in client.walk(&root.path).await? {
            let blocks = match client.locate(&file.path, 0, u64::MAX).await {
                Ok((_, blocks)) => blocks,
                // The file was deleted in the meantime.
                Err(error) if error.is(Kind::NotFound) => continue,
                Err(error) => return Err(error.into()),
            };
            for block in blocks {
                for node in block.nodes {
                    if !asked.insert((block.block, node.uuid.clone())) {
                        continue;
                    }
                    match client.check_replica(block.block, &node.uuid, "fsck --verify").await {
                        // The replica was deleted in the meantime and counts as not read.
                        Err(error) if error.is(Kind::NotFound) => {}
                        asked => asked?,
                    }
                }
            }
        }
    }
    let mut next_message = Instant::now() + FIRST_REPORT_AFTER;
    loop {
        let report = client.report().await?;
        if report.epoch != before.epoch {
            anyhow::bail!("the NameNode restarted before all replicas were read: run the command again");
        }
        let pending = report.checks_pending;
        if pending == 0 {
            return Ok(VerifyResult::new(asked.len() as u64, &before, &report));
        }
        if Instant::now() >= next_message {
            next_message = Instant::now() + REPORT_INTERVAL;
            eprintln!("mrctl: {} not read yet", output::count(pending, "replica"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn health_name(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Missing => "MISSING",
        Health::Corrupt => "CORRUPT",
    }
}

/// Returns the files with missing replicas. Surplus replicas are no problem: the NameNode deletes
/// them.
pub(super) fn files_with_missing_replicas(fsck: &dfs_client::Fsck) -> Vec<&FsckFile> {
    fsck.problems.iter().filter(|file| file.status != Health::Healthy).collect()
}

/// Describes whether the cluster has enough live DataNodes to create the missing replicas.
fn repair_outlook(report: &dfs_client::Report, fsck: &dfs_client::Fsck) -> String {
    let live = report.nodes.iter().filter(|node| node.state == NodeState::Live).count();
    let blocks = files_with_missing_replicas(fsck).into_iter().flat_map(|file| &file.blocks);
    let wanted = blocks.filter(|block| block.status != Health::Healthy).map(|block| block.wanted);
    repair_outlook_text(live, report.copies_pending, wanted)
}

fn repair_outlook_text(live: usize, pending: u64, wanted: impl Iterator<Item = u32> + Clone) -> String {
    let possible = |wanted: u32| wanted as usize <= live;
    if pending > 0 || wanted.clone().any(possible) {
        return "the cluster is creating them".into();
    }
    let most = wanted.max().unwrap_or(0);
    format!("{most} replicas are wanted, but the number of live DataNodes is {live}: start more")
}

fn show(what: &str, fsck: &dfs_client::Fsck, repair_outlook: &str) -> Result<()> {
    let problems = files_with_missing_replicas(fsck);
    if !problems.is_empty() {
        let header = ["FILE", "STATE", "BLOCK", "LENGTH", "GOOD", "WANTED", "DAMAGED", "DRAINING"];
        let mut table = output::table(&header, &[3, 4, 5, 6, 7]);
        for file in &problems {
            for block in file.blocks.iter().filter(|block| block.status != Health::Healthy) {
                table.add_row([
                    file.path.to_string(),
                    health_name(block.status).into(),
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
        Health::Degraded => format!("every block can be read, some have too few replicas; {repair_outlook}"),
        Health::Missing => format!(
            "at least one block has no live replica: start a node that has it (`mrctl nodes` shows which are down); {SKIP_LOST_ADVICE}"
        ),
        Health::Corrupt => format!("at least one block has only damaged replicas; {SKIP_LOST_ADVICE}"),
    };
    let problems = match problems.len() as u64 {
        0 => String::new(),
        files => format!("; {} with problems", output::count(files, "file")),
    };
    // A folder is not missing or corrupt: blocks of its files are.
    let state = match fsck.status {
        Health::Healthy | Health::Degraded => format!("is {}", health_name(fsck.status)),
        Health::Missing | Health::Corrupt => format!("has {} blocks", health_name(fsck.status)),
    };
    output::line(format!(
        "{what} {state}: {meaning} ({}, {}, {}{problems})",
        output::count(fsck.files, "file"),
        output::count(fsck.blocks, "block"),
        output::human(fsck.bytes),
    ))
}

pub(crate) async fn safemode(args: Safemode, client: &Client) -> Result<ExitCode> {
    let status = match args.action {
        Action::Get => client.safemode().await?,
        Action::On => client.set_safemode(true).await?,
        Action::Off => client.set_safemode(false).await?,
        Action::Wait => await_safemode_off(client, args.timeout.0).await?,
    };
    if args.json {
        output::json(&status)?;
    } else if status.on {
        output::line(format!("safemode is on: {}", status.cause()))?;
    } else {
        output::line("safemode is off")?;
    }
    let failed = args.action == Action::Wait && status.on;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn await_safemode_off(client: &Client, timeout: Duration) -> Result<SafemodeStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        let status = client.safemode().await?;
        if !status.on || Instant::now() >= deadline {
            return Ok(status);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_outlook_matches_possible_copies() {
        assert_eq!(repair_outlook_text(3, 0, [3, 5].into_iter()), "the cluster is creating them");
        assert_eq!(repair_outlook_text(1, 2, [2].into_iter()), "the cluster is creating them");
        assert_eq!(
            repair_outlook_text(1, 0, [2, 3].into_iter()),
            "3 replicas are wanted, but the number of live DataNodes is 1: start more"
        );
    }

    #[test]
    fn verify_result_counts_read_and_bad_replicas() {
        let mut result =
            VerifyResult { replicas_read: 3, bytes_verified: 2 << 20, replicas_bad: 1, replicas_not_read: 0 };
        assert_eq!(
            result.to_string(),
            format!("read 3 replicas: {} verified, 1 bad", output::human(2 << 20))
        );
        result.replicas_not_read = 1;
        assert!(result.to_string().contains("; 1 replica not read ("), "{result}");
    }

    #[test]
    fn safemode_reason_is_not_repeated() {
        let status = |reason: &str| SafemodeStatus {
            on: true,
            reason: reason.into(),
            blocks_seen: 0,
            blocks_needed: 1,
        };
        assert_eq!(status("safemode is on: 0 of 1 blocks").cause(), "0 of 1 blocks");
        assert_eq!(status("other words").cause(), "other words");
    }
}
