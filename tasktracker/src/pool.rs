//! Idle task processes, kept warm so that a small task starts in milliseconds: new ones for any job, and ones that
//! have done an attempt for another of the same job (`kept`).
//!
//! Refilled one at a time, behind the backs of running attempts. A pool that cannot be filled harms nobody:
//! attempts then start processes of their own, and meet the error themselves.

use crate::{
    disks::{DiskError, Disks},
    ids::Job,
    kept::{Kept, Waiting},
    process::{Process, Said, Spawner, Start},
};
use parking_lot::Mutex;
use proto::mr::ToTask;
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, mpsc};

/// A process that has not said hello by then is broken.
pub(crate) const HELLO: Duration = Duration::from_secs(30);
/// Between tries to fill a pool that cannot be filled.
const AGAIN: Duration = Duration::from_secs(5);

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// No folder for it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system would not.
    #[error("cannot start {program}: {source}{}", hint(source))]
    Spawn {
        /// What.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(8) => " (not a program for this machine)",
        Some(13) => " (not executable)",
        _ => "",
    }
}

/// A process without an attempt, in a folder that will be its attempt's.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// Itself.
    pub(crate) process: Process,
    /// The way to it, once it has said hello.
    pub(crate) to_task: Option<mpsc::UnboundedSender<ToTask>>,
    /// Which disk its folder is on.
    pub(crate) disk: usize,
    /// The folder.
    pub(crate) folder: PathBuf,
}

/// The idle ones.
#[derive(Debug)]
pub(crate) struct Pool {
    disks: Arc<Disks>,
    spawner: Spawner,
    program: PathBuf,
    size: usize,
    idle: Mutex<VecDeque<Fresh>>,
    kept: Kept,
    wanted: Notify,
    number: AtomicU64,
}

impl Pool {
    /// Empty; `fill` fills it.
    pub(crate) fn new(disks: Arc<Disks>, spawner: Spawner, program: PathBuf, size: usize) -> Self {
        let (idle, kept) = (Mutex::default(), Kept::default());
        Self { disks, spawner, program, size, idle, kept, wanted: Notify::new(), number: AtomicU64::new(0) }
    }

    /// A process of the built-in programs: one that has worked for the job, an idle one, or a new one.
    pub(crate) async fn take(&self, job: Job) -> Result<Fresh, StartError> {
        if let Some(waiting) = self.kept.take(job) {
            return self.furnish(waiting);
        }
        loop {
            let Some(mut fresh) = self.idle.lock().pop_front() else { break };
            self.wanted.notify_one();
            if fresh.alive() && self.disks.usable(fresh.disk) {
                return Ok(fresh);
            }
            fresh.discard();
        }
        self.start(&self.program).await
    }

    /// Keeps a process for the job's next attempt.
    pub(crate) fn keep(&self, job: Job, waiting: Waiting) {
        self.kept.put(job, waiting);
    }

    /// A new folder for a process that had another before.
    fn furnish(&self, waiting: Waiting) -> Result<Fresh, StartError> {
        let Waiting { process, to_task } = waiting;
        let (disk, folder) = self.room()?;
        if let Err(source) = self.spawner.print_into(&process.handle, &folder) {
            std::fs::remove_dir_all(&folder).ok();
            return Err(StartError::Spawn { program: self.program.clone(), source });
        }
        Ok(Fresh { process, to_task: Some(to_task), disk, folder })
    }

    fn room(&self) -> Result<(usize, PathBuf), DiskError> {
        let disk = self.disks.choose()?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        Ok((disk, self.disks.make_warm(disk, number)?))
    }

    /// A new process of this program.
    pub(crate) async fn start(&self, program: &Path) -> Result<Fresh, StartError> {
        let (disk, folder) = self.room()?;
        let start = Start { program: program.into(), folder: folder.clone() };
        match self.spawner.spawn(start).await {
            Ok(process) => Ok(Fresh { process, to_task: None, disk, folder }),
            Err(source) => {
                std::fs::remove_dir_all(&folder).ok();
                Err(StartError::Spawn { program: program.into(), source })
            }
        }
    }

    /// Ends the idle ones.
    pub(crate) fn empty(&self) {
        self.kept.clear();
        for fresh in self.idle.lock().drain(..) {
            fresh.discard();
        }
    }

    /// How many are idle.
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Ends processes that have waited too long for their job, until dropped.
    pub(crate) async fn expire(self: Arc<Self>) {
        self.kept.expire().await;
    }

    /// Keeps the pool full until dropped.
    pub(crate) async fn fill(self: Arc<Self>) {
        loop {
            if self.idle() >= self.size {
                self.wanted.notified().await;
                continue;
            }
            match self.warm_up().await {
                Ok(fresh) => self.idle.lock().push_back(fresh),
                Err(why) => {
                    tracing::warn!(program = %self.program.display(), why, "no idle task process");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn warm_up(&self) -> Result<Fresh, String> {
        let mut fresh = self.start(&self.program).await.map_err(|error| error.to_string())?;
        match tokio::time::timeout(HELLO, fresh.process.said.recv()).await {
            Ok(Some(Said::Hello(to_task))) => {
                fresh.to_task = Some(to_task);
                Ok(fresh)
            }
            Ok(other) => {
                let why = crate::process::with_stderr(format!("{other:?} instead of hello"), &fresh.folder);
                fresh.discard();
                Err(why)
            }
            Err(_) => {
                fresh.discard();
                Err(format!("it did not say hello within {HELLO:?}"))
            }
        }
    }
}

impl Fresh {
    fn alive(&mut self) -> bool {
        self.process.alive() && self.process.said.is_empty()
    }

    /// Ends it and removes its folder. It has no attempt yet, so it has nothing to write there.
    pub(crate) fn discard(self) {
        self.process.handle.kill();
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(path = %self.folder.display(), %error, "cannot remove it");
        }
    }
}
