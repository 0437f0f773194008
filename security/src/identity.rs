//! Roles, and who a caller is.

use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr, sync::Arc};

/// The metadata key with the caller's name, where names are believed.
pub const USER_KEY: &str = "fermata-user";

/// What names of the cluster's own certificates end with.
const DOMAIN: &str = "fermata.internal";
const NAME_BYTES_MAX: usize = 64;

/// What a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The daemon.
    NameNode,
    /// The daemon.
    DataNode,
    /// The daemon.
    JobTracker,
    /// The daemon.
    TaskTracker,
    /// A task, on behalf of its job's user.
    Task,
    /// A person, or a program of one.
    User,
    /// A person who runs the cluster.
    Admin,
}

const NAMES: [(Role, &str); 7] = [
    (Role::NameNode, "namenode"),
    (Role::DataNode, "datanode"),
    (Role::JobTracker, "jobtracker"),
    (Role::TaskTracker, "tasktracker"),
    (Role::Task, "task"),
    (Role::User, "user"),
    (Role::Admin, "admin"),
];

impl Role {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NameNode,
        Self::DataNode,
        Self::JobTracker,
        Self::TaskTracker,
        Self::Task,
        Self::User,
        Self::Admin,
    ];
    /// Those that serve, and have a certificate for it.
    pub const DAEMONS: [Self; 4] = [Self::NameNode, Self::DataNode, Self::JobTracker, Self::TaskTracker];

    /// Whether it is one of [`Self::DAEMONS`].
    pub fn is_daemon(self) -> bool {
        Self::DAEMONS.contains(&self)
    }

    /// As files and tokens name it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(role, _)| *role == self).expect("NAMES lists every role").1
    }

    /// As messages for people write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::NameNode => "NameNode",
            Self::DataNode => "DataNode",
            Self::JobTracker => "JobTracker",
            Self::TaskTracker => "TaskTracker",
            Self::Task => "task",
            Self::User => "user",
            Self::Admin => "admin",
        }
    }

    /// The name that a server of this role proves by its certificate. Addresses change; what a server is does not.
    pub fn server_name(self) -> String {
        format!("{}.{DOMAIN}", self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(role, _)| *role).ok_or(())
    }
}

/// Why a name cannot be in a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "name {0:?} cannot be in a credential: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', not beginning or ending with a sign"
)]
pub struct NameError(pub String);

/// Checks a name that goes into a certificate or a token.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = name.len() <= NAME_BYTES_MAX
        && edge(name.chars().next())
        && edge(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && !name.contains("..");
    if fits { Ok(()) } else { Err(NameError(name.into())) }
}

/// Who calls. Put into every request by the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// What it has proved to be; None where nobody has to.
    pub role: Option<Role>,
    /// Its name: a user's, or a daemon's role. A task has the name of its job's user.
    pub name: Arc<str>,
    /// Groups that the user is in.
    pub groups: Arc<[String]>,
    /// Owners and modes do not bind it.
    pub superuser: bool,
}

impl Identity {
    /// Who the gate says that calls. A service that is served without a gate answers nobody.
    pub fn of(extensions: &tonic::Extensions) -> Result<&Self, tonic::Status> {
        let missing = || tonic::Status::permission_denied("the caller did not identify itself");
        extensions.get::<Self>().ok_or_else(missing)
    }

    /// Whether it may do to something of `owner`'s what only its owner may.
    pub fn owns(&self, owner: &str) -> bool {
        self.superuser || *self.name == *owner
    }
}

/// The number of a user's request: the same id of somebody else's is another request.
pub fn request_of(user: &str, id: [u8; 16]) -> u128 {
    let digest = Sha256::new().chain_update(id).chain_update(user).finalize();
    u128::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// The name in a certificate that says who it is of.
pub(crate) fn subject(role: Role, name: &str) -> String {
    format!("{name}.{role}.id.{DOMAIN}")
}

/// Who a certificate's name says that it is of.
pub(crate) fn of_subject(text: &str) -> Option<(Role, String)> {
    let who = text.strip_suffix(DOMAIN)?.strip_suffix(".id.")?;
    let (name, role) = who.rsplit_once('.')?;
    check_name(name).ok()?;
    Some((role.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_written() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(of_subject(&subject(role, "ann.b-c_d")), Some((role, "ann.b-c_d".into())));
        }
        for bad in
            ["", "ann.user.fermata.internal", "ann.king.id.fermata.internal", ".user.id.fermata.internal"]
        {
            assert_eq!(of_subject(bad), None, "{bad}");
        }
        // A server's name says nothing of who it is as a client.
        assert_eq!(of_subject(&Role::NameNode.server_name()), None);
    }

    #[test]
    fn names_that_could_be_read_otherwise_are_refused() {
        for good in ["a", "ann", "Ann.Lee", "x_1-y"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "a".repeat(65);
        for bad in
            ["", ".", "-a", "a.", "a..b", "a:b", "a/b", "../x", "a b", "a\n", "ä", "a@b", long.as_str()]
        {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
