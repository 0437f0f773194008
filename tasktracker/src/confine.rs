//! What tasks may be and touch: the account they run as, and the folders of a confined one.
//!
//! A tracker that runs as root gives its tasks another account, or has been told in as many words not to. Folders that
//! a task writes in are handed over to that account; all others stay the tracker's. What a process is told to keep to
//! is the same for all attempts of a job that it may serve, because it cannot be widened later.

use crate::{
    disks::{Disks, Work},
    error::TrackerError,
    ids::Job,
};
use daemon::config::TaskTrackerConfig;
use proto::mr::Confinement;
use std::{
    fs, io,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

/// An account of the system, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// The user.
    pub(crate) user: u32,
    /// Its group.
    pub(crate) group: u32,
}

impl Account {
    /// The one that tasks get, if it is not the tracker's own.
    pub(crate) fn of_tasks(settings: &TaskTrackerConfig) -> Result<Option<Self>, TrackerError> {
        Self::choose(settings, rustix::process::geteuid().is_root())
    }

    fn choose(settings: &TaskTrackerConfig, root: bool) -> Result<Option<Self>, TrackerError> {
        let name = &settings.task_user;
        match (root, name.as_str()) {
            (false, "") => Ok(None),
            (false, _) => Err(TrackerError::Account(format!(
                "tasktracker.task_user = {name:?}: only a tracker that runs as root can give tasks another account"
            ))),
            (true, "") if settings.tasks_as_root => Ok(None),
            (true, "") => Err(TrackerError::Account(
                "refusing to run tasks as root: set tasktracker.task_user to an account for them, or \
                 tasktracker.tasks_as_root = true if that is what you want"
                    .into(),
            )),
            (true, _) => {
                let found = daemon::account::find(name);
                let (user, group) = found.filter(|(user, _)| *user != 0).ok_or_else(|| {
                    let why = "there is no such account, or it is root's";
                    TrackerError::Account(format!("tasktracker.task_user = {name:?}: {why}"))
                })?;
                Ok(Some(Self { user, group }))
            }
        }
    }
}

/// Gives a file or folder to the account of tasks, if they have one.
pub(crate) fn hand_over(path: &Path, to: Option<Account>) -> io::Result<()> {
    to.map_or(Ok(()), |to| chown(path, Some(to.user), Some(to.group)))
}

/// What a confined process may touch: its attempt's folders; of one that may serve other attempts of the job, the
/// job's.
pub(crate) fn confinement(
    disks: &Disks,
    job: Job,
    work: &Work,
    stays: bool,
    reads: &[PathBuf],
) -> Confinement {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let of_job = |part: &'static str| disks.job_parts(job, part);
    let mut writes: Vec<PathBuf> = of_job("output").chain(of_job("aside")).collect();
    // A rule needs its folder to be there; a disk that will not have it gets no attempt either.
    for path in &writes {
        fs::create_dir_all(path).and_then(|()| hand_over(path, disks.account())).ok();
    }
    if stays {
        writes.extend(of_job("work"));
    } else {
        writes.extend(work.scratch.iter().cloned());
    }
    let reads = of_job("program").chain(of_job("files")).chain(reads.iter().cloned());
    Confinement { writes: writes.into_iter().map(text).collect(), reads: reads.map(text).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_as_root_only_if_told() {
        let mut settings = TaskTrackerConfig::default();
        assert_eq!(Account::choose(&settings, false).unwrap(), None);
        let error = Account::choose(&settings, true).unwrap_err().to_string();
        assert!(error.starts_with("refusing to run tasks as root: set tasktracker.task_user"), "{error}");
        settings.tasks_as_root = true;
        assert_eq!(Account::choose(&settings, true).unwrap(), None);
        settings.task_user = "nobody".into();
        let nobody = Account::choose(&settings, true).unwrap().unwrap();
        assert_ne!(nobody.user, 0);
        assert!(Account::choose(&settings, false).unwrap_err().to_string().contains("only a tracker"));
        for wrong in ["root", "no-such-account"] {
            settings.task_user = wrong.into();
            assert!(Account::choose(&settings, true).unwrap_err().to_string().contains("no such account"));
        }
    }
}
