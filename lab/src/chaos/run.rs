//! `mrctl chaos run`: injects the faults of a scenario file into a real cluster and reports when
//! each was detected and when the cluster had recovered. The format is that of `mrctl sim --faults`
//! (docs/operate/faults.md).

use super::{
    ClusterFlags,
    local::partition_not_supported_error,
    observer::{ClusterView, Observer},
    scenario_run::{InitialCluster, POLL_INTERVAL, ScenarioRun, find_node},
    target::ChaosTarget,
};
use anyhow::{Result, bail};
use daemon::Period;
use sim::{
    catalog,
    scenario::{NodeRef, Scenario, ScenarioAction},
};
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use view::output::{self, Usage};

const HEALTHY_TIMEOUT: Duration = Duration::from_secs(10);

/// Run a fault scenario, and report when faults were detected and repaired
///
/// The same file works in the simulator: `mrctl sim --faults FILE`. docs/operate/faults.md
/// describes the format. The exit code is 1 if the cluster has not recovered at the end, or if a
/// step failed or was never reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos run faults.toml
  mrctl chaos run faults.toml --cluster mycluster --json

A file, for example:
  [[step]]
  when = \"job 1 maps 40%\"
  do = \"kill\"
  node = \"any running job 1\"
  for = \"20s\"")]
pub struct Args {
    /// Scenario file (TOML)
    file: PathBuf,
    #[command(flatten)]
    at: ClusterFlags,
    /// Seed for random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Timeout for the complete run
    #[arg(long, value_name = "TIME", default_value = "10m")]
    within: Period,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    let file = args.file.display().to_string();
    output::check_local(&args.file)?;
    let Scenario { steps, faults, .. } =
        catalog::read_scenario("", &args.file).map_err(|error| match error {
            catalog::CatalogError::Scenario { .. } | catalog::CatalogError::File { .. } => {
                Usage(error.to_string()).into()
            }
            other => anyhow::Error::new(other),
        })?;
    if !faults.is_empty() {
        eprintln!("mrctl: {file}: {} [[fault]] skipped: they are only for the simulator", faults.len());
    }
    let target = Arc::new(args.at.target()?);
    let nodes = target.nodes()?;
    if steps.is_empty() {
        bail!(Usage(format!("{file} has no [[step]], so there is nothing to do")));
    }
    for step in &steps {
        check_step(&target, &nodes, &step.action)
            .map_err(|why| Usage(format!("{file}:{}: {why}", step.line)))?;
    }
    let mut observer = Observer::new(target.client_target());
    let view = await_healthy(&mut observer).await?;
    let (count, slots) = (nodes.len(), view.slots());
    let blocks = view.files.as_ref().map_or(0, |files| files.blocks);
    let mut run =
        ScenarioRun::new(target, file, steps, InitialCluster { nodes, observer, view }, args.seed, args.json);
    run.note(format!(
        "{}, {} map and {} reduce slots, {}: healthy",
        output::count(count as u64, "node"),
        slots.0,
        slots.1,
        output::count(blocks, "block")
    ))?;
    run.run(args.within.0).await?;
    run.print_result(args.json)
}

/// Waits until the cluster is healthy, before the first fault. Returns the view of the healthy
/// cluster. A block that is being written may not have all its replicas yet.
async fn await_healthy(observer: &mut Observer) -> Result<ClusterView> {
    let began = Instant::now();
    let mut view = observer.first_view().await?;
    while let Some(why) = view.problem(view.slots(), &[]) {
        if began.elapsed() > HEALTHY_TIMEOUT {
            bail!("the cluster is not healthy before the first fault ({why}): repair it first");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        view = observer.observe(&view).await;
    }
    Ok(view)
}

/// Checks that all named nodes exist, and that a partition is possible.
fn check_step(target: &ChaosTarget, nodes: &[String], action: &ScenarioAction) -> Result<(), String> {
    let mut named: Vec<&NodeRef> = action.node().into_iter().collect();
    if let ScenarioAction::Partition { to, .. } = action {
        named.push(to);
    }
    let mut found = Vec::new();
    for node_ref in named {
        let NodeRef::Named(name) = node_ref else { continue };
        let Some(node) = find_node(nodes, name) else {
            return Err(format!(
                "there is no node {name}: use {}, or nodeN for the Nth of them",
                nodes.join(", ")
            ));
        };
        found.push(target.machine_of(&node));
    }
    if let ScenarioAction::Partition { .. } = action {
        if let ChaosTarget::Local(_) = target {
            return Err(partition_not_supported_error().to_string());
        }
        if let [one, other] = &found[..]
            && one == other
        {
            return Err(format!("{one} cannot be partitioned from itself: name two machines"));
        }
    }
    Ok(())
}
