//! What attempts left on other trackers, copied here because those are emptied.

use super::{Action, Agent, Copied, Report, Source, Status};
use crate::ids::{Attempt, Job};
use std::time::Instant;

impl Agent {
    /// Asked twice, it is copied once; what is here already is told by whoever looks.
    pub(super) fn take(&mut self, now: Instant, attempt: Attempt, source: Source, out: &mut Vec<Action>) {
        if self.cleaning.contains_key(&attempt.job) {
            return self.tell_taken(now, attempt, Err("its job is being cleaned up".into()));
        }
        self.jobs.insert(attempt.job);
        if self.taking.insert(attempt) {
            out.push(Action::Take(attempt, source));
        }
    }

    pub(super) fn took(
        &mut self,
        now: Instant,
        attempt: Attempt,
        result: Result<Copied, String>,
        out: &mut Vec<Action>,
    ) {
        self.taking.remove(&attempt);
        if !self.cleaning.contains_key(&attempt.job) {
            match &result {
                Ok(Copied::Output(_)) => drop(self.outputs.insert(attempt)),
                Ok(Copied::State(state)) => drop(self.checkpoints.insert(attempt, state.clone())),
                Err(_) => {}
            }
        }
        self.tell_taken(now, attempt, result.map(|copied| copied.bytes()));
        self.finish_cleaning(attempt.job, out);
    }

    /// Its job is over.
    pub(super) fn stop_taking(&self, job: Job, out: &mut Vec<Action>) {
        let its = self.taking.iter().filter(|attempt| attempt.job == job);
        out.extend(its.map(|attempt| Action::Kill(*attempt, "its job is over".into())));
    }

    fn tell_taken(&mut self, now: Instant, attempt: Attempt, result: Result<u64, String>) {
        self.untold.ended.push(Report { attempt, status: Status::Taken(result) });
        self.hurry(now);
    }
}
