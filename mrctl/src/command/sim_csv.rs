//! Writes the jobs of a comparison as CSV, with one row per policy, seed and job.

use super::sim_json::{self, Details};
use serde_json::Value;
use sim::experiment::Comparison;
use std::fmt::Write as _;

/// The first columns of the scores of `mrctl lab compare`.
const LABELS: [&str; 2] = ["workload", "policy"];

/// The scores of `mrctl lab compare` that are figures over seeds, with an interval.
const FIGURES: [&str; 8] = [
    "completion_s",
    "makespan_s",
    "locality",
    "map_slots_used",
    "reduce_slots_used",
    "lost_slot_s",
    "overhead_slot_s",
    "preemptions",
];

/// The score that is a difference, and the columns after its mean.
const CHANGE: &str = "against_reference";
const CHANGE_COLUMNS: [&str; 4] = ["low", "high", "seeds", "slower_seeds"];

/// Returns all jobs of all policies and seeds. The first line is a comment that says how they were
/// made, the second has the names of the columns: `policy`, the keys of a job in JSON, and the
/// utilisation and offered load of the run.
pub(crate) fn jobs(details: &Details, comparison: &Comparison) -> String {
    let mut text = format!("# {}\n", details.provenance.line());
    for (at, mut job) in sim_json::job_rows(details, comparison).into_iter().enumerate() {
        let policy = job.remove("policy").unwrap_or_default();
        if at == 0 {
            let names: Vec<&str> = job.keys().map(String::as_str).collect();
            let _ = writeln!(text, "policy,{}", names.join(","));
        }
        let values: Vec<String> = std::iter::once(&policy).chain(job.values()).map(field).collect();
        let _ = writeln!(text, "{}", values.join(","));
    }
    text
}

/// Returns objects with the same keys as CSV. The first line is a comment that says how they were
/// made. A figure over seeds becomes its mean, followed by half the width of its interval; a difference
/// its mean, followed by both ends of its interval and the numbers of seeds.
pub(crate) fn table(made_by: &str, rows: &[Value]) -> String {
    let mut text = format!("# {made_by}\n");
    for (at, row) in rows.iter().filter_map(Value::as_object).enumerate() {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        let is_label = |name: &str| LABELS.contains(&name);
        let labels = LABELS.iter().filter_map(|label| row.get_key_value(*label));
        for (name, value) in labels.chain(row.iter().filter(|(name, _)| !is_label(name))) {
            names.push(name.clone());
            let parts: &[&str] = match name.as_str() {
                CHANGE => &CHANGE_COLUMNS,
                name if FIGURES.contains(&name) => &["half_width"],
                _ => &[],
            };
            names.extend(parts.iter().map(|part| format!("{name}_{part}")));
            values.push(field(value.get("mean").unwrap_or(value)));
            values.extend(parts.iter().map(|part| field(value.get(part).unwrap_or(&Value::Null))));
        }
        if at == 0 {
            let _ = writeln!(text, "{}", names.join(","));
        }
        let _ = writeln!(text, "{}", values.join(","));
    }
    text
}

/// Returns a value as a field; empty for null.
fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Quotes a text that contains a comma, a quotation mark or a line break.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_both_ends_of_their_interval() {
        let change =
            serde_json::json!({ "mean": 0.1, "low": -0.1, "high": 0.3, "seeds": 3, "slower_seeds": 2 });
        let row =
            |change: Value| serde_json::json!({ "policy": "a", "against_reference": change, "jain": 0.5 });
        let text = table("a test", &[row(Value::Null), row(change)]);
        let head = "policy,against_reference,against_reference_low,against_reference_high,\
                    against_reference_seeds,against_reference_slower_seeds,jain";
        assert_eq!(text, format!("# a test\n{head}\na,,,,,,0.5\na,0.1,-0.1,0.3,3,2,0.5\n"));
    }

    #[test]
    fn fields_are_quoted_only_if_necessary() {
        assert_eq!(quoted("chronos(fair)"), "chronos(fair)");
        assert_eq!(quoted("fcs[a=1,b=\"2\"]"), "\"fcs[a=1,b=\"\"2\"\"]\"");
        assert_eq!(
            (field(&Value::Null), field(&1.5.into()), field(&true.into())),
            (String::new(), "1.5".into(), "true".into())
        );
    }
}
