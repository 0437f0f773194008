//! Accounts of this machine: the account of this process, accounts by name or ID, and the folders
//! that an account can reach.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Returns the user name of this process: `FERMATA_USER` if it is set, else the name of its
/// account.
pub fn user() -> String {
    let set = |key| std::env::var(key).ok().filter(|user| !user.is_empty());
    set("FERMATA_USER").unwrap_or_else(|| name_of(rustix::process::geteuid().as_raw()))
}

/// Returns the name of the account with this user ID, or `uidN` if it has no name that is valid in
/// a credential.
pub fn name_of(uid: u32) -> String {
    let text = uid.to_string();
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    let own = |row: &[&str]| (row[2] == text && plain(row[0])).then(|| row[0].to_owned());
    find_row(own).unwrap_or_else(|| format!("uid{uid}"))
}

/// Returns the user ID and group ID of the account with this name.
pub fn find(name: &str) -> Option<(u32, u32)> {
    find_row(|row| (row[0] == name).then_some((row[2].parse().ok()?, row[3].parse().ok()?)))
}

/// Returns the first result of `look` for a row of `/etc/passwd`.
fn find_row<T>(look: impl Fn(&[&str]) -> Option<T>) -> Option<T> {
    let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let rows = table.lines().map(|row| row.split(':').collect::<Vec<_>>());
    rows.filter(|row| row.len() > 3).find_map(|row| look(&row))
}

/// Returns the first folder on the way to `path`, including `path` itself, that the account (user
/// ID, group ID) cannot enter; `None` if it can enter all of them. Examines only mode bits; an
/// access control list may allow more.
pub fn blocked_at(path: &Path, (user, group): (u32, u32)) -> io::Result<Option<PathBuf>> {
    let path = fs::canonicalize(path)?;
    let mut steps: Vec<&Path> = path.ancestors().collect();
    steps.reverse();
    for step in steps {
        let about = fs::metadata(step)?;
        let bit = match (about.uid() == user, about.gid() == group) {
            (true, _) => 0o100,
            (_, true) => 0o010,
            _ => 0o001,
        };
        if about.mode() & bit == 0 {
            return Ok(Some(step.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn accounts_are_found_by_name_and_user_id() {
        assert_eq!(name_of(0), "root");
        assert_eq!(find("root"), Some((0, 0)));
        assert_eq!((name_of(4_000_000_000), find("no-such-account")), ("uid4000000000".into(), None));
    }

    #[test]
    fn first_inaccessible_folder_is_returned() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let other = (4_000_000_000, 4_000_000_000);
        let found = blocked_at(&inner, other).unwrap().unwrap();
        assert!(fs::canonicalize(dir.path()).unwrap().starts_with(&found), "{found:?}");
        let about = fs::metadata(dir.path()).unwrap();
        let own = (about.uid(), about.gid());
        assert!(blocked_at(&inner, own).unwrap().is_none_or(|found| !found.ends_with("a/b")));
        assert!(blocked_at(&dir.path().join("missing"), own).is_err());
    }
}
