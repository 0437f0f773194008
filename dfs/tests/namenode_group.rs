//! Three NameNode processes that are a group: they join, leaders are killed, and what was
//! acknowledged is still there.

mod with_datanodes;

use daemon::config::ClientConfig;
use dfs_client::{
    Client, ClientOptions,
    error::{Kind, from_status},
    group::{ChangeResult, GroupChange, GroupClient},
    path::DfsPath,
};
use proto::dfs::{MkdirRequest, ReportRequest, StatRequest, name_node_client::NameNodeClient};
use security::{Credentials, Role};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tonic::{Status, transport::Channel};

/// How long anything may take.
const LIMIT: Duration = Duration::from_mins(1);

struct NameNode {
    process: Child,
    address: String,
}

impl Drop for NameNode {
    fn drop(&mut self) {
        // It may be killed already.
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

impl NameNode {
    /// Kills the process without any notice to it.
    fn kill(self) -> String {
        self.address.clone()
    }

    /// Stops the process as a supervisor does, and waits for its end.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }

    fn client(&self) -> NameNodeClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        NameNodeClient::new(endpoint.connect_lazy())
    }

    /// Creates a folder. Repeats of one call have the same ID.
    async fn mkdir(&self, id: u128, path: &str) -> Result<(), Status> {
        let request_id = id.to_be_bytes().to_vec();
        let request = MkdirRequest { request_id, path: path.into(), parents: false, mode: 0 };
        let answer = timeout(Duration::from_secs(5), self.client().mkdir(request)).await;
        answer.unwrap_or_else(|_| Err(Status::unavailable("no answer"))).map(drop)
    }

    async fn stat(&self, path: &str) -> Result<(), Status> {
        let request = StatRequest { path: path.into(), for_create: false, entries: 0, access: 0 };
        self.client().stat(request).await.map(drop)
    }
}

struct Lab {
    folder: TempDir,
    /// Where the members listen: the address of each is known before it is started.
    addresses: [String; 3],
}

impl Lab {
    fn new() -> Self {
        let free = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = free.map(|listener| listener.local_addr().unwrap().to_string());
        Self { folder: tempfile::tempdir().unwrap(), addresses }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, name: &str, listen: &str, settings: &str) -> Command {
        let config = self.file(&format!("{name}.toml"));
        let namenodes = &self.addresses;
        fs::write(&config, format!("[cluster]\nnamenode = {namenodes:?}\n[namenode]\n{settings}\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_namenode"));
        command.arg("--config").arg(config).args(["--listen", listen]).arg("--dir").arg(self.file(name));
        command.arg("--ready-file").arg(self.file(&format!("{name}.ready")));
        command.stderr(
            File::options().create(true).append(true).open(self.file(&format!("{name}.log"))).unwrap(),
        );
        command
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.file(&format!("{name}.log"))).unwrap()
    }

    async fn start(&self, name: &str, listen: &str, settings: &str) -> NameNode {
        self.start_with(name, listen, settings, &[]).await
    }

    async fn start_with(&self, name: &str, listen: &str, settings: &str, flags: &[&str]) -> NameNode {
        let ready = self.file(&format!("{name}.ready"));
        let _absent = fs::remove_file(&ready);
        let process = self.command(name, listen, settings).args(flags).spawn().unwrap();
        let mut namenode = NameNode { process, address: String::new() };
        let end = Instant::now() + LIMIT;
        loop {
            if let Ok(address) = fs::read_to_string(&ready) {
                namenode.address = address.trim().into();
                return namenode;
            }
            assert!(Instant::now() < end, "{name} is not ready: {}", self.log(name));
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts a member that waits to join, until its log has the reason. Returns its log.
    async fn start_refused(&self, name: &str, settings: &str) -> String {
        let process = self.command(name, "127.0.0.1:0", settings).spawn().unwrap();
        let _waiting = NameNode { process, address: String::new() };
        self.wait_for_log(name, "waits to join its group", 1).await;
        self.log(name)
    }

    async fn wait_for_log(&self, name: &str, text: &str, times: usize) {
        let end = Instant::now() + LIMIT;
        while self.log(name).matches(text).count() < times {
            assert!(
                Instant::now() < end,
                "the log of {name} has not {times} times {text:?}: {}",
                self.log(name)
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Creates a folder at whatever member leads. Returns its place in the list.
async fn mkdir(members: &[&NameNode], id: u128, path: &str) -> usize {
    let end = Instant::now() + LIMIT;
    loop {
        for (at, member) in members.iter().enumerate() {
            match member.mkdir(id, path).await {
                Ok(()) => return at,
                Err(error) => assert!(Instant::now() < end, "{path}: {error}"),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_join_and_survive_the_loss_of_their_leader() {
    let lab = Lab::new();
    // The first is one NameNode before it becomes the first of a group.
    let [first, second, third] = &lab.addresses;
    let one = lab.start("n1", first, "").await;
    one.mkdir(1, "/tmp/one").await.unwrap();
    drop(one);
    let one = lab.start("n1", first, "member = 1").await;
    let join = |id: u64| format!("member = {id}\njoin = [\"127.0.0.1:1\", \"{}\"]", one.address);
    let two = lab.start("n2", second, &join(2)).await;
    let three = lab.start("n3", third, &join(3)).await;
    mkdir(&[&one], 2, "/tmp/two").await;
    lab.wait_for_log("n1", "a member was added to the group", 2).await;

    // A member that does not lead says who does.
    let refused = from_status(&two.stat("/tmp/one").await.unwrap_err()).unwrap();
    assert_eq!(
        (refused.kind, refused.leader.map(|leader| leader.addr)),
        (Kind::NotLeader, Some(one.address.clone()))
    );
    let unknown = lab.start_refused("unknown", &join(4)).await;
    assert!(unknown.contains("is not in cluster.namenode of the NameNode that leads"), "{unknown}");
    // A member that has lost its folder must not vote again in its name.
    let lost = lab.start_refused("lost", &join(2)).await;
    assert!(lost.contains("member 2 of the group is at"), "{lost}");

    let masters = [&one, &two, &three].map(|member| member.address.clone()).join(",");
    let client = Client::connect(ClientOptions::new(masters, ClientConfig::default())).await.unwrap();
    let path = |text: &str| DfsPath::parse(text).unwrap();
    client.mkdir(&path("/tmp/client"), false).await.unwrap();

    let address = one.kill();
    client.mkdir(&path("/tmp/client/after"), false).await.unwrap();
    let leader = [&two, &three][mkdir(&[&two, &three], 3, "/tmp/three").await];
    for path in ["/tmp/one", "/tmp/two", "/tmp/three"] {
        leader.stat(path).await.unwrap();
    }
    // A repeated request is recognised by the new leader.
    leader.mkdir(2, "/tmp/two").await.unwrap();
    leader.mkdir(9, "/tmp/two").await.unwrap_err();

    // The old leader comes back, and then the new one is lost.
    let one = lab.start("n1", &address, "member = 1").await;
    mkdir(&[&two, &three], 4, "/tmp/four").await;
    let refused = one.stat("/tmp/four").await.unwrap_err();
    assert_eq!(from_status(&refused).unwrap().kind, Kind::NotLeader);
    let (lost, other) = if leader.address == two.address { (two, three) } else { (three, two) };
    lost.kill();
    let leader = [&one, &other][mkdir(&[&one, &other], 5, "/tmp/five").await];
    leader.stat("/tmp/four").await.unwrap();
    client.stat(&path("/tmp/client/after")).await.unwrap();
}

#[tokio::test]
async fn the_folder_of_a_member_is_that_of_one_namenode_only_without_other_members() {
    let lab = Lab::new();
    let [first, second, _] = &lab.addresses;
    let one = lab.start("n1", first, "member = 1").await;
    let two = lab.start("n2", second, &format!("member = 2\njoin = [{first:?}]")).await;
    lab.wait_for_log("n1", "a member was added to the group", 1).await;
    one.mkdir(1, "/tmp/one").await.unwrap();
    // The group serves.
    let status = lab.command("n2", "127.0.0.1:0", "member = 2").arg("--recover").status().unwrap();
    assert!(!status.success() && lab.log("n2").contains("in use"), "{}", lab.log("n2"));
    drop((one, two));
    for (settings, why) in [("", "set namenode.member"), ("member = 3", "this is member 3")] {
        let status = lab.command("n1", "127.0.0.1:0", settings).status().unwrap();
        assert!(!status.success() && lab.log("n1").contains(why), "{}", lab.log("n1"));
    }
    // With --recover it is the only one of a new group, and knows the old one no more.
    let one = lab.start_with("n1", first, "member = 1", &["--recover"]).await;
    mkdir(&[&one], 2, "/tmp/two").await;
    let old = lab.command("n2", second, "member = 2").spawn().unwrap();
    let old = NameNode { process: old, address: second.clone() };
    drop(one);
    let one = lab.start("n1", first, "member = 1").await;
    mkdir(&[&one], 3, "/tmp/three").await;
    old.stat("/tmp/one").await.unwrap_err();
    drop(one);
    // Alone in its group, it may be without one.
    let one = lab.start("n1", first, "").await;
    for path in ["/tmp/one", "/tmp/two", "/tmp/three"] {
        one.stat(path).await.unwrap();
    }
    one.mkdir(4, "/tmp/four").await.unwrap();
    drop(one);
    let one = lab.start("n1", first, "member = 1").await;
    mkdir(&[&one], 5, "/tmp/five").await;
    one.stat("/tmp/four").await.unwrap();
}

/// Flips a bit in the middle of the newest segment of an edit log that has records.
fn damage_log(folder: &Path) {
    let files = fs::read_dir(folder.join("edits")).unwrap().map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let newest = segments.filter(|path| fs::metadata(path).unwrap().len() > 200).max().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(newest, bytes).unwrap();
}

#[tokio::test]
async fn edits_that_are_lost_when_a_namenode_becomes_a_member_are_reported() {
    let lab = Lab::new();
    let [first, ..] = &lab.addresses;
    let one = lab.start("n1", first, "").await;
    for number in 0..20 {
        one.mkdir(number, &format!("/tmp/d{number}")).await.unwrap();
    }
    one.stop();
    damage_log(&lab.file("n1"));
    let status = lab.command("n1", first, "member = 1").status().unwrap();
    assert!(!status.success() && lab.log("n1").contains("--recover"), "{}", lab.log("n1"));
    let one = lab.start_with("n1", first, "member = 1", &["--recover"]).await;
    mkdir(&[&one], 100, "/tmp/new").await;
    let report = one.client().report(ReportRequest::default()).await.unwrap().into_inner();
    assert!(report.lost_edits.contains("--recover dropped a damaged part"), "{:?}", report.lost_edits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_a_damaged_log_waits_for_a_leader_and_joins_with_another_id() {
    let lab = Lab::new();
    let [first, second, third] = &lab.addresses;
    let join = |id: u64| format!("member = {id}\njoin = [{first:?}]");
    let one = lab.start("n1", first, "member = 1").await;
    let two = lab.start("n2", second, &join(2)).await;
    let three = lab.start("n3", third, &join(3)).await;
    lab.wait_for_log("n1", "a member was added to the group", 2).await;
    mkdir(&[&one, &two, &three], 1, "/tmp/one").await;
    // The leader loses a part of its log, and there is no majority.
    one.stop();
    three.stop();
    damage_log(&lab.file("n1"));
    let waiting = lab.command("n1", first, "member = 1").spawn().unwrap();
    let waiting = NameNode { process: waiting, address: first.clone() };
    lab.wait_for_log("n1", "it never votes again with its ID", 1).await;
    lab.wait_for_log("n1", "waits to join its group", 1).await;
    two.mkdir(2, "/tmp/two").await.unwrap_err();
    // It is started again while it waits, or while it asks to be added: the second member may still
    // have answered as the leader.
    drop(waiting);
    let waiting = lab.command("n1", first, "member = 1").spawn().unwrap();
    let one = NameNode { process: waiting, address: first.clone() };
    let three = lab.start("n3", third, &join(3)).await;
    mkdir(&[&two, &three], 3, "/tmp/three").await;
    let exchanged = |name: &str| lab.log(name).contains("a member that has lost its log was exchanged");
    let end = Instant::now() + LIMIT;
    while !exchanged("n2") && !exchanged("n3") {
        assert!(Instant::now() < end, "{}{}{}", lab.log("n1"), lab.log("n2"), lab.log("n3"));
        sleep(Duration::from_millis(50)).await;
    }
    // It votes, and has everything.
    two.stop();
    let leader = [&one, &three][mkdir(&[&one, &three], 4, "/tmp/four").await];
    for path in ["/tmp/one", "/tmp/three"] {
        leader.stat(path).await.unwrap();
    }
}

/// Creates folders until `stop` is set. Each call must succeed. Returns the number, and the longest
/// time of a call.
async fn make_folders(client: Client, name: usize, stop: Arc<AtomicBool>) -> (u64, Duration) {
    let mut longest = Duration::ZERO;
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return (number, longest);
        }
        let begin = Instant::now();
        let path = DfsPath::parse(&format!("/tmp/c{name}-{number}")).unwrap();
        client.mkdir(&path, false).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        longest = longest.max(begin.elapsed());
    }
    unreachable!("the loop has no end");
}

/// Requests a change until it is made. Returns the new leader after a transfer.
async fn change(group: &GroupClient, change: GroupChange) -> Result<String, String> {
    let end = Instant::now() + LIMIT;
    loop {
        match group.change(&change, Duration::from_secs(5)).await? {
            ChangeResult::Done(leader) => return Ok(leader),
            ChangeResult::WaitsFor(what) => assert!(Instant::now() < end, "{what}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_write_while_the_leader_changes_and_each_member_is_restarted_and_replaced() {
    let lab = Lab::new();
    let settings = |id: usize| match id {
        1 => "member = 1".to_owned(),
        _ => format!("member = {id}\njoin = {:?}", lab.addresses),
    };
    let mut running = BTreeMap::new();
    for id in 1..=3 {
        running.insert(id, lab.start(&format!("n{id}"), &lab.addresses[id - 1], &settings(id)).await);
    }
    lab.wait_for_log("n1", "a member was added to the group", 2).await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let addresses = format!("{},{free}", lab.addresses.join(","));
    let group = GroupClient::new(Role::NameNode, &addresses.as_str().into(), Credentials::default()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for name in 0..3 {
        let options = ClientOptions::new(addresses.as_str(), ClientConfig::default());
        let client = Client::connect_with_retry(options).await.unwrap();
        clients.push(tokio::spawn(make_folders(client, name, stop.clone())));
    }
    for at in [1, 2, 0] {
        let to = lab.addresses[at].clone();
        assert_eq!(change(&group, GroupChange::Transfer(Some(to.clone()))).await.unwrap(), to);
    }
    let refused = change(&group, GroupChange::Transfer(Some("127.0.0.1:1".into()))).await.unwrap_err();
    assert!(refused.contains("127.0.0.1:1 is no member of the group"), "{refused}");
    // The first one leads. Each of the others leads when it is stopped, in turn.
    for (id, next) in [(1, 2), (2, 3), (3, 1)] {
        let name = format!("n{id}");
        running.remove(&id).unwrap().stop();
        lab.wait_for_log(&name, "this NameNode stops, so another one leads", 1).await;
        running.insert(id, lab.start(&name, &lab.addresses[id - 1], &settings(id)).await);
        let to = lab.addresses[next - 1].clone();
        assert_eq!(change(&group, GroupChange::Transfer(Some(to.clone()))).await.unwrap(), to);
    }
    // Another one takes the place of the leader.
    let of_four = settings(4);
    let starting = lab.start("n4", &free, &of_four);
    let (added, four) = tokio::join!(change(&group, GroupChange::Add(free.clone())), starting);
    added.unwrap();
    change(&group, GroupChange::Remove(lab.addresses[0].clone())).await.unwrap();
    running.remove(&1).unwrap().stop();
    change(&group, GroupChange::Transfer(Some(free.clone()))).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let (folders, longest) = client.await.unwrap();
        println!("{folders} folders, at most {longest:?} for one");
        assert!(folders > 0);
    }
    four.stat("/tmp/c0-0").await.unwrap();
}

#[tokio::test]
async fn a_member_needs_the_address_at_which_the_group_reaches_it() {
    let lab = Lab::new();
    let refused = async |listen: &str, settings: &str, why: &str| {
        let process = lab.command("n1", listen, settings).arg("--insecure").spawn().unwrap();
        let mut refused = NameNode { process, address: String::new() };
        lab.wait_for_log("n1", why, 1).await;
        assert!(!refused.process.wait().unwrap().success());
    };
    refused("0.0.0.0:0", "member = 1", "set namenode.advertise to host:port").await;
    let [first, second, _] = &lab.addresses;
    drop(lab.start("n1", first, "member = 1").await);
    refused(second, "member = 1", &format!("member 1 of the group is at {first}")).await;
    drop(lab.start("n1", second, &format!("member = 1\nadvertise = \"{first}\"")).await);
}
