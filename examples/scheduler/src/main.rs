//! Compares the policy with built-in ones in the simulator:
//!
//!     cargo run --release -- [WORKLOAD [POLICIES [SEEDS]]]

mod policy;

use fermata_sim::{
    catalog::{self, Request},
    experiment::{Comparison, Experiment, Variant},
    report,
};
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let workload = arguments.next().unwrap_or_else(|| "hsrtf".into());
    let policies = arguments.next().unwrap_or_else(|| "fifo,fair,my-scheduler".into());
    let seeds = arguments.next().map_or(Ok(5), |seeds| seeds.parse())?;
    let comparison = compare(&Request { workload, ..Request::default() }, &policies, seeds)?;
    println!("{}", report::summary(&comparison).text());
    println!("{}", report::against_first(&comparison).text());
    Ok(())
}

/// Simulates a workload under policies such as `fifo,my-scheduler[factor=4]`.
fn compare(request: &Request, policies: &str, seeds: u64) -> Result<Comparison, Box<dyn Error>> {
    let mut case = catalog::open(request)?;
    case.setup.own_policies = policy::POLICIES;
    let variants = Variant::list_with(policy::POLICIES, policies)?;
    let experiment = Experiment {
        setup: case.setup,
        faults: None,
        workload: &case.workload,
        users: case.users,
        variants: variants.into_iter().map(|variant| variant.with_params(&case.params)).collect(),
        seeds: 1..1 + seeds,
        limit: None,
        alone: case.groups_identical,
        monitor: None,
    };
    Ok(experiment.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy also runs in a wrapper, and every job ends.
    #[test]
    fn policy_runs_in_the_simulator() {
        let workload = "gridmix".into();
        let request = Request { workload, jobs: Some(20), nodes: Some(3), ..Request::default() };
        let policies = "my-scheduler,my-scheduler[factor=1000],chronos(my-scheduler)";
        let comparison = compare(&request, policies, 1).expect("a valid policy");
        let preempted = |at: usize| -> u32 {
            let jobs = comparison.runs[at].iter().flat_map(|outcome| outcome.metrics.jobs());
            jobs.map(|(_, job)| job.preemption.preemptions()).sum()
        };
        assert!(comparison.runs.iter().flatten().all(|outcome| outcome.unfinished == 0));
        assert!(preempted(0) > 0 && preempted(1) == 0, "{} and {}", preempted(0), preempted(1));
    }
}
