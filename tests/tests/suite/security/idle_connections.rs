//! Too many connections. Unauthenticated connections must not block others, and authenticated
//! connections beyond the limit get the error "busy".

use super::{
    Lab, Validity,
    direct_requests::{block_of, send_request},
};
use fermata_tests::{Cluster, QUICK, Up, may_inspect_daemons};
use proto::dfs::{ReadBlock, bulk_request::Op};
use security::Role;
use std::{
    fs,
    net::TcpStream,
    time::{Duration, Instant},
};

/// Number of idle connections to each master. Below the limits of open files of the daemons and of
/// the test.
const IDLE_CONNECTIONS: usize = 2500;
/// Maximum number of open files of a daemon that has the maximum number of unauthenticated
/// connections. Each connection uses two files.
const OPEN_FILES_MAX: usize = 2 * 256 + 200;
/// Maximum time until a client is served meanwhile, on a busy machine.
const SERVED_WITHIN: Duration = Duration::from_mins(1);
/// A client that is not served at once waits.
const PATIENT: &str = "[client]\nconnect_timeout = \"1m\"\n";

/// Returns the address of a daemon, and the number of its open files.
fn open_files(cluster: &Cluster, daemon: &str) -> (String, usize) {
    let home = fs::canonicalize(cluster.path(".")).unwrap().display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ours = all.filter(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let program = line.split(' ').next().unwrap_or_default();
        program.ends_with(&format!("/{daemon}")) && line.contains(&home)
    });
    let found: Vec<_> = ours.collect();
    assert_eq!(found.len(), 1, "{daemon}");
    let text = fs::read_to_string(cluster.path(".fermata/fermata.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    let addr = table["cluster"][daemon].as_str().unwrap().to_owned();
    (addr, fs::read_dir(found[0].path().join("fd")).unwrap().count())
}

/// Opens thousands of idle connections. Checks that clients are still served, and that daemons keep
/// only some of the connections.
fn check_idle_connections(cluster: &Cluster) {
    let mut idle = Vec::new();
    for daemon in ["namenode", "jobtracker"] {
        let (addr, _) = open_files(cluster, daemon);
        idle.extend((0..IDLE_CONNECTIONS).map(|_| TcpStream::connect(&addr).unwrap()));
    }
    let since = Instant::now();
    cluster.mrctl(&["fs", "ls", "/"]);
    cluster.mrctl(&["jobs"]);
    assert!(since.elapsed() < SERVED_WITHIN, "{:?}", since.elapsed());
    for daemon in ["namenode", "jobtracker"] {
        let (_, open) = open_files(cluster, daemon);
        assert!(open < OPEN_FILES_MAX, "{daemon} has {open} files open");
    }
    drop(idle);
    // The connections of nodes must not have been closed.
    let nodes = cluster.json(&["nodes"]);
    assert!(nodes.as_array().unwrap().iter().all(|node| node["tracker"]["state"] == "live"), "{nodes}");
}

#[test]
fn idle_connections_do_not_block_clients() {
    if !may_inspect_daemons() {
        return;
    }
    let settings = [QUICK, PATIENT].concat();
    check_idle_connections(&Cluster::up(Up { nodes: 2, settings: &settings, ..Up::default() }));
}

#[test]
fn idle_connections_do_not_block_clients_of_a_closed_cluster() {
    if !may_inspect_daemons() {
        return;
    }
    check_idle_connections(&Lab::up(true, PATIENT).cluster);
}

/// Uses all transfers that a DataNode permits at a time. Checks that the next client gets the error
/// "busy", and that clients are served again later.
fn check_busy_message(tls: bool) {
    let lab = Lab::up(tls, "[datanode]\ntransfers_max = 2\n");
    let block = block_of(&lab, &[]);
    let (id, length, nonce, node) = (block.block_id, block.length, block.nonce, &block.nodes[0]);
    let read = || Op::Read(ReadBlock { block_id: id, offset: 0, length, block_length: length, nonce });
    let boss = lab.credentials(Role::Admin, "boss", Validity::Valid);
    let connect = || {
        let socket = TcpStream::connect(&node.data_addr).unwrap();
        boss.connector(Role::DataNode).secure(socket, Duration::from_secs(10)).unwrap()
    };
    // Other clients may still have a connection, so this is repeated until both slots are ours.
    let mut held = Vec::new();
    let deadline = Instant::now() + Duration::from_mins(1);
    while held.len() < 2 {
        assert!(Instant::now() < deadline, "the slots do not become free");
        let stream = connect();
        if send_request(&stream, read(), &block.token).is_none() {
            held.push(stream);
        }
    }
    for _ in 0..20 {
        assert_eq!(send_request(&connect(), read(), &block.token).as_deref(), Some("busy"));
    }
    drop(held);
    lab.cluster.mrctl(&["fs", "cat", "/in"]);
}

#[test]
fn reader_beyond_the_limit_gets_the_error_busy() {
    check_busy_message(false);
}

#[test]
fn reader_beyond_the_limit_gets_the_error_busy_over_tls() {
    check_busy_message(true);
}
