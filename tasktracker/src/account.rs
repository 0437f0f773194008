//! The system account that tasks run as.
//!
//! A tracker that runs as root gives its tasks another account (`nobody` by default), unless the
//! configuration lets them run as root. Folders that a task writes to belong to that account; all
//! other folders belong to the tracker. The tracker never changes the owner of a path below a
//! folder that a task writes to, because the task could have created a link there.

use crate::error::TrackerError;
use daemon::config::TaskTrackerConfig;
use std::{
    fs, io,
    os::{fd::IntoRawFd, unix::fs::lchown},
    path::{Path, PathBuf},
};

/// Default account of tasks if the tracker runs as root.
const NOBODY: &str = "nobody";

/// A system account, by its numeric IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// User ID.
    pub(crate) user: u32,
    /// Group ID.
    pub(crate) group: u32,
}

impl Account {
    /// Returns the account of tasks; `None` if it is the account of the tracker.
    pub(crate) fn of_tasks(settings: &TaskTrackerConfig) -> Result<Option<Self>, TrackerError> {
        Self::choose(settings, rustix::process::geteuid().is_root())
    }

    fn choose(settings: &TaskTrackerConfig, tracker_is_root: bool) -> Result<Option<Self>, TrackerError> {
        let name = &settings.task_user;
        match (tracker_is_root, name.as_str()) {
            (false, "") => Ok(None),
            (false, _) => Err(TrackerError::Account(format!(
                "tasktracker.task_user = {name:?}: only a tracker that runs as root can give tasks another account"
            ))),
            (true, "") if settings.tasks_as_root => Ok(None),
            (true, "") => Self::find(NOBODY).map(Some).ok_or_else(|| {
                TrackerError::Account(format!(
                    "refusing to run tasks as root, and there is no account {NOBODY}: set tasktracker.task_user to an \
                     account for them, or tasktracker.tasks_as_root = true if that is what you want"
                ))
            }),
            (true, _) => Self::find(name).map(Some).ok_or_else(|| {
                let why = "this account does not exist, or is root";
                TrackerError::Account(format!("tasktracker.task_user = {name:?}: {why}"))
            }),
        }
    }

    /// Returns the account with this name, if it exists and is not root.
    fn find(name: &str) -> Option<Self> {
        let (user, group) = daemon::account::find(name).filter(|(user, _)| *user != 0)?;
        Some(Self { user, group })
    }
}

impl Account {
    /// Returns an error if the account cannot reach this folder. The error names the first folder
    /// on the path that the account cannot enter.
    pub(crate) fn check_reachable(self, path: &Path) -> Result<(), TrackerError> {
        self.blocked_at(path)?.map_or(Ok(()), |step| Err(self.unreachable_error(path, &step)))
    }

    /// Returns a path with which processes of this account can start the task program. If they
    /// cannot enter a parent folder of the program, the path names a file descriptor, which stays
    /// open while the tracker runs.
    pub(crate) fn startable_path(self, program: PathBuf) -> Result<PathBuf, TrackerError> {
        match self.blocked_at(&program)? {
            None => Ok(program),
            Some(step) if step == program => Err(self.unreachable_error(&program, &step)),
            Some(step) => {
                let file = fs::File::open(&program).map_err(crate::error::folder_error("open", &program))?;
                let (program, step) = (program.display(), step.display());
                tracing::info!(%program, %step, "tasks cannot enter this folder: the program is started through a file descriptor");
                Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
            }
        }
    }

    /// Returns the first part of the path that the account cannot access, if any.
    fn blocked_at(self, path: &Path) -> Result<Option<PathBuf>, TrackerError> {
        daemon::account::blocked_at(path, (self.user, self.group))
            .map_err(crate::error::folder_error("look at", path))
    }

    fn unreachable_error(self, path: &Path, step: &Path) -> TrackerError {
        TrackerError::Account(format!(
            "tasks run as account {}, which cannot reach {}: it may not enter {} (chmod o+x, or move the tracker's \
             folders and programs elsewhere)",
            daemon::account::name_of(self.user),
            path.display(),
            step.display()
        ))
    }
}

/// Makes the account of tasks, if there is one, the owner of the file or folder at this path. The
/// parent folder must belong to the tracker.
pub(crate) fn hand_over(path: &Path, to: Option<Account>) -> io::Result<()> {
    to.map_or(Ok(()), |to| lchown(path, Some(to.user), Some(to.group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_as_root_only_if_configured() {
        let mut settings = TaskTrackerConfig::default();
        assert_eq!(Account::choose(&settings, false).unwrap(), None);
        let default_account = Account::choose(&settings, true).unwrap().unwrap();
        assert_eq!(Some(default_account), Account::find("nobody"));
        settings.tasks_as_root = true;
        assert_eq!(Account::choose(&settings, true).unwrap(), None);
        settings.task_user = "nobody".into();
        let nobody = Account::choose(&settings, true).unwrap().unwrap();
        assert_ne!(nobody.user, 0);
        assert!(Account::choose(&settings, false).unwrap_err().to_string().contains("only a tracker"));
        for wrong in ["root", "no-such-account"] {
            settings.task_user = wrong.into();
            assert!(
                Account::choose(&settings, true)
                    .unwrap_err()
                    .to_string()
                    .contains("this account does not exist")
            );
        }
    }
}
