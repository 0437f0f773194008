//! Reads the CPU time of a cluster by kind of process, including ended children.
//!
//! The CPU time of an ended task process is in the counter for reaped children of its tracker; that
//! of a running task process is read directly. A process that ends during a reading could be
//! counted twice or not at all, so the reading is repeated if processes started or ended in the
//! meantime.

use anyhow::{Context, Result, bail};
use clusters::local::{CpuTimes, Kind, Launch, cpu_times};
use std::{collections::BTreeMap, fs, time::Duration};

/// The maximum number of readings until no process starts or ends during a reading.
const READINGS_MAX: usize = 200;
const READING_INTERVAL: Duration = Duration::from_millis(10);

/// CPU seconds by kind of process: the name of a daemon, `tasks`, or `client` (ended children of
/// this process).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Usage(pub(super) BTreeMap<&'static str, f64>);

impl Usage {
    /// Reads the CPU time that the cluster and the ended children of this process have used so far.
    pub(super) async fn of(launch: &Launch) -> Result<Self> {
        for _ in 0..READINGS_MAX {
            let before = processes()?;
            let usage = Self::read_once(launch, &before)?;
            let after = processes()?;
            if before.keys().eq(after.keys()) {
                return Ok(usage);
            }
            tokio::time::sleep(READING_INTERVAL).await;
        }
        bail!(
            "processes start and end too fast on this machine to read their CPU times: try again when it is idle"
        )
    }

    fn read_once(launch: &Launch, processes: &BTreeMap<u32, CpuTimes>) -> Result<Self> {
        let mut usage = BTreeMap::new();
        for daemon in &launch.state.daemons {
            let pid = daemon.identity.pid;
            let of = processes.get(&pid).with_context(|| format!("{} has died", daemon.name))?;
            *usage.entry(daemon.kind.program()).or_insert(0.0) += of.own;
            if daemon.kind == Kind::Tasktracker {
                let living: f64 = descendants(processes, pid).iter().map(|of| of.own + of.reaped).sum();
                *usage.entry("tasks").or_insert(0.0) += of.reaped + living;
            }
        }
        let own = processes.get(&std::process::id()).context("cannot read the CPU times of this process")?;
        usage.insert("client", own.reaped);
        Ok(Self(usage))
    }

    /// Returns the time used since an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Self {
        let used = |kind: &str, now: f64| now - before.0.get(kind).copied().unwrap_or(0.0);
        Self(self.0.iter().map(|(kind, now)| (*kind, used(kind, *now))).collect())
    }

    pub(super) fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

/// Returns the CPU times of all processes of this machine that can be read, by PID.
fn processes() -> Result<BTreeMap<u32, CpuTimes>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids.filter_map(|pid: u32| Some((pid, cpu_times(pid)?))).collect())
}

/// Returns the CPU times of all descendants of a process.
fn descendants(processes: &BTreeMap<u32, CpuTimes>, pid: u32) -> Vec<CpuTimes> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (pid, of) in processes.iter().filter(|(_, of)| of.parent == parent) {
            parents.push(*pid);
            found.push(*of);
        }
    }
    found
}

/// Returns the running children of `pid`.
pub(super) fn children(pid: u32) -> Result<Vec<u32>> {
    Ok(processes()?.into_iter().filter(|(_, of)| of.parent == pid).map(|(pid, _)| pid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn descendants_are_found() {
        let of = |parent| CpuTimes { parent, own: 1.0, reaped: 0.0 };
        let processes = BTreeMap::from([(2, of(1)), (3, of(2)), (4, of(3)), (5, of(1))]);
        assert_eq!(descendants(&processes, 2).len(), 2);
        assert_eq!(descendants(&processes, 1).len(), 4);
    }

    #[test]
    fn cpu_time_of_a_child_counts_after_it_was_waited_for() {
        let own = || processes().unwrap()[&std::process::id()].reaped;
        let before = own();
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        assert!(children(std::process::id()).unwrap().contains(&child.id()));
        child.wait().unwrap();
        assert!(own() > before);
    }

    #[test]
    fn difference_is_computed_for_each_kind_of_process() {
        let before = Usage(BTreeMap::from([("tasks", 1.0), ("client", 0.5)]));
        let after = Usage(BTreeMap::from([("tasks", 3.0), ("client", 0.5), ("namenode", 0.25)]));
        let used = after.since(&before);
        assert_eq!(used.0, BTreeMap::from([("tasks", 2.0), ("client", 0.0), ("namenode", 0.25)]));
        assert!((used.total() - 2.25).abs() < 1e-9);
    }
}
