//! Starts child programs that are killed when this process ends for any reason. Also contains the
//! launcher: a process that a tracker starts for an attempt, and that executes the program of the
//! job in its place.
//!
//! The parent death signal is not inherited and must be set between fork and exec. So a program is
//! started through this binary: the copy sets the signal, checks that its parent still exists, and
//! executes the program. The launcher does the same for a tracker, and first applies the limits and
//! the confinement of the attempt, because the executable may be any program.

use super::{apply_limits, change_account, confine, die_with_tracker};
use crate::frame::read_frame;
use mrlib_api::TaskError;
use proto::mr::LaunchProgram;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{self, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

/// If set, this process executes the program in its arguments. The value is the process ID of its
/// parent.
const SHIM_VAR: &str = "FERMATA_SHIM";
/// If set, this process executes the program that it reads from stdin.
///
/// An older `mrtask`, which cannot change accounts, expects a variable with a different name, so it
/// does not launch programs with this one.
pub const LAUNCH_VAR: &str = "FERMATA_LAUNCH_PROGRAM";
/// The exit code if a program cannot be started, the same as that of shells.
const CANNOT_START: i32 = 127;
/// Maximum length of the first line of a script, as in Linux.
const FIRST_LINE_BYTES_MAX: u64 = 256;

/// Whether the main function of this binary has called `enter`.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Executes another program if this process was started for that, and does not return then. Must be
/// called first in the main function of a binary that runs tasks.
pub fn enter() {
    ENTERED.store(true, Ordering::Relaxed);
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

/// Executes the program that the tracker sends. Returns only on an error.
fn launch() -> Result<String, TaskError> {
    if !die_with_tracker()? {
        return Ok("the tracker has ended".into());
    }
    apply_limits()?;
    // The tracker sends the program after it has put this process into its control group.
    let order = read_frame::<LaunchProgram>(&mut io::stdin().lock())
        .map_err(TaskError::io("read the program to launch"))?;
    let Some(LaunchProgram { program, confinement }) = order else {
        return Ok("the tracker sent no program to launch".into());
    };
    if let Some(confinement) = &confinement
        && !confine::confine(confinement)?
    {
        eprintln!("{}", confine::NO_LANDLOCK);
    }
    let error = Command::new(&program).stdin(Stdio::null()).env_remove(LAUNCH_VAR).exec();
    let hint = match error.raw_os_error() {
        Some(2) => missing_interpreter(Path::new(&program)),
        Some(8) => " (not a program for this machine)".into(),
        Some(13) => " (not executable)".into(),
        _ => String::new(),
    };
    Ok(format!("cannot start {program}: {error}{hint}"))
}

/// Executes the program in the arguments. Returns only on an error.
fn become_program(parent: &str) -> String {
    let mut arguments = env::args_os().skip(1);
    let Some(program) = arguments.next() else { return "there is no program in the arguments".into() };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("cannot request the signal that kills this process when the task ends: {error}");
    }
    // If the parent ended before the call above, there will be no signal.
    let current_parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    if current_parent.to_string() != parent {
        return "the task has ended".into();
    }
    let error = Command::new(&program).args(arguments).env_remove(SHIM_VAR).exec();
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => permission_hint(),
        io::ErrorKind::NotFound => missing_interpreter(Path::new(&program)),
        _ => String::new(),
    };
    format!("start {}: {error}{hint}", program.display())
}

/// Explains why a script that exists was not found: the interpreter in its first line does not
/// exist. Returns an empty text if that is not the cause.
fn missing_interpreter(script: &Path) -> String {
    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut start));
    let text = String::from_utf8_lossy(&start);
    let line = text.strip_prefix("#!").and_then(|rest| rest.split('\n').next());
    // A carriage return is a part of the name.
    let name = line.and_then(|line| line.split([' ', '\t']).find(|word| !word.is_empty()));
    match name {
        Some(name) if read.is_ok() && !Path::new(name).exists() => {
            let crlf = if name.ends_with('\r') { "; its lines end with \\r\\n instead of \\n" } else { "" };
            format!(
                ": the first line of {} names the interpreter {}, which does not exist on this node{crlf}",
                script.display(),
                name.escape_debug()
            )
        }
        _ => String::new(),
    }
}

/// Explains why an existing program may not be started, and what to do.
fn permission_hint() -> String {
    let account = daemon::account::name_of(rustix::process::geteuid().as_raw());
    format!(
        ": tasks run as account {account}, and a confined task reads only the system's programs, its job's files and the \
         folders in tasktracker.task_reads; add the program to the job with --file, make it executable for {account}, or add its \
         folder to tasktracker.task_reads"
    )
}

/// Returns a command that starts `program`, through this binary if possible. The command must be
/// spawned by a thread that lives as long as the program should.
pub(crate) fn command(program: &OsStr) -> Command {
    if !ENTERED.load(Ordering::Relaxed) {
        return Command::new(program);
    }
    // Works even if the file of this binary was removed.
    let mut command = Command::new("/proc/self/exe");
    command.arg(program).env(SHIM_VAR, process::id().to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interpreter_of_a_script_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        let hint = |text: &str| {
            std::fs::write(&path, text).unwrap();
            missing_interpreter(&path)
        };
        let named = |name: &str| {
            format!(
                ": the first line of {} names the interpreter {name}, which does not exist on this node",
                path.display()
            )
        };
        assert_eq!(hint("#! /nowhere/python3 -u\n"), named("/nowhere/python3"));
        assert_eq!(hint("#!/nowhere/python3"), named("/nowhere/python3"));
        let windows = named("/bin/sh\\r") + "; its lines end with \\r\\n instead of \\n";
        assert_eq!(hint("#!/bin/sh\r\nexit\r\n"), windows);
        for other in ["", "#!", "#!/bin/sh\n", "exit\n"] {
            assert_eq!(hint(other), "");
        }
        assert_eq!(missing_interpreter(Path::new("/nowhere/script")), "");
    }
}
