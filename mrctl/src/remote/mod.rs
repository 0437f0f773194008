//! Clusters on other machines: which there are, a shell on each, and the daemons' life there.
//!
//! All that a machine needs is a way to run `sh` and `tar` on it. Everything of ours lies in one folder there:
//!
//! ```text
//! DIR/CLUSTER       of which cluster all this is; nobody else touches it
//! DIR/SETTINGS      tells one state of the settings from another
//! DIR/bin/          the programs, and STAMP, which says which build they are
//! DIR/fermata.toml  settings, and beside it security/ with what this machine's roles need
//! DIR/run/          for each daemon a pid file, a ready file, and what it was started from
//! DIR/logs/         a file for each daemon
//! DIR/data/         what must survive, unless the settings name other folders for it: `down` leaves it
//! ```

mod data;
mod hosts;
mod machine;
mod machines;
mod package;
mod shell;

pub(crate) use data::DataDirs;
pub(crate) use hosts::{Host, Hosts, Part, check_addr, check_host};
pub(crate) use machine::{DaemonStatus, Machine};
pub(crate) use machines::{Fleet, Reach, write_mark};
pub(crate) use package::{Package, Programs, revoked_list};
pub(crate) use shell::Shell;

use anyhow::Result;

/// Does something on every machine at once; what came of it, in the same order, in which `tell` hears of it too.
pub(crate) fn on_all<'a, T: Send>(
    machines: impl IntoIterator<Item = &'a Machine>,
    action: impl Fn(&Machine) -> Result<T> + Sync,
    mut tell: impl FnMut(&Machine, &Result<T>),
) -> Vec<(&'a Machine, Result<T>)> {
    let machines: Vec<&Machine> = machines.into_iter().collect();
    std::thread::scope(|scope| {
        let action = &action;
        let running: Vec<_> =
            machines.iter().map(|machine| (*machine, scope.spawn(move || action(machine)))).collect();
        let ended = running.into_iter().map(|(machine, one)| {
            let result = one.join().unwrap_or_else(|_| {
                Err(anyhow::anyhow!("internal error: the thread of this machine broke down"))
            });
            tell(machine, &result);
            (machine, result)
        });
        ended.collect()
    })
}
