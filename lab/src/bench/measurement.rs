//! A measured value with its limit and baseline, and the output of benchmarks.

use anyhow::Result;
use serde::Serialize;
use view::output;

/// The limit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// At least this fraction of the baseline.
    OfBaseline(f64),
    /// At most this multiple of the baseline.
    AtMostOfBaseline(f64),
}

/// One measurement of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measurement {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// None if the value is only reported.
    pub(crate) limit: Option<Limit>,
    /// The value of a plain program that does the same work, measured in the same run.
    pub(crate) baseline: Option<f64>,
    /// A description of the baseline.
    pub(crate) baseline_name: Option<&'static str>,
    /// Duration of one round in seconds.
    pub(crate) wall_seconds: f64,
    /// CPU time of the daemons in that round in seconds, including tasks and clients if there are
    /// any.
    pub(crate) daemon_cpu_seconds: f64,
}

impl Measurement {
    /// Returns a measurement without limit and baseline.
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

    /// Returns whether the limit is met, or None if there is no limit.
    pub(crate) fn is_limit_met(&self) -> Option<bool> {
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
            Some(Limit::AtLeast(least)) => format!(">= {}", format_number(least)),
            Some(Limit::AtMost(most)) => format!("<= {}", format_number(most)),
            Some(Limit::OfBaseline(part)) => {
                format!(">= {part} x = {}", format_number(part * self.baseline.unwrap_or(0.0)))
            }
            Some(Limit::AtMostOfBaseline(times)) => {
                format!("<= {times} x = {}", format_number(times * self.baseline.unwrap_or(0.0)))
            }
        }
    }
}

/// Returns the median. For an even number of values it is the lower of the two middle values, which
/// is the worse one for a rate.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Formats a number with about three digits and a comma between thousands.
fn format_number(value: f64) -> String {
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

fn format_seconds(seconds: f64) -> String {
    if seconds > 0.0 { format!("{seconds:.2} s") } else { String::new() }
}

/// Prints the measurements as one JSON array. `met` tells whether the limit is met, and is null
/// without a limit.
pub(crate) fn print_json(figures: &[Measurement]) -> Result<()> {
    #[derive(Serialize)]
    struct JudgedMeasurement<'a> {
        #[serde(flatten)]
        figure: &'a Measurement,
        met: Option<bool>,
    }
    let judged: Vec<JudgedMeasurement> =
        figures.iter().map(|figure| JudgedMeasurement { figure, met: figure.is_limit_met() }).collect();
    output::json(&judged)
}

pub(crate) fn print(figures: &[Measurement]) -> Result<()> {
    let header = ["MEASUREMENT", "MEASURED", "UNIT", "LIMIT", "BASELINE", "RATIO", "WALL", "CPU", ""];
    let mut table = output::table(&header, &[1, 3, 4, 5, 6, 7]);
    for figure in figures {
        let verdict = match figure.is_limit_met() {
            None => "",
            Some(true) => "PASS",
            Some(false) => "MISS",
        };
        table.add_row([
            figure.name.clone(),
            format_number(figure.value),
            figure.unit.into(),
            figure.limit_text(),
            figure.baseline.map_or(String::new(), format_number),
            figure.baseline.map_or(String::new(), |baseline| format!("{:.2}", figure.value / baseline)),
            format_seconds(figure.wall_seconds),
            format_seconds(figure.daemon_cpu_seconds),
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
    fn measurement_is_compared_with_its_limit() {
        assert_eq!(figure(1.0, None, None).is_limit_met(), None);
        assert_eq!(figure(5.0, Some(Limit::AtLeast(5.0)), None).is_limit_met(), Some(true));
        assert_eq!(figure(5.1, Some(Limit::AtMost(5.0)), None).is_limit_met(), Some(false));
        assert_eq!(figure(6.0, Some(Limit::OfBaseline(0.6)), Some(10.0)).is_limit_met(), Some(true));
        assert_eq!(figure(5.9, Some(Limit::OfBaseline(0.6)), Some(10.0)).is_limit_met(), Some(false));
        assert_eq!(figure(20.0, Some(Limit::AtMostOfBaseline(2.0)), Some(10.0)).is_limit_met(), Some(true));
        assert_eq!(figure(20.1, Some(Limit::AtMostOfBaseline(2.0)), Some(10.0)).is_limit_met(), Some(false));
    }

    #[test]
    fn median_of_an_even_number_of_values_is_the_lower_middle_value() {
        assert!((median(vec![9.0, 1.0, 5.0]) - 5.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0]) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn numbers_have_about_three_digits() {
        assert_eq!(format_number(1_234_567.8), "1,234,568");
        assert_eq!(format_number(567.8), "568");
        assert_eq!(format_number(56.78), "56.8");
        assert_eq!(format_number(0.614), "0.61");
    }
}
