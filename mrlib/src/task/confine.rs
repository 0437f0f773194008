//! A task process confines itself before it runs anything of its job's: with Landlock it can reach its own folders,
//! what it needs of the system, and nothing else of the machine's files, nor a process of anybody else's. Whatever it
//! starts is confined with it.
//!
//! This binds the calling thread and those that it starts later, so it comes before any other thread. Rules that the
//! kernel does not know are left out. Whether tasks may run on a kernel without Landlock is decided by the tracker,
//! when it starts.

use crate::error::TaskError;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use proto::mr::Confinement;
use std::path::PathBuf;

/// The newest that we know; the kernel may know less.
const NEWEST: ABI = ABI::V6;

/// Programs, libraries, and what they look up. Nothing below `/etc` but these: keys may lie there.
const SYSTEM: [&str; 22] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/kernel/mm",
    "/etc/alternatives",
    "/etc/group",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// What people are told where it cannot be done.
pub(super) const NO_LANDLOCK: &str = "the kernel has no Landlock: this task can reach what its account can";

/// Whether this kernel has Landlock.
pub fn is_supported() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// Locks this process in; false if the kernel cannot.
pub(super) fn confine(to: &Confinement) -> Result<bool, TaskError> {
    let failed = |error: RulesetError| TaskError::Program(format!("cannot confine this process: {error}"));
    Ok(restrict(to).map_err(failed)? != RulesetStatus::NotEnforced)
}

fn restrict(to: &Confinement) -> Result<RulesetStatus, RulesetError> {
    // By its link in /proc: the account may be unable to reach the file by its path.
    let own_program = PathBuf::from("/proc/self/exe");
    let system = SYSTEM.iter().map(|path| (*path).into()).chain([own_program]);
    let reads = to.reads.iter().map(Into::into).chain(system);
    let reads: Vec<PathBuf> = reads.collect();
    // What it prints into lies where it may not go, but `/dev/stderr` is opened anew by many a script.
    let printed = ["/proc/self/fd/1", "/proc/self/fd/2"].map(PathBuf::from);
    let devices = DEVICES.iter().map(PathBuf::from);
    let files = devices.chain(printed.into_iter().filter(|path| path.is_file()));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        // Not even a signal to whoever is outside.
        .scope(Scope::from_all(NEWEST))?
        .create()?
        // Paths that are not there are left out.
        .add_rules(path_beneath_rules(&reads, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(files, AccessFs::from_file(NEWEST)))?
        .add_rules(path_beneath_rules(&to.writes, AccessFs::from_all(NEWEST)))?
        .restrict_self()?;
    Ok(status.ruleset)
}
