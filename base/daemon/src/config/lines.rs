//! Finds the line of a setting in the file, for errors about its value.

use super::{Config, ConfigError};
use std::path::Path;
use toml::de::{DeTable, DeValue};

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
        [scheduler.fair.pools.\"a.b\"]\nweight = 2\nmin_maps = 1\n";

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
}
