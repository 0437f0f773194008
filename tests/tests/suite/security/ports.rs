//! Ports of a default cluster, and what a daemon requires to listen on other addresses.

use fermata_tests::{Cluster, TIMEOUT, Up, binaries, may_inspect_daemons};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Returns the local addresses that processes listen on, found by the inodes of their sockets.
fn listeners(pids: &BTreeSet<u32>) -> Vec<String> {
    let mut sockets = BTreeSet::new();
    for pid in pids {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
            if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                sockets.insert(inode.to_owned());
            }
        }
    }
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        for line in fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = if table.starts_with("tcp") { fields[3] == "0A" } else { true };
            if listens && sockets.contains(fields[9]) {
                found.push(format!("{table} {}", fields[1]));
            }
        }
    }
    found
}

#[test]
fn a_default_cluster_listens_on_loopback_only() {
    if !may_inspect_daemons() {
        return;
    }
    let cluster = Cluster::up(Up { nodes: 2, settings: "", ..Up::default() });
    let home = fs::canonicalize(cluster.path(".")).unwrap();
    let ours = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(home.to_str().unwrap()) || cwd.starts_with(&home)
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pids: BTreeSet<u32> = all.filter(ours).collect();
    assert!(pids.len() >= 6, "{pids:?}");
    let found = listeners(&pids);
    // At least eight sockets: NameNode, JobTracker, two DataNodes, and two TaskTrackers with logs.
    assert!(found.len() >= 8, "{found:?}");
    for listener in &found {
        let (table, addr) = listener.split_once(' ').unwrap();
        assert!(table == "tcp" && addr.starts_with("0100007F:"), "reachable from outside: {listener}");
    }
}

const DAEMONS: [&str; 4] = ["namenode", "datanode", "jobtracker", "tasktracker"];

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn daemons_need_authentication_to_listen_beyond_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    write(&folder.path().join("secret"), "a secret of some length\n", 0o600);
    write(&folder.path().join("exposed"), "a secret of some length\n", 0o644);
    write(&folder.path().join("short"), "guess\n", 0o600);
    let cases: [(&[&str], &str); 4] = [
        (&[], "mrctl cluster init"),
        (&["--secret", &at("exposed")], "others can read it"),
        (&["--secret", &at("short")], "can be guessed"),
        (&["--security-dir", &at("nowhere")], "cannot read"),
    ];
    for name in DAEMONS {
        let dir = at(name);
        for (flags, words) in &cases {
            let mut daemon = Command::new(binaries().join(name));
            daemon.args(["--listen", "0.0.0.0:0", "--dir", &dir]).args(*flags);
            let ran = daemon.output().unwrap();
            let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(!ran.status.success() && printed.contains(words), "{name} {flags:?}: {printed}");
            assert_eq!(printed.lines().count(), 1, "{name} {flags:?}: {printed}");
        }
    }
}

#[test]
fn daemon_with_a_secret_may_listen_on_all_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    write(&folder.path().join("secret"), "a secret of some length\n", 0o600);
    let mut daemon = Command::new(binaries().join("namenode"));
    daemon.args(["--listen", "0.0.0.0:0", "--dir", &at("names"), "--secret", &at("secret")]);
    daemon.args(["--ready-file", &at("ready")]).stderr(Stdio::null());
    let mut daemon = daemon.spawn().unwrap();
    let start = Instant::now();
    let ready = loop {
        if let Ok(ready) = fs::read_to_string(at("ready")) {
            break ready;
        }
        assert!(start.elapsed() < TIMEOUT, "the NameNode does not serve");
        std::thread::sleep(Duration::from_millis(20));
    };
    let addr = ready.trim().replace("0.0.0.0", "127.0.0.1");
    let ask = |flags: &[&str]| {
        let mut mrctl = Command::new(binaries().join("mrctl"));
        mrctl.args(["--namenode", &addr]).args(flags).args(["fs", "ls", "/"]).current_dir(folder.path());
        mrctl.output().unwrap()
    };
    let refused = ask(&[]);
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("requires a credential"), "{printed}");
    fs::write(folder.path().join("own.toml"), "[security]\nsecret = \"secret\"\n").unwrap();
    let let_in = ask(&["--config", &at("own.toml")]);
    assert!(let_in.status.success(), "{}", String::from_utf8_lossy(&let_in.stderr));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
