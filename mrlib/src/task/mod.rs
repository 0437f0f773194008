//! A task process: one attempt, run for a tracker over the umbilical.
//!
//! Life: die with the tracker, keep to the limits, connect, say hello, wait (a warm process may wait long) for the
//! task, run it on a thread of its own, tell progress, and end with `done`, `paused`, `failed` or `spoilt`. One process runs one attempt.
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
    checkpoint::Origin,
    conf::Conf,
    engine::{CPU_COUNTER, MapTask, ReduceEnd, ReduceTask, TaskOutcome, Wish, run_map, run_reduce},
    error::TaskError,
    job::Job,
};
use daemon::logging::{self, LogFormat};
use frame::{read_frame, write_frame};
use io::ProcessIo;
use proto::mr::{
    FromTask, PausedState, Program, TaskHello, TaskResult, TaskSpec, TaskStart, ToTask, from_task, task_spec,
    to_task,
};
use std::{
    env,
    os::unix::net::UnixStream,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};
use umbilical::{Lost, Umbilical};

/// The path of the tracker's Unix socket. Set: this is a task process.
pub const UMBILICAL_VAR: &str = "FERMATA_UMBILICAL";
/// Of the umbilical.
pub const PROTOCOL: u32 = 3;

/// Progress is sent at most this often.
const TELL_PERIOD: Duration = Duration::from_millis(200);
/// A task told to stop that has not ended by itself after this long is ended with its process.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Makes the job of a task: by name for built-in programs, the job binary's own otherwise.
pub type MakeJob = dyn Fn(&Program, &Conf) -> Result<Job, TaskError> + Send + Sync;

type Ended = mpsc::Receiver<Result<ReduceEnd, TaskError>>;

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
    match attend(socket, make) {
        // All has been said: what threads there are need not end in order.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("task process: {error}");
            ExitCode::FAILURE
        }
    }
}

fn attend(socket: &Path, make: Arc<MakeJob>) -> Result<(), TaskError> {
    if !process::die_with_tracker()? {
        return Err(TaskError::Program("the tracker has ended".into()));
    }
    process::limit_itself()?;
    let what = format!("umbilical {}", socket.display());
    let broken = || TaskError::io(what.clone());
    let mut stream = UnixStream::connect(socket).map_err(broken())?;
    let hello = TaskHello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() };
    write_frame(&mut stream, &FromTask { kind: Some(from_task::Kind::Hello(hello)) }).map_err(broken())?;
    // A warm process that is not needed hears nothing but the end.
    let Some(first) = read_frame::<ToTask>(&mut stream).map_err(broken())? else { return Ok(()) };
    let Some(to_task::Kind::Start(start)) = first.kind else { return Ok(()) };
    let spec = start.spec.clone().unwrap_or_default();
    let maps = match &spec.input {
        Some(task_spec::Input::Partition(partition)) => partition.maps,
        _ => 0,
    };
    let reader = stream.try_clone().map_err(broken())?;
    let umbilical = Arc::new(Umbilical::new(stream, maps));
    listen(umbilical.clone(), reader);
    let end = match &spec.input {
        Some(task_spec::Input::Split(split)) if !split.whole => Some(split.end),
        _ => None,
    };
    let ended = work(umbilical.clone(), start, spec, make);
    let last = supervise(&umbilical, &ended, end).map_err(broken())?;
    umbilical.send(last).map_err(broken())
}

/// Hears the tracker on a thread of its own. Without the tracker there is nothing left to do here.
fn listen(umbilical: Arc<Umbilical>, reader: UnixStream) {
    thread::spawn(move || match umbilical.listen(reader) {
        Lost::Tracker(error) => {
            eprintln!("task process: the tracker has hung up: {error}");
            std::process::exit(1);
        }
        Lost::Sense(error) => {
            umbilical.stop().set(error.to_string());
            umbilical.feed().ring();
        }
    });
}

/// Runs the task on a thread of its own; its end comes through the channel.
fn work(umbilical: Arc<Umbilical>, start: TaskStart, spec: TaskSpec, make: Arc<MakeJob>) -> Ended {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let words = remember_panics();
        let run = AssertUnwindSafe(|| run(&umbilical, &start, &spec, make.as_ref()));
        let outcome = panic::catch_unwind(run).unwrap_or_else(|_| {
            let words = words.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Err(TaskError::Program(match (&spec.input, umbilical.pulse().record()) {
                (Some(task_spec::Input::Split(split)), Some(offset)) => {
                    format!("record at {}:{offset}: {words}", split.source)
                }
                _ => words,
            }))
        });
        // Nobody listens only if the process is ending.
        let _ = sender.send(outcome);
    });
    ended
}

/// Keeps the words and place of the last panic, besides printing them.
fn remember_panics() -> Arc<Mutex<String>> {
    let words = Arc::new(Mutex::new(String::from("panicked")));
    let (kept, usual) = (words.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        let payload = info.payload();
        let owned = || payload.downcast_ref::<String>().map(String::as_str);
        let message = payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message");
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = format!("panicked{place}: {message}");
        usual(info);
    }));
    words
}

fn run(
    umbilical: &Arc<Umbilical>,
    start: &TaskStart,
    spec: &TaskSpec,
    make: &MakeJob,
) -> Result<ReduceEnd, TaskError> {
    let conf = conf_of(spec)?;
    let job = make(&spec.program.clone().unwrap_or_default(), &conf)?;
    let mut io = ProcessIo::new(umbilical.clone(), start, spec);
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
            run_map(&job, &task, &mut io).map(ReduceEnd::Done)
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
                aside: start.aside_dirs.iter().map(PathBuf::from).collect(),
                from: origin(start),
            };
            run_reduce(&job, &task, &mut io)
        }
        None => Err(TaskError::Program("a task without input: a bug of the tracker".into())),
    }
}

/// Tells progress until the task has ended; returns the last words. `end` is that of a map's range, if it has one.
fn supervise(umbilical: &Umbilical, ended: &Ended, end: Option<u64>) -> std::io::Result<from_task::Kind> {
    let mut stopped = None;
    loop {
        match ended.recv_timeout(TELL_PERIOD) {
            Ok(ended) => return Ok(last_word(umbilical, ended, end)),
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

/// What is told last. `end` is that of a map's range, if it has one.
fn last_word(
    umbilical: &Umbilical,
    ended: Result<ReduceEnd, TaskError>,
    end: Option<u64>,
) -> from_task::Kind {
    match ended {
        Ok(ReduceEnd::Done(TaskOutcome { mut counters, pieces, bytes_out, position })) => {
            // Only where somebody asked for it is there a rest for another task.
            let asked = umbilical.stop().wish().is_ok_and(|wish| wish != Wish::GoOn);
            let position = end.filter(|end| asked && position < *end).map(|_| position);
            // Attempts that were put aside have taken their part.
            *counters.entry(CPU_COUNTER.into()).or_default() += process::cpu_milliseconds();
            let counters = counters.into_iter().collect();
            from_task::Kind::Done(TaskResult { counters, pieces, bytes_out, position })
        }
        Ok(ReduceEnd::Paused(paused)) => {
            let (stage, note) = (paused.stage.name().into(), paused.note);
            from_task::Kind::Paused(PausedState { stage, bytes: paused.bytes, note, lost_ms: paused.lost_ms })
        }
        Err(TaskError::Spoilt(why)) => from_task::Kind::Spoilt(limits::short_failure(why)),
        Err(error) => from_task::Kind::Failed(limits::short_failure(error.to_string())),
    }
}

/// The state that a reduce is to take up.
fn origin(start: &TaskStart) -> Option<Origin> {
    let dirs = start.from_dirs.iter().map(PathBuf::from).collect();
    let origin = Origin { attempt: start.from.clone(), dirs, addr: start.from_addr.clone() };
    Some(origin).filter(|origin| !origin.attempt.is_empty())
}
