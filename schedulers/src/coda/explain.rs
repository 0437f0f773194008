//! The texts of the rules, and why a job waits or gets a slot. Nothing here decides.

use super::{Coda, Precedence};
use mrcore::{
    Cluster, Phase, Span, Time, Why,
    cluster::NotPreemptible,
    ids::{JobId, TrackerId},
    job::Job,
    plan::PreemptMode,
    task::PreemptKind,
};
use std::cmp::Reverse;

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "smallest-job",
        "its job has the least remaining work of the jobs that can use the slot, about {size:s}",
    ),
    (
        "maps-end-soonest",
        "no job needs the slot at once, and the maps of its job end soonest, in about {maps_end:s}",
    ),
    ("below-min-share", "its pool has less than its minimum share; remaining work: about {size:s}"),
    (
        "beyond-fair-sharing",
        "its job takes much longer than under fair sharing, and such jobs have precedence for {share:%} of the slots",
    ),
    ("smaller-jobs-first", "the job has about {size:s} of work left[; {jobs_ahead job goes|jobs go} first]"),
    (
        "ready-jobs-first",
        "the last map of the job ends in about {maps_end:s}, and its reduces do not need slots before[; {jobs_ahead job goes|jobs go} first]",
    ),
    (
        "shares-with-overdue-jobs",
        "the job takes much longer than under fair sharing; such jobs share {share:%} of the slots[, and {jobs_ahead job goes|jobs go} first]",
    ),
    (
        "slots-not-preemptible",
        "{tasks running task keeps its slot|running tasks keep their slots} until the end, because preemption would lose work; {first_job:job} holds most of these slots",
    ),
    (
        "waits-for-faster-node",
        "its tasks would end sooner on another node than in the free slots of slow nodes; it takes one of these after {at_most:s}; {waited:s} so far",
    ),
    (
        "waits-for-checkpoint-node",
        "{tasks paused reduce waits|paused reduces wait} for the node with its checkpoint: a slot there is expected before a copy would end",
    ),
    (
        "larger-job",
        "its job has about {size:s} of work left, and the slot goes to {for_job:job}, which has {less:s}",
    ),
    (
        "waits-for-maps",
        "its job has maps for another {maps_end:s}, and the slot goes to {for_job:job}, whose maps are done or nearly done",
    ),
    ("min-share", "the slot goes to {for_job:job}, whose pool has less than its minimum share"),
    ("overdue-job", "the slot goes to {for_job:job}, which takes much longer than under fair sharing"),
    ("slow-node", "its node has {speed:%} of the usual speed, and the task ends sooner on another node"),
];

impl Coda {
    /// Returns the reason why a job gets a slot.
    pub(super) fn launch_reason(&self, id: JobId, phase: Phase, precedence: Precedence, detail: &str) -> Why {
        let (state, why) = (self.state(id), Why::rule(precedence.rule()));
        let why = if detail.is_empty() { why } else { why.with_detail(detail) };
        match precedence {
            Precedence::Overdue => why.with("share", self.settings.overdue_share),
            Precedence::MapsEndSoonest => why.with("maps_end", state.maps_end_s),
            Precedence::BelowMinShare | Precedence::LeastWork => why.with("size", state.size_for(phase)),
        }
    }

    /// Returns why a job waits.
    pub(super) fn reasons(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        if let Some(why) = self.pools.pool_of(job.id).and_then(|pool| pool.job_limit_reason(job.id)) {
            return vec![why];
        }
        let mut reasons = Vec::new();
        for phase in Phase::BOTH.into_iter().filter(|phase| self.waiting_jobs[*phase].key(job.id).is_some()) {
            let waits = self.wait_reasons(job, phase, now, cluster);
            let ahead = self.order_reason(job.id, phase, cluster);
            if waits.is_empty() || ahead.number("jobs_ahead").is_some() {
                reasons.push(ahead);
            }
            reasons.extend(waits);
            reasons.extend(self.preemption_reason(job.id, phase, cluster));
        }
        reasons
    }

    /// Returns why a job waits in the order of jobs.
    fn order_reason(&self, job: JobId, phase: Phase, cluster: &Cluster) -> Why {
        let state = self.state(job);
        let place = |id: JobId| {
            let held = cluster.job(id).map_or(0, |job| job.running[phase].len() as u32);
            (self.precedence(id, phase, held), self.state(id).rank(phase), id)
        };
        let own = place(job);
        let ahead = self.waiting_jobs[phase].iter().filter(|id| place(*id) < own).count();
        let why = if state.overdue_since.is_some() {
            Why::rule("shares-with-overdue-jobs").with("share", self.settings.overdue_share)
        } else if phase == Phase::Reduce && !state.is_ready {
            Why::rule("ready-jobs-first").with("maps_end", state.maps_end_s)
        } else {
            Why::rule("smaller-jobs-first").with("size", state.size_for(phase))
        };
        if ahead > 0 { why.with("jobs_ahead", ahead as f64) } else { why }
    }

    /// Returns which slots a job cannot get by preemption, from jobs that are not smaller.
    fn preemption_reason(&self, job: JobId, phase: Phase, cluster: &Cluster) -> Option<Why> {
        let is_lossless_only = self.settings.preempt_mode == PreemptMode::LosslessOnly;
        if !self.settings.preempts[phase]
            || !is_lossless_only
            || cluster.free_trackers(phase).next().is_some()
        {
            return None;
        }
        let is_overdue = self.state(job).overdue_since.is_some();
        let held_by = |other: &Job| {
            let running = cluster.running(other, phase);
            let kind = PreemptKind::lossless(phase);
            let is_indivisible =
                |id| matches!(cluster.may_preempt(id, kind), Err(NotPreemptible::Indivisible(_)));
            running.filter(|(attempt, _)| attempt.refusals > 0 || is_indivisible(attempt.id)).count()
        };
        let others = cluster.active_jobs().filter(|other| other.id != job);
        let others = others.filter(|other| is_overdue || self.size_rule(other.id, job, phase).is_none());
        let held: Vec<(usize, JobId)> = others.map(|other| (held_by(other), other.id)).collect();
        let (_, first) = held.iter().max_by_key(|(tasks, id)| (*tasks, Reverse(*id)))?;
        let tasks: usize = held.iter().map(|(tasks, _)| tasks).sum();
        let why = Why::rule("slots-not-preemptible").with("tasks", tasks as f64);
        (tasks > 0).then(|| why.with("first_job", f64::from(first.0)))
    }

    /// Returns which better slots a job waits for although others are free.
    fn wait_reasons(&self, job: &Job, phase: Phase, now: Time, cluster: &Cluster) -> Vec<Why> {
        let free: Vec<TrackerId> = cluster.free_trackers(phase).collect();
        if free.is_empty() {
            return Vec::new();
        }
        let limit = Span((self.remote_loss_s(job.id) * 1e6) as u64);
        let locality = self.waits.locality.reason(job, limit, now, cluster).filter(|_| phase == Phase::Map);
        let since = self.waits.slow_nodes.get(&job.id);
        let since = since.filter(|_| free.iter().any(|tracker| self.is_too_slow(job.id, phase, *tracker)));
        let slow = since.map(|since| {
            let why = Why::rule("waits-for-faster-node").with("waited", now.since(*since).as_secs_f64());
            why.with("at_most", self.longest_wait_s(job.id, phase))
        });
        let paused = self.paused.count_of(job.id);
        let waits = phase == Phase::Reduce && paused > 0 && self.settings.waits_for_checkpoint;
        let checkpoint = waits.then(|| Why::rule("waits-for-checkpoint-node").with("tasks", paused as f64));
        locality.into_iter().chain(slow).chain(checkpoint).collect()
    }
}
