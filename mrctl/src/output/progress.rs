//! Progress on a terminal: a bar with rate and remaining time, then a summary line. Without a
//! terminal, only simulations report progress, because they take minutes.

use super::{human, millis};
use dfs_client::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use sim::experiment::{RunProgress, Step};
use std::{
    io::IsTerminal,
    sync::Mutex,
    time::{Duration, Instant},
};

/// A transfer that takes at least this long prints a summary line.
const SUMMARY_AFTER: Duration = Duration::from_secs(1);
/// A transfer of at least this many bytes prints a summary line, however little time it took.
const SUMMARY_FROM_BYTES: u64 = 64 << 20;

/// The progress of a transfer. The bar is removed when this is dropped.
pub(crate) struct Meter(ProgressBar);

impl Meter {
    /// Creates a bar for `total` bytes, or a spinner if the total is unknown. It is hidden if
    /// `quiet` is set or standard error is not a terminal.
    pub(crate) fn new(label: &str, total: Option<u64>, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left",
            ),
            None => (
                ProgressBar::new_spinner(),
                "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec} {elapsed}",
            ),
        };
        let style = ProgressStyle::with_template(template).expect("the templates are constant");
        bar.set_style(style);
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Prints a summary line (bytes, duration, rate) if the bar is visible and the transfer was not
    /// small.
    pub(crate) fn print_summary(&self) {
        let took = self.0.elapsed();
        let small = took < SUMMARY_AFTER && self.0.position() < SUMMARY_FROM_BYTES;
        if self.0.is_hidden() || small {
            return;
        }
        // Format the text before `suspend`: its closure would deadlock if it called the bar.
        let text = summary(&self.0.message(), self.0.position(), took);
        self.0.suspend(|| eprintln!("{text}"));
    }

    /// Creates a bar that counts blocks instead of bytes, for `total` blocks to move.
    pub(crate) fn of_blocks(total: u64, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} blocks moved {elapsed}");
        bar.set_style(style.expect("the template is constant"));
        Self(bar)
    }

    /// Sets how many blocks remain to be moved. Raises the total if it is smaller than that.
    pub(crate) fn set_remaining_blocks(&self, left: u64) {
        let total = self.0.length().unwrap_or(0).max(left);
        self.0.set_length(total);
        self.0.set_position(total - left);
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }
}

/// The progress of simulations: a bar on a terminal. Without a terminal, one line for each finished
/// policy, once the simulations have run for `LOGGED_AFTER`.
pub(crate) struct SimulationProgress {
    bar: ProgressBar,
    began: Instant,
    /// When a line about a run that has not finished was last printed.
    last_line: Mutex<Instant>,
}

/// Simulations that take less time than this log no progress.
const LOGGED_AFTER: Duration = Duration::from_secs(10);

impl SimulationProgress {
    pub(crate) fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len} runs, {elapsed}");
            let bar = ProgressBar::new(0).with_style(style.expect("the template is constant"));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        } else {
            ProgressBar::hidden()
        };
        let now = Instant::now();
        Self { bar, began: now, last_line: Mutex::new(now) }
    }

    /// Shows the progress of a run. Without a terminal, prints at most one line in ten seconds.
    pub(crate) fn report(&self, run: RunProgress<'_>) {
        let RunProgress { label, seed, ended, jobs, .. } = run;
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{label}, seed {seed}: {ended} of {jobs} jobs"));
            return;
        }
        if self.is_line_due() {
            let took = millis(self.began.elapsed());
            eprintln!("mrctl: {label}, seed {seed}: {ended} of {jobs} jobs have ended after {took}");
        }
    }

    /// Shows that `done` of `of` runs have finished, the last of them `what`. Without a terminal,
    /// prints at most one line in ten seconds.
    pub(crate) fn count_any_run(&self, what: &str, done: usize, of: usize) {
        let note = (self.bar.is_hidden() && self.is_line_due()).then(|| format!("the last was {what}"));
        self.update(if self.bar.is_hidden() { "" } else { what }, done, of, note.as_ref());
    }

    /// Whether the last line was printed at least ten seconds ago. The caller prints one then.
    fn is_line_due(&self) -> bool {
        let mut last = self.last_line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = last.elapsed() >= LOGGED_AFTER;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }

    /// Counts a finished run of the experiment `title`.
    pub(crate) fn count_run(&self, title: &str, step: Step<'_>) {
        let note = format!("{} is done", step.label);
        self.update(title, step.done, step.of, step.is_last.then_some(&note));
    }

    /// Shows that `done` of `of` runs have finished. Without a terminal, only calls with a note
    /// print a line.
    pub(crate) fn update(&self, title: &str, done: usize, of: usize, note: Option<&String>) {
        let took = self.began.elapsed();
        if !self.bar.is_hidden() {
            self.bar.set_message(title.to_owned());
            self.bar.set_length(of as u64);
            self.bar.set_position(done as u64);
        } else if let Some(note) = note.filter(|_| took >= LOGGED_AFTER) {
            eprintln!("mrctl: {}", progress_line(title, done, of, took, note));
        }
    }
}

impl Drop for SimulationProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn progress_line(title: &str, done: usize, of: usize, took: Duration, note: &str) -> String {
    let before = if title.is_empty() { String::new() } else { format!("{title}: ") };
    format!("{before}{done} of {of} runs after {}; {note}", millis(took))
}

fn summary(label: &str, bytes: u64, took: Duration) -> String {
    let rate = bytes as f64 / took.as_secs_f64().max(0.001);
    format!("{label}: {} in {}, {}/s", human(bytes), millis(took), human(rate as u64))
}

impl Progress for Meter {
    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io;

    /// A terminal that discards all output.
    #[derive(Debug)]
    struct HiddenTerminal;

    impl TermLike for HiddenTerminal {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn write_str(&self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn printing_the_summary_does_not_deadlock() {
        let target = ProgressDrawTarget::term_like(Box::new(HiddenTerminal));
        let meter = Meter(ProgressBar::with_draw_target(Some(SUMMARY_FROM_BYTES), target));
        meter.advance(SUMMARY_FROM_BYTES);
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            meter.print_summary();
            drop(meter);
            sender.send(()).ok();
        });
        ended.recv_timeout(Duration::from_secs(20)).expect("the summary must not deadlock");
    }

    #[test]
    fn progress_line_has_runs_time_and_note() {
        let late = Duration::from_secs(75);
        assert_eq!(
            progress_line("Map-heavy", 3, 6, late, "fair is done"),
            "Map-heavy: 3 of 6 runs after 75.0 s; fair is done"
        );
        assert_eq!(progress_line("", 3, 6, late, "fair is done"), "3 of 6 runs after 75.0 s; fair is done");
    }

    #[test]
    fn summary_line_has_amount_time_and_rate() {
        assert_eq!(summary("/x", 20 << 20, Duration::from_secs(2)), "/x: 20.0 MiB in 2.0 s, 10.0 MiB/s");
    }
}
