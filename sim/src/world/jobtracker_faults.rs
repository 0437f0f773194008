//! Faults of the JobTracker: its process is dead and will replay its journal, or is frozen and
//! keeps its state.

use super::World;
use mrcore::{Event, JobTracker, digest::digest};

/// State of the JobTracker while it is dead or frozen.
#[derive(Debug, Default)]
pub(super) struct JobTrackerFaults {
    /// Number of active faults that keep it dead.
    dead: u32,
    /// Number of active faults that keep it frozen.
    frozen: u32,
    /// The frozen core.
    core: Option<JobTracker>,
    /// Events that it gets when it continues. They wait in the process or in its sockets.
    undelivered: Vec<Event>,
    /// Digest of the cluster before the crash, which replay of the journal must reproduce. Set only
    /// if rules are checked.
    pub(super) lost: Option<String>,
}

impl JobTrackerFaults {
    /// Stores an event that arrives while the JobTracker is frozen. Heartbeats and registrations
    /// are dropped, because trackers repeat them; so are ticks, because they are periodic.
    pub(super) fn handle_missed_event(&mut self, event: Event) {
        let comes_again = matches!(event, Event::Tick | Event::Heartbeat(_) | Event::Registration { .. });
        if self.core.is_some() && !comes_again {
            self.undelivered.push(event);
        }
    }
}

impl World {
    /// Kills the JobTracker process. If rules are checked, stores a digest of its state for a
    /// comparison after replay.
    pub(super) fn crash_jobtracker(&mut self) {
        self.jobtracker_faults.dead += 1;
        self.jobtracker_faults.undelivered.clear();
        self.solutions.clear();
        let core = self.core.take().or_else(|| self.jobtracker_faults.core.take());
        if let Some(core) = core.filter(|_| self.setup.checked) {
            self.jobtracker_faults.lost = Some(digest(core.cluster()));
        }
        self.disconnect_all();
    }

    /// Ends one fault. The JobTracker starts again when no other fault keeps it dead.
    pub(super) fn revive_jobtracker(&mut self) {
        self.jobtracker_faults.dead -= 1;
        if self.jobtracker_faults.dead == 0 {
            self.restart_jobtracker();
        }
    }

    /// Freezes the process. Has no effect on a dead process.
    pub(super) fn freeze_jobtracker(&mut self) {
        self.jobtracker_faults.frozen += 1;
        if let Some(core) = self.core.take() {
            self.jobtracker_faults.core = Some(core);
        }
    }

    /// Makes a frozen process continue with its state.
    pub(super) fn unfreeze_jobtracker(&mut self) {
        self.jobtracker_faults.frozen -= 1;
        if self.jobtracker_faults.frozen > 0 {
            return;
        }
        let Some(core) = self.jobtracker_faults.core.take() else { return };
        self.core = Some(core);
        for event in std::mem::take(&mut self.jobtracker_faults.undelivered) {
            self.send_event(event);
        }
        self.submit_all();
    }

    /// Starts the JobTracker again. Checks that replay of its journal gives the same cluster
    /// state.
    pub(super) fn restart_jobtracker(&mut self) {
        let before = self.jobtracker_faults.lost.take();
        let Ok(mut core) = self.setup.core(&self.decision_times, &self.policy_failure) else { return };
        for entry in self.journal.iter().flatten() {
            if let Err(apply_error) = core.replay(entry) {
                self.violation = Some(format!("replay of the journal failed: {apply_error}"));
                return;
            }
        }
        if before.is_some_and(|before| before != digest(core.cluster())) {
            self.violation = Some("replay of the journal gives a different cluster state".into());
        }
        self.core = Some(core);
        self.send_event(Event::Start);
        self.repeat_last_request();
        self.submit_all();
    }

    /// Submits the jobs that arrived while the JobTracker was unavailable.
    fn submit_all(&mut self) {
        for plan in std::mem::take(&mut self.unsubmitted) {
            self.submit(plan);
        }
    }
}
