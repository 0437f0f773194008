//! The table of rules: which roles may call which method. Methods that are not in it are refused.

use crate::identity::Role::{self, Admin, DataNode, JobTracker, Task, TaskTracker, User};
use std::{collections::HashMap, sync::LazyLock};

/// The roles that may call a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Path of the method: `/package.Service/Method`.
    pub method: &'static str,
    /// `None`: any caller, without a credential.
    pub roles: Option<&'static [Role]>,
    /// Whether the method accesses something with an owner, which the service then checks.
    pub owned: bool,
    /// Whether the caller sends a stream of messages.
    pub streams: bool,
}

const FILES: &[Role] = &[User, Admin, Task, JobTracker];
const USERS: &[Role] = &[User, Admin];
const ADMIN: &[Role] = &[Admin];
const COMMIT: &[Role] = &[JobTracker, Admin];
const READERS: &[Role] = &[User, Admin, JobTracker];

const fn of(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles: Some(roles), owned: false, streams: false }
}

const fn owned(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles: Some(roles), owned: true, streams: false }
}

const fn open(method: &'static str) -> Rule {
    Rule { method, roles: None, owned: false, streams: false }
}

/// All rules.
pub const RULES: &[Rule] = &[
    // Health is not a secret, and supervisors and load balancers have no credentials.
    open("/grpc.health.v1.Health/Check"),
    open("/grpc.health.v1.Health/Watch"),
    owned("/fermata.dfs.v1.NameNode/Create", FILES),
    owned("/fermata.dfs.v1.NameNode/Append", FILES),
    owned("/fermata.dfs.v1.NameNode/AddBlock", FILES),
    owned("/fermata.dfs.v1.NameNode/AbandonBlock", FILES),
    owned("/fermata.dfs.v1.NameNode/Close", FILES),
    // The name of a lease holder cannot be guessed, and a renewal only extends the lease.
    of("/fermata.dfs.v1.NameNode/RenewLease", FILES),
    owned("/fermata.dfs.v1.NameNode/Locate", FILES),
    // The only effect is that a DataNode checks its replica.
    of("/fermata.dfs.v1.NameNode/ReportBadReplica", FILES),
    owned("/fermata.dfs.v1.NameNode/Mkdir", FILES),
    owned("/fermata.dfs.v1.NameNode/Stat", FILES),
    owned("/fermata.dfs.v1.NameNode/List", FILES),
    owned("/fermata.dfs.v1.NameNode/Rename", FILES),
    owned("/fermata.dfs.v1.NameNode/Delete", FILES),
    owned("/fermata.dfs.v1.NameNode/SetAttributes", FILES),
    owned("/fermata.dfs.v1.NameNode/Usage", FILES),
    owned("/fermata.dfs.v1.NameNode/Concat", FILES),
    of("/fermata.dfs.v1.NameNode/SetQuota", ADMIN),
    of("/fermata.dfs.v1.NameNode/Fence", COMMIT),
    of("/fermata.dfs.v1.NameNode/Commit", COMMIT),
    of("/fermata.dfs.v1.NameNode/ReportActiveJobs", COMMIT),
    of("/fermata.dfs.v1.NameNode/Fsck", ADMIN),
    of("/fermata.dfs.v1.NameNode/Report", READERS),
    of("/fermata.dfs.v1.NameNode/SetSafemode", ADMIN),
    of("/fermata.dfs.v1.NameNode/Drain", ADMIN),
    of("/fermata.dfs.v1.BlockReports/Register", &[DataNode]),
    of("/fermata.dfs.v1.BlockReports/FullReport", &[DataNode]),
    of("/fermata.dfs.v1.BlockReports/Heartbeat", &[DataNode]),
    of("/fermata.dfs.v1.BlockReports/MayFinalise", &[DataNode]),
    of("/fermata.mr.v1.JobTracker/Submit", USERS),
    owned("/fermata.mr.v1.JobTracker/Kill", USERS),
    owned("/fermata.mr.v1.JobTracker/Preempt", USERS),
    owned("/fermata.mr.v1.JobTracker/Resume", USERS),
    of("/fermata.mr.v1.JobTracker/Drain", ADMIN),
    of("/fermata.mr.v1.JobTracker/ForgetNode", ADMIN),
    of("/fermata.mr.v1.JobTracker/Jobs", USERS),
    of("/fermata.mr.v1.JobTracker/Job", USERS),
    of("/fermata.mr.v1.JobTracker/Watch", USERS),
    owned("/fermata.mr.v1.JobTracker/Tasks", USERS),
    of("/fermata.mr.v1.JobTracker/Trackers", USERS),
    owned("/fermata.mr.v1.JobTracker/History", USERS),
    owned("/fermata.mr.v1.JobTracker/Why", USERS),
    of("/fermata.mr.v1.JobTracker/Schedulers", USERS),
    of("/fermata.mr.v1.JobTracker/Shadow", USERS),
    Rule { streams: true, ..of("/fermata.mr.v1.TrackerLink/Attach", &[TaskTracker]) },
    owned("/fermata.mr.v1.TrackerLogs/Log", USERS),
];

/// Returns the rule of a method, if there is one.
pub fn rule_of(method: &str) -> Option<&'static Rule> {
    static BY_METHOD: LazyLock<HashMap<&str, &Rule>> =
        LazyLock::new(|| RULES.iter().map(|rule| (rule.method, rule)).collect());
    BY_METHOD.get(method).copied()
}

impl Rule {
    /// Whether this role may call the method.
    pub fn allows(&self, role: Role) -> bool {
        self.roles.is_none_or(|roles| roles.contains(&role))
    }

    /// Whether daemons call the method, but neither users nor tasks.
    pub(crate) fn is_for_daemons(&self) -> bool {
        let roles = self.roles.unwrap_or_default();
        roles.iter().any(|role| role.is_daemon()) && !roles.iter().any(|role| matches!(role, User | Task))
    }
}
