//! `mrctl up`: a whole cluster as real processes on loopback, ready when it says so.

use crate::{
    cluster::{ClusterState, Launch, Layout, Overrides, lock},
    locate::{FOLDER, dir_flag},
    output,
};
use anyhow::{Result, bail};
use daemon::Bytes;
use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, time::Duration};

const WATCH: Duration = Duration::from_millis(500);

/// Start a cluster on this machine
///
/// Real processes on loopback: a namenode and a jobtracker, and nodes with a datanode and a tasktracker each.
/// Started again in the same folder after `mrctl down`, it has the same files and the same shape. Settings come
/// from --config, else from ./fermata.toml, else from the folder's own copy of those it had; flags go over them.
/// Addresses and folders of the daemons are always its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl up                                   in the foreground; Ctrl-C stops it\n  \
    mrctl up --detach                          come back when it is ready\n  \
    mrctl up --nodes 6 --racks 2 --replication 3 --detach\n  \
    mrctl up --config my.toml --detach         with settings of your own\n\n\
    `jobtracker --print-config` prints every setting with its default.")]
pub(crate) struct Args {
    /// Nodes, each a datanode and a tasktracker [default: 3, or as the folder was made with]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=200))]
    nodes: Option<u32>,
    /// Replicas of each block, unless a file asks otherwise [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    replication: Option<u32>,
    /// Block size, unless a file asks otherwise [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Bytes>,
    /// Racks that the datanodes are dealt to in turn [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200))]
    racks: Option<u32>,
    /// Folder for data, logs and configuration
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    dir: PathBuf,
    /// Port of the namenode [default: a free one]
    #[arg(long, value_name = "PORT")]
    namenode_port: Option<u16>,
    /// Maps at a time on each node [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    map_slots: Option<u32>,
    /// Reduces at a time on each node [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reduce_slots: Option<u32>,
    /// Scheduling policy, such as fair or 'chronos(fair)'; `mrctl schedulers` describes them [default: fifo]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// A second policy that decides without effect, for `mrctl shadow`; empty for none
    #[arg(long, value_name = "NAME")]
    shadow: Option<String>,
    /// Return when the cluster is ready, and leave it running
    #[arg(long)]
    detach: bool,
}

/// `config`: settings for all daemons, under the flags; the global flag's file, or the one in the current folder.
pub(crate) async fn run(args: Args, config: Option<PathBuf>) -> Result<ExitCode> {
    let overrides = Overrides {
        nodes: args.nodes,
        racks: args.racks,
        replication: args.replication,
        block_size: args.block_size,
        config,
        map_slots: args.map_slots,
        reduce_slots: args.reduce_slots,
        scheduler: args.scheduler,
        shadow: args.shadow,
    };
    // Flags that make no sense are refused before anything is made.
    Layout::prepare(&args.dir, &overrides)?;
    let held = lock(&args.dir)?;
    refuse_twice(&args.dir)?;
    let layout = Layout::prepare(&args.dir, &overrides)?;
    note_fewer_nodes(&layout);
    // Listening begins once and goes on: a signal between two listeners would be lost.
    let mut stop = std::pin::pin!(super::end_signal());
    let mut launch = tokio::select! {
        launch = Launch::start(layout, args.namenode_port) => launch?,
        () = &mut stop => bail!("interrupted while starting: nothing is left running"),
    };
    drop(held);
    if args.detach {
        launch.keep();
    }
    output::line(ready(&launch))?;
    let dir = dir_flag(Some(&args.dir));
    if !dir.is_empty() {
        let file = args.dir.join("fermata.toml");
        output::line(format!("use it with: mrctl --config {}, or FERMATA_CONFIG", output::shell(&file)))?;
    }
    if args.detach {
        output::line(format!("stop it with: mrctl down{dir}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line("running in the foreground; Ctrl-C stops it")?;
    watch(&mut launch, stop, &dir).await
}

fn note_fewer_nodes(layout: &Layout) {
    if let Some(before) = layout.nodes_before {
        let missing = layout.nodes + 1;
        eprintln!(
            "mrctl: note: this folder was made with {before} nodes; blocks only on node{missing} and up are missing"
        );
    }
}

fn refuse_twice(folder: &std::path::Path) -> Result<()> {
    let Some(state) = ClusterState::load(folder)? else { return Ok(()) };
    let Some(running) = state.running_words() else { return Ok(()) };
    bail!(
        "a cluster already runs in {} ({running}): stop it with `mrctl down{}`, or give this one another --dir",
        folder.display(),
        dir_flag(Some(folder))
    )
}

fn ready(launch: &Launch) -> String {
    let Launch { layout, state, .. } = launch;
    let racks = if layout.racks == 1 { String::new() } else { format!(" in {} racks", layout.racks) };
    let nodes = if layout.nodes == 1 { "1 node".into() } else { format!("{} nodes", layout.nodes) };
    format!(
        "ready: jobtracker at {}, namenode at {}, {nodes}{racks}, replication {}, blocks of {}; folder {}",
        state.jobtracker,
        state.namenode,
        layout.config.namenode.replication,
        layout.config.namenode.block_size,
        layout.folder.display()
    )
}

/// Stays until told to stop, or until `mrctl down` has stopped the cluster from elsewhere. Says which daemons
/// die meanwhile; starting them again is the user's (or a chaos test's) decision.
async fn watch(
    launch: &mut Launch,
    mut stop: impl Future<Output = ()> + Unpin,
    dir: &str,
) -> Result<ExitCode> {
    let folder = launch.layout.folder.clone();
    let mut dead = BTreeSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = tokio::time::sleep(WATCH) => {}
        }
        launch.reap();
        let Some(state) = ClusterState::load(&folder)? else {
            launch.keep();
            output::line("stopped by `mrctl down`")?;
            return Ok(ExitCode::SUCCESS);
        };
        for daemon in &state.daemons {
            if daemon.is_running() {
                dead.remove(&daemon.title());
            } else if dead.insert(daemon.title()) {
                let (title, name, log) = (daemon.title(), &daemon.name, daemon.log.display());
                eprintln!(
                    "mrctl: {title} has died (see {log}): start it again with `mrctl chaos restart {name}{dir}`"
                );
            }
        }
        launch.state = state;
    }
    let _held = lock(&folder)?;
    // Restarted daemons are not our children: take them from the file.
    if let Some(state) = ClusterState::load(&folder)? {
        launch.state = state;
    }
    launch.stop()?;
    output::line("stopped; the data stays, `mrctl up` starts again with it")?;
    Ok(ExitCode::SUCCESS)
}
