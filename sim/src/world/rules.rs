//! What must hold after every event, and when all is healed and over.

use super::World;
use mrcore::{JobTracker, Phase, digest::digest, invariants, tracker::TrackerState};

impl World {
    /// Whether every rule holds, in the mind and between it and the machines.
    pub(super) fn check(&mut self) {
        let Some(mind) = &self.mind else { return };
        if let Err(what) = invariants::check(mind.cluster()) {
            self.broken = Some(what);
            return;
        }
        for node in self.nodes.iter().filter(|node| node.is_up()) {
            for phase in Phase::BOTH {
                let runs = node.runs.iter().filter(|run| run.id.phase() == phase).count();
                if runs > node.slots[phase] as usize {
                    self.broken =
                        Some(format!("{} runs {runs} {phase}s in {} slots", node.name, node.slots[phase]));
                }
            }
        }
    }

    /// When all is healed, every job has ended, every slot is free, and the journal gives back what is there.
    pub(super) fn check_end(&mut self) {
        if !self.is_over() {
            let waits = self.mind.as_ref().map(|mind| digest(mind.cluster())).unwrap_or_default();
            self.broken = Some(format!("not at rest: {} jobs open\n{waits}", self.jobs_open));
            return;
        }
        let leaks = |mind: &JobTracker| {
            let full = |at: &&mrcore::tracker::Tracker| {
                at.state == TrackerState::Live
                    && Phase::BOTH.into_iter().any(|phase| at.free(phase) != at.slots[phase])
            };
            mind.cluster().trackers().find(full).map(|at| format!("{} has lost a slot", at.name))
        };
        self.broken = self.mind.as_ref().and_then(leaks);
        let counted_otherwise = |mind: &JobTracker| {
            let mut jobs = mind.cluster().jobs();
            let of = |job: &mrcore::job::Job| {
                let taken = self.metrics.job(job.id).map(|figures| figures.taken)?;
                let own = &job.preemption;
                let (figures, mind) = ((taken.resumes, taken.migrations), (own.resumes, own.migrations));
                (figures != mind).then(|| {
                    format!("{}: figures have {figures:?} resumes and migrations, the mind {mind:?}", job.id)
                })
            };
            jobs.find_map(of)
        };
        if let Some(what) = self.mind.as_ref().and_then(counted_otherwise) {
            self.broken = Some(what);
        }
        if let Some(refused) = self.mind.as_ref().map(JobTracker::refusals).filter(|refused| *refused > 0) {
            let times = crate::count(refused as usize, "time");
            self.broken = Some(format!("the policy decided {times} what cannot be done"));
        }
        self.absence.lost = self.mind.take().map(|mind| digest(mind.cluster()));
        self.find_mind();
    }
}
