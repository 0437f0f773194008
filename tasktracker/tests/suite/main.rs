//! Tests a real tracker with real processes and a fake JobTracker.

mod attempts;
mod daemon_process;
mod failover;
mod jobtracker;
mod limits;
mod process_reuse;
mod side_files;
mod tracker;

use daemon::{Bytes, config::Config};
use fermata_tasktracker::TaskTracker;
use jobtracker::JobTracker;
use proto::mr::{Launch, Partition, Program, Split, TaskSpec, order, program, task_spec};
use std::{
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::{Mutex, MutexGuard};

/// Locked during each test, so that tests run one after the other: some count the open files of
/// this process.
static TEST_LOCK: Mutex<()> = Mutex::const_new(());

/// A fake JobTracker and a tracker that is connected to it.
struct World {
    tracker: Option<TaskTracker>,
    jobtracker: JobTracker,
    config: Config,
    dir: tempfile::TempDir,
    _test_lock: MutexGuard<'static, ()>,
}

impl World {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut world = Self::without_tracker(change).await;
        world.start_tracker().await;
        world
    }

    async fn without_tracker(change: impl FnOnce(&mut Config)) -> Self {
        let test_lock = TEST_LOCK.lock().await;
        let dir = tempfile::tempdir().unwrap();
        let (jobtracker, addr) = JobTracker::start().await;
        let mut config = Config::default();
        config.cluster.jobtracker = addr.into();
        config.tasktracker.node = "here".into();
        config.tasktracker.listen = "127.0.0.1:0".into();
        config.tasktracker.dirs = vec![dir.path().join("one")];
        config.tasktracker.reserve = Bytes(0);
        // Let tasks run as root, because root may run these tests.
        config.tasktracker.tasks_as_root = true;
        config.tasktracker.map_slots = 4;
        config.tasktracker.reduce_slots = 4;
        change(&mut config);
        Self { tracker: None, jobtracker, config, dir, _test_lock: test_lock }
    }

    async fn start_tracker(&mut self) {
        self.start_tracker_with(&fake_task()).await;
    }

    async fn start_tracker_with(&mut self, program: &Path) {
        let tracker = TaskTracker::start(&self.config, Some(program)).await.unwrap();
        tracker.ready().await.unwrap();
        self.tracker = Some(tracker);
    }

    async fn stop_tracker(&mut self) {
        self.tracker.take().unwrap().stop().await;
    }

    fn tracker(&self) -> &TaskTracker {
        self.tracker.as_ref().unwrap()
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("one")
    }

    /// Launches an attempt whose process does what `fake` requests (see `examples/fake_task.rs`).
    fn launch(&self, attempt: &str, fake: &str) {
        self.launch_spec(spec(attempt, fake));
    }

    fn launch_spec(&self, spec: TaskSpec) {
        self.jobtracker.order(order::Kind::Launch(Launch { task: Some(spec), ..Launch::default() }));
    }

    async fn log(&self, attempt: &str, stderr: bool, tail_bytes: u64) -> Result<String, tonic::Status> {
        let at = format!("http://{}", self.tracker().logs_addr());
        let mut client = proto::mr::tracker_logs_client::TrackerLogsClient::connect(at).await.unwrap();
        let request = proto::mr::LogRequest { attempt: attempt.into(), stderr, tail_bytes };
        let mut stream = client.log(request).await?.into_inner();
        let mut text = Vec::new();
        while let Some(chunk) = stream.message().await? {
            text.extend(chunk.data);
        }
        Ok(String::from_utf8(text).unwrap())
    }

    /// Waits until an attempt has printed the PID of its child process, and returns the PID.
    async fn grandchild(&self, attempt: &str) -> u32 {
        until("the grandchild's PID", || async {
            let log = self.log(attempt, false, 0).await.unwrap_or_default();
            log.lines().find_map(|line| line.strip_prefix("grandchild ")?.parse().ok())
        })
        .await
    }
}

/// Calls `look` repeatedly until it returns a value. Panics if this takes too long.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    for _ in 0..4000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timeout while waiting for {what}");
}

async fn until_true(what: &str, look: impl Fn() -> bool) {
    until(what, || async { look().then_some(()) }).await;
}

fn spec(attempt: &str, fake: &str) -> TaskSpec {
    let map = attempt.contains(".m");
    let split = Split { source: "/in".into(), start: 0, end: 10, whole: false, ..Split::default() };
    TaskSpec {
        attempt: attempt.into(),
        job_name: "a test".into(),
        user: "tester".into(),
        program: Some(Program {
            kind: Some(program::Kind::Builtin("fake".into())),
            files: vec![],
            settings: vec![],
        }),
        conf: [("fake".to_string(), fake.to_string())].into(),
        input: Some(if map {
            task_spec::Input::Split(split)
        } else {
            task_spec::Input::Partition(Partition { index: 0, maps: 2 })
        }),
        reduces: 2,
        shuffle_token: b"secret".to_vec(),
        ..TaskSpec::default()
    }
}

fn fake_task() -> PathBuf {
    example("fake_task")
}

/// Returns the path of an example program, which `cargo test` builds together with the tests.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let path = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: cargo build --examples", path.display());
    path
}

/// Returns the state letter and the parent of a process, if it exists.
fn state_of(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields follow the name of the program, which ends with the last bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_dead(pid: u32) -> bool {
    // A zombie counts as dead. Init reaps orphans, but this may take time, and in a container there
    // may be no init.
    state_of(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

/// Returns all files below a folder, as relative paths.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}
