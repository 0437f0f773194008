//! The tracker as a separate process: escaped processes, and what remains after it was killed.

use super::*;
use proto::mr::attempt_report::Status as Report;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};

struct Daemon {
    world: World,
    child: Child,
}

impl Daemon {
    async fn start() -> Self {
        let world = World::without_tracker(|config| config.tasktracker.warm_tasks = 1).await;
        let child = spawn(&world).await;
        Self { world, child }
    }

    /// Returns the PID that a running attempt printed.
    async fn grandchild(&self, attempt: &str) -> u32 {
        let path = self.world.root().join("logs").join(attempt).join("stdout");
        until("the grandchild's number", || async {
            let log = std::fs::read_to_string(&path).ok()?;
            log.lines().find_map(|line| line.strip_prefix("grandchild ")?.parse().ok())
        })
        .await
    }
}

impl Daemon {
    /// Returns the PID of the reaper, which is a child with the same program.
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

async fn spawn(world: &World) -> Child {
    spawn_by(world, Command::new(env!("CARGO_BIN_EXE_tasktracker"))).await
}

/// Starts a tracker with these arguments by this command.
async fn spawn_by(world: &World, mut command: Command) -> Child {
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

fn stop(attempt: &str) -> order::Kind {
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
    let kept = daemon.grandchild("job_1.m0.0").await;
    // Its parent is dead: the tracker is the new parent.
    until_true("the tracker as a parent", || {
        state_of(kept).is_some_and(|(_, parent)| parent == daemon.child.id())
    })
    .await;
    daemon.world.launch("job_1.m1.0", "escape:ok");
    assert!(matches!(jobtracker.end_of("job_1.m1.0").await, Report::Succeeded(_)));
    let gone = daemon.grandchild("job_1.m1.0").await;
    // It was reaped too.
    until_true("the escaped one's end", || state_of(gone).is_none()).await;
    assert!(!is_dead(kept), "it belongs to an attempt that runs");
    jobtracker.order(stop("job_1.m0.0"));
    assert_eq!(jobtracker.end_of("job_1.m0.0").await, Report::Killed("enough".into()));
    until_true("the escaped one's end", || state_of(kept).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_tracker_takes_everything_with_it() {
    let mut daemon = Daemon::start().await;
    daemon.world.launch("job_1.m0.0", "fork:hang");
    daemon.world.launch("job_1.m1.0", "escape:hang");
    let in_group = daemon.grandchild("job_1.m0.0").await;
    let escaped = daemon.grandchild("job_1.m1.0").await;
    let (_, task) = state_of(in_group).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    for pid in [task, in_group, escaped] {
        until_true("the end of what it ran", || is_dead(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_start_kills_what_outlived_tracker_and_reaper() {
    let mut daemon = Daemon::start().await;
    daemon.world.launch("job_1.m0.0", "escape:hang");
    let escaped = daemon.grandchild("job_1.m0.0").await;
    let reaper = daemon.reaper();
    kill_process(Pid::from_raw(reaper).unwrap(), Signal::KILL).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!is_dead(escaped));
    daemon.child = spawn(&daemon.world).await;
    assert!(is_dead(escaped));
}

#[tokio::test(flavor = "multi_thread")]
async fn reaper_of_a_dead_tracker_spares_the_next_one() {
    let mut daemon = Daemon::start().await;
    let reaper = daemon.reaper();
    let reaper_pid = Pid::from_raw(reaper).unwrap();
    // The reaper is delayed.
    kill_process(reaper_pid, Signal::STOP).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    daemon.child = spawn(&daemon.world).await;
    daemon.world.launch("job_1.m0.0", "fork:hang");
    let grandchild = daemon.grandchild("job_1.m0.0").await;
    kill_process(reaper_pid, Signal::CONT).unwrap();
    until_true("the end of the reaper", || is_dead(reaper.cast_unsigned())).await;
    assert!(!is_dead(grandchild));
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_the_replaced_program_are_not_killed() {
    let world = World::without_tracker(|config| config.tasktracker.warm_tasks = 1).await;
    let told = world.dir.path().join("told");
    let mut command = Command::new("sh");
    let script = "sleep 1000 & echo $! > \"$0\"; exec \"$@\"";
    command.arg("-c").arg(script).arg(&told).arg(env!("CARGO_BIN_EXE_tasktracker"));
    let child = spawn_by(&world, command).await;
    let daemon = Daemon { world, child };
    let before: u32 = std::fs::read_to_string(&told).unwrap().trim().parse().unwrap();
    daemon.world.launch("job_1.m1.0", "escape:ok");
    assert!(matches!(daemon.world.jobtracker.end_of("job_1.m1.0").await, Report::Succeeded(_)));
    let gone = daemon.grandchild("job_1.m1.0").await;
    until_true("the escaped one's end", || state_of(gone).is_none()).await;
    assert!(!is_dead(before));
    kill_process(Pid::from_raw(before.cast_signed()).unwrap(), Signal::KILL).unwrap();
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
    // It has ended and was reaped.
    assert!(state_of(reaper.cast_unsigned()).is_none());
    until_true("the escaped one's end", || is_dead(escaped)).await;
}
