//! Tasks in a closed cluster: another account where the tracker is root, no way to gain rights, and their own folders.

use super::Lab;
use std::{fs, os::unix::fs::PermissionsExt};

#[test]
fn a_task_reaches_its_own_folders_and_nothing_else() {
    let root = is_root();
    let account = if root { "[tasktracker]\ntask_user = \"nobody\"\n" } else { "" };
    let lab = Lab::up(true, account);
    // The test's own folder is private; a tracker's is not.
    fs::set_permissions(lab.cluster.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    // A secret of the machine, readable to everybody, outside of what the system needs.
    let secret = tempfile::Builder::new().prefix("secret-").tempfile_in("/var/tmp").unwrap();
    fs::write(secret.path(), "hidden words\n").unwrap();
    fs::set_permissions(secret.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let script = lab.cluster.path("mapper.sh");
    let text = format!(
        "#!/bin/sh\ncat > /dev/null\nid -u | sed 's/^/uid\\t/'\n\
         grep NoNewPrivs /proc/self/status | tr -s '\\t' ' ' | sed 's/^/privs\\t/'\n\
         (cat {} 2>&1) | sed 's/^/secret\\t/'\n\
         (touch /var/tmp/left-behind 2>&1; echo $?) | tail -n 1 | sed 's/^/outside\\t/'\n\
         (echo mine > own && cat own) | sed 's/^/own\\t/'\n\
         env | grep -ci 'token\\|secret' | sed 's/^/env\\t/'\n",
        secret.path().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let input = lab.cluster.path("in");
    fs::write(&input, "x\n").unwrap();
    lab.cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
    lab.cluster.mrctl(&["fs", "chown", "ann", "/home/ann"]);
    lab.done("ann", &["fs", "put", input.to_str().unwrap(), "/home/ann/in"]);
    let file = script.to_str().unwrap();
    let ran = lab.run(
        "ann",
        &[
            "submit",
            "streaming",
            "--mapper",
            "./mapper.sh",
            "--file",
            file,
            "--input",
            "/home/ann/in",
            "--output",
            "/home/ann/out",
            "--reduces",
            "0",
        ],
    );
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let out = lab.done("ann", &["fs", "cat", "/home/ann/out/part-*"]);
    assert!(out.contains("privs\tNoNewPrivs: 1"), "{out}");
    assert!(out.contains("own\tmine") && out.contains("env\t0"), "{out}");
    if root {
        assert!(!out.contains("uid\t0\n"), "{out}");
    }
    let told = lab.done("ann", &["logs", "job_1.m0"]);
    if told.contains("no Landlock") {
        eprintln!("the kernel has no Landlock: folders were not tried");
    } else {
        assert!(!out.contains("hidden words") && !out.contains("outside\t0"), "{out}");
    }
    let _ = fs::remove_file("/var/tmp/left-behind");
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line.starts_with("Uid:\t0\t"))
}
