//! `mrctl bench preempt`: how soon a slot is free, what it costs to take it back, and what a kill would have thrown away.
//!
//! One job is run again and again with the same paces. For costs: undisturbed, with every task taken back once, and the
//! same by kills, in turn. For latencies: with its maps split and its reduces paused one after another all the time, the
//! same with all at once, and paused in shuffle when nearly everything has been fetched. Latencies are the JobTracker's:
//! from the word to the free slot. All nodes share this machine's cores, so that those asked at once wait for each other
//! too: limits are for one at a time.

use super::{
    super::{check_free_space, measurement::Measurement, note_build},
    cluster::Cluster,
};
use crate::{
    bench::measurement::{Limit, median},
    job::{model::Job, preempt::How},
};
use anyhow::{Result, ensure};
use daemon::Bytes;
use mrlib::engine::{PreemptRequest, TaskControl};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Of each reduce, and of all maps together.
const PAUSES: usize = 12;
const SPLITS: usize = 120;
/// How far a map is, and a reduce, when it is taken back once: half of its way, half of its last stage.
const HALF: [f64; 2] = [0.5, 0.83];
/// Of jobs whose costs are compared.
const ROUNDS: usize = 3;
/// Of pauses in shuffle.
const SHUFFLES: usize = 3;
/// For what maps have finished to be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_millis(700);
const COPIES: u64 = 8;
const TASK_SECONDS: u64 = 6;
const ROW_BYTES: u64 = 100;
/// Looks at a flag that are timed together.
const FLAG_CHECKS: usize = 10_000_000;

/// Preemption: how soon they are free, what it costs, and what a kill would have cost
///
/// Starts a cluster of its own in a temporary folder and removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl bench preempt\n  mrctl bench preempt --size 64MiB --json")]
pub(crate) struct Args {
    /// Bytes to sort
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    size: Bytes,
    /// Nodes, each a datanode and a tasktracker
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=50))]
    nodes: u32,
    /// Folder for everything [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(in crate::bench) dir: PathBuf,
    /// As JSON: one array of figures
    #[arg(long)]
    pub(in crate::bench) json: bool,
}

/// What befalls a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Calm,
    /// Every task is split or paused once,
    Once,
    /// or killed once.
    Killed,
    /// Splits and pauses all the time, one at a time.
    Continuous,
    /// The same, everything at once.
    Bursts,
}

/// What has befallen a job so far.
#[derive(Default)]
struct PreemptedTasks {
    /// The tasks that it began with: not the rests of split maps.
    tasks: Vec<String>,
    /// Those that were taken back, where once is enough.
    once: Vec<String>,
    splits: usize,
}

/// Measures all of it.
pub(in crate::bench) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Measurement>> {
    note_build(args.json);
    check_free_space(&args.dir, args.size, COPIES)?;
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
    print_status("split and paused, again and again");
    let continuous = bench.run(Disturbance::Continuous).await?;
    let mut figures = bench.latencies(&continuous.job, Some(folder)).await?;
    print_status("the same, all at once");
    let bursts = bench.run(Disturbance::Bursts).await?;
    figures.extend(bench.latencies(&bursts.job, None).await?);
    let mut costs = Costs::default();
    let mut ran = vec![continuous, bursts];
    for round in 1..=ROUNDS {
        print_status(&format!(
            "undisturbed, each task preempted once, each killed once: {round} of {ROUNDS}"
        ));
        for disturbance in [Disturbance::Calm, Disturbance::Once, Disturbance::Killed] {
            let one = bench.run(disturbance).await?;
            costs.add(disturbance, &one);
            ran.push(one);
        }
    }
    let sums = ran.iter().map(|one| (one.sum, &one.job.job)).collect::<Vec<_>>();
    for (sum, job) in &sums {
        ensure!(*sum == sums[0].0, "{job} put out other bytes than {}", sums[0].1);
    }
    figures.extend(costs.figures());
    print_status("paused in shuffle");
    figures.push(bench.shuffles(folder).await?);
    Ok(figures)
}

/// A job that has been run.
struct Ran {
    job: Job,
    /// A checksum of its output.
    sum: u32,
    /// Processor time of its maps and of its reduces, in seconds.
    cpu: [f64; 2],
    /// How many of its tasks were taken back once.
    once: (usize, usize),
}

struct Bench<'a> {
    cluster: &'a Cluster,
    nodes: u32,
    size: u64,
}

impl Bench<'_> {
    /// Runs the job in this weather.
    async fn run(&self, disturbance: Disturbance) -> Result<Ran> {
        let output = format!("/{disturbance:?}").to_lowercase();
        let id = self.submit(&output, self.nodes).await?;
        let mut preempted = PreemptedTasks::default();
        let job = loop {
            let job = self.cluster.tracker.job(&id).await?;
            if job.is_over() {
                break job;
            }
            if disturbance != Disturbance::Calm {
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
        let cpu = self.cluster.by_phase(&id).await?;
        Ok(Ran { job, sum, cpu, once: (preempted.once.len(), preempted.tasks.len()) })
    }

    /// As a user would submit it: what is sorted as a whole is sampled first.
    async fn submit(&self, output: &str, reduces: u32) -> Result<String> {
        // A few seconds a task, so that there is something to take back.
        let pace = |tasks: u32| (self.size / u64::from(tasks) / TASK_SECONDS).max(1 << 16);
        let paces = [format!("pace.map={}", pace(self.nodes)), format!("pace.reduce={}", pace(reduces))];
        let reduces = reduces.to_string();
        let mut arguments =
            vec!["terasort", "--input", "/gen", "--output", output, "--reduces", &reduces, "--detach"];
        arguments.extend(["--conf", &paces[0], "--conf", &paces[1], "--conf", "slow.start=0"]);
        Ok(self.cluster.submit_uncounted(&arguments).await?.0)
    }

    /// Whatever is asked may come too late, which is refused in words.
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
        let gives_back = |state: &str| ["splitting", "pausing", "stopping"].contains(&state);
        let mut attempts = tasks.iter().flat_map(|task| &task.attempts);
        let mut busy = attempts.any(|attempt| gives_back(&attempt.state));
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
                (Disturbance::Killed, _) => How::Kill,
                (_, true) => How::Split,
                (_, false) => How::Pause,
            };
            let wanted = match disturbance {
                Disturbance::Continuous | Disturbance::Bursts => {
                    // Not at once: there must be something to lose.
                    attempt.progress > 0.05
                        && task.attempts.len() <= PAUSES
                        && (!is_map || preempted.splits < SPLITS)
                }
                _ => {
                    attempt.progress > HALF[usize::from(!is_map)]
                        && preempted.tasks.contains(&task.task)
                        && !preempted.once.contains(&task.task)
                }
            };
            if wanted && tracker.preempt(&attempt.attempt, how).await.is_ok() {
                preempted.splits += usize::from(is_map);
                preempted.once.push(task.task.clone());
                busy = true;
            }
        }
        Ok(())
    }

    /// How soon slots were free. `alone`, with a folder to write into: they were taken back one at a time, and the
    /// limits are for that.
    async fn latencies(&self, job: &Job, alone: Option<&Path>) -> Result<Vec<Measurement>> {
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
        // A reduce may take as long more as it takes to write what it holds in memory.
        let on_hold = mean("CHECKPOINT_MEMORY_BYTES", pauses) as u64;
        let flush =
            alone.map(|folder| write(&folder.join("plain"), on_hold)).transpose()?.unwrap_or_default();
        let kinds = [
            ("split", "", 50.0, 250.0),
            ("pause", "shuffle", 0.0, 0.0),
            ("pause", "reduce", 100.0 + flush, 0.0),
        ];
        for (how, stage, middle, late) in kinds {
            let times = of(how, stage);
            let what = if stage.is_empty() { how.to_owned() } else { format!("{how} in {stage}") };
            let what = if alone.is_some() { what } else { format!("{what}, all preempted at once") };
            let limit = |most: f64| (alone.is_some() && most > 0.0).then_some(Limit::AtMost(most));
            let name = format!("slot free after {what}, median of {}", times.len());
            figures.push(Measurement {
                limit: limit(middle),
                ..Measurement::unlimited(name, median(times.clone()), "ms")
            });
            let name = format!("slot free after {what}, 99 of 100 within");
            figures.push(Measurement {
                limit: limit(late),
                ..Measurement::unlimited(name, within(times, 99), "ms")
            });
        }
        if alone.is_none() {
            return Ok(figures);
        }
        // What tasks themselves take of it: the rest is on the way, and in journals.
        let name = format!(
            "writing and syncing {}, as much as a paused reduce has in memory, mean",
            crate::output::human(on_hold)
        );
        figures.push(Measurement::unlimited(name, flush, "ms"));
        for (name, took) in [
            (
                "of a split, the task's own part: its output sorted and written, mean",
                mean("SPLIT_MILLISECONDS", splits),
            ),
            (
                "of a pause, the task's own part: its state on the disks, mean",
                mean("PAUSE_MILLISECONDS", pauses),
            ),
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

    async fn shuffles(&self, folder: &Path) -> Result<Measurement> {
        let (mut took, mut plain, mut written) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SHUFFLES {
            let (milliseconds, bytes) = self.shuffle().await?;
            took.push(milliseconds);
            plain.push(write(&folder.join("plain"), bytes)?);
            written = bytes;
        }
        let name = format!(
            "slot free after a pause in shuffle with a checkpoint of {}, median of {SHUFFLES}",
            crate::output::human(written)
        );
        Ok(Measurement {
            limit: Some(Limit::AtMostOfBaseline(1.0)),
            baseline: Some(median(plain)),
            baseline_name: Some("writing and syncing as many bytes"),
            ..Measurement::unlimited(name, median(took), "ms")
        })
    }

    /// Nearly everything has been fetched, and one map is missing: how soon the slot was free, and the checkpoint.
    async fn shuffle(&self) -> Result<(f64, u64)> {
        let (tracker, output) = (&self.cluster.tracker, "/shuffle");
        let id = self.submit(output, 1).await?;
        let reduce = format!("{id}.r0");
        let (mut asked, mut written) = (false, 0);
        let job = loop {
            let job = tracker.job(&id).await?;
            if job.is_over() {
                break job;
            }
            if !asked && job.maps.done + 1 >= job.maps.total {
                tokio::time::sleep(FETCH_TIMEOUT).await;
                asked = tracker.preempt(&format!("{reduce}.0"), How::Pause).await.is_ok();
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

/// Milliseconds to write so many bytes for good.
fn write(path: &Path, bytes: u64) -> Result<f64> {
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

/// What the same jobs took in peace, with each task taken back once, and with each killed once.
#[derive(Default)]
struct Costs {
    /// Processor time of maps and of reduces, the job's time and work lost, all in seconds, of each round.
    calm: [Vec<f64>; 4],
    once: [Vec<f64>; 4],
    killed: [Vec<f64>; 4],
    /// Tasks taken back once, of how many.
    tasks: (usize, usize),
    /// Looks whether a slot is wanted of a job undisturbed: one a record, and one a key.
    flag_checks: u64,
}

impl Costs {
    fn add(&mut self, disturbance: Disturbance, ran: &Ran) {
        let job = &ran.job;
        let counter = |name: &str| job.counters.get(name).copied().unwrap_or(0);
        let figures = [ran.cpu[0], ran.cpu[1], job.seconds(), job.preemption.ms_lost as f64 / 1000.0];
        let of = match disturbance {
            Disturbance::Once => &mut self.once,
            Disturbance::Killed => &mut self.killed,
            _ => &mut self.calm,
        };
        for (all, one) in of.iter_mut().zip(figures) {
            all.push(one);
        }
        match disturbance {
            Disturbance::Once => self.tasks = ran.once,
            Disturbance::Calm => {
                let counted = ["MAP_INPUT_RECORDS", "REDUCE_INPUT_RECORDS", "REDUCE_INPUT_GROUPS"];
                self.flag_checks = counted.iter().map(|name| counter(name)).sum();
            }
            _ => {}
        }
    }

    fn figures(self) -> Vec<Measurement> {
        let [calm, once, killed] = [self.calm, self.once, self.killed].map(|of| of.map(median));
        let [time, lost] = [2, 3];
        let checking =
            100.0 * self.flag_checks as f64 * flag_check_seconds() / (calm[0] + calm[1]).max(0.001);
        let (preempted, all) = self.tasks;
        let flag_checks =
            format!("of an undisturbed job, {} preemption checks, as measured in a loop", self.flag_checks);
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
                ..undisturbed("CPU time of maps, each split once, median", once[0], calm[0])
            },
            Measurement {
                limit: Some(Limit::AtMostOfBaseline(1.03)),
                ..undisturbed("CPU time of reduces, each paused once, median", once[1], calm[1])
            },
            Measurement::unlimited(format!("tasks preempted once, of {all}"), preempted as f64, "tasks"),
            Measurement {
                limit: Some(Limit::AtMost(0.0)),
                baseline: Some(killed[lost]),
                baseline_name: Some("with kills"),
                ..Measurement::unlimited("work lost to splits and pauses", once[lost], "s")
            },
            undisturbed("time of the job, each task split or paused once", once[time], calm[time]),
            undisturbed("time of the job, each task killed once", killed[time], calm[time]),
        ]
    }
}

/// Seconds that a look at a task's stop flag takes, the best of some tries.
fn flag_check_seconds() -> f64 {
    let stop = TaskControl::default();
    let once = || {
        let started = Instant::now();
        let quiet = (0..FLAG_CHECKS).filter(|_| {
            std::hint::black_box(&stop)
                .preempt_request()
                .is_ok_and(|preempt_request| preempt_request == PreemptRequest::None)
        });
        std::hint::black_box(quiet.count());
        started.elapsed().as_secs_f64() / FLAG_CHECKS as f64
    };
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// What so many of a hundred stay within.
fn within(mut times: Vec<f64>, of_hundred: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * of_hundred).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn the_late_ones_are_seen() {
        assert!((within((1..=200).map(f64::from).collect(), 99) - 198.0).abs() < 1e-9);
        assert!(within(Vec::new(), 99).abs() < 1e-9);
    }
}
