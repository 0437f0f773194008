//! Reads the description of a cluster, for `mrctl sim --cluster`.
//!
//! ```toml
//! replication = 3           # replicas of each block
//! rack_uplink_mbps = 1250   # MB per second in each direction of the link of a rack
//! heartbeat_s = 3
//! heartbeat_only = true     # a free slot is reported only with the next heartbeat
//!
//! [[machines]]
//! count = 20
//! map_slots = 8
//! reduce_slots = 4
//! speed = 1.5               # relative to the machine that the profiles were measured on
//! disk_mbps = 80            # MB per second that one reader gets
//! nic_mbps = 125            # MB per second in each direction
//! rack = 0
//! ```
//!
//! Only `count` and the slots are required. Machines without `rack` are in racks of 40.

use crate::setup::{Machine, Setup};
use mrcore::{PerPhase, Span};
use serde::Deserialize;

/// The maximum number of machines of a simulated cluster.
const MACHINES_MAX: usize = 100_000;

/// The contents of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterFile {
    replication: Option<usize>,
    rack_uplink_mbps: Option<f64>,
    heartbeat_s: Option<f64>,
    heartbeat_only: Option<bool>,
    machines: Vec<MachineRecord>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineRecord {
    count: u32,
    map_slots: u32,
    reduce_slots: u32,
    speed: Option<f64>,
    disk_mbps: Option<f64>,
    nic_mbps: Option<f64>,
    rack: Option<u32>,
}

impl ClusterFile {
    /// Parses a file. The error is one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!("{line}: {}", error.message().replace('\n', " "))
        })?;
        let above_0 = |key: &str, value: Option<f64>| match value {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(format!("1: {key} = {value} is not valid: it must be above 0"))
            }
            _ => Ok(()),
        };
        above_0("rack_uplink_mbps", file.rack_uplink_mbps)?;
        above_0("heartbeat_s", file.heartbeat_s)?;
        for machine in &file.machines {
            above_0("speed", machine.speed)?;
            above_0("disk_mbps", machine.disk_mbps)?;
            above_0("nic_mbps", machine.nic_mbps)?;
        }
        let counts = || file.machines.iter().map(|machine| machine.count as usize);
        let map_slots: u64 =
            file.machines.iter().map(|machine| u64::from(machine.count) * u64::from(machine.map_slots)).sum();
        if counts().sum::<usize>() > MACHINES_MAX {
            return Err(format!("1: more than {MACHINES_MAX} machines"));
        }
        if map_slots == 0 {
            return Err("1: no machine has a map slot".into());
        }
        if file.replication == Some(0) {
            return Err("1: replication = 0 is not valid: it must be at least 1".into());
        }
        Ok(file)
    }

    /// Returns the machines.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        let usual = &Setup::even(1, PerPhase { map: 1, reduce: 1 }, "fifo").machines[0];
        let mut machines = Vec::new();
        for record in &self.machines {
            for _ in 0..record.count {
                machines.push(Machine {
                    rack: record.rack.unwrap_or(machines.len() as u32 / 40),
                    slots: PerPhase { map: record.map_slots, reduce: record.reduce_slots },
                    speed: record.speed.unwrap_or(usual.speed),
                    disk: record.disk_mbps.map_or(usual.disk, |rate| rate * 1e6),
                    nic: record.nic_mbps.map_or(usual.nic, |rate| rate * 1e6),
                    disk_bytes: usual.disk_bytes,
                });
            }
        }
        machines
    }

    /// Replaces the machines of a cluster, and what else the file sets.
    pub(crate) fn apply(&self, setup: &mut Setup) {
        setup.machines = self.machines();
        setup.replication = self.replication.unwrap_or(setup.replication);
        setup.rack_uplink = self.rack_uplink_mbps.map_or(setup.rack_uplink, |rate| rate * 1e6);
        if let Some(seconds) = self.heartbeat_s {
            setup.set_heartbeat_interval(Span((seconds * 1e6) as u64));
        }
        setup.out_of_band = self.heartbeat_only.map_or(setup.out_of_band, |only| !only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "replication = 2\nheartbeat_s = 3\nheartbeat_only = true\nrack_uplink_mbps = 500\n\
        [[machines]]\ncount = 2\nmap_slots = 8\nreduce_slots = 4\nspeed = 1.5\ndisk_mbps = 60\n\
        [[machines]]\ncount = 41\nmap_slots = 2\nreduce_slots = 1\n";

    #[test]
    fn file_describes_unequal_machines() {
        let mut setup = Setup::even(3, PerPhase { map: 1, reduce: 1 }, "fifo");
        ClusterFile::parse(FILE).expect("it parses").apply(&mut setup);
        assert_eq!((setup.machines.len(), setup.slots()), (43, PerPhase { map: 98, reduce: 49 }));
        assert!((setup.machines[1].speed - 1.5).abs() < 1e-9 && (setup.machines[2].speed - 1.0).abs() < 1e-9);
        assert!((setup.machines[0].disk - 60e6).abs() < 1.0 && (setup.rack_uplink - 500e6).abs() < 1.0);
        assert_eq!((setup.machines[39].rack, setup.machines[40].rack), (0, 1));
        assert_eq!((setup.replication, setup.heartbeat, setup.out_of_band), (2, Span::secs(3), false));
    }

    #[test]
    fn errors_of_a_file_name_line_and_key() {
        let cases = [
            ("[[machines]]\ncount = 2\nslots = 8\n", "3: unknown field `slots`"),
            ("[[machines]]\ncount = 2\n", "missing field `map_slots`"),
            ("replication = 2\n", "missing field `machines`"),
            ("[[machines]]\ncount = 2\nmap_slots = 0\nreduce_slots = 1\n", "no machine has a map slot"),
            ("[[machines]]\ncount = 2\nmap_slots = 1\nreduce_slots = 1\nspeed = 0.0\n", "speed = 0"),
            ("[[machines]]\ncount = 200000\nmap_slots = 1\nreduce_slots = 1\n", "more than 100000 machines"),
        ];
        for (text, wanted) in cases {
            let error = ClusterFile::parse(text).expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        }
    }
}
