//! `mrctl replay`: what if a finished cluster history had been under another policy?

use super::sim::{variants, write};
use crate::output::{self, Usage};
use anyhow::Result;
use sim::{
    PerPhase,
    fault::{Fault, Harm},
    replay::{self, WhatIf, replay},
    report,
    workload::history,
};
use std::{path::PathBuf, process::ExitCode};

/// Replay a cluster's job history under other policies
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl replay .fermata/jobtracker/history --scheduler fair,fcs\n  \
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
    /// Nodes more or less, such as +4 or -1
    #[arg(long, value_name = "+N|-N", allow_hyphen_values = true, default_value_t = 0)]
    nodes: i32,
    /// Map slots of each node [default: as the history says; of older ones, as many as were ever used at a time]
    #[arg(long)]
    map_slots: Option<u32>,
    /// Reduce slots of each node
    #[arg(long)]
    reduce_slots: Option<u32>,
    /// A node of the history that dies so many seconds after the first job came
    #[arg(long, value_name = "NODE@SECONDS")]
    fail: Vec<String>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let named = args.ran.as_deref().map(variants).transpose()?;
    if named.as_ref().is_some_and(|named| named.len() > 1) {
        return Err(Usage("--ran names one policy: the one that ran".into()).into());
    }
    let others = variants(&args.scheduler)?;
    let history = history::read(&args.history)?;
    let ran = named.and_then(|mut named| named.pop()).or_else(|| replay::ran(&history));
    let Some(ran) = ran else {
        let why = "the history does not say which policy ran, as those of older versions: name it with --ran";
        return Err(Usage(why.into()).into());
    };
    let asked = args.map_slots.is_some() || args.reduce_slots.is_some();
    let slots = asked.then(|| PerPhase {
        map: args.map_slots.unwrap_or(history.slots.map).max(1),
        reduce: args.reduce_slots.unwrap_or(history.slots.reduce).max(1),
    });
    let faults =
        args.fail.iter().map(|fail| fault(fail, &history.trackers)).collect::<Result<Vec<Fault>>>()?;
    let what = WhatIf { ran, others, slots, nodes: args.nodes, faults };
    let replay = replay(&history, &what)?;
    output::line(format!("as it really ran, under {}\n{}", what.ran.label, replay.fidelity.table().text()))?;
    output::line(format!("the model is {} off, mean over jobs\n", report::percent(replay.fidelity.error())))?;
    let table = report::summary(&replay.comparison);
    output::line(table.text())?;
    output::line(replay.advice())?;
    if let Some(path) = &args.report {
        let body = format!(
            "<h2>As it really ran</h2>{}<h2>What if</h2>{}{}",
            replay.fidelity.table().html(),
            table.html(),
            report::charts(&replay.comparison)
        );
        write(path, &report::page(&format!("Replay of {}", args.history.display()), &body))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn fault(text: &str, trackers: &[String]) -> Result<Fault> {
    let bad = || Usage(format!("{text:?} is not NODE@SECONDS, with a node of {}", trackers.join(", ")));
    let (name, at) = text.split_once('@').ok_or_else(bad)?;
    let node = trackers.iter().position(|known| known == name).ok_or_else(bad)? as u32;
    let at_s = at.trim_end_matches('s').parse::<f64>().ok().filter(|at| at.is_finite() && *at >= 0.0);
    Ok(Fault { at_s: at_s.ok_or_else(bad)?, for_s: None, what: Harm::Node { node } })
}
