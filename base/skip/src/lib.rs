//! Lets tests report that they cannot run, because the machine lacks a capability. Only tests
//! depend on this crate.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{Write, stderr},
    path::Path,
    thread,
};

/// Reports that the calling test, or a part of it, cannot run because `capability` is missing.
///
/// Writes a line directly to standard error, because the test harness hides what a passing test
/// prints. Also appends the line to the file named by `FERMATA_SKIPPED`; `.ci/run` prints that file
/// when it ends.
///
/// # Panics
/// Panics if `FERMATA_CAPABILITIES` contains the capability, which means that `.ci/run` has found
/// it on this machine.
pub fn skip(capability: &str, why: impl Display) {
    let thread = thread::current();
    let line = format!("skipped: {}: {why} (needs {capability})\n", thread.name().unwrap_or("a test"));
    panic_if_present(&std::env::var("FERMATA_CAPABILITIES").unwrap_or_default(), capability, &line);
    let _ = stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("FERMATA_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", Path::new(&path).display()));
    }
}

fn panic_if_present(capabilities: &str, capability: &str, line: &str) {
    let present = capabilities.split_whitespace().any(|name| name == capability);
    assert!(!present, "this machine has {capability}, but {}", line.trim());
}

#[cfg(test)]
mod tests {
    use super::panic_if_present;

    #[test]
    fn a_test_may_be_skipped_if_its_capability_is_missing() {
        panic_if_present("root cc", "strace", "skipped: a test");
    }

    #[test]
    #[should_panic(expected = "this machine has strace, but skipped: a test")]
    fn a_test_must_not_be_skipped_if_its_capability_is_present() {
        panic_if_present("root strace", "strace", "skipped: a test");
    }
}
