//! `mrctl bench mr`: measures the cost of jobs on a local cluster, compared with a plain program
//! that does the same work.
//!
//! CPU time includes everything that Fermata runs: daemons, task processes, the client. A plain
//! program is also a process started by this one, so both are read from the same counters of the
//! kernel.

mod cluster;
mod comparison;
mod fake_tracker;
mod idle;
pub(super) mod load;
pub(super) mod preempt;
mod small_job;
mod tasks;
mod terasort;
mod usage;
mod wordcount;

use super::{check_free_space, measurement::Measurement, note_build};
use anyhow::Result;
use cluster::Cluster;
use daemon::Bytes;
use std::path::{Path, PathBuf};

/// Measure jobs: CPU time compared with a plain program, latency, tasks per second, an idle cluster
///
/// Starts a cluster of its own in a temporary folder and removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl bench mr\n  \
    mrctl bench mr --size 256MiB --only wordcount,small --rounds 1\n  \
    mrctl bench mr --only idle --json")]
pub struct Args {
    /// Size of the input of wordcount and terasort
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: Bytes,
    /// Number of nodes, each with a datanode and a tasktracker; also the number of reduces
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=50))]
    nodes: u32,
    /// Run only these measurements
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT,...")]
    only: Vec<MeasurementGroup>,
    /// Rounds of wordcount and terasort; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Folder for all data [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(super) dir: PathBuf,
    /// Print JSON: the measurements, and tables of them with the machine and the commit
    #[arg(long)]
    pub(super) json: bool,
}

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MeasurementGroup {
    /// CPU time of wordcount
    Wordcount,
    /// CPU time and duration of terasort
    Terasort,
    /// Latency of a small job
    Small,
    /// Empty tasks per second
    Tasks,
    /// CPU time and memory of an idle cluster
    Idle,
}

/// How many times the size of the input must be free on the disk: for the input, its copy in the
/// cluster, the output of the job, of the plain program and of GNU sort, and for deleted files.
const INPUT_COPIES: u64 = 8;

impl Args {
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

/// Runs the selected measurements.
pub(super) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Measurement>> {
    note_build(args.json);
    if args.wants(MeasurementGroup::Wordcount) || args.wants(MeasurementGroup::Terasort) {
        check_free_space(&args.dir, args.size, INPUT_COPIES)?;
    }
    let mut figures = Vec::new();
    let cluster = Cluster::start(folder, args.nodes).await?;
    if args.wants(MeasurementGroup::Wordcount) {
        args.print_status(format!("wordcount: {} of text, rounds: {}", args.size, args.rounds));
        figures.extend(wordcount::measure(args, &cluster, folder).await?);
    }
    if args.wants(MeasurementGroup::Terasort) {
        args.print_status(format!("terasort: {} of records, rounds: {}", args.size, args.rounds));
        figures.extend(terasort::measure(args, &cluster, folder).await?);
    }
    if args.wants(MeasurementGroup::Small) {
        args.print_status(format!("small: {} jobs, twice", small_job::JOBS));
        figures.extend(small_job::measure(&cluster).await?);
    }
    if args.wants(MeasurementGroup::Tasks) {
        args.print_status(format!("tasks: {} empty tasks", tasks::TASKS));
        figures.extend(tasks::measure(&cluster).await?);
        args.print_status("tasks: the jobtracker with simulated trackers");
        figures.push(tasks::measure_jobtracker_only(folder, args.nodes).await?);
    }
    if args.wants(MeasurementGroup::Idle) {
        args.print_status(format!("idle: {} s", idle::MEASURED_TIME.as_secs()));
        figures.extend(idle::measure(&cluster).await?);
    }
    Ok(figures)
}
