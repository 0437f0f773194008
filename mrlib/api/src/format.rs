//! How input files are divided into records, and how output is written.

use std::{fmt, str::FromStr};

/// How input files are divided into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputFormat {
    /// Lines. The key is the offset of the line (eight big-endian bytes), the value is the line
    /// without its line ending (`\n` or `\r\n`).
    #[default]
    Lines,
    /// Lines divided at the first tab: the key is before it, the value after it. Without a tab the
    /// value is empty.
    KeyValueLines,
    /// Records of a fixed length, which begin with the key.
    Fixed {
        /// Bytes in a record.
        record: usize,
        /// Bytes of the key.
        key: usize,
    },
    /// Whole files: the key is the path, the value is the contents. Never split.
    WholeFile,
}

impl FromStr for InputFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fixed = || {
            let (record, key) = text.strip_prefix("fixed:")?.split_once(':')?;
            let (record, key) = (record.parse().ok()?, key.parse().ok()?);
            (record > 0 && key <= record).then_some(Self::Fixed { record, key })
        };
        match text {
            "lines" => Ok(Self::Lines),
            "keyvalue" => Ok(Self::KeyValueLines),
            "whole" => Ok(Self::WholeFile),
            _ => fixed().ok_or_else(|| "use lines, keyvalue, whole or fixed:RECORD:KEY (bytes)".into()),
        }
    }
}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines => f.write_str("lines"),
            Self::KeyValueLines => f.write_str("keyvalue"),
            Self::WholeFile => f.write_str("whole"),
            Self::Fixed { record, key } => write!(f, "fixed:{record}:{key}"),
        }
    }
}

/// How output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputFormat {
    /// `key TAB value NEWLINE`. The tab is left out if the key or the value is empty.
    #[default]
    Text,
    /// For programs: the lengths of key and value as u32 little endian, then key and value.
    KeyValue,
    /// Key and value without separators.
    Raw,
}
