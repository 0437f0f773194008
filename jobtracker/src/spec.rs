//! The parts of a job that the core does not interpret: its program, its side files, its inputs as
//! submitted, and the token of its shuffle.
//!
//! The program is encoded as text (`builtin:wordcount`, `exec:/bin/my-job`). The other parts are
//! settings whose names begin with `fermata.`. Clients cannot submit such settings, and neither
//! clients nor tasks ever see them.

use mrcore::job::{JobSpec, Priority};
use std::{collections::BTreeMap, fmt::Write as _};

/// Prefix of settings that only the JobTracker may set.
pub(crate) const RESERVED: &str = "fermata.";
const INPUTS: &str = "fermata.inputs";
const FILES: &str = "fermata.files";
const TOKEN: &str = "fermata.token";

const BUILTIN: &str = "builtin:";
const EXECUTABLE: &str = "exec:";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    /// A built-in program.
    Builtin(String),
    /// An executable in the file system.
    Executable(String),
}

impl Program {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Builtin(name) => format!("{BUILTIN}{name}"),
            Self::Executable(path) => format!("{EXECUTABLE}{path}"),
        }
    }

    /// The program of a job. Text without a prefix, from the journal of another version, is a
    /// built-in program.
    pub(crate) fn of(spec: &JobSpec) -> Self {
        match spec.program.strip_prefix(EXECUTABLE) {
            Some(path) => Self::Executable(path.to_owned()),
            None => Self::Builtin(spec.program.strip_prefix(BUILTIN).unwrap_or(&spec.program).to_owned()),
        }
    }
}

/// Adds the settings that clients do not see.
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

/// The inputs of a job, as submitted.
pub(crate) fn inputs(spec: &JobSpec) -> Vec<String> {
    list(spec, INPUTS)
}

/// The side files of a job.
pub(crate) fn files(spec: &JobSpec) -> Vec<String> {
    list(spec, FILES)
}

/// The token with which reduces of the job fetch its map outputs.
pub(crate) fn token(spec: &JobSpec) -> Vec<u8> {
    let hex = spec.conf.get(TOKEN).map_or("", String::as_str);
    hex.as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// The settings of a job, as submitted.
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

pub(crate) fn priority_name(priority: Priority) -> &'static str {
    PRIORITIES.iter().find(|(one, _)| *one == priority).map_or("normal", |(_, name)| name)
}

/// Parses the name of a priority.
pub(crate) fn priority(name: &str) -> Result<Priority, String> {
    let found = PRIORITIES.iter().find(|(_, one)| *one == name);
    found.map(|(priority, _)| *priority).ok_or_else(|| {
        let names: Vec<&str> = PRIORITIES.iter().map(|(_, name)| *name).collect();
        format!("priority {name:?} is not one of {}", names.join(", "))
    })
}
