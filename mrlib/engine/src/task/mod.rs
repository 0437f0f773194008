//! A task process: runs attempts for a tracker, which it is connected to by a Unix socket (the
//! umbilical).
//!
//! The process arranges to be killed with its tracker, applies its limits, connects, sends `Hello`
//! and waits for an attempt (an idle process may wait long). It runs the attempt on another thread,
//! reports progress, and ends with one of the last messages of `FromTask`, such as `done`, `paused`
//! or `failed`. It runs one attempt or, if the tracker reuses it, several attempts of one job in
//! sequence. A panic of the program is reported as `failed` with its message and location; the
//! tracker notices an abort.

mod io;
mod umbilical;

use crate::{
    checkpoint::CheckpointSource,
    execution::{CPU_COUNTER, MapTask, ReduceEnd, ReduceTask, TaskOutcome, run_map, run_reduce},
    frame::{read_frame, write_frame},
    input::Pin,
    panics, process,
    task_conf::conf_of,
};
use crossbeam::channel::{self, Receiver, RecvTimeoutError};
use daemon::logging::{self, LogFormat};
use io::{Dfs, ProcessIo};
use mrlib_api::{Conf, Job, TaskError, limits};
use proto::mr::{
    FromTask, Program, Split, TaskHello, TaskPaused, TaskResult, TaskSpec, TaskStart, ToTask, from_task,
    task_spec, to_task,
};
use std::{
    env,
    io::Write,
    mem::ManuallyDrop,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use types::AttemptId;
use umbilical::{Received, Umbilical};

/// The path of the Unix socket of the tracker. If it is set, this is a task process.
pub const UMBILICAL_VAR: &str = "FERMATA_UMBILICAL";
/// Version of the protocol between a tracker and its task processes.
pub const PROTOCOL: u32 = 8;

/// Minimum time between two progress messages.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a killed task that has not ended is reported as failed, and its process ends.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates the job of a task: a built-in program by its name, or the job of the job binary.
pub type MakeJob = dyn Fn(&Program, &Conf) -> Result<Job, TaskError> + Send + Sync;

type ResultReceiver = Receiver<Result<ReduceEnd, TaskError>>;

/// Returns the path of the tracker's socket, if this process is a task process.
pub fn umbilical_path() -> Option<PathBuf> {
    env::var_os(UMBILICAL_VAR).map(PathBuf::from)
}

/// Runs a task process: call it in the main function. Exits the process on success.
pub fn serve(socket: &Path, make_job: Arc<MakeJob>) -> ExitCode {
    // A job binary may have set up its own logging.
    if !tracing::dispatcher::has_been_set() {
        logging::init(LogFormat::Human);
    }
    match serve_attempts(socket, &make_job) {
        // Everything was reported, so the remaining threads need not end in order.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("task process: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_attempts(socket: &Path, make_job: &Arc<MakeJob>) -> Result<(), TaskError> {
    if !process::die_with_tracker()? {
        return Err(TaskError::Program("the tracker has ended".into()));
    }
    process::apply_limits()?;
    let what = format!("umbilical {}", socket.display());
    let broken = || TaskError::io(what.clone());
    let mut stream = UnixStream::connect(socket).map_err(broken())?;
    process::hide_memory(&stream).map_err(broken())?;
    write_frame(&mut stream, &FromTask { kind: Some(hello()) }).map_err(broken())?;
    // If an idle process is not needed, the tracker closes the connection.
    let Some(first) = read_frame::<ToTask>(&mut stream).map_err(broken())? else { return Ok(()) };
    let Some(to_task::Kind::Start(start)) = first.kind else { return Ok(()) };
    // A job binary was confined before it was started.
    if let Some(confinement) = &start.confinement
        && !process::confine(confinement)?
    {
        tracing::warn!("{}", process::NO_LANDLOCK);
    }
    // The client is never dropped, so that the process does not wait for its threads.
    let dfs = ManuallyDrop::new(Arc::new(Dfs::new(start.client.as_ref())));
    let (mut next, mut cpu_before) = (Some(start), 0);
    let mut is_first = true;
    while let Some(start) = next {
        let attempt = AttemptRun {
            make_job: make_job.clone(),
            dfs: Arc::clone(&dfs),
            cpu_before,
            is_first,
            started: Instant::now(),
        };
        next = attempt.run_attempt(&stream, start).map_err(broken())?;
        cpu_before = process::cpu_milliseconds();
        is_first = false;
    }
    Ok(())
}

fn hello() -> from_task::Kind {
    from_task::Kind::Hello(TaskHello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() })
}

/// What an attempt gets from its process.
struct AttemptRun {
    make_job: Arc<MakeJob>,
    dfs: Arc<Dfs>,
    /// CPU time of the process when it began to wait for this attempt, in milliseconds. 0 for the
    /// first attempt, whose CPU time includes the start of the process.
    cpu_before: u64,
    /// Whether this is the first attempt, whose folder is already the current folder.
    is_first: bool,
    started: Instant,
}

impl AttemptRun {
    /// Runs the attempt and reports its result. Returns the next attempt if the process is reused.
    fn run_attempt(self, stream: &UnixStream, start: TaskStart) -> std::io::Result<Option<TaskStart>> {
        let spec = start.spec.clone().unwrap_or_default();
        let reuse = start.reuse;
        let (maps, end) = match &spec.input {
            Some(task_spec::Input::Partition(partition)) => (partition.maps, None),
            Some(task_spec::Input::Split(split)) => (0, Some(split.end).filter(|_| !split.whole)),
            None => (0, None),
        };
        let umbilical = Arc::new(Umbilical::new(stream.try_clone()?, maps));
        let next = listen(umbilical.clone(), stream.try_clone()?);
        if !self.is_first
            && let Err(error) = process::change_folder(Path::new(&start.work_dir))
        {
            umbilical.send(from_task::Kind::Failed(error.to_string()))?;
            return Ok(None);
        }
        let cpu_before = self.cpu_before;
        let ended = spawn_task(umbilical.clone(), start, spec, self);
        let last = supervise(&umbilical, &ended, end, cpu_before)?;
        let succeeded = matches!(last, from_task::Kind::Done(_) | from_task::Kind::Paused(_));
        umbilical.send(last)?;
        // After a failure, a kill or a panic the process is not reused. Its output must be flushed
        // to the log of this attempt.
        let reusable = succeeded && umbilical.control().check().is_ok() && !panics::any_caught();
        if !reuse || !reusable || std::io::stdout().flush().is_err() {
            return Ok(None);
        }
        umbilical.send(hello())?;
        // If the tracker closes the connection, there is no next attempt and the process ends.
        Ok(next.recv().ok())
    }
}

/// Receives messages of the tracker on another thread until it sends the next attempt. If the
/// connection is lost, the process ends.
fn listen(umbilical: Arc<Umbilical>, reader: UnixStream) -> Receiver<TaskStart> {
    let (sender, next) = channel::bounded(1);
    thread::spawn(move || match umbilical.listen(reader) {
        Received::Closed(error) => {
            if umbilical.final_message_sent() {
                std::process::exit(0);
            }
            eprintln!("task process: the tracker has closed the connection: {error}");
            std::process::exit(1);
        }
        Received::Malformed(error) => {
            umbilical.control().kill(error.to_string());
            umbilical.feed().wake();
        }
        Received::Start(start) => drop(sender.send(*start)),
    });
    next
}

/// Runs the task on another thread, which sends its result through the returned channel.
fn spawn_task(
    umbilical: Arc<Umbilical>,
    start: TaskStart,
    spec: TaskSpec,
    attempt: AttemptRun,
) -> ResultReceiver {
    let (sender, ended) = channel::bounded(1);
    thread::spawn(move || {
        let outcome = panics::catch(|| run(&umbilical, &start, &spec, &attempt));
        let outcome = outcome.unwrap_or_else(|text| Err(TaskError::Program(text)));
        // The receiver is gone only if the process is ending.
        let _ = sender.send(outcome);
    });
    ended
}

fn run(
    umbilical: &Arc<Umbilical>,
    start: &TaskStart,
    spec: &TaskSpec,
    attempt: &AttemptRun,
) -> Result<ReduceEnd, TaskError> {
    let conf = conf_of(spec)?;
    let job = (attempt.make_job)(&spec.program.clone().unwrap_or_default(), &conf)?;
    let mut io = ProcessIo::new(umbilical.clone(), start, spec, attempt)?;
    match &spec.input {
        Some(task_spec::Input::Split(split)) => {
            let task = MapTask {
                source: split.source.clone(),
                start: split.start,
                end: split.end,
                whole_file: split.whole,
                pin: pin(spec, split),
                reduces: spec.reduces,
                map_output: PathBuf::from(&start.map_output),
                fallback_outputs: start.other_map_outputs.iter().map(PathBuf::from).collect(),
                conf,
            };
            run_map(&job, &task, &mut io).map(ReduceEnd::Done)
        }
        Some(task_spec::Input::Partition(partition)) => {
            let reporter = umbilical.clone();
            let task = ReduceTask {
                partition: partition.index,
                conf,
                feed: umbilical.feed(),
                token: spec.shuffle_token.clone(),
                // If the tracker is gone, the listening thread ends the process.
                fetch_failed: Arc::new(move |failure| {
                    let _ = reporter.send(from_task::Kind::FetchFailed(failure));
                }),
                checkpoint_dirs: start.checkpoint_dirs.iter().map(PathBuf::from).collect(),
                resume_from: checkpoint_source(start),
                started: attempt.started,
            };
            run_reduce(&job, &task, &mut io)
        }
        None => Err(TaskError::Program("a task has no input: this is a bug in the TaskTracker".into())),
    }
}

/// Returns the identity of the input file at submission, if the split has it. File IDs start at 1.
fn pin(spec: &TaskSpec, split: &Split) -> Option<Pin> {
    let job = spec.attempt.parse::<AttemptId>().ok()?.job().0.into();
    (split.file_id > 0).then_some(Pin { job, file_id: split.file_id, length: split.file_length })
}

/// Reports progress until the task has ended. Returns the final message. `end` is the end of the
/// range of a map, if it has one.
fn supervise(
    umbilical: &Umbilical,
    ended: &ResultReceiver,
    end: Option<u64>,
    cpu_before: u64,
) -> std::io::Result<from_task::Kind> {
    let mut killed_at = None;
    loop {
        match ended.recv_timeout(REPORT_INTERVAL) {
            Ok(ended) => return Ok(final_message(ended, end, cpu_before)),
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(from_task::Kind::Failed("the thread of the task ended without a result".into()));
            }
            Err(RecvTimeoutError::Timeout) => umbilical.send_progress()?,
        }
        if let Err(error) = umbilical.control().check()
            && killed_at.get_or_insert_with(Instant::now).elapsed() >= KILL_TIMEOUT
        {
            return Ok(from_task::Kind::Failed(error.to_string()));
        }
    }
}

/// Returns the final message of an attempt. `end` is the end of the range of a map, if it has one.
fn final_message(ended: Result<ReduceEnd, TaskError>, end: Option<u64>, cpu_before: u64) -> from_task::Kind {
    match ended {
        Ok(ReduceEnd::Done(TaskOutcome { mut counters, pieces, bytes_out, position })) => {
            // The tracker knows whether it requested a split. The current request does not matter,
            // because it may have come after the last record.
            let position = end.filter(|end| position < *end).map(|_| position);
            // The checkpoint already has the CPU time of earlier attempts.
            *counters.entry(CPU_COUNTER.into()).or_default() +=
                process::cpu_milliseconds().saturating_sub(cpu_before);
            let counters = counters.into_iter().collect();
            from_task::Kind::Done(TaskResult { counters, pieces, bytes_out, position })
        }
        Ok(ReduceEnd::Paused(_)) => from_task::Kind::Paused(TaskPaused {}),
        Err(error @ TaskError::NotResumed) => from_task::Kind::NotResumed(error.to_string()),
        Err(TaskError::CheckpointCorrupt(why)) => {
            from_task::Kind::CheckpointCorrupt(limits::truncate_failure(why))
        }
        Err(TaskError::CheckpointUnreachable(why)) => {
            from_task::Kind::CheckpointUnreachable(limits::truncate_failure(why))
        }
        Err(TaskError::DfsUnavailable(error)) => {
            from_task::Kind::DfsUnavailable(limits::truncate_failure(error.to_string()))
        }
        Err(error) if error.is_permanent() => {
            from_task::Kind::Fatal(limits::truncate_failure(error.to_string()))
        }
        Err(error) => from_task::Kind::Failed(limits::truncate_failure(error.to_string())),
    }
}

/// Returns the checkpoint that a reduce resumes from.
fn checkpoint_source(start: &TaskStart) -> Option<CheckpointSource> {
    let dirs = start.resume_dirs.iter().map(PathBuf::from).collect();
    let source =
        CheckpointSource { attempt: start.resumed_from.clone(), dirs, addr: start.resume_addr.clone() };
    Some(source).filter(|source| !source.attempt.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfs_error::dfs_error;

    #[test]
    fn only_errors_that_every_attempt_would_have_are_fatal() {
        let is_fatal = |error| matches!(final_message(Err(error), None, 0), from_task::Kind::Fatal(_));
        let record = |unreadable| TaskError::Record {
            source_path: "/in".into(),
            offset: 0,
            line: None,
            why: "the file ends 7 bytes into a record of 100".into(),
            unreadable,
        };
        let refused = |kind| dfs_error(dfs_client::error::Error::new(kind, "refused").into());
        assert!(is_fatal(TaskError::Fatal("never".into())));
        assert!(is_fatal(record(true)) && !is_fatal(record(false)));
        // The quota may be full only for a while, because of a speculative attempt or other files.
        assert!(!is_fatal(refused(dfs_client::error::Kind::Quota)));
        assert!(!is_fatal(TaskError::Program("perhaps".into())));
    }

    /// A map that ended before the end of its range reports its position, even if no split request
    /// is pending any more.
    #[test]
    fn split_map_reports_its_position() {
        let position_of = |position, end| {
            let outcome = TaskOutcome { position, ..TaskOutcome::default() };
            match final_message(Ok(ReduceEnd::Done(outcome)), end, 0) {
                from_task::Kind::Done(result) => result.position,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(position_of(5, Some(10)), Some(5));
        assert_eq!(position_of(10, Some(10)), None);
        // A map of a whole file, or a reduce, has no end of a range.
        assert_eq!(position_of(5, None), None);
    }
}
