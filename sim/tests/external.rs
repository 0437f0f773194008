//! External policies: the same decisions as a built-in policy, preemption, and every way to fail.

use fermata_sim as sim;
use mrcore::{PerPhase, Span};
use sim::{
    Outcome, Setup, Workload, World,
    experiment::{Comparison, Experiment, ExperimentError, Variant, makespan_s},
    fault::{Fault, FaultKind},
    profile,
    workload::papers,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        skip::skip("python3", "there is no python3");
    }
    has
}

/// Returns an example policy with parameters.
fn example(file: &str, params: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/external-policy");
    format!("external[command=python3 {}{params}]", folder.join(file).display())
}

/// Two medium and two small jobs of the hSRTF paper, on a cluster on which they wait for each other.
fn workload(seed: u64) -> Workload {
    let mut workload = papers::hsrtf(&profile::built_in(), seed);
    let mut seen = std::collections::BTreeMap::new();
    workload.jobs.retain(|job| {
        let count = seen.entry(job.group.clone()).or_insert(0);
        *count += 1;
        *count <= 2 && job.group != "large"
    });
    for (at, job) in workload.jobs.iter_mut().enumerate() {
        job.at = Span::secs(10 * at as u64);
    }
    workload
}

fn setup() -> Setup {
    Setup::even(4, PerPhase { map: 3, reduce: 1 }, "fifo")
}

fn run(setup: Setup, variants: &str) -> Result<Comparison, ExperimentError> {
    let experiment = Experiment {
        setup,
        faults: None,
        workload: &workload,
        users: Vec::new(),
        variants: Variant::list(variants)?,
        seeds: 1..3,
        limit: Some(Span::secs(1_000_000)),
        alone: false,
        monitor: None,
    };
    experiment.run()
}

fn hashes(runs: &[Outcome]) -> Vec<(u64, u64)> {
    runs.iter().map(|outcome| (outcome.hash, outcome.facts)).collect()
}

#[test]
fn external_fifo_decides_as_the_built_in_one() {
    if !has_python() {
        return;
    }
    let quiet = setup();
    // Failed attempts, avoided trackers, stragglers, and a policy that starts again in between.
    let mut faulty = setup();
    faulty.failing = 40;
    faulty.faults = vec![
        Fault { at_s: 30.0, for_s: Some(60.0), what: FaultKind::Node { node: 2 } },
        Fault { at_s: 20.0, for_s: Some(400.0), what: FaultKind::Slow { node: 3, factor: 8.0 } },
        Fault { at_s: 100.0, for_s: Some(5.0), what: FaultKind::JobTracker },
    ];
    for setup in [quiet, faulty] {
        let faults = setup.faults.len();
        let comparison = run(setup, &format!("fifo,{}", example("fifo.py", ""))).expect("it runs");
        assert!(comparison.runs[0].iter().all(|run| run.unfinished == 0 && run.fault_times.len() == faults));
        assert_eq!(hashes(&comparison.runs[0]), hashes(&comparison.runs[1]));
    }
}

#[test]
fn external_srtf_preempts_without_loss_and_is_deterministic() {
    if !has_python() {
        return;
    }
    let list = format!(
        "fifo,{},again={},other={}",
        example("srtf.py", ""),
        example("srtf.py", ""),
        example("srtf.py", ";factor=1000000"),
    );
    let comparison = run(setup(), &list).expect("it runs");
    let runs = &comparison.runs;
    assert_eq!(hashes(&runs[1]), hashes(&runs[2]), "the same seeds give the same runs");
    let preemptions = |outcome: &Outcome| -> u32 {
        outcome.metrics.jobs().map(|(_, job)| job.preemption.preemptions()).sum()
    };
    assert!(runs[1].iter().all(|outcome| outcome.unfinished == 0 && preemptions(outcome) > 0));
    assert!(runs[3].iter().all(|outcome| preemptions(outcome) == 0), "the process gets its parameters");
    let mean = |variant| comparison.mean_over(variant, None, makespan_s).mean;
    assert!(mean(1) < 0.9 * mean(0), "srtf {} s, fifo {} s", mean(1), mean(0));
}

/// A shell script as a policy. It writes its process ID to a file.
struct Script {
    folder: tempfile::TempDir,
}

impl Script {
    fn new(code: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pid = folder.path().join("pid");
        fs::write(folder.path().join("policy.sh"), format!("echo $$ > {}\n{code}\n", pid.display()))
            .expect("a working disk");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("policy.sh")
    }

    /// Starts the policy.
    fn world(&self, mut setup: Setup, timeout: &str) -> World {
        setup.scheduler = "external".into();
        setup.params.insert("external.command".into(), format!("sh {}", self.path().display()));
        setup.params.insert("external.timeout".into(), timeout.into());
        World::new(setup, workload(1)).expect("valid parameters")
    }

    /// Runs the policy and returns the error of the run.
    fn error(&self, setup: Setup, timeout: &str) -> String {
        let world = self.world(setup, timeout);
        world.run(Some(Span::secs(1_000_000))).expect_err("the policy is wrong").to_string()
    }

    /// Returns the folder of the process in `/proc`.
    fn process(&self) -> PathBuf {
        let pid = fs::read_to_string(self.folder.path().join("pid")).expect("it has started");
        Path::new("/proc").join(pid.trim())
    }
}

const HELLO: &str = r#"read hello; echo '{"request":1,"protocol":1}'; read round"#;

#[test]
fn a_wrong_policy_ends_the_run_with_one_line_and_is_reaped() {
    let cases = [
        ("exit 3", "request 1 (hello): the process ended without an answer: exit status: 3"),
        ("exec sleep 1000", "request 1 (hello): no answer within 0.3 s (parameter timeout)"),
        ("echo debugging; exec sleep 1000", "request 1 (hello): the answer is invalid: expected value"),
        (
            r#"echo '{"request":1,"protocol":2}'"#,
            "request 1 (hello): the policy has protocol 2, the simulator 1",
        ),
        (r#"echo '{"request":1,"protocol":1,"tick_s":0}'"#, "tick_s of 0 is not from 0.1 to 1e6"),
        (
            r#"echo '{"request":1,"protocol":1,"include":["all"]}'"#,
            "unknown variant `all`, expected `attempts` or `pending`",
        ),
    ];
    let in_rounds = [
        ("kill -9 $$", "the process ended without an answer: signal: 9"),
        ("exec sleep 1000", "no answer within 0.3 s"),
        (r#"echo '{"request":1}'"#, "the answer is to request 1"),
        (r#"echo '{"request":2,"decisons":[]}'"#, "unknown field `decisons`"),
        (r#"echo '{"request":2,"decisions":[{}]}'"#, "decision 1: it needs either launch or preempt"),
        (
            r#"echo '{"request":2,"decisions":[{"launch":"job_9.m0"}]}'"#,
            "decision 1: launch job_9.m0: task job_9.m0 is not pending",
        ),
        (r#"echo '{"request":2,"decisions":[{"launch":"m0"}]}'"#, "launch: \"m0\" is not a task id"),
        (
            r#"echo '{"request":2,"decisions":[{"launch":"job_1.m0","tracker":"n99"}]}'"#,
            "decision 1: no tracker \"n99\"",
        ),
        (
            r#"echo '{"request":2,"decisions":[{"preempt":"job_1.m0.0"}]}'"#,
            "decision 1: preempt job_1.m0.0: ",
        ),
        (
            r#"echo '{"request":2,"decisions":[{"launch":"job_1.m0"},{"launch":"job_1.m1"},{"launch":"job_1.m2"},{"launch":"job_1.m3"}]}'"#,
            "decision 4: launch job_1.m3: tracker n",
        ),
    ];
    let in_rounds = in_rounds.map(|(code, wanted)| (format!("{HELLO}; {code}"), wanted));
    let all = cases.into_iter().map(|(code, wanted)| (code.to_owned(), wanted)).chain(in_rounds);
    let check = |code: &str, wanted: &str| {
        let script = Script::new(code);
        let timeout = if wanted.contains("no answer") { "300ms" } else { "30s" };
        let error = script.error(setup(), timeout);
        assert!(error.contains(wanted) && error.lines().count() == 1, "{code}: {error}");
        assert!(!script.process().exists(), "{code}: the process still exists");
    };
    // In parallel: a process that does not end is killed only after two seconds.
    thread::scope(|scope| {
        for (code, wanted) in all {
            scope.spawn(move || check(&code, wanted));
        }
    });
    // The hello is larger than the buffer of a pipe, and is never read.
    let large = Setup::even(5000, PerPhase { map: 1, reduce: 1 }, "fifo");
    let error = Script::new("exec sleep 1000").error(large, "300ms");
    assert!(error.contains("no answer within 0.3 s"), "{error}");
}

#[test]
fn processes_that_a_policy_has_started_are_killed_with_it() {
    let script = Script::new(r#"sleep 1000 & echo $! > "${0%/*}/pid"; read hello; echo wrong; wait"#);
    let error = script.error(setup(), "30s");
    assert!(error.contains("the answer is invalid"), "{error}");
    // The state of a process comes after its name. A zombie has ended already.
    let is_running = || {
        let stat = fs::read_to_string(script.process().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while is_running() {
        assert!(Instant::now() < deadline, "the child of the policy still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_run_of_an_external_policy_can_be_stopped_at_any_event() {
    let world = Script::new(&format!("{HELLO}; exec cat > /dev/null")).world(setup(), "30s");
    let outcome = world.run_monitored(None, |_| false).expect("it is stopped before the first round");
    assert_eq!((outcome.stopped, outcome.events), (true, 0));
}

#[test]
fn errors_of_a_comparison_name_the_policy_and_the_seed() {
    let script = Script::new("exit 3");
    let list = format!("fifo,mine=external[command=sh {}]", script.path().display());
    let error = run(setup(), &list).expect_err("the policy is wrong").to_string();
    assert!(error.starts_with("mine, seed ") && error.contains(": at 1.0"), "{error}");
    let error = run(setup(), "external[command=/no/such/program]").expect_err("no program").to_string();
    assert!(error.contains("cannot start /no/such/program: No such file"), "{error}");
}
