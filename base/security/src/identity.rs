//! Roles and identities of callers.

use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr, sync::Arc};

/// Metadata key for the name that a caller claims: its own name in an open cluster, or the user
/// that it acts for.
pub const USER_KEY: &str = "fermata-user";

/// Suffix of all names in the certificates of a cluster.
const DOMAIN: &str = "fermata.internal";
const NAME_BYTES_MAX: usize = 64;

/// Role of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The NameNode daemon.
    NameNode,
    /// A DataNode daemon.
    DataNode,
    /// The JobTracker daemon.
    JobTracker,
    /// A TaskTracker daemon.
    TaskTracker,
    /// A task, on behalf of the user of its job.
    Task,
    /// A user, or a program of a user.
    User,
    /// An administrator of the cluster.
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
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::NameNode,
        Self::DataNode,
        Self::JobTracker,
        Self::TaskTracker,
        Self::Task,
        Self::User,
        Self::Admin,
    ];
    /// Roles of daemons, which have server certificates.
    pub const DAEMONS: [Self; 4] = [Self::NameNode, Self::DataNode, Self::JobTracker, Self::TaskTracker];

    /// Returns whether the role is one of [`Self::DAEMONS`].
    pub fn is_daemon(self) -> bool {
        Self::DAEMONS.contains(&self)
    }

    /// Returns the name of the role in files and tokens.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(role, _)| *role == self).expect("NAMES lists every role").1
    }

    /// Returns the name of the role in messages.
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

    /// Returns the host name in server certificates of this role. It contains the role and not an
    /// address, because addresses change.
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

/// Why a name is not valid in a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "name {0:?} cannot be in a credential: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', beginning and ending with a letter or digit"
)]
pub struct NameError(pub String);

/// Checks a name for a certificate or a token.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = name.len() <= NAME_BYTES_MAX
        && edge(name.chars().next())
        && edge(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && !name.contains("..");
    if fits { Ok(()) } else { Err(NameError(name.into())) }
}

/// The identity of a caller, which the gate adds to every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The proven role; `None` in an open cluster.
    pub role: Option<Role>,
    /// Name of the user, or the role of a daemon. A task has the name of the user of its job.
    pub name: Arc<str>,
    /// Groups of the user.
    pub groups: Arc<[String]>,
    /// Whether the caller may do everything: owners and permissions are not checked.
    pub superuser: bool,
}

impl Identity {
    /// Returns the identity that the gate has added to a request. Fails if there is no gate before
    /// the service.
    pub fn of(extensions: &tonic::Extensions) -> Result<&Self, tonic::Status> {
        let missing =
            || tonic::Status::permission_denied("internal error: the server has not identified the caller");
        extensions.get::<Self>().ok_or_else(missing)
    }

    /// Returns whether the caller has the rights of `owner`.
    pub fn owns(&self, owner: &str) -> bool {
        self.superuser || *self.name == *owner
    }
}

/// Returns the ID of a request, from its user and the ID that the client has chosen. The same ID of
/// another user is a different request.
pub fn request_id_of(user: &str, id: [u8; 16]) -> u128 {
    let digest = Sha256::new().chain_update(id).chain_update(user).finalize();
    u128::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// Returns the subject name of a certificate for this role and name.
#[cfg(feature = "server")]
pub(crate) fn subject(role: Role, name: &str) -> String {
    format!("{name}.{role}.id.{DOMAIN}")
}

/// Parses a subject name. Returns its role and name.
pub(crate) fn parse_subject(text: &str) -> Option<(Role, String)> {
    let who = text.strip_suffix(DOMAIN)?.strip_suffix(".id.")?;
    let (name, role) = who.rsplit_once('.')?;
    check_name(name).ok()?;
    Some((role.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_names_and_subjects_round_trip() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(parse_subject(&subject(role, "ann.b-c_d")), Some((role, "ann.b-c_d".into())));
        }
        for bad in
            ["", "ann.user.fermata.internal", "ann.king.id.fermata.internal", ".user.id.fermata.internal"]
        {
            assert_eq!(parse_subject(bad), None, "{bad}");
        }
        // The server name of a certificate is not a client identity.
        assert_eq!(parse_subject(&Role::NameNode.server_name()), None);
    }

    #[test]
    fn names_with_special_characters_are_refused() {
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
