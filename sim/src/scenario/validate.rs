//! Checks that a simulated cluster can execute a scenario, before the simulation starts.
//!
//! A step that becomes due only after the last job has ended is not executed. That depends on the
//! policy, so it is not checked here; the result of a run contains the number of executed faults.

use super::{JobRef, NodeRef, Scenario, ScenarioAction, ScenarioFileError, Step, When};
use crate::fault::FaultKind;

impl Scenario {
    /// Returns an error for the first step or fault with a node, rack or job that does not exist.
    /// `racks` contains the rack of each node.
    pub fn validate(&self, racks: &[u32], jobs: usize) -> Result<(), ScenarioFileError> {
        let bad = |line: usize| move |what: String| ScenarioFileError { line, what };
        for step in &self.steps {
            validate(step, racks.len(), jobs).map_err(bad(step.line))?;
        }
        for (fault, line) in self.faults.iter().zip(&self.fault_lines) {
            check_fault(&fault.what, racks).map_err(bad(*line))?;
        }
        Ok(())
    }
}

fn validate(step: &Step, nodes: usize, jobs: usize) -> Result<(), String> {
    if step.action.not_simulated().is_some() {
        return Ok(());
    }
    if let When::Job(job, _) = &step.when {
        check_job_exists(job, jobs)?;
    }
    let other = match &step.action {
        ScenarioAction::Partition { to, .. } => Some(to),
        _ => None,
    };
    for who in step.action.node().into_iter().chain(other) {
        match who {
            NodeRef::Named(name) => check_node_exists(name, nodes)?,
            NodeRef::Running(job) => check_job_exists(job, jobs)?,
            NodeRef::Any | NodeRef::Same => {}
        }
    }
    Ok(())
}

/// Checks that a job exists. Jobs are numbered from 1 in the order of their submission, so `job 3`
/// and `job_3` are the same.
fn check_job_exists(job: &JobRef, jobs: usize) -> Result<(), String> {
    let number = match *job {
        JobRef::Nth(number) => u64::from(number),
        JobRef::Number(number) => number,
    };
    if (1..=jobs as u64).contains(&number) {
        return Ok(());
    }
    Err(format!("job {number} does not exist: this workload has {}", crate::count(jobs, "job")))
}

/// Checks that a node exists.
fn check_node_exists(name: &str, nodes: usize) -> Result<(), String> {
    if matches!(name, "jobtracker" | "master" | "namenode")
        || node_index(name).is_some_and(|at| (at as usize) < nodes)
    {
        return Ok(());
    }
    Err(format!("node {name} does not exist: the simulated nodes are node1 to node{nodes}"))
}

/// Returns the index of a node name: `node3` has index 2.
pub(crate) fn node_index(name: &str) -> Option<u32> {
    name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok()?.checked_sub(1)
}

fn check_fault(what: &FaultKind, racks: &[u32]) -> Result<(), String> {
    match *what {
        FaultKind::Tracker { node }
        | FaultKind::Datanode { node }
        | FaultKind::Node { node }
        | FaultKind::Frozen { node }
        | FaultKind::FrozenTracker { node }
        | FaultKind::FrozenDatanode { node }
        | FaultKind::Slow { node, .. }
        | FaultKind::Partition { node }
        | FaultKind::NoOrders { node }
        | FaultKind::PreemptAll { node }
            if node as usize >= racks.len() =>
        {
            Err(format!("node = {node}: the cluster has {} nodes, counted from 0", racks.len()))
        }
        FaultKind::Rack { rack } if !racks.contains(&rack) => {
            let most = racks.iter().max().unwrap_or(&0);
            Err(format!("rack = {rack}: there is no such rack; racks are numbered 0 to {most}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::parse;

    #[test]
    fn impossible_steps_are_rejected_with_their_line() {
        let racks = [0; 8];
        let kill = |when: &str, node: &str| format!("\n[[step]]\n{when}\ndo = \"kill\"\nnode = \"{node}\"\n");
        let fault = |what: &str| format!("\n[[fault]]\nat_s = 1.0\n{what}\n");
        let cases = [
            (
                kill("at = \"1s\"", "node99"),
                "2: node node99 does not exist: the simulated nodes are node1 to node8",
            ),
            (kill("at = \"1s\"", "node0"), "node node0 does not exist"),
            (kill("when = \"job 77 maps 40%\"", "any"), "2: job 77 does not exist: this workload has 3 jobs"),
            (kill("at = \"1s\"", "any running job_4"), "job 4 does not exist"),
            (
                fault("what = \"rack\"\nrack = 9"),
                "2: rack = 9: there is no such rack; racks are numbered 0 to 0",
            ),
            (fault("what = \"slow\"\nnode = 90\nfactor = 2.0"), "2: node = 90: the cluster has 8"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).expect("it reads").validate(&racks, 3).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
        let fine = [
            kill("at = \"1s\"", "node8"),
            kill("when = \"job 3 ended\"", "jobtracker"),
            fault("what = \"rack\"\nrack = 0"),
            fault("what = \"stop\""),
        ];
        assert_eq!(parse(&fine.concat()).expect("it reads").validate(&racks, 3), Ok(()));
    }
}
