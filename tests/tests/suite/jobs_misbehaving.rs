//! Tasks that crash, hang, fork or use too much memory affect only their attempt, and the user sees
//! the real error. Also full disks, and tasks that must not outlive their tracker.

use fermata_tests::{Cluster, Up, binaries, eventually, skip};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

fn put(cluster: &Cluster, name: &str, text: &str) {
    fs::write(cluster.path(name), text).unwrap();
    cluster.mrctl(&["fs", "put", name, &format!("/{name}")]);
}

/// A failure mode of `test-job`, and texts that the error message must contain.
type Misbehaviour = (&'static str, [&'static str; 2]);

/// Submits a job for each misbehaviour, and returns the running clients.
fn submit_all(cluster: &Cluster, misbehaviours: &[Misbehaviour]) -> Vec<Child> {
    let program = binaries().join("test-job").display().to_string();
    let submit = |(misbehaviour, _): &Misbehaviour| {
        let (setting, output) = (format!("misbehaviour={misbehaviour}"), format!("/out-{misbehaviour}"));
        let args = ["submit", &program, "--input", "/in", "--output", &output, "--conf", &setting];
        let mut client = cluster.command(&[&args[..], &["--conf", "attempts.max=2", "--json"]].concat());
        client.stdout(Stdio::piped()).spawn().unwrap()
    };
    misbehaviours.iter().map(submit).collect()
}

/// Checks that each job has failed with its own error, and that nothing is left of it.
fn check_reported(cluster: &Cluster, misbehaviours: &[Misbehaviour], running: Vec<Child>) {
    for ((misbehaviour, words), child) in misbehaviours.iter().zip(running) {
        let ended = child.wait_with_output().unwrap();
        let job: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(job["state"], "failed", "{misbehaviour}: {job}");
        assert_eq!(job["maps"]["failed_attempts"], 2, "{misbehaviour}: {job}");
        let tasks = cluster.json(&["tasks", job["job"].as_str().unwrap()]);
        let first = &tasks[0]["attempts"][0];
        let took_ms = first["ended_ms"].as_u64().unwrap() - first["launched_ms"].as_u64().unwrap();
        println!("a task misbehaves ({misbehaviour}): reported after {:.1} s", took_ms as f64 / 1000.0);
        let why = job["why"].as_str().unwrap();
        assert!(words.iter().all(|word| why.contains(word)), "{misbehaviour}: {why}");
        let logs = cluster.mrctl(&["logs", &format!("{}.m0", job["job"].as_str().unwrap())]);
        assert!(*misbehaviour != "exit" || logs.contains("the last message of the task"), "{logs}");
    }
    cluster.wait_clean();
    eventually("only idle task processes are left", || {
        let of_jobs = cluster.processes_in(".fermata/tasks/node1/jobs").len()
            + cluster.processes_in(".fermata/tasks/node2/jobs").len();
        (of_jobs == 0).then_some(())
    });
}

#[test]
fn misbehaving_tasks_are_reported_and_isolated() {
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\n\
                    [tasktracker]\ntask_memory_max = \"1GiB\"\ntask_memory = \"64MiB\"\n";
    let cluster = Cluster::up(Up { nodes: 2, settings, ..Up::default() });
    put(&cluster, "in", "a\nnow\nb\n");
    put(&cluster, "words", &"x y z\n".repeat(1000));
    let misbehaviours = [
        ("exit", ["exit code 3", "the last message of the task"]),
        ("signal", ["signal 4 (illegal instruction)", "killed by the test"]),
        ("eat", ["out of memory", "task_memory_max"]),
        ("fork", ["after forking", "panicked"]),
    ];
    let running = submit_all(&cluster, &misbehaviours);
    cluster.succeed(&["wordcount", "--input", "/words", "--output", "/counts"]);
    assert_eq!(cluster.output("/counts"), b"x\t1000\ny\t1000\nz\t1000\n");
    check_reported(&cluster, &misbehaviours, running);
}

/// On a slow machine, every task may exceed a timeout of six seconds, so the job runs alone.
#[test]
fn hanging_tasks_are_reported_and_stopped() {
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\ntask_timeout = \"6s\"\n";
    let cluster = Cluster::up(Up { nodes: 2, settings, ..Up::default() });
    put(&cluster, "in", "a\nnow\nb\n");
    let hang = [("hang", ["no progress for 6", "job_"])];
    check_reported(&cluster, &hang, submit_all(&cluster, &hang));
}

#[test]
fn tasks_and_their_processes_die_with_their_tracker() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "in", "a\n");
    fs::write(cluster.path("hang.sh"), "sleep 987 &\nsh -c 'sleep 988; true'\nwait\n").unwrap();
    let mapper = ["--mapper", "sh hang.sh", "--file", "hang.sh"];
    cluster.detach(&[&["streaming", "--input", "/in", "--output", "/out"], &mapper[..]].concat());
    let tasks = || cluster.processes_in(".fermata/tasks/node1/jobs");
    // The processes are the task, its shell, and what the shell started: two sleeps and another
    // shell.
    eventually("the task and its processes run", || (tasks().len() >= 5).then_some(()));
    // Also checks that `leftovers` finds what other tests expect to be gone.
    let left = cluster.leftovers();
    for part in ["slots of", "/jobs/job_1/work/job_1.m0.0", "/tmp/fermata/staging/"] {
        assert!(left.iter().any(|left| left.contains(part)), "{part}: {left:?}");
    }
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "tasktracker"]);
    eventually("the task and its processes are dead", || tasks().is_empty().then_some(()));
    eventually("idle task processes are dead", || {
        cluster.processes_in(".fermata/tasks/node1").is_empty().then_some(())
    });
}

/// A small mounted disk. Needs root. Unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .stderr(Stdio::null())
            .status();
        mount.is_ok_and(|status| status.success()).then(|| Self(at.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A tracker that uses folders of the test, and replaces the tracker of the cluster.
struct Tracker(Child);

impl Tracker {
    fn start(cluster: &Cluster, dirs: &[&Path]) -> Self {
        Self::start_as(cluster, dirs, Command::new(binaries().join("tasktracker")))
    }

    fn start_as(cluster: &Cluster, dirs: &[&Path], mut command: Command) -> Self {
        // There is no tracker to kill when this is called for the second time.
        cluster.try_mrctl(&["chaos", "kill", "node1", "--daemon", "tasktracker"]);
        let ready = cluster.path("ready");
        let _ = fs::remove_file(&ready);
        let log = fs::File::create(cluster.path(".fermata/logs/by-hand.log")).unwrap();
        command.arg("--config").arg(cluster.path(".fermata/fermata.toml"));
        command.args(["--node", "node1", "--listen", "127.0.0.1:0"]).arg("--ready-file").arg(&ready);
        for dir in dirs {
            command.arg("--dir").arg(dir);
        }
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let tracker = Self(child);
        eventually("the tracker serves", || ready.exists().then_some(()));
        tracker
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The tracker runs as in a container: without other processes and without control groups.
#[test]
fn tracker_as_process_1_kills_escaped_processes() {
    let contained = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
    let contain = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c", contained, "sh"]);
        command.arg(program);
        command
    };
    if !contain(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return skip("namespaces", "no PID namespace can be created");
    }
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    put(&cluster, "in", "a\n");
    // The process leaves its process group, parent and environment.
    fs::write(cluster.path("flee.sh"), "(setsid env -i sleep 98765 &) &\nsleep 0.2\ncat\n").unwrap();
    let own = cluster.path("own");
    let program = binaries().join("tasktracker");
    let tracker = Tracker::start_as(&cluster, &[&own], contain(&program));
    cluster.succeed(
        &[
            &["streaming", "--input", "/in", "--output", "/out"],
            &["--mapper", "sh flee.sh", "--file", "flee.sh"][..],
        ]
        .concat(),
    );
    let fled = || {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let lines = pids.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.starts_with(b"sleep\098765")).count()
    };
    eventually("the escaped process is killed", || (fled() == 0).then_some(()));
    // The tracker continues to run, and ends by the signal that process 1 forwards.
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counts"]);
    drop(tracker);
    eventually("the tracker and all its processes have ended", || {
        cluster.processes_in("own").is_empty().then_some(())
    });
}

/// Checks that neither a full disk nor a read-only disk prevents the start of a tracker.
fn check_tracker_starts_with_a_bad_disk(cluster: &Cluster, bad: &Path, good: &Path) {
    let log = || fs::read_to_string(cluster.path(".fermata/logs/by-hand.log")).unwrap();
    let fill = bad.join("fill");
    fs::write(&fill, vec![0; 4 << 20]).unwrap_err();
    {
        let _tracker = Tracker::start(cluster, &[bad, good]);
        assert!(log().contains("cannot store the number of this start"), "{}", log());
        cluster.succeed(&["wordcount", "--input", "/in", "--output", "/beside-full"]);
    }
    fs::remove_file(&fill).unwrap();
    let remount = |how: &str| Command::new("mount").args(["-o", how]).arg(bad).status().unwrap();
    let read_only = || remount("remount,ro").success().then_some(());
    eventually("nothing of the tracker has a file open there", read_only);
    {
        let _tracker = Tracker::start(cluster, &[bad, good]);
        assert!(log().contains("starting without it") && log().contains("Read-only"), "{}", log());
        cluster.succeed(&["wordcount", "--input", "/in", "--output", "/beside-read-only"]);
    }
    assert!(remount("remount,rw").success());
}

#[test]
fn one_full_disk_is_skipped_and_two_fail_the_job() {
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\n\
                    [tasktracker]\nreserve = \"0B\"\ntask_memory = \"4MiB\"\nwarm_tasks = 0\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, block_size: "8MiB", settings, ..Up::default() });
    let (one, two) = (cluster.path("one"), cluster.path("two"));
    let Some(_one) = SmallDisk::mount(&one, "3m") else {
        return skip("mount", "a small disk cannot be mounted");
    };
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=200000", "--conf", "maps=2"]);
    let sort =
        |output: &str| cluster.submit(&["terasort", "--input", "/gen", "--output", output, "--reduces", "2"]);
    {
        let _tracker = Tracker::start(&cluster, &[&one, &two]);
        let job = sort("/sorted");
        assert_eq!(job["state"], "succeeded", "{job}");
        // A program that does not fit on the first disk is fetched to the second.
        put(&cluster, "in", "a\n");
        let program = binaries().join("test-job").display().to_string();
        cluster.succeed(&[&program, "--input", "/in", "--output", "/own"]);
    }
    check_tracker_starts_with_a_bad_disk(&cluster, &one, &two);
    let Some(_two) = SmallDisk::mount(&two, "3m") else { return };
    let _tracker = Tracker::start(&cluster, &[&one, &two]);
    let job = sort("/never");
    assert_eq!(job["state"], "failed", "{job}");
    let why = job["why"].as_str().unwrap();
    assert!(why.contains("no space on") && why.contains(&cluster.path("").display().to_string()), "{why}");
}
