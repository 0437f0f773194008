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
    text.parse().expect("a valid manifest")
}

/// The dependencies of a crate on other crates of the workspace, by folder.
#[derive(Debug, Default)]
struct Dependencies {
    /// What the crate itself needs.
    normal: BTreeSet<String>,
    /// What only its tests need.
    tests: BTreeSet<String>,
}

/// Reads the table of folders in ARCHITECTURE.md. Returns the dependencies of each crate. Crates
/// are named by folder, without the final `/`.
fn dependency_table() -> BTreeMap<String, Dependencies> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a readable page");
    let rows =
        text.lines().skip_while(|line| !line.starts_with("| folder | contents | depends on |")).skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let folder = cells[1].split('`').nth(1).expect("a folder in back quotes");
        let names = |cell: usize| {
            let names = cells.get(cell).unwrap_or(&"").split(", ").filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        (folder.trim_end_matches('/').to_owned(), Dependencies { normal: names(3), tests: names(4) })
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
        let used = |section: &str| -> BTreeSet<String> {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                return BTreeSet::new();
            };
            table.keys().filter_map(|name| ours.get(name.as_str()).copied().map(str::to_owned)).collect()
        };
        let normal = &used("dependencies") | &used("build-dependencies");
        let tests = &used("dev-dependencies") - &normal;
        for (what, used, listed) in [("", normal, listed.normal), (" for tests", tests, listed.tests)] {
            for extra in used.difference(&listed) {
                let _ = writeln!(broken, "{folder} -> {extra}{what} is not in the table");
            }
            for absent in listed.difference(&used) {
                let _ =
                    writeln!(broken, "{folder} -> {absent}{what} is in the table but not in the manifest");
            }
        }
    }
    report("dependencies that differ from ARCHITECTURE.md", &broken);
}

#[test]
fn every_crate_is_in_the_dependency_table() {
    assert_eq!(workspace_members(), dependency_table().into_keys().collect());
}

/// Returns the folders of all crates of the workspace.
pub(super) fn workspace_members() -> BTreeSet<String> {
    let manifest = read_manifest(&root());
    let members = manifest["workspace"]["members"].as_array().expect("members");
    members.iter().filter_map(|member| member.as_str().map(str::to_owned)).collect()
}

#[test]
fn pure_code_uses_no_clock_file_socket_or_thread() {
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
fn no_source_file_contains_unfinished_code() {
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

/// Pages for contributors. The files and names in them must exist.
const CONTRIBUTOR_PAGES: [&str; 8] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/internals/README.md",
    "docs/internals/block-write.md",
    "docs/internals/heartbeat.md",
    "docs/internals/job.md",
    "docs/internals/preemption.md",
    "docs/internals/shuffle.md",
];

/// Names that the worked examples of these pages add.
const EXAMPLE_NAMES: [&str; 5] = ["by_node", "epoch.rs", "lifo.order.txt", "lifo.rs", "EpochRequest"];

/// Returns the code in back quotes of a page, and the words of its Rust blocks that are constants.
fn code_in_page(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<&str> = None;
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
        } else if block == Some("rust") {
            let words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let is_constant =
                |word: &&str| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            found.extend(words.filter(is_constant).map(str::to_owned));
        } else if block.is_none() && !line.starts_with("    ") {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

#[test]
fn files_and_names_in_pages_for_contributors_exist() {
    let root = root();
    let (paths, mut files): (Vec<String>, Vec<String>) = sources().into_iter().unzip();
    for folder in ["proto/fermata/mr/v1", "proto/fermata/dfs/v1", "proto/src/generated"] {
        let entries = fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        files.extend(
            entries.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a file")),
        );
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words: BTreeSet<&str> = files.iter().flat_map(|text| text.split(|c: char| !is_word(c))).collect();
    let mut broken = String::new();
    for page in CONTRIBUTOR_PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        for code in code_in_page(&text) {
            let name = code.trim_end_matches("(...)").trim_end_matches('!');
            let is_example = EXAMPLE_NAMES.iter().any(|example| name.ends_with(example));
            let is_path = name.contains('/')
                && [".rs", ".md", ".proto", ".toml", ".css"].iter().any(|end| name.ends_with(end))
                && !name.contains(['*', ' ']);
            let is_name = name.contains('_') || name.contains("::");
            let is_name =
                is_name && name.split("::").all(|part| !part.is_empty() && part.chars().all(is_word));
            let is_absent = if is_path {
                !root.join(name).exists() && !paths.iter().any(|path| path.ends_with(&format!("/{name}")))
            } else {
                is_name && name.split("::").any(|part| !words.contains(part))
            };
            if is_absent && !is_example {
                let _ = writeln!(broken, "{page}: {code}");
            }
        }
    }
    report("files and names that do not exist", &broken);
}

fn markdown_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            markdown_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn prose_is_wrapped_at_100_columns() {
    let mut files = Vec::new();
    markdown_files(&root(), &mut files);
    let mut broken = String::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a readable page");
        let mut in_block = false;
        for (number, line) in text.lines().enumerate() {
            in_block ^= line.trim_start().starts_with("```");
            // Tables, code, HTML and link definitions cannot be wrapped.
            let is_prose =
                !in_block && !line.starts_with("    ") && !line.trim_start().starts_with(['|', '<', '[']);
            if is_prose && line.chars().count() > 100 {
                let _ = writeln!(broken, "{}:{}", path.display(), number + 1);
            }
        }
    }
    report("lines of prose with more than 100 columns", &broken);
}

/// What a test may need beyond the capabilities of a machine that `scripts/capabilities` can find.
const OTHER_REQUIREMENTS: [&str; 5] =
    ["Linux 5.14", "a free port", "a shorter path", "an open path", "sock_diag"];

#[test]
fn capabilities_that_tests_need_are_found_by_the_script() {
    let script = fs::read_to_string(root().join("scripts/capabilities")).expect("a readable script");
    let found = |name: &str| script.lines().any(|line| line.starts_with(&format!("can {name} ")));
    // The text is composed here, so that this file does not contain it.
    let call = ["skip", "(\""].concat();
    let mut broken = String::new();
    for (file, text) in sources() {
        for (at, _) in text.match_indices(&call) {
            let name = text[at + call.len()..].split('"').next().unwrap_or_default();
            if !OTHER_REQUIREMENTS.contains(&name) && !found(name) {
                let _ = writeln!(broken, "{file}: {name}");
            }
        }
    }
    report("capabilities that scripts/capabilities does not know", &broken);
}
