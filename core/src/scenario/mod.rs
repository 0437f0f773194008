//! Scenario files: a small cluster, events and the expected results, as text.
//!
//! ```text
//! # a comment
//! cluster t1:h1/r1 t2:h2/r1 slots=2m1r
//! submit j1 maps=2 data=h1,h2 reduces=1
//! ----
//! assign j1.m0 on t1 why=oldest-job
//! assign j1.m1 on t2 why=oldest-job
//!
//! heartbeat t1 at=5s done=j1.m0.0
//! ----
//! succeeded j1.m0.0
//! ```
//!
//! Blocks are separated by blank lines. Each has commands, `----`, and the expected results.
//! [`run`] returns the text with the actual results, so a test can compare the two or rewrite the
//! file.
//!
//! | command | arguments |
//! |---|---|
//! | `cluster NAME:HOST[/RACK]...` | `slots=2m1r`; registers each tracker |
//! | `scheduler SPEC` | its parameters, such as `fair.node_wait=5s` (before `cluster`) |
//! | `shadow SPEC` | a second policy without effect, with the same parameters (before `cluster`) |
//! | `compare` | shows how the decisions of the shadow differ |
//! | `forget TRACKER` | removes a lost tracker |
//! | `config` | `lost_after=10s`, `task_timeout=`, `jobs_kept=`, ... (before `cluster`) |
//! | `submit JOB` | `maps=`, `reduces=`, `data=h1,h2` (in turn; `h1+h2` for two replicas), `slow_start=`, `speculation=on`, `split_slow=false`, `attempts=`, `user=`, `queue=`, `priority=` |
//! | `heartbeat TRACKER` | `at=`, `running=ATTEMPT:PROGRESS[:STAGE[:REFUSALS[:BYTES]]]`, `done=ATTEMPT[:BYTES[:PIECE]]`, `failed=`, `killed=`, `split=ATTEMPT:POSITION`, `paused=ATTEMPT:STAGE[:BYTES[:RECORDS]]`, `checkpoint-corrupt=`, `checkpoint-unreachable=`, `copied=`, `copy-failed=`, `fetch-failed=REDUCE<MAP[@ADDRESS]` (by default the current address of its tracker), `again` (repeats the last) |
//! | `register TRACKER` | `at=`, `incarnation=`, `shuffle=ADDRESS`, `running=`, `outputs=`, `checkpoints=ATTEMPT:STAGE[:BYTES[:RECORDS]]`, `jobs=` |
//! | `preempt ATTEMPT`, `resume TASK` | `kind=split`, `pause` or `kill`; `on=TRACKER` |
//! | `drain TRACKER`, `undrain TRACKER`, `drained TRACKER` | `within=120s`; the last one shows the progress of the drain |
//! | `why JOB`, `why TASK`, `cost JOB` | shows what it waits for; shows what preemption has cost |
//! | `launches off`, `launches on` | reports that the disk of the journal is full, or has free space |
//! | `show map-events` | from here on, map events sent to reduces are shown too |
//! | `disconnect TRACKER`, `tick`, `kill JOB`, `commit JOB [error=WHY]`, `restart` | `at=` |
//!
//! `forget`, `preempt`, `resume`, `drain`, `undrain` and `kill` with `again` have the request ID of
//! the last of them.

mod command;
mod render;

use crate::{
    cluster::{Cluster, Durable},
    config::Config,
    event::{Effect, Event},
    fact::Entry,
    ids::RequestId,
    jobtracker::JobTracker,
    scheduler::Scheduler,
    time::{Span, Time},
};
use std::collections::BTreeMap;

/// An invalid line of a scenario file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ScenarioError {
    /// The line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// Creates the policy with this name and these parameters, or returns an error.
pub type MakePolicy<'a> = &'a dyn Fn(&str, &BTreeMap<String, String>) -> Result<Box<dyn Scheduler>, String>;

/// A scenario that is being run.
struct Player<'a> {
    make: MakePolicy<'a>,
    policy: (String, BTreeMap<String, String>),
    shadow: Option<String>,
    config: Config,
    core: JobTracker,
    journal: Vec<Entry>,
    /// A cluster to which the facts of the journal were applied, to be compared with the core.
    replica: Durable,
    now: Time,
    requests: u128,
    /// The last request of a user, other than a submission.
    user_request: RequestId,
    /// For each tracker: number of heartbeats sent, and the newest order received.
    heartbeats: BTreeMap<u32, (u64, u64)>,
    last_heartbeat: Option<Event>,
    /// The output of a command that only shows something.
    shown_lines: Vec<String>,
    /// Whether map events are shown.
    shows_map_events: bool,
}

/// Runs a scenario and returns its text with the actual results below each `----`. `policy` is used
/// unless the text names another one. `check` is called with the cluster after every command, to
/// check invariants. Returns an error if a replay of the facts so far does not give the durable
/// half of the cluster.
pub fn run(
    text: &str,
    policy: &str,
    make: MakePolicy<'_>,
    check: &dyn Fn(&Cluster) -> Result<(), String>,
) -> Result<String, ScenarioError> {
    // Scenarios skip hours in one line. A pause of the JobTracker is only detected if a scenario
    // sets `absence`.
    let config = Config { absence: Span(u64::MAX), ..Config::default() };
    let policy = (policy.to_owned(), BTreeMap::new());
    let made = make(&policy.0, &policy.1).map_err(|what| ScenarioError { line: 1, what })?;
    let core = JobTracker::new(config.clone(), made);
    let mut player = Player {
        make,
        policy,
        shadow: None,
        config,
        core,
        journal: Vec::new(),
        replica: Durable::default(),
        now: Time(0),
        requests: 0,
        user_request: RequestId(0),
        heartbeats: BTreeMap::new(),
        last_heartbeat: None,
        shown_lines: Vec::new(),
        shows_map_events: false,
    };
    let mut out = String::new();
    let mut results: Vec<String> = Vec::new();
    let mut in_expected_results = false;
    for (index, line) in text.lines().enumerate() {
        let error = |what: String| ScenarioError { line: index + 1, what };
        match line.trim() {
            "----" => {
                out.push_str("----\n");
                in_expected_results = true;
                let lines = std::mem::take(&mut results);
                let lines = if lines.is_empty() { vec!["(none)".to_owned()] } else { lines };
                for line in &lines {
                    out.push_str(line);
                    out.push('\n');
                }
            }
            "" => {
                in_expected_results = false;
                out.push('\n');
            }
            _ if in_expected_results => {}
            command => {
                out.push_str(line);
                out.push('\n');
                if !command.starts_with('#') {
                    let effects = player.play(command).map_err(error)?;
                    player.check_replica().map_err(error)?;
                    check(player.core.cluster()).map_err(error)?;
                    results.extend(player.render(&effects));
                    results.append(&mut player.shown_lines);
                }
            }
        }
    }
    Ok(out)
}

impl Player<'_> {
    /// Sends one event and records its effects.
    fn send(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        // Computations finish at once. Their effects belong to the same event.
        let mut at = 0;
        while at < effects.len() {
            if let Effect::Compute { number, problem } = &effects[at] {
                let event = Event::Computed { number: *number, answer: problem.solve() };
                self.core.handle(self.now, event, &mut effects);
            }
            at += 1;
        }
        for effect in &effects {
            match effect {
                Effect::Append(entry) => {
                    self.replica.apply(entry.at, &entry.fact).expect("it was applied to the cluster");
                    self.journal.push(entry.clone());
                }
                Effect::SendOrders { tracker, orders, .. } => {
                    let newest = orders.iter().map(|(number, _)| *number).max().unwrap_or(0);
                    let seen = &mut self.heartbeats.entry(tracker.0).or_default().1;
                    *seen = newest.max(*seen);
                }
                _ => {}
            }
        }
        effects
    }

    /// Compares the replica with the cluster.
    fn check_replica(&self) -> Result<(), String> {
        if self.replica == *self.core.cluster().durable() {
            return Ok(());
        }
        Err("applying the facts to an empty cluster does not give the durable half of the cluster".to_owned())
    }

    /// Creates a state machine with an empty cluster.
    fn new_core(&self) -> Result<JobTracker, String> {
        let make = |name: &str| (self.make)(name, &self.policy.1);
        let core = JobTracker::new(self.config.clone(), make(&self.policy.0)?);
        let shadow = self.shadow.as_deref().map(make).transpose()?;
        Ok(match shadow {
            Some(shadow) => core.with_shadow(shadow),
            None => core,
        })
    }

    /// Begins with an empty cluster and an empty journal, at time 0.
    fn begin(&mut self) -> Result<Vec<Effect>, String> {
        self.core = self.new_core()?;
        (self.journal, self.replica, self.now) = (Vec::new(), Durable::default(), Time(0));
        Ok(Vec::new())
    }

    /// Simulates that the process dies and starts again with its journal.
    fn restart(&mut self) -> Result<Vec<Effect>, String> {
        let mut core = self.new_core()?;
        for entry in &self.journal {
            core.replay(entry).map_err(|error| error.to_string())?;
        }
        self.core = core;
        self.heartbeats.clear();
        Ok(self.send(Event::Start))
    }
}
