//! Every rule of the core and of the policies has a text.

use fermata_schedulers::{explain, specs};
use std::{collections::BTreeSet, fs, path::Path};

/// Literals that look like rules but are not.
const NOT_RULES: &[&str] = &["very-low", "very-high", "coshh-classes", "lossless-only"];

fn collect_sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // These files have the texts of rules and the names of facts, and create no rules.
        if path.file_stem().is_some_and(|name| name == "explain" || name == "tests") {
            continue;
        }
        if path.is_dir() {
            collect_sources(&path, found);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            found.push(text.split("#[cfg(test)]").next().unwrap_or_default().to_owned());
        }
    }
}

/// Collects the rules in the source files. Rules look like `fair-share` or `fair-share,node-local`.
/// A rule of one word is recognised where a `Why` is created.
fn rules() -> BTreeSet<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = Vec::new();
    collect_sources(&own.join("src"), &mut texts);
    texts.push(fs::read_to_string(own.join("../core/src/jobtracker/reasons.rs")).unwrap());
    let names: BTreeSet<String> = specs().into_iter().collect();
    let mut found = BTreeSet::new();
    for text in texts {
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let parts: Vec<&str> = code.split('"').collect();
        for pair in parts.windows(2).step_by(2) {
            let [before, literal] = pair else { continue };
            let plain = literal.chars().all(|letter| letter.is_ascii_lowercase() || "-,".contains(letter));
            let is_rule = literal.contains('-') || before.ends_with("Why::rule(");
            let is_rule = is_rule && !names.contains(*literal) && !NOT_RULES.contains(literal);
            if plain && is_rule && literal.starts_with(|letter: char| letter.is_ascii_lowercase()) {
                found.insert((*literal).to_owned());
            }
        }
    }
    found
}

#[test]
fn every_rule_has_a_text() {
    let rules = rules();
    assert!(rules.contains("fair-share,rack-local") && rules.contains("recovery"), "{rules:?}");
    let missing: Vec<&String> = rules.iter().filter(|rule| !explain::has_rule_text(rule)).collect();
    assert!(missing.is_empty(), "add these rules to RULE_TEXTS of their policy: {missing:?}");
}
