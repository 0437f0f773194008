//! A task process: one attempt, run for a tracker over the umbilical.
//!
//! Life: die with the tracker, keep to the limits, connect, say hello, wait (a warm process may wait long) for the
//! task, run it on a thread of its own, tell progress, and end with `done` or `failed`. A process runs one attempt, or
//! several of one job, one after another, if its tracker wants it to stay.
//! A program that panics is `failed` with its words and place; one that aborts is seen by the tracker.

mod facts;
pub mod frame;
mod io;
pub mod limits;
pub mod process;
pub mod shim;
mod umbilical;

pub use facts::*;

use crate::{
    conf::Conf,
    engine::{MapTask, ReduceTask, TaskOutcome, Wish, run_map, run_reduce},
    error::TaskError,
    job::Job,
};
use daemon::logging::{self, LogFormat};
use frame::{read_frame, write_frame};
use io::{Dfs, ProcessIo};
use proto::mr::{
    FromTask, Program, TaskHello, TaskResult, TaskSpec, TaskStart, ToTask, from_task, task_spec, to_task,
};
use std::{
    env,
    io::Write,
    os::unix::net::UnixStream,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, Once, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};
use umbilical::{Heard, Umbilical};

/// The path of the tracker's Unix socket. Set: this is a task process.
pub const UMBILICAL_VAR: &str = "FERMATA_UMBILICAL";
/// Of the umbilical.
pub const PROTOCOL: u32 = 2;

/// Progress is sent at most this often.
const TELL_PERIOD: Duration = Duration::from_millis(200);
/// A task told to stop that has not ended by itself after this long is ended with its process.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Makes the job of a task: by name for built-in programs, the job binary's own otherwise.
pub type MakeJob = dyn Fn(&Program, &Conf) -> Result<Job, TaskError> + Send + Sync;

type Ended = mpsc::Receiver<Result<TaskOutcome, String>>;

/// The path of the umbilical, if this process is a task process.
pub fn umbilical_path() -> Option<PathBuf> {
    env::var_os(UMBILICAL_VAR).map(PathBuf::from)
}

/// The main of a task process. Ends the process once all has gone well.
pub fn serve(socket: &Path, make: Arc<MakeJob>) -> ExitCode {
    // A job binary may have its own.
    if !tracing::dispatcher::has_been_set() {
        logging::init(LogFormat::Human);
    }
    match attend(socket, &make) {
        // All has been said: what threads there are need not end in order.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("task process: {error}");
            ExitCode::FAILURE
        }
    }
}

fn attend(socket: &Path, make: &Arc<MakeJob>) -> Result<(), TaskError> {
    if !process::die_with_tracker()? {
        return Err(TaskError::Program("the tracker has ended".into()));
    }
    process::limit_itself()?;
    let what = format!("umbilical {}", socket.display());
    let broken = || TaskError::io(what.clone());
    let mut stream = UnixStream::connect(socket).map_err(broken())?;
    write_frame(&mut stream, &FromTask { kind: Some(hello()) }).map_err(broken())?;
    // A warm process that is not needed hears nothing but the end.
    let Some(first) = read_frame::<ToTask>(&mut stream).map_err(broken())? else { return Ok(()) };
    let Some(to_task::Kind::Start(start)) = first.kind else { return Ok(()) };
    let dfs = Arc::new(Dfs::default());
    let mut cpu_before = 0;
    let mut next = Some(start);
    while let Some(start) = next {
        let attempt = Attempt { make: make.clone(), dfs: dfs.clone(), cpu_before };
        next = attempt.live(&stream, start).map_err(broken())?;
        if let Some(start) = &next {
            process::move_to(Path::new(&start.work_dir))?;
        }
        cpu_before = process::cpu_milliseconds();
    }
    // The client's threads are not waited for.
    std::mem::forget(dfs);
    Ok(())
}

fn hello() -> from_task::Kind {
    from_task::Kind::Hello(TaskHello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() })
}

/// What an attempt takes from its process.
struct Attempt {
    make: Arc<MakeJob>,
    dfs: Arc<Dfs>,
    /// CPU time that earlier attempts have used.
    cpu_before: u64,
}

impl Attempt {
    /// Runs it and says how it ended. If the process is to stay, returns what comes next.
    fn live(self, stream: &UnixStream, start: TaskStart) -> std::io::Result<Option<TaskStart>> {
        let spec = start.spec.clone().unwrap_or_default();
        let stay = start.stay;
        let (maps, end) = match &spec.input {
            Some(task_spec::Input::Partition(partition)) => (partition.maps, None),
            Some(task_spec::Input::Split(split)) => (0, Some(split.end).filter(|_| !split.whole)),
            None => (0, None),
        };
        let umbilical = Arc::new(Umbilical::new(stream.try_clone()?, maps));
        let next = listen(umbilical.clone(), stream.try_clone()?);
        let cpu_before = self.cpu_before;
        let ended = work(umbilical.clone(), start, spec, self);
        let last = supervise(&umbilical, &ended, end, cpu_before)?;
        let well = matches!(last, from_task::Kind::Done(_));
        std::io::stdout().flush()?;
        umbilical.send(last)?;
        if !stay || !well {
            return Ok(None);
        }
        umbilical.send(hello())?;
        // Nothing comes if the tracker hangs up, and then the process ends.
        Ok(next.recv().ok())
    }
}

/// Hears the tracker on a thread of its own, up to the next attempt. Without the tracker there is nothing left to do
/// here.
fn listen(umbilical: Arc<Umbilical>, reader: UnixStream) -> mpsc::Receiver<TaskStart> {
    let (sender, next) = mpsc::channel();
    thread::spawn(move || match umbilical.listen(reader) {
        Heard::End(error) => {
            if umbilical.is_over() {
                std::process::exit(0);
            }
            eprintln!("task process: the tracker has hung up: {error}");
            std::process::exit(1);
        }
        Heard::Nonsense(error) => {
            umbilical.stop().set(error.to_string());
            umbilical.feed().ring();
        }
        Heard::Start(start) => drop(sender.send(*start)),
    });
    next
}

/// Runs the task on a thread of its own; its end comes through the channel.
fn work(umbilical: Arc<Umbilical>, start: TaskStart, spec: TaskSpec, attempt: Attempt) -> Ended {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let words = remember_panics();
        let run = AssertUnwindSafe(|| run(&umbilical, &start, &spec, &attempt));
        let outcome = panic::catch_unwind(run).map(|outcome| outcome.map_err(|error| error.to_string()));
        let outcome = outcome.unwrap_or_else(|_| {
            let words = words.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Err(match (&spec.input, umbilical.pulse().record()) {
                (Some(task_spec::Input::Split(split)), Some(offset)) => {
                    format!("record at {}:{offset}: {words}", split.source)
                }
                _ => words,
            })
        });
        // Nobody listens only if the process is ending.
        let _ = sender.send(outcome);
    });
    ended
}

/// Keeps the words and place of the last panic, besides printing them. A process stays only after an attempt that
/// did well, so there is one to tell of at most.
fn remember_panics() -> &'static Mutex<String> {
    static WORDS: Mutex<String> = Mutex::new(String::new());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            *WORDS.lock().unwrap_or_else(PoisonError::into_inner) = words_of(info);
            usual(info);
        }));
    });
    &WORDS
}

fn words_of(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
    let payload = info.payload();
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let message = payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message");
    format!("panicked{place}: {message}")
}

fn run(
    umbilical: &Arc<Umbilical>,
    start: &TaskStart,
    spec: &TaskSpec,
    attempt: &Attempt,
) -> Result<TaskOutcome, TaskError> {
    let conf = conf_of(spec)?;
    let job = (attempt.make)(&spec.program.clone().unwrap_or_default(), &conf)?;
    let mut io = ProcessIo::new(umbilical.clone(), start, spec, attempt.dfs.clone());
    match &spec.input {
        Some(task_spec::Input::Split(split)) => {
            let task = MapTask {
                source: split.source.clone(),
                start: split.start,
                end: split.end,
                whole: split.whole,
                reduces: spec.reduces,
                map_output: PathBuf::from(&start.map_output),
                other_outputs: start.other_map_outputs.iter().map(PathBuf::from).collect(),
                conf,
            };
            run_map(&job, &task, &mut io)
        }
        Some(task_spec::Input::Partition(partition)) => {
            let teller = umbilical.clone();
            let task = ReduceTask {
                partition: partition.index,
                conf,
                feed: umbilical.feed(),
                token: spec.shuffle_token.clone(),
                // If the tracker is gone, the thread that hears it ends the process.
                unfetched: Arc::new(move |attempt: &str| {
                    let _ = teller.send(from_task::Kind::Unfetched(attempt.to_owned()));
                }),
            };
            run_reduce(&job, &task, &mut io)
        }
        None => Err(TaskError::Program("a task without input: a bug of the tracker".into())),
    }
}

/// Tells progress until the task has ended; returns the last words. `end` is that of a map's range, if it has one.
fn supervise(
    umbilical: &Umbilical,
    ended: &Ended,
    end: Option<u64>,
    cpu_before: u64,
) -> std::io::Result<from_task::Kind> {
    let mut stopped = None;
    loop {
        match ended.recv_timeout(TELL_PERIOD) {
            Ok(Ok(outcome)) => {
                let TaskOutcome { mut counters, pieces, bytes_out, position } = outcome;
                // Only where somebody asked for it is there a rest for another task.
                let asked = umbilical.stop().wish().is_ok_and(|wish| wish != Wish::GoOn);
                let position = end.filter(|end| asked && position < *end).map(|_| position);
                let cpu = process::cpu_milliseconds().saturating_sub(cpu_before);
                counters.insert("CPU_MILLISECONDS".into(), cpu);
                let counters = counters.into_iter().collect();
                return Ok(from_task::Kind::Done(TaskResult { counters, pieces, bytes_out, position }));
            }
            Ok(Err(why)) => return Ok(from_task::Kind::Failed(limits::short_failure(why))),
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(from_task::Kind::Failed("the task's thread has ended without a word".into()));
            }
            Err(RecvTimeoutError::Timeout) => umbilical.tell()?,
        }
        if let Err(error) = umbilical.stop().check()
            && stopped.get_or_insert_with(Instant::now).elapsed() >= STOP_GRACE
        {
            return Ok(from_task::Kind::Failed(error.to_string()));
        }
    }
}
