//! `mrctl schedulers`: describes the policies and their parameters.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use client::scheduling::{Parameter, Policy, Schedulers, policy_names};
use clusters::locate::Target;
use std::process::ExitCode;

/// Describe the scheduling policies and their parameters
///
/// Shows the values of the running cluster, or the defaults if there is none. To choose a policy,
/// use `mrctl up --scheduler NAME`, `jobtracker --scheduler NAME`, or `name` in the
/// scheduler table of fermata.toml. Its parameters are in its own table, such as scheduler.fair.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl schedulers\n  mrctl schedulers fair\n  mrctl schedulers --defaults --json"
)]
pub(crate) struct Args {
    /// Describe only this policy
    policy: Option<String>,
    /// Show the defaults and do not connect to a cluster
    #[arg(long)]
    defaults: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let mut all =
        if args.defaults { None } else { policies_of_cluster(target).await? }.unwrap_or_else(defaults);
    if let Some(name) = &args.policy {
        let known: Vec<String> = all.policies.iter().map(|policy| policy.name.clone()).collect();
        all.policies.retain(|policy| policy_names(name).any(|part| part == policy.name));
        if all.policies.is_empty() {
            let known = known.join(", ");
            return Err(
                output::Usage(format!("there is no scheduler {name:?}: choose one of {known}")).into()
            );
        }
    }
    if args.json {
        output::json(&all)?;
    } else {
        print(&all)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the policies of the running cluster; None if no cluster is selected. A selected cluster
/// that is unreachable is an error.
async fn policies_of_cluster(target: &Target) -> Result<Option<Schedulers>> {
    match target.jobtracker().await {
        Ok(tracker) => Ok(Some(tracker.schedulers().await?)),
        Err(error) if target.is_named() => Err(error),
        Err(_) => Ok(None),
    }
}

fn defaults() -> Schedulers {
    let described = schedulers::describe(&schedulers::Params::new()).expect("defaults are sound");
    let parameter = |own: schedulers::Parameter| Parameter {
        key: own.key,
        value: own.value,
        default: own.default,
        about: own.about,
    };
    let policies = described.into_iter().map(|own| Policy {
        name: own.name.into(),
        about: own.about.into(),
        section: own.section.into(),
        in_use: false,
        parameters: own.parameters.into_iter().map(parameter).collect(),
    });
    Schedulers { scheduler: None, shadow: None, deciding: None, policies: policies.collect() }
}

fn print(all: &Schedulers) -> Result<()> {
    match &all.scheduler {
        Some(name) => {
            let shadow =
                all.shadow.as_ref().map_or_else(String::new, |name| format!(", with {name} as shadow"));
            output::line(format!("in use: {name}{shadow}"))?;
            if let Some(deciding) = &all.deciding {
                output::line(deciding.describe())?;
            }
        }
        None => output::line("not connected to a cluster: these are the defaults")?,
    }
    let mut shown: Option<&str> = None;
    for policy in &all.policies {
        let mark = if policy.in_use { " (in use)" } else { "" };
        output::line(format!("\n{}{mark}: {}", policy.name, policy.about))?;
        if policy.parameters.is_empty() {
            continue;
        }
        if shown == Some(policy.section.as_str()) {
            output::line(format!("  parameters in [scheduler.{}]: as above", policy.section))?;
            continue;
        }
        shown = Some(&policy.section);
        output::line(format!("  parameters in [scheduler.{}]:", policy.section))?;
        for Parameter { key, value, default, about } in &policy.parameters {
            let was = if value == default { String::new() } else { format!(" (default {default})") };
            output::line(format!("    {key} = {value}{was}"))?;
            output::line(format!("        {about}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_wrapped_policy_is_split_into_both_names() {
        assert_eq!(policy_names("chronos( fair )").collect::<Vec<_>>(), ["chronos", "fair"]);
        assert_eq!(policy_names("fifo").collect::<Vec<_>>(), ["fifo"]);
    }

    #[test]
    fn the_defaults_are_described_without_a_cluster() {
        let all = defaults();
        let fair = all.policies.iter().find(|policy| policy.name == "fair").unwrap();
        assert!(
            fair.parameters.iter().any(|parameter| parameter.key == "node_wait" && parameter.value == "3s")
        );
        assert!(all.policies.iter().any(|policy| policy.name == "chronos"));
    }
}
