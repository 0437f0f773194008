//! Subcommands of `mrctl chaos` with several flags: their arguments and output.

use super::{ClusterFlags, node::Damage};
use anyhow::{Result, bail};
use daemon::{Bytes, Period};
use std::{process::ExitCode, time::Duration};
use view::output::{self, Usage};

/// Drop all packets between two machines until `heal` (only for clusters of `mrctl cluster`)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos partition n1 n2 --cluster mycluster
  mrctl chaos partition n1 m1 --one-way --cluster mycluster")]
pub struct Partition {
    /// First machine
    a: String,
    /// Second machine
    b: String,
    /// Drop only packets from the first to the second
    #[arg(long)]
    one_way: bool,
    #[command(flatten)]
    at: ClusterFlags,
}

/// Restore the network links of one machine or of all
#[derive(Debug, clap::Args)]
pub struct Heal {
    /// Machine [default: all]
    node: Option<String>,
    #[command(flatten)]
    at: ClusterFlags,
}

/// Flip a byte of a block on the disk of a datanode
///
/// Readers continue with another replica. The damage is detected, reported and repaired.
#[derive(Debug, clap::Args)]
pub struct Corrupt {
    /// Block ID, as `mrctl fs stat --blocks FILE` shows it
    block: String,
    /// Node [default: the first that has the block]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Remove the second half of the block instead
    #[arg(long)]
    truncate: bool,
    #[command(flatten)]
    at: ClusterFlags,
}

/// Let the daemons of a node run only for a fraction of the time
///
/// After the given time, or after Ctrl-C, they run at full speed again.
#[derive(Debug, clap::Args)]
pub struct Slow {
    /// Name of a node, or of a master as `mrctl status` shows it, such as `namenode`
    node: String,
    /// Fraction of the time during which the daemons run
    #[arg(long, value_name = "PART", default_value_t = 0.2)]
    share: f64,
    /// Duration
    #[arg(long = "for", value_name = "TIME", default_value = "30s")]
    time: Period,
    #[command(flatten)]
    at: ClusterFlags,
}

/// Fill the disk that has the data of a node
///
/// Creates one file that takes all free space except the amount to leave. This affects the complete
/// disk: use a cluster on a small disk.
#[derive(Debug, clap::Args)]
pub struct FillDisk {
    /// Name of a node, or of a master as `mrctl status` shows it, such as `namenode`
    node: String,
    /// Free space to leave
    #[arg(long, value_name = "SIZE", default_value = "0")]
    leave: Bytes,
    /// Fill the disk even if that takes more than a gigabyte
    #[arg(long)]
    force: bool,
    /// Remove the file again
    #[arg(long, conflicts_with_all = ["leave", "force"])]
    clear: bool,
    #[command(flatten)]
    at: ClusterFlags,
}

/// How long to wait for Ctrl-C after an error. Ctrl-C may have caused the error.
const INTERRUPT_TIMEOUT: Duration = Duration::from_millis(100);

fn print_result(lines: Vec<String>) -> Result<ExitCode> {
    for line in lines {
        output::line(line)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn partition(args: &Partition) -> Result<ExitCode> {
    print_result(args.at.target()?.partition(&args.a, &args.b, args.one_way)?)
}

pub(crate) fn heal(args: &Heal) -> Result<ExitCode> {
    print_result(args.at.target()?.heal(args.node.as_deref())?)
}

pub(crate) fn corrupt(args: &Corrupt) -> Result<ExitCode> {
    let number = args.block.strip_prefix("blk_").unwrap_or(&args.block);
    if number.parse::<u64>().is_err() {
        bail!(Usage(format!(
            "{:?} is not a block: blk_NUMBER, as `mrctl fs stat --blocks FILE` lists them",
            args.block
        )));
    }
    let block = Some(format!("blk_{number}"));
    let damage = Damage { block, node: args.node.clone(), cut: args.truncate, random_number: 0 };
    print_result(vec![args.at.target()?.corrupt(&damage)?])
}

pub(crate) async fn slow(args: &Slow) -> Result<ExitCode> {
    if !(0.0..1.0).contains(&args.share) {
        bail!(Usage(format!(
            "--share {}: must be a fraction of the time, from 0 to less than 1",
            args.share
        )));
    }
    let target = args.at.target()?;
    let part = (args.share * 100.0).round();
    output::line(format!("{} runs for {part} % of the time, for {}", args.node, args.time))?;
    // Ctrl-C also reaches the remote shell. Do not report its end as an error then.
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {}
        ended = target.slow(&args.node, args.share, args.time.0) => match ended {
            Err(error) if tokio::time::timeout(INTERRUPT_TIMEOUT, tokio::signal::ctrl_c()).await.is_err() => return Err(error),
            _ => {}
        },
    }
    print_result(vec![format!("{} runs at full speed again", args.node)])
}

pub(crate) fn fill_disk(args: &FillDisk) -> Result<ExitCode> {
    let target = args.at.target()?;
    let line = if args.clear {
        target.clear_disk(&args.node)?
    } else {
        target.fill_disk(&args.node, args.leave, args.force)? + "; --clear frees it again"
    };
    print_result(vec![line])
}
