//! `[scheduler]`: the policy, its shadow, and a table of parameters per policy.
//!
//! The policies define their parameters. This module converts tables to dotted keys with text
//! values.

use super::ConfigError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The policy of clusters that name none (docs/internals/adr/0035-coda-is-the-default.md).
const DEFAULT: &str = "coda";

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
        Self { name: DEFAULT.into(), shadow: String::new(), policies: toml::Table::new() }
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
