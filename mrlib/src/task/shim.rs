//! Starts programs that die with this process, however it dies; and a tracker's launcher, which becomes the executable
//! of a job.
//!
//! The kernel's promise to kill a process at its parent's end is not inherited, and must be asked for between fork and
//! exec. So a program is started by way of this very binary: the copy asks, looks whether its parent is still there,
//! and becomes the program. The launcher does the same below a tracker, and takes on the limits and the walls of the
//! attempt first: what comes after is anybody's code, and cannot be asked to.

use super::{
    confine,
    frame::read_frame,
    process::{change_account, die_with_tracker, limit_itself},
};
use crate::error::TaskError;
use proto::mr::LaunchProgram;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::process::CommandExt as _,
    process::{self, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

/// Set: this process is to become the program that its arguments name. The value is its parent's number.
const SHIM_VAR: &str = "FERMATA_SHIM";
/// Set: this process is to become the executable that it reads of on its stdin.
///
/// An `mrtask` of before it changed accounts itself knows another name, and launches nothing.
pub const LAUNCH_VAR: &str = "FERMATA_LAUNCH_PROGRAM";
/// As a shell says it.
const CANNOT_START: i32 = 127;

/// Whether the main of this binary has called `enter`.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// To be called first in the main of a binary that runs tasks. Does not return if this process was started only to
/// become another program.
pub fn enter() {
    KNOWN.store(true, Ordering::Relaxed);
    if let Err(error) = change_account() {
        eprintln!("{error}");
        process::exit(CANNOT_START);
    }
    if env::var_os(LAUNCH_VAR).is_some() {
        eprintln!("{}", launch().unwrap_or_else(|error| error.to_string()));
        process::exit(CANNOT_START);
    }
    let Ok(parent) = env::var(SHIM_VAR) else { return };
    eprintln!("{}", become_program(&parent));
    process::exit(CANNOT_START);
}

/// Returns only to say why not.
fn launch() -> Result<String, TaskError> {
    if !die_with_tracker()? {
        return Ok("the tracker has ended".into());
    }
    limit_itself()?;
    // It comes when the tracker has put this process into its control group.
    let order =
        read_frame::<LaunchProgram>(&mut io::stdin().lock()).map_err(TaskError::io("read what to launch"))?;
    let Some(LaunchProgram { program, confinement }) = order else { return Ok("nothing to launch".into()) };
    if let Some(confinement) = &confinement
        && !confine::confine(confinement)?
    {
        eprintln!("{}", confine::NO_LANDLOCK);
    }
    let error = Command::new(&program).stdin(Stdio::null()).env_remove(LAUNCH_VAR).exec();
    let hint = match error.raw_os_error() {
        Some(8) => " (not a program for this machine)",
        Some(13) => " (not executable)",
        _ => "",
    };
    Ok(format!("cannot start {program}: {error}{hint}"))
}

/// Returns only to say why not.
fn become_program(parent: &str) -> String {
    let mut arguments = env::args_os().skip(1);
    let Some(program) = arguments.next() else { return "no program is named".into() };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("ask for a signal at the task's end: {error}");
    }
    // The parent may have ended before the lines above; then nobody would ever tell.
    let there = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    if there.to_string() != parent {
        return "the task has ended".into();
    }
    let error = Command::new(&program).args(arguments).env_remove(SHIM_VAR).exec();
    let hint = if error.kind() == io::ErrorKind::PermissionDenied { refused() } else { String::new() };
    format!("start {}: {error}{hint}", program.display())
}

/// Why a program that is there may not be started, and what to do.
fn refused() -> String {
    let account = daemon::account::name_of(rustix::process::geteuid().as_raw());
    format!(
        ": tasks run as account {account}, and a confined task reads only the system's programs, its job's files and the \
         folders in tasktracker.task_reads; ship the program with --file, make it executable for {account}, or add its \
         folder to tasktracker.task_reads"
    )
}

/// A command that starts `program`, by way of this binary if it knows how. To be spawned by a thread that lives as
/// long as the program should.
pub(crate) fn command(program: &OsStr) -> Command {
    if !KNOWN.load(Ordering::Relaxed) {
        return Command::new(program);
    }
    // Also if the file of this binary has been removed meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg(program).env(SHIM_VAR, process::id().to_string());
    command
}
