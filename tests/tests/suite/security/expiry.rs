//! Credentials that are no longer valid: of a task whose job has ended, of a revoked user, and of a
//! writer whose block is closed.

use super::{
    Lab, Validity,
    direct_requests::{block_of, key_of, locate, runtime},
    gate::Caller,
};
use dfs_client::{
    bulk::{FrameKind, encode_frame, read_frame},
    checksum::{sums_of, to_bytes},
};
use fermata_tests::{binaries, eventually};
use prost::bytes::BytesMut;
use proto::dfs::{self as fs, bulk_request::Op};
use security::{Role, job_name_of};
use std::{
    io::Write,
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};
use tonic::Code;

const STAT: &str = "/fermata.dfs.v1.NameNode/Stat";

fn create_home(lab: &Lab, user: &str) {
    let folder = format!("/home/{user}");
    lab.cluster.mrctl(&["fs", "mkdir", "-p", &folder]);
    lab.cluster.mrctl(&["fs", "chown", user, &folder]);
}

#[test]
fn token_of_a_task_ends_with_its_job() {
    let lab = Lab::up(false, "");
    create_home(&lab, "ann");
    let local = lab.cluster.path("text");
    std::fs::write(&local, "to be or not to be\n".repeat(1000)).unwrap();
    lab.done("ann", &["fs", "put", local.to_str().unwrap(), "/home/ann/text"]);
    let submit = |output: &str, more: &[&str]| {
        let args = ["submit", "wordcount", "--input", "/home/ann/text", "--output", output, "--json"];
        let printed = lab.done("ann", &[&args[..], more].concat());
        let job: serde_json::Value = serde_json::from_str(&printed).unwrap();
        job["job"].as_str().unwrap().rsplit('_').next().unwrap().parse::<u64>().unwrap()
    };
    let done = submit("/home/ann/out", &[]);
    let slow = submit("/home/ann/slow", &["--conf", "pace.map=100", "--detach"]);
    // In the tokens of tasks, the name of a job starts with `jobtracker-` and the cluster ID, which
    // is in the VERSION file of the JobTracker.
    let version = std::fs::read_to_string(lab.cluster.path(".fermata/data/jobtracker/VERSION")).unwrap();
    let version: toml::Table = version.parse().unwrap();
    let scope = format!("jobtracker-{}", version["cluster_id"].as_str().unwrap());
    let stat = |job: u64| {
        runtime().block_on(async {
            let task = Caller::new(&lab, "127.0.0.1:1", lab.task("ann", &job_name_of(&scope, job)));
            task.call(
                STAT,
                fs::StatRequest { path: "/home/ann/text".into(), for_create: false, entries: 0, access: 0 },
            )
            .await
        })
    };
    let refused = |job: u64| {
        eventually("the token of the task is refused", || (stat(job) == Code::Unauthenticated).then_some(()));
    };
    refused(done);
    assert_eq!(stat(slow), Code::Ok, "it runs");
    assert_eq!(stat(slow + 1), Code::Ok, "a job that the NameNode does not know may have just started");
    lab.done("ann", &["kill", &format!("job_{slow}")]);
    refused(slow);
    // The JobTracker sends the list of active jobs to a restarted NameNode again.
    lab.cluster.mrctl(&["chaos", "kill", "namenode"]);
    lab.cluster.mrctl(&["chaos", "restart", "namenode"]);
    refused(done);
    assert_eq!(stat(slow + 1), Code::Ok);
}

fn revoke(lab: &Lab, args: &[&str]) {
    let mut command = Command::new(binaries().join("mrctl"));
    command.args(["cluster", "revoke"]).args(args).arg("--cluster").arg(lab.path("ours"));
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Revokes a user, restores the user, and revokes one of two credentials. Checks what each
/// credential may do.
fn check_revoked_credentials_are_rejected(tls: bool) {
    let lab = Lab::up(tls, "");
    create_home(&lab, "ann");
    create_home(&lab, "bob");
    let (ls, jobs) = (["fs", "ls", "/home"], ["jobs"]);
    for user in ["ann", "bob"] {
        lab.done(user, &ls);
        lab.done(user, &jobs);
    }
    let is_out = |user: &str| {
        eventually("both masters report that the user is revoked", || {
            let printed = [lab.run(user, &ls), lab.run(user, &jobs)];
            printed.iter().all(|ran| ran.code != 0 && ran.stderr.contains("revoked")).then_some(())
        });
    };
    let is_in = |user: &str| {
        eventually("both masters accept the user", || {
            [lab.run(user, &ls), lab.run(user, &jobs)].iter().all(|ran| ran.code == 0).then_some(())
        });
    };
    revoke(&lab, &["ann"]);
    is_out("ann");
    lab.done("bob", &ls);
    // A revoked user gets no new credentials until the user is restored.
    let mut make = Command::new(binaries().join("mrctl"));
    make.args(["cluster", "user", "ann", "--cluster"])
        .arg(lab.path("ours"))
        .arg("--out")
        .arg(lab.path("ann2"));
    let ran = make.output().unwrap();
    assert!(!ran.status.success() && String::from_utf8_lossy(&ran.stderr).contains("ann is revoked"));
    revoke(&lab, &["ann", "--undo"]);
    is_in("ann");
    assert!(make.status().unwrap().success());
    let kind = if tls { "pem" } else { "token" };
    let old = lab.path(&format!("of-ann/ann.{kind}"));
    revoke(&lab, &["--credential", old.to_str().unwrap()]);
    is_out("ann");
    if !tls {
        // A revoked token in another encoding must be refused too. (For certificates, see
        // `certificate_with_another_signature_encoding_is_revoked_too`.)
        let text = std::fs::read_to_string(&old).unwrap();
        let (words, signature) = text.trim().rsplit_once(':').unwrap();
        std::fs::write(&old, format!("{words}:{}", signature.to_uppercase())).unwrap();
        for args in [&ls[..], &jobs] {
            assert_ne!(lab.run("ann", args).code, 0, "a revoked token in capitals");
        }
    }
    std::fs::copy(lab.path(&format!("ann2/ann.{kind}")), &old).unwrap();
    is_in("ann");
}

#[test]
fn revoked_certificate_is_rejected() {
    check_revoked_credentials_are_rejected(true);
}

#[test]
fn revoked_token_is_rejected() {
    check_revoked_credentials_are_rejected(false);
}

/// Writes a whole block to a DataNode like the writer of the block. Returns the kind of the
/// refusal; `None` if the block was accepted.
fn write_block(addr: &str, (block_id, nonce): (u64, u64), token: Vec<u8>, bytes: &[u8]) -> Option<String> {
    let mut stream = TcpStream::connect(addr).unwrap();
    let length = bytes.len() as u64;
    let op =
        Op::Write(fs::WriteBlock { block_id, resume_at: 0, mirrors: vec![], expected_length: length, nonce });
    let mut out = Vec::new();
    encode_frame(FrameKind::Request, &fs::BulkRequest { op: Some(op), token }, 0, &mut out);
    let packet = fs::Packet { offset: 0, last: true, checksums: to_bytes(&sums_of(bytes)) };
    encode_frame(FrameKind::Packet, &packet, bytes.len(), &mut out);
    out.extend_from_slice(bytes);
    stream.write_all(&out).unwrap();
    loop {
        let frame = read_frame(&mut stream, BytesMut::new()).unwrap();
        match frame.expect::<fs::WriteStatus>(FrameKind::Status) {
            Ok(status) if status.done => return None,
            Ok(_) => {}
            Err(dfs_client::bulk::FrameError::Refused { kind, .. }) => return Some(kind),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_closed_block_is_not_written_again() {
    let lab = Lab::up(false, "");
    let block = block_of(&lab, &["--replication", "1"]);
    let (id, length, nonce) = (block.block_id, block.length, block.nonce);
    // The writer of the block still has this token.
    let token = key_of(&lab.path("ours/secret")).write_token(id, nonce, length).to_bytes();
    let report: fs::ReportReply = runtime().block_on(async {
        let boss = Caller::new(&lab, "127.0.0.1:1", lab.credentials(Role::Admin, "boss", Validity::Valid));
        boss.ask("/fermata.dfs.v1.NameNode/Report", fs::ReportRequest::default()).await.unwrap()
    });
    let nodes = report.nodes.into_iter().filter_map(|node| node.address);
    let other = nodes.map(|node| node.data_addr).find(|addr| *addr != block.nodes[0].data_addr).unwrap();
    let bytes = vec![b'x'; length as usize];
    assert_eq!(write_block(&other, (id, nonce), token, &bytes).as_deref(), Some("denied"));
    assert_eq!(locate(&lab).nodes.len(), 1, "there is no other replica");
    // Copies that the NameNode orders are still accepted.
    lab.cluster.mrctl(&["fs", "setrep", "2", "/in"]);
    eventually("the block is copied", || (locate(&lab).nodes.len() == 2).then_some(()));
    assert!(lab.cluster.mrctl(&["fs", "cat", "/in"]).starts_with("words\n"));
}

/// In a cluster that requires authentication, DataNodes ask the NameNode whether received data may
/// become a replica. While the NameNode is down the writer repeats its request, and nothing fails.
#[test]
fn block_finishes_while_the_namenode_is_down() {
    let lab = Lab::up(false, "[datanode]\ntransfer_timeout = \"2s\"\n");
    let mut put = lab.cluster.command(&["fs", "put", "--json", "-", "/slow"]);
    let mut put = put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = put.stdin.take().unwrap();
    // Writes half a block.
    text.write_all(&b"to be or not to be\n".repeat(30_000)).unwrap();
    eventually("the block is under way on both nodes", || {
        ["node1", "node2"].iter().all(|node| !lab.cluster.partial_blocks_on(node).is_empty()).then_some(())
    });
    lab.cluster.mrctl(&["chaos", "stop", "namenode"]);
    drop(text);
    // Waits twice as long as the timeouts of nodes and writers.
    std::thread::sleep(Duration::from_secs(4));
    assert!(put.try_wait().unwrap().is_none(), "the NameNode has not confirmed it yet");
    lab.cluster.mrctl(&["chaos", "cont", "namenode"]);
    let ran = put.wait_with_output().unwrap();
    let (message, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{message}{errors}");
    // One replica may have been dropped just before the NameNode came back.
    lab.cluster.mrctl(&["fs", "fsck", "/slow", "--wait", "5m"]);
}
