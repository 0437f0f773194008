//! Invalid input gives a one-line error with a cause and advice, a non-zero exit code, and no
//! partial change.

use fermata_tests::{Cluster, Up, binaries};
use proto::dfs::{self as pb, block_reports_client::BlockReportsClient, name_node_client::NameNodeClient};
use std::{fs, process::Command};
use tonic::{Code, transport::Channel};

fn tiny() -> Cluster {
    Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() })
}

/// Starts a cluster for callers without credentials.
fn tiny_open() -> Cluster {
    Cluster::up(Up { nodes: 1, replication: 1, open: true, ..Up::default() })
}

#[test]
fn invalid_paths_and_operations_are_rejected() {
    let cluster = tiny();
    fs::write(cluster.path("f"), "data").unwrap();
    cluster.mrctl(&["fs", "mkdir", "-p", "/dir/sub"]);
    cluster.mrctl(&["fs", "put", "f", "/file"]);
    let long = format!("/{}", "n".repeat(256));
    // Exit code 2 means that the command is invalid in any state of the cluster, exit code 1 that
    // it could be valid in another state.
    let cases: [(i32, &[&str], &[&str]); 33] = [
        (2, &["fs", "ls", "relative"], &["relative"]),
        (2, &["fs", "ls", "/a/../b"], &[".."]),
        (2, &["fs", "mkdir", &long], &["256", "255"]),
        (1, &["fs", "ls", "/nowhere"], &["/nowhere"]),
        (1, &["fs", "cat", "/nowhere"], &["/nowhere"]),
        (1, &["fs", "cat", "/dir"], &["/dir", "folder"]),
        (1, &["fs", "rm", "/nowhere*"], &["/nowhere*"]),
        (1, &["fs", "rm", "/dir"], &["/dir", "-r"]),
        (2, &["fs", "rm", "-r", "/"], &["/"]),
        (2, &["fs", "mv", "/dir", "/dir/sub/x"], &["/dir"]),
        (2, &["fs", "mv", "/dir", "/dir/sub"], &["/dir/sub", "inside"]),
        (2, &["fs", "mv", "/file", "/file"], &["/file", "the same"]),
        (1, &["fs", "mv", "/nowhere", "/x"], &["/nowhere"]),
        (1, &["fs", "mkdir", "/file/x"], &["/file"]),
        (1, &["fs", "mkdir", "/no/parent"], &["/no", "-p"]),
        (1, &["fs", "put", "f", "/file"], &["/file", "--force"]),
        (2, &["fs", "put", "missing", "/x"], &["missing"]),
        (2, &["fs", "put", ".", "/x"], &["-r"]),
        (2, &["fs", "put", "--replication", "1000", "f", "/x"], &["1000"]),
        (2, &["fs", "put", "--block-size", "1", "f", "/x"], &["block size"]),
        (2, &["fs", "setrep", "0", "/file"], &["N 0: ", "from 1 to the number of DataNodes"]),
        (2, &["fs", "setrep", "-1", "/file"], &["N -1: ", "from 1 to the number of DataNodes"]),
        (2, &["fs", "quota", "/dir", "--files", "-1"], &["--files", "\"-1\" is not a whole number, or none"]),
        (2, &["fs", "quota", "/dir", "--space", "-1"], &["--space", "\"-1\" is not a size", "or none"]),
        (2, &["fs", "get", "/file", "f"], &["f exists", "--force"]),
        (2, &["fs", "get", "--json", "/file", "-"], &["--json", "standard output"]),
        (1, &["fs", "quota", "/file"], &["/file is a file"]),
        (2, &["fs", "quota", "/dir", "--files", "0"], &["--files 0"]),
        (1, &["fs", "fsck", "/nowhere*"], &["/nowhere*"]),
        (2, &["fs", "concat", "/file", "/file"], &["/file"]),
        (1, &["fs", "ls", "/proc", "/sys"], &["2 paths", "quote it"]),
        (1, &["drain", "node9"], &["node9"]),
        (1, &["chaos", "kill", "node9"], &["node9", "namenode"]),
    ];
    for (code, args, words) in cases {
        let line = cluster.refused(code, args);
        assert!(words.iter().all(|word| line.contains(word)), "mrctl {args:?}: {line}");
        assert!(!line.contains("panicked"), "mrctl {args:?}: {line}");
    }
    assert_eq!(cluster.mrctl(&["fs", "cat", "/file"]), "data");
    let left = cluster.json(&["fs", "ls", "/"]);
    // The list also contains /tmp and /user, which always exist.
    assert_eq!(left.as_array().unwrap().len(), 4, "a refused command has changed something: {left}");
}

#[test]
fn usage_errors_exit_with_2() {
    let cluster = tiny();
    for args in [
        &["fs", "put", "--block-size", "64 parrots", "f", "/x"][..],
        &["fs", "--no-such-flag"],
        &["fs", "no-such-command"],
        &["up", "--nodes", "0"],
        &["up", "--nodes", "-1"],
        &["up", "--namenode-port", "70000"],
    ] {
        let ran = cluster.try_mrctl(args);
        assert_eq!(ran.code, 2, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn unreachable_namenode_is_reported_in_time() {
    let cluster = tiny();
    let start = std::time::Instant::now();
    let line = cluster.refused(1, &["--namenode", "127.0.0.1:9", "fs", "ls", "/"]);
    assert!(line.contains("127.0.0.1:9"), "{line}");
    assert!(start.elapsed().as_secs() < 20, "took {:?}", start.elapsed());
}

fn daemon(name: &str, args: &[&str]) -> (i32, String) {
    let output = Command::new(binaries().join(name)).args(args).output().expect("a daemon starts");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn daemons_refuse_bad_configuration_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("fermata.toml");
    for name in ["namenode", "datanode", "jobtracker", "tasktracker"] {
        let run = |text: &str, args: &[&str]| {
            fs::write(&config, text).unwrap();
            daemon(name, &[&["--config", config.to_str().unwrap()], args].concat())
        };
        let (code, line) = run("[namenode]\nlissten = \"x\"\n", &[]);
        assert!(code == 2 && line.contains("fermata.toml:2") && line.contains("lissten"), "{name}: {line}");
        let (code, line) = run("[namenode\n", &[]);
        assert!(code == 2 && line.contains("fermata.toml:1"), "{name}: {line}");
        let (code, line) = run("", &["--listen", "0.0.0.0:0"]);
        assert!(code == 1 && line.contains("--insecure"), "{name}: {line}");
        // A daemon that is started without authentication warns about it once. It ends because its
        // folder cannot be created.
        let (code, log) = run("", &["--listen", "0.0.0.0:0", "--insecure", "--dir", "/dev/null/x"]);
        let warned = |line: &&str| line.contains(" WARN ") && line.contains("callers are not authenticated");
        assert!(code == 1 && log.lines().filter(warned).count() == 1, "{name}: {log}");
        assert!(log.contains("security.secret"), "{name}: {log}");
        let (code, line) = run("", &["--listen", "127.0.0.1:70000"]);
        assert!(code == 2 && line.contains("70000"), "{name}: {line}");
        let (code, _) = daemon(name, &["--no-such-flag"]);
        assert_eq!(code, 2);
        let (code, line) = daemon(name, &["--config", "/no/such/file"]);
        assert!(code == 2 && line.contains("/no/such/file"), "{name}: {line}");
    }
}

#[test]
fn second_daemon_on_a_data_folder_is_refused() {
    let cluster = tiny();
    let state = cluster.path(".fermata/data/namenode");
    let (code, line) = daemon("namenode", &["--listen", "127.0.0.1:0", "--dir", state.to_str().unwrap()]);
    assert!(code == 1 && line.contains("in use by namenode"), "{line}");
}

fn address(cluster: &Cluster) -> String {
    let text = fs::read_to_string(cluster.path(".fermata/fermata.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    format!("http://{}", table["cluster"]["namenode"].as_str().unwrap())
}

async fn namenode(cluster: &Cluster) -> NameNodeClient<Channel> {
    NameNodeClient::connect(address(cluster)).await.unwrap()
}

/// Registers a DataNode of another version. Checks that the refusal contains both versions and both
/// protocols.
async fn check_datanode_of_another_version_is_refused(cluster: &Cluster) {
    let mut client = BlockReportsClient::connect(address(cluster)).await.unwrap();
    let address = pb::DataNodeAddress { node: "old".into(), ..Default::default() };
    let register = pb::RegisterRequest {
        address: Some(address),
        version: "0.0.1".into(),
        protocol: 99,
        ..Default::default()
    };
    let status = client.register(register).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let ours = format!("version {} speaks {}", env!("CARGO_PKG_VERSION"), proto::DATANODE_PROTOCOL);
    let words = ["version 0.0.1 speaks protocol 99", &ours];
    assert!(words.iter().all(|word| status.message().contains(word)), "{status}");
}

#[tokio::test]
async fn malformed_requests_are_refused_with_a_matching_code() {
    let cluster = tokio::task::spawn_blocking(tiny_open).await.unwrap();
    let mut client = namenode(&cluster).await;
    check_datanode_of_another_version_is_refused(&cluster).await;
    let id = vec![1; 16];

    let status =
        client.mkdir(pb::MkdirRequest { path: "/x".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("request_id"), "{status}");

    let status = client.create(pb::CreateRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");

    let create = pb::CreateRequest {
        request_id: id.clone(),
        path: "/f".into(),
        holder: "h".into(),
        mode: 0o77777,
        on_abandon: pb::OnAbandon::Close.into(),
        ..Default::default()
    };
    let status = client.create(create.clone()).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("77777"), "{status}");
    // The value is missing, or it is one that only newer clients know.
    for on_abandon in [0, 77] {
        let create = pb::CreateRequest { mode: 0o644, on_abandon, ..create.clone() };
        let status = client.create(create).await.unwrap_err();
        assert!(
            status.code() == Code::InvalidArgument && status.message().contains("on_abandon"),
            "{status}"
        );
    }

    let close = pb::CloseRequest { request_id: id, file_id: 999, holder: "h".into(), ..Default::default() };
    let status = client.close(close).await.unwrap_err();
    assert!(matches!(status.code(), Code::NotFound | Code::FailedPrecondition), "{status}");

    let status = client
        .stat(pb::StatRequest { path: "/../etc".into(), for_create: false, entries: 0, access: 0 })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");

    let huge = pb::StatRequest { path: "x".repeat(17 << 20), for_create: false, entries: 0, access: 0 };
    let status = client.stat(huge).await.unwrap_err();
    assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status}");
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}

#[tokio::test]
async fn a_repeated_request_is_applied_once() {
    let cluster = tokio::task::spawn_blocking(tiny_open).await.unwrap();
    let mut client = namenode(&cluster).await;
    let mkdir = pb::MkdirRequest { request_id: vec![7; 16], path: "/once".into(), ..Default::default() };
    client.mkdir(mkdir.clone()).await.unwrap();
    client.mkdir(mkdir.clone()).await.unwrap();
    let other = pb::MkdirRequest { request_id: vec![8; 16], ..mkdir };
    assert_eq!(client.mkdir(other).await.unwrap_err().code(), Code::AlreadyExists);
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
