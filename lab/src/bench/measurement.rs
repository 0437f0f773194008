//! A measured value with its limit and baseline, and the output of benchmarks.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};
use sim::report::{Cell, Table, archive};
use std::collections::{BTreeMap, BTreeSet};
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
    /// The policy, if each policy has a measurement of this name.
    pub(crate) policy: Option<String>,
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
            policy: None,
            value,
            unit,
            limit: None,
            baseline: None,
            baseline_name: None,
            wall_seconds: 0.0,
            daemon_cpu_seconds: 0.0,
        }
    }

    /// Returns a measurement of a policy, without limit and baseline.
    pub(crate) fn of_policy(policy: &str, name: &str, value: f64, unit: &'static str) -> Self {
        Self { policy: Some(policy.to_owned()), ..Self::unlimited(name, value, unit) }
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

/// Prints the measurements: with `provenance` as JSON that is also an archive. There, `met` tells
/// whether the limit is met, and is null without a limit.
pub(crate) fn print(figures: &[Measurement], provenance: Option<&Value>) -> Result<()> {
    if let Some(provenance) = provenance {
        let judged = figures.iter().map(|figure| JudgedMeasurement { figure, met: figure.is_limit_met() });
        let tables = [("Run", run_table(provenance))].into_iter().chain(tables(figures));
        let result = json!({
            "date": output::utc(output::now_ms()),
            "measurements": judged.collect::<Vec<_>>(),
            "tables": tables.map(|(title, table)| archive::table(title, &table)).collect::<Vec<_>>(),
        });
        return crate::print_archive(result, provenance);
    }
    for (_, table) in tables(figures) {
        output::line(table.text())?;
    }
    let baselines = figures.iter().filter_map(|figure| Some((&figure.name, figure.baseline_name?)));
    for (measurement, name) in baselines.collect::<BTreeSet<_>>() {
        output::line(format!("baseline of {measurement}: {name}"))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JudgedMeasurement<'a> {
    #[serde(flatten)]
    figure: &'a Measurement,
    met: Option<bool>,
}

/// Returns a table of what the measurements were made with.
pub(crate) fn run_table(provenance: &Value) -> Table {
    let text = |key: &str| provenance[key].as_str().unwrap_or("unknown").to_owned();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let system = rustix::system::sysinfo();
    let memory = system.totalram as f64 * f64::from(system.mem_unit) / f64::from(1 << 30);
    let mut table = Table::new(&["run", "value"]);
    for (name, value) in [
        ("command", format!("`{}`", text("command"))),
        ("version", text("version")),
        ("commit", text("commit")),
        ("build", if cfg!(debug_assertions) { "debug" } else { "release" }.into()),
        ("processor", model.map_or("unknown", |(_, model)| model).into()),
        ("cores", cores.to_string()),
        ("memory", format!("{memory:.1} GiB")),
        ("kernel", rustix::system::uname().release().to_string_lossy().into_owned()),
    ] {
        table.row(vec![name.into(), value.into()]);
    }
    table
}

/// Returns the tables that have measurements: one of policies, and one of everything else.
fn tables(figures: &[Measurement]) -> impl Iterator<Item = (&'static str, Table)> {
    let (of_policies, others): (Vec<_>, Vec<_>) = figures.iter().partition(|figure| figure.policy.is_some());
    let tables = [("Policies", policy_table(&of_policies)), ("Measurements", measurement_table(&others))];
    tables.into_iter().filter(|(_, table)| !table.rows.is_empty())
}

fn measurement_table(figures: &[&Measurement]) -> Table {
    let head = ["measurement", "result", "limit", "baseline", "ratio", "time", "CPU time", "verdict"];
    let mut table = Table::new(&head);
    for figure in figures {
        let with_unit = |value: f64| format!("{} {}", format_number(value), figure.unit).trim_end().into();
        let seconds = |seconds: f64| cell((seconds > 0.0).then_some(seconds), |s| format!("{s:.2} s"));
        table.row(vec![
            figure.name.as_str().into(),
            cell(Some(figure.value), with_unit),
            figure.limit_text().into(),
            cell(figure.baseline, with_unit),
            cell(figure.baseline.map(|baseline| figure.value / baseline), |ratio| format!("{ratio:.2} x")),
            seconds(figure.wall_seconds),
            seconds(figure.daemon_cpu_seconds),
            verdict(figure.is_limit_met()).into(),
        ]);
    }
    table
}

/// Returns a table with a row per policy and a column per measurement. A baseline has its own
/// column.
fn policy_table(figures: &[&Measurement]) -> Table {
    let (mut columns, mut rows) = (Vec::new(), Vec::<(&str, BTreeMap<String, f64>, bool)>::new());
    for figure in figures {
        let policy = figure.policy.as_deref().unwrap_or_default();
        if rows.iter().all(|(name, ..)| *name != policy) {
            rows.push((policy, BTreeMap::new(), true));
        }
        let Some((_, values, met)) = rows.iter_mut().find(|(name, ..)| *name == policy) else { continue };
        *met &= figure.is_limit_met() != Some(false);
        let baseline = figure.baseline.map(|value| (figure.baseline_name.unwrap_or("baseline"), value));
        let baseline = baseline.map(|(name, value)| (format!(", {name}"), value));
        for (what, value) in [(String::new(), figure.value)].into_iter().chain(baseline) {
            let column = format!("{}{what}, {}", figure.name, figure.unit);
            if !columns.contains(&column) {
                columns.push(column.clone());
            }
            values.insert(column, value);
        }
    }
    let head = ["policy"].into_iter().chain(columns.iter().map(String::as_str)).chain(["limits"]);
    let mut table = Table::new(&head.collect::<Vec<_>>());
    for (policy, values, met) in rows {
        let cells = columns.iter().map(|column| cell(values.get(column).copied(), format_number));
        table.row([policy.into()].into_iter().chain(cells).chain([verdict(Some(met)).into()]).collect());
    }
    table
}

fn cell(value: Option<f64>, text: impl Fn(f64) -> String) -> Cell {
    Cell::Number(value, value.map_or_else(String::new, text))
}

fn verdict(met: Option<bool>) -> &'static str {
    met.map_or("", |met| if met { "met" } else { "missed" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, limit: Option<Limit>, baseline: Option<f64>) -> Measurement {
        Measurement { limit, baseline, wall_seconds: 1.0, ..Measurement::unlimited("x", value, "MB/s") }
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

    #[test]
    fn tables_have_a_row_per_policy_and_one_per_other_measurement() {
        let of_policy = |policy, name, value| Measurement {
            limit: Some(Limit::AtMost(2.0)),
            ..Measurement::of_policy(policy, name, value, "us")
        };
        let figures = [
            Measurement {
                baseline: Some(0.5),
                baseline_name: Some("few tasks"),
                ..of_policy("fair", "decide", 1.0)
            },
            of_policy("fair", "tick", 3.0),
            of_policy("fifo", "decide", 1.5),
            figure(20.0, Some(Limit::AtMostOfBaseline(2.0)), Some(10.0)),
        ];
        let tables: Vec<(&str, Table)> = tables(&figures).collect();
        let texts = |table: &Table| {
            table
                .rows
                .iter()
                .map(|row| row.iter().map(Cell::text).collect::<Vec<_>>().join("|"))
                .collect::<Vec<_>>()
        };
        assert_eq!(tables[0].1.head, ["policy", "decide, us", "decide, few tasks, us", "tick, us", "limits"]);
        assert_eq!(texts(&tables[0].1), ["fair|1.00|0.50|3.00|missed", "fifo|1.50|||met"]);
        assert_eq!(texts(&tables[1].1), ["x|20.0 MB/s|<= 2 x = 20.0|10.0 MB/s|2.00 x|1.00 s||met"]);
        assert_eq!(tables.len(), 2);
        assert!(self::tables(&[]).next().is_none());
    }
}
