//! Faults begin and are over.

use super::{SimEvent, World, run::Work};
use crate::fault::FaultKind;
use mrcore::{
    Event, Phase, Span,
    ids::{AttemptId, Incarnation, TaskId},
    task::PreemptKind,
};

impl World {
    pub(super) fn inject(&mut self, index: usize) {
        let fault = self.setup.faults[index].clone();
        if fault.for_s.is_none() {
            self.faults_open -= 1;
        }
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match fault.what {
            FaultKind::Tracker { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.dead += 1);
                self.hang_up(node as usize);
            }
            FaultKind::Datanode { node } | FaultKind::FrozenDatanode { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.datanode_down += 1);
                self.schedule_repair(node);
            }
            FaultKind::Node { node } if fits(node) => {
                self.change(node as usize, |faults_of| {
                    faults_of.dead += 1;
                    faults_of.wiped += 1;
                });
                self.schedule_repair(node);
            }
            FaultKind::FrozenTracker { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.frozen += 1)
            }
            FaultKind::Rack { rack } => self.each_in(rack, |faults_of| faults_of.unreachable += 1),
            FaultKind::Frozen { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.unreachable += 1)
            }
            FaultKind::Slow { node, factor } if fits(node) => self.set_speed(node as usize, factor),
            FaultKind::Partition { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.partitioned += 1)
            }
            FaultKind::NoOrders { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.no_orders += 1)
            }
            FaultKind::PreemptAll { node } if fits(node) => self.preempt_node(node as usize),
            FaultKind::KillOldestJob => self.stop_oldest(),
            FaultKind::JobTracker => self.crash_jobtracker(),
            FaultKind::FrozenJobTracker => self.freeze_jobtracker(),
            _ => {}
        }
    }

    pub(super) fn heal(&mut self, index: usize) {
        self.faults_open -= 1;
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match self.setup.faults[index].what.clone() {
            FaultKind::Tracker { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.dead -= 1)
            }
            FaultKind::Datanode { node } | FaultKind::FrozenDatanode { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.datanode_down -= 1);
            }
            FaultKind::FrozenTracker { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.frozen -= 1)
            }
            FaultKind::Node { node } if fits(node) => self.change(node as usize, |faults_of| {
                faults_of.dead -= 1;
                faults_of.wiped -= 1;
            }),
            FaultKind::Rack { rack } => self.each_in(rack, |faults_of| faults_of.unreachable -= 1),
            FaultKind::Frozen { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.unreachable -= 1)
            }
            FaultKind::Slow { node, factor } if fits(node) => self.set_speed(node as usize, 1.0 / factor),
            FaultKind::Partition { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.partitioned -= 1)
            }
            FaultKind::NoOrders { node } if fits(node) => {
                self.change(node as usize, |faults_of| faults_of.no_orders -= 1)
            }
            FaultKind::PreemptAll { .. } => self.let_go(),
            FaultKind::JobTracker => self.revive_jobtracker(),
            FaultKind::FrozenJobTracker => self.unfreeze_jobtracker(),
            _ => {}
        }
    }

    fn each_in(&mut self, rack: u32, change: impl Fn(&mut super::NodeFaults)) {
        for at in 0..self.nodes.len() {
            if self.setup.machines[at].rack == rack {
                self.change(at, &change);
            }
        }
    }

    /// Something about a machine's health changes, and what follows from that.
    fn change(&mut self, at: usize, change: impl Fn(&mut super::NodeFaults)) {
        let (was_up, served, read) = {
            let node = &self.nodes[at];
            (node.is_up(), node.serves(), node.has_blocks())
        };
        let was_wiped = self.nodes[at].faults_of.wiped > 0;
        change(&mut self.nodes[at].faults_of);
        if !was_wiped && self.nodes[at].faults_of.wiped > 0 {
            let node = &mut self.nodes[at];
            node.outputs.clear();
            node.checkpoints.clear();
            node.jobs.clear();
        }
        match (was_up, self.nodes[at].is_up()) {
            (true, false) => self.crash(at),
            (false, true) => self.restart(at),
            _ => {}
        }
        match (served, self.nodes[at].serves()) {
            (true, false) => {
                self.unreachable += 1;
                self.drop_transfers_from(at);
                self.each_shuffle(at, true);
            }
            (false, true) => {
                self.unreachable -= 1;
                // What a machine has lost is not there again because it is.
                if !was_wiped {
                    self.each_shuffle(at, false);
                }
            }
            _ => {}
        }
        match (read, self.nodes[at].has_blocks()) {
            (true, false) => self.read_elsewhere(at),
            (false, true) => {
                self.nodes[at].replaced = false;
                self.nodes[at].returns += 1;
            }
            _ => {}
        }
    }

    /// The file system will make up for the blocks of a machine that gives none out.
    fn schedule_repair(&mut self, node: u32) {
        let returns = self.nodes[node as usize].returns;
        self.queue.push(self.now + self.setup.costs.repair, SimEvent::Repaired { node, returns });
    }

    /// The tracker's process is gone, and all it ran.
    fn crash(&mut self, at: usize) {
        let keys: Vec<u64> = self.nodes[at].runs.iter().map(|run| run.key).collect();
        for key in keys {
            self.remove_run(at, key);
        }
        let node = &mut self.nodes[at];
        node.ended.clear();
        node.map_events.clear();
        node.unanswered = None;
        node.beat_version += 1;
    }

    /// It is there again, as another process.
    fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.incarnation += 1;
        node.number = None;
        node.answered = self.now;
        (node.seq, node.acked, node.acked_reported) = (0, 0, 0);
        self.beat_at(at, self.now + Span::millis(100));
    }

    /// The JobTracker sees the connection of a process that died break.
    fn hang_up(&mut self, at: usize) {
        let node = &self.nodes[at];
        if let Some(tracker) =
            node.number.filter(|_| node.faults_of.unreachable == 0 && node.faults_of.partitioned == 0)
        {
            let incarnation = Incarnation(node.incarnation);
            self.send_event(Event::Disconnection { tracker, incarnation });
        }
    }

    /// What reduces could fetch from a machine they cannot any more, or can again.
    fn each_shuffle(&mut self, gone: usize, block: bool) {
        let now = self.now;
        let mut affected: Vec<(usize, u64)> = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for run in &mut node.runs {
                run.advance(now);
                let Work::Reduce(reduce) = &mut run.work else { continue };
                let Some(jobs_known) = self.jobs_known.get(&run.id.job()) else { continue };
                if reduce.final_stages.is_some() {
                    continue;
                }
                if block {
                    reduce.fetch.block(&jobs_known.log, gone as u32);
                } else {
                    reduce.fetch.unblock(gone as u32);
                }
                affected.push((at, run.key));
            }
        }
        for (at, key) in affected {
            self.follow(at, key);
        }
    }

    pub(super) fn repaired(&mut self, at: usize, returns: u32) {
        let node = &mut self.nodes[at];
        if node.returns == returns && (node.faults_of.wiped > 0 || node.faults_of.datanode_down > 0) {
            node.replaced = true;
        }
    }

    /// Somebody preempts slots by hand: splits the maps and pauses the reduces of a machine.
    fn preempt_node(&mut self, at: usize) {
        let running: Vec<AttemptId> = self.nodes[at].runs.iter().map(|run| run.id).collect();
        for attempt in running {
            let kind = if attempt.phase() == Phase::Map { PreemptKind::Split } else { PreemptKind::Pause };
            let request = self.request();
            self.manual_requests.insert(request);
            self.send_event(Event::Preemption { request, attempt, kind, by: "somebody".into() });
        }
    }

    /// Whatever somebody holds may continue.
    pub(super) fn let_go(&mut self) {
        let Some(core) = &self.core else { return };
        let tasks = core.cluster().active_jobs().flat_map(|job| &job.tasks.reduce);
        let held = tasks.filter(|task| task.on_hold && task.viable().next().is_none());
        let held: Vec<TaskId> = held.map(|task| task.id).collect();
        for task in held {
            let request = self.request();
            self.manual_requests.insert(request);
            self.send_event(Event::Resumption { request, task, on: None, by: "somebody".into() });
        }
    }

    fn stop_oldest(&mut self) {
        let job = self.core.as_ref().and_then(|core| core.cluster().active_jobs().next().map(|job| job.id));
        if let Some(job) = job {
            let request = self.request();
            self.send_event(Event::Kill { request, job, by: "somebody".into() });
        }
    }
}
