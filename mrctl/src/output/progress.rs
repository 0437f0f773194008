//! A bar with rate and time left on a terminal, nothing anywhere else.

use dfs::client::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

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
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Self(bar)
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
