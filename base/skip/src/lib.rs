//! Tests that cannot run because the machine lacks a capability. A dependency only of tests.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{Write, stderr},
    path::Path,
    thread,
};

/// Reports that the calling test, or a part of it, cannot run for want of `capability`.
///
/// The line goes to the real standard error, because the test harness hides what a passing test
/// prints, and to the file that `FERMATA_SKIPPED` names, which `.ci/run` prints at its end.
///
/// # Panics
/// If `FERMATA_CAPABILITIES` contains the capability: `.ci/run` has found that the machine has it.
pub fn skip(capability: &str, why: impl Display) {
    let thread = thread::current();
    let line = format!("skipped: {}: {why} (needs {capability})\n", thread.name().unwrap_or("a test"));
    refuse_if_present(&std::env::var("FERMATA_CAPABILITIES").unwrap_or_default(), capability, &line);
    let _ = stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("FERMATA_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", Path::new(&path).display()));
    }
}

fn refuse_if_present(capabilities: &str, capability: &str, line: &str) {
    let present = capabilities.split_whitespace().any(|name| name == capability);
    assert!(!present, "this machine has {capability}, but {}", line.trim());
}

#[cfg(test)]
mod tests {
    use super::refuse_if_present;

    #[test]
    fn a_missing_capability_is_a_reason_to_skip() {
        refuse_if_present("root cc", "strace", "skipped: a test");
    }

    #[test]
    #[should_panic(expected = "this machine has strace, but skipped: a test")]
    fn a_present_capability_is_not() {
        refuse_if_present("root strace", "strace", "skipped: a test");
    }
}
