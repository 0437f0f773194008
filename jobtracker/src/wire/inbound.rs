//! Decodes messages and checks them.

use crate::error::Refusal;
use daemon::config::SLOTS_MAX;
use dfs_client::path::DfsPath;
use mrcore::{
    PerPhase, Phase, Span,
    event::{AttemptReport, AttemptStatus, FetchFailure, Heartbeat, Registration},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{Priority, Program},
    task::{self, AttemptResult, PreemptKind, Progress, Stage},
};
use mrlib_api::{
    limits::{check_counters, check_pieces, truncate_failure_to},
    settings,
};
use proto::{TRACKER_PROTOCOL, mr as pb};
use schedulers::explain::Subject;
use security::Identity;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Length limit for the names of jobs, programs, queues and nodes.
const NAME_BYTES_MAX: usize = 256;
/// Length limit for the names of machines and racks, the same as for DNS names.
const NODE_NAME_BYTES_MAX: usize = 253;
/// Maximum bytes of the names and values of the settings of a job. Each launch contains them.
const CONF_BYTES_MAX: usize = 128 << 10;
/// Maximum bytes of the paths of the side files of a job. Each launch contains them.
const FILES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of inputs of a job.
const INPUTS_MAX: usize = 100_000;
/// Maximum bytes of the inputs of a job. The JobTracker keeps them as long as the job.
const INPUTS_BYTES_MAX: usize = 1 << 20;
/// Length limit for the error text of an attempt. The beginning of the text, which has the cause,
/// and its last part are kept.
const ERROR_BYTES_MAX: usize = 4 << 10;
/// Larger numbers of bytes in the report of an attempt are reduced to this one, 16 TiB. The core
/// adds the numbers of all attempts.
const REPORTED_BYTES_MAX: u64 = 1 << 44;

/// Returns the name if it is neither empty nor too long and has no control characters. `what` says
/// what it is the name of.
fn check_name(what: &str, text: String) -> Result<String, Refusal> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let message = format!("{what} must have 1 to {NAME_BYTES_MAX} bytes and no control character");
        return Err(Refusal::invalid(message));
    }
    Ok(text)
}

fn or_if_empty(text: String, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text }
}

/// Returns the caller, as authenticated by the gate (the security layer before every service).
pub(crate) fn caller<M>(request: &tonic::Request<M>) -> Result<Identity, Refusal> {
    Identity::of(request.extensions()).cloned().map_err(|status| Refusal::denied(status.message()))
}

fn caller_name<M>(request: &tonic::Request<M>) -> Result<String, Refusal> {
    Ok(caller(request)?.name.as_ref().into())
}

fn request_id(bytes: &[u8], by: &str) -> Result<RequestId, Refusal> {
    let id = <[u8; 16]>::try_from(bytes)
        .map_err(|_| Refusal::invalid(format!("request_id has {} bytes: it must have 16", bytes.len())))?;
    Ok(RequestId(security::request_id_of(by, id)))
}

pub(crate) fn job_id(text: &str) -> Result<JobId, Refusal> {
    text.parse().map_err(|error: mrcore::ids::IdError| Refusal::invalid(error.to_string()))
}

/// The tasks of a job that a client requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskSelection {
    /// A page of the tasks that follow this task, or the first page.
    After(Option<TaskId>),
    /// A single task.
    Only(TaskId),
}

/// Decodes which tasks of which job a client requests.
pub(crate) fn tasks(request: &pb::TasksRequest) -> Result<(JobId, TaskSelection), Refusal> {
    let task = |text: &str| {
        let task = Some(text).filter(|text| !text.is_empty()).map(str::parse::<TaskId>).transpose();
        task.map_err(|error| Refusal::invalid(error.to_string()))
    };
    let which = match task(&request.only)? {
        Some(only) => TaskSelection::Only(only),
        None => TaskSelection::After(task(&request.after)?),
    };
    Ok((job_id(&request.job)?, which))
}

/// Parses the ID of a job, a task or an attempt. An attempt stands for its task.
pub(crate) fn subject(text: &str) -> Result<Subject, Refusal> {
    text.parse().or_else(|_| job_id(text).map(Subject::Job))
}

/// Decodes the request to kill a job. Returns the request ID, the job and the user.
pub(crate) fn kill(request: tonic::Request<pb::KillRequest>) -> Result<(RequestId, JobId, String), Refusal> {
    let by = caller_name(&request)?;
    let pb::KillRequest { request_id: id, job } = request.into_inner();
    Ok((request_id(&id, &by)?, job_id(&job)?, by))
}

/// Decodes the request to preempt an attempt. Returns the request ID, the attempt, the kind and the
/// user.
pub(crate) fn preempt(
    request: tonic::Request<pb::PreemptRequest>,
) -> Result<(RequestId, AttemptId, PreemptKind, String), Refusal> {
    let by = caller_name(&request)?;
    let message = request.into_inner();
    let kind = match message.kind() {
        pb::PreemptKind::Unspecified => {
            return Err(Refusal::invalid(
                "the kind of preemption is missing or unknown to this JobTracker: use mrctl of the same version",
            ));
        }
        pb::PreemptKind::Kill => PreemptKind::Kill,
        pb::PreemptKind::Split => PreemptKind::Split,
        pb::PreemptKind::Pause => PreemptKind::Pause,
    };
    let attempt = attempt_id(&message.attempt).map_err(Refusal::invalid)?;
    Ok((request_id(&message.request_id, &by)?, attempt, kind, by))
}

/// Decodes the request to resume a task. Returns the request ID, the task, the tracker and the
/// user.
pub(crate) fn resume(
    request: tonic::Request<pb::ResumeRequest>,
) -> Result<(RequestId, TaskId, Option<String>, String), Refusal> {
    let by = caller_name(&request)?;
    let pb::ResumeRequest { request_id: id, task, on } = request.into_inner();
    let task = task.parse().map_err(|error: mrcore::ids::IdError| Refusal::invalid(error.to_string()))?;
    Ok((request_id(&id, &by)?, task, Some(on).filter(|on| !on.is_empty()), by))
}

/// A request to drain a tracker, or to cancel its drain.
pub(crate) struct DrainRequest {
    pub(crate) request: RequestId,
    pub(crate) node: String,
    /// Time limit for the drain; None to cancel the drain.
    pub(crate) within: Option<Span>,
    /// Whether the request only asks for the status of the drain.
    pub(crate) status_only: bool,
    pub(crate) by: String,
}

pub(crate) fn drain(request: tonic::Request<pb::DrainTrackerRequest>) -> Result<DrainRequest, Refusal> {
    let by = caller_name(&request)?;
    let pb::DrainTrackerRequest { request_id: id, node, cancel, within_ms, status_only } =
        request.into_inner();
    let (node, within) = (check_name("node", node)?, (!cancel).then(|| Span::millis(within_ms)));
    Ok(DrainRequest { request: request_id(&id, &by)?, node, within, status_only, by })
}

/// Decodes the request to forget a lost tracker. Returns the request ID, the node and the user.
pub(crate) fn forget(
    request: tonic::Request<pb::ForgetNodeRequest>,
) -> Result<(RequestId, String, String), Refusal> {
    let by = caller_name(&request)?;
    let pb::ForgetNodeRequest { request_id: id, node } = request.into_inner();
    Ok((request_id(&id, &by)?, check_name("node", node)?, by))
}

/// A decoded submission.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Submission {
    pub(crate) request: RequestId,
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) queue: String,
    pub(crate) priority: Priority,
    pub(crate) program: Program,
    pub(crate) files: Vec<String>,
    /// Names of the settings that the executable declares.
    pub(crate) declared: Vec<String>,
    pub(crate) inputs: Vec<String>,
    /// Empty for a job without output.
    pub(crate) output: String,
    pub(crate) reduces: u32,
    pub(crate) conf: BTreeMap<String, String>,
    /// The staging folder; empty for none.
    pub(crate) staging: String,
    /// Whether an executable is divisible.
    pub(crate) divisible: bool,
}

pub(crate) fn submission(request: tonic::Request<pb::SubmitRequest>) -> Result<Submission, Refusal> {
    let user = caller_name(&request)?;
    let message = request.into_inner();
    let pb::Program { kind, files, settings: declared } = message.program.unwrap_or_default();
    let program = match kind {
        Some(pb::program::Kind::Builtin(name)) => Program::Builtin(check_name("program name", name)?),
        Some(pb::program::Kind::Executable(path)) => Program::Executable(path),
        None => return Err(Refusal::invalid("job has no program: name a built-in one or an executable")),
    };
    let default_name = match &program {
        Program::Builtin(name) => name.clone(),
        Program::Executable(path) => path.rsplit('/').next().unwrap_or_default().to_owned(),
    };
    check_lengths(&message.inputs, &files, &message.conf)?;
    if declared.len() > settings::DECLARED_MAX {
        let (count, max) = (declared.len(), settings::DECLARED_MAX);
        return Err(Refusal::invalid(format!("program declares {count} settings: the maximum is {max}")));
    }
    let bad = |name: &&String| {
        name.is_empty() || name.len() > settings::NAME_BYTES_MAX || name.chars().any(char::is_control)
    };
    if let Some(name) = message.conf.keys().chain(&declared).find(bad) {
        let name: String = name.chars().take(40).collect();
        return Err(Refusal::invalid(format!(
            "setting {name:?}: a name has 1 to {} bytes and no control character",
            settings::NAME_BYTES_MAX
        )));
    }
    Ok(Submission {
        request: request_id(&message.request_id, &user)?,
        name: check_name("job name", or_if_empty(message.name, &default_name))?,
        user,
        queue: check_name("queue", or_if_empty(message.queue, "default"))?,
        priority: or_if_empty(message.priority, "normal").parse().map_err(Refusal::invalid)?,
        program,
        files,
        declared,
        inputs: message.inputs,
        output: message.output,
        reduces: message.reduces,
        conf: message.conf.into_iter().collect(),
        staging: message.staging,
        divisible: message.divisible,
    })
}

/// Refuses a job whose inputs, side files or settings are too long, and side files with the same
/// name, because all of them are in one folder of the task.
fn check_lengths(inputs: &[String], files: &[String], conf: &HashMap<String, String>) -> Result<(), Refusal> {
    if inputs.len() > INPUTS_MAX {
        return Err(Refusal::invalid(format!(
            "job names {} inputs: the maximum is {INPUTS_MAX}; name folders or patterns",
            inputs.len()
        )));
    }
    let bytes = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    let conf_bytes = conf.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    for (what, bytes, max, instead) in [
        ("inputs", bytes(inputs), INPUTS_BYTES_MAX, "name folders or patterns"),
        ("paths of side files", bytes(files), FILES_BYTES_MAX, "send fewer files, for example one archive"),
        ("settings", conf_bytes, CONF_BYTES_MAX, "send a side file with the data"),
    ] {
        if bytes > max {
            return Err(Refusal::invalid(format!(
                "{what} have {bytes} bytes: the maximum is {max}; {instead}"
            )));
        }
    }
    let mut names = BTreeSet::new();
    let name_of = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    match files.iter().map(name_of).find(|name| !names.insert(name.clone())) {
        Some(name) => Err(Refusal::invalid(format!("two side files are called {name:?}: rename one"))),
        None => Ok(()),
    }
}

/// A decoded message from a tracker.
pub(crate) enum TrackerMessage {
    /// A registration, with the attempts and the files of the tracker.
    Registration(Registration),
    Heartbeat(Heartbeat),
}

/// Decodes a message from a tracker. `from` is the tracker that has registered on the stream, if
/// any. The caller sends an error to the tracker and closes the stream.
pub(crate) fn tracker_message(
    message: pb::FromTracker,
    from: Option<(TrackerId, Incarnation)>,
) -> Result<TrackerMessage, String> {
    match message.kind {
        Some(pb::from_tracker::Kind::Register(message)) => {
            registration(message).map(TrackerMessage::Registration)
        }
        Some(pb::from_tracker::Kind::Heartbeat(message)) => {
            let from = from.ok_or("the first message of a tracker must be its registration")?;
            heartbeat(message, from).map(TrackerMessage::Heartbeat)
        }
        None => Err("the message is empty: run the same build on JobTracker and TaskTrackers".into()),
    }
}

fn registration(message: pb::RegisterTracker) -> Result<Registration, String> {
    let pb::RegisterTracker { version, protocol, map_slots, reduce_slots, .. } = message;
    if protocol != TRACKER_PROTOCOL {
        let ours = env!("CARGO_PKG_VERSION");
        return Err(format!(
            "TaskTracker version {version} speaks protocol {protocol}, JobTracker version {ours} speaks \
             {TRACKER_PROTOCOL}: run the same build on both"
        ));
    }
    if map_slots > SLOTS_MAX || reduce_slots > SLOTS_MAX {
        return Err(format!(
            "the tracker has {map_slots} map and {reduce_slots} reduce slots: the maximum is {SLOTS_MAX} of each"
        ));
    }
    let name = |what: &str, text: String| check_name(what, text).map_err(|error| error.to_string());
    Ok(Registration {
        name: node_name("tracker name", message.name)?,
        incarnation: Incarnation(message.incarnation),
        host: node_name("host name", message.host)?,
        rack: node_name("rack", message.rack)?,
        shuffle_addr: name("shuffle address", message.shuffle_addr)?,
        logs_addr: name("logs address", message.logs_addr)?,
        slots: PerPhase { map: map_slots, reduce: reduce_slots },
        attempts: message.attempts.into_iter().map(attempt_report).collect::<Result<_, _>>()?,
        outputs: message.outputs.iter().map(|text| attempt_id(text)).collect::<Result<_, _>>()?,
        checkpoints: message.checkpoints.iter().map(stored_checkpoint).collect::<Result<_, _>>()?,
        // Ignore names that are not job IDs, so that their folders are not deleted. They are not
        // from this cluster.
        jobs: message.jobs.iter().filter_map(|text| text.parse().ok()).collect(),
    })
}

/// Checks the name of a machine or a rack, which is used in logs, web pages and paths.
fn node_name(what: &str, text: String) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    if text.is_empty() || text.len() > NODE_NAME_BYTES_MAX || !text.chars().all(fits) {
        let text: String = text.chars().take(40).collect();
        return Err(format!(
            "{what} {text:?}: it must have 1 to {NODE_NAME_BYTES_MAX} letters, digits, dots, dashes, underscores, \
             colons or slashes (set tasktracker.node and tasktracker.rack)"
        ));
    }
    Ok(text)
}

fn heartbeat(
    message: pb::Heartbeat,
    (tracker, incarnation): (TrackerId, Incarnation),
) -> Result<Heartbeat, String> {
    let pb::Heartbeat { seq, acked, attempts, fetch_failures } = message;
    if seq == 0 {
        return Err("heartbeat number 0: numbers start at 1".into());
    }
    let failure = |failure: pb::FetchFailure| -> Result<FetchFailure, String> {
        let pb::FetchFailure { reduce, map, addr } = failure;
        Ok(FetchFailure { reduce: attempt_id(&reduce)?, map: attempt_id(&map)?, addr })
    };
    Ok(Heartbeat {
        tracker,
        incarnation,
        seq,
        acked,
        attempts: attempts.into_iter().map(attempt_report).collect::<Result<_, _>>()?,
        fetch_failures: fetch_failures.into_iter().map(failure).collect::<Result<_, _>>()?,
    })
}

fn attempt_id(text: &str) -> Result<AttemptId, String> {
    text.parse().map_err(|error: mrcore::ids::IdError| error.to_string())
}

fn attempt_report(message: pb::AttemptReport) -> Result<AttemptReport, String> {
    use pb::attempt_report::Status;
    let id = attempt_id(&message.attempt)?;
    let status = match message.status {
        Some(Status::Running(message)) => AttemptStatus::Running(progress(id.phase(), &message)),
        // The result comes from the task process. If it is invalid, the attempt has failed; the
        // tracker is not at fault.
        Some(Status::Succeeded(message)) => {
            attempt_result(message).map_or_else(AttemptStatus::Failed, AttemptStatus::Succeeded)
        }
        Some(Status::Split(message)) => match attempt_result(message.result.unwrap_or_default()) {
            Ok(result) => AttemptStatus::Split(message.position, result),
            Err(why) => AttemptStatus::Failed(why),
        },
        Some(Status::Paused(message)) => AttemptStatus::Paused(checkpoint_info(id.phase(), &message)),
        Some(Status::CheckpointCorrupt(text)) => AttemptStatus::CheckpointCorrupt(truncate_error(text)),
        Some(Status::Failed(text)) => AttemptStatus::Failed(truncate_error(text)),
        Some(Status::Fatal(text)) => AttemptStatus::Fatal(truncate_error(text)),
        Some(Status::CheckpointUnreachable(text)) => {
            AttemptStatus::CheckpointUnreachable(truncate_error(text))
        }
        Some(Status::Killed(text)) => AttemptStatus::Killed(truncate_error(text)),
        Some(Status::Copied(bytes)) => AttemptStatus::Copied(limit_bytes(bytes)),
        Some(Status::CopyFailed(text)) => AttemptStatus::CopyFailed(truncate_error(text)),
        None => return Err(format!("the report of {id} has no status")),
    };
    Ok(AttemptReport { attempt: id, status })
}

fn stored_checkpoint(message: &pb::StoredCheckpoint) -> Result<(AttemptId, task::CheckpointInfo), String> {
    let id = attempt_id(&message.attempt)?;
    let info = message.state.as_ref().map(|info| checkpoint_info(id.phase(), info));
    Ok((id, info.unwrap_or_default()))
}

fn checkpoint_info(phase: Phase, message: &pb::CheckpointInfo) -> task::CheckpointInfo {
    let pb::CheckpointInfo { stage: message, bytes, bytes_in, records } = message;
    task::CheckpointInfo {
        stage: stage(phase, message),
        bytes: limit_bytes(*bytes),
        bytes_in: limit_bytes(*bytes_in),
        records: *records,
    }
}

/// Parses the stage that a task reports. An unknown name gives the first stage of the phase and is
/// no error, because the tracker only passes it on.
fn stage(phase: Phase, message: &str) -> Stage {
    match phase {
        Phase::Map => Stage::Map,
        Phase::Reduce => message.parse::<Stage>().unwrap_or_default().max(Stage::Shuffle),
    }
}

fn progress(phase: Phase, message: &pb::Progress) -> Progress {
    let stage = stage(phase, &message.stage);
    // Treat a progress that is not a finite number as 0.
    let done = if message.done.is_finite() { message.done.clamp(0.0, 1.0) as f32 } else { 0.0 };
    let refused = match message.refused() {
        pb::PreemptRefusal::Unspecified => None,
        pb::PreemptRefusal::NoSpace => Some(task::PreemptRefusal::NoSpace),
        pb::PreemptRefusal::ReducerNotSavable => Some(task::PreemptRefusal::ReducerNotSavable),
        pb::PreemptRefusal::MapperNotDivisible => Some(task::PreemptRefusal::MapperNotDivisible),
    };
    let pb::Progress { bytes_in, bytes_out, activity, refusals, .. } = *message;
    let (bytes_in, bytes_out) = (limit_bytes(bytes_in), limit_bytes(bytes_out));
    Progress { done, stage, bytes_in, bytes_out, activity, refusals, refused }
}

fn attempt_result(message: pb::TaskResult) -> Result<AttemptResult, String> {
    let pb::TaskResult { counters, pieces, bytes_out, .. } = message;
    check_counters(counters.keys().map(String::as_str))?;
    check_pieces(&pieces)?;
    let invalid = |error| format!("reported an output file with an invalid path: {error}");
    let normalise =
        |piece: &String| DfsPath::parse(piece).map(|path| path.as_str().to_owned()).map_err(invalid);
    let pieces = pieces.iter().map(normalise).collect::<Result<_, _>>()?;
    let mut counters: Vec<(String, u64)> = counters.into_iter().collect();
    counters.sort_unstable();
    Ok(AttemptResult { counters, pieces, bytes_out: limit_bytes(bytes_out) })
}

fn limit_bytes(reported: u64) -> u64 {
    reported.min(REPORTED_BYTES_MAX)
}

fn truncate_error(text: String) -> String {
    truncate_failure_to(text, ERROR_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrlib_api::limits::COUNTERS_MAX;

    #[test]
    fn long_error_text_keeps_its_beginning_and_its_last_part() {
        let status = |text: String| {
            let status = Some(pb::attempt_report::Status::Failed(text));
            attempt_report(pb::AttemptReport { attempt: "job_1.m0.0".into(), status }).expect("valid").status
        };
        let text = format!("the cause:\n{}the exception", "é".repeat(ERROR_BYTES_MAX));
        let AttemptStatus::Failed(kept) = status(text) else { panic!("the status is not Failed") };
        assert!(kept.len() <= ERROR_BYTES_MAX, "{}", kept.len());
        assert!(kept.starts_with("the cause:\n") && kept.ends_with("the exception"), "{kept}");
    }

    #[test]
    fn submission_with_too_many_or_too_long_setting_names_is_refused() {
        let refused = |declared: Vec<String>, key: String| {
            let mut request = tonic::Request::new(pb::SubmitRequest {
                request_id: vec![7; 16],
                program: Some(pb::Program {
                    kind: Some(pb::program::Kind::Executable("/job".into())),
                    files: Vec::new(),
                    settings: declared,
                }),
                conf: [(key, "1".to_owned())].into(),
                ..Default::default()
            });
            let (name, groups) = ("ann".into(), Vec::new().into());
            request.extensions_mut().insert(Identity { role: None, name, groups, superuser: false });
            submission(request).err().map(|refusal| refusal.to_string())
        };
        let names = |count: usize| (0..count).map(|n| format!("own.{n}")).collect::<Vec<_>>();
        let (long, key) = ("x".repeat(settings::NAME_BYTES_MAX + 1), || "user.x".to_owned());
        assert_eq!(refused(names(settings::DECLARED_MAX), key()), None);
        let why = refused(names(settings::DECLARED_MAX + 1), key()).expect("too many");
        assert!(why.contains("declares 1001 settings: the maximum is 1000"), "{why}");
        for why in [refused(vec![long.clone()], key()), refused(Vec::new(), long)] {
            let why = why.expect("too long");
            assert!(why.contains("1 to 256 bytes") && why.len() < 200, "{why}");
        }
    }

    #[test]
    fn submission_with_too_long_lists_or_two_side_files_of_one_name_is_refused() {
        let why = |inputs: &[String], files: &[String], value: &str| {
            let conf = [("user.x".to_owned(), value.to_owned())].into();
            check_lengths(inputs, files, &conf).err().map(|refusal| refusal.to_string())
        };
        let paths = |count: usize, bytes: usize| {
            (0..count).map(|index| format!("/{index:0width$}", width = bytes - 1)).collect::<Vec<_>>()
        };
        assert_eq!(why(&paths(1024, 1024), &paths(64, 1024), &"x".repeat((128 << 10) - 6)), None);
        let refusals = [
            (why(&paths(100_001, 8), &[], ""), "names 100001 inputs: the maximum is 100000"),
            (why(&paths(1025, 1024), &[], ""), "inputs have 1049600 bytes: the maximum is 1048576"),
            (why(&[], &paths(65, 1024), ""), "paths of side files have 66560 bytes: the maximum is 65536"),
            (why(&[], &[], &"x".repeat(128 << 10)), "settings have 131078 bytes: the maximum is 131072"),
            (why(&[], &["/a/lib".into(), "/b/lib".into()], ""), "two side files are called \"lib\""),
        ];
        for (refusal, text) in refusals {
            assert!(refusal.as_ref().is_some_and(|why| why.contains(text)), "{refusal:?}: {text}");
        }
    }

    #[test]
    fn tracker_with_another_protocol_is_refused_with_both_protocol_versions() {
        let register = pb::RegisterTracker { version: "9.9".into(), protocol: 99, ..Default::default() };
        let message = pb::FromTracker { kind: Some(pb::from_tracker::Kind::Register(register)) };
        let why = tracker_message(message, None).err().unwrap();
        assert!(
            why.contains("9.9 speaks protocol 99") && why.contains(&format!("speaks {TRACKER_PROTOCOL}")),
            "{why}"
        );
    }

    #[test]
    fn progress_is_limited_to_0_to_1_and_is_0_if_not_finite() {
        let decoded = |done| progress(Phase::Map, &pb::Progress { done, ..Default::default() }).done;
        let found = [f64::NAN, f64::INFINITY, -3.0, 7.0].map(|done| decoded(done).to_bits());
        assert_eq!(found, [0.0, 0.0, 0.0, 1.0].map(f32::to_bits));
    }

    #[test]
    fn result_with_too_many_or_too_long_counters_or_pieces_fails_the_attempt() {
        let counters = (0..=COUNTERS_MAX).map(|index| (index.to_string(), 1)).collect();
        let too_many = pb::TaskResult { counters, ..Default::default() };
        let long = pb::TaskResult { counters: [("n".repeat(257), 1)].into(), ..Default::default() };
        let path = format!("/{}", "p".repeat(4000));
        let pieces = pb::TaskResult { pieces: vec![path; 300], ..Default::default() };
        for result in [too_many, long, pieces] {
            let status = Some(pb::attempt_report::Status::Succeeded(result));
            let report = attempt_report(pb::AttemptReport { attempt: "job_1.m0.0".into(), status }).unwrap();
            assert!(matches!(&report.status, AttemptStatus::Failed(_)), "{:?}", report.status);
        }
    }

    #[test]
    fn reported_numbers_of_bytes_are_limited() {
        let all = u64::MAX;
        let shown =
            progress(Phase::Map, &pb::Progress { bytes_in: all, bytes_out: all, ..Default::default() });
        let message = pb::CheckpointInfo { bytes: all, bytes_in: all, ..Default::default() };
        let saved = checkpoint_info(Phase::Reduce, &message);
        let result = attempt_result(pb::TaskResult { bytes_out: all, ..Default::default() }).unwrap();
        let found = [shown.bytes_in, shown.bytes_out, saved.bytes, saved.bytes_in, result.bytes_out];
        assert_eq!(found, [REPORTED_BYTES_MAX; 5]);
        let status = Some(pb::attempt_report::Status::Copied(all));
        let copied = attempt_report(pb::AttemptReport { attempt: "job_1.m0.0".into(), status }).unwrap();
        assert_eq!(copied.status, AttemptStatus::Copied(REPORTED_BYTES_MAX));
    }

    #[test]
    fn unknown_stage_is_decoded_as_shuffle_for_a_reduce_and_map_for_a_map() {
        let stage = |phase, text: &str| {
            progress(phase, &pb::Progress { stage: text.into(), ..Default::default() }).stage
        };
        assert_eq!(stage(Phase::Reduce, "start"), Stage::Shuffle);
        assert_eq!(stage(Phase::Reduce, "merge"), Stage::Merge);
        assert_eq!(stage(Phase::Map, "sort"), Stage::Map);
    }
}
