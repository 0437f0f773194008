//! The progress of a running job: two bars on a terminal, otherwise a line every few seconds.

use crate::output;
use anyhow::Result;
use client::{
    JobTracker, Observer,
    model::{Job, PhaseStatus},
    scheduling::Reason,
};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    path::Path,
    time::{Duration, Instant},
};

/// The interval between progress lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

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

/// Shows the progress and the events of a job.
struct Follower {
    display: Display,
    /// The number of done maps in the last status.
    maps_done: u32,
}

impl Observer for Follower {
    fn status(&mut self, job: &Job) {
        let again = lost_outputs(self.maps_done, job);
        self.maps_done = job.maps.done;
        if let Some(text) = again {
            self.display.print_line(&text);
        }
        match &mut self.display {
            Display::Bars { head, maps, reduces } => {
                head.set_message(headline(job, output::now_ms()));
                maps.set_position((job.maps.progress * 100.0) as u64);
                maps.set_message(describe(&job.maps));
                reduces.set_position((job.reduces.progress * 100.0) as u64);
                reduces.set_message(describe(&job.reduces));
            }
            Display::Lines { last } if last.elapsed() >= LINE_INTERVAL => {
                *last = Instant::now();
                eprintln!("{}: maps {}, reduces {}", job.job, describe(&job.maps), describe(&job.reduces));
            }
            Display::Lines { .. } | Display::Nothing => {}
        }
    }

    fn unreachable(&mut self, tracker: &JobTracker, job: &str, timeout: Duration) {
        let advice = Some(tracker.advice()).filter(|advice| !advice.is_empty());
        self.display.print_line(&format!(
            "the JobTracker at {} does not answer{}; retrying {job} for {} s (Ctrl-C stops)",
            tracker.addr(),
            advice.map_or_else(String::new, |advice| format!("; {advice}")),
            timeout.as_secs()
        ));
    }

    fn reachable(&mut self, tracker: &JobTracker) {
        self.display.print_line(&format!("the JobTracker at {} is reachable again", tracker.addr()));
    }

    fn waits(&mut self, job: &str, reasons: &[Reason]) {
        let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
        self.display.print_line(&format!("{job} waits: {}", texts.join("; ")));
    }
}

/// Describes that maps which were done run again, if there are fewer done maps than before.
fn lost_outputs(maps_done_before: u32, job: &Job) -> Option<String> {
    let id = &job.job;
    (job.maps.done < maps_done_before && !job.has_ended())
        .then(|| format!("maps of {id} run again, because their output was lost; `mrctl why {id}` shows why"))
}

/// Returns ID, name, elapsed time and estimated remaining time of the job.
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

/// Describes a phase in a short text.
fn describe(phase: &PhaseStatus) -> String {
    let PhaseStatus { done, total, running, paused, failed_attempts, .. } = phase;
    if *total == 0 {
        return "none".into();
    }
    let failed = if *failed_attempts > 0 { format!(", {failed_attempts} failed") } else { String::new() };
    let paused = if *paused > 0 { format!(", {paused} paused") } else { String::new() };
    format!("{done}/{total} done, {running} running{paused}{failed}")
}

/// Follows a job until it has ended. Returns None if the user interrupts first; the job then
/// continues.
pub async fn follow(tracker: &JobTracker, id: &str, quiet: bool) -> Result<Option<Job>> {
    follow_until(tracker, id, quiet, daemon::lifecycle::end_signal()).await
}

/// Follows a job until it has ended, or returns None when `stop` is ready. For a caller that
/// already listens for signals: a signal that arrives between two listeners would be lost.
pub async fn follow_until(
    tracker: &JobTracker,
    id: &str,
    quiet: bool,
    stop: impl Future<Output = ()>,
) -> Result<Option<Job>> {
    let mut follower = Follower { display: Display::new(quiet), maps_done: 0 };
    let over = tokio::select! {
        over = tracker.follow(id, &mut follower) => Some(over),
        () = stop => None,
    };
    follower.display.clear();
    Ok(over.transpose()?)
}

/// Prints the result of a job.
pub fn summary(job: &Job) -> Result<()> {
    let secs = output::millis(Duration::from_secs_f64(job.seconds()));
    let why = if job.why.is_empty() { String::new() } else { format!(": {}", job.why) };
    output::line(format!("{} {} after {secs}{why}", job.job, job.state))?;
    if job.state == "succeeded" {
        let maps = output::count(job.maps.total.into(), "map");
        let reduces = output::count(job.reduces.total.into(), "reduce");
        let locality = job.locality().map_or_else(String::new, |words| format!(" ({words})"));
        output::line(format!("{maps}{locality}, {reduces}"))?;
        output::line(output_hint(job))?;
    }
    Ok(())
}

/// Describes where the output of a job is, and how to print it.
fn output_hint(job: &Job) -> String {
    // The map has no entry for a counter that is 0.
    let is_empty = !job.partial && job.counters.get("OUTPUT_BYTES").is_none_or(|bytes| *bytes == 0);
    match &job.output {
        output if output.is_empty() => "its output was discarded, as requested".into(),
        output if is_empty => format!("output in {output} is empty"),
        folder => {
            let parts = format!("{folder}/part-*");
            format!("output in {folder}: mrctl fs cat {}", output::shell(Path::new(&parts)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_output_is_not_offered_for_printing() {
        let mut job = Job { output: "/out".into(), ..Job::default() };
        assert_eq!(output_hint(&job), "output in /out is empty");
        job.partial = true;
        assert_eq!(output_hint(&job), "output in /out: mrctl fs cat '/out/part-*'");
        job.partial = false;
        job.counters.insert("OUTPUT_BYTES".into(), 7);
        assert_eq!(output_hint(&job), "output in /out: mrctl fs cat '/out/part-*'");
        job.output = "/it's".into();
        assert_eq!(output_hint(&job), r"output in /it's: mrctl fs cat '/it'\''s/part-*'");
    }

    #[test]
    fn lost_map_outputs_are_reported() {
        let maps = PhaseStatus { total: 10, done: 7, ..PhaseStatus::default() };
        let mut job = Job { job: "job_7".into(), state: "running".into(), maps, ..Job::default() };
        let text = "maps of job_7 run again, because their output was lost; `mrctl why job_7` shows why";
        assert_eq!(lost_outputs(10, &job).as_deref(), Some(text));
        assert_eq!(lost_outputs(7, &job), None);
        job.state = "killed".into();
        assert_eq!(lost_outputs(10, &job), None);
    }

    #[test]
    fn headline_has_job_elapsed_and_remaining_time() {
        let mut job = Job { job: "job_7".into(), name: "sort".into(), submitted_ms: 1000, ..Job::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s");
        job.maps = PhaseStatus { total: 4, progress: 1.0, ..PhaseStatus::default() };
        job.reduces = PhaseStatus { total: 2, progress: 0.0, ..PhaseStatus::default() };
        assert_eq!(headline(&job, 6000), "job_7 (sort): 5 s, about 5 s left");
    }
}
