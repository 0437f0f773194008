//! `mrctl verify`: runs the same jobs on a real cluster and in the simulator, and compares the
//! durations of every job.

mod machines;
mod real;
mod steal;
mod summary;

use crate::{bench::measurement::run_table, trial};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use sim::{
    World,
    catalog::CaseSize,
    profile,
    report::{self, Table, archive},
    trial::{Trial, all, narrow_link, short},
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use steal::CpuTimes;
use summary::Comparison;
use view::output::{self, Usage};

/// Compare the simulator with jobs on a real cluster
///
/// Runs terasort, wordcount, streaming and mixed workloads on four machines that it creates on this
/// machine: network namespaces with limited links, disks and processors (as root). Tasks are
/// preempted, and in the mixed workload a node dies. The simulator gets the limits of the machines,
/// and rates of the programs that are measured before each repeat, with other input. With --paced,
/// the tasks of other trials mostly sleep, on a local cluster of eight nodes; that does not need root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl verify\n  \
    mrctl verify --only mixed --repeats 3 --size 64MB\n  \
    mrctl verify --paced --only 'fcs;fair' --json\n  \
    mrctl verify --clean\n\n\
With a narrow link for all nodes, as root:\n  \
    ip netns add narrow && ip -n narrow link set lo mtu 1500 up\n  \
    ip netns exec narrow tc qdisc add dev lo root \\\n      \
        tbf rate 32mbit burst 64kb latency 400ms\n  \
    ip netns exec narrow mrctl verify --link 4MB")]
pub struct Args {
    /// Run only these workloads (or trials, with --paced; the trial `short` takes a few seconds)
    #[arg(long, value_name = "NAME;...", value_delimiter = ';')]
    only: Vec<String>,
    /// How often each workload runs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000),
        conflicts_with_all = ["paced", "link"])]
    repeats: u32,
    /// Size of the largest input, at least 16MiB. The times of submissions and faults are proportional
    /// to it
    #[arg(long, value_name = "SIZE", default_value_t = daemon::Bytes(real::SIZE), conflicts_with_all = ["paced", "link"])]
    size: daemon::Bytes,
    /// Run trials whose tasks sleep most of the time
    #[arg(long)]
    paced: bool,
    /// Run only the trial of a narrow link (with --only: make it available). SIZE is the rate in
    /// bytes per second, at least 1KiB, to which the loopback interface has been limited, as in the
    /// example below
    #[arg(long, value_name = "SIZE")]
    link: Option<daemon::Bytes>,
    /// Folder for the histories of all jobs, for `mrctl replay` and `mrctl sim calibrate`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["paced", "link"])]
    histories: Option<PathBuf>,
    /// Folder for the data of the cluster [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// Only remove the machines that a killed run has left; other runs without --paced and --link do
    /// that first
    #[arg(long, exclusive = true)]
    clean: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the jobs run on a temporary cluster on this machine, and not on machines of their own.
    pub fn starts_local_cluster(&self) -> bool {
        self.paced || self.link.is_some()
    }

    /// Checks that the folders can be written, before anything that takes minutes. Creates the one of
    /// the histories.
    fn check_folders(&self) -> Result<()> {
        let check = |flag: &str, folder: &Path| -> Result<()> {
            if !folder.is_dir() {
                let why = "there is no such folder: create it, or give another one";
                bail!(Usage(format!("{flag} {}: {why}", folder.display())));
            }
            let probe = tempfile::tempfile_in(folder);
            probe.map(drop).with_context(|| format!("{flag} {}: cannot write to it", folder.display()))
        };
        check("--dir", &self.dir)?;
        let Some(folder) = &self.histories else { return Ok(()) };
        if folder.exists() && !folder.is_dir() {
            bail!(Usage(format!("--histories {}: this is a file: give a folder", folder.display())));
        }
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--histories {}: cannot create it", folder.display()))?;
        check("--histories", folder)
    }
}

/// The smallest size of the largest input: blocks have at least one MiB.
const SIZE_MIN: u64 = 16 << 20;

fn find<T: Clone>(known: &[T], name_of: impl Fn(&T) -> &str, only: &[String]) -> Result<Vec<T>> {
    let one = |name: &String| {
        let names: Vec<&str> = known.iter().map(&name_of).collect();
        let found = known.iter().find(|one| name_of(one) == name).cloned();
        found.ok_or_else(|| {
            Usage(format!("--only {name:?}: there is no such workload: choose from {}", names.join("; ")))
                .into()
        })
    };
    only.iter().map(one).collect()
}

/// The smallest rate of a narrow link, in bytes per second.
const LINK_MIN: u64 = 1 << 10;

fn selected_trials(only: &[String], link: Option<daemon::Bytes>) -> Result<Vec<Trial>> {
    if let Some(bytes) = link.filter(|bytes| bytes.0 < LINK_MIN) {
        bail!(Usage(format!("--link {bytes}: the rate must be at least 1KiB (each second)")));
    }
    let linked = link.map(|bytes| narrow_link(bytes.0 as f64));
    if only.is_empty() {
        // The other trials would be slowed down by the limited link.
        return Ok(linked.map_or_else(all, |linked| vec![linked]));
    }
    let known: Vec<Trial> = all().into_iter().chain([short()]).chain(linked).collect();
    find(&known, |trial| &trial.name, only)
}

/// Runs the workloads and prints how much the simulator differs from the real cluster. `provenance`
/// is part of the JSON.
pub async fn run(args: &Args, provenance: &Value) -> Result<ExitCode> {
    if args.clean {
        machines::check()?;
        let removed = machines::clean()?;
        let shown = |folder: PathBuf| format!("removed the machines in {}", folder.display());
        output::line(removed.map_or_else(|| "no killed run has left machines".to_owned(), shown))?;
        return Ok(ExitCode::SUCCESS);
    }
    args.check_folders()?;
    let (date, load_before) = (output::utc(output::now_ms()), load_average());
    let (all, profiles) = if args.starts_local_cluster() {
        (run_paced(args).await?, Value::Null)
    } else {
        tokio::select! {
            // The handlers of signals are installed before the machines are created.
            biased;
            () = daemon::lifecycle::end_signal() => {
                eprintln!("mrctl: interrupted: removing the machines, which takes some seconds");
                bail!("interrupted");
            }
            ran = Box::pin(run_real(args)) => ran?,
        }
    };
    let (errors, durations) = (summary::errors(&all), summary::durations(&all));
    if args.json {
        let result = json!({
            "error": summary::mean_error(&all),
            "trials": all.iter().map(Comparison::json).collect::<Vec<_>>(),
            "profiles": profiles,
            "tables": [
                archive::table("Errors", &errors),
                archive::table("Durations", &durations),
                archive::table("Run", &host_table(provenance, date, load_before)),
            ],
        });
        crate::print_archive(result, provenance)?;
    } else {
        output::line(format!("{}\n{}", durations.text(), errors.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the load averages of this machine over 1, 5 and 15 minutes.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = text.split_whitespace().take(3).collect();
    if averages.is_empty() { "unknown".into() } else { averages.join(" ") }
}

/// Returns a table of when and on what machine the runs were made, and its load before and after.
fn host_table(provenance: &Value, date: String, load_before: String) -> Table {
    let mut table = run_table(provenance);
    for (name, value) in [("date", date), ("load before", load_before), ("load after", load_average())] {
        table.row(vec![name.into(), value.into()]);
    }
    table
}

fn print_run(args: &Args, run: &str, comparison: &Comparison) -> Result<()> {
    let [real, simulated] = comparison.preemptions;
    let (error, text) = (report::percent(comparison.fidelity.error()), comparison.fidelity.table().text());
    let steal =
        comparison.steal.map_or_else(String::new, |steal| format!("; CPU steal {}", report::percent(steal)));
    if args.json {
        eprintln!("mrctl: {run}: mean error over jobs {error}{steal}");
        return Ok(());
    }
    output::line(format!(
        "{run}: mean error over jobs {error}; preemptions: {real} real, {simulated} simulated{steal}\n{text}"
    ))
}

async fn run_paced(args: &Args) -> Result<Vec<Comparison>> {
    if let Some(folder) = machines::left_by_killed_run() {
        let folder = folder.display();
        eprintln!(
            "mrctl: a killed `mrctl verify` has left machines in {folder}, which may slow this run down: \
             `mrctl verify --clean` removes them, as root"
        );
    }
    let mut all: Vec<Comparison> = Vec::new();
    for trial in selected_trials(&args.only, args.link)? {
        let before = CpuTimes::now();
        let real = trial::run(&trial, &args.dir).await?;
        let steal = CpuTimes::now().steal_since(&before);
        let Trial { name, setup, workload, .. } = trial.as_it_was(&real.history);
        let size = CaseSize::of(&setup, &workload);
        let simulated =
            World::new(setup, workload)?.run(None).map_err(|broken| anyhow!("{name}: {broken}"))?;
        let comparison = Comparison::of(&name, size, &real.outcome, &[simulated], steal)?;
        print_run(args, &name, &comparison)?;
        all.push(comparison);
    }
    Ok(all)
}

async fn run_real(args: &Args) -> Result<(Vec<Comparison>, Value)> {
    let known = real::workloads(args.size.0);
    let selected =
        if args.only.is_empty() { known } else { find(&known, |workload| workload.name, &args.only)? };
    if args.size.0 < SIZE_MIN {
        bail!(Usage(format!("--size {}: must be at least 16MiB", args.size)));
    }
    machines::check()?;
    eprintln!("mrctl: starting machines and writing inputs");
    let mut bench = real::Bench::start(&args.dir, args.size.0, args.histories.as_deref(), &selected).await?;
    let (mut all, mut profiles) = (Vec::new(), Vec::new());
    for repeat in 1..=args.repeats {
        eprintln!("mrctl: measuring the programs for repeat {repeat} of {}", args.repeats);
        let measured = bench.calibrate_all(repeat).await?;
        profiles.push(serde_json::to_value(measured)?);
        if !args.json {
            output::line(format!("measured profiles:\n{}", profile::render(measured)))?;
        }
        for workload in &selected {
            let comparison = bench.compare(workload, u64::from(repeat)).await?;
            print_run(args, &format!("{} {repeat} of {}", workload.name, args.repeats), &comparison)?;
            all.push(comparison);
        }
    }
    Ok((all, profiles.into()))
}
