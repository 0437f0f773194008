//! The experiments of the papers, scaled to one machine: real processes, paced tasks, runs of
//! minutes.
//!
//! [`Laptop::trials`] returns the trials as plain data. The caller runs them on a cluster and
//! passes the outcomes to [`Laptop::conclude`]. Times are at most a fifth of those in the paper.
//! The number of jobs, or their size relative to the cluster, is as in the paper.

use super::{Number, Paper, Reproduction, Results, change, chronos, hsrtf::plain_fair, per_run};
use crate::{
    Outcome, Workload, World,
    experiment::{Comparison, Variant, makespan_s},
    fault::{Fault, FaultKind},
    report::{by_group, charts, summary},
    rng::Rng,
    trial::{self, Paced, Trial},
};
use mrcore::ids::JobId;

/// An experiment: several policies with the same jobs.
struct Experiment {
    title: &'static str,
    variants: Vec<Variant>,
    workload: Workload,
    faults: Vec<Fault>,
}

/// The experiments of a paper for one machine.
pub struct Laptop {
    paper: Paper,
    parts: Vec<Experiment>,
}

impl Laptop {
    /// Returns the experiments of a paper; `None` if they cannot be shown on one machine.
    pub fn of(paper: Paper) -> Option<Self> {
        let parts = match paper {
            Paper::Chronos => vec![chronos_experiment("Fifo", "fifo"), chronos_experiment("Fair", "fair")],
            Paper::Hsrtf => vec![hsrtf_experiment()],
            Paper::Fcs => vec![fcs_experiment()],
            Paper::Coshh => return None,
        };
        Some(Self { paper, parts })
    }

    /// Returns the trials in the order of their execution.
    pub fn trials(&self) -> Vec<Trial> {
        let all = self.parts.iter().flat_map(|part| {
            let trial = |variant: &Variant| {
                let name = format!("{}, {}", part.title, variant.label);
                let mut trial = Trial::new(&name, variant, part.workload.clone(), part.faults.clone());
                if self.paper == Paper::Chronos {
                    trial.setup.replication = 2;
                }
                trial
            };
            part.variants.iter().map(trial).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// Compares the outcomes, one per trial, with the figures of the paper.
    pub fn conclude(self, outcomes: Vec<Outcome>) -> Reproduction {
        let mut out = Reproduction::new(
            &format!("{} on one machine", self.paper.title()),
            "8 nodes with 8 map and 4 reduce slots, as real processes on one machine; tasks read 64 KiB each, slowly. \
             A node that dies is lost after 4 s.",
        );
        let mut outcomes = outcomes.into_iter();
        for part in self.parts {
            let groups = part.workload.groups();
            let runs: Vec<Vec<Outcome>> =
                part.variants.iter().map(|_| outcomes.by_ref().take(1).collect()).collect();
            let slots = trial::setup(&part.variants[0]).slots();
            let comparison = Comparison {
                variants: part.variants,
                seeds: vec![1],
                runs,
                alone: Vec::new(),
                groups,
                slots,
            };
            claims(self.paper, part.title, &comparison, &mut out);
            let title = part.title;
            if part.faults.is_empty() {
                out.part(title, summary(&comparison), charts(&comparison));
            } else {
                out.part(title, chronos::recovery(&comparison), charts(&comparison));
            }
            out.part(format!("{title}: completion, s"), by_group(&comparison, makespan_s), String::new());
        }
        out
    }
}

/// Returns the Chronos experiment: the two jobs of the paper, with 67 and 219 maps of 8 s and 32
/// reduces each. A node dies when 45 % of the maps of the first job are done.
fn chronos_experiment(title: &'static str, inner: &str) -> Experiment {
    let job = |at_s, group, user, maps| Paced { at_s, group, user, maps: (maps, 8.0), reduces: (32, 3.0) };
    let jobs = [job(0.0, "small", "ann", 67), job(0.3, "large", "bob", 219)];
    let mut workload = trial::workload("chronos", &jobs);
    // As in the paper, only maps are lost.
    workload.jobs.iter_mut().for_each(|job| job.slow_start = 1.0);
    let never = [("fair.min_share_timeout", "never"), ("fair.fair_share_timeout", "never")];
    let early = [("early", "lost"), never[0], never[1]];
    let variants = vec![
        Variant::tuned(inner, inner, &never),
        Variant::tuned("chronos", &format!("chronos({inner})"), &early),
    ];
    let at_s = 0.45 * maps_done_s(&variants[0], &workload);
    let faults = vec![Fault { at_s, for_s: None, what: FaultKind::Node { node: 3 } }];
    Experiment { title, variants, workload, faults }
}

/// Simulates a workload without faults, and returns when the maps of the first job are done.
fn maps_done_s(variant: &Variant, workload: &Workload) -> f64 {
    let world = World::new(trial::setup(variant), workload.clone()).ok();
    let outcome = world.and_then(|world| world.run(None).ok());
    let done = outcome.and_then(|outcome| outcome.metrics.job(JobId(1))?.maps_done);
    done.map_or(0.0, |done| done.since(crate::BEGINNING).as_secs_f64())
}

/// Returns the hSRTF experiment: the 31 jobs of the paper in its order, in a fifth of the time.
/// Large and medium jobs use a larger fraction of the slots than in the paper, so that the cluster
/// is full when the small jobs arrive.
fn hsrtf_experiment() -> Experiment {
    let variants = ["hsrtf-pu", "hsrtf-pr"].map(Variant::plain);
    let variants = [Variant::plain("fifo"), plain_fair()].into_iter().chain(variants).collect();
    Experiment { title: "Sizes", variants, workload: hsrtf_workload(), faults: Vec::new() }
}

/// Returns the jobs of the hSRTF experiment.
pub(crate) fn hsrtf_workload() -> Workload {
    let kinds = [("large", 3, 60, (9, 14.0)), ("medium", 8, 15, (2, 14.0)), ("small", 20, 1, (1, 4.0))];
    let mut jobs = Vec::new();
    for (group, count, maps, reduces) in kinds {
        for _ in 0..count {
            let at_s = 2.0 * jobs.len() as f64;
            jobs.push(Paced { at_s, group, user: "all", maps: (maps, 10.0), reduces });
        }
    }
    trial::workload("hsrtf", &jobs)
}

/// Returns the FCS experiment: five sizes of reduce-heavy jobs in random order. The largest has
/// more reduces than the cluster has slots.
fn fcs_experiment() -> Experiment {
    let variants = vec![
        Variant::tuned("fcs", "fcs", &[("newly_launched", "2s")]),
        plain_fair(),
        Variant::plain("capacity"),
        Variant::tuned("fcs, kill", "fcs", &[("newly_launched", "2s"), ("preempt", "kill")]),
    ];
    Experiment { title: "Reduce-heavy", variants, workload: fcs_workload(1), faults: Vec::new() }
}

/// Returns the jobs of the FCS experiment. The seed decides their order and the times between them.
pub(crate) fn fcs_workload(seed: u64) -> Workload {
    let kinds = [
        ("1", 10, (4, 2.0), (1, 3.0)),
        ("2", 6, (8, 2.0), (2, 4.0)),
        ("3", 4, (24, 2.0), (6, 5.0)),
        ("4", 2, (96, 2.0), (16, 7.0)),
        ("5", 2, (240, 2.0), (40, 9.0)),
    ];
    let mut rng = Rng::of(seed, "fcs on a laptop");
    let mut order: Vec<usize> =
        kinds.iter().enumerate().flat_map(|(at, kind)| std::iter::repeat_n(at, kind.1)).collect();
    rng.shuffle(&mut order);
    let mut at_s = 0.0;
    let mut jobs = Vec::new();
    for kind in order {
        let (group, _, maps, reduces) = kinds[kind];
        jobs.push(Paced { at_s, group, user: "all", maps, reduces });
        at_s += rng.exponential(2.0);
    }
    trial::workload("fcs", &jobs)
}

/// Adds the claims of a paper, with the results of one of its experiments.
fn claims(paper: Paper, title: &str, comparison: &Comparison, out: &mut Reproduction) {
    let results = Results::ours(comparison);
    let versus = |group, one, other| change(results, group, one, other);
    let of = |label: &str, what: fn(&Outcome) -> Option<f64>| per_run(results, label, what);
    match paper {
        Paper::Chronos => {
            let inner = title.to_lowercase();
            let (first, second) = if title == "Fifo" { (-0.20, -0.10) } else { (-0.14, -0.02) };
            let wait = if title == "Fifo" { (51.0, 1.5) } else { (48.0, 2.0) };
            let small = versus(Some("small"), "chronos", &inner);
            out.claim(format!("{title}: first job"), Number::Change(first), small);
            let large = versus(Some("large"), "chronos", &inner);
            out.claim(format!("{title}: second job"), Number::Change(second), large);
            let maps = chronos::first_job_map_wait;
            out.claim(format!("{title}: recovery wait of maps"), Number::Seconds(wait.0), of(&inner, maps));
            let with = of("chronos", maps);
            out.claim(format!("{title}: recovery wait of maps with Chronos"), Number::Seconds(wait.1), with);
            let local = of("chronos", chronos::first_job_rerun_locality);
            out.claim(format!("{title}: recovery maps local with Chronos"), Number::Part(1.0), local);
        }
        Paper::Hsrtf => {
            for (one, other, group, paper) in [
                ("hsrtf-pr", "fifo", "small", -0.45),
                ("hsrtf-pr", "fair", "small", -0.26),
                ("hsrtf-pu", "fifo", "small", -0.43),
                ("hsrtf-pr", "fifo", "large", 0.10),
                ("hsrtf-pr", "fair", "large", 0.002),
            ] {
                let ours = versus(Some(group), one, other);
                out.claim(format!("{group} jobs, {one} against {other}"), Number::Change(paper), ours);
            }
        }
        Paper::Fcs => {
            for (other, paper) in [("fair", -0.28), ("capacity", -0.889), ("fcs, kill", -0.113)] {
                let ours = versus(None, "fcs", other);
                out.claim(format!("all jobs, fcs against {other}"), Number::Change(paper), ours);
            }
        }
        Paper::Coshh => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates the experiments, and checks that all of them together take less than 8 minutes.
    fn simulated(paper: Paper) -> Reproduction {
        let laptop = Laptop::of(paper).expect("the paper has experiments for one machine");
        let run = |Trial { setup, workload, name, .. }: Trial| {
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            assert_eq!(outcome.unfinished, 0, "{name}");
            outcome
        };
        let outcomes: Vec<Outcome> = laptop.trials().into_iter().map(run).collect();
        let all: f64 = outcomes.iter().map(|outcome| outcome.end.since(mrcore::Time(0)).as_secs_f64()).sum();
        assert!(all < 480.0, "{} takes {all} s, more than 8 minutes", paper.name());
        laptop.conclude(outcomes)
    }

    fn ours(of: &Reproduction, what: &str) -> f64 {
        let claim = of.claims.iter().find(|claim| claim.what == what);
        claim.and_then(|claim| claim.ours.ours()).unwrap_or_else(|| panic!("no claim about {what}")).mean
    }

    #[test]
    fn simulated_laptop_experiments_confirm_the_main_claims_of_the_papers() {
        let chronos = simulated(Paper::Chronos);
        println!("{}", chronos.text());
        assert!(ours(&chronos, "Fifo: first job") < -0.05, "the first job gains too little");
        assert!(ours(&chronos, "Fifo: recovery wait of maps with Chronos") < 2.0);
        assert!(ours(&chronos, "Fifo: recovery maps local with Chronos") > 0.99);
        let hsrtf = simulated(Paper::Hsrtf);
        println!("{}", hsrtf.text());
        assert!(ours(&hsrtf, "small jobs, hsrtf-pu against fifo") < 0.0, "small jobs do not gain under pu");
        let fcs = simulated(Paper::Fcs);
        println!("{}", fcs.text());
        assert!(ours(&fcs, "all jobs, fcs against fair") < -0.1, "jobs gain too little");
    }
}
