//! Confinement of a task process with Landlock, before it runs code of its job. It can then access
//! its own folders and the parts of the system that it needs, but no other files and no processes
//! of other users. Its child processes are confined too.
//!
//! Landlock applies to the calling thread and the threads that it starts later, so this must come
//! before any other thread. Rules that the kernel does not support are left out. The tracker
//! decides at its start whether tasks may run on a kernel without Landlock.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use mrlib_api::TaskError;
use proto::mr::Confinement;
use std::path::PathBuf;

/// The newest Landlock version that is used. The kernel may support less.
const NEWEST_ABI: ABI = ABI::V6;

/// Programs, libraries and their configuration, which a task may read. Only these files in `/etc`
/// are readable, because other files there may contain keys.
const SYSTEM_PATHS: [&str; 22] = [
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
/// Devices that a task may read and write.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The warning if the kernel does not support confinement.
pub(crate) const NO_LANDLOCK: &str =
    "the kernel has no Landlock: this task is not confined and can access all files of its account";

/// Returns whether the kernel has Landlock.
pub fn is_supported() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// Confines this process. Returns false if the kernel does not support it.
pub(crate) fn confine(to: &Confinement) -> Result<bool, TaskError> {
    let failed = |error: RulesetError| TaskError::Program(format!("cannot confine this process: {error}"));
    Ok(restrict(to).map_err(failed)? != RulesetStatus::NotEnforced)
}

fn restrict(to: &Confinement) -> Result<RulesetStatus, RulesetError> {
    // Allow the executable through its link in /proc, because the account may have no access to the
    // path of the file.
    let own_program = PathBuf::from("/proc/self/exe");
    let system = SYSTEM_PATHS.iter().map(|path| (*path).into()).chain([own_program]);
    let reads = to.reads.iter().map(Into::into).chain(system);
    let reads: Vec<PathBuf> = reads.collect();
    // The log files are outside the allowed folders, but scripts may open `/dev/stderr` again.
    let log_files = ["/proc/self/fd/1", "/proc/self/fd/2"].map(PathBuf::from);
    let devices = DEVICES.iter().map(PathBuf::from);
    let files = devices.chain(log_files.into_iter().filter(|path| path.is_file()));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST_ABI))?
        // This also forbids signals to processes outside of the confinement.
        .scope(Scope::from_all(NEWEST_ABI))?
        .create()?
        // Missing paths are left out.
        .add_rules(path_beneath_rules(&reads, AccessFs::from_read(NEWEST_ABI)))?
        .add_rules(path_beneath_rules(files, AccessFs::from_file(NEWEST_ABI)))?
        .add_rules(path_beneath_rules(&to.writes, AccessFs::from_all(NEWEST_ABI)))?
        .restrict_self()?;
    Ok(status.ruleset)
}
