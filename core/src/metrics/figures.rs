//! The metrics of one job.

use crate::{
    phase::PerPhase,
    plan::Locality,
    time::{Span, Time},
};

/// Number of preemptions of a job by kind, and of resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreemptionCounts {
    pub splits: u32,
    pub pauses: u32,
    pub kills: u32,
    pub resumes: u32,
    pub migrations: u32,
    /// Splits, pauses and kills that were not for another job: of stragglers, and on draining
    /// nodes. The fields above do not include them.
    pub internal: u32,
}

impl PreemptionCounts {
    /// Returns the number of preemptions for other jobs.
    pub fn preemptions(&self) -> u32 {
        self.splits + self.pauses + self.kills
    }
}

/// How fast tasks that were lost with a tracker were launched again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Number of tasks that had to run again and were launched.
    pub tasks: u32,
    /// Number of maps among these tasks.
    pub maps: u32,
    /// Number of these maps that were launched node-local.
    pub local: u32,
    /// Time from the loss to the launch, summed over all tasks.
    pub waited: Span,
    /// Time from the loss to the launch, summed over the maps.
    pub maps_waited: Span,
    /// The longest time from the loss to the launch of a task.
    pub longest: Span,
}

impl Recovery {
    pub(super) fn add_launch(&mut self, waited: Span, near: Option<Locality>) {
        self.tasks += 1;
        self.maps += u32::from(near.is_some());
        self.local += u32::from(near == Some(Locality::NodeLocal));
        self.waited = self.waited + waited;
        if near.is_some() {
            self.maps_waited = self.maps_waited + waited;
        }
        self.longest = self.longest.max(waited);
    }

    /// Returns the mean time from loss to launch; `None` if no task was lost.
    pub fn mean_wait(&self) -> Option<Span> {
        self.waited.0.checked_div(u64::from(self.tasks)).map(Span)
    }

    /// Returns the mean time from loss to launch of a map; `None` if no map was lost.
    pub fn mean_map_wait(&self) -> Option<Span> {
        self.maps_waited.0.checked_div(u64::from(self.maps)).map(Span)
    }

    /// Returns the fraction of the lost maps that ran again node-local; `None` if no map was lost.
    pub fn locality(&self) -> Option<f64> {
        (self.maps > 0).then(|| f64::from(self.local) / f64::from(self.maps))
    }
}

/// The metrics of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFigures {
    /// The name of the job.
    pub name: String,
    pub user: String,
    /// The group under which its metrics are aggregated: the setting `group`, else its name.
    pub group: String,
    /// Number of tasks at submission.
    pub tasks: PerPhase<u32>,
    /// Bytes of its input.
    pub input_bytes: u64,
    /// When it was submitted.
    pub submitted: Time,
    /// When its first map was launched.
    pub first_map: Option<Time>,
    /// When its first reduce was launched.
    pub first_reduce: Option<Time>,
    /// When its last map was done.
    pub maps_done: Option<Time>,
    /// When it ended.
    pub ended: Option<Time>,
    /// When the observation ended, if the job had not ended by then.
    pub observed_until: Option<Time>,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Why it failed or who killed it.
    pub failure: Option<String>,
    /// Number of maps launched node-local, rack-local and off-rack.
    pub near: [u32; 3],
    /// Preemptions.
    pub preemption: PreemptionCounts,
    /// Number of speculative attempts launched.
    pub speculative_attempts: u32,
    /// Slot time of attempts that failed, were killed, or whose output or checkpoint was lost.
    pub lost: Span,
    /// Slot time from the requests to split or pause attempts until their slots were free.
    pub preemption_latency: Span,
    /// Slot time that attempts after a preemption needed to start: process start, reading or
    /// copying the checkpoint. The facts in the journal do not contain it; only the
    /// simulator reports it, with `Metrics::restarted`.
    pub restarting: Span,
    /// Bytes that were read by attempts that were killed.
    pub lost_bytes: u64,
    /// Total slot time.
    pub held: PerPhase<Span>,
    /// Time that its reduces waited for slots after its maps were done, summed over the reduces. A
    /// reduce on hold does not wait for a slot.
    pub reduce_waited: Span,
    /// How fast its tasks that were lost with a tracker were launched again.
    pub recovery: Recovery,
}

impl JobFigures {
    /// Returns the time from the submission to the end of the job.
    pub fn makespan(&self) -> Option<Span> {
        self.ended.map(|ended| ended.since(self.submitted))
    }

    /// Returns the time from the submission to the launch of the first map, or to the end of the
    /// job if no map was launched. Waiting and execution add up to the makespan.
    pub fn waiting(&self) -> Option<Span> {
        self.first_map.or(self.ended).map(|first| first.since(self.submitted))
    }

    /// Returns the time from the launch of the first map to the end of the job; 0 if no map was
    /// launched.
    pub fn execution(&self) -> Option<Span> {
        let ended = self.ended?;
        Some(ended.since(self.first_map.unwrap_or(ended)))
    }

    /// Returns the makespan divided by `alone`, the makespan of the same job alone on the cluster.
    pub fn slowdown(&self, alone: Span) -> Option<f64> {
        self.makespan().map(|elapsed| elapsed.as_secs_f64() / alone.as_secs_f64().max(1e-6))
    }

    /// Returns the mean time that a reduce waited for slots after the maps were done; `None`
    /// without reduces.
    pub fn reduce_wait(&self) -> Option<Span> {
        self.reduce_waited.0.checked_div(u64::from(self.tasks.reduce)).map(Span)
    }

    /// Returns the slot time that preemption cost, without lost work.
    pub fn overhead(&self) -> Span {
        self.preemption_latency + self.restarting
    }

    /// Returns the fraction of the job's maps that were launched node-local; `None` if none were
    /// launched.
    pub fn locality(&self) -> Option<f64> {
        let all: u32 = self.near.iter().sum();
        (all > 0).then(|| f64::from(self.near[0]) / f64::from(all))
    }
}
