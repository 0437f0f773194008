//! `mrctl new`: writes a project to start from.

use super::outputs::Unfinished;
use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The folder of Fermata's sources that this program was built from.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The files of `examples/scheduler`.
const SCHEDULER: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("../../../examples/scheduler/Cargo.toml")),
    ("README.md", include_str!("../../../examples/scheduler/README.md")),
    ("scenarios/preemption.txt", include_str!("../../../examples/scheduler/scenarios/preemption.txt")),
    ("src/main.rs", include_str!("../../../examples/scheduler/src/main.rs")),
    ("src/policy.rs", include_str!("../../../examples/scheduler/src/policy.rs")),
];
/// The name of the policy in these files.
const EXAMPLE_NAME: &str = "my-scheduler";
/// How these files name the folder of the sources.
const EXAMPLE_SOURCES: &str = "path = \"../..";

/// Write a project to start from: a scheduling policy in Rust
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    mrctl new --scheduler shortest && cd shortest\n  \
    cargo test\n  \
    cargo run --release -- hsrtf fifo,fair,shortest 5")]
pub(crate) struct Args {
    /// Write a scheduling policy with this name to a new folder of this name
    #[arg(long, value_name = "NAME")]
    scheduler: String,
    /// The folder of Fermata's sources [default: that mrctl was built from]
    #[arg(long, value_name = "DIR")]
    fermata: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = &args.scheduler;
    write_scheduler(Path::new(name), name, args.fermata.as_deref().unwrap_or(Path::new(SOURCES)))?;
    output::line(format!("wrote {name}; run it: cd {name} && cargo run --release"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the project of a policy to a new folder.
fn write_scheduler(folder: &Path, name: &str, sources: &Path) -> Result<()> {
    check_name(name)?;
    if !sources.join("schedulers/Cargo.toml").is_file() {
        let place = sources.display();
        bail!(Usage(format!("{place} has no sources of Fermata: give --fermata DIR, a checkout of them")));
    }
    let sources = fs::canonicalize(sources).with_context(|| format!("cannot read {}", sources.display()))?;
    let sources = sources.to_str().filter(|path| !path.contains(['"', '\\', '\n']));
    let sources =
        sources.ok_or_else(|| Usage("the path of the sources cannot be written to Cargo.toml".into()))?;
    if fs::symlink_metadata(folder).is_ok() {
        bail!(Usage(format!("{} exists already: choose another name or remove it", folder.display())));
    }
    let adapted = |text: &str| {
        text.replace(EXAMPLE_SOURCES, &format!("path = \"{sources}")).replace(EXAMPLE_NAME, name)
    };
    let mut files: Vec<(&str, String)> =
        SCHEDULER.iter().map(|(file, text)| (*file, adapted(text))).collect();
    // The same versions of dependencies as Fermata: they are known to work, and may be on the
    // machine already.
    let lock = Path::new(sources).join("Cargo.lock");
    if lock.is_file() {
        let text = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
        files.push(("Cargo.lock", text));
    }
    write_new_folder(folder, &files).with_context(|| format!("cannot write {}", folder.display()))
}

/// Writes files to a new folder. If that fails, there is no folder.
fn write_new_folder(folder: &Path, files: &[(&str, String)]) -> Result<()> {
    let new = Unfinished::folder(folder)?;
    for (file, text) in files {
        let path = new.path().join(file);
        let written =
            fs::create_dir_all(path.parent().unwrap_or(folder)).and_then(|()| fs::write(&path, text));
        written.with_context(|| format!("cannot write {file}"))?;
    }
    new.publish(folder)
}

/// Checks that a name can be that of a policy and of a crate.
fn check_name(name: &str) -> Result<()> {
    let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-')
        && name.len() <= 64;
    if !is_valid {
        bail!(Usage(format!(
            "--scheduler {name}: a name starts with a letter and has lower-case letters, digits and hyphens, at most 64"
        )));
    }
    let is_taken =
        schedulers::is_section(name) || schedulers::POLICIES.iter().any(|known| known.name == name);
    if is_taken || ["external", "random", "alone"].contains(&name) {
        bail!(Usage(format!("--scheduler {name}: there is a policy with this name: choose another")));
    }
    // Names that cargo refuses, or that the project uses.
    let reserved = ["test", "core", "std", "alloc", "build", "deps", "examples", "incremental"];
    if reserved.contains(&name) || ["mrcore", "schedulers"].contains(&name) || name.starts_with("fermata-") {
        bail!(Usage(format!("--scheduler {name}: a crate cannot have this name: choose another")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The test of the example in `sim/` compiles and runs the same sources.
    #[test]
    fn project_of_a_policy_has_its_name_and_cargo_accepts_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let project = folder.path().join("shortest");
        write_scheduler(&project, "shortest", Path::new(SOURCES)).expect("a good name");
        for (file, _) in SCHEDULER {
            let text = fs::read_to_string(project.join(file)).expect("it was written");
            assert!(!text.contains(EXAMPLE_NAME) && !text.contains("\"../.."), "{file}: {text}");
        }
        let cargo = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal"])
            .current_dir(&project)
            .output()
            .expect("cargo runs the tests");
        assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
        let tree = String::from_utf8_lossy(&cargo.stdout);
        assert!(tree.starts_with("shortest v0.1.0") && tree.contains("fermata-schedulers"), "{tree}");
    }

    #[test]
    fn folder_appears_only_with_all_of_its_files() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = parent.path().join("mine");
        let text = || "text".to_owned();
        // The second file cannot be written, as on a full disk.
        let error = write_new_folder(&folder, &[("a", text()), ("a/b", text())]).expect_err("a is a file");
        assert_eq!(error.to_string(), "cannot write a/b");
        assert_eq!(fs::read_dir(parent.path()).expect("a folder").count(), 0);
        write_new_folder(&folder, &[("a", text()), ("b/c", text())]).expect("a working disk");
        assert_eq!(fs::read_to_string(folder.join("b/c")).expect("it was written"), "text");
        assert_eq!(fs::read_dir(parent.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn bad_names_existing_folders_and_missing_sources_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let refusal = |name: &str, sources: &Path| {
            write_scheduler(&folder.path().join(name), name, sources).expect_err(name).to_string()
        };
        let sources = Path::new(SOURCES);
        for name in ["", "Fast", "1st", "a b", "../a", "a_b", "-a"] {
            assert!(refusal(name, sources).contains("a name starts with a letter"), "{name}");
        }
        for name in ["fair", "external", "alone"] {
            assert!(refusal(name, sources).contains("there is a policy"), "{name}");
        }
        for name in ["core", "build", "deps", "examples", "incremental", "fermata-schedulers"] {
            assert!(refusal(name, sources).contains("a crate cannot have this name"), "{name}");
        }
        assert!(refusal("mine", folder.path()).contains("has no sources of Fermata: give --fermata DIR"));
        fs::create_dir(folder.path().join("mine")).expect("a working disk");
        assert!(refusal("mine", sources).contains("exists already"));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing else was written");
    }
}
