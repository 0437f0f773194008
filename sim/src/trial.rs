//! Clusters and jobs that can be simulated, and also run with real processes on one machine.
//!
//! A [`Trial`] is a [`Setup`] and a [`Workload`] whose tasks mostly sleep, so that one machine can
//! run it. Paced tasks read 64 KiB each, as slowly as the plan requires. Scripted tasks sleep,
//! longer on a slow node, and then write the planned output. The caller runs the trial with real
//! processes. From the histories of the jobs it creates an [`Outcome`] like that of the simulator.

use crate::{
    Outcome, Setup, Workload,
    experiment::Variant,
    fault::{Fault, FaultKind},
    report::{Cell, Table},
    workload::{JobPlan, MapPlan, ReducePlan, history::History, seconds},
};
use mrcore::{
    PerPhase, Span,
    job::Priority,
    metrics::{JobFigures, stats::mean},
};
use schedulers::Params;

/// Input of one map, in bytes.
pub const BLOCK: u64 = 64 << 10;
/// Number of nodes, as in the Chronos paper.
const NODES: u32 = 8;
/// Slots per node, as in the Chronos paper.
const SLOTS: PerPhase<u32> = PerPhase { map: 8, reduce: 4 };

/// A cluster under one policy, with its jobs.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Name of the trial.
    pub name: String,
    /// The cluster, its policy and faults.
    pub setup: Setup,
    pub workload: Workload,
    /// Kind of the real tasks.
    pub tasks: Tasks,
}

/// Kind of the tasks of a trial when it runs for real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// Built-in programs that read and reduce at the planned pace.
    Paced,
    /// Scripts that sleep for the planned time, scaled by the speed of the node. Maps then write
    /// each input line several times.
    Scripts {
        /// How many times a map writes each line.
        copies: u32,
    },
}

/// Bytes of a line of input, including the newline.
pub const LINE: usize = 64;
/// Bytes of a map output record that contains a line, a number and two length fields.
const RECORD_BYTES: f64 = 66.4;

/// A job with paced tasks.
#[derive(Debug, Clone, Copy)]
pub struct Paced<'a> {
    /// Submission, in seconds after the first job.
    pub at_s: f64,
    /// Group of the job, and prefix of its name.
    pub group: &'a str,
    /// User of the job.
    pub user: &'a str,
    /// Number of maps, and seconds per map.
    pub maps: (u32, f64),
    /// Number of reduces, and seconds per reduce after the shuffle.
    pub reduces: (u32, f64),
}

/// Creates a [`Paced`] job.
fn job<'a>(at_s: f64, group: &'a str, user: &'a str, maps: (u32, f64), reduces: (u32, f64)) -> Paced<'a> {
    Paced { at_s, group, user, maps, reduces }
}

impl Paced<'_> {
    /// Returns the plan of the job.
    pub fn plan(&self, number: usize) -> JobPlan {
        let (maps, map_s) = self.maps;
        let (reduces, reduce_s) = self.reduces;
        let share = 1.0 / f64::from(reduces.max(1));
        let bytes = f64::from(maps) * BLOCK as f64 * share;
        JobPlan {
            at: seconds(self.at_s),
            name: format!("{}-{number}", self.group),
            group: self.group.to_owned(),
            user: self.user.to_owned(),
            queue: "default".into(),
            priority: Priority::Normal,
            maps: vec![MapPlan { bytes: BLOCK, work_s: map_s as f32, divisible: true }; maps as usize],
            hosts: Vec::new(),
            reduces: vec![ReducePlan { share: share as f32, factor: 1.0, fixed_s: 0.0 }; reduces as usize],
            map_out: 1.0,
            reduce_rate: bytes / reduce_s.max(1e-3),
            merge_rate: 1e12,
            reduce_out: 1.0,
            startup_time: Span(0),
            slow_start: 0.05,
            speculation: false,
            split_slow: true,
        }
    }
}

/// Returns a workload of paced jobs.
pub fn workload(name: &str, jobs: &[Paced<'_>]) -> Workload {
    let jobs = jobs.iter().enumerate().map(|(number, job)| job.plan(number)).collect();
    Workload { name: name.to_owned(), jobs }.sorted()
}

const SHORT_WAITS: [(&str, &str); 8] = [
    ("fair.node_wait", "500ms"),
    ("fair.rack_wait", "500ms"),
    ("fcs.node_wait", "500ms"),
    ("fcs.rack_wait", "500ms"),
    ("coda.node_wait", "500ms"),
    ("coda.rack_wait", "500ms"),
    ("hsrtf.colocate_wait", "500ms"),
    ("hsrtf.every", "2s"),
];

/// Returns policy parameters with short waiting times, because tasks take seconds and not minutes.
pub(crate) fn short_waits() -> Params {
    SHORT_WAITS.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Returns a cluster of eight nodes on one machine: disks and links are as fast as memory, lost
/// nodes are detected within seconds, and the start of a process takes a random time.
pub fn setup(variant: &Variant) -> Setup {
    let mut setup = Setup::even(NODES, SLOTS, &variant.scheduler);
    setup.params = short_waits();
    setup.params.extend(variant.params.clone());
    setup.replication = 3;
    setup.heartbeat = Span::millis(500);
    setup.config.suspect_after = Span::secs(2);
    setup.config.lost_after = Span::secs(4);
    for machine in &mut setup.machines {
        (machine.disk, machine.nic) = (1e9, 1e9);
    }
    setup.costs.start_spread = Span::millis(200);
    setup.costs.fetch = 1e9;
    setup.costs.write = 1e9;
    setup.costs.net_epoch = Span::millis(50);
    setup
}

impl Trial {
    /// Creates a trial with paced tasks.
    pub fn new(name: &str, variant: &Variant, workload: Workload, faults: Vec<Fault>) -> Self {
        let setup = Setup { faults, ..setup(variant) };
        Self { name: name.to_owned(), setup, workload, tasks: Tasks::Paced }
    }

    /// Returns the same trial with scripts as tasks. The duration of a reduce then does not depend
    /// on its bytes, and reduces write almost nothing.
    #[must_use]
    fn scripted(mut self, copies: u32) -> Self {
        for job in &mut self.workload.jobs {
            let bytes: u64 = job.maps.iter().map(|map| map.bytes).sum();
            let each = bytes as f64 / job.reduces.len().max(1) as f64 / job.reduce_rate;
            let share = 1.0 / job.reduces.len().max(1) as f32;
            let reduce = ReducePlan { share, factor: 0.0, fixed_s: each as f32 };
            job.reduces.fill(reduce);
            job.map_out = f64::from(copies) * RECORD_BYTES / LINE as f64;
            (job.reduce_rate, job.reduce_out) = (1e12, 0.0);
        }
        self.tasks = Tasks::Scripts { copies };
        self
    }

    /// Returns the same trial with the submission times and block locations of a real run. Task
    /// times remain as planned. All times are a second later, because the trackers need a second to
    /// register.
    #[must_use]
    pub fn as_it_was(&self, history: &History) -> Self {
        let mut same = self.clone();
        let number = |host: &u32| {
            let name = history.trackers.get(*host as usize)?;
            name.strip_prefix("node")?.parse::<u32>().ok()?.checked_sub(1)
        };
        for (job, real) in same.workload.jobs.iter_mut().zip(&history.workload.jobs) {
            job.at = real.at + Span::secs(1);
            job.hosts = real.hosts.iter().map(|hosts| hosts.iter().filter_map(number).collect()).collect();
        }
        same.setup.faults.iter_mut().for_each(|fault| fault.at_s += 1.0);
        same
    }
}

/// The duration of each job in a real run and in its simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Fidelity {
    /// Job name, real seconds, simulated seconds.
    pub jobs: Vec<(String, f64, f64)>,
}

/// Why a run cannot be compared with its simulation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FidelityError {
    #[error("{job} did not succeed in the {run}, so its duration cannot be compared")]
    NotSucceeded { job: String, run: &'static str },
    #[error("{real} jobs ran, but {simulated} were simulated")]
    JobCount { real: usize, simulated: usize },
}

impl Fidelity {
    /// Compares a run with its simulation. Both have the same jobs in the same order, but job IDs may
    /// differ. All must have succeeded.
    pub fn of(real: &Outcome, simulated: &Outcome) -> Result<Self, FidelityError> {
        let count = |outcome: &Outcome| outcome.metrics.jobs().count();
        if count(real) != count(simulated) {
            return Err(FidelityError::JobCount { real: count(real), simulated: count(simulated) });
        }
        let seconds = |job: &JobFigures, run| {
            let makespan = job.makespan().filter(|_| job.succeeded);
            let failed = || FidelityError::NotSucceeded { job: job.name.clone(), run };
            makespan.map(Span::as_secs_f64).ok_or_else(failed)
        };
        let pairs = real.metrics.jobs().zip(simulated.metrics.jobs());
        let jobs = pairs.map(|((_, real), (_, simulated))| {
            Ok((real.name.clone(), seconds(real, "real run")?, seconds(simulated, "simulation")?))
        });
        Ok(Self { jobs: jobs.collect::<Result<_, _>>()? })
    }

    /// Returns how much longer each job takes in the simulation, as a fraction of its real duration.
    pub fn differences(&self) -> impl Iterator<Item = f64> {
        self.jobs.iter().map(|(_, real, simulated)| (simulated - real) / real.max(1e-6))
    }

    /// Returns the mean relative error of the simulated durations.
    pub fn error(&self) -> f64 {
        mean(&self.differences().map(f64::abs).collect::<Vec<_>>())
    }

    /// Returns a table with one row per job.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&["job", "real s", "simulated s", "off"]);
        for ((name, real, simulated), off) in self.jobs.iter().zip(self.differences()) {
            let seconds = |value: f64| Cell::Number(Some(value), format!("{value:.1}"));
            table.row(vec![
                name.as_str().into(),
                seconds(*real),
                seconds(*simulated),
                Cell::percent(Some(off)),
            ]);
        }
        table
    }
}

/// Returns the trials that measure the accuracy of the simulator: mixes of sizes under different
/// policies, preemption of maps and reduces, and a lost node.
pub fn all() -> Vec<Trial> {
    // Jobs are submitted while tasks of other jobs run, so that the result does not depend on the
    // order of simultaneous events.
    let mix = workload(
        "mix",
        &[
            job(0.0, "large", "ann", (150, 4.0), (16, 3.0)),
            job(1.5, "medium", "bob", (40, 3.0), (8, 2.5)),
            job(2.6, "small", "ann", (6, 2.0), (1, 2.0)),
            job(5.7, "medium", "bob", (40, 3.0), (8, 2.5)),
            job(6.6, "small", "carl", (6, 2.0), (1, 2.0)),
            job(7.1, "small", "bob", (6, 2.0), (1, 2.0)),
        ],
    );
    let long = workload(
        "long maps",
        &[
            job(0.0, "long", "ann", (90, 12.0), (8, 3.0)),
            job(2.5, "medium", "bob", (30, 3.0), (8, 3.0)),
            job(5.2, "small", "carl", (12, 3.0), (2, 3.0)),
        ],
    );
    let reduces = workload(
        "reduces",
        &[
            // The reduces of this job occupy every slot while its maps run.
            job(0.0, "large", "ann", (190, 4.0), (40, 4.0)),
            job(1.7, "small", "bob", (8, 2.0), (4, 2.0)),
            job(5.9, "medium", "bob", (32, 2.0), (12, 3.0)),
            job(10.1, "small", "carl", (8, 2.0), (4, 2.0)),
            job(14.3, "small", "ann", (8, 2.0), (4, 2.0)),
        ],
    );
    let two = workload(
        "two",
        &[job(0.0, "first", "ann", (67, 6.0), (28, 3.0)), job(0.5, "second", "bob", (150, 6.0), (28, 3.0))],
    );
    let dies = || vec![Fault { at_s: 3.0, for_s: None, what: FaultKind::Node { node: 3 } }];
    let soon = [("min_share_timeout", "1s"), ("fair_share_timeout", "1s")];
    let preempting = Variant::tuned("fair, preemption", "fair", &soon);
    let fcs = Variant::tuned("fcs", "fcs", &[("newly_launched", "2s")]);
    let prp = Variant::tuned("hsrtf-prp", "hsrtf-prp", &[("newly_launched", "1s")]);
    vec![
        Trial::new("fifo", &Variant::plain("fifo"), mix.clone(), Vec::new()),
        Trial::new("fair", &Variant::plain("fair"), mix.clone(), Vec::new()),
        Trial::new("fair, preemption", &preempting, long, Vec::new()),
        Trial::new("hsrtf-prp", &prp, mix, Vec::new()),
        Trial::new("fcs", &fcs, reduces, Vec::new()),
        Trial::new("chronos(fifo), a node dies", &Variant::plain("chronos(fifo)"), two.clone(), dies()),
        Trial::new("fifo, a node dies", &Variant::plain("fifo"), two, dies()),
        slow_node(),
    ]
}

/// Returns a trial in which one node is three times slower than the others.
fn slow_node() -> Trial {
    let jobs = [
        job(0.0, "large", "ann", (100, 3.0), (10, 3.0)),
        job(1.7, "small", "bob", (12, 2.0), (3, 2.0)),
        job(4.6, "medium", "bob", (40, 2.5), (6, 2.5)),
        job(9.3, "small", "carl", (12, 2.0), (3, 2.0)),
    ];
    let fair = Variant::plain("fair");
    let mut trial = Trial::new("fair, a slow node", &fair, workload("slow", &jobs), Vec::new()).scripted(1);
    trial.setup.machines[3].speed = 1.0 / 3.0;
    trial
}

/// Returns a trial that is limited by the network: all shuffles share one link of `bytes_per_s`,
/// which the caller has to provide. The output of a map is sixteen times its input.
pub fn narrow_link(bytes_per_s: f64) -> Trial {
    let jobs = [
        job(0.0, "large", "ann", (48, 2.0), (8, 1.5)),
        job(1.3, "medium", "bob", (24, 1.5), (6, 1.5)),
        job(4.4, "small", "carl", (6, 1.5), (2, 1.0)),
        job(14.2, "small", "ann", (6, 1.5), (2, 1.0)),
    ];
    let fair = Variant::plain("fair");
    let mut trial =
        Trial::new("fair, a narrow link", &fair, workload("link", &jobs), Vec::new()).scripted(16);
    trial.setup.fabric = Some(bytes_per_s);
    // Every node has every block, so the link carries only shuffle traffic.
    trial.setup.replication = trial.setup.machines.len();
    trial
}

/// Returns a trial of a few seconds.
pub fn short() -> Trial {
    let jobs = [
        job(0.0, "large", "ann", (80, 4.0), (8, 2.0)),
        job(1.5, "small", "bob", (12, 2.0), (4, 2.0)),
        job(2.5, "small", "carl", (12, 2.0), (4, 2.0)),
    ];
    let fair = Variant::tuned("fair", "fair", &[("fair_share_timeout", "2s")]);
    Trial::new("short", &fair, workload("short", &jobs), Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{World, experiment::makespan_s};
    use mrcore::ids::JobId;

    #[test]
    fn every_trial_ends_within_90_seconds() {
        let trials = all().into_iter().chain([short(), narrow_link(4e6)]);
        for Trial { name, setup, workload, .. } in trials {
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            let elapsed = outcome.end.since(mrcore::Time(0)).as_secs_f64();
            assert!(outcome.unfinished == 0 && elapsed < 90.0, "{name}: {elapsed} s");
        }
    }

    #[test]
    fn some_trials_preempt_and_some_lose_a_node() {
        let mut sum = [0; 3];
        for Trial { setup, workload, .. } in all() {
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            for (_, job) in outcome.metrics.jobs() {
                sum[0] += job.preemption.splits;
                sum[1] += job.preemption.pauses;
                sum[2] += job.recovery.tasks;
            }
        }
        assert!(sum.iter().all(|count| *count > 0), "splits, pauses, tasks recovered: {sum:?}");
    }

    #[test]
    fn only_runs_whose_jobs_have_all_succeeded_are_compared() {
        let run = |limit: Option<Span>| {
            let Trial { setup, workload, .. } = short();
            World::new(setup, workload).expect("a policy").run(limit).expect("no rule broken")
        };
        let whole = run(None);
        assert_eq!(Fidelity::of(&whole, &whole).map(|same| same.jobs.len()), Ok(3));
        let part = run(Some(Span::secs(5)));
        let of = |job: &str, run| Err(FidelityError::NotSucceeded { job: job.to_owned(), run });
        assert_eq!(Fidelity::of(&whole, &part), of("large-0", "simulation"));
        assert_eq!(Fidelity::of(&part, &whole), of("large-0", "real run"));
        let first = run(Some(Span::secs(1)));
        assert_eq!(Fidelity::of(&whole, &first), Err(FidelityError::JobCount { real: 3, simulated: 1 }));
    }

    /// If the link did not dominate, the trial would not measure how bandwidth is shared.
    #[test]
    fn narrow_link_dominates_its_trial() {
        let first = |rate: f64| {
            let Trial { setup, workload, .. } = narrow_link(rate);
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            outcome.metrics.job(JobId(1)).and_then(makespan_s).expect("it has ended")
        };
        let (narrow, wide) = (first(4e6), first(1e9));
        assert!(narrow > 2.0 * wide, "{narrow} s compared with {wide} s");
    }
}
