//! Computes the remaining work of a job and the slack of a reduce, by the formulas of section 4 of
//! the paper.

use crate::{
    estimate::{self, DataFlow},
    ranked_queue::Real,
};
use mrcore::{
    Cluster, Phase, Span, Time,
    job::Job,
    task::{Attempt, Progress, Stage, Task},
};

/// Returns `T_rs` in seconds: `maps_left / rate`, with the rate in maps per second. The printed
/// formula multiplies by the mean map duration once more, which gives s² (`literal`).
pub(super) fn remaining_shuffle(maps_left: f64, rate: f64, mean_map: f64, literal: bool) -> f64 {
    if maps_left <= 0.0 {
        return 0.0;
    }
    let seconds = maps_left / rate.max(f64::MIN_POSITIVE);
    if literal { seconds * mean_map } else { seconds }
}

/// How the slack of a reduce is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlackForm {
    /// The projected total time, if the reduce is not paused again, relative to the time without
    /// pauses.
    Projected,
    /// As printed in the paper: the time so far relative to the time without pauses. It reaches the
    /// limit only late.
    Printed,
}

/// Returns `E_slack` of a reduce that started `total` seconds ago, has run for `service` seconds,
/// and would take `estimate` seconds without pauses.
pub(super) fn slack(form: SlackForm, total: f64, service: f64, estimate: f64) -> f64 {
    let taken = match form {
        SlackForm::Printed => total,
        SlackForm::Projected => total + (estimate - service).max(0.0),
    };
    taken / estimate.max(f64::MIN_POSITIVE)
}

/// Returns D, the number of offers that a paused reduce skips before it migrates. `locality` is the
/// fraction of the paused reduces that should resume on their own node.
pub(super) fn skips_for(nodes: f64, locality: f64) -> f64 {
    let remote = 1.0 - locality;
    -nodes * (remote / (1.0 + remote)).ln()
}

/// Returns for a reduce: seconds since its first launch, seconds that it has run, and, if it has
/// progress, an estimate of its duration without pauses. Returns `None` if it was never launched.
pub(super) fn reduce_times(
    task: &Task,
    now: Time,
    done: impl Fn(&Attempt) -> f32,
) -> Option<(f64, f64, Option<f64>)> {
    let began = task.attempts.first()?.launched;
    let last = task.viable_attempts().last().or_else(|| {
        let checkpoint = task.checkpoint?.attempt;
        task.attempts.get(checkpoint.number as usize)
    })?;
    let mut service = 0.0;
    let mut at = Some(last);
    while let Some(attempt) = at {
        service += attempt.ended.unwrap_or(now).since(attempt.launched).as_secs_f64();
        at = attempt.resumed_from.and_then(|paused| task.attempts.get(paused.number as usize));
    }
    let done = f64::from(done(last));
    Some((now.since(began).as_secs_f64(), service, (done > 0.0).then(|| service / done)))
}

/// Estimates for a job.
#[derive(Debug, Default)]
pub(super) struct JobEstimate {
    /// Mean duration of a map in seconds.
    pub(super) map_s: Option<f64>,
    /// The sum of the progress of running and paused reduces.
    pub(super) partial_progress: f64,
    /// Since when the slack of a pending reduce has been used up.
    pub(super) overdue: Option<Time>,
    /// The remaining work (`T_rs`, `R_left`), as last computed.
    pub(super) remaining: RemainingWork,
}

/// (`T_rs`, `R_left`), compared in this order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RemainingWork {
    /// Seconds until all maps are done.
    pub(super) shuffle: f64,
    /// Bytes that have not been reduced.
    pub(super) bytes: f64,
}

/// The rank of a job for free slots. `T_rs` counts in steps of the tolerance, because "equal within
/// a tolerance" is not transitive. Preemption uses [`RemainingWork::is_less_than`] instead.
pub(super) type Rank = (u64, Real);

impl RemainingWork {
    pub(super) fn rank(self, tolerance: Span) -> Rank {
        let steps = self.shuffle / tolerance.as_secs_f64().max(1e-6);
        (steps.floor() as u64, Real(self.bytes))
    }

    /// Returns whether a job with this remaining work may preempt a job with the remaining work
    /// `other`: its shuffle time must be shorter by more than the tolerance, or it must not be
    /// longer and the data must be less. `T_rs` changes with every map slot, so two jobs could
    /// otherwise preempt each other in turn. With this rule, `T_rs` must change by the tolerance in
    /// between.
    pub(super) fn is_less_than(self, other: Self, tolerance: Span) -> bool {
        let longer = other.shuffle - self.shuffle;
        longer > tolerance.as_secs_f64() || longer >= 0.0 && other.bytes > self.bytes
    }
}

impl JobEstimate {
    /// Updates the estimates that need a scan of all running attempts.
    pub(super) fn refresh(
        &mut self,
        job: &Job,
        paused: impl Iterator<Item = u32>,
        now: Time,
        cluster: &Cluster,
    ) {
        self.map_s = estimate::map_seconds(job, now, cluster).or(self.map_s);
        let running =
            cluster.running(job, Phase::Reduce).filter_map(|(_, progress)| progress.map(reduced_part));
        let reports = cluster.reports(job.id, Phase::Reduce);
        let checkpoint = paused.filter_map(|index| {
            let task = job.tasks.reduce.get(index as usize)?;
            let paused = task.attempts.get(task.checkpoint?.attempt.number as usize)?;
            Some(reduced_part(reports.progress(paused)))
        });
        self.partial_progress = running.sum::<f64>() + checkpoint.sum::<f64>();
    }

    /// Computes the remaining work from the current estimates.
    pub(super) fn update_remaining(
        &mut self,
        job: &Job,
        flow: &DataFlow,
        typical_map: f64,
        literal: bool,
        now: Time,
    ) {
        let mean = self.map_s.or_else(|| job.mean_time(Phase::Map).map(Span::as_secs_f64));
        let mean = mean.unwrap_or(typical_map);
        self.remaining = RemainingWork {
            shuffle: remaining_shuffle(
                estimate::remaining_tasks(job, Phase::Map),
                map_rate(job, mean, now, literal),
                mean,
                literal,
            ),
            bytes: self.remaining_bytes(job, flow),
        };
    }

    /// Returns `R_left` = `R_total` - `R_done`.
    fn remaining_bytes(&self, job: &Job, flow: &DataFlow) -> f64 {
        let total = flow.input_bytes(job.id) * flow.selectivity(job.id);
        let reduces = f64::from(job.spec.reduces.max(1));
        let done = (f64::from(job.succeeded.reduce) + self.partial_progress).min(reduces);
        total * (1.0 - done / reduces)
    }
}

/// Returns the number of maps that a job finishes per second, based on running maps, or on maps
/// that are done if no map is running. With `literal`, it is the mean rate so far, as in the paper,
/// as soon as a map is done.
fn map_rate(job: &Job, mean: f64, now: Time, literal: bool) -> f64 {
    let one_at_a_time = 1.0 / mean.max(1e-6);
    let since = job.first_launch.map_or(0.0, |first| now.since(first).as_secs_f64());
    let done = f64::from(job.succeeded.map);
    let so_far = (done > 0.0 && since > 0.0).then(|| done / since);
    let running = (!job.running.map.is_empty()).then_some(job.running.map.len() as f64 * one_at_a_time);
    let rate = if literal { so_far.or(running) } else { running.or(so_far) };
    rate.unwrap_or(one_at_a_time)
}

/// Returns the fraction of its data that a reduce has reduced. The reduce stage is the last third
/// of the progress.
fn reduced_part(progress: Progress) -> f64 {
    let done = f64::from(progress.done);
    if progress.stage == Stage::Reduce { (3.0 * done - 2.0).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{
        ids::{JobId, TaskId},
        task::AttemptState,
    };
    use std::collections::BTreeSet;

    fn assert_close(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 1e-3, "{got} is not {wanted}");
    }

    #[test]
    fn remaining_shuffle_time_is_maps_left_divided_by_rate() {
        // 120 maps left, 8 at a time of 20 s each: 0.4 maps per second, so 300 s. The printed
        // formula gives 6000 s².
        assert_close(remaining_shuffle(120.0, 8.0 / 20.0, 20.0, false), 300.0);
        assert_close(remaining_shuffle(120.0, 8.0 / 20.0, 20.0, true), 6000.0);
        assert_close(remaining_shuffle(0.0, 0.0, 20.0, false), 0.0);
    }

    #[test]
    fn printed_and_projected_slack_match_values_computed_by_hand() {
        // Started 300 s ago, has run for 60 s, progress 0.5: it would take 120 s. Printed: 300 /
        // 120. Projected: (300 + 60) / 120.
        assert_close(slack(SlackForm::Printed, 300.0, 60.0, 120.0), 2.5);
        assert_close(slack(SlackForm::Projected, 300.0, 60.0, 120.0), 3.0);
        // Never paused: projected slack is always 1, printed slack is the progress.
        assert_close(slack(SlackForm::Projected, 30.0, 30.0, 120.0), 1.0);
        assert_close(slack(SlackForm::Printed, 30.0, 30.0, 120.0), 0.25);
    }

    #[test]
    fn number_of_skips_matches_the_paper() {
        // 20 nodes, 95 %: -20 ln(0.05 / 1.05) = 60.9.
        assert_close(skips_for(20.0, 0.95), 60.890);
        assert_close(skips_for(45.0, 0.95), 137.004);
    }

    #[test]
    fn jobs_rank_by_shuffle_time_then_by_data_within_the_tolerance() {
        let left = |shuffle, bytes| RemainingWork { shuffle, bytes }.rank(Span::secs(5));
        assert!(left(100.0, 1.0) > left(10.0, 1e9));
        assert!(left(3.0, 10.0) > left(4.0, 9.0));
        assert!(left(0.0, 10.0) > left(0.0, 9.0));
    }

    #[test]
    fn nearly_equal_jobs_do_not_preempt_each_other() {
        let left = |shuffle, bytes| RemainingWork { shuffle, bytes };
        let takes = |one: RemainingWork, other: RemainingWork| one.is_less_than(other, Span::secs(5));
        // 4.99 s and 5.01 s are in different steps, and small changes reverse the order. No job
        // preempts the other.
        let (small, large) = (left(5.01, 10.0), left(4.99, 20.0));
        assert!(small.rank(Span::secs(5)) > large.rank(Span::secs(5)));
        assert!(!takes(large, small) && !takes(small, large));
        assert!(takes(left(4.99, 10.0), left(5.01, 20.0)), "less of both");
        assert!(!takes(left(5.01, 20.0), left(4.99, 10.0)));
        // A difference of more than the tolerance counts.
        assert!(takes(left(4.0, 20.0), left(9.01, 10.0)) && !takes(left(4.0, 20.0), left(8.99, 10.0)));
        // Without a tolerance, as printed in the paper: only the order counts.
        let takes = |one: RemainingWork, other: RemainingWork| one.is_less_than(other, Span(0));
        assert!(takes(large, small) && takes(left(0.0, 9.0), left(0.0, 10.0)) && !takes(small, large));
    }

    #[test]
    fn service_time_of_a_paused_reduce_excludes_its_pauses() {
        let id = TaskId { job: JobId(1), phase: Phase::Reduce, index: 0 };
        let attempt = |number: u32, resumed_from: Option<u32>, launched: u64, ended: Option<u64>| Attempt {
            id: id.attempt(number),
            tracker: mrcore::ids::TrackerId(0),
            end: 0,
            resumed_from: resumed_from.map(|number| id.attempt(number)),
            checkpoint_on: None,
            prior_work: mrcore::task::Work::default(),
            output_on: mrcore::ids::TrackerId(0),
            state: if ended.is_some() { AttemptState::Paused } else { AttemptState::Running },
            launched: Time(launched * 1_000_000),
            last_order: Time(0),
            ended: ended.map(|at| Time(at * 1_000_000)),
            preempt_request: None,
            hold_requested: false,
            preempt_deadline: None,
            refusals: 0,
            work_done: None,
            fault: None,
            why: mrcore::Why::default(),
            error: None,
            stage: Stage::Shuffle,
            speculative: false,
            result: None,
        };
        // The reduce ran from 10 s to 40 s and has been running again since 100 s. At 130 s its
        // total time is 120 s, its service time is 60 s, and its progress is 0.4, so it would take
        // 150 s without pauses.
        let attempts = vec![attempt(0, None, 10, Some(40)), attempt(1, Some(0), 100, None)];
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
            interruptions: 0,
            checkpoint: None,
            saved_work: mrcore::task::Work::default(),
            on_hold: false,
            avoided_trackers: BTreeSet::new(),
        };
        let done = |attempt: &Attempt| if attempt.id.number == 0 { 0.2 } else { 0.4 };
        let (total, service, estimate) = reduce_times(&task, Time(130_000_000), done).unwrap();
        assert_close(total, 120.0);
        assert_close(service, 60.0);
        assert_close(estimate.unwrap(), 150.0);
    }
}
