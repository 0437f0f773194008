//! `mrctl bench preempt`: how soon a preempted slot is free, what preemption costs, and what kills
//! would cost.
//!
//! One job runs repeatedly at the same rates. For the costs, three runs alternate: undisturbed,
//! with every task preempted once, and with every task killed once. For the latencies, maps are
//! split and reduces are paused all the time, one after another; then all at once; then reduces are
//! paused in shuffle when nearly all map outputs have been fetched. Latencies are measured by the
//! JobTracker, from the request until the slot is free. All nodes share the cores of this machine,
//! so attempts that are preempted at the same time wait for each other; limits apply only to one at
//! a time.

use super::{
    super::{check_free_space, measurement::Measurement, note_build},
    cluster::Cluster,
};
use crate::bench::measurement::{Limit, median};
use anyhow::{Result, ensure};
use client::{
    PreemptKind,
    model::{Attempt, Job},
};
use daemon::Bytes;
use mrlib_api::TaskControl;
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum number of pauses of each reduce in each stage.
const PAUSES_PER_STAGE: usize = 6;
/// The maximum number of splits of all maps together.
const SPLITS_MAX: usize = 120;
/// The progress at which a map and a reduce are preempted once. The map has done half of its work,
/// the reduce half of its last stage.
const PREEMPT_PROGRESS: [f64; 2] = [0.5, 0.83];
/// The number of rounds for the comparison of costs.
const ROUNDS: usize = 3;
/// The number of rounds with a pause in shuffle.
const SHUFFLE_ROUNDS: usize = 3;
/// How long to wait until a reduce has fetched the outputs of completed maps.
const FETCH_TIME: Duration = Duration::from_millis(700);
const INPUT_COPIES: u64 = 8;
const TASK_SECONDS: u64 = 6;
const ROW_BYTES: u64 = 100;
/// The number of flag checks that are timed together.
const FLAG_CHECKS: usize = 10_000_000;

/// Measure preemption: how soon slots are free, its cost, and the cost of kills
///
/// Starts a cluster of its own in a temporary folder and removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl bench preempt\n  mrctl bench preempt --size 64MiB --json")]
pub struct Args {
    /// Size of the input
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    size: Bytes,
    /// Number of nodes, each with a datanode and a tasktracker
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=50))]
    nodes: u32,
    /// Folder for all data [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(in crate::bench) dir: PathBuf,
    /// Print JSON: the measurements, and tables of them with the machine and the commit
    #[arg(long)]
    pub(in crate::bench) json: bool,
}

/// How a job is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Undisturbed,
    /// Every task is split or paused once.
    Once,
    /// Every task is killed once.
    Killed,
    /// Splits and pauses all the time, one at a time.
    Continuous,
    /// Splits and pauses all the time, all tasks at once.
    Bursts,
}

/// The preemptions of a job so far.
#[derive(Default)]
struct PreemptedTasks {
    /// The tasks as submitted, without the remainders of split maps.
    tasks: Vec<String>,
    /// The tasks that were preempted, for runs with one preemption per task.
    preempted_tasks: Vec<String>,
    splits: usize,
}

/// Runs all measurements.
pub(in crate::bench) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Measurement>> {
    note_build(args.json);
    check_free_space(&args.dir, args.size, INPUT_COPIES)?;
    let print_status = |text: &str| {
        if !args.json {
            eprintln!("{text}");
        }
    };
    let cluster = Cluster::start(folder, args.nodes).await?;
    let rows = args.size.0 / ROW_BYTES;
    let (rows, maps) = (format!("rows={rows}"), format!("maps={}", args.nodes));
    cluster.submit(&["teragen", "--output", "/gen", "--conf", &rows, "--conf", &maps]).await?;
    let bench = Bench { cluster: &cluster, nodes: args.nodes, size: args.size.0 };
    print_status("splits and pauses, one at a time");
    let continuous = bench.run(Disturbance::Continuous).await?;
    let mut figures = bench.latencies(&continuous.job, Some(folder)).await?;
    print_status("splits and pauses, all at once");
    let bursts = bench.run(Disturbance::Bursts).await?;
    figures.extend(bench.latencies(&bursts.job, None).await?);
    let mut costs = Costs::default();
    let mut ran = vec![continuous, bursts];
    for round in 1..=ROUNDS {
        print_status(&format!(
            "undisturbed, each task preempted once, each killed once: {round} of {ROUNDS}"
        ));
        for disturbance in [Disturbance::Undisturbed, Disturbance::Once, Disturbance::Killed] {
            let one = bench.run(disturbance).await?;
            costs.add(disturbance, &one);
            ran.push(one);
        }
    }
    let sums = ran.iter().map(|one| (one.sum, &one.job.job)).collect::<Vec<_>>();
    for (sum, job) in &sums {
        ensure!(*sum == sums[0].0, "the output of {job} differs from that of {}", sums[0].1);
    }
    figures.extend(costs.figures());
    print_status("paused in shuffle");
    figures.push(bench.measure_shuffle_pauses(folder).await?);
    Ok(figures)
}

/// A completed run of the job.
struct CompletedRun {
    job: Job,
    /// A checksum of its output.
    sum: u32,
    /// CPU seconds of its maps and of its reduces.
    cpu: [f64; 2],
    /// The number of tasks that were preempted once, and the number of all tasks.
    preempted_tasks: (usize, usize),
}

struct Bench<'a> {
    cluster: &'a Cluster,
    nodes: u32,
    size: u64,
}

impl Bench<'_> {
    /// Runs the job with this disturbance.
    async fn run(&self, disturbance: Disturbance) -> Result<CompletedRun> {
        let output = format!("/{disturbance:?}").to_lowercase();
        let id = self.submit(&output, self.nodes).await?;
        let mut preempted = PreemptedTasks::default();
        let job = loop {
            let job = self.cluster.tracker.job(&id).await?;
            if job.has_ended() {
                break job;
            }
            if disturbance != Disturbance::Undisturbed {
                self.disturb(&id, disturbance, &mut preempted).await?;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
        let mut sum = 0;
        let add = |bytes: &[u8]| {
            sum = crc32c::crc32c_append(sum, bytes);
            Ok(())
        };
        self.cluster.output(&output, add).await?;
        self.cluster.delete(&output).await?;
        let cpu = self.cluster.cpu_seconds_by_phase(&id).await?;
        Ok(CompletedRun {
            job,
            sum,
            cpu,
            preempted_tasks: (preempted.preempted_tasks.len(), preempted.tasks.len()),
        })
    }

    /// Submits the job by `mrctl submit`, which samples its input for the total order.
    async fn submit(&self, output: &str, reduces: u32) -> Result<String> {
        // A few seconds per task, so that there is time to preempt it.
        let pace = |tasks: u32| (self.size / u64::from(tasks) / TASK_SECONDS).max(1 << 16);
        let paces = [format!("pace.map={}", pace(self.nodes)), format!("pace.reduce={}", pace(reduces))];
        let reduces = reduces.to_string();
        let mut arguments =
            vec!["terasort", "--input", "/gen", "--output", output, "--reduces", &reduces, "--detach"];
        arguments.extend(["--conf", &paces[0], "--conf", &paces[1], "--conf", "slow.start=0"]);
        Ok(self.cluster.submit_without_cost(&arguments).await?.0)
    }

    /// Preempts and resumes tasks. A request that comes too late is refused, which is no error.
    async fn disturb(
        &self,
        id: &str,
        disturbance: Disturbance,
        preempted: &mut PreemptedTasks,
    ) -> Result<()> {
        let tracker = &self.cluster.tracker;
        let tasks = tracker.tasks(id).await?;
        if preempted.tasks.is_empty() {
            preempted.tasks = tasks.iter().map(|task| task.task.clone()).collect();
        }
        let is_stopping = |state: &str| ["splitting", "pausing", "stopping"].contains(&state);
        let mut attempts = tasks.iter().flat_map(|task| &task.attempts);
        let mut busy = attempts.any(|attempt| is_stopping(&attempt.state));
        for task in tasks {
            if busy && disturbance == Disturbance::Continuous {
                return Ok(());
            }
            if task.on_hold {
                tracker.resume(&task.task, None).await.ok();
            }
            let Some(attempt) = task.attempts.iter().rfind(|attempt| attempt.state == "running") else {
                continue;
            };
            let is_map = task.task.contains(".m");
            let how = match (disturbance, is_map) {
                (Disturbance::Killed, _) => PreemptKind::Kill,
                (_, true) => PreemptKind::Split,
                (_, false) => PreemptKind::Pause,
            };
            let wanted = match disturbance {
                Disturbance::Continuous | Disturbance::Bursts => {
                    let in_stage = |other: &&Attempt| other.stage == attempt.stage;
                    let pauses = task.attempts.iter().filter(in_stage).count() - 1;
                    // Do not preempt directly after the launch, when there is no work to lose yet.
                    attempt.progress > 0.05
                        && if is_map { preempted.splits < SPLITS_MAX } else { pauses < PAUSES_PER_STAGE }
                }
                _ => {
                    attempt.progress > PREEMPT_PROGRESS[usize::from(!is_map)]
                        && preempted.tasks.contains(&task.task)
                        && !preempted.preempted_tasks.contains(&task.task)
                }
            };
            if wanted && tracker.preempt(&attempt.attempt, how).await.is_ok() {
                preempted.splits += usize::from(is_map);
                preempted.preempted_tasks.push(task.task.clone());
                busy = true;
            }
        }
        Ok(())
    }

    /// Returns how long the preempted attempts took to free their slots. `scratch` is a folder in
    /// which plain writes are timed for comparison. It is None if the attempts were preempted all
    /// at once; then no limits apply.
    async fn latencies(&self, job: &Job, scratch: Option<&Path>) -> Result<Vec<Measurement>> {
        let tasks = self.cluster.tracker.tasks(&job.job).await?;
        let of = |how: &str, stage: &str| -> Vec<f64> {
            let attempts = tasks.iter().flat_map(|task| &task.attempts);
            let ended = attempts.filter(|attempt| attempt.preempt_kind == how && attempt.ended_ms > 0);
            let ended = ended.filter(|attempt| stage.is_empty() || attempt.stage == stage);
            ended.map(|attempt| attempt.ended_ms.saturating_sub(attempt.preempted_ms) as f64).collect()
        };
        let mut figures = Vec::new();
        let (splits, pauses) = (job.preemption.splits, job.preemption.pauses);
        let mean = |counter: &str, times: u32| {
            job.counters.get(counter).copied().unwrap_or(0) as f64 / f64::from(times.max(1))
        };
        // The limit of a pause includes the time to write the data that the reduce has in memory.
        let memory_bytes = mean("CHECKPOINT_MEMORY_BYTES", pauses) as u64;
        let flush = scratch
            .map(|folder| measure_write_ms(&folder.join("plain"), memory_bytes))
            .transpose()?
            .unwrap_or_default();
        let kinds = [
            ("split", "", 50.0, 250.0),
            ("pause", "shuffle", 0.0, 0.0),
            ("pause", "reduce", 100.0 + flush, 0.0),
        ];
        for (how, stage, middle, late) in kinds {
            let times = of(how, stage);
            let what = if stage.is_empty() { how.to_owned() } else { format!("{how} in {stage}") };
            let what = if scratch.is_some() { what } else { format!("{what}, all preempted at once") };
            let limit = |most: f64| (scratch.is_some() && most > 0.0).then_some(Limit::AtMost(most));
            if times.is_empty() {
                ensure!(limit(middle).is_none(), "no attempt was preempted by {what}: use a larger --size");
                continue;
            }
            let name = format!("slot free after {what}, median of {}", times.len());
            figures.push(Measurement {
                limit: limit(middle),
                ..Measurement::unlimited(name, median(times.clone()), "ms")
            });
            let name = format!("slot free after {what}, p99");
            figures.push(Measurement {
                limit: limit(late),
                ..Measurement::unlimited(name, percentile(times, 99), "ms")
            });
        }
        if scratch.is_none() {
            return Ok(figures);
        }
        // Also report the part of this time that the tasks themselves need. The remainder is for
        // messages and journals.
        let name = format!(
            "writing and syncing {}, as much as a paused reduce has in memory, mean",
            view::output::human(memory_bytes)
        );
        figures.push(Measurement::unlimited(name, flush, "ms"));
        for (name, took) in [
            (
                "split, the part of the task: sorting and writing its output, mean",
                mean("SPLIT_MILLISECONDS", splits),
            ),
            ("pause, the part of the task: writing its checkpoint, mean", mean("PAUSE_MILLISECONDS", pauses)),
        ] {
            figures.push(Measurement::unlimited(name, took, "ms"));
        }
        let resuming = mean("RESUME_MILLISECONDS", job.preemption.resumes);
        let limit = Some(Limit::AtMost(100.0));
        figures.push(Measurement {
            limit,
            ..Measurement::unlimited(
                "resume: from the start of the attempt to its first record, mean",
                resuming,
                "ms",
            )
        });
        Ok(figures)
    }

    async fn measure_shuffle_pauses(&self, folder: &Path) -> Result<Measurement> {
        let (mut took, mut plain, mut written) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SHUFFLE_ROUNDS {
            let (milliseconds, bytes) = self.pause_in_shuffle().await?;
            took.push(milliseconds);
            plain.push(measure_write_ms(&folder.join("plain"), bytes)?);
            written = bytes;
        }
        let name = format!(
            "slot free after a pause in shuffle with a checkpoint of {}, median of {SHUFFLE_ROUNDS}",
            view::output::human(written)
        );
        Ok(Measurement {
            limit: Some(Limit::AtMostOfBaseline(1.0)),
            baseline: Some(median(plain)),
            baseline_name: Some("writing and syncing as many bytes"),
            ..Measurement::unlimited(name, median(took), "ms")
        })
    }

    /// Pauses a reduce when nearly all map outputs have been fetched and one map is missing.
    /// Returns the time until the slot was free, and the size of the checkpoint.
    async fn pause_in_shuffle(&self) -> Result<(f64, u64)> {
        let (tracker, output) = (&self.cluster.tracker, "/shuffle");
        let id = self.submit(output, 1).await?;
        let reduce = format!("{id}.r0");
        let (mut requested, mut written) = (false, 0);
        let job = loop {
            let job = tracker.job(&id).await?;
            if job.has_ended() {
                break job;
            }
            if !requested && job.maps.done + 1 >= job.maps.total {
                tokio::time::sleep(FETCH_TIME).await;
                requested = tracker.preempt(&format!("{reduce}.0"), PreemptKind::Pause).await.is_ok();
            }
            let task = tracker.tasks(&id).await?.into_iter().find(|task| task.task == reduce);
            if let Some(task) = task.filter(|task| task.on_hold && !task.paused.is_empty()) {
                written = task.paused_bytes;
                tracker.resume(&reduce, None).await.ok();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
        self.cluster.delete(output).await?;
        Ok((job.preemption.latency_ms as f64, written))
    }
}

/// Returns how many milliseconds it takes to write and sync this many bytes.
fn measure_write_ms(path: &Path, bytes: u64) -> Result<f64> {
    let portion = vec![7; 1 << 20];
    let started = Instant::now();
    let mut file = std::fs::File::create(path)?;
    for _ in 0..bytes.div_ceil(portion.len() as u64) {
        file.write_all(&portion)?;
    }
    file.sync_all()?;
    let took = started.elapsed();
    std::fs::remove_file(path)?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// The cost of the same job undisturbed, with each task preempted once, and with each killed once.
#[derive(Default)]
struct Costs {
    /// The costs of the undisturbed job in each round: CPU time of maps, CPU time of reduces,
    /// duration of the job, and work lost, all in seconds.
    undisturbed: [Vec<f64>; 4],
    /// The same with each task preempted once.
    once: [Vec<f64>; 4],
    /// The same with each task killed once.
    killed: [Vec<f64>; 4],
    /// The number of tasks that were preempted once, and the number of all tasks.
    tasks: (usize, usize),
    /// Checks of the preemption flag in an undisturbed job: one per record and one per key.
    flag_checks: u64,
}

impl Costs {
    fn add(&mut self, disturbance: Disturbance, ran: &CompletedRun) {
        let job = &ran.job;
        let counter = |name: &str| job.counters.get(name).copied().unwrap_or(0);
        let figures = [ran.cpu[0], ran.cpu[1], job.seconds(), job.preemption.ms_lost as f64 / 1000.0];
        let of = match disturbance {
            Disturbance::Once => &mut self.once,
            Disturbance::Killed => &mut self.killed,
            _ => &mut self.undisturbed,
        };
        for (all, one) in of.iter_mut().zip(figures) {
            all.push(one);
        }
        match disturbance {
            Disturbance::Once => self.tasks = ran.preempted_tasks,
            Disturbance::Undisturbed => {
                let counted = ["MAP_INPUT_RECORDS", "REDUCE_INPUT_RECORDS", "REDUCE_INPUT_GROUPS"];
                self.flag_checks = counted.iter().map(|name| counter(name)).sum();
            }
            _ => {}
        }
    }

    fn figures(self) -> Vec<Measurement> {
        let [plain, once, killed] = [self.undisturbed, self.once, self.killed].map(|of| of.map(median));
        let [time, lost] = [2, 3];
        let checking =
            100.0 * self.flag_checks as f64 * flag_check_seconds() / (plain[0] + plain[1]).max(0.001);
        let (preempted, all) = self.tasks;
        let flag_checks =
            format!("{} preemption checks of an undisturbed job, as measured in a loop", self.flag_checks);
        let undisturbed = |name: &str, value: f64, baseline: f64| Measurement {
            baseline: Some(baseline),
            baseline_name: Some("undisturbed"),
            ..Measurement::unlimited(name, value, "s")
        };
        vec![
            Measurement {
                limit: Some(Limit::AtMost(1.0)),
                ..Measurement::unlimited(flag_checks, checking, "% of its CPU time")
            },
            Measurement {
                limit: Some(Limit::AtMostOfBaseline(1.03)),
                ..undisturbed("CPU time of maps, each split once, median", once[0], plain[0])
            },
            Measurement {
                limit: Some(Limit::AtMostOfBaseline(1.03)),
                ..undisturbed("CPU time of reduces, each paused once, median", once[1], plain[1])
            },
            Measurement::unlimited(format!("tasks preempted once, of {all}"), preempted as f64, "tasks"),
            Measurement {
                limit: Some(Limit::AtMost(0.0)),
                baseline: Some(killed[lost]),
                baseline_name: Some("with kills"),
                ..Measurement::unlimited("work lost to splits and pauses", once[lost], "s")
            },
            undisturbed("time of the job, each task split or paused once", once[time], plain[time]),
            undisturbed("time of the job, each task killed once", killed[time], plain[time]),
        ]
    }
}

/// Returns how many seconds one check of the preemption flag of a task takes, in the fastest of
/// several loops.
fn flag_check_seconds() -> f64 {
    let control = TaskControl::default();
    let once = || {
        let started = Instant::now();
        let quiet = (0..FLAG_CHECKS)
            .filter(|_| std::hint::black_box(&control).preempt_request().is_ok_and(|kind| kind.is_none()));
        std::hint::black_box(quiet.count());
        started.elapsed().as_secs_f64() / FLAG_CHECKS as f64
    };
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Returns the percentile `percent`.
fn percentile(mut times: Vec<f64>, percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn p99_of_200_values_is_the_198th() {
        assert!((percentile((1..=200).map(f64::from).collect(), 99) - 198.0).abs() < 1e-9);
        assert!(percentile(Vec::new(), 99).abs() < 1e-9);
    }
}
