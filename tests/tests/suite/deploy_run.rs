//! Runs the files in `deploy/`: scripts, the command line of the systemd unit, containers, OAR.
//! Each test is skipped with a message if root, network namespaces or packages are missing.

use super::docs_commands::namespaces;
use fermata_tests::{Ran, binaries, eventually, skip, stripped_binaries};
use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Exit code of a script if a requirement is missing.
const EXIT_SKIPPED: i32 = 77;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

fn space() -> PathBuf {
    let space = binaries().with_file_name("tmp");
    fs::create_dir_all(&space).unwrap();
    space
}

/// Runs a script with the programs under test. Prints a message and returns `None` if the machine
/// lacks the capability that the script needs.
#[track_caller]
fn run(capability: &str, command: &mut Command) -> Option<Ran> {
    let ran: Ran =
        command.env("PROGRAMS", stripped_binaries()).env("SPACE", space()).output().unwrap().into();
    if ran.code == EXIT_SKIPPED {
        skip(capability, ran.stderr.trim());
        return None;
    }
    assert_eq!(ran.code, 0, "{command:?}: {}{}", ran.stdout, ran.stderr);
    Some(ran)
}

#[test]
fn demo_on_machines_runs_to_its_end() {
    if !namespaces() {
        return;
    }
    let mut demo = Command::new(script("netns/demo"));
    demo.env("NAME", "fda").env("SUBNET", "26").env("ROWS", "100000");
    let ran = run("namespaces", &mut demo).unwrap();
    for words in ["== fda3 dies", "succeeded", "== fda3 comes back", "tasktracker running"] {
        assert!(ran.stdout.contains(words), "{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn machine_soak_runs_one_round() {
    if !namespaces() {
        return;
    }
    let mut soak = Command::new(script("netns/soak"));
    soak.arg("0.01").env("NAME", "fsa").env("SUBNET", "27").env("NODES", "3");
    run("namespaces", &mut soak);
}

#[test]
#[ignore = "takes half a minute"]
fn chronos_experiment_reports_how_long_lost_work_waited() {
    if !namespaces() {
        return;
    }
    let mut chronos = Command::new(script("netns/chronos"));
    chronos.env("NAME", "fka").env("SUBNET", "28").env("POLICIES", "fifo").env("SCALE", "16");
    let ran = run("namespaces", &mut chronos).unwrap();
    assert!(ran.stdout.contains("== how long the lost work waited"), "{}", ran.stdout);
}

/// Returns a command that runs an experiment in the folder `dir`, with the environment of an OAR
/// job.
fn experiment_under_fake_oar(dir: &Path, job: &str, experiment: &str) -> Command {
    let program = dir.join(format!("experiment-{job}"));
    fs::write(&program, format!("#!/bin/sh\nset -e\n{experiment}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("nodes"), "fo1\nfo1\nfo2\nfo3\n").unwrap();
    fs::write(dir.join("topology"), "fo1 r1 10.77.29.1\nfo2 r1 10.77.29.2\nfo3 r2 10.77.29.3\n").unwrap();
    let disk = dir.join("disk");
    fs::create_dir_all(&disk).unwrap();
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o711)).unwrap();
    let mut command = Command::new(script("grid5000/fermata.oar"));
    command.arg(program).args(["--scheduler", "fair", "--map-slots", "3"]).current_dir(dir);
    command
        .env("OAR_NODE_FILE", dir.join("nodes"))
        .env("TOPOLOGY", dir.join("topology"))
        .env("OAR_JOB_ID", job);
    command
        .env("FERMATA_SHELL", "ip netns exec {host}")
        .env("FERMATA_DISK", disk)
        .env("PROGRAMS", stripped_binaries());
    command.env("FERMATA_GRACE", "2").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Regression: after a failure or a signal no results were collected, and the process of the
/// experiment continued to run.
#[test]
fn results_are_collected_after_a_failure_and_after_a_signal() {
    if !namespaces() {
        return;
    }
    let net =
        |args: &[&str]| Command::new(script("netns/net")).args(args).env("SUBNET", "29").status().unwrap();
    net(&["down", "fo"]);
    assert!(net(&["up", "fo", "3"]).success());
    let dir = tempfile::Builder::new().prefix("oar-").tempdir_in(space()).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let gen_rows = "mrctl submit teragen --output /lab/gen --conf rows=1000 --conf maps=2";
    let collected = |job: &str| {
        let results = dir.path().join(format!("results-{job}"));
        let history = fs::read_to_string(results.join("job_1.jsonl")).unwrap_or_default();
        assert!(history.contains("\"job\":\"job_1\""), "no history of job_1 in {}", results.display());
        let text = fs::read_to_string(results.join("job_1.txt")).unwrap_or_default();
        assert!(text.contains("succeeded"), "{text}");
        let report = fs::read_to_string(results.join("report.txt")).unwrap_or_default();
        assert!(report.contains("fo2") && report.contains("job_1"), "{report}");
        let config = fs::read_to_string(results.join("lab/fermata.toml")).unwrap();
        assert!(config.contains("name = \"fair\"") && config.contains("map_slots = 3"), "{config}");
        assert!(!results.join("lab/security").exists(), "keys are left");
        let left: Vec<_> = fs::read_dir(dir.path().join("disk")).unwrap().collect();
        assert!(left.is_empty(), "{left:?} is left on the nodes");
    };

    let ran: Ran =
        experiment_under_fake_oar(dir.path(), "1", &format!("{gen_rows}\nexit 3")).output().unwrap().into();
    assert_eq!(ran.code, 3, "{}{}", ran.stdout, ran.stderr);
    collected("1");

    let endless = format!("{gen_rows}\necho $$ > pid\nsleep 1000 &\necho $! > child\nsleep 1000");
    let mut endless = experiment_under_fake_oar(dir.path(), "2", &endless);
    let mut child = endless.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let results = dir.path().join("results-2");
    eventually("the experiment waits", || {
        results.join("child").metadata().ok().filter(|file| file.len() > 0)
    });
    Command::new("kill").args(["-USR2", &child.id().to_string()]).status().unwrap();
    // The exit code is 128 plus the number of SIGUSR2.
    assert_eq!(child.wait().unwrap().code(), Some(140));
    collected("2");
    for file in ["pid", "child"] {
        let pid = fs::read_to_string(results.join(file)).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "a process of the experiment is left");
    }
    net(&["down", "fo"]);
}

/// Tests every way in which a job of a real OAR can end. Takes about ten minutes.
#[test]
#[ignore = "takes ten minutes; needs OAR and PostgreSQL: see deploy/grid5000/test/oar"]
fn results_are_collected_however_an_oar_job_ends() {
    let mut oar = Command::new(script("grid5000/test/oar"));
    if let Some(ran) = run("oar", oar.arg(script("grid5000/test/launch"))) {
        println!("{}", ran.stdout);
    }
}

#[test]
#[ignore = "takes minutes; needs Docker: see deploy/container/test/docker"]
fn a_cluster_of_containers_survives_a_kill() {
    let mut docker = Command::new(script("container/test/docker"));
    if let Some(ran) = run("docker", docker.arg(script("container/test/cluster"))) {
        assert!(ran.stdout.contains("== done"), "{}{}", ran.stdout, ran.stderr);
    }
}

/// Daemons that are killed when dropped.
struct RunningDaemons(Vec<Child>);

impl Drop for RunningDaemons {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts each daemon with the command line of the systemd unit and the files of its machine, then
/// runs the first job of docs/operate/systemd.md.
#[test]
fn daemons_of_the_systemd_unit_run_a_job() {
    let dir = tempfile::Builder::new().prefix("systemd-").tempdir_in(space()).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let mrctl = |args: &[&str]| -> Ran {
        let mut command = Command::new(binaries().join("mrctl"));
        command
            .args(args)
            .current_dir(dir.path())
            .env("FERMATA_CONFIG", "mycluster/fermata.toml")
            .output()
            .unwrap()
            .into()
    };
    assert_eq!(mrctl(&["cluster", "init", "mycluster"]).code, 0);
    // Uses free ports instead of the default ports, which other tests may use.
    let held: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let config = dir.path().join("mycluster/fermata.toml");
    let mut text = fs::read_to_string(&config).unwrap();
    for (port, held) in ["9400", "9401", "9500", "9501"].iter().zip(&held) {
        text = text.replace(&format!(":{port}\""), &format!(":{}\"", held.local_addr().unwrap().port()));
    }
    fs::write(&config, text).unwrap();
    drop(held);
    let unit = fs::read_to_string(script("systemd/fermata@.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let state = dir.path().join("var");
    // Tasks of a tracker that runs as root run as nobody, who must be able to reach the folder of
    // the tracker. The daemons would create it for themselves only.
    fs::create_dir_all(state.join("fermata-data")).unwrap();
    for folder in [&state, &state.join("fermata-data")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
    }
    let mut daemons = RunningDaemons(Vec::new());
    for role in ["namenode", "jobtracker", "datanode", "tasktracker"] {
        let etc = dir.path().join(format!("etc-{role}"));
        fs::create_dir_all(etc.join("security")).unwrap();
        for file in ["ca.pem", &format!("{role}.pem"), &format!("{role}.keys")] {
            fs::copy(dir.path().join("mycluster/security").join(file), etc.join("security").join(file))
                .unwrap();
        }
        fs::copy(&config, etc.join("fermata.toml")).unwrap();
        let line = line.replace("%i", role).replace("/usr/local/bin", &binaries().display().to_string());
        let line = line.replace("/etc/fermata", &etc.display().to_string());
        let mut words = line.split(' ');
        let log = fs::File::create(dir.path().join(format!("{role}.log"))).unwrap();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(&state).env("FERMATA_HOST", "node1").stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        daemons.0.push(command.spawn().unwrap());
    }
    eventually("the node is live", || mrctl(&["nodes"]).stdout.contains("live").then_some(()));
    let ran = eventually("both daemons of the node serve", || {
        let ran = mrctl(&["submit", "teragen", "--output", "/user/admin/gen", "--conf", "rows=1000"]);
        (ran.code == 0 || !ran.stderr.contains("no DataNode can store")).then_some(ran)
    });
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
}
