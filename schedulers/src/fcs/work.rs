//! How much a job has left, and how far a reduce has been put back: the formulas of the paper's section 4.

use crate::{
    estimate::{self, Flow},
    ranked_queue::Real,
};
use mrcore::{
    Cluster, Phase, Span, Time,
    job::Job,
    task::{Attempt, Stage, Task},
};

/// `T_rs` in seconds: `maps_left / rate`, with the rate in maps a second. As printed it is multiplied by the mean map
/// time once more, which gives s² (`literal`).
pub(super) fn remaining_shuffle(maps_left: f64, rate: f64, mean_map: f64, literal: bool) -> f64 {
    if maps_left <= 0.0 {
        return 0.0;
    }
    let seconds = maps_left / rate.max(f64::MIN_POSITIVE);
    if literal { seconds * mean_map } else { seconds }
}

/// How the slack of a reduce is reckoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// How much longer than without pauses it will have taken if it is paused no more.
    Projected,
    /// As the paper prints it: the time so far by the time without pauses. Reaches a bound only late.
    Printed,
}

/// `E_slack` of a reduce that began `total` seconds ago, has run for `service` of them, and would take `estimate`
/// without pauses.
pub(super) fn slack(form: Form, total: f64, service: f64, estimate: f64) -> f64 {
    let taken = match form {
        Form::Printed => total,
        Form::Projected => total + (estimate - service).max(0.0),
    };
    taken / estimate.max(f64::MIN_POSITIVE)
}

/// D: how many offers a paused reduce lets pass for the sake of its own node, on `nodes` nodes and for this part of
/// reduces that are to find their way back.
pub(super) fn skips_for(nodes: f64, locality: f64) -> f64 {
    let rest = 1.0 - locality;
    -nodes * (rest / (1.0 + rest)).ln()
}

/// Of a reduce task: seconds since it first began, seconds that it has run, and what it would take without pauses if
/// its progress says so. Nothing if it never began.
pub(super) fn times(task: &Task, now: Time) -> Option<(f64, f64, Option<f64>)> {
    let began = task.attempts.first()?.launched;
    let last = task.viable().last().or_else(|| {
        let checkpoint = task.checkpoint?.attempt;
        task.attempts.get(checkpoint.number as usize)
    })?;
    let mut service = 0.0;
    let mut at = Some(last);
    while let Some(attempt) = at {
        service += attempt.ended.unwrap_or(now).since(attempt.launched).as_secs_f64();
        at = attempt.from.and_then(|from| task.attempts.get(from.number as usize));
    }
    let done = f64::from(last.progress.done);
    Some((now.since(began).as_secs_f64(), service, (done > 0.0).then(|| service / done)))
}

/// What is known of a job beyond what the cluster shows, as last looked at.
#[derive(Debug, Default)]
pub(super) struct JobEstimate {
    /// Seconds a map takes.
    pub(super) map_s: Option<f64>,
    /// Reduces done, as a sum of the parts of those that run or are paused.
    pub(super) partly: f64,
    /// Since when a reduce of it has waited for so long that it goes first.
    pub(super) overdue: Option<Time>,
    /// (`T_rs`, `R_left`), as last reckoned.
    pub(super) left: RemainingWork,
}

/// (`T_rs`, `R_left`): compared in this order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RemainingWork {
    /// Seconds until all maps are done.
    pub(super) shuffle: f64,
    /// Bytes that have not been reduced.
    pub(super) bytes: f64,
}

/// The order of jobs, for who gets a free slot. `T_rs` counts in steps of the tolerance: unlike "equal within a tolerance"
/// this is an order. It is one of the moment: for preemption there is [`RemainingWork::is_less_than`].
pub(super) type Rank = (u64, Real);

/// Whose turn it is: overdue jobs in the order in which they came to be, then the others by rank.
pub(super) type OrderKey = (bool, Time, Rank);

impl RemainingWork {
    pub(super) fn rank(self, tolerance: Span) -> Rank {
        let steps = self.shuffle / tolerance.as_secs_f64().max(1e-6);
        (steps.floor() as u64, Real(self.bytes))
    }

    /// Whether a job with this much left may take slots from one with so much: by shuffle time only if that is less by
    /// more than the tolerance, by data only if the shuffle time is no longer. `T_rs` moves with every slot that maps get,
    /// so two jobs could else take the same slots from each other in turn: this way it must move by the tolerance in between.
    pub(super) fn is_less_than(self, other: Self, tolerance: Span) -> bool {
        let longer = other.shuffle - self.shuffle;
        longer > tolerance.as_secs_f64() || longer >= 0.0 && other.bytes > self.bytes
    }
}

impl JobEstimate {
    pub(super) fn order_key(&self, tolerance: Span) -> OrderKey {
        (self.overdue.is_none(), self.overdue.unwrap_or_default(), self.left.rank(tolerance))
    }

    /// Reckons anew what takes looking at every attempt that runs.
    pub(super) fn refresh(
        &mut self,
        job: &Job,
        paused: impl Iterator<Item = u32>,
        now: Time,
        cluster: &Cluster,
    ) {
        self.map_s = estimate::map_seconds(job, now, cluster).or(self.map_s);
        let running = job.running.reduce.iter().filter_map(|id| cluster.attempt(*id)).map(reduced);
        let checkpoint = paused.filter_map(|index| {
            let task = job.tasks.reduce.get(index as usize)?;
            task.attempts.get(task.checkpoint?.attempt.number as usize).map(reduced)
        });
        self.partly = running.sum::<f64>() + checkpoint.sum::<f64>();
    }

    /// Reckons what is left from what is at hand.
    pub(super) fn update_remaining(
        &mut self,
        job: &Job,
        flow: &Flow,
        typical_map: f64,
        literal: bool,
        now: Time,
    ) {
        let mean = self.map_s.or_else(|| job.mean_time(Phase::Map).map(Span::as_secs_f64));
        let mean = mean.unwrap_or(typical_map);
        self.left = RemainingWork {
            shuffle: remaining_shuffle(
                estimate::left(job, Phase::Map),
                map_rate(job, mean, now),
                mean,
                literal,
            ),
            bytes: self.remaining_bytes(job, flow),
        };
    }

    /// `R_left` = `R_total` - `R_done`.
    fn remaining_bytes(&self, job: &Job, flow: &Flow) -> f64 {
        let total = flow.input(job.id) * flow.selectivity(job.id);
        let reduces = f64::from(job.spec.reduces.max(1));
        let done = (f64::from(job.succeeded.reduce) + self.partly).min(reduces);
        total * (1.0 - done / reduces)
    }
}

/// Maps that a job gets done in a second: by those that run now; if none does, by those that are done.
fn map_rate(job: &Job, mean: f64, now: Time) -> f64 {
    let one_at_a_time = 1.0 / mean.max(1e-6);
    if !job.running.map.is_empty() {
        return job.running.map.len() as f64 * one_at_a_time;
    }
    let since = job.first_launch.map_or(0.0, |first| now.since(first).as_secs_f64());
    let done = f64::from(job.succeeded.map);
    if done > 0.0 && since > 0.0 { done / since } else { one_at_a_time }
}

/// The part of its data that a reduce has reduced. Its last third is the reducing.
fn reduced(attempt: &Attempt) -> f64 {
    let done = f64::from(attempt.progress.done);
    if attempt.progress.stage == Stage::Reduce { (3.0 * done - 2.0).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{
        ids::{JobId, TaskId},
        task::AttemptState,
    };
    use std::collections::BTreeSet;

    fn close(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 1e-3, "{got} is not {wanted}");
    }

    #[test]
    fn shuffle_time_is_maps_by_rate() {
        // 120 maps left, 8 at a time of 20 s each: 0.4 maps a second, 300 s. The printed formula says 6000 s².
        close(remaining_shuffle(120.0, 8.0 / 20.0, 20.0, false), 300.0);
        close(remaining_shuffle(120.0, 8.0 / 20.0, 20.0, true), 6000.0);
        close(remaining_shuffle(0.0, 0.0, 20.0, false), 0.0);
    }

    #[test]
    fn slack_as_printed_and_as_it_will_be() {
        // Began 300 s ago, ran 60 s of them, is at 0.5: would take 120 s. Printed: 300 / 120. In the end it will have
        // taken 300 + 60 more.
        close(slack(Form::Printed, 300.0, 60.0, 120.0), 2.5);
        close(slack(Form::Projected, 300.0, 60.0, 120.0), 3.0);
        // Never paused: 1 at any time; printed, its progress.
        close(slack(Form::Projected, 30.0, 30.0, 120.0), 1.0);
        close(slack(Form::Printed, 30.0, 30.0, 120.0), 0.25);
    }

    #[test]
    fn the_papers_number_of_skips() {
        // 20 nodes, 95 %: -20 ln(0.05 / 1.05) = 60.9.
        close(skips_for(20.0, 0.95), 60.890);
        close(skips_for(45.0, 0.95), 137.004);
    }

    #[test]
    fn shuffle_time_goes_before_data_but_for_small_differences() {
        let left = |shuffle, bytes| RemainingWork { shuffle, bytes }.rank(Span::secs(5));
        assert!(left(100.0, 1.0) > left(10.0, 1e9));
        assert!(left(3.0, 10.0) > left(4.0, 9.0));
        assert!(left(0.0, 10.0) > left(0.0, 9.0));
    }

    #[test]
    fn nearly_equal_jobs_do_not_preempt_each_other() {
        let left = |shuffle, bytes| RemainingWork { shuffle, bytes };
        let takes = |one: RemainingWork, other: RemainingWork| one.is_less_than(other, Span::secs(5));
        // 4.99 and 5.01 s lie in two steps, and the order turns when they change places; nobody takes anything.
        let (small, large) = (left(5.01, 10.0), left(4.99, 20.0));
        assert!(small.rank(Span::secs(5)) > large.rank(Span::secs(5)));
        assert!(!takes(large, small) && !takes(small, large));
        assert!(takes(left(4.99, 10.0), left(5.01, 20.0)), "less of both");
        assert!(!takes(left(5.01, 20.0), left(4.99, 10.0)));
        // Until the difference is more than the tolerance.
        assert!(takes(left(4.0, 20.0), left(9.01, 10.0)) && !takes(left(4.0, 20.0), left(8.99, 10.0)));
        // As printed: whoever has less, in this order.
        let takes = |one: RemainingWork, other: RemainingWork| one.is_less_than(other, Span(0));
        assert!(takes(large, small) && takes(left(0.0, 9.0), left(0.0, 10.0)) && !takes(small, large));
    }

    #[test]
    fn a_paused_reduce_has_run_for_less_than_it_has_lasted() {
        let id = TaskId { job: JobId(1), phase: Phase::Reduce, index: 0 };
        let attempt =
            |number: u32, from: Option<u32>, launched: u64, ended: Option<u64>, done: f32| Attempt {
                id: id.attempt(number),
                tracker: mrcore::ids::TrackerId(0),
                end: 0,
                from: from.map(|number| id.attempt(number)),
                checkpoint_on: None,
                prior_work: mrcore::task::Work::default(),
                output_on: mrcore::ids::TrackerId(0),
                state: if ended.is_some() { AttemptState::Paused } else { AttemptState::Running },
                launched: Time(launched * 1_000_000),
                last_progress: Time(0),
                ended: ended.map(|at| Time(at * 1_000_000)),
                last_reported: Time(0),
                preempt_request: None,
                hold_requested: false,
                preempt_deadline: None,
                refusals: 0,
                work_done: None,
                fault: None,
                why: mrcore::Why::default(),
                error: None,
                progress: mrcore::task::Progress { done, ..Default::default() },
                speculative: false,
                result: None,
            };
        // 10 to 40 s, then from 100 s on: at 130 s it has lasted 120 s, has run 60 s, and is at 0.4: 150 s in all.
        let attempts = vec![attempt(0, None, 10, Some(40), 0.2), attempt(1, Some(0), 100, None, 0.4)];
        let task = Task {
            id,
            root: 0,
            start: 0,
            end: 0,
            hosts: Vec::new(),
            attempts,
            done_by: None,
            failures: 0,
            unfetched: 0,
            checkpoint: None,
            saved_work: mrcore::task::Work::default(),
            on_hold: false,
            avoided_trackers: BTreeSet::new(),
        };
        let (total, service, estimate) = times(&task, Time(130_000_000)).unwrap();
        close(total, 120.0);
        close(service, 60.0);
        close(estimate.unwrap(), 150.0);
    }
}
