//! Sets `FERMATA_COMMIT` to the commit that is built, for the results of simulations.

use std::process::Command;

fn main() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let git = |args: &[&str]| {
        let ran = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
        let printed = String::from_utf8(ran.stdout).ok()?;
        ran.status.success().then(|| printed.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=FERMATA_COMMIT={commit}");
    // The log of HEAD changes with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
