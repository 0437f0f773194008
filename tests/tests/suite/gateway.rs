//! The gateway of a real cluster: who may use it, `WebHDFS` over plain HTTP, and clients of other
//! projects, also while daemons are killed.

use crate::{masters, python_package};
use fermata_tests::{Cluster, TIMEOUT, Up, eventually, skip};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// A client of the gateway that sends one request per connection.
struct Http {
    addr: String,
    token: String,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {}: {text}", self.head))
    }

    fn exception(&self) -> (u16, String) {
        let name = self.json()["RemoteException"]["exception"].as_str().expect("a name").to_owned();
        (self.status, name)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Http {
    fn of(cluster: &Cluster) -> Self {
        let addr = cluster.json(&["status"])["gateway"].as_str().expect("an address").to_owned();
        let token = fs::read_to_string(cluster.path(".fermata/gateway.token")).unwrap_or_default();
        Self { addr, token: token.trim().to_owned() }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sends a request as it is.
    fn send(&self, method: &str, target: &str, headers: &[&str], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.addr).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let host = format!("Host: {}", self.addr);
        let own = (!headers.iter().any(|header| header.starts_with("Host:"))).then_some(host.as_str());
        let length = format!("Content-Length: {}", body.len());
        let first = format!("{method} {target} HTTP/1.1");
        let lines = [&*first, "Connection: close", &*length].into_iter().chain(own);
        let lines: Vec<&str> = lines.chain(headers.iter().copied()).collect();
        let head = lines.join("\r\n") + "\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("it reads");
        // A request that is refused early may not be read to its end.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut body = answer.split_off(end + 4);
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Answer { status, head, body }
    }

    /// Sends a request to `WebHDFS` with the token of the owner.
    fn call(&self, method: &str, target: &str) -> Answer {
        let bearer = format!("Authorization: Bearer {}", self.token);
        self.send(method, &format!("/webhdfs/v1{target}"), &[&bearer], b"")
    }

    /// Sends data in two steps, as `WebHDFS` wants it.
    fn call_with_data(&self, method: &str, target: &str, data: &[u8]) -> Answer {
        let first = self.call(method, target);
        if first.status != 307 {
            return first;
        }
        let to = first.header("location").expect("an address").strip_prefix(&self.url()).expect("our own");
        let bearer = format!("Authorization: Bearer {}", self.token);
        self.send(method, to, &[&bearer], data)
    }

    /// Sends a request to the REST API with the token of the owner.
    fn api(&self, method: &str, target: &str, body: &Value) -> Answer {
        let bearer = format!("Authorization: Bearer {}", self.token);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [&*bearer, "Content-Type: application/json"];
        self.send(method, &format!("/api/v1{target}"), &headers, body.as_bytes())
    }

    fn get_data(&self, target: &str) -> Answer {
        self.call_with_data("GET", target, b"")
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(at) = body.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&body[..at]).expect("a length"), 16);
        let length = length.expect("a length");
        data.extend_from_slice(&body[at + 2..at + 2 + length]);
        body = &body[at + 2 + length + 2..];
    }
    data
}

#[test]
fn only_holders_of_a_token_use_the_gateway_of_a_closed_cluster() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let http = Http::of(&cluster);
    let token = cluster.path(".fermata/gateway.token");
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    let plain = |target: &str, headers: &[&str]| http.send("GET", target, headers, b"");

    assert_eq!(http.call("GET", "/?op=GETFILESTATUS").json()["FileStatus"]["type"], "DIRECTORY");
    let query = format!("/webhdfs/v1/?op=liststatus&delegation={}", http.token.replace(':', "%3A"));
    assert_eq!(plain(&query, &[]).status, 200);
    let refused = (401, "SecurityException".to_owned());
    assert_eq!(plain("/webhdfs/v1/?op=LISTSTATUS", &[]).exception(), refused);
    assert_eq!(plain("/webhdfs/v1/?op=LISTSTATUS&user.name=root", &[]).exception(), refused);
    let changed = format!("Authorization: Bearer {}0", http.token);
    assert_eq!(plain("/webhdfs/v1/?op=LISTSTATUS", &[&changed]).exception(), refused);
    let foreign = "Authorization: Bearer f1:admin:root:-:99999999999:00112233445566778899aabbccddeeff";
    assert_eq!(plain("/webhdfs/v1/?op=GETHOMEDIRECTORY", &[foreign]).exception(), refused);
    // A token in the query is part of the address of the second request, one in a header is not.
    let secret = http.token.replace(':', "%3A");
    let first = plain(&format!("/webhdfs/v1/x?op=OPEN&delegation={secret}"), &[]);
    assert_eq!(first.status, 307);
    assert!(first.header("location").is_some_and(|to| to.contains(&secret) && to.starts_with(&http.url())));
    assert!(!http.call("GET", "/x?op=OPEN").head.contains(&secret));
    // The other name must be that of the token, and another user must be named on purpose.
    let other = http.call("GET", "/?op=LISTSTATUS&user.name=nobody-else").exception();
    assert_eq!(other, (403, "AccessControlException".into()));
    assert_eq!(http.call("GET", "/?op=GETHOMEDIRECTORY&doas=bob").json()["Path"], "/user/bob");

    // Pages of other servers have no access.
    for header in ["Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
        let bearer = format!("Authorization: Bearer {}", http.token);
        assert_eq!(plain("/webhdfs/v1/?op=LISTSTATUS", &[header, &bearer]).status, 403, "{header}");
    }
    assert_eq!(plain("/", &[]).status, 404);
    let log = cluster.log("gateway");
    for kind in ["kind=Authentication", "kind=Permission", "kind=Origin"] {
        assert!(log.contains("refused a request") && log.contains(kind), "{kind}: {log}");
    }
    assert!(!log.contains(&http.token) && !log.contains(&secret), "the log contains a token");

    // The port and a new token remain after a restart of the cluster.
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--detach"]);
    let again = Http::of(&cluster);
    assert_eq!(again.addr, http.addr);
    assert_eq!(again.call("GET", "/?op=LISTSTATUS").status, 200);
    cluster.mrctl(&["chaos", "kill", "gateway"]);
    assert!(TcpStream::connect(&again.addr).is_err());
    cluster.mrctl(&["up", "--detach"]);
    assert_eq!(again.call("GET", "/?op=LISTSTATUS").status, 200);
}

#[test]
fn name_suffices_in_an_open_cluster_only() {
    let settings = format!("{}[security]\npermissions = \"on\"\n", fermata_tests::QUICK);
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, open: true, settings: &settings, ..Up::default() });
    let http = Http::of(&cluster);
    assert!(!cluster.path(".fermata/gateway.token").exists());
    let home = http.send("GET", "/webhdfs/v1/?op=GETHOMEDIRECTORY&user.name=ann", &[], b"");
    assert_eq!(home.json(), json!({ "Path": "/user/ann" }));
    let without = http.send("GET", "/webhdfs/v1/?op=LISTSTATUS", &[], b"").exception();
    assert_eq!(without, (401, "SecurityException".into()));
    let bad = http.send("GET", "/webhdfs/v1/?op=LISTSTATUS&user.name=a/b", &[], b"").exception();
    assert_eq!(bad, (400, "IllegalArgumentException".into()));
    // The name is that of the owner of what is created, and its permissions are checked.
    let put = |target: &str| http.send("PUT", &format!("/webhdfs/v1{target}"), &[], b"");
    assert_eq!(put("/tmp/x?op=CREATE&user.name=ann&permission=600&data=true").status, 201);
    let status = http.send("GET", "/webhdfs/v1/tmp/x?op=GETFILESTATUS&user.name=bob", &[], b"").json();
    assert_eq!(status["FileStatus"]["owner"], "ann");
    let read = http.send("GET", "/webhdfs/v1/tmp/x?op=OPEN&user.name=bob&data=true", &[], b"").exception();
    assert_eq!(read, (403, "AccessControlException".into()));
}

#[test]
fn operations_answer_like_hadoop() {
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    let http = Http::of(&cluster);
    let refused = |method: &str, target: &str, status: u16, name: &str| {
        assert_eq!(http.call(method, target).exception(), (status, name.to_owned()), "{method} {target}");
    };

    // Data: in two steps, or with the address in the body.
    let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(at) % 251) as u8).collect();
    let created = http.call_with_data("PUT", "/w/a%20b?op=CREATE", &data);
    assert_eq!((created.status, created.body.len()), (201, 0), "{}", created.head);
    assert_eq!(http.get_data("/w/a%20b?op=OPEN").body, data);
    let part = http.get_data("/w/a%20b?op=OPEN&offset=1048570&length=100");
    assert_eq!(part.body, data[1_048_570..1_048_670]);
    assert_eq!(part.header("content-length"), Some("100"));
    assert!(http.get_data("/w/a%20b?op=OPEN&offset=3000000").body.is_empty());
    let beyond = http.get_data("/w/a%20b?op=OPEN&offset=3000001").exception();
    assert_eq!(beyond, (403, "IOException".into()));
    let address = http.call("GET", "/w/a%20b?op=OPEN&noredirect=true&offset=7").json();
    let address = address["Location"].as_str().unwrap();
    assert!(address.starts_with(&http.url()) && address.contains("offset=7"), "{address}");
    assert!(!address.contains("noredirect"), "{address}");
    let existing = http.call_with_data("PUT", "/w/a%20b?op=CREATE", b"x").exception();
    assert_eq!(existing, (403, "FileAlreadyExistsException".into()));
    assert_eq!(http.call_with_data("PUT", "/w/a%20b?op=CREATE&overwrite=true", b"new").status, 201);
    assert_eq!(http.call_with_data("POST", "/w/a%20b?op=APPEND", b", more").status, 200);
    assert_eq!(http.get_data("/w/a%20b?op=OPEN").body, b"new, more");
    let orphan = http.call_with_data("PUT", "/none/x?op=CREATE&createparent=false", b"").exception();
    assert_eq!(orphan, (404, "FileNotFoundException".into()));
    assert_eq!(http.get_data("/w?op=OPEN").exception(), (404, "FileNotFoundException".into()));

    // A listing in pages.
    for name in ["b", "c"] {
        assert_eq!(http.call_with_data("PUT", &format!("/w/{name}?op=CREATE"), b"").status, 201);
    }
    let page = http.call("GET", "/w?op=LISTSTATUS_BATCH&startAfter=a%20b").json();
    let page = &page["DirectoryListing"];
    let names: Vec<&Value> =
        page["partialListing"]["FileStatuses"]["FileStatus"].as_array().unwrap().iter().collect();
    assert_eq!((names[0]["pathSuffix"].as_str(), names.len()), (Some("b"), 2), "{page}");
    assert_eq!(page["remainingEntries"], 0);
    let one = http.call("GET", "/w/b?op=LISTSTATUS").json();
    assert_eq!(one["FileStatuses"]["FileStatus"][0]["pathSuffix"], "");

    // Attributes, quotas, blocks.
    assert_eq!(http.call("PUT", "/w/b?op=SETREPLICATION&replication=1").json(), json!({ "boolean": true }));
    assert_eq!(http.call("PUT", "/w?op=SETREPLICATION&replication=1").json(), json!({ "boolean": false }));
    assert_eq!(http.call("PUT", "/w?op=SETQUOTA&namespacequota=50").status, 200);
    assert_eq!(http.call("PUT", "/w?op=SETQUOTA&storagespacequota=1000000000").status, 200);
    let usage = http.call("GET", "/w?op=GETQUOTAUSAGE").json();
    let usage = &usage["QuotaUsage"];
    assert_eq!((&usage["quota"], &usage["spaceQuota"]), (&json!(50), &json!(1_000_000_000)), "{usage}");
    assert_eq!(http.call("PUT", "/w?op=SETQUOTA&namespacequota=-1").status, 200);
    assert_eq!(http.call("GET", "/w?op=GETCONTENTSUMMARY").json()["ContentSummary"]["quota"], -1);
    let blocks = http.call("GET", "/w/a%20b?op=GETFILEBLOCKLOCATIONS").json();
    assert_eq!(blocks["BlockLocations"]["BlockLocation"][0]["length"], 3, "{blocks}");
    assert!(http.call("GET", "/?op=GETSTATUS").json()["FsStatus"]["capacity"].as_u64() > Some(0));
    assert_eq!(http.call("GET", "/?op=GETSERVERDEFAULTS").json()["FsServerDefaults"]["blockSize"], 1 << 20);
    let trash = http.call("GET", "/?op=GETTRASHROOT").json();
    assert!(trash["Path"].as_str().unwrap().ends_with("/.Trash"), "{trash}");
    assert_eq!(http.call("GET", "/?op=GETTRASHROOTS").json(), json!({ "Paths": [] }));

    // Access of this user, and of another one.
    assert_eq!(http.call("PUT", "/w/b?op=SETPERMISSION&permission=640").status, 200);
    assert_eq!(http.call("GET", "/w/b?op=CHECKACCESS&fsaction=rw-").status, 200);
    refused("GET", "/w/b?op=CHECKACCESS&fsaction=r--&doas=bob", 403, "AccessControlException");
    assert_eq!(http.call("GET", "/w?op=CHECKACCESS&fsaction=r-x&doas=bob").status, 200);
    refused("GET", "/w?op=CHECKACCESS&fsaction=-w-&doas=bob", 403, "AccessControlException");
    refused("GET", "/none?op=CHECKACCESS&fsaction=r--", 404, "FileNotFoundException");

    // Files become one, and move.
    assert_eq!(http.call("POST", "/w/a%20b?op=CONCAT&sources=/w/b,/w/c").status, 200);
    assert_eq!(http.call("PUT", "/w/d?op=MKDIRS&permission=700").json(), json!({ "boolean": true }));
    let renamed = |target: &str| http.call("PUT", target).json()["boolean"].as_bool();
    assert_eq!(renamed("/w/a%20b?op=RENAME&destination=/w/d"), Some(true));
    assert_eq!(renamed("/w/none?op=RENAME&destination=/w/e"), Some(false));
    assert_eq!(renamed("/w/d?op=RENAME&destination=/w/d/e"), Some(false));
    assert_eq!(http.call("PUT", "/w/d/a%20b?op=RENAME&destination=/w/f&renameoptions=NONE").status, 200);
    refused(
        "PUT",
        "/w/none?op=RENAME&destination=/w/g&renameoptions=OVERWRITE",
        404,
        "FileNotFoundException",
    );
    assert_eq!(http.get_data("/w/f?op=OPEN").body, b"new, more");

    // Errors.
    refused("GET", "/none?op=GETFILESTATUS", 404, "FileNotFoundException");
    refused("GET", "/?op=NOSUCH", 400, "IllegalArgumentException");
    refused("GET", "/", 400, "IllegalArgumentException");
    refused("GET", "/?op=MKDIRS", 400, "IllegalArgumentException");
    refused("PUT", "/w/f?op=SETPERMISSION&permission=999", 400, "IllegalArgumentException");
    refused("PUT", "/w/../x?op=MKDIRS", 400, "IllegalArgumentException");
    refused("GET", "/w?op=GETXATTRS", 400, "UnsupportedOperationException");
    refused("PUT", "/w/f?op=MKDIRS", 403, "FileAlreadyExistsException");
    refused("PUT", "/w/f/x?op=MKDIRS", 403, "ParentNotDirectoryException");
    refused("DELETE", "/w?op=DELETE", 403, "PathIsNotEmptyDirectoryException");
    cluster.mrctl(&["fs", "safemode", "on"]);
    assert_eq!(http.call("DELETE", "/w?op=DELETE&recursive=true&x=1").exception().0, 403);
    cluster.mrctl(&["fs", "safemode", "off"]);
    assert_eq!(http.call("DELETE", "/w?op=DELETE&recursive=true").json(), json!({ "boolean": true }));
    assert_eq!(http.call("DELETE", "/w?op=DELETE").json(), json!({ "boolean": false }));
}

/// Returns the data of server-sent events with this name.
fn events(answer: &Answer, name: &str) -> Vec<Value> {
    let text = String::from_utf8_lossy(&answer.body);
    let data = |event: &str| {
        let data = event.strip_prefix(&format!("event: {name}\ndata: "))?;
        Some(serde_json::from_str(data).expect("JSON"))
    };
    text.split("\n\n").filter_map(data).collect()
}

#[test]
fn jobs_are_submitted_watched_and_killed_over_rest() {
    let cluster = Cluster::up(Up { nodes: 2, block_size: "256KiB", ..Up::default() });
    let http = Http::of(&cluster);
    let get = |target: &str| http.api("GET", target, &Value::Null);
    fs::write(cluster.path("text"), "a b a\n".repeat(100_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);

    let new = json!({ "builtin": "wordcount", "inputs": ["/text"], "output": "/out", "reduces": 1, "name": "count" });
    let submitted = http.api("POST", "/jobs", &new);
    assert_eq!((submitted.status, submitted.json()), (201, json!({ "job": "job_1" })));
    let watched = get("/jobs/job_1/watch");
    assert_eq!(watched.header("content-type"), Some("text/event-stream"));
    let statuses = events(&watched, "job");
    assert_eq!(statuses.last().expect("a status")["state"], "succeeded");
    let job = get("/jobs/job_1").json();
    assert_eq!(job, cluster.json(&["job", "job_1"]), "the names are those of mrctl");
    assert_eq!(get("/jobs/job_1/counters").json()["counters"], job["counters"]);
    assert_eq!(get("/jobs/job_1/why").json()["state"], "succeeded");

    // Tasks, page by page, and one attempt with its log.
    let all = get("/jobs/job_1/tasks").json();
    let count = all["tasks"].as_array().expect("a list").len();
    assert!(count >= 3 && all["next"].is_null(), "{all}");
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(&format!("/jobs/job_1/tasks?limit=2{after}")).json();
        seen.extend(page["tasks"].as_array().expect("a list").clone());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, *all["tasks"].as_array().unwrap());
    assert_eq!(get("/tasks/job_1.r0").json()["attempts"][0]["attempt"], "job_1.r0.0");
    assert_eq!(get("/attempts/job_1.r0.0").json()["state"], "succeeded");
    assert_eq!(get("/attempts/job_1.r0.0/log?stream=stdout&tail=100").status, 200);

    // A job that runs until it is killed, with a map that is preempted.
    let slow = json!({
        "builtin": "wordcount", "inputs": ["/text"], "output": "/slow", "reduces": 1,
        "conf": { "pace.map": "10KiB" },
    });
    assert_eq!(http.api("POST", "/jobs", &slow).json()["job"], "job_2");
    assert_eq!(get("/jobs?state=running").json()["jobs"][0]["job"], "job_2");
    eventually("a map is preempted", || {
        let split = json!({ "kind": "kill" });
        (http.api("POST", "/attempts/job_2.m0.0/preempt", &split).status == 202).then_some(())
    });
    let killed = http.api("POST", "/jobs/job_2/kill", &Value::Null);
    assert_eq!((killed.status, killed.json()["job"].as_str()), (200, Some("job_2")));
    let last = events(&get("/jobs/job_2/watch"), "job").pop().expect("a status");
    assert_eq!(last["state"], "killed");
    let page = get("/jobs?limit=1").json();
    assert_eq!((page["jobs"][0]["job"].as_str(), page["next"].as_str()), (Some("job_1"), Some("job_1")));

    let nodes = get("/nodes").json();
    let node = &nodes["nodes"][1];
    assert_eq!((&node["name"], &node["tasktracker"]["state"]), (&json!("node2"), &json!("live")), "{node}");
    assert_eq!(node["datanode"]["state"], "live");
    assert_eq!(get("/scheduler").json()["scheduler"], "coda");
    let files = get("/files?path=/&limit=1").json();
    assert_eq!((files["files"][0]["path"].as_str(), files["next"].as_str()), (Some("/out"), Some("out")));
    assert_eq!(get("/files/status?path=/text").json()["length"], 600_000);

    // Errors.
    let refused = |method: &str, target: &str, body: Value, status: u16, code: &str| {
        let answer = http.api(method, target, &body);
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (status, Some(code)),
            "{target}"
        );
    };
    refused("GET", "/jobs/job_99", Value::Null, 404, "not_found");
    refused("GET", "/attempts/job_1.r0.9", Value::Null, 404, "not_found");
    refused("GET", "/jobs/x/watch", Value::Null, 400, "invalid");
    refused("GET", "/jobs?limit=0", Value::Null, 400, "invalid");
    refused("POST", "/jobs", json!({ "builtin": "nosuch", "inputs": ["/text"] }), 404, "not_found");
    refused("POST", "/jobs", json!({ "unknown": 1 }), 400, "invalid");
    refused("POST", "/attempts/job_1.m0.0/preempt", json!({ "kind": "stop" }), 400, "invalid");
    refused("GET", "/files?path=x", Value::Null, 400, "invalid");
    refused("GET", "/files?path=/none", Value::Null, 404, "not_found");
    refused("GET", "/jobs/job_1/tasks?doas=bob", Value::Null, 403, "denied");
    let anonymous = http.send("GET", "/api/v1/jobs", &[], b"");
    assert_eq!((anonymous.status, &anonymous.json()["error"]["code"]), (401, &json!("unauthenticated")));
    let described = http.send("GET", "/api/v1/openapi.json", &[], b"").json();
    assert_eq!(described["info"]["version"], "1");
}

#[test]
fn requests_above_the_limits_are_refused() {
    let settings = format!("{}[gateway]\nuser_request_rate = 5\n", fermata_tests::QUICK);
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    let http = Http::of(&cluster);
    let answers: Vec<Answer> = (0..50).map(|_| http.call("GET", "/?op=GETHOMEDIRECTORY")).collect();
    let refused = answers.iter().find(|answer| answer.status == 429).expect("the rate is limited");
    assert_eq!(refused.exception().1, "RetriableException");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(answers.iter().filter(|answer| answer.status == 200).count() >= 5);
    eventually("requests are accepted again", || {
        (http.call("GET", "/?op=GETHOMEDIRECTORY").status == 200).then_some(())
    });
    assert!(cluster.log("gateway").contains("kind=Limit"));
}

/// Returns the Python with the packages `hdfs` and `fsspec`: that of the system, or that of a virtual
/// environment in the build folder, which is made once. None, with a message, if neither works.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| {
        let imports = "hdfs, fsspec, requests";
        let of_system = python_package::can_import(Path::new("python3"), imports).then(|| "python3".into());
        of_system.or_else(|| python_package::virtual_environment(&["hdfs", "fsspec", "requests"], imports))
    });
    if found.is_none() {
        skip("webhdfs-clients", "the packages hdfs and fsspec of PyPI cannot be installed");
    }
    found.as_deref()
}

fn clients(python: &Path, mode: &str, http: &Http) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/gateway/clients.py");
    let mut command = Command::new(python);
    command.arg(script).args([mode, &http.url(), &http.token]);
    command
}

#[test]
fn python_clients_work_unchanged() {
    let Some(python) = python() else { return };
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    let ran = clients(python, "all", &Http::of(&cluster)).output().expect("python3 runs");
    let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{errors}{}", cluster.log("gateway"));
    println!("{out}");
}

#[test]
fn python_clients_continue_while_a_datanode_and_the_leader_are_killed() {
    let Some(python) = python() else { return };
    let cluster = Cluster::up(Up { nodes: 3, masters: 3, ..Up::default() });
    let http = Http::of(&cluster);
    let stop = cluster.path("stop");
    let mut running = clients(python, "faults", &http)
        .arg(&stop)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(cluster.path("errors")).expect("our folder"))
        .spawn()
        .expect("python3 runs");
    let mut lines = BufReader::new(running.stdout.take().expect("its output")).lines();
    let errors = || fs::read_to_string(cluster.path("errors")).unwrap_or_default();
    let mut await_rounds = |count: usize| {
        for _ in 0..count {
            let line = lines.next().and_then(Result::ok);
            assert!(line.is_some(), "it failed: {}{}", errors(), cluster.log("gateway"));
        }
    };
    await_rounds(2);
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "datanode"]);
    await_rounds(3);
    let leader = masters::leader(&cluster);
    cluster.mrctl(&["chaos", "kill", &leader]);
    await_rounds(3);
    fs::write(&stop, "").expect("our folder");
    let ended = running.wait().expect("our child");
    assert!(ended.success(), "{}{}", errors(), cluster.log("gateway"));
}
