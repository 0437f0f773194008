//! `mrctl bench`: measurements of the file system (`dfs`), of jobs (`mr`), of preemption
//! (`preempt`) and of policies (`schedulers`), each with its limit and a baseline from the same
//! run.
//!
//! Rounds of a measurement and of its baseline alternate, and the median counts, because the speed
//! of a machine varies. A benchmark is not a test: the exit code tells whether it ran, the last
//! column whether the limit is met.

mod bench_cluster;
mod bytes;
pub(crate) mod measurement;
mod mr;
mod names;
mod scale;
mod schedulers;
mod socket;
mod wire;

use anyhow::{Context, Result, ensure};
use clusters::{
    certificates::certify,
    local::{Launch, Layout, Overrides, TemporaryCluster},
};
use daemon::Bytes;
use measurement::Measurement;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use view::output::{self, Usage};

#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    Dfs(Dfs),
    Mr(mr::Args),
    /// Measure preemption: how soon slots are free, its cost, and the cost of kills
    Preempt(mr::preempt::Args),
    Load(mr::load::Args),
    /// Measure policies: time of a decision, of a linear program, of ten thousand heartbeats
    Schedulers(schedulers::Args),
    /// Run a plain program that jobs are compared with, in its own process
    #[command(hide = true, override_usage = plain::USAGE)]
    Plain {
        /// Name of the program, and its arguments
        arguments: Vec<String>,
    },
}

/// Measure the file system: reads, writes, metadata calls, memory, start-up
///
/// Starts clusters of its own in a temporary folder and removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl bench dfs\n  \
    mrctl bench dfs --size 4GiB --only write,read --dir /mnt/disk1\n  \
    mrctl bench dfs --only write,read,stats,creates --tls\n  \
    mrctl bench dfs --only memory,replay --blocks 50000      a quick run")]
pub struct Dfs {
    /// Bytes to write and read
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: Bytes,
    /// Run only these measurements
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT,...")]
    only: Vec<MeasurementGroup>,
    /// Blocks to create for memory and replay
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    blocks: u64,
    /// Folder on the disk to measure [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// Use certificates: TLS on every connection
    #[arg(long)]
    tls: bool,
    /// Print JSON: the measurements, and tables of them with the machine and the commit
    #[arg(long)]
    json: bool,
}

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MeasurementGroup {
    /// Writes with one replica
    Write,
    /// Reads, over TCP and from the local file
    Read,
    /// Stat calls per second
    Stats,
    /// Durable creates per second
    Creates,
    /// Memory of the namenode per block and per file
    Memory,
    /// Start-up of the namenode
    Replay,
}

/// Runs a benchmark and prints its measurements. `provenance` is part of the JSON.
pub async fn run(command: BenchCommand, provenance: &Value) -> Result<ExitCode> {
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
            measurement::print(&schedulers::measure(args)?, args.json.then_some(provenance))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let folder = TemporaryCluster::create(dir, "fermata-bench-")?;
    let measuring = async {
        match &command {
            BenchCommand::Dfs(args) => measure(args, folder.path()).await,
            BenchCommand::Mr(args) => mr::measure(args, folder.path()).await,
            BenchCommand::Preempt(args) => mr::preempt::measure(args, folder.path()).await,
            BenchCommand::Load(args) => mr::load::measure(args, folder.path()).await,
            BenchCommand::Plain { .. } | BenchCommand::Schedulers(_) => Ok(vec![]),
        }
    };
    // The cluster inside the future is dropped before its folder.
    let figures = tokio::select! {
        figures = measuring => figures?,
        () = daemon::lifecycle::end_signal() => {
            eprintln!("mrctl: interrupted; removing the processes and files of the benchmark");
            return Ok(ExitCode::FAILURE);
        }
    };
    folder.close()?;
    measurement::print(&figures, json.then_some(provenance))?;
    Ok(ExitCode::SUCCESS)
}

impl Dfs {
    fn wants(&self, what: MeasurementGroup) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }

    /// Prints a progress message.
    fn print_status(&self, text: impl std::fmt::Display) {
        if !self.json {
            eprintln!("{text}");
        }
    }
}

async fn measure(args: &Dfs, folder: &Path) -> Result<Vec<Measurement>> {
    let mut figures = Vec::new();
    note_build(args.json);
    let (write, read) = (args.wants(MeasurementGroup::Write), args.wants(MeasurementGroup::Read));
    if write || read {
        check_disk(args)?;
        args.print_status(format!("reads and writes: {}, {} rounds each", args.size, bytes::ROUNDS));
        figures.extend(
            bytes::measure(folder, layout(folder, "bytes", 1, args.tls)?, args.size.0, write, read).await?,
        );
    }
    let (stats, creates) = (args.wants(MeasurementGroup::Stats), args.wants(MeasurementGroup::Creates));
    if stats || creates {
        args.print_status("metadata calls: 64 concurrent clients");
        figures.extend(names::measure(layout(folder, "names", 1, args.tls)?, stats, creates).await?);
    }
    let (memory, replay) = (args.wants(MeasurementGroup::Memory), args.wants(MeasurementGroup::Replay));
    if memory || replay {
        args.print_status(format!("memory and replay: creating {} blocks; this takes a while", args.blocks));
        figures.extend(scale::measure(folder, args.blocks, memory, replay).await?);
    }
    Ok(figures)
}

fn note_build(quiet: bool) {
    if cfg!(debug_assertions) && !quiet {
        eprintln!("note: this is a debug build; the limits are for `cargo build --release`");
    }
}

/// Checks that the disk has space for the source, the copy of the baseline and the copy in the
/// cluster. Both copies count twice, because deleted files free their space late.
fn check_disk(args: &Dfs) -> Result<()> {
    check_free_space(&args.dir, args.size, 5)
}

/// Fails if `copies` copies of `size` bytes do not fit on the disk of the folder.
fn check_free_space(dir: &Path, size: Bytes, copies: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot determine the free space of {}", dir.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    let needed = size.0.saturating_mul(copies);
    ensure!(size.0 >= 1 << 20, Usage(format!("--size {size}: must be at least 1MiB")));
    ensure!(
        free > needed,
        "{} has {} free, but the benchmark needs {}: use a smaller --size or another --dir",
        dir.display(),
        output::human(free),
        output::human(needed)
    );
    Ok(())
}

/// Returns the layout of a cluster for a benchmark, in a folder of its own.
fn layout(folder: &Path, name: &str, nodes: u32, tls: bool) -> Result<Layout> {
    // The cluster is open, so that authentication is not measured. With `tls` it is closed.
    let overrides = Overrides {
        nodes: Some(nodes),
        replication: Some(1),
        temporary: true,
        open: Some(!tls),
        ..Overrides::default()
    };
    let mut layout = Layout::prepare(&folder.join(name), &overrides)?;
    // The scrubber would read during the measurement.
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

/// Measures the CPU seconds that the daemons use after it is created.
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
