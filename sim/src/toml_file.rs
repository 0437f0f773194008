//! Parses TOML files of the user. An error has the line of the file and the key.

use serde::de::DeserializeOwned;

/// Returns the line, counted from 1, at an offset in the text.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1)
}

/// Parses a file. An error is its line and one line of text without the number of the line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, (usize, String)> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        let message = error.message().replace('\n', " ");
        // The parser says that an integer of more than 64 bits has a wrong type.
        let is_large = message.contains("` as i128") || message.contains("` as u128");
        let message = if is_large { "the number is too large".to_owned() } else { message };
        // A message about a value does not have its key.
        let key = text.lines().nth(line - 1).and_then(|text| text.split_once('=')).map(|(key, _)| key.trim());
        match key.filter(|key| !message.contains(key)) {
            Some(key) => (line, format!("{key}: {message}")),
            None => (line, message),
        }
    })
}
