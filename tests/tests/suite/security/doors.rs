//! The servers' own doors, with no `mrctl` before them that would have refused: names that lead out, and blocks without
//! the right token.

use super::{
    Good, Lab,
    gate::{Caller, set, uuid_bytes},
    paths::TRAVERSALS,
};
use daemon::config::Config;
use dfs::bulk::{FrameError, FrameKind, encode_frame, read_frame};
use prost::bytes::BytesMut;
use proto::{
    dfs::{self as fs, bulk_request::Op},
    mr,
};
use security::{BlockKey, Guard, Role};
use std::{
    collections::HashMap,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
};
use tonic::Code;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Everything that takes a path or an id, with this one.
async fn knock(caller: &Caller, name: &str) -> Vec<(&'static str, Code)> {
    let (request_id, path) = (uuid_bytes(), name.to_owned());
    let program = |kind| Some(mr::Program { kind: Some(kind), files: vec![] });
    let wordcount = || mr::program::Kind::Builtin("wordcount".into());
    let submit = || mr::SubmitRequest {
        request_id: uuid_bytes(),
        program: program(wordcount()),
        inputs: vec!["/in".into()],
        output: "/o".into(),
        ..Default::default()
    };
    let mut codes = Vec::new();
    macro_rules! call {
        ($service:literal, $method:literal, $message:expr) => {
            codes.push(($method, caller.call(concat!("/fermata.", $service, "/", $method), $message).await));
        };
    }
    let holder = || "h".to_owned();
    call!(
        "dfs.v1.NameNode",
        "Create",
        fs::CreateRequest {
            request_id: request_id.clone(),
            path: path.clone(),
            holder: holder(),
            make_parents: true,
            on_abandon: fs::OnAbandon::Close.into(),
            ..Default::default()
        }
    );
    call!(
        "dfs.v1.NameNode",
        "Append",
        fs::AppendRequest { request_id, path: path.clone(), holder: holder() }
    );
    call!(
        "dfs.v1.NameNode",
        "Mkdir",
        fs::MkdirRequest { request_id: uuid_bytes(), path: path.clone(), parents: true, mode: 0 }
    );
    call!("dfs.v1.NameNode", "Stat", fs::StatRequest { path: path.clone() });
    call!("dfs.v1.NameNode", "List", fs::ListRequest { path: path.clone(), ..Default::default() });
    call!(
        "dfs.v1.NameNode",
        "Locate",
        fs::LocateRequest { path: path.clone(), length: 1, ..Default::default() }
    );
    call!("dfs.v1.NameNode", "Usage", fs::UsageRequest { path: path.clone() });
    call!(
        "dfs.v1.NameNode",
        "Rename",
        fs::RenameRequest {
            request_id: uuid_bytes(),
            from: "/in".into(),
            to: path.clone(),
            overwrite: false
        }
    );
    call!(
        "dfs.v1.NameNode",
        "Rename",
        fs::RenameRequest { request_id: uuid_bytes(), from: path.clone(), to: "/x".into(), overwrite: false }
    );
    call!(
        "dfs.v1.NameNode",
        "SetAttributes",
        fs::SetAttributesRequest {
            request_id: uuid_bytes(),
            path: path.clone(),
            mode: Some(0o777),
            ..Default::default()
        }
    );
    call!(
        "dfs.v1.NameNode",
        "Concat",
        fs::ConcatRequest { request_id: uuid_bytes(), target: "/in".into(), sources: vec![path.clone()] }
    );
    call!(
        "dfs.v1.NameNode",
        "Concat",
        fs::ConcatRequest { request_id: uuid_bytes(), target: path.clone(), sources: vec!["/in".into()] }
    );
    call!("mr.v1.JobTracker", "Submit", mr::SubmitRequest { inputs: vec![path.clone()], ..submit() });
    call!("mr.v1.JobTracker", "Submit", mr::SubmitRequest { output: path.clone(), ..submit() });
    call!(
        "mr.v1.JobTracker",
        "Submit",
        mr::SubmitRequest { program: program(mr::program::Kind::Executable(path.clone())), ..submit() }
    );
    let with_file = mr::Program { kind: Some(wordcount()), files: vec![path.clone()] };
    call!("mr.v1.JobTracker", "Submit", mr::SubmitRequest { program: Some(with_file), ..submit() });
    let staged = HashMap::from([("staging".to_owned(), path.clone())]);
    call!("mr.v1.JobTracker", "Submit", mr::SubmitRequest { conf: staged, ..submit() });
    call!("mr.v1.JobTracker", "Job", mr::JobRequest { job: path.clone() });
    call!("mr.v1.JobTracker", "Tasks", mr::TasksRequest { job: path.clone(), ..Default::default() });
    call!("mr.v1.JobTracker", "Tasks", mr::TasksRequest { job: "job_1".into(), after: path.clone() });
    call!("mr.v1.JobTracker", "Why", mr::WhyRequest { of: path.clone() });
    call!("mr.v1.JobTracker", "Kill", mr::KillRequest { request_id: uuid_bytes(), job: path.clone() });
    call!(
        "mr.v1.JobTracker",
        "Preempt",
        mr::PreemptRequest { request_id: uuid_bytes(), attempt: path.clone(), how: mr::Recall::Kill.into() }
    );
    call!(
        "mr.v1.JobTracker",
        "Resume",
        mr::ResumeRequest { request_id: uuid_bytes(), task: path.clone(), on: String::new() }
    );
    call!(
        "mr.v1.JobTracker",
        "Resume",
        mr::ResumeRequest { request_id: uuid_bytes(), task: "job_1.r0".into(), on: path.clone() }
    );
    call!(
        "mr.v1.JobTracker",
        "Drain",
        mr::DrainTrackerRequest { request_id: uuid_bytes(), node: path.clone(), ..Default::default() }
    );
    call!("mr.v1.TrackerLogs", "Log", mr::LogRequest { attempt: path, stderr: true, tail_bytes: 0 });
    codes
}

#[test]
fn no_door_takes_a_name_that_leads_out() {
    let lab = Lab::up(false, "");
    let local = lab.cluster.path("in");
    std::fs::write(&local, "x\n").unwrap();
    lab.cluster.mrctl(&["fs", "put", local.to_str().unwrap(), "/in"]);
    let logs = runtime().block_on(set(&lab)).logs;
    let before = lab.cluster.mrctl(&["fs", "ls", "-R", "/"]);
    runtime().block_on(async {
        let caller = Caller::new(&lab, &logs, lab.credentials(Role::Admin, "boss", Good::Yes));
        for name in TRAVERSALS {
            for (method, code) in knock(&caller, name).await {
                let refused = !matches!(code, Code::Ok | Code::Unavailable | Code::Unknown | Code::Internal);
                assert!(refused, "{method} takes {name:?}: {code:?}");
            }
        }
    });
    assert_eq!(lab.cluster.mrctl(&["fs", "ls", "-R", "/"]), before, "nothing has changed");
}

/// The block key of a cluster.
fn key_of(secret: &Path) -> BlockKey {
    let mut config = Config::default();
    config.security.secret = secret.to_owned();
    Guard::new(&config, Role::NameNode).unwrap().blocks()
}

/// The kind of the refusal; None if it was let in.
fn ask(mut stream: impl Read + Write, op: Op, token: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    let request = fs::BulkRequest { op: Some(op), token: token.to_vec() };
    encode_frame(FrameKind::Request, &request, 0, &mut out);
    stream.write_all(&out).unwrap();
    match read_frame(&mut stream, BytesMut::new()).unwrap().expect::<()>(FrameKind::ReadReply) {
        Err(FrameError::Refused { kind, .. }) => Some(kind),
        _ => None,
    }
}

#[test]
fn a_block_opens_to_its_own_token_alone() {
    let lab = Lab::up(false, "");
    let local = lab.cluster.path("in");
    std::fs::write(&local, "words\n".repeat(1000)).unwrap();
    lab.cluster.mrctl(&["fs", "put", local.to_str().unwrap(), "/in"]);
    let block = runtime().block_on(async {
        let boss = Caller::new(&lab, "127.0.0.1:1", lab.credentials(Role::Admin, "boss", Good::Yes));
        let about = fs::LocateRequest { path: "/in".into(), length: 6000, ..Default::default() };
        let found: fs::LocateReply = boss.ask("/fermata.dfs.v1.NameNode/Locate", about).await.unwrap();
        found.blocks[0].clone()
    });
    let (ours, theirs) = (key_of(&lab.path("ours/secret")), key_of(&lab.path("theirs/secret")));
    let (id, length, node) = (block.block_id, block.length, &block.nodes[0]);
    let read = || Op::Read(fs::ReadBlock { block_id: id, offset: 0, length, block_length: length });
    let open = || {
        let node_uuid = node.uuid.clone();
        Op::OpenLocal(fs::OpenLocal { block_id: id, block_length: length, node_uuid })
    };
    let write = |block_id, expected_length| {
        Op::Write(fs::WriteBlock { block_id, resume_at: 0, mirrors: vec![], expected_length })
    };
    let bulk = || TcpStream::connect(&node.data_addr).unwrap();
    let local = || UnixStream::connect(&node.local_socket).unwrap();
    assert_eq!(ask(bulk(), read(), &block.token), None);
    assert_eq!(ask(local(), open(), &block.token), None);
    let wrong = [
        Vec::new(),
        block.token[1..].to_vec(),
        theirs.to_read(id).to_bytes(),
        ours.to_read(id + 1).to_bytes(),
        ours.to_write(id, length).to_bytes(),
    ];
    for token in wrong {
        assert_eq!(ask(bulk(), read(), &token).as_deref(), Some("denied"), "{token:?}");
        assert_eq!(ask(local(), open(), &token).as_deref(), Some("denied"), "{token:?}");
    }
    let new = id + 1000;
    assert_eq!(ask(bulk(), write(id, length), &block.token).as_deref(), Some("denied"));
    assert_eq!(ask(bulk(), write(new, 2000), &ours.to_read(new).to_bytes()).as_deref(), Some("denied"));
    assert_eq!(
        ask(bulk(), write(new, 2000), &theirs.to_write(new, 2000).to_bytes()).as_deref(),
        Some("denied")
    );
    // No more than the NameNode meant.
    assert_eq!(
        ask(bulk(), write(new, 2001), &ours.to_write(new, 2000).to_bytes()).as_deref(),
        Some("denied")
    );
}
