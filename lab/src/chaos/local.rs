//! Injects faults into a local cluster that `mrctl up` started.

use super::node::{Damage, FILL_BYTES_MAX, FILL_FILE, FaultSignal, ResourceUsage, too_much_space_message};
use anyhow::{Context, Result, bail};
use clusters::{
    folder::dir_flag,
    local::{self, ClusterState, Daemon, Kind, end_processes, lock, memory_bytes},
};
use daemon::Bytes;
use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    process::Signal,
};
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use view::output::Usage;

/// The length of a period. In each period, a slowed daemon first runs for its share of the time and
/// is then frozen.
const SLOW_PERIOD: Duration = Duration::from_millis(100);
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn partition_not_supported_error() -> anyhow::Error {
    Usage(
        "a cluster on one machine has no links to cut: name a cluster on several machines with --cluster"
            .into(),
    )
    .into()
}

/// Returns the kinds of daemon to act on: `named`, or all kinds of the node if that is empty.
fn selected_kinds(state: &mut ClusterState, node: &str, named: &[Kind]) -> Result<Vec<Kind>> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    // Fails with the known names if there is no such node.
    state.find(node, None)?;
    Ok(state.daemons.iter().filter(|daemon| daemon.name == node).map(|daemon| daemon.kind).collect())
}

fn daemons_of(folder: &Path, node: &str) -> Result<Vec<Daemon>> {
    let mut state = ClusterState::require(folder)?;
    state.find(node, None)?;
    Ok(state.daemons.into_iter().filter(|daemon| daemon.name == node).collect())
}

pub(super) fn resource_usage(folder: &Path) -> Result<Vec<ResourceUsage>> {
    let state = ClusterState::require(folder)?;
    let of = |daemon: &Daemon| {
        let proc = PathBuf::from(format!("/proc/{}", daemon.identity.pid));
        let threads = fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        ResourceUsage {
            node: daemon.name.clone(),
            program: daemon.kind.program().to_owned(),
            bytes: memory_bytes(daemon.identity.pid).unwrap_or(0),
            files: fs::read_dir(proc.join("fd")).map_or(0, |files| files.count() as u64),
            tasks: children.map(|pids| pids.split_whitespace().count() as u32).sum(),
        }
    };
    Ok(state.running().map(of).collect())
}

/// Returns the entries in the `jobs` folders of all trackers.
pub(super) fn job_files(folder: &Path) -> Result<Vec<String>> {
    let state = ClusterState::require(folder)?;
    let trackers = state.daemons.iter().filter(|daemon| daemon.kind == Kind::Tasktracker);
    let jobs = trackers.flat_map(|one| fs::read_dir(one.dir.join("jobs")).into_iter().flatten().flatten());
    Ok(jobs.map(|entry| entry.path().display().to_string()).collect())
}

/// Sends a signal. Returns a line for each daemon that the signal had an effect on. It has no
/// effect if a frozen daemon is frozen again or a running daemon is continued.
pub(super) fn signal(folder: &Path, node: &str, named: &[Kind], sign: FaultSignal) -> Result<Vec<String>> {
    let mut state = ClusterState::require(folder)?;
    let (mut lines, mut is_running) = (Vec::new(), false);
    for kind in selected_kinds(&mut state, node, named)? {
        let daemon = state.find(node, Some(kind))?;
        let was_frozen = daemon.is_frozen();
        let number = match sign {
            FaultSignal::Kill => Signal::KILL,
            FaultSignal::Stop => Signal::STOP,
            FaultSignal::Cont => Signal::CONT,
        };
        if !daemon.signal(number)? {
            continue;
        }
        is_running = true;
        if !sign.has_effect(was_frozen) {
            continue;
        }
        if sign == FaultSignal::Kill {
            // Wait, because the port and the lock are free only after the process has ended.
            end_processes(&[(&daemon.identity, &daemon.args)], EXIT_TIMEOUT)?;
        }
        lines.push(format!("{} {} (pid {})", sign.past_participle(), daemon.title(), daemon.identity.pid));
    }
    if !is_running {
        let dir = dir_flag(Some(folder));
        bail!("{node} is not running: start it with `mrctl chaos restart {node}{dir}`");
    }
    Ok(lines)
}

pub(super) async fn restart(folder: &Path, node: &str, named: &[Kind]) -> Result<Vec<String>> {
    let _held = lock(folder)?;
    let mut state = ClusterState::require(folder)?;
    let mut lines = Vec::new();
    for kind in selected_kinds(&mut state, node, named)? {
        let daemon = state.find(node, Some(kind))?;
        end_processes(&[(&daemon.identity, &daemon.args)], EXIT_TIMEOUT)?;
        let name = daemon.name.clone();
        local::restart(folder, &mut state, &name, kind).await?;
        let daemon = state.find(&name, Some(kind))?;
        lines.push(format!("started {} (pid {}) at {}", daemon.title(), daemon.identity.pid, daemon.addr));
    }
    Ok(lines)
}

/// Adds the data files of blocks below `folder` to `found`: all files, or only those called `name`.
fn collect_block_files(folder: &Path, name: Option<&str>, found: &mut Vec<PathBuf>) {
    let current = folder.components().any(|part| part.as_os_str() == "current");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect_block_files(&path, name, found);
            continue;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted = match name {
            Some(name) => file == name,
            None => file.starts_with("blk_") && path.extension().is_none(),
        };
        if current && wanted {
            found.push(path);
        }
    }
}

pub(super) fn corrupt(folder: &Path, damage: &Damage) -> Result<String> {
    let state = ClusterState::require(folder)?;
    let wanted = |daemon: &&Daemon| {
        daemon.kind == Kind::Datanode && damage.node.as_ref().is_none_or(|node| daemon.name == *node)
    };
    let mut found: Vec<(&Daemon, PathBuf)> = Vec::new();
    for daemon in state.daemons.iter().filter(wanted) {
        let mut paths = Vec::new();
        collect_block_files(&daemon.dir, damage.block.as_deref(), &mut paths);
        found.extend(paths.into_iter().map(|path| (daemon, path)));
    }
    if found.is_empty() {
        let block = damage.block.as_deref().unwrap_or("any block");
        let node = damage.node.as_deref().unwrap_or("any datanode");
        bail!("cannot find {block} on {node}: `mrctl fs stat --blocks FILE` lists blocks and their nodes");
    }
    let (daemon, path) = &found[(damage.random_number % found.len() as u64) as usize];
    let (name, block) = (&daemon.name, path.file_name().unwrap_or_default().to_string_lossy());
    let failed = || format!("cannot change {}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(path).with_context(failed)?;
    let at = file.metadata().with_context(failed)?.len() / 2;
    if damage.cut {
        file.set_len(at).with_context(failed)?;
        return Ok(format!("truncated {block} on {name} to {at} bytes: {}", path.display()));
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).with_context(failed)?;
    file.write_all_at(&[!byte[0]], at).with_context(failed)?;
    Ok(format!("flipped byte {at} of {block} on {name}: {}", path.display()))
}

/// Daemons that are slowed down. They run at full speed again when this is dropped.
struct SlowedDaemons(Vec<Daemon>);

impl SlowedDaemons {
    fn signal(&self, signal: Signal) -> Result<bool> {
        let mut any = false;
        for daemon in &self.0 {
            any |= daemon.signal(signal)?;
        }
        Ok(any)
    }
}

impl Drop for SlowedDaemons {
    fn drop(&mut self) {
        // Ignore errors: a daemon may have ended.
        let _ = self.signal(Signal::CONT);
    }
}

pub(super) async fn slow(folder: &Path, node: &str, share: f64, time: Duration) -> Result<()> {
    let slowed = SlowedDaemons(daemons_of(folder, node)?);
    let end = Instant::now() + time;
    while Instant::now() < end {
        slowed.signal(Signal::CONT)?;
        tokio::time::sleep(SLOW_PERIOD.mul_f64(share)).await;
        if !slowed.signal(Signal::STOP)? {
            bail!("{node} is not running");
        }
        tokio::time::sleep(SLOW_PERIOD.mul_f64(1.0 - share)).await;
    }
    Ok(())
}

fn fill_file_path(folder: &Path, node: &str) -> Result<PathBuf> {
    Ok(daemons_of(folder, node)?.first().context("a node has at least one daemon")?.dir.join(FILL_FILE))
}

pub(super) fn fill_disk(folder: &Path, node: &str, leave: Bytes, force: bool) -> Result<String> {
    let path = fill_file_path(folder, node)?;
    let failed = || format!("cannot fill {}", path.display());
    let disk = path.parent().unwrap_or(folder);
    let about = statvfs(disk).with_context(failed)?;
    let gap = (about.f_bavail * about.f_frsize).saturating_sub(leave.0);
    if gap > FILL_BYTES_MAX && !force {
        bail!("{}", too_much_space_message(gap, &disk.display().to_string()));
    }
    let file = File::create(&path).with_context(failed)?;
    if gap > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, gap).with_context(failed)?;
    }
    Ok(format!("filled {} of the disk of {node}", Bytes(gap)))
}

/// Removes the file that fills the disk. Returns false if there is none.
pub(super) fn clear_disk(folder: &Path, node: &str) -> Result<bool> {
    let path = fill_file_path(folder, node)?;
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}
