//! `mrctl bench preempt`: how soon a slot is free, what it costs to take it back, and what a kill would have thrown away.
//!
//! One job is run five times with the same paces: left in peace, with its maps split and its reduces paused one after
//! another, the same with all at once, with kills instead, and paused once in shuffle when nearly everything has been
//! fetched. Latencies are the JobTracker's: from the word to the free slot. All nodes share this machine's cores, so that
//! those asked at once wait for each other too: limits are for one at a time.

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
/// Attempts killed, at the most, so that the job ends.
const KILLS: usize = 12;
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
    /// Splits and pauses, one at a time.
    Gentle,
    /// The same, everything at once.
    Gusts,
    Kills,
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
    say("in peace");
    let (calm, sum) = bench.run(Weather::Calm).await?;
    say("split and paused, again and again");
    let (gentle, same) = bench.run(Weather::Gentle).await?;
    ensure!(sum == same, "{} put out other bytes than the job left in peace", gentle.job);
    let mut figures = bench.latencies(&gentle, Some(folder)).await?;
    say("the same, all at once");
    let (gusts, same) = bench.run(Weather::Gusts).await?;
    ensure!(sum == same, "{} put out other bytes than the job left in peace", gusts.job);
    figures.extend(bench.latencies(&gusts, None).await?);
    say("the same with kills");
    let (killed, same) = bench.run(Weather::Kills).await?;
    ensure!(sum == same, "{} put out other bytes than the job left in peace", killed.job);
    figures.extend(costs(&calm, &gentle, &killed));
    say("paused in shuffle");
    figures.push(bench.shuffle(folder).await?);
    Ok(figures)
}

struct Bench<'a> {
    cluster: &'a Cluster,
    nodes: u32,
    size: u64,
}

impl Bench<'_> {
    /// Runs the job in this weather; how it ended, and a checksum of its output.
    async fn run(&self, weather: Weather) -> Result<(Job, u32)> {
        let output = format!("/{weather:?}").to_lowercase();
        let id = self.submit(&output, self.nodes).await?;
        let mut taken = [0; 2];
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
        Ok((job, sum))
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
    async fn disturb(&self, id: &str, weather: Weather, taken: &mut [usize; 2]) -> Result<()> {
        let tracker = &self.cluster.tracker;
        let tasks = tracker.tasks(id).await?;
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
            let often = task.attempts.len() > PAUSES;
            let (how, most) = match (weather, is_map) {
                (Weather::Kills, _) => (How::Kill, KILLS),
                (_, true) => (How::Split, SPLITS),
                (_, false) => (How::Pause, usize::MAX),
            };
            let count = &mut taken[usize::from(!is_map)];
            // Not at once: there must be something to lose.
            if *count < most
                && !often
                && attempt.progress > 0.05
                && tracker.preempt(&attempt.attempt, how).await.is_ok()
            {
                *count += 1;
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
        // A reduce may take as long more as it takes to write what it holds in memory. What it puts aside is more than
        // that (whole local map outputs too), so this is told and not allowed for.
        let held = job.preemption.checkpoint_bytes / u64::from(pauses.max(1));
        let flush = alone.map(|folder| write(&folder.join("plain"), held)).transpose()?.unwrap_or_default();
        let kinds =
            [("split", "", 50.0, 250.0), ("pause", "shuffle", 0.0, 0.0), ("pause", "reduce", 100.0, 0.0)];
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
        let mean = |counter: &str, times: u32| {
            job.counters.get(counter).copied().unwrap_or(0) as f64 / f64::from(times.max(1))
        };
        let name = format!(
            "writing and syncing {}, as much as a pause puts aside, mean",
            crate::output::human(held)
        );
        figures.push(Figure::told(name, flush, "ms"));
        for (name, took) in [
            (
                "of a split, the task's own part: its output sorted and written, mean",
                mean("SPLIT_MILLISECONDS", splits),
            ),
            ("of a pause, up to the writing of its state, mean", mean("PAUSE_MILLISECONDS", pauses)),
        ] {
            figures.push(Figure::told(name, took, "ms"));
        }
        let resuming = mean("RESUME_MILLISECONDS", job.preemption.resumes);
        let limit = Some(Limit::AtMost(100.0));
        figures.push(Figure { limit, ..Figure::told("resume: state taken up, mean", resuming, "ms") });
        Ok(figures)
    }

    /// Nearly everything has been fetched, and one map is missing.
    async fn shuffle(&self, folder: &Path) -> Result<Figure> {
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
        let baseline = write(&folder.join("plain"), written)?;
        let name =
            format!("slot free after a pause in shuffle with {} put aside", crate::output::human(written));
        Ok(Figure {
            limit: Some(Limit::AtMostOfBaseline(1.0)),
            baseline: Some(baseline),
            baseline_name: Some("writing and syncing as many bytes"),
            ..Figure::told(name, job.preemption.yielding_ms as f64, "ms")
        })
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

fn costs(calm: &Job, gentle: &Job, killed: &Job) -> Vec<Figure> {
    let cpu = |job: &Job| job.counters.get("CPU_MILLISECONDS").copied().unwrap_or(0) as f64 / 1000.0;
    let taken = |job: &Job| {
        let of = &job.preemption;
        f64::from(of.splits + of.pauses + of.kills).max(1.0)
    };
    let lost = |job: &Job| job.preemption.ms_lost as f64 / 1000.0;
    // What one preemption costs more than none, as a part of the whole.
    let each = 100.0 * (cpu(gentle) / cpu(calm).max(0.001) - 1.0) / taken(gentle);
    // Of a job left in peace, the looks whether a slot is wanted: one a record, and one a key.
    let counted = ["MAP_INPUT_RECORDS", "REDUCE_INPUT_RECORDS", "REDUCE_INPUT_GROUPS"];
    let looks: u64 = counted.iter().filter_map(|name| calm.counters.get(*name)).sum();
    let looking = 100.0 * looks as f64 * look_seconds() / cpu(calm).max(0.001);
    vec![
        Figure {
            limit: Some(Limit::AtMost(1.0)),
            ..Figure::told(
                format!(
                    "of a job left in peace, {looks} looks whether a slot is wanted, as measured in a loop"
                ),
                looking,
                "% of its processor time",
            )
        },
        Figure {
            baseline: Some(cpu(calm)),
            baseline_name: Some("left in peace"),
            ..Figure::told(
                format!("processor time of tasks, {} slots taken back", taken(gentle)),
                cpu(gentle),
                "s",
            )
        },
        Figure {
            limit: Some(Limit::AtMost(3.0)),
            ..Figure::told("more of it for each slot taken back", each, "%")
        },
        Figure {
            limit: Some(Limit::AtMost(0.0)),
            baseline: Some(lost(killed)),
            baseline_name: Some("with kills"),
            ..Figure::told("work lost to splits and pauses", lost(gentle), "s")
        },
        Figure::told("time of the job in peace", calm.seconds(), "s"),
        Figure::told("time of the job, split and paused", gentle.seconds(), "s"),
        Figure::told(format!("time of the job, killed {} times", taken(killed)), killed.seconds(), "s"),
    ]
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
