//! Tests the side files of a job, with a DFS whose daemons run in this process.

use super::*;
use daemon::{Period, lifecycle::DaemonArgs};
use dfs::datanode::DataNode;
use dfs_client::{Client, ClientOptions, CreateOptions, path::DfsPath};
use proto::mr::attempt_report::Status as Report;

struct FileSystem {
    namenode: String,
    client: Client,
    _node: DataNode,
}

async fn start_dfs(folder: &Path) -> FileSystem {
    let mut config = Config::default();
    config.namenode.listen = "127.0.0.1:0".into();
    config.namenode.dir = folder.join("names");
    config.namenode.replication = 1;
    config.namenode.heartbeat = Period::millis(100);
    let ready = folder.join("ready");
    let args = DaemonArgs {
        config: None,
        print_config: false,
        log_format: daemon::logging::LogFormat::Human,
        log_max: daemon::Bytes(0),
        ready_file: Some(ready.clone()),
        insecure: false,
        security: daemon::SecurityArgs::default(),
    };
    let served = config.clone();
    tokio::spawn(async move { dfs::namenode::run(&served, &args, dfs::namenode::Recovery::Refuse).await });
    let address = || async { std::fs::read_to_string(&ready).ok().filter(|text| !text.trim().is_empty()) };
    let namenode = until("a NameNode", address).await.trim().to_owned();
    config.cluster.namenode = (&namenode).into();
    config.datanode.node = "n1".into();
    config.datanode.listen = "127.0.0.1:0".into();
    config.datanode.dirs = vec![folder.join("n1")];
    config.datanode.reserve = Bytes(0);
    let node = DataNode::start(&config).await.unwrap();
    node.ready().await.unwrap();
    let client = Client::connect(ClientOptions::new(&namenode, config.client.clone())).await.unwrap();
    FileSystem { namenode, client, _node: node }
}

impl FileSystem {
    async fn write(&self, to: &str, bytes: &[u8]) {
        let path = DfsPath::parse(to).unwrap();
        let mut file = self.client.create(&path, CreateOptions::default()).await.unwrap();
        file.write(bytes).await.unwrap();
        file.close().await.unwrap();
    }

    fn spec(&self, attempt: &str, fake: &str, files: &[&str]) -> TaskSpec {
        let mut spec = spec(attempt, fake);
        spec.namenodes = vec![self.namenode.clone()];
        if let Some(program) = &mut spec.program {
            program.files = files.iter().map(ToString::to_string).collect();
        }
        spec
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn side_files_are_readable_and_removed_with_the_job() {
    let world = World::start_with(|config| {
        let other = config.tasktracker.dirs[0].with_file_name("two");
        config.tasktracker.dirs.push(other);
    })
    .await;
    let dfs = start_dfs(world.dir.path()).await;
    dfs.write("/dict.txt", b"some words").await;
    world.launch_spec(dfs.spec("job_1.m0.0", "side:dict.txt", &["/dict.txt"]));
    assert!(matches!(world.jobtracker.end_of("job_1.m0.0").await, Report::Succeeded(_)));
    let log = world.log("job_1.m0.0", false, 0).await.unwrap();
    assert!(log.contains("some words with mode 555"), "{log}");
    // The stdout of a task is written to a different folder, so a side file may have this name.
    dfs.write("/stdout", b"mine").await;
    world.launch_spec(dfs.spec("job_2.m0.0", "side:stdout", &["/stdout"]));
    assert!(matches!(world.jobtracker.end_of("job_2.m0.0").await, Report::Succeeded(_)));
    let log = world.log("job_2.m0.0", false, 0).await.unwrap();
    assert!(log.contains("mine with mode 555"), "{log}");
    until_true("no process but the idle one", || world.tracker().processes() == 1).await;
    for job in ["job_1", "job_2"] {
        world.jobtracker.order(order::Kind::Clean(job.into()));
    }
    for name in ["one", "two"] {
        let jobs = world.dir.path().join(name).join("jobs");
        until_true("an empty folder", || std::fs::read_dir(&jobs).unwrap().next().is_none()).await;
    }
}
