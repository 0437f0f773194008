//! "What if?" over a finished history: the policy that really ran first, to see how far the model is off; then others.

use crate::{
    Setup,
    experiment::{Comparison, Experiment, ExperimentError, Variant},
    fault::Fault,
    report::{percent, show},
    setup::Machine,
    trial::Fidelity,
    workload::history::History,
};
use mrcore::{PerPhase, Span};

/// What is to be tried.
#[derive(Debug, Clone)]
pub struct WhatIf {
    /// The policy that really ran.
    pub ran: Variant,
    /// Those to try instead.
    pub others: Vec<Variant>,
    /// Slots of each node; as many as were ever used at a time if not said.
    pub slots: Option<PerPhase<u32>>,
    /// Nodes more or less.
    pub nodes: i32,
    /// What goes wrong in the alternatives.
    pub faults: Vec<Fault>,
}

/// What came of it.
#[derive(Debug)]
pub struct Replay {
    /// How far the model is off under the policy that really ran.
    pub fidelity: Fidelity,
    /// The policy that ran, and the others.
    pub comparison: Comparison,
}

/// What really ran, as a comparison of one policy: slowdowns are against the first job of each group that succeeded, alone and simulated.
pub fn as_it_was(mut history: History, scheduler: &str) -> Result<Comparison, ExperimentError> {
    let (nodes, slots) = (history.trackers.len().max(1) as u32, history.slots);
    let mut succeeded = history.real.iter().map(|real| real.succeeded);
    history.workload.jobs.retain(|_| succeeded.next().unwrap_or(false));
    let mut comparison = experiment(&history, nodes, slots, Vec::new(), Vec::new(), true)?;
    for (_, job) in history.metrics.jobs() {
        if !comparison.groups.contains(&job.group) {
            comparison.groups.push(job.group.clone());
        }
    }
    comparison.variants = vec![Variant::plain(scheduler)];
    comparison.runs = vec![vec![history.outcome(scheduler)]];
    Ok(comparison)
}

/// Replays a history.
pub fn replay(history: &History, what: &WhatIf) -> Result<Replay, ExperimentError> {
    let slots = what.slots.unwrap_or(history.slots);
    let nodes = history.trackers.len().max(1) as u32;
    let before = experiment(history, nodes, slots, Vec::new(), vec![what.ran.clone()], false)?;
    let simulated =
        before.runs[0][0].metrics.jobs().map(|(_, job)| job.makespan().map_or(0.0, Span::as_secs_f64));
    let both = history.real.iter().zip(simulated);
    let jobs = both.map(|(real, simulated)| (real.name.clone(), real.makespan.as_secs_f64(), simulated));
    let fidelity = Fidelity { jobs: jobs.collect() };
    let variants = std::iter::once(&what.ran).chain(&what.others).cloned().collect();
    let nodes = nodes.saturating_add_signed(what.nodes).max(1);
    let comparison = experiment(history, nodes, slots, what.faults.clone(), variants, false)?;
    Ok(Replay { fidelity, comparison })
}

fn experiment(
    history: &History,
    nodes: u32,
    slots: PerPhase<u32>,
    faults: Vec<Fault>,
    variants: Vec<Variant>,
    alone: bool,
) -> Result<Comparison, ExperimentError> {
    let mut setup = Setup::even(nodes, slots, "fifo");
    // What a task took is known: it is the machine that it took it on.
    setup.machines =
        vec![Machine { rack: 0, disk: 1e12, nic: 1e10, ..setup.machines[0].clone() }; nodes as usize];
    setup.faults = faults;
    setup.costs.start = Span(0);
    let experiment = Experiment {
        setup,
        faults: None,
        workload: &|_| history.workload.clone(),
        users: Vec::new(),
        variants,
        seeds: 1,
        limit: None,
        alone,
    };
    experiment.run()
}

impl Replay {
    /// The policy with the least mean makespan, what it gains against the one that ran, and what that costs.
    pub fn advice(&self) -> String {
        let mean = |at: usize| self.comparison.mean_over(at, None, crate::experiment::makespan_s);
        // One under which more jobs fail or do not end is no advice, whatever its mean.
        let undone = |at: usize| self.comparison.undone(at, None);
        let best = (0..self.comparison.variants.len())
            .filter(|at| undone(*at).0 <= undone(0).0 && undone(*at).1 <= undone(0).1)
            .min_by(|one, other| mean(*one).mean.total_cmp(&mean(*other).mean));
        let best = best.unwrap_or(0);
        let (ran, label) = (&self.comparison.variants[0].label, &self.comparison.variants[best].label);
        if best == 0 {
            return format!("keep {ran}: none of the others has a lower mean makespan ({} s)", show(mean(0)));
        }
        let gain = mean(best).less_than(mean(0));
        let worst = self.comparison.groups.iter().map(|group| {
            let mean = |at: usize| self.comparison.mean_over(at, Some(group), crate::experiment::makespan_s);
            (-mean(best).less_than(mean(0)), group)
        });
        let worst = worst.max_by(|one, other| one.0.total_cmp(&other.0));
        let cost = match worst {
            Some((more, group)) if more > 0.0 => format!("; {group} jobs take {} longer", percent(more)),
            _ => "; no group of jobs is worse off".into(),
        };
        format!(
            "use {label}: mean makespan {} s instead of {} s ({} less){cost}; the model was {} off on what really ran",
            show(mean(best)),
            show(mean(0)),
            percent(gain),
            percent(self.fidelity.error())
        )
    }
}
