//! The size of a workload and its cluster, for the outputs of all experiments.

use crate::{Setup, Workload, workload::OfferedLoad};
use serde::Serialize;
use std::fmt;

/// The size of a workload and its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CaseSize {
    /// Number of jobs and of tasks.
    pub jobs: usize,
    pub tasks: usize,
    /// Offered load of each phase; null if all jobs arrive at once.
    pub offered_load: Option<OfferedLoad>,
    pub machines: usize,
    pub map_slots: u32,
    pub reduce_slots: u32,
}

impl fmt::Display for CaseSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} with {} map and {} reduce slots, {}, {}",
            crate::count(self.machines, "node"),
            self.map_slots,
            self.reduce_slots,
            crate::count(self.jobs, "job"),
            crate::count(self.tasks, "task"),
        )?;
        match self.offered_load {
            Some(load) => write!(f, ", {load}"),
            None => Ok(()),
        }
    }
}

impl CaseSize {
    /// Returns the size of a workload and its cluster.
    pub fn of(setup: &Setup, workload: &Workload) -> Self {
        let slots = setup.slots();
        Self {
            jobs: workload.jobs.len(),
            tasks: workload.tasks(),
            offered_load: workload.offered_load(setup).map(OfferedLoad::from),
            machines: setup.machines.len(),
            map_slots: slots.map,
            reduce_slots: slots.reduce,
        }
    }
}
