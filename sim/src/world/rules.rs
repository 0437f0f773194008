//! Invariants that are checked after every event, and those that are checked at the end of a run.

use super::World;
use crate::setup::RANDOM;
use mrcore::{JobTracker, Phase, digest::digest, invariants, tracker::TrackerState};

impl World {
    /// Checks the invariants of the core, and those between the core and the machines.
    pub(super) fn check(&mut self) {
        let Some(core) = &self.core else { return };
        if let Err(what) = invariants::check(core.cluster()).and_then(|()| core.check_next_timeout()) {
            self.violation = Some(what);
            return;
        }
        for node in self.nodes.iter().filter(|node| node.is_up()) {
            for phase in Phase::BOTH {
                let runs = node.runs.iter().filter(|run| run.id.phase() == phase).count();
                if runs > node.slots[phase] as usize {
                    self.violation =
                        Some(format!("{} runs {runs} {phase}s in {} slots", node.name, node.slots[phase]));
                }
            }
        }
    }

    /// Checks the end of a run: every job has ended, every slot is free, and replay of the journal
    /// gives the same cluster.
    pub(super) fn check_end(&mut self) {
        if !self.is_over() {
            let waits = self.core.as_ref().map(|core| digest(core.cluster())).unwrap_or_default();
            let runs: Vec<_> = self.nodes.iter().flat_map(|node| &node.runs).collect();
            self.violation = Some(format!("not idle: {} jobs are active\n{waits}\n{runs:?}", self.jobs_open));
            return;
        }
        // Slots of a draining tracker never count as free, so drains end before the check of slots.
        self.end_drains();
        if self.violation.is_some() {
            return;
        }
        let leaks = |core: &JobTracker| {
            let full = |at: &&mrcore::tracker::Tracker| {
                at.state == TrackerState::Live
                    && Phase::BOTH
                        .into_iter()
                        .any(|phase| core.cluster().free_slots(at, phase) != at.slots[phase])
            };
            core.cluster().trackers().find(full).map(|at| format!("{} has lost a slot", at.name))
        };
        self.violation = self.core.as_ref().and_then(leaks);
        let counted_otherwise = |core: &JobTracker| {
            let mut jobs = core.cluster().jobs();
            let of = |job: &mrcore::job::Job| {
                let taken = self.metrics.job(job.id).map(|figures| figures.preemption)?;
                let own = &job.preemption;
                let (figures, core) = ((taken.resumes, taken.migrations), (own.resumes, own.migrations));
                (figures != core).then(|| {
                    format!("{}: figures have {figures:?} resumes and migrations, the core {core:?}", job.id)
                })
            };
            jobs.find_map(of)
        };
        if let Some(what) = self.core.as_ref().and_then(counted_otherwise) {
            self.violation = Some(what);
        }
        let refused = self.core.as_ref().map_or(0, JobTracker::refusals);
        if refused > 0 && self.setup.scheduler != RANDOM {
            let times = crate::count(refused as usize, "time");
            self.violation = Some(format!("the policy made illegal decisions {times}"));
        }
        if self.violation.is_none() {
            self.check_shadow();
            self.check_files();
            self.check_rounds();
        }
        if self.violation.is_some() {
            return;
        }
        self.jobtracker_faults.lost = self.core.take().map(|core| digest(core.cluster()));
        self.restart_jobtracker();
    }

    /// Checks that a shadow policy that equals the real policy makes the same decisions.
    fn check_shadow(&mut self) {
        if self.setup.shadow.as_ref() != Some(&self.setup.scheduler) {
            return;
        }
        let Some(shadow) = self.core.as_ref().and_then(JobTracker::shadow) else { return };
        let tally = shadow.tally();
        if shadow.differences().next().is_some() || tally.policy_preempted != tally.both_preempted {
            self.violation = Some(format!("the shadow decides differently: {tally:?}"));
        }
    }
}
