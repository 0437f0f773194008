//! What is told of one job.

use crate::{
    phase::PerPhase,
    plan::Locality,
    time::{Span, Time},
};

/// Preemption from a job, by what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PreemptionCounts {
    pub splits: u32,
    pub pauses: u32,
    pub kills: u32,
    pub resumes: u32,
    pub migrations: u32,
    /// Splits, pauses and kills for the job's own sake or the machine's: of stragglers, of nodes that are drained.
    pub internal: u32,
}

impl PreemptionCounts {
    /// How often a slot was preempted for others.
    pub fn preemptions(&self) -> u32 {
        self.splits + self.pauses + self.kills
    }
}

/// How the work of lost trackers was resumed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Tasks that had to run again and did.
    pub tasks: u32,
    /// Maps among them.
    pub maps: u32,
    /// Maps that ran where their input is.
    pub local: u32,
    /// From the loss to the launch, over all.
    pub waited: Span,
    /// The same of maps.
    pub maps_waited: Span,
    /// The longest of these.
    pub longest: Span,
}

impl Recovery {
    pub(super) fn launched(&mut self, waited: Span, near: Option<Locality>) {
        self.tasks += 1;
        self.maps += u32::from(near.is_some());
        self.local += u32::from(near == Some(Locality::NodeLocal));
        self.waited = self.waited + waited;
        if near.is_some() {
            self.maps_waited = self.maps_waited + waited;
        }
        self.longest = self.longest.max(waited);
    }

    /// How long a task waited, on average; none if none was lost: nobody's wait is not a short one.
    pub fn mean_wait(&self) -> Option<Span> {
        self.waited.0.checked_div(u64::from(self.tasks)).map(Span)
    }

    /// How long a map waited, on average; none if none was lost.
    pub fn mean_map_wait(&self) -> Option<Span> {
        self.maps_waited.0.checked_div(u64::from(self.maps)).map(Span)
    }

    /// Part of the maps that ran again where their input is; none if none was lost.
    pub fn locality(&self) -> Option<f64> {
        (self.maps > 0).then(|| f64::from(self.local) / f64::from(self.maps))
    }
}

/// One job's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFigures {
    /// Its name.
    pub name: String,
    /// Whose.
    pub user: String,
    /// What it is compared with; its name if its settings do not say.
    pub group: String,
    /// Tasks as submitted.
    pub tasks: PerPhase<u32>,
    /// When it came.
    pub submitted: Time,
    /// When its first map was launched.
    pub first_map: Option<Time>,
    /// When its last map was done.
    pub maps_done: Option<Time>,
    /// When it was over.
    pub ended: Option<Time>,
    /// When it was looked at last, if it was not over then.
    pub last_looked_at: Option<Time>,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Maps launched node-local, rack-local, elsewhere.
    pub near: [u32; 3],
    /// Preemption.
    pub preemption: PreemptionCounts,
    /// Duplicates launched.
    pub duplicates: u32,
    /// Slot time of attempts that failed, or whose output or state is gone.
    pub lost: Span,
    /// Slot time from being told to release a slot by splitting or pausing until it was free.
    pub preemption_latency: Span,
    /// Slot time until attempts that are there only because a slot was preempted had begun: starting, reading a state
    /// back, having it come from elsewhere. In no fact: who knows it says so (`Metrics::restarted`).
    pub restarting: Span,
    /// Bytes read for nothing.
    pub lost_bytes: u64,
    /// Slot time in all.
    pub held: PerPhase<Span>,
    /// Time that its reduces waited for slots after its maps were done, over all; while somebody holds one by hand it waits for none.
    pub reduce_waited: Span,
    /// How its work that was lost with a tracker was resumed.
    pub recovery: Recovery,
}

impl JobFigures {
    /// From submission to end.
    pub fn makespan(&self) -> Option<Span> {
        self.ended.map(|ended| ended.since(self.submitted))
    }

    /// From submission to the first map; to its end for a job that ended without one, which waited all its life. So
    /// waiting and execution add up to the makespan, job by job and on average.
    pub fn waiting(&self) -> Option<Span> {
        self.first_map.or(self.ended).map(|first| first.since(self.submitted))
    }

    /// From the first map to the end; nothing if there was no map.
    pub fn execution(&self) -> Option<Span> {
        let ended = self.ended?;
        Some(ended.since(self.first_map.unwrap_or(ended)))
    }

    /// How many times longer than alone.
    pub fn slowdown(&self, alone: Span) -> Option<f64> {
        self.makespan().map(|elapsed| elapsed.as_secs_f64() / alone.as_secs_f64().max(1e-6))
    }

    /// How long one of its reduces waited for slots after its maps were done, on average; none if it has no reduces.
    pub fn reduce_wait(&self) -> Option<Span> {
        self.reduce_waited.0.checked_div(u64::from(self.tasks.reduce)).map(Span)
    }

    /// Slot time that preemption has cost beside work that was lost.
    pub fn overhead(&self) -> Span {
        self.preemption_latency + self.restarting
    }

    /// Part of its maps that ran where their input is; none if none was launched.
    pub fn locality(&self) -> Option<f64> {
        let all: u32 = self.near.iter().sum();
        (all > 0).then(|| f64::from(self.near[0]) / f64::from(all))
    }
}
