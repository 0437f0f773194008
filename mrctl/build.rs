//! Sets `FERMATA_COMMIT` to the commit that is built, for the results of simulations and of runs on
//! real clusters. It ends with `+changes` if sources have changes that are not committed.

use std::{path::Path, process::Command};

/// Sources that results depend on, from the root of the repository.
const SOURCES: [&str; 21] = [
    "Cargo.lock",
    "base/daemon/src",
    "base/journal/src",
    "base/peers/src",
    "base/placement/src",
    "base/replication/src",
    "base/security/src",
    "base/types/src",
    "client",
    "core/src",
    "dfs/client/src",
    "dfs/src",
    "jobtracker/src",
    "lab",
    "mrctl/src",
    "mrlib",
    "proto",
    "schedulers/src",
    "sim/src",
    "tasktracker/agent/src",
    "tasktracker/src",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Read when the script runs: a target folder can be shared by several checkouts, and the script
    // may have been compiled in another one.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let folder = Path::new(&manifest).join("..");
    let git = |args: &[&str]| {
        let ran = Command::new("git").arg("-C").arg(&folder).args(args).output().ok()?;
        let printed = String::from_utf8(ran.stdout).ok()?;
        ran.status.success().then(|| printed.trim().to_owned())
    };
    // The sources may lie in the repository of another project.
    let is_own = git(&["rev-parse", "--show-toplevel"])
        .is_some_and(|top| Path::new(&top).canonicalize().ok() == folder.canonicalize().ok());
    let commit = if is_own { git(&["rev-parse", "--short=12", "HEAD"]) } else { None };
    let status = git(&[&["--no-optional-locks", "status", "--porcelain", "--"][..], &SOURCES].concat());
    let suffix =
        if commit.is_some() && status.is_none_or(|changed| !changed.is_empty()) { "+changes" } else { "" };
    println!("cargo::rustc-env=FERMATA_COMMIT={}{suffix}", commit.as_deref().unwrap_or("unknown"));
    if commit.is_some() {
        for source in SOURCES {
            println!("cargo::rerun-if-changed={}", folder.join(source).display());
        }
    }
    // The log of HEAD changes with every commit and checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| is_own && Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
}
