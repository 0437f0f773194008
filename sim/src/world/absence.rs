//! The JobTracker is not there: its process has died and will replay its journal, or stands still and forgets nothing.

use super::World;
use mrcore::{Event, JobTracker, digest::digest};

/// Why the mind is not there, and what becomes of it.
#[derive(Debug, Default)]
pub(super) struct Absence {
    /// How many faults it is dead for.
    dead: u32,
    /// How many it stands still for.
    still: u32,
    /// It stands still, as it was.
    mind: Option<JobTracker>,
    /// What it will hear when it goes on: it is in its process already, or in its sockets.
    unheard: Vec<Event>,
    /// What its journal must give back, where that is checked.
    pub(super) lost: Option<String>,
}

impl Absence {
    /// Something that nobody hears now. Trackers say again what is not answered, and the time comes by itself.
    pub(super) fn miss(&mut self, event: Event) {
        let comes_again = matches!(event, Event::Tick | Event::Heartbeat(_) | Event::Registration { .. });
        if self.mind.is_some() && !comes_again {
            self.unheard.push(event);
        }
    }
}

impl World {
    /// The JobTracker's process dies. What its journal must give back is remembered where that is checked.
    pub(super) fn lose_mind(&mut self) {
        self.absence.dead += 1;
        self.absence.unheard.clear();
        self.answers.clear();
        let mind = self.mind.take().or_else(|| self.absence.mind.take());
        if let Some(mind) = mind.filter(|_| self.setup.checked) {
            self.absence.lost = Some(digest(mind.cluster()));
        }
    }

    /// It may come back, unless it is dead for another reason too.
    pub(super) fn revive_mind(&mut self) {
        self.absence.dead -= 1;
        if self.absence.dead == 0 {
            self.find_mind();
        }
    }

    /// Its process stands still. One that is dead does not.
    pub(super) fn still_mind(&mut self) {
        self.absence.still += 1;
        if let Some(mind) = self.mind.take() {
            self.absence.mind = Some(mind);
        }
    }

    /// It goes on where it was.
    pub(super) fn wake_mind(&mut self) {
        self.absence.still -= 1;
        if self.absence.still > 0 {
            return;
        }
        let Some(mind) = self.absence.mind.take() else { return };
        self.mind = Some(mind);
        for event in std::mem::take(&mut self.absence.unheard) {
            self.tell(event);
        }
        self.submit_all();
    }

    /// It comes back and replays its journal, which must give the cluster that it came from.
    pub(super) fn find_mind(&mut self) {
        let before = self.absence.lost.take();
        let Ok(scheduler) = self.setup.policy(&self.deciding) else { return };
        let mut mind = JobTracker::new(self.setup.config.clone(), scheduler);
        for entry in self.journal.iter().flatten() {
            if let Err(misfit) = mind.replay(entry) {
                self.broken = Some(format!("the journal does not replay: {misfit}"));
                return;
            }
        }
        if before.is_some_and(|before| before != digest(mind.cluster())) {
            self.broken = Some("the journal gives another cluster than it came from".into());
        }
        self.mind = Some(mind);
        self.tell(Event::Start);
        self.submit_all();
    }

    /// Jobs that came while nobody heard.
    fn submit_all(&mut self) {
        for plan in std::mem::take(&mut self.unsubmitted) {
            self.submit(plan);
        }
    }
}
