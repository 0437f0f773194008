//! Tasks in a cluster that requires authentication. They run under another account if the tracker
//! runs as root, cannot gain privileges, and can access only their own folders, for every kind of
//! program.

use super::Lab;
use fermata_tests::{is_root, skip};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

/// Description that job executables print. The executables here do not use mrlib.
const DESCRIPTION: &str = r#"{"input":"lines","output":"text","reducer":false,"combiner":false,"total_order":false,"divisible":false,"mrlib":"0.1.0","settings":[]}"#;

/// A cluster with secrets, and a user who tries to read them.
struct Trial {
    lab: Lab,
    /// A file of the machine that all accounts can read, outside of system folders.
    secret: tempfile::NamedTempFile,
}

impl Trial {
    fn new(account: &str) -> Self {
        let lab = Lab::up(true, account);
        let secret = tempfile::Builder::new().prefix("secret-").tempfile_in("/var/tmp").unwrap();
        fs::write(secret.path(), "hidden words\n").unwrap();
        fs::set_permissions(secret.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let input = lab.cluster.path("in");
        fs::write(&input, "x\n").unwrap();
        lab.cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
        lab.cluster.mrctl(&["fs", "chown", "ann", "/home/ann"]);
        lab.done("ann", &["fs", "put", input.to_str().unwrap(), "/home/ann/in"]);
        Self { lab, secret }
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.lab.cluster.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn submit(&self, program: &[&str], output: &str) -> fermata_tests::Ran {
        let output = format!("/home/ann/{output}");
        let rest = ["--input", "/home/ann/in", "--output", &output, "--reduces", "0"];
        self.lab.run("ann", &[&["submit"], program, &rest].concat())
    }

    /// Returns a script of forbidden and permitted actions of a task. Each prints its result after
    /// a label.
    fn action_script(&self) -> String {
        format!(
            "id -u | sed 's/^/uid\\t/'\n\
             grep NoNewPrivs /proc/self/status | tr -s '\\t' ' ' | sed 's/^/privs\\t/'\n\
             (cat {} 2>&1) | sed 's/^/secret\\t/'\n\
             (cat ../../token ../*/../../token 2>&1) | sed 's/^/token\\t/'\n\
             (touch /var/tmp/left-behind 2>&1; echo $?) | tail -n 1 | sed 's/^/outside\\t/'\n\
             (kill -0 $FERMATA_TRACKER_PID 2>&1; echo $?) | tail -n 1 | sed 's/^/signal\\t/'\n\
             (echo mine > own && cat own) | sed 's/^/own\\t/'\n\
             (ls /dev 2>&1; echo $?) | tail -n 1 | sed 's/^/devices\\t/'\n\
             echo reported > /dev/stderr\n\
             env | grep -ci 'token\\|secret' | sed 's/^/env\\t/'\n",
            self.secret.path().display()
        )
    }
}

/// Checks that only the permitted actions have worked.
fn check(out: &str, log: &str) {
    assert!(out.contains("privs\tNoNewPrivs: 1"), "{out}");
    assert!(out.contains("own\tmine") && out.contains("env\t0"), "{out}");
    assert!(log.contains("reported"), "{log}");
    if log.contains("no Landlock") {
        skip("landlock", "the kernel has no Landlock: access to folders was not tested");
    } else {
        assert!(!out.contains("hidden words") && !out.contains("outside\t0"), "{out}");
        assert!(!out.contains("devices\t0"), "{out}");
        let mut tokens = out.lines().filter(|line| line.starts_with("token\t"));
        assert!(tokens.all(|line| line.contains("cat: ")), "{out}");
    }
    let _ = fs::remove_file("/var/tmp/left-behind");
}

#[test]
fn task_can_access_only_its_own_folders() {
    let account = account();
    let root = account.contains("nobody");
    let trial = Trial::new(&account);
    let mapper = format!("cat > /dev/null\n{}", trial.action_script());
    let file = trial.script("mapper.sh", &mapper);
    let ran = trial
        .submit(&["streaming", "--mapper", "./mapper.sh", "--file", file.to_str().unwrap()], "of-streaming");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let out = trial.lab.done("ann", &["fs", "cat", "/home/ann/of-streaming/part-*"]);
    let log = trial.lab.done("ann", &["logs", "job_1.m0"]);
    check(&out, &log);
    assert!(!root || !out.contains("uid\t0\n"), "{out}");
    // This program of the user does not confine itself.
    let text = format!("[ \"$1\" = --describe ] && echo '{DESCRIPTION}' && exit\n{}", trial.action_script());
    let program = trial.script("own-program", &text);
    let ran = trial.submit(&[program.to_str().unwrap()], "of-own");
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let out = trial.lab.done("ann", &["logs", "--stdout", "job_2.m0"]);
    let log = trial.lab.done("ann", &["logs", "job_2.m0"]);
    check(&out, &log);
    assert!(!root || !out.contains("uid\t0\n"), "{out}");
}

#[test]
fn program_with_the_tracker_account_is_still_confined() {
    // Tasks of a tracker that runs as root have its account only if that is configured.
    let trial = Trial::new(if is_root() { "[tasktracker]\ntasks_as_root = true\n" } else { "" });
    let text = format!("[ \"$1\" = --describe ] && echo '{DESCRIPTION}' && exit\n{}", trial.action_script());
    let program = trial.script("own-program", &text);
    trial.submit(&[program.to_str().unwrap()], "of-own");
    let out = trial.lab.done("ann", &["logs", "--stdout", "job_1.m0"]);
    let log = trial.lab.done("ann", &["logs", "job_1.m0"]);
    check(&out, &log);
    if kernel() >= (6, 12) && !log.contains("no Landlock") {
        assert!(!out.contains("signal\t0"), "it can signal its tracker: {out}");
    }
}

#[test]
fn tracker_follows_no_links_or_pipes_of_tasks() {
    let trial = Trial::new(&account());
    let key = trial.lab.path("ours/security/tasktracker.pem");
    let plant = format!(
        "cat > /dev/null\nfor name in stdout stderr; do rm -f $name; ln -s {0} $name; done\n\
         echo was here\nkill -9 $PPID\n",
        key.display()
    );
    let file = trial.script("links.sh", &plant);
    let ran =
        trial.submit(&["streaming", "--mapper", "./links.sh", "--file", file.to_str().unwrap()], "links");
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("PRIVATE KEY"));
    for args in [&["logs", "job_1.m0"][..], &["logs", "--stdout", "job_1.m0"]] {
        let log = trial.lab.run("ann", args);
        assert!(!log.stdout.contains("PRIVATE KEY"), "{}", log.stdout);
    }
    // The end of an attempt with named pipes as logs is reported, and its slot is free again.
    let plant =
        "cat > /dev/null\nfor name in stdout stderr; do rm -f $name; mkfifo $name; done\necho was here\n";
    let file = trial.script("pipes.sh", plant);
    let ran =
        trial.submit(&["streaming", "--mapper", "./pipes.sh", "--file", file.to_str().unwrap()], "pipes");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    trial.lab.done("ann", &["logs", "job_2.m0"]);
}

fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns the setting that gives tasks another account, if possible.
pub(super) fn account() -> String {
    if is_root() { format!("[tasktracker]\n{}\n", fermata_tests::task_account()) } else { String::new() }
}
