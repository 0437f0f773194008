//! Output of attempts: files in a folder of the tracker, which tasks have open but cannot access by
//! path.
//!
//! A process has the same two files from its start to its end. Between attempts their folder is
//! `process-logs/N`; during an attempt it is `logs/ATTEMPT`. When a process is reused for another
//! attempt, a copy of the output remains for the earlier one.

use super::{AttemptFolders, Disks, remove_tree, sweep, warn};
use crate::account::Account;
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt, fchown},
    path::{Path, PathBuf},
    sync::Arc,
};
use types::AttemptId;

/// File with the owner of the logs in the same folder.
const OWNER: &str = "owner";
const NAMES: [&str; 2] = ["stdout", "stderr"];

/// The folder of the output of a process without an attempt; removed when dropped.
#[derive(Debug)]
pub(crate) struct ProcessLogs {
    disk: usize,
    path: PathBuf,
}

impl ProcessLogs {
    /// Creates the files. They belong to the account of tasks, because a process may open them
    /// again as `/dev/stderr`.
    pub(crate) fn files(&self, account: Option<Account>) -> io::Result<Arc<[File; 2]>> {
        files(&self.path, account)
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ProcessLogs {
    fn drop(&mut self) {
        // Usually the folder has been renamed to that of an attempt by then.
        warn(&self.path, "remove", remove_tree(&self.path));
    }
}

/// Creates the two files in a folder of the tracker.
pub(crate) fn files(folder: &Path, account: Option<Account>) -> io::Result<Arc<[File; 2]>> {
    let make = |name: &str| {
        // Opened for appending, so that a truncated log does not get a hole.
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(folder.join(name))?;
        if let Some(Account { user, group }) = account {
            fchown(&file, Some(user), Some(group))?;
        }
        io::Result::Ok(file)
    };
    Ok(Arc::new([make(NAMES[0])?, make(NAMES[1])?]))
}

impl Disks {
    /// Creates a folder for the output of a new process.
    pub(super) fn make_process_logs(&self, disk: usize) -> io::Result<ProcessLogs> {
        let path = self.all[disk].root.join("process-logs").join(self.number().to_string());
        fs::create_dir(&path).map(|()| ProcessLogs { disk, path })
    }

    /// Assigns the output of a process to this attempt from now on.
    pub(super) fn begin_logs(&self, attempt: AttemptId, process_logs: &ProcessLogs) -> io::Result<PathBuf> {
        let logs = self.logs_of(process_logs.disk, attempt);
        // An attempt starts once; files of an earlier one with this name are not its own.
        remove_tree(&logs)?;
        fs::rename(&process_logs.path, &logs).map(|()| logs)
    }

    /// Detaches the log files from an attempt whose process is reused: the files move to another
    /// folder, and a copy of the output remains.
    pub(crate) fn detach_logs(&self, work: &AttemptFolders) -> io::Result<ProcessLogs> {
        let disk = self.all.iter().position(|disk| work.logs.starts_with(&disk.root)).unwrap_or(work.disk);
        let process_logs = self.make_process_logs(disk)?;
        for name in NAMES {
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

    fn logs_of(&self, disk: usize, attempt: AttemptId) -> PathBuf {
        self.all[disk].root.join("logs").join(attempt.to_string())
    }

    fn all_logs_of(&self, attempt: AttemptId) -> impl Iterator<Item = PathBuf> {
        (0..self.all.len()).map(move |disk| self.logs_of(disk, attempt))
    }

    /// Returns the path of a log of an attempt, running or ended.
    pub(crate) fn log(&self, attempt: AttemptId, name: &str) -> Option<PathBuf> {
        self.all_logs_of(attempt).map(|logs| logs.join(name)).find(|path| path.is_file())
    }

    /// Returns the owner of the logs of an attempt, if stored.
    pub(crate) fn log_owner(&self, attempt: AttemptId) -> Option<String> {
        self.all_logs_of(attempt).find_map(|logs| fs::read_to_string(logs.join(OWNER)).ok())
    }

    /// Returns the attempts with logs, oldest first.
    pub(crate) fn logs(&self) -> Vec<AttemptId> {
        let mut found = Vec::new();
        for disk in &self.all {
            for (name, path) in sweep::entries(&disk.root.join("logs")).unwrap_or_default() {
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
    pub(crate) fn remove_log(&self, attempt: AttemptId) {
        for path in self.all_logs_of(attempt) {
            warn(&path, "remove", remove_tree(&path));
        }
    }
}

impl AttemptFolders {
    /// Truncates the logs of an attempt to `max` bytes each; 0 for no limit.
    pub(super) fn cut_logs(&self, max: u64) {
        if max == 0 {
            return;
        }
        for path in NAMES.map(|name| self.logs.join(name)) {
            let cut = || {
                let log = OpenOptions::new().write(true).open(&path)?;
                if log.metadata()?.len() > max { log.set_len(max) } else { Ok(()) }
            };
            warn(&path, "cut", cut());
        }
    }

    /// Stores the owner of the logs of an attempt.
    pub(crate) fn write_owner(&self, owner: &str) {
        warn(&self.logs, "store the owner in", fs::write(self.logs.join(OWNER), owner));
    }
}
