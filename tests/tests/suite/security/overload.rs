//! Abuse of the masters: thousands of calls that never end, and requests that never arrive
//! completely. Eighty connections have no credential, and in the closed cluster twenty more are
//! those of a user. Checks that heartbeats, admin calls, jobs and memory are not affected.
//!
//! A call counts as sent when its headers were written to a connection. The limits of the server
//! decide how many calls it keeps; it refuses the others. Every run checks what does not depend on
//! the speed of the machine: no call of an admin is refused, no node becomes suspect or registers
//! again, the job succeeds, and memory is bounded. Latencies are checked only in the run of a
//! minute, which is started alone on an idle machine. The short run shares the machine with other
//! tests and only prints them.

mod attack;

use super::{Lab, Validity};
use attack::Attack;
use fermata_tests::{Cluster, Up};
use proto::{dfs::ReportRequest, mr::JobsRequest};
use security::{Credentials, Role};
use std::{
    fs,
    time::{Duration, Instant},
};
use tonic::{Request, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

/// Duration of the abuse in the test that is always run.
const ABUSE_TIME: Duration = Duration::from_secs(15);
/// Duration of the abuse in the long test.
const ABUSE_TIME_LONG: Duration = Duration::from_mins(1);
/// Minimum number of calls that are sent to each master.
const SENT_MIN: usize = 10_000;
/// The abusive user.
const ABUSIVE_USER: &str = "mallory";
/// Maximum p99 latency of an admin call in the long test.
const LATENCY_MAX: Duration = Duration::from_millis(200);
/// Maximum growth of the resident memory of a master.
const GROWTH_MAX: u64 = 64 << 20;
/// Maximum duration of the job in the long test, relative to its usual time. [`JOB_SLACK`] is
/// added.
const JOB_RATIO: f64 = 1.25;
/// Time that is added to the maximum duration of the job.
const JOB_SLACK: Duration = Duration::from_secs(2);
/// Settings with which a busy machine misses no heartbeats.
const SETTINGS: &str = "[namenode]\nheartbeat = \"500ms\"\nsuspect_after = \"3s\"\ndead_after = \"20s\"\n\
    [jobtracker]\nheartbeat = \"500ms\"\nsuspect_after = \"3s\"\nlost_after = \"20s\"\n";

/// A cluster that is abused, and the credentials of its callers.
struct AttackedCluster {
    cluster: Cluster,
    admin: Credentials,
    attacker: Credentials,
    /// An ordinary user who abuses the masters too.
    mallory: Option<Credentials>,
    /// Arguments of `mrctl` with which jobs are submitted.
    user: Vec<String>,
}

impl AttackedCluster {
    fn open() -> Self {
        let cluster = Cluster::up(Up { nodes: 2, settings: SETTINGS, open: true, ..Up::default() });
        let (admin, attacker) = (Credentials::default(), Credentials::default());
        Self { cluster, admin, attacker, mallory: None, user: Vec::new() }
    }

    /// Uses a closed cluster. The returned folder must exist as long as the cluster.
    fn closed(lab: Lab) -> (Self, tempfile::TempDir) {
        let (admin, attacker) = (lab.credentials(Role::Admin, "boss", Validity::Valid), lab.nobody());
        lab.cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
        lab.cluster.mrctl(&["fs", "chown", "ann", "/home/ann"]);
        let user = vec!["--config".to_owned(), lab.config_of("ann", false)];
        let mallory = Some(lab.credentials(Role::User, ABUSIVE_USER, Validity::Valid));
        (Self { cluster: lab.cluster, admin, attacker, mallory, user }, lab.folder)
    }

    fn state(&self, file: &str) -> String {
        fs::read_to_string(self.cluster.path(".fermata").join(file)).unwrap()
    }

    /// Returns the address of a master.
    fn address(&self, master: Role) -> String {
        let table: toml::Table = self.state("fermata.toml").parse().unwrap();
        table["cluster"][master.name()].as_str().unwrap().to_owned()
    }

    /// Returns a memory figure of a master in bytes.
    fn memory(&self, master: Role, figure: &str) -> u64 {
        let state: serde_json::Value = serde_json::from_str(&self.state("cluster.json")).unwrap();
        let all = state["daemons"].as_array().unwrap();
        let pid = &all.iter().find(|daemon| daemon["kind"] == master.name()).unwrap()["pid"];
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(figure)).unwrap();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() << 10
    }

    /// Returns how often each DataNode and each tracker has registered. Counted in the logs of the
    /// nodes, because masters do not log every registration.
    fn registrations(&self) -> Vec<usize> {
        let is_one = |line: &&str| line.contains(" registered") && !line.contains("not registered");
        let count = |daemon: &&str| self.cluster.log(daemon).lines().filter(is_one).count();
        ["node1-datanode", "node2-datanode", "node1-tasktracker", "node2-tasktracker"]
            .iter()
            .map(count)
            .collect()
    }

    /// Runs a job whose tasks mostly wait, and returns its duration.
    fn job(&self, output: &str) -> Duration {
        let mut args: Vec<&str> = self.user.iter().map(String::as_str).collect();
        let output = format!("{}/{output}", self.home());
        let input = format!("{}/in", self.home());
        let begin = Instant::now();
        args.extend(["submit", "streaming", "--mapper", "sh -c 'sleep 2; cat'", "--input", &input]);
        args.extend(["--output", &output]);
        self.cluster.mrctl(&args);
        begin.elapsed()
    }

    fn home(&self) -> &'static str {
        if self.user.is_empty() { "" } else { "/home/ann" }
    }

    fn prepare(&self) {
        fs::write(self.cluster.path("in"), "a line\n".repeat(400_000)).unwrap();
        let (from, to) = (self.cluster.path("in").display().to_string(), format!("{}/in", self.home()));
        let mut args: Vec<&str> = self.user.iter().map(String::as_str).collect();
        args.extend(["fs", "put", &from, &to]);
        self.cluster.mrctl(&args);
    }
}

/// Calls both masters one after the other, every fifth time on a new connection.
struct Admin<'a> {
    subject: &'a AttackedCluster,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Admin<'a> {
    fn new(subject: &'a AttackedCluster) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { subject, runtime }
    }

    async fn ask(&self, master: Role, channel: tonic::transport::Channel) -> Result<(), tonic::Status> {
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
        let who = "boss".parse().unwrap();
        if master == Role::NameNode {
            let mut request = Request::new(ReportRequest::default());
            self.subject.admin.sign(request.metadata_mut(), &who);
            let path = PathAndQuery::from_static("/fermata.dfs.v1.NameNode/Report");
            let codec = ProstCodec::<ReportRequest, proto::dfs::ReportReply>::default();
            grpc.unary(request, path, codec).await.map(drop)
        } else {
            let mut request = Request::new(JobsRequest::default());
            self.subject.admin.sign(request.metadata_mut(), &who);
            let path = PathAndQuery::from_static("/fermata.mr.v1.JobTracker/Jobs");
            let codec = ProstCodec::<JobsRequest, proto::mr::JobsReply>::default();
            grpc.unary(request, path, codec).await.map(drop)
        }
    }

    /// Makes admin calls for the given time, and returns their sorted latencies. Calls `watch` from
    /// time to time.
    fn latencies(&self, lasts: Duration, mut watch: impl FnMut()) -> Vec<Duration> {
        let masters = [Role::NameNode, Role::JobTracker];
        let channel = |master| {
            let endpoint = self.subject.admin.endpoint(&self.subject.address(master), master).unwrap();
            let within = Duration::from_secs(20);
            endpoint.with(|endpoint| endpoint.connect_timeout(within).timeout(within)).connect_lazy()
        };
        let (begin, mut took) = (Instant::now(), Vec::new());
        let mut channels = self.runtime.block_on(async { masters.map(channel) });
        while begin.elapsed() < lasts {
            if took.len() % 10 == 0 {
                channels = self.runtime.block_on(async { masters.map(channel) });
            }
            if took.len() % 50 == 0 {
                watch();
            }
            for (master, channel) in masters.into_iter().zip(&channels) {
                let since = Instant::now();
                let asked = self.runtime.block_on(self.ask(master, channel.clone()));
                asked.unwrap_or_else(|status| panic!("the {} refused an admin: {status}", master.title()));
                took.push(since.elapsed());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        took.sort();
        took
    }
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 99).div_ceil(100).saturating_sub(1)]
}

fn check_all_live(cluster: &Cluster) {
    let nodes = cluster.json(&["nodes"]);
    let live = |node: &serde_json::Value| node["state"] == "live" && node["tracker"]["state"] == "live";
    assert!(nodes.as_array().unwrap().iter().all(live), "a heartbeat was missed: {nodes}");
}

/// Measures without and with abuse, and compares the results.
fn check_abuse(subject: &AttackedCluster, hold: Duration) {
    let masters = [Role::NameNode, Role::JobTracker];
    subject.prepare();
    subject.job("first");
    let usual_job = subject.job("usual");
    let admin = Admin::new(subject);
    let usual = admin.latencies(Duration::from_secs(5), || check_all_live(&subject.cluster));
    let registered = subject.registrations();
    assert!(
        registered.iter().all(|count| *count >= 1),
        "the logs do not contain registrations: {registered:?}"
    );
    let before = masters.map(|master| subject.memory(master, "VmRSS:"));

    let targets = masters.map(|master| (master, subject.address(master)));
    let mallory = subject.mallory.as_ref().map(|credentials| (credentials, ABUSIVE_USER));
    let attack = Attack::begin(&subject.attacker, mallory, &targets);
    let (under, job) = std::thread::scope(|scope| {
        let job = scope.spawn(|| subject.job("under-abuse"));
        let under = admin.latencies(hold, || check_all_live(&subject.cluster));
        (under, job.join().expect("the job succeeds"))
    });
    for master in masters {
        subject.cluster.mrctl(&["health", master.name()]);
    }
    let sums = attack.end();

    let growth: Vec<u64> = std::iter::zip(masters, before)
        .map(|(master, before)| subject.memory(master, "VmHWM:").saturating_sub(before))
        .collect();
    let (usual_p99, under_p99) = (p99(&usual), p99(&under));
    println!(
        "{} and {} calls sent, up to {} and {} open at once; admin median {:?}, p99 {under_p99:?} of {} (usually {:?}, {usual_p99:?}); \
         job {job:?} (usually {usual_job:?}); memory +{} and +{} KiB",
        sums[0].sent,
        sums[1].sent,
        sums[0].most,
        sums[1].most,
        under[under.len() / 2],
        under.len(),
        usual[usual.len() / 2],
        growth[0] >> 10,
        growth[1] >> 10,
    );
    assert!(
        sums.iter().all(|sum| sum.sent >= SENT_MIN),
        "the abuse never sent its {SENT_MIN} calls to each master"
    );
    assert_eq!(subject.registrations(), registered, "nodes have registered again");
    assert!(growth.iter().all(|growth| *growth <= GROWTH_MAX), "memory grew by {growth:?} bytes");
    if hold == ABUSE_TIME_LONG {
        assert!(under_p99 < LATENCY_MAX, "the p99 latency of admin calls is too high: {under_p99:?}");
        assert!(
            job < usual_job.mul_f64(JOB_RATIO) + JOB_SLACK,
            "the job took {job:?}, usually {usual_job:?}"
        );
    }
}

fn check_abuse_of_closed_cluster(hold: Duration) {
    let (subject, _folder) = AttackedCluster::closed(Lab::up_with(true, SETTINGS, ""));
    check_abuse(&subject, hold);
    // The log contains caller, kind and number of the refusals, in few lines.
    for master in ["namenode", "jobtracker"] {
        let log = subject.state(&format!("logs/{master}.log"));
        let lines = log.lines().filter(|line| line.contains("refused a call")).count();
        let most = (hold.as_secs() as usize + 60) * 3;
        assert!((1..most).contains(&lines), "{lines} lines about refusals in the log of the {master}");
    }
}

#[test]
fn abuse_does_not_disturb_a_closed_cluster() {
    check_abuse_of_closed_cluster(ABUSE_TIME);
}

#[test]
#[ignore = "a minute of abuse"]
fn abuse_for_a_minute_does_not_disturb_a_closed_cluster() {
    check_abuse_of_closed_cluster(ABUSE_TIME_LONG);
}

#[test]
fn abuse_does_not_disturb_an_open_cluster() {
    check_abuse(&AttackedCluster::open(), ABUSE_TIME);
}

#[test]
#[ignore = "a minute of abuse"]
fn abuse_for_a_minute_does_not_disturb_an_open_cluster() {
    check_abuse(&AttackedCluster::open(), ABUSE_TIME_LONG);
}

/// Checks that the log of a daemon contains who was refused what, and why.
#[test]
fn refused_access_is_in_the_log_with_who_what_and_why() {
    let lab = Lab::up(true, "");
    lab.cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
    lab.cluster.mrctl(&["fs", "chmod", "700", "/home/ann"]);
    // The gate refuses a method that is not for users. The NameNode refuses access to a folder that
    // is not bob's.
    for args in [&["fs", "safemode", "on"][..], &["fs", "ls", "/home/ann"]] {
        assert_ne!(lab.run("bob", args).code, 0, "{args:?}");
        // The log contains at most one line of a kind per second, so the call is repeated.
        let log = || fs::read_to_string(lab.cluster.path(".fermata/logs/namenode.log")).unwrap();
        let method = if args[1] == "ls" { "NameNode/" } else { "NameNode/SetSafemode" };
        let line = fermata_tests::eventually("the log has a line about the refusal", || {
            lab.run("bob", args);
            let log = log();
            log.lines()
                .rev()
                .find(|line| line.contains("refused a call") && line.contains(method))
                .map(str::to_owned)
        });
        for word in ["WARN", "Permission", "\"bob\"", "user", "127.0.0.1:"] {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
}

#[test]
fn health_names_the_daemon_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("fermata.toml");
    fs::write(&config, "[cluster]\nnamenode = \"127.0.0.1:1\"\njobtracker = \"127.0.0.1:1\"\n").unwrap();
    for (master, title) in [("namenode", "NameNode"), ("jobtracker", "JobTracker")] {
        let mut health = std::process::Command::new(fermata_tests::binaries().join("mrctl"));
        let ran = health.arg("--config").arg(&config).args(["health", master]).output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{printed}");
        assert!(printed.contains(&format!("the {title} at 127.0.0.1:1 does not answer")), "{printed}");
    }
}
