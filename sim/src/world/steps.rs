//! Executes scenarios: each step starts or ends a fault when it is due.
//!
//! Actions that the simulator does not support (`ScenarioAction::not_simulated`) are skipped; the
//! caller reports them.

use super::{SimEvent, World};
use crate::{
    fault::{Fault, FaultKind},
    rng::Rng,
    scenario::{self, Daemons, JobMark, JobRef, NodeRef, ScenarioAction, Step, When},
};
use mrcore::{Phase, Span, ids::JobId};

/// How long a daemon that is restarted while it runs is down.
const RESTART: Span = Span::millis(500);

/// State of the scenario.
#[derive(Debug)]
pub(super) struct ScenarioState {
    /// Steps that wait for the progress of a job.
    waiting_steps: Vec<usize>,
    /// Faults without a duration, until another step ends them.
    open_faults: Vec<usize>,
    /// Actions to be undone when their duration has passed, with their targets.
    undos: Vec<(ScenarioAction, Target)>,
    /// Target of the last step.
    last_target: Option<Target>,
    rng: Rng,
}

/// Target of a step in the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Node(u32),
    JobTracker,
}

impl Target {
    /// Returns a pair of faults for each daemon of the target: the daemon is dead, and the daemon
    /// is frozen.
    fn daemon_faults(self, daemons: Daemons) -> Vec<(FaultKind, FaultKind)> {
        let Self::Node(node) = self else {
            return vec![(FaultKind::JobTracker, FaultKind::FrozenJobTracker)];
        };
        let datanode = (FaultKind::Datanode { node }, FaultKind::FrozenDatanode { node });
        let tracker = (FaultKind::Tracker { node }, FaultKind::FrozenTracker { node });
        match daemons {
            Daemons::Both => vec![datanode, tracker],
            Daemons::Datanode => vec![datanode],
            Daemons::Tasktracker => vec![tracker],
        }
    }
}

impl ScenarioState {
    pub(super) fn new(seed: u64) -> Self {
        let (waiting_steps, open_faults, undos) = (Vec::new(), Vec::new(), Vec::new());
        Self { waiting_steps, open_faults, undos, last_target: None, rng: Rng::of(seed, "scenario") }
    }
}

impl World {
    /// Schedules the steps that have a time. The other steps wait for their job.
    pub(super) fn plan_steps(&mut self) {
        for (index, Step { when, after, .. }) in self.setup.steps.iter().enumerate() {
            match when {
                When::At(at) => {
                    self.queue.push(self.now + *at + *after, SimEvent::Step { index: index as u32 });
                }
                When::Job(..) => self.scenario.waiting_steps.push(index),
            }
        }
    }

    /// Starts steps whose condition is met.
    pub(super) fn check_conditions(&mut self) {
        if self.scenario.waiting_steps.is_empty() {
            return;
        }
        let Some(core) = &self.core else { return };
        let due = |index: &usize| {
            let When::Job(job, mark) = &self.setup.steps[*index].when else { return false };
            let Some(job) = core.cluster().job(job_id(job)) else { return false };
            let done = |phase: Phase, part: f64| {
                f64::from(job.succeeded[phase]) >= part * job.tasks[phase].len() as f64
            };
            match *mark {
                JobMark::Submitted => true,
                JobMark::Maps(part) => done(Phase::Map, part),
                JobMark::Reduces(part) => done(Phase::Reduce, part),
                JobMark::Ended => job.has_ended(),
            }
        };
        let (due, waiting): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut self.scenario.waiting_steps).into_iter().partition(due);
        self.scenario.waiting_steps = waiting;
        for index in due {
            let after = self.setup.steps[index].after;
            self.queue.push(self.now + after, SimEvent::Step { index: index as u32 });
        }
    }

    /// Executes a step.
    pub(super) fn step(&mut self, index: usize) {
        let Step { action, lasts, .. } = self.setup.steps[index].clone();
        if action.not_simulated().is_some() {
            return;
        }
        let started = self.setup.faults.len();
        if let ScenarioAction::Heal { node: None } = action {
            return self.heal_links(None);
        }
        let Some(target) = action.node().and_then(|who| self.target(who)) else { return };
        let affected = match &action {
            ScenarioAction::Partition { to, .. } => {
                self.target(&to.clone()).and_then(|to| isolated_side(target, to))
            }
            _ => Some(target),
        };
        let Some(affected) = affected else { return };
        self.scenario.last_target = Some(target);
        self.action(&action, target, affected, lasts);
        self.fault_times.extend((self.setup.faults.len() > started).then_some(self.now));
        let unfinished = matches!(
            action,
            ScenarioAction::Kill { .. } | ScenarioAction::Stop { .. } | ScenarioAction::Partition { .. }
        );
        if let Some(lasts) = lasts.filter(|_| unfinished) {
            let index = self.scenario.undos.len() as u32;
            self.scenario.undos.push((action, affected));
            self.faults_open += 1;
            self.queue.push(self.now + lasts, SimEvent::Undo { index });
        }
    }

    /// Undoes a step after its duration, like a user who runs the opposite command. Daemons that
    /// another step has already restarted are therefore restarted again.
    pub(super) fn undo(&mut self, index: usize) {
        self.faults_open -= 1;
        let (action, target) = self.scenario.undos[index].clone();
        match action {
            ScenarioAction::Kill { daemons, .. } => self.restart_daemons(target, daemons),
            ScenarioAction::Stop { daemons, .. } => self.unfreeze(target, daemons),
            _ => self.heal_links(Some(target)),
        }
    }

    fn action(&mut self, action: &ScenarioAction, target: Target, affected: Target, lasts: Option<Span>) {
        match (action, affected) {
            (ScenarioAction::Kill { daemons, .. }, _) => {
                for (dead, frozen) in target.daemon_faults(*daemons) {
                    self.begin_fault(dead);
                    // A dead process is no longer frozen.
                    self.end_faults(|kind| *kind == frozen);
                }
            }
            (ScenarioAction::Stop { daemons, .. }, _) => {
                target.daemon_faults(*daemons).into_iter().for_each(|(_, frozen)| self.begin_fault(frozen));
            }
            (ScenarioAction::Cont { daemons, .. }, _) => self.unfreeze(target, *daemons),
            (ScenarioAction::Restart { daemons, .. }, _) => self.restart_daemons(target, *daemons),
            (ScenarioAction::Heal { .. }, _) => self.heal_links(Some(target)),
            (ScenarioAction::Slow { share, .. }, Target::Node(node)) => {
                let slow = FaultKind::Slow { node, factor: 1.0 / share };
                self.inject_for(slow, lasts.unwrap_or_default());
            }
            // If only messages from the JobTracker to the machine are lost, only orders are lost. If
            // messages to the JobTracker are lost, the machine is unreachable for it.
            (ScenarioAction::Partition { one_way: true, .. }, Target::Node(node))
                if target == Target::JobTracker =>
            {
                self.begin_fault(FaultKind::NoOrders { node });
            }
            (ScenarioAction::Partition { .. }, Target::Node(node)) => {
                self.begin_fault(FaultKind::Partition { node });
            }
            _ => {}
        }
    }

    /// Returns the target of a step.
    fn target(&mut self, who: &NodeRef) -> Option<Target> {
        let count = self.nodes.len() as u32;
        let found = match who {
            NodeRef::Named(name) if name == "jobtracker" || name == "master" => {
                return Some(Target::JobTracker);
            }
            NodeRef::Named(name) => scenario::node_index(name).filter(|at| *at < count),
            NodeRef::Same => return self.scenario.last_target,
            NodeRef::Any => self.pick_random(|_, _| true),
            NodeRef::Running(job) => {
                let job = job_id(job);
                let runs =
                    |world: &Self, at: usize| world.nodes[at].runs.iter().any(|run| run.id.job() == job);
                self.pick_random(runs).or_else(|| self.pick_random(|_, _| true))
            }
        };
        found.map(Target::Node)
    }

    fn pick_random(&mut self, fits: impl Fn(&Self, usize) -> bool) -> Option<u32> {
        let all = (0..self.nodes.len()).filter(|at| self.nodes[*at].can_communicate() && fits(self, *at));
        let all: Vec<usize> = all.collect();
        if all.is_empty() { None } else { Some(all[self.scenario.rng.index(all.len())] as u32) }
    }

    /// Makes frozen daemons continue.
    fn unfreeze(&mut self, target: Target, daemons: Daemons) {
        let faults = target.daemon_faults(daemons);
        self.end_faults(|kind| faults.iter().any(|(_, frozen)| kind == frozen));
    }

    /// Starts daemons as new processes. Running or frozen processes are killed first.
    fn restart_daemons(&mut self, target: Target, daemons: Daemons) {
        for (dead, frozen) in target.daemon_faults(daemons) {
            let open = &self.scenario.open_faults;
            if !open.iter().any(|index| self.setup.faults[*index].what == dead) {
                self.inject_for(dead.clone(), RESTART);
            }
            self.end_faults(|kind| *kind == dead || *kind == frozen);
        }
    }

    /// Restores the links of a machine; for the JobTracker or `None`, all links.
    fn heal_links(&mut self, target: Option<Target>) {
        self.end_faults(|kind| match *kind {
            FaultKind::Partition { node } | FaultKind::NoOrders { node } => match target {
                Some(Target::Node(of)) => node == of,
                Some(Target::JobTracker) | None => true,
            },
            _ => false,
        });
    }

    /// Starts a fault that lasts until another step ends it.
    fn begin_fault(&mut self, what: FaultKind) {
        let index = self.setup.faults.len();
        self.setup.faults.push(Fault { at_s: 0.0, for_s: None, what });
        self.faults_open += 1;
        self.inject_fault(index);
        self.scenario.open_faults.push(index);
    }

    /// Starts a fault with a fixed duration.
    pub(super) fn inject_for(&mut self, what: FaultKind, lasts: Span) {
        let index = self.setup.faults.len();
        self.setup.faults.push(Fault { at_s: 0.0, for_s: Some(lasts.as_secs_f64()), what });
        self.faults_open += 1;
        self.inject_fault(index);
        self.queue.push(self.now + lasts, SimEvent::Heal { index: index as u32 });
    }

    /// Ends the faults without a duration that match `which`.
    fn end_faults(&mut self, which: impl Fn(&FaultKind) -> bool) {
        let open = std::mem::take(&mut self.scenario.open_faults);
        let ends = |index: &usize| which(&self.setup.faults[*index].what);
        let (over, open): (Vec<usize>, Vec<usize>) = open.into_iter().partition(ends);
        self.scenario.open_faults = open;
        for index in over {
            self.faults_open += 1;
            self.heal_fault(index);
        }
    }
}

/// Returns the ID of a job: the nth submitted job has ID n.
fn job_id(job: &JobRef) -> JobId {
    match *job {
        JobRef::Nth(number) => JobId(number),
        JobRef::Number(number) => JobId(u32::try_from(number).unwrap_or(u32::MAX)),
    }
}

/// Returns the isolated side of a partition: the one that is not the JobTracker.
fn isolated_side(one: Target, other: Target) -> Option<Target> {
    [one, other].into_iter().find(|end| *end != Target::JobTracker)
}

#[cfg(test)]
mod tests {
    use super::RESTART;
    use crate::{
        Outcome, World, scenario,
        trial::{Trial, short},
    };
    use mrcore::{Span, tracker::TrackerState};

    fn world(text: &str) -> World {
        let Trial { mut setup, workload, .. } = short();
        let file = scenario::parse(text).expect("it reads");
        (setup.steps, setup.faults) = (file.steps, file.faults);
        World::new(setup, workload).expect("a policy")
    }

    fn run_scenario(text: &str) -> Outcome {
        let outcome = world(text).run(None).expect("no rule broken");
        assert_eq!(outcome.unfinished, 0, "{text}");
        outcome
    }

    /// Runs the simulation until this many seconds after the start.
    fn run_until(world: &mut World, seconds: f64) {
        let until = crate::BEGINNING + Span((seconds * 1e6) as u64);
        loop {
            let (at, what) = world.queue.pop().expect("it continues");
            if at >= until {
                world.queue.push(at, what);
                world.now = until;
                return;
            }
            world.now = at;
            world.handle_event(what);
        }
    }

    fn step(at: &str, verb: &str, node: &str, more: &str) -> String {
        format!("[[step]]\nat = \"{at}\"\ndo = \"{verb}\"\nnode = \"{node}\"\n{more}\n")
    }

    fn tracker_state(world: &World, node: usize) -> TrackerState {
        let core = world.core.as_ref().expect("the JobTracker is there");
        core.cluster().tracker_named(&world.nodes[node].name).expect("it has registered").state
    }

    fn recovered_tasks(outcome: &Outcome) -> u32 {
        outcome.metrics.jobs().map(|(_, job)| job.recovery.tasks).sum()
    }

    #[test]
    fn node_dies_when_a_job_reaches_a_mark() {
        let calm = run_scenario("");
        let step = |when: &str| format!("[[step]]\n{when}\ndo = \"kill\"\nnode = \"any running job 1\"\n");
        let disturbed = run_scenario(&step("when = \"job 1 maps 40%\""));
        assert_eq!((recovered_tasks(&calm), recovered_tasks(&disturbed) > 0), (0, true));
        assert!(disturbed.end > calm.end);
        assert_eq!(
            (calm.fault_times.len(), disturbed.fault_times.len()),
            (0, 1),
            "the death of both daemons counts as one fault"
        );
        // The same steps give the same run. A step whose condition is never met has no effect.
        assert_eq!(run_scenario(&step("when = \"job 1 maps 40%\"")).hash, disturbed.hash);
        assert_eq!(run_scenario(&step("when = \"job 9 over\"")).hash, calm.hash);
    }

    #[test]
    fn later_steps_end_faults_of_earlier_steps() {
        let calm = run_scenario("");
        for (verb, undo) in [("stop", "cont"), ("kill", "restart"), ("stop", "restart")] {
            let both = step("2s", verb, "jobtracker", "") + &step("9s", undo, "same", "");
            assert!(run_scenario(&both).end > calm.end, "the fault of the JobTracker did not delay the jobs");
            let both = step("2s", verb, "node3", "") + &step("9s", undo, "same", "");
            assert!(recovered_tasks(&run_scenario(&both)) > 0);
        }
        let partitioned = step("2s", "partition", "node2", "from = \"jobtracker\"");
        for end in ["", "node = \"node2\"", "node = \"master\""] {
            let mut world = world(&format!("{partitioned}[[step]]\nat = \"12s\"\ndo = \"heal\"\n{end}\n"));
            run_until(&mut world, 11.0);
            assert!(!world.nodes[1].can_communicate());
            run_until(&mut world, 13.0);
            assert!(world.nodes[1].can_communicate(), "{end}");
            assert!(recovered_tasks(&world.run(None).expect("no rule broken")) > 0);
        }
        // An action that is not simulated has no effect.
        assert_eq!(run_scenario(&step("2s", "fill-disk", "node2", "")).hash, calm.hash);
    }

    #[test]
    fn frozen_jobtracker_keeps_its_state() {
        let calm = run_scenario("");
        let last = calm.end.since(crate::BEGINNING).as_secs_f64() as u64;
        for at in 0..=last {
            let frozen = run_scenario(&step(&format!("{at}500ms"), "stop", "jobtracker", "for = \"3s\""));
            assert!(frozen.end <= calm.end + Span::secs(10), "at {at} s: {} after {}", frozen.end, calm.end);
        }
        // A frozen process that is killed is dead. `cont` does not start it; only a restart does.
        let text = step("2s", "stop", "jobtracker", "")
            + &step("3s", "kill", "jobtracker", "for = \"9s\"")
            + &step("4s", "cont", "jobtracker", "");
        let mut world = world(&text);
        run_until(&mut world, 11.0);
        assert!(world.core.is_none());
        run_until(&mut world, 13.0);
        assert!(world.core.is_some());
        assert_eq!(world.run(None).expect("no rule broken").unfinished, 0);
    }

    #[test]
    fn killed_node_is_detected_and_keeps_its_files() {
        let mut world = world(&step("5s", "kill", "node2", "for = \"3s\""));
        run_until(&mut world, 4.9);
        let outputs = world.nodes[1].outputs.clone();
        assert!(!outputs.is_empty() && !world.nodes[1].runs.is_empty());
        run_until(&mut world, 5.1);
        assert_eq!(tracker_state(&world, 1), TrackerState::Suspect, "its connection broke");
        assert!(world.nodes[1].runs.is_empty() && !world.nodes[1].has_blocks());
        run_until(&mut world, 8.5);
        assert_eq!(tracker_state(&world, 1), TrackerState::Live);
        assert!(
            world.nodes[1].has_blocks()
                && outputs.keys().all(|output| world.nodes[1].outputs.contains_key(output))
        );
        // A node that is dead for longer than the timeout still has its outputs, because its disks
        // remain.
        let wiped = run_scenario("[[fault]]\nat_s = 5.0\nfor_s = 3.0\nwhat = \"node\"\nnode = 1\n");
        let killed = run_scenario(&step("5s", "kill", "node2", "for = \"3s\""));
        assert!(
            recovered_tasks(&killed) < recovered_tasks(&wiped),
            "maps ran again although their output was on disk"
        );
    }

    #[test]
    fn daemons_of_a_node_are_killed_and_stopped_separately() {
        let mut one = world(&step("3s", "kill", "node2", "daemon = \"datanode\"\nfor = \"2s\""));
        run_until(&mut one, 4.0);
        assert!(one.nodes[1].can_communicate() && !one.nodes[1].has_blocks());
        run_until(&mut one, 5.5);
        assert!(one.nodes[1].has_blocks());
        let text = step("3s", "stop", "node2", "") + &step("4s", "cont", "node2", "daemon = \"tasktracker\"");
        let mut one = world(&text);
        run_until(&mut one, 3.5);
        assert!(!one.nodes[1].serves() && !one.nodes[1].has_blocks() && !one.nodes[1].runs.is_empty());
        run_until(&mut one, 4.5);
        assert!(one.nodes[1].serves() && !one.nodes[1].has_blocks(), "the DataNode is still frozen");
    }

    #[test]
    fn running_daemons_are_stopped_before_a_restart() {
        let calm = run_scenario("");
        let again = run_scenario(&step("5s", "restart", "node2", ""));
        assert!(again.hash != calm.hash && again.fault_times.len() == 1);
        let mut one = world(&step("5s", "restart", "node2", ""));
        run_until(&mut one, 5.1);
        assert!(!one.nodes[1].is_up() && one.nodes[1].runs.is_empty());
        run_until(&mut one, 5.1 + RESTART.as_secs_f64());
        assert_eq!((one.nodes[1].is_up(), one.nodes[1].incarnation), (true, 2));
        assert!(run_scenario(&step("5s", "restart", "jobtracker", "")).hash != calm.hash);
        // A daemon that is restarted before the end of its fault runs. At the end of the fault it
        // is restarted again.
        let text = step("3s", "kill", "node2", "for = \"9s\"") + &step("5s", "restart", "node2", "");
        let mut one = world(&text);
        for (at, incarnation, is_up) in [(4.0, 1, false), (5.1, 2, true), (12.1, 2, false), (13.0, 3, true)] {
            run_until(&mut one, at);
            let node = &one.nodes[1];
            assert_eq!((node.incarnation, node.is_up()), (incarnation, is_up), "at {at} s");
        }
        // A frozen node is killed before the restart, with its attempts.
        let mut one =
            world(&(step("3s", "stop", "node2", "for = \"20s\"") + &step("5s", "restart", "node2", "")));
        run_until(&mut one, 5.7);
        assert_eq!((one.nodes[1].incarnation, one.nodes[1].can_communicate()), (2, true));
        run_until(&mut one, 24.0);
        assert!(one.nodes[1].can_communicate(), "the end of the stop step must change nothing");
    }
}
