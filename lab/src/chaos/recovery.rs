//! `mrctl chaos recovery`: compares job histories: how long lost work waited to run again, and
//! where it ran.

use anyhow::{Context, Result};
use sim::{
    experiment::{Comparison, Variant, makespan_s},
    report::{by_group, page},
    repro::recovery,
    workload::history,
};
use std::{path::PathBuf, process::ExitCode};
use view::output::{self, Usage};

/// Compare histories of clusters that lost nodes: recovery time, locality, completion time
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos recovery fifo=out/fifo 'chronos(fifo)=out/chronos-fifo'
  mrctl chaos recovery .fermata/data/jobtracker/history --report r.html")]
pub struct Args {
    /// Folders of histories, each with an optional label
    #[arg(value_name = "[NAME=]HISTORY", required = true)]
    histories: Vec<String>,
    /// Write a report (HTML) to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (mut variants, mut runs, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let mut slots = sim::PerPhase { map: 0, reduce: 0 };
    for text in &args.histories {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        if name.is_empty() || path.is_empty() {
            return Err(Usage(format!("{text:?} is not NAME=HISTORY")).into());
        }
        output::check_local(path.as_ref())?;
        let mut history = history::read(path.as_ref())?;
        slots = history.slots;
        for job in &history.workload.jobs {
            if !groups.contains(&job.group) {
                groups.push(job.group.clone());
            }
        }
        runs.push(vec![history.outcome(name)]);
        variants.push(Variant { label: name.to_owned(), ..Variant::plain("fifo") });
    }
    let comparison = Comparison { variants, seeds: vec![1], runs, alone: Vec::new(), groups, slots };
    let (recoveries, completions) = (recovery(&comparison), by_group(&comparison, makespan_s));
    output::line(recoveries.text())?;
    output::line(format!("completion, s\n{}", completions.text()))?;
    if let Some(path) = &args.report {
        let body = format!("{}<h2>Completion, s</h2>{}", recoveries.html(), completions.html());
        let page = page("Recovery of lost work", &body);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
