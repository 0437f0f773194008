//! Converts between messages of the JobTracker and the events and actions of the agent. Data that
//! the agent only passes on is not converted.

use agent::{AttemptStatus, DriverTypes, FetchFailure, Heartbeat};
use prost::Message;
use proto::mr::{
    self, AttemptReport, CheckpointInfo, FromTracker, MapEvent, Progress, RegisterTracker, SplitEnd,
    StoredCheckpoint, TaskResult, TaskSpec, ToTracker, attempt_report, from_tracker, order, to_tracker,
};
use std::fmt;
use types::{AttemptId, JobId, PerPhase, PreemptKind, Secret, Span, ids::Incarnation};

/// The types of the data that the agent passes on: protobuf messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Messages;

impl DriverTypes for Messages {
    type Launch = Launch;
    type Source = CopySource;
    type Progress = Progress;
    type Result = TaskResult;
    type Checkpoint = CheckpointInfo;
    type MapEvent = MapEvent;

    fn no_progress(_: AttemptId) -> Progress {
        Progress::default()
    }
    fn progress_bytes(progress: &Progress) -> usize {
        progress.encoded_len()
    }
    fn result_bytes(result: &TaskResult) -> usize {
        result.encoded_len()
    }
    fn checkpoint_bytes(info: &CheckpointInfo) -> usize {
        info.encoded_len()
    }
    fn clear_text(progress: &mut Progress) {
        progress.status.clear();
    }
}

pub(crate) type Agent = agent::Agent<Messages>;
pub(crate) type Event = agent::Event<Messages>;
pub(crate) type Action = agent::Action<Messages>;
pub(crate) type AttemptEnd = agent::AttemptEnd<Messages>;
pub(crate) type MapEventBatch = agent::MapEventBatch<Messages>;
pub(crate) type Copied = agent::Copied<Messages>;
type Order = agent::Order<Messages>;

/// An attempt to run.
#[derive(Clone, PartialEq)]
pub(crate) struct Launch {
    pub(crate) spec: Box<TaskSpec>,
    /// The checkpoint to resume from, if any.
    pub(crate) resume_from: Option<CheckpointSource>,
}

/// Does not print the tokens of the attempt.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, resume_from } = self;
        f.debug_struct("Launch").field("attempt", &spec.attempt).field("resume_from", resume_from).finish()
    }
}

/// Location of the checkpoint that an attempt resumes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointSource {
    /// Attempt that made the checkpoint.
    pub(crate) attempt: AttemptId,
    /// Shuffle address of the tracker that has the checkpoint.
    pub(crate) addr: String,
}

/// Location of files to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopySource {
    /// Shuffle address of the tracker that has the files.
    pub(crate) addr: String,
    /// Shuffle token of the job, with which the files are fetched and later served here.
    pub(crate) token: Secret,
    /// Number of partitions of the job.
    pub(crate) partitions: u32,
}

/// The identity with which this tracker registers at the JobTracker.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Name of the tracker.
    pub(crate) name: String,
    /// Number of this start on this machine. It is used in the marks of processes and in the names
    /// of control groups. The JobTracker does not use it; it assigns an incarnation itself.
    pub(crate) start: u64,
    /// Host name, the same as the DataNode of this node registers.
    pub(crate) host: String,
    /// Rack of the node.
    pub(crate) rack: String,
    /// Address of the shuffle server.
    pub(crate) shuffle_addr: String,
    /// Address of the log server.
    pub(crate) logs_addr: String,
    /// Maximum number of concurrent attempts.
    pub(crate) slots: PerPhase<u32>,
}

/// Builds a registration.
pub(crate) fn register(
    identity: &Identity,
    incarnation: Incarnation,
    attempts: Vec<agent::AttemptReport<Messages>>,
    outputs: &[AttemptId],
    checkpoints: Vec<(AttemptId, CheckpointInfo)>,
    jobs: &[JobId],
) -> FromTracker {
    let register = RegisterTracker {
        name: identity.name.clone(),
        incarnation: incarnation.0,
        host: identity.host.clone(),
        rack: identity.rack.clone(),
        shuffle_addr: identity.shuffle_addr.clone(),
        logs_addr: identity.logs_addr.clone(),
        map_slots: identity.slots.map,
        reduce_slots: identity.slots.reduce,
        attempts: attempts.into_iter().map(attempt_report).collect(),
        outputs: outputs.iter().map(AttemptId::to_string).collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: proto::TRACKER_PROTOCOL,
        checkpoints: checkpoints.into_iter().map(stored_checkpoint).collect(),
        jobs: jobs.iter().map(JobId::to_string).collect(),
    };
    FromTracker { kind: Some(from_tracker::Kind::Register(register)) }
}

fn stored_checkpoint((attempt, info): (AttemptId, CheckpointInfo)) -> StoredCheckpoint {
    StoredCheckpoint { attempt: attempt.to_string(), state: Some(info) }
}

/// Builds a heartbeat.
pub(crate) fn heartbeat(heartbeat: Heartbeat<Messages>) -> FromTracker {
    let Heartbeat { seq, acked, attempts, fetch_failures } = heartbeat;
    let failure = |failure: FetchFailure| mr::FetchFailure {
        reduce: failure.reduce.to_string(),
        map: failure.map.to_string(),
        addr: failure.addr,
    };
    let heartbeat = mr::Heartbeat {
        seq,
        acked,
        attempts: attempts.into_iter().map(attempt_report).collect(),
        fetch_failures: fetch_failures.into_iter().map(failure).collect(),
    };
    FromTracker { kind: Some(from_tracker::Kind::Heartbeat(heartbeat)) }
}

fn attempt_report(report: agent::AttemptReport<Messages>) -> AttemptReport {
    let status = match report.status {
        AttemptStatus::Running(progress) => attempt_report::Status::Running(progress),
        AttemptStatus::Ended(AttemptEnd::Succeeded { result, .. }) => match result.position {
            Some(position) => attempt_report::Status::Split(SplitEnd { position, result: Some(result) }),
            None => attempt_report::Status::Succeeded(result),
        },
        AttemptStatus::Ended(AttemptEnd::Paused(info)) => attempt_report::Status::Paused(info),
        AttemptStatus::Ended(AttemptEnd::CheckpointCorrupt(why)) => {
            attempt_report::Status::CheckpointCorrupt(why)
        }
        AttemptStatus::Ended(AttemptEnd::CheckpointUnreachable(why)) => {
            attempt_report::Status::CheckpointUnreachable(why)
        }
        AttemptStatus::Ended(AttemptEnd::Failed(error)) => attempt_report::Status::Failed(error),
        AttemptStatus::Ended(AttemptEnd::Fatal(error)) => attempt_report::Status::Fatal(error),
        AttemptStatus::Ended(AttemptEnd::Killed(why)) => attempt_report::Status::Killed(why),
        AttemptStatus::Copied(Ok(bytes)) => attempt_report::Status::Copied(bytes),
        AttemptStatus::Copied(Err(why)) => attempt_report::Status::CopyFailed(why),
    };
    AttemptReport { attempt: report.attempt.to_string(), status: Some(status) }
}

/// Converts a message of the JobTracker. Returns `None` if this build does not know the kind of the
/// message.
pub(crate) fn event(message: ToTracker) -> Option<Event> {
    Some(match message.kind? {
        to_tracker::Kind::Registered(registered) => {
            let ms = if registered.heartbeat_ms == 0 { 1000 } else { registered.heartbeat_ms };
            Event::Registered {
                heartbeat: Span::millis(ms),
                lost_after: Span::millis(registered.lost_after_ms),
                incarnation: Incarnation(registered.incarnation),
            }
        }
        to_tracker::Kind::Refused(why) => Event::Refused(why),
        to_tracker::Kind::RegisterAgain(_) => Event::RegisterAgain,
        to_tracker::Kind::Orders(orders) => Event::Orders {
            answers: orders.answers,
            orders: orders
                .orders
                .into_iter()
                .map(|order| (order.number, order_or_unknown(order.kind)))
                .collect(),
        },
    })
}

/// Converts an order. An invalid order is logged and becomes [`Order::Unknown`].
fn order_or_unknown(kind: Option<order::Kind>) -> Order {
    order_from(kind).unwrap_or_else(|why| {
        tracing::warn!(why, "skipped an invalid order");
        Order::Unknown
    })
}

fn order_from(kind: Option<order::Kind>) -> Result<Order, String> {
    let attempt_id = |text: &str| text.parse::<AttemptId>().map_err(|error| error.to_string());
    Ok(match kind.ok_or("the order is empty, or comes from a newer JobTracker")? {
        order::Kind::Launch(launch) => {
            let spec = launch.task.ok_or("the launch order has no task")?;
            let resumed_from = Some(launch.resumed_from).filter(|paused| !paused.is_empty());
            let source = |paused: String| {
                Ok::<_, String>(CheckpointSource { attempt: attempt_id(&paused)?, addr: launch.resume_addr })
            };
            let (attempt, resume_from) = (attempt_id(&spec.attempt)?, resumed_from.map(source).transpose()?);
            Order::Launch(attempt, Launch { spec: Box::new(spec), resume_from })
        }
        order::Kind::Preempt(preempt) => {
            let kind = match preempt.kind() {
                mr::PreemptKind::Unspecified => return Err("the kind of the preemption is unknown".into()),
                mr::PreemptKind::Kill => PreemptKind::Kill,
                mr::PreemptKind::Split => PreemptKind::Split,
                mr::PreemptKind::Pause => PreemptKind::Pause,
            };
            Order::Preempt(attempt_id(&preempt.attempt)?, kind, preempt.why)
        }
        order::Kind::MapEvents(mr::MapEvents { job, first, events, maps }) => {
            let job = job.parse().map_err(|error| format!("{error}"))?;
            Order::MapEvents(job, MapEventBatch { first, events, maps })
        }
        order::Kind::DropCheckpoint(attempt) => Order::DropCheckpoint(attempt_id(&attempt)?),
        order::Kind::Copy(mr::CopyFiles { attempt, addr, shuffle_token: token, partitions }) => {
            Order::CopyFiles(
                attempt_id(&attempt)?,
                CopySource { addr, token: Secret::new(token), partitions },
            )
        }
        order::Kind::Clean(job) => Order::Clean(job.parse().map_err(|error| format!("{error}"))?),
    })
}

/// Converts the kind of a preemption for a message to a task.
pub(crate) fn preempt_kind(kind: PreemptKind) -> mr::PreemptKind {
    match kind {
        PreemptKind::Kill => mr::PreemptKind::Kill,
        PreemptKind::Split => mr::PreemptKind::Split,
        PreemptKind::Pause => mr::PreemptKind::Pause,
    }
}
