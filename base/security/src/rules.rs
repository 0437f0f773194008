//! The table of rules: which roles may call which method. Methods that are not in it are refused.

use crate::identity::Role::{self, Admin, DataNode, JobTracker, NameNode, Task, TaskTracker, User};
use std::{collections::HashMap, sync::LazyLock};

/// The roles that may call a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Path of the method: `/package.Service/Method`.
    pub method: &'static str,
    /// Roles that may call the method; `None` if no credential is needed.
    pub roles: Option<&'static [Role]>,
    /// Whether the method accesses a file or a job, whose owner the service checks.
    pub owned: bool,
    /// Whether the caller sends a stream of messages.
    pub streams: bool,
}

/// Roles that may access files.
const FILES: &[Role] = &[User, Admin, Task, JobTracker];
const USERS: &[Role] = &[User, Admin];
const ADMIN: &[Role] = &[Admin];
/// Roles that may commit the output of jobs.
const COMMIT: &[Role] = &[JobTracker, Admin];
/// Roles that may read the state of the file system.
const READERS: &[Role] = &[User, Admin, JobTracker];

/// Roles that call a master.
const CALLERS: &[Role] = &[User, Admin, Task, JobTracker, DataNode, TaskTracker];

/// Roles that may ask a master about its group: a supervisor of a master has only its credentials.
const OBSERVERS: &[Role] = &[User, Admin, NameNode, JobTracker];

/// Makes a rule for a method that needs a role.
const fn with_roles(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles: Some(roles), owned: false, streams: false }
}

/// Makes a rule for a method that needs a role, and whose service checks the owner.
const fn with_owner(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles: Some(roles), owned: true, streams: false }
}

/// Makes a rule for a method that needs no credential.
const fn without_credential(method: &'static str) -> Rule {
    Rule { method, roles: None, owned: false, streams: false }
}

/// All rules.
pub const RULES: &[Rule] = &[
    // Health is not a secret, and supervisors and load balancers have no credentials.
    without_credential("/grpc.health.v1.Health/Check"),
    without_credential("/grpc.health.v1.Health/Watch"),
    with_owner("/fermata.dfs.v1.NameNode/Create", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Append", FILES),
    with_owner("/fermata.dfs.v1.NameNode/AddBlock", FILES),
    with_owner("/fermata.dfs.v1.NameNode/AbandonBlock", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Close", FILES),
    // The name of a lease holder cannot be guessed, and a renewal only extends the lease.
    with_roles("/fermata.dfs.v1.NameNode/RenewLease", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Locate", FILES),
    // The only effect is that a DataNode checks its replica.
    with_roles("/fermata.dfs.v1.NameNode/ReportBadReplica", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Mkdir", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Stat", FILES),
    with_owner("/fermata.dfs.v1.NameNode/List", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Rename", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Delete", FILES),
    with_owner("/fermata.dfs.v1.NameNode/SetAttributes", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Usage", FILES),
    with_owner("/fermata.dfs.v1.NameNode/Concat", FILES),
    with_roles("/fermata.dfs.v1.NameNode/SetQuota", ADMIN),
    with_roles("/fermata.dfs.v1.NameNode/Fence", COMMIT),
    with_roles("/fermata.dfs.v1.NameNode/Commit", COMMIT),
    with_roles("/fermata.dfs.v1.NameNode/ReportActiveJobs", COMMIT),
    with_roles("/fermata.dfs.v1.NameNode/Fsck", ADMIN),
    with_roles("/fermata.dfs.v1.NameNode/Report", READERS),
    with_roles("/fermata.dfs.v1.NameNode/SetSafemode", ADMIN),
    with_roles("/fermata.dfs.v1.NameNode/Drain", ADMIN),
    with_roles("/fermata.dfs.v1.NameNode/Backup", ADMIN),
    with_roles("/fermata.dfs.v1.BlockReports/Register", &[DataNode]),
    with_roles("/fermata.dfs.v1.BlockReports/FullReport", &[DataNode]),
    with_roles("/fermata.dfs.v1.BlockReports/Heartbeat", &[DataNode]),
    with_roles("/fermata.dfs.v1.BlockReports/MayFinalise", &[DataNode]),
    with_roles("/fermata.mr.v1.JobTracker/Submit", USERS),
    with_owner("/fermata.mr.v1.JobTracker/Kill", USERS),
    with_owner("/fermata.mr.v1.JobTracker/Preempt", USERS),
    with_owner("/fermata.mr.v1.JobTracker/Resume", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Drain", ADMIN),
    with_roles("/fermata.mr.v1.JobTracker/ForgetNode", ADMIN),
    with_roles("/fermata.mr.v1.JobTracker/Jobs", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Job", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Watch", USERS),
    with_owner("/fermata.mr.v1.JobTracker/Tasks", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Trackers", USERS),
    with_owner("/fermata.mr.v1.JobTracker/History", USERS),
    with_owner("/fermata.mr.v1.JobTracker/Why", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Schedulers", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Shadow", USERS),
    with_roles("/fermata.mr.v1.JobTracker/Backup", ADMIN),
    Rule { streams: true, ..with_roles("/fermata.mr.v1.TrackerLink/Attach", &[TaskTracker]) },
    with_owner("/fermata.mr.v1.TrackerLogs/Log", USERS),
    with_roles("/fermata.master.v1.Master/Leadership", CALLERS),
    with_roles("/fermata.master.v1.Master/Group", OBSERVERS),
    with_roles("/fermata.master.v1.Master/ChangeGroup", ADMIN),
    // The service refuses masters of the other kind.
    Rule { streams: true, ..with_roles("/fermata.raft.v1.Peers/Send", &[NameNode, JobTracker]) },
    with_roles("/fermata.raft.v1.Peers/Join", &[NameNode, JobTracker]),
];

/// Returns the rule of a method, if there is one.
pub fn rule_of(method: &str) -> Option<&'static Rule> {
    static BY_METHOD: LazyLock<HashMap<&str, &Rule>> =
        LazyLock::new(|| RULES.iter().map(|rule| (rule.method, rule)).collect());
    BY_METHOD.get(method).copied()
}

impl Rule {
    /// Returns whether this role may call the method.
    pub fn allows(&self, role: Role) -> bool {
        self.roles.is_none_or(|roles| roles.contains(&role))
    }

    /// Returns whether daemons may call the method, but neither users nor tasks.
    pub(crate) fn is_for_daemons(&self) -> bool {
        let roles = self.roles.unwrap_or_default();
        roles.iter().any(|role| role.is_daemon()) && !roles.iter().any(|role| matches!(role, User | Task))
    }
}
