//! The JobTracker is not there: its process has died and will replay its journal, or stands still and forgets nothing.

use super::World;
use mrcore::{Event, JobTracker, digest::digest};

/// Why the core is not there, and what becomes of it.
#[derive(Debug, Default)]
pub(super) struct JobTrackerFaults {
    /// How many faults it is dead for.
    dead: u32,
    /// How many it stands still for.
    frozen: u32,
    /// It stands still, as it was.
    core: Option<JobTracker>,
    /// What it will hear when it continues: it is in its process already, or in its sockets.
    undelivered: Vec<Event>,
    /// What its journal must give back, where that is checked.
    pub(super) lost: Option<String>,
}

impl JobTrackerFaults {
    /// Something that nobody hears now. Trackers say again what is not answered, and the time comes by itself.
    pub(super) fn miss(&mut self, event: Event) {
        let comes_again = matches!(event, Event::Tick | Event::Heartbeat(_) | Event::Registration { .. });
        if self.core.is_some() && !comes_again {
            self.undelivered.push(event);
        }
    }
}

impl World {
    /// The JobTracker's process dies. What its journal must give back is remembered where that is checked.
    pub(super) fn crash_jobtracker(&mut self) {
        self.jobtracker_faults.dead += 1;
        self.jobtracker_faults.undelivered.clear();
        self.answers.clear();
        let core = self.core.take().or_else(|| self.jobtracker_faults.core.take());
        if let Some(core) = core.filter(|_| self.setup.checked) {
            self.jobtracker_faults.lost = Some(digest(core.cluster()));
        }
    }

    /// It may come back, unless it is dead for another reason too.
    pub(super) fn revive_jobtracker(&mut self) {
        self.jobtracker_faults.dead -= 1;
        if self.jobtracker_faults.dead == 0 {
            self.restart_jobtracker();
        }
    }

    /// Its process stands still. One that is dead does not.
    pub(super) fn freeze_jobtracker(&mut self) {
        self.jobtracker_faults.frozen += 1;
        if let Some(core) = self.core.take() {
            self.jobtracker_faults.core = Some(core);
        }
    }

    /// It continues where it was.
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

    /// It comes back and replays its journal, which must give the cluster that it came from.
    pub(super) fn restart_jobtracker(&mut self) {
        let before = self.jobtracker_faults.lost.take();
        let Ok(scheduler) = self.setup.policy(&self.deciding) else { return };
        let mut core = JobTracker::new(self.setup.config.clone(), scheduler);
        for entry in self.journal.iter().flatten() {
            if let Err(apply_error) = core.replay(entry) {
                self.violation = Some(format!("the journal does not replay: {apply_error}"));
                return;
            }
        }
        if before.is_some_and(|before| before != digest(core.cluster())) {
            self.violation = Some("the journal gives another cluster than it came from".into());
        }
        self.core = Some(core);
        self.send_event(Event::Start);
        self.submit_all();
    }

    /// Jobs that came while nobody heard.
    fn submit_all(&mut self) {
        for plan in std::mem::take(&mut self.unsubmitted) {
            self.submit(plan);
        }
    }
}
