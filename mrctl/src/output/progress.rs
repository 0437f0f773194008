//! A bar with rate and time left on a terminal, then a closing line; nothing anywhere else.

use super::{human, millis};
use dfs::client::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::{io::IsTerminal, time::Duration};

/// What took less than this and is smaller than that needs no closing line.
const TOLD_FROM: Duration = Duration::from_secs(1);
const TOLD_FROM_BYTES: u64 = 64 << 20;

/// How far a transfer is. Cleared when dropped.
pub(crate) struct Meter(ProgressBar);

impl Meter {
    /// For `total` bytes (None: not known) of what `label` says. Hidden if `quiet`, or if standard error is
    /// no terminal.
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

    /// A closing line, if somebody watched and it was much: how much, how long, how fast.
    pub(crate) fn tell(&self) {
        let took = self.0.elapsed();
        let small = took < TOLD_FROM && self.0.position() < TOLD_FROM_BYTES;
        if self.0.is_hidden() || small {
            return;
        }
        // Asked for before: whoever asks the bar anything while it is suspended waits for ever.
        let words = summary(&self.0.message(), self.0.position(), took);
        self.0.suspend(|| eprintln!("{words}"));
    }

    /// For a number of things that are to become none.
    pub(crate) fn counter(total: u64, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} blocks moved {elapsed}");
        bar.set_style(style.expect("the template is constant"));
        Self(bar)
    }

    /// Of a counter: how many are left. More than at first (new blocks came) raises the total.
    pub(crate) fn left(&self, left: u64) {
        let total = self.0.length().unwrap_or(0).max(left);
        self.0.set_length(total);
        self.0.set_position(total - left);
    }

    /// Whether nobody sees it.
    pub(crate) fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }
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

    /// A terminal that nobody looks at.
    #[derive(Debug)]
    struct Unseen;

    impl TermLike for Unseen {
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
    fn a_closing_line_on_a_terminal_comes_to_an_end() {
        let target = ProgressDrawTarget::term_like(Box::new(Unseen));
        let meter = Meter(ProgressBar::with_draw_target(Some(TOLD_FROM_BYTES), target));
        meter.advance(TOLD_FROM_BYTES);
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            meter.tell();
            drop(meter);
            sender.send(()).ok();
        });
        ended.recv_timeout(Duration::from_secs(20)).expect("it does not wait for itself");
    }

    #[test]
    fn the_closing_line_has_amount_time_and_rate() {
        assert_eq!(summary("/x", 20 << 20, Duration::from_secs(2)), "/x: 20.0 MiB in 2.0 s, 10.0 MiB/s");
    }
}
