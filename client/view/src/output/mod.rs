//! Formats and prints tables, JSON, sizes and times. All writes to standard output pass through
//! this module, so that a closed pipe is an error and never a panic.

mod size;

pub use daemon::count;
pub use size::{Sizes, age, human, millis, now_ms, permissions, shell, time, took, utc};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use mrlib_api::error::{one_line, shortened};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Advice for an error about a local path where a path of the cluster was expected.
pub const QUOTING_ADVICE: &str = "did your shell expand a pattern? quote it, as in '/in/*'";

/// Returns standard output. Its errors contain the words "standard output".
pub fn stdout() -> StdoutWriter<io::StdoutLock<'static>> {
    StdoutWriter(io::stdout().lock())
}

/// The writer that `stdout` returns.
pub struct StdoutWriter<W>(W);

impl<W: Write> Write for StdoutWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(stdout_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(stdout_error)
    }
}

/// Adds "standard output" to an error. Keeps the kind of the error, because callers check for
/// `BrokenPipe` and `Interrupted`.
fn stdout_error(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
}

/// Prints a line to standard output.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    writeln!(stdout(), "{text}")?;
    Ok(())
}

/// Returns the text of an error and of its causes, and what the user can do. A cause whose text is
/// already part of the message is not repeated.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    match error.chain().find_map(|cause| cause.downcast_ref()).and_then(remedy) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

/// Returns the command or flag of mrctl that helps after a failed call.
fn remedy(error: &client::Error) -> Option<String> {
    use client::Error;
    match error {
        Error::NotJobTracker { .. } => Some("name another with --jobtracker".into()),
        Error::NoReply { .. } => Some("`mrctl jobs --all` and `mrctl nodes` show whether it was".into()),
        Error::ConnectionLost { job, .. } => Some(format!("follow it with `mrctl job --follow {job}`")),
        Error::LogsUnreachable { .. } => Some("`mrctl nodes` shows its state".into()),
        _ => None,
    }
}

/// Formats the error of an attempt as one line for a table on standard output. The line is
/// shortened only if standard output is a terminal.
pub fn brief(failure: &str) -> String {
    if io::stdout().is_terminal() { shortened(failure) } else { one_line(failure) }
}

/// A usage error: no state of the cluster can make the command valid. Exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Fails if there is no local file or folder with this path.
pub fn check_local(path: &std::path::Path) -> Result<(), Usage> {
    if path.exists() {
        return Ok(());
    }
    Err(Usage(format!("{}: there is no such local file", path.display())))
}

/// Prints a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Creates a table whose columns are separated by two spaces, without lines, so that `cut` and
/// `awk` can process it. `right` lists the columns that are aligned to the right.
pub fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    if !header.is_empty() {
        table.set_header(header.iter().copied());
    }
    align_right(&mut table, right);
    table
}

/// Prints a table to standard output.
pub fn print_table(table: &Table) -> Result<()> {
    let mut out = stdout();
    for row in table_lines(table) {
        writeln!(out, "{row}")?;
    }
    Ok(())
}

/// Returns the lines of a table as they are printed.
pub fn table_lines(table: &Table) -> Vec<String> {
    // The preset pads each cell by a space on both sides.
    let plain = |row: &str| row.strip_prefix(' ').unwrap_or(row).trim_end().to_owned();
    table.to_string().lines().map(plain).collect()
}

/// Aligns columns to the right. A table without a header must already have rows.
pub fn align_right(table: &mut Table, columns: &[usize]) {
    for at in columns {
        if let Some(column) = table.column_mut(*at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn full_disk_on_stdout_is_reported() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let error = StdoutWriter(full).write_all(b"x").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot write to standard output: No space left"), "{text}");
        assert_eq!(stdout_error(io::ErrorKind::BrokenPipe.into()).kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn error_cause_is_printed_once() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "cannot use x: {}", self.0)
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let outer = Outer(std::io::Error::other("denied"));
        let error = Err::<(), _>(outer).context("starting").unwrap_err();
        assert_eq!(chain(&error), "starting: cannot use x: denied");
        let other_server = client::Error::NotJobTracker { addr: "h:1".into(), why: "HTTP".into() };
        let text = chain(&anyhow::Error::new(other_server).context("submitting"));
        assert!(
            text.ends_with("is not a Fermata JobTracker (HTTP); name another with --jobtracker"),
            "{text}"
        );
    }
}
