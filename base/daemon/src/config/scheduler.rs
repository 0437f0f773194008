//! `[scheduler]`: the policy, its shadow, and a table of parameters per policy.
//!
//! The policies define their parameters. This module converts tables to dotted keys with text
//! values, and finds the line of a key in the file when a policy refuses its value.

use super::{Config, ConfigError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};
use toml::de::{DeTable, DeValue};

/// `[scheduler]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// Name of the policy, such as `fair` or `chronos(fair)`.
    pub name: String,
    /// A second policy, which decides on the same facts without effect; empty for none.
    pub shadow: String,
    /// Tables with the parameters of each policy, such as `[scheduler.fair]`.
    #[serde(flatten)]
    pub policies: toml::Table,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { name: "fifo".into(), shadow: String::new(), policies: toml::Table::new() }
    }
}

impl SchedulerConfig {
    /// Sets a parameter by its dotted key: `fair.pools.research.weight`.
    pub fn set(&mut self, key: &str, value: &str) {
        let (policy, rest) = key.split_once('.').unwrap_or((key, ""));
        let table = self.policies.entry(policy).or_insert_with(|| toml::Table::new().into());
        if let toml::Value::Table(table) = table {
            table.insert(rest.to_owned(), value.into());
        }
    }

    /// Returns the parameters of all policies, by dotted key: `fair.pools.research.weight`.
    pub fn parameters(&self) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut flat = BTreeMap::new();
        for (name, value) in &self.policies {
            let toml::Value::Table(table) = value else {
                let why = format!("unknown field `{name}`, expected `name`, `shadow` or a table of a policy");
                return Err(setting_error(name, why));
            };
            flatten(name, table, &mut flat)?;
        }
        Ok(flat)
    }
}

fn setting_error(key: &str, why: String) -> ConfigError {
    ConfigError::Setting { key: format!("scheduler.{key}"), value: None, why }
}

fn flatten(above: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = format!("{above}.{name}");
        let text = match value {
            toml::Value::Table(table) => {
                flatten(&key, table, flat)?;
                continue;
            }
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            toml::Value::Array(_) | toml::Value::Datetime(_) => {
                let why =
                    format!("scheduler parameter {key} = {value} is not a string, a number or a boolean");
                return Err(setting_error(&key, why));
            }
        };
        if flat.insert(key.clone(), text).is_some() {
            return Err(setting_error(&key, format!("scheduler parameter {key} is set twice")));
        }
    }
    Ok(())
}

/// Adds the line of the file to an error about a setting, if the file contains the setting.
pub(super) fn with_line_in(error: ConfigError, path: Option<&Path>) -> ConfigError {
    let Some(path) = path else { return error };
    match std::fs::read_to_string(path) {
        Ok(text) => with_line(error, path, &text),
        Err(_) => error,
    }
}

/// Like [`with_line_in`], but takes the text of the file.
pub(super) fn with_line(error: ConfigError, path: &Path, text: &str) -> ConfigError {
    let line = match &error {
        ConfigError::Setting { key, value, .. } => line_of(text, key, value.as_deref()),
        // A flag may have set the value: then the file alone has no such error.
        ConfigError::Value { key, .. } if is_error_of(text, path, &error) => line_of(text, key, None),
        _ => None,
    };
    match line {
        Some(line) => ConfigError::Parse { path: path.into(), line, message: error.to_string() },
        None => error,
    }
}

/// Returns whether a check of the file gives this error.
fn is_error_of(text: &str, path: &Path, error: &ConfigError) -> bool {
    let checked = Config::parse(text, path).and_then(|config| config.check());
    checked.is_err_and(|own| own.to_string() == error.to_string())
}

/// Returns the line, counted from 1, that sets a dotted key. If `value` is given, the key must have
/// this value.
fn line_of(text: &str, key: &str, value: Option<&str>) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let at = offset_of(table.get_ref(), key, value)?;
    Some(text.get(..at)?.matches('\n').count() + 1)
}

/// Returns the offset of a dotted key. Names may contain dots, so every possible division of the
/// key is tried.
fn offset_of(table: &DeTable<'_>, key: &str, wanted: Option<&str>) -> Option<usize> {
    table.iter().find_map(|(name, value)| {
        let rest = key.strip_prefix(name.get_ref().as_ref())?;
        match (rest.strip_prefix('.'), value.get_ref()) {
            (Some(rest), DeValue::Table(inner)) => offset_of(inner, rest, wanted),
            (None, found) if rest.is_empty() => {
                let fits = wanted.is_none_or(|wanted| found.as_str() == Some(wanted));
                fits.then(|| name.span().start)
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[scheduler]\nname = \"chronos(fair)\"\n\n[scheduler.fair]\nnode_wait = \"5s\"\n\n\
        [scheduler.fair.pools.\"a.b\"]\nweight = 2\nmin_maps = 1\n\n[scheduler.hsrtf]\nliteral = true\nratio = 0.5\n";

    fn read(text: &str) -> SchedulerConfig {
        let file: toml::Table = text.parse().unwrap();
        file["scheduler"].clone().try_into().unwrap()
    }

    #[test]
    fn tables_become_dotted_keys() {
        let flat = read(FILE).parameters().unwrap();
        let flat: Vec<String> = flat.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let wanted = [
            "fair.node_wait=5s",
            "fair.pools.a.b.min_maps=1",
            "fair.pools.a.b.weight=2",
            "hsrtf.literal=true",
            "hsrtf.ratio=0.5",
        ];
        assert_eq!(flat, wanted);
    }

    #[test]
    fn parameters_set_by_dotted_keys_are_returned() {
        let mut config = SchedulerConfig::default();
        config.set("fair.pools.a.weight", "2");
        config.set("fair.node_wait", "5s");
        let flat: Vec<(String, String)> = config.parameters().unwrap().into_iter().collect();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(flat, [pair("fair.node_wait", "5s"), pair("fair.pools.a.weight", "2")]);
    }

    #[test]
    fn line_of_a_setting_is_found() {
        assert_eq!(line_of(FILE, "scheduler.name", None), Some(2));
        assert_eq!(line_of(FILE, "scheduler.name", Some("chronos(fair)")), Some(2));
        assert_eq!(line_of(FILE, "scheduler.name", Some("given by flag")), None);
        assert_eq!(line_of(FILE, "scheduler.fair", None), Some(4));
        assert_eq!(line_of(FILE, "scheduler.fair.node_wait", None), Some(5));
        assert_eq!(line_of(FILE, "scheduler.fair.pools.a.b.min_maps", None), Some(9));
        assert_eq!(line_of(FILE, "scheduler.fair.pools.a.weight", None), None);
    }

    #[test]
    fn settings_that_are_not_parameters_are_rejected() {
        let error_of = |text: &str| read(text).parameters().unwrap_err().to_string();
        let error = error_of("[scheduler]\nnmae = \"fair\"\n");
        assert_eq!(error, "unknown field `nmae`, expected `name`, `shadow` or a table of a policy");
        let error = error_of("[scheduler.fair]\nnode_wait = [1, 2]\n");
        assert_eq!(
            error,
            "scheduler parameter fair.node_wait = [1, 2] is not a string, a number or a boolean"
        );
    }
}
