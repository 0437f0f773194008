//! `mrctl sim`: compares policies in a simulated cluster. Also runs random simulations, and
//! computes profiles of programs.

use super::{
    interrupt,
    outputs::{NewHistories, Outputs, create_figures_folder, svg_names, write, write_figures},
    sim_csv, sim_json,
    why::{SimulatedWhy, print_simulated},
};
use crate::output::{self, SimulationProgress, Usage, positive_time, whole_number};
use anyhow::{Context, Result};
use clap::Subcommand;
use daemon::Period;
use sim::{
    Recording, Setup, Span, Workload,
    catalog::{self, Case, CaseSize, CatalogError, Request},
    experiment::{Comparison, Experiment, ExperimentError, RunProgress, Variant},
    export,
    fault::{Fault, random_failures_during},
    profile, report,
    scenario::{ScenarioAction, When},
    workload::history,
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// The shortest mean time between failures, and until a machine is back.
pub(super) const FAILURE_TIME_MIN: Duration = Duration::from_secs(1);

/// Compare scheduling policies in a simulated cluster
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  \
    mrctl sim --workload hsrtf --scheduler fifo,hsrtf-pr --seeds 5\n  \
    mrctl sim --workload hsrtf --scheduler fair,fifo --report hsrtf.html\n  \
    mrctl sim --workload trace.tsv --nodes 100 --scheduler 'chronos(fair)'\n  \
    mrctl sim --workload trace.tsv --nodes 60 --load 0.8 --seeds 10 --csv jobs.csv\n  \
    mrctl sim --workload hsrtf --scheduler fair,fcs --seeds 5 --figures paper\n  \
    mrctl sim --workload hsrtf --scheduler fair --swf fair.swf\n  \
    mrctl sim --workload hsrtf --scheduler fair --why job_3@120s\n  \
    mrctl sim --workload gridmix --cluster mine.toml --mtbf 2h --mttr 10m\n  \
    mrctl sim --workload fcs-map-heavy --scheduler 'fcs,fcs[preempt=kill]'\n  \
    mrctl sim fuzz --seeds 500\n  \
    mrctl sim profiles\n\n\
    Workloads by name: hsrtf, chronos-wordcount, chronos-sort, fcs-map-heavy,\n\
    fcs-reduce-heavy, coshh-facebook, coshh-yahoo, gridmix, bursty, mixed,\n\
    laptop-hsrtf, laptop-fcs.\n\
    Files: .tsv (SWIM), .json (Rumen), .jsonl or a folder (job history).")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<SimCommand>,
    #[command(flatten)]
    compare: Compare,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Run random simulations and check all invariants after every event
    Fuzz(super::sim_fuzz::Args),
    /// Compute profiles of programs from job histories, and print them
    Calibrate(Calibrate),
    /// The same as `mrctl verify`
    #[command(hide = true)]
    Verify(lab::verify::Args),
    /// Print the built-in profiles
    Profiles,
}

#[derive(Debug, clap::Args)]
struct Compare {
    /// Name of a workload, or a file
    #[arg(long, value_name = "FILE|NAME", required = true)]
    workload: Option<String>,
    /// Policies, separated by commas, with parameters in brackets; LABEL=POLICY gives one a label
    #[arg(long, value_name = "LIST", default_value = "fifo")]
    scheduler: String,
    /// Description of the machines (TOML), instead of --nodes and slots
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Number of machines [default: depends on the workload]
    #[arg(long, allow_negative_numbers = true)]
    nodes: Option<u32>,
    /// Map slots of each machine
    #[arg(long, allow_negative_numbers = true)]
    map_slots: Option<u32>,
    /// Reduce slots of each machine
    #[arg(long, allow_negative_numbers = true)]
    reduce_slots: Option<u32>,
    /// Number of jobs, for synthetic workloads
    #[arg(long, allow_negative_numbers = true)]
    jobs: Option<u32>,
    /// Mean seconds between jobs, for synthetic workloads
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    gap: Option<f64>,
    /// Offered load of the busier phase, such as 0.8 (1 is all its slots); changes the times between
    /// jobs
    #[arg(long, value_name = "LOAD", allow_negative_numbers = true)]
    load: Option<f64>,
    /// Factor for the bytes of a SWIM trace [default: nodes / nodes of the trace]
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Nodes of the cluster of a SWIM trace [default: 3000 for FB-2010, otherwise 600]
    #[arg(long, value_name = "NODES", allow_negative_numbers = true)]
    trace_nodes: Option<u32>,
    /// Number of seeds; more than one gives confidence intervals
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = whole_number(1..=1000))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, default_value_t = 1, value_parser = whole_number(1..1 << 48))]
    first_seed: u64,
    /// Fault scenario (TOML), as for `mrctl chaos run`
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Mean time between failures of a machine, such as 2h, drawn at random for each seed
    #[arg(long, value_name = "TIME", requires = "mttr", conflicts_with = "faults")]
    mtbf: Option<Period>,
    /// Mean time until a failed machine is back, such as 10m
    #[arg(long, value_name = "TIME", requires = "mtbf")]
    mttr: Option<Period>,
    /// File of profiles (TOML); they replace built-in ones of the same name
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Real time after which a run is stopped; its active jobs count as unfinished
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = positive_time)]
    time_limit: Period,
    /// Write a report with charts (HTML) to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write each chart to a file in this folder (SVG), for a column of a paper
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write all jobs of all policies and seeds (CSV) to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the same as Parquet; needs mrctl with the feature parquet
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Write the jobs in the Standard Workload Format; one policy and one seed
    #[arg(long, value_name = "FILE")]
    swf: Option<PathBuf>,
    /// Write the jobs as a workload of Batsim (JSON); one policy and one seed
    #[arg(long, value_name = "FILE")]
    batsim_workload: Option<PathBuf>,
    /// Write the jobs as Batsim does (CSV); one policy and one seed
    #[arg(long, value_name = "FILE")]
    batsim_jobs: Option<PathBuf>,
    /// Write the job histories to this new folder, as a JobTracker does; one policy and one seed
    #[arg(long, value_name = "FOLDER")]
    history: Option<PathBuf>,
    /// Run until this time and print what `mrctl why` would print then; one policy and one seed
    #[arg(long, value_name = "JOB@TIME", conflicts_with_all = ["report", "figures", "csv", "parquet", "swf", "batsim_workload", "batsim_jobs", "history"])]
    why: Option<SimulatedWhy>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: run typical jobs, then read their histories\n  \
    mrctl submit wordcount --input /books --output /counts --reduces 4\n  \
    mrctl submit sort --input /books --output /sorted --reduces 4\n  \
    mrctl sim calibrate .fermata/data/jobtracker/history > mine.toml\n  \
    mrctl sim --workload mixed --profiles mine.toml --nodes 100")]
struct Calibrate {
    /// A history file, or a folder of history files
    history: PathBuf,
    /// Use the CPU time of tasks instead of their duration: for machines that were busy with other
    /// work
    #[arg(long)]
    cpu_time: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Some(SimCommand::Verify(args)) => super::verify::run(args).await,
        Some(SimCommand::Fuzz(args)) => super::sim_fuzz::run(args),
        Some(SimCommand::Calibrate(args)) => calibrate(args),
        Some(SimCommand::Profiles) => {
            output::line(profile::render(&profile::built_in()).trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            interrupt::end_at_first_signal();
            compare(&args.compare)
        }
    }
}

fn compare(args: &Compare) -> Result<ExitCode> {
    let request = Request {
        workload: args.workload.clone().unwrap_or_default(),
        cluster: args.cluster.clone(),
        nodes: args.nodes,
        map_slots: args.map_slots,
        reduce_slots: args.reduce_slots,
        jobs: args.jobs,
        gap_s: args.gap,
        scale: args.scale,
        trace_nodes: args.trace_nodes,
        load: args.load,
        profiles: args.profiles.clone(),
        faults: args.faults.clone(),
    };
    let variants = parse_policies("--scheduler", &args.scheduler)?;
    let inputs = check_outputs(args, &request, &variants)?;
    let histories = args.history.as_deref().map(NewHistories::create).transpose()?;
    let case = open_case(&request, args.seeds, None)?;
    let started = Instant::now();
    let seeds = args.first_seed..args.first_seed + args.seeds;
    let size = case.size(seeds.start);
    let heading = size.describe(&request, args.seeds);
    let planned = args.faults.as_ref().map(|_| case.setup.faults.len() + case.setup.steps.len());
    let has_rows = args.csv.is_some() || args.parquet.is_some();
    let details = sim_json::Details::of(&case, &request, (size, has_rows), &seeds, &inputs)?;
    let made_by = details.provenance.line();
    let machines = case.setup.machines.len();
    let timed_faults = timed_faults(&case.setup);
    let failures = random_failures_of(args, &case.workload, machines);
    let variants = variants.into_iter().map(|variant| variant.with_params(&case.params)).collect();
    let runs = SimulationProgress::new();
    let monitor = |run: RunProgress<'_>| {
        runs.report(run);
        run.elapsed < args.time_limit.0
    };
    let experiment = Experiment {
        setup: case.setup,
        faults: failures.as_ref().map(|faults| faults as &(dyn Fn(u64) -> Vec<Fault> + Sync)),
        workload: &case.workload,
        users: case.users,
        variants,
        seeds,
        limit: None,
        alone: case.groups_identical,
        monitor: Some(&monitor),
    };
    if let Some(why) = args.why {
        let explanation = experiment.explain(why.of, why.at).with_context(|| format!("--why {why}"))?;
        drop(runs);
        return print_simulated(explanation, args.json).map(|()| ExitCode::SUCCESS);
    }
    let recording =
        histories.as_ref().map(|new| Recording { folder: new.unfinished(), made_by: &made_by, variant: 0 });
    let comparison = experiment.run_recorded(&|step| runs.count_run("", step), recording)?;
    histories.map_or(Ok(()), NewHistories::publish)?;
    drop(runs);
    for (what, at) in timed_faults {
        if let Some((file, warning)) = args.faults.as_ref().zip(comparison.never_happened(&what, at)) {
            eprintln!("mrctl: {}: {warning}", file.display());
        }
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    let shown = ComparisonReport {
        heading,
        table: report::summary(&comparison),
        against: report::against_first(&comparison),
        slowdown_note: report::slowdown_note(&comparison),
        groups: report::by_group(&comparison, sim::experiment::makespan_s),
        fault_counts: describe_faults(&comparison, planned, args.mtbf.is_some()),
        run_speed: run_speed(&comparison, elapsed_s),
    };
    // Files first: standard output may be closed early.
    write_files(args, &details, &comparison, &shown)?;
    if args.json {
        output::json(&sim_json::comparison(&details, &comparison))?;
    } else {
        shown.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks flags that exclude each other, and that all results can be written. Returns the files that
/// are read.
fn check_outputs(args: &Compare, request: &Request, variants: &[Variant]) -> Result<Vec<PathBuf>> {
    if args.parquet.is_some() && !cfg!(feature = "parquet") {
        let build = "cargo build --release -p mrctl --features parquet";
        anyhow::bail!(Usage(format!(
            "--parquet: this mrctl was built without Parquet: build it with {build}"
        )));
    }
    let of_one_run = [&args.swf, &args.batsim_workload, &args.batsim_jobs];
    let one_run =
        of_one_run.iter().any(|path| path.is_some()) || args.history.is_some() || args.why.is_some();
    if one_run && (variants.len() > 1 || args.seeds > 1) {
        let flags = "--swf, --batsim-workload, --batsim-jobs, --history and --why are for one run";
        anyhow::bail!(Usage(format!("{flags}: give one policy with --scheduler, and one seed")));
    }
    let files = [
        ("--report", &args.report),
        ("--csv", &args.csv),
        ("--parquet", &args.parquet),
        ("--swf", &args.swf),
        ("--batsim-workload", &args.batsim_workload),
        ("--batsim-jobs", &args.batsim_jobs),
    ];
    let inputs: Vec<PathBuf> = request.files().map(Path::to_path_buf).chain(policy_files(variants)).collect();
    let figures = report::chart_names(variants.iter().map(|variant| variant.label.as_str()));
    if let Some(folder) = &args.figures {
        create_figures_folder(folder, &inputs, &figures)?;
    }
    Outputs::new(&inputs)
        .files(&files)
        .in_folder("--figures", args.figures.as_deref(), svg_names(&figures))
        .own_folder("--history", args.history.as_deref())
        .check()?;
    for (flag, time) in [("--mtbf", args.mtbf), ("--mttr", args.mttr)] {
        if let Some(time) = time.filter(|time| time.0 < FAILURE_TIME_MIN) {
            anyhow::bail!(Usage(format!("{flag} {time}: the time must be at least 1s")));
        }
    }
    Ok(inputs)
}

/// Writes the results in all requested files.
fn write_files(
    args: &Compare,
    details: &sim_json::Details,
    comparison: &Comparison,
    shown: &ComparisonReport,
) -> Result<()> {
    let (made_by, workload) = (details.provenance.line(), args.workload.as_deref().unwrap_or_default());
    if let Some(path) = &args.csv {
        write(path, &sim_csv::jobs(details, comparison))?;
    }
    #[cfg(feature = "parquet")]
    if let Some(path) = &args.parquet {
        super::sim_parquet::write(path, details, comparison)?;
    }
    write_exports(args, comparison, &made_by, workload, details.size)?;
    if let Some(path) = &args.report {
        let title = format!("{workload} under {}", args.scheduler);
        write(path, &report::page(&title, &shown.body(&made_by, comparison)))?;
    }
    if let Some(folder) = &args.figures {
        let charts = report::chart_list(comparison, &report::svg::COLUMN).into_iter();
        write_figures(folder, &made_by, charts.map(|chart| (chart.name, chart.svg)))?;
    }
    Ok(())
}

/// Writes the only run in the formats of other tools.
fn write_exports(
    args: &Compare,
    comparison: &Comparison,
    made_by: &str,
    workload: &str,
    size: CaseSize,
) -> Result<()> {
    let Some(run) = export::Run::only(comparison, made_by, workload, size) else { return Ok(()) };
    if let Some(path) = &args.swf {
        write(path, &export::swf(&run))?;
    }
    if let Some(path) = &args.batsim_workload {
        write(path, &export::batsim_workload(&run).to_string())?;
    }
    if let Some(path) = &args.batsim_jobs {
        write(path, &export::batsim_jobs(&run))?;
    }
    Ok(())
}

/// Opens the workload, and warns about what is not simulated as requested with this number of seeds.
/// Errors about a workload of a campaign have its `label`.
pub(super) fn open_case(request: &Request, seeds: u64, label: Option<&str>) -> Result<Case> {
    let case = catalog::open(request).map_err(|error| {
        use CatalogError::{Kind, NoFile, Trace, Unknown};
        let is_of_workload = matches!(error, Kind { .. } | NoFile { .. } | Trace(_) | Unknown { .. });
        let text = match label {
            Some(label) => format!("--workloads {label}: {error}"),
            None if is_of_workload => format!("--workload: {error}"),
            None => error.to_string(),
        };
        if matches!(error, Trace(_)) { anyhow::Error::msg(text) } else { Usage(text).into() }
    })?;
    let faults = request.faults.as_deref();
    for step in &case.setup.steps {
        if let (Some(why), Some(file)) = (step.action.not_simulated(), faults) {
            eprintln!("mrctl: {}:{}: {} is left out: {why}", file.display(), step.line, step.action.verb());
        }
    }
    for note in &case.notes {
        eprintln!("mrctl: {note}");
    }
    let effect = (seeds > 1).then(|| case.seed_effect());
    if let Some(warning) = effect.and_then(|effect| effect.warning(&request.workload)) {
        eprintln!("mrctl: {warning}");
    }
    Ok(case)
}

/// Returns a function that draws the failures of machines for a seed.
fn random_failures_of(
    args: &Compare,
    workload: &(impl Fn(u64) -> Workload + Sync),
    machines: usize,
) -> Option<impl Fn(u64) -> Vec<Fault> + Sync> {
    let (mtbf, mttr) = args.mtbf.zip(args.mttr)?;
    let times = (mtbf.0.as_secs_f64(), mttr.0.as_secs_f64());
    Some(move |seed| random_failures_during(workload(seed).last_submission_s(), machines, times, seed))
}

fn calibrate(args: &Calibrate) -> Result<ExitCode> {
    output::check_local(&args.history)?;
    let history = history::read(&args.history)?;
    if history.is_simulated {
        let why = "its jobs were simulated, so their times are not measurements: give a history of a cluster";
        anyhow::bail!("{}: {why}", args.history.display());
    }
    let found = history.calibrate(args.cpu_time);
    if found.is_empty() {
        let place = args.history.display();
        let why = format!(
            "no job of a built-in program has succeeded in {place}: run some first (`mrctl programs`)"
        );
        return Err(anyhow::anyhow!(why));
    }
    for one in found {
        output::line(one.render())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of a comparison, for a terminal and for an HTML page.
struct ComparisonReport {
    heading: String,
    table: report::Table,
    against: report::Table,
    /// Why there are no slowdowns.
    slowdown_note: Option<&'static str>,
    groups: report::Table,
    fault_counts: Option<String>,
    run_speed: String,
}

impl ComparisonReport {
    fn print(&self) -> Result<()> {
        output::line(&self.heading)?;
        let note = self.slowdown_note.map_or_else(String::new, |note| format!("{note}\n"));
        output::line(format!("{}{note}", self.table.text()))?;
        if !self.against.rows.is_empty() {
            output::line(self.against.text())?;
        }
        output::line(format!("completion by group, s\n{}", self.groups.text()))?;
        if let Some(arrived) = &self.fault_counts {
            output::line(arrived)?;
        }
        output::line(&self.run_speed)
    }

    /// Returns the page. `made_by` says how it was made.
    fn body(&self, made_by: &str, comparison: &Comparison) -> String {
        let lines =
            [Some(&*self.heading), self.fault_counts.as_deref(), Some(&*self.run_speed), Some(made_by)];
        format!(
            "{}{}{}{}<h2>By group</h2>{}{}",
            report::paragraphs(lines.into_iter().flatten()),
            self.table.html(),
            report::paragraphs(self.slowdown_note.into_iter()),
            self.against.html(),
            self.groups.html(),
            report::charts(comparison)
        )
    }
}

/// Returns what goes wrong at fixed times: the faults of a scenario, and its steps that end no fault.
fn timed_faults(setup: &Setup) -> Vec<(String, Span)> {
    let faults = setup.faults.iter().map(|fault| (format!("the fault at {} s", fault.at_s), fault.at()));
    let is_fault = |action: &ScenarioAction| {
        use ScenarioAction::{Kill, Partition, Slow, Stop};
        matches!(action, Kill { .. } | Stop { .. } | Partition { .. } | Slow { .. })
            && action.not_simulated().is_none()
    };
    let steps = setup.steps.iter().filter_map(|step| match step.when {
        When::At(at) if is_fault(&step.action) => {
            let at = at + step.after;
            Some((format!("{} at {} s, line {}", step.action.verb(), at.as_secs_f64(), step.line), at))
        }
        _ => None,
    });
    faults.chain(steps).collect()
}

/// Describes how many faults were injected under each policy. `planned` is the number of faults in
/// the scenario file. Returns None if there are neither planned nor random faults.
fn describe_faults(comparison: &Comparison, planned: Option<usize>, random: bool) -> Option<String> {
    let arrived = comparison.variants.iter().zip(&comparison.runs).map(|(variant, runs)| {
        let each: Vec<String> = runs.iter().map(|outcome| outcome.fault_times.len().to_string()).collect();
        format!("{} under {}", each.join(", "), variant.label)
    });
    let arrived: Vec<String> = arrived.collect();
    let arrived = arrived.join("; ");
    match planned.filter(|planned| *planned > 0) {
        Some(planned) => {
            Some(format!("faults injected in each run, of {planned} in the scenario file: {arrived}"))
        }
        None => random.then(|| format!("failures of machines in each run: {arrived}")),
    }
}

/// Parses the list of policies of an option. An unknown policy or a bad parameter is a usage error.
pub(super) fn parse_policies(flag: &str, list: &str) -> Result<Vec<Variant>> {
    Variant::list(list).map_err(|error: ExperimentError| Usage(format!("{flag}: {error}")).into())
}

/// Returns the files that the commands of external policies name.
pub(super) fn policy_files<'a>(variants: impl IntoIterator<Item = &'a Variant>) -> Vec<PathBuf> {
    variants.into_iter().flat_map(Variant::files).collect()
}

/// Describes the speed of the simulation, with a hash of all events, which is the same whenever the
/// input is the same.
fn run_speed(comparison: &Comparison, elapsed_s: f64) -> String {
    let events: u64 = comparison.runs.iter().flatten().map(|outcome| outcome.events).sum();
    let hash = comparison.runs.iter().flatten().fold(0_u64, |sum, outcome| sum.rotate_left(7) ^ outcome.hash);
    let unfinished: usize = comparison.runs.iter().flatten().map(|outcome| outcome.unfinished).sum();
    let stopped = comparison.runs.iter().flatten().filter(|outcome| outcome.stopped).count();
    let stall = comparison.runs.iter().flatten().find_map(|outcome| outcome.stall.as_deref());
    let why = match stall {
        _ if stopped > 0 => format!("{} reached --time-limit", output::count(stopped as u64, "run")),
        Some(stall) => stall.to_owned(),
        None => "no further progress was possible".to_owned(),
    };
    let left = if unfinished > 0 {
        format!("; {} did not end: {why}", output::count(unfinished as u64, "job"))
    } else {
        String::new()
    };
    format!(
        "{events} events in {elapsed_s:.1} real s, {:.0} a second; trace {hash:016x}{left}",
        events as f64 / elapsed_s.max(1e-9)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use sim::PerPhase;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Compare,
    }

    fn parse(flags: &[&str]) -> Result<Compare, clap::Error> {
        let words = "sim --workload bursty --jobs 4 --nodes 5 --map-slots 2 --reduce-slots 1".split(' ');
        Cli::try_parse_from(words.chain(flags.iter().copied())).map(|cli| cli.args)
    }

    fn usage_error(flags: &[&str]) -> String {
        let error = compare(&parse(flags).expect("known flags")).expect_err("it is refused");
        error.downcast::<Usage>().expect("a usage error").to_string()
    }

    #[test]
    fn help_names_every_built_in_workload() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("sim"));
        let help = command.get_after_help().expect("examples").to_string();
        let (_, listed) = help.split_once("Workloads by name: ").expect("a list");
        let (listed, _) = listed.split_once('.').expect("the end of the list");
        let listed: Vec<&str> = listed.split(',').map(str::trim).collect();
        assert_eq!(listed, catalog::WORKLOADS.map(|(name, _)| name));
    }

    #[test]
    fn histories_are_of_one_run_and_say_how_it_was_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("UTF-8");
        let one_run = ": give one policy with --scheduler, and one seed";
        assert!(usage_error(&["--history", path, "--seeds", "2"]).ends_with(one_run));
        assert!(usage_error(&["--why", "job_1@5s", "--scheduler", "fifo,fair"]).ends_with(one_run));
        let new = folder.path().join("new");
        let flags = ["--history", new.to_str().expect("UTF-8"), "--scheduler", "fair"];
        compare(&parse(&flags).expect("known flags")).expect("it runs");
        assert!(usage_error(&flags).ends_with("the folder is not empty: give a new one"));
        let history = history::read(&new).expect("histories");
        assert_eq!((history.real.len(), history.slots), (4, PerPhase { map: 2, reduce: 1 }));
        let text = std::fs::read_to_string(new.join("job_1.jsonl")).expect("a history");
        assert!(text.lines().next().is_some_and(|head| head.contains("(version ")), "{text}");
        assert_eq!(history.run_name(), "the simulated run of the history");
        let error = calibrate(&Calibrate { history: new, cpu_time: false }).expect_err("nothing is measured");
        assert!(error.to_string().contains(": its jobs were simulated, so"), "{error}");
    }

    #[test]
    fn files_of_an_external_policy_are_inputs() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("policy.py");
        std::fs::write(&script, "").expect("a working disk");
        let policy = format!("external[command=python3 {} {0}.missing]", script.display());
        let variants = parse_policies("--scheduler", &format!("fifo,{policy}")).expect("two policies");
        assert!(policy_files(&variants).iter().eq([&script]));
        let flags = ["--scheduler", &policy, "--csv", script.to_str().expect("UTF-8")];
        assert!(usage_error(&flags).contains("is read by the same command"));
    }

    #[test]
    fn figures_and_tables_are_written_with_the_checksums_of_their_inputs() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(path("p.toml"), "[fcs-terasort]\nmap_mbps = 10.0\n").expect("a working disk");
        let (figures, csv, page) = (path("figures"), path("jobs.csv"), path("page.html"));
        let profiles = path("p.toml");
        let flags = ["--figures", &figures, "--csv", &csv, "--report", &page, "--profiles", &profiles];
        compare(&parse(&flags).expect("known flags")).expect("it runs");
        let sum = format!("SHA-256 of {profiles}: ");
        for name in ["figures/completion.svg", "figures/map-slots-1-fifo.svg", "jobs.csv", "page.html"] {
            let text = std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text.contains(&sum), "{name}: {text}");
        }
        // The same charts are written again. Charts of another policy would stay beside those of this one.
        compare(&parse(&flags).expect("known flags")).expect("it runs again");
        std::fs::write(path("figures/notes.txt"), "").expect("a working disk");
        let error = usage_error(&["--figures", &figures, "--scheduler", "fair"]);
        assert!(
            error.starts_with(&format!("--figures {figures}: the folder has map-slots-1-fifo.svg, ")),
            "{error}"
        );
    }

    #[test]
    fn scale_of_a_trace_is_in_csv_and_json() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(path("t.tsv"), "job0\t0\t0\t1000\t0\t0\njob1\t5\t5\t1000\t0\t0\n").expect("a disk");
        let (trace, csv) = (path("t.tsv"), path("jobs.csv"));
        let words = ["sim", "--workload", &trace, "--nodes", "6", "--csv", &csv];
        compare(&Cli::try_parse_from(words).expect("known flags").args).expect("it runs");
        let text = std::fs::read_to_string(&csv).expect("it was written");
        let first = text.lines().next().expect("a comment");
        assert!(first.ends_with("; bytes times 0.01 (the cluster of the trace had 600 nodes, guessed from its name: --trace-nodes sets it)"), "{first}");
        let request = Request { workload: trace, nodes: Some(6), ..Request::default() };
        let case = sim::catalog::open(&request).unwrap_or_else(|error| panic!("{error}"));
        let details = sim_json::Details::of(&case, &request, (case.size(1), false), &(1..2), &[]);
        let json = serde_json::to_value(details.expect("no files")).expect("plain data");
        assert_eq!((&json["scale"], &json["trace_nodes"]), (&0.01.into(), &600.into()));
        assert_eq!(json["trace_nodes_guessed"], true);
    }

    #[test]
    fn numbers_that_are_not_valid_are_named_with_the_valid_ones() {
        let error = |flags: &[&str]| parse(flags).expect_err("not a number of seeds").to_string();
        let refused = error(&["--seeds", "-1"]);
        assert!(
            refused.contains("invalid value '-1' for '--seeds <SEEDS>': -1 is not in 1..=1000"),
            "{refused}"
        );
        let refused = error(&["--first-seed", "-7"]);
        assert!(refused.contains("'--first-seed <SEED>': -7 is not in 1.."), "{refused}");
        let refused = error(&["--trace-nodes", "-3"]);
        assert!(refused.contains("'--trace-nodes <NODES>': -3 is not in 0.."), "{refused}");
        assert_eq!(usage_error(&["--load", "-1"]), "--load -1 is not valid: it must be above 0");
        assert!(
            usage_error(&["--load", "1e9"])
                .starts_with("--load 1000000000 is not valid: it must be at most 1000")
        );
        assert_eq!(usage_error(&["--cluster", "no.toml"]), "give either --cluster or --nodes");
        for flag in ["--profiles", "--faults"] {
            assert_eq!(usage_error(&[flag, "no.toml"]), format!("{flag} no.toml: there is no such file"));
            assert_eq!(usage_error(&[flag, "."]), format!("{flag} .: this is a folder: give a file"));
        }
        let label = "--scheduler: the label before =fifo is empty: give it a name";
        assert!(usage_error(&["--scheduler", "=fifo"]).starts_with(label));
    }

    #[test]
    fn faults_with_a_time_are_listed() {
        let mut setup = Setup::even(2, PerPhase { map: 1, reduce: 1 }, "fifo");
        let text = "[[step]]\nat = \"35s\"\ndo = \"kill\"\nnode = \"node1\"\n\
            [[step]]\nat = \"1m\"\ndo = \"restart\"\nnode = \"node1\"\n\
            [[step]]\nwhen = \"job_1 has ended\"\ndo = \"kill\"\nnode = \"node1\"\n\
            [[fault]]\nat_s = 2.5\nwhat = \"slow\"\nnode = 1\nfactor = 2.0\n";
        let scenario = sim::scenario::parse(text).unwrap_or_else(|error| panic!("{error}"));
        (setup.steps, setup.faults) = (scenario.steps, scenario.faults);
        let listed = [("the fault at 2.5 s", Span::millis(2500)), ("kill at 35 s, line 1", Span::secs(35))];
        assert_eq!(timed_faults(&setup), listed.map(|(what, at)| (what.to_owned(), at)));
    }

    #[test]
    fn question_is_a_job_and_a_time_and_writes_no_files() {
        assert!(parse(&["--why", "job_1@5s", "--csv", "jobs.csv"]).is_err());
        for bad in ["job_1", "job_1@", "job_1@soon", "5s@job_1", "one@5s"] {
            let error = parse(&["--why", bad]).expect_err(bad).to_string();
            assert!(error.contains("such as job_3@120s"), "{error}");
        }
        let error = compare(&parse(&["--why", "job_9@5s"]).expect("known flags")).expect_err("no such job");
        assert!(
            format!("{error:#}").starts_with("--why job_9@5s: there is no job_9 at that time: "),
            "{error:#}"
        );
        compare(&parse(&["--why", "job_1.m0@5s", "--json"]).expect("known flags")).expect("it runs");
    }
}
