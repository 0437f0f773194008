//! `mrctl chaos soak`: random jobs, preemptions and faults on a real cluster, round after round.
//! After each round all faults are undone, and then checks must pass: outputs equal those of
//! undisturbed runs, all slots are free, and no file, process or memory is left over.
//!
//! At most one node is down at a time, because a block has only three replicas, one of which may be
//! damaged.

mod fault_schedule;
mod jobs;
mod leaks;

use super::{
    observer::{ClusterView, Observer},
    target::ChaosTarget,
};
use anyhow::{Context, Result, bail, ensure};
use clusters::{
    local::{ClusterState, Launch, Layout, Overrides, TemporaryCluster, remove_outside_folder},
    remote::{Fleet, Reach},
};
use daemon::{Bytes, Period};
use fault_schedule::{FaultCounts, FaultSchedule};
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
use view::output;

/// How long the cluster may take to recover after a round.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Run random jobs, preemptions and faults on a real cluster, with checks after each round
///
/// Starts a cluster of its own in a temporary folder and removes it at the end. With --cluster, it
/// uses a running cluster on several machines, which must have no other users; then it also
/// partitions links. If an output is wrong or anything is left over (slots, files, processes,
/// memory), the exit code is 1, and the temporary folder is kept for inspection.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos soak --minutes 2
  mrctl chaos soak --minutes 30 --seed 7 --nodes 6
  mrctl chaos soak --minutes 30 --cluster mycluster")]
pub struct Args {
    /// Duration; the last round is completed
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Seed for random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of nodes of the temporary cluster
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=50))]
    nodes: u32,
    /// Folder for the data of the temporary cluster [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// Use this running cluster on several machines, as created by `mrctl cluster init`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nodes", "dir"])]
    cluster: Option<PathBuf>,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

/// The result of a soak.
#[derive(Debug, Default, Serialize)]
struct SoakReport {
    seed: u64,
    seconds: f64,
    rounds: u32,
    jobs: u32,
    #[serde(flatten)]
    tally: FaultCounts,
    /// The longest recovery after a round, in seconds.
    recovered_s: f64,
    /// One line per problem.
    wrong: Vec<String>,
    memory: Vec<leaks::Growth>,
}

/// A cluster whose daemons stop when this is dropped.
struct OwnedCluster {
    folder: PathBuf,
}

impl Drop for OwnedCluster {
    fn drop(&mut self) {
        // Read the state file, because it also lists daemons that were restarted.
        if let Ok(Some(state)) = ClusterState::load(&self.folder) {
            let _ = state.stop_all();
        }
        if let Err(error) = remove_outside_folder(&self.folder) {
            eprintln!("mrctl: {}", view::output::chain(&error));
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.minutes.is_finite() && args.minutes >= 0.0, "--minutes {}: must be 0 or more", args.minutes);
    if let Some(cluster) = &args.cluster {
        let target = Arc::new(ChaosTarget::Machines(Fleet::of(&Reach::of(cluster))?));
        return print_result(&Box::pin(soak(args, &target)).await?, args.json);
    }
    let folder = TemporaryCluster::create(&args.dir, "fermata-soak-")?;
    let report = {
        let own = start(folder.path(), args.nodes).await?;
        let target = Arc::new(ChaosTarget::local(own.folder.clone())?);
        tokio::select! {
            report = Box::pin(soak(args, &target)) => report?,
            () = daemon::lifecycle::end_signal() => bail!("interrupted: the cluster was stopped and removed"),
        }
    };
    if report.wrong.is_empty() {
        folder.close()?;
    } else {
        eprintln!("mrctl: the files of the cluster were kept in {}", folder.keep().display());
    }
    print_result(&report, args.json)
}

/// Starts a cluster that detects lost nodes within seconds and has three replicas of small blocks.
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
    // Limit the jobs that the JobTracker remembers, so that they do not look like a leak.
    config.jobtracker.jobs_kept = 20;
    config.check()?;
    let own = OwnedCluster { folder: layout.folder.clone() };
    let mut launch = Launch::start(layout, None).await?;
    launch.keep();
    Ok(own)
}

/// The state of a running soak.
struct Soak {
    target: Arc<ChaosTarget>,
    observer: Observer,
    view: ClusterView,
    slots: (u32, u32),
    jobs: SoakJobs,
    rng: SmallRng,
    report: SoakReport,
}

async fn soak(args: &Args, target: &Arc<ChaosTarget>) -> Result<SoakReport> {
    let report = SoakReport { seed: args.seed, ..SoakReport::default() };
    let mut observer = Observer::new(target.client_target());
    let began = Instant::now();
    let view = await_recovery(&mut observer, target, None).await.context("before the first round")?;
    let jobs = SoakJobs::prepare(target)?;
    let slots = view.slots();
    let rng = SmallRng::seed_from_u64(args.seed);
    let mut soak = Soak { target: target.clone(), observer, view, slots, jobs, rng, report };
    let mut usage = UsageHistory::default();
    usage.record_round(target)?;
    let limit = Duration::from_secs_f64(args.minutes * 60.0);
    let prepare_s = began.elapsed().as_secs_f64();
    print_line(
        args.json,
        format!(
            "{}; undisturbed runs took {prepare_s:.0} s",
            output::count(target.nodes()?.len() as u64, "node")
        ),
    )?;
    let start = Instant::now();
    let mut healthy = true;
    while healthy && (soak.report.rounds == 0 || start.elapsed() < limit) {
        soak.report.rounds += 1;
        let since = Instant::now();
        // A round that fails counts as a problem and ends the soak, because later rounds would
        // prove nothing.
        let wrong = Box::pin(soak.round()).await.unwrap_or_else(|error| {
            healthy = false;
            vec![output::chain(&error)]
        });
        usage.record_round(target)?;
        let (round, tally, elapsed_s) =
            (soak.report.rounds, &soak.report.tally, since.elapsed().as_secs_f64());
        let verdict = if wrong.is_empty() { "no problems".to_owned() } else { wrong.join("; ") };
        print_line(args.json, format!("round {round}, {elapsed_s:.0} s; so far {tally}: {verdict}"))?;
        soak.report
            .wrong
            .extend(wrong.iter().map(|what| format!("seed {}, round {round}: {what}", args.seed)));
    }
    soak.report.seconds = start.elapsed().as_secs_f64();
    soak.report.memory = usage.growth();
    soak.report.wrong.extend(usage.leaks());
    if healthy {
        soak.jobs.clear()?;
    }
    Ok(soak.report)
}

impl Soak {
    /// Runs some jobs under faults, and returns the problems found afterwards.
    async fn round(&mut self) -> Result<Vec<String>> {
        let jobs = self.jobs.submit_random(self.report.rounds, &mut self.rng)?;
        self.report.jobs += jobs.len() as u32;
        let mut faults = FaultSchedule::new(self.target.clone(), &mut self.rng);
        let over = faults.run_until_jobs_end(&mut self.observer, self.view.clone(), &jobs).await;
        self.report.tally.add(&faults.finish().await?);
        self.view = over?;
        let healing = Instant::now();
        self.view = await_recovery(&mut self.observer, &self.target, Some(self.slots)).await?;
        self.report.recovered_s = self.report.recovered_s.max(healing.elapsed().as_secs_f64());
        let mut wrong = self.jobs.check_outputs(&jobs, &self.view);
        self.jobs.remove(&jobs)?;
        wrong.extend(
            leaks::await_no_leftovers(&self.target, &self.jobs, &mut self.observer, &mut self.view).await?,
        );
        Ok(wrong)
    }
}

/// Waits until the cluster is healthy. Returns the view of the healthy cluster.
async fn await_recovery(
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
        let busy = view.slots_in_use();
        let why = match problem {
            Some(why) => why,
            None if !live => format!("{} of {nodes} nodes are registered", view.nodes().len()),
            None if busy > 0 && slots.is_some() => format!("{} in use", output::count(busy.into(), "slot")),
            None => return Ok(view),
        };
        if Instant::now() > deadline {
            bail!("not recovered after {} s: {why}", RECOVERY_TIMEOUT.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print_line(quiet: bool, line: String) -> Result<()> {
    if quiet { Ok(()) } else { output::line(line) }
}

fn print_result(report: &SoakReport, json: bool) -> Result<ExitCode> {
    if json {
        output::json(report)?;
    } else {
        output::line(format!(
            "\nseed {}: {}, {} in {:.0} s; {}; recovered within {:.1} s",
            report.seed,
            output::count(report.rounds.into(), "round"),
            output::count(report.jobs.into(), "job"),
            report.seconds,
            report.tally,
            report.recovered_s
        ))?;
        for one in &report.memory {
            output::line(format!(
                "{}: {} at the start, {} at the end; {} and {} open files",
                one.program,
                output::human(one.first_bytes),
                output::human(one.last_bytes),
                one.first_files,
                one.last_files
            ))?;
        }
        let wrong = report.wrong.len();
        output::line(if wrong == 0 {
            "no problems were found".into()
        } else {
            format!("{wrong} problems:")
        })?;
        for what in &report.wrong {
            output::line(format!("  {what}"))?;
        }
    }
    Ok(if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
