//! `mrctl cluster status`: shows which daemons are running on which machine, and whether they work.
//!
//! A process may be running and still not work. Therefore this command also queries the masters,
//! with a short timeout, and shows the state that they report for each node.

use super::{
    machines::{describe_daemons, exit_code_for},
    master_reports::MasterReports,
};
use crate::output;
use anyhow::Result;
use clusters::remote::{DaemonStatus, Fleet, Machine, MachineRole, Reach, on_all};
use std::process::ExitCode;

/// Show which daemons are running on which machine, and the state their masters report
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl cluster status --cluster mycluster\n  mrctl cluster status --cluster mycluster --json"
)]
pub(crate) struct Status {
    #[command(flatten)]
    reach: Reach,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn status(args: &Status) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let mut results = on_all(&fleet.machines, Machine::daemon_statuses, |_, _| {});
    let any_master = results.iter().any(|(machine, result)| {
        let runs = |statuses: &Vec<DaemonStatus>| statuses.iter().any(|one| one.state == "running");
        machine.host.role == MachineRole::Master && result.as_ref().is_ok_and(runs)
    });
    if any_master {
        let reports = MasterReports::query(&fleet.target()).await;
        for (machine, result) in &mut results {
            if let Ok(statuses) = result {
                reports.merge_into(&machine.host.name, &machine.members, statuses);
            }
        }
    }
    let well = |result: &Result<Vec<DaemonStatus>>| {
        result.as_ref().is_ok_and(|statuses| statuses.iter().all(DaemonStatus::is_healthy))
    };
    let unhealthy = results.iter().filter(|(_, result)| !well(result)).count();
    if args.json {
        let rows = results.iter().map(|(machine, result)| {
            let (daemons, error) = match result {
                Ok(statuses) => (Some(statuses), None),
                Err(error) => (None, Some(output::chain(error))),
            };
            let host = &machine.host;
            serde_json::json!({ "host": host.name, "addr": host.addr, "rack": host.rack, "daemons": daemons, "error": error })
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(exit_code_for(unhealthy));
    }
    for (machine, result) in &results {
        let name = &machine.host.name;
        match result {
            Ok(statuses) => output::line(format!("{name}: {}", describe_daemons(machine, statuses)))?,
            Err(error) => eprintln!("mrctl: {name}: {}", output::chain(error)),
        }
    }
    Ok(exit_code_for(unhealthy))
}
