//! `mrctl web`: serves read-only pages on loopback (crate `gateway`).

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output::{self, Usage};
use anyhow::{Result, anyhow, bail};
use clusters::locate::Target;
use gateway::{Addresses, Gateway};
use rustix::{
    event::{PollFd, PollFlags, poll},
    termios::tcgetpgrp,
};
use std::{io, path::PathBuf, process::ExitCode, time::Duration};

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
    let gateway = Gateway::bind(args.port, Box::new(target)).await;
    let gateway = gateway.map_err(|error| port_in_use(error, args.port))?;
    let addresses = gateway.addresses();
    output::line(addresses.make())?;
    let fresh =
        if addresses.are_valid_once() { " (it works only once); press Enter for a new one," } else { ";" };
    eprintln!("mrctl: open this address in a browser{fresh} Ctrl-C to stop");
    if addresses.are_valid_once() {
        std::thread::spawn(move || print_at_enter(&addresses));
    }
    tokio::select! {
        () = gateway.serve() => {}
        () = daemon::lifecycle::end_signal() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds advice to the error if another program uses the port.
fn port_in_use(error: anyhow::Error, port: u16) -> anyhow::Error {
    match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::AddrInUse) => anyhow!(
            "port {port} of 127.0.0.1 is in use: name another with --port, or use --port 0 for any free port"
        ),
        _ => error,
    }
}

/// Prints a new address for each line on standard input, until the end of the input.
fn print_at_enter(addresses: &Addresses) {
    let mut line = String::new();
    while await_line() {
        line.clear();
        match io::stdin().read_line(&mut line) {
            Ok(1..) if output::line(addresses.make()).is_ok() => {}
            _ => return,
        }
    }
}

/// Waits until standard input has data and can be read. Does not return while mrctl is in the
/// background of a terminal, because reading would stop the process.
fn await_line() -> bool {
    let stdin = rustix::stdio::stdin();
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        }
        let foreground = tcgetpgrp(stdin).map_or(true, |group| group == rustix::process::getpgrp());
        if foreground {
            return true;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
