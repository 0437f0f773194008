//! `mrctl chaos run`: does what a scenario file says to a real cluster, watches what the masters make of it, and tells when
//! it was noticed and when all was well again. The format is that of `mrctl sim --faults` (docs/faults.md).

use super::{
    Where,
    here::no_links,
    play::{LOOK_EVERY, Opening, Play, find},
    sight::{Eyes, Sight},
    site::Site,
};
use crate::output::{self, Usage};
use anyhow::{Result, bail};
use daemon::Period;
use sim::{
    catalog,
    scenario::{Act, Scenario, Who},
};
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Do what a scenario file says, and tell when it was noticed and when all was well again
///
/// The same file drives a simulated cluster: `mrctl sim --faults FILE`. Its format is in docs/faults.md. The exit code is 1
/// if the cluster is not whole in the end, or a step could not be done or never came.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos run faults.toml
  mrctl chaos run faults.toml --cluster lab --json

A file, for example:
  [[step]]
  when = \"job 1 maps 40%\"
  do = \"kill\"
  node = \"any running job 1\"
  for = \"20s\"")]
pub(crate) struct Args {
    /// The scenario (TOML)
    file: PathBuf,
    #[command(flatten)]
    at: Where,
    /// Decides what is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long all of it may take
    #[arg(long, value_name = "TIME", default_value = "10m")]
    within: Period,
    /// Print JSON, in the end
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    let file = args.file.display().to_string();
    let Scenario { steps, faults, .. } = catalog::read_scenario(&args.file).map_err(|error| match error {
        catalog::CatalogError::Scenario { .. } => Usage(error.to_string()).into(),
        other => anyhow::Error::new(other),
    })?;
    if !faults.is_empty() {
        eprintln!("mrctl: {file}: {} [[fault]] left out: they are for the simulator", faults.len());
    }
    let site = Arc::new(args.at.site()?);
    let nodes = site.nodes()?;
    if steps.is_empty() {
        bail!(Usage(format!("{file} has no [[step]]: there is nothing to do")));
    }
    for step in &steps {
        check(&site, &nodes, &step.act).map_err(|why| Usage(format!("{file}:{}: {why}", step.line)))?;
    }
    let mut eyes = Eyes::new(site.target());
    let sight = settled(&mut eyes).await?;
    let (count, slots) = (nodes.len(), sight.slots());
    let blocks = sight.files.as_ref().map_or(0, |files| files.blocks);
    let mut play = Play::new(site, file, steps, Opening { nodes, eyes, sight }, args.seed, args.json);
    play.note(format!(
        "{}, {} map and {} reduce slots, {}: all is well",
        output::count(count as u64, "node"),
        slots.0,
        slots.1,
        output::count(blocks, "block")
    ))?;
    play.play(args.within.0).await?;
    play.tell(args.json)
}

/// What is seen before anything is done. All is well, or soon will be: a block that is being written has not all its
/// replicas yet.
async fn settled(eyes: &mut Eyes) -> Result<Sight> {
    let began = Instant::now();
    let mut sight = eyes.open().await?;
    while let Some(why) = sight.trouble(sight.slots(), &[]) {
        if began.elapsed() > SETTLED_WITHIN {
            bail!("the cluster is not whole before anything is done to it ({why}): mend that, then begin");
        }
        tokio::time::sleep(LOOK_EVERY).await;
        sight = eyes.look(&sight).await;
    }
    Ok(sight)
}

/// Whether it can be done here: everybody whom it names is there, and there are links to cut.
fn check(site: &Site, nodes: &[String], act: &Act) -> Result<(), String> {
    let mut named: Vec<&Who> = act.node().into_iter().collect();
    if let Act::Partition { to, .. } = act {
        named.push(to);
    }
    let mut found = Vec::new();
    for who in named {
        let Who::Named(name) = who else { continue };
        let Some(node) = find(nodes, name) else {
            return Err(format!(
                "there is no node {name}: {}, or nodeN for the nth of them",
                nodes.join(", ")
            ));
        };
        found.push(site.machine_of(&node));
    }
    if let Act::Partition { .. } = act {
        if let Site::Here(_) = site {
            return Err(no_links().to_string());
        }
        if let [one, other] = &found[..]
            && one == other
        {
            return Err(format!("{one} cannot be cut off from itself: name two machines"));
        }
    }
    Ok(())
}
