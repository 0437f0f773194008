//! The experiments of the four papers, at their original size or scaled to one machine. A
//! reproduction contains the figures of the paper, ours, and the difference. If it is complete, it
//! also has the inventory of the paper's figures and tables, and the sensitivity to assumptions.
//!
//! What a paper states is about its own policy. So each statement is compared with the policy with the
//! rules of the paper only (`literal`), and, in a second column, with the policy with our rules.
//! Verdicts about the paper are those of the first.

mod chronos;
mod coshh;
mod fcs;
mod hsrtf;
pub mod laptop;
mod verdict;

pub use chronos::recovery;

use crate::{
    Outcome,
    case_size::CaseSize,
    experiment::{Comparison, Experiment, ExperimentError, RunProgress, Step, Variant, makespan_s},
    profile::Profiles,
    report::{self, Cell, Table, svg},
    workload::JobPlan,
};
use mrcore::metrics::{JobFigures, stats::mean};
use serde_json::{Map, Value, json};
use std::{
    fmt::Write as _,
    ops::{Deref, Range},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use verdict::{Claim, Number, Ours, Sign};

/// Maximum number of seeds of each row of a sensitivity table, where runs are not short, also if the
/// reproduction is complete. The table has many rows, and shows large differences.
const SENSITIVITY_SEEDS_MAX: u64 = 10;

/// Maximum number of groups of jobs whose means per seed are part of an archive.
const ARCHIVED_GROUPS_MAX: usize = 4;

/// A paper about a scheduler, whose experiments can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
}

impl Paper {
    /// All papers.
    pub const ALL: [Paper; 4] = [Paper::Hsrtf, Paper::Chronos, Paper::Fcs, Paper::Coshh];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hsrtf",
            Paper::Chronos => "chronos",
            Paper::Fcs => "fcs",
            Paper::Coshh => "coshh",
        }
    }

    /// Returns the names of the workloads whose profiles its experiments use.
    pub fn workloads(self) -> &'static [&'static str] {
        match self {
            Paper::Hsrtf => &["hsrtf"],
            Paper::Chronos => &["chronos-sort", "chronos-wordcount"],
            Paper::Fcs => &["fcs-map-heavy", "fcs-reduce-heavy", "gridmix"],
            Paper::Coshh => &[],
        }
    }

    /// Returns the name in titles.
    fn title(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hSRTF",
            Paper::Chronos => "Chronos",
            Paper::Fcs => "FCS",
            Paper::Coshh => "COSHH",
        }
    }

    /// Runs the experiments of the paper in the simulator.
    pub fn reproduce(self, lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
        let mut out = match self {
            Paper::Hsrtf => hsrtf::reproduce(lab)?,
            Paper::Chronos => chronos::reproduce(lab)?,
            Paper::Fcs => fcs::reproduce(lab)?,
            Paper::Coshh => coshh::reproduce(lab)?,
        };
        out.runs = std::mem::take(&mut *lab.runs.lock().unwrap_or_else(PoisonError::into_inner));
        let stopped = lab.stopped.load(Ordering::Relaxed);
        if stopped > 0 {
            let runs = crate::count(stopped, "run");
            let text = &mut out.setup_description;
            let _ = write!(text, " The time limit stopped {runs}: their active jobs count as unfinished.");
        }
        Ok(out)
    }
}

/// Options of all experiments, and the results of those that have run.
pub struct Lab<'a> {
    /// Profiles of the programs.
    profiles: &'a Profiles,
    /// Number of seeds, and the first of them.
    seeds: u64,
    first_seed: u64,
    /// Real time after which a run is stopped.
    time_limit: Duration,
    /// Whether to run everything, including what shows the sensitivity to assumptions.
    is_complete: bool,
    /// Called after every run with the title of its experiment.
    watch: &'a (dyn Fn(&str, Step<'_>) + Sync),
    /// The experiments that have run, for archives.
    runs: Mutex<Vec<Ran>>,
    /// Number of runs that the time limit stopped.
    stopped: AtomicUsize,
}

impl<'a> Lab<'a> {
    /// Creates a lab. `watch` is called after every run with the title of its experiment.
    pub fn new(
        profiles: &'a Profiles,
        seeds: u64,
        is_complete: bool,
        watch: &'a (dyn Fn(&str, Step<'_>) + Sync),
    ) -> Self {
        let (first_seed, time_limit) = (1, Duration::MAX);
        let (runs, stopped) = (Mutex::default(), AtomicUsize::new(0));
        Self { profiles, seeds, first_seed, time_limit, is_complete, watch, runs, stopped }
    }

    /// Sets the first seed, which is 1 otherwise.
    #[must_use]
    pub fn with_first_seed(self, first_seed: u64) -> Self {
        Self { first_seed, ..self }
    }

    /// Stops a run after this real time. Otherwise there is no limit.
    #[must_use]
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Returns the number of seeds for runs that take half a minute and longer: all if the
    /// reproduction is complete, otherwise a sixth, but at least three if there are as many.
    fn seeds_of_long_runs(&self) -> u64 {
        if self.is_complete { self.seeds } else { (self.seeds / 6).max(3).min(self.seeds) }
    }

    /// Returns the first `count` seeds.
    fn seed_range(&self, count: u64) -> Range<u64> {
        self.first_seed..self.first_seed + count
    }

    /// Returns the number of seeds of each row of a sensitivity table.
    fn sensitivity_seeds(&self) -> u64 {
        self.seeds.min(SENSITIVITY_SEEDS_MAX)
    }

    /// Runs an experiment, and reports its progress. Runs are stopped after the time limit. The means
    /// are part of the archive.
    fn run(&self, title: &str, experiment: Experiment<'_>) -> Result<Comparison, ExperimentError> {
        let size = CaseSize::of(&experiment.setup, &(experiment.workload)(experiment.seeds.start));
        let comparison = self.run_unarchived(title, experiment)?;
        let ran = Ran { title: title.to_owned(), size, completion_s: per_seed(&comparison) };
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).push(ran);
        Ok(comparison)
    }

    /// Runs an experiment that only prepares others, with progress and time limit.
    fn run_unarchived(&self, title: &str, experiment: Experiment<'_>) -> Result<Comparison, ExperimentError> {
        let monitor = |run: RunProgress<'_>| run.elapsed < self.time_limit;
        let experiment = Experiment { monitor: Some(&monitor), ..experiment };
        let comparison = experiment.run_watched(&|step| (self.watch)(title, step))?;
        let stopped = comparison.runs.iter().flatten().filter(|outcome| outcome.stopped).count();
        self.stopped.fetch_add(stopped, Ordering::Relaxed);
        Ok(comparison)
    }
}

/// An experiment that has run.
#[derive(Debug)]
struct Ran {
    title: String,
    /// The cluster, the jobs and the offered load in the first seed.
    size: CaseSize,
    /// Mean completion time under each policy, for each seed.
    completion_s: Value,
}

impl Ran {
    fn json(&self) -> Value {
        json!({ "experiment": self.title, "size": self.size, "completion_s": self.completion_s })
    }
}

/// Returns the mean completion time under each policy, of all jobs and by group, for each seed, in
/// seconds.
fn per_seed(comparison: &Comparison) -> Value {
    let rounded = |mean: Option<f64>| mean.map(|mean| (mean * 10.0).round() / 10.0);
    let of = |at: usize, group: Option<&str>| -> Value {
        comparison.means(at, group, makespan_s).into_iter().map(|mean| json!(rounded(mean))).collect()
    };
    let groups = Some(&comparison.groups).filter(|groups| groups.len() <= ARCHIVED_GROUPS_MAX);
    let policy = |(at, variant): (usize, &Variant)| {
        let groups = groups.into_iter().flatten().map(|group| (group.clone(), of(at, Some(group))));
        let means: Map<String, Value> =
            std::iter::once(("all".to_owned(), of(at, None))).chain(groups).collect();
        (variant.label.clone(), means.into())
    };
    comparison.variants.iter().enumerate().map(policy).collect::<Map<String, Value>>().into()
}

/// What follows the name of a policy in the label of its variant with the rules of the paper only.
const LITERAL: [&str; 2] = [", literal", ", literal, eq. 2 in seconds"];

/// Policies without rules of a paper.
const PLAIN: [&str; 3] = ["fifo", "fair", "capacity"];

/// With which rules a policy of a paper runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Those of the paper only.
    Paper,
    Ours,
}

/// The results of an experiment, in which the name of a policy is that of its variant with these rules.
#[derive(Clone, Copy)]
struct Results<'a> {
    comparison: &'a Comparison,
    rules: Rules,
}

impl Deref for Results<'_> {
    type Target = Comparison;

    fn deref(&self) -> &Comparison {
        self.comparison
    }
}

impl<'a> Results<'a> {
    /// Returns the results with our rules.
    fn ours(comparison: &'a Comparison) -> Self {
        Self { comparison, rules: Rules::Ours }
    }

    /// Returns the index of the variant of a policy; `None` if it did not run with these rules.
    fn index(&self, label: &str) -> Option<usize> {
        let at = self.comparison.index(label)?;
        if self.rules == Rules::Ours || PLAIN.contains(&self.variants[at].scheduler.as_str()) {
            return Some(at);
        }
        LITERAL.iter().find_map(|suffix| self.comparison.index(&format!("{label}{suffix}")))
    }
}

/// What a paper states, and our results.
#[derive(Debug)]
struct Statement {
    /// The figure, table or section of the paper that has the number; empty if not given.
    source: String,
    what: String,
    /// With the rules of the paper only; `None` if the experiment has no such variants.
    literal: Option<Claim>,
    ours: Claim,
}

impl Statement {
    /// Sets the figure, table or section of the paper that has the number.
    fn of(&mut self, source: &str) {
        source.clone_into(&mut self.source);
    }

    /// Returns the claim that the paper is judged by.
    fn judged(&self) -> &Claim {
        self.literal.as_ref().unwrap_or(&self.ours)
    }

    fn json(&self) -> Value {
        json!({
            "source": self.source,
            "what": self.what,
            "kind": self.ours.paper.kind(),
            "paper": self.ours.paper.json(),
            "literal": self.literal.as_ref().map(Claim::json),
            "ours": self.ours.json(),
        })
    }
}

/// Title of the table of claims.
const CLAIMS: &str = "The paper's numbers and ours";
/// Title of the inventory.
const INVENTORY: &str = "Figures and tables of the paper";

/// Title of the table of the sizes of all experiments.
const SIZES: &str = "Jobs, offered load and cluster of each experiment, first seed";

/// A table of a reproduction.
#[derive(Debug)]
struct Part {
    /// The title; pages cite the table by it.
    title: String,
    table: Table,
    /// Charts (SVG).
    charts: String,
}

/// A figure or table of the paper.
#[derive(Debug)]
struct Entry {
    /// For example `figure 2a`.
    name: &'static str,
    shows: &'static str,
    coverage: Coverage,
}

/// How a figure or table of the paper is covered.
#[derive(Debug)]
enum Coverage {
    /// Our table with this title repeats it.
    Repeated(String),
    /// It describes the experiment, and ours is set up so.
    Setting,
    /// It cannot be reproduced, and why.
    Not(&'static str),
}

/// Results of the experiments of a paper.
#[derive(Debug, Default)]
pub struct Reproduction {
    title: String,
    /// How the experiments were set up, in a few sentences.
    setup_description: String,
    inventory: Vec<Entry>,
    claims: Vec<Statement>,
    parts: Vec<Part>,
    /// All experiments.
    runs: Vec<Ran>,
}

impl Reproduction {
    fn new(title: &str, setup_description: &str) -> Self {
        Self { title: title.into(), setup_description: setup_description.into(), ..Self::default() }
    }

    /// Adds a number of the paper and ours. [`Statement::of`] names the figure that has it.
    fn claim(&mut self, what: impl Into<String>, paper: Number, ours: Option<Ours>) -> &mut Statement {
        let (source, what) = (String::new(), what.into());
        self.claims.push(Statement { source, what, literal: None, ours: Claim::new(paper, ours) });
        self.claims.last_mut().expect("a claim was added")
    }

    /// Adds a number of the paper and what `ours` computes, with the rules of the paper only and with
    /// ours.
    fn claim_of(
        &mut self,
        what: impl Into<String>,
        paper: Number,
        ours: impl Fn(Rules) -> Option<Ours>,
    ) -> &mut Statement {
        let literal = Claim::new(paper, ours(Rules::Paper));
        let statement = self.claim(what, paper, ours(Rules::Ours));
        statement.literal = Some(literal);
        statement
    }

    /// Adds numbers of the paper with our results.
    fn claim_all(&mut self, numbers: &[PaperNumber], comparison: &Comparison) {
        for number in numbers {
            let ours = |rules| (number.ours)(Results { comparison, rules });
            self.claim_of(number.what.as_str(), number.paper, ours).of(&number.source);
        }
    }

    fn part(&mut self, title: impl Into<String>, table: Table, charts: String) {
        self.parts.push(Part { title: title.into(), table, charts });
    }

    /// Adds a figure or table of the paper to the inventory that our table `title` repeats.
    fn reproduced(&mut self, name: &'static str, shows: &'static str, title: impl Into<String>) {
        self.inventory.push(Entry { name, shows, coverage: Coverage::Repeated(title.into()) });
    }

    /// Adds a figure or table of the paper to the inventory that describes the experiment.
    fn used(&mut self, name: &'static str, shows: &'static str) {
        self.inventory.push(Entry { name, shows, coverage: Coverage::Setting });
    }

    /// Adds a figure or table of the paper to the inventory that cannot be repeated.
    fn not_reproduced(&mut self, name: &'static str, shows: &'static str, why: &'static str) {
        self.inventory.push(Entry { name, shows, coverage: Coverage::Not(why) });
    }

    /// Adds tables of how numbers of the paper depend on our assumptions: one with our rules, and one
    /// with the rules of the paper only.
    fn sensitivity(&mut self, title: &str, numbers: &[(&str, Number)], rows: &[Assumed]) {
        for (rules, title) in [(Rules::Ours, title), (Rules::Paper, &format!("{title}, rules of the paper"))]
        {
            let rows = rows.iter().map(|assumed| (assumed.assumption.as_str(), assumed.of(rules)));
            self.sensitivity_table(title, numbers, &rows.collect::<Vec<_>>());
        }
    }

    /// Adds such a table. Each row varies one assumption; the first row should vary none. Rows have one
    /// figure per number.
    fn sensitivity_table(
        &mut self,
        title: &str,
        numbers: &[(&str, Number)],
        rows: &[(&str, &[Option<Ours>])],
    ) {
        let head = std::iter::once("assumption").chain(numbers.iter().map(|(name, _)| *name));
        let mut table = Table::new(&head.chain(["agrees with the paper"]).collect::<Vec<_>>());
        let published = numbers.iter().map(|(_, number)| Cell::from(number.published()));
        table.row(std::iter::once("the paper".into()).chain(published).chain(["".into()]).collect());
        for (assumption, figures) in rows {
            let mut row = vec![Cell::from(*assumption)];
            let mut agreeing = Vec::new();
            for ((name, number), ours) in numbers.iter().zip(*figures) {
                let claim = Claim::new(*number, ours.clone());
                row.push(claim.cell());
                if claim.agrees() {
                    agreeing.push(*name);
                }
            }
            let agreeing = if agreeing.is_empty() { "none".into() } else { agreeing.join("; ") };
            row.push(agreeing.into());
            table.row(row);
        }
        let mut charts = String::new();
        for (at, (name, number)) in numbers.iter().enumerate() {
            let points: Vec<svg::PointRow<'_>> = rows
                .iter()
                .map(|(assumption, figures)| {
                    let claim = Claim::new(*number, figures[at].clone());
                    (*assumption, Some(number.range()), claim.point())
                })
                .collect();
            let _ = write!(
                charts,
                "<h3>{}</h3>{}",
                report::html::escape(name),
                svg::points(number.unit(), &points)
            );
        }
        self.part(title, table, charts);
    }

    /// Returns a table that compares the claims of the paper with our results.
    pub fn claims(&self) -> Table {
        let has_sources = self.claims.iter().any(|claim| !claim.source.is_empty());
        let has_literal = self.claims.iter().any(|claim| claim.literal.is_some());
        let mut head = vec!["where", "what", "paper", "ours", "relative difference", "verdict"];
        if has_literal {
            head[3] = "rules of the paper";
            head.extend(["our rules", "verdict, our rules"]);
        }
        let skipped = usize::from(!has_sources);
        let mut table = Table::new(&head[skipped..]);
        for claim in &self.claims {
            let judged = claim.judged();
            let off = judged
                .relative()
                .map_or_else(|| "-".to_owned(), |off| format!("{:+.0}%", (100.0 * off).round() + 0.0));
            let mut row: Vec<Cell> = vec![
                claim.source.as_str().into(),
                claim.what.as_str().into(),
                judged.paper.published().into(),
                judged.cell(),
                off.into(),
                judged.verdict().into(),
            ];
            if has_literal {
                row.extend([claim.ours.cell(), claim.ours.verdict().into()]);
            }
            table.row(row.into_iter().skip(skipped).collect());
        }
        table
    }

    /// Returns a table with a row for each figure and table of the paper. It counts the statements
    /// that agree with the rules of the paper only.
    fn inventory(&self) -> Table {
        let mut table = Table::new(&["figure or table", "shows", "result", "our table"]);
        for Entry { name, shows, coverage } in &self.inventory {
            let claims: Vec<&Statement> = self.claims.iter().filter(|claim| claim.source == *name).collect();
            let agree = claims.iter().filter(|claim| claim.judged().agrees()).count();
            let (result, title) = match coverage {
                Coverage::Not(why) => (format!("cannot be reproduced: {why}"), "-"),
                Coverage::Setting => ("our experiment is set up so".to_owned(), "-"),
                Coverage::Repeated(title) if claims.is_empty() => {
                    ("run again; the paper states nothing that can be compared".to_owned(), title.as_str())
                }
                Coverage::Repeated(title) => {
                    let verb = if claims.len() == 1 { "agrees" } else { "agree" };
                    let of = crate::count(claims.len(), "statement");
                    (format!("run again; {agree} of {of} {verb}"), title.as_str())
                }
            };
            table.row(vec![(*name).into(), (*shows).into(), result.into(), title.into()]);
        }
        table
    }

    /// Returns the cluster, the jobs and the offered load of each experiment.
    fn sizes(&self) -> Table {
        let head = ["experiment", "jobs", "tasks", "offered load, maps", "reduces", "nodes", "map slots"];
        let mut table = Table::new(&[&head[..], &["reduce slots"]].concat());
        for Ran { title, size, .. } in &self.runs {
            let load = size.offered_load;
            let count = |number: u32| Cell::count(number as usize);
            table.row(vec![
                title.as_str().into(),
                Cell::count(size.jobs),
                Cell::count(size.tasks),
                Cell::number(load.map(|load| load.map)),
                Cell::number(load.map(|load| load.reduce)),
                Cell::count(size.machines),
                count(size.map_slots),
                count(size.reduce_slots),
            ]);
        }
        table
    }

    /// Returns all tables and their charts, with their titles.
    fn all_parts(&self) -> Vec<(&str, Table, String)> {
        let mut all = Vec::new();
        if !self.inventory.is_empty() {
            all.push((INVENTORY, self.inventory(), String::new()));
        }
        all.push((CLAIMS, self.claims(), self.claim_charts()));
        all.extend(
            self.parts.iter().map(|part| (part.title.as_str(), part.table.clone(), part.charts.clone())),
        );
        if !self.runs.is_empty() {
            all.push((SIZES, self.sizes(), String::new()));
        }
        all
    }

    /// Returns charts of our values over those of the paper, one per figure and unit.
    fn claim_charts(&self) -> String {
        let mut out = String::new();
        let mut drawn: Vec<(&str, &str)> = Vec::new();
        for claim in &self.claims {
            let key = (claim.source.as_str(), claim.ours.paper.unit());
            if drawn.contains(&key) {
                continue;
            }
            drawn.push(key);
            let same =
                self.claims.iter().filter(|other| (other.source.as_str(), other.ours.paper.unit()) == key);
            let points: Vec<svg::PointRow<'_>> = same
                .map(|claim| (claim.what.as_str(), Some(claim.ours.paper.range()), claim.judged().point()))
                .collect();
            let _ = write!(out, "<h3>{}</h3>{}", report::html::escape(key.0), svg::points(key.1, &points));
        }
        out
    }

    /// Returns every claim and every table for `--json`.
    pub fn json(&self) -> Map<String, Value> {
        let tables = self.all_parts().into_iter().filter(|(title, ..)| *title != CLAIMS);
        let tables = tables.map(|(title, table, _)| json!({ "title": title, "rows": table.json() }));
        let fields = [
            ("title", json!(self.title)),
            ("setting", json!(self.setup_description)),
            ("claims", self.claims.iter().map(Statement::json).collect()),
            ("tables", tables.collect()),
        ];
        fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns the content of an archive ([`report::archive`]), without its provenance.
    pub fn archive(&self) -> Map<String, Value> {
        let tables =
            self.all_parts().into_iter().map(|(title, table, _)| report::archive::table(title, &table));
        let fields = [
            ("title", json!(self.title)),
            ("setting", json!(self.setup_description)),
            ("claims", self.claims.iter().map(Statement::json).collect()),
            ("tables", tables.collect()),
            ("runs", self.runs.iter().map(Ran::json).collect()),
        ];
        fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns an HTML page. `made_by` says which command made it.
    pub fn html(&self, made_by: &str) -> String {
        let mut body = report::paragraphs([self.setup_description.as_str(), made_by].into_iter());
        for (title, table, charts) in self.all_parts() {
            let _ = write!(body, "<h2>{}</h2>{}{charts}", report::html::escape(title), table.html());
        }
        report::page(&self.title, &body)
    }

    /// Returns Markdown for a page of documentation, without charts. `made_by` says which command made
    /// it.
    pub fn markdown(&self, made_by: &str) -> String {
        let mut out = format!("{}\n\n{made_by}\n", self.setup_description);
        for (title, table, _) in self.all_parts() {
            let _ = write!(out, "\n### {title}\n{}", table.markdown());
        }
        out
    }

    /// Returns text for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.title, self.setup_description);
        for (title, table, _) in self.all_parts() {
            let _ = write!(out, "\n{title}\n{}", table.text());
        }
        out
    }
}

/// Computes our value of a number of a paper.
type ComputeOurs = dyn Fn(Results<'_>) -> Option<Ours>;

/// A number of a paper and how ours is computed: a claim, and a column of a table of sensitivity.
struct PaperNumber {
    /// The figure or table of the paper.
    source: String,
    what: String,
    column: String,
    paper: Number,
    ours: Box<ComputeOurs>,
}

impl PaperNumber {
    fn new(
        source: impl Into<String>,
        (what, column): (impl Into<String>, impl Into<String>),
        paper: Number,
        ours: impl Fn(Results<'_>) -> Option<Ours> + 'static,
    ) -> Self {
        let (source, what, column) = (source.into(), what.into(), column.into());
        Self { source, what, column, paper, ours: Box::new(ours) }
    }
}

/// Our results for some numbers of a paper under an assumption.
#[derive(Debug)]
struct Assumed {
    assumption: String,
    literal: Vec<Option<Ours>>,
    ours: Vec<Option<Ours>>,
}

impl Assumed {
    fn new(assumption: &str, numbers: &[PaperNumber], comparison: &Comparison) -> Self {
        let of = |rules| numbers.iter().map(|number| (number.ours)(Results { comparison, rules })).collect();
        Self { assumption: assumption.to_owned(), literal: of(Rules::Paper), ours: of(Rules::Ours) }
    }

    fn of(&self, rules: Rules) -> &[Option<Ours>] {
        match rules {
            Rules::Paper => &self.literal,
            Rules::Ours => &self.ours,
        }
    }
}

/// Returns the columns of a table of sensitivity.
fn columns(numbers: &[PaperNumber]) -> Vec<(&str, Number)> {
    numbers.iter().map(|number| (number.column.as_str(), number.paper)).collect()
}

/// Returns the relative change of the mean completion of a group from policy `other` to policy
/// `one`: -0.2 means a fifth less.
fn change(comparison: Results<'_>, group: Option<&str>, one: &str, other: &str) -> Option<Ours> {
    let (one, other) = (comparison.index(one)?, comparison.index(other)?);
    let of_seed = |seed: usize| {
        let pairs = comparison.pairs(seed, group, one, other);
        let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.into_iter().flatten().unzip();
        (mean(&theirs) > 0.0).then(|| mean(&ours) / mean(&theirs) - 1.0)
    };
    let ours = Ours::of_changes((0..comparison.seeds.len()).map(of_seed).collect());
    // The claims of the papers are about all jobs.
    Some(ours).filter(|ours| ours.estimate.seeds > 0 && comparison.left_out(group, one, other) == 0)
}

/// Returns a change as a cell; a dash if it is unknown because different jobs failed or did not end.
fn change_cell(change: Option<Ours>) -> Cell {
    let known = change.map(|ours| ours.estimate).filter(|change| change.seeds > 0);
    known.map_or_else(|| "-".into(), |change| Cell::change(change.mean, change.interval()))
}

/// Returns the mean of `of` over the jobs of a group under policy `one`, minus that under policy
/// `other`, in each seed.
fn difference(
    comparison: Results<'_>,
    group: Option<&str>,
    (one, other): (&str, &str),
    of: impl Fn(&JobFigures) -> Option<f64>,
) -> Option<Ours> {
    let (one, other) = (comparison.index(one)?, comparison.index(other)?);
    let means = |at: usize| comparison.means(at, group, &of).into_iter();
    let ours = Ours::of(means(one).zip(means(other)).map(|(one, other)| Some(one? - other?)).collect());
    Some(ours).filter(|_| comparison.left_out(group, one, other) == 0)
}

/// Returns the mean of `of` over the jobs of a group (all jobs if `None`) under a policy.
fn mean_of(
    comparison: Results<'_>,
    label: &str,
    group: Option<&str>,
    of: impl Fn(&JobFigures) -> Option<f64>,
) -> Option<Ours> {
    let at = comparison.index(label)?;
    let estimate = comparison.mean_over(at, group, &of).into();
    Some(Ours { estimate, ..Ours::of(comparison.means(at, group, of)) })
}

/// Returns a figure of the runs under a policy.
fn per_run(comparison: Results<'_>, label: &str, of: impl Fn(&Outcome) -> Option<f64>) -> Option<Ours> {
    Some(Ours::of(comparison.runs[comparison.index(label)?].iter().map(of).collect()))
}

/// Returns a figure of the runs under policy `one`, minus that under policy `other`, in each seed.
fn run_difference(
    comparison: Results<'_>,
    (one, other): (&str, &str),
    of: impl Fn(&Outcome) -> Option<f64>,
) -> Option<Ours> {
    let (one, other) = (comparison.index(one)?, comparison.index(other)?);
    let pairs = comparison.runs[one].iter().zip(&comparison.runs[other]);
    Some(Ours::of(pairs.map(|(one, other)| Some(of(one)? - of(other)?)).collect()))
}

/// Multiplies the numbers of tasks of a job. A phase keeps at least one task, and one that has a single
/// task keeps it.
fn resize(job: &mut JobPlan, factor: f64) {
    let of = |tasks: usize| if tasks > 1 { ((tasks as f64 * factor).round() as usize).max(1) } else { tasks };
    let (maps, reduces) = (of(job.maps.len()), of(job.reduces.len()));
    job.maps = job.maps.iter().copied().cycle().take(maps).collect();
    job.reduces = job.reduces.iter().copied().cycle().take(reduces).collect();
    job.reduces.iter_mut().for_each(|reduce| reduce.share = 1.0 / reduces as f32);
}

/// Returns a bar chart of columns of a table (all columns with numbers if none are named), with a group
/// of bars for each row. `paper` has the name and the values that the paper prints, by the first cell
/// of their rows.
fn bars(table: &Table, columns: &[&str], y_label: &str, paper: Option<(&str, &[(&str, f64)])>) -> String {
    let groups: Vec<String> = table.rows.iter().map(|row| row[0].text().to_owned()).collect();
    let value = |cell: &Cell| match cell {
        Cell::Figure(figure, _) => {
            figure.known().map(|figure| (figure.mean, figure.half_width.unwrap_or(0.0)))
        }
        _ => None,
    };
    let none = (f64::NAN, 0.0);
    let column = |at: usize| table.rows.iter().map(move |row| value(&row[at]));
    let is_shown = |at: &usize| {
        let name = table.head[*at].as_str();
        let is_first = !table.head[..*at].contains(&table.head[*at]);
        columns.contains(&name) && is_first
            || columns.is_empty() && *at > 0 && column(*at).any(|value| value.is_some())
    };
    let shown = (0..table.head.len()).filter(is_shown);
    let mut series: Vec<(&str, Vec<(f64, f64)>)> = shown
        .map(|at| (table.head[at].as_str(), column(at).map(|value| value.unwrap_or(none)).collect()))
        .collect();
    if let Some((name, printed)) = paper {
        let of =
            |group: &String| printed.iter().find(|(row, _)| row == group).map(|(_, value)| (*value, 0.0));
        series.push((name, groups.iter().map(|group| of(group).unwrap_or(none)).collect()));
    }
    svg::bars(&svg::SCREEN, y_label, &groups, &series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Figure;
    use mrcore::PerPhase;

    #[test]
    fn stopped_runs_are_counted_and_not_compared() {
        let profiles = crate::profile::built_in();
        let lab = Lab::new(&profiles, 1, false, &|_, _| {}).with_time_limit(Duration::ZERO);
        let out = Paper::Hsrtf.reproduce(&lab).expect("it runs");
        assert!(out.text().contains("The time limit stopped "), "{}", out.setup_description);
        let json = out.json();
        let mut claims = json["claims"].as_array().expect("claims").iter();
        assert!(
            claims.any(|claim| claim["ours"]["verdict"] == "not comparable: jobs failed or did not end"),
            "{json:?}"
        );
    }

    fn figure(mean: f64) -> Ours {
        let figure = Figure { mean, half_width: Some(0.03), is_lower_bound: false, seeds: 5 };
        Ours { estimate: figure.into(), ..Ours::of(vec![Some(mean)]) }
    }

    /// The names of all figures and tables of each paper, in the order of their numbers.
    #[test]
    fn every_figure_and_table_of_the_papers_has_an_entry() {
        let parts = |kind: &str, number: u32, letters: &str| -> Vec<String> {
            letters.chars().map(|letter| format!("{kind} {number}{letter}")).collect()
        };
        let all = |kind: &str, most: u32| (1..=most).map(|at| format!("{kind} {at}")).collect::<Vec<_>>();
        for (paper, take, names) in [
            (
                Paper::Hsrtf,
                hsrtf::take_inventory as fn(&mut Reproduction),
                [
                    parts("figure", 1, "ab"),
                    parts("figure", 2, "abcdefghi"),
                    parts("figure", 3, "abc"),
                    all("table", 2),
                ]
                .concat(),
            ),
            (
                Paper::Chronos,
                chronos::take_inventory,
                [
                    parts("figure", 1, "ab"),
                    parts("figure", 2, "ab"),
                    vec!["figure 3".to_owned()],
                    parts("figure", 4, "ab"),
                ]
                .concat(),
            ),
            (Paper::Fcs, fcs::take_inventory, [all("figure", 15), all("table", 4)].concat()),
            (Paper::Coshh, coshh::take_inventory, [all("figure", 28), all("table", 12)].concat()),
        ] {
            let mut out = Reproduction::new("", "");
            take(&mut out);
            let mut found: Vec<&str> = out.inventory.iter().map(|entry| entry.name).collect();
            let mut wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{}", paper.name());
        }
    }

    #[test]
    fn bars_show_the_numbers_of_a_table_and_what_the_paper_prints() {
        let mut table = Table::new(&["jobs", "fcs", "note"]);
        for (jobs, value) in [("60", 2.0), ("300", 4.0)] {
            table.row(vec![jobs.into(), Figure::of(&[value]).into(), "text".into()]);
        }
        let chart = bars(&table, &[], "s", Some(("paper", &[("300", 3.0)])));
        assert_eq!(
            chart.matches("<rect").count(),
            2 + 1 + 2,
            "bars of ours, of the paper, and a legend: {chart}"
        );
        assert!(chart.contains(">paper</text>") && !chart.contains("note"), "{chart}");
    }

    /// The paper is judged by its own rules; ours are a second column.
    #[test]
    fn statements_are_judged_by_the_rules_of_the_paper() {
        let mut out = Reproduction::new("A paper", "its setup");
        let of = |rules| Some(figure(if rules == Rules::Paper { -0.22 } else { -0.44 }));
        out.claim_of("small jobs", Number::Change(-0.44), of).of("figure 1");
        out.claim_of("none ran", Number::Change(-0.44), |_| None).of("figure 1");
        out.reproduced("figure 1", "jobs", "Jobs");
        assert_eq!(out.inventory().rows[0][2].text(), "run again; 0 of 2 statements agree");
        let table = out.claims();
        assert_eq!(
            table.head[3..],
            ["rules of the paper", "relative difference", "verdict", "our rules", "verdict, our rules"]
        );
        let row: Vec<&str> = table.rows[0][3..].iter().map(Cell::text).collect();
        let paper = ["-22.0% (-25.0 to -19.0)", "+50%", "same direction, smaller"];
        assert_eq!(row, [&paper[..], &["-44.0% (-47.0 to -41.0)", "agrees"]].concat());
        let json = &out.json()["claims"][0];
        assert_eq!(
            (&json["literal"]["verdict"], &json["ours"]["verdict"]),
            (&json!(paper[2]), &json!("agrees"))
        );
    }

    /// A policy that did not run with the rules of the paper has no result with them.
    #[test]
    fn policies_are_found_with_the_rules_of_the_paper() {
        let labels =
            ["fair", "fcs", "fcs, literal", "fcs, kill", "hsrtf-pu, literal, eq. 2 in seconds", "hsrtf-pu"];
        let of = |label: &&str| Variant::tuned(label, label.split(',').next().unwrap_or_default(), &[]);
        let comparison = Comparison {
            variants: labels.iter().map(of).collect(),
            seeds: Vec::new(),
            runs: Vec::new(),
            alone: Vec::new(),
            groups: Vec::new(),
            slots: PerPhase { map: 1, reduce: 1 },
        };
        let both = |label: &str| {
            [Rules::Paper, Rules::Ours].map(|rules| Results { comparison: &comparison, rules }.index(label))
        };
        assert_eq!(both("fcs"), [Some(2), Some(1)]);
        assert_eq!(both("hsrtf-pu"), [Some(4), Some(5)]);
        assert_eq!(both("fair"), [Some(0); 2]);
        assert_eq!(both("fcs, kill"), [None, Some(3)]);
        assert_eq!(both("coshh"), [None; 2]);
    }

    #[test]
    fn inventory_counts_the_numbers_that_agree() {
        let mut out = Reproduction::new("A paper", "its setup");
        out.claim("small jobs", Number::Change(-0.44), Some(figure(-0.22))).of("figure 1");
        out.claim("large jobs", Number::Change(-0.44), Some(figure(-0.42))).of("figure 1");
        out.claim("all jobs", Number::Change(-0.44), Some(figure(-0.22))).of("figure 4");
        out.reproduced("figure 1", "jobs", "Jobs");
        out.reproduced("figure 2", "a curve", "Jobs");
        out.not_reproduced("figure 3", "a trace", "the trace is not public");
        out.reproduced("figure 4", "all jobs", "Jobs");
        out.used("table 1", "the jobs");
        let table = out.inventory();
        let results: Vec<&str> = table.rows.iter().map(|row| row[2].text()).collect();
        assert_eq!(
            results,
            [
                "run again; 1 of 2 statements agree",
                "run again; the paper states nothing that can be compared",
                "cannot be reproduced: the trace is not public",
                "run again; 0 of 1 statement agrees",
                "our experiment is set up so"
            ]
        );
        assert_eq!(out.claims().rows[1][0].text(), "figure 1");
        let tables = &out.archive()["tables"];
        assert_eq!((&tables[0]["title"], &tables[1]["title"]), (&json!(INVENTORY), &json!(CLAIMS)));
        assert_eq!(
            tables[1]["rows"][0][3],
            json!({ "text": "-22.0% (-25.0 to -19.0)", "mean": -0.22, "low": -0.25, "high": -0.19 })
        );
    }

    #[test]
    fn sensitivity_names_the_assumptions_under_which_the_paper_is_met() {
        let mut out = Reproduction::new("A paper", "its setup");
        let numbers = [("small", Number::Change(-0.44)), ("large", Number::Change(0.1))];
        let row = |assumption: &str, ours: [Option<f64>; 2]| Assumed {
            assumption: assumption.to_owned(),
            literal: vec![None, Some(figure(0.1))],
            ours: ours.map(|ours| ours.map(figure)).to_vec(),
        };
        let rows = [row("as assumed", [Some(-0.22), Some(0.5)]), row("fast maps", [Some(-0.43), None])];
        out.sensitivity("Assumptions", &numbers, &rows);
        let [of_ours, of_paper] = &out.parts[..] else { panic!("two tables") };
        assert_eq!(of_paper.title, "Assumptions, rules of the paper");
        let literal: Vec<&str> = of_paper.table.rows.iter().map(|row| row[3].text()).collect();
        assert_eq!(literal, ["", "large", "large"]);
        let table = &of_ours.table;
        let column = |at: usize| table.rows.iter().map(|row| row[at].text()).collect::<Vec<_>>();
        assert_eq!(column(0), ["the paper", "as assumed", "fast maps"]);
        assert_eq!(column(1), ["-44.0%", "-22.0% (-25.0 to -19.0)", "-43.0% (-46.0 to -40.0)"]);
        assert_eq!(column(3), ["", "none", "small"]);
    }

    #[test]
    fn every_output_format_contains_the_relative_difference() {
        let mut out = Reproduction::new("A paper", "its setup");
        let ours = figure(-0.22);
        out.claim("small jobs", Number::Change(-0.44), Some(ours.clone()));
        out.claim("no failure", Number::Change(0.0), Some(ours));
        out.claim("a wait", Number::Seconds(51.0), Some(Ours::of(Vec::new())));
        let table = out.claims();
        let column: Vec<&str> = table.rows.iter().map(|row| row[3].text()).collect();
        assert_eq!((table.head[3].as_str(), column), ("relative difference", vec!["+50%", "-", "-"]));
        assert!(out.text().contains("+50%") && out.html("").contains("<td>+50%</td>"));
        assert!(
            out.markdown("mrctl repro x")
                .contains("| small jobs | -44.0% | -22.0% (-25.0 to -19.0) | +50% |"),
            "{}",
            out.markdown("")
        );
        out.used("table 1", "the jobs");
        let page = out.markdown("mrctl repro x");
        assert!(page.contains("\nmrctl repro x\n") && page.contains(INVENTORY), "{page}");
        assert_eq!(out.json()["claims"][0]["ours"]["relative"], 0.5);
    }
}
