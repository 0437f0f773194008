//! Calls every method of every service with every kind of invalid credential. The list of methods
//! comes from the .proto files, so that a method without a rule fails here.

use super::{Lab, Validity};
use prost::Message;
use proto::{dfs, mr};
use security::{Credentials, Role, rule_of};
use std::{collections::BTreeMap, io::Read, net::TcpStream, time::Duration};
use tonic::{
    Code, Request, client::Grpc, codegen::http::uri::PathAndQuery, metadata::MetadataValue,
    transport::Channel,
};
use tonic_prost::ProstCodec;

/// Returns the path of every method, and whether its client sends a stream.
fn methods() -> BTreeMap<String, bool> {
    let folder = crate::tidy::root().join("proto");
    let files = [
        "dfs/v1/namenode",
        "dfs/v1/datanode",
        "mr/v1/jobtracker",
        "mr/v1/task",
        "master/v1/master",
        "raft/v1/peer",
    ];
    let all = protox::compile(files.map(|name| format!("fermata/{name}.proto")), [folder]).unwrap();
    let mut methods = BTreeMap::new();
    for file in &all.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                methods.insert(path, method.client_streaming());
            }
        }
    }
    methods
}

#[test]
fn every_method_has_a_rule_and_every_rule_a_method() {
    let methods = methods();
    assert!(methods.len() > 35, "{methods:?}");
    for (method, streams) in &methods {
        let rule =
            rule_of(method).unwrap_or_else(|| panic!("{method} has no rule in base/security/src/rules.rs"));
        assert!(
            rule.roles.is_some_and(|roles| !roles.is_empty()),
            "{method} is open to unauthenticated callers"
        );
        assert_eq!(rule.streams, *streams, "{method} in base/security/src/rules.rs");
    }
    for rule in security::RULES.iter().filter(|rule| !rule.method.starts_with("/grpc.health.")) {
        assert!(methods.contains_key(rule.method), "{} is no method", rule.method);
    }
}

/// A caller with connections to all servers.
pub(super) struct Caller {
    credentials: Credentials,
    /// Whether the caller sends no credential.
    sends_no_credential: bool,
    servers: BTreeMap<&'static str, Channel>,
}

impl Caller {
    pub(super) fn new(lab: &Lab, logs: &str, credentials: Credentials) -> Self {
        let (namenode, jobtracker) = lab.masters();
        let at = |addr: &str, role| credentials.endpoint(addr, role).unwrap().connect_lazy();
        let servers = BTreeMap::from([
            ("NameNode", at(&namenode, Role::NameNode)),
            ("BlockReports", at(&namenode, Role::NameNode)),
            ("JobTracker", at(&jobtracker, Role::JobTracker)),
            ("TrackerLink", at(&jobtracker, Role::JobTracker)),
            ("TrackerLogs", at(logs, Role::TaskTracker)),
            ("Master", at(&jobtracker, Role::JobTracker)),
            ("Peers", at(&namenode, Role::NameNode)),
        ]);
        Self { credentials, sends_no_credential: false, servers }
    }

    /// Creates a caller that trusts our servers and sends no credential.
    fn nobody(lab: &Lab, logs: &str) -> Self {
        Self { sends_no_credential: true, ..Self::new(lab, logs, lab.nobody()) }
    }

    /// Calls a method, and returns the reply or the error code.
    pub(super) async fn ask<M, R>(&self, method: &str, message: M) -> Result<R, Code>
    where
        M: Message + Clone + Default + 'static,
        R: Message + Default + 'static,
    {
        let service = method.trim_start_matches('/').split('/').next().unwrap();
        let service = service.rsplit('.').next().unwrap();
        let mut grpc = Grpc::new(self.servers[service].clone());
        let path = PathAndQuery::try_from(method).unwrap();
        let mut request = Request::new(message);
        let name = self.credentials.name().unwrap_or("mallory").to_owned();
        if !self.sends_no_credential {
            self.credentials.sign(request.metadata_mut(), &MetadataValue::try_from(name).unwrap());
        }
        grpc.ready().await.map_err(|_| Code::Unavailable)?;
        let answer = grpc.unary::<M, R, _>(request, path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.code())
    }

    /// Calls a method, and returns the result code.
    pub(super) async fn call<M: Message + Clone + Default + 'static>(
        &self,
        method: &str,
        message: M,
    ) -> Code {
        // A call that opens a stream gets no message, so a timeout means that it was accepted.
        let answer = tokio::time::timeout(Duration::from_secs(5), self.ask::<M, ()>(method, message)).await;
        answer.map_or(Code::Ok, |answer| answer.err().unwrap_or(Code::Ok))
    }
}

/// Returns whether TLS refuses a client with an invalid certificate before it can call. The server
/// sends the reason, which a dead server does not.
fn is_refused_at_handshake(credentials: &Credentials, addr: &str, server: Role) -> bool {
    let socket = TcpStream::connect(addr).unwrap();
    let connected = credentials.connector(server).secure(socket, Duration::from_secs(10));
    // For the client the handshake ends before the server has verified the client certificate.
    let error = connected.and_then(|stream| (&stream).read(&mut [0; 64])).unwrap_err();
    error.to_string().contains("received fatal alert")
}

/// Returns whether the code is a possible result of an empty request that the gate accepts: a
/// reply, or an invalid argument. Excludes errors of a dead or broken server.
fn is_accepted(code: Code) -> bool {
    // If a stream ends without a message, a client that expects one reply reports an internal
    // error.
    let streams = Code::Internal;
    [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition, streams].contains(&code)
}

/// Things of ann that other users may not access, and the address of a tracker with her logs.
pub(super) struct ProtectedItems {
    job: String,
    attempt: String,
    pub(super) logs: String,
    file_id: u64,
}

/// Creates a job and a file of ann, which other users may not access.
pub(super) async fn create_protected_items(lab: &Lab) -> ProtectedItems {
    let local = lab.cluster.path("text");
    std::fs::write(&local, "to be or not to be\n".repeat(100)).unwrap();
    lab.cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
    lab.cluster.mrctl(&["fs", "chown", "ann", "/home/ann"]);
    lab.cluster.mrctl(&["fs", "chmod", "700", "/home/ann"]);
    lab.done("ann", &["fs", "put", local.to_str().unwrap(), "/home/ann/text"]);
    let run = ["submit", "wordcount", "--input", "/home/ann/text", "--output", "/home/ann/out", "--json"];
    let job: serde_json::Value = serde_json::from_str(&lab.done("ann", &run)).unwrap();
    assert_eq!(job["state"], "succeeded", "{job}");
    let job = job["job"].as_str().unwrap().to_owned();
    let ann = Caller::new(lab, "127.0.0.1:1", lab.credentials(Role::User, "ann", Validity::Valid));
    let about = mr::TasksRequest { job: job.clone(), ..Default::default() };
    let tasks: mr::TasksReply = ann.ask("/fermata.mr.v1.JobTracker/Tasks", about).await.unwrap();
    let mr::AttemptInfo { attempt, logs_addr: logs, .. } = tasks.tasks[0].attempts[0].clone();
    let about = dfs::StatRequest { path: "/home/ann/text".into(), for_create: false, entries: 0, access: 0 };
    let stat: dfs::StatReply = ann.ask("/fermata.dfs.v1.NameNode/Stat", about).await.unwrap();
    ProtectedItems { attempt, logs, file_id: stat.status.unwrap().file_id, job }
}

/// Calls a method on something that belongs to ann. Returns `None` if the method has no owner to
/// check.
async fn access_as(caller: &Caller, method: &str, of: &ProtectedItems) -> Option<Code> {
    let (file, file_id) = ("/home/ann/text".to_owned(), of.file_id);
    let request_id = uuid_bytes();
    let (job, attempt, path) = (of.job.clone(), of.attempt.clone(), file.clone());
    let name = method.rsplit('/').next().unwrap();
    macro_rules! call {
        ($message:expr) => {
            Some(caller.call(method, $message).await)
        };
    }
    match (method.contains(".mr.v1."), name) {
        (false, "Create") => call!(dfs::CreateRequest {
            request_id,
            path: "/home/ann/new".into(),
            holder: "h".into(),
            on_abandon: dfs::OnAbandon::Close.into(),
            ..Default::default()
        }),
        (false, "Append") => call!(dfs::AppendRequest { request_id, path, holder: "h".into() }),
        (false, "AddBlock") => {
            call!(dfs::AddBlockRequest { request_id, file_id, holder: "h".into(), ..Default::default() })
        }
        (false, "AbandonBlock") => {
            call!(dfs::AbandonBlockRequest { request_id, file_id, holder: "h".into(), block_id: 1 })
        }
        (false, "Close") => {
            call!(dfs::CloseRequest { request_id, file_id, holder: "h".into(), ..Default::default() })
        }
        (false, "Locate") => call!(dfs::LocateRequest { path, length: 1, ..Default::default() }),
        (false, "Mkdir") => {
            call!(dfs::MkdirRequest { request_id, path: "/home/ann/d".into(), parents: true, mode: 0 })
        }
        (false, "Stat") => call!(dfs::StatRequest { path, for_create: false, entries: 0, access: 0 }),
        (false, "List") => call!(dfs::ListRequest { path: "/home/ann".into(), ..Default::default() }),
        (false, "Rename") => {
            call!(dfs::RenameRequest { request_id, from: file, to: "/x".into(), overwrite: false })
        }
        (false, "Delete") => call!(dfs::DeleteRequest { request_id, path, recursive: true }),
        (false, "SetAttributes") => {
            call!(dfs::SetAttributesRequest { request_id, path, mode: Some(0o777), ..Default::default() })
        }
        (false, "Usage") => call!(dfs::UsageRequest { path: "/home/ann".into() }),
        (false, "Concat") => {
            call!(dfs::ConcatRequest { request_id, target: path, sources: vec!["/home/ann/x".into()] })
        }
        (true, "Kill") => call!(mr::KillRequest { request_id, job }),
        (true, "Preempt") => {
            call!(mr::PreemptRequest { request_id, attempt, kind: mr::PreemptKind::Kill.into() })
        }
        (true, "Resume") => {
            let task = attempt.rsplit_once('.').unwrap().0.to_owned();
            call!(mr::ResumeRequest { request_id, task, on: String::new() })
        }
        (true, "Tasks") => call!(mr::TasksRequest { job, ..Default::default() }),
        (true, "History") => call!(mr::HistoryRequest { job, offset: 0 }),
        (true, "Why") => call!(mr::WhyRequest { of: job }),
        (true, "Log") => call!(mr::LogRequest { attempt, stderr: true, tail_bytes: 0 }),
        _ => None,
    }
}

pub(super) fn uuid_bytes() -> Vec<u8> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    [u64::from(std::process::id()), NEXT.fetch_add(1, Ordering::Relaxed)].map(u64::to_be_bytes).concat()
}

/// Calls all methods with all credentials, and returns the number of refused calls.
async fn call_all_methods(lab: &Lab) -> usize {
    let stage = create_protected_items(lab).await;
    let who = |role, name, validity| Caller::new(lab, &stage.logs, lab.credentials(role, name, validity));
    let nobody = Caller::nobody(lab, &stage.logs);
    let other_client = Caller::new(lab, &stage.logs, lab.other_client());
    let roles: Vec<(Role, [Caller; 3])> = Role::ALL
        .iter()
        .map(|role| {
            let all = [Validity::Valid, Validity::OfAnotherCluster, Validity::Expired];
            (*role, all.map(|validity| who(*role, "bob", validity)))
        })
        .collect();
    let bob = who(Role::User, "bob", Validity::Valid);
    let mut refused = 0;
    let mut is = |what: &str, code: Code, right: Code| {
        assert_eq!(code, right, "{what}");
        refused += 1;
    };
    for method in methods().into_keys() {
        let rule = rule_of(&method).unwrap();
        is(&format!("{method} without a credential"), nobody.call(&method, ()).await, Code::Unauthenticated);
        is(
            &format!("{method} with a token of an unknown key"),
            other_client.call(&method, ()).await,
            Code::Unauthenticated,
        );
        for (role, [valid, foreign, expired]) in &roles {
            for (what, caller) in [("another cluster's", foreign), ("an expired", expired)] {
                // Certificates are refused before a method is called: see `check_handshakes`.
                if !lab.tls {
                    let what = format!("{method} with {what} credential of {role}");
                    is(&what, caller.call(&method, ()).await, Code::Unauthenticated);
                }
            }
            let code = valid.call(&method, ()).await;
            if rule.allows(*role) {
                // One master of each kind serves no group.
                let is_absent = method.starts_with("/fermata.raft.") && code == Code::Unimplemented;
                assert!(is_accepted(code) || is_absent, "{method} as {role}: {code:?}");
            } else {
                is(&format!("{method} as {role}, which it is not for"), code, Code::PermissionDenied);
            }
        }
        if rule.owned {
            let code = access_as(&bob, &method, &stage).await;
            let code = code.unwrap_or_else(|| panic!("{method} has an owner: add its request here"));
            is(&format!("{method} on something of ann's, as bob"), code, Code::PermissionDenied);
        }
    }
    if lab.tls {
        refused += check_handshakes(lab, &stage.logs);
    }
    // The owner may call these methods.
    let ann = who(Role::User, "ann", Validity::Valid);
    for method in
        ["/fermata.dfs.v1.NameNode/Stat", "/fermata.mr.v1.JobTracker/Why", "/fermata.mr.v1.TrackerLogs/Log"]
    {
        let code = access_as(&ann, method, &stage).await.unwrap();
        assert!(matches!(code, Code::Ok | Code::Internal), "{method} as ann, whose it is: {code:?}");
    }
    refused
}

/// Connects to every server with certificates of every role that are of another cluster or expired.
/// Returns the number of refused connections.
fn check_handshakes(lab: &Lab, logs: &str) -> usize {
    let (namenode, jobtracker) = lab.masters();
    let servers =
        [(namenode.as_str(), Role::NameNode), (&jobtracker, Role::JobTracker), (logs, Role::TaskTracker)];
    let mut refused = 0;
    for (addr, server) in servers {
        for role in Role::ALL {
            for validity in [Validity::OfAnotherCluster, Validity::Expired] {
                let shown = lab.credentials(role, "bob", validity);
                assert!(is_refused_at_handshake(&shown, addr, server), "{server}: {role}, {validity:?}");
                refused += 1;
            }
        }
    }
    refused
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_refuses_invalid_tokens() {
    let lab = Lab::up(false, "");
    eprintln!("{} calls refused", call_all_methods(&lab).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_refuses_invalid_certificates() {
    let lab = Lab::up(true, "");
    eprintln!("{} calls refused", call_all_methods(&lab).await);
}
