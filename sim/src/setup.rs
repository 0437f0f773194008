//! What a world is made of: machines, network, costs, faults, the policy. Plain data.

use crate::{fault::Fault, scenario::Step};
use mrcore::{Config, PerPhase, Scheduler, Span};
use schedulers::{
    Params, PolicyError,
    timed::{DecisionTimes, Timed},
};
use std::{sync::Arc, time::Instant};

/// One machine: a TaskTracker and a DataNode.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its rack's number.
    pub rack: u32,
    /// Attempts at a time.
    pub slots: PerPhase<u32>,
    /// How fast it computes; 1 is what profiles were measured on.
    pub speed: f64,
    /// Bytes a second that one reader gets from its disks.
    pub disk: f64,
    /// Bytes a second in and out of it.
    pub nic: f64,
    /// Bytes of blocks it can keep.
    pub disk_bytes: u64,
}

/// What things cost beside the work itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// From a launch order to the first record, on top of the program's own.
    pub start: Span,
    /// Up to so much more, by chance.
    pub start_spread: Span,
    /// From a recall to an empty slot.
    pub kill: Span,
    /// The same for a split, without writing what the map has.
    pub split: Span,
    /// The same for a pause, without writing what the reduce has in memory.
    pub pause: Span,
    /// Bytes a second at which maps spill and reduces save their checkpoints.
    pub write: f64,
    /// Bytes of a reduce's state that are in memory at most: the rest is on disk already.
    pub memory: u64,
    /// Moving a job's output into place.
    pub commit: Span,
    /// Between two tries to fetch the same output.
    pub fetch_retry: Span,
    /// Bytes a second that one reduce fetches at most.
    pub fetch: f64,
    /// A tracker that has had no answer for this long stops what it runs.
    pub fence: Span,
    /// After this long the file system has made up for the blocks of a lost node.
    pub repair: Span,
    /// Solving a policy's problem beside the core.
    pub solve: Span,
    /// Rates of flows are found anew no more often than this.
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
            fence: Span::secs(60),
            repair: Span::secs(60),
            solve: Span::millis(50),
            net_epoch: Span::millis(500),
        }
    }
}

/// Everything a run depends on beside its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The machines.
    pub machines: Vec<Machine>,
    /// Bytes a second in and out of a rack.
    pub rack_uplink: f64,
    /// Bytes a second of all shuffles together; what all machines could send if not said.
    pub fabric: Option<f64>,
    /// Copies of each block.
    pub replication: usize,
    /// Between two heartbeats of a tracker.
    pub heartbeat: Span,
    /// Whether a tracker speaks at once when a slot is free.
    pub out_of_band: bool,
    /// The JobTracker looks at the time no more often than this: for runs of weeks, whose seconds do not matter.
    pub tick: Span,
    /// The JobTracker's numbers.
    pub config: Config,
    /// What things cost.
    pub costs: Costs,
    /// The policy, as `schedulers::make` takes it.
    pub scheduler: String,
    /// Its parameters, by dotted key.
    pub params: Params,
    /// Decides where blocks lie, and everything else that is left to chance.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What a scenario does to it.
    pub steps: Vec<Step>,
    /// One attempt in so many fails by itself; 0 for none.
    pub failing: u64,
    /// Check every invariant after every event.
    pub checked: bool,
}

impl Setup {
    /// `nodes` equal machines in racks of 40, as most clusters of the papers' time: gigabit, one disk stream of
    /// 80 MB/s for each reader. The heartbeat follows Hadoop's rule of a second for each hundred nodes, at least
    /// one second and at most ten.
    pub fn even(nodes: u32, slots: PerPhase<u32>, scheduler: &str) -> Self {
        let machine = |at: u32| Machine {
            rack: at / 40,
            slots,
            speed: 1.0,
            disk: 80e6,
            nic: 125e6,
            disk_bytes: 1 << 42,
        };
        let mut setup = Self {
            machines: (0..nodes).map(machine).collect(),
            rack_uplink: 1.25e9,
            fabric: None,
            replication: 3,
            heartbeat: Span::secs(1),
            out_of_band: true,
            tick: Span::millis(1),
            config: Config::default(),
            costs: Costs::default(),
            scheduler: scheduler.to_owned(),
            params: Params::new(),
            seed: 1,
            faults: Vec::new(),
            steps: Vec::new(),
            failing: 0,
            checked: false,
        };
        setup.beat_every(Span::secs(u64::from(nodes / 100).clamp(1, 10)));
        setup
    }

    /// Sets the heartbeat, and with it when silence counts: suspect after three, lost after ten, and an attempt that is
    /// not spoken of after three was never started, or is stuck; but never sooner than by default.
    pub fn beat_every(&mut self, heartbeat: Span) {
        let usual = Config::default();
        self.heartbeat = heartbeat;
        self.config.suspect_after = Span(3 * heartbeat.0 + 500_000).max(usual.suspect_after);
        self.config.lost_after = Span(10 * heartbeat.0).max(usual.lost_after);
        self.config.launch_timeout = Span(3 * heartbeat.0 + 500_000).max(usual.launch_timeout);
        self.config.task_timeout = Span(3 * heartbeat.0 + 500_000).max(usual.task_timeout);
    }

    /// The policy, timed.
    pub(crate) fn policy(&self, spent: &Arc<DecisionTimes>) -> Result<Box<dyn Scheduler>, PolicyError> {
        let policy = schedulers::make(&self.scheduler, &self.params)?;
        let began = Instant::now();
        Ok(Box::new(Timed::new(policy, Box::new(move || began.elapsed()), spent.clone())))
    }

    /// Slots of all machines.
    pub fn slots(&self) -> PerPhase<u32> {
        let mut sum = PerPhase { map: 0, reduce: 0 };
        for machine in &self.machines {
            sum.map += machine.slots.map;
            sum.reduce += machine.slots.reduce;
        }
        sum
    }
}
