//! Reads the description of a cluster, for `mrctl sim --cluster`.
//!
//! ```toml
//! replication = 3           # replicas of each block of the input
//! output_replication = 3    # of the output of jobs; 0: task times include the writing of output
//! rack_uplink_mbps = 1250   # MB per second in each direction of the link of a rack
//! heartbeat_s = 3
//! heartbeat_only = true     # free slots are reported, and get work, only with a heartbeat
//!
//! [[machines]]
//! count = 20
//! map_slots = 8
//! reduce_slots = 4
//! speed = 1.5               # relative to the machine that the profiles were measured on
//! cores = 4                 # cores that tasks share evenly; without it, each task has a core
//! disk_mbps = 320           # MB per second of all disks of a machine together
//! cache_mb = 4096           # MB of memory for cached files, whatever runs
//! nic_mbps = 125            # MB per second in each direction
//! rack = 0
//! ```
//!
//! Only `count` and the slots are required. Machines without `rack` are in other racks, of 40 machines.
//! Instead of `cache_mb`, a machine can have `memory_mb`, the memory for tasks and cached files
//! together. Each running attempt takes `task_memory_mb` from it (1000), and the rest is the cache,
//! which then also holds checkpoints and spilled data.

use crate::{
    setup::{MACHINES_PER_RACK, Machine, Setup},
    toml_file::{self, line_at},
};
use mrcore::{Config, PerPhase, Span};
use serde::Deserialize;
use std::collections::BTreeSet;
use toml::Spanned;

/// The maximum number of machines of a simulated cluster.
pub const MACHINES_MAX: u32 = 100_000;
/// The maximum number of slots of a phase on one machine.
pub const SLOTS_MAX: u32 = 10_000;
const HEARTBEAT_MAX_S: f64 = 3600.0;
/// Bytes of memory of an attempt on a machine with `memory_mb`, unless the file sets them.
const TASK_MEMORY: f64 = 1e9;

/// The contents of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterFile {
    replication: Option<Spanned<u32>>,
    output_replication: Option<Spanned<u32>>,
    rack_uplink_mbps: Option<Spanned<f64>>,
    heartbeat_s: Option<Spanned<f64>>,
    heartbeat_only: Option<bool>,
    machines: Vec<MachineRecord>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineRecord {
    count: Spanned<u32>,
    map_slots: Spanned<u32>,
    reduce_slots: Spanned<u32>,
    speed: Option<Spanned<f64>>,
    cores: Option<Spanned<f64>>,
    disk_mbps: Option<Spanned<f64>>,
    cache_mb: Option<Spanned<f64>>,
    memory_mb: Option<Spanned<f64>>,
    task_memory_mb: Option<Spanned<f64>>,
    nic_mbps: Option<Spanned<f64>>,
    rack: Option<u32>,
}

/// Refuses a value that is not in its range.
fn check<T: Copy + PartialOrd + std::fmt::Display>(
    text: &str,
    key: &str,
    value: Option<&Spanned<T>>,
    (min, max): (T, T),
) -> Result<(), String> {
    match value {
        Some(value) if !(*value.get_ref() >= min && *value.get_ref() <= max) => {
            let line = line_at(text, value.span().start);
            Err(format!("{line}: {key} = {} is not valid: it must be from {min} to {max}", value.get_ref()))
        }
        _ => Ok(()),
    }
}

impl MachineRecord {
    /// Refuses keys that exclude or require each other, and a machine without memory for a task.
    fn check_memory(&self, text: &str) -> Result<(), String> {
        let fail =
            |value: &Spanned<f64>, why: &str| Err(format!("{}: {why}", line_at(text, value.span().start)));
        match (&self.memory_mb, &self.cache_mb, &self.task_memory_mb) {
            (Some(_), Some(cache), _) => fail(
                cache,
                "cache_mb is not valid with memory_mb: the cache is the memory that tasks leave; remove one",
            ),
            (None, _, Some(task)) => fail(task, "task_memory_mb needs memory_mb, the memory of the machine"),
            (Some(memory), None, task) => {
                let task = task.as_ref().map_or(TASK_MEMORY / 1e6, |task| *task.get_ref());
                if *memory.get_ref() >= task {
                    return Ok(());
                }
                let has = format!("memory_mb = {} is not valid", memory.get_ref());
                fail(memory, &format!("{has}: a task takes {task} MB (task_memory_mb), so none fits"))
            }
            _ => Ok(()),
        }
    }
}

impl ClusterFile {
    /// Parses a file. The error is one line that begins with the number of the line in the file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml_file::parse(text).map_err(|(line, what)| format!("{line}: {what}"))?;
        const RATES: (f64, f64) = (1e-3, 1e9);
        check(text, "replication", file.replication.as_ref(), (1, 1000))?;
        check(text, "output_replication", file.output_replication.as_ref(), (0, 1000))?;
        check(text, "rack_uplink_mbps", file.rack_uplink_mbps.as_ref(), RATES)?;
        check(text, "heartbeat_s", file.heartbeat_s.as_ref(), (1e-3, HEARTBEAT_MAX_S))?;
        let mut machines = 0;
        for record in &file.machines {
            check(text, "count", Some(&record.count), (0, MACHINES_MAX))?;
            check(text, "map_slots", Some(&record.map_slots), (0, SLOTS_MAX))?;
            check(text, "reduce_slots", Some(&record.reduce_slots), (0, SLOTS_MAX))?;
            check(text, "speed", record.speed.as_ref(), (1e-3, 1e3))?;
            check(text, "cores", record.cores.as_ref(), (1e-3, 1e6))?;
            check(text, "disk_mbps", record.disk_mbps.as_ref(), RATES)?;
            check(text, "cache_mb", record.cache_mb.as_ref(), (0.0, 1e9))?;
            check(text, "memory_mb", record.memory_mb.as_ref(), (1.0, 1e9))?;
            check(text, "task_memory_mb", record.task_memory_mb.as_ref(), (1.0, 1e9))?;
            record.check_memory(text)?;
            check(text, "nic_mbps", record.nic_mbps.as_ref(), RATES)?;
            machines += u64::from(*record.count.get_ref());
            if machines > u64::from(MACHINES_MAX) {
                let line = line_at(text, record.count.span().start);
                return Err(format!("{line}: more than {MACHINES_MAX} machines"));
            }
        }
        for (key, value) in
            [("replication", &file.replication), ("output_replication", &file.output_replication)]
        {
            if let Some(value) = value.as_ref().filter(|value| u64::from(*value.get_ref()) > machines) {
                let line = line_at(text, value.span().start);
                let machines = crate::count(machines as usize, "machine");
                return Err(format!(
                    "{line}: {key} = {} is not valid: the file has only {machines}, and each replica is on another",
                    value.get_ref()
                ));
            }
        }
        if file.machines().iter().all(|machine| machine.slots.map == 0) {
            return Err("1: no machine has a map slot: set map_slots to at least 1".into());
        }
        Ok(file)
    }

    /// Returns the machines. Racks are numbered from 0; machines without a rack are in racks of their
    /// own.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        let usual = &Setup::even(1, PerPhase { map: 1, reduce: 1 }, "fifo").machines[0];
        let racks: BTreeSet<u32> = self.machines.iter().filter_map(|record| record.rack).collect();
        let mut without_rack = 0;
        let mut machines = Vec::new();
        let rate = |given: &Option<Spanned<f64>>, usual: f64| {
            given.as_ref().map_or(usual, |rate| rate.get_ref() * 1e6)
        };
        for record in &self.machines {
            let memory = if record.memory_mb.is_some() { &record.memory_mb } else { &record.cache_mb };
            let task_memory =
                record.memory_mb.as_ref().map(|_| rate(&record.task_memory_mb, TASK_MEMORY) as u64);
            for _ in 0..*record.count.get_ref() {
                let rack = if let Some(rack) = record.rack {
                    racks.range(..rack).count()
                } else {
                    without_rack += 1;
                    racks.len() + (without_rack - 1) / MACHINES_PER_RACK
                };
                machines.push(Machine {
                    rack: rack as u32,
                    slots: PerPhase {
                        map: *record.map_slots.get_ref(),
                        reduce: *record.reduce_slots.get_ref(),
                    },
                    speed: record.speed.as_ref().map_or(usual.speed, |speed| *speed.get_ref()),
                    cores: record.cores.as_ref().map_or(usual.cores, |cores| *cores.get_ref()),
                    disk: rate(&record.disk_mbps, usual.disk),
                    disk_writes: usual.disk_writes,
                    cache: rate(memory, usual.cache as f64) as u64,
                    task_memory: task_memory.unwrap_or(usual.task_memory),
                    nic: rate(&record.nic_mbps, usual.nic),
                    disk_bytes: usual.disk_bytes,
                });
            }
        }
        machines
    }

    /// Returns the number of reduce slots of all machines.
    pub(crate) fn reduce_slots(&self) -> u32 {
        self.machines().iter().map(|machine| machine.slots.reduce).sum()
    }

    /// Replaces the machines of a cluster, and what else the file sets.
    pub(crate) fn apply(&self, setup: &mut Setup) {
        setup.machines = self.machines();
        if let Some(replication) = &self.replication {
            setup.replication = *replication.get_ref() as usize;
        }
        if let Some(replication) = &self.output_replication {
            setup.output_replication = *replication.get_ref() as usize;
        }
        if let Some(rate) = &self.rack_uplink_mbps {
            setup.rack_uplink = rate.get_ref() * 1e6;
        }
        if let Some(seconds) = &self.heartbeat_s {
            setup.set_heartbeat_interval(Span((seconds.get_ref() * 1e6) as u64));
        }
        match self.heartbeat_only {
            Some(true) => setup.set_heartbeat_only(),
            Some(false) => {
                setup.out_of_band = true;
                setup.config.offers_max = Config::default().offers_max;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "replication = 2\noutput_replication = 1\nheartbeat_s = 3\nheartbeat_only = true\nrack_uplink_mbps = 500\n\
        [[machines]]\ncount = 2\nmap_slots = 8\nreduce_slots = 4\nspeed = 1.5\ncores = 2.5\ndisk_mbps = 60\ncache_mb = 7\n\
        [[machines]]\ncount = 41\nmap_slots = 2\nreduce_slots = 1\n\
        [[machines]]\ncount = 1\nmap_slots = 2\nreduce_slots = 1\nmemory_mb = 24000\n";

    #[test]
    fn file_describes_unequal_machines() {
        let mut setup = Setup::even(3, PerPhase { map: 1, reduce: 1 }, "fifo");
        ClusterFile::parse(FILE).expect("it parses").apply(&mut setup);
        assert_eq!((setup.machines.len(), setup.slots()), (44, PerPhase { map: 100, reduce: 50 }));
        assert!((setup.machines[1].cores - 2.5).abs() < 1e-9 && setup.machines[2].cores.is_infinite());
        assert!((setup.machines[1].speed - 1.5).abs() < 1e-9 && (setup.machines[2].speed - 1.0).abs() < 1e-9);
        assert!(
            (setup.machines[0].disk - 60e6).abs() < 1.0
                && setup.machines[0].cache == 7_000_000
                && (setup.rack_uplink - 500e6).abs() < 1.0
        );
        let memory = |at: usize| (setup.machines[at].cache, setup.machines[at].task_memory);
        assert_eq!(
            [memory(0), memory(2), memory(43)],
            [(7_000_000, 0), (4 << 30, 0), (24_000_000_000, 1_000_000_000)]
        );
        assert_eq!((setup.machines[39].rack, setup.machines[40].rack), (0, 1));
        let named = "[[machines]]\ncount = 1\nmap_slots = 1\nreduce_slots = 1\nrack = 4000000000\n".repeat(2)
            + "[[machines]]\ncount = 1\nmap_slots = 1\nreduce_slots = 1\n";
        let racks = ClusterFile::parse(&named).expect("it parses").machines();
        assert_eq!(racks.iter().map(|machine| machine.rack).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!((setup.replication, setup.output_replication), (2, 1));
        assert_eq!((setup.heartbeat, setup.out_of_band, setup.config.offers_max), (Span::secs(3), false, 0));
    }

    #[test]
    fn errors_of_a_file_name_line_and_key() {
        let cases = [
            ("[[machines]]\ncount = 2\nslots = 8\n", "3: unknown field `slots`"),
            ("[[machines]]\ncount = 2\n", "missing field `map_slots`"),
            ("replication = 2\n", "missing field `machines`"),
            ("[[machines]]\ncount = 2\nmap_slots = 0\nreduce_slots = 1\n", "no machine has a map slot"),
            ("[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nspeed = 0.0\n", "5: speed = 0 is"),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nmemory_mb = 9\ncache_mb = 8\n",
                "6: cache_mb is not valid with memory_mb",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\ntask_memory_mb = 9\n",
                "5: task_memory_mb needs memory_mb",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nnic_mbps = inf\n",
                "5: nic_mbps = inf is",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nmemory_mb = 999\n",
                "5: memory_mb = 999 is not valid: a task takes 1000 MB (task_memory_mb), so none fits",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nmemory_mb = 9\ntask_memory_mb = 10\n",
                "5: memory_mb = 9 is not valid: a task takes 10 MB",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\n[[machines]]\ncount = -1\n",
                "6: count: invalid value: integer `-1`",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\ndisk_mbps = -60\n",
                "5: disk_mbps = -60 is not valid: it must be from 0.001 to",
            ),
            (
                "rack_uplink_mbps = 0\n[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\n",
                "1: rack_uplink_mbps = 0 is not valid: it must be from 0.001 to",
            ),
            (
                "replication = 3\n[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\n",
                "1: replication = 3 is not valid: the file has only 2 machines",
            ),
            (
                "output_replication = 2\n[[machines]]\ncount = 1\nmap_slots = 1\nreduce_slots = 1\n",
                "1: output_replication = 2 is not valid: the file has only 1 machine,",
            ),
            (
                "heartbeat_s = 1e13\n[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\n",
                "1: heartbeat_s",
            ),
            (
                "[[machines]]\ncount = 99999999999999999999999\nmap_slots = 1\nreduce_slots = 1\n",
                "2: count: the number is too large",
            ),
            (
                "[[machines]]\ncount = 200000\nmap_slots = 1\nreduce_slots = 1\n",
                "2: count = 200000 is not valid",
            ),
            (
                "[[machines]]\ncount = 2\nmap_slots = 4000000000\nreduce_slots = 1\n",
                "3: map_slots = 4000000000",
            ),
        ];
        for (text, wanted) in cases {
            let error = ClusterFile::parse(text).expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        }
    }
}
