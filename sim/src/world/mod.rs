//! The simulated environment of the JobTracker core: machines, disks, network, file system, time
//! and faults.
//!
//! A loop takes the next event from a heap, passes it to the core or changes a machine, and
//! executes the effects of the core. All random choices come from one seed, so that two runs give
//! the same facts, which a hash verifies. The core, the policies and the agents of the trackers are
//! the real ones. The models of the other parts, and what they omit, are described in
//! docs/internals/adr/0013.
//!
//! | file | contents |
//! |---|---|
//! | `queue.rs` | future events |
//! | `arrivals.rs` | submission of jobs, placement of blocks |
//! | `tracker.rs` | driver of the agents: messages between them and the core, their actions |
//! | `launch.rs` | start of attempts |
//! | `io.rs` | disks and links that attempts use, and their rates |
//! | `attempts.rs` | progress and end of attempts |
//! | `fetch.rs`, `run.rs`, `node.rs` | shuffle of a reduce, an attempt, a machine |
//! | `net.rs`, `copies.rs` | flows over shared links; copies of files that no attempt makes |
//! | `repair.rs` | replication of the blocks of lost machines |
//! | `faults.rs`, `steps.rs` | start and end of faults; scenarios |
//! | `jobtracker_faults.rs` | the JobTracker dies or is frozen |
//! | `rules.rs`, `checks.rs`, `map_events.rs` | invariants, always and at the end |
//! | `random_events.rs`, `cases.rs` | random events of fuzzed runs; how often rare cases occurred |
//! | `stall.rs` | detection of stalls |
//! | `trace.rs` | hash of all facts |
//! | `why.rs` | why a job waits at a time |

mod arrivals;
mod attempts;
mod cases;
mod checks;
mod copies;
mod faults;
mod fetch;
mod io;
mod jobtracker_faults;
mod launch;
mod map_events;
mod net;
mod node;
mod queue;
mod random_events;
mod repair;
mod rules;
mod run;
mod stall;
mod steps;
mod trace;
mod tracker;
mod why;

use crate::{
    BEGINNING,
    external::{self, Failure},
    histories::{Histories, Recording},
    outcome::{Outcome, RuleViolation, TIMED_TASKS_MAX},
    rng::Rng,
    setup::{Setup, thread_cpu_time},
    workload::Workload,
};
use agent::Action;
use cases::Before;
use checks::Checks;
use copies::{BlockBatch, RunningCopy};
use fetch::MapLog;
use mrcore::{
    Effect, Event, Fact, JobTracker, PerPhase, Phase, Span, Time,
    compute::Numbers,
    event::Reply,
    fact::Entry,
    ids::{JobId, RequestId, TrackerId},
    metrics::{Metrics, shares::MinShare},
};
use net::Net;
use node::{Node, NodeFaults};
use queue::{Queue, SimEvent};
use schedulers::{PolicyError, timed::DecisionTimes};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use trace::{TaskTimes, Trace};
use tracker::{Agent, AgentEvent, Message, Model};
pub use why::WhyError;

/// Maximum number of events between two calls of the monitor of a run. With an external policy, which
/// may take long for each decision, the monitor is called at every event.
const EVENTS_PER_CHECK: u64 = 1 << 14;
/// Number of events between two looks at the clock.
const EVENTS_PER_CLOCK: u64 = 1 << 3;
/// Real time after which the monitor is called again, also after fewer events: in a large cluster an
/// event takes long.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A job that the core has accepted.
#[derive(Debug)]
struct KnownJob {
    /// Index in the workload.
    plan: usize,
    /// Machines with the input of each map, `copies` per map.
    replicas: Vec<u32>,
    copies: usize,
    /// Bytes of the output of all maps together.
    map_output_bytes: f64,
    log: MapLog,
}

impl KnownJob {
    /// Returns the machines with the input of a split.
    fn copies_of(&self, split: u32) -> &[u32] {
        self.replicas.chunks(self.copies.max(1)).nth(split as usize).unwrap_or(&[])
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunEnd {
    /// Every job has ended, or none can make progress.
    Over,
    /// The time limit was reached, in simulated time.
    Limit,
    /// The monitor of the run has stopped it.
    Stopped,
}

/// The simulated cluster and its state.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    workload: Workload,
    now: Time,
    queue: Queue,
    core: Option<JobTracker>,
    decision_times: Arc<DecisionTimes>,
    /// Why an external policy has failed, if it has.
    policy_failure: Failure,
    nodes: Vec<Node>,
    /// Index of the machine of each tracker.
    by_tracker: BTreeMap<TrackerId, u32>,
    net: Net,
    /// Copies of files that no attempt makes, by key.
    copies: BTreeMap<u64, RunningCopy>,
    /// Blocks of lost machines that are not being copied yet.
    unrepaired: VecDeque<BlockBatch>,
    /// Whether a computation of flow rates is scheduled.
    rate_update_scheduled: bool,
    /// Whether tasks of a machine may have to share its cores.
    shares_cpu: bool,
    /// Number of machines whose tracker or network is down.
    unreachable: u32,
    jobs_known: BTreeMap<JobId, KnownJob>,
    /// Index of the next job to submit.
    next_arrival: usize,
    /// Jobs that arrived while the JobTracker was unavailable.
    unsubmitted: Vec<usize>,
    /// Number of jobs that have not ended, including those that are not submitted yet.
    jobs_open: usize,
    running_attempts: usize,
    /// Key of the attempt or copy that was started last.
    newest_key: u64,
    /// Number of requests so far.
    requests: u128,
    /// Registrations without a reply, with the machine.
    registrations: BTreeMap<RequestId, usize>,
    /// Requests of simulated users and operators, which the core may refuse. A refusal of any other
    /// request is a violation.
    manual_requests: BTreeSet<RequestId>,
    /// Solutions of optimisation problems that the core has not received yet.
    solutions: BTreeMap<u64, Numbers>,
    /// Real time of the computations of the policy outside of the core.
    computing: Duration,
    /// The journal; recorded only if the JobTracker may have to replay it.
    journal: Option<Vec<Entry>>,
    jobtracker_faults: jobtracker_faults::JobTrackerFaults,
    /// Start of the idle time that the simulation is skipping now.
    idle_since: Option<Time>,
    /// Total idle time that was skipped before.
    idle_time_skipped: Span,
    /// Random number generator of random events, while they occur.
    random: Option<Rng>,
    /// State of the checks, if rules are checked.
    checks: Option<Checks>,
    /// The newest reply of the core.
    last_reply: Option<Reply>,
    /// The last preemption or resumption of a fuzzed run, with its reply.
    last_request: Option<(Event, Reply)>,
    /// Number of faults that have not ended. Random events count as one fault. A permanent fault
    /// counts until it begins.
    faults_open: usize,
    fault_times: Vec<Time>,
    stall_detector: stall::StallDetector,
    scenario: steps::ScenarioState,
    rng: Rng,
    trace: Trace,
    /// The histories of the jobs, if they are written.
    histories: Option<Histories>,
    task_times: TaskTimes,
    metrics: Metrics,
    events: u64,
    /// When the last job ended.
    end: Time,
    violation: Option<String>,
    effects: Vec<Effect>,
    /// Messages of the core to trackers that are not delivered yet.
    messages: VecDeque<Message>,
    delivering: bool,
    actions: Vec<Action<Model>>,
}

impl World {
    /// Creates a cluster at the start of a run.
    pub fn new(setup: Setup, workload: Workload) -> Result<Self, PolicyError> {
        let decision_times = Arc::new(DecisionTimes::default());
        let policy_failure = Failure::default();
        let core = setup.core(&decision_times, &policy_failure)?;
        let nodes: Vec<Node> = (0..setup.machines.len()).map(|at| machine(&setup, at)).collect();
        let nic: Vec<f64> = setup.machines.iter().map(|machine| machine.nic).collect();
        let disk: Vec<f64> = setup.machines.iter().map(|machine| machine.disk).collect();
        let rack_of = setup.machines.iter().map(|machine| machine.rack).collect();
        let fabric = setup.fabric.unwrap_or_else(|| nic.iter().sum());
        let mut net = Net::new(&nic, &disk, rack_of, setup.rack_uplink, fabric);
        for (node, machine) in (0..).zip(&setup.machines) {
            machine.disk_writes.into_iter().for_each(|rate| net.separate_writes(node, rate));
        }
        // A step of a scenario may restart the JobTracker.
        let restarts = !setup.steps.is_empty()
            || setup.faults.iter().any(|fault| fault.what == crate::fault::FaultKind::JobTracker);
        let mut world = Self {
            now: BEGINNING,
            queue: Queue::default(),
            core: Some(core),
            decision_times,
            policy_failure,
            nodes,
            by_tracker: BTreeMap::new(),
            net,
            copies: BTreeMap::new(),
            unrepaired: VecDeque::new(),
            rate_update_scheduled: false,
            shares_cpu: setup.machines.iter().any(|machine| machine.cores.is_finite()),
            unreachable: 0,
            jobs_known: BTreeMap::new(),
            next_arrival: 0,
            unsubmitted: Vec::new(),
            jobs_open: workload.jobs.len(),
            running_attempts: 0,
            newest_key: 0,
            requests: 0,
            registrations: BTreeMap::new(),
            manual_requests: BTreeSet::new(),
            solutions: BTreeMap::new(),
            computing: Duration::ZERO,
            journal: (restarts || setup.checked).then(Vec::new),
            jobtracker_faults: jobtracker_faults::JobTrackerFaults::default(),
            idle_since: None,
            idle_time_skipped: Span(0),
            random: setup.random_events.then(|| Rng::of(setup.seed, "random events")),
            checks: setup.checked.then(Checks::default),
            last_reply: None,
            last_request: None,
            faults_open: setup.faults.len() + usize::from(setup.random_events),
            fault_times: Vec::new(),
            stall_detector: stall::StallDetector::new(BEGINNING),
            scenario: steps::ScenarioState::new(setup.seed),
            rng: Rng::of(setup.seed, "world"),
            trace: Trace::default(),
            histories: None,
            task_times: TaskTimes::new(workload.tasks() <= TIMED_TASKS_MAX),
            metrics: Metrics::default(),
            events: 0,
            end: Time(0),
            violation: None,
            effects: Vec::new(),
            messages: VecDeque::new(),
            delivering: false,
            actions: Vec::new(),
            setup,
            workload,
        };
        world.schedule_first_events();
        Ok(world)
    }

    /// Enables dissatisfaction and fairness figures for these users.
    #[must_use]
    pub fn with_users(mut self, users: impl IntoIterator<Item = (String, MinShare)>) -> Self {
        let facts_so_far = std::mem::take(&mut self.metrics);
        debug_assert_eq!(facts_so_far.jobs().count(), 0, "users are set before the first job");
        self.metrics = Metrics::with_users(users);
        self
    }

    /// Writes the histories of the jobs.
    #[must_use]
    pub fn with_histories(mut self, recording: Recording<'_>) -> Self {
        self.histories = Some(Histories::new(recording, &self.setup));
        self
    }

    /// Schedules the first events of the run.
    fn schedule_first_events(&mut self) {
        self.send_event(Event::Start);
        self.queue.push(self.now, SimEvent::Tick);
        for at in 0..self.nodes.len() {
            let stagger = Span(self.rng.below(self.setup.heartbeat.0.max(1)));
            self.connect_at(at, self.now + stagger);
        }
        for (index, fault) in self.setup.faults.iter().enumerate() {
            let start = self.now;
            self.queue.push(start + fault.at(), SimEvent::Fault { index: index as u32 });
            if let Some(until) = fault.until() {
                self.queue.push(start + until, SimEvent::Heal { index: index as u32 });
            }
        }
        self.plan_steps();
        if self.random.is_some() {
            self.queue.push(self.now, SimEvent::Random);
        }
        self.schedule_arrival();
    }

    /// Runs until every job has ended, until `limit` has passed since the start, or until the
    /// cluster has stalled.
    pub fn run(self, limit: Option<Span>) -> Result<Outcome, RuleViolation> {
        self.run_monitored(limit, |_| true)
    }

    /// Like [`Self::run`], but regularly calls `should_continue` with the number of jobs that have
    /// ended. Stops if it returns false.
    pub fn run_monitored(
        mut self,
        limit: Option<Span>,
        should_continue: impl Fn(usize) -> bool,
    ) -> Result<Outcome, RuleViolation> {
        let end = self.run_until(limit.map(|limit| self.now + limit), should_continue)?;
        if self.setup.checked {
            self.check_end();
            self.fail_on_violation()?;
        }
        self.record(Histories::finish);
        self.fail_on_violation()?;
        let mut deciding = self.decision_times.snapshot();
        deciding.total += self.computing;
        let plans = self.unsubmitted.iter().copied().chain(self.next_arrival..self.workload.jobs.len());
        let unsubmitted = plans.map(|plan| (&self.workload.jobs[plan]).into()).collect();
        let stall = self.stuck_task().filter(|_| end == RunEnd::Over && self.jobs_open > 0);
        Ok(Outcome {
            scheduler: self.setup.scheduler,
            metrics: self.metrics,
            end: self.end,
            hash: self.trace.hash,
            events: self.events,
            facts: self.trace.facts,
            task_times: self.task_times.done,
            unfinished: self.jobs_open,
            unsubmitted,
            stopped: end == RunEnd::Stopped,
            stall,
            fault_times: self.fault_times,
            cases: self.checks.map(|checks| checks.cases).unwrap_or_default(),
            deciding,
        })
    }

    /// Runs until every job has ended, until `last`, until `should_continue` returns false, or until
    /// the cluster has stalled.
    fn run_until(
        &mut self,
        last: Option<Time>,
        should_continue: impl Fn(usize) -> bool,
    ) -> Result<RunEnd, RuleViolation> {
        let events_per_check = if self.setup.scheduler == external::NAME { 1 } else { EVENTS_PER_CHECK };
        let mut last_check = Instant::now();
        while !self.is_over() {
            let Some((at, what)) = self.queue.pop() else { break };
            if let Some(last) = last.filter(|last| at > *last) {
                self.metrics.end_observation(last);
                return Ok(RunEnd::Limit);
            }
            let is_due = self.events % events_per_check == events_per_check - 1
                || (self.events.is_multiple_of(EVENTS_PER_CLOCK) && last_check.elapsed() > CHECK_INTERVAL);
            if is_due {
                last_check = Instant::now();
            }
            let stopped = is_due && !should_continue(self.workload.jobs.len() - self.jobs_open);
            if stopped || self.is_stalled(at, what) {
                self.metrics.end_observation(at);
                return Ok(if stopped { RunEnd::Stopped } else { RunEnd::Over });
            }
            self.stall_detector.record_event(at, what);
            self.now = at;
            self.events += 1;
            self.handle_event(what);
            self.check_conditions();
            if self.setup.checked && self.violation.is_none() {
                self.check();
            }
            self.fail_on_violation()?;
        }
        Ok(RunEnd::Over)
    }

    /// Does something with the histories, if they are written. An error ends the run.
    fn record(&mut self, what: impl FnOnce(&mut Histories) -> Result<(), String>) {
        if let Some(Err(error)) = self.histories.as_mut().map(what) {
            self.violation.get_or_insert(error);
        }
    }

    /// Returns whether every job has ended. If rules are checked, also requires that every fault
    /// has ended and every slot is free.
    fn is_over(&self) -> bool {
        let at_rest = || {
            let all_reported = self.nodes.iter().all(Node::is_idle);
            let free = self.core.as_ref().is_some_and(|core| {
                let idle = |phase: Phase| core.cluster().trackers().all(|at| at.running[phase].is_empty());
                Phase::BOTH.into_iter().all(idle)
            });
            self.faults_open == 0 && self.running_attempts == 0 && all_reported && free
        };
        self.jobs_open == 0 && (!self.setup.checked || at_rest())
    }

    fn fail_on_violation(&mut self) -> Result<(), RuleViolation> {
        match self.policy_failure.get().cloned().or_else(|| self.violation.take()) {
            Some(what) => Err(RuleViolation { at: self.now.to_string(), what }),
            None => Ok(()),
        }
    }

    fn handle_event(&mut self, what: SimEvent) {
        match what {
            SimEvent::Arrival => self.handle_arrival(),
            SimEvent::AgentDeadline { node } => self.handle_agent_deadline(node as usize),
            SimEvent::Connect { node, version } => {
                if self.nodes[node as usize].connections == version {
                    self.connect(node as usize);
                }
            }
            SimEvent::Started { node, key } => {
                if let Some(id) = self.nodes[node as usize].run(key).map(|run| run.id) {
                    self.send_to_agent(node as usize, AgentEvent::Started(id));
                }
            }
            SimEvent::Done { node, key, version } => self.finish_work(node as usize, key, version),
            SimEvent::SlotReleased { node, key } => self.slot_released(node as usize, key),
            SimEvent::Tick => self.tick(),
            SimEvent::UpdateRates => self.update_flow_rates(),
            SimEvent::Committed { job } => {
                let result = if self.one_in(10) { Err("no space".into()) } else { Ok(()) };
                self.send_event(Event::CommitResult { job, repeated: false, result });
            }
            SimEvent::Solved { number } => {
                if let Some(answer) = self.solutions.remove(&number) {
                    self.send_event(Event::Computed { number, answer });
                }
            }
            SimEvent::Step { index } => self.step(index as usize),
            SimEvent::Undo { index } => self.undo(index as usize),
            SimEvent::Fault { index } => {
                self.fault_times.push(self.now);
                self.inject_fault(index as usize);
            }
            SimEvent::Heal { index } => self.heal_fault(index as usize),
            SimEvent::Copied { key, version } => self.finish_copy(key, version),
            SimEvent::Random => self.random_event(),
            SimEvent::DatanodeDead { node, returns } => self.start_repair(node, returns),
        }
    }

    /// Runs the timer of the JobTracker. Also checks whether the simulation may skip idle time.
    fn tick(&mut self) {
        self.send_event(Event::Tick);
        self.check_drains();
        if self.setup.checked && self.faults_open == 0 {
            // A pause that was requested by a fault may complete only after the fault has ended.
            self.resume_tasks_on_hold();
        }
        if self.may_skip_idle_time() {
            self.idle_since = Some(self.now);
            return;
        }
        let next = self.core.as_ref().and_then(JobTracker::next_deadline);
        let soonest = self.now + self.setup.tick;
        let next = next.unwrap_or(self.now + Span::secs(1)).max(soonest);
        // With random events the timer is periodic: its times do not depend on the policy.
        let next = if self.setup.random_events { soonest } else { next };
        self.queue.push(next, SimEvent::Tick);
    }

    /// Returns whether heartbeats can be skipped because nothing runs, waits or is faulty. The core
    /// treats the gap as if its own process had been paused.
    fn may_skip_idle_time(&self) -> bool {
        const SKIPPED_MIN: Span = Span::secs(30);
        let idle = self.running_attempts == 0
            && self.unsubmitted.is_empty()
            && self.core.as_ref().is_some_and(|core| core.cluster().open_jobs().next().is_none());
        let well = self.faults_open == 0 && self.unreachable == 0;
        let all_reported = || self.nodes.iter().all(Node::is_idle);
        let far = self.workload.jobs.get(self.next_arrival);
        let far = far.is_some_and(|job| (BEGINNING + job.at).since(self.now) > SKIPPED_MIN);
        idle && well && far && all_reported()
    }

    /// Ends the skipping of idle time.
    fn stop_skipping_idle_time(&mut self) {
        if let Some(since) = self.idle_since.take() {
            self.idle_time_skipped = self.idle_time_skipped + self.now.since(since);
            self.queue.push(self.now, SimEvent::Tick);
            (0..self.nodes.len()).for_each(|at| self.schedule_agent_deadline(at));
        }
    }

    /// Passes an event to the core and executes its effects, then delivers messages to trackers. If
    /// the core is dead, the event is lost. If the core is frozen, it gets the event later.
    fn send_event(&mut self, event: Event) {
        let Some(core) = self.core.as_mut() else { return self.jobtracker_faults.handle_missed_event(event) };
        let mut effects = std::mem::take(&mut self.effects);
        if let Some(checks) = &mut self.checks {
            let before = Before::new(&event, core.cluster());
            core.handle(self.now, event.clone(), &mut effects);
            if let Err(what) = checks.check(&event, &before, &effects, core.cluster()) {
                self.violation = Some(what);
            }
        } else {
            core.handle(self.now, event, &mut effects);
        }
        for effect in effects.drain(..) {
            self.execute_effect(effect);
        }
        self.effects = effects;
        self.deliver_messages();
    }

    fn execute_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Append(entry) => {
                self.record_fact(&entry.fact);
                self.trace.add(entry.at, &entry.fact);
                self.task_times.observe(entry.at, &entry.fact);
                self.metrics.observe(entry.at, &entry.fact);
                self.record(|histories| histories.add(entry.at, &entry.fact));
                if let Some(journal) = &mut self.journal {
                    journal.push(entry);
                }
            }
            Effect::Reply { request, reply } => self.handle_reply(request, reply),
            Effect::SendOrders { tracker, answers, orders } => {
                self.messages.push_back(Message::Orders { tracker, answers, orders });
            }
            Effect::RegisterAgain { tracker, incarnation } => {
                self.messages.push_back(Message::RegisterAgain { tracker, incarnation });
            }
            Effect::CommitJob { job } => {
                self.queue.push(self.now + self.setup.costs.commit, SimEvent::Committed { job });
            }
            Effect::Compute { number, problem } => {
                let began = thread_cpu_time();
                self.solutions.insert(number, problem.solve());
                self.computing += thread_cpu_time().saturating_sub(began);
                self.queue.push(self.now + self.setup.costs.solve, SimEvent::Solved { number });
            }
            Effect::DeleteLeftovers { .. } => {}
        }
    }

    fn record_fact(&mut self, fact: &Fact) {
        self.stall_detector.record_fact(self.now, fact);
        if let Fact::JobEnded { job, .. } = fact {
            self.jobs_open -= 1;
            self.end = self.now;
            self.jobs_known.remove(job);
        }
    }

    fn handle_reply(&mut self, request: RequestId, reply: Reply) {
        if self.random.is_some() && !matches!(reply, Reply::Registered { .. }) {
            self.last_reply = Some(reply.clone());
        }
        match reply {
            Reply::Refused(_) if self.manual_requests.remove(&request) => {}
            Reply::Refused(why) => self.violation = Some(format!("request {} was refused: {why}", request.0)),
            Reply::JobRefused(why) => self.violation = Some(format!("a job was refused: {why}")),
            Reply::Registered { tracker, incarnation, .. } => {
                if let Some(at) = self.registrations.remove(&request) {
                    self.messages.push_back(Message::Registered { at, tracker, incarnation });
                }
            }
            Reply::Submitted(_) | Reply::Accepted => {}
        }
    }

    /// Returns the ID of a new request that the core may refuse.
    fn manual_request(&mut self) -> RequestId {
        let request = self.request();
        self.manual_requests.insert(request);
        request
    }

    /// Returns the ID of a new request.
    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }
}

fn machine(setup: &Setup, at: usize) -> Node {
    let machine = &setup.machines[at];
    Node {
        name: setup.node_name(at),
        rack: machine.rack.to_string(),
        slots: machine.slots,
        speed: machine.speed,
        cores: machine.cores,
        slowdown: 1.0,
        cache: machine.cache,
        task_memory: machine.task_memory,
        task_buffer: setup.costs.memory,
        faults: NodeFaults::default(),
        blocks_replaced: false,
        returns: 0,
        starts: 1,
        agent: Agent::new(machine.slots, BTreeSet::new(), BTreeMap::new(), BTreeSet::new(), None),
        tracker_id: None,
        incarnation: 0,
        newest_order: 0,
        connections: 0,
        next_agent_deadline: None,
        inbox: Vec::new(),
        idle: PerPhase::default(),
        unreported: Vec::new(),
        copying: BTreeMap::new(),
        runs: Vec::new(),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        checkpoints: BTreeMap::new(),
        jobs: BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clusters, workload::coshh};

    /// Takes long to decide, as a policy may in a large cluster.
    #[derive(Debug)]
    struct Slow(schedulers::fifo::Fifo);

    impl mrcore::Scheduler for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn observe(&mut self, now: Time, fact: &Fact, cluster: &mrcore::Cluster) {
            self.0.observe(now, fact, cluster);
        }

        fn decide(&mut self, round: mrcore::scheduler::Round, plan: &mut mrcore::Plan<'_>) {
            std::thread::sleep(Duration::from_millis(5));
            self.0.decide(round, plan);
        }

        fn outranks(&self, one: JobId, other: JobId, phase: Phase, plan: &mrcore::Plan<'_>) -> bool {
            self.0.outranks(one, other, phase, plan)
        }
    }

    #[test]
    fn monitor_is_called_by_the_clock_if_events_take_long() {
        let crate::trial::Trial { setup, workload, .. } = crate::trial::short();
        let config = setup.config.clone();
        let mut world = World::new(setup, workload).expect("a policy");
        world.core = Some(JobTracker::new(config, Box::new(Slow(schedulers::fifo::Fifo::default()))));
        world.send_event(Event::Start);
        let outcome = world.run_monitored(None, |_| false).expect("no rule broken");
        assert!(outcome.stopped && outcome.events < EVENTS_PER_CHECK, "{} events", outcome.events);
    }

    /// Classes and linear programs are computed outside of the rounds, and are most of what `coshh`
    /// computes.
    #[test]
    fn computations_outside_of_the_core_count_as_decisions() {
        let mut setup = clusters::coshh(6);
        "coshh".clone_into(&mut setup.scheduler);
        let workload = coshh::workload("Facebook", &coshh::FACEBOOK, 5, 60.0, 1);
        let mut world = World::new(setup, workload).expect("a policy");
        world.run_until(None, |_| true).expect("no rule broken");
        let computing = world.computing;
        assert!(computing > Duration::ZERO);
        let deciding = world.decision_times.snapshot().total;
        let outcome = world.run_monitored(None, |_| true).expect("it has ended");
        assert_eq!(outcome.deciding.total, deciding + computing);
    }
}
