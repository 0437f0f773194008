//! Setup that a task process does for itself: it changes its account, ends with its tracker, sets
//! resource limits and protects its memory. Also measures its CPU time.

mod confine;
pub mod shim;

pub use confine::is_supported as can_confine;
pub(crate) use confine::{NO_LANDLOCK, confine};

use mrlib_api::TaskError;
use rustix::{
    net::sockopt::socket_peercred,
    process::{
        DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, geteuid, getppid, getrlimit,
        set_dumpable_behavior, setrlimit,
    },
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};
use std::{env, fs, io, os::unix::net::UnixStream, path::Path};

/// The process ID of the tracker, which must be the parent.
pub const TRACKER_PID_VAR: &str = "FERMATA_TRACKER_PID";
/// The account that this process changes to, as `UID:GID`. Set if the tracker runs as root.
pub const ACCOUNT_VAR: &str = "FERMATA_TASK_ACCOUNT";
/// Marks all processes of a tracker; child processes inherit it. It does not begin with `FERMATA_`,
/// because streaming programs do not get those variables.
pub const MARK_VAR: &str = "TASK_OF_TRACKER";
/// Limit of the address space in bytes.
pub const LIMIT_AS_VAR: &str = "FERMATA_RLIMIT_AS";
/// Limit of open files.
pub const LIMIT_NOFILE_VAR: &str = "FERMATA_RLIMIT_NOFILE";

/// The unit of times in `/proc`: a hundredth of a second on every supported Linux.
const TICK_MILLISECONDS: u64 = 10;

/// Changes permanently to the account in the environment. If the tracker started the process with
/// that account, it would have to fork, which copies its page tables; so it spawns the process,
/// which changes the account itself. Must be called first and before other threads exist, because
/// the kernel resets the parent death signal with the change.
pub(crate) fn change_account() -> Result<(), TaskError> {
    let Ok(text) = env::var(ACCOUNT_VAR) else { return Ok(()) };
    let ids = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    let Some((user, group)) = ids else {
        return Err(TaskError::Program(format!("{ACCOUNT_VAR}={text}: it must be UID:GID")));
    };
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    if geteuid() == user {
        return Ok(());
    }
    set_thread_groups(&[])
        .and_then(|()| set_thread_gid(group))
        .and_then(|()| set_thread_uid(user))
        .map_err(|error| TaskError::io(format!("change to account {text}"))(error.into()))
}

/// Has the kernel kill this process when its parent ends. Returns false if the parent has already
/// ended.
pub(crate) fn die_with_tracker() -> Result<bool, TaskError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        TaskError::io("request the signal that kills this process when the tracker ends")(error.into())
    })?;
    // If the parent ended before the call above, there will be no signal.
    let Some(tracker) = number_from_env(TRACKER_PID_VAR)? else { return Ok(true) };
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    Ok(u64::try_from(parent) == Ok(tracker))
}

/// Protects the memory of this process, which contains the token of the job, from other processes
/// of the same account. Does nothing if the account is that of the tracker. Any other account may
/// be shared with programs outside the cluster.
pub(crate) fn hide_memory(tracker: &UnixStream) -> io::Result<()> {
    if socket_peercred(tracker)?.uid != geteuid() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    Ok(())
}

/// Applies the limits in the environment.
pub(crate) fn apply_limits() -> Result<(), TaskError> {
    // A core file would contain the memory with the token.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|error| TaskError::io("disable core files")(io::Error::from(error)))?;
    // Child processes cannot gain privileges with setuid programs.
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| TaskError::io("disable new privileges")(io::Error::from(error)))?;
    for (key, resource) in [(LIMIT_AS_VAR, Resource::As), (LIMIT_NOFILE_VAR, Resource::Nofile)] {
        let Some(max) = number_from_env(key)? else { continue };
        // A limit cannot be raised above the current maximum.
        let max = getrlimit(resource).maximum.map_or(max, |allowed| max.min(allowed));
        let limit = Rlimit { current: Some(max), maximum: Some(max) };
        setrlimit(resource, limit)
            .map_err(|error| TaskError::io(format!("set {key}={max}"))(io::Error::from(error)))?;
    }
    Ok(())
}

/// Changes the current folder.
pub(crate) fn change_folder(folder: &Path) -> Result<(), TaskError> {
    env::set_current_dir(folder).map_err(TaskError::io(format!("change to folder {}", folder.display())))
}

/// Returns the number in an environment variable, if the variable is set.
fn number_from_env(key: &str) -> Result<Option<u64>, TaskError> {
    let Ok(text) = env::var(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| TaskError::Program(format!("{key}={text}: it must be a number")))
}

/// Returns the CPU time of this process and of its ended children, in milliseconds.
pub fn cpu_milliseconds() -> u64 {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = own.tv_sec as u64 * 1000 + own.tv_nsec as u64 / 1_000_000;
    own + children_ticks().unwrap_or(0) * TICK_MILLISECONDS
}

/// Returns the CPU time of ended children in ticks: the sum of fields 16 and 17 of
/// `/proc/self/stat`. The second field may contain spaces, so fields are counted after its closing
/// bracket.
fn children_ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(13).map(str::parse::<u64>);
    Some(ticks.next()?.ok()? + ticks.next()?.ok()?)
}
