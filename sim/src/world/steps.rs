//! Scenarios are played: each step becomes a fault when its time has come, or ends one.
//!
//! What the simulator has nothing like (`Act::not_simulated`) is passed over; whoever reads the file says so.

use super::{Happening, World};
use crate::{
    chance::Dice,
    fault::{Fault, Harm},
    scenario::{self, Act, Half, JobRef, Mark, Step, When, Who},
};
use mrcore::{Phase, Span, ids::JobId};

/// How far the scenario is.
#[derive(Debug)]
pub(super) struct Progress {
    /// Steps that wait for a job.
    waiting: Vec<usize>,
    /// Faults that steps have begun and that stay until another step ends them.
    open: Vec<usize>,
    /// The machine of the last step.
    last: Option<u32>,
    dice: Dice,
}

/// Whom a step is for, in this world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Node(u32),
    JobTracker,
}

impl Progress {
    pub(super) fn new(seed: u64) -> Self {
        Self { waiting: Vec::new(), open: Vec::new(), last: None, dice: Dice::of(seed, "scenario") }
    }
}

impl World {
    /// Steps with a time are put where they belong; the others wait.
    pub(super) fn plan_steps(&mut self) {
        for (index, Step { when, after, .. }) in self.setup.steps.iter().enumerate() {
            match when {
                When::At(at) => {
                    self.queue.push(self.now + *at + *after, Happening::Step { index: index as u32 });
                }
                When::Job(..) => self.scenario.waiting.push(index),
            }
        }
    }

    /// Whether what a step waits for has come.
    pub(super) fn look_at_conditions(&mut self) {
        if self.scenario.waiting.is_empty() {
            return;
        }
        let Some(mind) = &self.mind else { return };
        let due = |index: &usize| {
            let When::Job(job, mark) = &self.setup.steps[*index].when else { return false };
            let Some(job) = mind.cluster().job(number(job)) else { return false };
            let done = |phase: Phase, part: f64| {
                f64::from(job.succeeded[phase]) >= part * job.tasks[phase].len() as f64
            };
            match *mark {
                Mark::Submitted => true,
                Mark::Maps(part) => done(Phase::Map, part),
                Mark::Reduces(part) => done(Phase::Reduce, part),
                Mark::Over => job.is_over(),
            }
        };
        let (due, waiting): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut self.scenario.waiting).into_iter().partition(due);
        self.scenario.waiting = waiting;
        for index in due {
            let after = self.setup.steps[index].after;
            self.queue.push(self.now + after, Happening::Step { index: index as u32 });
        }
    }

    /// A step has come.
    pub(super) fn step(&mut self, index: usize) {
        let Step { act, lasts, .. } = self.setup.steps[index].clone();
        if act.not_simulated().is_some() {
            return;
        }
        let target = act.node().and_then(|who| self.target(who));
        match &act {
            Act::Heal { node: None } => self.end_faults(None, is_cut),
            Act::Heal { .. } => self.end_faults(target, is_cut),
            Act::Cont { .. } => self.end_faults(target, |harm| matches!(harm, Harm::Frozen { .. })),
            Act::Restart { .. } => {
                self.end_faults(target, |harm| !is_cut(harm) && !matches!(harm, Harm::Slow { .. }));
            }
            _ => {
                let Some(what) = target.and_then(|target| self.harm_of(&act, target)) else { return };
                self.begin_fault(what, lasts);
            }
        }
    }

    fn target(&mut self, who: &Who) -> Option<Target> {
        let count = self.nodes.len() as u32;
        let found = match who {
            Who::Named(name) if name == "jobtracker" || name == "master" => return Some(Target::JobTracker),
            Who::Named(name) => scenario::number(name).filter(|at| *at < count),
            Who::Same => self.scenario.last,
            Who::Any => self.by_chance(|_, _| true),
            Who::Running(job) => {
                let job = number(job);
                let runs =
                    |world: &Self, at: usize| world.nodes[at].runs.iter().any(|run| run.id.job() == job);
                self.by_chance(runs).or_else(|| self.by_chance(|_, _| true))
            }
        };
        self.scenario.last = found.or(self.scenario.last);
        found.map(Target::Node)
    }

    fn by_chance(&mut self, fits: impl Fn(&Self, usize) -> bool) -> Option<u32> {
        let all = (0..self.nodes.len()).filter(|at| self.nodes[*at].is_heard() && fits(self, *at));
        let all: Vec<usize> = all.collect();
        if all.is_empty() { None } else { Some(all[self.scenario.dice.index(all.len())] as u32) }
    }

    fn harm_of(&mut self, act: &Act, target: Target) -> Option<Harm> {
        let node = match target {
            Target::Node(node) => node,
            Target::JobTracker => {
                return match act {
                    Act::Kill { .. } | Act::Stop { .. } => Some(Harm::JobTracker),
                    // The other end is the machine; what is lost on the way there, it does not hear.
                    Act::Partition { to, one_way, .. } => match self.target(&to.clone())? {
                        Target::Node(node) if *one_way => Some(Harm::Deaf { node }),
                        Target::Node(node) => Some(Harm::Partition { node }),
                        Target::JobTracker => None,
                    },
                    _ => None,
                };
            }
        };
        match act {
            Act::Kill { half: Half::Tasktracker, .. } => Some(Harm::Tracker { node }),
            Act::Kill { .. } => Some(Harm::Node { node }),
            Act::Stop { .. } => Some(Harm::Frozen { node }),
            Act::Slow { share, .. } => Some(Harm::Slow { node, factor: 1.0 / share }),
            Act::Partition { .. } => Some(Harm::Partition { node }),
            _ => None,
        }
    }

    fn begin_fault(&mut self, what: Harm, lasts: Option<Span>) {
        let index = self.setup.faults.len();
        let for_s = lasts.map(Span::as_secs_f64);
        self.setup.faults.push(Fault { at_s: 0.0, for_s, what });
        self.faults_open += 1;
        self.harm(index);
        match lasts {
            Some(lasts) => self.queue.push(self.now + lasts, Happening::Heal { index: index as u32 }),
            None => self.scenario.open.push(index),
        }
    }

    fn end_faults(&mut self, target: Option<Target>, which: impl Fn(&Harm) -> bool) {
        let ends = |world: &Self, index: usize| {
            let harm = &world.setup.faults[index].what;
            which(harm) && target.is_none_or(|target| of(harm) == Some(target))
        };
        let open = std::mem::take(&mut self.scenario.open);
        let (over, open): (Vec<usize>, Vec<usize>) = open.into_iter().partition(|index| ends(self, *index));
        self.scenario.open = open;
        for index in over {
            self.faults_open += 1;
            self.heal(index);
        }
    }
}

fn number(job: &JobRef) -> JobId {
    match *job {
        JobRef::Nth(number) => JobId(number),
        JobRef::Number(number) => JobId(u32::try_from(number).unwrap_or(u32::MAX)),
    }
}

fn is_cut(harm: &Harm) -> bool {
    matches!(harm, Harm::Partition { .. } | Harm::Deaf { .. })
}

fn of(harm: &Harm) -> Option<Target> {
    match *harm {
        Harm::Tracker { node }
        | Harm::Node { node }
        | Harm::Frozen { node }
        | Harm::Slow { node, .. }
        | Harm::Partition { node }
        | Harm::Deaf { node } => Some(Target::Node(node)),
        Harm::JobTracker => Some(Target::JobTracker),
        Harm::Rack { .. } | Harm::Meddle { .. } | Harm::Stop => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Outcome, World, scenario,
        trial::{Trial, short},
    };

    fn played(text: &str) -> Outcome {
        let Trial { mut setup, workload, .. } = short();
        setup.steps = scenario::parse(text).expect("it reads").steps;
        let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
        assert_eq!(outcome.unfinished, 0);
        outcome
    }

    fn recovered(outcome: &Outcome) -> u32 {
        outcome.metrics.jobs().map(|(_, job)| job.recovery.tasks).sum()
    }

    #[test]
    fn a_node_dies_when_a_job_has_come_so_far() {
        let calm = played("");
        let step = |when: &str| format!("[[step]]\n{when}\ndo = \"kill\"\nnode = \"any running job 1\"\n");
        let disturbed = played(&step("when = \"job 1 maps 40%\""));
        assert_eq!((recovered(&calm), recovered(&disturbed) > 0), (0, true));
        assert!(disturbed.end > calm.end);
        // The same twice, and nothing if its time never comes.
        assert_eq!(played(&step("when = \"job 1 maps 40%\"")).hash, disturbed.hash);
        assert_eq!(played(&step("when = \"job 9 over\"")).hash, calm.hash);
    }

    #[test]
    fn what_a_step_begins_another_ends() {
        let calm = played("");
        for (verb, undo) in [("stop", "cont"), ("kill", "restart")] {
            let begin = format!("[[step]]\nat = \"2s\"\ndo = \"{verb}\"\nnode = \"jobtracker\"\n");
            let end = format!("[[step]]\nat = \"9s\"\ndo = \"{undo}\"\nnode = \"jobtracker\"\n");
            // A JobTracker that stays away would leave the jobs undone.
            if verb == "kill" {
                assert!(played(&(begin + &end)).end > calm.end);
            } else {
                let node = begin.replace("jobtracker", "node3") + &end.replace("jobtracker", "same");
                assert!(recovered(&played(&node)) > 0);
            }
        }
        let cut = "[[step]]\nat = \"2s\"\ndo = \"partition\"\nnode = \"node2\"\nfrom = \"jobtracker\"\n";
        let mend = "[[step]]\nat = \"12s\"\ndo = \"heal\"\n";
        assert!(recovered(&played(&[cut, mend].concat())) > 0);
        // Nothing that it has.
        let disk = "[[step]]\nat = \"2s\"\ndo = \"fill-disk\"\nnode = \"node2\"\n";
        assert_eq!(played(disk).hash, calm.hash);
    }
}
