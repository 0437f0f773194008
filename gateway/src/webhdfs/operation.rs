//! The operations of `WebHDFS` by method and name.

use super::error::Exception;

/// An operation that the gateway has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Open,
    GetFileStatus,
    ListStatus,
    ListStatusBatch,
    GetContentSummary,
    GetQuotaUsage,
    GetFileChecksum,
    GetHomeDirectory,
    GetTrashRoot,
    GetTrashRoots,
    CheckAccess,
    GetServerDefaults,
    GetFileBlockLocations,
    GetStatus,
    GetDelegationToken,
    RenewDelegationToken,
    Create,
    Append,
    Mkdirs,
    Rename,
    Delete,
    SetPermission,
    SetOwner,
    SetReplication,
    SetTimes,
    SetQuota,
    Concat,
}

const OPERATIONS: [(&str, &str, Op); 29] = [
    ("GET", "OPEN", Op::Open),
    ("GET", "GETFILESTATUS", Op::GetFileStatus),
    // There are no symbolic links.
    ("GET", "GETFILELINKSTATUS", Op::GetFileStatus),
    ("GET", "LISTSTATUS", Op::ListStatus),
    ("GET", "LISTSTATUS_BATCH", Op::ListStatusBatch),
    ("GET", "GETCONTENTSUMMARY", Op::GetContentSummary),
    ("GET", "GETQUOTAUSAGE", Op::GetQuotaUsage),
    ("GET", "GETFILECHECKSUM", Op::GetFileChecksum),
    ("GET", "GETHOMEDIRECTORY", Op::GetHomeDirectory),
    ("GET", "GETTRASHROOT", Op::GetTrashRoot),
    ("GET", "GETTRASHROOTS", Op::GetTrashRoots),
    ("GET", "CHECKACCESS", Op::CheckAccess),
    ("GET", "GETSERVERDEFAULTS", Op::GetServerDefaults),
    ("GET", "GETFILEBLOCKLOCATIONS", Op::GetFileBlockLocations),
    // The name in earlier versions of Hadoop.
    ("GET", "GET_BLOCK_LOCATIONS", Op::GetFileBlockLocations),
    ("GET", "GETSTATUS", Op::GetStatus),
    ("GET", "GETDELEGATIONTOKEN", Op::GetDelegationToken),
    ("PUT", "RENEWDELEGATIONTOKEN", Op::RenewDelegationToken),
    ("PUT", "CREATE", Op::Create),
    ("PUT", "MKDIRS", Op::Mkdirs),
    ("PUT", "RENAME", Op::Rename),
    ("PUT", "SETPERMISSION", Op::SetPermission),
    ("PUT", "SETOWNER", Op::SetOwner),
    ("PUT", "SETREPLICATION", Op::SetReplication),
    ("PUT", "SETTIMES", Op::SetTimes),
    ("PUT", "SETQUOTA", Op::SetQuota),
    ("POST", "APPEND", Op::Append),
    ("POST", "CONCAT", Op::Concat),
    ("DELETE", "DELETE", Op::Delete),
];

/// Operations of Hadoop on what this file system does not have.
const UNSUPPORTED: [(&str, &[&str]); 8] = [
    (
        "access control lists",
        &["GETACLSTATUS", "SETACL", "MODIFYACLENTRIES", "REMOVEACLENTRIES", "REMOVEDEFAULTACL", "REMOVEACL"],
    ),
    ("extended attributes", &["GETXATTRS", "LISTXATTRS", "SETXATTR", "REMOVEXATTR"]),
    (
        "snapshots of folders",
        &[
            "ALLOWSNAPSHOT",
            "DISALLOWSNAPSHOT",
            "CREATESNAPSHOT",
            "RENAMESNAPSHOT",
            "DELETESNAPSHOT",
            "GETSNAPSHOTDIFF",
            "GETSNAPSHOTDIFFLISTING",
            "GETSNAPSHOTTABLEDIRECTORYLIST",
            "GETSNAPSHOTLIST",
        ],
    ),
    ("symbolic links", &["CREATESYMLINK", "GETLINKTARGET"]),
    (
        "storage policies",
        &[
            "GETALLSTORAGEPOLICY",
            "GETSTORAGEPOLICY",
            "SETSTORAGEPOLICY",
            "UNSETSTORAGEPOLICY",
            "SATISFYSTORAGEPOLICY",
            "SETQUOTABYSTORAGETYPE",
        ],
    ),
    (
        "erasure coding",
        &[
            "GETECPOLICY",
            "GETECPOLICIES",
            "GETECCODECS",
            "SETECPOLICY",
            "UNSETECPOLICY",
            "ENABLEECPOLICY",
            "DISABLEECPOLICY",
        ],
    ),
    ("truncation: blocks never change", &["TRUNCATE"]),
    (
        "cancellation of a single token: `mrctl cluster revoke` revokes credentials",
        &["CANCELDELEGATIONTOKEN"],
    ),
];

/// Returns the operation with this method and name.
pub(super) fn find(method: &str, name: &str) -> Result<Op, Exception> {
    let upper = name.to_ascii_uppercase();
    let known = OPERATIONS.iter().filter(|(_, known, _)| *known == upper);
    if let Some((.., op)) = known.clone().find(|(wanted, ..)| *wanted == method) {
        return Ok(*op);
    }
    if let Some((what, _)) = UNSUPPORTED.iter().find(|(_, names)| names.contains(&upper.as_str())) {
        return Err(Exception::unsupported(format!("{upper} is not supported: there is no {what}")));
    }
    let name: String = name.chars().take(100).collect();
    let why = match known.clone().next() {
        Some((wanted, ..)) => format!("{upper} needs the method {wanted}, not {method}"),
        None => format!("there is no operation {name:?} of the method {method}"),
    };
    Err(Exception::illegal(format!("Invalid value for webhdfs parameter \"op\": {why}")))
}

impl Op {
    /// Returns whether a redirect comes first.
    pub(super) fn has_data(self) -> bool {
        matches!(self, Self::Open | Self::GetFileChecksum | Self::Create | Self::Append)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhdfs::error::Class;

    #[test]
    fn operations_are_found_by_method_and_name_in_any_case() {
        assert_eq!(find("GET", "open"), Ok(Op::Open));
        assert_eq!(find("PUT", "Create"), Ok(Op::Create));
        assert_eq!(find("GET", "get_block_locations"), Ok(Op::GetFileBlockLocations));
        let refused = |method, name| find(method, name).unwrap_err();
        let wrong = refused("GET", "MKDIRS");
        assert_eq!(wrong.class, Class::IllegalArgument);
        assert!(wrong.message.ends_with("MKDIRS needs the method PUT, not GET"), "{}", wrong.message);
        assert_eq!(refused("GET", "NOSUCH").class, Class::IllegalArgument);
        assert_eq!(refused("HEAD", "OPEN").class, Class::IllegalArgument);
        for name in ["GETACLSTATUS", "TRUNCATE", "CREATESNAPSHOT", "setxattr"] {
            assert_eq!(refused("PUT", name).class, Class::UnsupportedOperation, "{name}");
        }
    }

    #[test]
    fn no_operation_is_both_supported_and_unsupported() {
        for (_, names) in UNSUPPORTED {
            for name in names {
                assert!(OPERATIONS.iter().all(|(_, known, _)| known != name), "{name}");
            }
        }
    }
}
