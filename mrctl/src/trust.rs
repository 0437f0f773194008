//! What mrctl reads and acts on must belong to its caller.
//!
//! A cluster folder or configuration says which programs, shells, folders and addresses mrctl uses. Found by a search
//! upwards from a shared folder such as `/tmp`, it could be one that another account has put there for its caller to run
//! into, as with git before `safe.directory`. So it must belong to the caller, or to root, and nobody else may be able to
//! change it. `FERMATA_TRUST_OWNER` names one more account whose files are believed.

use crate::output;
use anyhow::{Result, bail};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// Names one more account, by name or number, whose folders and files are believed.
const TRUST_VAR: &str = "FERMATA_TRUST_OWNER";

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
        let named = std::env::var(TRUST_VAR).ok().filter(|name| !name.is_empty());
        let number = |name: String| name.parse().ok().or_else(|| Some(daemon::account::find(&name)?.0));
        Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            trusted: named.and_then(number),
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

/// Refuses a configuration file that another account owns or can change. One that is not there is nobody's.
pub(crate) fn file(path: &Path) -> Result<()> {
    Caller::this().check(path)
}

/// The same for a cluster's folder, and for what mrctl reads in it.
pub(crate) fn folder(path: &Path) -> Result<()> {
    let caller = Caller::this();
    caller.check(path)?;
    FILES.iter().try_for_each(|name| caller.check(&path.join(name)))
}

/// Refuses to show a secret to a program of another account: ports of a daemon that has died are free for anybody to
/// listen on. Only loopback addresses can be looked up.
pub(crate) fn listener(addr: &str) -> Result<()> {
    let Some(port) = addr.strip_prefix("127.0.0.1:").and_then(|port| port.parse::<u16>().ok()) else {
        return Ok(());
    };
    let caller = Caller::this();
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    match listening(&table, port)
        .find(|owner| *owner != caller.user && *owner != 0 && Some(*owner) != caller.trusted)
    {
        Some(owner) => bail!(
            "the program that listens on {addr} belongs to {}: nothing is shown to it; `mrctl up` takes other ports",
            daemon::account::name_of(owner)
        ),
        None => Ok(()),
    }
}

/// Owners of the sockets that listen on this port of 127.0.0.1 or of all addresses, from `/proc/net/tcp`.
fn listening(table: &str, port: u16) -> impl Iterator<Item = u32> {
    let places = [format!("0100007F:{port:04X}"), format!("00000000:{port:04X}")];
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let found = places.iter().any(|place| fields.get(1) == Some(&place.as_str()));
        if found && fields.get(3) == Some(&"0A") { fields.get(7)?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(user: u32, about: (u32, u32, u32)) -> Option<String> {
        let caller = Caller { user, group: user, trusted: Some(77) };
        caller.refusal(Path::new("/a/.fermata"), about)
    }

    #[test]
    fn only_the_caller_and_root_are_believed() {
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

    #[test]
    fn listeners_are_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:2710 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 1 1\n\
            1: 0100007F:2711 00000000:0000 01 00000000:00000000 00:00000000 00000000     5        0 2 1\n";
        assert_eq!(listening(table, 10_000).collect::<Vec<_>>(), [65534]);
        assert_eq!(listening(table, 10_001).count(), 0, "a connection is no listener");
    }
}
