//! Checks that files which mrctl acts on belong to the caller.
//!
//! A cluster folder or a configuration file names programs, shells, folders and addresses that
//! mrctl uses. mrctl searches for it in all parent folders, so in a shared folder such as `/tmp`
//! another account could plant one, as with git before `safe.directory`. Therefore it must belong
//! to the caller or to root, and no other account may be able to write to it. `FERMATA_TRUST_OWNER`
//! names one more account that mrctl trusts.

use anyhow::{Result, bail};
use rustix::{fs::Access, io::Errno};
use security::TRUST_VAR;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};
use view::output;

/// The files that mrctl reads in the folder of a local or remote cluster.
const CHECKED_FILES: [&str; 6] =
    ["fermata.toml", "cluster.json", "layout.json", "launch.json", "hosts", "id"];

/// The account that runs mrctl.
struct Caller {
    user: u32,
    group: u32,
    trusted: Option<u32>,
}

impl Caller {
    fn current() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            trusted: security::trusted_owner(),
        }
    }

    /// Returns why a file with this owner, group and mode is not trusted, or None if it is trusted.
    fn refusal(&self, path: &Path, (owner, group, mode): (u32, u32, u32)) -> Option<String> {
        let shown = output::shell(path);
        if owner != self.user && owner != 0 && Some(owner) != self.trusted {
            let (whose, own) = (daemon::account::name_of(owner), daemon::account::name_of(self.user));
            return Some(format!(
                "{} belongs to {whose}, but mrctl runs as {own} and does not use cluster folders or configuration \
                 files of other accounts: run it as {whose}, name your own with --dir or --config, or set \
                 {TRUST_VAR}={whose} if you trust that account",
                path.display()
            ));
        }
        // Many systems give each account its own group: write access for that group is harmless.
        let group_writes = mode & 0o020 != 0 && group != self.group && group != 0;
        let writable = mode & 0o002 != 0 || group_writes;
        writable.then(|| {
            let mode = mode & 0o7777;
            format!("{} can be changed by other accounts (mode {mode:o}): chmod go-w {shown}", path.display())
        })
    }

    fn check(&self, path: &Path) -> Result<()> {
        // A symbolic link of another account can lead anywhere.
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

/// Fails if the caller has no permission to read `file`, which is `path` itself or a file in the
/// folder `path`.
fn check_readable(path: &Path, file: &Path) -> Result<()> {
    // Use `access`, do not open the file before its owner is known: opening a named pipe of another
    // account would block.
    if rustix::fs::access(file, Access::READ_OK) != Err(Errno::ACCESS) {
        return Ok(());
    }
    let own = rustix::process::geteuid().as_raw();
    match fs::metadata(path) {
        Ok(about) => bail!(closed_folder_message(path, about.uid(), own)),
        Err(error) => bail!("{}: {error}", path.display()),
    }
}

/// Returns the error message for a cluster folder that the caller has no permission to read.
fn closed_folder_message(path: &Path, owner: u32, own: u32) -> String {
    let (whose, own) = (daemon::account::name_of(owner), daemon::account::name_of(own));
    // Without TLS, mrctl sends no token to daemons of an account that it does not trust. It trusts
    // root.
    let trust = if owner == 0 { String::new() } else { format!(" and {TRUST_VAR}={whose}") };
    format!(
        "{} belongs to {whose} and is closed to {own}: ask {whose} for a token (`mrctl token`) and use it \
         with --namenode, --jobtracker, --token-file{trust}; in a cluster with certificates, ask for a \
         certificate (`mrctl cluster user`); or start your own cluster with `mrctl up` in another folder",
        path.display()
    )
}

/// Fails if another account owns or can change the configuration file, or if the caller cannot read
/// it. A file that does not exist is accepted.
pub fn check_file(path: &Path) -> Result<()> {
    check_readable(path, path)?;
    Caller::current().check(path)
}

/// Applies the checks of [`check_file`] to a cluster folder and to the files that mrctl reads in
/// it.
pub fn check_folder(path: &Path) -> Result<()> {
    check_readable(path, &path.join("fermata.toml"))?;
    let caller = Caller::current();
    caller.check(path)?;
    CHECKED_FILES.iter().try_for_each(|name| caller.check(&path.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_for_a_closed_folder_names_its_owner_and_the_remedy() {
        let whose = daemon::account::name_of(77);
        let line = closed_folder_message(Path::new("/a/.fermata"), 77, 5);
        assert!(line.starts_with(&format!("/a/.fermata belongs to {whose} and is closed to ")), "{line}");
        assert!(
            line.contains("`mrctl token`") && line.contains(&format!("FERMATA_TRUST_OWNER={whose}")),
            "{line}"
        );
        let line = closed_folder_message(Path::new("/a/.fermata"), 0, 5);
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
