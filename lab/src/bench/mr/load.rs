//! `mrctl bench load`: measures a JobTracker under the heartbeats of thousands of trackers, each
//! with its own connection, also after a restart, when all of them reconnect at once.

use super::{
    super::{layout, measurement::Measurement, note_build},
    fake_tracker::FakeTracker,
    usage::Usage,
};
use crate::bench::measurement::Limit;
use anyhow::{Context, Result, ensure};
use clusters::local::{Kind, Launch, end_processes, memory_bytes, restart};
use daemon::Period;
use security::{Credentials, Role};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// The first interval before a tracker connects again, as for real trackers.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest interval before a tracker connects again, as for real trackers.
const RETRY_MAX: Duration = Duration::from_secs(2);
const ATTACH_TIMEOUT: Duration = Duration::from_mins(2);
/// The number of open files that this process needs besides the sockets of the trackers.
const OTHER_FILES: u64 = 256;

/// Measure a jobtracker under the heartbeats of many simulated trackers
///
/// Starts a namenode and a jobtracker of its own in a temporary folder and removes them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl bench load\n  mrctl bench load --trackers 500 --seconds 10 --json"
)]
pub struct Args {
    /// Number of trackers
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    trackers: u32,
    /// Duration of the measurement, before and after the jobtracker is killed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Heartbeat interval of each tracker
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_period)]
    heartbeat: Period,
    /// Use certificates: TLS on every connection
    #[arg(long)]
    tls: bool,
    /// Folder for all data [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(in crate::bench) dir: PathBuf,
    /// Print JSON: the measurements, and tables of them with the machine and the commit
    #[arg(long)]
    pub(in crate::bench) json: bool,
}

fn positive_period(text: &str) -> Result<Period, String> {
    let period: Period = text.parse().map_err(|error: daemon::QuantityError| error.to_string())?;
    if period.0.is_zero() { Err("must be more than 0".into()) } else { Ok(period) }
}

/// The state that all simulated trackers share.
#[derive(Debug, Default)]
struct SharedState {
    /// The number of connected trackers.
    attached: AtomicUsize,
    /// Whether answer times are recorded.
    recording: AtomicBool,
    /// Whether the trackers must end.
    ended: AtomicBool,
}

pub(in crate::bench) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Measurement>> {
    note_build(args.json);
    raise_file_limit(u64::from(args.trackers))?;
    let mut layout = layout(folder, "load", 1, args.tls)?;
    layout.config.jobtracker.heartbeat = args.heartbeat;
    let state_folder = layout.folder.clone();
    let mut launch = Launch::start_without_trackers(layout, None).await?;
    let shared = Arc::new(SharedState::default());
    let credentials = Credentials::of_daemon(&launch.layout.config, Role::TaskTracker)?;
    let mut trackers = JoinSet::new();
    let started = Instant::now();
    for number in 0..args.trackers {
        let (addr, shared) = ((launch.state.jobtracker.clone(), credentials.clone()), shared.clone());
        // Spread the first heartbeats over one period, as if the trackers were started one after
        // another.
        let offset = args.heartbeat.0.mul_f64(f64::from(number) / f64::from(args.trackers));
        trackers.spawn(run_tracker(addr, format!("load{number}"), args.heartbeat.0, offset, shared));
    }
    await_all_attached(&shared, args.trackers).await?;
    let mut figures = vec![unlimited("trackers attached", started.elapsed().as_secs_f64(), "s")];
    let jobtracker = launch.state.find("jobtracker", None)?.identity.pid;
    let before = Usage::of(&launch).await?;
    shared.recording.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    shared.recording.store(false, Ordering::Relaxed);
    let used = Usage::of(&launch).await?.since(&before);
    let busy = used.0.get("jobtracker").copied().unwrap_or(0.0) / args.seconds as f64;
    figures.push(unlimited("jobtracker, of one core", 100.0 * busy, "%"));
    let bytes = memory_bytes(jobtracker).context("cannot read the memory of the jobtracker from /proc")?;
    figures.push(unlimited("jobtracker, resident", bytes as f64 / f64::from(1 << 20), "MiB"));

    let daemon = launch.state.find("jobtracker", None)?;
    end_processes(&[(&daemon.identity, &daemon.args)], Duration::ZERO)?;
    launch.reap();
    await_none_attached(&shared).await?;
    let since = Instant::now();
    restart(&state_folder, &mut launch.state, "jobtracker", Kind::Jobtracker).await?;
    await_all_attached(&shared, args.trackers).await?;
    let took = since.elapsed().as_secs_f64();
    let what = "time until all trackers are registered again after kill -9 of the jobtracker";
    figures.push(unlimited(what, took, "s"));
    shared.recording.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    shared.ended.store(true, Ordering::Relaxed);
    let mut answers = Vec::new();
    while let Some(ended) = trackers.join_next().await {
        answers.extend(ended.context("a simulated tracker panicked")??);
    }
    figures.extend(latency_measurements(answers, args.trackers)?);
    Ok(figures)
}

fn unlimited(name: &str, value: f64, unit: &'static str) -> Measurement {
    Measurement::unlimited(format!("load: {name}"), value, unit)
}

fn latency_measurements(mut answers: Vec<Duration>, trackers: u32) -> Result<Vec<Measurement>> {
    ensure!(!answers.is_empty(), "no heartbeat was answered");
    answers.sort_unstable();
    let at = |part: f64| {
        let index = ((answers.len() - 1) as f64 * part) as usize;
        answers[index].as_secs_f64() * 1000.0
    };
    let name = |what: &str| format!("load: a heartbeat of {trackers} trackers, {what}");
    Ok(vec![
        Measurement::unlimited(name("median"), at(0.5), "ms"),
        Measurement {
            limit: Some(Limit::AtMost(100.0)),
            ..Measurement::unlimited(name("p99"), at(0.99), "ms")
        },
        Measurement::unlimited(name("slowest"), at(1.0), "ms"),
        Measurement::unlimited("load: heartbeats answered", answers.len() as f64, ""),
    ])
}

/// Runs a simulated tracker, which sends a heartbeat each period and reconnects when the connection
/// breaks. Returns the answer times.
async fn run_tracker(
    (addr, credentials): (String, Credentials),
    name: String,
    period: Duration,
    offset: Duration,
    shared: Arc<SharedState>,
) -> Result<Vec<Duration>> {
    let (mut answers, mut pause) = (Vec::new(), RETRY_FIRST);
    tokio::time::sleep(offset).await;
    while !shared.ended.load(Ordering::Relaxed) {
        let Ok(mut tracker) = FakeTracker::attach(&addr, &credentials, &name, 2).await else {
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RETRY_MAX);
            continue;
        };
        pause = RETRY_FIRST;
        shared.attached.fetch_add(1, Ordering::Relaxed);
        let mut beats = tokio::time::interval(period);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !shared.ended.load(Ordering::Relaxed) {
            beats.tick().await;
            let counts = shared.recording.load(Ordering::Relaxed);
            match tracker.heartbeat().await {
                Ok(took) if counts => answers.push(took),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        shared.attached.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(answers)
}

async fn await_all_attached(shared: &SharedState, trackers: u32) -> Result<()> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    while shared.attached.load(Ordering::Relaxed) < trackers as usize {
        let attached = shared.attached.load(Ordering::Relaxed);
        ensure!(
            Instant::now() < deadline,
            "only {attached} of {trackers} trackers were registered within {ATTACH_TIMEOUT:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn await_none_attached(shared: &SharedState) -> Result<()> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    while shared.attached.load(Ordering::Relaxed) > 0 {
        ensure!(Instant::now() < deadline, "the trackers do not notice that the jobtracker has ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Raises the limit of open files if it is too low. Each tracker needs a socket in this process and
/// one in the JobTracker, which inherits the limit.
fn raise_file_limit(trackers: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = trackers + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), ..limit };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("{trackers} trackers need {wanted} open files: raise the limit (ulimit -n)"))
}
