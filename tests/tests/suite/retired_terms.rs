//! Checks that no file uses a retired term. The glossary has the table of these terms and of those
//! to use instead.
//!
//! Identifiers are split into their words (`take_back` and `TakeBack` are `take back`), and a
//! phrase may continue on the next line of a comment or a page. Two texts may contain retired
//! terms: the glossary, and the table of renamed names in the changelog.

use super::tidy::root;
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

const GLOSSARY: &str = "docs/internals/glossary.md";
/// The heading of the table in the glossary.
const HEADING: &str = "### Rejected terms\n";
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

/// A retired term.
struct Retired {
    term: String,
    /// The words of the term, as in [`words`].
    words: Vec<String>,
    instead: String,
}

/// Returns the retired terms of the glossary.
fn retired_terms() -> Vec<Retired> {
    let glossary = fs::read_to_string(root().join(GLOSSARY)).expect("a glossary");
    let (_, section) = glossary.split_once(HEADING).expect("a section on rejected terms");
    let table = section.split("\n#").next().expect("text").lines().filter(|line| line.starts_with('|'));
    let mut terms = Vec::new();
    // The first two lines are the head of the table.
    for row in table.skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, retired, instead, _] = cells[..] else { panic!("{GLOSSARY}: not two cells: {row}") };
        for term in retired.split(',').map(str::trim) {
            let words: Vec<String> = words(term).into_iter().map(|(word, _)| word).collect();
            assert!(!words.is_empty() && !instead.is_empty(), "{GLOSSARY}: an empty term or cell: {row}");
            terms.push(Retired { term: term.into(), words, instead: instead.into() });
        }
    }
    terms
}

/// Returns the retired terms in a text, each with its line.
fn retired_in<'a>(terms: &'a [Retired], text: &str) -> Vec<(usize, &'a Retired)> {
    let mut by_first_word = BTreeMap::<&str, Vec<&Retired>>::new();
    for retired in terms {
        by_first_word.entry(&retired.words[0]).or_default().push(retired);
    }
    let words = words(text);
    let mut found = Vec::new();
    for at in 0..words.len() {
        for &retired in by_first_word.get(words[at].0.as_str()).into_iter().flatten() {
            let here = words[at..].iter().take(retired.words.len()).map(|(word, _)| word);
            if here.eq(&retired.words) {
                found.push((words[at].1, retired));
            }
        }
    }
    found
}

#[test]
fn no_file_uses_a_retired_term() {
    let (root, terms) = (root(), retired_terms());
    let mut files = Vec::new();
    text_files(&root, &root, &mut files);
    files.sort();
    let mut broken = String::new();
    for name in files.iter().filter(|name| ![GLOSSARY, THIS_FILE].contains(&name.as_str())) {
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        for (line, Retired { term, instead, .. }) in retired_in(&terms, &checked_text(name, text)) {
            let _ = writeln!(broken, "{name}:{line}: {term}: use {instead}");
        }
    }
    assert!(broken.is_empty(), "retired terms, see {GLOSSARY}:\n{broken}");
}

#[test]
fn retired_terms_are_found_in_names_and_across_lines() {
    let terms = retired_terms();
    let lines = |text: &str| retired_in(&terms, text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("fn take_back(x: TakeBack) {}\n// its slot is taken\n// back"), [1, 1, 2]);
    assert_eq!(lines("it is taken. Back to the queue: recalled"), [1]);
    assert_eq!(lines("whoever\nreckoned"), [1, 2]);
    assert_eq!(lines("preempted, resumed, records"), [0; 0]);
}
