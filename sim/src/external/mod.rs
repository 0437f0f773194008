//! Policies that run as a process of their own, in any language.
//!
//! The policy `external` starts the command in its parameter `command`, one process per run, and
//! exchanges lines of JSON with it. docs/research/external-policies.md describes the protocol. A
//! policy that ends, does not answer in time, or answers with anything else than legal decisions
//! ends the run with an error.
//!
//! Not available: reservations, long computations, wrappers such as `chronos`, and `mrctl why`.

mod process;
mod protocol;

use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    history::HistoryFact,
    ids::{AttemptId, JobId, TaskId},
    plan::{PreemptMode, Refused},
    scheduler::{Cause, Round},
    task::PreemptKind,
};
use process::Process;
pub use process::kill_all;
use protocol::{Answer, DecisionLine, EventLine, Hello, HelloAnswer, How, Include, RoundRequest};
pub(crate) use protocol::{Environment, MachineLine};
use schedulers::{ParameterError, Params, Section};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{DefaultHasher, Hasher as _},
    io::{BufRead as _, BufReader},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// The name of the policy.
pub(crate) const NAME: &str = "external";

/// Returns whether a parameter belongs to an external policy.
pub(crate) fn is_parameter(key: &str) -> bool {
    key.split_once('.').is_some_and(|(section, _)| section == NAME)
}
/// Name of the parameter with the command.
const COMMAND: &str = "command";
/// Name of the parameter with the time limit of an answer.
const TIMEOUT: &str = "timeout";
/// The shortest interval between two periodic rounds.
const TICK_S_MIN: f64 = 0.1;
/// Maximum number of characters of an answer in an error.
const SHOWN_CHARS_MAX: usize = 80;

/// Why the external policy of a run has failed, if it has.
pub(crate) type Failure = Arc<OnceLock<String>>;

/// The parameters of an external policy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command<'a> {
    /// The program and its arguments.
    pub(crate) words: Vec<&'a str>,
    timeout: Duration,
    /// The parameters that the process gets.
    params: BTreeMap<&'a str, &'a str>,
}

impl<'a> Command<'a> {
    /// Reads the parameters of the section `external`.
    pub(crate) fn of(params: &'a Params) -> Result<Self, ParameterError> {
        let own =
            params.iter().filter_map(|(key, value)| Some((key.strip_prefix("external.")?, value.as_str())));
        let mut own: BTreeMap<&str, &str> = own.collect();
        let timeout = Params::from_iter(
            own.remove(TIMEOUT).map(|timeout| (format!("{NAME}.{TIMEOUT}"), timeout.to_owned())),
        );
        let mut section = Section::of(NAME, &timeout);
        let limit = section.period(TIMEOUT, Span::secs(30), "real time that an answer may take");
        section.finish()?;
        let command = own.remove(COMMAND).unwrap_or_default();
        let words: Vec<&str> = command.split_whitespace().collect();
        if words.is_empty() {
            return Err(ParameterError::Value {
                key: format!("{NAME}.{COMMAND}"),
                value: command.to_owned(),
                wanted: "a command, as in external[command=python3 my_policy.py]".into(),
            });
        }
        Ok(Self { words, timeout: Duration::from_micros(limit.0), params: own })
    }

    /// Returns the files that the command names, such as a script.
    pub(crate) fn files(&self) -> impl Iterator<Item = &'a Path> {
        self.words.iter().map(|word| Path::new(*word)).filter(|path| path.is_file())
    }

    /// Returns the hash of each file that the command names.
    pub(crate) fn file_hashes(&self) -> Vec<u64> {
        self.files().filter_map(hash_file).collect()
    }
}

/// Returns a hash of the contents of a file; `None` if it is not a regular file or cannot be read.
fn hash_file(path: &Path) -> Option<u64> {
    // Opening a named pipe would block.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut file = BufReader::new(File::open(path).ok()?);
    let mut hash = DefaultHasher::new();
    loop {
        let block = file.fill_buf().ok()?;
        if block.is_empty() {
            return Some(hash.finish());
        }
        hash.write(block);
        let length = block.len();
        file.consume(length);
    }
}

/// A policy in another process.
#[derive(Debug)]
pub(crate) struct External {
    name: String,
    /// The process; `None` after a failure.
    process: Option<Process>,
    failure: Failure,
    tick: Option<Span>,
    include: Vec<Include>,
    /// Number of requests so far.
    requests: u64,
    /// What happened since the last request.
    events: Vec<EventLine>,
}

impl External {
    /// Starts the process of a policy. If that fails, sets `failure`.
    pub(crate) fn start(
        params: &Params,
        environment: Environment,
        failure: &Failure,
    ) -> Result<Self, ParameterError> {
        let command = Command::of(params)?;
        let mut policy = Self {
            name: NAME.to_owned(),
            process: None,
            failure: failure.clone(),
            tick: None,
            include: Vec::new(),
            requests: 0,
            events: Vec::new(),
        };
        if let Err(why) = policy.connect(&command, environment) {
            policy.fail(why);
        }
        Ok(policy)
    }

    fn connect(&mut self, command: &Command<'_>, environment: Environment) -> Result<(), String> {
        self.process = Some(Process::start(&command.words, command.timeout)?);
        let answer: HelloAnswer = self.ask("hello", |request| Hello {
            request,
            kind: "hello",
            protocol: protocol::PROTOCOL,
            params: command.params.clone(),
            environment,
        })?;
        self.check_request("hello", answer.request)?;
        let refuse = |why: String| Err(format!("request {} (hello): {why}", answer.request));
        if answer.protocol != protocol::PROTOCOL {
            let ours = protocol::PROTOCOL;
            return refuse(format!("the policy has protocol {}, the simulator {ours}", answer.protocol));
        }
        if let Some(tick_s) = answer.tick_s {
            if !(TICK_S_MIN..=1e6).contains(&tick_s) {
                return refuse(format!("tick_s of {tick_s} is not from {TICK_S_MIN} to 1e6"));
            }
            self.tick = Some(Span((tick_s * 1e6) as u64));
        }
        self.include = answer.include;
        self.name = answer.name.unwrap_or_else(|| NAME.to_owned());
        Ok(())
    }

    /// Ends the process and stores the reason. The run ends after the current event.
    fn fail(&mut self, why: String) {
        self.process = None;
        let _ = self.failure.set(why);
    }

    /// Sends a request and reads its answer.
    fn ask<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        what: &str,
        request: impl FnOnce(u64) -> Q,
    ) -> Result<A, String> {
        self.requests += 1;
        let number = self.requests;
        let failed = |why: String| format!("request {number} ({what}): {why}");
        let process = self.process.as_mut().ok_or_else(|| failed("the process has ended".into()))?;
        let mut line = serde_json::to_string(&request(number)).map_err(|error| failed(error.to_string()))?;
        line.push('\n');
        let answer = process.ask(line).map_err(failed)?;
        serde_json::from_str(&answer).map_err(|error| {
            let shown: String = answer.trim_end().chars().take(SHOWN_CHARS_MAX).collect();
            failed(format!("the answer is invalid: {error}: {shown:?}; log to standard error only"))
        })
    }

    fn check_request(&self, what: &str, answered: u64) -> Result<(), String> {
        if answered == self.requests {
            return Ok(());
        }
        Err(format!("request {} ({what}): the answer is to request {answered}", self.requests))
    }

    /// Repeats the request until the policy makes no more decisions.
    fn run_round(&mut self, round: Round, plan: &mut Plan<'_>) -> Result<(), String> {
        let offered = match round.cause {
            Cause::Offer(tracker) => Some(tracker),
            Cause::Tick => None,
        };
        let tracker = offered.map(|tracker| protocol::name(tracker, plan.cluster()));
        let what = tracker.map_or_else(|| "tick".to_owned(), |tracker| format!("offer of {tracker}"));
        loop {
            let events = std::mem::take(&mut self.events);
            let includes = |part| self.include.contains(&part);
            let (with_attempts, with_pending) = (includes(Include::Attempts), includes(Include::Pending));
            let free = |tracker| PerPhase {
                map: plan.free_slots(tracker, Phase::Map),
                reduce: plan.free_slots(tracker, Phase::Reduce),
            };
            let answer: Answer = self.ask(&what, |request| RoundRequest {
                request,
                kind: if offered.is_some() { "offer" } else { "tick" },
                time_s: protocol::seconds(round.now),
                tracker,
                free: offered.map(free),
                slots: protocol::slot_counts(plan),
                events,
                jobs: protocol::jobs(plan, offered, with_pending),
                attempts: with_attempts.then(|| protocol::attempts(plan)),
            })?;
            self.check_request(&what, answer.request)?;
            for (at, decision) in answer.decisions.iter().enumerate() {
                decide(decision, tracker, plan).map_err(|why| {
                    format!("request {} ({what}): decision {}: {why}", answer.request, at + 1)
                })?;
            }
            if answer.done || answer.decisions.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Describes a refusal with the names of trackers, which the protocol uses, instead of their IDs.
fn with_names(refused: Refused, cluster: &Cluster) -> String {
    let named = |word: &str| {
        let id = word.trim_end_matches(',');
        let tracker = cluster.trackers().find(|tracker| tracker.id.to_string() == id);
        tracker.map_or_else(|| word.to_owned(), |tracker| word.replace(id, &tracker.name))
    };
    refused.to_string().split(' ').map(named).collect::<Vec<_>>().join(" ")
}

/// Adds a decision to the plan. `offered` is the name of the tracker with the free slots.
fn decide(line: &DecisionLine, offered: Option<&str>, plan: &mut Plan<'_>) -> Result<(), String> {
    let text = line.why.as_deref().unwrap_or(NAME);
    let why = Why::parse(text).unwrap_or_else(|| Why::from_text(text.to_owned()));
    match (&line.launch, &line.preempt) {
        (Some(task), None) => {
            if line.how.is_some() {
                return Err("how is only for preempt".into());
            }
            let task: TaskId = task.parse().map_err(|error| format!("launch: {error}"))?;
            let name = line.tracker.as_deref().or(offered).ok_or("launch in a tick needs a tracker")?;
            let tracker = plan.cluster().tracker_named(name).ok_or_else(|| format!("no tracker {name:?}"))?;
            plan.assign(task, tracker.id, why)
                .map_err(|refused| format!("launch {task}: {}", with_names(refused, plan.cluster())))
        }
        (None, Some(attempt)) => {
            if line.tracker.is_some() {
                return Err("tracker is only for launch".into());
            }
            let attempt: AttemptId = attempt.parse().map_err(|error| format!("preempt: {error}"))?;
            let done = match line.how.unwrap_or(How::Lossless) {
                How::Lossless => plan.preempt_in_mode(attempt, PreemptMode::Lossless, why).map(drop),
                How::Split => plan.preempt(attempt, PreemptKind::Split, why),
                How::Pause => plan.preempt(attempt, PreemptKind::Pause, why),
                How::Kill => plan.preempt(attempt, PreemptKind::Kill, why),
            };
            done.map_err(|refused| format!("preempt {attempt}: {}", with_names(refused, plan.cluster())))
        }
        _ => Err("it needs either launch or preempt".into()),
    }
}

impl Scheduler for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        if self.process.is_none() {
            return;
        }
        let named = |id| {
            let tracker = cluster.tracker(id);
            let host = tracker.map_or("", |tracker| cluster.host_name(tracker.host));
            (protocol::name(id, cluster).to_owned(), host.to_owned())
        };
        if let Some((job, fact)) = fact.job().zip(HistoryFact::from_fact(fact, &named)) {
            self.events.push(EventLine { time_s: protocol::seconds(now), job, fact });
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        if self.process.is_some()
            && let Err(why) = self.run_round(round, plan)
        {
            self.fail(why);
        }
    }

    fn outranks(&self, _a: JobId, _b: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        false
    }

    fn tick_interval(&self) -> Option<Span> {
        self.tick
    }
}
