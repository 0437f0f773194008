//! `mrctl restore`: writes a backup of `mrctl backup` to the folders of the masters.
//!
//! Nothing is changed before the whole backup was verified. A folder that is being restored has no
//! `VERSION` file until it is complete, so no daemon starts with an unfinished one. The first start
//! with a restored folder counts as one with `--recover` (ADR 0022, ADR 0037).

use super::backup::manifest::{self, Manifest, MasterBackup, NewFile, create_folder, sync_folder};
use crate::output::{self, Meter};
use anyhow::{Context, Result, bail};
use clusters::{
    folder::dir_flag,
    local::{Layout, Overrides, lock, unused_name},
    locate::state_folder,
};
use daemon::lock::{FolderLock, LockError};
use dfs_client::Progress as _;
use serde_json::json;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// Restore the NameNode and the JobTracker from a backup
///
/// Verifies the backup and writes it to the folders of the masters, which must be stopped: those of
/// the cluster of `mrctl up`, or those that are given. Of several masters of a kind, the first is
/// restored, and the others join it with empty folders at the next start. Files and jobs since the
/// backup are lost.
/// Blocks of files that were deleted since are missing: after the next start, `mrctl fs fsck /`
/// lists them. Blocks that were written since are kept on the nodes and not used, and `mrctl fs
/// report` counts them (`future_blocks`), unless --delete-newer-blocks is given.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl restore --check /backups/monday      verify it, change nothing\n  \
    mrctl restore /backups/monday --replace    after `mrctl down`\n  \
    mrctl restore /backups/monday --namenode-dir /data/namenode")]
pub(crate) struct Args {
    /// Folder of the backup
    backup: PathBuf,
    /// Only verify that the backup is complete and undamaged
    #[arg(long, conflicts_with_all = ["dir", "namenode_dir", "jobtracker_dir", "replace"])]
    check: bool,
    /// Folder of the cluster [default: .fermata here or in the nearest parent folder]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["namenode_dir", "jobtracker_dir"])]
    dir: Option<PathBuf>,
    /// Restore the NameNode to this folder (`namenode.dir`)
    #[arg(long, value_name = "DIR")]
    namenode_dir: Option<PathBuf>,
    /// Restore the JobTracker to this folder (`jobtracker.dir`)
    #[arg(long, value_name = "DIR")]
    jobtracker_dir: Option<PathBuf>,
    /// Rename folders that are not empty, and keep them beside the new ones
    #[arg(long)]
    replace: bool,
    /// Delete the blocks that were written since the backup; otherwise they are kept and not used
    #[arg(long, conflicts_with = "check")]
    delete_newer_blocks: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let started = Instant::now();
    let backup = &args.backup;
    let manifest = Manifest::load(backup)?;
    let meter = Meter::new("verify", Some(manifest.bytes()), args.json);
    manifest.verify(backup, |bytes| meter.advance(bytes))?;
    drop(meter);
    let (bytes, count, shown) = (manifest.bytes(), manifest.files(), backup.display());
    let (size, made) = (output::human(bytes), output::utc(manifest.time_ms));
    if args.check {
        if args.json {
            output::json(&json!({ "folder": backup, "bytes": bytes, "files": count, "manifest": manifest }))?;
        } else {
            output::line(format!("{shown} is complete: {count} files, {size}, made {made}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (folders, cluster) = folders(&args)?;
    let _locked = cluster.as_deref().map(lock).transpose()?;
    let mut targets = Vec::new();
    for master in &manifest.masters {
        if let Some(folder) = folders.iter().find(|(daemon, _)| *daemon == master.daemon) {
            targets.push(TargetFolder::open(master, folder.1.clone(), args.replace)?);
        }
    }
    check_space(&targets)?;
    if let Some(cluster) = &cluster {
        clear_other_masters(cluster, &manifest, args.replace)?;
    }
    targets.iter_mut().try_for_each(|target| target.prepare(&made, args.delete_newer_blocks))?;
    copy(&targets, &args).context("the restore is not complete: run it again with --replace")?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let restored = targets.iter().map(
            |target| json!({ "daemon": target.master.daemon, "folder": target.folder, "kept": target.kept }),
        );
        let seconds = (seconds * 1000.0).round() / 1000.0;
        output::json(
            &json!({ "restored": restored.collect::<Vec<_>>(), "seconds": seconds, "time_ms": manifest.time_ms }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    for target in &targets {
        output::line(format!("restored the {} to {}", target.master.title(), target.folder.display()))?;
        if let Some(kept) = &target.kept {
            output::line(format!("its old folder is now {}", kept.display()))?;
        }
    }
    output::line(format!("restore complete in {seconds:.1} s: the state of {made}"))?;
    let start = cluster
        .map_or_else(|| "the masters".to_owned(), |folder| format!("`mrctl up{}`", dir_flag(Some(&folder))));
    output::line(format!(
        "next: start {start}, then run `mrctl fs fsck /`, which lists the files with missing blocks: blocks of files that \
         were deleted since the backup are gone"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn copy(targets: &[TargetFolder<'_>], args: &Args) -> Result<()> {
    let bytes = targets.iter().map(|target| target.master.bytes()).sum();
    let meter = Meter::new("restore", Some(bytes), args.json);
    for target in targets {
        target.copy_files(&args.backup, |bytes| meter.advance(bytes))?;
    }
    targets.iter().try_for_each(TargetFolder::finish)
}

/// Returns the daemons to restore with their folders, and the folder of the local cluster.
type Folders = (Vec<(&'static str, PathBuf)>, Option<PathBuf>);

fn folders(args: &Args) -> Result<Folders> {
    let given = [("jobtracker", &args.jobtracker_dir), ("namenode", &args.namenode_dir)];
    let given: Vec<_> = given.into_iter().filter_map(|(daemon, dir)| Some((daemon, dir.clone()?))).collect();
    if !given.is_empty() {
        return Ok((given, None));
    }
    let cluster = state_folder(args.dir.as_deref())?;
    let Layout { config, .. } = Layout::prepare(&cluster, &Overrides::default())?;
    create_folder(&cluster)?;
    Ok((vec![("jobtracker", config.jobtracker.dir), ("namenode", config.namenode.dir)], Some(cluster)))
}

/// If the cluster has several masters of a kind, the first one is restored: the others must join it with
/// empty folders. Their old folders are renamed before anything is restored, so that the old group can
/// never run beside the restored master.
fn clear_other_masters(cluster: &Path, manifest: &Manifest, replace: bool) -> Result<()> {
    let mut layout = Layout::prepare(cluster, &Overrides::default())?;
    if layout.masters == 1 {
        return Ok(());
    }
    let founders = [Layout::namenode(), Layout::jobtracker()].into_iter();
    let founders = founders.filter(|role| manifest.masters.iter().any(|master| master.daemon == role.name));
    let founders: Vec<_> = founders.map(|role| (layout.other_folders(role.kind), role)).collect();
    let mut locks = Vec::new();
    for folder in founders.iter().flat_map(|(folders, _)| folders) {
        if !replace {
            return Err(not_empty(folder));
        }
        locks.push(lock_folder("other master", folder)?);
    }
    founders.iter().try_for_each(|(_, founder)| layout.begin_forming(founder))
}

fn not_empty(folder: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} is not empty: with --replace it is renamed and kept, and a new folder is restored",
        folder.display()
    )
}

/// The folder of a master that is being restored. It is locked.
struct TargetFolder<'a> {
    master: &'a MasterBackup,
    folder: PathBuf,
    is_empty: bool,
    lock: FolderLock,
    /// Where the old folder is now.
    kept: Option<PathBuf>,
}

impl<'a> TargetFolder<'a> {
    fn open(master: &'a MasterBackup, folder: PathBuf, replace: bool) -> Result<Self> {
        let folder =
            std::path::absolute(&folder).with_context(|| format!("cannot find {}", folder.display()))?;
        create_folder(&folder)?;
        let shown = folder.display();
        let is_empty = |with_lock| -> Result<bool> {
            let mut entries =
                fs::read_dir(&folder).with_context(|| format!("cannot read {shown}"))?.flatten();
            Ok(!entries.any(|entry| with_lock || entry.file_name() != "LOCK"))
        };
        // A folder that is not of a daemon gets no lock file.
        if !replace && !is_empty(true)? && !folder.join("LOCK").exists() {
            return Err(not_empty(&folder));
        }
        let lock = lock_folder(master.title(), &folder)?;
        let is_empty = is_empty(false)?;
        if !replace && !is_empty {
            return Err(not_empty(&folder));
        }
        Ok(Self { master, folder, is_empty, lock, kept: None })
    }

    /// Renames the old folder if it is not empty, and marks the new one as unfinished.
    fn prepare(&mut self, made: &str, drop_newer: bool) -> Result<()> {
        if !self.is_empty {
            let kept = unused_name(&self.folder);
            fs::rename(&self.folder, &kept).with_context(|| {
                format!(
                    "cannot rename {} to {}: move its files to another place yourself, and run the command again",
                    self.folder.display(),
                    kept.display()
                )
            })?;
            create_folder(&self.folder)?;
            let mode = fs::metadata(&kept)?.permissions();
            fs::set_permissions(&self.folder, mode)?;
            self.lock = lock_folder(self.master.title(), &self.folder)?;
            self.kept = Some(kept);
        }
        journal::home::begin_restore(&self.folder, &format!("the backup of {made}"), drop_newer)?;
        sync_folder(self.folder.parent().unwrap_or(&self.folder))?;
        Ok(())
    }

    fn copy_files(&self, backup: &Path, mut advance: impl FnMut(u64)) -> Result<()> {
        for file in &self.master.files {
            let mut new = NewFile::create(self.folder.join(&file.path))?;
            manifest::read(file, &backup.join(&self.master.daemon), |bytes| {
                advance(bytes.len() as u64);
                new.append(bytes)
            })?;
            new.finish()?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        let MasterBackup { journal, cluster_id, .. } = self.master;
        Ok(journal::home::finish_restore(&self.folder, journal, cluster_id)?)
    }
}

fn lock_folder(title: &str, folder: &Path) -> Result<FolderLock> {
    FolderLock::acquire(folder, "mrctl restore").map_err(|error| match error {
        LockError::InUse { path, holder } => anyhow::anyhow!(
            "cannot restore the {title}: {} is in use by {holder}; stop it first (`mrctl down`)",
            path.display()
        ),
        error @ LockError::Io { .. } => error.into(),
    })
}

/// Bytes that must stay free on a disk after a restore.
const SPACE_RESERVE: u64 = 1 << 20;

/// Fails if the backup does not fit on the disks of the folders.
fn check_space(targets: &[TargetFolder<'_>]) -> Result<()> {
    for target in targets {
        let folder = &target.folder;
        let disk = |folder: &Path| fs::metadata(folder).map(|about| about.dev()).ok();
        let on_disk = targets.iter().filter(|other| disk(&other.folder) == disk(folder));
        let needed = on_disk.map(|other| other.master.bytes()).sum::<u64>() + SPACE_RESERVE;
        let stat =
            rustix::fs::statvfs(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            bail!(
                "the disk of {} is too full: the backup needs {} and {} are free; nothing was changed, free space and try again",
                folder.display(),
                output::human(needed),
                output::human(free)
            );
        }
    }
    Ok(())
}
