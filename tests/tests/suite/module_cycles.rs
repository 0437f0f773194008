//! Checks that modules have no cycles: two modules of the same parent do not use each other,
//! directly or through other modules. A parent and its children may use each other.
//!
//! The sources are read as tokens. A path that starts with `crate`, `super` or `self` is followed
//! through child modules and through the `use` declarations of each module on the way. Code that is
//! only compiled for tests does not count.

use super::tidy::{report, sources, workspace_members};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Maximum number of `use` declarations that are followed. A longer chain has a loop.
const IMPORTS_FOLLOWED_MAX: usize = 8;

type Path = Vec<String>;

/// A source file as a module.
#[derive(Default)]
struct Module {
    /// Name and path of each import.
    imports: Vec<(String, Path)>,
    /// Paths in the code outside of imports.
    paths: Vec<Path>,
}

/// The modules of one crate, by path without `crate`.
struct Crate(BTreeMap<Path, Module>);

/// Returns the tokens of a source file, without comments and literals: identifiers, `::`, and other
/// characters one by one.
fn tokens(text: &str) -> Vec<String> {
    let (chars, mut at, mut found) = (text.chars().collect::<Vec<_>>(), 0, Vec::new());
    let is_word = |at: usize| chars.get(at).is_some_and(|char| char.is_alphanumeric() || *char == '_');
    while at < chars.len() {
        let rest = |pattern: &str| pattern.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
        let until = |pattern: &str, from: usize| {
            let pattern: Vec<char> = pattern.chars().collect();
            let end =
                chars[from.min(chars.len())..].windows(pattern.len()).position(|there| there == pattern);
            end.map_or(chars.len(), |end| from + end + pattern.len())
        };
        if rest("//") {
            at = until("\n", at);
        } else if rest("/*") {
            at = until("*/", at);
        } else if rest("r#\"") {
            at = until("\"#", at + 3);
        } else if rest("r\"") {
            at = until("\"", at + 2);
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if rest("'\\") {
            at = until("'", at + 3);
        } else if chars[at] == '\'' {
            // A character or a lifetime.
            at += if chars.get(at + 2) == Some(&'\'') { 3 } else { 1 };
        } else if is_word(at) {
            let start = at;
            while is_word(at) {
                at += 1;
            }
            found.push(chars[start..at].iter().collect());
        } else if rest("::") {
            found.push("::".to_owned());
            at += 2;
        } else {
            if !chars[at].is_whitespace() {
                found.push(chars[at].to_string());
            }
            at += 1;
        }
    }
    found
}

/// Returns the position after the bracket that closes the one at `at`.
fn after_block(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (offset, token) in tokens[at..].iter().enumerate() {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + offset + 1;
        }
    }
    tokens.len()
}

/// Removes items with `#[cfg(test)]`, and returns the names of modules among them.
fn without_tests(tokens: &[String]) -> (Vec<String>, BTreeSet<String>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), BTreeSet::new(), 0);
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token == text);
    while at < tokens.len() {
        let end = if is(at, "#") && is(at + 1, "[") { after_block(tokens, at + 1) } else { at };
        let attribute = &tokens[at..end];
        let has = |text: &str| attribute.iter().any(|token| token == text);
        if !(has("cfg") && has("test") && !has("not")) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at = end;
        while is(at, "#") {
            at = after_block(tokens, at + 1);
        }
        let is_use = |at: usize| is(at, "use") || is(at, "pub") && (is(at + 1, "use") || is(at + 1, "("));
        let braces_end = !is_use(at);
        if is(at, "mod") {
            modules.insert(tokens[at + 1].clone());
        }
        while at < tokens.len() && !is(at, ";") && !(braces_end && is(at, "{")) {
            at = if is(at, "(") || is(at, "[") || is(at, "{") { after_block(tokens, at) } else { at + 1 };
        }
        at = if is(at, "{") { after_block(tokens, at) } else { at + 1 };
    }
    (kept, modules)
}

/// Reads one branch of a `use` declaration from `at`, and returns the position after it.
fn imports(tokens: &[String], mut at: usize, mut path: Path, found: &mut Vec<(String, Path)>) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => at += 1,
            "{" => {
                let end = after_block(tokens, at);
                at += 1;
                while at < end - 1 {
                    at = imports(tokens, at, path.clone(), found);
                    at += usize::from(tokens[at] == ",");
                }
                return end;
            }
            "as" => {
                found.push((tokens[at + 1].clone(), path));
                return at + 2;
            }
            "," | ";" | "}" => break,
            "self" if !path.is_empty() => at += 1,
            _ => {
                path.push(token.clone());
                at += 1;
            }
        }
    }
    found.push((path.last().cloned().unwrap_or_default(), path));
    at
}

/// Reads a source file. Also returns the names of its test modules.
fn read(text: &str) -> (Module, BTreeSet<String>) {
    let (tokens, tests) = without_tests(&tokens(text));
    let (mut module, mut at) = (Module::default(), 0);
    while at < tokens.len() {
        let starts = matches!(tokens[at].as_str(), "crate" | "super" | "self");
        if tokens[at] == "use" && tokens.get(at + 1).is_some_and(|next| next != "<") {
            at = imports(&tokens, at + 1, Vec::new(), &mut module.imports);
        } else if starts && tokens.get(at + 1).is_some_and(|next| next == "::") {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|next| next == "::") && at + 2 < tokens.len() {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            module.paths.push(path);
        }
        at += 1;
    }
    (module, tests)
}

impl Crate {
    fn of(folder: &str) -> Self {
        let prefix = format!("{folder}/src/");
        let (mut modules, mut tests) = (BTreeMap::new(), Vec::new());
        for (name, text) in sources() {
            let Some(file) = name.strip_prefix(&prefix).filter(|file| !file.starts_with("bin/")) else {
                continue;
            };
            let mut path: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
                path.pop();
            }
            let (module, test_modules) = read(&text);
            tests.extend(test_modules.into_iter().map(|test| [path.clone(), vec![test]].concat()));
            modules.insert(path, module);
        }
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self(modules)
    }

    /// Returns the module that a path in module `from` leads to; `None` if it is in another crate.
    fn resolve(&self, from: &[String], path: &[String], followed: usize) -> Option<Path> {
        if followed > IMPORTS_FOLLOWED_MAX {
            return None;
        }
        let mut at: Path = from.to_vec();
        for (index, segment) in path.iter().enumerate() {
            let child = [at.clone(), vec![segment.clone()]].concat();
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ if self.0.contains_key(&child) => at = child,
                name => {
                    let imports = self.0.get(&at).map_or(&[][..], |module| &module.imports);
                    let import = imports.iter().find(|(known, to)| known == name && to != path);
                    let Some((_, to)) = import else { return (index > 0).then_some(at) };
                    let rest = [to.clone(), path[index + 1..].to_vec()].concat();
                    return self.resolve(&at, &rest, followed + 1).or_else(|| (index > 0).then_some(at));
                }
            }
        }
        Some(at)
    }

    /// Returns the pairs of modules with the same parent of which the first uses the second. The
    /// value describes one such use: a module and the path in it.
    fn sibling_uses(&self) -> BTreeMap<(Path, Path), String> {
        let mut uses = BTreeMap::new();
        for (from, module) in &self.0 {
            let imports = module.imports.iter().map(|(_, path)| path);
            for path in imports.chain(&module.paths) {
                let Some(to) = self.resolve(from, path, 0) else { continue };
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if shared < from.len() && shared < to.len() {
                    let pair = (from[..=shared].to_vec(), to[..=shared].to_vec());
                    uses.insert(pair, format!("{} has {}", from.join("::"), path.join("::")));
                }
            }
        }
        uses
    }
}

/// Returns the uses that are part of a cycle.
fn cycles(uses: &BTreeMap<(Path, Path), String>) -> Vec<&(Path, Path)> {
    let reaches = |from: &Path, to: &Path| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(next) = left.pop() {
            if seen.insert(next) {
                left.extend(uses.keys().filter(|(user, _)| user == next).map(|(_, used)| used));
            }
        }
        seen.contains(to)
    };
    uses.keys().filter(|(from, to)| reaches(to, from)).collect()
}

#[test]
fn modules_of_a_crate_have_no_cycles() {
    let mut broken = String::new();
    for folder in workspace_members() {
        let uses = Crate::of(&folder).sibling_uses();
        for pair in cycles(&uses) {
            let (from, to) = (pair.0.join("::"), pair.1.join("::"));
            let _ = writeln!(broken, "{folder}: {from} -> {to}: {}", uses[pair]);
        }
    }
    report("modules that use each other", &broken);
}

#[test]
fn a_cycle_is_found_through_nested_imports_and_exports() {
    let module = |text: &str| read(text).0;
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Path>();
    let all = |c: &str| {
        Crate(BTreeMap::from([
            (Vec::new(), module("mod a; mod b; mod c; pub use c::deep::Thing;")),
            (path("a"), module("use crate::{Other, b::{self, One}};")),
            (
                path("b"),
                module("//! crate::a\nfn f(x: &'static str) { g::<crate::Thing>(\"crate::a::One\") }"),
            ),
            (path("c"), module("mod deep; pub use deep::Thing;")),
            (path("c::deep"), module(c)),
        ]))
    };
    let sound = all("#[cfg(test)]\nmod tests { use crate::a::One; }\n#[cfg(test)] use crate::a::One;");
    let uses = sound.sibling_uses();
    let pairs: Vec<_> = uses.keys().map(|(from, to)| (from.join("::"), to.join("::"))).collect();
    assert_eq!(pairs, [("a", "b"), ("b", "c")].map(|(from, to)| (from.to_owned(), to.to_owned())));
    assert!(cycles(&uses).is_empty());
    let uses = all("fn f() -> super::super::a::Own {}").sibling_uses();
    assert_eq!(cycles(&uses).len(), 3, "a, b and c use each other: {uses:?}");
}
