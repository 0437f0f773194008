//! Starts and ends faults.

use super::{
    SimEvent, World,
    run::Work,
    tracker::{AgentEvent, START},
};
use crate::fault::FaultKind;
use mrcore::{
    Event, Phase,
    ids::{AttemptId, Incarnation, TaskId},
    task::PreemptKind,
};

impl World {
    pub(super) fn inject_fault(&mut self, index: usize) {
        let fault = self.setup.faults[index].clone();
        if fault.for_s.is_none() {
            self.faults_open -= 1;
        }
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match fault.what {
            FaultKind::Tracker { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.dead += 1);
                self.close_connection(node as usize);
            }
            FaultKind::Datanode { node } | FaultKind::FrozenDatanode { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.datanode_down += 1);
                self.schedule_repair(node);
            }
            FaultKind::Node { node } if fits(node) => {
                self.change_faults(node as usize, |faults| {
                    faults.dead += 1;
                    faults.wiped += 1;
                });
                self.schedule_repair(node);
            }
            FaultKind::FrozenTracker { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.frozen += 1);
            }
            FaultKind::Rack { rack } => self.change_rack_faults(rack, |faults| faults.unreachable += 1),
            FaultKind::Frozen { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.unreachable += 1);
            }
            FaultKind::Slow { node, factor } if fits(node) => self.set_speed(node as usize, factor),
            FaultKind::Partition { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.partitioned += 1);
            }
            FaultKind::NoOrders { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.no_orders += 1);
            }
            FaultKind::PreemptAll { node } if fits(node) => self.preempt_node(node as usize),
            FaultKind::KillOldestJob => self.kill_oldest_job(),
            FaultKind::JobTracker => self.crash_jobtracker(),
            FaultKind::FrozenJobTracker => self.freeze_jobtracker(),
            _ => {}
        }
    }

    pub(super) fn heal_fault(&mut self, index: usize) {
        self.faults_open -= 1;
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match self.setup.faults[index].what.clone() {
            FaultKind::Tracker { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.dead -= 1);
            }
            FaultKind::Datanode { node } | FaultKind::FrozenDatanode { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.datanode_down -= 1);
            }
            FaultKind::FrozenTracker { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.frozen -= 1);
            }
            FaultKind::Node { node } if fits(node) => self.change_faults(node as usize, |faults| {
                faults.dead -= 1;
                faults.wiped -= 1;
            }),
            FaultKind::Rack { rack } => self.change_rack_faults(rack, |faults| faults.unreachable -= 1),
            FaultKind::Frozen { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.unreachable -= 1);
            }
            FaultKind::Slow { node, factor } if fits(node) => self.set_speed(node as usize, 1.0 / factor),
            FaultKind::Partition { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.partitioned -= 1);
            }
            FaultKind::NoOrders { node } if fits(node) => {
                self.change_faults(node as usize, |faults| faults.no_orders -= 1);
            }
            FaultKind::PreemptAll { .. } => self.resume_tasks_on_hold(),
            FaultKind::JobTracker => self.revive_jobtracker(),
            FaultKind::FrozenJobTracker => self.unfreeze_jobtracker(),
            _ => {}
        }
    }

    fn change_rack_faults(&mut self, rack: u32, change: impl Fn(&mut super::NodeFaults)) {
        for at in 0..self.nodes.len() {
            if self.setup.machines[at].rack == rack {
                self.change_faults(at, &change);
            }
        }
    }

    /// Changes the faults of a machine, and applies the consequences.
    fn change_faults(&mut self, at: usize, change: impl Fn(&mut super::NodeFaults)) {
        let (was_up, served, read) = {
            let node = &self.nodes[at];
            (node.is_up(), node.serves(), node.has_blocks())
        };
        let was_wiped = self.nodes[at].faults.wiped > 0;
        let was_frozen = self.nodes[at].faults.frozen > 0;
        change(&mut self.nodes[at].faults);
        if !was_wiped && self.nodes[at].faults.wiped > 0 {
            self.lose_checkpoints(at);
            self.nodes[at].lose_outputs();
            self.nodes[at].jobs.clear();
        }
        match (was_up, self.nodes[at].is_up()) {
            (true, false) => self.crash(at),
            (false, true) => self.restart(at),
            _ => {}
        }
        if was_frozen && self.nodes[at].faults.frozen == 0 {
            self.unfreeze_tracker(at);
        }
        match (served, self.nodes[at].serves()) {
            (true, false) => {
                self.unreachable += 1;
                self.drop_transfers_from(at);
                self.set_fetches_blocked(at, true);
            }
            (false, true) => {
                self.unreachable -= 1;
                // A machine that comes back after a loss of its disks has no map outputs.
                if !was_wiped {
                    self.set_fetches_blocked(at, false);
                }
            }
            _ => {}
        }
        match (read, self.nodes[at].has_blocks()) {
            (true, false) => {
                self.read_elsewhere(at);
                self.redirect_block_copies(at as u32);
            }
            (false, true) => {
                self.nodes[at].blocks_replaced = false;
                self.nodes[at].returns += 1;
                self.stop_repair(at as u32);
            }
            _ => {}
        }
    }

    /// Schedules the time at which the NameNode declares the DataNode of a machine dead.
    fn schedule_repair(&mut self, node: u32) {
        let returns = self.nodes[node as usize].returns;
        let at = self.now + self.setup.costs.datanode_timeout;
        self.queue.push(at, SimEvent::DatanodeDead { node, returns });
    }

    /// Kills the process of the tracker and all its attempts.
    fn crash(&mut self, at: usize) {
        let keys: Vec<u64> = self.nodes[at].runs.iter().map(|run| run.key).collect();
        for key in keys {
            self.remove_run(at, key);
        }
        let node = &mut self.nodes[at];
        node.inbox.clear();
        node.unreported.clear();
        node.next_agent_deadline = None;
        self.drop_copies_of(at);
    }

    /// Starts the tracker again as a new process.
    fn restart(&mut self, at: usize) {
        self.nodes[at].start_agent();
        self.connect_at(at, self.now + START);
    }

    /// Makes a frozen tracker continue and process the events that arrived meanwhile.
    fn unfreeze_tracker(&mut self, at: usize) {
        for event in std::mem::take(&mut self.nodes[at].inbox) {
            self.send_to_agent(at, event);
        }
        self.send_to_agent(at, AgentEvent::Tick);
    }

    /// Deletes the checkpoints of a machine, as if its disk was lost.
    pub(super) fn lose_checkpoints(&mut self, at: usize) {
        let lost = std::mem::take(&mut self.nodes[at].checkpoints);
        if let Some(checks) = &mut self.checks {
            checks.destroyed_checkpoints.extend(lost.into_keys());
        }
    }

    /// Notifies the JobTracker that the connection of a tracker is closed, if the network works.
    pub(super) fn close_connection(&mut self, at: usize) {
        let node = &self.nodes[at];
        if let Some(tracker) =
            node.tracker_id.filter(|_| node.faults.unreachable == 0 && node.faults.partitioned == 0)
        {
            let incarnation = Incarnation(node.incarnation);
            self.send_event(Event::Disconnection { tracker, incarnation });
        }
    }

    /// Blocks or unblocks the fetches of all reduces from a machine.
    fn set_fetches_blocked(&mut self, gone: usize, block: bool) {
        let now = self.now;
        let mut affected: Vec<(usize, u64)> = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for run in &mut node.runs {
                run.advance(now);
                let Work::Reduce(reduce) = &mut run.work else { continue };
                let Some(known_job) = self.jobs_known.get(&run.id.job()) else { continue };
                if reduce.final_stages.is_some() {
                    continue;
                }
                reduce.events_in_path = 0;
                if block {
                    reduce.fetch.block(&known_job.log, gone as u32);
                } else {
                    reduce.fetch.unblock(gone as u32);
                }
                affected.push((at, run.key));
            }
        }
        for (at, key) in affected {
            self.follow_map_events(at, key);
        }
    }

    /// Preempts all attempts on a machine, as a user would: splits its maps and pauses its reduces.
    fn preempt_node(&mut self, at: usize) {
        let running: Vec<AttemptId> = self.nodes[at].runs.iter().map(|run| run.id).collect();
        for attempt in running {
            let kind = if attempt.phase() == Phase::Map { PreemptKind::Split } else { PreemptKind::Pause };
            let request = self.manual_request();
            self.send_event(Event::Preemption { request, attempt, kind, by: "operator".into() });
        }
    }

    /// Resumes all tasks on hold, as a user would.
    pub(super) fn resume_tasks_on_hold(&mut self) {
        let Some(core) = &self.core else { return };
        let tasks = core.cluster().active_jobs().flat_map(|job| &job.tasks.reduce);
        let held = tasks.filter(|task| task.on_hold && task.viable_attempts().next().is_none());
        let held: Vec<TaskId> = held.map(|task| task.id).collect();
        for task in held {
            let request = self.manual_request();
            self.send_event(Event::Resumption { request, task, on: None, by: "operator".into() });
        }
    }

    fn kill_oldest_job(&mut self) {
        let job = self.core.as_ref().and_then(|core| core.cluster().active_jobs().next().map(|job| job.id));
        if let Some(job) = job {
            let request = self.request();
            self.send_event(Event::Kill { request, job, by: "operator".into() });
        }
    }
}
