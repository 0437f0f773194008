//! A job's progress while it runs: two bars on a terminal, a line now and then anywhere else.

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

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a JobTracker that went away is waited for, and how long in silence.
const RECONNECT_TIMEOUT: Duration = Duration::from_mins(1);
const NOTICE_AFTER: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(300);

/// What a person sees of a running job.
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

    /// A line above the bars.
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

/// The job's id and name, how long it has run, and about how long it has to go.
fn headline(job: &Job, now_ms: u64) -> String {
    let elapsed = Duration::from_millis(now_ms.saturating_sub(job.submitted_ms));
    let phases = [&job.maps, &job.reduces].into_iter().filter(|phase| phase.total > 0);
    let (sum, count) = phases.fold((0.0, 0.0), |(sum, count), phase| (sum + phase.progress, count + 1.0));
    let done: f64 = if count > 0.0 { sum / count } else { 0.0 };
    // Too early, the rest is a guess.
    let left = (done > 0.1 && done < 1.0).then(|| elapsed.mul_f64((1.0 - done) / done).as_secs());
    let left = left.map_or_else(String::new, |left| format!(", about {left} s left"));
    format!("{} ({}): {} s{left}", job.job, job.name, elapsed.as_secs())
}

/// A phase in a few words.
fn describe(phase: &Phase) -> String {
    let Phase { done, total, running, paused, failed_attempts, .. } = phase;
    if *total == 0 {
        return "none".into();
    }
    let failed = if *failed_attempts > 0 { format!(", {failed_attempts} failed") } else { String::new() };
    let paused = if *paused > 0 { format!(", {paused} put on hold") } else { String::new() };
    format!("{done}/{total} done, {running} running{paused}{failed}")
}

/// Nobody answers any more; the job may well go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "the JobTracker at {addr} has not answered for {} s: {advice}; {job} continues when it is back: follow it with \
     `mrctl job --follow {job}`",
    RECONNECT_TIMEOUT.as_secs()
)]
struct ConnectionLost {
    addr: String,
    advice: String,
    job: String,
}

/// Follows a job to its end; None if the user had enough first (the job goes on).
pub(crate) async fn follow(tracker: &JobTracker, id: &str, quiet: bool) -> Result<Option<Job>> {
    follow_until(tracker, id, quiet, crate::command::end_signal()).await
}

/// The same, until `stop` for one who listens already: a signal between two listeners would be lost.
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

/// Since when the JobTracker has not been heard, and whether that has been said.
#[derive(Debug, Default)]
struct DisconnectedTime {
    since: Option<Instant>,
    is_printed: bool,
}

impl DisconnectedTime {
    /// It was heard; whether a silence that was told of is over.
    fn is_over(&mut self) -> bool {
        std::mem::take(self).is_printed
    }

    /// Does `work`; if the silence becomes too long meanwhile, says so, once.
    async fn during<T>(&mut self, work: impl Future<Output = T>, tell: impl FnOnce()) -> T {
        let Some(since) = self.since.filter(|_| !self.is_printed) else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until((since + NOTICE_AFTER).into()) => {}
        }
        self.is_printed = true;
        tell();
        work.await
    }
}

/// A JobTracker that restarts is found again: its jobs go on, and so does this.
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

/// A job of which nothing runs, and whether it has been said why.
#[derive(Debug, Default)]
struct Waits {
    job: Option<String>,
    is_printed: bool,
}

impl Waits {
    fn query_job(&mut self, job: &Job) {
        let waiting_for = job.maps.running + job.reduces.running == 0 && job.state == "running";
        self.job = waiting_for.then(|| job.job.clone());
        self.is_printed &= waiting_for;
    }

    /// Does `work`; if nothing has run when it has taken a while, says why, once.
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
    let mut waiting_for = Waits::default();
    while let Some(job) = waiting_for.during(watch.next(), tracker, display).await? {
        waiting_for.query_job(&job);
        if silence.is_over() {
            display.print_line(&format!("the JobTracker at {} answers again", tracker.addr()));
        }
        display.show(&job);
        if job.is_over() {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// What became of a job, for people.
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
    fn the_headline_names_the_job_its_time_and_what_is_left() {
        let mut job = Job { job: "job_7".into(), name: "sort".into(), submitted_ms: 1000, ..Job::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s");
        job.maps = Phase { total: 4, progress: 1.0, ..Phase::default() };
        job.reduces = Phase { total: 2, progress: 0.0, ..Phase::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s, about 5 s left");
    }

    #[tokio::test]
    async fn lost_connection_is_reported_once_after_a_delay() {
        let is_printed = Cell::new(0);
        let tell = || is_printed.set(is_printed.get() + 1);
        let nap = || tokio::time::sleep(Duration::from_millis(50));
        let mut silence = DisconnectedTime::default();
        silence.during(nap(), tell).await;
        assert_eq!(is_printed.get(), 0, "nothing was lost");
        silence.since = Some(Instant::now());
        silence.during(nap(), tell).await;
        assert_eq!(is_printed.get(), 0, "too short");
        silence.since = Instant::now().checked_sub(NOTICE_AFTER);
        for _ in 0..2 {
            silence.during(nap(), tell).await;
            assert_eq!(is_printed.get(), 1);
        }
        assert!(silence.is_over() && !silence.is_over());
    }
}
