//! Tests task processes with a simulated tracker: success, failures, panics, kills, and lost
//! trackers.
//!
//! `mrtask` has no programs that panic or hang. For these the test binary runs itself as a job
//! binary.

use fermata_engine::{
    frame::{read_frame, write_frame},
    process::{LIMIT_AS_VAR, TRACKER_PID_VAR},
    segment::SegmentWriter,
    task::{self, UMBILICAL_VAR},
};
use mrlib_api::{Context, Emit, Job, Mapper, Reducer, TaskError, Values};
use proto::mr::{
    FetchFailed, FromTask, MapAvailable, MapEvent, Partition, Program, Progress, TaskMapEvents, TaskPreempt,
    TaskResult, TaskSpec, TaskStart, ToTask, from_task, map_event, program, task_spec, to_task,
};
use std::{
    os::unix::{
        net::{UnixListener, UnixStream},
        process::ExitStatusExt as _,
    },
    path::PathBuf,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A tracker with one task process.
pub(crate) struct Tracker {
    pub(crate) folder: TempDir,
    stream: UnixStream,
    child: Child,
    /// Whether the process is reused after an attempt.
    reuse: bool,
}

/// How a task process has ended: its last message and its exit status.
pub(crate) type ProcessEnd = (Option<from_task::Kind>, ExitStatus);

impl Tracker {
    /// Starts `mrtask`.
    pub(crate) fn with_mrtask() -> Self {
        Self::with_command(Command::new(env!("CARGO_BIN_EXE_mrtask")))
    }

    /// Starts this binary as a job binary.
    pub(crate) fn with_own_program() -> Self {
        Self::with_command(own_program())
    }

    fn with_command(mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("umbilical");
        let listener = UnixListener::bind(&socket).expect("a socket");
        command.env(UMBILICAL_VAR, &socket).env(TRACKER_PID_VAR, process::id().to_string());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a program");
        let (mut stream, _) = listener.accept().expect("a connection");
        let hello: FromTask = read_frame(&mut stream).expect("a frame").expect("hello");
        assert!(
            matches!(hello.kind, Some(from_task::Kind::Hello(hello)) if hello.protocol == task::PROTOCOL)
        );
        Self { folder, stream, child, reuse: false }
    }

    pub(crate) fn send(&mut self, kind: to_task::Kind) {
        write_frame(&mut self.stream, &ToTask { kind: Some(kind) }).expect("the process reads");
    }

    /// Starts a reduce of a job with this many maps.
    fn start(&mut self, program: &str, maps: u32) {
        self.start_with(program, maps, &[]);
    }

    fn start_with(&mut self, program: &str, maps: u32, conf: &[(&str, &str)]) {
        let spec = TaskSpec {
            attempt: "job_3.r0.0".into(),
            program: Some(Program {
                kind: Some(program::Kind::Builtin(program.into())),
                ..Program::default()
            }),
            input: Some(task_spec::Input::Partition(Partition { index: 0, maps })),
            reduces: 1,
            conf: conf.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..TaskSpec::default()
        };
        let folder = self.folder.path().display().to_string();
        let start = TaskStart {
            spec: Some(spec),
            work_dir: folder.clone(),
            scratch_dirs: vec![folder],
            memory_bytes: 64 << 20,
            ..TaskStart::default()
        };
        self.send(to_task::Kind::Start(TaskStart { reuse: self.reuse, ..start }));
    }

    /// Returns the result of an attempt after which the process waits for the next attempt.
    fn wait_for_done(&mut self) -> TaskResult {
        let mut result = None;
        loop {
            match read_frame(&mut self.stream).expect("a frame").and_then(|message: FromTask| message.kind) {
                Some(from_task::Kind::Progress(_)) => {}
                Some(from_task::Kind::Done(done)) => result = Some(done),
                Some(from_task::Kind::Hello(_)) => return result.expect("done before hello"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Creates a map output with these words on this node and sends it as entry `map` of the list.
    fn add_map_output(&mut self, map: u32, words: &[&str]) {
        let path: PathBuf = self.folder.path().join(format!("map{map}"));
        let mut writer = SegmentWriter::create(&path, 1, true).expect("a working disk");
        for word in words {
            writer.append(0, word.as_bytes(), &1_u64.to_le_bytes()).expect("a working disk");
        }
        writer.finish().expect("a working disk").write(&path).expect("a working disk");
        let available = MapAvailable {
            attempt: format!("job_3.m{map}.0"),
            local_path: path.display().to_string(),
            ..MapAvailable::default()
        };
        let events = vec![MapEvent { kind: Some(map_event::Kind::Available(available)) }];
        self.send(to_task::Kind::MapEvents(TaskMapEvents { first: u64::from(map), events, maps: 0 }));
    }

    /// Waits until the reduce is in this stage. Returns its signs of life so far.
    fn wait_for_stage(&mut self, stage: &str) -> u64 {
        loop {
            let progress = self.progress();
            if progress.stage == stage {
                return progress.activity;
            }
        }
    }

    fn progress(&mut self) -> Progress {
        let message: FromTask = read_frame(&mut self.stream).expect("a frame").expect("progress");
        match message.kind {
            Some(from_task::Kind::Progress(progress)) => progress,
            other => panic!("{other:?}, not progress"),
        }
    }

    /// Waits for the end of the process. Returns its last message and its exit status.
    pub(crate) fn wait_for_end(mut self) -> ProcessEnd {
        let mut last = None;
        while let Ok(Some(FromTask { kind: Some(kind) })) = read_frame(&mut self.stream) {
            if !matches!(kind, from_task::Kind::Progress(_)) {
                last = Some(kind);
            }
        }
        (last, self.child.wait().expect("a child"))
    }
}

pub(crate) fn expect_done(end: ProcessEnd) -> TaskResult {
    assert!(end.1.success());
    match end.0 {
        Some(from_task::Kind::Done(result)) => result,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn expect_fatal(end: ProcessEnd) -> String {
    match end.0 {
        Some(from_task::Kind::Fatal(why)) => why,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn expect_failed(end: ProcessEnd) -> String {
    assert!(end.1.success(), "the process of a failed task did not exit with 0");
    match end.0 {
        Some(from_task::Kind::Failed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reduce_in_a_task_process_returns_its_result() {
    let mut tracker = Tracker::with_mrtask();
    tracker.start("wordcount", 2);
    tracker.add_map_output(0, &["a", "b", "b"]);
    tracker.wait_for_stage("shuffle");
    tracker.add_map_output(1, &["b", "c"]);
    let result = expect_done(tracker.wait_for_end());
    assert_eq!(result.counters["REDUCE_INPUT_RECORDS"], 5);
    assert_eq!(result.counters["REDUCE_INPUT_GROUPS"], 3);
    assert_eq!(result.counters["REDUCE_OUTPUT_RECORDS"], 3);
    assert_eq!(result.bytes_out, "a\t1\nb\t3\nc\t1\n".len() as u64);
    assert!(result.pieces.is_empty(), "the job has no output folder");
    assert!(result.counters.contains_key("CPU_MILLISECONDS"));
}

#[test]
fn reused_process_runs_independent_attempts() {
    let mut tracker = Tracker::with_mrtask();
    tracker.reuse = true;
    for log in ["stdout", "stderr"] {
        std::fs::write(tracker.folder.path().join(log), "").expect("a working disk");
    }
    for round in 1..=3_u64 {
        tracker.start("wordcount", 1);
        tracker.add_map_output(0, &["a", "b", "b"][..round as usize]);
        let result = tracker.wait_for_done();
        assert_eq!(result.counters["REDUCE_INPUT_RECORDS"], round);
        // These messages come too late and must not affect the next attempt.
        tracker.send(to_task::Kind::Preempt(TaskPreempt {
            why: "too late".into(),
            kind: proto::mr::PreemptKind::Kill.into(),
        }));
        tracker.add_map_output(1, &["x"]);
    }
    tracker.start_with("wordcount", 0, &[("pace.reduce", "nonsense")]);
    let (last, status) = tracker.wait_for_end();
    assert!(matches!(last, Some(from_task::Kind::Failed(_))), "{last:?}");
    assert!(status.success());
}

#[test]
fn missing_work_folder_fails_the_attempt() {
    let mut tracker = Tracker::with_mrtask();
    tracker.reuse = true;
    tracker.start("wordcount", 0);
    tracker.wait_for_done();
    std::fs::remove_dir_all(tracker.folder.path()).expect("a working disk");
    tracker.start("wordcount", 0);
    let why = expect_failed(tracker.wait_for_end());
    assert!(why.contains("change to folder"), "{why}");
}

#[test]
fn unknown_program_fails_with_a_message() {
    let mut tracker = Tracker::with_mrtask();
    tracker.start("no-such", 0);
    let why = expect_failed(tracker.wait_for_end());
    assert!(why.contains("no-such") && why.contains("wordcount"), "{why}");
}

#[test]
fn failure_of_a_panicking_reducer_shows_its_location() {
    let mut tracker = Tracker::with_own_program();
    tracker.start("panic", 1);
    tracker.add_map_output(0, &["a"]);
    let why = expect_failed(tracker.wait_for_end());
    assert!(why.contains("tests/processes/task.rs:") && why.ends_with("this reducer panics"), "{why}");
}

#[test]
fn missing_map_output_is_reported() {
    let mut tracker = Tracker::with_mrtask();
    tracker.start("wordcount", 1);
    let available = MapAvailable {
        attempt: "job_3.m0.0".into(),
        local_path: "/no/such/output".into(),
        shuffle_addr: "here:1".into(),
        ..MapAvailable::default()
    };
    let events = vec![MapEvent { kind: Some(map_event::Kind::Available(available)) }];
    tracker.send(to_task::Kind::MapEvents(TaskMapEvents { first: 0, events, maps: 1 }));
    let message = loop {
        let message: FromTask = read_frame(&mut tracker.stream).expect("a frame").expect("a message");
        if !matches!(message.kind, Some(from_task::Kind::Progress(_))) {
            break message.kind;
        }
    };
    let failure = FetchFailed { attempt: "job_3.m0.0".into(), addr: "here:1".into() };
    assert_eq!(message, Some(from_task::Kind::FetchFailed(failure)));
    tracker.send(to_task::Kind::Preempt(TaskPreempt {
        why: "enough".into(),
        kind: proto::mr::PreemptKind::Kill.into(),
    }));
    assert_eq!(expect_failed(tracker.wait_for_end()), "killed: enough");
}

#[test]
fn killed_task_ends_even_if_its_program_hangs() {
    for (program, stage) in [("wait", "shuffle"), ("hang", "reduce")] {
        let mut tracker = Tracker::with_own_program();
        tracker.start(program, if program == "wait" { 2 } else { 1 });
        tracker.add_map_output(0, &["a"]);
        tracker.wait_for_stage(stage);
        tracker.send(to_task::Kind::Preempt(TaskPreempt {
            why: "preempted".into(),
            kind: proto::mr::PreemptKind::Kill.into(),
        }));
        let started = Instant::now();
        assert_eq!(expect_failed(tracker.wait_for_end()), "killed: preempted");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn waiting_task_is_alive_and_hung_program_is_not() {
    let mut waiting = Tracker::with_own_program();
    waiting.start("wait", 2);
    let first = waiting.wait_for_stage("shuffle");
    while waiting.progress().activity <= first {}
    let mut hanging = Tracker::with_own_program();
    hanging.start("hang", 1);
    hanging.add_map_output(0, &["a"]);
    hanging.wait_for_stage("reduce");
    // The last sign of life may have been just before the program hung.
    let activity = hanging.progress().activity;
    assert_eq!(hanging.progress().activity, activity);
    for mut tracker in [waiting, hanging] {
        tracker.send(to_task::Kind::Preempt(TaskPreempt {
            why: "enough".into(),
            kind: proto::mr::PreemptKind::Kill.into(),
        }));
        expect_failed(tracker.wait_for_end());
    }
}

#[test]
fn long_failure_message_is_truncated() {
    let mut tracker = Tracker::with_own_program();
    tracker.start("talk", 1);
    tracker.add_map_output(0, &["a"]);
    let why = expect_failed(tracker.wait_for_end());
    assert!(why.len() <= mrlib_api::limits::FAILURE_BYTES_MAX, "{}", why.len());
    assert!(why.starts_with("begin") && why.ends_with("end"), "{why}");
}

#[test]
fn streaming_program_is_killed_with_its_task() {
    let mut tracker = Tracker::with_mrtask();
    let pid_file = tracker.folder.path().join("pid");
    let reducer = format!("sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600'", pid_file.display());
    tracker.start_with("streaming", 1, &[("stream.mapper", "cat"), ("stream.reducer", &reducer)]);
    tracker.add_map_output(0, &["a"]);
    let deadline = Instant::now() + Duration::from_mins(1);
    let pid = loop {
        if let Ok(pid) = std::fs::read_to_string(&pid_file) {
            break pid.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "the program does not start");
        thread::sleep(Duration::from_millis(5));
    };
    tracker.child.kill().expect("the child is running");
    tracker.child.wait().expect("the child was killed");
    // The process has ended, or is a zombie that was not collected yet.
    let alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    while alive() {
        assert!(Instant::now() < deadline, "the program outlives its task");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn error_names_the_missing_streaming_program() {
    let mut tracker = Tracker::with_mrtask();
    tracker.start_with("streaming", 1, &[("stream.mapper", "cat"), ("stream.reducer", "no-such-program x")]);
    tracker.add_map_output(0, &["a"]);
    let why = expect_failed(tracker.wait_for_end());
    assert!(why.contains("start no-such-program"), "{why}");
}

#[test]
fn task_process_ends_when_the_tracker_closes_the_connection() {
    // An idle process before an attempt.
    let Tracker { stream, mut child, .. } = Tracker::with_mrtask();
    drop(stream);
    assert!(child.wait().expect("a child").success());
    // A process during an attempt.
    let mut tracker = Tracker::with_own_program();
    tracker.start("hang", 1);
    tracker.add_map_output(0, &["a"]);
    tracker.wait_for_stage("reduce");
    let Tracker { stream, mut child, .. } = tracker;
    drop(stream);
    assert!(!child.wait().expect("a child").success());
}

#[test]
fn task_process_that_is_not_a_child_of_the_tracker_ends() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mrtask"));
    command.env(UMBILICAL_VAR, "/no/such/socket").env(TRACKER_PID_VAR, "1");
    let output = command.output().expect("a program");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("tracker has ended"), "{output:?}");
}

#[test]
fn process_memory_is_limited() {
    let mut command = own_program();
    command.env(LIMIT_AS_VAR, (2_u64 << 30).to_string());
    let mut tracker = Tracker::with_command(command);
    tracker.start("eat", 1);
    tracker.add_map_output(0, &["a"]);
    let (last, status) = tracker.wait_for_end();
    assert_eq!(last, None, "it cannot send a message");
    assert_eq!(status.signal(), Some(6), "aborted");
}

/// Returns a command that runs only `own_program_main` of this binary.
fn own_program() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "task::own_program_main", "--nocapture"]);
    command
}

/// Not a test: the main function of this binary when it is started as a job binary.
#[test]
fn own_program_main() {
    let Some(socket) = task::umbilical_path() else { return };
    let make: Arc<task::MakeJob> = Arc::new(|program, _| {
        let Some(program::Kind::Builtin(name)) = &program.kind else {
            return Err("the test uses names of programs".into());
        };
        let name = name.clone();
        Ok(Job::map(|_| Ok(Nothing)).reduce(move |_| Ok(MisbehavingReducer(name.clone()))))
    });
    let code = task::serve(&socket, make);
    process::exit(i32::from(code != process::ExitCode::SUCCESS));
}

struct Nothing;

impl Mapper for Nothing {
    fn map(&mut self, _: &[u8], line: &[u8], _: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
        assert!(line != b"panic", "this mapper panics");
        Ok(())
    }
}

struct MisbehavingReducer(String);

impl Reducer for MisbehavingReducer {
    fn reduce(
        &mut self,
        _: &[u8],
        _: &mut dyn Values,
        _: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        match self.0.as_str() {
            "panic" => panic!("this reducer panics"),
            "talk" => Err(format!("begin{}end", "!".repeat(20 << 20)).into()),
            "hang" => loop {
                thread::sleep(Duration::from_secs(1));
            },
            "eat" => {
                let mut eaten: Vec<Vec<u8>> = Vec::new();
                loop {
                    eaten.push(vec![1; 64 << 20]);
                }
            }
            _ => Ok(()),
        }
    }
}
