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
    /// How the bytes of a SWIM trace were scaled.
    #[serde(flatten)]
    pub scale: Option<TraceScale>,
}

/// How the bytes of a trace were scaled to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TraceScale {
    /// All bytes are multiplied by it.
    #[serde(rename = "scale")]
    pub factor: f64,
    /// The nodes of the cluster that the trace was recorded on; null if the factor was given.
    pub trace_nodes: Option<u32>,
    /// Whether that number follows from the name of the file, because it was not given.
    pub trace_nodes_guessed: bool,
}

impl fmt::Display for TraceScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Four digits.
        let factor = format!("{:.3e}", self.factor).parse().unwrap_or(self.factor);
        write!(f, "bytes times {factor}")?;
        let Some(nodes) = self.trace_nodes else { return Ok(()) };
        let guessed =
            if self.trace_nodes_guessed { ", guessed from its name: --trace-nodes sets it" } else { "" };
        write!(f, " (the cluster of the trace had {}{guessed})", crate::count(nodes as usize, "node"))
    }
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
        if let Some(load) = self.offered_load {
            write!(f, ", {load}")?;
        }
        match self.scale {
            Some(scale) => write!(f, ", {scale}"),
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
            scale: None,
        }
    }
}
