//! `mrctl chaos soak`: random jobs, preempted slots, and faults, on a real cluster, round after round. After each round
//! everything is healed, and then nothing may be wrong: outputs are those of calm runs, slots are free, no file, process or
//! memory is left over.
//!
//! Deliberately absent: two nodes off at once, which three replicas need not survive.

mod fault_schedule;
mod jobs;
mod leaks;

use super::{
    observer::{ClusterView, Observer},
    target::ChaosTarget,
};
use crate::{
    cluster::{ClusterState, Launch, Layout, Overrides, remove_elsewhere, temporary},
    output,
    remote::{Fleet, Reach},
};
use anyhow::{Context, Result, bail, ensure};
use daemon::{Bytes, Period};
use fault_schedule::{FaultSchedule, Tally};
use jobs::SoakJobs;
use leaks::UsageHistory;
use rand::{SeedableRng, rngs::SmallRng};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long it may take until all is well after a round.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Random jobs, preemptions and faults on a real cluster, and checks after each round
///
/// Starts a cluster of its own in a temporary folder, which it removes in the end; or, with --cluster, uses one that runs on
/// several machines and nobody else uses meanwhile, where links are cut as well. Wrong output, or anything left over (slots, files, processes, memory),
/// makes the exit code 1, and the folder of its own cluster stays to be looked at.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos soak --minutes 2
  mrctl chaos soak --minutes 30 --seed 7 --nodes 6
  mrctl chaos soak --minutes 30 --cluster lab")]
pub(crate) struct Args {
    /// How long; the last round is played to its end
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Decides what happens
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes of its own cluster
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=50))]
    nodes: u32,
    /// Folder for its own cluster's data [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// Use this cluster on several machines, as made by `mrctl cluster init`, which runs
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nodes", "dir"])]
    cluster: Option<PathBuf>,
    /// Print JSON, in the end
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    seconds: f64,
    rounds: u32,
    jobs: u32,
    #[serde(flatten)]
    tally: Tally,
    /// Seconds until all was well after a round, the longest.
    recovered_s: f64,
    /// What was wrong; empty if nothing was.
    wrong: Vec<String>,
    memory: Vec<leaks::Growth>,
}

/// A cluster of its own. However this ends, its daemons end with it.
struct OwnedCluster {
    folder: PathBuf,
}

impl Drop for OwnedCluster {
    fn drop(&mut self) {
        // Those that were started again are in the file alone.
        if let Ok(Some(state)) = ClusterState::load(&self.folder) {
            let _ = state.stop_all();
        }
        if let Err(error) = remove_elsewhere(&self.folder) {
            eprintln!("mrctl: {}", crate::output::chain(&error));
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.minutes.is_finite() && args.minutes >= 0.0, "--minutes {}: a time from 0 on", args.minutes);
    if let Some(cluster) = &args.cluster {
        let target = Arc::new(ChaosTarget::Machines(Fleet::of(&Reach::of(cluster))?));
        return print_result(&soak(args, &target).await?, args.json);
    }
    let folder = temporary(&args.dir, "fermata-soak-")?;
    let report = {
        let own = start(folder.path(), args.nodes).await?;
        let target = Arc::new(ChaosTarget::here(own.folder.clone())?);
        tokio::select! {
            report = soak(args, &target) => report?,
            () = crate::command::end_signal() => bail!("interrupted: what was started is stopped and removed"),
        }
    };
    if report.wrong.is_empty() {
        folder.close().context("cannot remove the folder")?;
    } else {
        eprintln!("mrctl: the cluster's files stay in {}", folder.keep().display());
    }
    print_result(&report, args.json)
}

/// A cluster that notices silence within seconds, and keeps three replicas of small blocks.
async fn start(folder: &Path, nodes: u32) -> Result<OwnedCluster> {
    let overrides = Overrides {
        nodes: Some(nodes),
        racks: Some(2),
        replication: Some(3),
        block_size: Some(Bytes(256 << 10)),
        map_slots: Some(2),
        reduce_slots: Some(2),
        temporary: true,
        ..Overrides::default()
    };
    let mut layout = Layout::prepare(&folder.join("cluster"), &overrides)?;
    let config = &mut layout.config;
    (config.namenode.heartbeat, config.jobtracker.heartbeat) = (Period::millis(200), Period::millis(200));
    (config.namenode.suspect_after, config.jobtracker.suspect_after) = (Period::secs(1), Period::secs(1));
    (config.namenode.dead_after, config.jobtracker.lost_after) = (Period::secs(3), Period::secs(3));
    config.datanode.scrub_period = Period::secs(5);
    // What it remembers on purpose must not look like a leak.
    config.jobtracker.jobs_kept = 20;
    config.check()?;
    let own = OwnedCluster { folder: layout.folder.clone() };
    let mut launch = Launch::start(layout, None).await?;
    launch.keep();
    Ok(own)
}

/// A soak under way.
struct Soak {
    target: Arc<ChaosTarget>,
    observer: Observer,
    view: ClusterView,
    slots: (u32, u32),
    jobs: SoakJobs,
    rng: SmallRng,
    report: Report,
}

async fn soak(args: &Args, target: &Arc<ChaosTarget>) -> Result<Report> {
    let report = Report { seed: args.seed, ..Report::default() };
    let mut observer = Observer::new(target.target());
    let began = Instant::now();
    let view = recovered(&mut observer, target, None).await.context("before anything was done")?;
    let jobs = SoakJobs::prepare(target)?;
    let slots = view.slots();
    let rng = SmallRng::seed_from_u64(args.seed);
    let mut soak = Soak { target: target.clone(), observer, view, slots, jobs, rng, report };
    let mut feet = UsageHistory::default();
    feet.take(target)?;
    let limit = Duration::from_secs_f64(args.minutes * 60.0);
    let calm_s = began.elapsed().as_secs_f64();
    print_line(
        args.json,
        format!("{}; calm runs took {calm_s:.0} s", output::count(target.nodes()?.len() as u64, "node")),
    )?;
    let start = Instant::now();
    let mut goes_on = true;
    while goes_on && (soak.report.rounds == 0 || start.elapsed() < limit) {
        soak.report.rounds += 1;
        let since = Instant::now();
        // What cannot be done is wrong, too, and what comes after it would say nothing.
        let wrong = soak.round().await.unwrap_or_else(|error| {
            goes_on = false;
            vec![output::chain(&error)]
        });
        feet.take(target)?;
        let (round, tally, elapsed_s) =
            (soak.report.rounds, &soak.report.tally, since.elapsed().as_secs_f64());
        let verdict = if wrong.is_empty() { "all is well".to_owned() } else { wrong.join("; ") };
        print_line(args.json, format!("round {round}, {elapsed_s:.0} s; so far {tally}: {verdict}"))?;
        soak.report
            .wrong
            .extend(wrong.iter().map(|what| format!("seed {}, round {round}: {what}", args.seed)));
    }
    soak.report.seconds = start.elapsed().as_secs_f64();
    soak.report.memory = feet.growth();
    soak.report.wrong.extend(feet.leaks());
    if goes_on {
        soak.jobs.clear()?;
    }
    Ok(soak.report)
}

impl Soak {
    /// Some jobs in bad weather, and what is wrong when it is over.
    async fn round(&mut self) -> Result<Vec<String>> {
        let jobs = self.jobs.submit_random(self.report.rounds, &mut self.rng)?;
        self.report.jobs += jobs.len() as u32;
        let mut weather = FaultSchedule::new(self.target.clone(), &mut self.rng);
        let over = weather.until_over(&mut self.observer, self.view.clone(), &jobs).await;
        self.report.tally.add(&weather.clear().await?);
        self.view = over?;
        let healing = Instant::now();
        self.view = recovered(&mut self.observer, &self.target, Some(self.slots)).await?;
        self.report.recovered_s = self.report.recovered_s.max(healing.elapsed().as_secs_f64());
        let mut wrong = self.jobs.check_outputs(&jobs, &self.view);
        self.jobs.remove(&jobs)?;
        wrong.extend(leaks::left_over(&self.target, &self.jobs, &mut self.observer, &mut self.view).await?);
        Ok(wrong)
    }
}

/// Waits until all is well; what was seen then.
async fn recovered(
    observer: &mut Observer,
    target: &ChaosTarget,
    slots: Option<(u32, u32)>,
) -> Result<ClusterView> {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    let nodes = target.nodes()?.len();
    let mut view = ClusterView::default();
    loop {
        view = observer.observe(&view).await;
        let live = view.nodes().len() == nodes;
        let problem = view.problem(slots.unwrap_or_else(|| view.slots()), &[]);
        let busy = view.in_use();
        let why = match problem {
            Some(why) => why,
            None if !live => format!("{} of {nodes} nodes are there", view.nodes().len()),
            None if busy > 0 && slots.is_some() => format!("{} in use", output::count(busy.into(), "slot")),
            None => return Ok(view),
        };
        if Instant::now() > deadline {
            bail!("not whole after {} s: {why}", RECOVERY_TIMEOUT.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print_line(quiet: bool, line: String) -> Result<()> {
    if quiet { Ok(()) } else { output::line(line) }
}

fn print_result(report: &Report, json: bool) -> Result<ExitCode> {
    if json {
        output::json(report)?;
    } else {
        output::line(format!(
            "\nseed {}: {}, {} in {:.0} s; {}; whole again within {:.1} s",
            report.seed,
            output::count(report.rounds.into(), "round"),
            output::count(report.jobs.into(), "job"),
            report.seconds,
            report.tally,
            report.recovered_s
        ))?;
        for one in &report.memory {
            output::line(format!(
                "{}: {} at first, {} in the end; {} and {} open files",
                one.program,
                output::human(one.first_bytes),
                output::human(one.last_bytes),
                one.first_files,
                one.last_files
            ))?;
        }
        let wrong = report.wrong.len();
        output::line(if wrong == 0 {
            "nothing was wrong".into()
        } else {
            format!("{wrong} things were wrong:")
        })?;
        for what in &report.wrong {
            output::line(format!("  {what}"))?;
        }
    }
    Ok(if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
