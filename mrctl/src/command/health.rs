//! `mrctl health`: whether a master serves, for supervisors that know exit codes only.

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use crate::{
    job::wire::channel,
    locate::{self, Target},
    output,
};
use anyhow::{Result, bail};
use clap::ValueEnum;
use daemon::{Period, config::Config};
use security::{Credentials, Role};
use serde::Serialize;
use std::process::ExitCode;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Ask a master whether it serves
///
/// Calls its gRPC health service, of a closed cluster with the keys of its own role if they are here, as they are for probes
/// in the master's own pod, else with yours. Exit code 0 if it serves, 1 if not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl health namenode\n  \
    mrctl --config /etc/fermata/fermata.toml health jobtracker --within 2s")]
pub(crate) struct Args {
    /// Which
    #[arg(value_enum)]
    master: Master,
    /// How long to wait for its answer
    #[arg(long, value_name = "TIME", default_value = "3s")]
    within: Period,
    /// As JSON: one value
    #[arg(long)]
    json: bool,
}

/// Daemons that are called by gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Master {
    Namenode,
    Jobtracker,
}

impl Master {
    fn role(self) -> Role {
        match self {
            Self::Namenode => Role::NameNode,
            Self::Jobtracker => Role::JobTracker,
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    daemon: &'a str,
    addr: &'a str,
    serves: bool,
    /// Only the NameNode's: changes are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    safemode: Option<bool>,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let role = args.master.role();
    let (addr, security) = target.master(role)?;
    let config = Config { security, ..Config::default() };
    let own = Credentials::of_daemon(&config, role).ok();
    let credentials = own.map_or_else(|| locate::credentials(&config.security), Ok)?;
    let asking = async {
        let mut client = HealthClient::new(channel(&addr, &credentials, role).await?);
        let answer = client.check(HealthCheckRequest::default()).await.map_err(|status| {
            anyhow::anyhow!(
                "the {} at {addr} does not answer: {}",
                role.name(),
                security::call_failure(&status)
            )
        })?;
        let mut safemode = None;
        if role == Role::NameNode {
            let service = dfs::namenode::WRITABLE_SERVICE.into();
            let writable = client.check(HealthCheckRequest { service }).await.ok();
            safemode = writable.map(|writable| writable.into_inner().status() == ServingStatus::NotServing);
        }
        anyhow::Ok((answer.into_inner().status(), safemode))
    };
    let Ok(answer) = tokio::time::timeout(args.within.0, asking).await else {
        bail!("the {} at {addr} has not answered for {}", role.name(), args.within);
    };
    let (status, safemode) = answer?;
    let serves = status == ServingStatus::Serving;
    if args.json {
        output::json(&Answer { daemon: role.name(), addr: &addr, serves, safemode })?;
    } else {
        let word = if serves { "serves" } else { "does not serve" };
        let but = if safemode == Some(true) {
            ", in safemode: changes are refused (mrctl fs safemode)"
        } else {
            ""
        };
        output::line(format!("the {} at {addr} {word}{but}", role.name()))?;
    }
    Ok(if serves { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
