//! Archives of results: JSON files in docs/research/archive that the pages there cite.
//!
//! An archive is an object with the command, version and commit that made it, and `tables`: a list
//! of `{ "title", "head", "rows" }`. A cell is its text, or an object with its text and its number.
//! The test `research_pages` compares the tables of a page with their archive.

use super::Table;
use serde_json::{Value, json};

/// Depth down to which [`text`] puts every element on its own line.
const LINES_DEPTH: usize = 4;

/// Returns a table for an archive.
pub fn table(title: &str, table: &Table) -> Value {
    let row = |row: &Vec<super::Cell>| row.iter().map(super::Cell::archived).collect::<Vec<_>>();
    json!({ "title": title, "head": table.head, "rows": table.rows.iter().map(row).collect::<Vec<_>>() })
}

/// Returns the JSON text of an archive, with one row of a table per line.
pub fn text(archive: &Value) -> String {
    let mut out = String::new();
    write_lines(&mut out, archive, 0);
    out.push('\n');
    out
}

fn write_lines(out: &mut String, value: &Value, depth: usize) {
    let (items, brackets): (Vec<(String, &Value)>, [char; 2]) = match value {
        Value::Object(fields) if depth < LINES_DEPTH => {
            (fields.iter().map(|(key, value)| (format!("{}: ", json!(key)), value)).collect(), ['{', '}'])
        }
        Value::Array(items) if depth < LINES_DEPTH => {
            (items.iter().map(|item| (String::new(), item)).collect(), ['[', ']'])
        }
        _ => {
            out.push_str(&value.to_string());
            return;
        }
    };
    out.push(brackets[0]);
    for (at, (key, value)) in items.iter().enumerate() {
        out.push_str(if at == 0 { "\n" } else { ",\n" });
        out.push_str(&" ".repeat(depth + 1));
        out.push_str(key);
        write_lines(out, value, depth + 1);
    }
    if !items.is_empty() {
        out.push('\n');
        out.push_str(&" ".repeat(depth));
    }
    out.push(brackets[1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Figure, report::Cell};

    #[test]
    fn archive_has_text_and_number_of_each_cell_and_reads_back() {
        let mut one = Table::new(&["policy", "s", "jobs"]);
        let seconds = Figure { mean: 109.437_512_3, half_width: Some(3.5), is_lower_bound: false, seeds: 5 };
        one.row(vec!["fair".into(), seconds.into(), Cell::count(3)]);
        one.row(vec!["fifo".into(), Figure::of(&[]).into(), Cell::number(None)]);
        let archive = json!({ "commit": "abc", "tables": [table("Completion, s", &one)], "none": [] });
        let text = text(&archive);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("valid JSON"), archive, "{text}");
        let rows = &archive["tables"][0]["rows"];
        assert_eq!(
            rows[0],
            json!(["fair", { "text": "109 ±3.50", "mean": 109.438, "half_width": 3.5 }, { "text": "3", "mean": 3.0 }])
        );
        assert_eq!(rows[1], json!(["fifo", "-", "-"]));
        assert!(text.lines().any(|line| line.starts_with("    [\"fair\",")), "one row per line: {text}");
    }
}
