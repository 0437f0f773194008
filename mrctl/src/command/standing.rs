//! `mrctl cluster status`: which daemons run where, and whether they do what they are there for.
//!
//! A process that is there may still be of no use. So masters are asked whether they answer, and what they have heard of
//! the nodes; nobody waits long for either.

use super::machines::{exit, shown};
use crate::{
    locate::Target,
    output,
    remote::{Fleet, Machine, Part, Reach, Standing, on_all},
};
use anyhow::Result;
use std::{collections::BTreeMap, process::ExitCode, time::Duration};

/// A master has this long to answer.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Said of one that nobody has to worry about.
const WELL: [&str; 4] = ["answers", "live", "draining", "drained"];

impl Standing {
    /// Whether it runs and does what it is there for, as far as anybody has looked.
    pub(crate) fn is_well(&self) -> bool {
        let heard = self.heard.as_deref();
        self.state == "running" && heard.is_none_or(|heard| WELL.contains(&heard))
    }
}

/// Nodes and what a master has heard of them; or why it does not answer.
type Nodes = Result<BTreeMap<String, String>, String>;

/// What the masters say.
pub(super) struct Word {
    namenode: Nodes,
    jobtracker: Nodes,
}

async fn within(asking: impl Future<Output = Result<BTreeMap<String, String>>>) -> Nodes {
    match tokio::time::timeout(ASK_WITHIN, asking).await {
        Ok(answer) => answer.map_err(|error| output::chain(&error)),
        Err(_) => Err(format!("no answer after {} s", ASK_WITHIN.as_secs())),
    }
}

impl Word {
    pub(super) async fn ask(target: &Target) -> Self {
        let files = async {
            let report = target.connect().await?.report().await?;
            let word = |state| format!("{state:?}").to_lowercase();
            Ok(report.nodes.into_iter().map(|one| (one.address.node, word(one.state))).collect())
        };
        let jobs = async {
            let trackers = target.jobtracker().await?.trackers().await?;
            Ok(trackers.into_iter().map(|one| (one.name, one.state)).collect())
        };
        let (namenode, jobtracker) = tokio::join!(Box::pin(within(files)), Box::pin(within(jobs)));
        Self { namenode, jobtracker }
    }

    /// Masters that do not answer, and why.
    pub(super) fn silent(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let both = [("namenode", &self.namenode), ("jobtracker", &self.jobtracker)];
        both.into_iter().filter_map(|(name, nodes)| Some((name, nodes.as_ref().err()?)))
    }

    /// Puts what is said of the daemons of a machine beside how they stand.
    fn lay_beside(&self, node: &str, standings: &mut [Standing]) {
        for one in standings.iter_mut().filter(|one| one.state == "running") {
            let of_node = |nodes: &Nodes, by: &str| {
                let nodes = nodes.as_ref().ok()?;
                let heard = nodes.get(node).cloned();
                Some(heard.unwrap_or_else(|| format!("the {by} does not know it")))
            };
            let of_master = |nodes: &Nodes| match nodes {
                Ok(_) => "answers".to_owned(),
                Err(why) => format!("does not answer: {why}"),
            };
            one.heard = match one.daemon.as_str() {
                "namenode" => Some(of_master(&self.namenode)),
                "jobtracker" => Some(of_master(&self.jobtracker)),
                "datanode" => of_node(&self.namenode, "namenode"),
                _ => of_node(&self.jobtracker, "jobtracker"),
            };
        }
    }
}

/// Show which daemons run where, and whether their masters hear of them
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    reach: Reach,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn status(args: &Status) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let mut results = on_all(&fleet.machines, Machine::look, |_, _| {});
    let any_master = results.iter().any(|(machine, result)| {
        let runs = |standings: &Vec<Standing>| standings.iter().any(|one| one.state == "running");
        machine.host.part == Part::Master && result.as_ref().is_ok_and(runs)
    });
    if any_master {
        let word = Word::ask(&fleet.target()).await;
        for (machine, result) in &mut results {
            if let Ok(standings) = result {
                word.lay_beside(&machine.host.name, standings);
            }
        }
    }
    let well = |result: &Result<Vec<Standing>>| {
        result.as_ref().is_ok_and(|standings| standings.iter().all(Standing::is_well))
    };
    let ill = results.iter().filter(|(_, result)| !well(result)).count();
    if args.json {
        let rows = results.iter().map(|(machine, result)| {
            let (daemons, error) = match result {
                Ok(standings) => (Some(standings), None),
                Err(error) => (None, Some(output::chain(error))),
            };
            let host = &machine.host;
            serde_json::json!({ "host": host.name, "addr": host.addr, "rack": host.rack, "daemons": daemons, "error": error })
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(exit(ill));
    }
    for (machine, result) in &results {
        let name = &machine.host.name;
        match result {
            Ok(standings) => output::line(format!("{name}: {}", shown(machine, standings)))?,
            Err(error) => eprintln!("mrctl: {name}: {}", output::chain(error)),
        }
    }
    Ok(exit(ill))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(daemon: &str) -> Standing {
        Standing {
            daemon: daemon.into(),
            state: "running".into(),
            pid: Some(7),
            addr: None,
            outdated: false,
            heard: None,
        }
    }

    #[test]
    fn a_process_that_nobody_hears_of_is_not_well() {
        let heard = |state: &str| Ok(BTreeMap::from([("n1".to_owned(), state.to_owned())]));
        let word = Word { namenode: heard("dead"), jobtracker: heard("live") };
        let mut both = [running("datanode"), running("tasktracker")];
        word.lay_beside("n1", &mut both);
        assert_eq!(both.clone().map(|one| one.is_well()), [false, true]);
        word.lay_beside("n2", &mut both);
        assert_eq!(both[1].heard.as_deref(), Some("the jobtracker does not know it"));
        assert!(!both[1].is_well());

        // Of nodes nothing is known while their master is silent; the master itself is not well.
        let word = Word { namenode: Err("no answer after 5 s".into()), jobtracker: heard("live") };
        let mut all = [running("namenode"), running("jobtracker")];
        word.lay_beside("m", &mut all);
        assert_eq!(all.clone().map(|one| one.is_well()), [false, true]);
        let mut node = [running("datanode")];
        word.lay_beside("n1", &mut node);
        assert!(node[0].is_well() && node[0].heard.is_none());
        assert_eq!(word.silent().map(|(name, _)| name).collect::<Vec<_>>(), ["namenode"]);

        let mut frozen = [Standing { state: "frozen".into(), ..running("datanode") }];
        word.lay_beside("n1", &mut frozen);
        assert!(!frozen[0].is_well());
    }
}
