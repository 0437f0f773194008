//! `mrctl health`: checks whether a master serves requests. The exit code is for process
//! supervisors.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output;
use anyhow::Result;
use clap::ValueEnum;
use client::{Error, channel};
use clusters::locate::Target;
use daemon::{Period, config::Config};
use security::{Credentials, Role};
use serde::Serialize;
use std::{error::Error as _, process::ExitCode};
use tonic::Status;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Check whether a master serves requests
///
/// Calls the gRPC health service of the master. Of several, it calls the one that leads. In a closed
/// cluster, the call uses the keys of the master's role if they are in the security folder (as in the
/// pod of the master), else your credentials. Exit code 0 if it serves, 1 if not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl health namenode\n  \
    mrctl --config /etc/fermata/fermata.toml health jobtracker --within 2s")]
pub(crate) struct Args {
    /// Master to check
    #[arg(value_enum)]
    master: Master,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "3s")]
    within: Period,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The masters that can be checked.
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
    /// Only for the NameNode: whether it is in safemode and refuses changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    safemode: Option<bool>,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let role = args.master.role();
    let (mut addrs, security) = target.master(role)?;
    let config = Config { security, ..Config::default() };
    let own = Credentials::of_daemon(&config, role).ok();
    if addrs.len() > 1 {
        // A group serves as long as a majority runs, and only its leader serves clients.
        let all = target.masters_as(role, own.clone(), args.within.0).await?;
        let leader = all.leader.filter(|_| all.serves);
        addrs = leader.ok_or_else(|| anyhow::anyhow!(all.summary))?.into();
    }
    let credentials = own.map_or_else(|| client::credentials(&config.security), Ok)?;
    let answer = check(&args, target, &addrs[0], &credentials).await?;
    if args.json {
        output::json(&answer)?;
    } else {
        output::line(answer.describe())?;
    }
    Ok(if answer.serves { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Calls the health service of one master.
async fn check<'a>(
    args: &Args,
    target: &Target,
    addr: &'a str,
    credentials: &Credentials,
) -> Result<Answer<'a>> {
    let role = args.master.role();
    let asking = async {
        let channel = channel(addr, credentials, role).await;
        let mut client = HealthClient::new(channel.map_err(|error| match error {
            Error::Unreachable { why, .. } => target.no_answer_at(role, addr, &why),
            other => other.into(),
        })?);
        let answer = client.check(HealthCheckRequest::default()).await;
        let answer = answer.map_err(|status| failure(&status, role, addr, target))?;
        let mut safemode = None;
        if role == Role::NameNode {
            let service = dfs_client::WRITABLE_SERVICE.into();
            let writable = client.check(HealthCheckRequest { service }).await.ok();
            safemode = writable.map(|writable| writable.into_inner().status() == ServingStatus::NotServing);
        }
        anyhow::Ok((answer.into_inner().status(), safemode))
    };
    let Ok(answer) = tokio::time::timeout(args.within.0, asking).await else {
        return Err(target.no_answer_at(role, addr, &format!("no answer for {}", args.within)));
    };
    let (status, safemode) = answer?;
    Ok(Answer { daemon: role.name(), addr, serves: status == ServingStatus::Serving, safemode })
}

impl Answer<'_> {
    fn describe(&self) -> String {
        let word = if self.serves { "serves" } else { "does not serve" };
        let but = if self.safemode == Some(true) {
            ", in safemode: changes are refused (mrctl fs safemode)"
        } else {
            ""
        };
        format!("the {} at {} {word}{but}", self.daemon, self.addr)
    }
}

/// Returns the error for a failed check: the master did not answer, or it refused.
fn failure(status: &Status, role: Role, addr: &str, target: &Target) -> anyhow::Error {
    let why = security::call_failure(status);
    if status.source().is_some() {
        return target.no_answer_at(role, addr, &why);
    }
    anyhow::anyhow!("the {} at {addr} refuses the health check: {why}", role.title())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_not_reported_as_a_missing_answer() {
        let target = Target::of_config("/no/such/file".as_ref());
        let error = |status: &Status| failure(status, Role::NameNode, "h:1", &target).to_string();
        assert_eq!(
            error(&Status::permission_denied("not for ann")),
            "the NameNode at h:1 refuses the health check: not for ann"
        );
        let broken = std::io::Error::other("connection reset");
        assert!(!error(&Status::from_error(Box::new(broken))).contains("refuses"));
    }
}
