//! A task process locks itself in before it runs anything of its job's: with Landlock it can reach its own folders,
//! what it needs of the system, and nothing else of the machine's files; whatever it starts is locked in with it.
//!
//! It binds the calling thread and those that it starts later, so it comes before any other thread. What the kernel
//! does not know of it leaves out; one that knows nothing of it is said in the log, and the process goes on.

use crate::error::TaskError;
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};
use proto::mr::Confinement;

/// The newest that we know; the kernel may know less.
const NEWEST: ABI = ABI::V5;

/// Programs, libraries, and what they look up. Nothing below `/etc` but these: keys may lie there.
const SYSTEM: [&str; 23] = [
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
    "/dev",
];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Locks this process in.
pub(super) fn confine(to: &Confinement) -> Result<(), TaskError> {
    let failed = |error: RulesetError| TaskError::Program(format!("cannot confine this process: {error}"));
    match restrict(to).map_err(failed)? {
        RulesetStatus::NotEnforced => {
            tracing::warn!("the kernel has no Landlock: this task can reach what its account can");
        }
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => {}
    }
    Ok(())
}

fn restrict(to: &Confinement) -> Result<RulesetStatus, RulesetError> {
    let own_program = std::env::current_exe().ok();
    let system = SYSTEM.iter().map(|path| (*path).into()).chain(own_program);
    let reads = to.reads.iter().map(Into::into).chain(system);
    let reads: Vec<std::path::PathBuf> = reads.collect();
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .create()?
        // Paths that are not there are left out.
        .add_rules(path_beneath_rules(&reads, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(&DEVICES, AccessFs::from_file(NEWEST)))?
        .add_rules(path_beneath_rules(&to.writes, AccessFs::from_all(NEWEST)))?
        .restrict_self()?;
    Ok(status.ruleset)
}
