//! Rules that the compiler does not check: a header in each file, dependencies of crates, purity,
//! and no unfinished code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Text that must not occur in a pure crate.
const IMPURE_WORDS: [&str; 8] =
    ["tokio", "tonic", "Instant::now", "SystemTime::now", "std::fs", "std::net", "std::thread", "HashMap"];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").into()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "generated" && !name.starts_with('.') {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

pub(super) fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files.sort();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).expect("below the root").display().to_string();
        (name, fs::read_to_string(path).expect("a readable source file"))
    };
    files.iter().map(read).collect()
}

pub(super) fn report(rule: &str, broken: &str) {
    assert!(broken.is_empty(), "{rule}:\n{broken}");
}

#[test]
fn files_start_with_a_module_doc() {
    let mut broken = String::new();
    for (name, text) in sources() {
        if !text.starts_with("//! ") && !text.starts_with("#![no_main]\n//! ") {
            let _ = writeln!(broken, "{name}");
        }
    }
    report("files without a //! header", &broken);
}

fn read_manifest(folder: &Path) -> toml::Table {
    let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    text.parse().expect("a sound manifest")
}

/// Reads the table of folders in ARCHITECTURE.md. Returns the dependencies of each crate. Crates
/// are named by folder, without the final `/`.
fn dependency_table() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a readable page");
    let rows = text.lines().skip_while(|line| *line != "| folder | contents | depends on |").skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let folder = cells[0].split('`').nth(1).expect("a folder in back quotes");
        let uses = cells.get(2).unwrap_or(&"").split(", ").filter(|name| !name.is_empty());
        (folder.trim_end_matches('/').to_owned(), uses.map(str::to_owned).collect())
    };
    rows.take_while(|line| line.starts_with('|')).map(row).collect()
}

#[test]
fn crate_dependencies_match_the_table() {
    let root = root();
    let workspace = read_manifest(&root);
    let ours: BTreeMap<&str, &str> = workspace["workspace"]["dependencies"]
        .as_table()
        .expect("a table")
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.get("path")?.as_str()?)))
        .collect();
    let mut broken = String::new();
    for (folder, listed) in dependency_table() {
        let manifest = read_manifest(&root.join(&folder));
        let mut used = BTreeSet::new();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
            used.extend(table.keys().filter_map(|name| ours.get(name.as_str()).copied().map(str::to_owned)));
        }
        for extra in used.difference(&listed) {
            let _ = writeln!(broken, "{folder} -> {extra} is not in the table");
        }
        for absent in listed.difference(&used) {
            let _ = writeln!(broken, "{folder} -> {absent} is in the table but not in the manifest");
        }
    }
    report("dependencies that differ from ARCHITECTURE.md", &broken);
}

#[test]
fn every_crate_is_in_the_dependency_table() {
    let manifest = read_manifest(&root());
    let members = manifest["workspace"]["members"].as_array().expect("members");
    let members: BTreeSet<&str> = members.iter().filter_map(|member| member.as_str()).collect();
    let table = dependency_table();
    assert_eq!(members, table.keys().map(String::as_str).collect());
}

#[test]
fn pure_crates_are_pure() {
    let mut broken = String::new();
    let pure = [
        "core/",
        "schedulers/",
        "tasktracker/agent/",
        "base/types/",
        "base/placement/",
        "dfs/src/namenode/state",
        "dfs/src/namenode/namespace",
    ];
    for (name, text) in sources() {
        // Benchmarks are excluded, because they need a clock.
        if !pure.iter().any(|folder| name.starts_with(folder)) || name.contains("/benches/") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(word) = IMPURE_WORDS.iter().find(|word| code.contains(*word)) {
                let _ = writeln!(broken, "{name}:{}: {word}", number + 1);
            }
        }
    }
    report("impure words in pure code", &broken);
}

#[test]
fn nothing_is_left_unfinished() {
    // The marks are composed here, so that this file does not contain them.
    let marks = [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("FIX", "ME"), ("XX", "X")]
        .map(|(head, tail)| format!("{head}{tail}"));
    let mut broken = String::new();
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                let _ = writeln!(broken, "{name}:{}: {}", number + 1, line.trim());
            }
        }
    }
    report("unfinished places", &broken);
}
