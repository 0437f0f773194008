//! Faults of the JobTracker: its process is dead and will replay its journal, or is frozen and
//! keeps its state.

use super::World;
use mrcore::{Event, JobTracker, digest::digest};

/// State of the JobTracker while it is dead or frozen.
#[derive(Debug, Default)]
pub(super) struct JobTrackerFaults {
    /// Number of faults for which it is dead.
    dead: u32,
    /// Number of faults for which it is frozen.
    frozen: u32,
    /// The frozen core.
    core: Option<JobTracker>,
    /// Events that it gets when it continues, because they are in its process or its sockets.
    undelivered: Vec<Event>,
    /// Digest that replay of the journal must reproduce, if rules are checked.
    pub(super) lost: Option<String>,
}

impl JobTrackerFaults {
    /// An event while the JobTracker is unavailable. Trackers repeat unanswered messages, and ticks
    /// are periodic, so these are dropped.
    pub(super) fn miss(&mut self, event: Event) {
        let comes_again = matches!(event, Event::Tick | Event::Heartbeat(_) | Event::Registration { .. });
        if self.core.is_some() && !comes_again {
            self.undelivered.push(event);
        }
    }
}

impl World {
    /// The process of the JobTracker dies. If rules are checked, its state is stored for comparison
    /// after replay.
    pub(super) fn crash_jobtracker(&mut self) {
        self.jobtracker_faults.dead += 1;
        self.jobtracker_faults.undelivered.clear();
        self.answers.clear();
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

    /// Freezes the process; has no effect on a dead one.
    pub(super) fn freeze_jobtracker(&mut self) {
        self.jobtracker_faults.frozen += 1;
        if let Some(core) = self.core.take() {
            self.jobtracker_faults.core = Some(core);
        }
    }

    /// The process continues with its state.
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

    /// The JobTracker starts again and replays its journal, which must give the same cluster.
    pub(super) fn restart_jobtracker(&mut self) {
        let before = self.jobtracker_faults.lost.take();
        let Ok(mut core) = self.setup.core(&self.deciding) else { return };
        for entry in self.journal.iter().flatten() {
            if let Err(apply_error) = core.replay(entry) {
                self.violation = Some(format!("replay of the journal failed: {apply_error}"));
                return;
            }
        }
        if before.is_some_and(|before| before != digest(core.cluster())) {
            self.violation = Some("replay of the journal gives a different cluster".into());
        }
        self.core = Some(core);
        self.send_event(Event::Start);
        self.submit_all();
    }

    /// Submits the jobs that arrived while the JobTracker was unavailable.
    fn submit_all(&mut self) {
        for plan in std::mem::take(&mut self.unsubmitted) {
            self.submit(plan);
        }
    }
}
