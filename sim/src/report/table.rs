//! Tables for terminals, HTML, Markdown and JSON. A cell has a text and, for `--json`, a number.

use super::{html::escape, svg::short};
use crate::experiment::Figure;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// A cell: text, or a number and its text.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A figure over seeds.
    Figure(Figure, String),
    /// One number; `None` if there is no value.
    Number(Option<f64>, String),
    /// A number and an interval around it that need not be symmetric.
    Interval { value: f64, low: f64, high: f64, text: String },
}

impl Cell {
    /// Creates a cell with a fraction over seeds, shown as a percentage.
    pub fn fraction(figure: Figure) -> Self {
        Self::Figure(figure, figure.known().map_or_else(no_value, |known| percent(known.mean)))
    }

    /// Creates a cell with a fraction, shown as a percentage.
    pub fn percent(part: Option<f64>) -> Self {
        Self::Number(part, part.map_or_else(no_value, percent))
    }

    /// Creates a cell with a number, shown with few digits.
    pub fn number(value: Option<f64>) -> Self {
        Self::Number(value, value.map_or_else(no_value, short))
    }

    /// Creates a cell with a number and its interval, if there is one.
    pub fn interval(value: Option<f64>, interval: Option<[f64; 2]>) -> Self {
        let (Some(value), Some([low, high])) = (value, interval) else { return Self::number(value) };
        Self::Interval {
            value,
            low,
            high,
            text: format!("{} ({} to {})", short(value), short(low), short(high)),
        }
    }

    /// Creates a cell with a relative change and its interval, if there is one: +19.2% (+11.0 to
    /// +28.1).
    pub fn change(mean: f64, interval: Option<[f64; 2]>) -> Self {
        let text = format!("{:+.1}%", percent_of(mean));
        let Some([low, high]) = interval else { return Self::Number(Some(mean), text) };
        let text = format!("{text} ({:+.1} to {:+.1})", percent_of(low), percent_of(high));
        Self::Interval { value: mean, low, high, text }
    }

    /// Creates a cell with a number of items.
    pub fn count(count: usize) -> Self {
        Self::Number(Some(count as f64), count.to_string())
    }

    /// Marks a number as a lower bound: ≥1.5.
    #[must_use]
    pub fn as_lower_bound(mut self, is_lower_bound: bool) -> Self {
        if let Self::Number(Some(_), text) | Self::Interval { text, .. } = &mut self
            && is_lower_bound
        {
            text.insert(0, '≥');
        }
        self
    }

    /// Adds how many jobs a number leaves out, if any: `1.5; without 3 jobs`.
    #[must_use]
    pub fn without_jobs(mut self, left_out: usize) -> Self {
        if let Self::Number(Some(_), text) | Self::Interval { text, .. } = &mut self
            && left_out > 0
        {
            let _ = write!(text, "; without {}", crate::count(left_out, "job"));
        }
        self
    }

    /// Returns the text of the cell.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text)
            | Self::Figure(_, text)
            | Self::Number(_, text)
            | Self::Interval { text, .. } => text,
        }
    }

    /// Returns the cell for an archive: its text, or an object with its text and its number.
    pub(super) fn archived(&self) -> Value {
        match self {
            Self::Figure(Figure { mean, half_width: Some(half_width), .. }, text) => json!({
                "text": text,
                "mean": rounded(*mean),
                "half_width": rounded(*half_width),
            }),
            Self::Figure(Figure { mean, seeds: 1.., .. }, text) | Self::Number(Some(mean), text) => {
                json!({ "text": text, "mean": rounded(*mean) })
            }
            Self::Interval { value, low, high, text } => json!({
                "text": text, "mean": rounded(*value), "low": rounded(*low), "high": rounded(*high),
            }),
            _ => json!(self.text()),
        }
    }

    /// Returns the value for `--json`, with full precision.
    pub fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Figure(figure, _) => json!(figure.known()),
            Self::Interval { value, low, high, .. } => json!({ "mean": value, "low": low, "high": high }),
            Self::Number(value, _) => match value {
                Some(value) if value.fract() == 0.0 && value.abs() < 9e15 => json!(*value as i64),
                value => json!(value),
            },
        }
    }
}

/// Rounds a number for an archive to six significant digits.
pub(super) fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Figure> for Cell {
    fn from(figure: Figure) -> Self {
        Self::Figure(figure, show(figure))
    }
}

/// Returns the text of a cell without a value.
fn no_value() -> String {
    "-".to_owned()
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells by row.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates an empty table with these columns.
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Returns an object per row, with the column names as keys. If a column name occurs more than
    /// once, a number is added: `s`, `s (2)`.
    pub fn json(&self) -> Value {
        let name = |at: usize| {
            let same = self.head[..at].iter().filter(|before| **before == self.head[at]).count();
            if same == 0 { self.head[at].clone() } else { format!("{} ({})", self.head[at], same + 1) }
        };
        let row = |row: &Vec<Cell>| -> Value {
            let cells = row.iter().take(self.head.len()).enumerate();
            cells.map(|(at, cell)| (name(at), cell.json())).collect::<Map<_, _>>().into()
        };
        self.rows.iter().map(row).collect()
    }

    /// Returns head and rows as text.
    fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        let head = self.head.iter().map(String::as_str).collect();
        std::iter::once(head).chain(self.rows.iter().map(|row| row.iter().map(Cell::text).collect()))
    }

    /// Returns the table as HTML.
    pub fn html(&self) -> String {
        let mut out = String::from("<table>");
        for (at, row) in self.lines().enumerate() {
            let tag = if at == 0 { "th" } else { "td" };
            out.push_str("<tr>");
            for cell in row {
                let _ = write!(out, "<{tag}>{}</{tag}>", escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</table>");
        out
    }

    /// Returns the table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | ").replace('\n', " "));
        let mut lines: Vec<String> = self.lines().map(line).collect();
        lines.insert(1, format!("|{}\n", "---|".repeat(self.head.len())));
        lines.concat()
    }

    /// Returns the table with aligned columns for a terminal.
    pub fn text(&self) -> String {
        let columns = self.head.len();
        let width = |at: usize| {
            self.lines().filter_map(|row| row.get(at).map(|cell| cell.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in self.lines() {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match at {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// Formats a figure, with its interval if it has one; a dash if there is no value.
pub fn show(figure: Figure) -> String {
    let Some(figure) = figure.known() else { return no_value() };
    let sign = if figure.is_lower_bound { "≥" } else { "" };
    match figure.half_width.filter(|half_width| *half_width > 0.0) {
        Some(half_width) => format!("{sign}{} ±{}", short(figure.mean), short(half_width)),
        None => format!("{sign}{}", short(figure.mean)),
    }
}

/// Converts a fraction to percent with one decimal. Adding 0.0 turns -0 into 0.
fn percent_of(part: f64) -> f64 {
    (part * 1000.0).round() / 10.0 + 0.0
}

/// Formats a fraction as a percentage.
pub fn percent(part: f64) -> String {
    format!("{:.1}%", percent_of(part))
}

/// Formats a relative change with its confidence interval: -12.7% ±4.1.
pub fn show_change(change: Figure) -> String {
    let half_width = change.half_width.filter(|half_width| *half_width > 0.0);
    let half_width = half_width.map_or_else(String::new, |half_width| format!(" ±{:.1}", half_width * 100.0));
    format!("{:+.1}%{half_width}", percent_of(change.mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(mean: f64, half_width: f64, seeds: usize) -> Figure {
        Figure { mean, half_width: (seeds > 1).then_some(half_width), is_lower_bound: false, seeds }
    }

    #[test]
    fn json_contains_numbers_with_full_precision() {
        let mut table = Table::new(&["policy", "s", "s", "jobs", "local"]);
        let cells = |first: Figure| {
            let part = Cell::percent(Some(0.25));
            vec![Cell::from("fair"), first.into(), figure(2.0, 0.0, 1).into(), Cell::count(3), part]
        };
        table.row(cells(figure(109.4375, 3.5, 5)));
        table.row(cells(figure(0.0, 0.0, 0)));
        let text = table.text();
        assert!(text.contains("109 ±3.50") && text.contains("25.0%"), "{text}");
        let json = table.json();
        assert_eq!(
            json[0]["s"],
            json!({"mean": 109.4375, "half_width": 3.5, "is_lower_bound": false, "seeds": 5})
        );
        assert_eq!(
            (&json[0]["s (2)"]["mean"], &json[0]["jobs"], &json[0]["local"]),
            (&json!(2.0), &json!(3), &json!(0.25))
        );
        assert_eq!(json[1]["s"], Value::Null, "a figure without seeds has no value");
        assert!(
            table
                .markdown()
                .starts_with("| policy | s | s | jobs | local |\n|---|---|---|---|---|\n| fair |")
        );
    }

    #[test]
    fn intervals_that_are_not_symmetric_have_both_ends() {
        let change = Cell::change(0.192, Some([0.11, 0.2814]));
        assert_eq!(change.text(), "+19.2% (+11.0 to +28.1)");
        assert_eq!(
            change.archived(),
            json!({ "text": change.text(), "mean": 0.192, "low": 0.11, "high": 0.2814 })
        );
        assert_eq!(change.json(), json!({ "mean": 0.192, "low": 0.11, "high": 0.2814 }));
        assert_eq!(Cell::change(-0.05, None).text(), "-5.0%");
        assert_eq!(Cell::interval(Some(1.53), Some([1.4, 1.71])).text(), "1.53 (1.40 to 1.71)");
        assert_eq!(
            (Cell::interval(Some(1.5), None).text(), Cell::interval(None, None).text()),
            ("1.50", "-")
        );
    }

    #[test]
    fn negative_zero_is_shown_as_zero_and_a_missing_value_as_a_dash() {
        let none: f64 = [].iter().sum();
        assert_eq!(
            (percent(none), percent(-0.0001), percent(-0.123)),
            ("0.0%".into(), "0.0%".into(), "-12.3%".into())
        );
        assert_eq!(show_change(figure(-0.0001, 0.0, 2)), "+0.0%");
        assert_eq!(show(Figure::of(&[])), "-");
        assert_eq!(Cell::percent(None).text(), "-");
    }
}
