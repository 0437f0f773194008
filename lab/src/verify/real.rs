//! Jobs with real input and output on limited machines, and their simulation.
//!
//! At the start of each repeat, each program runs on input of its own. The CPU time of its tasks, the
//! time of their starts and the sizes of their outputs give its profile. Then the workloads run, and
//! each run is simulated with these profiles, the limits of the machines, and the submission times,
//! splits and block locations of the run. No task time of a compared run is used.

use super::{
    machines::{Limits, MEMORY, Machines, RUN},
    steal::CpuTimes,
    summary::Comparison,
};
use anyhow::{Context, Result, bail, ensure};
use client::{Cluster, JobTracker};
use dfs_client::{Client, NodeState, PutOptions, PutSource, path::DfsPath};
use sim::{
    PerPhase, Setup, Span, World,
    catalog::CaseSize,
    fault::{Fault, FaultKind},
    profile::{Profile, Profiles},
    workload::history::{self, Calibrated, History},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;
use view::output;

/// Nodes of the cluster.
const NODES: usize = 4;
const SLOTS: PerPhase<u32> = PerPhase { map: 2, reduce: 1 };
const REPLICATION: usize = 2;
/// Replicas of the output of jobs, as usual for terasort.
const OUTPUT_REPLICATION: usize = 1;
const HEARTBEAT: Span = Span::millis(500);
const SUSPECT_AFTER: Span = Span::secs(3);
const LOST_AFTER: Span = Span::secs(10);
/// After this time the blocks of a lost node are replicated again. It is longer than a run, so that
/// the next run has the same replicas.
const REPAIR_AFTER: Span = Span::secs(3600);
/// Parameters of the policy `fair`: short waiting times, because tasks take seconds.
const POLICY: [(&str, &str); 3] =
    [("node_wait", "500ms"), ("rack_wait", "500ms"), ("fair_share_timeout", "3s")];
/// The resources of each machine. Tasks wait for disks and links most of the time, because the speed
/// of a virtual processor can change within minutes.
pub(super) const LIMITS: Limits = Limits { cores: 0.5, disk: 2_500_000, link: 2_000_000 };
/// The size of the largest input that the times of submissions and deaths are given for.
pub(super) const SIZE: u64 = 128 << 20;
/// Number of blocks of the largest input.
const BLOCKS: u64 = 32;
/// How often each run is simulated. The simulations differ in when, within a second, the first job is
/// submitted, because the time of the JobTracker's timer, which ticks every second, is not known.
const SIMULATIONS: u32 = 8;
const RUN_TIMEOUT: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A program of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Terasort,
    Wordcount,
    Streaming,
}

impl Program {
    const ALL: [Self; 3] = [Self::Terasort, Self::Wordcount, Self::Streaming];

    fn name(self) -> &'static str {
        match self {
            Self::Terasort => "terasort",
            Self::Wordcount => "wordcount",
            Self::Streaming => "streaming",
        }
    }

    /// Returns the folder of its inputs.
    fn input(self) -> &'static str {
        match self {
            Self::Terasort => "records",
            Self::Wordcount | Self::Streaming => "text",
        }
    }

    /// Returns the flags of `mrctl submit` in addition to input and output.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Terasort | Self::Wordcount => &[],
            Self::Streaming => &[
                "--mapper",
                "awk '{print $1 \"\\t\" NF}'",
                "--reducer",
                "awk -F '\\t' '{n[$1] += $2} END {for (w in n) print w \"\\t\" n[w]}'",
            ],
        }
    }
}

/// A job of a workload.
#[derive(Debug, Clone, Copy)]
struct Job {
    at_s: f64,
    user: &'static str,
    program: Program,
    /// The size of its input is that of the largest input, divided by this number.
    part: u64,
    reduces: u32,
}

/// Jobs that run together, and the node that dies meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    jobs: Vec<Job>,
    dies: Option<(f64, usize)>,
}

/// Returns the workloads for this size of the largest input. Later sorts have one reduce: with more,
/// their submission samples their input, which takes long while disks are busy. In each, later jobs of
/// other users make `fair` preempt tasks of the first.
pub(super) fn workloads(size: u64) -> Vec<Workload> {
    use Program::{Streaming, Terasort, Wordcount};
    let scale = size as f64 / SIZE as f64;
    let job =
        |at_s: f64, user, program, part, reduces| Job { at_s: at_s * scale, user, program, part, reduces };
    let three = |program: Program| {
        let jobs = vec![
            job(0.0, "ann", program, 1, 4),
            job(4.0, "bob", program, 2, 1),
            job(12.0, "carl", program, 4, 1),
        ];
        Workload { name: program.name(), jobs, dies: None }
    };
    let mixed = Workload {
        name: "mixed",
        jobs: vec![
            job(0.0, "ann", Terasort, 1, 4),
            job(3.0, "bob", Wordcount, 1, 2),
            job(6.0, "carl", Streaming, 2, 2),
            job(12.0, "bob", Terasort, 4, 1),
            job(18.0, "carl", Wordcount, 4, 1),
        ],
        dies: Some((8.0 * scale, 2)),
    };
    vec![three(Terasort), three(Wordcount), three(Streaming), mixed]
}

/// Returns the cluster as the simulator sees it.
fn setup(seed: u64, faults: Vec<Fault>) -> Setup {
    let mut setup = Setup::even(NODES as u32, SLOTS, "fair");
    setup.params = POLICY.map(|(key, value)| (format!("fair.{key}"), value.to_owned())).into();
    (setup.replication, setup.output_replication) = (REPLICATION, OUTPUT_REPLICATION);
    (setup.heartbeat, setup.seed, setup.faults) = (HEARTBEAT, seed, faults);
    (setup.config.suspect_after, setup.config.lost_after) = (SUSPECT_AFTER, LOST_AFTER);
    setup.costs.net_epoch = Span::millis(50);
    // It is part of the measured start of the programs.
    setup.costs.start = Span(0);
    setup.costs.datanode_timeout = REPAIR_AFTER;
    for machine in &mut setup.machines {
        machine.cores = LIMITS.cores;
        (machine.disk, machine.nic) = (LIMITS.disk as f64, LIMITS.link as f64);
        machine.disk_writes = Some(LIMITS.disk as f64);
        // Map outputs and checkpoints are in memory on the machines too, see `MEMORY`, so that disks do
        // not limit them.
        machine.cache = u64::MAX;
    }
    setup
}

/// Returns the settings of the cluster that `setup` describes.
fn settings(block: u64) -> String {
    let period = |span: Span| format!("\"{}ms\"", span.0 / 1000);
    let (beat, suspect, lost) = (period(HEARTBEAT), period(SUSPECT_AFTER), period(LOST_AFTER));
    let dead = period(REPAIR_AFTER);
    let policy = POLICY.map(|(key, value)| format!("{key} = \"{value}\"\n")).concat();
    format!(
        "[namenode]\nreplication = {REPLICATION}\nblock_size = \"{block}\"\nheartbeat = {beat}\nsuspect_after = {suspect}\n\
         dead_after = {dead}\n[jobtracker]\nheartbeat = {beat}\nsuspect_after = {suspect}\nlost_after = {lost}\n\
         [datanode]\nscrub_rate = \"0\"\n[tasktracker]\ntask_user = \"nobody\"\ndirs = [\"{MEMORY}/tasktracker\"]\n[scheduler.fair]\n{policy}"
    )
}

/// The cluster, and connections to it.
pub(super) struct Bench {
    machines: Machines,
    config: PathBuf,
    tracker: JobTracker,
    files: Client,
    /// Bytes of a block.
    block: u64,
    /// Folder for the histories of all jobs.
    histories: Option<PathBuf>,
    /// The programs of the workloads, and their profiles.
    programs: Vec<Program>,
    profiles: Profiles,
}

fn output_folder(number: usize) -> String {
    format!("/out/{number}")
}

/// Returns the input of a job.
fn input(program: Program, part: u64) -> String {
    format!("/in/{}-{part}", program.input())
}

fn calibration_input(program: Program) -> String {
    format!("/in/calibration-{}", program.name())
}

impl Bench {
    /// Starts the cluster in a folder below `within`, writes the inputs of the workloads, and limits
    /// the machines.
    pub(super) async fn start(
        within: &Path,
        size: u64,
        histories: Option<&Path>,
        workloads: &[Workload],
    ) -> Result<Self> {
        let block = (size / BLOCKS).next_multiple_of(1 << 20);
        let slots = [SLOTS.map.to_string(), SLOTS.reduce.to_string()];
        let flags = ["--scheduler", "fair", "--map-slots", &slots[0], "--reduce-slots", &slots[1]];
        let machines = Machines::start(within, NODES, &flags, &settings(block)).await?;
        let config = machines.config();
        let cluster = Cluster::load(&config)?;
        let (tracker, files) = (cluster.jobtracker().await?, cluster.files().await?);
        let histories = histories.map(Path::to_owned);
        let is_used = |program: &Program| {
            workloads.iter().any(|workload| workload.jobs.iter().any(|job| job.program == *program))
        };
        let programs = Program::ALL.into_iter().filter(is_used).collect();
        let profiles = Profiles::new();
        let bench = Self { machines, config, tracker, files, block, histories, programs, profiles };
        bench.await_nodes().await?;
        for folder in ["/in", "/out"] {
            bench.mrctl(&["fs", "mkdir", folder]).await?;
            bench.mrctl(&["fs", "chmod", "777", folder]).await?;
        }
        let mut inputs: BTreeMap<String, (Program, u64)> = BTreeMap::new();
        for job in workloads.iter().flat_map(|workload| &workload.jobs) {
            inputs.insert(input(job.program, job.part), (job.program, job.part));
        }
        for (seed, (path, (program, part))) in (1..).zip(&inputs) {
            bench.put_input(*program, size / part, seed, path).await?;
        }
        for program in &bench.programs {
            bench.put_input(*program, size / 2, 1000, &calibration_input(*program)).await?;
        }
        bench.machines.limit(&LIMITS)?;
        Ok(bench)
    }

    /// Measures the profiles of the programs for the runs of a repeat. The speed of the processors may
    /// have changed since the repeat before.
    pub(super) async fn calibrate_all(&mut self, repeat: u32) -> Result<&Profiles> {
        for program in self.programs.clone() {
            let profile = self.calibrate(program, repeat).await?;
            self.profiles.insert(program.name().to_owned(), profile);
        }
        Ok(&self.profiles)
    }

    async fn mrctl(&self, args: &[&str]) -> Result<String> {
        let own = std::env::current_exe().context("cannot find the program file of mrctl")?;
        let mut command = Command::new(own);
        command.arg("--config").arg(&self.config).args(args).stdin(Stdio::null()).kill_on_drop(true);
        command.env(RUN, self.machines.folder());
        let ran = command.output().await.context("cannot run mrctl")?;
        let why = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "`mrctl {}` failed: {}", args.join(" "), why.trim());
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// Writes histories to a file of this name, if that was asked for.
    fn save(&self, name: &str, texts: &[(String, String)]) -> Result<()> {
        let Some(folder) = &self.histories else { return Ok(()) };
        let file = folder.join(format!("{name}.jsonl"));
        let all: String = texts.iter().map(|(_, text)| text.as_str()).collect();
        daemon::files::replace(&file, all.as_bytes(), daemon::files::USUAL, true)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Waits until the TaskTrackers and DataNodes of all nodes are live.
    async fn await_nodes(&self) -> Result<()> {
        let deadline = Instant::now() + RUN_TIMEOUT;
        loop {
            let trackers = self.tracker.trackers().await?;
            let trackers = trackers.iter().filter(|tracker| tracker.state == "live").count();
            let nodes = self.files.report().await?.nodes;
            let nodes = nodes.iter().filter(|node| node.state == NodeState::Live && node.reported).count();
            if (trackers, nodes) == (NODES, NODES) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "only {trackers} TaskTrackers and {nodes} DataNodes of {NODES} nodes are live after {} s",
                RUN_TIMEOUT.as_secs()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn put_input(&self, program: Program, bytes: u64, seed: u64, to: &str) -> Result<()> {
        let file = self.config.with_file_name("input");
        match program {
            Program::Terasort => plain::make_records(&file, bytes, seed)?,
            Program::Wordcount | Program::Streaming => plain::make_text(&file, bytes, seed)?,
        }
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        self.files.put(PutSource::File(file.clone()), &DfsPath::parse(to)?, options, &()).await?;
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
    }

    /// Measures the profile of a program on input of its own, with splits of different sizes, which
    /// separates the time of a start from that of the input.
    async fn calibrate(&self, program: Program, repeat: u32) -> Result<Profile> {
        let (from, mut histories) = (calibration_input(program), Vec::new());
        for divisor in [1, 4] {
            self.machines.drop_caches()?;
            let whole = Job { at_s: 0.0, user: "ann", program, part: 2, reduces: 4 };
            let id = self.submit(&whole, program.name(), &from, "/out/calibration", divisor).await?;
            histories.extend(self.await_histories(std::slice::from_ref(&id)).await?);
            self.mrctl(&["fs", "rm", "--recursive", "/out/calibration"]).await?;
        }
        self.save(&format!("calibration-{}-{repeat}", program.name()), &histories)?;
        let measured = |texts: &[(String, String)], by_cpu_time: bool| {
            let all = history::read_texts(texts)?.calibrate(by_cpu_time);
            let found = all.iter().find(|one| one.name == program.name()).and_then(Calibrated::profile);
            found.with_context(|| format!("{}: too little input to measure it", program.name()))
        };
        // The output of a combiner depends on the size of a split, so sizes are those of whole splits.
        let (both, whole) = (measured(&histories, true)?, measured(&histories[..1], true)?);
        // A start waits more than it computes: for messages, and for files of the program.
        let start_s = measured(&histories, false)?.start_s;
        Ok(Profile { map_mbps: both.map_mbps, start_s, ..whole })
    }

    /// Submits a job whose splits are those of the workloads, divided by `divisor`.
    async fn submit(&self, job: &Job, name: &str, from: &str, to: &str, divisor: u64) -> Result<String> {
        let (program, reduces) = (job.program.name(), job.reduces.to_string());
        let fixed =
            ["submit", program, "--name", name, "--input", from, "--output", to, "--reduces", &reduces];
        let split = format!("split.size={}", self.block / divisor);
        let replication = format!("output.replication={OUTPUT_REPLICATION}");
        let conf = ["--conf", "speculation=false", "--conf", &replication, "--conf", &split];
        let more = ["--user", job.user, "--detach", "--json"];
        let printed = self.mrctl(&[&fixed[..], job.program.flags(), &conf, &more].concat()).await?;
        let job: serde_json::Value = serde_json::from_str(&printed).unwrap_or_default();
        let id = job["job"].as_str().context("`mrctl submit --json` did not print a job")?;
        Ok(id.to_owned())
    }

    /// Waits until the jobs have succeeded, and returns the texts of their histories, with their IDs.
    async fn await_histories(&self, ids: &[String]) -> Result<Vec<(String, String)>> {
        let deadline = Instant::now() + RUN_TIMEOUT;
        let mut texts = Vec::new();
        for id in ids {
            loop {
                let job = self.tracker.job(id).await?;
                if job.has_ended() {
                    ensure!(job.state == "succeeded", "{id} {} {}: {}", job.name, job.state, job.why);
                    break;
                }
                ensure!(Instant::now() < deadline, "{id} has not ended after {} s", RUN_TIMEOUT.as_secs());
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let mut text = String::new();
            self.tracker
                .history(id, |chunk| {
                    text.push_str(chunk);
                    Ok::<(), client::Error>(())
                })
                .await?;
            texts.push((id.clone(), text));
        }
        Ok(texts)
    }

    /// Runs a workload once, simulates the run, and compares both.
    pub(super) async fn compare(&self, workload: &Workload, seed: u64) -> Result<Comparison> {
        self.machines.drop_caches()?;
        let before = CpuTimes::now();
        let first = self.submit_one(workload, 0).await?;
        // The first submission of a sort samples its input, which takes seconds.
        let began = Instant::now();
        let (others, killed) =
            tokio::join!(self.submit_others(workload, began), self.kill_node(workload, began));
        killed?;
        let ids = [vec![first], others?].concat();
        let texts = self.await_histories(&ids).await?;
        let steal = CpuTimes::now().steal_since(&before);
        if workload.dies.is_some() {
            self.machines.start_daemons()?;
            self.await_nodes().await?;
        }
        for number in 0..workload.jobs.len() {
            self.mrctl(&["fs", "rm", "--recursive", &output_folder(number)]).await?;
        }
        self.save(&format!("{}-{seed}", workload.name), &texts)?;
        let mut history = history::read_texts(&texts)?;
        ensure!(
            history.real.len() == workload.jobs.len(),
            "{} complete histories of {}",
            history.real.len(),
            output::count(workload.jobs.len() as u64, "job")
        );
        let simulate = |number: u32| {
            let later_s = 1.0 + f64::from(number) / f64::from(SIMULATIONS);
            let faults = history.losses.iter().filter_map(|(tracker, lost, back)| {
                let node = node_of(&history, *tracker)?;
                // A tracker is lost this long after its last heartbeat.
                let at_s = lost.as_secs_f64() - LOST_AFTER.as_secs_f64() + HEARTBEAT.as_secs_f64() / 2.0;
                let for_s = back.map(|back| back.as_secs_f64() - at_s);
                Some(Fault { at_s: at_s + later_s, for_s, what: FaultKind::Node { node } })
            });
            let seed = seed * u64::from(SIMULATIONS) + u64::from(number);
            let (setup, plan) = (setup(seed, faults.collect()), self.plan(workload, &history, later_s)?);
            let size = CaseSize::of(&setup, &plan);
            let outcome = World::new(setup, plan)?.run(None);
            let outcome = outcome.map_err(|broken| anyhow::anyhow!("{}: {broken}", workload.name))?;
            anyhow::Ok((size, outcome))
        };
        let simulated = (0..SIMULATIONS).map(simulate).collect::<Result<Vec<_>>>()?;
        let (sizes, simulated): (Vec<CaseSize>, Vec<_>) = simulated.into_iter().unzip();
        let real = history.outcome("fair");
        Comparison::of(workload.name, sizes[0], &real, &simulated, steal)
    }

    async fn submit_one(&self, workload: &Workload, number: usize) -> Result<String> {
        let job = &workload.jobs[number];
        let name = format!("{}-{}", job.program.name(), number + 1);
        self.submit(job, &name, &input(job.program, job.part), &output_folder(number), 1).await
    }

    async fn submit_others(&self, workload: &Workload, began: Instant) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for (number, job) in workload.jobs.iter().enumerate().skip(1) {
            sleep_until(began, job.at_s).await;
            ids.push(self.submit_one(workload, number).await?);
        }
        Ok(ids)
    }

    async fn kill_node(&self, workload: &Workload, began: Instant) -> Result<()> {
        let Some((at_s, node)) = workload.dies else { return Ok(()) };
        sleep_until(began, at_s).await;
        self.machines.kill(node)
    }

    /// Returns the jobs of a run with predicted tasks: the splits, block locations and submission
    /// times of the run, `later_s` later, and the rates of the profiles.
    fn plan(&self, workload: &Workload, history: &History, later_s: f64) -> Result<sim::Workload> {
        let mut planned = history.workload.clone();
        for (job, program) in planned.jobs.iter_mut().zip(&workload.jobs) {
            let name = program.program.name();
            let Some(profile) = self.profiles.get(name) else { bail!("{name} was not measured") };
            job.predict(profile);
            job.at = job.at + sim::workload::seconds(later_s);
            job.hosts = job
                .hosts
                .iter()
                .map(|hosts| hosts.iter().filter_map(|host| node_of(history, *host)).collect())
                .collect();
        }
        Ok(planned)
    }
}

/// Returns the number of the machine of a tracker in a history.
fn node_of(history: &History, tracker: u32) -> Option<u32> {
    let name = history.trackers.get(tracker as usize)?;
    (0..NODES).find(|node| Machines::node(*node) == *name).map(|node| node as u32)
}

async fn sleep_until(began: Instant, seconds: f64) {
    tokio::time::sleep_until((began + Duration::from_secs_f64(seconds)).into()).await;
}
