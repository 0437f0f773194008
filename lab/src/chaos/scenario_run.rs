//! Runs a scenario: starts each step when it is due, undoes its faults, observes the cluster all
//! the time, and records what the masters report.

use super::{
    fault_action::{FaultAction, perform},
    fault_log::{FaultLog, Impact},
    observer::{ClusterView, Observer, changes},
    target::ChaosTarget,
};
use anyhow::{Result, bail};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::json;
use sim::{
    Span,
    scenario::{Daemons, JobMark, JobRef, NodeRef, ScenarioAction, Step, When},
};
use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::{AbortHandle, JoinSet};
use view::output;

/// The interval between messages about what the run waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(20);
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The cluster before the first fault.
pub(super) struct InitialCluster {
    pub(super) nodes: Vec<String>,
    pub(super) observer: Observer,
    pub(super) view: ClusterView,
}

/// What to do when a timer expires.
enum TimerAction {
    Step(usize),
    /// End the fault with this number.
    Undo(usize),
}

/// A running scenario.
pub(super) struct ScenarioRun {
    target: Arc<ChaosTarget>,
    file: String,
    nodes: Vec<String>,
    steps: Vec<Step>,
    fault_log: FaultLog,
    observer: Observer,
    view: ClusterView,
    /// The number of map slots and of reduce slots of the complete cluster.
    slots: (u32, u32),
    /// The IDs of jobs in the order of submission.
    jobs: Vec<String>,
    removed_nodes: Vec<(String, Daemons)>,
    /// The indices of steps that wait for a job.
    waiting: Vec<usize>,
    timers: Vec<(Instant, TimerAction)>,
    /// The injected faults, in the same order as `fault_log.steps`.
    fault_actions: Vec<FaultAction>,
    running_actions: JoinSet<(FaultAction, Result<Vec<String>>)>,
    /// Handles of the running actions that slow a node down. Aborting such an action ends it.
    slow_actions: Vec<AbortHandle>,
    /// Faults that must be undone. A fault is added before it is injected and removed after it has
    /// been undone.
    faults_to_undo: Vec<FaultAction>,
    started: usize,
    last_node: Option<String>,
    rng: SmallRng,
    failed: bool,
}

/// Returns the name of the node called `name`. `nodeN` also means the Nth node.
pub(super) fn find_node(nodes: &[String], name: &str) -> Option<String> {
    if matches!(name, "namenode" | "jobtracker" | "master") || nodes.iter().any(|node| node == name) {
        return Some(name.to_owned());
    }
    let number: usize = name.strip_prefix("node")?.parse().ok()?;
    nodes.get(number.checked_sub(1)?).cloned()
}

fn describe_job_ref(job: &JobRef) -> String {
    match job {
        JobRef::Nth(number) => format!("job {number}"),
        JobRef::Number(number) => format!("job_{number}"),
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_micros(span.0)
}

impl ScenarioRun {
    pub(super) fn new(
        target: Arc<ChaosTarget>,
        file: String,
        steps: Vec<Step>,
        opening: InitialCluster,
        seed: u64,
        quiet: bool,
    ) -> Self {
        let InitialCluster { nodes, observer, view } = opening;
        let running = view.jobs.iter().filter(|job| !job.has_ended()).map(|job| job.job.clone());
        Self {
            target,
            file,
            nodes,
            steps,
            fault_log: FaultLog::new(quiet),
            observer,
            slots: view.slots(),
            jobs: running.collect(),
            view,
            removed_nodes: Vec::new(),
            waiting: Vec::new(),
            timers: Vec::new(),
            fault_actions: Vec::new(),
            running_actions: JoinSet::new(),
            slow_actions: Vec::new(),
            faults_to_undo: Vec::new(),
            started: 0,
            last_node: None,
            rng: SmallRng::seed_from_u64(seed),
            failed: false,
        }
    }

    /// Records an observation.
    pub(super) fn note(&mut self, text: String) -> Result<()> {
        self.fault_log.note("seen", text)
    }

    /// Runs until all steps are done and the cluster has recovered, or until the timeout. In any
    /// case, all faults are undone at the end.
    pub(super) async fn run(&mut self, within: Duration) -> Result<()> {
        let played = self.run_steps(within).await;
        let undone = self.undo_all().await;
        played.and(undone)
    }

    async fn run_steps(&mut self, within: Duration) -> Result<()> {
        let began = Instant::now();
        for (index, step) in self.steps.iter().enumerate() {
            match step.when {
                When::At(at) => {
                    self.timers.push((began + duration(at) + duration(step.after), TimerAction::Step(index)));
                }
                When::Job(..) => self.waiting.push(index),
            }
        }
        for step in &self.steps {
            if let When::Job(job, _) = &step.when {
                eprintln!("mrctl: {}:{}: waits for {}", self.file, step.line, describe_job_ref(job));
            }
        }
        let mut end = std::pin::pin!(daemon::lifecycle::end_signal());
        let mut last_message = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                Some(done) = self.running_actions.join_next(), if !self.running_actions.is_empty() => {
                    let (fault_action, result) = done?;
                    self.record_result(fault_action, result)?;
                    continue;
                }
                () = &mut end => bail!("interrupted: all faults are undone, except those listed here"),
            }
            self.observe().await?;
            self.start_timers_of_due_steps();
            self.run_due_timers().await?;
            if self.is_settled()? {
                return Ok(());
            }
            if began.elapsed() > within {
                return self.give_up(within);
            }
            if last_message.elapsed() > REPORT_INTERVAL {
                last_message = Instant::now();
                eprintln!(
                    "mrctl: waiting for up to {} s: {}",
                    within.as_secs(),
                    self.describe_waits().join("; ")
                );
            }
        }
    }

    async fn observe(&mut self) -> Result<()> {
        let now = self.observer.observe(&self.view).await;
        for (node, text) in changes(&self.view, &now) {
            self.fault_log.record_detection(node.as_deref(), &text);
            self.fault_log.note("seen", text)?;
        }
        for job in &now.jobs {
            if !self.jobs.contains(&job.job) && self.view.jobs.iter().all(|was| was.job != job.job) {
                self.jobs.push(job.job.clone());
            }
        }
        self.view = now;
        Ok(())
    }

    fn job_id(&self, job: &JobRef) -> Option<String> {
        match job {
            JobRef::Nth(number) => self.jobs.get(*number as usize - 1).cloned(),
            JobRef::Number(_) => Some(describe_job_ref(job)),
        }
    }

    fn has_reached(&self, job: &JobRef, mark: JobMark) -> bool {
        let Some(id) = self.job_id(job) else { return false };
        let Some(job) = self.view.jobs.iter().find(|job| job.job == id) else { return false };
        let done = |phase: &client::model::PhaseStatus, part: f64| {
            f64::from(phase.done) >= part * f64::from(phase.total)
        };
        match mark {
            JobMark::Submitted => true,
            JobMark::Maps(part) => done(&job.maps, part),
            JobMark::Reduces(part) => done(&job.reduces, part),
            JobMark::Ended => job.has_ended(),
        }
    }

    fn start_timers_of_due_steps(&mut self) {
        let due = |index: &usize| match &self.steps[*index].when {
            When::Job(job, mark) => self.has_reached(job, *mark),
            When::At(_) => false,
        };
        let (due, waiting): (Vec<usize>, Vec<usize>) = self.waiting.iter().partition(|index| due(index));
        self.waiting = waiting;
        for index in due {
            let at = Instant::now() + duration(self.steps[index].after);
            self.timers.push((at, TimerAction::Step(index)));
        }
    }

    async fn run_due_timers(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut due: Vec<(Instant, TimerAction)> = self.timers.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, what) in due {
            match what {
                TimerAction::Step(index) => self.start_step(index).await?,
                TimerAction::Undo(number) => {
                    let undo = self
                        .faults_to_undo
                        .iter()
                        .find(|fault_action| fault_action.number == number)
                        .map(FaultAction::undo);
                    if let Some(undo) = undo {
                        self.spawn(undo);
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts a step.
    async fn start_step(&mut self, index: usize) -> Result<()> {
        let step = self.steps[index].clone();
        let node = match step.action.node() {
            Some(node_ref) => self.choose_node(node_ref).await,
            None => Some(String::new()),
        };
        let to = match &step.action {
            ScenarioAction::Partition { to, .. } => self.choose_node(&to.clone()).await,
            _ => Some(String::new()),
        };
        let (Some(node), Some(to)) = (node, to) else {
            self.failed = true;
            return self
                .fault_log
                .note("done", format!("{}:{}: there is no node to choose from", self.file, step.line));
        };
        if !node.is_empty() {
            self.last_node = Some(node.clone());
        }
        let lasts = step.lasts.map(duration);
        let random_number = self.rng.random();
        self.started += 1;
        let (number, line) = (self.started, step.line);
        let fault_action =
            FaultAction { number, line, action: step.action, node, to, lasts, random_number, is_end: false };
        if fault_action.needs_undo() {
            self.faults_to_undo.push(fault_action.clone());
        }
        if matches!(fault_action.action, ScenarioAction::Slow { .. }) {
            // `perform` returns only when this fault has ended, so record it now.
            self.record_impact(&fault_action)?;
        }
        self.spawn(fault_action);
        Ok(())
    }

    fn spawn(&mut self, fault_action: FaultAction) {
        let target = self.target.clone();
        let slows = matches!(fault_action.action, ScenarioAction::Slow { .. });
        let doing = self.running_actions.spawn(async move {
            let result = perform(&target, &fault_action).await;
            (fault_action, result)
        });
        if slows {
            self.slow_actions.push(doing);
        }
    }

    async fn choose_node(&mut self, node_ref: &NodeRef) -> Option<String> {
        match node_ref {
            NodeRef::Named(name) => find_node(&self.nodes, name),
            NodeRef::Same => self.last_node.clone(),
            NodeRef::Any => self.pick_random(&self.nodes_not_removed()),
            NodeRef::Running(job) => {
                let busy = match self.job_id(job) {
                    Some(id) => self.nodes_running(&id).await,
                    None => Vec::new(),
                };
                let alive = self.nodes_not_removed();
                let busy: Vec<String> = alive.iter().filter(|node| busy.contains(node)).cloned().collect();
                self.pick_random(if busy.is_empty() { &alive } else { &busy })
            }
        }
    }

    fn nodes_not_removed(&self) -> Vec<String> {
        let up = |node: &&String| self.removed_nodes.iter().all(|(removed_nodes, _)| removed_nodes != *node);
        self.nodes.iter().filter(up).cloned().collect()
    }

    fn pick_random(&mut self, among: &[String]) -> Option<String> {
        let number: u64 = self.rng.random();
        among.get((number % among.len().max(1) as u64) as usize).cloned()
    }

    async fn nodes_running(&self, job: &str) -> Vec<String> {
        let Ok(tracker) = self.observer.jobtracker().await else { return Vec::new() };
        let tasks = tracker.tasks(job).await.unwrap_or_default();
        let attempts = tasks.into_iter().flat_map(|task| task.attempts);
        attempts.filter(|attempt| attempt.state == "running").map(|attempt| attempt.tracker).collect()
    }

    /// Records that a fault was injected.
    fn record_impact(&mut self, fault_action: &FaultAction) -> Result<()> {
        let undoing = matches!(
            fault_action.action,
            ScenarioAction::Cont { .. } | ScenarioAction::Restart { .. } | ScenarioAction::Heal { .. }
        );
        let shows_only_as_damage = matches!(fault_action.action, ScenarioAction::Corrupt { .. });
        let quiet =
            matches!(fault_action.action, ScenarioAction::FillDisk { .. } | ScenarioAction::Slow { .. });
        self.fault_log.steps.push(Impact {
            line: fault_action.line,
            verb: fault_action.action.verb(),
            node: fault_action.affected_node().to_owned(),
            at_s: self.fault_log.now_s(),
            detected_s: None,
            lost_s: None,
            healed_s: None,
            recovered_s: None,
            shows_only_as_damage,
            needs_no_detection: undoing || quiet || fault_action.is_between_nodes(),
        });
        self.fault_actions.push(fault_action.clone());
        if matches!(fault_action.action, ScenarioAction::Slow { .. }) {
            let text = format!("{} is slow [{}:{}]", fault_action.node, self.file, fault_action.line);
            return self.fault_log.note("done", text);
        }
        let node = fault_action.affected_node().to_owned();
        match &fault_action.action {
            ScenarioAction::Kill { daemons, .. } | ScenarioAction::Stop { daemons, .. } => {
                self.removed_nodes.push((node, *daemons));
            }
            ScenarioAction::Partition { .. } if !fault_action.is_between_nodes() => {
                self.removed_nodes.push((node, Daemons::Both));
            }
            ScenarioAction::Cont { daemons, .. } | ScenarioAction::Restart { daemons, .. } => {
                self.record_return(&node, *daemons);
            }
            ScenarioAction::Heal { .. } => self.record_healed_links(&node),
            _ => {}
        }
        Ok(())
    }

    /// Records that daemons of a node are up again.
    fn record_return(&mut self, node: &str, daemons: Daemons) {
        let now = self.fault_log.now_s();
        self.removed_nodes.retain(|(removed_nodes, which)| {
            removed_nodes != node || (daemons != Daemons::Both && *which != daemons)
        });
        for impact in
            self.fault_log.steps.iter_mut().filter(|impact| impact.node == node && !impact.needs_no_detection)
        {
            impact.healed_s.get_or_insert(now);
        }
    }

    /// Records that the network links of this node work again, or those of all nodes if `node` is
    /// empty.
    fn record_healed_links(&mut self, node: &str) {
        let now = self.fault_log.now_s();
        let cut =
            |impact: &&mut Impact| impact.verb == "partition" && (node.is_empty() || impact.node == node);
        for impact in self.fault_log.steps.iter_mut().filter(cut) {
            impact.healed_s.get_or_insert(now);
            self.removed_nodes.retain(|(removed_nodes, _)| *removed_nodes != impact.node);
        }
    }

    /// Records the result of an action that has ended.
    fn record_result(&mut self, fault_action: FaultAction, result: Result<Vec<String>>) -> Result<()> {
        let lines = match result {
            Ok(lines) => lines,
            Err(error) => {
                self.failed = true;
                let (verb, why) = (fault_action.action.verb(), output::chain(&error));
                return self
                    .fault_log
                    .note("done", format!("{}:{}: {verb}: {why}", self.file, fault_action.line));
            }
        };
        if fault_action.is_end {
            self.faults_to_undo.retain(|open| open.number != fault_action.number);
            let now = self.fault_log.now_s();
            match &fault_action.action {
                ScenarioAction::Kill { daemons, .. } | ScenarioAction::Stop { daemons, .. } => {
                    self.record_return(&fault_action.node, *daemons);
                }
                ScenarioAction::Partition { .. } => self.record_healed_links(fault_action.affected_node()),
                _ => {
                    let own = self.fault_actions.iter().position(|done| done.number == fault_action.number);
                    if let Some(impact) = own {
                        self.fault_log.steps[impact].healed_s = Some(now);
                    }
                }
            }
            return self.fault_log.note("undone", lines.join(", "));
        }
        if matches!(fault_action.action, ScenarioAction::Slow { .. }) {
            let now = self.fault_log.now_s();
            for (impact, own) in self.fault_log.steps.iter_mut().zip(&self.fault_actions) {
                if own.line == fault_action.line && own.node == fault_action.node {
                    impact.healed_s.get_or_insert(now);
                }
            }
            return self.fault_log.note("undone", format!("{} runs at full speed again", fault_action.node));
        }
        self.record_impact(&fault_action)?;
        if let Some(lasts) = fault_action.lasts {
            self.timers.push((Instant::now() + lasts, TimerAction::Undo(fault_action.number)));
        }
        self.fault_log.note("done", format!("{} [{}:{}]", lines.join(", "), self.file, fault_action.line))
    }

    /// Returns whether all steps are done and the cluster has recovered.
    fn is_settled(&mut self) -> Result<bool> {
        let undoing = self.timers.iter().any(|(_, due)| matches!(due, TimerAction::Undo(_)));
        let quiet = self.running_actions.is_empty() && !undoing;
        if !quiet
            || self.fault_log.undetected().is_some()
            || self.view.problem(self.slots, &self.removed_nodes).is_some()
        {
            return Ok(false);
        }
        self.fault_log.mark_recovered()?;
        Ok(self.timers.is_empty() && self.waiting.is_empty())
    }

    fn give_up(&mut self, within: Duration) -> Result<()> {
        self.failed = true;
        let why = self.describe_waits().join("; ");
        self.fault_log.note("done", format!("timeout after {} s: {why}", within.as_secs()))
    }

    /// Describes what the run still waits for.
    fn describe_waits(&self) -> Vec<String> {
        let mut why: Vec<String> = Vec::new();
        why.extend(
            self.waiting
                .iter()
                .map(|index| format!("the step on line {} has not started", self.steps[*index].line)),
        );
        let unseen = self
            .fault_log
            .undetected()
            .map(|impact| format!("the fault on line {} has not been detected", impact.line));
        why.extend(unseen);
        why.extend(self.view.problem(self.slots, &self.removed_nodes));
        why
    }

    /// Waits for running actions and undoes all open faults. After an error, continues with the
    /// other faults.
    async fn undo_all(&mut self) -> Result<()> {
        self.slow_actions.drain(..).for_each(|slow| slow.abort());
        let mut result_of_all = Ok(());
        while let Some(done) = self.running_actions.join_next().await {
            if let Ok((fault_action, result)) = done {
                result_of_all = result_of_all.and(self.record_result(fault_action, result));
            }
        }
        for undo in self.faults_to_undo.iter().rev().map(FaultAction::undo).collect::<Vec<_>>() {
            let result = perform(&self.target, &undo).await;
            result_of_all = result_of_all.and(self.record_result(undo, result));
        }
        for left in &self.faults_to_undo {
            let (verb, node) = (left.action.verb(), left.affected_node());
            eprintln!(
                "mrctl: {}:{}: {verb} of {node} could not be undone: undo it by hand",
                self.file, left.line
            );
        }
        result_of_all
    }

    /// Returns a note for each node that stays dead and whose TaskTracker the JobTracker still
    /// lists.
    fn lost_node_notes(&self) -> Vec<String> {
        let lost = self.view.trackers.iter().flatten().filter(|tracker| tracker.state == "lost");
        let removed = |name: &str| self.removed_nodes.iter().any(|(node, _)| node == name);
        let line = |name: &str| {
            format!("TaskTracker {name} stays in the list as lost: `mrctl nodes forget {name}` removes it")
        };
        lost.filter(|tracker| removed(&tracker.name)).map(|tracker| line(&tracker.name)).collect()
    }

    /// Prints the result of the run.
    pub(super) fn print_result(&self, as_json: bool) -> Result<ExitCode> {
        let jobs = self.view.jobs.iter().filter(|job| self.jobs.contains(&job.job));
        let well = !self.failed && self.fault_log.steps.iter().all(|impact| impact.recovered_s.is_some());
        if as_json {
            let jobs: Vec<_> = jobs
                .map(|job| {
                    json!({ "job": job.job, "name": job.name, "state": job.state, "seconds": job.seconds(),
                            "killed_attempts": job.maps.killed_attempts + job.reduces.killed_attempts,
                            "failed_attempts": job.maps.failed_attempts + job.reduces.failed_attempts })
                })
                .collect();
            let FaultLog { timeline, steps, .. } = &self.fault_log;
            output::json(&json!({ "recovered": well, "steps": steps, "timeline": timeline, "jobs": jobs }))?;
        } else {
            self.fault_log.print()?;
            for line in self.lost_node_notes() {
                output::line(line)?;
            }
        }
        Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests;
