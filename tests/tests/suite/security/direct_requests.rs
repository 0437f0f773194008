//! Direct requests to the servers, without the checks of `mrctl`: path traversal, and blocks
//! without a valid token.

use super::{
    Lab, Validity,
    gate::{Caller, create_protected_items, uuid_bytes},
    paths::TRAVERSALS,
};
use daemon::config::Config;
use dfs_client::bulk::{FrameError, FrameKind, encode_frame, read_frame};
use prost::bytes::BytesMut;
use proto::{
    dfs::{self as fs, bulk_request::Op},
    mr,
};
use security::{BlockKey, Guard, Role};
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
};
use tonic::Code;

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

type Codes = Vec<(&'static str, Code)>;

/// Makes a call, and adds its result to a list.
macro_rules! call {
    ($codes:ident, $caller:ident, $method:literal, $message:expr) => {
        $codes.push(($method, $caller.call(concat!("/fermata.", $method), $message).await));
    };
}

/// Calls every NameNode method that takes a path, with this path.
async fn request_files(caller: &Caller, name: &str) -> Codes {
    let (request_id, path) = (uuid_bytes, || name.to_owned());
    let put = fs::CreateRequest {
        request_id: request_id(),
        path: path(),
        holder: "h".into(),
        make_parents: true,
        on_abandon: fs::OnAbandon::Close.into(),
        ..Default::default()
    };
    let append = fs::AppendRequest { request_id: request_id(), path: path(), holder: "h".into() };
    let mkdir = fs::MkdirRequest { request_id: request_id(), path: path(), parents: true, mode: 0 };
    let locate = fs::LocateRequest { path: path(), length: 1, ..Default::default() };
    let set = fs::SetAttributesRequest {
        request_id: request_id(),
        path: path(),
        mode: Some(0o777),
        ..Default::default()
    };
    let rename = |from, to| fs::RenameRequest { request_id: request_id(), from, to, overwrite: false };
    let concat =
        |target, source| fs::ConcatRequest { request_id: request_id(), target, sources: vec![source] };
    let mut codes = Vec::new();
    call!(codes, caller, "dfs.v1.NameNode/Create", put);
    call!(codes, caller, "dfs.v1.NameNode/Append", append);
    call!(codes, caller, "dfs.v1.NameNode/Mkdir", mkdir);
    call!(
        codes,
        caller,
        "dfs.v1.NameNode/Stat",
        fs::StatRequest { path: path(), for_create: false, entries: 0, access: 0 }
    );
    call!(codes, caller, "dfs.v1.NameNode/List", fs::ListRequest { path: path(), ..Default::default() });
    call!(codes, caller, "dfs.v1.NameNode/Locate", locate);
    call!(codes, caller, "dfs.v1.NameNode/Usage", fs::UsageRequest { path: path() });
    call!(codes, caller, "dfs.v1.NameNode/Rename", rename("/in".into(), path()));
    call!(codes, caller, "dfs.v1.NameNode/Rename", rename(path(), "/x".into()));
    call!(codes, caller, "dfs.v1.NameNode/SetAttributes", set);
    call!(codes, caller, "dfs.v1.NameNode/Concat", concat("/in".into(), path()));
    call!(codes, caller, "dfs.v1.NameNode/Concat", concat(path(), "/in".into()));
    codes
}

/// Submits jobs with this path as input, output, side file or staging folder.
async fn submit_with(caller: &Caller, name: &str) -> Codes {
    let path = || name.to_owned();
    let program = |kind, files| Some(mr::Program { kind: Some(kind), files, settings: Vec::new() });
    let wordcount = || mr::program::Kind::Builtin("wordcount".into());
    let submit = || mr::SubmitRequest {
        request_id: uuid_bytes(),
        program: program(wordcount(), vec![]),
        inputs: vec!["/in".into()],
        output: "/o".into(),
        ..Default::default()
    };
    let own = program(mr::program::Kind::Executable(path()), vec![]);
    let mut codes = Vec::new();
    for message in [
        mr::SubmitRequest { inputs: vec![path()], ..submit() },
        mr::SubmitRequest { output: path(), ..submit() },
        mr::SubmitRequest { program: own, ..submit() },
        mr::SubmitRequest { program: program(wordcount(), vec![path()]), ..submit() },
        mr::SubmitRequest { staging: path(), ..submit() },
    ] {
        call!(codes, caller, "mr.v1.JobTracker/Submit", message);
    }
    codes
}

/// Calls every method that takes the ID of a job, task, attempt or tracker, with this path as ID.
async fn request_jobs(caller: &Caller, name: &str) -> Codes {
    let (request_id, path) = (uuid_bytes, || name.to_owned());
    let kill = mr::KillRequest { request_id: request_id(), job: path() };
    let kind = mr::PreemptKind::Kill.into();
    let preempt = mr::PreemptRequest { request_id: request_id(), attempt: path(), kind };
    let resume = |task, on| mr::ResumeRequest { request_id: request_id(), task, on };
    let drain = mr::DrainTrackerRequest { request_id: request_id(), node: path(), ..Default::default() };
    let tasks = mr::TasksRequest { job: path(), ..Default::default() };
    let page = mr::TasksRequest { job: "job_1".into(), after: path(), only: String::new() };
    let log = mr::LogRequest { attempt: path(), stderr: true, tail_bytes: 0 };
    let mut codes = Vec::new();
    call!(codes, caller, "mr.v1.JobTracker/Job", mr::JobRequest { job: path() });
    call!(codes, caller, "mr.v1.JobTracker/Tasks", tasks);
    call!(codes, caller, "mr.v1.JobTracker/Tasks", page);
    call!(codes, caller, "mr.v1.JobTracker/Why", mr::WhyRequest { of: path() });
    call!(codes, caller, "mr.v1.JobTracker/Kill", kill);
    call!(codes, caller, "mr.v1.JobTracker/Preempt", preempt);
    call!(codes, caller, "mr.v1.JobTracker/Resume", resume(path(), String::new()));
    call!(codes, caller, "mr.v1.JobTracker/Resume", resume("job_1.r0".into(), path()));
    call!(codes, caller, "mr.v1.JobTracker/Drain", drain);
    call!(codes, caller, "mr.v1.TrackerLogs/Log", log);
    codes
}

#[test]
fn servers_reject_path_traversal() {
    let lab = Lab::up(false, "");
    let local = lab.cluster.path("in");
    std::fs::write(&local, "x\n").unwrap();
    lab.cluster.mrctl(&["fs", "put", local.to_str().unwrap(), "/in"]);
    let logs = runtime().block_on(create_protected_items(&lab)).logs;
    // The first call of boss creates its home folder, so it comes before the listing.
    let listing = || {
        let all = lab.cluster.mrctl(&["fs", "ls", "-R", "/"]);
        all.lines().filter(|line| !line.contains("/user")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = listing();
    runtime().block_on(async {
        let caller = Caller::new(&lab, &logs, lab.credentials(Role::Admin, "boss", Validity::Valid));
        for name in TRAVERSALS {
            let mut codes = request_files(&caller, name).await;
            codes.extend(submit_with(&caller, name).await);
            codes.extend(request_jobs(&caller, name).await);
            for (method, code) in codes {
                let refused = !matches!(code, Code::Ok | Code::Unavailable | Code::Unknown | Code::Internal);
                assert!(refused, "{method} takes {name:?}: {code:?}");
            }
        }
    });
    assert_eq!(listing(), before, "a refused request changed something");
}

/// Returns the block key of a cluster.
pub(super) fn key_of(secret: &Path) -> BlockKey {
    let mut config = Config::default();
    secret.clone_into(&mut config.security.secret);
    Guard::new(&config, Role::NameNode).unwrap().block_key()
}

/// Sends a request to a DataNode. Returns the kind of the refusal; `None` if the request was
/// accepted.
pub(super) fn send_request(mut stream: impl Read + Write, op: Op, token: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    let request = fs::BulkRequest { op: Some(op), token: token.to_vec() };
    encode_frame(FrameKind::Request, &request, 0, &mut out);
    stream.write_all(&out).unwrap();
    match read_frame(&mut stream, BytesMut::new()).unwrap().expect::<()>(FrameKind::ReadReply) {
        Err(FrameError::Refused { kind, .. }) => Some(kind),
        _ => None,
    }
}

/// Creates a file of one block, and returns its location.
pub(super) fn block_of(lab: &Lab, kind: &[&str]) -> fs::LocatedBlock {
    let local = lab.cluster.path("in");
    std::fs::write(&local, "words\n".repeat(1000)).unwrap();
    lab.cluster.mrctl(&[&["fs", "put"], kind, &[local.to_str().unwrap(), "/in"]].concat());
    locate(lab)
}

/// Returns the current location of the block of `/in`.
pub(super) fn locate(lab: &Lab) -> fs::LocatedBlock {
    runtime().block_on(async {
        let boss = Caller::new(lab, "127.0.0.1:1", lab.credentials(Role::Admin, "boss", Validity::Valid));
        let about = fs::LocateRequest { path: "/in".into(), length: 6000, ..Default::default() };
        let found: fs::LocateReply = boss.ask("/fermata.dfs.v1.NameNode/Locate", about).await.unwrap();
        found.blocks[0].clone()
    })
}

#[test]
fn block_needs_its_own_token() {
    let lab = Lab::up(false, "");
    let block = block_of(&lab, &[]);
    let (ours, theirs) = (key_of(&lab.path("ours/secret")), key_of(&lab.path("theirs/secret")));
    let (id, length, nonce, node) = (block.block_id, block.length, block.nonce, &block.nodes[0]);
    let read = || Op::Read(fs::ReadBlock { block_id: id, offset: 0, length, block_length: length, nonce });
    let open = || {
        let node_uuid = node.uuid.clone();
        Op::OpenLocal(fs::OpenLocal { block_id: id, block_length: length, node_uuid, nonce })
    };
    let write = |block_id, expected_length| {
        Op::Write(fs::WriteBlock { block_id, resume_at: 0, mirrors: vec![], expected_length, nonce })
    };
    let bulk = || TcpStream::connect(&node.data_addr).unwrap();
    let local = || UnixStream::connect(&node.local_socket).unwrap();
    assert_eq!(send_request(bulk(), read(), &block.token), None);
    assert_eq!(send_request(local(), open(), &block.token), None);
    let wrong = [
        Vec::new(),
        block.token[1..].to_vec(),
        theirs.read_token(id, nonce).to_bytes(),
        ours.read_token(id + 1, nonce).to_bytes(),
        ours.write_token(id, nonce, length).to_bytes(),
    ];
    for token in wrong {
        assert_eq!(send_request(bulk(), read(), &token).as_deref(), Some("denied"), "{token:?}");
        assert_eq!(send_request(local(), open(), &token).as_deref(), Some("denied"), "{token:?}");
    }
    let new = id + 1000;
    assert_eq!(send_request(bulk(), write(id, length), &block.token).as_deref(), Some("denied"));
    assert_eq!(
        send_request(bulk(), write(new, 2000), &ours.read_token(new, nonce).to_bytes()).as_deref(),
        Some("denied")
    );
    assert_eq!(
        send_request(bulk(), write(new, 2000), &theirs.write_token(new, nonce, 2000).to_bytes()).as_deref(),
        Some("denied")
    );
    // The token must not permit more bytes than the NameNode has permitted.
    assert_eq!(
        send_request(bulk(), write(new, 2001), &ours.write_token(new, nonce, 2000).to_bytes()).as_deref(),
        Some("denied")
    );
}
