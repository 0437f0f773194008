//! `mrctl replay`: simulates the jobs of a history under other policies.

use super::{
    interrupt,
    outputs::{NewHistories, Outputs, write},
    provenance::Provenance,
    sim::{parse_policies, policy_files},
    sim_json,
    why::{SimulatedWhy, print_simulated},
};
use crate::output::{self, SimulationProgress, Usage, positive_time};
use anyhow::{Context, Result};
use daemon::Period;
use serde_json::json;
use sim::{
    MACHINES_MAX, PerPhase, Recording, SLOTS_MAX,
    experiment::Step,
    fault::{Fault, FaultKind},
    replay::{self, Replay, ReplayRequest, replay},
    report::{self, html::escape},
    workload::history::{self, History},
};
use std::{num::IntErrorKind, path::PathBuf, process::ExitCode};

/// Replay the job history of a cluster under other policies
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl replay .fermata/data/jobtracker/history --scheduler fair,fcs\n  \
    mrctl replay history/ --ran fair --scheduler fcs --nodes +4\n  \
    mrctl replay history/ --scheduler 'chronos(fair)' --fail node3@120\n  \
    mrctl replay history/ --scheduler fcs --why job_3@2m")]
pub(crate) struct Args {
    /// A history file, or a folder of history files
    history: PathBuf,
    /// Policies to simulate, separated by commas
    #[arg(long, value_name = "LIST")]
    scheduler: String,
    /// The policy of the run in the history [default: the one that the history names]
    #[arg(long, value_name = "NAME")]
    ran: Option<String>,
    /// Number of nodes, or the difference to the history: 8, +4, -1
    #[arg(long, value_name = "N|+N|-N", allow_hyphen_values = true)]
    nodes: Option<String>,
    /// Map slots of each node [default: as in the history; for older histories without slots, the
    /// largest number in use at a time]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    map_slots: Option<u32>,
    /// Reduce slots of each node [default: as for map slots]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    reduce_slots: Option<u32>,
    /// Kill a node of the history, this many seconds after the first job was submitted
    #[arg(long, value_name = "NODE@SECONDS")]
    fail: Vec<String>,
    /// Real time after which a run is stopped; its active jobs count as unfinished
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = positive_time)]
    time_limit: Period,
    /// Write a report with charts (HTML) to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the histories of the simulated jobs to this new folder; one policy
    #[arg(long = "history", value_name = "FOLDER")]
    history_folder: Option<PathBuf>,
    /// Run until this time after the first submission, and print what `mrctl why` would print then;
    /// one policy. Jobs are numbered in the order of their submission
    #[arg(long, value_name = "JOB@TIME", conflicts_with_all = ["report", "history_folder"])]
    why: Option<SimulatedWhy>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let named = args.ran.as_deref().map(|ran| parse_policies("--ran", ran)).transpose()?;
    if named.as_ref().is_some_and(|named| named.len() > 1) {
        return Err(Usage("--ran takes one policy: the one of the run in the history".into()).into());
    }
    let others = parse_policies("--scheduler", &args.scheduler)?;
    if others.len() > 1 && (args.history_folder.is_some() || args.why.is_some()) {
        let why = "--history and --why are for one run: give one policy with --scheduler";
        return Err(Usage(why.into()).into());
    }
    let mut inputs = vec![args.history.clone()];
    inputs.extend(policy_files(named.iter().flatten().chain(&others)));
    Outputs::new(&inputs)
        .files(&[("--report", &args.report)])
        .own_folder("--history", args.history_folder.as_deref())
        .check()?;
    output::check_local(&args.history)?;
    interrupt::end_at_first_signal();
    let history = history::read(&args.history)?;
    let ran = match named.and_then(|mut named| named.pop()) {
        Some(named) => replay::named(&history, named).map_err(|error| Usage(format!("--ran {error}")))?,
        None => replay::ran(&history).map_err(|error| Usage(error.to_string()))?,
    };
    if !history.real.iter().any(|real| real.succeeded) {
        anyhow::bail!(
            "{}: no job in it has succeeded, so there is nothing to replay",
            args.history.display()
        );
    }
    let slots = PerPhase { map: args.map_slots, reduce: args.reduce_slots };
    let faults =
        args.fail.iter().map(|fail| parse_fault(fail, &history.trackers)).collect::<Result<Vec<Fault>>>()?;
    let nodes =
        args.nodes.as_deref().map_or(Ok(0), |text| parse_node_difference(text, history.trackers.len()))?;
    let time_limit = args.time_limit.0;
    let what = ReplayRequest { ran, others, slots, nodes, faults, time_limit };
    what.validate(&history).map_err(|error| Usage(format!("--fail: {error}")))?;
    if let Some(why) = args.why {
        return explain(args, &history, &what, why);
    }
    let histories = args.history_folder.as_deref().map(NewHistories::create).transpose()?;
    let provenance = Provenance::of_this_process().with_files(inputs.iter().map(PathBuf::as_path))?;
    let made_by = provenance.line();
    // Policy 0 is the one of the history.
    let recording =
        histories.as_ref().map(|new| Recording { folder: new.unfinished(), made_by: &made_by, variant: 1 });
    let runs = SimulationProgress::new();
    let watch = |step: Step<'_>| runs.count_run("", step);
    let replay = replay(&history, &what, &watch, &|run| runs.report(run), recording)?;
    histories.map_or(Ok(()), NewHistories::publish)?;
    drop(runs);
    for (fail, fault) in args.fail.iter().zip(&what.faults) {
        if let Some(warning) = replay.comparison.never_happened(&format!("--fail {fail}"), fault.at()) {
            eprintln!("mrctl: {warning}");
        }
    }
    show(args, &provenance, &Paragraphs::of(&history, &what, &replay), &replay)
}

/// Prints why a job waits at a time of the replay.
fn explain(args: &Args, history: &History, what: &ReplayRequest, why: SimulatedWhy) -> Result<ExitCode> {
    let SimulatedWhy { of, at } = why;
    if let Some(guessed) = history.guessed_cluster() {
        eprintln!("mrctl: {guessed}");
    }
    let runs = SimulationProgress::new();
    let explanation = replay::explain(history, what, of, at, &|run| runs.report(run));
    let explanation = explanation.with_context(|| format!("--why {why}"))?;
    drop(runs);
    // Jobs that are not replayed have no number.
    let replayed = history.real.iter().filter(|real| real.succeeded).nth(of.job().0 as usize - 1);
    if let Some(real) = replayed.filter(|real| real.id != of.job() && !args.json) {
        output::line(format!("{} of the replay is {} ({}) of the history", of.job(), real.id, real.name))?;
    }
    print_simulated(explanation, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The texts around the tables, in the order of the output.
struct Paragraphs {
    skipped_jobs: Option<String>,
    /// What is guessed about the cluster of the history.
    guessed_cluster: Option<String>,
    history_is_simulated: bool,
    heading: String,
    /// The duration of each job in the history and in the first simulation.
    fidelity: report::Table,
    model_error: String,
    what_if: String,
    /// Why there are no slowdowns.
    slowdown_note: Option<&'static str>,
    comparison_with_real_cluster: Option<String>,
    advice: String,
}

impl Paragraphs {
    fn of(history: &History, what: &ReplayRequest, replay: &Replay) -> Self {
        let count = history.trackers.len();
        let changes = what.changes(history);
        let what_if = changes.as_deref().unwrap_or("the cluster as it was");
        let load = replay.offered_load.map_or_else(String::new, |load| format!(", {load}"));
        let mut fidelity = replay.fidelity.table();
        if history.is_simulated {
            fidelity.head[1..3].clone_from_slice(&["history s".to_owned(), "replay s".to_owned()]);
        }
        let advice = if history.is_truncated() {
            "no advice: the history has jobs that have not ended".to_owned()
        } else {
            replay.advice(history)
        };
        Self {
            skipped_jobs: history::skipped_jobs(&history.skipped_jobs),
            guessed_cluster: history.guessed_cluster(),
            history_is_simulated: history.is_simulated,
            heading: format!(
                "{}, on {} under {}, compared with {}",
                history.run_name(),
                output::count(count as u64, "node"),
                what.ran.scheduler,
                if history.is_simulated { "its replay" } else { "its simulation" }
            ),
            fidelity,
            model_error: format!(
                "mean error of the model over all jobs: {}",
                report::percent(replay.fidelity.error())
            ),
            what_if: format!("what if, simulated: {what_if}{load}"),
            slowdown_note: report::slowdown_note(&replay.comparison),
            comparison_with_real_cluster: changes.map(|_| replay.against_before()),
            advice,
        }
    }
}

fn show(args: &Args, provenance: &Provenance, texts: &Paragraphs, replay: &Replay) -> Result<ExitCode> {
    let table = report::summary(&replay.comparison);
    if args.json {
        output::json(&as_json(provenance, texts, replay))?;
    } else {
        for note in texts.skipped_jobs.iter().chain(&texts.guessed_cluster) {
            output::line(note)?;
        }
        output::line(format!("{}\n{}{}\n", texts.heading, texts.fidelity.text(), texts.model_error))?;
        output::line(format!("{}\n{}", texts.what_if, table.text()))?;
        texts.slowdown_note.map_or(Ok(()), output::line)?;
        if let Some(against) = &texts.comparison_with_real_cluster {
            output::line(against)?;
        }
        output::line(&texts.advice)?;
    }
    if let Some(path) = &args.report {
        let made_by = provenance.line();
        let (skipped_jobs, guessed) = (texts.skipped_jobs.as_deref(), texts.guessed_cluster.as_deref());
        let notes = [Some(&*texts.model_error), skipped_jobs, guessed, Some(&*made_by)];
        let compared = texts.comparison_with_real_cluster.as_deref();
        let concluded = [texts.slowdown_note, compared, Some(&*texts.advice)];
        let body = format!(
            "<h2>{}</h2>{}{}<h2>{}</h2>{}{}{}",
            escape(&texts.heading),
            texts.fidelity.html(),
            paragraphs(notes),
            escape(&texts.what_if),
            table.html(),
            paragraphs(concluded),
            report::charts(&replay.comparison)
        );
        write(path, &report::page(&format!("Replay of {}", args.history.display()), &body))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn paragraphs<const COUNT: usize>(texts: [Option<&str>; COUNT]) -> String {
    report::paragraphs(texts.into_iter().flatten())
}

fn as_json(provenance: &Provenance, texts: &Paragraphs, replay: &Replay) -> serde_json::Value {
    let job = |(name, real, simulated): &(String, f64, f64)| json!({ "job": name, "real_s": real, "simulated_s": simulated });
    json!({
        "command": provenance.command,
        "version": provenance.version,
        "commit": provenance.commit,
        "files": provenance.files,
        "skipped_jobs": texts.skipped_jobs,
        "guessed_cluster": texts.guessed_cluster,
        "history_is_simulated": texts.history_is_simulated,
        "jobs": replay.fidelity.jobs.iter().map(job).collect::<Vec<_>>(),
        "model_off": replay.fidelity.error(),
        "what_if": texts.what_if,
        "offered_load": replay.offered_load,
        "policies": sim_json::policies(&replay.comparison),
        "as_it_was": sim_json::policies(&replay.before),
        "advice": texts.advice,
    })
}

/// Parses the value of `--nodes`, where `+4` and `-1` are differences and `8` is a new number of
/// nodes. Returns the difference from `were`, the number of nodes in the history. Refuses a result
/// of zero nodes, or of too many.
fn parse_node_difference(text: &str, were: usize) -> Result<i32> {
    let bad = || Usage(format!("--nodes {text}: give a number (8), or a difference (+4, -1)"));
    let number: i64 = match text.parse::<i64>().map_err(|error| *error.kind()) {
        Err(IntErrorKind::PosOverflow) => i64::MAX,
        Err(IntErrorKind::NegOverflow) => i64::MIN,
        number => number.map_err(|_| bad())?,
    };
    let number = number.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    let were = i32::try_from(were).unwrap_or(i32::MAX);
    let more = if text.starts_with(['+', '-']) { number } else { number.saturating_sub(were) };
    if were.saturating_add(more) < 1 {
        let were = output::count(were.unsigned_abs().into(), "node");
        return Err(Usage(format!("--nodes {text}: no node would be left of {were}")).into());
    }
    let nodes = were.saturating_add(more).unsigned_abs();
    if nodes > MACHINES_MAX {
        return Err(Usage(format!("--nodes {text}: at most {MACHINES_MAX} nodes can be simulated")).into());
    }
    Ok(more)
}

/// How many nodes of a history an error names.
const NODES_SHOWN_MAX: usize = 10;

fn parse_fault(text: &str, trackers: &[String]) -> Result<Fault> {
    let bad = |why: String| Usage(format!("--fail {text}: {why}"));
    let (name, at) =
        text.split_once('@').ok_or_else(|| bad("give NODE@SECONDS, such as node3@120".into()))?;
    let node = trackers.iter().position(|known| known == name).ok_or_else(|| {
        let known = trackers.iter().take(NODES_SHOWN_MAX).map(String::as_str);
        let more = if trackers.len() > NODES_SHOWN_MAX { ", ..." } else { "" };
        bad(format!(
            "the history has no node {name}: its nodes are {}{more}",
            known.collect::<Vec<_>>().join(", ")
        ))
    })?;
    let at_s = at.trim_end_matches('s').parse::<f64>().ok().filter(|at| *at >= 0.0);
    let at_s = at_s.ok_or_else(|| bad("the time must be a number of seconds, not below 0".into()))?;
    if at_s.is_infinite() {
        return Err(bad("the time is too large".into()).into());
    }
    Ok(Fault { at_s, for_s: None, what: FaultKind::Node { node: node as u32 } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_failure_of_a_node_is_named_with_its_flag_and_reason() {
        let nodes: Vec<String> = (1..=12).map(|number| format!("n{number}")).collect();
        assert_eq!(parse_fault("n2@5s", &nodes).expect("a fault").what, FaultKind::Node { node: 1 });
        for (text, why) in [
            ("n2", "give NODE@SECONDS, such as node3@120"),
            ("x@5", "the history has no node x: its nodes are n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, ..."),
            ("n2@-1", "the time must be a number of seconds, not below 0"),
            ("n2@nan", "the time must be a number of seconds, not below 0"),
            ("n2@1e400", "the time is too large"),
        ] {
            let error = parse_fault(text, &nodes).expect_err(text).to_string();
            assert_eq!(error, format!("--fail {text}: {why}"));
        }
    }

    #[test]
    fn nodes_flag_is_a_number_or_a_difference() {
        assert_eq!(parse_node_difference("+4", 3).expect("seven"), 4);
        assert_eq!(parse_node_difference("4", 3).expect("four"), 1);
        assert_eq!(parse_node_difference("-1", 3).expect("two"), -1);
        for bad in ["-3", "0", "-9", "some", "100001", "99999999", "+99998", "+2147483647"] {
            assert!(parse_node_difference(bad, 3).is_err(), "{bad}");
        }
        for (bad, why) in [
            ("99999999999", ": at most 100000 nodes can be simulated"),
            ("+99999999999999999999999", ": at most 100000 nodes can be simulated"),
            ("-99999999999999999999999", ": no node would be left of 3 nodes"),
            ("some", ": give a number (8), or a difference (+4, -1)"),
        ] {
            let error = parse_node_difference(bad, 3).expect_err(bad).to_string();
            assert_eq!(error, format!("--nodes {bad}{why}"));
        }
    }
}
