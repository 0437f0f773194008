//! A job's progress while it runs: two bars on a terminal, a line now and then anywhere else.

use super::{
    model::Job,
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
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How long a JobTracker that went away is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a person sees of a running job.
enum Display {
    Bars { maps: ProgressBar, reduces: ProgressBar },
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
        Self::Bars { maps: bar("maps"), reduces: bar("reduces") }
    }

    fn show(&mut self, job: &Job) {
        let words = |phase: &super::model::Phase| {
            let failed = if phase.failed_attempts > 0 {
                format!(", {} failed", phase.failed_attempts)
            } else {
                String::new()
            };
            format!("{}/{} done, {} running{failed}", phase.done, phase.total, phase.running)
        };
        match self {
            Self::Bars { maps, reduces } => {
                maps.set_position((job.maps.progress * 100.0) as u64);
                maps.set_message(words(&job.maps));
                reduces.set_position((job.reduces.progress * 100.0) as u64);
                reduces.set_message(words(&job.reduces));
            }
            Self::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{}: maps {}, reduces {}", job.job, words(&job.maps), words(&job.reduces));
            }
            Self::Lines { .. } | Self::Nothing => {}
        }
    }

    fn clear(&self) {
        if let Self::Bars { maps, reduces } = self {
            maps.finish_and_clear();
            reduces.finish_and_clear();
        }
    }
}

/// Follows a job to its end; None if the user had enough first (the job goes on).
pub(crate) async fn follow(tracker: &JobTracker, id: &str, quiet: bool) -> Result<Option<Job>> {
    let mut display = Display::new(quiet);
    let mut stop = std::pin::pin!(crate::command::end_signal());
    let over = tokio::select! {
        over = to_the_end(tracker, id, &mut display) => Some(over?),
        () = &mut stop => None,
    };
    display.clear();
    Ok(over)
}

/// A JobTracker that restarts is found again: its jobs go on, and so does this.
async fn to_the_end(tracker: &JobTracker, id: &str, display: &mut Display) -> Result<Job> {
    let mut lost: Option<Instant> = None;
    loop {
        let error = match tracker.watch(id).await {
            Ok(watch) => match watch_on(watch, display, &mut lost).await {
                Ok(Some(job)) => return Ok(job),
                Ok(None) => anyhow::anyhow!("the JobTracker at {} ended the stream", tracker.addr()),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let since = *lost.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn watch_on(
    mut watch: Watch,
    display: &mut Display,
    lost: &mut Option<Instant>,
) -> Result<Option<Job>> {
    while let Some(job) = watch.next().await? {
        *lost = None;
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
        let local = match job.maps.total {
            0 => String::new(),
            total => format!(", {} of {total} maps beside their input", job.local_maps),
        };
        output::line(format!("{} maps, {} reduces{local}", job.maps.total, job.reduces.total))?;
        if !job.output.is_empty() {
            output::line(format!("output in {}: mrctl fs cat {}/part-*", job.output, job.output))?;
        }
    }
    Ok(())
}
