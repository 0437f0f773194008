//! `mrctl repro`: a paper's experiments, its figures beside ours.

use super::sim::write;
use crate::output;
use anyhow::Result;
use clap::ValueEnum;
use sim::{catalog, repro::Paper};
use std::{path::PathBuf, process::ExitCode};

/// Repeat a paper's experiments, and print its figures beside ours
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl repro hsrtf\n  \
    mrctl repro fcs --seeds 3 --report fcs.html")]
pub(crate) struct Args {
    /// Which
    #[arg(value_enum)]
    paper: Name,
    /// At what size
    #[arg(long, value_enum, default_value_t = Scale::Paper)]
    scale: Scale,
    /// How many seeds: workloads, placements and arrivals differ
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// A file of profiles (TOML), over the built-in ones
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the tables as Markdown to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Name {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// The paper's own cluster and jobs, simulated
    Paper,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let paper = match args.paper {
        Name::Hsrtf => Paper::Hsrtf,
        Name::Chronos => Paper::Chronos,
        Name::Fcs => Paper::Fcs,
        Name::Coshh => Paper::Coshh,
    };
    let Scale::Paper = args.scale;
    let profiles = catalog::profiles(args.profiles.as_deref())?;
    let reproduction = paper.reproduce(&profiles, args.seeds)?;
    output::line(reproduction.text())?;
    if let Some(path) = &args.report {
        write(path, &reproduction.html())?;
    }
    if let Some(path) = &args.markdown {
        write(path, &reproduction.markdown())?;
    }
    Ok(ExitCode::SUCCESS)
}
