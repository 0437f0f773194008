//! The settings of a job: text by name, as given with `--conf name=value`, with typed access.

use std::{collections::BTreeMap, fmt::Display, str::FromStr};

/// The settings of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conf(BTreeMap<String, String>);

impl Conf {
    /// Returns the value of a setting.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Parses the value of a setting; returns `default` if it is not set. The error names the
    /// setting.
    pub fn parse<T: FromStr<Err: Display>>(&self, key: &str, default: T) -> Result<T, String> {
        let Some(text) = self.get(key) else { return Ok(default) };
        text.trim().parse().map_err(|error| format!("setting {key} = {text:?}: {error}"))
    }

    /// Sets a value.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.insert(key.into(), value.into());
    }

    /// Returns all settings, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Conf {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(settings: I) -> Self {
        Self(settings.into_iter().collect())
    }
}
