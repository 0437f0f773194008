//! DataNodes and clients of a group of NameNode processes, in a closed cluster: DataNodes ask the
//! leader before they finalise a replica, and check the tokens that it has issued.

use super::{LIMIT, Lab, NameNode};
use daemon::{
    Bytes, Period,
    config::{ClientConfig, Config},
};
use dfs_client::{Client, ClientOptions, GetOptions, PutOptions, PutSource, path::DfsPath};
use fermata_dfs::datanode::DataNode;
use parking_lot::Mutex;
use security::{Credentials, Role};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep};

const BLOCK_BYTES: usize = 64 << 10;
const CLIENTS: u64 = 4;
const DATANODES: usize = 3;

struct Cluster {
    namenodes: BTreeMap<String, NameNode>,
    datanodes: Vec<DataNode>,
    /// The settings that all DataNodes and clients have.
    config: Config,
    // Deleted last.
    lab: Lab,
}

/// Bytes that differ between files and blocks.
fn contents(file: u64) -> Vec<u8> {
    let length = 10 * BLOCK_BYTES + 77 * file as usize % 1000;
    (0..length as u64).map(|at| (at ^ at >> 8 ^ (file * 0x9e37_79b9) >> (at % 24)) as u8).collect()
}

fn path(file: u64) -> DfsPath {
    DfsPath::parse(&format!("/data/f{file}")).unwrap()
}

impl Cluster {
    async fn start() -> Self {
        let lab = Lab::new();
        let secret = lab.file("secret");
        fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let settings = |member: &str| {
            let common = "heartbeat = \"100ms\"\nsuspect_after = \"30s\"\ndead_after = \"1m\"\nreplication = 2\n\
                          block_size = \"64KiB\"\nblock_size_min = \"64KiB\"";
            format!("{common}\n{member}\n[security]\nsecret = \"{}\"", secret.display())
        };
        let one = lab.start("n1", &lab.addresses[0], &settings("member = 1")).await;
        let join = |id: u64| settings(&format!("member = {id}\njoin = [\"{}\"]", one.address));
        let two = lab.start("n2", &lab.addresses[1], &join(2)).await;
        let three = lab.start("n3", &lab.addresses[2], &join(3)).await;
        lab.wait_for_log("n1", "a member was added to the group", 2).await;
        let mut config = Config::default();
        config.cluster.namenode = lab.addresses.join(",").into();
        config.security.secret = secret;
        let mut cluster = Self {
            namenodes: [("n1", one), ("n2", two), ("n3", three)].map(|(name, one)| (name.into(), one)).into(),
            datanodes: Vec::new(),
            config,
            lab,
        };
        for at in 1..=DATANODES {
            let node = DataNode::start(&cluster.datanode_config(at)).await.unwrap();
            node.ready().await.unwrap();
            cluster.datanodes.push(node);
        }
        cluster.client().await.mkdir(&DfsPath::parse("/data").unwrap(), true).await.unwrap();
        cluster
    }

    fn datanode_config(&self, at: usize) -> Config {
        let mut config = self.config.clone();
        config.datanode.node = format!("d{at}");
        config.datanode.listen = "127.0.0.1:0".into();
        config.datanode.dirs = vec![self.lab.file(&format!("d{at}"))];
        config.datanode.reserve = Bytes(0);
        config.datanode.scrub_rate = Bytes(0);
        config
    }

    async fn client(&self) -> Client {
        let credentials = Credentials::of_client(&self.config.security, "ann").unwrap();
        let config = ClientConfig { deadline: Period::secs(60), ..ClientConfig::default() };
        let options = ClientOptions::new(&self.config.cluster.namenode, config).with(credentials);
        Client::connect_with_retry(options).await.unwrap()
    }

    /// Returns the name of the member that has begun the newest leadership.
    fn leader(&self) -> String {
        let newest = |name: &String| {
            let log = self.lab.log(name);
            let last = log.lines().rfind(|line| line.contains("this NameNode leads its group"))?;
            last.split("epoch=").nth(1)?.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.namenodes.keys().max_by_key(|name| newest(name)).unwrap().clone()
    }

    /// Number of times that the members that run have registered a DataNode.
    fn registrations(&self) -> usize {
        let count = |name: &String| {
            let log = self.lab.log(name);
            log.lines()
                .filter(|line| line.contains("DataNode d"))
                .filter(|line| line.ends_with("registered") || line.ends_with("is back"))
                .count()
        };
        self.namenodes.keys().map(count).sum()
    }
}

async fn put(client: &Client, file: u64) {
    let bytes = contents(file);
    let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
    client
        .put(source, &path(file), PutOptions::default(), &())
        .await
        .unwrap_or_else(|error| panic!("put {file}: {error}"));
}

async fn check(client: &Client, lab: &Lab, file: u64, copy: &str) {
    let to = lab.file(copy);
    let got = client.get(&path(file), &to, GetOptions { overwrite: true }, &()).await;
    got.unwrap_or_else(|error| panic!("get {file}: {error}"));
    assert!(fs::read(&to).unwrap() == contents(file), "{file} has other bytes");
}

/// Checks that a supervisor with the credentials of the daemon may ask about the group.
async fn check_group(config: &Config) {
    let credentials = Credentials::of_daemon(config, Role::NameNode).unwrap();
    let options = ClientOptions::new(&config.cluster.namenode, config.client.clone()).with(credentials);
    let answers = dfs_client::group::ask(&options, LIMIT).await.unwrap();
    assert_eq!(answers.len(), 3);
    for (address, answer) in answers {
        assert_eq!(answer.map(|view| view.status.peers.len()), Ok(3), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_killed_during_puts_and_gets_loses_nothing() {
    let mut cluster = Cluster::start().await;
    check_group(&cluster.config).await;
    let end = Instant::now() + LIMIT;
    while cluster.registrations() < 3 * DATANODES {
        assert!(Instant::now() < end, "every DataNode registers with every NameNode");
        sleep(Duration::from_millis(20)).await;
    }
    let done: Arc<Mutex<Vec<u64>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..CLIENTS {
        let (client, done, stop) = (cluster.client().await, done.clone(), stop.clone());
        writers.spawn(async move {
            for file in (writer..).step_by(CLIENTS as usize) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                put(&client, file).await;
                done.lock().push(file);
            }
        });
    }
    let has_done = async |files: usize| {
        let end = Instant::now() + LIMIT;
        while done.lock().len() < files {
            assert!(Instant::now() < end, "{} of {files} files are put", done.lock().len());
            sleep(Duration::from_millis(5)).await;
        }
    };
    has_done(6).await;
    let first = done.lock()[0];
    let (reading, stop_reading, lab) = (cluster.client().await, stop.clone(), Lab::new());
    let reader = tokio::spawn(async move {
        let mut reads = 0;
        while !stop_reading.load(Ordering::SeqCst) {
            check(&reading, &lab, first, "read").await;
            reads += 1;
        }
        reads
    });
    let leader = cluster.leader();
    let before = done.lock().len();
    cluster.namenodes.remove(&leader).unwrap().kill();
    let killed = Instant::now();
    has_done(before + 3 * CLIENTS as usize).await;
    println!("{before} files before {leader} was killed; 12 more after {:?}", killed.elapsed());
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    assert!(reader.await.unwrap() > 0);

    let client = cluster.client().await;
    let files = done.lock().clone();
    for file in &files {
        check(&client, &cluster.lab, *file, "copy").await;
    }
    // The new leader has all locations from the reports that it got as a follower, and no others.
    let fsck = client.fsck(&DfsPath::root()).await.unwrap();
    assert!(fsck.problems.is_empty(), "{fsck:?}");
    assert_eq!(cluster.registrations(), 2 * DATANODES, "no DataNode has registered again");
    println!("{} files", files.len());
}
