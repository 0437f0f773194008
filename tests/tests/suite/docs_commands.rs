//! Every command block of README.md and docs/ is executed, or the page gives the reason why it is
//! not.
//!
//! A command block is indented by four spaces, or fenced without a language or with `sh`. The
//! blocks of a page run in one `bash -e`, in their order, in `~/fermata`, which looks like a
//! checkout with built programs; `HOME` is a new folder. Comments before a block change how it is
//! run:
//!
//! ```text
//! <!-- not run: REASON -->      the block is not run
//! <!-- setup: COMMANDS -->      run before the block in the same shell; may have several lines
//! <!-- with: A for B -->        replace B by A in the block, for a smaller size or another address
//! <!-- prints: TEXT -->         the output must contain TEXT
//! <!-- fails -->                the exit code must not be 0
//! ```
//!
//! A page with executed blocks has a test here. Configuration files and outputs, which are fenced
//! with a language (`toml`, `text`, ...), are not checked.

use fermata_tests::{binaries, skip, stripped_binaries};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Timeout of a page.
const PAGE_TIMEOUT: Duration = Duration::from_mins(4);

/// Pages that have a test below.
const TESTED_PAGES: [&str; 12] = [
    "README.md",
    "docs/operate/by-hand.md",
    "docs/operate/machines.md",
    "docs/operate/masters.md",
    "docs/operate/namespaces.md",
    "docs/operate/recovery.md",
    "docs/research/schedulers.md",
    "docs/operate/security.md",
    "docs/research/simulator.md",
    "docs/guide/tutorial.md",
    "docs/guide/gateway.md",
    "docs/guide/hadoop.md",
];

/// A directive in a comment before a block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Directive {
    NotRun,
    Setup(String),
    With { this: String, instead_of: String },
    Prints(String),
    Fails,
}

impl Directive {
    /// Returns `None` for a comment that is not a directive.
    fn parse(comment: &str) -> Option<Self> {
        let comment = comment.trim();
        if comment == "fails" {
            return Some(Self::Fails);
        }
        let (kind, text) = comment.split_once(':')?;
        let text = text.trim().to_owned();
        match kind {
            "not run" => {
                assert!(text.len() > 5, "<!-- {comment} --> gives no reason");
                Some(Self::NotRun)
            }
            "setup" => Some(Self::Setup(text)),
            "prints" => Some(Self::Prints(text)),
            "with" => {
                let (this, instead_of) =
                    text.split_once(" for ").unwrap_or_else(|| panic!("{comment}: A for B"));
                Some(Self::With { this: this.trim().into(), instead_of: instead_of.trim().into() })
            }
            _ => None,
        }
    }
}

/// A command block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    /// Line, counted from 1.
    line: usize,
    text: String,
    directives: Vec<Directive>,
}

impl Block {
    fn is_run(&self) -> bool {
        !self.directives.contains(&Directive::NotRun)
    }

    /// Returns the block as a part of the script of the page.
    fn script(&self, page: &str) -> String {
        let mut text = self.text.clone();
        let mut script = format!("\nprintf '@@ %s\\n' '{page}:{}' >&2\n", self.line);
        for order in &self.directives {
            match order {
                Directive::Setup(commands) => _ = writeln!(script, "{commands}"),
                Directive::With { this, instead_of } => {
                    assert!(
                        text.contains(instead_of.as_str()),
                        "{page}:{}: the block does not contain {instead_of:?}",
                        self.line
                    );
                    text = text.replace(instead_of.as_str(), this);
                }
                _ => {}
            }
        }
        let prints = self.directives.iter().find_map(|order| match order {
            Directive::Prints(words) => Some(words),
            _ => None,
        });
        if self.directives.contains(&Directive::Fails) {
            _ = write!(script, "if (\n{text}) then echo 'it should fail' >&2; exit 1; fi\n");
        } else if let Some(words) = prints {
            _ = write!(
                script,
                "{{\n{text}}} > ~/printed; cat ~/printed\n\
                 grep -qF -- '{words}' ~/printed || {{ echo 'it does not print: {words}' >&2; exit 1; }}\n"
            );
        } else {
            script += &text;
        }
        script
    }
}

/// Returns the command blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    let mut directives = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let begin = at;
        if let Some(comment) = line.trim_start().strip_prefix("<!--") {
            let mut text = comment.to_owned();
            while !text.contains("-->") {
                at += 1;
                text += "\n";
                text += lines.get(at).expect("a comment ends");
            }
            at += 1;
            directives.extend(Directive::parse(text.split("-->").next().unwrap_or("")));
        } else if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> =
                lines[at + 1..].iter().take_while(|line| **line != "```").copied().collect();
            at += body.len() + 2;
            let directives = std::mem::take(&mut directives);
            if ["", "sh", "bash"].contains(&language) {
                let text = body.join("\n") + "\n";
                found.push(Block { line: begin + 1, text, directives });
            }
        } else if line.starts_with("    ") && !line.starts_with("     ") {
            let mut text = String::new();
            // Empty lines belong to the block if the block continues after them.
            let belongs = |at: usize| {
                let next = lines[at..].iter().find(|line| !line.trim().is_empty());
                next.is_some_and(|line| line.starts_with("    "))
            };
            while at < lines.len() && belongs(at) {
                text += lines[at].strip_prefix("    ").unwrap_or("");
                text += "\n";
                at += 1;
            }
            found.push(Block { line: begin + 1, text, directives: std::mem::take(&mut directives) });
        } else {
            if !line.trim().is_empty() {
                directives.clear();
            }
            at += 1;
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn pages() -> Vec<String> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|kind| kind == "md") {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = vec![root.join("README.md")];
    collect(&root.join("docs"), &mut found);
    let name = |path: PathBuf| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
    found.into_iter().map(name).collect()
}

fn read(page: &str) -> Vec<Block> {
    blocks(&fs::read_to_string(root().join(page)).unwrap())
}

#[test]
fn every_command_block_runs_or_has_a_reason() {
    let run: BTreeSet<String> =
        pages().into_iter().filter(|page| read(page).iter().any(Block::is_run)).collect();
    let tested: BTreeSet<String> = TESTED_PAGES.map(str::to_owned).into();
    let untested: Vec<String> = run
        .difference(&tested)
        .flat_map(|page| {
            let blocks = read(page).into_iter().filter(Block::is_run);
            blocks.map(move |block| format!("{page}:{}", block.line)).collect::<Vec<_>>()
        })
        .collect();
    assert!(
        untested.is_empty(),
        "command blocks are neither run nor marked: {}\nput <!-- not run: REASON --> before each, or add a test of the page to {}",
        untested.join(", "),
        file!()
    );
    assert_eq!(run, tested, "a tested page no longer has a command block");
}

/// A fake cargo. Instead of building, it makes the programs under test available.
const FAKE_CARGO: &str = r#"#!/bin/sh
case "$1" in
build) [ ! -e src/main.rs ] || { mkdir -p target/release && ln -sf PROGRAMS/wordcount-job target/release/; } ;;
run) while [ "$1" != -- ]; do shift; done; shift; exec PROGRAMS/wordcount-job "$@" ;;
*) echo "cargo $1: not in this test" >&2; exit 1 ;;
esac
"#;

/// A fake ssh. It runs commands in network namespaces that have the names of the machines.
const FAKE_SSH: &str = r#"#!/bin/sh
while :; do case "$1" in -o | -i | -p) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=${1#*@}; shift
mkdir -p "$HOME/disks/$host" && chmod 711 "$HOME/disks" "$HOME/disks/$host"
# `ip netns exec` has a mount namespace of its own: each machine has its own /var/tmp.
exec ip netns exec "$host" sh -c 'mount --bind "$0" /var/tmp && exec "$@"' "$HOME/disks/$host" "$@"
"#;

/// Script that runs before the first block. At exit it stops everything that the page has started.
const PROLOGUE: &str = r#"set -e
end() {
    for state in $(find ~ -name cluster.json -path '*/.fermata/*' 2>/dev/null); do (cd "${state%/.fermata/*}" && mrctl down >/dev/null 2>&1) || true; done
    for lab in $(find ~ -name launch.json 2>/dev/null); do mrctl cluster down --cluster "${lab%/launch.json}" >/dev/null 2>&1 || true; done
    kill $(jobs -p) 2>/dev/null || true
    [ -z "$AT_END" ] || eval "$AT_END"
}
trap end EXIT
trap 'exit 1' TERM
cd ~/fermata
"#;

fn write_program(path: &Path, text: &str) {
    fs::write(path, text.replace("PROGRAMS", &stripped_binaries().display().to_string())).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates a new home folder with what looks like a checkout.
fn home() -> tempfile::TempDir {
    let space = binaries().with_file_name("tmp");
    fs::create_dir_all(&space).unwrap();
    let home = tempfile::Builder::new().prefix("docs-").tempdir_in(space).unwrap();
    // Tasks may have another account, and must be able to reach their folders.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let checkout = home.path().join("fermata");
    fs::create_dir_all(checkout.join("target")).unwrap();
    for entry in fs::read_dir(root()).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with('.') && name != "target" {
            symlink(entry.path(), checkout.join(name)).unwrap();
        }
    }
    symlink(stripped_binaries(), checkout.join("target/release")).unwrap();
    let bin = home.path().join(".bin");
    fs::create_dir(&bin).unwrap();
    write_program(&bin.join("cargo"), FAKE_CARGO);
    write_program(&bin.join("ssh"), FAKE_SSH);
    home
}

/// Runs the blocks of a page after `before`.
fn run_page(page: &str, before: &str) {
    let home = home();
    let mut script = format!("{PROLOGUE}{before}\n");
    for block in read(page).iter().filter(|block| block.is_run()) {
        script += &block.script(page);
    }
    let file = home.path().join(".script");
    fs::write(&file, script).unwrap();
    let printed = home.path().join(".printed");
    let out = fs::File::create(&printed).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.arg(&file)
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("PATH", format!("{}/.bin:{}:{path}", home.path().display(), stripped_binaries().display()))
        .env("PROGRAMS", stripped_binaries())
        .env_remove("FERMATA_CONFIG")
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .process_group(0);
    let mut child = bash.spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if started.elapsed() > PAGE_TIMEOUT {
            // On SIGTERM the script stops what it has started.
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-TERM", "--", &group]).status().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let printed = fs::read_to_string(printed).unwrap_or_default();
    let at = printed.lines().rev().find_map(|line| line.strip_prefix("@@ ")).unwrap_or(page).to_owned();
    let tail: Vec<&str> = printed.lines().rev().take(30).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    match status {
        Some(status) if status.success() => {}
        Some(status) => panic!("the block at {at}: {status}\n{tail}"),
        None => panic!("the block at {at} has not ended after {PAGE_TIMEOUT:?}\n{tail}"),
    }
}

/// Runs a page with the machines `node1` to `node4`, whose names resolve and which the fake ssh
/// reaches. Skipped with a message if they cannot be created.
fn run_page_on_machines(page: &str) {
    // The mount namespace makes the names of the machines resolve only in this run.
    let before = r#"
[ -n "$INSIDE" ] || INSIDE=1 exec ~/fermata/deploy/netns/net alone node unshare --mount --propagation private bash "$0"
for i in 1 2 3 4 5; do echo "10.77.21.$i node$i"; done | cat /etc/hosts - > ~/.hosts
mount --bind ~/.hosts /etc/hosts
export SUBNET=21
~/fermata/deploy/netns/net down node
AT_END='~/fermata/deploy/netns/net down node'
~/fermata/deploy/netns/net up node 5
"#;
    // All these pages use the same names and addresses.
    static MACHINES: Mutex<()> = Mutex::new(());
    if namespaces() {
        let _one_page = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
        run_page(page, before);
    }
}

/// Whether network and mount namespaces can be created; prints a message if not.
pub(crate) fn namespaces() -> bool {
    let can = Command::new("unshare").args(["--net", "--mount", "ip", "link"]).output();
    let can = can.is_ok_and(|ran| ran.status.success());
    if !can {
        skip("namespaces", "network namespaces need root and iproute2");
    }
    can
}

#[test]
fn commands_of_the_readme_run() {
    run_page("README.md", "");
}

#[test]
fn commands_of_the_tutorial_run() {
    run_page("docs/guide/tutorial.md", "");
}

#[test]
fn commands_of_the_by_hand_page_run() {
    run_page("docs/operate/by-hand.md", "");
}

#[test]
fn commands_of_the_recovery_page_run() {
    run_page("docs/operate/recovery.md", "");
}

#[test]
fn commands_of_the_page_about_several_namenodes_run() {
    run_page("docs/operate/masters.md", "");
}

#[test]
fn commands_of_the_page_about_the_gateway_run() {
    run_page("docs/guide/gateway.md", "");
}

#[test]
fn commands_of_the_page_about_hadoop_run() {
    run_page("docs/guide/hadoop.md", "");
}

#[test]
fn commands_of_the_schedulers_page_run() {
    run_page("docs/research/schedulers.md", "");
}

#[test]
fn commands_of_the_simulator_page_run() {
    run_page("docs/research/simulator.md", "");
}

#[test]
fn commands_of_the_security_page_run() {
    run_page_on_machines("docs/operate/security.md");
}

#[test]
fn commands_of_the_machines_page_run() {
    run_page_on_machines("docs/operate/machines.md");
}

#[test]
fn commands_of_the_namespaces_page_run() {
    if namespaces() {
        run_page("docs/operate/namespaces.md", "");
    }
}

#[test]
fn blocks_are_found_with_their_directives() {
    let page = "# A page\n    mrctl up\n\n    mrctl down\ntext\n\n<!-- not run: it takes an hour -->\n\n    sleep 3600\n\n\
                ```toml\n[cluster]\n```\n<!-- with: 10 for 1000 -->\n<!-- prints: done -->\n```\nmrctl x 1000\n```\n\
                1. one\n       not a block\n";
    let found = blocks(page);
    let lines: Vec<(usize, &str)> = found.iter().map(|block| (block.line, block.text.as_str())).collect();
    assert_eq!(lines, [(2, "mrctl up\n\nmrctl down\n"), (9, "sleep 3600\n"), (16, "mrctl x 1000\n")]);
    assert!(found[0].is_run() && !found[1].is_run());
    let script = found[2].script("page");
    assert!(script.contains("mrctl x 10\n") && script.contains("grep -qF -- 'done'"), "{script}");
}
