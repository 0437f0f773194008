//! The lines of the protocol. docs/research/external-policies.md describes every field.

use mrcore::{
    Cluster, PerPhase, Phase, Plan, Span, Time,
    history::HistoryFact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::{Job, Priority},
    plan::Locality,
    task::{PreemptKind, Task},
    tracker::Tracker,
};
use serde::{Deserialize, Serialize, Serializer};
use std::{collections::BTreeMap, fmt::Display};

/// The version of the protocol. It is incremented when a policy for the older one would
/// misunderstand the newer one.
pub(super) const PROTOCOL: u32 = 1;

/// The first request.
#[derive(Debug, Serialize)]
pub(super) struct Hello<'a> {
    pub(super) request: u64,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) protocol: u32,
    pub(super) params: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    pub(super) environment: Environment,
}

/// The cluster and the seed of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) seed: u64,
    pub(crate) heartbeat_s: f64,
    pub(crate) preemption_timeout_s: f64,
    pub(crate) machines: Vec<MachineLine>,
}

#[derive(Debug, Serialize)]
pub(crate) struct MachineLine {
    pub(crate) tracker: String,
    pub(crate) rack: u32,
    pub(crate) map_slots: u32,
    pub(crate) reduce_slots: u32,
    pub(crate) speed: f64,
}

/// The answer to [`Hello`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HelloAnswer {
    pub(super) request: u64,
    pub(super) protocol: u32,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) tick_s: Option<f64>,
    #[serde(default)]
    pub(super) include: Vec<Include>,
}

/// A part of the view that only some policies need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Include {
    Attempts,
    Pending,
}

/// Requests the decisions of a round.
#[derive(Debug, Serialize)]
pub(super) struct RoundRequest<'a> {
    pub(super) request: u64,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) time_s: f64,
    pub(super) tracker: Option<&'a str>,
    pub(super) free: Option<PerPhase<u32>>,
    pub(super) slots: PerPhase<SlotCounts>,
    pub(super) events: Vec<EventLine>,
    pub(super) jobs: Vec<JobLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempts: Option<Vec<AttemptLine<'a>>>,
}

#[derive(Debug, Serialize)]
pub(super) struct SlotCounts {
    total: u32,
    free: u32,
}

/// Something that happened since the last request.
#[derive(Debug, Serialize)]
pub(super) struct EventLine {
    pub(super) time_s: f64,
    #[serde(serialize_with = "as_text")]
    pub(super) job: JobId,
    pub(super) fact: HistoryFact,
}

#[derive(Debug, Serialize)]
pub(super) struct JobLine<'a> {
    #[serde(serialize_with = "as_text")]
    job: JobId,
    name: &'a str,
    user: &'a str,
    queue: &'a str,
    priority: Priority,
    submitted_s: f64,
    map: PhaseLine<'a>,
    reduce: PhaseLine<'a>,
}

#[derive(Debug, Serialize)]
struct PhaseLine<'a> {
    total: usize,
    succeeded: u32,
    startable: usize,
    held: u32,
    retained: u32,
    mean_s: Option<f64>,
    next: Option<NextLine>,
    straggler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Vec<TaskLine<'a>>>,
}

/// The task that a launch on the offered tracker should start.
#[derive(Debug, Serialize)]
struct NextLine {
    #[serde(serialize_with = "as_text")]
    task: TaskId,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<Locality>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct TaskLine<'a> {
    #[serde(serialize_with = "as_text")]
    task: TaskId,
    bytes: u64,
    hosts: Vec<&'a str>,
    checkpoint_on: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub(super) struct AttemptLine<'a> {
    #[serde(serialize_with = "as_text")]
    attempt: AttemptId,
    tracker: &'a str,
    launched_s: f64,
    progress: f32,
    preempted: bool,
    lossless: bool,
    just_resumed: bool,
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The answer to a [`RoundRequest`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) request: u64,
    #[serde(default)]
    pub(super) decisions: Vec<DecisionLine>,
    #[serde(default)]
    pub(super) done: bool,
}

/// One decision: exactly one of `launch` and `preempt` is set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionLine {
    pub(super) launch: Option<String>,
    pub(super) tracker: Option<String>,
    pub(super) preempt: Option<String>,
    pub(super) how: Option<How>,
    pub(super) why: Option<String>,
}

/// How to preempt an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    Lossless,
    Split,
    Pause,
    Kill,
}

/// Returns a time in seconds of simulated time.
pub(super) fn seconds(time: Time) -> f64 {
    Span(time.0).as_secs_f64()
}

/// Returns the number of slots in the cluster.
pub(super) fn slot_counts(plan: &Plan<'_>) -> PerPhase<SlotCounts> {
    let count = |phase: Phase| SlotCounts {
        total: plan.cluster().slots(phase),
        free: plan.free_trackers(phase).map(|id| plan.free_slots(id, phase)).sum(),
    };
    PerPhase { map: count(Phase::Map), reduce: count(Phase::Reduce) }
}

/// Returns the running jobs, oldest first. `offered` is the tracker with the free slots.
pub(super) fn jobs<'a>(
    plan: &Plan<'a>,
    offered: Option<TrackerId>,
    include_pending: bool,
) -> Vec<JobLine<'a>> {
    let running = plan.cluster().active_jobs().filter(|job| job.is_running());
    let line = |job: &'a Job| JobLine {
        job: job.id,
        name: &job.spec.name,
        user: &job.spec.user,
        queue: &job.spec.queue,
        priority: job.spec.priority,
        submitted_s: seconds(job.submitted),
        map: phase_line(job, Phase::Map, plan, offered, include_pending),
        reduce: phase_line(job, Phase::Reduce, plan, offered, include_pending),
    };
    running.map(line).collect()
}

fn phase_line<'a>(
    job: &'a Job,
    phase: Phase,
    plan: &Plan<'a>,
    offered: Option<TrackerId>,
    include_pending: bool,
) -> PhaseLine<'a> {
    let cluster = plan.cluster();
    let pending = || {
        let tasks = job.pending[phase].iter().filter_map(|index| job.tasks[phase].get(index as usize));
        tasks.map(|task| task_line(task, cluster)).collect()
    };
    PhaseLine {
        total: job.tasks[phase].len(),
        succeeded: job.succeeded[phase],
        startable: plan.startable_tasks(job, phase),
        held: plan.held_slots(job, phase),
        retained: plan.retained_slots(job, phase),
        mean_s: job.mean_time(phase).map(Span::as_secs_f64),
        next: offered.and_then(|tracker| next(job, phase, tracker, plan)),
        straggler: offered
            .and_then(|tracker| plan.next_straggler(job, phase, tracker))
            .map(|task| task.to_string()),
        pending: include_pending.then(pending),
    }
}

/// Returns the task of a job that a tracker should run next.
fn next(job: &Job, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<NextLine> {
    match phase {
        Phase::Map => {
            let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
            Some(NextLine { task, locality: Some(near), checkpoint: None })
        }
        Phase::Reduce => {
            let task = plan.next_reduce(job, tracker)?;
            let checkpoint = match job.task(task).and_then(|task| task.checkpoint) {
                None => "none",
                Some(checkpoint) if checkpoint.tracker == tracker => "local",
                Some(_) => "remote",
            };
            Some(NextLine { task, locality: None, checkpoint: Some(checkpoint) })
        }
    }
}

fn task_line<'a>(task: &'a Task, cluster: &'a Cluster) -> TaskLine<'a> {
    TaskLine {
        task: task.id,
        bytes: task.bytes(),
        hosts: task.hosts.iter().map(|host| cluster.host_name(*host)).collect(),
        checkpoint_on: task.checkpoint.map(|checkpoint| name(checkpoint.tracker, cluster)),
    }
}

/// Returns the attempts that hold a slot.
pub(super) fn attempts<'a>(plan: &Plan<'a>) -> Vec<AttemptLine<'a>> {
    let cluster = plan.cluster();
    let jobs = cluster.active_jobs().filter(|job| job.is_running());
    let each = jobs.flat_map(|job| {
        Phase::BOTH.into_iter().flat_map(move |phase| cluster.running(job, phase)).map(
            |(attempt, progress)| AttemptLine {
                attempt: attempt.id,
                tracker: name(attempt.tracker, cluster),
                launched_s: seconds(attempt.launched),
                progress: progress.map_or(0.0, |progress| progress.done),
                preempted: plan.is_preempted(attempt.id),
                lossless: attempt.refusals == 0
                    && cluster.may_preempt(attempt.id, PreemptKind::lossless(attempt.id.phase())).is_ok(),
                just_resumed: plan.has_just_resumed(attempt),
            },
        )
    });
    each.collect()
}

/// Returns the name of a tracker.
pub(super) fn name(tracker: TrackerId, cluster: &Cluster) -> &str {
    cluster.tracker(tracker).map_or("", |tracker: &Tracker| tracker.name.as_str())
}
