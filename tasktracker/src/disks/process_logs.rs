//! The stdout and stderr of attempts. They are files in a folder of the tracker, which tasks have
//! open but cannot access by path.
//!
//! A process has the same two files for as long as it runs. Between attempts the files are in
//! `process-logs/N`, and during an attempt in `logs/ATTEMPT`. When a process is reused for another
//! attempt, the logs of the earlier attempt are a copy of the files.

use super::{AttemptFolders, Disks, log_failure, remove_tree, sweep};
use crate::account::Account;
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt, fchown},
    path::{Path, PathBuf},
    sync::Arc,
};
use types::AttemptId;

/// Name of the file with the owner of the logs in the same folder.
const OWNER_FILE: &str = "owner";
const LOG_NAMES: [&str; 2] = ["stdout", "stderr"];

/// The folder with the output of a process that has no attempt. It is removed when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct ProcessLogs {
    disk: usize,
    path: PathBuf,
}

impl ProcessLogs {
    /// Creates the files for stdout and stderr. They belong to the account of tasks, because a
    /// process may open them again, for example as `/dev/stderr`.
    pub(crate) fn create_files(&self, account: Option<Account>) -> io::Result<Arc<[File; 2]>> {
        create_log_files(&self.path, account)
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ProcessLogs {
    fn drop(&mut self) {
        // Usually the folder does not exist any more, because it was renamed to the log folder of
        // an attempt.
        log_failure(&self.path, "remove", remove_tree(&self.path));
    }
}

/// Creates the files for stdout and stderr in a folder of the tracker.
pub(crate) fn create_log_files(folder: &Path, account: Option<Account>) -> io::Result<Arc<[File; 2]>> {
    let make = |name: &str| {
        // The files are opened for appending, so that a log that was truncated does not get a hole.
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(folder.join(name))?;
        if let Some(Account { user, group }) = account {
            fchown(&file, Some(user), Some(group))?;
        }
        io::Result::Ok(file)
    };
    Ok(Arc::new([make(LOG_NAMES[0])?, make(LOG_NAMES[1])?]))
}

impl Disks {
    /// Creates a folder for the output of a new process.
    pub(super) fn make_process_logs(&self, disk: usize) -> io::Result<ProcessLogs> {
        let path = self.disks[disk].root.join("process-logs").join(self.unused_number().to_string());
        fs::create_dir(&path).map(|()| ProcessLogs { disk, path })
    }

    /// Makes the output of a process, from now on, the logs of this attempt. Returns the folder of
    /// the logs.
    pub(super) fn begin_logs(&self, attempt: AttemptId, process_logs: &ProcessLogs) -> io::Result<PathBuf> {
        let logs = self.log_folder(process_logs.disk, attempt);
        // An attempt starts only once, so existing files with its name are not its logs.
        remove_tree(&logs)?;
        fs::rename(&process_logs.path, &logs).map(|()| logs)
    }

    /// Separates the log files of a process that is reused from the attempt that has ended: moves
    /// the files to a new folder, and leaves a copy of the output as the logs of the attempt.
    pub(crate) fn detach_logs(&self, work: &AttemptFolders) -> io::Result<ProcessLogs> {
        let disk = self.disks.iter().position(|disk| work.logs.starts_with(&disk.root)).unwrap_or(work.disk);
        let process_logs = self.make_process_logs(disk)?;
        for name in LOG_NAMES {
            let (old, new) = (work.logs.join(name), process_logs.path.join(name));
            fs::rename(&old, &new)?;
            let file = OpenOptions::new().read(true).write(true).open(&new)?;
            let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&old)?;
            if file.metadata()?.len() > 0 {
                io::copy(&mut &file, &mut copy)?;
                file.set_len(0)?;
            }
        }
        Ok(process_logs)
    }

    fn log_folder(&self, disk: usize, attempt: AttemptId) -> PathBuf {
        self.disks[disk].root.join("logs").join(attempt.to_string())
    }

    fn log_folders(&self, attempt: AttemptId) -> impl Iterator<Item = PathBuf> {
        (0..self.disks.len()).map(move |disk| self.log_folder(disk, attempt))
    }

    /// Returns the path of a log of a running or ended attempt. `name` is `stdout` or `stderr`.
    pub(crate) fn log_path(&self, attempt: AttemptId, name: &str) -> Option<PathBuf> {
        self.log_folders(attempt).map(|logs| logs.join(name)).find(|path| path.is_file())
    }

    /// Returns the owner of the logs of an attempt, if stored.
    pub(crate) fn log_owner(&self, attempt: AttemptId) -> Option<String> {
        self.log_folders(attempt).find_map(|logs| fs::read_to_string(logs.join(OWNER_FILE)).ok())
    }

    /// Returns the attempts with logs, oldest first.
    pub(crate) fn attempts_with_logs(&self) -> Vec<AttemptId> {
        let mut found = Vec::new();
        for disk in &self.disks {
            for (name, path) in sweep::list_folder(&disk.root.join("logs")).unwrap_or_default() {
                let changed = fs::metadata(&path).and_then(|about| about.modified());
                if let (Ok(attempt), Ok(changed)) = (name.parse::<AttemptId>(), changed) {
                    found.push((changed, attempt));
                }
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, attempt)| attempt).collect()
    }

    /// Deletes the logs of an attempt.
    pub(crate) fn remove_logs(&self, attempt: AttemptId) {
        for path in self.log_folders(attempt) {
            log_failure(&path, "remove", remove_tree(&path));
        }
    }
}

impl AttemptFolders {
    /// Truncates the logs of an attempt to `max` bytes each; 0 for no limit.
    pub(super) fn truncate_logs(&self, max: u64) {
        if max == 0 {
            return;
        }
        for path in LOG_NAMES.map(|name| self.logs.join(name)) {
            let truncate = || {
                let log = OpenOptions::new().write(true).open(&path)?;
                if log.metadata()?.len() > max { log.set_len(max) } else { Ok(()) }
            };
            log_failure(&path, "truncate", truncate());
        }
    }

    /// Stores the owner of the logs of the attempt.
    pub(crate) fn write_owner(&self, owner: &str) {
        log_failure(&self.logs, "store the owner in", fs::write(self.logs.join(OWNER_FILE), owner));
    }
}
