//! What mrctl reads and acts on must belong to its caller.
//!
//! A cluster folder or configuration says which programs, shells, folders and addresses mrctl uses. Found by a search
//! upwards from a shared folder such as `/tmp`, it could be one that another account has put there for its caller to
//! run into, as with git before `safe.directory`. So it must belong to the caller, or to root, and nobody else may be
//! able to change it. `FERMATA_TRUST_OWNER` names one more account whose files are believed.

use crate::output;
use anyhow::{Result, bail};
use rustix::{fs::Access, io::Errno};
use security::TRUST_VAR;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// What mrctl reads in a cluster's folder, local or of several machines.
const FILES: [&str; 6] = ["fermata.toml", "cluster.json", "layout.json", "launch.json", "hosts", "id"];

/// Who reads.
struct Caller {
    user: u32,
    group: u32,
    trusted: Option<u32>,
}

impl Caller {
    fn this() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            trusted: security::trusted_owner(),
        }
    }

    /// Why a file of this owner, group and mode is not believed.
    fn refusal(&self, path: &Path, (owner, group, mode): (u32, u32, u32)) -> Option<String> {
        let shown = output::shell(path);
        if owner != self.user && owner != 0 && Some(owner) != self.trusted {
            let (whose, own) = (daemon::account::name_of(owner), daemon::account::name_of(self.user));
            return Some(format!(
                "{} belongs to {whose}, and mrctl runs as {own}: it uses no cluster folder or configuration of another \
                 account; run it as {whose}, name your own with --dir or --config, or set {TRUST_VAR}={whose} if you \
                 trust that account with yours",
                path.display()
            ));
        }
        // One's own group is no other account where each account has a group of its own.
        let group_writes = mode & 0o020 != 0 && group != self.group && group != 0;
        let writable = mode & 0o002 != 0 || group_writes;
        writable.then(|| {
            let mode = mode & 0o7777;
            format!("{} can be changed by other accounts (mode {mode:o}): chmod go-w {shown}", path.display())
        })
    }

    fn check(&self, path: &Path) -> Result<()> {
        // A link of somebody else's leads wherever that account likes.
        let link = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_symlink);
        let link = link.map(|about| (about.uid(), about.gid(), 0));
        let target = fs::metadata(path).ok();
        let target = target.map(|about| (about.uid(), about.gid(), about.permissions().mode()));
        match link.into_iter().chain(target).find_map(|about| self.refusal(path, about)) {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }
}

/// Refuses what its owner has closed to the caller. `file` is the one that is read, of a cluster or by itself.
fn check_open(path: &Path, file: &Path) -> Result<()> {
    // Nothing is opened before its owner is known: opening a named pipe of another account would block.
    if rustix::fs::access(file, Access::READ_OK) != Err(Errno::ACCESS) {
        return Ok(());
    }
    let own = rustix::process::geteuid().as_raw();
    match fs::metadata(path) {
        Ok(about) => bail!(closed(path, about.uid(), own)),
        Err(error) => bail!("{}: {error}", path.display()),
    }
}

/// What is said to whom a cluster is closed.
fn closed(path: &Path, owner: u32, own: u32) -> String {
    let (whose, own) = (daemon::account::name_of(owner), daemon::account::name_of(own));
    // Without TLS nothing is sent to daemons of an account that is not trusted. Root is.
    let trust = if owner == 0 { String::new() } else { format!(" and {TRUST_VAR}={whose}") };
    format!(
        "{} belongs to {whose} and is closed to {own}: ask {whose} for a token (`mrctl token`; in a \
         cluster with certificates for one, `mrctl cluster user`) and use it with --namenode, --jobtracker, \
         --token-file{trust}, or start a cluster of your own with `mrctl up` in another folder",
        path.display()
    )
}

/// Refuses a configuration file that another account owns or can change, or that the caller cannot read. One that is
/// not there is nobody's.
pub(crate) fn file(path: &Path) -> Result<()> {
    check_open(path, path)?;
    Caller::this().check(path)
}

/// The same for a cluster's folder, and for what mrctl reads in it.
pub(crate) fn folder(path: &Path) -> Result<()> {
    check_open(path, &path.join("fermata.toml"))?;
    let caller = Caller::this();
    caller.check(path)?;
    FILES.iter().try_for_each(|name| caller.check(&path.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_shut_out_is_told_whose_it_is_and_what_to_do() {
        let whose = daemon::account::name_of(77);
        let line = closed(Path::new("/a/.fermata"), 77, 5);
        assert!(line.starts_with(&format!("/a/.fermata belongs to {whose} and is closed to ")), "{line}");
        assert!(
            line.contains("`mrctl token`") && line.contains(&format!("FERMATA_TRUST_OWNER={whose}")),
            "{line}"
        );
        let line = closed(Path::new("/a/.fermata"), 0, 5);
        assert!(line.contains("belongs to root") && !line.contains("FERMATA_TRUST_OWNER"), "{line}");
    }

    fn refusal(user: u32, about: (u32, u32, u32)) -> Option<String> {
        let caller = Caller { user, group: user, trusted: Some(77) };
        caller.refusal(Path::new("/a/.fermata"), about)
    }

    #[test]
    fn only_the_caller_and_root_are_trusted() {
        for (user, about) in [
            (5, (5, 5, 0o700)),
            (5, (0, 0, 0o755)),
            (0, (0, 0, 0o755)),
            (0, (77, 77, 0o700)),
            (5, (5, 5, 0o664)),
        ] {
            assert_eq!(refusal(user, about), None, "{user} {about:?}");
        }
        for (user, about, why) in [
            (0, (65534, 0, 0o700), "belongs to"),
            (5, (6, 5, 0o700), "belongs to"),
            (5, (5, 5, 0o666), "chmod go-w /a/.fermata"),
            (5, (5, 6, 0o775), "can be changed by other accounts (mode 775)"),
        ] {
            assert!(refusal(user, about).is_some_and(|line| line.contains(why)), "{user} {about:?}");
        }
    }
}
