//! Faults of disks and speed, on the daemons that `mrctl up` started here.

use crate::{
    cluster::{ClusterState, Daemon, Kind},
    locate::state_folder,
    output::{self, Usage},
};
use anyhow::{Context, Result, bail};
use daemon::{Bytes, Period};
use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    process::Signal,
};
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// A slow daemon runs for a part of each of these.
const BEAT: Duration = Duration::from_millis(100);
/// Larger gaps are filled only if somebody insists.
const GAP_MAX: u64 = 1 << 30;
const FILL: &str = "chaos.fill";

/// Flip a byte of a block on one datanode's disk
///
/// Reads go on with another replica; the damage is noticed, reported and mended.
#[derive(Debug, clap::Args)]
pub(crate) struct Corrupt {
    /// The block, as `mrctl fs stat --blocks FILE` names it
    block: String,
    /// On which node [default: the first that has it]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
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
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
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
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn daemons_of(dir: Option<&Path>, node: &str) -> Result<Vec<Daemon>> {
    let mut state = ClusterState::require(&state_folder(dir)?)?;
    // Says which there are if there is none of this name.
    state.find(node, None)?;
    Ok(state.daemons.into_iter().filter(|daemon| daemon.name == node).collect())
}

/// The file of this name in a `current` folder below.
fn find_block(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let current = folder.components().any(|part| part.as_os_str() == "current");
    let here = files.into_iter().find(|path| current && path.file_name().is_some_and(|found| found == name));
    here.or_else(|| folders.iter().find_map(|folder| find_block(folder, name)))
}

pub(crate) fn corrupt(args: &Corrupt) -> Result<ExitCode> {
    let number = args.block.strip_prefix("blk_").unwrap_or(&args.block);
    if number.parse::<u64>().is_err() {
        bail!(Usage(format!(
            "{:?} is not a block: blk_NUMBER, as `mrctl fs stat --blocks FILE` lists them",
            args.block
        )));
    }
    let name = format!("blk_{number}");
    let state = ClusterState::require(&state_folder(args.dir.as_deref())?)?;
    let wanted = |daemon: &&Daemon| {
        daemon.kind == Kind::Datanode && args.node.as_ref().is_none_or(|node| daemon.name == *node)
    };
    let found = state
        .daemons
        .iter()
        .filter(wanted)
        .find_map(|daemon| Some((daemon, find_block(&daemon.dir, &name)?)));
    let Some((daemon, path)) = found else {
        let whose =
            args.node.as_ref().map_or_else(|| "no datanode here".to_owned(), |node| format!("{node} not"));
        bail!("{whose} has {name}: `mrctl fs stat --blocks FILE` lists blocks and their nodes");
    };
    let failed = || format!("cannot change {}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(&path).with_context(failed)?;
    let at = file.metadata().with_context(failed)?.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).with_context(failed)?;
    file.write_all_at(&[!byte[0]], at).with_context(failed)?;
    output::line(format!("flipped byte {at} of {name} on {}: {}", daemon.name, path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Lets them go on, however this ends.
struct Slowed(Vec<Daemon>);

impl Slowed {
    fn signal(&self, signal: Signal) -> Result<bool> {
        let mut any = false;
        for daemon in &self.0 {
            any |= daemon.signal(signal)?;
        }
        Ok(any)
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        // One that is gone needs nothing.
        let _ = self.signal(Signal::CONT);
    }
}

pub(crate) async fn slow(args: &Slow) -> Result<ExitCode> {
    if !(0.0..1.0).contains(&args.share) {
        bail!(Usage(format!("--share {}: a part of the time, from 0 up to but not 1", args.share)));
    }
    let slowed = Slowed(daemons_of(args.dir.as_deref(), &args.node)?);
    let end = Instant::now() + args.time.0;
    let part = (args.share * 100.0).round();
    output::line(format!("{} runs for {part} % of the time, for {}", args.node, args.time))?;
    let beats = async {
        while Instant::now() < end {
            slowed.signal(Signal::CONT)?;
            tokio::time::sleep(BEAT.mul_f64(args.share)).await;
            if !slowed.signal(Signal::STOP)? {
                bail!("{} is not running", args.node);
            }
            tokio::time::sleep(BEAT.mul_f64(1.0 - args.share)).await;
        }
        Ok(())
    };
    tokio::select! {
        ended = beats => ended?,
        _ = tokio::signal::ctrl_c() => {}
    }
    drop(slowed);
    output::line(format!("{} runs freely again", args.node))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn fill_disk(args: &FillDisk) -> Result<ExitCode> {
    let daemons = daemons_of(args.dir.as_deref(), &args.node)?;
    let folder = &daemons.first().context("a node has a daemon")?.dir;
    let path = folder.join(FILL);
    let failed = || format!("cannot fill {}", path.display());
    if args.clear {
        fs::remove_file(&path).with_context(|| format!("cannot give back {}", path.display()))?;
        output::line(format!("the disk of {} has room again", args.node))?;
        return Ok(ExitCode::SUCCESS);
    }
    let about = statvfs(folder).with_context(failed)?;
    let gap = (about.f_bavail * about.f_frsize).saturating_sub(args.leave.0);
    if gap > GAP_MAX && !args.force {
        bail!(
            "that would take {} of the disk of {}: put the cluster on a small disk, leave more room, or say --force",
            Bytes(gap),
            folder.display()
        );
    }
    let file = File::create(&path).with_context(failed)?;
    if gap > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, gap).with_context(failed)?;
    }
    output::line(format!("took {} of the disk of {}; --clear gives it back", Bytes(gap), args.node))?;
    Ok(ExitCode::SUCCESS)
}
