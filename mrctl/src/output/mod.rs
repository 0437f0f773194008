//! What people and programs see: tables, JSON, sizes, times, progress. Everything that goes to standard
//! output passes through here, so that a closed pipe is an error like any other and never a panic.

mod progress;
mod size;

pub(crate) use progress::Meter;
pub(crate) use size::{Sizes, age, count, human, millis, permissions, shell, time};

use crate::job::refusal::Refusal;
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use dfs::{client::ClientError, error::Kind};
use serde::Serialize;
use std::io::Write;

/// What to do about a path of this machine where one of the cluster was meant.
pub(crate) const QUOTE_IT: &str = "has your shell expanded a pattern? quote it, as in '/in/*'";

/// Prints a line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// An error and what caused it, each text once: some messages name their cause themselves.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// What was asked for makes no sense, whatever the cluster is like: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The exit code for an error: 2 for bad usage and bad values, 1 for an operation that failed.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let usage = error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.is::<dfs::path::PathError>()
            || cause.is::<daemon::config::ConfigError>()
            || cause.downcast_ref::<Refusal>().is_some_and(Refusal::is_usage)
            || cause.downcast_ref::<ClientError>().is_some_and(|error| error.is(Kind::Invalid))
    });
    if usage { 2 } else { 1 }
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// A plain table: columns by two spaces, no lines, so that it reads well and cuts well.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    if !header.is_empty() {
        table.set_header(header.iter().copied());
    }
    align_right(&mut table, right);
    table
}

/// Prints a table; nothing if it has no rows.
pub(crate) fn print_table(table: &Table) -> Result<()> {
    let text = table.to_string();
    let mut out = std::io::stdout().lock();
    for row in text.lines() {
        // The preset pads each cell by a space on both sides.
        writeln!(out, "{}", row.strip_prefix(' ').unwrap_or(row).trim_end())?;
    }
    Ok(())
}

/// Aligns columns to the right; for tables without a header, once they have rows.
pub(crate) fn align_right(table: &mut Table, columns: &[usize]) {
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
    fn bad_values_exit_with_2_and_failures_with_1() {
        let refused = |kind| ClientError::Refused(dfs::error::Error::new(kind, "x"));
        assert_eq!(exit_code(&Usage("x".into()).into()), 2);
        assert_eq!(exit_code(&dfs::path::DfsPath::parse("relative").unwrap_err().into()), 2);
        assert_eq!(exit_code(&anyhow::Error::from(refused(Kind::Invalid)).context("y")), 2);
        assert_eq!(exit_code(&refused(Kind::NotFound).into()), 1);
        assert_eq!(exit_code(&anyhow::anyhow!("x")), 1);
    }

    #[test]
    fn a_cause_is_told_once() {
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
    }
}
