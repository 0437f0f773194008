//! Clusters on other machines: hosts, remote shells, and the daemons on each machine.
//!
//! A machine only needs a way to run `sh` and `tar` on it. All files are in one remote folder:
//!
//! ```text
//! DIR/CLUSTER       the ID of the cluster that the folder belongs to
//! DIR/SETTINGS      a stamp that identifies the version of the settings
//! DIR/bin/          the programs, and STAMP, which identifies the build
//! DIR/fermata.toml  settings; beside it security/ with the files of the roles of this machine
//! DIR/run/          for each daemon: PID file, ready file, and the stamps at its start
//! DIR/logs/         a file for each daemon
//! DIR/data/         data, unless the settings name other folders; `down` keeps it
//! ```

mod data;
mod hosts;
mod machine;
mod machines;
mod package;
mod shell;

pub use data::DataDirs;
pub use hosts::{Host, Hosts, MachineRole, check_addr, check_host};
pub use machine::{DaemonStatus, Machine, Member};
pub use machines::{Fleet, Reach, write_cluster_id};
pub use package::{Package, Programs, revoked_list};
pub use shell::Shell;

use anyhow::Result;

/// Runs `action` on all machines in parallel. Calls `report` for each result, and returns all
/// results, in the order of the machines.
pub fn on_all<'a, T: Send>(
    machines: impl IntoIterator<Item = &'a Machine>,
    action: impl Fn(&Machine) -> Result<T> + Sync,
    mut report: impl FnMut(&Machine, &Result<T>),
) -> Vec<(&'a Machine, Result<T>)> {
    let machines: Vec<&Machine> = machines.into_iter().collect();
    std::thread::scope(|scope| {
        let action = &action;
        let running: Vec<_> =
            machines.iter().map(|machine| (*machine, scope.spawn(move || action(machine)))).collect();
        let ended = running.into_iter().map(|(machine, one)| {
            let result = one.join().unwrap_or_else(|_| {
                Err(anyhow::anyhow!("internal error: the thread of this machine panicked"))
            });
            report(machine, &result);
            (machine, result)
        });
        ended.collect()
    })
}
