//! Runs policies on several workloads and seeds, and compares them.
//!
//! The result of each run is a [`RunRecord`]. With a folder, each record is stored in a file as
//! soon as its run has ended, and a run whose file exists is not repeated. A campaign that was
//! interrupted therefore continues where it stopped, and several processes can share a folder, each
//! with its part of the runs.
//!
//! A stored record is used only if commit, cluster, jobs and policy are those of the run. Runs that
//! were stopped by the time limit are not stored, so they are repeated.
//!
//! For every workload and seed there are two runs besides those of the policies: each job alone on
//! the cluster ([`ALONE`]), for slowdowns, and `fair` with its default parameters, for finish-time
//! fairness. A job that a sample of a trace repeats is simulated alone once.

mod leaderboard;

use crate::{
    Outcome, RuleViolation, World,
    catalog::Case,
    experiment::{
        ALONE, Alone, ExperimentError, RunProgress, Variant, first_equal_jobs, in_parallel, time_alone,
        utilisation,
    },
    fault::random_failures_during,
    report::file_name_part,
    rng::Rng,
    trial::{Tasks, Trial},
};
pub use leaderboard::{Leaderboard, Score};
use mrcore::{PerPhase, Phase, Span};
use serde::{Deserialize, Serialize};
use std::{
    fmt::{self, Write as _},
    fs::{self, File},
    hash::{DefaultHasher, Hasher},
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// The policy that finish-time fairness is relative to.
pub const FAIR: &str = "fair";

/// Why a campaign failed.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error("{}: cannot be read or written: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: the folder cannot be created: {source}; give another folder", path.display())]
    NoFolder { path: PathBuf, source: io::Error },
    #[error("{}: not a result of `mrctl lab compare`: {why}; delete the file to repeat the run", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error(
        "{}: the file has the result of {found}, but its name is that of {wanted}: delete it", path.display()
    )]
    OtherRun { path: PathBuf, found: String, wanted: String },
    #[error(
        "{}: the result is of commit {found}, and this program of {wanted}: `--runs-of '{found}'` reads the results of that commit; new ones need another --dir",
        path.display()
    )]
    OtherCommit { path: PathBuf, found: String, wanted: String },
    #[error(
        "{}: the result is of commit {found}, and --runs-of asks for {wanted}: give --runs-of '{found}', or another --dir",
        path.display()
    )]
    NotOfCommit { path: PathBuf, found: String, wanted: String },
    #[error(
        "{}: the result of {run} was made with other inputs: {why}; give another --dir, or delete the file to repeat the run",
        path.display()
    )]
    OtherInputs { path: PathBuf, run: String, why: String },
    #[error(
        "{}: the result is of {}, but this command needs that of {}: a folder has results of one kind; give another --dir, or repeat the command {} --real",
        path.display(),
        kind(!is_real),
        kind(*is_real),
        if *is_real { "without" } else { "with" }
    )]
    OtherKind {
        path: PathBuf,
        /// Whether a real run is needed, and the result is simulated.
        is_real: bool,
    },
    #[error(
        "{run}: not in the folder: --runs-of only reads results; repeat the command with a program of commit {commit} to make it"
    )]
    NotStored { run: String, commit: String },
    #[error("{workload}: {error}")]
    Run { workload: String, error: ExperimentError },
    #[error("interrupted when {done} of {of} runs were done")]
    Interrupted { done: usize, of: usize },
}

/// The least number of digits of an abbreviated commit.
const COMMIT_DIGITS_MIN: usize = 4;

/// Returns whether two names of commits are the same, or one abbreviates the other.
fn is_same_commit(one: &str, other: &str) -> bool {
    let is_hash =
        |text: &str| text.len() >= COMMIT_DIGITS_MIN && text.bytes().all(|letter| letter.is_ascii_hexdigit());
    one == other || is_hash(one) && is_hash(other) && (one.starts_with(other) || other.starts_with(one))
}

/// What precedes the path of a file in the line that says how a result was made.
const CHECKSUM: &str = "; SHA-256 of ";

/// Describes which inputs of a run have changed, from the lines that say how its result was made and
/// how it would be made now.
fn changed_inputs(then: &str, now: &str) -> String {
    // A path may contain anything. What follows the last checksum is about other things.
    let file = |text: &str| {
        let is_hex = |sum: &&str| !sum.is_empty() && sum.bytes().all(|digit| digit.is_ascii_hexdigit());
        text.match_indices(": ").find_map(|(at, separator)| {
            let sum = text[at + separator.len()..].split(';').next().filter(is_hex)?;
            Some((text[..at].to_owned(), sum.chars().take(12).collect::<String>()))
        })
    };
    let files =
        |line: &str| -> Vec<(String, String)> { line.split(CHECKSUM).skip(1).filter_map(file).collect() };
    let (then, now) = (files(then), files(now));
    let changed = now.iter().filter_map(|(path, sum)| {
        let (_, before) = then.iter().find(|(known, before)| known == path && before != sum)?;
        Some(format!("{path} has changed since (SHA-256 {before}... then, {sum}... now)"))
    });
    let changed: Vec<String> = changed.collect();
    if changed.is_empty() {
        "the machines, the jobs, the faults or the policy are others, though no file has changed".to_owned()
    } else {
        changed.join(", ")
    }
}

fn kind(is_real: bool) -> &'static str {
    if is_real { "a run on a real cluster" } else { "a simulated run" }
}

/// A workload of a campaign.
pub struct CampaignWorkload {
    /// The workload and its options, as given on the command line.
    pub label: String,
    pub case: Case,
    /// Mean seconds between random failures of a machine, and until it is back; `None` without
    /// random failures.
    pub failures_s: Option<(f64, f64)>,
}

/// Runs jobs on a real cluster. Returns why it could not, in one line.
pub type RealCluster<'a> = dyn Fn(&Trial) -> Result<Outcome, String> + Sync + 'a;

/// Policies, workloads and seeds to run.
pub struct Campaign<'a> {
    pub workloads: &'a [CampaignWorkload],
    pub variants: &'a [Variant],
    pub seeds: Range<u64>,
    /// The folder for results, if they are stored.
    pub folder: Option<&'a Path>,
    /// Where the jobs run, if they are not simulated. Each job alone is always simulated.
    pub real_cluster: Option<&'a RealCluster<'a>>,
    /// Which runs to do: those whose number modulo `.1` is `.0`.
    pub part: (usize, usize),
    /// Real time after which a run is stopped.
    pub time_limit: Duration,
    /// Is called regularly during each run, with the workload and policy as its label.
    pub progress: &'a (dyn Fn(RunProgress<'_>) + Sync),
    /// When this is true, the runs in progress are stopped and no others begin.
    pub interrupted: &'a AtomicBool,
    /// The command line and version, for the records.
    pub made_by: &'a str,
    /// The commit of the results. Stored results of another commit are refused.
    pub commit: &'a str,
    /// Whether every result must be stored: a program of another commit must not do runs.
    pub only_stored: bool,
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The command line and version that made it.
    pub made_by: String,
    pub commit: String,
    /// Hash of the cluster, the jobs and the parameters.
    pub inputs: String,
    pub workload: String,
    /// The policy and its parameters, or [`ALONE`].
    pub policy: String,
    pub seed: u64,
    /// Whether the jobs ran on a real cluster.
    #[serde(default)]
    pub is_real: bool,
    pub machines: usize,
    pub map_slots: u32,
    pub reduce_slots: u32,
    /// Seconds from the first submission to the end of the last job.
    pub makespan_s: f64,
    /// Fraction of the maps that were launched node-local; null without maps.
    pub locality: Option<f64>,
    /// Fraction of the slots of each phase that were in use until the makespan; null without slots.
    pub map_slots_used: Option<f64>,
    pub reduce_slots_used: Option<f64>,
    /// Slot seconds of work that was lost, and of preemptions.
    pub lost_slot_s: f64,
    pub overhead_slot_s: f64,
    /// Number of splits, pauses and kills by the policy.
    pub preemptions: u64,
    pub events: u64,
    /// Whether the time limit stopped the run. Of each job alone, only the first jobs are then there.
    #[serde(default)]
    pub stopped: bool,
    /// The task that was started again and again, which ended the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<String>,
    /// Jobs that were not submitted before the run was stopped.
    pub unsubmitted: usize,
    pub jobs: Vec<JobRecord>,
}

/// One job of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Number of the job in the order of submission, from 1.
    pub job: u32,
    pub group: String,
    pub user: String,
    pub maps: u32,
    pub reduces: u32,
    /// Seconds after the first submission.
    pub submitted_s: f64,
    /// Seconds from submission to success; null if the job failed or had not ended.
    pub completion_s: Option<f64>,
}

/// One run of a campaign.
struct Run<'a> {
    workload: &'a CampaignWorkload,
    /// The policy; `None` for each job alone.
    variant: Option<&'a Variant>,
    seed: u64,
    /// Decides the part that the run belongs to. The seeds of a policy have consecutive numbers, so
    /// that each part has some of them if there are at least as many seeds as parts. In the order of
    /// the runs the policies of a seed follow each other: on a real cluster they should run under the
    /// same load.
    number: usize,
    is_real: bool,
}

impl Run<'_> {
    fn policy(&self) -> &str {
        self.variant.map_or(ALONE, |variant| variant.label.as_str())
    }

    fn label(&self) -> String {
        match self.variant {
            Some(variant) => format!("{} under {}", self.workload.label, variant.label),
            None => format!("each job of {} alone", self.workload.label),
        }
    }

    fn describe(&self) -> String {
        format!("{}, seed {}", self.label(), self.seed)
    }

    /// Returns a hash of all that the run depends on besides the code.
    fn inputs(&self) -> String {
        let case = &self.workload.case;
        let policy = self.variant.map(|variant| {
            let params = variant.clone().with_params(&case.params).params;
            (&variant.scheduler, params, variant.file_hashes())
        });
        let mut hash = InputHash::default();
        let workload = (case.workload)(self.seed);
        let failures_s = self.workload.failures_s;
        // Names of nodes are only of replays. Without them, hashes of stored results stay valid.
        let setup = format!("{:?}", case.setup).replacen("node_names: [], ", "", 1);
        let _ = write!(hash, "{setup}{:?}{:?}{policy:?}{failures_s:?}", case.users, workload);
        if self.is_real {
            let _ = hash.write_str("on a real cluster");
        }
        format!("{:016x}", hash.0.finish())
    }

    /// Returns the file of its record.
    fn path(&self, folder: &Path) -> PathBuf {
        let (workload, policy) = (file_name_part(&self.workload.label), file_name_part(self.policy()));
        // Different labels may give the same name.
        let labels = format!("{}\0{}", self.workload.label, self.policy());
        let mark = Rng::of(0, &labels).bits() & 0xffff_ffff;
        folder.join(format!("{workload}.{policy}.{}.{mark:08x}.json", self.seed))
    }
}

impl Campaign<'_> {
    /// Does the runs on all cores and returns the records of all runs that are there afterwards:
    /// those of other parts too, if they are in the folder. Calls `watch` after each run with a
    /// description, the number of runs done, and their total.
    pub fn run(&self, watch: &(dyn Fn(&str, usize, usize) + Sync)) -> Result<Vec<RunRecord>, CampaignError> {
        if let Some(folder) = self.folder {
            fs::create_dir_all(folder)
                .map_err(|source| CampaignError::NoFolder { path: folder.into(), source })?;
        }
        let fair = Variant::plain(FAIR);
        let is_fair = |variant: &Variant| variant.label == FAIR;
        let fair = (!self.variants.iter().any(is_fair)).then_some(&fair);
        let policies: Vec<Option<&Variant>> =
            std::iter::once(None).chain(self.variants.iter().chain(fair).map(Some)).collect();
        let mut runs = Vec::new();
        let seeds = self.seeds.clone().count();
        for (at_workload, workload) in self.workloads.iter().enumerate() {
            for (at_seed, seed) in self.seeds.clone().enumerate() {
                runs.extend(policies.iter().enumerate().map(|(at_policy, variant)| {
                    let is_real = variant.is_some() && self.real_cluster.is_some();
                    let number = (at_workload * policies.len() + at_policy) * seeds + at_seed;
                    Run { workload, variant: *variant, seed, number, is_real }
                }));
            }
        }
        // All stored records are read first: a folder with results of another run is refused before
        // any work is done.
        let stored = in_parallel(runs.len(), |at| self.stored(&runs[at]));
        let stored: Vec<Option<RunRecord>> = stored.into_iter().collect::<Result<_, _>>()?;
        self.check_commits(&stored, &runs)?;
        let is_ours = |at: &usize| stored[*at].is_none() && runs[*at].number % self.part.1 == self.part.0;
        let missing = (0..runs.len()).filter(is_ours);
        let (real, simulated): (Vec<usize>, Vec<usize>) = missing.partition(|at| runs[*at].is_real);
        let count = real.len() + simulated.len();
        if let Some(at) = simulated.iter().chain(&real).next().filter(|_| self.only_stored) {
            return Err(CampaignError::NotStored { run: runs[*at].describe(), commit: self.commit.into() });
        }
        let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let run_one = |at: usize| {
            if failed.load(Ordering::Relaxed) || self.is_interrupted() {
                return Ok(None);
            }
            let record = self.run_and_store(&runs[at]);
            // A real cluster that was stopped gives an error.
            if self.is_interrupted() && record.as_ref().map_or(true, |record| record.stopped) {
                return Ok(None);
            }
            failed.fetch_or(record.is_err(), Ordering::Relaxed);
            watch(&runs[at].describe(), done.fetch_add(1, Ordering::Relaxed) + 1, count);
            record.map(Some)
        };
        let mut new = in_parallel(simulated.len(), |at| run_one(simulated[at]));
        // Real runs have the machine for themselves.
        new.extend(real.iter().map(|at| run_one(*at)));
        let mut records = stored;
        for (at, record) in simulated.iter().chain(&real).zip(new) {
            records[*at] = record?;
        }
        if simulated.iter().chain(&real).any(|at| records[*at].is_none()) {
            let done = records.iter().flatten().filter(|record| !record.stopped).count();
            return Err(CampaignError::Interrupted { done, of: runs.len() });
        }
        // Other parts may have ended meanwhile.
        for (record, run) in records.iter_mut().zip(&runs).filter(|(record, _)| record.is_none()) {
            *record = self.stored(run)?;
        }
        Ok(records.into_iter().flatten().collect())
    }

    /// Checks that all stored results are of one commit: `--runs-of` may abbreviate it.
    fn check_commits(&self, stored: &[Option<RunRecord>], runs: &[Run<'_>]) -> Result<(), CampaignError> {
        let mut found = stored.iter().zip(runs).filter_map(|(record, run)| Some((record.as_ref()?, run)));
        let Some((first, _)) = found.next() else { return Ok(()) };
        match found.find(|(record, _)| record.commit != first.commit) {
            Some((record, run)) => {
                let path = self.folder.map_or_else(PathBuf::new, |folder| run.path(folder));
                let (found, wanted) = (record.commit.clone(), first.commit.clone());
                Err(CampaignError::NotOfCommit { path, found, wanted })
            }
            None => Ok(()),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Returns the stored record of a run, if there is one.
    fn stored(&self, run: &Run<'_>) -> Result<Option<RunRecord>, CampaignError> {
        let path = self.folder.map(|folder| run.path(folder)).filter(|path| path.exists());
        path.map(|path| self.read(&path, run)).transpose()
    }

    fn run_and_store(&self, run: &Run<'_>) -> Result<RunRecord, CampaignError> {
        let failed = |error| CampaignError::Run { workload: run.workload.label.clone(), error };
        let record = self.execute(run).map_err(failed)?;
        if let Some(path) = self.folder.map(|folder| run.path(folder)).filter(|_| !record.stopped) {
            write_whole(&path, &record).map_err(|source| CampaignError::Io { path, source })?;
        }
        Ok(record)
    }

    fn read(&self, path: &Path, run: &Run<'_>) -> Result<RunRecord, CampaignError> {
        let io = |source| CampaignError::Io { path: path.into(), source };
        let text = fs::read(path).map_err(io)?;
        let record: RunRecord = serde_json::from_slice(&text)
            .map_err(|why| CampaignError::Unreadable { path: path.into(), why: why.to_string() })?;
        let path = path.to_owned();
        let described =
            |workload: &str, policy: &str, seed: u64| format!("{workload} under {policy}, seed {seed}");
        let found = described(&record.workload, &record.policy, record.seed);
        let wanted = described(&run.workload.label, run.policy(), run.seed);
        if found != wanted {
            return Err(CampaignError::OtherRun { path, found, wanted });
        }
        let (found, wanted) = (record.commit.clone(), self.commit.to_owned());
        if self.only_stored && !is_same_commit(&found, &wanted) {
            return Err(CampaignError::NotOfCommit { path, found, wanted });
        }
        if !self.only_stored && found != wanted {
            return Err(CampaignError::OtherCommit { path, found, wanted });
        }
        if record.is_real != run.is_real {
            return Err(CampaignError::OtherKind { path, is_real: run.is_real });
        }
        if record.inputs != run.inputs() {
            let why = changed_inputs(&record.made_by, self.made_by);
            return Err(CampaignError::OtherInputs { path, run: run.describe(), why });
        }
        Ok(record)
    }

    /// Does a run.
    fn execute(&self, run: &Run<'_>) -> Result<RunRecord, ExperimentError> {
        let case = &run.workload.case;
        let mut setup = case.setup.clone();
        setup.seed = run.seed;
        setup.measures_decisions = false;
        let slots = setup.slots();
        let mut record = RunRecord {
            made_by: self.made_by.to_owned(),
            commit: self.commit.to_owned(),
            inputs: run.inputs(),
            workload: run.workload.label.clone(),
            policy: run.policy().to_owned(),
            seed: run.seed,
            is_real: run.is_real,
            machines: setup.machines.len(),
            map_slots: slots.map,
            reduce_slots: slots.reduce,
            makespan_s: 0.0,
            locality: None,
            map_slots_used: None,
            reduce_slots_used: None,
            lost_slot_s: 0.0,
            overhead_slot_s: 0.0,
            preemptions: 0,
            events: 0,
            stopped: false,
            stall: None,
            unsubmitted: 0,
            jobs: Vec::new(),
        };
        let (workload, label, began) = ((case.workload)(run.seed), run.label(), Instant::now());
        let jobs = workload.jobs.len();
        let should_continue = |ended: usize| {
            let elapsed = began.elapsed();
            (self.progress)(RunProgress { label: &label, seed: run.seed, elapsed, ended, jobs });
            elapsed < self.time_limit && !self.is_interrupted()
        };
        let Some(variant) = run.variant else {
            let first = workload.jobs.first().map_or(Span(0), |job| job.at);
            let equal = first_equal_jobs(&workload);
            for (at, job) in workload.jobs.iter().enumerate() {
                let completion_s = if equal[at] < at {
                    record.jobs[equal[at]].completion_s
                } else {
                    let alone = time_alone(&case.setup, &workload, at, run.seed, || should_continue(at))?;
                    if alone == Alone::Stopped {
                        record.stopped = true;
                        break;
                    }
                    alone.span().map(Span::as_secs_f64)
                };
                record.jobs.push(JobRecord {
                    job: at as u32 + 1,
                    group: job.group.clone(),
                    user: job.user.clone(),
                    maps: job.maps.len() as u32,
                    reduces: job.reduces.len() as u32,
                    submitted_s: Span(job.at.0 - first.0).as_secs_f64(),
                    completion_s,
                });
            }
            return Ok(record);
        };
        let variant = variant.clone().with_params(&case.params);
        if let Some(times_s) = run.workload.failures_s {
            setup.faults =
                random_failures_during(workload.last_submission_s(), setup.machines.len(), times_s, run.seed);
        }
        (setup.scheduler, setup.params) = (variant.scheduler, variant.params);
        if let Some(real_cluster) = self.real_cluster {
            let trial = Trial { name: "the run".into(), setup, workload, tasks: Tasks::Paced };
            let failed = |why| ExperimentError::RealRun { variant: variant.label, seed: run.seed, why };
            record.add_outcome(&real_cluster(&trial).map_err(failed)?, slots);
            return Ok(record);
        }
        let world = World::new(setup, workload)?.with_users(case.users.clone());
        let broken = |broken: RuleViolation| ExperimentError::RuleViolation {
            variant: variant.label.clone(),
            seed: run.seed,
            broken,
        };
        let outcome = world.run_monitored(None, should_continue).map_err(broken)?;
        record.add_outcome(&outcome, slots);
        Ok(record)
    }
}

impl RunRecord {
    /// Describes the run: its workload, policy and seed.
    pub fn describe(&self) -> String {
        format!("{} under {}, seed {}", self.workload, self.policy, self.seed)
    }

    fn add_outcome(&mut self, outcome: &Outcome, slots: PerPhase<u32>) {
        let first = outcome.metrics.jobs().map(|(_, job)| job.submitted).min();
        let last = outcome.metrics.jobs().filter_map(|(_, job)| job.ended.or(job.observed_until)).max();
        self.makespan_s = first.zip(last).map_or(0.0, |(first, last)| last.since(first).as_secs_f64());
        self.locality = crate::report::locality(outcome);
        self.map_slots_used = utilisation(outcome, slots, Phase::Map);
        self.reduce_slots_used = utilisation(outcome, slots, Phase::Reduce);
        (self.events, self.unsubmitted) = (outcome.events, outcome.unsubmitted.len());
        self.stopped = outcome.stopped;
        self.stall.clone_from(&outcome.stall);
        for (id, job) in outcome.metrics.jobs() {
            self.lost_slot_s += job.lost.as_secs_f64();
            self.overhead_slot_s += job.overhead().as_secs_f64();
            self.preemptions += u64::from(job.preemption.preemptions());
            self.jobs.push(JobRecord {
                job: id.0,
                group: job.group.clone(),
                user: job.user.clone(),
                maps: job.tasks.map,
                reduces: job.tasks.reduce,
                submitted_s: first.map_or(0.0, |first| job.submitted.since(first).as_secs_f64()),
                completion_s: job.makespan().filter(|_| job.succeeded).map(Span::as_secs_f64),
            });
        }
    }
}

/// Hashes what is written to it.
#[derive(Default)]
struct InputHash(DefaultHasher);

impl fmt::Write for InputHash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Writes a record, so that the file is either complete or does not exist, also after a power loss.
fn write_whole(path: &Path, record: &RunRecord) -> io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(serde_json::to_string(record)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    // A full disk must not get fuller with each attempt.
    write().inspect_err(|_| drop(fs::remove_file(&part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{self, Request};
    use std::{collections::BTreeSet, sync::Mutex};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn workload() -> CampaignWorkload {
        let request = Request { workload: "gridmix".into(), jobs: Some(6), ..Request::default() };
        let case = catalog::open(&request).expect("a name");
        CampaignWorkload { label: "gridmix[jobs=6]".into(), case, failures_s: None }
    }

    fn campaign<'a>(
        workloads: &'a [CampaignWorkload],
        variants: &'a [Variant],
        folder: Option<&'a Path>,
        part: (usize, usize),
    ) -> Campaign<'a> {
        let (time_limit, made_by) = (Duration::from_mins(10), "a test");
        let real_cluster = None;
        Campaign {
            workloads,
            variants,
            seeds: 1..3,
            folder,
            real_cluster,
            part,
            time_limit,
            progress: &|_| {},
            interrupted: &NEVER,
            made_by,
            commit: "c",
            only_stored: false,
        }
    }

    #[test]
    fn stored_runs_are_not_repeated_and_parts_add_up() {
        let (workloads, variants) = ([workload()], Variant::list("fifo,las").expect("policies"));
        let whole = campaign(&workloads, &variants, None, (0, 1)).run(&|_, _, _| {}).expect("it runs");
        // Alone, fifo, las and fair, for each of two seeds.
        assert_eq!(whole.len(), 8);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let part = |at| {
            campaign(&workloads, &variants, Some(folder.path()), (at, 2)).run(&|_, _, _| {}).expect("it runs")
        };
        assert_eq!(part(0).len(), 4);
        let both = part(1);
        let jobs = |records: &[RunRecord]| -> Vec<Vec<JobRecord>> {
            records.iter().map(|record| record.jobs.clone()).collect()
        };
        assert_eq!(jobs(&both), jobs(&whole), "the files have what the runs gave");
        // A stored record is read, not computed: a changed one stays changed.
        let path =
            fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("a file").path();
        let mut changed: RunRecord =
            serde_json::from_str(&fs::read_to_string(&path).expect("a record")).expect("a record");
        changed.makespan_s = -1.0;
        write_whole(&path, &changed).expect("it can be written");
        assert!(part(0).iter().any(|record| record.makespan_s < 0.0));
    }

    #[test]
    fn interrupted_campaign_keeps_the_runs_that_are_done_and_continues_with_the_others() {
        let (workloads, variants) = ([workload()], Variant::list("fifo,las").expect("policies"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = || fs::read_dir(folder.path()).expect("a folder").count();
        let (interrupted, whole) =
            (AtomicBool::new(false), campaign(&workloads, &variants, Some(folder.path()), (0, 1)));
        let first = Campaign { interrupted: &interrupted, ..whole };
        let error = first.run(&|_, _, _| interrupted.store(true, Ordering::Relaxed)).expect_err("it stops");
        let CampaignError::Interrupted { done, of: 8 } = error else { panic!("{error}") };
        assert!(done == files() && (1..8).contains(&done), "{done} runs, {} files", files());
        let new = AtomicUsize::new(0);
        let all = campaign(&workloads, &variants, Some(folder.path()), (0, 1))
            .run(&|_, _, _| {
                new.fetch_add(1, Ordering::Relaxed);
            })
            .expect("it runs");
        assert_eq!((all.len(), new.into_inner()), (8, 8 - done), "stored runs are not repeated");
        assert!(all.iter().all(|record| !record.stopped));
        // A run in progress is stopped, and not stored. Runs of single jobs report their progress
        // before they begin; runs in other threads may end before that.
        let one = Campaign {
            interrupted: &AtomicBool::new(false),
            folder: None,
            ..campaign(&workloads, &variants, None, (0, 1))
        };
        let progress = |_: RunProgress<'_>| one.interrupted.store(true, Ordering::Relaxed);
        let stopped = Campaign { progress: &progress, ..one };
        let watch = |what: &str, _, _| assert!(!what.contains(ALONE), "{what} is done");
        let error = stopped.run(&watch).expect_err("it stops");
        assert!(matches!(error, CampaignError::Interrupted { done: 0..=6, of: 8 }), "{error}");
    }

    #[test]
    fn every_part_has_runs_of_every_policy() {
        let (workloads, variants) = ([workload()], Variant::list("fifo,las").expect("policies"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        for at in 0..8 {
            let part =
                Campaign { seeds: 1..9, ..campaign(&workloads, &variants, Some(folder.path()), (at, 8)) };
            let done = Mutex::new(BTreeSet::new());
            part.run(&|what, _, _| {
                done.lock().expect("no panic").insert(what.to_owned());
            })
            .expect("it runs");
            let done = done.into_inner().expect("no panic");
            let policies: BTreeSet<&str> =
                done.iter().filter_map(|what| what.split_once(", seed")).map(|(policy, _)| policy).collect();
            assert_eq!((done.len(), policies.len()), (4, 4), "part {at}: {done:?}");
        }
    }

    #[test]
    fn real_runs_replace_simulated_ones_and_are_not_taken_for_them() {
        let request = Request { workload: "laptop-fcs".into(), ..Request::default() };
        let case = catalog::open(&request).expect("a name");
        let workloads = [CampaignWorkload { label: "laptop-fcs".into(), case, failures_s: None }];
        let variants = Variant::list("fair").expect("a policy");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let started = AtomicUsize::new(0);
        let real_cluster = |trial: &Trial| {
            started.fetch_add(1, Ordering::Relaxed);
            assert_eq!(trial.setup.params.get("fair.node_wait").map(String::as_str), Some("500ms"));
            let world = World::new(trial.setup.clone(), trial.workload.clone());
            world.expect("a policy").run(None).map_err(|broken| broken.to_string())
        };
        let simulated = campaign(&workloads, &variants, Some(folder.path()), (0, 1));
        let real = || Campaign {
            real_cluster: Some(&real_cluster),
            ..campaign(&workloads, &variants, Some(folder.path()), (0, 1))
        };
        assert_eq!(real().run(&|_, _, _| {}).expect("it runs").len(), 4, "alone and fair, two seeds");
        assert_eq!(started.load(Ordering::Relaxed), 2, "each job alone is simulated");
        let error = simulated.run(&|_, _, _| {}).expect_err("real results").to_string();
        let what = "the result is of a run on a real cluster, but this command needs that of a simulated run";
        assert!(error.contains(what) && error.ends_with("repeat the command with --real"), "{error}");
        let folder = tempfile::tempdir().expect("a temporary folder");
        campaign(&workloads, &variants, Some(folder.path()), (0, 1)).run(&|_, _, _| {}).expect("it runs");
        let mixed = Campaign { folder: Some(folder.path()), ..real() };
        let error = mixed.run(&|_, _, _| {}).expect_err("simulated results").to_string();
        assert!(error.starts_with(&folder.path().display().to_string()), "{error}");
        assert!(error.ends_with("repeat the command without --real"), "{error}");
        let broken = |_: &Trial| Err("no space".to_owned());
        let failing = Campaign { real_cluster: Some(&broken), folder: None, ..real() };
        let error = failing.run(&|_, _, _| {}).expect_err("it fails").to_string();
        assert!(error.contains("fair, seed 1: no space"), "{error}");
    }

    #[test]
    fn results_of_another_run_and_damaged_files_are_refused() {
        let (workloads, variants) = ([workload()], Variant::list("fifo").expect("a policy"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let one = campaign(&workloads, &variants, Some(folder.path()), (0, 1));
        let first = one.run(&|_, _, _| {}).expect("it runs");
        let other = Campaign { commit: "d", ..campaign(&workloads, &variants, Some(folder.path()), (0, 1)) };
        let error = other.run(&|_, _, _| {}).expect_err("another commit").to_string();
        let wanted =
            "is of commit c, and this program of d: `--runs-of 'c'` reads the results of that commit";
        assert!(error.contains(wanted), "{error}");
        let read = |seeds| {
            let whole = campaign(&workloads, &variants, Some(folder.path()), (0, 1));
            Campaign { only_stored: true, seeds, ..whole }.run(&|what, _, _| panic!("{what}"))
        };
        assert_eq!(read(1..3).expect("all are stored").len(), first.len());
        let error = read(1..4).expect_err("seed 3 is not stored").to_string();
        assert!(error.contains("seed 3: not in the folder") && error.contains("commit c"), "{error}");
        let mut changed = workload();
        changed.case.setup.machines[0].disk /= 2.0;
        let (files, changed) = (fs::read_dir(folder.path()).expect("a folder").count(), [changed]);
        let other = campaign(&changed, &variants, Some(folder.path()), (0, 1));
        let error = other.run(&|_, _, _| {}).expect_err("another cluster").to_string();
        let wanted =
            "was made with other inputs: the machines, the jobs, the faults or the policy are others";
        assert!(error.contains(wanted), "{error}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), files, "nothing was added");
        let path =
            fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("a file").path();
        fs::write(&path, "{").expect("it can be written");
        let error = one.run(&|_, _, _| {}).expect_err("a damaged file").to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("delete the file"), "{error}");
    }

    #[test]
    fn stored_results_are_found_by_an_abbreviated_commit_which_must_be_the_only_one() {
        let (workloads, variants) = ([workload()], Variant::list("fifo").expect("a policy"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let of = |commit, only_stored| {
            let whole = campaign(&workloads, &variants, Some(folder.path()), (0, 1));
            Campaign { commit, only_stored, ..whole }.run(&|_, _, _| {}).map_err(|error| error.to_string())
        };
        let count = of("abcdef0123", false).expect("it runs").len();
        for commit in ["abcdef0123", "abcde", "abcdef0123456789"] {
            assert_eq!(of(commit, true).expect(commit).len(), count);
        }
        for commit in ["abc", "bcdef", "abcdff"] {
            let error = of(commit, true).expect_err(commit);
            let wanted = format!("and --runs-of asks for {commit}: give --runs-of 'abcdef0123', or another");
            assert!(error.contains(&wanted), "{error}");
        }
        assert!(of("abcdef", false).is_err(), "a program does not continue the results of another one");
        let path =
            fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("a file").path();
        let mut other: RunRecord = serde_json::from_slice(&fs::read(&path).expect("it")).expect("a record");
        other.commit = "abcdef9999".to_owned();
        write_whole(&path, &other).expect("it can be written");
        let error = of("abcdef", true).expect_err("results of two commits");
        assert!(error.contains("abcdef0123") && error.contains("abcdef9999"), "{error}");
        assert!(!is_same_commit("abcdef0", "abcdef0+changes (executable 1)"));
    }

    #[test]
    fn file_that_has_changed_is_named() {
        let line = |one: &str, two: &str| {
            format!(
                "mrctl x (version 1){CHECKSUM}a b.tsv: {one}00000000000000{CHECKSUM}p.toml: {two}; t.tsv: bytes times 2 (a: b)"
            )
        };
        let why = changed_inputs(&line("aaaaaaaaaaaa", "ffff"), &line("bbbbbbbbbbbb", "ffff"));
        assert_eq!(why, "a b.tsv has changed since (SHA-256 aaaaaaaaaaaa... then, bbbbbbbbbbbb... now)");
        assert!(changed_inputs(&line("a", "f"), &line("a", "f")).ends_with("no file has changed"));
    }

    #[test]
    fn records_have_utilisation_and_random_failures_cost_work() {
        let variants = Variant::list("fifo").expect("a policy");
        let of = |failures_s| {
            let workloads = [CampaignWorkload { failures_s, ..workload() }];
            let records = campaign(&workloads, &variants, None, (0, 1)).run(&|_, _, _| {}).expect("it runs");
            let fifo = records.into_iter().filter(|record| record.policy == "fifo");
            fifo.collect::<Vec<_>>()
        };
        let (calm, failing) = (of(None), of(Some((60.0, 60.0))));
        for record in &calm {
            let used = [record.map_slots_used, record.reduce_slots_used].map(|used| used.expect("slots"));
            assert!(used.iter().all(|used| (0.0..1.0).contains(used) && *used > 0.0), "{used:?}");
        }
        let lost = |records: &[RunRecord]| records.iter().map(|record| record.lost_slot_s).sum::<f64>();
        assert!(lost(&calm) == 0.0 && lost(&failing) > 0.0, "{} and {}", lost(&calm), lost(&failing));
        assert_ne!(calm[0].inputs, failing[0].inputs, "failures are inputs of a run");
        let [one, other] = [&failing[0], &failing[1]].map(|record| record.lost_slot_s.to_bits());
        assert_ne!(one, other, "each seed has failures of its own");
    }

    fn record(policy: &str, seed: u64, completions: &[Option<f64>]) -> RunRecord {
        let job = |(at, completion_s): (usize, &Option<f64>)| JobRecord {
            job: at as u32 + 1,
            group: "g".into(),
            user: "u".into(),
            maps: 1,
            reduces: 0,
            submitted_s: 0.0,
            completion_s: *completion_s,
        };
        RunRecord {
            made_by: String::new(),
            commit: String::new(),
            inputs: String::new(),
            workload: "w".into(),
            policy: policy.into(),
            seed,
            is_real: false,
            machines: 1,
            map_slots: 1,
            reduce_slots: 1,
            makespan_s: 10.0,
            locality: None,
            map_slots_used: None,
            reduce_slots_used: None,
            lost_slot_s: 0.0,
            overhead_slot_s: 0.0,
            preemptions: 0,
            events: 0,
            stopped: false,
            stall: None,
            unsubmitted: 0,
            jobs: completions.iter().enumerate().map(job).collect(),
        }
    }

    #[test]
    fn stopped_runs_are_marked_and_not_stored_and_progress_is_reported() {
        let (workloads, variants) = ([workload()], Variant::list("fifo").expect("a policy"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let progress = |run: RunProgress<'_>| {
            assert_eq!(run.jobs, 6);
            seen.lock().expect("no panic").insert(run.label.to_owned());
        };
        let whole = campaign(&workloads, &variants, None, (0, 1));
        let whole = Campaign { progress: &progress, ..whole }.run(&|_, _, _| {}).expect("it runs");
        assert!(whole.iter().all(|record| !record.stopped));
        assert!(seen.lock().expect("no panic").contains("each job of gridmix[jobs=6] alone"));
        let none = Campaign {
            time_limit: Duration::ZERO,
            ..campaign(&workloads, &variants, Some(folder.path()), (0, 1))
        };
        let alone = none.run(&|_, _, _| {}).expect("it runs").into_iter().find(|one| one.policy == ALONE);
        let alone = alone.expect("a record");
        assert!(alone.stopped && alone.jobs.is_empty());
        let files = fs::read_dir(folder.path()).expect("a folder");
        let name = |file: io::Result<fs::DirEntry>| file.expect("a file").file_name().into_string();
        assert!(!files.map(name).any(|name| name.expect("UTF-8").contains(ALONE)), "it would be used again");
    }

    #[test]
    fn comparisons_with_stopped_runs_are_left_out() {
        let mut records = Vec::new();
        for seed in 1..=2 {
            let policies = [(ALONE, 1.0), (FAIR, 2.0), ("a", 3.0)];
            records.extend(policies.map(|(policy, s)| record(policy, seed, &[Some(s), Some(2.0 * s)])));
        }
        let board = |records: &[RunRecord]| Leaderboard::of(records, &["w"], &["a"], 2, "a");
        let whole = board(&records);
        assert!(whole.stopped_runs.is_empty() && whole.scores[0].slowdown_p50 == Some(3.0));
        records[3].stopped = true;
        records[3].jobs.pop();
        let alone_stopped = board(&records);
        let score = &alone_stopped.scores[0];
        let left_out = [score.slowdown_p50, score.slowdown_p95, score.slowdown_p99, score.jain];
        assert_eq!((left_out, score.largest_against_fair), ([None; 4], None), "also of the other seed");
        assert_eq!(score.rho_p99, Some(1.5), "it does not need each job alone");
        records[5].stopped = true;
        let board = board(&records);
        assert_eq!(board.scores[0].rho_p99, None, "a job that ended does not represent the others");
        assert_eq!(board.stopped_runs, ["w under alone, seed 2", "w under a, seed 2"]);
        let note = board.stopped_note().expect("runs were stopped");
        assert!(note.starts_with("2 runs reached --time-limit (w under alone, seed 2; w under a"), "{note}");
        assert!(note.contains("what is compared with a run that was stopped is left out"), "{note}");
    }

    /// A policy that is slower in every seed, in a few of them ten times, is slower.
    #[test]
    fn differences_with_heavy_tails_are_shown() {
        let mut records = Vec::new();
        for seed in 1..=30 {
            let ratio = if seed % 10 == 0 { 40.0 } else { 1.02 + seed as f64 * 0.01 };
            records.push(record("a", seed, &[Some(10.0)]));
            records.push(record("b", seed, &[Some(10.0 * ratio)]));
            // Slower and faster by the same factor.
            let factor = if seed % 2 == 0 { 8.0 } else { 1.0 / 8.0 };
            records.push(record("c", seed, &[Some(10.0 * factor)]));
        }
        let board = Leaderboard::of(&records, &["w"], &["a", "b", "c"], 30, "a");
        let (b, c) = (&board.scores[1], &board.scores[2]);
        let changes = [b, c].map(|score| score.against_reference.expect("thirty seeds"));
        let raw: Vec<f64> = (1..=30_u32)
            .map(|seed| if seed % 10 == 0 { 39.0 } else { 0.02 + f64::from(seed) * 0.01 })
            .collect();
        assert!(mrcore::metrics::stats::p_value(&raw) > Some(0.05), "the t-test of ratios shows nothing");
        assert_eq!((board.verdict(b).as_str(), changes[0].slower_seeds), ("slower", 30));
        assert!(b.p_corrected < Some(1e-6) && changes[0].mean < 1.0, "{b:?}");
        assert_eq!(board.verdict(c), "no difference shown");
        assert!(changes[1].mean.abs() < 1e-9, "{:?}", changes[1]);
    }

    /// Jobs of a seed are alike: its interval is wider than that of independent jobs.
    #[test]
    fn intervals_of_pooled_figures_are_over_seeds() {
        let mut records = Vec::new();
        for seed in 1..=10 {
            let rho = 1.0 + seed as f64 * 0.1;
            records.push(record(ALONE, seed, &[Some(1.0); 100]));
            records.push(record(FAIR, seed, &[Some(2.0); 100]));
            records.push(record("a", seed, &[Some(2.0 * rho); 100]));
        }
        let board = |records: &[RunRecord]| Leaderboard::of(records, &["w"], &["a"], 10, "a");
        let score = &board(&records).scores[0];
        let close = |one: Option<f64>, other: f64| one.is_some_and(|one| (one - other).abs() < 1e-9);
        // The tenth of the seeds with 2.0 is missing in (9/10)^10 of the samples, two in (8/10)^10.
        assert!(close(score.rho_p99, 2.0) && close(score.rho_p99_high, 2.0), "{score:?}");
        assert!(close(score.rho_p99_low, 1.7) || close(score.rho_p99_low, 1.8), "{score:?}");
        assert!(close(score.largest_against_fair, 1.55), "{score:?}");
        let (low, high) = (score.largest_against_fair_low.unwrap(), score.largest_against_fair_high.unwrap());
        // Mean 1.55 with a standard error of 0.287 / sqrt(10).
        assert!((low - 1.37).abs() < 0.03 && (high - 1.73).abs() < 0.03, "{low} to {high}");
        assert_eq!(board(&records).scores, board(&records).scores, "the samples are the same in each run");
        let one = board(&records[..3]);
        assert_eq!((one.scores[0].rho_p99_low, one.scores[0].rho_p99.is_some()), (None, true), "one seed");
    }

    #[test]
    fn scores_match_values_computed_by_hand() {
        let mut records = Vec::new();
        for seed in 1..=4 {
            let more = seed as f64 * 0.01;
            records.push(record(ALONE, seed, &[Some(1.0), Some(10.0)]));
            records.push(record(FAIR, seed, &[Some(4.0), Some(20.0)]));
            records.push(record("a", seed, &[Some(2.0), Some(20.0)]));
            // The second job fails under b.
            records.push(record("b", seed, &[Some(4.0 + more), None]));
        }
        let board = Leaderboard::of(&records, &["w"], &["a", "b"], 5, "a");
        // Of five seeds, the fifth is missing: alone, fair, a and b.
        let (a, b) = (&board.scores[0], &board.scores[1]);
        assert_eq!((a.completion_s.mean, a.against_reference, board.missing_runs), (11.0, None, 4));
        assert_eq!((a.slowdown_p50, a.jain, a.rho_p99.map(f64::round)), (Some(2.0), Some(1.0), Some(1.0)));
        assert_eq!(a.largest_against_fair, Some(1.0), "of two jobs the second is the largest tenth");
        let change = b.against_reference.expect("four seeds");
        // Ratios of 2.005, 2.01, 2.015 and 2.02: only of the job that succeeded under both.
        assert!((change.mean - 1.012_492).abs() < 1e-6, "{change:?}");
        let (low, high) = (change.low.expect("four seeds"), change.high.expect("four seeds"));
        assert!(low < change.mean && change.mean < high && (change.seeds, change.slower_seeds) == (4, 4));
        assert_eq!((a.rho_p99_low, a.rho_p99_high), (a.rho_p99, a.rho_p99), "all seeds are the same");
        assert_eq!((b.left_out, b.unfinished), (4, 4));
        // The runs end after 10 s. The failed job counts until then, half as long as under `fair`.
        assert_eq!((b.largest_against_fair, b.jain), (Some(0.5), None));
        assert!(b.rho_p99.is_some_and(|rho| (1.0..1.02).contains(&rho)), "{b:?}");
        assert!(b.p_corrected.expect("four seeds") < 1e-3);
        let tables = board.tables();
        let verdicts: Vec<&str> = tables[0].1.rows.iter().map(|row| row[3].text()).collect();
        assert_eq!(verdicts, ["reference", "slower; without 4 jobs"], "unfinished jobs come last");
        // The second job of b counts until the end of the run, after 10 s.
        assert!(b.completion_s.is_lower_bound && (b.completion_s.mean - 7.0125).abs() < 1e-9);
        let bar = crate::report::svg::Bar { value: 1.0 + change.mean, low: 1.0 + low, high: 1.0 + high };
        let drawn = [("a", vec![(1.0, 0.0).into()]), ("b", vec![bar])];
        let layout = &crate::report::svg::SCREEN;
        let chart = crate::report::svg::bars(layout, "completion / a", &["w".to_owned()], &drawn);
        assert_eq!(board.completion_chart(layout), chart, "the intervals are of paired differences");
        let seeds = &board.means_per_seed()[0];
        assert_eq!(seeds["completion_s"]["a"], serde_json::json!([11.0, 11.0, 11.0, 11.0]));
        let summary = board.summary().text();
        assert!(summary.lines().nth(1).is_some_and(|first| first.starts_with('a')), "{summary}");
        assert!(summary.contains('≥'), "{summary}");
    }
}
