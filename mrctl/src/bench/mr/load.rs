//! `mrctl bench load`: a jobtracker under the heartbeats of very many trackers, each on a connection of its own, and
//! what becomes of it when all of them come back at once.

use super::{
    super::{layout, measurement::Measurement, note_build},
    fake_tracker::Tracker,
    usage::Usage,
};
use crate::{
    bench::measurement::Limit,
    cluster::{Kind, Launch, end, memory_bytes, restart},
};
use anyhow::{Context, Result, ensure};
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

/// As trackers do after a lost connection.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
const ATTACH_TIMEOUT: Duration = Duration::from_mins(2);
/// Sockets of ours beside those of the trackers.
const OTHER_FILES: u64 = 256;

/// A jobtracker and very many trackers that only send heartbeats, over real connections
///
/// Starts a namenode and a jobtracker of its own in a temporary folder and removes them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl bench load\n  mrctl bench load --trackers 500 --seconds 10 --json"
)]
pub(crate) struct Args {
    /// How many trackers
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    trackers: u32,
    /// For how long, before and after the jobtracker is killed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How often each speaks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = more_than_none)]
    heartbeat: Period,
    /// With certificates: TLS on every connection
    #[arg(long)]
    tls: bool,
    /// Folder for everything [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(in crate::bench) dir: PathBuf,
    /// As JSON: one array of figures
    #[arg(long)]
    pub(in crate::bench) json: bool,
}

fn more_than_none(text: &str) -> Result<Period, String> {
    let period: Period = text.parse().map_err(|error: daemon::QuantityError| error.to_string())?;
    if period.0.is_zero() { Err("must be more than 0".into()) } else { Ok(period) }
}

/// What all trackers look at.
#[derive(Debug, Default)]
struct Board {
    attached: AtomicUsize,
    /// Answers count only while this is set.
    counting: AtomicBool,
    over: AtomicBool,
}

pub(in crate::bench) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Measurement>> {
    note_build(args.json);
    check_socket_limit(u64::from(args.trackers))?;
    let mut layout = layout(folder, "load", 1, args.tls)?;
    layout.config.jobtracker.heartbeat = args.heartbeat;
    let state_folder = layout.folder.clone();
    let mut launch = Launch::start_without_trackers(layout, None).await?;
    let board = Arc::new(Board::default());
    let shown = Credentials::of_daemon(&launch.layout.config, Role::TaskTracker)?;
    let mut trackers = JoinSet::new();
    let started = Instant::now();
    for number in 0..args.trackers {
        let (addr, board) = ((launch.state.jobtracker.clone(), shown.clone()), board.clone());
        // Spread over the first period, as trackers that were started one by one.
        let offset = args.heartbeat.0.mul_f64(f64::from(number) / f64::from(args.trackers));
        trackers.spawn(live(addr, format!("load{number}"), args.heartbeat.0, offset, board));
    }
    await_all(&board, args.trackers).await?;
    let mut figures = vec![unlimited("trackers attached", started.elapsed().as_secs_f64(), "s")];
    let jobtracker = launch.state.find("jobtracker", None)?.identity.pid;
    let before = Usage::of(&launch).await?;
    board.counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    board.counting.store(false, Ordering::Relaxed);
    let used = Usage::of(&launch).await?.since(&before);
    let busy = used.0.get("jobtracker").copied().unwrap_or(0.0) / args.seconds as f64;
    figures.push(unlimited("jobtracker, of one core", 100.0 * busy, "%"));
    let bytes = memory_bytes(jobtracker).context("cannot read the jobtracker's memory from /proc")?;
    figures.push(unlimited("jobtracker, resident", bytes as f64 / f64::from(1 << 20), "MiB"));

    let daemon = launch.state.find("jobtracker", None)?;
    end(&[(&daemon.identity, &daemon.args)], Duration::ZERO)?;
    launch.reap();
    wait_until_none(&board).await?;
    let since = Instant::now();
    restart(&state_folder, &mut launch.state, "jobtracker", Kind::Jobtracker).await?;
    await_all(&board, args.trackers).await?;
    figures.push(unlimited("after kill -9 of the jobtracker: all back", since.elapsed().as_secs_f64(), "s"));
    board.counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    board.over.store(true, Ordering::Relaxed);
    let mut answers = Vec::new();
    while let Some(ended) = trackers.join_next().await {
        answers.extend(ended.context("a made-up tracker broke down")??);
    }
    figures.extend(latencies(answers, args.trackers)?);
    Ok(figures)
}

fn unlimited(name: &str, value: f64, unit: &'static str) -> Measurement {
    Measurement::unlimited(format!("load: {name}"), value, unit)
}

fn latencies(mut answers: Vec<Duration>, trackers: u32) -> Result<Vec<Measurement>> {
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
            ..Measurement::unlimited(name("99 of 100 within"), at(0.99), "ms")
        },
        Measurement::unlimited(name("slowest"), at(1.0), "ms"),
        Measurement::unlimited("load: heartbeats answered", answers.len() as f64, ""),
    ])
}

/// One tracker: speaks each period, and comes back when the connection breaks. The times to each answer.
async fn live(
    (addr, shown): (String, Credentials),
    name: String,
    period: Duration,
    offset: Duration,
    board: Arc<Board>,
) -> Result<Vec<Duration>> {
    let (mut answers, mut pause) = (Vec::new(), RETRY_FIRST);
    tokio::time::sleep(offset).await;
    while !board.over.load(Ordering::Relaxed) {
        let Ok(mut tracker) = Tracker::attach(&addr, &shown, &name, 2).await else {
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RETRY_MAX);
            continue;
        };
        pause = RETRY_FIRST;
        board.attached.fetch_add(1, Ordering::Relaxed);
        let mut beats = tokio::time::interval(period);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !board.over.load(Ordering::Relaxed) {
            beats.tick().await;
            let counts = board.counting.load(Ordering::Relaxed);
            match tracker.heartbeat().await {
                Ok(took) if counts => answers.push(took),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        board.attached.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(answers)
}

async fn await_all(board: &Board, trackers: u32) -> Result<()> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    while board.attached.load(Ordering::Relaxed) < trackers as usize {
        let attached = board.attached.load(Ordering::Relaxed);
        ensure!(
            Instant::now() < deadline,
            "only {attached} of {trackers} trackers were taken in {ATTACH_TIMEOUT:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn wait_until_none(board: &Board) -> Result<()> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    while board.attached.load(Ordering::Relaxed) > 0 {
        ensure!(Instant::now() < deadline, "trackers do not notice that the jobtracker is gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A socket for each tracker here, and one in the jobtracker, which inherits the limit.
fn check_socket_limit(trackers: u64) -> Result<()> {
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
