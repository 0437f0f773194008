//! `mrctl demo`: stores a text, counts its words, kills a DataNode, reads the text again, and waits
//! for the repair. At the end it removes its folder and processes, also after an error or an
//! interrupt.

use crate::{
    fs::await_health,
    output::{self, Meter},
};
use anyhow::{Context, Result, bail, ensure};
use client::{JobTracker, Submission};
use clusters::local::{Kind, Launch, Layout, Overrides, TemporaryCluster};
use daemon::{Bytes, Period};
use dfs_client::{Client, Health, NodeState, PutOptions, PutSource, path::DfsPath};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use view::follow::follow;

const TEXT_BYTES: u64 = 64 << 20;
const KILLED_NODE: &str = "node2";
const REPAIR_TIMEOUT: Duration = Duration::from_mins(1);
const TEXT_WORDS: [&str; 16] = [
    "the", "slot", "waits", "for", "a", "map", "that", "splits", "and", "reduce", "holds", "then", "goes",
    "on", "with", "music",
];

/// Run a demonstration of less than a minute, then remove all of it
///
/// Starts three nodes, counts the words of a text, kills a DataNode, reads the text again, and
/// waits until the cluster has replaced the lost replicas.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl demo")]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> Result<ExitCode> {
    // The cluster, which `run_steps` owns, is dropped before the folder, so that no daemon loses
    // its folder while it runs.
    let folder = TemporaryCluster::create(&std::env::temp_dir(), "fermata-demo-")?;
    tokio::select! {
        result = run_steps(folder.path()) => result?,
        () = daemon::lifecycle::end_signal() => {
            eprintln!("mrctl: interrupted; removing the processes and files of the demo");
            return Ok(ExitCode::FAILURE);
        }
    }
    folder.close()?;
    output::line("\nThe cluster is stopped and removed. Next steps:")?;
    output::line("  mrctl up --detach               start a cluster in ./.fermata")?;
    output::line("  mrctl fs put FILE /FILE         store one of your files")?;
    output::line("  mrctl submit wordcount --input /FILE --output /counts")?;
    output::line("  mrctl chaos kill node2          kill a node; the cluster notices after ten seconds")?;
    output::line("  mrctl fs fsck --wait 60s        wait until the replicas are repaired")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints each step with the time it took.
struct Steps {
    number: u32,
}

impl Steps {
    fn done(&mut self, since: Instant, text: impl std::fmt::Display) -> Result<()> {
        self.number += 1;
        output::line(format!("{}. {text}  [{}]", self.number, output::millis(since.elapsed())))
    }
}

async fn run_steps(folder: &Path) -> Result<()> {
    let mut steps = Steps { number: 0 };
    let since = Instant::now();
    let mut launch = Launch::start(layout(folder)?, None).await?;
    let client = launch.client().await?;
    steps.done(since, "started a cluster of 3 nodes: each stores blocks and runs tasks")?;

    let since = Instant::now();
    let local = folder.join("corpus.txt");
    let before = write_text(&local, TEXT_BYTES)?;
    steps.done(since, format!("wrote {} of text, sha256 {}", output::human(TEXT_BYTES), &before[..16]))?;

    let since = Instant::now();
    let path = DfsPath::parse("/corpus.txt")?;
    let meter = Meter::new("put /corpus.txt", Some(TEXT_BYTES), false);
    let report = client.put(PutSource::File(local), &path, PutOptions::default(), &meter).await?;
    drop(meter);
    let rate = TEXT_BYTES as f64 / since.elapsed().as_secs_f64() / 1e6;
    let blocks = report.status.blocks;
    // The DataNode may report the last replica after the put has ended.
    await_health(&client, &path, REPAIR_TIMEOUT).await?;
    steps.done(since, format!("put it as {blocks} blocks, each on 2 nodes, {rate:.0} MB/s"))?;
    output::line(format!("   replicas: {}", describe_nodes(&client).await?))?;

    count_words(&launch, &client, &mut steps).await?;

    let since = Instant::now();
    let killed = since;
    let victim = launch.state.find(KILLED_NODE, Some(Kind::Datanode))?;
    ensure!(victim.signal(Signal::KILL)?, "{KILLED_NODE} died before the demo could kill it");
    steps
        .done(since, format!("killed {KILLED_NODE}'s datanode (pid {}) with SIGKILL", victim.identity.pid))?;

    let since = Instant::now();
    let after = hash(&client, &path).await?;
    ensure!(before == after, "the content of the file has changed: its sha256 is {after}, expected {before}");
    steps.done(since, "read it again, from the other nodes: the same sha256")?;

    let since = Instant::now();
    await_repair(&client).await?;
    let healed_after = output::millis(killed.elapsed());
    steps.done(since, format!("every block has 2 replicas again, {healed_after} after the kill"))?;
    output::line(format!("   replicas: {}", describe_nodes(&client).await?))?;

    let since = Instant::now();
    launch.stop()?;
    steps.done(since, "stopped everything")
}

/// Runs wordcount on the text and prints the tasks of each node and the ten most frequent words.
async fn count_words(launch: &Launch, client: &Client, steps: &mut Steps) -> Result<()> {
    let since = Instant::now();
    let tracker = JobTracker::connect(&launch.state.jobtracker, None, launch.credentials()?).await?;
    let submission = Submission {
        name: "wordcount".into(),
        builtin: Some("wordcount".into()),
        inputs: vec!["/corpus.txt".into()],
        output: "/counts".into(),
        reduces: 2,
        ..Submission::default()
    };
    let id = tracker.submit(submission).await?;
    let Some(job) = follow(&tracker, &id, false).await? else { bail!("interrupted") };
    ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
    let (maps, reduces) = (job.maps.total, job.reduces.total);
    let local = job.local_maps;
    steps.done(since, format!("counted the words: {maps} maps ({local} node-local), {reduces} reduces"))?;
    let mut ran: BTreeMap<String, u32> = BTreeMap::new();
    for attempt in tracker.tasks(&id).await?.into_iter().flat_map(|task| task.attempts) {
        *ran.entry(attempt.tracker).or_default() += 1;
    }
    let ran: Vec<String> = ran.iter().map(|(node, tasks)| format!("{node} {tasks}")).collect();
    output::line(format!("   tasks: {}", ran.join(", ")))?;
    let mut counts = Vec::new();
    for part in client.glob("/counts/part-*").await? {
        let mut reader = client.open(&part.path).await?;
        let mut bytes = Vec::new();
        while let Some(more) = reader.next().await? {
            bytes.extend_from_slice(&more);
        }
        counts.extend(String::from_utf8_lossy(&bytes).lines().filter_map(|line| {
            let (word, count) = line.split_once('\t')?;
            Some((count.parse::<u64>().ok()?, word.to_owned()))
        }));
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let top: Vec<String> = counts.iter().take(10).map(|(count, word)| format!("{word} {count}")).collect();
    output::line(format!("   most frequent: {}", top.join(", ")))
}

/// Returns the layout of a cluster that detects a dead node within two seconds instead of ten.
fn layout(folder: &Path) -> Result<Layout> {
    let overrides = Overrides {
        nodes: Some(3),
        replication: Some(2),
        block_size: Some(Bytes::mib(8)),
        temporary: true,
        ..Overrides::default()
    };
    let mut layout = Layout::prepare(&folder.join("cluster"), &overrides)?;
    layout.config.namenode.heartbeat = Period::millis(200);
    layout.config.namenode.suspect_after = Period::millis(800);
    layout.config.namenode.dead_after = Period::secs(2);
    layout.config.check()?;
    Ok(layout)
}

/// Writes lines of words and returns the SHA-256 hash of the file in hex.
fn write_text(path: &Path, bytes: u64) -> Result<String> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(failed)?);
    let mut random = SmallRng::seed_from_u64(1);
    let mut hash = Sha256::new();
    let mut left = bytes as usize;
    let mut line = String::new();
    while left > 0 {
        line.clear();
        for _ in 0..12 {
            line.push_str(TEXT_WORDS[random.random_range(0..TEXT_WORDS.len())]);
            line.push(' ');
        }
        line.push('\n');
        line.truncate(left);
        file.write_all(line.as_bytes()).with_context(failed)?;
        hash.update(&line);
        left -= line.len();
    }
    file.flush().with_context(failed)?;
    Ok(hex(&hash.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

async fn hash(client: &Client, path: &DfsPath) -> Result<String> {
    let mut reader = client.open(path).await?;
    let mut hash = Sha256::new();
    while let Some(bytes) = reader.next().await? {
        hash.update(&bytes);
    }
    Ok(hex(&hash.finalize()))
}

/// Describes each node: its number of replicas and its state.
async fn describe_nodes(client: &Client) -> Result<String> {
    let nodes = client.report().await?.nodes;
    let parts: Vec<String> = nodes
        .iter()
        .map(|node| {
            let state = view::nodes::state_name(node.state);
            format!("{} {} ({state})", node.address.node, node.blocks)
        })
        .collect();
    Ok(parts.join(", "))
}

/// Waits until the NameNode counts the node as dead, then until all blocks are repaired. Without
/// the first wait, the file system would still look healthy.
async fn await_repair(client: &Client) -> Result<()> {
    let deadline = Instant::now() + REPAIR_TIMEOUT;
    loop {
        let report = client.report().await?;
        let dead =
            |node: &dfs_client::NodeReport| node.address.node == KILLED_NODE && node.state == NodeState::Dead;
        if report.nodes.iter().any(dead) {
            break;
        }
        ensure!(Instant::now() < deadline, "the NameNode did not notice that {KILLED_NODE} is dead");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let fsck = await_health(client, &DfsPath::root(), REPAIR_TIMEOUT).await?;
    ensure!(
        fsck.status == Health::Healthy,
        "not healthy {} s after {KILLED_NODE} died",
        REPAIR_TIMEOUT.as_secs()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_requested_length_and_the_returned_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let hash = write_text(&path, 100_001).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 100_001);
        assert_eq!(hash, hex(&Sha256::digest(&bytes)));
        assert_eq!(hex(&[0, 255]), "00ff");
    }

    #[test]
    fn demo_detects_a_dead_node_quickly() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path()).unwrap();
        assert_eq!(layout.config.namenode.dead_after, Period::secs(2));
        assert_eq!((layout.nodes, layout.config.namenode.replication), (3, 2));
    }
}
