//! The progress of a running job: two bars on a terminal, otherwise a line every few seconds.

use super::{
    model::{Job, Phase},
    refusal::Refusal,
    wire::{JobTracker, Watch},
};
use crate::output;
use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// The interval between lines if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// How long to retry after the connection to the JobTracker is lost, and how long without a
/// message.
const RECONNECT_TIMEOUT: Duration = Duration::from_mins(1);
const NOTICE_AFTER: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(300);

/// How the progress of a job is shown.
enum Display {
    Bars { head: ProgressBar, maps: ProgressBar, reduces: ProgressBar },
    Lines { last: Instant },
    Nothing,
}

impl Display {
    fn new(quiet: bool) -> Self {
        if quiet {
            return Self::Nothing;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines { last: Instant::now() };
        }
        let bars = MultiProgress::new();
        let style = ProgressStyle::with_template("{prefix:7} {wide_bar} {pos:>3}%  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar =
            |name: &'static str| bars.add(ProgressBar::new(100).with_style(style.clone()).with_prefix(name));
        let head = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let head = bars.add(ProgressBar::new_spinner().with_style(head));
        Self::Bars { head, maps: bar("maps"), reduces: bar("reduces") }
    }

    fn show(&mut self, job: &Job) {
        match self {
            Self::Bars { head, maps, reduces } => {
                head.set_message(headline(job, output::now_ms()));
                maps.set_position((job.maps.progress * 100.0) as u64);
                maps.set_message(describe(&job.maps));
                reduces.set_position((job.reduces.progress * 100.0) as u64);
                reduces.set_message(describe(&job.reduces));
            }
            Self::Lines { last } if last.elapsed() >= LINE_INTERVAL => {
                *last = Instant::now();
                eprintln!("{}: maps {}, reduces {}", job.job, describe(&job.maps), describe(&job.reduces));
            }
            Self::Lines { .. } | Self::Nothing => {}
        }
    }

    /// Prints a line above the bars.
    fn print_line(&self, text: &str) {
        match self {
            Self::Bars { maps, .. } => maps.suspend(|| eprintln!("mrctl: {text}")),
            Self::Lines { .. } | Self::Nothing => eprintln!("mrctl: {text}"),
        }
    }

    fn clear(&self) {
        if let Self::Bars { head, maps, reduces } = self {
            head.finish_and_clear();
            maps.finish_and_clear();
            reduces.finish_and_clear();
        }
    }
}

/// ID, name, elapsed time and estimated remaining time of the job.
fn headline(job: &Job, now_ms: u64) -> String {
    let elapsed = Duration::from_millis(now_ms.saturating_sub(job.submitted_ms));
    let phases = [&job.maps, &job.reduces].into_iter().filter(|phase| phase.total > 0);
    let (sum, count) = phases.fold((0.0, 0.0), |(sum, count), phase| (sum + phase.progress, count + 1.0));
    let done: f64 = if count > 0.0 { sum / count } else { 0.0 };
    // With little progress, an estimate of the remaining time would be useless.
    let left = (done > 0.1 && done < 1.0).then(|| elapsed.mul_f64((1.0 - done) / done).as_secs());
    let left = left.map_or_else(String::new, |left| format!(", about {left} s left"));
    format!("{} ({}): {} s{left}", job.job, job.name, elapsed.as_secs())
}

/// A short text about a phase.
fn describe(phase: &Phase) -> String {
    let Phase { done, total, running, paused, failed_attempts, .. } = phase;
    if *total == 0 {
        return "none".into();
    }
    let failed = if *failed_attempts > 0 { format!(", {failed_attempts} failed") } else { String::new() };
    let paused = if *paused > 0 { format!(", {paused} put on hold") } else { String::new() };
    format!("{done}/{total} done, {running} running{paused}{failed}")
}

/// The JobTracker stayed unreachable. The job may still be running.
#[derive(Debug, thiserror::Error)]
#[error(
    "the JobTracker at {addr} has not answered for {} s: {advice}; {job} continues when it is up again: follow it with \
     `mrctl job --follow {job}`",
    RECONNECT_TIMEOUT.as_secs()
)]
struct ConnectionLost {
    addr: String,
    advice: String,
    job: String,
}

/// Follows a job until it has ended. None if the user interrupts first; the job then continues.
pub(crate) async fn follow(tracker: &JobTracker, id: &str, quiet: bool) -> Result<Option<Job>> {
    follow_until(tracker, id, quiet, crate::command::end_signal()).await
}

/// Does the same until `stop`, for a caller that already listens for signals: a signal between two
/// listeners would be lost.
pub(super) async fn follow_until(
    tracker: &JobTracker,
    id: &str,
    quiet: bool,
    stop: impl Future<Output = ()>,
) -> Result<Option<Job>> {
    let mut display = Display::new(quiet);
    let over = tokio::select! {
        over = to_the_end(tracker, id, &mut display) => Some(over),
        () = stop => None,
    };
    display.clear();
    over.transpose()
}

/// Since when the JobTracker has been unreachable, and whether a message about it was printed.
#[derive(Debug, Default)]
struct DisconnectedTime {
    since: Option<Instant>,
    is_printed: bool,
}

impl DisconnectedTime {
    /// The JobTracker is reachable. Returns whether a message about the lost connection was
    /// printed.
    fn is_over(&mut self) -> bool {
        std::mem::take(self).is_printed
    }

    /// Runs `work`. Calls `report` once if the JobTracker stays unreachable for `NOTICE_AFTER`.
    async fn during<T>(&mut self, work: impl Future<Output = T>, report: impl FnOnce()) -> T {
        let Some(since) = self.since.filter(|_| !self.is_printed) else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until((since + NOTICE_AFTER).into()) => {}
        }
        self.is_printed = true;
        report();
        work.await
    }
}

/// Follows the job until it has ended. Reconnects if the JobTracker restarts, because its jobs
/// continue.
async fn to_the_end(tracker: &JobTracker, id: &str, display: &mut Display) -> Result<Job> {
    let mut silence = DisconnectedTime::default();
    loop {
        let asked = silence.during(tracker.watch(id), || display.print_line(&unreachable(tracker, id))).await;
        let watched = match asked {
            Ok(watch) => watch_on(watch, tracker, display, &mut silence).await,
            Err(refusal) => Err(refusal),
        };
        match watched {
            Ok(Some(job)) => return Ok(job),
            Err(refusal) if !refusal.is_transient() => return Err(refusal.into()),
            Ok(None) | Err(_) => {}
        }
        let since = *silence.since.get_or_insert_with(Instant::now);
        if since.elapsed() > RECONNECT_TIMEOUT {
            let (addr, advice) = (tracker.addr().to_owned(), tracker.advice());
            return Err(ConnectionLost { addr, advice, job: id.into() }.into());
        }
        silence.during(tokio::time::sleep(RETRY), || display.print_line(&unreachable(tracker, id))).await;
    }
}

fn unreachable(tracker: &JobTracker, id: &str) -> String {
    format!(
        "the JobTracker at {} does not answer; {}; retrying {id} for {} s (Ctrl-C stops)",
        tracker.addr(),
        tracker.advice(),
        RECONNECT_TIMEOUT.as_secs()
    )
}

/// A job without a running attempt, and whether the reason was printed.
#[derive(Debug, Default)]
struct Waits {
    job: Option<String>,
    is_printed: bool,
}

impl Waits {
    fn update(&mut self, job: &Job) {
        let is_waiting = job.maps.running + job.reduces.running == 0 && job.state == "running";
        self.job = is_waiting.then(|| job.job.clone());
        self.is_printed &= is_waiting;
    }

    /// Runs `work`. If the job still waits after `NOTICE_AFTER`, prints the reason once.
    async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        tracker: &JobTracker,
        display: &Display,
    ) -> T {
        let Some(job) = self.job.as_ref().filter(|_| !self.is_printed) else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(NOTICE_AFTER) => {}
        }
        self.is_printed = true;
        if let Ok(why) = tracker.why(job).await
            && !why.waiting_for.is_empty()
        {
            let words: Vec<&str> = why.waiting_for.iter().map(|reason| reason.text.as_str()).collect();
            display.print_line(&format!("{job} waits: {}", words.join("; ")));
        }
        work.await
    }
}

async fn watch_on(
    mut watch: Watch,
    tracker: &JobTracker,
    display: &mut Display,
    silence: &mut DisconnectedTime,
) -> Result<Option<Job>, Refusal> {
    let mut waits = Waits::default();
    while let Some(job) = waits.during(watch.next(), tracker, display).await? {
        waits.update(&job);
        if silence.is_over() {
            display.print_line(&format!("the JobTracker at {} is reachable again", tracker.addr()));
        }
        display.show(&job);
        if job.is_over() {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// Prints the result of a job.
pub(crate) fn summary(job: &Job) -> Result<()> {
    let secs = output::millis(Duration::from_secs_f64(job.seconds()));
    let why = if job.why.is_empty() { String::new() } else { format!(": {}", job.why) };
    output::line(format!("{} {} after {secs}{why}", job.job, job.state))?;
    if job.state == "succeeded" {
        let maps = output::count(job.maps.total.into(), "map");
        let reduces = output::count(job.reduces.total.into(), "reduce");
        let locality = job.locality().map_or_else(String::new, |words| format!(" ({words})"));
        output::line(format!("{maps}{locality}, {reduces}"))?;
        if job.output.is_empty() {
            output::line("its output was discarded, as requested")?;
        } else {
            output::line(format!("output in {0}: mrctl fs cat '{0}/part-*'", job.output))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn headline_has_job_elapsed_and_remaining_time() {
        let mut job = Job { job: "job_7".into(), name: "sort".into(), submitted_ms: 1000, ..Job::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s");
        job.maps = Phase { total: 4, progress: 1.0, ..Phase::default() };
        job.reduces = Phase { total: 2, progress: 0.0, ..Phase::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s, about 5 s left");
    }

    #[tokio::test]
    async fn lost_connection_is_reported_once_after_a_delay() {
        let printed = Cell::new(0);
        let report = || printed.set(printed.get() + 1);
        let nap = || tokio::time::sleep(Duration::from_millis(50));
        let mut silence = DisconnectedTime::default();
        silence.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "nothing was lost");
        silence.since = Some(Instant::now());
        silence.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "too short");
        silence.since = Instant::now().checked_sub(NOTICE_AFTER);
        for _ in 0..2 {
            silence.during(nap(), report).await;
            assert_eq!(printed.get(), 1);
        }
        assert!(silence.is_over() && !silence.is_over());
    }
}
