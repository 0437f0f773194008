//! Encodes messages to trackers.

use crate::files::Files;
use daemon::config::JobTrackerConfig;
use mrcore::{
    Cluster, Phase,
    event::{NumberedOrder, Order},
    ids::{AttemptId, Incarnation, TrackerId},
    job::{JobSpec, MapEvent, Program},
    output::work_folder,
    task::PreemptKind,
};
use proto::{Message, mr as pb};

/// A message with orders ends with the order that makes it longer than this. The longest launch has
/// about 200 KiB: the settings and side files of its job are limited at submission.
const ORDERS_MESSAGE_BYTES: usize = 1 << 20;

fn message(kind: pb::to_tracker::Kind) -> pb::ToTracker {
    pb::ToTracker { kind: Some(kind) }
}

/// Returns the message that accepts a registration.
pub(crate) fn registered(
    tracker: TrackerId,
    incarnation: Incarnation,
    epoch: u64,
    settings: &JobTrackerConfig,
) -> pb::ToTracker {
    message(pb::to_tracker::Kind::Registered(pb::Registered {
        tracker: tracker.0,
        epoch,
        heartbeat_ms: settings.heartbeat.0.as_millis() as u64,
        incarnation: incarnation.0,
        lost_after_ms: settings.lost_after.0.as_millis() as u64,
    }))
}

/// Returns the message that refuses a registration or another message.
pub(crate) fn refused(why: String) -> pb::ToTracker {
    message(pb::to_tracker::Kind::Refused(why))
}

/// Returns the message that asks a tracker to register again.
pub(crate) fn register_again() -> pb::ToTracker {
    message(pb::to_tracker::Kind::RegisterAgain(pb::RegisterAgain {}))
}

/// Encodes orders with the data that the tracker needs to carry them out, as one or more messages.
/// The last message acknowledges heartbeat number `answer`.
pub(crate) fn orders(
    cluster: &Cluster,
    files: &Files,
    answer: Option<u64>,
    orders: &[NumberedOrder],
) -> Vec<pb::ToTracker> {
    let mut messages = Vec::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for (number, order) in orders {
        let Some(kind) = order_kind(cluster, files, order) else { continue };
        let order = pb::Order { number: *number, kind: Some(kind) };
        bytes += order.encoded_len();
        batch.push(order);
        if bytes >= ORDERS_MESSAGE_BYTES {
            messages.push(pb::Orders { answers: 0, orders: std::mem::take(&mut batch) });
            bytes = 0;
        }
    }
    if !batch.is_empty() || answer.is_some() {
        messages.push(pb::Orders { answers: answer.unwrap_or(0), orders: batch });
    }
    messages.into_iter().map(|orders| message(pb::to_tracker::Kind::Orders(orders))).collect()
}

/// Encodes an order. Returns None if its job is forgotten, because the order has no effect then.
fn order_kind(cluster: &Cluster, files: &Files, order: &Order) -> Option<pb::order::Kind> {
    Some(match order {
        Order::Launch(attempt) => {
            let launched = cluster.attempt(*attempt)?;
            let resumed_from = launched.resumed_from;
            // Send the address of the tracker that has the checkpoint now, because the checkpoint
            // may have been copied since the launch. If the task already has a newer checkpoint,
            // send the address of the tracker that had the older one at the launch.
            let checkpoint = cluster
                .task(attempt.task)?
                .checkpoint
                .filter(|checkpoint| Some(checkpoint.attempt) == resumed_from);
            let on = checkpoint.map(|checkpoint| checkpoint.tracker).or(launched.checkpoint_on);
            let on = on.and_then(|on| cluster.tracker(on));
            pb::order::Kind::Launch(pb::Launch {
                task: Some(task_spec(cluster, files, *attempt)?),
                resumed_from: resumed_from.map_or_else(String::new, |paused| paused.to_string()),
                resume_addr: on.map_or_else(String::new, |tracker| tracker.shuffle_addr.clone()),
            })
        }
        Order::Preempt { attempt, kind, why } => {
            let kind = match kind {
                PreemptKind::Kill => pb::PreemptKind::Kill,
                PreemptKind::Split => pb::PreemptKind::Split,
                PreemptKind::Pause => pb::PreemptKind::Pause,
            };
            let (attempt, why) = (attempt.to_string(), why.clone());
            pb::order::Kind::Preempt(pb::Preempt { attempt, why, kind: kind.into() })
        }
        Order::DropCheckpoint(attempt) => pb::order::Kind::DropCheckpoint(attempt.to_string()),
        Order::MapEvents { job, first, maps, events } => pb::order::Kind::MapEvents(pb::MapEvents {
            job: job.to_string(),
            first: *first as u64,
            events: events.iter().map(|event| map_event(cluster, *event)).collect(),
            maps: *maps,
        }),
        Order::CopyFiles { attempt, from } => {
            let spec = &cluster.job(attempt.job())?.spec;
            pb::order::Kind::Copy(pb::CopyFiles {
                attempt: attempt.to_string(),
                addr: cluster.tracker(*from)?.shuffle_addr.clone(),
                shuffle_token: spec.payload.shuffle_token.bytes().to_vec(),
                partitions: spec.reduces,
            })
        }
        Order::Clean(job) => pb::order::Kind::Clean(job.to_string()),
    })
}

fn task_spec(cluster: &Cluster, files: &Files, attempt: AttemptId) -> Option<pb::TaskSpec> {
    let job = cluster.job(attempt.job())?;
    let index = attempt.task.index;
    let input = match attempt.phase() {
        Phase::Map => {
            let task = job.task(attempt.task)?;
            let split = job.spec.splits.get(task.root as usize)?;
            pb::task_spec::Input::Split(pb::Split {
                source: split.source.clone(),
                start: task.start,
                end: task.end,
                whole: job.spec.payload.whole_files,
                file_id: split.pin.file,
                file_length: split.pin.length,
            })
        }
        Phase::Reduce => {
            pb::task_spec::Input::Partition(pb::Partition { index, maps: job.tasks.map.len() as u32 })
        }
    };
    Some(pb::TaskSpec {
        attempt: attempt.to_string(),
        job_name: job.spec.name.clone(),
        user: job.spec.user.clone(),
        program: Some(program(&job.spec)),
        conf: job.spec.conf.clone().into_iter().collect(),
        input: Some(input),
        reduces: job.spec.reduces,
        work_output: work_folder(job, attempt),
        namenodes: files.namenodes().to_vec(),
        shuffle_token: job.spec.payload.shuffle_token.bytes().to_vec(),
        token: files.task_token(job),
    })
}

fn program(spec: &JobSpec) -> pb::Program {
    let kind = match spec.program.clone() {
        Program::Builtin(name) => pb::program::Kind::Builtin(name),
        Program::Executable(path) => pb::program::Kind::Executable(path),
    };
    pb::Program { kind: Some(kind), files: spec.payload.files.clone(), settings: Vec::new() }
}

fn map_event(cluster: &Cluster, event: MapEvent) -> pb::MapEvent {
    let kind = match event {
        MapEvent::Available(attempt, on) => {
            let (at, task) = (cluster.tracker(on), cluster.task(attempt.task));
            pb::map_event::Kind::Available(pb::MapAvailable {
                attempt: attempt.to_string(),
                tracker: at.map_or_else(String::new, |tracker| tracker.name.clone()),
                shuffle_addr: at.map_or_else(String::new, |tracker| tracker.shuffle_addr.clone()),
                local_path: String::new(),
                root: task.map_or(0, |task| task.root),
                start: task.map_or(0, |task| task.start),
            })
        }
        MapEvent::Withdrawn(attempt) => pb::map_event::Kind::Withdrawn(attempt.to_string()),
    };
    pb::MapEvent { kind: Some(kind) }
}
