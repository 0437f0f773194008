//! `mrctl web`: read-only pages on loopback (crate `gateway`).

#![allow(clippy::doc_markdown, reason = "doc lines here are help texts, where back-ticks would show")]

use crate::output::Usage;
use anyhow::{Result, bail};
use clusters::locate::Target;
use std::{path::PathBuf, process::ExitCode};

/// Show the cluster in a browser
///
/// Serves read-only pages on 127.0.0.1 until Ctrl-C: the cluster, its nodes and jobs, and for each
/// job its preemptions, its attempts over time, its tasks and why it waits. The pages show what you
/// may see, as all other commands do. In a closed cluster the address contains a token, because
/// other accounts of this machine could open it too. The token is valid once: the first browser
/// that opens the address stays signed in. Press Enter to print a new address.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl web                          then open the address that it prints\n  \
    mrctl web --port 0                 on any free port\n  \
    mrctl web --cluster mycluster      the cluster in a folder of `cluster init`\n  \
    ssh -L 50030:127.0.0.1:50030 HOST mrctl web      from another machine")]
pub(crate) struct Args {
    /// Port on 127.0.0.1; 0 means any free port
    #[arg(long, default_value_t = 50030)]
    port: u16,
    /// Folder created by `mrctl cluster init` or `cluster user`; same as --config DIR/fermata.toml
    #[arg(long, value_name = "DIR")]
    cluster: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let target = match &args.cluster {
        Some(_) if target.is_named() => {
            bail!(Usage("--cluster and other flags each select a cluster: give one of them".into()))
        }
        Some(folder) => Target::of_config(&folder.join("fermata.toml")),
        None => target.clone(),
    };
    gateway::run(args.port, Box::new(target), daemon::lifecycle::end_signal()).await?;
    Ok(ExitCode::SUCCESS)
}
