//! Tests that processes are started, and are killed when they exceed a limit.

use super::*;

fn start(folder: &Path) -> ProcessStart {
    ProcessStart {
        folder: folder.into(),
        logs: crate::disks::create_log_files(folder, None).unwrap(),
        launch: None,
    }
}

fn environment(root: &Path) -> ProcessEnvironment {
    ProcessEnvironment {
        umbilical: root.join("nobody"),
        root: root.to_owned(),
        limits: Limits { memory: 0, log: 1000, processes: 20 },
        address_space_max: 0,
        files_max: 0,
        account: None,
        groups: None,
        incarnation: 1,
        other_children: None,
    }
}

#[tokio::test]
async fn process_is_killed_if_its_waiting_thread_cannot_be_started() {
    let dir = tempfile::tempdir().unwrap();
    // No machine has memory for such a stack, so the waiting thread cannot be started.
    let spawner = Spawner::start_with(environment(dir.path()), 1 << 62).unwrap();
    spawner.spawn(Path::new("cat"), start(dir.path())).await.unwrap_err();
    assert_eq!(spawner.count(), 0);
    let name = |pid: &Pid| std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    let is_cat = |pid: &Pid| name(pid).is_ok_and(|name| name.trim() == "cat");
    assert_eq!(system::children(rustix::process::getpid()).iter().filter(|pid| is_cat(pid)).count(), 0);
}

#[tokio::test]
async fn process_exceeding_the_log_limit_is_killed_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let spawner = Spawner::start(environment(dir.path())).unwrap();
    let mut process = spawner.spawn(Path::new("yes"), start(dir.path())).await.unwrap();
    let status = (&mut process.exit_status).await.unwrap();
    assert_eq!(status.signal(), Some(9));
    let text = process.handle.kill_reason().unwrap();
    assert!(text.starts_with("the task printed more than 1000"), "{text}");
}

#[tokio::test]
async fn process_exceeding_the_process_limit_is_killed_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("many");
    std::fs::write(&program, "#!/bin/sh\ni=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; wait\n")
        .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let spawner = Spawner::start(environment(dir.path())).unwrap();
    let mut process = spawner.spawn(&program, start(dir.path())).await.unwrap();
    assert_eq!((&mut process.exit_status).await.unwrap().signal(), Some(9));
    let text = process.handle.kill_reason().unwrap();
    assert_eq!(text, "the task started more than 20 processes and threads (task_processes_max)");
}

#[test]
fn tasks_with_another_account_do_not_inherit_home_and_path() {
    let environment_with = |account| {
        let environment = ProcessEnvironment { account, ..environment(Path::new("/root-of-tracker")) };
        let command = command(Path::new("true"), Path::new("/its/own"), &environment);
        let get = |key: &str| {
            let found = command.get_envs().find(|(name, _)| *name == key);
            found.and_then(|(_, value)| value).map(std::ffi::OsStr::to_owned)
        };
        (get("HOME"), get("PATH"), get(ACCOUNT_VAR))
    };
    assert_eq!(environment_with(None), (std::env::var_os("HOME"), std::env::var_os("PATH"), None));
    let (home, path, account) = environment_with(Some(Account { user: 65534, group: 65533 }));
    assert_eq!((home.unwrap(), path.unwrap()), ("/its/own".into(), TASK_PATH.into()));
    assert_eq!(account.unwrap(), "65534:65533");
}
