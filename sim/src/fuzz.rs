//! Random runs: a random workload, policy, faults and preemptions, with every invariant checked
//! after every event. In every third run, attempts, users and trackers also behave at random for a
//! while, and half of these runs use a policy that decides at random.
//!
//! Faults occur in the first part of a run. Then all faults end, and three things must follow:
//! every job ends, every slot becomes free, and replay of the journal gives the same cluster. The
//! seed determines the run, as long as the code makes the same decisions.

use crate::{
    Cases, Outcome, RuleViolation, Setup, Workload, World,
    fault::{Fault, FaultKind},
    profile::Profile,
    rng::Rng,
    setup::RANDOM,
    workload::{JobPlan, Outline},
};
use mrcore::{PerPhase, Span, job::Priority};
use schedulers::{Params, PolicyError};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Simulated time within which all jobs of a run must end. Faults end in the first minutes.
const JOBS_END_WITHIN: Span = Span::secs(40_000);

/// How often each kind of event occurred, over many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventCounts {
    pub runs: u64,
    pub events: u64,
    pub facts: u64,
    pub jobs: u64,
    /// Jobs that failed or were killed.
    pub failed: u64,
    pub splits: u64,
    pub pauses: u64,
    pub kills: u64,
    pub resumes: u64,
    pub migrations: u64,
    pub speculative_attempts: u64,
    /// Tasks that ran again because their tracker was lost.
    pub recovered: u64,
    pub faults: u64,
    /// Faults that kill the JobTracker.
    pub restarts: u64,
    /// How often rare cases occurred.
    pub cases: Cases,
    /// Combined hash of the facts of all runs. Equal runs give equal hashes.
    pub hash: u64,
}

/// A run that violated a rule.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed} ({scheduler}): {broken}\nrun it again: mrctl sim fuzz --seed {seed}")]
pub struct FailedRun {
    /// Seed of the run.
    pub seed: u64,
    /// Policy of the run.
    pub scheduler: String,
    /// The violated rule.
    pub broken: RuleViolation,
}

/// Policies that were added after seeds had been recorded. One of six seeds uses one of them; the
/// others keep the policy that they had before.
const NEWER_POLICIES: &[&str] = &["coda", "chronos(coda)"];

/// Parameters of these policies, as in [`FUZZ_PARAMS`].
const NEWER_PARAMS: &[(&str, &[&str])] = &[
    ("coda.node_wait", &["0s", "3s"]),
    ("coda.newly_launched", &["0s", "10s"]),
    ("coda.margin", &["1", "1.25"]),
    ("coda.overdue_after", &["1", "1.5"]),
    ("coda.overdue_share", &["0", "0.3"]),
    ("coda.weigh_cost", &["on", "off"]),
    ("coda.ready_first", &["on", "off"]),
    ("coda.avoid_slow_nodes", &["on", "off"]),
    ("coda.wait_for_checkpoint", &["on", "off"]),
    ("coda.estimate_error", &["1", "4"]),
    ("coda.pools.user2.min_maps", &["0", "2"]),
    ("coda.pools.default.max_jobs", &["none", "1"]),
    ("coda.stay_ready", &["on", "off"]),
    ("coda.ignore_running_reduces", &["on", "off"]),
    ("coda.preempt", &["lossless-only", "lossless"]),
    ("coda.preempt_maps", &["on", "off"]),
    ("coda.preempt_reduces", &["on", "off"]),
    ("coda.predictions", &["on", "off"]),
    ("coda.measure_locality", &["on", "off"]),
    ("coda.min_shares", &["on", "off"]),
    ("coda.recover", &["on", "off"]),
];

/// Chooses a newer policy and its parameters for some seeds, without a change to what the other
/// random numbers of a seed are used for.
fn newer_policy(seed: u64) -> Option<(String, Params)> {
    let mut rng = Rng::of(seed, "policies added later");
    if !rng.one_in(6) {
        return None;
    }
    let policy = NEWER_POLICIES[rng.index(NEWER_POLICIES.len())].to_owned();
    if rng.one_in(2) {
        return Some((policy, Params::new()));
    }
    let mut choose = |values: &[&str]| values[rng.index(values.len())].to_owned();
    let params = NEWER_PARAMS.iter().map(|(key, values)| ((*key).to_owned(), choose(values)));
    Some((policy, params.collect()))
}

/// Generates the cluster and the workload of a seed.
pub fn generate(seed: u64) -> (Setup, Workload) {
    let mut rng = Rng::of(seed, "fuzz");
    let mut policies = schedulers::specs();
    policies.retain(|policy| !NEWER_POLICIES.contains(&policy.as_str()));
    let scheduler = policies[rng.index(policies.len())].clone();
    let newer = newer_policy(seed);
    if seed % 3 == 2 {
        let scheduler = if rng.one_in(2) { RANDOM.to_owned() } else { scheduler };
        let (scheduler, newer_params) = newer.unwrap_or((scheduler, Params::new()));
        let mut params = random_params(&mut rng);
        params.extend(newer_params);
        return with_random_events(seed, &scheduler, params);
    }
    let (scheduler, newer_params) = newer.unwrap_or((scheduler, Params::new()));
    let kills = rng.one_in(4);
    let nodes = 2 + rng.below(4) as u32;
    let mut setup = Setup::even(nodes, PerPhase { map: 1, reduce: 1 }, &scheduler);
    for machine in &mut setup.machines {
        machine.slots = PerPhase { map: 1 + rng.below(3) as u32, reduce: 1 + rng.below(2) as u32 };
        machine.speed = [0.3, 1.0, 1.0, 2.0][rng.index(4)];
        machine.rack = rng.below(2) as u32;
    }
    setup.params = random_params(&mut rng);
    setup.params.extend(newer_params);
    if kills {
        setup.params.extend(kill_params());
    }
    setup.seed = seed;
    setup.checked = true;
    setup.replication = 1 + rng.index(3);
    setup.out_of_band = !rng.one_in(4);
    setup.failing = [0, 0, 30, 12][rng.index(4)];
    setup.config.straggler_after = Span::secs(3);
    setup.config.task_timeout = Span::secs(120);
    setup.config.jobs_kept = 3;
    setup.config.lost_after = Span::secs([10, 15][rng.index(2)]);
    let count = rng.below(6);
    setup.faults = (0..count).map(|_| random_fault(nodes, &mut rng)).collect();
    (setup, random_jobs(&mut rng))
}

/// Generates a cluster with random events under a policy. The policy name `random` stands for a
/// policy that decides at random.
pub fn with_random_events(seed: u64, scheduler: &str, params: Params) -> (Setup, Workload) {
    let mut rng = Rng::of(seed, "random events");
    let nodes = 2 + rng.below(4) as u32;
    let mut setup = Setup::even(nodes, PerPhase { map: 1, reduce: 1 }, scheduler);
    for machine in &mut setup.machines {
        machine.slots = PerPhase { map: 1 + rng.below(3) as u32, reduce: 1 + rng.below(2) as u32 };
        machine.speed = [0.2, 1.0, 1.0, 2.0][rng.index(4)];
        machine.rack = rng.below(2) as u32;
    }
    setup.params = params;
    setup.seed = seed;
    (setup.checked, setup.random_events) = (true, true);
    setup.replication = 1 + rng.index(2);
    setup.failing = 10;
    setup.config.straggler_after = Span::secs(4);
    setup.config.launch_timeout = Span::secs(8);
    setup.config.task_timeout = Span::secs(20);
    setup.config.preemption_timeout = Span::secs(6);
    setup.config.jobs_kept = 5;
    (setup.config.blacklist_after, setup.config.blacklist_share) = (2, 0.5);
    setup.costs.commit = Span::millis(500);
    setup.tick = Span::millis(200);
    let jobs = (0..12 + rng.below(12)).map(|number| {
        let profile = Profile {
            map_mbps: 10.0,
            map_out: [0.1, 1.0, 2.0][rng.index(3)],
            reduce_mbps: rng.between(2.0, 20.0),
            reduce_out: 1.0,
            merge_mbps: 100.0,
            start_s: 0.1,
            spread: 0.5,
        };
        let outline = Outline {
            at_s: rng.between(0.0, 100.0),
            name: format!("job-{number}"),
            group: "all".into(),
            user: format!("u{}", rng.below(3)),
            maps: rng.below(7) as u32,
            block: 1_000_000 * (1 + rng.below(60)),
            reduces: rng.below(4) as u32,
            profile: &profile,
        };
        let queue = ["default", "a", "b.c"][rng.index(3)];
        let mut job = job(outline, &mut rng);
        queue.clone_into(&mut job.queue);
        job
    });
    let workload = Workload { name: "fuzz".into(), jobs: jobs.collect() };
    (setup, workload.sorted())
}

fn job(outline: Outline<'_>, rng: &mut Rng) -> JobPlan {
    let mut job = outline.plan(rng);
    job.slow_start = [0.0, 0.05, 1.0][rng.index(3)];
    job.speculation = rng.one_in(2);
    job.priority = [Priority::Normal, Priority::High, Priority::VeryLow][rng.index(3)];
    job
}

/// Policy parameters with short times, so that preemption and waiting occur in runs of a minute or
/// two, and with shares of users and queues.
const FUZZ_PARAMS: &[(&str, &[&str])] = &[
    ("fair.node_wait", &["0s", "1s", "3s"]),
    ("fair.rack_wait", &["0s", "2s"]),
    ("fair.min_share_timeout", &["1s", "5s", "never"]),
    ("fair.fair_share_timeout", &["2s", "10s", "never"]),
    ("fair.pools.user1.weight", &["1", "3"]),
    ("fair.pools.user2.min_maps", &["0", "2"]),
    ("fair.pools.user2.min_reduces", &["0", "1"]),
    ("fair.pools.user0.order", &["fair", "fifo"]),
    ("fair.pools.default.max_jobs", &["none", "1"]),
    ("capacity.queues.q0.capacity", &["0", "30"]),
    ("capacity.queues.q1.capacity", &["20", "60"]),
    ("capacity.queues.q1.max_capacity", &["60", "100"]),
    ("capacity.queues.q1.user_limit", &["25", "100"]),
    ("capacity.reclaim_after", &["1s", "10s", "never"]),
    ("hsrtf.every", &["1s", "10s"]),
    ("hsrtf.literal", &["false", "true"]),
    ("hsrtf.starvation", &["false", "true"]),
    ("hsrtf.newly_launched", &["0s", "10s"]),
    ("hsrtf.margin", &["1", "1.25"]),
    ("hsrtf.colocate_wait", &["0s", "3s"]),
    ("fcs.literal", &["false", "true"]),
    ("fcs.newly_launched", &["0s", "10s"]),
    ("fcs.slack_max", &["2", "5"]),
    ("fcs.skips", &["0", "3", "60"]),
    ("coshh.recheck", &["1s", "10s"]),
    ("coshh.literal", &["false", "true"]),
    ("coshh.error", &["0", "0.4"]),
    ("coshh.users.user1.weight", &["1", "3"]),
    ("coshh.users.user2.min_maps", &["0", "2"]),
    ("chronos.early", &["suspect", "lost"]),
];

/// Chooses random parameters in half of the runs, and none in the others.
fn random_params(rng: &mut Rng) -> Params {
    if rng.one_in(2) {
        return Params::new();
    }
    FUZZ_PARAMS
        .iter()
        .map(|(key, values)| ((*key).to_owned(), values[rng.index(values.len())].to_owned()))
        .collect()
}

/// Returns parameters that make every policy that preempts kill attempts instead of pausing or
/// splitting them.
fn kill_params() -> Params {
    let described = schedulers::describe(&Params::new()).unwrap_or_default();
    let can = described.into_iter().filter(|policy| policy.parameters.iter().any(|one| one.key == "preempt"));
    can.map(|policy| (format!("{}.preempt", policy.section), "kill".to_owned())).collect()
}

fn random_fault(nodes: u32, rng: &mut Rng) -> Fault {
    let node = rng.below(u64::from(nodes)) as u32;
    let what = match rng.below(15) {
        0..=1 => FaultKind::Tracker { node },
        2..=3 => FaultKind::Node { node },
        4 => FaultKind::Rack { rack: rng.below(2) as u32 },
        5 => FaultKind::Slow { node, factor: rng.between(2.0, 10.0) },
        6 => FaultKind::Partition { node },
        7 => FaultKind::NoOrders { node },
        8 => FaultKind::JobTracker,
        9 => FaultKind::KillOldestJob,
        10 => FaultKind::Datanode { node },
        11 => FaultKind::FrozenTracker { node },
        12 => FaultKind::FrozenJobTracker,
        _ => FaultKind::PreemptAll { node },
    };
    Fault { at_s: rng.between(0.0, 60.0), for_s: Some(rng.between(0.1, 25.0)), what }
}

fn random_jobs(rng: &mut Rng) -> Workload {
    let jobs = (0..=rng.below(4)).map(|number| {
        let profile = Profile {
            map_mbps: rng.between(5.0, 50.0),
            map_out: [0.0, 0.1, 1.0, 2.0][rng.index(4)],
            reduce_mbps: rng.between(5.0, 50.0),
            reduce_out: 1.0,
            merge_mbps: 100.0,
            start_s: 0.1,
            spread: 0.5,
        };
        let outline = Outline {
            at_s: rng.between(0.0, 40.0),
            name: format!("job-{number}"),
            group: "all".into(),
            user: format!("user{}", rng.below(3)),
            maps: rng.below(9) as u32,
            block: 1_000_000 * (1 + rng.below(200)),
            reduces: rng.below(4) as u32,
            profile: &profile,
        };
        let mut job = job(outline, rng);
        job.queue = format!("q{}", rng.below(2));
        job
    });
    Workload { name: "fuzz".into(), jobs: jobs.collect() }.sorted()
}

/// Runs one seed.
pub fn run_seed(seed: u64) -> Result<Outcome, FailedRun> {
    let (setup, workload) = generate(seed);
    let scheduler = setup.scheduler.clone();
    run(setup, workload).map_err(|broken| FailedRun { seed, scheduler, broken })
}

/// Runs a cluster until every job has ended and nothing is running.
pub fn run(setup: Setup, workload: Workload) -> Result<Outcome, RuleViolation> {
    report_panic(|| {
        let bad = |error: PolicyError| RuleViolation { at: "0".into(), what: error.to_string() };
        World::new(setup, workload).map_err(bad)?.run(Some(JOBS_END_WITHIN))
    })
}

/// Runs a simulation, and returns a panic as a rule violation.
fn report_panic(run: impl FnOnce() -> Result<Outcome, RuleViolation>) -> Result<Outcome, RuleViolation> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let what = format!("panicked: {}", text.unwrap_or("without a message"));
        Err(RuleViolation { at: "an unknown time".into(), what })
    })
}

/// Runs many seeds, and counts events.
pub fn run_seeds(seeds: impl IntoIterator<Item = u64>) -> Result<EventCounts, FailedRun> {
    let mut seen = EventCounts::default();
    for seed in seeds {
        let outcome = run_seed(seed)?;
        seen.add(seed, &outcome);
    }
    Ok(seen)
}

impl EventCounts {
    /// Adds the events of one run.
    pub fn add(&mut self, seed: u64, outcome: &Outcome) {
        let (setup, _) = generate(seed);
        self.runs += 1;
        self.events += outcome.events;
        self.facts += outcome.facts;
        self.faults += setup.faults.len() as u64;
        self.restarts +=
            setup.faults.iter().filter(|fault| fault.what == FaultKind::JobTracker).count() as u64;
        self.recovered += u64::from(outcome.metrics.recovery.tasks);
        self.hash = crate::rng::mix(self.hash ^ outcome.hash);
        self.cases.merge(&outcome.cases);
        for (_, job) in outcome.metrics.jobs() {
            self.jobs += 1;
            self.failed += u64::from(!job.succeeded);
            self.splits += u64::from(job.preemption.splits);
            self.pauses += u64::from(job.preemption.pauses);
            self.kills += u64::from(job.preemption.kills);
            self.resumes += u64::from(job.preemption.resumes);
            self.migrations += u64::from(job.preemption.migrations);
            self.speculative_attempts += u64::from(job.speculative_attempts);
        }
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        let pairs = [
            (&mut self.runs, other.runs),
            (&mut self.events, other.events),
            (&mut self.facts, other.facts),
            (&mut self.jobs, other.jobs),
            (&mut self.failed, other.failed),
            (&mut self.splits, other.splits),
            (&mut self.pauses, other.pauses),
            (&mut self.kills, other.kills),
            (&mut self.resumes, other.resumes),
            (&mut self.migrations, other.migrations),
            (&mut self.speculative_attempts, other.speculative_attempts),
            (&mut self.recovered, other.recovered),
            (&mut self.faults, other.faults),
            (&mut self.restarts, other.restarts),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        self.cases.merge(&other.cases);
        self.hash = crate::rng::mix(self.hash ^ other.hash);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_run_reports_its_seed() {
        let broken = report_panic(|| panic!("index {} of nothing", 4)).map(|_| ()).expect_err("it panicked");
        let text = FailedRun { seed: 7, scheduler: "fifo".into(), broken }.to_string();
        let expected = "seed 7 (fifo): at an unknown time: panicked: index 4 of nothing\nrun it again: mrctl sim fuzz --seed 7";
        assert_eq!(text, expected);
    }
}
