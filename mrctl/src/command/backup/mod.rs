//! `mrctl backup`: writes a backup of both masters of a running cluster into a folder.
//!
//! The JobTracker is first: the output of every job that has succeeded in its backup is in that of
//! the NameNode (ADR 0037).

pub(crate) mod manifest;

use crate::output::{self, Meter};
use anyhow::{Result, bail};
use clusters::locate::Target;
use dfs_client::{BackupPart, BackupStart, Progress as _};
use manifest::{BackupFile, Manifest, MasterBackup, NewFile, create_folder, is_inside, verify_snapshot};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Back up the NameNode and the JobTracker while they run
///
/// The backup has the names of all files and their blocks, the jobs and the job histories. It does
/// not have the blocks, which are on the nodes, nor the configuration and the secret of the
/// cluster. `mrctl restore` writes it to the folders of the masters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl backup /backups/monday\n  \
    mrctl restore --check /backups/monday   verify it\n  \
    mrctl restore /backups/monday           after `mrctl down`")]
pub(crate) struct Args {
    /// Folder of the backup; must be empty or not exist
    folder: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let folder = &args.folder;
    let shown = folder.display();
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{shown} is not empty: name a new folder for the backup");
    }
    let (jobtracker, namenode) = (target.jobtracker().await?, target.connect().await?);
    let started = Instant::now();
    let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    create_folder(folder)?;
    let unfinished = |error: anyhow::Error| {
        error.context(format!("the backup in {shown} is not complete: remove it and try again"))
    };
    let mut writer = Writer::new(folder, "jobtracker", args.json);
    jobtracker.backup(|part| writer.take(part)).await.map_err(unfinished)?;
    let jobs = writer.finish().map_err(unfinished)?;
    let mut writer = Writer::new(folder, "namenode", args.json);
    namenode.backup(|part| writer.take(part)).await.map_err(unfinished)?;
    let files = writer.finish().map_err(unfinished)?;
    let manifest = Manifest::new(time_ms, vec![jobs, files]);
    manifest.write(folder).map_err(unfinished)?;
    let (bytes, count, seconds) = (manifest.bytes(), manifest.files(), started.elapsed().as_secs_f64());
    if args.json {
        let seconds = (seconds * 1000.0).round() / 1000.0;
        output::json(
            &json!({ "folder": folder, "bytes": bytes, "files": count, "seconds": seconds, "manifest": manifest }),
        )?;
    } else {
        let size = output::human(bytes);
        output::line(format!("backup complete: {count} files, {size} in {seconds:.1} s, in {shown}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the backup of one master.
struct Writer {
    daemon: &'static str,
    folder: PathBuf,
    quiet: bool,
    start: Option<BackupStart>,
    files: Vec<BackupFile>,
    /// The file that is being received.
    file: Option<(String, NewFile)>,
    is_complete: bool,
    meter: Meter,
}

impl Writer {
    fn new(folder: &Path, daemon: &'static str, quiet: bool) -> Self {
        Self {
            daemon,
            folder: folder.join(daemon),
            quiet,
            start: None,
            files: Vec::new(),
            file: None,
            is_complete: false,
            meter: Meter::new(&format!("{daemon}: snapshot"), None, quiet),
        }
    }

    fn take(&mut self, part: BackupPart) -> Result<()> {
        match part {
            BackupPart::Start(start) => {
                self.meter = Meter::new(self.daemon, Some(start.bytes), self.quiet);
                self.start = Some(start);
            }
            BackupPart::File(path) => {
                self.finish_file()?;
                if !is_inside(&path) {
                    bail!("the {} sent the file {path:?}, which is not in its folder", self.daemon);
                }
                self.file = Some((path.clone(), NewFile::create(self.folder.join(path))?));
            }
            BackupPart::Data(bytes) => {
                let Some((_, file)) = &mut self.file else {
                    bail!("the {} sent bytes of no file", self.daemon)
                };
                file.append(&bytes)?;
                self.meter.advance(bytes.len() as u64);
            }
            BackupPart::End(files) => {
                self.finish_file()?;
                self.is_complete = files == self.files.len() as u64;
            }
        }
        Ok(())
    }

    fn finish_file(&mut self) -> Result<()> {
        if let Some((path, file)) = self.file.take() {
            let (bytes, sha256) = file.finish()?;
            self.files.push(BackupFile { path, bytes, sha256 });
        }
        Ok(())
    }

    fn finish(self) -> Result<MasterBackup> {
        let Some(start) = self.start.filter(|_| self.is_complete) else {
            bail!("the {} has ended the transfer early", self.daemon)
        };
        let BackupStart { cluster_id, layout, journal, last_record, .. } = start;
        verify_snapshot(&self.folder.join(&journal))?;
        let (daemon, files) = (self.daemon.to_owned(), self.files);
        Ok(MasterBackup { daemon, cluster_id, layout, journal, last_record, files })
    }
}
