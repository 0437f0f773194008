//! Checks that no file uses a retired term. The glossary contains the terms to use instead.
//!
//! Identifiers are split into their words (`take_back` and `TakeBack` are `take back`), and a
//! phrase may continue on the next line of a comment or a page. Two texts may contain retired
//! terms: the glossary, and the table of renamed names in the changelog.

use super::tidy::root;
use std::{fmt::Write as _, fs, path::Path};

/// Retired terms, each with the term to use.
const RETIRED: &[(&str, &str)] = &[
    ("recall", "preempt"),
    ("recalls", "preempts"),
    ("recalled", "preempted"),
    ("take back", "preempt, cancel"),
    ("takes back", "preempts, cancels"),
    ("taken back", "preempted, cancelled"),
    ("took back", "preempted, cancelled"),
    ("give its slot back", "release its slot"),
    ("gives its slot back", "releases its slot"),
    ("asked for its slot", "preempted"),
    ("spoken for", "reserved"),
    ("yielding", "preemption latency"),
    ("conserve", "save"),
    ("conserved", "saved"),
    ("put aside", "save a checkpoint"),
    ("puts aside", "saves a checkpoint"),
    ("set aside", "quarantined"),
    ("take up a state", "resume from a checkpoint"),
    ("takes up a state", "resumes from a checkpoint"),
    ("taken up again", "resumed"),
    ("spoilt", "corrupt"),
    ("unreached", "unreachable"),
    ("unbegun", "not resumed"),
    ("untold", "unsent"),
    ("unsaid", "unknown"),
    ("unheard", "undelivered"),
    ("held by hand", "on hold"),
    ("came to nothing", "failed"),
    ("comes to nothing", "fails"),
    ("come to nothing", "fail"),
    ("in vain", "lost"),
    ("the mind", "the state machine, the core"),
    ("minds", "state machines"),
    ("regular word", "heartbeat"),
    ("without a word", "without a message"),
    ("tells of", "reports"),
    ("nursery", "task runner"),
    ("warden", "process monitor"),
    ("scribe", "history writer"),
    ("teller", "formatter"),
    ("keeper", "reaper, owner"),
    ("deed", "fault action"),
    ("deeds", "fault actions"),
    ("wound", "impact"),
    ("wounds", "impacts"),
    ("weather", "fault schedule"),
    ("retinue", "membership"),
    ("misfit", "mismatch"),
    ("unfit", "mismatch"),
    ("meddle", "preempt"),
    ("sufferer", "affected node"),
    ("gust", "burst"),
    ("gusts", "bursts"),
    ("in peace", "undisturbed"),
    ("heed", "preemptible"),
    ("heeds", "preemptible"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("shun", "avoid"),
    ("shuns", "avoids"),
    ("shunned", "avoided"),
    ("condemn", "kill, retire"),
    ("bury", "remove"),
    ("furnish", "make"),
    ("dice", "random number generator"),
    ("by chance", "at random"),
    ("standstill", "stall"),
    ("visitor", "connection"),
    ("visitors", "connections"),
    ("stranger", "unknown attempt, unauthenticated caller, other account"),
    ("strangers", "unknown attempts, unauthenticated callers, other accounts"),
    ("chore", "command"),
    ("chores", "commands"),
    ("accuse", "suspect"),
    ("accused", "suspected"),
    ("twin", "duplicate"),
    ("twins", "duplicates"),
    ("is emptied", "is drained"),
    ("being emptied", "being drained"),
    ("to be emptied", "to be drained"),
    ("damaged everywhere", "all replicas corrupt"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("processor second", "CPU second"),
    ("processor seconds", "CPU seconds"),
    ("processor time", "CPU time"),
    ("beside its input", "node-local"),
    ("for ever", "forever"),
    ("aside", "checkpoint, temporary file"),
    ("anew", "again"),
    ("whoever", "the user, the caller"),
    ("somebody", "the user, the caller"),
    ("lately", "recently"),
    ("harm", "fault, damage"),
    ("harms", "faults, damages"),
    ("harmed", "damaged"),
    ("pulse", "liveness"),
    ("bell", "watcher, condition variable"),
    ("ghost", "fake tracker"),
    ("fate", "outcome"),
    ("thrown away", "discarded"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("hears", "receives"),
    ("news", "map events, reports"),
    ("last words", "last output"),
    ("reckon", "compute"),
    ("reckoned", "computed"),
];

const GLOSSARY: &str = "docs/internals/glossary.md";
const CHANGELOG: &str = "CHANGELOG.md";
const THIS_FILE: &str = "tests/tests/suite/retired_terms.rs";

/// Extensions of text files. Scripts have no extension.
const EXTENSIONS: [&str; 12] =
    ["css", "js", "json", "jsonl", "md", "oar", "proto", "rs", "service", "toml", "txt", "yaml"];

fn text_files(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_hidden = name.starts_with('.') && name != ".ci";
        if path.is_symlink() || is_hidden || name == "target" || name.starts_with("LICENSE") {
            continue;
        }
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        if path.is_dir() {
            text_files(root, &path, found);
        } else if extension.is_none_or(|extension| EXTENSIONS.contains(&extension.as_str())) {
            found.push(path.strip_prefix(root).expect("below the root").display().to_string());
        }
    }
}

/// Returns the words of a text in lower case, each with its line. An empty word stands for
/// punctuation, because a phrase does not continue after punctuation.
fn words(text: &str) -> Vec<(String, usize)> {
    let mut words = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let line =
            ["//!", "///", "//", "#", "*"].iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
        let (mut word, mut was_lower) = (String::new(), false);
        // The additional space ends the last word.
        for letter in line.chars().chain([' ']) {
            let is_hump = letter.is_ascii_uppercase() && was_lower;
            was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
            if (is_hump || !letter.is_ascii_alphanumeric()) && !word.is_empty() {
                words.push((std::mem::take(&mut word), number + 1));
            }
            if letter.is_ascii_alphanumeric() {
                word.push(letter.to_ascii_lowercase());
            } else if !letter.is_whitespace() && !"_-`*'\\".contains(letter) {
                words.push((String::new(), number + 1));
            }
        }
    }
    words
}

/// Returns the part of a text that is checked.
fn checked_text(name: &str, text: String) -> String {
    if name != CHANGELOG {
        return text;
    }
    let (before, table) = text.split_once("### Renamed\n").expect("a table of renamed names");
    let (table, after) = table.split_once("\n### ").expect("a section after the table");
    // Empty lines keep the line numbers of the text after the table.
    let lines = "\n".repeat(table.lines().count());
    format!("{before}\n{lines}\n{after}")
}

/// Returns the retired terms in a text, each with its line and the term to use.
fn retired_in(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let terms: Vec<(Vec<&str>, &str, &str)> =
        RETIRED.iter().map(|(term, instead)| (term.split(' ').collect(), *term, *instead)).collect();
    let words = words(text);
    let mut found = Vec::new();
    for at in 0..words.len() {
        for (parts, term, instead) in &terms {
            let here = words[at..].iter().take(parts.len()).map(|(word, _)| word.as_str());
            if here.eq(parts.iter().copied()) {
                found.push((words[at].1, *term, *instead));
            }
        }
    }
    found
}

#[test]
fn no_file_uses_a_retired_term() {
    let root = root();
    let mut files = Vec::new();
    text_files(&root, &root, &mut files);
    files.sort();
    let mut broken = String::new();
    for name in files.iter().filter(|name| ![GLOSSARY, THIS_FILE].contains(&name.as_str())) {
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        for (line, term, instead) in retired_in(&checked_text(name, text)) {
            let _ = writeln!(broken, "{name}:{line}: {term}: use {instead}");
        }
    }
    assert!(broken.is_empty(), "retired terms, see {GLOSSARY}:\n{broken}");
}

#[test]
fn retired_terms_are_found_in_names_and_across_lines() {
    let lines = |text: &str| retired_in(text).into_iter().map(|(line, ..)| line).collect::<Vec<_>>();
    assert_eq!(lines("fn take_back(x: TakeBack) {}\n// its slot is taken\n// back"), [1, 1, 2]);
    assert_eq!(lines("it is taken. Back to the queue: recall_patience"), [1]);
    assert_eq!(lines("preempted, resumed, records"), [0; 0]);
}
