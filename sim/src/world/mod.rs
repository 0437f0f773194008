//! The world around the JobTracker's mind: machines, disks, network, file system, time, and what goes wrong.
//!
//! It is a loop: take the next thing from the heap, tell the mind or change a machine, carry out what the mind wants.
//! Everything comes from one seed, so that two runs give the same facts (their hash says so). The mind is the real
//! one; so are the policies. What stands in for the rest, and what it leaves out, is in docs/adr/0013.
//!
//! | file | what |
//! |---|---|
//! | `queue.rs` | what is to come |
//! | `arrivals.rs` | jobs come, and their blocks are placed |
//! | `beats.rs` | trackers register and speak |
//! | `orders.rs` | what trackers are told |
//! | `launch.rs` | attempts begin |
//! | `work.rs` | attempts go on and end |
//! | `fetch.rs`, `run.rs`, `node.rs` | a reduce's fetching, an attempt, a machine |
//! | `net.rs` | flows over shared links |
//! | `harm.rs`, `steps.rs` | faults begin and are over; scenarios are played |
//! | `absence.rs` | the JobTracker dies and stands still |
//! | `rules.rs`, `standstill.rs` | what always holds, and what holds at rest; when nothing can go on |
//! | `trace.rs` | facts folded into a hash |

mod absence;
mod arrivals;
mod beats;
mod fetch;
mod harm;
mod launch;
mod net;
mod node;
mod orders;
mod queue;
mod rules;
mod run;
mod standstill;
mod steps;
mod trace;
mod work;

use crate::{chance::Dice, setup::Setup, workload::Workload};
use fetch::MapLog;
use mrcore::{
    Effect, Event, Fact, JobTracker, Phase, Span, Time,
    compute::Numbers,
    event::Reply,
    fact::Entry,
    ids::{JobId, RequestId, TrackerId},
    metrics::{Metrics, shares::Promise},
};
use net::Net;
use node::{Ills, Node};
use queue::{Happening, Queue};
use schedulers::{
    MakeError,
    timed::{Deciding, Spent},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use trace::Trace;

/// What the world knows of a job that the core has taken.
#[derive(Debug)]
struct Known {
    /// Which of the workload's.
    plan: usize,
    /// Machines with each map's input, `copies` for each.
    replicas: Vec<u32>,
    copies: usize,
    log: MapLog,
}

impl Known {
    /// Machines that have the input of a split.
    fn copies_of(&self, split: u32) -> &[u32] {
        self.replicas.chunks(self.copies.max(1)).nth(split as usize).unwrap_or(&[])
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// The policy's name.
    pub scheduler: String,
    /// Figures of all jobs.
    pub metrics: Metrics,
    /// When the last job was over.
    pub end: Time,
    /// The hash of all facts.
    pub hash: u64,
    /// Things that happened.
    pub events: u64,
    /// Facts.
    pub facts: u64,
    /// Jobs that did not end within the limit, or could not any more.
    pub unfinished: usize,
    /// Faults that came.
    pub faults: u32,
    /// How long the policy took to decide, on this machine: the one figure that another run gives anew.
    pub deciding: Deciding,
}

/// A run that broke a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {at}: {what}")]
pub struct Broken {
    /// When.
    pub at: String,
    /// Which.
    pub what: String,
}

/// The world.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    workload: Workload,
    now: Time,
    queue: Queue,
    mind: Option<JobTracker>,
    deciding: Arc<Spent>,
    nodes: Vec<Node>,
    /// Machines by tracker number.
    by_tracker: BTreeMap<TrackerId, u32>,
    net: Net,
    /// When rates will be found anew, if they will.
    sharing: bool,
    /// Machines whose tracker or network is not there.
    unreachable: u32,
    known: BTreeMap<JobId, Known>,
    next_arrival: usize,
    /// Jobs that came while the JobTracker was not there.
    unsubmitted: Vec<usize>,
    jobs_open: usize,
    runs: usize,
    keys: u64,
    requests: u128,
    /// Requests that may be refused.
    meddling: BTreeSet<RequestId>,
    /// What came of problems, until the mind is told.
    answers: BTreeMap<u64, Numbers>,
    /// Kept only if the JobTracker will have to replay it.
    journal: Option<Vec<Entry>>,
    absence: absence::Absence,
    asleep: bool,
    faults_open: usize,
    faults_begun: u32,
    progress: standstill::Progress,
    scenario: steps::Progress,
    dice: Dice,
    trace: Trace,
    metrics: Metrics,
    events: u64,
    end: Time,
    broken: Option<String>,
    effects: Vec<Effect>,
}

impl World {
    /// A world at its beginning.
    pub fn new(setup: Setup, workload: Workload) -> Result<Self, MakeError> {
        let deciding = Arc::new(Spent::default());
        let mind = JobTracker::new(setup.config.clone(), setup.policy(&deciding)?);
        let nodes: Vec<Node> = (0..setup.machines.len()).map(|at| machine(&setup, at)).collect();
        let nic: Vec<f64> = setup.machines.iter().map(|machine| machine.nic).collect();
        let rack_of = setup.machines.iter().map(|machine| machine.rack).collect();
        let fabric = setup.fabric.unwrap_or_else(|| nic.iter().sum());
        let net = Net::new(&nic, rack_of, setup.rack_uplink, fabric);
        // A scenario may be for the JobTracker.
        let restarts = !setup.steps.is_empty()
            || setup.faults.iter().any(|fault| fault.what == crate::fault::Harm::JobTracker);
        let mut world = Self {
            now: Time(1_000_000),
            queue: Queue::default(),
            mind: Some(mind),
            deciding,
            nodes,
            by_tracker: BTreeMap::new(),
            net,
            sharing: false,
            unreachable: 0,
            known: BTreeMap::new(),
            next_arrival: 0,
            unsubmitted: Vec::new(),
            jobs_open: workload.jobs.len(),
            runs: 0,
            keys: 0,
            requests: 0,
            meddling: BTreeSet::new(),
            answers: BTreeMap::new(),
            journal: (restarts || setup.checked).then(Vec::new),
            absence: absence::Absence::default(),
            asleep: false,
            faults_open: setup.faults.len(),
            faults_begun: 0,
            progress: standstill::Progress::new(Time(1_000_000)),
            scenario: steps::Progress::new(setup.seed),
            dice: Dice::of(setup.seed, "world"),
            trace: Trace::default(),
            metrics: Metrics::default(),
            events: 0,
            end: Time(0),
            broken: None,
            effects: Vec::new(),
            setup,
            workload,
        };
        world.begin();
        Ok(world)
    }

    /// Counts dissatisfaction and fairness for these users.
    #[must_use]
    pub fn with_users(mut self, users: impl IntoIterator<Item = (String, Promise)>) -> Self {
        let facts_so_far = std::mem::take(&mut self.metrics);
        debug_assert_eq!(facts_so_far.jobs().count(), 0, "users are set before the first job");
        self.metrics = Metrics::with_users(users);
        self
    }

    fn begin(&mut self) {
        self.tell(Event::Start);
        self.queue.push(self.now, Happening::Tick);
        for at in 0..self.nodes.len() {
            let stagger = Span(self.dice.below(self.setup.heartbeat.0.max(1)));
            self.beat_at(at, self.now + stagger);
        }
        for (index, fault) in self.setup.faults.iter().enumerate() {
            let origin = self.now;
            self.queue.push(origin + fault.at(), Happening::Fault { index: index as u32 });
            if let Some(until) = fault.until() {
                self.queue.push(origin + until, Happening::Heal { index: index as u32 });
            }
        }
        self.plan_steps();
        self.await_arrival();
    }

    /// Plays until every job is over, until `limit` has passed since the beginning, or until nothing can go on any more.
    pub fn run(mut self, limit: Option<Span>) -> Result<Outcome, Broken> {
        let last = limit.map(|limit| self.now + limit);
        while !self.is_over() {
            let Some((at, what)) = self.queue.pop() else { break };
            if let Some(last) = last.filter(|last| at > *last) {
                self.metrics.leave(last);
                break;
            }
            if self.is_at_standstill(at, what) {
                self.metrics.leave(at);
                break;
            }
            self.progress.happened(at, what);
            self.now = at;
            self.events += 1;
            self.happen(what);
            self.look_at_conditions();
            if self.setup.checked && self.broken.is_none() {
                self.check();
            }
            self.whole()?;
        }
        if self.setup.checked {
            self.check_end();
            self.whole()?;
        }
        Ok(Outcome {
            scheduler: self.setup.scheduler,
            metrics: self.metrics,
            end: self.end,
            hash: self.trace.hash,
            events: self.events,
            facts: self.trace.facts,
            unfinished: self.jobs_open,
            faults: self.faults_begun,
            deciding: self.deciding.so_far(),
        })
    }

    /// Every job has ended; where rules are checked, every fault is over too and every slot is free again.
    fn is_over(&self) -> bool {
        let at_rest = || {
            let told = self.nodes.iter().all(|node| node.ended.is_empty() && node.number.is_some());
            let free = self.mind.as_ref().is_some_and(|mind| {
                let idle = |phase: Phase| mind.cluster().trackers().all(|at| at.running[phase].is_empty());
                Phase::BOTH.into_iter().all(idle)
            });
            self.faults_open == 0 && self.runs == 0 && told && free
        };
        self.jobs_open == 0 && (!self.setup.checked || at_rest())
    }

    fn whole(&mut self) -> Result<(), Broken> {
        match self.broken.take() {
            Some(what) => Err(Broken { at: self.now.to_string(), what }),
            None => Ok(()),
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrival => self.arrive(),
            Happening::Beat { node, version } => {
                if self.nodes[node as usize].beat_version == version {
                    self.beat(node as usize);
                }
            }
            Happening::Done { node, key, version } => self.done(node as usize, key, version),
            Happening::Yield { node, key } => self.yields(node as usize, key),
            Happening::Tick => self.tick(),
            Happening::Share => self.share_links(),
            Happening::Committed { job } => self.tell(Event::CommitResult { job, result: Ok(()) }),
            Happening::Solved { number } => {
                if let Some(answer) = self.answers.remove(&number) {
                    self.tell(Event::Computed { number, answer });
                }
            }
            Happening::Step { index } => self.step(index as usize),
            Happening::Undo { index } => self.undo(index as usize),
            Happening::Fault { index } => {
                self.faults_begun += 1;
                self.harm(index as usize);
            }
            Happening::Heal { index } => self.heal(index as usize),
            Happening::Repaired { node, returns } => self.repaired(node as usize, returns),
        }
    }

    /// The JobTracker looks at the time, and the world at whether anything will happen soon.
    fn tick(&mut self) {
        self.tell(Event::Tick);
        if self.setup.checked && self.faults_open == 0 {
            // A pause that was asked for may have come after its fault was over.
            self.let_go();
        }
        if self.may_sleep() {
            self.asleep = true;
            return;
        }
        let next = self.mind.as_ref().and_then(JobTracker::next_deadline);
        let soonest = self.now + self.setup.tick;
        let next = next.unwrap_or(self.now + Span::secs(1)).max(soonest);
        self.queue.push(next, Happening::Tick);
    }

    /// While nothing runs, nothing waits and nothing is wrong, no tracker need speak. The mind takes such a silence
    /// for its own absence.
    fn may_sleep(&self) -> bool {
        const WORTH_IT: Span = Span::secs(30);
        let idle = self.runs == 0
            && self.unsubmitted.is_empty()
            && self.mind.as_ref().is_some_and(|mind| {
                mind.cluster().active_jobs().next().is_none()
                    && mind.cluster().jobs().all(mrcore::job::Job::is_over)
            });
        let well = self.faults_open == 0 && self.unreachable == 0;
        let told = || self.nodes.iter().all(|node| node.ended.is_empty() && node.number.is_some());
        let far = self.workload.jobs.get(self.next_arrival);
        let far = far.is_some_and(|job| (Time(1_000_000) + job.at).since(self.now) > WORTH_IT);
        idle && well && far && told()
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.queue.push(self.now, Happening::Tick);
            for at in 0..self.nodes.len() {
                let stagger = Span(self.dice.below(self.setup.heartbeat.0.max(1)));
                self.beat_at(at, self.now + stagger);
            }
        }
    }

    /// Tells the mind something, and carries out what it wants. Nobody hears while it is not there; while it stands still,
    /// it hears later.
    fn tell(&mut self, event: Event) {
        let Some(mind) = self.mind.as_mut() else { return self.absence.miss(event) };
        let mut effects = std::mem::take(&mut self.effects);
        mind.handle(self.now, event, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Append(entry) => {
                self.note(&entry.fact);
                self.trace.add(entry.at, &entry.fact);
                self.metrics.observe(entry.at, &entry.fact);
                if let Some(journal) = &mut self.journal {
                    journal.push(entry);
                }
            }
            Effect::Reply { request, reply } => self.replied(request, reply),
            Effect::Tell { tracker, answer, orders } => self.told(tracker, answer, orders),
            Effect::AskToRegister { tracker, .. } => {
                if let Some(node) = self.by_tracker.get(&tracker).copied().map(|at| at as usize)
                    && self.nodes[node].ills.deaf == 0
                {
                    self.nodes[node].number = None;
                    self.nodes[node].unanswered = None;
                    self.beat_at(node, self.now + Span::millis(1));
                }
            }
            Effect::CommitJob { job } => {
                self.queue.push(self.now + self.setup.costs.commit, Happening::Committed { job });
            }
            Effect::Compute { number, problem } => {
                self.answers.insert(number, problem.solve());
                self.queue.push(self.now + self.setup.costs.solve, Happening::Solved { number });
            }
            Effect::DiscardOutput { .. } => {}
        }
    }

    fn note(&mut self, fact: &Fact) {
        self.progress.note(self.now, fact);
        if let Fact::JobEnded { job, .. } = fact {
            self.jobs_open -= 1;
            self.end = self.now;
            self.known.remove(job);
        }
    }

    fn replied(&mut self, request: RequestId, reply: Reply) {
        match reply {
            Reply::Refused(_) if self.meddling.remove(&request) => {}
            Reply::Refused(why) => self.broken = Some(format!("request {} was refused: {why}", request.0)),
            Reply::Submitted(_) | Reply::Stopped | Reply::Taken | Reply::Registered { .. } => {}
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }
}

fn machine(setup: &Setup, at: usize) -> Node {
    let machine = &setup.machines[at];
    Node {
        name: format!("n{at}"),
        slots: machine.slots,
        speed: machine.speed,
        slow: 1.0,
        disk: machine.disk,
        ills: Ills::default(),
        incarnation: 1,
        replaced: false,
        returns: 0,
        number: None,
        seq: 0,
        acked: 0,
        acked_told: 0,
        unanswered: None,
        answered: Time(0),
        next_beat: Time(0),
        beat_version: 0,
        runs: Vec::new(),
        ended: Vec::new(),
        outputs: BTreeSet::new(),
        checkpoints: BTreeMap::new(),
        jobs: BTreeSet::new(),
        news: BTreeMap::new(),
    }
}
