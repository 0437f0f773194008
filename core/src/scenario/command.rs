//! Parses and executes the commands of a scenario file.

use super::Player;
use crate::{
    event::{AttemptReport, AttemptStatus, Effect, Event, FetchFailure, Heartbeat, Registration},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId},
    job::{JobSpec, Payload, Priority, Program, Split},
    phase::PerPhase,
    task::{AttemptResult, CheckpointInfo, PreemptKind, PreemptRefusal, Progress, Stage},
    time::{Span, Time},
};
use std::{collections::BTreeMap, sync::Arc};

/// The words of a command: the command, its subject, and `key=value` arguments.
struct Arguments<'a> {
    plain: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    fn parse(command: &'a str) -> Self {
        let (named, plain) = command.split_whitespace().partition::<Vec<_>, _>(|word| word.contains('='));
        Self { plain, named: named.into_iter().filter_map(|word| word.split_once('=')).collect() }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.named.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    fn number<T: std::str::FromStr>(&self, key: &str, default: T) -> Result<T, String> {
        let Some(text) = self.get(key) else { return Ok(default) };
        text.parse().map_err(|_| format!("{key}={text} is not a number"))
    }

    fn subject(&self) -> Result<&'a str, String> {
        self.plain.get(1).copied().ok_or_else(|| "the command needs an argument".to_owned())
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.get(key).into_iter().flat_map(|text| text.split(','))
    }
}

fn parse_span(text: &str) -> Result<Span, String> {
    let wrong = || format!("{text:?} is not a time: write 5s or 250ms");
    let (digits, scale) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1000),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1_000_000),
    };
    digits.parse::<u64>().map(|number| Span(number * scale)).map_err(|_| wrong())
}

/// Parses `j1.m0.0`: an ID with `j` instead of `job_`.
fn parse_attempt(text: &str) -> Result<AttemptId, String> {
    let full = text.replacen('j', "job_", 1);
    full.parse().map_err(|_| format!("{text:?} is not an attempt: write j1.m0.0"))
}

fn parse_job(text: &str) -> Result<JobId, String> {
    let number = text.strip_prefix('j').and_then(|number| number.parse().ok());
    number.map(JobId).ok_or_else(|| format!("{text:?} is not a job: write j1"))
}

fn parse_slots(text: &str) -> Result<PerPhase<u32>, String> {
    let wrong = || format!("slots={text}: write 2m1r");
    let (map, rest) = text.split_once('m').ok_or_else(wrong)?;
    let reduce = if rest.is_empty() { "0" } else { rest.strip_suffix('r').ok_or_else(wrong)? };
    Ok(PerPhase { map: map.parse().map_err(|_| wrong())?, reduce: reduce.parse().map_err(|_| wrong())? })
}

fn parse_running(text: &str) -> Result<AttemptReport, String> {
    let mut parts = text.split(':');
    let attempt = parse_attempt(parts.next().unwrap_or_default())?;
    let done =
        parts.next().unwrap_or("0").parse().map_err(|_| format!("{text:?}: the progress is not a number"))?;
    let stage: Stage = parts.next().unwrap_or("map").parse()?;
    let number = |text: Option<&str>| text.map_or(Ok(0), str::parse);
    let refusals =
        number(parts.next()).map_err(|_| format!("{text:?}: the number of refusals is not a number"))?;
    let bytes_in =
        number(parts.next()).map_err(|_| format!("{text:?}: the number of bytes is not a number"))?.into();
    let refused = (refusals > 0).then_some(match stage {
        Stage::Map => PreemptRefusal::MapperNotDivisible,
        Stage::Reduce => PreemptRefusal::ReducerNotSavable,
        _ => PreemptRefusal::NoSpace,
    });
    let progress = Progress { done, stage, bytes_in, refusals, refused, ..Progress::default() };
    Ok(AttemptReport { attempt, status: AttemptStatus::Running(progress) })
}

/// Parses `j1.r0.0:merge`, optionally followed by the bytes fetched and the records reduced.
fn parse_checkpoint(text: &str) -> Result<(AttemptId, CheckpointInfo), String> {
    let mut parts = text.split(':');
    let attempt = parse_attempt(parts.next().unwrap_or_default())?;
    let stage = parts.next().ok_or_else(|| format!("{text}: write j1.r0.0:merge"))?.parse()?;
    let mut number =
        || parts.next().map_or(Ok(0), |text| text.parse().map_err(|_| format!("{text:?} is not a number")));
    Ok((attempt, CheckpointInfo { stage, bytes: 1000, bytes_in: number()?, records: number()? }))
}

fn parse_reports(arguments: &Arguments<'_>) -> Result<Vec<AttemptReport>, String> {
    let mut reports = Vec::new();
    for text in arguments.list("running") {
        reports.push(parse_running(text)?);
    }
    let ended = |text: &str, status| Ok::<_, String>(AttemptReport { attempt: parse_attempt(text)?, status });
    for text in arguments.list("done") {
        let (id, result) = text.split_once(':').unwrap_or((text, "0"));
        let (bytes, piece) =
            result.split_once(':').map_or((result, None), |(bytes, piece)| (bytes, Some(piece)));
        let bytes_out = bytes.parse().map_err(|_| format!("{text}: {bytes:?} is not a number of bytes"))?;
        let pieces = piece.into_iter().map(str::to_owned).collect();
        let result = AttemptResult { pieces, bytes_out, ..AttemptResult::default() };
        reports.push(ended(id, AttemptStatus::Succeeded(result))?);
    }
    for text in arguments.list("failed") {
        reports.push(ended(text, AttemptStatus::Failed("it failed".into()))?);
    }
    for text in arguments.list("fatal") {
        reports.push(ended(text, AttemptStatus::Fatal("every attempt would fail".into()))?);
    }
    for text in arguments.list("split") {
        let (id, position) = text.split_once(':').ok_or_else(|| format!("{text}: write j1.m0.0:50"))?;
        let position = position.parse().map_err(|_| format!("{text}: {position:?} is not a position"))?;
        reports.push(ended(id, AttemptStatus::Split(position, AttemptResult::default()))?);
    }
    for text in arguments.list("paused") {
        let (attempt, checkpoint) = self::parse_checkpoint(text)?;
        reports.push(AttemptReport { attempt, status: AttemptStatus::Paused(checkpoint) });
    }
    for text in arguments.list("checkpoint-unreachable") {
        reports
            .push(ended(text, AttemptStatus::CheckpointUnreachable("its tracker does not answer".into()))?);
    }
    for text in arguments.list("checkpoint-corrupt") {
        reports.push(ended(text, AttemptStatus::CheckpointCorrupt("its checkpoint is damaged".into()))?);
    }
    for text in arguments.list("copied") {
        reports.push(ended(text, AttemptStatus::Copied(1000))?);
    }
    for text in arguments.list("copy-failed") {
        reports.push(ended(text, AttemptStatus::CopyFailed("file not found".into()))?);
    }
    for text in arguments.list("killed") {
        reports.push(ended(text, AttemptStatus::Killed("stopped by order".into()))?);
    }
    Ok(reports)
}

impl Player<'_> {
    /// Executes one command.
    pub(super) fn play(&mut self, command: &str) -> Result<Vec<Effect>, String> {
        let arguments = Arguments::parse(command);
        if let Some(at) = arguments.get("at") {
            self.now = Time(parse_span(at)?.0);
        }
        match *arguments.plain.first().unwrap_or(&"") {
            "config" => self.configure(&arguments),
            "scheduler" => self.choose_scheduler(&arguments),
            "cost" => {
                let asked = parse_job(arguments.subject()?)?;
                self.shown_lines = vec![self.cost_line(asked)];
                Ok(Vec::new())
            }
            "why" => {
                let subject = arguments.subject()?;
                let reasons = match subject.replacen('j', "job_", 1).parse::<TaskId>() {
                    Ok(asked) => self.core.explain_task(self.now, asked),
                    Err(_) => self.core.explain(self.now, parse_job(subject)?),
                };
                self.shown_lines = reasons.into_iter().map(|why| format!("waits: {why}")).collect();
                Ok(Vec::new())
            }
            "shadow" => {
                self.shadow = Some(arguments.subject()?.to_owned());
                self.begin()
            }
            "compare" => {
                self.shown_lines = self.comparison_lines();
                Ok(Vec::new())
            }
            "cluster" => self.cluster(&arguments),
            "submit" => self.submit(&arguments),
            "heartbeat" => self.heartbeat(&arguments),
            "register" => self.register(&arguments),
            "forget" => {
                let (tracker, _) = self.tracker_named(arguments.subject()?)?;
                let request = self.user_request(&arguments);
                Ok(self.send(Event::Forget { request, tracker, by: "ann".into() }))
            }
            "disconnect" => {
                let (tracker, incarnation) = self.tracker_named(arguments.subject()?)?;
                Ok(self.send(Event::Disconnection { tracker, incarnation }))
            }
            "show" => {
                self.shows_map_events = arguments.subject()? == "map-events";
                Ok(Vec::new())
            }
            "preempt" | "resume" | "drain" | "undrain" => self.request_event(&arguments),
            "drained" => {
                self.shown_lines = vec![self.drain_line(self.tracker_named(arguments.subject()?)?.0)];
                Ok(Vec::new())
            }
            "tick" => Ok(self.send(Event::Tick)),
            "launches" => {
                let bytes = if arguments.subject()? == "on" { u64::MAX } else { 0 };
                Ok(self.send(Event::FreeSpace { bytes }))
            }
            "kill" => {
                let (request, job) = (self.user_request(&arguments), parse_job(arguments.subject()?)?);
                Ok(self.send(Event::Kill { request, job, by: "ann".into() }))
            }
            "commit" => {
                let result = arguments.get("error").map_or(Ok(()), |why| Err(why.to_owned()));
                let job = parse_job(arguments.subject()?)?;
                Ok(self.send(Event::CommitResult { job, repeated: false, result }))
            }
            "restart" => self.restart(),
            other => Err(format!("{other:?} is not a command")),
        }
    }

    /// Sends a user's request for an attempt, a task or a tracker.
    fn request_event(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        let (request, by) = (self.user_request(arguments), "ann".to_owned());
        let subject = arguments.subject()?;
        match arguments.plain[0] {
            "preempt" => {
                let kind = match arguments.get("kind") {
                    Some("split") => PreemptKind::Split,
                    Some("pause") => PreemptKind::Pause,
                    Some("kill") => PreemptKind::Kill,
                    other => return Err(format!("kind={other:?} is not split, pause or kill")),
                };
                Ok(self.send(Event::Preemption { request, attempt: parse_attempt(subject)?, kind, by }))
            }
            "resume" => {
                let on =
                    arguments.get("on").map(|name| self.tracker_named(name)).transpose()?.map(|(id, _)| id);
                let full_id = format!("job_{}", subject.trim_start_matches('j'));
                let task = full_id.parse().map_err(|_| format!("{subject} is not a task, such as j1.r0"))?;
                Ok(self.send(Event::Resumption { request, task, on, by }))
            }
            kind => {
                let within = arguments.get("within").unwrap_or("120s");
                let within = (kind == "drain").then(|| parse_span(within)).transpose()?;
                let (tracker, _) = self.tracker_named(subject)?;
                Ok(self.send(Event::Drain { request, tracker, within, by }))
            }
        }
    }

    /// Returns the ID of a request of a user. With `again`, the request has the ID of the last one.
    fn user_request(&mut self, arguments: &Arguments<'_>) -> RequestId {
        if !arguments.plain.contains(&"again") {
            self.user_request = self.next_request();
        }
        self.user_request
    }

    fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn tracker_named(&self, name: &str) -> Result<(crate::ids::TrackerId, Incarnation), String> {
        let tracker = self.core.cluster().tracker_named(name);
        tracker.map(|tracker| (tracker.id, tracker.incarnation)).ok_or_else(|| format!("no tracker {name}"))
    }

    fn configure(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        for (key, value) in &arguments.named {
            let config = &mut self.config;
            match *key {
                "suspect_after" => config.suspect_after = parse_span(value)?,
                "lost_after" => config.lost_after = parse_span(value)?,
                "forget_after" => config.forget_after = parse_span(value)?,
                "launch_timeout" => config.launch_timeout = parse_span(value)?,
                "absence" => config.absence = parse_span(value)?,
                "task_timeout" => config.task_timeout = parse_span(value)?,
                "preemption_timeout" => config.preemption_timeout = parse_span(value)?,
                "straggler_after" => config.straggler_after = parse_span(value)?,
                "jobs_kept" => config.jobs_kept = arguments.number("jobs_kept", 0)?,
                "tasks_kept" => config.tasks_kept = arguments.number("tasks_kept", 0)?,
                "reduces_max" => config.reduces_max = arguments.number("reduces_max", 0)?,
                other => return Err(format!("config has no setting {other}")),
            }
        }
        self.begin()
    }

    fn choose_scheduler(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        let params = arguments.named.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.policy = (arguments.subject()?.to_owned(), params.collect());
        self.begin()
    }

    fn cluster(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        let slots = parse_slots(arguments.get("slots").unwrap_or("2m1r"))?;
        let mut effects = self.send(Event::Start);
        for word in &arguments.plain[1..] {
            let (name, place) = word.split_once(':').ok_or_else(|| format!("{word}: write t1:h1"))?;
            let (host, rack) = place.split_once('/').unwrap_or((place, "r1"));
            let tracker = Registration {
                name: name.into(),
                incarnation: Incarnation(1),
                host: host.into(),
                rack: rack.into(),
                shuffle_addr: format!("{host}:1"),
                logs_addr: format!("{host}:2"),
                slots,
                attempts: Vec::new(),
                outputs: Vec::new(),
                checkpoints: Vec::new(),
                jobs: Vec::new(),
            };
            let request = self.next_request();
            effects.extend(self.send(Event::Registration { request, tracker }));
        }
        // The results of the registrations are not shown.
        effects.clear();
        Ok(effects)
    }

    fn submit(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        let wanted = parse_job(arguments.subject()?)?;
        let data: Vec<&str> = arguments.list("data").collect();
        let hosts = |index: usize| -> Vec<String> {
            let Some(count) = std::num::NonZeroUsize::new(data.len()) else { return Vec::new() };
            data[index % count].split('+').map(str::to_owned).collect()
        };
        let splits = (0..arguments.number("maps", 1)?)
            .map(|index| Split {
                source: "/input".into(),
                start: 0,
                end: 100,
                divisible: arguments.get("divisible") != Some("no"),
                hosts: hosts(index),
                pin: crate::job::InputPin::default(),
            })
            .collect();
        let spec = JobSpec {
            name: wanted.to_string(),
            user: arguments.get("user").unwrap_or("u").into(),
            queue: arguments.get("queue").unwrap_or("default").into(),
            priority: arguments.get("priority").map_or(Ok(Priority::Normal), str::parse)?,
            program: Program::Builtin("test".into()),
            splits,
            reduces: arguments.number("reduces", 0)?,
            output: format!("/output/{wanted}"),
            slow_start: arguments.number("slow_start", 0.05)?,
            speculation: arguments.get("speculation") == Some("on"),
            attempts_max: arguments.number("attempts", 4)?,
            split_slow: arguments.get("split_slow") != Some("false"),
            conf: BTreeMap::new(),
            payload: Payload::default(),
        };
        let request =
            if arguments.plain.contains(&"again") { RequestId(self.requests) } else { self.next_request() };
        Ok(self.send(Event::Submission { request, spec: Arc::new(spec) }))
    }

    fn heartbeat(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        if arguments.plain.contains(&"again") {
            let event = self.last_heartbeat.clone().ok_or("there was no heartbeat to repeat")?;
            return Ok(self.send(event));
        }
        let (tracker, newest) = self.tracker_named(arguments.subject()?)?;
        let incarnation = Incarnation(arguments.number("incarnation", newest.0)?);
        let mut fetch_failures = Vec::new();
        for text in arguments.list("fetch-failed") {
            let (reduce, map) =
                text.split_once('<').ok_or_else(|| format!("{text}: write j1.r0.0<j1.m0.0"))?;
            let (map, addr) = map.split_once('@').map_or((map, None), |(map, addr)| (map, Some(addr)));
            let (reduce, map) = (parse_attempt(reduce)?, parse_attempt(map)?);
            let addr = addr.map_or_else(|| self.addr_of(map), str::to_owned);
            fetch_failures.push(FetchFailure { reduce, map, addr });
        }
        let (seq, acked) = self.heartbeats.entry(tracker.0).or_default();
        *seq += 1;
        let event = Event::Heartbeat(Heartbeat {
            tracker,
            incarnation,
            seq: *seq,
            acked: *acked,
            attempts: parse_reports(arguments)?,
            fetch_failures,
        });
        self.last_heartbeat = Some(event.clone());
        Ok(self.send(event))
    }

    /// Returns the shuffle address of the tracker that has a map output; empty if the tracker is
    /// unknown.
    fn addr_of(&self, map: AttemptId) -> String {
        let cluster = self.core.cluster();
        let output_on = cluster.attempt(map).and_then(|map| cluster.tracker(map.output_on));
        output_on.map_or_else(String::new, |output_on| output_on.shuffle_addr.clone())
    }

    fn register(&mut self, arguments: &Arguments<'_>) -> Result<Vec<Effect>, String> {
        let (id, newest) = self.tracker_named(arguments.subject()?)?;
        let cluster = self.core.cluster();
        let before = cluster.tracker(id).ok_or("no such tracker")?;
        let tracker = Registration {
            name: before.name.clone(),
            incarnation: Incarnation(arguments.number("incarnation", newest.0)?),
            host: cluster.host_name(before.host).to_owned(),
            rack: cluster.rack_name(before.rack).to_owned(),
            shuffle_addr: arguments.get("shuffle").unwrap_or(&before.shuffle_addr).to_owned(),
            logs_addr: before.logs_addr.clone(),
            slots: before.slots,
            attempts: parse_reports(arguments)?,
            outputs: arguments.list("outputs").map(parse_attempt).collect::<Result<_, _>>()?,
            checkpoints: arguments.list("checkpoints").map(parse_checkpoint).collect::<Result<_, _>>()?,
            jobs: arguments.list("jobs").map(parse_job).collect::<Result<_, _>>()?,
        };
        self.heartbeats.remove(&id.0);
        let request = self.next_request();
        Ok(self.send(Event::Registration { request, tracker }))
    }
}
