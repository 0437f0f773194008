//! The faults of one soak round: random preemptions, and one fault after another.

use super::{
    super::{
        fault_action::{FaultAction, perform},
        observer::{ClusterView, Observer},
        target::ChaosTarget,
    },
    jobs::SoakJob,
};
use anyhow::{Result, bail};
use client::{JobTracker, PreemptKind};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::Serialize;
use sim::scenario::{Daemons, NodeRef, ScenarioAction};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(150);
/// The maximum duration of a round. Without faults, its jobs take half a minute.
const ROUND_TIMEOUT: Duration = Duration::from_mins(6);

/// The numbers of injected faults and of preemptions.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct FaultCounts {
    kills: u32,
    freezes: u32,
    /// Partitioned links.
    cuts: u32,
    /// Slowed nodes.
    slow: u32,
    /// Damaged replicas.
    damaged: u32,
    restarts_of_masters: u32,
    splits: u32,
    pauses: u32,
    resumes: u32,
    attempts_killed: u32,
}

impl FaultCounts {
    pub(super) fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.freezes += other.freezes;
        self.cuts += other.cuts;
        self.slow += other.slow;
        self.damaged += other.damaged;
        self.restarts_of_masters += other.restarts_of_masters;
        self.splits += other.splits;
        self.pauses += other.pauses;
        self.resumes += other.resumes;
        self.attempts_killed += other.attempts_killed;
    }
}

impl std::fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "kills {}, freezes {}, cuts {}, slow {}, damaged {}, masters down {}; splits {}, pauses {}, resumes {}, \
             attempts killed {}",
            self.kills,
            self.freezes,
            self.cuts,
            self.slow,
            self.damaged,
            self.restarts_of_masters,
            self.splits,
            self.pauses,
            self.resumes,
            self.attempts_killed
        )
    }
}

/// The random faults of a round.
pub(super) struct FaultSchedule {
    target: Arc<ChaosTarget>,
    rng: SmallRng,
    tally: FaultCounts,
    /// The current fault, and when it ends.
    current_fault: Option<(FaultAction, Instant)>,
    next_fault_at: Instant,
}

impl FaultSchedule {
    pub(super) fn new(target: Arc<ChaosTarget>, rng: &mut SmallRng) -> Self {
        let own = SmallRng::seed_from_u64(rng.random());
        let next = Instant::now() + Duration::from_secs(1);
        Self { target, rng: own, tally: FaultCounts::default(), current_fault: None, next_fault_at: next }
    }

    /// Injects faults until these jobs have ended, and returns the last view.
    pub(super) async fn run_until_jobs_end(
        &mut self,
        observer: &mut Observer,
        mut view: ClusterView,
        jobs: &[SoakJob],
    ) -> Result<ClusterView> {
        let deadline = Instant::now() + ROUND_TIMEOUT;
        loop {
            view = observer.observe(&view).await;
            let open: Vec<&str> = jobs
                .iter()
                .map(|work| work.id.as_str())
                .filter(|id| view.jobs.iter().all(|job| job.job != *id || !job.has_ended()))
                .collect();
            if open.is_empty() {
                return Ok(view);
            }
            if Instant::now() > deadline {
                bail!("{} still active after {} s", open.join(", "), ROUND_TIMEOUT.as_secs());
            }
            if view.trackers.is_some()
                && let Ok(tracker) = observer.jobtracker().await
            {
                self.preempt_some(&tracker, &open).await;
            }
            self.update_faults(&view).await?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Preempts some attempts and resumes some paused tasks. The JobTracker refuses requests that
    /// come too late.
    async fn preempt_some(&mut self, tracker: &JobTracker, jobs: &[&str]) {
        let job = jobs[self.rng.random_range(0..jobs.len())];
        let Ok(tasks) = tracker.tasks(job).await else { return };
        for task in tasks {
            if task.state == "paused" && self.rng.random_bool(0.5) {
                let done = tracker.resume(&task.task, None).await.is_ok();
                self.tally.resumes += u32::from(done);
            }
            let Some(attempt) = task.attempts.iter().rfind(|attempt| attempt.state == "running") else {
                continue;
            };
            if !self.rng.random_bool(0.15) {
                continue;
            }
            let how = match task.task.contains(".m") {
                _ if self.rng.random_bool(0.1) => PreemptKind::Kill,
                true => PreemptKind::Split,
                false => PreemptKind::Pause,
            };
            let done = u32::from(tracker.preempt(&attempt.attempt, how).await.is_ok());
            match how {
                PreemptKind::Kill => self.tally.attempts_killed += done,
                PreemptKind::Split => self.tally.splits += done,
                PreemptKind::Pause => self.tally.pauses += done,
            }
        }
    }

    /// Ends the current fault if its time is over, or starts the next one.
    async fn update_faults(&mut self, view: &ClusterView) -> Result<()> {
        let now = Instant::now();
        match self.current_fault.take() {
            Some((fault_action, until)) if until > now => self.current_fault = Some((fault_action, until)),
            Some((fault_action, _)) => {
                perform(&self.target, &fault_action.undo()).await?;
                self.schedule_next_fault();
            }
            None if now >= self.next_fault_at => self.start_fault(view).await?,
            None => {}
        }
        Ok(())
    }

    fn schedule_next_fault(&mut self) {
        self.next_fault_at = Instant::now() + Duration::from_millis(self.rng.random_range(300..4000));
    }

    async fn start_fault(&mut self, view: &ClusterView) -> Result<()> {
        let nodes = self.target.nodes()?;
        let node = nodes[self.rng.random_range(0..nodes.len())].clone();
        let node_ref = NodeRef::Named(node.clone());
        let lasts = Duration::from_millis(self.rng.random_range(500..7000));
        let daemons = [Daemons::Both, Daemons::Datanode, Daemons::Tasktracker][self.rng.random_range(0..3)];
        let machines = matches!(*self.target, ChaosTarget::Machines(_));
        let (action, node, to) = match self.rng.random_range(0..if machines { 10 } else { 8 }) {
            0..=2 => {
                self.tally.kills += 1;
                (ScenarioAction::Kill { node: node_ref, daemons }, node, String::new())
            }
            3 | 4 => {
                self.tally.freezes += 1;
                (ScenarioAction::Stop { node: node_ref, daemons }, node, String::new())
            }
            5 => {
                // Damage a replica only while all other replicas are available.
                if view.block_problem().is_some() || view.nodes().values().any(|one| one.datanode != "live") {
                    return Ok(());
                }
                let random_number = self.rng.random();
                let action =
                    ScenarioAction::Corrupt { node: node_ref, block: None, cut: self.rng.random_bool(0.3) };
                let fault_action =
                    FaultAction { random_number, ..fault_action(action, node, String::new(), None) };
                // A node without blocks has no replica to damage.
                self.tally.damaged += u32::from(perform(&self.target, &fault_action).await.is_ok());
                self.schedule_next_fault();
                return Ok(());
            }
            6 => {
                self.tally.restarts_of_masters += 1;
                let name = if self.rng.random_bool(0.5) { "jobtracker" } else { "namenode" }.to_owned();
                (
                    ScenarioAction::Kill { node: NodeRef::Named(name.clone()), daemons: Daemons::Both },
                    name,
                    String::new(),
                )
            }
            7 => {
                self.tally.slow += 1;
                let share = self.rng.random_range(0.1..0.6);
                let action = ScenarioAction::Slow { node: node_ref, share };
                let lasts = Some(lasts.min(Duration::from_secs(3)));
                let fault_action = fault_action(action, node, String::new(), lasts);
                perform(&self.target, &fault_action).await?;
                self.schedule_next_fault();
                return Ok(());
            }
            _ => {
                self.tally.cuts += 1;
                let one_way = self.rng.random_bool(0.5);
                let to = "master".to_owned();
                (
                    ScenarioAction::Partition { from: node_ref, to: NodeRef::Named(to.clone()), one_way },
                    node,
                    to,
                )
            }
        };
        let fault_action = fault_action(action, node, to, Some(lasts));
        perform(&self.target, &fault_action).await?;
        self.current_fault = Some((fault_action, Instant::now() + lasts));
        Ok(())
    }

    /// Ends the current fault and returns the numbers of faults and preemptions.
    pub(super) async fn finish(mut self) -> Result<FaultCounts> {
        if let Some((fault_action, _)) = self.current_fault.take() {
            perform(&self.target, &fault_action.undo()).await?;
        }
        Ok(self.tally)
    }
}

/// Returns a fault that is not from a scenario file.
fn fault_action(action: ScenarioAction, node: String, to: String, lasts: Option<Duration>) -> FaultAction {
    FaultAction { number: 0, line: 0, action, node, to, lasts, random_number: 0, is_end: false }
}
