//! `mrctl repro`: repeats the experiments of a paper and compares the results with its figures,
//! simulated at the size of the paper or on a real cluster on this machine.

use super::sim::{can_write, write};
use crate::output::{self, SimulationProgress, Usage};
use anyhow::Result;
use clap::ValueEnum;
use lab::trial;
use sim::{
    catalog,
    experiment::Step,
    repro::{Lab, Paper, Reproduction, laptop::Laptop},
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// Repeat the experiments of a paper and compare the results
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl repro hsrtf\n  \
    mrctl repro fcs --seeds 3 --report fcs.html\n  \
    mrctl repro coshh --seeds 3 --json\n  \
    mrctl repro chronos --scale laptop --report chronos.html")]
pub(crate) struct Args {
    /// Paper
    #[arg(value_enum)]
    paper: PaperName,
    /// Size of the experiments
    #[arg(long, value_enum, default_value_t = Scale::Paper)]
    scale: Scale,
    /// Number of seeds, which vary workload, placement and arrivals (--scale paper) [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// File of profiles (TOML); they replace built-in ones (--scale paper, not coshh)
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Folder for the data of the real cluster (--scale laptop) [default: the current folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write a report with charts (HTML) to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the tables as Markdown to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaperName {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// The cluster and jobs of the paper, simulated
    Paper,
    /// A real cluster of eight nodes on this machine, with jobs that take minutes
    Laptop,
}

impl Args {
    /// Refuses flags that would have no effect.
    fn check(&self) -> Result<(), Usage> {
        let no_use = |what: &str, why: &str| Err(Usage(format!("{what} has no effect {why}: omit it")));
        match self.scale {
            Scale::Laptop if self.seeds.is_some() => {
                no_use("--seeds", "with --scale laptop, where each policy runs once on a real cluster")
            }
            Scale::Laptop if self.profiles.is_some() => {
                no_use("--profiles", "with --scale laptop, where tasks take the planned time")
            }
            Scale::Paper if self.dir.is_some() => {
                no_use("--dir", "with --scale paper, which is a simulation and stores no data")
            }
            Scale::Paper if self.profiles.is_some() && matches!(self.paper, PaperName::Coshh) => {
                no_use("--profiles", "for coshh, whose times are those of table 4 of the paper")
            }
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    let paper = match args.paper {
        PaperName::Hsrtf => Paper::Hsrtf,
        PaperName::Chronos => Paper::Chronos,
        PaperName::Fcs => Paper::Fcs,
        PaperName::Coshh => Paper::Coshh,
    };
    args.check()?;
    for path in args.report.iter().chain(&args.markdown) {
        can_write(path)?;
    }
    let reproduction = match args.scale {
        Scale::Paper => {
            let (profiles, seeds) = (catalog::profiles(args.profiles.as_deref())?, args.seeds.unwrap_or(5));
            let runs = SimulationProgress::new();
            let watch = |title: &str, step: Step<'_>| runs.count_run(title, step);
            paper.reproduce(&Lab { profiles: &profiles, seeds, watch: &watch })?
        }
        Scale::Laptop => {
            let dir = args.dir.as_deref().unwrap_or_else(|| Path::new("."));
            on_this_machine(paper, dir).await?
        }
    };
    if args.json {
        output::json(&reproduction.json())?;
    } else {
        output::line(reproduction.text())?;
    }
    if let Some(path) = &args.report {
        write(path, &reproduction.html())?;
    }
    if let Some(path) = &args.markdown {
        write(path, &reproduction.markdown())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn on_this_machine(paper: Paper, dir: &Path) -> Result<Reproduction> {
    let Some(laptop) = Laptop::of(paper) else {
        let name = paper.name();
        return Err(Usage(format!("{name} needs machines of different speeds: try --scale paper")).into());
    };
    let mut outcomes = Vec::new();
    for trial in laptop.trials() {
        let began = Instant::now();
        let ran = trial::run(&trial, dir).await?;
        eprintln!("{}: {:.0} s", trial.name, began.elapsed().as_secs_f64());
        outcomes.push(ran.outcome);
    }
    Ok(laptop.conclude(outcomes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn check(line: &str) -> Result<(), String> {
        let cli = Cli::try_parse_from(std::iter::once("repro").chain(line.split(' ')));
        cli.expect("the line parses").args.check().map_err(|usage| usage.to_string())
    }

    #[test]
    fn flags_without_effect_are_rejected() {
        for good in
            ["fcs --seeds 2 --profiles p.toml", "coshh --seeds 3", "fcs --scale laptop --dir d", "hsrtf"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, what) in [
            ("fcs --scale laptop --seeds 3", "--seeds has no effect"),
            ("fcs --scale laptop --profiles p.toml", "--profiles has no effect"),
            ("coshh --profiles p.toml", "--profiles has no effect for coshh"),
            ("fcs --dir d", "--dir has no effect"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.starts_with(what), "{bad}: {error}");
        }
    }
}
