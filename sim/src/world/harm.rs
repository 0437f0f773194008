//! Faults begin and are over.

use super::{Happening, World, run::Work};
use crate::fault::Harm;
use mrcore::{
    Event, Phase, Span,
    ids::{AttemptId, Incarnation, TaskId},
    task::Recall,
};

impl World {
    pub(super) fn harm(&mut self, index: usize) {
        let fault = self.setup.faults[index].clone();
        if fault.for_s.is_none() {
            self.faults_open -= 1;
        }
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match fault.what {
            Harm::Tracker { node } if fits(node) => {
                self.change(node as usize, |ills| ills.dead += 1);
                self.hang_up(node as usize);
            }
            Harm::Datanode { node } | Harm::StillDatanode { node } if fits(node) => {
                self.change(node as usize, |ills| ills.shut += 1);
                self.have_repaired(node);
            }
            Harm::Node { node } if fits(node) => {
                self.change(node as usize, |ills| {
                    ills.dead += 1;
                    ills.wiped += 1;
                });
                self.have_repaired(node);
            }
            Harm::StillTracker { node } if fits(node) => self.change(node as usize, |ills| ills.still += 1),
            Harm::Rack { rack } => self.each_in(rack, |ills| ills.dark += 1),
            Harm::Frozen { node } if fits(node) => self.change(node as usize, |ills| ills.dark += 1),
            Harm::Slow { node, factor } if fits(node) => self.change_pace(node as usize, factor),
            Harm::Partition { node } if fits(node) => self.change(node as usize, |ills| ills.cut += 1),
            Harm::Deaf { node } if fits(node) => self.change(node as usize, |ills| ills.deaf += 1),
            Harm::Meddle { node } if fits(node) => self.meddle(node as usize),
            Harm::Stop => self.stop_oldest(),
            Harm::JobTracker => self.lose_mind(),
            Harm::StillJobTracker => self.still_mind(),
            _ => {}
        }
    }

    pub(super) fn heal(&mut self, index: usize) {
        self.faults_open -= 1;
        let fits = |node: u32| (node as usize) < self.nodes.len();
        match self.setup.faults[index].what.clone() {
            Harm::Tracker { node } if fits(node) => self.change(node as usize, |ills| ills.dead -= 1),
            Harm::Datanode { node } | Harm::StillDatanode { node } if fits(node) => {
                self.change(node as usize, |ills| ills.shut -= 1);
            }
            Harm::StillTracker { node } if fits(node) => self.change(node as usize, |ills| ills.still -= 1),
            Harm::Node { node } if fits(node) => self.change(node as usize, |ills| {
                ills.dead -= 1;
                ills.wiped -= 1;
            }),
            Harm::Rack { rack } => self.each_in(rack, |ills| ills.dark -= 1),
            Harm::Frozen { node } if fits(node) => self.change(node as usize, |ills| ills.dark -= 1),
            Harm::Slow { node, factor } if fits(node) => self.change_pace(node as usize, 1.0 / factor),
            Harm::Partition { node } if fits(node) => self.change(node as usize, |ills| ills.cut -= 1),
            Harm::Deaf { node } if fits(node) => self.change(node as usize, |ills| ills.deaf -= 1),
            Harm::Meddle { .. } => self.let_go(),
            Harm::JobTracker => self.revive_mind(),
            Harm::StillJobTracker => self.wake_mind(),
            _ => {}
        }
    }

    fn each_in(&mut self, rack: u32, change: impl Fn(&mut super::Ills)) {
        for at in 0..self.nodes.len() {
            if self.setup.machines[at].rack == rack {
                self.change(at, &change);
            }
        }
    }

    /// Something about a machine's health changes, and what follows from that.
    fn change(&mut self, at: usize, change: impl Fn(&mut super::Ills)) {
        let (was_up, served, read) = {
            let node = &self.nodes[at];
            (node.is_up(), node.serves(), node.has_blocks())
        };
        let was_wiped = self.nodes[at].ills.wiped > 0;
        change(&mut self.nodes[at].ills);
        if !was_wiped && self.nodes[at].ills.wiped > 0 {
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
                self.strand(at);
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
    fn have_repaired(&mut self, node: u32) {
        let returns = self.nodes[node as usize].returns;
        self.queue.push(self.now + self.setup.costs.repair, Happening::Repaired { node, returns });
    }

    /// The tracker's process is gone, and all it ran.
    fn crash(&mut self, at: usize) {
        let keys: Vec<u64> = self.nodes[at].runs.iter().map(|run| run.key).collect();
        for key in keys {
            self.remove_run(at, key);
        }
        let node = &mut self.nodes[at];
        node.ended.clear();
        node.news.clear();
        node.unanswered = None;
        node.beat_version += 1;
    }

    /// It is there again, as another process.
    fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.incarnation += 1;
        node.number = None;
        node.answered = self.now;
        (node.seq, node.acked, node.acked_told) = (0, 0, 0);
        self.beat_at(at, self.now + Span::millis(100));
    }

    /// The JobTracker sees the connection of a process that died break.
    fn hang_up(&mut self, at: usize) {
        let node = &self.nodes[at];
        if let Some(tracker) = node.number.filter(|_| node.ills.dark == 0 && node.ills.cut == 0) {
            let incarnation = Incarnation(node.incarnation);
            self.tell(Event::Disconnection { tracker, incarnation });
        }
    }

    /// What reduces could fetch from a machine they cannot any more, or can again.
    fn each_shuffle(&mut self, gone: usize, block: bool) {
        let now = self.now;
        let mut affected: Vec<(usize, u64)> = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for run in &mut node.runs {
                run.settle(now);
                let Work::Reduce(reduce) = &mut run.work else { continue };
                let Some(known) = self.known.get(&run.id.job()) else { continue };
                if reduce.rest.is_some() {
                    continue;
                }
                if block {
                    reduce.fetch.block(&known.log, gone as u32);
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
        if node.returns == returns && (node.ills.wiped > 0 || node.ills.shut > 0) {
            node.replaced = true;
        }
    }

    /// Somebody takes slots back by hand: splits the maps and pauses the reduces of a machine.
    fn meddle(&mut self, at: usize) {
        let running: Vec<AttemptId> = self.nodes[at].runs.iter().map(|run| run.id).collect();
        for attempt in running {
            let how = if attempt.phase() == Phase::Map { Recall::Split } else { Recall::Pause };
            let request = self.request();
            self.meddling.insert(request);
            self.tell(Event::Preemption { request, attempt, how, by: "somebody".into() });
        }
    }

    /// Whatever somebody holds may go on.
    pub(super) fn let_go(&mut self) {
        let Some(mind) = &self.mind else { return };
        let tasks = mind.cluster().active_jobs().flat_map(|job| &job.tasks.reduce);
        let held = tasks.filter(|task| task.held && task.trying().next().is_none());
        let held: Vec<TaskId> = held.map(|task| task.id).collect();
        for task in held {
            let request = self.request();
            self.meddling.insert(request);
            self.tell(Event::Resumption { request, task, on: None, by: "somebody".into() });
        }
    }

    fn stop_oldest(&mut self) {
        let job = self.mind.as_ref().and_then(|mind| mind.cluster().active_jobs().next().map(|job| job.id));
        if let Some(job) = job {
            let request = self.request();
            self.tell(Event::Kill { request, job, by: "somebody".into() });
        }
    }
}
