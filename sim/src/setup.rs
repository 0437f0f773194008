//! Description of a simulated cluster: machines, network, costs, faults, policy. Plain data.

use crate::{
    external::{self, Environment, External, Failure, MachineLine},
    fault::Fault,
    random_policy::RandomPolicy,
    rng::Rng,
    scenario::Step,
};
use mrcore::{Config, JobTracker, PerPhase, Scheduler, Span};
use schedulers::{
    Params, Policy, PolicyError,
    timed::{DecisionTimes, Timed},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Name of the policy that decides at random, for fuzzing.
pub(crate) const RANDOM: &str = "random";

/// Number of machines in a rack, unless a cluster file sets the racks.
pub(crate) const MACHINES_PER_RACK: usize = 40;

/// Returns the CPU time of this thread. Unlike real time it does not include waits for a core that
/// other runs use.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A machine with a TaskTracker and a DataNode.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Number of its rack.
    pub rack: u32,
    /// Slots of its tracker.
    pub slots: PerPhase<u32>,
    /// Computing speed relative to the machine that profiles were measured on.
    pub speed: f64,
    /// Number of cores, which computing tasks share evenly; infinite if each task has its own.
    pub cores: f64,
    /// Bytes per second of its disks, which readers and writers share.
    pub disk: f64,
    /// Bytes per second of writes, if `disk` is the rate of reads only.
    pub disk_writes: Option<f64>,
    /// Bytes of memory for cached files, including what running attempts take from it. Temporary
    /// files of tasks use the disks only as far as they do not fit.
    pub cache: u64,
    /// Bytes of `cache` that each running attempt takes; 0 if the memory of tasks is not modelled.
    pub task_memory: u64,
    /// Bytes per second in each direction of its network interface.
    pub nic: f64,
    /// Capacity of its DataNode in bytes.
    pub disk_bytes: u64,
}

impl Machine {
    /// Returns the name of its rack, with which its tracker registers.
    pub(crate) fn rack_name(&self) -> String {
        format!("r{}", self.rack)
    }
}

/// Costs of operations in addition to the work of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Time from a launch order to the first record, in addition to the start time of the program.
    pub start: Span,
    /// Maximum of a random time that is added to `start`.
    pub start_spread: Span,
    /// Time from a kill to a free slot.
    pub kill: Span,
    /// Time from a split to a free slot, without writing the map output.
    pub split: Span,
    /// Time from a pause to a free slot, without writing the memory of the reduce.
    pub pause: Span,
    /// Bytes per second at which maps write output and reduces write checkpoints.
    pub write: f64,
    /// Memory of a task. A map whose output is larger sorts it in several runs, which are merged on
    /// disk. A reduce whose data is larger has the remaining data on disk.
    pub memory: u64,
    /// Time of the commit of a job.
    pub commit: Span,
    /// Time between two attempts to fetch the same map output.
    pub fetch_retry: Span,
    /// Bytes per second that one reduce fetches at most.
    pub fetch: f64,
    /// Time until the NameNode declares a DataNode without heartbeats dead and copies its blocks.
    pub datanode_timeout: Span,
    /// Time to solve the optimisation problem of a policy, outside the core.
    pub solve: Span,
    /// Minimum time between two computations of the rates of flows.
    pub net_epoch: Span,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            start: Span::millis(30),
            start_spread: Span(0),
            kill: Span::millis(50),
            split: Span::millis(50),
            pause: Span::millis(100),
            write: 100e6,
            memory: 128 << 20,
            commit: Span::millis(50),
            fetch_retry: Span::secs(2),
            fetch: 80e6,
            datanode_timeout: Span::secs(10),
            solve: Span::millis(50),
            net_epoch: Span::millis(500),
        }
    }
}

/// Everything that a run depends on, except its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    pub machines: Vec<Machine>,
    /// Names of the machines and their trackers; empty for `n0`, `n1` and so on.
    pub node_names: Vec<String>,
    /// Bytes per second in each direction of the link of a rack.
    pub rack_uplink: f64,
    /// Bytes per second of all shuffles together; `None` for the sum of the network interfaces.
    pub fabric: Option<f64>,
    /// Replicas of each block of the input.
    pub replication: usize,
    /// Replicas of the output of jobs; 0 if the times of tasks include the writing of output.
    pub output_replication: usize,
    /// Interval of the heartbeats of a tracker.
    pub heartbeat: Span,
    /// Whether a tracker sends a heartbeat as soon as a slot becomes free.
    pub out_of_band: bool,
    /// Minimum interval of the JobTracker's timer. Large in runs of weeks, in which seconds do not
    /// matter.
    pub tick: Span,
    /// Configuration of the JobTracker core.
    pub config: Config,
    /// Costs of operations.
    pub costs: Costs,
    /// Name of the policy for `schedulers::make`, or `external`.
    pub scheduler: String,
    /// Policies of another crate, in addition to the built-in ones.
    pub own_policies: &'static [Policy],
    /// Parameters of the policy, by dotted key.
    pub params: Params,
    /// Seed of block placement and all other random choices.
    pub seed: u64,
    /// Faults with fixed times.
    pub faults: Vec<Fault>,
    /// Steps of a scenario.
    pub steps: Vec<Step>,
    /// One of this many attempts fails, at random; 0 if no attempt fails.
    pub failing: u64,
    /// Whether to check every invariant after every event.
    pub checked: bool,
    /// Whether attempts, users and trackers behave at random for a while.
    pub random_events: bool,
    /// Whether to measure the CPU time of the policy's decisions. Reading that clock costs a microsecond
    /// in each round, so runs whose result does not contain the time leave it out.
    pub measures_decisions: bool,
    /// Name of a second policy that decides in every round, but whose decisions have no effect.
    pub shadow: Option<String>,
}

impl Setup {
    /// Creates a cluster of `nodes` equal machines in racks of 40, as in most clusters of the
    /// papers: gigabit network, four disks of 80 MB/s, 4 GiB of memory for cached files. The
    /// heartbeat interval follows the rule of Hadoop: one second per hundred nodes, at least one
    /// and at most ten.
    pub fn even(nodes: u32, slots: PerPhase<u32>, scheduler: &str) -> Self {
        let machine = |at: u32| Machine {
            rack: at / MACHINES_PER_RACK as u32,
            slots,
            speed: 1.0,
            cores: f64::INFINITY,
            disk: 320e6,
            disk_writes: None,
            cache: 4 << 30,
            task_memory: 0,
            nic: 125e6,
            disk_bytes: 1 << 42,
        };
        let mut setup = Self {
            machines: (0..nodes).map(machine).collect(),
            node_names: Vec::new(),
            rack_uplink: 1.25e9,
            fabric: None,
            replication: 3,
            output_replication: 3,
            heartbeat: Span::secs(1),
            out_of_band: true,
            tick: Span::millis(1),
            config: Config::default(),
            costs: Costs::default(),
            scheduler: scheduler.to_owned(),
            own_policies: &[],
            params: Params::new(),
            seed: 1,
            faults: Vec::new(),
            steps: Vec::new(),
            failing: 0,
            checked: false,
            random_events: false,
            measures_decisions: true,
            shadow: None,
        };
        setup.set_heartbeat_interval(Span::secs(u64::from(nodes / 100).clamp(1, 10)));
        setup
    }

    /// Sets the heartbeat interval and the timeouts that depend on it. A tracker is suspect after
    /// three intervals without a heartbeat, and lost after ten. An attempt without reports for
    /// three intervals counts as not started or stuck. Timeouts are never below their defaults.
    pub fn set_heartbeat_interval(&mut self, heartbeat: Span) {
        let usual = Config::default();
        self.heartbeat = heartbeat;
        self.config.suspect_after = Span(3 * heartbeat.0 + 500_000).max(usual.suspect_after);
        self.config.lost_after = Span(10 * heartbeat.0).max(usual.lost_after);
        self.config.launch_timeout = Span(3 * heartbeat.0 + 500_000).max(usual.launch_timeout);
        self.config.task_timeout = Span(3 * heartbeat.0 + 500_000).max(usual.task_timeout);
    }

    /// Makes trackers report free slots and get work only with their regular heartbeats, as in
    /// Hadoop 1.
    pub fn set_heartbeat_only(&mut self) {
        self.out_of_band = false;
        self.config.offers_max = 0;
    }

    /// Creates the JobTracker core. An external policy that fails sets `failure`.
    pub(crate) fn core(
        &self,
        spent: &Arc<DecisionTimes>,
        failure: &Failure,
    ) -> Result<JobTracker, PolicyError> {
        let core = JobTracker::new(self.config.clone(), self.policy(spent, failure)?);
        Ok(match &self.shadow {
            Some(shadow) => core.with_shadow(schedulers::make(shadow, &self.params)?),
            None => core,
        })
    }

    /// Creates the policy. Adds the time that its decisions take to `spent`, if it is to be measured.
    fn policy(
        &self,
        spent: &Arc<DecisionTimes>,
        failure: &Failure,
    ) -> Result<Box<dyn Scheduler>, PolicyError> {
        if self.scheduler == RANDOM {
            return Ok(Box::new(RandomPolicy(Rng::of(self.seed, "policy"))));
        }
        let mut params = self.params.clone();
        if params.contains_key("coda.estimate_error") {
            // Each seed has other wrong estimates.
            params.entry("coda.estimate_error_seed".into()).or_insert_with(|| self.seed.to_string());
        }
        if self.scheduler == external::NAME {
            // It decides in another process, so the CPU time of this thread is not what it takes.
            let policy = Box::new(External::start(&params, self.environment(), failure)?);
            let began = Instant::now();
            return Ok(Box::new(Timed::new(policy, Box::new(move || began.elapsed()), spent.clone())));
        }
        let policy = schedulers::make_with(self.own_policies, &self.scheduler, &params)?;
        if !self.measures_decisions {
            return Ok(policy);
        }
        Ok(Box::new(Timed::new(policy, Box::new(thread_cpu_time), spent.clone())))
    }

    /// Describes the cluster for an external policy.
    fn environment(&self) -> Environment {
        let machine = |(at, machine): (usize, &Machine)| MachineLine {
            tracker: self.node_name(at),
            rack: machine.rack,
            map_slots: machine.slots.map,
            reduce_slots: machine.slots.reduce,
            speed: machine.speed,
        };
        Environment {
            seed: self.seed,
            heartbeat_s: self.heartbeat.as_secs_f64(),
            preemption_timeout_s: self.config.preemption_timeout.as_secs_f64(),
            machines: self.machines.iter().enumerate().map(machine).collect(),
        }
    }

    /// Returns the name of a machine and of its tracker.
    pub(crate) fn node_name(&self, at: usize) -> String {
        self.node_names.get(at).cloned().unwrap_or_else(|| format!("n{at}"))
    }

    /// Returns the slots of all machines.
    pub fn slots(&self) -> PerPhase<u32> {
        let mut sum = PerPhase { map: 0, reduce: 0 };
        for machine in &self.machines {
            sum.map += machine.slots.map;
            sum.reduce += machine.slots.reduce;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{World, workload::papers};
    use mrcore::{Phase, Plan, ids::JobId, scheduler::Round};
    use std::thread::sleep;

    /// How long a round of [`Sleeping`] waits.
    const SLEEP: Duration = Duration::from_millis(1);

    /// A policy that waits in each round, as one does whose core other runs use.
    #[derive(Debug)]
    struct Sleeping(Box<dyn Scheduler>);

    impl Scheduler for Sleeping {
        fn name(&self) -> &'static str {
            "sleeping"
        }

        fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
            sleep(SLEEP);
            self.0.decide(round, plan);
        }

        fn outranks(&self, _: JobId, _: JobId, _: Phase, _: &Plan<'_>) -> bool {
            false
        }

        fn explain(&self, _: &mrcore::job::Job, _: mrcore::Time, _: &mrcore::Cluster) -> Vec<mrcore::Why> {
            Vec::new()
        }
    }

    #[test]
    fn time_that_a_decision_waits_for_a_core_does_not_count() {
        const POLICIES: &[Policy] = &[Policy {
            name: "sleeping",
            section: "sleeping",
            about: "",
            rule_texts: &[],
            build: |_| Box::new(Sleeping(schedulers::make("fifo", &Params::new()).expect("a policy"))),
        }];
        let setup =
            Setup { own_policies: POLICIES, ..Setup::even(2, PerPhase { map: 4, reduce: 2 }, "sleeping") };
        let mut workload = papers::chronos(&crate::profile::built_in(), "wordcount", 1);
        workload.jobs.truncate(1);
        let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
        let waited = SLEEP * outcome.deciding.rounds as u32;
        assert!(outcome.deciding.rounds > 10, "{:?}", outcome.deciding);
        assert!(outcome.deciding.total < waited / 2, "{:?}, waited {waited:?}", outcome.deciding);
    }
}
