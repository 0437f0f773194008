//! `mrctl replay`: what if a finished cluster history had been under another policy?

use super::sim::{variants, write};
use crate::output::{self, Usage};
use anyhow::{Result, anyhow};
use sim::{
    PerPhase,
    fault::{Fault, Harm},
    replay::{WhatIf, replay},
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
    /// The policy that really ran
    #[arg(long, value_name = "NAME", default_value = "fifo")]
    ran: String,
    /// Nodes more or less, such as +4 or -1
    #[arg(long, value_name = "+N|-N", allow_hyphen_values = true, default_value_t = 0)]
    nodes: i32,
    /// Map slots of each node [default: as many as were ever used at a time]
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
    let mut ran = variants(&args.ran)?;
    if ran.len() > 1 {
        return Err(Usage("--ran names one policy: the one that ran".into()).into());
    }
    let others = variants(&args.scheduler)?;
    let history = history::read(&args.history)?;
    let mut slots = history.slots;
    slots.map = args.map_slots.unwrap_or(slots.map);
    slots.reduce = args.reduce_slots.unwrap_or(slots.reduce);
    let faults =
        args.fail.iter().map(|fail| fault(fail, &history.trackers)).collect::<Result<Vec<Fault>>>()?;
    let Some(ran) = ran.pop() else { return Err(anyhow!("no policy named")) };
    let what = WhatIf {
        ran,
        others,
        slots: Some(PerPhase { map: slots.map.max(1), reduce: slots.reduce.max(1) }),
        nodes: args.nodes,
        faults,
    };
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
