//! Merges two configurations, for programs that write a `fermata.toml`.

use super::{Config, ConfigError, with_line};
use std::path::Path;
use toml::{Table, Value};

impl Config {
    /// Returns the text of a configuration file with the settings of `base`, overridden by those of
    /// `over`. Checks all settings like a daemon. `path` is the file of `over`, for errors. `over`
    /// must not set a key (`section.key`) that is in `fixed` and that `base` sets.
    pub fn merge(base: &str, over: &str, path: &Path, fixed: &[&str]) -> Result<String, ConfigError> {
        Self::parse(over, path)?;
        let parse = |text: &str| -> Table { text.parse().expect("both have been parsed before") };
        let (mut all, over_text, over) = (parse(base), over, parse(over));
        for key in fixed {
            let (section, name) = key.split_once('.').expect("section.key");
            let set = |table: &Table| table.get(section).and_then(|section| section.get(name)).cloned();
            if let (Some(_), Some(value)) = (set(&all), set(&over)) {
                let why = format!("{}: {key} = {value}: this file must not set it", path.display());
                return Err(ConfigError::Setting { key: (*key).into(), value: None, why });
            }
        }
        merge_tables(&mut all, over);
        let text = toml::to_string(&all).expect("plain values");
        Self::parse(&text, path)?.check().map_err(|error| with_line(error, path, over_text))?;
        Ok(text)
    }
}

fn merge_tables(all: &mut Table, over: Table) {
    for (key, value) in over {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge_tables(below, above),
            (_, value) => drop(all.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "[cluster]\nnamenode = \"a:1\"\n[tasktracker]\nlisten = \"0.0.0.0:9501\"\n";

    fn merge(over: &str) -> Result<Config, String> {
        let path = Path::new("more.toml");
        let text =
            Config::merge(BASE, over, path, &["cluster.namenode"]).map_err(|error| error.to_string())?;
        Ok(Config::parse(&text, path).unwrap())
    }

    #[test]
    fn settings_of_the_second_file_override_those_of_the_base() {
        let config = merge("[scheduler]\nname = \"fair\"\n[tasktracker]\nmap_slots = 8\n").unwrap();
        assert_eq!((config.scheduler.name.as_str(), config.tasktracker.map_slots), ("fair", 8));
        assert_eq!(config.tasktracker.listen, "0.0.0.0:9501");
        assert_eq!(config.cluster.namenode, "a:1".into());
    }

    #[test]
    fn invalid_or_fixed_settings_are_rejected_with_their_name() {
        let error = merge("[cluster]\nnamenode = \"b:2\"\n").unwrap_err();
        assert_eq!(error, "more.toml: cluster.namenode = \"b:2\": this file must not set it");
        let error = merge("\n[tasktracker]\nmap_slot = 8\n").unwrap_err();
        assert!(error.starts_with("more.toml:3: unknown field `map_slot`"), "{error}");
        let error = merge("[jobtracker]\nsuspect_after = \"1s\"\n").unwrap_err();
        assert!(error.contains("must be longer than jobtracker.heartbeat"), "{error}");
    }
}
