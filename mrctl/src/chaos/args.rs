//! The verbs of `mrctl chaos` that take more than a name: their flags, and what they print.

use super::{Where, target::Damage};
use crate::output::{self, Usage};
use anyhow::{Result, bail};
use daemon::{Bytes, Period};
use std::{process::ExitCode, time::Duration};

/// Drop what one machine sends to another, in silence, until `heal` (clusters of `mrctl cluster` only)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos partition n1 n2 --cluster lab              no traffic either way
  mrctl chaos partition n1 m1 --one-way --cluster lab    m1 receives nothing from n1")]
pub(crate) struct Partition {
    /// A machine
    a: String,
    /// Another
    b: String,
    /// Only what the first sends to the second
    #[arg(long)]
    one_way: bool,
    #[command(flatten)]
    at: Where,
}

/// Mend the links of a machine, or of all
#[derive(Debug, clap::Args)]
pub(crate) struct Heal {
    /// Which machine [default: all]
    node: Option<String>,
    #[command(flatten)]
    at: Where,
}

/// Flip a byte of a block on one datanode's disk
///
/// Reads go on with another replica; the damage is noticed, reported and fixed.
#[derive(Debug, clap::Args)]
pub(crate) struct Corrupt {
    /// The block, as `mrctl fs stat --blocks FILE` names it
    block: String,
    /// On which node [default: the first that has it]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Cut off its second half instead
    #[arg(long)]
    truncate: bool,
    #[command(flatten)]
    at: Where,
}

/// Let a node's daemons run for only a part of the time, for a while
///
/// Ctrl-C ends it early; in any case they run freely afterwards.
#[derive(Debug, clap::Args)]
pub(crate) struct Slow {
    /// Name of a node, `namenode` or `jobtracker`
    node: String,
    /// The part of the time that they run
    #[arg(long, value_name = "PART", default_value_t = 0.2)]
    share: f64,
    /// For how long
    #[arg(long = "for", value_name = "TIME", default_value = "30s")]
    time: Period,
    #[command(flatten)]
    at: Where,
}

/// Fill the disk that a node's data is on
///
/// By one file, which takes all room but what is left. It is the whole disk's room: put the cluster on a small one.
#[derive(Debug, clap::Args)]
pub(crate) struct FillDisk {
    /// Name of a node, `namenode` or `jobtracker`
    node: String,
    /// Room to leave
    #[arg(long, value_name = "SIZE", default_value = "0")]
    leave: Bytes,
    /// Even if that takes more than a gigabyte
    #[arg(long)]
    force: bool,
    /// Give the room back
    #[arg(long, conflicts_with_all = ["leave", "force"])]
    clear: bool,
    #[command(flatten)]
    at: Where,
}

/// What interrupts the way to a machine interrupts us within this time.
const INTERRUPT: Duration = Duration::from_millis(100);

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
    let damage = Damage { block, node: args.node.clone(), cut: args.truncate, chance: 0 };
    print_result(vec![args.at.target()?.corrupt(&damage)?])
}

pub(crate) async fn slow(args: &Slow) -> Result<ExitCode> {
    if !(0.0..1.0).contains(&args.share) {
        bail!(Usage(format!("--share {}: a part of the time, from 0 up to but not 1", args.share)));
    }
    let target = args.at.target()?;
    let part = (args.share * 100.0).round();
    output::line(format!("{} runs for {part} % of the time, for {}", args.node, args.time))?;
    // Ctrl-C reaches the shell on the way there, too: that it ended by it is not what is told.
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {}
        ended = target.slow(&args.node, args.share, args.time.0) => match ended {
            Err(error) if tokio::time::timeout(INTERRUPT, tokio::signal::ctrl_c()).await.is_err() => return Err(error),
            _ => {}
        },
    }
    print_result(vec![format!("{} runs freely again", args.node)])
}

pub(crate) fn fill_disk(args: &FillDisk) -> Result<ExitCode> {
    let target = args.at.target()?;
    let paper_figures = if args.clear {
        target.clear_disk(&args.node)?
    } else {
        target.fill_disk(&args.node, args.leave, args.force)? + "; --clear gives it back"
    };
    print_result(vec![paper_figures])
}
