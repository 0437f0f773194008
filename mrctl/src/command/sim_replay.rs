//! `mrctl replay`: what if a finished cluster history had been under another policy?

use super::{
    sim::{can_write, variants, write},
    sim_json,
};
use crate::output::{self, Runs, Usage};
use anyhow::Result;
use serde_json::json;
use sim::{
    PerPhase,
    fault::{Fault, FaultKind},
    replay::{self, Replay, ReplayRequest, replay},
    report::{self, html::escape},
    workload::history::{self, History},
};
use std::{path::PathBuf, process::ExitCode};

/// Replay a cluster's job history under other policies
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl replay .fermata/data/jobtracker/history --scheduler fair,fcs\n  \
    mrctl replay history/ --ran fair --scheduler fcs --nodes +4\n  \
    mrctl replay history/ --scheduler 'chronos(fair)' --fail node3@120")]
pub(crate) struct Args {
    /// A history file, or a folder of them
    history: PathBuf,
    /// Policies to try, separated by commas
    #[arg(long, value_name = "LIST")]
    scheduler: String,
    /// The policy that really ran [default: the one that the history names]
    #[arg(long, value_name = "NAME")]
    ran: Option<String>,
    /// So many nodes, or more or fewer than there were: 8, +4, -1
    #[arg(long, value_name = "N|+N|-N", allow_hyphen_values = true)]
    nodes: Option<String>,
    /// Map slots of each node, instead of those that it had; of older histories, which do not say, those that it had
    /// [default: as the history says; of older ones, as many as were ever used at a time]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    map_slots: Option<u32>,
    /// Reduce slots of each node, likewise
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    reduce_slots: Option<u32>,
    /// A node of the history that dies so many seconds after the first job came
    #[arg(long, value_name = "NODE@SECONDS")]
    fail: Vec<String>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let named = args.ran.as_deref().map(variants).transpose()?;
    if named.as_ref().is_some_and(|named| named.len() > 1) {
        return Err(Usage("--ran names one policy: the one that ran".into()).into());
    }
    let others = variants(&args.scheduler)?;
    args.report.as_deref().map_or(Ok(()), can_write)?;
    let history = history::read(&args.history)?;
    let ran = match named.and_then(|mut named| named.pop()) {
        Some(named) => replay::as_it_ran(named),
        None => replay::ran(&history).map_err(|error| Usage(error.to_string()))?,
    };
    if !history.real.iter().any(|real| real.succeeded) {
        anyhow::bail!("{}: no job in it has succeeded: there is nothing to replay", args.history.display());
    }
    let slots = PerPhase { map: args.map_slots, reduce: args.reduce_slots };
    let faults =
        args.fail.iter().map(|fail| fault(fail, &history.trackers)).collect::<Result<Vec<Fault>>>()?;
    let nodes = args.nodes.as_deref().map_or(Ok(0), |text| more(text, history.trackers.len()))?;
    let what = ReplayRequest { ran, others, slots, nodes, faults };
    what.validate(&history).map_err(|error| Usage(format!("--fail: {error}")))?;
    let runs = Runs::new();
    let replay = replay(&history, &what, &|step| runs.done("", step))?;
    drop(runs);
    show(args, &history, &what, &replay)
}

/// The words around the tables, in the order in which they are read.
struct Paragraphs {
    skipped_jobs: Option<String>,
    heading: String,
    off: String,
    what_if: String,
    against: Option<String>,
    advice: String,
}

impl Paragraphs {
    fn of(history: &History, what: &ReplayRequest, replay: &Replay) -> Self {
        let count = history.trackers.len();
        let changes = what.changes(history);
        let what_if = changes.as_deref().unwrap_or("the cluster as it was");
        let advice = if history.is_truncated() {
            "no advice: what jobs that have not ended will still hold is not known".to_owned()
        } else {
            replay.advice()
        };
        Self {
            skipped_jobs: history::skipped_jobs(&history.skipped_jobs),
            heading: format!(
                "as it really ran, on {} under {}, and simulated",
                output::count(count as u64, "node"),
                what.ran.scheduler
            ),
            off: format!("the model is off by {}, mean over jobs", report::percent(replay.fidelity.error())),
            what_if: format!("what if, simulated: {what_if}"),
            against: changes.map(|_| replay.against_before()),
            advice,
        }
    }
}

fn show(args: &Args, history: &History, what: &ReplayRequest, replay: &Replay) -> Result<ExitCode> {
    let paragraphs_of = Paragraphs::of(history, what, replay);
    let table = report::summary(&replay.comparison);
    if args.json {
        output::json(&as_json(&paragraphs_of, replay))?;
    } else {
        if let Some(skipped_jobs) = &paragraphs_of.skipped_jobs {
            output::line(skipped_jobs)?;
        }
        output::line(format!(
            "{}\n{}{}\n",
            paragraphs_of.heading,
            replay.fidelity.table().text(),
            paragraphs_of.off
        ))?;
        output::line(format!("{}\n{}", paragraphs_of.what_if, table.text()))?;
        if let Some(against) = &paragraphs_of.against {
            output::line(against)?;
        }
        output::line(&paragraphs_of.advice)?;
    }
    if let Some(path) = &args.report {
        let paper_figures = [Some(&paragraphs_of.off), paragraphs_of.skipped_jobs.as_ref()];
        let concluded = [paragraphs_of.against.as_ref(), Some(&paragraphs_of.advice)];
        let body = format!(
            "<h2>{}</h2>{}{}<h2>{}</h2>{}{}{}",
            escape(&paragraphs_of.heading),
            replay.fidelity.table().html(),
            paragraphs(paper_figures),
            escape(&paragraphs_of.what_if),
            table.html(),
            paragraphs(concluded),
            report::charts(&replay.comparison)
        );
        write(path, &report::page(&format!("Replay of {}", args.history.display()), &body))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn paragraphs<const N: usize>(texts: [Option<&String>; N]) -> String {
    report::paragraphs(texts.into_iter().flatten().map(String::as_str))
}

fn as_json(paragraphs_of: &Paragraphs, replay: &Replay) -> serde_json::Value {
    let job = |(name, real, simulated): &(String, f64, f64)| json!({ "job": name, "real_s": real, "simulated_s": simulated });
    json!({
        "left_out": paragraphs_of.skipped_jobs,
        "jobs": replay.fidelity.jobs.iter().map(job).collect::<Vec<_>>(),
        "model_off": replay.fidelity.error(),
        "what_if": paragraphs_of.what_if,
        "policies": sim_json::policies(&replay.comparison),
        "as_it_was": sim_json::policies(&replay.before),
        "advice": paragraphs_of.advice,
    })
}

/// Nodes more than there were: `+4` and `-1` say so, `8` is how many there are to be. None would be no cluster.
fn more(text: &str, were: usize) -> Result<i32> {
    let bad = || Usage(format!("--nodes {text}: give a number (8), or a difference (+4, -1)"));
    let number: i32 = text.parse().map_err(|_| bad())?;
    let were = i32::try_from(were).unwrap_or(i32::MAX);
    let more = if text.starts_with(['+', '-']) { number } else { number.saturating_sub(were) };
    if were.saturating_add(more) < 1 {
        let were = output::count(were.unsigned_abs().into(), "node");
        return Err(Usage(format!("--nodes {text}: none would be left of {were}")).into());
    }
    Ok(more)
}

fn fault(text: &str, trackers: &[String]) -> Result<Fault> {
    let bad = || Usage(format!("{text:?} is not NODE@SECONDS, with a node of {}", trackers.join(", ")));
    let (name, at) = text.split_once('@').ok_or_else(bad)?;
    let node = trackers.iter().position(|known| known == name).ok_or_else(bad)? as u32;
    let at_s = at.trim_end_matches('s').parse::<f64>().ok().filter(|at| at.is_finite() && *at >= 0.0);
    Ok(Fault { at_s: at_s.ok_or_else(bad)?, for_s: None, what: FaultKind::Node { node } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_so_many_or_so_many_more() {
        assert_eq!(more("+4", 3).expect("seven"), 4);
        assert_eq!(more("4", 3).expect("four"), 1);
        assert_eq!(more("-1", 3).expect("two"), -1);
        for bad in ["-3", "0", "-9", "some"] {
            assert!(more(bad, 3).is_err(), "{bad}");
        }
    }
}
