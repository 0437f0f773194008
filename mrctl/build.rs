//! Sets `FERMATA_COMMIT` to the commit that is built, for the results of simulations. Changes that are
//! not committed are not recorded.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let git = |args: &[&str]| {
        let ran = Command::new("git").arg("-C").arg(&folder).args(args).output().ok()?;
        let printed = String::from_utf8(ran.stdout).ok()?;
        ran.status.success().then(|| printed.trim().to_owned())
    };
    // The sources may lie in the repository of another project.
    let is_own = git(&["rev-parse", "--show-toplevel"])
        .is_some_and(|top| Path::new(&top).canonicalize().ok() == folder.canonicalize().ok());
    let commit = if is_own { git(&["rev-parse", "--short=12", "HEAD"]) } else { None };
    println!("cargo::rustc-env=FERMATA_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    // The log of HEAD changes with every commit and checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| is_own && Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
}
