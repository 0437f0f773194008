//! What people and programs see: tables, JSON, sizes, times, progress. Everything that goes to standard
//! output passes through here, so that a closed pipe is an error like any other and never a panic.

mod progress;
mod size;

pub(crate) use progress::Meter;
pub(crate) use size::{Sizes, age, human, millis, permissions, time};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::Write;

/// Prints a line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
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
