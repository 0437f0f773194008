//! Runs a trial of the simulator on a real cluster: daemons on this machine, jobs whose tasks are
//! slowed down to the planned rate, nodes killed at the planned times. The results are read from
//! the histories of the jobs.
//!
//! Only the faults "node dies" and "tracker dies" are supported.

use anyhow::{Context, Result, bail, ensure};
use client::{JobTracker, Submission};
use clusters::local::{Kind, Launch, Layout, Overrides, TemporaryCluster};
use daemon::{Bytes, Period};
use dfs_client::{Client, PutOptions, PutSource, path::DfsPath};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;
use sim::{
    Outcome, Setup, Span,
    fault::{Fault, FaultKind},
    trial::{BLOCK, LINE, Tasks, Trial},
    workload::{
        JobPlan,
        history::{self, History},
    },
};
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The timeout of a trial, from its first submission. The trials of `mrctl verify --paced` are planned
/// for at most 90 s, and those of `mrctl repro --scale laptop` and `mrctl lab compare --real` take one
/// to three minutes with the default parameters of policies. A policy whose parameters leave slots free
/// for minutes can exceed it.
const TRIAL_TIMEOUT: Duration = Duration::from_mins(5);

/// The result of a trial on a real cluster.
pub struct TrialResult {
    /// The outcome in the format of the simulator, for comparison.
    pub outcome: Outcome,
    /// When the jobs were submitted, and where their input was.
    pub history: History,
}

/// Runs a trial in a temporary folder below `within`, which is removed afterwards.
pub async fn run(trial: &Trial, within: &Path) -> Result<TrialResult> {
    let folder = TemporaryCluster::create(within, "fermata-trial-")?;
    let ran = tokio::select! {
        ran = run_in_folder(trial, folder.path()) => ran?,
        () = daemon::lifecycle::end_signal() => bail!("interrupted: the cluster of the trial was stopped and removed"),
    };
    folder.close()?;
    Ok(ran)
}

async fn run_in_folder(trial: &Trial, folder: &Path) -> Result<TrialResult> {
    let layout = layout(&trial.setup, folder)?;
    let histories = layout.config.jobtracker.dir.join("history");
    let mut launch = Launch::start(layout, None).await?;
    let files = launch.client().await?;
    for (number, job) in trial.workload.jobs.iter().enumerate() {
        put_input(&files, number, job).await?;
    }
    let began = Instant::now();
    let trackers = connect_users(&launch, trial).await?;
    let submitting = submit_all(trial, &trackers, began);
    let injecting = inject_faults(&mut launch, &trial.setup.faults, began);
    let (submitted, injected) = tokio::join!(submitting, injecting);
    injected?;
    let ids = submitted?;
    let first = trackers.values().next().context("a trial has jobs")?;
    let deadline = began + TRIAL_TIMEOUT;
    loop {
        let jobs = first.jobs(true).await?;
        if let Some(job) = jobs.iter().find(|job| job.has_ended() && job.state != "succeeded") {
            bail!("{} {} {}: {}", job.job, job.name, job.state, job.why);
        }
        let ended = jobs.iter().filter(|job| job.has_ended()).count();
        if ended == ids.len() {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{}: only {ended} of {} jobs have ended after {} s: the machine is too busy, or the policy leaves slots free",
            trial.name,
            ids.len(),
            TRIAL_TIMEOUT.as_secs()
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // The histories are complete only after the JobTracker has ended.
    launch.stop()?;
    let mut history = history::read(&histories)?;
    ensure!(history.real.len() == ids.len(), "{} histories of {} jobs", history.real.len(), ids.len());
    let outcome = history.outcome(&trial.setup.scheduler);
    Ok(TrialResult { outcome, history })
}

/// Returns the layout of a local cluster that corresponds to the setup of the trial.
fn layout(setup: &Setup, folder: &Path) -> Result<Layout> {
    let Some(machine) = setup.machines.first() else { bail!("a trial has machines") };
    let overrides = Overrides {
        nodes: Some(setup.machines.len() as u32),
        replication: Some(setup.replication as u32),
        block_size: Some(Bytes(BLOCK)),
        temporary: true,
        map_slots: Some(machine.slots.map),
        reduce_slots: Some(machine.slots.reduce),
        ..Overrides::default()
    };
    let mut layout = Layout::prepare(folder, &overrides)?;
    let period = |span: Span| Period::millis(span.0 / 1000);
    let config = &mut layout.config;
    config.jobtracker.heartbeat = period(setup.heartbeat);
    config.jobtracker.suspect_after = period(setup.config.suspect_after);
    config.jobtracker.lost_after = period(setup.config.lost_after);
    config.namenode.heartbeat = period(setup.heartbeat);
    config.namenode.suspect_after = period(setup.config.suspect_after);
    config.namenode.dead_after = period(setup.config.lost_after);
    config.datanode.scrub_rate = Bytes(0);
    config.scheduler.name.clone_from(&setup.scheduler);
    for (key, value) in &setup.params {
        config.scheduler.set(key, value);
    }
    config.check()?;
    Ok(layout)
}

fn input_path(number: usize) -> String {
    format!("/in/{number}")
}

/// Writes lines of random letters, so that all reduces get about the same number of lines.
async fn put_input(files: &Client, number: usize, job: &JobPlan) -> Result<()> {
    let bytes: u64 = job.maps.iter().map(|map| map.bytes).sum();
    let mut random = SmallRng::seed_from_u64(number as u64);
    let mut text = Vec::with_capacity(bytes as usize);
    while (text.len() as u64) < bytes {
        text.extend((1..LINE).map(|_| random.random_range(b'a'..=b'z')));
        text.push(b'\n');
    }
    let options = PutOptions { make_parents: true, ..PutOptions::default() };
    let source = PutSource::Reader(Box::new(std::io::Cursor::new(text)));
    files.put(source, &DfsPath::parse(&input_path(number))?, options, &()).await?;
    Ok(())
}

/// Connects to the JobTracker once for each user of the workload.
async fn connect_users(launch: &Launch, trial: &Trial) -> Result<BTreeMap<String, JobTracker>> {
    let mut trackers = BTreeMap::new();
    for job in &trial.workload.jobs {
        if !trackers.contains_key(&job.user) {
            let tracker =
                JobTracker::connect(&launch.state.jobtracker, Some(&job.user), launch.credentials()?).await?;
            trackers.insert(job.user.clone(), tracker);
        }
    }
    Ok(trackers)
}

async fn submit_all(
    trial: &Trial,
    trackers: &BTreeMap<String, JobTracker>,
    began: Instant,
) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for (number, job) in trial.workload.jobs.iter().enumerate() {
        sleep_until(began, job.at.as_secs_f64()).await;
        ids.push(trackers[&job.user].submit(submission(number, job, trial)).await?);
    }
    Ok(ids)
}

async fn sleep_until(began: Instant, seconds: f64) {
    tokio::time::sleep_until((began + Duration::from_secs_f64(seconds)).into()).await;
}

/// Returns the submission of the planned job: either the identity program at the planned rate, or
/// scripts that sleep.
fn submission(number: usize, job: &JobPlan, trial: &Trial) -> Submission {
    let map_s = job.maps.first().map_or(1.0, |map| f64::from(map.work_s));
    let mut conf = vec![
        ("group", job.group.clone()),
        ("slow.start", job.slow_start.to_string()),
        ("speculation", job.speculation.to_string()),
        ("split.size", BLOCK.to_string()),
    ];
    let program = match trial.tasks {
        Tasks::Paced => {
            let pace = |rate: f64| format!("{:.0}", rate.max(1.0));
            conf.push(("pace.map", pace(BLOCK as f64 / map_s)));
            conf.push(("pace.reduce", pace(job.reduce_rate)));
            "identity"
        }
        Tasks::Scripts { copies } => {
            let write = format!("awk \"{{for(i=0;i<{copies};i++)print i \\$0}}\"");
            conf.push(("stream.mapper", sleep_script(trial, map_s, &write)));
            if let Some(reduce) = job.reduces.first() {
                conf.push(("stream.reducer", sleep_script(trial, f64::from(reduce.fixed_s), "wc -c")));
            }
            conf.push(("map.output.compress", "false".to_owned()));
            "streaming"
        }
    };
    Submission {
        name: job.name.clone(),
        queue: job.queue.clone(),
        priority: "normal".into(),
        builtin: Some(program.into()),
        inputs: vec![input_path(number)],
        reduces: job.reduces.len() as u32,
        conf: conf.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..Submission::default()
    }
}

/// Returns a shell command that sleeps for `seconds`, divided by the speed of its node, and then
/// runs `then`. The command finds its node from the working folder of the task, which is below the
/// folder of the node.
fn sleep_script(trial: &Trial, seconds: f64, then: &str) -> String {
    let slow = trial.setup.machines.iter().enumerate().filter(|(_, machine)| machine.speed < 1.0);
    let one = |(at, machine): (usize, &sim::setup::Machine)| {
        format!("*/node{}/*) sleep {:.3};; ", at + 1, seconds / machine.speed)
    };
    let cases = slow.map(one).collect::<Vec<_>>().concat();
    format!("sh -c 'case $PWD in {cases}*) sleep {seconds:.3};; esac; exec {then}'")
}

async fn inject_faults(launch: &mut Launch, faults: &[Fault], began: Instant) -> Result<()> {
    for fault in faults {
        sleep_until(began, fault.at_s).await;
        let (node, kinds) = match fault.what {
            FaultKind::Node { node } => (node, &[Kind::Tasktracker, Kind::Datanode][..]),
            FaultKind::Tracker { node } => (node, &[Kind::Tasktracker][..]),
            ref other => bail!("{other:?} is for the simulator alone"),
        };
        let name = format!("node{}", node + 1);
        for kind in kinds {
            launch.state.find(&name, Some(*kind))?.signal(Signal::KILL)?;
        }
    }
    Ok(())
}
