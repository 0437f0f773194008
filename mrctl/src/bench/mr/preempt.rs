//! `mrctl bench preempt`: how soon a slot is free, what it costs to take it back, and what a kill would have thrown away.
//!
//! One job is run again and again with the same paces. For costs: left in peace, with every task taken back once, and the
//! same by kills, in turn. For latencies: with its maps split and its reduces paused one after another all the time, the
//! same with all at once, and paused in shuffle when nearly everything has been fetched. Latencies are the JobTracker's:
//! from the word to the free slot. All nodes share this machine's cores, so that those asked at once wait for each other
//! too: limits are for one at a time.

use super::{
    super::{figure::Figure, need_room, note_build},
    cluster::Cluster,
};
use crate::{
    bench::figure::{Limit, median},
    job::{model::Job, preempt::How},
};
use anyhow::{Result, ensure};
use daemon::Bytes;
use mrlib::engine::{StopFlag, Wish};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const LOOK_PERIOD: Duration = Duration::from_millis(20);
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
const FETCHED_WITHIN: Duration = Duration::from_millis(700);
const COPIES: u64 = 8;
const TASK_SECONDS: u64 = 6;
const ROW_BYTES: u64 = 100;
/// Looks at a flag that are timed together.
const LOOKS: usize = 10_000_000;

/// Slots taken back: how soon they are free, what it costs, and what a kill would have cost
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
enum Weather {
    Calm,
    /// Every task is split or paused once,
    Once,
    /// or killed once.
    Killed,
    /// Splits and pauses all the time, one at a time.
    Gentle,
    /// The same, everything at once.
    Gusts,
}

/// What has befallen a job so far.
#[derive(Default)]
struct Taken {
    /// The tasks that it began with: not the rests of split maps.
    tasks: Vec<String>,
    /// Those that were taken back, where once is enough.
    once: Vec<String>,
    splits: usize,
}

/// Measures all of it.
pub(in crate::bench) async fn measure(args: &Args, folder: &Path) -> Result<Vec<Figure>> {
    note_build(args.json);
    need_room(&args.dir, args.size, COPIES)?;
    let say = |text: &str| {
        if !args.json {
            eprintln!("{text}");
        }
    };
    let cluster = Cluster::start(folder, args.nodes).await?;
    let rows = args.size.0 / ROW_BYTES;
    let (rows, maps) = (format!("rows={rows}"), format!("maps={}", args.nodes));
    cluster.submit(&["teragen", "--output", "/gen", "--conf", &rows, "--conf", &maps]).await?;
    let bench = Bench { cluster: &cluster, nodes: args.nodes, size: args.size.0 };
    say("split and paused, again and again");
    let gentle = bench.run(Weather::Gentle).await?;
    let mut figures = bench.latencies(&gentle.job, Some(folder)).await?;
    say("the same, all at once");
    let gusts = bench.run(Weather::Gusts).await?;
    figures.extend(bench.latencies(&gusts.job, None).await?);
    let mut costs = Costs::default();
    let mut ran = vec![gentle, gusts];
    for round in 1..=ROUNDS {
        say(&format!("in peace, each task taken back once, each killed once: {round} of {ROUNDS}"));
        for weather in [Weather::Calm, Weather::Once, Weather::Killed] {
            let one = bench.run(weather).await?;
            costs.add(weather, &one);
            ran.push(one);
        }
    }
    let sums = ran.iter().map(|one| (one.sum, &one.job.job)).collect::<Vec<_>>();
    for (sum, job) in &sums {
        ensure!(*sum == sums[0].0, "{job} put out other bytes than {}", sums[0].1);
    }
    figures.extend(costs.figures());
    say("paused in shuffle");
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
    async fn run(&self, weather: Weather) -> Result<Ran> {
        let output = format!("/{weather:?}").to_lowercase();
        let id = self.submit(&output, self.nodes).await?;
        let mut taken = Taken::default();
        let job = loop {
            let job = self.cluster.tracker.job(&id).await?;
            if job.is_over() {
                break job;
            }
            if weather != Weather::Calm {
                self.disturb(&id, weather, &mut taken).await?;
            }
            tokio::time::sleep(LOOK_PERIOD).await;
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
        Ok(Ran { job, sum, cpu, once: (taken.once.len(), taken.tasks.len()) })
    }

    /// As a user would submit it: what is sorted as a whole is sampled first.
    async fn submit(&self, output: &str, reduces: u32) -> Result<String> {
        // A few seconds a task, so that there is something to take back.
        let pace = |tasks: u32| (self.size / u64::from(tasks) / TASK_SECONDS).max(1 << 16);
        let paces = [format!("pace.map={}", pace(self.nodes)), format!("pace.reduce={}", pace(reduces))];
        let reduces = reduces.to_string();
        let mut words =
            vec!["terasort", "--input", "/gen", "--output", output, "--reduces", &reduces, "--detach"];
        words.extend(["--conf", &paces[0], "--conf", &paces[1], "--conf", "slow.start=0"]);
        Ok(self.cluster.submit_uncounted(&words).await?.0)
    }

    /// Whatever is asked may come too late, which is refused in words.
    async fn disturb(&self, id: &str, weather: Weather, taken: &mut Taken) -> Result<()> {
        let tracker = &self.cluster.tracker;
        let tasks = tracker.tasks(id).await?;
        if taken.tasks.is_empty() {
            taken.tasks = tasks.iter().map(|task| task.task.clone()).collect();
        }
        let gives_back = |state: &str| ["splitting", "pausing", "stopping"].contains(&state);
        let mut attempts = tasks.iter().flat_map(|task| &task.attempts);
        let mut busy = attempts.any(|attempt| gives_back(&attempt.state));
        for task in tasks {
            if busy && weather == Weather::Gentle {
                return Ok(());
            }
            if task.held {
                tracker.resume(&task.task, None).await.ok();
            }
            let Some(attempt) = task.attempts.iter().rfind(|attempt| attempt.state == "running") else {
                continue;
            };
            let is_map = task.task.contains(".m");
            let how = match (weather, is_map) {
                (Weather::Killed, _) => How::Kill,
                (_, true) => How::Split,
                (_, false) => How::Pause,
            };
            let wanted = match weather {
                Weather::Gentle | Weather::Gusts => {
                    // Not at once: there must be something to lose.
                    attempt.progress > 0.05
                        && task.attempts.len() <= PAUSES
                        && (!is_map || taken.splits < SPLITS)
                }
                _ => {
                    attempt.progress > HALF[usize::from(!is_map)]
                        && taken.tasks.contains(&task.task)
                        && !taken.once.contains(&task.task)
                }
            };
            if wanted && tracker.preempt(&attempt.attempt, how).await.is_ok() {
                taken.splits += usize::from(is_map);
                taken.once.push(task.task.clone());
                busy = true;
            }
        }
        Ok(())
    }

    /// How soon slots were free. `alone`, with a folder to write into: they were taken back one at a time, and the
    /// limits are for that.
    async fn latencies(&self, job: &Job, alone: Option<&Path>) -> Result<Vec<Figure>> {
        let tasks = self.cluster.tracker.tasks(&job.job).await?;
        let of = |how: &str, stage: &str| -> Vec<f64> {
            let attempts = tasks.iter().flat_map(|task| &task.attempts);
            let ended = attempts.filter(|attempt| attempt.recalled == how && attempt.ended_ms > 0);
            let ended = ended.filter(|attempt| stage.is_empty() || attempt.stage == stage);
            ended.map(|attempt| attempt.ended_ms.saturating_sub(attempt.recalled_ms) as f64).collect()
        };
        let mut figures = Vec::new();
        let (splits, pauses) = (job.preemption.splits, job.preemption.pauses);
        let mean = |counter: &str, times: u32| {
            job.counters.get(counter).copied().unwrap_or(0) as f64 / f64::from(times.max(1))
        };
        // A reduce may take as long more as it takes to write what it holds in memory.
        let held = mean("CHECKPOINT_MEMORY_BYTES", pauses) as u64;
        let flush = alone.map(|folder| write(&folder.join("plain"), held)).transpose()?.unwrap_or_default();
        let kinds = [
            ("split", "", 50.0, 250.0),
            ("pause", "shuffle", 0.0, 0.0),
            ("pause", "reduce", 100.0 + flush, 0.0),
        ];
        for (how, stage, middle, late) in kinds {
            let times = of(how, stage);
            let what = if stage.is_empty() { how.to_owned() } else { format!("{how} in {stage}") };
            let what = if alone.is_some() { what } else { format!("{what}, all asked at once") };
            let limit = |most: f64| (alone.is_some() && most > 0.0).then_some(Limit::AtMost(most));
            let name = format!("slot free after {what}, median of {}", times.len());
            figures.push(Figure { limit: limit(middle), ..Figure::told(name, median(times.clone()), "ms") });
            let name = format!("slot free after {what}, 99 of 100 within");
            figures.push(Figure { limit: limit(late), ..Figure::told(name, within(times, 99), "ms") });
        }
        if alone.is_none() {
            return Ok(figures);
        }
        // What tasks themselves take of it: the rest is on the way, and in journals.
        let name = format!(
            "writing and syncing {}, as much as a paused reduce has in memory, mean",
            crate::output::human(held)
        );
        figures.push(Figure::told(name, flush, "ms"));
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
            figures.push(Figure::told(name, took, "ms"));
        }
        let resuming = mean("RESUME_MILLISECONDS", job.preemption.resumes);
        let limit = Some(Limit::AtMost(100.0));
        figures.push(Figure {
            limit,
            ..Figure::told("resume: from the start of the attempt to its first record, mean", resuming, "ms")
        });
        Ok(figures)
    }

    async fn shuffles(&self, folder: &Path) -> Result<Figure> {
        let (mut took, mut plain, mut written) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SHUFFLES {
            let (milliseconds, bytes) = self.shuffle().await?;
            took.push(milliseconds);
            plain.push(write(&folder.join("plain"), bytes)?);
            written = bytes;
        }
        let name = format!(
            "slot free after a pause in shuffle with {} put aside, median of {SHUFFLES}",
            crate::output::human(written)
        );
        Ok(Figure {
            limit: Some(Limit::AtMostOfBaseline(1.0)),
            baseline: Some(median(plain)),
            baseline_name: Some("writing and syncing as many bytes"),
            ..Figure::told(name, median(took), "ms")
        })
    }

    /// Nearly everything has been fetched, and one map is missing: how soon the slot was free, and what was put aside.
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
                tokio::time::sleep(FETCHED_WITHIN).await;
                asked = tracker.preempt(&format!("{reduce}.0"), How::Pause).await.is_ok();
            }
            let task = tracker.tasks(&id).await?.into_iter().find(|task| task.task == reduce);
            if let Some(task) = task.filter(|task| task.held && !task.paused.is_empty()) {
                written = task.paused_bytes;
                tracker.resume(&reduce, None).await.ok();
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        };
        ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
        self.cluster.delete(output).await?;
        Ok((job.preemption.yielding_ms as f64, written))
    }
}

/// Milliseconds to write so many bytes for good.
fn write(path: &Path, bytes: u64) -> Result<f64> {
    let portion = vec![7; 1 << 20];
    let begun = Instant::now();
    let mut file = std::fs::File::create(path)?;
    for _ in 0..bytes.div_ceil(portion.len() as u64) {
        file.write_all(&portion)?;
    }
    file.sync_all()?;
    let took = begun.elapsed();
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
    /// Looks whether a slot is wanted of a job left in peace: one a record, and one a key.
    looks: u64,
}

impl Costs {
    fn add(&mut self, weather: Weather, ran: &Ran) {
        let job = &ran.job;
        let counter = |name: &str| job.counters.get(name).copied().unwrap_or(0);
        let figures = [ran.cpu[0], ran.cpu[1], job.seconds(), job.preemption.ms_lost as f64 / 1000.0];
        let of = match weather {
            Weather::Once => &mut self.once,
            Weather::Killed => &mut self.killed,
            _ => &mut self.calm,
        };
        for (all, one) in of.iter_mut().zip(figures) {
            all.push(one);
        }
        match weather {
            Weather::Once => self.tasks = ran.once,
            Weather::Calm => {
                let counted = ["MAP_INPUT_RECORDS", "REDUCE_INPUT_RECORDS", "REDUCE_INPUT_GROUPS"];
                self.looks = counted.iter().map(|name| counter(name)).sum();
            }
            _ => {}
        }
    }

    fn figures(self) -> Vec<Figure> {
        let [calm, once, killed] = [self.calm, self.once, self.killed].map(|of| of.map(median));
        let [time, lost] = [2, 3];
        let looking = 100.0 * self.looks as f64 * look_seconds() / (calm[0] + calm[1]).max(0.001);
        let (taken, all) = self.tasks;
        let looks = format!(
            "of a job left in peace, {} looks whether a slot is wanted, as measured in a loop",
            self.looks
        );
        let peace = |name: &str, value: f64, baseline: f64| Figure {
            baseline: Some(baseline),
            baseline_name: Some("left in peace"),
            ..Figure::told(name, value, "s")
        };
        vec![
            Figure {
                limit: Some(Limit::AtMost(1.0)),
                ..Figure::told(looks, looking, "% of its processor time")
            },
            Figure {
                limit: Some(Limit::AtMostOfBaseline(1.03)),
                ..peace("processor time of maps, each split once, median", once[0], calm[0])
            },
            Figure {
                limit: Some(Limit::AtMostOfBaseline(1.03)),
                ..peace("processor time of reduces, each paused once, median", once[1], calm[1])
            },
            Figure::told(format!("tasks taken back once, of {all}"), taken as f64, "tasks"),
            Figure {
                limit: Some(Limit::AtMost(0.0)),
                baseline: Some(killed[lost]),
                baseline_name: Some("with kills"),
                ..Figure::told("work lost to splits and pauses", once[lost], "s")
            },
            peace("time of the job, each task split or paused once", once[time], calm[time]),
            peace("time of the job, each task killed once", killed[time], calm[time]),
        ]
    }
}

/// Seconds that a look at a task's stop flag takes, the best of some tries.
fn look_seconds() -> f64 {
    let stop = StopFlag::default();
    let once = || {
        let begun = Instant::now();
        let quiet =
            (0..LOOKS).filter(|_| std::hint::black_box(&stop).wish().is_ok_and(|wish| wish == Wish::GoOn));
        std::hint::black_box(quiet.count());
        begun.elapsed().as_secs_f64() / LOOKS as f64
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
