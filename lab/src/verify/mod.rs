//! `mrctl verify`: runs the same jobs on a real cluster and in the simulator, and compares the
//! results.

use crate::trial;
use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use sim::{
    Outcome, World, report,
    trial::{Fidelity, Trial, all, narrow_link, short},
};
use std::{path::PathBuf, process::ExitCode};
use view::output::{self, Usage};

/// Compare the simulator with small jobs on a real local cluster
///
/// Each trial starts a cluster of eight nodes in a temporary folder and removes it afterwards.
/// Tasks are slowed down to a planned rate, so they sleep most of the time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl verify\n  \
    mrctl verify --only 'fcs;fair' --json\n\n\
With a narrow link, as root:\n  \
    ip netns add narrow && ip -n narrow link set lo mtu 1500 up\n  \
    ip netns exec narrow tc qdisc add dev lo root \\\n      \
        tbf rate 32mbit burst 64kb latency 400ms\n  \
    ip netns exec narrow mrctl verify --link 4MB")]
pub struct Args {
    /// Run only these trials; `short` takes a few seconds
    #[arg(long, value_name = "NAME;...", value_delimiter = ';')]
    only: Vec<String>,
    /// Run only the trial of a narrow link (with --only: make it available). SIZE is the rate in
    /// bytes per second to which the loopback interface has been limited, as in the example below
    #[arg(long, value_name = "SIZE")]
    link: Option<daemon::Bytes>,
    /// Folder for the data of the cluster [default: the current folder]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn selected_trials(only: &[String], link: Option<daemon::Bytes>) -> Result<Vec<Trial>> {
    let linked = link.map(|bytes| narrow_link(bytes.0 as f64));
    if only.is_empty() {
        // The other trials would be slowed down by the limited link.
        return Ok(linked.map_or_else(all, |linked| vec![linked]));
    }
    let known: Vec<Trial> = all().into_iter().chain([short()]).chain(linked).collect();
    let find = |name: &String| {
        let names: Vec<&str> = known.iter().map(|trial| trial.name.as_str()).collect();
        let found = known.iter().find(|trial| trial.name == *name).cloned();
        found.ok_or_else(|| {
            Usage(format!("there is no trial {name:?}: choose from {}", names.join("; "))).into()
        })
    };
    only.iter().map(find).collect()
}

/// A trial that has been run and simulated, with the comparison.
struct VerifiedTrial {
    name: String,
    fidelity: Fidelity,
    real: Outcome,
}

/// Runs the trials and prints how much the simulator differs from the real cluster.
pub async fn run(args: &Args) -> Result<ExitCode> {
    let mut all: Vec<VerifiedTrial> = Vec::new();
    for trial in selected_trials(&args.only, args.link)? {
        let real = trial::run(&trial, &args.dir).await?;
        let Trial { name, setup, workload, .. } = trial.as_it_was(&real.history);
        let simulated =
            World::new(setup, workload)?.run(None).map_err(|broken| anyhow!("{name}: {broken}"))?;
        let fidelity = Fidelity::of(&real.outcome, &simulated);
        if !args.json {
            let preemptions = |outcome: &Outcome| -> u32 {
                outcome.metrics.jobs().map(|(_, job)| job.preemption.preemptions()).sum()
            };
            output::line(format!(
                "{name}: mean error over jobs {}; preemptions: {} real, {} simulated\n{}",
                report::percent(fidelity.error()),
                preemptions(&real.outcome),
                preemptions(&simulated),
                fidelity.table().text()
            ))?;
        }
        all.push(VerifiedTrial { name, fidelity, real: real.outcome });
    }
    let jobs = Fidelity { jobs: all.iter().flat_map(|trial| trial.fidelity.jobs.clone()).collect() };
    if args.json {
        output::json(&as_json(&all, &jobs))?;
    } else {
        let trials = output::count(all.len() as u64, "trial");
        let count = output::count(jobs.jobs.len() as u64, "job");
        let off = report::percent(jobs.error());
        output::line(format!("{count} of {trials}: mean error over jobs {off}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(all: &[VerifiedTrial], jobs: &Fidelity) -> Value {
    let trials = all.iter().map(|VerifiedTrial { name, fidelity, real }| {
        let jobs = fidelity.jobs.iter().zip(real.metrics.jobs());
        let jobs = jobs.map(|((name, real_s, simulated_s), (_, figures))| {
            let recovery = &figures.recovery;
            json!({
                "job": name,
                "real_s": real_s,
                "simulated_s": simulated_s,
                "recovery": {
                    "tasks": recovery.tasks,
                    "maps": recovery.maps,
                    "local": recovery.local,
                    "longest_s": recovery.longest.as_secs_f64(),
                },
            })
        });
        json!({ "trial": name, "error": fidelity.error(), "jobs": jobs.collect::<Vec<_>>() })
    });
    json!({ "error": jobs.error(), "trials": trials.collect::<Vec<_>>() })
}
