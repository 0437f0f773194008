//! What a task process does to itself: it takes its account, dies with its tracker, keeps to its limits, closes its
//! memory to others, and knows its CPU time.

use crate::error::TaskError;
use rustix::{
    net::sockopt::socket_peercred,
    process::{
        DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, geteuid, getppid, getrlimit,
        set_dumpable_behavior, setrlimit,
    },
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};
use std::{env, fs, io, os::unix::net::UnixStream, path::Path};

/// The tracker's process, whose child this must still be.
pub const TRACKER_PID_VAR: &str = "FERMATA_TRACKER_PID";
/// The account that this process changes to, as `UID:GID`, if its tracker runs as root.
pub const ACCOUNT_VAR: &str = "FERMATA_TASK_ACCOUNT";
/// The tracker's mark, which whatever a task starts inherits. Not one of `FERMATA_*`, which streaming programs do not
/// get.
pub const MARK_VAR: &str = "TASK_OF_TRACKER";
/// Address space in bytes.
pub const LIMIT_AS_VAR: &str = "FERMATA_RLIMIT_AS";
/// Open files.
pub const LIMIT_NOFILE_VAR: &str = "FERMATA_RLIMIT_NOFILE";

/// `/proc` counts in hundredths of a second on every Linux that we run on.
const TICK_MILLISECONDS: u64 = 10;

/// Changes to the account that the tracker has put into the environment, for good. The tracker could have the process
/// started with it, but then it has to be forked, which copies the tracker's page tables; without, it is spawned.
/// To be called before there are threads, and first: the kernel forgets the signal at the parent's end with the change.
pub(super) fn change_account() -> Result<(), TaskError> {
    let Ok(text) = env::var(ACCOUNT_VAR) else { return Ok(()) };
    let ids = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    let Some((user, group)) = ids else {
        return Err(TaskError::Program(format!("{ACCOUNT_VAR}={text}: not UID:GID")));
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

/// Has the kernel kill this process when its parent ends; false if the parent has ended already.
pub(super) fn die_with_tracker() -> Result<bool, TaskError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| TaskError::io("ask for a signal at the tracker's end")(error.into()))?;
    // The parent may have ended before the line above; then nobody would ever tell.
    let Some(tracker) = number(TRACKER_PID_VAR)? else { return Ok(true) };
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    Ok(u64::try_from(parent) == Ok(tracker))
}

/// Closes this process's memory, which will hold the job's token, to other programs of its account, if that is not the
/// tracker's: such an account may be shared with programs that do not belong to the cluster.
pub(super) fn hide_memory(tracker: &UnixStream) -> io::Result<()> {
    if socket_peercred(tracker)?.uid != geteuid() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    Ok(())
}

/// Sets the limits that the tracker has put into the environment.
pub(super) fn limit_itself() -> Result<(), TaskError> {
    // A file with all that it holds in memory is for nobody.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|error| TaskError::io("forbid core files")(io::Error::from(error)))?;
    // Nothing that it starts gains rights by being somebody's program (setuid).
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| TaskError::io("give up gaining rights")(io::Error::from(error)))?;
    for (key, resource) in [(LIMIT_AS_VAR, Resource::As), (LIMIT_NOFILE_VAR, Resource::Nofile)] {
        let Some(max) = number(key)? else { continue };
        // What is forbidden already cannot be allowed again.
        let max = getrlimit(resource).maximum.map_or(max, |allowed| max.min(allowed));
        let limit = Rlimit { current: Some(max), maximum: Some(max) };
        setrlimit(resource, limit)
            .map_err(|error| TaskError::io(format!("set {key}={max}"))(io::Error::from(error)))?;
    }
    Ok(())
}

/// Makes this the current folder.
pub(super) fn move_to(folder: &Path) -> Result<(), TaskError> {
    env::set_current_dir(folder).map_err(TaskError::io(format!("go to {}", folder.display())))
}

fn number(key: &str) -> Result<Option<u64>, TaskError> {
    let Ok(text) = env::var(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| TaskError::Program(format!("{key}={text}: not a number")))
}

/// CPU time of this process and of its children that have ended.
pub fn cpu_milliseconds() -> u64 {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = own.tv_sec as u64 * 1000 + own.tv_nsec as u64 / 1_000_000;
    own + children_ticks().unwrap_or(0) * TICK_MILLISECONDS
}

/// Fields 16 and 17 of `/proc/self/stat`; the second field may hold spaces, so counting starts after its bracket.
fn children_ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(13).map(str::parse::<u64>);
    Some(ticks.next()?.ok()? + ticks.next()?.ok()?)
}
