//! A measured figure, its limit, its baseline, and how they are printed.

use crate::output;
use anyhow::Result;
use serde::Serialize;

/// What a figure is held against.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// It should be this or more.
    AtLeast(f64),
    /// It should be this or less.
    AtMost(f64),
    /// It should be this part of the baseline or more.
    OfBaseline(f64),
    /// It should be this many times the baseline or less.
    AtMostOfBaseline(f64),
}

/// One line of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measurement {
    /// What was measured.
    pub(crate) name: String,
    /// The figure.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// What it is held against; None for a figure that is only told.
    pub(crate) limit: Option<Limit>,
    /// The plain way to do the same, measured in the same run.
    pub(crate) baseline: Option<f64>,
    /// What that way is.
    pub(crate) baseline_name: Option<&'static str>,
    /// Time of one round, seconds.
    pub(crate) wall_seconds: f64,
    /// Processor time of the daemons (and of tasks and clients, where there are any) in that round, seconds.
    pub(crate) daemon_cpu_seconds: f64,
}

impl Measurement {
    /// A figure without a limit, a baseline or a round of its own.
    pub(crate) fn unlimited(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            limit: None,
            baseline: None,
            baseline_name: None,
            wall_seconds: 0.0,
            daemon_cpu_seconds: 0.0,
        }
    }

    /// Whether the limit is met; None without one.
    pub(crate) fn met(&self) -> Option<bool> {
        let limit = self.limit?;
        Some(match limit {
            Limit::AtLeast(least) => self.value >= least,
            Limit::AtMost(most) => self.value <= most,
            Limit::OfBaseline(part) => self.value >= part * self.baseline?,
            Limit::AtMostOfBaseline(times) => self.value <= times * self.baseline?,
        })
    }

    fn limit_text(&self) -> String {
        match self.limit {
            None => String::new(),
            Some(Limit::AtLeast(least)) => format!(">= {}", number(least)),
            Some(Limit::AtMost(most)) => format!("<= {}", number(most)),
            Some(Limit::OfBaseline(part)) => {
                format!(">= {part} x = {}", number(part * self.baseline.unwrap_or(0.0)))
            }
            Some(Limit::AtMostOfBaseline(times)) => {
                format!("<= {times} x = {}", number(times * self.baseline.unwrap_or(0.0)))
            }
        }
    }
}

/// The middle one of several measurements; of an even number, the worse of the two for a rate.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// About three figures, thousands apart.
fn number(value: f64) -> String {
    if value >= 1000.0 {
        let digits = format!("{value:.0}");
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|g| str::from_utf8(g).unwrap_or("")).collect();
        groups.join(",")
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn seconds(seconds: f64) -> String {
    if seconds > 0.0 { format!("{seconds:.2} s") } else { String::new() }
}

/// Prints one array, each figure with `met`: whether its limit is, null without one.
pub(crate) fn print_json(figures: &[Measurement]) -> Result<()> {
    #[derive(Serialize)]
    struct JudgedMeasurement<'a> {
        #[serde(flatten)]
        figure: &'a Measurement,
        met: Option<bool>,
    }
    let judged: Vec<JudgedMeasurement> =
        figures.iter().map(|figure| JudgedMeasurement { figure, met: figure.met() }).collect();
    output::json(&judged)
}

/// Prints the table.
pub(crate) fn print(figures: &[Measurement]) -> Result<()> {
    let header = ["FIGURE", "MEASURED", "UNIT", "LIMIT", "BASELINE", "RATIO", "WALL", "CPU", ""];
    let mut table = output::table(&header, &[1, 3, 4, 5, 6, 7]);
    for figure in figures {
        let verdict = match figure.met() {
            None => "",
            Some(true) => "PASS",
            Some(false) => "MISS",
        };
        table.add_row([
            figure.name.clone(),
            number(figure.value),
            figure.unit.into(),
            figure.limit_text(),
            figure.baseline.map_or(String::new(), number),
            figure.baseline.map_or(String::new(), |baseline| format!("{:.2}", figure.value / baseline)),
            seconds(figure.wall_seconds),
            seconds(figure.daemon_cpu_seconds),
            verdict.into(),
        ]);
    }
    output::print_table(&table)?;
    for figure in figures {
        if let Some(name) = figure.baseline_name {
            output::line(format!("baseline of {}: {name}", figure.name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, limit: Option<Limit>, baseline: Option<f64>) -> Measurement {
        Measurement {
            name: "x".into(),
            value,
            unit: "MB/s",
            limit,
            baseline,
            baseline_name: None,
            wall_seconds: 1.0,
            daemon_cpu_seconds: 1.0,
        }
    }

    #[test]
    fn a_limit_is_met_or_missed() {
        assert_eq!(figure(1.0, None, None).met(), None);
        assert_eq!(figure(5.0, Some(Limit::AtLeast(5.0)), None).met(), Some(true));
        assert_eq!(figure(5.1, Some(Limit::AtMost(5.0)), None).met(), Some(false));
        assert_eq!(figure(6.0, Some(Limit::OfBaseline(0.6)), Some(10.0)).met(), Some(true));
        assert_eq!(figure(5.9, Some(Limit::OfBaseline(0.6)), Some(10.0)).met(), Some(false));
        assert_eq!(figure(20.0, Some(Limit::AtMostOfBaseline(2.0)), Some(10.0)).met(), Some(true));
        assert_eq!(figure(20.1, Some(Limit::AtMostOfBaseline(2.0)), Some(10.0)).met(), Some(false));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(vec![9.0, 1.0, 5.0]) - 5.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0]) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(567.8), "568");
        assert_eq!(number(56.78), "56.8");
        assert_eq!(number(0.614), "0.61");
    }
}
