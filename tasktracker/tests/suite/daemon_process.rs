//! Tests the tracker as a separate process: escaped processes, and processes that outlive a tracker
//! that was killed.

use super::*;
use proto::mr::attempt_report::Status as Report;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};

/// A tracker that runs as a separate process. It is killed when this value is dropped.
struct Daemon {
    world: World,
    child: Child,
}

impl Daemon {
    async fn start() -> Self {
        let world = World::without_tracker(|config| config.tasktracker.warm_tasks = 1).await;
        let child = spawn_tracker(&world).await;
        Self { world, child }
    }

    /// Waits until a running attempt has printed the PID of its child process, and returns the PID.
    async fn grandchild(&self, attempt: &str) -> u32 {
        let path = self.world.root().join("logs").join(attempt).join("stdout");
        until("the grandchild's PID", || async {
            let log = std::fs::read_to_string(&path).ok()?;
            log.lines().find_map(|line| line.strip_prefix("grandchild ")?.parse().ok())
        })
        .await
    }
}

impl Daemon {
    /// Returns the PID of the reaper, which is a child of the tracker that runs the same program.
    fn reaper(&self) -> i32 {
        let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_tasktracker")).unwrap();
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let lists: Vec<String> = lists.collect();
        let mut pids =
            lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok());
        let exe = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe"));
        pids.find(|pid| exe(pid).is_ok_and(|exe| exe == program)).expect("a reaper")
    }
}

async fn spawn_tracker(world: &World) -> Child {
    spawn_tracker_with(world, Command::new(env!("CARGO_BIN_EXE_tasktracker"))).await
}

/// Starts a tracker with this command, to which the arguments are added. Returns when it is
/// registered.
async fn spawn_tracker_with(world: &World, mut command: Command) -> Child {
    let config = world.dir.path().join("fermata.toml");
    std::fs::write(&config, world.config.print()).unwrap();
    let before = world.jobtracker.with(|received| received.registrations.len());
    let child = command
        .arg("--config")
        .arg(&config)
        .arg("--mrtask")
        .arg(fake_task())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    world.jobtracker.until("a registration", |received| received.registrations.get(before).map(drop)).await;
    child
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn kill_order(attempt: &str) -> order::Kind {
    order::Kind::Preempt(proto::mr::Preempt {
        attempt: attempt.into(),
        why: "enough".into(),
        kind: proto::mr::PreemptKind::Kill.into(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn escaped_process_dies_after_its_attempt() {
    let daemon = Daemon::start().await;
    let jobtracker = &daemon.world.jobtracker;
    daemon.world.launch("job_1.m0.0", "escape:hang");
    let of_running = daemon.grandchild("job_1.m0.0").await;
    // The parent of the escaped process dies, so the tracker becomes its parent.
    until_true("the tracker as a parent", || {
        state_of(of_running).is_some_and(|(_, parent)| parent == daemon.child.id())
    })
    .await;
    daemon.world.launch("job_1.m1.0", "escape:ok");
    assert!(matches!(jobtracker.end_of("job_1.m1.0").await, Report::Succeeded(_)));
    let of_ended = daemon.grandchild("job_1.m1.0").await;
    // The escaped process of the ended attempt is killed and reaped.
    until_true("the escaped process to end", || state_of(of_ended).is_none()).await;
    assert!(!is_dead(of_running), "the escaped process of a running attempt was killed");
    jobtracker.order(kill_order("job_1.m0.0"));
    assert_eq!(jobtracker.end_of("job_1.m0.0").await, Report::Killed("enough".into()));
    until_true("the escaped process to end", || state_of(of_running).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_task_processes_die_when_the_tracker_is_killed() {
    let mut daemon = Daemon::start().await;
    daemon.world.launch("job_1.m0.0", "fork:hang");
    daemon.world.launch("job_1.m1.0", "escape:hang");
    let in_group = daemon.grandchild("job_1.m0.0").await;
    let escaped = daemon.grandchild("job_1.m1.0").await;
    let (_, task) = state_of(in_group).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    for pid in [task, in_group, escaped] {
        until_true("the task processes to end", || is_dead(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_start_kills_processes_that_outlived_tracker_and_reaper() {
    let mut daemon = Daemon::start().await;
    daemon.world.launch("job_1.m0.0", "escape:hang");
    let escaped = daemon.grandchild("job_1.m0.0").await;
    let reaper = daemon.reaper();
    kill_process(Pid::from_raw(reaper).unwrap(), Signal::KILL).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!is_dead(escaped));
    daemon.child = spawn_tracker(&daemon.world).await;
    assert!(is_dead(escaped));
}

#[tokio::test(flavor = "multi_thread")]
async fn reaper_of_a_dead_tracker_does_not_kill_tasks_of_the_next_one() {
    let mut daemon = Daemon::start().await;
    let reaper = daemon.reaper();
    let reaper_pid = Pid::from_raw(reaper).unwrap();
    // Delay the reaper until the next tracker runs.
    kill_process(reaper_pid, Signal::STOP).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    daemon.child = spawn_tracker(&daemon.world).await;
    daemon.world.launch("job_1.m0.0", "fork:hang");
    let grandchild = daemon.grandchild("job_1.m0.0").await;
    kill_process(reaper_pid, Signal::CONT).unwrap();
    until_true("the reaper to end", || is_dead(reaper.cast_unsigned())).await;
    assert!(!is_dead(grandchild));
}

#[tokio::test(flavor = "multi_thread")]
async fn children_from_before_the_exec_of_the_tracker_are_not_killed() {
    let world = World::without_tracker(|config| config.tasktracker.warm_tasks = 1).await;
    let pid_file = world.dir.path().join("pid");
    let mut command = Command::new("sh");
    let script = "sleep 1000 & echo $! > \"$0\"; exec \"$@\"";
    command.arg("-c").arg(script).arg(&pid_file).arg(env!("CARGO_BIN_EXE_tasktracker"));
    let child = spawn_tracker_with(&world, command).await;
    let daemon = Daemon { world, child };
    let earlier_child: u32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    daemon.world.launch("job_1.m1.0", "escape:ok");
    assert!(matches!(daemon.world.jobtracker.end_of("job_1.m1.0").await, Report::Succeeded(_)));
    let escaped = daemon.grandchild("job_1.m1.0").await;
    until_true("the escaped process to end", || state_of(escaped).is_none()).await;
    assert!(!is_dead(earlier_child));
    kill_process(Pid::from_raw(earlier_child.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_tracker_leaves_no_process() {
    let mut daemon = Daemon::start().await;
    daemon.world.launch("job_1.m0.0", "escape:hang");
    let escaped = daemon.grandchild("job_1.m0.0").await;
    let reaper = daemon.reaper();
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::TERM).unwrap();
    let status = daemon.child.wait().unwrap();
    assert!(status.success(), "{status}");
    // The reaper has exited and has itself been reaped.
    assert!(state_of(reaper.cast_unsigned()).is_none());
    until_true("the escaped process to end", || is_dead(escaped)).await;
}
