//! A local cluster belongs to the account that started it: other accounts cannot access it, its
//! tasks never run as root or read its secret, and `mrctl` does not use folders or files of another
//! account.

use super::direct_requests::send_request;
use fermata_tests::{Cluster, QUICK, Ran, Up, binaries, eventually, is_root, skip};
use proto::dfs::{ReadBlock, bulk_request::Op};
use serde_json::Value;
use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

/// UID of an account that has nothing to do with any cluster.
const OTHER_ACCOUNT: u32 = 54_321;
/// UID of the account `nobody`.
const NOBODY: u32 = 65_534;
/// A mapper that prints the IDs of its user, its group and all its groups.
const PRINT_IDS: &str = "sh -c 'cat > /dev/null; echo $(id -u) $(id -g) $(id -G)'";

/// Checks the output of [`PRINT_IDS`]: the task had no rights of root.
fn assert_not_root(ids: &str) {
    assert!(ids.split_whitespace().count() >= 3, "{ids}");
    assert!(ids.split_whitespace().all(|id| id != "0"), "a task ran with rights of root: {ids}");
}

/// Returns a command that runs `program` as another account. Prints a message and returns `None` if
/// this process is not root.
fn as_account(uid: u32, program: &Path) -> Option<Command> {
    if !is_root() {
        skip("root", "only root can act as another account");
        return None;
    }
    let mut command = Command::new("setpriv");
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
    command.args(ids).args(["--clear-groups", "--inh-caps=-all", "--"]).arg(program).stdin(Stdio::null());
    for key in ["FERMATA_NAMENODE", "FERMATA_JOBTRACKER", "FERMATA_CONFIG", "FERMATA_USER"] {
        command.env_remove(key);
    }
    Some(command)
}

/// Runs `mrctl ARGS` as another account, in this folder.
fn mrctl_as(uid: u32, folder: &Path, args: &[&str]) -> Option<Ran> {
    let mut command = as_account(uid, &binaries().join("mrctl"))?;
    Some(command.args(args).current_dir(folder).output().expect("setpriv starts").into())
}

fn daemons(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("cluster.json")).expect("a state file");
    let state: Value = serde_json::from_str(&text).unwrap();
    state["daemons"].as_array().expect("daemons").clone()
}

fn address(folder: &Path, kind: &str) -> String {
    let daemons = daemons(folder);
    let found = daemons.iter().find(|daemon| daemon["kind"] == kind).expect(kind);
    found["addr"].as_str().unwrap().to_owned()
}

/// Collects every file below a folder.
fn files_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files_in(&path, found);
        } else if path.is_file() {
            found.push(path);
        }
    }
}

#[test]
fn another_account_cannot_access_a_cluster() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("in"), "one two two\n".repeat(2000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counts"]);
    let folder = cluster.path(".fermata");
    let (namenode, jobtracker) = (address(&folder, "namenode"), address(&folder, "jobtracker"));
    let at = ["--namenode", &namenode, "--jobtracker", &jobtracker];
    let mapper = ["submit", "streaming", "--mapper", PRINT_IDS, "--input", "/in", "--output", "/stolen"];
    for args in [
        &["fs", "ls", "/"][..],
        &["fs", "cat", "/in"],
        &["fs", "rm", "/in"],
        &["fs", "put", "/etc/hostname", "/planted"],
        &["jobs"],
        &["kill", "job_1"],
        &mapper,
    ] {
        // The addresses are given, so it does not matter whether the command finds a folder that it
        // cannot read.
        for here in [Path::new("/"), &cluster.path("."), &folder] {
            let Some(ran) = mrctl_as(OTHER_ACCOUNT, here, &[&at[..], args].concat()) else { return };
            assert_eq!(ran.code, 1, "{args:?}: {}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains("requires a credential"), "{args:?}: {}", ran.stderr);
        }
    }
    // Another account cannot get access through the cluster folder either, although it can see it.
    for args in [&["fs", "ls", "/"][..], &["jobs"], &["status"]] {
        let ran = mrctl_as(OTHER_ACCOUNT, &cluster.path("."), args).unwrap();
        let line = format!("{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.code == 1 && ran.stderr.lines().count() == 1, "{line}");
        assert!(
            ran.stderr.contains("belongs to root and is closed to") && line.contains("`mrctl token`"),
            "{line}"
        );
    }
    // A token of the owner gives access to another account.
    let token = cluster.path("token");
    fs::write(&token, cluster.mrctl(&["token", "--valid", "10m"])).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&token, Some(OTHER_ACCOUNT), Some(OTHER_ACCOUNT)).unwrap();
    let with_token = [&at[..], &["--token-file", token.to_str().unwrap(), "fs", "ls", "/"]].concat();
    let ran = mrctl_as(OTHER_ACCOUNT, &cluster.path("."), &with_token).unwrap();
    assert!(ran.code == 0 && ran.stdout.lines().any(|line| line == "in"), "{}{}", ran.stdout, ran.stderr);
    // A DataNode sends no block without a token.
    let stat = cluster.json(&["fs", "stat", "--blocks", "/in"]);
    let block = &stat[0]["locations"][0];
    let name = block["block"].to_string();
    let id = name.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_else(|_| panic!("{stat}"));
    let length = block["length"].as_u64().unwrap_or_else(|| panic!("{stat}"));
    let read = Op::Read(ReadBlock { block_id: id, offset: 0, length, block_length: length, nonce: 0 });
    let stream = TcpStream::connect(address(&folder, "datanode")).unwrap();
    // The token is checked before the nonce.
    assert_eq!(
        send_request(stream, read, &[]).as_deref(),
        Some("denied"),
        "a block was sent without a token"
    );
    // Another account can read no file of the cluster: blocks, logs, map outputs, the secret.
    let mut files = Vec::new();
    files_in(&folder, &mut files);
    assert!(files.len() > 10 && files.contains(&folder.join("secret")), "{files:?}");
    let mut command = as_account(OTHER_ACCOUNT, Path::new("/bin/sh")).unwrap();
    command.args(["-c", "for file; do test -r \"$file\" && echo \"$file\"; done; true", "sh"]).args(&files);
    let readable = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(readable.is_empty(), "others can read {readable}");
}

#[test]
fn web_pages_require_the_printed_address() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let mut command = cluster.command(&["web", "--port", "0"]);
    let mut web = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(web.stdout.take().unwrap()).lines();
    let mut next = move || lines.next().expect("a line").unwrap();
    let first = next();
    let (host, token) = first.strip_prefix("http://").unwrap().split_once("/?token=").expect("a token");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split(' ').nth(1).expect("a status").to_owned()
    };
    assert_eq!((ask("/"), ask("/?token=guess")), ("403".into(), "403".into()));
    assert_eq!(ask(&format!("/?token={token}")), "303", "the first browser is let in");
    assert_eq!(ask(&format!("/?token={token}")), "403", "the second is not");
    writeln!(web.stdin.as_ref().unwrap()).unwrap();
    let fresh = next();
    let (_, other) = fresh.split_once("/?token=").expect("a token");
    assert_ne!(other, token);
    assert_eq!(ask(&format!("/?token={other}")), "303");
    web.kill().unwrap();
    web.wait().unwrap();
}

#[test]
fn open_cluster_warns_and_accepts_all_accounts() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, open: true, ..Up::default() });
    assert_eq!(cluster.json(&["status"])["access"], "open");
    assert!(cluster.mrctl(&["status"]).contains("open (every account of this machine can use it)"));
    assert!(cluster.refused(1, &["token"]).contains("this cluster is open"));
    cluster.mrctl(&["down"]);
    // The choice is stored in the folder, and `up` warns again.
    let again = cluster.try_mrctl(&["up", "--detach"]);
    assert!(again.code == 0 && again.stderr.contains("warning: --open"), "{}{}", again.stdout, again.stderr);
    fs::write(cluster.path("in"), "x\n").unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    let folder = cluster.path(".");
    let job = [
        "submit",
        "streaming",
        "--mapper",
        PRINT_IDS,
        "--input",
        "/in",
        "--output",
        "/who",
        "--reduces",
        "0",
    ];
    for args in [&["fs", "ls", "/"][..], &["fs", "cat", "/in"], &job, &["jobs"]] {
        let Some(ran) = mrctl_as(OTHER_ACCOUNT, &folder, args) else { return };
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
    }
    assert_not_root(&String::from_utf8(cluster.output("/who")).unwrap());
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--closed", "--detach"]);
    assert_eq!(cluster.json(&["status"])["access"], "closed");
    // Other accounts cannot read the configuration of the closed cluster.
    assert_eq!(mrctl_as(OTHER_ACCOUNT, &folder, &["fs", "ls", "/"]).unwrap().code, 1);
}

#[test]
fn a_token_lets_another_client_in_until_it_expires() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let namenode = address(&cluster.path(".fermata"), "namenode");
    let (token, own) = (cluster.json(&["token"]), cluster.path("token"));
    assert_eq!(token["name"], daemon::account::user());
    let list = |text: &str| {
        let _ = fs::remove_file(&own);
        security::write_private(&own, text.as_bytes()).unwrap();
        let args = ["--token-file", own.to_str().unwrap(), "--namenode", &namenode, "fs", "ls", "/"];
        // The command runs in another folder, where it does not find the secret of the cluster.
        let mut command = cluster.command(&args);
        Ran::from(command.current_dir("/").output().unwrap())
    };
    let ran = list(token["token"].as_str().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let short = cluster.mrctl(&["token", "--valid", "1s"]);
    let refused = eventually("the token expires", || Some(list(&short)).filter(|ran| ran.code != 0));
    assert!(refused.stderr.contains("expired"), "{}", refused.stderr);
    assert!(cluster.refused(2, &["token", "--valid", "0s"]).contains("--valid"));
}

/// Script that listens on a port of 127.0.0.1 (family 4) or of all addresses, IPv4 and IPv6 (family
/// 6). At the end of each connection it prints the number of received bytes: `bytes N`.
const LISTEN_SCRIPT: &str = r#"
import socket, sys, threading, time
family, port = sys.argv[1], int(sys.argv[2])
server = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if family == "6":
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
while True:
    try:
        server.bind(("::" if family == "6" else "127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.1)
server.listen(100)
print("ready", flush=True)
def hear(connection):
    count = 0
    try:
        connection.settimeout(5)
        while piece := connection.recv(4096):
            count += len(piece)
    except OSError:
        pass
    print("bytes", count, flush=True)
while True:
    threading.Thread(target=hear, args=(server.accept()[0],), daemon=True).start()
"#;

/// A program of another account that listens on a port. Killed when dropped.
struct Impostor {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Impostor {
    /// Listens on the port of `addr`. Prints a message and returns `None` if that is not possible.
    fn listen(addr: &str, family: &str) -> Option<Self> {
        let (_, port) = addr.rsplit_once(':').unwrap();
        let mut command = as_account(OTHER_ACCOUNT, Path::new("python3"))?;
        command.args(["-c", LISTEN_SCRIPT, family, port]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("setpriv starts");
        let mut coming = BufReader::new(process.stdout.take().unwrap()).lines();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let impostor = Self { process, lines: lines.clone() };
        match coming.next() {
            Some(Ok(line)) if line == "ready" => {}
            _ => {
                skip("a free port", format_args!("python3 cannot listen on {addr} (family {family})"));
                return None;
            }
        }
        std::thread::spawn(move || {
            coming.map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Some(impostor)
    }

    /// Returns a line with the number of received bytes for each ended connection.
    fn received(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn no_token_is_sent_to_another_account_on_the_port_of_a_dead_master() {
    if !is_root() {
        return skip("root", "only root can act as another account");
    }
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: QUICK, ..Up::default() });
    let folder = cluster.path(".fermata");
    let masters = ["namenode", "jobtracker"];
    let addresses = masters.map(|master| address(&folder, master));
    // The kernel's table of IPv4 sockets does not contain sockets for both families.
    for families in [["4", "6"], ["6", "4"]] {
        for master in masters {
            cluster.mrctl(&["chaos", "kill", master]);
        }
        let logs = ["node1-datanode", "node1-tasktracker"];
        let before = logs.map(|log| cluster.log(log).len());
        let mut impostors = Vec::new();
        for (addr, family) in addresses.iter().zip(families) {
            let Some(one) = Impostor::listen(addr, family) else { return };
            impostors.push(one);
        }
        for args in [&["fs", "ls", "/"][..], &["jobs"]] {
            let line = cluster.refused(1, args);
            assert!(line.contains("no token is sent to it") && line.contains("uid54321"), "{args:?}: {line}");
            assert_eq!(line.trim().lines().count(), 1, "{line}");
        }
        // Daemons refuse the server too, and log the reason.
        for (log, before) in logs.into_iter().zip(before) {
            eventually("a daemon has been asked for its token", || {
                cluster.log(log)[before..].contains("no token is sent to it").then_some(())
            });
        }
        for one in &impostors {
            eventually("connections have ended", || (one.received().len() >= 2).then_some(()));
            assert!(
                one.received().iter().all(|line| line == "bytes 0"),
                "{families:?}: {:?}",
                one.received()
            );
        }
        drop(impostors);
        for master in masters {
            cluster.mrctl(&["chaos", "restart", master]);
        }
        eventually("the cluster works again", || {
            let nodes = cluster.try_mrctl(&["nodes", "--json"]);
            (nodes.code == 0 && nodes.stdout.matches("\"live\"").count() >= 2).then_some(())
        });
        cluster.mrctl(&["fs", "ls", "/"]);
    }
}

#[test]
fn token_for_a_cluster_of_another_account_needs_trust_owner() {
    let Some(cluster) = UnprivilegedCluster::up() else {
        return;
    };
    let at = cluster.folder.path();
    let token = cluster.done(&["token"]);
    let namenode = address(&at.join(".fermata"), "namenode");
    let own = tempfile::tempdir_in(at.parent().unwrap()).unwrap();
    let file = own.path().join("token");
    security::write_private(&file, token.trim().as_bytes()).unwrap();
    change_owner(&[file.clone(), own.path().to_owned()], OTHER_ACCOUNT);
    let list = |trusted: &str| {
        let mut command = as_account(OTHER_ACCOUNT, &binaries().join("mrctl")).unwrap();
        command.args(["--token-file", file.to_str().unwrap(), "--namenode", &namenode, "fs", "ls", "/"]);
        Ran::from(command.env("FERMATA_TRUST_OWNER", trusted).current_dir("/").output().unwrap())
    };
    let refused = list("");
    assert!(
        refused.code == 1 && refused.stderr.contains("FERMATA_TRUST_OWNER=65534"),
        "{}{}",
        refused.stdout,
        refused.stderr
    );
    let ran = list("65534");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
}

/// Returns a script of what a task of the cluster in `folder` tries to access. For each attempt it
/// prints the exit code.
fn intrusions(folder: &Path) -> String {
    let daemons = daemons(folder);
    let found = daemons.iter().find(|daemon| daemon["kind"] == "tasktracker").expect("a tracker");
    let pid = found["pid"].as_u64().unwrap();
    let (secret, mrctl) = (folder.join("secret"), binaries().join("mrctl"));
    let config = folder.join("fermata.toml");
    let mut script = "cat > /dev/null\nid -u | sed 's/^/uid /'\n".to_owned();
    for (name, what) in [
        ("secret", format!("cat {}", secret.display())),
        ("environ", format!("cat /proc/{pid}/environ")),
        ("memory", format!("head -c 1 /proc/{pid}/mem")),
        ("descriptors", format!("ls /proc/{pid}/fd/")),
        ("root", format!("cat /proc/{pid}/root{}", secret.display())),
        ("folders", "ls ../..".to_owned()),
        ("connect", format!("{} --config {} fs ls /", mrctl.display(), config.display())),
    ] {
        let _ = writeln!(script, "{what} > /dev/null 2>&1; echo {name} $?");
    }
    script
}

/// Checks that everything was tried and that nothing worked.
fn check_intrusions(out: &str) {
    for name in ["secret", "environ", "memory", "descriptors", "root", "folders", "connect"] {
        let line = out.lines().find(|line| line.starts_with(&format!("{name} ")));
        let code = line.unwrap_or_else(|| panic!("{name} was not tried: {out}")).trim().rsplit(' ').next();
        assert_ne!(code, Some("0"), "a task had access to: {name}\n{out}");
    }
}

#[test]
fn tasks_of_a_root_cluster_run_as_another_account_and_cannot_read_secrets() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("in"), "x\n").unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    fs::write(cluster.path("try.sh"), intrusions(&cluster.path(".fermata"))).unwrap();
    let job =
        ["streaming", "--mapper", "sh try.sh", "--file", "try.sh", "--input", "/in", "--output", "/out"];
    cluster.succeed(&[&job[..], &["--reduces", "0"]].concat());
    let out = String::from_utf8(cluster.output("/out")).unwrap();
    assert!(!is_root() || !out.lines().any(|line| line.trim() == "uid 0"), "a task ran as root: {out}");
    check_intrusions(&out);
    // If the account cannot start a program, the error contains advice.
    let hidden = tempfile::tempdir().unwrap();
    let program = hidden.path().join("program");
    fs::write(&program, "#!/bin/sh\ncat\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mapper = ["streaming", "--mapper", program.to_str().unwrap(), "--input", "/in", "--output", "/no"];
    let job = cluster.submit(&mapper);
    let why = job["why"].as_str().unwrap_or_default();
    assert!(why.contains("tasktracker.task_reads") && why.contains("account"), "{job}");
}

/// A task has the token of its job in memory. Checks that other programs with the account of the
/// task cannot read it.
#[test]
fn memory_of_a_task_is_closed_to_its_account() {
    let Some(mut peek) = as_account(NOBODY, Path::new("sh")) else { return };
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("in"), "x\n".repeat(20_000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    cluster.detach(&["wordcount", "--input", "/in", "--output", "/out", "--conf", "pace.map=4KiB"]);
    let folder = cluster.path(".fermata").canonicalize().unwrap();
    let pid = eventually("the task of the job runs", || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let works_there = |process: &fs::DirEntry| {
            let work = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            work.starts_with(&folder) && work.ends_with("job_1.m0.0")
        };
        all.into_iter().find(works_there)?.file_name().into_string().ok()
    });
    let ran = peek.args(["-c", &format!("head -c 1 /proc/{pid}/mem; head -c 1 /proc/{pid}/environ")]);
    let ran = ran.output().expect("setpriv starts");
    let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(printed.matches("Permission denied").count(), 2, "{printed}");
    assert!(ran.stdout.is_empty());
}

/// A cluster of an ordinary account, whose tasks have the same account. Stopped when dropped.
struct UnprivilegedCluster {
    folder: tempfile::TempDir,
}

impl UnprivilegedCluster {
    fn up() -> Option<Self> {
        let within = binaries().with_file_name("tmp");
        fs::create_dir_all(&within).unwrap();
        if let Ok(Some(closed)) = daemon::account::blocked_at(binaries(), (NOBODY, NOBODY)) {
            skip("an open path", format_args!("other accounts cannot enter {}", closed.display()));
            return None;
        }
        let folder = tempfile::tempdir_in(within).unwrap();
        if chown(folder.path(), Some(NOBODY), Some(NOBODY)).is_err() {
            skip("root", "only root can start a cluster of another account");
            return None;
        }
        let this = Self { folder };
        let ran = this.mrctl(&["up", "--detach", "--nodes", "1", "--replication", "1"])?;
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        Some(this)
    }

    fn mrctl(&self, args: &[&str]) -> Option<Ran> {
        mrctl_as(NOBODY, self.folder.path(), args)
    }

    fn done(&self, args: &[&str]) -> String {
        let ran = self.mrctl(args).expect("root");
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }
}

impl Drop for UnprivilegedCluster {
    fn drop(&mut self) {
        self.mrctl(&["down"]);
    }
}

#[test]
fn tasks_with_the_account_of_the_cluster_cannot_read_its_secret() {
    let Some(cluster) = UnprivilegedCluster::up() else {
        return;
    };
    let at = cluster.folder.path();
    assert_eq!(fs::metadata(at.join(".fermata")).unwrap().permissions().mode() & 0o777, 0o700);
    let config = fs::read_to_string(at.join(".fermata/fermata.toml")).unwrap();
    if config.contains("confine = \"off\"") {
        return skip("landlock", "the kernel has no Landlock");
    }
    fs::write(at.join("in"), "x\n").unwrap();
    fs::write(at.join("try.sh"), intrusions(&at.join(".fermata"))).unwrap();
    for name in ["in", "try.sh"] {
        chown(at.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    cluster.done(&["fs", "put", "in", "/in"]);
    let job = ["submit", "streaming", "--mapper", "sh try.sh", "--file", "try.sh", "--input", "/in"];
    cluster.done(&[&job[..], &["--output", "/out", "--reduces", "0"]].concat());
    let out = cluster.done(&["fs", "cat", "/out/part-*"]);
    assert!(out.contains(&format!("uid {NOBODY}")), "{out}");
    check_intrusions(&out);
    // Root does not use the folder, because it belongs to another account.
    let mut command = Command::new(binaries().join("mrctl"));
    let ran = Ran::from(command.args(["fs", "ls", "/"]).current_dir(at).output().unwrap());
    assert!(ran.code == 1 && ran.stderr.contains("belongs to nobody"), "{}{}", ran.stdout, ran.stderr);
}

/// Copies the programs to a folder that only its owner can enter, like the home folder of root.
fn closed_programs() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(binaries().with_file_name("tmp")).unwrap();
    for name in ["mrctl", "namenode", "datanode", "jobtracker", "tasktracker", "mrtask"] {
        let (from, to) = (binaries().join(name), folder.path().join(name));
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).unwrap();
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// Returns the folder of the trackers of this cluster if it is outside of the cluster folder.
fn tracker_folder_outside(state: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(state.join("layout.json")).ok()?;
    let layout: Value = serde_json::from_str(&text).ok()?;
    Some(layout["tasks"].as_str()?.into())
}

#[test]
fn cluster_in_a_closed_folder_runs_tasks_in_another_folder() {
    fs::create_dir_all(binaries().with_file_name("tmp")).unwrap();
    let programs = closed_programs();
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let mrctl = |args: &[&str]| {
        let mut command = Command::new(programs.path().join("mrctl"));
        let ran =
            Ran::from(command.args(args).current_dir(home.path()).stdin(Stdio::null()).output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    };
    mrctl(&["up", "--detach", "--nodes", "1", "--replication", "1"]);
    let tasks = tracker_folder_outside(&home.path().join(".fermata"));
    assert_eq!(tasks.is_some(), is_root(), "{tasks:?}");
    // The account of tasks must be able to access the socket for short-circuit reads.
    let within = tasks.iter().flat_map(|tasks| fs::read_dir(tasks).unwrap().flatten());
    let sockets = within.map(|entry| entry.path().join("local.sock")).filter(|path| path.exists());
    let sockets: Vec<PathBuf> = sockets.collect();
    for socket in &sockets {
        let mut connect = as_account(NOBODY, Path::new("/bin/sh")).unwrap();
        let reached = connect.args(["-c", "test -S \"$1\" && test -w \"$1\"", "sh"]).arg(socket).status();
        assert!(reached.unwrap().success(), "{socket:?}");
    }
    assert_eq!(sockets.len(), usize::from(is_root()), "{sockets:?}");
    fs::write(home.path().join("in"), "x\n").unwrap();
    mrctl(&["fs", "put", "in", "/in"]);
    let job = ["submit", "streaming", "--mapper", PRINT_IDS, "--input", "/in", "--output", "/who"];
    mrctl(&[&job[..], &["--reduces", "0"]].concat());
    assert_not_root(&mrctl(&["fs", "cat", "/who/part-*"]));
    mrctl(&["submit", "wordcount", "--input", "/in", "--output", "/counts"]);
    mrctl(&["down", "--purge"]);
    assert!(tasks.is_none_or(|tasks| !tasks.exists()), "tasks' folders are left");
    assert!(!home.path().join(".fermata").exists(), "the folder is left");
    // The demo works too, from a checkout in a closed folder, with temporary files in another
    // closed folder.
    let mut demo = Command::new(programs.path().join("mrctl"));
    demo.arg("demo").current_dir(home.path()).env("TMPDIR", home.path());
    let ran = Ran::from(demo.output().unwrap());
    assert!(ran.code == 0 && ran.stdout.contains("most frequent"), "{}{}", ran.stdout, ran.stderr);
    let left = fs::read_dir(home.path()).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["in"], "left behind");
}

/// Creates a state folder in `home` that names a program. The program creates a file when it is
/// run. Returns all files of the folder.
fn plant_state_folder(home: &Path) -> Vec<PathBuf> {
    let state = home.join(".fermata");
    fs::create_dir_all(&state).unwrap();
    let program = home.join("namenode");
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", home.join("ran").display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = serde_json::json!({
        "name": "namenode", "kind": "namenode", "pid": 1, "started_ticks": 1, "addr": "", "rack": "",
        "dir": home, "log": home.join("log"), "ready_file": home.join("ready"),
        "program": program, "args": ["--no-such-flag"],
    });
    let json = serde_json::json!({ "namenode": "127.0.0.1:9", "jobtracker": "", "daemons": [daemon] });
    fs::write(state.join("cluster.json"), json.to_string()).unwrap();
    fs::write(state.join("layout.json"), r#"{"nodes":1,"racks":1}"#).unwrap();
    fs::write(state.join("fermata.toml"), "[cluster]\nnamenode = \"127.0.0.1:9\"\n").unwrap();
    let files = ["fermata.toml", "cluster.json", "layout.json"].map(|name| state.join(name));
    files.into_iter().chain([state]).collect()
}

/// Changes the owner of files to an account.
fn change_owner(paths: &[PathBuf], to: u32) {
    for path in paths {
        chown(path, Some(to), Some(to)).unwrap();
    }
}

#[test]
fn a_folder_of_another_account_is_refused_and_nothing_in_it_is_run() {
    if !is_root() {
        return skip("root", "only root can make files of another account");
    }
    let home = tempfile::tempdir().unwrap();
    let (marker, deep) = (home.path().join("ran"), home.path().join("a/b"));
    fs::create_dir_all(&deep).unwrap();
    let all = plant_state_folder(home.path());
    let (file, state) = (&all[0], &all[3]);
    change_owner(&all, NOBODY);
    let run = |args: &[&str], config: Option<&Path>| {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(args).current_dir(&deep).stdin(Stdio::null());
        for key in ["FERMATA_NAMENODE", "FERMATA_JOBTRACKER", "FERMATA_CONFIG"] {
            command.env_remove(key);
        }
        if let Some(config) = config {
            command.env("FERMATA_CONFIG", config);
        }
        Ran::from(command.output().unwrap())
    };
    let (dir, path) = (state.to_str().unwrap(), file.to_str().unwrap());
    let refused = |args: &[&str], config: Option<&Path>| {
        let ran = run(args, config);
        let line = format!("{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.code == 1 && ran.stderr.lines().count() == 1, "{line}");
        assert!(
            ran.stderr.contains("belongs to nobody") && ran.stderr.contains("FERMATA_TRUST_OWNER"),
            "{line}"
        );
    };
    for args in [
        &["fs", "ls", "/"][..],
        &["jobs"],
        &["status"],
        &["down"],
        &["chaos", "restart", "namenode"],
        &["chaos", "restart", "namenode", "--dir", dir],
        &["down", "--dir", dir, "--purge"],
        &["up", "--detach", "--dir", dir],
        &["--config", path, "fs", "ls", "/"],
        &["--config", path, "up", "--detach", "--dir", "own"],
        &["cluster", "status", "--cluster", dir],
    ] {
        refused(args, None);
    }
    refused(&["fs", "ls", "/"], Some(file));
    assert!(!marker.exists(), "a program named by the folder was run");
    // The file belongs to us, but others can write it.
    change_owner(&all, 0);
    fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = run(&["fs", "ls", "/"], None);
    assert!(ran.code == 1 && ran.stderr.contains("chmod go-w"), "{}", ran.stderr);
    // Even then the program named in the state file is not run, because daemons are started from
    // the folder of mrctl.
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    run(&["chaos", "restart", "namenode"], None);
    assert!(!marker.exists(), "a program named by a state file was run");
}
