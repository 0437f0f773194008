//! `mrctl lab compare`: compares policies on several workloads, with paired statistics.

use super::{
    interrupt,
    outputs::{Outputs, create_figures_folder, create_folder, svg_names, write, write_figures},
    provenance::Provenance,
    sim::{FAILURE_TIME_MIN, parse_policies, policy_files},
};
use crate::output::{self, SimulationProgress, Usage, positive_time, whole_number};
use anyhow::{Context, Result, bail};
use daemon::Period;
use serde::Serialize;
use serde_json::{Value, json};
use sim::{
    Outcome,
    campaign::{Campaign, CampaignError, CampaignWorkload, Leaderboard},
    catalog::{CaseSize, REAL_WORKLOADS, Request},
    experiment::{COMBINATIONS_MAX, Combination, combinations, split_outside_brackets},
    report,
    trial::Trial,
};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Compare policies on several workloads, with paired statistics
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl lab compare --policies fifo,las,fcs --workloads hsrtf,gridmix --seeds 10\n  \
    mrctl lab compare --policies fair,fcs --report out.html \\\n    \
      --workloads 'trace.tsv[nodes=20;load=0.8]'\n  \
    mrctl lab compare --policies 'fcs[skips=20|60;slack_max=3|5]' --dir results \\\n    \
      --workloads fcs-map-heavy --figures paper\n  \
    mrctl lab compare --policies fair,fcs --workloads gridmix --dir out --part 2/4\n  \
    mrctl lab compare --policies fair,coda --workloads laptop-fcs --real\n\n\
    Options of a workload, in brackets: nodes, map-slots, reduce-slots, cluster,\n\
    jobs, gap, load, scale, trace-nodes, profiles, faults, mtbf, mttr; they are\n\
    those of `mrctl sim`, gap in seconds. Values separated by | give every\n\
    combination. docs/research/simulator.md has the columns and their units.\n\
    `mrctl compare` is the same command.")]
pub(crate) struct Args {
    /// Policies, separated by commas, with parameters in brackets; LABEL=POLICY gives one a label.
    /// Values separated by | give every combination, at most 1,000
    #[arg(long, value_name = "LIST")]
    policies: String,
    /// Workloads by name or file, separated by commas, with options in brackets
    #[arg(long, value_name = "LIST")]
    workloads: String,
    /// The policy that the others are compared with [default: the first]
    #[arg(long, value_name = "POLICY")]
    reference: Option<String>,
    /// Number of seeds
    #[arg(long, allow_negative_numbers = true, default_value_t = 10, value_parser = whole_number(1..=1000))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, default_value_t = 1, value_parser = whole_number(1..1 << 48))]
    first_seed: u64,
    /// Run the jobs on a real cluster of eight nodes on this machine, one run after the other; for
    /// the workloads laptop-*
    #[arg(long, conflicts_with_all = ["part", "time_limit"])]
    real: bool,
    /// Folder for the results of runs; runs that are there already are not repeated
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Read the results of another commit of this program from --dir, and do no runs
    #[arg(long, value_name = "COMMIT", requires = "dir", conflicts_with = "part")]
    runs_of: Option<String>,
    /// Do only part I of N of the runs; other processes do the others in the same folder
    #[arg(long, value_name = "I/N", requires = "dir", value_parser = parse_part)]
    part: Option<(usize, usize)>,
    /// Real time after which a run is stopped; its active jobs count as unfinished
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = positive_time)]
    time_limit: Period,
    /// Write the scores (CSV) to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with charts (HTML) to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write each chart to a file in this folder (SVG), for a column of a paper
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses `I/N` to the index from 0 and the number of parts.
fn parse_part(text: &str) -> Result<(usize, usize), String> {
    let numbers = |(at, of): (&str, &str)| Some((at.parse::<usize>().ok()?, of.parse::<usize>().ok()?));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let are_numbers = text.split_once('/').is_some_and(|(at, of)| is_number(at) && is_number(of));
    match text.split_once('/').and_then(numbers) {
        None if are_numbers => Err("the numbers are too large: give I/N with I from 1 to N".into()),
        Some((at, of)) if 1 <= at && at <= of => Ok((at - 1, of)),
        _ => Err("it must be I/N with I from 1 to N, such as 2/4".into()),
    }
}

/// Says how an interrupted campaign continues.
fn explain_interruption(error: CampaignError, dir: Option<&Path>, command: &str) -> anyhow::Error {
    let CampaignError::Interrupted { done, of } = error else { return error.into() };
    anyhow::anyhow!(match dir {
        Some(dir) => format!(
            "interrupted: {done} of {of} runs are stored in {}; the same command does the others: {command}",
            dir.display()
        ),
        None =>
            format!("interrupted: {done} of {of} runs were done and none is stored: --dir DIR stores them"),
    })
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    check_part(args)?;
    if let Some(dir) = args.dir.as_ref().filter(|dir| args.runs_of.is_some() && !dir.is_dir()) {
        bail!(Usage(format!("--dir {}: there is no such folder, so it has no results", dir.display())));
    }
    let variants = parse_policies("--policies", &args.policies)?;
    let policies: Vec<&str> = variants.iter().map(|variant| variant.label.as_str()).collect();
    let (workloads, files) = open_workloads(&args.workloads, args.seeds)?;
    let sizes: Vec<WorkloadSize<'_>> =
        workloads.iter().map(|workload| WorkloadSize::of(workload, args.first_seed)).collect();
    let labels: Vec<&str> = workloads.iter().map(|workload| workload.label.as_str()).collect();
    let mut seen = BTreeSet::new();
    if let Some(twice) = labels.iter().find(|label| !seen.insert(**label)) {
        bail!(Usage(format!("--workloads: {twice} is given twice: remove one")));
    }
    if args.real {
        check_real(&labels)?;
    }
    let reference = args.reference.as_deref().unwrap_or(policies[0]);
    if !policies.contains(&reference) {
        bail!(Usage(format!("--reference {reference} is not among the policies: {}", policies.join(", "))));
    }
    let files: Vec<PathBuf> = files.into_iter().chain(policy_files(&variants)).collect();
    check_outputs(args, &files, &figure_names(&labels))?;
    let mut provenance = Provenance::of_this_process().with_files(files.iter().map(PathBuf::as_path))?;
    let scales = sizes.iter().filter_map(|size| Some(format!("{}: {}", size.label, size.size.scale?)));
    provenance.scales.extend(scales);
    let made_by = provenance.line();
    // Hashing the executable takes a while, and only stored results need it.
    let own_code = if args.dir.is_some() { provenance.code()? } else { provenance.commit.to_owned() };
    let code_of_runs = args.runs_of.as_deref().unwrap_or(&own_code);
    let interrupted = Arc::new(AtomicBool::new(false));
    let stop = interrupted.clone();
    interrupt::end_at_second_signal("stopping the runs in progress", move || {
        stop.store(true, Ordering::Relaxed);
    });
    let runs = SimulationProgress::new();
    let campaign = Campaign {
        workloads: &workloads,
        variants: &variants,
        seeds: args.first_seed..args.first_seed + args.seeds,
        folder: args.dir.as_deref(),
        real_cluster: args.real.then_some(&run_for_real),
        part: args.part.unwrap_or((0, 1)),
        time_limit: args.time_limit.0,
        progress: &|run| runs.report(run),
        interrupted: &interrupted,
        made_by: &made_by,
        commit: code_of_runs,
        only_stored: args.runs_of.is_some(),
    };
    let records = campaign.run(&|what, done, of| runs.count_any_run(what, done, of));
    drop(runs);
    let explain = |error| explain_interruption(error, args.dir.as_deref(), &provenance.command);
    let records = records.map_err(explain)?;
    let board = Leaderboard::of(&records, &labels, &policies, args.seeds, reference);
    if board.missing_runs > 0 {
        let dir = args.dir.as_deref().map_or_else(String::new, |dir| dir.display().to_string());
        let missing = output::count(board.missing_runs as u64, "run");
        output::line(format!(
            "{missing} of other parts not in {dir} yet: repeat without --part when they are done"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    for note in board.notes() {
        eprintln!("mrctl: {note}");
    }
    // Files first: standard output may be closed early.
    if let Some(path) = &args.csv {
        write(path, &csv(&made_by, &board, &sizes))?;
    }
    if let Some(path) = &args.report {
        write(path, &page(&made_by, &board, &sizes))?;
    }
    if let Some(folder) = &args.figures {
        write_figures(folder, &made_by, figures(&board, &labels))?;
    }
    if args.json {
        output::json(&json!({
            "command": provenance.command,
            "version": provenance.version,
            "commit": provenance.commit,
            "commit_of_runs": records.first().map_or(provenance.commit, |record| &record.commit),
            "files": provenance.files,
            "date": output::utc(output::now_ms()),
            "first_seed": args.first_seed,
            "seeds": args.seeds,
            "workloads": sizes,
            "leaderboard": board,
            "tables": archived_tables(&board),
            "runs": board.means_per_seed(),
        }))?;
    } else {
        print(&board, &sizes, args.seeds)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that all results can be written, and creates the folders that they are written to.
fn check_outputs(args: &Args, inputs: &[PathBuf], figures: &[String]) -> Result<()> {
    if let Some(dir) = &args.dir {
        create_folder("--dir", dir)?;
    }
    if let Some(folder) = &args.figures {
        create_figures_folder(folder, inputs, figures)?;
    }
    Outputs::new(inputs)
        .files(&[("--report", &args.report), ("--csv", &args.csv)])
        .in_folder("--figures", args.figures.as_deref(), svg_names(figures))
        .own_folder("--dir", args.dir.as_deref())
        .check()
}

/// Refuses results with `--part`: a part has only some of the runs that they are computed from.
fn check_part(args: &Args) -> Result<()> {
    let results = [
        ("--csv", args.csv.is_some()),
        ("--report", args.report.is_some()),
        ("--figures", args.figures.is_some()),
        ("--json", args.json),
    ];
    match results.iter().find(|(_, given)| args.part.is_some() && *given) {
        Some((flag, _)) => bail!(Usage(format!(
            "{flag} is not possible with --part, which does only a part of the runs: omit it, and repeat the command without --part when all parts are done"
        ))),
        None => Ok(()),
    }
}

/// Checks that workloads can run on a real cluster.
fn check_real(workloads: &[&str]) -> Result<()> {
    match workloads.iter().find(|workload| !REAL_WORKLOADS.contains(workload)) {
        Some(other) => bail!(Usage(format!(
            "--real runs {} without options, and not {other}: without --real it is simulated",
            REAL_WORKLOADS.join(" and ")
        ))),
        None => Ok(()),
    }
}

/// Runs a trial on a real cluster, in a temporary folder below the current one.
fn run_for_real(trial: &Trial) -> Result<Outcome, String> {
    let run = || -> Result<Outcome> {
        let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
        Ok(runtime.block_on(lab::trial::run(trial, Path::new(".")))?.outcome)
    };
    // In a thread of its own, because this one is already in a runtime.
    let ran = std::thread::scope(|scope| scope.spawn(run).join());
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(|error| format!("{error:#}"))
}

/// The size of a workload in the first seed.
#[derive(Debug, Serialize)]
struct WorkloadSize<'a> {
    label: &'a str,
    #[serde(flatten)]
    size: CaseSize,
}

impl<'a> WorkloadSize<'a> {
    fn of(workload: &'a CampaignWorkload, first_seed: u64) -> Self {
        Self { label: &workload.label, size: workload.case.size(first_seed) }
    }
}

fn print(board: &Leaderboard, sizes: &[WorkloadSize<'_>], seeds: u64) -> Result<()> {
    for ((workload, table), size) in board.tables().into_iter().zip(sizes) {
        let (size, seeds) = (&size.size, output::count(seeds, "seed"));
        output::line(format!("{workload} on {size}, {seeds}\n{}", table.text()))?;
    }
    output::line(format!("mean completion divided by the best\n{}", board.summary().text()))
}

fn page(made_by: &str, board: &Leaderboard, sizes: &[WorkloadSize<'_>]) -> String {
    let notes = board.notes();
    let mut body = report::paragraphs(std::iter::once(made_by).chain(notes.iter().map(String::as_str)));
    let _ = write!(body, "<h2>{SUMMARY}</h2>{}", board.summary().html());
    let charts = board.charts(&report::svg::SCREEN);
    for (((workload, table), (_, chart)), size) in board.tables().into_iter().zip(charts).zip(sizes) {
        let (title, size) = (report::html::escape(&workload), size.size);
        let table = table.html();
        let _ = write!(body, "<h2>{title}</h2><p>{size}</p>{table}<h3>Slowdown of jobs</h3>{chart}");
    }
    report::page("Comparison of policies", &body)
}

/// Title of the table over all workloads.
const SUMMARY: &str = "Mean completion divided by the best";

/// Returns all tables as they are shown, so that the JSON is an archive that pages can cite.
fn archived_tables(board: &Leaderboard) -> Vec<serde_json::Value> {
    let workloads = board.tables().into_iter();
    let workloads = workloads.map(|(workload, table)| report::archive::table(&workload, &table));
    workloads.chain([report::archive::table(SUMMARY, &board.summary())]).collect()
}

/// Returns the names of the charts for a paper: of all workloads, then of each.
fn figure_names(workloads: &[&str]) -> Vec<String> {
    // The number distinguishes workloads whose names differ only in other characters.
    let one =
        |(at, workload): (usize, &&str)| format!("slowdown-{}-{}", at + 1, report::file_name_part(workload));
    std::iter::once("completion".to_owned()).chain(workloads.iter().enumerate().map(one)).collect()
}

/// Returns the names and contents of the charts for a paper.
fn figures(board: &Leaderboard, workloads: &[&str]) -> Vec<(String, String)> {
    let layout = &report::svg::COLUMN;
    let slowdowns = board.charts(layout).into_iter().map(|(_, chart)| chart);
    let charts = std::iter::once(board.completion_chart(layout)).chain(slowdowns);
    figure_names(workloads).into_iter().zip(charts).collect()
}

/// Returns the scores of all workloads as CSV, with the offered load of each in the first seed. The
/// first line is a comment that says how they were made.
fn csv(made_by: &str, board: &Leaderboard, sizes: &[WorkloadSize<'_>]) -> String {
    let mut rows: Vec<Value> = board.scores.iter().map(|score| json!(score)).collect();
    for row in &mut rows {
        let size = sizes.iter().find(|size| row["workload"] == size.label);
        let load = size.and_then(|size| size.size.offered_load);
        row["offered_load_map"] = json!(load.map(|load| load.map));
        row["offered_load_reduce"] = json!(load.map(|load| load.reduce));
    }
    super::sim_csv::table(made_by, &rows)
}

/// Opens workloads such as `hsrtf,trace.tsv[nodes=20;load=0.5|0.8]`, with every combination of the
/// values of their options. Also returns the files that they name.
fn open_workloads(list: &str, seeds: u64) -> Result<(Vec<CampaignWorkload>, Vec<PathBuf>)> {
    let usage = |why: String| anyhow::Error::new(Usage(format!("--workloads {list}: {why}")));
    let too_many = || usage(format!("more than {COMBINATIONS_MAX} combinations: give fewer values"));
    let parts = split_outside_brackets(list)
        .ok_or_else(|| usage("not a list such as hsrtf,trace.tsv[nodes=20;load=0.8]".into()))?;
    let mut wanted = Vec::new();
    for part in parts {
        let (name, options) = match part.strip_suffix(']').and_then(|part| part.rsplit_once('[')) {
            Some((name, options)) => (name, options),
            None => (part, ""),
        };
        for Combination { pairs, varied } in combinations(options).ok_or_else(too_many)? {
            let label = if varied.is_empty() { part.to_owned() } else { format!("{name}[{pairs}]") };
            wanted.push((label, parse_workload(name, &pairs).map_err(usage)?));
        }
    }
    if wanted.len() > COMBINATIONS_MAX {
        return Err(too_many());
    }
    let (mut workloads, mut files) = (Vec::new(), Vec::new());
    for (label, (request, failures_s)) in wanted {
        files.extend(request.files().map(Path::to_path_buf));
        let case = super::sim::open_case(&request, seeds, Some(&label))?;
        workloads.push(CampaignWorkload { label, case, failures_s });
    }
    Ok((workloads, files))
}

/// Parses the options of a workload. Also returns the mean seconds between failures, and until a
/// machine is back.
fn parse_workload(name: &str, options: &str) -> Result<(Request, Option<(f64, f64)>), String> {
    let mut keys = BTreeSet::new();
    let mut request = Request { workload: name.to_owned(), ..Request::default() };
    let (mut mtbf_s, mut mttr_s) = (None, None);
    for pair in options.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair} has no value"))?;
        if !keys.insert(key) {
            return Err(format!("{key} is given twice"));
        }
        match key {
            "mtbf" => mtbf_s = Some(failure_time_s(key, value)?),
            "mttr" => mttr_s = Some(failure_time_s(key, value)?),
            _ => set_option(&mut request, key, value)?,
        }
    }
    if mtbf_s.is_some() != mttr_s.is_some() {
        return Err("mtbf and mttr are given together".into());
    }
    if mtbf_s.is_some() && request.faults.is_some() {
        return Err("give either mtbf and mttr or faults".into());
    }
    Ok((request, mtbf_s.zip(mttr_s)))
}

/// Parses the mean time between failures, or until a machine is back, to seconds.
fn failure_time_s(key: &str, value: &str) -> Result<f64, String> {
    let time: Period = value.parse().map_err(|why| format!("{key}={value}: {why}"))?;
    if time.0 < FAILURE_TIME_MIN {
        return Err(format!("{key}={value}: the time must be at least 1s"));
    }
    Ok(time.0.as_secs_f64())
}

/// Sets one option of a workload.
fn set_option(request: &mut Request, key: &str, value: &str) -> Result<(), String> {
    fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<Option<T>, String> {
        // The whole numbers are not below 0.
        let wanted = match value.parse::<f64>() {
            Ok(number) if number > f64::from(u32::MAX) => "smaller",
            Ok(_) => "a whole number of at least 0",
            Err(_) => "a number",
        };
        value.parse().map(Some).map_err(|_| format!("{key}={value} is not valid: it must be {wanted}"))
    }
    match key {
        "nodes" => request.nodes = number(key, value)?,
        "map-slots" => request.map_slots = number(key, value)?,
        "reduce-slots" => request.reduce_slots = number(key, value)?,
        "jobs" => request.jobs = number(key, value)?,
        "trace-nodes" => request.trace_nodes = number(key, value)?,
        "gap" => request.gap_s = number(key, value)?,
        "load" => request.load = number(key, value)?,
        "scale" => request.scale = number(key, value)?,
        "cluster" => request.cluster = Some(value.into()),
        "profiles" => request.profiles = Some(value.into()),
        "faults" => request.faults = Some(value.into()),
        _ => return Err(format!("unknown option {key}; see `mrctl lab compare --help`")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn parts_are_numbered_from_one() {
        assert_eq!((parse_part("1/4"), parse_part("4/4")), (Ok((0, 4)), Ok((3, 4))));
        for bad in ["0/4", "5/4", "1", "a/b", "1/0", "-1/4"] {
            assert!(parse_part(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn results_are_refused_with_a_part_of_the_runs() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let check = |flags: &str| {
            let line = "compare --policies fifo --workloads gridmix --dir d --part 1/2";
            let words = line.split(' ').chain(flags.split_whitespace());
            check_part(&<Cli as clap::Parser>::parse_from(words).args).map_err(|error| error.to_string())
        };
        assert_eq!(check(""), Ok(()));
        for flag in ["--csv f", "--report f", "--figures f", "--json"] {
            let error = check(flag).expect_err(flag);
            assert!(error.starts_with(&format!("{} is not possible with", &flag.split(' ').next().unwrap())));
            assert!(error.ends_with("repeat the command without --part when all parts are done"), "{error}");
        }
    }

    /// Runs a script of `deploy/batch` with a program that prints its arguments in place of mrctl.
    fn batch(script: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = folder.path().join("mrctl");
        fs::write(&program, "#!/bin/sh\necho \"$@\"\n").expect("a working disk");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, executable).expect("our own file");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/batch/");
        let mut command = std::process::Command::new("bash");
        command.arg(format!("{path}{script}")).args(arguments).env("PROGRAMS", folder.path());
        for name in ["SLURM_ARRAY_TASK_ID", "OAR_ARRAY_INDEX", "OAR_ARRAYINDEX"] {
            command.env_remove(name);
        }
        let output = command.envs(variables.iter().copied()).output().expect("bash");
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    }

    #[test]
    fn batch_scripts_give_each_task_its_part() {
        let slurm = |id, max| {
            let variables = [
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_MIN", "1"),
                ("SLURM_ARRAY_TASK_MAX", max),
                ("SLURM_ARRAY_TASK_COUNT", "8"),
            ];
            batch("campaign.slurm", &["--dir", "a b"], &variables)
        };
        assert_eq!(slurm("3", "8"), (true, "lab compare --dir a b --part 3/8".into()));
        assert!(slurm("3", "9").1.contains("must be 1-N without gaps"));
        assert!(batch("campaign.slurm", &[], &[]).1.contains("submit it as a job array"));
        let oar = |arguments: &[&str]| batch("campaign.oar", arguments, &[("OAR_ARRAY_INDEX", "2")]);
        assert_eq!(oar(&["4", "--dir", "x"]), (true, "lab compare --dir x --part 2/4".into()));
        assert!(oar(&["--dir", "x"]).1.contains("the first argument must be the number of tasks"));
        assert!(batch("campaign.oar", &["4"], &[]).1.contains("submit it as an array job"));
    }

    #[test]
    fn only_the_workloads_of_one_machine_run_for_real() {
        assert!(check_real(&REAL_WORKLOADS).is_ok());
        for other in ["gridmix", "laptop-fcs[nodes=4]"] {
            let error = check_real(&["laptop-fcs", other]).unwrap_err().to_string();
            assert!(error.contains(&format!("not {other}:")), "{error}");
        }
    }

    #[test]
    fn workloads_have_options_and_bad_ones_are_named() {
        let open = |list: &str| open_workloads(list, 2).unwrap().0;
        let workloads = open("hsrtf,gridmix[nodes=7;jobs=3]");
        assert_eq!(
            workloads.iter().map(|one| one.label.as_str()).collect::<Vec<_>>(),
            ["hsrtf", "gridmix[nodes=7;jobs=3]"]
        );
        assert_eq!(workloads[1].case.setup.machines.len(), 7);
        assert_eq!(workloads[1].failures_s, None);
        let failing = &open("gridmix[jobs=3;mtbf=2h;mttr=10m]")[0];
        assert_eq!(failing.failures_s, Some((7200.0, 600.0)));
        let size = json!(WorkloadSize::of(failing, 1));
        assert_eq!((&size["label"], &size["jobs"]), (&json!(failing.label), &json!(3)));
        assert_eq!((&size["machines"], &size["map_slots"]), (&json!(20), &json!(160)));
        assert!(size["offered_load"]["map"].as_f64() > Some(0.0), "{size}");
        let cases = [
            ("gridmix[nodes=x]", "nodes=x is not valid: it must be a number"),
            ("gridmix[nodes=99999999999]", "nodes=99999999999 is not valid: it must be smaller"),
            ("gridmix[gap=1e999]", "--gap inf is not valid: it must be smaller"),
            ("gridmix[nodes=-3]", "nodes=-3 is not valid: it must be a whole number of at least 0"),
            ("gridmix[jobs=2.5]", "jobs=2.5 is not valid: it must be a whole number of at least 0"),
            ("gridmix[load=-1]", "--workloads gridmix[load=-1]: --load -1 is not valid: it must be above 0"),
            ("gridmix[nodes]", "nodes has no value"),
            ("gridmix[node=3]", "unknown option node"),
            ("gridmix[nodes=3;nodes=4]", "nodes is given twice"),
            ("gridmix[", "not a list"),
            ("", "not a list"),
            ("nothing", "--workloads nothing: unknown workload"),
            ("no.tsv", "--workloads no.tsv: no.tsv: there is no such file"),
            ("gridmix[cluster=no]", "--workloads gridmix[cluster=no]: --cluster no: there is no such file"),
            ("hsrtf[load=0.5]", "takes no --load"),
            ("gridmix[mtbf=2h]", "mtbf and mttr are given together"),
            ("gridmix[mtbf=0s;mttr=1m]", "mtbf=0s: the time must be at least 1s"),
            ("gridmix[mtbf=soon;mttr=1m]", "mtbf=soon: "),
            ("gridmix[mtbf=2h;mttr=1m;faults=f.toml]", "either mtbf and mttr or faults"),
            ("laptop-fcs[jobs=3]", "takes no --jobs"),
            ("gridmix[jobs=3|x]", "jobs=x is not valid: it must be a number"),
            ("laptop-hsrtf[profiles=p.toml]", "takes no --profiles"),
        ];
        for (list, wanted) in cases {
            let error = open_workloads(list, 2).err().expect(list).to_string();
            assert!(error.contains(wanted), "{list}: {error}");
        }
    }

    #[test]
    fn options_with_several_values_give_every_combination_and_files_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = folder.path().join("p.toml");
        fs::write(&profiles, "[sort]\nmap_mbps = 10.0\n").unwrap();
        let list = format!("gridmix[jobs=2|3;nodes=4;load=0.5|0.7],mixed[profiles={}]", profiles.display());
        let (workloads, files) = open_workloads(&list, 1).unwrap();
        let labels: Vec<&str> = workloads.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels.len(), 5);
        assert_eq!(
            labels[..3],
            [
                "gridmix[jobs=2;nodes=4;load=0.5]",
                "gridmix[jobs=2;nodes=4;load=0.7]",
                "gridmix[jobs=3;nodes=4;load=0.5]"
            ]
        );
        assert_eq!(workloads[2].case.size(1).jobs, 3);
        assert_eq!(files, [profiles]);
        let many = vec!["2"; 1001].join("|");
        let error = open_workloads(&format!("gridmix[jobs={many}]"), 1).err().unwrap().to_string();
        assert!(error.ends_with("more than 1000 combinations: give fewer values"), "{error}");
    }

    #[test]
    fn scores_in_csv_have_the_offered_load_of_their_workload() {
        let workloads = open_workloads("gridmix[jobs=3]", 1).unwrap().0;
        let variants = parse_policies("--policies", "fifo").unwrap();
        let campaign = Campaign {
            workloads: &workloads,
            variants: &variants,
            seeds: 1..2,
            folder: None,
            real_cluster: None,
            part: (0, 1),
            time_limit: std::time::Duration::from_mins(10),
            progress: &|_| {},
            interrupted: &AtomicBool::new(false),
            made_by: "a test",
            commit: "c",
            only_stored: false,
        };
        let records = campaign.run(&|_, _, _| {}).unwrap();
        let board = Leaderboard::of(&records, &["gridmix[jobs=3]"], &["fifo"], 1, "fifo");
        let sizes: Vec<WorkloadSize<'_>> =
            workloads.iter().map(|workload| WorkloadSize::of(workload, 1)).collect();
        let csv = csv("a test", &board, &sizes);
        let lines: Vec<&str> = csv.lines().collect();
        let at = lines[1].split(',').position(|name| name == "offered_load_map").expect("a column");
        let load = sizes[0].size.offered_load.expect("jobs arrive over time").map;
        assert_eq!(lines[2].split(',').nth(at), Some(load.to_string().as_str()), "{csv}");
    }
}
