//! What a job carries that the core does not understand: its program, its side files, its inputs as they were
//! named, and the secret of its shuffle.
//!
//! The program is text (`builtin:wordcount`, `exec:/bin/my-job`); the rest are settings whose names begin with
//! `fermata.`. Nobody can submit such a setting, and none is ever shown to a client or handed to a task.

use mrcore::job::{JobSpec, Priority};
use std::{collections::BTreeMap, fmt::Write as _};

/// Settings with this prefix are the JobTracker's own.
pub(crate) const RESERVED: &str = "fermata.";
const INPUTS: &str = "fermata.inputs";
const FILES: &str = "fermata.files";
const TOKEN: &str = "fermata.token";

const BUILTIN: &str = "builtin:";
const EXECUTABLE: &str = "exec:";

/// What a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    /// One of Fermata's own.
    Builtin(String),
    /// A binary in the file system.
    Executable(String),
}

impl Program {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Builtin(name) => format!("{BUILTIN}{name}"),
            Self::Executable(path) => format!("{EXECUTABLE}{path}"),
        }
    }

    /// Of a job's text. One without a prefix (from a journal of another build) is a built-in.
    pub(crate) fn of(spec: &JobSpec) -> Self {
        match spec.program.strip_prefix(EXECUTABLE) {
            Some(path) => Self::Executable(path.to_owned()),
            None => Self::Builtin(spec.program.strip_prefix(BUILTIN).unwrap_or(&spec.program).to_owned()),
        }
    }
}

/// Puts away what clients do not see.
pub(crate) fn hide(conf: &mut BTreeMap<String, String>, inputs: &[String], files: &[String], token: &[u8]) {
    let list = |texts: &[String]| serde_json::to_string(texts).expect("a list of text");
    conf.insert(INPUTS.into(), list(inputs));
    conf.insert(FILES.into(), list(files));
    let mut hex = String::with_capacity(2 * token.len());
    for byte in token {
        let _ = write!(hex, "{byte:02x}");
    }
    conf.insert(TOKEN.into(), hex);
}

fn list(spec: &JobSpec, key: &str) -> Vec<String> {
    spec.conf.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// A job's inputs, as they were named.
pub(crate) fn inputs(spec: &JobSpec) -> Vec<String> {
    list(spec, INPUTS)
}

/// A job's side files.
pub(crate) fn files(spec: &JobSpec) -> Vec<String> {
    list(spec, FILES)
}

/// What a reduce shows to fetch this job's map output.
pub(crate) fn token(spec: &JobSpec) -> Vec<u8> {
    let hex = spec.conf.get(TOKEN).map_or("", String::as_str);
    hex.as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// A job's settings, as they were given.
pub(crate) fn settings(spec: &JobSpec) -> impl Iterator<Item = (&String, &String)> {
    spec.conf.iter().filter(|(key, _)| !key.starts_with(RESERVED))
}

const PRIORITIES: [(Priority, &str); 5] = [
    (Priority::VeryLow, "very-low"),
    (Priority::Low, "low"),
    (Priority::Normal, "normal"),
    (Priority::High, "high"),
    (Priority::VeryHigh, "very-high"),
];

/// How people write a priority.
pub(crate) fn priority_name(priority: Priority) -> &'static str {
    PRIORITIES.iter().find(|(one, _)| *one == priority).map_or("normal", |(_, name)| name)
}

/// The priority of this name.
pub(crate) fn priority(name: &str) -> Result<Priority, String> {
    let found = PRIORITIES.iter().find(|(_, one)| *one == name);
    found.map(|(priority, _)| *priority).ok_or_else(|| {
        let names: Vec<&str> = PRIORITIES.iter().map(|(_, name)| *name).collect();
        format!("priority {name:?} is not one of {}", names.join(", "))
    })
}
