//! Encodes the state of jobs, tasks and trackers for clients.

use super::inbound::TaskSelection;
use mrcore::{
    Cluster, JobTracker, Phase, Span, Time,
    job::{Job, Preemption},
    plan::Locality,
    speed::Throughput,
    task::{Attempt, AttemptState, Stage, Task},
    tracker::{Tracker, TrackerState},
};
use mrlib_api::limits::truncate_failure_to;
use proto::{Message, mr as pb};
use security::Identity;

/// Maximum number of tasks in a page.
const TASKS_PER_PAGE: usize = 1000;
/// A page ends with the task that makes it longer than this.
const PAGE_BYTES: usize = 1 << 20;
/// In the pages of a job with more tasks than this, error texts are cut to [`PAGE_ERROR_BYTES`].
const FULL_ERRORS_TASKS_MAX: usize = 100;
/// Length limit of an error text in the pages of a large job.
const PAGE_ERROR_BYTES: usize = 512;
/// Maximum number of inputs of each job in the list of jobs.
const LISTED_INPUTS_MAX: usize = 3;
/// Maximum bytes of the inputs of each job in the list of jobs.
const LISTED_INPUTS_BYTES_MAX: usize = 1 << 10;

pub(super) fn ms(at: Time) -> u64 {
    at.0 / 1000
}

fn ms_or_0(at: Option<Time>) -> u64 {
    at.map_or(0, ms)
}

/// Removes from the status of a job what the caller may not see. Only the owner and admins see its
/// paths, its counters and why it failed, because that text comes from its tasks. Other users see
/// its name, its owner and its progress.
pub(crate) fn visible_to(who: &Identity, mut status: pb::JobStatus) -> pb::JobStatus {
    if !who.owns(&status.user) {
        status.partial = true;
        status.counters.clear();
        status.inputs.clear();
        status.more_inputs = 0;
        status.output.clear();
        if !status.why.is_empty() {
            status.why = format!("visible to {} and admins only", status.user);
        }
    }
    status
}

/// Returns the first inputs of a job, as many as the list of jobs shows.
fn listed_inputs(inputs: &[String]) -> &[String] {
    let mut bytes = 0;
    let fits = |input: &&String| {
        bytes += input.len();
        bytes <= LISTED_INPUTS_BYTES_MAX
    };
    let count = inputs.iter().take(LISTED_INPUTS_MAX).take_while(fits).count();
    &inputs[..count]
}

/// Encodes the status of a job; for a list of jobs, without counters and with the first inputs only.
pub(crate) fn job_status(cluster: &Cluster, job: &Job, for_list: bool) -> pb::JobStatus {
    let (state, why) = job.state.name_and_reason();
    let all_inputs = &job.spec.payload.inputs;
    let inputs = if for_list { listed_inputs(all_inputs) } else { all_inputs };
    let (local_maps, rack_maps) = count_local_maps(cluster, job);
    pb::JobStatus {
        job: job.id.to_string(),
        name: job.spec.name.clone(),
        user: job.spec.user.clone(),
        queue: job.spec.queue.clone(),
        priority: job.spec.priority.to_string(),
        program: job.spec.program.name().to_owned(),
        state: state.into(),
        why: why.into(),
        submitted_ms: ms(job.submitted),
        started_ms: ms_or_0(job.first_launch),
        ended_ms: ms_or_0(job.ended),
        maps: Some(phase_status(cluster, job, Phase::Map)),
        reduces: Some(phase_status(cluster, job, Phase::Reduce)),
        counters: job.counters.clone().into_iter().filter(|_| !for_list).collect(),
        output: job.spec.output.clone(),
        inputs: inputs.to_vec(),
        more_inputs: (all_inputs.len() - inputs.len()) as u32,
        local_maps,
        rack_maps,
        preemption: Some(preemption_stats(&job.preemption)),
        partial: false,
    }
}

fn preemption_stats(stats: &Preemption) -> pb::Preemption {
    let ms = |span: Span| span.0 / 1000;
    pb::Preemption {
        splits: stats.splits,
        pauses: stats.pauses,
        resumes: stats.resumes,
        migrations: stats.migrations,
        kills: stats.kills,
        checkpoints_lost: stats.checkpoints_lost,
        bytes_saved: stats.bytes_saved,
        ms_saved: ms(stats.time_saved),
        bytes_lost: stats.bytes_lost,
        ms_lost: ms(stats.time_lost),
        checkpoint_bytes: stats.checkpoint_bytes,
        latency_ms: ms(stats.latency),
    }
}

/// Returns the attempt whose result counts, or else the first attempt that may still succeed.
fn current_attempt(task: &Task) -> Option<&Attempt> {
    task.winning_attempt().or_else(|| task.viable_attempts().next())
}

/// Counts the node-local and the rack-local maps of a job.
fn count_local_maps(cluster: &Cluster, job: &Job) -> (u64, u64) {
    let (mut local, mut rack) = (0, 0);
    for task in &job.tasks.map {
        let on = current_attempt(task).and_then(|attempt| cluster.tracker(attempt.tracker));
        match on.map(|tracker| cluster.locality(task, tracker)) {
            Some(Locality::NodeLocal) => local += 1,
            Some(Locality::RackLocal) => rack += 1,
            Some(Locality::OffRack) | None => {}
        }
    }
    (local, rack)
}

fn phase_status(cluster: &Cluster, job: &Job, phase: Phase) -> pb::PhaseStatus {
    let (tasks, reports) = (&job.tasks[phase], cluster.reports(job.id, phase));
    let count = |state: AttemptState| {
        let attempts = tasks.iter().flat_map(|task| &task.attempts);
        attempts.filter(|attempt| attempt.state == state).count() as u32
    };
    let done = |task: &Task| {
        // The progress of the attempt that saved the checkpoint counts, because it is not lost.
        let checkpoint =
            task.checkpoint.and_then(|checkpoint| task.attempts.get(checkpoint.attempt.number as usize));
        let known =
            task.viable_attempts().chain(checkpoint).map(|attempt| f64::from(reports.progress(attempt).done));
        let furthest = known.fold(0.0, f64::max);
        if task.is_done() { 1.0 } else { furthest }
    };
    let progress =
        if tasks.is_empty() { 1.0 } else { tasks.iter().map(done).sum::<f64>() / tasks.len() as f64 };
    pb::PhaseStatus {
        total: tasks.len() as u32,
        pending: job.pending[phase].len() as u32,
        running: tasks
            .iter()
            .filter(|task| !task.is_done() && task.viable_attempts().next().is_some())
            .count() as u32,
        done: job.succeeded[phase],
        failed_attempts: count(AttemptState::Failed),
        killed_attempts: count(AttemptState::Killed),
        progress,
        paused: tasks.iter().filter(|task| job.task_state(task) == "paused").count() as u32,
    }
}

/// Encodes the selected tasks of a job: a single task, or a page of tasks, maps first. Pages are
/// small because events wait for the lock while a page is built.
pub(crate) fn task_statuses(cluster: &Cluster, job: &Job, which: TaskSelection) -> pb::TasksReply {
    let after = match which {
        TaskSelection::Only(id) => {
            let task = job.task(id).map(|task| task_status(cluster, job, task, usize::MAX));
            return pb::TasksReply { tasks: task.into_iter().collect(), more: false };
        }
        TaskSelection::After(after) => after,
    };
    let tasks = Phase::BOTH.into_iter().flat_map(|phase| {
        let last_seen = after.filter(|after| after.phase >= phase);
        let skipped = last_seen
            .map_or(0, |after| if after.phase > phase { usize::MAX } else { after.index as usize + 1 });
        job.tasks[phase].get(skipped..).unwrap_or_default()
    });
    let is_large = job.tasks.map.len() + job.tasks.reduce.len() > FULL_ERRORS_TASKS_MAX;
    let error_bytes_max = if is_large { PAGE_ERROR_BYTES } else { usize::MAX };
    let (mut page, mut bytes) = (Vec::new(), 0);
    for task in tasks {
        if page.len() == TASKS_PER_PAGE || bytes > PAGE_BYTES {
            return pb::TasksReply { tasks: page, more: true };
        }
        let status = task_status(cluster, job, task, error_bytes_max);
        bytes += status.encoded_len();
        page.push(status);
    }
    pb::TasksReply { tasks: page, more: false }
}

/// Encodes a task. Error texts are cut to `error_bytes_max`.
fn task_status(cluster: &Cluster, job: &Job, task: &Task, error_bytes_max: usize) -> pb::TaskStatus {
    let state = job.task_state(task);
    let on = task.checkpoint.and_then(|checkpoint| cluster.tracker(checkpoint.tracker));
    let split = job.spec.splits.get(task.root as usize).filter(|_| task.id.phase == Phase::Map);
    pb::TaskStatus {
        task: task.id.to_string(),
        state: state.into(),
        source: split.map_or_else(String::new, |split| split.source.clone()),
        start: task.start,
        end: task.end,
        attempts: task
            .attempts
            .iter()
            .map(|attempt| attempt_info(cluster, task, attempt, error_bytes_max))
            .collect(),
        root: task.root,
        on_hold: task.on_hold,
        paused: task.checkpoint.map_or_else(String::new, |checkpoint| checkpoint.attempt.to_string()),
        paused_on: on.map_or_else(String::new, |tracker| tracker.name.clone()),
        paused_bytes: task.checkpoint.map_or(0, |checkpoint| checkpoint.bytes),
    }
}

/// Returns the progress of an attempt and its stage. A resumed attempt has at least the progress of
/// its checkpoint, although it reports less until it has read the checkpoint.
fn progress(cluster: &Cluster, task: &Task, attempt: &Attempt) -> (f64, Stage) {
    let from = |attempt: &&Attempt| task.attempts.get(attempt.resumed_from?.number as usize);
    let reports = std::iter::successors(Some(attempt), from).map(|attempt| cluster.progress(attempt));
    reports.fold((0.0, Stage::Map), |(done, stage), report| {
        (f64::from(report.done).max(done), report.stage.max(stage))
    })
}

fn attempt_info(
    cluster: &Cluster,
    task: &Task,
    attempt: &Attempt,
    error_bytes_max: usize,
) -> pb::AttemptInfo {
    let (done, stage) = progress(cluster, task, attempt);
    let on = cluster.tracker(attempt.tracker);
    let locality = on.filter(|_| task.id.phase == Phase::Map).map(|tracker| cluster.locality(task, tracker));
    let counters = attempt.result.iter().flat_map(|result| &result.counters);
    let error = attempt.error.clone().unwrap_or_default();
    pb::AttemptInfo {
        attempt: attempt.id.to_string(),
        tracker: on.map_or_else(String::new, |tracker| tracker.name.clone()),
        logs_addr: on.map_or_else(String::new, |tracker| tracker.logs_addr.clone()),
        state: match attempt.state {
            AttemptState::Running if !cluster.has_started(attempt) => "launching",
            AttemptState::Running => "running",
            AttemptState::Splitting => "splitting",
            AttemptState::Pausing => "pausing",
            AttemptState::Paused => "paused",
            AttemptState::Killing => "stopping",
            AttemptState::Succeeded => "succeeded",
            AttemptState::Failed => "failed",
            AttemptState::Killed => "killed",
        }
        .into(),
        progress: done,
        stage: stage.to_string(),
        launched_ms: ms(attempt.launched),
        ended_ms: ms_or_0(attempt.ended),
        speculative: attempt.speculative,
        locality: locality.map_or_else(String::new, |locality| locality.to_string()),
        why: attempt.why.to_string(),
        error: truncate_failure_to(error, error_bytes_max),
        counters: counters.cloned().collect(),
        resumed_from: attempt.resumed_from.map_or_else(String::new, |paused| paused.to_string()),
        preempt_kind: attempt.preempt_request.map_or_else(String::new, |(kind, _)| kind.to_string()),
        preempted_ms: ms_or_0(attempt.preempt_request.map(|(_, at)| at)),
        output_lost_on: output_lost_on(cluster, attempt).unwrap_or_default(),
    }
}

/// Returns the tracker that had the output of a map when it was lost.
fn output_lost_on(cluster: &Cluster, attempt: &Attempt) -> Option<String> {
    let is_lost = attempt.state == AttemptState::Succeeded && attempt.result.is_none();
    Some(cluster.tracker(attempt.output_on).filter(|_| is_lost)?.name.clone())
}

fn tracker_state(core: &JobTracker, tracker: &Tracker) -> &'static str {
    match tracker.state {
        TrackerState::Live if tracker.drain.is_none() => "live",
        TrackerState::Live if core.drain_status(tracker.id).is_empty() => "drained",
        TrackerState::Live => "draining",
        TrackerState::Suspect => "suspect",
        TrackerState::Awaited => "awaited",
        TrackerState::Lost => "lost",
    }
}

/// Encodes the progress of a drain.
pub(crate) fn drain_status(core: &JobTracker, tracker: &Tracker) -> pb::DrainTrackerReply {
    let status = core.drain_status(tracker.id);
    let (by, _, cost) = status.drain.unwrap_or_default();
    pb::DrainTrackerReply {
        state: tracker_state(core, tracker).into(),
        maps_running: status.running.map,
        reduces_running: status.running.reduce,
        outputs: status.outputs.0,
        output_bytes: status.outputs.1,
        checkpoints: status.checkpoints.0,
        checkpoint_bytes: status.checkpoints.1,
        others: status.others,
        by,
        cost: Some(pb::DrainCost {
            splits: cost.splits,
            pauses: cost.pauses,
            kills: cost.kills,
            ms_lost: cost.time_lost.0 / 1000,
            outputs: cost.outputs,
            output_bytes: cost.output_bytes,
            checkpoints: cost.checkpoints,
            checkpoint_bytes: cost.checkpoint_bytes,
            redone: cost.redone,
        }),
    }
}

pub(crate) fn tracker_infos(core: &JobTracker, now: Time) -> Vec<pb::TrackerInfo> {
    let cluster = core.cluster();
    let throughput = |throughput: Throughput| pb::Throughput {
        attempts: throughput.attempts,
        bytes_per_second: throughput.rate().unwrap_or(0.0),
        speed: throughput.speed().unwrap_or(0.0),
    };
    let info = |tracker: &Tracker| pb::TrackerInfo {
        name: tracker.name.clone(),
        host: cluster.host_name(tracker.host).to_owned(),
        rack: cluster.rack_name(tracker.rack).to_owned(),
        state: tracker_state(core, tracker).into(),
        map_slots: tracker.slots.map,
        reduce_slots: tracker.slots.reduce,
        maps_running: tracker.running.map.len() as u32,
        reduces_running: tracker.running.reduce.len() as u32,
        last_heartbeat_ms_ago: now.since(cluster.last_seen(tracker.id)).0 / 1000,
        maps: Some(throughput(core.throughput(tracker.id).map)),
        reduces: Some(throughput(core.throughput(tracker.id).reduce)),
    };
    cluster.trackers().map(info).collect()
}
