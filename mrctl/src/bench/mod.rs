//! `mrctl bench`: each figure of the file system (`dfs`), of jobs (`mr`), of preempted slots (`preempt`) and of policies
//! (`schedulers`) beside its limit and its baseline, from the same run.
//!
//! Rounds of a figure and of its baseline alternate and the median counts, because machines are noisy. A
//! figure is not a test: the exit code says whether it was measured, the last column whether it is met.

mod bytes;
mod measurement;
mod mr;
mod names;
mod scale;
mod schedulers;
mod socket;
mod wire;

use crate::{
    cluster::{Launch, Layout, Overrides, temporary},
    command::cluster::certify,
    output::{self, Usage},
};
use anyhow::{Context, Result, ensure};
use daemon::Bytes;
use measurement::Measurement;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    Dfs(Dfs),
    Mr(mr::Args),
    /// Preemption: how soon they are free, what it costs, and what a kill would have cost
    Preempt(mr::preempt::Args),
    Load(mr::load::Args),
    /// Policies: how long a decision takes, a linear program, and ten thousand heartbeats
    Schedulers(schedulers::Args),
    /// The plain programs that jobs are measured against; run as a process of their own, to be measured
    #[command(hide = true, override_usage = plain::USAGE)]
    Plain {
        /// Which, and its arguments
        arguments: Vec<String>,
    },
}

/// The file system: bytes in and out, names, memory, start-up
///
/// Starts clusters of its own in a temporary folder and removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl bench dfs\n  \
    mrctl bench dfs --size 4GiB --only write,read --dir /mnt/disk1\n  \
    mrctl bench dfs --only write,read,stats,creates --tls    beside a run without\n  \
    mrctl bench dfs --only memory,replay --blocks 50000      a quicker look")]
pub(crate) struct Dfs {
    /// Bytes to write and read
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: Bytes,
    /// Only these figures
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT,...")]
    only: Vec<What>,
    /// Blocks to make for memory and replay
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    blocks: u64,
    /// Folder on the disk to measure [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// With certificates: TLS on every connection
    #[arg(long)]
    tls: bool,
    /// As JSON: one array of figures
    #[arg(long)]
    json: bool,
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Bytes in, one replica
    Write,
    /// Bytes out, over TCP and from the local file
    Read,
    /// Questions a second
    Stats,
    /// Durable files a second
    Creates,
    /// Namenode's memory per block and per file
    Memory,
    /// Namenode's start-up
    Replay,
}

pub(crate) async fn run(command: BenchCommand) -> Result<ExitCode> {
    let (dir, json) = match &command {
        BenchCommand::Dfs(args) => (&args.dir, args.json),
        BenchCommand::Mr(args) => (&args.dir, args.json),
        BenchCommand::Preempt(args) => (&args.dir, args.json),
        BenchCommand::Load(args) => (&args.dir, args.json),
        BenchCommand::Plain { arguments } => {
            plain::run(arguments)?;
            return Ok(ExitCode::SUCCESS);
        }
        BenchCommand::Schedulers(args) => {
            print(&schedulers::measure(args)?, args.json)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let folder = temporary(dir, "fermata-bench-")?;
    let measuring = async {
        match &command {
            BenchCommand::Dfs(args) => measure(args, folder.path()).await,
            BenchCommand::Mr(args) => mr::measure(args, folder.path()).await,
            BenchCommand::Preempt(args) => mr::preempt::measure(args, folder.path()).await,
            BenchCommand::Load(args) => mr::load::measure(args, folder.path()).await,
            BenchCommand::Plain { .. } | BenchCommand::Schedulers(_) => Ok(vec![]),
        }
    };
    // As in the demo: the cluster inside is dropped before its folder.
    let figures = tokio::select! {
        figures = measuring => figures?,
        () = crate::command::end_signal() => {
            eprintln!("mrctl: interrupted; the benchmark's processes and files are removed");
            return Ok(ExitCode::FAILURE);
        }
    };
    folder.close().context("cannot remove the benchmark's folder")?;
    print(&figures, json)?;
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &[Measurement], json: bool) -> Result<()> {
    if json { measurement::print_json(figures) } else { measurement::print(figures) }
}

impl Dfs {
    fn wants(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }

    /// Says what is going on, to people.
    fn print_status(&self, text: impl std::fmt::Display) {
        if !self.json {
            eprintln!("{text}");
        }
    }
}

async fn measure(args: &Dfs, folder: &Path) -> Result<Vec<Measurement>> {
    let mut figures = Vec::new();
    note_build(args.json);
    let (write, read) = (args.wants(What::Write), args.wants(What::Read));
    if write || read {
        check_room(args)?;
        args.print_status(format!("bytes: {} in and out, {} rounds each", args.size, bytes::ROUNDS));
        figures.extend(
            bytes::measure(folder, layout(folder, "bytes", 1, args.tls)?, args.size.0, write, read).await?,
        );
    }
    let (stats, creates) = (args.wants(What::Stats), args.wants(What::Creates));
    if stats || creates {
        args.print_status("names: 64 clients at once");
        figures.extend(names::measure(layout(folder, "names", 1, args.tls)?, stats, creates).await?);
    }
    let (memory, replay) = (args.wants(What::Memory), args.wants(What::Replay));
    if memory || replay {
        args.print_status(format!("scale: making {} blocks; this takes a while", args.blocks));
        figures.extend(scale::measure(folder, args.blocks, memory, replay).await?);
    }
    Ok(figures)
}

fn note_build(quiet: bool) {
    if cfg!(debug_assertions) && !quiet {
        eprintln!("note: this is a debug build; figures are meant for `cargo build --release`");
    }
}

/// The source, the baseline's copy and the cluster's, and as much again until deletes have reached the disk.
fn check_room(args: &Dfs) -> Result<()> {
    check_free_space(&args.dir, args.size, 5)
}

/// Refuses a size whose `copies` do not fit into the folder's disk.
fn check_free_space(dir: &Path, size: Bytes, copies: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot determine the free space of {}", dir.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    let needed = size.0.saturating_mul(copies);
    ensure!(size.0 >= 1 << 20, Usage(format!("--size {size}: at least 1MiB")));
    ensure!(
        free > needed,
        "{} has {} free, the benchmark needs {}: take a smaller --size or another --dir",
        dir.display(),
        output::human(free),
        output::human(needed)
    );
    Ok(())
}

/// A cluster layout for a benchmark, in a folder of its own.
fn layout(folder: &Path, name: &str, nodes: u32, tls: bool) -> Result<Layout> {
    // Open, so that figures are those of the data path; with `tls` they are those of a closed cluster.
    let overrides = Overrides {
        nodes: Some(nodes),
        replication: Some(1),
        temporary: true,
        open: Some(!tls),
        ..Overrides::default()
    };
    let mut layout = Layout::prepare(&folder.join(name), &overrides)?;
    // The scrubber would read beside the measurement.
    layout.config.datanode.scrub_rate = Bytes(0);
    if tls {
        let dir = folder.join(format!("{name}-keys"));
        certify(&dir, "bench", &uuid::Uuid::new_v4().to_string(), 2)?;
        let security = &mut layout.config.security;
        (security.dir, security.identity) = (std::path::absolute(dir.join("security"))?, "admin".into());
        security.secret = PathBuf::new();
    }
    Ok(layout)
}

/// Processor seconds the daemons use from now on.
struct CpuMeter<'a> {
    launch: &'a Launch,
    before: f64,
}

impl<'a> CpuMeter<'a> {
    fn new(launch: &'a Launch) -> Self {
        Self { launch, before: launch.cpu_seconds() }
    }

    fn seconds(&self) -> f64 {
        self.launch.cpu_seconds() - self.before
    }
}
